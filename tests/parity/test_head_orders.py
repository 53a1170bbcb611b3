"""Heads in another order, in an attention's weights or in all that it computes: the same function, and a note."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fake_sides import FakeSide, Trace, blamed, hiding, run_pair

from jax_transformer.comparison.findings import SideName

pytestmark = pytest.mark.usefixtures("quick_compilation")

PREFIX = "decoder.layers.1.cross_attention."
OF_HEADS = {"query": 2, "key": 2, "value": 2, "context": 2, "logits": 1, "weights": 1}
ORDER = (2, 0, 1)
Change = Callable[[Trace], Trace]


def permuted(*roles: str) -> Change:
    return lambda trace: (
        trace | {f"{PREFIX}{role}": trace[f"{PREFIX}{role}"].take(ORDER, axis=OF_HEADS[role]) for role in roles}
    )


@pytest.mark.parametrize("side", ["candidate", "reference"])
def test_heads_in_another_order_in_all_that_an_attention_shows_are_a_note(side: SideName) -> None:
    sides = {"candidate": FakeSide(), "reference": FakeSide()} | {side: FakeSide(after=permuted(*OF_HEADS))}
    report = run_pair(**sides, dtypes=("float64", "float32"))
    assert (report.exit_code, report.faults) == (0, ()), str(report)
    assert [(note.side, note.finding.node, note.finding.cause) for note in report.notes] == [
        (side, f"{PREFIX}query", "heads in the order 2, 0, 1")
    ]


def test_some_of_it_may_be_hidden() -> None:
    def shown(trace: Trace) -> Trace:
        return hiding(f"{PREFIX}context", f"{PREFIX}logits")(permuted(*OF_HEADS)(trace))

    visible = frozenset(FakeSide().weights()) | {f"{PREFIX}query", f"{PREFIX}weights", f"{PREFIX}output", "logits"}
    report = run_pair(FakeSide(), FakeSide(after=shown), visible=visible)
    assert (report.exit_code, len(report.notes)) == (0, 1), str(report)


@pytest.mark.parametrize("roles", [("query",), ("query", "key"), ("query", "key", "logits", "weights")])
def test_another_order_of_some_activations_alone_is_a_fault(roles: tuple[str, ...]) -> None:
    report = run_pair(FakeSide(), FakeSide(after=permuted(*roles)))
    assert report.exit_code == 4
    assert f"{PREFIX}query" in blamed(report, "reference")


# --- weights


def reordered(*names: str) -> Change:
    axes = {"kernel": {"output": 0}, "bias": {}}

    def change(weights: Trace) -> Trace:
        path = "encoder/layers/self_attention/"
        changed = dict(weights)
        for name in names:
            role, kind = name.split("/")
            axis = axes[kind].get(role, 1 if kind == "kernel" else 0)
            key = f"{path}{name}[0]"
            changed[key] = weights[key].take(ORDER, axis=axis)
        return changed

    return change


EVERY = (*(f"{role}/{kind}" for role in ("query", "key", "value") for kind in ("kernel", "bias")), "output/kernel")


def test_heads_in_another_order_in_every_weight_pass() -> None:
    report = run_pair(FakeSide(held=reordered(*EVERY)), FakeSide())
    assert (report.exit_code, report.faults) == (0, ())
    assert "heads in the order 2, 0, 1 in every weight: the same function" in " ".join(str(report).split())


def test_heads_in_another_order_in_some_weights_diverge() -> None:
    for left_out in EVERY:
        report = run_pair(FakeSide(held=reordered(*(name for name in EVERY if name != left_out))), FakeSide())
        assert report.exit_code == 4, left_out
