"""The page of a server that transcribes, in a real browser: a recording, its text with times, and mistakes."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from served_pages import Open, on_a_thread
from whisper_models import HALF_SECOND, small_whisper

import jax_transformer as jt
from jax_transformer.decoding.prepared import PreparedModel, prepare
from jax_transformer.serving.limits import Limits
from jax_transformer.serving.speech_engine import SpeechEngine
from jax_transformer.serving.speech_service import SpeechService

soundfile = pytest.importorskip("soundfile")
pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.fixture(scope="module")
def whisper() -> PreparedModel:
    return prepare(small_whisper())


@pytest.fixture(scope="module")
def site(whisper: PreparedModel) -> Iterator[str]:
    limits = Limits(max_audio_bytes=100_000)
    with on_a_thread(SpeechService(SpeechEngine(whisper, limits), max_wait_ms=0, name="a <b>model</b>")) as address:
        yield address


@pytest.fixture
def speech(tmp_path: Path) -> Path:
    noise = 0.1 * np.random.default_rng(0).standard_normal(2 * HALF_SECOND)
    soundfile.write(tmp_path / "<i>talk</i>.wav".replace("/", ""), noise, 16_000)
    return next(tmp_path.glob("*.wav"))


def transcribe(page: Any) -> None:
    """Presses the button, and waits for what the page says."""
    page.click("text=Transcribe >> nth=-1")
    page.wait_for_selector("div[aria-busy=false]", state="attached")


def test_a_recording_is_shown_with_its_times(opened: Open, whisper: PreparedModel, speech: Path) -> None:
    page = opened()
    page.set_input_files("#file", speech)
    assert page.inner_text(".drop").startswith(speech.name)
    page.select_option("select >> nth=0", "de")
    transcribe(page)
    expected = jt.transcribe(whisper, speech, language="de")
    said = [segment.text.strip() or "(no text)" for segment in expected.segments]
    assert page.locator(".segments .said").all_text_contents() == said
    assert page.locator(".segments .time").first.inner_text().startswith("0:00.")
    assert page.locator("textarea").input_value() == expected.text
    assert page.inner_text(".status").startswith("0:01.0 of audio in ")
    assert page.inner_text("#transcript .lead") == "Language: german."
    page.select_option("select >> nth=1", "translations")
    transcribe(page)
    translated = jt.transcribe(whisper, speech, task="translate")
    assert page.locator("textarea").input_value() == translated.text


def test_mistakes_are_shown_in_the_words_of_the_server(opened: Open, tmp_path: Path) -> None:
    page = opened()
    transcribe(page)
    assert page.inner_text(".problem") == "Choose a recording to transcribe."
    (tmp_path / "none.wav").write_bytes(b"no recording")
    page.set_input_files("#file", tmp_path / "none.wav")
    transcribe(page)
    page.wait_for_selector(".problem:not(:empty)")
    assert page.inner_text(".problem").startswith("file: expected a recording in a format that libsndfile reads")
    (tmp_path / "large.wav").write_bytes(bytes(100_001))
    page.set_input_files("#file", tmp_path / "large.wav")
    transcribe(page)
    assert "the server takes 100,000 bytes, and this one has 100,001" in page.inner_text(".problem")


def test_the_page_of_the_interface_sends_a_recording(opened: Open, whisper: PreparedModel, speech: Path) -> None:
    page = opened("docs")
    form = page.locator("form").first
    form.locator("input[type=file]").set_input_files(speech)
    command = form.locator(".command").inner_text()
    assert command.startswith("curl -F 'response_format=text' -F 'file=@")
    form.locator("button.first").click()
    page.wait_for_selector(".output:not([hidden])")
    expected = jt.transcribe(whisper, io.BytesIO(speech.read_bytes()), task="transcribe")
    assert page.locator(".output").first.inner_text().strip() == expected.text
