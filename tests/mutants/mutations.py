"""Small changes to a module's source, one at a time: what a slip of the hand would leave.

Only bodies of functions are changed: no annotation, no docstring, and no message of an error.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import NamedTuple

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Mutant(NamedTuple):
    """Names one change: the number-th of those that its module offers, in the order of the source."""

    module: str
    number: int
    function: str
    """The function's name within its module, e.g. `Beam.step`."""
    line: int
    change: str

    @property
    def place(self) -> str:
        return f"{self.module}:{self.function}"


class _Changer:
    """Walks the functions of a module, and makes one of the changes that it meets."""

    def __init__(self, wanted: int | None) -> None:
        self.wanted = wanted
        self.found: list[tuple[str, int, str]] = []
        self.names: list[str] = []
        self.inside = 0

    def offers(self, node: ast.AST, change: str) -> bool:
        """Notes a possible change; returns whether to make it."""
        self.found.append((".".join(self.names), node.lineno, change))  # type: ignore[attr-defined]
        return len(self.found) - 1 == self.wanted

    def statements(self, body: list[ast.stmt]) -> None:
        for index, statement in enumerate(body):
            if self.inside and _removable(statement, index) and self.offers(statement, _removal(statement)):
                body[index] = ast.copy_location(ast.Pass(), statement)
            else:
                self.statement(statement)

    def statement(self, node: ast.stmt) -> None:
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            function = isinstance(node, FUNCTIONS)
            self.names.append(node.name)
            self.inside += function
            self.statements(node.body)
            self.inside -= function
            self.names.pop()
            return
        if isinstance(node, ast.Raise | ast.Assert):
            return
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "simple"):
                continue
            self.field(node, name, value)

    def field(self, node: ast.AST, name: str, value: object) -> None:
        if isinstance(value, list):
            if value and isinstance(value[0], ast.stmt):
                self.statements(value)
                return
            for index, item in enumerate(value):
                self.item(item, _setter(value, index))
        else:
            self.item(value, lambda new: setattr(node, name, new))

    def item(self, value: object, put: Callable[[ast.expr], None]) -> None:
        if isinstance(value, ast.expr):
            if self.inside:
                new = self.expression(value)
                if new is not None:
                    put(ast.copy_location(new, value))
                    return
            self.children(value)
        elif isinstance(value, ast.AST):
            self.children(value)

    def children(self, node: ast.AST) -> None:
        for name, child in ast.iter_fields(node):
            self.field(node, name, child)

    def expression(self, node: ast.expr) -> ast.expr | None:
        """Returns the replacement of `node`, or None; a change within `node` is made in place."""
        match node:
            case ast.Compare(ops=[operator]) if type(operator) in COMPARISONS:
                other = COMPARISONS[type(operator)]
                if self.offers(node, f"{type(operator).__name__} → {other.__name__}"):
                    node.ops = [other()]
            case ast.BinOp(op=operator) if type(operator) in OPERATORS:
                swapped = OPERATORS[type(operator)]
                if self.offers(node, f"{type(operator).__name__} → {swapped.__name__}"):
                    node.op = swapped()
            case ast.BoolOp(op=ast.And()):
                if self.offers(node, "and → or"):
                    node.op = ast.Or()
            case ast.BoolOp(op=ast.Or()):
                if self.offers(node, "or → and"):
                    node.op = ast.And()
            case ast.UnaryOp(op=ast.Not() | ast.USub()):
                if self.offers(node, f"{type(node.op).__name__} left out"):
                    return node.operand
            case ast.Constant(value=bool()):
                if self.offers(node, f"{node.value} → {not node.value}"):
                    return ast.Constant(not node.value)
            case ast.Constant(value=int() | float()):
                for step in (1, -1):
                    if self.offers(node, f"{node.value} → {node.value + step}"):
                        return ast.Constant(node.value + step)
            case ast.IfExp():
                if self.offers(node, "condition negated"):
                    node.test = _negated(node.test)
            case ast.Call():
                plain = not any(isinstance(argument, ast.Starred) for argument in node.args)
                if len(node.args) > 1 and plain and self.offers(node, "first two arguments swapped"):
                    node.args[:2] = node.args[1::-1]
                for keyword in list(node.keywords):
                    if keyword.arg and self.offers(node, f"argument {keyword.arg} dropped"):
                        node.keywords.remove(keyword)
        return None


def _setter(items: list[ast.expr], index: int) -> Callable[[ast.expr], None]:
    return lambda new: items.__setitem__(index, new)


def _negated(test: ast.expr) -> ast.expr:
    return ast.copy_location(ast.UnaryOp(ast.Not(), test), test)


def _removable(node: ast.stmt, index: int) -> bool:
    match node:
        case ast.Expr(value=ast.Constant()):
            return False
        case ast.Expr() | ast.AugAssign() | ast.Raise() | ast.Break() | ast.Continue():
            return True
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            return True
    return False


def _removal(node: ast.stmt) -> str:
    return f"{type(node).__name__} removed"


class _Conditions(_Changer):
    """Negates the conditions of statements too."""

    def statement(self, node: ast.stmt) -> None:
        if self.inside and isinstance(node, ast.If | ast.While) and self.offers(node, "condition negated"):
            node.test = _negated(node.test)
        super().statement(node)


def mutants(module: str, source: str) -> Iterator[Mutant]:
    """Yields all changes that a module offers."""
    changer = _Conditions(None)
    changer.statements(ast.parse(source).body)
    for number, (function, line, change) in enumerate(changer.found):
        yield Mutant(module, number, function, line, change)


def mutated(source: str, number: int) -> ast.Module:
    """Returns the module with one of its changes made."""
    tree = ast.parse(source)
    changer = _Conditions(number)
    changer.statements(tree.body)
    if not number < len(changer.found):
        raise ValueError(f"expected a change below {len(changer.found)}, got {number}")
    return ast.fix_missing_locations(tree)


def marked(source: str, numbers: dict[str, int]) -> ast.Module:
    """Returns the module whose functions add their number to the set `_reached_` of the builtins when they are called.
    Adds the functions that `numbers` doesn't know yet."""
    tree = ast.parse(source)

    def visit(body: list[ast.stmt], names: list[str]) -> None:
        for node in body:
            if not isinstance(node, (*FUNCTIONS, ast.ClassDef)):
                for name in ("body", "orelse", "finalbody"):
                    visit(getattr(node, name, []), names)
                continue
            inner = [*names, node.name]
            visit(node.body, inner)
            if isinstance(node, FUNCTIONS):
                number = numbers.setdefault(".".join(inner), len(numbers))
                call = ast.parse(f"_reached_.add({number})").body[0]
                at = int(ast.get_docstring(node) is not None)
                for part in ast.walk(call):
                    ast.copy_location(part, node.body[0])
                node.body.insert(at, call)

    visit(tree.body, [])
    return ast.fix_missing_locations(tree)
