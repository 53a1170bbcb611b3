"""Rearranges a model into the form of a family of transformers, without changing its results for real tokens.

| part | change |
|---|---|
| position tables | become learned ones, after as many unused rows as the family skips; or all features are permuted so that sines precede cosines (Marian, PEGASUS) |
| bias of the logits | a parameter becomes a buffer, an absent one zeros |
| vocabularies of two sizes | the smaller is filled with unused rows, whose logits are about -1e9 |
| a shared embedding, a tied head | become copies, if the family ties all or nothing |
| factor of embeddings | becomes `scale_embedding`, if it is the root of d_model or 1 |
| padding that the decoder's mask hides | is left to the causal mask, if decoding doesn't start with a pad |
| a masked value below -1000 | becomes the family's: both give weights of zero |
"""  # noqa: E501

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.plan import plan
from jax_transformer.config.positions import Learned, Sinusoidal, Table
from jax_transformer.config.specs import Attention, Stack
from jax_transformer.exporting.options import NO_WEIGHT_BELOW
from jax_transformer.exporting.positions import position_rows, starts_with_pad
from jax_transformer.model.masks import decoder_padding_id
from jax_transformer.porting.dialects import Dialect
from jax_transformer.runtime.trees import flatten, unflatten
from jax_transformer.storage.model_directory import Model

FILLED_LOGIT = -1e9
"""Bias of the logits of rows that only fill a vocabulary: their probability is zero."""

SHARES_ALL_OR_NOTHING = {(True, True), (False, False)}
SHARING = {
    "marian": {(True, True), (False, True), (False, False)},
    "t5": {(True, True), (True, False)},
    "umt5": {(True, True), (True, False)},
}
"""Family → the pairs (share_embeddings, tie_head) that its directories can express."""

Leaves = dict[str, Any]
Form = Callable[[TransformerConfig, Leaves, Dialect], TransformerConfig]
"""(config, leaves by path, which it may replace, family) → the config that the leaves now have."""


def in_form_of(model: Model, table: Dialect) -> Model:
    """Rearranges a model for a family, as far as possible. Parts that don't fit stay unchanged."""
    config, leaves = _masks(model, table), dict(flatten(model.params))
    for form in (_embedding_factor, _head_bias, _ties, _vocabularies, _positions(model)):
        config = form(config, leaves, table)
    generation = model.generation
    if generation.max_new_tokens is None and generation.max_decode_length is None:
        generation = dataclasses.replace(generation, max_new_tokens=config.decoder.max_length)
    return Model(config, unflatten(leaves), model.source_tokenizer, model.target_tokenizer, generation)


def _masks(model: Model, table: Dialect) -> TransformerConfig:
    """Returns the config with the family's masks if no real token is affected."""
    config = model.config
    encoder, decoder = _without_weights(config.encoder), _without_weights(config.decoder)
    own = decoder.self_attention
    if model.generation.decoder_start_id != decoder_padding_id(config):
        if own.padding == "keys":
            own = dataclasses.replace(own, padding="none")
        if own.decoding_padding == "keys":
            own = dataclasses.replace(own, decoding_padding="none")
    if own.decoding_padding == own.padding:
        own = dataclasses.replace(own, decoding_padding=None)
    decoder = dataclasses.replace(decoder, self_attention=own)
    return config.replace(encoder=encoder, decoder=decoder, trains_pad_embedding=table.fixed["trains_pad_embedding"])


def _without_weights(stack: Stack) -> Stack:
    """Returns a stack with the family's value for masked logits, if both values give weights of zero."""
    low = {
        sublayer.name: dataclasses.replace(sublayer.part, masked_value=None)
        for sublayer in plan(stack)
        if isinstance(sublayer.part, Attention) and (sublayer.part.masked_value or 0.0) <= NO_WEIGHT_BELOW
    }
    return dataclasses.replace(stack, **low)  # type: ignore[arg-type]


def _embedding_factor(config: TransformerConfig, leaves: Leaves, table: Dialect) -> TransformerConfig:
    factors = {config.encoder.embedding_factor, config.decoder.embedding_factor}
    for scales, factor in ((True, math.sqrt(config.decoder.d_model)), (False, 1.0)):
        if factors == {factor}:
            return config.replace(scale_embedding=scales, embedding_factor=None, decoder_embedding_factor=None)
    return config


def _head_bias(config: TransformerConfig, leaves: Leaves, table: Dialect) -> TransformerConfig:
    """Replaces the bias of the logits by the family's buffer, or removes it."""
    wanted = table.fixed["head_bias"]
    own = config.head.bias
    path = {"parameter": "head_bias" if config.head.tied else "head/bias", "buffer": "constants/head_bias"}
    bias = np.asarray(leaves[path[own]]) if own != "none" else None
    if wanted == "none" and bias is not None and np.any(bias):
        return config
    if own != "none":
        del leaves[path[own]]
    if wanted == "buffer":
        dtype = np.asarray(leaves["decoder/layers/self_attention/query/kernel"]).dtype
        leaves["constants/head_bias"] = np.zeros(config.target.vocab_size, dtype) if bias is None else bias
    return config.replace(head_bias=wanted)


def _ties(config: TransformerConfig, leaves: Leaves, table: Dialect) -> TransformerConfig:
    """Copies arrays that the model shares and the family's directories store separately."""
    allowed = SHARING.get(table.name, SHARES_ALL_OR_NOTHING)
    if (config.share_embeddings, config.tie_head) in allowed or (False, False) not in allowed:
        return config
    if config.tie_head:
        name = "shared" if config.share_embeddings else "target"
        leaves["head/kernel"] = np.ascontiguousarray(np.asarray(leaves[f"{name}_embedding/embedding"]).T)
    if config.share_embeddings:
        shared = leaves.pop("shared_embedding/embedding")
        leaves["source_embedding/embedding"] = leaves["target_embedding/embedding"] = shared
    return config.replace(share_embeddings=False, tie_head=False)


def _vocabularies(config: TransformerConfig, leaves: Leaves, table: Dialect) -> TransformerConfig:
    """Fills the smaller vocabulary if the family has a single size, and a bias that keeps the added rows from being
    decoded."""
    sizes = {"source": config.source_vocab_size, "target": config.target_vocab_size}
    most = max(sizes.values())
    if table.name == "marian" or config.head_bias != "buffer" or config.tie_head or set(sizes.values()) == {most}:
        return config
    for side, size in sizes.items():
        path = f"{side}_embedding/embedding"
        leaves[path] = _filled(leaves[path], 0, most - size)
    more = most - sizes["target"]
    leaves["head/kernel"] = _filled(leaves["head/kernel"], 1, more)
    leaves["constants/head_bias"] = _filled(leaves["constants/head_bias"], 0, more, FILLED_LOGIT)
    return config.replace(source_vocab_size=most, target_vocab_size=most)


def _filled(array: Any, axis: int, more: int, value: float = 0.0) -> np.ndarray:
    """Appends `more` entries to an array along an axis."""
    array = np.asarray(array)
    widths = [(0, more if axis == number else 0) for number in range(array.ndim)]
    return np.pad(array, widths, constant_values=array.dtype.type(value))


def _positions(model: Model) -> Form:
    """Returns the function that rearranges positions; the model decides whether the first one counts."""

    def form(config: TransformerConfig, leaves: Leaves, table: Dialect) -> TransformerConfig:
        wanted = table.fixed["position_kind"]
        kinds = [config.encoder.positions, config.decoder.positions]
        if not all(isinstance(kind, Table) and kind.index != "batch_row" for kind in kinds):
            return config
        if wanted == "learned":
            return _learned_positions(config, leaves, table, counts_first=not starts_with_pad(model))
        layouts = {kind.layout if isinstance(kind, Sinusoidal) else "" for kind in kinds}
        if wanted == "sinusoidal" and layouts == {"interleaved"} and table.fixed["position_layout"] == "halves":
            return _sines_first(config, leaves)
        return config

    return form


def _learned_positions(
    config: TransformerConfig, leaves: Leaves, table: Dialect, *, counts_first: bool
) -> TransformerConfig:
    """Makes position tables learned ones, after as many rows as the family skips."""
    offset = table.fixed["position_offset"]
    dtype = np.asarray(leaves["encoder/layers/self_attention/query/kernel"]).dtype
    rows = {
        "encoder": position_rows(config, leaves, "encoder"),
        "decoder": position_rows(config, leaves, "decoder", counts_first=counts_first),
    }
    for name, array in rows.items():
        for path in (f"constants/{name}_positions", f"{name}/position_scale/factor"):
            leaves.pop(path, None)
        leaves[f"{name}/positions/embedding"] = np.pad(array, [(offset, 0), (0, 0)]).astype(dtype)
    kind = Learned(offset=offset)
    encoder, decoder = (dataclasses.replace(stack, positions=kind) for stack in (config.encoder, config.decoder))
    return config.replace(encoder=encoder, decoder=decoder)


FEATURE_AXES = {
    r"(shared|source|target)_embedding/embedding|constants/\w+_positions": 1,
    r"head/kernel": 0,
    r"(en|de)coder/(layers/\w+_norm|embedding_norm|final_norm)/(scale|bias)": -1,
    r"(en|de)coder/layers/\w+/output/(kernel|bias)": -1,
    r"(en|de)coder/layers/\w+/(query|key|value|hidden|gate)/kernel": 1,
}
"""Paths → the axis of the model's features D in leaves of models with tables of positions."""


def _sines_first(config: TransformerConfig, leaves: Leaves) -> TransformerConfig:
    """Puts the features in another order, in which the sines of the position table come before the cosines.

    No part of the model knows the order: norms take means, and products sum over the features.
    """
    order = [*range(0, config.decoder.d_model, 2), *range(1, config.decoder.d_model, 2)]
    for path, leaf in leaves.items():
        axes = [axis for pattern, axis in FEATURE_AXES.items() if re.fullmatch(pattern, path)]
        if axes:
            leaves[path] = np.take(np.asarray(leaf), order, axes[0])
    return config.replace(position_layout="halves")
