"""The adversary's own words: what it calls the same function, and a sample of its pairs."""

from __future__ import annotations

from itertools import islice

import pytest

from proof.adversary import Outcome, outcomes_of, pairs_of_rules
from proof.adversary_expressions import Expr, evaluate, points, truth_of
from proof.adversary_layers import written_pairs
from proof.adversary_mapped import mapped_pairs
from proof.adversary_pairs import DIFFERENT, NOWHERE, OTHER, SAME, TIED
from proof.adversary_rules import RULES, M, V, W
from proof.adversary_written import numbers_of

SAMPLE = 15


def test_there_are_more_than_500_pairs_of_every_kind():
    written = list(written_pairs())
    assert len(written) + sum(len(rule.equal) + len(rule.different) for rule in RULES) > 500
    assert len({pair.name for pair in written}) == len(written)
    assert {pair.frameworks for pair in written} >= {"JAX–JAX", "PyTorch–PyTorch", "JAX–PyTorch", "PyTorch–JAX"}
    assert {truth for pair in written for truth in pair.truth.values()} >= {SAME, DIFFERENT, OTHER, NOWHERE}
    assert {stage for pair in written for stage in pair.truth} == {"forward", "gradients", "step"}


def test_a_sample_of_pairs_gets_no_false_verdict():
    outcomes = [outcome for pair in islice(pairs_of_rules(0), SAMPLE) for outcome in outcomes_of(pair)]
    assert [outcome.name for outcome in outcomes if outcome.is_false] == []
    assert {outcome.verdict for outcome in outcomes} >= {"proven", "refuted"}


MAPPED = list(mapped_pairs())


@pytest.mark.parametrize("first", range(4))
def test_a_sample_of_programs_with_weights_of_their_own_gets_no_false_verdict(first: int):
    outcomes = [outcome for pair in MAPPED[first::24] for outcome in outcomes_of(pair)]
    assert [outcome.name for outcome in outcomes if outcome.is_false] == []
    assert len(MAPPED) > 200


def test_a_sample_of_layers_gets_no_false_verdict():
    sample = [pair for pair in written_pairs() if pair.area.startswith("layers")]
    outcomes = [outcome for pair in sample[::12] for outcome in outcomes_of(pair)]
    assert [outcome.name for outcome in outcomes if outcome.is_false] == []
    assert {outcome.verdict for outcome in outcomes} >= {"proven", "refuted"}


def test_verdicts_on_tied_weights_have_to_say_so():
    untied = [Outcome("", "", "", "", "forward", TIED, "proven", "", (), 0.0, "", "", said) for said in (True, False)]
    assert [outcome.is_false for outcome in untied] == [False, True]


@pytest.mark.parametrize(
    ("one", "two", "same", "same_domain", "defined"),
    [
        (W * W - V * V, (W - V) * (W + V), True, True, "everywhere"),
        (W * W - V * V, (W - V) * (W + V) + 1e-12, False, True, "everywhere"),
        (W.relu(), W.clip(value=(0.0, 1e6)), False, True, "everywhere"),
        (W.sqrt().square(), W, True, False, "partly"),
        (W.sqrt(), W.power(value=0.5), True, True, "partly"),
        ((-1 - W * W).sqrt(), W, True, False, "nowhere"),
        (W.times(M), W.times_t(M), False, True, "everywhere"),
    ],
)
def test_digits_tell_whether_two_expressions_are_one_function(one, two, same, same_domain, defined):
    truth = truth_of(one, two)
    assert (truth.same, truth.same_domain, truth.defined) == (same, same_domain, defined)


def test_a_branch_that_is_not_taken_may_be_undefined():
    chosen = W.where_gt(0, W.log(), V)
    rows = evaluate(chosen, next(points(0)))
    assert all(number is not None for row in rows for number in row)


def test_each_false_verdict_is_called_false():
    def outcome(truth: str, verdict: str) -> Outcome:
        return Outcome("", "", "", "", "forward", truth, verdict, "", (), 0.0, "", "")

    false = {
        (truth, verdict)
        for truth in (SAME, DIFFERENT, OTHER, NOWHERE)
        for verdict in ("proven", "refuted", "unknown")
        if outcome(truth, verdict).is_false
    }
    assert false == {
        (SAME, "refuted"),
        (DIFFERENT, "proven"),
        (OTHER, "proven"),
        (NOWHERE, "proven"),
        (NOWHERE, "refuted"),
    }


def test_numbers_agree_with_the_truth_of_pairs_by_hand():
    sample = [pair for pair in written_pairs() if pair.area in {"rotary", "convolutions", "optimizer steps"}][::8]
    assert len(sample) > 5
    for pair in sample:
        largest, _, count = numbers_of(pair)
        assert count, pair.name
        assert (largest < 1e-3) == (next(iter(pair.truth.values())) == SAME), pair.name


def test_an_expression_has_no_operation_that_is_not_in_the_language():
    with pytest.raises(AttributeError):
        _ = Expr("weight", value="w").cbrt
