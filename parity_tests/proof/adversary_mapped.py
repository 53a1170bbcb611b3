# ruff: noqa: E501 (a program is one line)
"""Pairs by hand of programs that hold weights of their own: the map between these is found, or a converter gives it.

SAME: there is a layout of weights in which both are one function. DIFFERENT: there is none, or the given map isn't it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from proof.adversary_pairs import DIFFERENT, NEITHER, SAME, Pair, Program, jax_side, torch_program

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
    ALL.append(Pair(area, f"{area} {len(ALL)}: {shown}", *sides, {"forward": truth}, inputs=inputs, names=names))


def mapped_pairs() -> Iterator[Pair]:
    yield from ALL

# --- ties: several weights of one side are one of the other

TIES = "ties of a map"
E = {"e": (11, 4)}
EH = {"e": (11, 4), "h": (11, 4)}
mapped(TIES, DIFFERENT, ("e[ids] @ e.T", E), ("e[ids] @ h.T", EH), IDS)
mapped(TIES, NEITHER, ("e[ids] @ h.T", EH), ("e[ids] @ e.T", E), IDS)
mapped(TIES, DIFFERENT, ("e[ids] @ e.T", E), ("e[ids] @ h.T", EH), IDS, frameworks="torch jax")
mapped(TIES, NEITHER, ("e[ids] @ h.T", EH), ("e[ids] @ e.T", E), IDS, frameworks="torch jax")
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
mapped(HIDDEN, DIFFERENT, ("x * s", {"s": (4,)}), ("x * s.repeat(2)", {"s": (2,)}))
mapped(HIDDEN, DIFFERENT, ("x * jnp.tile(s, 2)", {"s": (2,)}), ("x * s.repeat_interleave(2)", {"s": (2,)}))
mapped(HIDDEN, SAME, ("x * jnp.repeat(s, 2)", {"s": (2,)}), ("x * s.repeat_interleave(2)", {"s": (2,)}))
mapped(HIDDEN, DIFFERENT, ("x + b.mean()", {"b": (4,)}), ("x + b", {"b": (4,)}))
mapped(HIDDEN, DIFFERENT, ("x @ w + b", {"w": (4, 4), "b": (4,)}), ("x @ w + b[:1]", {"w": (4, 4), "b": (4,)}))
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
mapped(PARTS, DIFFERENT, ("u * e[ids] + q[jnp.arange(4)]", EU | {"q": (9, 4)}), ("u * e[ids] + q[torch.arange(4) + 2]", EU | {"q": (9, 4)}), IDS)
mapped(PARTS, SAME, ("u * e[ids] + q[jnp.arange(4)]", EU | {"q": (7, 4)}), ("u * e[ids] + q[torch.arange(4) + 2]", EU | {"q": (9, 4)}), IDS)
mapped(PARTS, DIFFERENT, ("u * e[jnp.where(ids == 5, 3, ids)]", EU), ("u * e[ids]", EU), IDS)
mapped(PARTS, DIFFERENT, ("u * e[ids]", EU), ("u * e[torch.where(ids == 5, 3, ids)]", EU), IDS)
mapped(PARTS, DIFFERENT, ("u * e[ids]", EU), ("u * F.embedding(ids, e, padding_idx=3) * (ids != 3)[..., None]", EU), IDS)
mapped(PARTS, SAME, ("u * jnp.einsum('bsv,vd->bsd', jax.nn.one_hot(ids, 11), e)", EU), ("u * e[ids]", EU), IDS)
mapped(PARTS, DIFFERENT, ("u * jnp.einsum('bsv,vd->bsd', jax.nn.one_hot(ids, 11, dtype=jnp.float32), e) * 2", EU), ("u * e[ids]", EU), IDS)

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
mapped(GIVEN, DIFFERENT, ("x * s + b", {"s": (4,), "b": (4,)}), ("x * s + b", {"s": (4,), "b": (4,)}), names="lambda t: {'s': t['b'], 'b': t['s']}")

# --- several ways to match

WAYS = "ambiguous maps"
BRANCHES = {name: (4, 4) for name in "abcdef"}
mapped(WAYS, SAME,
    ("return jnp.concatenate([jnp.tanh(x @ k) for k in (d, f, a, c, b, e)], -1) @ jnp.asarray(np.arange(48.).reshape(24, 2) % 7, jnp.float32)", BRANCHES),
    ("return torch.cat([torch.tanh(x @ k) for k in (a, b, c, d, e, f)], -1) @ (torch.arange(48.).reshape(24, 2) % 7)", BRANCHES))  # fmt: skip
mapped(WAYS, DIFFERENT,
    ("return jnp.concatenate([jnp.tanh(x @ k) for k in (d, f, a, c, b, e)], -1) @ jnp.asarray(np.arange(48.).reshape(24, 2) % 6, jnp.float32)", BRANCHES),
    ("return torch.cat([torch.tanh(x @ k) for k in (a, b, c, d, e, f)], -1) @ (torch.arange(48.).reshape(24, 2) % 7)", BRANCHES))  # fmt: skip
mapped(WAYS, SAME,
    ("return sum(c * jnp.tanh(x @ k) for c, k in zip((1., 2., 3., 4.), (d, c_, a, b)))", {"a": (4, 4), "b": (4, 4), "c_": (4, 4), "d": (4, 4)}),
    ("return sum(c * torch.tanh(x @ k) for c, k in zip((4., 3., 2., 1.), (a, b, c_, d)))", {"a": (4, 4), "b": (4, 4), "c_": (4, 4), "d": (4, 4)}))  # fmt: skip
mapped(WAYS, SAME, ("jnp.tanh(x @ w) @ jnp.asarray([4., 3., 2., 1.])", W44), ("torch.tanh(x @ w) @ torch.tensor([1., 2., 3., 4.])", W44))
mapped(WAYS, SAME, ("jnp.tanh(x @ w) @ jnp.asarray([3., 1., 4., 2.])", W44), ("torch.tanh(x @ w) @ torch.tensor([1., 2., 3., 4.])", W44))
mapped(WAYS, DIFFERENT, ("jnp.tanh(x @ w) @ jnp.asarray([4., 3., 2., 2.])", W44), ("torch.tanh(x @ w) @ torch.tensor([1., 2., 3., 4.])", W44))
mapped(WAYS, SAME,
    ("return (jnp.tanh(x @ w) * jnp.asarray([3., 1., 4., 2.])) @ u", {"w": (4, 4), "u": (4, 3)}),
    ("return (torch.tanh(x @ w) * torch.tensor([1., 2., 3., 4.])) @ u", {"w": (4, 4), "u": (4, 3)}))  # fmt: skip
ATTEND_J = "q, k, v = x @ a, x @ b, x @ c\nreturn jax.nn.softmax(q @ k.T, -1) @ v"
ATTEND_T = "q, k, v = x @ a, x @ b, x @ c\nreturn torch.softmax(q @ k.T, -1) @ v"
ABC = {"a": (4, 4), "b": (4, 4), "c": (4, 4)}
mapped(WAYS, SAME, (ATTEND_J, ABC), (ATTEND_T.replace("a, x @ b, x @ c", "c, x @ a, x @ b"), ABC))
mapped(WAYS, SAME, (ATTEND_J, ABC), (ATTEND_T.replace("q @ k.T", "(k @ q.T).T"), ABC))
mapped(WAYS, DIFFERENT, (ATTEND_J, ABC), (ATTEND_T.replace("-1)", "0)"), ABC))
mapped(WAYS, DIFFERENT, (ATTEND_J, ABC), (ATTEND_T.replace("x @ b", "x @ a"), ABC))
mapped(WAYS, DIFFERENT, (ATTEND_J.replace("x @ b", "x @ a"), ABC), (ATTEND_T, ABC))
