"""jax-transformer forecast MODEL FILE [options]."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from jax_transformer.commands.decode_options import output_may_close
from jax_transformer.commands.parsing import parsed
from jax_transformer.runtime.extras import require


@dataclass(frozen=True)
class ForecastOptions:
    """Forecast the series of a table with a Chronos-T5, and write quantiles of the futures that were drawn.

    FILE is a CSV file, or a TSV file by its suffix, of one column for each series. A first row of text is a header. The
    first column holds times if none of its cells is a number. Empty cells, NA and NaN are missing values. A forecast
    begins after the last row.
    """

    model: tyro.conf.Positional[str]
    """Model directory, or name on the Hub (owner/name, owner/name@revision)."""
    file: tyro.conf.Positional[str]
    """Table of series."""
    output: Annotated[str, tyro.conf.arg(aliases=["-o"], metavar="FILE")] = ""
    """File to write: .csv has a row for each series and step; .json also has the samples. An existing file is replaced.
    Default: CSV to standard output."""
    prediction_length: int | None = None
    """Steps to predict. With more than the model was trained for, the medians of each block are appended to the series
    for the next. Default: as many as it was trained for."""
    quantiles: tuple[float, ...] = (0.1, 0.5, 0.9)
    """Levels of the quantiles, from 0 to 1."""
    time: str = ""
    """Name of the column of times, if it isn't the first one or its cells are numbers."""
    columns: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME …")] = ()
    """Series to forecast. Default: all."""
    num_samples: int | None = None
    """Futures to draw of each series. Default, here and below: the model's own setting."""
    temperature: float | None = None
    """Divide the logits by this; below 1 favours probable values."""
    top_k: int | None = None
    """Draw only from the k most probable values; 0 for all, 1 for the most probable alone."""
    top_p: float | None = None
    """Draw only from the fewest most probable values that have this probability together."""
    seed: int = 0
    """Seed of the draws."""
    batch_size: int = 16
    """Series to forecast side by side."""
    plot: Annotated[str, tyro.conf.arg(metavar="FILE")] = ""
    """Picture to write, too: .png, .svg or .pdf. Shows the history, the median, and bands between levels such as 0.1
    and 0.9."""
    plot_history: int = 0
    """Values of the history in the picture. Default: all that the model reads."""
    dark: bool = False
    """Draw on a dark background."""


def forecast(arguments: Sequence[str]) -> int:
    """Runs `jax-transformer forecast ARGUMENTS`; returns the exit code."""
    options = parsed(ForecastOptions, arguments, "forecast")
    _check(options)
    from jax_transformer import forecasting
    from jax_transformer.forecasting.bins import series_of
    from jax_transformer.forecasting.prediction import check_levels, note_on_length
    from jax_transformer.forecasting.tables import FORMATS
    from jax_transformer.runtime.files import atomic_write
    from jax_transformer.storage.model_directory import load_model

    check_levels(options.quantiles)
    table = forecasting.read_series(options.file, time=options.time, columns=options.columns)
    if options.plot:
        from jax_transformer.plotting.series_figures import check_count

        check_count(len(table.names))
    model = load_model(options.model)
    tokens = series_of(model)
    if note := note_on_length(tokens, options.prediction_length or 0):
        print(f"note: {note}", file=sys.stderr)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "prediction_length")
        found = forecasting.forecast(
            model,
            table.values,
            options.prediction_length,
            num_samples=options.num_samples,
            temperature=options.temperature,
            top_k=options.top_k,
            top_p=options.top_p,
            seed=options.seed,
            batch_size=options.batch_size,
        )
    if options.plot:
        from jax_transformer.plotting import figure_style, forecasts, save

        with figure_style(dark=options.dark):
            quantiles = found.quantiles(options.quantiles)
            shown = options.plot_history or tokens.context_length
            save(forecasts(table.values, quantiles, options.quantiles, table.names, shown=shown), options.plot)
    content = FORMATS[Path(options.output).suffix.lower() or ".csv"](table.names, found, options.quantiles)
    if not options.output:
        with output_may_close():
            sys.stdout.write(content)
        return 0
    with atomic_write(options.output) as temporary:
        temporary.write_text(content, encoding="utf-8")
    return 0


def _check(options: ForecastOptions) -> None:
    """Raises ValueError for options that can't hold, and MissingPackage for a picture without matplotlib."""
    from jax_transformer.plotting.formats import check_path

    if options.prediction_length is not None and options.prediction_length < 1:
        raise ValueError(f"--prediction-length must be at least 1; received {options.prediction_length}")
    if options.plot_history < 0:
        raise ValueError(f"--plot-history must be at least 0; received {options.plot_history}")
    if options.output:
        check_path(Path(options.output), (".csv", ".json"))
    if options.plot:
        check_path(Path(options.plot))
        require("matplotlib", "forecast --plot")
