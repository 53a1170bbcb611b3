"""Tell a user's lines from those of the libraries that run them."""

from __future__ import annotations

LIBRARIES = ("/torch/", "/jax_transformer/programs/", "/jax_transformer/discover/")
"""Parts of the names of files in which no line is the user's."""


def is_of_library(filename: str) -> bool:
    """Returns whether a file belongs to PyTorch, or to what reads programs here."""
    return any(part in filename for part in LIBRARIES)
