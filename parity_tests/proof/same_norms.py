"""Pairs of ways to write norms that are the same function."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import torch
from flax import nnx
from torch import nn
from torch.nn import functional

from proof.pairs import Pair, Weights, in_jax, in_torch

B, T, D = 2, 3, 6
EPS = 1e-5
SHAPES = {"x": (B, T, D), "scale": (D,), "bias": (D,)}
ROOT_MEAN_SQUARE = {"x": (B, T, D), "scale": (D,)}


def layer_norm(w: Weights) -> jax.Array:
    centred = w["x"] - w["x"].mean(axis=-1, keepdims=True)
    variance = jnp.square(centred).mean(axis=-1, keepdims=True)
    return centred / jnp.sqrt(variance + EPS) * w["scale"] + w["bias"]


def variance_of_squares(w: Weights) -> torch.Tensor:
    """E[x²] − E[x]²: a bad way to compute the variance, and the variance."""
    mean = w["x"].mean(-1, keepdim=True)
    variance = (w["x"] ** 2).mean(-1, keepdim=True) - mean**2
    return (w["x"] - mean) / torch.sqrt(variance + EPS) * w["scale"] + w["bias"]


def reciprocal_root(w: Weights) -> torch.Tensor:
    variance, mean = torch.var_mean(w["x"], dim=-1, correction=0, keepdim=True)
    return (w["x"] - mean) * torch.rsqrt(variance + EPS) * w["scale"] + w["bias"]


def power_of_minus_half(w: Weights) -> jax.Array:
    centred = w["x"] - w["x"].mean(axis=-1, keepdims=True)
    variance = jnp.einsum("btd,btd->bt", centred, centred)[..., None] / D
    return w["scale"] * (centred * (variance + EPS) ** -0.5) + w["bias"]


def scale_folded_in(w: Weights) -> jax.Array:
    """x · a + b with a = scale/deviation, b = bias − mean · a."""
    mean, variance = w["x"].mean(axis=-1, keepdims=True), w["x"].var(axis=-1, keepdims=True)
    factor = jax.lax.rsqrt(variance + EPS) * w["scale"]
    return w["x"] * factor + (w["bias"] - mean * factor)


def library_norm(w: Weights) -> torch.Tensor:
    return functional.layer_norm(w["x"], (D,), w["scale"], w["bias"], EPS)


def flax_norm(fast: bool) -> Any:
    definition, _ = nnx.split(nnx.LayerNorm(D, epsilon=EPS, use_fast_variance=fast, rngs=nnx.Rngs(0)))

    def function(w: Weights) -> jax.Array:
        state = nnx.State({"scale": nnx.Param(w["scale"]), "bias": nnx.Param(w["bias"])})
        return nnx.merge(definition, state)(w["x"])

    return in_jax(function)


def centred_by_a_product(w: Weights) -> jax.Array:
    """Subtracting the mean is a linear map."""
    centred = w["x"] @ (jnp.eye(D) - jnp.full((D, D), 1 / D))
    deviation = jnp.sqrt((centred @ centred.mT)[:, jnp.arange(T), jnp.arange(T)] / D + EPS)
    return centred / deviation[..., None] * w["scale"] + w["bias"]


def variance_of_two_halves(w: Weights) -> jax.Array:
    """Joins the means and variances of both halves of the features (Chan et al. 1979)."""
    first, second = jnp.split(w["x"], [2], axis=-1)
    difference = second.mean(axis=-1, keepdims=True) - first.mean(axis=-1, keepdims=True)
    mean = first.mean(axis=-1, keepdims=True) + difference * (D - 2) / D
    squares = first.var(axis=-1, keepdims=True) * 2 + second.var(axis=-1, keepdims=True) * (D - 2)
    variance = (squares + difference**2 * 2 * (D - 2) / D) / D
    return (w["x"] - mean) / jnp.sqrt(variance + EPS) * w["scale"] + w["bias"]


def flat_tokens(w: Weights) -> torch.Tensor:
    norm = nn.LayerNorm(D, eps=EPS, dtype=torch.float64)
    return torch.func.functional_call(
        norm, {"weight": w["scale"], "bias": w["bias"]}, (w["x"].reshape(B * T, D),)
    ).unflatten(0, (B, T))


# --- the unbiased deviation, and RMSNorm


def unbiased_deviation(w: Weights) -> torch.Tensor:
    mean, deviation = w["x"].mean(-1, keepdim=True), w["x"].std(-1, keepdim=True)
    return w["scale"] * (w["x"] - mean) / (deviation + EPS) + w["bias"]


def unbiased_by_hand(w: Weights) -> jax.Array:
    centred = w["x"] - w["x"].sum(axis=-1, keepdims=True) / D
    deviation = jnp.sqrt((centred**2).sum(axis=-1, keepdims=True) / (D - 1))
    return centred * w["scale"] / (deviation + EPS) + w["bias"]


def root_mean_square(w: Weights) -> jax.Array:
    return w["x"] * jax.lax.rsqrt(jnp.mean(w["x"] ** 2, axis=-1, keepdims=True) + EPS) * w["scale"]


def by_length(w: Weights) -> torch.Tensor:
    """√D · x/√(‖x‖² + D ε)."""
    length = torch.sqrt(w["x"].square().sum(-1, keepdim=True) + 6e-5)
    return w["x"] / length * D**0.5 * w["scale"]


def rms_norm(w: Weights) -> torch.Tensor:
    return functional.rms_norm(w["x"], (D,), w["scale"], EPS)


def offset_scale(w: Weights) -> jax.Array:
    """Gemma stores the scale minus 1."""
    normed = root_mean_square({"x": w["x"], "scale": 1.0})
    return normed + normed * (w["scale"] - 1.0)


def norm_then_linear(w: Weights) -> torch.Tensor:
    return functional.linear(functional.layer_norm(w["x"], (D,), w["scale"], w["bias"], EPS), w["kernel"])


def norm_folded_into_linear(w: Weights) -> jax.Array:
    """The norm's scale and bias as parts of the next layer's kernel and bias."""
    plain = layer_norm({"x": w["x"], "scale": 1.0, "bias": 0.0})
    return plain @ (w["scale"][:, None] * w["kernel"].T) + w["kernel"] @ w["bias"]


def normed_heads(w: Weights) -> jax.Array:
    """Queries of length 1, as cosine similarities have them."""
    return w["x"] / jnp.linalg.norm(w["x"], axis=-1, keepdims=True)


def normalized(w: Weights) -> torch.Tensor:
    return w["x"] * (w["x"] * w["x"]).sum(-1, keepdim=True).pow(-0.5)


PAIRS = (
    Pair("E[x²] − E[x]², and the mean square", SHAPES, in_jax(layer_norm), in_torch(variance_of_squares)),
    Pair("division by √, and rsqrt", SHAPES, in_jax(layer_norm), in_torch(reciprocal_root)),
    Pair("the power of -1/2, and rsqrt", SHAPES, in_jax(power_of_minus_half), in_torch(reciprocal_root)),
    Pair("x · a + b, and a norm", SHAPES, in_jax(scale_folded_in), in_torch(library_norm)),
    Pair("torch.nn.functional.layer_norm, and by hand", SHAPES, in_jax(layer_norm), in_torch(library_norm)),
    Pair("nnx.LayerNorm with its fast variance, and PyTorch's", SHAPES, flax_norm(True), in_torch(library_norm)),
    Pair("nnx.LayerNorm with two passes, and with one", SHAPES, flax_norm(False), flax_norm(True)),
    Pair("the mean subtracted by a product of matrices", SHAPES, in_jax(centred_by_a_product), in_torch(library_norm)),
    Pair("a variance joined from two halves", SHAPES, in_jax(variance_of_two_halves), in_torch(library_norm)),
    Pair("nn.LayerNorm of all tokens in a row", SHAPES, in_jax(layer_norm), in_torch(flat_tokens)),
    Pair("torch.std, and by hand", SHAPES, in_jax(unbiased_by_hand), in_torch(unbiased_deviation)),
    Pair("RMSNorm by length, and by mean square", ROOT_MEAN_SQUARE, in_jax(root_mean_square), in_torch(by_length)),
    Pair("torch.nn.functional.rms_norm, and by hand", ROOT_MEAN_SQUARE, in_jax(root_mean_square), in_torch(rms_norm)),
    Pair("a stored scale minus 1", ROOT_MEAN_SQUARE, in_jax(offset_scale), in_torch(rms_norm)),
    Pair(
        "a norm folded into the next layer",
        {**SHAPES, "kernel": (5, D)},
        in_jax(norm_folded_into_linear),
        in_torch(norm_then_linear),
    ),
    Pair("vectors of length 1", {"x": (B, T, D)}, in_jax(normed_heads), in_torch(normalized)),
)
