"""A repair is at the line that is wrong, not at a later one that depends on it, and in all layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from jax_transformer.parity import prove
from jax_transformer.proof.repair import Repair

WIDTH, HEADS, LENGTH = 8, 4, 5
IDS = np.array([[1, 5, 3, 1, 5]])
"""Tokens that occur twice: their values before positions are known are equal."""


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        self.q, self.k, self.v = (torch.nn.Linear(WIDTH, size) for size in (WIDTH, 4, 4))
        self.up, self.down = torch.nn.Linear(WIDTH, 12), torch.nn.Linear(12, WIDTH)
        self.dropout = torch.nn.Dropout(0.1)

    def forward(self, x: Any) -> Any:
        x = x + self.attend(self.first(x))
        hidden = torch.nn.functional.gelu(self.up(self.second(x)))
        return x + self.dropout(self.down(hidden))

    def attend(self, x: Any) -> Any:
        q, k, v = (self.heads(kernel(x)) for kernel in (self.q, self.k, self.v))
        k, v = (each.repeat_interleave(2, dim=1) for each in (self.rotated(k), v))
        logits = (self.rotated(q) @ k.transpose(-1, -2)) * 2**-0.5
        hidden = torch.full((LENGTH, LENGTH), -1e9).triu(1)
        return (torch.softmax(logits + hidden, -1) @ v).transpose(1, 2).reshape(1, LENGTH, WIDTH)

    def heads(self, x: Any) -> Any:
        return x.view(1, LENGTH, -1, 2).transpose(1, 2)

    def rotated(self, x: Any) -> Any:
        angles = torch.arange(LENGTH).float()[:, None].expand(-1, 2)
        return x * angles.cos() + torch.cat([-x[..., 1:], x[..., :1]], -1) * angles.sin()


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.layers = torch.nn.Embedding(11, WIDTH), torch.nn.ModuleList([Layer(), Layer()])
        self.eval()

    def forward(self, input_ids: Any) -> Any:
        x = self.words(input_ids)
        for layer in self.layers:
            x = layer(x)
        return x @ self.words.weight.T


def linear(p: Mapping[str, Any], name: str, x: Any) -> Any:
    return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]


def norm(p: Mapping[str, Any], name: str, x: Any) -> Any:
    y = x - x.mean(-1, keepdims=True)
    return y / jnp.sqrt((y**2).mean(-1, keepdims=True) + 1e-5) * p[f"{name}.weight"] + p[f"{name}.bias"]


def rotated(x: Any) -> Any:
    angles = np.repeat(np.arange(LENGTH, dtype=np.float32)[:, None], 2, 1)[:, None]
    return x * jnp.cos(angles) + jnp.concatenate([-x[..., 1:], x[..., :1]], -1) * jnp.sin(angles)


def ported(fault: str, params: Any, inputs: Any) -> Any:
    """Computes what `Model` does, but for one fault."""
    x = params["words.weight"][inputs["input_ids"]]
    for number in range(2):
        prefix = f"layers.{number}."
        p = {name.removeprefix(prefix): each for name, each in params.items() if name.startswith(prefix)}
        x = x + attended(fault, p, norm(p, "first", x))
        if fault == "norm":
            x_ = norm(p, "first", x)  # wrong: norm
        else:
            x_ = norm(p, "second", x)
        hidden = linear(p, "up", x_)
        if fault == "activation":
            hidden = jax.nn.gelu(hidden)  # wrong: activation
        else:
            hidden = jax.nn.gelu(hidden, approximate=False)
        x = x + linear(p, "down", hidden)
    return x @ params["words.weight"].T


def attended(fault: str, p: Any, x: Any) -> Any:
    if fault == "kernel":
        k = linear(p, "v", x)  # wrong: kernel
    else:
        k = linear(p, "k", x)
    q, k, v = (each.reshape(1, LENGTH, -1, 2) for each in (linear(p, "q", x), k, linear(p, "v", x)))
    q = rotated(q)
    if fault == "positions":
        angles = np.arange(LENGTH, dtype=np.float32)[:, None, None]
        turned = jnp.concatenate([k[..., 1:], -k[..., :1]], -1)  # wrong: positions
        k = k * jnp.cos(angles) + turned * jnp.sin(angles)
    else:
        k = rotated(k)
    if fault == "tile":
        k = jnp.tile(k, (1, 1, 2, 1))  # wrong: tile
    else:
        k = jnp.repeat(k, 2, 2)
    v = jnp.repeat(v, 2, 2)
    logits = jnp.einsum("bqhd,bkhd->bhqk", q / jnp.sqrt(2.0), k)
    if fault == "mask":
        hidden = jnp.where(jnp.arange(LENGTH) > jnp.arange(LENGTH)[:, None] + 1, -1e9, 0)  # wrong: mask
    else:
        hidden = jnp.where(jnp.arange(LENGTH) > jnp.arange(LENGTH)[:, None], -1e9, 0)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(logits + hidden), v).reshape(1, LENGTH, WIDTH)


def repair(program: Callable[[Any, Any], Any]) -> Repair | None:
    weights = {name: np.ones(tensor.shape, np.float32) for name, tensor in Model().state_dict().items()}
    return prove(program, Model(), inputs={"input_ids": IDS}, weights=weights, stages=["forward"]).repair


def line(fault: str) -> str:
    """Returns the line of a fault."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return f"{__file__}:{next(number for number, text in enumerate(lines, 1) if text.endswith(f'# wrong: {fault}'))}"


def test_a_program_without_a_fault_is_proven() -> None:
    weights = {name: np.ones(tensor.shape, np.float32) for name, tensor in Model().state_dict().items()}
    right = partial(ported, "")
    assert prove(right, Model(), inputs={"input_ids": IDS}, weights=weights, stages=["forward"]).verdict == "proven"


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("norm", "weight"), ("kernel", "weight"), ("activation", "operation"), ("tile", "order"), ("mask", "constant"),
        ("positions", "operation"),
    ],
)  # fmt: skip
def test_a_repair_is_at_the_wrong_line_of_all_layers(fault: str, kind: str) -> None:
    found = repair(partial(ported, fault))
    assert found is not None
    assert {cause.kind for cause in found.causes} == {kind}, str(found)
    assert {cause.candidate for cause in found.causes} == {line(fault)}, str(found)
