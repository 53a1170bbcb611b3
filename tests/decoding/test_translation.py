"""How sentences of different lengths are decoded, by what the config says of padding."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest

from jax_transformer.config.decoding import GenerationConfig
from jax_transformer.config.model import TransformerConfig
from jax_transformer.decoding import sampling_loop
from jax_transformer.decoding.batches import generate_each
from jax_transformer.decoding.generation import generate
from jax_transformer.decoding.padding import round_rows
from jax_transformer.model.functional import abstract_params
from jax_transformer.runtime.trees import flatten, unflatten
from jax_transformer.storage.model_directory import Model

pytestmark = pytest.mark.usefixtures("quick_compilation")

CONFIG = TransformerConfig(
    source_vocab_size=23,
    target_vocab_size=29,
    d_model=16,
    num_heads=2,
    d_ff=20,
    num_encoder_layers=1,
    num_decoder_layers=2,
    max_length=40,
    norm_placement="pre",
)
GENERATION = GenerationConfig(decoder_start_id=5, eos_id=28, max_decode_length=9)


def make_model(generation: GenerationConfig = GENERATION, **changes: str) -> Model:
    config = dataclasses.replace(CONFIG, **changes)
    rng = np.random.default_rng(1)
    leaves = {
        path: (0.4 * rng.standard_normal(leaf.shape) + path.endswith("norm/scale")).astype(np.float32)
        for path, leaf in flatten(abstract_params(config)).items()
    }
    return Model(config, unflatten(leaves), None, None, generation)


def sentences(*lengths: int) -> list[list[int]]:
    rng = np.random.default_rng(3)
    return [rng.integers(1, 23, length).tolist() for length in lengths]


def decode_ids(model: Model, sources: Sequence[Sequence[int]]) -> list[list[int]]:
    """The best hypothesis of each, without its end."""
    return [ids[: ids.index(28)] if 28 in ids else ids for (ids, _), *_ in generate_each(model, sources)]


def by_itself(model: Model, ids: Sequence[int], length: int) -> list[int]:
    """Greedy decoding of one sentence, padded to `length`."""
    padded = np.array([[*ids, *[0] * (length - len(ids))]])
    tokens = generate(model, padded, max_new_tokens=9).sequences[0, 0].tolist()
    return tokens[: tokens.index(28)] if 28 in tokens else tokens


SEEN = {"encoder_padding": "queries", "decoder_padding": "queries", "cross_padding": "none"}
"""Masks with which padding is seen."""


def test_padding_that_changes_nothing_is_used() -> None:
    model, sources = make_model(), sentences(3, 17, 9)
    decoded = decode_ids(model, sources)
    assert decoded == [by_itself(model, ids, len(ids)) for ids in sources]
    assert len({tuple(ids) for ids in decoded}) > 1


def test_batches_are_unpadded_if_padding_is_visible() -> None:
    model, sources = make_model(**SEEN), sentences(3, 17, 9)
    alone = [by_itself(model, ids, len(ids)) for ids in sources]
    assert decode_ids(model, sources) == alone
    assert [by_itself(model, ids, 17) for ids in sources] != alone


@pytest.mark.parametrize("lengths", [(3, 11, 9), (3, 17, 9)])
def test_where_padding_is_seen_it_is_that_of_training(lengths: tuple[int, ...]) -> None:
    """A sentence that is longer isn't padded, and the others as ever."""
    model, sources = make_model(dataclasses.replace(GENERATION, source_length=12), **SEEN), sentences(*lengths)
    assert decode_ids(model, sources) == [by_itself(model, ids, max(12, len(ids))) for ids in sources]
    assert decode_ids(model, sources) != [by_itself(model, ids, len(ids)) for ids in sources]


def test_dependent_rows_are_decoded_one_by_one() -> None:
    model, sources = make_model(position_index="batch_row"), sentences(3, 17, 9)
    assert decode_ids(model, sources) == [by_itself(model, ids, len(ids)) for ids in sources]


def test_batches_of_any_size_have_few_shapes() -> None:
    model = make_model()
    compiled = sampling_loop.start._cache_size()  # type: ignore[attr-defined]
    for count in (65, 70, 99, 128):
        assert len(generate_each(model, sentences(*[4] * count), rows=500)) == count
    assert sampling_loop.start._cache_size() == compiled + 1  # type: ignore[attr-defined]
    assert [round_rows(count) for count in (1, 2, 8, 9, 64, 65, 129, 500)] == [1, 8, 8, 64, 64, 128, 256, 512]
