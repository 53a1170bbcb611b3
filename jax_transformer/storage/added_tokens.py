"""Adds tokens to a model that was ported from transformers: to its tokenizers, and as rows of its tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from jax_transformer.config.shapes import param_shapes
from jax_transformer.runtime.arguments import check_texts
from jax_transformer.runtime.limits import TOKEN_IDS
from jax_transformer.runtime.trees import flatten, unflatten
from jax_transformer.storage.model_directory import Model
from jax_transformer.storage.model_tokenizers import fit_tokenizer, join_tokenizers

SCALE = np.float32(1e-9)
"""Factor of the covariance from which transformers draws: new rows are almost the mean."""
SIZES = ("vocab_size", "decoder_vocab_size")
"""Fields of a config.json with the number of rows, of source and target."""
ZERO = ("head_bias", "constants/head_bias")
"""Biases next to a tied head or in a buffer, which transformers extends with zeros."""


def add_tokens(model: Model, tokens: Sequence[str] = (), *, tags: Sequence[str] = (), seed: int = 0) -> Model:
    """Adds tokens to a model that was ported from transformers, as `add_tokens` of its tokenizer and
    `resize_token_embeddings` of its model do there.

    The tokens get the next ids of the tokenizer. Rows that the embedding has beyond its vocabulary are used first, and
    keep their values. Further rows of each embedding and of an untied head are drawn from the normal distribution with
    the mean and 10⁻⁹ times the covariance of the rows before, or are the mean if there are too few; entries of a head's
    own bias likewise; those of `final_logits_bias` are 0.

    Args:
      model: a model with the tokenizer files of transformers.
      tokens: texts that become one token wherever they occur.
      tags: special tokens such as the codes of languages: `source_tag` and `target_tag` name them afterwards.
      seed: of the draw.

    Returns:
      The model with larger tables, its tokenizers, and its tokenizer files for the way back.

    Raises:
      ValueError: a model without such files, with an optimizer's state or adapters; see `add_to_files`.

    Example:
      >>> import jax
      >>> from tokenizers import Tokenizer, models
      >>> from jax_transformer import GenerationConfig, Model, TransformerConfig, init_params
      >>> words = Tokenizer(models.WordLevel({"<pad>": 0, "</s>": 1, "<unk>": 2, "who": 3}, unk_token="<unk>"))
      >>> config = TransformerConfig(source_vocab_size=4, target_vocab_size=4, d_model=8, num_heads=2, d_ff=8,
      ...                            num_encoder_layers=1, num_decoder_layers=1)
      >>> settings = {"model_type": "umt5", "vocab_size": 4}  # such as import_checkpoint keeps
      >>> model = Model(config, init_params(config, jax.random.key(0)), None, None,
      ...               GenerationConfig(decoder_start_id=0, eos_id=1), origin={"hugging_face": {"config": settings}},
      ...               tokenizer_files={"tokenizer.json": words.to_str().encode()})
      >>> larger = add_tokens(model, ["sleeps"], tags=["gsw_Latn"])
      >>> larger.source_tokenizer.encode(["who"], "gsw_Latn"), larger.params["head"]["kernel"].shape
      ([[5, 3]], (8, 6))
    """
    from jax_transformer.data.tokenizers.added_tokens import add_to_files
    from jax_transformer.data.tokenizers.hugging_face import read_tokenizers

    tokens, tags = check_texts("tokens", tokens), check_texts("tags", tags)
    if not tokens and not tags:
        raise ValueError("add_tokens: expected at least one token or tag; received none")
    origin, files = model.origin or {}, model.tokenizer_files
    if "hugging_face" not in origin or not files:
        what = "no tokenizer files" if "hugging_face" in origin else "no checkpoint of transformers behind it"
        raise ValueError(f"add_tokens: expected a model that was ported from transformers; received one with {what}")
    if model.training_state is not None or model.adapters is not None:
        what = "an optimizer's state" if model.training_state is not None else "adapters"
        raise ValueError(f"add_tokens: expected a model without {what}, whose tables have the old size")
    settings: dict[str, Any] = origin["hugging_face"]["config"]
    more = add_to_files(files, settings, tokens, tags)
    pair = read_tokenizers(more, settings | {"vocab_size": TOKEN_IDS.value})  # none of their ids is beyond that
    sizes = (model.config.source_vocab_size, model.config.target_vocab_size)
    rows = [max(size, tokenizer.vocab_size) for size, tokenizer in zip(sizes, pair, strict=True)]
    rows = [max(rows)] * 2 if model.config.share_embeddings else rows
    config = model.config.replace(source_vocab_size=rows[0], target_vocab_size=rows[1])
    known = dict(zip(SIZES, rows, strict=True))
    settings = settings | {name: size for name, size in known.items() if settings.get(name) is not None}
    params = _resized(model, param_shapes(config), seed)
    hugging_face = {**origin["hugging_face"], "config": settings}
    larger = dataclasses.replace(
        model,
        config=config,
        params=params,
        tokenizer_files=more,
        origin={**origin, "hugging_face": hugging_face},
        source_tokenizer=None,
        target_tokenizer=None,
    )
    source, target = (
        fit_tokenizer(larger, side, tokenizer, "its tokenizer")
        for side, tokenizer in zip(("source", "target"), read_tokenizers(more, settings), strict=True)
    )
    return join_tokenizers(larger, source, target, "its tokenizer")


def _resized(model: Model, shapes: Any, seed: int) -> dict[str, Any]:
    """Returns the parameters with new rows where the shapes have more."""
    leaves = flatten(model.params)
    for number, (path, shape) in enumerate(shapes.items()):
        old = leaves[path]
        if tuple(old.shape) == tuple(shape):
            continue
        axis = next(axis for axis, size in enumerate(shape) if size != old.shape[axis])
        array = np.moveaxis(np.asarray(old), axis, 0)
        rng = np.random.default_rng([seed, number])
        drawn = new_rows(array, shape[axis] - array.shape[0], rng, is_zero=path in ZERO)
        leaves[path] = np.ascontiguousarray(np.moveaxis(np.concatenate([array, drawn]), 0, axis))
    return unflatten(leaves)


def new_rows(table: np.ndarray, count: int, rng: np.random.Generator, *, is_zero: bool = False) -> np.ndarray:
    """Draws rows as `resize_token_embeddings` of transformers does.

    Args:
      table: the rows so far [V, D], or a bias [V].
      count: the number of new rows.
      rng: the source of the draw.
      is_zero: extend with zeros.

    Returns:
      The new rows [count, D] or [count], in the table's dtype.
    """
    shape = (count, *table.shape[1:])
    if is_zero:
        return np.zeros(shape, table.dtype)
    known = table.astype(np.float32)
    mean = known.mean(0)
    normal = rng.standard_normal(shape, np.float32)
    if known.ndim == 1:
        drawn = mean + SCALE * known.std(ddof=1) * normal
    else:
        centered = known - mean
        try:
            factor = np.linalg.cholesky(SCALE * (centered.T @ centered / np.float32(len(known))))
            drawn = mean + normal @ factor.T
        except np.linalg.LinAlgError:  # fewer rows than columns, or constant ones
            drawn = np.broadcast_to(mean, shape)
    return drawn.astype(table.dtype)
