"""The published systems and the JAX models that their checkpoints become are the same functions."""

from __future__ import annotations

import numpy as np
import pytest
from systems import (
    SYSTEMS,
    Case,
    attended,
    jax_gradients,
    jax_trace,
    make_case,
    make_labels,
    per_layer,
    torch_gradients,
    torch_trace,
)

from jax_transformer.parity.compare import compare, float32_rule
from jax_transformer.parity.tolerances import FLOAT64_RELATIVE_RMS, has_zero_gradient
from jax_transformer.porting.convert import state_dict_from_params


@pytest.fixture(params=SYSTEMS)
def case(request: pytest.FixtureRequest) -> Case:
    return make_case(request.param)


def test_every_trace_in_float64(case: Case) -> None:
    """Names, order, shapes and dtypes; masks exactly; where attention may not go, the fill value exactly."""
    expected, received = torch_trace(case.torch64, case), jax_trace(case.config, case.params64, case)
    assert list(received) == list(expected)
    for name, reference in expected.items():
        candidate, where = received[name], attended(name, expected)
        assert (candidate.shape, candidate.dtype) == (reference.shape, reference.dtype), name
        if name.startswith("mask."):
            np.testing.assert_array_equal(candidate, reference)
            continue
        result = compare(candidate, reference, where)
        assert result.within(FLOAT64_RELATIVE_RMS), f"{name}: {result}"
        if where is not None:
            masked = np.broadcast_to(~where, reference.shape)
            np.testing.assert_array_equal(candidate[masked], reference[masked])
            assert masked.any(), name


def test_every_trace_in_float32(case: Case) -> None:
    truth, expected = torch_trace(case.torch64, case), torch_trace(case.torch32, case)
    received = jax_trace(case.config, case.params32, case)
    for name in truth:
        if not name.startswith("mask."):
            verdict = float32_rule(received[name], expected[name], truth[name], attended(name, truth))
            assert verdict.passed, f"{name}: {verdict}"


def test_parameter_gradients(case: Case) -> None:
    labels = make_labels(case)
    expected, received = per_layer(torch_gradients(case, labels)), per_layer(jax_gradients(case, labels))
    assert expected.keys() == received.keys()
    for name in expected:
        if has_zero_gradient(name.split("[")[0]):  # a key bias: analytically zero
            size = np.abs(expected[name.replace("key/bias", "value/bias")]).max()
            assert max(np.abs(expected[name]).max(), np.abs(received[name]).max()) <= FLOAT64_RELATIVE_RMS * size
            continue
        result = compare(received[name], expected[name])
        assert result.within(FLOAT64_RELATIVE_RMS), f"{name}: {result}"


def test_weights_go_back_as_they_came(case: Case) -> None:
    tensors = case.torch64.state_dict()
    back = state_dict_from_params(case.config, case.params64, case.system.dialect, list(tensors))
    assert list(back) == list(tensors)
    for name, tensor in tensors.items():
        assert back[name].dtype == tensor.numpy().dtype
        assert back[name].tobytes() == tensor.numpy().tobytes(), name
