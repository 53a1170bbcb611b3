"""The catalogue of faults: each can be told from the rest, and what is recognised rather than replayed is never seen
where it isn't."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest

from jax_transformer.config.model import TransformerConfig
from jax_transformer.model.functional import abstract_params
from jax_transformer.parity.diagnosis.nodes import distance, with_ids
from jax_transformer.parity.faults import Replay, catalogue, outcomes
from jax_transformer.parity.faults.precision import is_of, rounded
from jax_transformer.parity.gates.compare import relative_rms
from jax_transformer.parity.gates.tolerances import FLOAT64_RELATIVE_RMS
from jax_transformer.parity.oracle import formulas, forward, nodes, parameter
from jax_transformer.runtime.trees import flatten, unflatten

SIZES: dict[str, Any] = {
    "source_vocab_size": 17, "target_vocab_size": 13, "d_model": 12, "num_heads": 3, "d_ff": 7, "num_encoder_layers": 2,
    "num_decoder_layers": 2, "max_length": 20, "source_pad_id": 1, "target_pad_id": 2,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "post": {},
    "pre": {
        "norm_placement": "pre",
        "final_norm": True,
        "norm_eps_outside": True,
        "norm_unbiased": True,
        "activation": "gelu",
        "masked_value": -1e9,
        "position_frequency": "doubled",
        "encoder_embedding_norm": "after_positions",
    },
    "rms": {
        "norm_kind": "rms_norm",
        "norm_bias": False,
        "norm_placement": "pre",
        "feed_forward_gated": True,
        "scale_head": True,
        "attention_bias": False,
        "position_kind": "learned",
        "decoder_padding": "queries",
        "cross_padding": "both",
    },
    "counted": {
        "position_index": "non_pad_count",
        "position_offset": 1,
        "position_layout": "halves",
        "position_frequency": "inclusive",
        "attention_output": False,
        "tie_head": True,
        "scale_embedding": False,
        "decoder_embedding_norm": "before_positions",
    },
}
LENGTHS = {"post": (7, 5), "pre": (7, 5), "rms": (6, 6), "counted": (7, 5)}


class Case(NamedTuple):
    config: TransformerConfig
    params: dict[str, Any]
    captured: dict[str, np.ndarray]

    def replay(self, name: str, **captured: np.ndarray) -> Replay:
        """The node on what was captured, some of it in place of the trace's own."""
        (node,) = (node for node in nodes(self.config) if node.name == name)
        arrays = self.captured | captured
        inputs = {argument: arrays[source] for argument, source in node.inputs.items()}
        parameters = {role: parameter(self.params, path) for role, path in node.parameters.items()}
        return Replay(self.config, node, inputs, parameters, arrays, self.params)


@cache
def make_case(name: str) -> Case:
    rng, config = np.random.default_rng(0), TransformerConfig(**SIZES | CONFIGS[name])
    leaves = {path: rng.standard_normal(leaf.shape) for path, leaf in flatten(abstract_params(config)).items()}
    for stack in ("encoder", "decoder"):
        if f"constants/{stack}_positions" in leaves:
            leaves[f"constants/{stack}_positions"] = formulas.sinusoid_table(config, config.max_length)
    source, target = (rng.integers(3, high, (4, length)) for high, length in zip((17, 13), LENGTHS[name], strict=True))
    source[1, 5:] = source[2, :2] = source[3, 3] = 1
    target[0, 3:] = target[1, :2] = target[2, 2] = 2
    params = unflatten(leaves)
    return Case(config, params, with_ids(forward(config, params, source, target), source, target))


def with_received(replay: Replay, value: np.ndarray) -> Replay:
    return replace(replay, captured={**replay.captured, replay.node.name: value})


def matches(replay: Replay, received: np.ndarray) -> list[str]:
    """The variants that the diagnosis would name."""
    where = replay.inputs.get("mask")
    found = outcomes(with_received(replay, received))
    return [name for name, value in found if distance(received, value, where) <= FLOAT64_RELATIVE_RMS]


# --- the catalogue


@pytest.mark.parametrize("name", CONFIGS)
def test_every_fault_that_can_be_seen_is_recognised_as_itself(name: str) -> None:
    """Of every node, under a name of its own, whatever the variant makes of what it receives."""
    case, seen = make_case(name), 0
    variants = list(catalogue(case.config))
    for node in nodes(case.config):
        replay = case.replay(node.name)
        values = dict(outcomes(replay))
        assert len(values) == len(list(outcomes(replay))), f"two variants of {node.name} have one name"
        for variant, value in values.items():
            error = distance(value, replay.own, replay.inputs.get("mask"))
            if not error <= FLOAT64_RELATIVE_RMS:
                (compute,) = (known.compute for known in variants if known.name == variant and node.kind in known.kinds)
                with np.errstate(all="ignore"):
                    again = compute(with_received(replay, value))
                assert distance(value, again, replay.inputs.get("mask")) <= FLOAT64_RELATIVE_RMS, (node.name, variant)
                seen += 1
    assert seen > 500


LAYER = "decoder.layers.1"
TOLD: list[tuple[str, str, list[str]]] = [
    (
        "pre",
        "decoder.output",
        [
            "norm: ε inside the root",
            "norm: variance over D",
            "norm: ε = 0",
            "norm: ε = 1e-12",
            "norm: RMS without centring",
            "norm: scale dropped",
            "norm: bias dropped",
            "norm: scale and bias swapped",
            "norm missing",
            "norm twice",
            "norm: variance in float32",
            "computed in float32",
            "computed in bfloat16",
        ],
    ),
    (
        "rms",
        f"{LAYER}.cross_attention_norm",
        ["norm: scale dropped", "norm: ε outside the root", "norm: variance in float32"],
    ),
    (
        "pre",
        "encoder.embedding",
        ["norm: ε = 0.001", "norm: scale dropped", "positions missing", "norm: variance in float32"],
    ),
    ("counted", "decoder.embedding", ["norm: scale dropped", "norm: variance in float32", "positions added twice"]),
    (
        "pre",
        f"{LAYER}.output",
        [
            "residual dropped",
            "residual doubled",
            "sublayer's output dropped",
            "residual taken after the norm",
            "normed after the residual is added",
        ],
    ),
    ("post", f"{LAYER}.feed_forward_norm", ["norm missing", "norm before the residual is added", "residual doubled"]),
    ("post", f"{LAYER}.output", ["norm twice", "rounded to float32"]),
    ("post", "encoder.output", ["a final norm with scale 1 and bias 0"]),
    (
        "pre",
        f"{LAYER}.feed_forward_norm",
        ["reads what the sublayer before it read", "reads what the self-attention read"],
    ),
    (
        "pre",
        f"{LAYER}.feed_forward.hidden",
        ["reads what the sublayer before it read", "reads what the self-attention read"],
    ),
    ("post", f"{LAYER}.feed_forward.hidden", ["reads what the sublayer before it read", "tanh GELU", "no activation"]),
    (
        "rms",
        f"{LAYER}.feed_forward.hidden",
        ["gate and hidden layer swapped", "gate missing", "GELU by sigmoid(1.702 x)"],
    ),
    (
        "post",
        "decoder.token_embedding",
        [
            "√d_model missing",
            "pad row zero",
            "tables of the two sides swapped",
            "decoder's ids one to the right: the first twice",
            "decoder's ids one to the right: a pad first",
            "decoder's ids one to the left: the last twice",
            "decoder's ids one to the left: a pad last",
            "decoder's ids one to the left: token 0 last",
        ],
    ),
    ("post", "decoder.embedding", ["√d_model applied after positions", "positions missing"]),
    (
        "post",
        "encoder.positions",
        [
            "positions: sin and cos in halves",
            "positions: exponents doubled",
            "positions: 1 too far",
            "positions: indexed by batch row",
            "positions: indexed by count of real tokens",
            "positions: zero at pads",
            "positions: rounded to float16",
            "positions: computed in float16",
            "positions: computed in float32",
            "positions: computed in bfloat16",
            "positions: frequencies in float32",
            "positions: table of half the rows whose last is read again",
            "positions: table of one row less read from the first again",
        ],
    ),
    (
        "counted",
        "encoder.positions",
        ["positions: row of pads not zero", "positions: computed in float32", "positions: 1 too near"],
    ),
    (
        "rms",
        "encoder.positions",
        ["positions: table of half the rows read from the first again", "positions: zero at pads"],
    ),
    (
        "post",
        f"{LAYER}.self_attention.query",
        [
            "kernel transposed",
            "kernel of the key",
            "bias missing",
            "fused kernel of 3 × N × H sliced as N × 3 × H",
            "fused kernel of N × 3 × H sliced as 3 × N × H",
            "heads split in the other order",
            "heads split without transposing",
            "reads its input normed",
        ],
    ),
    ("rms", f"{LAYER}.cross_attention.key", ["keys and values of the decoder"]),
    (
        "post",
        f"{LAYER}.cross_attention.key",
        [
            "kernel of the value",
            "fused kernel of 3 × N × H sliced as N × 3 × H",
        ],
    ),
    (
        "post",
        f"{LAYER}.self_attention.output",
        [
            "kernel transposed",
            "heads merged without transposing back",
            "heads merged in the other order",
        ],
    ),
    (
        "counted",
        f"{LAYER}.self_attention.output",
        ["heads merged without transposing back", "heads merged in the other order"],
    ),
    ("post", f"{LAYER}.feed_forward.output", ["kernel transposed", "bias missing"]),
    (
        "post",
        f"{LAYER}.cross_attention.logits",
        [
            "scale missing",
            "scaled by √d_model",
            "scaled by head_dim",
            "mask not applied",
            "masked logits are 0",
            "masked logits are -10000",
            "masked logits are -1e+09",
            "masked logits are -inf",
            "masked logits are -65504",
            "-65504 added to masked logits",
            "masked logits are -3.38953e+38",
            "masked logits are -3.40282e+38",
            "-1e+09 added to masked logits",
        ],
    ),
    ("post", f"{LAYER}.self_attention.weights", ["softmax over the queries", "softmax over the heads"]),
    (
        "post",
        "mask.decoder_self",
        [
            "mask inverted",
            "not causal",
            "causal mask off by one: sees a token too many",
            "causal mask off by one: doesn't see itself",
            "pads masked as queries",
            "padding not masked",
            "padding mask one place to the left",
            "padding mask one place to the right",
        ],
    ),
    ("post", "mask.encoder_self", ["mask inverted", "pads masked as queries", "causal where it shouldn't be"]),
    ("rms", "mask.encoder_self", ["padding of the other side"]),
    ("rms", "mask.decoder_self", ["padding of the other side", "pads masked as keys"]),
    ("rms", "mask.cross", ["cross-attention uses the target's padding", "causal where it shouldn't be"]),
    (
        "post",
        "logits",
        [
            "bias missing",
            "bias added twice",
            "head scaled by 1/√d_model",
            "head scaled by √d_model",
            "log-softmax taken already",
            "softmax taken already",
        ],
    ),
    ("rms", "logits", ["head not scaled by 1/√d_model"]),
]


@pytest.mark.parametrize(("name", "node", "variants"), TOLD, ids=[f"{name}-{node}" for name, node, _ in TOLD])
def test_a_fault_is_named_alone(name: str, node: str, variants: list[str]) -> None:
    replay = make_case(name).replay(node)
    values = dict(outcomes(replay))
    for variant in variants:
        found = matches(replay, values[variant])
        assert variant in found
        same = [
            other
            for other in found
            if distance(values[variant], values.get(other, np.zeros(()))) > FLOAT64_RELATIVE_RMS
        ]
        assert same == [], f"{variant} is taken for what isn't its value"


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
        for wrong in (value * (1.0 + 1e-4), replay.under(norm_eps=1.001 * case.config.norm_eps), np.zeros_like(value)):
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
def test_a_table_too_short_is_told_by_its_length(rows: int) -> None:
    config = TransformerConfig(**SIZES | {"max_length": 520})
    case, ids = make_case("post"), np.full((1, 520), 3)
    table = formulas.sinusoid_table(config, 520)
    replay = case.replay("encoder.positions", source_ids=ids, **{"encoder.positions": table[None]})
    replay = replace(replay, config=config, parameters={"table": table})
    values = dict(outcomes(replay))
    for end, row in (("whose last is read again", rows - 1), ("read from the first again", 0)):
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


def test_what_heads_and_slices_stand_for() -> None:
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


def test_what_the_head_does_wrong() -> None:
    replay = make_case("post").replay("logits")
    values = dict(outcomes(replay))
    np.testing.assert_allclose(np.exp(values["log-softmax taken already"]).sum(axis=-1), 1.0, rtol=1e-13)
    without = values["bias missing"]
    np.testing.assert_allclose(values["bias added twice"] - replay.own, replay.own - without, rtol=1e-10, atol=1e-12)
    scaled = values["head scaled by √d_model"] - replay.parameters["bias"]
    np.testing.assert_allclose(scaled, without * math.sqrt(12), rtol=1e-12, atol=1e-12)
