"""The problems of a parity run: sizes, padding and weights on which mistakes show, for every published system and sizes
that collide."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from fake_sides import CONFIG, make_params
from selftest.subjects import SUBJECTS, make_model

from jax_transformer.config.model import TransformerConfig
from jax_transformer.parity.oracle import forward
from jax_transformer.parity.oracle.graph import nodes
from jax_transformer.parity.problems import (
    LONGEST,
    Problem,
    long_problem,
    other_weights,
    own_problem,
    randomised,
    swap_target_ids,
    with_padding_at_the_end,
)
from jax_transformer.runtime.trees import flatten, unflatten

POST = dataclasses.replace(CONFIG, max_length=40)
PRE = dataclasses.replace(POST, norm_placement="pre", final_norm=True)
PRE_TIED = dataclasses.replace(PRE, tie_head=True)
T5 = dataclasses.replace(
    PRE,
    norm_kind="rms_norm",
    norm_bias=False,
    position_kind="relative_bias",
    target_vocab_size=23,
    share_embeddings=True,
    relative_buckets=8,
    relative_max_distance=16,
)
WITHOUT_NORM_BIASES = dataclasses.replace(PRE, norm_bias=False, num_decoder_layers=6)
LEARNED = dataclasses.replace(POST, position_kind="learned")
CONFIGS = {
    "post": POST,
    "pre": PRE,
    "pre, tied": PRE_TIED,
    "without norm biases": WITHOUT_NORM_BIASES,
    "learned": LEARNED,
    "relative": T5,
}


def sizes_of(config: TransformerConfig) -> set[int]:
    sizes = {config.d_model, config.source_vocab_size, config.target_vocab_size}
    for stack in (config.encoder, config.decoder):
        sizes |= {stack.heads.num_heads, stack.heads.head_dim}
        if stack.feed_forward:
            sizes.add(stack.feed_forward.width)
    return sizes


def apart(problem: Problem, config: TransformerConfig) -> bool:
    """Whether batch and lengths are other numbers than one another and than the model's sizes."""
    (batch, source), (_, target) = problem.source_ids.shape, problem.decoder_input_ids.shape
    return len({batch, source, target} - sizes_of(config)) == 3


@pytest.mark.parametrize("name", SUBJECTS)
def test_no_two_sizes_of_a_system_are_equal(name: str) -> None:
    model = make_model(name)
    assert apart(own_problem(model.config, model.params), model.config)


@pytest.mark.parametrize(
    "fields",
    [
        {"num_heads": 7, "d_model": 28, "d_ff": 11},
        {"d_ff": 9},
        {"d_model": 14, "num_heads": 2, "d_ff": 8},
        {"max_length": 6},
        {"source_vocab_size": 11, "target_vocab_size": 9},
        {"num_heads": 2, "head_dim": 11, "d_ff": 9},
        {"decoder_max_length": 5},
    ],
)
def test_sizes_that_would_collide_are_avoided(fields: dict[str, int]) -> None:
    config = dataclasses.replace(CONFIG, **fields)
    problem = own_problem(config, make_params(config))
    assert apart(problem, config)
    assert problem.source_ids.shape[1] <= config.encoder.max_length
    assert problem.decoder_input_ids.shape[1] <= config.decoder.max_length


def is_right(pads: np.ndarray) -> bool:
    return bool(pads[-1] and not pads[0] and (np.diff(pads.astype(int)) >= 0).all())


def is_left(pads: np.ndarray) -> bool:
    return is_right(pads[::-1])


def is_inside(pads: np.ndarray) -> bool:
    return bool(pads.any() and not pads[0] and not pads[-1])


KINDS: dict[str, Callable[[np.ndarray], bool]] = {
    "right": is_right, "left": is_left, "inside": is_inside, "one token": lambda pads: (~pads).sum() == 1,
    "none": lambda pads: not pads.any(),
}  # fmt: skip


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_every_kind_of_padding(config: TransformerConfig) -> None:
    problem = own_problem(config, {}, 3)
    source, target = problem.source_ids == config.source_pad_id, problem.decoder_input_ids == config.target_pad_id
    for kind, is_of_kind in KINDS.items():
        for side in (source, target):
            assert any(is_of_kind(row) for row in side), kind
    assert source.all(axis=1).sum() == 1, "a sentence of nothing"
    assert problem.source_ids.max() < config.source_vocab_size
    assert max(problem.decoder_input_ids.max(), problem.labels.max()) < config.target_vocab_size
    labels = problem.labels == config.target_pad_id
    assert (labels[target]).all(), "pads are no labels"
    assert (labels & ~target).any(), "a pad as a label where the input is none"
    assert labels[source.all(axis=1)].all(), "nothing is asked of the sentence of nothing"
    assert (~labels).sum() >= 20


def test_another_seed_is_another_batch() -> None:
    first, same, other = (own_problem(CONFIG, {}, seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.source_ids, same.source_ids)
    assert (first.source_ids != other.source_ids).any()


@pytest.mark.parametrize(("most", "expected"), [(16, 16), (40, 40), (600, LONGEST), (11, None), (6, None)])
def test_sentences_as_long_as_the_tables_allow(most: int, expected: int | None) -> None:
    """Of 523 tokens at most, which is more than tables of 512 have; none where the other problems are as long."""
    assert LONGEST > 512
    config = dataclasses.replace(CONFIG, max_length=most)
    problem = long_problem(config, make_params(config))
    if expected is None:
        assert problem is None
        return
    assert problem is not None
    assert problem.source_ids.shape == problem.decoder_input_ids.shape == problem.labels.shape == (1, expected)
    pads = problem.source_ids[0] == config.source_pad_id
    assert pads.any()
    assert not pads[[0, -1]].any()


# --- weights


class Spread(NamedTuple):
    """Of the inputs of a model's norms, the largest |mean| in deviations, and the smallest variance."""

    mean: float
    variance: float


def spread(config: TransformerConfig, problem: Problem) -> Spread:
    trace = forward(config, problem.params, *problem.ids)
    inputs: list[np.ndarray] = []
    for node in nodes(config):
        if node.kind in ("norm", "residual_norm"):
            inputs.append(np.asarray(sum(trace[name] for name in node.inputs.values())))
    means = [np.abs(x.mean(axis=-1)) / x.std(axis=-1) for x in inputs]
    return Spread(max(mean.max() for mean in means), min(x.var(axis=-1).min() for x in inputs))


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_weights_of_other_kinds(config: TransformerConfig) -> None:
    """Every parameter is another, and a float32 number; constants stay. Large means and small variances do reach
    norms."""
    own = flatten(make_params(config))
    problems = {problem.name: problem for problem in other_weights(config, make_params(config))}
    assert list(problems) == ["random weights", "small variances", "large means"]
    for problem in problems.values():
        leaves = flatten(problem.params)
        assert leaves.keys() == own.keys()
        for path, leaf in leaves.items():
            assert np.asarray(leaf).shape == np.asarray(own[path]).shape
            np.testing.assert_array_equal(
                np.asarray(leaf, np.float32).astype(np.float64), np.asarray(leaf, np.float64), err_msg=path
            )
            if path.startswith("constants/"):
                np.testing.assert_array_equal(leaf, own[path])
            else:
                assert (np.asarray(leaf) != own[path]).any(), path
    spreads = {name: spread(config, problem) for name, problem in problems.items()}
    assert spreads["random weights"].mean < 50
    assert spreads["large means"].mean > 50
    assert spreads["small variances"].variance < 1e-6


def test_rounding_of_the_mean_stays_small_where_no_norm_widens_the_stream() -> None:
    """The stream of a pre-norm model adds up the biases of its sublayers; embeddings may be small."""
    leaves = flatten(make_params(WITHOUT_NORM_BIASES))
    small = unflatten({path: leaf * 0.1 if "embedding" in path else leaf for path, leaf in leaves.items()})
    problems = {problem.name: problem for problem in other_weights(WITHOUT_NORM_BIASES, small)}
    assert spread(WITHOUT_NORM_BIASES, problems["small variances"]).mean < 5000


@pytest.mark.parametrize("name", [name for name in SUBJECTS if make_model(name).config.norm_kind != "none"])
def test_norms_of_every_system_get_such_inputs(name: str) -> None:
    model = make_model(name)
    problems: dict[str, Any] = {problem.name: problem for problem in other_weights(model.config, model.params)}
    assert spread(model.config, problems["large means"]).mean > 50
    assert spread(model.config, problems["small variances"]).variance < 1e-6


def test_without_inner_padding_only_sentences_ends_are_padded() -> None:
    own = own_problem(POST, make_params(POST))
    filled = with_padding_at_the_end(POST, own)
    pads = [POST.source_pad_id], [POST.target_pad_id, POST.source_pad_id]  # a decoder may take either for padding
    for before, after, taken in zip(own.ids, filled.ids, pads, strict=True):
        is_pad, was_pad = np.isin(after, taken), np.isin(before, taken)
        assert not (is_pad[:, :-1] & ~is_pad[:, 1:]).any()
        assert (was_pad[:, :-1] & ~was_pad[:, 1:]).any()
        np.testing.assert_array_equal(after[~was_pad], before[~was_pad])
        at_end = np.flip(np.logical_and.accumulate(np.flip(was_pad, 1), 1), 1)
        np.testing.assert_array_equal(is_pad, at_end)


# --- beginnings of targets


BUFFER = dataclasses.replace(CONFIG, tie_head=True, head_bias="buffer")


@pytest.mark.parametrize("config", [POST, BUFFER])
def test_some_targets_begin_with_the_start_token(config: TransformerConfig) -> None:
    params, start_id = make_params(config), 0
    problems = [own_problem(config, params, start_id=start_id), *other_weights(config, params, start_id=start_id)]
    longer = long_problem(config, params, start_id=start_id)
    for problem in [*problems, *([longer] if longer else [])]:
        without = own_problem(config, params) if problem is not longer else long_problem(config, params)
        assert without is not None
        begins = problem.decoder_input_ids[:, 0] == start_id
        assert begins.any()
        assert np.array_equal(problem.labels, without.labels)
        assert np.array_equal(problem.decoder_input_ids[:, 1:], without.decoder_input_ids[:, 1:])
    assert not (own_problem(config, params, start_id=start_id).decoder_input_ids[[1, 4, 5, 6], 0] == start_id).all()


def test_a_start_token_that_the_decoder_masks_begins_no_target() -> None:
    masking = dataclasses.replace(POST, decoder_padding="keys")
    params = make_params(masking)
    starting = own_problem(masking, params, start_id=masking.target_pad_id)
    assert np.array_equal(starting.decoder_input_ids, own_problem(masking, params).decoder_input_ids)
    seeing = dataclasses.replace(POST, decoder_padding="none")
    starting = own_problem(seeing, make_params(seeing), start_id=seeing.target_pad_id)
    assert (starting.decoder_input_ids[[0, 2, 3], 0] == seeing.target_pad_id).all()


# --- buffers


def with_buffer() -> Problem:
    params = make_params(BUFFER) | {"constants": make_params(BUFFER)["constants"]}
    params["constants"]["head_bias"] = np.zeros(BUFFER.target_vocab_size, np.float32)
    return own_problem(BUFFER, params)


def test_a_bias_that_is_a_buffer_is_random_and_tables_of_a_formula_stay() -> None:
    params = with_buffer().params
    leaves = randomised(params, np.random.default_rng(0))
    assert leaves["constants/head_bias"].std() > 0.1
    assert np.array_equal(leaves["constants/encoder_positions"], params["constants"]["encoder_positions"])
    for problem in other_weights(BUFFER, params):
        assert flatten(problem.params)["constants/head_bias"].dtype == np.float32
        assert flatten(problem.params)["constants/head_bias"].any()


def test_leaves_that_a_side_cannot_receive_keep_their_values() -> None:
    for problem in other_weights(BUFFER, with_buffer().params, kept=["constants/head_bias"]):
        assert not flatten(problem.params)["constants/head_bias"].any()


def test_a_buffer_is_swapped_with_the_ids() -> None:
    problem = next(other_weights(BUFFER, with_buffer().params))
    before, after = (
        forward(BUFFER, one.params, *one.ids)["logits"] for one in (problem, swap_target_ids(BUFFER, problem, 4, 7))
    )
    order = np.arange(BUFFER.target_vocab_size)
    order[[4, 7]] = 7, 4
    assert np.abs(after[..., order] - before).max() < 1e-12
