"""Recordings from files or arrays, as one channel at 16 kHz, block after block."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from math import gcd
from pathlib import Path
from typing import IO, Any

import numpy as np

from jax_transformer.runtime.extras import require
from jax_transformer.speech.spectra import SAMPLE_RATE

RATES = (100, 768_000)
"""The lowest and the highest rate that is resampled."""
BLOCK = 1 << 16
"""About how many numbers are read from a recording at once, of all channels together."""
REACH = 10
"""Samples to each side, of the lower rate, that SciPy's resampling filter takes for one."""
SLACK = 16
"""Bytes that a header may state too many: some programs count padding."""
UNKNOWN_SIZE = 0x7FFF_0000
"""Sizes from here on stand in headers of recordings that were written to a pipe, whose size wasn't known."""
STATED = re.compile(
    r"^\s*(?:RIF[FX]|RF64|FORM|riff|data|SSND|Data Size|Riff size)\s*:\s*(\d+) \(should be (\d+)\)", re.MULTILINE
)
"""A size in a header, and the one that libsndfile finds: of the whole file, or of its samples."""
UNKNOWN_LENGTH = 1 << 62
"""Samples from here on mean that a file doesn't say how many it has."""

Source = str | os.PathLike[str] | IO[bytes] | np.ndarray
"""A recording: a file's path, an open binary file, or samples."""


class AudioError(ValueError):
    """Raised when a recording can't be read.

    Example:
      >>> issubclass(AudioError, ValueError)
      True
    """


class TooLong(AudioError):
    """Raised when a recording is longer than the caller takes."""


def read_audio(source: Source, rate: int | None = None) -> np.ndarray:
    """Reads a recording. Several channels are averaged, and other rates resampled.

    Args:
      source: a file of a format that libsndfile reads, such as WAV, FLAC, OGG and MP3, by its path or open in binary
        mode, or samples [N] or [N, channels], nominally from -1 to 1.
      rate: samples per second of an array. None: 16,000. A file says its own.

    Returns:
      [N] float32 at 16 kHz.

    Raises:
      AudioError: no such file, or one that can't be read or was cut off; an array of another shape or dtype; no
        samples; NaN or infinity; a rate for a file, which says its own.
      ImportError: reading a file needs soundfile (pip install 'jax-transformer[audio]').

    Example:
      >>> import numpy as np
      >>> from jax_transformer.speech import read_audio
      >>> stereo = np.zeros((8_000, 2), np.float32)
      >>> read_audio(stereo, rate=8_000).shape
      (16000,)
    """
    return np.concatenate(list(Recording(source, rate).blocks()))


class Recording:
    """Reads a recording in blocks, any number of times, so that hours of it take little memory.

    Example:
      >>> import numpy as np
      >>> from jax_transformer.speech.audio import Recording
      >>> [block.dtype.name for block in Recording(np.zeros(900)).blocks()]
      ['float32']
    """

    def __init__(
        self, source: Source, rate: int | None = None, *, name: str | None = None, most_seconds: float | None = None
    ) -> None:
        """Takes the arguments of `read_audio`, and checks what can be checked without reading.

        Args:
          name: names the recording in messages. None: its path, or "audio".
          most_seconds: the longest that is read. None: any.

        Raises:
          AudioError: see `read_audio`.
        """
        self._source, self._most = source, most_seconds
        path = os.fspath(source) if isinstance(source, str | os.PathLike) else None
        self.name = name or path or "audio"
        if isinstance(source, np.ndarray):
            self._rate = SAMPLE_RATE if rate is None else rate
            _check_array(self.name, source)
        elif rate is not None:
            raise AudioError(f"{self.name}: expected no rate, since a file says its own; received {rate}")
        elif path is not None and not Path(path).is_file():
            is_folder = Path(path).is_dir()
            raise AudioError(f"{self.name}: {'expected a file; received a directory' if is_folder else 'no such file'}")

    def blocks(self) -> Iterator[np.ndarray]:
        """Yields the samples at 16 kHz from the first on, [N] float32. Raises AudioError: see `read_audio`."""
        if isinstance(self._source, np.ndarray):
            yield from self._at_16_khz(_slices(self._source), self._rate)
            return
        require("soundfile", self.name)
        import soundfile

        if _is_empty(self._source):
            raise AudioError(f"{self.name}: expected a recording; received an empty file")
        try:
            if not isinstance(self._source, str | os.PathLike):
                self._source.seek(0)
            with soundfile.SoundFile(self._source) as file:
                self._check_size(file.extra_info)
                if file.frames < UNKNOWN_LENGTH:
                    self._check_length(file.frames, file.samplerate)
                size = max(BLOCK // file.channels, 1)
                read = file.blocks(blocksize=size, dtype="float32", always_2d=True)
                yield from self._at_16_khz(read, int(file.samplerate))
        except (soundfile.SoundFileError, OSError) as error:
            reason = str(error).split(": ")[-1].strip().rstrip(".")
            raise AudioError(
                f"{self.name}: expected a recording in a format that libsndfile reads, such as WAV, FLAC, OGG and MP3; "
                f"{reason}"
            ) from None

    def _at_16_khz(self, blocks: Iterator[np.ndarray], rate: int) -> Iterator[np.ndarray]:
        """Yields samples of one channel at 16 kHz from samples [N] or [N, channels] of a rate."""
        if not RATES[0] <= rate <= RATES[1]:
            raise AudioError(f"{self.name}: expected a rate from {RATES[0]} to {RATES[1]:,} Hz; received {rate}")
        for block in resampled(self._checked(blocks, rate), rate):
            yield block.astype(np.float32)

    def _checked(self, blocks: Iterator[np.ndarray], rate: int) -> Iterator[np.ndarray]:
        """Yields the mean over channels of each block; checks that there are samples, all finite and not too many."""
        total = 0
        for block in blocks:
            total += len(block)
            self._check_length(total, rate)
            if not np.isfinite(block).all():
                raise AudioError(f"{self.name}: expected finite samples; received NaN or infinity")
            yield block if block.ndim == 1 else block.mean(axis=1)
        if not total:
            raise AudioError(f"{self.name}: expected a recording; received one without samples")

    def _check_length(self, samples: int, rate: int) -> None:
        if self._most is not None and samples > self._most * rate:
            seconds = f"{samples / rate:,.1f} or more"
            raise TooLong(f"{self.name}: expected at most {self._most:g} seconds; received {seconds}")

    def _check_size(self, header: str) -> None:
        """Raises AudioError if the header, as libsndfile describes it, states more bytes than there are."""
        for stated, found in (map(int, sizes) for sizes in STATED.findall(header)):
            if found + SLACK < stated < UNKNOWN_SIZE:
                raise AudioError(
                    f"{self.name}: expected {stated:,} bytes, as its header states; received {found:,}, so the file "
                    "was cut off: copy it again"
                )


def _is_empty(file: str | os.PathLike[str] | IO[bytes]) -> bool:
    return (Path(file).stat().st_size if isinstance(file, str | os.PathLike) else file.seek(0, os.SEEK_END)) == 0


def _check_array(name: str, samples: np.ndarray) -> None:
    if samples.ndim not in (1, 2) or not np.issubdtype(samples.dtype, np.floating):
        raise AudioError(
            f"{name}: expected floating-point samples [N] or [N, channels], from -1 to 1; received {samples.dtype} "
            f"{list(samples.shape)}"
        )
    if samples.size == 0:
        raise AudioError(f"{name}: expected a recording; received one without samples")


def _slices(samples: np.ndarray) -> Iterator[np.ndarray]:
    for first in range(0, len(samples), BLOCK):
        yield samples[first : first + BLOCK]


def resampled(blocks: Iterator[np.ndarray], rate: int) -> Iterator[np.ndarray]:
    """Yields samples at 16 kHz from blocks [N] of another rate, by a polyphase filter, which removes what that rate
    can't hold. The samples are those of the whole recording resampled at once."""
    if rate == SAMPLE_RATE:
        yield from blocks
        return
    from scipy.signal import resample_poly  # type: ignore[import-untyped]

    common = gcd(rate, SAMPLE_RATE)
    up, down = SAMPLE_RATE // common, rate // common
    around = -(-(REACH * max(down, up) // up + 1) // down)  # periods of `down` samples, each of which gives `up`
    size = max(BLOCK // down, 2 * around) * down
    held, before = np.zeros(0, np.float32), 0  # periods before the next sample to give
    for block in blocks:
        held = np.concatenate([held, block])
        while len(held) >= (before + around) * down + size:
            part: Any = resample_poly(held[: (before + around) * down + size], up, down)
            yield part[before * up : before * up + size // down * up]
            held = held[(before - around) * down + size if before else size - around * down :]
            before = around
    if len(held) > before * down:
        yield resample_poly(held, up, down)[before * up :]
