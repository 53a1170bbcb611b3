"""Train an encoder-decoder Transformer in JAX, and prove that it is the same function as the PyTorch one.

Names are loaded when they are first used, so that `import jax_transformer` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jax_transformer.config.model import GenerationConfig, TransformerConfig
    from jax_transformer.config.run import DataConfig, RunConfig, TrainConfig
    from jax_transformer.decoding.translation import translate
    from jax_transformer.model.functional import apply, decode, decode_step, encode, init_params, start_decoding
    from jax_transformer.storage.model_directory import Model, load_model, save_model
    from jax_transformer.training.loop import train

_HOMES = {
    "jax_transformer.config.model": ("GenerationConfig", "TransformerConfig"),
    "jax_transformer.decoding.translation": ("translate",),
    "jax_transformer.model.functional": ("apply", "decode", "decode_step", "encode", "init_params", "start_decoding"),
    "jax_transformer.storage.model_directory": ("Model", "load_model", "save_model"),
    "jax_transformer.config.run": ("DataConfig", "RunConfig", "TrainConfig"),
    "jax_transformer.training.loop": ("train",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__version__ = "0.1.0"
__all__ = [
    "DataConfig",
    "GenerationConfig",
    "Model",
    "RunConfig",
    "TrainConfig",
    "TransformerConfig",
    "apply",
    "decode",
    "decode_step",
    "encode",
    "init_params",
    "load_model",
    "save_model",
    "start_decoding",
    "train",
    "translate",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
