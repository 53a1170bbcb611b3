"""How a tag of the target language begins what a multilingual model says."""

from __future__ import annotations

import dataclasses

from jax_transformer.runtime.trees import nearest
from jax_transformer.storage.model_directory import Model


def with_target_tag(model: Model, tag: str) -> tuple[Model, int | None]:
    """Returns the model, and the id that translations must begin with to be in the language of a tag.

    Where tags stand last (mBART, PLBART), the tag starts the decoder instead: the model has another decoder_start_id,
    and no id is needed. "" changes nothing.

    Raises:
      ValueError: the model has no tokenizers, or no such tag; names the nearest.
    """
    if not tag:
        return model, None
    target = model.target_tokenizer
    if target is None:
        raise ValueError(
            "--target-tag: expected a model with tokenizers; this one has none: port it with its vocabularies"
        )
    known = target.tag_ids
    if tag not in known:
        some = (
            f"one of {', '.join([*known][:10])}{', …' if len(known) > 10 else ''}"
            if known
            else "none, for its vocabulary has no tags"
        )
        raise ValueError(f"--target-tag: expected {some}; received {tag!r}{nearest(tag, known)}")
    if not target.tag_is_last:
        return model, known[tag]
    generation = dataclasses.replace(model.generation, decoder_start_id=known[tag])
    return dataclasses.replace(model, generation=generation), None
