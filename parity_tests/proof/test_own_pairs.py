"""Whole programs of this library are proven to be one function, and no fault of the library is."""

from __future__ import annotations

import pytest

from jax_transformer.proof import decide
from proof.own_faults import FAULTS, OwnFault
from proof.own_models import OwnPair
from proof.own_pairs import PAIRS

TRIED = (
    "layers in a scan, and unrolled: post-norm",
    "attention on the path xla, and step by step: T5",
    "one table for both sides and the head, and three: post-norm",
    "packed rows, and a row for each pair: BART",
    "2 batches accumulated, and one: post-norm",
    "adapters, and merged kernels: T5",
    "beams that continue others, and their own tokens at once: rotary, shared keys",
)
"""Pairs that stand for the others, which the command own_table.py proves."""


@pytest.mark.parametrize("pair", [each for each in PAIRS if each.title in TRIED], ids=lambda pair: pair.title)
def test_is_proven(pair: OwnPair) -> None:
    result = decide(pair.task())
    assert result.verdict == "proven", (result.reason, result.difference)
    assert not result.alone
    assert result.log2_error < -80


@pytest.mark.parametrize("fault", FAULTS[:4], ids=lambda fault: fault.name)
def test_a_fault_is_refuted_where_it_is(fault: OwnFault) -> None:
    result = decide(fault.task())
    assert result.verdict == "refuted"
    assert fault.is_located(result), fault.place(result)


def test_pairs_and_faults_have_different_names() -> None:
    assert len({pair.title for pair in PAIRS}) == len(PAIRS)
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    assert {*TRIED} <= {pair.title for pair in PAIRS}
