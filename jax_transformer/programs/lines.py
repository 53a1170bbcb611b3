"""Distinguishes a user's lines from lines of the libraries that run them."""

from __future__ import annotations

LIBRARIES = ("/torch/", "/jax_transformer/programs/", "/jax_transformer/discover/")
"""Parts of file names that mark files of libraries."""


def is_of_library(filename: str) -> bool:
    """Returns whether a file belongs to PyTorch, or to the readers of programs in this package."""
    return any(part in filename for part in LIBRARIES)
