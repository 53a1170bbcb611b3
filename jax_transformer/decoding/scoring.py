"""How probable given targets are."""

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
from jax_transformer.decoding.checks import DecodingError, check_count, check_ids, source_array, starts_and_ends
from jax_transformer.decoding.padding import WITHOUT_TABLE, num_positions, pad, round_length
from jax_transformer.decoding.weights import params_of
from jax_transformer.model import functional
from jax_transformer.model.functional import Params
from jax_transformer.model.masks import decoder_padding_id
from jax_transformer.storage.model_directory import Model


class Scores(NamedTuple):
    """Of B targets."""

    token_log_probs: np.ndarray
    """[B, T]: the log-probability of each token after those before it; 0 where there is none."""
    lengths: np.ndarray
    """[B]: how many tokens each target has, the end token counted."""

    @property
    def log_probs(self) -> np.ndarray:
        """[B]: of the whole targets."""
        return self.token_log_probs.sum(axis=1)

    @property
    def perplexity(self) -> float:
        """The exponential of the mean negative log-probability of a token."""
        return perplexity(self.token_log_probs.sum(), self.lengths.sum())


def perplexity(log_prob: float, tokens: int) -> float:
    """Of tokens whose log-probabilities sum to log_prob; infinite where one is impossible, NaN where there are none."""
    with np.errstate(over="ignore"):
        return float(np.exp(-np.float64(log_prob) / tokens)) if tokens else math.nan


def score(
    model: Model, source_ids: np.ndarray | Sequence[Sequence[int]], target_ids: Sequence[Sequence[int]]
) -> Scores:
    """The log-probabilities of targets, as decoding counts them.

    Args:
      source_ids: [B, S], padded, or a list of each sentence's ids.
      target_ids: of each sentence, what its target is, without the start token and, if its end is to be counted, with
        the end token.

    Raises:
      DecodingError: other numbers of sources and targets; ids outside of the vocabulary; a target longer than the
        position table.
    """
    config = model.config
    source = source_array(model, source_ids)
    check_count("target_ids", len(target_ids), len(source))
    check_ids("target", target_ids, config.target_vocab_size)
    lengths = np.array([len(ids) for ids in target_ids])
    most = num_positions(model, "target") or WITHOUT_TABLE
    if max(lengths, default=0) > most:
        raise DecodingError(f"target_ids: expected at most {most} ids; received {max(lengths)}")
    targets = pad(target_ids, pad_id=config.target_pad_id, length=round_length(max(lengths, default=1), most))
    start_id, _ = starts_and_ends(model)
    log_probs = np.asarray(
        _log_probs(config, params_of(model), source, targets, start_id, at_once=_sees_no_more(config, start_id))
    )
    return Scores(np.where(np.arange(targets.shape[1]) < lengths[:, None], log_probs, 0.0), lengths)


def _sees_no_more(config: TransformerConfig, start_id: int) -> bool:
    """Whether no token's logits depend on what follows it: a start that is hidden as padding attends to everything
    alike."""
    hides_start = config.while_decoding().decoder_padding == "keys" and start_id == decoder_padding_id(config)
    return config.cache_is_exact and not hides_start


@partial(jax.jit, static_argnames=("config", "at_once"))
def _log_probs(
    config: TransformerConfig,
    params: Params,
    source_ids: jax.Array,
    target_ids: jax.Array,
    start_id: int,
    *,
    at_once: bool,
) -> jax.Array:
    """[B, T]: at once, or one after the other, as decoding has them."""
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
    """The log-probabilities of the ids [...] by logits [..., V]."""
    logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    return jnp.take_along_axis(logits, ids[..., None], axis=-1)[..., 0] - jax.nn.logsumexp(logits, axis=-1)
