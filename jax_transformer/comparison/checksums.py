"""Computes SHA-256 checksums of the files, directories and arrays that a report compares."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jax_transformer.runtime.digests import sha256

HASHED = (".safetensors", ".pt", ".pth", ".bin", ".json", ".yaml", ".yml")
"""The suffixes of the files of a directory that are hashed."""


def hash_files(*sides: Any) -> dict[str, str]:
    """Returns the SHA-256 of files and of the files in directories, by path.

    Args:
      *sides: paths; anything else is ignored.
    """
    return {str(file): sha256(file) for side in sides for file in _files(side)}


def _files(side: Any) -> list[Path]:
    if not isinstance(side, str | os.PathLike):
        return []
    if Path(side).is_file():
        return [Path(side)]
    files = sorted(Path(side).rglob("*"))
    return [file for file in files if file.is_file() and file.suffix in HASHED and "checkpoints" not in file.parts]


def hash_arrays(arrays: Mapping[str, np.ndarray]) -> str:
    """Returns the SHA-256 of named arrays: names, shapes, dtypes and bytes, in their order."""
    digest = hashlib.sha256()
    for name, array in arrays.items():
        digest.update(f"{name} {array.dtype} {list(array.shape)}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
