"""Make a TransformerConfig of a structure's fields."""

from __future__ import annotations

from typing import Any

import numpy as np

from jax_transformer.config.model import TransformerConfig
from jax_transformer.discover.problems import DiscoverError
from jax_transformer.discover.structure import Structure

SIZES = ("num_heads", "num_kv_heads", "head_dim")
GROWING = 512
"""max_length where a module computes its positions for any length."""


def make_config(structure: Structure, longest: tuple[int | None, int | None] = (None, None)) -> TransformerConfig:
    """Returns the config of a structure.

    Args:
      longest: the most tokens of a source and of a target that the module accepts. None: any number.

    Raises:
      DiscoverError: the two stacks differ in what a config has once.
      ConfigError: fields contradict one another.
    """
    fields = dict(structure.fields)
    ends = fields.pop("final_norms")
    if ends["encoder"] != ends["decoder"]:
        with_norm = "encoder" if ends["encoder"] else "decoder"
        raise DiscoverError(f"a final norm in the {with_norm} alone; a config has one in both stacks or in none")
    fields["final_norm"] = ends["encoder"]
    if fields.pop("no_norm", False):
        if "norm_placement" in fields:
            raise DiscoverError("sublayers with and without norms; a config has them everywhere or nowhere")
        fields["norm_kind"] = "none"
    if fields.get("norm_kind") in (None, "none"):
        fields["norm_kind"] = "none"
    sizes = {name: fields.pop(f"encoder_{name}") for name in SIZES}
    theirs = {name: fields.pop(f"decoder_{name}") for name in SIZES}
    d_ff = {stack: fields.pop(f"{stack}_d_ff", None) for stack in ("encoder", "decoder")}
    fields |= _sizes(fields["d_model"], sizes, theirs)
    if d_ff["encoder"] is not None:
        fields["d_ff"] = d_ff["encoder"]
        fields["decoder_d_ff"] = None if d_ff["decoder"] == d_ff["encoder"] else d_ff["decoder"]
    fields |= _lengths(structure, longest)
    if _share_embeddings(structure):
        fields["share_embeddings"] = True
    fields["dropout_rate"] = 0.0
    return TransformerConfig(**fields)


def _sizes(d_model: int, encoder: dict[str, int], decoder: dict[str, int]) -> dict[str, Any]:
    def head_dim(stack: dict[str, int]) -> int | None:
        return None if stack["num_heads"] * stack["head_dim"] == d_model else stack["head_dim"]

    fields: dict[str, Any] = {"num_heads": encoder["num_heads"], "head_dim": head_dim(encoder)}
    if encoder["num_kv_heads"] != encoder["num_heads"]:
        fields["num_kv_heads"] = encoder["num_kv_heads"]
    if decoder != encoder:
        fields |= {f"decoder_{name}": decoder[name] for name in SIZES}
    return fields


def _lengths(structure: Structure, longest: tuple[int | None, int | None]) -> dict[str, int]:
    """Returns max_length of both stacks: what the table of positions and the module allow."""
    lengths = {}
    for stack, most in zip(("encoder", "decoder"), longest, strict=True):
        limits = [limit for limit in (structure.rows.get(stack), most) if limit is not None]
        lengths[stack] = min(limits, default=GROWING)
    fields = {"max_length": lengths["encoder"]}
    return fields if lengths["decoder"] == lengths["encoder"] else fields | {"decoder_max_length": lengths["decoder"]}


def _share_embeddings(structure: Structure) -> bool:
    """Gives both sides' embeddings the shared name if they are one."""
    leaves = structure.leaves
    source, target = (leaves.get(f"{side}_embedding/embedding") for side in ("source", "target"))
    if source is None or target is None or not np.array_equal(source, target):
        return False
    del leaves["source_embedding/embedding"]
    leaves["shared_embedding/embedding"] = leaves.pop("target_embedding/embedding")
    return True
