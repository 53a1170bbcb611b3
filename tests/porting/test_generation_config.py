"""What generation_config.json, or a config.json of old, says of decoding: what is read, what is told, what is written.
(What it does: parity_tests.)"""

from __future__ import annotations

import json
from typing import Any

import pytest

from jax_transformer.config.decoding import GenerationConfig
from jax_transformer.porting.hugging_face import decoding_fields, in_effect, not_decoded, start_and_end, text_of
from jax_transformer.storage.tensors import PortingError

READ: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    (
        {
            "num_beams": 4,
            "length_penalty": 2.0,
            "early_stopping": True,
            "no_repeat_ngram_size": 3,
            "renormalize_logits": True,
        },
        {"beam_size": 4, "length_penalty": 2.0, "early_stopping": True, "no_repeat_ngram": 3, "renormalize": True},
    ),
    ({"num_beams": None, "max_length": None, "transformers_version": "5.0.0", "bos_token_id": 0}, {}),
    ({"forced_bos_token_id": 0, "forced_eos_token_id": 2}, {"forced_bos_id": 0, "forced_eos_id": 2}),
    ({"forced_eos_token_id": [2]}, {"forced_eos_id": 2}),
    # the start token counts in a length
    ({"max_length": 142, "min_length": 56}, {"max_new_tokens": 141, "min_new_tokens": 55}),
    (
        {"max_new_tokens": 9, "max_length": 30, "min_new_tokens": 3, "min_length": 8},
        {"max_new_tokens": 9, "min_new_tokens": 3},
    ),
    ({"min_length": 1}, {}),
    ({"min_length": 0, "min_new_tokens": 0}, {}),
    # the end is no bad word
    ({"bad_words_ids": [[7], [2], [2, 7]], "eos_token_id": 2}, {"bad_words": ((7,), (2, 7))}),
    ({"bad_words_ids": [[2]], "eos_token_id": [2]}, {}),
    ({"bad_words_ids": [[2], [4], [3]], "eos_token_id": [2, 3]}, {"bad_words": ((4,),)}),
    # drawing
    (
        {"do_sample": True, "temperature": 0.6, "top_p": 0.9},
        {"sampling": True, "temperature": 0.6, "top_p": 0.9, "top_k": 50},
    ),
    ({"do_sample": True, "top_k": 0, "min_p": 0.1}, {"sampling": True, "top_k": 0, "min_p": 0.1}),
    ({"do_sample": False, "temperature": 0.6}, {"sampling": False, "temperature": 0.6}),
]


@pytest.mark.parametrize(("content", "fields"), READ, ids=str)
def test_what_is_read(content: dict[str, Any], fields: dict[str, Any]) -> None:
    """And that it is written back as it was."""
    text = json.dumps(content)
    generation = GenerationConfig(**decoding_fields(in_effect({}, text)))
    assert generation == GenerationConfig(**fields)
    assert not_decoded(in_effect({}, text)) == {}
    assert text_of(generation, {}, text) == text


@pytest.mark.parametrize(
    ("content", "message", "fields"),
    [
        ({"encoder_repetition_penalty": 1.2, "num_beams": 4}, {"encoder_repetition_penalty": 1.2}, {"beam_size": 4}),
        ({"num_beam_groups": 2, "diversity_penalty": 0.5}, {"num_beam_groups": 2, "diversity_penalty": 0.5}, {}),
        (
            {"encoder_no_repeat_ngram_size": 3, "typical_p": 0.9, "num_return_sequences": 2},
            {"typical_p": 0.9, "num_return_sequences": 2},
            {"encoder_no_repeat_ngram": 3},
        ),
        (
            {
                "encoder_repetition_penalty": 1.0,
                "diversity_penalty": 0.0,
                "suppress_tokens": [],
                "guidance_scale": None,
            },
            {},
            {},
        ),
        (
            {"do_sample": True, "num_beams": 4, "temperature": 0.5},
            {"do_sample": True},
            {"beam_size": 4, "temperature": 0.5},
        ),
        ({"forced_eos_token_id": [2, 3]}, {"forced_eos_token_id": [2, 3]}, {}),
        ({"min_length": 20, "max_length": 20}, {"min_length": 20}, {"max_new_tokens": 19}),
        ({"min_new_tokens": 20, "max_length": 20}, {"min_new_tokens": 20}, {"max_new_tokens": 19}),
    ],
    ids=str,
)
def test_what_no_decoding_obeys_is_told(
    content: dict[str, Any], message: dict[str, Any], fields: dict[str, Any]
) -> None:
    """And kept."""
    text = json.dumps(content)
    assert not_decoded(in_effect({}, text)) == message
    generation = GenerationConfig(**decoding_fields(in_effect({}, text)))
    assert generation == GenerationConfig(**fields)
    assert text_of(generation, {}, text) == text
    other = json.loads(text_of(GenerationConfig(**fields | {"beam_size": 7}), {}, text))
    assert other == {key: value for key, value in content.items() if value is not None} | {"num_beams": 7}


def test_config_json_counts_where_there_is_no_other() -> None:
    config = {
        "d_model": 8,
        "num_beams": 4,
        "max_length": 9,
        "task_specific_params": {"translation": {"num_beams": 2}},
        "bos_token_id": 5,
    }
    assert decoding_fields(in_effect(config, "")) == {"beam_size": 4, "max_new_tokens": 8}
    assert decoding_fields(in_effect(config, '{"num_beams": 3}')) == {"beam_size": 3}
    assert decoding_fields(in_effect(config | {"force_bos_token_to_be_generated": True}, ""))["forced_bos_id"] == 5


@pytest.mark.parametrize("key", ["num_beams", "max_length", "max_new_tokens", "min_length", "min_new_tokens"])
@pytest.mark.parametrize("value", ["4", 4.5, True, [4]])
def test_numbers_that_are_none(key: str, value: Any) -> None:
    with pytest.raises(PortingError, match=f"{key} must be an integer; received"):
        in_effect({}, json.dumps({key: value}))


CHANGED: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    (
        {"num_beams": 4, "other": "kept"},
        {"beam_size": 2, "no_repeat_ngram": 3},
        {"other": "kept", "num_beams": 2, "no_repeat_ngram_size": 3},
    ),
    ({"num_beams": 4, "bad_words_ids": [[1]]}, {"bad_words": ((1,), (2, 3))}, {"bad_words_ids": [[1], [2, 3]]}),
    (
        {"max_length": 20, "min_length": 5},
        {"max_new_tokens": 19, "min_new_tokens": 3},
        {"max_length": 20, "min_new_tokens": 3},
    ),
    (
        {"max_length": 20, "min_length": 5},
        {"max_new_tokens": 30, "min_new_tokens": 4},
        {"max_new_tokens": 30, "min_length": 5},
    ),
    ({"max_new_tokens": 20}, {"max_decode_length": 8}, {"max_new_tokens": 8}),
    ({}, {"max_decode_length": 8, "max_new_tokens": 9}, {"max_new_tokens": 8}),
    ({}, {"sampling": True, "top_p": 0.5}, {"do_sample": True, "top_p": 0.5, "top_k": 0}),
    ({"do_sample": True}, {}, {}),
    ({"forced_eos_token_id": 2}, {"renormalize": True}, {"renormalize_logits": True}),
]


@pytest.mark.parametrize(("content", "fields", "expected"), CHANGED, ids=str)
def test_what_was_changed_is_written(content: dict[str, Any], fields: dict[str, Any], expected: dict[str, Any]) -> None:
    written = text_of(GenerationConfig(**fields), {}, json.dumps(content))
    assert json.loads(written) == expected
    again = GenerationConfig(**decoding_fields(in_effect({}, written)))
    assert text_of(again, {}, written) == written


def test_a_changed_config_json_becomes_a_file_of_its_own() -> None:
    """With all that it said of decoding, for it is no longer read."""
    config = {
        "d_model": 8,
        "num_beams": 4,
        "encoder_repetition_penalty": 1.2,
        "eos_token_id": 2,
        "pad_token_id": 1,
        "decoder_start_token_id": 2,
    }
    assert text_of(GenerationConfig(beam_size=4), config, "") == ""
    written = json.loads(text_of(GenerationConfig(beam_size=5), config, ""))
    assert written == {key: value for key, value in config.items() if key != "d_model"} | {"num_beams": 5}


def test_another_search_is_not_written() -> None:
    with pytest.raises(PortingError, match="semantics must be 'huggingface'; received 'gnmt'"):
        text_of(GenerationConfig(beam_size=4, semantics="gnmt"), {}, "")


# --- the ids that start and end

CONFIG_JSON: dict[str, Any] = {"decoder_start_token_id": 2, "bos_token_id": 0, "eos_token_id": 3, "pad_token_id": 1}


@pytest.mark.parametrize(
    ("text", "taken", "lacking"),
    [
        ("", {"decoder_start_id": 2, "eos_id": 3}, {}),
        (
            '{"decoder_start_token_id": 5, "bos_token_id": 4, "eos_token_id": [6]}',
            {"decoder_start_id": 5, "eos_id": 6},
            {},
        ),
        (
            '{"bos_token_id": 4, "eos_token_id": [6, 8, 7]}',
            {"decoder_start_id": 4, "eos_id": 6, "more_eos_ids": (8, 7)},
            {},
        ),
        ('{"bos_token_id": 4, "eos_token_id": 6}', {"decoder_start_id": 4, "eos_id": 6}, {}),
        ('{"decoder_start_token_id": null, "bos_token_id": 4}', {"decoder_start_id": 4}, {"eos_id": 3}),
        ('{"bos_token_id": 0.0, "eos_token_id": 6.0}', {"decoder_start_id": 0, "eos_id": 6}, {}),
        ('{"max_length": 12}', {}, {"decoder_start_id": 2, "eos_id": 3}),
    ],
)
def test_generate_starts_and_ends_with_these(text: str, taken: dict[str, int], lacking: dict[str, int]) -> None:
    """As transformers 5 does: with what generation_config.json says alone, if it is there."""
    assert start_and_end(in_effect(CONFIG_JSON, text), CONFIG_JSON) == (taken, lacking)


def test_a_config_json_without_a_start_starts_with_its_bos() -> None:
    config = CONFIG_JSON | {"decoder_start_token_id": None}
    assert start_and_end(in_effect(config, ""), config) == ({"decoder_start_id": 0, "eos_id": 3}, {})


def test_a_tag_that_starts_the_decoder_is_not_replaced_by_bos() -> None:
    config = CONFIG_JSON | {"decoder_start_token_id": None}
    assert start_and_end(in_effect(config, ""), config, starts_with_tag=True) == ({"eos_id": 3}, {})


@pytest.mark.parametrize("value", ["2", 2.5, True, [2, 3], {}])
def test_an_id_that_is_none(value: Any) -> None:
    with pytest.raises(PortingError, match="decoder_start_token_id must be one id; received"):
        start_and_end(in_effect({}, json.dumps({"decoder_start_token_id": value})), CONFIG_JSON)


def test_integers_and_booleans_that_are_written_as_floats() -> None:
    content = {
        "max_length": 12.0, "min_length": 3.0, "num_beams": 4.0, "no_repeat_ngram_size": 2.0,
        "forced_bos_token_id": 5.0, "early_stopping": 1.0,
        "renormalize_logits": 0, "top_k": 10.0, "length_penalty": 2.0,
    }  # fmt: skip
    fields = decoding_fields(in_effect({}, json.dumps(content)))
    expected = {
        "max_new_tokens": 11, "min_new_tokens": 2, "beam_size": 4, "no_repeat_ngram": 2, "forced_bos_id": 5,
        "early_stopping": True, "renormalize": False, "top_k": 10, "length_penalty": 2.0,
    }  # fmt: skip
    assert fields == expected
    assert {name: type(value) for name, value in fields.items()} == {name: type(v) for name, v in expected.items()}
    GenerationConfig(**fields)
