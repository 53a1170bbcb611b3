"""Each axiom proves what needs it, and refutes near misses."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from jax_transformer.proof import Result, Task, constants, decide, deciding, differences, domains, tables
from jax_transformer.proof.building import Builder
from jax_transformer.proof.programs import Program, Value

Compute = Callable[[Builder, Value, Value], Value]
SHAPE = (2, 3)
MASK = np.array([[False, False, True], [False, True, False]])


def program(compute: Compute, name: str = "output") -> Program:
    b = Builder()
    return b.program({name: compute(b, b.input("u", SHAPE), b.input("v", SHAPE))})


def compared(ours: Compute, theirs: Compute, name: str = "output") -> Result:
    def draw(one: Any) -> Any:
        drawn = {"u": one(SHAPE), "v": one(SHAPE)}
        return drawn, drawn

    return decide(Task(program(ours, name), program(theirs, name), draw))


def masked(fill: float) -> Compute:
    return lambda b, u, v: b.softmax(b.where(b.constant(MASK), b.constant(np.full(SHAPE, fill)), u), 1)


def naive_softmax(b: Builder, u: Value, v: Value) -> Value:
    exp = b.exp(u)
    return b.divide(exp, b.broadcast(b.kept_sum(exp, 1), SHAPE))


def over_columns(b: Builder, u: Value, v: Value) -> Value:
    return b.softmax(u, 0)


def less(b: Builder, x: Value, y: Value) -> Value:
    return b.greater(y, x)


def norm(scale: float, eps: float) -> Compute:
    """u / √(Σ u² · scale + eps)."""

    def compute(b: Builder, u: Value, v: Value) -> Value:
        total = b.add(b.multiply(b.kept_sum(b.power(u, 2), 1), b.constant(scale)), b.constant(eps))
        return b.multiply(u, b.inverse(b.root(b.broadcast(total, SHAPE))))

    return compute


def joined(b: Builder, u: Value, v: Value, scale: float) -> Value:
    """scale · (u² + v², exp(u))."""
    parts = b.add(b.power(u, 2), b.power(v, 2)), b.exp(u)
    return b.concatenate([b.multiply(each, b.constant(scale)) for each in parts], 0)


def times(number: float, compute: Compute) -> Compute:
    return lambda b, u, v: b.multiply(compute(b, u, v), b.constant(number))


SEVENTHS = np.arange(1, 7).reshape(SHAPE) / 7


def times_constant(number: Any) -> Compute:
    return lambda b, u, v: b.multiply(u, b.constant(number))


NEEDED: dict[str, tuple[Compute, Compute, Compute]] = {
    "softmax": (lambda b, u, v: b.softmax(u, 1), naive_softmax, over_columns),
    "masks": (masked(-1e9), masked(-np.inf), masked(-50.0)),
    "roots: a square": (
        lambda b, u, v: b.power(b.root(b.exp(u)), 2),
        lambda b, u, v: b.exp(u),
        lambda b, u, v: b.negate(b.exp(u)),
    ),
    "roots: of squares": (
        lambda b, u, v: b.root(b.power(u, 2)),
        lambda b, u, v: b.absolute(u),
        lambda b, u, v: u,
    ),
    "roots: a factor": (norm(0.25, 1e-5), times(2.0, norm(1.0, 4e-5)), times(2.0, norm(1.0, 1e-5))),
    "roots: a factor of joined parts": (
        lambda b, u, v: b.root(joined(b, u, v, 0.25)),
        lambda b, u, v: b.multiply(b.root(joined(b, u, v, 1.0)), b.constant(0.5)),
        lambda b, u, v: b.multiply(b.root(joined(b, u, v, 1.0)), b.constant(0.25)),
    ),
    "roots: a constant": (
        lambda b, u, v: b.multiply(u, b.constant(1 / 8**0.5)),
        lambda b, u, v: b.divide(u, b.root(b.constant(8.0))),
        lambda b, u, v: b.multiply(u, b.constant(1 / 8**0.5 * (1 + 2**-48))),
    ),
    "fractions": (
        lambda b, u, v: b.divide(u, b.constant(3.0)),
        lambda b, u, v: b.multiply(u, b.constant(1 / 3)),
        lambda b, u, v: b.multiply(u, b.constant(1 / 3 + 2**-50)),
    ),
    "rounded constants": (
        times_constant(np.float32(1e-6)),
        times_constant(1e-6),
        times_constant(1.0000001e-6),
    ),
    "rounded constants: of many digits": (
        times_constant(np.float32(0.123456789)),
        times_constant(0.123456789),
        times_constant(np.nextafter(np.float32(0.123456789), np.float32(1))),
    ),
    "rounded constants: a table": (
        times_constant(SEVENTHS.astype(np.float32)),
        times_constant(SEVENTHS),
        times_constant(SEVENTHS * (1 + 1e-6)),
    ),
    "rounded constants: a table in another order": (
        times_constant(np.sin(SEVENTHS).astype(np.float32)),
        lambda b, u, v: b.transpose(b.multiply(b.transpose(u, (1, 0)), b.constant(np.sin(SEVENTHS).T)), (1, 0)),
        times_constant(np.sin(SEVENTHS).astype(np.float32)[:, ::-1]),
    ),
    "rounded constants: what is computed of a table": (
        times_constant(np.cos(SEVENTHS).astype(np.float32)),
        lambda b, u, v: b.multiply(u, b.cos(b.constant(SEVENTHS))),
        lambda b, u, v: b.multiply(u, b.cos(b.constant(SEVENTHS * (1 + 1e-6)))),
    ),
    "activations": (
        lambda b, u, v: b.add(b.erf(u), b.erf(b.negate(u))),
        lambda b, u, v: b.multiply(u, b.constant(0.0)),
        lambda b, u, v: b.multiply(b.erf(u), b.constant(2.0)),
    ),
    "activations: a maximum": (
        lambda b, u, v: b.maximum(u, v),
        lambda b, u, v: b.maximum(v, u),
        lambda b, u, v: b.minimum(u, v),
    ),
    "activations: signs": (
        lambda b, u, v: b.as_float(b.greater(u, v)),
        lambda b, u, v: b.as_float(b.logical_not(b.greater(v, u))),
        lambda b, u, v: b.as_float(b.greater(v, u)),
    ),
    "activations: σ": (
        lambda b, u, v: b.logistic(u),
        lambda b, u, v: b.inverse(b.add(b.constant(1.0), b.exp(b.negate(u)))),
        lambda b, u, v: b.inverse(b.add(b.constant(1.0), b.exp(u))),
    ),
    "positive": (
        lambda b, u, v: b.where(b.greater(b.sum(b.power(u, 2), (0, 1)), b.constant(0.0)), u, v),
        lambda b, u, v: u,
        lambda b, u, v: v,
    ),
    "differences": (
        lambda b, u, v: b.multiply(b.exp(b.subtract(u, v)), b.exp(v)),
        lambda b, u, v: b.exp(u),
        lambda b, u, v: b.exp(b.subtract(u, v)),
    ),
    "differences: a logarithm": (
        lambda b, u, v: b.exp(b.subtract(v, b.add(b.log(b.exp(u)), v))),
        lambda b, u, v: b.exp(b.negate(u)),
        lambda b, u, v: b.exp(u),
    ),
    "exp of log": (
        lambda b, u, v: b.exp(b.negate(b.log(b.power(u, 2)))),
        lambda b, u, v: b.power(u, -2),
        lambda b, u, v: b.power(u, 2),
    ),
}


@pytest.mark.parametrize("name", list(NEEDED))
def test_an_axiom_proves_and_refutes(name: str) -> None:
    one, same, near = NEEDED[name]
    assert compared(one, same).verdict == "proven"
    assert compared(one, near).verdict == "refuted"


def test_softmax_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    one, same, _ = NEEDED["softmax"]
    assert "softmax" in compared(one, same).axioms
    monkeypatch.setattr(Builder, "_about_mean", lambda self, x, axis: x)
    monkeypatch.setattr(deciding, "_without_differences", lambda task: None)  # it proves this pair, too
    assert compared(one, same).verdict == "unknown"


def test_masks_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    one, same, _ = NEEDED["masks"]
    assert "masks" in compared(one, same).axioms
    from jax_transformer.proof import masks

    monkeypatch.setattr(masks, "FILL", -1e30)
    assert compared(one, same).verdict == "unknown"


def test_differences_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    one, same, _ = NEEDED["differences"]
    assert "differences" in compared(one, same).axioms
    monkeypatch.setattr(deciding, "_without_differences", lambda task: None)
    assert compared(one, same).verdict == "unknown"


def as_they_stand(array: np.ndarray, *rest: Any) -> dict[float, constants.Number]:
    return {float(value): constants.Number(Fraction(float(value))) for value in array.flat}


@pytest.mark.parametrize("name", ["fractions", "roots: a constant"])
def test_reading_constants_is_needed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one, same, _ = NEEDED[name]
    assert name.partition(":")[0] in compared(one, same).axioms
    monkeypatch.setattr(domains, "as_read", as_they_stand)
    monkeypatch.setattr(deciding, "_with_tables", lambda task: None)  # it proves these pairs, too
    assert compared(one, same).verdict == "unknown"


@pytest.mark.parametrize("name", [name for name in NEEDED if name.startswith("rounded constants")])
def test_rounding_is_needed_and_listed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one, same, _ = NEEDED[name]
    first = compared(one, same).axioms["rounded constants"][0]
    assert " by " in first
    monkeypatch.setattr(deciding, "_with_tables", lambda task: None)
    found = compared(one, same)
    assert (found.verdict, "rounding" in found.reason) == ("unknown", True)


def test_float64_literals_are_not_rounded() -> None:
    for factor in (1 + 2**-50, 1 + 1e-15):
        assert compared(times_constant(1e-6), times_constant(1e-6 * factor)).verdict == "refuted"
        assert compared(times_constant(SEVENTHS), times_constant(SEVENTHS * factor)).verdict == "refuted"


def test_a_model_in_float64_is_read_without_rounding() -> None:
    one, same, _ = NEEDED["rounded constants: a table"]
    task = Task(program(one), program(same), lambda draw: (drawn := {"u": draw(SHAPE), "v": draw(SHAPE)}, drawn))
    assert decide(task).verdict == "proven"
    assert decide(dataclasses.replace(task, reads_rounded=False)).verdict == "refuted"


def test_tables_without_a_partner_are_unknown_within_their_rounding() -> None:
    def apart(number: float) -> Compute:
        return lambda b, u, v: b.multiply(b.multiply(u, b.constant(np.cos(SEVENTHS).astype("f"))), b.constant(number))

    together = times_constant((np.float32(0.7) * np.cos(SEVENTHS).astype("f")).astype("f"))
    found = compared(together, apart(0.7))
    assert found.verdict == "unknown"
    assert "rounding of constants and tables" in found.reason
    assert compared(together, apart(0.7001)).verdict == "refuted"


def constant_of(number: float, dtype: Any) -> Callable[[Builder], Value]:
    return lambda b: b.constant(np.asarray(number, dtype))


@pytest.mark.parametrize(("dtype", "axiom"), [(np.float32, "rounded constants"), (np.float64, "roots")])
@pytest.mark.parametrize("quarters", [-3, -2, -1, 1, 2, 4])
def test_sines_of_sums_with_multiples_of_a_right_angle(dtype: Any, axiom: str, quarters: int) -> None:
    angle = constant_of(abs(quarters) * np.pi / 2, dtype)

    def sine(name: str) -> Compute:
        return lambda b, u, v: getattr(b, name)((b.add if quarters > 0 else b.subtract)(b.add(u, v), angle(b)))

    def turned(name: str) -> Compute:
        sign, other = {0: (1, name), 2: (-1, name)}.get(quarters % 4, (0, ""))
        if not sign:
            sign, other = (1 if (quarters % 4 == 1) == (name == "sin") else -1), "cos" if name == "sin" else "sin"
        return lambda b, u, v: b.multiply(b.constant(float(sign)), getattr(b, other)(b.add(v, u)))

    for name in ("sin", "cos"):
        found = compared(sine(name), turned(name))
        assert (found.verdict, axiom in found.axioms, "activations" in found.axioms) == ("proven", True, True)
        assert compared(sine(name), turned("cos" if name == "sin" else "sin")).verdict == "refuted"


@pytest.mark.parametrize(
    ("one", "other", "verdict"),
    [
        (np.pi / 180, (np.pi, 1 / 180), "unknown"),
        (np.log(2), (1.4426950408889634, 1 / 1.4426950408889634**2), "unknown"),
        (3.14159 / 180, (np.pi, 1 / 180), "refuted"),
    ],
)
def test_numbers_that_differ_by_their_rounding_are_not_refuted(one: float, other: Any, verdict: str) -> None:
    single = np.float32

    def product(b: Builder, u: Value, v: Value) -> Value:
        return b.multiply(b.multiply(b.add(u, v), constant_of(other[0], single)(b)), constant_of(other[1], single)(b))

    found = compared(lambda b, u, v: b.multiply(b.add(u, v), constant_of(one, single)(b)), product)
    assert found.verdict == verdict
    assert verdict == "refuted" or "rounding of constants" in found.reason


def test_a_number_near_another_right_angle_is_itself() -> None:
    def shifted(number: float) -> Compute:
        return lambda b, u, v: b.sin(b.add(u, constant_of(number, np.float32)(b)))

    for number in (1.5708, 1.570796, np.pi / 2 * (1 + 2.0**-21)):
        assert compared(shifted(number), lambda b, u, v: b.cos(u)).verdict == "refuted"


def test_written_out_programs_keep_their_tables() -> None:
    def from_table(b: Builder, u: Value, v: Value) -> Value:
        return b.multiply(b.exp(b.subtract(u, v)), b.constant(np.cos(SEVENTHS).astype("f")))

    written = differences.written_out(program(from_table))
    assert written.axioms["differences"]
    (node,) = written.tables
    assert np.array_equal(written.operations[node].attributes["array"], np.cos(SEVENTHS).astype("f"))


@pytest.mark.parametrize("least", [1e-6, -1e-6])
def test_programs_with_tables_of_the_other_keep_their_domains(least: float) -> None:
    """√(u + v) isn't √((u + v) · [u + v > ± 1e-6]): where u + v is below 0, one of them is defined alone."""

    def root_of(dtype: str, chosen: bool) -> Compute:
        def compute(b: Builder, u: Value, v: Value) -> Value:
            total = b.multiply(b.add(u, v), b.constant(np.float32(0.7) if dtype == "f" else 0.7))
            table = b.constant(np.cos(SEVENTHS).astype(dtype))
            if chosen:
                total = b.where(b.greater(total, b.constant(least)), total, b.constant(1.0))
            return b.multiply(b.root(total), table)

        return compute

    assert compared(root_of("f", False), root_of("d", False)).verdict == "proven"
    found = compared(root_of("f", False), root_of("d", True))
    assert found.verdict != "proven"
    both = tables.unified(program(root_of("f", False)), program(root_of("d", False)))
    assert both is not None
    for one in both:
        (required,) = one.doubtful.values()
        assert one.operations[required.of].shape == SHAPE


def test_positive_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    from jax_transformer.proof.signs import Signs

    one, same, _ = NEEDED["positive"]
    assert "positive" in compared(one, same).axioms
    monkeypatch.setattr(Signs, "positive", lambda self, node: False)
    assert compared(one, same).verdict == "unknown"


def test_fully_masked_rows_are_compared_exactly() -> None:
    whole = np.array([[True, True, True], [False, True, False]])

    def with_fill(fill: float, scale: float) -> Compute:
        def compute(b: Builder, u: Value, v: Value) -> Value:
            return b.softmax(b.add(u, b.constant(np.where(whole, fill, 0.0) * [1, scale, 1])), 1)

        return compute

    assert compared(with_fill(-1e9, 1), with_fill(-2e9, 1)).verdict == "proven"  # a number less than each entry
    assert compared(with_fill(-1e9, 1), with_fill(-1e9, 2)).verdict == "refuted"


def test_a_step_of_what_can_be_zero_has_two_readings() -> None:
    def relu(b: Builder, u: Value) -> Value:
        return b.maximum(u, b.constant(0.0))

    assert (
        compared(
            lambda b, u, v: b.as_float(b.at_least(relu(b, u), b.constant(0.0))),
            lambda b, u, v: b.as_float(b.greater(relu(b, u), b.constant(0.0))),
        ).verdict
        == "refuted"
    )
    biased = [
        compared(
            lambda b, u, v: b.as_float(b.at_least(b.add(relu(b, u), v), b.constant(0.0))),
            lambda b, u, v: b.as_float(b.greater(b.add(relu(b, u), v), b.constant(0.0))),
        ).verdict
    ]
    assert biased == ["proven"]
