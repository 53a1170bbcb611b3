"""Attention that is computed block by block, kernels of Pallas among it, is the attention computed at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl

from jax_transformer.model import flash, flash_kernels
from jax_transformer.proof import Program, Result, Task, UnknownOperation, decide, differences, jax_programs
from jax_transformer.proof.digits import SAME
from jax_transformer.proof.domains import Reals
from jax_transformer.proof.evaluating import evaluate

B, N, H = 2, 2, 3
SCALE = H**-0.5

Weights = dict[str, Any]
Compute = Callable[[Weights], jax.Array]


@pytest.fixture(autouse=True)
def float64(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(flash, "INTERPRETED_BLOCKS", (4,))
    with jax.enable_x64(True):
        yield


@dataclasses.dataclass(frozen=True)
class Case:
    """Lengths of queries and keys, and what a block of logits meets."""

    queries: int
    keys: int
    mask: np.ndarray | None = None
    has_bias: bool = False

    @property
    def weights(self) -> Weights:
        shapes = {"query": (B, self.queries, N, H), "gradient": (B, self.queries, N, H)}
        shapes |= dict.fromkeys(("key", "value"), (B, self.keys, N, H))
        return {name: np.zeros(shape) for name, shape in (shapes | {"bias": (1, N, self.queries, self.keys)}).items()}

    def in_blocks(self, w: Weights) -> jax.Array:
        bias = w["bias"] if self.has_bias else None
        return flash.flash_attention(w["query"], w["key"], w["value"], mask=self.mask, bias=bias, scale=SCALE)

    def at_once(self, w: Weights) -> jax.Array:
        logits = jnp.einsum("BQNH,BKNH->BNQK", w["query"], w["key"]) * SCALE
        logits = logits + w["bias"] if self.has_bias else logits
        logits = logits if self.mask is None else jnp.where(self.mask, logits, jnp.finfo(logits.dtype).min)
        return jnp.einsum("BNQK,BKNH->BQNH", jax.nn.softmax(logits), w["value"])

    def compared(self, ours: Compute | None = None) -> Result:
        def with_gradients(compute: Compute) -> Callable[[Weights], Weights]:
            def run(w: Weights) -> Weights:
                context, pull = jax.vjp(compute, w)
                gradients = pull(w["gradient"])[0]
                return {"context": context, **{name: gradients[name] for name in ("query", "key", "value", "bias")}}

            return run

        def draw(one: Any) -> Any:
            drawn = {name: one(array.shape) for name, array in self.weights.items()}
            return drawn, drawn

        both = ours or self.in_blocks, self.at_once
        return decide(Task(*(jax_programs.lower(with_gradients(each), self.weights) for each in both), draw))


def causal(queries: int, keys: int) -> np.ndarray:
    return np.tril(np.ones((1, 1, queries, keys), bool))


def seen(keys: int, first: int, last: int) -> np.ndarray:
    """All keys in the first sentence, and some in the second: whole blocks of it are masked."""
    return np.stack([np.ones(keys, bool), (np.arange(keys) >= first) & (np.arange(keys) < last)])[:, None, None]


CASES = {
    "one block": Case(3, 4),
    "blocks that aren't filled, and a bias": Case(5, 7, None, True),
    "keys masked in the first block": Case(3, 8, seen(8, 5, 8)),
    "a causal mask of short sentences, and a bias": Case(6, 6, causal(6, 6) & seen(6, 0, 4), True),
}


@pytest.mark.parametrize("name", CASES)
def test_our_kernels_compute_attention_and_its_gradients(name: str) -> None:
    result = CASES[name].compared()
    assert (result.verdict, result.different, result.reason) == ("proven", (), "")
    assert len(result.equal) == 5


def _older_sums_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    fori = jax.lax.fori_loop

    def loop(first: Any, end: Any, body: Callable[..., Any], sums: Any) -> Any:
        def add(number: Any, sums: Any) -> Any:
            new = body(number, sums)
            return (*new[:2], new[2] + 2**-100 * sums[2]) if len(new) == 3 else new

        return fori(first, end, add, sums)

    monkeypatch.setattr(jax.lax, "fori_loop", loop)


def _another_scale_backwards(monkeypatch: pytest.MonkeyPatch) -> None:
    backward = flash_kernels.backward
    plan_of = partial(dataclasses.replace, scale=SCALE * (1 + 2**-50))
    monkeypatch.setattr(flash_kernels, "backward", lambda plan, *rest: backward(plan_of(plan), *rest))


def _a_block_less(monkeypatch: pytest.MonkeyPatch) -> None:
    span = flash_kernels._span
    monkeypatch.setattr(flash_kernels, "_span", lambda *given: (span(*given)[0], span(*given)[1] - 1))


FAULTS = {
    "sums of older blocks that are too large": (_older_sums_too_large, Case(3, 8)),
    "another scale in the backward pass": (_another_scale_backwards, CASES["one block"]),
    "the last block of keys left out": (_a_block_less, CASES["blocks that aren't filled, and a bias"]),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_in_our_kernels_are_refuted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    break_it, case = FAULTS[name]
    break_it(monkeypatch)
    assert case.compared().verdict == "refuted"


# --- memory


def lowered(kernel: Callable[..., None], blocks: int = 2) -> Program:
    def call(w: Weights) -> Weights:
        part = pl.BlockSpec((3, 4), lambda number: (number, 0))
        shape = jax.ShapeDtypeStruct((6, 4), jnp.float64)
        run = pl.pallas_call(kernel, grid=(blocks,), in_specs=[part], out_specs=part, out_shape=shape, interpret=True)
        return {"output": run(w["w"])}

    return jax_programs.lower(call, {"w": np.ones((6, 4))})


def doubled_by(kernel: Callable[..., None], blocks: int = 2) -> Result:
    def draw(one: Any) -> Any:
        drawn = {"w": one((6, 4))}
        return drawn, drawn

    doubled = jax_programs.lower(lambda w: {"output": 2 * w["w"]}, {"w": np.ones((6, 4))})
    return decide(Task(lowered(kernel, blocks), doubled, draw))


def _in_two_writes(x: Any, out: Any) -> None:
    out[0:1] = x[0:1] + x[0:1]
    out[1:3] = 2 * x[1:3]


def _half(x: Any, out: Any) -> None:
    out[0:2] = 2 * x[0:2]


def _onto_what_is_there(x: Any, out: Any) -> None:
    out[...] = out[...] + 2 * x[...]


def test_memory_that_is_written_in_parts() -> None:
    assert doubled_by(_in_two_writes).verdict == "proven"


@pytest.mark.parametrize(("kernel", "blocks"), [(_half, 2), (_in_two_writes, 1)])
def test_memory_that_isnt_written_is_unknown(kernel: Callable[..., None], blocks: int) -> None:
    result = doubled_by(kernel, blocks)
    assert result.verdict == "unknown"
    assert "a constant is NaN" in result.reason


def test_memory_that_is_read_before_it_is_written_is_unknown() -> None:
    with pytest.raises(UnknownOperation, match="a constant is NaN"):
        lowered(_onto_what_is_there)


# --- exponentials of differences


def exponentials(w: Weights) -> Weights:
    """Rows with masked entries, a difference, and logarithms of sums."""
    x, y = w["x"], w["y"]
    masked = jnp.where(np.array([True, True, False]), x, -jnp.inf)
    largest = jnp.maximum(x.max(-1, keepdims=True), y)
    return {
        "softmax": jax.nn.softmax(masked) + jax.nn.softmax(x - y),
        "rescaled": jnp.exp(y - largest) * jnp.exp(x - largest),
        "logsumexp": jax.nn.logsumexp(x, -1, keepdims=True) + y,
        "log_softmax": jax.nn.log_softmax(x),
    }


def test_products_of_exponentials_are_the_exponentials() -> None:
    shapes = {"x": (2, 3), "y": (2, 1)}
    program = jax_programs.lower(exponentials, {name: np.zeros(shape) for name, shape in shapes.items()})
    written = differences.written_out(program)
    assert written.axioms[differences.AXIOM]
    assert differences.written_out(written).axioms == written.axioms
    weights = {name: np.random.default_rng(0).standard_normal(shape) for name, shape in shapes.items()}
    found, expected = (evaluate(each, Reals(), weights) for each in (written, program))
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-13, err_msg=name)


def test_cancellation_in_60_digits_is_no_difference() -> None:
    """Weights of 1000 make one entry of a softmax 1: what is left of its gradient is rounding alone."""

    def softplus(x: jax.Array) -> jax.Array:
        return jnp.maximum(x, 0.0) + jnp.log1p(jnp.exp(-jnp.abs(x)))  # no axiom has log(1 + exp(x)) = x + log(1 + …)

    def program(function: Callable[[jax.Array], jax.Array]) -> Program:
        def output(w: Weights) -> Weights:
            grown = function(w["w"])
            return {"output": grown - w["w"] - function(-w["w"]) + (grown - grown * (1 + 1e-12)) * 0.0}

        return jax_programs.lower(output, {"w": np.ones((2, 3))})

    def draw(one: Any) -> Any:
        drawn = {"w": one((2, 3))}
        return drawn, drawn

    result = decide(Task(program(softplus), program(lambda x: jnp.log(1 + jnp.exp(x))), draw))
    assert result.verdict == "unknown"
    assert result.difference is not None
    assert result.difference.digits is not None
    assert result.difference.digits < SAME
