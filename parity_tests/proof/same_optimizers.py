"""Pairs of ways to write optimizer steps that are the same function of weights and gradients."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import optax
import torch

from proof.pairs import Pair, Weights, in_jax, in_torch

LR, B1, B2, EPS, DECAY = 2**-10, 0.875, 0.9375, 1e-9, 0.25
"""Floats that 1 − β² can be computed from exactly: in float64, 1 − 0.98² is another number than 0.0396."""
STEP = {"w": (3, 4), "g": (3, 4)}
TWO_STEPS = {"w": (3, 4), "g": (3, 4), "h": (3, 4)}
MOMENTS = {"w": (3, 4), "g": (3, 4), "m": (3, 4), "root_v": (3, 4)}
"""The second moment is given as the square of its root: it is positive."""


# --- Adam


def adam(w: Weights, steps: int = 3) -> jax.Array:
    """Kingma & Ba 2015, algorithm 1."""
    m = B1 * w["m"] + (1 - B1) * w["g"]
    v = B2 * w["root_v"] ** 2 + (1 - B2) * w["g"] ** 2
    return w["w"] - LR * (m / (1 - B1**steps)) / (jnp.sqrt(v / (1 - B2**steps)) + EPS)


def adam_with_folded_correction(w: Weights, steps: int = 3) -> torch.Tensor:
    """Section 2's faster order: α √(1 − β₂ᵗ)/(1 − β₁ᵗ), and ε times √(1 − β₂ᵗ)."""
    m = w["m"].lerp(w["g"], 1 - B1)
    v = B2 * w["root_v"].square() + (1 - B2) * w["g"] * w["g"]
    correction = torch.sqrt(torch.tensor(1 - B2**steps, dtype=torch.float64))
    return w["w"] - LR * correction / (1 - B1**steps) * m / (v.sqrt() + EPS * correction)


def adam_of_optax(w: Weights) -> jax.Array:
    return by_optax(optax.adam(LR, B1, B2, EPS), w, ("g", "h"))


def adam_of_torch(w: Weights) -> torch.Tensor:
    return by_torch(lambda p: torch.optim.Adam(p, LR, (B1, B2), EPS, foreach=False), w, ("g", "h"))


def by_optax(optimizer: Any, w: Weights, gradients: tuple[str, ...]) -> jax.Array:
    value, state = w["w"], optimizer.init(w["w"])
    for name in gradients:
        update, state = optimizer.update(w[name], state, value)
        value = optax.apply_updates(value, update)
    return value


def by_torch(make: Any, w: Weights, gradients: tuple[str, ...]) -> torch.Tensor:
    value = w["w"].detach().requires_grad_()
    optimizer = make([value])
    for name in gradients:
        value.grad = w[name].detach().clone()
        optimizer.step()
    return value


def adamw_of_optax(w: Weights) -> jax.Array:
    return by_optax(optax.adamw(LR, B1, B2, EPS, weight_decay=DECAY), w, ("g", "h"))


def adamw_of_torch(w: Weights) -> torch.Tensor:
    return by_torch(lambda p: torch.optim.AdamW(p, LR, (B1, B2), EPS, weight_decay=DECAY, foreach=False), w, ("g", "h"))


def adam_by_hand(w: Weights) -> jax.Array:
    value, m, v = w["w"], 0.0, 0.0
    for step, name in enumerate(("g", "h"), start=1):
        m, v = B1 * m + (1 - B1) * w[name], B2 * v + (1 - B2) * w[name] ** 2
        value = value - LR * m / (1 - B1**step) / (jnp.sqrt(v / (1 - B2**step)) + EPS)
    return value


def adam_by_scan(w: Weights) -> jax.Array:
    def body(carry: Any, x: Any) -> tuple[Any, None]:
        (value, m, v), (g, first, second) = carry, x
        m, v = B1 * m + (1 - B1) * g, B2 * v + (1 - B2) * g**2
        return (value - LR * m / first / (jnp.sqrt(v / second) + EPS), m, v), None

    corrections = [jnp.array([1 - beta, 1 - beta**2]) for beta in (B1, B2)]
    zeros = jnp.zeros_like(w["w"])
    return jax.lax.scan(body, (w["w"], zeros, zeros), (jnp.stack([w["g"], w["h"]]), *corrections))[0][0]


# --- SGD, decay, averages


def momentum_of_torch(w: Weights) -> torch.Tensor:
    return by_torch(lambda p: torch.optim.SGD(p, LR, 0.9, foreach=False), w, ("g", "h"))


def momentum_of_optax(w: Weights) -> jax.Array:
    return by_optax(optax.sgd(LR, 0.9), w, ("g", "h"))


def heavy_ball(w: Weights) -> jax.Array:
    """w₂ = w₁ − α h + β (w₁ − w₀)."""
    first = w["w"] - LR * w["g"]
    return first - LR * w["h"] + 0.9 * (first - w["w"])


def nesterov_of_torch(w: Weights) -> torch.Tensor:
    return by_torch(lambda p: torch.optim.SGD(p, LR, 0.9, nesterov=True, foreach=False), w, ("g", "h"))


def nesterov_of_optax(w: Weights) -> jax.Array:
    return by_optax(optax.sgd(LR, 0.9, nesterov=True), w, ("g", "h"))


def decayed_weights(w: Weights) -> torch.Tensor:
    value = w["w"] * (1 - LR * DECAY)
    return value - LR * w["g"]


def decay_in_the_update(w: Weights) -> jax.Array:
    return w["w"] - LR * (w["g"] + DECAY * w["w"])


def moving_average(w: Weights) -> torch.Tensor:
    return torch.lerp(w["w"], w["g"], 0.001)


def weighted_average(w: Weights) -> jax.Array:
    return 0.999 * w["w"] + 0.001 * w["g"]


# --- clipping


def clipped_by_torch(w: Weights) -> torch.Tensor:
    g = w["g"].detach().clone()
    norm = torch.linalg.vector_norm(g)
    return g * (1.0 / (norm + 1e-6)).clamp(max=1.0)


def clipped_by_minimum(w: Weights) -> jax.Array:
    norm = jnp.sqrt(jnp.sum(w["g"] ** 2))
    return w["g"] * jnp.minimum(1.0, 1.0 / (norm + 1e-6))


def clipped_by_optax(w: Weights) -> jax.Array:
    update, _ = optax.clip_by_global_norm(1.5).update([w["g"], w["h"]], optax.EmptyState())
    return jnp.concatenate(update)


def clipped_by_where(w: Weights) -> torch.Tensor:
    whole = torch.cat([w["g"], w["h"]])
    norm = whole.square().sum().sqrt()
    return torch.where(norm < 1.5, whole, whole / norm * 1.5)


def normed_gradient(w: Weights) -> jax.Array:
    return w["g"] / optax.tree.norm(w["g"])


def normed_gradient_in_torch(w: Weights) -> torch.Tensor:
    return w["g"] / w["g"].norm()


# --- schedules


def noam(w: Weights) -> jax.Array:
    rates = [8**-0.5 * min(step**-0.5, step * 4**-1.5) for step in (1, 2)]
    return w["w"] - rates[0] * w["g"] - rates[1] * w["h"]


def noam_by_roots(w: Weights) -> torch.Tensor:
    first, second = (step / (4 * math.sqrt(4 * 8)) for step in (1, 2))
    return w["w"] - (first * w["g"] + second * w["h"])


PAIRS = (
    Pair("Adam's bias correction folded into its rate", MOMENTS, in_jax(adam), in_torch(adam_with_folded_correction)),
    Pair("two steps of optax.adam, and of torch.optim.Adam", TWO_STEPS, in_jax(adam_of_optax), in_torch(adam_of_torch)),
    Pair("two steps of optax.adam, and by hand", TWO_STEPS, in_jax(adam_of_optax), in_jax(adam_by_hand)),
    Pair("two steps of Adam by scan, and by torch.optim", TWO_STEPS, in_jax(adam_by_scan), in_torch(adam_of_torch)),
    Pair(
        "two steps of optax.adamw, and of torch.optim.AdamW",
        TWO_STEPS,
        in_jax(adamw_of_optax),
        in_torch(adamw_of_torch),
    ),
    Pair("two steps with momentum", TWO_STEPS, in_jax(momentum_of_optax), in_torch(momentum_of_torch)),
    Pair("momentum as a heavy ball", TWO_STEPS, in_jax(heavy_ball), in_torch(momentum_of_torch)),
    Pair("two steps with Nesterov's momentum", TWO_STEPS, in_jax(nesterov_of_optax), in_torch(nesterov_of_torch)),
    Pair("decay of the weights, and in the update", STEP, in_jax(decay_in_the_update), in_torch(decayed_weights)),
    Pair("a moving average", STEP, in_jax(weighted_average), in_torch(moving_average)),
    Pair("clipping by a minimum, and by a clamp", STEP, in_jax(clipped_by_minimum), in_torch(clipped_by_torch)),
    Pair("clipping of optax, and by where", TWO_STEPS, in_jax(clipped_by_optax), in_torch(clipped_by_where)),
    Pair("a gradient divided by its norm", STEP, in_jax(normed_gradient), in_torch(normed_gradient_in_torch)),
    Pair("the inverse root schedule", TWO_STEPS, in_jax(noam), in_torch(noam_by_roots)),
)
