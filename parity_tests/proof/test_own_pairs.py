"""Whole programs of this library are proven to be one function, and no fault of the library is."""

from __future__ import annotations

import pytest

from jax_transformer.proof import decide
from proof.changed_library import ROOT
from proof.own_faults import FAULTS, MISPLACED, OwnFault
from proof.own_models import OwnPair
from proof.own_pairs import PAIRS

TRIED = (
    "layers in a scan, and unrolled: T5",
    "packed rows, and a row for each pair: post-norm",
    "a compiled step of 2 batches, and of one: post-norm",
    "adapters, and merged kernels: T5",
    "steps with a cache, and teacher forcing: T5",
    "beams that continue others, and their own tokens at once: post-norm",
    "products in bfloat16, and in float32: post-norm",
)
"""Pairs that stand for the others, which the command own_table.py proves."""


@pytest.mark.parametrize("pair", [each for each in PAIRS if each.title in TRIED], ids=lambda pair: pair.title)
def test_is_proven(pair: OwnPair) -> None:
    result = decide(pair.task())
    assert result.verdict == "proven", (result.reason, result.difference)
    assert not result.alone
    assert result.log2_error < -80


FAULTS_TRIED = ("a token's keys overwrite those before", "a packed decoder attends to the pair before")


@pytest.mark.parametrize("fault", [each for each in FAULTS if each.name in FAULTS_TRIED], ids=lambda fault: fault.name)
def test_a_fault_is_refuted_where_it_is(fault: OwnFault) -> None:
    result = decide(fault.task())
    assert result.verdict == "refuted"
    assert fault.is_located(result), fault.place(result)


def test_narrow_products_are_named() -> None:
    (pair,) = (each for each in PAIRS if each.title == TRIED[-1])
    task = pair.task()
    assert any("bfloat16" in cast for cast in task.candidate.narrowing)
    assert not task.reference.narrowing


def test_faults_change_one_place() -> None:
    for fault in FAULTS:
        source = (ROOT / fault.path).read_text(encoding="utf-8")
        assert source.count(fault.old) == 1, fault.name


def test_faults_are_expected_at_lines_that_there_are() -> None:
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "jax_transformer").rglob("*.py")]
    for fault in FAULTS:
        assert any(fault.at in source for source in sources), fault.name


def test_pairs_and_faults_have_different_names() -> None:
    assert len({pair.title for pair in PAIRS}) == len(PAIRS)
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    assert {*TRIED} <= {pair.title for pair in PAIRS}
    assert {*FAULTS_TRIED} <= {fault.name for fault in FAULTS}
    assert {*MISPLACED} <= {fault.name for fault in FAULTS}
