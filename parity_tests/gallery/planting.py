"""Plant faults in a Flax program of transformers, by rewriting the syntax tree of its installed module in memory.

A fault is a rule for expressions: where it applies, the expression is replaced by a wrong one on the same line. Rules
know names (`epsilon`, `make_causal_mask`), not lines, so no text of transformers is needed here.
"""

from __future__ import annotations

import ast
import copy
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

DERIVED = {"modeling_flax_t5": ("transformers.models.mt5.modeling_flax_mt5",)}
"""Modules whose programs are those of another one."""
HITS: dict[int, set[str]] = {}
"""Places that ran → paths of the modules in which they did."""


@dataclass(frozen=True)
class Fault:
    """A kind of fault, and how a right report describes it."""

    kind: str
    causes: tuple[str, ...]
    """Kinds of causes that describe it rightly."""
    wrong: Callable[[ast.expr, _Scope], ast.expr | None] = field(repr=False, default=lambda node, scope: None)
    """(expression, scope) → the wrong expression; None: the fault doesn't apply there."""
    cure: Callable[[Place], str] = field(repr=False, default=lambda place: "")
    """Text that the right repair contains."""


@dataclass(frozen=True)
class Place:
    """A place at which a fault can be planted."""

    number: int
    kind: str
    lines: tuple[int, ...]
    """The statement's lines; of what a setup makes, also the lines that call it."""
    modules: tuple[str, ...] = ()
    """Paths of the modules in which it runs."""
    right: str = ""
    """Names or numbers of the right program that tell its repair, such as its ε."""


class _Scope:
    """The class and the statement in which an expression stands."""

    def __init__(self, body: ast.ClassDef | None, statement: ast.stmt) -> None:
        self.body, self.statement = body, statement

    def attributes(self, *words: str) -> list[str]:
        """Returns the attributes of self that the class makes, and whose names contain one of some words."""
        made = [
            target.attr
            for node in ast.walk(self.body or ast.Module([], []))
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Attribute) and isinstance(node.value, ast.Call)
        ]
        return [name for name in dict.fromkeys(made) if any(word in name.lower() for word in words)]

    def lines(self) -> tuple[int, ...]:
        first, last = self.statement.lineno, self.statement.end_lineno or self.statement.lineno
        found = {*range(first, last + 1)}
        target = self.statement.targets[0] if isinstance(self.statement, ast.Assign) else None
        if isinstance(target, ast.Attribute):
            for node in ast.walk(self.body or ast.Module([], [])):
                if isinstance(node, ast.Call) and _is_self_attribute(node.func) and node.func.attr == target.attr:  # type: ignore[attr-defined]
                    found.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        return tuple(sorted(found))


# --- rules


def _expression(text: str, at: ast.expr, **parts: ast.expr) -> ast.expr:
    """Returns an expression, all on one line, with parts of another in it."""

    class Filled(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.AST:
            return copy.deepcopy(parts[node.id]) if node.id in parts else node

    made = Filled().visit(ast.parse(text, mode="eval").body)
    for node in ast.walk(made):
        if isinstance(node, ast.expr):
            node.lineno = node.end_lineno = at.lineno
            node.col_offset = node.end_col_offset = at.col_offset
    found: ast.expr = made
    return found


def _name(node: ast.expr) -> str:
    """Returns the last part of a dotted name."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _is_self_attribute(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and _name(node.value) == "self"


def _called(node: ast.expr, *names: str) -> bool:
    return isinstance(node, ast.Call) and _name(node.func) in names


def _epsilon(node: ast.expr, scope: _Scope) -> ast.expr | None:
    """Ten times as much is added to a variance."""
    if _called(node, "LayerNorm"):
        made = copy.deepcopy(node)
        for keyword in made.keywords:  # type: ignore[attr-defined]
            if keyword.arg == "epsilon":
                keyword.value = _expression("PLANT.times_ten(E)", keyword.value, E=keyword.value)
                return made
    is_sum = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add)
    if is_sum and _is_self_attribute(node.right) and "eps" in _name(node.right):  # type: ignore[attr-defined]
        return _expression("L + PLANT.times_ten(E)", node, L=node.left, E=node.right)  # type: ignore[attr-defined]
    return None


def _activation(node: ast.expr, scope: _Scope) -> ast.expr | None:
    is_table = isinstance(node, ast.Subscript) and _name(node.value) == "ACT2FN"
    if is_table or (isinstance(node, ast.Attribute) and node.attr == "gelu" and _name(node.value) in ("nn", "jax.nn")):
        return _expression("PLANT.another_activation(F)", node, F=node)
    return None


def _causal(node: ast.expr, scope: _Scope) -> ast.expr | None:
    """Each query sees the next key."""
    if _called(node, "make_causal_mask"):
        return _expression("jnp.tril(jnp.ones_like(M), 1)", node, M=node)
    return None


def _tile(node: ast.expr, scope: _Scope) -> ast.expr | None:
    if not _called(node, "repeat") or not any(each.arg == "axis" for each in node.keywords):  # type: ignore[attr-defined]
        return None
    arguments = node.args + [each.value for each in node.keywords]  # type: ignore[attr-defined]
    if len(arguments) != 3:
        return None
    array, count, axis = arguments
    return _expression("jnp.tile(X, (1,) * A + (N,) + (1,) * (X.ndim - A - 1))", node, X=array, N=count, A=axis)


def _rotary(node: ast.expr, scope: _Scope) -> ast.expr | None:
    """Halves are rotated for pairs of neighbours, or pairs for halves."""
    if not _called(node, "apply_rotary_pos_emb"):
        return None
    pairs = "jnp.stack((-X[..., 1::2], X[..., ::2]), -1).reshape(X.shape)"
    halves = "jnp.concatenate((-X[..., X.shape[-1] // 2:], X[..., :X.shape[-1] // 2]), -1)"
    arguments = node.args  # type: ignore[attr-defined]
    if len(arguments) == 3:
        x, sin, cos = arguments
        table = "jnp.repeat(T[..., :T.shape[-1] // 2], 2, -1)"
        text = f"X * {table.replace('T', 'COS')} + {pairs} * {table.replace('T', 'SIN')}"
        return _expression(text, node, X=x, COS=cos, SIN=sin)
    if len(arguments) == 2:
        x, tables = arguments
        sin, cos = (f"jnp.concatenate((TABLES[{each}], TABLES[{each}]), -1)[:, :, None, :]" for each in (0, 1))
        text = f"X * {cos} + {halves} * {sin}"
        return _expression(text, node, X=x, TABLES=tables)
    return None


def _one_plus(node: ast.expr, scope: _Scope) -> ast.expr | None:
    """A norm multiplies by 1 + w for w, or by w for 1 + w."""
    weights = ("weight", "scale")
    is_binary = isinstance(node, ast.BinOp)
    if is_binary and isinstance(node.op, ast.Add) and isinstance(node.left, ast.Constant):  # type: ignore[attr-defined]
        right = node.right  # type: ignore[attr-defined]
        return _expression("W", node, W=right) if _is_self_attribute(right) and _name(right) in weights else None
    if is_binary and isinstance(node.op, ast.Mult):  # type: ignore[attr-defined]
        left = node.left  # type: ignore[attr-defined]
        if _is_self_attribute(left) and _name(left) in weights:
            return _expression("(1 + W) * X", node, W=left, X=node.right)  # type: ignore[attr-defined]
    return None


def _scale(node: ast.expr, scope: _Scope) -> ast.expr | None:
    """Logits of attention aren't divided by √d."""
    if not _called(node, "dot_product_attention_weights"):
        return None
    made = copy.deepcopy(node)
    query = made.args[0]  # type: ignore[attr-defined]
    made.args[0] = _expression("Q * Q.shape[-1] ** 0.5", query, Q=query)  # type: ignore[attr-defined]
    return made


def _double_scale(node: ast.expr, scope: _Scope) -> ast.expr | None:
    """A scale is applied twice; one of 1 is 2."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        for other, scale in ((node.left, node.right), (node.right, node.left)):
            if _is_self_attribute(scale) and "scal" in _name(scale):
                return _expression("O * S * (S if S != 1 else 2)", node, O=other, S=scale)
    return None


def _norm(node: ast.expr, scope: _Scope) -> ast.expr | None:
    """The norm of another sublayer is applied."""
    if not isinstance(node, ast.Call) or not _is_self_attribute(node.func) or len(node.args) != 1:
        return None
    norms = [name for name in scope.attributes("norm", "ln_") if "embed" not in name and "cross" not in name]
    if node.func.attr in norms and len(norms) > 1:  # type: ignore[attr-defined]
        other = norms[norms.index(node.func.attr) - 1]  # type: ignore[attr-defined]
        return _expression(f"self.{other}(X)", node, X=node.args[0])
    return None


VALUES = {"k_proj": "v_proj", "key": "value", "k": "v", "k_lin": "v_lin"}


def _keys(node: ast.expr, scope: _Scope) -> ast.expr | None:
    """Keys are made with the kernel of values."""
    if isinstance(node, ast.Call) and _is_self_attribute(node.func) and node.func.attr in VALUES:  # type: ignore[attr-defined]
        other = VALUES[node.func.attr]  # type: ignore[attr-defined]
        if other in scope.attributes(other):
            return _expression(f"self.{other}(X)", node, X=node.args[0])
    return None


def _position(node: ast.expr, scope: _Scope) -> ast.expr | None:
    """Positions begin at one more."""
    if not isinstance(node, ast.Call) or not _is_self_attribute(node.func) or len(node.args) != 1:
        return None
    if "position_ids" in {_name(each) for each in ast.walk(node.args[0]) if isinstance(each, ast.expr)}:
        return _expression(f"self.{node.func.attr}(X + 1)", node, X=node.args[0])  # type: ignore[attr-defined]
    return None


def _no_norm(node: ast.expr, scope: _Scope) -> ast.expr | None:
    """A norm is left out."""
    if isinstance(node, ast.Call) and _is_self_attribute(node.func) and len(node.args) == 1:
        name = node.func.attr.lower()  # type: ignore[attr-defined]
        if ("norm" in name or name.startswith("ln_")) and not node.keywords:
            return node.args[0]
    return None


def _residual(node: ast.expr, scope: _Scope) -> ast.expr | None:
    """A residual connection is left out."""
    names = ("residual", "input_tensor", "attention_output", "sa_output", "hidden_states")
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        found = {each.id: each for each in (node.left, node.right) if isinstance(each, ast.Name)}
        residual = next((name for name in names if name in found), None)
        if residual is not None and len(found) == 2:
            kept = next(each for name, each in found.items() if name != residual)
            return _expression("X", node, X=kept)
    return None


def _class_token(node: ast.expr, scope: _Scope) -> ast.expr | None:
    """The second token is pooled for the first."""
    if not isinstance(node, ast.Subscript) or not isinstance(node.slice, ast.Tuple):
        return None
    last = node.slice.elts[-1]
    if isinstance(last, ast.Constant) and last.value == 0 and "hidden" in _name(node.value):
        made = copy.deepcopy(node)
        made.slice.elts[-1] = _expression("1", last)  # type: ignore[attr-defined]
        return made
    return None


KERNEL = Fault("transposed kernel", ("order",))
"""Planted in the map: a square kernel arrives transposed."""
FAULTS = (
    Fault("rotary", ("order", "operand", "operation", "constant"), _rotary),
    Fault("tile for repeat", ("order", "operand"), _tile),
    Fault("1 + w", ("operation", "left out", "missing", "constant", "operand"), _one_plus),
    Fault("doubled scale", ("left out", "constant", "operand", "operation"), _double_scale),
    Fault("causal offset", ("constant",), _causal),
    Fault("missing scale", ("constant", "operand", "missing", "left out", "operation"), _scale),
    Fault("epsilon", ("constant",), _epsilon, lambda place: f"with {place.right}"),
    Fault("activation", ("operation", "missing", "left out", "constant", "operand"), _activation),
    Fault("another norm", ("weight",), _norm),
    KERNEL,
    Fault("keys of values", ("weight", "operand"), _keys),
    Fault("position offset", ("order", "operand", "constant"), _position),
    Fault("another token", ("order", "operand"), _class_token),
    Fault("missing norm", ("missing", "operation"), _no_norm),
    Fault("missing residual", ("missing", "operation"), _residual),
)
RARE = 4
"""How many kinds at the head apply to few programs."""
BY_KIND = {fault.kind: fault for fault in FAULTS}


# --- planting


class Plant:
    """The functions that planted expressions call."""

    right = ""
    """The right program's number or name at the place."""

    def hit(self, number: int) -> None:
        """Notes that a place runs, and in which module."""
        from flax import linen as nn

        frame, path = sys._getframe(1), ""
        while frame is not None:
            module = frame.f_locals.get("self")
            if isinstance(module, nn.Module) and module.scope is not None:
                path = ".".join(map(str, module.path))
                break
            frame = frame.f_back  # type: ignore[assignment]
        HITS.setdefault(number, set()).add(path)

    def times_ten(self, number: Any) -> Any:
        self.right = repr(float(number))
        return number * 10

    def another_activation(self, function: Any) -> Any:
        from transformers.modeling_flax_utils import ACT2FN

        name = next((name for name, other in ACT2FN.items() if other is function), "gelu")
        self.right = name
        return ACT2FN["gelu_new" if name == "gelu" else "gelu"]


PLANT = Plant()


def module_of(config: str) -> Any:
    """Returns the module of the Flax program of a config; none of its classes may be in use."""
    import transformers

    name = getattr(transformers, config).__module__.split(".")[2]
    name = {"mt5": "t5"}.get(name, name)
    return importlib.import_module(f"transformers.models.{name}.modeling_flax_{name}")


def places(tree: ast.Module) -> Iterator[tuple[Place, ast.stmt, ast.expr, ast.expr]]:
    """Yields places with their statements, and their right and wrong expressions."""
    number = 0
    for body, statement in _statements(tree, None):
        scope = _Scope(body, statement)
        for node in ast.walk(statement):
            for fault in FAULTS if isinstance(node, ast.expr) else ():
                wrong = fault.wrong(node, scope)  # type: ignore[arg-type]
                if wrong is not None:
                    yield Place(number, fault.kind, scope.lines()), statement, node, wrong  # type: ignore[misc]
                    number += 1


def _statements(tree: ast.AST, body: ast.ClassDef | None) -> Iterator[tuple[ast.ClassDef | None, ast.stmt]]:
    """Yields simple statements of functions, with their class."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Assign | ast.AugAssign | ast.Return | ast.Expr):
            yield body, node
        elif not isinstance(node, ast.expr):
            yield from _statements(node, node if isinstance(node, ast.ClassDef) else body)


def plant(module: Any, number: int | None) -> None:
    """Runs a module again with a fault planted; None, or a place that isn't there: with none. The places that run are
    noted."""
    from pairs import transformers  # the object that `sides` reads: a later import may return another one

    tree = ast.parse(inspect.getsource(module))
    wrongs, notes = {}, dict[int, list[int]]()
    for place, statement, right, wrong in places(tree):
        if place.number == number:
            wrongs[id(right)] = wrong
        if number in (None, place.number):
            notes.setdefault(id(statement), []).append(place.number)

    class Planted(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> Any:
            noted = notes.get(id(node), ())
            found = wrongs[id(node)] if id(node) in wrongs else self.generic_visit(node)
            calls = [ast.Expr(_expression(f"PLANT.hit({each})", node)) for each in noted]  # type: ignore[arg-type]
            return [*(ast.copy_location(each, node) for each in calls), found] if calls else found

    Planted().visit(tree)
    module.PLANT = PLANT
    exec(compile(ast.fix_missing_locations(tree), module.__file__, "exec"), module.__dict__)
    for name in [name for name in vars(transformers) if name.startswith("Flax")]:
        delattr(transformers, name)  # classes of the module as it was before
    for name in DERIVED.get(module.__name__.rpartition(".")[2], ()):
        other = importlib.import_module(name)
        exec(compile(inspect.getsource(other), other.__file__, "exec"), other.__dict__)  # type: ignore[arg-type]


def ran(module: Any) -> list[Place]:
    """Returns the places that ran since all were noted."""
    tree = ast.parse(inspect.getsource(module))
    return [
        Place(place.number, place.kind, place.lines, tuple(sorted(HITS[place.number])))
        for place, *_ in places(tree)
        if place.number in HITS
    ]
