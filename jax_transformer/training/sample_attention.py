"""Computes where a finished run's model looks while it translates some sentences of its test set."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jax_transformer.decoding.alignment import align, default_layer
from jax_transformer.decoding.checks import starts_and_ends
from jax_transformer.decoding.padding import WITHOUT_TABLE, limit, num_positions
from jax_transformer.pages.attention import packed
from jax_transformer.storage.model_directory import Model, load_model
from jax_transformer.training.analysis import spread

Record = dict[str, Any]

MOST_SAMPLES = 8


def sample_attention(model: str | Path, samples: Sequence[Record], source_tag: str = "") -> Record:
    """Returns the cross-attention of the decoder layer that aligns best, the mean over its heads, for some sentences.

    Args:
      model: the model directory.
      samples: the translations of a test set, of which a few are taken, spread evenly. One that the model's lengths
        don't allow is left out.
      source_tag: the token before every source.

    Raises:
      ModelError: there is no such model.
    """
    loaded = load_model(model)
    if loaded.source_tokenizer is None or loaded.target_tokenizer is None:
        return {"layer": 0, "maps": []}
    chosen = [samples[i] for i in spread(len(samples), MOST_SAMPLES)]
    _, end = starts_and_ends(loaded)
    sources = loaded.source_tokenizer.encode([sample["source"] for sample in chosen], source_tag)
    target = loaded.target_tokenizer.adding(bos=False, eos=False)
    targets = [[*ids, end] for ids in target.encode([sample["translation"] for sample in chosen])]
    most = num_positions(loaded, "target") or WITHOUT_TABLE
    fitting = [
        n for n, ids in enumerate(sources) if 1 <= len(ids) <= limit(loaded, "source") and len(targets[n]) <= most
    ]
    weights = align(loaded, [sources[n] for n in fitting], [targets[n] for n in fitting])
    maps = [_map(loaded, chosen[n], sources[n], targets[n], own) for n, own in zip(fitting, weights, strict=True)]
    return {"layer": default_layer(loaded.config), "maps": maps}


def _map(model: Model, sample: Record, source: Sequence[int], target: Sequence[int], weights: np.ndarray) -> Record:
    assert model.source_tokenizer is not None
    assert model.target_tokenizer is not None
    return {
        "source": sample["source"],
        "translation": sample["translation"],
        "keys": [*map(_label, model.source_tokenizer.tokens(list(source)))],
        "queries": [*map(_label, model.target_tokenizer.tokens(list(target)))],
        "weights": packed(weights),
    }


def _label(token: str) -> str:
    """Returns a token as it is drawn: spaces are visible, and control characters don't change the layout."""
    return "".join(
        "␣" if character == " " else character if character.isprintable() else "\ufffd" for character in token
    )
