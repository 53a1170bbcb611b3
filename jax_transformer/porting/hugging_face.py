"""Directories in which Hugging Face's transformers keeps a model: config.json, generation_config.json, weights and
tokenizer files.

Weights may also be `flax_model.msgpack`, which the Flax models of transformers up to 4 wrote, or several such files
with an index. A path in it such as model/encoder/layers/0/fc1/kernel is the tensor
model.encoder.layers.0.fc1.weight, with its axes the other way round; norms have a scale and embeddings an embedding
where PyTorch says weight. (As transformers' own modeling_flax_pytorch_utils.py maps them.)
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from jax_transformer.config.decoding import GenerationConfig
from jax_transformer.config.languages import code_of
from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.speech import SpeechTokens, pairs
from jax_transformer.config.validation import ConfigError
from jax_transformer.porting.chronos import refuse_other_forecasters, series_fields, with_series
from jax_transformer.porting.dialects import ConfigFile, Dialect, Json, all_dialects
from jax_transformer.porting.missing_operations import MISSING
from jax_transformer.porting.one_level import value_at
from jax_transformer.runtime.directories import check_free, new_directory
from jax_transformer.runtime.files import read_bytes, read_text
from jax_transformer.runtime.json_text import indented_json, parse_json, read_json
from jax_transformer.runtime.limits import JSON_BYTES, TOKENIZER_BYTES
from jax_transformer.runtime.trees import flatten
from jax_transformer.storage.hub import HubName
from jax_transformer.storage.model_directory import Model
from jax_transformer.storage.tensor_files import INDEX, read_shards, read_tensors, write_tensors
from jax_transformer.storage.tensors import Placed, PortingError

CONFIG, GENERATION = "config.json", "generation_config.json"
FLAX_WEIGHTS = ("flax_model.msgpack", f"flax_model.msgpack{INDEX}")
LAST = {"kernel": ("weight", True), "scale": ("weight", False), "embedding": ("weight", False)}
"""The last part of a path → PyTorch's, and whether the axes are the other way round. Other parts (bias, weight,
final_logits_bias) are alike."""
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
    "vocab.txt",
    "merges.txt",
    "target_vocab.json",
    "vocab-src.json",
    "vocab-tgt.json",
    "source.spm",
    "target.spm",
    "spiece.model",
    "sentencepiece.bpe.model",
    "dict.SRC.json",
    "dict.TGT.json",
    "model.SRC",
    "model.TGT",
)


@dataclass(frozen=True)
class HuggingFaceModel:
    """Holds the content of a directory."""

    tensors: Mapping[str, Any]
    table: Dialect
    config: Json
    """config.json."""
    fields: dict[str, Any]
    """Its fields of TransformerConfig and GenerationConfig."""
    generation: str = ""
    """The text of generation_config.json; "" where there is none."""
    tokenizer: Mapping[str, bytes] = field(default_factory=dict)
    """Tokenizer files by name."""


def read_directory(path: str | os.PathLike[str]) -> HuggingFaceModel:
    """Reads a directory; of the weights only what is asked for later.

    Raises:
      PortingError: a file that is missing or malformed; another kind of model than the tables are for, or one that is
        quantised; values in config.json that no model here has.
    """
    path = Path(path)
    config = _read_json(path / CONFIG)
    generation = _read_text(path / GENERATION) if (path / GENERATION).is_file() else ""
    refuse_other_forecasters(path / CONFIG, config)
    table = _table(path / CONFIG, config)
    fields = read_fields(path / CONFIG, table, config)
    try:
        content = in_effect(config, generation)
        resolved = resolved_config(family_file(table), config)
        fields |= _ids(table, resolved, content) | decoding_fields(content) | speech_fields(content)
    except PortingError as error:
        raise PortingError(f"{path / (GENERATION if generation else CONFIG)}: {error}") from None
    fields |= series_fields(path / CONFIG, config, fields)
    files = [path / name for name in TOKENIZER_FILES if (path / name).is_file()]
    tokenizer = {file.name: read_bytes(file, TOKENIZER_BYTES, PortingError) for file in files}
    return HuggingFaceModel(_read_weights(path), table, config, fields, generation, tokenizer)


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
    file = family_file(table)
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
        fields = config_fields(file, config)
    except PortingError as error:
        problems += error.problems or [str(error).removeprefix("config.json: ")]
    if problems:
        raise PortingError(f"{path}: no model that this ports", problems)
    return fields


def config_fields(file: ConfigFile, config: Json) -> dict[str, Any]:
    """Returns the config fields of a config.json. Raises as `ConfigFile.read` does."""
    return file.read(resolved_config(file, config))


def resolved_config(file: ConfigFile, config: Json) -> dict[str, Any]:
    """Returns a config.json with all defaults filled in, and aliases under their full names. Some programs write
    integers as 12.0 and booleans as 0 or 1.0: these are read as the integers and booleans that they are."""
    named = {key: config[alias] for alias, key in file.aliases.items() if alias in config}
    found = {**file.defaults, **config, **named}
    return {
        key: _like_default(value, file.defaults[key]) if key in file.defaults else value for key, value in found.items()
    }


def _like_default(value: Any, default: Any) -> Any:
    """Returns a number of JSON in the type of its default: 12.0 as an integer, and 0 or 1.0 as a boolean. Other values,
    and values whose default is a float, are returned as they are."""
    if isinstance(default, bool) and isinstance(value, int | float) and value in (0, 1):
        return bool(value)
    if not isinstance(default, float) and isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def read_configs(config: Json, generation: Json) -> tuple[str | None, dict[str, Any]]:
    """Reads the config and the generation config of a model in memory: its dialect and its fields; None and no fields
    if its model_type is unknown.

    Raises:
      PortingError: no config expresses such models; values that no model here has.
    """
    if config.get("model_type") not in {*_families(), *MISSING}:
        return None, {}
    path = Path("its config")
    table = _table(path, config)
    try:
        ids = _ids(table, resolved_config(family_file(table), config), generation or in_effect(config, ""))
    except PortingError as error:
        raise PortingError(f"{path}: {error}") from None
    return table.name, read_fields(path, table, config) | ids


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


def _ids(table: Dialect, config: Json, content: Json) -> dict[str, Any]:
    """Returns the start and end ids that `generate` takes and, where it has none, config.json's.

    Args:
      config: config.json with the family's defaults.
      content: the settings in effect.
    """
    taken, lacking = start_and_end(content, config, starts_with_tag=family_file(table).starts_with_tag)
    return taken | lacking


def family_file(table: Dialect) -> ConfigFile:
    """Returns the form of a family's config.json. Raises PortingError if the dialect is none of transformers."""
    if table.config_file is None:
        families = ", ".join(name for name, other in all_dialects().items() if other.config_file)
        raise PortingError(
            f"dialect {table.name} has no directories, as {families} have: expected a name that ends in .pt or "
            ".safetensors"
        )
    return table.config_file


# --- generation_config.json, and of old, config.json

SAME = {
    "no_repeat_ngram_size": "no_repeat_ngram",
    "encoder_no_repeat_ngram_size": "encoder_no_repeat_ngram",
    "repetition_penalty": "repetition_penalty",
    "bad_words_ids": "bad_words",
    "suppress_tokens": "suppress_tokens",
    "begin_suppress_tokens": "begin_suppress_tokens",
    "forced_bos_token_id": "forced_bos_id",
    "forced_eos_token_id": "forced_eos_id",
    "num_beams": "beam_size",
    "length_penalty": "length_penalty",
    "early_stopping": "early_stopping",
    "renormalize_logits": "renormalize",
    "do_sample": "sampling",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
}
"""Keys → fields of GenerationConfig with the same values."""
LENGTHS = {"max_new_tokens": "max_length", "min_new_tokens": "min_length"}
"""Keys and fields that count new tokens, and prevail → keys that count the start token, too."""
TOP_K = 50
"""The default of `generate` where tokens are drawn."""
UNBUILT = {
    "num_beam_groups": 1,
    "diversity_penalty": 0.0,
    "encoder_repetition_penalty": 1.0,
    "sequence_bias": None,
    "exponential_decay_length_penalty": None,
    "guidance_scale": 1.0,
    "watermarking_config": None,
    "remove_invalid_values": False,
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "top_h": None,
    "constraints": None,
    "force_words_ids": None,
    "penalty_alpha": 0.0,
    "dola_layers": None,
    "num_return_sequences": 1,
    "max_time": None,
    "stop_strings": None,
    "token_healing": False,
}
"""Keys that a ported model's settings leave out, and the values that change nothing. (Decoding here has groups of
beams; transformers 5 has none.)"""
IDS = {"decoder_start_token_id": "decoder_start_id", "eos_token_id": "eos_id"}
"""Keys of config.json and generation_config.json, and the fields of GenerationConfig that they are here."""
IDS_AND_PADS = ("pad_token_id", "bos_token_id", *IDS)
INTEGERS = (
    *(
        "num_beams",
        "no_repeat_ngram_size",
        "encoder_no_repeat_ngram_size",
        "top_k",
        "suppress_tokens",
        "begin_suppress_tokens",
        "forced_bos_token_id",
        "forced_eos_token_id",
    ),
    *LENGTHS,
    *LENGTHS.values(),
    *IDS_AND_PADS,
)
BOOLEANS = ("renormalize_logits", "do_sample", "early_stopping", "remove_invalid_values", "token_healing")
FORCES_BOS = "force_bos_token_to_be_generated"
"""A former key of config.json: the first token is bos_token_id."""


def in_effect(config: Json, text: str) -> dict[str, Any]:
    """Returns the settings that transformers 5 applies: generation_config.json's or, without this file, the ones of
    config.json that it knows.

    Args:
      config: config.json.
      text: the text of generation_config.json; "" for none.

    Raises:
      PortingError: the text is no JSON object; a number of beams, or a length, that is no integer.
    """
    content = parsed(text)
    if not text:
        known = {*SAME, *LENGTHS, *LENGTHS.values(), *UNBUILT, *IDS_AND_PADS}
        side = config.get("decoder")  # of an encoder-decoder of two models, whose configs have ids, too
        ids = {key: side.get(key) for key in IDS_AND_PADS} if isinstance(side, Mapping) else {}
        content = {key: value for key, value in config.items() if key in known and value is not None}
        content = {**ids, **content}
        if config.get(FORCES_BOS):
            content["forced_bos_token_id"] = config.get("bos_token_id")
    content = {key: _typed(key, value) for key, value in content.items() if value is not None}
    for key in ("num_beams", *LENGTHS, *LENGTHS.values()):
        if type(content.get(key, 0)) is not int:
            raise PortingError(f"{key} must be an integer; received {content[key]!r}")
    return content


def _typed(key: str, value: Any) -> Any:
    """Returns 12.0 as an integer and 0 or 1.0 as a boolean where the key has such values: transformers takes them for
    these."""
    if key in BOOLEANS:
        return _like_default(value, False)
    if key not in INTEGERS:
        return value
    return [_like_default(one, 0) for one in value] if isinstance(value, list) else _like_default(value, 0)


_OR_SEVERAL = {"eos_token_id": ", or a list of ids"}


def start_and_end(
    content: Json, config: Json, *, starts_with_tag: bool = False
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the ids that start and end a target as fields of GenerationConfig: the ids that `generate` takes, and the
    ids of config.json that it lacks.

    `generate` starts with bos_token_id without a decoder_start_token_id, refuses to start without both, and goes on to
    the longest length without an eos_token_id.

    Args:
      content: the settings in effect.
      config: config.json with the family's defaults.
      starts_with_tag: the tag of the target's language is the start unless decoder_start_token_id gives another.

    Raises:
      PortingError: several ids that start, or something else than an id.
    """
    taken: dict[str, Any] = {}
    lacking: dict[str, Any] = {}
    for key, name in IDS.items():
        value = content.get(key)
        if value is None and key == "decoder_start_token_id" and not starts_with_tag:
            value = content.get("bos_token_id")
        where = lacking if value is None else taken
        value = _typed(key, config.get(key)) if value is None else value
        more = [] if key != "eos_token_id" or not isinstance(value, list) else value[1:]
        value = value[0] if isinstance(value, list) and len(value) == 1 + len(more) else value
        if any(type(one) is not int for one in more) or (value is not None and type(value) is not int):
            received = [value, *more] if more else value
            raise PortingError(f"{key} must be one id{_OR_SEVERAL.get(key, '')}; received {received!r}")
        if more:
            where["more_eos_ids"] = tuple(more)
        if value is not None:
            where[name] = value
    return taken, lacking


def parsed(text: str) -> dict[str, Any]:
    """Parses the text of generation_config.json; "" has no settings. Raises PortingError if it is no JSON object."""
    try:
        content = parse_json(text or "{}")
    except ValueError as error:
        raise PortingError(f"no JSON ({error})") from None
    if not isinstance(content, dict):
        raise PortingError(f"expected a JSON object; received {type(content).__name__}")
    return content


def decoding_fields(content: Json) -> dict[str, Any]:
    """Returns the decoding fields of GenerationConfig from the settings in effect."""
    left_out = not_decoded(content)
    fields = {name: content[key] for key, name in SAME.items() if key in content and key not in left_out}
    fields |= {name: value for name, value in _lengths(content).items() if not left_out.keys() & {name, LENGTHS[name]}}
    if isinstance(ids := fields.get("forced_eos_id"), list) and len(ids) == 1:
        (fields["forced_eos_id"],) = ids
    if fields.get("sampling"):
        fields.setdefault("top_k", TOP_K)
    if isinstance(words := fields.get("bad_words"), list):
        end = content.get("eos_token_id")
        ends = [[one] for one in end] if isinstance(end, list) else [[end], end]
        fields["bad_words"] = [word for word in words if word not in ends] or None  # the end isn't forbidden
    for name in ("suppress_tokens", "begin_suppress_tokens"):
        if not fields.get(name):
            fields.pop(name, None)
    return fields


def speech_fields(content: Json) -> dict[str, Any]:
    """Returns the special ids of a model that transcribes speech, as the field `speech` of GenerationConfig; none of
    another model.

    Raises:
      PortingError: an id that is none.
    """
    if content.get("no_timestamps_token_id") is None:
        return {}
    names, tasks = content.get("lang_to_id") or {}, content.get("task_to_id") or {}
    is_multilingual = content.get("is_multilingual", bool(names))
    try:
        tokens = SpeechTokens(
            no_timestamps_id=content["no_timestamps_token_id"],
            languages={name.strip("<|>"): index for name, index in names.items()} if is_multilingual else None,
            transcribe_id=tasks.get("transcribe") if is_multilingual else None,
            translate_id=tasks.get("translate") if is_multilingual else None,
            previous_id=content.get("prev_sot_token_id"),
            max_initial_timestamp=content.get("max_initial_timestamp_index"),
            alignment_heads=pairs(heads) if (heads := content.get("alignment_heads")) is not None else None,
            **(_defaults_of_speech(content, names, tasks) if is_multilingual else {}),
        )
    except (AttributeError, ConfigError, TypeError) as error:
        raise PortingError(f"ids of speech: {error}") from None
    return {"speech": tokens}


def _defaults_of_speech(content: Json, languages: Json, tasks: Json) -> dict[str, Any]:
    """Returns the language and the task that generation_config.json sets; without either, those of its
    forced_decoder_ids, where no id leaves the language open. As transformers does, without a task it transcribes."""
    language, task = content.get("language"), content.get("task")
    if language is None and task is None:
        forced = dict(content.get("forced_decoder_ids") or ())
        by_id = {index: name for table in (languages, tasks) for name, index in table.items()}
        found = [by_id.get(forced.get(place)) for place in (1, 2)]
        language, task = (
            name if name in table else None for name, table in zip(found, (languages, tasks), strict=True)
        )
    if language is not None and not isinstance(language, str):
        raise PortingError(f"language must be a code or a name; received {language!r}")
    if task not in (None, "transcribe", "translate"):
        raise PortingError(f"task must be 'transcribe' or 'translate'; received {task!r}")
    return {"language": None if language is None else code_of(language), "task": task}


def speech_keys(speech: SpeechTokens | None) -> dict[str, Any]:
    """Returns the keys of generation_config.json for the special ids of speech: the inverse of `speech_fields`."""
    if speech is None:
        return {}
    tasks = {"transcribe": speech.transcribe_id, "translate": speech.translate_id}
    keys = {
        "no_timestamps_token_id": speech.no_timestamps_id,
        "is_multilingual": speech.languages is not None,
        "lang_to_id": {f"<|{code}|>": index for code, index in (speech.languages or {}).items()},
        "task_to_id": {task: index for task, index in tasks.items() if index is not None},
        "prev_sot_token_id": speech.previous_id,
        "max_initial_timestamp_index": speech.max_initial_timestamp,
        "language": speech.language,
        "task": speech.task,
        "alignment_heads": None if speech.alignment_heads is None else [*map(list, speech.alignment_heads)],
    }
    return {key: value for key, value in keys.items() if value not in (None, {})}


def _lengths(content: Json) -> dict[str, int]:
    """Returns the most and the fewest new tokens, by the keys of LENGTHS."""
    found = {}
    for new, whole in LENGTHS.items():
        if new in content:
            found[new] = content[new]
        elif whole in content:
            found[new] = content[whole] - 1
    return {name: count for name, count in found.items() if name == "max_new_tokens" or count > 0}


def not_decoded(content: Json) -> dict[str, Any]:
    """Returns the settings that `generate` obeys and decoding here doesn't."""
    found = {key: content[key] for key, usual in UNBUILT.items() if content.get(key) and content[key] != usual}
    if content.get("do_sample") and content.get("num_beams", 1) > 1:
        found["do_sample"] = True  # of beams
    if isinstance(ids := content.get("forced_eos_token_id"), list) and len(ids) != 1:
        found["forced_eos_token_id"] = ids
    lengths = _lengths(content)
    if lengths.get("min_new_tokens", 0) >= lengths.get("max_new_tokens", math.inf):  # no sentence ever ends
        found |= {key: content[key] for key in ("min_new_tokens", "min_length") if key in content}
    return found


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
    try:
        content = read_json(path, PortingError)
    except OSError as error:
        raise PortingError(f"{path}: {error.strerror}") from None
    except PortingError:
        raise
    except ValueError as error:
        raise PortingError(f"{path}: no JSON ({error})") from None
    if not isinstance(content, dict):
        raise PortingError(f"{path}: expected a JSON object; received {type(content).__name__}")
    return content


def _read_text(path: Path) -> str:
    try:
        return read_text(path, JSON_BYTES, PortingError)
    except OSError as error:
        raise PortingError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise PortingError(f"{path}: no JSON ({error})") from None


class FlaxCheckpoint(Placed):
    """Presents the arrays of a Flax model under PyTorch's names, without copies."""

    def __init__(self, leaves: Mapping[str, np.ndarray]) -> None:
        """Stores `leaves` by path, its parts joined by "/". Raises PortingError if two leaves get one name."""
        self._places: dict[str, tuple[np.ndarray, bool]] = {}
        for path, leaf in leaves.items():
            *parts, last = path.split("/")
            name, turned = LAST.get(last, (last, False))
            torch_name = ".".join([*parts, name])
            if torch_name in self._places:
                raise PortingError(f"{path}: another array becomes {torch_name}, too")
            self._places[torch_name] = leaf, turned

    def __getitem__(self, name: str) -> np.ndarray:
        leaf, turned = self._places[name]
        return leaf.T if turned else leaf


def read_flax(path: Path) -> FlaxCheckpoint:
    """Reads the tensors of a .msgpack file, or of the files in an index, by PyTorch's names.

    Raises:
      PortingError: a file is truncated, or isn't a tree of arrays; an index that `read_shards` refuses.
    """
    return FlaxCheckpoint(_leaves(path) if not path.name.endswith(INDEX) else read_shards(path, _leaves))


def _leaves(path: Path) -> dict[str, np.ndarray]:
    from flax import serialization

    try:
        tree = serialization.msgpack_restore(path.read_bytes())
        leaves = flatten(tree) if isinstance(tree, dict) else {}
    except OSError as error:
        raise PortingError(f"{path}: {error.strerror or type(error).__name__}") from None
    except Exception as error:  # foreign bytes end in any exception
        raise PortingError(f"{path}: truncated, or no file of flax.serialization ({type(error).__name__})") from None
    odd = [name for name, leaf in leaves.items() if not isinstance(leaf, np.ndarray)]
    if odd or not leaves:
        raise PortingError(f"{path}: expected a tree of arrays; received {', '.join(odd[:3]) or type(tree).__name__}")
    return leaves


# --- writing


def write_directory(
    path: str | os.PathLike[str],
    table: Dialect,
    model: Model,
    tensors: Mapping[str, np.ndarray],
    write_more: Callable[[Path], None] | None = None,
) -> None:
    """Writes a directory that `from_pretrained` loads, under another name first, which then becomes `path`.

    A model that came from such a directory of this dialect gets its tokenizer files back, and what it doesn't say stays
    in config.json and generation_config.json as it was.

    Args:
      model: the model, whose parameters aren't read.
      tensors: its tensors.
      write_more: writes other files into the directory.

    Raises:
      PortingError: there is something at `path`, or no directory to put it in; the family isn't one of transformers.
    """
    check_free(path, PortingError)
    file = family_file(table)
    origin, config, generation = model.origin or {}, model.config, model.generation
    is_return = origin.get("dialect") == table.name
    came = origin.get("hugging_face", {}) if is_return else {}
    original, text = dict(came.get("config", {})), came.get("generation_config", "")
    if not isinstance(text, str):
        text, generation = _first_format(original, text, generation)
    content = _config_json(file, config, original)
    content = with_series(content, generation.series, config.source_pad_id, generation.eos_id)
    content |= dict.fromkeys(
        [key for key in ("dtype", "torch_dtype") if key in original] or ["dtype"], _main_dtype(tensors)
    )
    ids = _stated_ids(vars(generation))
    if original:
        said = _stated_ids(_ids(table, resolved_config(file, original), in_effect(original, text)))
        ids = {key: value for key, value in ids.items() if value != said[key]}
    else:
        text = indented_json({"pad_token_id": config.target_pad_id} | speech_keys(generation.speech))
    text = text_of(generation, original, text)
    if text and ids:
        text = indented_json(parsed(text) | ids)
    if file.start_in and "decoder_start_token_id" in ids:
        content[file.start_in] = {**content[file.start_in], "bos_token_id": ids["decoder_start_token_id"]}
    with new_directory(path, PortingError) as temporary:
        (temporary / CONFIG).write_text(indented_json(content | ids), encoding="utf-8")
        if text:  # where there was none, transformers makes it of config.json
            (temporary / GENERATION).write_bytes(text.encode())
        for name, data in (model.tokenizer_files or {} if is_return else {}).items():
            (temporary / name).parent.mkdir(exist_ok=True)
            (temporary / name).write_bytes(data)
        write_tensors(temporary / WEIGHTS[0], tensors)
        if write_more is not None:
            write_more(temporary)


def _stated_ids(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what transformers' files say of the ids that start and end a target: several ends as a list."""
    ids = {key: fields.get(name) for key, name in IDS.items()}
    if more := fields.get("more_eos_ids"):
        ids["eos_token_id"] = [ids["eos_token_id"], *more]
    return ids


def _first_format(config: Json, kept: Json, generation: GenerationConfig) -> tuple[str, GenerationConfig]:
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


def _config_json(file: ConfigFile, config: TransformerConfig, original: Json) -> dict[str, Any]:
    """Returns the config.json of a config, with the values of `original` where they still hold."""
    start = {"architectures": [file.architectures[0]], "model_type": file.model_type, "is_encoder_decoder": True}
    if original:
        said = config_fields(file, original)
        if all(value_at(config, name) == value for name, value in said.items()):
            return dict(original)
    follows = {
        key: {**original.get(key, {}), **value} if isinstance(value, dict) else value
        for key, value in file.write(config).items()
        if key in original or value != file.defaults.get(key)
    }
    return {key: value for key, value in (original or start).items() if key not in file.aliases} | follows


def text_of(generation: GenerationConfig, config: Json, text: str) -> str:
    """Returns the text of a generation_config.json with the model's decoding settings: the original text if it has
    them, "" if none is needed.

    Args:
      config, text: the model's original ones, as in `in_effect`, or {} and "".

    Raises:
      PortingError: transformers has no such beam search.
    """
    if generation.semantics not in (None, "huggingface"):
        raise PortingError(
            f"generation_config.json: semantics must be 'huggingface'; received {generation.semantics!r}"
        )
    content = in_effect(config, text)
    wanted, said = _expressed(generation), _expressed(GenerationConfig(**decoding_fields(content)))
    changed = {name for name in wanted | said if wanted.get(name) != said.get(name)}
    if not changed:
        return text
    content = parsed(text) if text else content
    for key, name in {**SAME, **{name: name for name in LENGTHS}}.items():
        if name in changed:
            content.pop(LENGTHS.get(key, key), None)
            content[key] = wanted.get(name)
    return json.dumps({key: value for key, value in content.items() if value is not None}, indent=2) + "\n"


def _expressed(generation: GenerationConfig) -> dict[str, Any]:
    """Returns the known fields as generation_config.json has them."""
    fields = {name: getattr(generation, name) for name in (*SAME.values(), *LENGTHS)}
    most = [count for count in (generation.max_new_tokens, generation.max_decode_length) if count is not None]
    fields["max_new_tokens"] = min(most, default=None)
    if generation.sampling and generation.top_k is None:
        fields["top_k"] = 0
    return {name: value for name, value in fields.items() if value is not None}
