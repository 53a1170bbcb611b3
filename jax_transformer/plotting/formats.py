"""Checks the file formats of pictures before anything is drawn, without matplotlib."""

from __future__ import annotations

from pathlib import Path

FORMATS = (".png", ".svg", ".pdf")


def check_path(path: Path, formats: tuple[str, ...] = FORMATS) -> None:
    """Raises ValueError unless `path` ends in one of `formats` and can be written as a file."""
    if path.suffix.lower() not in formats:
        raise ValueError(
            f"{path}: expected a file name that ends in one of {', '.join(formats)}; received {path.suffix!r}"
        )
    if not path.parent.is_dir():
        raise ValueError(f"{path}: expected a directory that exists; there is no {path.parent}")
    if path.is_dir():
        raise ValueError(f"{path}: expected the name of a file; it is a directory")
