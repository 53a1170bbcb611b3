"""Tests that lower precision is named as a cause only if it leaves nothing but rounding."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from fake_sides import HIDDEN, NORM, FakeSide, blamed, run_pair
from fault_cases import LAYER, make_case

from jax_transformer.parity.diagnosis.mixed_precision import with_narrow_norm
from jax_transformer.parity.faults import Replay, outcomes
from jax_transformer.parity.faults.rounding import rounded

pytestmark = pytest.mark.usefixtures("quick_compilation")

OUTPUT = "decoder.layers.0.feed_forward.output"


def narrow(replay: Replay, dtype: str, compute: Callable[[Replay], np.ndarray] = Replay.compute) -> np.ndarray:
    """Computes a node from rounded inputs, in float32, and rounds the result."""

    def all_rounded(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name: rounded(array, dtype).astype(np.float32) for name, array in arrays.items()}

    inputs, parameters = all_rounded(dict(replay.inputs)), all_rounded(dict(replay.parameters))
    other = Replay(replay.config, replay.node, inputs, parameters, replay.captured, replay.params)
    return rounded(np.asarray(compute(other), np.float64), dtype)


def other_eps(replay: Replay) -> np.ndarray:
    return replay.under(eps=1e-6)


def leaky(replay: Replay) -> np.ndarray:
    hidden = replay.under(activation="none")
    return np.where(hidden > 0.0, replay.compute(), replay.compute() + 0.01 * hidden)


def relu(replay: Replay) -> np.ndarray:
    return replay.under(activation="relu")


def larger(by: float) -> Callable[[Replay], np.ndarray]:
    return lambda replay: by * replay.compute()


CASES = {
    "norm": (NORM, "float32", Replay.compute, "computed in float32"),
    "norm in bfloat16": (NORM, "bfloat16", Replay.compute, "computed in bfloat16"),
    "norm of another ε": (NORM, "float32", other_eps, "norm: ε = 1e-06, computed in float32"),
    "activation": (HIDDEN, "bfloat16", Replay.compute, "computed in bfloat16"),
    "another activation": (HIDDEN, "bfloat16", relu, "ReLU, computed in bfloat16"),
    "unknown activation": (HIDDEN, "bfloat16", leaky, "unexplained, computed in bfloat16"),
    "product": (OUTPUT, "bfloat16", Replay.compute, "computed in bfloat16"),
    "product 1 % too large": (OUTPUT, "bfloat16", larger(1.01), "unexplained, computed in bfloat16"),
    "product a millionth too large": (OUTPUT, "float32", larger(1.0 + 1e-6), "unexplained, computed in float32"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_precision_hides_no_other_fault(name: str) -> None:
    node, dtype, compute, cause = CASES[name]
    report = run_pair(FakeSide(faults={node: lambda replay: narrow(replay, dtype, compute)}), FakeSide())
    assert blamed(report) == {node: cause}
    assert report.exit_code == (4 if "unexplained" in cause else 1)


def test_a_variance_in_float32_hides_no_other_epsilon() -> None:
    """As T5's programs compute it."""
    case = make_case("rms")
    stream = f"{LAYER}.cross_attention_residual"
    replay = case.replay(f"{LAYER}.feed_forward_norm", **{stream: 0.01 * case.captured[stream]})
    for eps, names in ((1e-5, ()), (1e-3, ("norm: ε = 0.001, and variance in float32",))):
        variance = np.square(replay.inputs["x"].astype(np.float32)).mean(axis=-1, keepdims=True)
        value = replay.inputs["x"] * (np.float32(1) / np.sqrt(variance + np.float32(eps))) * replay.parameters["scale"]
        received = Replay(**{**vars(replay), "captured": {**replay.captured, replay.node.name: value}})
        found = {name for name, other in outcomes(received) if np.array_equal(other, value)}
        assert ("norm: variance in float32" in found) == (not names)
        assert tuple(match.variant for match in with_narrow_norm(received) if names) == names
