"""Which of two gradients is the slope of a loss, and known mistakes in one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from jax_transformer.comparison.gates.arrays import Arrays
from jax_transformer.parity.diagnosis.gradients import CUT_OFF, LossAt, known_gradients, wrong_sides

WEIGHTS = {"a": np.array([0.3, -1.2, 2.0]), "b[0]": np.array([[0.7, 0.1]])}


def loss(moves: Arrays, noise: float = 0.0) -> float:
    a, b = (WEIGHTS[name] + moves.get(name, 0.0) for name in WEIGHTS)
    rough = noise * float(np.random.default_rng(abs(hash(a.tobytes())) % 2**32).standard_normal())
    return float(np.sum(np.sin(a)) * np.sum(np.square(b)) + np.maximum(a, 0.0).sum()) + rough


def right() -> dict[str, np.ndarray]:
    a, b = WEIGHTS.values()
    return {"a": np.cos(a) * np.square(b).sum() + (a > 0), "b[0]": 2 * b * np.sin(a).sum()}


def doubled(gradients: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {**gradients, "b[0]": 2 * gradients["b[0]"]}


def tiny(gradients: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {**gradients, "a": gradients["a"] * (1 + 1e-7)}


def without_a(gradients: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {**gradients, "a": 0 * gradients["a"]}


@pytest.mark.parametrize("change", [doubled, tiny, without_a])
def test_the_side_whose_gradients_are_not_the_slope_is_wrong(
    change: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]],
) -> None:
    losses: dict[str, LossAt] = {"candidate": loss, "reference": loss}
    own, wrong = right(), change(right())
    assert wrong_sides({"candidate": wrong, "reference": own}, losses, WEIGHTS) == ("candidate",)  # type: ignore[arg-type]
    assert wrong_sides({"candidate": own, "reference": wrong}, losses, WEIGHTS) == ("reference",)  # type: ignore[arg-type]


def test_both_sides_may_be_wrong() -> None:
    losses: dict[str, LossAt] = {"candidate": loss, "reference": loss}
    both = {"candidate": {**right(), "a": 2 * right()["a"]}, "reference": without_a(right())}
    assert wrong_sides(both, losses, WEIGHTS) == ("candidate", "reference")  # type: ignore[arg-type]


def test_no_side_is_blamed_without_a_certain_slope() -> None:
    rough = partial(loss, noise=1.0)
    losses: dict[str, LossAt] = {"candidate": rough, "reference": rough}
    assert wrong_sides({"candidate": tiny(right()), "reference": right()}, losses, WEIGHTS) == ()  # type: ignore[arg-type]
    infinite: dict[str, LossAt] = dict.fromkeys(losses, lambda moves: np.inf)
    assert wrong_sides({"candidate": doubled(right()), "reference": right()}, infinite, WEIGHTS) == ()  # type: ignore[arg-type]


def causes(wrong: dict[str, np.ndarray], different: str) -> dict[str, list[str]]:
    found = known_gradients(wrong, right(), different.split(), {"a": SHARES}, than="candidate")
    return {name: [match.variant for match in matches] for name, matches in found.items()}


SHARES = {"the source": np.array([1.0, 2.0, 0.5]), "the head": right()["a"] - np.array([1.0, 2.0, 0.5])}


def test_known_mistakes_explain_every_gradient_that_differs_or_none() -> None:
    assert causes(doubled(right()), "b[0]") == {"b[0]": ["gradient 2 times as large as the candidate's"]}
    assert causes(without_a(right()), "a") == {"a": [CUT_OFF]}
    assert causes(without_a(doubled(right())), "a b[0]") == {}
    of_source = {**right(), "a": SHARES["the source"]}
    assert causes(of_source, "a") == {"a": ["gradient of a shared table without the share of the head"]}
    assert causes({**right(), "a": right()["a"] + 1e-6}, "a") == {}


def test_a_single_number_has_no_factor() -> None:
    assert known_gradients({"x": np.array([3.0])}, {"x": np.array([2.0])}, ["x"], {}, than="candidate") == {}
