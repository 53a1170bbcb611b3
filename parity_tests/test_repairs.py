"""Faults of the catalogue as programs: the search for a proven repair finds some by itself, and no cause is counted as
the same that isn't."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from selftest.by_repair import Subject, Trial
from selftest.injections import known_faults
from selftest.run import one_thread
from selftest.same_cause import COLUMNS, cells_of, entry_of, is_same_cause, summarize


@pytest.fixture(scope="module")
def subject() -> Iterator[Subject]:
    with one_thread():
        yield Subject("stepwise_masks")


def tried(subject: Subject, fault: str, node: str) -> Trial:
    injections = known_faults(subject.config, np.random.default_rng(0))
    return subject.tried(next(each for each in injections if (each.name, each.node.name) == (fault, node)))


def test_a_right_node_in_numpy_is_proven(subject: Subject) -> None:
    trial = tried(subject, "masked logits are -1e+30", "encoder.layers.0.self_attention.logits")
    assert trial.fate == "proven", trial


def test_a_fault_is_found_at_its_activation(subject: Subject) -> None:
    trial = tried(subject, "residual doubled", "decoder.layers.0.self_attention_residual")
    assert (trial.fate, trial.same_place, trial.kinds) == ("refuted", True, ("left out",)), trial
    assert not is_same_cause(trial)  # a product is too much: that doesn't say by which number
    assert trial.named


def test_a_fault_that_reads_numbers_is_no_program(subject: Subject) -> None:
    trial = tried(subject, "rounded to bfloat16", "decoder.layers.0.self_attention.output")
    assert trial.fate == "no program"
    assert "Error: " in trial.reason


def trial_of(fault: str, kinds: tuple[str, ...], text: str, *, same_place: bool = True) -> Trial:
    return Trial(fault, "a system", "a node", "refuted", repair=text, kinds=kinds, same_place=same_place)


def test_only_what_says_the_same_counts() -> None:
    said = "a.py:1 has 1e-06, b.py:2 has 1e-05; with 1e-05, the two are proven the same"
    assert is_same_cause(trial_of("norm: ε = 1e-06", ("constant",), said))
    assert not is_same_cause(trial_of("norm: ε = 1e-08", ("constant",), said))
    assert not is_same_cause(trial_of("norm: ε = 1e-06", ("constant",), said, same_place=False))
    assert not is_same_cause(trial_of("norm: ε = 1e-06, and RMS without centring", ("constant",), said))
    assert not is_same_cause(trial_of("residual dropped", ("operand",), "a.py:1 reads another value than b.py:2"))
    norm = "b.py:2 applies native_layer_norm, and a.py:1 doesn't"
    assert not is_same_cause(trial_of("norm: bias dropped", ("missing",), norm))
    assert is_same_cause(trial_of("norm: bias dropped", ("missing",), "b.py:2 applies add, and a.py:1 doesn't"))
    weights = "a.py:1 reads n2.bias, b.py:2 reads n1.bias; a.py:1 reads n2.scale, b.py:2 reads n1.scale"
    assert is_same_cause(trial_of("parameters of feed_forward_norm", ("weight", "weight"), weights))
    table = "a.py:1 reads another table [3, 4] than b.py:2"
    assert not is_same_cause(trial_of("rotary: base 500 instead of 10,000", ("constant",), table))


def test_entries_are_names_without_numbers() -> None:
    assert entry_of("norm: ε = 1e-06") == "norm: ε = n"
    assert entry_of("norm: ε = 0, and variance over D") == "norm: two of these"
    assert entry_of("-1e+20 added to masked logits") == "n added to masked logits"


def test_the_summary_counts_faults_and_entries() -> None:
    said = "a.py:1 has 1e-06, b.py:2 has 1e-05; with 1e-05, the two are proven the same"
    trials = [trial_of(f"norm: ε = {eps}", ("constant",), said) for eps in ("1e-06", "1e-08")]
    rows = [dict(zip(COLUMNS, cells_of(trial), strict=True)) for trial in trials]
    lines = list(summarize(rows))
    assert "| refuted | 2 | 1 |" in lines
    assert "| the same cause | 1 | 0 |" in lines
