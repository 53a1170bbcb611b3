"""Verifies that the files of a run, a model, a cache or an export are as they were written."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from jax_transformer.buckets import local_directory, local_file
from jax_transformer.config.files import load_config
from jax_transformer.config.run import RunConfig
from jax_transformer.data.cache import ENTRY
from jax_transformer.runtime.digests import DIGESTS, changes
from jax_transformer.runtime.files import read_bytes
from jax_transformer.runtime.json_text import parse_json
from jax_transformer.runtime.limits import JSON_BYTES
from jax_transformer.storage.model_directory import load_model
from jax_transformer.storage.model_files import TOKENIZERS, ModelError, is_model_directory
from jax_transformer.storage.tensor_files import SUFFIXES, read_tensors
from jax_transformer.storage.tensors import PortingError
from jax_transformer.training.checkpoints import damaged_files, saved_steps
from jax_transformer.training.run_directory import (
    CHECKPOINTS,
    CONFIG,
    DATA,
    LOSS,
    METRICS,
    PARAMETERS,
    SAMPLES,
    TRANSLATIONS,
    RunError,
    read_lines,
)

REPORT = "report.json"
"""A file that every entry of a data cache has."""


@dataclass(frozen=True)
class Finding:
    """Holds the result of verifying one directory or file.

    Example:
      >>> from pathlib import Path
      >>> from jax_transformer.integrity import Finding
      >>> print(Finding(Path("runs/demo/checkpoints/300"), "checkpoint", ("metrics/metrics: missing",)))
      ✗ runs/demo/checkpoints/300 (checkpoint): metrics/metrics: missing
    """

    path: Path
    kind: str
    """checkpoint, model, run's file, corpus, export or file of tensors."""
    problems: tuple[str, ...] = ()

    @property
    def is_whole(self) -> bool:
        return not self.problems

    def __str__(self) -> str:
        sign = "✓" if self.is_whole else "✗"
        return f"{sign} {self.path} ({self.kind}){': ' * bool(self.problems)}{'; '.join(self.problems)}"


def verify(path: str | os.PathLike[str]) -> list[Finding]:
    """Reads every file of a run, a model directory, a data cache or one of its entries, an exported directory, or
    a file of tensors, and compares it with the digest that was written with it.

    Args:
      path: the directory or file. With a run, its checkpoints, its model and its entry of the data cache are verified.

    Returns:
      A finding for each thing, in order. A file of tensors has no digest: it is read as far as its format describes.

    Raises:
      RunError: there is nothing at the path that can be verified.
    """
    path = _local(path)
    for is_kind, findings in KINDS:
        if is_kind(path):
            return list(findings(path))
    received = "a directory of another kind" if path.is_dir() else "a file of another kind" if path.exists() else "none"
    raise RunError(
        f"{path}: expected a run, a model directory, a data cache, an exported directory, or a file of tensors; "
        f"received {received}"
    )


def _local(path: str | os.PathLike[str]) -> Path:
    """Returns a local path of what is to be verified, which is downloaded if it is in a bucket."""
    try:
        return local_directory(path)
    except FileNotFoundError:
        return local_file(path)


def _run(path: Path) -> Iterator[Finding]:
    try:
        config = load_config(path / CONFIG, RunConfig())
        yield Finding(path / CONFIG, "run's file")
    except ValueError as error:
        config = None
        yield Finding(path / CONFIG, "run's file", (str(error),))
    for name in (METRICS, SAMPLES):
        if (path / name).exists():
            odd = [line.number for line in read_lines(path / name) if line.record is None and not line.is_last]
            yield Finding(path / name, "run's file", tuple(f"line {number}: no record" for number in odd))
    for name in (DATA, PARAMETERS, TRANSLATIONS, LOSS, *TOKENIZERS.values()):
        if (path / name).exists():
            yield Finding(path / name, "run's file", _json_problems(path / name))
    for step in saved_steps(path / CHECKPOINTS):
        checkpoint = path / CHECKPOINTS / str(step)
        yield Finding(checkpoint, "checkpoint", tuple(damaged_files(checkpoint)))
    if (path / "model").exists():
        yield from _model(path / "model")
    if config is not None and not _json_problems(path / DATA):
        content = parse_json(read_bytes(path / DATA, JSON_BYTES))
        entry = Path(config.data.cache_dir).expanduser() / content.get("corpus", "")
        if _is_entry(entry):
            yield from _entry(entry)


def _json_problems(file: Path) -> tuple[str, ...]:
    try:
        content = parse_json(read_bytes(file, JSON_BYTES))
    except (OSError, ValueError) as error:
        return (f"no JSON ({error})",)
    return () if isinstance(content, dict) else ("no JSON object",)


def _model(path: Path) -> Iterator[Finding]:
    try:
        load_model(path, mapped=True)
    except ModelError as error:
        yield Finding(path, "model", tuple(error.problems or [str(error)]))
    else:
        yield Finding(path, "model")


def _entry(path: Path) -> Iterator[Finding]:
    yield Finding(path, "corpus", tuple(changes(path)))


def _cache(path: Path) -> Iterator[Finding]:
    for entry in sorted(path.iterdir()):
        if entry.is_dir() and ENTRY.fullmatch(entry.name):  # programs and copies from buckets may lie beside
            yield from _entry(entry)


def _export(path: Path) -> Iterator[Finding]:
    yield Finding(path, "export", tuple(changes(path)))


def _tensors(path: Path) -> Iterator[Finding]:
    problems: list[str] = []
    try:
        tensors = read_tensors(path)
        for name in tensors:
            tensors[name]
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                odd = archive.testzip()
            problems += [f"{odd}: its checksum is another"] if odd else []
    except (PortingError, OSError, zipfile.BadZipFile) as error:
        problems.append(str(error).removeprefix(f"{path}: "))
    yield Finding(path, "file of tensors", tuple(problems))


def _is_run(path: Path) -> bool:
    return (path / CONFIG).is_file() and any((path / name).exists() for name in (METRICS, CHECKPOINTS, DATA))


def _is_entry(path: Path) -> bool:
    return (path / REPORT).is_file() or any(path.glob("*.source.ids"))


def _is_cache(path: Path) -> bool:
    return path.is_dir() and any(_is_entry(entry) for entry in path.iterdir() if entry.is_dir())


KINDS: tuple[tuple[Callable[[Path], bool], Callable[[Path], Iterator[Finding]]], ...] = (
    (_is_run, _run),
    (is_model_directory, _model),
    (_is_entry, _entry),
    (_is_cache, _cache),
    (lambda path: (path / DIGESTS).is_file(), _export),
    (lambda path: path.is_file() and path.name.endswith(SUFFIXES), _tensors),
)
"""The kinds of paths → their findings; the first that fits counts."""
