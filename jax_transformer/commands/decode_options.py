"""What every command that decodes takes and does: the search, the model, the streams."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import tyro

if TYPE_CHECKING:
    from jax_transformer.config.decoding import DecodingConfig
    from jax_transformer.storage.model_directory import Model


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """How translations are looked for; see DecodingConfig. What isn't given, None, is as the model says in its
    generation.json, and where that says nothing, as DecodingConfig has it."""

    beam_size: int | None = None
    """Hypotheses that are followed side by side; 1 is greedy. None, here and below: as the model says, or else 1."""
    length_penalty: float | None = None
    """What a hypothesis's score is divided by: its length to this power. Above 0 favours long ones. (Or else 1)"""
    early_stopping: Literal["false", "true", "never"] | None = None
    """When a sentence is done: true, with beam-size ended hypotheses; never, when none could become better. (Or else
    false)"""
    semantics: Literal["huggingface", "gnmt", "floydhub"] | None = None
    """Whose beam search. (Or else huggingface)"""
    no_repeat_ngram: int | None = None
    """No sequence of so many tokens twice; 0 for no such rule. (Or else 0)"""
    max_new_tokens: int | None = None
    """Most tokens of a translation. (Or else as many as the model allows)"""
    min_new_tokens: int | None = None
    """A translation doesn't end before so many tokens. (Or else 0)"""
    target_tag: str = ""
    """The token that every translation begins with, such as deu_Latn: tells NLLB and M2M-100 the target language."""
    sampling: tyro.conf.FlagCreatePairsOff[bool] = False
    """Draw each token by its probability, instead of following beams."""
    temperature: float | None = None
    """Of sampling: below 1, the more probable tokens become more probable. (Or else 1)"""
    top_k: int | None = None
    """Of sampling: only the k most probable tokens; 0 for all. (Or else 0)"""
    top_p: float | None = None
    """Of sampling: only the most probable tokens, as few as have this probability together. (Or else 1)"""
    min_p: float | None = None
    """Of sampling: only tokens of at least this times the greatest probability. (Or else 0)"""
    seed: int = 0
    """Of sampling: the same seed draws the same."""

    def check(self) -> None:
        """Raises ConfigError for options that can be meant of no model."""
        from jax_transformer.config.decoding import OF_DRAWING, DecodingConfig
        from jax_transformer.config.model import GenerationConfig

        given = self._given()
        draws = any(given[name] is not None for name in OF_DRAWING)
        DecodingConfig.for_model(GenerationConfig(sampling=True) if draws else GenerationConfig(beam_size=2), **given)

    def decoding(self, model: Model) -> DecodingConfig:
        """How this model decodes. Raises ConfigError for options that can't be meant of it, ValueError for a tag that
        it doesn't have."""
        from jax_transformer.config.decoding import DecodingConfig

        forced = _tag_id(model, self.target_tag) if self.target_tag else None
        return DecodingConfig.for_model(model.generation, **self._given(), forced_bos_id=forced)

    def _given(self) -> dict[str, Any]:
        """Fields of DecodingConfig; None where one isn't given."""
        given = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(SearchOptions)
            if field.name != "target_tag"
        }
        stopping: dict[str | None, bool | Literal["never"]] = {"false": False, "true": True, "never": "never"}
        return given | {"early_stopping": stopping.get(self.early_stopping), "sampling": self.sampling or None}


def _tag_id(model: Model, tag: str) -> int:
    """The id of a token that the model's target sentences may begin with. Raises ValueError, with the nearest, where
    there is none."""
    from jax_transformer.runtime.trees import nearest

    if model.target_tokenizer is None:
        raise ValueError(
            "--target-tag: expected a model with tokenizers; this one has none: port it together with its vocabularies"
        )
    known = model.target_tokenizer.tag_ids
    if tag not in known:
        some = (
            f"one of {', '.join([*known][:10])}{', …' if len(known) > 10 else ''}"
            if known
            else "none, for its vocabulary has no tags"
        )
        raise ValueError(f"--target-tag: expected {some}; received {tag!r}{nearest(tag, known)}")
    return known[tag]


def load(path: str, source_tag: str) -> Model:
    """The model; says so where it was trained with tags and none is given."""
    from jax_transformer.storage.model_directory import load_model

    model = load_model(path)
    tags = model.source_tokenizer.tags if model.source_tokenizer else ()
    if tags and not source_tag:
        some = ", ".join(tags[:10]) + ", …" * (len(tags) > 10)
        print(f"note: this model knows the source tags {some}; none is given (--source-tag)", file=sys.stderr)
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
    except BrokenPipeError:  # what is left goes nowhere, or Python would fail once more on its way out
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
