"""Bodies of requests: the commands' options, and what is refused, each with one line."""

from __future__ import annotations

import dataclasses
import doctest
import importlib
import json
from typing import Any

import pytest

from jax_transformer.commands.score import ScoreOptions
from jax_transformer.commands.translate import TranslateOptions
from jax_transformer.serving.json_body import parse_body
from jax_transformer.serving.limits import Limits, Refusal
from jax_transformer.serving.requests import HIDDEN, ScoreRequest, TranslateRequest, field_names, read_request
from jax_transformer.serving.schema import body_schema

LIMITS = Limits(max_texts=3, max_characters=20)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "a text that isn't"),
        (b"{", "a text that isn't"),
        (b'{"texts": ["a"]} x', "a text that isn't"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b'{"temperature": NaN}', "received NaN"),
        (b'{"temperature": -Infinity}', "received -Infinity"),
        (b'{"temperature": 1e999}', "a number that float64 has"),
        (b'{"seed": ' + b"9" * 5000 + b"}", "integer string conversion"),
        (b'{"texts": ["\xff"]}', "expected UTF-8; received byte 0xff at byte 13"),
        ('{"texts": ["a"]}'.encode("utf-16"), "expected UTF-8"),
        ("\ufeff{}".encode(), "a text that isn't"),
        (b'{"seed": 1, "seed": 2}', "received 'seed' twice"),
        (b"{'texts': []}", "a text that isn't"),
    ],
)
def test_only_strict_json_is_accepted(body: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        parse_body(body)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "expected an object with the field 'texts'; received a list"),
        (None, "received null"),
        ({}, "expected the field 'texts'; received none"),
        ({"text": ["a"]}, "received 'text'.*texts"),
        ({"texts": "a"}, "texts: expected a list of texts; received a text"),
        ({"texts": []}, "texts: expected at least one text"),
        ({"texts": [1]}, r"texts\[0\]: expected a text; received a number"),
        ({"texts": ["a", None]}, r"texts\[1\]: expected a text; received null"),
        ({"texts": ["a"] * 4}, r"at most 3 texts \(--max-texts\); received 4"),
        ({"texts": ["a" * 21]}, r"texts\[0\]: expected at most 20 characters \(--max-characters\); received 21"),
        ({"texts": ["a\0"]}, "received a NUL at character 2"),
        ({"texts": ["ab\ud800"]}, "half of a surrogate pair at character 3"),
        ({"texts": ["a"], "bad_words": [[1]]}, "received 'bad_words'"),
        ({"texts": ["a"], "beam_size": "4"}, "beam_size must be an integer"),
        ({"texts": ["a"], "beam_size": True}, "beam_size must be an integer"),
        ({"texts": ["a"], "beam_size": 0}, "beam_size must be at least 1"),
        ({"texts": ["a"], "beam_size": 4.5}, "beam_size must be an integer"),
        ({"texts": ["a"], "stream": 1}, "stream must be true or false"),
        ({"texts": ["a"], "prefix": None}, "prefix must be text"),
        ({"texts": ["a"], "early_stopping": "often"}, "early_stopping must be true or false or one of never"),
        ({"texts": ["a"], "sampling": True, "beam_size": 2}, "beam_size must be 1 with sampling"),
        ({"texts": ["a"], "beam_size": 1, "temperature": 2}, "temperature must be 1.0 without sampling"),
        ({"texts": ["a"], "seed": 1 << 63}, "seed must be at least 0 and below"),
    ],
)
def test_invalid_requests_for_translations_are_refused(value: Any, message: str) -> None:
    with pytest.raises(Refusal, match=message) as caught:
        read_request(TranslateRequest, value, LIMITS)
    assert caught.value.status == 422


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"sources": ["a"]}, "expected the field 'targets'"),
        ({"sources": ["a", "b"], "targets": ["c"]}, "expected one for each of 2 sources; received 1"),
        ({"sources": ["a"], "targets": [1]}, r"targets\[0\]"),
        ({"sources": ["a"], "targets": ["b"], "beam_size": 4}, "received 'beam_size'"),
        ({"sources": ["a"], "targets": ["b"], "source_tag": 4}, "source_tag must be text or null"),
    ],
)
def test_invalid_requests_for_scores_are_refused(value: Any, message: str) -> None:
    with pytest.raises(Refusal, match=message):
        read_request(ScoreRequest, value, LIMITS)


def test_requests_have_the_options_of_the_commands() -> None:
    """But for those about files, the loaded model, devices and output."""
    about_files = {"model", "dtype", "input", "source", "target", "format", "rows", "batch_tokens", "parallel"}
    translate = {field.name for field in dataclasses.fields(TranslateOptions)} - about_files - set(HIDDEN)
    assert set(field_names(TranslateRequest)) - {"texts", "attention", "stream"} == translate
    score = {field.name for field in dataclasses.fields(ScoreOptions)} - about_files
    assert set(field_names(ScoreRequest)) - {"sources", "targets"} == score


@pytest.mark.parametrize("kind", [TranslateRequest, ScoreRequest])
def test_the_schema_describes_every_field(kind: type[TranslateRequest] | type[ScoreRequest]) -> None:
    schema = body_schema(kind)["requestBody"]["content"]["application/json"]["schema"]
    assert list(schema["properties"]) == field_names(kind)
    assert all(field["description"] for field in schema["properties"].values())
    assert schema["required"] == (["texts"] if kind is TranslateRequest else ["sources", "targets"])
    json.dumps(schema)


@pytest.mark.parametrize("name", ["app", "json_body", "limits", "pieces", "requests"])
def test_the_examples_of_docstrings_run(name: str) -> None:
    failed, tried = doctest.testmod(importlib.import_module(f"jax_transformer.serving.{name}"))
    assert tried
    assert not failed


@pytest.mark.parametrize("kind", [TranslateRequest, ScoreRequest])
def test_the_examples_of_the_schema_are_requests(kind: type[TranslateRequest] | type[ScoreRequest]) -> None:
    examples = body_schema(kind)["requestBody"]["content"]["application/json"]["examples"]
    assert examples
    for example in examples.values():
        read_request(kind, json.loads(json.dumps(example["value"])), Limits())
