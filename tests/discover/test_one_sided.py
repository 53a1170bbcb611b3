"""Modules of one sequence, or of numbers in place of ids, which no call makes an encoder-decoder."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from jax_transformer.cli import main
from jax_transformer.programs.calling import CallError, find_call
from tests.discover.tiny import PAD, TARGET, WIDTH, Tiny, earlier


class OneStack(Tiny):
    """One stack of layers over one sequence."""

    is_causal = False

    def read(self, ids: Tensor) -> Tensor:
        mask = earlier(ids) if self.is_causal else torch.ones(1, 1, ids.shape[1], dtype=torch.bool)
        return self.reader(self.embedded("source", ids), mask)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.read(ids))


class Causal(OneStack):
    is_causal = True


class Paired(Causal):
    """Has parts named as those of an encoder-decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Identity(), nn.Identity()


class WithLoss(Causal):
    """Returns a loss too, if it is given labels."""

    def forward(self, idx: Tensor, targets: Any = None) -> Any:
        logits = self.head(self.read(idx))
        return logits, None if targets is None else F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class WithMask(OneStack):
    """Can't do without the mask that its caller makes."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.head(self.reader(self.embedded("source", x), mask if mask.ndim == 3 else mask[None]))


class WithSegments(OneStack):
    """Takes the kind of each token too."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds = nn.Embedding(40, WIDTH)

    def forward(self, input_ids: Tensor, token_type_ids: Any = None) -> Tensor:
        kinds = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        return self.head(self.read(input_ids) + self.kinds(kinds))


class Classifier(OneStack):
    def forward(self, text: Tensor) -> Tensor:
        return self.head(self.read(text).mean(1))


class IgnoresSource(Tiny):
    """Has a decoder alone, whatever its forward is given."""

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return self.logits(torch.ones_like(src), tgt)


class Speech(Tiny):
    """Reads features of speech, and ids of text."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(9, WIDTH)

    def forward(self, sounds: Tensor, tgt: Tensor) -> Tensor:
        seen = torch.ones(1, 1, sounds.shape[1], dtype=torch.bool)
        memory = self.reader(self.project(sounds), seen)
        return self.head(self.writer(self.embedded("target", tgt), earlier(tgt), memory, seen))


class Vectors(nn.Transformer):
    """Takes vectors of both sides."""

    def __init__(self) -> None:
        super().__init__(WIDTH, 2, 1, 1, 16, batch_first=True)


ONE, NUMBERS = "takes one sequence", "of forward takes numbers in floating point, such as"
ENCODER = "a token's output depends on later tokens: the module is encoder-only"
DECODER = "no token's output depends on later tokens: the module is decoder-only"


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (OneStack, f"forward(ids) {ONE}, `ids`, and {ENCODER}"),
        (Causal, f"forward(ids) {ONE}, `ids`, and {DECODER}"),
        (Paired, f"forward(ids) {ONE}, `ids`, and {DECODER}"),
        (WithLoss, f"{ONE}, `idx`, and {DECODER}"),
        (WithMask, f"forward(x, mask) {ONE}, `x`"),
        (WithSegments, f"{ONE}, `input_ids`, and a token's output depends on later tokens"),
        (Classifier, f"{ONE}, `text`, and returns Tensor of [3, 19]"),
        (IgnoresSource, "depend on no source ids (return self.module(source_ids, decoder_input_ids)): the module "),
        (Speech, f"`sounds` {NUMBERS} [3, 7, 9], and no ids"),
        (Vectors, f"`src` {NUMBERS} ["),
        (lambda: nn.Linear(WIDTH, 5), f"`input` {NUMBERS} ["),
    ],
)  # fmt: skip
def test_modules_other_than_encoder_decoders_are_refused_in_one_line_without_a_draft(module: Any, message: str) -> None:
    with pytest.raises(CallError, match=re.escape(message)) as error:
        find_call(module().eval(), "program:build")
    assert str(error.value).startswith("program:build: expected ")
    assert "\n" not in str(error.value)
    assert error.value.adapter == ""


class LossOrTokens(Tiny):
    """Returns a loss for a target, and its own choice of tokens without one."""

    def forward(self, src: Tensor, tgt: Any = None) -> Tensor:
        if tgt is None:
            return self.logits(src, torch.ones_like(src[:, :1])).argmax(-1)
        return F.cross_entropy(self.logits(src, tgt).transpose(1, 2), tgt)


class Unnamed(Tiny):
    """Takes an optional second sequence with an uninformative name."""

    def forward(self, ids: Tensor, more: Any = None) -> Tensor:
        return self.logits(ids, torch.ones_like(ids) if more is None else more)


@pytest.mark.parametrize("module", [LossOrTokens, Unnamed])
def test_an_encoder_decoder_that_runs_on_a_source_only_is_called_with_both(module: Any) -> None:
    call = find_call(module())
    assert call.source_pad_id == PAD
    assert call.target_vocab_size == TARGET


def test_the_command_ends_with_two_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "alone.py").write_text(
        "from tests.discover.test_one_sided import Causal\n\n\ndef build():\n    return Causal()\n", encoding="utf-8"
    )
    assert main(["discover", "alone:build", "-o", "found"]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: alone:build: expected an encoder-decoder with source and target ids")
    assert captured.out == ""
    assert not (tmp_path / "found").exists()
