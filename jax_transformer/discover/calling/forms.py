"""List the functions of a module that may take the ids, and write calls of them as lines."""

from __future__ import annotations

import inspect
import keyword
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jax_transformer.discover.calling.options import Option, definitions
from jax_transformer.discover.calling.roles import Parameter, parameters, words

if TYPE_CHECKING:
    from torch import nn

SHIFTS = {
    "": "",
    "append": "decoder_input_ids = torch.cat([decoder_input_ids, decoder_input_ids[:, -1:]], 1)",
    "drop": "decoder_input_ids = decoder_input_ids[:, 1:]",
    "left": "decoder_input_ids = torch.cat([decoder_input_ids[:, 1:], decoder_input_ids[:, -1:]], 1)",
}
"""How the target is changed before a module that shifts it itself."""

LAYOUTS = ("{}", "{}.T", "{}[:, :, None]", "{}.T[:, :, None]")
"""How a module may want its ids: [B, S], [S, B], [B, S, 1], [S, B, 1]."""

TAKEN = {"self", "torch", "nn", "source_ids", "decoder_input_ids", "memory", "output"}
TAKEN |= {"source_real", "target_real", "length", "earlier", "dtype"}

Assignment = Mapping[tuple[int, str], Option]
"""(stage, parameter) → what is given for it."""


@dataclass(frozen=True)
class Stage:
    """Holds a function to call and its parameters."""

    function: str
    parameters: tuple[Parameter, ...]


@dataclass(frozen=True)
class Form:
    """Holds the functions that make logits one after the other, and how the ids are given."""

    stages: tuple[Stage, ...]
    source: str = "source_ids"
    target: str = "decoder_input_ids"

    def write(self, chosen: Assignment, shift: str, pads: tuple[int, int], ending: str) -> list[str]:
        """Returns the lines of a call, whose result is `output`.

        Args:
          chosen: what is given for each parameter but ids.
          shift: a key of SHIFTS.
          ending: the expression to return.
        """
        calls, values = [], dict[str, str]()
        for number, stage in enumerate(self.stages):
            arguments = self._arguments(number, stage, chosen, values)
            result = "output" if number == len(self.stages) - 1 else "memory"
            calls.append(f"{result} = {stage.function}({', '.join(arguments)})")
        if ending == "output":
            calls[-1] = calls[-1].replace("output = ", "return ", 1)
        else:
            if re.search(r"\boutput\b", ending) is None:  # the module keeps the logits
                calls[-1] = calls[-1].removeprefix("output = ")
            calls.append(f"return {ending}")
        assigned = [f"{name} = {value}" for name, value in values.items()]
        defined = definitions([*assigned, *calls], *pads)
        return [*filter(None, [SHIFTS[shift]]), *defined, *assigned, *calls]

    def _arguments(self, number: int, stage: Stage, chosen: Assignment, values: dict[str, str]) -> list[str]:
        arguments, by_keyword = [], False
        for parameter in stage.parameters:
            text = self._text(number, parameter, chosen)
            if text is None:
                by_keyword = True
                continue
            if parameter.is_mask and not text.isidentifier() and "memory" not in text:
                text = _named(parameter.name, text, values)
            by_keyword = by_keyword or parameter.by_keyword
            arguments.append(f"{parameter.name}={text}" if by_keyword else text)
        return arguments

    def _text(self, number: int, parameter: Parameter, chosen: Assignment) -> str | None:
        if parameter.role == "source":
            return self.source
        if parameter.role == "target":
            return self.target
        return chosen[number, parameter.name].text


def _named(name: str, text: str, values: dict[str, str]) -> str:
    """Gives an expression a name of its own; returns it."""
    while name in TAKEN or keyword.iskeyword(name) or values.get(name, text) != text:
        name += "_"
    values[name] = text
    return name


def forms(module: nn.Module) -> Iterator[Form]:
    """Yields the ways to call a module, likely ones first: forward; encode and decode; encoder and decoder."""
    stage = _stage(module.forward, "self.module")
    has_forward = stage is not None and {"source", "target"} <= {one.role for one in stage.parameters}
    has_forward = has_forward and "_forward_unimplemented" not in str(module.forward)
    if stage is not None and has_forward:
        yield from _with_layouts((stage,), _embedders(module))
        for extra in _passed_on(module.forward):
            yield Form((Stage("self.module", (*stage.parameters, extra)),))
    for encode in _named_like(module, {"encode", "encoder"}):
        for decode in _named_like(module, {"decode", "decoder"}):
            first = _stage(_function(module, encode), f"self.module.{encode}", side="source")
            second = _stage(_function(module, decode), f"self.module.{decode}", side="target")
            if first is None or second is None or not _are_a_pair(first, second):
                continue
            yield from _with_layouts((first, second), [] if has_forward else _embedders(module))


def _passed_on(function: Callable[..., Any]) -> list[Parameter]:
    """Returns what a function may pass on by `*args` behind the ids: the source's lengths, or its mask."""
    found = list(inspect.signature(function).parameters.values())
    if len(found) < 3 or not any(one.kind is one.VAR_POSITIONAL for one in found):
        return []
    return [Parameter("lengths", "source_lengths", True, False), Parameter("mask", "source_mask", True, False)]


def _are_a_pair(first: Stage, second: Stage) -> bool:
    roles = {one.role for one in second.parameters}
    return "source" in {one.role for one in first.parameters} and {"target", "memory"} <= roles


def _with_layouts(stages: tuple[Stage, ...], embedders: list[tuple[str, str]]) -> Iterator[Form]:
    for layout in LAYOUTS[:2]:
        yield Form(stages, layout.format("source_ids"), layout.format("decoder_input_ids"))
    for source, target in embedders:
        yield Form(stages, source.format("source_ids"), target.format("decoder_input_ids"))
    for layout in LAYOUTS[2:]:
        yield Form(stages, layout.format("source_ids"), layout.format("decoder_input_ids"))


def _embedders(module: nn.Module) -> list[tuple[str, str]]:
    """Returns expressions that embed source and target by children of the module, for functions that take vectors."""
    from torch import nn

    children = dict(module.named_children())
    tables = [
        name
        for name, child in children.items()
        if any(isinstance(inner, nn.Embedding) for inner in child.modules())
        and {*words(name)} & {"embed", "embedding", "embeddings", "emb", "tok", "token", "lut", "word"}
        and not {*words(name)} & {"pos", "position", "positional"}
    ]
    if not tables:
        return []
    sides = [
        next((name for name in tables if {*words(name)} & side), tables[0])
        for side in ({"src", "source", "enc", "encoder", "input"}, {"tgt", "trg", "target", "dec", "decoder", "output"})
    ]
    plain = tuple(f"self.module.{name}({{}})" for name in sides)
    found = [(plain[0], plain[1])]
    places = [name for name in children if {*words(name)} & {"pos", "position", "positional", "pe"}]
    if places:
        found.insert(0, (f"self.module.{places[0]}({plain[0]})", f"self.module.{places[-1]}({plain[1]})"))
    return found


def _named_like(module: nn.Module, wanted: set[str]) -> list[str]:
    """Returns the names of methods and children that contain one of these words, methods and short names first."""
    from torch import nn

    methods = [
        name
        for name in dir(type(module))
        if not name.startswith("__") and not hasattr(nn.Module, name) and callable(getattr(type(module), name, None))
    ]
    children = [name for name, _ in module.named_children()]
    fitting = [name for name in [*methods, *children] if {*words(name)} & wanted]
    skipped = {"greedy", "beam", "embed", "embedding", "norm", "step", "layer", "layers", "position", "pos", "token"}
    fitting = [name for name in fitting if not {*words(name)} & skipped]
    return sorted(fitting, key=lambda name: (len(words(name)), name in children))[:3]


def heads(module: nn.Module, entered: set[str]) -> list[str]:
    """Returns expressions of functions that may turn vectors into logits: children and methods that no call entered."""
    likely = ("generator", "proj", "head", "logit", "out", "fc", "final", "linear", "classif", "predict", "vocab")
    from torch import nn

    found = [
        name
        for name, child in module.named_children()
        if name not in entered and not isinstance(child, (nn.ModuleList, nn.ModuleDict))
    ]
    inner = [
        f"{name}.{below}"
        for name, child in module.named_children()
        for below, one in child.named_children()
        if f"{name}.{below}" not in entered and isinstance(one, nn.Linear)
    ]
    methods = [
        name
        for name in dir(type(module))
        if not name.startswith("_") and not hasattr(nn.Module, name) and any(word in name.lower() for word in likely)
    ]
    names = [*found, *methods, *inner]
    ranked = sorted(names, key=lambda name: not any(word in name.lower() for word in likely))
    return [f"self.module.{name}" for name in ranked if name not in ("forward",)][:12]


def _function(module: nn.Module, name: str) -> Callable[..., Any]:
    from torch import nn

    found = getattr(module, name)
    return found.forward if isinstance(found, nn.Module) else found


def _stage(function: Callable[..., Any], text: str, side: str = "") -> Stage | None:
    try:
        found = parameters(function, has_memory=side == "target", side=side)
    except (TypeError, ValueError):
        return None
    return Stage(text, tuple(found))


def signature(function: Callable[..., Any]) -> str:
    """Returns a function's signature as text, or ''."""
    try:
        return str(inspect.signature(function))
    except (TypeError, ValueError):
        return ""
