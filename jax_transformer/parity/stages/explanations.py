"""Why losses, gradients, optimizer steps or decoded tokens differ: each side is judged by its own logits and
gradients."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import ml_dtypes
import numpy as np

from jax_transformer.config.decoding import DecodingConfig
from jax_transformer.config.model import GenerationConfig, TransformerConfig
from jax_transformer.config.run import TrainConfig
from jax_transformer.parity.backends.learning_rates import learning_rates
from jax_transformer.parity.backends.side import Gradients, Hypotheses, Side, starts_and_ends
from jax_transformer.parity.diagnosis.decoding import Explanation, explain_decoding
from jax_transformer.parity.diagnosis.findings import Fault, Finding, Match, SideName
from jax_transformer.parity.diagnosis.training import Step, explain_loss, explain_steps
from jax_transformer.parity.faults.decoding import DecodingProblem
from jax_transformer.parity.gates import tolerances
from jax_transformer.parity.gates.compare import relative_rms
from jax_transformer.parity.gates.stages import Row, Stage
from jax_transformer.parity.oracle.decoding import DecodeRule
from jax_transformer.parity.oracle.losses import LossRule
from jax_transformer.parity.oracle.updates import UpdateRule, initial_state
from jax_transformer.parity.problems import Problem
from jax_transformer.parity.rules import SEARCH_FIELDS, SETUP
from jax_transformer.parity.stages.training import STEPS

Sides = Mapping[SideName, Side]


def weight_faults(
    stage: Stage, candidate: Mapping[str, np.ndarray], reference: Mapping[str, np.ndarray]
) -> list[Fault]:
    """Explains each parameter that differs from the reference's."""
    faults = []
    for row in stage.rows:
        if row.verdict == "diverged":
            received, error = candidate[row.name], row.error.relative_rms if row.error is not None else math.inf
            matches = tuple(
                Match(name, 0.0)
                for name, value in _known_weights(row.name, reference)
                if np.array_equal(received, value)
            )
            faults.append(Fault("candidate", "weights", Finding(row.name, "weights", error, matches, None), error))
    return faults


def _known_weights(path: str, reference: Mapping[str, np.ndarray]) -> Iterable[tuple[str, np.ndarray]]:
    """Yields known mistakes in porting a parameter, by name."""
    own = reference[path]
    yield "rounded to float16", own.astype(np.float16).astype(np.float64)
    yield "rounded to bfloat16", own.astype(ml_dtypes.bfloat16).astype(np.float64)
    yield "rounded to float32", own.astype(np.float32).astype(np.float64)
    matrix = own.reshape(len(own), -1) if own.ndim > 1 else own
    if own.ndim > 1:
        yield "transposed", matrix.T.reshape(own.shape)
    for other, array in reference.items():
        if other != path and array.shape == own.shape and not np.array_equal(array, own):
            yield f"the values of {other}", array


def loss_faults(
    config: TransformerConfig,
    train: TrainConfig,
    problem: Problem,
    sides: Sides,
    found: Mapping[SideName, Gradients],
) -> list[Fault]:
    """Finds the side whose loss isn't the loss of its logits."""
    rule = LossRule(config.target_pad_id, train.label_smoothing, train.smoothing, train.loss_counts_pads)
    faults = []
    for name, side in sides.items():
        finding = explain_loss(rule, side.forward(problem, "float64")["logits"], problem.labels, found[name].loss)
        faults += _faults(name, "loss", [finding] if finding else [], problem)
    return faults


def gradient_faults(stage: Stage, problem: Problem, found: Mapping[SideName, Gradients]) -> list[Fault]:
    """Finds the first gradient that differs, from the logits backwards, and how all gradients differ."""
    row = stage.first_divergence
    if row is None:
        return []
    candidate, reference = (found[name].parameters for name in ("candidate", "reference"))
    matches = tuple(
        match for match in _known_gradients(candidate, reference) if match.residual <= tolerances.FLOAT64_RELATIVE_RMS
    )
    error = row.error.relative_rms if row.error is not None else math.nan
    return [Fault("candidate", "gradients", Finding(row.name, "gradient", error, matches, None), error, problem.name)]


def _known_gradients(candidate: Mapping[str, np.ndarray], reference: Mapping[str, np.ndarray]) -> Iterable[Match]:
    """Yields known mistakes in gradients."""
    shared = [path for path in reference if path in candidate and not tolerances.has_zero_gradient(path.split("[")[0])]
    flat = [np.concatenate([np.ravel(side[path]) for path in shared]) for side in (candidate, reference)]
    size = float(flat[1] @ flat[1])
    factor = float(flat[0] @ flat[1]) / size if size else 0.0
    if factor and not math.isclose(factor, 1.0, rel_tol=1e-9):
        yield Match(f"all gradients are {factor:.6g} times as large", relative_rms(flat[0], factor * flat[1]))
    for path in shared:
        if path.endswith("embedding/embedding"):
            rows = np.flatnonzero(np.any(candidate[path] != 0, axis=1) != np.any(reference[path] != 0, axis=1))
            if len(rows) == 1:
                kept = np.arange(len(reference[path])) != rows[0]
                others = {other: array for other, array in reference.items() if other in shared and other != path}
                residual = max(
                    [relative_rms(candidate[path][kept], reference[path][kept])]
                    + [relative_rms(candidate[other], array) for other, array in others.items()]
                )
                has = "a" if np.any(candidate[path][rows[0]]) else "no"
                yield Match(
                    f"row {rows[0]} of {path} gets {has} gradient, which the other side's pads decide otherwise",
                    residual,
                )


def update_rule(config: TransformerConfig, train: TrainConfig = SETUP) -> UpdateRule:
    """Returns the update that both sides should apply, by Adam or SGD."""
    return UpdateRule(
        "sgd" if train.optimizer == "sgd" else "adam",
        learning_rates(train, config.d_model, STEPS + 1),
        b1=train.adam_b1,
        b2=train.adam_b2,
        eps=train.adam_eps,
        momentum=train.momentum,
        weight_decay=train.weight_decay,
        weight_decay_kind=train.weight_decay_kind,
        clip_norm=train.clip_norm,
        pad_rows=_pad_rows(config),
        pad_rows_move="as_others" if config.trains_pad_embedding else "by_decay",
    )


def step_faults(config: TransformerConfig, train: TrainConfig, problem: Problem, sides: Sides) -> list[Fault]:
    """Finds the side whose optimizer breaks the rule, from three steps on its own gradients; none for Muon."""
    if train.optimizer == "muon":
        return []
    rule = update_rule(config, train)
    faults = []
    for name, side in sides.items():
        done = side.train(problem, STEPS, keep_all=True)
        steps = [Step(gradients, after) for gradients, after in zip(done.gradients, done.parameters[1:], strict=True)]
        faults += _faults(name, "step", explain_steps(rule, initial_state(done.parameters[0]), steps), problem)
    return faults


def _pad_rows(config: TransformerConfig) -> tuple[tuple[str, int], ...]:
    if config.share_embeddings:
        return (("shared_embedding/embedding", config.source_pad_id),)
    return (("source_embedding/embedding", config.source_pad_id), ("target_embedding/embedding", config.target_pad_id))


def decoded_by(
    config: TransformerConfig,
    generation: GenerationConfig,
    problem: Problem,
    decoding: DecodingConfig,
    received: Hypotheses,
    floor: float,
) -> Explanation:
    """Explains what a side decodes differently from its own model.

    Args:
      floor: how far apart the two sides' logits are.
    """
    start_id, eos_id = starts_and_ends(generation)
    search = {name: getattr(decoding, name) for name in SEARCH_FIELDS}
    rule = DecodeRule(**search, decoder_start_id=start_id, eos_id=eos_id, pad_id=config.target_pad_id)
    return explain_decoding(
        DecodingProblem.of_model(rule, config, problem.params, problem.source_ids),
        received.ids,
        received.scores,
        logit_floor=floor,
    )


def forgiven(row: Row, explanations: Iterable[Explanation]) -> Row | None:
    """The row of tokens that differ where rounding chooses, as one that passes; None if anything else differs."""
    found = list(explanations)
    if any(explanation.finding is not None for explanation in found):
        return None
    told = [
        f"sentence {choice.sentence}, token {choice.place}: margin {choice.margin:.1e}"
        for one in found
        for choice in one.forgiven
    ]
    return (
        Row(row.name, "passed", row.gate, reason=f"differs where the two best tokens are as likely: {'; '.join(told)}")
        if told
        else None
    )


def _faults(side: SideName, stage: str, findings: Iterable[Finding], problem: Problem) -> list[Fault]:
    return [Fault(side, stage, finding, finding.local_error, problem.name) for finding in findings]
