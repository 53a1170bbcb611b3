"""JoeyNMT's model directories: a torch file with the weights under `model_state`, the run's options in config.yaml, a
list of tokens for each side, and the models of sentencepiece or the merges of subword-nmt."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jax_transformer.config.program_text import TEXT, SideText, text_file
from jax_transformer.porting.formats.foreign import Foreign, is_model_directory, layout_with_config, write_tokenizer
from jax_transformer.porting.formats.yaml_settings import read_settings
from jax_transformer.porting.state_dicts import make_arrays
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
from jax_transformer.storage.tensors import PortingError

if TYPE_CHECKING:
    from jax_transformer.storage.model_directory import Model

DIALECT = "joeynmt"
TITLE = "model directory of JoeyNMT"
CONFIG, WEIGHTS = "config.yaml", "model_state"
VOCABULARIES = {"source": "src_vocab.txt", "target": "trg_vocab.txt"}
SIDES = {"source": "src", "target": "trg"}
SUFFIX = ".ckpt"
CHECKPOINT = re.compile(r"(best|latest|\d+)\.ckpt")
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "silu"}
SPECIALS = {
    "<unk>": ("unk", "<unk>", 0),
    "<pad>": ("pad", "<pad>", 1),
    "<bos>": ("bos", "<s>", 2),
    "<eos>": ("eos", "</s>", 3),
}
"""Our name of a special token → the beginning of its keys in special_symbols, its usual name and its usual id. Every
vocabulary begins with them, in this order."""


# --- places


def is_one(path: Path) -> bool:
    """Returns whether a path is a `.ckpt`, or a directory with one of JoeyNMT's names or with both of its lists."""
    if path.is_file():
        return path.suffix == SUFFIX
    return is_model_directory(path, CHECKPOINT, VOCABULARIES.values())


def is_destination(path: Path) -> bool:
    return not path.suffix


def _checkpoint(path: Path) -> Path | None:
    """Returns the file with the weights: of a directory the best, the latest, or the one of the last step."""
    if path.is_file():
        return path
    found = {match[1]: entry for entry in path.iterdir() if (match := CHECKPOINT.fullmatch(entry.name))}
    steps = sorted((name for name in found if name.isdecimal()), key=int, reverse=True)
    return next((found[name] for name in ("best", "latest", *steps) if name in found), None)


# --- reading


def opened(path: Path) -> Foreign:
    """Reads a model directory.

    Raises:
      PortingError: a file that can't be read; a model that no config expresses, such as one of recurrent layers.
    """
    checkpoint = _checkpoint(path)
    directory = path if checkpoint is None else checkpoint.parent
    missing = [] if checkpoint is not None else ["best.ckpt, its weights"]
    text = ""
    if (directory / CONFIG).is_file():
        text = read_text(directory / CONFIG, YAML_BYTES, PortingError)
    else:
        missing.append(f"{CONFIG}, its options")
    settings = read_settings(text, str(directory / CONFIG)) if text else {}
    fields = _fields(settings, str(directory / CONFIG)) if text else {}
    tensors = {} if checkpoint is None else _weights(checkpoint)
    files, lacking = _tokenizer(directory, settings) if text else ({}, [])
    return Foreign(
        title=TITLE,
        where=CONFIG,
        dialect=DIALECT,
        fields=fields,
        layout={"config": text},
        tensors=tensors,
        tokenizer=files,
        missing=(*missing, *lacking),
    )


def _weights(path: Path) -> Mapping[str, Any]:
    """Returns the tensors of a checkpoint. Raises PortingError unless JoeyNMT wrote it."""
    content = load_torch(path)
    weights = content.get(WEIGHTS) if isinstance(content, Mapping) else None
    if not isinstance(weights, Mapping) or not is_inner_state_dict(weights):
        keys = ", ".join(map(str, list(content)[:5])) if isinstance(content, Mapping) else type(content).__name__
        raise PortingError(
            f"{path}: expected JoeyNMT's checkpoint, with weights under {WEIGHTS}; received {keys}. (For another "
            "program's, rename it to end in .pt)"
        )
    return TorchFile(path, weights, WEIGHTS)


def _section(settings: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """Returns a part of the settings; empty where there is none."""
    found: Any = settings
    for key in keys:
        found = found.get(key) if isinstance(found, Mapping) else None
    return {str(name): value for name, value in found.items()} if isinstance(found, Mapping) else {}


def _fields(settings: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Returns the fields that the options decide, with JoeyNMT's own defaults.

    Raises:
      PortingError: they are of a model that no config expresses.
    """
    stacks = {"encoder": _section(settings, "model", "encoder"), "decoder": _section(settings, "model", "decoder")}
    problems = []
    for (name, stack), usual in zip(stacks.items(), ("recurrent", "transformer"), strict=True):
        if stack.get("type", usual) != "transformer":
            received = repr(stack["type"]) if "type" in stack else f"none, which means {usual!r}"
            problems.append(f"model.{name}.type must be 'transformer'; received {received}")
        if stack.get("activation", "relu") not in ACTIVATIONS:
            problems.append(
                f"model.{name}.activation must be one of {', '.join(ACTIVATIONS)}; received {stack['activation']!r}"
            )
        if stack.get("layer_norm", "pre") not in ("pre", "post"):
            problems.append(f"model.{name}.layer_norm must be 'pre' or 'post'; received {stack['layer_norm']!r}")
    if problems:
        raise PortingError(f"{where}: no model that this ports", problems)
    encoder, decoder = stacks.values()
    model = _section(settings, "model")
    shares = bool(model.get("tied_embeddings", False))
    scales = [bool(_section(stack, "embeddings").get("scale", False)) for stack in stacks.values()]
    activations = [ACTIVATIONS[stack.get("activation", "relu")] for stack in stacks.values()]
    norms = [encoder.get("layer_norm", "pre"), decoder.get("layer_norm", "post")]
    width = encoder.get("hidden_size", 512)
    fields: dict[str, Any] = {
        "d_model": width,
        "num_encoder_layers": encoder.get("num_layers", 8),
        "num_decoder_layers": decoder.get("num_layers", 4),
        "num_heads": encoder.get("num_heads", 4),
        "decoder_num_heads": decoder.get("num_heads", 8),
        "d_ff": encoder.get("ff_size", 2048),
        "activation": activations[0],
        "decoder_activation": activations[1],
        "norm_placement": norms[0],
        "decoder_norm_placement": norms[1],
        "scale_embedding": scales[0],
        "share_embeddings": shares,
        "tie_head": bool(model.get("tied_softmax", False)),
        "residual_factor": encoder.get("alpha", 1.0),
        "decoder_residual_factor": decoder.get("alpha", 1.0),
    }
    if not shares and scales[0] != scales[1]:
        fields["decoder_embedding_factor"] = math.sqrt(width) if scales[1] else 1.0
    for name, stack in stacks.items():
        rate = stack.get("dropout", 0.1)
        fields[f"{name}.dropout.rate"] = rate
        fields[f"{name}.dropout.embedding"] = _section(stack, "embeddings").get("dropout", stack.get("dropout", 0.0))
    return fields | _ids(settings) | _decoding(settings)


def _ids(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the special ids."""
    symbols = _section(settings, "data", "special_symbols")
    ids = {name: symbols.get(f"{key}_id", usual) for name, (key, _, usual) in SPECIALS.items()}
    return {
        "source_pad_id": ids["<pad>"],
        "target_pad_id": ids["<pad>"],
        "decoder_start_id": ids["<bos>"],
        "eos_id": ids["<eos>"],
    }


def _decoding(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of GenerationConfig: the tokens that JoeyNMT's search never writes, and its lengths."""
    symbols, testing = _section(settings, "data", "special_symbols"), _section(settings, "testing")
    hidden = [symbols.get("bos_id", 2)]
    if symbols.get("sep_token"):
        hidden.append(symbols.get("sep_id"))
    hidden += range(len(_first(symbols)) - len(_tags(symbols)), len(_first(symbols)))
    if not testing.get("generate_unk", True):
        hidden.append(symbols.get("unk_id", 0))
    most, least = testing.get("max_output_length", -1), testing.get("min_output_length", 1)
    lengths = {"min_new_tokens": least} | ({"max_new_tokens": most} if most > least else {})
    return {"suppress_tokens": tuple(sorted({*hidden})), **lengths}


def _tags(symbols: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(map(str, symbols.get("lang_tags") or ()))


def _first(symbols: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the tokens that a vocabulary begins with, whatever its file has."""
    named = [str(symbols.get(f"{key}_token", usual)) for key, usual, _ in SPECIALS.values()]
    separator = [str(symbols["sep_token"])] if symbols.get("sep_token") else []
    return tuple(dict.fromkeys([*named, *separator, *_tags(symbols)]))


# --- its vocabularies


def _tokenizer(directory: Path, settings: Mapping[str, Any]) -> tuple[dict[str, bytes], list[str]]:
    """Returns the tokenizer files by name, and those that are missing."""
    files: dict[str, bytes] = {}
    missing = []
    sides = {}
    for side, section in SIDES.items():
        options = _section(settings, "data", section)
        text, file, place = _side(side, options, settings)
        wanted = {VOCABULARIES[side]: "the tokens of the " + side} | ({file: place} if file else {})
        for name, what in wanted.items():
            if (directory / name).is_file():
                files[name] = read_bytes(directory / name, TOKENIZER_BYTES, PortingError)
            else:
                missing.append(f"{name}, {what}")
        sides[side] = text
    return ({} if missing else {**files, TEXT: text_file(**sides)}), missing


def _side(side: str, options: Mapping[str, Any], settings: Mapping[str, Any]) -> tuple[SideText, str, str]:
    """Returns the description of a side, the file that it needs besides the list, and what that is."""
    symbols = _section(settings, "data", "special_symbols")
    more = _section(options, "tokenizer_cfg")
    level, kind = options.get("level", "word"), options.get("tokenizer_type", options.get("bpe_type", "sentencepiece"))
    split, file, what = {"char": "characters"}.get(level, "spaces"), "", ""
    if level == "bpe":
        is_merged = kind == "subword-nmt"
        split, what = ("merges", "its merges") if is_merged else ("sentencepiece", "its sentencepiece model")
        file = Path(str(more.get("codes" if is_merged else "model_file", ""))).name or f"the file of {kind}"
    separators = {str(symbols["sep_token"])} if symbols.get("sep_token") else set()
    text = SideText(
        list=VOCABULARIES[side],
        first=_first(symbols),
        specials={ours: str(symbols.get(f"{key}_token", usual)) for ours, (key, usual, _) in SPECIALS.items()},
        tags=tuple(dict.fromkeys([*separators, *_tags(symbols)])),
        split=split,  # type: ignore[arg-type]
        model=file,
        separator=str(more.get("separator", "@@")),
        restricted=True,
        lowercase=bool(options.get("lowercase", False)),
        normalize=bool(options.get("normalize", False)),
        moses=str(options.get("lang", "en")) if str(more.get("pretokenizer", "none")).lower() == "moses" else "",
        add_eos=side == "source",
    )
    return text, file, what


# --- writing


def write(model: Model, tensors: Mapping[str, Any], path: Path) -> None:
    """Writes a model directory again: the weights, and the options and vocabularies that the model came with.

    Args:
      model: the model.
      tensors: its tensors by the dialect's names.
      path: the new directory.

    Raises:
      PortingError: there is something at `path`, or no directory to put it in; the model came from elsewhere.
    """
    expected = f"a model that came from JoeyNMT's directory, whose {CONFIG} and vocabularies it takes along; write the "
    layout = layout_with_config(model, DIALECT, path, f"{expected}weights alone, as a .pt")
    weights = state_dict_of_tensors(make_arrays(dict(tensors)))
    with new_directory(path, PortingError) as directory:
        write_torch(directory / "best.ckpt", {WEIGHTS: weights})
        (directory / CONFIG).write_text(layout["config"], encoding="utf-8")
        write_tokenizer(model, directory)
