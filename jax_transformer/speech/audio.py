"""Recordings from files or arrays, as one channel at 16 kHz."""

from __future__ import annotations

import os
from math import gcd
from pathlib import Path

import numpy as np

from jax_transformer.runtime.extras import require
from jax_transformer.speech.spectra import SAMPLE_RATE

RATES = (100, 768_000)
"""The lowest and the highest rate that is resampled."""


class AudioError(ValueError):
    """Raised when a recording can't be read.

    Example:
      >>> issubclass(AudioError, ValueError)
      True
    """


def read_audio(source: str | os.PathLike[str] | np.ndarray, rate: int | None = None) -> np.ndarray:
    """Reads a recording. Several channels are averaged, and other rates resampled.

    Args:
      source: a file of a format that libsndfile reads, such as WAV, FLAC, OGG and MP3, or samples [N] or
        [N, channels], nominally from -1 to 1.
      rate: samples per second of an array. None: 16,000. A file says its own.

    Returns:
      [N] float32 at 16 kHz.

    Raises:
      AudioError: no such file, or one that can't be read; an array of another shape or dtype; no samples; NaN or
        infinity; a rate for a file, which says its own.
      ImportError: reading a file needs soundfile (pip install 'jax-transformer[audio]').

    Example:
      >>> import numpy as np
      >>> from jax_transformer.speech import read_audio
      >>> stereo = np.zeros((8_000, 2), np.float32)
      >>> read_audio(stereo, rate=8_000).shape
      (16000,)
    """
    if isinstance(source, np.ndarray):
        return _one_channel("audio", source, SAMPLE_RATE if rate is None else rate)
    if rate is not None:
        raise AudioError(f"{source}: expected no rate, since a file says its own; received {rate}")
    return _one_channel(str(source), *_read_file(Path(source)))


def _read_file(path: Path) -> tuple[np.ndarray, int]:
    """Returns samples [N, channels] and their rate."""
    if not path.is_file():
        raise AudioError(f"{path}: {'expected a file; received a directory' if path.is_dir() else 'no such file'}")
    require("soundfile", str(path))
    import soundfile

    try:
        samples, rate = soundfile.read(str(path), dtype="float32", always_2d=True)
    except (soundfile.SoundFileError, OSError) as error:
        reason = str(error).split(": ")[-1].strip().rstrip(".")
        raise AudioError(f"{path}: expected a recording in a format that libsndfile reads; {reason}") from None
    return samples, int(rate)


def _one_channel(name: str, samples: np.ndarray, rate: int) -> np.ndarray:
    if samples.ndim not in (1, 2) or not np.issubdtype(samples.dtype, np.floating):
        raise AudioError(
            f"{name}: expected floating-point samples [N] or [N, channels], from -1 to 1; received {samples.dtype} "
            f"{list(samples.shape)}"
        )
    if samples.size == 0:
        raise AudioError(f"{name}: expected a recording; received one without samples")
    if not np.isfinite(samples).all():
        raise AudioError(f"{name}: expected finite samples; received NaN or infinity")
    if not RATES[0] <= rate <= RATES[1]:
        raise AudioError(f"{name}: expected a rate from {RATES[0]} to {RATES[1]:,} Hz; received {rate}")
    mono = samples if samples.ndim == 1 else samples.mean(axis=1)
    return resampled(mono, rate).astype(np.float32)


def resampled(samples: np.ndarray, rate: int) -> np.ndarray:
    """Returns samples [N] of another rate at 16 kHz, by a polyphase filter, which removes what that can't hold."""
    if rate == SAMPLE_RATE:
        return samples
    from scipy.signal import resample_poly  # type: ignore[import-untyped]

    common = gcd(rate, SAMPLE_RATE)
    changed: np.ndarray = resample_poly(samples, SAMPLE_RATE // common, rate // common)
    return changed
