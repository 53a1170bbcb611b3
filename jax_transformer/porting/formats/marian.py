"""Marian's models: a `.npz` of matrices, with the model's options as YAML in the array special:model.yml; and its
vocabularies in the files next to it.

Marian masks by lengths and starts with a vector of zeros, so its vocabularies have no padding. Here both are a row of
zeros after the last of the vocabulary, as in transformers' Marian; it is taken away when the file is written.
"""

from __future__ import annotations

import io
import json
import struct
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from jax_transformer.config.program_text import TEXT, SideText, text_file
from jax_transformer.porting.formats.foreign import Foreign
from jax_transformer.porting.formats.yaml_settings import read_settings
from jax_transformer.runtime.files import atomic_write, read_bytes, read_text
from jax_transformer.runtime.limits import TENSORS, TOKENIZER_BYTES, YAML_BYTES
from jax_transformer.runtime.memory import check_fits
from jax_transformer.storage.tensors import PortingError

if TYPE_CHECKING:
    from jax_transformer.storage.model_directory import Model

DIALECT = "marian_npz"
OPTIONS = "special:model.yml"
ROWS, COLUMNS = ("Wemb", "encoder_Wemb", "decoder_Wemb", "decoder_ff_logit_out_Wt"), ("decoder_ff_logit_out_b",)
"""Matrices with a row for each word, and with a column."""
OLD_HEAD = "decoder_ff_logit_out_W"
"""The head of old files, which is the other way round."""
ACTIVATIONS = {"relu": "relu", "swish": "silu", "gelu": "gelu"}
ALLOWED: dict[str, tuple[Any, ...]] = {
    "type": ("transformer",),
    "transformer-decoder-autoreg": ("self-attention",),
    "transformer-preprocess": ("", "d", "n", "nd"),
    "transformer-postprocess": ("dan", "an", "da", "a"),
    "transformer-postprocess-emb": ("", "d"),
    "transformer-postprocess-top": ("", "n", "d", "dn"),
    "transformer-ffn-depth": (2,),
    "transformer-decoder-ffn-depth": (0, 2),
    "transformer-no-projection": (False,),
    "transformer-no-bias": (False,),
    "transformer-no-affine": (False,),
    "transformer-train-position-embeddings": (False,),
    "transformer-train-positions": (False,),
    "transformer-disable-position-embeddings": (False,),
    "transformer-attention-mask": ("default",),
    "transformer-tied-layers": ([],),
    "transformer-pool": (False,),
    "output-omit-bias": (False,),
    "lemma-dim-emb": (0,),
    "ulr": (False,),
}
"""The values that options may have. Others make models that no table here is for."""
USUAL = {
    "transformer-decoder-autoreg": "self-attention",
    "transformer-preprocess": "",
    "transformer-postprocess": "dan",
    "transformer-ffn-activation": "swish",
}


def is_one(path: Path) -> bool:
    """Returns whether a path is a `.npz`, or a `.bin` of Marian's."""
    return path.is_file() and (path.suffix == ".npz" or (path.suffix == ".bin" and _is_binary(path)))


def is_destination(path: Path) -> bool:
    return path.suffix == ".npz"


def _is_binary(path: Path) -> bool:
    """Returns whether a file begins as Marian's binary models do: with version 1, and a number of tensors."""
    with path.open("rb") as file:
        head = file.read(48)
    return len(head) == 48 and struct.unpack("<Q", head[:8]) == (1,) and 0 < struct.unpack("<Q", head[8:16])[0] < 10**6


def opened(path: Path) -> Foreign:
    """Reads a model.

    Raises:
      PortingError: no model of Marian's; a binary one, whose weights are packed; one whose options no config expresses.
    """
    if path.suffix == ".bin":
        raise PortingError(
            f"{path}: expected Marian's .npz; received its binary model, whose weights may be packed for one "
            "processor: take the .npz that it was made of"
        )
    arrays = _arrays(path)
    if OPTIONS not in arrays:
        raise PortingError(f"{path}: expected a model of Marian's, with its options in {OPTIONS}; received none")
    text = arrays.pop(OPTIONS).tobytes().rstrip(b"\0").decode("utf-8", "replace")
    options = read_settings(text, f"{path}: {OPTIONS}")
    problems = _problems(options, arrays)
    if problems:
        raise PortingError(f"{path}: no model that this ports, by its {OPTIONS}", problems)
    rows = {name: len(array) for name, array in arrays.items() if name in ROWS}
    pads = {
        "source_pad_id": rows.get("Wemb", rows.get("encoder_Wemb", 0)),
        "target_pad_id": rows.get("Wemb", rows.get("decoder_Wemb", 0)),
    }
    pad_id = pads["target_pad_id"]
    name = str(options.get("transformer-ffn-activation", USUAL["transformer-ffn-activation"]))
    tokenizer = _vocabularies(path, pads)
    return Foreign(
        title="model of Marian's (.npz)",
        where=OPTIONS,
        dialect=DIALECT,
        fields={
            "num_heads": options.get("transformer-heads", 8),
            "activation": ACTIVATIONS[name],
            **pads,
            "decoder_start_id": pad_id,
            "eos_id": 0,
            "bad_words": ((pad_id,),),
        },
        layout={"options": text, "old_head": OLD_HEAD in arrays},
        left=() if tokenizer else _left(path),
        tensors=dict(_with_padding(arrays)),
        tokenizer=tokenizer,
        tokenizer_family="marian",
    )


def _arrays(path: Path) -> dict[str, np.ndarray]:
    try:
        with zipfile.ZipFile(path) as archive:
            parts = archive.infolist()
        TENSORS.check(len(parts), str(path), PortingError)
        check_fits(sum(part.file_size for part in parts), str(path), PortingError)
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except PortingError:
        raise
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, NotImplementedError) as error:
        raise PortingError(f"{path}: truncated, or no .npz file ({type(error).__name__})") from None


def _problems(options: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> list[str]:
    problems = [
        f"{key} must be {' or '.join(map(repr, values))}; received {options[key]!r}"
        for key, values in ALLOWED.items()
        if key in options and options[key] not in values and options[key] is not None
    ]
    activation = options.get("transformer-ffn-activation", "swish")
    if activation not in ACTIVATIONS:
        problems.append(f"transformer-ffn-activation must be one of {', '.join(ACTIVATIONS)}; received {activation!r}")
    norms = [
        str(options.get(f"transformer-{key}", USUAL[f"transformer-{key}"])) for key in ("preprocess", "postprocess")
    ]
    if ("n" in norms[0]) == ("n" in norms[1]) and not problems:
        problems.append(f"expected norms before or after sublayers; received {norms[0]!r} and {norms[1]!r}")
    packed = [name for name, array in arrays.items() if array.dtype.kind != "f"]
    if packed:
        problems.append(f"expected floating-point weights; received {packed[0]} of dtype {arrays[packed[0]].dtype}")
    return problems


def _with_padding(arrays: Mapping[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the arrays with a row of zeros for padding."""
    for name, array in arrays.items():
        if name == OLD_HEAD:
            name, array = "decoder_ff_logit_out_Wt", array.T
        if name in ROWS and array.ndim == 2:
            array = np.concatenate([array, np.zeros((1, array.shape[1]), array.dtype)])
        elif name in COLUMNS and array.ndim == 2:
            array = np.concatenate([array, np.zeros((1, 1), array.dtype)], axis=1)
        yield name, array


def _vocabularies(path: Path, pads: Mapping[str, int]) -> dict[str, bytes]:
    """Returns the vocabularies next to the model as the tokenizer files of transformers' Marian: lists with padding,
    and the models of sentencepiece; empty where there are none."""
    models = {side: path.parent / f"{side}.spm" for side in ("source", "target")}
    lists = sorted(path.parent.glob("*vocab*.yml"))
    if not all(model.is_file() for model in models.values()) or len(lists) != 1:
        return _pieces(path)
    entries = _entries(lists[0])
    if len(set(pads.values())) != 1:
        return {}
    vocabulary = entries | {"<pad>": pads["target_pad_id"]}
    files = {f"{side}.spm": read_bytes(model, TOKENIZER_BYTES, PortingError) for side, model in models.items()}
    return {"vocab.json": json.dumps(vocabulary, ensure_ascii=False).encode(), **files}


def _pieces(path: Path) -> dict[str, bytes]:
    """Returns the sentencepiece models that are the vocabularies: those that the options of the run next to the model
    name, or the only one there; empty where neither is."""
    names: list[str] = []
    for options in (path.with_name(f"{path.name}.yml"), path.with_name(f"{path.name}.decoder.yml")):
        if not names and options.is_file():
            said = read_settings(read_text(options, YAML_BYTES, PortingError), str(options)).get("vocabs")
            names = [Path(str(name)).name for name in said] if isinstance(said, list) else []
    found = [entry.name for entry in path.parent.iterdir() if entry.suffix == ".spm"]
    if not names and len(found) == 1:
        names = found * 2
    if len(names) != 2 or not {*names} <= {*found}:
        return {}
    specials = {"<pad>": "<pad>", "<unk>": "<unk>", "<eos>": "</s>"}
    source, target = (
        SideText(
            list=name,
            form="model",
            last=("<pad>",),
            specials=specials,
            split="sentencepiece",
            model=name,
            add_eos=is_source,
        )
        for name, is_source in zip(names, (True, False), strict=True)
    )
    files = {name: read_bytes(path.parent / name, TOKENIZER_BYTES, PortingError) for name in names}
    return {**files, TEXT: text_file(source, target)}


def _entries(path: Path) -> dict[str, int]:
    """Returns the words of a vocabulary, a line `word: id` each, and their ids. Large ones take a YAML parser long."""
    entries = {}
    text = read_bytes(path, TOKENIZER_BYTES, PortingError).decode("utf-8", "replace")
    for number, line in enumerate(text.splitlines(), 1):
        word, colon, index = line.rpartition(":")
        if not line.strip() or line.startswith(("#", "---")):
            continue
        if not colon or not index.strip().isdecimal():
            raise PortingError(f"{path}:{number}: expected a word and its id, as in '\"▁the\": 7'; received {line!r}")
        try:
            entries[str(yaml.safe_load(word) if word[:1] in "\"'" else word)] = int(index)
        except yaml.YAMLError:
            raise PortingError(f"{path}:{number}: expected a word in quotes; received {word}") from None
    return entries


def _left(path: Path) -> tuple[str, ...]:
    names = sorted(entry.name for entry in path.parent.iterdir() if entry.suffix in (".spm", ".yml"))
    return tuple(name for name in names if "vocab" in name or name.endswith(".spm"))


# --- writing


def write(model: Model, tensors: Mapping[str, Any], path: Path) -> None:
    """Writes a `.npz`, with the options that the model came with, or those that its config means.

    Args:
      model: the model.
      tensors: its tensors by the dialect's names.
      path: the file.

    Raises:
      PortingError: the row of padding isn't zero, or not the last.
    """
    layout = (model.origin or {}).get("layout", {})
    arrays = dict(_without_padding(model, tensors))
    if layout.get("old_head"):
        arrays = {OLD_HEAD if name == ROWS[-1] else name: a.T if name == ROWS[-1] else a for name, a in arrays.items()}
    text = layout.get("options") or _options(model)
    arrays[OPTIONS] = np.frombuffer(text.encode() + b"\0", np.int8)
    content = io.BytesIO()
    np.savez(content, allow_pickle=False, **arrays)
    with atomic_write(path, durable=True) as temporary:
        temporary.write_bytes(content.getvalue())


def _without_padding(model: Model, tensors: Mapping[str, Any]) -> Iterator[tuple[str, np.ndarray]]:
    config = model.config
    for name in tensors:
        array = np.asarray(tensors[name])
        pad_id, rows = (
            (config.source_pad_id, config.source_vocab_size)
            if name in ROWS[:2]
            else (config.target_pad_id, config.target_vocab_size)
        )
        if name in (*ROWS, *COLUMNS):
            last = array[-1] if name in ROWS else array[:, -1]
            if pad_id != rows - 1 or last.any():
                raise PortingError(
                    f"{name}: Marian has no padding: expected zeros in the last row, pad_id={rows - 1}; received "
                    f"pad_id={pad_id}{' and other values' if last.any() else ''}"
                )
            array = array[:-1] if name in ROWS else array[:, :-1]
        yield name, np.ascontiguousarray(array)


def _options(model: Model) -> str:
    """Returns Marian's options of a model that didn't come from Marian."""
    config = model.config
    pre = config.norm_placement == "pre"
    names = {ours: theirs for theirs, ours in ACTIVATIONS.items()}
    options = {
        "type": "transformer",
        "dim-emb": config.d_model,
        "dim-vocabs": [config.source_vocab_size - 1, config.target_vocab_size - 1],
        "enc-depth": config.num_encoder_layers,
        "dec-depth": config.num_decoder_layers,
        "transformer-heads": config.encoder.heads.num_heads,
        "transformer-dim-ffn": config.d_ff,
        "transformer-decoder-dim-ffn": config.decoder_d_ff or config.d_ff,
        "transformer-ffn-depth": 2,
        "transformer-ffn-activation": names[config.activation],
        "transformer-preprocess": "n" if pre else "",
        "transformer-postprocess": "da" if pre else "dan",
        "transformer-postprocess-emb": "d",
        "transformer-postprocess-top": "n" if config.final_norm else "",
        "transformer-decoder-autoreg": "self-attention",
        "transformer-no-projection": False,
        "tied-embeddings": config.tie_head,
        "tied-embeddings-src": config.share_embeddings,
        "tied-embeddings-all": config.share_embeddings and config.tie_head,
        "layer-normalization": False,
    }
    return "".join(f"{key}: {json.dumps(value)}\n" for key, value in options.items())
