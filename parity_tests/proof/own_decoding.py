"""Ways in which our model decodes: step by step with a cache, with beams that change places, without a cache, and all
tokens at once."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jax_transformer.config.model import TransformerConfig
from jax_transformer.decoding import cache, scoring
from jax_transformer.decoding.cache import Weights
from jax_transformer.model import functional
from jax_transformer.model.functional import Params
from jax_transformer.training.step import make_evaluation_step
from proof.own_models import BATCH, Computation, Outputs, OwnPair, for_models

SOURCE, LABELS, START = BATCH.source_ids, BATCH.labels, 2
IDS = np.array([[2, 5, 6, 4], [2, 4, 9, 9], [2, 7, 8, 3], [2, 10, 4, 5]], np.int32)
"""Decoder inputs, [B, T]."""
BEAM_IDS = np.array(
    [
        [[2, 2, 2], [5, 6, 7], [4, 4, 8], [9, 3, 10]], [[2, 2, 2], [4, 5, 9], [6, 3, 3], [8, 7, 10]],
        [[2, 2, 2], [7, 3, 4], [5, 5, 9], [6, 8, 4]], [[2, 2, 2], [10, 9, 8], [7, 6, 5], [4, 3, 10]],
    ],
    np.int32,
)  # fmt: skip
"""Tokens of three beams, [B, T, K]."""
PARENTS = np.array(
    [
        [[0, 0, 1], [2, 0, 1], [1, 1, 0]], [[0, 1, 2], [2, 2, 2], [0, 2, 1]], [[2, 1, 0], [0, 0, 0], [1, 2, 2]],
        [[1, 0, 2], [1, 1, 2], [0, 1, 0]],
    ],
)  # fmt: skip
"""Which beam each beam continues after a token, [B, T − 1, K]."""
NUMBERED = {"position_index": "non_pad_count"}
"""Positions count real tokens, as in M2M-100."""


def teacher_forced(config: TransformerConfig, ids: np.ndarray = IDS) -> Computation:
    """Returns the computation of the logits after every token, at once."""

    def computed(params: Params) -> Outputs:
        masked = config.while_decoding()
        return {"logits": functional.apply(masked, params, jnp.asarray(SOURCE), jnp.asarray(ids))}

    return computed


def step_by_step(config: TransformerConfig, ids: np.ndarray = IDS, *, grown_at: int | None = None) -> Computation:
    """Returns the computation of the logits token by token, with a cache if the model allows one.

    Args:
      grown_at: the token at which the state gets more room.
    """
    room = ids.shape[1] + 2

    def computed(params: Params) -> Outputs:
        weights = Weights.of(config, params)
        length = room if grown_at is None else grown_at
        state = cache.start(config, weights, jnp.asarray(SOURCE), length, 1)
        found = []
        for number, column in enumerate(ids.T):
            state = state.grown(room) if number == grown_at else state
            logits, state = cache.step(config, weights, state, jnp.asarray(column)[:, None])
            found.append(logits[:, 0])
        return {"logits": jnp.stack(found, axis=1)}

    return computed


def with_beams(config: TransformerConfig) -> Computation:
    """Returns the computation of the logits of three beams, which continue others after each token."""

    def computed(params: Params) -> Outputs:
        weights = Weights.of(config, params)
        state = cache.start(config, weights, jnp.asarray(SOURCE), BEAM_IDS.shape[1], BEAM_IDS.shape[2])
        found = []
        for number in range(BEAM_IDS.shape[1]):
            logits, state = cache.step(config, weights, state, jnp.asarray(BEAM_IDS[:, number]))
            found.append(logits)
            if number < PARENTS.shape[1]:
                state = state.reordered(jnp.asarray(PARENTS[:, number]))
        return {"logits": jnp.stack(found, axis=1)}

    return computed


def with_histories(config: TransformerConfig) -> Computation:
    """Returns the computation of the same logits from each beam's own tokens, at once."""

    def computed(params: Params) -> Outputs:
        return {"logits": jnp.stack([last(params, ids) for ids in histories()], axis=1)}

    def last(params: Params, ids: np.ndarray) -> jax.Array:
        """Returns the logits [B, K, V] after the last of ids [B, K, t]."""
        batch, beams, length = ids.shape
        source, rows = np.repeat(SOURCE, beams, axis=0), ids.reshape(-1, length)
        found = functional.apply(config.while_decoding(), params, jnp.asarray(source), jnp.asarray(rows))
        return found[:, -1].reshape(batch, beams, -1)

    return computed


def histories() -> list[np.ndarray]:
    """Returns the tokens of each beam so far, [B, K, t] for t = 1, 2, …"""
    found = [BEAM_IDS[:, :1].swapaxes(1, 2)]
    for number in range(1, BEAM_IDS.shape[1]):
        parents = PARENTS[:, number - 1, :, None]
        continued = np.take_along_axis(found[-1], parents, axis=1)
        found.append(np.concatenate([continued, BEAM_IDS[:, number, :, None]], axis=2))
    return found


def scored(*, at_once: bool) -> Callable[[TransformerConfig], Computation]:
    """Returns the computation of the log-probabilities of all tokens by `score`."""
    return lambda config: lambda params: {"output": log_probs(config, params, at_once=at_once)}


def log_probs(config: TransformerConfig, params: Params, *, at_once: bool = True) -> jax.Array:
    found = scoring._log_probs(config, params, jnp.asarray(SOURCE), jnp.asarray(LABELS), START, at_once=at_once)
    return found[is_real(config)]  # `score` leaves out what follows the end


def is_real(config: TransformerConfig) -> np.ndarray:
    """Returns the mask of labels that aren't pads, [B, T]."""
    return np.not_equal(LABELS, config.target_pad_id)


def by_log_softmax(config: TransformerConfig) -> Computation:
    """Returns the computation of the same by the definition."""

    def computed(params: Params) -> Outputs:
        logits = teacher_forced(config, BATCH.decoder_input_ids)(params)["logits"]
        table = np.eye(config.target_vocab_size)[LABELS]
        return {"output": (table * jax.nn.log_softmax(logits)).sum(axis=-1)[is_real(config)]}

    return computed


def evaluated(config: TransformerConfig) -> Computation:
    """Returns the computation of the loss that training reports for validation sentences."""
    return lambda params: {"loss": make_evaluation_step(config)(params, BATCH)[0]}


def summed_scores(config: TransformerConfig) -> Computation:
    return lambda params: {"loss": -log_probs(config, params).sum()}


def without_cache(config: TransformerConfig, ids: np.ndarray = IDS) -> Computation:
    """Returns the computation of the logits token by token from whole prefixes."""

    def computed(params: Params) -> Outputs:
        weights = Weights(params, None)
        state = cache.start(config, weights, jnp.asarray(SOURCE), ids.shape[1], 1)
        found = []
        for column in ids.T:
            logits, state = cache.step(config, weights, state, jnp.asarray(column)[:, None])
            found.append(logits[:, 0])
        return {"logits": jnp.stack(found, axis=1)}

    return computed


HIDDEN = np.array([[0, 5, 6], [0, 4, 9], [0, 7, 8], [0, 10, 4]], np.int32)
"""Decoder inputs that start with the pad, as T5's and Marian's do."""
PADDED = np.array([[2, 5, 0, 4], [2, 4, 9, 9], [2, 0, 0, 3], [2, 10, 4, 0]], np.int32)
"""Decoder inputs with pads among them."""
PAIRS: tuple[OwnPair, ...] = (
    *for_models("steps with a cache, and teacher forcing", step_by_step, teacher_forced),
    *for_models(
        "steps with a cache that grows, and teacher forcing", lambda config: step_by_step(config, grown_at=2),
        teacher_forced,
    ),
    *for_models(
        "steps with pads among the tokens, and teacher forcing", lambda config: step_by_step(config, PADDED),
        lambda config: teacher_forced(config, PADDED),
    ),
    *for_models(
        "the same, positions counting real tokens", lambda config: step_by_step(config, PADDED),
        lambda config: teacher_forced(config, PADDED), models=("post-norm", "BART"), **NUMBERED,
    ),
    *for_models("beams that continue others, and their own tokens at once", with_beams, with_histories),
    *for_models("steps from whole prefixes, and teacher forcing", without_cache, teacher_forced),
    *for_models(
        "steps from a start that is hidden as padding, and from whole prefixes",
        lambda config: step_by_step(config, HIDDEN), lambda config: without_cache(config, HIDDEN),
    ),
    *for_models("score at once, and token by token", scored(at_once=True), scored(at_once=False)),
    *for_models("score, and its definition", scored(at_once=True), by_log_softmax),
    *for_models("a validation loss, and the scores of its sentences", evaluated, summed_scores),
)  # fmt: skip
