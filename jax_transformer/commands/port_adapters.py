"""The part of jax-transformer port for LoRA adapters in PEFT's directories."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jax_transformer.storage.adapters import Adapters
    from jax_transformer.storage.model_directory import Model


def base_path(source: str, base: str) -> str:
    """Returns the path or name of the model that adapters are merged into: `base`, or else as they say.

    Raises:
      ValueError: neither names one that exists, or that could be on the Hub.
    """
    from jax_transformer.porting.adapters import base_of
    from jax_transformer.storage.hub import hub_name

    found = base or base_of(source)
    if not found:
        raise ValueError(
            f"{source}: expected --base MODEL, the model that these adapters are for, which they don't name; received "
            "none"
        )
    if not Path(found).exists() and hub_name(found) is None:
        name = "--base" if base else "the adapters name"
        raise ValueError(f"{source}: {name} {found}: no such directory; pass --base MODEL")
    return found


def merge(source: str, model: Model, destination: str) -> Adapters | None:
    """Merges adapters into a model, saves it, and prints a summary."""
    from jax_transformer.porting.adapters import import_adapter
    from jax_transformer.storage.model_directory import save_model

    merged = import_adapter(source, model)
    save_model(merged, destination)
    print(f"adapters: {source}{_described(merged.adapters)}")
    if merged.adapters is None:
        print("          not kept by themselves, since ranks or scales differ, or some layers have none")
    print(f"model:    {destination}, merged")
    return merged.adapters


def export(source: str, destination: str, dialect: str | None, base: str) -> None:
    """Writes the adapters of a model directory as PEFT's, and prints the files."""
    from jax_transformer.porting.adapters import export_adapter
    from jax_transformer.storage.model_directory import load_model

    model = load_model(source, mapped=True)
    export_adapter(model, destination, dialect, base=base)
    print(f"dialect:  {dialect or (model.origin or {}).get('dialect')}")
    print(f"adapters: {destination}{_described(model.adapters)}")


def _described(adapters: Adapters | None) -> str:
    """Describes adapters in the command's words."""
    from jax_transformer.runtime.trees import flatten

    if adapters is None:
        return ""
    leaves = flatten(adapters.params).values()
    config = adapters.config
    return f", {sum(leaf.size for leaf in leaves):,} parameters, rank {config.rank}, scale {config.scale:g}"
