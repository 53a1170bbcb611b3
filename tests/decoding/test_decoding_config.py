"""How a model is decoded: what is given, what it says itself, and which of the two prevails."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from jax_transformer.config.decoding import DEFAULTS, DecodingConfig, GenerationConfig
from jax_transformer.config.validation import ConfigError

BEAMS = {"beam_size": 4, "length_penalty": 0.8, "early_stopping": True, "renormalize": True}
DRAWING = {"sampling": True, "temperature": 0.5, "top_k": 9, "top_p": 0.9, "min_p": 0.1}
RULES = {"no_repeat_ngram": 3, "bad_words": ((1,), (2, 3)), "forced_bos_id": 4, "forced_eos_id": 5}
LENGTHS = {"min_new_tokens": 6, "max_new_tokens": 9}


def test_a_model_can_set_every_option_except_a_users() -> None:
    said = {field.name for field in dataclasses.fields(GenerationConfig)}
    asked = {field.name for field in dataclasses.fields(DecodingConfig)}
    assert asked - said == {"num_return", "seed"}
    assert said - asked == {"decoder_start_id", "eos_id", "max_decode_length", "source_length", "speech", "series"}


@pytest.mark.parametrize(
    ("own", "given", "expected"),
    [
        ({}, {}, {}),
        (BEAMS | RULES | LENGTHS, {}, BEAMS | RULES | LENGTHS),
        (DRAWING | RULES, {}, DRAWING | RULES),
        ({"decoder_start_id": 1, "eos_id": 2, "max_decode_length": 3, "source_length": 4}, {}, {}),
        (BEAMS, {"beam_size": None, "length_penalty": None}, BEAMS),
        # what is given prevails
        (
            BEAMS | RULES,
            {"beam_size": 2, "early_stopping": False, "no_repeat_ngram": 0},
            BEAMS | RULES | {"beam_size": 2, "early_stopping": False, "no_repeat_ngram": 0},
        ),
        (RULES, {"forced_bos_id": -1, "bad_words": ()}, RULES | {"forced_bos_id": -1, "bad_words": ()}),
        (RULES, {"forced_bos_id": 0, "length_penalty": 0.0}, RULES | {"forced_bos_id": 0, "length_penalty": 0.0}),
        # of beams, where there are none
        (BEAMS | RULES, {"beam_size": 1}, RULES),
        (BEAMS | RULES, {"sampling": True, "top_k": 7}, RULES | {"sampling": True, "top_k": 7}),
        ({"early_stopping": True, "length_penalty": 2.0}, {}, {}),
        (
            {"early_stopping": True, "renormalize": True},
            {"beam_size": 3},
            {"early_stopping": True, "renormalize": True, "beam_size": 3},
        ),
        # of drawing, where nothing is drawn
        (DRAWING | RULES, {"beam_size": 4}, RULES | {"beam_size": 4}),
        (DRAWING | RULES, {"beam_size": 1}, RULES),
        (DRAWING | RULES, {"sampling": False}, RULES),
        (DRAWING, {"beam_size": 1, "sampling": True}, DRAWING),
        (BEAMS | {"temperature": 0.5}, {}, BEAMS),
        ({"temperature": 0.5}, {"sampling": True}, {"sampling": True, "temperature": 0.5}),
        # of another search
        (BEAMS, {"semantics": "gnmt"}, {"beam_size": 4, "renormalize": True, "semantics": "gnmt"}),
        (
            BEAMS,
            {"semantics": "floydhub", "length_penalty": 0.7},
            {"beam_size": 4, "renormalize": True, "semantics": "floydhub", "length_penalty": 0.7},
        ),
        (BEAMS, {"semantics": "huggingface"}, BEAMS),
        (BEAMS | {"semantics": "gnmt"}, {"semantics": "gnmt"}, BEAMS | {"semantics": "gnmt"}),
        (BEAMS | {"semantics": "gnmt"}, {"beam_size": 2}, BEAMS | {"semantics": "gnmt", "beam_size": 2}),
        # lengths make room
        (LENGTHS, {"max_new_tokens": 7}, {"min_new_tokens": 6, "max_new_tokens": 7}),
        (LENGTHS, {"max_new_tokens": 6}, {"min_new_tokens": 5, "max_new_tokens": 6}),
        (LENGTHS, {"max_new_tokens": 1}, {"max_new_tokens": 1}),
        (LENGTHS, {"min_new_tokens": 8}, {"min_new_tokens": 8, "max_new_tokens": 9}),
        (LENGTHS, {"min_new_tokens": 9}, {"min_new_tokens": 9}),
    ],
)
def test_order_of_precedence(own: dict[str, Any], given: dict[str, Any], expected: dict[str, Any]) -> None:
    assert DecodingConfig(**given).resolved(GenerationConfig(**own)) == DecodingConfig(**DEFAULTS | expected)
    config = DecodingConfig(**given).resolved(GenerationConfig(**own))
    assert config.resolved(GenerationConfig(**own)) == config, "resolving again changes nothing"


def test_every_option_has_a_default() -> None:
    assert {field.name for field in dataclasses.fields(DecodingConfig)} == set(DEFAULTS)
    assert DecodingConfig().resolved(GenerationConfig()) == DecodingConfig(**DEFAULTS)


def test_options_can_be_updated() -> None:
    config = DecodingConfig(beam_size=4, length_penalty=0.5)
    assert config.updated(beam_size=2, seed=None) == DecodingConfig(beam_size=2, length_penalty=0.5)
    with pytest.raises(ConfigError, match=r"unknown name 'lenght_penalty' .nearest: length_penalty"):
        config.updated(lenght_penalty=1.0)


@pytest.mark.parametrize(
    ("own", "given", "message"),
    [
        (BEAMS, {"sampling": True, "beam_size": 4}, "beam_size must be 1 with sampling; received 4"),
        (BEAMS, {"beam_size": 1, "early_stopping": True}, "early_stopping must be false without beams; received True"),
        ({}, {"early_stopping": "never"}, "early_stopping must be false without beams"),
        (BEAMS, {"temperature": 0.5}, r"temperature must be 1\.0 without sampling; received 0\.5"),
        (LENGTHS, {"max_new_tokens": 0}, "max_new_tokens must be at least 1; received 0"),
        ({}, {"max_new_tokens": 4, "min_new_tokens": 4}, "min_new_tokens must be below max_new_tokens=4; received 4"),
        (BEAMS, {"num_return": 5}, "num_return must be at most beam_size=4; received 5"),
        (BEAMS, {"beam_groups": 3}, "beam_groups must be a divisor of beam_size=4; received 3"),
        (BEAMS, {"beam_groups": 2}, r"diversity_penalty must be greater than 0 with groups; received 0\.0"),
        (BEAMS, {"diversity_penalty": 0.5}, r"diversity_penalty must be 0 without beam_groups; received 0\.5"),
        (BEAMS, {"diversity_penalty": -1.0}, r"diversity_penalty must be at least 0, and finite; received -1\.0"),
        (
            {"beam_size": 4},
            {"beam_groups": 2, "diversity_penalty": 1.0, "semantics": "floydhub"},
            "beam_groups must be 1 with floydhub; received 2",
        ),
    ],
)
def test_contradicting_options_are_refused(own: dict[str, Any], given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DecodingConfig(**given).resolved(GenerationConfig(**own))
