"""Move an optimizer's arrays between PyTorch's parameters and ours, by the table that moves the parameters.

A moment has its parameter's axes, so the same rules apply to it. Adafactor's factors are the means of a matrix's rows
and columns, which become means over inputs and outputs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from jax_transformer.mapping.rules import Place, Rule, Shapes, leaves_from_tensors, tensors_from_leaves
from jax_transformer.model.matrices import matrix_size
from jax_transformer.porting.optimizers.kinds import Kind
from jax_transformer.storage.tensor_files import as_array
from jax_transformer.storage.tensors import PortingError

Slots = dict[str, dict[str, np.ndarray]]
"""Arrays by slot and by the parameter's path."""
Entries = Mapping[str, Mapping[str, Any]]
"""The state of each parameter by name."""


@dataclass(frozen=True)
class Table:
    """Holds a dialect's rules for the parameters of a model, without its constants."""

    rules: list[Rule]
    shapes: Shapes
    """The shape of every leaf, by path."""

    constants: tuple[str, ...] = ()
    """Names of the tensors that are constants here. A program may count them among its parameters."""

    @classmethod
    def of(cls, rules: Sequence[Rule], shapes: Shapes) -> Table:
        """Returns the table of a dialect's rules and of the shapes of a model's leaves, constants included."""

        def is_constant(path: str) -> bool:
            return path.startswith("constants/")

        held = [rule for rule in rules if all(path in shapes for path in rule.paths)]
        constants = [name for rule in held if is_constant(rule.paths[0]) for name in rule.all_names]
        trained = {path: shape for path, shape in shapes.items() if not is_constant(path)}
        return cls([rule for rule in held if not is_constant(rule.paths[0])], trained, tuple(constants))

    def shapes_of(self, order: Sequence[str]) -> dict[str, tuple[int, ...]]:
        """Returns the shapes of the tensors by name; tied ones once, under the first of their names in `order`."""
        numbers = {name: number for number, name in enumerate(order)}
        found = {}
        for rule in self.rules:
            for place in rule.places(self.shapes):
                names = sorted((name for name in place.names if name in numbers), key=numbers.__getitem__)
                found[(names or place.required(()))[0]] = rule.torch_shape(self.shapes)
        return found

    def names_of(self, paths: Collection[str]) -> set[str]:
        """Returns every name of the tensors of these leaves."""
        part = self.only(paths)
        return {name for rule in part.rules for place in rule.places(part.shapes) for name in place.names}

    def only(self, paths: Collection[str]) -> Table:
        """Returns the table of the rules all of whose leaves are among these."""
        rules = [rule for rule in self.rules if all(path in paths for path in rule.paths)]
        return Table(rules, {path: self.shapes[path] for rule in rules for path in rule.paths})

    def paths_of(self, names: Collection[str]) -> list[str]:
        """Returns the paths of the leaves whose tensors all have one of these names.

        Raises:
          PortingError: leaves of which only some tensors have one: a stack's layers are one leaf here.
        """
        paths: list[str] = []
        problems = []
        for rule in self.rules:
            places = rule.places(self.shapes)
            missing = [place.names[0] for place in places if not any(name in names for name in place.names)]
            if not missing:
                paths += rule.paths
            elif len(missing) < len(places):
                problems.append(f"{rule.paths[0]}: all layers or none; received none for {', '.join(missing[:3])}")
        if problems:
            raise PortingError("optimizer: expected layers that are trained, or frozen, together", problems)
        return paths


def slots_from_entries(kind: Kind, entries: Entries, table: Table) -> Slots:
    """Returns an optimizer's arrays by slot and path, for the leaves of the table.

    Raises:
      PortingError: arrays that are missing, not finite, or of other shapes; Adafactor's factors of a tensor that is
        several matrices here.
    """
    slots: Slots = {}
    for part in _parts(kind, table):
        found = {tuple(place.required(())): _entry(place, entries) for place in _places(part)}
        for key, slot in kind.slots.items():
            arrays = {names: as_array(entry[key]) for names, entry in found.items() if entry.get(key) is not None}
            if not arrays and kind.optimizer == "adafactor":
                continue  # it keeps factors or squares
            tensors = {name: array for names, array in arrays.items() for name in names}
            if slot in ("rows", "columns"):
                slot, path, leaf = _leaf_of_factors(slot, [array.reshape(-1) for array in arrays.values()], part)
                slots.setdefault(slot, {})[path] = leaf
            else:
                leaves = leaves_from_tensors(part.rules, tensors, part.shapes, f"optimizer: {key}")
                slots.setdefault(slot, {}).update({path: np.asarray(leaf) for path, leaf in leaves.items()})
    return slots


def entries_from_slots(
    kind: Kind, slots: Mapping[str, Mapping[str, Any]], table: Table
) -> dict[str, dict[str, np.ndarray]]:
    """Returns the arrays of each parameter by the keys of PyTorch's optimizer, under every name that tied tensors
    have: the inverse of `slots_from_entries`."""
    entries: dict[str, dict[str, np.ndarray]] = {}
    for part in _parts(kind, table):
        for key, slot in kind.slots.items():
            for place, array in _tensors(slot, slots, part):
                if kind.factors_keep_axes and slot in ("rows", "columns"):
                    array = array[:, None] if slot == "rows" else array[None]
                for name in place.names:
                    entries.setdefault(name, {})[key] = array
    return entries


def _tensors(slot: str, slots: Mapping[str, Mapping[str, Any]], part: Table) -> Iterator[tuple[Place, np.ndarray]]:
    """Yields the tensor of each place that a slot has one for."""
    if slot in ("rows", "columns"):
        (path,) = part.shapes
        if path in slots.get("input_squares", {}):
            factor = _factor(slot, part)
            leaf = np.asarray(slots[factor.slot][path])
            yield from ((place, factor.tensor(leaf[place.index])) for place in _places(part))
    elif all(path in slots.get(slot, {}) for path in part.shapes):
        leaves = {path: np.asarray(slots[slot][path]) for path in part.shapes}
        tensors = tensors_from_leaves(part.rules, leaves, part.shapes, what=f"optimizer: {slot}")
        yield from ((place, np.asarray(tensors[place.required(())[0]])) for place in _places(part))


def _parts(kind: Kind, table: Table) -> list[Table]:
    """Returns the parts of a table that are converted at a time: all of it, or for Adafactor, which keeps parameters in
    two ways, each rule's."""
    if kind.optimizer != "adafactor":
        return [table]
    return [Table([rule], {path: table.shapes[path] for path in rule.paths}) for rule in table.rules]


def _places(table: Table) -> list[Place]:
    return [place for rule in table.rules for place in rule.places(table.shapes)]


def _entry(place: Place, entries: Entries) -> Mapping[str, Any]:
    """Returns the state of a place's tensor, under whichever of its names it is kept."""
    return entries[next(name for name in place.names if name in entries)]


# --- Adafactor's factors


class Factor(NamedTuple):
    """Relates the means of a torch matrix's rows, or columns, to the means over a kernel's outputs or inputs."""

    slot: str
    order: np.ndarray
    """The number of the row (or column) that each input (or output) has in the torch matrix."""

    def tensor(self, leaf: np.ndarray) -> np.ndarray:
        """Returns one layer's means in the order of the torch matrix."""
        means = np.empty_like(leaf)
        means[self.order] = leaf
        return means


def _factor(slot: str, part: Table) -> Factor:
    """Finds where the rows or columns of a rule's torch matrix lie in its kernel, by moving their numbers there.

    Raises:
      PortingError: the torch matrix is several here, or one of several, so that the factors have other means.
    """
    (rule,) = part.rules
    path, shape = rule.paths[0], part.shapes[rule.paths[0]]
    size, torch_shape = matrix_size(path, shape), rule.torch_shape(part.shapes)
    if len(rule.paths) > 1 or rule.counts or size is None or len(torch_shape) != 2:
        raise PortingError(
            f"optimizer: expected a matrix here for each one whose factors Adafactor keeps; received "
            f"{rule.names[0]} for {', '.join(rule.paths)}"
        )
    rows, columns = np.indices(torch_shape)

    def moved(numbers: np.ndarray) -> np.ndarray:
        leaf = rule.axes.split([numbers], rule.leaf_shape(part.shapes))[0] if rule.axes else numbers
        return leaf.reshape(size)

    follows_inputs = bool((moved(columns) == moved(columns)[:1]).all() and (moved(rows) == moved(rows)[:, :1]).all())
    numbers = moved(rows if slot == "rows" else columns)
    is_of_inputs = follows_inputs == (slot == "rows")
    return Factor("input_squares", numbers[:, 0]) if is_of_inputs else Factor("output_squares", numbers[0])


def _leaf_of_factors(slot: str, arrays: list[np.ndarray], part: Table) -> tuple[str, str, np.ndarray]:
    """Returns the slot, the path and the leaf of the factors of a rule's tensors, one for each layer."""
    factor, (rule,) = _factor(slot, part), part.rules
    if len(arrays) != len(rule.places(part.shapes)) or any(array.shape != factor.order.shape for array in arrays):
        raise PortingError(
            f"optimizer: expected {slot} {list(factor.order.shape)} of each tensor of {rule}; received "
            f"{', '.join(str(list(array.shape)) for array in arrays)}"
        )
    layers = [array[factor.order] for array in arrays]
    return factor.slot, rule.paths[0], np.stack(layers) if rule.stacked else layers[0]
