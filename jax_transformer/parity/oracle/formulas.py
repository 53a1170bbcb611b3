"""The formulas of a Transformer in plain NumPy, to be checked by eye against the papers.

A formula takes the parts of the config that it computes, and reads every choice between formulas from them, so that
passing another part to one step answers a "what if". A parameter that isn't passed isn't applied, whatever the config.
Arrays are float64, ids are integers, masks are boolean with True = may attend. Options of execution (dtypes,
attention's path, the loop over layers) and dropout have no effect.

Axes: B batch, S source, T target (or either), Q/K query/key length, D model, F feed-forward, N heads, H head_dim, W
  value_dim, V vocabulary.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Literal

import numpy as np

from jax_transformer.parity.oracle.activations import FORMULAS, activation

if TYPE_CHECKING:
    from jax_transformer.config.positions import Positions, RelativeBias, RelativeVectors, Rotary, Sinusoidal, Table
    from jax_transformer.config.specs import (
        Attention,
        FeedForward,
        Head,
        Norm,
        PaddingCover,
        Residual,
        Stack,
        Stem,
        Tokens,
    )

StackName = Literal["encoder", "decoder"]

_einsum = partial(np.einsum, optimize=True)


# --- masks (Vaswani et al. 2017, §3.2.3)


def encoder_self_mask(spec: Attention, source: Tokens, source_ids: np.ndarray) -> np.ndarray:
    """Returns the encoder's self-attention mask, [B, 1, S, S] or broadcastable to it."""
    is_real = source_ids != source.pad_id
    return padding_mask(spec.padding, is_real, is_real)


def decoder_self_mask(spec: Attention, target: Tokens, decoder_input_ids: np.ndarray) -> np.ndarray:
    """Returns the decoder's self-attention mask, [B, 1, T, T] or broadcastable to it."""
    is_real = decoder_input_ids != decoder_padding_id(spec, target)
    return causal_mask(spec, decoder_input_ids.shape[1]) & padding_mask(spec.padding, is_real, is_real)


def encoder_window_mask(spec: Attention, source: Tokens, source_ids: np.ndarray) -> np.ndarray:
    """Returns the encoder's self-attention mask in layers with a window, [B, 1, S, S] or broadcastable to it."""
    return encoder_self_mask(spec, source, source_ids) & window_mask(spec, source_ids.shape[1])


def decoder_window_mask(spec: Attention, target: Tokens, decoder_input_ids: np.ndarray) -> np.ndarray:
    """Returns the decoder's self-attention mask in layers with a window, [B, 1, T, T] or broadcastable to it."""
    return decoder_self_mask(spec, target, decoder_input_ids) & window_mask(spec, decoder_input_ids.shape[1])


def decoder_padding_id(spec: Attention, target: Tokens) -> int:
    """Returns the id that the decoder's self-attention takes for padding."""
    return target.pad_id if spec.padding_id is None else spec.padding_id


def cross_mask(
    spec: Attention, source: Tokens, target: Tokens, source_ids: np.ndarray, decoder_input_ids: np.ndarray
) -> np.ndarray:
    """Returns the cross-attention mask, [B, 1, T, S] or broadcastable to it."""
    return padding_mask(spec.padding, decoder_input_ids != target.pad_id, source_ids != source.pad_id)


def padding_mask(cover: PaddingCover, query_is_real: np.ndarray, key_is_real: np.ndarray) -> np.ndarray:
    """Returns the mask that query_is_real [B, Q] and key_is_real [B, K] leave, [B, 1, Q, K] or broadcastable."""
    queries, keys = query_is_real[:, None, :, None], key_is_real[:, None, None, :]
    return {"queries": queries, "keys": keys, "both": queries & keys, "none": np.ones((1, 1, 1, 1), bool)}[cover]


def causal_mask(spec: Attention, length: int) -> np.ndarray:
    """Returns the mask [1, 1, T, T] under which every position attends to itself and to earlier ones."""
    query, key = np.arange(length)[:, None], np.arange(length)
    return (key <= query)[None, None] if spec.causal else np.ones((1, 1, 1, 1), bool)


def window_mask(spec: Attention, length: int) -> np.ndarray:
    """Returns the mask [1, 1, T, T] under which every position attends to those nearer than the window (Beltagy et al.
    2020, §3.1)."""
    if spec.window is None:
        return np.ones((1, 1, 1, 1), bool)
    return (np.abs(offsets(length)) < spec.window)[None, None]


# --- embeddings and positions (§3.4, §3.5)


def token_embedding(spec: Stack, ids: np.ndarray, embedding: np.ndarray) -> np.ndarray:
    """Looks up ids [B, T] in embedding [V, D], and scales → [B, T, D]."""
    return rows(embedding, ids) * spec.embedding_factor


def first_convolution(
    spec: Stem, x: np.ndarray, kernel: np.ndarray, bias: np.ndarray, is_real: np.ndarray | None = None
) -> np.ndarray:
    """Convolves feature vectors x [B, S, F] with kernel [K, F, D] → [B, S, D] (Radford et al. 2022, §2.2).

    Args:
      is_real: [B, S], False where a vector is padding, which counts as zero; None: all vectors count.
    """
    return convolution(x if is_real is None else x * is_real[..., None], kernel, bias)


def second_convolution(
    spec: Stem, x: np.ndarray, kernel: np.ndarray, bias: np.ndarray, is_real: np.ndarray | None = None
) -> np.ndarray:
    """Convolves the activated x [B, S, D] with kernel [K, D, D] at every stride-th place → [B, (S - 1) // stride + 1,
    D]; `is_real` as in `first_convolution`."""
    activated = FORMULAS[spec.activation](x)
    return convolution(activated if is_real is None else activated * is_real[..., None], kernel, bias, spec.stride)


def convolution(x: np.ndarray, kernel: np.ndarray, bias: np.ndarray, stride: int = 1) -> np.ndarray:
    """Returns Σ x[t + k − K // 2] · kernel[k] + bias at every stride-th t of x [B, S, I], with zeros before and after
    x, for a kernel [K, I, O]."""
    around, length = len(kernel) // 2, x.shape[1]
    padded = np.pad(x, ((0, 0), (around, around), (0, 0)))
    y: np.ndarray = sum(_einsum("bsi,io->bso", padded[:, k : k + length], kernel[k]) for k in range(len(kernel))) + bias
    return y[:, ::stride]


def stem_output(spec: Stem, stack: Stack, x: np.ndarray) -> np.ndarray:
    """Returns the second convolution's output x [B, S, D], activated and scaled as embeddings are."""
    return FORMULAS[spec.activation](x) * stack.embedding_factor


def positions(spec: Table, tokens: Tokens, ids: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Looks up the positions of ids [B, T] in table [rows, D] → [B, T, D], with 1 for B or T if all are the same.

    The table comes from the parameters, with their rounding; pass `sinusoid_table` for another formula's positions.
    """
    return rows(table, position_numbers(spec, tokens, ids))


def embedding(
    spec: Stack,
    norm_spec: Norm | None,
    table_spec: Positions | None,
    tokens: np.ndarray,
    positions: np.ndarray | None = None,
    scale: np.ndarray | None = None,
    bias: np.ndarray | None = None,
    position_scale: np.ndarray | None = None,
    types: np.ndarray | None = None,
) -> np.ndarray:
    """Returns tokens plus the first row of types and scaled positions [B, T, D], with the norm before or after
    positions are added, or none."""
    normed = spec.embedding_norm
    tokens = tokens if types is None else tokens + types[0]
    x = norm(norm_spec, tokens, scale, bias) if norm_spec and normed == "before_positions" else tokens
    if positions is not None:
        x = x + affine(positions * position_factor(table_spec), position_scale, None)
    return norm(norm_spec, x, scale, bias) if norm_spec and normed == "after_positions" else x


def position_factor(spec: Positions | None) -> float:
    """Returns the constant factor of a table's rows; 1 without a table."""
    return spec.factor if spec is not None and spec.kind in ("sinusoidal", "learned") else 1.0


def rows(table: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Returns the rows of table [rows, D] at numbers [...] → [..., D].

    Raises:
      ValueError: a number has no row; NumPy would count negative ones from the end.
    """
    if numbers.size and not 0 <= numbers.min() <= numbers.max() < len(table):
        raise ValueError(
            f"a table of {len(table)} rows: expected numbers from 0 to {len(table) - 1}; received {numbers.min()} to "
            f"{numbers.max()}"
        )
    return table[numbers]


def position_numbers(spec: Table | Rotary, tokens: Tokens, ids: np.ndarray) -> np.ndarray:
    """Returns the position number of every token of ids [B, T]: [1, T], [B, 1] or [B, T]."""
    batch, length = ids.shape
    if spec.index == "column":
        numbers = np.arange(length)[None, :]
    elif spec.index == "batch_row":
        numbers = np.arange(batch)[:, None]
    else:  # real tokens are counted from 1 on, pads are 0 (fairseq)
        is_real = ids != tokens.pad_id
        numbers = np.where(is_real, is_real.cumsum(axis=1), 0)
    return numbers + spec.offset


def sinusoid_table(spec: Sinusoidal, width: int, rows: int) -> np.ndarray:
    """Returns sin and cos of row / 10000^exponent, [rows, D]; the pads' row is zero if real tokens are counted."""
    even, odd = np.arange(0, width, 2), np.arange(1, width, 2)
    sine_exponents, cosine_exponents = {
        "standard": (even / width, even / width),  # 2i / D in columns 2i and 2i + 1
        "inclusive": (even / max(width - 2, 1), even / max(width - 2, 1)),  # from 0 to exactly 1
        "doubled": (2 * even / width, 2 * odd / width),  # twice its own number in every column
    }[spec.frequency]
    row = np.arange(rows)[:, None]
    table = np.empty((rows, width))
    sines, cosines = (
        (slice(0, None, 2), slice(1, None, 2)) if spec.layout == "interleaved" else np.s_[: width // 2, width // 2 :]
    )
    table[:, sines] = np.sin(row / 10000.0**sine_exponents)
    table[:, cosines] = np.cos(row / 10000.0**cosine_exponents)
    if spec.index == "non_pad_count":
        table[spec.offset] = 0.0
    return table


# --- rotary positions (Su et al. 2021, §3.2)


def rotation(spec: Rotary, tokens: Tokens, x: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Rotates heads x [B, T, N, H] by the angles of the positions of ids [B, T]."""
    numbers = position_numbers(spec, tokens, ids)  # [B or 1, T]
    angles = numbers[:, :, None, None] * rotary_frequencies(spec, x.shape[-1])
    return rotated(spec, x, np.cos(angles), np.sin(angles))


def rotary_frequencies(spec: Rotary, head_dim: int) -> np.ndarray:
    """Returns base^(−2i / R), the angle from one position to the next, for every pair i of the R rotated features."""
    width = spec.dim or head_dim
    frequencies: np.ndarray = spec.base ** (-2.0 * np.arange(width // 2) / width)
    return frequencies


def rotated(spec: Rotary, x: np.ndarray, cosine: np.ndarray, sine: np.ndarray) -> np.ndarray:
    """Turns each pair (a, b) of features of x [..., H] to (a cos − b sin, a sin + b cos); the last ones stay."""
    first, second = rotary_pairs(spec, 2 * cosine.shape[-1])
    y = x.copy()
    y[..., first] = x[..., first] * cosine - x[..., second] * sine
    y[..., second] = x[..., first] * sine + x[..., second] * cosine
    return y


def rotary_pairs(spec: Rotary, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the numbers of the first and second features of all pairs."""
    pairs = np.arange(width // 2)
    return (pairs, pairs + width // 2) if spec.layout == "halves" else (2 * pairs, 2 * pairs + 1)


# --- biases and vectors by distance (Press et al. 2022; Shaw et al. 2018; Raffel et al. 2020, §2.1)


def alibi_bias(spec: Attention, ids: np.ndarray) -> np.ndarray:
    """Returns −slope · distance [1, N, T, T] for the length of ids [B, T]."""
    slopes = np.array(alibi_slopes(spec.num_heads))
    return (-slopes[:, None, None] * np.abs(offsets(ids.shape[1])))[None]


def alibi_slopes(heads: int) -> list[float]:
    """Returns 2^(−8/N), 2^(−16/N), …; if N isn't a power of two, the slopes of the next lower power, then the 1st, 3rd,
    … of twice that power."""
    if heads & (heads - 1) == 0:
        return [2.0 ** (-8.0 * number / heads) for number in range(1, heads + 1)]
    power = 2 ** int(math.log2(heads))
    return alibi_slopes(power) + alibi_slopes(2 * power)[::2][: heads - power]


def offsets(length: int) -> np.ndarray:
    """Returns the offset of each key from each query, [T, T]."""
    return np.arange(length) - np.arange(length)[:, None]


def relative_rows(spec: RelativeVectors, length: int) -> np.ndarray:
    """Returns the row [T, T] of the tables of vectors for every query and key."""
    most = spec.max_distance
    return np.minimum(np.maximum(offsets(length), -most), most) + most


def position_bias(spec: RelativeBias, attention: Attention, ids: np.ndarray, embedding: np.ndarray) -> np.ndarray:
    """Returns the relative bias [1, N, T, T] for the length of ids [B, T], from embedding [buckets, N]."""
    length = ids.shape[1]
    buckets = np.array(
        [
            bucket(offset, spec.buckets, spec.max_distance, is_causal=attention.causal)
            for offset in range(1 - length, length)
        ]
    )
    query, key = np.arange(length)[:, None], np.arange(length)
    return spec.factor * embedding[buckets[key - query + length - 1]].transpose(2, 0, 1)[None]


def bucket(offset: int, buckets: int, farthest: int, *, is_causal: bool) -> int:
    """Returns the bucket of a key `offset` positions after its query, with `buckets` buckets of distances.

    Near distances have a bucket each; farther ones share buckets of equal logarithmic width. T5's programs compute the
    latter in float32, so this does too, though everything else is float64.

    Args:
      farthest: the distance from which all share the last bucket.
    """
    buckets = buckets if is_causal else buckets // 2
    distance = max(-offset, 0) if is_causal else abs(offset)
    first = buckets if offset > 0 and not is_causal else 0
    near = buckets // 2
    if distance < near:
        return first + distance
    logarithm = np.float32(math.log(np.float32(distance) / np.float32(near)))
    share = logarithm / np.float32(math.log(farthest / near))
    return first + min(near + int(share * np.float32(buckets - near)), buckets - 1)


# --- norms and residuals (Ba et al. 2016; Zhang & Sennrich 2019)


def norm(spec: Norm, x: np.ndarray, scale: np.ndarray | None = None, bias: np.ndarray | None = None) -> np.ndarray:
    """Returns (x − mean) / deviation · (offset + scale) + bias over the last axis of x [..., D]; RMSNorm keeps the
    mean.

    T5's own norm always computes the mean of squares in float32; this one doesn't.
    """
    x = x - x.mean(axis=-1, keepdims=True) if spec.kind == "layer_norm" else x
    return affine(x / deviation(spec, x), norm_scale(spec, scale), bias)


def norm_scale(spec: Norm, scale: np.ndarray | None) -> np.ndarray | None:
    """Returns the effective scale of a norm, from the stored one; None if it has none."""
    return None if scale is None else spec.scale_offset + scale


def deviation(spec: Norm, centred: np.ndarray) -> np.ndarray:
    """Returns √(variance + ε), or √variance + ε, of centred [..., D] → [..., 1]."""
    width = centred.shape[-1]
    variance = np.square(centred).sum(axis=-1, keepdims=True) / (width - 1 if spec.unbiased else width)
    root: np.ndarray = np.sqrt(variance) + spec.eps if spec.eps_outside else np.sqrt(variance + spec.eps)
    return root


def affine(x: np.ndarray, scale: np.ndarray | None, bias: np.ndarray | None) -> np.ndarray:
    """Returns x · scale + bias, without the terms that are None."""
    x = x if scale is None else x * scale
    return x if bias is None else x + bias


def residual(
    spec: Residual,
    x: np.ndarray,
    y: np.ndarray,
    residual_scale: np.ndarray | None = None,
    output_scale: np.ndarray | None = None,
) -> np.ndarray:
    """Returns the residual stream x plus a sublayer's output y, each times its factor and its trained scale.

    (DeepNorm: Wang et al. 2022; LayerScale: Touvron et al. 2021; ReZero: Bachlechner et al. 2020.)
    """
    return affine(x * spec.stream_factor, residual_scale, None) + affine(y * spec.output_factor, output_scale, None)


def parallel_residual(
    spec: Residual,
    x: np.ndarray,
    self_attention: np.ndarray,
    cross_attention: np.ndarray | None = None,
    feed_forward: np.ndarray | None = None,
    self_attention_scale: np.ndarray | None = None,
    cross_attention_scale: np.ndarray | None = None,
    feed_forward_scale: np.ndarray | None = None,
) -> np.ndarray:
    """Returns the residual stream x plus the outputs of all sublayers of a layer, each term scaled."""
    total = x * spec.stream_factor
    for y, scale in (
        (self_attention, self_attention_scale),
        (cross_attention, cross_attention_scale),
        (feed_forward, feed_forward_scale),
    ):
        total = total if y is None else total + affine(y * spec.output_factor, scale, None)
    return total


def residual_norm(
    spec: Residual,
    norm_spec: Norm,
    x: np.ndarray,
    y: np.ndarray,
    scale: np.ndarray | None = None,
    bias: np.ndarray | None = None,
    residual_scale: np.ndarray | None = None,
    output_scale: np.ndarray | None = None,
) -> np.ndarray:
    """Returns the norm of the residual."""
    return norm(norm_spec, residual(spec, x, y, residual_scale, output_scale), scale, bias)


def same(x: np.ndarray) -> np.ndarray:
    """Returns its input: a value with two names."""
    return x


# --- attention (Vaswani et al. 2017, §3.2)


def projection(x: np.ndarray, kernel: np.ndarray, bias: np.ndarray | None = None, *, axes: str) -> np.ndarray:
    """Returns x · kernel + bias, summed over `axes` in einsum notation."""
    return affine(_einsum(axes, x, kernel), None, bias)


def merge_heads(x: np.ndarray) -> np.ndarray:
    """Merges heads [B, T, N, W] → [B, T, D], in models without an output projection."""
    return x.reshape(*x.shape[:2], -1)


def attention_logits(
    spec: Attention,
    query: np.ndarray,
    key: np.ndarray,
    position_bias: np.ndarray | None = None,
    mask: np.ndarray | None = None,
    relative_keys: np.ndarray | None = None,
    vectors: RelativeVectors | None = None,
) -> np.ndarray:
    """Returns the logits of query [B, Q, N, H] and key [B, K, G, H], scaled, capped, biased, then masked →
    [B, N, Q, K]."""
    logits = scaled_products(spec, query, key)
    if relative_keys is not None and vectors is not None:
        products = relative_products(query, relative_keys, relative_rows(vectors, query.shape[1]))
        logits = logits + attention_scale(spec, query) * products
    logits = capped(logits, spec.logits_cap)
    logits = logits if position_bias is None else logits + position_bias
    return logits if mask is None else np.where(mask, logits, masked_value(spec))


def capped(x: np.ndarray, cap: float | None) -> np.ndarray:
    """Bends x to cap · tanh(x / cap), which stays between −cap and cap (Gemma 2, §2)."""
    return x if cap is None else cap * np.tanh(x / cap)


def scaled_products(spec: Attention, query: np.ndarray, key: np.ndarray) -> np.ndarray:
    key = for_all_queries(key, query.shape[2])
    return np.matmul(query.transpose(0, 2, 1, 3), key.transpose(0, 2, 3, 1)) * attention_scale(spec, query)


def attention_scale(spec: Attention, query: np.ndarray) -> float:
    return 1.0 / math.sqrt(query.shape[-1]) if spec.scale is None else spec.scale


def relative_products(query: np.ndarray, relative_keys: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Returns the products [B, N, T, T] of query [B, T, N, H] with these rows [T, T] of relative_keys [2M + 1, H]."""
    products = _einsum("BQNH,RH->BNQR", query, relative_keys)
    return np.take_along_axis(products, np.broadcast_to(rows, (*products.shape[:2], *rows.shape)), axis=3)


def for_all_queries(x: np.ndarray, heads: int) -> np.ndarray:
    """Returns keys [B, K, G, H] or values [B, K, G, W] for N heads of queries: consecutive query heads share one
    (Ainslie et al. 2023)."""
    return x[:, :, np.arange(heads) * x.shape[2] // heads]


def masked_value(spec: Attention) -> float:
    """Returns the value of masked logits. It is finite, so weights are uniform if everything is masked."""
    return float(np.finfo(np.float64).min) if spec.masked_value is None else spec.masked_value


def attention_weights(logits: np.ndarray) -> np.ndarray:
    """Returns the softmax over the keys, [B, N, Q, K]."""
    exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def context(
    weights: np.ndarray,
    value: np.ndarray,
    relative_values: np.ndarray | None = None,
    vectors: RelativeVectors | None = None,
) -> np.ndarray:
    """Weighs value [B, K, G, W], and the rows of relative_values [2M + 1, W] for their distances, by weights
    [B, N, Q, K] → [B, Q, N, W]."""
    value = for_all_queries(value, weights.shape[1])
    own = np.matmul(weights, value.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)
    if relative_values is None or vectors is None:
        return own
    return own + relative_context(weights, relative_values, relative_rows(vectors, weights.shape[-1]))


def relative_context(weights: np.ndarray, relative_values: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Weighs these rows [T, T] of relative_values [2M + 1, W] by weights [B, N, T, T] → [B, T, N, W]."""
    return _einsum("BNQK,QKH->BQNH", weights, relative_values[rows])


def head_scale(x: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Multiplies each head of x [B, T, N, W] by its factor (Shleifer et al. 2021, §2)."""
    return x * scale[:, None]


def context_norm(
    spec: Norm, x: np.ndarray, scale: np.ndarray | None = None, bias: np.ndarray | None = None
) -> np.ndarray:
    """Norms x [B, T, N, W] over all heads together (Sub-LN: Wang et al. 2022)."""
    return norm(spec, merge_heads(x), scale, bias).reshape(x.shape)


# --- feed-forward (§3.3; gated: Shazeer 2020)


def feed_forward_hidden(
    spec: FeedForward,
    x: np.ndarray,
    kernel: np.ndarray,
    bias: np.ndarray | None = None,
    gate_kernel: np.ndarray | None = None,
    gate_bias: np.ndarray | None = None,
    slope: np.ndarray | None = None,
) -> np.ndarray:
    """Returns the activated hidden units of x [B, T, D], or the activated gate times them → [B, T, F]."""
    hidden = affine(_einsum("BTD,DF->BTF", x, kernel), None, bias)
    if gate_kernel is None:
        return activation(spec, hidden, slope)
    return activation(spec, affine(_einsum("BTD,DF->BTF", x, gate_kernel), None, gate_bias), slope) * hidden


# --- the head (§3.4)


def head_transform(spec: Head, x: np.ndarray, kernel: np.ndarray, bias: np.ndarray | None = None) -> np.ndarray:
    """Returns the activated map of x [B, T, D] → [B, T, D] (Devlin et al. 2019)."""
    if spec.transform is None:
        raise ValueError("head_transform: expected a head that has one; received one without")
    return FORMULAS[spec.transform](affine(_einsum("BTD,DE->BTE", x, kernel), None, bias))


def logits(spec: Head, x: np.ndarray, kernel: np.ndarray, bias: np.ndarray | None = None) -> np.ndarray:
    """Projects x [B, T, D] with kernel [D, V] to logits [B, T, V]."""
    x = x / math.sqrt(x.shape[-1]) if spec.scales_input else x
    return capped(spec.factor * affine(_einsum("BTD,DV->BTV", x, kernel), None, bias), spec.cap)


def tied_logits(spec: Head, x: np.ndarray, embedding: np.ndarray, bias: np.ndarray | None = None) -> np.ndarray:
    """Projects x [B, T, D] with the target embedding [V, D] to logits [B, T, V]."""
    return logits(spec, x, embedding.T, bias)
