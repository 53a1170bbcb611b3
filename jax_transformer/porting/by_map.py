"""Import and export checkpoints by a map of names, for programs of no dialect."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jax_transformer.config.decoding import GenerationConfig
from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.model_file import load_model_config
from jax_transformer.config.positions import Sinusoidal
from jax_transformer.config.stored import config_from_plain
from jax_transformer.config.validation import ConfigError
from jax_transformer.mapping.maps import NameMap
from jax_transformer.mapping.rules import count, matcher
from jax_transformer.model.positions import sinusoid_table
from jax_transformer.porting.checkpoint import Checkpoint, leaving_out, open_checkpoint
from jax_transformer.porting.exported_settings import ExportedSettings, parse_settings, settings_text
from jax_transformer.porting.hints import UNTOLD, field_names, in_our_words, read_position_table
from jax_transformer.porting.names_of_dialects import NAME, dialect_of_map, map_of_origin
from jax_transformer.porting.one_level import shown, values_of
from jax_transformer.porting.state_dicts import deferred_params, deferred_state_dict, make_arrays
from jax_transformer.runtime.trees import flatten
from jax_transformer.storage.model_directory import Model
from jax_transformer.storage.safetensors_writer import SAFETENSORS_DTYPES
from jax_transformer.storage.tensor_files import SUFFIXES, TORCH_SUFFIXES, write_tensors
from jax_transformer.storage.tensor_mappings import Relocated
from jax_transformer.storage.tensors import PortingError, Tensors

FileWriter = Callable[[str | os.PathLike[str], Mapping[str, Any], str | None], Any]
"""Writes named arrays to a file, and a text beside them, as `write_tensors` does."""
Source = str | os.PathLike[str] | Mapping[str, Any]


def read_map(names: NameMap | str | os.PathLike[str]) -> NameMap:
    """Returns a map, or that of a file. Raises PortingError where it can't be read, or names no parameters."""
    found = names if isinstance(names, NameMap) else NameMap.read(names)
    if not found.parameters:
        what = "the map" if isinstance(names, NameMap) else os.fspath(names)
        raise PortingError(f"{what}: expected parameters, their names and ours; received none")
    return found


def open_by_map(source: Source, names: NameMap) -> Checkpoint:
    """Reads the tensors of a file or a state_dict under their own names; if a file has several state_dicts, the one
    whose names the map has, with those of the others that it has too.

    Raises:
      PortingError: the file can't be read; it is a directory.
    """
    if not isinstance(source, Mapping) and Path(source).is_dir():
        raise PortingError(f"{source}: a map reads a file of tensors; received a directory: name the file in it")
    return open_checkpoint(source, names.knows, names=names.parameters)


def import_by_map(
    source: Source,
    names: NameMap,
    config: TransformerConfig | str | os.PathLike[str] | None,
    hints: Mapping[str, Any],
) -> Model:
    """Imports a checkpoint with Deferred parameters: it checks all now, and makes each on access.

    Args:
      source: a file or a state_dict.
      names: the map.
      config: the model's config, or a file with it; None: that of a file that was exported by a map. Vocabularies of
        size 0 are as large as the embeddings.
      hints: fields of TransformerConfig and GenerationConfig that replace the config's; `position_table`.

    Raises:
      PortingError: the file can't be read; there is no config; hints are unknown or contradictory; anything doesn't
        fit: tensors, entries of the map, patterns to ignore. Reports all problems of one kind together.
    """
    checkpoint = open_by_map(source, names)
    what = "the state_dict" if isinstance(source, Mapping) else os.fspath(source)
    settings = _settings(checkpoint, what) if config is None else None
    tensors, prefix = checkpoint.tensors, names.prefix_in(checkpoint.tensors)
    placed = names.under(prefix)
    hints = dict(hints)
    positions = None if (given := hints.pop("position_table", None)) is None else read_position_table(given)
    fields, of_generation = _fields(placed, hints)
    if positions is not None:
        fields.setdefault("max_length", len(positions))
    config = _config(config, fields, settings, placed, tensors)
    if positions is not None and not computed_positions(placed, config):
        raise PortingError("position_table: the config has no such tables, or the map names them; leave it out")
    generation = _generation(({} if settings is None else settings.generation) | of_generation, config)
    table = dialect_of_map(placed, lambda config: computed_positions(placed, config))
    mapped = matcher(name for rule in table.rules(config) for name in rule.all_names)
    ignored = [name for name in placed.ignores(tensors) if not mapped.fullmatch(name)]
    problems = _ignore_problems(names, prefix, tensors, ignored)
    try:
        params = deferred_params(config, leaving_out(tensors, ignored), table, positions)
    except PortingError as error:
        problems = [*(error.problems or [str(error)]), *problems]
    if problems:
        raise PortingError(f"{what} does not fit the map of names and the config, {count(problems)}", problems)
    origin: dict[str, Any] = {
        "dialect": NAME,
        "names": names.text(),
        "prefix": prefix,
        "tensors": {name: str(tensors[name].dtype) for name in tensors},
        "config": {name: values_of(config, name) for name in UNTOLD},
    }
    if checkpoint.is_in_order:
        origin["is_in_order"] = True
    if ignored:
        origin["ignored"] = ignored
    kept = Relocated({name: (tensors, name) for name in ignored}) if ignored else None
    return Model(config, params, None, None, generation, origin, ignored_tensors=kept)


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
    table = dialect_of_map(placed, lambda config: computed_positions(placed, config))
    leaves = flatten(model.params)
    if consume:
        model.params.clear()
    deferred = deferred_state_dict(model.config, leaves, table, order)
    leaves.clear()
    in_memory = os.fspath(path).endswith(TORCH_SUFFIXES)
    found: dict[str, Any] = {**(make_arrays(deferred) if in_memory else deferred), **ignored}
    tensors = {name: found[name] for name in dict.fromkeys([*order, *found]) if name in found}
    write(path, tensors, settings_text(model, table, names.text()))


def computed_positions(names: NameMap, config: TransformerConfig) -> dict[str, np.ndarray]:
    """Returns the position tables that no entry of the map leads to, by path, in float32 as programs compute them."""
    named = {path for rule in names.rules() for path in rule.paths}
    stacks = {"constants/encoder_positions": config.encoder, "constants/decoder_positions": config.decoder}
    return {
        path: sinusoid_table(stack).astype(np.float32)
        for path, stack in stacks.items()
        if isinstance(stack.positions, Sinusoidal) and path not in named
    }


# --- the config


def _settings(checkpoint: Checkpoint, what: str) -> ExportedSettings | None:
    """Returns what a file that was exported by a map says of its model. (A dialect's file leaves out fields.)"""
    settings = None if checkpoint.settings is None else parse_settings(checkpoint.settings, what)
    return settings if settings is not None and settings.dialect == NAME else None


def _fields(names: NameMap, hints: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Separates the hints: fields of TransformerConfig and those of GenerationConfig."""
    fields = in_our_words(dialect_of_map(names, lambda config: {}), hints)
    return fields, {name: fields.pop(name) for name in field_names(GenerationConfig) & fields.keys()}


def _generation(fields: Mapping[str, Any], config: TransformerConfig) -> GenerationConfig:
    try:
        generation = GenerationConfig(**fields)
    except ConfigError as error:
        raise PortingError(f"hints beside a map of names: {error}") from None
    outside = generation.ids_outside(config.target_vocab_size)
    if outside:
        raise PortingError("hints beside a map of names", outside)
    return generation


def _config(
    given: TransformerConfig | str | os.PathLike[str] | None,
    fields: dict[str, Any],
    settings: ExportedSettings | None,
    names: NameMap,
    tensors: Tensors,
) -> TransformerConfig:
    """Returns the config with the hints' fields, and with the vocabularies' sizes where it doesn't know them."""
    if given is None and settings is None:
        raise PortingError(
            "a map of names doesn't say what the model computes: expected its config beside the map (--config FILE)"
        )
    try:
        if given is None and settings is not None and settings.parts is None:
            return TransformerConfig.from_flat({**settings.config, **fields})
        if given is None and settings is not None and settings.parts is not None:
            config = config_from_plain(settings.parts)
        else:
            config = given if isinstance(given, TransformerConfig) else load_model_config(str(given))
        config = dataclasses.replace(config, **fields)
        unknown: dict[str, Any] = {
            name: _rows(config, path, names, tensors)
            for name, path in (("source_vocab_size", "source_embedding"), ("target_vocab_size", "target_embedding"))
            if getattr(config, name) == 0
        }
        return dataclasses.replace(config, **unknown)
    except ConfigError as error:
        raise PortingError(f"config: {error}") from None


def _rows(config: TransformerConfig, embedding: str, names: NameMap, tensors: Tensors) -> int:
    """Returns the number of rows of an embedding, as its tensor has them; 0 if it isn't there."""
    path = f"{'shared_embedding' if config.share_embeddings else embedding}/embedding"
    rule = next((rule for rule in names.rules() if path in rule.paths), None)
    name = None if rule is None else next((name for name in rule.names if name in tensors), None)
    if rule is None or name is None:
        return 0
    groups = (("V",), ("D",)) if rule.axes is None else rule.axes.torch
    rows = groups[0] if rule.axes is None else rule.axes.jax[0]
    shape = tensors[name].shape
    return int(shape[groups.index(rows)]) if rows in groups and len(shape) == len(groups) else 0


# --- tensors that the map ignores


def _ignore_problems(names: NameMap, prefix: str, tensors: Tensors, ignored: Collection[str]) -> list[str]:
    """Returns patterns that match nothing, and tensors that can't be kept."""
    problems = [
        f"unused pattern under ignore: no tensor without an entry matches {pattern}"
        for pattern in names.ignored
        if not any(map(matcher([pattern, prefix + pattern]).fullmatch, ignored))
    ]
    return problems + [
        f"tensor {name}: expected a dtype of {', '.join(SAFETENSORS_DTYPES)}; received {tensors[name].dtype}"
        for name in ignored
        if tensors[name].dtype.name not in SAFETENSORS_DTYPES
    ]


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
