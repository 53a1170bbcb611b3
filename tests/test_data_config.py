"""Errors of DataConfig before any text is read."""

from __future__ import annotations

from typing import Any

import pytest

from jax_transformer.config.data import CorpusConfig, DataConfig
from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.run import RunConfig
from jax_transformer.config.validation import ConfigError

OF_SPACY = {"train": ("a.tsv",), "tokenizer": "spacy", "source_language": "en", "target_language": "de"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train": ("a", "b", "c")}, "train must name one table or two parallel files; received 3 files"),
        ({"dataset": "d", "valid": ("a.tsv",)}, r"valid must be empty where dataset='d' is used; received \['a.tsv'\]"),
        ({"test_pairs": -1}, "test_pairs must be at least 0; received -1"),
        ({"weight": 0.0}, "weight must be above 0, and finite; received 0.0"),
        ({"source_tag": "<2 de>"}, "source_tag must be one token without spaces; received '<2 de>'"),
        (
            {"more": (CorpusConfig(train=("a.tsv",)),)},
            "train or dataset must be set with more; received 1 further corpora",
        ),
        ({"train": ("a.tsv",), "more": (CorpusConfig(),)}, "more: train or dataset must be set; corpus 2 has neither"),
        ({"max_length_ratio": 0.5}, "max_length_ratio must be at least 1, or 0; received 0.5"),
        ({"max_unknown": 1.5}, r"max_unknown must be in \[0, 1\]; received 1.5"),
        ({"batch_tokens": 100}, "batch_tokens must be at least max_length=128; received 100"),
        ({"bos_id": 3}, "must differ .only pad_id may equal unk_id.; received"),
        ({"tokenizer": "bpe"}, "vocab_size must be set with tokenizer='bpe'; received 0"),
        (
            {"joint_vocabulary": True, "target_kind": "characters"},
            "target_kind must be null with joint_vocabulary; received 'characters'",
        ),
        (OF_SPACY | {"target_language": ""}, "source_language and target_language must be set with tokenizer='spacy'"),
        (OF_SPACY | {"joint_vocabulary": True}, "joint_vocabulary must be false with tokenizer='spacy'"),
        (
            OF_SPACY | {"more": (CorpusConfig(train=("b.tsv",), source_language="en", target_language="fr"),)},
            "the languages of all corpora must be the same with tokenizer='spacy'; received en-de, en-fr",
        ),
        ({"source_tokenizer": "a.json"}, "must both be set, or neither; received 'a.json' and ''"),
        ({"subword_sampling": 1.0}, r"subword_sampling must be in \[0, 1\); received 1.0"),
        ({"subword_sampling": 0.1}, "subword_sampling must be 0 with tokenizer='words'; received 0.1"),
    ],
)
def test_a_contradiction_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DataConfig(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"pad_id": 1},
        OF_SPACY | {"more": (CorpusConfig(train=("b.tsv",), source_language="en", target_language="de"),)},
        {"subword_sampling": 0.1, "source_tokenizer": "a.json", "target_tokenizer": "a.json"},
        {"tokenizer": "bpe", "source_tokenizer": "a.json", "target_tokenizer": "a.json"},
    ],
)
def test_consistent_values_are_accepted(options: dict[str, Any]) -> None:
    DataConfig(**options)


@pytest.mark.parametrize(
    ("model", "data", "message"),
    [
        (
            {"max_length": 64},
            {"max_length": 128},
            r"^RunConfig: model.max_length must be at least data.max_length=128, the longest sentence trained on; "
            r"received 64; raise model.max_length or lower data.max_length$",
        ),
        (
            {"max_length": 128, "decoder_max_length": 32},
            {"max_length": 128},
            r"^RunConfig: model.decoder_max_length must be at least data.max_length=128, .* received 32; raise "
            r"model.decoder_max_length",
        ),
        ({"share_embeddings": True}, {}, "model.share_embeddings needs data.joint_vocabulary; received false"),
    ],
)
def test_a_run_whose_model_and_data_contradict_each_other_is_refused(
    model: dict[str, Any], data: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        RunConfig(model=TransformerConfig(**model), data=DataConfig(**data))


def test_positions_without_a_table_have_no_longest_sentence() -> None:
    model = TransformerConfig(max_length=64, position_kind="relative_bias")
    assert RunConfig(model=model, data=DataConfig(max_length=128)).data.max_length == 128


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "num_shapes",
            1_000_000,
            r"num_shapes must be at most 128 \(each is a program to compile\); received 1,000,000",
        ),
        ("phrasebook_pairs", 10**8, r"phrasebook_pairs must be at most 10,000,000 \(.*\); received 100,000,000"),
        ("batch_tokens", 10**12, r"batch_tokens must be at most 100,000,000 \(.*\); received 1,000,000,000,000"),
    ],
)
def test_sizes_without_an_end_are_refused(name: str, value: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DataConfig(**{name: value})
