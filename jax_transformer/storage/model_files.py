"""Reads and checks the files of a model directory."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from jax_transformer.config.decoding import GenerationConfig
from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.shapes import count_parameters, param_shapes
from jax_transformer.config.short_names import named_values
from jax_transformer.config.sizes import SIZES
from jax_transformer.config.stored import config_from_plain
from jax_transformer.config.validation import ConfigError
from jax_transformer.runtime.digests import sha256
from jax_transformer.runtime.files import read_text
from jax_transformer.runtime.json_text import read_json
from jax_transformer.runtime.limits import TOKENIZER_BYTES
from jax_transformer.runtime.trees import nearest
from jax_transformer.storage.adapters import ADAPTERS
from jax_transformer.storage.tensor_files import map_tensors, read_tensors
from jax_transformer.storage.tensors import DTYPES, PortingError

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
        return read_config(self.directory, CONFIG, TransformerConfig, self.problems) if CONFIG in self._names else None

    def generation(self) -> GenerationConfig | None:
        """Returns the generation settings; None if they can't be read."""
        if GENERATION not in self._names:
            return None
        return read_config(self.directory, GENERATION, GenerationConfig, self.problems)

    def tokenizer(self, name: str) -> Tokenizer | None:
        """Returns the tokenizer in a file; None if there is none, or it can't be read."""
        from jax_transformer.data.tokenizers import Tokenizer

        if name not in self._names:
            return None
        try:
            return Tokenizer.from_json(read_text(self.directory / name, TOKENIZER_BYTES))
        except ValueError as error:
            self.problems.append(f"{name}: {error}")
            return None

    def tensors(self, name: str, *, mapped: bool = False) -> Mapping[str, np.ndarray] | None:
        """Returns the tensors in a file; None if there are none, or they can't be read.

        Args:
          mapped: leave them in the file, each to be read on access.
        """
        if name not in self._names:
            return None
        try:
            tensors = read_tensors(self.directory / name)
            return tensors if mapped else dict(tensors)
        except PortingError as error:
            self.problems.append(f"{name}: {error}")
            return None

    def mapped_parameters(self) -> Mapping[str, np.ndarray] | None:
        """Returns the parameters by path as views of their file; None if they can't be read."""
        if PARAMS not in self._names:
            return None
        try:
            return map_tensors(self.directory / PARAMS)
        except PortingError as error:
            self.problems.append(f"{PARAMS}: {error}")
            return None


Read = TypeVar("Read")


def read_config(directory: Path, name: str, config_class: type[Read], problems: list[str]) -> Read | None:
    """Reads a dataclass from a JSON file; adds to the problems and returns None if that fails."""
    try:
        content = read_json(directory / name)
    except ValueError as error:
        problems.append(f"{name}: no JSON ({error})")
        return None
    if not isinstance(content, dict):
        problems.append(f"{name}: expected a JSON object; received {type(content).__name__}")
        return None
    if config_class is TransformerConfig:
        try:
            return config_from_plain(content)  # type: ignore[return-value]
        except ConfigError as error:
            problems.append(f"{name}: {error}")
            return None
    fields = {field.name: field for field in dataclasses.fields(config_class)}  # type: ignore[arg-type]
    unknown = [field for field in content if field not in fields]
    missing = [field for field, spec in fields.items() if spec.default is dataclasses.MISSING and field not in content]
    problems += [f"{name}: unknown field {field}{nearest(field, fields)}" for field in unknown]
    problems += [f"{name}: missing field {field}" for field in missing]
    if unknown or missing:
        return None
    try:
        return config_class(**content)
    except ConfigError as error:
        problems.append(f"{name}: {error}")
        return None


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
