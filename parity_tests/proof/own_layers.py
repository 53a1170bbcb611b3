"""Ways in which our model computes the same: loops over layers, recomputed activations, paths of attention, tables and
layers that are shared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from jax_transformer.config.model import TransformerConfig
from jax_transformer.model.functional import Params
from jax_transformer.runtime.trees import flatten, unflatten
from proof.own_models import (
    MODELS,
    Computation,
    Outputs,
    OwnPair,
    for_models,
    gradients_by_name,
    pair,
    shapes_of,
    whole,
)

FUSED_PATHS = ("xla", "flash")
"""Paths of attention that are proven to be the reference path."""
WITH_FUSED_PATHS = ("post-norm", "T5", "BART", "rotary, shared keys")
"""Relative vectors are computed on the reference path alone."""


def with_options(**options: Any) -> Callable[[TransformerConfig], Computation]:
    """Returns a function from a config to the computation with other options."""
    return lambda config: whole(replace(config, **options))


# --- parameters that are shared, and copies of them


def copied_layers(config: TransformerConfig, source_of: Callable[[str], str]) -> Computation:
    """Returns the computation of a larger model whose parameters are copies of a smaller one's. The gradients of the
    copies are summed.

    Args:
      config: the larger model's.
      source_of: the path of a parameter of it → the path of the smaller model's parameter that it copies.
    """
    shapes = shapes_of(config)

    def computed(params: Params) -> Outputs:
        leaves = flatten(params)
        copies = {path: _copy(leaves[source_of(path)], shape) for path, shape in shapes.items()}
        found = dict(whole(config)({"constants": {}, **unflatten(copies)}))
        sums: dict[str, Any] = {}
        for path in shapes:
            gradient, source = found.pop(f"gradient of {path}", None), source_of(path)
            if gradient is not None:
                own = _of_source(gradient, leaves[source].shape)
                sums[source] = sums[source] + own if source in sums else own
        return found | gradients_by_name(unflatten(sums))

    return computed


def _copy(leaf: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Returns a leaf as it is, in all layers, or a table [V, D] as the head's kernel [D, V]."""
    return leaf.T if leaf.shape == shape[::-1] else jnp.broadcast_to(leaf, shape)


def _of_source(gradient: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Returns a copy's contribution to the gradient of its source, which has this shape."""
    return gradient.T if gradient.shape == shape[::-1] else gradient.reshape(-1, *shape).sum(axis=0)


def of_tables(path: str) -> str:
    """Returns the source of a model's own tables and head."""
    if path in ("source_embedding/embedding", "target_embedding/embedding", "head/kernel"):
        return "shared_embedding/embedding"
    return "head_bias" if path == "head/bias" else path


def of_biases(path: str) -> str:
    """Returns the source of a layer's own relative biases."""
    return path.replace("layers/self_attention/relative_", "relative_")


def shared(model: str, source_of: Callable[[str], str], name: str, **own: Any) -> OwnPair:
    """Returns the pair of a model with shared parameters, and the model with `own` ones."""
    config = MODELS[model]
    smaller = replace(config, share_layers=True) if "share_layers" in own else config
    return pair(name, model, whole(smaller), copied_layers(replace(config, **own), source_of), config=smaller)


PAIRS: tuple[OwnPair, ...] = (
    *for_models(
        "layers in a scan, and unrolled", whole, with_options(layer_loop="unrolled"), num_encoder_layers=3,
        num_decoder_layers=3,
    ),
    *for_models("all activations recomputed, and kept", with_options(remat="all"), with_options(remat="none")),
    *for_models("all activations but products recomputed, and kept", whole, with_options(remat="none")),
    *for_models(
        "unrolled layers recomputed, and kept", with_options(layer_loop="unrolled", remat="all"),
        with_options(layer_loop="unrolled", remat="none"), models=("post-norm", "T5"),
    ),
    *(
        each
        for path in FUSED_PATHS
        for each in for_models(
            f"attention on the path {path}, and step by step", with_options(attention_path=path), whole,
            models=WITH_FUSED_PATHS, dtype="float32",
        )
    ),
    *(
        shared(model, of_tables, "one table for both sides and the head, and three", share_embeddings=False,
               tie_head=False)
        for model in ("post-norm", "T5")
    ),
    *(
        shared(model, lambda path: path, "one layer in all places, and equal layers", share_layers=False)
        for model in MODELS
    ),
    shared("T5", of_biases, "relative biases of a stack, and of each layer", relative_bias_per_layer=True),
    shared("relative vectors", of_biases, "vectors of a stack, and of each layer", relative_bias_per_layer=True),
)  # fmt: skip
