"""Recordings: files, channels, rates, and what is refused; spectra."""

from __future__ import annotations

import tracemalloc
from math import gcd
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.signal import resample_poly

from jax_transformer.runtime.extras import MissingPackage
from jax_transformer.speech import AudioError, log_mel, mel_filters, read_audio
from jax_transformer.speech import audio as audio_module
from jax_transformer.speech import spectra as spectra_module
from jax_transformer.speech.audio import Recording, TooLong
from jax_transformer.speech.spectra import StreamedSpectrum

SECOND = np.arange(16_000) / 16_000


def tone(hertz: float, rate: int = 16_000, seconds: float = 1.0) -> np.ndarray:
    return (0.5 * np.sin(2 * np.pi * hertz * np.arange(int(rate * seconds)) / rate)).astype(np.float32)


@pytest.mark.parametrize("rate", [8_000, 11_025, 22_050, 44_100, 48_000])
def test_another_rate_keeps_the_tone(rate: int) -> None:
    samples = read_audio(tone(440, rate), rate)
    assert (samples.dtype, len(samples)) == (np.float32, 16_000)
    np.testing.assert_allclose(samples[500:-500], tone(440)[500:-500], atol=2e-3)


def test_what_the_rate_cannot_hold_is_removed() -> None:
    """A tone of 10 kHz would fold to 6 kHz."""
    samples = read_audio(tone(10_000, 44_100), 44_100)
    assert np.abs(samples[500:-500]).max() < 1e-3


def test_channels_are_averaged() -> None:
    left, right = tone(300), tone(500)
    np.testing.assert_allclose(read_audio(np.stack([left, right], axis=1)), (left + right) / 2, atol=1e-7)


@pytest.mark.parametrize("ending", ["wav", "flac"])
def test_a_file_says_its_rate_and_channels(tmp_path: Path, ending: str) -> None:
    soundfile = pytest.importorskip("soundfile")
    path = tmp_path / f"tone.{ending}"
    soundfile.write(path, np.stack([tone(440, 8_000)] * 2, axis=1), 8_000)
    np.testing.assert_allclose(read_audio(path)[500:-500], tone(440)[500:-500], atol=2e-3)
    with pytest.raises(AudioError, match="expected no rate, since a file says its own; received 8000"):
        read_audio(path, 8_000)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file"),
        (b"", "expected a recording; received an empty file"),
        (b"no recording", "expected a recording in a format that libsndfile reads"),
        (b"RIFF\x24\x00\x00\x00WAVEfmt \x10\x00\x00\x00", "expected a recording in a format that libsndfile reads"),
    ],
)
def test_broken_files_are_refused_in_one_line(tmp_path: Path, content: bytes | None, message: str) -> None:
    pytest.importorskip("soundfile")
    path = tmp_path / "speech.wav"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(AudioError, match=message) as error:
        read_audio(path)
    assert str(error.value).startswith(f"{path}: ")
    assert "\n" not in str(error.value)


def test_a_file_of_no_samples_is_refused(tmp_path: Path) -> None:
    soundfile = pytest.importorskip("soundfile")
    soundfile.write(tmp_path / "empty.wav", np.zeros((0, 1), np.float32), 16_000)
    with pytest.raises(AudioError, match="expected a recording; received one without samples"):
        read_audio(tmp_path / "empty.wav")
    with pytest.raises(AudioError, match="expected a file; received a directory"):
        read_audio(tmp_path)


@pytest.mark.parametrize("ending", ["wav", "aiff", "flac", "ogg"])
def test_files_that_were_cut_off_are_refused(tmp_path: Path, ending: str) -> None:
    soundfile = pytest.importorskip("soundfile")
    soundfile.write(tmp_path / f"whole.{ending}", tone(440), 16_000)
    whole, cut = (tmp_path / f"whole.{ending}").read_bytes(), tmp_path / f"cut.{ending}"
    cut.write_bytes(whole[: len(whole) * 9 // 10])
    with pytest.raises(AudioError) as error:
        read_audio(cut)
    assert str(error.value).startswith(f"{cut}: expected")
    assert "\n" not in str(error.value)


def test_a_header_without_the_size_of_a_stream_is_no_cut(tmp_path: Path) -> None:
    """Programs that write to a pipe state the largest number."""
    soundfile = pytest.importorskip("soundfile")
    soundfile.write(tmp_path / "a.wav", tone(440), 16_000)
    content = bytearray((tmp_path / "a.wav").read_bytes())
    content[4:8] = content[40:44] = b"\xff" * 4
    (tmp_path / "a.wav").write_bytes(content)
    assert len(read_audio(tmp_path / "a.wav")) == 16_000


def test_another_wrong_number_in_a_header_is_no_cut(tmp_path: Path) -> None:
    """Such as the bytes of a second, which nothing reads."""
    soundfile = pytest.importorskip("soundfile")
    soundfile.write(tmp_path / "a.wav", tone(440), 16_000)
    content = bytearray((tmp_path / "a.wav").read_bytes())
    content[28:32] = (90_000).to_bytes(4, "little")
    (tmp_path / "a.wav").write_bytes(content)
    assert len(read_audio(tmp_path / "a.wav")) == 16_000


def test_an_open_file_is_read_from_its_start(tmp_path: Path) -> None:
    soundfile = pytest.importorskip("soundfile")
    soundfile.write(tmp_path / "a.flac", tone(440), 16_000)
    with open(tmp_path / "a.flac", "rb") as file:
        file.read(9)
        np.testing.assert_array_equal(read_audio(file), read_audio(tmp_path / "a.flac"))


@pytest.mark.parametrize("rate", [8_000, 16_000, 44_100, 48_000, 44_101, 191_999])
@pytest.mark.parametrize("samples", [1, 700, 30_011])
def test_blocks_are_the_recording_resampled_at_once(monkeypatch: pytest.MonkeyPatch, rate: int, samples: int) -> None:
    monkeypatch.setattr(audio_module, "BLOCK", 1_000)
    x = np.random.default_rng(0).standard_normal(samples).astype(np.float32)
    common = gcd(rate, 16_000)
    blocks = list(Recording(x, rate).blocks())
    np.testing.assert_array_equal(np.concatenate(blocks), resample_poly(x, 16_000 // common, rate // common))


def test_a_recording_is_read_up_to_the_most_seconds(tmp_path: Path) -> None:
    soundfile = pytest.importorskip("soundfile")
    soundfile.write(tmp_path / "a.wav", tone(440), 16_000)
    assert len(list(Recording(tmp_path / "a.wav", most_seconds=1).blocks())) == 1
    for source in (tmp_path / "a.wav", tone(440)):
        with pytest.raises(TooLong, match=r"expected at most 0.5 seconds; received 1\.0 or more"):
            list(Recording(source, most_seconds=0.5).blocks())


def test_without_soundfile_the_message_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    (tmp_path / "speech.wav").write_bytes(b"RIFF")
    with pytest.raises(MissingPackage, match=r"pip install 'jax-transformer\[audio\]'"):
        read_audio(tmp_path / "speech.wav")


@pytest.mark.parametrize(
    ("samples", "rate", "message"),
    [
        (np.zeros(0, np.float32), None, "received one without samples"),
        (np.zeros((9, 2, 2), np.float32), None, r"received float32 \[9, 2, 2\]"),
        (np.zeros(900, np.int16), None, r"floating-point samples .* received int16 \[900\]"),
        (np.array([0.0, np.nan]), None, "expected finite samples"),
        (np.zeros(900, np.float32), 0, "expected a rate from 100 to 768,000 Hz; received 0"),
    ],
)
def test_wrong_arrays_are_refused(samples: np.ndarray, rate: int | None, message: str) -> None:
    with pytest.raises(AudioError, match=message):
        read_audio(samples, rate)


# --- spectra


@pytest.mark.parametrize("bands", [80, 128])
def test_each_band_is_a_triangle_of_one_area(bands: int) -> None:
    """On the grid of frequencies, as far as it is fine enough."""
    filters = mel_filters(bands)
    assert filters.shape == (201, bands)
    wide = filters.astype(bool).sum(axis=0) > 6
    np.testing.assert_allclose(filters.sum(axis=0)[wide] * 40, 1.0, rtol=0.05)  # 40 Hz from bin to bin
    rises = np.diff(filters, axis=0) > 0
    assert all((np.diff(rises[:, band].astype(int)) == 1).sum() <= 1 for band in range(bands))


@pytest.mark.parametrize("hertz", [300.0, 1000.0, 3000.0, 7000.0])
def test_a_tone_is_loudest_in_its_band(hertz: float) -> None:
    spectrum = log_mel(tone(hertz))
    assert spectrum.shape == (100, 80)
    band = int(spectrum[20:-20].mean(axis=0).argmax())
    assert mel_filters(80)[round(hertz / 40), band] > 0


def test_silence_is_one_value_and_a_range_is_kept() -> None:
    assert (log_mel(np.zeros(16_000, np.float32)) == np.float32((-10 + 4) / 4)).all()
    spectrum = log_mel(np.concatenate([tone(440), np.zeros(16_000, np.float32)]))
    assert spectrum.max() - spectrum.min() == pytest.approx(2.0)


def test_long_recordings_are_transformed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = np.random.default_rng(0).standard_normal(30_000)
    whole = log_mel(samples)
    monkeypatch.setattr(spectra_module, "FRAMES_AT_ONCE", 7)
    np.testing.assert_array_equal(log_mel(samples), whole)


@pytest.mark.parametrize("samples", [700, 20_000, 20_159])
def test_a_streamed_spectrum_is_that_of_the_whole(monkeypatch: pytest.MonkeyPatch, samples: int) -> None:
    """Whether its frames are kept from the first reading, or read again; forwards, and back to the start."""
    x = np.random.default_rng(0).standard_normal(samples)
    whole = log_mel(np.pad(x, (0, max(0, 1_600 - samples))), 8)
    for at_once in (9, 4_096):
        monkeypatch.setattr(spectra_module, "FRAMES_AT_ONCE", at_once)
        streamed = StreamedSpectrum(lambda: [x[:150], x[150:333], x[333:]], 8, least=1_600)
        assert (len(streamed), streamed.samples) == (len(whole), samples)
        for first, end in ((0, 10), (8, 40), (35, 90), (90, 200), (3, 5), (500, 600)):
            np.testing.assert_array_equal(streamed[first:end], whole[first:end])


def test_memory_does_not_grow_with_the_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spectra_module, "FRAMES_AT_ONCE", 50)

    def peak(seconds: int) -> int:
        second = np.ones(16_000, np.float32)
        tracemalloc.start()
        streamed = StreamedSpectrum(lambda: (second for _ in range(seconds)), 8)
        for first in range(0, len(streamed), 100):
            assert len(streamed[first : first + 100]) == 100
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    peak(2)  # what is made once
    assert peak(24) < 1.1 * peak(6)


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (np.zeros((2, 900)), r"received float64 \[2, 900\]"),
        (np.zeros(900, int), r"received int64 \[900\]"),
        (np.zeros(200), "expected more than 200, the mirrored ends; received 200"),
        (np.full(900, np.inf), "received NaN or infinity"),
    ],
)
def test_wrong_samples_are_refused(samples: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        log_mel(samples)
