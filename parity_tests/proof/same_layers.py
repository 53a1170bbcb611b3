"""Pairs of ways to write layers, positions and whole stacks that are the same function."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import nn
from torch.nn import functional

from proof.pairs import Pair, Shapes, Weights, gradients_in_jax, gradients_in_torch, in_jax, in_torch

B, T, D, F, N, V, L = 2, 3, 4, 5, 2, 7, 2
H = D // N
EPS = 1e-5
SEEN = np.array([[1, 1, 1], [1, 1, 0]], bool)
IDS = np.array([[1, 4, 6], [3, 5, 2]])

# --- PyTorch's own layers, and by hand


def names_of(make: Any) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in make().named_parameters()}


def module(make: Any, *args: Any, **options: Any) -> Any:
    """Runs a module on x with the weights that bear its names."""
    held = make().double().eval()

    def function(w: Weights) -> torch.Tensor:
        given = {name: w[name] for name, _ in held.named_parameters()}
        found = torch.func.functional_call(held, given, (w["x"], *(w.get(a, a) for a in args)), options)
        return found[0] if isinstance(found, tuple) else found

    return in_torch(function)


def attention(w: Weights, x: jax.Array, y: jax.Array, mask: Any, prefix: str = "") -> jax.Array:
    """Computes nn.MultiheadAttention: one kernel holds [q; k; v], with adjacent heads."""
    kernel, bias = w[f"{prefix}in_proj_weight"], w[f"{prefix}in_proj_bias"]
    heads = []
    for place, source in enumerate((x, y, y)):
        rows = slice(place * D, (place + 1) * D)
        heads.append((source @ kernel[rows].T + bias[rows]).reshape(*source.shape[:2], N, H))
    logits = jnp.einsum("bqnh,bknh->bnqk", heads[0], heads[1]) / math.sqrt(H)
    weights = jax.nn.softmax(jnp.where(mask, logits, -1e9), axis=-1)
    context = jnp.einsum("bnqk,bknh->bqnh", weights, heads[2]).reshape(x.shape)
    return context @ w[f"{prefix}out_proj.weight"].T + w[f"{prefix}out_proj.bias"]


def norm(w: Weights, x: jax.Array, name: str) -> jax.Array:
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / jnp.sqrt((centred**2).mean(axis=-1, keepdims=True) + EPS) * w[f"{name}.weight"] + w[f"{name}.bias"]


def feed_forward(w: Weights, x: jax.Array, activation: Any) -> jax.Array:
    hidden = activation(x @ w["linear1.weight"].T + w["linear1.bias"])
    return hidden @ w["linear2.weight"].T + w["linear2.bias"]


def post_norm_layer(w: Weights) -> jax.Array:
    x = w["x"]
    x = norm(w, x + attention(w, x, x, SEEN[:, None, None, :], "self_attn."), "norm1")
    return norm(w, x + feed_forward(w, x, jax.nn.relu), "norm2")


def pre_norm_layer(w: Weights) -> jax.Array:
    x, h = w["x"], norm(w, w["x"], "norm1")
    x = x + attention(w, h, h, SEEN[:, None, None, :], "self_attn.")
    return x + feed_forward(w, norm(w, x, "norm2"), lambda y: jax.nn.gelu(y, approximate=False))


def decoder_layer(w: Weights) -> jax.Array:
    x, y, causal = w["x"], w["memory"], np.tril(np.ones((T, T), bool))
    x = norm(w, x + attention(w, x, x, causal, "self_attn."), "norm1")
    x = norm(w, x + attention(w, x, y, SEEN[:, None, None, :], "multihead_attn."), "norm2")
    return norm(w, x + feed_forward(w, x, jax.nn.relu), "norm3")


def make_attention() -> nn.Module:
    return nn.MultiheadAttention(D, N, batch_first=True)


def make_post_norm() -> nn.Module:
    return nn.TransformerEncoderLayer(D, N, F, 0.0, batch_first=True)


def make_pre_norm() -> nn.Module:
    return nn.TransformerEncoderLayer(D, N, F, 0.1, "gelu", norm_first=True, batch_first=True)


def make_decoder() -> nn.Module:
    return nn.TransformerDecoderLayer(D, N, F, 0.0, batch_first=True)


# --- stacks


def sublayer(x: jax.Array, kernel: jax.Array, back: jax.Array) -> jax.Array:
    return x + jax.nn.relu(x @ kernel) @ back


def scanned(w: Weights) -> jax.Array:
    return jax.lax.scan(lambda x, layer: (sublayer(x, *layer), None), w["x"], (w["kernel"], w["back"]))[0]


def scanned_and_recomputed(w: Weights) -> jax.Array:
    def body(x: jax.Array, layer: Any) -> tuple[jax.Array, None]:
        return jax.checkpoint(sublayer)(x, *layer), None

    return jax.lax.scan(body, w["x"], (w["kernel"], w["back"]))[0]


def looped(w: Weights) -> jax.Array:
    return jax.lax.fori_loop(0, L, lambda i, x: sublayer(x, w["kernel"][i], w["back"][i]), w["x"])


def unrolled(w: Weights) -> torch.Tensor:
    x = w["x"]
    for kernel, back in zip(w["kernel"], w["back"], strict=True):
        x = x + functional.relu(x @ kernel) @ back
    return x


def summed(function: Any) -> Any:
    return lambda w: (function(w) ** 2).sum()


# --- embeddings and positions


def looked_up(w: Weights) -> torch.Tensor:
    return functional.embedding(torch.from_numpy(IDS), w["table"], padding_idx=2) * math.sqrt(D)


def by_one_hot(w: Weights) -> jax.Array:
    return (jax.nn.one_hot(IDS, V) @ w["table"]) * D**0.5


def beyond_the_table(w: Weights) -> jax.Array:
    """Ids that the table doesn't have are read as zeros."""
    return jnp.take(w["table"], IDS + 2, axis=0, mode="fill", fill_value=0)


def beyond_the_table_by_hand(w: Weights) -> torch.Tensor:
    longer = torch.cat([w["table"], torch.zeros(2, D, dtype=torch.float64)])
    return longer[torch.from_numpy(IDS + 2)]


def positions_by_slice(w: Weights) -> jax.Array:
    """Source and target share a table of positions."""
    return w["x"] + w["positions"][:T] + (w["y"] + w["positions"][:T]).sum(axis=0)


def positions_by_lookup(w: Weights) -> torch.Tensor:
    rows = functional.embedding(torch.arange(T).expand(B, T), w["positions"])
    return w["x"] + rows + (w["y"] + rows).sum(0)


def sinusoids_in_jax(w: Weights) -> jax.Array:
    angles = jnp.arange(T)[:, None] * jnp.exp(-math.log(10000.0) * jnp.arange(0, D, 2) / D)
    return w["x"] + jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1).reshape(T, D)


def sinusoids_in_torch(w: Weights) -> torch.Tensor:
    table = torch.zeros(T, D, dtype=torch.float64)
    angles = torch.arange(T)[:, None] * torch.exp(torch.arange(0, D, 2) * -math.log(10000.0) / D)
    table[:, 0::2], table[:, 1::2] = torch.sin(angles), torch.cos(angles)
    return w["x"] + table


def buckets() -> np.ndarray:
    distance = np.arange(T)[None] - np.arange(T)[:, None]
    return np.clip(distance, -1, 1) + 1  # [Q, K]


def bias_by_gather(w: Weights) -> torch.Tensor:
    bias = functional.embedding(torch.from_numpy(buckets()), w["biases"]).permute(2, 0, 1)
    return torch.softmax(w["logits"] + bias, dim=-1)


def bias_by_one_hot(w: Weights) -> jax.Array:
    bias = jnp.einsum("qkz,zn->nqk", jax.nn.one_hot(buckets(), 3), w["biases"])
    return jax.nn.softmax(w["logits"] + bias[None], axis=-1)


ANGLES = np.linspace(0.0, 1.0, T)[:, None] / 7.0 ** np.arange(2)  # [T, H/2]
COS, SIN = np.cos(ANGLES), np.sin(ANGLES)


def rotated_by_halves(w: Weights) -> torch.Tensor:
    """[x₁, x₂] cos + [−x₂, x₁] sin."""
    first, second = w["x"].chunk(2, dim=-1)
    cos, sin = (torch.from_numpy(np.concatenate([table, table], -1)) for table in (COS, SIN))
    return w["x"] * cos + torch.cat([-second, first], dim=-1) * sin


def rotated_by_matrices(w: Weights) -> jax.Array:
    turns = jnp.array([[COS, -SIN], [SIN, COS]])  # [2, 2, T, H/2]
    pairs = w["x"].reshape(B, T, 2, 2)
    return jnp.einsum("ijth,btjh->btih", turns, pairs).reshape(B, T, 4)


# --- the head, decoding, adapters


def tied_head(w: Weights) -> torch.Tensor:
    return functional.linear(w["x"], w["table"]) * D**-0.5


def attended_head(w: Weights) -> jax.Array:
    return jnp.einsum("btd,vd->btv", w["x"] / math.sqrt(D), w["table"])


def merged_adapter(w: Weights) -> torch.Tensor:
    return w["x"] @ (w["kernel"] + 0.5 * w["down"] @ w["up"])


def adapter_apart(w: Weights) -> jax.Array:
    return w["x"] @ w["kernel"] + (w["x"] @ w["down"]) @ w["up"] / 2


def shifted_by_roll(w: Weights) -> torch.Tensor:
    rolled = w["x"].roll(1, dims=1)
    rolled[:, 0] = w["start"]
    return rolled


def shifted_by_concatenation(w: Weights) -> jax.Array:
    return jnp.concatenate([jnp.broadcast_to(w["start"], (B, 1, D)), w["x"][:, :-1]], axis=1)


def pooled_by_mask(w: Weights) -> torch.Tensor:
    mask = torch.from_numpy(SEEN)[..., None]
    return (w["x"] * mask).sum(1) / mask.sum(1)


def pooled_by_product(w: Weights) -> jax.Array:
    return jnp.einsum("bt,btd->bd", SEEN / SEEN.sum(axis=1, keepdims=True), w["x"])


def reordered_by_gather(w: Weights) -> torch.Tensor:
    """Beams take the caches of their parents."""
    return w["x"].index_select(0, torch.tensor([1, 1]))


def reordered_by_one_hot(w: Weights) -> jax.Array:
    return jnp.einsum("pb,btd->ptd", jax.nn.one_hot(jnp.array([1, 1]), B), w["x"])


def deterministic(w: Weights) -> torch.Tensor:
    return functional.dropout(w["x"], 0.3, training=False) + functional.dropout(w["x"], 0.0, training=True)


def doubled(w: Weights) -> jax.Array:
    return 2 * w["x"]


def experts_one_by_one(w: Weights) -> torch.Tensor:
    gates = torch.softmax(w["x"] @ w["router"], dim=-1)
    return sum(gates[..., i, None] * (w["x"] @ w["experts"][i]) for i in range(L))


def experts_at_once(w: Weights) -> jax.Array:
    gates = jax.nn.softmax(jnp.einsum("btd,de->bte", w["x"], w["router"]), axis=-1)
    return jnp.einsum("bte,btd,edf->btf", gates, w["x"], w["experts"])


X: Shapes = {"x": (B, T, D)}
STACK = {"x": (B, T, D), "kernel": (L, D, F), "back": (L, F, D)}
PADS = torch.from_numpy(~SEEN)
GRADIENTS = (in_jax(gradients_in_jax(summed(scanned))), in_torch(gradients_in_torch(summed(unrolled))))

PAIRS = (
    Pair(
        "nn.MultiheadAttention, and by hand",
        {**X, **names_of(make_attention)},
        in_jax(lambda w: attention(w, w["x"], w["x"], SEEN[:, None, None, :])),
        module(make_attention, "x", "x", key_padding_mask=PADS, need_weights=False),
    ),
    Pair(
        "nn.TransformerEncoderLayer with post-norm and ReLU, and by hand",
        {**X, **names_of(make_post_norm)},
        in_jax(post_norm_layer),
        module(make_post_norm, src_key_padding_mask=PADS),
    ),
    Pair(
        "nn.TransformerEncoderLayer with pre-norm and GELU, and by hand",
        {**X, **names_of(make_pre_norm)},
        in_jax(pre_norm_layer),
        module(make_pre_norm, src_key_padding_mask=PADS),
    ),
    Pair(
        "nn.TransformerDecoderLayer, and by hand",
        {**X, "memory": (B, T, D), **names_of(make_decoder)},
        in_jax(decoder_layer),
        module(
            make_decoder,
            "memory",
            tgt_mask=torch.ones(T, T, dtype=torch.bool).triu(1),
            memory_key_padding_mask=PADS,
        ),
    ),
    Pair("scan, and unrolled layers", STACK, in_jax(scanned), in_torch(unrolled)),
    Pair("gradients through scan, and through unrolled layers", STACK, *GRADIENTS),
    Pair("fori_loop, and scan", STACK, in_jax(looped), in_jax(scanned)),
    Pair(
        "gradients with layers recomputed, and kept",
        STACK,
        in_jax(gradients_in_jax(summed(scanned_and_recomputed))),
        GRADIENTS[0],
    ),
    Pair("an embedding by one-hot ids", {"table": (V, D)}, in_jax(by_one_hot), in_torch(looked_up)),
    Pair("ids beyond a table", {"table": (V, D)}, in_jax(beyond_the_table), in_torch(beyond_the_table_by_hand)),
    Pair(
        "shared positions by slice, and by lookup",
        {**X, "y": (B, T, D), "positions": (V, D)},
        in_jax(positions_by_slice),
        in_torch(positions_by_lookup),
    ),
    Pair("sinusoids stacked, and written in place", X, in_jax(sinusoids_in_jax), in_torch(sinusoids_in_torch)),
    Pair(
        "a relative bias by lookup, and by one-hot buckets",
        {"logits": (B, N, T, T), "biases": (3, N)},
        in_jax(bias_by_one_hot),
        in_torch(bias_by_gather),
    ),
    Pair("rotary positions by halves, and by matrices", X, in_jax(rotated_by_matrices), in_torch(rotated_by_halves)),
    Pair("a tied head", {**X, "table": (V, D)}, in_jax(attended_head), in_torch(tied_head)),
    Pair(
        "an adapter merged, and apart",
        {**X, "kernel": (D, F), "down": (D, 1), "up": (1, F)},
        in_jax(adapter_apart),
        in_torch(merged_adapter),
    ),
    Pair(
        "targets shifted by roll, and by concatenation",
        {**X, "start": (D,)},
        in_jax(shifted_by_concatenation),
        in_torch(shifted_by_roll),
    ),
    Pair("a mean over tokens that aren't pads", X, in_jax(pooled_by_product), in_torch(pooled_by_mask)),
    Pair(
        "beams reordered by lookup, and by one-hot parents",
        X,
        in_jax(reordered_by_one_hot),
        in_torch(reordered_by_gather),
    ),
    Pair("dropout that is off", X, in_jax(doubled), in_torch(deterministic)),
    Pair(
        "a mixture of experts one by one, and at once",
        {**X, "router": (D, L), "experts": (L, D, F)},
        in_jax(experts_at_once),
        in_torch(experts_one_by_one),
    ),
)
