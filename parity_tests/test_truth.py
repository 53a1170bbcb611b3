"""The truth in NumPy and the references in PyTorch are the same functions: JAX, which computes nothing here, has a
third to agree with."""

from __future__ import annotations

from pathlib import Path

import families
import numpy as np
import pytest
import systems
import torch
from systems import SYSTEMS, TIED, attended, torch_trace

from jax_transformer.config.model import TransformerConfig
from jax_transformer.parity.gates.compare import compare
from jax_transformer.parity.gates.tolerances import FLOAT64_RELATIVE_RMS
from jax_transformer.parity.oracle import forward, nodes, recompute
from jax_transformer.parity.oracle.formulas import relative_bucket

pytestmark = pytest.mark.usefixtures("quick_compilation")


def assert_same(received: np.ndarray, expected: np.ndarray, name: str, where: np.ndarray | None = None) -> None:
    """Shape and dtype, masks exactly; where attention may not go (`where`: it may), the fill value exactly."""
    assert (received.shape, received.dtype) == (expected.shape, expected.dtype), name
    if expected.dtype == bool:
        np.testing.assert_array_equal(received, expected, err_msg=name)
        return
    result = compare(received, expected, where)
    assert result.within(FLOAT64_RELATIVE_RMS), f"{name}: {result}"
    if where is not None:
        masked = np.broadcast_to(~where, expected.shape)
        np.testing.assert_array_equal(received[masked], expected[masked], err_msg=name)


@pytest.mark.parametrize("name", [*SYSTEMS, *TIED])
def test_a_published_system(name: str) -> None:
    """Its whole trace, in order, and every node by itself from what the system's own trace holds."""
    case = systems.make_case(name)
    expected = torch_trace(case.torch64, case)
    received = forward(case.config, case.params64, case.source_ids, case.decoder_input_ids)
    assert list(received) == list(expected)
    captured = {**expected, "source_ids": case.source_ids, "decoder_input_ids": case.decoder_input_ids}
    for node in nodes(case.config):
        where = attended(node.name, expected)
        assert_same(received[node.name], expected[node.name], node.name, where)
        assert_same(recompute(node, case.config, captured, case.params64), expected[node.name], node.name, where)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("families")


@pytest.mark.parametrize(("family", "size"), families.KEYS)
def test_a_family_of_transformers(family: str, size: int, folder: Path) -> None:
    """All of its model that can be looked at, and by itself what follows from nothing else."""
    case = families.make_case(family, size, folder)
    with torch.no_grad():
        expected = families.as_arrays(families.reference_trace(case.torch64, case.inputs()))
    received = forward(case.config, case.params64, case.source_ids, case.decoder_input_ids)
    for name, array in expected.items():
        assert_same(received[name], array, name)
    captured = {**expected, "source_ids": case.source_ids, "decoder_input_ids": case.decoder_input_ids}
    by_themselves = [
        node for node in nodes(case.config) if node.name in expected and captured.keys() >= {*node.inputs.values()}
    ]
    assert {"encoder.output", "decoder.output", "logits"} <= {node.name for node in by_themselves}
    for node in by_themselves:
        assert_same(recompute(node, case.config, captured, case.params64), expected[node.name], node.name)


@pytest.mark.parametrize(("buckets", "most"), [(32, 128), (10, 160), (12, 384), (19, 196)])
def test_relative_buckets_are_t5s(buckets: int, most: int) -> None:
    """Where float32 decides: in all but the first, float64 would have others."""
    from transformers.models.t5.modeling_t5 import T5Attention

    config = TransformerConfig(position_kind="relative_bias", relative_buckets=buckets, relative_max_distance=most)
    offsets = range(-999, 1000)
    for stack, both_ways in (("encoder", True), ("decoder", False)):
        expected = T5Attention._relative_position_bucket(
            torch.tensor(offsets), both_ways, num_buckets=buckets, max_distance=most
        )
        assert [relative_bucket(config, offset, stack) for offset in offsets] == expected.tolist()


def test_t5s_norm_by_itself_is_not_the_truths(folder: Path) -> None:
    """It takes its mean of squares in float32: in float64, the truth is a model's that doesn't."""
    case = families.make_case("t5", 0, folder)
    last = case.torch64.get_decoder().final_layer_norm
    x = np.random.default_rng(0).standard_normal((2, 3, case.config.d_model))
    (node,) = (node for node in nodes(case.config) if node.name == "decoder.output")
    received = recompute(node, case.config, {node.inputs["x"]: x}, case.params64)
    with torch.no_grad(), families.wide_norms(case.torch64):
        assert_same(received, last(torch.from_numpy(x)).numpy(), "wide")
    with torch.no_grad():
        assert 1e-9 < compare(received, last(torch.from_numpy(x)).numpy()).relative_rms < 1e-6
