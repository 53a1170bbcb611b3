"""Programs whose encoder and decoder differ in an option: each stack's part is found by itself."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from jax_transformer.config.specs import FeedForward, LayerNorm, RmsNorm, Stack
from jax_transformer.discover import Discovery, discover
from jax_transformer.discover.comparison import prove
from tests.discover.programs import sinusoids
from tests.discover.tiny import PAD, SOURCE, TARGET, WIDTH, earlier

HIDDEN = 20


@dataclass(frozen=True)
class Style:
    """Says how a stack is written."""

    eps: float | None = 1e-5
    """Of its norms. None: it has none."""
    rms: bool = False
    pre: bool = True
    bias: bool = True
    gated: bool = False
    heads: int = 2
    heads_over_memory: int = 2
    scale: float | None = None
    query_key_norm: bool = False
    output_norm: bool = False
    layer_scale: bool = False
    stream_factor: float = 1.0
    parallel: bool = False
    one_norm: bool = False
    one_layer: bool = False
    learned_positions: bool = False
    pad_is_trained: bool = True

    def norm(self, width: int = WIDTH) -> nn.Module:
        if self.eps is None:
            return nn.Identity()
        return nn.RMSNorm(width, eps=self.eps) if self.rms else nn.LayerNorm(width, eps=self.eps)


class Attention(nn.Module):
    """Attends where a mask [B or 1, Q or 1, K] is True."""

    def __init__(self, style: Style, heads: int) -> None:
        super().__init__()
        self.heads, self.scale = heads, style.scale or (WIDTH // heads) ** -0.5
        self.query, self.key, self.value, self.output = (nn.Linear(WIDTH, WIDTH, bias=style.bias) for _ in range(4))
        of_head = style.norm if style.query_key_norm else lambda _: nn.Identity()
        self.norms = nn.ModuleList(of_head(WIDTH // heads) for _ in range(2))

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        projected = (self.query(x), self.key(memory), self.value(memory))
        q, k, v = (one.unflatten(-1, (self.heads, -1)).transpose(1, 2) for one in projected)
        scores = self.norms[0](q) @ self.norms[1](k).mT * self.scale
        weights = scores.masked_fill(~mask[:, None], -torch.inf).softmax(-1)
        return self.output((weights @ v).transpose(1, 2).flatten(2))


class FeedForwardOf(nn.Module):
    """Two linear maps, or three with a gate."""

    def __init__(self, style: Style) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, HIDDEN, bias=style.bias), nn.Linear(HIDDEN, WIDTH, bias=style.bias)
        self.gate = nn.Linear(WIDTH, HIDDEN, bias=style.bias) if style.gated else None

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.up(x) if self.gate is None else self.gate(x)) * (self.up(x) if self.gate else 1))


class Layer(nn.Module):
    """A layer of either stack."""

    def __init__(self, style: Style, *, decodes: bool) -> None:
        super().__init__()
        self.style = style
        self.own = Attention(style, style.heads)
        self.cross = Attention(style, style.heads_over_memory) if decodes else None
        self.feed_forward = FeedForwardOf(style)
        count = 3 if decodes else 2
        one = style.norm()
        self.norms = nn.ModuleList(one if style.one_norm else style.norm() for _ in range(count))
        self.after = nn.ModuleList(style.norm() if style.output_norm else nn.Identity() for _ in range(count))
        if style.layer_scale:
            self.scales = nn.ParameterList(torch.full((WIDTH,), 0.3) for _ in range(count))

    def added(self, number: int, y: Tensor) -> Tensor:
        y = self.after[number](y)
        return y * self.scales[number] if self.style.layer_scale else y

    def forward(self, x: Tensor, mask: Tensor, memory: Any = None, seen: Any = None) -> Tensor:
        sublayers = [lambda h: self.own(h, h, mask)]
        if self.cross is not None:
            sublayers.append(lambda h: self.cross(h, memory, seen))
        sublayers.append(self.feed_forward)
        if self.style.parallel:
            parts = [(number, one(self.norms[number](x))) for number, one in enumerate(sublayers)]
            return x + sum(self.added(*part) for part in parts)
        for number, one in enumerate(sublayers):
            h = self.norms[number](x) if self.style.pre else x
            x = self.style.stream_factor * x + self.added(number, one(h))
            x = x if self.style.pre else self.norms[number](x)
        return x


class TwoStyles(nn.Module):
    """Two layers in each stack, each stack in a style of its own."""

    pad = PAD

    def __init__(self, reading: Style, writing: Style) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.styles = (reading, writing)
        self.tokens = nn.ModuleList(
            nn.Embedding(rows, WIDTH, padding_idx=None if style.pad_is_trained else PAD)
            for rows, style in zip((SOURCE, TARGET), self.styles, strict=True)
        )
        self.places = nn.ModuleList(nn.Embedding(48, WIDTH) for _ in range(2))
        self.stacks = nn.ModuleList()
        for number, style in enumerate(self.styles):
            layers = [Layer(style, decodes=number == 1) for _ in range(2)]
            self.stacks.append(nn.ModuleList([layers[0], layers[0]] if style.one_layer else layers))
        self.head = nn.Linear(WIDTH, TARGET)
        for parameter in self.parameters():
            parameter.data += 0.1 * torch.randn(parameter.shape)
        self.eval()

    def embedded(self, number: int, ids: Tensor) -> Tensor:
        x = self.tokens[number](ids)
        if self.styles[number].learned_positions:
            return x + self.places[number](torch.arange(ids.shape[1]))
        return x + sinusoids(ids.shape[1], WIDTH).to(x.dtype)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        seen = (src != self.pad)[:, None]
        x = self.embedded(0, src)
        for layer in self.stacks[0]:
            x = layer(x, seen)
        y, mask = self.embedded(1, tgt), earlier(tgt) & (tgt != self.pad)[:, None]
        for layer in self.stacks[1]:
            y = layer(y, mask, x, seen)
        return self.head(y)


def found_with(reading: dict[str, Any], writing: dict[str, Any]) -> Discovery:
    found = discover(TwoStyles(Style(**reading), Style(**writing)))
    assert found.worst <= 1e-12
    return found


def value_at(stack: Stack, path: str) -> Any:
    part: Any = stack
    for name in path.split("."):
        part = getattr(part, name)
    return part


CASES: list[tuple[str, dict[str, Any], dict[str, Any], str, Any, Any]] = [
    ("epsilon", {"eps": 1e-6}, {"eps": 1e-3}, "norm", LayerNorm(eps=1e-6), LayerNorm(eps=1e-3)),
    ("kinds of norms", {}, {"rms": True, "eps": 1e-6}, "norm", LayerNorm(), RmsNorm(eps=1e-6)),
    ("norms in the encoder alone", {}, {"eps": None}, "norm", LayerNorm(), None),
    ("where norms are", {"pre": False}, {}, "norm_placement", "post", "pre"),
    ("one norm for a layer", {"parallel": True, "one_norm": True}, {}, "share_norms", True, False),
    ("biases of attention", {}, {"bias": False}, "self_attention.bias", True, False),
    ("biases of feed-forwards", {"bias": False}, {}, "feed_forward.bias", False, True),
    ("a gate", {}, {"gated": True}, "feed_forward", None, None),
    ("scales of attention", {"scale": 0.7}, {}, "self_attention.scale", 0.7, None),
    ("normed queries", {}, {"query_key_norm": True}, "self_attention.query_key_norm", False, True),
    ("normed outputs", {"output_norm": True}, {}, "feed_forward.output_norm", True, False),
    ("LayerScale", {}, {"layer_scale": True}, "residual.output_scale", "none", "channel"),
    ("factors", {"stream_factor": 1.5}, {}, "residual.stream_factor", 1.5, 1.0),
    ("parallel layers", {}, {"parallel": True}, "residual.parallel", False, True),
    ("shared layers", {"one_layer": True}, {}, "share_layers", True, False),
    ("positions", {"learned_positions": True}, {}, "positions.kind", "learned", "sinusoidal"),
    ("numbers of heads", {"heads": 3}, {}, "self_attention.num_heads", 3, 2),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_each_stack_is_found_in_its_own_style(case: tuple[str, Any, Any, str, Any, Any]) -> None:
    _, reading, writing, path, encoder, decoder = case
    config = found_with(reading, writing).model.config
    if path == "feed_forward":
        plain = FeedForward(width=HIDDEN, activation="silu")
        encoder, decoder = plain, dataclasses.replace(plain, gated=True)
    for stack, value in ((config.encoder, encoder), (config.decoder, decoder)):
        found = value_at(stack, path)
        assert found == (pytest.approx(value, rel=1e-12) if isinstance(value, float) else value)


def test_cross_attention_may_have_other_heads_than_self_attention() -> None:
    config = found_with({}, {"heads_over_memory": 4}).model.config
    assert config.decoder.cross_attention is not None
    assert (config.decoder.self_attention.num_heads, config.decoder.cross_attention.num_heads) == (2, 4)
    assert config.encoder.self_attention.num_heads == 2


def test_the_pad_may_be_trained_on_one_side_only() -> None:
    config = found_with({"pad_is_trained": False}, {}).model.config
    assert (config.source.trains_pad, config.target.trains_pad) == (False, True)


def test_everything_may_differ_at_once() -> None:
    reading = {"eps": 1e-6, "bias": False, "heads": 3, "scale": 0.4, "layer_scale": True, "pad_is_trained": False}
    writing = {"rms": True, "eps": 1e-3, "pre": False, "gated": True, "heads_over_memory": 4, "query_key_norm": True}
    writing |= {"learned_positions": True, "output_norm": True, "one_layer": True}
    found = found_with(reading, writing)
    encoder, decoder = found.model.config.encoder, found.model.config.decoder
    assert (encoder.norm, decoder.norm) == (LayerNorm(eps=1e-6), RmsNorm(eps=1e-3))
    assert encoder.residual.output_scale == "channel"
    assert decoder.share_layers
    module = TwoStyles(Style(**reading), Style(**writing))
    report = prove(found, module, "styles:build", ["weights", "forward", "loss", "gradients"])
    assert report.exit_code == 0, report
