"""Tests that every fault of the catalogue can be distinguished from the rest."""

from __future__ import annotations

import numpy as np
import pytest
from fault_cases import CONFIGS, LAYER, make_case, matches, with_received

from jax_transformer.comparison.gates.tolerances import FLOAT64_RELATIVE_RMS
from jax_transformer.parity.diagnosis.judging import distance
from jax_transformer.parity.faults import catalogue, outcomes
from jax_transformer.parity.oracle import nodes


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


TOLD: list[tuple[str, str, list[str]]] = [
    (
        "values",
        "logits",
        [
            "factor of the logits missing",
            "factor of the logits applied twice",
            "factor of the logits applied before their bias",
        ],
    ),
    ("values", "encoder.layers.0.feed_forward_norm", ["norm: stored scale without + 1"]),
    (
        "alibi",
        f"{LAYER}.self_attention.normed_context",
        ["contexts normed head by head", "norm missing", "norm: scale dropped", "norm: ε = 0.001"],
    ),
    ("values", f"{LAYER}.cross_attention.logits", ["scaled by √value_dim"]),
    ("values", "encoder.layers.0.feed_forward.hidden", ["tanh", "leaky ReLU of slope 0.2"]),
    (
        "pre",
        "decoder.output",
        [
            "norm: ε inside the root",
            "norm: variance over D",
            "norm: ε = 0",
            "norm: ε = 1e-12",
            "norm: RMS without centring",
            "norm: stored scale + 1",
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
    (
        "inner",
        f"{LAYER}.cross_attention_output_norm",
        [
            "norm missing",
            "norm before the output projection, not after it",
            "parameters of cross_attention_norm",
            "parameters of feed_forward_output_norm",
        ],
    ),
    (
        "inner",
        f"{LAYER}.feed_forward.hidden_norm",
        ["norm missing", "norm before the activation, not after it", "norm: scale dropped"],
    ),
    ("inner", f"{LAYER}.feed_forward_norm", ["parameters of self_attention_norm", "norm missing"]),
    (
        "parallel",
        f"{LAYER}.output",
        [
            "residual dropped",
            "residual doubled",
            "output of the cross-attention dropped",
            "output of the feed-forward dropped",
            "sublayer's output not scaled",
            "the whole residual sum scaled",
            "dropout of 0.1 left on the sublayer's output",
            "normed after the residual is added",
        ],
    ),
    ("parallel", f"{LAYER}.feed_forward_norm", ["sublayers in sequence", "parameters of self_attention_norm"]),
    ("parallel", f"{LAYER}.cross_attention_norm", ["sublayers in sequence"]),
    (
        "shared",
        f"{LAYER}.output",
        [
            "trained scale of the sublayer's output missing",
            "residual taken after the norm",
            "normed after the residual is added",
        ],
    ),
    ("shared", f"{LAYER}.feed_forward.hidden", ["sublayers in sequence", "reads its input before the norm"]),
    ("shared", f"{LAYER}.cross_attention.query", ["sublayers in sequence"]),
    (
        "scaled",
        f"{LAYER}.output",
        [
            "residual stream not scaled",
            "sublayer's output not scaled",
            "factors of the residual sum swapped",
            "the whole residual sum scaled",
            "residual factors of the other stack",
            "trained scale of the residual stream missing",
            "trained scale of the sublayer's output missing",
            "trained scale on the sublayer's output, not on the stream",
            "trained scale on the stream, not on the sublayer's output",
            "trained scale on the sum, not on the sublayer's output",
            "residual dropped",
            "normed after the residual is added",
        ],
    ),
    (
        "scaled",
        "encoder.embedding",
        ["positions not scaled", "tokens scaled instead of positions", "tokens scaled as positions are"],
    ),
    (
        "scaled",
        "encoder.layers.0.feed_forward_norm",
        ["residual stream not scaled", "norm missing", "norm before the residual is added", "norm: scale dropped"],
    ),
    ("scaled", f"{LAYER}.feed_forward.hidden", ["PReLU of slope 0.25", "leaky ReLU of slope 0.01", "ReLU"]),
    ("post", f"{LAYER}.feed_forward_norm", ["norm missing", "norm before the residual is added", "residual doubled"]),
    ("post", f"{LAYER}.output", ["norm twice", "rounded to float32"]),
    ("post", "encoder.output", ["a final norm with scale 1 and bias 0"]),
    (
        "pre",
        f"{LAYER}.feed_forward_norm",
        ["reads the input of the sublayer before it", "reads the input of the self-attention"],
    ),
    (
        "pre",
        f"{LAYER}.feed_forward.hidden",
        ["reads the input of the sublayer before it", "reads the input of the self-attention"],
    ),
    (
        "post",
        f"{LAYER}.feed_forward.hidden",
        ["reads the input of the sublayer before it", "tanh GELU", "no activation"],
    ),
    (
        "rms",
        f"{LAYER}.feed_forward.hidden",
        [
            "gate and hidden layer swapped",
            "gate missing",
            "GELU by sigmoid(1.702 x)",
            "leaky ReLU of slope 0.01",
            "leaky ReLU of slope 0.2",
            "ELU",
            "SELU",
            "Mish",
            "squared ReLU",
            "tanh",
            "sigmoid",
            "softplus",
        ],
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
    ("counted", "decoder.token_embedding", ["√d_model applied", "scaled by d_model"]),
    (
        "inner",
        "decoder.token_embedding",
        [
            "factor of embeddings missing",
            "√d_model instead of the factor of embeddings",
            "√d_model besides the factor of embeddings",
            "factor of embeddings applied twice",
            "divided by the factor of embeddings",
            "factor of the other stack's embeddings",
        ],
    ),
    ("inner", "encoder.embedding", ["factor of embeddings applied after positions"]),
    (
        "parallel",
        "decoder.position_bias",
        [
            "factor of relative biases missing",
            "factor of relative biases applied twice",
            "factor of the other stack's relative biases",
            "relative biases scaled by √head_dim",
            "relative biases scaled by 1/√head_dim",
            "computed in float32",
        ],
    ),
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
            "positions: table of half the rows with the last repeated",
            "positions: table of one row less read cyclically",
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
        ["positions: table of half the rows read cyclically", "positions: zero at pads"],
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
            "causal mask off by one: sees one token too many",
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
    (
        "rotary",
        f"{LAYER}.self_attention.rotated_query",
        [
            "rotary: pairs of neighbours",
            "rotary: base 500,000 instead of 10,000",
            "rotary: pairs of neighbours, base 1,000,000 instead of 10,000",
            "rotary: positions 1 too far",
            "rotary: positions 2 too near",
            "rotary: indexed by count of real tokens",
            "rotary: not rotated",
            "rotary: turned backwards",
            "rotary: exponents i / R",
            "rotary: exponents 4i / R",
            "rotary: exponents over the whole head",
            "rotary: whole head rotated",
            "rotary: a quarter of the head rotated",
            "rotary: cosines and sines in float32",
        ],
    ),
    (
        "rotary",
        f"{LAYER}.cross_attention.logits",
        ["rotary: cross-attention rotated, too", "heads of keys tiled, not repeated"],
    ),
    ("rotary", f"{LAYER}.cross_attention.context", ["heads of values tiled, not repeated"]),
    (
        "rotary",
        f"{LAYER}.self_attention.scaled_context",
        ["factors of heads missing", "factors of heads squared", "factors of heads are 1 + the parameter"],
    ),
    (
        "rotary",
        f"{LAYER}.self_attention.normed_key",
        ["norm missing", "norm over all heads together", "norm: ε = 1e-12", "norm: scale dropped"],
    ),
    (
        "alibi",
        "encoder.position_bias",
        [
            "ALiBi: slopes 2^(−8i / N) though N is no power of two",
            "ALiBi: slopes from 1 on",
            "ALiBi: slopes 2^−i",
            "ALiBi: slopes in the opposite order",
            "ALiBi: slopes in the order of their size",
            "ALiBi: the same slope for all heads",
            "ALiBi: sign reversed",
            "ALiBi: later keys raised",
            "ALiBi: later keys left alone",
            "ALiBi: distances one too far",
            "ALiBi: distances from the next key",
            "ALiBi: by the key's column alone",
        ],
    ),
    (
        "vectors",
        f"{LAYER}.self_attention.logits",
        [
            "relative vectors: products not scaled",
            "relative vectors of keys missing",
            "relative vectors of keys are those of values",
            "relative vectors of keys: directions exchanged",
            "relative vectors of keys: row one too far",
            "relative vectors of keys: row one too near",
            "relative vectors of keys: clipped one too near",
        ],
    ),
    (
        "vectors",
        "encoder.layers.1.self_attention.context",
        [
            "relative vectors of values missing",
            "relative vectors of values are those of keys",
            "relative vectors of values: directions exchanged",
            "relative vectors of values: row one too far",
            "relative vectors of values: clipped one too near",
        ],
    ),
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
