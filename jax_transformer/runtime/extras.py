"""Packages that only some features need: the extra that installs each, and one line where it is missing."""

from __future__ import annotations

import importlib.util

EXTRAS = {
    "datasets": "datasets",
    "pyarrow": "datasets",
    "sentencepiece": "sentencepiece",
    "matplotlib": "plots",
    "jsonschema": "parity",
    "torch": "parity",
    "transformers": "parity",
    "flatbuffers": "stablehlo",
    "ctranslate2": "ctranslate2",
    "tensorboard": "tensorboard",
    "wandb": "wandb",
    "spacy": "spacy",
    "sacremoses": "moses",
    "soundfile": "audio",
    "gcsfs": "gcs",
    "s3fs": "s3",
    "fastapi": "serve",
    "uvicorn": "serve",
    "prometheus_client": "serve",
}
"""Package, by the name it is imported by → the extra of jax-transformer that installs it."""


class MissingPackage(ImportError):
    """Raised when a feature needs a package that isn't installed; the message names the extra that installs it."""


def require(package: str, use: str) -> None:
    """Raises MissingPackage if a package of EXTRAS isn't installed; cheap, since it imports nothing.

    Args:
      package: its name in an import.
      use: the option, file or command that needs it, to begin the message with.

    Example:
      >>> from jax_transformer.runtime.extras import require
      >>> require("torch", "parity")
    """
    if importlib.util.find_spec(package) is None:
        raise MissingPackage(_message(package, use), name=package)


def explain(error: ImportError, use: str) -> str:
    """Returns the message of an ImportError; if it comes from a missing package of EXTRAS, names the extra."""
    package = (error.name or "").partition(".")[0]
    if isinstance(error, MissingPackage) or package not in EXTRAS or importlib.util.find_spec(package) is not None:
        return str(error)
    return _message(package, use)


def _message(package: str, use: str) -> str:
    return (
        f"{use}: expected the package {package}, which isn't installed: pip install "
        f"'jax-transformer[{EXTRAS[package]}]'"
    )
