"""jax-transformer average RUN --output DIRECTORY."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import tyro


@dataclass(frozen=True)
class AverageOptions:
    """Make a model of the mean of a run's checkpoints."""

    run: tyro.conf.Positional[str]
    """A run directory; the run may be under way."""
    output: str
    """The model directory to write."""
    count: int = 5
    """How many checkpoints; no more are there than train.keep_checkpoints and train.average_checkpoints kept."""
    which: Literal["last", "best"] = "last"


def average(arguments: Sequence[str]) -> int:
    """Runs `jax-transformer average ARGUMENTS`; returns the exit code."""
    options = tyro.cli(AverageOptions, args=arguments, prog="jax-transformer average")
    if options.count < 1:
        raise ValueError(f"--count must be at least 1; received {options.count}")
    from jax_transformer.storage.model_directory import save_model
    from jax_transformer.training.export import load_averaged_model

    model = load_averaged_model(options.run, options.which, options.count)
    save_model(model, options.output)
    training = model.training or {}
    steps = ", ".join(map(str, training["checkpoints"]))
    print(f"model: {options.output} (the mean of steps {steps}; valid loss {training['valid_loss']:.4f})")
    return 0
