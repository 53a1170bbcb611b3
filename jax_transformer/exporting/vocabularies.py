"""Vocabularies as lists of distinct tokens, matching the tokenizer files of the export."""

from __future__ import annotations

from collections.abc import Iterable

from jax_transformer.data.tokenizers import Tokenizer
from jax_transformer.data.tokenizers.tokenizer import is_own_format


def token_list(tokenizer: Tokenizer | None, size: int, *, as_shown: bool) -> list[str]:
    """Returns one distinct token for each of `size` ids.

    Without a tokenizer, tokens are the ids as text. Ids beyond the vocabulary and duplicate tokens become
    "<unused_ID>".

    Args:
      as_shown: name special tokens as in the files of transformers. Otherwise every token is the entry of
        `Tokenizer.to_json`, as the library `tokenizers` returns it.

    Example:
      >>> token_list(None, 3, as_shown=False)
      ['0', '1', '2']
    """
    if tokenizer is None:
        return [str(index) for index in range(size)]
    tokens = tokenizer.tokens(range(tokenizer.vocab_size)) if as_shown else _entries(tokenizer)
    return _distinct([*tokens, *("" for _ in range(size - len(tokens)))][:size])


def _entries(tokenizer: Tokenizer) -> list[str]:
    """Returns the entries of the tokenizer's file, or its tokens if only this library reads the file."""
    text = tokenizer.to_json()
    if is_own_format(text):
        return tokenizer.tokens(range(tokenizer.vocab_size))
    from tokenizers import Tokenizer as Pipeline

    pipeline = Pipeline.from_str(text)
    return [str(pipeline.id_to_token(index)) for index in range(tokenizer.vocab_size)]


def _distinct(tokens: Iterable[str]) -> list[str]:
    """Returns the tokens with a name of its own for each that is empty or repeats an earlier one."""
    seen: dict[str, None] = {}
    for index, token in enumerate(tokens):
        seen[f"<unused_{index}>" if token == "" or token in seen else token] = None
    return list(seen)
