"""Faults that are recognised rather than replayed (dropout, low precision, sums in another order, labels for inputs)
are named whatever program made them, and never seen where they aren't."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from fault_cases import CONFIGS, LAYER, SIZES, make_case, matches, with_received

from jax_transformer.comparison.gates.compare import relative_rms
from jax_transformer.comparison.gates.tolerances import FLOAT64_RELATIVE_RMS
from jax_transformer.config.model import TransformerConfig
from jax_transformer.parity.diagnosis.judging import distance
from jax_transformer.parity.faults import Replay, outcomes
from jax_transformer.parity.faults.rounding import is_of, rounded
from jax_transformer.parity.oracle import formulas

# --- dropout


def dropped(rng: np.random.Generator, value: np.ndarray, rate: float) -> np.ndarray:
    return np.where(rng.random(value.shape) < rate, 0.0, value / (1.0 - rate))


def with_dropout(replay: Replay, rng: np.random.Generator, rate: float) -> np.ndarray:
    argument = {"residual": "y", "residual_norm": "y", "context": "weights", "projection": "x"}.get(replay.node.kind)
    if argument is None:
        return dropped(rng, replay.own, rate)
    return replay.compute({argument: dropped(rng, replay.inputs[argument], rate)})


DROPPED = [
    ("post", "encoder.embedding", ""),
    ("post", f"{LAYER}.feed_forward.hidden", ""),
    ("post", f"{LAYER}.self_attention.weights", ""),
    ("pre", f"{LAYER}.output", " the sublayer's output"),
    ("pre", f"{LAYER}.self_attention_residual", " the sublayer's output"),
    ("post", f"{LAYER}.feed_forward_norm", " the sublayer's output"),
    ("counted", f"{LAYER}.cross_attention_norm", " the sublayer's output"),
    ("post", "encoder.layers.1.self_attention.context", " the attention weights"),
    ("pre", f"{LAYER}.cross_attention.context", " the attention weights"),
    ("rotary", f"{LAYER}.self_attention.context", " the attention weights"),
    ("vectors", "encoder.layers.1.self_attention.context", " the attention weights"),
    ("post", f"{LAYER}.feed_forward.output", " the hidden units"),
]


@pytest.mark.parametrize("rate", [0.05, 0.1, 0.5])
@pytest.mark.parametrize(("name", "node", "of"), DROPPED)
def test_dropout_is_recognised_with_its_rate(name: str, node: str, of: str, rate: float) -> None:
    replay = make_case(name).replay(node)
    received = with_dropout(replay, np.random.default_rng(5), rate)
    assert matches(replay, received) == [f"dropout of {rate:g} left on{of}"]


@pytest.mark.parametrize(("name", "node", "of"), DROPPED)
def test_dropout_is_not_seen_where_there_is_none(name: str, node: str, of: str) -> None:
    """In one value off by 1 %, zeros, values all kept and scaled, too many dropped, another rate, half the columns or
    any other fault."""
    replay, rng = make_case(name).replay(node), np.random.default_rng(4)
    received = with_dropout(replay, rng, 0.3)
    assert matches(replay, received)
    largest = np.unravel_index(np.abs(received).argmax(), received.shape)
    off = received.copy()
    off[largest] *= 1.01
    argument = {"residual": "y", "residual_norm": "y", "context": "weights", "projection": "x"}.get(replay.node.kind)
    other = replay.own if argument is None else replay.inputs[argument]
    columns = np.where(np.arange(other.shape[-1]) % 2, other * 2.0, 0.0)
    others = [columns, other / 0.9, *(dropped(rng, other, 0.5) * factor for factor in (0.5 / 0.9, 0.5 / 0.67))]
    for wrong in (
        off,
        np.zeros_like(received),
        *(a if argument is None else replay.compute({argument: a}) for a in others),
    ):
        assert matches(replay, wrong) == []
    for fault, value in outcomes(replay):
        assert fault.startswith("dropout") or not any(found.startswith("dropout") for found in matches(replay, value))


def test_dropout_of_attention_is_found_where_the_first_rows_say_nothing() -> None:
    """All of whose keys were dropped, as at any rate they may be."""
    replay = make_case("post").replay("encoder.layers.1.self_attention.context")
    weights = dropped(np.random.default_rng(0), replay.inputs["weights"], 0.5)
    weights[0, 0, :5] = 0.0
    assert matches(replay, replay.compute({"weights": weights})) == ["dropout of 0.5 left on the attention weights"]


def test_dropout_of_attention_is_found_among_keys_that_are_equal() -> None:
    """As those of one token are, in models whose values know no positions: the first of them isn't always the one."""
    replay = make_case("post").replay("encoder.layers.1.self_attention.context")
    value, uniform = replay.inputs["value"].copy(), np.full_like(replay.inputs["weights"], 1 / 7)
    value[:, 1:] = value[:, :1]
    replay = replace(replay, inputs={"value": value, "weights": uniform})
    rng = np.random.default_rng(0)
    for rate in (0.1, 0.5):
        received = replay.compute({"weights": dropped(rng, uniform, rate)})
        assert matches(replay, received) == [f"dropout of {rate:g} left on the attention weights"]


# --- precision


def reversed_sum(replay: Replay, dtype: type[np.floating]) -> np.ndarray:
    """A projection in low precision that sums in the other order."""
    x, kernel, bias = (
        replay.inputs["x"].astype(dtype),
        replay.parameters["kernel"].astype(dtype),
        replay.parameters["bias"].astype(dtype),
    )
    y = np.zeros((*x.shape[:2], *kernel.shape[1:]), dtype)
    for i in reversed(range(x.shape[-1])):
        y += x[:, :, i, None, None] * kernel[i]
    return (y + bias).astype(np.float64)


def test_float32_is_recognised_in_whatever_order_it_sums() -> None:
    replay = make_case("post").replay(f"{LAYER}.self_attention.query")
    value = reversed_sum(replay, np.float32)
    replayed = dict(outcomes(replay))
    assert 1e-9 < distance(value, replayed["computed in float32"]) < 1e-6, "another program"
    assert matches(replay, value) == ["computed in float32"]
    coarse = {name: rounded(array, "bfloat16") for name, array in replay.parameters.items()}
    assert matches(replay, rounded(reversed_sum(replace(replay, parameters=coarse), np.float32), "bfloat16")) == [
        "computed in bfloat16"
    ]
    assert matches(replay, rounded(replay.own, "float32")) == ["rounded to float32"]
    for wrong in (value * (1.0 + 2.0**-40), rounded(value * 1.0001, "float32"), np.zeros_like(value), np.round(value)):
        assert matches(replay, wrong) == []


def test_the_fill_of_float32_is_its_own_and_no_other_is_hidden_by_it() -> None:
    replay = make_case("post").replay(f"{LAYER}.cross_attention.logits")
    value = dict(outcomes(replay))["computed in float32"]
    mask = np.broadcast_to(replay.inputs["mask"], value.shape)
    assert (value[~mask] == np.finfo(np.float32).min).all()
    assert matches(replay, value) == ["computed in float32"]
    assert matches(replay, np.where(mask, value, -1e9)) == []


def test_bfloat16_is_rounded_to_even() -> None:
    values = np.array([1.0, 1.0 + 2.0**-8, 1.0 + 3 * 2.0**-8, -3.0, 1e-3, np.inf, np.nan, 0.0])
    expected = np.array([1.0, 1.0, 1.0 + 2.0**-6, -3.0, 0.00099945068359375, np.inf, np.nan, 0.0])
    np.testing.assert_array_equal(rounded(values, "bfloat16"), expected)
    assert is_of(expected, "bfloat16")
    assert not is_of(values, "bfloat16")


# --- norms


def normed_otherwise(replay: Replay, dtype: type[np.floating]) -> np.ndarray:
    """A norm with E[x²] − E[x]², summed from the last value to the first."""
    x = replay.inputs["x"].astype(dtype)
    mean, square = np.zeros((*x.shape[:-1], 1), dtype), np.zeros((*x.shape[:-1], 1), dtype)
    for i in reversed(range(x.shape[-1])):
        mean, square = mean + x[..., i : i + 1], square + x[..., i : i + 1] ** 2
    width = dtype(x.shape[-1])
    mean, variance = mean / width, (square / width - (mean / width) ** 2) * (width / (width - dtype(1)))
    scale, bias = (replay.parameters[role].astype(dtype) for role in ("scale", "bias"))
    return ((x - mean) / (np.sqrt(variance) + dtype(replay.config.norm_eps)) * scale + bias).astype(np.float64)


def test_a_variance_that_cancels_is_recognised_whatever_its_rounding() -> None:
    case = make_case("pre")
    layer = case.captured["decoder.layers.1.output"]
    exact = {"float64": layer + 1e4, "float32": rounded(layer + 1e3, "float32")}
    for dtype, also in (("float64", ""), ("float32", " in float32")):
        replay = case.replay("decoder.output", **{"decoder.layers.1.output": exact[dtype]})
        value = normed_otherwise(replay, getattr(np, dtype))
        assert relative_rms(value, replay.own) > {"float64": FLOAT64_RELATIVE_RMS, "float32": 1e-5}[dtype]
        assert matches(replay, value) == [f"norm: variance as E[x²] − E[x]²{also}"]
        for wrong in (value * (1.0 + 1e-4), replay.under(eps=1.001 * case.config.norm_eps), np.zeros_like(value)):
            assert matches(replay, wrong) == []


def test_a_variance_in_float32_is_recognised() -> None:
    """As T5's programs have it, whatever their order of summation."""
    replay = make_case("rms").replay(f"{LAYER}.feed_forward_norm")
    x = replay.inputs["x"]
    squares = np.zeros((*x.shape[:-1], 1), np.float32)
    for i in reversed(range(x.shape[-1])):
        squares += x[..., i : i + 1].astype(np.float32) ** 2
    deviation = np.sqrt(squares / np.float32(12) + np.float32(1e-5))
    scale = replay.parameters["scale"]
    for value in (x / deviation * scale, x * (np.float32(1) / deviation) * scale):
        assert matches(replay, value) == ["norm: variance in float32"]
    assert matches(replay, x / (deviation.astype(np.float64) * (1.0 + 1e-9)) * scale) == []


# --- positions and ids


def angles(replay: Replay, dtype: type[np.floating], power: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    exponents = np.repeat(np.arange(0, 12, 2) / 12, 2)
    return np.arange(replay.own.shape[1], dtype=dtype)[None, :, None] / power(exponents.astype(dtype)).astype(dtype)


def sines(replay: Replay, angles: np.ndarray) -> np.ndarray:
    return np.where(np.arange(12) % 2 == 1, np.cos(angles), np.sin(angles)).astype(np.float64)


def test_positions_of_low_precision_are_recognised() -> None:
    """Of other formulas than the one that is replayed."""
    replay = make_case("post").replay("encoder.positions")
    for dtype in (np.float32, np.float16):
        value = sines(replay, angles(replay, dtype, lambda exponents: np.full_like(exponents, 10000.0) ** exponents))
        assert matches(replay, value) == [f"positions: computed in {np.dtype(dtype).name}"]
    narrow = (1.0 / np.float32(10000.0) ** np.float32(np.repeat(np.arange(0, 12, 2) / 12, 2))).astype(np.float32)
    value = sines(replay, np.arange(7)[None, :, None] * narrow.astype(np.float64))
    assert matches(replay, value) == ["positions: frequencies in float32"]
    other = sines(replay, np.arange(7)[None, :, None] * narrow.astype(np.float64) * (1.0 + 1e-9))
    for wrong in (other, rounded(value * 0.99, "float32"), np.ones_like(value)):
        assert matches(replay, wrong) == []


@pytest.mark.parametrize("rows", [128, 256, 500, 512])
def test_a_short_table_is_named_by_its_length(rows: int) -> None:
    config = TransformerConfig(**SIZES | {"max_length": 520})
    case, ids = make_case("post"), np.full((1, 520), 3)
    table = formulas.sinusoid_table(config.encoder.positions, config.d_model, 520)
    replay = case.replay("encoder.positions", source_ids=ids, **{"encoder.positions": table[None]})
    replay = replace(replay, config=config, parameters={"table": table})
    values = dict(outcomes(replay))
    for end, row in (("with the last repeated", rows - 1), ("read cyclically", 0)):
        variant = f"positions: table of {rows} rows {end}"
        np.testing.assert_array_equal(values[variant][0, rows], table[row])
        assert matches(replay, values[variant]) == [variant]


def test_labels_read_as_inputs_are_recognised_with_their_last_token() -> None:
    """Its id isn't known; here it is 7, at the end of each sentence."""
    replay = make_case("post").replay("decoder.token_embedding")
    ids = replay.inputs["ids"]
    labels = np.concatenate([ids[:, 1:], np.full((4, 1), 2)], axis=1)
    for row, end in enumerate((2, 4, 4, 4)):
        labels[row, end] = 7
    value = replay.compute({"ids": labels})
    assert matches(replay, value) == ["decoder's ids one to the left: one token at each end"]
    labels[3, 4] = 8
    assert matches(replay, replay.compute({"ids": labels})) == []
    assert matches(replay, np.zeros_like(value)) == []


# --- heads and kernels, as the programs that do these things have them


def test_heads_and_slices_are_described() -> None:
    """The same as a program whose features are laid out otherwise."""
    replay = make_case("post").replay(f"{LAYER}.self_attention.key")
    values, own = dict(outcomes(replay)), replay.own
    batch, length, heads, width = own.shape
    flat = own.reshape(batch, length, heads * width)
    np.testing.assert_array_equal(values["heads split without transposing"].swapaxes(1, 2).ravel(), flat.ravel())
    np.testing.assert_array_equal(values["heads split in the other order"][..., 1, 2], flat[..., 2 * heads + 1])
    parts = [make_case("post").replay(f"{LAYER}.self_attention.{part}").own for part in ("query", "key", "value")]
    siblings = [part.reshape(batch, length, -1) for part in parts]
    fused = np.concatenate(siblings, axis=-1).reshape(batch, length, heads, 3, width)
    np.testing.assert_allclose(
        values["fused kernel of 3 × N × H sliced as N × 3 × H"], fused[:, :, :, 1], rtol=1e-13, atol=1e-12
    )
    fused = np.stack(parts, axis=-2).reshape(batch, length, 3, heads, width)
    np.testing.assert_allclose(
        values["fused kernel of N × 3 × H sliced as 3 × N × H"], fused[:, :, 1], rtol=1e-13, atol=1e-12
    )


def test_faults_of_the_head() -> None:
    replay = make_case("post").replay("logits")
    values = dict(outcomes(replay))
    np.testing.assert_allclose(np.exp(values["log-softmax taken already"]).sum(axis=-1), 1.0, rtol=1e-13)
    without = values["bias missing"]
    np.testing.assert_allclose(values["bias added twice"] - replay.own, replay.own - without, rtol=1e-10, atol=1e-12)
    scaled = values["head scaled by √d_model"] - replay.parameters["bias"]
    np.testing.assert_allclose(scaled, without * math.sqrt(12), rtol=1e-12, atol=1e-12)


def test_an_embedding_in_a_stack_without_norms_has_no_variance_in_low_precision(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(CONFIGS, "without norms", {"norm_kind": "none"})
    replay = make_case("without norms").replay("encoder.embedding")
    names = [name for name, _ in outcomes(with_received(replay, 2.0 * replay.own))]
    assert names
    assert not [name for name in names if "variance" in name]
