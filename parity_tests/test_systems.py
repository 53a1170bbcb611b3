"""The published systems and the JAX models imported from their checkpoints are the same functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from itertools import chain

import numpy as np
import pytest
import torch
from systems import SYSTEMS, TIED, Case, layers, make_case

from jax_transformer.comparison.gates.compare import compare
from jax_transformer.comparison.gates.tolerances import FLOAT64_RELATIVE_RMS, has_zero_gradient
from jax_transformer.config.decoding import DecodingConfig
from jax_transformer.config.model import TransformerConfig
from jax_transformer.model import functional
from jax_transformer.parity.backends.jax_sides import JaxSide
from jax_transformer.parity.backends.side import Gradients
from jax_transformer.parity.backends.torch_module import TorchSide
from jax_transformer.parity.oracle import forward, nodes
from jax_transformer.parity.problems import Problem, other_weights
from jax_transformer.parity.stages.forward import compare_forward
from jax_transformer.parity.stages.precision import compare_precision, rounded
from jax_transformer.parity.stages.training import compare_gradients, compare_losses

pytestmark = pytest.mark.usefixtures("quick_compilation")

FIRSTS = list({system.dialect: name for name, system in reversed(SYSTEMS.items())}.values())
"""One system of each dialect."""
LENGTH = 14
"""The most tokens to decode."""
GREEDY = DecodingConfig(beam_size=1, max_new_tokens=LENGTH)


@pytest.fixture(params=[*SYSTEMS, *TIED])
def case(request: pytest.FixtureRequest) -> Case:
    return make_case(request.param)


@pytest.fixture(params=[*SYSTEMS, *TIED])
def shallow(request: pytest.FixtureRequest) -> Case:
    """A case of fewer layers, as compiling takes most of the time."""
    return make_case(request.param, **layers(request.param, 1, 2))


def test_jax_torch_and_the_truth_agree_on_every_activation_in_float64(case: Case) -> None:
    """On every problem: names, order, shapes, dtypes, masks and fill values; each node by itself, too.

    The truth is NumPy's, so that a mistake in JAX alone can't hide.
    """
    config = case.config
    for problem in (case.problem, *other_weights(config, case.model.params)):
        received, expected = (side.forward(problem, "float64") for side in (case.candidate, case.reference))
        truth = forward(config, problem.params, *problem.ids)
        assert list(received) == list(expected) == list(truth)
        for candidate in (received, truth):
            result = compare_forward(config, problem, candidate, expected, look_at_reference=True)
            assert result.faults == (), problem.name
            assert result.forward.verdict == result.truth.verdict == "passed", (problem.name, result)
            assert result.masks.verdict == ("passed" if result.masks.rows else "inconclusive"), result.masks
            assert len(result.masks.rows) + len(result.forward.rows) == len(result.truth.rows) == len(expected)
        assert all(0 < mask.mean() < 1 for name, mask in expected.items() if name.startswith("mask."))


def test_jax_is_as_precise_as_torch_in_float32(shallow: Case) -> None:
    problem = rounded(shallow.problem, "float32")
    truth = shallow.reference.forward(problem, "float64")
    received, expected = (side.forward(problem, "float32") for side in (shallow.candidate, shallow.reference))
    stage = compare_precision(shallow.config, "float32", received, expected, truth)
    assert stage.verdict == "passed", [row for row in stage.rows if row.verdict != "passed"]


@pytest.mark.parametrize("name", [*FIRSTS, "codersarts_as_meant"])
def test_sentences_may_be_as_long_as_the_tables_and_no_longer(name: str) -> None:
    """More than 512 tokens, in tables of 600 rows, all of which the sources take.

    Models without a table, or with one for the rows of a batch, take any length.
    """
    case, rng = make_case(name, max_length=600, **layers(name, 1, 1)), np.random.default_rng(6)
    config = case.config
    source = rng.integers(config.source_vocab_size, size=(2, 600))
    target = rng.integers(config.target_vocab_size, size=(2, 520))
    source[1, 540:], target[1, 515:] = config.source_pad_id, config.target_pad_id
    assert_same_logits(case, Problem("long", case.model.params, source, target, target))
    if config.position_kind != "none" and config.position_index == "column":
        assert_refused(case, np.concatenate([source, source[:, :1]], axis=1), target, "the position table allows")


def test_positions_by_row_bound_the_batch() -> None:
    """A batch may have as many sentences as codersarts's table has rows; both refuse one more, decoding included."""
    case, rng = make_case("codersarts"), np.random.default_rng(4)
    config = case.config
    source = rng.integers(config.source_vocab_size, size=(config.max_length + 1, 3))
    target = rng.integers(config.target_vocab_size, size=(config.max_length + 1, 2))
    assert_same_logits(case, Problem("many", case.model.params, source[:-1], target[:-1], target[:-1]))
    refusal = f"{len(source)} .*the position table allows {config.max_length}"
    assert_refused(case, source, target, refusal)
    candidate, _ = case.decoding(eos_id=config.target_vocab_size)
    with pytest.raises(ValueError, match=refusal):
        candidate.decode(Problem("too many", case.model.params, source, target, target), GREEDY)


def assert_same_logits(case: Case, problem: Problem) -> None:
    received, expected = (side.forward(problem, "float64")["logits"] for side in (case.candidate, case.reference))
    assert compare(received, expected).within(FLOAT64_RELATIVE_RMS), compare(received, expected)


def assert_refused(case: Case, source_ids: np.ndarray, decoder_input_ids: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        functional.apply(case.config, case.model.params, source_ids, decoder_input_ids)
    with pytest.raises(ValueError, match=message):
        case.program(torch.from_numpy(source_ids), torch.from_numpy(decoder_input_ids))


def test_gradients_of_parameters_and_activations_agree(shallow: Case) -> None:
    received, expected = (side.gradients(shallow.problem) for side in (shallow.candidate, shallow.reference))
    assert compare_losses(received, expected).verdict == "passed"
    stage = compare_gradients(received, expected)
    assert stage.verdict == "passed", [row for row in stage.rows if row.verdict != "passed"]
    assert expected.activations.keys() == {node.name for node in nodes(shallow.config) if node.kind != "mask"}
    assert [name for name, gradient in expected.activations.items() if not gradient.any()] == []
    attentions = shallow.config.num_encoder_layers + 2 * shallow.config.num_decoder_layers
    assert largest_of_zero_gradients(received, expected) <= FLOAT64_RELATIVE_RMS
    assert len(zero_gradients(expected)) == (attentions if shallow.config.attention_bias else 0)


def zero_gradients(gradients: Gradients) -> list[str]:
    """Returns the key biases, whose gradients are analytically zero."""
    return [path for path in gradients.parameters if has_zero_gradient(path.split("[")[0])]


def largest_of_zero_gradients(*sides: Gradients) -> float:
    """Returns the largest gradient of a key bias relative to that of the same attention's value bias."""

    def ratios(side: Gradients) -> Iterator[float]:
        for path in zero_gradients(side):
            value = sides[-1].parameters[path.replace("key/bias", "value/bias")]
            yield float(np.abs(side.parameters[path]).max() / np.abs(value).max())

    return max(chain.from_iterable(map(ratios, sides)), default=0.0)


# --- decoding


def decode(side: JaxSide | TorchSide, problem: Problem) -> np.ndarray:
    """Returns tokens [B, LENGTH]: pads follow the end."""
    tokens = side.decode(problem, GREEDY).ids
    return np.pad(tokens, ((0, 0), (0, LENGTH - tokens.shape[1])), constant_values=side.config.target_pad_id)


def with_other_masks(config: TransformerConfig) -> list[TransformerConfig]:
    """Returns configs whose decoder, while decoding, has another padding mask than the system's: training's instead of
    its own, or none instead of training's."""
    others = []
    if config.decoder_padding != "none":
        others.append(
            dataclasses.replace(config, decoding_decoder_padding=None if config.decoding_decoder_padding else "none")
        )
    if config.cross_padding == "both":
        others.append(dataclasses.replace(config, decoding_cross_padding="keys"))
    return others


def after_pads(tokens: np.ndarray, pad_ids: list[int]) -> np.ndarray:
    """Returns the mask of tokens [B, T] that aren't pads and follow a pad."""
    is_pad = np.isin(tokens, pad_ids)
    return ~is_pad & np.roll(is_pad, 1, axis=1) & (np.arange(tokens.shape[1]) > 0)


def decoding_pads(case: Case, pad_ids: list[int]) -> Problem:
    """Returns the problem with a head that prefers pads just as much as it takes for tokens to depend on the padding
    masks of decoding."""
    never, source_ids = case.config.target_vocab_size, case.problem.source_ids
    readable = source_ids[(source_ids != case.config.source_pad_id).any(axis=1)]  # nothing is decoded from nothing
    problem = dataclasses.replace(case.problem, source_ids=readable)
    sides = [case.decoding(never, config)[0] for config in (case.config, *with_other_masks(case.config))]

    def preferring(amount: float) -> Problem:
        params = dict(problem.params)
        head = params if case.config.tie_head else params.setdefault("head", {}) | {}
        name = "head_bias" if case.config.tie_head else "bias"
        bias = np.array(head[name])
        bias[pad_ids] += amount
        params |= {name: bias} if case.config.tie_head else {"head": head | {name: bias}}
        return dataclasses.replace(problem, params=params)

    def tells_masks_apart(preferred: Problem) -> bool:
        """Returns whether four sentences differ, every other mask changes some, and some go on after a pad."""
        tokens, *others = (decode(side, preferred) for side in sides)
        return (
            len(np.unique(tokens, axis=0)) >= 4
            and bool(after_pads(tokens, pad_ids).any())
            and all((other != tokens).any() for other in others)
        )

    scale = case.reference.forward(case.problem, "float64")["logits"].std()
    return next(filter(tells_masks_apart, (preferring(scale * amount) for amount in np.arange(0.0, 4.0, 0.2))))


@pytest.mark.parametrize("name", [name for name in SYSTEMS | TIED if not name.startswith("pytorch_pre")])
def test_greedy_decoding_is_the_systems_own(name: str) -> None:
    """Token for token, in float64, with the masks that the system uses while decoding; to the end, and with an end
    token that comes up.

    Pads come up amid other tokens, so another mask changes the tokens after them. The `pytorch` cases with norms before
    the sublayers give nothing but pads after a pad; test_pytorch.py decodes with them.
    """
    case = make_case(name)
    config = case.config
    others = () if config.decoder_padding_id is None else (config.decoder_padding_id,)
    pad_ids = sorted({config.target_pad_id, *others})
    problem = decoding_pads(case, pad_ids)
    received, expected = (decode(side, problem) for side in case.decoding(config.target_vocab_size))
    np.testing.assert_array_equal(received, expected)
    assert len(np.unique(expected, axis=0)) >= 4, "sentences that take each other's place should show"
    assert after_pads(expected, pad_ids).any()
    assert (expected[:, :-1] == config.target_pad_id).any()
    for other in with_other_masks(config):
        assert (decode(case.decoding(config.target_vocab_size, other)[0], problem) != expected).any()
    eos_id = int(expected[after_pads(expected, pad_ids)][-1])
    received, expected = (decode(side, problem) for side in case.decoding(eos_id))
    assert (expected == eos_id).any()
    np.testing.assert_array_equal(received, expected)
