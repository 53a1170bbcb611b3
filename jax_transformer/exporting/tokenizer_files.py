"""The tokenizer files of a model that was trained here, as `AutoTokenizer.from_pretrained` reads them."""

from __future__ import annotations

import json
from typing import Any

from jax_transformer.data.tokenizers import Tokenizer
from jax_transformer.data.tokenizers.tokenizer import is_own_format
from jax_transformer.storage.model_directory import Model

CLASS = "PreTrainedTokenizerFast"
TARGET_FOLDER = "target_tokenizer"
"""Folder of the target's files if the vocabularies differ."""


def tokenizer_files(model: Model) -> tuple[dict[str, bytes], str]:
    """Returns the files by name, and the lines to print about them.

    The source's files are in the directory itself; the target's in a folder of it, unless both share a vocabulary.
    """
    source, target = model.source_tokenizer, model.target_tokenizer
    if source is None or target is None:
        return {}, "without tokenizers, as the model has none"
    if is_own_format(source.to_json()) or is_own_format(target.to_json()):
        return {}, "without tokenizers: transformers has none that splits text as this model's do"
    files = _files(model, source)
    if source.has_vocabulary_of(target):
        return files, f"{len(files)} tokenizer files, one vocabulary"
    files |= {f"{TARGET_FOLDER}/{name}": data for name, data in _files(model, target).items()}
    return files, f"the source's tokenizer, and the target's in {TARGET_FOLDER}"


def _files(model: Model, tokenizer: Tokenizer) -> dict[str, bytes]:
    """Returns tokenizer.json and tokenizer_config.json."""
    text = tokenizer.to_json()
    settings: dict[str, Any] = {
        "tokenizer_class": CLASS,
        "split_special_tokens": True,  # "<eos>" in a sentence is text
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],
        "padding_side": "right",
        "model_max_length": model.config.encoder.max_length,
    }
    names = {token["id"]: token["content"] for token in json.loads(text)["added_tokens"]}
    for role in ("pad", "unk", "bos", "eos"):
        index = getattr(tokenizer, f"{role}_id")
        if index in names:
            settings[f"{role}_token"] = names[index]
    content = json.dumps(settings, indent=2, ensure_ascii=False) + "\n"
    return {"tokenizer.json": text.encode(), "tokenizer_config.json": content.encode()}
