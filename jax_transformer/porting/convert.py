"""Importing and exporting checkpoints: a dialect's table applied to files, state_dicts and models.

model = import_checkpoint("model.pt", "floydhub", num_heads=8, source_pad_id=1, target_pad_id=1)
export_checkpoint(model, "back.pt")
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Collection, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from jax_transformer.config.model import ConfigError, GenerationConfig, TransformerConfig
from jax_transformer.model.functional import abstract_params
from jax_transformer.porting import hugging_face
from jax_transformer.porting.checkpoint import Checkpoint, leaving_out, open_checkpoint
from jax_transformer.porting.dialects import Dialect, all_dialects, candidates, detect, get_dialect
from jax_transformer.porting.dialects.tables import ASKS
from jax_transformer.porting.exported_settings import ExportedSettings, parse_settings, settings_text
from jax_transformer.porting.hugging_face import HuggingFaceModel
from jax_transformer.porting.rules import Rule, Shapes, leaves_from_tensors, not_finite, tensors_from_leaves
from jax_transformer.runtime.trees import flatten, map_leaves, nearest, unflatten
from jax_transformer.storage.deferred import Deferred
from jax_transformer.storage.model_directory import Model
from jax_transformer.storage.tensor_files import SUFFIXES, TORCH_SUFFIXES, as_arrays, read_array, write_tensors
from jax_transformer.storage.tensors import DTYPES, PortingError, Tensors


def import_checkpoint(
    source: str | os.PathLike[str] | Mapping[str, Any], dialect: str | None = None, **hints: Any
) -> Model:
    """Imports a model from a PyTorch checkpoint.

    Args:
      source: a file (.safetensors, .pt, .pth, .bin); a state_dict of torch tensors, NumPy or JAX arrays; a directory
        that Hugging Face's transformers wrote, or its name on the Hub, whose config.json says what the tensors don't.
      dialect: the dialect of the tensors' names. None: detected, if the names or config.json leave one possibility.
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
      PortingError: the file can't be read; the dialect is unknown, or one of several; hints are missing, unknown or
        contradict the checkpoint; tensors do not fit. Reports all problems of one kind together.

    Example:
      >>> import torch
      >>> from torch_reference.harvard import HarvardTransformer
      >>> module = HarvardTransformer(source_vocab_size=9, target_vocab_size=9, d_model=8, num_heads=2, d_ff=8,
      ...                             num_encoder_layers=1, num_decoder_layers=1, max_length=16)
      >>> model = import_checkpoint(module.state_dict(), "harvard", num_heads=2, source_pad_id=0, target_pad_id=0)
      >>> model.config.norm_eps_outside, model.params["head"]["kernel"].shape
      (True, (8, 9))
    """
    model = read_checkpoint(source, dialect, hints)
    return dataclasses.replace(model, params=map_leaves(np.asarray, model.params))


def read_checkpoint(
    source: str | os.PathLike[str] | Mapping[str, Any], dialect: str | None, hints: dict[str, Any]
) -> Model:
    """Imports a checkpoint with Deferred parameters: it checks all now, and makes each on access."""
    directory = None if isinstance(source, Mapping) else hugging_face.open_directory(source)
    if directory is not None:
        if dialect not in (None, directory.table.name):
            raise PortingError(
                f"{source}: dialect must be {directory.table.name!r}, as its config.json says; received {dialect!r}"
            )
        dialect, source = directory.table.name, directory.tensors
    tables = all_dialects().values() if dialect is None else (get_dialect(dialect),)
    of_dialect = get_dialect(dialect).recognises if dialect is not None else lambda names: bool(candidates(names))
    checkpoint = open_checkpoint(source, of_dialect, {table.base_prefix for table in tables})
    settings = _settings(checkpoint, dialect, source)
    dialect = settings.dialect if settings is not None else dialect
    table = get_dialect(dialect) if dialect is not None else detect(checkpoint.tensors.keys())
    ignored = table.ignores(checkpoint.tensors)
    tensors = leaving_out(checkpoint.tensors, ignored) if ignored else checkpoint.tensors
    positions = _position_table(table, hints)
    hints = _in_our_words(table, hints)
    if directory is not None:
        hints = _with_fields(directory, hints)
    generation_hints = {name: hints.pop(name) for name in _field_names(GenerationConfig) & hints.keys()}
    generation_hints = ({} if settings is None else settings.generation) | generation_hints
    try:
        told = table.read(tensors)
    except PortingError as error:
        asked = [f"{name}: {why}" for name, why in ASKS.items() if name not in hints]
        raise PortingError(
            f"this is no checkpoint of dialect {table.name}", error.problems + not_finite(tensors) + asked
        ) from None
    told |= {} if positions is None else {"max_length": len(positions)}
    if settings is not None:  # the tensors prevail over it
        hints = {
            name: value for name, value in settings.config.items() if name not in told or name in table.asks
        } | hints
    if directory is not None:
        _check_sizes(directory, told)
        hints |= {name: False for name in TIES if told.get(name) is False}  # what differs in the file isn't one

    problems = [f"{name}: {why}" for name, why in table.asks.items() if name not in told and name not in hints]
    if problems:
        raise PortingError(f"a state_dict of dialect {table.name} doesn't say everything; give by name", problems)
    try:
        config = _config(table, told, hints)
        generation = GenerationConfig(**{**table.generation, **generation_hints})
    except ConfigError as error:
        raise PortingError(
            f"{table.name}: {error}", _problems_with_one_head(table, told, hints, tensors, positions)
        ) from None
    outside = generation.ids_outside(config.target_vocab_size)
    if outside:
        raise PortingError(f"hints for dialect {table.name}", outside)
    params = _params(config, tensors, table, positions)
    origin: dict[str, Any] = {
        "dialect": table.name,
        "prefix": checkpoint.prefix,
        "tensors": {name: str(tensors[name].dtype) for name in tensors},
        "config": {name: getattr(config, name) for name in UNTOLD if name in table.defaults},
    }
    if settings is not None:
        origin["has_settings"] = True
    if checkpoint.added:
        origin["added"] = checkpoint.added
    if ignored:
        origin["ignored"] = ignored
    if directory is not None:
        origin["hugging_face"] = {"config": dict(directory.config), "generation_config": directory.generation}
    files = None if directory is None else dict(directory.tokenizer) or None
    return Model(config, params, None, None, generation, origin, tokenizer_files=files)


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


def _check_sizes(directory: HuggingFaceModel, told: dict[str, Any]) -> None:
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
UNTOLD = ("norm_eps", "position_index", "relative_max_distance")
"""Config fields that decide what is computed, where a dialect only has them from its program."""


def export_checkpoint(
    model: Model, path: str | os.PathLike[str], dialect: str | None = None, *, consume: bool = False
) -> None:
    """Exports a model's parameters as PyTorch tensors, in the order and under the names they were imported with.

    A position table that the dialect's programs compute for themselves is left out; so is one that the model was given
    instead.

    Args:
      model: the model.
      path: a file ending in .safetensors (which orders its tensors itself), .pt, .pth or .bin; any other path is a
        directory, which transformers reads, for dialects that have one.
      dialect: the dialect of the names. None: that of the checkpoint that the model was imported from.
      consume: free the model's parameters on the way, so that little more memory is needed than they take. The model
        has none afterwards.

    Raises:
      PortingError: no dialect is given and the model wasn't imported; the config or the parameters have no place in the
        dialect; the path can't be written.

    Example:
      >>> import torch
      >>> from torch_reference.harvard import HarvardTransformer
      >>> module = HarvardTransformer(source_vocab_size=9, target_vocab_size=9, d_model=8, num_heads=2, d_ff=8,
      ...                             num_encoder_layers=1, num_decoder_layers=1, max_length=16)
      >>> model = import_checkpoint(module.state_dict(), "harvard", num_heads=2, source_pad_id=0, target_pad_id=0)
      >>> export_checkpoint(model, "back.pt")
      >>> _ = module.load_state_dict(torch.load("back.pt", weights_only=True))
    """
    origin = model.origin or {}
    name = dialect or origin.get("dialect")
    if name is None:
        raise PortingError(
            "this model was not imported from a checkpoint, so a dialect must be given: one of "
            f"{', '.join(all_dialects())}"
        )
    is_return = origin.get("dialect") == name
    names = [*origin.get("tensors", {}), *origin.get("ignored", [])] if is_return else []
    prefix, added = (origin.get(key, "") if is_return else "" for key in ("prefix", "added"))
    to_file, table = os.fspath(path).endswith(SUFFIXES), get_dialect(name)
    if to_file:
        _check_untold(model, table, origin.get("config", {}) if is_return else {})
    else:
        file = hugging_face.of_family(table)
        hugging_face.check_free(Path(path))
        names = (
            names
            if model.config.share_embeddings
            else [*names, *(name for name in file.always_there if name not in names)]
        )
        _check_directory_tells(model, table)
    leaves = flatten(model.params)
    if consume:
        model.params.clear()
    deferred = _state_dict(model.config, leaves, name, names)
    leaves.clear()
    order = [name for name in dict.fromkeys([*names, *deferred]) if name in deferred]
    tensors: Mapping[str, Any] = _made(deferred) if os.fspath(path).endswith(TORCH_SUFFIXES) else deferred
    tensors = {prefix + name.removeprefix(added): tensors[name] for name in order}
    if to_file:
        write_tensors(path, tensors, settings_text(model, table))
    else:
        known, tokenizer = (origin.get("hugging_face", {}), model.tokenizer_files or {}) if is_return else ({}, {})
        hugging_face.write_directory(path, table, model.config, model.generation, tensors, known, tokenizer)


def params_from_state_dict(
    config: TransformerConfig,
    state_dict: Mapping[str, Any],
    dialect: str | Dialect,
    position_table: np.ndarray | None = None,
) -> dict[str, Any]:
    """Returns the parameters of a state_dict of torch tensors or arrays: a nested dict of new NumPy arrays in the
    tensors' dtypes.

    Args:
      position_table: [rows, D], in place of the table that the dialect computes.

    Raises:
      PortingError: the dialect doesn't have such models, or tensors are missing, unexpected or do not fit; all problems
        together.
    """
    return map_leaves(np.asarray, _params(config, as_arrays(state_dict), dialect, position_table))


def _params(
    config: TransformerConfig, state_dict: Tensors, dialect: str | Dialect, position_table: np.ndarray | None
) -> dict[str, Any]:
    """Converts as `params_from_state_dict` does, and makes the leaves on access."""
    table, shapes = _table(config, dialect)
    rules, computed = _computed(
        table, config, position_table, lambda rule, path, leaf: any(name in state_dict for name in rule.names)
    )
    held = {path: shape for path, shape in shapes.items() if path not in computed}
    leaves = leaves_from_tensors(rules, state_dict, held, f"{table.name} checkpoint")
    return unflatten({path: leaves[path] if path in leaves else computed[path] for path in shapes})


def state_dict_from_params(
    config: TransformerConfig, params: Mapping[str, Any], dialect: str | Dialect, names: Collection[str] = ()
) -> dict[str, np.ndarray]:
    """Returns the state_dict of parameters: new NumPy arrays in the leaves' dtypes; tied names share one array.

    Args:
      names: tensors in the order of the result, as far as it has them. Optional tensors among them are included.

    Raises:
      PortingError: the dialect can't express the config, or leaves are missing, unexpected or do not fit; all problems
        together.
    """
    tensors = _made(_state_dict(config, flatten(params), dialect, names))
    return {name: tensors[name] for name in dict.fromkeys([*names, *tensors]) if name in tensors}


def _made(deferred: dict[str, Deferred]) -> dict[str, np.ndarray]:
    """Makes all arrays. It takes the leaves out one by one, so those that nobody else holds need their memory only
    once."""
    made: dict[Deferred, np.ndarray] = {}
    tensors = {}
    for name in list(deferred):
        tensor = deferred.pop(name)
        if tensor not in made:
            made.clear()  # copies stand side by side
            made[tensor] = np.asarray(tensor)
        tensors[name] = made[tensor]
    return tensors


def computes_position_table(model: Model, dialect: str) -> bool:
    """Returns whether the dialect's programs compute, and don't keep, the very position tables that the model has."""
    table, leaves = get_dialect(dialect), flatten(model.params)
    computed = {path: leaf for path, leaf in table.computed(model.config).items() if _is_position_table(path)}
    return bool(computed) and all(
        path in leaves and np.array_equal(leaves[path], leaf) for path, leaf in computed.items()
    )


def _state_dict(
    config: TransformerConfig, leaves: dict[str, np.ndarray], dialect: str | Dialect, names: Collection[str]
) -> dict[str, Deferred]:
    """Converts leaves by path as `state_dict_from_params` does, in the table's order, and makes the tensors on
    access."""
    table, shapes = _table(config, dialect)
    rules, computed = _computed(
        table,
        config,
        None,
        lambda rule, path, leaf: (
            any(name in names for name in rule.names) or not np.array_equal(leaves.get(path, leaf), leaf)
        ),
    )
    for path in computed:
        leaves.pop(path, None)
    held = {path: shape for path, shape in shapes.items() if path not in computed}
    what = f"parameters for dialect {table.name}"
    return tensors_from_leaves(rules, leaves, held, names, what)


def _computed(
    table: Dialect,
    config: TransformerConfig,
    position_table: np.ndarray | None,
    is_held: Callable[[Rule, str, np.ndarray], bool],
) -> tuple[list[Rule], dict[str, np.ndarray]]:
    """Returns the rules for the tensors of a checkpoint, and the leaves by path that are computed.

    Args:
      position_table: replaces the computed ones.
      is_held: tells, for a computed leaf that also has a rule, whether the checkpoint holds it.
    """
    rules, computed = table.rules(config), table.computed(config)
    if position_table is not None:
        tables = {path: leaf for path, leaf in computed.items() if _is_position_table(path)}
        if any(leaf.shape != position_table.shape for leaf in tables.values()):
            expected, received = [config.max_length, config.d_model], list(position_table.shape)
            raise PortingError(f"position_table: expected [rows, d_model] = {expected}; received {received}")
        computed |= {path: position_table.copy() for path in tables}
    held = {path for rule in rules for path in rule.paths if path in computed and is_held(rule, path, computed[path])}
    computed = {path: leaf for path, leaf in computed.items() if path not in held}
    return [rule for rule in rules if not any(path in computed for path in rule.paths)], computed


def _is_position_table(path: str) -> bool:
    return path.endswith("_positions")


@cache
def param_shapes(config: TransformerConfig) -> Shapes:
    """Returns the shape of every leaf of the config's parameters, by path."""
    return MappingProxyType({path: tuple(leaf.shape) for path, leaf in flatten(abstract_params(config)).items()})


def _table(config: TransformerConfig, dialect: str | Dialect) -> tuple[Dialect, Shapes]:
    table = get_dialect(dialect) if isinstance(dialect, str) else dialect
    problems = table.refusals(config)
    if problems:
        raise PortingError(f"dialect {table.name} has no models of this config", problems)
    return table, param_shapes(config)


def _check_untold(model: Model, table: Dialect, imported: Mapping[str, Any]) -> None:
    """Raises PortingError where the dialect's program, or the one that the checkpoint came from, would compute other
    numbers."""
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


def _check_directory_tells(model: Model, table: Dialect) -> None:
    """Raises PortingError where transformers would compute other numbers of what a directory can say."""
    _table(model.config, table)
    file = hugging_face.of_family(table)
    fixed = {
        name: value
        for name, value in table.defaults.items()
        if name in UNTOLD and name not in file.fields(file.write(model.config))
    }
    problems = [
        f"{name} must be {value!r}, as in its programs; received {getattr(model.config, name)!r}"
        for name, value in fixed.items()
        if getattr(model.config, name) != value
    ]
    if table.leaves_out_positions(model.config) and not computes_position_table(model, table.name):
        problems.append("constants/encoder_positions and decoder_positions must be those that its programs compute")
    if problems:
        raise PortingError(
            f"dialect {table.name}: a directory doesn't hold all that this model computes with", problems
        )


def _position_table(table: Dialect, hints: dict[str, Any]) -> np.ndarray | None:
    """Removes the hint of this name from the hints and returns it, read from its file if need be. Raises PortingError
    for an array that is no position table."""
    given = hints.pop("position_table", None)
    if given is None:
        return None
    if not table.computes_positions:
        raise PortingError(f"position_table: checkpoints of dialect {table.name} hold their own; leave it out")
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
    known = {*_field_names(TransformerConfig), *_field_names(GenerationConfig), *aliases}
    for name, value in hints.items():
        field = name
        if name in aliases:
            field, words = aliases[name]
            meant = [ours for word, ours in words.items() if word == value]
            if not meant:
                problems.append(f"{name} must be {' or '.join(map(repr, words))}; received {value!r}")
                continue
            (value,) = meant
        if name not in known:
            problems.append(f"{name}: no such hint{nearest(name, known)}")
        elif ours.get(field, value) != value:
            problems.append(f"{name}={hints[name]!r} contradicts {field}={ours[field]!r}")
        else:
            ours[field] = value
    if problems:
        raise PortingError(f"hints for dialect {table.name}", problems)
    return ours


def _config(table: Dialect, told: dict[str, Any], hints: dict[str, Any]) -> TransformerConfig:
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
    return TransformerConfig(**{**table.follows(fields), **fields})


def _problems_with_one_head(
    table: Dialect, told: dict[str, Any], hints: dict[str, Any], tensors: Tensors, positions: np.ndarray | None
) -> list[str]:
    """Returns the other problems of a checkpoint whose config is impossible, found with a number of heads that divides
    any width."""
    if "num_heads" in told:
        return []
    try:
        _params(_config(table, told, hints | {"num_heads": 1}), tensors, table, positions)
    except PortingError as error:
        return error.problems or [str(error)]
    except ConfigError:
        pass  # it wasn't the heads, and there is nothing to compare the tensors with
    return []


def _field_names(config_class: type) -> set[str]:
    return {field.name for field in dataclasses.fields(config_class)}
