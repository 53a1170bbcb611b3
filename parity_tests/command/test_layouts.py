"""`jax-transformer parity` on modules whose heads are split or merged wrongly, or whose layers are shared: one fault of
several nodes has a name."""

from __future__ import annotations

import pytest
from parity_command import SIZES, Run

SPLIT, MERGED = "heads split without transposing", "heads merged without transposing back"
CAUSES = {
    "not_split": (f"cause {SPLIT}, at ",),
    "not_merged": (f"cause {MERGED}, at ",),
    "neither": (f"cause {SPLIT}, at ", f"cause {SPLIT}, and {MERGED}, at "),
    "shared_layers": ("cause weights of layer 0 (with ",),
}


def test_views_in_the_right_order(run: Run) -> None:
    outcome = run("hyunwoongko.pt", "--dialect", "hyunwoongko", *SIZES, "--reference", "user_layouts:right")
    assert outcome.code == 0, outcome.output


@pytest.mark.parametrize("name", CAUSES)
def test_a_fault_of_several_nodes(name: str, run: Run) -> None:
    outcome = run("hyunwoongko.pt", "--dialect", "hyunwoongko", *SIZES, "--reference", f"user_layouts:{name}")
    assert outcome.code == 1, outcome.output
    for cause in CAUSES[name]:
        assert cause in outcome.output
    assert "unexplained" not in outcome.output
    assert "of the candidate" not in outcome.output


def test_heads_in_another_order_are_the_same_function(run: Run) -> None:
    """The proof compares what is returned without the activations that differ inside."""
    options = ["hyunwoongko.pt", "--dialect", "hyunwoongko", *SIZES, "--reference", "user_layouts:reordered_heads"]
    outcome = run(*options, stages="weights,masks,forward,gradients,proof", dtypes=None)
    assert outcome.code == 0, outcome.output
    assert "heads in the order 2, 0, 1, at 4 nodes of the reference: the same function" in outcome.output
    assert "proof: one function for all weights" in outcome.output
