"""Pairs of JAX functions that a proof could take for one, by a wrong rule for masks, signs or constants. Each pair
differs on numbers, too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl

from jax_transformer.comparison.gates.arrays import ParityError
from jax_transformer.comparison.lowering import AnyProgram, AnyTwo
from jax_transformer.parity import prove
from jax_transformer.proof import Result, Task, UnknownOperation, decide, jax_programs

W = (3, 4)
FIRST = np.arange(4) == 0
INF = jnp.inf
where = jnp.where

Function = Callable[[Any], Any]


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def compared(ours: Function, theirs: Function) -> Result:
    def draw(one: Any) -> Any:
        drawn = {"w": one(W)}
        return drawn, drawn

    programs = [jax_programs.lower(lambda w, f=f: {"output": f(w["w"])}, {"w": np.ones(W)}) for f in (ours, theirs)]
    return decide(Task(*programs, draw))


def beside(value: Function, fill: float) -> Function:
    """Returns the largest of a value, which counts in each row, and of entries that are masked by −10⁴ or a fill."""
    return lambda w: where(FIRST, value(w), w + fill).max(-1)


def row_of_zeros(w: Any) -> Any:
    """Returns w₀ x − w₀ x, as a product of matrices that reads w₀ twice."""
    return w[0, np.array([0, 0])] @ jnp.stack([w[1, :1], -w[1, :1]])


def with_a_pole(x: Any) -> Any:
    """Returns ±√(x² + 1), by the sign of x."""
    return x * jnp.sqrt(1 + (1 / x) ** 2)


def adding_back(w: Any) -> Any:
    x = where(FIRST, -1e4, w)
    for _ in range(12):
        x = x + 900 * FIRST
    return x


RATIO = 0.3, 0.1
"""Their ratio is below 3, and 0.3 · (1/0.1) isn't."""


def ratio() -> Any:
    return jnp.asarray(RATIO[0]) / jnp.asarray(RATIO[1])


def beside_its_root(w: Any) -> Any:
    """Returns w. The square of the constant's root is another float, and the same real number."""
    constant = jnp.full((1, 1), 0.1234567)
    rooted = jnp.sqrt(constant) * jnp.sqrt(constant)
    reached = jnp.broadcast_to(jnp.broadcast_to(constant, (1, 4)), W) >= 0.1234567
    return where(reached, w, 2 * w) + 0 * w * rooted


DIFFERENT: dict[str, tuple[Function, Function]] = {
    "a constant beside its root's square": (beside_its_root, lambda w: 2 * w),
    "a fill beside one that is hardly larger": (beside(lambda w: w - 9999, -1e4), beside(lambda w: w - 9999, -INF)),
    "a fill beside one that is scaled": (
        beside(lambda w: (w - 1e9) * w**2, -1e4), beside(lambda w: (w - 1e9) * w**2, -INF),
    ),
    "a fill beside a power of one": (beside(lambda w: (w - 1e9) ** 3, -1e4), beside(lambda w: (w - 1e9) ** 3, -INF)),
    "a fill beside the root of one": (
        beside(lambda w: -jnp.sqrt(w**2 + 1e9), -1e4), beside(lambda w: -jnp.sqrt(w**2 + 1e9), -INF),
    ),
    "a fill beside large numbers": (lambda w: jnp.maximum(w * 1e6, -1e4), lambda w: w * 1e6),
    "a fill that is taken back in small parts": (
        lambda w: jax.nn.softmax(adding_back(w)), lambda w: jax.nn.softmax(where(FIRST, -INF, w)),
    ),
    "a zero that no formula shows, and is no step": (
        lambda w: where(row_of_zeros(w) >= 0, 1.0, 2.0), lambda w: where(row_of_zeros(w) > 0, 1.0, 2.0),
    ),
    "numbers that are equal on one side of a pole": (
        lambda w: where(with_a_pole(w) == -jnp.sqrt(w**2 + 1), 2.0, 1.0), lambda w: 1 + 0 * w,
    ),
    "steps on both sides of a pole": (
        lambda w: (lambda x: where(x > 0, 1.0, 0.0) + where(-x > 0, 1.0, 0.0))(with_a_pole(w) + jnp.sqrt(w**2 + 1)),
        lambda w: 1 + 0 * w,
    ),
    "a zero that rounding hides": (
        lambda w: where(1e10 * (0.1 * w + 0.7 * w - 0.8 * w)[:1, :1] >= 0, 1.0, 2.0), lambda w: 2.0 + 0 * w[:1, :1],
    ),
    "a constant zero that rounding hides": (
        lambda w: where(w * (sum(map(jnp.asarray, (0.1, 0.2, -0.3)))) >= 0, 1.0, 2.0), lambda w: 2.0 + 0 * w,
    ),
    "an equality that rounding hides": (
        lambda w: where(1e8 * (jnp.sin(w) ** 2 + jnp.cos(w) ** 2 - 1) == 0, 1.0, 0.0), lambda w: 0 * w,
    ),
    "rounded constants that are rounded down": (lambda w: w * jnp.floor(ratio()), lambda w: w * 3),
    "rounded constants as integers": (lambda w: w * ratio().astype(int), lambda w: w * 3),
    "rounded constants that are compared": (lambda w: where(ratio() >= 3, w, 0), lambda w: w),
    "rounded constants that are broadcast": (
        lambda w: where(jnp.broadcast_to(ratio().reshape(1, 1), W) >= 3, w, 0), lambda w: w,
    ),
    "a choice by a negative number": (
        lambda w: lax.select_n(np.full(W, -1, np.int32), w, 2 * w), lambda w: lax.select_n(np.ones(W, bool), w, 2 * w),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", list(DIFFERENT))
def test_near_misses_are_not_proven(name: str) -> None:
    ours, theirs = DIFFERENT[name]
    draws = (np.random.default_rng(seed).integers(-15, 15, W) / 8 + 1 / 16 for seed in range(3))
    assert any((np.abs(np.asarray(ours(w) - theirs(w))) > 1e-3).any() for w in map(jnp.asarray, draws))
    assert compared(ours, theirs).verdict != "proven"


def test_named_logits_that_are_hardly_masked_are_compared() -> None:
    def compared_with(fill: float, other: float) -> str:
        name, highest = "attention.logits", jnp.asarray([fill, -1e4, -1e4, -1e4])
        ours, theirs = (
            jax_programs.lower(lambda w, f=f: {name: w["w"] + f}, {"w": np.ones(W)})
            for f in (highest, where(FIRST, highest, other))
        )
        return decide(Task(ours, theirs, lambda one: ({"w": (drawn := one(W))}, {"w": drawn}), is_masked=bool)).verdict

    assert compared_with(0.0, -1e9) == "proven"
    assert compared_with(-9999.0, -1e9) != "proven"


UNDEFINED: dict[str, Function] = {
    "∞ times weights": lambda w: w * INF - w * INF,
    "−∞ squared": lambda w: where(FIRST, -INF, w) ** 2 - where(FIRST, -INF, w) ** 2,
    "∞ as the largest": lambda w: (lambda x: x - x)(where(FIRST, INF, w).max(-1)),
    "the largest of nothing": lambda w: (lambda x: x - x)(jnp.max(w[:, :0], -1, initial=-INF)),
}


@pytest.mark.parametrize("name", list(UNDEFINED))
def test_nan_is_unknown(name: str) -> None:
    function = UNDEFINED[name]
    assert np.isnan(function(jnp.ones(W))).any()
    with pytest.raises(UnknownOperation, match="∞"):
        compared(function, lambda w: 0 * function(w))


def chances(w: Any) -> Any:
    return jax.nn.softmax(where(FIRST, -INF, w))


LOGARITHMS: dict[str, tuple[Function, bool]] = {
    "of zero": (lambda w: jnp.log(0 * w) - jnp.log(0 * w), False),
    "of zero, times zero": (lambda w: (jnp.log(chances(w)) * (np.arange(4) == 1)).sum(-1), False),
    "of zero, not chosen": (lambda w: jnp.log(chances(w))[:, 1], True),
    "of zero, where it isn't": (lambda w: where(chances(w) > 0, jnp.log(chances(w)), 0), True),
    "of zero, where it isn't zero": (lambda w: where(chances(w) != 0, jnp.log(chances(w)), 0), True),
    "of zero, unless it is zero": (lambda w: where(chances(w) == 0, 0, jnp.log(chances(w))), True),
    "of zero, by xlogy": (lambda w: jax.scipy.special.xlogy(chances(w), chances(w)), True),
}


@pytest.mark.parametrize("name", list(LOGARITHMS))
def test_logarithms(name: str) -> None:
    function, is_known = LOGARITHMS[name]
    assert np.isnan(function(jnp.ones(W))).any() != is_known
    result = compared(function, function)
    assert result.verdict == "proven" if is_known else "of zero for all weights" in result.reason


@pytest.mark.parametrize("dtype", [jnp.float8_e8m0fnu, jnp.bfloat16])
def test_casts_to_powers_of_two_are_reported(dtype: Any) -> None:
    program = jax_programs.lower(lambda w: {"output": w["w"].astype(dtype).astype(float)}, {"w": np.ones(W)})
    assert str(np.dtype(dtype)) in program.narrowing[0]


def test_integers_in_memory_that_is_not_written_are_unknown() -> None:
    def kernel(x: Any, out: Any, memory: Any) -> None:
        out[...] = x[...] * memory[0]

    def scaled(w: Any) -> Any:
        memory = pl.MemoryRef(jax.core.ShapedArray((1,), jnp.int32), pl.MemorySpace.ANY)
        out = jax.ShapeDtypeStruct(W, w.dtype)
        return pl.pallas_call(kernel, out_shape=out, scratch_shapes=[memory], interpret=True)(w)

    with pytest.raises(UnknownOperation, match="memory of int32"):
        compared(scaled, scaled)


def test_memory_that_is_not_written_is_unknown() -> None:
    with pytest.raises(UnknownOperation, match="empty: nothing was written to its memory"):
        compared(lambda w: w + lax.empty(W, w.dtype), lambda w: w)


def test_all_kinds_of_devices_compute_one_function() -> None:
    def chosen(cpu: Function, default: Function) -> Function:
        return lambda w: lax.platform_dependent(w, cpu=cpu, default=default)

    different = compared(chosen(lambda w: w + w, lambda w: 3 * w), lambda w: w + w)
    assert different.verdict == "unknown"
    assert "branches of platform_dependent compute different values" in different.reason
    assert compared(chosen(lambda w: w + w, lambda w: 2 * w), lambda w: w + w).verdict == "proven"


# --- what was nearly the same, and is


SAME: dict[str, tuple[Function, Function]] = {
    "the largest of one": (lambda w: w[:, :1].max(-1), lambda w: w[:, 0]),
    "the largest of nothing": (lambda w: jnp.maximum(w[:, 0], jnp.max(w[:, :0], -1, initial=-INF)), lambda w: w[:, 0]),
    "a logarithm by another, rounded down": (
        lambda w: w * jnp.floor(jnp.log(ratio() * 0 + 8.0) / jnp.log(2.0)),
        lambda w: w * 3,
    ),
    "a constant beside its root's square": (beside_its_root, lambda w: w),
    "a mask beside small constants": (
        lambda w: jax.nn.softmax(where(FIRST, -1e4, w) - 900 * FIRST + 1),
        lambda w: jax.nn.softmax(where(FIRST, -INF, w)),
    ),
}


@pytest.mark.parametrize("name", list(SAME))
def test_the_same_function_is_proven(name: str) -> None:
    assert compared(*SAME[name]).verdict == "proven"


# --- as a user proves


def test_weights_by_names_that_a_proof_gives_are_refused() -> None:
    for name in ("input x", "cotangent"):
        with pytest.raises(ParityError, match=f"expected other names than '{name}', as a proof"):
            prove(
                lambda params, inputs, name=name: params[name],
                lambda params, inputs: inputs["x"],
                inputs={"x": np.ones(3)},
                weights={name: np.ones(3)},
            )


def test_a_weight_that_one_side_ignores_is_no_obstacle() -> None:
    both = {"w": np.ones(3), "v": np.ones(3)}
    functions = (lambda params, inputs: params["w"]), (lambda params, inputs: params["w"] + params["v"])
    for ours, theirs in (functions, functions[::-1]):
        assert prove(ours, theirs, inputs={}, weights=both).verdict == "refuted"


def test_gradients_of_two_weights_that_are_one_are_summed() -> None:
    weight = np.ones(3)
    ours = AnyProgram("ours", lambda p, _: lax.stop_gradient(p["w"]) * p["w"], {}, {"w": weight})
    theirs = AnyProgram("theirs", lambda p, _: p["a"] * p["b"], {}, {"a": weight, "b": weight})
    two = AnyTwo(ours, theirs, {"a": "w", "b": "w"})
    assert decide(two.task(gradients=False)).verdict == "proven"
    assert two.conditions == ("a and b of the reference are equal, as they are one in the candidate",)
    assert decide(two.task(gradients=True)).verdict == "refuted"
    ours = AnyProgram("ours", lambda p, _: p["w"] * p["w"], {}, {"w": weight})
    assert decide(AnyTwo(ours, theirs, {"a": "w", "b": "w"}).task(gradients=True)).verdict == "proven"
