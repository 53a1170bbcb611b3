"""The published systems and the JAX models that their checkpoints become are the same functions."""

from __future__ import annotations

import copy
import dataclasses

import numpy as np
import pytest
import torch
from greedy_decoding import greedy
from systems import (
    SYSTEMS,
    TIED,
    Case,
    attended,
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

from jax_transformer.config.model import TransformerConfig
from jax_transformer.model import functional
from jax_transformer.parity.gates.compare import compare, float32_rule
from jax_transformer.parity.gates.tolerances import FLOAT64_RELATIVE_RMS, has_zero_gradient

FIRSTS = list({system.dialect: name for name, system in reversed(SYSTEMS.items())}.values())
"""One system of each dialect."""


@pytest.fixture(params=[*SYSTEMS, *TIED])
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
    received = jax_trace(case.config, case.params32, case, quickly=True)
    for name in truth:
        if not name.startswith("mask."):
            verdict = float32_rule(received[name], expected[name], truth[name], attended(name, truth))
            assert verdict.passed, f"{name}: {verdict}"


@pytest.mark.parametrize("name", FIRSTS)
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


@pytest.mark.parametrize("name", [*FIRSTS, "codersarts_as_meant"])
def test_sentences_of_more_than_512_tokens(name: str) -> None:
    """With tables of 600 rows, all of them taken by the sources. (What has no table, or one for the rows of a batch,
    takes any length.)"""
    case, rng = make_case(name, max_length=600), np.random.default_rng(6)
    config = case.config
    source, target = (
        rng.integers(config.source_vocab_size, size=(2, 600)),
        rng.integers(config.target_vocab_size, size=(2, 520)),
    )
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
    expected, received = per_layer(torch_gradients(case, labels)), per_layer(jax_gradients(case, labels)[0])
    assert expected.keys() == received.keys()
    skipped = 0
    for name in expected:
        if has_zero_gradient(name.split("[")[0]):  # a key bias: analytically zero
            skipped += 1
            size = np.abs(expected[name.replace("key/bias", "value/bias")]).max()
            assert max(np.abs(expected[name]).max(), np.abs(received[name]).max()) <= FLOAT64_RELATIVE_RMS * size
            continue
        result = compare(received[name], expected[name])
        assert result.within(FLOAT64_RELATIVE_RMS), f"{name}: {result}"
    attentions = case.config.num_encoder_layers + 2 * case.config.num_decoder_layers
    assert skipped == (attentions if case.config.attention_bias else 0)


def test_activation_gradients(case: Case) -> None:
    """Of the loss, to every activation that the two models name."""
    labels = make_labels(case)
    expected, received = torch_activation_gradients(case, labels), jax_gradients(case, labels)[1]
    assert expected.keys() == received.keys()
    for name, reference in expected.items():
        assert reference.any(), name
        assert (received[name].shape, received[name].dtype) == (reference.shape, reference.dtype), name
        result = compare(received[name], reference)
        assert result.within(FLOAT64_RELATIVE_RMS), f"{name}: {result}"


START, LENGTH = 5, 14
"""Of decoding: the first decoder input, and the most tokens."""


def by_torch(case: Case, eos_id: int) -> np.ndarray:
    """Tokens [B, LENGTH] of the sources that are not all padding. (Ours gives nothing for nothing.)"""
    tokens = case.system.greedy(case.torch64, torch.from_numpy(case.source_ids), START, eos_id, LENGTH).numpy()
    tokens = np.pad(tokens, ((0, 0), (0, LENGTH - tokens.shape[1])), constant_values=case.config.target_pad_id)
    return tokens[(case.source_ids != case.config.source_pad_id).any(axis=1)]


def by_jax(case: Case, eos_id: int, config: TransformerConfig | None = None) -> np.ndarray:
    """The same; `config`: one of other masks than the case's."""
    tokens = greedy(
        config=config or case.config,
        params=case.params64,
        source_ids=case.source_ids,
        decoder_start_id=START,
        eos_id=eos_id,
        max_decode_length=LENGTH,
    )
    return np.asarray(tokens)[(case.source_ids != case.config.source_pad_id).any(axis=1)]


def with_other_masks(config: TransformerConfig) -> list[TransformerConfig]:
    """Each takes one padding mask of the decoder for another while decoding: training's for the system's own, or none
    for training's."""
    others = []
    if config.decoder_padding != "none":
        others.append(
            dataclasses.replace(config, decoding_decoder_padding=None if config.decoding_decoder_padding else "none")
        )
    if config.cross_padding == "both":
        others.append(dataclasses.replace(config, decoding_cross_padding="keys"))
    return others


def after_pads(tokens: np.ndarray, pad_ids: list[int]) -> np.ndarray:
    """Where tokens [B, T] are no pads, but those before them are."""
    is_pad = np.isin(tokens, pad_ids)
    return ~is_pad & np.roll(is_pad, 1, axis=1) & (np.arange(tokens.shape[1]) > 0)


def giving_out_pads(case: Case, pad_ids: list[int]) -> Case:
    """The case with a head that prefers pads, so much that as many sentences as possible depend on the padding masks of
    decoding.

    Not so much that all translations become one.
    """

    def preferring(by: float) -> Case:
        model = copy.deepcopy(case.torch64)
        *_, head_bias = model.parameters()
        with torch.no_grad():
            head_bias[pad_ids] += by
        bias = head_bias.detach().numpy()
        of_head = {"head_bias": bias} if case.config.tie_head else {"head": case.params64["head"] | {"bias": bias}}
        return case._replace(torch64=model, params64=case.params64 | of_head)

    def sentences(preferred: Case) -> tuple[int, ...]:
        """Of four that differ from each other; whose tokens differ with other masks; that go on after a pad."""
        tokens = by_jax(preferred, eos_id=-1)
        others = [by_jax(preferred, -1, config) for config in with_other_masks(case.config)]
        differing = min(((other != tokens).any(axis=1).sum() for other in others), default=0)
        return min(len(np.unique(tokens, axis=0)), 4), differing, after_pads(tokens, pad_ids).any(axis=1).sum()

    with torch.no_grad():
        scale = case.torch64(*case.ids()).std().item()
    return max((preferring(scale * by) for by in np.arange(0.0, 4.0, 0.2)), key=sentences)


@pytest.mark.parametrize("name", [name for name in SYSTEMS | TIED if not name.startswith("pytorch_pre")])
def test_greedy_decoding_is_the_systems_own(name: str) -> None:
    """Token for token, in float64, with the masks that the system uses while decoding; to the end, and with an <eos>
    that comes up.

    Pads are given out amid other tokens: with other masks, what follows them is something else. (After pads, the cases
    of `pytorch` with norms before the sublayers give out nothing but pads. How they decode: test_pytorch.py.)
    """
    config = make_case(name).config
    pad_ids = sorted(
        {config.target_pad_id, config.target_pad_id if config.decoder_padding_id is None else config.decoder_padding_id}
    )
    case = giving_out_pads(make_case(name), pad_ids)
    expected = by_torch(case, eos_id=-1)
    np.testing.assert_array_equal(by_jax(case, eos_id=-1), expected)
    assert len(np.unique(expected, axis=0)) >= 4  # of six: rows that took each other's place would show
    assert after_pads(expected, pad_ids).any()
    assert (expected[:, :-1] == config.target_pad_id).any()
    for others in with_other_masks(config):
        assert (by_jax(case, -1, others) != expected).any()
    eos_id = int(expected[after_pads(expected, pad_ids)][-1])
    expected = by_torch(case, eos_id)
    assert (expected == eos_id).any()
    np.testing.assert_array_equal(by_jax(case, eos_id), expected)
