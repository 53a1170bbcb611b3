"""Write the results of a discovery: a model directory, config, map, adapter and report."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from jax_transformer.config.files import dump_config
from jax_transformer.discover.architecture import architecture
from jax_transformer.programs.calling import adapter_text
from jax_transformer.storage.model_directory import save_model, temporary_directory_beside

if TYPE_CHECKING:
    from jax_transformer.comparison.report.report import Report
    from jax_transformer.discover.api import Discovery


def write_discovery(found: Discovery, report: Report, factory: str, path: str | os.PathLike[str]) -> None:
    """Writes a discovery to a directory, under a temporary name first.

    - model/: the model directory, with the module's weights.
    - config.yaml: the model's config, as in a run's config.
    - map.yaml: the map of names, for `port --map` and `parity --map`.
    - adapter.py: calls the module as (source_ids, decoder_input_ids) → logits, for `parity --reference`.
    - report.html: a drawing of the architecture, each conclusion with its residual, and the parity run.

    Args:
      factory: `package.module:function`, which makes the module.
      path: a directory that doesn't exist, or is empty.

    Raises:
      OSError: it can't be written.
    """
    target = Path(path)
    with temporary_directory_beside(target) as temporary:
        save_model(found.model, temporary / "model")
        config = {"model": yaml.safe_load(dump_config(found.model.config))}
        (temporary / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
        found.names.write(temporary / "map.yaml")
        (temporary / "adapter.py").write_text(adapter_text(found.call, factory), encoding="utf-8")
        report.to_html(temporary / "report.html", facts(found))
        if target.exists():
            target.rmdir()
        temporary.rename(target)


def facts(found: Discovery) -> dict[str, Any]:
    """Returns the discovery as JSON-compatible values, for the page."""
    return {
        "call": list(found.call.lines),
        "notes": [*found.notes, f"logits were compared on {found.reach}"],
        "checks": [
            {
                "source": check.lengths[0],
                "target": check.lengths[1],
                "residual": check.residual,
                "weights": check.weights,
            }
            for check in found.checks
        ],
        "conclusions": [dataclasses.asdict(one) for one in found.conclusions],
        "architecture": architecture(found.model.config),
    }
