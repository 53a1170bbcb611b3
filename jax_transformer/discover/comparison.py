"""Compare a discovered model with its module by a parity run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

    from jax_transformer.comparison.report.report import Report
    from jax_transformer.discover.api import Discovery


def prove(found: Discovery, module: nn.Module, name: str, stages: Sequence[str] | None = None) -> Report:
    """Runs the parity command's comparison of the model with the module, under the discovered call.

    Skips bfloat16 if the module doesn't run in it.

    Args:
      module: the module that was discovered.
      name: its factory, in the report.
      stages: as of `jax_transformer.parity.compare`. None: all, decode only if the model knows how sentences begin and
        end.
    """
    from jax_transformer.parity.api import compare
    from jax_transformer.parity.run_results import STAGES
    from jax_transformer.parity.sides.options import Side

    generation = found.model.generation
    knows_ends = generation.decoder_start_id is not None and generation.eos_id is not None
    return compare(
        Side(found.model, f"model of {name}"),
        Side(found.call.wrap(module), name),
        names=found.names,
        allow=found.allow,
        dtypes=["float64", "float32"] if found.bfloat16_problem else None,
        stages=[name for name in STAGES if name != "decode" or knows_ends] if stages is None else stages,
    )
