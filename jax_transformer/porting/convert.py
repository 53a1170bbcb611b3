"""Importing and exporting checkpoints: a dialect's table applied to files, state_dicts and models.

model = import_checkpoint("model.pt", "floydhub", num_heads=8, source_pad_id=1, target_pad_id=1)
export_checkpoint(model, "back.pt")

Programs of no dialect have a map of names in its place:

model = import_checkpoint("model.pt", names="names.yaml", config="config.yaml")
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np

from jax_transformer.config.decoding import GenerationConfig
from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.stored import config_from_plain
from jax_transformer.config.validation import ConfigError
from jax_transformer.mapping.maps import NameMap
from jax_transformer.mapping.rules import not_finite
from jax_transformer.porting import hugging_face
from jax_transformer.porting.by_map import export_by_map, import_by_map, read_map
from jax_transformer.porting.checkpoint import Checkpoint, leaving_out, open_checkpoint
from jax_transformer.porting.dialects import Dialect, all_dialects, candidates, detect, get_dialect
from jax_transformer.porting.dialects.tables import ASKS
from jax_transformer.porting.exported_settings import ExportedSettings, parse_settings, settings_text
from jax_transformer.porting.hints import (
    UNTOLD,
    field_names,
    in_our_words,
    make_config,
    problems_with_one_head,
    take_position_table,
)
from jax_transformer.porting.hugging_face import HuggingFaceModel
from jax_transformer.porting.names_of_dialects import NAME as MAP
from jax_transformer.porting.optimizers.port import directory_writer, file_writer
from jax_transformer.porting.state_dicts import (
    computes_position_table,
    deferred_params,
    deferred_state_dict,
    dialect_and_shapes,
    make_arrays,
)
from jax_transformer.runtime.directories import check_free
from jax_transformer.runtime.trees import flatten, map_leaves
from jax_transformer.storage.model_directory import Model
from jax_transformer.storage.tensor_files import SUFFIXES, TORCH_SUFFIXES, Relocated, write_tensors
from jax_transformer.storage.tensors import PortingError, Tensors


def import_checkpoint(
    source: str | os.PathLike[str] | Mapping[str, Any],
    dialect: str | None = None,
    *,
    names: NameMap | str | os.PathLike[str] | None = None,
    config: TransformerConfig | str | os.PathLike[str] | None = None,
    **hints: Any,
) -> Model:
    """Imports a model from a PyTorch checkpoint.

    Args:
      source: a file (.safetensors, .pt, .pth, .bin); a state_dict of torch tensors, NumPy or JAX arrays; a directory
        that Hugging Face's transformers wrote, or its name on the Hub, whose config.json says what the tensors don't.
      dialect: the dialect of the tensors' names. None: detected, if the names or config.json leave one possibility.
      names: a map of names, or its YAML file, for a program of no dialect.
      config: beside a map, the model's config, or a YAML file with its fields or with them under `model`. Its sizes of
        vocabularies may be 0: the embeddings have them.
      **hints: what a state_dict doesn't tell: fields of TransformerConfig and GenerationConfig, and `position_table`,
        an array [rows, D] or a file with one, in place of the table that is computed where a dialect's checkpoints hold
        none. Which are needed depends on the dialect; a message asks for those that are missing. Others (dropout_rate,
        norm_eps, …) are as in the published program unless given.

    Returns:
      A Model without tokenizers. Its parameters are NumPy arrays of the checkpoint's dtypes that share no memory with
        the source; its `origin` has the dialect, the prefix of all names, if any, the tensors' names, in order, with
        their dtypes, and what the tensors don't tell of the program's numbers; of a directory also its config.json and
        generation_config.json.

    Raises:
      PortingError: the file or the map can't be read; the dialect is unknown, or one of several; hints are missing,
        unknown or contradict the checkpoint; tensors do not fit. Reports all problems of one kind together.

    Example:
      >>> import torch
      >>> from torch_reference.harvard import HarvardTransformer
      >>> module = HarvardTransformer(source_vocab_size=9, target_vocab_size=9, d_model=8, num_heads=2, d_ff=8,
      ...                             num_encoder_layers=1, num_decoder_layers=1, max_length=16)
      >>> model = import_checkpoint(module.state_dict(), "harvard", num_heads=2, source_pad_id=0, target_pad_id=0)
      >>> model.config.norm_eps_outside, model.params["head"]["kernel"].shape
      (True, (8, 9))
    """
    model = read_checkpoint(source, dialect, hints, names=names, config=config)
    ignored = None if model.ignored_tensors is None else map_leaves(np.array, model.ignored_tensors)
    return dataclasses.replace(model, params=map_leaves(np.asarray, model.params), ignored_tensors=ignored)


def read_checkpoint(
    source: str | os.PathLike[str] | Mapping[str, Any],
    dialect: str | None,
    hints: dict[str, Any],
    *,
    names: NameMap | str | os.PathLike[str] | None = None,
    config: TransformerConfig | str | os.PathLike[str] | None = None,
) -> Model:
    """Imports a checkpoint with Deferred parameters: it checks all now, and makes each on access."""
    if names is not None:
        if dialect is not None:
            raise PortingError(f"expected a dialect or a map of names; received both, {dialect!r} and a map")
        return import_by_map(source, read_map(names), config, hints)
    if config is not None:
        raise PortingError("config: expected a map of names beside it; a dialect says what its programs compute")
    directory = None if isinstance(source, Mapping) else hugging_face.open_directory(source)
    if directory is not None:
        return _import(_read_directory(directory, source, dialect), hints)
    found = _read_tensors(source, dialect)
    if isinstance(found, NameMap):
        return import_by_map(source, found, None, hints)
    return _import(found, hints)


@dataclasses.dataclass(frozen=True)
class _Found:
    """Holds a checkpoint, and who says what its tensors don't."""

    checkpoint: Checkpoint
    table: Dialect
    settings: ExportedSettings | None = None
    """What a file that was exported here says of its model."""
    directory: HuggingFaceModel | None = None
    """The directory that holds it, with its config.json."""

    @cached_property
    def ignored(self) -> list[str]:
        """The names of tensors that the dialect leaves out."""
        return self.table.ignores(self.checkpoint.tensors)

    @cached_property
    def tensors(self) -> Tensors:
        """The other tensors."""
        return leaving_out(self.checkpoint.tensors, self.ignored) if self.ignored else self.checkpoint.tensors


def _read_directory(directory: HuggingFaceModel, source: Any, dialect: str | None) -> _Found:
    """Opens the tensors of a directory that transformers wrote."""
    name = directory.table.name
    if dialect not in (None, name):
        raise PortingError(f"{source}: dialect must be {name!r}, as its config.json says; received {dialect!r}")
    found = _read_tensors(directory.tensors, name)
    assert isinstance(found, _Found)
    return dataclasses.replace(found, directory=directory)


def _read_tensors(source: Any, dialect: str | None) -> _Found | NameMap:
    """Opens a file or a state_dict; returns the map of names instead if it was exported by one."""
    tables = all_dialects().values() if dialect is None else (get_dialect(dialect),)
    is_known = get_dialect(dialect).recognises if dialect is not None else lambda names: bool(candidates(names))
    checkpoint = open_checkpoint(source, is_known, {table.base_prefix for table in tables})
    settings = _settings(checkpoint, dialect, source)
    if settings is not None and settings.dialect == MAP:
        return NameMap.parse(settings.names, "the map in the file")
    dialect = settings.dialect if settings is not None else dialect
    table = get_dialect(dialect) if dialect is not None else detect(checkpoint.tensors.keys())
    return _Found(checkpoint, table, settings)


def _import(found: _Found, hints: dict[str, Any]) -> Model:
    """Makes the model of a checkpoint and hints.

    Raises:
      PortingError: as of `import_checkpoint`.
    """
    table, directory = found.table, found.directory
    positions = take_position_table(table, hints)
    hints = in_our_words(table, hints)
    if directory is not None:
        hints = _with_fields(directory, hints)
    of_generation = {name: hints.pop(name) for name in field_names(GenerationConfig) & hints.keys()}
    of_generation = ({} if found.settings is None else found.settings.generation) | of_generation
    given = dict(hints)
    told = _told(found, hints) | ({} if positions is None else {"max_length": len(positions)})
    hints = _hints_beside(found, told, hints)
    try:
        config = _with_dropout_of(found.settings, make_config(table, told, hints), given)
        generation = GenerationConfig(**{**table.generation, **of_generation})
    except ConfigError as error:
        raise PortingError(
            f"{table.name}: {error}", problems_with_one_head(table, told, hints, found.tensors, positions)
        ) from None
    outside = generation.ids_outside(config.target_vocab_size)
    if outside:
        raise PortingError(f"hints for dialect {table.name}", outside)
    params = deferred_params(config, found.tensors, table, positions)
    files = None if directory is None else dict(directory.tokenizer) or None
    return Model(
        config, params, None, None, generation, _origin(found, config),
        tokenizer_files=files, ignored_tensors=_kept(found),
    )  # fmt: skip


def _with_dropout_of(
    settings: ExportedSettings | None, config: TransformerConfig, hints: Mapping[str, Any]
) -> TransformerConfig:
    """Returns the config with each stack's own rates of dropout, where the settings of a file have them. Other options
    that differ between stacks, no dialect has."""
    if settings is None or settings.parts is None:
        return config
    stored = config_from_plain(settings.parts)
    encoder = dataclasses.replace(config.encoder, dropout=stored.encoder.dropout)
    decoder = dataclasses.replace(config.decoder, dropout=stored.decoder.dropout)
    rates = {name: value for name, value in hints.items() if name.endswith("dropout_rate")}
    return config.replace(encoder=encoder, decoder=decoder, **rates)


def _told(found: _Found, hints: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of the config that the tensors tell."""
    try:
        return found.table.read(found.tensors)
    except PortingError as error:
        asked = [f"{name}: {why}" for name, why in ASKS.items() if name not in hints]
        raise PortingError(
            f"this is no checkpoint of dialect {found.table.name}", error.problems + not_finite(found.tensors) + asked
        ) from None


def _hints_beside(found: _Found, told: Mapping[str, Any], hints: dict[str, Any]) -> dict[str, Any]:
    """Returns the hints with what the file's settings, or config.json, say; the tensors prevail over both.

    Raises:
      PortingError: a hint that the dialect needs is missing; config.json says other sizes than the tensors have.
    """
    table = found.table
    if found.settings is not None:
        settings = found.settings.config
        hints = {name: settings[name] for name in settings if name not in told or name in table.asks} | hints
    if found.directory is not None:
        _check_sizes(found.directory, told)
        hints |= {name: False for name in TIES if told.get(name) is False}  # what differs in the file isn't one
    missing = [f"{name}: {why}" for name, why in table.asks.items() if name not in told and name not in hints]
    if missing:
        raise PortingError(f"a state_dict of dialect {table.name} doesn't say everything; give by name", missing)
    return hints


def _origin(found: _Found, config: TransformerConfig) -> dict[str, Any]:
    """Returns what exporting the model again needs to know of the checkpoint."""
    table, checkpoint, directory = found.table, found.checkpoint, found.directory
    origin: dict[str, Any] = {
        "dialect": table.name,
        "prefix": checkpoint.prefix,
        "tensors": {name: str(found.tensors[name].dtype) for name in found.tensors},
        "config": {name: getattr(config, name) for name in UNTOLD if name in table.defaults},
    }
    if found.settings is not None:
        origin["has_settings"] = True
    if checkpoint.is_in_order:
        origin["is_in_order"] = True
    if checkpoint.added:
        origin["added"] = checkpoint.added
    if found.ignored:
        origin["ignored"] = found.ignored
    if directory is not None:
        origin["hugging_face"] = {"config": dict(directory.config), "generation_config": directory.generation}
    return origin


def _kept(found: _Found) -> Relocated | None:
    """Returns the numbers among the ignored tensors, such as versions, which programs ask for."""
    tensors = found.checkpoint.tensors
    numbers = [name for name in found.ignored if tensors[name].size == 1]
    return Relocated({name: (tensors, name) for name in numbers}) if numbers and found.directory is None else None


def _settings(checkpoint: Checkpoint, dialect: str | None, source: Any) -> ExportedSettings | None:
    """Returns what a file that was exported here says of its model, unless another dialect is asked for."""
    if checkpoint.settings is None:
        return None
    what = "state_dict" if isinstance(source, Mapping) else str(source)
    try:
        settings = parse_settings(checkpoint.settings, what)
    except PortingError:
        if dialect is None:
            raise
        return None
    return settings if dialect in (None, settings.dialect) else None


def _with_fields(directory: HuggingFaceModel, hints: dict[str, Any]) -> dict[str, Any]:
    """Returns the hints with the fields of config.json. Raises PortingError for hints that contradict it in a field
    that changes the computation."""
    table = directory.table
    says = {name: value for name, value in table.defaults.items() if name in UNTOLD} | directory.fields
    function = {*table.fixed, *table.choices, *table.asks, *UNTOLD}
    problems = [
        f"{name}: config.json says {says[name]!r}; received {value!r}"
        for name, value in hints.items()
        if name in function and name in says and says[name] != value
    ]
    if problems:
        raise PortingError("hints that contradict config.json", problems)
    return directory.fields | hints


def _check_sizes(directory: HuggingFaceModel, told: Mapping[str, Any]) -> None:
    """Raises PortingError where config.json says other sizes than the tensors have. (What is tied, the file
    decides.)"""
    problems = [
        f"{name}: config.json says {directory.fields[name]!r}; the tensors say {value!r}"
        for name, value in told.items()
        if name in directory.fields and directory.fields[name] != value and name not in TIES
    ]
    if problems:
        raise PortingError("a config.json that contradicts the weights", problems)


TIES = ("share_embeddings", "tie_head")


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
        directory, which transformers reads, for dialects that have one.
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
    write = file_writer(model, path) if with_optimizer else write_tensors
    if names is not None or name == MAP:
        export_by_map(model, path, None if names is None else read_map(names), write=write, consume=consume)
        return
    if name is None:
        raise PortingError(
            "this model was not imported from a checkpoint, so a map of names or a dialect must be given: one of "
            f"{', '.join(all_dialects())}"
        )
    is_return = origin.get("dialect") == name
    order = [*origin.get("tensors", {}), *origin.get("ignored", [])] if is_return else []
    prefix, added = (origin.get(key, "") if is_return else "" for key in ("prefix", "added"))
    to_file, table = os.fspath(path).endswith(SUFFIXES), get_dialect(name)
    if to_file:
        _check_untold(model, table, origin.get("config", {}) if is_return else {})
    else:
        file = hugging_face.of_family(table)
        check_free(path, PortingError)
        if not model.config.share_embeddings:
            order += [name for name in file.always_there if name not in order]
        _check_directory_tells(model, table)
    leaves = flatten(model.params)
    if consume:
        model.params.clear()
    deferred = deferred_state_dict(model.config, leaves, name, order)
    leaves.clear()
    held = {} if model.ignored_tensors is None or not (is_return and to_file) else model.ignored_tensors
    tensors: dict[str, Any] = make_arrays(deferred) if os.fspath(path).endswith(TORCH_SUFFIXES) else deferred
    tensors |= held
    order = [name for name in dict.fromkeys([*order, *tensors]) if name in tensors]
    tensors = {prefix + name.removeprefix(added): tensors[name] for name in order}
    if to_file:
        write(path, tensors, settings_text(model, table))
    else:
        write_more = directory_writer(model) if with_optimizer else None
        known, tokenizer = (origin.get("hugging_face", {}), model.tokenizer_files or {}) if is_return else ({}, {})
        hugging_face.write_directory(path, table, model.config, model.generation, tensors, known, tokenizer, write_more)


def _check_untold(model: Model, table: Dialect, imported: Mapping[str, Any]) -> None:
    """Raises PortingError where the dialect's program, or the one that the checkpoint came from, would compute other
    numbers."""
    dialect_and_shapes(model.config, table)
    fixed = {name: value for name, value in table.defaults.items() if name in UNTOLD and name not in table.choices}
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
    """Returns why transformers would compute other numbers of what a directory of this dialect can say; nothing if it
    computes the same."""
    problems = table.refusals(model.config)
    if problems:
        return problems
    file = hugging_face.of_family(table)
    try:
        told = file.fields(file.write(model.config))
    except ConfigError as error:  # rates of dropout that differ between the stacks
        return [str(error)]
    fixed = {name: value for name, value in table.defaults.items() if name in UNTOLD and name not in told}
    problems = [
        f"{name} must be {value!r}, as in its programs; received {getattr(model.config, name)!r}"
        for name, value in fixed.items()
        if getattr(model.config, name) != value
    ]
    if table.leaves_out_positions(model.config) and not computes_position_table(model, table.name):
        problems.append("constants/encoder_positions and decoder_positions must be those that its programs compute")
    return problems


def _check_directory_tells(model: Model, table: Dialect) -> None:
    """Raises PortingError where transformers would compute other numbers of what a directory can say."""
    dialect_and_shapes(model.config, table)
    problems = directory_problems(model, table)
    if problems:
        raise PortingError(
            f"dialect {table.name}: a directory doesn't hold all that this model computes with", problems
        )
