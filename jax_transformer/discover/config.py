"""Build a TransformerConfig from a structure's options."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.stored import config_from_plain
from jax_transformer.discover.embeddings import GROWING
from jax_transformer.discover.findings import Structure
from jax_transformer.discover.problems import Unknown
from jax_transformer.discover.residuals import EXACT

STACKS = ("encoder", "decoder")
ATTENTIONS = ("encoder.self_attention", "decoder.self_attention", "decoder.cross_attention")


def make_config(structure: Structure, longest: tuple[int | None, int | None] = (None, None)) -> TransformerConfig:
    """Returns the config of a structure.

    Args:
      longest: the maximum length of a source and of a target that the module accepts. None: unlimited.

    Raises:
      Unknown: layers of a stack differ in an option that a config has once per stack.
      ConfigError: options contradict one another.
    """
    options = _rounded_alike(structure.fields)
    for stack in STACKS:
        options |= _stack_options(structure, stack)
    for place in ATTENTIONS:
        _leave_out_usual_sizes(options, place)
    _share_layers(structure, options)
    for stack, most in zip(STACKS, longest, strict=True):
        options[f"{stack}.max_length"] = structure.rows.get(stack) or most or GROWING
    if _share_embeddings(structure, options):
        options["share_embeddings"] = True
    return config_from_plain(_nested(options))


def _rounded_alike(options: dict[str, Any]) -> dict[str, Any]:
    """Returns options with measurements that agree up to rounding replaced by the first of them."""
    found: dict[str, float] = {}
    alike = {}
    for path, value in options.items():
        if isinstance(value, float):
            name = path.replace("cross_attention", "self_attention").partition(".")[2]
            first = found.setdefault(name, value)
            value = first if np.isclose(first, value, rtol=EXACT, atol=0) else value
        alike[path] = value
    return alike


def _stack_options(structure: Structure, stack: str) -> dict[str, Any]:
    """Returns the options of a stack that follow from several of its leaves or factors together."""
    options = structure.fields
    found: dict[str, Any] = {f"{stack}.dropout.rate": 0.0}
    found[f"{stack}.embedding_scale"] = _embedding_scale(structure.factors[stack], options[f"{stack}.d_model"])
    if _shares_norms(structure, stack):
        found[f"{stack}.share_norms"] = True
    feed_forward = f"{stack}.feed_forward"
    if f"{feed_forward}.bias" not in options:
        found[feed_forward] = None
    elif options[f"{feed_forward}.output_bias"] == options[f"{feed_forward}.bias"]:
        found[f"{feed_forward}.output_bias"] = None
    if f"{stack}.norm.kind" not in options:
        found[f"{stack}.norm"] = None
    if options[f"{stack}.positions.kind"] == "none":
        found[f"{stack}.positions"] = None
    return found | _scales(structure, stack)


def _nested(options: dict[str, Any]) -> dict[str, Any]:
    """Returns options by path as mappings in mappings; one that is None has no options of its own."""
    nested: dict[str, Any] = {}
    for path, value in options.items():
        *parts, name = path.split(".")
        if any(options.get(".".join(parts[: count + 1]), "") is None for count in range(len(parts))):
            continue
        inner = nested
        for part in parts:
            inner = inner.setdefault(part, {})
        inner[name] = value
    return nested


def _leave_out_usual_sizes(options: dict[str, Any], place: str) -> None:
    """Sets head sizes of an attention to None where they equal the default."""
    heads, groups, width, values = (
        options[f"{place}.{name}"] for name in ("num_heads", "num_kv_heads", "head_dim", "value_dim")
    )
    usual = {
        "num_kv_heads": groups == heads,
        "head_dim": heads * width == options["encoder.d_model"],
        "value_dim": values == width,
    }
    options |= {f"{place}.{name}": None for name, is_usual in usual.items() if is_usual}


def _share_layers(structure: Structure, options: dict[str, Any]) -> None:
    """Names leaves that all layers of a stack share as shared. A stack of one layer follows the other stack."""
    several = [stack for stack in STACKS if options[f"{stack}.num_layers"] > 1]
    shared = [stack for stack in several if _layers_are_one(structure, stack)]
    for stack in shared:
        for path in [path for path in structure.leaves if path.startswith(f"{stack}/layers/")]:
            if not path.endswith("[0]"):
                del structure.leaves[path]
    if shared:
        options |= {f"{stack}.share_layers": stack in shared or stack not in several for stack in STACKS}


def _layers_are_one(structure: Structure, stack: str) -> bool:
    """Returns whether all layers of a stack consist of the same elements."""
    layers = {path: elements for path, elements in structure.leaves.items() if path.startswith(f"{stack}/layers/")}
    return all(
        np.array_equal(elements, layers[f"{path.partition('[')[0]}[0]"])
        for path, elements in layers.items()
    )  # fmt: skip


def _shares_norms(structure: Structure, stack: str) -> bool:
    """Names the norms of a layer as shared if they are the same elements."""
    leaves = structure.leaves
    norms: dict[tuple[str, str], list[str]] = {}
    for path in leaves:
        match = re.fullmatch(
            rf"({stack}/layers/)(?:self_attention|cross_attention|feed_forward)_norm(/\w+\[\d+\])", path
        )
        if match:
            norms.setdefault((match[1], match[2]), []).append(path)
    several = [paths for paths in norms.values() if len(paths) > 1]
    if not several or not all(np.array_equal(leaves[paths[0]], leaves[one]) for paths in several for one in paths):
        return False
    for (before, after), paths in norms.items():
        leaves[f"{before}shared_norm{after}"] = leaves[paths[0]]
        for path in paths:
            del leaves[path]
    return True


def _scales(structure: Structure, stack: str) -> dict[str, Any]:
    """Returns the options of trained scales of a stack's stream and outputs.

    Raises:
      Unknown: no option expresses them.
    """
    by_kind = {(kind, name): found for (one, kind, name), found in structure.scaled.items() if one == stack}
    sizes = {key: max(found) for key, found in by_kind.items() if max(found)}
    places = {name: found[max(found)] for (_, name), found in by_kind.items() if max(found)}
    for (_, name), found in by_kind.items():
        if len(found) > 1:
            raise Unknown(places[name], "trained scales of residuals in some layers alone")
    residual = {name for kind, name in sizes if kind == "residual"}
    output = {name: size for (kind, name), size in sizes.items() if kind == "output"}
    everywhere = {name for _, name in by_kind}
    options: dict[str, Any] = {}
    if residual:
        if residual not in (everywhere, {"feed_forward"}):
            names = sorted(residual)
            raise Unknown(places[names[0]], f"trained scales of the stream at {', '.join(names)} alone")
        options[f"{stack}.residual.stream_scale"] = "all" if residual == everywhere else "feed_forward"
    if output:
        if set(output) != everywhere or len({size == 1 for size in output.values()}) > 1:
            names = sorted(output)
            raise Unknown(places[names[0]], f"trained scales of the outputs of {', '.join(names)} alone")
        options[f"{stack}.residual.output_scale"] = "scalar" if 1 in output.values() else "channel"
    return options


def _embedding_scale(factor: float, width: int) -> float | str:
    """Returns the factor of token embeddings: the root of d_model, 1, or another number."""
    if abs(factor - 1) < 1e-12:
        return 1.0
    return "sqrt_d_model" if abs(factor / float(np.sqrt(width)) - 1) < 1e-12 else factor


def _share_embeddings(structure: Structure, options: dict[str, Any]) -> bool:
    """Names both sides' embeddings as shared if they are the same elements.

    Raises:
      Unknown: they are shared, but the logits cover different ids.
    """
    leaves = structure.leaves
    source, target = (leaves.get(f"{side}_embedding/embedding") for side in ("source", "target"))
    if source is None or target is None or not np.array_equal(source, target):
        return False
    if options["source.vocab_size"] != options["target.vocab_size"]:
        raise Unknown(
            structure.places["target.vocab_size"],
            f"one table of {options['source.vocab_size']} embeddings for source and target, and logits of "
            f"{options['target.vocab_size']} ids: a shared table needs a logit for each id",
        )
    if options["source.trains_pad"] != options["target.trains_pad"]:
        options |= dict.fromkeys(("source.trains_pad", "target.trains_pad"), True)
        structure.notes.append("one side's embeddings give the pad's row no gradient; the model trains it from both")
    del leaves["source_embedding/embedding"]
    leaves["shared_embedding/embedding"] = leaves.pop("target_embedding/embedding")
    return True
