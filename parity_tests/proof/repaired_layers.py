"""Layers of attention in JAX, and faults whose place is a matter of the lines around them.

Axes: B batch, T tokens, D model, L layers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from proof.pairs import Pair, in_jax

B, T, D = 2, 3, 4
IDS = np.array([[3, 1, 4], [2, 5, 0]])
OF_LAYER = {
    "norm.scale": (D,), "norm.bias": (D,), "out_norm.scale": (D,), "out_norm.bias": (D,),
    **{f"{name}.kernel": (D, D) for name in ("query", "key", "value", "inner", "outer")},
    **{f"{name}.bias": (D,) for name in ("query", "key", "value", "inner", "outer")},
}  # fmt: skip


class Written(NamedTuple):
    """How the layers are written. The defaults are right."""

    positions: Callable[[Any], Any] = lambda table: table[:T]
    keys: Callable[[int], str] = lambda number: "key"
    """Layer → the projection that makes keys."""
    norm: bool = True
    residual: bool = True
    out_norm: bool = True


def layers(w: Mapping[str, Any], how: Written, count: int) -> Any:
    x = w["tokens"][IDS]
    if "positions" in w:
        x = x + how.positions(w["positions"])
    for number in range(count):
        with jax.named_scope(f"layers.{number}"):
            own = {name: w[f"{number}.{name}"] for name in OF_LAYER}
            x = layer(x, own, how, number)
    return x


def layer(x: Any, w: Mapping[str, Any], how: Written, number: int) -> Any:
    """Applies a layer: the first norm is before its sublayer, the second behind."""
    y = layer_norm(x, w, "norm") if how.norm else x  # norm
    a = attention(y, w, how.keys(number))  # attention
    x = x + a if how.residual else a  # residual
    x = layer_norm(x, w, "out_norm") if how.out_norm else x  # out_norm
    return x + feed_forward(x, w)  # feed forward


def attention(x: Any, w: Mapping[str, Any], keys: str) -> Any:
    with jax.named_scope("attention"):
        q = linear(x, w, "query")
        k = linear(x, w, keys)  # keys
        v = linear(x, w, "value")
        return jax.nn.softmax(q @ k.swapaxes(-1, -2), -1) @ v


def feed_forward(x: Any, w: Mapping[str, Any]) -> Any:
    with jax.named_scope("feed_forward"):
        return linear(jnp.tanh(linear(x, w, "inner")), w, "outer")


def linear(x: Any, w: Mapping[str, Any], name: str) -> Any:
    with jax.named_scope(name):
        return x @ w[f"{name}.kernel"] + w[f"{name}.bias"]


def layer_norm(x: Any, w: Mapping[str, Any], name: str) -> Any:
    with jax.named_scope(name):
        x = x - x.mean(-1, keepdims=True)
        x = x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6)
        return x * w[f"{name}.scale"] + w[f"{name}.bias"]


def one_more(table: Any) -> Any:
    """Returns positions that begin at one more, for each row of a batch."""
    return table[np.arange(1, T + 1)[None].repeat(B, 0)]  # one more


def line(comment: str, file: str = __file__) -> str:
    """Returns the place of the line of a file that ends with a comment."""
    lines = Path(file).read_text(encoding="utf-8").splitlines()
    return f"{file}:{1 + next(number for number, text in enumerate(lines) if text.endswith(f'  # {comment}'))}"


def pair(how: Written, count: int = 1, has_positions: bool = True) -> Pair:
    shapes = {
        "tokens": (6, D),
        **({"positions": (T + 2, D)} if has_positions else {}),
        **{f"{number}.{name}": shape for number in range(count) for name, shape in OF_LAYER.items()},
    }
    return Pair("", shapes, in_jax(lambda w: layers(w, how, count)), in_jax(lambda w: layers(w, Written(), count)))
