"""Sockeye 3's model directories: the weights in params.best, a torch file; the model's options in the YAML file config;
a vocabulary for each side in JSON.

The projection of a self-attention's input is one matrix: queries, then keys and values in turn, head by head. That of a
decoder's attention to the source has no queries. Both are presented as a matrix for each.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jax_transformer.config.program_text import TEXT, SideText, text_file
from jax_transformer.porting.dialects.sockeye import FUSED, KEY, QUERY, VALUE
from jax_transformer.porting.formats.foreign import Foreign, is_model_directory, layout_with_config, write_tokenizer
from jax_transformer.porting.formats.yaml_settings import read_settings
from jax_transformer.runtime.directories import new_directory
from jax_transformer.runtime.files import read_bytes, read_text
from jax_transformer.runtime.limits import TOKENIZER_BYTES, YAML_BYTES
from jax_transformer.storage.tensor_files import (
    TorchFile,
    is_inner_state_dict,
    load_torch,
    state_dict_of_tensors,
    write_torch,
)
from jax_transformer.storage.tensors import Placed, PortingError, Tensors

if TYPE_CHECKING:
    from jax_transformer.storage.model_directory import Model

DIALECT = "sockeye"
TITLE = "model directory of Sockeye"
CONFIG, VERSION, BEST = "config", "version", "params.best"
PARAMETERS = re.compile(r"params\.(best|\d{5})")
VOCABULARIES = {"source": "vocab.src.0.json", "target": "vocab.trg.0.json"}
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish1": "silu"}
POSITIONS = {"fixed": "sinusoidal", "learned": "learned"}
SPECIALS = {"<pad>": "<pad>", "<unk>": "<unk>", "<bos>": "<s>", "<eos>": "</s>"}
"""Our name of a special token → Sockeye's. They are the first of every vocabulary, in this order."""
PAD, START, END = 0, 2, 3
NORMS = {("n", "r"): "pre", ("", "rn"): "post"}
"""Steps before and after a sublayer, but for dropout → the place of norms."""
OFF = {"block_prepended_cross_attention": (False,), "use_lhuc": (False,), "decoder_type": ("transformer",)}
"""The values that options of a stack may have. Others make models that no table here is for."""


# --- places


def is_one(path: Path) -> bool:
    """Returns whether a path is a file of Sockeye's weights, or a directory with one or with both vocabularies."""
    if path.is_file():
        return PARAMETERS.fullmatch(path.name) is not None
    return is_model_directory(path, PARAMETERS, VOCABULARIES.values())


def is_destination(path: Path) -> bool:
    return not path.suffix


def _checkpoint(path: Path) -> Path | None:
    """Returns the file with the weights: of a directory the best, or that of the last checkpoint."""
    if path.is_file():
        return path
    found = sorted(entry for entry in path.iterdir() if PARAMETERS.fullmatch(entry.name))
    return found[-1] if found else None  # "best" sorts after numbers


# --- reading


def opened(path: Path) -> Foreign:
    """Reads a model directory.

    Raises:
      PortingError: a file that can't be read; another version of Sockeye; a model that no config expresses.
    """
    checkpoint = _checkpoint(path)
    directory = path if checkpoint is None else checkpoint.parent
    version = _version(directory)
    if version and not version.startswith("3."):
        raise PortingError(
            f"{directory}: expected a model of Sockeye 3; its {VERSION} says {version}: convert it by Sockeye 3.0's "
            "sockeye.mx_to_pt"
        )
    missing = [] if checkpoint is not None else [f"{BEST}, its weights"]
    text = ""
    if (directory / CONFIG).is_file():
        text = read_text(directory / CONFIG, YAML_BYTES, PortingError)
    else:
        missing.append(f"{CONFIG}, its options")
    fields = _fields(read_settings(text, str(directory / CONFIG)), str(directory / CONFIG)) if text else {}
    files, lacking = _vocabularies(directory)
    tensors: Tensors = {}
    if checkpoint is not None:
        heads = {"encoder": fields.get("num_heads", 0), "decoder": fields.get("decoder_num_heads", 0)}
        weights = _weights(checkpoint)
        tensors = Separated(weights, heads) if text else weights
    return Foreign(
        title=TITLE,
        where=CONFIG,
        dialect=DIALECT,
        fields=fields,
        layout={"config": text, "version": version},
        tensors=tensors,
        tokenizer=files,
        missing=(*missing, *lacking),
    )


def _version(directory: Path) -> str:
    path = directory / VERSION
    return read_text(path, YAML_BYTES, PortingError).strip() if path.is_file() else ""


def _weights(path: Path) -> Tensors:
    """Returns the tensors of a file. Raises PortingError unless they are Sockeye's, and no integers."""
    if path.read_bytes()[:2] != b"PK":
        raise PortingError(
            f"{path}: expected Sockeye 3's weights, a torch file; received another (Sockeye 2 wrote MXNet's: convert "
            "it by Sockeye 3.0's sockeye.mx_to_pt)"
        )
    content = load_torch(path)
    if not is_inner_state_dict(content):
        raise PortingError(f"{path}: expected Sockeye 3's weights; received {type(content).__name__}, without tensors")
    packed = [name for name in content if "packed_params" in name or name.endswith((".scale", ".zero_point"))]
    if packed:
        raise PortingError(f"{path}: expected floating-point weights; received {packed[0]} of an int8 model")
    return TorchFile(path, content)


class Separated(Placed):
    """Presents fused projections as one matrix for each part."""

    def __init__(self, weights: Tensors, heads: Mapping[str, int]) -> None:
        """Stores the tensors, and each stack's number of heads."""
        self._weights = weights
        self._heads = heads
        self._places: dict[str, tuple[str, str]] = {}
        for name in weights:
            parts = _parts_of(name)
            if parts:
                base = name.removesuffix(".weight")
                self._places |= {f"{base}.{part}.weight": (name, part) for part in parts}
            else:
                self._places[name] = (name, "")

    def __getitem__(self, name: str) -> np.ndarray:
        stored, part = self._places[name]
        array = self._weights[stored]
        if not part:
            return array
        width, heads = array.shape[-1], self._heads[stored.partition(".")[0]]
        rows, count = array.shape[0], len(_parts_of(stored))
        if array.ndim != 2 or rows != count * width or heads < 1 or width % heads:
            raise PortingError(
                f"tensor {stored}: expected {count} matrices of {width} rows, for {heads} heads; received shape "
                f"{tuple(array.shape)}"
            )
        if part == QUERY:
            return array[:width]
        pairs = array[-2 * width :].reshape(heads, 2, width // heads, width)
        return pairs[:, int(part == VALUE)].reshape(width, width)


def _parts_of(name: str) -> tuple[str, ...]:
    """Returns the parts of a fused projection, in order; of any other tensor none."""
    for attention, fused in FUSED.items():
        if name.endswith(f".{attention}.{fused}.weight"):
            return (QUERY, KEY, VALUE) if fused == "ff_in" else (KEY, VALUE)
    return ()


def _joined(tensors: Mapping[str, Any], heads: Mapping[str, int]) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the tensors with fused projections: the inverse of Separated."""
    for name in tensors:
        base, _, part = name.removesuffix(".weight").rpartition(".")
        parts = _parts_of(f"{base}.weight")
        if part not in parts:
            yield name, np.asarray(tensors[name])
            continue
        if part != parts[-1]:
            continue
        arrays = {one: np.asarray(tensors[f"{base}.{one}.weight"]) for one in parts}
        width, count = arrays[KEY].shape[0], heads[base.partition(".")[0]]
        pairs = np.stack([arrays[one].reshape(count, width // count, width) for one in (KEY, VALUE)], axis=1)
        rows = [arrays[QUERY]] if QUERY in arrays else []
        yield f"{base}.weight", np.concatenate([*rows, pairs.reshape(2 * width, width)])


def _fields(settings: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Returns the fields that the options decide.

    Raises:
      PortingError: they are of a model that no config expresses.
    """
    given = {name: settings.get(f"config_{name}") for name in ("encoder", "decoder")}
    stacks = {name: stack for name, stack in given.items() if isinstance(stack, Mapping) and "model_size" in stack}
    if len(stacks) < len(given):
        raise PortingError(f"{where}: expected Sockeye's options of a Transformer, config_encoder and config_decoder")
    problems = [problem for name, stack in stacks.items() for problem in _problems(name, stack)]
    for side in ("source", "target"):
        factors = (settings.get(f"config_embed_{side}") or {}).get("factor_configs")
        if factors:
            problems.append(f"config_embed_{side}.factor_configs must be none; received {len(factors)} factors")
    for name in ("config_length_task", "neural_vocab_selection", "lhuc"):
        if settings.get(name):
            problems.append(f"{name} must be off; received {settings[name]!r}")
    if settings.get("dtype", "float32") == "int8":
        problems.append("dtype must be float32, float16 or bfloat16; received 'int8'")
    if problems:
        raise PortingError(f"{where}: no model that this ports", problems)
    encoder, decoder = stacks.values()
    tying = str(settings.get("weight_tying_type", "src_trg_softmax"))
    fields: dict[str, Any] = {
        "d_model": encoder["model_size"],
        "num_encoder_layers": encoder["num_layers"],
        "num_decoder_layers": decoder["num_layers"],
        "num_heads": encoder["attention_heads"],
        "decoder_num_heads": decoder["attention_heads"],
        "d_ff": encoder["feed_forward_num_hidden"],
        "activation": ACTIVATIONS[encoder["act_type"]],
        "decoder_activation": ACTIVATIONS[decoder["act_type"]],
        "feed_forward_gated": bool(encoder.get("use_glu")),
        "position_kind": POSITIONS[encoder["positional_embedding_type"]],
        "decoder_position_kind": POSITIONS[decoder["positional_embedding_type"]],
        "norm_placement": NORMS[_steps(encoder)],
        "share_embeddings": "src" in tying and "trg" in tying,
        "tie_head": "softmax" in tying,
        "source_pad_id": PAD,
        "target_pad_id": PAD,
        "decoder_start_id": START,
        "eos_id": END,
    }
    for name, stack in stacks.items():
        fields[f"{name}.dropout.rate"] = stack.get("dropout_prepost", 0.0)
        fields[f"{name}.dropout.attention"] = stack.get("dropout_attention", 0.0)
        fields[f"{name}.dropout.feed_forward"] = stack.get("dropout_act", 0.0)
    return fields


def _steps(stack: Mapping[str, Any]) -> tuple[str, str]:
    """Returns the steps before and after a sublayer, but for dropout."""
    before, after = (str(stack.get(f"{name}_sequence", "")).replace("d", "") for name in ("preprocess", "postprocess"))
    return before, after


def _problems(name: str, stack: Mapping[str, Any]) -> Iterator[str]:
    """Yields what a stack's options say that no config expresses."""
    for key, known in {"act_type": ACTIVATIONS, "positional_embedding_type": POSITIONS}.items():
        if stack.get(key) not in known:
            yield f"config_{name}.{key} must be one of {', '.join(known)}; received {stack.get(key)!r}"
    for key, values in OFF.items():
        if stack.get(key, values[0]) not in values:
            yield f"config_{name}.{key} must be {values[0]!r}; received {stack[key]!r}"
    if _steps(stack) not in NORMS:
        received = [stack.get(f"{each}_sequence") for each in ("preprocess", "postprocess")]
        yield (
            f"config_{name}: expected norms before sublayers ('n', 'dr') or after them ('', 'drn'); received "
            f"preprocess_sequence={received[0]!r}, postprocess_sequence={received[1]!r}"
        )
    sizes = ("model_size", "num_layers", "attention_heads", "feed_forward_num_hidden")
    yield from (
        f"config_{name}.{key} must be a number; received {stack.get(key)!r}"
        for key in sizes
        if not isinstance(stack.get(key), int)
    )


def _vocabularies(directory: Path) -> tuple[dict[str, bytes], list[str]]:
    """Returns the tokenizer files by name, and those that are missing."""
    lacking = {side: name for side, name in VOCABULARIES.items() if not (directory / name).is_file()}
    missing = [f"{name}, the words of the {side}" for side, name in lacking.items()]
    if missing:
        return {}, missing
    files = {name: read_bytes(directory / name, TOKENIZER_BYTES, PortingError) for name in VOCABULARIES.values()}
    source, target = (
        SideText(list=name, form="json", specials=SPECIALS, add_eos=side == "source")
        for side, name in VOCABULARIES.items()
    )
    return {**files, TEXT: text_file(source, target)}, []


# --- writing


def write(model: Model, tensors: Mapping[str, Any], path: Path) -> None:
    """Writes a model directory: the weights, and the options and vocabularies that the model came with.

    Args:
      model: the model.
      tensors: its tensors by the dialect's names.
      path: the new directory.

    Raises:
      PortingError: there is something at `path`, or no directory to put it in; the model came from elsewhere.
    """
    expected = f"a model that came from Sockeye's directory, whose {CONFIG} and vocabularies it takes along"
    layout = layout_with_config(model, DIALECT, path, expected)
    heads = {name: getattr(model.config, name).heads.num_heads for name in ("encoder", "decoder")}
    weights = state_dict_of_tensors(dict(_joined(tensors, heads)))
    with new_directory(path, PortingError) as directory:
        write_torch(directory / BEST, weights)
        (directory / CONFIG).write_text(layout["config"], encoding="utf-8")
        if layout.get("version"):
            (directory / VERSION).write_text(layout["version"], encoding="utf-8")
        write_tokenizer(model, directory)
