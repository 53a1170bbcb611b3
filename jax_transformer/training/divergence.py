"""Detects losses, gradients and weights that aren't finite, and records their step, sentences and consequence."""

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
"""Maximum number of rollbacks to the same checkpoint."""
MOST_SENTENCES = 32
"""Maximum number of recorded pairs of a batch."""

Action = Literal["stop", "skip", "rollback"]


class Diverged(Exception):
    """Raised when a step's loss, gradient or weights aren't finite."""

    def __init__(self, divergence: Divergence) -> None:
        super().__init__(divergence)
        self.divergence = divergence


@dataclass(frozen=True)
class Divergence:
    """Holds the first of consecutive steps whose loss, gradient or weights aren't finite."""

    step: int
    loss: float = 0.0
    gradient_norm: float = 0.0
    sentences: tuple[tuple[str, str], ...] = ()
    """The pairs of its batch in process 0."""

    @property
    def message(self) -> str:
        """Describes the problem for the user."""
        if not math.isfinite(self.loss):
            return f"expected a finite loss; received {self.loss}"
        if not math.isfinite(self.gradient_norm):
            return f"expected finite gradients; received gradients of norm {self.gradient_norm}"
        return "weights contain NaN or infinity"

    def record(self, action: Action) -> dict[str, Any]:
        """Returns the record for metrics.jsonl. Numbers are text, since JSON has no NaN."""
        sentences = [{"source": source, "target": target} for source, target in self.sentences]
        figures = {"loss": str(self.loss), "gradient_norm": str(self.gradient_norm)}
        return {"step": self.step, "action": action, **figures, "sentences": sentences}


def is_finite(metrics: Mapping[str, Any]) -> bool:
    """Checks that a step's loss and gradient are finite."""
    return all(bool(np.isfinite(np.asarray(metrics[name]))) for name in ("loss", "gradient_norm"))


@jax.jit
def _are_finite(leaves: list[jax.Array]) -> jax.Array:
    return jnp.stack([jnp.isfinite(leaf).all() for leaf in leaves]).all()


def has_finite_weights(state: TrainState) -> bool:
    """Checks that the parameters, their average and the optimizer's state are finite."""
    changing = state.params, state.average, state.optimizer
    return bool(_are_finite([leaf for leaf in jax.tree.leaves(changing) if jnp.issubdtype(leaf.dtype, jnp.inexact)]))


def sentences_of(batch: Batch, corpus: PreparedCorpus) -> tuple[tuple[str, str], ...]:
    """Decodes the pairs of a batch, without padding; each packed row gives one pair of joined texts."""
    source = corpus.source_tokenizer.decode(np.asarray(batch.source_ids)[:MOST_SENTENCES].tolist())
    target = corpus.target_tokenizer.decode(np.asarray(batch.decoder_input_ids)[:MOST_SENTENCES].tolist())
    return tuple(pair for pair in zip(source, target, strict=True) if any(pair))


EXPLODED = 10.0
"""Factor by which an exploded loss exceeds both the loss of random guessing and that of the run's beginning; training
doesn't recover from such a loss."""


class Explosion:
    """Warns of finite losses far above any that a model in training has."""

    def __init__(self, vocabulary: int) -> None:
        self._guess = math.log(max(vocabulary, 2))
        self._first: float | None = None
        self._has_warned = False

    def warning(self, step: int, loss: float, name: str = "loss", *, is_new: bool = False) -> str:
        """Returns a warning for the first of consecutive exploded losses, otherwise "".

        Args:
          step: the step that has the loss.
          loss: in nats per token. The first one that a run passes is its beginning, which may be far above a guess.
          name: the kind of loss, such as "validation loss".
          is_new: whether to warn even if the previous loss had exploded, too.
        """
        self._first = loss if self._first is None else self._first
        usual = max(self._guess, min(self._first, EXPLODED * self._guess))
        if loss <= EXPLODED * usual:
            self._has_warned = False
            return ""
        if self._has_warned and not is_new:
            return ""
        self._has_warned = True
        return (
            f"warning: step {step}: {name} {loss:.4g}, where guessing has {self._guess:.2f}: the training diverges; "
            "lower train.learning_rate or set train.clip_norm"
        )
