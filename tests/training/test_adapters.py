"""LoRA: adapters alone are trained, and the model computes with the kernels plus their products. (Against PEFT:
parity_tests/test_lora.py.)"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from tiny_runs import rows, tiny_run

from jax_transformer.config.lora import LoraConfig
from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.run import RunConfig, TrainConfig
from jax_transformer.config.validation import ConfigError
from jax_transformer.data.batching import Batch
from jax_transformer.data.preparation import prepare
from jax_transformer.model.functional import Params, abstract_params, init_params
from jax_transformer.runtime.trees import flatten, map_leaves, unflatten
from jax_transformer.storage.model_directory import load_model, save_model
from jax_transformer.training.adapters import AdapterError, add_adapters
from jax_transformer.training.export import load_averaged_model, make_model
from jax_transformer.training.fitting import fit_config
from jax_transformer.training.interruption import Interrupted
from jax_transformer.training.loop import describe_run, train
from jax_transformer.training.state import all_params, evaluation_params, init_state
from jax_transformer.training.step import make_train_step
from jax_transformer.training.warm_start import (
    InitialModelError,
    follow_initial_model,
    load_initial_model,
    load_initial_params,
)

pytestmark = pytest.mark.usefixtures("quick_compilation")

LORA = LoraConfig(rank=3, alpha=6)
EVERYWHERE = dataclasses.replace(LORA, targets=("*_attention/*/kernel", "*/feed_forward/*/kernel", "head/kernel"))
TRAIN = TrainConfig(schedule="constant", learning_rate=0.01, warmup_steps=0, lora=LORA)


def batch_of(ids: Any) -> Batch:
    return Batch(ids.source, ids.target, np.where(ids.target == 3, 4, ids.target))


def with_drawn_adapters(config: TransformerConfig, train: TrainConfig, params: Params) -> Params:
    """Returns the parameters with random, unmerged adapters."""
    rng = np.random.default_rng(1)
    adapters = jax.eval_shape(lambda: init_state(config, train)).params
    return unflatten(
        flatten(params) | {path: 0.3 * rng.standard_normal(leaf.shape) for path, leaf in flatten(adapters).items()}
    )


def by_hand(params: Params, scale: float) -> dict[str, np.ndarray]:
    """Returns the leaves with A · B of each layer, all inputs by all outputs, added to their kernels."""
    leaves = {path: np.asarray(leaf) for path, leaf in flatten(params).items()}
    merged = {path: leaf for path, leaf in leaves.items() if "lora" not in path}
    for path in (path for path in leaves if path.endswith("lora_a")):
        start = path.removesuffix("lora_a")
        kernel, a, b = (leaves[start + name] for name in ("kernel", "lora_a", "lora_b"))
        if start == "head/":
            merged[start + "kernel"] = kernel + scale * a @ b
            continue
        for layer in range(len(kernel)):
            product = np.tensordot(a[layer], b[layer], axes=1)
            merged[start + "kernel"] = merged[start + "kernel"].copy()
            merged[start + "kernel"][layer] += scale * product
    return merged


# --- the step


@pytest.mark.parametrize("optimizer", ["adam", "muon"])
def test_adapters_alone_are_trained(optimizer: Any, ids: Any, config: TransformerConfig) -> None:
    settings = dataclasses.replace(TRAIN, optimizer=optimizer, accumulate=5, ema_decay=0.9, weight_decay=0.01)
    state, step = init_state(config, settings), make_train_step(config, settings)
    before = {path: np.array(leaf) for path, leaf in flatten(all_params(state)).items()}
    losses = []
    for _ in range(4):
        state, metrics = step(state, batch_of(ids))
        losses.append(float(metrics["loss"]))
    assert losses[-1] < losses[0]
    after = flatten(all_params(state))
    assert after.keys() == before.keys()
    moved = {path for path, leaf in after.items() if not np.array_equal(leaf, before[path])}
    stack = {"encoder": ["self_attention"], "decoder": ["self_attention", "cross_attention"]}
    assert moved == {
        f"{name}/layers/{attention}/{part}/kernel"
        for name, attentions in stack.items()
        for attention in attentions
        for part in ("query", "value")
    }
    assert all("lora" in path for path in flatten(state.params))
    kept = sum(leaf.size for leaf in jax.tree.leaves(state.optimizer))
    trained = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    assert kept <= 2 * trained + 10 < sum(leaf.size for leaf in before.values())
    average = flatten(evaluation_params(state))
    assert any(not np.array_equal(average[path], after[path]) for path in moved)


@pytest.mark.parametrize("use_rslora", [False, True])
def test_the_model_computes_with_the_merged_kernels(
    use_rslora: bool, config: TransformerConfig, random_params: Any, x64: None
) -> None:
    lora = dataclasses.replace(EVERYWHERE, use_rslora=use_rslora)
    settings = dataclasses.replace(TRAIN, lora=lora)
    params = with_drawn_adapters(config, settings, random_params(config))
    received = flatten(all_params(init_state(config, settings, params)))
    expected = by_hand(params, 6 / math.sqrt(3) if use_rslora else 2.0)
    assert received.keys() == expected.keys()
    assert len([path for path in expected if not np.array_equal(expected[path], flatten(params)[path])]) == 17
    for path, leaf in expected.items():
        np.testing.assert_allclose(received[path], leaf, rtol=1e-13, atol=1e-13)


def test_gradients_are_the_kernels_gradients_times_the_other_matrix(
    ids: Any, config: TransformerConfig, random_params: Any, x64: None
) -> None:
    """By SGD of one step: A moves against scale · dW Bᵀ, and B against scale · Aᵀ dW."""
    sgd = TrainConfig(optimizer="sgd", schedule="constant", learning_rate=1.0, warmup_steps=0)
    settings = dataclasses.replace(sgd, lora=LORA)
    params = with_drawn_adapters(config, settings, random_params(config))
    moved = make_train_step(config, settings)(init_state(config, settings, params), batch_of(ids))[0].params
    whole = unflatten(by_hand(params, 2.0))
    kernels = flatten(make_train_step(config, sgd)(init_state(config, sgd, whole), batch_of(ids))[0].params)
    leaves, path = flatten(params), "decoder/layers/cross_attention/value/"
    step = kernels[path + "kernel"] - flatten(whole)[path + "kernel"]  # [L, D, N, H]
    a, b = leaves[path + "lora_a"], leaves[path + "lora_b"]
    expected_a = a + 2.0 * np.einsum("ldnh,lrnh->ldr", step, b)
    expected_b = b + 2.0 * np.einsum("ldr,ldnh->lrnh", a, step)
    np.testing.assert_allclose(flatten(moved)[path + "lora_a"], expected_a, rtol=1e-11)
    np.testing.assert_allclose(flatten(moved)[path + "lora_b"], expected_b, rtol=1e-11)


def test_loops_of_layers_give_the_same_losses(
    ids: Any, config: TransformerConfig, random_params: Any, x64: None
) -> None:
    settings, losses = dataclasses.replace(TRAIN, lora=EVERYWHERE), {}
    params = with_drawn_adapters(config, settings, random_params(config))
    for loop in ("scan", "unrolled"):
        looped = dataclasses.replace(config, layer_loop=loop)
        state, step = init_state(looped, settings, params), make_train_step(looped, settings)
        for _ in range(2):
            state, metrics = step(state, batch_of(ids))
        losses[loop] = float(metrics["loss"])
    assert losses["scan"] == pytest.approx(losses["unrolled"], rel=1e-12)


# --- first values


def drawn(config: TransformerConfig, lora: LoraConfig, seed: int = 0) -> dict[str, Any]:
    kernels = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), abstract_params(config))
    return flatten(add_adapters(kernels, lora, seed)[0])


def test_first_values_equal_peft() -> None:
    config = TransformerConfig(source_vocab_size=9, target_vocab_size=9, d_model=64, num_heads=4, d_ff=16)
    first = drawn(config, LORA)
    a, b = (first[f"encoder/layers/self_attention/query/lora_{part}"] for part in ("a", "b"))
    assert (a.shape, b.shape) == ((6, 64, 3), (6, 3, 4, 16))
    assert not np.any(b)
    assert np.abs(a).max() < 1 / 8
    assert np.std(a) == pytest.approx(1 / 8 / math.sqrt(3), rel=0.05)
    assert len(np.unique(a)) > 0.99 * a.size


def test_first_values_depend_on_seed_and_path_alone(config: TransformerConfig) -> None:
    path = "encoder/layers/self_attention/query/lora_a"
    few, many = (drawn(config, lora) for lora in (LORA, EVERYWHERE))
    assert np.array_equal(few[path], many[path])
    assert not np.array_equal(few[path], few[path.replace("query", "value")])
    assert not np.array_equal(few[path], drawn(config, LORA, seed=1)[path])


# --- mistakes


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("encoder/layer/*", "such as .*/kernel .* received 'encoder/layer/*', which matches none"),
        ("*/self_attention/*", "matches .*_attention/key/bias, no kernel of a linear map"),
        ("encoder/final_norm/*", "which matches none"),
        ("source_*", "matches source_embedding/embedding, an embedding, which takes no adapter"),
    ],
)
def test_targets_without_a_matrix_are_refused(target: str, message: str, config: TransformerConfig) -> None:
    settings = dataclasses.replace(TRAIN, lora=dataclasses.replace(LORA, targets=(*LORA.targets, target)))
    with pytest.raises(AdapterError, match=message.replace("/*'", r"/\*'")):
        jax.eval_shape(lambda: init_state(config, settings))


def test_adapters_that_do_not_fit_are_refused(config: TransformerConfig, random_params: Any) -> None:
    params = with_drawn_adapters(config, TRAIN, random_params(config, "float32"))
    wider = dataclasses.replace(TRAIN, lora=dataclasses.replace(LORA, rank=4))
    with pytest.raises(AdapterError, match=re.escape("query/lora_a: expected shape (1, 12, 4); received (1, 12, 3)")):
        jax.eval_shape(lambda: init_state(config, wider, params))
    without = dataclasses.replace(TRAIN, lora=LoraConfig())
    with pytest.raises(AdapterError, match="adapters that don't fit"):
        jax.eval_shape(lambda: init_state(config, without, params))
    fewer = dataclasses.replace(TRAIN, lora=dataclasses.replace(LORA, targets=("*/query/kernel",)))
    with pytest.raises(AdapterError, match=r"value/lora_a: not among train\.lora\.targets"):
        jax.eval_shape(lambda: init_state(config, fewer, params))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LoraConfig(rank=-1), "rank must be at least 0; received -1"),
        (lambda: LoraConfig(rank=2, alpha=0.0), "alpha must be above 0, and finite; received 0.0"),
        (lambda: LoraConfig(rank=2, targets=()), "targets must name one pattern"),
        (lambda: LoraConfig(rank=2, dropout_rate=0.1), "dropout_rate must be 0, since .*; received 0.1"),
        (lambda: TrainConfig(lora=LORA, freeze=("encoder/*",)), "freeze must be empty with lora.rank=3"),
        (lambda: RunConfig(train=TrainConfig(lora=LORA)), "init_from must name the model"),
        (lambda: RunConfig(init_adapters_from="runs/other"), "init_from must name the model"),
    ],
)
def test_settings_that_contradict_each_other(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


# --- runs

Stopped = Callable[[int], contextlib.AbstractContextManager[None]]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the directory of a model with random weights and a corpus's tokenizers."""
    folder = tmp_path_factory.mktemp("base")
    config = tiny_run(folder)
    corpus = prepare(config.data)
    params = init_params(fit_config(config.model, corpus), jax.random.key(0))
    save_model(make_model(config, corpus, jax.device_get(params)), folder / "model")
    return folder / "model"


def tuned(base: Path, folder: Path, **options: Any) -> RunConfig:
    """Returns a run of 6 steps from the base, with an evaluation every 2."""
    usual = {"learning_rate": 0.05, "schedule": "constant", "warmup_steps": 0, "lora": LORA}
    more = {"ema_decay": 0.5, "average_checkpoints": 2}
    config = tiny_run(folder)
    data = dataclasses.replace(config.data, cache_dir=str(base.parent / "cache"))
    train = dataclasses.replace(config.train, **usual | more | options)
    return dataclasses.replace(config, data=data, train=train, init_from=str(base))


@pytest.fixture(scope="module")
def whole(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tuned(base, tmp_path_factory.mktemp("whole"))).run


def test_a_run_that_is_stopped_and_resumed_is_the_same(
    base: Path, whole: Path, tmp_path: Path, stopped_after: Stopped, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tuned(base, tmp_path)
    with stopped_after(3), pytest.raises(Interrupted):
        train(config)
    leaves = flatten(load_model(base).params)
    count = 288 + sum(leaf.size for path, leaf in leaves.items() if not path.startswith("constants/"))
    assert f"model: {count:,} parameters, of which 288 are trained, on cpu" in capsys.readouterr().out
    resumed = train(RunConfig(run_dir=config.run_dir), resume=True).run
    assert rows(resumed) == rows(whole)
    files = [(run / "model" / "adapters.safetensors").read_bytes() for run in (whole, resumed)]
    assert files[0] == files[1]


def test_a_runs_model_is_merged_and_holds_its_adapters(base: Path, whole: Path) -> None:
    """The mean of checkpoints is that of their adapters, as a moving average is."""
    model, first = load_model(whole), load_model(base)
    assert model.adapters is not None
    assert model.adapters.config == LORA
    expected = by_hand(unflatten(flatten(first.params) | flatten(model.adapters.params)), LORA.scale)
    for path, leaf in flatten(model.params).items():
        np.testing.assert_allclose(leaf, expected[path], rtol=1e-5, atol=1e-6)
    assert np.array_equal(model.params["head"]["kernel"], first.params["head"]["kernel"])
    averaged = load_averaged_model(whole, "last", 2)
    assert averaged.adapters is not None
    received, given = flatten(averaged.adapters.params), flatten(model.adapters.params)
    assert all(np.array_equal(received[path], leaf) for path, leaf in given.items())
    assert averaged.training is not None
    assert model.training is not None
    assert averaged.training["valid_loss"] == model.training["valid_loss"]


def following(config: RunConfig) -> RunConfig:
    return follow_initial_model(config, load_initial_model(config.init_from, config.init_adapters_from))


def test_training_goes_on_from_adapters(base: Path, whole: Path, tmp_path: Path) -> None:
    own = tuned(base, tmp_path, lora=LoraConfig())
    config = dataclasses.replace(own, init_adapters_from=str(whole), run_dir="")
    lines = list(describe_run(config))
    assert any(re.fullmatch(r"trained +288  \(and [\d,]+ not trained\)", line) for line in lines)
    assert any(line.strip() == "rank: 3" for line in "\n".join(lines).splitlines())
    followed, corpus = following(config), prepare(config.data)
    model = fit_config(followed.model, corpus)
    params = load_initial_params(str(base), model, corpus, followed.init_adapters_from)
    received = flatten(init_state(model, followed.train, params).params)
    before = load_model(whole).adapters
    assert before is not None
    assert received.keys() == flatten(before.params).keys()
    assert all(np.array_equal(received[path], leaf) for path, leaf in flatten(before.params).items())

    other = dataclasses.replace(config.train, lora=LoraConfig(rank=2))
    with pytest.raises(InitialModelError, match=r"train\.lora\.rank: the run has 2, the adapters of .* have 3"):
        following(dataclasses.replace(config, train=other))
    with pytest.raises(InitialModelError, match=r"init_adapters_from: expected a model with LoRA adapters"):
        following(dataclasses.replace(config, init_adapters_from=str(base)))


def test_adapters_are_not_added_to_a_model_that_contains_them(base: Path, whole: Path, tmp_path: Path) -> None:
    """Neither where both options name one model, nor where one of them names a copy of it."""
    config = dataclasses.replace(tuned(base, tmp_path, lora=LoraConfig()), init_adapters_from=str(whole))
    save_model(load_model(whole), tmp_path / "copy")
    for merged in (whole, whole / "model", tmp_path / "copy"):
        with pytest.raises(InitialModelError, match=r"expected the model that the adapters .* contain these adapters"):
            following(dataclasses.replace(config, init_from=str(merged)))
    model = load_model(whole)
    assert model.adapters is not None
    others = dataclasses.replace(model.adapters, params=map_leaves(lambda leaf: leaf + 1, model.adapters.params))
    save_model(dataclasses.replace(model, adapters=others), tmp_path / "others")
    followed = following(dataclasses.replace(config, init_from=str(tmp_path / "others")))
    assert followed.train.lora == LORA
