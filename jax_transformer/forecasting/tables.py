"""Tables of series: one column for each, one row for each step."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jax_transformer.forecasting.prediction import Forecast
from jax_transformer.runtime.files import read_text
from jax_transformer.runtime.limits import SERIES_BYTES
from jax_transformer.runtime.trees import nearest

MISSING = frozenset({"", "na", "n/a", "nan", "null", "none"})
"""Cells without a value, in lowercase."""
DELIMITERS = {".csv": ",", ".tsv": "\t"}


class SeriesError(ValueError):
    """Raised when a file has no series that can be read.

    Example:
      >>> issubclass(SeriesError, ValueError)
      True
    """


@dataclass(frozen=True)
class SeriesTable:
    """Holds the series of a file.

    Example:
      >>> import numpy as np
      >>> from jax_transformer.forecasting import SeriesTable
      >>> SeriesTable(["north", "south"], np.array([[1.0, 2.0], [3.0, np.nan]]), []).names
      ['north', 'south']
    """

    names: list[str]
    """Of each series: the header, or the number of its column, from 1."""
    values: np.ndarray
    """[N, T] float64; NaN where a cell is empty."""
    times: list[str]
    """The cells of the column of times, one for each step; empty without such a column."""


def read_series(path: str | os.PathLike[str], *, time: str = "", columns: Sequence[str] = ()) -> SeriesTable:
    """Reads a CSV file, or a TSV file by its suffix, of one column for each series.

    The first row is a header if a cell after its first one, or its only one, is text. The first column holds times if
    it isn't the only one and none of its cells is a number. A cell that is empty, or NA, NaN, null or None in any case,
    is a missing value.

    Args:
      path: the file, in UTF-8.
      time: name of the column of times, if it is another one, or its cells are numbers.
      columns: names of the series to read. (): all.

    Returns:
      The series, in the order of the file or of `columns`.

    Raises:
      OSError: the file can't be read.
      SeriesError: a cell that isn't a number; infinity; rows of several lengths; a column without values; no rows; an
        unknown name, or one that stands twice. The message names the line and the column.

    Example:
      >>> import tempfile
      >>> from pathlib import Path
      >>> from jax_transformer.forecasting import read_series
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     path = Path(folder, "sales.csv")
      ...     _ = path.write_text("day,north,south\\n2026-01-01,3,\\n2026-01-02,4.5,7\\n")
      ...     read_series(path)
      SeriesTable(names=['north', 'south'], values=array([[3. , 4.5],
             [nan, 7. ]]), times=['2026-01-01', '2026-01-02'])
    """
    path = Path(path)
    rows = _rows(path)
    if not rows:
        raise SeriesError(f"{path}: expected rows of values; received none")
    (_, first), width = rows[0], len(rows[0][1])
    has_header = any(_is_text(cell) for cell in (first[1:] or first))
    names = [cell.strip() for cell in first] if has_header else [""] * width
    names = [name or str(number) for number, name in enumerate(names, 1)]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise SeriesError(f"{path}: expected columns of different names; received several named {twice!r}")
    body = rows[1:] if has_header else rows
    if not body:
        raise SeriesError(f"{path}: expected rows of values below the header; received none")
    at = _column_of_times(path, names, [cells[0] for _, cells in body], time)
    chosen = _chosen(path, [name for number, name in enumerate(names) if number != at], columns)
    values = np.array([_column(path, name, names.index(name), body) for name in chosen])
    return SeriesTable(chosen, values, [] if at is None else [cells[at] for _, cells in body])


def _rows(path: Path) -> list[tuple[int, list[str]]]:
    """Returns the rows, each with the number of its last line. Blank lines are none, unless there is one column and a
    further row: then they are empty cells."""
    try:
        text = read_text(path, SERIES_BYTES, SeriesError).removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise SeriesError(f"{path}: expected UTF-8; byte {error.start} isn't") from None
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=DELIMITERS.get(path.suffix.lower(), ","), strict=True)
    rows: list[tuple[int, list[str]]] = []
    blank: list[int] = []
    try:
        for cells in reader:
            if not cells:
                blank.append(reader.line_num)
                continue
            if rows and len(rows[0][1]) == 1:
                rows += [(line, [""]) for line in blank]
            blank = []
            if rows and len(cells) != len(rows[0][1]):
                raise SeriesError(
                    f"{path}: line {reader.line_num}: expected {len(rows[0][1])} cells, as in the first row; received "
                    f"{len(cells)}"
                )
            rows.append((reader.line_num, cells))
    except csv.Error as error:
        raise SeriesError(f"{path}: line {reader.line_num}: expected CSV; {error}") from None
    return rows


def _number(cell: str) -> float | None:
    """Returns the number of a cell, NaN of an empty one, None of text or infinity."""
    cell = cell.strip()
    if cell.lower() in MISSING:
        return math.nan
    try:
        number = float(cell) if "_" not in cell else math.inf
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _is_text(cell: str) -> bool:
    return _number(cell) is None


def _column_of_times(path: Path, names: list[str], first_column: list[str], time: str) -> int | None:
    """Returns the number of the column of times, or None."""
    if time:
        if time not in names:
            raise SeriesError(f"{path}: expected a column named {time!r} for times{_known(time, names)}")
        return names.index(time)
    return 0 if len(names) > 1 and all(map(_is_text, first_column)) else None


def _chosen(path: Path, names: list[str], columns: Sequence[str]) -> list[str]:
    if not names:
        raise SeriesError(f"{path}: expected a column of values next to the times; received none")
    unknown = next((name for name in columns if name not in names), None)
    if unknown is not None:
        raise SeriesError(f"{path}: expected a series named {unknown!r}{_known(unknown, names)}")
    return list(dict.fromkeys(columns)) or names


def _known(name: str, names: Sequence[str]) -> str:
    some = ", ".join(names[:10])
    return f"; received {some}{', …' if len(names) > 10 else ''}{nearest(name, names)}"


def _column(path: Path, name: str, number: int, body: list[tuple[int, list[str]]]) -> list[float]:
    values = []
    for line, cells in body:
        value = _number(cells[number])
        if value is None:
            raise SeriesError(
                f"{path}: line {line}, column {name!r}: expected a number, or an empty cell for a missing value; "
                f"received {cells[number][:40]!r}"
            )
        values.append(value)
    if all(map(math.isnan, values)):
        raise SeriesError(f"{path}: column {name!r}: expected at least one value; received {len(values)} empty cells")
    return values


# --- writing


def as_csv(names: Sequence[str], found: Forecast, levels: Sequence[float]) -> str:
    """Returns a table of one row for each series and step: the quantiles and the mean."""
    quantiles, means = found.quantiles(levels), found.mean
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["series", "step", *(f"{level:g}" for level in levels), "mean"])
    for name, rows, mean in zip(names, quantiles, means, strict=True):
        for step, (row, one) in enumerate(zip(rows, mean, strict=True), 1):
            writer.writerow([name, step, *map(str, row), str(one)])
    return text.getvalue()


def as_json(names: Sequence[str], found: Forecast, levels: Sequence[float]) -> str:
    """Returns a JSON object: for each series, its quantiles by level, its mean, and the samples."""
    quantiles, means = found.quantiles(levels), found.mean
    series: list[dict[str, Any]] = [
        {
            "name": name,
            "quantiles": {f"{level:g}": _plain(quantiles[i, :, j]) for j, level in enumerate(levels)},
            "mean": _plain(means[i]),
            "samples": [_plain(sample) for sample in found.samples[i]],
        }
        for i, name in enumerate(names)
    ]
    return json.dumps({"prediction_length": found.samples.shape[2], "series": series}, ensure_ascii=False) + "\n"


def _plain(values: np.ndarray) -> list[float]:
    """Returns float32 as the shortest numbers that are read as them."""
    return [float(str(value)) for value in values]


FORMATS: Mapping[str, Callable[[Sequence[str], Forecast, Sequence[float]], str]] = {".csv": as_csv, ".json": as_json}
"""Suffix → the content of a file."""
