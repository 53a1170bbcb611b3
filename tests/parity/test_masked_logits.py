"""Masked logits count by the weights that they leave, and fully masked rows for themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from fake_sides import CONFIG, NORM, FakeSide, blamed, own_params, run_pair

from jax_transformer.comparison.gates.compare import relative_rms
from jax_transformer.comparison.report.report import Report
from jax_transformer.parity.diagnosis.nodes import diagnose, with_ids
from jax_transformer.parity.faults import Replay
from jax_transformer.parity.oracle import formulas, forward
from jax_transformer.parity.problems import own_problem, with_keys_for_all

pytestmark = pytest.mark.usefixtures("quick_compilation")

LOGITS, OTHER = "decoder.layers.1.self_attention.logits", "decoder.layers.0.self_attention.logits"
WEIGHTS = "decoder.layers.1.cross_attention.weights"
BLIND = "fully masked rows"


def filled(value: float) -> Callable[[Replay], np.ndarray]:
    return lambda replay: replay.under(masked_value=value)


def added(value: float) -> Callable[[Replay], np.ndarray]:
    return lambda replay: replay.without_mask + np.where(replay.inputs["mask"], 0.0, value)


def zeroed(replay: Replay) -> np.ndarray:
    """As PyTorch's scaled_dot_product_attention gives a query that sees no key."""
    blind = (replay.inputs["logits"] <= -5000.0).all(axis=-1, keepdims=True)
    return np.where(blind, 0.0, replay.own)


def inverted(replay: Replay) -> np.ndarray:
    return replay.compute({"mask": ~replay.inputs["mask"]})


def unscaled(replay: Replay) -> np.ndarray:
    return replay.under(scale=1.0, masked_value=-1e30)


def noted(report: Report) -> dict[str, str]:
    return {note.finding.node: note.finding.matches[0].variant for note in report.notes}


def changed(report: Report) -> set[str]:
    return {fault.finding.effect for fault in report.faults}


@pytest.mark.parametrize("value", [-1e30, -1e9, -1e4, -12345.0, -100.0, float(np.float32(-1e30))])
def test_another_fill_is_the_same_function_and_noted(value: float) -> None:
    report = run_pair(FakeSide(), FakeSide(faults={LOGITS: filled(value)}))
    assert report.exit_code == 0, str(report)
    assert noted(report) == {LOGITS: f"masked logits are {value:g}"}
    assert f"masked logits are {value:g}, at 1 node of the reference: the same function" in " ".join(
        str(report).split()
    )


def test_the_own_fill_is_not_noted() -> None:
    assert run_pair(FakeSide(), FakeSide()).notes == ()


@pytest.mark.parametrize("value", [0.0, -5.0])
def test_a_fill_that_leaves_weight_is_a_fault(value: float) -> None:
    report = run_pair(FakeSide(faults={LOGITS: filled(value)}), FakeSide())
    assert (report.exit_code, changed(report)) == (1 if value == 0.0 else 4, {"function"})


BLIND_ROWS = {
    LOGITS: (added(-1e9), "-1e+09 added to masked logits"),
    OTHER: (filled(-np.inf), "masked logits are -inf"),
    WEIGHTS: (zeroed, "zero weights in fully masked rows"),
}


@pytest.mark.parametrize("node", BLIND_ROWS)
def test_fully_masked_rows_are_a_separate_divergence_that_can_be_allowed(node: str) -> None:
    compute, cause = BLIND_ROWS[node]
    report = run_pair(FakeSide(faults={node: compute}), FakeSide())
    assert (report.exit_code, changed(report)) == (1, {BLIND})
    assert cause in blamed(report)[node]
    assert "--allow fully-masked accepts that" in " ".join(str(report).split())
    assert run_pair(FakeSide(faults={node: compute}), FakeSide(), allow=["fully-masked"]).exit_code == 0


def test_an_allowance_hides_no_other_fault() -> None:
    faults = {WEIGHTS: zeroed, NORM: lambda replay: replay.under(eps=1e-6)}
    report = run_pair(FakeSide(faults=faults), FakeSide(), allow=["fully-masked"])
    assert (report.exit_code, blamed(report)) == (1, {NORM: "norm: ε = 1e-06"})
    report = run_pair(FakeSide(faults=faults), FakeSide())
    assert blamed(report) == {NORM: "norm: ε = 1e-06", WEIGHTS: "zero weights in fully masked rows"}


def test_problems_keep_all_padding_that_leaves_keys() -> None:
    problem = own_problem(CONFIG, own_params())
    filled = with_keys_for_all(CONFIG, problem)
    masks = [
        formulas.encoder_self_mask(CONFIG.encoder.self_attention, CONFIG.source, filled.source_ids),
        formulas.decoder_self_mask(CONFIG.decoder.self_attention, CONFIG.target, filled.decoder_input_ids),
        formulas.cross_mask(CONFIG.decoder.cross_attention, CONFIG.source, CONFIG.target, *filled.ids),
    ]
    assert all(mask.any(axis=-1).all() for mask in masks)
    changed = [np.flatnonzero((one != other).any(axis=1)) for one, other in zip(problem.ids, filled.ids, strict=True)]
    assert [rows.tolist() for rows in changed] == [[5], [1]]
    assert (filled.source_ids == CONFIG.source_pad_id).any()
    assert (filled.decoder_input_ids == CONFIG.target_pad_id).any()


def test_faults_of_logits_are_named_despite_another_fill() -> None:
    report = run_pair(FakeSide(faults={LOGITS: unscaled, OTHER: filled(-1e30)}), FakeSide())
    assert (report.exit_code, blamed(report)) == (1, {LOGITS: "scale missing"})
    assert list(noted(report)) == [] or list(noted(report)) == [OTHER]


def test_a_mask_inverted_in_one_attention() -> None:
    report = run_pair(FakeSide(faults={LOGITS: inverted}), FakeSide())
    assert (report.exit_code, blamed(report)) == (1, {LOGITS: "mask inverted, in this attention alone"})


def test_a_mask_that_differs_only_in_fully_masked_rows() -> None:
    """Pads as queries see keys that they shouldn't; that is no other fill, and no mask that is right here fits."""
    config = replace(CONFIG, decoder_padding="both")
    problem = own_problem(config, own_params())
    right = forward(config, problem.params, *problem.ids)
    as_keys = forward(replace(config, decoder_padding="keys"), problem.params, *problem.ids)["mask.decoder_self"]
    hidden = formulas.masked_value(config.decoder.self_attention)
    unmasked = forward(replace(config, decoder_padding="none", decoder_causal=False), problem.params, *problem.ids)
    assert (as_keys | right["mask.decoder_self"] == as_keys).all()
    trace = forward(config, problem.params, *problem.ids, replace={OTHER: np.where(as_keys, unmasked[OTHER], hidden)})
    (finding,) = diagnose(config, problem.params, with_ids(trace, *problem.ids))
    assert (finding.node, finding.effect) == (OTHER, BLIND)
    assert [match.variant for match in finding.matches] == ["pads masked as keys, in this attention alone"]


def test_weights_that_round_more_are_no_fault() -> None:
    """exp(s − logsumexp(s)) is as uncertain as s is large."""
    problem = own_problem(CONFIG, own_params())
    right = forward(CONFIG, problem.params, *problem.ids)
    key, weights = (OTHER.replace("logits", part) for part in ("key", "weights"))
    large = forward(CONFIG, problem.params, *problem.ids, replace={key: right[key] + 1e5})  # the same in each row
    logits = large[OTHER]
    highest = logits.max(axis=-1, keepdims=True)
    by_logarithm = np.exp(logits - (np.log(np.exp(logits - highest).sum(axis=-1, keepdims=True)) + highest))
    by_logarithm = np.where(highest <= -1e300, large[weights], by_logarithm)
    assert relative_rms(by_logarithm, large[weights]) > 1e-12
    for factor, found in ((1.0, [key]), (1.0 + 1e-8, [key, weights])):
        replaced = {key: large[key], weights: factor * by_logarithm}
        trace = forward(CONFIG, problem.params, *problem.ids, replace=replaced)
        findings = diagnose(CONFIG, problem.params, with_ids(trace, *problem.ids))
        assert [finding.node for finding in findings] == found
