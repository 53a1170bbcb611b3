"""Faults of position tables and their indices."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from jax_transformer.comparison.gates import tolerances
from jax_transformer.config.positions import Sinusoidal
from jax_transformer.parity.faults.replay import Replay, Variant, configured
from jax_transformer.parity.faults.rounding import UNITS, is_of, rounded
from jax_transformer.parity.oracle import formulas
from jax_transformer.parity.oracle.graph import Kind, Node

LAYOUTS = {"halves": "sin and cos in halves", "interleaved": "sin and cos interleaved"}
FREQUENCIES = {"standard": "exponents 2i / D", "inclusive": "exponents i / (D/2 − 1)", "doubled": "exponents doubled"}
INDICES = {"column": "column", "batch_row": "batch row", "non_pad_count": "count of real tokens"}

SHORT_TABLES = (128, 256, 500, 512, None, -1)
"""Numbers of rows; None: half of the needed ones; −1: one too few."""
ANGLE_ROUNDINGS = 12.0
"""Largest error of an angle in unit roundoffs: log 10000 = 9.2 for the exponent, plus power and product."""
VALUE_ROUNDINGS = 2.0
"""The same for its sine or cosine."""
MOST_ANGLE = 3
"""Last position whose angles are all below π: frequencies are at most 1."""


def positions() -> Iterator[Variant]:
    kinds: tuple[Kind, ...] = ("positions",)
    for layout, frequency in product((None, *LAYOUTS), (None, *FREQUENCIES)):
        options = {name: value for name, value in (("layout", layout), ("frequency", frequency)) if value}
        names = [names[value] for names, value in ((LAYOUTS, layout), (FREQUENCIES, frequency)) if value]
        if options:
            yield Variant(f"positions: {', and '.join(names)}", kinds, partial(_with_table, options=options))
    for dtype in UNITS:
        yield Variant(f"positions: rounded to {dtype}", kinds, partial(_with_table, options={}, dtype=dtype))
        yield Variant(f"positions: computed in {dtype}", kinds, partial(_computed, dtype=dtype), True)
    yield Variant("positions: frequencies in float32", kinds, _narrow_frequencies, True)
    yield Variant("positions: row of pads not zero", kinds, _pads_not_zero)
    yield Variant("positions: zero at pads", kinds, _zero_at_pads)
    for rows in SHORT_TABLES:
        length = {None: "half the rows", -1: "one row less"}.get(rows, f"{rows} rows")
        yield Variant(
            f"positions: table of {length} with the last repeated",
            kinds,
            partial(_with_short_table, rows=rows, wraps=False),
        )
        yield Variant(
            f"positions: table of {length} read cyclically",
            kinds,
            partial(_with_short_table, rows=rows, wraps=True),
        )
    for index, name in INDICES.items():
        yield configured(f"positions: indexed by {name}", kinds, index=index)
    for offset in (-2, -1, 1, 2):
        name = f"positions: {abs(offset)} too {'far' if offset > 0 else 'near'}"
        yield Variant(name, kinds, partial(moved, by=offset))


def moved(replay: Replay, by: int) -> np.ndarray:
    """Computes the node with its positions shifted."""
    return replay.under(offset=replay.option("offset") + by)


SUMMED = 16.0 * tolerances.FLOAT64_ROUNDOFF
"""The largest error, relative to the sum, of positions that are a sum minus the tokens."""


def read_from_sum(node: Node, received: np.ndarray, known: Mapping[str, np.ndarray]) -> np.ndarray:
    """Recovers the positions in a received embedding by subtracting the tokens.

    Positions of low precision are recognised despite the rounding of the sum, and returned exactly.
    """
    own = known[node.inputs["positions"]]
    if node.parameters or received.shape != known[node.inputs["tokens"]].shape:  # a norm hides them
        return own
    left = received - known[node.inputs["tokens"]]
    allowed = SUMMED * (np.abs(received) + np.abs(left) + 1.0)
    for dtype in UNITS:
        narrow = rounded(left, dtype)
        if (np.abs(narrow - left) <= allowed).all():
            left = narrow
            break
    return left


def _with_table(replay: Replay, options: Mapping[str, Any], dtype: str = "float64") -> np.ndarray:
    """Looks the positions up in another table. Raises LookupError if one of the options is its own."""
    spec = _sinusoids(replay)
    if any(getattr(spec, name) == value for name, value in options.items()):
        raise LookupError("as it is")
    table = formulas.sinusoid_table(replace(spec, **options), replay.stack.d_model, len(replay.parameters["table"]))
    return replay.compute(parameters={"table": rounded(table, dtype)})


def _pads_not_zero(replay: Replay) -> np.ndarray:
    if _sinusoids(replay).index != "non_pad_count":
        raise LookupError("no row of pads")
    return _with_table(replay, {"index": "column"})


def _sinusoids(replay: Replay) -> Sinusoidal:
    """Returns the kind of the stack's table. Raises LookupError if it is a trained one."""
    if not isinstance(replay.stack.positions, Sinusoidal):
        raise LookupError("trained")
    return replay.stack.positions


def _zero_at_pads(replay: Replay) -> np.ndarray:
    return np.where((replay.inputs["ids"] == replay.option("pad_id"))[..., None], 0.0, replay.own)


def _with_short_table(replay: Replay, rows: int | None, wraps: bool) -> np.ndarray:
    """Uses a table with fewer rows than there are positions."""
    numbers = _numbers(replay)
    needed = int(numbers.max()) + 1
    length = needed // 2 if rows is None else rows if rows > 0 else needed + rows
    if not 0 < length < needed or (rows in (None, -1) and length in SHORT_TABLES):
        raise LookupError("long enough, or another case")
    return formulas.rows(replay.parameters["table"], numbers % length if wraps else np.minimum(numbers, length - 1))


def _numbers(replay: Replay) -> np.ndarray:
    """Returns the position number of every token: [1, T], [B, 1] or [B, T]."""
    return formulas.position_numbers(replay.parts["spec"], replay.parts["tokens"], replay.inputs["ids"])


# --- tables computed in low precision: programs differ, so they are recognised by the size of their errors


def _computed(replay: Replay, dtype: str) -> np.ndarray:
    """Returns the received value if it consists of numbers of the dtype and its angles are off by at most rounding;
    otherwise one possible result."""
    exponents, _ = _columns(replay)
    numbers, once = _numbers(replay)[..., None], rounded(replay.own, dtype)
    if np.array_equal(once, replay.own) and replay.is_right:
        raise LookupError("nothing to round")
    allowed = UNITS[dtype] * (ANGLE_ROUNDINGS * numbers / 10000.0**exponents + VALUE_ROUNDINGS)
    is_near = (np.abs(replay.received - replay.own) <= allowed).all()
    if is_near and is_of(replay.received, dtype) and not np.array_equal(replay.received, once):
        return replay.received
    frequencies = _narrow_powers(exponents, dtype)
    return rounded(_at_angles(replay, rounded(rounded(numbers.astype(np.float64), dtype) * frequencies, dtype)), dtype)


def _narrow_frequencies(replay: Replay) -> np.ndarray:
    """Recognises frequencies in float32 with everything else in float64, from a row whose angles are below π."""
    exponents, is_cosine = _columns(replay)
    numbers, offset = _numbers(replay), replay.option("offset")
    exact = 10000.0**-exponents
    (few,) = np.nonzero((numbers.ravel() > offset) & (numbers.ravel() <= MOST_ANGLE))
    if len(few) and np.array_equal(exponents[is_cosine], exponents[~is_cosine]):
        row, number = replay.received.reshape(-1, len(exponents))[few[0]], numbers.ravel()[few[0]]
        found = np.empty(len(exponents))
        found[is_cosine] = found[~is_cosine] = np.arctan2(row[~is_cosine], row[is_cosine]) / number
        narrow = rounded(found, "float32")
        if (np.abs(narrow / exact - 1.0) <= ANGLE_ROUNDINGS * UNITS["float32"]).all():
            return _at_angles(replay, numbers[..., None] * narrow)
    return _at_angles(replay, numbers[..., None] * _narrow_powers(exponents, "float32"))


def _narrow_powers(exponents: np.ndarray, dtype: str) -> np.ndarray:
    """Returns exp(−log 10000 · exponent), rounded at each step."""
    return rounded(np.exp(rounded(-math.log(10000.0) * exponents, dtype)), dtype)


def _columns(replay: Replay) -> tuple[np.ndarray, np.ndarray]:
    """Returns the exponent of every column of the table, and whether it is a cosine, as in `sinusoid_table`.

    Raises:
      LookupError: the table is a trained one.
    """
    spec, width = _sinusoids(replay), replay.stack.d_model
    pairs = np.arange(0, width, 2)
    sine, cosine = {
        "standard": (pairs / width, pairs / width),
        "inclusive": (pairs / max(width - 2, 1), pairs / max(width - 2, 1)),
        "doubled": (2 * pairs / width, 2 * (pairs + 1) / width),
    }[spec.frequency]
    is_cosine = np.arange(width) % 2 == 1 if spec.layout == "interleaved" else np.arange(width) >= width // 2
    exponents = np.empty(width)
    exponents[~is_cosine], exponents[is_cosine] = sine, cosine
    return exponents, is_cosine


def _at_angles(replay: Replay, angles: np.ndarray) -> np.ndarray:
    spec, (_, is_cosine) = _sinusoids(replay), _columns(replay)
    values = np.where(is_cosine, np.cos(angles), np.sin(angles))
    is_of_pads = spec.index == "non_pad_count" and _numbers(replay)[..., None] == spec.offset
    return np.where(is_of_pads, 0.0, values)
