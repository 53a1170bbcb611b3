"""Whole models of ours, computed in other ways."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_transformer.config.model import TransformerConfig
from jax_transformer.model import functional
from jax_transformer.runtime.trees import flatten, unflatten
from proof.pairs import Function, Pair, Side, Weights, gradients_in_jax, in_jax

CONFIG = TransformerConfig(
    source_vocab_size=11, target_vocab_size=7, d_model=4, num_heads=2, d_ff=6, num_encoder_layers=2,
    num_decoder_layers=2, max_length=9, dropout_rate=0.0, attention_path="reference", position_kind="learned",
)  # fmt: skip
SOURCE = np.array([[3, 4, 2, 5], [6, 2, 0, 0]], np.int32)
TARGET = np.array([[1, 4, 6], [1, 3, 5]], np.int32)
SHAPES = {path: leaf.shape for path, leaf in flatten(functional.abstract_params(CONFIG)).items()}


def logits(config: TransformerConfig, source: np.ndarray = SOURCE, target: np.ndarray = TARGET) -> Function:
    return lambda w: functional.apply(config, unflatten(dict(w)), jnp.asarray(source), jnp.asarray(target))


def step_by_step(w: Weights) -> jax.Array:
    """Decodes token by token with a cache."""
    params, source = unflatten(dict(w)), jnp.asarray(SOURCE)
    state = functional.start_decoding(CONFIG, params, functional.encode(CONFIG, params, source), source, length=5)
    found = []
    for ids in TARGET.T:
        step, state = functional.decode_step(CONFIG, params, state, jnp.asarray(ids))
        found.append(step)
    return jnp.stack(found, axis=1)


def longer(config: TransformerConfig) -> Function:
    """The same sentences in a longer bucket; the pads' logits are dropped."""
    source = np.pad(SOURCE, ((0, 0), (0, 3)), constant_values=config.source_pad_id)
    target = np.pad(TARGET, ((0, 0), (0, 2)), constant_values=config.target_pad_id)
    return lambda w: logits(config, source, target)(w)[:, : TARGET.shape[1]]


def one_by_one(w: Weights) -> jax.Array:
    """Each sentence in a batch of its own."""
    rows = [logits(CONFIG, SOURCE[row : row + 1], TARGET[row : row + 1])(w) for row in range(2)]
    return jnp.concatenate(rows)


def gradients(**options: Any) -> Side:
    function = logits(replace(CONFIG, **options))
    return in_jax(gradients_in_jax(lambda w: jnp.square(function(w)).sum()))


PAIRS = (
    Pair(
        "our model, its layers in a scan and unrolled",
        SHAPES,
        in_jax(logits(CONFIG)),
        in_jax(logits(replace(CONFIG, layer_loop="unrolled"))),
    ),
    Pair("our model, its activations recomputed and kept", SHAPES, gradients(remat="all"), gradients(remat="none")),
    Pair("our model with a cache, and teacher forcing", SHAPES, in_jax(step_by_step), in_jax(logits(CONFIG))),
    Pair("our model on a longer bucket, and a shorter one", SHAPES, in_jax(longer(CONFIG)), in_jax(logits(CONFIG))),
    Pair("our model on a batch, and on each sentence", SHAPES, in_jax(logits(CONFIG)), in_jax(one_by_one)),
)
