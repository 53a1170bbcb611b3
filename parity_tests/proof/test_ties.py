"""Weights that are one tensor, or share memory, are one variable: of one side, of both, and between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from jax_transformer.parity import prove

IDS = {"ids": np.array([[1, 2, 5]])}
X = {"x": np.ones((2, 4), np.float32)}
TABLE, HEAD = "table.weight", "head.weight"


class Tied(nn.Module):
    """Scores the rows of a table by the table."""

    def __init__(self, tie: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
        if tie == "one parameter":
            self.head.weight = self.table.weight
        if tie in ("memory", "frozen head"):
            self.head.weight = nn.Parameter(self.table.weight.data, requires_grad=tie == "memory")
        self.eval()

    def forward(self, ids: Tensor) -> Tensor:
        scores: Tensor = self.head(torch.tanh(self.table(ids)))
        return scores


class Parts(nn.Module):
    """Multiplies by a weight, and by one that is a part of it, or transposed, or one number several times."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.a, self.kind = nn.Parameter(torch.randn(5, 4)), kind
        shared = {"transposed": self.a.data.t(), "rows": self.a.data[:3], "one number": torch.ones(1).expand(5)}
        self.b = (
            nn.Parameter(shared.get(kind.removeprefix("apart, "), torch.ones(1)).clone())
            if "apart" in kind
            else (nn.Parameter(shared[kind]))
        )
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(x @ self.a.T)
        if "transposed" in self.kind:
            return hidden @ self.b.T
        return hidden[:, :3] @ self.b if "rows" in self.kind else hidden * self.b


def scores(table: str, head: str, stop: bool = False) -> Callable[..., Any]:
    def of(params: Any, inputs: Any) -> Any:
        kernel = jax.lax.stop_gradient(params[head]) if stop else params[head]
        return jnp.tanh(params[table][inputs["ids"]]) @ kernel.T

    return of


def parts(kind: str) -> Callable[..., Any]:
    def of(params: Any, inputs: Any) -> Any:
        hidden = jnp.tanh(inputs["x"] @ params["a"].T)
        return {
            "transposed": lambda: hidden @ params["b"].T,
            "rows": lambda: hidden[:, :3] @ params["b"],
            "one number": lambda: hidden * params["b"],
        }[kind]()

    return of


def apart(side: str) -> tuple[str, ...]:
    other = "reference" if side == "candidate" else "candidate"
    return (f"{TABLE} and {HEAD} of the {side} are equal, as they are one in the {other}",)


Case = tuple[Any, Any, str, tuple[str, ...]]
CASES: dict[str, Case] = {
    "a function of two leaves": (scores(TABLE, HEAD), Tied("one parameter"), "proven", apart("candidate")),
    "a function of one leaf": (scores(TABLE, TABLE), Tied("one parameter"), "proven", ()),
    "a function of the other leaf": (scores(HEAD, HEAD), Tied("one parameter"), "proven", ()),
    "a gradient counted once": (scores(TABLE, HEAD, True), Tied("one parameter"), "refuted", apart("candidate")),
    "memory in common": (scores(TABLE, TABLE), Tied("memory"), "proven", ()),
    "memory in common, and one parameter": (Tied("memory"), Tied("one parameter"), "proven", ()),
    "a part that is frozen": (Tied("frozen head"), Tied("one parameter"), "refuted", ()),
    "untied, and tied": (Tied("none"), Tied("one parameter"), "proven", apart("candidate")),
    "tied, and untied": (Tied("memory"), Tied("none"), "proven", apart("reference")),
    "untied": (scores(TABLE, HEAD), Tied("none"), "proven", ()),
    "one leaf of an untied module": (scores(TABLE, TABLE), Tied("none"), "refuted", ()),
}
for _kind in ("transposed", "rows", "one number"):
    what = ("elements of b" if _kind == "one number" else "a and b") + " of the candidate are equal, as they are one in"
    CASES[_kind] = (parts(_kind), Parts(_kind), "proven", (f"{what} the reference",))
    CASES[f"{_kind}, apart"] = (Parts(f"apart, {_kind}"), Parts(_kind), "proven", (f"{what} the reference",))
    CASES[f"{_kind}, both"] = (Parts(_kind), Parts(_kind), "proven", ())
CASES["transposed, by one leaf"] = (
    lambda p, i: jnp.tanh(i["x"] @ p["a"].T) @ p["a"],
    Parts("transposed"),
    "proven",
    (),
)


@pytest.mark.parametrize("name", list(CASES))
def test_tied_weights_are_one_variable(name: str) -> None:
    ours, theirs, verdict, conditions = CASES[name]
    certificate = prove(ours, theirs, inputs=IDS if isinstance(theirs, Tied) else X)
    assert certificate.stages[1].verdict == verdict, str(certificate)
    assert certificate.conditions == conditions
    assert all(f"where {condition}: gradients are summed" in str(certificate) for condition in conditions)
    assert ("for all weights" in str(certificate)) == (verdict == "proven" and not conditions)


def test_names_map_two_weights_to_one() -> None:
    certificate = prove(scores(TABLE, TABLE), Tied("one parameter"), inputs=IDS, names={HEAD: TABLE})
    assert certificate.verdict == "proven", str(certificate)
    certificate = prove(scores(TABLE, TABLE), Tied("none"), inputs=IDS, names={HEAD: TABLE})
    assert certificate.conditions == apart("reference")


def test_memory_of_two_dtypes_is_unknown() -> None:
    module = Tied("none")
    module.head.weight = nn.Parameter(module.table.weight.data.view(torch.float16)[:, :4])
    certificate = prove(module, Tied("none"), inputs=IDS, stages=["forward"])
    assert "share memory in two dtypes" in certificate.stages[0].reason
