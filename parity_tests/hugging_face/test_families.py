"""Imported Marian, BART, M2M-100 and T5 models are the installed transformers' functions, down to single formulas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from families import (
    FAMILIES,
    KEYS,
    LIKE_OTHERS,
    Case,
    assert_same_activations,
    cached_error,
    compare_in_precision,
    compare_training,
    decoded_tokens,
    make_case,
)

from jax_transformer.comparison.gates.tolerances import FLOAT64_RELATIVE_RMS
from jax_transformer.comparison.sides import Dtype
from jax_transformer.config.model import TransformerConfig
from jax_transformer.model.distances import relative_buckets

pytestmark = pytest.mark.usefixtures("quick_compilation")


EITHER = [(family, number % 2) for number, family in enumerate(FAMILIES)]
BOTH = [key for key in KEYS if key[1] < 2 and (key[0] not in LIKE_OTHERS or key in EITHER)]


@pytest.fixture(params=BOTH, ids=lambda key: f"{key[0]}_{key[1]}")
def uneven(request: Any, folder: Path) -> Case:
    """Two cases of each family, with the deeper decoder and with the deeper encoder; one if it is like others."""
    return make_case(*request.param, folder)


@pytest.fixture(params=EITHER, ids=lambda key: key[0])
def either(request: Any, folder: Path) -> Case:
    """One case of each family, with the deeper decoder or the deeper encoder in turns."""
    return make_case(*request.param, folder)


def test_jax_transformers_and_the_truth_agree_on_every_activation_in_float64(uneven: Case) -> None:
    """Each node by itself, too. The truth is NumPy's, so that a mistake in JAX alone can't hide."""
    assert_same_activations(uneven)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("first", FAMILIES, indirect=True)
def test_jax_is_as_precise_as_transformers_in_lower_precision(first: Case, dtype: Dtype) -> None:
    stage = compare_in_precision(first, dtype)
    assert stage.verdict == "passed", [row for row in stage.rows if row.verdict != "passed"]


@pytest.mark.parametrize("either", EITHER, ids=lambda key: key[0], indirect=True)
def test_loss_and_gradients_agree(either: Case) -> None:
    for stage in compare_training(either):
        assert stage.verdict == "passed", [row for row in stage.rows if row.verdict != "passed"]
    assert len(stage.rows) > 40


@pytest.mark.parametrize("either", EITHER, ids=lambda key: key[0], indirect=True)
def test_decoding_with_a_cache_is_teacher_forcing(either: Case) -> None:
    assert cached_error(either) <= FLOAT64_RELATIVE_RMS


@pytest.mark.parametrize("uneven", BOTH, ids=lambda key: f"{key[0]}_{key[1]}", indirect=True)
def test_greedy_decoding_is_that_of_generate(uneven: Case) -> None:
    ours, theirs, eos_id = decoded_tokens(uneven)
    np.testing.assert_array_equal(ours, theirs)
    lengths = {int(np.argmax(row == eos_id)) for row in theirs if (row == eos_id).any()}
    assert len(lengths) > 1, "sentences should end, and not all at once"


# --- formulas of transformers


FLOAT32_DECIDES = [(10, 160), (12, 384), (19, 196)]
"""(buckets, most) for which float64 would sort some distance into another bucket. (For 17 and 27 PyTorch itself gives
different buckets on an Intel Xeon and an AMD EPYC: its float32 logarithm of 1.5 differs in the last bit.)"""


@pytest.mark.parametrize(
    ("buckets", "most"), [(32, 128), (8, 16), (12, 20), (4, 3), (64, 1000), (32, 24), (10, 33), *FLOAT32_DECIDES]
)
@pytest.mark.parametrize("is_causal", [False, True])
def test_relative_buckets_are_t5s(buckets: int, most: int, is_causal: bool) -> None:
    """At every distance up to 3000; float32 decides the borders between buckets."""
    from transformers.models.t5.modeling_t5 import T5Attention

    config = TransformerConfig(position_kind="relative_bias", relative_buckets=buckets, relative_max_distance=most)
    distances = torch.arange(-2999, 3000)
    expected = T5Attention._relative_position_bucket(
        distances, bidirectional=not is_causal, num_buckets=buckets, max_distance=most
    )
    np.testing.assert_array_equal(relative_buckets(config.encoder.positions, is_causal, 3000), expected.numpy())


@pytest.mark.parametrize(("d_model", "length", "pad_id"), [(1024, 1024, 1), (64, 30, 0), (8, 200, 5)])
def test_the_tables_of_m2m_100_are_transformers_own(d_model: int, length: int, pad_id: int) -> None:
    from transformers.models.m2m_100.modeling_m2m_100 import M2M100SinusoidalPositionalEmbedding as Positions

    from jax_transformer.porting.dialects import get_dialect

    config = TransformerConfig(
        d_model=d_model,
        max_length=length,
        source_pad_id=pad_id,
        target_pad_id=pad_id,
        position_offset=pad_id,
        position_index="non_pad_count",
        position_layout="halves",
        position_frequency="inclusive",
    )
    table = get_dialect("m2m_100").computed(config)["constants/encoder_positions"]
    expected = Positions.get_embedding(length + pad_id + 1, d_model, pad_id).numpy()
    assert table.dtype == np.float32
    np.testing.assert_array_equal(table, expected)
