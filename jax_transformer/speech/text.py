"""Text of Whisper's tokens, by the tokenizer files that `port` keeps with a model."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from jax_transformer.config.speech import SpeechTokens
from jax_transformer.storage.model_directory import Model

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def read_tokenizer(model: Model) -> Tokenizer | None:
    """Returns the byte-level tokenizer of a model's files: tokenizer.json, or vocab.json and merges.txt. None: it has
    no such files.

    Raises:
      ValueError: a malformed file.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    files = model.tokenizer_files or {}
    try:
        if "tokenizer.json" in files:
            return Tokenizer.from_str(files["tokenizer.json"].decode())
        if not {"vocab.json", "merges.txt"} <= files.keys():
            return None
        vocabulary = json.loads(files["vocab.json"])
        lines = files["merges.txt"].decode().splitlines()
        lines = lines[1:] if lines and lines[0].startswith("#version") else lines
        merges = [(first, last) for first, _, last in (line.partition(" ") for line in lines) if last]
        made = Tokenizer(models.BPE(vocabulary, merges))
    except Exception as error:  # the library raises nothing narrower
        raise ValueError(f"the model's tokenizer files: expected a byte-level BPE; {error}") from None
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return made


def text_of(tokenizer: Tokenizer | None, tokens: list[int], end_id: int) -> str:
    """Returns the text of tokens; "" without a tokenizer. The end, special tokens and times, from `end_id` on, have no
    text."""
    if tokenizer is None:
        return ""
    text: str = tokenizer.decode([token for token in tokens if token < end_id])
    return text


def previous_ids(tokenizer: Tokenizer | None, speech: SpeechTokens, prompt: str) -> list[int]:
    """Returns the ids of a prompt, as text before a recording; none of a blank one.

    Raises:
      ValueError: the model has no tokenizer, or knows no earlier text.
    """
    if not prompt.strip():
        return []
    if tokenizer is None:
        raise ValueError("prompt: expected a model with tokenizer files; received one without")
    if speech.previous_id is None:
        raise ValueError("prompt: expected a model with an id that begins earlier text; received one without")
    ids: list[int] = tokenizer.encode(f" {prompt.strip()}", add_special_tokens=False).ids
    return ids
