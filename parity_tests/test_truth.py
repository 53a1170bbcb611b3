"""The truth in NumPy has transformers' relative buckets and T5's norm. (test_systems.py and test_families.py compare
every node of it with PyTorch's.)"""

from __future__ import annotations

from pathlib import Path

import families
import numpy as np
import pytest
import torch

from jax_transformer.comparison.gates.compare import compare
from jax_transformer.comparison.gates.tolerances import FLOAT64_RELATIVE_RMS
from jax_transformer.parity.oracle import nodes, recompute
from jax_transformer.parity.oracle.formulas import bucket
from jax_transformer.programs.modes import wide


@pytest.mark.parametrize(("buckets", "most"), [(32, 128), (10, 160), (12, 384), (19, 196)])
def test_relative_buckets_are_t5s(buckets: int, most: int) -> None:
    """Float32 decides: in all but the first case, float64 would give other buckets."""
    from transformers.models.t5.modeling_t5 import T5Attention

    offsets = range(-999, 1000)
    for both_ways in (True, False):
        expected = T5Attention._relative_position_bucket(
            torch.tensor(offsets), both_ways, num_buckets=buckets, max_distance=most
        )
        assert [bucket(offset, buckets, most, is_causal=not both_ways) for offset in offsets] == expected.tolist()


def test_the_truth_is_t5s_norm_with_its_mean_of_squares_in_float64(tmp_path: Path) -> None:
    """T5's own norm takes the mean in float32, whatever the input's dtype."""
    case = families.make_case("t5", 0, tmp_path)
    module = case.family_reference.build(torch.float64)
    last = module.get_decoder().final_layer_norm
    x = np.random.default_rng(0).standard_normal((2, 3, case.config.d_model))
    (node,) = (node for node in nodes(case.config) if node.name == "decoder.output")
    received = recompute(node, case.config, {node.inputs["x"]: x}, case.model.params)
    with torch.no_grad():
        own = last(torch.from_numpy(x)).numpy()
        with wide(module):
            exact = last(torch.from_numpy(x)).numpy()
    assert compare(received, exact).within(FLOAT64_RELATIVE_RMS)
    assert 1e-9 < compare(received, own).relative_rms < 1e-6
