"""Losses and gradients that aren't finite: where they began, in which sentences, and what came of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from jax_transformer.data.batching import Batch
from jax_transformer.data.preparation import PreparedCorpus
from jax_transformer.training.state import TrainState

MOST_ROLLBACKS = 5
"""How often a run goes back to the same checkpoint."""
MOST_SENTENCES = 32
"""How many pairs of a batch are recorded."""

Action = Literal["stop", "skip", "rollback"]


class Diverged(Exception):
    """Tells the loop that a step wasn't finite."""

    def __init__(self, divergence: Divergence) -> None:
        super().__init__(divergence)
        self.divergence = divergence


@dataclass(frozen=True)
class Divergence:
    """Holds the first step of a stretch whose loss, gradient or weights aren't finite."""

    step: int
    loss: float = 0.0
    gradient_norm: float = 0.0
    sentences: tuple[tuple[str, str], ...] = ()
    """Pairs of its batch, those of process 0."""

    @property
    def told(self) -> str:
        """Returns what was expected and received."""
        if not math.isfinite(self.loss):
            return f"expected a finite loss; received {self.loss}"
        if not math.isfinite(self.gradient_norm):
            return f"expected finite gradients; received some of norm {self.gradient_norm}"
        return "expected finite weights; received others"

    def record(self, action: Action) -> dict[str, Any]:
        """Returns what metrics.jsonl keeps of it. Numbers are text, since JSON has no NaN."""
        sentences = [{"source": source, "target": target} for source, target in self.sentences]
        figures = {"loss": str(self.loss), "gradient_norm": str(self.gradient_norm)}
        return {"step": self.step, "action": action, **figures, "sentences": sentences}


def is_finite(metrics: Mapping[str, Any]) -> bool:
    """Returns whether a step's loss and gradient are finite."""
    return all(bool(np.isfinite(np.asarray(metrics[name]))) for name in ("loss", "gradient_norm"))


@jax.jit
def _are_finite(leaves: list[jax.Array]) -> jax.Array:
    return jnp.stack([jnp.isfinite(leaf).all() for leaf in leaves]).all()


def has_finite_weights(state: TrainState) -> bool:
    """Returns whether all numbers of the parameters, their average and the optimizer's state are finite."""
    changing = state.params, state.average, state.optimizer
    return bool(_are_finite([leaf for leaf in jax.tree.leaves(changing) if jnp.issubdtype(leaf.dtype, jnp.inexact)]))


def sentences_of(batch: Batch, corpus: PreparedCorpus) -> tuple[tuple[str, str], ...]:
    """Returns the pairs of a batch as text, without padding; those of packed rows together."""
    source = corpus.source_tokenizer.decode(np.asarray(batch.source_ids)[:MOST_SENTENCES].tolist())
    target = corpus.target_tokenizer.decode(np.asarray(batch.decoder_input_ids)[:MOST_SENTENCES].tolist())
    return tuple(pair for pair in zip(source, target, strict=True) if any(pair))


EXPLODED = 10.0
"""A loss so many times that of a guess, and that of the run's beginning, won't come back."""


class Explosion:
    """Tells when a loss is finite, but far above any that a model in training has."""

    def __init__(self, vocabulary: int) -> None:
        self._guess = math.log(max(vocabulary, 2))
        self._first: float | None = None
        self._is_told = False

    def warning(self, step: int, loss: float, name: str = "loss", *, is_new: bool = False) -> str:
        """Returns a line for the user, or "": once for each stretch of exploded losses, unless the figure is new.

        Args:
          step: the step that has the loss.
          loss: in nats per token. The first one of a run is its beginning, which may be far above a guess.
          name: what the loss is of.
          is_new: whether to tell it although the loss before was told.
        """
        self._first = loss if self._first is None else self._first
        usual = max(self._guess, min(self._first, EXPLODED * self._guess))
        if loss <= EXPLODED * usual:
            self._is_told = False
            return ""
        if self._is_told and not is_new:
            return ""
        self._is_told = True
        return (
            f"warning: step {step}: {name} {loss:.4g}, where guessing has {self._guess:.2f}: the training diverges; "
            "lower train.learning_rate or set train.clip_norm"
        )
