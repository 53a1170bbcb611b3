"""Modules whose attention is as sharp as that of trained ones: weights of visible keys are 0 in float64."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from jax_transformer.discover import DiscoverError, discover, prove
from tests.discover.tiny import SOURCE, TARGET, WIDTH, Attention, Tiny


class Sharp(Tiny):
    """Multiplies the kernels of queries and keys."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if name.endswith(("query.weight", "key.weight")):
                    parameter *= factor


class Hot(Attention):
    """Multiplies cosines by a large number, which no smaller weights change; or by one that they may have."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def mix(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k = (one / one.norm(dim=-1, keepdim=True) for one in (q, k))
        return (self.factor * q @ k.transpose(-1, -2)).masked_fill(~mask, -torch.inf).softmax(-1) @ v


def test_scores_that_stay_large_are_reported() -> None:
    module = Tiny()
    module.reader.attention = Hot(5000.0).eval()
    with pytest.raises(DiscoverError, match=r"its attention scores are \d\.\de\+03 even with small weights"):
        discover(module)


class Scaled(Attention):
    """Multiplies scores by a large number, behind their product."""

    def mix(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return (q @ k.transpose(-1, -2) * 1000).masked_fill(~mask, -torch.inf).softmax(-1) @ v


def test_scores_that_are_large_behind_their_product_are_read() -> None:
    module = Tiny()
    for layer in (module.reader, module.writer):
        for name in ("attention", "crossing"):
            if getattr(layer, name) is not None:
                setattr(layer, name, Scaled().eval())
    found = discover(module)
    assert found.model.config.attention_scale == pytest.approx(1000, rel=1e-12)
    assert found.model.config.encoder_padding == "keys"


def zeros(module: Tiny) -> int:
    """Counts the weights of the encoder's attention that are 0 on unpadded sentences."""
    wide = module.double()
    ids = torch.arange(1, SOURCE).expand(2, -1)
    attention, x = wide.reader.attention, wide.embedded("source", ids)
    q, k = (attention.heads(one(x)) for one in (attention.query, attention.key))
    scores = q @ k.transpose(-1, -2) * (WIDTH // 2) ** -0.5
    return int((scores.softmax(-1) == 0).sum())


@pytest.mark.parametrize("factor", [40.0, 1500.0])  # scores up to 6e3 and 9e6
@pytest.mark.parametrize("trains", [True, False])
def test_masks_are_found_though_weights_underflow(factor: float, *, trains: bool) -> None:
    assert zeros(Sharp(factor)) > 100
    found = discover(Sharp(factor).requires_grad_(trains))
    config = found.model.config
    assert (config.encoder_padding, config.decoder_padding, config.cross_padding) == ("keys", "keys", "keys")
    assert config.decoder_causal
    assert found.worst <= 1e-12


def test_scores_as_low_as_fills_are_no_masks_to_a_parity_run() -> None:
    module = Sharp(200.0)
    report = prove(discover(module), module, "program:build", ["masks", "forward"])
    assert report.verdict == "passed", str(report)
    assert [stage.verdict for stage in report.stages if stage.name == "masks"] == ["passed"]


class Initialised(nn.Module):
    """torch.nn.Transformer of width 256 with embeddings as PyTorch initialises them, scaled by 16."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.pad, width = 0, 256
        self.source, self.target = nn.Embedding(SOURCE, width), nn.Embedding(TARGET, width)
        self.places = nn.ModuleList(nn.Embedding(30, width) for _ in range(2))
        self.core = nn.Transformer(width, 4, 1, 1, 64, batch_first=True)
        self.head = nn.Linear(width, TARGET)
        self.eval()

    def forward(self, src: torch.Tensor, tgt: torch.Tensor) -> torch.Tensor:
        x, y = (
            16 * table(ids) + places(torch.arange(ids.shape[1]))
            for table, places, ids in zip((self.source, self.target), self.places, (src, tgt), strict=True)
        )
        hidden = torch.ones(tgt.shape[1], tgt.shape[1], dtype=torch.bool).triu(1)
        pads, theirs = src == self.pad, tgt == self.pad
        return self.head(self.core(x, y, None, hidden, None, pads, theirs, pads))


def test_a_module_with_pytorchs_initialization_is_discovered() -> None:
    found = discover(Initialised())
    assert found.model.config.encoder_padding == "keys"
    assert found.worst <= 1e-12


class Steep(Tiny):
    """Has hidden layers of thousands, where formulas of some activations overflow. (Tests treat warnings as errors.)"""

    def __init__(self) -> None:
        super().__init__()
        with torch.no_grad():
            for layer in (self.reader, self.writer):
                layer.wide.weight *= 5000


def test_overflow_in_formulas_that_dont_fit_is_no_warning() -> None:
    assert discover(Steep()).worst <= 1e-12
