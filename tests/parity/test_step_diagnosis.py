"""Diagnosis of optimizer steps: every fault of the catalogue is named, or said to be invisible on these gradients;
others are never named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from jax_transformer.comparison.gates.arrays import ParityError
from jax_transformer.parity.diagnosis.training import Step, explain_step, explain_steps, unseen_updates
from jax_transformer.parity.faults.training import pairs, update_variants
from jax_transformer.parity.oracle.updates import State, UpdateRule, initial_state, step

SEEDS, FEW_SEEDS = 20, 3
UNSEEN_AT_FIRST = "a second step, along other gradients"
SHAPES = {
    "source_embedding/embedding": (9, 6),
    "encoder/layers/self_attention/key/bias[0]": (3,),
    "encoder/layers/norm/scale[0]": (6,),
    "output/kernel": (6, 5),
    "output/bias": (5,),
}
KEY, TABLE, KERNEL = "encoder/layers/self_attention/key/bias[0]", "source_embedding/embedding", "output/kernel"
PADS = ((TABLE, 2),)


def noam(count: int) -> float:
    return 6**-0.5 * min((count + 1) ** -0.5, (count + 1) * 2000**-1.5)


RATES = (1e-2, 9e-3, 7e-3, 4e-3)
UPDATES = {
    "Adam": UpdateRule("adam", noam),
    "Adam, clipped, L2": UpdateRule(
        "adam", RATES, b2=0.999, eps=5e-9, weight_decay=5e-4, clip_norm=1.0, pad_rows=PADS, pad_rows_move="by_decay"
    ),
    "AdamW, clipped": UpdateRule(
        "adam",
        noam,
        weight_decay=0.1,
        weight_decay_kind="decoupled",
        clip_norm=1.0,
        clip_epsilon=0.0,
        decays_vectors=False,
        pad_rows=PADS,
        pad_rows_move="never",
    ),
    "SGD": UpdateRule("sgd", RATES, pad_rows=PADS),
    "SGD, momentum, clipped, L2": UpdateRule("sgd", RATES, momentum=0.9, weight_decay=0.01, clip_norm=1.0),
    "SGD, momentum, decoupled": UpdateRule(
        "sgd", RATES, momentum=0.9, weight_decay=0.01, weight_decay_kind="decoupled"
    ),
}


def made(
    rule: UpdateRule, seed: int = 0, steps: int = 3, change: Callable[[dict[str, np.ndarray]], None] | None = None
) -> tuple[State, list[Step]]:
    """Where a side begins, and its steps along gradients whose norms are about 1 … 30; `change`: of its updates, in
    place."""
    rng = np.random.default_rng(seed)
    before = state = initial_state({path: rng.standard_normal(shape) for path, shape in SHAPES.items()})
    steps_made = []
    for size in 10.0 ** rng.uniform(-1, 0.4, steps):
        gradients = {path: size * rng.standard_normal(shape) for path, shape in SHAPES.items()}
        after = step(rule, state, gradients)
        if change:
            updates = {path: after.parameters[path] - state.parameters[path] for path in SHAPES}
            change(updates)
            after = replace(after, parameters={path: state.parameters[path] + updates[path] for path in SHAPES})
        steps_made.append(Step(gradients, after.parameters))
        state = after
    return before, steps_made


def test_the_usual_faults_of_steps_are_in_the_catalogue() -> None:
    names = {variant.name for rule in UPDATES.values() for variant in update_variants(rule)}
    assert names >= {
        "clipping missing",
        "clipped by norm + 1e-6",
        "clipped by the norm, without + 1e-6",
        "clipped parameter by parameter",
        "ε inside the root",
        "no bias correction",
        "β₁ and β₂ swapped",
        "decay missing",
        "decoupled decay for L2",
        "L2 decay for decoupled",
        "schedule a step early",
        "schedule a step late: the first rate twice",
        "pad row updated",
        "pad row not updated",
        "maximises: the step has the other sign",
    }


@pytest.mark.parametrize("name", UPDATES)
def test_every_fault_of_a_step_is_named_alone(name: str) -> None:
    """From three steps; what they can't show is said beforehand: nothing here."""
    rule = UPDATES[name]
    assert unseen_updates(rule, *made(rule)) == {}
    assert len(update_variants(rule)) >= 8
    for variant in update_variants(rule):
        (finding,) = explain_steps(rule, *made(variant.of(rule)))
        assert (finding.kind, finding.cause, finding.told_apart_by) == ("update", variant.name, "")
        assert finding.node in ("step", TABLE if variant.name.startswith("pad row") else "step")
        assert finding.matches[0].residual < 1e-10 < finding.local_error
        assert finding.runner_up is not None


@pytest.mark.parametrize("name", UPDATES)
def test_a_single_step_hides_some_faults_and_says_which(name: str) -> None:
    """A fault is named, among others or alone; or nothing is found, and it is among those that can't be seen on these
    gradients."""
    rule, unseen = UPDATES[name], unseen_updates(UPDATES[name], *made(UPDATES[name], steps=1))
    assert "schedule a step late: the first rate twice" in unseen
    for variant in update_variants(rule):
        before, (only,) = made(variant.of(rule), steps=1)
        findings = explain_step(rule, before, *only)
        assert (variant.name in unseen) == (findings == [])
        for finding in findings:
            assert variant.name in [match.variant for match in finding.matches]
            assert (len(finding.matches) > 1) == (finding.told_apart_by != "")


def test_a_single_step_of_adam_hides_some_faults() -> None:
    """It is the rate times the gradient's sign, whatever β₂ is and nearly whatever the clip."""
    rule = UPDATES["Adam, clipped, L2"]
    unseen = unseen_updates(rule, *made(rule, steps=1))
    assert {unseen[name] for name in ("β₁ and β₂ swapped", "β₂ = 0.98")} == {UNSEEN_AT_FIRST}
    assert (
        unseen["clipped by the norm, without + 1e-6"]
        == "gradients whose norm exceeds the clip, by another factor in each step"
    )
    before, (only,) = made(replace(rule, clip_norm=0.0), seed=4, steps=1)
    (finding,) = explain_step(rule, before, *only)
    assert finding.cause == "clipping missing or clipped value by value"
    assert finding.told_apart_by == "gradients with values above the clip"


def test_constant_rates_hide_the_schedule() -> None:
    rule = UpdateRule("adam", (1e-3,) * 4)
    unseen = unseen_updates(rule, *made(rule))
    assert unseen == dict.fromkeys(
        ("schedule a step early", "schedule a step late: the first rate twice"), "rates that change from step to step"
    )
    short = replace(rule, rates=(1e-3,) * 3)  # whose next rate nobody knows
    assert unseen_updates(short, *made(short)).keys() == {"schedule a step late: the first rate twice"}


def test_later_steps_are_explained_from_the_rules_own_state() -> None:
    """Where the bias correction has ended, its absence can't be seen."""
    rule = UpdateRule("adam", (1e-3,) * 2000, b1=0.5, b2=0.6)
    before, steps = made(rule, steps=500)
    state = before
    for each in steps[:-3]:
        state = step(rule, state, each.gradients)
    assert explain_steps(rule, state, steps[-3:]) == []
    assert {"no bias correction", "bias correction a step ahead"} <= unseen_updates(rule, state, steps[-3:]).keys()


@pytest.mark.parametrize("name", UPDATES)
def test_two_faults_of_a_step_at_once(name: str) -> None:
    rule = UPDATES[name]
    every = list(pairs(update_variants(rule)))
    for variant in [every[i] for i in np.random.default_rng(0).choice(len(every), 5, replace=False)]:
        findings = explain_steps(rule, *made(variant.of(rule)))
        assert findings
        causes = {match.variant for finding in findings for match in finding.matches}
        assert variant.name in causes or all(", and " not in cause for cause in causes), (variant.name, causes)
        assert causes


@pytest.mark.parametrize("name", UPDATES)
def test_steps_without_faults_have_none(name: str) -> None:
    """Nor where parameters are rounded otherwise."""
    rng = np.random.default_rng(0)

    def change(updates: dict[str, np.ndarray]) -> None:
        for update in updates.values():
            update += 2.0**-54 * rng.uniform(-1.0, 1.0, update.shape)

    for seed in range(SEEDS):
        assert explain_steps(UPDATES[name], *made(UPDATES[name], seed, change=change)) == []


def test_a_key_bias_may_move_as_it_likes() -> None:
    def change(updates: dict[str, np.ndarray]) -> None:
        updates[KEY] *= -3.0

    assert explain_steps(UPDATES["Adam"], *made(UPDATES["Adam"], change=change)) == []


# --- steps that are in no catalogue


@pytest.mark.parametrize("name", UPDATES)
def test_another_rate_is_found_and_not_named(name: str) -> None:
    def change(updates: dict[str, np.ndarray]) -> None:
        for update in updates.values():
            update *= 1.01

    for seed in range(FEW_SEEDS):
        (finding,) = explain_steps(UPDATES[name], *made(UPDATES[name], seed, change=change))
        assert (finding.node, finding.cause) == ("step", "unexplained")
        assert finding.local_error == pytest.approx(0.01, rel=1e-6)
        assert finding.runner_up is not None


@pytest.mark.parametrize("name", UPDATES)
def test_a_wrongly_updated_row_is_located(name: str) -> None:
    def change(updates: dict[str, np.ndarray]) -> None:
        updates[KERNEL][3] *= 1.01

    for seed in range(FEW_SEEDS):
        findings = explain_steps(UPDATES[name], *made(UPDATES[name], seed, change=change))
        assert [(finding.node, finding.cause) for finding in findings] == [(KERNEL, "unexplained")]


@pytest.mark.parametrize("name", UPDATES)
def test_parameters_that_stay_or_move_twice_as_far(name: str) -> None:
    """Each under its path; other faults of single parameters by their names."""

    def change(updates: dict[str, np.ndarray]) -> None:
        updates["encoder/layers/norm/scale[0]"] *= 0.0
        updates["output/bias"] *= 2.0

    findings = explain_steps(UPDATES[name], *made(UPDATES[name], change=change))
    assert [(finding.node, finding.cause) for finding in findings] == [
        ("encoder/layers/norm/scale[0]", "not updated"),
        ("output/bias", "moves twice as far"),
    ]


def test_nothing_is_updated() -> None:
    def change(updates: dict[str, np.ndarray]) -> None:
        for update in updates.values():
            update *= 0.0

    (finding,) = explain_steps(UPDATES["Adam"], *made(UPDATES["Adam"], change=change))
    assert (finding.node, finding.cause) == ("step", "not updated")


@pytest.mark.parametrize("name", ["Adam", "Adam, clipped, L2", "SGD, momentum, clipped, L2"])
def test_a_cause_for_most_does_not_hide_the_rest(name: str) -> None:
    def change(updates: dict[str, np.ndarray]) -> None:
        updates["output/bias"] *= 0.0

    rule = UPDATES[name]
    (fault,) = (variant for variant in update_variants(rule) if variant.name == "schedule a step early")
    findings = explain_steps(rule, *made(fault.of(rule), change=change))
    assert [(finding.node, finding.cause) for finding in findings] == [
        ("step", fault.name),
        ("output/bias", "not updated"),
    ]


def test_a_parameter_with_another_rule_is_named_by_it() -> None:
    """An embedding that isn't decayed."""
    rule = UPDATES["AdamW, clipped"]
    before, steps = made(rule)
    _, others = made(replace(rule, weight_decay=0.0))
    mixed = [
        Step(one.gradients, {**one.after, TABLE: other.after[TABLE]}) for one, other in zip(steps, others, strict=True)
    ]
    (finding,) = explain_steps(rule, before, mixed)
    assert (finding.node, finding.cause) == (TABLE, "decay missing")


def test_most_parameters_with_another_rule_are_listed() -> None:
    """And the one that is right isn't."""
    rule = UPDATES["Adam"]
    before, steps = made(rule)
    _, others = made(replace(rule, eps_inside_root=True))
    mixed = [
        Step(one.gradients, {**other.after, TABLE: one.after[TABLE]}) for one, other in zip(steps, others, strict=True)
    ]
    findings = explain_steps(rule, before, mixed)
    assert {finding.node for finding in findings} == SHAPES.keys() - {KEY, TABLE}
    assert {finding.cause for finding in findings} == {"ε inside the root"}


def test_updates_that_are_not_finite() -> None:
    def change(updates: dict[str, np.ndarray]) -> None:
        updates[KERNEL][0, 0] = np.nan

    before, steps = made(UPDATES["SGD"], steps=1, change=change)
    (finding,) = explain_steps(UPDATES["SGD"], before, steps)
    assert (finding.node, finding.cause, finding.local_error, finding.runner_up) == (
        KERNEL,
        "unexplained",
        np.inf,
        None,
    )


# --- what isn't three steps of one side


def test_invalid_steps_are_refused() -> None:
    rule = UPDATES["SGD"]
    before, steps = made(rule)
    with pytest.raises(ParityError, match="expected optimizer steps to explain; received none"):
        explain_steps(rule, before, [])
    with pytest.raises(ParityError, match="a learning rate for each step up to step 3; the schedule has fewer"):
        explain_steps(replace(rule, rates=(0.1, 0.2)), before, steps)
    without = {path: array for path, array in steps[1].gradients.items() if path != KERNEL}
    with pytest.raises(
        ParityError, match=f"step 2: expected gradients of the same parameters as before; only in one: {KERNEL}"
    ):
        explain_steps(rule, before, [steps[0], Step(without, steps[1].after)])
    single = {path: array.astype(np.float32) for path, array in steps[0].after.items()}
    with pytest.raises(
        ParityError, match=r"step 1: parameters after it: .*: expected float64 of shape .* received float32"
    ):
        unseen_updates(rule, before, [Step(steps[0].gradients, single)])
    turned = {path: array.T for path, array in steps[0].gradients.items()}
    with pytest.raises(
        ParityError, match=r"step 1: gradients: .* expected float64 of shape \[9, 6\], .* of shape \[6, 9\]"
    ):
        explain_steps(rule, before, [Step(turned, steps[0].after)])
