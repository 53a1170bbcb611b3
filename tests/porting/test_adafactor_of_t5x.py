"""Adafactor's state in checkpoints of T5X: a training goes on as T5X's formulas do, however the arrays lie."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flax import serialization

from jax_transformer import TrainConfig, import_checkpoint
from jax_transformer.cli import main
from jax_transformer.porting import import_training_state
from jax_transformer.runtime.trees import flatten, unflatten
from jax_transformer.storage.model_directory import Model, load_model
from jax_transformer.storage.tensors import PortingError
from jax_transformer.training.optimizer_state import continue_training
from jax_transformer.training.state import init_state
from jax_transformer.training.step import StepFunctions

pytestmark = pytest.mark.usefixtures("quick_compilation")

LAYERS = {"encoder": 2, "decoder": 3}
HEADS, HEAD, WIDTH, FEED_FORWARD, VOCABULARY, BUCKETS = 2, 5, 8, 12, 31, 4
LEAST = 6
"""The smallest side of a matrix that is factored."""
RATE = 0.25
Arrays = dict[str, np.ndarray]


def shapes(*, scanned: bool) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of the arrays of T5X's examples: t5, or scalable_t5 with layers on axis 1."""
    found: dict[str, tuple[int, ...]] = {
        "token_embedder/embedding": (VOCABULARY, WIDTH),
        "decoder/logits_dense/kernel": (WIDTH, VOCABULARY),
    }
    for stack, count in LAYERS.items():
        found[f"{stack}/relpos_bias/rel_embedding"] = (HEADS, BUCKETS)
        found[f"{stack}/{stack}_norm/scale"] = (WIDTH,)
        attentions = {"encoder": ["attention"], "decoder": ["self_attention", "encoder_decoder_attention"]}[stack]
        norms = {"attention": "attention", "self_attention": "self_attention"}
        layer: dict[str, tuple[int, ...]] = {
            "mlp/wi_0/kernel": (WIDTH, FEED_FORWARD),
            "mlp/wi_1/kernel": (WIDTH, FEED_FORWARD),
            "mlp/wo/kernel": (FEED_FORWARD, WIDTH),
            "pre_mlp_layer_norm/scale": (WIDTH,),
        }
        for name in attentions:
            inner = (HEADS, HEAD) if scanned else (HEADS * HEAD,)
            layer |= {f"{name}/{part}/kernel": (WIDTH, *inner) for part in ("query", "key", "value")}
            layer[f"{name}/out/kernel"] = (*inner, WIDTH)
            layer[f"pre_{norms.get(name, 'cross_attention')}_layer_norm/scale"] = (WIDTH,)
        if scanned:
            found |= {f"{stack}/{stack}/{name}": (shape[0], count, *shape[1:]) for name, shape in layer.items()}
        else:
            found |= {f"{stack}/layers_{i}/{name}": shape for i in range(count) for name, shape in layer.items()}
    return found


def sides(name: str, shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Returns the axes of rows and of columns by which T5X factors an array; None if it keeps all squares."""
    if f"/{name.split('/')[0]}/" in name or len(shape) > 2:  # stacked, with rules by the axes' names
        if len(shape) == 2:
            return None
        others = tuple(axis for axis in range(len(shape)) if axis != 1)
        return ((others[-1],), others[:-1]) if name.endswith(("out/kernel", "wo/kernel")) else ((0,), others[1:])
    if len(shape) < 2 or min(shape) < LEAST:
        return None
    small, large = np.argsort(shape, kind="stable")
    return (int(small),), (int(large),)


def layer_axis(name: str) -> int | None:
    return 1 if "encoder/encoder/" in name or "decoder/decoder/" in name else None


def step_of_t5x(number: int, params: Arrays, states: dict[str, Arrays], gradients: Arrays) -> None:
    """Makes one step of Adafactor in place, in float64: Shazeer & Stern 2018, algorithm 4, within each layer."""
    decay = 1 - (number + 1.0) ** -0.8
    for name, gradient in gradients.items():
        state, squares, axes = states[name], gradient**2 + 1e-30, sides(name, gradient.shape)
        within = tuple(axis for axis in range(gradient.ndim) if axis != layer_axis(name))
        if axes is None:
            state["v"] = decay * state["v"] + (1 - decay) * squares
            update = gradient / np.sqrt(state["v"])
        else:
            rows, columns = axes
            state["v_row"] = decay * state["v_row"] + (1 - decay) * squares.mean(columns)
            state["v_col"] = decay * state["v_col"] + (1 - decay) * squares.mean(rows)
            by_row, by_column = np.expand_dims(state["v_row"], columns), np.expand_dims(state["v_col"], rows)
            update = gradient / np.sqrt(by_row / by_row.mean(rows, keepdims=True) * by_column)
        update /= np.maximum(1.0, np.sqrt((update**2).mean(within, keepdims=True)))
        scale = np.maximum(1e-3, np.sqrt((params[name] ** 2).mean(within, keepdims=True)))
        params[name] = params[name] - RATE * scale * update


def first_states(params: Arrays) -> dict[str, Arrays]:
    states = {}
    for name, array in params.items():
        axes, none = sides(name, array.shape), np.zeros(1)
        states[name] = {"v_row": none, "v_col": none, "v": np.zeros(array.shape), "m": none}
        if axes is not None:
            rows, columns = np.delete(array.shape, axes[1]), np.delete(array.shape, axes[0])
            states[name] |= {"v_row": np.zeros(rows), "v_col": np.zeros(columns), "v": none}
    return states


@dataclasses.dataclass
class Trained:
    """Holds parameters and states of T5X after some steps."""

    params: Arrays
    states: dict[str, Arrays]
    rng: np.random.Generator
    steps: int = 0

    @classmethod
    def made(cls, *, scanned: bool, steps: int = 3) -> Trained:
        rng = np.random.default_rng(0)
        params = {name: rng.normal(0, 0.3, shape) for name, shape in shapes(scanned=scanned).items()}
        made = cls(params, first_states(params), rng)
        for _ in range(steps):
            made.step(made.gradients())
        return made

    def gradients(self) -> Arrays:
        return {name: self.rng.normal(0, self.rng.uniform(0.1, 9), array.shape) for name, array in self.params.items()}

    def step(self, gradients: Arrays) -> None:
        step_of_t5x(self.steps, self.params, self.states, gradients)
        self.steps += 1

    def tree(self, params: Arrays | None = None) -> dict[str, Any]:
        def stored(arrays: dict[str, Any]) -> dict[str, Any]:
            return unflatten({name: np.asarray(array, np.float32) for name, array in arrays.items()})

        states = {f"{name}/{key}": array for name, state in self.states.items() for key, array in state.items()}
        state = {"step": np.int32(self.steps), "param_states": stored(states)}
        return {"target": stored(params or self.params), "state": state}


def write(folder: Path, tree: dict[str, Any], form: str = "msgpack") -> Path:
    if form == "msgpack":
        folder.mkdir(parents=True)
        content = {"version": 3, "optimizer": tree}
        (folder / "checkpoint").write_bytes(serialization.msgpack_serialize(content))
        return folder
    import orbax.checkpoint

    handler = orbax.checkpoint.PyTreeCheckpointHandler(use_ocdbt=form == "ocdbt")
    with orbax.checkpoint.Checkpointer(handler) as checkpointer:
        checkpointer.save(folder, tree)
    return folder


@pytest.mark.parametrize(
    ("scanned", "form"), [(False, "msgpack"), (True, "msgpack"), (False, "tensorstore"), (True, "ocdbt")]
)
def test_the_next_step_is_t5xs(scanned: bool, form: str, tmp_path: Path) -> None:
    trained = Trained.made(scanned=scanned)
    path = write(tmp_path / "checkpoint_3", trained.tree(), form)
    model = import_training_state(import_checkpoint(path), path)
    saved = model.training_state
    assert saved is not None
    assert saved.step == 3
    assert model.origin is not None
    assert model.origin["left"] == []
    config = TrainConfig(
        **{**saved.train, "schedule": "constant", "learning_rate": RATE, "warmup_steps": 0, "max_steps": 9}
    )
    assert config.factored_from == min(HEADS * HEAD, WIDTH)
    state = continue_training(init_state(model.config, config, model.params), saved, config)

    gradients = trained.gradients()
    ours = import_checkpoint(write(tmp_path / "gradients", trained.tree(gradients))).params
    leaves = {name: flatten(ours)[name] for name in flatten(state.params)}
    update = jax.jit(StepFunctions.of("trained", model.config, config).update)
    state, _ = update(state, np.float32(1.0), np.int32(7), unflatten(leaves))
    trained.step(gradients)
    expected = flatten(import_checkpoint(write(tmp_path / "expected", trained.tree())).params)
    for name, leaf in flatten(state.params).items():
        np.testing.assert_allclose(leaf, expected[name], rtol=2e-5, atol=2e-6, err_msg=name)


def imported(folder: Path, tree: dict[str, Any]) -> Model:
    path = write(folder, tree)
    return import_training_state(import_checkpoint(path), path)


def test_states_that_are_incomplete(tmp_path: Path) -> None:
    tree = Trained.made(scanned=True, steps=0).tree()
    states = tree["state"]["param_states"]
    states["token_embedder"]["embedding"]["m"] = np.zeros((VOCABULARY, WIDTH), np.float32)
    del states["encoder"]["encoder_norm"]
    wo = states["encoder"]["encoder"]["mlp"]["wo"]["kernel"]
    wo["v_row"] = wo["v_row"][:1]  # of one layer
    with pytest.raises(PortingError) as caught:
        imported(tmp_path / "half", tree)
    message = str(caught.value)
    assert "an incomplete state of T5X's Adafactor" in message
    assert "token_embedder/embedding: expected no momentum (beta1 = None)" in message
    assert "encoder/encoder_norm/scale: expected v_row" in message
    assert (
        "encoder/encoder/mlp/wo/kernel: expected v_col [12, 2] and v_row [2, 8], or v [12, 2, 8]; received " in message
    )
    assert len(caught.value.problems) == 3


def test_a_checkpoint_without_a_state(tmp_path: Path) -> None:
    tree = Trained.made(scanned=False, steps=0).tree()
    tree["state"]["param_states"] = {}
    with pytest.raises(PortingError, match=r"expected Adafactor's state of T5X, v_row, v_col and v under state/param_"):
        imported(tmp_path / "none", tree)


def test_settings_that_no_run_has(tmp_path: Path) -> None:
    path = write(tmp_path / "checkpoint_0", Trained.made(scanned=False, steps=0).tree())
    (path / "config.gin").write_text("adafactor.Adafactor:\n  x = 1\nadafactor.Adafactor.step_offset = 1000\n")
    with pytest.raises(PortingError, match=r"step_offset must be 0; received 1000"):
        import_training_state(import_checkpoint(path), path)


def test_the_command_keeps_the_state(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "checkpoint_2", Trained.made(scanned=True, steps=2).tree())
    assert main(["port", str(path), str(tmp_path / "model"), "--with-optimizer"]) == 0
    said = capsys.readouterr().out
    assert "adafactor after 2 steps" in said
    assert "left:" not in said
    state = load_model(tmp_path / "model").training_state
    assert state is not None
    assert state.slots["input_squares"]["encoder/layers/self_attention/query/kernel"].shape == (2, WIDTH)
