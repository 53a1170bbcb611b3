"""Compare what rules compute with what the framework computes, and change rules to see that it shows.

A case is a small program for one rule. Its lowered program is evaluated in float64 and, if it is arithmetic, in a prime
field on integers, where the framework's float64 result is exact.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from jax_transformer.proof.domains import Reals, Residues
from jax_transformer.proof.evaluating import evaluate
from jax_transformer.proof.fields import PrimeField
from jax_transformer.proof.programs import FUNCTIONS, Program, UnknownOperation

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Case:
    """A program for one rule."""

    function: Callable[..., Any]
    """Arrays → an array or several."""
    shapes: tuple[tuple[int, ...], ...] = ((2, 3),)
    positive: bool = False
    """Whether the inputs have to be positive."""
    options: Mapping[str, Any] = field(default_factory=dict)

    def weights(self, *, whole: bool) -> list[np.ndarray]:
        """Returns different small integers, none of them zero, or random floats."""
        key = np.random.default_rng(len(self.shapes))
        sizes = [int(np.prod(shape, dtype=np.int64)) for shape in self.shapes]
        total = sum(sizes)
        drawn = key.permutation(np.arange(1.0, total + 1)) if whole else key.uniform(0.3, 2.0, total)
        drawn *= 1.0 if self.positive else key.choice([-1.0, 1.0], total)
        parts = np.split(drawn, np.cumsum(sizes)[:-1])
        arrays = [part.reshape(shape) for part, shape in zip(parts, self.shapes, strict=True)]
        return arrays


@dataclass(frozen=True)
class Framework:
    """How a framework lowers and computes a case."""

    lower: Callable[[Callable[..., Any], list[np.ndarray]], Program]
    compute: Callable[[Callable[..., Any], list[np.ndarray]], list[np.ndarray]]
    rules: MutableMapping[str, Callable[..., Any]]


def differs(framework: Framework, case: Case) -> str:
    """Describes the difference of a case's program from the framework's own results; "" if there is none."""
    for whole in (True, False):
        arrays = case.weights(whole=whole)
        expected = framework.compute(case.function, arrays)
        program = framework.lower(case.function, arrays)
        named = {str(number): array for number, array in enumerate(arrays)}
        found = list(evaluate(program, Reals(), named).values())
        for ours, theirs in zip(found, expected, strict=True):
            if ours.shape != theirs.shape:
                return f"shape {ours.shape} for {theirs.shape}"
            if not np.allclose(ours.astype(np.float64), theirs.astype(np.float64), rtol=1e-11, atol=1e-11):
                return f"{ours} for {theirs}"
        if whole and is_arithmetic(program) and (found := differs_exactly(program, named, expected)):
            return str(found)
    return ""


def is_arithmetic(program: Program) -> bool:
    return all(one.name not in FUNCTIONS for one in program.operations)


def differs_exactly(program: Program, named: Arrays, expected: list[np.ndarray]) -> str:
    field_of = PrimeField(PRIME)
    integers = {name: field_of.reduce(array.astype(np.int64)) for name, array in named.items()}
    found = evaluate(program, Residues(field_of, 1), integers).values()
    for ours, theirs in zip(found, expected, strict=True):
        numbers = [Fraction(float(each)).limit_denominator(10**6) for each in np.ravel(theirs).astype(np.float64)]
        wanted = [field_of.rational(number) for number in numbers]
        if np.ravel(ours).astype(np.int64).tolist() != wanted:
            return f"the residues {ours} for {theirs}"
    return ""


PRIME = 562949953421231
"""2⁴⁹ − 81, a prime."""


UNUSED = frozenset(("method", "name", "dtype", "rounding_mode"))
"""Parameters that change nothing."""


def mutations(rule: Callable[..., Any], name: str, commutative: frozenset[str]) -> Iterator[tuple[str, Any]]:
    """Yields wrong versions of a rule."""
    yield "negated", lambda b, *args, **kw: _each(rule(b, *args, **kw), lambda x: _negated(b, x))
    yield "raised by 1", lambda b, *args, **kw: _each(rule(b, *args, **kw), lambda x: _raised(b, x))
    yield "reversed", lambda b, *args, **kw: _each(rule(b, *args, **kw), lambda x: _reversed(b, x))
    if name not in commutative:
        yield "swapped", lambda b, x, y, *args, **kw: rule(b, y, x, *args, **kw)
    for parameter in inspect.signature(rule).parameters.values():
        key = parameter.name
        if key not in UNUSED and parameter.kind is parameter.KEYWORD_ONLY and parameter.default is not parameter.empty:
            yield (
                f"{key} dropped",
                lambda b, *args, key=key, **kw: rule(b, *args, **{k: v for k, v in kw.items() if k != key}),
            )


def _each(found: Any, change: Callable[[Any], Any]) -> Any:
    return [change(each) for each in found] if isinstance(found, list | tuple) else change(found)


def _negated(b: Any, x: Any) -> Any:
    return b.logical_not(x) if x.kind in ("bool", "indicator") else b.negate(x)


def _raised(b: Any, x: Any) -> Any:
    return b.logical_not(x) if x.kind in ("bool", "indicator") else b.add(x, b.constant(1.0))


def _reversed(b: Any, x: Any) -> Any:
    if x.size < 2:
        return b.add(x, b.constant(np.ones(x.shape)))
    return b.take(x, np.arange(x.size)[::-1].reshape(x.shape))


def is_caught(framework: Framework, name: str, wrong: Callable[..., Any], cases: list[Case]) -> bool:
    """Returns whether one of a rule's cases shows that it is wrong."""
    right = framework.rules[name]
    framework.rules[name] = wrong
    try:
        return any(_shows(framework, case) for case in cases)
    finally:
        framework.rules[name] = right


def _shows(framework: Framework, case: Case) -> bool:
    try:
        return bool(differs(framework, case))
    except (UnknownOperation, ValueError, TypeError, AttributeError, IndexError, ArithmeticError):
        return True
