"""Numbers of a model that forecasts: how it reads a series of values as tokens, and how it draws the next ones."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jax_transformer.config.validation import ConfigError, Spec, require


@dataclass(frozen=True, kw_only=True)
class SeriesTokens(Spec):
    """Holds how a model reads values as tokens, as Chronos-T5 does: `series` in a model's generation.json.

    A series is divided by the mean of its absolute values. The centers of the bins lie evenly from `low` to `high`, and
    a value becomes the id of the bin that it is in. Values beyond the outer bins belong to these.

    Raises:
      ConfigError: a value is of another type or out of range.

    Example:
      >>> from jax_transformer.config import SeriesTokens
      >>> SeriesTokens(num_tokens=4096, context_length=512, prediction_length=64).num_bins
      4093
    """

    num_tokens: int
    """Ids, special ones included."""
    context_length: int
    """Most values that the model reads: the last ones of a series."""
    prediction_length: int
    """Steps that the model was trained to predict."""
    num_special: int = 2
    """Ids before those of values: the pad, which is also a missing value, and the end."""
    low: float = -15.0
    """Center of the lowest bin, in means of absolute values."""
    high: float = 15.0
    """Center of the highest bin."""
    ends: bool = True
    """Put the end token after the values."""
    num_samples: int = 20
    """Futures that `forecast` draws unless it is given a number."""
    temperature: float = 1.0
    """Divides the logits of draws."""
    top_k: int = 50
    """Draw only from the k most probable tokens; 0 for all."""
    top_p: float = 1.0
    """Draw only from the fewest most probable tokens that have this probability together."""

    def __post_init__(self) -> None:
        super().__post_init__()
        problems = [
            f"{name} must be at least {least}; received {getattr(self, name)}"
            for name, least in (
                *(("context_length", 1), ("prediction_length", 1), ("num_samples", 1)),
                *(("num_special", 1), ("top_k", 0)),
            )
            if getattr(self, name) < least
        ]
        if self.num_bins < 2:
            least = self.num_special + 3
            problems.append(f"num_tokens must be at least {least}, for two bins; received {self.num_tokens}")
        if not -math.inf < self.low < self.high < math.inf:
            problems.append(f"low must be below high, and both finite; received {self.low} and {self.high}")
        if not 1e-30 <= self.temperature <= 1e30:
            problems.append(f"temperature must be from 1e-30 to 1e+30; received {self.temperature}")
        if not 0 < self.top_p <= 1:
            problems.append(f"top_p must be greater than 0 and at most 1; received {self.top_p}")
        require(self, problems)

    @classmethod
    def from_plain(cls, values: Mapping[str, Any]) -> SeriesTokens:
        """Returns the settings of an object of a JSON file. Raises ConfigError for an unknown or a missing field."""
        known = {field.name: field.default is dataclasses.MISSING for field in dataclasses.fields(cls)}
        problems = [f"unknown field {name}" for name in values if name not in known]
        problems += [f"missing field {name}" for name, is_needed in known.items() if is_needed and name not in values]
        if problems:
            raise ConfigError(f"series: {'; '.join(problems)}")
        return cls(**values)

    @property
    def num_bins(self) -> int:
        """The number of bins. The first id after the special ones is no bin's."""
        return self.num_tokens - self.num_special - 1
