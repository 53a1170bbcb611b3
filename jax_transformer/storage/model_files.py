"""Reads and checks the files of a model directory."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from jax_transformer.buckets import address_of, joined, local_directory
from jax_transformer.config.decoding import GenerationConfig
from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.shapes import count_parameters, param_shapes
from jax_transformer.config.short_names import named_values
from jax_transformer.config.sizes import SIZES
from jax_transformer.config.stored import config_from_plain
from jax_transformer.runtime.digests import sha256
from jax_transformer.runtime.files import read_bytes, read_text
from jax_transformer.runtime.json_text import read_json
from jax_transformer.runtime.limits import TOKENIZER_BYTES
from jax_transformer.runtime.trees import nearest
from jax_transformer.storage.adapters import ADAPTERS
from jax_transformer.storage.tensor_files import map_tensors, read_tensors
from jax_transformer.storage.tensors import DTYPES

if TYPE_CHECKING:
    from jax_transformer.data.tokenizers import Tokenizer


FORMAT_VERSION = 3
"""1: generation.json says nothing of how to decode; 2: config.json has one level."""
MANIFEST, CONFIG, PARAMS, GENERATION = "manifest.json", "config.json", "params.safetensors", "generation.json"
TOKENIZERS = {"source_tokenizer": "source_tokenizer.json", "target_tokenizer": "target_tokenizer.json"}
IGNORED, OPTIMIZER = "ignored.safetensors", "optimizer.safetensors"
FILES = (CONFIG, PARAMS, GENERATION, *TOKENIZERS.values(), IGNORED, OPTIMIZER, ADAPTERS)
TOKENIZER_FOLDER = "tokenizer"
REQUIRED = (CONFIG, PARAMS, GENERATION)


class ModelError(ValueError):
    """Raised when a model directory can't be read or written. `problems` lists one message for each problem."""

    def __init__(self, what: str, problems: list[str] | None = None) -> None:
        self.problems = problems or []
        super().__init__("\n  - ".join([what + ":" if self.problems else what, *self.problems]))


def is_model_directory(path: str | os.PathLike[str]) -> bool:
    """Returns whether there is a directory with a model's manifest."""
    return (Path(path) / MANIFEST).is_file() and (Path(path) / CONFIG).is_file()


def model_in_bucket(path: str | os.PathLike[str]) -> Path | None:
    """Returns a local copy of the model directory at a path in a bucket, or of the one named `model` in a run directory
    there; None if there is none, or the path is local.

    Raises:
      BucketError: the bucket can't be read.
    """
    if address_of(path) is None:
        return None
    for place in (os.fspath(path), joined(path, "model")):
        with suppress(FileNotFoundError):
            copy = local_directory(place, _belongs_to_model)
            if is_model_directory(copy):
                return copy
    return None


def _belongs_to_model(name: str) -> bool:
    return name in (*FILES, MANIFEST) or Path(name).parent == Path(TOKENIZER_FOLDER)


def read_manifest(directory: Path) -> dict[str, Any]:
    try:
        manifest = read_json(directory / MANIFEST)
    except ValueError as error:
        raise ModelError(f"{directory / MANIFEST}: no JSON ({error})") from None
    version = manifest.get("format_version") if isinstance(manifest, dict) else None
    if type(version) is not int or version < 1:
        raise ModelError(f"{directory / MANIFEST}: format_version must be a positive integer; received {version!r}")
    if version > FORMAT_VERSION:
        raise ModelError(
            f"{directory} was written by a newer version: its format_version is {version}, and this one reads up to "
            f"{FORMAT_VERSION}; "
            "upgrade jax-transformer"
        )
    sums = manifest.get("sha256")
    if not isinstance(sums, dict) or not all(isinstance(value, str) for value in sums.values()):
        raise ModelError(f"{directory / MANIFEST}: sha256 must name each file with its checksum; received {sums!r}")
    return manifest


def checksum_problems(directory: Path, sums: Mapping[str, str]) -> list[str]:
    """Lists files that are missing, altered or smuggled in; each problem starts with the file's name and a colon."""
    problems = []
    listed = [name for name in sums if Path(name).parent == Path(TOKENIZER_FOLDER)]
    for name in dict.fromkeys((*FILES, *tokenizer_files(directory), *listed)):
        exists = (directory / name).is_file()
        if name not in sums:
            if exists or name in REQUIRED:
                problems.append(f"{name}: not listed in {MANIFEST}")
        elif not exists:
            problems.append(f"{name}: missing")
        elif (received := sha256(directory / name)) != sums[name]:
            problems.append(
                f"{name}: altered since it was saved (sha256 expected {sums[name][:12]}…, received {received[:12]}…)"
            )
    return problems


class ModelFiles:
    """Reads the files of a model directory, and collects their problems."""

    def __init__(self, directory: Path) -> None:
        """Reads the manifest and compares the checksums. Raises ModelError for a manifest that can't be read."""
        self.directory = directory
        self.manifest = read_manifest(directory)
        self.problems = checksum_problems(directory, self.manifest["sha256"])
        altered = {problem.split(":")[0] for problem in self.problems}
        self._names = {name for name in self.manifest["sha256"] if name not in altered}

    def config(self) -> TransformerConfig | None:
        """Returns the model's config; None if it can't be read."""
        return self._read(CONFIG, _read_config)

    def generation(self) -> GenerationConfig | None:
        """Returns the generation settings; None if they can't be read."""
        return self._read(GENERATION, read_generation)

    def tokenizer(self, name: str) -> Tokenizer | None:
        """Returns the tokenizer in a file; None if there is none, or it can't be read."""
        return self._read(name, _read_tokenizer)

    def tensors(self, name: str, *, mapped: bool = False) -> Mapping[str, np.ndarray] | None:
        """Returns the tensors in a file; None if there are none, or they can't be read.

        Args:
          mapped: leave them in the file, each to be read on access.
        """
        return self._read(name, read_tensors if mapped else _in_memory)

    def mapped_parameters(self) -> Mapping[str, np.ndarray] | None:
        """Returns the parameters by path as views of their file; None if they can't be read."""
        return self._read(PARAMS, map_tensors)

    def tokenizer_files(self) -> dict[str, bytes]:
        """Returns the tokenizer files of a model of Hugging Face's by name, as they are."""
        names = tokenizer_files(self.directory)
        return {Path(name).name: read_bytes(self.directory / name, TOKENIZER_BYTES) for name in names}

    def _read(self, name: str, read: Callable[[Path], Read]) -> Read | None:
        """Returns what a file holds; None if it isn't there as it was saved, or can't be read."""
        if name not in self._names:
            return None
        try:
            return read(self.directory / name)
        except ModelError as error:
            self.problems += [f"{name}: {problem}" for problem in error.problems]
        except ValueError as error:
            self.problems.append(f"{name}: {error}")
        return None


Read = TypeVar("Read")


def read_generation(file: Path) -> GenerationConfig:
    """Reads the generation settings.

    Raises:
      ValueError: it is no JSON object, or has an invalid value; as ModelError with unknown and missing fields.
    """
    content = _read_object(file)
    known = {field.name: field for field in dataclasses.fields(GenerationConfig)}
    problems = [f"unknown field {field}{nearest(field, known)}" for field in content if field not in known]
    required = [name for name, field in known.items() if field.default is dataclasses.MISSING]
    problems += [f"missing field {name}" for name in required if name not in content]
    if problems:
        raise ModelError(f"{file} can't be read", problems)
    return GenerationConfig(**content)


def _read_config(file: Path) -> TransformerConfig:
    return config_from_plain(_read_object(file))


def _read_object(file: Path) -> dict[str, Any]:
    try:
        content = read_json(file)
    except ValueError as error:
        raise ValueError(f"no JSON ({error})") from None
    if not isinstance(content, dict):
        raise ValueError(f"expected a JSON object; received {type(content).__name__}")
    return content


def _read_tokenizer(file: Path) -> Tokenizer:
    from jax_transformer.data.tokenizers import Tokenizer

    return Tokenizer.from_json(read_text(file, TOKENIZER_BYTES))


def _in_memory(file: Path) -> Mapping[str, np.ndarray]:
    return dict(read_tensors(file))


def tokenizer_files(directory: Path) -> list[str]:
    """Returns the tokenizer files' names below the directory."""
    folder = directory / TOKENIZER_FOLDER
    return sorted(f"{TOKENIZER_FOLDER}/{file.name}" for file in folder.iterdir()) if folder.is_dir() else []


def param_problems(config: TransformerConfig, received: Mapping[str, Any]) -> list[str]:
    """Returns the differences between parameters and config in name, shape and kind of dtype."""
    count, values = count_parameters(config), sum(math.prod(np.shape(leaf)) for leaf in received.values())
    if count > 2 * values + 10**6:
        values_of = (one for name in SIZES for one in named_values(config, name))
        sizes = ", ".join(f"{name}={value}" for name, value in values_of if value)
        return [f"config: expected sizes of the {values:,} values in the file; received {count:,} ({sizes})"]
    try:
        expected = param_shapes(config)
    except ValueError as error:
        return [f"config: {error}"]
    unexpected = [path for path in received if path not in expected]
    missing = [path for path in expected if path not in received]
    problems = [f"missing parameter {path} {expected[path]}{nearest(path, unexpected)}" for path in missing]
    problems += [
        f"unexpected parameter {path} {np.shape(received[path])}{nearest(path, missing or expected)}"
        for path in unexpected
    ]
    for path, shape in expected.items():
        if path in received and np.shape(received[path]) != shape:
            problems.append(f"parameter {path}: expected shape {shape}; received {np.shape(received[path])}")
        if path in received and np.dtype(received[path].dtype).name not in DTYPES:
            problems.append(
                f"parameter {path}: expected a dtype of {', '.join(DTYPES)}; received {received[path].dtype}"
            )
    return problems
