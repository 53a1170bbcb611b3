"""Runs a candidate on the weights and inputs of a frozen reference: the weights are carried over by a map."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from jax_transformer.comparison.capture import OWN, check_module
from jax_transformer.comparison.gates import tolerances
from jax_transformer.comparison.gates.arrays import Arrays, ParityError
from jax_transformer.comparison.lowering import COTANGENT, GRADIENT, INPUT
from jax_transformer.comparison.sides import CannotRun
from jax_transformer.comparison.torch_tensors import to_tensor
from jax_transformer.frozen.comparing import Pair
from jax_transformer.frozen.evaluated import EvaluatedRunner
from jax_transformer.frozen.freezing import Subject, Wanted, freeze_program
from jax_transformer.frozen.optimizers import OWN_OPTIMIZER
from jax_transformer.frozen.places import Located, locate
from jax_transformer.frozen.record import Frozen
from jax_transformer.frozen.runs import OWN_TYPE, Nudge, Trained, factors
from jax_transformer.mapping.maps import NameMap
from jax_transformer.matching.carrying import facts_of, summed
from jax_transformer.matching.finding import FoundMap, map_between
from jax_transformer.matching.giving import Converter, given_map
from jax_transformer.matching.programs import PureProgram, pure_program
from jax_transformer.matching.sides import LoweredSide, Weights, flattened, lowered, weights_by_name, without_others
from jax_transformer.programs.copies import copied
from jax_transformer.proof import tables
from jax_transformer.proof.domains import Floats
from jax_transformer.proof.evaluating import evaluate
from jax_transformer.proof.programs import UnknownOperation
from jax_transformer.runtime.environment import environment

Given = NameMap | Converter | None
IRREGULAR = "a layer is mapped unlike its siblings: {}"
GUESSED = (
    "some weights were matched by name alone, or have no partner, and with another map the two may agree: give the "
    "map, names= or --map ({})"
)


def lowered_reference(frozen: Frozen, constants: tuple[str, ...] = ()) -> LoweredSide:
    """Returns a frozen program and its weights.

    Raises:
      ParityError: the file has no program.
      UnknownOperation: it has none with these constants.
    """
    held = frozen.program("forward", constants)
    if held is None and constants:
        raise UnknownOperation("constant", "", "the frozen reference has no program with these constants")
    if held is None:
        raise ParityError(
            f"{frozen.path or frozen.name}: expected a reference with its program as data, to find the map of the "
            f"weights; it has none ({frozen.unlowered}): give the map, names= or --map"
        )
    try:
        program = held.program
    except ValueError as error:
        raise ParityError(f"{frozen.path or frozen.name}: {error}") from None
    weights = frozen_weights(frozen, constants)
    return LoweredSide(frozen.name, program, weights.shapes, weights.copies)


def frozen_weights(frozen: Frozen, constants: Sequence[str] = ()) -> Weights:
    """Returns a frozen program's floating-point weights by name, tied ones under the first."""
    again = {each for others in frozen.tied.values() for each in others}
    shapes = {
        name: tuple(array.shape)
        for name, array in frozen.weights.items()
        if array.dtype.kind == "f" and name not in again and name not in constants
    }
    return Weights(shapes, {name: others for name, others in frozen.tied.items() if name in shapes})


def untrained(frozen: Frozen) -> tuple[str, ...]:
    """Returns the tensors that a frozen program has as constants in the second of its programs."""
    return next((one.constants for one in frozen.programs if one.constants), ())


@dataclass(eq=False)
class CarriedCandidate:
    """A JAX program, or a PyTorch module with other names, that computes with a reference's weights."""

    subject: Subject
    reference: Frozen
    given: Given
    seed: int = 0

    @cached_property
    def pure(self) -> PureProgram:
        return pure_program(self.subject.program, self.subject.params, self.subject.name)

    @cached_property
    def own(self) -> LoweredSide:
        return lowered(self.pure.function, self._params, self.reference.inputs)

    @cached_property
    def _mapped(self) -> tuple[FoundMap, Any, tuple[str, ...]]:
        if self.given is not None:
            found, tree = given_map(self.given, weights_by_name(*self.pure), frozen_weights(self.reference))
            return found, tree, ()
        theirs = lowered_reference(self.reference)
        found = map_between(without_others(self.own), without_others(theirs), proves=False, seed=self.seed)
        constants = untrained(self.reference)
        if constants and {*found.unused} & {*constants}:
            again = lowered_reference(self.reference, constants)
            other = map_between(without_others(self.own), without_others(again), proves=False, seed=self.seed)
            if len(other.missing) <= len(found.missing):
                return other, None, constants
        return found, None, ()

    @property
    def found(self) -> FoundMap:
        """Returns the map of the weights.

        Raises:
          ParityError: the reference has no program, and no map is given.
          UnknownOperation, CannotRun: the candidate can't be read, or run.
        """
        return self._mapped[0]

    @property
    def constants(self) -> tuple[str, ...]:
        """Returns the reference's tensors that the candidate computes."""
        return self._mapped[2]

    @property
    def _params(self) -> Any:
        return self.pure.params

    @cached_property
    def program(self) -> PureProgram:
        tree = self._mapped[1]
        return self.pure if tree is None else self.pure._replace(params=tree)

    def runner(self) -> EvaluatedRunner:
        """Returns the program as a function of the reference's weights, to run it."""
        again = {each for others in self.reference.tied.values() for each in others}
        weights = {
            name: array
            for name, array in self.reference.weights.items()
            if array.dtype.kind == "f" and name not in again and name not in self.constants
        }
        trained = [name for name in self.reference.trained if name in weights]
        leaves, rebuilt = flattened(self.program.params)
        found, program = self.found, self.program

        def function(given: Mapping[str, Any], inputs: Mapping[str, Any]) -> Any:
            return program.function(rebuilt(given), inputs)

        def carry(held: Arrays) -> Arrays:
            carried = found.to_candidate(held)
            return {name: carried.get(name, array) for name, array in leaves.items()}

        def back(gradients: Arrays) -> Arrays:
            return summed(found, gradients)

        one, own = self.subject, self.reference
        return EvaluatedRunner(
            leaves, function, one.name, own.inputs, weights, own.dtype, trained, one.loss, one.optimizer, carry, back
        )

    def locate(self) -> Located:
        """Finds where the candidate's values part from the reference's."""
        held = {name: np.asarray(array, np.float64) for name, array in self.reference.weights.items()}
        inputs = {INPUT + name: array.astype(np.float64) for name, array in self.reference.inputs.items()}
        carried = {**self.found.to_candidate(held), **inputs}
        kept = self.reference.program("forward", self.constants)
        program = None if kept is None else kept.program
        within = tolerances.MOST_FOR_ROUNDING if self.reference.rounds else tolerances.LEAST_FAULT_RELATIVE_RMS
        return locate(self.own.program, carried, program, {**held, **inputs}, self.reference.float64, within)


def carried_pair(candidate: CarriedCandidate) -> Pair:
    """Runs a JAX candidate with a frozen reference's weights.

    Raises:
      ParityError: there is no map, or the candidate can't be run.
    """
    reference, subject = candidate.reference, candidate.subject
    try:
        found = candidate.found
    except (UnknownOperation, CannotRun) as error:
        raise ParityError(f"{subject.name}: no map of the weights: {error}: give it, names= or --map") from error
    if found.missing:
        raise ParityError(
            f"{subject.name}: no map of the weights: {found.missing[0]} has no partner in {reference.name} "
            f"({len(found.missing)} haven't): give it, names= or --map"
        )
    runner = candidate.runner()
    reference, exact = _unified(reference, runner, candidate.constants)
    try:
        own = runner.run(OWN_TYPE)
        float64 = runner.run("float64") if reference.float64 else {}
    except CannotRun as error:
        raise ParityError(str(error)) from error
    optimizer = reference.optimizer
    if optimizer is not None and optimizer["name"] == OWN_OPTIMIZER and subject.optimizer is None:
        optimizer = None
    trained, notes = Trained({}, (), ()), list[str]()
    try:
        trained = runner.train(optimizer) if reference.gradients else trained
    except CannotRun as error:
        notes.append(f"no gradients: {error}")
    made = Frozen(
        name=subject.name,
        framework="jax",
        dtype=reference.dtype,
        weights={},
        inputs=reference.inputs,
        float64=float64,
        own=own,
        gradients=trained.gradients,
        losses=trained.losses,
        steps=trained.steps,
        has_loss=subject.loss is not None,
        optimizer=optimizer,
        notes=tuple(notes),
        versions=environment(("jax", "flax", "equinox", "numpy")),
    )

    bits = "float32" if reference.rounds else "float64"

    def again(what: str, draw: int) -> Arrays:
        if what == "gradients":
            return runner.train(None, Nudge(draw, bits)).gradients
        if what.startswith("step "):
            return runner.train(optimizer, Nudge(draw, bits)).steps[int(what.removeprefix("step ")) - 1]
        is_own = what == "own"
        return runner.run(OWN_TYPE if is_own else what, Nudge(draw, reference.dtype if is_own else bits))

    is_guess = candidate.given is None and bool(found.by_name or (found.unused and not found.irregular))
    first = (*found.by_name, *found.unmapped)
    return Pair(
        made,
        replace(reference, versions={name: version for name, version in reference.versions.items() if name == "numpy"}),
        has_own_weights=False,
        compares_inside=False,
        exact=exact,
        locate=candidate.locate,
        again=again,
        facts=facts_of(found, subject.name, candidate.constants, is_given=candidate.given is not None),
        doubts=tuple(IRREGULAR.format(each) for each in found.irregular[:1]),
        doubts_if_different=(GUESSED.format(first[0]),) if is_guess and first else (),
    )


def _unified(reference: Frozen, runner: EvaluatedRunner, constants: tuple[str, ...]) -> tuple[Frozen, frozenset[str]]:
    """Evaluates a reference that computes in float32 inside, as its program is read, in float64: constants and tables
    that agree within their rounding are the same in both programs then. Returns the reference with these results, and
    which they are."""
    exact = set[str]()
    held = {name: np.asarray(array, np.float64) for name, array in reference.weights.items()}
    given = {**held, **{INPUT + name: array for name, array in reference.inputs.items()}}
    for stage, ours in (("forward", runner.forward_program), ("gradients", runner.gradient_program)):
        kept = reference.program(stage, constants)
        if not reference.rounds or not reference.float64 or ours is None or kept is None:
            continue
        if stage == "gradients" and reference.has_loss:
            continue
        both = tables.unified(ours, kept.program) or (ours, kept.program)
        cotangent = factors(reference.output.shape)
        inputs = {name: np.asarray({**given, COTANGENT: cotangent}[name], np.float64) for name in both[1].inputs}
        found = evaluate(both[1], Floats(), inputs)
        if stage == "forward":
            runner.forward_program = both[0]
            reference = replace(reference, float64={**reference.float64, OWN: found[OWN]})
            exact.add("float64")
        else:
            runner.gradient_program = both[0]
            gradients = {name.removeprefix(GRADIENT): one for name, one in found.items() if name.startswith(GRADIENT)}
            reference = replace(reference, gradients={**reference.gradients, **gradients})
            exact.add("gradients")
    return reference, frozenset(exact)


def module_pair(subject: Subject, reference: Frozen, names: Mapping[str, str] | NameMap | None) -> Pair:
    """Runs a PyTorch module with a frozen reference's weights, by names.

    Raises:
      ParityError: a weight has no partner; the module can't be run.
    """
    check_module(subject.program, subject.name)
    module = _loaded(subject, reference, names if isinstance(names, Mapping) else None)
    optimizer = reference.optimizer
    own = optimizer is not None and optimizer["name"] == OWN_OPTIMIZER
    wanted = Wanted(
        None if optimizer is None or own else optimizer["name"],
        None if optimizer is None or own else optimizer["learning_rate"],
        reference.seed,
        lowers=False,
    )
    made = freeze_program(subject._replace(program=module), reference.inputs, wanted)
    return Pair(made, reference, has_own_weights=False, compares_inside=True)


def _loaded(subject: Subject, reference: Frozen, names: Mapping[str, str] | None) -> Any:
    """Returns a copy of a module with a reference's weights."""
    import torch

    module = copied(subject.program)
    held = module.state_dict(keep_vars=True)
    mapped = {name: (names or {}).get(name, name) for name in reference.weights}
    wrong = [
        name
        for name, own in mapped.items()
        if own not in held or tuple(held[own].shape) != tuple(reference.weights[name].shape)
    ]
    unused = [name for name in held if name not in {*mapped.values()}]
    if wrong or unused:
        name = wrong[0] if wrong else unused[0]
        raise ParityError(
            f"{subject.name}: expected weights of the names and shapes of {reference.path or reference.name}; {name} "
            f"has no partner ({len(wrong) + len(unused)} haven't): give names, a mapping from the reference's names"
        )
    with torch.no_grad():
        for name, own in mapped.items():
            held[own].copy_(to_tensor(np.array(reference.weights[name])))
    return module


def frozen_pair(candidate: Frozen, reference: Frozen) -> Pair:
    """Returns two frozen references as sides, each with its own weights."""
    return Pair(candidate, reference, has_own_weights=True, compares_inside=True)
