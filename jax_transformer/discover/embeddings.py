"""Read the start of a stack: token embeddings, their factor, positions and norm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from jax_transformer.config.positions import Sinusoidal
from jax_transformer.discover.graph import CLOSE, Graph, distance
from jax_transformer.discover.norms import Norm
from jax_transformer.discover.problems import Unknown
from jax_transformer.discover.sums import Sum, Sums
from jax_transformer.parity.oracle import formulas
from jax_transformer.programs.trace import Value

if TYPE_CHECKING:
    from jax_transformer.discover.findings import Structure

GROWING = 512
"""max_length of a stack whose module computes its positions for any length."""
ROUNDED = 1e-4
"""Largest error of a sinusoidal table computed in float32, against float64. The module's table itself is copied, so
nothing is lost."""


@dataclass(frozen=True, eq=False)
class Embedding:
    """Holds a stack's token embeddings."""

    table: np.ndarray
    """Elements [V, D]"""
    ids: np.ndarray
    """The ids that are looked up [B, P], which the program may have added to."""


def read_embedding(
    graph: Graph, sums: Sums, stream: Sum, norms: Mapping[Value, Norm], stack: str, result: Structure
) -> Embedding:
    """Reads the stream that a stack begins with, and sets the fields and leaves that follow.

    Raises:
      Unknown: it isn't factor · embedding + positions, perhaps normed.
    """
    placement = "none"
    norm = norms.get(stream.only) if stream.only is not None else None
    if norm is not None:
        placement, stream = "after_positions", sums.of(norm.inputs)
    else:
        normed = [term for term in stream.terms if term in norms]
        if len(normed) == 1 and stream.terms[normed[0]] == 1.0:
            norm, placement = norms[normed[0]], "before_positions"
            stream = sums.of(norm.inputs).plus(stream.without(normed[0]))
    result.fields[f"{stack}.embedding_norm"] = placement
    if norm is not None:
        result.norm(f"{stack}/embedding_norm", norm, None)
    side = "source" if stack == "encoder" else "target"
    tokens = [term for term in stream.terms if term in graph.lookups]
    unknown = [term for term in stream.terms if term not in graph.lookups]
    if unknown:
        whole, part = sums.values(stream), sums.values(Sum({term: stream.terms[term] for term in unknown}))
        apart = distance(whole - part, whole)
        raise Unknown(unknown[0], f"a part of the {stack}'s embedding that isn't known", ("the sum without it", apart))
    by_ids = [term for term in tokens if _reads_token_ids(graph, graph.lookups[term].ids, f"{side}_ids")]
    if len(by_ids) != 1:
        (where, *_) = (*by_ids[1:], *tokens, graph.recording.output)
        what = f"{len(by_ids)} embeddings of {side}_ids" if by_ids else f"no embedding of {side}_ids, but of other ids"
        raise Unknown(where, f"{what}, where the {stack} begins")
    lookup, factor = graph.lookups[by_ids[0]], stream.terms[by_ids[0]]
    result.factors[stack] = factor
    result.fields[f"{side}.trains_pad"] = _row_without_gradient(lookup.value) is None
    others = [term for term in tokens if term is not by_ids[0]]
    _positions(graph, stream, others, stack, result)
    result.leaves[f"{side}_embedding/embedding"] = lookup.table
    result.fields[f"{side}.vocab_size"] = len(lookup.table)
    ids = lookup.ids.array
    return Embedding(lookup.table, ids if ids.shape == lookup.outputs.shape[:2] else ids.T)


def _reads_token_ids(graph: Graph, ids: Value, name: str) -> bool:
    """Returns whether a lookup reads the input ids rather than numbers computed from them."""
    if ids.op == name:
        return True
    input_ids = next(value for value in graph.recording.values if value.op == name).array
    if not ids.depends_on_ids or ids.array.ndim != 2:
        return False
    cuts = (held[:, : input_ids.shape[1]] for held in (ids.array, ids.array.T))  # the program may add tokens or cut off
    return any(cut.size > 0 and np.array_equal(cut, input_ids[:, : cut.shape[1]]) for cut in cuts)


def _row_without_gradient(value: Value) -> int | None:
    """Returns the row of the table that a lookup (nn.Embedding's padding_idx) doesn't train."""
    return value.args[2] if value.op == "embedding" and len(value.args) > 2 and value.args[2] >= 0 else None


# --- positions


def _positions(graph: Graph, stream: Sum, lookups: list[Value], stack: str, result: Structure) -> None:
    parts = [(factor, graph.values(table), table) for factor, table in stream.tables]
    options = f"{stack}.positions"
    parts += [
        (stream.terms[one], graph.values(graph.lookups[one].outputs), graph.lookups[one].outputs) for one in lookups
    ]
    if not parts:
        result.fields[f"{options}.kind"] = "none"
        return
    where = next(iter(stream.terms))
    if len(parts) > 1:
        raise Unknown(where, f"{len(parts)} tables of positions in the {stack}, not one")
    factor, values, elements = parts[0]
    result.fields[f"{options}.factor"] = 1.0 if abs(factor - 1) < 1e-12 else factor
    scaled = _scaled(graph, elements)
    result.fields[f"{options}.learned_scale"] = scaled is not None
    if scaled is not None:
        result.leaves[f"{stack}/position_scale/factor"], elements = scaled
        values = graph.values(elements)
    table, numbers = _table(graph, values, elements, lookups)
    index = _index(values, numbers, where)
    result.fields[f"{options}.index"] = index
    first = 0 if numbers is None else int(numbers.min())
    held = graph.values(table) if table is not None else values[:, 0] if index == "batch_row" else values[0]
    fit, (error, runner_up) = _sinusoid(held)
    stored = graph.recording.roots(elements if table is None else table)
    is_trained = all(root.trains for root in stored)
    if not is_trained and any(one.trains for root in stored for one in root.parameters):
        raise Unknown(stored[0], "positions computed from trained parameters")
    if is_trained and table is not None:
        result.fields[f"{options}.kind"] = "learned"
        offset = first
        result.leaves[f"{stack}/positions/embedding"] = table
        readers = (value for value in graph.recording.values if stored[0] in value.inputs)
        row = next((row for value in readers if (row := _row_without_gradient(value)) is not None), None)
        if row is not None and index == "column" and first <= row < first + values.shape[1]:
            result.notes.append(
                f"{stack}: row {row} of {stored[0].names[0]} gets no gradient (padding_idx); the model trains it"
            )
        result.conclude(f"{stack} positions", f"learned, offset {first}", 0.0, runner_up)
    else:
        layout, frequency, shift = fit or ("interleaved", "standard", 0)
        result.fields[f"{options}.kind"] = "sinusoidal"
        result.fields |= {f"{options}.layout": layout, f"{options}.frequency": frequency}
        offset = first + shift
        before = sinusoids(shift, held.shape[1], layout, frequency) if shift else held[:0]
        held = np.concatenate([before, held])
        if table is None and fit is not None:
            held = _extended(held, layout, frequency)
        if table is not None and not shift and all(root.op == "buffer" and root.names for root in stored):
            result.leaves[f"constants/{stack}_positions"] = table
        result.tables[f"{stack}_positions"] = held
        if fit is None:
            result.notes.append(
                f"{stack}: its table of positions is no known one (nearest: {runner_up[0]}); it is carried over"
            )
        kind = "a table of its own" if fit is None else f"{layout} {frequency}"
        result.conclude(f"{stack} positions", f"{kind}, offset {offset}", error, runner_up)
    result.fields[f"{options}.offset"] = offset
    result.rows[stack] = None if table is None and fit is not None else len(held) - offset - (index == "non_pad_count")


def _extended(held: np.ndarray, layout: Any, frequency: Any) -> np.ndarray:
    """Returns a table of positions that a module computes for any length, for as many as a config allows by default."""
    rows = sinusoids(GROWING, held.shape[1], layout, frequency)
    if distance(rows[: len(held)], held) > CLOSE:
        rows = rows.astype(np.float32).astype(np.float64)  # as the module's own precision
    return np.concatenate([held, rows[len(held) :]])


def _scaled(graph: Graph, elements: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Returns the element [1] of a trained number that a table is multiplied with, and the table's elements."""
    root = graph.root_of(elements)
    if root is None or root.op != "mul" or len(root.inputs) != 2:
        return None
    for number, table in (root.inputs, root.inputs[::-1]):
        stored = graph.recording.root(number)
        if stored is not None and stored.trains and stored.array.size == 1:
            before = graph.operand(root, table, elements)
            return None if before is None else (graph.recording.own(stored).reshape(1), before)
    return None


def _index(values: np.ndarray, numbers: np.ndarray | None, where: Value) -> str:
    """Determines the index of a table's rows: the column, the row of the batch, or the count of real tokens.

    Raises:
      Unknown: another index.
    """
    if (values == values[:1]).all():
        return "column"
    if (values == values[:, :1]).all():
        return "batch_row"
    if numbers is not None:
        counts = numbers - numbers.min()
        if all((row[row > 0] == np.arange(1, 1 + (row > 0).sum())).all() for row in counts):
            return "non_pad_count"
    apart = distance(np.broadcast_to(values[:1], values.shape), values)
    what = "positions that follow neither the column, the row of the batch, nor the count of real tokens"
    raise Unknown(where, what, ("by column", apart))


def _table(
    graph: Graph, values: np.ndarray, elements: np.ndarray, lookups: list[Value]
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Returns the elements [R, D] of the stored table that the positions are rows of, and the rows' numbers [B, P]."""
    if lookups:
        lookup = graph.lookups[lookups[0]]
        ids = lookup.ids.array
        return lookup.table, ids if ids.shape == values.shape[:2] else _rows(graph, lookup.table, values)
    width = values.shape[2]
    root = graph.root_of(elements[:, :, 0])
    stored = [*root.parameters, *root.inputs, root] if root is not None else []
    for one in stored:
        own = graph.recording.own(one)
        if one.array.ndim < 2 or own.shape[-1] != width or not one.is_float:
            continue
        table = own.reshape(-1, width)
        rows = _rows(graph, table, values)
        if rows.min() >= 0:
            return table, rows
    return None, None


def _rows(graph: Graph, table: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Returns the number [B, P] of the first row of a table that equals each vector of values [B, P, D], −1 if none
    does."""
    held = {row.tobytes(): number for number, row in reversed(list(enumerate(graph.values(table))))}
    return np.array([[held.get(np.ascontiguousarray(row).tobytes(), -1) for row in line] for line in values])


def _sinusoid(table: np.ndarray) -> tuple[tuple[str, str, int] | None, tuple[float, tuple[str, float]]]:
    """Returns layout, frequency and the first row's position of a sinusoidal table, with its residual and the
    runner-up."""
    fits = []
    for layout, frequency, shift in product(("interleaved", "halves"), ("standard", "inclusive", "doubled"), range(3)):
        if table.shape[1] % 2 == 0:
            expected = sinusoids(len(table) + shift, table.shape[1], layout, frequency)[shift:]
            fits.append((distance(expected, table), (layout, frequency, shift)))
    fits.sort(key=lambda fit: fit[0])
    if not fits:
        return None, (float("inf"), ("nothing", float("inf")))
    (error, best), (second, other) = fits[:2]
    is_known = error <= ROUNDED
    runner_up = " ".join(map(str, other if is_known else best)), second if is_known else error
    return (best if is_known else None), (error if is_known else 0.0, runner_up)


def sinusoids(rows: int, width: int, layout: Any, frequency: Any) -> np.ndarray:
    """Returns a table [rows, width] (Vaswani et al. 2017, §3.5, and its variants)."""
    return formulas.sinusoid_table(Sinusoidal(layout=layout, frequency=frequency), width, rows)
