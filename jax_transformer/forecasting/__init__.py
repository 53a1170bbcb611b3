"""Forecasts of time series: values as tokens, draws of the tokens that follow, and tables of series.

`bins.py` turns values into ids and back as Chronos-T5 does, `prediction.py` draws futures, `tables.py` reads and writes
files of series.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jax_transformer.runtime.lazy import lazy_exports

if TYPE_CHECKING:
    from jax_transformer.forecasting.bins import EncodedSeries, decode_series, encode_series
    from jax_transformer.forecasting.prediction import Forecast, forecast
    from jax_transformer.forecasting.tables import SeriesError, SeriesTable, read_series

_HOMES = {
    "jax_transformer.forecasting.bins": ("EncodedSeries", "decode_series", "encode_series"),
    "jax_transformer.forecasting.prediction": ("Forecast", "forecast"),
    "jax_transformer.forecasting.tables": ("SeriesError", "SeriesTable", "read_series"),
}
__all__ = [
    "EncodedSeries",
    "Forecast",
    "SeriesError",
    "SeriesTable",
    "decode_series",
    "encode_series",
    "forecast",
    "read_series",
]
__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
