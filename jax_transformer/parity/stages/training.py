"""Loss, gradients, optimizer steps and a trajectory of both sides, in float64."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from jax_transformer.parity.backends.side import Arrays, Gradients, Training
from jax_transformer.parity.gates import tolerances
from jax_transformer.parity.gates.stages import Row, Stage, compare_stage

STEPS = 3
"""Of the stage `step`: in the first the moments are empty, and Adam's bias correction is large."""
ZERO = "zero but for rounding: not compared"


def compare_losses(candidate: Gradients, reference: Gradients) -> Stage:
    return compare_stage("loss", {"loss": np.array(candidate.loss)}, {"loss": np.array(reference.loss)})


def compare_gradients(candidate: Gradients, reference: Gradients) -> Stage:
    """Compares the gradients of parameters, then those of activations from the logits backwards."""
    if not (candidate.activations and reference.activations):  # a side that can't reach them
        candidate, reference = (side._replace(activations={}) for side in (candidate, reference))
    first = compare_stage("gradients", *(_compared(side.parameters) for side in (candidate, reference)))
    backwards = [
        dict(reversed({f"∂ {name}": array for name, array in side.activations.items()}.items()))
        for side in (candidate, reference)
    ]
    second = compare_stage("gradients", *backwards)
    return replace(
        second,
        rows=second.rows + first.rows + _exempt(reference.parameters),
        only_in_candidate=second.only_in_candidate + first.only_in_candidate,
        only_in_reference=second.only_in_reference + first.only_in_reference,
    )


def compare_steps(candidate: Training, reference: Training) -> Stage:
    """Compares some steps: the losses before each, and the parameters at the end."""
    stage = compare_stage("step", *(_compared(_end(side)) for side in (candidate, reference)))
    return replace(stage, rows=stage.rows + _exempt(_end(reference)))


def compare_trajectories(candidate: Training, reference: Training) -> Stage:
    """Many steps: every loss, and the parameters at the end."""
    losses, others = ({"losses": side.losses} for side in (candidate, reference))
    of_losses = compare_stage("trajectory", losses, others, tolerance=tolerances.TRAJECTORY_LOSS_RELATIVE)
    ends = (_compared(side.parameters[-1]) for side in (candidate, reference))
    of_parameters = compare_stage("trajectory", *ends, tolerance=tolerances.TRAJECTORY_PARAMETERS_RELATIVE_RMS)
    return replace(of_parameters, rows=of_losses.rows + of_parameters.rows + _exempt(reference.parameters[-1]))


def _end(training: Training) -> Arrays:
    return {"losses": training.losses, **training.parameters[-1]}


def _compared(parameters: Arrays) -> dict[str, np.ndarray]:
    return {path: array for path, array in parameters.items() if not is_exempt(path)}


def is_exempt(path: str) -> bool:
    """Returns whether its gradient is analytically zero; of one layer, too: `…/key/bias[0]`."""
    return tolerances.has_zero_gradient(path.split("[")[0])


def _exempt(parameters: Mapping[str, np.ndarray]) -> tuple[Row, ...]:
    """Returns the names of gradients that aren't compared."""
    return tuple(Row(path, "passed", ZERO, reason=ZERO) for path in parameters if is_exempt(path))
