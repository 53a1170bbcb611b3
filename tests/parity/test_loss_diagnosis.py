"""Diagnosis of losses: every fault of the catalogue is named, or said to be invisible on these inputs; others are never
named."""

from __future__ import annotations

import numpy as np
import pytest

from jax_transformer.parity.diagnosis.training import explain_loss, unseen_losses
from jax_transformer.parity.faults.training import SMOOTHED, loss_variants, pairs
from jax_transformer.parity.oracle.losses import LossRule, loss

SEEDS, FEW_SEEDS = 20, 3
PAD = 2
LOSSES = {
    "plain": LossRule(PAD),
    "smoothed": LossRule(PAD, 0.1),
    "fairseq's": LossRule(PAD, 0.1, "others"),
    "divergence": LossRule(PAD, 0.1, "others_but_pad"),
    "pads counted": LossRule(PAD, counts_pads=True),
    "summed": LossRule(PAD, 0.2, mean_over="sum"),
}


def logits_and_labels(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """[4, 6, 11] and [4, 6]: pads on the right, on the left and inside, every special id, and a label that never
    counts."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(3, 11, (4, 6))
    labels[0, 4:] = labels[1, :2] = labels[1, 3] = labels[2, 1:] = PAD
    labels[3, :3] = 0, 1, 3
    labels[0, 0] = -1
    return 3.0 * rng.standard_normal((4, 6, 11)), labels


@pytest.mark.parametrize("name", LOSSES)
def test_every_fault_of_a_loss_is_named_alone(name: str) -> None:
    rule, (logits, labels) = LOSSES[name], logits_and_labels()
    assert unseen_losses(rule, logits, labels) == {}
    assert len(loss_variants(rule)) >= 18
    for variant in loss_variants(rule):
        finding = explain_loss(rule, logits, labels, loss(variant.of(rule), logits, labels))
        assert finding is not None
        assert (finding.node, finding.kind, finding.cause, finding.told_apart_by) == ("loss", "loss", variant.name, "")
        assert finding.matches[0].residual <= 1e-12 < 1e-9 < finding.local_error
        assert finding.runner_up is not None
        assert finding.runner_up.residual > 1e-9


@pytest.mark.parametrize("name", LOSSES)
def test_two_faults_of_a_loss_at_once(name: str) -> None:
    """Explained by these two, unless fewer or others do the same."""
    rule, (logits, labels) = LOSSES[name], logits_and_labels()
    every = list(pairs(loss_variants(rule)))
    for variant in [every[i] for i in np.random.default_rng(0).choice(len(every), 20, replace=False)]:
        received = loss(variant.of(rule), logits, labels)
        finding = explain_loss(rule, logits, labels, received)
        assert finding is not None
        named = {each.name: each for each in [*loss_variants(rule), *every]}
        for match in finding.matches:
            np.testing.assert_allclose(loss(named[match.variant].of(rule), logits, labels), received, rtol=1e-12)
        assert variant.name in finding.cause or all(", and " not in match.variant for match in finding.matches), (
            variant.name
        )
        assert finding.matches


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_without_faults_has_none(name: str) -> None:
    """Nor where orders of summation differ."""
    rule = LOSSES[name]
    for seed in range(SEEDS):
        logits, labels = logits_and_labels(seed)
        turned = np.random.default_rng(seed).permutation(4)
        assert explain_loss(rule, logits, labels, loss(rule, logits[turned], labels[turned])) is None


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("factor", [1.01, 0.99, 1.0 + 1e-9])
def test_a_loss_that_is_in_no_catalogue_is_not_named(name: str, factor: float) -> None:
    for seed in range(FEW_SEEDS):
        logits, labels = logits_and_labels(seed)
        finding = explain_loss(LOSSES[name], logits, labels, factor * loss(LOSSES[name], logits, labels))
        assert finding is not None
        assert (finding.cause, finding.matches) == ("unexplained", ())
        assert finding.local_error == pytest.approx(abs(factor - 1.0), rel=1e-5)
        assert finding.runner_up is not None


def test_a_loss_of_nan_is_not_named() -> None:
    logits, labels = logits_and_labels()
    for received in (float("nan"), float("inf")):
        finding = explain_loss(LossRule(PAD), logits, labels, received)
        assert finding is not None
        assert (finding.cause, finding.local_error, finding.runner_up) == ("unexplained", np.inf, None)


def test_a_loss_on_inputs_that_hide_faults() -> None:
    """One sentence without pads: invisible faults are named, and similar ones are distinguished by another input."""
    logits, labels = logits_and_labels()
    logits, labels = logits[3:], labels[3:]
    unseen = unseen_losses(LossRule(PAD), logits, labels)
    assert unseen["pads counted"] == "labels with pads"
    assert unseen["mean over sentences"] == "sentences of different lengths"
    assert unseen.keys() == {"pads counted", "mean over sentences", "sum divided by all positions"}
    finding = explain_loss(LossRule(PAD), logits, labels, loss(LossRule(PAD, mean_over="sum"), logits, labels))
    assert finding is not None
    assert finding.cause == "summed rather than averaged or sum divided by the number of sentences"
    assert finding.told_apart_by == "several sentences"


def test_every_kind_of_smoothing_is_named() -> None:
    logits, labels = logits_and_labels()
    values = {loss(LossRule(PAD, 0.1, smoothing, subtracts_entropy=False), logits, labels) for smoothing in SMOOTHED}
    assert len(values) == len(SMOOTHED)


def test_the_usual_faults_of_losses_are_in_the_catalogue() -> None:
    names = {variant.name for rule in LOSSES.values() for variant in loss_variants(rule)}
    assert names >= {
        "pads counted",
        "mean over sentences",
        "summed rather than averaged",
        "smoothing missing",
        "smoothing: ε/V on every other entry",
        "smoothing: ε/(V − 1) on every other entry",
        "smoothing: ε/(V − 2) on every other entry",
        "softmax before the log-softmax",
        "labels late by one: compared with the logits before",
        "labels early by one: compared with the logits after",
    }
