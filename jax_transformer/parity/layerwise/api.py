"""Compares any two programs by numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from jax_transformer.comparison.gates.arrays import ParityError, named_arrays
from jax_transformer.comparison.report.report import Report
from jax_transformer.comparison.sides import CannotRun
from jax_transformer.matching.programs import PureProgram, pure_program
from jax_transformer.parity.layerwise.calls import RunnableSide
from jax_transformer.parity.layerwise.comparing import Task, compare_layerwise
from jax_transformer.parity.layerwise.gates import Gates, TopK
from jax_transformer.parity.layerwise.jax_side import JaxSide
from jax_transformer.parity.layerwise.pairing import paired
from jax_transformer.parity.layerwise.torch_side import TorchSide
from jax_transformer.parity.sides.options import Kind, Kinds, Options, Side
from jax_transformer.proof.programs import UnknownOperation

MOST_MAPPED = 4_000_000
"""The most weights between which a map is sought: a search takes some hundred bytes for each."""
OWN_WEIGHTS = "own"


def compare_programs(sides: tuple[Side, Side], kinds: Kinds, asked: Options) -> Report:
    """Compares two programs of these kinds on the same inputs, each in its own dtype. See `compare`.

    Raises:
      ParityError: a side can't be run on these inputs; no map of the weights is found; limits don't suffice.
    """
    names = [one.label for one in sides]
    inputs = dict(named_arrays(asked.inputs or {}, "inputs").arrays)
    pure = [_pure(*each) for each in zip(sides, kinds, names, strict=True)]
    remark, guesses = "weights: each side's own", tuple[str, ...]()
    if asked.weights is not None and asked.weights != OWN_WEIGHTS:
        raise ParityError(f'weights: expected "{OWN_WEIGHTS}", or none: those of the reference are carried over')
    is_own = asked.weights == OWN_WEIGHTS or any(one.checkpoint is not None for one in sides) or not any(pure)
    if not is_own:
        pure, remark, guesses = _with_one_sides_weights(sides, pure, names, inputs, asked)
    runners = [_runner(*each, inputs) for each in zip(sides, names, pure, strict=True)]
    ours, theirs = runners
    pairs = paired(asked.layers, ours.layers(), theirs.layers(), (names[0], names[1]))
    task = Task(
        ours,
        theirs,
        inputs,
        pairs,
        Gates(asked.kl, asked.top_k if asked.top_k is None else TopK.read(asked.top_k)),
        asked.memory_limit,
        asked.time_limit,
        (remark,),
        asked.progress,
    )
    try:
        report = compare_layerwise(task)
    except CannotRun as error:
        raise ParityError(str(error)) from error
    if report.verdict == "diverged" and guesses:
        doubt = (
            f"the map of the weights has guesses ({guesses[0]}), with another they may be the same: give names=…, or "
            f'weights="{OWN_WEIGHTS}"'
        )
        return replace(report, doubts=(*report.doubts, doubt))
    return report


def _pure(side: Side, kind: Kind | None, name: str) -> PureProgram | None:
    """Returns a JAX program as a function of its weights; None for a PyTorch module."""
    if kind == "weighted":
        return pure_program(side.program, side.params, name)
    if kind == "module":
        return None
    raise ParityError(f"{name}: expected its weights, a tree, in Side(program, params=...)")


def _runner(side: Side, name: str, pure: PureProgram | None, inputs: Mapping[str, np.ndarray]) -> RunnableSide:
    if pure is None:
        return TorchSide(side.program, name, inputs, side.checkpoint, side.device)
    return JaxSide(side.program, pure, name, inputs, side.checkpoint, side.device)


def _with_one_sides_weights(
    sides: tuple[Side, Side],
    pure: list[PureProgram | None],
    names: list[str],
    inputs: Mapping[str, np.ndarray],
    asked: Options,
) -> tuple[list[PureProgram | None], str, tuple[str, ...]]:
    """Returns both programs, one of which has the weights of the other, carried over by the map that is found or
    given; how; and the weights of which the map is a guess."""
    from jax_transformer.parity.freezing import given_names
    from jax_transformer.parity.proofs.mapped import MappedPair

    given = given_names(asked.names)
    counts = [_count(one, program) for one, program in zip(sides, pure, strict=True)]
    if given is None and max(counts) > MOST_MAPPED:
        raise ParityError(
            f"no map is sought between {max(counts):,} weights (at most {MOST_MAPPED:,}): give names=…, the function "
            f'that converts them; or weights="{OWN_WEIGHTS}", if both sides have theirs from one checkpoint'
        )
    asked.progress("map of the weights")
    bare = tuple(replace(one, checkpoint=None, device=None) for one in sides)
    try:
        pair = MappedPair(bare[0], bare[1], inputs, asked.seed, given)
    except (UnknownOperation, CannotRun) as error:
        advice = f'give names=…, or weights="{OWN_WEIGHTS}", if both sides have theirs from one checkpoint'
        raise ParityError(f"no map of the weights was found ({error}): {advice}") from error
    if pair.found.missing:
        raise ParityError(
            f"no map of the weights was found: {pair.found.missing[0]} has no partner; give names=…, or "
            f'weights="{OWN_WEIGHTS}", if both sides have theirs from one checkpoint'
        )
    carried = pair.carried_side
    program = pure[carried]
    assert program is not None
    pure = [*pure]
    pure[carried] = program._replace(params=pair.carried_params())
    whose = names[1 - carried]
    how = "the map that is given" if pair.is_given else "the map that was found"
    guesses = tuple(pair.found.by_name) + (() if pair.is_given else tuple(pair.found.unused))
    return pure, f"weights: those of {whose}, carried over by {how}", guesses


def _count(side: Side, program: Any) -> int:
    if program is None:
        return sum(parameter.numel() for parameter in side.program.parameters())
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree_util.tree_leaves(program.params))
