"""Transcripts: windows, segments, fallbacks, formats and the command."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import whisper_models
from whisper_models import (
    DE,
    EN,
    END,
    FIRST,
    HALF_SECOND,
    NO_TIMES,
    START,
    TRANSCRIBE,
    TRANSLATE,
    small_whisper,
)

import jax_transformer as jt
from jax_transformer.cli import main
from jax_transformer.config.decoding import DecodingConfig
from jax_transformer.config.speech import SpeechTokens
from jax_transformer.config.validation import ConfigError
from jax_transformer.decoding.prepared import prepare
from jax_transformer.decoding.timestamps import TimestampRules
from jax_transformer.speech import Segment, Transcript, Word, transcription
from jax_transformer.speech.audio import Recording
from jax_transformer.speech.segments import divide
from jax_transformer.speech.transcription import Decoded, Options, Thresholds, transcribe, transcript_steps
from jax_transformer.speech.windows import Decoding, Judging, Tokens, Window, compute

pytestmark = pytest.mark.usefixtures("quick_compilation")

SPEECH = dataclasses.replace(whisper_models.SPEECH, alignment_heads=None)


@pytest.fixture(scope="module")
def model() -> jt.Model:
    """Windows of half a second."""
    made = small_whisper()
    return dataclasses.replace(made, generation=dataclasses.replace(made.generation, speech=SPEECH))


@pytest.fixture(scope="module")
def samples() -> np.ndarray:
    return 0.1 * np.random.default_rng(0).standard_normal(3 * HALF_SECOND).astype(np.float32)


@pytest.mark.parametrize(
    ("tokens", "spans", "advance"),
    [
        ([50, 1, 2, 55, 55, 3, 60], [(0, 10, [50, 1, 2, 55]), (10, 20, [55, 3, 60])], 40),  # ends in one time
        ([50, 1, 55, 56, 3], [(0, 10, [50, 1, 55, 56])], 10),  # what follows the pair may be cut off
        ([50, 1, 55, 55, 2, 58, 58], [(0, 10, [50, 1, 55]), (10, 16, [55, 2, 58, 58])], 16),
        ([50, 1, 2], [(0, 40, [50, 1, 2])], 40),
        ([50, 1, 57], [(0, 14, [50, 1, 57])], 40),
        ([], [(0, 40, [])], 40),
    ],
)
def test_a_window_is_divided_at_pairs_of_times(tokens: list[int], spans: list[Any], advance: int) -> None:
    divided = divide(tokens, first_time=50, frames=40, stride=2)
    assert ([tuple(span) for span in divided.spans], divided.advance) == (spans, advance)


def test_a_long_recording_is_read_to_its_end(model: jt.Model, samples: np.ndarray) -> None:
    found = transcribe(model, samples, language="de", temperatures=0.0)
    assert (found.language, found.duration) == ("de", 1.5)
    starts = [segment.start for segment in found.segments]
    assert starts == sorted(starts)
    assert 1.0 < found.segments[-1].end <= 1.5 + 0.5  # a time of the last window may be beyond the recording's end
    assert found.text == "".join(chr(ord("A") + token) for token in found.tokens if token < END)
    assert all(segment.tokens[0] >= FIRST for segment in found.segments)


def test_a_short_recording_is_padded_to_a_window(model: jt.Model, samples: np.ndarray) -> None:
    short, padded = samples[:3_000], np.pad(samples[:3_000], (0, 5_000))
    one, other = (transcribe(model, audio, temperatures=0.0) for audio in (short, padded))
    assert (one.segments, one.duration) == (other.segments, 3_000 / 16_000)


def decoded_at(monkeypatch: pytest.MonkeyPatch, qualities: dict[float, Any], no_speech: float) -> list[float]:
    """Replaces decoding; returns the list of temperatures at which it is called."""
    called: list[float] = []

    def at(self: Any, part: np.ndarray, temperature: float) -> Any:
        called.append(temperature)
        yield from ()
        return Decoded([FIRST, 1, FIRST + 9], *qualities[temperature], temperature, True)

    def judged(self: Any, part: np.ndarray) -> Any:
        yield from ()
        return no_speech

    monkeypatch.setattr(transcription.WindowDecoder, "_at", at)
    monkeypatch.setattr(transcription.WindowDecoder, "_no_speech", judged)
    return called


@pytest.mark.parametrize(
    ("qualities", "no_speech", "called", "is_said"),
    [
        ({0.0: (-0.5, 1.5)}, 0.1, [0.0], True),
        ({0.0: (-0.5, 1.5)}, 0.9, [0.0], True),  # a sure text is no silence
        ({0.0: (-1.5, 1.5), 0.2: (-0.9, 1.5)}, 0.1, [0.0, 0.2], True),
        ({0.0: (-0.5, 2.5), 0.2: (-0.5, 2.6), 0.4: (-0.5, 2.7)}, 0.1, [0.0, 0.2, 0.4], True),
        ({0.0: (-1.5, 1.5)}, 0.7, [0.0], False),
    ],
)
def test_a_window_is_decoded_again_where_its_text_is_doubtful(
    model: jt.Model, samples: np.ndarray, monkeypatch: pytest.MonkeyPatch, qualities: Any, no_speech: float,
    called: list[float], is_said: bool,
) -> None:  # fmt: skip
    temperatures = decoded_at(monkeypatch, qualities, no_speech)
    found = transcribe(model, samples[:HALF_SECOND], language="de", temperatures=(0.0, 0.2, 0.4))
    assert temperatures == called
    assert [segment.temperature for segment in found.segments] == ([called[-1]] if is_said else [])


def test_thresholds_of_none_reject_nothing(
    model: jt.Model, samples: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = decoded_at(monkeypatch, {0.0: (-9.0, 9.0)}, 1.0)
    none = Thresholds(compression_ratio=None, log_prob=None, no_speech=None)
    assert transcribe(model, samples[:HALF_SECOND], language="de", thresholds=none).segments
    assert called == [0.0]


def test_draws_depend_on_the_seed(model: jt.Model, samples: np.ndarray) -> None:
    kept = Thresholds(compression_ratio=None, log_prob=None)
    one, same, other = (
        transcribe(model, samples, language="de", temperatures=1.0, thresholds=kept, seed=seed) for seed in (1, 1, 2)
    )
    assert one == same
    assert one.tokens != other.tokens


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"language": "fr"}, r"expected one that the model knows \(de, en\); received 'fr'"),
        ({"task": "sing"}, "task must be 'transcribe' or 'translate'; received 'sing'"),
        ({"temperatures": ()}, r"expected at least one number from 0 on; received \[\]"),
        ({"temperatures": (-0.1,)}, r"received \[-0.1\]"),
    ],
)
def test_wrong_options_are_refused(model: jt.Model, samples: np.ndarray, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        transcribe(model, samples, **{"language": "de"} | options)


def test_a_prompt_is_text_before_the_recording(model: jt.Model, samples: np.ndarray) -> None:
    """Of the first window, and where it is followed by text."""
    windows: list[Window] = []

    def run(prompt: str, *, conditions: bool) -> None:
        windows.clear()
        options = Options(
            language="de", prompt=prompt, temperatures=0.0, condition_on_previous_text=conditions,
            thresholds=Thresholds(log_prob=None),
        )  # fmt: skip
        steps, answer = transcript_steps(prepare(model), Recording(samples), options), None
        with contextlib.suppress(StopIteration):
            while True:
                windows.append(steps.send(answer))
                answer = Tokens([FIRST, 1, FIRST + 25], -0.1)

    own = (START, DE, TRANSCRIBE)
    run("CAB", conditions=True)
    assert [window.ids for window in windows[:2]] == [(2, 0, 1, *own), (2, 0, 1, FIRST, 1, FIRST + 25, *own)]
    run(" CAB ", conditions=False)
    assert [window.ids for window in windows[:2]] == [(2, 0, 1, *own), own[1:]]
    assert [window.kind.continues for window in windows[:2]] == [True, False]  # type: ignore[union-attr]
    run("", conditions=True)
    assert windows[0].ids == own[1:]


def test_a_prompt_needs_a_tokenizer_and_an_id(model: jt.Model, samples: np.ndarray) -> None:
    with pytest.raises(ValueError, match="prompt: expected a model with tokenizer files; received one without"):
        transcribe(dataclasses.replace(model, tokenizer_files=None), samples, prompt="AB")
    generation = dataclasses.replace(model.generation, speech=dataclasses.replace(SPEECH, previous_id=None))
    with pytest.raises(ValueError, match="prompt: expected a model with an id that begins earlier text"):
        transcribe(dataclasses.replace(model, generation=generation), samples, prompt="AB")


def test_windows_computed_together_are_those_computed_alone(model: jt.Model) -> None:
    """Of different prefixes and rooms; draws, too."""
    vectors = np.random.default_rng(5).standard_normal((3, 50, 4)).astype(np.float32)
    prefixes = [(DE, TRANSCRIBE), (EN, TRANSCRIBE), (1, 2, START, DE, TRANSLATE)]
    rules = TimestampRules(FIRST, NO_TIMES, END, 3)
    sampled = DecodingConfig(sampling=True, temperature=1.0, top_k=0, seed=3, max_new_tokens=24)
    prepared = prepare(model)
    for options in (DecodingConfig(max_new_tokens=24), sampled):
        kind = Decoding(options, rules, continues=True)
        windows = [Window(kind, *one) for one in zip(vectors, prefixes, (9, 4, 12), strict=True)]
        together = compute(prepared, kind, windows)
        for window, answer in zip(windows, together, strict=True):
            (alone,) = compute(prepared, kind, [window])
            assert answer.ids == alone.ids
            assert len(answer.ids) <= window.most
            assert answer.log_prob == pytest.approx(alone.log_prob, abs=1e-5)
    windows = [Window(Judging(), one) for one in vectors]
    for window, logits in zip(windows, compute(prepared, Judging(), windows), strict=True):
        np.testing.assert_allclose(logits, compute(prepared, Judging(), [window])[0], atol=1e-5)


def test_the_recording_is_read_only_if_the_options_are_right(model: jt.Model, tmp_path: Path) -> None:
    (tmp_path / "none.wav").write_bytes(b"no recording")
    with pytest.raises(ValueError, match="language: expected one that the model knows"):
        transcribe(model, tmp_path / "none.wav", language="xx")


def test_other_models_are_refused(model: jt.Model, samples: np.ndarray) -> None:
    without = dataclasses.replace(model, generation=dataclasses.replace(model.generation, speech=None))
    with pytest.raises(ValueError, match="received one without ids of speech in its generation"):
        transcribe(without, samples)
    one_language = dataclasses.replace(SPEECH, languages=None, transcribe_id=None, translate_id=None)
    english = dataclasses.replace(model, generation=dataclasses.replace(model.generation, speech=one_language))
    assert transcribe(english, samples[:HALF_SECOND], temperatures=0.0).language is None
    with pytest.raises(ValueError, match="the model knows one language alone; received 'translate'"):
        transcribe(english, samples, task="translate")


def test_ids_of_speech_are_checked() -> None:
    with pytest.raises(ConfigError, match="speech: unknown field words"):
        jt.GenerationConfig(speech={"no_timestamps_id": 3, "words": 1})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="languages must be an object with an integer values or null"):
        SpeechTokens(no_timestamps_id=3, languages={"en": "x"})  # type: ignore[dict-item]


# --- formats


SAID = Transcript(
    [
        Segment(0.0, 1.5, " Hello,\n\nworld --> here.", [50, 1, 60], -0.1, 1.0, 0.0),
        Segment(3599.9995, 3725.25, " Ä.", [60, 2, 70], -0.2, 1.1, 0.0),
    ],
    "en",
    4000.0,
)


def test_subtitles_have_times_and_one_line_each() -> None:
    assert SAID.srt() == (
        "1\n00:00:00,000 --> 00:00:01,500\nHello, world -> here.\n\n2\n01:00:00,000 --> 01:02:05,250\nÄ.\n"
    )
    assert SAID.vtt() == (
        "WEBVTT\n\n00:00:00.000 --> 00:00:01.500\nHello, world -> here.\n\n01:00:00.000 --> 01:02:05.250\nÄ.\n"
    )
    assert SAID.as_json()["segments"][1]["end"] == 3725.25


def test_words_are_marked_by_their_times() -> None:
    words = [Word(" Hello,", 0.2, 0.5), Word(" world", 0.5, 0.9), Word("-wide.", 0.9, 1.4)]
    segment = dataclasses.replace(SAID.segments[0], text=" Hello, world-wide.", words=words)
    marked = Transcript([segment], "en", 2.0)
    assert "\nHello,<00:00:00.500> world<00:00:00.900>-wide.\n" in marked.vtt()
    assert "words" not in SAID.as_json()["segments"][0]
    assert marked.as_json()["segments"][0]["words"][1] == {"text": " world", "start": 0.5, "end": 0.9}


# --- the command


@pytest.fixture
def saved(model: jt.Model, tmp_path: Path) -> Path:
    jt.save_model(model, tmp_path / "model")
    return tmp_path / "model"


def test_the_command_writes_transcripts(saved: Path, samples: np.ndarray, tmp_path: Path, capsys: Any) -> None:
    soundfile = pytest.importorskip("soundfile")
    for name in ("one", "two"):
        soundfile.write(tmp_path / f"{name}.wav", samples, 16_000, subtype="FLOAT")
    options = ["--language", "de", "--temperatures", "0"]
    files = [str(tmp_path / f"{name}.wav") for name in ("one", "two")]
    assert main(["transcribe", str(saved), *files, *options, "--format", "json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    expected = transcribe(jt.load_model(saved), samples, language="de", temperatures=0.0).as_json()
    assert lines == [expected, expected]
    assert main(["transcribe", str(saved), files[0], *options, "--format", "json", "--dtype", "bfloat16"]) == 0
    rounded = jt.load_model(saved).astype("bfloat16")
    expected = transcribe(rounded, samples, language="de", temperatures=0.0).as_json()
    assert json.loads(capsys.readouterr().out) == expected
    (tmp_path / "texts").mkdir()
    options += ["--format", "vtt", "--output", str(tmp_path / "texts")]
    assert main(["transcribe", str(saved), *files, *options]) == 0
    assert sorted(file.name for file in (tmp_path / "texts").iterdir()) == ["one.vtt", "two.vtt"]
    assert (tmp_path / "texts" / "one.vtt").read_text().startswith("WEBVTT\n\n00:00:")


def test_the_command_gives_the_times_of_words(
    model: jt.Model, samples: np.ndarray, tmp_path: Path, capsys: Any
) -> None:
    soundfile = pytest.importorskip("soundfile")
    soundfile.write(tmp_path / "one.wav", samples, 16_000, subtype="FLOAT")
    speech = dataclasses.replace(SPEECH, alignment_heads=((0, 1),))
    jt.save_model(
        dataclasses.replace(model, generation=dataclasses.replace(model.generation, speech=speech)), tmp_path / "model"
    )
    options = [str(tmp_path / "one.wav"), "--temperatures", "0", "--format", "json", "--words"]
    assert main(["transcribe", str(tmp_path / "model"), *options]) == 0
    segments = json.loads(capsys.readouterr().out)["segments"]
    assert any(segment["words"] for segment in segments)
    for segment in segments:
        assert "".join(word["text"] for word in segment["words"]) == segment["text"]
        assert len(segment["token_times"]) == len(segment["tokens"])
        assert all(word["start"] <= word["end"] for word in segment["words"])


def test_the_command_goes_on_after_a_file_that_cannot_be_read(
    saved: Path, samples: np.ndarray, tmp_path: Path, capsys: Any
) -> None:
    soundfile = pytest.importorskip("soundfile")
    soundfile.write(tmp_path / "fine.wav", samples[:HALF_SECOND], 16_000)
    files = [str(tmp_path / "missing.wav"), str(tmp_path / "fine.wav")]
    assert main(["transcribe", str(saved), *files, "--temperatures", "0"]) == 2
    printed = capsys.readouterr()
    assert printed.err == f"error: {tmp_path}/missing.wav: no such file\n"
    assert printed.out.count("\n") == 1


def test_the_command_writes_nothing_of_what_it_cannot_read(
    saved: Path, samples: np.ndarray, tmp_path: Path, capsys: Any
) -> None:
    """Nor of anything with a wrong option."""
    soundfile = pytest.importorskip("soundfile")
    soundfile.write(tmp_path / "cut.wav", samples, 16_000)
    soundfile.write(tmp_path / "none.wav", samples[:0], 16_000)
    (tmp_path / "cut.wav").write_bytes((tmp_path / "cut.wav").read_bytes()[:9_000])
    (tmp_path / "text.wav").write_text("no recording")
    (tmp_path / "texts").mkdir()
    files = [str(tmp_path / f"{name}.wav") for name in ("cut", "none", "text")]
    options = ["--output", str(tmp_path / "texts"), "--temperatures", "0"]
    assert main(["transcribe", str(saved), *files, *options]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(": ")[1] for line in lines] == files
    assert "so the file was cut off" in lines[0]
    soundfile.write(tmp_path / "cut.wav", samples, 16_000)
    assert main(["transcribe", str(saved), files[0], *options, "--language", "xx"]) == 2
    assert "expected one that the model knows (de, en); received 'xx'" in capsys.readouterr().err
    assert list((tmp_path / "texts").iterdir()) == []


def test_silence_is_a_transcript(saved: Path, tmp_path: Path, capsys: Any) -> None:
    soundfile = pytest.importorskip("soundfile")
    soundfile.write(tmp_path / "silence.wav", np.zeros(HALF_SECOND), 16_000)
    assert main(["transcribe", str(saved), str(tmp_path / "silence.wav"), "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["duration"] == 0.5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a.wav", "b/a.flac", "--output", "."], "expected recordings of different names; received several for a.txt"),
        (["a.wav", "--output", "missing"], "--output: expected an existing directory; received missing"),
    ],
)
def test_the_command_refuses_wrong_outputs(saved: Path, arguments: list[str], message: str, capsys: Any) -> None:
    pytest.importorskip("soundfile")
    assert main(["transcribe", str(saved), *arguments]) == 2
    assert message in capsys.readouterr().err
