"""Directories in which Hugging Face's transformers keeps a model: config.json, generation_config.json, weights and
tokenizer files."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from jax_transformer.config.decoding import GenerationConfig
from jax_transformer.config.model import TransformerConfig
from jax_transformer.porting.dialects import ConfigFile, Dialect, Json, all_dialects
from jax_transformer.porting.flax_checkpoint import FLAX_WEIGHTS, read_flax
from jax_transformer.porting.generation_config import IDS, decoding_fields, in_effect, parsed, start_and_end, text_of
from jax_transformer.porting.missing_operations import MISSING
from jax_transformer.runtime.directories import check_free, new_directory
from jax_transformer.runtime.json_text import indented_json
from jax_transformer.runtime.limits import JSON_BYTES, TOKENIZER_BYTES, read_bytes, read_text
from jax_transformer.storage.hub import HubName, hub_name
from jax_transformer.storage.tensor_files import read_tensors, write_tensors
from jax_transformer.storage.tensors import PortingError

CONFIG, GENERATION = "config.json", "generation_config.json"
WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    *FLAX_WEIGHTS,
)
"""The first of these that is there is read."""
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "target_vocab.json",
    "vocab-src.json",
    "vocab-tgt.json",
    "source.spm",
    "target.spm",
    "spiece.model",
    "sentencepiece.bpe.model",
)


@dataclass(frozen=True)
class HuggingFaceModel:
    """Holds the content of a directory."""

    tensors: Mapping[str, Any]
    table: Dialect
    config: Json
    """config.json."""
    fields: dict[str, Any]
    """What it says of TransformerConfig and GenerationConfig."""
    generation: str = ""
    """The text of generation_config.json; "" where there is none."""
    tokenizer: Mapping[str, bytes] = field(default_factory=dict)
    """Tokenizer files by name."""


def open_directory(path: str | os.PathLike[str]) -> HuggingFaceModel | None:
    """Reads a directory, or a model on the Hub; None if the path is neither.

    Raises:
      PortingError: see `read_directory` and `download`.
    """
    on_hub = hub_name(path)
    directory = download(on_hub) if on_hub else path
    return read_directory(directory) if os.path.isdir(directory) else None


def read_directory(path: str | os.PathLike[str]) -> HuggingFaceModel:
    """Reads a directory; of the weights only what is asked for later.

    Raises:
      PortingError: a file that is missing or malformed; another kind of model than the tables are for, or one that is
        quantised; values in config.json that no model here has.
    """
    path = Path(path)
    config = _read_json(path / CONFIG)
    table = _table(path / CONFIG, config)
    fields = read_fields(path / CONFIG, table, config)
    generation = _read_text(path / GENERATION) if (path / GENERATION).is_file() else ""
    try:
        content = in_effect(config, generation)
        fields |= _ids(of_family(table), config, content) | decoding_fields(content)
    except PortingError as error:
        raise PortingError(f"{path / (GENERATION if generation else CONFIG)}: {error}") from None
    files = [path / name for name in TOKENIZER_FILES if (path / name).is_file()]
    tokenizer = {file.name: read_bytes(file, TOKENIZER_BYTES, PortingError) for file in files}
    return HuggingFaceModel(_read_weights(path), table, config, fields, generation, tokenizer)


def write_directory(
    path: str | os.PathLike[str],
    table: Dialect,
    config: TransformerConfig,
    generation: GenerationConfig,
    tensors: Mapping[str, np.ndarray],
    origin: Mapping[str, Any],
    tokenizer: Mapping[str, bytes],
    write_more: Callable[[Path], None] | None = None,
) -> None:
    """Writes a directory that `from_pretrained` loads, under another name first, which then becomes `path`.

    Args:
      origin: the config.json and the text of generation_config.json that the model came with, if any: what the model
        doesn't say stays as it was.
      write_more: writes other files into the directory.

    Raises:
      PortingError: there is something at `path`, or no directory to put it in; the family isn't one of transformers.
    """
    check_free(path, PortingError)
    file = of_family(table)
    original, text = dict(origin.get("config", {})), origin.get("generation_config", "")
    if not isinstance(text, str):
        text, generation = _of_first_format(original, text, generation)
    content = _config_json(file, config, original)
    content |= dict.fromkeys(
        [key for key in ("dtype", "torch_dtype") if key in original] or ["dtype"], _main_dtype(tensors)
    )
    ids = {key: getattr(generation, name) for key, name in IDS.items()}
    if original:
        said = _ids(file, original, in_effect(original, text))
        ids = {key: value for key, value in ids.items() if value != said.get(IDS[key])}
    else:
        text = indented_json({"pad_token_id": config.target_pad_id})
    text = text_of(generation, original, text)
    if text and ids:
        text = indented_json(parsed(text) | ids)
    with new_directory(path, PortingError) as temporary:
        (temporary / CONFIG).write_text(indented_json(content | ids), encoding="utf-8")
        if text:  # where there was none, transformers makes it of config.json
            (temporary / GENERATION).write_bytes(text.encode())
        for name, data in tokenizer.items():
            (temporary / name).parent.mkdir(exist_ok=True)
            (temporary / name).write_bytes(data)
        write_tensors(temporary / WEIGHTS[0], tensors)
        if write_more is not None:
            write_more(temporary)


def _of_first_format(config: Json, kept: Json, generation: GenerationConfig) -> tuple[str, GenerationConfig]:
    """Returns the text of generation_config.json, and the settings of it and of generation.json together, for a model
    directory of the first format, whose generation.json lacks them."""
    text = indented_json(kept) if kept else ""
    known = {name: value for name, value in vars(generation).items() if value is not None}
    return text, GenerationConfig(**decoding_fields(in_effect(config, text)) | known)


def _main_dtype(tensors: Mapping[str, np.ndarray]) -> str:
    """Returns the dtype that most values have."""
    sizes: Counter[str] = Counter()
    for tensor in tensors.values():
        sizes[tensor.dtype.name] += tensor.size
    return sizes.most_common(1)[0][0]


def of_family(table: Dialect) -> ConfigFile:
    """Raises PortingError if the dialect is none of transformers."""
    if table.config_file is None:
        families = ", ".join(name for name, other in all_dialects().items() if other.config_file)
        raise PortingError(
            f"dialect {table.name} has no directories, as {families} have: expected a name that ends in .pt or "
            ".safetensors"
        )
    return table.config_file


def download(name: HubName) -> Path:
    """Downloads a model from the Hub, or finds it in the Hub's cache, and returns its directory.

    Raises:
      PortingError: there is no such model, or the Hub can't be reached.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    wanted = [CONFIG, GENERATION, *TOKENIZER_FILES]
    try:
        found = Path(
            snapshot_download(name.repository, revision=name.revision, allow_patterns=[*wanted, "model*.safetensors*"])
        )
        if not any((found / weights).exists() for weights in WEIGHTS):
            found = Path(
                snapshot_download(
                    name.repository, revision=name.revision, allow_patterns=[*wanted, "pytorch_model*.bin*"]
                )
            )
        if not any((found / weights).exists() for weights in WEIGHTS):
            found = Path(
                snapshot_download(
                    name.repository, revision=name.revision, allow_patterns=[*wanted, "flax_model*.msgpack*"]
                )
            )
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise PortingError(
            f"{name}: no such file or directory, and no model of this name on the Hub, or it can't be reached "
            f"({type(error).__name__})"
        ) from None
    return found


# --- config.json


def read_fields(path: Path, table: Dialect, config: Json) -> dict[str, Any]:
    """Returns the config fields of a config.json. Raises PortingError, with all problems, if it describes another kind
    of model."""
    file = of_family(table)
    problems = [
        f"{key} must be {' or '.join(map(repr, values))}; received {config[key]!r}"
        for key, values in file.allowed.items()
        if config.get(key) is not None and config[key] not in values
    ]
    if config.get("quantization_config"):
        problems.append(
            "quantization_config: quantised weights can't be carried over; take the model that they were made of"
        )
    others = [name for name in _architectures(config) if name not in file.architectures]
    if others:
        problems.append(
            f"architectures must be {' or '.join(file.architectures)}; received {', '.join(others)}, which has other "
            "parts"
        )
    try:
        fields = file.fields(config)
    except PortingError as error:
        problems += error.problems or [str(error).removeprefix("config.json: ")]
    if problems:
        raise PortingError(f"{path}: no model that this ports", problems)
    return fields


def told_by_configs(config: Json, generation: Json) -> tuple[str | None, dict[str, Any]]:
    """Returns the dialect of a model in memory, and what its config and its generation config tell; None and nothing if
    its model_type is unknown.

    Raises:
      PortingError: no config expresses such models; values that no model here has.
    """
    if config.get("model_type") not in {*_families(), *MISSING}:
        return None, {}
    path = Path("its config")
    table = _table(path, config)
    try:
        ids = _ids(of_family(table), config, generation or in_effect(config, ""))
    except PortingError as error:
        raise PortingError(f"{path}: {error}") from None
    return table.name, read_fields(path, table, config) | ids


def _config_json(file: ConfigFile, config: TransformerConfig, original: Json) -> dict[str, Any]:
    """Returns the config.json of a config, with the values of `original` where they still hold."""
    start = {"architectures": [file.architectures[0]], "model_type": file.model_type, "is_encoder_decoder": True}
    if original:
        said = file.fields(original)
        if all(getattr(config, name) == value for name, value in said.items()):
            return dict(original)
    follows = {
        key: value for key, value in file.write(config).items() if key in original or value != file.defaults.get(key)
    }
    return {key: value for key, value in (original or start).items() if key not in file.aliases} | follows


def _architectures(config: Json) -> list[str]:
    """Returns the names under "architectures"."""
    names = config.get("architectures")
    return [str(name) for name in (names if isinstance(names, list) else [names] if names else [])]


def _families() -> dict[str, Dialect]:
    """Returns the dialects of transformers' families by model_type."""
    return {table.config_file.model_type: table for table in all_dialects().values() if table.config_file}


def _table(path: Path, config: Json) -> Dialect:
    """Returns the dialect of a config.json's model_type."""
    families, found = _families(), config.get("model_type")
    if isinstance(found, str) and found in families:
        return families[found]
    what = f"{found!r} ({', '.join(_architectures(config) or ['no architecture'])})"
    if isinstance(found, str) and found in MISSING:
        raise PortingError(f"{path}: expected a model that a config expresses; received {what}, with {MISSING[found]}")
    kind = "" if config.get("is_encoder_decoder") else ", which isn't said to be an encoder-decoder"
    raise PortingError(f"{path}: model_type must be one of {', '.join(families)}; received {what}{kind}")


def _ids(file: ConfigFile, config: Json, content: Json) -> dict[str, Any]:
    """Returns the start and end ids that `generate` takes or, for those that it lacks, those of config.json.

    Args:
      config: config.json.
      content: the settings in effect.
    """
    taken, lacking = start_and_end(content, file.resolved(config), starts_with_tag=file.starts_with_tag)
    return taken | lacking


# --- files


def _read_weights(path: Path) -> Mapping[str, Any]:
    name = next((name for name in WEIGHTS if (path / name).is_file()), None)
    if name is None:
        others = sorted(
            entry.name for entry in path.iterdir() if entry.suffix in (".h5", ".gguf", ".onnx", ".ot", ".msgpack")
        )
        received = f"received {', '.join(others)}" if others else "received none of them"
        raise PortingError(f"{path}: expected weights, one of {', '.join(WEIGHTS)}; {received}")
    return read_flax(path / name) if name in FLAX_WEIGHTS else read_tensors(path / name)


def _read_json(path: Path) -> dict[str, Any]:
    return _parsed(path, _read_text(path))


def _parsed(path: Path, text: str) -> dict[str, Any]:
    try:
        return parsed(text)
    except PortingError as error:
        raise PortingError(f"{path}: {error}") from None


def _read_text(path: Path) -> str:
    try:
        return read_text(path, JSON_BYTES, PortingError)
    except OSError as error:
        raise PortingError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise PortingError(f"{path}: no JSON ({error})") from None
