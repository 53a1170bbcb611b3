"""Names the optimizers of frozen steps, with all of their numbers, for PyTorch and JAX."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jax_transformer.comparison.gates.arrays import ParityError

BETAS = {"b1": 0.9, "b2": 0.999, "eps": 1e-8}
OPTIMIZERS: Mapping[str, Mapping[str, float]] = {
    "sgd": {"learning_rate": 0.1},
    "adam": {"learning_rate": 1e-3, **BETAS},
    "adamw": {"learning_rate": 1e-3, **BETAS, "weight_decay": 0.01},
}
"""Names → their numbers."""
OWN_OPTIMIZER = "its own"
"""The name of one that a side gives."""


def stated(name: str | None, own: Any, learning_rate: float | None) -> dict[str, Any] | None:
    """Returns an optimizer by name with its numbers; None: no steps. Raises ParityError for an unknown name."""
    if own is not None:
        if name is not None or learning_rate is not None:
            raise ParityError("optimizer: expected a name, or one of the side's own; received both")
        return {"name": OWN_OPTIMIZER}
    if name is None:
        if learning_rate is not None:
            raise ParityError(f"learning_rate: expected an optimizer with it, one of {', '.join(OPTIMIZERS)}")
        return None
    if name not in OPTIMIZERS:
        raise ParityError(f"optimizer: expected one of {', '.join(OPTIMIZERS)}; received {name!r}")
    rate = {} if learning_rate is None else {"learning_rate": float(learning_rate)}
    return {"name": name, **OPTIMIZERS[name], **rate}


def torch_optimizer(held: Mapping[str, Any]) -> Callable[[Iterable[Any]], Any]:
    """Returns a function of parameters that makes an optimizer of PyTorch."""
    import torch

    rate = held["learning_rate"]
    if held["name"] == "sgd":
        return lambda parameters: torch.optim.SGD(parameters, lr=rate)
    numbers = {"lr": rate, "betas": (held["b1"], held["b2"]), "eps": held["eps"]}
    if held["name"] == "adam":
        return lambda parameters: torch.optim.Adam(parameters, **numbers)
    return lambda parameters: torch.optim.AdamW(parameters, **numbers, weight_decay=held["weight_decay"])


def jax_optimizer(held: Mapping[str, Any]) -> Any:
    """Returns an optimizer of optax."""
    import optax

    rate = held["learning_rate"]
    if held["name"] == "sgd":
        return optax.sgd(rate)
    numbers = {name: held[name] for name in BETAS}
    if held["name"] == "adam":
        return optax.adam(rate, **numbers)
    return optax.adamw(rate, **numbers, weight_decay=held["weight_decay"])
