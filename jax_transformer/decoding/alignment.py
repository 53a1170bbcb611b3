"""Attention weights of sentence pairs, and word alignments from cross-attention."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jax_transformer.config.model import TransformerConfig
from jax_transformer.decoding.batches import grouped, may_share, padded_sources
from jax_transformer.decoding.checks import DecodingError, check_count, check_ids, check_model, starts_and_ends
from jax_transformer.decoding.padding import ROWS, WITHOUT_TABLE, num_positions, pad, round_length
from jax_transformer.decoding.prepared import prepare
from jax_transformer.model import functional
from jax_transformer.model.features import SourceInput
from jax_transformer.model.functional import Params
from jax_transformer.model.masks import causal_mask, make_masks
from jax_transformer.storage.model_directory import Model

if TYPE_CHECKING:
    from jax_transformer.data.tokenizers import Words

Pair = tuple[int, int]
"""The numbers of a source word and of the target word that is aligned to it, from 0."""


class Attention(NamedTuple):
    """Holds all attention weights of one sentence pair, float32 or wider, as in the trace of `functional.apply`.

    Row t of `decoder` and `cross` predicts target token t. In `decoder`, the input of row t is the preceding token (the
    start token for the first row), which is also column t."""

    encoder: np.ndarray  # [L, N, S, S]
    decoder: np.ndarray  # [L, N, T, T]
    cross: np.ndarray  # [L, N, T, S]


def attention(model: Model, source_ids: Sequence[int], target_ids: Sequence[int]) -> Attention:
    """Returns every head's attention weights while the model decodes target_ids [T] from source_ids [S].

    Raises:
      DecodingError, ValueError: as `align`; an empty source or target.
    """
    check_model(model)
    if not len(source_ids) or not len(target_ids):
        raise DecodingError(
            f"expected a source and a target of at least one token; received {len(source_ids)} and {len(target_ids)}"
        )
    _check(model, [source_ids], [target_ids])
    config = model.config
    names = {
        "encoder": _names(config, "encoder", "self_attention"),
        "decoder": _names(config, "decoder", "self_attention"),
        "cross": _names(config, "decoder", "cross_attention"),
    }
    weights = _weights(model, [source_ids], [target_ids], tuple(name for kind in names.values() for name in kind))
    sizes = {
        "encoder": (len(source_ids),) * 2,
        "decoder": (len(target_ids),) * 2,
        "cross": (len(target_ids), len(source_ids)),
    }
    found = {
        kind: np.stack([weights[name][0, :, : sizes[kind][0], : sizes[kind][1]] for name in layer_names])
        for kind, layer_names in names.items()
    }
    return Attention(**found)


def cross_attention(model: Model, source_ids: Sequence[int], target_ids: Sequence[int]) -> np.ndarray:
    """Returns the cross-attention weights [L, N, T, S] that `attention` returns, without the others.

    Raises:
      DecodingError: as `align`.
    """
    check_model(model)
    _check(model, [source_ids], [target_ids])
    names = _names(model.config, "decoder", "cross_attention")
    weights = _weights(model, [source_ids], [target_ids], names)
    return np.stack([weights[name][0, :, : len(target_ids), : len(source_ids)] for name in names])


def entropies(weights: np.ndarray) -> np.ndarray:
    """Returns each layer's entropy [L] in nats: the mean over heads and queries of that of a query's weights.

    Args:
      weights: [L, N, Q, K].

    Example:
      >>> import numpy as np
      >>> entropies(np.array([[[[0.5, 0.5]]], [[[1.0, 0.0]]]])).round(3).tolist()
      [0.693, 0.0]
    """
    weights = weights.astype(np.float64)
    return np.asarray(-(weights * np.log(np.where(weights > 0, weights, 1.0))).sum(axis=-1).mean(axis=(1, 2)) + 0.0)


def align(
    model: Model, source_ids: Sequence[Sequence[int]], target_ids: Sequence[Sequence[int]], *, layer: int | None = None
) -> list[np.ndarray]:
    """Returns the weights from each target token to each source token: the mean over the heads of a decoder layer.

    The row of a token is the one that predicts it. The penultimate layer's mean aligns best (Garg et al. 2019, "Jointly
    Learning to Align and Translate with Transformer Models", §4.1). Neither the other sentences nor their order nor
    padding changes a result.

    Args:
      source_ids: each sentence's S tokens, as the source tokenizer encodes them.
      target_ids: each sentence's T tokens, without the start token, with or without the end token.
      layer: the decoder layer, from 0. None: the penultimate, or the only one.

    Returns:
      For each sentence an array [T, S], float32 or wider. Rows sum to 1, unless the model attends to padding.

    Raises:
      DecodingError: different numbers of sources and targets; ids outside the vocabulary; a source or target longer
        than the model allows; an unknown layer.

    Example:
      >>> import jax
      >>> from jax_transformer import GenerationConfig, Model, TransformerConfig, init_params
      >>> config = TransformerConfig(source_vocab_size=9, target_vocab_size=9, d_model=8, num_heads=2, d_ff=8,
      ...                            num_encoder_layers=1, num_decoder_layers=1)
      >>> model = Model(config, init_params(config, jax.random.key(0)), None, None,
      ...               GenerationConfig(decoder_start_id=1, eos_id=2))
      >>> [weights.shape for weights in align(model, [[3, 4, 5], [6]], [[7, 2], [8, 8, 2]])]
      [(2, 3), (3, 1)]
    """
    check_model(model)
    layers = model.config.num_decoder_layers
    layer = default_layer(model.config) if layer is None else layer
    if not 0 <= layer < layers:
        raise DecodingError(f"layer: expected from 0 to {layers - 1}, one of the decoder's; received {layer}")
    _check(model, source_ids, target_ids)
    name = f"decoder.layers.{layer}.cross_attention.weights"
    aligned = [np.zeros(0)] * len(source_ids)
    by_length = sorted(range(len(source_ids)), key=lambda i: (len(source_ids[i]), len(target_ids[i])))

    def fits(batch: list[int]) -> bool:
        return len(batch) <= ROWS[-1] and may_share(model, len(source_ids[batch[-1]]))

    for batch in grouped(by_length, fits):
        weights = _weights(model, [source_ids[i] for i in batch], [target_ids[i] for i in batch], (name,))[name].mean(
            axis=1
        )
        for i, padded in zip(batch, weights, strict=False):  # padded rows come last
            aligned[i] = padded[: len(target_ids[i]), : len(source_ids[i])]
    return aligned


def default_layer(config: TransformerConfig) -> int:
    """Returns the last decoder layer but one, or the only one."""
    return max(config.num_decoder_layers - 2, 0)


def word_pairs(weights: np.ndarray, source: Words, target: Words) -> list[Pair]:
    """Pairs each target word with the source word that it attends to most, in the order of the target.

    A pair's weight is the sum over the source word's tokens and the mean over the target word's. Words without tokens
    are left out. The first of equal weights wins.

    Args:
      weights: [T, S], as `align` returns them.
      source, target: the words of S source and T target tokens, as `words_of_text` and `words_of_ids` return them.

    Returns:
      Pairs (source word, target word) of numbers from 0.

    Raises:
      ValueError: the weights' shape doesn't match the numbers of tokens.

    Example:
      >>> import numpy as np
      >>> from jax_transformer.data.tokenizers import Words
      >>> source, target = (Words(["Who", "sleeps"], np.array([0, 1])), Words(["Wer", "schläft"], np.array([0, 1, 1])))
      >>> word_pairs(np.array([[0.9, 0.1], [0.3, 0.7], [0.6, 0.4]]), source, target)
      [(0, 0), (1, 1)]
    """
    if weights.shape != (len(target.numbers), len(source.numbers)):
        received = (
            f"weights {list(weights.shape)} of {len(target.numbers)} target and {len(source.numbers)} source tokens"
        )
        raise ValueError(f"expected weights [T, S] of as many target and source tokens; received {received}")
    candidates = np.unique(source.numbers[source.numbers >= 0])
    if not len(candidates):
        return []
    summed = np.stack(
        [weights[:, source.numbers == number].sum(axis=1) for number in candidates], axis=1
    )  # [T, candidates]
    pairs = []
    for number in np.unique(target.numbers[target.numbers >= 0]):
        mean = summed[target.numbers == number].mean(axis=0)
        pairs.append((int(candidates[mean.argmax()]), int(number)))
    return pairs


def pharaoh(pairs: Sequence[Pair]) -> str:
    """Returns pairs of words in the Pharaoh format, source-target.

    Example:
      >>> pharaoh([(0, 0), (2, 1)])
      '0-0 2-1'
    """
    return " ".join(f"{source}-{target}" for source, target in pairs)


# --- batches


def _names(config: TransformerConfig, stack: str, sublayer: str) -> tuple[str, ...]:
    """Returns the trace's names of a sublayer's weights in all layers of a stack."""
    return tuple(f"{stack}.layers.{i}.{sublayer}.weights" for i in range(getattr(config, stack).num_layers))


def _weights(
    model: Model, source_ids: Sequence[Sequence[int]], target_ids: Sequence[Sequence[int]], names: tuple[str, ...]
) -> dict[str, np.ndarray]:
    """Returns the activations of these names, [rows, N, Q, K], of a batch padded to one of few shapes."""
    config = model.config
    source = padded_sources(model, source_ids)
    rows = len(source)
    length = round_length(max(map(len, target_ids)), num_positions(model, "target") or WITHOUT_TABLE)
    targets = pad(target_ids, pad_id=config.target_pad_id, rows=rows, length=length)
    start_id, _ = starts_and_ends(model)
    inputs = np.concatenate([np.full((rows, 1), start_id, np.int32), targets[:, :-1]], axis=1)
    decoding = config.while_decoding().replace(attention_path="reference")
    return {
        name: np.asarray(weights)
        for name, weights in traced_weights(decoding, prepare(model).params, source, inputs, names).items()
    }


@partial(jax.jit, static_argnames=("config", "names"))
def traced_weights(
    config: TransformerConfig, params: Params, source_ids: SourceInput, inputs: jax.Array, names: tuple[str, ...]
) -> dict[str, jax.Array]:
    """Returns the named attention weights, [B, N, Q, K] each: from one run if no weight depends on later tokens, else
    from one run per prefix.

    Args:
      config: a config whose attention is computed on the path `reference`.
    """
    masks = make_masks(config, source_ids, inputs)

    def weights(exists: jax.Array) -> dict[str, jax.Array]:
        up_to_here = masks._replace(decoder_exists=exists)
        _, trace = functional.apply(config, params, source_ids, inputs, masks=up_to_here, return_trace=True)
        return {name: trace[name] for name in names}

    length = inputs.shape[1]
    if config.cache_is_exact:
        return weights(causal_mask(length))
    # The encoder's weights don't depend on the prefix: those of the last run serve.
    is_decoders = {name: name.startswith("decoder.") for name in names}

    def last_row(last: jax.Array) -> dict[str, jax.Array]:
        so_far = weights(jnp.arange(length) <= last)
        return {name: so_far[name][:, :, last] if is_decoders[name] else so_far[name] for name in names}

    rows = jax.lax.map(last_row, jnp.arange(length))
    return {name: jnp.moveaxis(rows[name], 0, 2) if is_decoders[name] else rows[name][-1] for name in names}


def _check(model: Model, source_ids: Sequence[Sequence[int]], target_ids: Sequence[Sequence[int]]) -> None:
    check_count("target_ids", len(target_ids), len(source_ids))
    sizes = {"source": model.config.source_vocab_size, "target": model.config.target_vocab_size}
    sides: tuple[tuple[Literal["source", "target"], Sequence[Sequence[int]]], ...] = (
        ("source", source_ids),
        ("target", target_ids),
    )
    for side, sentences in sides:
        check_ids(side, sentences, sizes[side])
        longest, most = max(map(len, sentences), default=0), num_positions(model, side) or WITHOUT_TABLE
        if longest > most:
            raise DecodingError(f"{side}_ids: expected at most {most} ids; received {longest}")
