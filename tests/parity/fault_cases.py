"""Models whose nodes are replayed with faults: configs between which every part of a model comes up, on inputs
with pads on the right, on the left and inside."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from config_parts import with_paths

from jax_transformer.comparison.gates.tolerances import FLOAT64_RELATIVE_RMS
from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.specs import RmsNorm, Stem
from jax_transformer.model.functional import abstract_params
from jax_transformer.parity.diagnosis.judging import distance
from jax_transformer.parity.faults import Replay, outcomes
from jax_transformer.parity.oracle import formulas, forward, nodes, parameter
from jax_transformer.parity.oracle.graph import model_inputs
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
    "rotary": {
        "position_kind": "rotary",
        "position_layout": "halves",
        "head_dim": 8,
        "rotary_dim": 4,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_scale": True,
        "query_key_norm": True,
        "norm_placement": "pre",
    },
    "alibi": {"position_kind": "alibi", "norm_placement": "pre", "context_norm": "self_attention"},
    "vectors": {"position_kind": "relative_vectors", "relative_max_distance": 3, "norm_placement": "pre"},
    "values": {
        "value_dim": 3,
        "norm_placement": "pre",
        "position_kind": "learned",
        "decoder_position_kind": "sinusoidal",
        "decoder_activation": "leaky_relu",
        "activation_slope": 0.2,
        "norm_scale_offset": 1.0,
        "logits_factor": 0.5,
    },
    "transformed": {
        "position_kind": "learned",
        "encoder_embedding_norm": "after_positions",
        "token_types": 2,
        "head_transform": "gelu",
    },
    "rotary and alibi": {"position_kind": "rotary", "decoder_position_kind": "alibi", "norm_placement": "pre"},
    "scaled": {
        "share_layers": True,
        "position_factor": 0.5,
        "learned_position_scale": True,
        "num_encoder_layers": 1,
        "decoder_norm_placement": "pre",
        "residual_factor": 1.7,
        "decoder_residual_factor": 1.4,
        "decoder_sublayer_factor": 0.6,
        "learned_residual_scale": "feed_forward",
        "learned_sublayer_scale": "channel",
        "activation": "prelu",
    },
    "inner": {
        "num_encoder_layers": 1,
        "norm_placement": "pre",
        "output_norm": "all",
        "feed_forward_hidden_norm": True,
        "embedding_factor": 1.5,
        "decoder_embedding_factor": 0.4,
    },
    "parallel": {
        "num_encoder_layers": 1,
        "norm_placement": "pre",
        "parallel_residual": True,
        "sublayer_factor": 0.7,
        "position_kind": "relative_bias",
        "relative_buckets": 6,
        "relative_max_distance": 5,
        "relative_bias_factor": 0.5,
        "decoder_relative_bias_factor": 1.5,
    },
    "shared": {
        "num_encoder_layers": 1,
        "norm_placement": "pre",
        "parallel_residual": True,
        "share_norms": True,
        "learned_sublayer_scale": "channel",
    },
    "capped": {
        "attention_logits_cap": 25.0,
        "logits_cap": 45.0,
        "position_kind": "alibi",
        "norm_placement": "pre",
    },
    "windows": {
        "window": 2,
        "full_every": 2,
        "position_kind": "alibi",
        "norm_placement": "pre",
        "encoder.self_attention.window": 4,
    },
    "stem": {"stem": Stem(features=5), "source_vocab_size": 0, "norm_placement": "pre", "num_encoder_layers": 1},
    "whole stem": {  # which hides no padding
        "stem": Stem(features=5, kernel=5, stride=3, activation="relu"),
        "source_vocab_size": 0,
        "encoder_padding": "none",
        "cross_padding": "none",
        "norm_placement": "pre",
        "num_encoder_layers": 1,
    },
    "differing": {
        "decoder_norm_placement": "pre",
        "decoder_final_norm": True,
        "decoder_activation": "leaky_relu",
        "encoder.norm.eps": 1e-3,
        "encoder.norm.unbiased": True,
        "decoder.norm": RmsNorm(eps_outside=True, scale_offset=1.0),
        "encoder.self_attention.scale": 1.0,
        "decoder.self_attention.bias": False,
        "decoder.self_attention.query_key_norm": True,
        "decoder.cross_attention.masked_value": -1e9,
        "decoder.cross_attention.head_scale": True,
        "encoder.feed_forward.gated": True,
        "encoder.feed_forward.hidden_norm": True,
        "decoder.feed_forward.slope": 0.2,
        "encoder.residual.output_scale": "channel",
        "decoder.residual.parallel": True,
        "decoder.residual.stream_factor": 1.4,
        "encoder.embedding_scale": 1.0,
        "decoder.positions.layout": "halves",
        "decoder.positions.offset": 1,
        "decoder.positions.factor": 0.5,
        "decoder.share_layers": True,
    },
}
LENGTHS = {"rms": (6, 6), "scaled": (6, 5), "inner": (6, 5), "parallel": (6, 5), "shared": (6, 5)}
"""Of source and target; of other cases, 7 and 5."""
LAYER = "decoder.layers.1"


class Case(NamedTuple):
    config: TransformerConfig
    params: dict[str, Any]
    captured: dict[str, np.ndarray]

    def replay(self, name: str, **captured: np.ndarray) -> Replay:
        """Returns the node on what was captured, some of it in place of the trace's own."""
        (node,) = (node for node in nodes(self.config) if node.name == name)
        arrays = self.captured | captured
        inputs = {argument: arrays[source] for argument, source in node.inputs.items()}
        parameters = {role: parameter(self.params, path) for role, path in node.parameters.items()}
        return Replay(self.config, node, inputs, parameters, arrays, self.params)


@cache
def make_case(name: str) -> Case:
    rng, options = np.random.default_rng(0), SIZES | CONFIGS[name]
    config = TransformerConfig(**{name: value for name, value in options.items() if "." not in name})
    config = with_paths(config, {path: value for path, value in options.items() if "." in path})
    leaves = {path: rng.standard_normal(leaf.shape) for path, leaf in flatten(abstract_params(config)).items()}
    for stack in ("encoder", "decoder"):
        if f"constants/{stack}_positions" in leaves:
            leaves[f"constants/{stack}_positions"] = formulas.sinusoid_table(
                getattr(config, stack).positions, config.d_model, config.max_length
            )
    source, target = (
        rng.integers(3, high, (4, length)) for high, length in zip((17, 13), LENGTHS.get(name, (7, 5)), strict=True)
    )
    source[1, 5:] = source[2, :2] = source[3, 3] = 1
    if config.stem is not None:
        source = rng.standard_normal((4, 14, config.stem.features)), np.array([14, 9, 6, 1])
    target[0, 3:] = target[1, :2] = target[2, 2] = 2
    params = unflatten(leaves)
    trace = forward(config, params, source, target)
    return Case(config, params, trace | model_inputs(config, source, target))


def with_received(replay: Replay, value: np.ndarray) -> Replay:
    return replace(replay, captured={**replay.captured, replay.node.name: value})


def matches(replay: Replay, received: np.ndarray) -> list[str]:
    """Returns the variants that the diagnosis would name."""
    where = replay.inputs.get("mask")
    found = outcomes(with_received(replay, received))
    return [name for name, value in found if distance(received, value, where) <= FLOAT64_RELATIVE_RMS]
