"""Import checkpoints: by a dialect's table, or by a map of names for programs of no dialect.

model = import_checkpoint("model.pt", "floydhub", num_heads=8, source_pad_id=1, target_pad_id=1)
model = import_checkpoint("model.pt", names="names.yaml", config="config.yaml")
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from jax_transformer.config.decoding import GenerationConfig
from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.model_file import load_model_config
from jax_transformer.config.model_validation import NOT_COMPUTED
from jax_transformer.config.short_names import option_names
from jax_transformer.config.stored import config_from_plain
from jax_transformer.config.validation import ConfigError
from jax_transformer.mapping.maps import NameMap
from jax_transformer.mapping.rules import count, matcher, not_finite
from jax_transformer.porting.checkpoint import KnownCheckpoint, Source, identify, name_of, open_by_map
from jax_transformer.porting.dialects import UNTOLD, Dialect
from jax_transformer.porting.dialects.tables import ASKS
from jax_transformer.porting.exported_settings import ExportedSettings
from jax_transformer.porting.hugging_face import HuggingFaceModel
from jax_transformer.porting.names_of_dialects import NAME as MAP
from jax_transformer.porting.names_of_dialects import read_map
from jax_transformer.porting.one_level import values_of
from jax_transformer.porting.state_dicts import deferred_params
from jax_transformer.runtime.trees import map_leaves, nearest
from jax_transformer.storage.model_directory import Model
from jax_transformer.storage.safetensors_writer import SAFETENSORS_DTYPES
from jax_transformer.storage.tensor_files import Relocated, as_arrays, read_array
from jax_transformer.storage.tensors import DTYPES, PortingError, Tensors

TIES = ("share_embeddings", "tie_head")


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
    found = identify(source, dialect)
    return _import(found, hints) if found.names is None else _import_by_map(found, name_of(source), None, hints)


def _import(found: KnownCheckpoint, hints: dict[str, Any]) -> Model:
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


def _told(found: KnownCheckpoint, hints: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of the config that the tensors tell."""
    try:
        return found.table.read(found.tensors)
    except PortingError as error:
        asked = [f"{name}: {why}" for name, why in ASKS.items() if name not in hints]
        raise PortingError(
            f"this is no checkpoint of dialect {found.table.name}", error.problems + not_finite(found.tensors) + asked
        ) from None


def _hints_beside(found: KnownCheckpoint, told: Mapping[str, Any], hints: dict[str, Any]) -> dict[str, Any]:
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


def _origin(found: KnownCheckpoint, config: TransformerConfig) -> dict[str, Any]:
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


def _kept(found: KnownCheckpoint) -> Relocated | None:
    """Returns the numbers among the ignored tensors, such as versions, which programs ask for."""
    tensors = found.checkpoint.tensors
    numbers = [name for name in found.ignored if tensors[name].size == 1]
    return Relocated({name: (tensors, name) for name in numbers}) if numbers and found.directory is None else None


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


# --- hints


def take_position_table(table: Dialect, hints: dict[str, Any]) -> np.ndarray | None:
    """Removes the hint of this name from the hints and returns it, read from its file if need be. Raises PortingError
    for an array that is no position table."""
    given = hints.pop("position_table", None)
    if given is None:
        return None
    if not table.computes_positions:
        raise PortingError(f"position_table: checkpoints of dialect {table.name} hold their own; leave it out")
    return read_position_table(given)


def read_position_table(given: Any) -> np.ndarray:
    """Returns an array, or that of a file. Raises PortingError for one that is no position table."""
    array = (
        read_array(given)
        if isinstance(given, str | os.PathLike)
        else as_arrays({"position_table": given})["position_table"]
    )
    if array.ndim != 2 or array.dtype.name not in DTYPES:
        raise PortingError(
            f"position_table: expected floating-point numbers [rows, d_model]; received {array.dtype} "
            f"{list(array.shape)}"
        )
    if not np.isfinite(array).all():
        raise PortingError(
            f"position_table {list(array.shape)}: {int((~np.isfinite(array)).sum())} values are not finite"
        )
    return array


def in_our_words(table: Dialect, hints: dict[str, Any]) -> dict[str, Any]:
    """Returns the hints with the dialect's own words replaced. Raises PortingError for unknown ones and
    contradictions."""
    ours: dict[str, Any] = {}
    problems = []
    aliases = table.aliases or {}
    known = {*option_names(), *field_names(GenerationConfig), *aliases}
    for name, value in hints.items():
        field = name
        if name in aliases:
            field, words = aliases[name]
            meant = [ours for word, ours in words.items() if word == value]
            if not meant:
                problems.append(f"{name} must be {' or '.join(map(repr, words))}; received {value!r}")
                continue
            (value,) = meant
        if name in NOT_COMPUTED:
            problems.append(f"{name} isn't supported: {NOT_COMPUTED[name]}")
        elif name not in known:
            problems.append(f"{name}: no such hint{nearest(name, known)}")
        elif ours.get(field, value) != value:
            problems.append(f"{name}={hints[name]!r} contradicts {field}={ours[field]!r}")
        else:
            ours[field] = value
    if problems:
        raise PortingError(f"hints for dialect {table.name}", problems)
    return ours


def make_config(table: Dialect, told: dict[str, Any], hints: dict[str, Any]) -> TransformerConfig:
    """Makes the config from the dialect's fixed fields, the checkpoint's and the hints. Rules check it against the
    tensors later."""
    known = {**table.fixed, **{name: value for name, value in told.items() if name not in table.asks}}
    problems = [
        f"{name}: the {'dialect' if name in table.fixed else 'checkpoint'} says {known[name]!r}; received {value!r}"
        for name, value in hints.items()
        if name in known and known[name] != value
    ]
    if problems:
        raise PortingError(f"hints that contradict the {table.name} checkpoint", problems)
    fields = {**table.defaults, **table.fixed, **told, **hints}
    return TransformerConfig.from_flat({**table.follows(fields), **fields})


def problems_with_one_head(
    table: Dialect, told: dict[str, Any], hints: dict[str, Any], tensors: Tensors, positions: np.ndarray | None
) -> list[str]:
    """Returns the other problems of a checkpoint whose config is impossible, found with a number of heads that divides
    any width."""
    if "num_heads" in told:
        return []
    try:
        deferred_params(make_config(table, told, hints | {"num_heads": 1}), tensors, table, positions)
    except PortingError as error:
        return error.problems or [str(error)]
    except ConfigError:
        pass  # it wasn't the heads, and there is nothing to compare the tensors with
    return []


def field_names(config_class: type) -> set[str]:
    return {field.name for field in dataclasses.fields(config_class)}


# --- by a map of names


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
    found = open_by_map(source, names, with_settings=config is None)
    return _import_by_map(found, name_of(source), config, hints)


def _import_by_map(
    found: KnownCheckpoint,
    what: str,
    config: TransformerConfig | str | os.PathLike[str] | None,
    hints: Mapping[str, Any],
) -> Model:
    """Makes the model as `import_by_map` does. Messages call the source `what`."""
    names, table, settings = found.names, found.table, found.settings
    assert names is not None
    tensors = found.checkpoint.tensors
    hints = dict(hints)
    positions = None if (given := hints.pop("position_table", None)) is None else read_position_table(given)
    fields = in_our_words(table, hints)
    of_generation = {name: fields.pop(name) for name in field_names(GenerationConfig) & fields.keys()}
    if positions is not None:
        fields.setdefault("max_length", len(positions))
    config = _config(config, fields, found)
    if positions is not None and not table.computed(config):
        raise PortingError("position_table: the config has no such tables, or the map names them; leave it out")
    generation = _generation(({} if settings is None else settings.generation) | of_generation, config)
    problems = _ignore_problems(found)
    try:
        params = deferred_params(config, found.tensors, table, positions)
    except PortingError as error:
        problems = [*(error.problems or [str(error)]), *problems]
    if problems:
        raise PortingError(f"{what} does not fit the map of names and the config, {count(problems)}", problems)
    origin: dict[str, Any] = {
        "dialect": MAP,
        "names": names.text(),
        "prefix": found.prefix,
        "tensors": {name: str(tensors[name].dtype) for name in tensors},
        "config": {name: values_of(config, name) for name in UNTOLD},
    }
    if found.checkpoint.is_in_order:
        origin["is_in_order"] = True
    if found.ignored:
        origin["ignored"] = found.ignored
    kept = Relocated({name: (tensors, name) for name in found.ignored}) if found.ignored else None
    return Model(config, params, None, None, generation, origin, ignored_tensors=kept)


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
    given: TransformerConfig | str | os.PathLike[str] | None, fields: dict[str, Any], found: KnownCheckpoint
) -> TransformerConfig:
    """Returns the config with the hints' fields, and with the vocabularies' sizes where it doesn't know them."""
    settings = found.settings
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
            name: _rows(config, path, found)
            for name, path in (("source_vocab_size", "source_embedding"), ("target_vocab_size", "target_embedding"))
            if getattr(config, name) == 0
        }
        return dataclasses.replace(config, **unknown)
    except ConfigError as error:
        raise PortingError(f"config: {error}") from None


def _rows(config: TransformerConfig, embedding: str, found: KnownCheckpoint) -> int:
    """Returns the number of rows of an embedding, as its tensor has them; 0 if it isn't there."""
    tensors = found.checkpoint.tensors
    path = f"{'shared_embedding' if config.share_embeddings else embedding}/embedding"
    rule = next((rule for rule in found.table.rules(config) if path in rule.paths), None)
    name = None if rule is None else next((name for name in rule.names if name in tensors), None)
    if rule is None or name is None:
        return 0
    groups = (("V",), ("D",)) if rule.axes is None else rule.axes.torch
    rows = groups[0] if rule.axes is None else rule.axes.jax[:1]
    shape = tensors[name].shape
    return int(shape[groups.index(rows)]) if rows in groups and len(shape) == len(groups) else 0


def _ignore_problems(found: KnownCheckpoint) -> list[str]:
    """Returns patterns that match nothing, and tensors that can't be kept."""
    assert found.names is not None
    tensors, ignored = found.checkpoint.tensors, found.ignored
    problems = [
        f"unused pattern under ignore: no tensor without an entry matches {pattern}"
        for pattern in found.names.ignored
        if not any(map(matcher([pattern, found.prefix + pattern]).fullmatch, ignored))
    ]
    return problems + [
        f"tensor {name}: expected a dtype of {', '.join(SAFETENSORS_DTYPES)}; received {tensors[name].dtype}"
        for name in ignored
        if tensors[name].dtype.name not in SAFETENSORS_DTYPES
    ]
