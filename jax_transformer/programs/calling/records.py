"""Reads from a function's source which parts it takes out of a compound argument: a mapping, an object, a tuple."""

from __future__ import annotations

import ast
import contextlib
import inspect
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

Kind = Literal["mapping", "attributes", "sequence"]
DEEPEST = 4
"""The most nested calls through which an argument is followed."""


@dataclass(frozen=True)
class Item:
    """Describes a part of a compound argument."""

    name: str
    """Its key, its attribute, or the variable that the function calls it."""
    is_required: bool = True


@dataclass(frozen=True)
class Record:
    """Describes a compound argument."""

    kind: Kind
    items: tuple[Item, ...]
    """In the order of use; for a sequence, in the sequence's order."""


def record(function: Callable[..., Any], name: str) -> Record | None:
    """Lists the parts that a function takes out of its parameter of this name.

    Counts keys (`batch["src"]`, `batch.get("mask")`, `"mask" in batch`), attributes that no tensor has (`batch.src`)
    and unpacking (`src, tgt = batch`), also in functions that receive the argument from this one.
    """
    notes = _Notes()
    notes.read(function, name)
    for kind, found in (("mapping", notes.keys), ("attributes", notes.attributes)):
        items = tuple(Item(key, key not in notes.optional) for key in found if key not in notes.written)
        if items:
            return Record(kind, items)  # type: ignore[arg-type]
    return Record("sequence", tuple(map(Item, notes.unpacked))) if len(notes.unpacked) > 1 else None


def passed_on(function: Callable[..., Any]) -> list[str]:
    """Lists the methods to which a method passes its own `**keywords`: `self.fwd(**keywords)`."""
    tree = _parsed(function)
    if tree is None or tree.args.kwarg is None:
        return []
    keywords = tree.args.kwarg.arg
    return [
        call.func.attr
        for call in ast.walk(tree)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and _is_name(call.func.value, "self")
        and any(one.arg is None and _is_name(one.value, keywords) for one in call.keywords)
    ]


class _Notes:
    """Collects the parts that functions take out of one argument."""

    def __init__(self) -> None:
        self.keys: dict[str, None] = {}
        self.attributes: dict[str, None] = {}
        self.optional: set[str] = set()
        self.written: set[str] = set()
        self.unpacked: list[str] = []

    def read(self, function: Callable[..., Any], name: str, depth: int = 0) -> None:
        """Reads one function, and the functions to which it passes the argument."""
        tree = _parsed(function)
        if tree is None:
            return
        for node in _in_order(tree):
            if isinstance(node, ast.Assign) and _replaces(node, name):
                return
            self._note(node, function, name)
            if isinstance(node, ast.Call) and depth < DEEPEST:
                for inner, parameter in _receivers(node, function, name):
                    self.read(inner, parameter, depth + 1)

    def _note(self, node: ast.AST, function: Callable[..., Any], name: str) -> None:
        match node:
            case ast.Subscript(value=ast.Name(id=found), slice=key) if found == name:
                self._note_key(_text(key, function), is_written=not isinstance(node.ctx, ast.Load))
            case ast.Call(func=ast.Attribute(value=ast.Name(id=found), attr="get"), args=[key, *_]) if found == name:
                self._note_key(_text(key, function), is_optional=True)
            case ast.Compare(left=key, ops=[ast.In() | ast.NotIn()], comparators=[ast.Name(id=found)]) if found == name:
                self._note_key(_text(key, function), is_optional=True)
            case ast.Attribute(value=ast.Name(id=found), attr=attribute, ctx=ast.Load()) if found == name:
                if not _is_of_tensors(attribute):
                    self.attributes[attribute] = None
            case ast.Assign(targets=[ast.Tuple(elts=parts)], value=ast.Name(id=found)) if found == name:
                if all(isinstance(part, ast.Name) for part in parts):
                    self.unpacked = [part.id for part in parts if isinstance(part, ast.Name)]

    def _note_key(self, key: str | None, *, is_optional: bool = False, is_written: bool = False) -> None:
        if key is None:
            return
        if is_written:
            self.written.add(key)
        else:
            self.keys[key] = None
        if is_optional:
            self.optional.add(key)


def _parsed(function: Callable[..., Any]) -> ast.FunctionDef | None:
    """Returns a function's syntax tree, if its source is available."""
    return _tree(getattr(function, "__func__", function))  # a method would keep its module in memory


@lru_cache(maxsize=256)
def _tree(function: Callable[..., Any]) -> ast.FunctionDef | None:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return None
    return tree.body[0] if tree.body and isinstance(tree.body[0], ast.FunctionDef) else None


def _in_order(node: ast.AST) -> Iterator[ast.AST]:
    """Yields the nodes of a function in the order in which it runs them, children before parents."""
    for child in ast.iter_child_nodes(node):
        yield from _in_order(child)
        yield child


def _replaces(node: ast.Assign, name: str) -> bool:
    """Returns whether the assignment rebinds the name to another value; False for `batch = batch.to(device)`."""
    match node.value:
        case ast.Call(func=ast.Attribute(value=ast.Name(id=found))) if found == name:
            return False
    parts = [part for target in node.targets for part in ast.walk(target)]
    return any(_is_name(part, name) and isinstance(part.ctx, ast.Store) for part in parts)  # type: ignore[attr-defined]


def _receivers(call: ast.Call, function: Callable[..., Any], name: str) -> Iterator[tuple[Callable[..., Any], str]]:
    """Yields the function that a call passes the argument to, and its parameter's name there."""
    places = [place for place, given in enumerate(call.args) if _is_name(given, name)]
    names = [given.arg for given in call.keywords if given.arg and _is_name(given.value, name)]
    callee = _value(call.func, function) if places or names else None
    if callee is None or isinstance(callee, type):
        return
    callee = getattr(callee, "forward", callee)
    try:
        parameters = list(inspect.signature(callee).parameters.values())
    except (TypeError, ValueError):
        return
    for place in places:
        if place < len(parameters) and parameters[place].kind is not inspect.Parameter.VAR_POSITIONAL:
            yield callee, parameters[place].name
    yield from ((callee, name) for name in names)


def _value(node: ast.expr, function: Callable[..., Any]) -> Any:
    """Resolves names and attributes in a function, such as `self.encode` or `constants.SOURCE`; None if unknown."""
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id="self"):
            return getattr(function, "__self__", None)
        case ast.Name(id=name):
            return getattr(inspect.unwrap(function), "__globals__", {}).get(name)
        case ast.Attribute(value=owner, attr=name):
            with contextlib.suppress(Exception):  # a property may raise anything
                return getattr(_value(owner, function), name)
    return None


def _text(node: ast.expr, function: Callable[..., Any]) -> str | None:
    value = _value(node, function)
    return value if isinstance(value, str) else None


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _is_of_tensors(attribute: str) -> bool:
    import torch

    return hasattr(torch.Tensor, attribute) or hasattr(dict, attribute)
