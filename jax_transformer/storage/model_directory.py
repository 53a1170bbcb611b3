"""Reads and writes the model directory: what users hold and share, and the same in memory.

    config.json             TransformerConfig
    params.safetensors      parameters by path, such as encoder/layers/self_attention/query/kernel
    source_tokenizer.json   absent where the model has none
    target_tokenizer.json
    tokenizer/              of a model of Hugging Face's, its tokenizer files as they were
    generation.json         GenerationConfig
    ignored.safetensors     tensors of its checkpoint that the model doesn't compute with; absent where there are none
    optimizer.safetensors   the optimizer's moments of a training state; absent where there is none
    adapters.safetensors    LoRA adapters that its parameters contain; absent where there are none
    manifest.json           format version, sha256 of each other file, training step and metrics, origin, the adapters'
                            LoraConfig

Saving replaces a whole directory or nothing; loading checks every file before anything is used.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import math
import os
import shutil
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from jax_transformer.buckets import address_of, check_free, named, written
from jax_transformer.config.decoding import GenerationConfig
from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.specs import Stack
from jax_transformer.runtime.files import naming_errors, temporary_directory_beside
from jax_transformer.runtime.trees import flatten, unflatten
from jax_transformer.storage.adapters import ADAPTERS, Adapters, adapter_problems, arrange_adapters, described
from jax_transformer.storage.hub import HubError, download_model, hub_name, parse_hub_name
from jax_transformer.storage.model_files import (
    CONFIG,
    FILES,
    FORMAT_VERSION,
    GENERATION,
    IGNORED,
    MANIFEST,
    OPTIMIZER,
    PARAMS,
    TOKENIZER_FOLDER,
    TOKENIZERS,
    ModelError,
    ModelFiles,
    is_model_directory,
    model_in_bucket,
    param_problems,
    read_generation,
    read_manifest,
    sha256,
    tokenizer_files,
)
from jax_transformer.storage.tensor_files import numpy_dtype, read_tensors, write_tensors
from jax_transformer.storage.tensors import PortingError
from jax_transformer.storage.training_state import TrainingState, arrange_training_state

if TYPE_CHECKING:
    from jax_transformer.data.tokenizers import Tokenizer


@dataclass(frozen=True)
class Model:
    """Holds a trained or ported model: config, parameters, tokenizers and generation settings.

    Example:
      >>> import jax
      >>> from jax_transformer import GenerationConfig, TransformerConfig, init_params
      >>> config = TransformerConfig(source_vocab_size=9, target_vocab_size=9, d_model=8, num_heads=2, d_ff=8)
      >>> generation = GenerationConfig(decoder_start_id=1, eos_id=2)
      >>> model = Model(config, init_params(config, jax.random.key(0)), None, None, generation)
      >>> sorted(model.params)
      ['constants', 'decoder', 'encoder', 'head', 'source_embedding', 'target_embedding']
    """

    config: TransformerConfig
    params: dict[str, Any]
    """A nested dict of NumPy or JAX arrays. Don't change them in place: make a new model with `dataclasses.replace`."""
    source_tokenizer: Tokenizer | None
    target_tokenizer: Tokenizer | None
    generation: GenerationConfig
    origin: dict[str, Any] | None = None
    """For an imported model: the dialect, and the names of its tensors, in order, with their dtypes."""
    training: dict[str, Any] | None = None
    """For a trained model: the step and its metrics."""
    tokenizer_files: dict[str, bytes] | None = None
    """For a model of Hugging Face's: its tokenizer files by name, which export writes unchanged."""
    ignored_tensors: Mapping[str, np.ndarray] | None = None
    """For a model imported by a map of names: the tensors that the map ignores, by name, which export writes
    unchanged."""
    training_state: TrainingState | None = None
    """The optimizer's state, if the training can go on."""
    adapters: Adapters | None = None
    """For a model trained by LoRA: the adapters, which `params` contain already."""
    _prepared: Any = field(default=None, init=False, repr=False, compare=False)
    """Kept by `decoding.prepare`; `dataclasses.replace` doesn't copy it."""

    def __repr__(self) -> str:
        """Describes the model in five lines; its arrays are too long."""
        leaves = [leaf for path, leaf in flatten(self.params).items() if not path.startswith("constants/")]
        dtypes = ", ".join(dict.fromkeys(str(np.dtype(leaf.dtype)) for leaf in leaves))
        tokenizers = [
            f"{side} of {tokenizer.vocab_size:,} tokens"
            for side, tokenizer in (("source", self.source_tokenizer), ("target", self.target_tokenizer))
            if tokenizer is not None
        ]
        weights = [
            f"ported, dialect {self.origin['dialect']}" if self.origin and "dialect" in self.origin else "",
            f"trained, step {self.training['step']:,}" if self.training and "step" in self.training else "",
        ]
        made = f"  weights: {'; '.join(filter(None, weights)) or 'as they were given'}"
        sizes = f"{sum(math.prod(np.shape(leaf)) for leaf in leaves):,} parameters in {dtypes}"
        stacks = [_described(side, getattr(self.config, side)) for side in ("encoder", "decoder")]
        return "\n".join([f"Model: {sizes}", *stacks, f"  tokenizers: {', '.join(tokenizers) or 'none'}", made])

    def astype(self, dtype: Literal["float32", "bfloat16", "float64"]) -> Model:
        """Returns the model with its parameters rounded to a dtype, in which it then computes.

        bfloat16 takes half the memory of float32. GPUs, TPUs and processors with instructions for it decode faster.

        Args:
          dtype: the dtype. Norms and softmax are computed in float32 or wider.

        Raises:
          ConfigError: another dtype.

        Example:
          >>> import jax
          >>> from jax_transformer import GenerationConfig, TransformerConfig, init_params
          >>> config = TransformerConfig(source_vocab_size=9, target_vocab_size=9, d_model=8, num_heads=2, d_ff=8)
          >>> generation = GenerationConfig(decoder_start_id=1, eos_id=2)
          >>> model = Model(config, init_params(config, jax.random.key(0)), None, None, generation).astype("bfloat16")
          >>> str(model.params["head"]["kernel"].dtype), model.config.compute_dtype
          ('bfloat16', 'bfloat16')
        """
        config = self.config.replace(compute_dtype=dtype)
        rounded = {path: leaf.astype(numpy_dtype(dtype)) for path, leaf in flatten(self.params).items()}
        return dataclasses.replace(self, config=config, params=unflatten(rounded))


def _described(name: str, stack: Stack) -> str:
    return (
        f"  {name}: layers {stack.num_layers}, width {stack.d_model}, heads {stack.self_attention.num_heads}, "
        f"feed-forward {stack.feed_forward.width if stack.feed_forward else 'none'}"
    )


def save_model(model: Model, path: str | os.PathLike[str]) -> None:
    """Writes a model directory: under a temporary name next to `path` first, then in its place.

    Replaces a model directory that exists, in one step where the operating system can exchange two directories; in a
    bucket the name must be free, and the manifest is written last. Parameters keep their dtypes.

    Args:
      model: the model.
      path: the directory to write, here or in a bucket.

    Raises:
      ModelError: `path` is neither a model directory nor an empty one, or other files were put into it; its parent
        doesn't exist; the model's parameters don't fit its config; `model` isn't a Model.
      BucketError: there is something at `path` in a bucket already, or it can't be written.

    Example:
      >>> import jax
      >>> from jax_transformer import GenerationConfig, Model, TransformerConfig, init_params
      >>> config = TransformerConfig(source_vocab_size=9, target_vocab_size=9, d_model=8, num_heads=2, d_ff=8,
      ...                            num_encoder_layers=1, num_decoder_layers=1)
      >>> model = Model(config, init_params(config, jax.random.key(0)), None, None,
      ...               GenerationConfig(decoder_start_id=1, eos_id=2))
      >>> save_model(model, "saved")
      >>> load_model("saved").config == config
      True
    """
    if not isinstance(model, Model):
        raise ModelError(f"save_model: expected a Model and a path; received {type(model).__name__} as the model")
    check_replaceable(path)
    problems = param_problems(model.config, flatten(model.params)) + id_problems(model.config, model.generation)
    problems += adapter_problems(model.adapters, flatten(model.params)) if model.adapters else []
    if problems:
        raise ModelError("this model can't be saved", problems)
    with written(path, last=MANIFEST) as local:
        target = Path(os.path.realpath(local))
        with temporary_directory_beside(target) as temporary:
            _write_files(model, temporary)
            _put_in_place(temporary, target)


def load_model(path: str | os.PathLike[str], *, mapped: bool = False) -> Model:
    """Reads a model directory, the one named `model` in a run directory, or a model on the Hub.

    Args:
      path: a model directory or a run directory, here or in a bucket (gs://, s3://, hf://); or, if there is none, a
        name on the Hugging Face Hub, such as "owner/name" or "owner/name@revision".
      mapped: leave the parameters in their file, mapped into memory read-only; only what is used is read.

    Returns:
      The Model; its parameters are NumPy arrays in main memory, in the dtypes in which they were saved.

    Raises:
      ModelError: no such directory, or no model in it; a name on the Hub that can't be had; a newer version wrote it;
        a file is missing or was altered since; a config has unknown or invalid fields; parameters don't fit the
        config. Reports all problems together.

    Example:
      >>> import jax
      >>> from jax_transformer import GenerationConfig, Model, TransformerConfig, init_params
      >>> config = TransformerConfig(source_vocab_size=9, target_vocab_size=9, d_model=8, num_heads=2, d_ff=8,
      ...                            num_encoder_layers=1, num_decoder_layers=1)
      >>> model = Model(config, init_params(config, jax.random.key(0)), None, None,
      ...               GenerationConfig(decoder_start_id=1, eos_id=2))
      >>> save_model(model, "saved")
      >>> load_model("saved").params["head"]["kernel"].shape
      (8, 9)
    """
    return load_directory(find_model(path), mapped=mapped)


def origin_of(path: str | os.PathLike[str]) -> dict[str, Any] | None:
    """Returns the origin of the model in a model or run directory; None if there is no model, or it has none."""
    try:
        return read_manifest(find_model(path)).get("origin")
    except HubError:
        raise
    except ModelError:
        return None


def ignored_tensors_of(path: str | os.PathLike[str]) -> Mapping[str, np.ndarray] | None:
    """Reads the ignored tensors of the model in a model or run directory; None if there is no model, or it has none."""
    try:
        directory = find_model(path)
    except HubError:
        raise
    except ModelError:
        return None
    try:
        return dict(read_tensors(directory / IGNORED)) if (directory / IGNORED).is_file() else None
    except PortingError:
        return None


def generation_of(path: str | os.PathLike[str]) -> GenerationConfig | None:
    """Reads the generation settings of a model or run directory; None if there is no model."""
    try:
        return read_generation(find_model(path) / GENERATION)
    except HubError:
        raise
    except (ValueError, OSError):
        return None


# --- saving


def check_replaceable(path: str | os.PathLike[str]) -> None:
    """Raises ModelError, or BucketError, where `save_model` could not write to this path: see there."""
    address = address_of(path)
    if address is not None:
        check_free(address)
        return
    target = Path(os.path.realpath(path))
    if not target.parent.is_dir():
        raise ModelError(f"{target}: there is no directory {target.parent}")
    if not target.exists():
        return
    if not target.is_dir():
        raise ModelError(f"{target} is a file; expected a name that is free, or a model directory to replace")
    entries = sorted(entry.name for entry in target.iterdir())
    if entries and not is_model_directory(target):
        raise ModelError(
            f"{target} is a directory but no model's (it holds {', '.join(entries[:3])}); it is left alone"
        )
    foreign = [name for name in entries if name not in (*FILES, TOKENIZER_FOLDER, MANIFEST)]
    if foreign:
        raise ModelError(
            f"{target} holds files that are no part of a model and would be lost: {', '.join(foreign)}; move them first"
        )


def _write_files(model: Model, directory: Path) -> None:
    params_sum = write_tensors(directory / PARAMS, flatten(model.params))
    _write_json(directory / CONFIG, dataclasses.asdict(model.config))
    _write_json(directory / GENERATION, dataclasses.asdict(model.generation))
    for side, name in TOKENIZERS.items():
        tokenizer = getattr(model, side)
        if tokenizer is not None:
            (directory / name).write_text(tokenizer.to_json(), encoding="utf-8")
    if model.ignored_tensors:
        write_tensors(directory / IGNORED, model.ignored_tensors)
    if model.training_state is not None:
        write_tensors(directory / OPTIMIZER, model.training_state.arrays())
    if model.adapters:
        write_tensors(directory / ADAPTERS, flatten(model.adapters.params))
    if model.tokenizer_files:
        (directory / TOKENIZER_FOLDER).mkdir()
        for name, data in model.tokenizer_files.items():
            (directory / TOKENIZER_FOLDER / name).write_bytes(data)
    rest = [name for name in (*FILES, *tokenizer_files(directory)) if name != PARAMS and (directory / name).exists()]
    sums = {PARAMS: params_sum} | {name: sha256(directory / name) for name in rest}
    manifest = {"format_version": FORMAT_VERSION, "sha256": sums, "training": model.training, "origin": model.origin}
    if model.training_state is not None:
        manifest["training_state"] = model.training_state.described()
    manifest |= {"lora": described(model.adapters)} if model.adapters else {}
    _write_json(directory / MANIFEST, manifest)
    for name in (*sums, MANIFEST):  # on the disk before the directory gets its name
        with (directory / name).open("rb") as handle:
            os.fsync(handle.fileno())


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _put_in_place(new: Path, target: Path) -> None:
    """Renames the directory `new` to `target`; a directory of that name moves to `new` or is removed."""
    if not target.exists():
        new.rename(target)
        return
    if _exchange(new, target):
        return
    old = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.old")
    target.rename(old)
    try:
        new.rename(target)
    except OSError:
        old.rename(target)
        raise
    shutil.rmtree(old)


def _exchange(first: Path, second: Path) -> bool:
    """Swaps the names of two directories in one step, where kernel and file system can (Linux: renameat2); says whether
    it did."""
    at_working_directory, exchange = -100, 2
    renameat2 = getattr(ctypes.CDLL(None), "renameat2", None) if sys.platform == "linux" else None
    return renameat2 is not None and (
        renameat2(at_working_directory, os.fsencode(first), at_working_directory, os.fsencode(second), exchange) == 0
    )


# --- loading


def load_directory(directory: Path, *, mapped: bool = False) -> Model:
    """Reads the model in a model directory, as `load_model` does."""
    with naming_errors(directory):
        files = ModelFiles(directory)
        problems, manifest = files.problems, files.manifest
        config = files.config()
        generation = files.generation()
        if config is not None and generation is not None:
            problems += id_problems(config, generation)
        leaves = files.mapped_parameters() if mapped else files.tensors(PARAMS)
        if config is not None and leaves is not None:
            problems += [f"{PARAMS}: {problem}" for problem in param_problems(config, leaves)]
        tokenizers = {side: files.tokenizer(name) for side, name in TOKENIZERS.items()}
        ignored = files.tensors(IGNORED, mapped=mapped)
        optimizer = files.tensors(OPTIMIZER, mapped=True)
        lora = files.tensors(ADAPTERS)
        state = adapters = None
        if optimizer is not None:
            try:
                state = arrange_training_state(optimizer, manifest.get("training_state"))
            except PortingError as error:
                problems.append(f"{OPTIMIZER}: {error}")
        if lora is not None and leaves is not None:
            adapters = arrange_adapters(lora, manifest.get("lora"), leaves, problems)
        if problems or config is None or generation is None or leaves is None:
            raise ModelError(f"{directory} can't be loaded", problems)
        params = unflatten(leaves)
        originals = files.tokenizer_files()
    return Model(
        config,
        params,
        **tokenizers,
        generation=generation,
        origin=manifest.get("origin"),
        training=manifest.get("training"),
        tokenizer_files=originals or None,
        ignored_tensors=ignored,
        training_state=state,
        adapters=adapters,
    )


def id_problems(config: TransformerConfig, generation: GenerationConfig) -> list[str]:
    """Returns the ids of the generation settings that the target's vocabulary lacks."""
    return [f"generation: {problem}" for problem in generation.ids_outside(config.target_vocab_size)]


def find_model(path: str | os.PathLike[str]) -> Path:
    """Returns the model directory that a path or a name on the Hub means; from there and from a bucket it is
    downloaded.

    Raises:
      ModelError, BucketError: see `load_model`.
    """
    if address_of(path) is not None:
        copy = model_in_bucket(path)
        if copy is None:
            raise ModelError(
                f"{named(path)}: expected a model directory, or a run directory with a model in it; received none "
                f"with {MANIFEST}"
            )
        return copy
    on_hub = hub_name(path)
    if on_hub is not None:
        return download_model(on_hub)
    path = Path(path)
    for directory in (path, path / "model"):
        if is_model_directory(directory):
            return directory
    if not path.exists():
        is_name = parse_hub_name(os.fspath(path)) is not None
        advice = f"; for a model of this name on the Hub, write {path}@main" if is_name else ""
        raise ModelError(f"{path}: no such directory{advice}")
    if not path.is_dir():
        raise ModelError(f"{path} is a file; expected a model directory, or a run directory with a model in it")
    missing = [name for name in (MANIFEST, CONFIG) if not (path / name).is_file()]
    if missing == [MANIFEST]:
        raise ModelError(
            f"{path} is no model directory (it has no {MANIFEST}). If transformers wrote it, port it first: "
            f"jax-transformer port {path} MODEL"
        )
    if (path / "config.yaml").is_file():
        raise ModelError(f"{path} is a run without a model yet; to finish it: jax-transformer train --resume {path}")
    raise ModelError(
        f"{path} is no model directory (it has no {' and no '.join(missing)}), and no run directory with a model in it"
    )


# --- both ways
