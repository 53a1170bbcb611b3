"""Runs the speech model of a server: computes windows of many recordings together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from jax_transformer.decoding.padding import FEATURES_ROOM, limit
from jax_transformer.decoding.prepared import PreparedModel
from jax_transformer.serving.engine import WarmUp
from jax_transformer.serving.limits import Limits
from jax_transformer.speech import windows
from jax_transformer.speech.transcription import default_windows, speech_of
from jax_transformer.speech.windows import Aligning, Decoding, Tokens, Window

MOST_ROWS = 8
"""Windows that are computed at once, if --rows isn't less: each takes as long as thousands of tokens of text."""


@dataclass(frozen=True)
class Hearing:
    """Identifies windows that may share a batch."""

    kind: windows.Kind
    hypotheses: int = 1


class Heard(NamedTuple):
    """Holds a window of a recording."""

    window: Window
    tokens: int
    """Positions of the encoder."""


class SpeechEngine:
    """Knows how windows share batches. `compute` belongs to the device's thread."""

    def __init__(self, model: PreparedModel, limits: Limits, *, rows: int = MOST_ROWS) -> None:
        """Wraps a model whose `generation` has the server's own decoding options.

        Args:
          rows: most windows to compute at once.

        Raises:
          ValueError: the model isn't one of speech.
        """
        self.model, self.limits, self.speech = model, limits, speech_of(model)
        self.rows = min(rows, MOST_ROWS)

    def unit(self, window: Window) -> tuple[Hearing, Heard]:
        """Returns the kind and the unit of a window."""
        beams = (
            window.kind.options.resolved(self.model.generation).beam_size if isinstance(window.kind, Decoding) else 1
        )
        return Hearing(window.kind, beams or 1), Heard(window, self.model.config.encoder.max_length)

    def fits(self, kind: Hearing, units: Sequence[Heard]) -> bool:
        """Returns whether units make one batch."""
        return len(units) <= (1 if isinstance(kind.kind, Aligning) else self.rows)

    def shape(self, kind: Hearing, unit: Heard) -> tuple[int, ...]:
        """Returns no lengths: all windows are equally long."""
        return ()

    def size(self, waiting: int) -> int:
        """Returns the number of units to take into a batch."""
        return waiting

    def fill(self, kind: Hearing, units: Sequence[Heard]) -> float:
        """Returns the share of a batch's rows that isn't filling."""
        return len(units) / windows.filled(len(units))

    def compute(self, kind: Hearing, units: Sequence[Heard]) -> Sequence[Any]:
        """Returns the result of each unit of a batch. On the device's thread."""
        return windows.compute(self.model, kind.kind, [unit.window for unit in units])

    def target_tokens(self, unit: Heard, result: Any) -> int:
        """Returns the tokens that were decoded."""
        return len(result.ids) if isinstance(result, Tokens) else 0

    def warm_ups(self, longest: int) -> Iterator[WarmUp]:
        """Yields what compiles the programs of the default options, unless `longest` is 0, for texts of up to 64
        tokens; longer ones compile on first use."""
        most = min(2 * FEATURES_ROOM, limit(self.model, "target"))
        for count in (1, 2, 4, 8):
            if longest and count <= self.rows:
                for name, window in default_windows(self.model, most):
                    kind, unit = self.unit(window)
                    several = f"{count} windows" if count > 1 else "a window"
                    yield WarmUp(f"{name} of {several}", partial(self.compute, kind, [unit] * count))

    def facts(self) -> dict[str, Any]:
        """Returns what the page needs to know of the model."""
        return {
            "languages": sorted(self.speech.languages or {}),
            "translates": self.speech.translate_id is not None,
            "words": bool(self.speech.alignment_heads),
            "max_audio_bytes": self.limits.max_audio_bytes,
            "max_audio_seconds": self.limits.max_audio_seconds,
        }
