"""jax-transformer verify PATH…"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tyro

from jax_transformer.commands.parsing import parsed


@dataclass(frozen=True)
class VerifyOptions:
    """Verify that runs, models, data caches and exports are as they were written. Exit code 0: they are; 1: some file
    isn't; 2: there is nothing to verify."""

    paths: tyro.conf.Positional[tuple[str, ...]]
    """Runs, model directories, data caches, exported directories, files of tensors."""
    quiet: bool = False
    """Print only damaged files."""


def verify(arguments: Sequence[str]) -> int:
    """Runs `jax-transformer verify ARGUMENTS`; returns the exit code."""
    options = parsed(VerifyOptions, arguments, "verify")
    from jax_transformer.integrity import verify as verify_path

    if not options.paths:
        raise ValueError("verify: expected a path or more; received none")
    whole = True
    for path in options.paths:
        for finding in verify_path(path):
            whole &= finding.is_whole
            if not (options.quiet and finding.is_whole):
                print(finding, flush=True)
    return 0 if whole else 1
