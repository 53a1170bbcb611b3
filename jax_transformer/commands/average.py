"""jax-transformer average RUN --output DIRECTORY."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import tyro

from jax_transformer.commands.parsing import parsed
from jax_transformer.config.parallel import MeshConfig


@dataclass(frozen=True)
class AverageOptions:
    """Average checkpoints of a run into one model."""

    run: tyro.conf.Positional[str]
    """Run directory; the run may still be training."""
    output: str
    """Model directory to write."""
    count: int = 5
    """Number of checkpoints to average, at most the number kept by train.keep_checkpoints and average_checkpoints."""
    which: Literal["last", "best"] = "last"
    """Checkpoints to average: the last or the best ones."""
    parallel: MeshConfig = field(default=MeshConfig())


def average(arguments: Sequence[str]) -> int:
    """Runs `jax-transformer average ARGUMENTS`; returns the exit code."""
    options = parsed(AverageOptions, arguments, "average")
    if options.count < 1:
        raise ValueError(f"--count must be at least 1; received {options.count}")
    from jax_transformer.parallel.mesh import make_mesh
    from jax_transformer.storage.model_directory import save_model
    from jax_transformer.training.export import load_averaged_model

    model = load_averaged_model(options.run, options.which, options.count, make_mesh(options.parallel))
    save_model(model, options.output)
    training = model.training or {}
    steps = ", ".join(map(str, training["checkpoints"]))
    print(f"model: {options.output} (the mean of steps {steps}; valid loss {training['valid_loss']:.4f})")
    return 0
