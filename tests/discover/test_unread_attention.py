"""What is said of attentions that aren't read, and of the call and the conclusions before a refusal."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from jax_transformer.cli import main
from jax_transformer.discover import Unknown, discover
from tests.discover.tiny import PAD, ROWS, WIDTH, Attention, Tiny, earlier

SIZE = 4
"""Tokens of a block."""


class InBlocks(Attention):
    """Attends to the tokens of a query's own block."""

    def mix(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        length, more = q.shape[2], -q.shape[2] % SIZE
        q, k, v = (F.pad(one, (0, 0, 0, more)).unflatten(2, (-1, SIZE)) for one in (q, k, v))
        hidden = F.pad(~mask, (0, more), value=True).unflatten(-1, (-1, SIZE)).transpose(2, 3)
        scores = torch.einsum("bngqh,bngkh->bngqk", q, k)
        weights = scores.masked_fill(hidden, -1e9).softmax(-1)
        return torch.einsum("bngqk,bngkh->bngqh", weights, v).flatten(2, 3)[:, :, :length]


class Blocks(Tiny):
    def __init__(self) -> None:
        super().__init__()
        self.reader.attention = InBlocks().eval()


class Streams(Attention):
    """Attends to the tokens and to values computed from them, in one sequence of both."""

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        both = torch.cat([memory, memory.roll(1, 1) + 1.0], 1)
        return super().forward(x, both, torch.cat([mask, mask], -1))


class TwoStreams(Tiny):
    def __init__(self) -> None:
        super().__init__()
        self.writer.attention = Streams().eval()


class Blended(Tiny):
    """Mixes tokens by a trained matrix, without any attention."""

    def __init__(self) -> None:
        super().__init__()
        self.blend = nn.Parameter(torch.randn(ROWS, ROWS) / 5)

    def embedded(self, side: str, ids: Tensor) -> Tensor:
        x, length = super().embedded(side, ids), ids.shape[1]
        return x if side == "target" else torch.einsum("st,btd->bsd", self.blend[:length, :length], x)


@pytest.mark.parametrize(
    ("program", "what", "line"),
    [
        (
            Blocks,
            "an attention that isn't read: its numbers can't be assigned to one query and one key each",
            "ngqh,bngkh",
        ),
        (TwoStreams, "", ""),
        (Blended, "a linear map over several tokens: bmm", "st,btd->bsd"),
    ],
)
def test_the_part_that_isnt_read_is_named_and_not_the_head(program: type[Tiny], what: str, line: str) -> None:
    with pytest.raises(Unknown) as error:
        discover(program())
    assert "an output that is neither" not in str(error.value)
    assert str(error.value).startswith(what)
    number = int(str(error.value).split("test_unread_attention.py:")[1].split()[0]) if line else 0
    assert line in Path(__file__).read_text(encoding="utf-8").splitlines()[number - 1]


class Far(Tiny):
    """Takes its masks from the caller, True = hidden, and sees neighbours alone in long sources."""

    def forward(self, src: Tensor, tgt: Tensor, src_mask: Tensor, tgt_mask: Tensor) -> Tensor:
        if src_mask.ndim != 3 or tgt_mask.ndim != 3 or src_mask.dtype != torch.bool:
            raise ValueError("expected masks [B, 1, S] and [B, T, T]")
        places = torch.arange(src.shape[1])
        near = (places[:, None] - places).abs() < 40
        memory = self.reader(self.embedded("source", src), ~src_mask & near)
        return self.head(self.writer(self.embedded("target", tgt), ~tgt_mask, memory, ~src_mask))


def test_a_refusal_shows_the_call_and_the_meaning_of_true_in_masks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = ("from tests.discover.test_unread_attention import Far", "", "", "def build():", "    return Far(rows=99)")
    (tmp_path / "far.py").write_text("\n".join([*lines, ""]), encoding="utf-8")
    assert main(["discover", "far:build", "-o", "found"]) == 1
    output = capsys.readouterr().out
    assert output.startswith("call:     source_real = source_ids != 0\n")
    assert " return self.module(source_ids, decoder_input_ids, src_mask, tgt_mask)\n" in output
    assert "`src_mask` [B, 1, S] hides padding (True = hidden)" in output
    assert "found:" not in output
    assert "read:     encoder/layers/feed_forward: relu" in output
    assert "far:build: refused: the conclusions miss part of the function: logits differ by" in output
    assert "no config expresses it" not in output


class OwnTable(Tiny):
    """Adds a table of its own that isn't trained, in a stack that is refused."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.rand(ROWS, WIDTH))

    def embedded(self, side: str, ids: Tensor) -> Tensor:
        return self.source(ids) + self.table[: ids.shape[1]] if side == "source" else super().embedded(side, ids)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        seen = (src != PAD)[:, None]
        memory = self.reader(self.embedded("source", src), seen)
        return self.head(self.writer(self.embedded("target", tgt), earlier(tgt), memory.sin(), seen))


def test_an_unknown_table_is_reported_without_a_kind() -> None:
    with pytest.raises(Unknown) as error:
        discover(OwnTable())
    positions = [one.value for one in error.value.found if one.what == "encoder positions"]
    assert positions == ["a table of its own, offset 0"]
