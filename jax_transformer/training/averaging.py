"""Averages a run's checkpoints, which is often better than each of them (Vaswani et al. 2017, §6.1)."""

from __future__ import annotations

from collections.abc import Iterable

import jax
import numpy as np

from jax_transformer.model.functional import Params, join_constants, split_constants
from jax_transformer.parallel.placement import fetch
from jax_transformer.training.checkpoints import Checkpoints
from jax_transformer.training.state import TrainState, stored_params, with_average


def mean_params(parameters: Iterable[Params]) -> Params:
    """Returns the mean of each parameter, summed in float64 in order and cast to the parameter's dtype. Takes the
    constants from the last item.

    Args:
      parameters: parameters of the same structure and shapes.

    Raises:
      ValueError: no parameters.

    Example:
      >>> import numpy as np
      >>> from jax_transformer.training import mean_params
      >>> mean_params([{"kernel": np.float32([1, 2])}, {"kernel": np.float32([3, 6])}])["kernel"].tolist()
      [2.0, 4.0]
    """
    count, sums, last = 0, None, None
    for last in parameters:
        trained = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), split_constants(last)[0])
        sums = trained if sums is None else jax.tree.map(np.add, sums, trained)
        count += 1
    if sums is None or last is None:
        raise ValueError("average: expected one checkpoint or more; received none")
    trained, constants = split_constants(last)
    return join_constants(
        jax.tree.map(lambda total, leaf: (total / count).astype(leaf.dtype), sums, trained), constants
    )


def average(checkpoints: Checkpoints, steps: Iterable[int], like: TrainState) -> Params:
    """Returns the mean of the parameters that were evaluated at `steps`, on the host. Adapters are averaged, not
    merged. `like` gives structure, shapes and dtypes."""
    return mean_params(fetch(stored_params(with_average(checkpoints.restore(step, like)))) for step in steps)
