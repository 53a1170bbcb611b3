"""A user's program with one small linear map per head, a tied head, its own position table, and tensors that it doesn't
read; a map of its names, and an adapter around it."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

SOURCE_PAD, TARGET_PAD, LENGTH, WIDTH, HEADS = 1, 2, 24, 12, 3
CONFIG = f"""
d_model: {WIDTH}
num_heads: {HEADS}
d_ff: 10
num_encoder_layers: 2
num_decoder_layers: 1
max_length: {LENGTH}
source_pad_id: {SOURCE_PAD}
target_pad_id: {TARGET_PAD}
tie_head: true
scale_embedding: false
norm_placement: pre
final_norm: true
dropout_rate: 0.0
"""


class Head(nn.Module):
    """Attends once."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH // HEADS) for _ in range(3))
        self.width = WIDTH // HEADS

    def forward(self, x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        scores = self.q(x) @ self.k(y).transpose(1, 2) / math.sqrt(self.width)
        return scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(dim=-1) @ self.v(y)


class Attention(nn.Module):
    """Heads one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.proj = nn.ModuleList(Head() for _ in range(HEADS)), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        return self.proj(torch.cat([head(x, y, mask) for head in self.heads], dim=-1))


class Layer(nn.Module):
    """Norms before each part."""

    def __init__(self, *, crossing: bool) -> None:
        super().__init__()
        self.attn, self.ln1 = Attention(), nn.LayerNorm(WIDTH)
        if crossing:
            self.cross, self.ln2 = Attention(), nn.LayerNorm(WIDTH)
        self.up, self.down, self.ln3 = nn.Linear(WIDTH, 10), nn.Linear(10, WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor, mask: Tensor, memory: Tensor | None = None, seen: Tensor | None = None) -> Tensor:
        normed = self.ln1(x)
        x = x + self.attn(normed, normed, mask)
        if memory is not None:
            x = x + self.cross(self.ln2(x), memory, seen)
        return x + self.down(self.up(self.ln3(x)).relu())


class Program(nn.Module):
    """The whole."""

    pe: Tensor
    causal: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.src, self.tgt = nn.Embedding(19, WIDTH), nn.Embedding(17, WIDTH)
        position, pair = torch.arange(LENGTH)[:, None], torch.arange(WIDTH // 2)
        angles = position / 10_000 ** (2 * pair / WIDTH)
        self.register_buffer("pe", torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)[None])
        self.register_buffer("causal", torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril())
        self.scale = nn.Parameter(torch.tensor([2.0, math.inf]))  # which nothing reads
        self.enc = nn.ModuleList(Layer(crossing=False) for _ in range(2))
        self.dec = nn.ModuleList(Layer(crossing=True) for _ in range(1))
        self.enc_ln, self.dec_ln, self.out = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 17)
        self.out.weight = self.tgt.weight

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        seen = (src != SOURCE_PAD)[:, None]
        mask = (tgt != TARGET_PAD)[:, None] & self.causal[: tgt.shape[1], : tgt.shape[1]]
        x, y = (table(ids) + self.pe[:, : ids.shape[1]] for table, ids in ((self.src, src), (self.tgt, tgt)))
        for layer in self.enc:
            x = layer(x, seen)
        x = self.enc_ln(x)
        for layer in self.dec:
            y = layer(y, mask, x, seen)
        return self.out(self.dec_ln(y))


def _attention(theirs: str, ours: str) -> list[str]:
    lines = []
    for letter, part in (("q", "query"), ("k", "key"), ("v", "value")):
        name = f"{theirs}.heads.{{n}}.{letter}"
        lines.append(f'{name}.weight: {{name: "{ours}/{part}/kernel[{{i}}]", axes: "{{n}} H D -> D {{n}} H"}}')
        lines.append(f'{name}.bias: {{name: "{ours}/{part}/bias[{{i}}]", axes: "{{n}} H -> {{n}} H"}}')
    lines.append(f'{theirs}.proj.weight: {{name: "{ours}/output/kernel[{{i}}]", axes: "D (N H) -> N H D"}}')
    return [*lines, f"{theirs}.proj.bias: {ours}/output/bias[{{i}}]"]


def _layers() -> list[str]:
    lines = []
    for short, stack in (("enc", "encoder"), ("dec", "decoder")):
        theirs, ours = f"{short}.{{i}}", f"{stack}/layers"
        lines += _attention(f"{theirs}.attn", f"{ours}/self_attention")
        lines += _attention(f"{theirs}.cross", f"{ours}/cross_attention") if short == "dec" else []
        norms = {"ln1": "self_attention_norm", "ln2": "cross_attention_norm", "ln3": "feed_forward_norm"}
        for norm, path in norms.items():
            if norm != "ln2" or short == "dec":
                lines.append(f"{theirs}.{norm}.weight: {ours}/{path}/scale[{{i}}]")
                lines.append(f"{theirs}.{norm}.bias: {ours}/{path}/bias[{{i}}]")
        for name, part in (("up", "hidden"), ("down", "output")):
            path = f"{ours}/feed_forward/{part}"
            lines.append(f'{theirs}.{name}.weight: {{name: "{path}/kernel[{{i}}]", axes: "O I -> I O"}}')
            lines.append(f"{theirs}.{name}.bias: {path}/bias[{{i}}]")
        lines += [f"{short}_ln.weight: {stack}/final_norm/scale", f"{short}_ln.bias: {stack}/final_norm/bias"]
    return lines


MAP = "\n  ".join(
    [
        "parameters:",
        "src.weight: source_embedding/embedding",
        "[tgt.weight, out.weight]: target_embedding/embedding",
        "out.bias: head_bias",
        'pe: {name: "constants/{encoder,decoder}_positions", axes: "1 P D -> P D"}',
        *_layers(),
    ]
)
MAP += "\nignore: [causal, scale]\n"


def build() -> Any:
    """Returns the program with random weights, the same each time."""
    module, generator = Program().eval(), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name != "scale":
                drawn = 0.3 * torch.randn(parameter.shape, generator=generator)
                parameter.copy_(drawn + (".ln" in name or "_ln" in name) * name.endswith("weight"))
    return module


class Adapter(nn.Module):
    """Has the program inside."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, source_ids: Tensor, decoder_input_ids: Tensor) -> Tensor:
        logits: Tensor = self.module(source_ids, decoder_input_ids)
        return logits


def adapter() -> Any:
    return Adapter(build()).eval()


class FunctionalLayer(Layer):
    """Calls no module of its feed-forward."""

    def forward(self, x: Tensor, mask: Tensor, memory: Tensor | None = None, seen: Tensor | None = None) -> Tensor:
        normed = self.ln1(x)
        x = x + self.attn(normed, normed, mask)
        if memory is not None:
            x = x + self.cross(self.ln2(x), memory, seen)
        hidden = functional.linear(self.ln3(x), self.up.weight, self.up.bias).relu()
        return x + functional.linear(hidden, self.down.weight, self.down.bias)


def uncalled() -> Any:
    """With feed-forwards whose modules aren't called."""
    module = build()
    for layer in (*module.enc, *module.dec):
        layer.__class__ = FunctionalLayer
    return module


class Float32Only(Program):
    """Refuses other precisions."""

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        if self.src.weight.dtype != torch.float32:
            raise TypeError("float32 alone")
        return super().forward(src, tgt)


def float32_only() -> Any:
    """The program, which runs in float32 alone."""
    module = build()
    module.__class__ = Float32Only
    return module


def other_head() -> Any:
    """With one head of one layer that scales its logits otherwise."""
    module = build()
    module.enc[1].attn.heads[1].width = WIDTH
    return module


def other_eps() -> Any:
    module = adapter()
    module.module.dec[0].ln2.eps = 1e-6
    return module
