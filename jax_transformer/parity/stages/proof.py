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
"""What can be proven of models. steps: the parameters after one and after three optimizer steps."""
ROWS_OF_LARGE, LENGTHS_OF_LARGE = 3, (5, 4)
"""The sentences, and the tokens of source and target, on which large models are compared."""
MOST_NAMES = 3
"""The most names of arrays that a reason lists."""
LOGITS = "logits"
"""What models return."""
OF_STAGE = {
    "gradient of ": "gradients",
    "after step 1: ": "step 1",
    "after step 3: ": "step 3",
    "loss": "loss",
    "": "forward",
}
"""Beginnings of names of outputs → their stages; the first that fits counts."""


def usual_stages(pair: Pair) -> tuple[str, ...]:
    """Returns what a parity run proves beside its comparisons; more takes minutes."""
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
      inside: activations that may differ, as a comparison found that their differences change nothing: heads in
        another order, or padding. If nothing else differs, the rest is compared without them.
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
    ids = {name: getattr(problem, name) for name in ("source_ids", "decoder_input_ids", "labels")}
    certificate = collected.certificate(_name(pair.candidate), pair.reference.name, ids)
    conditions = both.conditions if collected.tasks else ()
    return replace(certificate, allowed=tuple(sorted(pair.allow)), conditions=conditions)


def _counting(pair: Pair, problem: Problem, task: Task) -> dict[str, np.ndarray]:
    """Returns masks of the values of activations at positions that count, by name: at tokens, and wherever the loss
    counts a label. None are left out if the loss counts padding."""
    if pair.rules.train.loss_counts_pads:
        return {}
    shapes = {name: np.broadcast_to(0.0, value.shape) for name, value in task.candidate.outputs.items()}
    counts = where_not_padding(pair.config, problem.ids, shapes)
    labelled = problem.labels != pair.config.target.pad_id
    if LOGITS in counts:
        counts[LOGITS] = counts[LOGITS] | labelled[..., None]
    return {name: mask for name, mask in counts.items() if mask.any()}


def _name(candidate: Any) -> str:
    """Returns the name of a side, with its mesh if it has one."""
    mesh = candidate.devices.mesh if isinstance(candidate, JaxSide) else None
    return candidate.name if mesh is None else f"{candidate.name} on {described_mesh(mesh)}"


def proof_problem(pair: Pair, seed: int) -> Problem:
    """Returns a batch in which every query sees a key, without what shows allowed differences; a small one for large
    models."""
    problem = with_keys_for_all(pair.config, pair.problems(seed).own())
    if not pair.is_large:
        return problem
    source, target = LENGTHS_OF_LARGE
    rows = slice(0, ROWS_OF_LARGE)
    small = replace(
        problem,
        source_ids=problem.source_ids[rows, :source],
        decoder_input_ids=problem.decoder_input_ids[rows, :target],
        labels=problem.labels[rows, :target],
    )
    return with_keys_for_all(pair.config, small)


def _prove_forward(
    both: Lowered, names: tuple[str, ...], collected: Collected, progress: Callable[[str], None]
) -> None:
    """Proves activations, loss and gradients as outputs of one pair of programs; without gradients if these can't be
    lowered."""
    if "gradients" in names:
        progress("proof: forward, loss and gradients")
        collected.prove(names, lambda: both.forward(gradients=True))
        if collected.tasks or names == ("gradients",):
            return
    progress("proof: forward and loss")
    of_gradients = [stage for stage in collected.stages if stage.name == "gradients"]
    collected.stages.clear()
    rest = tuple(name for name in names if name != "gradients")
    collected.prove(rest, lambda: both.forward(gradients=False))
    collected.stages += of_gradients


class Collected:
    """Collects what is known of stages.

    Args:
      subject: what a search for weights needs to know, on which a refutation shows in float64; None: there is none.
      output: the name of what the programs return.
      inside: as of `prove_pair`.
      counts: for a task, masks of the values that count, by output, where not all do. Outputs that differ elsewhere
        alone are the same, and the stage says so.
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
        if "gradients" in names and self.output in task.unknown:  # and so, perhaps, undefined: its gradients are, too
            reason = f"they are defined only where the output is: {task.unknown[self.output]}"
            self.stages += [StageProof(name, "unknown", reason=reason) for name in names]
            return
        result = decide(task, seed=self.seed)
        inside = result.different if self.inside.issuperset(result.different) else ()
        if inside:
            task = _without(task, inside)
            result = decide(task, seed=self.seed)
        told = _told_of(inside)
        if not inside and result.different:
            counts = {name: mask for name, mask in self.counts(task).items() if name in result.different}
            narrowed = replace(task, counts=counts)
            again = decide(narrowed, seed=self.seed) if {*counts} == {*result.different} else result
            if again.verdict == "proven":
                told = _told_of_padding(narrowed, result.different)
                task, result = narrowed, again
        is_first_refuted = result.verdict == "refuted" and all(stage.verdict != "refuted" for stage in self.stages)
        if result.difference is not None and (self.difference is None or is_first_refuted):
            facts = self._search(result.task or task, result) if is_first_refuted else None
            self.difference = difference_of(result.difference, facts)
        found = [_stage_proof(name, result, self.output) for name in names]
        self.stages += [replace(one, reason=told) if told and one.name == "forward" else one for one in found]
        self.tasks.append(TaskProof.of(names, task, result))

    def _search(self, task: Task, result: Result) -> dict[str, Any] | None:
        """Searches for weights on which a refutation shows, keeps them, and returns what a certificate tells of it."""
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


def _told_of(inside: tuple[str, ...]) -> str:
    """Returns what a certificate says of activations that differ though the outputs don't."""
    if not inside:
        return ""
    more = f" and {len(inside) - 1} more" if len(inside) > 1 else ""
    return f"not compared, as they differ without changing what is returned: {inside[0]}{more}"


def _told_of_padding(task: Task, names: tuple[str, ...]) -> str:
    """Returns what a certificate says of activations that differ at padding alone."""
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    first = np.broadcast_to(task.counts[names[0]], task.candidate.outputs[names[0]].shape)
    return (
        f"not compared at positions of padding, where they differ: {names[0]} ({int((~first).sum()):,} of "
        f"{first.size:,} values){more}"
    )


def _stage_proof(name: str, result: Result, output: str = LOGITS) -> StageProof:
    """Returns what is known of a stage. Without what a program returns, its activations prove nothing of it."""
    found = (_of_stage(names, name) for names in (result.equal, result.different, result.alone))
    equal, different, alone = found
    unknown = _of_stage(tuple(result.unknown), name)
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


def _of_stage(outputs: tuple[str, ...], name: str) -> tuple[str, ...]:
    return tuple(one for one in outputs if OF_STAGE[next(start for start in OF_STAGE if one.startswith(start))] == name)
