"""What OpenNMT-py's files hold: the model without its head, the head under `generator`, the options of the run in
`opt`, a namespace, and the words of both vocabularies in `vocab`. A sentencepiece model, or subword-nmt's codes, lie
elsewhere: next to the file they are found."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jax_transformer.config.program_text import TEXT, SideText, text_file
from jax_transformer.porting.dialects import opennmt
from jax_transformer.porting.formats.foreign import Foreign
from jax_transformer.runtime.files import read_bytes
from jax_transformer.runtime.limits import TOKENIZER_BYTES
from jax_transformer.storage.tensor_files import as_arrays, is_state_dict
from jax_transformer.storage.tensors import PortingError

ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "silu": "silu", "gated-gelu": "gelu"}
LAYOUTS = {"SinusoidalInterleaved": "interleaved", "SinusoidalConcat": "halves"}
ALLOWED: dict[str, tuple[Any, ...]] = {
    "model_task": ("seq2seq",),
    "encoder_type": ("transformer",),
    "decoder_type": ("transformer",),
    "position_encoding": (True,),
    "max_relative_positions": (0,),
    "relative_positions_buckets": (0,),
    "parallel_residual": (False,),
    "layer_norm": ("standard",),
    "num_kv": (0,),
    "num_experts": (0,),
    "copy_attn": (False,),
    "generator_function": ("softmax",),
    "lambda_coverage": (0, 0.0),
    "lambda_align": (0, 0.0),
}
"""The values that options may have. Others make models that no table here is for."""
PAD, END = "<blank>", "</s>"
START = "<s>"
UNKNOWN = "<unk>"
SIDES = {"source": "src", "target": "tgt"}
SPLITS = {"sentencepiece": "sentencepiece", "bpe": "merges"}
"""Transform that splits text → what that is here."""
OF_TRAINING = ("filtertoolong", "clean", "switchout", "tokendrop", "tokenmask")
"""Transforms that change what is trained on, and no text that is translated."""


def stated(path: str, content: Mapping[str, Any]) -> Foreign | None:
    """Reads a file's tensors and options; None for a file that isn't OpenNMT-py's.

    Raises:
      PortingError: a file without the head; options of a model that no config expresses.
    """
    model, head = content.get("model"), content.get("generator")
    if not isinstance(model, Mapping) or not is_state_dict(model) or not opennmt.recognises(model.keys()):
        return None
    if not isinstance(head, Mapping) or not {"weight", "bias"} <= head.keys():
        raise PortingError(
            f"{path}: expected the head of OpenNMT-py 3 under 'generator', with weight and bias; received "
            f"{', '.join(head) if isinstance(head, Mapping) else 'none'}"
        )
    given = content.get("opt")
    options = vars(given) if isinstance(given, argparse.Namespace) else {}
    problems = [
        f"{name} must be {' or '.join(map(repr, values))}; received {options[name]!r}"
        for name, values in ALLOWED.items()
        if options.get(name) not in (None, *values)
    ]
    for name, known in (("pos_ffn_activation_fn", ACTIVATIONS), ("position_encoding_type", LAYOUTS)):
        if options.get(name) not in (None, *known):
            problems.append(f"{name} must be one of {', '.join(known)}; received {options[name]!r}")
    if problems:
        raise PortingError(f"{path}: no model that this ports, by its opt", problems)
    files, unread = _tokenizer(path, options, content.get("vocab"))
    return Foreign(
        title="OpenNMT-py's file",
        where="opt and vocab",
        dialect=opennmt.DIALECT.name,
        fields=_fields(options, content.get("vocab")),
        left=(*unread, *(["optim"] if content.get("optim") else [])),
        tensors=as_arrays({**model, **{f"generator.{name}": head[name] for name in head}}),
        tokenizer=files,
    )


def _tokenizer(path: str, options: Mapping[str, Any], vocabularies: Any) -> tuple[dict[str, bytes], list[str]]:
    """Returns the tokenizer files by name; and, where there are none, why the words aren't read."""
    if not isinstance(vocabularies, Mapping):
        return {}, []
    words: dict[str, list[Any]] = {side: vocabularies.get(key) or [] for side, key in SIDES.items()}
    if not all({PAD, UNKNOWN, END} <= {*listed} for listed in words.values()):
        return {}, ["vocab, which lacks special tokens"]
    transforms = [name for name in options.get("transforms") or () if name not in OF_TRAINING]
    if len(transforms) > 1 or not {*transforms} <= SPLITS.keys():
        return {}, [f"vocab, whose text is transformed by {', '.join(transforms)}"]
    files: dict[str, bytes] = {}
    sides = {}
    for side, key in SIDES.items():
        name = ""
        if transforms:
            given = options.get(f"{key}_subword_model") or options.get("src_subword_model") or ""
            name = Path(str(given)).name
            place = Path(path).parent / name
            if not name or not place.is_file():
                return {}, [f"vocab, whose text is split by {name or 'a file'}, which isn't next to {Path(path).name}"]
            files[name] = read_bytes(place, TOKENIZER_BYTES, PortingError)
        listed = f"{key}_vocab.txt"
        files[listed] = "".join(f"{word}\n" for word in words[side]).encode()
        start = vocabularies.get("decoder_start_token") or START
        specials = {"<pad>": PAD, "<unk>": UNKNOWN, "<bos>": start, "<eos>": END}
        sides[side] = SideText(
            list=listed,
            specials={ours: theirs for ours, theirs in specials.items() if theirs in words[side]},
            split=SPLITS[transforms[0]] if transforms else "spaces",  # type: ignore[arg-type]
            model=name,
            restricted=bool(options.get(f"{key}_subword_vocab") and options.get(f"{key}_vocab_threshold")),
        )
    return {**files, TEXT: text_file(**sides)}, []


def _fields(options: Mapping[str, Any], vocabularies: Any) -> dict[str, Any]:
    """Returns the config fields that the options and the words decide."""
    layout = LAYOUTS.get(options.get("position_encoding_type", ""))
    fields = {
        "num_heads": options.get("heads"),
        "activation": ACTIVATIONS.get(options.get("pos_ffn_activation_fn", "")),
        "share_embeddings": options.get("share_embeddings"),
        "tie_head": options.get("share_decoder_embeddings"),
        "norm_eps": options.get("norm_eps"),
        "position_layout": layout,
        "position_frequency": opennmt.POSITIONS.get(layout or ""),
    }
    if isinstance(vocabularies, Mapping):
        start = vocabularies.get("decoder_start_token") or START
        ids = {
            "source_pad_id": ("src", PAD),
            "target_pad_id": ("tgt", PAD),
            "decoder_start_id": ("tgt", start),
            "eos_id": ("tgt", END),
        }
        fields |= {field: _id(vocabularies.get(side), word) for field, (side, word) in ids.items()}
    return {name: value for name, value in fields.items() if value is not None}


def _id(words: Any, word: str) -> int | None:
    return words.index(word) if isinstance(words, list) and word in words else None
