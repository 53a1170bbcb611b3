"""Routes of a server that transcribes: those of OpenAI's API for audio."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from fastapi import FastAPI, Request, Response

from jax_transformer.config.languages import name_of
from jax_transformer.serving.exchange import check_content_type, json_answer, receive, unless_gone, until
from jax_transformer.serving.form_body import FormReader
from jax_transformer.serving.limits import Refusal
from jax_transformer.serving.schema import form_schema, transcripts
from jax_transformer.serving.speech_requests import (
    SpeechRequest,
    TranscriptionRequest,
    TranslationRequest,
    read_speech_request,
)
from jax_transformer.serving.speech_service import SpeechService
from jax_transformer.speech.segments import FRAME
from jax_transformer.speech.transcripts import FORMATS, Segment, Transcript

TRANSCRIPTIONS, TRANSLATIONS = "/v1/audio/transcriptions", "/v1/audio/translations"
PATHS = (TRANSCRIPTIONS, TRANSLATIONS)
FORM = "multipart/form-data"
TYPES = {"text": "text/plain", "srt": "application/x-subrip", "vtt": "text/vtt"}
"""Format of an answer that isn't JSON → its content type."""
FILE = "file"


def add_speech_routes(app: FastAPI, service: SpeechService) -> None:
    """Adds the routes to an application."""

    @app.post(TRANSCRIPTIONS, openapi_extra=form_schema(TranscriptionRequest), responses=transcripts())
    async def transcriptions(request: Request) -> Response:
        """Transcribes a recording."""
        return await _answer(request, service, TranscriptionRequest)

    @app.post(TRANSLATIONS, openapi_extra=form_schema(TranslationRequest), responses=transcripts())
    async def translations(request: Request) -> Response:
        """Translates a recording into English."""
        return await _answer(request, service, TranslationRequest)


async def _answer(request: Request, service: SpeechService, kind: type[SpeechRequest]) -> Response:
    service.check_ready()
    limits = service.limits
    _check_origin(request)
    check_content_type(request, FORM)
    deadline = asyncio.get_running_loop().time() + limits.transcribe_seconds
    with service.room():
        async with until(deadline, limits, "transcribe_seconds"):
            reader = FormReader(request.headers["content-type"], FILE)
            with contextlib.closing(reader):
                await receive(request, limits, "max_audio_bytes", reader.feed)
                wanted = read_speech_request(kind, reader.end(), limits, service.name)
                if reader.file is None:
                    raise Refusal(422, f"expected the field {FILE!r}, a recording; received none")
                found = await unless_gone(request, service, service.transcribe(wanted, reader.file))
    return _written(found, wanted)


def _check_origin(request: Request) -> None:
    """Raises Refusal for a form that a page of another site sends: browsers send forms without asking the server."""
    site = request.headers.get("sec-fetch-site", "none")
    if site not in ("none", "same-origin"):
        raise Refusal(403, f"expected a request of this server's own page, or of a program; received one {site[:20]!r}")


def _written(found: Transcript, wanted: SpeechRequest) -> Response:
    """Returns the answer in the format that was asked for."""
    if wanted.response_format == "json":
        return json_answer(200, {"text": found.text})
    if wanted.response_format == "verbose_json":
        return json_answer(200, verbose(found, wanted))
    written = FORMATS[wanted.response_format](found)
    return Response(written, 200, media_type=TYPES[wanted.response_format])


def verbose(found: Transcript, wanted: SpeechRequest) -> dict[str, Any]:
    """Returns a transcript with its times, under the names of OpenAI's API."""
    asked = wanted.timestamp_granularities if isinstance(wanted, TranscriptionRequest) else ("segment",)
    answer: dict[str, Any] = {
        "task": wanted.task,
        "language": found.language and name_of(found.language),
        "duration": found.duration,
        "text": found.text,
    }
    if "word" in asked:
        words = [word for segment in found.segments for word in segment.words or []]
        answer["words"] = [{"word": word.text.strip(), "start": word.start, "end": word.end} for word in words]
    if "segment" in asked:
        answer["segments"] = [_segment(number, segment) for number, segment in enumerate(found.segments)]
    return answer


def _segment(number: int, segment: Segment) -> dict[str, Any]:
    return {
        "id": number,
        "seek": round(segment.window_start / FRAME),
        "start": segment.start,
        "end": segment.end,
        "text": segment.text,
        "tokens": segment.tokens,
        "temperature": segment.temperature,
        "avg_logprob": segment.log_prob,
        "compression_ratio": segment.compression_ratio,
        "no_speech_prob": segment.no_speech,
    }
