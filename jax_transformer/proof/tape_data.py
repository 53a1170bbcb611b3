"""Write a program's tape as data, and build the program again from it, without the framework that it was read from.

The data are JSON and arrays. They name calls among those of a fixed list (`_calls`), whose arguments are numbers,
texts, arrays and results of earlier calls. Nothing else is looked up or run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache, partial
from typing import Any

import ml_dtypes
import numpy as np

from jax_transformer.programs.sites import Site
from jax_transformer.proof import choices
from jax_transformer.proof.building import Builder
from jax_transformer.proof.programs import Program, Ref, UnknownOperation, Value, digest_of
from jax_transformer.proof.tape import Entry, Signature, Tape

MOST_ELEMENTS = 2**28
"""Elements of one value at most."""
NUMBERS = "biuf"
KINDS = ("float", "int", "bool", "indicator")


class NotData(Exception):
    """Raised for a program whose calls hold more than numbers, texts and arrays: such as a function of places."""


@dataclass(frozen=True)
class TapeData:
    """Holds a tape as JSON and arrays."""

    content: dict[str, Any]
    arrays: tuple[np.ndarray, ...]


def to_data(program: Program) -> TapeData:
    """Returns a program's tape as data.

    Raises:
      NotData: it can't be written so, or isn't the same program when it is built again.
    """
    tape: Tape | None = program.tape
    if tape is None:
        raise NotData("the program has no tape")
    writer = _Writer()
    content = {
        "sha256": program.sha256(),
        "read": dict(program.read),
        "entries": [writer.entry(one) for one in tape.entries],
        "outputs": {name: writer.output(each) for name, each in tape.outputs.items()},
        "sites": writer.sites,
    }
    data = TapeData(content, tuple(writer.arrays))
    try:
        from_data(data)
    except ValueError as error:
        raise NotData(str(error)) from None
    return data


def from_data(data: TapeData) -> Program:
    """Builds a program from data.

    Raises:
      ValueError: they aren't a tape's, or build another program than the one that they were written of.
    """
    try:
        tape = _Reader(data).tape()
        program = tape.replay(Builder())
    except NotData as error:
        raise ValueError(f"expected a program as data; {error}") from None
    except Exception as error:  # calls of a damaged file may raise anything
        raise ValueError(f"expected a program as data; building it raised {type(error).__name__}: {error}") from None
    if program.sha256() != data.content["sha256"]:
        raise ValueError("expected the program that was written; built again from its calls, it is another one")
    return program


@cache
def _calls() -> dict[str, Callable[..., Any]]:
    """Returns the calls that a tape may have: those that are recorded, by name."""
    held = {name: getattr(Builder, name) for name in dir(Builder)}
    held |= {f"choices.{name}": each for name, each in vars(choices).items()}
    return {name: each for name, each in held.items() if hasattr(each, "__wrapped__")}


@cache
def _names() -> dict[Callable[..., Any], str]:
    return {call: name for name, call in _calls().items()}


# --- writing


@dataclass
class _Writer:
    arrays: list[np.ndarray] = field(default_factory=list)
    sites: list[Any] = field(default_factory=list)
    _numbers: dict[str | None, int] = field(default_factory=dict)
    _places: dict[tuple[Any, ...], int] = field(default_factory=dict)

    def entry(self, one: Entry) -> list[Any]:
        name = _names().get(one.call)
        if name is None:
            raise NotData(f"{one.name} isn't one of the calls that build programs")
        results = [[list(each.shape), each.kind, each.is_known, each.is_choice] for each in one.results]
        return [
            name,
            [self.of(each) for each in one.args],
            {key: self.of(each) for key, each in one.options.items()},
            self._site(one),
            [list(ref) for ref in one.origins],
            results,
            self.of(one.answer),
            one.fails,
        ]

    def _site(self, one: Entry) -> int:
        key = (one.line, one.site.operation, one.site.line, one.site.module, one.site.steps)
        if key not in self._places:
            self._places[key] = len(self.sites)
            self.sites.append([*key[:4], list(one.site.steps)])
        return self._places[key]

    def output(self, each: Any) -> Any:
        if isinstance(each, UnknownOperation):
            return {"unknown": [each.operation, each.line, each.reason]}
        return self.of(each)

    def of(self, each: Any) -> Any:
        if each is None or isinstance(each, bool | str) or type(each) is int:
            return each
        if isinstance(each, Ref):
            return {"ref": list(each)}
        if type(each) is float:
            return {"float": each.hex()}
        if isinstance(each, Fraction):
            return {"ratio": [str(each.numerator), str(each.denominator)]}
        if isinstance(each, np.ndarray | np.generic):
            return {"array" if isinstance(each, np.ndarray) else "number": self._array(np.asarray(each))}
        if type(each) is list:
            return [self.of(one) for one in each]
        if type(each) is tuple:
            return {"tuple": [self.of(one) for one in each]}
        if isinstance(each, partial):
            return {"cast": _cast_of(each)}
        if isinstance(each, Value):
            return self._value(each)
        raise NotData(f"a call has a {type(each).__name__} among its arguments")

    def _value(self, each: Value) -> Any:
        if each.node is not None or each.known is None or each.table is not None:
            raise NotData("a call has a value that no earlier call returned")
        return {"known": [each.kind, self._array(each.known)]}

    def _array(self, array: np.ndarray) -> int:
        if array.dtype.kind not in NUMBERS and array.dtype.name != "bfloat16":
            raise NotData(f"a call has an array of {array.dtype}")
        digest = digest_of(array)
        if digest not in self._numbers:
            self._numbers[digest] = len(self.arrays)
            self.arrays.append(np.ascontiguousarray(array).reshape(array.shape))
        return self._numbers[digest]


def _cast_of(each: partial[Any]) -> str:
    """Returns the type to which a cast rounds."""
    name = str(each.keywords.get("dtype", "")).removeprefix("torch.")
    is_cast = each.func is np.asarray or getattr(each.func, "__name__", "") == "_cast"
    if not (is_cast and not each.args and {*each.keywords} == {"dtype"} and _dtype(name) is not None):
        raise NotData("a call has a function among its arguments")
    return name


def _dtype(name: str) -> np.dtype[Any] | None:
    held = getattr(np, name, None) or getattr(ml_dtypes, name, None)
    is_dtype = isinstance(held, type) and name in FLOATS
    return np.dtype(held) if is_dtype else None


FLOATS = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
"""Types to which a cast may round."""


# --- reading


class _Reader:
    def __init__(self, data: TapeData) -> None:
        self.content, self.arrays = data.content, data.arrays
        self.sites = [self._site(each) for each in self.content["sites"]]

    def tape(self) -> Tape:
        found = Tape()
        for number, each in enumerate(self.content["entries"]):
            found.entries.append(self._entry(each, number))
        found.outputs = {str(name): self._output(each) for name, each in self.content["outputs"].items()}
        found.read = {str(name): int(count) for name, count in self.content["read"].items()}
        return found

    def _site(self, each: list[Any]) -> tuple[str, Site]:
        line, operation, own, module, steps = each
        return str(line), Site(str(operation), str(own), str(module), tuple(map(int, steps)))

    def _entry(self, each: list[Any], number: int) -> Entry:
        name, args, options, site, origins, results, answer, fails = each
        call = _calls().get(name)
        if call is None:
            raise NotData(f"{name!r} is no call that builds programs")
        shapes = [(tuple(map(int, shape)), kind, known, choice) for shape, kind, known, choice in results]
        wrong = [kind for _, kind, _, _ in shapes if kind not in KINDS]
        if wrong or any(math.prod(shape) > MOST_ELEMENTS or min(shape, default=0) < 0 for shape, *_ in shapes):
            raise NotData(f"{name} returns a value of an unknown kind, or of more than {MOST_ELEMENTS:,} elements")
        line, place = self.sites[site]
        return Entry(
            call,
            tuple(self.of(one, number) for one in args),
            {str(key): self.of(one, number) for key, one in options.items()},
            line,
            place,
            tuple(self._ref(one, number) for one in origins),
            tuple(Signature(shape, kind, bool(known), bool(choice)) for shape, kind, known, choice in shapes),
            self.of(answer, number),
            bool(fails),
        )

    def _output(self, each: Any) -> Any:
        if isinstance(each, Mapping) and "unknown" in each:
            return UnknownOperation(*map(str, each["unknown"]))
        return self.of(each, len(self.content["entries"]))

    def _ref(self, each: list[int], number: int) -> Ref:
        entry, place = map(int, each)
        if not 0 <= entry < number:
            raise NotData("a call reads the result of a later one")
        return Ref(entry, place)

    def of(self, each: Any, number: int) -> Any:
        if each is None or isinstance(each, bool | str) or type(each) is int:
            return each
        if isinstance(each, list):
            return [self.of(one, number) for one in each]
        if not isinstance(each, Mapping) or len(each) != 1:
            raise NotData(f"a call has a {type(each).__name__} among its arguments")
        ((kind, held),) = each.items()
        if kind == "ref":
            return self._ref(held, number)
        if kind == "float":
            return float.fromhex(held)
        if kind == "ratio":
            return Fraction(*map(int, held))
        if kind in ("array", "number"):
            array = self.arrays[held]
            return array if kind == "array" else array[()]
        if kind == "tuple":
            return tuple(self.of(one, number) for one in held)
        if kind == "known":
            array = self.arrays[held[1]]
            return Value(array.shape, held[0], array)
        if kind == "cast" and _dtype(held) is not None:
            return partial(_rounded, dtype=held)
        raise NotData(f"{kind!r} is no kind of argument")


def _rounded(constants: np.ndarray, dtype: str) -> np.ndarray:
    return np.asarray(constants).astype(_dtype(dtype))
