"""Writes `.safetensors` files while their arrays are being made."""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from jax_transformer.storage.deferred import Deferred, contiguous

SAFETENSORS_DTYPES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "int16": "I16",
    "uint16": "U16",
    "float16": "F16",
    "bfloat16": "BF16",
    "int32": "I32",
    "uint32": "U32",
    "float32": "F32",
    "float64": "F64",
    "int64": "I64",
    "uint64": "U64",
}
"""In the order that safetensors has them; the last come first in a file."""
WRITTEN_BYTES = 64 * 2**20
"""Bytes, about, that are written before they are forced to the disk."""


def save_safetensors(
    arrays: Mapping[str, np.ndarray | Deferred], path: Path, metadata: Mapping[str, str] | None = None
) -> str:
    """Writes the same bytes as safetensors' own function, without holding all of them in memory; returns the
    sha256.

    Args:
      metadata: texts to keep in the file's header.

    While an array is made, the one before it is written and hashed. What was written is forced to the disk now and
    then, and not kept in memory as if it were soon to be read.
    """
    ranks = {dtype: -rank for rank, dtype in enumerate(SAFETENSORS_DTYPES)}
    order = sorted(arrays, key=lambda name: (ranks[arrays[name].dtype.name], name.encode()))
    # transformers refuses files that don't say which framework's they are
    header: dict[str, Any] = {"__metadata__": {"format": "pt", **(metadata or {})}}
    end = 0
    for name in order:
        start, end = end, end + arrays[name].nbytes
        dtype = SAFETENSORS_DTYPES[arrays[name].dtype.name]
        header[name] = {"dtype": dtype, "shape": list(arrays[name].shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    digest, unsynced = hashlib.sha256(), 0
    with path.open("wb", buffering=0) as file, ThreadPoolExecutor(1) as writer, ThreadPoolExecutor(1) as hasher:
        pending: list[Future[Any]] = []
        for piece in itertools.chain(
            [np.frombuffer(len(text).to_bytes(8, "little") + text, np.uint8)], _all_pieces(arrays, order)
        ):
            data = piece.reshape(-1).view(np.uint8).data
            for task in pending:
                task.result()
            unsynced += len(data)
            pending = [writer.submit(_write, file, data, unsynced >= WRITTEN_BYTES), hasher.submit(digest.update, data)]
            unsynced %= WRITTEN_BYTES
        for task in pending:
            task.result()
        _let_go(file)
    return digest.hexdigest()


def _all_pieces(arrays: Mapping[str, np.ndarray | Deferred], order: list[str]) -> Iterator[np.ndarray]:
    for name in order:
        array = arrays[name]
        yield from array.pieces() if isinstance(array, Deferred) else [contiguous(np.asarray(array))]


def _write(file: io.FileIO, data: memoryview, lets_go: bool) -> None:
    while data:
        data = data[file.write(data) :]
    if lets_go:
        _let_go(file)


def _let_go(file: io.FileIO) -> None:
    """Forces what was written to the disk; it needn't stay in memory then."""
    os.fsync(file.fileno())
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
