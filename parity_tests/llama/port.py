"""Llama in NNX, as a port of transformers' LlamaForCausalLM: grouped queries, rotary halves, RMSNorm in float32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx


@dataclass(frozen=True)
class Sizes:
    """Those of Llama 3.2 1B."""

    vocab_size: int = 128256
    hidden_size: int = 2048
    intermediate_size: int = 8192
    num_hidden_layers: int = 16
    num_attention_heads: int = 32
    num_key_value_heads: int = 8
    rms_norm_eps: float = 1e-5
    rope_theta: float = 500000.0
    dtype: Any = jnp.bfloat16

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads


def rotary(positions: jax.Array, sizes: Sizes) -> tuple[jax.Array, jax.Array]:
    """Returns cosines and sines [T, H] of positions [T], in the model's dtype."""
    exponents = jnp.arange(0, sizes.head_dim, 2, dtype=jnp.float32) / sizes.head_dim
    angles = positions.astype(jnp.float32)[:, None] / sizes.rope_theta**exponents
    angles = jnp.concatenate([angles, angles], -1)
    return jnp.cos(angles).astype(sizes.dtype), jnp.sin(angles).astype(sizes.dtype)


def rotated(x: jax.Array, cosines: jax.Array, sines: jax.Array) -> jax.Array:
    """Rotates [B, T, N, H]."""
    first, second = jnp.split(x, 2, -1)
    turned = jnp.concatenate([-second, first], -1)
    return x * cosines[:, None] + turned * sines[:, None]


class Norm(nnx.Module):
    def __init__(self, sizes: Sizes) -> None:
        self.scale = nnx.Param(jnp.ones(sizes.hidden_size, sizes.dtype))
        self.epsilon = sizes.rms_norm_eps

    def __call__(self, x: jax.Array) -> jax.Array:
        wide = x.astype(jnp.float32)
        wide = wide * jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + self.epsilon)
        return self.scale[...] * wide.astype(x.dtype)


class Attention(nnx.Module):
    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        width, kv_width = sizes.hidden_size, sizes.num_key_value_heads * sizes.head_dim
        self.query = nnx.Param(jnp.zeros((width, width), sizes.dtype))
        self.key = nnx.Param(jnp.zeros((width, kv_width), sizes.dtype))
        self.value = nnx.Param(jnp.zeros((width, kv_width), sizes.dtype))
        self.out = nnx.Param(jnp.zeros((width, width), sizes.dtype))

    def __call__(self, x: jax.Array, cosines: jax.Array, sines: jax.Array) -> jax.Array:
        batch, length, _ = x.shape
        size, groups = self.sizes.head_dim, self.sizes.num_key_value_heads
        query = rotated((x @ self.query[...]).reshape(batch, length, -1, size), cosines, sines)
        key = rotated((x @ self.key[...]).reshape(batch, length, groups, size), cosines, sines)
        value = (x @ self.value[...]).reshape(batch, length, groups, size)
        query = query.reshape(batch, length, groups, -1, size)
        scores = jnp.einsum("btgrh,bsgh->bgrts", query, key) * size**-0.5
        scores = jnp.where(jnp.tri(length, dtype=bool), scores, jnp.finfo(scores.dtype).min)
        weights = jax.nn.softmax(scores.astype(jnp.float32), -1).astype(x.dtype)
        mixed = jnp.einsum("bgrts,bsgh->btgrh", weights, value)
        return mixed.reshape(batch, length, -1) @ self.out[...]


class Feed(nnx.Module):
    def __init__(self, sizes: Sizes) -> None:
        width, inner = sizes.hidden_size, sizes.intermediate_size
        self.gate = nnx.Param(jnp.zeros((width, inner), sizes.dtype))
        self.up = nnx.Param(jnp.zeros((width, inner), sizes.dtype))
        self.down = nnx.Param(jnp.zeros((inner, width), sizes.dtype))

    def __call__(self, x: jax.Array) -> jax.Array:
        return (jax.nn.silu(x @ self.gate[...]) * (x @ self.up[...])) @ self.down[...]


class Block(nnx.Module):
    def __init__(self, sizes: Sizes) -> None:
        self.attention_norm, self.attention = Norm(sizes), Attention(sizes)
        self.feed_norm, self.feed = Norm(sizes), Feed(sizes)

    def __call__(self, x: jax.Array, cosines: jax.Array, sines: jax.Array) -> jax.Array:
        x = x + self.attention(self.attention_norm(x), cosines, sines)
        return x + self.feed(self.feed_norm(x))


class Embedding(nnx.Module):
    def __init__(self, sizes: Sizes) -> None:
        self.table = nnx.Param(jnp.zeros((sizes.vocab_size, sizes.hidden_size), sizes.dtype))

    def __call__(self, ids: jax.Array) -> jax.Array:
        return self.table[...][ids]


class Llama(nnx.Module):
    def __init__(self, sizes: Sizes) -> None:
        self.sizes, self.words = sizes, Embedding(sizes)
        self.blocks = nnx.List([Block(sizes) for _ in range(sizes.num_hidden_layers)])
        self.norm = Norm(sizes)

    def __call__(self, ids: jax.Array) -> jax.Array:
        x = self.words(ids)
        cosines, sines = rotary(jnp.arange(ids.shape[1]), self.sizes)
        for block in self.blocks:
            x = block(x, cosines, sines)
        return self.norm(x) @ self.words.table[...].T


TENSORS = {
    "attention_norm/scale": "input_layernorm.weight",
    "attention/query": "self_attn.q_proj.weight",
    "attention/key": "self_attn.k_proj.weight",
    "attention/value": "self_attn.v_proj.weight",
    "attention/out": "self_attn.o_proj.weight",
    "feed_norm/scale": "post_attention_layernorm.weight",
    "feed/gate": "mlp.gate_proj.weight",
    "feed/up": "mlp.up_proj.weight",
    "feed/down": "mlp.down_proj.weight",
}
"""Leaves of a block → tensors of a layer."""


def tensor_of(leaf: str) -> tuple[str, bool]:
    """Returns the tensor of a leaf, and whether it is transposed."""
    if leaf == "words/table":
        return "model.embed_tokens.weight", False
    if leaf == "norm/scale":
        return "model.norm.weight", False
    _, number, rest = leaf.split("/", 2)
    return f"model.layers.{number}.{TENSORS[rest]}", not rest.endswith("scale")
