"""What a state_dict comes wrapped in: a dict around it, and a prefix before all of its names."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jax_transformer.mapping.maps import prefixes
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


def open_checkpoint(
    source: str | os.PathLike[str] | Mapping[str, Any],
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


def leaving_out(tensors: Tensors, names: Collection[str]) -> Tensors:
    """Returns the other tensors."""
    return Relocated({name: (tensors, name) for name in tensors if name not in names})
