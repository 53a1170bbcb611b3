"""Finding out how a module is called: every style gives the logits of the same core, with the masks that it needs."""

from __future__ import annotations

import importlib
import operator
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from jax_transformer.programs.calling import Call, CallError, adapter_text, find_call
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

# --- masks of the module's own


class OwnMasks(Named):
    def forward(self, src: Tensor, trg: Tensor) -> Tensor:
        return truth(self.core, src, trg)


class TimeFirst(Named):
    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return truth(self.core, src.T, tgt.T).transpose(0, 1)


class Reversed(Named):
    def forward(self, tgt: Tensor, src: Tensor, return_attention: bool = False) -> Any:
        logits = truth(self.core, src, tgt)
        return (logits, None) if return_attention else logits


class Lengths(Style):
    pad_idx = NO_SOURCE

    def forward(self, src_tokens: Tensor, src_lengths: Tensor, prev_output_tokens: Tensor) -> Any:
        mask = (torch.arange(src_tokens.shape[1]) < src_lengths[:, None])[:, None]
        logits = self.core.logits(src_tokens, prev_output_tokens, mask, causal(prev_output_tokens), mask)
        return logits, {"attn": [None]}


class PassesOn(Style):
    """Passes the source's lengths on to its encoder."""

    pad_id = NO_SOURCE

    def forward(self, enc_x: Tensor, dec_x: Tensor, *args: Tensor) -> Tensor:
        return Lengths.forward(self, enc_x, *args, dec_x)[0]  # type: ignore[arg-type]


# --- masks that the caller builds


class Column(Named):
    """[B, 1, S] and [B, T, T], compared with 0; the head stands apart and ends in a log-softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(self.core.to_logits, nn.LogSoftmax(-1))

    def forward(self, src: Tensor, tgt: Tensor, src_mask: Tensor, tgt_mask: Tensor) -> Tensor:
        memory = self.core.encode(src, src_mask != 0)
        return self.core.decode(tgt, memory, tgt_mask != 0, src_mask != 0)


class FourAxes(Named):
    """[B, 1, 1, S] and [B, 1, T, T] with True = hidden."""

    def forward(self, x: Tensor, y: Tensor, x_mask: Tensor, y_mask: Tensor) -> Tensor:
        if x_mask.ndim != 4 or y_mask.ndim != 4:
            raise ValueError("expected four axes")
        return self.core.logits(x, y, ~x_mask[:, 0], ~y_mask[:, 0], ~x_mask[:, 0])


class Integers(Named):
    """Numbers, 1 = may attend, subtracted from 1; one of them for the cross-attention."""

    def forward(self, inputs: Tensor, targets: Tensor, enc_mask: Tensor, dec_mask: Tensor, memory_mask: Tensor) -> Any:
        masks = [(1 - mask) * 1.0 == 0 for mask in (enc_mask, dec_mask, memory_mask)]
        return {"loss": None, "logits": self.core.logits(inputs, targets, *masks)}


class Added(Named):
    """0 and -inf, added to the scores."""

    def forward(self, src: Tensor, tgt: Tensor, src_mask: Tensor, tgt_mask: Tensor) -> Tensor:
        if not (src_mask.is_floating_point() and tgt_mask.is_floating_point()):
            raise TypeError("expected floats")
        scores = src_mask + torch.zeros(src.shape[0], 1, src.shape[1]), tgt_mask + torch.zeros(1, 1, tgt.shape[1])
        source, target = (one > -1.0 for one in scores)
        return self.core.logits(src, tgt, source & (src_mask == 0), target & (tgt_mask == 0), source & (src_mask == 0))


class Optional(Named):
    """Masks that may be left out, by keyword: without them padding is seen."""

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> Any:
        assert input_ids is not None
        assert decoder_input_ids is not None
        source = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        target = torch.ones_like(decoder_input_ids) if decoder_attention_mask is None else decoder_attention_mask
        if source.shape != input_ids.shape or target.shape != decoder_input_ids.shape:
            raise ValueError("expected masks like the ids")
        source, target = source[:, None].bool(), causal(decoder_input_ids) & target[:, None].bool()
        return Result(self.core.logits(input_ids, decoder_input_ids, source, target, source))


@dataclass
class Result:
    logits: Tensor
    loss: Tensor | None = None


class TorchModules(nn.Module):
    """nn.Transformer with (S, B) ids and all of its masks."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed_src = nn.Embedding(SOURCE_VOCAB, WIDTH, padding_idx=NO_SOURCE)
        self.embed_tgt = nn.Embedding(TARGET_VOCAB, WIDTH, padding_idx=NO_TARGET)
        encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, 2, 24), 1, enable_nested_tensor=False)
        self.transformer = nn.Transformer(WIDTH, 2, 1, 1, 24, custom_encoder=encoder)
        self.head = nn.Linear(WIDTH, TARGET_VOCAB)

    def forward(
        self,
        src: Tensor,
        trg: Tensor,
        src_mask: Tensor,
        tgt_mask: Tensor,
        src_padding_mask: Tensor,
        tgt_padding_mask: Tensor,
        memory_key_padding_mask: Tensor,
    ) -> Tensor:
        hidden = self.transformer(
            self.embed_src(src),
            self.embed_tgt(trg),
            src_mask,
            tgt_mask,
            None,
            src_padding_mask,
            tgt_padding_mask,
            memory_key_padding_mask,
        )
        return self.head(hidden)


def truth_of_torch(module: TorchModules, source: Tensor, target: Tensor) -> Tensor:
    hidden = module.transformer(
        module.embed_src(source.T),
        module.embed_tgt(target.T),
        tgt_mask=~causal(target)[0],
        src_key_padding_mask=source == NO_SOURCE,
        tgt_key_padding_mask=target == NO_TARGET,
        memory_key_padding_mask=source == NO_SOURCE,
    )
    return module.head(hidden).transpose(0, 1)


# --- other functions than forward


class TwoMethods(Named):
    def encode(self, src: Tensor, src_mask: Tensor) -> Tensor:
        return self.core.encode(src, src_mask)

    def decode(self, encoder_output: Tensor, src_mask: Tensor, tgt: Tensor, tgt_mask: Tensor) -> Tensor:
        return self.core.decode(tgt, encoder_output, tgt_mask, src_mask)

    def project(self, x: Tensor) -> Tensor:
        return self.core.to_logits(x)


class Vectors(nn.Module):
    """Its forward takes embeddings, which its children make."""

    def __init__(self) -> None:
        super().__init__()
        self.core = Core()
        self.src_embed, self.tgt_embed = self.core.source, self.core.target

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        core, full = self.core, torch.ones(1, 1, src.shape[1], dtype=torch.bool)
        memory = core.encoder_attention(src, src, full)
        if tgt.shape[-1] != WIDTH:
            raise ValueError("expected vectors")
        x = core.self_attention(tgt, tgt, causal(tgt))
        return core.to_logits(core.cross_attention(x, memory, full))


def truth_of_vectors(module: Vectors, source: Tensor, target: Tensor) -> Tensor:
    return module(module.src_embed(source), module.tgt_embed(target))


# --- shifts and forms of logits


class DropsLast(Named):
    def forward(self, src: Tensor, trg: Tensor) -> Tensor:
        return truth(self.core, src, trg[:, :-1])


class PrependsStart(Named):
    def forward(self, src: Tensor, trg: Tensor) -> Tensor:
        return truth(self.core, src, torch.cat([torch.full_like(trg[:, :1], 5), trg], 1))


class ShiftsRight(Named):
    def forward(self, src: Tensor, labels: Tensor) -> Tensor:
        return truth(self.core, src, torch.cat([torch.full_like(labels[:, :1], 5), labels[:, :-1]], 1))


class Flat(Named):
    def forward(self, src: Tensor, trg: Tensor) -> Any:
        return truth(self.core, src, trg).flatten(0, 1), [trg], [src]


class Transposed(Named):
    def forward(self, src: Tensor, trg: Tensor) -> Any:
        return [truth(self.core, src, trg).transpose(1, 2)]


class Probabilities(Named):
    def forward(self, src: Tensor, trg: Tensor) -> Tensor:
        return truth(self.core, src, trg).softmax(-1)


class KeepsLogits(Named):
    def forward(self, src: Tensor, trg: Tensor) -> Tensor:
        self.logits = truth(self.core, src, trg)
        return self.logits.mean()


class OneLength(Named):
    """Adds its whole table of positions, as programs do that pad every sentence to one length."""

    def forward(self, src: Tensor, trg: Tensor, src_mask: Tensor, trg_mask: Tensor) -> Tensor:
        for given in (src, trg):
            self.core.positions + self.core.source(given.clamp(max=SOURCE_VOCAB - 1))
        return self.core.logits(src, trg, src_mask, trg_mask, src_mask)


def seeing_target_pads(module: Any, source: Tensor, target: Tensor) -> Tensor:
    return truth(module.core, source, target, sees_target_pads=True)


STYLES: list[tuple[type[nn.Module], Callable[[Any, Tensor, Tensor], Tensor], str]] = [
    (OwnMasks, core_logits, ""),
    (TimeFirst, core_logits, "ids are given as [S, B]"),
    (Reversed, core_logits, ""),
    (Lengths, seeing_target_pads, ""),
    (
        Column,
        lambda *args: core_logits(*args).log_softmax(-1),
        "`tgt_mask` [B, T, T] hides later tokens and padding (True",
    ),
    (FourAxes, core_logits, "`x_mask` [B, 1, 1, S] hides padding (True = hidden)"),
    (Integers, core_logits, "`memory_mask` [B, 1, S] hides padding (1 = may attend)"),
    (Added, core_logits, "added to the scores"),
    (Optional, core_logits, "`decoder_attention_mask` [B, T] hides padding (True = may attend)"),
    (TorchModules, truth_of_torch, "`src_padding_mask` [B, S] hides padding (True = hidden)"),
    (TwoMethods, core_logits, "`tgt_mask` [B, T, T]"),
    (Vectors, truth_of_vectors, "no id is hidden as padding of the source"),
    (DropsLast, core_logits, "drops the last target token itself"),
    (PrependsStart, core_logits, "prepends a start token itself"),
    (ShiftsRight, core_logits, "shifts the target itself"),
    (Flat, core_logits, ""),
    (Transposed, core_logits, ""),
    (Probabilities, lambda *args: core_logits(*args).log_softmax(-1), "returns probabilities"),
    (KeepsLogits, core_logits, ""),
    (PassesOn, seeing_target_pads, ""),
]


@pytest.mark.parametrize(("style", "expected", "note"), STYLES, ids=lambda value: getattr(value, "__name__", ""))
@torch.no_grad()
def test_the_call_of_every_style_gives_the_logits(style: Any, expected: Any, note: str) -> None:
    module = style().eval()
    call = find_call(module)
    torch.testing.assert_close(call.wrap(module)(*ids()), expected(module, *ids()), rtol=1e-5, atol=1e-5)
    assert note in "\n".join(call.notes)
    assert "forward doesn't run" not in "\n".join(call.notes)
    assert (call.source_vocab_size, call.target_vocab_size) == (SOURCE_VOCAB, TARGET_VOCAB)


@torch.no_grad()
def test_a_module_that_takes_one_length_is_called_with_it() -> None:
    module = OneLength().eval()
    call = find_call(module)
    assert (call.fixed_source_length, call.fixed_target_length) == (LONGEST, LONGEST)
    given = ids(LONGEST, LONGEST)
    torch.testing.assert_close(call.wrap(module)(*given), core_logits(module, *given), rtol=1e-5, atol=1e-5)


def test_limits_and_padding_are_found() -> None:
    call = find_call(OwnMasks())
    assert (call.max_source_length, call.max_target_length) == (LONGEST, LONGEST)
    assert (call.fixed_source_length, call.fixed_target_length) == (None, None)
    assert (call.source_pad_id, call.target_pad_id) == (NO_SOURCE, NO_TARGET)
    assert call.notes == ()
    assert find_call(Unlimited()).max_source_length is None


class Unlimited(Style):
    """Has no positions, and hides an id that nothing names."""

    def forward(self, src: Tensor, trg: Tensor) -> Tensor:
        core, hidden = self.core, (src != 13)[:, None]
        x = core.source(src)
        memory = core.encoder_attention(x, x, hidden)
        y = core.target(trg)
        y = core.self_attention(y, y, causal(trg))
        return core.to_logits(core.cross_attention(y, memory, hidden))


def test_an_id_that_the_module_hides_is_its_padding() -> None:
    call = find_call(Unlimited())
    assert call.source_pad_id == 13
    assert call.target_pad_id is None


def test_unnamed_padding_is_assumed_or_passed() -> None:
    module = Column()
    del module.src_pad_idx, module.trg_pad_idx
    assert "the module names no padding id: 0 is assumed for the source's" in find_call(module).notes
    call = find_call(module, source_pad_id=NO_SOURCE, target_pad_id=NO_TARGET)
    assert (call.source_pad_id, call.target_pad_id) == (NO_SOURCE, NO_TARGET)
    assert call.lines == find_call(Column()).lines


def test_a_constant_in_the_modules_file_may_name_its_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    module = Column()
    del module.src_pad_idx, module.trg_pad_idx
    monkeypatch.setattr(sys.modules[__name__], "PAD_ID", 3, raising=False)
    call = find_call(module)
    assert (call.source_pad_id, call.target_pad_id) == (3, 3)


# --- notes


class SeesTheFuture(Named):
    def forward(self, src: Tensor, trg: Tensor) -> Tensor:
        full = torch.ones(1, 1, 1, dtype=torch.bool)
        print("forward")
        return self.core.logits(src, trg, full, full, full)


class RowsMix(Named):
    def forward(self, src: Tensor, trg: Tensor) -> Tensor:
        logits = truth(self.core, src, trg)
        return logits - logits.mean(0)


class Float32Only(Named):
    def forward(self, src: Tensor, trg: Tensor) -> Tensor:
        return truth(self.core, src, trg) @ torch.eye(TARGET_VOCAB, dtype=torch.float32)


class Switched(Named):
    def forward(self, src: Tensor, trg: Tensor, cooler: bool) -> Tensor:
        return truth(self.core, src, trg) / (2 if cooler else 1)


@pytest.mark.parametrize(
    ("style", "notes"),
    [
        (
            SeesTheFuture,
            [
                "logits depend on later target tokens",
                "no id is hidden as padding of the source",
                "the module prints while it runs",
            ],
        ),
        (RowsMix, ["the logits of a sentence depend on other sentences in its batch"]),
        (Switched, ["`cooler` is given None, as its name doesn't show its purpose; True would give other logits"]),
        (Float32Only, ["the module fails in float64 at "]),
    ],
)
def test_properties_that_do_not_hold_are_noted(style: Any, notes: list[str], capsys: Any) -> None:
    found = find_call(style()).notes
    for note in notes:
        assert any(one.startswith(note) for one in found), found
    assert capsys.readouterr().out == ""


# --- modules that can't be called


class Random(Named):
    def forward(self, src: Tensor, trg: Tensor) -> Tensor:
        return nn.functional.dropout(truth(self.core, src, trg), 0.5)


class OnCuda(Named):
    def forward(self, src: Tensor, trg: Tensor) -> Tensor:
        raise RuntimeError("Found no NVIDIA driver on your system.")


class NotANumber(Named):
    def forward(self, src: Tensor, trg: Tensor) -> Tensor:
        return truth(self.core, src, trg) * float("nan")


class OneRecord(Named):
    def forward(self, batch: Any) -> Tensor:
        return truth(self.core, *operator.attrgetter("src", "trg")(batch))


class Fails(Style):
    def forward(self, src: Tensor, trg: Tensor) -> Tensor:
        return {}["key"]


@pytest.mark.parametrize(
    ("style", "message"),
    [
        (Random, "expected deterministic logits in evaluation mode; the module draws random numbers"),
        (OnCuda, "the module moves tensors to CUDA at .*test_calling.py:.* use the device of its inputs"),
        (NotANumber, "expected finite logits"),
        (OneRecord, r"expected parameters for source and target ids; received forward\(batch.*: write an adapter if"),
        (Fails, r"none of .* ways to call forward\(src.* runs; .*test_calling.py:\d+ \(KeyError: 'key'\)"),
    ],
)
def test_a_module_that_cannot_be_called_gets_one_clear_line_and_a_draft(style: Any, message: str) -> None:
    with pytest.raises(CallError, match=f"^my_model:build: {message}") as raised:
        find_call(style(), "my_model:build")
    assert "\n" not in str(raised.value)
    assert "from my_model import build as build_module" in raised.value.adapter
    compile(raised.value.adapter, "adapter.py", "exec")


# --- adapters


@torch.no_grad()
def test_the_adapter_file_equals_the_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    call = find_call(Column())
    (tmp_path / "some_model.py").write_text("def build():\n    return CLASS()\n")
    (tmp_path / "some_adapter.py").write_text(adapter_text(call, "some_model:build"))
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("some_model").CLASS = Column  # type: ignore[attr-defined]
    built = importlib.import_module("some_adapter").build().eval()
    torch.testing.assert_close(built(*ids()), call.wrap(Column().eval())(*ids()), rtol=0, atol=0)
    for name in ("some_model", "some_adapter"):
        monkeypatch.delitem(sys.modules, name)


def test_the_adapter_file_lists_assumptions() -> None:
    call = Call(("return self.module(source_ids, decoder_input_ids)",), None, None, 5, 6, notes=("a remark",))
    text = adapter_text(call, "package.models:Model.small")
    assert "# a remark\n" in text
    assert "from package.models import Model as build_module" in text
    assert "Adapter(build_module.small())" in text


class Uncopyable(Column):
    def __deepcopy__(self, memo: Any) -> Uncopyable:
        raise TypeError("holds an open file")


def test_a_module_is_unchanged_even_if_it_cannot_be_copied() -> None:
    module = Uncopyable()
    module.core.to_logits.eval()
    before, threads = {name: value.clone() for name, value in module.state_dict().items()}, torch.get_num_threads()
    find_call(module)
    assert torch.get_num_threads() == threads
    assert module.training
    assert not module.core.to_logits.training
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_the_global_random_state_is_unchanged() -> None:
    module = Random()
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    with pytest.raises(CallError):
        find_call(module)
    assert torch.equal(torch.rand(1), expected)


class Wide(OwnMasks):
    """Makes large tensors of every sentence."""

    most = 0

    def forward(self, src: Tensor, trg: Tensor) -> Tensor:
        Wide.most = max(Wide.most, len(src))
        return super().forward(src, trg) + 0 * torch.zeros(len(src), 1, 1, 2**23).sum(-1)


def test_few_sentences_are_run_at_once_where_each_takes_much_memory() -> None:
    call = find_call(Wide())
    assert call.source_pad_id == NO_SOURCE
    assert Wide.most <= 8
