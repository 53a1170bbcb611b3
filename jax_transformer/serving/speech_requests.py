"""Defines the fields of requests for transcripts, which are those of OpenAI's API."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from jax_transformer.runtime.trees import nearest
from jax_transformer.serving.limits import Limits, Refusal
from jax_transformer.speech.transcription import FALLBACK, Options, Task

ANY_MODEL = "whisper-1"
"""The name of a model that OpenAI's API has; here it means the model that is served."""
LIST = "[]"
"""Ends the name of a field that may come several times."""


@dataclass(frozen=True, kw_only=True)
class SpeechRequest:
    """Holds the fields that requests for transcripts and for translations share."""

    task: typing.ClassVar[Task]
    model: str = ANY_MODEL
    """Name of the model that is served, or whisper-1."""
    prompt: str = ""
    """Text that is shown to the model as if it came before the recording, such as names as they are spelt."""
    response_format: Literal["json", "text", "srt", "verbose_json", "vtt"] = "json"
    """verbose_json: with the language, the duration, and each segment's times; srt, vtt: subtitles."""
    temperature: float = 0.0
    """0: take the likeliest tokens, and draw at higher temperatures where a text repeats itself or is improbable; above
    0, up to 1: draw at this temperature."""

    def options(self) -> Options:
        """Returns the options of `transcribe`."""
        temperatures = (self.temperature,) if self.temperature else FALLBACK
        needs_speech = self.response_format == "verbose_json"
        return Options(task=self.task, temperatures=temperatures, prompt=self.prompt, no_speech=needs_speech)


@dataclass(frozen=True, kw_only=True)
class TranscriptionRequest(SpeechRequest):
    """Asks for a recording's text in the language that is spoken."""

    task = "transcribe"
    language: str = ""
    """Code of the spoken language, such as de, or its English name. Default: the model's own setting, or else the
    likeliest in the first 30 seconds."""
    timestamp_granularities: tuple[Literal["word", "segment"], ...] = ("segment",)
    """Of verbose_json: what has times. word needs a model with alignment_heads."""

    def options(self) -> Options:
        """Returns the options of `transcribe`."""
        words = "word" in self.timestamp_granularities
        return dataclasses.replace(super().options(), language=self.language or None, words=words)


@dataclass(frozen=True, kw_only=True)
class TranslationRequest(SpeechRequest):
    """Asks for a recording's text in English."""

    task = "translate"


Form = TypeVar("Form", bound=SpeechRequest)


def read_speech_request(kind: type[Form], fields: Mapping[str, Sequence[str]], limits: Limits, model: str) -> Form:
    """Returns the request that a form's fields describe.

    Args:
      kind: of the request.
      fields: the values of each field.
      limits: of the server.
      model: the name of the model that is served.

    Raises:
      Refusal: an unknown field, or a value that a field can't have.
    """
    hints = typing.get_type_hints(kind)
    known = [field.name for field in dataclasses.fields(kind)]
    values: dict[str, Any] = {}
    for given, texts in fields.items():
        name = given.removesuffix(LIST)
        if name not in known:
            names = ", ".join(["file", *known])
            raise Refusal(422, f"expected one of {names}; received {given[:80]!r}{nearest(given[:80], known)}")
        values[name] = _value(name, hints[name], texts, limits)
    request = kind(**values)
    if request.model not in (model, ANY_MODEL):
        raise Refusal(422, f"model: expected {model!r}, which is served, or {ANY_MODEL!r}; received {request.model!r}")
    if not 0.0 <= request.temperature <= 1.0:
        raise Refusal(422, f"temperature: expected a number from 0 to 1; received {request.temperature:g}")
    if "timestamp_granularities" in values and request.response_format != "verbose_json":
        raise Refusal(
            422,
            "timestamp_granularities: expected response_format 'verbose_json' with it; received "
            f"{request.response_format!r}",
        )
    return request


def _value(name: str, hint: Any, texts: Sequence[str], limits: Limits) -> Any:
    """Returns the value of a field. Raises Refusal if it can't have it."""
    if typing.get_origin(hint) is tuple:
        return tuple(_value(name, typing.get_args(hint)[0], [text], limits) for text in texts)
    if len(texts) > 1:
        raise Refusal(422, f"{name}: expected one value; received {len(texts)}")
    (text,) = texts
    if typing.get_origin(hint) is Literal:
        if text not in typing.get_args(hint):
            raise Refusal(422, f"{name}: expected {' or '.join(typing.get_args(hint))}; received {text[:80]!r}")
        return text
    if hint is float:
        try:
            return float(text)
        except ValueError:
            raise Refusal(422, f"{name}: expected a number; received {text[:80]!r}") from None
    limits.check("max_characters", len(text), "characters", name)
    return text
