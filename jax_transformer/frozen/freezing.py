"""Freezes a program: runs it in float64 and in its own type, differentiates it, and writes it down as data."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from jax_transformer.comparison.capture import OWN, check_module
from jax_transformer.comparison.gates import tolerances
from jax_transformer.comparison.gates.arrays import Arrays, ParityError, named_arrays
from jax_transformer.comparison.gates.compare import compare
from jax_transformer.comparison.lowering import AnyProgram, Selection, weights_of
from jax_transformer.comparison.sides import CannotRun
from jax_transformer.comparison.ties import Leaf
from jax_transformer.frozen.evaluated import EvaluatedRunner
from jax_transformer.frozen.optimizers import stated
from jax_transformer.frozen.record import STEPS, Frozen, FrozenProgram
from jax_transformer.frozen.runs import OWN_TYPE, Nudge, Runner, Trained
from jax_transformer.frozen.sources import sources_of
from jax_transformer.frozen.torch_runs import TorchRunner
from jax_transformer.matching.programs import PureProgram, is_jax_module, pure_program, with_one_output
from jax_transformer.matching.sides import flattened, is_filled
from jax_transformer.proof.programs import Program, UnknownOperation
from jax_transformer.proof.tape_data import NotData, to_data
from jax_transformer.runtime.environment import environment
from jax_transformer.storage.tensors import PortingError

DRAWS = 4
"""How often results are computed with other rounding. A comparison that asks for more has these."""
LIBRARIES = ("jax-transformer", "torch", "transformers", "jax", "flax", "equinox", "numpy")


class Subject(NamedTuple):
    """Holds a program to freeze."""

    program: Any
    params: Any
    name: str
    loss: Callable[..., Any] | None = None
    optimizer: Any = None


class Wanted(NamedTuple):
    """Says what is kept in addition to outputs, weights and gradients."""

    optimizer: str | None = None
    learning_rate: float | None = None
    seed: int | None = None
    lowers: bool = True
    """Whether to keep the program as data."""


def freeze_program(subject: Subject, inputs: Mapping[str, Any] | str | os.PathLike[str], wanted: Wanted) -> Frozen:
    """Returns what a program computes on these inputs.

    Raises:
      ParityError: the program can't be run on the inputs, or computes other values when it is run again.
    """
    arrays = dict(named_arrays(inputs, "inputs").arrays)
    if not arrays:
        raise ParityError("inputs: expected arrays by the names of the program's arguments; received none")
    try:
        if subject.params is not None or is_jax_module(subject.program):
            return _freeze_jax(subject, arrays, wanted)
        return _freeze_torch(subject, arrays, wanted)
    except CannotRun as error:
        raise ParityError(str(error)) from error


def _freeze_torch(subject: Subject, inputs: Arrays, wanted: Wanted) -> Frozen:
    module, name = subject.program, subject.name
    check_module(module, name)
    if wanted.seed is not None and not 0 <= wanted.seed < 2**63 - 1:
        raise ParityError(f"seed: expected a whole number from 0 on; received {wanted.seed}")
    held = stated(wanted.optimizer, subject.optimizer, wanted.learning_rate)
    runner = TorchRunner(module, name, inputs, wanted.seed, subject.loss, subject.optimizer)
    own, notes = runner.run(OWN_TYPE), list[str]()
    _check_repeats(runner, own, name, wanted.seed)
    draws = wanted.seed is not None and not _same(TorchRunner(module, name, inputs, wanted.seed + 1).run(OWN_TYPE), own)
    if draws:
        notes.append(f"it draws random numbers; seed {wanted.seed} was set before each run")
    if not np.array_equal(runner.plain_output(OWN_TYPE), own[OWN], equal_nan=True):
        notes.append("it computes another output when nothing watches its modules; the watched one is kept")
    programs, unlowered = _programs_of_module(module, name, inputs, runner) if wanted.lowers else ((), "not asked for")
    if draws:
        programs, unlowered = (), "it draws random numbers"
    return _record(
        subject, runner, inputs, wanted, "torch", runner.dtype, own, held, notes,
        weights=runner.weights(), trained=runner.trained, tied=runner.tied, programs=programs, unlowered=unlowered,
    )  # fmt: skip


def _freeze_jax(subject: Subject, inputs: Arrays, wanted: Wanted) -> Frozen:
    if wanted.seed is not None:
        raise ParityError("seed: expected none with a JAX program, whose random numbers follow from its keys")
    pure = pure_program(subject.program, subject.params, subject.name)
    leaves, rebuilt = flattened(pure.params)
    weights = {name: _wide(array) for name, array in leaves.items()}
    kinds = [array.dtype for array in leaves.values() if jnp.issubdtype(array.dtype, jnp.floating)]
    dtype = max(kinds, key=lambda one: one.itemsize).name if kinds else "float32"
    trained = tuple(name for name, array in leaves.items() if jnp.issubdtype(array.dtype, jnp.floating))
    held = stated(wanted.optimizer, subject.optimizer, wanted.learning_rate)

    def function(given: Mapping[str, Any], arguments: Mapping[str, Any]) -> Any:
        return pure.function(rebuilt(given), arguments)

    runner = EvaluatedRunner(
        leaves, function, subject.name, inputs, weights, dtype, trained, subject.loss, subject.optimizer
    )
    own = runner.run(OWN_TYPE)
    _check_repeats(runner, own, subject.name, None)
    programs: tuple[FrozenProgram, ...] = ()
    unlowered = "not asked for"
    if wanted.lowers:
        programs, unlowered = _programs_of_function(pure, subject.name, inputs)
    return _record(
        subject, runner, inputs, wanted, "jax", dtype, own, held, [],
        weights=weights, trained=trained, tied={}, programs=programs, unlowered=unlowered,
    )  # fmt: skip


def _record(
    subject: Subject,
    runner: Runner,
    inputs: Arrays,
    wanted: Wanted,
    framework: str,
    dtype: str,
    own: Arrays,
    optimizer: Mapping[str, Any] | None,
    notes: list[str],
    **fields: Any,
) -> Frozen:
    float64, moves, rounds = dict[str, np.ndarray](), dict[str, Any](), False
    try:
        float64 = runner.run("float64")
        rounds = runner.rounds()
    except CannotRun as error:
        notes.append(f"not in float64: {error}")
    draws = range(DRAWS)
    if dtype in tolerances.UNIT_ROUNDOFF:
        moves["own"] = _distances(own, [runner.run(OWN_TYPE, Nudge(draw, dtype)) for draw in draws])
    bits = "float32" if rounds else "float64"
    if float64:
        moves["float64"] = _distances(float64, [runner.run("float64", Nudge(0, bits))])
    trained = Trained({}, (), ())
    try:
        trained = runner.train(optimizer) if float64 else trained
        again = [runner.train(None, Nudge(draw, bits)).gradients for draw in (draws if trained.gradients else ())]
        moves["gradients"] = _distances(trained.gradients, again)
        if rounds and optimizer is not None:
            other = runner.train(optimizer, Nudge(0, bits)).steps
            moves |= {f"step {step}": _distances(trained.steps[step - 1], [other[step - 1]]) for step in (1, STEPS)}
    except CannotRun as error:
        if optimizer is not None or subject.loss is not None:
            raise
        notes.append(f"no gradients: {error}")
    if rounds:
        notes.append("it computes in a narrower type inside, even with weights in float64")
    return Frozen(
        name=subject.name,
        framework=framework,
        dtype=dtype,
        inputs=inputs,
        float64=float64,
        own=own,
        gradients=trained.gradients,
        losses=trained.losses,
        steps=trained.steps,
        has_loss=subject.loss is not None,
        rounds=rounds,
        optimizer=optimizer,
        moves=moves,
        seed=wanted.seed,
        source=sources_of(subject.program),
        versions=environment(LIBRARIES),
        notes=tuple(notes),
        **fields,
    )


def _check_repeats(runner: Runner, first: Arrays, name: str, seed: int | None) -> None:
    """Raises ParityError for a program that computes other values when it is run again."""
    again = runner.run(OWN_TYPE)
    different = [each for each in first if not np.array_equal(first[each], again[each], equal_nan=True)]
    if different and seed is None:
        raise ParityError(
            f"{name}: expected the same values in a second run; {different[0]} differs: it draws random numbers. Give "
            "a seed (seed=0, --seed 0) to set before each run, or switch the draws off"
        )
    if different:
        raise ParityError(
            f"{name}: expected the same values in a second run with seed {seed}; {different[0]} differs: its numbers "
            "don't follow from PyTorch's seed"
        )


def _same(one: Arrays, other: Arrays) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name], equal_nan=True) for name in one)


def _distances(own: Arrays, draws: Sequence[Arrays]) -> dict[str, tuple[tuple[float, float], ...]]:
    """Returns how far each array is from itself in each draw, where that is a number."""
    found: dict[str, tuple[tuple[float, float], ...]] = {}
    for name, array in own.items():
        if array.dtype.kind != "f" or not array.size:
            continue
        errors = [compare(one[name], array) for one in draws if one[name].shape == array.shape]
        finite = [(error.relative_rms, error.max_error) for error in errors]
        found[name] = tuple(each for each in finite if np.isfinite(each).all())
    return found


def _wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float32) if array.dtype.kind == "V" or array.dtype.name == "bfloat16" else array


# --- programs as data


def _programs_of_module(
    module: Any, name: str, inputs: Arrays, runner: TorchRunner
) -> tuple[tuple[FrozenProgram, ...], str]:
    held = module.state_dict(keep_vars=True)
    floats = [each for each, tensor in held.items() if tensor.is_floating_point()]
    known = {*runner.trained, *(other for one in runner.trained for other in runner.tied.get(one, ()))}
    untrained = tuple(each for each in floats if each not in known and not is_filled(held[each]))
    variants = ((), untrained) if untrained else ((),)
    return _lowered(with_one_output(module, name), weights_of(module, None), name, inputs, variants)


def _programs_of_function(pure: PureProgram, name: str, inputs: Arrays) -> tuple[tuple[FrozenProgram, ...], str]:
    leaves, rebuilt = flattened(pure.params)
    return _lowered(lambda given, arguments: pure.function(rebuilt(given), arguments), leaves, name, inputs, ((),))


def _lowered(
    program: Any, weights: Arrays, name: str, inputs: Arrays, variants: Sequence[tuple[str, ...]]
) -> tuple[tuple[FrozenProgram, ...], str]:
    """Returns the programs of both stages as data, with and without what isn't trained as constants; and why some are
    missing."""
    found, reasons = list[FrozenProgram](), list[str]()
    for constants in variants:
        held = {each: array for each, array in weights.items() if each not in constants}
        for stage in ("forward", "gradients"):
            try:
                lowered = _program(AnyProgram(name, program, inputs, held), stage == "gradients")
                found.append(FrozenProgram(stage, constants, to_data(lowered)))
            except (UnknownOperation, CannotRun, NotData, PortingError, ParityError) as error:
                reasons.append(f"{stage}: {error}")
                if stage == "forward":
                    break
    return tuple(found), "; ".join(dict.fromkeys(reasons))


def _program(side: AnyProgram, differentiates: bool) -> Program:
    first: dict[int, str] = {}
    leaves: dict[str, Leaf] = {}
    for name, place in ((each, side.shared_memory().get(each)) for each in side.weights):
        if place is not None and place.places is not None:
            raise UnknownOperation("tie", "", f"{name} shares a part of its memory with another weight")
        leaves[name] = Leaf(name if place is None else first.setdefault(place.block, name))
    shapes = {name: tuple(np.shape(side.weights[name])) for name, leaf in leaves.items() if leaf.variable == name}
    trained = frozenset(leaves[name].variable for name in side.parameters)
    program = side.lower(leaves, shapes, Selection(trained if differentiates else None, False))
    if program.unknown:
        kept = [name for name in program.outputs if name not in program.unknown]
        if OWN not in kept:
            raise program.unknown[OWN]
    return program
