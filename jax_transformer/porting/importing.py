"""Import checkpoints: by a dialect's table, or by a map of names for programs of no dialect.

model = import_checkpoint("model.pt", "floydhub", num_heads=8, source_pad_id=1, target_pad_id=1)
model = import_checkpoint("model.pt", names="names.yaml", config="config.yaml")
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from jax_transformer.config.decoding import GenerationConfig
from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.model_file import load_model_config
from jax_transformer.config.model_validation import NOT_COMPUTED
from jax_transformer.config.short_names import option_names, with_values
from jax_transformer.config.stored import config_from_plain
from jax_transformer.config.validation import ConfigError
from jax_transformer.mapping.maps import NameMap
from jax_transformer.mapping.rules import count
from jax_transformer.porting.checkpoint import KnownCheckpoint, identify
from jax_transformer.porting.dialects import PROGRAM_FIELDS, Dialect
from jax_transformer.porting.dialects.tables import ASKS
from jax_transformer.porting.names_of_dialects import read_map
from jax_transformer.porting.one_level import config_from, has_one_value, values_of
from jax_transformer.porting.state_dicts import deferred_params
from jax_transformer.runtime.trees import map_leaves, nearest
from jax_transformer.storage.model_directory import Model
from jax_transformer.storage.tensor_files import as_arrays, read_array
from jax_transformer.storage.tensors import DTYPES, PortingError

TIES = ("share_embeddings", "tie_head")
GENERATION_FIELDS = frozenset(field.name for field in dataclasses.fields(GenerationConfig))


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
        that Hugging Face's transformers wrote, or its name on the Hub, whose config.json says what the tensors don't; a
        checkpoint in the format of another program (docs/porting.md lists them).
      dialect: the dialect of the tensors' names. None: detected, if the names or config.json leave one possibility.
      names: a map of names, or its YAML file, for a program of no dialect.
      config: with a map, the model's config, or a YAML file with its fields or with them under `model`. Its sizes of
        vocabularies may be 0: the embeddings have them.
      **hints: what a state_dict doesn't contain: fields of TransformerConfig and GenerationConfig, and
        `position_table`, an array [rows, D] or a file with one, in place of the table that is computed where a
        dialect's checkpoints hold none. The dialect decides which are needed; a message asks for missing ones. Other
        fields (dropout_rate, norm_eps, …) are as in the published program unless given.

    Returns:
      A Model without tokenizers. Its parameters are NumPy arrays of the checkpoint's dtypes that share no memory with
        the source; its `origin` has the dialect, the prefix of all names, if any, the tensors' names, in order, with
        their dtypes, and the program's numbers that the tensors don't contain; of a directory also its config.json and
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
    params = map_leaves(np.asarray, model.params)
    ignored = None if model.ignored_tensors is None else map_leaves(np.array, model.ignored_tensors)
    return replace(model, params=params, ignored_tensors=ignored)


def read_checkpoint(
    source: str | os.PathLike[str] | Mapping[str, Any],
    dialect: str | None,
    hints: dict[str, Any],
    *,
    names: NameMap | str | os.PathLike[str] | None = None,
    config: TransformerConfig | str | os.PathLike[str] | None = None,
) -> Model:
    """Imports a checkpoint with Deferred parameters: it checks all now, and makes each on access."""
    if names is not None and dialect is not None:
        raise PortingError(f"expected a dialect or a map of names; received both, {dialect!r} and a map")
    if names is None and config is not None:
        raise PortingError("config: expected a map of names with it; a dialect says what its programs compute")
    hints = dict(hints)  # the caller lists those that were assumed afterwards
    known = identify(source, dialect, None if names is None else read_map(names), with_settings=config is None)
    if known.foreign is not None and known.foreign.missing:
        raise PortingError(
            f"{source}: expected a whole {known.foreign.title}; it lacks {' and '.join(known.foreign.missing)}"
        )
    positions = _take_position_table(known, hints)
    fields = _in_our_words(known.table, hints)
    if known.directory is not None:
        fields = _with_fields(known.table, known.directory.fields, fields, "config.json")
    elif known.foreign is not None:
        fields = {**known.foreign.assumed, **fields}
        fields = _with_fields(known.table, known.foreign.fields, fields, known.foreign.where)
    return _make_model(known, positions, config, fields)


def _make_model(
    known: KnownCheckpoint,
    positions: np.ndarray | None,
    given: TransformerConfig | str | os.PathLike[str] | None,
    fields: dict[str, Any],
) -> Model:
    """Makes the model of a checkpoint.

    Args:
      positions: the position table in place of the computed one.
      given: the config for a map, or its file.
      fields: the hints, with the fields of config.json.
    """
    is_mapped = known.names is not None
    generation_fields = {name: fields.pop(name) for name in GENERATION_FIELDS & fields.keys()}
    if known.settings is not None:
        generation_fields = known.settings.generation | generation_fields
    read = _read_fields(known, fields)
    if positions is not None and is_mapped:
        fields.setdefault("max_length", len(positions))
    elif positions is not None:
        read["max_length"] = len(positions)
    flat = _flat_fields(known.table, read, _with_settings(known, read, fields))
    what = "config" if is_mapped else known.table.name
    try:
        config = _make_config(known, given, fields, flat)
        if positions is not None and is_mapped and not known.table.computed(config):
            raise PortingError("position_table: the config has no such tables, or the map names them; leave it out")
        what = "hints with a map of names" if is_mapped else known.table.name
        generation = GenerationConfig(**{**known.table.generation, **generation_fields})
    except ConfigError as error:
        raise PortingError(f"{what}: {error}", _problems_with_one_head(known, read, flat, positions)) from None
    outside = generation.ids_outside(config.target_vocab_size)
    if outside:
        raise PortingError("hints with a map of names" if is_mapped else f"hints for dialect {what}", outside)
    params = _make_params(known, config, positions)
    described = known.directory or known.foreign
    tokenizer = None if described is None else dict(described.tokenizer) or None
    origin = _origin(known, config)
    return Model(config, params, None, None, generation, origin, tokenizer_files=tokenizer, ignored_tensors=known.kept)


# --- the config


def _make_config(
    known: KnownCheckpoint,
    given: TransformerConfig | str | os.PathLike[str] | None,
    fields: dict[str, Any],
    flat: dict[str, Any],
) -> TransformerConfig:
    """Returns the config.

    A dialect's follows from the fields of all sources, with each stack's own rates of dropout, and what else may differ
    between the dialect's stacks, where the file's settings have them. A map's is the given one, or that in the
    settings, with the hints.

    Args:
      given: as of `_make_model`.
      fields: the hints.
      flat: the fields of all sources by short names, and by paths of options.

    Raises:
      ConfigError: the config is impossible.
      PortingError: there is no config with a map.
    """
    settings = known.settings
    if known.names is not None and given is None and settings is None:
        raise PortingError(
            "a map of names doesn't say what the model computes: expected its config with the map (--config FILE)"
        )
    base = None if settings is None or settings.parts is None else config_from_plain(settings.parts)
    if known.names is None:
        config = config_from(flat)
        if base is None:
            return config
        config = with_values(config, _differing(base, known.table))
        encoder = replace(config.encoder, dropout=base.encoder.dropout)
        decoder = replace(config.decoder, dropout=base.decoder.dropout)
        rates = {name: value for name, value in fields.items() if name.endswith("dropout_rate")}
        return config.replace(encoder=encoder, decoder=decoder, **rates)
    if given is not None:
        base = given if isinstance(given, TransformerConfig) else load_model_config(str(given))
    if base is None:
        return TransformerConfig.from_flat(flat)
    config = base.replace(**fields)
    return config.replace(**_vocabulary_sizes(known, config))


def _differing(config: TransformerConfig, table: Dialect) -> dict[str, Any]:
    """Returns the options that may differ between a dialect's stacks, by their paths, where a config's differ."""
    values = [values_of(config, name) for name in table.may_differ if not has_one_value(config, name)]
    return {path: value for places in values for path, value in places.items()}


def _flat_fields(table: Dialect, read: dict[str, Any], stated: dict[str, Any]) -> dict[str, Any]:
    """Returns the config by short names: the dialect's fixed fields, the checkpoint's and the hints. Rules check it
    against the tensors later.

    Raises:
      PortingError: hints contradict the tensors or the dialect.
    """
    certain = {**table.fixed, **{name: value for name, value in read.items() if name not in table.asks}}
    problems = [
        f"{name}: the {'dialect' if name in table.fixed else 'checkpoint'} says {certain[name]!r}; received {value!r}"
        for name, value in stated.items()
        if name in certain and certain[name] != value
    ]
    if problems:
        raise PortingError(f"hints that contradict the {table.name} checkpoint", problems)
    fields = {**table.defaults, **table.fixed, **read, **stated}
    return {**table.follows(fields), **fields}


def _vocabulary_sizes(known: KnownCheckpoint, config: TransformerConfig) -> dict[str, Any]:
    """Returns the sizes of vocabularies that a map's config leaves open with 0, as the embeddings have them."""
    embeddings = {"source_vocab_size": "source_embedding", "target_vocab_size": "target_embedding"}
    return {name: _rows(known, config, path) for name, path in embeddings.items() if getattr(config, name) == 0}


def _rows(known: KnownCheckpoint, config: TransformerConfig, embedding: str) -> int:
    """Returns the number of rows of an embedding, as its tensor has them; 0 if it isn't there."""
    tensors = known.checkpoint.tensors
    path = f"{'shared_embedding' if config.share_embeddings else embedding}/embedding"
    rule = next((rule for rule in known.rules if path in rule.paths), None)
    name = None if rule is None else next((name for name in rule.names if name in tensors), None)
    if rule is None or name is None:
        return 0
    groups = (("V",), ("D",)) if rule.axes is None else rule.axes.torch
    rows = groups[0] if rule.axes is None else rule.axes.jax[0]
    shape = tensors[name].shape
    return int(shape[groups.index(rows)]) if rows in groups and len(shape) == len(groups) else 0


def _problems_with_one_head(
    known: KnownCheckpoint, read: dict[str, Any], flat: dict[str, Any], positions: np.ndarray | None
) -> list[str]:
    """Returns the other problems of a dialect's checkpoint whose config is impossible, found with one head, whose width
    is always possible."""
    if known.names is not None or "num_heads" in read:
        return []
    try:
        config = _make_config(known, None, {}, flat | {"num_heads": 1})
        _make_params(known, config, positions)
    except PortingError as error:
        return error.problems or [str(error)]
    except ConfigError:
        pass  # it wasn't the heads, and there is nothing to compare the tensors with
    return []


# --- sources of fields


def _read_fields(known: KnownCheckpoint, hints: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of the config that the tensors determine."""
    try:
        return known.table.read(known.tensors)
    except PortingError as error:
        asked = [f"{name}: {why}" for name, why in ASKS.items() if name not in hints]
        raise PortingError(f"this is no checkpoint of dialect {known.table.name}", error.problems + asked) from None


def _with_settings(known: KnownCheckpoint, read: Mapping[str, Any], hints: dict[str, Any]) -> dict[str, Any]:
    """Returns the hints with the file's settings; the tensors prevail over both.

    Raises:
      PortingError: a hint that the dialect needs is missing; config.json says other sizes than the tensors have.
    """
    table = known.table
    if known.settings is not None:
        settings = known.settings.config
        hints = {name: settings[name] for name in settings if name not in read or name in table.asks} | hints
    if known.foreign is not None:
        _check_sizes(known.foreign.fields, read, known.foreign.where)
        hints = hints | {name: False for name in TIES if read.get(name) is False and name in known.foreign.fields}
    if known.directory is not None:
        _check_sizes(known.directory.fields, read, "config.json")
        hints = hints | {name: False for name in TIES if read.get(name) is False}  # a difference in the file unties
    has_each = known.directory is not None or (known.settings is not None and known.settings.parts is not None)
    said = {*read, *hints, *(table.may_differ if has_each else ())}
    missing = [f"{name}: {why}" for name, why in table.asks.items() if name not in said]
    if missing:
        raise PortingError(f"a state_dict of dialect {table.name} doesn't say everything; give by name", missing)
    return hints


def _with_fields(table: Dialect, stated: Mapping[str, Any], hints: dict[str, Any], where: str) -> dict[str, Any]:
    """Returns the hints with the fields that a checkpoint's own settings state. Raises PortingError for hints that
    contradict them in a field that changes the computation.

    Args:
      stated: the fields.
      where: the place of the settings, for messages.
    """
    says = {**{name: value for name, value in table.defaults.items() if name in PROGRAM_FIELDS}, **stated}
    function = {*table.fixed, *table.choices, *table.asks, *PROGRAM_FIELDS}
    problems = [
        f"{name}: {where} says {says[name]!r}; received {value!r}"
        for name, value in hints.items()
        if name in function and name in says and says[name] != value
    ]
    if problems:
        raise PortingError(f"hints that contradict {where}", problems)
    return {**stated, **hints}


def _check_sizes(stated: Mapping[str, Any], read: Mapping[str, Any], where: str) -> None:
    """Raises PortingError where a checkpoint's own settings state other sizes than the tensors have. (The tensors
    decide on ties.)"""
    problems = [
        f"{name}: {where} says {stated[name]!r}; the tensors say {value!r}"
        for name, value in read.items()
        if name in stated and stated[name] != value and name not in TIES
    ]
    if problems:
        raise PortingError(f"a {where} that contradicts the weights", problems)


# --- hints


def _take_position_table(known: KnownCheckpoint, hints: dict[str, Any]) -> np.ndarray | None:
    """Removes the hint of this name from the hints and returns it, read from its file if need be. Raises PortingError
    for an array that is no position table."""
    given = hints.pop("position_table", None)
    if given is None:
        return None
    if known.names is None and not known.table.computes_positions:
        raise PortingError(f"position_table: checkpoints of dialect {known.table.name} hold their own; leave it out")
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


def _in_our_words(table: Dialect, hints: dict[str, Any]) -> dict[str, Any]:
    """Returns the hints with the dialect's own words replaced. Raises PortingError for unknown ones and
    contradictions."""
    ours: dict[str, Any] = {}
    problems = []
    aliases = table.aliases or {}
    known = {*option_names(), *GENERATION_FIELDS, *aliases}
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


# --- parameters and origin


def _make_params(known: KnownCheckpoint, config: TransformerConfig, positions: np.ndarray | None) -> dict[str, Any]:
    """Returns the Deferred parameters. Raises PortingError for everything that doesn't fit: tensors, entries of a map,
    patterns to ignore."""
    problems = known.ignore_problems
    try:
        known.table.check_config(config)
        params = deferred_params(config, known.tensors, known.table, positions)
    except PortingError as error:
        if known.names is None:
            raise
        problems = [*(error.problems or [str(error)]), *problems]
    if problems:
        raise PortingError(f"{known.what} does not fit the map of names and the config, {count(problems)}", problems)
    return params


def _origin(known: KnownCheckpoint, config: TransformerConfig) -> dict[str, Any]:
    """Returns the facts of the checkpoint that exporting the model again needs."""
    checkpoint, directory, is_mapped = known.checkpoint, known.directory, known.names is not None
    origin: dict[str, Any] = {"dialect": known.table.name}
    if known.names is not None:
        origin["names"] = known.names.text()
    tensors = checkpoint.tensors if is_mapped else known.tensors
    origin |= {
        "prefix": known.prefix if is_mapped else checkpoint.prefix,
        "tensors": {name: str(tensors[name].dtype) for name in tensors},
        "config": {
            option: values_of(config, option)
            for option in PROGRAM_FIELDS
            if is_mapped or option in known.table.defaults
        },
    }
    if known.settings is not None and not is_mapped:
        origin["has_settings"] = True
    if checkpoint.is_in_order:
        origin["is_in_order"] = True
    if checkpoint.added:
        origin["added"] = checkpoint.added
    if known.ignored:
        origin["ignored"] = known.ignored
    if known.foreign is not None:
        origin |= {"format": known.foreign.title, "layout": dict(known.foreign.layout)}
        if known.foreign.tokenizer and known.foreign.tokenizer_family:
            origin["tokenizer_family"] = known.foreign.tokenizer_family
        if known.foreign.assumed:
            origin["assumed"] = {name: values_of(config, name) for name in known.foreign.assumed}
        if known.foreign.left:
            origin["left"] = list(known.foreign.left)
    if directory is not None:
        origin["hugging_face"] = {"config": dict(directory.config), "generation_config": directory.generation}
    return origin
