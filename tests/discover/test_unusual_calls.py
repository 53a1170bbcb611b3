"""Calls of modules that return no logits, take one argument that holds several, or are several modules."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from jax_transformer.programs.calling import CallError, adapter_text, find_call
from jax_transformer.programs.calling.limits import sizes
from jax_transformer.programs.calling.records import Item, Record, record
from jax_transformer.programs.modes import outputs_of, softmax_inputs
from tests.discover.cores import (
    LONGEST,
    NO_SOURCE,
    NO_TARGET,
    SOURCE_VOCAB,
    TARGET_VOCAB,
    WIDTH,
    Core,
    Named,
    Style,
    causal,
    core_logits,
    ids,
    truth,
)

# --- modules that return a loss, or nothing of their logits


class CrossEntropy(Named):
    """Predicts each token of the target from those before it."""

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        logits = truth(self.core, src, tgt[:, :-1])
        return functional.cross_entropy(logits.transpose(1, 2), tgt[:, 1:])


class Losses(Named):
    """Takes labels and languages, rules an id out, and returns losses of a function that is no module."""

    def forward(self, src: Tensor, tgt: Tensor, targets: Tensor, src_lang: int, tgt_lang: int) -> dict[str, Tensor]:
        logits = self.scored(truth(self.core, src, tgt), src_lang + 2 * tgt_lang)
        losses = -logits.log_softmax(-1).gather(1, targets.reshape(-1, 1))
        return {"loss": losses.sum(), "mean": losses.mean()}

    def scored(self, logits: Tensor, language: int) -> Tensor:
        logits = logits.flatten(0, 1) * (1 + language)
        logits[:, 0] = -1e9
        return logits


def truth_of_losses(module: Losses, source: Tensor, target: Tensor) -> Tensor:
    return module.scored(core_logits(module, source, target), 0).unflatten(0, target.shape)


class Hinge(Named):
    """Computes its loss without a softmax."""

    def forward(self, src: Tensor, trg: Tensor) -> Tensor:
        return truth(self.core, src, trg).relu().mean()


# --- modules whose arguments hold several


TEXT = "text"


class Mapping(Named):
    """Reads its keys in two functions, one of them by a constant, and one that may be left out."""

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return truth(self.core, self.source(batch), batch["sounds"][:, :-1])

    def source(self, given: dict[str, Tensor]) -> Tensor:
        if "noise" in given:
            return given[TEXT] + given["noise"]
        return given[TEXT]


class Masks(Named):
    """Takes masks in a mapping, and labels, and returns a loss."""

    def forward(self, features: dict[str, Tensor], labels: Tensor, mode: str = "train") -> Tensor:
        real = features["target_mask"]
        mask = (1.0 - features["source_mask"])[:, None] == 0
        logits = self.core.logits(features["source"], features["target"], mask, causal(labels), mask)
        losses = functional.cross_entropy(logits.transpose(1, 2), labels, reduction="none")
        return (losses * real).sum() / real.sum()


def truth_of_masks(module: Masks, source: Tensor, target: Tensor) -> Tensor:
    return truth(module.core, source, target, sees_target_pads=True)


class Attributes(Named):
    def forward(self, batch: Any) -> Tensor:
        assert batch.src.shape[0] == batch.trg.shape[0]
        return truth(self.core, batch.src, batch.trg)


class Pair(Named):
    def forward(self, inputs: tuple[Tensor, Tensor]) -> Tensor:
        src, trg = inputs
        return truth(self.core, src, trg)


class Keywords(Named):
    def forward(self, **batch: Tensor) -> Tensor:
        return truth(self.core, batch["src"], batch["trg"])


class Rest(Named):
    def forward(self, *inputs: Tensor) -> Tensor:
        trg, src = inputs
        return truth(self.core, src, trg)


class Nameless(Named):
    """Takes the target first, under an uninformative name."""

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        return truth(self.core, second, first)


# --- lengths


class LengthsAsColumn(Style):
    pad_id = NO_SOURCE
    columns = 1

    def forward(self, src: Tensor, src_lengths: Tensor, tgt: Tensor) -> Tensor:
        if src_lengths.shape != (len(src), self.columns):
            raise ValueError("expected lengths of another shape")
        mask = (torch.arange(src.shape[1]) < src_lengths.sum(1, keepdim=True))[:, None]
        return self.core.logits(src, tgt, mask, causal(tgt), mask)


class LengthsInTwoColumns(LengthsAsColumn):
    columns = 2


def truth_of_lengths(module: LengthsAsColumn, source: Tensor, target: Tensor) -> Tensor:
    mask = (torch.arange(source.shape[1]) < (source != NO_SOURCE).sum(1, keepdim=True))[:, None]
    return module.core.logits(source, target, mask, causal(target), mask)


# --- several modules


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.core, self.pad_id = Core(), NO_SOURCE

    def forward(self, source: Tensor) -> Tensor:
        return self.core.encode(source, (source != NO_SOURCE)[:, None])


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.core, self.pad_id = Core(), NO_TARGET

    def forward(self, target: Tensor, memory: Tensor, source: Tensor) -> Tensor:
        mask = causal(target) & (target != NO_TARGET)[:, None]
        return self.core.to_logits(self.core.decode(target, memory, mask, (source != NO_SOURCE)[:, None]))


class Half(nn.Module):
    """Is an encoder or a decoder as it is called; wants [T, B] and memory [B, S, D], and leaves out the head."""

    def __init__(self) -> None:
        super().__init__()
        self.core, self.pad_index = Core(), NO_SOURCE
        self.proj = self.core.to_logits

    def forward(self, mode: str, **given: Any) -> Tensor:
        if mode == "fwd":
            return self.fwd(**given)
        raise ValueError(mode)

    def fwd(
        self, x: Tensor, lengths: Tensor, causal: bool, src_enc: Tensor | None = None, src_len: Tensor | None = None
    ) -> Tensor:
        assert (src_enc is None) == (src_len is None)
        length = x.shape[0]
        mask = (torch.arange(length) < lengths[:, None])[:, None].expand(-1, length, -1)
        if causal:
            mask = torch.ones(length, length, dtype=torch.bool).tril()[None]
        if src_enc is None or src_len is None:
            return self.core.encode(x.T, mask).transpose(0, 1)
        real = (torch.arange(src_enc.shape[1]) < src_len[:, None])[:, None]
        return self.core.decode(x.T, src_enc, mask, real).transpose(0, 1)


def truth_of_pair(modules: tuple[Encoder, Decoder], source: Tensor, target: Tensor) -> Tensor:
    return modules[1](target, modules[0](source), source)


def truth_of_halves(modules: dict[str, Half], source: Tensor, target: Tensor) -> Tensor:
    lengths = (source != NO_SOURCE).sum(1)
    memory = modules["encoder"].fwd(source.T, lengths, False).transpose(0, 1)
    hidden = modules["decoder"].fwd(target.T, lengths, True, memory, lengths)
    return modules["decoder"].proj(hidden).transpose(0, 1)


def a_pair() -> tuple[nn.Module, ...]:
    return Encoder().eval(), Decoder().eval()


def reversed_pair() -> list[nn.Module]:
    return [Decoder().eval(), Encoder().eval()]


def halves() -> dict[str, nn.Module]:
    return {"encoder": Half().eval(), "decoder": Half().eval()}


CASES: list[tuple[Callable[[], Any], Callable[[Any, Tensor, Tensor], Tensor], str]] = [
    (CrossEntropy, core_logits, "returns a loss: the adapter takes the logits of its softmax"),
    (
        Losses,
        truth_of_losses,
        "`tgt_lang` is given 0, as its name doesn't show its purpose; 1 would give other logits",
    ),
    (Hinge, core_logits, "returns no logits: the adapter uses the logits from core.to_logits"),
    (Mapping, core_logits, "the module drops the last target token itself"),
    (Masks, truth_of_masks, "`source_mask` [B, S] hides padding (1 = may attend)"),
    (Attributes, core_logits, ""),
    (Pair, core_logits, ""),
    (Keywords, core_logits, ""),
    (Rest, core_logits, ""),
    (Nameless, core_logits, ""),
    (LengthsAsColumn, truth_of_lengths, ""),
    (LengthsInTwoColumns, truth_of_lengths, ""),
    (a_pair, truth_of_pair, ""),
    (reversed_pair, lambda modules, *given: truth_of_pair(modules[::-1], *given), ""),
    (halves, truth_of_halves, "ids are given as [S, B]"),
]


@pytest.mark.parametrize(("build", "expected", "note"), CASES, ids=lambda value: getattr(value, "__name__", ""))
@torch.no_grad()
def test_the_call_gives_the_logits(build: Callable[[], Any], expected: Any, note: str) -> None:
    built = build()
    call = find_call(built.eval() if isinstance(built, nn.Module) else built)
    wrapped = call.wrap(built)
    assert not any(part.training for part in wrapped.modules())
    torch.testing.assert_close(wrapped(*ids()), expected(built, *ids()), rtol=1e-5, atol=1e-5)
    assert note in "\n".join(call.notes)
    assert (call.source_vocab_size, call.target_vocab_size) == (SOURCE_VOCAB, TARGET_VOCAB)


def test_gradients_flow_through_logits_that_are_taken_out_of_a_loss() -> None:
    module = CrossEntropy().eval()
    find_call(module).wrap(module)(*ids()).square().mean().backward()
    found = [parameter.grad for parameter in module.parameters()]
    module.zero_grad()
    core_logits(module, *ids()).square().mean().backward()
    for grad, parameter in zip(found, module.parameters(), strict=True):
        torch.testing.assert_close(grad, parameter.grad)


@torch.no_grad()
def test_the_adapter_file_of_several_modules_equals_the_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = halves()
    (tmp_path / "half_adapter.py").write_text(adapter_text(find_call(built), "some_halves:build"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "some_halves", SimpleNamespace(build=lambda: built))
    adapter = importlib.import_module("half_adapter").build()
    torch.testing.assert_close(adapter(*ids()), truth_of_halves(built, *ids()))  # type: ignore[arg-type]
    assert not any(part.training for part in adapter.modules())
    monkeypatch.delitem(sys.modules, "half_adapter")


# --- what guides the search


class Unnamed(Style):
    """Hides an id that nothing names, in source and target."""

    def forward(self, src: Tensor, trg: Tensor) -> Tensor:
        mask = (src != 0)[:, None]
        return self.core.logits(src, trg, mask, causal(trg) & (trg != 0)[:, None], mask)


def test_an_id_that_the_target_hides_is_its_padding() -> None:
    call = find_call(Unnamed())
    assert (call.source_pad_id, call.target_pad_id) == (0, 0)


class Leaky(Named):
    """Sees later tokens whatever its masks are, and least without the target's."""

    def forward(self, src: Tensor, trg: Tensor, src_mask: Any = None, trg_mask: Any = None) -> Tensor:
        ahead = {(False, False): 3, (True, True): 2, (True, False): 1, (False, True): 4}
        seen = self.core.to_logits(self.core.target(trg).mean(1, keepdim=True))
        return truth(self.core, src, trg) + ahead[src_mask is not None, trg_mask is not None] * seen


def test_a_passed_mask_is_not_dropped_for_a_smaller_leak() -> None:
    assert "trg_mask" in find_call(Leaky()).lines[-1]


def test_the_ids_of_a_vocabulary_are_no_sizes() -> None:
    module = Core()
    module.vocabulary = {f"word {number}": number for number in range(50)}  # type: ignore[assignment]
    module.config = {"width": 101, "heads": 2}  # type: ignore[assignment]
    assert {101, 2, WIDTH, LONGEST} <= sizes(module)
    assert 47 not in sizes(module)


# --- what a function takes out of an argument


class Reader:
    """Takes parts out of arguments in ways that don't tell what they are, or aren't taken."""

    KEYS = SimpleNamespace(source="src")

    def forward(self, batch: Any, x: Tensor, state: dict[str, Any], key: str) -> Any:
        state["memory"] = batch[self.KEYS.source] + batch.get("bias", 0)
        number, _ = x.shape
        batch = batch.copy()
        self.pack(state)
        kept, x = x, torch.relu(x)
        return self.rest(number, mapping=batch), state["memory"], kept[key], x.mean(), x["other"]

    def pack(self, *inputs: Any) -> Any:
        first, second = inputs
        return first, second

    def rest(self, number: int, mapping: dict[str, Tensor]) -> Tensor:
        return mapping["trg"] + number


def test_parts_of_a_compound_argument_are_read_from_the_source() -> None:
    found = {name: record(Reader().forward, name) for name in ("batch", "x", "state", "key")}
    batch = Record("mapping", (Item("src"), Item("bias", is_required=False), Item("trg")))
    assert found == {"batch": batch, "x": None, "state": None, "key": None}


def test_functions_without_source_tell_nothing() -> None:
    assert record(torch.nn.functional.relu_, "input") is None
    assert record(eval("lambda batch: batch['src']"), "batch") is None


# --- contexts of adapters


def test_softmaxes_of_other_classes_are_not_collected() -> None:
    scores = torch.zeros(2, 3, 5)
    with softmax_inputs(3) as found:
        scores.softmax(-1)
        scores.softmax(1)
        functional.cross_entropy(scores, torch.zeros(2, 5, dtype=torch.int64))
        scores.logsumexp(1)
        scores.logsumexp((0, 1))
    assert [one is scores for one in found] == [True, True, True]
    scores.softmax(1)
    assert len(found) == 3


def test_outputs_are_collected_until_the_context_ends() -> None:
    layer = nn.Linear(2, 2)
    with outputs_of(layer) as found:
        expected = layer(torch.ones(1, 2))
    layer(torch.ones(1, 2))
    assert [one is expected for one in found] == [True]


# --- what can't be called


class Scores(Named):
    """Returns a number for each pair of sentences, and no logits."""

    def forward(self, src: Tensor, trg: Tensor, trg_mask: Tensor) -> Tensor:
        full = torch.ones(1, 1, 1, dtype=torch.bool)
        return self.core.decode(trg, self.core.encode(src, full), causal(trg), full).mean((1, 2))


class Weathered(Named):
    def forward(self, src: Tensor, trg: Tensor, src_mask: Tensor, weather: Any) -> Tensor:
        return truth(self.core, src, trg) * weather()


def test_the_draft_is_the_call_that_gets_furthest() -> None:
    with pytest.raises(CallError, match=r"received Tensor of \[\d+\]") as unread:
        find_call(Scores())
    text = unread.value.adapter
    assert "# This call runs, and returns Tensor of [" in text
    assert "return self.module(source_ids, decoder_input_ids, None)" in text
    with pytest.raises(
        CallError, match=r"none of \d+ ways .* \(TypeError: 'NoneType' object is not callable"
    ) as failing:
        find_call(Weathered(), "my_model:build")
    text = failing.value.adapter
    assert (
        "# The module's own: forward(src: 'Tensor', trg: 'Tensor', src_mask: 'Tensor', weather: 'Any') -> 'Tensor'"
        in text
    )
    assert "It fails at" in text
    assert "TypeError: 'NoneType' object is not callable" in text
    assert "source_real = source_ids != 1" in text
    assert "return self.module(source_ids, decoder_input_ids, None, None)" in text
    compile(text, "adapter.py", "exec")


@pytest.mark.parametrize(
    ("built", "received"),
    [
        (3, "received int"),
        ([], "received list"),
        ((nn.Linear(1, 1), 3), "received tuple of Linear, int"),
    ],
)
def test_a_container_without_modules_is_refused(built: Any, received: str) -> None:
    with pytest.raises(ValueError, match=f"expected a torch.nn.Module, or a dict or tuple of such modules; {received}"):
        find_call(built)
