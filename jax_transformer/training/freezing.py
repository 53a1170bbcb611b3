"""Splits parameters into trained and frozen ones."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from jax_transformer.model.functional import Params
from jax_transformer.runtime.trees import flatten, unflatten


class FreezeError(ValueError):
    """Raised when a pattern matches no parameter, or when the patterns match all."""


def split_frozen(params: Params, patterns: Sequence[str]) -> tuple[Params, Params]:
    """Returns the trained and the frozen parameters. Parameters are frozen if a pattern matches their path, such as
    encoder/layers/self_attention/query/kernel.

    The arrays hold all layers of a stack, so patterns freeze all of them or none.

    Raises:
      FreezeError: a pattern that matches no parameter; nothing left to train.
    """
    leaves = flatten(params)
    for pattern in patterns:
        if not any(fnmatchcase(path, pattern) for path in leaves):
            raise FreezeError(
                f"train.freeze: expected patterns of parameter paths, such as {next(iter(leaves))} "
                f"(--dry-run lists them); received {pattern!r}, which matches none"
            )
    frozen = {path: leaf for path, leaf in leaves.items() if any(fnmatchcase(path, pattern) for pattern in patterns)}
    trained = {path: leaf for path, leaf in leaves.items() if path not in frozen}
    if not trained:
        raise FreezeError(
            f"train.freeze: expected some parameters left to train; received {', '.join(patterns)}, which match all"
        )
    return unflatten(trained), unflatten(frozen)


def join_frozen(trained: Params, frozen: Params) -> Params:
    """Merges the two results of `split_frozen`."""
    return unflatten(flatten(trained) | flatten(frozen)) if frozen else trained
