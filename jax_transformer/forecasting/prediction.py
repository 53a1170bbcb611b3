"""Draws futures of time series, and takes quantiles of them (Ansari et al. 2024, §3.3)."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jax_transformer.config.decoding import DecodingConfig
from jax_transformer.config.series import SeriesTokens
from jax_transformer.decoding.checks import check_at_least_1
from jax_transformer.decoding.generation import generate
from jax_transformer.decoding.padding import limit
from jax_transformer.decoding.prepared import PreparedModel, prepare
from jax_transformer.forecasting.bins import as_rows, decode_series, encode_rows, padded_left, series_of
from jax_transformer.storage.model_directory import Model

MOST_DRAWN = 64
"""Futures that are drawn at once: the time of a draw grows with their number, too."""


@dataclass(frozen=True)
class Forecast:
    """Holds futures of N series.

    Example:
      >>> import numpy as np
      >>> from jax_transformer.forecasting import Forecast
      >>> drawn = Forecast(np.array([[[1.0, 5.0], [2.0, 6.0], [4.0, 7.0]]], np.float32))
      >>> drawn.median.tolist(), drawn.quantiles([0.25, 0.5]).shape
      ([[2.0, 6.0]], (1, 2, 2))
    """

    samples: np.ndarray
    """[N, num_samples, prediction_length] float32: the futures that were drawn, in no order."""

    def quantiles(self, levels: Sequence[float]) -> np.ndarray:
        """Returns quantiles of the samples, by linear interpolation: [N, prediction_length, levels] float32.

        Raises:
          ValueError: a level outside of 0 to 1, or none.
        """
        check_levels(levels)
        found = np.quantile(self.samples.astype(np.float64), np.asarray(levels, np.float64), axis=1)
        return np.moveaxis(found, 0, -1).astype(np.float32)

    @property
    def median(self) -> np.ndarray:
        """The quantiles at 0.5, [N, prediction_length]."""
        return self.quantiles([0.5])[..., 0]

    @property
    def mean(self) -> np.ndarray:
        """The mean of the samples, [N, prediction_length]."""
        return self.samples.mean(axis=1, dtype=np.float64).astype(np.float32)


def forecast(
    model: Model,
    series: Any,
    prediction_length: int | None = None,
    *,
    num_samples: int | None = None,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    batch_size: int = 16,
) -> Forecast:
    """Forecasts time series with a Chronos-T5.

    Args:
      model: a Chronos-T5, as `port` and `import_checkpoint` make it; or another model with `series` in its generation
        settings.
      series: numbers [T] of one series, [N, T] of several, or a list of N arrays of any lengths. NaN: a missing value.
        The model reads the last `context_length` values.
      prediction_length: steps to predict. None: as many as the model was trained for. With more, the medians of each
        such block are appended to the series, which the next block continues.
      num_samples: futures of each series. None, here and below: the model's own setting.
      temperature: divides the logits; below 1 favours probable values.
      top_k: draw only from the k most probable values; 0 for all, 1 for the most probable alone.
      top_p: draw only from the fewest most probable values that have this probability together.
      seed: seed of the draws. A series's random numbers depend on the seed and its place among the series.
      batch_size: series to forecast side by side.

    Returns:
      The futures.

    Raises:
      ValueError: another model; no series, or one without values, or with infinite ones; an option out of range, also
        as a ConfigError.

    Warns:
      UserWarning: the model wasn't trained for so many steps.

    Example:
      >>> import jax, numpy as np
      >>> from jax_transformer import GenerationConfig, Model, TransformerConfig, forecast, init_params
      >>> from jax_transformer.config import SeriesTokens
      >>> config = TransformerConfig(source_vocab_size=64, target_vocab_size=64, d_model=8, num_heads=2, d_ff=8,
      ...                            num_encoder_layers=1, num_decoder_layers=1)
      >>> tokens = SeriesTokens(num_tokens=64, context_length=16, prediction_length=4)
      >>> generation = GenerationConfig(decoder_start_id=0, eos_id=1, series=tokens)
      >>> model = Model(config, init_params(config, jax.random.key(0)), None, None, generation)
      >>> drawn = forecast(model, [np.sin(np.arange(20)), [1.0, float("nan"), 2.0]], num_samples=5)
      >>> drawn.samples.shape, drawn.quantiles([0.1, 0.9]).shape
      ((2, 5, 4), (2, 4, 2))
    """
    model = prepare(model)
    tokens = series_of(model)
    values = as_rows(series, tokens.context_length)
    length = tokens.prediction_length if prediction_length is None else prediction_length
    check_at_least_1(prediction_length=length, batch_size=batch_size)
    if seed < 0:
        raise ValueError(f"seed must be at least 0; received {seed}")
    options: dict[str, Any] = {"num_samples": num_samples, "temperature": temperature, "top_k": top_k, "top_p": top_p}
    tokens = dataclasses.replace(tokens, **{name: value for name, value in options.items() if value is not None})
    most = limit(model, "target")
    if min(length, tokens.prediction_length) > most:
        raise ValueError(
            f"prediction_length: expected at most the {most} tokens that the model decodes; received {length}"
        )
    if note := note_on_length(tokens, length):
        warnings.warn(note, stacklevel=2)
    batches = np.array_split(np.arange(len(values)), math.ceil(len(values) / batch_size))
    appended = (length - 1) // tokens.prediction_length * tokens.prediction_length
    # as wide from the first block on as the last one needs, so that all blocks share a program
    values = padded_left(values, min(values.shape[1] + appended, tokens.context_length))
    drawn = [_futures(model, tokens, values[batch], batch.tolist(), len(batches[0]), length, seed) for batch in batches]
    return Forecast(np.concatenate(drawn))


def check_levels(levels: Sequence[float]) -> None:
    """Raises ValueError for a level of a quantile outside of 0 to 1, or none."""
    wrong = [level for level in levels if not 0 <= level <= 1]
    if wrong or not len(levels):
        raise ValueError(f"quantiles: expected levels from 0 to 1; received {wrong[0] if wrong else 'none'}")


def note_on_length(tokens: SeriesTokens, length: int) -> str:
    """Returns a note on a prediction that is longer than the model was trained for; "" otherwise."""
    if length <= tokens.prediction_length:
        return ""
    return (
        f"prediction_length: the model was trained for {tokens.prediction_length} steps; it predicts {length} in "
        "blocks, each from the medians of those before it: later ones may be worse, and their quantiles too narrow"
    )


def _futures(
    model: PreparedModel,
    tokens: SeriesTokens,
    values: np.ndarray,
    numbers: list[int],
    rows: int,
    length: int,
    seed: int,
) -> np.ndarray:
    """Returns the futures [B, num_samples, length] of a batch of series [B, T].

    Args:
      numbers: the series' numbers, which their draws depend on.
      rows: rows to decode; those beyond the series are empty.
    """
    found: list[np.ndarray] = []
    while (done := sum(block.shape[2] for block in found)) < length:
        ids, scales = encode_rows(model, tokens, values)
        source = np.pad(ids, ((0, rows - len(ids)), (0, 0)), constant_values=model.config.source_pad_id)
        steps = min(length - done, tokens.prediction_length)
        drawn = _draw(model, tokens, source, numbers, steps, [seed, len(found)])
        found.append(decode_series(model, drawn, scales))
        values = np.concatenate([values[:, steps:], _lower_median(found[-1])], axis=1)
    return np.concatenate(found, axis=2)


def _draw(
    model: PreparedModel, tokens: SeriesTokens, source: np.ndarray, numbers: list[int], steps: int, seeds: list[int]
) -> np.ndarray:
    """Draws ids [B, num_samples, steps] after sources [rows, S], whose first B rows are series.

    `generate` returns likely draws first. They are shuffled, or the likely draws of one block would go on with the
    likely ones of the next.
    """
    plain = model.with_generation(model.generation.without_decoding())
    (eos_id,), found = (model.generation.eos_id,), []
    for first in range(0, tokens.num_samples, MOST_DRAWN):
        decoding = DecodingConfig(
            sampling=True,
            num_return=min(MOST_DRAWN, tokens.num_samples - first),
            temperature=tokens.temperature,
            top_k=tokens.top_k,
            top_p=tokens.top_p,
            max_new_tokens=steps,
            suppress_tokens=() if eos_id is None else (eos_id,),
            seed=_seed([*seeds, first]),
        )
        padding = [0] * (len(source) - len(numbers))
        drawn = generate(plain, source, decoding, sentence_numbers=[*numbers, *padding])
        found.append(drawn.sequences[: len(numbers)])
    order = np.random.default_rng(seeds).permutation(tokens.num_samples)
    return np.concatenate(found, axis=1)[:, order]


def _seed(parts: list[int]) -> int:
    return int(np.random.SeedSequence(parts).generate_state(1)[0])


def _lower_median(samples: np.ndarray) -> np.ndarray:
    """Returns the medians [N, T] of samples [N, K, T]; of an even number, the lower of the middle ones."""
    middle = (samples.shape[1] - 1) // 2
    median: np.ndarray = np.partition(samples, middle, axis=1)[:, middle]
    return median
