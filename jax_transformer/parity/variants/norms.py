"""Faults of norms: the formula reads what the config says, so most of them are another config."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING, Any

from jax_transformer.parity.truth.graph import Kind
from jax_transformer.parity.variants.replay import Variant, configured, exchanged, without

if TYPE_CHECKING:
    from jax_transformer.config import TransformerConfig


NORMS: tuple[Kind, ...] = ("norm", "residual_norm", "embedding")
EPSILONS = (1e-3, 1e-5, 1e-6, 1e-8, 1e-12)


def norms(config: TransformerConfig) -> Iterator[Variant]:
    choices: dict[str, dict[str, Any]] = {
        f"ε {'inside' if config.norm_eps_outside else 'outside'} the root": {"norm_eps_outside": not config.norm_eps_outside},
        f"variance over D{'' if config.norm_unbiased else ' − 1'}": {"norm_unbiased": not config.norm_unbiased},
    }
    choices |= {f"ε = {eps:g}": {"norm_eps": eps} for eps in EPSILONS if eps != config.norm_eps}
    if config.norm_kind == "layer_norm":
        choices["RMS without centring"] = {"norm_kind": "rms_norm"}
    for name, changes in choices.items():
        yield configured(f"norm: {name}", NORMS, **changes)
    for first, second in combinations(choices, 2):
        if choices[first].keys().isdisjoint(choices[second]):
            yield configured(f"norm: {first}, and {second}", NORMS, **choices[first], **choices[second])
    yield Variant("norm: scale dropped", NORMS, partial(without, role="scale"))
    yield Variant("norm: bias dropped", NORMS, partial(without, role="bias"))
    yield Variant("norm: scale and bias swapped", NORMS, partial(exchanged, roles={"scale": "bias", "bias": "scale"}))
    yield Variant("norm missing", ("norm",), lambda replay: replay.inputs["x"])
    yield Variant("norm twice", ("norm",), lambda replay: replay.compute({"x": replay.compute()}))
