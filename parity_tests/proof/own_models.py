"""Models of ours in several configurations, sentences for them, and what they compute: logits, loss and gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_transformer.comparison.precision import in_precision
from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.run import TrainConfig
from jax_transformer.data.batching import Batch, make_batch
from jax_transformer.model import functional
from jax_transformer.model.functional import Params
from jax_transformer.proof import Task
from jax_transformer.runtime.trees import flatten, unflatten
from jax_transformer.training.state import TrainState, init_state
from jax_transformer.training.step import StepFunctions
from proof.pairs import Pair, Weights, in_jax

Outputs = Mapping[str, Any]
"""Arrays by name: logits, loss, "gradient of …", "after step 1: …"; the first words are those of `stages.proof`."""
Computation = Callable[[Params], Outputs]

SIZES: dict[str, Any] = {
    "source_vocab_size": 11, "target_vocab_size": 11, "d_model": 8, "num_heads": 2, "d_ff": 6, "num_encoder_layers": 2,
    "num_decoder_layers": 2, "max_length": 24, "dropout_rate": 0.0, "attention_path": "reference",
}  # fmt: skip
BIASES: dict[str, Any] = {"position_kind": "relative_bias", "relative_buckets": 8, "relative_max_distance": 6}
MODELS: dict[str, TransformerConfig] = {
    "post-norm": TransformerConfig(**SIZES, share_embeddings=True, tie_head=True),
    "T5": TransformerConfig(
        **SIZES,
        **BIASES,
        share_embeddings=True,
        tie_head=True,
        norm_kind="rms_norm",
        norm_placement="pre",
        norm_bias=False,
        final_norm=True,
        scale_head=True,
        scale_embedding=False,
        attention_scale=1.0,
        attention_bias=False,
        attention_output_bias=False,
        feed_forward_bias=False,
        feed_forward_gated=True,
        activation="gelu_tanh",
        head_bias="none",
    ),
    "BART": TransformerConfig(
        **SIZES,
        share_embeddings=True,
        tie_head=True,
        position_kind="learned",
        position_offset=2,
        encoder_embedding_norm="after_positions",
        decoder_embedding_norm="after_positions",
        activation="gelu",
        head_bias="buffer",
        scale_embedding=False,
    ),
    "rotary, shared keys": TransformerConfig(
        **SIZES,
        position_kind="rotary",
        num_kv_heads=1,
        rotary_cross_attention=True,
        query_key_norm=True,
        attention_bias=False,
        norm_placement="pre",
        final_norm=True,
        parallel_residual=True,
        feed_forward_gated=True,
        activation="silu",
    ),
    "relative vectors": TransformerConfig(**SIZES, position_kind="relative_vectors", relative_max_distance=3),
}
"""Ways to build a model that differ in positions, norms, residuals, attention and feed-forward."""

SOURCES = [[4, 5, 3], [6, 7, 8, 10, 3], [5, 3], [4, 9, 7, 3]]
TARGETS = [[5, 6], [4], [7, 8, 4, 9], [6, 10, 5]]
BATCH = make_batch(SOURCES, TARGETS)
"""Four pairs, whose every half and quarter has another number of tokens."""
TRAIN = TrainConfig(
    schedule="constant",
    learning_rate=1e-3,
    warmup_steps=2,
    label_smoothing=0.1,
    clip_norm=0.5,
    weight_decay=0.01,
    weight_decay_kind="decoupled",
    ema_decay=0.99,
    adam_eps=1e-6,
)


@dataclass(frozen=True)
class OwnPair(Pair):
    """Two computations with the same parameters of a model."""

    model: str = ""
    """The configuration's name in MODELS."""
    dtype: str = "float64"
    """The dtype of the parameters, and so of what both programs compute."""

    def weights(self) -> dict[str, np.ndarray]:
        return {path: array.astype(self.dtype) for path, array in super().weights().items()}

    def task(self) -> Task:
        with in_precision("float64" if self.dtype == "float64" else "float32"):
            return super().task()

    @property
    def title(self) -> str:
        return f"{self.name}: {self.model}"


def pair(
    name: str,
    model: str,
    candidate: Computation,
    reference: Computation,
    *,
    config: TransformerConfig | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    dtype: str = "float64",
) -> OwnPair:
    """Returns a pair of computations with parameters.

    Args:
      config: whose parameters both receive. None: the model's.
      shapes: of other parameters, in place of a config's.
    """
    given = shapes_of(config or MODELS[model]) if shapes is None else shapes

    def side(computation: Computation) -> Any:
        return in_jax(lambda weights: computation(nested(weights)))

    return OwnPair(name, given, side(candidate), side(reference), model, dtype)


def for_models(
    name: str,
    candidate: Callable[[TransformerConfig], Computation],
    reference: Callable[[TransformerConfig], Computation],
    *,
    models: tuple[str, ...] = tuple(MODELS),
    dtype: str = "float64",
    **changes: Any,
) -> tuple[OwnPair, ...]:
    """Returns a pair for each model.

    Args:
      **changes: fields of the models' configs that differ from MODELS.
    """
    configs = {model: replace(MODELS[model], **changes) for model in models}
    return tuple(
        pair(name, model, candidate(config), reference(config), config=config, dtype=dtype)
        for model, config in configs.items()
    )


def shapes_of(config: TransformerConfig) -> dict[str, tuple[int, ...]]:
    return {path: leaf.shape for path, leaf in flatten(functional.abstract_params(config)).items()}


def nested(weights: Weights) -> Params:
    return {"constants": {}, **unflatten(dict(weights))}


# --- what models compute


def whole(config: TransformerConfig, batch: Batch = BATCH, train: TrainConfig = TRAIN) -> Computation:
    """Returns the computation of a batch's logits, and of its loss and gradients as a training step computes them."""

    def computed(params: Params) -> Outputs:
        return {"logits": logits(config, params, batch), **loss_and_gradients(config, params, batch, train)}

    return computed


def logits(config: TransformerConfig, params: Params, batch: Batch) -> jax.Array:
    ids = jnp.asarray(batch.source_ids), jnp.asarray(batch.decoder_input_ids)
    segments = {"source_segments": batch.source_segments, "target_segments": batch.target_segments}
    return functional.apply(config, params, *ids, **segments)


def loss_and_gradients(
    config: TransformerConfig, params: Params, batch: Batch = BATCH, train: TrainConfig = TRAIN
) -> dict[str, Any]:
    step, state = first_state(config, params, train)
    loss, gradients = step.gradients(state, batch, step.count(batch), step.dropout_key(state))
    return {"loss": loss, **gradients_by_name(gradients)}


def first_state(config: TransformerConfig, params: Params, train: TrainConfig) -> tuple[StepFunctions, TrainState]:
    """Returns the parts of a training step, and the state before the first."""
    return StepFunctions.of("proof", config, train), init_state(config, train, params)


def gradients_by_name(gradients: Params) -> dict[str, Any]:
    return {f"gradient of {path}": leaf for path, leaf in flatten(gradients).items()}
