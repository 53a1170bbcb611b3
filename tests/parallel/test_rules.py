"""The table of parameter paths: every parameter has a rule, every rule a parameter, and sizes must divide."""

from __future__ import annotations

import dataclasses
from fnmatch import fnmatchcase
from typing import Any

import jax
import optax
import pytest
from jax.sharding import AbstractMesh, PartitionSpec

from jax_transformer.config.lora import LoraConfig
from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.parallel import AXES, ParallelConfig
from jax_transformer.config.presets import PRESETS
from jax_transformer.config.run import RunConfig, TrainConfig
from jax_transformer.config.specs import DECODER, Attention
from jax_transformer.config.validation import ConfigError
from jax_transformer.model.functional import abstract_params
from jax_transformer.parallel.mesh import make_mesh
from jax_transformer.parallel.rules import RULES, axes_of, check_divides, parameter_spec, tree_shardings
from jax_transformer.runtime.trees import flatten
from jax_transformer.training.state import abstract_state, init_state, stored_params

CONFIGS = [
    dataclasses.replace(make().model, source_vocab_size=50, target_vocab_size=50) for make in PRESETS.values()
] + [
    TransformerConfig(source_vocab_size=50, target_vocab_size=50, d_model=16, **options)  # type: ignore[arg-type]
    for options in (
        {"position_kind": "relative_bias"},
        {"position_kind": "relative_bias", "relative_bias_per_layer": True, "feed_forward_gated": True},
        {"position_kind": "relative_vectors", "head_scale": True},
        {"position_kind": "relative_vectors", "relative_bias_per_layer": True, "query_key_norm": True},
        {"position_kind": "learned", "tie_head": True, "final_norm": True},
        {"tie_head": True, "share_embeddings": True, "head_bias": "buffer", "activation": "prelu"},
        {"learned_residual_scale": "all", "learned_sublayer_scale": "channel"},
        {"learned_sublayer_scale": "scalar"},
        {"share_layers": True, "learned_position_scale": True},
        {"share_layers": True, "position_kind": "relative_vectors", "relative_bias_per_layer": True},
        {
            "share_norms": True,
            "query_key_norm": True,
            "output_norm": "all",
            "head_scale": True,
            "context_norm": "attention",
        },
        {"share_norms": True, "output_norm": "all", "feed_forward_hidden_norm": True},
        {"head_transform": "gelu", "token_types": 2},
    )
]
EIGHT = AbstractMesh((2, 2, 2), AXES)


def mesh_of(data: int = 1, fsdp: int = 1, tensor: int = 1) -> AbstractMesh:
    return AbstractMesh((data, fsdp, tensor), AXES)


def adapters() -> dict[str, Any]:
    """Returns adapters of every kernel, and their scales, by path."""
    state = abstract_state(CONFIGS[0], TrainConfig(lora=LoraConfig(rank=2, targets=("*/kernel",))))
    return {path: leaf for path, leaf in flatten(stored_params(state)).items() if "lora" in path}


def test_every_parameter_has_a_rule_for_its_axes() -> None:
    for leaves in (*(flatten(abstract_params(config)) for config in CONFIGS), adapters()):
        for path, leaf in leaves.items():
            assert len(axes_of(path)) == leaf.ndim, path


def test_every_rule_is_that_of_a_parameter() -> None:
    used = {
        next(pattern for pattern, _ in RULES if fnmatchcase(path, pattern))
        for config in CONFIGS
        for path in flatten(abstract_params(config)) | adapters()
    }
    assert used == {pattern for pattern, _ in RULES}


def test_a_parameter_without_a_rule_is_named() -> None:
    with pytest.raises(KeyError, match="encoder/layers/memory/kernel"):
        axes_of("encoder/layers/memory/kernel")


@pytest.mark.parametrize(
    ("path", "shape", "spec"),
    [
        ("encoder/layers/self_attention/query/kernel", (2, 16, 8, 2), PartitionSpec(None, "fsdp", "tensor", None)),
        ("encoder/layers/self_attention/output/kernel", (2, 8, 2, 16), PartitionSpec(None, "tensor", None, "fsdp")),
        ("encoder/layers/self_attention/key/kernel", (2, 16, 2, 4), PartitionSpec(None, "fsdp", "tensor", None)),
        ("encoder/layers/self_attention/head_scale/scale", (2, 8), PartitionSpec(None, "tensor")),
        ("encoder/layers/self_attention/context_norm/scale", (2, 64), PartitionSpec(None, "tensor")),
        ("encoder/layers/self_attention/query_norm/scale", (2, 4), PartitionSpec(None, None)),
        ("encoder/relative_vectors/keys", (33, 4), PartitionSpec(None, None)),
        ("decoder/layers/self_attention/relative_vectors/values", (2, 33, 4), PartitionSpec(None, None, None)),
        ("decoder/layers/feed_forward/gate/kernel", (2, 16, 24), PartitionSpec(None, "fsdp", "tensor")),
        ("decoder/layers/feed_forward/output/kernel", (2, 24, 16), PartitionSpec(None, "tensor", "fsdp")),
        ("decoder/layers/cross_attention_norm/scale", (2, 16), PartitionSpec(None, "fsdp")),
        ("shared_embedding/embedding", (40, 16), PartitionSpec("tensor", "fsdp")),
        ("shared_embedding/embedding", (41, 16), PartitionSpec(None, ("tensor", "fsdp"))),
        ("shared_embedding/embedding", (41, 6), PartitionSpec(None, "fsdp")),
        ("head/kernel", (16, 40), PartitionSpec("fsdp", "tensor")),
        ("head_bias", (41,), PartitionSpec(None)),
    ],
)
def test_parameters_lie_by_the_table(path: str, shape: tuple[int, ...], spec: PartitionSpec) -> None:
    assert parameter_spec(path, shape, EIGHT) == spec  # type: ignore[arg-type]


@pytest.mark.parametrize("optimizer", ["adam", "muon"])
def test_optimizer_state_and_average_are_sharded_like_their_parameters(optimizer: str) -> None:
    config = TransformerConfig(source_vocab_size=40, target_vocab_size=40, d_model=16, num_heads=4, d_ff=24)
    train = TrainConfig(optimizer=optimizer, ema_decay=0.9)  # type: ignore[arg-type]
    state = jax.eval_shape(lambda: init_state(config, train))
    specs = {
        jax.tree_util.keystr(path): sharding.spec
        for path, sharding in jax.tree_util.tree_leaves_with_path(tree_shardings(state, state.params, EIGHT))  # type: ignore[arg-type]
    }
    kernels = {path: spec for path, spec in specs.items() if "['query']['kernel']" in path and "encoder" in path}
    assert len(kernels) == (4 if optimizer == "adam" else 3)  # parameter, average, and two moments or one
    assert set(kernels.values()) == {PartitionSpec(None, "fsdp", "tensor", None)}
    assert specs[".step"] == PartitionSpec()


def test_state_of_another_shape_is_on_every_device() -> None:
    """Adafactor's moments are rows and columns of its parameters."""
    config = TransformerConfig(source_vocab_size=256, target_vocab_size=256, d_model=128, num_heads=4, d_ff=256)
    state = abstract_state(config, optimizer=optax.adafactor(1e-3))
    specs = jax.tree.leaves(tree_shardings(state.optimizer, state.params, EIGHT))  # type: ignore[arg-type]
    assert any(sharding.spec == PartitionSpec() for sharding in specs)


@pytest.mark.parametrize(
    ("options", "sizes", "message"),
    [
        ({"d_model": 18, "num_heads": 2}, {"fsdp": 4}, r"parallel\.fsdp: expected a divisor of model\.d_model=18; rec"),
        ({"num_heads": 6}, {"tensor": 4}, r"parallel\.tensor: expected a divisor of model\.num_heads=6; received 4"),
        ({"num_kv_heads": 2}, {"tensor": 4}, r"expected a divisor of model\.num_kv_heads=2; received 4"),
        ({"decoder_num_kv_heads": 1}, {"tensor": 2}, r"a divisor of model\.decoder_num_kv_heads=1; received 2"),
        ({"decoder_d_ff": 30}, {"tensor": 4}, r"expected a divisor of model\.decoder_d_ff=30; received 4"),
    ],
)
def test_sizes_that_the_mesh_does_not_divide_are_refused(
    options: dict[str, int], sizes: dict[str, int], message: str
) -> None:
    config = TransformerConfig(**{"d_model": 24, "num_heads": 4, "head_dim": 4, "d_ff": 32} | options)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=message):
        check_divides(config, mesh_of(**sizes))  # type: ignore[arg-type]
    check_divides(config, mesh_of(data=4))  # type: ignore[arg-type]


def test_differing_heads_of_cross_attention_are_named_by_path() -> None:
    decoder = dataclasses.replace(DECODER, cross_attention=Attention(num_heads=2))
    with pytest.raises(ConfigError, match=r"divisor of model\.decoder\.cross_attention\.num_heads=2; received 4"):
        check_divides(TransformerConfig(decoder=decoder), mesh_of(tensor=4))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"data": 3}, "sizes whose product is 8, the number of devices; received data=3, fsdp=1, tensor=1"),
        ({"fsdp": 3}, "sizes whose product is a divisor of 8, the number of devices; received data=-1, fsdp=3"),
    ],
)
def test_a_mesh_that_does_not_multiply_to_the_devices_is_refused(sizes: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ParallelConfig(**sizes).sizes(8)


@pytest.mark.parametrize("sizes", [{"tensor": 0}, {"data": -2}, {"fsdp": -1}])
def test_impossible_sizes_are_refused(sizes: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=r"at least 1, or -1 for what is left|one size may be -1"):
        ParallelConfig(**sizes)


def test_the_default_mesh_has_every_device() -> None:
    assert make_mesh().size == jax.device_count()


def test_virtual_shards_are_refused_where_a_rows_number_counts() -> None:
    with pytest.raises(ConfigError, match=r"virtual_shards must be 0 with model\.position_index='batch_row'"):
        RunConfig(model=TransformerConfig(position_index="batch_row"), parallel=ParallelConfig(virtual_shards=2))
