"""Faults of the loss, of optimizer steps and of decoding: what a side with one would give is computed of its right
logits and gradients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from jax_transformer.comparison.findings import Finding
from jax_transformer.comparison.gates.tolerances import FLOAT64_RELATIVE_RMS
from jax_transformer.parity.backends.side import layer_by_layer
from jax_transformer.parity.diagnosis.decoding import explain_decoding
from jax_transformer.parity.diagnosis.training import Step, explain_loss, explain_steps
from jax_transformer.parity.faults.decoding import DecodingProblem
from jax_transformer.parity.faults.training import loss_variants, update_variants
from jax_transformer.parity.oracle.decoding import DecodeRule
from jax_transformer.parity.oracle.losses import LossRule, loss
from jax_transformer.parity.oracle.updates import State, UpdateRule, initial_state, step
from jax_transformer.parity.rules import SETUP
from jax_transformer.parity.stages.training import STEPS, update_rule
from jax_transformer.runtime.trees import flatten
from selftest.matrix import Kill, Prepared

ROUNDING = 1e-14
"""Of scores: what is masked or left out is summed in another order."""
OFF = 1.01
"""A constant that is off by 1 %, which no catalogue has."""


def later_kills(system: Prepared, seed: int = 0) -> Iterator[Kill]:
    """Every known fault of these stages in one system, and some unknown ones."""
    yield from _losses(system)
    yield from _steps(system, np.random.default_rng([seed, 1]))
    yield from _decoding(system)


def _losses(system: Prepared) -> Iterator[Kill]:
    problem, logits = system.problems[1], system.right[1]["logits"]
    rule = LossRule(system.model.config.target_pad_id, SETUP.label_smoothing, SETUP.smoothing)
    right = loss(rule, logits, problem.labels)
    for variant in loss_variants(rule):
        wrong = loss(variant.of(rule), logits, problem.labels)
        yield _judged(system, variant.name, "loss", wrong == right, [explain_loss(rule, logits, problem.labels, wrong)])
    yield _judged(
        system,
        "the loss is 1 % too large",
        "loss",
        False,
        [explain_loss(rule, logits, problem.labels, OFF * right)],
        known=False,
    )


def _steps(system: Prepared, rng: np.random.Generator) -> Iterator[Kill]:
    rule = update_rule(system.model.config)
    parameters, gradients = _drawn(system, rng)
    before = initial_state(parameters)
    right = _made(rule, before, gradients)
    for variant in update_variants(rule):
        wrong = _made(variant.of(rule), before, gradients)
        yield _judged(system, variant.name, "step", _equal(wrong, right), explain_steps(rule, before, wrong))
    faster = replace(
        rule,
        rates=tuple(OFF * rule.rates[i] for i in range(STEPS + 1)) if isinstance(rule.rates, tuple) else rule.rates,
    )
    wrong = _made(faster, before, gradients)
    yield _judged(
        system, "the learning rate is 1 % too high", "step", False, explain_steps(rule, before, wrong), known=False
    )


def _drawn(system: Prepared, rng: np.random.Generator) -> tuple[dict[str, np.ndarray], list[dict[str, np.ndarray]]]:
    """The system's parameters, and gradients of very different sizes for each step."""
    leaves = {path: np.asarray(leaf, np.float64) for path, leaf in flatten(system.model.params).items()}
    parameters = layer_by_layer({path: leaf for path, leaf in leaves.items() if not path.startswith("constants/")})
    sizes = {path: 10.0 ** rng.uniform(-4, 0) for path in parameters}
    gradients = [
        {path: sizes[path] * rng.standard_normal(array.shape) for path, array in parameters.items()}
        for _ in range(STEPS)
    ]
    return parameters, gradients


def _made(rule: UpdateRule, before: State, gradients: Sequence[dict[str, np.ndarray]]) -> list[Step]:
    steps, state = [], before
    for one in gradients:
        state = step(rule, state, one)
        steps.append(Step(one, state.parameters))
    return steps


def _equal(first: Sequence[Step], second: Sequence[Step]) -> bool:
    return all(
        np.array_equal(one.after[path], other.after[path])
        for one, other in zip(first, second, strict=True)
        for path in one.after
    )


def _decoding(system: Prepared) -> Iterator[Kill]:
    model, problem = system.model, system.problems[1]
    source_ids = problem.source_ids[(problem.source_ids != model.config.source_pad_id).any(axis=1)]
    for beam_size in (1, 4):
        rule = DecodeRule(
            beam_size=beam_size,
            max_new_tokens=min(12, model.config.decoder.max_length),
            decoder_start_id=0,
            eos_id=1,
            pad_id=model.config.target_pad_id,
        )
        decoding = DecodingProblem.for_model(rule, model.config, problem.params, source_ids)
        truth = decoding.truth
        for outcome in decoding.outcomes:
            received = outcome.decoded
            same = np.array_equal(received.sequences, truth.sequences) and np.allclose(
                received.scores, truth.scores, ROUNDING, ROUNDING
            )
            explained = explain_decoding(
                decoding, received.sequences, received.scores, logit_floor=FLOAT64_RELATIVE_RMS
            )
            name = f"{outcome.variant.name}, {'greedy' if beam_size == 1 else f'{beam_size} beams'}"
            kill = _judged(
                system, name, "decode", same or bool(explained.forgiven and not explained.finding), [explained.finding]
            )
            yield replace(kill, named=outcome.variant.name in kill.causes)


def _judged(
    system: Prepared, name: str, stage: str, same: bool, findings: Sequence[Finding | None], *, known: bool = True
) -> Kill:
    found = [finding for finding in findings if finding is not None]
    causes = tuple(match.variant for finding in found for match in finding.matches)
    fate: Any = "equivalent" if same else "found" if found else "missed"
    return Kill(
        system.name, name, known, stage, stage, fate, bool(found) and not same, name in causes, causes, "random weights"
    )
