"""Faults of position tables and their indices."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from jax_transformer.comparison.gates import tolerances
from jax_transformer.parity.faults.replay import Replay, Variant, changed
from jax_transformer.parity.faults.rounding import UNITS, is_of, rounded
from jax_transformer.parity.oracle import formulas
from jax_transformer.parity.oracle.graph import Kind, Node, place

if TYPE_CHECKING:
    from jax_transformer.config.model import TransformerConfig


LAYOUTS = {"halves": "sin and cos in halves", "interleaved": "sin and cos interleaved"}
FREQUENCIES = {"standard": "exponents 2i / D", "inclusive": "exponents i / (D/2 − 1)", "doubled": "exponents doubled"}
INDICES = {"column": "column", "batch_row": "batch row", "non_pad_count": "count of real tokens"}

SHORT_TABLES = (128, 256, 500, 512, None, -1)
"""Numbers of rows; None: half of those needed; −1: one less than needed."""
ANGLE_ROUNDINGS = 12.0
"""The largest error of an angle in unit roundoffs: log 10000 = 9.2 for the exponent, and those of the power and the
product."""
VALUE_ROUNDINGS = 2.0
"""The same for its sine or cosine."""
MOST_ANGLE = 3
"""The last position whose angles are all below π: frequencies are 1 at most."""


def positions(config: TransformerConfig) -> Iterator[Variant]:
    kinds: tuple[Kind, ...] = ("positions",)
    if "sinusoidal" in (config.encoder.position_kind, config.decoder.position_kind):
        for layout, frequency in product(LAYOUTS, FREQUENCIES):
            names = [LAYOUTS[layout]] if layout != config.position_layout else []
            names += [FREQUENCIES[frequency]] if frequency != config.position_frequency else []
            if names:
                changes = {"position_layout": layout, "position_frequency": frequency}
                yield Variant(f"positions: {', and '.join(names)}", kinds, partial(_of_table, changes=changes))
        for dtype in UNITS:
            yield Variant(f"positions: rounded to {dtype}", kinds, partial(_of_table, changes={}, dtype=dtype))
            yield Variant(f"positions: computed in {dtype}", kinds, partial(_computed, dtype=dtype), True)
        yield Variant("positions: frequencies in float32", kinds, _narrow_frequencies, True)
        if config.position_index == "non_pad_count":
            yield Variant(
                "positions: row of pads not zero", kinds, partial(_of_table, changes={"position_index": "column"})
            )
    yield Variant("positions: zero at pads", kinds, _zero_at_pads)
    for rows in SHORT_TABLES:
        length = {None: "half the rows", -1: "one row less"}.get(rows, f"{rows} rows")
        yield Variant(
            f"positions: table of {length} whose last is read again",
            kinds,
            partial(_of_short_table, rows=rows, wraps=False),
        )
        yield Variant(
            f"positions: table of {length} read from the first again",
            kinds,
            partial(_of_short_table, rows=rows, wraps=True),
        )
    for index, name in INDICES.items():
        if index != config.position_index:
            yield Variant(f"positions: indexed by {name}", kinds, partial(Replay.under, position_index=index))
    for offset in (-2, -1, 1, 2):
        name = f"positions: {abs(offset)} too {'far' if offset > 0 else 'near'}"
        yield Variant(name, kinds, partial(Replay.under, position_offset=config.position_offset + offset))


SUMMED = 16.0 * tolerances.FLOAT64_ROUNDOFF
"""The largest error, relative to the sum, of positions that are a sum minus the tokens."""


def read_from_sum(
    config: TransformerConfig, node: Node, received: np.ndarray, known: Mapping[str, np.ndarray]
) -> np.ndarray:
    """Returns the positions in a received embedding: what is left of it without the tokens.

    Positions of low precision are told from the rounding of the sum, and returned exactly.
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


def _of_table(replay: Replay, changes: Mapping[str, Any], dtype: str = "float64") -> np.ndarray:
    _require_sinusoids(replay)
    table = formulas.sinusoid_table(changed(replay.config, **changes), len(replay.parameters["table"]))
    return replay.compute(parameters={"table": rounded(table, dtype)})


def _require_sinusoids(replay: Replay) -> None:
    """Raises LookupError if the table is a trained one."""
    if replay.stack.position_kind != "sinusoidal":
        raise LookupError("trained")


def _zero_at_pads(replay: Replay) -> np.ndarray:
    pad_id = replay.config.source_pad_id if place(replay.node.name).stack == "encoder" else replay.config.target_pad_id
    return np.where((replay.inputs["ids"] == pad_id)[..., None], 0.0, replay.own)


def _of_short_table(replay: Replay, rows: int | None, wraps: bool) -> np.ndarray:
    """Uses a table with fewer rows than there are positions."""
    numbers = _numbers(replay)
    needed = int(numbers.max()) + 1
    length = needed // 2 if rows is None else rows if rows > 0 else needed + rows
    if not 0 < length < needed or (rows in (None, -1) and length in SHORT_TABLES):
        raise LookupError("long enough, or one of the others")
    return formulas.rows(replay.parameters["table"], numbers % length if wraps else np.minimum(numbers, length - 1))


def _numbers(replay: Replay) -> np.ndarray:
    """Returns the position number of every token: [1, T], [B, 1] or [B, T]."""
    stack: formulas.Stack = "encoder" if place(replay.node.name).stack == "encoder" else "decoder"
    return formulas.position_numbers(replay.config, replay.inputs["ids"], stack)


# --- tables computed in low precision: programs differ, so they are recognised by the size of their errors


def _computed(replay: Replay, dtype: str) -> np.ndarray:
    """Returns the received value if it consists of numbers of the dtype and its angles are off by rounding at most;
    otherwise one way to compute it."""
    _require_sinusoids(replay)
    exponents, _ = _columns(replay.config)
    numbers, once = _numbers(replay)[..., None], rounded(replay.own, dtype)
    if np.array_equal(once, replay.own) and replay.is_right:
        raise LookupError("nothing to round")
    allowed = UNITS[dtype] * (ANGLE_ROUNDINGS * numbers / 10000.0**exponents + VALUE_ROUNDINGS)
    is_near = (np.abs(replay.received - replay.own) <= allowed).all()
    if is_near and is_of(replay.received, dtype) and not np.array_equal(replay.received, once):
        return replay.received
    frequencies = _narrow_powers(exponents, dtype)
    return rounded(_of_angles(replay, rounded(rounded(numbers.astype(np.float64), dtype) * frequencies, dtype)), dtype)


def _narrow_frequencies(replay: Replay) -> np.ndarray:
    """Recognises frequencies in float32 with everything else in float64, from a row whose angles are below π."""
    _require_sinusoids(replay)
    exponents, is_cosine = _columns(replay.config)
    numbers, offset = _numbers(replay), replay.config.position_offset
    exact = 10000.0**-exponents
    (few,) = np.nonzero((numbers.ravel() > offset) & (numbers.ravel() <= MOST_ANGLE))
    if len(few) and np.array_equal(exponents[is_cosine], exponents[~is_cosine]):
        row, number = replay.received.reshape(-1, len(exponents))[few[0]], numbers.ravel()[few[0]]
        found = np.empty(len(exponents))
        found[is_cosine] = found[~is_cosine] = np.arctan2(row[~is_cosine], row[is_cosine]) / number
        narrow = rounded(found, "float32")
        if (np.abs(narrow / exact - 1.0) <= ANGLE_ROUNDINGS * UNITS["float32"]).all():
            return _of_angles(replay, numbers[..., None] * narrow)
    return _of_angles(replay, numbers[..., None] * _narrow_powers(exponents, "float32"))


def _narrow_powers(exponents: np.ndarray, dtype: str) -> np.ndarray:
    """Returns exp(−log 10000 · exponent), rounded at each step."""
    return rounded(np.exp(rounded(-math.log(10000.0) * exponents, dtype)), dtype)


def _columns(config: TransformerConfig) -> tuple[np.ndarray, np.ndarray]:
    """Returns the exponent of every column of the table, and whether it is a cosine, as in `sinusoid_table`."""
    width = config.d_model
    pairs = np.arange(0, width, 2)
    sine, cosine = {
        "standard": (pairs / width, pairs / width),
        "inclusive": (pairs / max(width - 2, 1), pairs / max(width - 2, 1)),
        "doubled": (2 * pairs / width, 2 * (pairs + 1) / width),
    }[config.position_frequency]
    is_cosine = np.arange(width) % 2 == 1 if config.position_layout == "interleaved" else np.arange(width) >= width // 2
    exponents = np.empty(width)
    exponents[~is_cosine], exponents[is_cosine] = sine, cosine
    return exponents, is_cosine


def _of_angles(replay: Replay, angles: np.ndarray) -> np.ndarray:
    _, is_cosine = _columns(replay.config)
    values = np.where(is_cosine, np.cos(angles), np.sin(angles))
    is_of_pads = (
        replay.config.position_index == "non_pad_count" and _numbers(replay)[..., None] == replay.config.position_offset
    )
    return np.where(is_of_pads, 0.0, values)
