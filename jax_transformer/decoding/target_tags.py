"""Select the target language of a multilingual model by its tag."""

from __future__ import annotations

import dataclasses

from jax_transformer.storage.model_directory import Model


def with_target_tag(model: Model, tag: str) -> tuple[Model, int | None]:
    """Returns the model, and the id that translations must begin with to be in the language of a tag.

    In families whose tags come last (mBART, PLBART), the tag becomes the decoder_start_id instead, and no id is
    returned. Where only the source's vocabulary has the tag (IndicTrans2), sources get it after their own tag, and
    texts are finished as its language is written. "" changes nothing.

    Raises:
      ValueError: the model has no tokenizers, or lacks the tag; names similar tags.
    """
    if not tag:
        return model, None
    target = model.target_tokenizer
    if target is None:
        raise ValueError(
            "--target-tag: expected a model with tokenizers; this one has none: port it with its vocabularies"
        )
    source = model.source_tokenizer
    if source is not None and source.tags and not target.tags:
        source.tag_id(tag, "--target-tag")
        source, target = source.with_second_tag(tag), target.in_language(tag)
        return dataclasses.replace(model, source_tokenizer=source, target_tokenizer=target), None
    tag_id = target.tag_id(tag, "--target-tag")
    if not target.tag_is_last:
        return model, tag_id
    generation = dataclasses.replace(model.generation, decoder_start_id=tag_id)
    return dataclasses.replace(model, generation=generation), None
