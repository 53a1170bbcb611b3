"""Searches for the value of each parameter: runs a call, measures how far it gets, and checks the logits' behaviour."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from jax_transformer.programs.calling.behaviour import Behaviour, Ids, Probe, behaviour, same
from jax_transformer.programs.calling.forms import OUTPUT, Assignment, Ending, Form, heads, member
from jax_transformer.programs.calling.options import OMIT, UNUSABLE, Option, mask_options, plain_options
from jax_transformer.programs.calling.outputs import Reading, kept_readings, readings
from jax_transformer.programs.calling.roles import Parameter
from jax_transformer.programs.calling.styles import KIND_ORDER, Slot, mask_slots, styled, variants
from jax_transformer.programs.calling.trials import Lookup, Outcome, Runner
from jax_transformer.programs.modes import softmax_inputs

if TYPE_CHECKING:
    import torch
SHAPE_ERROR = re.compile(r"\b(sizes?|shapes?|dim(ension)?s?|broadcast\w*|axes)\b")
"""Matches errors that depend only on a tensor's shape, not on its numbers."""


@dataclass(frozen=True)
class Candidate:
    """Holds a way to call the module, and its result."""

    form: Form
    chosen: Assignment
    outcome: Outcome = field(default_factory=Outcome, compare=False)
    """The call's result if it isn't logits, or its error."""
    lines: tuple[str, ...] = ()
    """The lines of the call; empty if it returns no logits."""
    behaviour: Behaviour = field(default_factory=Behaviour)
    ending: Ending = OUTPUT
    logits: Any = field(default=None, compare=False)
    """The logits [B, T, V] of ids without padding."""

    @property
    def runs(self) -> bool:
        """Returns whether the call completes; it may return no logits."""
        return self.outcome.succeeded

    @property
    def is_unread(self) -> bool:
        """Returns whether the call completes and returns no logits."""
        return self.runs and not self.lines

    @property
    def rank(self) -> tuple[int, float, int]:
        """Returns the sort key of candidates: behaviour if they run, otherwise how far they get."""
        return *self.behaviour.rank, 0 if self.lines else self.outcome.reached


def _better(candidate: Candidate, best: Candidate | None) -> Candidate:
    return candidate if best is None or candidate.rank > best.rank else best


class Search:
    """Searches for the best call of a module."""

    def __init__(self, runner: Runner, probe: Probe) -> None:
        self.runner, self.probe, self.ids = runner, probe, probe.ids
        self.pad_pair = (probe.pads[0][0], probe.pads[1][0])
        self._judgements: list[tuple[tuple[Any, Any], Behaviour]] = []
        """Logits of ids without and with padding, and the behaviour of the calls that returned them."""
        self._seen: dict[tuple[Form, tuple[Option, ...]], Candidate] = {}

    def styled(self, form: Form) -> Candidate:
        """Finds the best candidate of a form whose masks have one style.

        Skips styles in which the call fails before it reads a mask, or returns no logits without masks.
        """
        slots, best = self._slots(form), None
        for variant in variants(slots):
            plain = self._evaluate(form, variant, best)
            best = _better(plain, best)
            if plain.is_unread or not (plain.runs or self._fails_at(plain, mask_slots(form))):
                continue
            for chosen in styled(form, slots, variant):
                if best.behaviour.is_complete or self.runner.is_spent:
                    return best
                best = _better(self._evaluate(form, chosen, best), best)
        assert best is not None
        return best

    def climbed(self, best: Candidate, most: int = 500) -> Candidate:
        """Changes one parameter of a candidate at a time while that helps, at most `most` times."""
        slots, improved, limit = self._slots(best.form), True, len(self._seen) + most
        masks = mask_slots(best.form)
        while improved and best.behaviour.failing and not best.is_unread:
            improved = False
            for slot in _in_order(best, slots):
                if slot in masks and not best.runs and not self._fails_at(best, [slot]):
                    continue
                misfits = set[str]()
                for option in _worth_trying(best, slot, slots[slot]):
                    if self.runner.is_spent or len(self._seen) >= limit or not best.behaviour.failing:
                        return best
                    if option.layout in misfits:
                        continue
                    candidate = self._evaluate(best.form, {**best.chosen, slot: option}, best)
                    if option.layout and SHAPE_ERROR.search(str(candidate.outcome.error)):
                        misfits.add(option.layout)
                    if _distorts(candidate, best, slot) or _drops(candidate, best, slot):
                        continue
                    if candidate.rank[:2] > best.rank[:2] or candidate.rank > (*best.rank[:2], best.rank[2] + 2):
                        best, improved = candidate, True
                        break
        return best

    def rivals(self, best: Candidate) -> dict[str, list[str]]:
        """Lists, for each parameter whose name doesn't show its purpose, the alternative values that run and change the
        logits."""
        found: dict[str, list[str]] = {}
        roles = {
            (number, one.name): one.role for number, stage in enumerate(best.form.stages) for one in stage.parameters
        }
        for slot, options in self._slots(best.form).items():
            if roles[slot] not in ("other", "size", "language") or best.chosen[slot].text is None:
                continue
            writings = [
                best.form.write({**best.chosen, slot: option}, self.pad_pair, best.ending) for option in options
            ]
            tried = [self.caller(lines)(*self.ids) for lines in writings]
            found[slot[1]] = [
                str(option.text)
                for option, logits in zip(options, tried, strict=True)
                if logits is not None and not same(logits, best.logits)
            ]
        return found

    def _slots(self, form: Form) -> dict[Slot, list[Option]]:
        """Returns the options of each parameter that takes no ids."""
        slots: dict[Slot, list[Option]] = {}
        for number, stage in enumerate(form.stages):
            for parameter in stage.parameters:
                if parameter.role in ("source", "target"):
                    continue
                slots[number, parameter.name] = self._options(form, number, parameter)
        return slots

    def _options(self, form: Form, number: int, parameter: Parameter) -> list[Option]:
        if parameter.role == "memory":
            return [Option("memory"), Option("memory[0]"), Option("memory.transpose(0, 1)")]
        if parameter.role == "labels":
            return [Option(text) for text in dict.fromkeys((form.target, "decoder_input_ids", "None"))]
        if parameter.role == "is_causal" and number < len(form.stages) - 1:  # an encoder's
            return [Option("False")]
        if parameter.is_mask:
            options = mask_options(parameter)
            return [*options, Option("memory[1]")] if number else options
        if not parameter.is_required and parameter.role in ("other", "size", "device"):
            return [OMIT]
        options = plain_options(parameter)
        filled = [
            Option(option.text and option.text.format(source_pad=self.pad_pair[0], target_pad=self.pad_pair[1]))
            for option in options
        ]
        return [*filled, Option("memory[1]")] if number and parameter.is_required else filled

    def _fails_at(self, candidate: Candidate, slots: Iterable[Slot]) -> bool:
        """Returns whether a failing call fails at one of these arguments; if not, changing them can't help."""
        chosen = {**candidate.chosen, **dict.fromkeys(slots, UNUSABLE)}
        lines = candidate.form.write(chosen, self.pad_pair)
        return "Unusable" in str(self.runner.run(lines, *self.ids).error)

    def _evaluate(self, form: Form, chosen: Assignment, best: Candidate | None) -> Candidate:
        key = form, tuple(chosen.values())
        if key not in self._seen:
            self._seen[key] = self._tried(form, chosen, best.rank[0] if best else 0)
        return self._seen[key]

    def _tried(self, form: Form, chosen: Assignment, least: int) -> Candidate:
        """Runs a call; if it completes, finds the logits and checks their behaviour."""
        lookups: list[Lookup] = []
        self.runner.trials += 1
        outcome = self.runner.run(form.write(chosen, self.pad_pair), *self.ids, lookups=lookups)
        if not outcome.succeeded:
            return Candidate(form, chosen, outcome)
        target_table = tables(lookups, self.ids)[1]
        ending = self._ending(form, chosen, outcome.value, None if target_table is None else len(target_table))
        if ending is None:
            return Candidate(form, chosen, outcome)
        candidate = self._judged(form, chosen, ending, least)
        if not ending.shift and not candidate.behaviour.holds.get("uses the current target token", True):
            moved = self._judged(form, chosen, replace(ending, shift="left"), least)
            if moved.rank > candidate.rank:
                return moved
        return candidate

    def _ending(self, form: Form, chosen: Assignment, value: Any, vocabulary: int | None) -> Ending | None:
        """Finds how to get logits from a call's result; None if it has none."""
        batch, length = self.ids.target.shape
        found = readings(value, batch, length) or kept_readings(self.runner.module, batch, length)
        fitting = [one for one in found if one.width == vocabulary]
        endings = [Ending(one.text, _shift(one)) for one in fitting]
        ending = next(iter(endings), None) or self._by_head(form, chosen, found, vocabulary)
        ending = ending or self._inside(form, chosen, vocabulary)
        ending = ending or next((Ending(one.text, _shift(one)) for one in found), None)
        return ending and self._finished(form, chosen, ending)

    def _by_head(self, form: Form, chosen: Assignment, found: list[Reading], vocabulary: int | None) -> Ending | None:
        """Finds an ending that applies a head, which the call leaves out, to the call's result."""
        batch, length = self.ids.target.shape
        for reading in found:
            ending = Ending(reading.text, _shift(reading))
            entered = {name for name, _ in self.runner.outputs(form.write(chosen, self.pad_pair, ending), *self.ids)}
            for head in heads(self.runner.module, entered):
                applied = replace(ending, text=f"{head}({reading.text})")
                outcome = self.runner.run(form.write(chosen, self.pad_pair, applied), *self.ids)
                through = readings(outcome.value, batch, length, applied.text) if outcome.succeeded else []
                if through and through[0].rows == 0 and self._is_width(through[0].width, vocabulary):
                    return replace(applied, text=through[0].text)
        return None

    def _inside(self, form: Form, chosen: Assignment, vocabulary: int | None) -> Ending | None:
        """Finds an ending that takes logits out of the call. Prefers one that also covers the padding of padded
        sentences, since a loss may skip padding."""
        endings = list(self._endings_inside(form, chosen, vocabulary))
        whole = (one for one in endings if self._has_length(form, chosen, one, self.probe.padded))
        return next(whole, endings[0] if endings else None)

    def _endings_inside(self, form: Form, chosen: Assignment, vocabulary: int | None) -> Iterator[Ending]:
        """Yields endings that read the inputs of the last softmaxes over the vocabulary, as in a loss; then endings
        that read the outputs of the last parts of the module."""
        lines = form.write(chosen, self.pad_pair)
        with softmax_inputs(vocabulary) as found:
            self.runner.run(lines, *self.ids)
        for number in range(-1, -1 - len(found), -1):
            for reading in self._readings(found[number], f"logits[{number}]", vocabulary):
                remark = "returns a loss: the adapter takes the logits of its softmax"
                yield Ending(reading.text, _shift(reading), f"softmax_inputs({reading.width})", (remark,))
        for name, output in reversed(self.runner.outputs(lines, *self.ids) if vocabulary else []):
            for reading in self._readings(output, "logits[-1]", vocabulary):
                remark = f"returns no logits: the adapter uses the logits from {name}"
                yield Ending(reading.text, _shift(reading), f"outputs_of({member(name)})", (remark,))

    def _has_length(self, form: Form, chosen: Assignment, ending: Ending, ids: Ids) -> bool:
        """Returns whether a call with this ending returns logits for each target token."""
        outcome = self.runner.run(form.write(chosen, self.pad_pair, ending), *ids)
        return outcome.succeeded and tuple(outcome.value.shape[:2]) == tuple(ids.target.shape)

    def _readings(self, value: Any, name: str, vocabulary: int | None) -> list[Reading]:
        batch, length = self.ids.target.shape
        found = readings(value, batch, length, name)
        return [reading for reading in found if self._is_width(reading.width, vocabulary)]

    def _is_width(self, width: int, vocabulary: int | None) -> bool:
        return width == vocabulary if vocabulary is not None else width > int(self.ids.target.max())

    def _finished(self, form: Form, chosen: Assignment, ending: Ending) -> Ending | None:
        """Takes the logarithm of probabilities, and notes the kind of the logits."""
        outcome = self.runner.run(form.write(chosen, self.pad_pair, ending), *self.ids)
        if not outcome.succeeded or tuple(outcome.value.shape[:2]) != tuple(self.ids.target.shape):
            return None
        logits: torch.Tensor = outcome.value
        sums = logits.sum(-1)
        if bool((logits >= 0).all()) and bool(((sums - 1).abs() < 1e-3).all()):
            remarks = (*ending.remarks, "returns probabilities: the adapter takes their logarithm")
            return replace(ending, text=f"{ending.text}.log()", remarks=remarks)
        if bool((logits.logsumexp(-1).abs() < 1e-3).all()):
            return replace(ending, remarks=(*ending.remarks, "returns log-probabilities, which serve as logits"))
        return ending

    def _judged(self, form: Form, chosen: Assignment, ending: Ending, least: int) -> Candidate:
        """Checks the behaviour of a call, unless an earlier call returned the same logits."""
        lines = tuple(form.write(chosen, self.pad_pair, ending))
        lookups: list[Lookup] = []
        logits = self.runner.run(lines, *self.ids, lookups=lookups).value
        shown = (logits, self.caller(lines)(*self.probe.padded))
        for others, known in self._judgements:
            pairs = zip(shown, others, strict=True)
            if all(one is not None and other is not None and one.equal(other) for one, other in pairs):
                return Candidate(form, chosen, Outcome(), lines, known, ending, logits)
        shifted = ending.shift in ("drop", "left")
        found = behaviour(self.caller(lines), self.probe, tables(lookups, self.ids), ignores_first=shifted, least=least)
        self._judgements.append((shown, found))
        return Candidate(form, chosen, Outcome(), lines, found, ending, logits)

    def caller(self, lines: Sequence[str]) -> Any:
        """Makes a function (source_ids, decoder_input_ids) → logits, or None if the lines fail."""

        def call(source_ids: torch.Tensor, decoder_input_ids: torch.Tensor) -> torch.Tensor | None:
            outcome = self.runner.run(lines, source_ids, decoder_input_ids, watched=False)
            if not outcome.succeeded or outcome.value.shape[:2] != decoder_input_ids.shape:
                return None
            return outcome.value

        return call


def _distorts(candidate: Candidate, best: Candidate, slot: Slot) -> bool:
    """Returns whether a newly added padding mask changes logits of ids without padding."""
    text = candidate.chosen[slot].text or ""
    if best.chosen[slot].text is not None or not best.lines or not candidate.lines or "earlier" in text:
        return False
    return candidate.logits is None or not same(candidate.logits, best.logits)


def _drops(candidate: Candidate, best: Candidate, slot: Slot) -> bool:
    """Returns whether a mask is dropped and no more properties hold without it."""
    is_dropped = bool(best.chosen[slot].layout) and not candidate.chosen[slot].layout
    return is_dropped and bool(best.lines) and candidate.rank[0] <= best.rank[0]


def _in_order(best: Candidate, slots: dict[Slot, list[Option]]) -> list[Slot]:
    """Sorts the slots: first the ones that may add a property that a running call lacks."""
    roles = {(number, one.name): one.role for number, stage in enumerate(best.form.stages) for one in stage.parameters}
    first = "target_mask" if "hides later target tokens" in best.behaviour.failing and best.lines else ""
    return sorted(slots, key=lambda slot: roles[slot] != first)


def _worth_trying(best: Candidate, slot: Slot, options: list[Option]) -> list[Option]:
    """Lists the options of a parameter that may help. If a call lacks only the hiding of target padding, these are the
    options that hide it."""
    if not best.behaviour.is_complete:
        chosen = {option.kind for option in best.chosen.values() if option.kind}
        others = [option for option in options if option != best.chosen[slot]]
        return sorted(others, key=lambda option: option.kind not in chosen)
    kinds = {option.kind for option in best.chosen.values() if option.kind} or {*KIND_ORDER}
    return [option for option in options if "target_real" in (option.text or "") and option.kind in kinds]


def _shift(reading: Reading) -> str:
    return {0: "", -1: "append", 1: "drop"}[reading.rows]


def tables(lookups: list[Lookup], ids: Ids) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Returns the tables that source and target ids index; None for a side without a lookup."""
    found: list[torch.Tensor | None] = []
    for side in ids:
        real = set(side.flatten().tolist())
        fitting = [
            lookup.table
            for lookup in lookups
            if lookup.indices.numel() >= side.numel() - side.shape[0]
            and len(seen := set(lookup.indices.flatten().tolist())) > 1
            and len(seen & real) >= min(len(real), len(seen)) - 2
            and len(seen - real) <= 2
        ]
        found.append(fitting[0] if fitting else None)
    return found[0], found[1]


def start_id(lookups: list[Lookup], ids: Ids) -> int | None:
    """Returns the id that replaces the first token of every target in the module; None if there is none."""
    target = ids.target
    for lookup in lookups:
        for found in (lookup.indices, lookup.indices.T) if lookup.indices.ndim == 2 else ():
            if found.shape == target.shape and bool((found[:, 1:] == target[:, 1:]).all()):
                first = set(found[:, 0].tolist())
                return first.pop() if len(first) == 1 and bool((found[:, 0] != target[:, 0]).any()) else None
    return None
