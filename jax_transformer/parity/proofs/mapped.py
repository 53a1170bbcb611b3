"""Proves programs that hold weights of their own: finds the map between these, and carries one side's over."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from jax_transformer.comparison.capture import check_module
from jax_transformer.comparison.gates.arrays import Arrays, ParityError
from jax_transformer.comparison.lowering import AnyProgram, AnyTwo, weights_of
from jax_transformer.frozen.candidates import CarriedCandidate, lowered_reference
from jax_transformer.frozen.freezing import Subject
from jax_transformer.frozen.record import Frozen
from jax_transformer.frozen.sides import FrozenSide, check_same_inputs
from jax_transformer.mapping.maps import NameMap
from jax_transformer.matching.carrying import facts_of, through
from jax_transformer.matching.finding import FoundMap, find_map, tied
from jax_transformer.matching.giving import Converter, given_map
from jax_transformer.matching.programs import PureProgram, pure_program, with_one_output
from jax_transformer.matching.sides import flattened, is_filled, weights_by_name
from jax_transformer.parity.freezing import as_frozen
from jax_transformer.parity.sides.options import Side
from jax_transformer.proof.distinct import distinct


class MappedPair:
    """Two programs with weights of their own, and the map between them.

    The weights of one side, a PyTorch module's if there is one, are the variables of a proof. The other side, a JAX
    program, reads them through the map.

    Args:
      inputs: by argument.
      given: a map, or a function that converts weights, from the names of the side whose weights are the variables;
        None: it is found.

    Raises:
      ParityError: no side is a JAX program; a side can't be called on these inputs; the given map doesn't fit.
      UnknownOperation: an operation that a map needs has no rule.
    """

    def __init__(
        self, candidate: Side, reference: Side, inputs: Arrays, seed: int, given: NameMap | Converter | None = None
    ) -> None:
        sides = candidate, reference
        if reference.program is None:
            raise ParityError("inputs: expected two programs; received one")
        self.names = [one.label for one in sides]
        self.inputs = inputs
        programs = [_program(one, name) for one, name in zip(sides, self.names, strict=True)]
        self.carried_side = 0 if isinstance(programs[0], PureProgram) else 1
        own, other = programs[self.carried_side], programs[1 - self.carried_side]
        if isinstance(other, Frozen):
            self._read_frozen(own, other, given, seed)
            return
        if not isinstance(own, PureProgram):
            raise ParityError("expected weights of the same names in two PyTorch modules; use names to map them")
        is_pure = isinstance(other, PureProgram)
        self.constants: tuple[str, ...] = ()
        program, params = (other.function, other.params) if is_pure else (other, None)
        if given is not None:
            self.found, tree = given_map(given, weights_by_name(*own), weights_by_name(program, params))
            own = own if tree is None else own._replace(params=tree)
            counts = _matched(self.found, self.found.partners)
            self.constants = () if is_pure else _frozen(program, [name for name, count in counts.items() if not count])
        else:
            find = partial(
                find_map,
                own.function,
                program,
                inputs,
                candidate_params=own.params,
                reference_params=params,
                seed=seed,
            )
            self.found = find()
            self.constants = () if is_pure else _frozen(program, self.found.unused)
            if self.constants:
                self.found = find(constants=self.constants)
                fewer = _without(self.constants, own.params, program, self.found.missing)
                if {*fewer} < {*self.constants}:
                    self.constants, self.found = fewer, find(constants=fewer)
        self.is_given = given is not None
        if self.found.missing:
            return
        held, read = (flattened(other.params)[0], _by_names(other)) if is_pure else (weights_of(other, None), other)
        self._held: Mapping[str, np.ndarray] = held
        weights = {name: array for name, array in held.items() if name not in self.constants}
        pair = [read, through(own, self.found)] if self.carried_side else [through(own, self.found), read]
        ours, theirs = (AnyProgram(name, each, inputs, weights) for name, each in zip(self.names, pair, strict=True))
        self._pair(own, ours, theirs)

    def _pair(self, own: PureProgram, ours: Any, theirs: Any) -> None:
        """Pairs both programs, of which `own` is the one whose weights are carried over."""
        self._own, self.two = own, AnyTwo(ours, theirs)
        leaves = flattened(own.params)[0]
        named = AnyProgram(self.names[self.carried_side], _by_names(own), self.inputs, leaves).reads(leaves)
        self._read = {name: self.found.partners[name] for name in leaves if name in named}
        self.conditions = (*self.two.conditions, *self._conditions())

    def carried_params(self) -> Any:
        """Returns the tree of the side whose weights are carried over, with the numbers of the other side."""
        leaves, rebuilt = flattened(self._own.params)
        found = self.found.to_candidate(self._held)
        return rebuilt({name: np.asarray(found.get(name, leaf), leaf.dtype) for name, leaf in leaves.items()})

    def _conditions(self) -> tuple[str, ...]:
        """Lists the weights that one program has apart, and that are one in the other, one text for each of these."""
        side, other = ("candidate", "reference")[:: -1 if self.carried_side else 1]
        return tuple(
            f"{' and '.join(names) if len(names) > 1 else f'elements of {names[0]}'} of the {side} are equal, as they "
            f"are one in the {other}"
            for names in tied(self._read)
        )

    def has_too_few(self) -> bool:
        """Returns whether one program reads fewer numbers than the other one's tensors have that some of its weights
        match, or none does: then no map makes it read them all."""
        found, needed = self.found, 0
        for name, count in _matched(found, self._read).items():
            needed += count or (0 if name in found.unread else math.prod(found.tensors[name]))
        return sum(each.size for each in self._read.values()) < needed

    def _read_frozen(self, own: Any, other: Frozen, given: NameMap | Converter | None, seed: int) -> None:
        """Carries the weights of a frozen reference to the program."""
        if not isinstance(own, PureProgram) or self.carried_side:
            raise ParityError("expected a JAX program as the candidate of a proof with a frozen reference")
        check_same_inputs(self.inputs, other)
        carried = CarriedCandidate(Subject(own.function, own.params, self.names[0]), other, given, seed)
        self.found, self.constants, self.is_given = carried.found, carried.constants, given is not None
        if self.found.missing:
            return
        lowered_reference(other, self.constants)  # which raises if there is none
        self._held, theirs = other.weights, FrozenSide(other, self.constants)
        ours = AnyProgram(self.names[0], through(carried.program, self.found), self.inputs, theirs.weights)
        self._pair(carried.program, ours, theirs)

    def facts(self) -> dict[str, tuple[str, ...]]:
        """Returns what a certificate says of the map: how much of it was found, and what is unlike its siblings."""
        return facts_of(self.found, self.names[self.carried_side], self.constants, is_given=self.is_given)


def _matched(found: FoundMap, partners: Mapping[str, np.ndarray]) -> dict[str, int]:
    """Counts the elements of each tensor that some of these leaves read."""
    matched = distinct(np.concatenate([np.ravel(each) for each in partners.values()] or [np.zeros(0, np.int64)]))
    counts, first = dict[str, int](), 0
    for name, shape in found.tensors.items():
        size = math.prod(shape)
        counts[name] = int(((matched >= first) & (matched < first + size)).sum())
        first += size
    return counts


def _frozen(module: Any, names: Collection[str]) -> tuple[str, ...]:
    """Returns the tables among these tensors that a module doesn't train, under all of their names."""
    held = module.state_dict(keep_vars=True)
    frozen = [held[name] for name in names if not (held[name].requires_grad or is_filled(held[name]))]
    return tuple(name for name, tensor in held.items() if any(tensor is one for one in frozen))


def _without(names: Sequence[str], params: Any, module: Any, missing: Collection[str]) -> tuple[str, ...]:
    """Returns the names without those of tensors as large as leaves that need a partner: they may be that."""
    leaves, held = flattened(params)[0], module.state_dict()
    sizes = {leaves[name].size for name in missing}
    return tuple(name for name in names if held[name].numel() not in sizes)


def _program(side: Side, name: str) -> Any:
    kind = side.kind
    if kind == "frozen":
        return as_frozen(side.program)
    if kind == "weighted":
        return pure_program(side.program, side.params, name)
    if kind != "module":
        raise ParityError(f"{name}: expected its weights, a tree, in Side(program, params=...)")
    check_module(side.program, name)
    return with_one_output(side.program, name)


def _by_names(program: PureProgram) -> Callable[[Mapping[str, Any], Mapping[str, Any]], Any]:
    rebuilt = flattened(program.params)[1]
    return lambda weights, inputs: program.function(rebuilt(weights), inputs)
