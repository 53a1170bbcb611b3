"""Open a checkpoint: take its state_dict out of what it is wrapped in, a dict around it and a prefix before all of its
names, and find the dialect, or the map of names, that it is read by.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from jax_transformer.mapping.maps import NameMap, prefixes
from jax_transformer.mapping.rules import matcher
from jax_transformer.porting.dialects import Dialect, all_dialects, candidates, detect, get_dialect
from jax_transformer.porting.exported_settings import ExportedSettings, parse_settings
from jax_transformer.porting.hugging_face import HuggingFaceModel, download, read_directory
from jax_transformer.porting.names_of_dialects import NAME as MAP
from jax_transformer.porting.names_of_dialects import computed_positions, dialect_of_map
from jax_transformer.storage.hub import hub_name
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

Source = str | os.PathLike[str] | Mapping[str, Any]


@dataclass(frozen=True)
class Checkpoint:
    """Holds an unwrapped state_dict."""

    tensors: Tensors
    prefix: str = ""
    """What stood before the model's names and is taken off, such as "module."."""
    added: str = ""
    """What is put before the model's names, because the checkpoint was saved without the part that needs it (see
    Dialect.base_prefix)."""
    inside: str = ""
    """The key under which the state_dict lay in the file's dict; "" where the file is one."""
    parts: tuple[str, ...] = ()
    """The keys beside it whose state_dicts are parts of the model too: each stands before the names of its part."""
    settings: str | None = None
    """The text that `export_checkpoint` wrote beside the tensors."""
    is_in_order: bool = False
    """Whether the tensors stand in the order in which their module lists them."""

    def described(self) -> str:
        """Describes what was unwrapped; empty if nothing was."""
        parts = [
            f"the state_dict lies under {self.inside!r}" if self.inside else "",
            *(f"its part {part!r} lies beside it" for part in self.parts),
            f"the model's names begin with {self.prefix!r}" if self.prefix else "",
            f"the model's names lack {self.added!r}" if self.added else "",
        ]
        return ", and ".join(filter(None, parts))


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
    prefix: str = ""
    """What stands before the names of the map."""

    @cached_property
    def ignored(self) -> list[str]:
        """The names of tensors that the dialect or the map leaves out."""
        ignored = self.table.ignores(self.checkpoint.tensors)
        if self.names is None:
            return ignored
        mapped = matcher(name for rule in self.names.under(self.prefix).rules() for name in rule.all_names)
        return [name for name in ignored if not mapped.fullmatch(name)]

    @cached_property
    def tensors(self) -> Tensors:
        """The tensors that the parameters are made of."""
        tensors, ignored = self.checkpoint.tensors, set(self.ignored)
        return Relocated({name: (tensors, name) for name in tensors if name not in ignored}) if ignored else tensors


def identify(source: Source, dialect: str | None) -> KnownCheckpoint:
    """Opens a file, a state_dict or a directory of transformers (or its name on the Hub), and finds its dialect; for a
    file that was exported by a map of names, the map.

    Raises:
      PortingError: it can't be read; its dialect is unknown, one of several, or another than the given one.
    """
    directory = None if isinstance(source, Mapping) else open_directory(source)
    if directory is not None:
        name = directory.table.name
        if dialect not in (None, name):
            raise PortingError(f"{source}: dialect must be {name!r}, as its config.json says; received {dialect!r}")
        source, dialect = directory.tensors, name
    tables = all_dialects().values() if dialect is None else (get_dialect(dialect),)
    is_known = get_dialect(dialect).recognises if dialect is not None else lambda names: bool(candidates(names))
    checkpoint = open_checkpoint(source, is_known, {table.base_prefix for table in tables})
    settings = _settings(checkpoint, dialect, "state_dict" if isinstance(source, Mapping) else str(source))
    if settings is not None and settings.dialect == MAP:
        return open_by_map(source, NameMap.parse(settings.names, "the map in the file"))
    dialect = settings.dialect if settings is not None else dialect
    table = get_dialect(dialect) if dialect is not None else detect(checkpoint.tensors.keys())
    return KnownCheckpoint(checkpoint, table, settings, directory)


def open_by_map(source: Source, names: NameMap, *, with_settings: bool = True) -> KnownCheckpoint:
    """Opens a file or a state_dict by a map, under its own names; if a file has several state_dicts, the one whose names
    the map has, with the tensors of the others that it has too.

    Args:
      with_settings: read the settings of a file that was exported by a map. (A dialect's file leaves out fields.)

    Raises:
      PortingError: the file can't be read; it is a directory.
    """
    if not isinstance(source, Mapping) and Path(source).is_dir():
        raise PortingError(f"{source}: a map reads a file of tensors; received a directory: name the file in it")
    checkpoint = open_checkpoint(source, names.knows, names=names.parameters)
    settings = _settings(checkpoint, MAP, name_of(source)) if with_settings else None
    prefix = names.prefix_in(checkpoint.tensors)
    placed = names.under(prefix)
    table = dialect_of_map(placed, lambda config: computed_positions(placed, config))
    return KnownCheckpoint(checkpoint, table, settings, None, names, prefix)


def name_of(source: Source) -> str:
    """Returns what messages call a source."""
    return "the state_dict" if isinstance(source, Mapping) else os.fspath(source)


def _settings(checkpoint: Checkpoint, dialect: str | None, what: str) -> ExportedSettings | None:
    """Returns the settings of a file that was exported here, unless another dialect is asked for."""
    if checkpoint.settings is None:
        return None
    try:
        settings = parse_settings(checkpoint.settings, what)
    except PortingError:
        if dialect in (None, MAP):
            raise
        return None
    return settings if dialect in (None, settings.dialect) else None


def open_directory(path: str | os.PathLike[str]) -> HuggingFaceModel | None:
    """Reads a directory of transformers, or a model on the Hub; None if the path is neither.

    Raises:
      PortingError: see `read_directory` and `download`.
    """
    on_hub = hub_name(path)
    directory = download(on_hub) if on_hub else path
    return read_directory(directory) if os.path.isdir(directory) else None


# --- wrapping


def open_checkpoint(
    source: Source,
    recognised: Callable[[Collection[str]], bool],
    base_prefixes: Collection[str] = (),
    names: Collection[str] = (),
) -> Checkpoint:
    """Reads the tensors of a file or a state_dict; if a file has several state_dicts, the one with recognised names.

    Some programs save a part of a model beside the rest (OpenNMT-py its head, under "generator"). Such a part is joined
    to the rest, its key before its names, if `names` has those, or if nothing is recognised without it and no two of
    the state_dicts have a name in common.

    A prefix (nn.DataParallel's "module.", torch.compile's "_orig_mod.", the attribute of a wrapping module) is removed
    if the names are recognised only without it; names that don't begin with it stay as they are. One of `base_prefixes`
    is added to all names if they are recognised only so.

    Raises:
      PortingError: see `read_tensors`; several such state_dicts in one file, or none.
    """

    def prefix_of(names: Collection[str]) -> str | None:
        """Returns the shortest prefix without which the names are recognised; None if there is none."""
        return next((prefix for prefix in prefixes(names) if recognised(_without(prefix, names))), None)

    inside, parts = "", tuple[str, ...]()
    content: Mapping[str, Any] = source if isinstance(source, Mapping) else read_tensors(source)
    if not is_state_dict(content):
        content, inside, parts = _only_state_dict(
            content, "state_dict" if isinstance(source, Mapping) else str(source), prefix_of, names
        )
    tensors = as_arrays(content)
    is_in_order = (
        os.fspath(source).endswith(TORCH_SUFFIXES)
        if not isinstance(source, Mapping)
        else (not isinstance(source, SafetensorsFile | Relocated))
    )
    prefix, settings = prefix_of(tensors), settings_of(tensors)
    if prefix is None:
        added = next((base for base in base_prefixes if base and recognised([base + name for name in tensors])), "")
        renamed = Relocated({added + name: (tensors, name) for name in tensors}) if added else tensors
        return Checkpoint(renamed, "", added, inside, parts, settings, is_in_order)
    named = _without_prefix(tensors, prefix) if prefix else tensors
    return Checkpoint(named, prefix, "", inside, parts, settings, is_in_order)


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
        beside = {other: f"{_last(other)}." for other in found if _folder(other) == _folder(key) and other != key}
        parts = [other for other, prefix in beside.items() if any(prefix + name in names for name in found[other])]
        return _joined(value, {other: found[other] for other in parts}), key, tuple(map(_last, parts))
    if found and not known and _are_parts(found):
        key, *parts = sorted(found, key=lambda key: len(found[key]), reverse=True)
        return _joined(found[key], {other: found[other] for other in parts}), key, tuple(map(_last, parts))
    if found:
        listed = ", ".join(map(repr, known or found))
        raise PortingError(
            f"{what}: expected one state_dict; received several, under {listed}. Save the one that is meant by itself "
            "or, if all are parts of one model, as one state_dict with the names that the model has for them."
        )
    as_arrays(content, what)  # tells what is there instead
    raise PortingError(f"{what}: expected a state_dict; received none")


def _are_parts(found: Mapping[str, Mapping[str, Any]]) -> bool:
    """Returns whether state_dicts may be parts of one model: they lie side by side, and no two have a name in common,
    as copies would have."""
    names = [name for tensors in found.values() for name in tensors]
    return len({_folder(key) for key in found}) == 1 and len({*names}) == len(names)


def _joined(tensors: Mapping[str, Any], parts: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    """Returns the tensors with those of each part, under its key."""
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
