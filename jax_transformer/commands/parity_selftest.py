"""jax-transformer parity --selftest: the kill matrix."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jax_transformer.commands.parity import ParityOptions


def selftest(options: ParityOptions) -> int:
    """Runs it; returns 0 if every requirement is met, else 4."""
    from jax_transformer.commands.parallel_text import write_lines
    from jax_transformer.commands.parity import parity
    from jax_transformer.verification.selftest.page import page
    from jax_transformer.verification.selftest.run import run

    result = run(parity, seed=options.seed, tell=lambda line: print(line, flush=True))
    if options.write is not None:
        write_lines(options.write, page(result).splitlines())
    return 0 if result.meets_all else 4
