"""Unknown faults before the first layer: of masks, embeddings, positions and biases by distance."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from jax_transformer.config.positions import Sinusoidal
from jax_transformer.parity.oracle.graph import place
from selftest.unknown import Site, Unknown, require, unknown

# --- masks: what is left of each must not be one that is known, such as no mask at all


def visible_cell_hidden(site: Site, right: np.ndarray) -> np.ndarray:
    return _with_one_flipped(site, right, True)


def hidden_cell_visible(site: Site, right: np.ndarray) -> np.ndarray:
    return _with_one_flipped(site, right, False)


def _with_one_flipped(site: Site, mask: np.ndarray, was: bool) -> np.ndarray:
    cells = np.argwhere(mask == was)
    require(len(cells) > 2, "to flip one of them is to flip them all, or nearly")
    wrong = mask.copy()
    wrong[tuple(cells[site.pick(len(cells))])] = not was
    return wrong


def mask_of_another_sentence(site: Site, right: np.ndarray) -> np.ndarray:
    return np.roll(right, 1, axis=0)


def last_key_visible(site: Site, right: np.ndarray) -> np.ndarray:
    wrong = right.copy()
    wrong[..., -1] = True
    require(right.shape[-1] > 2 and not wrong.all(), "nothing else is masked, or nearly nothing")
    return wrong


def window(site: Site, right: np.ndarray) -> np.ndarray:
    query, key = _square(right)
    return right & (np.abs(query - key) < max(2, right.shape[-1] // 2))


def padding_one_key_late(site: Site, right: np.ndarray) -> np.ndarray:
    require(right.shape[-2] == 1 and right.shape[-1] > 2, "needs a mask of keys alone")
    return np.roll(right, 1, axis=-1)


def one_sentence_unmasked(site: Site, right: np.ndarray) -> np.ndarray:
    masked = np.flatnonzero(~right.all(axis=(1, 2, 3)))
    require(len(masked) > 1, "no other sentence is masked")
    wrong = right.copy()
    wrong[masked[site.pick(len(masked))]] = True
    return wrong


def causal_in_blocks_of_two(site: Site, right: np.ndarray) -> np.ndarray:
    require(
        place(site.node.name).path[-1] == "decoder_self" and site.stack.self_attention.causal, "needs a causal mask"
    )
    query, key = _square(right)
    return site.compute(config=replace(site.config, decoder_causal=False)) & (key // 2 <= query // 2)


def _square(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The queries' and the keys' positions, [Q, 1] and [K], of [..., Q, K] with as many of both."""
    require(scores.shape[-1] == scores.shape[-2] > 2, "needs as many keys as queries, and three")
    return np.arange(scores.shape[-1])[:, None], np.arange(scores.shape[-1])


# --- embeddings


def _used_rows(site: Site) -> list[int]:
    """Of the tokens looked up that aren't pads."""
    config, stack = site.config, place(site.node.name).stack
    of_target = {config.target.pad_id, config.decoder.self_attention.padding_id}
    pads = {config.source.pad_id} if stack == "encoder" else of_target
    return [int(i) for i in np.unique(site.inputs["ids"]) if int(i) not in pads]


def two_rows_swapped(site: Site, right: np.ndarray) -> np.ndarray:
    used, table = _used_rows(site), site.parameters["embedding"].copy()
    rows = [used[i] for i in site.pick_two(len(used))]
    table[rows] = table[rows[::-1]]
    return site.compute(parameters={"embedding": table})


def row_zero(site: Site, right: np.ndarray) -> np.ndarray:
    used, table = _used_rows(site), site.parameters["embedding"].copy()
    table[used[site.pick(len(used))]] = 0.0
    return site.compute(parameters={"embedding": table})


def row_stale(site: Site, right: np.ndarray) -> np.ndarray:
    used, table = _used_rows(site), site.parameters["embedding"].copy()
    table[used[site.pick(len(used))]] += 0.01 * table.std() * site.rng.standard_normal(table.shape[1])
    return site.compute(parameters={"embedding": table})


def rows_rolled(site: Site, right: np.ndarray) -> np.ndarray:
    return site.compute(parameters={"embedding": np.roll(site.parameters["embedding"], 1, axis=0)})


def rare_tokens_alike(site: Site, right: np.ndarray) -> np.ndarray:
    used = _used_rows(site)
    require(len(used) > 2, "needs three tokens")
    middle = used[len(used) // 2]
    return site.compute(inputs={"ids": np.minimum(site.inputs["ids"], middle)})


def positions_smaller(site: Site, right: np.ndarray) -> np.ndarray:
    return site.compute(inputs={"positions": 0.99 * site.inputs["positions"]})


def positions_of_half_the_features(site: Site, right: np.ndarray) -> np.ndarray:
    positions = site.inputs["positions"].copy()
    positions[..., positions.shape[-1] // 2 :] = 0.0
    return site.compute(inputs={"positions": positions})


def token_leaks_into_the_next(site: Site, right: np.ndarray) -> np.ndarray:
    tokens = site.inputs["tokens"].copy()
    tokens[:, 1:] += 0.01 * site.inputs["tokens"][:, :-1]
    return site.compute(inputs={"tokens": tokens})


# --- positions


def base_off(site: Site, right: np.ndarray) -> np.ndarray:
    return site.compute(parameters={"table": sinusoids(site, base=9999.0)})


def one_frequency_off(site: Site, right: np.ndarray) -> np.ndarray:
    factor = np.ones(site.stack.d_model // 2)
    factor[site.pick(len(factor))] = 1.01
    return site.compute(parameters={"table": sinusoids(site, factor=factor)})


def sinusoids(site: Site, base: float = 10000.0, factor: np.ndarray | float = 1.0) -> np.ndarray:
    """The table [rows, D] with this base, and the frequency of every pair of columns times its factor."""
    spec, table = site.stack.positions, site.parameters["table"]
    require(isinstance(spec, Sinusoidal) and spec.frequency != "doubled", "needs frequencies by pairs of columns")
    assert isinstance(spec, Sinusoidal)
    width = site.stack.d_model
    exponents = np.arange(0, width, 2) / (width if spec.frequency == "standard" else max(width - 2, 1))
    angles = np.arange(len(table))[:, None] * factor / base**exponents
    waves = [np.sin(angles), np.cos(angles)]
    wrong = (
        np.stack(waves, axis=-1).reshape(table.shape)
        if spec.layout == "interleaved"
        else np.concatenate(waves, axis=-1)
    )
    return np.where(table.any(axis=-1, keepdims=True), wrong, 0.0)  # the row of pads may be zero


def counted_from_the_end(site: Site, right: np.ndarray) -> np.ndarray:
    return right[:, ::-1]


def every_position_twice(site: Site, right: np.ndarray) -> np.ndarray:
    return right[:, np.arange(right.shape[1]) // 2]


def one_column_negated(site: Site, right: np.ndarray) -> np.ndarray:
    wrong = right.copy()
    wrong[..., site.pick(right.shape[-1])] *= -1.0
    return wrong


# --- biases by distance, [1, N, T, T]


def heads_rolled(site: Site, right: np.ndarray) -> np.ndarray:
    return np.roll(right, 1, axis=1)


def far_keys_like_nearer_ones(site: Site, right: np.ndarray) -> np.ndarray:
    query, key = _square(right)
    most = len(key) // 3
    offset = np.clip(key - query, -most, most)
    return right[:, :, np.maximum(-offset, 0), np.maximum(offset, 0)]


def no_bias_at_distance_zero(site: Site, right: np.ndarray) -> np.ndarray:
    query, key = _square(right)
    return np.where(query == key, 0.0, right)


OF_INPUTS: tuple[Unknown, ...] = (
    unknown("one visible cell of a mask is hidden", ("mask",), visible_cell_hidden),
    unknown("one hidden cell of a mask is visible", ("mask",), hidden_cell_visible),
    unknown("every sentence has its neighbour's mask", ("mask",), mask_of_another_sentence),
    unknown("the last key is always visible", ("mask",), last_key_visible),
    unknown("only keys in a window are visible", ("mask",), window),
    unknown("the padding mask is one key late", ("mask",), padding_one_key_late),
    unknown("one sentence of the batch is not masked", ("mask",), one_sentence_unmasked),
    unknown("the mask is causal in blocks of two", ("mask",), causal_in_blocks_of_two),
    unknown("two rows of the embedding are swapped", ("token_embedding",), two_rows_swapped),
    unknown("one row of the embedding is zero", ("token_embedding",), row_zero),
    unknown("one row of the embedding is stale", ("token_embedding",), row_stale),
    unknown("the embedding is rolled by one row", ("token_embedding",), rows_rolled),
    unknown("ids beyond some are read as that", ("token_embedding",), rare_tokens_alike),
    unknown("positions are added 1 % too small", ("embedding",), positions_smaller, ("positions",)),
    unknown("half of the features get no positions", ("embedding",), positions_of_half_the_features, ("positions",)),
    unknown("a hundredth of each token leaks into the next", ("embedding",), token_leaks_into_the_next),
    unknown("sinusoids have the base 9999", ("positions",), base_off),
    unknown("one frequency of the sinusoids is 1 % too high", ("positions",), one_frequency_off),
    unknown("positions are counted from the end", ("positions",), counted_from_the_end),
    unknown("every position is counted twice", ("positions",), every_position_twice),
    unknown("one column of the positions is negated", ("positions",), one_column_negated),
    unknown("heads have each other's position bias", ("position_bias",), heads_rolled),
    unknown("far keys have the position bias of nearer ones", ("position_bias",), far_keys_like_nearer_ones),
    unknown("there is no position bias at distance zero", ("position_bias",), no_bias_at_distance_zero),
)
