"""Positions of padding that a side zeroes: a note if nothing that counts reads them, else a fault."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from fake_sides import CONFIG, LAYER, FakeSide, blamed, make_params, run_pair

from jax_transformer.comparison.sides import Arrays
from jax_transformer.config.model import TransformerConfig
from jax_transformer.parity.diagnosis.padding import ZERO, counting
from jax_transformer.parity.faults import Replay
from jax_transformer.parity.oracle import forward
from jax_transformer.parity.problems import Problem, own_problem
from jax_transformer.parity.run_results import Forward
from jax_transformer.parity.stages.forward import compare_forward

pytestmark = pytest.mark.usefixtures("quick_compilation")
OUTPUT = f"{LAYER}output"


def zeroed(replay: Replay) -> np.ndarray:
    real = replay.captured["source_ids"] != CONFIG.source_pad_id
    return replay.compute() * real[..., None]


def zeroed_but_once(replay: Replay) -> np.ndarray:
    value = zeroed(replay)
    value[0, 0, 0] *= 1.01
    return value


@pytest.mark.parametrize("side", ["candidate", "reference"])
def test_zeros_that_nothing_reads_are_a_note(side: str) -> None:
    sides = {"candidate": FakeSide(), "reference": FakeSide()} | {side: FakeSide(faults={OUTPUT: zeroed})}
    report = run_pair(**sides, stages=("masks", "forward"), dtypes=("float64", "float32"))
    assert (report.exit_code, report.faults) == (0, ()), str(report)
    assert [(note.side, note.finding.node, note.finding.cause) for note in report.notes] == [(side, OUTPUT, ZERO)]
    assert f"{ZERO}, at 1 node of the {side}: the same function" in " ".join(str(report).split())


def test_another_fault_is_still_found() -> None:
    report = run_pair(FakeSide(), FakeSide(faults={OUTPUT: zeroed_but_once}))
    assert blamed(report, "reference") == {OUTPUT: "unexplained"}


def compared(config: TransformerConfig, hidden: tuple[str, ...] = ()) -> Forward:
    params = make_params(config)
    problem = own_problem(config, params)
    right = forward(config, params, *problem.ids)
    real = (problem.source_ids != config.source_pad_id)[..., None]
    zeroes = {"encoder.output": right["encoder.output"] * real}
    other = forward(config, params, *problem.ids, replace=zeroes)
    shown = frozenset(right) - {*hidden}
    return compare_forward(
        config, problem, right, {name: other[name] for name in shown & {*other}}, look_at_reference=True, visible=shown
    )


def test_zeros_in_an_activation_that_is_not_shown_are_a_note() -> None:
    result = compared(CONFIG, hidden=("encoder.output", f"{LAYER}output", f"{LAYER}feed_forward_norm"))
    assert (result.forward.verdict, result.faults) == ("passed", ())
    assert {note.finding.node for note in result.notes} == {
        f"decoder.layers.{i}.cross_attention.{role}" for i in range(2) for role in ("key", "value")
    }


def test_zeros_that_a_token_attends_to_are_a_fault() -> None:
    result = compared(dataclasses.replace(CONFIG, cross_padding="none"))
    assert result.forward.verdict == "diverged"
    assert [fault.finding.node for fault in result.faults] == ["encoder.output"]


# --- effects


def in_fully_masked_rows(replay: Replay) -> np.ndarray:
    value = replay.compute()
    blind = ~replay.captured["mask.cross"].any(axis=-1, keepdims=True)
    return np.where(blind, 0.0, value)


def test_an_effect_is_taken_over_positions_that_count() -> None:
    report = run_pair(FakeSide(), FakeSide(faults={"decoder.layers.0.cross_attention.weights": in_fully_masked_rows}))
    assert {fault.finding.effect for fault in report.faults} == {"fully masked rows"}
    assert report.effect is not None
    assert report.effect.relative_rms < 1e-14
    assert (report.effect.changed, report.effect.divergence) == (0, 0.0)
    text = " ".join(str(report).split())
    assert f"the top-1 token changes at 0 of {report.effect.places} positions" in text
    assert "changes only fully masked rows, where a query sees no key" in text


def test_pads_and_sentences_without_a_source_do_not_count() -> None:
    problem: Problem = own_problem(CONFIG, make_params(CONFIG))
    counts = counting(dataclasses.replace(CONFIG, decoder_padding="keys"), *problem.ids)
    assert not counts[problem.decoder_input_ids == CONFIG.target_pad_id].any()
    assert not counts[5].any()
    assert counts[6].all()
    assert counting(dataclasses.replace(CONFIG, decoder_padding="none"), *problem.ids)[1, 0], "it may be the start"


def test_finding_counted_positions_leaves_ids_unchanged() -> None:
    arrays: Arrays = dict(zip("ab", own_problem(CONFIG, make_params(CONFIG)).ids, strict=True))
    before = {name: array.copy() for name, array in arrays.items()}
    counting(CONFIG, *arrays.values())
    assert all(np.array_equal(arrays[name], before[name]) for name in arrays)
