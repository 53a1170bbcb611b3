"""Top-k, argmax and sorting choose places by weights: pairs that choose alike are proven, others aren't."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax import lax

from jax_transformer.proof import UnknownOperation, decide
from proof.pairs import Pair, Side, gradients_in_jax, gradients_in_torch, in_jax, in_torch

SHAPES = {"x": (3, 4), "router": (4, 5), "table": (5, 2), "bias": (5,)}
POINTS = 20
softmax, relu = jax.nn.softmax, jax.nn.relu
Function = Callable[[Any], Any]


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def logits(w: Any) -> Any:
    return w["x"] @ w["router"]


def dead(w: Any) -> Any:
    """Logits that are all zero where no unit of the hidden layer is positive."""
    return (relu(w["x"]) if isinstance(w["x"], jax.Array) else torch.relu(w["x"])) @ w["router"]


def gates(chances: Any, count: int = 2) -> Any:
    top, which = lax.top_k(chances, count)
    return (jax.nn.one_hot(which, 5) * (top / top.sum(-1, keepdims=True))[..., None]).sum(-2)


def gates_in_torch(chances: Any, count: int = 2) -> Any:
    top, which = torch.topk(chances, count, -1)
    return torch.zeros_like(chances).scatter(-1, which, top / top.sum(-1, keepdim=True))


def gates_written(chances: Any) -> Any:
    top, which = lax.top_k(chances, 2)
    return jnp.zeros_like(chances).at[jnp.arange(3)[:, None], which].set(top / top.sum(-1, keepdims=True))


def loss(function: Function) -> Side:
    return in_jax(gradients_in_jax(lambda w: (function(w) ** 2).sum() + 0 * sum(each.sum() for each in w.values())))


def loss_in_torch(function: Function) -> Side:
    return in_torch(gradients_in_torch(lambda w: (function(w) ** 2).sum() + 0 * sum(each.sum() for each in w.values())))


SAME: dict[str, tuple[Side, Side]] = {
    "gates by one-hot numbers, and scattered": (
        in_jax(lambda w: gates(softmax(logits(w)))),
        in_torch(lambda w: gates_in_torch(logits(w).softmax(-1))),
    ),
    "gates that are written": (
        in_jax(lambda w: gates_written(softmax(logits(w)))),
        in_torch(lambda w: gates_in_torch(logits(w).softmax(-1))),
    ),
    "gates by σ": (
        in_jax(lambda w: gates(jax.nn.sigmoid(logits(w)))),
        in_torch(lambda w: gates_in_torch(logits(w).sigmoid())),
    ),
    "a choice by logits, and by chances": (
        in_jax(lambda w: jax.nn.one_hot(lax.top_k(logits(w), 2)[1], 5)),
        in_torch(lambda w: (torch.topk(logits(w).softmax(-1), 2)[1][..., None] == torch.arange(5)).double()),
    ),
    "a choice of dead units with biases": (
        in_jax(lambda w: gates(softmax(dead(w) + w["bias"]))),
        in_torch(lambda w: gates_in_torch((dead(w) + w["bias"]).softmax(-1))),
    ),
    "rows of a table by argmax": (
        in_jax(lambda w: w["table"][jnp.argmax(logits(w), -1)]),
        in_torch(lambda w: w["table"][logits(w).argmax(-1)]),
    ),
    "rows of a table by argmin": (
        in_jax(lambda w: w["table"][jnp.argmax(-logits(w), -1)]),
        in_torch(lambda w: torch.nn.functional.embedding(logits(w).argmin(-1), w["table"])),
    ),
    "one row of a table": (
        in_jax(lambda w: w["table"][jnp.argmax(logits(w)[0])]),
        in_torch(lambda w: w["table"].index_select(0, logits(w)[:1].argmax(-1))[0]),
    ),
    "the largest and where it is": (
        in_jax(lambda w: (logits(w).max(-1), jnp.argmax(logits(w), -1) * 1.0)[0]),
        in_torch(lambda w: logits(w).max(-1)[0]),
    ),
    "sorting": (in_jax(lambda w: jnp.sort(logits(w))), in_torch(lambda w: logits(w).sort(-1)[0])),
    "sorting downwards": (
        in_jax(lambda w: jnp.sort(logits(w))[:, ::-1]),
        in_torch(lambda w: logits(w).sort(-1, descending=True)[0]),
    ),
    "sorting by top-k": (in_jax(lambda w: lax.top_k(logits(w), 5)[0]), in_torch(lambda w: -(-logits(w)).sort(-1)[0])),
    "sorting down columns": (in_jax(lambda w: jnp.sort(logits(w), 0)), in_torch(lambda w: logits(w).sort(0)[0])),
    "argsort, looked up": (
        in_jax(lambda w: jnp.take_along_axis(jnp.tanh(logits(w)), jnp.argsort(logits(w)), -1)),
        in_torch(lambda w: torch.gather(torch.tanh(logits(w)), -1, logits(w).argsort(-1))),
    ),
    "argsort as numbers": (
        in_jax(lambda w: jnp.argsort(logits(w)) * 1.0),
        in_torch(lambda w: logits(w).argsort(-1).double()),
    ),
    "places compared with a number": (
        in_jax(lambda w: jnp.where(jnp.argmax(logits(w), -1) + 1 > 2, 1.0, 2.0)),
        in_torch(lambda w: torch.where(logits(w).argmax(-1) >= 2, 1.0, 2.0).double()),
    ),
    "added to places": (
        in_jax(lambda w: jnp.ones((3, 5)).at[jnp.arange(3), jnp.argmax(logits(w), -1)].add(2.0)),
        in_torch(
            lambda w: (
                torch.ones(3, 5).double().scatter_add(1, logits(w).argmax(-1, True), torch.full((3, 1), 2.0).double())
            )
        ),
    ),
    "gradients of a mixture": (
        loss(lambda w: gates(softmax(logits(w))) @ w["table"]),
        loss_in_torch(lambda w: gates_in_torch(logits(w).softmax(-1)) @ w["table"]),
    ),
    "gradients of sorting": (
        loss(lambda w: jnp.sort(logits(w))[:, :2]),
        loss_in_torch(lambda w: logits(w).sort(-1)[0][:, :2]),
    ),
    "gradients of looking up": (
        loss(lambda w: w["table"][jnp.argmax(logits(w), -1)]),
        loss_in_torch(lambda w: w["table"][logits(w).argmax(-1)]),
    ),
    "the largest of all entries": (
        in_jax(lambda w: w["bias"][jnp.argmax(w["x"][0])] * w["x"]),
        in_torch(lambda w: w["bias"].index_select(0, w["x"][:1].argmax(keepdim=True)[0]) * w["x"]),
    ),
    "gradients of one row": (
        loss(lambda w: w["table"][jnp.argmax(logits(w)[0])]),
        loss_in_torch(lambda w: w["table"].index_select(0, logits(w)[:1].argmax(-1))),
    ),
    "a number that is written where the largest is": (
        in_jax(lambda w: lax.dynamic_update_slice(w["bias"], w["x"][0, :1], (jnp.argmax(logits(w)[0]),))),
        in_torch(lambda w: torch.where(torch.arange(5) == logits(w)[0].argmax(), w["x"][0, 0], w["bias"])),
    ),
}

DIFFERENT: dict[str, tuple[Side, Side]] = {
    "top 2 and top 3": (
        in_jax(lambda w: gates(softmax(logits(w)))),
        in_torch(lambda w: gates_in_torch(logits(w).softmax(-1), 3)),
    ),
    "the largest and the least": (
        in_jax(lambda w: jnp.argmax(logits(w), -1) * 1.0),
        in_torch(lambda w: logits(w).argmin(-1).double()),
    ),
    "a number that is written elsewhere": (
        in_jax(lambda w: lax.dynamic_update_slice(w["bias"], w["x"][0, :1], (jnp.argmax(logits(w)[0]),))),
        in_torch(lambda w: torch.where(torch.arange(5) == logits(w)[0].argmin(), w["x"][0, 0], w["bias"])),
    ),
    "another order": (
        in_jax(lambda w: jnp.sort(logits(w))),
        in_torch(lambda w: logits(w).sort(-1, descending=True)[0]),
    ),
    "another axis": (
        in_jax(lambda w: jnp.argmax(logits(w)[:, :3], 0) * 1.0),
        in_torch(lambda w: logits(w)[:, :3].argmax(1).double()),
    ),
    "another logit": (
        in_jax(lambda w: jnp.argmax(logits(w), -1) * 1.0),
        in_torch(lambda w: (logits(w) + w["bias"]).argmax(-1).double()),
    ),
    "the same chances of another row": (
        in_jax(lambda w: gates(softmax(logits(w)))),
        in_torch(lambda w: gates_in_torch(logits(w).softmax(-1)).flip(0)),
    ),
    "gates that aren't normed": (
        in_jax(lambda w: gates(softmax(logits(w)))),
        in_jax(
            lambda w: (
                jax.nn.one_hot(lax.top_k(logits(w), 2)[1], 5) * lax.top_k(softmax(logits(w)), 2)[0][..., None]
            ).sum(-2)
        ),
    ),
    "one place further": (
        in_jax(lambda w: w["table"][jnp.argmax(logits(w)[:, :4], -1)]),
        in_torch(lambda w: w["table"][logits(w)[:, :4].argmax(-1) + 1]),
    ),
    "a negative factor": (
        in_jax(lambda w: jnp.argmax(logits(w) * -2.0, -1) * 1.0),
        in_torch(lambda w: logits(w).argmax(-1).double()),
    ),
    "a factor of each entry": (
        in_jax(lambda w: jnp.argmax(softmax(logits(w)) * jnp.exp(w["bias"]), -1) * 1.0),
        in_torch(lambda w: logits(w).argmax(-1).double()),
    ),
    "a factor of unknown sign": (
        in_jax(lambda w: jnp.argmax(logits(w) * w["bias"][0], -1) * 1.0),
        in_torch(lambda w: logits(w).argmax(-1).double()),
    ),
}

UNKNOWN: dict[str, Side] = {
    "ties of many zeros": in_jax(lambda w: jnp.argmax(relu(logits(w)), -1) * 1.0),
    "ties of many zeros in PyTorch": in_torch(lambda w: logits(w).relu().topk(2)[1].double()),
    "ties of a dead layer": in_jax(lambda w: gates(softmax(dead(w)))),
    "ties of an entry that occurs twice": in_jax(lambda w: jnp.argmax(w["x"][:, np.array([0, 1, 1])], -1) * 1.0),
    "ties of a clamp": in_torch(lambda w: logits(w).clamp(-1, 1).argmax(-1).double()),
    "NaN in a row": in_jax(lambda w: jnp.argmax(jnp.sqrt(logits(w)), -1) * 1.0),
    "masked entries": in_torch(lambda w: logits(w).masked_fill(torch.arange(5) < 2, -torch.inf).topk(2)[1].double()),
    "two choices at one place": in_jax(
        lambda w: jnp.zeros(5).at[jnp.stack([jnp.argmax(logits(w)[0]), jnp.argmax(logits(w)[1])])].set(w["x"][0, :2])
    ),
    "a branch": in_torch(lambda w: w["x"] if logits(w).argmax() > 3 else 2 * w["x"]),
    "places of places": in_jax(lambda w: jnp.argmax(jnp.argsort(logits(w)) * 1.0, -1) * 1.0),
}


def judged(pair: tuple[Side, Side]) -> str:
    try:
        result = decide(Pair("", SHAPES, *pair).task())
    except UnknownOperation as error:
        return f"unknown: {error}"
    return result.verdict if result.verdict != "unknown" else f"unknown: {result.reason}"


def computed(side: Side, weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    if side.framework == "jax":
        found = side.function({name: jnp.asarray(array) for name, array in weights.items()})
    else:
        found = side.function({name: torch.tensor(array, requires_grad=True) for name, array in weights.items()})
    named = found if isinstance(found, dict) else {"output": found}
    return {name: np.asarray(each.detach() if isinstance(each, torch.Tensor) else each) for name, each in named.items()}


def differ(pair: tuple[Side, Side]) -> bool:
    """Returns whether frameworks compute different numbers on some random weights."""
    rng = np.random.default_rng(0)
    for _ in range(POINTS):
        weights = {name: rng.standard_normal(shape) for name, shape in SHAPES.items()}
        ours, theirs = (computed(side, weights) for side in pair)
        if any(not np.allclose(ours[name], theirs[name], rtol=1e-7, atol=1e-9) for name in ours):
            return True
    return False


@pytest.mark.parametrize("name", list(SAME))
def test_the_same_choices_are_proven(name: str) -> None:
    assert not differ(SAME[name])
    assert judged(SAME[name]) == "proven"


@pytest.mark.parametrize("name", list(DIFFERENT))
def test_other_choices_are_not_proven(name: str) -> None:
    assert differ(DIFFERENT[name])
    verdict = judged(DIFFERENT[name])
    assert verdict == "refuted" or (verdict.startswith("unknown") and name == "a factor of each entry")


@pytest.mark.parametrize("name", list(UNKNOWN))
def test_choices_that_depend_on_ties_are_unknown(name: str) -> None:
    assert judged((UNKNOWN[name], UNKNOWN[name])).startswith("unknown")
