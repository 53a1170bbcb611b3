"""Guess what each parameter of a function is for, from its name and place."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Role = Literal[
    "source",
    "target",
    "memory",
    "source_mask",
    "target_mask",
    "cross_mask",
    "any_mask",
    "source_lengths",
    "target_lengths",
    "source_positions",
    "target_positions",
    "source_pad",
    "target_pad",
    "device",
    "size",
    "other",
]

SOURCE = {"src", "source", "sources", "enc", "encoder", "article", "question", "sentence"}
WEAK_SOURCE = {"input", "inputs", "inp", "x", "xs", "e", "s", "in", "i"}
TARGET = {"tgt", "trg", "target", "targets", "dec", "decoder", "tar", "prev", "labels", "label", "reply", "answer"}
WEAK_TARGET = {"output", "outputs", "out", "y", "ys", "d", "t"}
MASK = {"mask", "masks", "masking", "msk", "padding", "nopeak", "peek", "causal", "lookahead", "subsequent", "bias"}
CAUSAL = {"nopeak", "peek", "causal", "ahead", "lookahead", "subsequent", "future", "triangular", "tri"}
PLAINLY_CAUSAL = {"causal", "future", "triangular", "tri"}
PADDING = {"pad", "padding"}
CROSS = {"memory", "mem", "cross", "inter", "context"}
IDS = {"idx", "id", "index", "token", "symbol", "value"}
LENGTHS = {"len", "lens", "length", "lengths", "valid", "sizes"}
POSITIONS = {"pos", "position", "positions"}
RESULT = {"out", "output", "outputs", "hidden", "hiddens", "state", "states", "result", "memory", "features", "outs"}
MEMORY = {"memory", "mem", "memories", "context", "ctx", "z", "encoded", "encodings", "encoding", "latent", "bank"}


@dataclass(frozen=True)
class Parameter:
    """Describes a parameter of a function to call."""

    name: str
    role: Role
    is_required: bool
    by_keyword: bool
    is_padding: bool = False
    """Whether the name says that a mask covers padding."""
    is_causal: bool = False
    """Whether the name says that a mask hides later positions."""
    is_plainly_causal: bool = False
    """Whether the name says that it does nothing else."""

    @property
    def is_mask(self) -> bool:
        """Returns whether it takes a mask."""
        return self.role.endswith("_mask")


def words(name: str) -> list[str]:
    """Returns the lowercase words of an identifier: 'encoderOutput_2' → encoder, output, 2."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)]


def parameters(function: Callable[..., Any], *, has_memory: bool = False, side: str = "") -> list[Parameter]:
    """Returns a function's parameters with their roles, in order.

    Args:
      has_memory: whether it is a decoder, which receives the encoder's output.
      side: "source" for an encoder and "target" for a decoder; that of names that don't tell.
    """
    found = list(inspect.signature(function).parameters.values())
    named = [one for one in found if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    if not named and any(one.kind is one.VAR_POSITIONAL for one in found):
        return [_variadic(role) for role in _usual(has_memory, side)]
    roles = [_role(one.name, has_memory, side) for one in named]
    required = [one.default is one.empty for one in named]
    _fill_ids(roles, required, has_memory, side)
    return [
        Parameter(
            one.name,
            role,
            needed,
            one.kind is one.KEYWORD_ONLY,
            bool({*words(one.name)} & PADDING),
            bool({*words(one.name)} & CAUSAL),
            bool({*words(one.name)} & PLAINLY_CAUSAL) and not {*words(one.name)} & PADDING,
        )
        for one, role, needed in zip(named, roles, required, strict=True)
    ]


def _variadic(role: Role) -> Parameter:
    return Parameter(role, role, True, False)


def _usual(has_memory: bool, side: str) -> list[Role]:
    if side == "source":
        return ["source"]
    return ["target", "memory"] if has_memory else ["source", "target"]


def _role(name: str, has_memory: bool, side: str) -> Role:
    """Returns the role that a name suggests; "other" where it suggests none."""
    found = {*words(name)}
    letters = {name[0], name[-1]} if len(name) == 2 else set()
    is_source = bool(found & SOURCE)
    is_target = bool(found & TARGET)
    if "device" in found:
        return "device"
    if found & PADDING and found & IDS and not found & {"mask", "masks"}:
        return "target_pad" if is_target else "source_pad"
    if found & (MASK | PADDING):
        return _mask_role(found, has_memory, side)
    if found & POSITIONS:
        return "target_positions" if is_target or (side == "target" and not is_source) else "source_positions"
    if found & LENGTHS:
        if found & {"max", "maximum", "batch"}:
            return "size"
        return "target_lengths" if is_target and not is_source else "source_lengths"
    if has_memory and (found & MEMORY or (found & SOURCE and found & RESULT) or {"e", "o"} == letters):
        return "memory"
    if not has_memory and (found & {"memory", "mem"} or (found & SOURCE and found & (RESULT - {"output", "outputs"}))):
        return "other"
    if is_source and is_target:
        return "target" if words(name)[0] in TARGET else "source"
    if is_target:
        return "target" if side != "source" else "other"
    if is_source:
        return "memory" if has_memory and side == "target" and found & RESULT else "source"
    if found & WEAK_SOURCE:
        return "target" if side == "target" else "source"
    if found & WEAK_TARGET and side != "source":
        return "target"
    return "other"


def _mask_role(found: set[str], has_memory: bool, side: str) -> Role:
    is_source = bool(found & (SOURCE | WEAK_SOURCE))
    is_target = bool(found & (TARGET | WEAK_TARGET))
    if found & CROSS or (is_source and is_target):
        return "cross_mask"
    if is_target or found & CAUSAL:
        return "target_mask"
    if is_source:
        return "cross_mask" if has_memory else "source_mask"
    if side == "source":
        return "source_mask"
    return "any_mask"


def _fill_ids(roles: list[Role], required: list[bool], has_memory: bool, side: str) -> None:
    """Gives the ids to the first parameters whose names don't tell, and keeps one parameter per kind of ids."""
    for wanted in _usual(has_memory, side):
        places = [number for number, role in enumerate(roles) if role == wanted]
        if len(places) > 1:  # the first that must be given
            kept = next((number for number in places if required[number]), places[0])
            for number in places:
                roles[number] = roles[number] if number == kept else "other"
    for wanted in _usual(has_memory, side):
        if wanted in roles:
            continue
        free = [number for number, role in enumerate(roles) if role == "other"]
        free = [number for number in free if required[number]] or free
        if free:
            roles[free[0]] = wanted
