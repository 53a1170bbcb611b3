"""Lists the functions of a module that may take the ids, and writes calls of them as lines."""

from __future__ import annotations

import inspect
import itertools
import keyword
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from jax_transformer.programs.calling.options import Option, definitions, imports
from jax_transformer.programs.calling.records import passed_on
from jax_transformer.programs.calling.roles import Parameter, parameters, words

if TYPE_CHECKING:
    from torch import nn

SHIFTS = {
    "": "",
    "append": "decoder_input_ids = torch.cat([decoder_input_ids, decoder_input_ids[:, -1:]], 1)",
    "drop": "decoder_input_ids = decoder_input_ids[:, 1:]",
    "left": "decoder_input_ids = torch.cat([decoder_input_ids[:, 1:], decoder_input_ids[:, -1:]], 1)",
}
"""Changes of the target before a module that shifts it itself."""

LAYOUTS = ("{}", "{}.T", "{}[:, :, None]", "{}.T[:, :, None]")
"""Layouts that a module may want for its ids: [B, S], [S, B], [B, S, 1], [S, B, 1]."""

TAKEN = {"self", "torch", "nn", "source_ids", "decoder_input_ids", "memory", "output", "logits"}
TAKEN |= {"source_real", "target_real", "length", "earlier", "dtype"}

Assignment = Mapping[tuple[int, str], Option]
"""(stage, parameter) → the option chosen for it."""


@dataclass(frozen=True)
class Ending:
    """Describes how to get logits from a call's result or from its computation."""

    text: str = "output"
    """The expression to return, over `output`; or over `logits`, which a context collects."""
    shift: str = ""
    """A key of SHIFTS."""
    context: str = ""
    """The context to call in, which collects `logits` from a module that doesn't return them."""
    remarks: tuple[str, ...] = ()


OUTPUT = Ending()


@dataclass(frozen=True)
class Stage:
    """Holds a function to call and its parameters."""

    function: str
    parameters: tuple[Parameter, ...]


@dataclass(frozen=True)
class Form:
    """Holds functions that compute logits in sequence, and the layout of the ids."""

    stages: tuple[Stage, ...]
    source: str = "source_ids"
    target: str = "decoder_input_ids"

    def write(self, chosen: Assignment, pads: tuple[int, int], ending: Ending = OUTPUT) -> list[str]:
        """Writes the lines of a call.

        Args:
          chosen: the option for each parameter that takes no ids.
        """
        calls, values = [], dict[str, str]()
        for number, stage in enumerate(self.stages):
            arguments = self._arguments(number, stage, chosen, values)
            result = "output" if number == len(self.stages) - 1 else "memory"
            calls.append(f"{result} = {stage.function}({', '.join(arguments)})")
        if ending.text == "output":
            calls[-1] = calls[-1].replace("output = ", "return ", 1)
        elif re.search(r"\boutput\b", ending.text) is None:  # the logits are elsewhere
            calls[-1] = calls[-1].removeprefix("output = ")
        if ending.context:
            calls = [f"with {ending.context} as logits:", *(f"    {line}" for line in calls)]
        if ending.text != "output":
            calls.append(f"return {ending.text}")
        assigned = [f"{name} = {value}" for name, value in values.items()]
        body = [*assigned, *calls]
        return [*imports(body), *filter(None, [SHIFTS[ending.shift]]), *definitions(body, *pads), *body]

    def _arguments(self, number: int, stage: Stage, chosen: Assignment, values: dict[str, str]) -> list[str]:
        arguments, by_keyword = [], False
        for holder, group in itertools.groupby(stage.parameters, lambda one: one.holder):
            given = [(one, self._argument(number, one, chosen, values)) for one in group]
            if holder:
                text = _held([(one, text) for one, text in given if text is not None])
                arguments.append(f"{holder}={text}" if by_keyword or given[0][0].by_keyword else text)
                continue
            for parameter, argument in given:
                by_keyword = by_keyword or argument is None or parameter.by_keyword
                if argument is not None:
                    arguments.append(f"{parameter.name}={argument}" if by_keyword else argument)
        return arguments

    def _argument(self, number: int, parameter: Parameter, chosen: Assignment, values: dict[str, str]) -> str | None:
        """Returns the expression for a parameter; masks get a name."""
        text = self._text(number, parameter, chosen)
        if text is not None and parameter.is_mask and not text.isidentifier() and "memory" not in text:
            return _named(parameter.name, text, values)
        return text

    def _text(self, number: int, parameter: Parameter, chosen: Assignment) -> str | None:
        if parameter.role == "source":
            return self.source
        if parameter.role == "target":
            return self.target
        return chosen[number, parameter.name].text


def _held(parts: list[tuple[Parameter, str]]) -> str:
    """Writes an argument that holds several values."""
    kind = parts[0][0].holder_kind if parts else "mapping"
    if kind == "sequence":
        return f"({', '.join(text for _, text in parts)},)"
    if kind == "attributes":
        return f"SimpleNamespace({', '.join(f'{one.key}={text}' for one, text in parts)})"
    return "{" + ", ".join(f'"{one.key}": {text}' for one, text in parts) + "}"


def _named(name: str, text: str, values: dict[str, str]) -> str:
    """Assigns a unique name to an expression, and returns the name."""
    while name in TAKEN or keyword.iskeyword(name) or values.get(name, text) != text:
        name += "_"
    values[name] = text
    return name


def forms(module: nn.Module) -> Iterator[Form]:
    """Yields the ways to call a module, most likely first: forward; encode and decode; encoder and decoder."""
    wholes = [(text, function) for text, function in _functions(module, "") if _is_written(function)]
    stages = [(function, _stage(function, text)) for text, function in wholes]
    wholes_found = False
    for function, stage in stages:
        if stage is None or not {"source", "target"} <= {one.role for one in stage.parameters}:
            continue
        wholes_found = True
        yield from _with_layouts((stage,), embedders(module))
        for extra in _rest(function):
            yield Form((Stage(stage.function, (*stage.parameters, extra)),))
        if all(one.is_guess for one in stage.parameters if one.role in ("source", "target")):
            yield Form((_swapped(stage),))
    for encode, decode in _pairs(module):
        for first_text, first_function in _functions(module, encode):
            for second_text, second_function in _functions(module, decode):
                first = _stage(first_function, first_text, side="source")
                second = _stage(second_function, second_text, side="target")
                if first is not None and second is not None and _are_a_pair(first, second):
                    yield from _with_layouts((first, second), [] if wholes_found else embedders(module))


def _is_written(function: Callable[..., Any]) -> bool:
    return "_forward_unimplemented" not in str(function)


def _functions(module: nn.Module, name: str) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yields (text, function) for a method or child, or the module itself: the methods to which its forward passes its
    keywords (another argument may choose between them), and its forward."""
    from torch import nn

    found = getattr(module, name) if name else module
    text = member(name)
    if not isinstance(found, nn.Module):
        yield text, found
        return
    inner = [one for one in passed_on(found.forward) if callable(getattr(found, one, None))]
    yield from ((f"{text}.{one}", getattr(found, one)) for one in inner)
    yield text, found.forward


def member(path: str) -> str:
    """Writes the expression of a part of the module: 'decoder.0' → self.module.decoder[0]."""
    names = path.split(".") if path else []
    return "self.module" + "".join(f"[{name}]" if name.isdigit() else f".{name}" for name in names)


def _pairs(module: nn.Module) -> Iterator[tuple[str, str]]:
    """Yields the names of methods or children that may encode, and decode."""
    from torch import nn

    if isinstance(module, nn.ModuleList):
        yield from itertools.permutations([name for name, _ in module.named_children()][:4], 2)
        return
    for encode in _named_like(module, {"encode", "encoder", "enc"}):
        for decode in _named_like(module, {"decode", "decoder", "dec"}):
            yield encode, decode


def _swapped(stage: Stage) -> Stage:
    """Swaps source and target ids in a stage where the parameters' names don't distinguish them."""
    other = {"source": "target", "target": "source"}
    return Stage(
        stage.function,
        tuple(replace(one, role=other.get(one.role, one.role)) for one in stage.parameters),  # type: ignore[arg-type]
    )


def _rest(function: Callable[..., Any]) -> list[Parameter]:
    """Returns the parameters that positional arguments after the ids may set: the source's lengths, or its mask."""
    found = list(inspect.signature(function).parameters.values())
    if len(found) < 3 or not any(one.kind is one.VAR_POSITIONAL for one in found):
        return []
    return [Parameter("lengths", "source_lengths", True, False), Parameter("mask", "source_mask", True, False)]


def _are_a_pair(first: Stage, second: Stage) -> bool:
    roles = {one.role for one in second.parameters}
    return "source" in {one.role for one in first.parameters} and {"target", "memory"} <= roles


def _with_layouts(stages: tuple[Stage, ...], embedded: list[tuple[str, str]]) -> Iterator[Form]:
    for layout in LAYOUTS[:2]:
        yield Form(stages, layout.format("source_ids"), layout.format("decoder_input_ids"))
    for source, target in embedded:
        yield Form(stages, source.format("source_ids"), target.format("decoder_input_ids"))
    for layout in LAYOUTS[2:]:
        yield Form(stages, layout.format("source_ids"), layout.format("decoder_input_ids"))


def embedders(module: nn.Module) -> list[tuple[str, str]]:
    """Lists expressions that embed source and target with children of the module, for functions that take vectors."""
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
    """Lists the methods and children whose names contain one of these words, methods and short names first."""
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
    """Lists expressions that may turn vectors into logits: children and methods that no call entered."""
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
    ranked = sorted(names, key=lambda name: (_is_of_source(name), not any(word in name.lower() for word in likely)))
    return [member(name) for name in ranked if name not in ("forward",)][:12]


def _is_of_source(name: str) -> bool:
    return bool({*words(name)} & {"src", "source", "enc", "encoder"})


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


def header(module: nn.Module) -> str:
    """Returns "forward" with the names of its first parameters, as a message shows it."""
    try:
        names = [*inspect.signature(module.forward).parameters]
    except (TypeError, ValueError):
        return "forward"
    return f"forward({', '.join([*names[:4], *(['…'] if len(names) > 4 else [])])})"
