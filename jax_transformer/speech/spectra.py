"""Log-mel spectra of recordings, as Whisper reads them (Radford et al. 2022, §2.2)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache

import numpy as np

SAMPLE_RATE = 16_000
"""Samples per second."""
WINDOW = 400
"""Samples of a frame, 25 ms."""
HOP = 160
"""Samples from one frame to the next, 10 ms."""
HIGHEST = SAMPLE_RATE / 2
"""Hertz at which the bands end."""
FLOOR = 1e-10
"""The least energy of a band, before its logarithm."""
RANGE = 8.0
"""Powers of ten below the loudest band of a recording; quieter ones are raised to that."""
FRAMES_AT_ONCE = 4096
"""Frames that are transformed together, so that long recordings need little memory."""

# Slaney's mel scale: linear up to 1 kHz, logarithmic above (Auditory Toolbox, 1998)
LINEAR_HERTZ = 200.0 / 3.0
"""Hertz of a mel below the break."""
BREAK_HERTZ = 1000.0
BREAK_MEL = BREAK_HERTZ / LINEAR_HERTZ
LOG_STEP = np.log(6.4) / 27.0
"""Natural logarithm of the ratio of frequencies one mel apart, above the break."""


@cache
def mel_filters(bands: int) -> np.ndarray:
    """Returns the weight of each frequency in each band: triangles of equal area, evenly spaced on Slaney's mel scale.

    Args:
      bands: the number of bands, 80 or 128 in Whisper.

    Returns:
      [1 + WINDOW / 2, bands] float64.

    Raises:
      ValueError: fewer bands than 1.

    Example:
      >>> from jax_transformer.speech import mel_filters
      >>> mel_filters(80).shape
      (201, 80)
    """
    if bands < 1:
        raise ValueError(f"bands must be at least 1; received {bands}")
    corners = _hertz(np.linspace(_mels(0.0), _mels(HIGHEST), bands + 2))  # [bands + 2]
    frequencies = np.linspace(0.0, SAMPLE_RATE / 2, 1 + WINDOW // 2)[:, None]
    rising = (frequencies - corners[:-2]) / (corners[1:-1] - corners[:-2])
    falling = (corners[2:] - frequencies) / (corners[2:] - corners[1:-1])
    triangles = np.maximum(0.0, np.minimum(rising, falling))
    filters: np.ndarray = triangles * (2.0 / (corners[2:] - corners[:-2]))
    filters.setflags(write=False)
    return filters


def _mels(hertz: float) -> float:
    if hertz < BREAK_HERTZ:
        return hertz / LINEAR_HERTZ
    return float(BREAK_MEL + np.log(hertz / BREAK_HERTZ) / LOG_STEP)


def _hertz(mels: np.ndarray) -> np.ndarray:
    above = BREAK_HERTZ * np.exp(LOG_STEP * (mels - BREAK_MEL))
    return np.where(mels < BREAK_MEL, LINEAR_HERTZ * mels, above)


def log_mel(samples: np.ndarray, bands: int = 80) -> np.ndarray:
    """Computes the log-mel spectrum of a recording: a frame each 10 ms, of 25 ms.

    The logarithms are raised to 8 below the largest, then shifted and scaled, (x + 4) / 4. The samples are mirrored at
    both ends, so that the first frame is centred at the first sample. Computed in float64.

    Args:
      samples: [N] floating-point numbers, nominally from -1 to 1, at 16 kHz. Whisper takes 30 seconds: pad shorter
        recordings with zeros before.
      bands: the number of bands, the `features` of the model's stem.

    Returns:
      [N // 160, bands] float32.

    Raises:
      ValueError: no vector of floating-point numbers, one of fewer than 201 samples, NaN or infinity.

    Example:
      >>> import numpy as np
      >>> from jax_transformer.speech import log_mel
      >>> tone = np.sin(2 * np.pi * 440 * np.arange(16_000) / 16_000).astype(np.float32)
      >>> spectrum = log_mel(tone)
      >>> spectrum.shape, int(spectrum.mean(axis=0).argmax())  # the band of 440 Hz
      ((100, 80), 11)
    """
    samples = np.asarray(samples)
    if samples.ndim != 1 or not np.issubdtype(samples.dtype, np.floating):
        raise ValueError(
            f"samples: expected a vector of floating-point numbers; received {samples.dtype} {list(samples.shape)}"
        )
    around = WINDOW // 2
    if len(samples) <= around:
        raise ValueError(f"samples: expected more than {around}, the mirrored ends; received {len(samples)}")
    if not np.isfinite(samples).all():
        raise ValueError("samples: expected finite numbers; received NaN or infinity")
    spectrum = np.concatenate(list(log_energies([samples], bands)))
    return scaled(spectrum, spectrum.max())


def scaled(spectrum: np.ndarray, loudest: float) -> np.ndarray:
    """Returns logarithms as models read them: raised to RANGE below the recording's largest, shifted and scaled."""
    return ((np.maximum(spectrum, loudest - RANGE) + 4.0) / 4.0).astype(np.float32)


def log_energies(blocks: Iterable[np.ndarray], bands: int) -> Iterator[np.ndarray]:
    """Yields the logarithms of the energies in each band, [frames, bands] float64, of a recording's blocks of samples.

    The samples are mirrored at both ends of the recording, which has more than WINDOW / 2 of them.
    """
    around, held, total, done = WINDOW // 2, np.zeros(0), 0, 0
    for block in blocks:
        held = np.concatenate([held, block.astype(np.float64)])
        if total <= around < total + len(block):
            held = np.concatenate([held[around:0:-1], held])
        total += len(block)
        if total > around:
            count = max((len(held) - WINDOW) // HOP + 1, 0)
            yield from _energies_of(held, count, bands)
            held, done = held[count * HOP :], done + count
    yield from _energies_of(np.concatenate([held, held[-2 : -2 - around : -1]]), total // HOP - done, bands)


def _energies_of(mirrored: np.ndarray, count: int, bands: int) -> Iterator[np.ndarray]:
    """Yields the logarithms of the first `count` frames of mirrored samples."""
    if count <= 0:
        return
    frames = np.lib.stride_tricks.sliding_window_view(mirrored, WINDOW)[::HOP][:count]
    window, filters = np.hanning(WINDOW + 1)[:-1], mel_filters(bands)
    for first in range(0, count, FRAMES_AT_ONCE):
        energies = np.abs(np.fft.rfft(frames[first : first + FRAMES_AT_ONCE] * window)) ** 2 @ filters
        yield np.log10(np.maximum(energies, FLOOR))


class StreamedSpectrum:
    """Computes the log-mel spectrum of a recording of any length, and holds only some frames of it.

    The recording is read twice: the first time for its loudest band, on which all frames depend. `spectrum[first:end]`
    gives frames as `log_mel` does; to go back reads the recording again from its start.

    Example:
      >>> import numpy as np
      >>> from jax_transformer.speech.spectra import StreamedSpectrum, log_mel
      >>> samples = np.random.default_rng(0).standard_normal(16_000)
      >>> spectrum = StreamedSpectrum(lambda: [samples[:9_000], samples[9_000:]], bands=8)
      >>> len(spectrum), bool((spectrum[40:60] == log_mel(samples, 8)[40:60]).all())
      (100, True)
    """

    def __init__(self, blocks: Callable[[], Iterable[np.ndarray]], bands: int, least: int = 0) -> None:
        """Reads the recording once.

        Args:
          blocks: yields the samples from the first on, at each call.
          bands: see `log_mel`.
          least: samples up to which a shorter recording is filled with zeros.
        """
        self._blocks, self._bands, self._least = blocks, bands, least
        self.samples, self._loudest, self._frames = 0, -np.inf, 0
        kept: list[np.ndarray] = []
        for part in log_energies(self._filled(), bands):
            self._loudest, self._frames = max(self._loudest, part.max()), self._frames + len(part)
            kept = [*kept, part] if self._frames <= FRAMES_AT_ONCE else []
        self._first = 0 if kept else self._frames
        self._held = np.concatenate([np.zeros((0, bands)), *kept])
        self._parts: Iterator[np.ndarray] = iter(())

    def __len__(self) -> int:
        return self._frames

    def __getitem__(self, part: slice) -> np.ndarray:
        """Returns frames [n, bands] float32."""
        first, end, _ = part.indices(self._frames)
        if first < self._first:
            self._first, self._held = 0, np.zeros((0, self._bands))
            self._parts = log_energies(self._filled(), self._bands)
        while self._first + len(self._held) < end:
            unneeded = max(min(first - self._first, len(self._held)), 0)
            self._held = np.concatenate([self._held[unneeded:], next(self._parts)])
            self._first += unneeded
        return scaled(self._held[first - self._first : max(end - self._first, 0)], self._loudest)

    def _filled(self) -> Iterator[np.ndarray]:
        total = 0
        for block in self._blocks():
            total += len(block)
            yield block
        self.samples = total
        if total < self._least:
            yield np.zeros(self._least - total)
