"""Tell which kind an edit is of, and which of several is the simplest."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from jax_transformer.proof.index import fingerprint
from jax_transformer.proof.repair.bench import Bench
from jax_transformer.proof.repair.causes import KINDS, Kind
from jax_transformer.proof.repair.edits import Edit
from jax_transformer.proof.tape import Operand


def rank(bench: Bench, edit: Edit) -> tuple[int, int, int]:
    """Returns how complex an edit is. Elements are in a wrong order where they are moved, not where they are
    read."""
    kind = kind_of(bench, edit)
    is_moved = kind == "order" and not is_whole_weight(bench, edit)
    return edit.cost, KINDS.index(kind), edit.place.entry if is_moved else 0


def rank_of(bench: Bench, edits: Sequence[Edit]) -> tuple[int, int, int, int]:
    cost, kind, place = max(map(partial(rank, bench), edits))
    return cost, kind, len(edits), place


def kind_of(bench: Bench, edit: Edit) -> Kind:
    value, source = bench.value_at(edit.place), bench.reference.replay.values[edit.source]
    if value.known is not None and source.known is not None:
        return "constant"
    if bench.candidate.weight(value) and bench.reference.weight(source):
        is_same = bench.candidate.weight(value) == bench.reference.weight(source)
        return "order" if is_same else "weight"
    if has_same_elements(bench, edit) or _has_same_root(bench, edit):
        return "order"
    if edit.cost:
        return "missing" if _is_missing(bench, edit) else "operation"
    if isinstance(edit.place, Operand):
        return "operand"
    own = bench.own_value(bench.reference.array(edit.source), edit.place.entry)
    is_left_out = own is not None and own.ref.entry in bench.candidate.above([edit.place.entry])
    return "left out" if is_left_out else "operation"


def is_whole_weight(bench: Bench, edit: Edit) -> bool:
    """Returns whether an edit reads all elements of the weight that is read now."""
    return bool(bench.candidate.weight(bench.value_at(edit.place))) and has_same_elements(bench, edit)


def has_same_elements(bench: Bench, edit: Edit) -> bool:
    array, current = bench.reference.array(edit.source), bench.at.array(bench.value_at(edit.place))
    return array is not None and current is not None and fingerprint(array) == fingerprint(current)


def _has_same_root(bench: Bench, edit: Edit) -> bool:
    """Returns whether an operand and its replacement have elements of one value, such as the tokens of a layer."""
    value, source = bench.value_at(edit.place), bench.reference.replay.values[edit.source]
    roots = bench.candidate.root(value), bench.reference.root(source)
    if edit.cost or not isinstance(edit.place, Operand) or None in roots or roots == (value.node, source.node):
        return False
    arrays = [bench.at.array_of(root) for root in roots if root is not None]
    prints = {None if array is None else fingerprint(array) for array in arrays}
    return len(prints) == 1 and None not in prints


def _is_missing(bench: Bench, edit: Edit) -> bool:
    """Returns whether the reference computes a source from a value that the candidate has in its place."""
    return bench.is_above(bench.value_at(edit.place), edit.source)
