"""Pairs of ways to write an activation that are the same function."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import torch
from torch.nn import functional

from proof.pairs import Pair, Weights, in_jax, in_torch

X = {"x": (3, 5)}
ROOT = math.sqrt(2 / math.pi)


def gelu(w: Weights) -> torch.Tensor:
    return functional.gelu(w["x"])


def gelu_by_erf(w: Weights) -> jax.Array:
    return w["x"] * 0.5 * (1.0 + jax.lax.erf(w["x"] / math.sqrt(2.0)))


def gelu_by_erfc(w: Weights) -> jax.Array:
    return 0.5 * w["x"] * jax.lax.erfc(-w["x"] * math.sqrt(0.5))


def gelu_of_jax(w: Weights) -> jax.Array:
    return jax.nn.gelu(w["x"], approximate=False)


def gelu_tanh(w: Weights) -> torch.Tensor:
    return functional.gelu(w["x"], approximate="tanh")


def gelu_tanh_of_jax(w: Weights) -> jax.Array:
    return jax.nn.gelu(w["x"], approximate=True)


def gelu_tanh_by_hand(w: Weights) -> torch.Tensor:
    x = w["x"]
    return 0.5 * x * (1.0 + torch.tanh(ROOT * (x + 0.044715 * torch.pow(x, 3.0))))


def gelu_tanh_by_products(w: Weights) -> jax.Array:
    """As BERT's fused kernels write it: √(2/π) x (1 + 0.044715 x²)."""
    x = w["x"]
    return 0.5 * x * (1.0 + jnp.tanh(ROOT * x * (1.0 + 0.044715 * x * x)))


def gelu_tanh_by_sigmoid(w: Weights) -> jax.Array:
    x = w["x"]
    return x * jax.nn.sigmoid(2 * ROOT * (x + 0.044715 * x**3))


def gelu_quick(w: Weights) -> jax.Array:
    return w["x"] * jax.nn.sigmoid(1.702 * w["x"])


def gelu_quick_by_tanh(w: Weights) -> torch.Tensor:
    return 0.5 * w["x"] * (1 + torch.tanh(0.851 * w["x"]))


# --- σ


def sigmoid(w: Weights) -> torch.Tensor:
    return torch.sigmoid(w["x"])


def sigmoid_by_tanh(w: Weights) -> jax.Array:
    return (jnp.tanh(w["x"] / 2) + 1) / 2


def sigmoid_by_exp(w: Weights) -> jax.Array:
    return 1 / (1 + jnp.exp(-w["x"]))


def sigmoid_of_minus_x(w: Weights) -> jax.Array:
    return 1 - jax.nn.sigmoid(-w["x"])


def silu(w: Weights) -> torch.Tensor:
    return functional.silu(w["x"])


def silu_of_jax(w: Weights) -> jax.Array:
    return jax.nn.silu(w["x"])


def silu_by_exp(w: Weights) -> torch.Tensor:
    return w["x"] / (1 + torch.exp(-w["x"]))


def silu_by_exp_of_x(w: Weights) -> jax.Array:
    exp = jnp.exp(w["x"])
    return w["x"] * exp / (exp + 1)


def tanh(w: Weights) -> torch.Tensor:
    return w["x"].tanh()


def tanh_by_exp(w: Weights) -> jax.Array:
    exp = jnp.exp(2 * w["x"])
    return (exp - 1) / (exp + 1)


def tanh_by_sigmoid(w: Weights) -> jax.Array:
    return 2 * jax.nn.sigmoid(2 * w["x"]) - 1


# --- ReLU


def relu(w: Weights) -> torch.Tensor:
    return functional.relu(w["x"])


def relu_by_where(w: Weights) -> jax.Array:
    return jnp.where(w["x"] > 0, w["x"], 0)


def relu_by_mask(w: Weights) -> torch.Tensor:
    return w["x"] * (w["x"] > 0)


def relu_by_clamp(w: Weights) -> torch.Tensor:
    return w["x"].clamp(min=0)


def relu_by_absolute(w: Weights) -> jax.Array:
    return (w["x"] + jnp.abs(w["x"])) / 2


def relu_by_minimum(w: Weights) -> jax.Array:
    return -jnp.minimum(-w["x"], 0.0)


def relu_squared(w: Weights) -> torch.Tensor:
    return functional.relu(w["x"]).square()


def relu_squared_by_product(w: Weights) -> jax.Array:
    return w["x"] * jax.nn.relu(w["x"])


def leaky_relu(w: Weights) -> torch.Tensor:
    return functional.leaky_relu(w["x"], 0.125)


def leaky_relu_of_jax(w: Weights) -> jax.Array:
    return jax.nn.leaky_relu(w["x"], 0.125)


def relu_of_a_multiple(w: Weights) -> jax.Array:
    return jax.nn.relu(3.0 * w["x"]) / 3.0


def swiglu_by_chunks(w: Weights) -> torch.Tensor:
    gate, hidden = functional.linear(w["x"], w["kernel"].T).chunk(2, dim=-1)
    return functional.silu(gate) * hidden


def swiglu_apart(w: Weights) -> jax.Array:
    gate, hidden = w["kernel"][:, :4], w["kernel"][:, 4:]
    return jax.nn.silu(w["x"] @ gate) * (w["x"] @ hidden)


def softplus(w: Weights) -> torch.Tensor:
    return torch.log1p(torch.exp(w["x"]))


def softplus_by_sigmoid(w: Weights) -> jax.Array:
    return -jnp.log(jax.nn.sigmoid(-w["x"]))


PAIRS = (
    Pair("GELU, and by erf", X, in_jax(gelu_by_erf), in_torch(gelu)),
    Pair("GELU, and by erfc", X, in_jax(gelu_by_erfc), in_torch(gelu)),
    Pair("GELU of JAX, and of PyTorch", X, in_jax(gelu_of_jax), in_torch(gelu)),
    Pair("GELU by tanh of JAX, and of PyTorch", X, in_jax(gelu_tanh_of_jax), in_torch(gelu_tanh)),
    Pair("GELU by tanh, spelled out", X, in_jax(gelu_tanh_of_jax), in_torch(gelu_tanh_by_hand)),
    Pair("GELU by tanh, with x factored out", X, in_jax(gelu_tanh_by_products), in_torch(gelu_tanh)),
    Pair("GELU by tanh, and by σ", X, in_jax(gelu_tanh_by_sigmoid), in_torch(gelu_tanh)),
    Pair("the quick GELU by σ, and by tanh", X, in_jax(gelu_quick), in_torch(gelu_quick_by_tanh)),
    Pair("σ by tanh", X, in_jax(sigmoid_by_tanh), in_torch(sigmoid)),
    Pair("σ by exp", X, in_jax(sigmoid_by_exp), in_torch(sigmoid)),
    Pair("1 − σ(−x)", X, in_jax(sigmoid_of_minus_x), in_torch(sigmoid)),
    Pair("SiLU of JAX, and of PyTorch", X, in_jax(silu_of_jax), in_torch(silu)),
    Pair("SiLU by exp(−x)", X, in_jax(silu_of_jax), in_torch(silu_by_exp)),
    Pair("SiLU by exp(x)", X, in_jax(silu_by_exp_of_x), in_torch(silu)),
    Pair("tanh by exp", X, in_jax(tanh_by_exp), in_torch(tanh)),
    Pair("tanh by σ", X, in_jax(tanh_by_sigmoid), in_torch(tanh)),
    Pair("ReLU by where", X, in_jax(relu_by_where), in_torch(relu)),
    Pair("ReLU by a mask, and by a clamp", X, in_torch(relu_by_mask), in_torch(relu_by_clamp)),
    Pair("ReLU by |x|", X, in_jax(relu_by_absolute), in_torch(relu)),
    Pair("ReLU by a minimum", X, in_jax(relu_by_minimum), in_torch(relu)),
    Pair("ReLU², and x · ReLU", X, in_jax(relu_squared_by_product), in_torch(relu_squared)),
    Pair("ReLU(3 x)/3", X, in_jax(relu_of_a_multiple), in_torch(relu)),
    Pair("leaky ReLU of JAX, and of PyTorch", X, in_jax(leaky_relu_of_jax), in_torch(leaky_relu)),
    Pair(
        "SwiGLU of one kernel, and of two",
        {"x": (3, 5), "kernel": (5, 8)},
        in_jax(swiglu_apart),
        in_torch(swiglu_by_chunks),
    ),
    Pair("softplus, and −log σ(−x)", X, in_jax(softplus_by_sigmoid), in_torch(softplus)),
)
