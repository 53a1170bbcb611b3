"""Score targets: the log-probability of each token after its prefix."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jax_transformer.config.model import TransformerConfig
from jax_transformer.decoding import cache
from jax_transformer.decoding.checks import (
    DecodingError,
    check_count,
    check_ids,
    source_arrays,
    starts_and_ends,
    with_empty_rows,
)
from jax_transformer.decoding.padding import WITHOUT_TABLE, num_positions, pad, round_length
from jax_transformer.decoding.prepared import prepare
from jax_transformer.model import functional
from jax_transformer.model.features import Features, SourceInput
from jax_transformer.model.functional import Params
from jax_transformer.model.masks import decoder_padding_id
from jax_transformer.parallel.placement import add_rows, fetch, place_rows, row_shards
from jax_transformer.parallel.tracing import in_mesh
from jax_transformer.storage.model_directory import Model


class Scores(NamedTuple):
    """Holds the scores of B targets.

    Example:
      >>> import numpy as np
      >>> scores = Scores(np.log([[0.5, 0.25], [0.5, 1.0]]), np.array([2, 1]))
      >>> np.exp(scores.log_probs).round(6).tolist()
      [0.125, 0.5]
    """

    token_log_probs: np.ndarray
    """[B, T]: the log-probability of each token after its prefix; 0 after the last."""
    lengths: np.ndarray
    """[B]: number of tokens of each target, the end token counted."""

    @property
    def log_probs(self) -> np.ndarray:
        """Returns the log-probability of each target, [B]."""
        return self.token_log_probs.sum(axis=1)

    @property
    def perplexity(self) -> float:
        """Returns the exponential of the mean negative log-probability of a token."""
        return perplexity(self.token_log_probs.sum(), self.lengths.sum())


def perplexity(log_prob: float, tokens: int) -> float:
    """Returns exp(-log_prob / tokens); infinite if a token is impossible, NaN without tokens."""
    with np.errstate(over="ignore"):
        return float(np.exp(-np.float64(log_prob) / tokens)) if tokens else math.nan


def score(
    model: Model,
    source_ids: np.ndarray | jax.Array | Sequence[Sequence[int]] | Features,
    target_ids: Sequence[Sequence[int]],
) -> Scores:
    """Returns the log-probabilities of targets, as decoding counts them.

    Decoding options don't apply: every token is scored by the model's probabilities.

    Args:
      model: a Model, or a PreparedModel.
      source_ids: [B, S] integers, padded, or a list of each sentence's ids; `Features` for a model with a stem.
      target_ids: each sentence's target without the start token; with the end token if it should count.

    Returns:
      Scores: token_log_probs [B, T] in float32 or wider, and lengths [B].

    Raises:
      DecodingError: unequal numbers of sources and targets; ids outside of the vocabulary; a target longer than the
        position table.

    Example:
      >>> import jax
      >>> from jax_transformer import GenerationConfig, Model, TransformerConfig, init_params
      >>> config = TransformerConfig(source_vocab_size=9, target_vocab_size=9, d_model=8, num_heads=2, d_ff=8,
      ...                            num_encoder_layers=1, num_decoder_layers=1)
      >>> generation = GenerationConfig(decoder_start_id=1, eos_id=2)
      >>> model = Model(config, init_params(config, jax.random.key(0)), None, None, generation)
      >>> scores = score(model, [[3, 4, 5], [6]], [[7, 2], [8, 8, 2]])
      >>> scores.lengths.tolist(), bool((scores.log_probs < 0).all())
      ([2, 3], True)
    """
    model = prepare(model)
    config = model.config
    source = source_arrays(model, source_ids)
    count = source.shape[0]
    check_count("target_ids", len(target_ids), count)
    check_ids("target", target_ids, config.target_vocab_size)
    lengths = np.array([len(ids) for ids in target_ids])
    most = num_positions(model, "target") or WITHOUT_TABLE
    if max(lengths, default=0) > most:
        raise DecodingError(f"target_ids: expected at most {most} ids; received {max(lengths)}")
    targets = pad(target_ids, pad_id=config.target_pad_id, length=round_length(max(lengths, default=1), most))
    start_id, _ = starts_and_ends(model)
    filling = -count % row_shards(model.mesh)
    rows = with_empty_rows(model, source, filling), add_rows(targets, filling, config.target_pad_id)
    with in_mesh(model.mesh):
        log_probs = _log_probs(
            config, model.params, *place_rows(rows, model.mesh), start_id, at_once=_is_causal(config, start_id)
        )
    log_probs = fetch(log_probs)[:count]
    return Scores(np.where(np.arange(targets.shape[1]) < lengths[:, None], log_probs, 0.0), lengths)


def _is_causal(config: TransformerConfig, start_id: int) -> bool:
    """Returns whether no token's logits depend on later tokens. They do if padding hides the start token: its fully
    masked row attends to all positions equally."""
    hides_start = config.while_decoding().decoder_padding == "keys" and start_id == decoder_padding_id(config)
    return config.cache_is_exact and not hides_start


@partial(jax.jit, static_argnames=("config", "at_once"))
def _log_probs(
    config: TransformerConfig,
    params: Params,
    source_ids: SourceInput,
    target_ids: jax.Array,
    start_id: int,
    *,
    at_once: bool,
) -> jax.Array:
    """Returns log-probabilities [B, T], computed at once or, as decoding does it, token by token."""
    starts = jnp.full((len(target_ids), 1), start_id, target_ids.dtype)
    inputs = jnp.concatenate([starts, target_ids[:, :-1]], axis=1)
    if at_once:
        encoder_output = functional.encode(config, params, source_ids)
        return _chosen(
            functional.decode(config.while_decoding(), params, encoder_output, source_ids, inputs), target_ids
        )

    weights = cache.Weights.of(config, params)

    def step(state: cache.State, ids: tuple[jax.Array, jax.Array]) -> tuple[cache.State, jax.Array]:
        logits, state = cache.step(config, weights, state, ids[0][:, None])
        return state, _chosen(logits[:, 0], ids[1])

    start = cache.start(config, weights, source_ids, inputs.shape[1], 1)
    return jax.lax.scan(step, start, (inputs.T, target_ids.T))[1].T


def _chosen(logits: jax.Array, ids: jax.Array) -> jax.Array:
    """Returns the log-probabilities of the ids [...] by logits [..., V]."""
    logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    return jnp.take_along_axis(logits, ids[..., None], axis=-1)[..., 0] - jax.nn.logsumexp(logits, axis=-1)
