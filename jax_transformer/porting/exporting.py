"""Export models: by a dialect's table, or by a map of names.

export_checkpoint(model, "back.pt")
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jax_transformer.config.validation import ConfigError
from jax_transformer.mapping.maps import NameMap
from jax_transformer.porting import hugging_face
from jax_transformer.porting.checkpoint import settings_text
from jax_transformer.porting.dialects import PROGRAM_FIELDS, Dialect, all_dialects, get_dialect
from jax_transformer.porting.formats import writer_of
from jax_transformer.porting.names_of_dialects import NAME as MAP
from jax_transformer.porting.names_of_dialects import dialect_of_map, map_of_origin, read_map
from jax_transformer.porting.one_level import shown, values_of
from jax_transformer.porting.optimizers.port import directory_writer, file_writer
from jax_transformer.porting.state_dicts import computes_position_table, deferred_state_dict, make_arrays
from jax_transformer.runtime.directories import check_free
from jax_transformer.runtime.trees import flatten
from jax_transformer.storage.deferred import Deferred
from jax_transformer.storage.model_directory import Model
from jax_transformer.storage.tensor_files import SUFFIXES, TORCH_SUFFIXES, write_tensors
from jax_transformer.storage.tensors import PortingError

FileWriter = Callable[[str | os.PathLike[str], Mapping[str, Any], str | None], Any]
"""Writes named arrays to a file, and a text with them, as `write_tensors` does."""


def export_checkpoint(
    model: Model,
    path: str | os.PathLike[str],
    dialect: str | None = None,
    *,
    names: NameMap | str | os.PathLike[str] | None = None,
    with_optimizer: bool = False,
    consume: bool = False,
) -> None:
    """Exports a model's parameters as PyTorch tensors, in the order and under the names they were imported with.

    A position table that the dialect's programs compute for themselves is left out; so is one that the model was given
    instead.

    Args:
      model: the model.
      path: a file ending in .safetensors (which orders its tensors itself), .pt, .pth or .bin; any other path is a
        directory, which transformers reads, or the format of the dialect's own program, for dialects that have one.
      dialect: the dialect of the names. None: that of the checkpoint that the model was imported from, or its map.
      names: a map of names, or its YAML file, in place of a dialect.
      with_optimizer: also write the model's training state: into a torch file as the checkpoint had it, or into a
        directory as transformers' Trainer has it.
      consume: free the model's parameters on the way, so that little more memory is needed than they take. The model
        has none afterwards.

    Raises:
      PortingError: no dialect is given and the model wasn't imported; the config or the parameters have no place in the
        dialect; there is no training state, or no place for one; the path can't be written.

    Example:
      >>> import torch
      >>> from jax_transformer import import_checkpoint
      >>> from torch_reference.harvard import HarvardTransformer
      >>> module = HarvardTransformer(source_vocab_size=9, target_vocab_size=9, d_model=8, num_heads=2, d_ff=8,
      ...                             num_encoder_layers=1, num_decoder_layers=1, max_length=16)
      >>> model = import_checkpoint(module.state_dict(), "harvard", num_heads=2, source_pad_id=0, target_pad_id=0)
      >>> export_checkpoint(model, "back.pt")
      >>> _ = module.load_state_dict(torch.load("back.pt", weights_only=True))
    """
    if names is not None and dialect is not None:
        raise PortingError(f"expected a dialect or a map of names; received both, {dialect!r} and a map")
    origin = model.origin or {}
    name = dialect or origin.get("dialect")
    if with_optimizer and (names is not None or name != origin.get("dialect")):
        received = "a map" if names is not None else f"dialect {name}"
        raise PortingError(
            "a training state is written under the names that it was imported with, of dialect "
            f"{origin.get('dialect')}; received {received}: leave it out, or the training state"
        )
    to_file = os.fspath(path).endswith(SUFFIXES)
    write = file_writer(model, path) if with_optimizer and to_file else write_tensors
    write_more = directory_writer(model) if with_optimizer and not to_file else None
    if names is not None or name == MAP:
        export_by_map(model, path, None if names is None else read_map(names), write=write, consume=consume)
        return
    if name is None:
        raise PortingError(
            "this model was not imported from a checkpoint, so a map of names or a dialect must be given: one of "
            f"{', '.join(all_dialects())}"
        )
    write_format = writer_of(name, path)
    if write_format is not None:
        _export_format(model, path, get_dialect(name), write_format, consume=consume)
    elif to_file:
        _export_file(model, path, get_dialect(name), write=write, consume=consume)
    else:
        export_directory(model, path, get_dialect(name), write_more=write_more, consume=consume)


def export_directory(
    model: Model,
    path: str | os.PathLike[str],
    table: Dialect,
    *,
    write_more: Callable[[Path], None] | None = None,
    consume: bool = False,
) -> None:
    """Exports a model as a directory that transformers reads.

    Args:
      model: the model.
      path: the directory, which doesn't exist yet.
      table: a dialect of transformers.
      write_more: writes other files into the directory.
      consume: as of `export_checkpoint`.

    Raises:
      PortingError: the dialect has no directories; a directory can't say all that the model computes with; the path
        can't be written.
    """
    file = hugging_face.family_file(table)
    check_free(path, PortingError)
    table.check_config(model.config)
    problems = directory_problems(model, table)
    if problems:
        what = f"dialect {table.name}: a directory doesn't hold all that this model computes with"
        raise PortingError(what, problems)
    origin = _origin_in(model, table)
    order = [*origin.get("tensors", {}), *origin.get("ignored", [])]
    if not model.config.share_embeddings and "hugging_face" not in origin:  # a directory comes back as it was
        order += [name for name in file.always_there if name not in order]
    state, kept = _state_dict(model, table, order, consume=consume), _kept(model, origin)
    tensors = _named({**state, **kept}, order, origin)
    hugging_face.write_directory(path, table, model, tensors, write_more)


def _export_format(
    model: Model,
    path: str | os.PathLike[str],
    table: Dialect,
    write_format: Callable[[Model, Mapping[str, Any], Path], None],
    *,
    consume: bool,
) -> None:
    """Exports a model in the format of another program."""
    origin = _origin_in(model, table)
    table.check_config(model.config)
    _check_program_fields(model, table, origin.get("config", {}))
    order = list(origin.get("tensors", {}))
    tensors = _state_dict(model, table, order, consume=consume)
    write_format(model, {name: tensors[name] for name in _ordered(tensors, order)}, Path(path))


def _export_file(
    model: Model, path: str | os.PathLike[str], table: Dialect, *, write: FileWriter, consume: bool
) -> None:
    """Exports a model as a file under a dialect's names, with the tensors that its import left out."""
    origin = _origin_in(model, table)
    table.check_config(model.config)
    _check_program_fields(model, table, origin.get("config", {}))
    order = [*origin.get("tensors", {}), *origin.get("ignored", [])]
    deferred = _state_dict(model, table, order, consume=consume)
    tensors: dict[str, Any] = make_arrays(deferred) if os.fspath(path).endswith(TORCH_SUFFIXES) else deferred
    write(path, _named({**tensors, **_kept(model, origin)}, order, origin), settings_text(model, table))


def _origin_in(model: Model, table: Dialect) -> Mapping[str, Any]:
    """Returns the origin of a model that goes back to the dialect that it came from; empty otherwise."""
    origin = model.origin or {}
    return origin if origin.get("dialect") == table.name else {}


def _kept(model: Model, origin: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the tensors that the import left out and kept, for a model that goes back to its dialect."""
    return model.ignored_tensors if origin and model.ignored_tensors is not None else {}


def _state_dict(model: Model, table: Dialect, order: Collection[str], *, consume: bool) -> dict[str, Deferred]:
    """Returns the tensors of a model, made on access. With `consume` nothing else holds their parameters."""
    leaves = flatten(model.params)
    if consume:
        model.params.clear()
    deferred = deferred_state_dict(model.config, leaves, table, order)
    leaves.clear()
    return deferred


def _named(tensors: Mapping[str, Any], order: Sequence[str], origin: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the tensors in this order, under the names that they had with the prefix of their checkpoint."""
    prefix, added = origin.get("prefix", ""), origin.get("added", "")
    return {prefix + name.removeprefix(added): tensors[name] for name in _ordered(tensors, order)}


def _ordered(tensors: Mapping[str, Any], order: Sequence[str]) -> list[str]:
    """Returns the names of tensors, the known ones in this order before others."""
    return [name for name in dict.fromkeys([*order, *tensors]) if name in tensors]


def _check_program_fields(model: Model, table: Dialect, imported: Mapping[str, Any]) -> None:
    """Raises PortingError where the dialect's program, or the one that the checkpoint came from, would compute other
    numbers."""
    fixed = {
        name: value for name, value in table.defaults.items() if name in PROGRAM_FIELDS and name not in table.choices
    }
    expected = {**fixed, **imported}
    problems = [
        f"{name} must be {value!r}, as in "
        f"{'the checkpoint that was imported' if name in imported else 'its programs'}; received "
        f"{getattr(model.config, name)!r}"
        for name, value in expected.items()
        if getattr(model.config, name) != value
    ]
    if problems:
        raise PortingError(f"dialect {table.name}: a checkpoint doesn't hold these fields of the config", problems)


def directory_problems(model: Model, table: Dialect) -> list[str]:
    """Lists the fields that a directory of this dialect can't express, so that transformers would compute other
    numbers; empty if it computes the same. The dialect doesn't refuse the model's config."""
    file = hugging_face.family_file(table)
    try:
        stated = hugging_face.config_fields(file, file.write(model.config))
    except ConfigError as error:  # rates of dropout that differ between the stacks
        return [str(error)]
    fixed = {name: value for name, value in table.defaults.items() if name in PROGRAM_FIELDS and name not in stated}
    problems = [
        f"{name} must be {value!r}, as in its programs; received {getattr(model.config, name)!r}"
        for name, value in fixed.items()
        if getattr(model.config, name) != value
    ]
    if table.leaves_out_positions(model.config) and not computes_position_table(model, table):
        problems.append("constants/encoder_positions and decoder_positions must be the ones that its programs compute")
    return problems


# --- by a map of names


def export_by_map(
    model: Model,
    path: str | os.PathLike[str],
    names: NameMap | None = None,
    *,
    write: FileWriter = write_tensors,
    consume: bool = False,
) -> None:
    """Exports a model under the names of a map. By the map that it was imported by, it writes the same file again:
    the prefix of all names, their order, and the tensors that the map ignores.

    Args:
      model: the model.
      path: a file ending in .safetensors, .pt, .pth or .bin.
      names: the map; None: that by which the model was imported.
      write: writes the file.
      consume: as of `export_checkpoint`.

    Raises:
      PortingError: the parameters have no place in the map; fields of the config that the file doesn't hold have
        changed; the path can't be written.
    """
    if not os.fspath(path).endswith(SUFFIXES):
        raise PortingError(f"{path}: a map of names writes a file: expected a name that ends in {', '.join(SUFFIXES)}")
    origin, own = model.origin or {}, map_of_origin(model.origin)
    names = own if names is None else names
    if names is None:
        raise PortingError("this model was not imported by a map of names: expected a map")
    is_return = names == own
    ignored = _ignored_tensors(model) if is_return else {}
    if is_return:
        _check_unchanged(model, origin["config"])
    order = list(origin["tensors"]) if is_return else []
    placed = names.under(origin["prefix"]) if is_return else names
    table = dialect_of_map(placed, placed.rules())
    deferred = _state_dict(model, table, order, consume=consume)
    in_memory = os.fspath(path).endswith(TORCH_SUFFIXES)
    found: dict[str, Any] = {**(make_arrays(deferred) if in_memory else deferred), **ignored}
    tensors = {name: found[name] for name in _ordered(found, order)}
    write(path, tensors, settings_text(model, table, names.text()))


def _ignored_tensors(model: Model) -> dict[str, np.ndarray]:
    """Returns the tensors to write back. Raises PortingError if the model has lost them."""
    kept, expected = model.ignored_tensors or {}, (model.origin or {}).get("ignored", [])
    lost = [name for name in expected if name not in kept]
    if lost:
        raise PortingError(f"expected the model to keep what its map ignores; ignored_tensors lacks {', '.join(lost)}")
    return {name: np.asarray(kept[name]) for name in expected}


def _check_unchanged(model: Model, imported: Mapping[str, Any]) -> None:
    """Raises PortingError where the program that the checkpoint came from would compute other numbers."""
    problems = [
        f"{name} must be {shown(value)}, as in the checkpoint that was imported; "
        f"received {shown(values_of(model.config, name))}"
        for name, value in imported.items()
        if values_of(model.config, name) != value
    ]
    if problems:
        raise PortingError("a checkpoint doesn't hold these fields of the config", problems)
