"""A server that transcribes, in this process: answers equal those of `transcribe`, and what it refuses."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Awaitable, Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from clients import Ask, asked
from whisper_models import HALF_SECOND, SPEECH, small_whisper

import jax_transformer as jt
from jax_transformer.commands.serve import ServeOptions, _check_speech
from jax_transformer.decoding.prepared import prepare
from jax_transformer.serving.form_body import MOST_FIELD_BYTES, MOST_HEADER_BYTES, FormReader
from jax_transformer.serving.limits import Limits, Refusal
from jax_transformer.serving.speech_engine import SpeechEngine
from jax_transformer.serving.speech_service import SpeechService
from jax_transformer.speech.transcription import FALLBACK

soundfile = pytest.importorskip("soundfile")
pytestmark = pytest.mark.usefixtures("quick_compilation")

TRANSCRIPTIONS, TRANSLATIONS = "/v1/audio/transcriptions", "/v1/audio/translations"
LIMITS = Limits(max_audio_bytes=100_000, max_audio_seconds=2.0, max_recordings=4, max_characters=30)


class Counting(SpeechEngine):
    """Counts the windows of each batch."""

    batches: list[int]

    def compute(self, kind: Any, units: Any) -> Any:
        self.batches.append(len(units))
        return super().compute(kind, units)


@pytest.fixture(scope="module")
def model() -> jt.Model:
    return prepare(small_whisper())


@pytest.fixture(scope="module")
def service(model: jt.Model) -> Iterator[SpeechService]:
    engine = Counting(prepare(model), LIMITS)
    engine.batches = []
    service = SpeechService(engine, max_wait_ms=30, name="tiny")
    service.start()
    yield service
    assert service.stop(30)


def recording(seed: int = 0, samples: int = 2 * HALF_SECOND, ending: str = "wav") -> bytes:
    file = io.BytesIO()
    noise = 0.1 * np.random.default_rng(seed).standard_normal(samples)
    soundfile.write(file, noise, 16_000, format=ending)
    return file.getvalue()


def post(path: str = TRANSCRIPTIONS, content: bytes | None = None, **fields: Any) -> Ask:
    files = {"file": ("speech.wav", recording() if content is None else content)}
    data = {name.replace("__", "[]"): value for name, value in fields.items()}
    return lambda client: client.post(path, files=files, data=data)


def error_of(response: httpx.Response) -> str:
    assert response.text.count("\n") == 1
    return str(json.loads(response.text)["error"])


# --- results


def test_answers_are_those_of_transcribe_and_windows_share_batches(service: SpeechService, model: jt.Model) -> None:
    """Recordings of one to three windows, asked for at once: their tokens don't depend on the batch."""
    engine: Any = service.engine
    engine.batches.clear()
    contents = [recording(seed, samples) for seed, samples in enumerate((HALF_SECOND, 2 * HALF_SECOND, 20_000, 9_000))]
    answers = asked(service, *(post(content=one, language="de", response_format="verbose_json") for one in contents))
    for content, answer in zip(contents, answers, strict=True):
        assert answer.status_code == 200, answer.text
        found = jt.transcribe(model, io.BytesIO(content), language="de", task="transcribe")
        said = answer.json()
        assert (said["text"], said["duration"], said["language"], said["task"]) == (
            found.text, found.duration, "german", "transcribe",
        )  # fmt: skip
        assert len(said["segments"]) == len(found.segments)
        for number, (segment, expected) in enumerate(zip(said["segments"], found.segments, strict=True)):
            assert segment["tokens"] == expected.tokens
            assert (segment["id"], segment["start"], segment["end"]) == (number, expected.start, expected.end)
            assert segment["avg_logprob"] == pytest.approx(expected.log_prob, abs=1e-5)
            assert 0.0 <= segment["no_speech_prob"] <= 1.0
            assert segment["seek"] <= 100 * segment["start"] + 1e-6
    assert max(engine.batches) > 1


def test_a_format_is_that_of_the_command(service: SpeechService, model: jt.Model) -> None:
    found = jt.transcribe(model, io.BytesIO(recording()), language="de")
    formats = {"text": f"{found.text}\n", "srt": found.srt(), "vtt": found.vtt(), "json": None}
    answers = asked(service, *(post(language="german", response_format=name) for name in formats))
    for answer, (name, expected) in zip(answers, formats.items(), strict=True):
        if expected is None:
            assert answer.json() == {"text": found.text}
        else:
            assert answer.text == expected, name
    kinds = [answer.headers["content-type"].partition(";")[0] for answer in answers]
    assert kinds == ["text/plain", "application/x-subrip", "text/vtt", "application/json"]


def test_fields_are_options_of_transcribe(service: SpeechService, model: jt.Model) -> None:
    content = recording(3, 9_000)
    pairs: list[tuple[Ask, dict[str, Any]]] = [
        (post(content=content), {"task": "transcribe"}),
        (
            post(content=content, model="tiny", language="en", temperature="0.4"),
            {"language": "en", "temperatures": 0.4},
        ),
        (post(content=content, model="whisper-1", language="en", prompt="ABC"), {"language": "en", "prompt": "ABC"}),
        (post(TRANSLATIONS, content), {"task": "translate"}),
    ]
    answers = asked(service, *(ask for ask, _ in pairs))
    expected = [jt.transcribe(model, io.BytesIO(content), **options).text for _, options in pairs]
    assert [answer.json()["text"] for answer in answers] == expected
    assert len(set(expected)) > 1


def test_words_have_times(service: SpeechService, model: jt.Model) -> None:
    both, words = asked(
        service,
        post(language="de", response_format="verbose_json", timestamp_granularities__=["word", "segment"]),
        post(language="de", response_format="verbose_json", timestamp_granularities__="word"),
    )
    found = jt.transcribe(model, io.BytesIO(recording()), language="de", words=True)
    expected = [(word.text.strip(), word.start, word.end) for one in found.segments for word in one.words or []]
    assert expected
    for answer in (both, words):
        assert [(one["word"], one["start"], one["end"]) for one in answer.json()["words"]] == expected
    assert ("segments" in both.json(), "segments" in words.json()) == (True, False)


# --- refusals


def without_file(client: httpx.AsyncClient) -> Awaitable[httpx.Response]:
    return client.post(TRANSCRIPTIONS, files={"language": (None, "de")})


def as_json(client: httpx.AsyncClient) -> Awaitable[httpx.Response]:
    return client.post(TRANSCRIPTIONS, json={"language": "de"})


def from_another_site(client: httpx.AsyncClient) -> Awaitable[httpx.Response]:
    headers = {"sec-fetch-site": "cross-site"}
    return client.post(TRANSCRIPTIONS, files={"file": recording()}, headers=headers)


NOISE = np.random.default_rng(0).integers(0, 256, 900, dtype=np.uint8).tobytes()


@pytest.mark.parametrize(
    ("ask", "status", "message"),
    [
        (without_file, 422, "expected the field 'file', a recording; received none"),
        (as_json, 415, "expected the content type multipart/form-data; received application/json"),
        (from_another_site, 403, "of this server's own page"),
        (post(content=b""), 400, "file: expected a recording; received an empty file"),
        (post(content=NOISE), 400, "file: expected a recording in a format that libsndfile reads"),
        (post(content=recording()[:20_000]), 400, "so the file was cut off"),
        (post(content=recording(samples=0)), 400, "file: expected a recording; received one without samples"),
        (post(content=recording(samples=32_001)), 413, "at most 2 seconds; received 2.0 or more (--max-audio-seconds)"),
        (post(content=bytes(100_001)), 413, "bytes in a body, as far as it was read, (--max-audio-bytes)"),
        (post(language="xx"), 422, "language: expected one that the model knows (de, en); received 'xx'"),
        (post(langage="de"), 422, "received 'langage'"),
        (post(language=["de", "en"]), 422, "language: expected one value; received 2"),
        (post(model="gpt-4"), 422, "model: expected 'tiny', which is served, or 'whisper-1'; received 'gpt-4'"),
        (post(response_format="xml"), 422, "response_format: expected json or text or srt or verbose_json or vtt"),
        (post(temperature="warm"), 422, "temperature: expected a number; received 'warm'"),
        (post(temperature="nan"), 422, "temperature: expected a number from 0 to 1; received nan"),
        (post(temperature="1.5"), 422, "temperature: expected a number from 0 to 1; received 1.5"),
        (post(prompt="A" * 31), 422, "prompt: expected at most 30 characters (--max-characters); received 31"),
        (post(timestamp_granularities__="word"), 422, "expected response_format 'verbose_json' with it"),
        (
            post(response_format="verbose_json", timestamp_granularities__="letter"),
            422,
            "timestamp_granularities: expected word or segment; received 'letter'",
        ),
        (post(TRANSLATIONS, language="de"), 422, "expected one of file, model, prompt, response_format, temperature"),
    ],
)  # fmt: skip
def test_wrong_requests_are_answered_in_one_line(service: SpeechService, ask: Ask, status: int, message: str) -> None:
    (answer,) = asked(service, ask)
    assert answer.status_code == status, answer.text
    assert message in error_of(answer)


def test_recordings_at_once_are_bounded(service: SpeechService) -> None:
    answers = asked(service, *(post(content=recording(samples=4_000), language="de") for _ in range(9)))
    statuses = sorted(answer.status_code for answer in answers)
    assert statuses == [200] * 4 + [503] * 5
    refused = next(answer for answer in answers if answer.status_code == 503)
    assert "at most 4 recordings at once (--max-recordings)" in error_of(refused)
    assert refused.headers["retry-after"] == "5"
    assert service._recordings == 0


def test_an_answer_that_takes_too_long_is_refused(model: jt.Model) -> None:
    service = SpeechService(SpeechEngine(prepare(model), Limits(transcribe_seconds=0.01)), max_wait_ms=100)
    service.start()
    (answer,) = asked(service, post())
    assert answer.status_code == 504
    assert "within 0.01 seconds (--transcribe-seconds)" in error_of(answer)
    assert service._recordings == 0
    assert service.stop(30)


def test_a_model_of_one_language_does_not_translate(model: jt.Model) -> None:
    speech = jt.config.speech.SpeechTokens(no_timestamps_id=SPEECH.no_timestamps_id)
    generation = jt.GenerationConfig(decoder_start_id=41, eos_id=40, speech=speech)
    service = SpeechService(SpeechEngine(prepare(model).with_generation(generation), LIMITS))
    service.start()
    translated, words = asked(
        service,
        post(TRANSLATIONS),
        post(response_format="verbose_json", timestamp_granularities__="word"),
    )
    assert (translated.status_code, words.status_code) == (422, 422)
    assert "the model knows one language alone" in error_of(translated)
    assert error_of(words).startswith("timestamp_granularities: expected a model whose generation.json names")
    assert service.stop(30)


# --- the form


def form(*parts: bytes, end: bytes = b"--x--\r\n") -> bytes:
    return b"".join(b"--x\r\n" + part + b"\r\n" for part in parts) + end


def part(name: str, content: bytes, more: str = "") -> bytes:
    return f'Content-Disposition: form-data; name="{name}"{more}\r\n\r\n'.encode() + content


@pytest.mark.parametrize("size", [1, 2, 7, 10_000])
def test_a_form_is_read_in_pieces_of_any_size(size: int) -> None:
    """Its file has what looks like delimiters."""
    content = b"\r\n--\r\n--y\r\n-" + os.urandom(300) + b"\r\n--"
    fields = [part("a", b"\xc3\xa4"), part("file", content, '; filename="s.wav"'), part("b[]", b"1"), part("b[]", b"")]
    body = b"preamble\r\n" + form(*fields) + b"epilogue"
    reader = FormReader('multipart/form-data; boundary="x"', "file")
    for first in range(0, len(body), size):
        reader.feed(body[first : first + size])
    assert reader.end() == {"a": ["ä"], "b[]": ["1", ""]}
    assert reader.file is not None
    reader.file.seek(0)
    assert reader.file.read() == content
    reader.close()
    assert reader.file.closed


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"", 400, "received one that was cut off"),
        (form(part("a", b"1"), end=b""), 400, "received one that was cut off"),
        (form(b"Content-Type: text/plain\r\n\r\n1"), 400, "Content-Disposition: form-data"),
        (form(part("a", b"\xff")), 400, "expected fields in UTF-8; received byte 0xff"),
        (form(part("file", b"1"), part("file", b"2")), 422, "file: expected one file; received two"),
        (form(part("a", b"1", '; filename="a"')), 422, "a: expected a text; received a file"),
        (form(part("a", bytes(MOST_FIELD_BYTES + 1))), 413, "65,536 bytes in a form's fields"),
        (form(b"X: " + b"a" * MOST_HEADER_BYTES + b"\r\n\r\n1"), 400, "4,096 bytes in the header"),
        (b"--xyz", 400, "expected a line's end after a form's boundary"),
    ],
)
def test_other_bodies_are_no_form(body: bytes, status: int, message: str) -> None:
    reader = FormReader("multipart/form-data; boundary=x", "file")

    def read() -> None:
        reader.feed(body)
        reader.end()

    with pytest.raises(Refusal) as caught:
        read()
    reader.close()
    assert (caught.value.status, message in str(caught.value)) == (status, True), str(caught.value)


@pytest.mark.parametrize("kind", ["multipart/form-data", "multipart/form-data; boundary=" + "x" * 71])
def test_a_form_needs_a_boundary(kind: str) -> None:
    with pytest.raises(Refusal, match="expected a content type with a boundary"):
        FormReader(kind, "file")


# --- the rest


def test_programs_are_compiled_before_the_first_request(model: jt.Model) -> None:
    engine = SpeechEngine(prepare(model), LIMITS, rows=2)
    assert [warm_up.name for warm_up in engine.warm_ups(8)] == [
        "the language of a window", "the text of a window", "the language of 2 windows", "the text of 2 windows",
    ]  # fmt: skip
    assert list(engine.warm_ups(0)) == []
    warm = next(iter(list(engine.warm_ups(8))[1:]))
    warm.compile()


def test_the_interface_is_described(service: SpeechService) -> None:
    async def ask(client: httpx.AsyncClient) -> Any:
        return (await client.get("/openapi.json")).json(), (await client.get("/")).json()

    ((described, index),) = asked(service, ask)
    assert {TRANSCRIPTIONS, TRANSLATIONS} <= described["paths"].keys()
    assert "/translate" not in described["paths"]
    assert index["routes"][:2] == [TRANSCRIPTIONS, TRANSLATIONS]
    (content,) = described["paths"][TRANSCRIPTIONS]["post"]["requestBody"]["content"].items()
    assert content[0] == "multipart/form-data"
    assert list(content[1]["schema"]["properties"]) == [
        "file", "model", "prompt", "response_format", "temperature", "language", "timestamp_granularities[]",
    ]  # fmt: skip
    assert FALLBACK[0] == 0.0


def test_options_of_texts_are_refused() -> None:
    with pytest.raises(ValueError, match="--source-tag, --top-k: expected none of a model of speech"):
        _check_speech(ServeOptions(model="m", source_tag="<2de>", top_k=3))
