"""Limits what a torch file may claim: its parts as torch.save writes them, and tensors no larger than the file can
hold."""

from __future__ import annotations

import os
import pickle
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jax_transformer.runtime.limits import PICKLE_BYTES, TENSOR_FREE_BYTES, TENSOR_RATIO, TENSORS
from jax_transformer.storage.tensors import PortingError

MOST_PROTOCOL = 3
"""The newest pickle protocol that torch.load reads with weights_only. torch.save writes 2 by default."""


def check_archive(path: Path) -> None:
    """Checks the parts of a file in torch's zip format before it is unpickled.

    Raises:
      PortingError: a part is compressed: torch.save never does that, torch.load maps what it finds as if it weren't,
        and a small file could become any number of bytes; the pickled names and shapes exceed PICKLE_BYTES.
    """
    if not zipfile.is_zipfile(path):
        return
    try:
        with zipfile.ZipFile(path) as archive:
            parts = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        return  # torch.load reports the error
    odd = [part.filename for part in parts if part.compress_type != zipfile.ZIP_STORED]
    if odd:
        raise PortingError(
            f"{path}: expected parts as torch.save stores them; received a compressed {odd[0]}. Unpack the archive, "
            "and pack it without compression (zip -0)"
        )
    for part in parts:
        if part.filename.endswith("data.pkl"):
            PICKLE_BYTES.check(part.file_size, f"{path}: {part.filename}", PortingError)


def pickle_protocol(path: Path) -> int:
    """Returns the protocol in which the names and shapes of a torch file are pickled; 0 where the file doesn't say."""
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                name = next((name for name in archive.namelist() if name.endswith("data.pkl")), "")
                with archive.open(name) as part:
                    head = part.read(2)
        else:
            with path.open("rb") as file:
                head = file.read(2)
    except (
        zipfile.BadZipFile,
        OSError,
        ValueError,
        KeyError,
        NotImplementedError,
        RuntimeError,
    ):  # the last: encrypted
        return 0
    return head[1] if len(head) == 2 and head[:1] == pickle.PROTO else 0


def check_tensors(path: Path, content: Any) -> None:
    """Checks the tensors that a file gave. None of their values has been read yet.

    Raises:
      PortingError: there are more than TENSORS; they have more bytes than TENSOR_RATIO times the file's, since each
        value of the file may stand for any number of theirs; a dict holds itself.
    """
    most, total = max(TENSOR_FREE_BYTES, TENSOR_RATIO.value * os.path.getsize(path)), 0
    for count, (name, tensor) in enumerate(_tensors(path, content, (), frozenset()), start=1):
        TENSORS.check(count, os.fspath(path), PortingError, or_more=True)
        total += tensor.numel() * tensor.element_size()
        if total > most:
            raise PortingError(
                f"{path}: {name} {list(tensor.shape)}: expected tensors of at most {most:,} bytes in all, "
                f"{TENSOR_RATIO.value} times the file's; received {total:,} or more, of which most repeat. If that is "
                f"meant, set {TENSOR_RATIO.variable}."
            )


def _tensors(path: Path, content: Any, keys: tuple[str, ...], around: frozenset[int]) -> Iterator[tuple[str, Any]]:
    """Yields the tensors in a dict, and in dicts in it, with their names."""
    if hasattr(content, "element_size"):
        yield ".".join(keys) or "the tensor", content
    elif isinstance(content, Mapping):
        if id(content) in around or len(around) > 50:
            raise PortingError(
                f"{path}: {'.'.join(keys[:5])}: expected dicts of tensors; received one that holds itself"
            )
        for key, value in content.items():
            yield from _tensors(path, value, (*keys, str(key)), around | {id(content)})
