"""What `discover` refuses, and what it says of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from jax_transformer.cli import main
from jax_transformer.discover import DiscoverError, Unknown, conclusion_lines, discover
from tests.discover import programs
from tests.discover.programs import built


@pytest.mark.parametrize(
    ("odd", "what", "nearest", "line"),
    [
        ("activation", "an activation that isn't known", r"tanh, residual 7\.\de-02", "torch.sin(hidden)"),
        (
            "clamp",
            "an activation that is gelu of small numbers alone",
            r"gelu up to 300, residual \d\.\de\+00",
            "hidden.clamp(max=50)",
        ),
        (
            "threshold",
            "a part of the encoder's embedding that isn't known",
            r"the sum without it, residual \d\.\de",
            "torch.where(x > 90, 0 * x, x)",
        ),
        (
            "gate",
            "a residual connection to something other than the sublayer's stream",
            r"its stream, residual \d\.\de-01",
            "y = y + self.feed_forward",
        ),
    ],
)
def test_an_inexpressible_operation_is_named_with_its_line(odd: str, what: str, nearest: str, line: str) -> None:
    with pytest.raises(Unknown, match=r"programs\.py:") as error:
        discover(built("SingleHeads", odd))
    assert re.match(rf"{re.escape(what)} \(nearest: {nearest}", str(error.value)), error.value
    found = conclusion_lines(error.value.found, every_layer=False)
    assert any(line.startswith("encoder positions: interleaved standard") for line in found) == (odd == "gate")
    number = int(str(error.value).split("programs.py:")[1].split()[0])
    assert line in Path(programs.__file__).read_text(encoding="utf-8").splitlines()[number - 1]


class Odd(programs.Functional):
    """Differs from what a config expresses in one way."""

    def __init__(self, odd: str) -> None:
        super().__init__()
        self.odd = odd

    def mix(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        if self.odd == "diagonal" and hidden.shape[2] == 1 and q.shape[2] == k.shape[2]:
            hidden = hidden | torch.eye(q.shape[2], dtype=torch.bool)
        if self.odd == "tanh":
            q = q.tanh()
        scores = torch.einsum("bnqh,bnkh->bnqk", q, k) * programs.H**-0.5
        if self.odd == "squared":
            scores = scores + scores**2 / 100
        weights = scores.masked_fill(hidden, -1e9).softmax(-1)
        if self.odd == "sharpened":
            weights = weights**1.5
        return torch.einsum("bnqk,bnkh->bnqh", weights, v)


@pytest.mark.parametrize(
    ("odd", "message"),
    [
        (
            "diagonal",
            r"hides neither keys nor queries of padding alone \(nearest: encoder_padding='keys', residual \d\.\de-0\d",
        ),
        ("tanh", r"nor rotated by position \(nearest: scaled by \d\.\d+, residual \d\.\de-0\d"),
        ("squared", r"query · key times a number plus a bias \(nearest: \S+ · query · key \+ a bias, residual \d"),
        (
            "sharpened",
            r"aren't a softmax over the keys \(nearest: the softmax of their inputs, residual \d",
        ),
    ],
)
def test_the_nearest_attention_is_reported(odd: str, message: str) -> None:
    torch.manual_seed(0)
    with pytest.raises(DiscoverError, match=message):
        discover(Odd(odd).eval())


class Unlike(programs.Functional):
    """Has one part elsewhere than a config has it."""

    def __init__(self, odd: str) -> None:
        super().__init__()
        self.odd = odd

    def positions(self, name: str, ids: torch.Tensor) -> torch.Tensor:
        rows = super().positions(name, ids)
        if self.odd == "two tables":
            return rows + self.p["pos_d"][: ids.shape[1]]
        return self.p[name][(ids * 7) % 30] if self.odd == "by content" else rows

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        if self.odd == "epsilon" and name == "e1_n0":
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.p[name]
        return super().norm(x, name)

    def attend(self, x: torch.Tensor, name: str, hidden: torch.Tensor) -> torch.Tensor:
        y = super().attend(x, name, hidden)
        if self.odd == "twice" and name == "e1":
            return y + super().attend(x + y, name, hidden)
        return self.norm(y, "e0_n1") if self.odd == "normed" and name == "e1" else y

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> dict[str, torch.Tensor]:
        return super().forward(source, torch.cat([target[:, :1], target[:, :-1]], 1) if self.odd == "shift" else target)


@pytest.mark.parametrize(
    ("odd", "message"),
    [
        ("two tables", r"positions computed from trained parameters: add\[13, 24\] at "),
        ("by content", r"nor the count of real tokens \(nearest: by column, residual 1\.\de\+00\): index\[.* at "),
        ("epsilon", r"encoder\.norm\.eps 1e-05 here and 1e-06 at programs\.py:\d+ in module: mul\[3, 13, 24\] at "),
        ("twice", r"encoder layers that aren't of encoder_self, feed_forward each \(.*\): bmm\[.*\] at "),
        ("normed", r"encoder\.self_attention\.output_norm True here and False at .*: add\[.*\] at "),
        ("shift", r"no embedding of target_ids, but of other ids, where the decoder begins: .*\[.*\] at "),
    ],
)
def test_unexpected_parts_are_reported_with_their_place(odd: str, message: str) -> None:
    torch.manual_seed(0)
    with pytest.raises(Unknown, match=rf"{message}(programs|test_refusals)\.py:\d+ in module$"):
        discover(Unlike(odd).eval())


class Summed(nn.RMSNorm):
    """Norms what all tokens so far add up to."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.cumsum(1))


def test_a_stack_whose_output_isnt_read_is_reported_with_its_place() -> None:
    module = built("Modern")
    module.last["dec"] = Summed(programs.D, eps=1e-6).eval()
    message = r"the decoder's output is read neither directly nor through a norm \(nearest: the stream, residual "
    with pytest.raises(Unknown, match=rf"{message}.*test_refusals\.py:\d+ in module\.last\.dec$"):
        discover(module)


class Narrow(programs.Functional):
    """Runs in float32 alone."""

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return super().forward(source, target)["logits"] @ torch.eye(programs.SOURCE, dtype=torch.float32)


def test_a_module_that_fails_in_float64_is_refused_with_the_line() -> None:
    torch.manual_seed(0)
    with pytest.raises(
        DiscoverError, match=r"runs in float64 too; it fails at .*test_refusals\.py:\d+ \(RuntimeError: "
    ):
        discover(Narrow().eval())


class Shifted(programs.Functional):
    """Treats one id in its own way, which no batch that is read shows."""

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> dict[str, torch.Tensor]:
        return super().forward(torch.where(source == 3, 7, source), target)


def test_a_function_that_differs_on_other_ids_is_refused() -> None:
    torch.manual_seed(0)
    with pytest.raises(DiscoverError, match=r"the conclusions miss part of the function: logits differ by \d\.\de-0\d"):
        discover(Shifted().eval())


class Fewer(programs.Functional):
    """Has logits of fewer ids than the table that both sides share has embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Parameter(torch.randn(programs.D, 21))

    def logits(self, y: torch.Tensor) -> torch.Tensor:
        return y @ self.head


def test_a_shared_table_with_logits_of_other_ids_is_refused() -> None:
    torch.manual_seed(0)
    with pytest.raises(
        DiscoverError, match=r"one table of 29 embeddings for source and target, and logits of 21 ids.*: mm\[.* at "
    ):
        discover(Fewer().eval())


def test_one_tensor_for_separately_trained_parameters_is_refused() -> None:
    module = built("Functional")
    module.p["d0_o"] = module.p["e0_o"]
    with pytest.raises(
        DiscoverError, match=r"encoder\S*/output/kernel and decoder\S*/output/kernel are one tensor \(module.p.d0_o\)"
    ):
        discover(module)


class OwnState(programs.Functional):
    """Has a state_dict of its own."""

    def state_dict(self) -> dict[str, Any]:  # type: ignore[override]
        return {"model": super().state_dict(), "epoch": 3}


def test_an_overridden_state_dict_is_refused() -> None:
    torch.manual_seed(0)
    with pytest.raises(
        ValueError, match=r"keyword argument 'destination'\): in an adapter, set OwnState.state_dict = "
    ):
        discover(OwnState().eval())


def test_a_module_in_training_mode_is_refused() -> None:
    module = built("Functional")
    module.p.train()
    with pytest.raises(DiscoverError, match=r"p is in training mode: call \.eval\(\) first"):
        discover(module)


@pytest.mark.parametrize(
    ("odd", "where"), [("window", r"331 and 307 tokens"), ("most", r"tokens, with larger weights")]
)
def test_a_function_that_differs_far_from_the_read_numbers_is_refused(odd: str, where: str) -> None:
    with pytest.raises(
        DiscoverError,
        match=rf"the conclusions miss part of the function: logits differ by .* on sentences of .*{where}",
    ):
        discover(built("SingleHeads", odd))


def test_the_command_names_the_refused_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "odd.py").write_text(
        "from tests.discover.programs import SingleHeads\n\n\ndef build():\n    return SingleHeads('activation')\n",
        encoding="utf-8",
    )
    assert main(["discover", "odd:build", "-o", "found"]) == 1
    assert "odd:build: no config expresses it: an activation that isn't known" in capsys.readouterr().out
    assert not (tmp_path / "found").exists()
