"""A small language of expressions, with three readings: JAX, PyTorch, and numbers of 60 digits.

A value has 2 rows of 4 columns, or of 1. `mpmath` says whether two expressions are one function, and where they are
defined, without a line of the prover.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mpmath as mp

ROWS, COLUMNS = 2, 4
WEIGHTS: Mapping[str, tuple[int, int]] = {"w": (ROWS, COLUMNS), "v": (ROWS, COLUMNS), "m": (COLUMNS, COLUMNS)}
DIGITS = 60
LARGEST_EXPONENT = 20_000

Rows = list[list[Any]]
"""Numbers, or None where a number isn't defined."""


class Unusable(Exception):
    """A number is too large to be evaluated."""


@dataclass(frozen=True)
class Expr:
    op: str
    args: tuple[Expr, ...] = ()
    value: Any = None
    """The constant, the name of a weight, or what an operation takes besides its arguments."""

    def __add__(self, other: Any) -> Expr:
        return Expr("add", (self, lift(other)))

    def __radd__(self, other: Any) -> Expr:
        return Expr("add", (lift(other), self))

    def __sub__(self, other: Any) -> Expr:
        return Expr("sub", (self, lift(other)))

    def __rsub__(self, other: Any) -> Expr:
        return Expr("sub", (lift(other), self))

    def __mul__(self, other: Any) -> Expr:
        return Expr("mul", (self, lift(other)))

    def __rmul__(self, other: Any) -> Expr:
        return Expr("mul", (lift(other), self))

    def __truediv__(self, other: Any) -> Expr:
        return Expr("div", (self, lift(other)))

    def __rtruediv__(self, other: Any) -> Expr:
        return Expr("div", (lift(other), self))

    def __neg__(self) -> Expr:
        return Expr("neg", (self,))

    def __getattr__(self, op: str) -> Callable[..., Expr]:
        if op not in OPERATIONS:
            raise AttributeError(op)
        return lambda *others, value=None: Expr(op, (self, *map(lift, others)), value)


def lift(value: Any) -> Expr:
    return value if isinstance(value, Expr) else Expr("constant", value=float(value))


@dataclass(frozen=True)
class Operation:
    jax: str
    torch: str
    numbers: Callable[..., Any]
    """Elementwise: numbers → a number; else rows → rows."""
    elementwise: bool = True


def _defined(condition: bool, value: Callable[[], Any]) -> Any:
    return value() if condition else None


def _exp(x: Any) -> Any:
    if abs(x) > LARGEST_EXPONENT:
        raise Unusable
    return mp.exp(x)


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + _exp(-x))


def _guarded(function: Callable[[Any], Any], most: float = 1000) -> Callable[[Any], Any]:
    def guarded(x: Any) -> Any:
        if abs(x) > most:
            raise Unusable
        return function(x)

    return guarded


def _each_row(function: Callable[[list[Any]], list[Any]]) -> Callable[..., Rows]:
    def rows(value: Rows) -> Rows:
        return [[None] * len(function([mp.mpf(0)] * len(row))) if None in row else function(row) for row in value]

    return rows


def _softmax(row: list[Any]) -> list[Any]:
    top = max(row)
    found = [_exp(x - top) for x in row]
    return [x / sum(found) for x in found]


def _variance(row: list[Any], ddof: int) -> Any:
    mean = sum(row) / len(row)
    return sum((x - mean) ** 2 for x in row) / (len(row) - ddof)


def _logsumexp(row: list[Any]) -> Any:
    top = max(row)
    return top + mp.log(sum(_exp(x - top) for x in row))


def _cumsum(row: list[Any]) -> list[Any]:
    return [sum(row[: place + 1]) for place in range(len(row))]


def _times(value: Rows, matrix: Rows, transposed: bool) -> Rows:
    found: Rows = []
    for row in value:
        columns = matrix if transposed else [list(column) for column in zip(*matrix, strict=True)]
        found.append(
            [None if None in row or None in c else sum(x * y for x, y in zip(row, c, strict=True)) for c in columns]
        )
    return found


def _gelu_tanh(x: Any) -> Any:
    return x / 2 * (1 + mp.tanh(mp.sqrt(2 / mp.pi) * (x + mp.mpf("0.044715") * x**3)))


U = Operation
OPERATIONS: dict[str, Operation] = {
    "add": U("({0} + {1})", "({0} + {1})", lambda x, y: x + y),
    "sub": U("({0} - {1})", "({0} - {1})", lambda x, y: x - y),
    "mul": U("({0} * {1})", "({0} * {1})", lambda x, y: x * y),
    "div": U("({0} / {1})", "({0} / {1})", lambda x, y: _defined(y != 0, lambda: x / y)),
    "neg": U("(-{0})", "(-{0})", lambda x: -x),
    "exp": U("jnp.exp({0})", "torch.exp({0})", _exp),
    "expm1": U("jnp.expm1({0})", "torch.expm1({0})", lambda x: _exp(x) - 1),
    "log": U("jnp.log({0})", "torch.log({0})", lambda x: _defined(x > 0, lambda: mp.log(x))),
    "log1p": U("jnp.log1p({0})", "torch.log1p({0})", lambda x: _defined(x > -1, lambda: mp.log(1 + x))),
    "log2": U("jnp.log2({0})", "torch.log2({0})", lambda x: _defined(x > 0, lambda: mp.log(x, 2))),
    "sqrt": U("jnp.sqrt({0})", "torch.sqrt({0})", lambda x: _defined(x >= 0, lambda: mp.sqrt(x))),
    "rsqrt": U("jax.lax.rsqrt({0})", "torch.rsqrt({0})", lambda x: _defined(x > 0, lambda: 1 / mp.sqrt(x))),
    "asin": U("jnp.arcsin({0})", "torch.asin({0})", lambda x: _defined(abs(x) <= 1, lambda: mp.asin(x))),
    "acos": U("jnp.arccos({0})", "torch.acos({0})", lambda x: _defined(abs(x) <= 1, lambda: mp.acos(x))),
    "atan": U("jnp.arctan({0})", "torch.atan({0})", mp.atan),
    "tan": U("jnp.tan({0})", "torch.tan({0})", mp.tan),
    "tanh": U("jnp.tanh({0})", "torch.tanh({0})", mp.tanh),
    "sinh": U("jnp.sinh({0})", "torch.sinh({0})", _guarded(mp.sinh)),
    "cosh": U("jnp.cosh({0})", "torch.cosh({0})", _guarded(mp.cosh)),
    "sin": U("jnp.sin({0})", "torch.sin({0})", mp.sin),
    "cos": U("jnp.cos({0})", "torch.cos({0})", mp.cos),
    "erf": U("jax.scipy.special.erf({0})", "torch.erf({0})", mp.erf),
    "erfc": U("jax.scipy.special.erfc({0})", "torch.erfc({0})", _guarded(mp.erfc)),
    "sigmoid": U("jax.nn.sigmoid({0})", "torch.sigmoid({0})", _sigmoid),
    "log_sigmoid": U("jax.nn.log_sigmoid({0})", "F.logsigmoid({0})", lambda x: mp.log(_sigmoid(x))),
    "silu": U("jax.nn.silu({0})", "F.silu({0})", lambda x: x * _sigmoid(x)),
    "gelu": U("jax.nn.gelu({0}, approximate=False)", "F.gelu({0})", lambda x: x / 2 * (1 + mp.erf(x / mp.sqrt(2)))),
    "gelu_tanh": U("jax.nn.gelu({0}, approximate=True)", 'F.gelu({0}, approximate="tanh")', _gelu_tanh),
    "softplus": U("jnp.logaddexp({0}, 0.0)", "torch.logaddexp({0}, torch.zeros(()))", lambda x: mp.log(1 + _exp(x))),
    "logaddexp": U("jnp.logaddexp({0}, {1})", "torch.logaddexp({0}, {1})", lambda x, y: _logsumexp([x, y])),
    "relu": U("jax.nn.relu({0})", "torch.relu({0})", lambda x: max(x, mp.mpf(0))),
    "relu6": U("jax.nn.relu6({0})", "F.relu6({0})", lambda x: min(max(x, mp.mpf(0)), mp.mpf(6))),
    "elu": U("jax.nn.elu({0})", "F.elu({0})", lambda x: x if x > 0 else _exp(x) - 1),
    "leaky": U("jax.nn.leaky_relu({0}, 0.125)", "F.leaky_relu({0}, 0.125)", lambda x: x if x > 0 else x / 8),
    "abs": U("jnp.abs({0})", "torch.abs({0})", abs),
    "sign": U("jnp.sign({0})", "torch.sign({0})", mp.sign),
    "square": U("jnp.square({0})", "torch.square({0})", lambda x: x * x),
    "reciprocal": U("jnp.reciprocal({0})", "torch.reciprocal({0})", lambda x: _defined(x != 0, lambda: 1 / x)),
    "max": U("jnp.maximum({0}, {1})", "torch.maximum({0}, {1})", max),
    "min": U("jnp.minimum({0}, {1})", "torch.minimum({0}, {1})", min),
    "floor": U("jnp.floor({0})", "torch.floor({0})", mp.floor),
    "round": U("jnp.round({0})", "torch.round({0})", mp.nint),
    "where_gt": U(
        "jnp.where({0} > {1}, {2}, {3})", "torch.where({0} > {1}, {2}, {3})", lambda x, y, a, b: a if x > y else b
    ),
    "where_ge": U(
        "jnp.where({0} >= {1}, {2}, {3})", "torch.where({0} >= {1}, {2}, {3})", lambda x, y, a, b: a if x >= y else b
    ),
    "clip": U(
        "jnp.clip({0}, {value[0]}, {value[1]})",
        "torch.clamp({0}, {value[0]}, {value[1]})",
        lambda x, value: min(max(x, mp.mpf(value[0])), mp.mpf(value[1])),
    ),
    "power": U(
        "({0} ** {value})",
        "({0} ** {value})",
        lambda x, value: (
            _defined(x != 0 or value > 0, lambda: x**value)
            if isinstance(value, int)
            else _defined(x > 0, lambda: mp.power(x, mp.mpf(value)))
        ),
    ),
    "power_of": U(
        "jnp.power({0}, {1})", "torch.pow({0}, {1})", lambda x, y: _defined(x > 0, lambda: _exp(y * mp.log(x)))
    ),
    "sum": U("{0}.sum(-1, keepdims=True)", "{0}.sum(-1, keepdim=True)", _each_row(lambda r: [sum(r)]), False),
    "mean": U(
        "{0}.mean(-1, keepdims=True)", "{0}.mean(-1, keepdim=True)", _each_row(lambda r: [sum(r) / len(r)]), False
    ),
    "prod": U("{0}.prod(-1, keepdims=True)", "{0}.prod(-1, keepdim=True)", _each_row(lambda r: [mp.fprod(r)]), False),
    "top": U("{0}.max(-1, keepdims=True)", "{0}.amax(-1, keepdim=True)", _each_row(lambda r: [max(r)]), False),
    "bottom": U("{0}.min(-1, keepdims=True)", "{0}.amin(-1, keepdim=True)", _each_row(lambda r: [min(r)]), False),
    "variance": U(
        "{0}.var(-1, keepdims=True, ddof={value})",
        "{0}.var(-1, keepdim=True, correction={value})",
        lambda rows, value: _each_row(lambda r: [_variance(r, value)])(rows),
        False,
    ),
    "deviation": U(
        "{0}.std(-1, keepdims=True, ddof={value})",
        "{0}.std(-1, keepdim=True, correction={value})",
        lambda rows, value: _each_row(lambda r: [mp.sqrt(_variance(r, value))])(rows),
        False,
    ),
    "norm": U(
        "jnp.linalg.norm({0}, axis=-1, keepdims=True)",
        "torch.linalg.vector_norm({0}, dim=-1, keepdim=True)",
        _each_row(lambda r: [mp.sqrt(sum(x * x for x in r))]),
        False,
    ),
    "logsumexp": U(
        "jax.scipy.special.logsumexp({0}, axis=-1, keepdims=True)",
        "torch.logsumexp({0}, -1, keepdim=True)",
        _each_row(lambda r: [_logsumexp(r)]),
        False,
    ),
    "softmax": U("jax.nn.softmax({0}, axis=-1)", "torch.softmax({0}, -1)", _each_row(_softmax), False),
    "log_softmax": U(
        "jax.nn.log_softmax({0}, axis=-1)",
        "torch.log_softmax({0}, -1)",
        _each_row(lambda r: [x - _logsumexp(r) for x in r]),
        False,
    ),
    "flip": U("jnp.flip({0}, -1)", "torch.flip({0}, (-1,))", lambda rows: [row[::-1] for row in rows], False),
    "roll": U("jnp.roll({0}, 1, -1)", "torch.roll({0}, 1, -1)", lambda rows: [r[-1:] + r[:-1] for r in rows], False),
    "exchange": U("jnp.flip({0}, 0)", "torch.flip({0}, (0,))", lambda rows: rows[::-1], False),
    "cumsum": U("jnp.cumsum({0}, -1)", "torch.cumsum({0}, -1)", _each_row(_cumsum), False),
    "sort": U("jnp.sort({0}, -1)", "torch.sort({0}, -1).values", _each_row(sorted), False),
    "first": U("{0}[:, :1]", "{0}[:, :1]", lambda rows: [row[:1] for row in rows], False),
    "last": U("{0}[:, -1:]", "{0}[:, -1:]", lambda rows: [row[-1:] for row in rows], False),
    "times": U("({0} @ {1})", "({0} @ {1})", lambda rows, matrix: _times(rows, matrix, False), False),
    "times_t": U("({0} @ {1}.T)", "F.linear({0}, {1})", lambda rows, matrix: _times(rows, matrix, True), False),
    "einsum": U(
        'jnp.einsum("bi,oi->bo", {0}, {1})',
        'torch.einsum("bi,oi->bo", {0}, {1})',
        lambda rows, matrix: _times(rows, matrix, True),
        False,
    ),
    "widen": U("jnp.broadcast_to({0}, (2, 4))", "{0}.expand(2, 4)", lambda rows: [row * 4 for row in rows], False),
}


def source(expr: Expr, framework: str) -> str:
    """Returns the expression as Python's text."""
    if expr.op == "constant":
        return f"({expr.value!r})" if expr.value < 0 else repr(expr.value)
    if expr.op == "weight":
        return f'p["{expr.value}"]' if framework == "jax" else f"self.{expr.value}"
    template = getattr(OPERATIONS[expr.op], framework)
    return template.format(*(_as_array(arg, expr.op, framework) for arg in expr.args), value=expr.value)


def _as_array(arg: Expr, op: str, framework: str) -> str:
    """Constants are arrays where a framework's function takes no number."""
    text = source(arg, framework)
    if arg.op == "constant" and framework == "torch" and op in {"max", "min", "logaddexp"}:
        return f"torch.tensor({text})"
    return text


def evaluate(expr: Expr, weights: Mapping[str, Rows]) -> Rows:
    """Returns the expression's numbers at some weights, None where there is no number."""
    known: dict[int, Rows] = {}

    def read(one: Expr) -> Rows:
        if id(one) not in known:
            known[id(one)] = compute(one)
        return known[id(one)]

    def compute(one: Expr) -> Rows:
        if one.op == "constant":
            return [[meant(one.value)]] * ROWS
        if one.op == "weight":
            return weights[one.value]
        operation, args = OPERATIONS[one.op], [read(arg) for arg in one.args]
        keywords = {} if one.value is None else {"value": one.value}
        if not operation.elementwise:
            return operation.numbers(*args, **keywords)
        width = max(len(rows[0]) for rows in args)
        return [
            [
                _apply(one.op, operation.numbers, [rows[r][c if len(rows[r]) > 1 else 0] for rows in args], keywords)
                for c in range(width)
            ]
            for r in range(ROWS)
        ]

    return read(expr)


def _apply(op: str, function: Callable[..., Any], args: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
    if op.startswith("where"):
        return None if args[0] is None or args[1] is None else function(*args)
    return None if any(arg is None for arg in args) else function(*args, **keywords)


MEANT: Mapping[float, Callable[[], Any]] = {
    math.log(2): lambda: mp.log(2),
    1 / math.log(2): lambda: 1 / mp.log(2),
    math.sqrt(2): lambda: mp.sqrt(2),
    math.sqrt(0.5): lambda: mp.sqrt(mp.mpf(1) / 2),
    math.sqrt(2 / math.pi): lambda: mp.sqrt(2 / mp.pi),
    2 * math.sqrt(2 / math.pi): lambda: 2 * mp.sqrt(2 / mp.pi),
    math.sqrt(4 / 3): lambda: mp.sqrt(mp.mpf(4) / 3),
    math.pi / 2: lambda: mp.pi / 2,
}


def meant(constant: float) -> Any:
    """Returns the number that a rounded constant stands for: a root, a logarithm, or a decimal."""
    return MEANT[constant]() if constant in MEANT else mp.mpf(repr(constant))


def weights_in(expr: Expr) -> set[str]:
    return {expr.value} if expr.op == "weight" else set().union(*map(weights_in, expr.args), set())


def points(seed: int) -> Iterator[dict[str, Rows]]:
    """Yields random weights: small, usual and large ones, of one sign, and of both."""
    rng = random.Random(seed)
    for scale in (1, 0.3, 1, 2, 5, 1e-4, 30, 1e4, 1e8):
        for sign in (None, 1, -1):

            def draw(scale: float = scale, sign: int | None = sign) -> Any:
                value = mp.mpf(rng.gauss(0, 1)) * scale + mp.mpf(rng.random()) * mp.mpf(2) ** -60
                return value if sign is None else sign * abs(value)

            yield {
                name: [[draw() for _ in range(columns)] for _ in range(rows)]
                for name, (rows, columns) in WEIGHTS.items()
            }


@dataclass(frozen=True)
class Truth:
    """Says what 60 digits show of two expressions."""

    same: bool
    """Whether they are equal wherever both are defined."""
    same_gradients: bool
    same_domain: bool
    """Whether both are defined for the same weights, entry by entry."""
    defined: str
    """"everywhere", "partly" or "nowhere"."""


STEP = mp.mpf(10) ** -25


def truth_of(one: Expr, two: Expr, seed: int = 0) -> Truth:
    """Compares two expressions at many random weights, and their derivatives along a random direction."""
    with mp.workdps(DIGITS + 30):
        return _truth_of(one, two, seed)


def _truth_of(one: Expr, two: Expr, seed: int) -> Truth:
    same = same_gradients = same_domain = True
    counts = {True: 0, False: 0}
    directions = next(points(seed + 1))
    for index, weights in enumerate(points(seed)):
        try:
            pairs = _pairs(one, two, weights)
        except Unusable:
            continue
        usable = [pair for pair in pairs if None not in pair]
        for is_defined in (None not in pair for pair in pairs):
            counts[is_defined] += 1
        same_domain &= all((one is None) == (two is None) for one, two in pairs)
        same &= all(_is_near(*pair, mp.mpf(10) ** -30) for pair in usable)
        if len(usable) == len(pairs) and index < 20:
            moved = {
                name: [
                    [x + STEP * d for x, d in zip(*both, strict=True)]
                    for both in zip(weights[name], directions[name], strict=True)
                ]
                for name in weights
            }
            try:
                there = _pairs(one, two, moved)
            except Unusable:
                continue
            if any(None in pair for pair in there):
                continue
            slopes = [((c - a) / STEP, (d - b) / STEP) for (a, b), (c, d) in zip(pairs, there, strict=True)]
            same_gradients &= all(_is_near(*pair, mp.mpf(10) ** -15) for pair in slopes)
    defined = "everywhere" if not counts[False] else "partly" if counts[True] else "nowhere"
    return Truth(same, same and same_gradients, same_domain, defined)


def _pairs(one: Expr, two: Expr, weights: Mapping[str, Rows]) -> list[tuple[Any, Any]]:
    first, second = evaluate(one, weights), evaluate(two, weights)
    width = max(len(first[0]), len(second[0]))
    return [(a[c % len(a)], b[c % len(b)]) for a, b in zip(first, second, strict=True) for c in range(width)]


def _is_near(one: Any, two: Any, tolerance: Any) -> bool:
    return bool(abs(one - two) <= tolerance * max(1, abs(one), abs(two)))
