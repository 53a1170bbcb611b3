"""What every command that decodes takes and does: the search, the model, the streams."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from jax_transformer.decoding.decoding_config import DecodingConfig
    from jax_transformer.model_directory import Model


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """How translations are looked for; see DecodingConfig. Without these options, greedily."""

    beam_size: int = 1
    """Hypotheses that are followed side by side."""
    length_penalty: float = 1.0
    """What a hypothesis's score is divided by: its length to this power. Above 0 favours long ones."""
    early_stopping: Literal["false", "true", "never"] = "false"
    """When a sentence is done: true, with beam-size ended hypotheses; never, when none could become better."""
    semantics: Literal["huggingface", "gnmt", "floydhub"] = "huggingface"
    """Whose beam search."""
    no_repeat_ngram: int = 0
    """No sequence of so many tokens twice."""
    max_new_tokens: int | None = None
    """Most tokens of a translation."""
    sampling: bool = False
    """Draw each token by its probability."""
    temperature: float = 1.0
    """Of sampling: below 1, the more probable tokens become more probable."""
    top_k: int = 0
    """Of sampling: only the k most probable tokens; 0 for all."""
    top_p: float = 1.0
    """Of sampling: only the most probable tokens, as few as have this probability together."""
    min_p: float = 0.0
    """Of sampling: only tokens of at least this times the greatest probability."""
    seed: int = 0
    """Of sampling: the same seed draws the same."""

    def decoding(self) -> DecodingConfig:
        """Raises ConfigError for options that can't be meant."""
        from jax_transformer.decoding.decoding_config import DecodingConfig

        given = {field.name: getattr(self, field.name) for field in dataclasses.fields(SearchOptions)}
        stopping: dict[str, bool | Literal["never"]] = {"false": False, "true": True, "never": "never"}
        return DecodingConfig(**given | {"early_stopping": stopping[self.early_stopping]})


def load(path: str, source_tag: str) -> Model:
    """The model; says so where it was trained with tags and none is given."""
    from jax_transformer.model_directory import load_model

    model = load_model(path)
    tags = model.source_tokenizer.tags if model.source_tokenizer else ()
    if tags and not source_tag:
        print(f"note: this model knows the source tags {', '.join(tags)}; none is given (--source-tag)", file=sys.stderr)
    return model


def check_rows(rows: int) -> None:
    if rows < 1:
        raise ValueError(f"--rows must be at least 1; received {rows}")


@contextlib.contextmanager
def output_may_close() -> Iterator[None]:
    """A reader that has seen enough (`| head`) ends the output without an error."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        sys.stderr.close()  # or Python reports the pipe once more on its way out
