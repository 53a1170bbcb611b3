"""Finds out how to call an unknown PyTorch encoder-decoder.

Candidates come from names and signatures. Each is tried on small ids. The behaviour of the logits decides among the
calls that run: an encoder-decoder's logits depend on exactly the source tokens and the target so far.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from jax_transformer.programs.calling import adapters
from jax_transformer.programs.calling.behaviour import Ids, Probe, same
from jax_transformer.programs.calling.failures import FAULTS, CallError, draft, reason
from jax_transformer.programs.calling.forms import Form, forms, header
from jax_transformer.programs.calling.limits import (
    MOST_ELEMENTS,
    MOST_ROWS,
    accepts_id,
    accepts_length,
    draw_ids,
    free_lengths,
    longest,
    named_pads,
    sizes,
    source_pads,
    vocab_size,
)
from jax_transformer.programs.calling.one_sided import obstacle
from jax_transformer.programs.calling.search import Candidate, Search, start_id, tables
from jax_transformer.programs.calling.trials import Lookup, Runner, first_line, place

if TYPE_CHECKING:
    import torch
    from torch import nn

ENOUGH = ("is finite", "repeats", "keeps rows apart", "uses every source token", "hides later target tokens")
"""The properties that a call must have; otherwise the search goes on."""

LACKS = {
    "keeps rows apart": "the logits of a sentence depend on other sentences in its batch",
    "hides later target tokens": "logits depend on later target tokens",
    "uses the current target token": "logits don't depend on the target token at their position",
    "uses every source token": "some source tokens have no effect on the logits",
    "uses every earlier target token": "some earlier target tokens have no effect on later logits",
    "hides source padding": "no id is hidden as padding of the source",
}


@dataclass(frozen=True)
class Call:
    """Defines a call of a module: (source_ids [B, S] int64, decoder_input_ids [B, T] int64) → logits [B, T, V]."""

    lines: tuple[str, ...]
    """The body of the adapter's forward, over self.module, source_ids and decoder_input_ids; the last line returns."""
    source_pad_id: int | None
    """The id from which source masks are derived; None without masks."""
    target_pad_id: int | None
    source_vocab_size: int
    """The number of ids that the embeddings allow."""
    target_vocab_size: int
    max_source_length: int | None = None
    """The longest source accepted; None without a limit."""
    max_target_length: int | None = None
    fixed_source_length: int | None = None
    """The only length accepted, for modules that accept a single length."""
    fixed_target_length: int | None = None
    equal_lengths: bool = False
    """Whether source and target must have equal lengths, of any value up to the longest."""
    start_id: int | None = None
    """The id that replaces every target's first one in the module; None if the module reads the first id."""
    notes: tuple[str, ...] = ()
    """The assumptions made and their reasons, for the user."""
    container: str = ""
    """The container of several modules, which is `self.module`."""
    constants: Mapping[str, torch.Tensor] | None = field(default=None, compare=False)
    """Values of `self.constants`, if `lines` use it; see `programs.exact`."""
    rounded: tuple[str, ...] = ()
    """Names of constants that keep the module's own values."""

    def wrap(self, module: Any) -> nn.Module:
        """Builds an Adapter with the module as `self.module`, whose forward runs `lines`."""
        return adapters.wrap(module, self.lines, self.constants)

    def padded(self) -> Call:
        """Extends the call to all lengths, if the module accepts a single length, or equal lengths of source and target
        only: the new call pads both and returns the logits of their own tokens."""
        common = "common_length" if self.equal_lengths else None
        sides = (
            ("source_ids", self.fixed_source_length or common, self.source_pad_id),
            ("decoder_input_ids", self.fixed_target_length or common, self.target_pad_id),
        )
        padded = [(name, length, pad) for name, length, pad in sides if length is not None and pad is not None]
        *lines, last = self.lines
        before, found, returned = last.partition("return ")
        if not padded or not found or before.strip():
            return self
        setup = ["own_length = decoder_input_ids.shape[1]"]
        if self.equal_lengths:
            longer = "max(source_ids.shape[1], own_length) + 1"  # no side's own: shapes tell what to cut off
            most = self.max_source_length
            setup.append(f"common_length = {longer if most is None else f'min({longer}, {most})'}")
        setup += [
            f"{name} = torch.cat([{name}, {name}.new_full((len({name}), {length} - {name}.shape[1]), {pad})], 1)"
            for name, length, pad in padded  # longer ones have no padding, which raises
        ]
        lengths = " and ".join(str(length) for _, length, _ in padded)
        note = (
            "source and target are padded to one length: it takes equal lengths alone"
            if self.equal_lengths
            else f"sentences are padded to the only length that it takes: {lengths} tokens"
        )
        return replace(
            self,
            lines=(*setup, *lines, f"{before}return ({returned})[:, :own_length]"),
            fixed_source_length=None,
            fixed_target_length=None,
            equal_lengths=False,
            notes=(*self.notes, note),
        )


def adapter_text(call: Call, factory: str) -> str:
    """Writes the text of adapter.py, whose `build()` equals `call.wrap` of the factory's module.

    Args:
      factory: `package.module:function`, as in `my_model:build`.
    """
    rounded = None if call.constants is None else call.rounded
    return adapters.file_text(call.lines, factory, call.notes, holder=call.container, rounded=rounded)


def find_call(
    module: Any,
    name: str = "module:build",
    *,
    source_pad_id: int | None = None,
    target_pad_id: int | None = None,
) -> Call:
    """Finds out how to call a module.

    Args:
      module: a `torch.nn.Module` that maps source and target ids to logits; or several in a mapping or sequence, such
        as an encoder and a decoder. It isn't changed.
      name: the module's factory, for messages and the drafted adapter.
      source_pad_id, target_pad_id: the ids of padding. A module may not name them if its caller builds the masks.

    Raises:
      CallError: no call runs, or none behaves as an encoder-decoder's; its `adapter` is a draft to complete.
      ValueError: it is no module, and holds none.
    """
    import torch

    holder, module = adapters.container(module), adapters.as_module(module)
    modes = [(inner, inner.training) for inner in module.modules()]
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            return _Finder(module, name, source_pad_id, target_pad_id, holder).find()
    finally:
        for inner, mode in modes:
            inner.training = mode


def _is_good(candidate: Candidate) -> bool:
    return all(candidate.behaviour.holds.get(name) for name in ENOUGH)


class _Finder:
    def __init__(
        self, module: nn.Module, name: str, source_pad_id: int | None, target_pad_id: int | None, container: str
    ) -> None:
        self.closest: Candidate | None = None
        self.search: Search | None = None
        self.has_forward = False
        self.name, self.runner, self.sizes, self.container = name, Runner(module), sizes(module), container
        source, target = named_pads(module)
        self.pads = (
            source if source_pad_id is None else [source_pad_id],
            target if target_pad_id is None else [target_pad_id],
        )

    def find(self) -> Call:
        """Returns the call."""
        first = self._ids(*free_lengths(self.sizes))
        if what := obstacle(self.runner, self.sizes, *first):
            raise CallError(f"{self.name}: {what}")
        best, ids = self._best(first)
        if best is None:
            if what := obstacle(self.runner, self.sizes, *first, has_failed=True):
                raise CallError(f"{self.name}: {what}")
            raise CallError(reason(self.name, self.runner, self.closest), self._draft(self.closest))
        self._check_sides(best, *ids)
        for name, fault in FAULTS.items():
            if not best.behaviour.holds.get(name):
                raise CallError(f"{self.name}: {fault}", self._draft(best))
        return self._described(best, ids)

    def _check_sides(self, best: Candidate, ids: Ids, spare: Ids) -> None:
        """Raises CallError if logits depend on source or target alone."""
        assert self.search is not None
        call = self.search.caller(best.lines)
        base = call(*ids)
        for side, others in (("source", Ids(spare.source, ids.target)), ("target", Ids(ids.source, spare.target))):
            changed = call(*others)
            if base is not None and changed is not None and same(base, changed):
                function = header(self.runner.module)
                raise CallError(
                    f"{self.name}: expected an encoder-decoder; the logits of {function} depend on no {side} ids "
                    f"({'; '.join(best.lines)}): the module reads one sequence"
                )

    def _best(self, ids: tuple[Ids, Ids]) -> tuple[Candidate | None, tuple[Ids, Ids]]:
        """Finds the best candidate, and the ids it runs with.

        Args:
          ids: the ids to try first, and ids that differ from them everywhere.

        Tries forward with masks of one style; at other lengths if nothing runs; with each mask chosen separately; then
        two methods or children.
        """
        ways = list(forms(self.runner.module))
        whole = [form for form in ways if len(form.stages) == 1]
        self.has_forward = bool(whole)
        found = self._styled(whole, ids)
        if whole and not any(candidate.lines for candidate in found):
            found, ids = self._at_other_lengths(whole[0], ids, found)
        best = self._climbed(found)
        if best is None:
            best = self._climbed(self._styled([form for form in ways if len(form.stages) > 1], ids))
        return best, ids

    def _styled(self, ways: list[Form], ids: tuple[Ids, Ids]) -> list[Candidate]:
        """Finds the best candidate of each form with masks of one style; stops at the first good one."""
        self.search, found = Search(self.runner, Probe(*ids, self._tried_pads())), list[Candidate]()
        for form in ways:
            found.append(self.search.styled(form))
            if self.runner.is_spent or _is_good(found[-1]):
                break
        return found

    def _climbed(self, found: list[Candidate]) -> Candidate | None:
        """Varies each parameter separately in the three most likely candidates, and returns the best that runs. The
        three are the two best and the first, because failing calls of different forms hardly compare."""
        assert self.search is not None
        found = sorted(found, key=lambda candidate: candidate.rank, reverse=True)[:2] + found[:1]
        for number, candidate in enumerate(found):
            found[number] = self.search.climbed(candidate)
            if _is_good(found[number]):
                break
        running = [candidate for candidate in found if candidate.lines]
        if not running and self.closest is None:
            unread = [candidate for candidate in found if candidate.runs]
            self.closest = next(iter([*unread, *reversed(found)]), None)
        return max(running, key=lambda candidate: candidate.rank, default=None)

    def _at_other_lengths(
        self, form: Form, ids: tuple[Ids, Ids], found: list[Candidate]
    ) -> tuple[list[Candidate], tuple[Ids, Ids]]:
        """Tries equal lengths, and lengths that the errors name, as the only ones that the module takes."""
        search = self.search
        batch, target, source = ids[0].target.shape[0], ids[0].target.shape[1], ids[0].source.shape[1]
        tried, results = [(source, target)], found[:1]
        for _ in range(4):
            errors = " ".join(str(one.outcome.error) for one in (results[0], results[-1]))
            named = {int(number) for number in re.findall(r"\d+", errors)} & self.sizes
            lengths = [length for length in sorted(named) if 4 < length <= 2048]
            likely = [(length, length) for length in [target, *lengths]]
            likely += [
                pair for length in lengths for old in tried[-1:] for pair in ((length, old[1]), (old[0], length))
            ]
            fresh = [pair for pair in dict.fromkeys(likely) if pair not in tried]
            for pair in fresh:
                tried.append(pair)
                changed = self._ids(batch, pair[1], pair[0])
                again = self._styled([form], changed)
                if again[0].lines:
                    return again, changed
                results += again
            if not fresh or self.runner.is_spent:
                break
        self.search = search
        return found, ids

    def _tried_pads(self) -> tuple[list[int], list[int]]:
        """Lists the ids that may be padding: named ones, then the usual ones."""
        source, target = self.pads
        return (source or target or [0, 1]), (target or source or [0, 1])

    def _ids(self, batch: int, target_length: int, source_length: int) -> tuple[Ids, Ids]:
        return draw_ids(self.runner.module, {*self.pads[0], *self.pads[1]}, batch, target_length, source_length)

    # --- properties of the call

    def _described(self, best: Candidate, both: tuple[Ids, Ids]) -> Call:
        ids, lines = both[0], best.lines
        lookups: list[Lookup] = []
        self.runner.run(lines, *ids, lookups=lookups)
        vocabulary = [
            vocab_size(accepts_id(self.runner, lines, ids, side), None if table is None else len(table))
            for side, table in enumerate(tables(lookups, ids))
        ]
        if vocabulary[0] is None or vocabulary[1] is None:
            raise CallError(
                f"{self.name}: expected ids that index an embedding; every id runs, so the vocabulary sizes are "
                "unknown: write an adapter",
                self._draft(best),
            )
        pads = self._pads(best, both, vocabulary[0])
        start = start_id(lookups, ids) if best.ending.shift in ("drop", "left") else None
        return Call(
            lines,
            *pads,
            vocabulary[0],
            vocabulary[1],
            **self._limits(best, ids),
            start_id=start,
            notes=tuple(self._notes(best, ids, pads, start)),
            container=self.container,
        )

    def _limits(self, best: Candidate, ids: Ids) -> dict[str, Any]:
        """Finds the longest source and target, the only length if there is just one, and whether both must be
        equal."""
        names = ("source", "target")
        limits: dict[str, Any] = {}
        for side, (name, part) in enumerate(zip(names, ids, strict=True)):
            length = part.shape[1]
            accepts = accepts_length(self.runner, best.lines, ids, (side,))
            if length > 2 and not accepts(length - 1) and not accepts(length + 1):
                limits |= {f"max_{name}_length": length, f"fixed_{name}_length": length}
            else:
                limits[f"max_{name}_length"] = longest(accepts, self.sizes, length)
        together = accepts_length(self.runner, best.lines, ids, (0, 1))
        fixed = {limits.get(f"fixed_{name}_length") for name in names}
        if len(fixed) == 1 and None not in fixed and together(length + 1):
            most = longest(together, self.sizes, length)
            return {"max_source_length": most, "max_target_length": most, "equal_lengths": True}
        return limits

    def _pads(self, best: Candidate, both: tuple[Ids, Ids], source_vocab_size: int) -> tuple[int | None, int | None]:
        """Returns the ids that masks are derived from: the caller's, or the ids that the module hides."""
        search = self.search
        assert search is not None
        text = " ".join(best.lines)
        source = search.pad_pair[0] if "source_real" in text else None
        target = search.pad_pair[1] if "target_real" in text else None
        if source is None:
            one = self.runner.run(best.lines, both[0].source[:1], both[0].target[:1])
            rows = min(MOST_ROWS, max(1, MOST_ELEMENTS // max(1, one.largest)))
            hidden = source_pads(search.caller(best.lines), both[0], source_vocab_size, rows)
            source = next((pad for pad in (*self.pads[0], *hidden) if pad in hidden), None)
            source = source if source is not None else next(iter(self.pads[0]), None)
        if target is None:
            target = next(iter([*self.pads[1], *best.behaviour.hidden_target_pads]), None)
        return source, target

    def _notes(self, best: Candidate, ids: Ids, pads: tuple[int | None, int | None], start: int | None) -> list[str]:
        notes = list(best.ending.remarks)
        failure = self.closest.outcome.error if self.closest else None
        if self.has_forward and failure is not None and len(best.form.stages) > 1:
            functions = " and ".join(stage.function.removeprefix("self.module.") for stage in best.form.stages)
            notes.append(f"forward doesn't run ({first_line(failure)}): {functions} are called instead")
        masks = [
            f"`{parameter.name}` {best.chosen[number, parameter.name].meaning}"
            for number, stage in enumerate(best.form.stages)
            for parameter in stage.parameters
            if parameter.is_mask and best.chosen[number, parameter.name].layout
        ]
        if masks:
            notes.append("masks are built by the caller: " + "; ".join(dict.fromkeys(masks)))
        for side, name in enumerate(("source", "target")):
            if f"{name}_real" in " ".join(best.lines) and not (self.pads[side] or self.pads[1 - side]):
                notes.append(f"the module names no padding id: {pads[side]} is assumed for the {name}'s")
        notes += {
            "append": ["the module drops the last target token itself: one is appended"],
            "drop": ["the module prepends a start token itself: the first target token is left out"],
            "left": ["the module shifts the target itself: its first token is replaced by the module's start"],
        }.get(best.ending.shift, [])
        if start is not None:
            notes.append(f"the module's start token is {start}: the call holds for targets that begin with it")
        if best.form.source.startswith("source_ids.T"):
            notes.append("ids are given as [S, B]: the batch comes second")
        notes += self._guesses(best)
        notes += [LACKS[name] for name in best.behaviour.failing if name in LACKS]
        if self.runner.printed:
            notes.append("the module prints while it runs")
        return [*notes, *self._float64(best, ids)]

    def _guesses(self, best: Candidate) -> list[str]:
        """Writes a remark for each parameter whose name doesn't show its purpose."""
        assert self.search is not None
        given = {slot[1]: option.text for slot, option in best.chosen.items()}
        notes = []
        for name, others in self.search.rivals(best).items():
            differing = f"; {', '.join(others)} would give other logits" if others else ""
            notes.append(f"`{name}` is given {given[name]}, as its name doesn't show its purpose{differing}")
        return notes

    def _float64(self, best: Candidate, ids: Ids) -> list[str]:
        """Writes a remark if the module doesn't run in float64."""
        runner = Runner(self.runner.module)
        runner.module.double()
        error = runner.run(best.lines, *ids).error
        return [] if error is None else [f"the module fails in float64 at {place(error)} ({first_line(error)})"]

    def _draft(self, closest: Candidate | None) -> str:
        source, target = self._tried_pads()
        return draft(self.name, self.container, self.runner.module, closest, (source[0], target[0]))
