"""The sides of a comparison and its options: which kind a side is, which options it takes, and how they are read."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Literal

from jax_transformer.compare.gates.arrays import ParityError
from jax_transformer.compare.sides import Path

if TYPE_CHECKING:
    from jax_transformer.config.run import TrainConfig
    from jax_transformer.parity.rules import Programs

Kind = Literal["arrays", "model", "module", "function"]

OPTIONS: dict[str, frozenset[str]] = {
    "named arrays": frozenset({"truth", "tolerance"}),
    "a function and a module on inputs": frozenset({"inputs", "names", "stages", "dtypes"}),
    "models": frozenset({"model", "names", "stages", "dtypes", "node", "seed", "allow", "dialect"})
    | {"train", "loss", "optimizer", "decode", "decoding", "jax_loss", "jax_optimizer", "mesh"},
}
"""The options of each sort of comparison; that of models also takes hints."""


def kind_of(side: Any) -> Kind:
    """Returns what sort of thing a side is.

    Raises:
      ParityError: it is nothing that can be compared.
    """
    from jax_transformer.storage.model_directory import Model

    if isinstance(side, str | os.PathLike):
        return "arrays" if os.fspath(side).endswith(".npz") else "model"
    if isinstance(side, Mapping):
        return "arrays"
    if isinstance(side, Model):
        return "model"
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(side, torch.nn.Module):
        return "module"
    if callable(side):
        return "function"
    raise ParityError(
        "expected a model, a path, a torch.nn.Module, a function or a mapping of arrays to compare; received "
        f"{type(side).__name__}"
    )


def check_options(comparison: str, given: Collection[str], hints: Collection[str] = ()) -> None:
    """Raises ParityError for options that this sort of comparison doesn't take."""
    allowed = OPTIONS[comparison]
    wrong = [name for name in given if name not in allowed and name not in hints]
    if wrong:
        raise ParityError(f"{wrong[0]} doesn't apply to {comparison}; expected only {', '.join(sorted(allowed))}")


def config_of_run(directory: Path) -> str | None:
    """Returns the path of a run's config; None if the directory is no run."""
    path = os.path.join(directory, "config.yaml")
    return path if os.path.isfile(path) else None


def train_config(train: TrainConfig | Path | None) -> TrainConfig | None:
    """Returns the training part of a config, read from its file if need be. Raises ConfigError for a bad file."""
    if not isinstance(train, str | os.PathLike):
        return train
    from jax_transformer.config.files import load_config
    from jax_transformer.config.run import RunConfig

    return load_config(config_of_run(train) or os.fspath(train), RunConfig()).train


def rule_of(candidate: Any, train: TrainConfig | Path | None, ours: Programs, theirs: Programs) -> TrainConfig | None:
    """Returns the rule that programs of a user should follow: the given one, or, where a PyTorch program has no partner
    in JAX, that of the run that the candidate is. Raises ConfigError for a bad file."""
    has_no_partner = (theirs.loss and not ours.loss) or (theirs.optimizer and not ours.optimizer)
    if train is None and isinstance(candidate, str | os.PathLike) and has_no_partner:
        train = config_of_run(candidate)
    return train_config(train)
