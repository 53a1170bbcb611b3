"""What a transcription asks of the model, window by window, and the computation of one window or of many together."""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from jax_transformer.config.decoding import DecodingConfig
from jax_transformer.config.model import TransformerConfig
from jax_transformer.decoding.checks import starts_and_ends, with_empty_rows
from jax_transformer.decoding.generation import generate
from jax_transformer.decoding.padding import limit
from jax_transformer.decoding.prepared import PreparedModel
from jax_transformer.decoding.timestamps import TimestampRules
from jax_transformer.model import functional
from jax_transformer.model.features import Features
from jax_transformer.speech.alignment import attention_weights


class Decoding(NamedTuple):
    """Identifies windows that may be decoded in one batch."""

    options: DecodingConfig
    rules: TimestampRules | None
    continues: bool
    """Whether earlier text begins the decoder's input."""


class Judging(NamedTuple):
    """Identifies windows whose first logits may be computed in one batch: they tell the language, and silence."""


class Aligning(NamedTuple):
    """Identifies windows whose attention is computed, one after the other."""

    heads: tuple[tuple[int, int], ...]


Kind = Decoding | Judging | Aligning


class Window(NamedTuple):
    """Holds a window, and what is asked about it."""

    kind: Kind
    vectors: np.ndarray
    """[S, F] float32."""
    ids: tuple[int, ...] = ()
    """Of Decoding: the prefix, after the start. Of Aligning: the decoder's input, padded."""
    most: int = 0
    """Of Decoding: the most tokens after the prefix."""


class Tokens(NamedTuple):
    """Holds the tokens that were decoded, without prefix and end, and their mean log-probability."""

    ids: list[int]
    log_prob: float


Result = TypeVar("Result")
Steps = Generator[Window, Any, Result]
"""A computation that yields windows, is sent what `compute` gives for each, and returns a result."""


def run(model: PreparedModel, steps: Steps[Result]) -> Result:
    """Returns the result of a computation; computes one window at a time."""
    answer: Any = None
    try:
        while True:
            window = steps.send(answer)
            (answer,) = compute(model, window.kind, [window])
    except StopIteration as end:
        result: Result = end.value
        return result


def compute(model: PreparedModel, kind: Kind, windows: Sequence[Window]) -> Sequence[Any]:
    """Returns the answer for each window of a kind: Tokens, the logits [V] after the start, or attention [H, T, S]."""
    if isinstance(kind, Aligning):
        return [
            attention_weights(
                model.config, model.params, Features(one.vectors[None]), np.array([one.ids], np.int32), kind.heads
            )
            for one in windows
        ]
    filling = filled(len(windows)) - len(windows)
    vectors = np.stack([one.vectors for one in windows])
    source = with_empty_rows(model, Features(vectors, np.full(len(windows), vectors.shape[1], np.int32)), filling)
    assert isinstance(source, Features)  # as it was one
    if isinstance(kind, Judging):
        ids = np.full((len(windows) + filling, 1), starts_and_ends(model)[0], np.int32)
        logits = _logits(model.config, model.params, source, ids)[: len(windows), -1]
        return list(np.asarray(logits, np.float64))
    return _decoded(model, kind, windows, source)


def filled(count: int) -> int:
    """Returns the rows of a batch of so many windows: a power of two, so that few programs are compiled."""
    return 1 << (count - 1).bit_length()


def _decoded(model: PreparedModel, kind: Decoding, windows: Sequence[Window], source: Features) -> list[Tokens]:
    if kind.continues:
        speech = model.generation.speech
        assert speech is not None  # as there would be no earlier text
        model = model.with_generation(dataclasses.replace(model.generation, decoder_start_id=speech.previous_id))
    filling = source.shape[0] - len(windows)
    found = generate(
        model,
        source,
        kind.options,
        prefix_ids=[*(one.ids for one in windows), *[()] * filling],
        sentence_numbers=[0] * source.shape[0],  # draws don't depend on the batch
        most_new=[*(one.most for one in windows), *[1] * filling],
        timestamps=kind.rules,
    )
    _, end = starts_and_ends(model)
    answers = []
    for row, score, one in zip(found.sequences[:, 0], found.scores[:, 0], windows, strict=False):
        tokens = row.tolist()[len(one.ids) : len(one.ids) + one.most]
        answers.append(Tokens(tokens[: tokens.index(end)] if end in tokens else tokens, float(score)))
    return answers


def aligned_ids(model: PreparedModel, ids: Sequence[int]) -> tuple[int, ...]:
    """Returns decoder input ids padded to the one length for which attention is compiled."""
    _, end = starts_and_ends(model)
    return (*ids, *[end] * (limit(model, "target") - len(ids)))


@partial(jax.jit, static_argnames="config")
def _logits(config: TransformerConfig, params: Any, source: Features, ids: jax.Array) -> jax.Array:
    return functional.apply(config, params, source, ids).astype(jnp.float32)
