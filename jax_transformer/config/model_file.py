"""Reads a model's config from a YAML file: its fields, or a run's config.yaml that has them under `model`."""

from __future__ import annotations

import os

from jax_transformer.config.files import load_config, load_part
from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.run import RunConfig


def load_model_config(path: str | os.PathLike[str]) -> TransformerConfig:
    """Returns the config of a YAML file; fields that it omits have their defaults. Of a run's config, only the model's
    part is read.

    Raises:
      ConfigError: see `load_config`.
    """
    part = load_part(os.fspath(path), "model", TransformerConfig(), of=RunConfig)
    return load_config(os.fspath(path), TransformerConfig()) if part is None else part
