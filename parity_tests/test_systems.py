"""The published systems and the JAX models that their checkpoints become are the same functions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from systems import (
    SYSTEMS,
    Case,
    attended,
    jax_activation_gradients,
    jax_gradients,
    jax_trace,
    make_case,
    make_labels,
    per_layer,
    quick_logits,
    torch_activation_gradients,
    torch_gradients,
    torch_trace,
)

from jax_transformer.decoding.greedy import greedy
from jax_transformer.model import functional
from jax_transformer.parity.compare import compare, float32_rule
from jax_transformer.parity.tolerances import FLOAT64_RELATIVE_RMS, has_zero_gradient


@pytest.fixture(params=SYSTEMS)
def case(request: pytest.FixtureRequest) -> Case:
    return make_case(request.param)


def test_every_trace_in_float64(case: Case) -> None:
    """Names, order, shapes and dtypes; masks exactly; where attention may not go, the fill value exactly."""
    expected, received = torch_trace(case.torch64, case), jax_trace(case.config, case.params64, case)
    assert list(received) == list(expected)
    for name, reference in expected.items():
        candidate, where = received[name], attended(name, expected)
        assert (candidate.shape, candidate.dtype) == (reference.shape, reference.dtype), name
        if name.startswith("mask."):
            np.testing.assert_array_equal(candidate, reference)
            continue
        result = compare(candidate, reference, where)
        assert result.within(FLOAT64_RELATIVE_RMS), f"{name}: {result}"
        if where is not None:
            masked = np.broadcast_to(~where, reference.shape)
            np.testing.assert_array_equal(candidate[masked], reference[masked])
            assert masked.any(), name


def test_every_trace_in_float32(case: Case) -> None:
    truth, expected = torch_trace(case.torch64, case), torch_trace(case.torch32, case)
    received = jax_trace(case.config, case.params32, case)
    for name in truth:
        if not name.startswith("mask."):
            verdict = float32_rule(received[name], expected[name], truth[name], attended(name, truth))
            assert verdict.passed, f"{name}: {verdict}"


@pytest.mark.parametrize("name", [name for name, system in SYSTEMS.items() if system.dialect == name])
def test_the_longest_sentences_that_the_tables_allow(name: str) -> None:
    """And one token more is refused by both. (Positions by batch row bound the batch instead.)"""
    case = make_case(name)
    config, rng = case.config, np.random.default_rng(3)
    longest = config.max_length if config.position_kind != "none" and config.position_index == "column" else 45
    source = rng.integers(config.source_vocab_size, size=(2, longest))
    target = rng.integers(config.target_vocab_size, size=(2, longest))
    with torch.no_grad():
        expected = case.torch64(torch.from_numpy(source), torch.from_numpy(target)).numpy()
    received = quick_logits(config, case.params64, source, target)
    assert compare(np.asarray(received), expected).within(FLOAT64_RELATIVE_RMS)
    if longest == config.max_length:
        too_long = np.concatenate([source, source[:, :1]], axis=1)
        with pytest.raises(ValueError, match="the position table allows"):
            functional.apply(config, case.params64, too_long, target)
        with pytest.raises(ValueError, match="the position table allows"):
            case.torch64(torch.from_numpy(too_long), torch.from_numpy(target))


@pytest.mark.parametrize("name", [name for name, system in SYSTEMS.items() if system.dialect in (name, name.removesuffix("_as_meant"))])
def test_sentences_of_more_than_512_tokens(name: str) -> None:
    """With tables of 600 rows, all of them taken by the sources. (What has no table, or one for the rows of a batch, takes any length.)"""
    case, rng = make_case(name, max_length=600), np.random.default_rng(6)
    config = case.config
    source, target = rng.integers(config.source_vocab_size, size=(2, 600)), rng.integers(config.target_vocab_size, size=(2, 520))
    source[1, 540:], target[1, 515:] = config.source_pad_id, config.target_pad_id
    with torch.no_grad():
        expected = case.torch64(torch.from_numpy(source), torch.from_numpy(target)).numpy()
    received = quick_logits(config, case.params64, source, target)
    assert compare(np.asarray(received), expected).within(FLOAT64_RELATIVE_RMS), compare(np.asarray(received), expected)


def test_positions_by_row_bound_the_batch() -> None:
    """As many sentences as codersarts's table has rows, and one more is refused by both."""
    case, rng = make_case("codersarts"), np.random.default_rng(4)
    config = case.config
    source = rng.integers(config.source_vocab_size, size=(config.max_length + 1, 3))
    target = rng.integers(config.target_vocab_size, size=(config.max_length + 1, 2))
    with torch.no_grad():
        expected = case.torch64(torch.from_numpy(source[:-1]), torch.from_numpy(target[:-1])).numpy()
    received = quick_logits(config, case.params64, source[:-1], target[:-1])
    assert compare(np.asarray(received), expected).within(FLOAT64_RELATIVE_RMS)
    refusal = f"{len(source)} .*the position table allows {config.max_length}"
    with pytest.raises(ValueError, match=refusal):
        functional.apply(config, case.params64, source, target)
    with pytest.raises(ValueError, match=refusal):
        case.torch64(torch.from_numpy(source), torch.from_numpy(target))
    with pytest.raises(ValueError, match=refusal):
        greedy(config, case.params64, source, decoder_start_id=5, eos_id=-1, max_decode_length=2)


def test_parameter_gradients(case: Case) -> None:
    labels = make_labels(case)
    expected, received = per_layer(torch_gradients(case, labels)), per_layer(jax_gradients(case, labels))
    assert expected.keys() == received.keys()
    for name in expected:
        if has_zero_gradient(name.split("[")[0]):  # a key bias: analytically zero
            size = np.abs(expected[name.replace("key/bias", "value/bias")]).max()
            assert max(np.abs(expected[name]).max(), np.abs(received[name]).max()) <= FLOAT64_RELATIVE_RMS * size
            continue
        result = compare(received[name], expected[name])
        assert result.within(FLOAT64_RELATIVE_RMS), f"{name}: {result}"


def test_activation_gradients(case: Case) -> None:
    """Of the loss, to every activation that the two models name."""
    labels = make_labels(case)
    expected, received = torch_activation_gradients(case, labels), jax_activation_gradients(case, labels)
    assert expected.keys() == received.keys()
    for name, reference in expected.items():
        assert reference.any(), name
        assert (received[name].shape, received[name].dtype) == (reference.shape, reference.dtype), name
        result = compare(received[name], reference)
        assert result.within(FLOAT64_RELATIVE_RMS), f"{name}: {result}"


@pytest.mark.parametrize("name", SYSTEMS)
def test_greedy_decoding_is_the_systems_own(name: str) -> None:
    """Token for token, in float64, with the masks that the system uses while decoding; to the end, and with an <eos> that comes up."""
    case, start, length = make_case(name), 5, 14
    has_tokens = (case.source_ids != case.config.source_pad_id).any(axis=1)  # ours gives nothing for nothing

    def both(eos: int) -> tuple[np.ndarray, np.ndarray]:
        expected = case.system.greedy(case.torch64, torch.from_numpy(case.source_ids), start, eos, length).numpy()
        padded = np.full((len(expected), length), case.config.target_pad_id)
        padded[:, : expected.shape[1]] = expected
        received = greedy(case.config, case.params64, case.source_ids, decoder_start_id=start, eos_id=eos, max_decode_length=length)
        return padded[has_tokens], np.asarray(received)[has_tokens]

    expected, received = both(eos=-1)
    np.testing.assert_array_equal(received, expected)
    assert len(np.unique(expected, axis=0)) >= 4  # of six: rows that took each other's place would show
    expected, received = both(eos=int(expected[0, 2]))
    np.testing.assert_array_equal(received, expected)
