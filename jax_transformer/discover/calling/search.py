"""Search for what must be given for each parameter: try, see how far it gets, and look at the logits' behaviour."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from jax_transformer.discover.calling.behaviour import Behaviour, Ids, Probe, behaviour, same
from jax_transformer.discover.calling.forms import Assignment, Form, heads
from jax_transformer.discover.calling.options import OMIT, Option, mask_options, plain_options
from jax_transformer.discover.calling.outputs import Reading, kept_readings, readings
from jax_transformer.discover.calling.roles import Parameter
from jax_transformer.discover.calling.trials import Lookup, Runner

if TYPE_CHECKING:
    import torch

Slot = tuple[int, str]
"""(stage, parameter)"""

RANKS: dict[str, dict[str, tuple[str, ...]]] = {
    "3": {"source": ("[B, 1, S]",), "target": ("[B, T, T]", "[B, 1, T]"), "cross": ("[B, 1, S]",)},
    "4": {"source": ("[B, 1, 1, S]",), "target": ("[B, 1, T, T]", "[B, 1, 1, T]"), "cross": ("[B, 1, 1, S]",)},
    "2": {"source": ("[B, S]", "[S, S]"), "target": ("[T, T]", "[B, T]"), "cross": ("[B, S]", "[T, S]")},
    "2 padding": {"source": ("[B, S]",), "target": ("[B, T]",), "cross": ("[B, S]",)},
    "time first": {"source": ("[S, B]",), "target": ("[T, B]",), "cross": ("[S, B]",)},
    "time first 3": {"source": ("[1, S, B]",), "target": ("[T, T, B]",), "cross": ("[1, S, B]",)},
    "3 full": {"source": ("[B, S, S]",), "target": ("[B, T, T]", "[B, 1, T]"), "cross": ("[B, T, S]",)},
    "4 full": {"source": ("[B, 1, S, S]",), "target": ("[B, 1, T, T]", "[B, 1, 1, T]"), "cross": ("[B, 1, T, S]",)},
}
"""Axes of masks in one style → side → layouts: of a mask of its own, and of one beside another for the same side."""
CAUSAL_RANKS = {"3": ("[1, T, T]",), "3 full": ("[1, T, T]",), "4": ("[1, 1, T, T]",), "4 full": ("[1, 1, T, T]",)}
CAUSAL_RANKS |= {"time first 3": ("[T, T, 1]",)}
"""The same of masks whose name says that they hide nothing but later positions."""
KIND_ORDER = ("real", "hidden", "real_int", "added", "hidden_int", "real_float", "hidden_float")


@dataclass(frozen=True)
class Candidate:
    """Holds a way to call the module, and what came of it."""

    form: Form
    chosen: Assignment
    reached: int = 0
    lines: tuple[str, ...] = ()
    behaviour: Behaviour = field(default_factory=Behaviour)
    shift: str = ""
    remarks: tuple[str, ...] = ()
    logits: Any = field(default=None, compare=False)
    """The logits [B, T, V] of ids without padding, if it runs."""

    @property
    def rank(self) -> tuple[int, float, int]:
        """Returns what candidates are compared by: the behaviour of those that run, the way that others go."""
        return *self.behaviour.rank, 0 if self.lines else self.reached


class Search:
    """Looks for the best way to call a module."""

    def __init__(self, runner: Runner, probe: Probe) -> None:
        self.runner, self.probe, self.ids = runner, probe, probe.ids
        self.pad_pair = (probe.pads[0][0], probe.pads[1][0])
        self.unread: Any = None
        """What a call returned that ran, and held no logits."""
        self._seen: dict[tuple[Form, tuple[Option, ...]], Candidate] = {}

    def styled(self, form: Form) -> Candidate:
        """Returns the best candidate of a form whose masks have one style."""
        best: Candidate | None = None
        for chosen in self._starts(form, self._slots(form)):
            candidate = self._evaluate(form, chosen, best)
            if best is None or candidate.rank > best.rank:
                best = candidate
            if best.behaviour.is_complete or self.runner.is_spent:
                break
        assert best is not None
        return best

    def climbed(self, best: Candidate, most: int = 500) -> Candidate:
        """Changes one parameter of a candidate at a time for as long as that helps, `most` times at most."""
        slots, improved, limit = self._slots(best.form), True, len(self._seen) + most
        while improved and best.behaviour.failing:
            improved = False
            for slot in _in_order(best, slots):
                for option in _worth_trying(best, slot, slots[slot]):
                    if self.runner.is_spent or len(self._seen) >= limit or not best.behaviour.failing:
                        return best
                    candidate = self._evaluate(best.form, {**best.chosen, slot: option}, best)
                    if _distorts(candidate, best, slot):
                        continue
                    if candidate.rank[:2] > best.rank[:2] or candidate.rank > (*best.rank[:2], best.rank[2] + 2):
                        best, improved = candidate, True
                        break
        return best

    def rivals(self, best: Candidate) -> dict[str, list[str]]:
        """Returns, of each parameter whose name doesn't tell what it is for, the other values that run and give other
        logits."""
        found: dict[str, list[str]] = {}
        roles = {
            (number, one.name): one.role for number, stage in enumerate(best.form.stages) for one in stage.parameters
        }
        for slot, options in self._slots(best.form).items():
            if roles[slot] not in ("other", "size") or best.chosen[slot].text is None:
                continue
            tried = [self._evaluate(best.form, {**best.chosen, slot: option}, None) for option in options]
            found[slot[1]] = [
                str(option.text)
                for option, one in zip(options, tried, strict=True)
                if one.logits is not None and not same(one.logits, best.logits)
            ]
        return found

    def _slots(self, form: Form) -> dict[Slot, list[Option]]:
        """Returns the options of each parameter that isn't for ids."""
        slots: dict[Slot, list[Option]] = {}
        for number, stage in enumerate(form.stages):
            for parameter in stage.parameters:
                if parameter.role in ("source", "target"):
                    continue
                slots[number, parameter.name] = self._options(form, number, parameter)
        return slots

    def _options(self, form: Form, number: int, parameter: Parameter) -> list[Option]:
        if parameter.role == "memory":
            return [Option("memory"), Option("memory[0]")]
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

    def _starts(self, form: Form, slots: dict[Slot, list[Option]]) -> Iterator[Assignment]:
        """Yields assignments in which all masks have one style; the first leaves out what may be left out."""
        plain = {slot: options[0] for slot, options in slots.items()}
        masks = {
            (number, parameter.name): parameter
            for number, stage in enumerate(form.stages)
            for parameter in stage.parameters
            if parameter.is_mask
        }
        memory = [slot for slot, options in slots.items() if options[0].text == "memory"]
        variants = [plain, *([plain | {slot: Option("memory[0]") for slot in memory}] if memory else [])]
        if all(not one.is_required for one in masks.values()):
            yield from variants
        for variant in variants if masks else []:
            for kind in KIND_ORDER:
                for rank in RANKS:
                    styled = {slot: self._styled(slot, form, slots, rank, kind) for slot in masks}
                    yield variant | styled
        if masks:
            yield from variants

    def _styled(self, slot: Slot, form: Form, slots: dict[Slot, list[Option]], rank: str, kind: str) -> Option:
        """Returns the option of this style for a mask."""
        number, name = slot
        parameters = form.stages[number].parameters
        mask = next(one for one in parameters if one.name == name)
        side = {"target_mask": "target", "cross_mask": "cross"}.get(mask.role, "source")
        others = [one for one in parameters if one.role == mask.role and one.name != name]
        layouts = CAUSAL_RANKS.get(rank, ("[T, T]",)) if mask.is_plainly_causal else RANKS[rank][side]
        is_padding = mask.is_padding and not mask.is_causal
        beside = any(one.is_padding != mask.is_padding for one in others)
        if side == "target":
            layout = layouts[-1] if is_padding and (beside or rank == "2") else layouts[0]
        elif len(layouts) > 1 and beside and not is_padding:
            layout = layouts[1]
        else:
            layout = layouts[0]
        fitting = [option for option in slots[slot] if option.layout == layout and option.kind == kind]
        if layout in ("[S, S]", "[T, S]") and not mask.is_required:
            return OMIT
        return fitting[0] if fitting else slots[slot][0]

    def _evaluate(self, form: Form, chosen: Assignment, best: Candidate | None) -> Candidate:
        key = form, tuple(chosen.values())
        if key not in self._seen:
            self._seen[key] = self._tried(form, chosen, best.rank[0] if best else 0)
        return self._seen[key]

    def _tried(self, form: Form, chosen: Assignment, least: int) -> Candidate:
        """Runs a call; if it runs, finds the logits and looks at their behaviour."""
        lookups: list[Lookup] = []
        lines = form.write(chosen, "", self.pad_pair, "output")
        outcome = self.runner.run(lines, *self.ids, lookups=lookups)
        if not outcome.succeeded:
            return Candidate(form, chosen, outcome.reached)
        target_table = tables(lookups, self.ids)[1]
        found = self._logits(form, chosen, outcome.value, None if target_table is None else len(target_table))
        if found is None:
            self.unread = outcome.value
            return Candidate(form, chosen, outcome.reached)
        ending, shift, remarks = found
        candidate = self._judged(form, chosen, shift, ending, remarks, least)
        if not shift and not candidate.behaviour.holds.get("uses the current target token", True):
            moved = self._judged(form, chosen, "left", ending, remarks, least)
            if moved.rank > candidate.rank:
                return moved
        return candidate

    def _logits(
        self, form: Form, chosen: Assignment, value: Any, vocabulary: int | None
    ) -> tuple[str, str, tuple[str, ...]] | None:
        """Returns (the expression of the logits, how the target is shifted, remarks), or None."""
        batch, length = self.ids.target.shape
        found = readings(value, batch, length) or kept_readings(self.runner.module, batch, length)
        fitting = [one for one in found if one.width == vocabulary]
        if fitting:
            return self._finished(form, chosen, fitting[0], fitting[0].text)
        for reading in found:
            shift = _shift(reading)
            lines = form.write(chosen, shift, self.pad_pair, reading.text)
            for head in heads(self.runner.module, self.runner.entered(lines, *self.ids)):
                ending = f"{head}({reading.text})"
                outcome = self.runner.run(form.write(chosen, shift, self.pad_pair, ending), *self.ids)
                through = readings(outcome.value, batch, length, ending) if outcome.succeeded else []
                if through and through[0].rows == 0 and self._is_width(through[0].width, vocabulary):
                    return self._finished(form, chosen, reading, through[0].text)
        return self._finished(form, chosen, found[0], found[0].text) if found else None

    def _is_width(self, width: int, vocabulary: int | None) -> bool:
        return width == vocabulary if vocabulary is not None else width > int(self.ids.target.max())

    def _finished(
        self, form: Form, chosen: Assignment, reading: Reading, ending: str
    ) -> tuple[str, str, tuple[str, ...]] | None:
        """Takes the logarithm of probabilities, and remarks what the logits are."""
        shift = _shift(reading)
        outcome = self.runner.run(form.write(chosen, shift, self.pad_pair, ending), *self.ids)
        if not outcome.succeeded or tuple(outcome.value.shape[:2]) != tuple(self.ids.target.shape):
            return None
        logits: torch.Tensor = outcome.value
        sums = logits.sum(-1)
        if bool((logits >= 0).all()) and bool(((sums - 1).abs() < 1e-3).all()):
            return f"{ending}.log()", shift, ("returns probabilities: the adapter takes their logarithm",)
        if bool((logits.logsumexp(-1).abs() < 1e-3).all()):
            return ending, shift, ("returns log-probabilities, which serve as logits",)
        return ending, shift, ()

    def _judged(
        self, form: Form, chosen: Assignment, shift: str, ending: str, remarks: tuple[str, ...], least: int
    ) -> Candidate:
        import torch

        lines = tuple(form.write(chosen, shift, self.pad_pair, ending))
        lookups: list[Lookup] = []
        self.runner.run(lines, *self.ids, lookups=lookups)
        shifted = shift in ("drop", "left")
        with torch.no_grad():
            found = behaviour(
                self.caller(lines), self.probe, tables(lookups, self.ids), ignores_first=shifted, least=least
            )
            logits = self.caller(lines)(*self.ids)
        return Candidate(form, chosen, 0, lines, found, shift, remarks, logits)

    def caller(self, lines: tuple[str, ...]) -> Any:
        """Returns a function (source_ids, decoder_input_ids) → logits, or None where they fail."""

        def call(source_ids: torch.Tensor, decoder_input_ids: torch.Tensor) -> torch.Tensor | None:
            outcome = self.runner.run(lines, source_ids, decoder_input_ids, watched=False)
            if not outcome.succeeded or outcome.value.shape[:2] != decoder_input_ids.shape:
                return None
            return outcome.value

        return call


def _distorts(candidate: Candidate, best: Candidate, slot: Slot) -> bool:
    """Returns whether a mask of padding that was left out before changes logits of ids that have no padding."""
    text = candidate.chosen[slot].text or ""
    if best.chosen[slot].text is not None or not best.lines or not candidate.lines or "earlier" in text:
        return False
    return candidate.logits is None or not same(candidate.logits, best.logits)


def _in_order(best: Candidate, slots: dict[Slot, list[Option]]) -> list[Slot]:
    """Returns the slots, first those that may mend what a call that runs lacks."""
    roles = {(number, one.name): one.role for number, stage in enumerate(best.form.stages) for one in stage.parameters}
    first = "target_mask" if "hides later target tokens" in best.behaviour.failing and best.lines else ""
    return sorted(slots, key=lambda slot: roles[slot] != first)


def _worth_trying(best: Candidate, slot: Slot, options: list[Option]) -> list[Option]:
    """Returns the options of a parameter that may help; of a call that is complete but for the target's padding, those
    that hide it."""
    if not best.behaviour.is_complete:
        chosen = {option.kind for option in best.chosen.values() if option.kind}
        others = [option for option in options if option != best.chosen[slot]]
        return sorted(others, key=lambda option: option.kind not in chosen)
    kinds = {option.kind for option in best.chosen.values() if option.kind} or {*KIND_ORDER}
    return [option for option in options if "target_real" in (option.text or "") and option.kind in kinds]


def _shift(reading: Reading) -> str:
    return {0: "", -1: "append", 1: "drop"}[reading.rows]


def tables(lookups: list[Lookup], ids: Ids) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Returns the tables that the ids index, of source and target; None where no lookup showed."""
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
