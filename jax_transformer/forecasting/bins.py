"""Series of values as ids of bins, and back (Ansari et al. 2024, §3.1)."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jax_transformer.config.series import SeriesTokens
from jax_transformer.storage.model_directory import Model

OUTERMOST = 1e20
"""Where the outer bins end, in scales of a series."""


class EncodedSeries(NamedTuple):
    """Holds the ids of series, and what their values were divided by.

    Example:
      >>> import numpy as np
      >>> from jax_transformer.forecasting import EncodedSeries
      >>> EncodedSeries(np.array([[0, 5, 7, 1]], np.int32), np.array([2.5], np.float32)).ids.shape
      (1, 4)
    """

    ids: np.ndarray
    """[N, S] int32: pads for missing values, those before a series's first included; the end token last."""
    scales: np.ndarray
    """[N] float32: the mean of each series's absolute values; 1 if that is 0."""


def encode_series(model: Model, series: Any, length: int = 0, *, scales: np.ndarray | None = None) -> EncodedSeries:
    """Returns the ids that a forecasting model reads for series or, with `scales`, is trained to predict after them.

    Args:
      model: a model with `series` in its generation settings, such as a Chronos-T5.
      series: see `forecast`.
      length: values to pad to, at least; never more than `context_length`.
      scales: [N], of the series that these continue. None: the means of their own absolute values, over the last
        `context_length` values, which alone are encoded.

    Returns:
      The ids [N, S], shorter series padded on the left, and their scales.

    Raises:
      ValueError: another model; series that `forecast` refuses; scales that aren't positive, or one for each series.

    Example:
      >>> import jax
      >>> from jax_transformer import GenerationConfig, Model, TransformerConfig, init_params
      >>> from jax_transformer.config import SeriesTokens
      >>> from jax_transformer.forecasting import encode_series
      >>> config = TransformerConfig(source_vocab_size=64, target_vocab_size=64, d_model=8, num_heads=2, d_ff=8)
      >>> tokens = SeriesTokens(num_tokens=64, context_length=4, prediction_length=2)
      >>> generation = GenerationConfig(decoder_start_id=0, eos_id=1, series=tokens)
      >>> model = Model(config, init_params(config, jax.random.key(0)), None, None, generation)
      >>> encoded = encode_series(model, [[1.0, float("nan"), 3.0], [2.0]])
      >>> encoded.ids.tolist(), encoded.scales.tolist()
      ([[34, 0, 36, 1], [0, 0, 35, 1]], [2.0, 2.0])
      >>> encode_series(model, [[4.0], [-2.0]], scales=encoded.scales).ids.tolist()
      [[37, 1], [31, 1]]
    """
    tokens = series_of(model)
    values = as_rows(series, tokens.context_length if scales is None else sys.maxsize)
    values = padded_left(values, min(length, tokens.context_length))
    if scales is None:
        return encode_rows(model, tokens, values)
    scales = np.asarray(scales, np.float32)
    if scales.shape != values.shape[:1] or not (scales > 0).all():
        received = f"{list(scales.shape)}: {scales!s:.40}"
        raise ValueError(f"scales: expected {len(values)} positive numbers; received {received}")
    return encode_rows(model, tokens, values, scales)


def decode_series(model: Model, ids: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Returns the values of ids: the centers of their bins, times the scales. Special ids count as the lowest bin.

    Args:
      model: as of `encode_series`.
      ids: [N, …] integers.
      scales: [N] float32.

    Returns:
      [N, …] float32.

    Raises:
      ValueError: another model.

    Example:
      >>> import jax, numpy as np
      >>> from jax_transformer import GenerationConfig, Model, TransformerConfig, init_params
      >>> from jax_transformer.config import SeriesTokens
      >>> from jax_transformer.forecasting import decode_series
      >>> config = TransformerConfig(source_vocab_size=64, target_vocab_size=64, d_model=8, num_heads=2, d_ff=8)
      >>> tokens = SeriesTokens(num_tokens=64, context_length=4, prediction_length=2)
      >>> generation = GenerationConfig(decoder_start_id=0, eos_id=1, series=tokens)
      >>> model = Model(config, init_params(config, jax.random.key(0)), None, None, generation)
      >>> decode_series(model, np.array([[3, 33, 63]]), np.array([2.0], np.float32)).tolist()
      [[-30.0, 0.0, 30.0]]
    """
    tokens = series_of(model)
    bins = np.clip(np.asarray(ids) - tokens.num_special - 1, 0, tokens.num_bins - 1)
    factors = np.asarray(scales, np.float32).reshape(-1, *[1] * (bins.ndim - 1))
    values: np.ndarray = centers(tokens)[bins] * factors
    return values


def series_of(model: Model) -> SeriesTokens:
    """Returns how a model reads series. Raises ValueError if it doesn't, or its ids contradict that."""
    tokens, config, end = model.generation.series, model.config, model.generation.eos_id
    if tokens is None:
        raise ValueError(
            "forecast: expected a model of time series, such as a Chronos-T5; received one without `series` in its "
            "generation.json"
        )
    if config.stem is not None or config.source_pad_id != config.target_pad_id:
        raise ValueError("forecast: expected a model that reads ids, with one pad for source and target")
    special = {"the pad": config.source_pad_id, "the end": -1 if end is None else end}
    for name, index in special.items():
        if not 0 <= index < tokens.num_special:
            raise ValueError(f"forecast: expected {name} among the {tokens.num_special} special ids; received {index}")
    if tokens.num_tokens > min(config.source_vocab_size, config.target_vocab_size):
        least = min(config.source_vocab_size, config.target_vocab_size)
        raise ValueError(f"forecast: expected at most {least} tokens, the vocabulary; received {tokens.num_tokens}")
    return tokens


def as_rows(series: Any, most: int) -> np.ndarray:
    """Returns the last values of series, at most so many, as float32 [N, T], shorter ones with NaN on the left.

    Raises:
      ValueError: no series; one that isn't [T] numbers, or has no value among these; infinity, also for what float32
        can't hold.
    """
    if hasattr(series, "ndim"):
        array = np.asarray(series)
        rows: list[Any] = [array] if array.ndim == 1 else list(array)
    elif isinstance(series, Sequence) and not isinstance(series, str):
        are_numbers = bool(series) and all(np.ndim(one) == 0 for one in series)
        rows = [series] if are_numbers else list(series)
    else:
        raise ValueError(
            f"series: expected an array [T] or [N, T], or a list of arrays; received {type(series).__name__}"
        )
    if not rows:
        raise ValueError("series: expected at least one; received none")
    found = [_one(row, f"series {number}", most) for number, row in enumerate(rows)]
    return np.stack([np.pad(row, (max(map(len, found)) - len(row), 0), constant_values=np.nan) for row in found])


def _one(row: Any, name: str, most: int) -> np.ndarray:
    array = np.asarray(row)
    if array.ndim != 1 or array.dtype.kind not in "iufb":
        raise ValueError(f"{name}: expected numbers [T]; received {array.dtype} {list(array.shape)}")
    with np.errstate(over="ignore"):
        values = array.astype(np.float32)[-most:]
    if np.isinf(values).any():
        raise ValueError(
            f"{name}: expected finite values that float32 holds, or NaN for missing ones; received infinity"
        )
    if np.isnan(values).all():
        last = f" among the last {most}, which the model reads" if len(array) > most else ""
        received = "none" if not len(values) else f"{len(values)} that are NaN"
        raise ValueError(f"{name}: expected at least one value{last}; received {received}")
    return values


def padded_left(values: np.ndarray, length: int) -> np.ndarray:
    """Returns series [N, T] with NaN before them, at least so long."""
    return np.pad(values, ((0, 0), (max(length - values.shape[1], 0), 0)), constant_values=np.nan)


def encode_rows(
    model: Model, tokens: SeriesTokens, values: np.ndarray, scales: np.ndarray | None = None
) -> EncodedSeries:
    """Returns the ids of series [N, T], with their own scales if none are given."""
    is_there = ~np.isnan(values)
    if scales is None:
        sums = np.sum(np.abs(values), axis=1, where=is_there, dtype=np.float64)
        means = (sums / is_there.sum(axis=1)).astype(np.float32)
        scales = np.where(means > 0, means, np.float32(1))
    bins = np.searchsorted(boundaries(tokens), np.where(is_there, values, 0) / scales[:, None], side="right")
    ids = np.minimum(bins + tokens.num_special, tokens.num_tokens - 1)
    ids = np.where(is_there, ids, model.config.source_pad_id)
    if tokens.ends:
        ids = np.pad(ids, ((0, 0), (0, 1)), constant_values=model.generation.eos_id or 0)
    return EncodedSeries(ids.astype(np.int32), scales)


def centers(tokens: SeriesTokens) -> np.ndarray:
    """Returns the centers of the bins, float32 [num_bins], with the bits of `torch.linspace`: each is counted from the
    nearer end, by a product and a sum that are rounded once."""
    count, low, high = tokens.num_bins, np.float32(tokens.low), np.float32(tokens.high)
    step = np.float64((high - low) / np.float32(count - 1))
    places = np.arange(count)
    upwards, downwards = low + step * places, high - step * (count - 1 - places)
    return np.where(places < count // 2, upwards, downwards).astype(np.float32)


def boundaries(tokens: SeriesTokens) -> np.ndarray:
    """Returns where the bins begin, and the last one ends, float32 [num_bins + 1]."""
    at = centers(tokens)
    return np.concatenate([[-OUTERMOST], (at[1:] + at[:-1]) / 2, [OUTERMOST]]).astype(np.float32)
