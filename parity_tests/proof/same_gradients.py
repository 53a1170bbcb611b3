"""Pairs of gradients, by formulas and by automatic differentiation."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch.nn import functional

from proof.pairs import Function, Pair, Weights, gradients_in_jax, gradients_in_torch, in_jax, in_torch

B, T, K, D, V = 2, 3, 5, 4, 7
EPS = 1e-5
LABELS = np.array([3, 6, 0])
IDS = np.array([[1, 4, 1], [0, 4, 2]])

# Each formula is of Σ output · g, so that g is the gradient that comes in.


def against(function: Function) -> Function:
    return lambda w: (function(w) * w["g"]).sum()


def layer_norm(w: Weights) -> torch.Tensor:
    return functional.layer_norm(w["x"], (D,), w["scale"], w["bias"], EPS)


def layer_norm_by_formula(w: Weights) -> dict[str, jax.Array]:
    deviation = jnp.sqrt(w["x"].var(axis=-1, keepdims=True) + EPS)
    normed = (w["x"] - w["x"].mean(axis=-1, keepdims=True)) / deviation
    inner = w["g"] * w["scale"]
    along = (inner * normed).mean(axis=-1, keepdims=True)
    return {
        "gradient of x": (inner - inner.mean(axis=-1, keepdims=True) - normed * along) / deviation,
        "gradient of scale": (w["g"] * normed).sum(axis=(0, 1)),
        "gradient of bias": w["g"].sum(axis=(0, 1)),
    }


def rms_norm(w: Weights) -> torch.Tensor:
    return w["x"] * torch.rsqrt(w["x"].square().mean(-1, keepdim=True) + EPS)


def rms_norm_by_formula(w: Weights) -> dict[str, jax.Array]:
    r = 1 / jnp.sqrt((w["x"] ** 2).mean(axis=-1, keepdims=True) + EPS)
    return {"gradient of x": r * w["g"] - w["x"] * r**3 * (w["g"] * w["x"]).mean(axis=-1, keepdims=True)}


def softmax(w: Weights) -> torch.Tensor:
    return torch.softmax(w["x"], dim=-1)


def softmax_by_formula(w: Weights) -> dict[str, jax.Array]:
    weights = jax.nn.softmax(w["x"], axis=-1)
    return {"gradient of x": weights * (w["g"] - (weights * w["g"]).sum(axis=-1, keepdims=True))}


def softmax_by_jacobian(w: Weights) -> dict[str, jax.Array]:
    """diag(p) − p pᵀ, multiplied by g."""
    weights = jax.nn.softmax(w["x"], axis=-1)
    jacobian = jnp.eye(D) * weights[..., None] - weights[..., None] * weights[..., None, :]
    return {"gradient of x": jnp.einsum("btde,bte->btd", jacobian, w["g"])}


def gelu(w: Weights) -> torch.Tensor:
    return functional.gelu(w["x"])


def gelu_by_formula(w: Weights) -> dict[str, jax.Array]:
    """Φ(x) + x φ(x)."""
    distribution = (1 + jax.lax.erf(w["x"] / math.sqrt(2))) / 2
    density = jnp.exp(-(w["x"] ** 2) / 2) / math.sqrt(2 * math.pi)
    return {"gradient of x": w["g"] * (distribution + w["x"] * density)}


def gelu_tanh(w: Weights) -> torch.Tensor:
    return functional.gelu(w["x"], approximate="tanh")


def gelu_tanh_by_formula(w: Weights) -> dict[str, jax.Array]:
    x, root = w["x"], math.sqrt(2 / math.pi)
    t = jnp.tanh(root * (x + 0.044715 * x**3))
    inner = root * (1 + 3 * 0.044715 * x**2)
    return {"gradient of x": w["g"] * (0.5 * (1 + t) + 0.5 * x * (1 - t**2) * inner)}


def silu(w: Weights) -> torch.Tensor:
    return functional.silu(w["x"])


def silu_by_formula(w: Weights) -> dict[str, jax.Array]:
    s = jax.nn.sigmoid(w["x"])
    return {"gradient of x": w["g"] * s * (1 + w["x"] * (1 - s))}


def relu(w: Weights) -> torch.Tensor:
    return functional.relu(w["x"])


def relu_by_formula(w: Weights) -> dict[str, jax.Array]:
    return {"gradient of x": jnp.where(w["x"] > 0, w["g"], 0)}


def cross_entropy(w: Weights) -> torch.Tensor:
    return functional.cross_entropy(w["logits"], torch.from_numpy(LABELS))


def cross_entropy_by_formula(w: Weights) -> dict[str, jax.Array]:
    """(softmax − one-hot)/count."""
    return {"gradient of logits": (jax.nn.softmax(w["logits"], axis=-1) - jax.nn.one_hot(LABELS, V)) / len(LABELS)}


def linear(w: Weights) -> torch.Tensor:
    return functional.linear(w["x"], w["kernel"].T, w["bias"])


def linear_by_formula(w: Weights) -> dict[str, jax.Array]:
    x, g = w["x"].reshape(-1, D), w["g"].reshape(-1, V)
    return {
        "gradient of x": w["g"] @ w["kernel"].T,
        "gradient of kernel": x.T @ g,
        "gradient of bias": g.sum(axis=0),
    }


def attention(w: Weights) -> torch.Tensor:
    return functional.scaled_dot_product_attention(w["query"], w["key"], w["value"])


def attention_by_formula(w: Weights) -> dict[str, jax.Array]:
    """As FlashAttention has it (Dao et al. 2022, appendix B): the sum over keys is that of g · output."""
    weights = jax.nn.softmax(w["query"] @ w["key"].mT / math.sqrt(D), axis=-1)
    output = weights @ w["value"]
    through = w["g"] @ w["value"].mT
    logits = weights * (through - (w["g"] * output).sum(axis=-1, keepdims=True)) / math.sqrt(D)
    return {
        "gradient of query": logits @ w["key"],
        "gradient of key": logits.mT @ w["query"],
        "gradient of value": weights.mT @ w["g"],
    }


def embedding(w: Weights) -> torch.Tensor:
    return functional.embedding(torch.from_numpy(IDS), w["table"])


def embedding_by_one_hot(w: Weights) -> dict[str, jax.Array]:
    return {"gradient of table": jnp.einsum("btv,btd->vd", jax.nn.one_hot(IDS, V), w["g"])}


def embedding_in_jax(w: Weights) -> jax.Array:
    return w["table"][IDS]


def tied(w: Weights) -> jax.Array:
    """One table embeds and is the head."""
    hidden = jnp.tanh(w["table"][IDS])
    return hidden @ w["table"].T


def two_tables(w: Weights) -> dict[str, torch.Tensor]:
    first, second = w["table"].clone(), w["table"].clone()
    logits = functional.linear(functional.embedding(torch.from_numpy(IDS), first).tanh(), second)
    found = torch.autograd.grad((logits * w["g"]).sum(), (first, second))
    return {"gradient of table": found[0] + found[1]}


# --- differentiation done otherwise


def block(w: Weights) -> jax.Array:
    hidden = jax.nn.gelu(w["x"] @ w["kernel"], approximate=False)
    return jax.nn.softmax(w["x"] + hidden @ w["back"], axis=-1)


def recomputed(w: Weights) -> jax.Array:
    return jax.checkpoint(block)(w)


def torch_block(w: Weights) -> torch.Tensor:
    hidden = functional.gelu(w["x"] @ w["kernel"])
    return torch.softmax(w["x"] + hidden @ w["back"], dim=-1)


def recomputed_in_torch(w: Weights) -> torch.Tensor:
    from torch.utils.checkpoint import checkpoint

    return checkpoint(torch_block, w, use_reentrant=False)


def forward_mode(w: Weights) -> dict[str, jax.Array]:
    """One column of the Jacobian at a time."""
    columns = [
        jax.jvp(lambda x: against(block)({**w, "x": x}), (w["x"],), (jnp.eye(B * T * D)[i].reshape(B, T, D),))[1]
        for i in range(B * T * D)
    ]
    return {"gradient of x": jnp.stack(columns).reshape(B, T, D)}


def vector_products(w: Weights) -> dict[str, torch.Tensor]:
    found = torch.autograd.functional.vjp(lambda x: torch_block({**w, "x": x}), w["x"], w["g"])
    return {"gradient of x": found[1]}


@jax.custom_vjp
def clipped_square(x: jax.Array) -> jax.Array:
    return x * x


clipped_square.defvjp(lambda x: (x * x, x), lambda x, g: (x * g + g * x,))


def by_custom_rule(w: Weights) -> jax.Array:
    return clipped_square(w["x"])


def square(w: Weights) -> torch.Tensor:
    return w["x"].pow(2)


X = {"x": (B, T, D), "g": (B, T, D)}
NORM = {**X, "scale": (D,), "bias": (D,)}
LINEAR = {"x": (B, T, D), "kernel": (D, V), "bias": (V,), "g": (B, T, V)}
ATTENTION = {"query": (B, T, D), "key": (B, K, D), "value": (B, K, D), "g": (B, T, D)}
TABLE = {"table": (V, D), "g": (2, 3, D)}
TIED = {"table": (V, D), "g": (2, 3, V)}
BLOCK = {**X, "kernel": (D, K), "back": (K, D)}


def by_autodiff(function: Function) -> Function:
    return gradients_in_torch(against(function))


PAIRS = (
    Pair("the gradient of a layer norm", NORM, in_jax(layer_norm_by_formula), in_torch(by_autodiff(layer_norm))),
    Pair("the gradient of an RMSNorm", X, in_jax(rms_norm_by_formula), in_torch(by_autodiff(rms_norm))),
    Pair("the gradient of a softmax", X, in_jax(softmax_by_formula), in_torch(by_autodiff(softmax))),
    Pair("the gradient of a softmax by its Jacobian", X, in_jax(softmax_by_jacobian), in_torch(by_autodiff(softmax))),
    Pair("the gradient of GELU", X, in_jax(gelu_by_formula), in_torch(by_autodiff(gelu))),
    Pair("the gradient of GELU by tanh", X, in_jax(gelu_tanh_by_formula), in_torch(by_autodiff(gelu_tanh))),
    Pair("the gradient of SiLU", X, in_jax(silu_by_formula), in_torch(by_autodiff(silu))),
    Pair("the gradient of ReLU", X, in_jax(relu_by_formula), in_torch(by_autodiff(relu))),
    Pair(
        "the gradient of cross-entropy",
        {"logits": (3, V)},
        in_jax(cross_entropy_by_formula),
        in_torch(gradients_in_torch(cross_entropy)),
    ),
    Pair("the gradients of a linear layer", LINEAR, in_jax(linear_by_formula), in_torch(by_autodiff(linear))),
    Pair("the gradients of attention", ATTENTION, in_jax(attention_by_formula), in_torch(by_autodiff(attention))),
    Pair(
        "the gradient of an embedding by one-hot ids",
        TABLE,
        in_jax(embedding_by_one_hot),
        in_torch(by_autodiff(embedding)),
    ),
    Pair(
        "the gradient of an embedding in both frameworks",
        TABLE,
        in_jax(gradients_in_jax(against(embedding_in_jax))),
        in_torch(by_autodiff(embedding)),
    ),
    Pair("the gradient of a tied table", TIED, in_jax(gradients_in_jax(against(tied))), in_torch(two_tables)),
    Pair(
        "jax.checkpoint, and none",
        BLOCK,
        in_jax(gradients_in_jax(against(recomputed))),
        in_jax(gradients_in_jax(against(block))),
    ),
    Pair(
        "torch.utils.checkpoint, and none",
        BLOCK,
        in_torch(by_autodiff(recomputed_in_torch)),
        in_torch(by_autodiff(torch_block)),
    ),
    Pair(
        "a block in both frameworks",
        BLOCK,
        in_jax(gradients_in_jax(against(block))),
        in_torch(by_autodiff(torch_block)),
    ),
    Pair("forward mode, and reverse mode", BLOCK, in_jax(forward_mode), in_torch(vector_products)),
    Pair("a custom derivative", X, in_jax(gradients_in_jax(against(by_custom_rule))), in_torch(by_autodiff(square))),
)
