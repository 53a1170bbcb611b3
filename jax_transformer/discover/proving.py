"""Prove a discovery: compare the model with the module by a parity run that knows what was found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from jax_transformer.discover.inputs import checks
from jax_transformer.parity.backends.copies import copied
from jax_transformer.parity.backends.user_errors import RAISED, in_short

if TYPE_CHECKING:
    from torch import nn

    from jax_transformer.discover.api import Discovery
    from jax_transformer.parity.report.report import Report


def prove(found: Discovery, module: nn.Module, name: str, stages: Sequence[str] | None = None) -> Report:
    """Runs the parity command's comparison of the model with the module, called as it was found to be.

    bfloat16 is left out if the module doesn't run in it.

    Args:
      module: the module that was discovered.
      name: its factory, in the report.
      stages: as of `jax_transformer.parity.compare`. None: all, decode only if the model knows how sentences begin and
        end.
    """
    from jax_transformer.parity.api import compare
    from jax_transformer.parity.run_results import STAGES

    generation = found.model.generation
    knows_ends = generation.decoder_start_id is not None and generation.eos_id is not None
    return compare(
        found.model,
        found.call.wrap(module),
        names=found.names,
        allow=found.allow,
        dtypes=None if lower_precision_problem(found, module) is None else ["float64", "float32"],
        stages=[name for name in STAGES if name != "decode" or knows_ends] if stages is None else stages,
        candidate_name=f"model of {name}",
        reference_name=name,
    )


def lower_precision_problem(found: Discovery, module: nn.Module) -> str | None:
    """Returns what the module raises in bfloat16, such as a product with a table that it keeps in float32; None:
    nothing."""
    import torch

    (batch,) = checks(found.call, found.checks[0].padding, count=1)
    try:
        with torch.no_grad():
            found.call.wrap(copied(module).to(torch.bfloat16))(
                *map(torch.from_numpy, (batch.source_ids, batch.target_ids))
            )
    except RAISED as error:
        return in_short(error)
    return None
