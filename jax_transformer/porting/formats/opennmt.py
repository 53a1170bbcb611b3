"""What OpenNMT-py's files hold: the model without its head, the head under `generator`, the options of the run in
`opt`, a namespace, and the words of both vocabularies in `vocab`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from jax_transformer.porting.dialects import opennmt
from jax_transformer.porting.formats.foreign import Foreign
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
    return Foreign(
        title="OpenNMT-py's file",
        where="opt and vocab",
        dialect=opennmt.DIALECT.name,
        fields=_fields(options, content.get("vocab")),
        left=tuple(name for name in ("vocab", "optim") if content.get(name)),
        tensors=as_arrays({**model, **{f"generator.{name}": head[name] for name in head}}),
    )


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
