"""Rules from text to ids and back, in a form that the library `tokenizers` alone can apply."""

from __future__ import annotations

import json
from typing import Any

from jax_transformer.data.tokenizers.special_tokens import UNK, UNUSED, shown_name
from jax_transformer.data.tokenizers.tokenizer import is_own_format
from jax_transformer.storage.model_directory import Model
from jax_transformer.storage.model_files import TOKENIZERS


def standard_files(model: Model) -> dict[str, str]:
    """Returns the model's tokenizer files by name, source and target; none if `tokenizers` can't express both, such as
    spaCy, sentencepiece and Marian."""
    tokenizers = {name: getattr(model, side) for side, name in TOKENIZERS.items()}
    texts = {name: tokenizer.to_json() for name, tokenizer in tokenizers.items() if tokenizer is not None}
    is_standard = len(texts) == len(TOKENIZERS) and not any(map(is_own_format, texts.values()))
    return texts if is_standard else {}


def text_rules(model: Model, files: dict[str, str], source_tag: str) -> dict[str, Any]:
    """Returns the steps of a reader besides splitting and joining: `text` of signature.json.

    Raises:
      ValueError: the model lacks the source tag.
    """
    source, target = model.source_tokenizer, model.target_tokenizer
    if source is None or target is None:
        if source_tag:
            raise ValueError(f"--source-tag: expected a model with tokenizers for {source_tag!r}; received one without")
        return {"tokenizers": []}
    (around,) = source.encode([""], source_tag)
    count = len(around) - source.adds_eos - (bool(source_tag) and source.tag_is_last)
    rules: dict[str, Any] = {"tokenizers": [*files], "before": around[:count], "after": around[count:]}
    if not files:
        return rules
    added = {
        token["id"]: token["content"] for token in json.loads(files[TOKENIZERS["target_tokenizer"]])["added_tokens"]
    }
    unused = [index for index, entry in added.items() if UNUSED.fullmatch(shown_name(entry))]
    read_as: dict[str, int | None] = dict.fromkeys(map(str, sorted(target.hidden_ids)))
    read_as |= {str(index): target.unk_id for index in sorted(unused)}
    return rules | {"read_as": read_as, "unknown": [added.get(target.unk_id, UNK), UNK]}
