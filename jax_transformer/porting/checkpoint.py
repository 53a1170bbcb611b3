"""Open a checkpoint: take its state_dict out of what it is wrapped in, a dict around it and a prefix before all of its
names, and find the dialect, or the map of names, that it is read by.

`export_checkpoint` writes settings that tensors don't hold, such as the number of heads, into a file's metadata, and
`import_checkpoint` takes them as hints, so that a file that was exported here comes back without a question. Other
programs ignore them.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from jax_transformer.config.decoding import GenerationConfig
from jax_transformer.config.short_names import option_names
from jax_transformer.mapping.maps import NameMap, prefixes
from jax_transformer.mapping.rules import Rule, matcher
from jax_transformer.porting.dialects import Dialect, all_dialects, candidates, detect, get_dialect
from jax_transformer.porting.formats import open_format, read_settings_of
from jax_transformer.porting.formats.foreign import Foreign
from jax_transformer.porting.hugging_face import HuggingFaceModel, download, read_directory
from jax_transformer.porting.names_of_dialects import NAME as MAP
from jax_transformer.porting.names_of_dialects import dialect_of_map
from jax_transformer.porting.one_level import changes_the_function, has_one_value, is_one_level
from jax_transformer.runtime.json_text import parse_json
from jax_transformer.storage.hub import hub_name
from jax_transformer.storage.model_directory import Model
from jax_transformer.storage.safetensors_writer import SAFETENSORS_DTYPES
from jax_transformer.storage.tensor_files import (
    TORCH_SUFFIXES,
    Relocated,
    SafetensorsFile,
    as_arrays,
    is_state_dict,
    read_tensors,
    settings_of,
)
from jax_transformer.storage.tensors import PortingError, Tensors

VERSION = 2
WITHOUT_PARTS = 1
"""The version of settings that one level of options says, as all were up to version 0.1."""

Source = str | os.PathLike[str] | Mapping[str, Any]


@dataclass(frozen=True)
class Checkpoint:
    """Holds an unwrapped state_dict."""

    tensors: Tensors
    prefix: str = ""
    """The text before the model's names, such as "module.", which is removed."""
    added: str = ""
    """The text that is added before the model's names, because the checkpoint was saved without the part that needs it
    (see Dialect.base_prefix)."""
    inside: str = ""
    """The key under which the state_dict lay in the file's dict; "" where the file is one."""
    parts: tuple[str, ...] = ()
    """The keys next to it whose state_dicts are parts of the model too: each precedes the names of its part."""
    settings: str | None = None
    """The text that `export_checkpoint` kept with the tensors."""
    is_in_order: bool = False
    """Whether the tensors have the order in which their module lists them."""

    def described(self) -> str:
        """Describes what was unwrapped; empty if nothing was."""
        parts = [
            f"the state_dict lies under {self.inside!r}" if self.inside else "",
            *(f"its part {part!r} lies next to it" for part in self.parts),
            f"the model's names begin with {self.prefix!r}" if self.prefix else "",
            f"the model's names lack {self.added!r}" if self.added else "",
        ]
        return ", and ".join(filter(None, parts))


class ExportedSettings(NamedTuple):
    """Holds what a file says of the model that it was exported from."""

    dialect: str
    config: dict[str, Any]
    """Short names of TransformerConfig that the dialect doesn't decide, with their values."""
    generation: dict[str, Any]
    """Fields of GenerationConfig."""
    names: str = ""
    """The map of names by which the file was exported, as YAML; "" for a dialect."""
    parts: dict[str, Any] | None = None
    """The whole config in its parts, where short names don't say all of it."""


@dataclass(frozen=True)
class KnownCheckpoint:
    """Holds a checkpoint, and the sources of what its tensors don't say."""

    checkpoint: Checkpoint
    table: Dialect
    """The dialect of its names, or the one that a map makes."""
    settings: ExportedSettings | None = None
    """The settings in a file that was exported here."""
    directory: HuggingFaceModel | None = None
    """The directory that holds it, with its config.json."""
    names: NameMap | None = None
    """The map of names, if it is read by one."""
    rules: Sequence[Rule] = ()
    """The rules of the map, under the names of the checkpoint."""
    prefix: str = ""
    """The text before the map's names in the checkpoint."""
    what: str = ""
    """The name that messages about a map give the checkpoint."""
    foreign: Foreign | None = None
    """What the format of another program says of it."""

    @cached_property
    def ignored(self) -> list[str]:
        """The names of tensors that the dialect or the map leaves out."""
        ignored = self.table.ignores(self.checkpoint.tensors)
        if self.names is None:
            return ignored
        mapped = matcher(name for rule in self.rules for name in rule.all_names)
        return [name for name in ignored if not mapped.fullmatch(name)]

    @cached_property
    def ignore_problems(self) -> list[str]:
        """The patterns under `ignore` of the map that match nothing, and the tensors that can't be kept."""
        if self.names is None:
            return []
        tensors = self.checkpoint.tensors
        problems = [
            f"unused pattern under ignore: no tensor without an entry matches {pattern}"
            for pattern in self.names.ignored
            if not any(map(matcher([pattern, self.prefix + pattern]).fullmatch, self.ignored))
        ]
        return problems + [
            f"tensor {name}: expected a dtype of {', '.join(SAFETENSORS_DTYPES)}; received {tensors[name].dtype}"
            for name in self.ignored
            if tensors[name].dtype.name not in SAFETENSORS_DTYPES
        ]

    @cached_property
    def tensors(self) -> Tensors:
        """The tensors that the parameters are made of."""
        tensors, ignored = self.checkpoint.tensors, set(self.ignored)
        return Relocated({name: (tensors, name) for name in tensors if name not in ignored}) if ignored else tensors

    @cached_property
    def kept(self) -> Tensors | None:
        """The ignored tensors that the model keeps: all for a map; for a dialect's file the numbers, such as versions,
        which programs ask for; what a family's program loads and nothing reads."""
        tensors, kept = self.checkpoint.tensors, self.ignored
        if self.names is None:
            of_family = () if self.table.config_file is None else self.table.config_file.kept
            of_file = [name for name in kept if self.directory is None and tensors[name].size == 1]
            kept = [name for name in kept if name in of_family or name in of_file]
        return Relocated({name: (tensors, name) for name in kept}) if kept else None


def identify(
    source: Source, dialect: str | None = None, names: NameMap | None = None, *, with_settings: bool = True
) -> KnownCheckpoint:
    """Opens a file, a state_dict, a directory of transformers (or its name on the Hub) or another program's format, and
    finds its dialect; for a file that was exported by a map of names, the map.

    Args:
      dialect: the dialect, if it is known.
      names: the map, for a program of no dialect.
      with_settings: read the settings of a file that was exported by a map.

    Raises:
      PortingError: it can't be read; its dialect is unknown, one of several, or another than the given one.
    """
    foreign = directory = None
    if names is None and not isinstance(source, Mapping):
        foreign = open_format(source)
        directory = open_directory(source) if foreign is None else None
    if directory is not None:
        dialect = _agreed(source, dialect, directory.table.name, "config.json")
        source = directory.tensors
    elif foreign is not None:
        dialect = _agreed(source, dialect, foreign.dialect, foreign.where)
        source = foreign.tensors if foreign.tensors is not None else source
    if names is not None and not isinstance(source, Mapping) and Path(source).is_dir():
        raise PortingError(f"{source}: a map reads a file of tensors; received a directory: name the file in it")
    content = source if isinstance(source, Mapping) else read_tensors(source)
    if names is None and foreign is None:
        foreign = read_settings_of("the checkpoint" if isinstance(source, Mapping) else os.fspath(source), content)
        if foreign is not None and dialect not in (None, foreign.dialect):
            foreign = None  # another program's options, whose names are the given dialect's
        if foreign is not None:
            dialect, content = foreign.dialect, content if foreign.tensors is None else foreign.tensors
    table = None if dialect is None else get_dialect(dialect)
    wrapped = _Wrapped.of(source, content)
    known = names or _by_dialect(wrapped, table, directory, foreign)
    return _by_map(wrapped, known, with_settings=with_settings) if isinstance(known, NameMap) else known


def _agreed(source: Source, given: str | None, said: str, where: str) -> str:
    """Returns the dialect that a checkpoint's own settings say. Raises PortingError if another one is given."""
    if given in (None, said):
        return said
    what = "the checkpoint" if isinstance(source, Mapping) else os.fspath(source)
    raise PortingError(f"{what}: dialect must be {said!r}, as its {where} says; received {given!r}")


def _by_dialect(
    wrapped: _Wrapped, table: Dialect | None, directory: HuggingFaceModel | None, foreign: Foreign | None
) -> KnownCheckpoint | NameMap:
    """Unwraps a checkpoint of a dialect; returns the map of names instead if the file was exported by one."""
    tables = all_dialects().values() if table is None else (table,)
    is_known = table.recognises if table is not None else lambda names: bool(candidates(names))
    checkpoint = _unwrapped(wrapped, is_known, {table.base_prefix for table in tables})
    settings = read_settings(checkpoint.settings, None if table is None else table.name, wrapped.path or "state_dict")
    if settings is not None and settings.dialect == MAP:
        return NameMap.parse(settings.names, "the map in the file")
    if settings is not None:
        table = get_dialect(settings.dialect)
    table = table or detect(checkpoint.tensors.keys())
    return KnownCheckpoint(checkpoint, table, settings, directory, foreign=foreign)


def _by_map(wrapped: _Wrapped, names: NameMap, *, with_settings: bool) -> KnownCheckpoint:
    """Unwraps a checkpoint by a map, under its own names: of several state_dicts the one that the map names, with all
    tensors elsewhere that it names too."""
    checkpoint = _unwrapped(wrapped, names.knows, names=names.parameters)
    what = wrapped.path or "the state_dict"
    settings = (
        read_settings(checkpoint.settings, MAP, what) if with_settings else None
    )  # a dialect's file leaves out fields
    prefix = names.prefix_in(checkpoint.tensors)
    placed = names.under(prefix)
    rules = placed.rules()
    return KnownCheckpoint(checkpoint, dialect_of_map(placed, rules), settings, None, names, rules, prefix, what)


def open_directory(path: str | os.PathLike[str]) -> HuggingFaceModel | None:
    """Reads a directory of transformers, or a model on the Hub; None if the path is neither.

    Raises:
      PortingError: see `read_directory` and `download`.
    """
    on_hub = hub_name(path)
    directory = download(on_hub) if on_hub else path
    return read_directory(directory) if os.path.isdir(directory) else None


# --- wrapping


class _Wrapped(NamedTuple):
    """Holds the content of a file, or a state_dict, that may be wrapped."""

    content: Mapping[str, Any]
    path: str
    """The file; "" for a state_dict in memory."""
    is_in_order: bool

    @classmethod
    def of(cls, source: Source, content: Mapping[str, Any]) -> _Wrapped:
        """Describes the content of a source."""
        if isinstance(source, Mapping):
            return cls(content, "", not isinstance(source, SafetensorsFile | Relocated))
        return cls(content, os.fspath(source), os.fspath(source).endswith(TORCH_SUFFIXES))


def open_checkpoint(
    source: Source,
    recognised: Callable[[Collection[str]], bool],
    base_prefixes: Collection[str] = (),
    names: Collection[str] = (),
) -> Checkpoint:
    """Reads the tensors of a file or a state_dict; if a file has several state_dicts, the one with recognised names.

    Some programs save a part of a model apart from the rest (OpenNMT-py its head, under "generator"). Such a part is
    joined to the rest, its key before its names, if `names` has these, or if nothing is recognised without it and no
    two of the state_dicts have a name in common.

    A prefix (nn.DataParallel's "module.", torch.compile's "_orig_mod.", the attribute of a wrapping module) is removed
    if the names are recognised only without it; names that don't begin with it stay as they are. One of `base_prefixes`
    is added to all names if they are recognised only so.

    Raises:
      PortingError: see `read_tensors`; several such state_dicts in one file, or none.
    """
    content = source if isinstance(source, Mapping) else read_tensors(source)
    return _unwrapped(_Wrapped.of(source, content), recognised, base_prefixes, names)


def _unwrapped(
    wrapped: _Wrapped,
    recognised: Callable[[Collection[str]], bool],
    base_prefixes: Collection[str] = (),
    names: Collection[str] = (),
) -> Checkpoint:
    """Takes a state_dict out of what it is wrapped in, as `open_checkpoint` does."""

    def prefix_of(names: Collection[str]) -> str | None:
        """Returns the shortest prefix without which the names are recognised; None if there is none."""
        return next((prefix for prefix in prefixes(names) if recognised(_without(prefix, names))), None)

    inside, parts, content = "", tuple[str, ...](), wrapped.content
    if not is_state_dict(content):
        content, inside, parts = _only_state_dict(content, wrapped.path or "state_dict", prefix_of, names)
    tensors = as_arrays(content)
    prefix, settings = prefix_of(tensors), settings_of(tensors)
    if prefix is None:
        added = next((base for base in base_prefixes if base and recognised([base + name for name in tensors])), "")
        renamed = Relocated({added + name: (tensors, name) for name in tensors}) if added else tensors
        return Checkpoint(renamed, "", added, inside, parts, settings, wrapped.is_in_order)
    named = _without_prefix(tensors, prefix) if prefix else tensors
    return Checkpoint(named, prefix, "", inside, parts, settings, wrapped.is_in_order)


def _only_state_dict(
    content: Mapping[str, Any],
    what: str,
    prefix_of: Callable[[Collection[str]], str | None],
    names: Collection[str],
) -> tuple[Mapping[str, Any], str, tuple[str, ...]]:
    """Returns the only state_dict in a dict, or the only one of a known model, its key (or keys, joined by dots), and
    the keys of its parts that were joined to it."""
    found = dict(_state_dicts(content))
    known = {key: value for key, value in found.items() if prefix_of(value) is not None}
    if len(known or found) == 1:
        ((key, value),) = (known or found).items()
        prefixed = {other: f"{_last(other)}." for other in found if _folder(other) == _folder(key) and other != key}
        parts = [other for other, prefix in prefixed.items() if any(prefix + name in names for name in found[other])]
        return _joined(value, {other: found[other] for other in parts}), key, tuple(map(_last, parts))
    if found and not known and _are_parts(found):
        key, *parts = sorted(found, key=lambda key: len(found[key]), reverse=True)
        return _joined(found[key], {other: found[other] for other in parts}), key, tuple(map(_last, parts))
    if found:
        listed = ", ".join(map(repr, known or found))
        raise PortingError(
            f"{what}: expected one state_dict; received several, under {listed}. Save the intended one on its own "
            "or, if all are parts of one model, as one state_dict with the names that the model has for them."
        )
    as_arrays(content, what)  # raises for what is there instead
    raise PortingError(f"{what}: expected a state_dict; received none")


def _are_parts(found: Mapping[str, Mapping[str, Any]]) -> bool:
    """Returns whether state_dicts may be parts of one model: they lie in one dict, and no two have a name in common,
    as copies would have."""
    names = [name for tensors in found.values() for name in tensors]
    return len({_folder(key) for key in found}) == 1 and len({*names}) == len(names)


def _joined(tensors: Mapping[str, Any], parts: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    """Returns the tensors together with each part's, under its key."""
    if not parts:
        return tensors
    return {
        **tensors,
        **{f"{_last(key)}.{name}": tensor for key, part in parts.items() for name, tensor in part.items()},
    }


def _folder(key: str) -> str:
    return key.rpartition(".")[0]


def _last(key: str) -> str:
    return key.rpartition(".")[2]


def _state_dicts(content: Mapping[str, Any], keys: tuple[str, ...] = ()) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields the state_dicts in a dict, and in dicts in it, with their keys."""
    for key, value in content.items():
        if isinstance(value, Mapping) and value:
            if is_state_dict(value):
                yield ".".join((*keys, str(key))), value
            else:
                yield from _state_dicts(value, (*keys, str(key)))


def _without(prefix: str, names: Collection[str]) -> list[str]:
    """Returns the names that begin with the prefix, without it."""
    return [name.removeprefix(prefix) for name in names if name.startswith(prefix)]


def _without_prefix(tensors: Tensors, prefix: str) -> Tensors:
    """Returns the same tensors under shorter names. (A name that would collide with another stays as it is.)"""
    return Relocated(
        {name if (short := name.removeprefix(prefix)) in tensors else short: (tensors, name) for name in tensors}
    )


# --- settings of exported files


def read_settings(text: str | None, dialect: str | None, what: str) -> ExportedSettings | None:
    """Returns the settings of a file that was exported here, unless another dialect is asked for.

    Args:
      text: the JSON; None for other files.
      dialect: the dialect that is asked for, or `MAP`; None: any.
      what: the name of the file, for messages.

    Raises:
      PortingError: as of `parse_settings`, unless a dialect is asked for.
    """
    if text is None:
        return None
    try:
        settings = parse_settings(text, what)
    except PortingError:
        if dialect in (None, MAP):
            raise
        return None
    return settings if dialect in (None, settings.dialect) else None


def parse_settings(text: str, what: str) -> ExportedSettings:
    """Reads `settings_text`.

    Args:
      text: the JSON.
      what: the name of the file, for messages.

    Raises:
      PortingError: the text isn't what this or an older version writes.
    """
    try:
        content = parse_json(text)
        if content["version"] > VERSION:
            raise PortingError(
                f"{what}: a newer version exported this file (settings version {content['version']}; this one reads up "
                f"to {VERSION}). Upgrade, or give the dialect and its settings by name"
            )
        settings = ExportedSettings(
            content["dialect"],
            content["config"],
            content["generation"],
            content.get("names", ""),
            content.get("parts"),
        )
        generation_fields = {field.name for field in dataclasses.fields(GenerationConfig)}
        known = settings.config.keys() <= {*option_names()} and settings.generation.keys() <= generation_fields
        texts = isinstance(settings.dialect, str) and isinstance(settings.names, str)
        if not texts or not known or not isinstance(settings.parts, dict | None):
            raise ValueError("unknown settings")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, PortingError):
            raise
        raise PortingError(
            f"{what}: expected in its metadata the settings that export_checkpoint writes; received {text[:60]!r}. "
            "Give the dialect by name to leave them unread"
        ) from None
    return settings


def settings_text(model: Model, table: Dialect, names: str = "") -> str:
    """Returns a model's dialect or map of names, config and generation settings as JSON."""
    config = {
        name: getattr(model.config, name)
        for name in option_names()
        if has_one_value(model.config, name) and not _is_decided(table, name)
    }
    generation = {name: value for name, value in dataclasses.asdict(model.generation).items() if value is not None}
    parts = {} if is_one_level(model.config) else {"parts": dataclasses.asdict(model.config)}
    version = {"version": VERSION if parts else WITHOUT_PARTS}
    content = version | {"dialect": table.name, "config": config, "generation": generation} | parts
    return json.dumps(content | ({"names": names} if names else {}))


def _is_decided(table: Dialect, name: str) -> bool:
    """Returns whether all models of a dialect have one value of an option."""
    is_default = changes_the_function(name) and name not in table.mentions and not table.has_all_options
    return name in table.fixed or is_default
