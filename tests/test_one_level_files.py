"""Files of version 0.1, whose configs have one level: run directories and model directories give the same models."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import yaml

from jax_transformer.config.decoding import GenerationConfig
from jax_transformer.config.files import dump_config, load_config
from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.run import RunConfig
from jax_transformer.config.validation import ConfigError
from jax_transformer.model import functional
from jax_transformer.storage.model_directory import Model, load_model, save_model

ONE_LEVEL: dict[str, Any] = {
    "source_vocab_size": 0, "target_vocab_size": 0, "d_model": 512, "num_heads": 8, "num_kv_heads": None,
    "head_dim": None, "value_dim": None, "d_ff": 2048, "num_encoder_layers": 6, "num_decoder_layers": 6,
    "share_layers": False, "max_length": 512, "decoder_num_heads": None, "decoder_num_kv_heads": None,
    "decoder_head_dim": None, "decoder_value_dim": None, "decoder_d_ff": None, "decoder_max_length": None,
    "source_pad_id": 0, "target_pad_id": 0, "decoder_padding_id": None, "share_embeddings": False, "tie_head": False,
    "scale_embedding": True, "embedding_factor": None, "decoder_embedding_factor": None, "trains_pad_embedding": True,
    "encoder_embedding_norm": "none", "decoder_embedding_norm": "none", "scale_head": False, "logits_factor": 1.0,
    "head_bias": "parameter", "position_kind": "sinusoidal", "decoder_position_kind": None,
    "position_layout": "interleaved", "position_frequency": "standard", "position_index": "column",
    "position_offset": 0, "position_factor": 1.0, "learned_position_scale": False, "rotary_base": 10000.0,
    "rotary_dim": None, "rotary_cross_attention": False, "relative_buckets": 32, "relative_max_distance": 128,
    "relative_bias_factor": 1.0, "decoder_relative_bias_factor": None, "relative_bias_per_layer": False,
    "relative_value_vectors": True, "norm_kind": "layer_norm", "norm_placement": "post",
    "decoder_norm_placement": None, "norm_eps": 1e-05, "norm_eps_outside": False, "norm_unbiased": False,
    "norm_scale": True, "norm_scale_offset": 0.0, "norm_bias": True, "output_norm": "none", "final_norm": False,
    "decoder_final_norm": None, "share_norms": False, "parallel_residual": False, "residual_factor": 1.0,
    "decoder_residual_factor": None, "sublayer_factor": 1.0, "decoder_sublayer_factor": None,
    "learned_residual_scale": "none", "learned_sublayer_scale": "none", "sublayer_scale_init": None,
    "attention_scale": None, "attention_bias": True, "attention_output": True, "attention_output_bias": True,
    "query_key_norm": False, "head_scale": False, "context_norm": "none", "masked_value": None, "feed_forward": True,
    "activation": "relu", "decoder_activation": None, "activation_slope": 0.01, "feed_forward_gated": False,
    "feed_forward_hidden_norm": False, "feed_forward_bias": True, "feed_forward_output_bias": None,
    "encoder_padding": "keys", "decoder_padding": "keys", "cross_padding": "keys", "decoding_decoder_padding": None,
    "decoding_cross_padding": None, "decoder_causal": True, "dropout_rate": 0.1, "embedding_dropout_rate": None,
    "attention_dropout_rate": None, "feed_forward_dropout_rate": None, "output_dropout_rate": 0.0,
    "initializer": "xavier_uniform", "compute_dtype": None, "attention_path": "auto", "layer_loop": "scan",
    "remat": "all_but_products",
}  # fmt: skip
"""Every field of a file of version 0.1, with its default."""

DATA = {"max_length": 20, "joint_vocabulary": True}
SMALL: dict[str, Any] = {
    "source_vocab_size": 11, "target_vocab_size": 11, "d_model": 24, "num_heads": 4, "d_ff": 40,
    "num_encoder_layers": 2, "num_decoder_layers": 1, "max_length": 30,
}  # fmt: skip
OF_SMALL: dict[str, Any] = {
    "source.vocab_size": 11, "target.vocab_size": 11, "encoder.d_model": 24, "decoder.d_model": 24,
    "encoder.self_attention.num_heads": 4, "encoder.feed_forward.width": 40, "encoder.num_layers": 2,
    "decoder.num_layers": 1, "encoder.max_length": 30,
}  # fmt: skip


def everywhere(paths: str, value: Any) -> dict[str, Any]:
    """Returns path → value for each path, of which `attention` and `*` stand for several."""
    attentions = ("encoder.self_attention", "decoder.self_attention", "decoder.cross_attention")
    found = {}
    for path in paths.split():
        if path.startswith("attention."):
            found |= {f"{place}.{path.partition('.')[2]}": value for place in attentions}
        elif path.startswith("*."):
            found |= {f"{stack}.{path[2:]}": value for stack in ("encoder", "decoder")}
        else:
            found[path] = value
    return found


def both(*pairs: tuple[str, Any]) -> dict[str, Any]:
    return {path: value for paths, one in pairs for path, value in everywhere(paths, one).items()}


FILES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "sizes and tables": (
        SMALL | {
            "num_kv_heads": 2, "head_dim": 8, "value_dim": 10, "share_layers": True, "decoder_num_heads": 6,
            "decoder_num_kv_heads": 3, "decoder_head_dim": 4, "decoder_value_dim": 12, "decoder_d_ff": 20,
            "decoder_max_length": 20, "source_pad_id": 1, "target_pad_id": 2, "decoder_padding_id": 3,
            "share_embeddings": True, "tie_head": True, "trains_pad_embedding": False,
            "encoder_embedding_norm": "before_positions", "decoder_embedding_norm": "after_positions",
            "scale_head": True, "logits_factor": 0.5, "head_bias": "buffer", "scale_embedding": False,
            "embedding_factor": 3.0, "decoder_embedding_factor": 2.0, "position_layout": "halves",
            "position_frequency": "doubled", "position_index": "non_pad_count", "position_offset": 2,
            "position_factor": 0.5, "learned_position_scale": True,
        },
        OF_SMALL | both(
            ("encoder.self_attention.num_kv_heads", 2), ("encoder.self_attention.head_dim", 8),
            ("encoder.self_attention.value_dim", 10), ("*.share_layers", True),
            ("decoder.self_attention.num_heads decoder.cross_attention.num_heads", 6),
            ("decoder.self_attention.num_kv_heads decoder.cross_attention.num_kv_heads", 3),
            ("decoder.self_attention.head_dim decoder.cross_attention.head_dim", 4),
            ("decoder.self_attention.value_dim decoder.cross_attention.value_dim", 12),
            ("decoder.feed_forward.width", 20), ("decoder.max_length", 20), ("source.pad_id", 1), ("target.pad_id", 2),
            ("decoder.self_attention.padding_id", 3), ("share_embeddings", True), ("head.tied", True),
            ("source.trains_pad target.trains_pad", False), ("encoder.embedding_norm", "before_positions"),
            ("decoder.embedding_norm", "after_positions"), ("head.scales_input", True), ("head.factor", 0.5),
            ("head.bias", "buffer"), ("encoder.embedding_scale", 3.0), ("decoder.embedding_scale", 2.0),
            ("*.positions.kind", "sinusoidal"), ("*.positions.layout", "halves"), ("*.positions.frequency", "doubled"),
            ("*.positions.index", "non_pad_count"), ("*.positions.offset", 2), ("*.positions.factor", 0.5),
            ("*.positions.learned_scale", True),
        ),
    ),
    "rotations and norms": (
        SMALL | {
            "position_kind": "rotary", "rotary_base": 500.0, "rotary_dim": 2, "rotary_cross_attention": True,
            "parallel_residual": True, "share_norms": True, "norm_placement": "pre", "final_norm": True,
            "decoder_final_norm": False, "learned_sublayer_scale": "channel", "sublayer_scale_init": 0.3,
            "residual_factor": 2.0, "decoder_residual_factor": 3.0, "sublayer_factor": 0.5,
            "decoder_sublayer_factor": 0.25, "query_key_norm": True, "head_scale": True, "context_norm": "attention",
            "output_norm": "all", "attention_scale": 0.3, "attention_bias": False, "attention_output_bias": False,
            "masked_value": -1e4, "norm_kind": "rms_norm", "norm_bias": False, "norm_eps": 0.01,
            "norm_eps_outside": True, "norm_unbiased": True, "norm_scale_offset": 1.0,
        },
        OF_SMALL | both(
            ("*.positions.kind", "rotary"), ("*.positions.base", 500.0), ("*.positions.dim", 2),
            ("decoder.positions.cross_attention", True), ("*.residual.parallel", True), ("*.share_norms", True),
            ("*.norm_placement", "pre"), ("encoder.final_norm", True), ("decoder.final_norm", False),
            ("*.residual.output_scale", "channel"), ("*.residual.output_scale_init", 0.3),
            ("encoder.residual.stream_factor", 2.0), ("decoder.residual.stream_factor", 3.0),
            ("encoder.residual.output_factor", 0.5), ("decoder.residual.output_factor", 0.25),
            ("attention.query_key_norm attention.head_scale attention.context_norm attention.output_norm", True),
            ("*.feed_forward.output_norm", True), ("attention.scale", 0.3), ("attention.bias", False),
            ("attention.output_bias", False), ("attention.masked_value", -1e4), ("*.norm.kind", "rms_norm"),
            ("*.norm.eps", 0.01), ("*.norm.eps_outside", True), ("*.norm.unbiased", True),
            ("*.norm.scale_offset", 1.0),
        ),
    ),
    "biases by distance and masks": (
        SMALL | {
            "position_kind": "relative_bias", "relative_buckets": 8, "relative_max_distance": 20,
            "relative_bias_factor": 2.0, "decoder_relative_bias_factor": 3.0, "relative_bias_per_layer": True,
            "norm_scale": False, "norm_bias": False, "decoder_norm_placement": "none", "activation": "leaky_relu",
            "decoder_activation": "gelu", "activation_slope": 0.2, "feed_forward_gated": True,
            "feed_forward_hidden_norm": True, "feed_forward_bias": False, "feed_forward_output_bias": True,
            "learned_residual_scale": "all", "encoder_padding": "both", "decoder_padding": "none",
            "cross_padding": "queries", "decoding_decoder_padding": "keys", "decoding_cross_padding": "both",
            "decoder_causal": False, "dropout_rate": 0.2, "embedding_dropout_rate": 0.3,
            "attention_dropout_rate": 0.4, "feed_forward_dropout_rate": 0.5, "output_dropout_rate": 0.6,
            "initializer": "torch", "compute_dtype": "bfloat16", "attention_path": "reference",
            "layer_loop": "unrolled", "remat": "all",
        },
        OF_SMALL | both(
            ("*.positions.kind", "relative_bias"), ("*.positions.buckets", 8), ("*.positions.max_distance", 20),
            ("encoder.positions.factor", 2.0), ("decoder.positions.factor", 3.0), ("*.positions.per_layer", True),
            ("*.norm.scale", False), ("*.norm.bias", False), ("decoder.norm_placement", "none"),
            ("encoder.feed_forward.activation", "leaky_relu"), ("decoder.feed_forward.activation", "gelu"),
            ("*.feed_forward.slope", 0.2), ("*.feed_forward.gated", True), ("*.feed_forward.hidden_norm", True),
            ("*.feed_forward.bias", False), ("*.feed_forward.output_bias", True), ("*.residual.stream_scale", "all"),
            ("encoder.self_attention.padding", "both"), ("decoder.self_attention.padding", "none"),
            ("decoder.cross_attention.padding", "queries"), ("decoder.self_attention.decoding_padding", "keys"),
            ("decoder.cross_attention.decoding_padding", "both"), ("decoder.self_attention.causal", False),
            ("*.dropout.rate", 0.2), ("*.dropout.embedding", 0.3), ("*.dropout.attention", 0.4),
            ("*.dropout.feed_forward", 0.5), ("*.dropout.output", 0.6), ("initializer", "torch"),
            ("compute.dtype", "bfloat16"), ("compute.attention", "reference"), ("compute.layers", "unrolled"),
            ("compute.remat", "all"),
        ),
    ),
    "vectors by distance, attention alone": (
        SMALL | {
            "position_kind": "relative_vectors", "decoder_position_kind": "alibi", "relative_value_vectors": False,
            "feed_forward": False, "attention_output": False, "norm_kind": "none",
        },
        {path: value for path, value in OF_SMALL.items() if "feed_forward" not in path} | both(
            ("encoder.positions.kind", "relative_vectors"), ("encoder.positions.values", False),
            ("decoder.positions.kind", "alibi"), ("*.feed_forward", None), ("attention.output", False),
            ("*.norm", None),
        ),
    ),
}  # fmt: skip


def signed_as_before(directory: Path) -> None:
    """Makes a model directory's manifest that of version 0.1, whatever its files hold."""
    manifest = json.loads((directory / "manifest.json").read_text())
    sums = {name: hashlib.sha256((directory / name).read_bytes()).hexdigest() for name in manifest["sha256"]}
    (directory / "manifest.json").write_text(json.dumps(manifest | {"sha256": sums, "format_version": 2}))


def value_at(config: Any, path: str) -> Any:
    for name in path.split("."):
        config = getattr(config, name)
    return config


def test_the_files_set_every_field() -> None:
    changed = {name for fields, _ in FILES.values() for name, value in fields.items() if value != ONE_LEVEL[name]}
    assert changed == set(ONE_LEVEL)


@pytest.mark.parametrize("name", FILES)
def test_a_run_directorys_config_is_read(name: str, tmp_path: Path) -> None:
    fields, expected = FILES[name]
    file = tmp_path / "config.yaml"
    file.write_text(
        yaml.safe_dump({"model": ONE_LEVEL | fields, "data": DATA, "train": {"max_steps": 5}}), encoding="utf-8"
    )
    run = load_config(file, RunConfig())
    assert {path: value_at(run.model, path) for path in expected} == expected
    assert run.train.max_steps == 5
    file.write_text(dump_config(run), encoding="utf-8")
    assert load_config(file, RunConfig()) == run


@pytest.mark.parametrize("name", FILES)
def test_a_model_directorys_config_is_read(name: str, tmp_path: Path) -> None:
    """And the model computes the same as the one that is written in parts."""
    fields, expected = FILES[name]
    config = TransformerConfig.from_flat(ONE_LEVEL | fields)
    assert {path: value_at(config, path) for path in expected} == expected
    params = jax.device_get(functional.init_params(config, jax.random.key(0)))
    model = Model(config, params, None, None, GenerationConfig())
    save_model(model, tmp_path / "parts")
    save_model(model, tmp_path / "one level")
    (tmp_path / "one level" / "config.json").write_text(json.dumps(ONE_LEVEL | fields))
    signed_as_before(tmp_path / "one level")
    models = [load_model(tmp_path / kind) for kind in ("parts", "one level")]
    assert models[0].config == models[1].config == config
    ids = np.array([[4, 5, 6, 1]]), np.array([[7, 8, 9]])
    logits = [np.asarray(functional.apply(one.config, one.params, *ids)) for one in models]
    assert np.array_equal(*logits)


def test_a_field_that_never_was_is_refused() -> None:
    with pytest.raises(TypeError, match="norm_epsilon"):
        TransformerConfig.from_flat(ONE_LEVEL | {"norm_epsilon": 1e-6})
    with pytest.raises(ConfigError, match="norm_eps must be a number"):
        TransformerConfig.from_flat(ONE_LEVEL | {"norm_eps": "small"})
