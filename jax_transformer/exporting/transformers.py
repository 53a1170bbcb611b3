"""Writes a model as a directory of Hugging Face's transformers, in the family that computes the same function."""

from __future__ import annotations

import dataclasses
import os
from typing import NamedTuple

from jax_transformer.exporting.family_forms import in_form_of
from jax_transformer.exporting.options import ExportError
from jax_transformer.exporting.tokenizer_files import tokenizer_files
from jax_transformer.porting.dialects import Dialect, get_dialect
from jax_transformer.porting.dialects.fairseq import POSITIONS
from jax_transformer.porting.exporting import directory_problems, export_checkpoint
from jax_transformer.porting.state_dicts import computes_position_table
from jax_transformer.runtime.directories import check_free
from jax_transformer.storage.model_directory import Model

FAMILIES = ("marian", "pegasus", "bart", "mbart", "blenderbot", "blenderbot_small", "t5", "umt5")
"""Families to try, in this order. The rest compute the same function as one of these, or have position tables that no
model trained here has."""


class Attempt(NamedTuple):
    """Holds a model in the form of one family, and the family's remaining obstacles."""

    table: Dialect
    model: Model
    problems: list[str]


def export_transformers(model: Model, path: str | os.PathLike[str]) -> list[str]:
    """Writes a directory for `AutoModelForSeq2SeqLM.from_pretrained` and `AutoTokenizer.from_pretrained`.

    A model ported from transformers is written as its own family. Any other is written as the first of FAMILIES that
    computes the same function; `family_forms` describes the rearrangements.

    Returns:
      The lines to print.

    Raises:
      ExportError: no family computes the model's function; the path can't be written.
    """
    check_free(path, ExportError)
    dialect = (model.origin or {}).get("dialect")
    if dialect and "hugging_face" in (model.origin or {}):
        export_checkpoint(model, path)
        files = model.tokenizer_files
        text = f"{', '.join(files)}, as they were" if files else "without tokenizer files, as the model has none"
        return [f"family:   {dialect}, as it was ported", f"text:     {text}"]
    attempts = [attempt(model, get_dialect(name)) for name in FAMILIES]
    nearest = min(attempts, key=lambda tried: len(tried.problems))
    if nearest.problems:
        raise ExportError(
            "transformers has no family that computes this model; the nearest is "
            f"{nearest.table.name}: {'; '.join(nearest.problems)}"
        )
    files, described = tokenizer_files(model)
    tables = POSITIONS.values() if nearest.table.computes_positions else ()  # held, though they are the computed ones
    origin = {"dialect": nearest.table.name, "tensors": dict.fromkeys(tables)}
    export_checkpoint(dataclasses.replace(nearest.model, origin=origin, tokenizer_files=files), path)
    lines = [f"family:   {nearest.table.name}, {nearest.table.title}", f"text:     {described}"]
    changed = _vocabulary_line(model, nearest.model)
    return [*lines, changed] if changed else lines


def attempt(model: Model, table: Dialect) -> Attempt:
    """Returns a model in the form of a family, with the family's remaining obstacles."""
    formed = in_form_of(model, table)
    problems = table.refusals(formed.config) or directory_problems(formed, table)
    if not problems and table.computes_positions and not computes_position_table(formed, table):
        problems = ["the position tables must equal those that its programs compute; they differ"]
    return Attempt(table, formed, problems)


def _vocabulary_line(before: Model, after: Model) -> str:
    """Reports a vocabulary that has grown, or ""."""
    size = after.config.target_vocab_size
    sizes = {before.config.source_vocab_size, before.config.target_vocab_size} - {size}
    return (
        f"rows:     {size:,} in both vocabularies, as the family has one size; the smaller was {sizes.pop():,}"
        if sizes
        else ""
    )
