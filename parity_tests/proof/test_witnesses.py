"""Weights on which a refutation shows in float64: they are found, written, and loaded into the real programs."""

from __future__ import annotations

import dataclasses
import json
import math
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from jax_transformer.comparison.gates.compare import relative_rms
from jax_transformer.comparison.gates.tolerances import FLOAT64_RELATIVE_RMS
from jax_transformer.comparison.precision import in_precision
from jax_transformer.model.functional import apply
from jax_transformer.parity import Certificate, prove
from jax_transformer.parity.proofs import witnesses
from jax_transformer.porting import import_checkpoint
from jax_transformer.runtime.trees import map_leaves
from jax_transformer.storage.model_directory import Model
from torch_reference.pytorch import Masks, PytorchTransformer

SIZES = {"source_vocab_size": 17, "target_vocab_size": 19, "d_model": 6, "num_heads": 3, "d_ff": 8, "max_length": 7}
SIZES |= {"num_encoder_layers": 1, "num_decoder_layers": 1, "source_pad_id": 1, "target_pad_id": 2}
HINTS = {"num_heads": 3, "source_pad_id": 1, "target_pad_id": 2, "norm_placement": "pre", "activation": "gelu"}
EPS = 1e-5


class Unscaled(PytorchTransformer):
    """Forgets to multiply embeddings by √d."""

    def embed(self, embedding: nn.Embedding, ids: Tensor, tap: Any) -> Tensor:
        return embedding(ids) + self.positions[None, : ids.shape[1]]


class ScaledLate(PytorchTransformer):
    """Multiplies by √d after positions are added."""

    def embed(self, embedding: nn.Embedding, ids: Tensor, tap: Any) -> Tensor:
        return (embedding(ids) + self.positions[None, : ids.shape[1]]) * math.sqrt(self.d_model)


class Unmasked(PytorchTransformer):
    """Shows padding of the source to the decoder."""

    def make_masks(self, source_ids: Tensor, decoder_input_ids: Tensor) -> Masks:
        masks = super().make_masks(source_ids, decoder_input_ids)
        return masks._replace(cross=torch.ones_like(masks.cross))


class Clipped(PytorchTransformer):
    """Clips embeddings, which no usual weights show."""

    def embed(self, embedding: nn.Embedding, ids: Tensor, tap: Any) -> Tensor:
        return super().embed(embedding, ids, tap).clamp(-1000, 1000)


def build(kind: type[PytorchTransformer] = PytorchTransformer, *, eps: float = EPS, gelu: str = "none") -> Any:
    torch.manual_seed(0)
    module = kind(**SIZES, norm_first=True, activation="gelu").eval()
    module.transformer.decoder.layers[0].norm2.eps = eps
    module.transformer.decoder.layers[0].activation = partial(functional.gelu, approximate=gelu)
    return module


FAULTS = {
    "ε": lambda: build(eps=1e-6),
    "no √d": lambda: build(Unscaled),
    "√d after positions": lambda: build(ScaledLate),
    "a mask forgotten": lambda: build(Unmasked),
    "tanh for erf": lambda: build(gelu="tanh"),
    "a clip": lambda: build(Clipped),
}


@cache
def model() -> Model:
    return import_checkpoint(build().state_dict(), "pytorch", **HINTS)


def refuted(module: nn.Module) -> Certificate:
    certificate = prove(model(), module, dialect="pytorch", stages=["forward"])
    assert certificate.verdict == "refuted", str(certificate)
    return certificate


@partial(jax.jit, static_argnums=0)
def logits_of(config: Any, params: Any, source_ids: Any, decoder_input_ids: Any) -> Any:
    return apply(config, params, source_ids, decoder_input_ids)


@pytest.mark.usefixtures("quick_compilation")
@pytest.mark.parametrize("fault", FAULTS)
def test_both_programs_show_the_difference_on_the_written_weights(fault: str, tmp_path: Path) -> None:
    module = FAULTS[fault]()
    certificate = refuted(module)
    assert certificate.witness is not None, str(certificate)
    certificate.witness.save(tmp_path / "weights.npz")
    with np.load(tmp_path / "weights.npz") as file:
        held = {name: file[name] for name in file.files}
    facts = json.loads(str(held["__notes__"]))
    assert facts == certificate.difference["witness"]
    assert facts["output"] == "logits"
    tensors = {
        name.removeprefix("reference/"): torch.from_numpy(array)
        for name, array in held.items()
        if name.startswith("reference/")
    }
    module.double().load_state_dict(tensors)
    ids = [held[f"inputs/{name}"] for name in ("source_ids", "decoder_input_ids")]
    with torch.no_grad():
        theirs = module(*(torch.from_numpy(each.astype(np.int64)) for each in ids)).numpy()
    with in_precision("float64"):
        params = map_leaves(lambda leaf: jnp.asarray(leaf, jnp.float64), certificate.witness.params)
        ours = np.asarray(logits_of(dataclasses.replace(model().config, dropout_rate=0.0), params, *ids))
    assert relative_rms(ours, theirs) > FLOAT64_RELATIVE_RMS
    assert relative_rms(ours, theirs) == pytest.approx(facts["difference"], rel=1e-3)


def test_no_weights_show_an_epsilon_that_rounding_hides() -> None:
    certificate = refuted(build(eps=EPS * (1 + 2**-50)))
    assert certificate.witness is None
    facts = certificate.difference["witness"]
    assert not facts["found"]
    assert facts["kinds"] == 15
    assert facts["difference"] < FLOAT64_RELATIVE_RMS
    assert "none of 15 kinds of weights shows it in float64" in str(certificate)


# --- any two programs

WEIGHTS = {"inputs": {}, "weights": {"w": np.ones(5)}, "stages": ["forward"]}


def searched(candidate: Any, reference: Any, **options: Any) -> tuple[dict[str, Any], Any]:
    certificate = prove(candidate, reference, **{**WEIGHTS, **options})
    assert certificate.verdict == "refuted", str(certificate)
    return certificate.difference["witness"], certificate.witness


def test_rounding_of_masks_is_not_moved() -> None:
    """(1 − 1) · finfo.min masks an entry if the last bit of either 1 moves, which no run does."""

    def masked(params: Any, inputs: Any) -> Any:
        mask = (1.0 - inputs["mask"]) * jnp.finfo(jnp.float32).min
        return jax.nn.softmax(params["w"] * inputs["factor"] + mask)

    inputs = {"mask": np.ones(5, np.int32)}
    two, three = (lambda p, i, f=f: masked(p, {**i, "factor": f}) for f in (2.0, 3.0))
    assert searched(two, three, inputs=inputs)[0]["found"]


def test_rounding_is_no_witness() -> None:
    """A program that adds and subtracts 10¹⁶ rounds weights to integers, and each the same way if its last bit moves.
    60 digits see that the functions are nearly the same."""
    facts, witness = searched(lambda p, i: p["w"] + 1e16 - 1e16, lambda p, i: p["w"] * (1 + 2**-50))
    certificate = prove(lambda p, i: p["w"] + 1e16 - 1e16, lambda p, i: p["w"] * (1 + 2**-50), **WEIGHTS)
    assert "which may be rounding" in str(certificate)
    assert facts["difference"] > FLOAT64_RELATIVE_RMS
    assert not facts["found"]
    assert witness is None


@pytest.mark.parametrize("most", [witnesses.MOST_IN_DIGITS, 0])
def test_cancelled_digits_are_no_witness(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """60 digits see it, and so do weights moved in the last bit, which judge programs too large for digits."""
    monkeypatch.setattr(witnesses, "MOST_IN_DIGITS", most)

    def at_once(params: Any, inputs: Any) -> Any:
        shifted = params["w"] + 1e7
        return (shifted**2).mean() - shifted.mean() ** 2 + 1e-6 * (1 + 2**-50)

    facts, _ = searched(at_once, lambda p, i: jnp.square(p["w"] - p["w"].mean()).mean() + 1e-6)
    assert facts["difference"] > FLOAT64_RELATIVE_RMS
    assert not facts["found"]


@pytest.mark.parametrize(("fill", "is_masked"), [(-1e4, False), (-1e9, True)])
def test_weights_are_left_out_where_logits_are_as_large_as_the_fill(fill: float, is_masked: bool) -> None:
    """A fill masks while logits are small (axiom "masks"): large ones would show the fill, not the fault."""

    def masked(factor: float) -> Any:
        return lambda p, i: factor * jax.nn.softmax(jnp.where(i["mask"], p["w"], fill))

    inputs = {"mask": np.array([True, True, False, True, False])}
    facts, _ = searched(masked(1.0), masked(1 + 2**-50), inputs=inputs)
    assert not facts["found"]
    assert facts["kinds"] == 12 + is_masked  # random weights × 2^12 are above 1000


def test_gradients_have_a_witness_too() -> None:
    def stopped(params: Any, inputs: Any) -> Any:
        return params["w"] * jax.lax.stop_gradient(params["w"])

    facts, witness = searched(stopped, lambda p, i: p["w"] ** 2, stages=["gradients"])
    assert facts["found"]
    assert facts["output"] == "gradient of w"
    assert facts["difference"] == pytest.approx(0.5)
    assert witness.inputs["cotangent"].shape == (5,)


def test_a_side_of_zeros_differs_by_all_of_the_other() -> None:
    facts, _ = searched(lambda p, i: p["w"], lambda p, i: 0.0 * p["w"])
    assert facts["found"]
    assert facts["difference"] == 1.0


def test_a_search_depends_on_the_seed_alone() -> None:
    programs = (lambda p, i: p["w"], lambda p, i: abs(p["w"]))
    (facts, first), (again, second), (other, _) = (searched(*programs, seed=seed) for seed in (1, 1, 2))
    assert facts == again
    assert facts["seed"] == 1 != other["seed"]
    np.testing.assert_array_equal(first.candidate["w"], second.candidate["w"])
    assert (first.candidate["w"] < 0).any()


def test_inputs_are_searched_with_the_weights() -> None:
    """An absolute value shows where inputs are negative; the given ones aren't."""
    facts, witness = searched(lambda p, i: p["w"] * i["x"], lambda p, i: p["w"] * abs(i["x"]), inputs={"x": np.ones(5)})
    assert facts["found"]
    assert (witness.inputs["x"] < 0).any()
    assert {*witness.candidate} == {*witness.reference} == {"w"}
