"""What is undefined for some weights is never taken for a number: programs with roots, logarithms and divisions, and
ways in which NaN and ∞ become ordinary numbers. Each verdict is compared with what the frameworks compute."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.nn import functional

from jax_transformer.parity import prove
from jax_transformer.proof import Result, UnknownOperation, decide
from proof.pairs import Function, Pair, Side, in_jax, in_torch

SHAPE = (3, 4)
POINTS = 40
FACTORS = np.arange(1.0, 13.0)
where, relu = jnp.where, jax.nn.relu


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def jax_w(function: Any) -> Side:
    return in_jax(lambda weights: function(weights["w"]))


def torch_w(function: Any) -> Side:
    return in_torch(lambda weights: function(weights["w"]))


def gradient_in_jax(function: Any) -> Side:
    return jax_w(jax.grad(lambda w: (function(w) * FACTORS[: function(w).size].reshape(function(w).shape)).sum()))


def gradient_in_torch(function: Any) -> Side:
    def gradient(w: Any) -> Any:
        found = function(w)
        factors = torch.from_numpy(FACTORS[: found.numel()].reshape(tuple(found.shape)))
        return torch.autograd.grad((found * factors).sum(), w)[0]

    return torch_w(gradient)


def verdict(candidate: Side, reference: Side) -> tuple[str, Result | None]:
    pair = Pair("", {"w": SHAPE}, candidate, reference)
    try:
        result = decide(pair.task())
    except UnknownOperation:
        return "unknown", None
    return result.verdict, result


def computed(side: Side, weights: np.ndarray) -> np.ndarray:
    """Returns what a framework computes."""
    function: Function = side.function
    if side.framework == "jax":
        return np.asarray(function({"w": jnp.asarray(weights)}))
    return np.asarray(function({"w": torch.tensor(weights, requires_grad=True)}).detach().numpy())


def assert_true(found: str, candidate: Side, reference: Side) -> None:
    """Checks a verdict on random weights of both signs, and on positive ones."""
    rng = np.random.default_rng(0)
    shows = False
    for point in range(POINTS):
        weights = rng.standard_normal(SHAPE) * 3.0
        ours, theirs = (
            computed(side, np.abs(weights) if point % 4 == 0 else weights) for side in (candidate, reference)
        )
        both = np.isfinite(ours) & np.isfinite(theirs)
        apart = both & ~np.isclose(ours, theirs, rtol=1e-7, atol=1e-9)
        shows |= bool(apart.any())
        if found == "proven":
            assert not apart.any()
            np.testing.assert_array_equal(np.isfinite(ours), np.isfinite(theirs))
    assert found != "refuted" or shows


def is_nan_in_torch(x: Any) -> Any:
    return torch.where(torch.isnan(x), torch.zeros_like(x), x)


def safe_root(w: Any) -> Any:
    return where(w > 0, jnp.sqrt(where(w > 0, w, 1.0)), 0.0)


def safe_root_in_torch(w: Any) -> Any:
    return torch.where(w > 0, torch.sqrt(torch.where(w > 0, w, 1.0)), 0.0)


def never(w: Any) -> Any:
    return -1.0 - w**2


PAIRS: dict[str, tuple[Side, Side, str]] = {
    # tests of NaN and ∞
    "isnan of a root, and zero": (jax_w(lambda w: jnp.isnan(jnp.sqrt(w)) * 1.0), jax_w(lambda w: 0 * w), "unknown"),
    "isnan of a logarithm chooses": (
        jax_w(lambda w: where(jnp.isnan(jnp.log(w)), 0.0, w)),
        jax_w(lambda w: w),
        "unknown",
    ),
    "a logarithm that isn't itself": (
        jax_w(lambda w: where(jnp.log(w) != jnp.log(w), 0.0, w)),
        jax_w(lambda w: w),
        "unknown",
    ),
    "a root that is itself, written otherwise": (
        jax_w(lambda w: where(jnp.sqrt(w) == jnp.sqrt(w + 0.0), w, 0.0)),
        jax_w(lambda w: w),
        "unknown",
    ),
    "a root less itself": (
        jax_w(lambda w: where(jnp.sqrt(w) - jnp.sqrt(w) == 0, w, 0.0)),
        jax_w(lambda w: w),
        "unknown",
    ),
    "isinf of 1/relu": (jax_w(lambda w: where(jnp.isinf(1 / relu(w)), 0.0, w)), jax_w(lambda w: w), "unknown"),
    "isfinite of x/relu": (jax_w(lambda w: where(jnp.isfinite(w / relu(w)), w, 0.0)), jax_w(relu), "unknown"),
    "isfinite of 1/w": (jax_w(lambda w: where(jnp.isfinite(1 / w), w, 0.0)), jax_w(lambda w: w), "proven"),
    "isnan of a power": (jax_w(lambda w: where(jnp.isnan(w**-1.5), 0.0, w)), jax_w(lambda w: w), "unknown"),
    "isnan of a norm": (
        jax_w(lambda w: where(jnp.isnan(w / jnp.linalg.norm(w)), 0.0, w)),
        jax_w(lambda w: w),
        "proven",
    ),
    "nan_to_num of a root": (jax_w(lambda w: jnp.nan_to_num(jnp.sqrt(w)) ** 2), jax_w(lambda w: w), "unknown"),
    "nan_to_num of a root, and relu": (jax_w(lambda w: jnp.nan_to_num(jnp.sqrt(w)) ** 2), jax_w(relu), "unknown"),
    "nan_to_num of numbers": (jax_w(lambda w: jnp.nan_to_num(jnp.sin(w))), jax_w(jnp.sin), "proven"),
    "a sum that skips NaN": (
        jax_w(lambda w: jnp.nansum(jnp.log(w), -1)),
        jax_w(lambda w: jnp.log(w).sum(-1)),
        "unknown",
    ),
    "a mean that skips NaN": (
        jax_w(lambda w: jnp.nanmean(jnp.sqrt(w))),
        jax_w(lambda w: jnp.sqrt(w).mean()),
        "unknown",
    ),
    "a maximum that skips NaN": (
        jax_w(lambda w: jnp.nanmax(jnp.sqrt(w))),
        jax_w(lambda w: jnp.sqrt(w).max()),
        "unknown",
    ),
    "a mean that skips no NaN": (jax_w(lambda w: jnp.nanmean(w * w)), jax_w(lambda w: (w * w).mean()), "proven"),
    "fmax": (jax_w(lambda w: jnp.fmax(jnp.log(w), 0.0)), jax_w(lambda w: jnp.maximum(jnp.log(w), 0.0)), "unknown"),
    "isnan in PyTorch": (torch_w(lambda w: is_nan_in_torch(torch.log(w))), torch_w(torch.log), "unknown"),
    "isnan of NaN in PyTorch": (
        torch_w(lambda w: torch.where(torch.isnan(torch.log(-torch.ones_like(w))), w, 2 * w)),
        torch_w(lambda w: 1 * w),
        "proven",
    ),
    "nan_to_num in PyTorch": (
        torch_w(lambda w: torch.nan_to_num(torch.sqrt(w)) ** 2),
        torch_w(lambda w: 1 * w),
        "unknown",
    ),
    "nansum in PyTorch": (
        torch_w(lambda w: torch.nansum(torch.log(w), -1)),
        torch_w(lambda w: torch.log(w).sum(-1)),
        "unknown",
    ),
    "nanmean in PyTorch": (torch_w(lambda w: torch.nanmean(w * w)), jax_w(lambda w: (w * w).mean()), "proven"),
    "isfinite in PyTorch": (
        torch_w(lambda w: torch.where(torch.isfinite(torch.rsqrt(w)), w, 0.0)),
        torch_w(torch.relu),
        "unknown",
    ),
    # comparisons
    "exp of a logarithm above 0": (
        jax_w(lambda w: where(jnp.exp(jnp.log(w)) > 0, w, 0.0)),
        jax_w(lambda w: w),
        "unknown",
    ),
    "a root that isn't negative": (jax_w(lambda w: where(jnp.sqrt(w) >= 0, w, 0.0)), jax_w(lambda w: w), "unknown"),
    "the sign of a root": (jax_w(lambda w: w * jnp.sign(jnp.sqrt(w))), jax_w(lambda w: w), "unknown"),
    "the sign of a root in PyTorch": (
        torch_w(lambda w: w * torch.sign(torch.sqrt(w))),
        torch_w(lambda w: 1 * w),
        "unknown",
    ),
    "a logarithm as a condition": (
        jax_w(lambda w: where(jnp.log(w).astype(bool), w, 0.0)),
        jax_w(lambda w: w),
        "unknown",
    ),
    "the place of the largest root": (
        jax_w(lambda w: jax.nn.one_hot(jnp.argmax(jnp.sqrt(w), -1), 4)),
        jax_w(lambda w: jax.nn.one_hot(jnp.argmax(jnp.sqrt(w), -1), 4)),
        "unknown",
    ),
    # what makes numbers of ∞
    "exp of log 0": (jax_w(lambda w: jnp.exp(jnp.log(relu(w)))), jax_w(relu), "unknown"),
    "exp of log 0, and NaN": (
        jax_w(lambda w: jnp.exp(jnp.log(relu(w)))),
        jax_w(lambda w: relu(w) + 0 * jnp.log(relu(w))),
        "unknown",
    ),
    "1/(1/0)": (jax_w(lambda w: 1 / (1 / relu(w))), jax_w(relu), "unknown"),
    "tanh of 1/0": (jax_w(lambda w: jnp.tanh(1 / relu(w))), jax_w(lambda w: jnp.tanh(1 / relu(w))), "unknown"),
    "the least of 1/0 and 5": (
        jax_w(lambda w: jnp.minimum(1 / relu(w), 5.0)),
        jax_w(lambda w: jnp.clip(1 / relu(w), 0, 5)),
        "unknown",
    ),
    "relu of log 0": (jax_w(lambda w: relu(jnp.log(relu(w)))), jax_w(lambda w: relu(jnp.log(w))), "unknown"),
    "a softmax with log 0": (
        jax_w(lambda w: jax.nn.softmax(jnp.log(relu(w)))),
        jax_w(lambda w: relu(w) / relu(w).sum(-1, keepdims=True)),
        "unknown",
    ),
    "the largest of log 0": (
        jax_w(lambda w: jnp.max(jnp.log(relu(w)), -1)),
        jax_w(lambda w: jnp.log(jnp.max(relu(w), -1))),
        "unknown",
    ),
    "a clamp of 1/0 in PyTorch": (
        torch_w(lambda w: (1 / torch.relu(w)).clamp(max=5.0)),
        torch_w(lambda w: 1 / torch.relu(w) - torch.relu(1 / torch.relu(w) - 5.0)),
        "unknown",
    ),
    # domains
    "exp of a logarithm, and its argument": (jax_w(lambda w: jnp.exp(jnp.log(w))), jax_w(lambda w: w), "unknown"),
    "exp of a logarithm, twice": (
        jax_w(lambda w: jnp.exp(jnp.log(w))),
        torch_w(lambda w: torch.exp(torch.log(w))),
        "proven",
    ),
    "a root's square": (jax_w(lambda w: jnp.sqrt(w) ** 2), jax_w(lambda w: w), "unknown"),
    "a root times itself": (jax_w(lambda w: jnp.sqrt(w) * jnp.sqrt(w)), jax_w(lambda w: w), "unknown"),
    "a root times itself, twice": (
        jax_w(lambda w: jnp.sqrt(w) * jnp.sqrt(w)),
        torch_w(lambda w: w.sqrt() ** 2),
        "proven",
    ),
    "exp of a logarithm, and a root's square": (
        jax_w(lambda w: jnp.exp(jnp.log(w))),
        torch_w(lambda w: w.sqrt() ** 2),
        "unknown",
    ),
    "a root's cube": (jax_w(lambda w: jnp.sqrt(w) ** 3), torch_w(lambda w: w * w.sqrt()), "proven"),
    "rsqrt": (jax_w(jax.lax.rsqrt), torch_w(lambda w: 1 / w.sqrt()), "proven"),
    "roots of twice a weight": (
        jax_w(lambda w: jnp.sqrt(2 * w)),
        torch_w(lambda w: 2**0.5 * w.sqrt()),
        "proven",
    ),
    "a power of −1/2": (jax_w(lambda w: jnp.power(w, -0.5)), torch_w(lambda w: w**-0.5), "proven"),
    "entries that are swapped": (
        jax_w(lambda w: jnp.stack([jnp.exp(jnp.log(w)), w])),
        jax_w(lambda w: jnp.stack([w, jnp.exp(jnp.log(w))])),
        "unknown",
    ),
    "a masked domain": (
        jax_w(lambda w: where(np.arange(4) < 2, jnp.exp(jnp.log(w)), w)),
        jax_w(lambda w: jnp.concatenate([jnp.exp(jnp.log(w[:, :2])), w[:, 2:]], 1)),
        "proven",
    ),
    "another mask of a domain": (
        jax_w(lambda w: where(np.arange(4) < 2, jnp.exp(jnp.log(w)), w)),
        jax_w(lambda w: where(np.arange(4) < 3, jnp.exp(jnp.log(w)), w)),
        "unknown",
    ),
    "logarithms of a product": (
        jax_w(lambda w: jnp.log(w[0]) + jnp.log(w[1])),
        jax_w(lambda w: jnp.log(w[0] * w[1])),
        "unknown",
    ),
    "0 times a root": (jax_w(lambda w: w + 0 * jnp.sqrt(w)), jax_w(lambda w: w), "unknown"),
    "0 divided by a root": (jax_w(lambda w: w + 0 / jnp.sqrt(w)), torch_w(lambda w: 1 * w), "unknown"),
    "a root divided by itself": (
        jax_w(lambda w: w * (jnp.sqrt(w) / jnp.sqrt(w))),
        jax_w(lambda w: w),
        "unknown",
    ),
    "0 times the logarithm of a root": (
        jax_w(lambda w: w + 0 * jnp.log(jnp.sqrt(w))),
        jax_w(lambda w: w),
        "unknown",
    ),
    "0 times the logarithm of 1 divided by a root": (
        jax_w(lambda w: w + 0 * jnp.log(1 / jnp.sqrt(w))),
        jax_w(lambda w: w),
        "unknown",
    ),
    "a root, and one divided by itself": (
        jax_w(lambda w: jnp.sqrt(w) + 0 / jnp.sqrt(w)),
        torch_w(lambda w: torch.sqrt(w)),
        "proven",
    ),
    "a sum of roots": (jax_w(lambda w: jnp.sqrt(w).sum(-1)), torch_w(lambda w: w.sqrt().sum(-1)), "proven"),
    "a sum of roots, and of |w|": (jax_w(lambda w: jnp.sqrt(w)), jax_w(lambda w: jnp.sqrt(jnp.abs(w))), "unknown"),
    "two logarithms": (jax_w(lambda w: jnp.log(w)), jax_w(lambda w: 2 * jnp.log(w)), "refuted"),
    "the largest root": (jax_w(lambda w: jnp.sqrt(w).max(-1)), torch_w(lambda w: w.sqrt().amax(-1)), "proven"),
    "relu of a logarithm": (jax_w(lambda w: relu(jnp.log(w))), torch_w(lambda w: torch.log(w).relu()), "proven"),
    "a distance": (
        jax_w(lambda w: jnp.sqrt((w[0] * (w[0] - w[1])).sum() - (w[1] * (w[0] - w[1])).sum())),
        jax_w(lambda w: jnp.sqrt(((w[0] - w[1]) ** 2).sum())),
        "proven",
    ),
    "an ordered domain": (
        jax_w(lambda w: jnp.log(jnp.diff(w.ravel())).sum() + w),
        jax_w(lambda w: jnp.log(jnp.diff(w.ravel())).sum() + w),
        "unknown",
    ),
    # programs that are defined for no weights
    "a root of what is negative": (jax_w(lambda w: w + 0 * jnp.sqrt(never(w))), jax_w(lambda w: w), "unknown"),
    "a root of what is negative, twice": (
        jax_w(lambda w: w + jnp.sqrt(never(w))),
        jax_w(lambda w: w + jnp.sqrt(never(w))),
        "unknown",
    ),
    "a root of what is negative, and other": (
        jax_w(lambda w: w + jnp.sqrt(never(w))),
        jax_w(lambda w: 2 * w + jnp.sqrt(never(w))),
        "unknown",
    ),
    "exp of a logarithm of what is negative": (
        jax_w(lambda w: jnp.exp(jnp.log(never(w)))),
        jax_w(never),
        "unknown",
    ),
    "log of 0": (jax_w(lambda w: w + 0 * jnp.log(w - w)), jax_w(lambda w: w + 0 * jnp.log(w - w)), "unknown"),
    "in PyTorch": (
        torch_w(lambda w: w + 0 * torch.sqrt(-1 - w * w)),
        torch_w(lambda w: w + 0 * torch.sqrt(-1 - w * w)),
        "unknown",
    ),
    # choices
    "a choice of roots, and by two choices": (
        jax_w(lambda w: where(w > 0, jnp.sqrt(w), 0.0)),
        jax_w(safe_root),
        "unknown",
    ),
    "a choice of roots": (
        torch_w(lambda w: torch.where(w > 0, torch.sqrt(w), 0.0)),
        jax_w(lambda w: where(w <= 0, 0.0, jnp.sqrt(w))),
        "proven",
    ),
    "choices of roots": (torch_w(safe_root_in_torch), jax_w(safe_root), "proven"),
    "a choice of logarithms above 1": (
        jax_w(lambda w: where(w > 1, jnp.log(w), 0.0)),
        torch_w(lambda w: torch.where(w <= 1, 0.0, torch.log(w))),
        "proven",
    ),
    "a choice of logarithms above −1": (
        jax_w(lambda w: where(w > -1, jnp.log(w), 0.0)),
        jax_w(lambda w: where(w > -1, jnp.log(w), 0.0)),
        "unknown",
    ),
    "a choice by another weight": (
        jax_w(lambda w: where(w[::-1] > 0, jnp.log(w), 0.0)),
        jax_w(lambda w: where(w[::-1] > 0, jnp.log(w), 0.0)),
        "unknown",
    ),
    "a choice of what was turned round": (
        jax_w(lambda w: where(w > 0, jnp.log(w)[::-1], 0.0)),
        jax_w(lambda w: where(w > 0, jnp.log(w)[::-1], 0.0)),
        "unknown",
    ),
    "a choice, and a product with the condition": (
        jax_w(lambda w: where(w > 0, jnp.log(w), 0.0)),
        jax_w(lambda w: (w > 0) * jnp.log(w)),
        "unknown",
    ),
    "a product with a condition, twice": (
        jax_w(lambda w: (w > 0) * jnp.log(w)),
        torch_w(lambda w: (w > 0) * torch.log(w)),
        "unknown",
    ),
    "a norm that is clipped by a choice": (
        jax_w(lambda w: where(jnp.linalg.norm(w) < 1, w, w / jnp.linalg.norm(w))),
        torch_w(lambda w: torch.where(w.norm() >= 1, w / w.norm(), w)),
        "proven",
    ),
    "a norm of ReLUs that is clipped by a choice": (
        jax_w(lambda w: (lambda n: where(n < 1, w, w / n))(jnp.linalg.norm(relu(w)))),
        torch_w(lambda w: (lambda n: torch.where(n >= 1, w / n, w))(w.relu().norm())),
        "proven",
    ),
    "a norm that isn't zero": (
        jax_w(lambda w: (lambda n: where(n == 0, 0.0, w / n))(relu(w).sum())),
        jax_w(lambda w: (lambda n: where(n != 0, w / n, 0.0))(relu(w).sum())),
        "proven",
    ),
    # gradients
    "the gradient of a root": (gradient_in_jax(jnp.sqrt), gradient_in_torch(torch.sqrt), "proven"),
    "the gradient of a root of ReLU": (
        gradient_in_jax(lambda w: jnp.sqrt(relu(w))),
        gradient_in_torch(lambda w: torch.sqrt(torch.relu(w))),
        "proven",
    ),
    "the gradient of a root of ReLU, and of a safe root": (
        gradient_in_jax(lambda w: jnp.sqrt(relu(w))),
        gradient_in_jax(safe_root),
        "unknown",
    ),
    "the gradient of a choice of roots": (
        gradient_in_jax(lambda w: where(w > 0, jnp.sqrt(w), 0.0)),
        gradient_in_torch(lambda w: torch.where(w > 0, torch.sqrt(w), 0.0)),
        "proven",
    ),
    "the gradient of a choice of roots, and of a safe root": (
        gradient_in_jax(lambda w: where(w > 0, jnp.sqrt(w), 0.0)),
        gradient_in_jax(safe_root),
        "unknown",
    ),
    "the gradient of a safe root": (gradient_in_jax(safe_root), gradient_in_torch(safe_root_in_torch), "proven"),
    "the gradient of a choice of logarithms": (
        gradient_in_jax(lambda w: where(w > 0, jnp.log(w), 0.0)),
        gradient_in_torch(lambda w: torch.where(w > 0, torch.log(w), 0.0)),
        "proven",
    ),
    "the gradient of relu of a logarithm": (
        gradient_in_jax(lambda w: relu(jnp.log(w))),
        gradient_in_torch(lambda w: torch.relu(torch.log(w))),
        "unknown",
    ),
    "the gradient of |√w|": (
        gradient_in_jax(lambda w: jnp.abs(jnp.sqrt(w))),
        gradient_in_torch(lambda w: torch.sqrt(w).abs()),
        "unknown",
    ),
    "the gradient of a norm": (
        gradient_in_jax(lambda w: jnp.linalg.norm(w, axis=-1)),
        gradient_in_torch(lambda w: w.norm(dim=-1)),
        "proven",
    ),
    "the gradient of a root's square": (
        gradient_in_jax(lambda w: jnp.sqrt(w) ** 2),
        gradient_in_torch(lambda w: 1 * w),
        "unknown",
    ),
    "the gradient of w log w": (
        gradient_in_jax(lambda w: w * jnp.log(w)),
        gradient_in_torch(lambda w: w * torch.log(w)),
        "proven",
    ),
    "the gradient of xlogy": (
        gradient_in_jax(lambda w: jax.scipy.special.xlogy(w, w)),
        gradient_in_torch(lambda w: torch.xlogy(w, w)),
        "unknown",
    ),
    "the gradient of a clamped logarithm": (
        gradient_in_jax(lambda w: jnp.clip(jnp.log(w), -1, 1)),
        gradient_in_torch(lambda w: torch.log(w).clamp(-1, 1)),
        "unknown",
    ),
    "normalize": (
        jax_w(lambda w: w / jnp.maximum(jnp.linalg.norm(w, axis=-1, keepdims=True), 1e-12)),
        torch_w(lambda w: functional.normalize(w, dim=-1)),
        "proven",
    ),
}


@pytest.mark.parametrize("name", list(PAIRS))
def test_verdicts_are_true(name: str) -> None:
    candidate, reference, expected = PAIRS[name]
    found, result = verdict(candidate, reference)
    assert_true(found, candidate, reference)
    assert found == expected, result and (result.reason, result.difference)


UNREAD: dict[str, tuple[Any, Any]] = {
    "NaN for all weights": (lambda p, i: p["w"] + jnp.inf - jnp.inf, lambda p, i: 1 * p["w"]),
    "NaN for all weights, and another function": (lambda p, i: p["w"] + jnp.inf - jnp.inf, lambda p, i: 2 * p["w"]),
    "NaN of a function without a rule": (lambda p, i: p["w"] + 0 * jnp.arctanh(2 + p["w"] ** 2), lambda p, i: p["w"]),
    "NaN at an index that isn't there": (lambda p, i: jnp.take(p["w"], 99) + p["w"], lambda p, i: 2 * p["w"]),
}


@pytest.mark.parametrize("name", list(UNREAD))
def test_gradients_of_an_output_that_no_rule_computes_are_unknown(name: str) -> None:
    """It may be undefined where they seem to be defined."""
    certificate = prove(*UNREAD[name], inputs={}, weights={"w": np.ones(SHAPE)})
    assert [stage.verdict for stage in certificate.stages] == ["unknown", "unknown"]
    assert certificate.stages[0].reason in certificate.stages[1].reason
    assert certificate.difference is None
