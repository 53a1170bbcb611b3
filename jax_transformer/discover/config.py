"""Make a TransformerConfig of a structure's fields."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from jax_transformer.config.model import TransformerConfig
from jax_transformer.discover.embeddings import GROWING
from jax_transformer.discover.findings import Structure
from jax_transformer.discover.problems import Unknown
from jax_transformer.programs.trace import Value

SIZES = ("num_heads", "num_kv_heads", "head_dim", "value_dim")
PER_STACK: dict[str, Any] = {
    "norm_placement": "post", "final_norm": False, "residual_factor": 1.0, "sublayer_factor": 1.0,
    "activation": "relu", "position_kind": "sinusoidal", "relative_bias_factor": 1.0,
}  # fmt: skip
"""Fields that a decoder may have for itself, with their defaults."""


def make_config(structure: Structure, longest: tuple[int | None, int | None] = (None, None)) -> TransformerConfig:
    """Returns the config of a structure.

    Args:
      longest: the most tokens of a source and of a target that the module accepts. None: any number.

    Raises:
      Unknown: layers differ in what a config has once.
      ConfigError: fields contradict one another.
    """
    fields = dict(structure.fields)
    for name, default in PER_STACK.items():
        own = fields.pop(f"encoder_{name}", default)
        other = fields.pop(f"decoder_{name}", own)
        fields |= {name: own} if own != default else {}
        fields |= {f"decoder_{name}": other} if other != own else {}
    if fields.get("feed_forward_output_bias") == fields.get("feed_forward_bias"):
        fields.pop("feed_forward_output_bias", None)
    if "norm_kind" not in fields:
        fields["norm_kind"] = "none"
    fields["output_norm"] = _normed(structure.normed_outputs, "outputs")
    fields["context_norm"] = _normed(structure.normed_contexts, "contexts")
    fields |= _scales(structure)
    _share(structure, fields)
    sizes = {name: fields.pop(f"encoder_{name}") for name in SIZES}
    theirs = {name: fields.pop(f"decoder_{name}") for name in SIZES}
    d_ff = {stack: fields.pop(f"{stack}_d_ff", None) for stack in ("encoder", "decoder")}
    fields |= _sizes(fields["d_model"], sizes, theirs)
    if d_ff["encoder"] is not None:
        fields["d_ff"] = d_ff["encoder"]
        fields["decoder_d_ff"] = None if d_ff["decoder"] == d_ff["encoder"] else d_ff["decoder"]
    fields |= _embedding_factors(structure.factors, fields["d_model"])
    fields |= _lengths(structure, longest)
    if _share_embeddings(structure, fields):
        fields["share_embeddings"] = True
    fields["dropout_rate"] = 0.0
    return TransformerConfig(**fields)


def _share(structure: Structure, fields: dict[str, Any]) -> None:
    """Gives leaves that are one the shared names: of the layers of a stack, and of the norms of a layer."""
    leaves = structure.leaves
    layers = {path: elements for path, elements in leaves.items() if "/layers/" in path}
    first = {path.partition("[")[0]: elements for path, elements in layers.items() if path.endswith("[0]")}
    if max(fields["num_encoder_layers"], fields["num_decoder_layers"]) > 1 and all(
        np.array_equal(elements, first[path.partition("[")[0]]) for path, elements in layers.items()
    ):
        fields["share_layers"] = True
        for path in layers:
            if not path.endswith("[0]"):
                del leaves[path]
    norms: dict[tuple[str, str], list[str]] = {}
    for path in leaves:
        match = re.fullmatch(r"(\w+/layers/)(?:self_attention|cross_attention|feed_forward)_norm(/\w+\[\d+\])", path)
        if match:
            norms.setdefault((match[1], match[2]), []).append(path)
    several = [paths for paths in norms.values() if len(paths) > 1]
    if several and all(np.array_equal(leaves[paths[0]], leaves[other]) for paths in several for other in paths):
        fields["share_norms"] = True
        for (before, after), paths in norms.items():
            leaves[f"{before}shared_norm{after}"] = leaves[paths[0]]
            for path in paths:
                del leaves[path]


def _normed(found: dict[str, dict[bool, Value]], what: str) -> str:
    """Returns which sublayers have their outputs or contexts normed, as the config's fields say it.

    Raises:
      Unknown: others, or those of some layers alone.
    """
    normed = {name for name, are in found.items() if True in are}
    mixed = [name for name, are in found.items() if len(are) > 1]
    known = {
        frozenset[str](): "none",
        frozenset({"self_attention"}): "self_attention",
        frozenset({"self_attention", "cross_attention"}): "attention",
        frozenset({"self_attention", "cross_attention", "feed_forward"}): "all",
    }.get(frozenset(normed))
    if mixed or known is None:
        where = next(are[True] for name, are in found.items() if name in (mixed or normed))
        raise Unknown(
            where,
            f"norms of the {what} of {', '.join(sorted(normed))}{' in some layers' * bool(mixed)}; a config has them "
            "at self-attention or at both attentions" + (", or everywhere" if what == "outputs" else ""),
        )
    return known


def _scales(structure: Structure) -> dict[str, Any]:
    """Returns the fields of trained scales of streams and outputs.

    Raises:
      Unknown: no field has them as they are.
    """
    sizes = {key: max(found) for key, found in structure.scaled.items() if max(found)}
    places = {name: found[max(found)] for (_, name), found in structure.scaled.items() if max(found)}
    for (_, name), found in structure.scaled.items():
        if len(found) > 1:
            raise Unknown(places[name], "trained scales of residuals in some layers alone")
    residual = {name for kind, name in sizes if kind == "residual"}
    output = {name: size for (kind, name), size in sizes.items() if kind == "output"}
    everywhere = {name for _, name in structure.scaled}
    fields: dict[str, Any] = {}
    if residual:
        if residual not in (everywhere, {"feed_forward"}):
            names = sorted(residual)
            raise Unknown(places[names[0]], f"trained scales of the stream at {', '.join(names)} alone")
        fields["learned_residual_scale"] = "all" if residual == everywhere else "feed_forward"
    if output:
        if set(output) != everywhere or len({size == 1 for size in output.values()}) > 1:
            names = sorted(output)
            raise Unknown(places[names[0]], f"trained scales of the outputs of {', '.join(names)} alone")
        fields["learned_sublayer_scale"] = "scalar" if 1 in output.values() else "channel"
    return fields


def _embedding_factors(factors: dict[str, float], width: int) -> dict[str, Any]:
    """Returns the fields of the factor of token embeddings: sqrt(d_model), 1, or another number."""
    usual = {False: 1.0, True: float(np.sqrt(width))}
    for scales, number in usual.items():
        if all(abs(factor / number - 1) < 1e-12 for factor in factors.values()):
            return {"scale_embedding": scales}
    encoder, decoder = (
        next((number for number in usual.values() if abs(factors[stack] / number - 1) < 1e-12), factors[stack])
        for stack in ("encoder", "decoder")
    )
    fields: dict[str, Any] = {"scale_embedding": False, "embedding_factor": encoder}
    return fields if encoder == decoder else fields | {"decoder_embedding_factor": decoder}


def _sizes(d_model: int, encoder: dict[str, int], decoder: dict[str, int]) -> dict[str, Any]:
    def head_dim(stack: dict[str, int]) -> int | None:
        return None if stack["num_heads"] * stack["head_dim"] == d_model else stack["head_dim"]

    fields: dict[str, Any] = {"num_heads": encoder["num_heads"], "head_dim": head_dim(encoder)}
    if encoder["num_kv_heads"] != encoder["num_heads"]:
        fields["num_kv_heads"] = encoder["num_kv_heads"]
    if encoder["value_dim"] != encoder["head_dim"]:
        fields["value_dim"] = encoder["value_dim"]
    if decoder != encoder:
        fields |= {f"decoder_{name}": decoder[name] for name in SIZES}
    return fields


def _lengths(structure: Structure, longest: tuple[int | None, int | None]) -> dict[str, int]:
    """Returns max_length of both stacks: what the table of positions and the module allow."""
    lengths = {}
    for stack, most in zip(("encoder", "decoder"), longest, strict=True):
        lengths[stack] = structure.rows.get(stack) or most or GROWING
    fields = {"max_length": lengths["encoder"]}
    return fields if lengths["decoder"] == lengths["encoder"] else fields | {"decoder_max_length": lengths["decoder"]}


def _share_embeddings(structure: Structure, fields: Mapping[str, Any]) -> bool:
    """Gives both sides' embeddings the shared name if they are one.

    Raises:
      Unknown: they are, and logits are of other ids.
    """
    leaves = structure.leaves
    source, target = (leaves.get(f"{side}_embedding/embedding") for side in ("source", "target"))
    if source is None or target is None or not np.array_equal(source, target):
        return False
    if fields["source_vocab_size"] != fields["target_vocab_size"]:
        raise Unknown(
            structure.places["target_vocab_size"],
            f"one table of {fields['source_vocab_size']} embeddings for source and target, and logits of "
            f"{fields['target_vocab_size']} ids: a shared table needs a logit for each id",
        )
    del leaves["source_embedding/embedding"]
    leaves["shared_embedding/embedding"] = leaves.pop("target_embedding/embedding")
    return True
