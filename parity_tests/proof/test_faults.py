"""Every changed program is refuted, at the operation and the line that were changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from jax_transformer.proof import UnknownOperation, decide
from proof.faults import PROGRAMS, Fault, original
from proof.listed_faults import FAULTS, MISPLACED, UNSHOWN


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_right_programs_are_one_function(program: str) -> None:
    assert decide(original(program).task()).verdict == "proven"


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_is_refuted_where_it_is(fault: Fault) -> None:
    result = decide(fault.task())
    assert result.verdict == ("unknown" if fault.name in UNSHOWN else "refuted")
    found = fault.place(result), fault.other_place(result)
    assert fault.is_located(result) == (fault.name not in MISPLACED), found


def test_few_are_misplaced() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    assert len(MISPLACED) <= 0.02 * len(FAULTS)
    assert len(UNSHOWN) <= 0.02 * len(FAULTS)


def test_a_change_that_changes_nothing_is_proven() -> None:
    fault = Fault("no fault", "norm_alone", "centred = x - mean", "centred = -(mean - x)", "neg")
    assert decide(fault.task()).verdict == "proven"


def test_a_change_has_to_be_of_one_place() -> None:
    fault = replace(FAULTS[0], old="w[")
    with pytest.raises(ValueError, match="expected 'w\\[' once"):
        fault.task()


@pytest.mark.parametrize("name", ["the causal mask is one token late", "our mask is one token late"])
def test_masks_that_differ_are_named(name: str) -> None:
    (fault,) = (each for each in FAULTS if each.name == name)
    difference = decide(fault.task()).difference
    assert difference is not None
    ours, theirs = difference.candidate, difference.reference
    shows, hides = (theirs, ours) if fault.framework == "torch" else (ours, theirs)
    assert shows is not None
    assert hides is not None
    assert shows.masks == "which shows entry (0, 0, 0, 1) and 3 others; the other side doesn't"
    assert hides.masks == "which hides entry (0, 0, 0, 1) and 3 others; the other side doesn't"


def _attention(change: Callable[[str], str]) -> Fault:
    return Fault("a fill", "attention_alone", "FILL = -1e9", change("FILL = -1e9"), "masked_fill")


def test_a_row_of_minus_infinity_is_not_proven() -> None:
    """It is NaN, where finite fills give each key the same weight."""
    with pytest.raises(UnknownOperation, match="leaves 0/0"):
        _attention(lambda line: line.replace("-1e9", "-math.inf")).task()


def test_other_fills_of_a_whole_row_are_proven() -> None:
    assert decide(_attention(lambda line: line.replace("-1e9", "-1e4")).task()).verdict == "proven"
