"""Prove that both sides of a pair are one function: forward pass, loss, gradients and optimizer steps."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from jax_transformer.comparison.lowering import GRADIENT
from jax_transformer.comparison.sides import CannotRun
from jax_transformer.parallel.mesh import described as described_mesh
from jax_transformer.parity.backends.jax_sides import JaxSide
from jax_transformer.parity.backends.lowering import Lowered, lowered
from jax_transformer.parity.diagnosis.padding import where_not_padding
from jax_transformer.parity.problems import Problem, with_keys_for_all
from jax_transformer.parity.proofs.witness_weights import kinds_for_model
from jax_transformer.parity.proofs.witnesses import Subject, find_witness
from jax_transformer.parity.run_results import LIBRARIES, Pair
from jax_transformer.proof import Certificate, Result, StageProof, Task, TaskProof, UnknownOperation, decide
from jax_transformer.proof.certificate import described, difference_of
from jax_transformer.proof.witness import Witness
from jax_transformer.runtime.environment import environment

STAGES = ("forward", "loss", "gradients", "steps")
"""The provable properties of models. steps: the parameters after one and after three optimizer steps."""
LARGE_ROWS, LARGE_LENGTHS = 3, (5, 4)
"""Numbers of sentences, and of source and target tokens, for large models."""
MOST_NAMES = 3
"""Maximum number of arrays that a reason names."""
LOGITS = "logits"
"""Name of the models' output."""
STAGE_OF_PREFIX = {
    "gradient of ": "gradients",
    "after step 1: ": "step 1",
    "after step 3: ": "step 3",
    "loss": "loss",
    "": "forward",
}
"""Prefixes of names of outputs → their stages; the first that fits counts."""


def usual_stages(pair: Pair) -> tuple[str, ...]:
    """Returns the stages that a parity run proves by default; more take minutes."""
    return ("forward", "loss") if pair.is_large else ("forward", "loss", "gradients")


def prove_pair(
    pair: Pair,
    *,
    stages: Sequence[str] = STAGES,
    seed: int = 0,
    progress: Callable[[str], None] = lambda work: None,
    inside: Collection[str] = (),
) -> Certificate:
    """Proves stages of a pair of models on one batch: all shapes, ids and masks are those of the batch.

    Args:
      stages: a selection of STAGES.
      inside: activations whose differences, by a comparison, don't change the outputs: heads in another order, or
        values at padding. If nothing else differs, they are left out of the proof.
    """
    problem = proof_problem(pair, seed)
    collected = Collected(seed, inside=inside, counts=partial(_counting, pair, problem))
    first = tuple(name for name in ("forward", "loss", "gradients") if name in stages)
    after_steps = ("step 1", "step 3") if "steps" in stages else ()
    try:
        both = lowered(pair.candidate, pair.reference, problem)
    except CannotRun as reason:
        collected.stages = [StageProof(name, "unknown", reason=str(reason)) for name in (*first, *after_steps)]
    else:
        kinds = partial(kinds_for_model, pair.config, problem, seed)
        collected.subject = Subject(kinds, both.carried, both.written)
        if first:
            _prove_forward(both, first, collected, progress)
        if after_steps:
            progress("proof: optimizer steps")
            collected.prove(after_steps, both.steps)
    certificate = collected.certificate(_name(pair.candidate), pair.reference.name, problem.batch)
    conditions = both.conditions if collected.tasks else ()
    return replace(certificate, allowed=tuple(sorted(pair.allow)), conditions=conditions)


def _counting(pair: Pair, problem: Problem, task: Task) -> dict[str, np.ndarray]:
    """Returns masks of the activations' values at positions that count, by name: at tokens, and at labels that the loss
    counts. Returns no masks if the loss counts padding."""
    if pair.rules.train.loss_counts_pads:
        return {}
    shapes = {name: np.broadcast_to(0.0, value.shape) for name, value in task.candidate.outputs.items()}
    counts = where_not_padding(pair.config, problem.ids, shapes)
    labelled = problem.labels != pair.config.target.pad_id
    if LOGITS in counts:
        counts[LOGITS] = counts[LOGITS] | labelled[..., None]
    return {name: mask for name, mask in counts.items() if mask.any()}


def _name(candidate: Any) -> str:
    """Returns the name of a side, including its mesh if it has one."""
    mesh = candidate.devices.mesh if isinstance(candidate, JaxSide) else None
    return candidate.name if mesh is None else f"{candidate.name} on {described_mesh(mesh)}"


def proof_problem(pair: Pair, seed: int) -> Problem:
    """Returns a batch in which every query sees a key and no allowed difference has an effect; a small batch for large
    models."""
    problem = with_keys_for_all(pair.config, pair.problems(seed).own())
    if not pair.is_large:
        return problem
    source, target = LARGE_LENGTHS
    return with_keys_for_all(pair.config, problem.rows(slice(0, LARGE_ROWS), source, target))


def _prove_forward(
    both: Lowered, names: tuple[str, ...], collected: Collected, progress: Callable[[str], None]
) -> None:
    """Proves activations, loss and gradients as outputs of one pair of programs, or without gradients if these can't be
    lowered."""
    if "gradients" in names:
        progress("proof: forward, loss and gradients")
        collected.prove(names, lambda: both.forward(gradients=True))
        if collected.tasks or names == ("gradients",):
            return
    progress("proof: forward and loss")
    unknown = [stage for stage in collected.stages if stage.name == "gradients"]
    collected.stages.clear()
    rest = tuple(name for name in names if name != "gradients")
    collected.prove(rest, lambda: both.forward(gradients=False))
    collected.stages += unknown


class Collected:
    """Collects the results of stages.

    Args:
      subject: the pair to run in float64 when searching for weights that show a refutation. None: no search.
      output: the name of the programs' output.
      inside: as in `prove_pair`.
      counts: for a task, masks of the values that count, by output; for all others, every value counts. Outputs that
        differ only in values that don't count are equal, and the stage says so.
    """

    def __init__(
        self,
        seed: int,
        subject: Subject | None = None,
        output: str = LOGITS,
        inside: Collection[str] = (),
        counts: Callable[[Task], Mapping[str, np.ndarray]] = lambda task: {},
    ) -> None:
        self.seed, self.subject, self.output, self.inside, self.counts = (
            seed,
            subject,
            output,
            frozenset(inside),
            counts,
        )
        self.stages: list[StageProof] = []
        self.tasks: list[TaskProof] = []
        self.difference: dict[str, Any] | None = None
        self.witness: Witness | None = None

    def prove(self, names: tuple[str, ...], lower: Callable[[], Task]) -> None:
        """Proves the outputs of a pair of programs, each of which belongs to one of the stages."""
        try:
            task = lower()
        except (UnknownOperation, CannotRun) as error:
            self.stages += [StageProof(name, "unknown", reason=str(error)) for name in names]
            return
        if "gradients" in names and self.output in task.unknown:  # it may be undefined, and so may its gradients
            reason = f"they are defined only where the output is: {task.unknown[self.output]}"
            self.stages += [StageProof(name, "unknown", reason=reason) for name in names]
            return
        result = decide(task, seed=self.seed)
        inside = result.different if self.inside.issuperset(result.different) else ()
        if inside:
            task = _without(task, inside)
            result = decide(task, seed=self.seed)
        reason = _excluded(inside)
        if not inside and result.different:
            counts = {name: mask for name, mask in self.counts(task).items() if name in result.different}
            narrowed = replace(task, counts=counts)
            again = decide(narrowed, seed=self.seed) if {*counts} == {*result.different} else result
            if again.verdict == "proven":
                reason = _excluded_at_padding(narrowed, result.different)
                task, result = narrowed, again
        is_first_refuted = result.verdict == "refuted" and all(stage.verdict != "refuted" for stage in self.stages)
        if result.difference is not None and (self.difference is None or is_first_refuted):
            facts = self._search(result.task or task, result) if is_first_refuted else None
            self.difference = difference_of(result.difference, facts)
        found = [_stage_proof(name, result, self.output) for name in names]
        self.stages += [replace(one, reason=reason) if reason and one.name == "forward" else one for one in found]
        self.tasks.append(TaskProof.of(names, task, result))

    def _search(self, task: Task, result: Result) -> dict[str, Any] | None:
        """Searches for weights that show a refutation, keeps them, and returns the certificate's facts about them."""
        if self.subject is None:
            return None
        facts, self.witness = find_witness(task, result, self.subject, self.seed)
        return facts

    def certificate(self, candidate: str, reference: str, inputs: Mapping[str, np.ndarray]) -> Certificate:
        return Certificate(
            candidate,
            reference,
            tuple(self.stages),
            tuple(self.tasks),
            self.difference,
            described(inputs),
            seed=self.seed,
            environment=environment(LIBRARIES),
            witness=self.witness,
        )


def _without(task: Task, names: tuple[str, ...]) -> Task:
    """Returns the task without some of its outputs."""
    align = task.align

    def aligned(outputs: Mapping[str, Any]) -> Mapping[str, Any]:
        return {name: array for name, array in align(outputs).items() if name not in names}

    left = {name: value for name, value in task.candidate.outputs.items() if name not in names}
    return replace(task, candidate=replace(task.candidate, outputs=left), align=aligned)


def _excluded(inside: tuple[str, ...]) -> str:
    """Returns the certificate's note on activations that differ although the outputs don't."""
    if not inside:
        return ""
    more = f" and {len(inside) - 1} more" if len(inside) > 1 else ""
    return f"not compared, as they differ without changing what is returned: {inside[0]}{more}"


def _excluded_at_padding(task: Task, names: tuple[str, ...]) -> str:
    """Returns the certificate's note on activations that differ only at padding."""
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    first = np.broadcast_to(task.counts[names[0]], task.candidate.outputs[names[0]].shape)
    return (
        f"not compared at positions of padding, where they differ: {names[0]} ({int((~first).sum()):,} of "
        f"{first.size:,} values){more}"
    )


def _stage_proof(name: str, result: Result, output: str = LOGITS) -> StageProof:
    """Returns the verdict on a stage. Equal activations don't prove it unless the program's output is among them."""
    found = (_in_stage(names, name) for names in (result.equal, result.different, result.alone))
    equal, different, alone = found
    unknown = _in_stage(tuple(result.unknown), name)
    if result.verdict == "unknown":
        return StageProof(name, "unknown", alone=alone, reason=result.reason)
    if different:
        return StageProof(name, "refuted", equal, different, alone)
    if unknown:
        first = next((one for one in unknown if one == output), unknown[0])
        return StageProof(name, "unknown", equal, alone=alone, reason=result.unknown[first])
    if not equal:
        return StageProof(name, "unknown", alone=alone, reason="nothing was compared: no name is on both sides")
    if name == "forward" and output not in equal:
        return StageProof(name, "unknown", equal, alone=alone, reason="the outputs weren't compared")
    if name == "gradients" and alone:
        names = ", ".join(one.removeprefix(GRADIENT) for one in alone[:MOST_NAMES])
        reason = (
            f"one side alone has a gradient of {names}; the other doesn't train it (requires_grad=False): stop it on "
            "both sides (jax.lax.stop_gradient), or on neither"
        )
        return StageProof(name, "unknown", equal, alone=alone, reason=reason)
    if result.verdict == "refuted":
        reason = "the same at one point, where another stage differs"
        return StageProof(name, "unknown", equal, alone=alone, reason=reason)
    return StageProof(name, "proven", equal, alone=alone)


def _in_stage(outputs: tuple[str, ...], name: str) -> tuple[str, ...]:
    return tuple(
        one
        for one in outputs
        if STAGE_OF_PREFIX[next(start for start in STAGE_OF_PREFIX if one.startswith(start))] == name
    )
