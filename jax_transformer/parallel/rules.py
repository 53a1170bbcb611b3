"""Shard parameters on the mesh: one table from the paths of parameters to the axes of the mesh.

A rule names the axes of the stacked leaf. Vocabulary, heads and feed-forward units are sharded over `tensor`, features
over `fsdp`. The other axes are never sharded. Optimizer state, moving average and gradients are sharded like their
parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.short_names import named_values
from jax_transformer.config.validation import ConfigError
from jax_transformer.model.sharding import FEATURES, WIDTH
from jax_transformer.parallel.mesh import AnyMesh, with_auto_axes
from jax_transformer.runtime.trees import flatten

RULES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("*_embedding/embedding", ("vocabulary", "features")),
    ("*/positions/embedding", ("positions", "features")),
    ("*/token_types/embedding", ("types", "features")),
    ("*/layers/*/relative_bias/embedding", ("layers", "buckets", "heads")),
    ("*/relative_bias/embedding", ("buckets", "heads")),
    ("*/layers/*/relative_vectors/*", ("layers", "distances", "head_dim")),
    ("*/relative_vectors/*", ("distances", "head_dim")),
    ("*/layers/*_attention/head_scale/scale", ("layers", "heads")),
    ("*/layers/*_attention/context_norm/*", ("layers", "contexts")),
    ("*/layers/*_attention/*_norm/*", ("layers", "head_dim")),
    ("*/layers/*_attention/output/lora_a", ("layers", "heads", "head_dim", "rank")),
    ("*/layers/*_attention/output/lora_b", ("layers", "rank", "features")),
    ("*/layers/*_attention/*/lora_a", ("layers", "features", "rank")),
    ("*/layers/*_attention/*/lora_b", ("layers", "rank", "heads", "head_dim")),
    ("*/layers/*_attention/output/kernel", ("layers", "heads", "head_dim", "features")),
    ("*/layers/*_attention/output/bias", ("layers", "features")),
    ("*/layers/*_attention/*/kernel", ("layers", "features", "heads", "head_dim")),
    ("*/layers/*_attention/*/bias", ("layers", "heads", "head_dim")),
    ("*/layers/feed_forward/hidden_norm/*", ("layers", "hidden")),
    ("*/layers/feed_forward/output/lora_a", ("layers", "hidden", "rank")),
    ("*/layers/feed_forward/output/lora_b", ("layers", "rank", "features")),
    ("*/layers/feed_forward/*/lora_a", ("layers", "features", "rank")),
    ("*/layers/feed_forward/*/lora_b", ("layers", "rank", "hidden")),
    ("*/layers/feed_forward/output/kernel", ("layers", "hidden", "features")),
    ("*/layers/feed_forward/output/bias", ("layers", "features")),
    ("*/layers/feed_forward/*/kernel", ("layers", "features", "hidden")),
    ("*/layers/feed_forward/*/bias", ("layers", "hidden")),
    ("*/layers/feed_forward/slope", ("layers", "all_units")),
    ("*/layers/*_norm/*", ("layers", "features")),
    ("*/layers/*_scale/scale", ("layers", "features")),
    ("*/layers/*_scale/factor", ("layers", "all_features")),
    ("*/position_scale/factor", ("all_features",)),
    ("*_norm/*", ("features",)),
    ("stem/*/kernel", ("vectors", "bands", "features")),
    ("stem/*/bias", ("features",)),
    ("head_transform/kernel", ("inputs", "features")),
    ("head_transform/bias", ("features",)),
    ("head/kernel", ("features", "vocabulary")),
    ("head/lora_a", ("features", "rank")),
    ("head/lora_b", ("rank", "vocabulary")),
    ("*/lora_scale", ()),
    ("head/bias", ("vocabulary",)),
    ("head_bias", ("vocabulary",)),
    ("constants/*_positions", ("positions", "features")),
    ("constants/head_bias", ("vocabulary",)),
)
"""Patterns of paths, and the axes of the leaves that match; the first match counts."""

MESH_AXES = {"vocabulary": WIDTH, "heads": WIDTH, "contexts": WIDTH, "hidden": WIDTH, "features": FEATURES}
"""Axes of parameters that the mesh divides."""


def axes_of(path: str) -> tuple[str, ...]:
    """Returns the names of the axes of the parameter at `path`, such as encoder/layers/self_attention/query/kernel.

    Raises:
      KeyError: no rule matches.
    """
    for pattern, axes in RULES:
        if fnmatchcase(path, pattern):
            return axes
    raise KeyError(f"no rule of parallel/rules.py matches the parameter {path}")


def parameter_spec(path: str, shape: tuple[int, ...], mesh: AnyMesh) -> PartitionSpec:
    """Returns the sharding of the parameter at `path`.

    A vocabulary that `tensor` doesn't divide stays whole. Its features are then divided among the devices of `tensor`
    too, so that no device holds more; the training step pads the vocabulary while it computes the loss.
    """
    axes = axes_of(path)
    table: dict[str, Any] = MESH_AXES
    sizes = dict(zip(axes, shape, strict=True))
    if sizes.get("vocabulary", 0) % mesh.shape[WIDTH]:
        both = sizes.get("features", 0) % (mesh.shape[FEATURES] * mesh.shape[WIDTH]) == 0
        table = {**table, "vocabulary": None, "features": (WIDTH, FEATURES) if both else FEATURES}
    return PartitionSpec(*(table.get(axis) for axis in axes))


def tree_shardings(tree: Any, params: Mapping[str, Any], mesh: AnyMesh) -> Any:
    """Returns the sharding of each leaf of a tree, as a tree of the same structure.

    A leaf whose path ends with that of a parameter of the same shape is sharded like it: optimizer state, gradients,
    moving averages. Any other leaf, such as a count of steps, is replicated.

    Args:
      tree: any pytree of arrays or of their shapes.
      params: the complete parameters, as nested dicts of arrays or shapes.
      mesh: the mesh.

    Example:
      >>> import optax
      >>> from jax_transformer import TransformerConfig
      >>> from jax_transformer.parallel import make_mesh, tree_shardings
      >>> from jax_transformer.training import abstract_state, all_params
      >>> config = TransformerConfig(source_vocab_size=7, target_vocab_size=7, d_model=8, num_heads=2, d_ff=8,
      ...                            num_encoder_layers=1, num_decoder_layers=1)
      >>> state = abstract_state(config, optimizer=optax.sgd(0.1, momentum=0.9))
      >>> shardings = tree_shardings(state.optimizer, all_params(state), make_mesh())
      >>> shardings[0].trace["head"]["kernel"].spec
      P('fsdp', 'tensor')
    """
    shapes, mesh = {path: tuple(leaf.shape) for path, leaf in flatten(params).items()}, with_auto_axes(mesh)

    def sharding(key_path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        names = [str(getattr(key, "key", getattr(key, "name", key))) for key in key_path]
        suffixes = ("/".join(names[start:]) for start in range(len(names)))
        path = next((path for path in suffixes if shapes.get(path) == tuple(leaf.shape)), None)
        return NamedSharding(mesh, PartitionSpec() if path is None else parameter_spec(path, shapes[path], mesh))

    return jax.tree_util.tree_map_with_path(sharding, tree)


def check_divides(config: TransformerConfig, mesh: AnyMesh) -> None:
    """Raises ConfigError unless the mesh has the axes of `make_mesh`, and divides the model's heads (of keys and values
    too), feed-forward units and features."""
    mesh = with_auto_axes(mesh)
    divided = {"d_model": FEATURES, "num_heads": WIDTH, "num_kv_heads": WIDTH, "d_ff": WIDTH}
    problems = [
        f"parallel.{axis}: expected a divisor of model.{label}={size}; received {mesh.shape[axis]}"
        for name, axis in divided.items()
        for label, size in named_values(config, name)
        if size is not None and size % mesh.shape[axis]
    ]
    if problems:
        raise ConfigError("; ".join(problems))
