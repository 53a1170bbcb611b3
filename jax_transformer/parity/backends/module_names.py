"""The names of a user's module: which of its tensors are which of our parameters, by a dialect or a map, and drafts of
such a map."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np

from jax_transformer.comparison.capture import watch
from jax_transformer.config.model import TransformerConfig
from jax_transformer.mapping.maps import NameMap
from jax_transformer.parity.backends.calling import find_calling
from jax_transformer.parity.backends.modules import shapes_of_trace
from jax_transformer.parity.backends.side import layer_by_layer
from jax_transformer.parity.names.drafts import Names
from jax_transformer.parity.problems import own_problem
from jax_transformer.porting.activations import activation_names
from jax_transformer.porting.dialects import Dialect
from jax_transformer.runtime.trees import flatten
from jax_transformer.storage.model_directory import Model

if TYPE_CHECKING:
    from torch import nn


def names_of(dialect: Dialect, config: TransformerConfig, prefix: str = "") -> NameMap:
    """Returns the activations of a dialect's programs that a module computes; none where a tensor holds all layers, as
    a map may say, so that layers have no modules.

    Args:
      prefix: precedes all names, as in a module that holds such a program.
    """
    rules = dialect.rules(config)
    if any("/layers/" in path and not rule.stacked for rule in rules for path in rule.paths):
        return NameMap()
    return NameMap({prefix + theirs: ours for theirs, ours in activation_names(config, rules).items()})


def layers_of(dialect: Dialect, config: TransformerConfig, prefix: str = "") -> dict[str, str]:
    """Returns the captured names of what a known dialect's layers read and return, as modules → our names."""
    found: dict[str, str] = {}
    for stack, layers in (("encoder", config.encoder.num_layers), ("decoder", config.decoder.num_layers)):
        names = [
            rule.names[0]
            for rule in dialect.rules(config)
            if rule.paths[0].startswith(f"{stack}/layers/") and "{i}" in rule.names[0]
        ]
        paths = {name[: name.index("{i}") + 3] for name in names}
        if len(paths) == 1:
            (path,) = paths
            found[f"{prefix}{path.replace('{i}', '0')}@input"] = f"{stack}.embedding"
            found |= {f"{prefix}{path.replace('{i}', str(i))}": f"{stack}.layers.{i}.output" for i in range(layers)}
    return found


def prefix_of(dialect: Dialect, tensors: Collection[str]) -> str:
    """Returns what precedes all of a dialect's names among these; "" for nothing, or if they aren't a dialect's."""
    prefixes = {name[: dot.end()] for name in tensors for dot in re.finditer(r"\.", name)}
    for prefix in ("", *sorted(prefixes, key=len)):
        if dialect.recognises([name.removeprefix(prefix) for name in tensors if name.startswith(prefix)]):
            return prefix
    return ""


def names_for_draft(module: nn.Module, name: str, model: Model) -> tuple[Names, Names]:
    """Returns the shapes of a module's activations and parameters on one batch, and those of ours.

    Args:
      name: the module's name in messages.

    Raises:
      ParityError: the module can't be run on it.
    """
    import torch

    problem = own_problem(model.config, model.params)
    source_ids, decoder_input_ids = (torch.from_numpy(ids.astype(np.int64)) for ids in problem.ids)
    calling = find_calling(module, name, model.config, source_ids, decoder_input_ids)
    seen = watch(module, *calling.arguments(source_ids, decoder_input_ids)).tensors
    theirs = Names(
        {name: tuple(tensor.shape) for name, tensor in seen.items()},
        {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()},
    )
    parameters = layer_by_layer({path: np.asarray(leaf) for path, leaf in flatten(model.params).items()})
    activations = shapes_of_trace(model.config, tuple(source_ids.shape), tuple(decoder_input_ids.shape))
    return theirs, Names(activations, {path: leaf.shape for path, leaf in parameters.items()})
