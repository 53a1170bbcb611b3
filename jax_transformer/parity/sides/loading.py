"""Load the model of a comparison: a model, its directory, a checkpoint, or the weights of a user's module."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jax_transformer.comparison.gates.arrays import ParityError
from jax_transformer.comparison.sides import name_of

if TYPE_CHECKING:
    from jax_transformer.storage.model_directory import Model


def load(source: Any, dialect: str | None, hints: Mapping[str, Any]) -> Model:
    """Returns the Model itself, reads a model directory or a checkpoint, or ports a module's weights.

    Raises:
      ParityError: hints for a model that needs none.
      ModelError, PortingError: it can't be read.
    """
    from jax_transformer.porting.importing import import_checkpoint
    from jax_transformer.storage.model_directory import Model, load_model

    is_path, is_directory = isinstance(source, str | os.PathLike), _is_directory_of_a_model(source)
    if is_directory or isinstance(source, Model):
        if hints:
            raise ParityError(f"{name_of(source)} is a model and has its config; expected no {', '.join(hints)}")
        return load_model(source) if is_directory else source
    if is_path:
        return import_checkpoint(source, dialect, **hints)
    return _import_module(source, dialect, hints)


def with_own_table(
    model: Model, source: Any, dialect: str | None, hints: Mapping[str, Any], module: Any
) -> tuple[Model, str]:
    """Returns a checkpoint's model with the position table that a module holds and the checkpoint lacks, and a note of
    it; "" where nothing changes.

    Args:
      model: what `load` returned for the three arguments after it.
      module: the user's module, if there is one.
    """
    from jax_transformer.storage.model_directory import Model

    is_checkpoint = not isinstance(source, Model) and not _is_directory_of_a_model(source)
    if module is None or not is_checkpoint or {"position_table", "max_length"} & {*hints}:
        return model, ""
    from jax_transformer.parity.backends.position_tables import own_table

    table = own_table(module, model)
    if table is None:
        return model, ""
    own = load(source, dialect, {**hints, "position_table": table})
    return own, f"the reference's own, {list(table.shape)} in {table.dtype}"


def _is_directory_of_a_model(source: Any) -> bool:
    from jax_transformer.storage.hub import is_model_on_hub
    from jax_transformer.storage.model_directory import is_model_directory

    is_path = isinstance(source, str | os.PathLike)
    return is_path and (
        any(is_model_directory(path) for path in (source, Path(source) / "model")) or is_model_on_hub(source)
    )


def _import_module(module: Any, dialect: str | None, hints: Mapping[str, Any]) -> Model:
    """Ports a module's weights, without the buffers and the second copies of tied tensors that the dialect lacks; the
    module keeps these itself. A model of transformers has a config that tells what hints don't."""
    from jax_transformer.comparison.torch_tensors import equal_tensor
    from jax_transformer.parity.backends.families import is_of_transformers
    from jax_transformer.porting.hugging_face import read_configs
    from jax_transformer.porting.importing import import_checkpoint
    from jax_transformer.storage.tensors import PortingError

    held = module.state_dict()
    if dialect is None and is_of_transformers(module):
        configs = module.config, getattr(module, "generation_config", None)
        dialect, told = read_configs(*({} if one is None else one.to_dict() for one in configs))
        hints = {**told, **hints}
    try:
        return import_checkpoint(held, dialect, **hints)
    except PortingError as error:
        unexpected = [re.match(r"unexpected tensor (\S+) ", problem) for problem in error.problems]
        ends = tuple(match[1] for match in unexpected if match)  # without the prefix of all names, if there is one
        others = [name for name in held if ends and name.endswith(ends)]
        named, buffers = held.keys() - {*others}, dict(module.named_buffers(remove_duplicate=False))
        spare = {name for name in others if name in buffers or equal_tensor(held, name, named) is not None}
        if not spare:
            raise
    return import_checkpoint({name: tensor for name, tensor in held.items() if name not in spare}, dialect, **hints)
