# ruff: noqa: E501 (a program is one line)
"""Pairs by hand, for what rules don't write: undefined values, masks, rounded constants, integers, choices, gradients
that are changed, state, randomness, numbers that leave a program unseen.

Truths are those of the programs as they run. `numbers_of` shows them at random weights.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import torch

from proof.adversary_pairs import (
    DIFFERENT,
    NEITHER,
    NOWHERE,
    OTHER,
    SAME,
    Pair,
    Program,
    jax_program,
    torch_program,
)

SHAPES: Mapping[str, tuple[int, ...]] = {"w": (4,), "v": (4,), "m": (4, 4), "table": (7, 4), "k": (3, 4, 2)}
ALL: list[Pair] = []
PARTLY = "partly"


def add(
    area: str,
    truth: str,
    jax_one: str | None,
    jax_two: str | None,
    torch_one: str | None = None,
    torch_two: str | None = None,
    *,
    gradients: str | None = None,
    defined: str = "everywhere",
    weights: Mapping[str, tuple[int, ...]] = SHAPES,
    inputs: Mapping[str, Any] | None = None,
    wide: bool = False,
    step: bool = False,
    title: str | None = None,
) -> None:
    """Adds a pair of JAX functions, a pair of modules, and one of each, of those that are given."""
    texts = {"jax": (jax_one, jax_two), "torch": (torch_one, torch_two)}
    inputs = {} if inputs is None else inputs
    for first, second in (("jax", "jax"), ("torch", "torch"), ("jax", "torch"), ("torch", "jax")):
        one, two = texts[first][0], texts[second][1]
        if one is None or two is None or ((first, second) == ("torch", "jax") and jax_one is not None):
            continue
        used = {
            name: shape
            for name, shape in weights.items()
            if re.search(rf"\b{name}\b", one) or re.search(rf"\b{name}\b", two)
        }
        sides = []
        for framework, text in ((first, one), (second, two)):
            if "program" in text:
                sides.append(Program(framework, text))
            elif framework == "jax":
                sides.append(jax_program(text, list(used), list(inputs)))
            else:
                sides.append(torch_program(text, used, list(inputs)))
        known = {"step": truth} if step else {"forward": truth, "gradients": truth if gradients is None else gradients}
        if truth == NOWHERE or defined == "nowhere":
            where = "nowhere"
        else:
            where = defined
        shown = title or " | ".join(text.strip().splitlines()[-1].strip()[:60] for text in (one, two))
        name = f"{area} {len(ALL)}: {shown}"
        ALL.append(Pair(area, name, *sides, known, where, used, inputs, wide))


def written_pairs() -> Iterator[Pair]:
    yield from ALL


def module(body: str, init: str = "", weights: Sequence[str] = ("w",), after: str = "", signature: str = "self") -> str:
    """Returns the text of a module with parameters of four ones, and more in its constructor."""
    lines = "".join(f"        self.{name} = nn.Parameter(torch.ones({SHAPES[name]}))\n" for name in weights)
    more = "".join(f"        {line}\n" for line in init.strip().splitlines())
    forward = "".join(f"        {line}\n" for line in body.strip().splitlines())
    tail = "".join(f"{line}\n" for line in after.strip().splitlines())
    return (
        "class Program(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        f"{lines}{more}    def forward({signature}):\n{forward}program = Program().eval()\n{tail}"
    )


# --- tests for NaN and infinity

NAN = "NaN tests"
LOG = "jnp.where(jnp.isnan(jnp.log(w)), 0.0, w)", "torch.where(torch.isnan(torch.log(w)), 0.0, w)"
RELU, SELF = ("jax.nn.relu(w)", "torch.relu(w)"), ("w * 1.0", "w * 1.0")


def four(one: tuple[str, str], two: tuple[str, str]) -> tuple[str, str, str, str]:
    return one[0], two[0], one[1], two[1]


def alike(text: str) -> tuple[str, str]:
    """Returns a text for both frameworks."""
    return text.replace("np.", "jnp."), text.replace("np.", "torch.")


add(NAN, DIFFERENT, *four(LOG, SELF))
add(NAN, SAME, *four(LOG, RELU))
for root in ("sqrt", "log"):
    equal = alike(f"np.where(np.{root}(w) == np.{root}(w), w, 0.0)")
    add(NAN, DIFFERENT, *four(equal, SELF))
    add(NAN, SAME, *four(equal, RELU))
    unequal = alike(f"np.where(np.{root}(w) != np.{root}(w), v, w)")
    add(NAN, DIFFERENT, *four(unequal, alike("w + 0 * v")))
    add(NAN, SAME, *four(unequal, alike("np.where(w >= 0, w, v)")))
square = alike("np.nan_to_num(np.sqrt(w)) ** 2")
add(NAN, DIFFERENT, *four(square, SELF), defined=PARTLY)
add(NAN, SAME, *four(square, RELU), gradients=OTHER, defined=PARTLY)
positive = alike("np.where(np.exp(np.log(w)) > 0, w, 0.0)")
add(NAN, DIFFERENT, *four(positive, SELF))
add(NAN, SAME, *four(positive, RELU))
add(NAN, SAME, *four(alike("np.where(w != w, 0.0, w)"), SELF))
add(NAN, SAME, *four(alike("np.where(np.isnan(w), 0.0, w)"), SELF))
add(NAN, SAME, *four(alike("np.nan_to_num(w)"), SELF))
add(NAN, SAME, *four(alike("np.where(np.isnan(w - w), v, w)"), alike("w + 0 * v")))
add(NAN, SAME, *four(alike("np.where(np.isfinite(w * w), w, v)"), alike("w + 0 * v")))
add(NAN, DIFFERENT, "jnp.where(jnp.isfinite(1 / jax.nn.relu(w)), w, 0.0)", "w * 1.0",
    "torch.where(torch.isfinite(1 / torch.relu(w)), w, 0.0)", "w * 1.0")  # fmt: skip
add(NAN, SAME, "jnp.where(jnp.isfinite(1 / jax.nn.relu(w)), w, 0.0)", RELU[0],
    "torch.where(torch.isfinite(1 / torch.relu(w)), w, 0.0)", RELU[1])  # fmt: skip
add(NAN, DIFFERENT, "jnp.where(jnp.isinf(jnp.log(jax.nn.relu(w))), 0.0, w)", "w * 1.0",
    "torch.where(torch.isinf(torch.log(torch.relu(w))), 0.0, w)", "w * 1.0")  # fmt: skip
add(NAN, SAME, "jnp.where(jnp.isneginf(jnp.log(jax.nn.relu(w))), 0.0, w)", RELU[0],
    "torch.where(torch.isneginf(torch.log(torch.relu(w))), 0.0, w)", RELU[1])  # fmt: skip
add(NAN, SAME, "jnp.nansum(jnp.sqrt(w)) + v", "jnp.where(w > 0, jnp.sqrt(jnp.abs(w)), 0.0).sum() + v",
    "torch.nansum(torch.sqrt(w)) + v", "torch.where(w > 0, torch.sqrt(w.abs()), 0.0).sum() + v", gradients=OTHER, defined=PARTLY)  # fmt: skip
add(NAN, DIFFERENT, "jnp.nanmean(jnp.sqrt(w)) + v", "jnp.where(w > 0, jnp.sqrt(jnp.abs(w)), 0.0).mean() + v",
    "torch.nanmean(torch.sqrt(w)) + v", "torch.where(w > 0, torch.sqrt(w.abs()), 0.0).mean() + v", defined=PARTLY)  # fmt: skip
add(NAN, SAME, "jnp.fmax(jnp.sqrt(w), -1.0)", "jnp.where(w >= 0, jnp.sqrt(jnp.abs(w)), -1.0)",
    "torch.fmax(torch.sqrt(w), torch.tensor(-1.0))", "torch.where(w >= 0, torch.sqrt(w.abs()), -1.0)", gradients=OTHER, defined=PARTLY)  # fmt: skip
add(NAN, DIFFERENT, "jnp.fmax(jnp.sqrt(w), -1.0)", "jnp.sqrt(jnp.abs(w))",
    "torch.fmax(torch.sqrt(w), torch.tensor(-1.0))", "torch.sqrt(w.abs())", defined=PARTLY)  # fmt: skip
add(NAN, SAME, *four(alike("np.where(~(np.sqrt(w) < 0), v, 0.0) + 0 * w"), alike("v + 0 * w")))
add(NAN, DIFFERENT, *four(alike("np.where(np.sqrt(w) >= 0, v, 0.0) + 0 * w"), alike("v + 0 * w")))
add(NAN, SAME, *four(alike("np.where(np.sqrt(w) >= 0, v, 0.0) + 0 * w"), alike("np.where(w >= 0, v, 0.0) + 0 * w")))
add(NAN, DIFFERENT, *four(alike("np.where(np.isnan(np.log(w)).any(), 0.0, v) + 0 * w"), alike("v + 0 * w")))
add(NAN, DIFFERENT, *four(alike("np.where(np.isnan(np.log(w)), 0.0, 1.0).sum() * v"), alike("4 * v + 0 * w")))
add(
    NAN,
    SAME,
    *four(alike("np.where(np.isnan(np.log(w)), 0.0, 1.0).sum() * v"), alike("np.where(w >= 0, 1.0, 0.0).sum() * v")),
)
add(NAN, DIFFERENT, *four(alike("v[np.argmax(np.log(w))] + 0 * w"), alike("v[np.argmax(w)] + 0 * w")))
add(NAN, SAME, *four(alike("v[np.argmax(np.exp(w))] + 0 * w"), alike("v[np.argmax(w)] + 0 * w")))
add(NAN, SAME, *four(alike("np.maximum(np.sqrt(w), v)"), alike("np.where(np.sqrt(w) > v, np.sqrt(w), v) + 0 * np.sqrt(w)")), defined=PARTLY)  # fmt: skip
add(NAN, DIFFERENT, *four(alike("np.where(np.sqrt(w) > v, np.sqrt(w), v)"), alike("np.where(np.sqrt(np.abs(w)) > v, np.sqrt(np.abs(w)), v)")), defined=PARTLY)  # fmt: skip
add(NAN, NOWHERE, *four(alike("np.maximum(np.sqrt(-1 - w * w), v)"), alike("v + 0 * w")))
add(NAN, NOWHERE, *four(alike("np.where(w * w >= 0, np.sqrt(-1 - w * w), v)"), alike("v + 0 * w")))
add(NAN, NOWHERE, "w * jnp.nan", "w * 0", "w * math.nan", "w * 0")
add(NAN, NOWHERE, "w + jnp.inf - jnp.inf", "w * 1.0", "w + math.inf - math.inf", "w * 1.0")
add(NAN, NOWHERE, "w + 0 * (1 / jax.nn.relu(-1 - w * w))", "w * 1.0", "w + 0 * (1 / torch.relu(-1 - w * w))", "w * 1.0")
add(NAN, NOWHERE, "jnp.arctanh(2 + w * w) * 0 + v", "v + 0 * w", "torch.atanh(2 + w * w) * 0 + v", "v + 0 * w")
add(NAN, NOWHERE, "w[:1].var(ddof=1) + v", "v + 0 * w", "w[:1].var(correction=1) + v", "v + 0 * w")
add(NAN, NOWHERE, "w[:0].mean() + v", "v + 0 * w", "w[:0].mean() + v", "v + 0 * w")
add(NAN, SAME, "w[:0].sum() + v", "v + 0 * w", "w[:0].sum() + v", "v + 0 * w")
add(NAN, SAME, "w[:0].prod() * v", "v + 0 * w", "w[:0].prod() * v", "v + 0 * w")
add(NAN, DIFFERENT, "w[:0].prod() * v", "0 * v + 0 * w", "w[:0].prod() * v", "0 * v + 0 * w")
add(
    NAN,
    SAME,
    "jnp.nan_to_num(w * jnp.nan) + v",
    "v + 0 * w",
    "torch.nan_to_num(w * math.nan) + v",
    "v + 0 * w",
    gradients=NEITHER,
)
add(NAN, DIFFERENT, "jnp.nan_to_num(1 / jax.nn.relu(w), posinf=0.0)", "1 / w",
    "torch.nan_to_num(1 / torch.relu(w), posinf=0.0)", "1 / w", gradients=DIFFERENT)  # fmt: skip
add(NAN, SAME, "jnp.where(w * w > -1, v, jnp.sqrt(-1 - w * w))", "v + 0 * w",
    "torch.where(w * w > -1, v, torch.sqrt(-1 - w * w))", "v + 0 * w", gradients=NOWHERE)  # fmt: skip
add(NAN, SAME, "jnp.sqrt(0 * w) + v", "v + 0 * w", "torch.sqrt(0 * w) + v", "v + 0 * w", gradients=NOWHERE)
add(
    NAN,
    SAME,
    "jnp.stack([w, w]).std(0) + v",
    "v + 0 * w",
    "torch.stack([w, w]).std(0, correction=0) + v",
    "v + 0 * w",
    gradients=NOWHERE,
)
add(NAN, SAME, "jnp.where(w > 0, jnp.sqrt(w), 0.0)", "jnp.where(w > 0, jnp.sqrt(jnp.where(w > 0, w, 1.0)), 0.0)",
    "torch.where(w > 0, torch.sqrt(w), 0.0)", "torch.where(w > 0, torch.sqrt(torch.where(w > 0, w, 1.0)), 0.0)", gradients=OTHER)  # fmt: skip
add(NAN, DIFFERENT, "jnp.where(w > 0, jnp.sqrt(w), 0.0)", "jnp.sqrt(jnp.abs(w))",
    "torch.where(w > 0, torch.sqrt(w), 0.0)", "torch.sqrt(torch.abs(w))")  # fmt: skip
add(NAN, DIFFERENT, "jnp.where(jnp.isnan((w - 1) ** 0.5), v, w)", "w + 0 * v",
    "torch.where(torch.isnan((w - 1) ** 0.5), v, w)", "w + 0 * v")  # fmt: skip
add(NAN, DIFFERENT, "jnp.where(jnp.isnan(jnp.arcsin(w)), v, w)", "w + 0 * v",
    "torch.where(torch.isnan(torch.asin(w)), v, w)", "w + 0 * v")  # fmt: skip
add(NAN, SAME, "jnp.where(jnp.isnan(jnp.arcsin(w)), v, w)", "jnp.where(jnp.abs(w) > 1, v, w)",
    "torch.where(torch.isnan(torch.asin(w)), v, w)", "torch.where(torch.abs(w) > 1, v, w)")  # fmt: skip
add(NAN, SAME, *four(alike("np.where(np.isnan(np.sqrt(1 + w * w)), v, w)"), alike("w + 0 * v")))
add(NAN, SAME, *four(alike("np.where(np.isnan(np.log(np.exp(w) + 1)), v, w)"), alike("w + 0 * v")))
add(NAN, DIFFERENT, "jnp.clip(jnp.where(jnp.isnan(jnp.sqrt(w)), -9.0, w), -1.0, 1.0)", "jnp.clip(w * 1.0, -1.0, 1.0)",
    "torch.clamp(torch.where(torch.isnan(torch.sqrt(w)), -9.0, w), -1.0, 1.0)", "torch.clamp(w * 1.0, -1.0, 1.0)")  # fmt: skip
add(NAN, SAME, "jax.lax.cond(jnp.isnan(jnp.log(w[0])), lambda: v, lambda: w)", "jnp.where(w[0] >= 0, w, v)")
add(NAN, DIFFERENT, "jax.lax.cond(jnp.isnan(jnp.log(w[0])), lambda: v, lambda: w)", "w + 0 * v")
add(
    NAN,
    DIFFERENT,
    "jnp.where(jnp.log(w) < 100.0, v, w)",
    "v + 0 * w",
    "torch.where(torch.log(w) < 100.0, v, w)",
    "v + 0 * w",
)
add(
    NAN,
    DIFFERENT,
    "jnp.where(jnp.sqrt(w) > -1, v, w)",
    "v + 0 * w",
    "torch.where(torch.sqrt(w) > -1, v, w)",
    "v + 0 * w",
)
add(
    NAN,
    DIFFERENT,
    "jnp.where(jnp.logical_not(jnp.sqrt(w) > -1), w, v)",
    "v + 0 * w",
    "torch.where(~(torch.sqrt(w) > -1), w, v)",
    "v + 0 * w",
)
add(NAN, DIFFERENT, "jnp.sign(jnp.nan_to_num(jnp.sqrt(w), nan=-1.0)) * v", "v + 0 * w",
    "torch.sign(torch.nan_to_num(torch.sqrt(w), nan=-1.0)) * v", "v + 0 * w")  # fmt: skip

# --- masks

MASK = "masks"
CAUSAL_J, CAUSAL_T = "jnp.tril(jnp.ones((4, 4), bool))", "torch.tril(torch.ones(4, 4, dtype=torch.bool))"


def masked(fill: str, framework: str, row: str = "m") -> str:
    if framework == "jax":
        return f"jax.nn.softmax(jnp.where({CAUSAL_J}, {row}, {fill}), -1) @ w"
    return f"(torch.softmax(torch.where({CAUSAL_T}, {row}, {fill}), -1) * w).sum(-1)"


FILLS = {"-jnp.inf": "-math.inf", "-1e9": "-1e9", "-1e4": "-1e4", "jnp.finfo(m.dtype).min": "torch.finfo(m.dtype).min"}
for one, two in zip(list(FILLS), [*FILLS][1:] + [*FILLS][:1], strict=True):
    add(MASK, SAME, masked(one, "jax"), masked(two, "jax"), masked(FILLS[one], "torch"), masked(FILLS[two], "torch"))
add(MASK, DIFFERENT, masked("-1e3", "jax"), masked("-1e9", "jax"), masked("-1e3", "torch"), masked("-1e9", "torch"))
add(MASK, DIFFERENT, masked("-10.0", "jax"), masked("-1e9", "jax"), masked("-10.0", "torch"), masked("-1e9", "torch"))
add(
    MASK,
    DIFFERENT,
    masked("0.0", "jax"),
    masked("-jnp.inf", "jax"),
    masked("0.0", "torch"),
    masked("-math.inf", "torch"),
)
add(MASK, DIFFERENT, masked("1e-9", "jax"), masked("-1e9", "jax"), masked("1e-9", "torch"), masked("-1e9", "torch"))
add(MASK, DIFFERENT, masked("-1e9", "jax").replace("tril", "triu"), masked("-1e9", "jax"),
    masked("-1e9", "torch").replace("tril", "triu"), masked("-1e9", "torch"))  # fmt: skip
add(MASK, SAME, f"e = jnp.exp(m) * {CAUSAL_J}\nreturn (e / e.sum(-1, keepdims=True)) @ w", masked("-jnp.inf", "jax"),
    f"e = torch.exp(m) * {CAUSAL_T}\nreturn (e / e.sum(-1, keepdim=True) * w).sum(-1)", masked("-math.inf", "torch"))  # fmt: skip
add(MASK, DIFFERENT, f"(jax.nn.softmax(m, -1) * {CAUSAL_J}) @ w", masked("-jnp.inf", "jax"),
    f"(torch.softmax(m, -1) * {CAUSAL_T} * w).sum(-1)", masked("-math.inf", "torch"))  # fmt: skip
add(MASK, SAME, f"jax.nn.softmax(m + jnp.where({CAUSAL_J}, 0.0, -1e9), -1) @ w", masked("-jnp.inf", "jax"),
    f"(torch.softmax(m + torch.where({CAUSAL_T}, 0.0, -1e9), -1) * w).sum(-1)", masked("-math.inf", "torch"))  # fmt: skip
add(MASK, DIFFERENT, f"jax.nn.softmax(v[0] * (m + jnp.where({CAUSAL_J}, 0.0, -2e4)), -1) @ w",
    masked("-jnp.inf", "jax", "v[0] * m"),
    f"(torch.softmax(v[0] * (m + torch.where({CAUSAL_T}, 0.0, -2e4)), -1) * w).sum(-1)",
    masked("-math.inf", "torch", "v[0] * m"))  # fmt: skip
add(MASK, DIFFERENT, f"jax.nn.softmax(-(m + jnp.where({CAUSAL_J}, 0.0, -2e4)), -1) @ w", masked("-jnp.inf", "jax", "-m"),
    f"(torch.softmax(-(m + torch.where({CAUSAL_T}, 0.0, -2e4)), -1) * w).sum(-1)", masked("-math.inf", "torch", "-m"))  # fmt: skip
add(MASK, DIFFERENT, f"jnp.tanh(m + jnp.where({CAUSAL_J}, 0.0, -2e4)) @ w", f"jnp.where({CAUSAL_J}, jnp.tanh(m), -1.0) @ w",
    f"(torch.tanh(m + torch.where({CAUSAL_T}, 0.0, -2e4)) * w).sum(-1)", f"(torch.where({CAUSAL_T}, torch.tanh(m), -1.0) * w).sum(-1)")  # fmt: skip
for shape_j, limit in (
    ("jax.nn.relu(w - 2e4)", "0 * w"),
    ("jax.nn.relu(w ** 8 - 1e4)", "0 * w"),
    ("jnp.exp(w - 1e9)", "0 * w"),
    ("jax.nn.sigmoid(w - 1e9)", "0 * w"),
    ("jnp.tanh(w - 2e4)", "0 * w - 1"),
    ("jnp.log1p(jnp.exp(w - 2e4))", "0 * w"),
    ("jnp.max(jnp.concatenate([w, jnp.array([-2e4])])) + v", "jnp.max(w) + v"),
    ("jnp.max(jnp.concatenate([w, jnp.array([-1e30])])) + v", "jnp.max(w) + v"),
    ("jnp.min(jnp.concatenate([w, jnp.array([1e9])])) + v", "jnp.min(w) + v"),
    ("jnp.maximum(w, -1e5)", "w * 1.0"),
    ("jnp.where(w - 2e4 > v, v, w)", "w + 0 * v"),
    ("jnp.exp(-jax.nn.relu(1e4 - w ** 2))", "0 * w"),
    ("jax.nn.gelu(w - 1e9)", "0 * w"),
    ("jax.nn.silu(w - 1e9)", "0 * w"),
    ("jax.scipy.special.erf(w - 2e4)", "0 * w - 1"),
    ("v[jnp.argmax(jnp.where(jnp.arange(4) < 3, w, -1e9))] + 0 * w", "v[jnp.argmax(w[:3])] + 0 * w"),
    ("jnp.sort(jnp.where(jnp.arange(4) < 3, w, -1e9))[1:] * v[1:]", "jnp.sort(w[:3]) * v[1:]"),
):
    add("masks outside softmax", DIFFERENT, shape_j, limit)
for shape_t, limit in (
    ("torch.relu(w - 2e4)", "0 * w"),
    ("torch.exp(w - 1e9)", "0 * w"),
    ("torch.sigmoid(w - 1e9)", "0 * w"),
    ("torch.tanh(w - 2e4)", "0 * w - 1"),
    ("torch.cat([w, torch.tensor([-2e4])]).amax() + v", "w.amax() + v"),
    ("torch.maximum(w, torch.tensor(-1e5))", "w * 1.0"),
    ("torch.where(w - 2e4 > v, v, w)", "w + 0 * v"),
    ("F.gelu(w - 1e9)", "0 * w"),
    ("w.masked_fill(torch.arange(4) > 2, -1e9).amax() + v", "w[:3].amax() + v"),
):
    add("masks outside softmax", DIFFERENT, None, None, shape_t, limit)
add("fully masked rows", SAME, "jax.nn.softmax(jnp.where(jnp.zeros((4, 4), bool), m, -1e9), -1) @ w", "jnp.ones((4, 4)) / 4 @ w + 0 * m.sum(-1)",
    "(torch.softmax(m.masked_fill(torch.ones(4, 4, dtype=torch.bool), -1e9), -1) * w).sum(-1)", "(torch.ones(4, 4) / 4 * w).sum(-1) + 0 * m.sum(-1)")  # fmt: skip
add("fully masked rows", NOWHERE, "jax.nn.softmax(jnp.where(jnp.zeros((4, 4), bool), m, -jnp.inf), -1) @ w", "jnp.ones((4, 4)) / 4 @ w + 0 * m.sum(-1)",
    "(torch.softmax(m.masked_fill(torch.ones(4, 4, dtype=torch.bool), -math.inf), -1) * w).sum(-1)", "(torch.ones(4, 4) / 4 * w).sum(-1) + 0 * m.sum(-1)")  # fmt: skip
add("fully masked rows", DIFFERENT, "jax.nn.softmax(m - 3e4, -1) @ w", "jnp.ones((4, 4)) / 4 @ w + 0 * m.sum(-1)",
    "(torch.softmax(m - 3e4, -1) * w).sum(-1)", "(torch.ones(4, 4) / 4 * w).sum(-1) + 0 * m.sum(-1)")  # fmt: skip
add("fully masked rows", NEITHER, "jax.nn.softmax(m - 3e4, -1) @ w", "jax.nn.softmax(m, -1) @ w",
    "(torch.softmax(m - 3e4, -1) * w).sum(-1)", "(torch.softmax(m, -1) * w).sum(-1)")  # fmt: skip
add("fully masked rows", DIFFERENT, "jax.nn.softmax(jnp.where(jnp.arange(4)[:, None] > 0, m, -1e9), -1) @ w", "jnp.where(jnp.arange(4) > 0, jax.nn.softmax(m, -1) @ w, 0.0)",
    "(torch.softmax(torch.where(torch.arange(4)[:, None] > 0, m, -1e9), -1) * w).sum(-1)", "torch.where(torch.arange(4) > 0, (torch.softmax(m, -1) * w).sum(-1), 0.0)")  # fmt: skip
ATTEND = (
    "F.scaled_dot_product_attention(m[None, None], m[None, None], m[None, None], {more})[0, 0]",
    "logits = m @ m.T * 0.5{mask}\nreturn torch.softmax(logits, -1) @ m",
    "logits = m @ m.T / 2{mask}\nreturn jax.nn.softmax(logits, -1) @ m",
)
for more, mask_t, mask_j, truth in (
    ("is_causal=True", f"\nlogits = logits.masked_fill(~{CAUSAL_T}, -math.inf)", f"\nlogits = jnp.where({CAUSAL_J}, logits, -1e9)", SAME),
    ("is_causal=False", f"\nlogits = logits.masked_fill(~{CAUSAL_T}, -math.inf)", f"\nlogits = jnp.where({CAUSAL_J}, logits, -1e9)", DIFFERENT),
    (f"attn_mask={CAUSAL_T}", f"\nlogits = logits.masked_fill({CAUSAL_T}, -math.inf)", f"\nlogits = jnp.where(~{CAUSAL_J}, logits, -1e9)", NEITHER),
    ("scale=0.25", "", "", DIFFERENT),
    ("scale=0.5", "", "", SAME),
):  # fmt: skip
    add(MASK, truth, None, ATTEND[2].format(mask=mask_j), ATTEND[0].format(more=more), ATTEND[1].format(mask=mask_t))

# --- constants and tables

CONSTANT = "constants"
for one, two, truth in (
    ("np.float32(1e-5)", "1e-5", SAME),
    ("1e-5", "1.0001e-5", DIFFERENT),
    ("1e-5", "1e-6", DIFFERENT),
    ("1e-5", "1e-5 * (1 + 1e-5)", DIFFERENT),
    ("1e-5", "1e-5 * (1 + 2**-19)", DIFFERENT),
    ("1e-5", "1e-5 * (1 + 2**-50)", SAME),
    ("float(np.finfo(np.float32).eps)", "2**-23", SAME),
    ("float(np.finfo(np.float32).eps)", "float(np.finfo(np.float64).eps)", DIFFERENT),
    ("0.1 + 0.2", "0.3", SAME),
    ("1 / 3", "0.33333334", SAME),
    ("1 / 3", "0.3333", DIFFERENT),
    ("math.pi", "3.1415927", SAME),
    ("math.pi", "3.14159", DIFFERENT),
    ("math.pi", "22 / 7", DIFFERENT),
    ("math.sqrt(2)", "1.4142135", SAME),
    ("math.sqrt(2)", "1.414", DIFFERENT),
    ("math.sqrt(2 / math.pi)", "0.7978845608", SAME),
    ("math.sqrt(2 / math.pi)", "0.79788", DIFFERENT),
    ("16777217.0", "16777216.0", SAME),
    ("math.log(10000.0)", "9.2103", DIFFERENT),
    ("math.exp(-1)", "0.36787944", SAME),
    ("1 - 0.9", "0.1", SAME),
    ("1 - 0.999", "0.001", SAME),
    ("1 - 0.999", "0.00101", DIFFERENT),
):  # fmt: skip
    texts = f"w * w + ({one})", f"w * w + ({two})"
    add(CONSTANT, truth, *texts, *texts, gradients=SAME if truth == SAME else NEITHER)
add(
    CONSTANT,
    SAME,
    "w * w + jnp.finfo(w.dtype).eps",
    "w * w + 2**-23",
    "w * w + torch.finfo(w.dtype).eps",
    "w * w + 2**-23",
)
add(
    CONSTANT,
    DIFFERENT,
    "w * w + jnp.finfo(w.dtype).eps",
    "w * w + 2**-52",
    "w * w + torch.finfo(w.dtype).eps",
    "w * w + 2**-52",
    gradients=NEITHER,
)
add(
    CONSTANT,
    DIFFERENT,
    "w * w + jnp.finfo(w.dtype).eps",
    "w * w + 2**-23",
    "w * w + torch.finfo(w.dtype).eps",
    "w * w + 2**-23",
    gradients=NEITHER,
    wide=True,
)
add(
    CONSTANT,
    SAME,
    "w * w + jnp.finfo(w.dtype).eps",
    "w * w + 2**-52",
    "w * w + torch.finfo(w.dtype).eps",
    "w * w + 2**-52",
    gradients=NEITHER,
    wide=True,
)
for one, two in (
    ("1e-5", "1e-5 * (1 + 2**-50)"),
    ("math.pi", "3.1415927"),
    ("math.sqrt(2)", "1.4142135"),
    ("1 / 3", "0.33333334"),
):
    add(CONSTANT, DIFFERENT, f"w * ({one})", f"w * ({two})", f"w * ({one})", f"w * ({two})", wide=True)
RMS = "w * jax.lax.rsqrt((w**2).mean(-1, keepdims=True) + {})"
RMS_T = "F.rms_norm(w, (4,))"
add(CONSTANT, SAME, None, RMS.format("2**-23"), RMS_T, "w * torch.rsqrt((w**2).mean(-1, keepdim=True) + 2**-23)")
add(CONSTANT, DIFFERENT, None, RMS.format("2**-52"), RMS_T, "w * torch.rsqrt((w**2).mean(-1, keepdim=True) + 2**-52)")
add(
    CONSTANT,
    SAME,
    None,
    RMS.format("2**-52"),
    RMS_T,
    "w * torch.rsqrt((w**2).mean(-1, keepdim=True) + 2**-52)",
    wide=True,
)
add(
    CONSTANT,
    DIFFERENT,
    None,
    RMS.format("2**-23"),
    RMS_T,
    "w * torch.rsqrt((w**2).mean(-1, keepdim=True) + 2**-23)",
    wide=True,
)
add(CONSTANT, DIFFERENT, "w * jnp.asarray([0.1, 0.2, 0.3, 0.7], jnp.bfloat16).astype(jnp.float32)", "w * jnp.asarray([0.1, 0.2, 0.3, 0.7])",
    "w * torch.tensor([0.1, 0.2, 0.3, 0.7], dtype=torch.bfloat16).float()", "w * torch.tensor([0.1, 0.2, 0.3, 0.7])")  # fmt: skip
add(CONSTANT, DIFFERENT, "w * jnp.asarray([0.1, 0.2, 0.3, 0.7], jnp.float16).astype(jnp.float32)", "w * jnp.asarray([0.1, 0.2, 0.3, 0.7])",
    "w * torch.tensor([0.1, 0.2, 0.3, 0.7], dtype=torch.float16).float()", "w * torch.tensor([0.1, 0.2, 0.3, 0.7])")  # fmt: skip
add(CONSTANT, SAME, "w * (1_000_000 ** (jnp.arange(4, dtype=jnp.float32) / 4))", "w * jnp.asarray(np.float32(1e6) ** (np.arange(4, dtype=np.float32) / 4))",
    "w * (1_000_000 ** (torch.arange(4, dtype=torch.float32) / 4))", "w * torch.tensor(np.float32(1e6) ** (np.arange(4, dtype=np.float32) / 4))")  # fmt: skip
add(
    CONSTANT,
    SAME,
    "w * jnp.linspace(0.0, 1.0, 4)",
    "w * (jnp.arange(4) / 3)",
    "w * torch.linspace(0.0, 1.0, 4)",
    "w * (torch.arange(4) / 3)",
)
add(
    CONSTANT,
    DIFFERENT,
    "w * jnp.linspace(0.0, 1.0, 4)",
    "w * (jnp.arange(4) / 4)",
    "w * torch.linspace(0.0, 1.0, 4)",
    "w * (torch.arange(4) / 4)",
)
SINUS = {"jax": "angles = jnp.arange(4)[:, None] * {f}\nreturn m + jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1)",
         "torch": "angles = torch.arange(4)[:, None] * {f}\nreturn m + torch.cat([torch.sin(angles), torch.cos(angles)], -1)"}  # fmt: skip
RATES = {"power": ("1 / ({b} ** (jnp.arange(2) / 2))", "1 / ({b} ** (torch.arange(2) / 2))"),
         "exp": ("jnp.exp(jnp.arange(0, 4, 2) * -(math.log({b}) / 4))", "torch.exp(torch.arange(0, 4, 2) * -(math.log({b}) / 4))"),
         "numpy": ("jnp.asarray(1 / {b} ** (np.arange(2) / 2), jnp.float32)", "torch.tensor(1 / {b} ** (np.arange(2) / 2), dtype=torch.float32)")}  # fmt: skip
for one, two, base, truth in (
    ("power", "exp", "10000.0", SAME),
    ("power", "numpy", "10000.0", SAME),
    ("exp", "exp", "10010.0", DIFFERENT),
    ("power", "exp", "10001.0", DIFFERENT),
    ("power", "exp", "500000.0", DIFFERENT),
):
    a, b = RATES[one], RATES[two]
    add("tables", truth, SINUS["jax"].format(f=a[0].format(b="10000.0")), SINUS["jax"].format(f=b[0].format(b=base)),
        SINUS["torch"].format(f=a[1].format(b="10000.0")), SINUS["torch"].format(f=b[1].format(b=base)), gradients=NEITHER)  # fmt: skip
ANGLES = "angles = {np}.arange(4)[:, None] * (1.0 / 10000.0 ** ({np}.arange(2) / 2))\n"
ROTARY = {
    "halves": ANGLES + "a, b, c, s = m[:, :2], m[:, 2:], {np}.cos(angles), {np}.sin(angles)\nreturn {cat}([a * c - b * s, b * c + a * s], -1)",
    "doubled": ANGLES + "angles = {cat}([angles, angles], -1)\nturned = {cat}([-m[:, 2:], m[:, :2]], -1)\nreturn m * {np}.cos(angles) + turned * {np}.sin(angles)",
    "pairs": ANGLES + "a, b, c, s = m[:, 0::2], m[:, 1::2], {np}.cos(angles), {np}.sin(angles)\nreturn {np}.stack([a * c - b * s, b * c + a * s], -1).reshape(4, 4)",
    "complex": ANGLES + "z = {complex}\nz = z * {polar}\nreturn {np}.stack([z.real, z.imag], -1).reshape(4, 4)",
    "wrong": ANGLES + "a, b, c, s = m[:, :2], m[:, 2:], {np}.cos(angles), {np}.sin(angles)\nreturn {cat}([a * c + b * s, b * c - a * s], -1)",
    "shifted": ANGLES.replace("arange(4)", "arange(1, 5)") + "a, b, c, s = m[:, :2], m[:, 2:], {np}.cos(angles), {np}.sin(angles)\nreturn {cat}([a * c - b * s, b * c + a * s], -1)",
}  # fmt: skip
WORDS = {"jax": {"np": "jnp", "cat": "jnp.concatenate", "complex": "m[:, 0::2] + 1j * m[:, 1::2]", "polar": "jnp.exp(1j * angles)"},
         "torch": {"np": "torch", "cat": "torch.cat", "complex": "torch.view_as_complex(m.reshape(4, 2, 2))", "polar": "torch.polar(torch.ones_like(angles), angles)"}}  # fmt: skip
for one, two, truth in (
    ("halves", "doubled", SAME),
    ("pairs", "complex", SAME),
    ("complex", "pairs", SAME),
    ("halves", "pairs", DIFFERENT),
    ("halves", "complex", DIFFERENT),
    ("halves", "wrong", DIFFERENT),
    ("doubled", "shifted", DIFFERENT),
):
    add(
        "rotary",
        truth,
        *(ROTARY[each].format(**WORDS[framework]) for framework in ("jax", "torch") for each in (one, two)),
    )

# --- integers and casts

INTEGER = "integers"
BIG = {"ids": np.arange(4) + 100_000}
add(INTEGER, DIFFERENT, "w * jnp.sign(ids * 30000)", "w * 1.0", inputs=BIG)
add(INTEGER, SAME, None, None, "w * torch.sign(ids * 30000)", "w * 1.0", inputs=BIG)
add(INTEGER, DIFFERENT, "w * jnp.sign(ids * 30000)", None, None, "w * torch.sign(ids * 30000)", inputs=BIG)
add(INTEGER, SAME, "w * jnp.sign(ids * 30000)", None, None, "w * torch.sign((ids * 30000).to(torch.int32))", inputs=BIG)
add(
    INTEGER,
    DIFFERENT,
    "table[(ids * 50021) % 7]",
    None,
    None,
    "table[(ids * 50021) % 7]",
    inputs={"ids": np.arange(4) + 100_000},
)
add(
    INTEGER,
    SAME,
    "table[(ids * 51) % 7]",
    "table[(ids * 2) % 7]",
    "table[(ids * 51) % 7]",
    "table[(ids * 2) % 7]",
    inputs=BIG,
)
add(INTEGER, SAME, "w * jnp.sign(ids * 30000)", "w * 1.0", inputs=BIG, wide=True)
SMALL = {"ids": np.array([-7, -2, 5, 250])}
for one_j, two_j, one_t, two_t, truth in (
    ("w * (ids // 2)", "w * lax.div(ids, 2)", "w * (ids // 2)", "w * torch.div(ids, 2, rounding_mode='trunc')", DIFFERENT),
    ("w * (ids // 2)", "w * (ids >> 1)", "w * (ids // 2)", "w * (ids >> 1)", SAME),
    ("w * (ids % 4)", "w * (ids & 3)", "w * (ids % 4)", "w * (ids & 3)", SAME),
    ("w * (ids % 4)", "w * lax.rem(ids, 4)", "w * (ids % 4)", "w * torch.fmod(ids, 4)", DIFFERENT),
    ("w * (ids / 2)", "w * (ids // 2)", "w * (ids / 2)", "w * (ids // 2)", DIFFERENT),
    ("w * (ids.astype(jnp.uint8) * jnp.uint8(2))", "w * (ids * 2)", "w * (ids.to(torch.uint8) * 2)", "w * (ids * 2)", DIFFERENT),
    ("w * ids.astype(jnp.int8)", "w * jnp.array([-7, -2, 5, -6])", "w * ids.to(torch.int8)", "w * torch.tensor([-7, -2, 5, -6])", SAME),
    ("w * ids.astype(jnp.int8)", "w * ids", "w * ids.to(torch.int8)", "w * ids", DIFFERENT),
    ("w * jnp.round(ids / 2)", "w * jnp.floor(ids / 2 + 0.5)", "w * torch.round(ids / 2)", "w * torch.floor(ids / 2 + 0.5)", DIFFERENT),
    ("w * (ids / 2).astype(jnp.int32)", "w * jnp.trunc(ids / 2)", "w * (ids / 2).to(torch.int32)", "w * torch.trunc(ids / 2)", SAME),
    ("w * (ids / 2).astype(jnp.int32)", "w * jnp.floor(ids / 2)", "w * (ids / 2).to(torch.int32)", "w * torch.floor(ids / 2)", DIFFERENT),
    ("w * ((ids > 0) + (ids > 3))", "w * (ids > 0)", "w * ((ids > 0) + (ids > 3))", "w * (ids > 0)", SAME),
    ("w * ((ids > 0) + (ids > 3))", "w * (1.0 * (ids > 0) + 1.0 * (ids > 3))", "w * ((ids > 0) + (ids > 3))", "w * (1.0 * (ids > 0) + 1.0 * (ids > 3))", DIFFERENT),
    ("w * (ids ^ 3)", "w * (ids | 3)", "w * (ids ^ 3)", "w * (ids | 3)", DIFFERENT),
    ("w * jnp.cumsum(ids > 0)", "w * jnp.array([0, 0, 1, 2])", "w * torch.cumsum(ids > 0, 0)", "w * torch.tensor([0, 0, 1, 2])", SAME),
    ("w * ids.astype(jnp.bool_)", "w * 1.0", "w * ids.to(torch.bool)", "w * 1.0", SAME),
    ("w * (ids ** 2)", "w * ids * ids", "w * (ids ** 2)", "w * ids * ids", SAME),
    ("w * jnp.abs(ids)", "w * ids", "w * torch.abs(ids)", "w * ids", DIFFERENT),
):  # fmt: skip
    add(INTEGER, truth, one_j, two_j, one_t, two_t, inputs=SMALL)
add(INTEGER, DIFFERENT, "w.astype(jnp.int32) * v", "jnp.floor(w) * v", "w.to(torch.int32) * v", "torch.floor(w) * v")
add(
    INTEGER,
    SAME,
    "w.astype(jnp.int32) * v",
    "jnp.trunc(w) * v",
    "w.to(torch.int32) * v",
    "torch.trunc(w) * v",
    gradients=NEITHER,
)
add(INTEGER, DIFFERENT, "w.astype(jnp.int32) * v", "w * v", "w.to(torch.int32) * v", "w * v")
add(INTEGER, SAME, "w.astype(bool) * v", "v + 0 * w", "w.to(torch.bool) * v", "v + 0 * w")
add(INTEGER, SAME, "w + jnp.int32(1) / 2", "w + 0.5", "w + torch.tensor(1, dtype=torch.int32) / 2", "w + 0.5")
add(INTEGER, DIFFERENT, "w * (jnp.uint32(1) - jnp.uint32(2)).astype(jnp.float32)", "w * -1.0")
add(
    INTEGER,
    DIFFERENT,
    "w * (jnp.int32(2**31 - 1) + jnp.int32(1))",
    "w * 2.0**31",
    "w * (torch.tensor([2**31 - 1], dtype=torch.int32) + 1)",
    "w * 2.0**31",
)
add(
    INTEGER,
    SAME,
    "w * (jnp.int32(2**31 - 1) + jnp.int32(1))",
    "w * -(2.0**31)",
    "w * (torch.tensor([2**31 - 1], dtype=torch.int32) + 1)",
    "w * -(2.0**31)",
)
add(
    INTEGER, NEITHER, "w.astype(jnp.bfloat16).astype(jnp.float32)", "w * 1.0", "w.to(torch.bfloat16).float()", "w * 1.0"
)

# --- gradients

GRADIENT = "gradients"
for one_j, two_j, one_t, two_t, truth in (
    ("w * jax.lax.stop_gradient(v)", "w * v", "w * v.detach()", "w * v", DIFFERENT),
    ("jax.lax.stop_gradient(w) + v * 0 + w - jax.lax.stop_gradient(w)", "w + v * 0", "w.detach() + v * 0 + w - w.detach()", "w + v * 0", SAME),
    ("x = jax.nn.relu(w)\nreturn jax.lax.stop_gradient(x - w) + w", "jax.nn.relu(w)", "x = torch.relu(w)\nreturn (x - w).detach() + w", "torch.relu(w)", DIFFERENT),
    ("e = jnp.exp(w - jax.lax.stop_gradient(w.max()))\nreturn e / e.sum()", "jax.nn.softmax(w)", "e = torch.exp(w - w.amax().detach())\nreturn e / e.sum()", "torch.softmax(w, -1)", SAME),
    ("e = jnp.exp(w)\nreturn e / jax.lax.stop_gradient(e.sum())", "jax.nn.softmax(w)", "e = torch.exp(w)\nreturn e / e.sum().detach()", "torch.softmax(w, -1)", DIFFERENT),
    ("jnp.round(w) * 0 + v + w * 0", "v + 0 * w", "torch.round(w) * 0 + v + w * 0", "v + 0 * w", SAME),
    ("w + jax.lax.stop_gradient(jnp.round(w) - w)", "jnp.round(w)", "w + (torch.round(w) - w).detach()", "torch.round(w)", DIFFERENT),
    ("jnp.maximum(w, jax.lax.stop_gradient(v))", "jnp.maximum(w, v)", "torch.maximum(w, v.detach())", "torch.maximum(w, v)", DIFFERENT),
    ("w * v - jax.lax.stop_gradient(w * v)", "0 * w * v", "w * v - (w * v).detach()", "0 * w * v", DIFFERENT),
    ("jnp.where(w > 0, w, jax.lax.stop_gradient(w))", "w * 1.0", "torch.where(w > 0, w, w.detach())", "w * 1.0", DIFFERENT),
):  # fmt: skip
    add(GRADIENT, SAME, one_j, two_j, one_t, two_t, gradients=truth)
CUSTOM = """
@jax.custom_vjp
def f(x):
    return jnp.tanh(x)
f.defvjp(lambda x: (jnp.tanh(x), x), lambda x, g: ({back},))
def program(p, i):
    return f(p["w"])
"""
CUSTOM_T = """
class Tanh(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.tanh(x)
    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return {back}
class Program(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(4))
    def forward(self):
        return Tanh.apply(self.w)
program = Program().eval()
"""
for back, truth in (
    ("g * (1 - np.tanh(x) ** 2)", SAME),
    ("g", DIFFERENT),
    ("2 * g * (1 - np.tanh(x) ** 2)", DIFFERENT),
    ("g * (1 - np.tanh(x))", DIFFERENT),
    ("g * (1 - np.tanh(x) ** 2) * (x < 50)", DIFFERENT),
    ("np.clip(g * (1 - np.tanh(x) ** 2), -100, 100)", DIFFERENT),
):
    back_j, back_t = alike(back)
    add(
        "custom backward",
        SAME,
        CUSTOM.format(back=back_j),
        "jnp.tanh(w)",
        CUSTOM_T.format(back=back_t),
        "torch.tanh(w)",
        gradients=truth,
    )
PLAIN = module("return torch.tanh(self.w)")
for name, text, forward, gradients in (
    ("tensor hook", module("return torch.tanh(self.w)", after="program.w.register_hook(lambda g: 2 * g)"), SAME, DIFFERENT),
    ("post-accumulate", module("return torch.tanh(self.w)", after="program.w.register_post_accumulate_grad_hook(lambda p: (p.grad.mul_(2), None)[1])"), SAME, DIFFERENT),
    ("harmless hook", module("return torch.tanh(self.w)", after="program.w.register_hook(lambda g: 1 * g)"), SAME, SAME),
    ("inner hook", module("y = self.w * 1\nif y.requires_grad: y.register_hook(lambda g: -g)\nreturn torch.tanh(y)"), SAME, DIFFERENT),
    ("forward hook", module("return torch.tanh(self.w)", after="program.register_forward_hook(lambda m, a, out: 2 * out)"), DIFFERENT, DIFFERENT),
    ("forward hook, same", module("return torch.tanh(self.w)", after="program.register_forward_hook(lambda m, a, out: out * 1)"), SAME, SAME),
    ("pre-hook", module("return torch.tanh(self.w)", after="program.register_forward_pre_hook(lambda m, a: (m.w.data.mul_(2), None)[1])"), DIFFERENT, DIFFERENT),
    ("backward hook", module("return torch.tanh(self.w)", after="program.register_full_backward_pre_hook(lambda m, g: tuple(2 * each for each in g))"), SAME, DIFFERENT),
    ("frozen", module("return torch.tanh(self.w)", after="program.w.requires_grad_(False)"), SAME, DIFFERENT),
    ("no_grad", module("with torch.no_grad():\n    y = torch.tanh(self.w)\nreturn y + 0 * self.w"), SAME, DIFFERENT),
    ("inference", module("with torch.inference_mode():\n    return torch.tanh(self.w)"), SAME, DIFFERENT),
    ("enable_grad", module("with torch.enable_grad():\n    return torch.tanh(self.w)"), SAME, SAME),
    (".data", module("return torch.tanh(self.w.data) + 0 * self.w"), SAME, DIFFERENT),
    ("checkpoint", module("from torch.utils.checkpoint import checkpoint\nreturn checkpoint(torch.tanh, self.w, use_reentrant=False)"), SAME, SAME),
):  # fmt: skip
    add("hooks and frozen weights", forward, "jnp.tanh(w)", None, text, PLAIN, gradients=gradients, title=name)
    add("hooks and frozen weights", forward, None, "jnp.tanh(w)", text, None, gradients=gradients, title=name)
ALL[:] = [pair for pair in ALL if not (pair.area == "hooks and frozen weights" and pair.frameworks == "JAX–PyTorch")]
add(GRADIENT, SAME, "jax.checkpoint(jnp.tanh)(w)", "jnp.tanh(w)")
add(GRADIENT, SAME, "jax.jit(jnp.tanh)(w)", "jax.vmap(jnp.tanh)(w)")
add(GRADIENT, SAME, "jax.grad(lambda x: jnp.log(jnp.exp(x).sum()))(w)", "jax.nn.softmax(w)")
add(GRADIENT, DIFFERENT, "jax.grad(lambda x: jnp.log(jnp.exp(x).sum()))(w)", "jax.nn.sigmoid(w)")
add(GRADIENT, SAME, "jax.jvp(jnp.sin, (w,), (v,))[1]", "jnp.cos(w) * v")
add(GRADIENT, DIFFERENT, "jax.jvp(jnp.sin, (w,), (v,))[1]", "-jnp.cos(w) * v")

# --- one optimizer step

STEP = "optimizer steps"
LOSS = "loss = lambda x: (jnp.tanh(m @ x) ** 2).sum()\ng = jax.grad(loss)(w)\n"
BY_HAND = "y = jnp.tanh(m @ w)\ng = m.T @ (2 * y * (1 - y * y))\n"
BY_HAND_T = "y = torch.tanh(F.linear(w[None], m))[0]\ng = ((2 * y * (1 - y * y))[None] @ m)[0]\n"
RIGHT = {
    "sgd": "return w - 0.1 * g",
    "decay": "return w - 0.1 * (g + 0.01 * w)",
    "momentum": "b = 0.9 * v + g\nreturn w - 0.1 * b",
    "adam": "a = (0.1 * g) / (1 - 0.9)\nb = (0.001 * g * g) / (1 - 0.999)\nreturn w - 0.1 * a / (np.sqrt(b) + 1e-8) + 0 * v",
    "clipped": "n = np.sqrt((g * g).sum())\nreturn w - 0.1 * g * np.clip(1 / n, None, 1.0)",
}
WRONG = {
    "sgd": "return w + 0.1 * g",
    "decay": "return w * (1 - 0.01) - 0.1 * g",
    "momentum": "b = 0.9 * v + 0.1 * g\nreturn w - 0.1 * b",
    "adam": "a = (0.1 * g) / (1 - 0.9)\nb = (0.001 * g * g) / (1 - 0.999)\nreturn w - 0.1 * a / np.sqrt(b + 1e-8) + 0 * v",
    "clipped": "n = np.abs(g).sum()\nreturn w - 0.1 * g * np.clip(1 / n, None, 1.0)",
}
ALSO = {
    "sgd": "return w - g / 10",
    "decay": "return w * (1 - 0.001) - 0.1 * g",
    "momentum": "return w - 0.09 * v - 0.1 * g",
    "adam": "return w - 0.1 * g / (np.abs(g) + 1e-8) + 0 * v",
    "clipped": "n = np.sqrt((g * g).sum())\nreturn w - 0.1 * g / np.where(n > 1, n, 1.0)",
}
for kind in RIGHT:
    right_j, right_t = alike(RIGHT[kind])
    for other, truth in ((ALSO[kind], SAME), (WRONG[kind], DIFFERENT)):
        other_j, other_t = alike(other)
        add(STEP, truth, LOSS + right_j, BY_HAND + other_j, BY_HAND_T + right_t, BY_HAND_T + other_t, step=True)
AUTO_T = "with torch.enable_grad():\n    x = w.detach().requires_grad_()\n    (g,) = torch.autograd.grad((torch.tanh(F.linear(x[None], m)) ** 2).sum(), x)\n"
add(STEP, SAME, None, None, AUTO_T + RIGHT["sgd"], BY_HAND_T + RIGHT["sgd"], step=True)
add(STEP, DIFFERENT, None, None, AUTO_T + RIGHT["sgd"], BY_HAND_T + WRONG["sgd"], step=True)
add(
    STEP,
    SAME,
    "import optax\ng = jax.grad(lambda x: (jnp.tanh(m @ x) ** 2).sum())(w)\no = optax.sgd(0.1)\nu, _ = o.update(g, o.init(w), w)\nreturn optax.apply_updates(w, u)",
    BY_HAND + RIGHT["sgd"],
    step=True,
)
add(
    STEP,
    SAME,
    "import optax\ng = jax.grad(lambda x: (jnp.tanh(m @ x) ** 2).sum())(w)\no = optax.adam(0.1)\nu, _ = o.update(g, o.init(w), w)\nreturn optax.apply_updates(w, u)",
    BY_HAND + "return w - 0.1 * g / (jnp.abs(g) + 1e-8)",
    step=True,
)
add(
    STEP,
    DIFFERENT,
    "import optax\ng = jax.grad(lambda x: (jnp.tanh(m @ x) ** 2).sum())(w)\no = optax.adam(0.1, eps=1e-6)\nu, _ = o.update(g, o.init(w), w)\nreturn optax.apply_updates(w, u)",
    BY_HAND + "return w - 0.1 * g / (jnp.abs(g) + 1e-8)",
    step=True,
)
add(
    STEP,
    DIFFERENT,
    "import optax\ng = jax.grad(lambda x: (jnp.tanh(m @ x) ** 2).sum())(w)\no = optax.adamw(0.1, weight_decay=0.01)\nu, _ = o.update(g, o.init(w), w)\nreturn optax.apply_updates(w, u)",
    BY_HAND + "return w - 0.1 * g / (jnp.abs(g) + 1e-8)",
    step=True,
)

# --- convolutions

CONV = "convolutions"
NINE = {"x": np.ones((1, 5, 4))}
CONV_J = 'lax.conv_general_dilated(x, k, ({s},), {pad}, dimension_numbers=("NWC", "WIO", "NWC"){more})'
CONV_T = "F.conv1d(x.transpose(1, 2), k.permute(2, 1, 0){more}).transpose(1, 2)"
UNFOLD_J = 'jnp.stack([jnp.einsum("bwi,wio->bo", x[:, t : t + 3], k) for t in range(3)], 1)'
UNFOLD_T = 'torch.stack([torch.einsum("bwi,wio->bo", x[:, t : t + 3], k) for t in range(3)], 1)'
add(CONV, SAME, CONV_J.format(s=1, pad='"VALID"', more=""), UNFOLD_J, CONV_T.format(more=""), UNFOLD_T, inputs=NINE)
add(
    CONV,
    DIFFERENT,
    CONV_J.format(s=1, pad='"VALID"', more="").replace(" k,", " k[::-1],"),
    UNFOLD_J,
    CONV_T.format(more="").replace("k.permute(2, 1, 0)", "k.permute(2, 1, 0).flip(-1)"),
    UNFOLD_T,
    inputs=NINE,
)
add(
    CONV,
    SAME,
    CONV_J.format(s=1, pad='"SAME"', more=""),
    CONV_J.format(s=1, pad="((1, 1),)", more=""),
    CONV_T.format(more=", padding=1"),
    CONV_T.format(more=", padding='same'"),
    inputs=NINE,
)
add(
    CONV,
    DIFFERENT,
    CONV_J.format(s=1, pad="((2, 0),)", more=""),
    CONV_J.format(s=1, pad="((1, 1),)", more=""),
    "F.conv1d(F.pad(x.transpose(1, 2), (2, 0)), k.permute(2, 1, 0)).transpose(1, 2)",
    CONV_T.format(more=", padding=1"),
    inputs=NINE,
)
add(
    CONV,
    SAME,
    CONV_J.format(s=2, pad='"VALID"', more=""),
    UNFOLD_J + "[:, ::2]",
    CONV_T.format(more=", stride=2"),
    UNFOLD_T + "[:, ::2]",
    inputs=NINE,
)
add(
    CONV,
    DIFFERENT,
    CONV_J.format(s=1, pad='"VALID"', more="") + "[:, :2]",
    UNFOLD_J + "[:, ::2]",
    CONV_T.format(more="") + "[:, :2]",
    UNFOLD_T + "[:, ::2]",
    inputs=NINE,
)
add(
    CONV,
    SAME,
    CONV_J.format(s=1, pad='"VALID"', more=", rhs_dilation=(2,)"),
    'jnp.einsum("bwi,wio->bo", x[:, ::2], k)[:, None]',
    CONV_T.format(more=", dilation=2"),
    'torch.einsum("bwi,wio->bo", x[:, ::2], k)[:, None]',
    inputs=NINE,
)
add(
    CONV,
    DIFFERENT,
    CONV_J.format(s=1, pad='"VALID"', more="") + "[:, :1]",
    'jnp.einsum("bwi,wio->bo", x[:, ::2], k)[:, None]',
    CONV_T.format(more="") + "[:, :1]",
    'torch.einsum("bwi,wio->bo", x[:, ::2], k)[:, None]',
    inputs=NINE,
)
PICTURE = {"x": np.ones((1, 1, 4, 4))}
add(
    CONV,
    DIFFERENT,
    'lax.conv_general_dilated(x, m[None, None, :3, :3], (1, 1), "VALID")',
    'lax.conv_general_dilated(x, m.T[None, None, :3, :3], (1, 1), "VALID")',
    "F.conv2d(x, m[None, None, :3, :3])",
    "F.conv2d(x, m.T[None, None, :3, :3])",
    inputs=PICTURE,
)
add(
    CONV,
    SAME,
    'lax.conv_general_dilated(x, m[None, None, :3, :3], (1, 1), "VALID")',
    'lax.conv_general_dilated(x.swapaxes(2, 3), m.T[None, None, :3, :3], (1, 1), "VALID").swapaxes(2, 3)',
    "F.conv2d(x, m[None, None, :3, :3])",
    "F.conv2d(x.mT, m.T[None, None, :3, :3]).mT",
    inputs=PICTURE,
)
add(CONV, SAME, None, None, "F.avg_pool1d(w[None, None] * 1.0, 2)[0, 0] + v[:2]", "(w[0::2] + w[1::2]) / 2 + v[:2]")
add(
    CONV, DIFFERENT, None, None, "F.max_pool1d(w[None, None] * 1.0, 2)[0, 0] + v[:2]", "(w[0::2] + w[1::2]) / 2 + v[:2]"
)
add(
    CONV,
    SAME,
    None,
    None,
    "F.max_pool1d(w[None, None] * 1.0, 2)[0, 0] + v[:2]",
    "torch.maximum(w[0::2], w[1::2]) + v[:2]",
)
add(CONV, SAME, "jnp.convolve(w, v)", "jnp.convolve(v, w)")
add(CONV, DIFFERENT, "jnp.convolve(w, v)", "jnp.convolve(w, v[::-1])")

# --- choices, sorting, cumulative sums

CHOICE = "top-k, argmax, sort"
for one_j, two_j, one_t, two_t, truth in (
    ("jax.lax.top_k(w, 2)[0] + v[:2]", "jnp.sort(w)[::-1][:2] + v[:2]", "torch.topk(w, 2).values + v[:2]", "torch.sort(w, descending=True).values[:2] + v[:2]", SAME),
    ("jax.lax.top_k(w, 2)[0] + v[:2]", "jnp.sort(w)[:2] + v[:2]", "torch.topk(w, 2).values + v[:2]", "torch.sort(w).values[:2] + v[:2]", DIFFERENT),
    ("v[jax.lax.top_k(w, 2)[1]] + 0 * w[:2]", "v[jax.lax.top_k(3 * w + 1, 2)[1]] + 0 * w[:2]", "v[torch.topk(w, 2).indices] + 0 * w[:2]", "v[torch.topk(3 * w + 1, 2).indices] + 0 * w[:2]", SAME),
    ("v[jax.lax.top_k(w, 2)[1]] + 0 * w[:2]", "v[jax.lax.top_k(-w, 2)[1]] + 0 * w[:2]", "v[torch.topk(w, 2).indices] + 0 * w[:2]", "v[torch.topk(-w, 2).indices] + 0 * w[:2]", DIFFERENT),
    ("v[jax.lax.top_k(w, 2)[1]] + 0 * w[:2]", "v[jax.lax.top_k(w * w, 2)[1]] + 0 * w[:2]", "v[torch.topk(w, 2).indices] + 0 * w[:2]", "v[torch.topk(w * w, 2).indices] + 0 * w[:2]", DIFFERENT),
    ("v[jnp.argmax(w)] + 0 * w", "v[jnp.argmin(-w)] + 0 * w", "v[torch.argmax(w)] + 0 * w", "v[torch.argmin(-w)] + 0 * w", SAME),
    ("v[jnp.argmax(w)] + 0 * w", "v[jnp.argmax(jnp.tanh(w))] + 0 * w", "v[torch.argmax(w)] + 0 * w", "v[torch.argmax(torch.tanh(w))] + 0 * w", SAME),
    ("v[jnp.argmax(w)] + 0 * w", "v[jnp.argmax(jax.nn.softmax(w))] + 0 * w", "v[torch.argmax(w)] + 0 * w", "v[torch.argmax(torch.softmax(w, -1))] + 0 * w", SAME),
    ("v[jnp.argmax(w)] + 0 * w", "v[jnp.argmax(w + v)] + 0 * w", "v[torch.argmax(w)] + 0 * w", "v[torch.argmax(w + v)] + 0 * w", DIFFERENT),
    ("v[jnp.argmax(w)] + 0 * w", "v[jnp.argmax(jnp.abs(w))] + 0 * w", "v[torch.argmax(w)] + 0 * w", "v[torch.argmax(torch.abs(w))] + 0 * w", DIFFERENT),
    ("w[jnp.argmax(w)] + v", "w.max() + v", "w[torch.argmax(w)] + v", "w.amax() + v", SAME),
    ("w[jnp.argsort(w)] + v", "jnp.sort(w) + v", "w[torch.argsort(w)] + v", "torch.sort(w).values + v", SAME),
    ("v[jnp.argsort(w)] + 0 * w", "v[jnp.argsort(jnp.argsort(w))] + 0 * w", "v[torch.argsort(w)] + 0 * w", "v[torch.argsort(torch.argsort(w))] + 0 * w", DIFFERENT),
    ("jnp.median(w) + v", "(jnp.sort(w)[1] + jnp.sort(w)[2]) / 2 + v", "torch.median(w) + v", "torch.sort(w).values[1] + v", SAME),
    ("jnp.median(w) + v", "jnp.mean(w) + v", "torch.median(w) + v", "torch.mean(w) + v", DIFFERENT),
    ("jnp.cumsum(w) + v", "jnp.tril(jnp.ones((4, 4))) @ w + v", "torch.cumsum(w, 0) + v", "(torch.tril(torch.ones(4, 4)) * w).sum(-1) + v", SAME),
    ("jnp.cumsum(w) + v", "jnp.triu(jnp.ones((4, 4))) @ w + v", "torch.cumsum(w, 0) + v", "(torch.triu(torch.ones(4, 4)) * w).sum(-1) + v", DIFFERENT),
    ("jnp.cumprod(w) + v", "jnp.stack([w[0], w[0] * w[1], w[0] * w[1] * w[2], w.prod()]) + v", "torch.cumprod(w, 0) + v", "torch.stack([w[0], w[0] * w[1], w[0] * w[1] * w[2], w.prod()]) + v", SAME),
    ("jax.lax.cummax(w) + v", "jnp.stack([w[0], w[:2].max(), w[:3].max(), w.max()]) + v", "torch.cummax(w, 0).values + v", "torch.stack([w[0], w[:2].amax(), w[:3].amax(), w.amax()]) + v", SAME),
    ("jax.lax.cummax(w) + v", "w.max() + v", "torch.cummax(w, 0).values + v", "w.amax() + v", DIFFERENT),
    ("jnp.diff(jnp.cumsum(w)) + v[1:]", "w[1:] + v[1:]", "torch.diff(torch.cumsum(w, 0)) + v[1:]", "w[1:] + v[1:]", SAME),
    ("(jax.nn.one_hot(jnp.argmax(w), 4) * v).sum() + 0 * w", "v[jnp.argmax(w)] + 0 * w", "(F.one_hot(torch.argmax(w), 4) * v).sum() + 0 * w", "v[torch.argmax(w)] + 0 * w", SAME),
    ("t, j = jax.lax.top_k(w, 2)\nreturn jax.nn.softmax(t) @ v[j] + 0 * w", "g = jnp.where(w >= jnp.sort(w)[2], w, -jnp.inf)\nreturn jax.nn.softmax(g) @ v + 0 * w", "t, j = torch.topk(w, 2)\nreturn (torch.softmax(t, -1) * v[j]).sum() + 0 * w", "g = torch.where(w >= torch.sort(w).values[2], w, -math.inf)\nreturn (torch.softmax(g, -1) * v).sum() + 0 * w", SAME),
    ("t, j = jax.lax.top_k(w, 2)\nreturn jax.nn.softmax(t) @ v[j] + 0 * w", "t, j = jax.lax.top_k(w, 2)\nreturn jax.nn.softmax(w)[j] @ v[j] + 0 * w", "t, j = torch.topk(w, 2)\nreturn (torch.softmax(t, -1) * v[j]).sum() + 0 * w", "t, j = torch.topk(w, 2)\nreturn (torch.softmax(w, -1)[j] * v[j]).sum() + 0 * w", DIFFERENT),
):  # fmt: skip
    add(CHOICE, truth, one_j, two_j, one_t, two_t)
ALL[:] = [
    pair for pair in ALL if not (pair.area == CHOICE and pair.frameworks == "JAX–PyTorch" and "median" in pair.name)
]

# --- loops

LOOP = "scan, while, cond"
for one, two, truth in (
    ("jax.lax.scan(lambda c, x: (c + x, c + x), 0.0, w)[1] + v", "jnp.cumsum(w) + v", SAME),
    ("jax.lax.scan(lambda c, x: (c + x, c), 0.0, w)[1] + v", "jnp.cumsum(w) + v", DIFFERENT),
    ("jax.lax.scan(lambda c, x: (jnp.tanh(m @ c + x), None), v, w)[0]", "c = v\nfor t in range(4):\n    c = jnp.tanh(m @ c + w[t])\nreturn c", SAME),
    ("jax.lax.scan(lambda c, x: (jnp.tanh(m @ c + x), None), v, w, reverse=True)[0]", "c = v\nfor t in range(4):\n    c = jnp.tanh(m @ c + w[t])\nreturn c", DIFFERENT),
    ("jax.lax.scan(lambda c, x: (jnp.tanh(m @ c + x), None), v, w[:3])[0]", "c = v\nfor t in range(4):\n    c = jnp.tanh(m @ c + w[t])\nreturn c", DIFFERENT),
    ("jax.lax.fori_loop(0, 3, lambda t, c: c * w + v, w)", "((w * w + v) * w + v) * w + v", SAME),
    ("jax.lax.fori_loop(0, 4, lambda t, c: c * w + v, w)", "((w * w + v) * w + v) * w + v", DIFFERENT),
    ("jax.lax.fori_loop(0, 4, lambda t, c: c.at[t].set(c[t] * t), w) + v", "w * jnp.arange(4) + v", SAME),
    ("jax.lax.cond(w.sum() > 0, lambda: w, lambda: v)", "jnp.where(w.sum() > 0, w, v)", SAME),
    ("jax.lax.cond(w.sum() > 0, lambda: w, lambda: v)", "jnp.where(w.sum() > 0, v, w)", DIFFERENT),
    ("jax.lax.cond(w.sum() > 1e3, lambda: v, lambda: w)", "w + 0 * v", DIFFERENT),
    ("jax.lax.switch(jnp.clip(w[0] > 0, 0, 1).astype(int), [lambda: v, lambda: w])", "jnp.where(w[0] > 0, w, v)", SAME),
    ("jax.lax.associative_scan(jnp.add, w) + v", "jnp.cumsum(w) + v", SAME),
    ("jax.lax.map(lambda x: x * x, w) + v", "w * w + v", SAME),
    ("jax.vmap(lambda x, y: x * y, (0, None))(w, v).sum(1)", "w * v.sum()", SAME),
    ("jax.vmap(lambda x, y: x * y, (None, 0))(w, v).sum(1)", "w * v.sum()", DIFFERENT),
):  # fmt: skip
    add(LOOP, truth, one, two)
add(
    LOOP,
    SAME,
    "jax.lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] * w + v), (0, w))[1]",
    "((w * w + v) * w + v) * w + v",
    gradients=NEITHER,
)
add(
    LOOP,
    DIFFERENT,
    "jax.lax.while_loop(lambda s: s[0] <= 3, lambda s: (s[0] + 1, s[1] * w + v), (0, w))[1]",
    "((w * w + v) * w + v) * w + v",
    gradients=NEITHER,
)
add(LOOP, DIFFERENT, "jax.lax.while_loop(lambda s: s[0] > 100.0, lambda s: s / 2, w)", "w * 1.0", gradients=NEITHER)
add(LOOP, DIFFERENT, None, None, "y = w * 1\nif w.sum() > 100:\n    y = y + 1\nreturn y", "w * 1.0", gradients=NEITHER)
add(LOOP, DIFFERENT, None, None, "y = w * 1\nwhile (y > 1000).any():\n    y = y / 2\nreturn y", "w * 1.0")
add(
    LOOP,
    SAME,
    None,
    "c = v\nfor t in range(4):\n    c = jnp.tanh(m @ c + w[t])\nreturn c",
    "c = v\nfor t in range(4):\n    c = torch.tanh(F.linear(c[None], m)[0] + w[t])\nreturn c",
    "c = v\nfor x in w:\n    c = torch.tanh((m * c).sum(-1) + x)\nreturn c",
)

# --- gathers and scatters

GATHER = "gathers, scatters"
IDS = {"ids": np.array([2, 5, 5, 0])}
for one_j, two_j, one_t, two_t, truth in (
    ("table[ids] * w", "jax.nn.one_hot(ids, 7) @ table * w", "F.embedding(ids, table) * w", "(F.one_hot(ids, 7).to(table.dtype) @ table) * w", SAME),
    ("table[ids] * w", "jnp.take(table, ids, axis=0) * w", "table[ids] * w", "torch.index_select(table, 0, ids) * w", SAME),
    ("table[ids] * w", "table[ids[::-1]] * w", "table[ids] * w", "table[ids.flip(0)] * w", DIFFERENT),
    ("table[ids] * w", "table[(ids + 1) % 7] * w", "table[ids] * w", "table[(ids + 1) % 7] * w", DIFFERENT),
    ("table[(2 * ids + 1) % 7] * w", "table[jnp.array([5, 4, 4, 1])] * w", "table[(2 * ids + 1) % 7] * w", "table[torch.tensor([5, 4, 4, 1])] * w", SAME),
    ("table[-ids] * w", "table[(7 - ids) % 7] * w", "table[-ids] * w", "table[(7 - ids) % 7] * w", SAME),
    ("jnp.zeros((7, 4)).at[ids].add(m) * w", "jax.nn.one_hot(ids, 7).T @ m * w", "torch.zeros(7, 4).index_add(0, ids, m) * w", "(F.one_hot(ids, 7).to(m.dtype).T @ m) * w", SAME),
    ("jnp.zeros((7, 4)).at[ids].add(m) * w", "jnp.zeros((7, 4)).at[ids].max(m) * w", "torch.zeros(7, 4).index_add(0, ids, m) * w", "torch.zeros(7, 4).index_copy(0, ids, m) * w", DIFFERENT),
    ("jax.ops.segment_sum(m, ids, 7) * w", "jnp.zeros((7, 4)).at[ids].add(m) * w", "torch.zeros(7, 4).scatter_add(0, ids[:, None].expand(4, 4), m) * w", "torch.zeros(7, 4).index_add(0, ids, m) * w", SAME),
    ("jnp.take_along_axis(m, ids[:, None] % 4, 1)[:, 0] * w", "jnp.stack([m[0, 2], m[1, 1], m[2, 1], m[3, 0]]) * w", "m.gather(1, ids[:, None] % 4)[:, 0] * w", "torch.stack([m[0, 2], m[1, 1], m[2, 1], m[3, 0]]) * w", SAME),
    ("jnp.take_along_axis(m, ids[:, None] % 4, 1)[:, 0] * w", "jnp.take_along_axis(m.T, ids[:, None] % 4, 1)[:, 0] * w", "m.gather(1, ids[:, None] % 4)[:, 0] * w", "m.T.gather(1, ids[:, None] % 4)[:, 0] * w", DIFFERENT),
    ("table[jnp.array([3, 3])] + w", "table[jnp.array([3, 3])][::-1] + w", "table[torch.tensor([3, 3])] + w", "table[torch.tensor([3, 3])].flip(0) + w", SAME),
    ("table[jnp.where(ids == 5, 1, ids)] * w", "table[jnp.array([2, 1, 1, 0])] * w", "table[torch.where(ids == 5, 1, ids)] * w", "table[torch.tensor([2, 1, 1, 0])] * w", SAME),
    ("w.at[1].set(v[0])", "jnp.concatenate([w[:1], v[:1], w[2:]])", "y = w.clone()\ny[1] = v[0]\nreturn y", "torch.cat([w[:1], v[:1], w[2:]])", SAME),
    ("w.at[1].set(v[0])", "w.at[1].add(v[0])", "y = w.clone()\ny[1] = v[0]\nreturn y", "y = w.clone()\ny[1] += v[0]\nreturn y", DIFFERENT),
    ("w.at[1].multiply(v[0])", "w.at[1].set(w[1] * v[0])", "y = w.clone()\ny[1] *= v[0]\nreturn y", "torch.cat([w[:1], w[1:2] * v[0], w[2:]])", SAME),
):  # fmt: skip
    add(GATHER, truth, one_j, two_j, one_t, two_t, inputs=IDS)
add(GATHER, SAME, "w[jnp.array([9, 1])] + v[:2]", "w[jnp.array([3, 1])] + v[:2]")
add(GATHER, NOWHERE, "jnp.take(w, jnp.array([9, 8])) + v[:2]", "w[jnp.array([3, 3])] + v[:2]")
add(GATHER, SAME, "w.at[jnp.array([9])].add(v[:1]) + 0 * v", "w + 0 * v")
add(GATHER, DIFFERENT, "w.at[jnp.array([9])].add(v[:1]) + 0 * v", "w.at[3].add(v[0]) + 0 * v")
add(GATHER, SAME, "w.at[jnp.array([-1])].add(v[:1]) + 0 * v", "w.at[3].add(v[0]) + 0 * v")
add(GATHER, SAME, "lax.dynamic_slice(w, (9,), (2,)) + v[:2]", "w[2:] + v[:2]")
add(
    GATHER,
    SAME,
    "v[(w[0] > 0).astype(int)] + 0 * w",
    "jnp.where(w[0] > 0, v[1], v[0]) + 0 * w",
    "v[(w[0] > 0).long()] + 0 * w",
    "torch.where(w[0] > 0, v[1], v[0]) + 0 * w",
)
add(
    GATHER,
    DIFFERENT,
    "v[(w[0] > 0).astype(int)] + 0 * w",
    "v[0] + 0 * w",
    "v[(w[0] > 0).long()] + 0 * w",
    "v[0] + 0 * w",
)
add(GATHER, DIFFERENT, "v[jnp.clip(jnp.floor(w[0] / 100), 0, 3).astype(int)] + 0 * w", "v[0] + 0 * w")

# --- shapes

SHAPE = "broadcasting, transposes, einsum"
for one, two, truth in (
    ("(w[:, None] + v[None, :]).sum(0)", "w.sum() + 4 * v", SAME),
    ("(w[:, None] + v[None, :]).sum(1)", "w.sum() + 4 * v", DIFFERENT),
    ("(w[:, None] * v).sum(0)", "w * v.sum()", DIFFERENT),
    ("((w[:, None] - v) ** 2).sum() + 0 * w", "((w - v) ** 2).sum() + 0 * w", DIFFERENT),
    ("((w - v) ** 2).sum() + 0 * w", "(w * w).sum() - 2 * (w * v).sum() + (v * v).sum() + 0 * w", SAME),
    ("m + w", "m + w[:, None]", DIFFERENT),
    ("m.T + w", "(m + w[:, None]).T", SAME),
    ("np.einsum('ij,j->i', m, w) + v", "np.einsum('ij,i->j', m, w) + v", DIFFERENT),
    ("np.einsum('ij,j->i', m, w) + v", "(m * w).sum(-1) + v", SAME),
    ("np.einsum('ij,jk,kl->il', m, m, m) + w", "(m @ m) @ m + w", SAME),
    ("np.einsum('ij,kj->ik', m, m) + w", "m @ m.T + w", SAME),
    ("np.einsum('ij,kj->ik', m, m) + w", "m.T @ m + w", DIFFERENT),
    ("np.einsum('ij,kj->ik', m, m) + w", "np.einsum('ij,kj->ki', m, m) + w", SAME),
    ("np.einsum('ii->i', m) + w", "m[np.arange(4), np.arange(4)] + w", SAME),
    ("m.reshape(2, 2, 4).swapaxes(0, 1).reshape(4, 4) + w", "m + w", DIFFERENT),
    (
        "m.reshape(2, 2, 2, 2).swapaxes(1, 2).reshape(4, 4) + w",
        "m.reshape(2, 2, 2, 2).swapaxes(0, 3).reshape(4, 4) + w",
        DIFFERENT,
    ),
    ("np.tile(w, (3,)).reshape(3, 4) + v", "np.stack([w, w, w]) + v", SAME),
    ("(m @ m.T).T + w", "m @ m.T + w", SAME),
    ("(m @ m).T + w", "m.T @ m.T + w", SAME),
    ("(m @ m).T + w", "m @ m + w", DIFFERENT),
    ("np.where(np.arange(4) == 3, 1.0001 * w, w)", "w * 1.0", DIFFERENT),
    ("np.where(w > 50, w + 1, w)", "w * 1.0", DIFFERENT),
    ("np.where(w < -1e6, 0 * w, w)", "w * 1.0", DIFFERENT),
    ("np.where(w.sum() > 1e4, w + 1, w)", "w * 1.0", DIFFERENT),
    ("np.where((w > 3) & (w < 3.01), w + 1, w)", "w * 1.0", DIFFERENT),
    ("np.where((w > 3) & (w < 2), w + 1, w)", "w * 1.0", SAME),
    ("np.where((w > 3) | (w < 4), w, w + 1)", "w * 1.0", SAME),
    ("np.where((w > 3) | (w <= 3), w, w + 1)", "w * 1.0", SAME),
    ("np.where(w == 3, w + 1, w)", "w * 1.0", SAME),
    ("np.where((w > v) == (v < w), w, v)", "w + 0 * v", SAME),
    ("np.where((w > v) & (v > w), v, w)", "w + 0 * v", SAME),
    ("np.where(np.tanh(w) < 1, v, w)", "v + 0 * w", SAME),
    ("np.where(np.tanh(w) < 0.999, v, w)", "v + 0 * w", DIFFERENT),
    ("np.where(np.exp(w) > 0, v, w)", "v + 0 * w", SAME),
    ("np.where(np.exp(w) > 1e-9, v, w)", "v + 0 * w", DIFFERENT),
    ("np.where(w * w + 1 > 2 * w - 1e-9, v, w)", "v + 0 * w", SAME),
    ("np.where(w * w > w, v, w)", "v + 0 * w", DIFFERENT),
    ("np.where(np.abs(w) >= w, v, w)", "v + 0 * w", SAME),
    ("np.where(np.sin(w) <= 1, v, w)", "v + 0 * w", SAME),
    ("np.where(np.sin(w) < 0.5, v, w)", "v + 0 * w", DIFFERENT),
    ("np.clip(w, -65504.0, 65504.0)", "w * 1.0", DIFFERENT),
    ("np.clip(w, -1e30, 1e30)", "w * 1.0", DIFFERENT),
    ("np.floor(np.tanh(w) ** 2) + v", "v + 0 * w", SAME),
    ("np.sign(w) ** 2 * v", "v + 0 * w", SAME),
    ("np.sign(w) * np.abs(w) + v", "w + v", SAME),
    ("np.sign(w * v)", "np.sign(w) * np.sign(v)", SAME),
    ("np.abs(w * v)", "np.abs(w) * np.abs(v)", SAME),
    ("np.abs(w + v)", "np.abs(w) + np.abs(v)", DIFFERENT),
    ("np.maximum(w, v) + np.minimum(w, v)", "w + v", SAME),
    ("np.maximum(w, v) * np.minimum(w, v)", "w * v", SAME),
    ("np.maximum(w, 2 * v)", "2 * np.maximum(w / 2, v)", SAME),
    ("np.maximum(w, -2 * v)", "-2 * np.maximum(-w / 2, v)", DIFFERENT),
    ("np.maximum(v[0] * w, v[0] * v)", "v[0] * np.maximum(w, v)", DIFFERENT),
    ("np.maximum(v[0] ** 2 * w, v[0] ** 2 * v)", "v[0] ** 2 * np.maximum(w, v)", SAME),
    ("np.sqrt(w * w * v * v)", "w * v", DIFFERENT),
    ("np.sqrt(w ** 4)", "w ** 2", SAME),
    ("np.sqrt(w ** 2) * np.sqrt(w ** 2)", "w ** 2", SAME),
    ("np.sqrt(w ** 6)", "w ** 3", DIFFERENT),
    ("np.log(np.exp(w) ** 2)", "2 * w", SAME),
    ("np.log(w ** 2) + v", "2 * np.log(np.abs(w)) + v", SAME),
    ("np.exp(w) ** 0.5", "np.exp(w / 2)", SAME),
    ("(w ** 2) ** 0.5", "w * 1.0", DIFFERENT),
    ("(w ** 3) ** 2", "w ** 6", SAME),
):
    (one_j, one_t), (two_j, two_t) = alike(one), alike(two)
    add(SHAPE, truth, one_j, two_j, one_t, two_t)

# --- state, randomness, numbers that leave unseen

STATE = "state and in-place operations"
for one, two, truth in (
    ("y = w * 1\ny.add_(v)\ny.mul_(2)\nreturn y", "2 * (w + v)", SAME),
    ("y = w * 1\nz = y\ny.add_(v)\nreturn z", "w + v", SAME),
    ("y = w * 1\nz = y.clone()\ny.add_(v)\nreturn z + 0 * y", "w + v", DIFFERENT),
    ("y = m * 1\ny.view(-1)[::2].mul_(2)\nreturn y + w", "m * torch.tensor([2.0, 1.0, 2.0, 1.0]) + w", SAME),
    ("y = m * 1\ny.T[0] += w\nreturn y + v", "y = m * 1\ny[0] += w\nreturn y + v", DIFFERENT),
    ("y = m * 1\ny.T[0] += w\nreturn y + v", "y = m * 1\ny[:, 0] += w\nreturn y + v", SAME),
    ("y = m * 1\ny.diagonal().zero_()\nreturn y + w", "m * (1 - torch.eye(4)) + w", SAME),
    ("y = w * 1\ny.masked_fill_(torch.arange(4) > 2, 5.0)\nreturn y + v", "torch.cat([w[:3], torch.tensor([5.0])]) + v", SAME),
    ("y = w * 1\ny[1:].copy_(y[:-1].clone())\nreturn y + v", "torch.cat([w[:1], w[:-1]]) + v", SAME),
    ("y = w * 1\ny.clamp_(min=0)\nreturn y + v", "torch.relu(w) + v", SAME),
    ("y = torch.zeros(4)\ny[:] = w\nreturn y + v", "w + v", SAME),
    ("y = torch.zeros(4)\ntorch.add(w, v, out=y) if not torch.is_grad_enabled() else None\nreturn w + v", "w + v", NEITHER),
    ("y = w.unsqueeze(0).expand(4, 4).contiguous()\ny[0] = v\nreturn y", "torch.stack([v, w, w, w])", SAME),
    ("y = torch.where(w > 0, w, v)\ny[w > 0] = 0\nreturn y", "torch.where(w > 0, 0 * w, v)", SAME),
    ("y = torch.where(w > 0, w, v)\ny[w > 0] = 0\nreturn y", "torch.where(w > 0, w, v)", DIFFERENT),
    ("return w[w > 0].sum() + v", "torch.relu(w).sum() + v", SAME),
    ("return w[w > 0].sum() + v", "w.sum() + v", DIFFERENT),
    ("F.dropout(w, 0.5, training=False) + v", "w + v", SAME),
    ("F.dropout(w, 0.5, training=self.training) + v", "w + v", SAME),
    ("F.dropout(w, 0.5, training=True) + v", "w + v", DIFFERENT),
    ("F.layer_norm(w, (4,))", "(w - w.mean()) / torch.sqrt(w.var(correction=0) + 1e-5)", SAME),
    ("F.layer_norm(w, (4,))", "(w - w.mean()) / torch.sqrt(w.var() + 1e-5)", DIFFERENT),
    ("F.normalize(w, dim=0)", "w / w.norm().clamp_min(1e-12)", SAME),
    ("F.normalize(w, dim=0)", "w / w.norm()", DIFFERENT),
    ("F.cosine_similarity(w, v, dim=0) + 0 * w", "(w * v).sum() / (w.norm() * v.norm()) + 0 * w", NEITHER),
    ("F.cross_entropy(m, torch.tensor([0, 2, 1, 3])) + w", "-torch.log_softmax(m, -1)[torch.arange(4), torch.tensor([0, 2, 1, 3])].mean() + w", SAME),
    ("F.cross_entropy(m, torch.tensor([0, 2, 1, 3]), ignore_index=2) + w", "-torch.log_softmax(m, -1)[torch.arange(4), torch.tensor([0, 2, 1, 3])].mean() + w", DIFFERENT),
    ("F.hardtanh(w)", "torch.clamp(w, -1.0, 1.0)", SAME),
    ("F.mish(w)", "w * torch.tanh(torch.log(1 + torch.exp(w)))", NEITHER),
    ("F.glu(torch.cat([w, v]), 0)", "w * torch.sigmoid(v)", SAME),
    ("F.glu(torch.cat([w, v]), 0)", "v * torch.sigmoid(w)", DIFFERENT),
):  # fmt: skip
    add(STATE, truth, None, None, one, two)
add(
    STATE,
    DIFFERENT,
    None,
    None,
    module("self.n += 1\nreturn self.w * (1.0 if self.n < 3 else 2.0)", init="self.n = 0"),
    module("return self.w * 1.0"),
)
add(
    STATE,
    DIFFERENT,
    None,
    None,
    module("self.n += 1\nreturn self.w * self.n", init="self.n = 0"),
    module("return self.w * 1.0"),
)
add(
    STATE,
    DIFFERENT,
    None,
    None,
    module("with torch.no_grad():\n    self.w.add_(1)\nreturn self.w * 1.0"),
    module("return self.w * 1.0"),
)
add(
    STATE,
    SAME,
    None,
    None,
    module(
        "return self.w * self.b", init='self.register_buffer("b", torch.tensor([1.0, 2.0, 3.0, 4.0]), persistent=False)'
    ),
    module("return self.w * torch.tensor([1.0, 2.0, 3.0, 4.0])"),
)
add(
    STATE,
    DIFFERENT,
    None,
    None,
    module(
        "return self.w * self.b", init='self.register_buffer("b", torch.tensor([1.0, 2.0, 3.0, 4.0]), persistent=False)'
    ),
    module("return self.w * torch.tensor([1.0, 2.0, 3.0, 4.5])"),
)
add(
    STATE,
    SAME,
    None,
    None,
    module("return torch.relu(self.norm(self.w[None])[0])", init="self.norm = nn.BatchNorm1d(4)"),
    module(
        "n = self.norm\nreturn torch.relu((self.w - n.running_mean) / torch.sqrt(n.running_var + 1e-5) * n.weight + n.bias)",
        init="self.norm = nn.BatchNorm1d(4)",
    ),
    gradients=NEITHER,
)
add(
    STATE,
    DIFFERENT,
    None,
    None,
    module("return torch.relu(self.norm(self.w[None])[0])", init="self.norm = nn.BatchNorm1d(4)"),
    module(
        "n = self.norm\nreturn torch.relu((self.w - n.running_mean) / torch.sqrt(n.running_var + 1e-3) * n.weight + n.bias)",
        init="self.norm = nn.BatchNorm1d(4)",
    ),
    gradients=NEITHER,
)
TIED = module(
    "return torch.tanh(x @ self.a.weight.T) @ self.b.weight.T",
    init="self.a = nn.Linear(4, 4, bias=False)\nself.b = nn.Linear(4, 4, bias=False)\n{tie}",
    weights=(),
    signature="self, x",
)
TWO = {"x": np.ones((2, 4))}
add(
    "tied weights",
    SAME,
    None,
    'def program(p, i):\n    k = p["a.weight"]\n    return jnp.tanh(i["x"] @ k.T) @ k.T',
    TIED.format(tie="self.b.weight = self.a.weight"),
    TIED.format(tie="self.a.weight = self.b.weight"),
    inputs=TWO,
)
add(
    "tied weights",
    DIFFERENT,
    None,
    'def program(p, i):\n    k = p["a.weight"]\n    return jnp.tanh(i["x"] @ k.T) @ k',
    TIED.format(tie="self.b.weight = self.a.weight"),
    None,
    inputs=TWO,
)
add(  # a proof holds where the two weights are equal, as they are one in the other program, and says so
    "tied weights",
    SAME,
    None,
    None,
    TIED.format(tie="pass"),
    TIED.format(tie="self.b.weight = self.a.weight").replace("self.b.weight.T", "self.a.weight.T"),
    inputs=TWO,
)
add(
    "tied weights",
    DIFFERENT,
    None,
    None,
    TIED.format(tie="self.b.weight = self.a.weight"),
    TIED.format(tie="self.b.weight = self.a.weight").replace("self.b.weight.T", "self.b.weight"),
    inputs=TWO,
)
LEAK = "numbers that leave unseen"
HUGE = "return self.w * (2.0 if ({}) > 50 else 1.0)"
for read in (
    "float(str(self.w.detach().sum()).split('(')[1].rstrip(')').split(',')[0])",
    "float('%f' % self.w.detach().sum())",
    "float(format(self.w.detach().sum(), 'f'))",
    "float(torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(self.w.detach())).sum())",
    "float(np.from_dlpack(self.w.detach()).sum())",
    "self.w.sum().item()",
    "sum(self.w.tolist())",
    "self.w.detach().numpy().sum()",
    "np.asarray(self.w.detach()).sum()",
    "float(self.w.sum())",
    "int(self.w.sum())",
    "__import__('struct').unpack('f', bytes(self.w.detach().untyped_storage()[:4]))[0]",
    "__import__('ctypes').c_float.from_address(self.w.data_ptr()).value",
    "float(__import__('pickle').loads(__import__('pickle').dumps(self.w.detach())).sum())",
    "float(__import__('copy').deepcopy(self.w.detach()).sum())",
    "float(self.state_dict()['w'].sum())",
    "float(next(self.parameters()).sum())",
    "memoryview(self.w.detach().numpy())[0]",
    "float(eval(repr(self.w.detach()).replace('tensor', 'torch.tensor')).sum())",
    "hash(self.w.detach().sum().item())",
    "torch.equal(self.w.detach().clamp(max=1.0), torch.ones(4)) * 100",
    "torch.allclose(self.w.detach().clamp(max=1.0), torch.ones(4)) * 100",
    "len(torch.nonzero(self.w > 60)) * 100",
    "self.w.detach()[self.w.detach() > 60].shape[0] * 100",
    "torch.unique(self.w.detach().clamp(max=60.0) > 59).numel() * 40 * bool((self.w > 60).any())",
    "max(self.w.detach().clamp(max=99).tolist())",
    "max(self.w)",
    "sorted(self.w)[0]",
):  # fmt: skip
    add(LEAK, DIFFERENT, None, None, module(HUGE.format(read)), module("return self.w * 1.0"), title=read)
CALL = (
    "jax.pure_callback(lambda a: np.where(a > 50, 2 * a, a).astype(a.dtype), jax.ShapeDtypeStruct(w.shape, w.dtype), w)"
)
add(LEAK, DIFFERENT, CALL, "w * 1.0")
add(LEAK, SAME, "jax.debug.callback(lambda a: None, w)\nreturn w * 1.0", "w * 1.0")
RANDOM = "randomness"
add(RANDOM, DIFFERENT, None, None, "w * torch.rand(4)", "w * 1.0")
add(RANDOM, DIFFERENT, None, None, "w + 1e-3 * torch.randn_like(w)", "w * 1.0")
add(RANDOM, DIFFERENT, None, None, "w * torch.bernoulli(torch.full((4,), 0.5))", "w * 1.0")
add(RANDOM, DIFFERENT, None, None, "w[torch.randperm(4)] + v", "w + v")
add(RANDOM, DIFFERENT, None, None, "import random\nreturn w * random.random()", "w * 1.0")
add(RANDOM, DIFFERENT, None, None, "import time\nreturn w * (1 + 1e-9 * time.perf_counter_ns())", "w * 1.0")
add(RANDOM, DIFFERENT, None, None, "w * float(np.random.default_rng().random())", "w * 1.0")
add(RANDOM, DIFFERENT, "w * jax.random.bernoulli(jax.random.key(0), 0.5, (4,))", "w * 1.0")
add(
    RANDOM,
    DIFFERENT,
    "w * jax.random.normal(jax.random.key(0), (4,))",
    "w * jax.random.normal(jax.random.key(1), (4,))",
)
add(
    RANDOM,
    SAME,
    "w * jax.random.normal(jax.random.key(0), (4,))",
    "w * jax.random.normal(jax.random.key(0), (4,)) * 1.0",
)
add(RANDOM, DIFFERENT, "w * np.random.default_rng().random()", "w * 1.0")


# --- the truth, in numbers


def numbers_of(pair: Pair, draws: int = 12) -> tuple[float, float, int]:
    """Runs a pair's forward pass at random weights as a user runs it.

    Returns the largest and the smallest relative difference of all draws where both sides are finite, and the number of
    these draws. A pair that is the same function has small ones; one that isn't, has large ones.
    """
    rng = np.random.default_rng(zlib.crc32(pair.name.encode()))
    found = []
    dtype = np.float64 if pair.is_wide else np.float32
    with jax.enable_x64(pair.is_wide):
        sides = [side.make() for side in (pair.candidate, pair.reference)]
        for draw in range(draws):
            scale = (1.0, 3.0, 1.0, 30.0, 1e-3, 1e5)[draw % 6]
            drawn: dict[str, np.ndarray] = {}
            inputs = {
                name: rng.normal(size=np.shape(value)).astype(dtype) if np.asarray(value).dtype.kind == "f" else value
                for name, value in pair.inputs.items()
            }
            results = [_numbers(side, drawn, pair, inputs, rng, scale, dtype) for side in sides]
            one, two = (np.asarray(each, np.float64) for each in results)
            usable = np.isfinite(one) & np.isfinite(two)
            if usable.any():
                apart = np.abs(one - two) / np.maximum(1e-6, np.maximum(np.abs(one), np.abs(two)))
                found.append(float(np.where(usable, apart, 0).max()))
    return (max(found), min(found), len(found)) if found else (0.0, 0.0, 0)


def _numbers(
    side: Any, drawn: dict[str, np.ndarray], pair: Pair, inputs: Mapping[str, Any], rng: Any, scale: float, dtype: Any
) -> Any:
    is_module = isinstance(side, torch.nn.Module)
    shapes = dict(pair.weights)
    if is_module:
        side = side.double() if pair.is_wide else side
        shapes |= {name: tuple(each.shape) for name, each in side.named_parameters()}
    for name, shape in shapes.items():
        if name not in drawn:
            drawn[name] = (scale * rng.normal(size=shape)).astype(dtype)
    if not is_module:
        return side(
            {name: jax.numpy.asarray(each) for name, each in drawn.items()},
            {name: jax.numpy.asarray(each) for name, each in inputs.items()},
        )
    with torch.no_grad():
        for name, parameter in side.named_parameters():
            parameter.copy_(torch.tensor(drawn[name]))
        return side(**{name: torch.as_tensor(each) for name, each in inputs.items()}).numpy()
