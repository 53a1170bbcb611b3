# ruff: noqa: E501 (a program is one line)
"""Pairs by hand of programs that hold weights of their own: the map between these is found, or a converter gives it.

SAME: there is a layout of weights in which both are one function. DIFFERENT: there is none, or the given map isn't it.
TIED: there is one if weights that one program has apart are equal. NEITHER: another order of hidden features would do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from proof.adversary_pairs import DIFFERENT, NEITHER, SAME, TIED, Pair, Program, jax_side, torch_program

__all__ = ["mapped_pairs"]

ALL: list[Pair] = []
X = {"x": np.ones((3, 4), np.float32)}
IDS = {"ids": np.array([[1, 5, 3, 2]])}
Shapes = Mapping[str, tuple[int, ...]]


def mapped(
    area: str,
    truth: str,
    candidate: tuple[str, Shapes],
    reference: tuple[str, Shapes],
    inputs: Mapping[str, Any] = X,
    *,
    frameworks: str = "jax torch",
    names: str | None = None,
) -> None:
    """Adds a pair of sides: bodies, or whole programs, and the shapes of their weights.

    Args:
      names: the text of a converter, an expression.
    """
    sides = []
    for framework, (text, shapes) in zip(frameworks.split(), (candidate, reference), strict=True):
        if "program" in text:
            sides.append(Program(framework, text))
        elif framework == "jax":
            sides.append(jax_side(text, shapes, list(inputs)))
        else:
            sides.append(torch_program(text, shapes, list(inputs)))
    shown = " | ".join(text.strip().splitlines()[-1].strip()[:60] for text, _ in (candidate, reference))
    ALL.append(
        Pair(area, f"own weights, {area} {len(ALL)}: {shown}", *sides, {"forward": truth}, inputs=inputs, names=names)
    )


def mapped_pairs() -> Iterator[Pair]:
    yield from ALL


# --- ties: several weights of one side are one of the other

TIES = "ties of a map"
E = {"e": (11, 4)}
EH = {"e": (11, 4), "h": (11, 4)}
mapped(TIES, DIFFERENT, ("e[ids] @ e.T", E), ("e[ids] @ h.T", EH), IDS)
mapped(TIES, TIED, ("e[ids] @ h.T", EH), ("e[ids] @ e.T", E), IDS)
mapped(TIES, TIED, ("e[ids] @ e.T", E), ("e[ids] @ h.T", EH), IDS, frameworks="torch jax")
mapped(TIES, TIED, ("e[ids] @ h.T", EH), ("e[ids] @ e.T", E), IDS, frameworks="torch jax")
AB = {"a": (4, 4), "b": (4, 4)}
A = {"a": (4, 4)}
mapped(TIES, DIFFERENT, ("jnp.tanh(x @ a) @ a", A), ("torch.tanh(x @ a) @ b", AB))
mapped(TIES, DIFFERENT, ("jnp.tanh(x @ a) @ a.T", A), ("torch.tanh(x @ a) @ b", AB))
mapped(TIES, DIFFERENT, ("jnp.tanh(x @ a) @ a", A), ("torch.tanh(x @ a) @ a.T", A))
mapped(TIES, DIFFERENT, ("jnp.tanh(x @ a) @ a", A), ("torch.tanh(x @ a.T) @ a", A))
mapped(TIES, SAME, ("jnp.tanh(x @ a) @ a.T", A), ("torch.tanh(x @ a.T) @ a", A))
mapped(TIES, DIFFERENT, ("x @ a + x @ a", A), ("x @ a + x @ b", AB), frameworks="jax jax")
mapped(TIES, SAME, ("2 * (x @ a)", A), ("x @ a + x @ a", A))

# --- weights whose layout may hide a fault

HIDDEN = "layouts that hide"
W44 = {"w": (4, 4)}
mapped(HIDDEN, SAME, ("x @ w.T", W44), ("x @ w", W44))
mapped(HIDDEN, SAME, ("x @ w[::-1]", W44), ("x @ w", W44))
mapped(HIDDEN, SAME, ("x[:, ::-1] @ w", W44), ("x @ w", W44))
mapped(HIDDEN, DIFFERENT, ("jnp.tanh(x[:, ::-1] @ w) + x", W44), ("torch.tanh(x @ w) + x.flip(1)", W44))
mapped(HIDDEN, DIFFERENT, ("x @ (w + w.T)", W44), ("x @ w", W44))
mapped(HIDDEN, SAME, ("x @ (w + w.T)", W44), ("x @ (w.T + w)", W44))
mapped(HIDDEN, DIFFERENT, ("x @ w * 2", W44), ("x @ w", W44))
mapped(HIDDEN, DIFFERENT, ("x @ -w", W44), ("x @ w", W44))
mapped(HIDDEN, DIFFERENT, ("x @ jnp.tril(w)", W44), ("x @ w", W44))
mapped(HIDDEN, DIFFERENT, ("x @ w", W44), ("x @ torch.tril(w)", W44))
mapped(HIDDEN, SAME, ("x @ jnp.tril(w)", W44), ("x @ torch.tril(w)", W44))
mapped(HIDDEN, SAME, ("x @ jnp.triu(w).T", W44), ("x @ torch.tril(w)", W44))
mapped(HIDDEN, DIFFERENT, ("x @ (w * jnp.eye(4))", W44), ("x @ w", W44))
mapped(HIDDEN, DIFFERENT, ("x @ w", W44), ("x @ (w * torch.eye(4))", W44))
mapped(HIDDEN, SAME, ("x * s", {"s": (4,)}), ("x @ (w * torch.eye(4))", W44))
mapped(HIDDEN, DIFFERENT, ("x * jnp.tile(s, 2)", {"s": (2,)}), ("x * s", {"s": (4,)}))
mapped(HIDDEN, TIED, ("x * s", {"s": (4,)}), ("x * s.repeat(2)", {"s": (2,)}))
mapped(HIDDEN, DIFFERENT, ("x * jnp.tile(s, 2)", {"s": (2,)}), ("x * s.repeat_interleave(2)", {"s": (2,)}))
mapped(HIDDEN, SAME, ("x * jnp.repeat(s, 2)", {"s": (2,)}), ("x * s.repeat_interleave(2)", {"s": (2,)}))
mapped(HIDDEN, DIFFERENT, ("x + b.mean()", {"b": (4,)}), ("x + b", {"b": (4,)}))
mapped(HIDDEN, TIED, ("x @ w + b", {"w": (4, 4), "b": (4,)}), ("x @ w + b[:1]", {"w": (4, 4), "b": (4,)}))
mapped(HIDDEN, DIFFERENT, ("x @ w + b", {"w": (4, 4), "b": (4,)}), ("x @ w", W44))
mapped(HIDDEN, DIFFERENT, ("x @ w", W44), ("x @ w + b", {"w": (4, 4), "b": (4,)}))
mapped(HIDDEN, SAME, ("x @ w + 0 * b.sum()", {"w": (4, 4), "b": (4,)}), ("x @ w", W44))
mapped(HIDDEN, SAME, ("x @ w", W44), ("x @ w + 0 * b.sum()", {"w": (4, 4), "b": (4,)}))
mapped(HIDDEN, DIFFERENT, ("x @ w / (1e-30 * b.sum() ** 2 + 1)", {"w": (4, 4), "b": (4,)}), ("x @ w", W44))

# --- weights that these inputs read in part

PARTS = "weights read in part"
U = {"u": (4,)}
EU = E | U
mapped(PARTS, SAME, ("u * e[ids]", EU), ("u * e[ids]", EU), IDS)
mapped(PARTS, DIFFERENT, ("u * e[ids + 1]", {"e": (12, 4)} | U), ("u * e[ids]", EU), IDS)
mapped(PARTS, DIFFERENT, ("u * e[ids + 1]", EU), ("u * e[ids]", EU), IDS)
mapped(PARTS, DIFFERENT, ("u * e[10 - ids]", EU), ("u * e[ids]", EU), IDS)
mapped(PARTS, DIFFERENT, ("u * e[2 * ids]", EU), ("u * e[ids]", EU), IDS)
mapped(
    PARTS,
    DIFFERENT,
    ("u * e[ids] + q[jnp.arange(4)]", EU | {"q": (9, 4)}),
    ("u * e[ids] + q[torch.arange(4) + 2]", EU | {"q": (9, 4)}),
    IDS,
)
mapped(
    PARTS,
    SAME,
    ("u * e[ids] + q[jnp.arange(4)]", EU | {"q": (7, 4)}),
    ("u * e[ids] + q[torch.arange(4) + 2]", EU | {"q": (9, 4)}),
    IDS,
)
mapped(PARTS, DIFFERENT, ("u * e[jnp.where(ids == 5, 3, ids)]", EU), ("u * e[ids]", EU), IDS)
mapped(PARTS, DIFFERENT, ("u * e[ids]", EU), ("u * e[torch.where(ids == 5, 3, ids)]", EU), IDS)
mapped(
    PARTS, DIFFERENT, ("u * e[ids]", EU), ("u * F.embedding(ids, e, padding_idx=3) * (ids != 3)[..., None]", EU), IDS
)
mapped(PARTS, SAME, ("u * jnp.einsum('bsv,vd->bsd', jax.nn.one_hot(ids, 11), e)", EU), ("u * e[ids]", EU), IDS)
mapped(
    PARTS,
    DIFFERENT,
    ("u * jnp.einsum('bsv,vd->bsd', jax.nn.one_hot(ids, 11, dtype=jnp.float32), e) * 2", EU),
    ("u * e[ids]", EU),
    IDS,
)

# --- converters

GIVEN = "converters"
WB = {"w": (4, 4), "b": (4,)}
PLAIN = "x @ w + b"
for made, truth in (
    ("t['w']", SAME),
    ("t['w'].T", DIFFERENT),
    ("np.abs(t['w'])", DIFFERENT),
    ("np.maximum(t['w'], 0)", DIFFERENT),
    ("np.floor(t['w'])", DIFFERENT),
    ("t['w'].astype(int).astype(np.float32)", DIFFERENT),
    ("t['w'].astype(np.float16).astype(np.float32)", DIFFERENT),
    ("np.clip(t['w'], -1e3, 1e3)", DIFFERENT),
    ("np.where(np.isfinite(t['w']), t['w'], 0)", SAME),
    ("np.sort(t['w'], axis=None).reshape(4, 4)", DIFFERENT),
    ("t['w'] * np.sign(t['w'] + 1)", DIFFERENT),
    ("t['w'][np.argsort(t['w'][:, 0])]", DIFFERENT),
    ("t['w'] if t['w'].min() >= 0 else t['w'].T", DIFFERENT),
    ("t['w'].reshape(2, 2, 4).swapaxes(0, 1).reshape(4, 4)", DIFFERENT),
    ("np.concatenate([t['w'][:2], t['w'][2:]])", SAME),
    ("t['w'] + 1", DIFFERENT),
    ("t['w'] + 0", SAME),
    ("t['w'][::-1]", DIFFERENT),
):
    mapped(GIVEN, truth, (PLAIN, WB), (PLAIN, WB), names=f"lambda t: {{'w': {made}, 'b': t['b']}}")
mapped(GIVEN, DIFFERENT, ("x * s", {"s": (1,)}), ("x * s", {"s": (1,)}), names="lambda t: {'s': t['s'] * 2}")
mapped(GIVEN, DIFFERENT, ("x * s", {"s": (1,)}), ("x * s", {"s": (1,)}), names="lambda t: {'s': t['s'] ** 3}")
mapped(GIVEN, DIFFERENT, ("x @ w", W44), ("x @ w", W44), names="lambda t: {'w': np.zeros((4, 4), np.float32)}")
mapped(
    GIVEN,
    DIFFERENT,
    ("x * s + b", {"s": (4,), "b": (4,)}),
    ("x * s + b", {"s": (4,), "b": (4,)}),
    names="lambda t: {'s': t['b'], 'b': t['s']}",
)

# --- several ways to match

WAYS = "ambiguous maps"
BRANCHES = dict.fromkeys("abcdef", (4, 4))
mapped(WAYS, SAME,
    ("return jnp.concatenate([jnp.tanh(x @ k) for k in (d, f, a, c, b, e)], -1) @ jnp.asarray(np.arange(48.).reshape(24, 2) % 7, jnp.float32)", BRANCHES),
    ("return torch.cat([torch.tanh(x @ k) for k in (a, b, c, d, e, f)], -1) @ (torch.arange(48.).reshape(24, 2) % 7)", BRANCHES))  # fmt: skip
mapped(WAYS, DIFFERENT,
    ("return jnp.concatenate([jnp.tanh(x @ k) for k in (d, f, a, c, b, e)], -1) @ jnp.asarray(np.arange(48.).reshape(24, 2) % 6, jnp.float32)", BRANCHES),
    ("return torch.cat([torch.tanh(x @ k) for k in (a, b, c, d, e, f)], -1) @ (torch.arange(48.).reshape(24, 2) % 7)", BRANCHES))  # fmt: skip
mapped(WAYS, SAME,
    ("return sum(c * jnp.tanh(x @ k) for c, k in zip((1., 2., 3., 4.), (d, c_, a, b)))", {"a": (4, 4), "b": (4, 4), "c_": (4, 4), "d": (4, 4)}),
    ("return sum(c * torch.tanh(x @ k) for c, k in zip((4., 3., 2., 1.), (a, b, c_, d)))", {"a": (4, 4), "b": (4, 4), "c_": (4, 4), "d": (4, 4)}))  # fmt: skip
mapped(
    WAYS,
    NEITHER,
    ("jnp.tanh(x @ w) @ jnp.asarray([4., 3., 2., 1.])", W44),
    ("torch.tanh(x @ w) @ torch.tensor([1., 2., 3., 4.])", W44),
)
mapped(
    WAYS,
    NEITHER,
    ("jnp.tanh(x @ w) @ jnp.asarray([3., 1., 4., 2.])", W44),
    ("torch.tanh(x @ w) @ torch.tensor([1., 2., 3., 4.])", W44),
)
mapped(
    WAYS,
    DIFFERENT,
    ("jnp.tanh(x @ w) @ jnp.asarray([4., 3., 2., 2.])", W44),
    ("torch.tanh(x @ w) @ torch.tensor([1., 2., 3., 4.])", W44),
)
mapped(WAYS, NEITHER,
    ("return (jnp.tanh(x @ w) * jnp.asarray([3., 1., 4., 2.])) @ u", {"w": (4, 4), "u": (4, 3)}),
    ("return (torch.tanh(x @ w) * torch.tensor([1., 2., 3., 4.])) @ u", {"w": (4, 4), "u": (4, 3)}))  # fmt: skip
ATTEND_J = "q, k, v = x @ a, x @ b, x @ c\nreturn jax.nn.softmax(q @ k.T, -1) @ v"
ATTEND_T = "q, k, v = x @ a, x @ b, x @ c\nreturn torch.softmax(q @ k.T, -1) @ v"
ABC = {"a": (4, 4), "b": (4, 4), "c": (4, 4)}
mapped(WAYS, SAME, (ATTEND_J, ABC), (ATTEND_T.replace("a, x @ b, x @ c", "c, x @ a, x @ b"), ABC))
mapped(WAYS, SAME, (ATTEND_J, ABC), (ATTEND_T.replace("q @ k.T", "(k @ q.T).T"), ABC))
mapped(WAYS, DIFFERENT, (ATTEND_J, ABC), (ATTEND_T.replace("-1)", "0)"), ABC))
mapped(WAYS, TIED, (ATTEND_J, ABC), (ATTEND_T.replace("x @ b", "x @ a"), ABC))
mapped(WAYS, DIFFERENT, (ATTEND_J.replace("x @ b", "x @ a"), ABC), (ATTEND_T, ABC))

# --- modules of frameworks

MODULES = "modules"
B = {"x": np.ones((2, 4, 3), np.float32)}
NORMED_T = """class Program(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
    def forward(self, x):
        return self.norm(x)
program = Program().eval()
"""
NORMED_X = """class Program(nnx.Module):
    def __init__(self):
        self.norm = nnx.BatchNorm(4, use_running_average=True, epsilon=1e-5, rngs=nnx.Rngs(0))
    def __call__(self, x):
        return self.norm(x.swapaxes(1, 2)).swapaxes(1, 2)
program = Program()
"""
NORMED_L = """class Norm(linen.Module):
    @linen.compact
    def __call__(self, x):
        return linen.BatchNorm(use_running_average=True, epsilon=1e-5)(x.swapaxes(1, 2)).swapaxes(1, 2)
program = Side(Norm(), params=Norm().init(jax.random.key(0), np.ones((2, 4, 3), np.float32)))
"""
for one, truth in (
    (NORMED_X, SAME),
    (NORMED_L, SAME),
    (NORMED_X.replace("1e-5", "1e-3"), DIFFERENT),
    (NORMED_L.replace("epsilon=1e-5", "epsilon=1e-5, use_bias=False"), DIFFERENT),
):
    mapped(MODULES, truth, (one, {}), (NORMED_T, {}), B)
STATISTICS = "(x{}) / jnp.sqrt({} + 1e-5) * w[:, None] + v[:, None]"
FOUR = dict.fromkeys("wvab", (4,))
for one, truth in (
    (STATISTICS.format(" - a[:, None]", "b[:, None]"), SAME),
    (STATISTICS.format("", "b[:, None]"), DIFFERENT),
    (STATISTICS.format(" - a[:, None]", "1"), DIFFERENT),
    (STATISTICS.format("", "1"), DIFFERENT),
    (STATISTICS.format(" - a[:, None]", "a[:, None]"), DIFFERENT),
    (STATISTICS.format(" - x.mean((0, 2), keepdims=True)", "x.var((0, 2), keepdims=True)"), DIFFERENT),
):
    shapes = {name: shape for name, shape in FOUR.items() if name + "[" in one}
    mapped(MODULES, truth, (one, shapes), (NORMED_T, {}), B)
for init, body, one, truth in (
    (
        "self.register_buffer('s', torch.tensor([1., 2., 3., 4.]))",
        "x * self.s @ self.w",
        "x * jnp.asarray([1., 2., 3., 4.]) @ w",
        SAME,
    ),
    (
        "self.register_buffer('s', torch.tensor([1., 2., 3., 4.]))",
        "x * self.s @ self.w",
        "x * jnp.asarray([1., 2., 3., 5.]) @ w",
        DIFFERENT,
    ),
    (
        "self.register_buffer('s', torch.tensor([1., 2., 3., 4.]))",
        "x * self.s @ self.w",
        "(x * jnp.asarray([4., 3., 2., 1.])) @ w",
        DIFFERENT,
    ),
    ("self.register_buffer('s', torch.zeros(4))", "x @ self.w + self.s", "x @ w", DIFFERENT),
    ("self.s = nn.Parameter(torch.ones(4), requires_grad=False)", "x @ self.w * self.s", "x @ w", DIFFERENT),
    ("self.s = nn.Parameter(torch.zeros(4))", "x @ self.w + self.s", "x @ w", DIFFERENT),
    ("self.register_buffer('s', torch.tensor(2.), persistent=False)", "x @ self.w * self.s", "x @ w * 2", SAME),
    ("self.register_buffer('s', torch.tensor(2.), persistent=False)", "x @ self.w * self.s", "x @ w", DIFFERENT),
    ("self.s = torch.tensor(2.)", "x @ self.w * self.s", "x @ w * 2", SAME),
    ("self.s = torch.tensor(2.)", "x @ self.w * self.s", "x @ w * 3", DIFFERENT),
):
    module = f"""class Program(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(4, 4))
        {init}
    def forward(self, x):
        return {body}
program = Program().eval()
"""
    mapped(MODULES, truth, (one, W44), (module, {}))

# --- guesses by name that aren't the map

GUESSED = "guesses by name"
SU = {"s": (4,), "u": (4,)}
mapped(GUESSED, SAME, ("jnp.exp(x) * jnp.exp(s) * u", SU), ("torch.exp(x + u) * s", SU))
mapped(GUESSED, SAME, ("jnp.exp(x) * jnp.exp(u) * s", SU), ("torch.exp(x + u) * s", SU))
mapped(GUESSED, SAME, ("jnp.exp(x) * (jnp.exp(s) * u)", SU), ("torch.exp(x + u) * s", SU))
mapped(GUESSED, SAME, ("(x * s + u) * 2", SU), ("x * 2 * u + 2 * s", SU))
mapped(GUESSED, SAME, ("x * s + u * s", SU), ("(x + s) * u", SU))
mapped(GUESSED, SAME, ("x * s + u * s", SU), ("(x + u) * s", SU))
mapped(GUESSED, DIFFERENT, ("x * s + u * s", SU), ("(x - u) * s + 0.1", SU))
mapped(GUESSED, SAME, ("(x - s) ** 2 * u", SU), ("(x * x - 2 * x * u + u * u) * s", SU))
mapped(GUESSED, SAME, ("jnp.tanh((x + s) @ w) * u", SU | W44), ("torch.tanh(x @ w + (u[None] @ w)) * s", SU | W44))
mapped(GUESSED, SAME, ("jnp.tanh((x + s) @ w.T) * u", SU | W44), ("torch.tanh(x @ w + (u[None] @ w)) * s", SU | W44))
mapped(GUESSED, SAME, ("jnp.tanh(x @ w + s @ w) * u", SU | W44), ("torch.tanh((x + u) @ w) * s", SU | W44))
mapped(GUESSED, SAME, ("jnp.log(jnp.exp(x) * s ** 2) + u", SU), ("x + 2 * torch.log(u.abs()) + s", SU))
mapped(GUESSED, SAME, ("jnp.where(x > 0, x * s, x * u)", SU), ("torch.relu(x) * u - torch.relu(-x) * s", SU))
mapped(GUESSED, SAME, ("jnp.where(x > 0, x * s, x * u)", SU), ("torch.where(x <= 0, x * s, x * u)", SU))
mapped(GUESSED, DIFFERENT, ("jnp.where(x > 0, x * s, x * u)", SU), ("torch.where(x <= 0, x * s, x * s) + u", SU))
mapped(GUESSED, SAME, ("x @ a @ b", AB), ("x @ (b @ a)", AB))
mapped(GUESSED, SAME, ("x @ a + x @ b", AB), ("x @ (b + a)", AB))
mapped(GUESSED, SAME, ("x @ (a + b)", AB), ("x @ a + x @ b", AB))
mapped(
    GUESSED,
    SAME,
    ("jnp.tanh(x @ a + 1) * jnp.tanh(x @ b - 1)", AB),
    ("torch.tanh(1 + x @ b) * -torch.tanh(1 - x @ a)", AB),
)
mapped(GUESSED, SAME, ("jnp.sin(x @ a) + jnp.cos(x @ b)", AB), ("torch.cos(x @ a) + torch.sin(x @ b)", AB))
mapped(GUESSED, SAME, ("2 * jnp.sin(x @ a) * jnp.cos(x @ a)", A), ("torch.sin(2 * (x @ a))", A))
mapped(GUESSED, DIFFERENT, ("2 * jnp.sin(x @ a) * jnp.cos(x @ b)", AB), ("torch.sin(2 * (x @ a)) + 0 * x @ b", AB))
mapped(GUESSED, SAME, ("2 * jnp.where(x > 0, x * s, x * u)", SU), ("2 * torch.where(x <= 0, x * s, x * u)", SU))
mapped(GUESSED, SAME, ("jnp.where(x > 0, 2 * x * s, 3 * x * u)", SU), ("torch.where(x <= 0, 3 * x * s, 2 * x * u)", SU))
mapped(
    GUESSED,
    SAME,
    ("jnp.where(x > 0, jnp.tanh(x @ a), jnp.sin(x @ b))", AB),
    ("torch.where(x <= 0, torch.sin(x @ a), torch.tanh(x @ b))", AB),
)
mapped(GUESSED, SAME, ("jnp.where(x > 0, x @ a, x @ b)", AB), ("torch.where(x <= 0, x @ a, x @ b)", AB))
mapped(GUESSED, SAME, ("jnp.where(x > 0, x @ a, x @ b)", AB), ("torch.where(x <= 0, x @ a.T, x @ b)", AB))
mapped(GUESSED, DIFFERENT, ("jnp.where(x > 0, x @ a, x @ b)", AB), ("torch.where(x <= 0, x @ a, x @ b + 1)", AB))
mapped(GUESSED, DIFFERENT, ("jnp.where(x > 0, x @ a, x @ a)", A), ("torch.where(x <= 0, x @ a, x @ b)", AB))
SYMMETRIC_J, SYMMETRIC_T = (
    "jnp.where({}, x @ a, x @ b) + (x @ a) * (x @ b)",
    "torch.where({}, x @ a, x @ b) + (x @ a) * (x @ b)",
)
mapped(GUESSED, SAME, (SYMMETRIC_J.format("x > 0"), AB), (SYMMETRIC_T.format("x <= 0"), AB))
mapped(GUESSED, SAME, (SYMMETRIC_J.format("x > 0"), AB), (SYMMETRIC_T.format("x > 0"), AB))
mapped(
    GUESSED,
    SAME,
    ("jnp.tanh(x @ a) / (1 + jnp.exp(x @ b)) + (x @ a) * (x @ b)", AB),
    ("torch.tanh(x @ b) * torch.sigmoid(-(x @ a)) + (x @ a) * (x @ b)", AB),
)
mapped(
    GUESSED,
    SAME,
    ("(x @ a) ** 2 + 3 * (x @ b) ** 2 + (x @ a) * (x @ b)", AB),
    ("(x @ b + 0.5 * (x @ a)) ** 2 + 2.75 * (x @ a) ** 2", AB),
)
mapped(
    GUESSED,
    SAME,
    ("(x @ a) ** 3 + (x @ b) ** 3 - 2 * (x @ b) ** 3", AB),
    ("(x @ b - x @ a) * ((x @ b) ** 2 + (x @ a) * (x @ b) + (x @ a) ** 2)", AB),
)
mapped(GUESSED, SAME, ("x @ a - x @ b + (x @ a) * (x @ b)", AB), ("(x @ b + 1 - 2) * (x @ a + 1) + 1", AB))
mapped(GUESSED, DIFFERENT, ("x @ a - x @ b + (x @ a) * (x @ b)", AB), ("(x @ b + 1) * (x @ a + 1) - 1", AB))

# --- the second round: types, layers, loops, and frameworks as sides

TYPED = "types of weights"
for one, two, truth in (
    (
        "return x / jnp.sqrt((x * x).mean(-1, keepdims=True) + jnp.finfo(s.dtype).eps) * s",
        "return x / torch.sqrt((x * x).mean(-1, keepdim=True) + torch.finfo(torch.float32).eps) * s",
        SAME,
    ),
    (
        "return x / jnp.sqrt((x * x).mean(-1, keepdims=True) + jnp.finfo(jnp.float16).eps) * s",
        "return x / torch.sqrt((x * x).mean(-1, keepdim=True) + torch.finfo(torch.float32).eps) * s",
        DIFFERENT,
    ),
):
    mapped(TYPED, truth, (one, {"s": (4,)}), (two, {"s": (4,)}))
HALF = """def function(p, i):
    s, x = p["s"], i["x"]
    return x / jnp.sqrt((x * x).mean(-1, keepdims=True) + jnp.finfo(s.dtype).eps) * s.astype(jnp.float32)
program = Side(function, params={"s": jnp.zeros(4, jnp.TYPE)})
"""
EPS_T = "return x / torch.sqrt((x * x).mean(-1, keepdim=True) + torch.finfo(torch.TYPE).eps) * s"
for kind in ("float16", "bfloat16"):
    for other in ("float16", "bfloat16", "float32"):
        mapped(
            TYPED,
            SAME if kind == other else DIFFERENT,
            (HALF.replace("TYPE", kind), {}),
            (EPS_T.replace("TYPE", other), {"s": (4,)}),
        )
CLIP = """def function(p, i):
    return jnp.clip(i["x"] * p["s"].astype(jnp.float32), -float(jnp.finfo(p["s"].dtype).max), float(jnp.finfo(p["s"].dtype).max))
program = Side(function, params={"s": jnp.zeros(4, jnp.TYPE)})
"""
mapped(TYPED, DIFFERENT, (CLIP.replace("TYPE", "float16"), {}), ("x * s", {"s": (4,)}))
mapped(TYPED, SAME, (CLIP.replace("TYPE", "float32"), {}), ("x * s", {"s": (4,)}))

STACKED = "stacked and fused weights"
LAYERS_T = """class Program(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])
    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x)) + x
        return x
program = Program().eval()
"""
SCAN = "return jax.lax.scan(lambda x, p: ({}, None), x, (w, b){})[0]"
STACK = {"w": (3, 4, 4), "b": (3, 4)}
STEP = "jnp.tanh(x @ p[0] + p[1]) + x"
for one, truth in (
    (SCAN.format(STEP, ""), SAME),
    (SCAN.format(STEP, ", reverse=True"), SAME),
    (SCAN.format(STEP.replace("p[0]", "p[0].T"), ""), SAME),
    (SCAN.format(STEP.replace("+ x", "- x"), ""), DIFFERENT),
    (SCAN.format(STEP.replace("+ x", "+ x * 1.0000001"), ""), DIFFERENT),
    (SCAN.format(STEP.replace("p[1]", "p[1][::-1]"), ""), SAME),
    (SCAN.format(STEP.replace("p[0]", "p[0] * 0.5"), ""), DIFFERENT),
    ("for k in range(3):\n    x = jnp.tanh(x @ w[k] + b[0]) + x\nreturn x", DIFFERENT),
    ("for k in range(3):\n    x = jnp.tanh(x @ w[k] + b[2 - k]) + x\nreturn x", SAME),
    ("for k in range(2):\n    x = jnp.tanh(x @ w[k] + b[k]) + x\nreturn x", DIFFERENT),
    ("for k in (0, 1, 1):\n    x = jnp.tanh(x @ w[k] + b[k]) + x\nreturn x", DIFFERENT),
    ("for k in (1, 2, 0):\n    x = jnp.tanh(x @ w[k] + b[k]) + x\nreturn x", SAME),
    ("for k in range(3):\n    x = jnp.tanh(x @ (w[k].T if k == 1 else w[k]) + b[k]) + x\nreturn x", SAME),
    ("for k in range(3):\n    x = jnp.tanh(x @ w[k] + (b[k] if k < 2 else b[k].mean())) + x\nreturn x", DIFFERENT),
):
    mapped(STACKED, truth, (one, STACK), (LAYERS_T, {}))
QKV_T = """class Program(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(4, 12), nn.Linear(4, 4)
    def forward(self, x):
        q, k, v = (each.reshape(3, 2, 2).transpose(0, 1) for each in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(0, 1).reshape(3, 4))
program = Program().eval()
"""
QKV_J = """q, k, v = (x @ w[j] + b[j] for j in range(3))
q, k, v = (each.reshape(3, 2, 2) for each in (q, k, v))
s = jnp.einsum("tnh,snh->nts", q, k) / np.sqrt(2)
s = jax.nn.softmax(jnp.where(np.tril(np.ones((3, 3), bool)), s, -1e9), -1)
return jnp.einsum("nts,snh->tnh", s, v).reshape(3, 4) @ o + c"""
QKV = {"w": (3, 4, 4), "b": (3, 4), "o": (4, 4), "c": (4,)}
for old, new, truth in (
    ("", "", SAME),
    ("in range(3)", "in (2, 0, 1)", SAME),
    ("np.sqrt(2)", "2", DIFFERENT),
    ("np.sqrt(2)", "np.sqrt(4)", DIFFERENT),
    ("np.tril", "np.triu", DIFFERENT),
    ("np.tril(np.ones((3, 3), bool))", "np.tril(np.ones((3, 3), bool), 1)", DIFFERENT),
    ("np.tril(np.ones((3, 3), bool))", "np.ones((3, 3), bool)", DIFFERENT),
    ("-1e9", "-1e30", SAME),
    ("-1e9", "-5", DIFFERENT),
    ("bool)), s, -1e9), -1)", "bool)), s, -1e9), 0)", DIFFERENT),
    ("each.reshape(3, 2, 2) for", "each.reshape(3, 2, 2).swapaxes(1, 2) for", SAME),
    ("reshape(3, 4) @ o", "swapaxes(1, 2).reshape(3, 4) @ o", SAME),
    ("nts,snh->tnh", "nts,tnh->snh", DIFFERENT),
    ("tnh,snh->nts", "snh,tnh->nts", SAME),
    ('"tnh,snh->nts", q, k', '"tnh,snh->nts", q, q', DIFFERENT),
    ("+ b[j]", "+ b[0]", DIFFERENT),
    ("+ b[j]", "+ b[j] * (j != 1)", DIFFERENT),
    ("@ o + c", "@ o", DIFFERENT),
    ("@ o + c", "@ o.T + c", SAME),
):
    text = QKV_J.replace(old, new) if old else QKV_J
    mapped(
        STACKED,
        truth,
        (text, {name: shape for name, shape in QKV.items() if name + "[" in text or f" {name}" in text}),
        (QKV_T, {}),
    )

SIDES = "sides of frameworks"
PAIR_T = """class Program(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.norm, self.out = nn.Embedding(11, 8), nn.LayerNorm(8), nn.Linear(8, 5)
    def forward(self, ids):
        return self.out(F.gelu(self.norm(self.embed(ids))))
program = Program().eval()
"""
PAIR_X = """class Program(nnx.Module):
    def __init__(self, rngs):
        self.embed, self.norm, self.out = nnx.Embed(11, 8, rngs=rngs), nnx.LayerNorm(8, epsilon=1e-5, rngs=rngs), nnx.Linear(8, 5, rngs=rngs)
    def __call__(self, ids):
        return self.out(jax.nn.gelu(self.norm(self.embed(ids)), approximate=False))
program = Program(nnx.Rngs(0))
"""
PAIR_L = """class Program(linen.Module):
    @linen.compact
    def __call__(self, ids):
        return linen.Dense(5)(jax.nn.gelu(linen.LayerNorm(epsilon=1e-5)(linen.Embed(11, 8)(ids)), approximate=False))
program = Side(Program(), params=Program().init(jax.random.key(0), np.array([[1, 5, 3, 2]])))
"""
for text in (PAIR_X, PAIR_L):
    for old, new, truth in (
        ("", "", SAME),
        ("epsilon=1e-5", "epsilon=1e-6", DIFFERENT),
        ("approximate=False", "approximate=True", DIFFERENT),
        ("epsilon=1e-5", "epsilon=1e-5, use_bias=False", DIFFERENT),
        ("epsilon=1e-5", "epsilon=1e-5, use_fast_variance=False", SAME),
        ("LayerNorm(", "RMSNorm(", DIFFERENT),
    ):
        mapped(SIDES, truth, (text.replace(old, new) if old else text, {}), (PAIR_T, {}), IDS)
mapped(SIDES, SAME, (PAIR_X, {}), (PAIR_L, {}), IDS, frameworks="jax jax")
mapped(SIDES, DIFFERENT, (PAIR_X.replace("1e-5", "1e-6"), {}), (PAIR_L, {}), IDS, frameworks="jax jax")
mapped(SIDES, SAME, (PAIR_T, {}), (PAIR_X, {}), IDS, frameworks="torch jax")
mapped(SIDES, DIFFERENT, (PAIR_T, {}), (PAIR_X.replace("False", "True"), {}), IDS, frameworks="torch jax")

# --- more of the second round

MORE = "layers with weights"
CONV_W = {"w": (3, 4, 5), "b": (5,)}
LONG = {"x": np.ones((2, 6, 4), np.float32)}
CONVOLVED_T = """class Program(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(4, 5, 3, padding=1)
    def forward(self, x):
        return self.conv(x.transpose(1, 2)).transpose(1, 2)
program = Program().eval()
"""
CONVOLVED = 'jax.lax.conv_general_dilated(x, w, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")) + b'
for text, truth in (
    (CONVOLVED, SAME),
    (CONVOLVED.replace("x, w,", "x, w[::-1],"), SAME),
    (CONVOLVED.replace("SAME", "VALID") + " + jnp.zeros((2, 6, 1))", DIFFERENT),
    (CONVOLVED.replace('"SAME"', "[(2, 0)]"), DIFFERENT),
    (CONVOLVED.replace('"SAME"', "[(0, 2)]"), DIFFERENT),
    (CONVOLVED.replace("x, w,", "x[:, ::-1], w,").replace(" + b", "[:, ::-1] + b"), SAME),
    (CONVOLVED.replace("(x, w", "(x, w * 0.5"), DIFFERENT),
    ("sum(jnp.pad(x, ((0, 0), (1, 1), (0, 0)))[:, k : k + 6] @ w[k] for k in range(3)) + b", SAME),
    ("sum(jnp.pad(x, ((0, 0), (1, 1), (0, 0)))[:, k : k + 6] @ w[2 - k] for k in range(3)) + b", SAME),
    ("sum(jnp.pad(x, ((0, 0), (1, 1), (0, 0)), mode='edge')[:, k : k + 6] @ w[k] for k in range(3)) + b", DIFFERENT),
    ("sum(jnp.roll(x, 1 - k, 1) @ w[k] for k in range(3)) + b", DIFFERENT),
    ("sum(jnp.pad(x, ((0, 0), (1, 1), (0, 0)))[:, k : k + 6] @ w[0] for k in range(3)) + b", DIFFERENT),
):
    if "VALID" not in text:
        mapped(MORE, truth, (text, CONV_W), (CONVOLVED_T, {}), LONG)
GATED_T = "return (F.silu(x @ a) * (x @ b)) @ c"
GATED = {"a": (4, 6), "b": (4, 6), "c": (6, 4)}
for text, truth in (
    ("return (jax.nn.silu(x @ a) * (x @ b)) @ c", SAME),
    ("return (jax.nn.silu(x @ b) * (x @ a)) @ c", SAME),
    ("return (jax.nn.gelu(x @ a) * (x @ b)) @ c", DIFFERENT),
    ("return (jax.nn.silu(x @ a) * jax.nn.silu(x @ b)) @ c", DIFFERENT),
    ("return (jax.nn.sigmoid(x @ a) * (x @ b)) @ c", DIFFERENT),
    ("return (jax.nn.sigmoid(x @ a) * (x @ a) * (x @ b)) @ c", SAME),
    ("return (jax.nn.sigmoid(x @ a) * (x @ b) * (x @ b)) @ c", DIFFERENT),
    ("return (jax.nn.silu(1.702 * (x @ a)) * (x @ b)) @ c", DIFFERENT),
    ("h = x @ jnp.concatenate([a, b], 1)\nreturn (jax.nn.silu(h[:, :6]) * h[:, 6:]) @ c", SAME),
    ("h = x @ jnp.concatenate([a, b], 1)\nreturn (jax.nn.silu(h[:, 6:]) * h[:, :6]) @ c", SAME),
    ("h = x @ jnp.concatenate([a, b], 1)\nreturn (jax.nn.silu(h[:, ::2]) * h[:, 1::2]) @ c", SAME),
    ("return (jax.nn.silu(x @ a) * (x @ b)) @ c + (x @ a).sum() * 1e-20", DIFFERENT),
):
    mapped(MORE, truth, (text, GATED), (GATED_T, GATED))
FUSED_T = "h = x @ w\nreturn (F.silu(h[:, :6]) * h[:, 6:]) @ c"
FUSED = {"w": (4, 12), "c": (6, 4)}
for text, shapes, truth in (
    ("return (jax.nn.silu(x @ a) * (x @ b)) @ c", GATED, SAME),
    ("h = x @ w\nreturn (jax.nn.silu(h[:, ::2]) * h[:, 1::2]) @ c", FUSED, SAME),
    ("h = x @ w\nreturn (jax.nn.silu(h[:, :6]) * h[:, 5:11]) @ c", FUSED, DIFFERENT),
    ("h = x @ w\nreturn (jax.nn.silu(h[:, 6:]) * h[:, 6:]) @ c", FUSED, DIFFERENT),
    ("h = (x @ w).reshape(3, 6, 2)\nreturn (jax.nn.silu(h[..., 0]) * h[..., 1]) @ c", FUSED, SAME),
):
    mapped(MORE, truth, (text, shapes), (FUSED_T, FUSED))
ROTARY = "q, k = x @ a, x @ b\nt = jnp.arange(3)[:, None] * jnp.asarray([1.0, 0.01])\nc, s = jnp.cos(t), jnp.sin(t)\nROTATE\nreturn turn(q) @ turn(k).T"
HALVES = "turn = lambda y: jnp.concatenate([y[:, :2] * c - y[:, 2:] * s, y[:, 2:] * c + y[:, :2] * s], -1)"
ROTARY_J = ROTARY.replace("ROTATE", HALVES)
ROTARY_T = (
    ROTARY_J.replace("jnp.concatenate", "torch.cat").replace("jnp.asarray", "torch.tensor").replace("jnp.", "torch.")
)
PAIRS = "turn = lambda y: jnp.stack([y[:, ::2] * c - y[:, 1::2] * s, y[:, 1::2] * c + y[:, ::2] * s], -1).reshape(3, 4)"
for text, truth in (
    (ROTARY_J, SAME),
    (ROTARY.replace("ROTATE", PAIRS), SAME),
    (ROTARY_J.replace("0.01", "0.011"), DIFFERENT),
    (ROTARY_J.replace("jnp.arange(3)", "(jnp.arange(3) + 1)"), NEITHER),  # the scores depend on distances alone
    (ROTARY_J.replace("return turn(q) @ turn(k).T", "return turn(q) @ k.T"), DIFFERENT),
    (ROTARY_J.replace("- y[:, 2:] * s, ", "+ y[:, 2:] * s, "), DIFFERENT),
    (ROTARY_J.replace("[1.0, 0.01]", "[0.01, 1.0]"), NEITHER),
    (ROTARY_J.replace("turn(q) @ turn(k).T", "(turn(k) @ turn(q).T).T"), SAME),
    (ROTARY_J.replace("turn(q) @ turn(k).T", "turn(k) @ turn(q).T"), NEITHER),
    (ROTARY_J.replace("jnp.arange(3)", "jnp.arange(3)[::-1]"), DIFFERENT),
    (ROTARY_J.replace("jnp.sin(t)", "jnp.sin(-t)"), NEITHER),
):
    mapped(MORE, truth, (text, AB), (ROTARY_T, AB))
