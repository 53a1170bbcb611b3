"""Programs are read in the types in which they run."""

from __future__ import annotations

import jax
import pytest
from torch import nn

from jax_transformer.parity import prove
from jax_transformer.proof.constants import ROUNDED
from proof.typed_pairs import PAIRS, SOUND, Layer, TypedPair, convolution

WITHOUT_GRADIENTS = ("a step of Adam", "an absolute value")
"""Pairs that are compared without gradients: these are gradients already, or divide by what may be zero."""


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_is_judged_rightly(pair: TypedPair) -> None:
    stages = ("forward",) if pair.name.startswith(WITHOUT_GRADIENTS) else ("forward", "gradients")
    with jax.enable_x64(pair.is_wide):
        certificate = prove(pair.candidate, pair.reference, inputs=pair.inputs, stages=stages)
    assert certificate.verdict == pair.verdict, str(certificate)
    if pair.verdict == "proven" and pair.needs_tables is not None:
        assert (ROUNDED in certificate.axioms) == pair.needs_tables


def test_pairs_have_different_names() -> None:
    assert len({pair.name for pair in PAIRS}) == len(PAIRS)


def test_the_largest_difference_is_listed_first() -> None:
    (pair,) = (each for each in PAIRS if each.name == "sinusoids")
    with jax.enable_x64(False):
        certificate = prove(pair.candidate, pair.reference, inputs=pair.inputs, stages=("forward",))
    first = certificate.axioms[ROUNDED][0]
    assert first.startswith("a table [1, 6, 8] by ")
    assert "typed_pairs.py:" in first


def test_a_kernel_that_nothing_trains_has_no_gradient() -> None:
    module = Layer(nn.Conv1d(4, 6, 3, padding=1))
    module.layer.weight.requires_grad_(False)
    with jax.enable_x64(False):
        certificate = prove(convolution([(1, 1)]), module, inputs=SOUND, stages=("forward",))
    assert certificate.verdict == "proven"
