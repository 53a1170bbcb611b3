"""Describes bodies and answers in OpenAPI."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from jax_transformer.serving.requests import ScoreRequest, TranslateRequest, field_names
from jax_transformer.serving.speech_requests import LIST, SpeechRequest

ERROR = {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}
NUMBER = {"type": ["number", "null"]}
SIDE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "tokens": {"type": "array", "items": {"type": "string"}},
        "words": {"type": "array", "items": {"type": "string"}},
        "token_words": {
            "type": "array",
            "items": {"type": ["integer", "null"]},
            "description": "The number of each token's word, from 0; null for the end token, tags and the like.",
        },
        "unknown": {
            "type": "array",
            "items": {"type": "integer"},
            "description": "The numbers, from 0, of tokens that the vocabulary doesn't have.",
        },
    },
}
ATTENTION: dict[str, Any] = {
    "source": SIDE,
    "target": SIDE,
    "weights": {
        "type": "array",
        "items": {"type": "array", "items": {"type": "array", "items": {"type": "array", "items": NUMBER}}},
        "description": "By layer, head, target token and source token, to four decimal places. The row of a target "
        "token is the one that predicts it.",
    },
    "entropies": {
        "type": "array",
        "items": NUMBER,
        "description": "Each layer's entropy in nats, the mean over heads and target tokens; the least is sharpest.",
    },
}
TRANSLATION: dict[str, Any] = {
    "text": {"type": "string", "description": "The best translation."},
    "score": NUMBER,
    "tokens": {"type": "array", "items": {"type": "string"}, "description": "With the end token."},
    "cut_off": {"type": "boolean", "description": "It reached the most tokens before its end."},
    "attention": {
        "type": "array",
        "items": {"type": "object", "properties": ATTENTION},
        "description": "With attention, here or in each hypothesis: one entry, or with split_long one for each part.",
    },
    "hypotheses": {
        "type": "array",
        "items": {"type": "object"},
        "description": "With num_return above 1: all, best first.",
    },
}
SCORE: dict[str, Any] = {
    "log_prob": NUMBER,
    "tokens": {"type": "integer"},
    "perplexity": NUMBER,
    "token_log_probs": {"type": "array", "items": NUMBER},
}
ANSWERS = {"translations": TRANSLATION, "scores": SCORE}
REFUSALS = {
    400: "The body isn't strict JSON in UTF-8.",
    408: "The body takes too long.",
    413: "The body or the request is too large.",
    415: "The content type isn't application/json.",
    422: "A field is unknown, of another type, out of range or beyond a limit.",
    503: "The server isn't ready, or is full: see Retry-After.",
    504: "The answer takes too long.",
}
SPEECH_REFUSALS = {
    400: "The body is no form, or the recording can't be read.",
    403: "A page of another site sends the form.",
    413: "The body or the recording is too large.",
    415: "The content type isn't multipart/form-data.",
}
TRANSCRIPT: dict[str, Any] = {
    "text": {"type": "string"},
    "task": {"enum": ["transcribe", "translate"], "description": "Of verbose_json, as are the next ones."},
    "language": {
        "type": ["string", "null"],
        "description": "English name of the spoken language; null of a model that knows one alone.",
    },
    "duration": {"type": "number", "description": "Seconds of the recording."},
    "segments": {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {
                "id": {"type": "integer"},
                "seek": {"type": "integer", "description": "Where its window begins, in steps of 10 ms."},
                "start": {"type": "number", "description": "In seconds."},
                "end": {"type": "number"},
                "text": {"type": "string"},
                "tokens": {"type": "array", "items": {"type": "integer"}},
                "temperature": {"type": "number", "description": "At which its window was decoded."},
                "avg_logprob": {"type": "number", "description": "Mean log-probability of its window's tokens."},
                "compression_ratio": {"type": "number", "description": "Of its window's text."},
                "no_speech_prob": {"type": "number", "description": "Probability that its window holds no speech."},
            },
        },
    },
    "words": {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {"word": {"type": "string"}, "start": {"type": "number"}, "end": {"type": "number"}},
        },
        "description": "With timestamp_granularities[] of word.",
    },
}
FORMS: dict[str, dict[str, Any]] = {
    "text": {"response_format": "text"},
    "times": {"response_format": "verbose_json"},
    "subtitles": {"response_format": "srt"},
}
"""Examples of forms, by name; the file is the reader's."""


EXAMPLES: dict[type, dict[str, dict[str, Any]]] = {
    TranslateRequest: {
        "texts": {"texts": ["Who sleeps?", "The old man sees a dog."]},
        "n-best": {"texts": ["Who sleeps?"], "beam_size": 4, "num_return": 2},
        "stream": {"texts": ["The old man sees a dog."], "stream": True},
        "attention": {"texts": ["Who sleeps?"], "attention": True},
    },
    ScoreRequest: {"pairs": {"sources": ["Who sleeps?"], "targets": ["Wer schläft?"]}},
}
"""Request → its examples, by name."""


def body_schema(kind: type[TranslateRequest] | type[ScoreRequest]) -> dict[str, Any]:
    """Returns the entry for a route whose body has the fields of a request."""
    fields = {field.name: field for field in dataclasses.fields(kind)}
    names = field_names(kind)
    properties = _properties(kind, names)
    required = [name for name in names if fields[name].default is dataclasses.MISSING]
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    examples = {name: {"value": value} for name, value in EXAMPLES[kind].items()}
    return {
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema, "examples": examples}}}
    }


def _properties(kind: type, names: Sequence[str]) -> dict[str, Any]:
    """Returns the schema of each field, with its documentation."""
    hints, texts = typing.get_type_hints(kind), _docstrings(kind)
    return {
        name: _schema_of(hints[name]) | ({"description": " ".join(texts[name].split())} if name in texts else {})
        for name in names
    }


def form_schema(kind: type[SpeechRequest]) -> dict[str, Any]:
    """Returns the entry for a route whose body is a form with a recording and the fields of a request."""
    file = {"type": "string", "format": "binary", "description": "The recording: WAV, FLAC, OGG, MP3 and more."}
    fields = _properties(kind, [field.name for field in dataclasses.fields(kind)])
    listed = {f"{name}{LIST}" if field.get("type") == "array" else name: field for name, field in fields.items()}
    schema = {
        "type": "object",
        "properties": {"file": file, **listed},
        "required": ["file"],
        "additionalProperties": False,
    }
    examples = {name: {"value": value} for name, value in FORMS.items()}
    return {
        "requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema, "examples": examples}}}
    }


def transcripts() -> dict[int | str, dict[str, Any]]:
    """Returns the entry for the answers of a route that transcribes: an object, plain text, subtitles, or an error."""
    plain = {"schema": {"type": "string"}}
    schema = {"type": "object", "properties": TRANSCRIPT, "required": ["text"]}
    content = {"application/json": {"schema": schema}, "text/plain": plain, "text/vtt": plain}
    found: dict[int | str, dict[str, Any]] = {
        200: {
            "description": "The transcript, in the format of response_format.",
            "content": content | {"application/x-subrip": plain},
        }
    }
    return found | _refusals(REFUSALS | SPEECH_REFUSALS)


def _refusals(described: Mapping[int, str]) -> dict[int | str, dict[str, Any]]:
    content = {"application/json": {"schema": ERROR}}
    return {status: {"description": text, "content": content} for status, text in sorted(described.items())}


def answers(name: str) -> dict[int | str, dict[str, Any]]:
    """Returns the entry for the answers of a route: a list of objects by this name, or an error."""
    listed = {"type": "array", "items": {"type": "object", "properties": ANSWERS[name]}}
    schema = {"type": "object", "properties": {name: listed}, "required": [name]}
    found: dict[int | str, dict[str, Any]] = {
        200: {"description": "The answers, in order.", "content": {"application/json": {"schema": schema}}}
    }
    return found | _refusals(REFUSALS)


def states(well: str, unwell: str, field: str) -> dict[int | str, dict[str, Any]]:
    """Returns the entry for the answers of a route that tells a state.

    Args:
      well: when the answer is 200.
      unwell: when it is 503, whose object has this `field`.
    """

    def content(name: str) -> dict[str, Any]:
        schema = {"type": "object", "properties": {name: {"type": "string"}}, "required": [name]}
        return {"application/json": {"schema": schema}}

    return {
        200: {"description": well, "content": content("status")},
        503: {"description": unwell, "content": content(field)},
    }


def _schema_of(hint: Any) -> dict[str, Any]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_schema_of(option) for option in arguments]}
    if origin is tuple:
        return {"type": "array", "items": _schema_of(arguments[0])}
    words = {int: "integer", float: "number", bool: "boolean", str: "string", type(None): "null"}
    return {"type": words[hint]}


def _docstrings(kind: Any) -> dict[str, str]:
    """Returns the text under each field of a dataclass and its bases."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__[:-1]):
        (definition,) = ast.parse(inspect.getsource(base).strip()).body
        assert isinstance(definition, ast.ClassDef)
        for field, text in zip(definition.body, definition.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                found[ast.unparse(field.target)] = str(text.value.value)
    return found
