"""The stages `loss`, `gradients`, `step`, `trajectory` and `resume`: compare both sides' training in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import TypeVar

import numpy as np

from jax_transformer.comparison.findings import Blamed, Fault, Finding, Match, SideName
from jax_transformer.comparison.gates import tolerances
from jax_transformer.comparison.gates.rounding import allow_for_rounding, excuse_rounding
from jax_transformer.comparison.gates.stages import Row, Stage, compare_stage
from jax_transformer.comparison.run import Work
from jax_transformer.comparison.sides import Arrays, CannotRun
from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.positions import Rotary
from jax_transformer.config.run import TrainConfig
from jax_transformer.config.specs import Tokens
from jax_transformer.parity.backends.learning_rates import learning_rates
from jax_transformer.parity.backends.side import Backend, Gradients, Halt, NotFinite, Training, layer_by_layer
from jax_transformer.parity.diagnosis.gradients import known_gradients, shares_of_tables, wrong_sides
from jax_transformer.parity.diagnosis.padding import where_not_padding
from jax_transformer.parity.diagnosis.training import Step, explain_loss, explain_steps
from jax_transformer.parity.oracle.losses import LossRule
from jax_transformer.parity.oracle.updates import UpdateRule, initial_state
from jax_transformer.parity.problems import Problem, Problems, nudged_problem, training_problem
from jax_transformer.parity.rules import SETUP
from jax_transformer.parity.run_results import Pair, RunResults
from jax_transformer.runtime.trees import flatten, unflatten

T = TypeVar("T")
Sides = Mapping[SideName, Backend]
STEPS = 3
"""Number of steps of the stage `step`: more than one, since the moments are empty before the first."""
ZERO = "zero but for rounding: not compared"


def compare_losses(candidate: Gradients, reference: Gradients) -> Stage:
    return compare_stage("loss", {"loss": np.array(candidate.loss)}, {"loss": np.array(reference.loss)})


def compare_gradients(
    candidate: Gradients,
    reference: Gradients,
    where: Mapping[str, np.ndarray] | None = None,
    *,
    config: TransformerConfig | None = None,
) -> Stage:
    """Compares the gradients of parameters, then those of activations from the logits backwards.

    Args:
      where: for some activations, masks of the values that count.
      config: the model, which determines the biases without a gradient. None: those of all keys.
    """
    if not (candidate.activations and reference.activations):  # a side that can't reach them
        candidate, reference = (side._replace(activations={}) for side in (candidate, reference))
    first = compare_stage("gradients", *(_compared(side.parameters, config) for side in (candidate, reference)))
    backwards = [
        dict(reversed({f"∂ {name}": array for name, array in side.activations.items()}.items()))
        for side in (candidate, reference)
    ]
    counts = {f"∂ {name}": mask for name, mask in (where or {}).items()}
    second = compare_stage("gradients", *backwards, where=counts)
    return replace(
        second,
        rows=second.rows + first.rows + _exempt(reference.parameters, config),
        only_in_candidate=second.only_in_candidate + first.only_in_candidate,
        only_in_reference=second.only_in_reference + first.only_in_reference,
    )


def compare_steps(candidate: Training, reference: Training, config: TransformerConfig | None = None) -> Stage:
    """Compares some steps: the losses before each, and the parameters at the end."""
    stage = compare_stage("step", *(_compared(_end(side), config) for side in (candidate, reference)))
    return replace(stage, rows=stage.rows + _exempt(_end(reference), config))


def compare_trajectories(candidate: Training, reference: Training, config: TransformerConfig | None = None) -> Stage:
    """Compares many steps: every loss, and the parameters at the end."""
    every_loss = ({"losses": side.losses} for side in (candidate, reference))
    losses = compare_stage("trajectory", *every_loss, tolerance=tolerances.TRAJECTORY_LOSS_RELATIVE)
    ends = (_compared(side.parameters[-1], config) for side in (candidate, reference))
    parameters = compare_stage("trajectory", *ends, tolerance=tolerances.TRAJECTORY_PARAMETERS_RELATIVE_RMS)
    return replace(parameters, rows=losses.rows + parameters.rows + _exempt(reference.parameters[-1], config))


def _end(training: Training) -> Arrays:
    return {"losses": training.losses, **training.parameters[-1]}


def _compared(parameters: Arrays, config: TransformerConfig | None) -> dict[str, np.ndarray]:
    return {path: array for path, array in parameters.items() if not is_exempt(path, config)}


def is_exempt(path: str, config: TransformerConfig | None = None) -> bool:
    """Checks whether a parameter's gradient is analytically zero; `path` may name one layer, as in `…/key/bias[0]`.

    Args:
      config: the model, which may change the keys after the bias. None: it doesn't.
    """
    name = path.split("[")[0]
    return tolerances.has_zero_gradient(name) and not (config is not None and _bias_matters(config, name))


def _bias_matters(config: TransformerConfig, path: str) -> bool:
    """Checks whether a bias of keys changes the attention weights. It adds one number to all logits of a query, which
    softmax ignores, unless keys are normed or rotated afterwards, or logits are capped."""
    stack, *_, sublayer, module, _ = path.split("/")
    own = config.encoder if stack == "encoder" else config.decoder
    attention = own.cross_attention if sublayer == "cross_attention" else own.self_attention
    assert attention is not None  # it has parameters
    kind = own.positions
    is_rotated = isinstance(kind, Rotary) and (sublayer == "self_attention" or kind.cross_attention)
    is_normed = attention.query_key_norm and module == "key"
    return is_rotated or is_normed or attention.logits_cap is not None


def _exempt(parameters: Mapping[str, np.ndarray], config: TransformerConfig | None) -> tuple[Row, ...]:
    """Returns the names of gradients that aren't compared."""
    return tuple(Row(path, "passed", ZERO, reason=ZERO) for path in parameters if is_exempt(path, config))


# --- as stages of a run


def training_works(
    pair: Pair, own: Problem, problems: Problems, stages: Sequence[str], results: RunResults
) -> Iterator[Work]:
    """Yields the work of the selected stages among loss, gradients, step, trajectory and resume."""
    if {"loss", "gradients"} & {*stages}:
        yield Work("", "gradients", own.name, partial(_gradients, pair, own, results))
        yield Work("", "gradients", "", partial(_gradients_of_random, pair, problems, results))
    for name in ("step", "trajectory"):
        if name in stages:
            steps = partial(_steps, pair, name, results)
            yield Work("", name, own.name, partial(_on_finite_rows, own, steps, results))
    if "resume" in stages:
        resumed = partial(_resume, pair, results)
        yield Work("", "resume", own.name, partial(_on_finite_rows, own, resumed, results))


def _on_finite_rows(problem: Problem, do: Callable[[Problem], T], results: RunResults) -> T:
    """Does work on a problem, without the rows in which a side's logits aren't finite.

    Raises:
      CannotRun: a side can't do it, or no row is left.
    """
    try:
        return do(problem)
    except NotFinite as reason:
        kept = [row for row in range(len(problem.labels)) if row not in reason.rows]
        if not kept:
            raise
        results.facts["left out of training"] = f"rows {[*reason.rows]} of {len(problem.labels)}: {reason}"
        return do(problem.rows(kept))


def _in_turns(pair: Pair, results: RunResults, what: str, do: Callable[[Backend], T]) -> dict[SideName, T]:
    """Runs work that needs several times a model's memory on one side at a time; the reference rests first."""
    pair.reference.rest()
    done: dict[SideName, T] = {}
    for name, side in pair.sides.items():
        results.progress(f"{what}: the {name}")
        done[name] = do(side)
    return done


def _gradients_of_random(pair: Pair, problems: Problems, results: RunResults) -> None:
    """Adds the stages loss and gradients on random weights, which are freed afterwards."""
    random = next(problems.with_other_weights())
    _gradients(pair, training_problem(pair.config, random, pair.rules.train.loss_counts_pads), results)


def _gradients(pair: Pair, problem: Problem, results: RunResults) -> None:
    try:
        _on_finite_rows(problem, lambda kept: _compare_gradients(pair, kept, results), results)
    except CannotRun as reason:
        for name in ("loss", "gradients"):
            results.add(Stage(name, not_run=str(reason)), problem.name)


def _compare_gradients(pair: Pair, problem: Problem, results: RunResults) -> None:
    """Adds the stages loss and gradients on one problem, and their faults. Raises CannotRun if a side can't."""
    whole = _in_turns(pair, results, f"loss and gradients, {problem.name}", lambda side: side.gradients(problem))
    whole = {name: one._replace(activations=results.in_order(name, one.activations)) for name, one in whole.items()}
    done = _shown_by_both(pair, whole, results)
    where = (
        where_not_padding(pair.config, problem.ids, done["reference"].activations) if results.zeroes_padding else None
    )
    losses = compare_losses(done["candidate"], done["reference"])
    gradients = compare_gradients(done["candidate"], done["reference"], where, config=pair.config)

    def again(side: SideName, moved: Problem) -> Stage:
        gradients = pair.sides[side].gradients(moved)
        activations = results.in_order(side, gradients.activations)
        shown = {name: activations[name] for name in done[side].activations}
        return compare_gradients(gradients._replace(activations=shown), done[side], where, config=pair.config)

    if losses.verdict == "passed" and not results.faults:
        judge = _Rounding(pair, gradients.name, problem, again, results)
        gradients = judge.excused(judge.allowed(gradients))
    results.add(losses, problem.name)
    results.add(gradients, problem.name)
    if results.faults and "loss" not in pair.rules.own:
        return  # earlier faults explain the differences
    if losses.verdict == "diverged":
        if pair.rules.knows_loss:
            results.faults += loss_faults(pair.config, pair.rules.train, problem, pair.sides, done)
    elif gradients.verdict == "diverged" and not results.faults:
        results.faults += gradient_faults(pair, gradients, problem, whole)


def _shown_by_both(pair: Pair, done: Mapping[SideName, Gradients], results: RunResults) -> dict[SideName, Gradients]:
    """Keeps the gradients of activations that both sides show.

    A module that recomputes a part of itself in the backward pass (torch.utils.checkpoint) shows no gradients inside
    this part.
    """
    shown = {name: one._replace(activations=pair.shown(one.activations)) for name, one in done.items()}
    candidate, reference = shown["candidate"], shown["reference"]
    if pair.visible is not None and reference.activations:
        kept = {name: array for name, array in candidate.activations.items() if name in reference.activations}
        hidden = len(candidate.activations) - len(kept)
        if hidden:
            results.facts["reference shows no gradients of"] = f"{hidden} activations"
        shown["candidate"] = candidate._replace(activations=kept)
    return shown


def _steps(pair: Pair, name: str, results: RunResults, own: Problem) -> Stage:
    steps, compare_them = {
        "step": (STEPS, compare_steps),
        "trajectory": (tolerances.TRAJECTORY_STEPS, compare_trajectories),
    }[name]
    done = _in_turns(pair, results, name, lambda side: side.train(own, steps, keep_all=False))
    stage = compare_them(done["candidate"], done["reference"], pair.config)
    if results.faults and "optimizer" not in pair.rules.own:
        return stage

    def again(side: SideName, moved: Problem) -> Stage:
        return compare_them(pair.sides[side].train(moved, steps, keep_all=False), done[side], pair.config)

    judge = _Rounding(pair, name, own, again, results)
    stage = judge.allowed(stage)
    if stage.verdict == "diverged" and pair.rules.knows_update:
        faults = step_faults(pair.config, pair.rules.train, own, pair.sides)
        results.faults += faults
        if faults:
            return stage
    return judge.excused(stage)


def _resume(pair: Pair, results: RunResults, own: Problem) -> Stage:
    """Lets each side continue the other's training, with the optimizer's state ported, and compares both results with
    the reference's uninterrupted training."""
    candidate, reference = pair.candidate, pair.reference
    results.progress("resume: the reference, and the candidate after it")
    whole = reference.resume(own, 2 * STEPS)
    onward = candidate.resume(own, STEPS, reference.resume(own, STEPS))
    results.progress("resume: the candidate, and the reference after it")
    back = reference.resume(own, STEPS, candidate.resume(own, STEPS))
    rows: tuple[Row, ...] = ()
    for direction, halt in (("candidate after reference", onward), ("reference after candidate", back)):
        ends = [{"losses": one.losses[-STEPS:], **_parameters(one)} for one in (halt, whole)]
        stage = compare_stage("resume", *(_compared(end, pair.config) for end in ends))
        rows += tuple(replace(row, name=f"{row.name}, {direction}") for row in stage.rows)
    return replace(stage, rows=rows + _exempt(_parameters(whole), pair.config))


def _parameters(halt: Halt) -> Arrays:
    leaves = flatten(halt.params)
    return layer_by_layer({path: leaf for path, leaf in leaves.items() if not path.startswith("constants/")})


class _Rounding:
    """Judges diverged rows by the difference of each side from itself under different rounding."""

    def __init__(
        self,
        pair: Pair,
        stage: str,
        problem: Problem,
        again: Callable[[SideName, Problem], Stage],
        results: RunResults,
    ) -> None:
        """Prepares the comparisons. `again` compares a side's result on a nudged problem with its earlier result."""

        @cache
        def from_itself(side: SideName, draw: int) -> Stage:
            pair.reference.rest()
            results.progress(f"{stage}: the {side} against itself")
            return again(side, nudged_problem(problem, draw=draw))

        self.sides: dict[str, Callable[[int], Stage]] = {name: partial(from_itself, name) for name in pair.sides}

    def allowed(self, stage: Stage) -> Stage:
        """Passes rows whose difference is little larger than that of both sides from themselves."""
        return allow_for_rounding(stage, [partial(side, 0) for side in self.sides.values()])

    def excused(self, stage: Stage) -> Stage:
        """Marks rows as inconclusive if one of several draws of rounding explains their difference."""
        return excuse_rounding(stage, "float64", self.sides)


# --- explanations


def loss_faults(
    config: TransformerConfig,
    train: TrainConfig,
    problem: Problem,
    sides: Sides,
    found: Mapping[SideName, Gradients],
) -> list[Fault]:
    """Finds the side whose loss isn't the loss of its logits."""
    rule = LossRule(config.target_pad_id, train.label_smoothing, train.smoothing, train.loss_counts_pads)
    faults = []
    for name, side in sides.items():
        finding = explain_loss(rule, side.forward(problem, "float64")["logits"], problem.labels, found[name].loss)
        faults += _faults(name, "loss", [finding] if finding else [], problem)
    return faults


def gradient_faults(pair: Pair, stage: Stage, problem: Problem, found: Mapping[SideName, Gradients]) -> list[Fault]:
    """Finds the sides whose gradients aren't the slopes of their losses, and the cause of the difference. Returns a
    fault for the first gradient that differs, from the logits backwards, or for all if one cause explains them."""
    rows = [row for row in stage.rows if row.verdict == "diverged"]
    if not rows:
        return []
    compared = {name: _compared(side.parameters, pair.config) for name, side in found.items()}
    weights = _parameters_of(problem)
    losses = {name: partial(_loss_at, side, problem) for name, side in pair.sides.items()}
    wrong = wrong_sides(compared, losses, weights)
    if len(wrong) == 2:
        return [_gradient_fault(side, rows[0], (), problem) for side in wrong]
    blamed: Blamed = wrong[0] if wrong else "unknown"
    other: SideName = "candidate" if blamed == "reference" else "reference"
    own: SideName = "reference" if other == "candidate" else "candidate"
    gradients = {
        name: {**side.parameters, **{f"∂ {key}": array for key, array in side.activations.items()}}
        for name, side in found.items()
    }
    shares = _shares(pair, problem, other, found[other])
    names = [row.name for row in rows]
    matches = known_gradients(gradients[own], gradients[other], names, shares, than=other)
    return [_gradient_fault(blamed, row, matches.get(row.name, ()), problem) for row in (rows if matches else rows[:1])]


def _gradient_fault(side: Blamed, row: Row, matches: tuple[Match, ...], problem: Problem) -> Fault:
    error = row.error.relative_rms if row.error is not None else math.nan
    return Fault(side, "gradients", Finding(row.name, "gradient", math.nan, matches, None), error, problem.name)


def _shares(pair: Pair, problem: Problem, name: SideName, gradients: Gradients) -> dict[str, dict[str, np.ndarray]]:
    """Splits the gradients of tables that are used several times into the share of each use, by one side's
    activations."""
    input_name = "decoder.output" if pair.config.head.transform is None else "head_norm"
    read = pair.sides[name].forward(problem, "float64").get(input_name)
    return {} if read is None else shares_of_tables(pair.config, problem, gradients.activations, read)


def _loss_at(side: Backend, problem: Problem, moves: Arrays) -> float:
    """Returns a side's loss after adding `moves` to its parameters."""
    moved = {path: weight + moves.get(path, 0.0) for path, weight in _parameters_of(problem).items()}
    return side.gradients(replace(problem, params=unflatten(_stacked(problem, moved)))).loss


def _parameters_of(problem: Problem) -> dict[str, np.ndarray]:
    """Returns the parameters in float64, without constants, layer by layer."""
    leaves = {path: np.asarray(leaf) for path, leaf in flatten(problem.params).items()}
    trained = {path: leaf.astype(np.float64) for path, leaf in leaves.items() if not path.startswith("constants/")}
    return layer_by_layer(trained)


def _stacked(problem: Problem, parameters: Arrays) -> dict[str, np.ndarray]:
    """Returns all leaves with these parameters: the inverse of `_parameters_of`."""
    leaves = {}
    for path, leaf in flatten(problem.params).items():
        if path in parameters:
            leaves[path] = parameters[path]
        elif f"{path}[0]" in parameters:
            leaves[path] = np.stack([parameters[f"{path}[{i}]"] for i in range(len(leaf))])
        else:
            leaves[path] = np.asarray(leaf)
    return leaves


def update_rule(config: TransformerConfig, train: TrainConfig = SETUP) -> UpdateRule:
    """Returns the update that both sides should apply, by Adam or SGD."""
    return UpdateRule(
        "sgd" if train.optimizer == "sgd" else "adam",
        learning_rates(train, config.d_model, STEPS + 1),
        b1=train.adam_b1,
        b2=train.adam_b2,
        eps=train.adam_eps,
        momentum=train.momentum,
        weight_decay=train.weight_decay,
        weight_decay_kind=train.weight_decay_kind,
        clip_norm=train.clip_norm,
        pad_rows=_without_gradients(config) or _pad_rows(config),
        pad_rows_move="by_decay" if _without_gradients(config) else "as_others",
    )


def step_faults(config: TransformerConfig, train: TrainConfig, problem: Problem, sides: Sides) -> list[Fault]:
    """Finds the side whose optimizer breaks the rule, from three steps on its own gradients; none for optimizers that
    `UpdateRule` doesn't describe."""
    if train.optimizer in ("muon", "adafactor") or train.no_decay or train.adam_eps_uncorrected:
        return []
    rule = update_rule(config, train)
    faults = []
    for name, side in sides.items():
        done = side.train(problem, STEPS, keep_all=True)
        steps = [Step(gradients, after) for gradients, after in zip(done.gradients, done.parameters[1:], strict=True)]
        faults += _faults(name, "step", explain_steps(rule, initial_state(done.parameters[0]), steps), problem)
    return faults


def _without_gradients(config: TransformerConfig) -> tuple[tuple[str, int], ...]:
    """Returns the rows of pads that get no gradient. In a table that the head also reads, they get the head's."""
    read_by_head = ("shared_embedding/embedding", "target_embedding/embedding") if config.head.tied else ()
    tables = _tables(config)
    return tuple((path, own.pad_id) for path, own in tables if not own.trains_pad and path not in read_by_head)


def _pad_rows(config: TransformerConfig) -> tuple[tuple[str, int], ...]:
    return tuple((path, tokens.pad_id) for path, tokens in _tables(config))


def _tables(config: TransformerConfig) -> tuple[tuple[str, Tokens], ...]:
    """Returns the embedding tables with the tokens of each; a shared table has the target's pad."""
    if config.share_embeddings:
        return (("shared_embedding/embedding", config.target),)
    return (("source_embedding/embedding", config.source), ("target_embedding/embedding", config.target))


def _faults(side: SideName, stage: str, findings: Iterable[Finding], problem: Problem) -> list[Fault]:
    return [Fault(side, stage, finding, finding.local_error, problem.name) for finding in findings]
