"""The special tokens of a model that transcribes speech."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from jax_transformer.config.languages import code_of
from jax_transformer.config.validation import ConfigError, Spec


@dataclass(frozen=True, kw_only=True)
class SpeechTokens(Spec):
    """Holds the special ids of a model that transcribes, as Whisper's: `speech` in a model's generation.json.

    Example:
      >>> from jax_transformer.config.speech import SpeechTokens
      >>> SpeechTokens(no_timestamps_id=50363, languages={"en": 50259, "de": 50261}).language_id("de")
      50261
    """

    no_timestamps_id: int
    """Asks for text alone. The ids after it are times, 20 ms apart, from 0 on; the one before it says that there is no
    speech."""
    languages: dict[str, int] | None = None
    """Id of each language, by its code. None: the model knows one language and has no ids of tasks."""
    transcribe_id: int | None = None
    """Asks for text in the language of the speech."""
    translate_id: int | None = None
    """Asks for text in English."""
    previous_id: int | None = None
    """Begins the text of earlier windows. None: earlier text is no part of the input."""
    max_initial_timestamp: int | None = None
    """The largest first time, in steps of 20 ms. None: any."""
    language: str | None = None
    """Code of the language that `transcribe` takes unless it is given one. None: the likeliest."""
    task: Literal["transcribe", "translate"] | None = None
    """The task that `transcribe` takes unless it is given one. None: transcribe."""
    alignment_heads: tuple[tuple[int, int], ...] | None = None
    """Layer and number of each head of cross-attention that follows the speech, for the times of words. None: not
    known."""

    @classmethod
    def from_plain(cls, values: Mapping[str, Any]) -> SpeechTokens:
        """Returns the tokens of an object of a JSON file. Raises ConfigError for an unknown or a missing field."""
        known = {field.name: field for field in dataclasses.fields(cls)}
        problems = [f"unknown field {name}" for name in values if name not in known]
        problems += ["missing field no_timestamps_id"] if "no_timestamps_id" not in values else []
        if problems:
            raise ConfigError(f"speech: {'; '.join(problems)}")
        heads = values.get("alignment_heads")
        return cls(**{**values, "alignment_heads": heads if heads is None else pairs(heads)})

    def check_heads(self, layers: int, heads: int) -> None:
        """Raises ValueError unless the alignment heads are among so many layers and heads."""
        for layer, head in self.alignment_heads or ():
            if not (0 <= layer < layers and 0 <= head < heads):
                raise ValueError(
                    f"alignment_heads: expected layers from 0 to {layers - 1} and heads from 0 to {heads - 1}; "
                    f"received [{layer}, {head}]"
                )

    @property
    def first_timestamp_id(self) -> int:
        """The id of the time 0."""
        return self.no_timestamps_id + 1

    @property
    def no_speech_id(self) -> int:
        """The id that says that there is no speech."""
        return self.no_timestamps_id - 1

    def language_id(self, language: str) -> int:
        """Returns the id of a language, by its code or its English name.

        Raises:
          ValueError: the model doesn't know it.
        """
        known, code = self.languages or {}, code_of(language)
        if code not in known:
            some = ", ".join(sorted(known)) or "none, since it knows one alone"
            raise ValueError(f"language: expected one that the model knows ({some}); received {language!r}")
        return known[code]


def pairs(heads: Any) -> tuple[tuple[int, int], ...]:
    """Returns pairs of integers. Raises ConfigError for anything else."""
    try:
        return tuple((int(layer), int(head)) for layer, head in heads)
    except (TypeError, ValueError):
        raise ConfigError(f"alignment_heads: expected pairs of a layer and a head; received {heads!r}") from None
