"""Log-mel spectra of recordings, as Whisper reads them (Radford et al. 2022, §2.2)."""

from __future__ import annotations

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
    mirrored = np.pad(samples.astype(np.float64), around, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(mirrored, WINDOW)[::HOP][: len(samples) // HOP]
    window, filters = np.hanning(WINDOW + 1)[:-1], mel_filters(bands)
    parts = [
        np.abs(np.fft.rfft(frames[first : first + FRAMES_AT_ONCE] * window)) ** 2 @ filters
        for first in range(0, len(frames), FRAMES_AT_ONCE)
    ]
    spectrum = np.log10(np.maximum(np.concatenate(parts), FLOOR))
    return ((np.maximum(spectrum, spectrum.max() - RANGE) + 4.0) / 4.0).astype(np.float32)
