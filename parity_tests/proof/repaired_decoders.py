"""A decoder of two layers in JAX and in PyTorch, faults of it in JAX, and ways to write it otherwise.

Axes: T tokens, D model, F feed-forward, N heads, K heads of keys, H head_dim, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch

from proof.pairs import Pair, in_jax, in_torch

T, D, F, N, K, H, V = 5, 16, 12, 4, 2, 4, 11
IDS = np.array([3, 7, 1, 9, 4])
EPSILON, BASE = 1e-6, 10000.0
OF_LAYER = {
    "norm": (D,), "q": (D, N * H), "k": (D, K * H), "v": (D, K * H), "o": (N * H, D), "q_bias": (N * H,),
    "out_norm": (D,), "gate": (D, F), "up": (D, F), "down": (F, D),
}  # fmt: skip
SHAPES = {
    "embedding": (V, D),
    "norm": (D,),
    "head": (D, V),
    **{f"{layer}.{name}": shape for layer in (0, 1) for name, shape in OF_LAYER.items()},
}


class Written(NamedTuple):
    """How the decoder is written in JAX. The defaults are right."""

    norm: Callable[..., Any] = lambda x, w, layer: rms_norm(x) * w
    layer_weights: Callable[[Any, int], Any] = lambda w, layer: with_other(w, layer)
    heads: Callable[[Any, int], Any] = lambda x, count: x.reshape(T, count, H).transpose(1, 0, 2)  # [N, T, H]
    joined: Callable[[Any], Any] = lambda x: x.transpose(1, 0, 2).reshape(T, N * H)
    repeated: Callable[[Any], Any] = lambda x: jnp.repeat(x, N // K, 0)
    rotated: Callable[[Any], Any] = lambda x: rotary(x)
    scale: float = H**-0.5
    mask: Callable[[], Any] = lambda: np.tril(np.ones((T, T), bool))
    softmax: Callable[[Any], Any] = lambda x: jax.nn.softmax(x, -1)
    activation: Callable[[Any], Any] = jax.nn.silu
    feed_forward: Callable[..., Any] = lambda act, x, w: (act(x @ w["gate"]) * (x @ w["up"])) @ w["down"]
    residual: Callable[[Any, Any, int], Any] = lambda x, y, layer: x + y
    query: Callable[[Any, Any], Any] = lambda x, w: x @ w["q"] + w["q_bias"]
    embedded: Callable[[Any], Any] = lambda w: w["embedding"][IDS]
    last: Callable[[Any, Any], Any] = lambda x, w: x @ w["head"]


def rms_norm(x: Any, epsilon: float = EPSILON) -> Any:
    return x / jnp.sqrt((x * x).mean(-1, keepdims=True) + epsilon)


def layer_norm(x: Any) -> Any:
    return rms_norm(x - x.mean(-1, keepdims=True))


def rotary(x: Any, base: float = BASE, first: int = 0, in_pairs: bool = False) -> Any:
    frequencies = base ** (-np.arange(0, H, 2) / H)
    angles = np.arange(first, first + T)[:, None] * frequencies  # [T, H/2]
    if in_pairs:
        a, b = x[..., 0::2], x[..., 1::2]
        turned = a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)
        return jnp.stack(turned, -1).reshape(x.shape)
    a, b = jnp.split(x, 2, -1)
    return jnp.concatenate([a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)], -1)


def decoder(w: Mapping[str, Any], how: Written) -> Any:
    x = how.embedded(w)
    for layer in (0, 1):
        own = how.layer_weights(w, layer)
        y = how.norm(x, own["norm"], layer)
        q = how.rotated(how.heads(how.query(y, own), N))
        k = how.repeated(how.rotated(how.heads(y @ own["k"], K)))
        v = how.repeated(how.heads(y @ own["v"], K))
        logits = jnp.where(how.mask(), q @ k.swapaxes(1, 2) * how.scale, -1e30)
        x = how.residual(x, how.joined(how.softmax(logits) @ v) @ own["o"], layer)
        x = x + how.feed_forward(how.activation, how.norm(x, own["out_norm"], layer), own)
    return how.last(how.norm(x, w["norm"], 2), w)


def reference(w: Mapping[str, Any]) -> Any:
    def norm(x: Any, weight: Any) -> Any:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPSILON) * weight

    def heads(x: Any, count: int) -> Any:
        return x.view(T, count, H).transpose(0, 1)

    angles = torch.arange(T)[:, None] * torch.tensor(BASE ** (-np.arange(0, H, 2) / H))
    cos, sin = (torch.cat([each, each], -1) for each in (angles.cos(), angles.sin()))

    def rotated(x: Any) -> Any:
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat([-b, a], -1) * sin

    x = w["embedding"][torch.from_numpy(IDS)]
    for layer in (0, 1):
        own = {name: w[f"{layer}.{name}"] for name in OF_LAYER}
        y = norm(x, own["norm"])
        q = rotated(heads(y @ own["q"] + own["q_bias"], N))
        k = rotated(heads(y @ own["k"], K)).repeat_interleave(N // K, 0)
        v = heads(y @ own["v"], K).repeat_interleave(N // K, 0)
        logits = (q @ k.transpose(1, 2)) / H**0.5
        hidden = torch.ones(T, T, dtype=torch.bool).triu(1)
        attended = torch.softmax(logits.masked_fill(hidden, float("-inf")), -1) @ v
        x = x + attended.transpose(0, 1).reshape(T, N * H) @ own["o"]
        z = norm(x, own["out_norm"])
        x = x + (torch.nn.functional.silu(z @ own["gate"]) * (z @ own["up"])) @ own["down"]
    return norm(x, w["norm"]) @ w["head"]


def pair(how: Written) -> Pair:
    return Pair("", SHAPES, in_jax(lambda w: decoder(w, how)), in_torch(reference))


def with_other(w: Any, layer: int, **names: str) -> dict[str, Any]:
    """Returns a layer's weights, some of them by other names in the second layer."""
    own = {name: w[f"{layer}.{name}"] for name in OF_LAYER}
    return own | ({name: w[f"{layer}.{other}"] for name, other in names.items()} if layer else {})


def with_transposed(w: Any, layer: int) -> dict[str, Any]:
    own = {name: w[f"{layer}.{name}"] for name in OF_LAYER}
    return own | ({"q": own["q"].T} if layer else {})


FAULTS: dict[str, tuple[Written, str]] = {
    "another ε": (Written(norm=lambda x, w, layer: rms_norm(x, 1e-5 if layer == 1 else EPSILON) * w), "constant"),
    "no scale": (Written(scale=1.0), "missing"),
    "another scale": (Written(scale=float(D) ** -0.5), "operation"),
    "another norm's weight": (Written(layer_weights=lambda w, layer: with_other(w, layer, norm="out_norm")), "weight"),
    "gate for up": (Written(layer_weights=lambda w, layer: with_other(w, layer, up="gate")), "weight"),
    "a kernel transposed": (Written(layer_weights=with_transposed), "order"),
    "heads in another order": (
        Written(joined=lambda x: x.transpose(1, 2, 0).reshape(N * H, T).reshape(T, N * H)),
        "order",
    ),
    "heads tiled, not repeated": (Written(repeated=lambda x: jnp.concatenate([x] * (N // K), 0)), "order"),
    "no bias of queries": (Written(query=lambda x, w: x @ w["q"]), "missing"),
    "a norm is missing": (
        Written(norm=lambda x, w, layer: x if layer == 2 else rms_norm(x) * w),
        "missing",
    ),
    "a norm is doubled": (
        Written(norm=lambda x, w, layer: rms_norm(rms_norm(x) * w) * w if layer == 2 else rms_norm(x) * w),
        "left out",
    ),
    "another kind of norm": (
        Written(norm=lambda x, w, layer: layer_norm(x) * w if layer == 2 else rms_norm(x) * w),
        "left out",
    ),
    "another activation": (Written(activation=jax.nn.relu), "operation"),
    "no activation": (Written(activation=lambda x: x), "missing"),
    "no residual": (Written(residual=lambda x, y, layer: y if layer == 1 else x + y), "missing"),
    "a residual is subtracted": (Written(residual=lambda x, y, layer: x - y if layer == 1 else x + y), "operation"),
    "another rotary base": (Written(rotated=lambda x: rotary(x, 500.0)), "constant"),
    "a logit is scaled": (Written(last=lambda x, w: 2 * (x @ w["head"])), "left out"),
}
"""Faults → how the decoder is written with it, and the kind of cause."""

EQUAL: dict[str, Written] = {
    "as it is": Written(),
    "another root": Written(norm=lambda x, w, layer: x * w * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + EPSILON)),
    "softmax by hand": Written(softmax=lambda x: jnp.exp(x) / jnp.exp(x).sum(-1, keepdims=True)),
    "gate and up in one product": Written(
        feed_forward=lambda act, x, w: fused(act, x @ jnp.concatenate([w["gate"], w["up"]], -1)) @ w["down"]
    ),
    "another silu": Written(activation=lambda x: x * jax.nn.sigmoid(x)),
    "heads by einsum": Written(joined=lambda x: jnp.einsum("nth->tnh", x).reshape(T, N * H)),
    "repeated by an index": Written(repeated=lambda x: x[np.arange(N) // (N // K)]),
}
"""Ways to write the same decoder."""


def fused(activation: Callable[[Any], Any], both: Any) -> Any:
    gate, up = jnp.split(both, 2, -1)
    return activation(gate) * up
