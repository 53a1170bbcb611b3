"""A Transformer in PyTorch by the formulas that JoeyNMT and Sockeye share, with random parts under plain names: what
tests write as either program's files."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

Tensors = dict[str, torch.Tensor]
Function = Callable[[torch.Tensor], torch.Tensor]
D, F, V, LENGTH = 8, 12, 30, 20
ATTENTIONS = {"encoder": ("self",), "decoder": ("self", "cross")}


@dataclass(frozen=True, kw_only=True)
class Stack:
    """Describes one stack."""

    depth: int = 2
    heads: int = 2
    pre: bool = True
    final: bool = True
    scaled: bool = True
    alpha: float = 1.0
    activation: Function = torch.relu
    gated: bool = False


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Describes a model."""

    encoder: Stack = field(default_factory=Stack)
    decoder: Stack = field(default_factory=Stack)
    shared: bool = False
    tied: bool = False
    attention_bias: bool = True
    head_bias: bool = True
    pad: int = 0
    hides_target_padding: bool = True
    halves: bool = False
    learned: bool = False


def made(shape: Shape) -> Tensors:
    """Returns random parts: a weight [out, in] under `…/weight`, a bias under `…/bias`."""
    torch.manual_seed(0)
    found: Tensors = {"source": torch.randn(V, D) * 0.3}
    found["target"] = found["source"] if shape.shared else torch.randn(V, D) * 0.3
    found["head/weight"] = found["target"] if shape.tied else torch.randn(V, D) * 0.3
    if shape.head_bias:
        found["head/bias"] = torch.randn(V) * 0.3

    def linear(name: str, outputs: int, inputs: int, *, bias: bool = True) -> None:
        found[f"{name}/weight"] = torch.randn(outputs, inputs) * 0.3
        if bias:
            found[f"{name}/bias"] = torch.randn(outputs) * 0.3

    def norm(name: str) -> None:
        found[f"{name}/weight"], found[f"{name}/bias"] = 1 + torch.randn(D) * 0.1, torch.randn(D) * 0.1

    for name in ("encoder", "decoder"):
        stack: Stack = getattr(shape, name)
        found[f"{name}/positions"] = torch.randn(LENGTH, D) * 0.3 if shape.learned else sinusoids(halves=shape.halves)
        for i in range(stack.depth):
            for attention in ATTENTIONS[name]:
                for part in "qkvo":
                    linear(f"{name}/{i}/{attention}/{part}", D, D, bias=shape.attention_bias)
                norm(f"{name}/{i}/{attention}/norm")
            for part in ("in", "gate")[: 1 + stack.gated]:
                linear(f"{name}/{i}/feed/{part}", F, D)
            linear(f"{name}/{i}/feed/out", D, F)
            norm(f"{name}/{i}/feed/norm")
        if stack.final:
            norm(f"{name}/norm")
    return found


def sinusoids(*, halves: bool) -> torch.Tensor:
    """Returns the table of Vaswani et al. 2017: sines and cosines in turn, or the sines first."""
    angles = torch.arange(LENGTH).float()[:, None] * torch.exp(torch.arange(0, D, 2).float() * -(math.log(10000.0) / D))
    parts = [angles.sin(), angles.cos()]
    return torch.cat(parts, 1) if halves else torch.stack(parts, 2).flatten(1)


def logits(shape: Shape, weights: Tensors, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Returns the logits [B, T, V] of sources padded on the right."""

    def linear(x: torch.Tensor, name: str) -> torch.Tensor:
        return torch.nn.functional.linear(x, weights[f"{name}/weight"], weights.get(f"{name}/bias"))

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return torch.nn.functional.layer_norm(x, (D,), weights[f"{name}/weight"], weights[f"{name}/bias"], 1e-6)

    def sublayer(stack: Stack, x: torch.Tensor, name: str, compute: Function) -> torch.Tensor:
        y = compute(norm(x, f"{name}/norm") if stack.pre else x) + stack.alpha * x
        return y if stack.pre else norm(y, f"{name}/norm")

    def attend(stack: Stack, name: str, q: torch.Tensor, k: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            linear(x, f"{name}/{part}").unflatten(-1, (stack.heads, -1)).transpose(1, 2)
            for x, part in ((q, "q"), (k, "k"), (k, "v"))
        )
        scores = query @ key.transpose(2, 3) / math.sqrt(D // stack.heads)
        mixed = scores.masked_fill(hidden, -99999999.0).softmax(-1) @ value
        return linear(mixed.transpose(1, 2).flatten(2), f"{name}/o")

    def feed(stack: Stack, name: str, x: torch.Tensor) -> torch.Tensor:
        inner = stack.activation(linear(x, f"{name}/in"))
        return linear(inner * linear(x, f"{name}/gate") if stack.gated else inner, f"{name}/out")

    def run(name: str, table: str, ids: torch.Tensor, hidden: torch.Tensor, *memory: torch.Tensor) -> torch.Tensor:
        stack: Stack = getattr(shape, name)
        x = weights[table][ids] * (math.sqrt(D) if stack.scaled else 1.0) + weights[f"{name}/positions"][: ids.shape[1]]
        for i in range(stack.depth):
            at = f"{name}/{i}"
            x = sublayer(stack, x, f"{at}/self", lambda y, at=at: attend(stack, f"{at}/self", y, y, hidden))
            if memory:
                x = sublayer(stack, x, f"{at}/cross", lambda y, at=at: attend(stack, f"{at}/cross", y, *memory))
            x = sublayer(stack, x, f"{at}/feed", lambda y, at=at: feed(stack, f"{at}/feed", y))
        return norm(x, f"{name}/norm") if stack.final else x

    pads = (source == shape.pad)[:, None, None]
    future = torch.ones(target.shape[1], target.shape[1]).triu(1).bool()
    if shape.hides_target_padding:
        future = future | (target == shape.pad)[:, None, None]
    memory = run("encoder", "source", source, pads)
    return linear(run("decoder", "target", target, future, memory, pads), "head")
