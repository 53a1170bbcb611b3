"""The order in which a program's module lists its parameters, and so in which an optimizer received them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jax_transformer.porting.hugging_face import family_file
from jax_transformer.porting.names_of_dialects import dialect_of_origin
from jax_transformer.porting.optimizers.conversion import Table
from jax_transformer.storage.model_directory import Model
from jax_transformer.storage.tensors import PortingError


def parameter_names(model: Model, table: Table) -> list[str]:
    """Returns the names of the model's parameters in the order of the module's `named_parameters`, tied ones once. The
    names of constants are among them, since a module may register them as parameters.

    A state_dict in a torch file has this order. For a directory of transformers, whose files are ordered otherwise, it
    is that of the installed transformers.

    Raises:
      PortingError: the order isn't known: the model came from a .safetensors file; transformers isn't installed, or
        its model has other parameters.
    """
    origin = model.origin or {}
    if "hugging_face" in origin:
        return _names_in_transformers(origin, table)
    if not origin.get("is_in_order"):
        raise PortingError(
            "an optimizer numbers its parameters, and this model came from a file that doesn't keep their order: port "
            "a torch file (.pt), or a directory of transformers"
        )
    order = list(origin["tensors"])
    known = {*table.shapes_of(order), *table.constants}
    return [name for name in order if name in known]


def _names_in_transformers(origin: Mapping[str, Any], table: Table) -> list[str]:
    """Returns the names of the trained parameters of the model that transformers makes of a config.json."""
    try:
        import torch
        import transformers
    except ImportError as error:
        raise PortingError(
            f"expected {error.name}, which knows the order of this model's parameters: pip install "
            "'jax-transformer[parity]'"
        ) from None
    config = origin["hugging_face"]["config"]
    family = family_file(dialect_of_origin(origin))
    options = {key: value for key, value in config.items() if key not in ("model_type", "transformers_version")}
    with torch.device("meta"):
        module = getattr(transformers, family.architectures[0])(
            transformers.AutoConfig.for_model(family.model_type, **options)
        )
    names = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    ours = set(table.shapes_of(names))
    if ours != set(names):
        raise PortingError(
            f"transformers {transformers.__version__} has other parameters than this table: "
            f"{', '.join(sorted(ours ^ set(names))[:5])}"
        )
    return names
