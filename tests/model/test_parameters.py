"""A config has the parameters that it should: their paths and shapes, by hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.shapes import param_shapes
from jax_transformer.model import functional
from jax_transformer.model.initializers import KeyStream
from jax_transformer.model.layers import EncoderLayer
from jax_transformer.runtime.trees import flatten

pytestmark = pytest.mark.usefixtures("x64", "quick_compilation")


def shapes(config: TransformerConfig) -> dict[str, tuple[int, ...]]:
    """The shapes of the parameters that the modules make, which the config's table must have, too."""
    made = {path: leaf.shape for path, leaf in flatten(functional.abstract_params(config)).items()}
    assert list(param_shapes(config).items()) == sorted(made.items())
    return made


def attention_shapes(prefix: str, layers: int, heads: int, head_dim: int) -> dict[str, tuple[int, ...]]:
    into_heads = {f"{prefix}/{name}/kernel": (layers, 12, heads, head_dim) for name in ("query", "key", "value")}
    biases = {f"{prefix}/{name}/bias": (layers, heads, head_dim) for name in ("query", "key", "value")}
    return {
        **into_heads,
        **biases,
        f"{prefix}/output/kernel": (layers, heads, head_dim, 12),
        f"{prefix}/output/bias": (layers, 12),
    }


def norm_shapes(path: str, *shape: int) -> dict[str, tuple[int, ...]]:
    return {f"{path}/scale": shape, f"{path}/bias": shape}


@pytest.fixture(scope="module")
def base(config: TransformerConfig) -> dict[str, tuple[int, ...]]:
    """The shapes of the shared config, by hand: encoder 1 layer, 3 heads of 5, 7 wide; decoder 2 layers, 2 heads of 4,
    14 wide."""
    expected: dict[str, tuple[int, ...]] = {
        "source_embedding/embedding": (13, 12),
        "target_embedding/embedding": (11, 12),
        "head/kernel": (12, 11),
        "head/bias": (11,),
        "constants/encoder_positions": (9, 12),
        "constants/decoder_positions": (10, 12),
    }
    for stack, layers, heads, head_dim, width in (("encoder", 1, 3, 5, 7), ("decoder", 2, 2, 4, 14)):
        prefix = f"{stack}/layers"
        for attention in ("self_attention", "cross_attention")[: 1 if stack == "encoder" else 2]:
            expected |= attention_shapes(f"{prefix}/{attention}", layers, heads, head_dim)
            expected |= norm_shapes(f"{prefix}/{attention}_norm", layers, 12)
        expected |= {
            f"{prefix}/feed_forward/hidden/kernel": (layers, 12, width),
            f"{prefix}/feed_forward/hidden/bias": (layers, width),
        }
        expected |= {
            f"{prefix}/feed_forward/output/kernel": (layers, width, 12),
            f"{prefix}/feed_forward/output/bias": (layers, 12),
        }
        expected |= norm_shapes(f"{prefix}/feed_forward_norm", layers, 12)
    return expected


def test_the_parameters_of_the_shared_config(config: TransformerConfig, base: dict[str, tuple[int, ...]]) -> None:
    assert shapes(config) == base


def changed(
    base: dict[str, Any], config: TransformerConfig, **options: Any
) -> tuple[set[str], dict[str, tuple[int, ...]]]:
    """What an option takes away from the parameters, and what it adds or changes."""
    received = shapes(dataclasses.replace(config, **options))
    return base.keys() - received.keys(), {path: shape for path, shape in received.items() if base.get(path) != shape}


def test_a_trained_slope_is_one_number_of_each_layer(config: TransformerConfig, base: Any) -> None:
    slopes = {"encoder/layers/feed_forward/slope": (1, 1), "decoder/layers/feed_forward/slope": (2, 1)}
    assert changed(base, config, activation="prelu") == (set(), slopes)


def test_norms_of_outputs_and_hidden_units(config: TransformerConfig, base: Any) -> None:
    outputs = norm_shapes("encoder/layers/self_attention_output_norm", 1, 12)
    for sublayer in ("self_attention", "cross_attention"):
        outputs |= norm_shapes(f"decoder/layers/{sublayer}_output_norm", 2, 12)
    assert changed(base, config, output_norm="attention") == (set(), outputs)
    for stack, layers in (("encoder", 1), ("decoder", 2)):
        outputs |= norm_shapes(f"{stack}/layers/feed_forward_output_norm", layers, 12)
    assert changed(base, config, output_norm="all") == (set(), outputs)
    hidden = norm_shapes("encoder/layers/feed_forward/hidden_norm", 1, 7)
    hidden |= norm_shapes("decoder/layers/feed_forward/hidden_norm", 2, 14)
    assert changed(base, config, feed_forward_hidden_norm=True) == (set(), hidden)


def test_shared_layers_are_one_layer(config: TransformerConfig, base: Any) -> None:
    """(The encoder has one anyway.)"""
    decoder = {path: (1, *shape[1:]) for path, shape in base.items() if path.startswith("decoder/layers/")}
    assert changed(base, config, share_layers=True) == (set(), decoder)


def test_a_scale_of_positions_is_one_number_of_each_stack(config: TransformerConfig, base: Any) -> None:
    scales: dict[str, tuple[int, ...]] = {f"{stack}/position_scale/factor": (1,) for stack in ("encoder", "decoder")}
    assert changed(base, config, learned_position_scale=True) == (set(), scales)


def test_token_types_and_a_transform_of_the_head_have_parameters(config: TransformerConfig, base: Any) -> None:
    types: dict[str, tuple[int, ...]] = {f"{stack}/token_types/embedding": (3, 12) for stack in ("encoder", "decoder")}
    assert changed(base, config, token_types=3) == (set(), types)
    transform = {"head_transform/kernel": (12, 12), "head_transform/bias": (12,)}
    norm = {"head_norm/scale": (12,), "head_norm/bias": (12,)}
    assert changed(base, config, head_transform="tanh") == (set(), transform | norm)


def test_a_single_norm_replaces_all(config: TransformerConfig, base: Any) -> None:
    own = {path for path in base if "/layers/" in path and "_norm/" in path}
    shared = norm_shapes("encoder/layers/shared_norm", 1, 12) | norm_shapes("decoder/layers/shared_norm", 2, 12)
    assert changed(base, config, share_norms=True) == (own, shared)


def test_trained_scales(config: TransformerConfig, base: Any) -> None:
    sublayers = {"encoder": (1, ["self_attention", "feed_forward"])}
    sublayers["decoder"] = (2, ["self_attention", "cross_attention", "feed_forward"])
    paths = [(f"{stack}/layers/{name}", layers) for stack, (layers, names) in sublayers.items() for name in names]
    assert changed(base, config, learned_sublayer_scale="channel", learned_residual_scale="feed_forward") == (
        set(),
        {f"{path}_output_scale/scale": (layers, 12) for path, layers in paths}
        | {
            f"{stack}/layers/feed_forward_residual_scale/scale": (layers, 12)
            for stack, (layers, _) in sublayers.items()
        },
    )
    scalars = {f"{path}_output_scale/factor": (layers, 1) for path, layers in paths}
    assert changed(base, config, learned_sublayer_scale="scalar") == (set(), scalars)


@pytest.mark.parametrize(
    ("options", "first"),
    [
        ({"learned_sublayer_scale": "channel"}, 0.1),
        ({"learned_sublayer_scale": "channel", "sublayer_scale_init": 1e-4}, 1e-4),
        ({"learned_sublayer_scale": "scalar"}, 0.0),
        ({"learned_residual_scale": "all"}, 1.0),
    ],
    ids=str,
)
def test_trained_scales_begin_at_the_configs_values(config: TransformerConfig, options: Any, first: float) -> None:
    layer = EncoderLayer(dataclasses.replace(config, **options), KeyStream(jax.random.key(0)))
    scales = {name: jax.tree.leaves(nnx.state(part)) for name, part in vars(layer).items() if name.endswith("_scale")}
    assert len(scales) == 2
    assert all((leaf == jnp.float32(first)).all() for (leaf,) in scales.values())


def test_gated(config: TransformerConfig, base: Any) -> None:
    gates = {
        "encoder/layers/feed_forward/gate/kernel": (1, 12, 7), "encoder/layers/feed_forward/gate/bias": (1, 7),
        "decoder/layers/feed_forward/gate/kernel": (2, 12, 14), "decoder/layers/feed_forward/gate/bias": (2, 14),
    }  # fmt: skip
    assert changed(base, config, feed_forward_gated=True) == (set(), gates)


def test_heads_of_keys_and_values_may_be_fewer(config: TransformerConfig, base: Any) -> None:
    removed, added = changed(base, config, num_kv_heads=1, decoder_num_kv_heads=2)
    assert removed == set()
    kernels = {f"encoder/layers/self_attention/{name}/kernel": (1, 12, 1, 5) for name in ("key", "value")}
    assert added == kernels | {f"encoder/layers/self_attention/{name}/bias": (1, 1, 5) for name in ("key", "value")}


def test_values_may_have_another_width(config: TransformerConfig, base: Any) -> None:
    removed, added = changed(base, config, value_dim=6, decoder_value_dim=3)
    assert removed == set()
    expected: dict[str, tuple[int, ...]] = {}
    for prefix, layers, heads, width in (
        ("encoder/layers/self_attention", 1, 3, 6),
        ("decoder/layers/self_attention", 2, 2, 3),
        ("decoder/layers/cross_attention", 2, 2, 3),
    ):
        expected |= {f"{prefix}/value/kernel": (layers, 12, heads, width)}
        expected |= {f"{prefix}/value/bias": (layers, heads, width)}
        expected |= {f"{prefix}/output/kernel": (layers, heads, width, 12)}
    assert added == expected


def test_heads_may_have_factors_and_norms(config: TransformerConfig, base: Any) -> None:
    expected: dict[str, tuple[int, ...]] = {}
    for prefix, layers, heads, head_dim in (
        ("encoder/layers/self_attention", 1, 3, 5),
        ("decoder/layers/self_attention", 2, 2, 4),
        ("decoder/layers/cross_attention", 2, 2, 4),
    ):
        expected |= {f"{prefix}/head_scale/scale": (layers, heads)}
        expected |= norm_shapes(f"{prefix}/query_norm", layers, head_dim)
        expected |= norm_shapes(f"{prefix}/key_norm", layers, head_dim)
    assert changed(base, config, head_scale=True, query_key_norm=True) == (set(), expected)


def test_contexts_may_be_normed(config: TransformerConfig, base: Any) -> None:
    """Over all heads: 3 of 5 in the encoder, 2 of 4 in the decoder."""
    expected = norm_shapes("encoder/layers/self_attention/context_norm", 1, 15)
    expected |= norm_shapes("decoder/layers/self_attention/context_norm", 2, 8)
    assert changed(base, config, context_norm="self_attention") == (set(), expected)
    expected |= norm_shapes("decoder/layers/cross_attention/context_norm", 2, 8)
    assert changed(base, config, context_norm="attention") == (set(), expected)


def test_relative_vectors(config: TransformerConfig, base: Any) -> None:
    """For distances from -3 to 3: of a stack, or of each layer's self-attention."""
    tables = {"constants/encoder_positions", "constants/decoder_positions"}
    options: dict[str, Any] = {"position_kind": "relative_vectors", "relative_max_distance": 3}
    shared = {
        f"{stack}/relative_vectors/{name}": (7, head_dim)
        for stack, head_dim in (("encoder", 5), ("decoder", 4))
        for name in ("keys", "values")
    }
    assert changed(base, config, **options) == (tables, shared)
    own: dict[str, tuple[int, ...]] = {
        "encoder/layers/self_attention/relative_vectors/keys": (1, 7, 5),
        "decoder/layers/self_attention/relative_vectors/keys": (2, 7, 4),
    }
    options |= {"relative_bias_per_layer": True, "relative_value_vectors": False}
    assert changed(base, config, **options) == (tables, own)


@pytest.mark.parametrize("options", [{"position_kind": "rotary", "rotary_dim": 4}, {"position_kind": "alibi"}], ids=str)
def test_rotary_positions_and_alibi_have_no_parameters(config: TransformerConfig, base: Any, options: Any) -> None:
    assert changed(base, config, **options) == ({"constants/encoder_positions", "constants/decoder_positions"}, {})


@pytest.mark.parametrize(
    ("options", "gone"),
    [
        ({"norm_kind": "rms_norm", "norm_bias": False}, lambda path: "_norm/bias" in path),
        ({"norm_bias": False}, lambda path: "_norm/bias" in path),
        ({"norm_scale": False}, lambda path: "_norm/scale" in path),
        ({"norm_scale": False, "norm_bias": False}, lambda path: "_norm/" in path),
        ({"decoder_norm_placement": "none"}, lambda path: "decoder/layers/" in path and "_norm/" in path),
        ({"norm_kind": "none"}, lambda path: "_norm/" in path),
        ({"feed_forward": False}, lambda path: "feed_forward" in path),
        ({"feed_forward_bias": False}, lambda path: "feed_forward/" in path and path.endswith("bias")),
        ({"feed_forward_output_bias": False}, lambda path: path.endswith("feed_forward/output/bias")),
        (
            {"feed_forward_bias": False, "feed_forward_output_bias": True},
            lambda path: path.endswith("feed_forward/hidden/bias"),
        ),
        ({"attention_bias": False}, lambda path: path.endswith(("query/bias", "key/bias", "value/bias"))),
        ({"attention_output_bias": False}, lambda path: path.endswith("attention/output/bias")),
        ({"position_kind": "none"}, lambda path: path.startswith("constants/")),
        ({"head_bias": "none"}, lambda path: path == "head/bias"),
        ({"tie_head": True, "head_bias": "none"}, lambda path: path.startswith("head/")),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_disabled_parts_have_no_parameters(
    config: TransformerConfig, base: Any, options: Any, gone: Callable[[str], bool]
) -> None:
    removed, added = changed(base, config, **options)
    assert removed == {path for path in base if gone(path)}
    assert removed
    assert added == {}


def test_no_output_projection(config: TransformerConfig) -> None:
    config = dataclasses.replace(config, head_dim=4, decoder_num_heads=3)
    received = shapes(dataclasses.replace(config, attention_output=False))
    assert shapes(config).keys() - received.keys() == {path for path in shapes(config) if "attention/output/" in path}


def test_norms_may_be_added(config: TransformerConfig, base: Any) -> None:
    assert changed(base, config, final_norm=True) == (
        set(),
        norm_shapes("encoder/final_norm", 12) | norm_shapes("decoder/final_norm", 12),
    )
    assert changed(base, config, final_norm=True, decoder_final_norm=False) == (
        set(),
        norm_shapes("encoder/final_norm", 12),
    )
    assert changed(base, config, decoder_embedding_norm="after_positions") == (
        set(),
        norm_shapes("decoder/embedding_norm", 12),
    )


def test_learned_positions_are_parameters(config: TransformerConfig, base: Any) -> None:
    removed, added = changed(base, config, position_kind="learned", position_offset=2)
    assert removed == {"constants/encoder_positions", "constants/decoder_positions"}
    assert added == {"encoder/positions/embedding": (11, 12), "decoder/positions/embedding": (12, 12)}


def test_stacks_may_have_different_positions_and_activations(config: TransformerConfig, base: Any) -> None:
    scale: dict[str, tuple[int, ...]] = {"encoder/position_scale/factor": (1,)}
    own = {"decoder_position_kind": "rotary", "rotary_dim": 2, "learned_position_scale": True}
    assert changed(base, config, **own) == ({"constants/decoder_positions"}, scale)
    learned: dict[str, tuple[int, ...]] = {"decoder/positions/embedding": (10, 12)}
    assert changed(base, config, decoder_position_kind="learned") == ({"constants/decoder_positions"}, learned)
    slope: dict[str, tuple[int, ...]] = {"decoder/layers/feed_forward/slope": (2, 1)}
    assert changed(base, config, decoder_activation="prelu") == (set(), slope)


def test_tied_parameters_are_one_leaf(config: TransformerConfig) -> None:
    config = dataclasses.replace(config, source_vocab_size=11, share_embeddings=True, tie_head=True)
    vocabulary = {
        path: shape for path, shape in shapes(config).items() if 11 in shape and not path.startswith("constants")
    }
    assert vocabulary == {"shared_embedding/embedding": (11, 12), "head_bias": (11,)}
    untied = shapes(dataclasses.replace(config, tie_head=False))
    assert {path for path in untied if path.startswith(("head", "shared", "source", "target"))} == {
        "shared_embedding/embedding",
        "head/kernel",
        "head/bias",
    }


def test_a_bias_that_is_a_buffer_is_a_constant(config: TransformerConfig) -> None:
    for tie_head in (True, False):
        received = shapes(dataclasses.replace(config, head_bias="buffer", tie_head=tie_head))
        assert received["constants/head_bias"] == (11,)
        assert not {"head_bias", "head/bias"} & received.keys()


@pytest.mark.parametrize("field", ["source_vocab_size", "target_vocab_size"])
def test_parameters_need_vocabulary_sizes(config: TransformerConfig, field: str) -> None:
    with pytest.raises(ValueError, match=f"{field} must be set before parameters are made; received 0"):
        functional.init_params(dataclasses.replace(config, **{field: 0}), jax.random.key(0))


def test_params_are_plain_dicts(config: TransformerConfig) -> None:
    def check(node: Any) -> None:
        assert type(node) in (dict, jax.ShapeDtypeStruct)
        if type(node) is dict:
            assert all(type(key) is str for key in node)
            for child in node.values():
                check(child)

    check(functional.abstract_params(config))
