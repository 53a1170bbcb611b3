"""Turns parallel text into batches of token ids.

`prepare` reads, tokenizes and caches the corpora of a `DataConfig`. `make_batch` turns lists of ids into a `Batch`,
and `pack_batch` into a batch with several pairs in a row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jax_transformer.runtime.lazy import lazy_exports

if TYPE_CHECKING:
    from jax_transformer.data.batching import Batch, assemble, make_batch, pack_batch
    from jax_transformer.data.corpus import read_pairs
    from jax_transformer.data.loader import prefetch
    from jax_transformer.data.planning import Shape, choose_shapes, padding_share, plan_epoch, plan_in_order
    from jax_transformer.data.preparation import PreparedCorpus, prepare
    from jax_transformer.data.text_files import CorpusError
    from jax_transformer.data.token_pairs import TokenPairs
    from jax_transformer.data.tokenizers import SpecialIds, Tokenizer, load_tokenizer, train_tokenizer
    from jax_transformer.data.tokenizers.objects import as_tokenizer

_HOMES = {
    "jax_transformer.data.batching": ("Batch", "assemble", "make_batch", "pack_batch"),
    "jax_transformer.data.corpus": ("read_pairs",),
    "jax_transformer.data.loader": ("prefetch",),
    "jax_transformer.data.planning": ("Shape", "choose_shapes", "padding_share", "plan_epoch", "plan_in_order"),
    "jax_transformer.data.preparation": ("PreparedCorpus", "prepare"),
    "jax_transformer.data.text_files": ("CorpusError",),
    "jax_transformer.data.token_pairs": ("TokenPairs",),
    "jax_transformer.data.tokenizers": ("SpecialIds", "Tokenizer", "load_tokenizer", "train_tokenizer"),
    "jax_transformer.data.tokenizers.objects": ("as_tokenizer",),
}

__all__ = [
    "Batch",
    "CorpusError",
    "PreparedCorpus",
    "Shape",
    "SpecialIds",
    "TokenPairs",
    "Tokenizer",
    "as_tokenizer",
    "assemble",
    "choose_shapes",
    "load_tokenizer",
    "make_batch",
    "pack_batch",
    "padding_share",
    "plan_epoch",
    "plan_in_order",
    "prefetch",
    "prepare",
    "read_pairs",
    "train_tokenizer",
]

__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
