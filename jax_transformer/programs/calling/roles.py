"""Guesses the role of each parameter of a function from its name and place."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from jax_transformer.programs.calling.records import Kind, record

Role = Literal[
    "source",
    "target",
    "labels",
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
    "is_causal",
    "language",
    "device",
    "size",
    "other",
]

SOURCE = {"src", "source", "sources", "enc", "encoder", "article", "question", "sentence"}
WEAK_SOURCE = {"input", "inputs", "inp", "x", "xs", "e", "s", "in", "i"}
TARGET = {
    "tgt",
    "trg",
    "target",
    "targets",
    "dec",
    "decoder",
    "tar",
    "prev",
    "shifted",
    "labels",
    "label",
    "reply",
    "answer",
}
LABELS = {"labels", "label", "targets", "gold", "golds", "truth"}
WEAK_TARGET = {"output", "outputs", "out", "y", "ys", "d", "t"}
MASK = {"mask", "masks", "masking", "msk", "padding", "nopeak", "peek", "causal", "lookahead", "subsequent", "bias"}
CAUSAL = {"nopeak", "peek", "causal", "ahead", "lookahead", "subsequent", "future", "triangular", "tri"}
PLAINLY_CAUSAL = {"causal", "future", "triangular", "tri"}
SWITCHES = {"is", "use", "causal"}
PADDING = {"pad", "padding"}
CROSS = {"memory", "mem", "cross", "inter", "context"}
IDS = {"idx", "id", "index", "token", "symbol", "value"}
LENGTHS = {"len", "lens", "length", "lengths", "valid", "sizes"}
LANGUAGES = {"lang", "langs", "language", "languages"}
POSITIONS = {"pos", "position", "positions"}
RESULT = {"out", "output", "outputs", "hidden", "hiddens", "state", "states", "result", "memory", "features", "outs"}
MEMORY = {"memory", "mem", "memories", "context", "ctx", "z", "encoded", "encodings", "encoding", "latent", "bank"}


@dataclass(frozen=True)
class Parameter:
    """Describes a parameter of a function to call, or a part of a compound one."""

    name: str
    role: Role
    is_required: bool
    by_keyword: bool = False
    holder: str = ""
    """The parameter that this is a part of."""
    holder_kind: Kind = "mapping"
    key: str = ""
    """The part's name in its holder."""
    is_guess: bool = False
    """Whether it is assumed to take ids although its name doesn't suggest it."""

    @property
    def is_padding(self) -> bool:
        """Returns whether the name says that a mask covers padding."""
        return bool({*words(self.name)} & PADDING)

    @property
    def is_causal(self) -> bool:
        """Returns whether the name says that a mask hides later positions."""
        return bool({*words(self.name)} & CAUSAL)

    @property
    def is_plainly_causal(self) -> bool:
        """Returns whether the name says that a mask hides only later positions."""
        return bool({*words(self.name)} & PLAINLY_CAUSAL) and not self.is_padding

    @property
    def names_a_side(self) -> bool:
        """Returns whether the name has a word of one side, such as `src` or `decoder`, and none of its results."""
        found = {*words(self.name)}
        return bool(found & (SOURCE | TARGET)) and not found & RESULT

    @property
    def is_mask(self) -> bool:
        """Returns whether the parameter takes a mask."""
        return self.role.endswith("_mask")


def words(name: str) -> list[str]:
    """Splits an identifier into lowercase words: 'encoderOutput_2' → encoder, output, 2."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)]


def parameters(function: Callable[..., Any], *, has_memory: bool = False, side: str = "") -> list[Parameter]:
    """Lists a function's parameters with their roles, in order; for compound ones, their parts.

    Args:
      has_memory: whether it is a decoder, which receives the encoder's output.
      side: "source" for an encoder and "target" for a decoder; the side of parameters whose names don't show one.
    """
    found = list(inspect.signature(function).parameters.values())
    named = [one for one in found if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    parts = [part for one in named for part in _parts(function, one, _role(one.name, has_memory, side))]
    for one in found:
        if one not in named:
            parts += _variadic(function, one, has_memory, side)
    if not named and not parts and any(one.kind is one.VAR_POSITIONAL for one in found):
        return [Parameter(role, role, True) for role in _usual(has_memory, side)]
    taken = {one.name for one in named}
    for number, part in enumerate(parts):
        if part.holder:
            name = f"{part.holder}_{part.key}" if part.key in taken or not part.key.isidentifier() else part.key
            parts[number] = replace(part, name=name, role=_role(part.key, has_memory, side))
    return _with_ids(parts, has_memory, side)


def _parts(function: Callable[..., Any], one: inspect.Parameter, role: Role) -> list[Parameter]:
    """Returns a parameter, or the parts of a compound one."""
    needed, by_keyword = one.default is one.empty, one.kind is one.KEYWORD_ONLY
    held = record(function, one.name) if needed else None
    if held is None or (held.kind == "sequence" and role != "other" and {*words(one.name)} & (SOURCE | TARGET)):
        return [Parameter(one.name, role, needed, by_keyword)]
    return [
        Parameter(item.name, "other", item.is_required, by_keyword, one.name, held.kind, item.name)
        for item in held.items
    ]


def _variadic(function: Callable[..., Any], one: inspect.Parameter, has_memory: bool, side: str) -> list[Parameter]:
    """Lists the parts that a function takes out of its `*arguments` or `**keywords`."""
    held = record(function, one.name)
    by_keyword = one.kind is one.VAR_KEYWORD
    if held is None or held.kind != ("mapping" if by_keyword else "sequence"):
        return []
    return [
        Parameter(item.name, _role(item.name, has_memory, side), True, by_keyword)
        for item in held.items
        if item.is_required
    ]


def _usual(has_memory: bool, side: str) -> list[Role]:
    if side == "source":
        return ["source"]
    return ["target", "memory"] if has_memory else ["source", "target"]


def _role(name: str, has_memory: bool, side: str) -> Role:
    """Returns the role that a name suggests; "other" if it suggests none."""
    found = {*words(name)}
    letters = {name[0], name[-1]} if len(name) == 2 else set()
    is_source = bool(found & SOURCE)
    is_target = bool(found & TARGET)
    if "device" in found:
        return "device"
    if found & LANGUAGES:
        return "language"
    if found & PADDING and found & IDS and not found & {"mask", "masks"}:
        return "target_pad" if is_target else "source_pad"
    if "causal" in found and found <= SWITCHES:
        return "is_causal"
    if found & (MASK | PADDING):
        return _mask_role(found, has_memory, side)
    if found & POSITIONS:
        return "target_positions" if is_target or (side == "target" and not is_source) else "source_positions"
    if found & LENGTHS:
        if found & {"max", "maximum", "batch"}:
            return "size"
        reads_target = is_target or (side == "target" and not found & CROSS)
        return "target_lengths" if reads_target and not is_source else "source_lengths"
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


def _with_ids(parts: list[Parameter], has_memory: bool, side: str) -> list[Parameter]:
    """Keeps one parameter for each kind of ids; if no name shows one, assumes the first parameters."""
    parts = list(parts)
    for wanted in _usual(has_memory, side):
        places = [place for place, part in enumerate(parts) if part.role == wanted]
        kept = min(places, key=lambda place: _likelihood(parts[place]), default=None)
        for place in places:
            if place != kept:
                spare: Role = "labels" if wanted == "target" and parts[place].is_required else "other"
                parts[place] = replace(parts[place], role=spare)
    for wanted in _usual(has_memory, side):
        if any(part.role == wanted for part in parts):
            continue
        others = [place for place, part in enumerate(parts) if part.role == "other"]
        free = [place for place in others if parts[place].is_required]
        if wanted == "memory":
            free += [place for place, part in enumerate(parts) if part.role == "source"]
        for place in [*free, *others][:1]:
            parts[place] = replace(parts[place], role=wanted, is_guess=True)
    return parts


def _likelihood(part: Parameter) -> tuple[bool, bool, bool]:
    """Returns the sort key of parameters for the same ids: required ones first, then inputs before labels, then those
    whose name has a side's word before letters such as `x`."""
    return not part.is_required, bool({*words(part.name)} & LABELS), not part.names_a_side
