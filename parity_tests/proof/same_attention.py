"""Pairs of ways to write attention that are the same function."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch.nn import functional

from proof.pairs import Pair, Side, Weights, in_jax, in_torch

B, Q, K, N, H, D = 2, 3, 5, 2, 4, 7
HEADS = {"query": (B, Q, N, H), "key": (B, K, N, H), "value": (B, K, N, H)}
SEEN = np.array([[1, 1, 1, 1, 1], [1, 1, 0, 1, 0]], bool)[:, None, None, :]  # [B, 1, 1, K]
SCALE = 1 / math.sqrt(H)


def logits_of(w: Weights) -> jax.Array:
    return jnp.einsum("bqnh,bknh->bnqk", w["query"], w["key"]) / math.sqrt(H)


def attend(w: Weights, logits: jax.Array) -> jax.Array:
    return jnp.einsum("bnqk,bknh->bqnh", jax.nn.softmax(logits, axis=-1), w["value"])


def plain(w: Weights) -> jax.Array:
    return attend(w, logits_of(w))


def in_matrices(w: Weights) -> torch.Tensor:
    """Products of matrices by head, as most tutorials have it."""
    query, key, value = (w[name].transpose(1, 2) for name in HEADS)
    weights = torch.softmax(query @ key.transpose(-2, -1) / math.sqrt(H), dim=-1)
    return (weights @ value).transpose(1, 2)


# --- orders of sums, and scales


def scaled_queries(w: Weights) -> jax.Array:
    return attend(w, jnp.einsum("bknh,bqnh->bnqk", w["key"], w["query"] * SCALE))


def scaled_both(w: Weights) -> torch.Tensor:
    root = math.sqrt(math.sqrt(H))
    logits = torch.einsum("bqnh,bknh->bnqk", w["query"] / root, w["key"] / root)
    return torch.einsum("bnqk,bknh->bqnh", logits.softmax(-1), w["value"])


def merged_then_projected(w: Weights) -> torch.Tensor:
    context = torch.einsum("bnqk,bknh->bqnh", torch.softmax(_torch_logits(w), -1), w["value"])
    return context.reshape(B, Q, N * H) @ w["output"].reshape(N * H, D)


def projected_by_head(w: Weights) -> jax.Array:
    values = jnp.einsum("bknh,nhd->bknd", w["value"], w["output"])
    return jnp.einsum("bnqk,bknd->bqd", jax.nn.softmax(logits_of(w), axis=-1), values)


def _torch_logits(w: Weights) -> torch.Tensor:
    return torch.einsum("bqnh,bknh->bnqk", w["query"], w["key"]) / math.sqrt(H)


def kernels_merged(w: Weights) -> jax.Array:
    """x Wq (y Wk)ᵀ with Wq Wkᵀ multiplied first."""
    kernel = jnp.einsum("dnh,enh->nde", w["query_kernel"], w["key_kernel"])
    return jax.nn.softmax(jnp.einsum("bqd,nde,bke->bnqk", w["x"], kernel, w["y"]), axis=-1)


def kernels_apart(w: Weights) -> torch.Tensor:
    query = torch.einsum("bqd,dnh->bqnh", w["x"], w["query_kernel"])
    key = torch.einsum("bkd,dnh->bknh", w["y"], w["key_kernel"])
    return torch.einsum("bqnh,bknh->bnqk", query, key).softmax(-1)


# --- projections and heads


def fused_projection(w: Weights) -> dict[str, jax.Array]:
    whole = w["x"] @ w["kernel"] + w["bias"]  # [B, K, 3 N H]
    parts = jnp.split(whole, 3, axis=-1)
    return {name: part.reshape(B, K, N, H) for name, part in zip(HEADS, parts, strict=True)}


def three_projections(w: Weights) -> dict[str, torch.Tensor]:
    found = {}
    for place, name in enumerate(HEADS):
        rows = slice(place * N * H, (place + 1) * N * H)
        projected = functional.linear(w["x"], w["kernel"].T[rows], w["bias"][rows])
        found[name] = projected.view(B, K, N, H)
    return found


def heads_by_chunks(w: Weights) -> torch.Tensor:
    chunks = (w["x"] @ w["kernel"]).chunk(N, dim=-1)
    return torch.stack(chunks, dim=1)  # [B, N, K, H]


def heads_by_einsum(w: Weights) -> jax.Array:
    return jnp.einsum("btd,dnh->bnth", w["x"], w["kernel"].reshape(D, N, H))


def heads_by_reshape(w: Weights) -> jax.Array:
    return (w["x"] @ w["kernel"]).reshape(B, K, N, H).transpose(0, 2, 1, 3)


# --- masks


def filled_in_jax(fill: float) -> Any:
    return in_jax(lambda w: attend(w, jnp.where(SEEN, logits_of(w), fill)))


def filled_in_torch(fill: float) -> Any:
    hidden = torch.from_numpy(~SEEN)

    def function(w: Weights) -> torch.Tensor:
        weights = _torch_logits(w).masked_fill(hidden, fill).softmax(-1)
        return torch.einsum("bnqk,bknh->bqnh", weights, w["value"])

    return in_torch(function)


def added(w: Weights) -> jax.Array:
    return attend(w, logits_of(w) + jnp.where(SEEN, 0.0, -1e9))


def added_as_float(w: Weights) -> torch.Tensor:
    mask = torch.from_numpy(SEEN).double()
    weights = (_torch_logits(w) + (1.0 - mask) * -10000.0).softmax(-1)
    return torch.einsum("bnqk,bknh->bqnh", weights, w["value"])


def entries_left_out(w: Weights) -> jax.Array:
    """The second sentence alone, without the keys that it doesn't see."""
    seen = np.flatnonzero(SEEN[1])
    return plain({"query": w["query"][1:], "key": w["key"][1:, seen], "value": w["value"][1:, seen]})


def second_sentence(w: Weights) -> jax.Array:
    return attend(w, jnp.where(SEEN, logits_of(w), -jnp.inf))[1:]


def exponentials_masked(w: Weights) -> jax.Array:
    """Multiplies exponentials by the mask, and divides by what is left."""
    exp = jnp.exp(logits_of(w)) * SEEN
    return jnp.einsum("bnqk,bknh->bqnh", exp / exp.sum(axis=-1, keepdims=True), w["value"])


# --- libraries


def dot_product_attention(w: Weights) -> jax.Array:
    return jax.nn.dot_product_attention(w["query"], w["key"], w["value"], mask=SEEN)


def dot_product_attention_with_bias(w: Weights) -> jax.Array:
    return jax.nn.dot_product_attention(w["query"], w["key"], w["value"], w["bias"], SEEN)


def scaled_dot_product_attention(w: Weights) -> torch.Tensor:
    heads = (w[name].transpose(1, 2) for name in HEADS)
    found = functional.scaled_dot_product_attention(*heads, attn_mask=torch.from_numpy(SEEN))
    return found.transpose(1, 2)


def scaled_dot_product_attention_with_bias(w: Weights) -> torch.Tensor:
    heads = (w[name].transpose(1, 2) for name in HEADS)
    bias = w["bias"].masked_fill(torch.from_numpy(~SEEN), -torch.inf)
    return functional.scaled_dot_product_attention(*heads, attn_mask=bias).transpose(1, 2)


def with_a_row_of_zeros(w: Weights) -> torch.Tensor:
    """PyTorch gives zeros to a query that sees nothing."""
    heads = (w[name].transpose(1, 2) for name in HEADS)
    mask = torch.from_numpy(SEEN & np.arange(Q)[:, None].astype(bool))
    return functional.scaled_dot_product_attention(*heads, attn_mask=mask).transpose(1, 2)


def with_a_row_of_zeros_by_hand(w: Weights) -> jax.Array:
    return attend(w, jnp.where(SEEN, logits_of(w), -1e9)) * (np.arange(Q) > 0)[:, None, None]


def causal_by_flag(w: Weights) -> torch.Tensor:
    return functional.scaled_dot_product_attention(w["query"], w["key"], w["value"], is_causal=True)


def causal_by_hand(w: Weights) -> torch.Tensor:
    logits = w["query"] @ w["key"].mT / math.sqrt(H) + torch.full((K, K), -torch.inf).triu(1)
    return torch.softmax(logits, dim=-1) @ w["value"]


def own_reference_path(w: Weights) -> jax.Array:
    from jax_transformer.config.model import TransformerConfig
    from jax_transformer.model.attention import Computation, Heads, attend
    from jax_transformer.model.scope import Scope
    from jax_transformer.model.terms import AttentionTerms

    config = TransformerConfig(
        source_vocab_size=11, target_vocab_size=13, d_model=N * H, num_heads=N, d_ff=6, attention_path="reference"
    )
    how = Computation.of(config, config.encoder, config.encoder.self_attention)
    return attend(how, Heads(**w), AttentionTerms(jnp.asarray(SEEN)), Scope())


# --- longer ways


def steps_with_a_cache(w: Weights) -> jax.Array:
    """Decodes by position: keys and values are written to buffers of a fixed length."""
    keys = values = jnp.zeros((B, K, H))
    outputs = []
    for step in range(K):
        query, key, value = (w["x"][:, step : step + 1] @ w[name] for name in ("query", "key", "value"))
        keys = jax.lax.dynamic_update_slice(keys, key, (0, step, 0))
        values = jax.lax.dynamic_update_slice(values, value, (0, step, 0))
        logits = jnp.einsum("bqh,bkh->bqk", query, keys) * SCALE
        logits = jnp.where(jnp.arange(K) <= step, logits, jnp.finfo(logits.dtype).min)
        outputs.append(jax.nn.softmax(logits, axis=-1) @ values)
    return jnp.concatenate(outputs, axis=1)


def all_steps_at_once(w: Weights) -> torch.Tensor:
    query, key, value = (w["x"] @ w[name] for name in ("query", "key", "value"))
    return functional.scaled_dot_product_attention(query, key, value, is_causal=True)


# --- a block of keys at a time


def block_by_block(seen: np.ndarray | None) -> Side:
    """Rescales the sums of earlier blocks by exp(old maximum − new maximum) (Milakov and Gimelshein, 2018)."""

    def compute(w: Weights) -> torch.Tensor:
        logits, value = _torch_logits(w), w["value"].transpose(1, 2)
        logits = logits if seen is None else logits.masked_fill(~torch.tensor(seen), -1e9)
        largest = torch.full((B, N, Q, 1), -math.inf, dtype=logits.dtype)
        total, context = torch.zeros_like(largest), torch.zeros((B, N, Q, H), dtype=logits.dtype)
        for block in (slice(0, 2), slice(2, 4), slice(4, 5)):
            new = torch.maximum(largest, logits[..., block].amax(-1, keepdim=True))
            weights, rescaled = torch.exp(logits[..., block] - new), torch.exp(largest - new)
            total = total * rescaled + weights.sum(-1, keepdim=True)
            context = context * rescaled + weights @ value[:, :, block]
            largest = new
        return (context / total).transpose(1, 2)

    return in_torch(compute)


def blocks_merged(w: Weights) -> torch.Tensor:
    """Computes two blocks apart, and weighs their contexts by exp(logsumexp of the block − logsumexp of both)."""
    logits, value = _torch_logits(w), w["value"].transpose(1, 2)
    blocks = (slice(0, 2), slice(2, 5))
    contexts = [torch.softmax(logits[..., block], -1) @ value[:, :, block] for block in blocks]
    of_blocks = torch.stack([torch.logsumexp(logits[..., block], -1, keepdim=True) for block in blocks])
    weights = torch.exp(of_blocks - torch.logsumexp(of_blocks, 0))
    return sum(weight * context for weight, context in zip(weights, contexts, strict=True)).transpose(1, 2)


def padded_bucket(w: Weights) -> jax.Array:
    """Three more keys, which are pads."""
    key, value = (jnp.pad(w[name], ((0, 0), (0, 3), (0, 0), (0, 0)), constant_values=0.7) for name in ("key", "value"))
    seen = np.pad(SEEN, ((0, 0), (0, 0), (0, 0), (0, 3)))
    longer = {"query": w["query"], "key": key, "value": value}
    return attend(longer, jnp.where(seen, logits_of(longer), -1e9))


def grouped_by_einsum(w: Weights) -> jax.Array:
    """Two heads of queries share one of keys."""
    query = w["query"].reshape(B, Q, N, 2, H)
    weights = jax.nn.softmax(jnp.einsum("bqngh,bknh->bngqk", query, w["key"]), axis=-1)
    return jnp.einsum("bngqk,bknh->bqngh", weights, w["value"]).reshape(B, Q, 2 * N, H)


def grouped_by_repetition(w: Weights) -> torch.Tensor:
    key, value = (w[name].repeat_interleave(2, dim=2) for name in ("key", "value"))
    weights = torch.einsum("bqnh,bknh->bnqk", w["query"], key).softmax(-1)
    return torch.einsum("bnqk,bknh->bqnh", weights, value)


GROUPED = {**HEADS, "query": (B, Q, 2 * N, H)}
SELF = dict.fromkeys(HEADS, (B, K, H))
PROJECTED = {"x": (B, K, D), "query": (D, H), "key": (D, H), "value": (D, H)}
MERGED = {"x": (B, Q, D), "y": (B, K, D), "query_kernel": (D, N, H), "key_kernel": (D, N, H)}
FUSED = {"x": (B, K, D), "kernel": (D, 3 * N * H), "bias": (3 * N * H,)}
SPLIT = {"x": (B, K, D), "kernel": (D, N * H)}
BIASED = {**HEADS, "bias": (1, N, Q, K)}

PAIRS = (
    Pair("einsums, and products of matrices by head", HEADS, in_jax(plain), in_torch(in_matrices)),
    Pair(
        "queries scaled before the product, and logits after it", HEADS, in_jax(scaled_queries), in_torch(in_matrices)
    ),
    Pair("queries and keys scaled by H^(-1/4) each", HEADS, in_jax(plain), in_torch(scaled_both)),
    Pair(
        "heads merged and projected, and projected values summed over heads",
        {**HEADS, "output": (N, H, D)},
        in_jax(projected_by_head),
        in_torch(merged_then_projected),
    ),
    Pair("the kernels of queries and keys multiplied first", MERGED, in_jax(kernels_merged), in_torch(kernels_apart)),
    Pair("one fused projection, and three", FUSED, in_jax(fused_projection), in_torch(three_projections)),
    Pair("heads by chunks, and by einsum", SPLIT, in_jax(heads_by_einsum), in_torch(heads_by_chunks)),
    Pair("heads by reshape, and by einsum", SPLIT, in_jax(heads_by_einsum), in_jax(heads_by_reshape)),
    Pair("fills -1e9 and -1e4", HEADS, filled_in_jax(-1e9), filled_in_torch(-1e4)),
    Pair("fills -inf and -1e9", HEADS, filled_in_jax(-np.inf), filled_in_torch(-1e9)),
    Pair(
        "fills of the smallest float32 and -inf",
        HEADS,
        filled_in_jax(float(np.finfo(np.float32).min)),
        filled_in_torch(-np.inf),
    ),
    Pair(
        "fills of the smallest float64 and -1e4",
        HEADS,
        filled_in_jax(float(np.finfo(np.float64).min)),
        filled_in_torch(-1e4),
    ),
    Pair("a mask added, and filled in", HEADS, in_jax(added), filled_in_torch(-np.inf)),
    Pair("a mask added as (1 - mask) * -10000, and filled in", HEADS, filled_in_jax(-1e9), in_torch(added_as_float)),
    Pair("masked keys, and none", HEADS, in_jax(second_sentence), in_jax(entries_left_out)),
    Pair("exponentials times the mask, and a fill", HEADS, in_jax(exponentials_masked), filled_in_torch(-1e9)),
    Pair("jax.nn.dot_product_attention, and by hand", HEADS, in_jax(dot_product_attention), filled_in_torch(-1e9)),
    Pair(
        "jax.nn.dot_product_attention and PyTorch's, both with a bias",
        BIASED,
        in_jax(dot_product_attention_with_bias),
        in_torch(scaled_dot_product_attention_with_bias),
    ),
    Pair(
        "scaled_dot_product_attention, and by hand", HEADS, filled_in_jax(-1e9), in_torch(scaled_dot_product_attention)
    ),
    Pair(
        "scaled_dot_product_attention of a query that sees nothing, and zeros",
        HEADS,
        in_jax(with_a_row_of_zeros_by_hand),
        in_torch(with_a_row_of_zeros),
    ),
    Pair(
        "scaled_dot_product_attention with is_causal, and by hand",
        SELF,
        in_torch(causal_by_flag),
        in_torch(causal_by_hand),
    ),
    Pair("our reference path, and jax.nn's", HEADS, in_jax(own_reference_path), in_jax(dot_product_attention)),
    Pair(
        "our reference path, and PyTorch's attention",
        HEADS,
        in_jax(own_reference_path),
        in_torch(scaled_dot_product_attention),
    ),
    Pair("steps with a cache, and teacher forcing", PROJECTED, in_jax(steps_with_a_cache), in_torch(all_steps_at_once)),
    Pair("block by block, and at once", HEADS, block_by_block(None), in_jax(plain)),
    Pair("block by block with masked keys, and at once", HEADS, block_by_block(SEEN), filled_in_jax(-1e9)),
    Pair("block by block, and exponentials times the mask", HEADS, block_by_block(SEEN), in_jax(exponentials_masked)),
    Pair("two blocks merged, and at once", HEADS, in_torch(blocks_merged), in_torch(in_matrices)),
    Pair("two blocks merged, and block by block", HEADS, in_torch(blocks_merged), block_by_block(None)),
    Pair("a longer bucket, and a shorter one", HEADS, in_jax(padded_bucket), filled_in_torch(-1e9)),
    Pair(
        "grouped queries by einsum, and by repeated keys",
        GROUPED,
        in_jax(grouped_by_einsum),
        in_torch(grouped_by_repetition),
    ),
)
