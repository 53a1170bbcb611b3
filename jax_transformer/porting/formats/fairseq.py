"""What fairseq's torch files say of a model next to its tensors: the options of its run, in `args`, a namespace, or
under `model` in `cfg`, a dict. Its dictionaries, and a sentencepiece model, are found next to the file."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jax_transformer.config.program_text import TEXT, SideText, text_file
from jax_transformer.porting.formats.foreign import Foreign
from jax_transformer.runtime.files import read_bytes
from jax_transformer.runtime.limits import TOKENIZER_BYTES
from jax_transformer.storage.tensors import PortingError

KINDS = ("encoder_learned_pos", "layernorm_embedding", "encoder_normalize_before")
DIALECTS = {
    (True, True, False): "bart",
    (True, True, True): "mbart",
    (False, False, True): "m2m_100",
    (False, False, False): "fsmt",
}
"""Whether the options of KINDS are on → the dialect of such models."""
ARCHITECTURES = re.compile(
    r"(m?bart|transformer|multilingual_transformer)(?!.*(_lm|moe|pointer|from_pretrained))(_\w+)?"
)
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu_accurate": "gelu_tanh", "swish": "silu"}
OFF = (
    "adaptive_input",
    "adaptive_softmax_cutoff",
    "no_cross_attention",
    "cross_self_attention",
    "no_token_positional_embeddings",
    "char_inputs",
    "base_layers",
    "moe_freq",
    "no_decoder_final_norm",
)
"""Options that make models without a table here."""
SAME_ON_BOTH_SIDES = ("embed_dim", "normalize_before", "learned_pos")
PAD_ID, END_ID = 1, 2
"""Ids of every dictionary of fairseq, which also starts the decoder with the end."""
SPECIALS = {"<bos>": "<s>", "<pad>": "<pad>", "<eos>": "</s>", "<unk>": "<unk>"}
"""Our name of a special token → fairseq's, in the order of their ids: no file of a dictionary has them."""


def stated(path: str, content: Mapping[str, Any]) -> Foreign | None:
    """Reads the options of a file's run; None for a file without any of fairseq.

    Raises:
      PortingError: options of an architecture that no dialect has.
    """
    options, where = _options(content)
    architecture = options.get("arch") or options.get("_name")
    if not isinstance(architecture, str):
        return None
    if not ARCHITECTURES.fullmatch(architecture):
        raise PortingError(
            f"{path}: expected one of fairseq's Transformers or BARTs; its {where} says arch={architecture!r}"
        )
    problems = [f"{name} must be off; received {options[name]!r}" for name in OFF if options.get(name)]
    problems += [
        f"decoder_{name} must be encoder_{name}={options.get(f'encoder_{name}')!r}; received "
        f"{options[f'decoder_{name}']!r}"
        for name in SAME_ON_BOTH_SIDES
        if options.get(f"decoder_{name}") not in (None, options.get(f"encoder_{name}"))
    ]
    activation = options.get("activation_fn", "relu")
    if activation not in ACTIVATIONS:
        problems.append(f"activation_fn must be one of {', '.join(ACTIVATIONS)}; received {activation!r}")
    learned, normed, pre = (bool(options.get(name)) for name in KINDS)
    dialect = DIALECTS.get((learned, normed, pre))
    if dialect is None:
        given = ", ".join(f"{name}={bool(options.get(name))}" for name in KINDS)
        problems.append(f"expected the options of BART, mBART, M2M-100 or WMT19's models; received {given}")
    if problems or dialect is None:
        raise PortingError(f"{path}: no model that this ports, by its {where}", problems)
    return Foreign(
        title=f"fairseq's file, arch={architecture}",
        where=where,
        dialect=dialect,
        fields=_fields(options, ACTIVATIONS[activation], learned=learned),
        tokenizer=_tokenizer(Path(path), content),
    )


def _tokenizer(path: Path, content: Mapping[str, Any]) -> dict[str, bytes]:
    """Returns the dictionaries next to a file, dict.LANGUAGE.txt or one dict.txt, and the sentencepiece model whose
    pieces they have; empty where there is no dictionary."""
    languages = _languages(content)
    names = [f"dict.{language}.txt" for language in languages]
    if len(names) != 2 or not all((path.parent / name).is_file() for name in names):
        names = ["dict.txt"] * 2
    if not all((path.parent / name).is_file() for name in names):
        return {}
    files = {name: read_bytes(path.parent / name, TOKENIZER_BYTES, PortingError) for name in names}
    models = [entry for entry in sorted(path.parent.iterdir()) if entry.suffix in (".model", ".spm")]
    is_cut = len(models) == 1 and all("▁" in data.decode("utf-8", "replace") for data in files.values())
    if is_cut:
        files[models[0].name] = read_bytes(models[0], TOKENIZER_BYTES, PortingError)
    source, target = (
        SideText(
            list=name,
            form="counts",
            first=tuple(SPECIALS.values()),
            specials=SPECIALS,
            split="sentencepiece" if is_cut else "spaces",
            model=models[0].name if is_cut else "",
            add_eos=is_source,
        )
        for name, is_source in zip(names, (True, False), strict=True)
    )
    return {**files, TEXT: text_file(source, target)}


def _languages(content: Mapping[str, Any]) -> list[str]:
    """Returns the codes of source and target in a run's options; empty where they aren't said."""
    args, cfg = content.get("args"), content.get("cfg")
    task = vars(args) if isinstance(args, argparse.Namespace) else None
    if task is None:
        task = cfg.get("task") if isinstance(cfg, Mapping) else None
        task = vars(task) if isinstance(task, argparse.Namespace) else task
    if not isinstance(task, Mapping):
        return []
    found = [task.get(f"{side}_lang") for side in ("source", "target")]
    return [str(language) for language in found if language]


def _options(content: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Returns the options of the model, those of a stack under encoder_… and decoder_…, and their place."""
    args, cfg = content.get("args"), content.get("cfg")
    if isinstance(args, argparse.Namespace):
        return vars(args), "args"
    model = cfg.get("model") if isinstance(cfg, Mapping) else None
    options = vars(model) if isinstance(model, argparse.Namespace) else model
    if not isinstance(options, Mapping):
        return {}, "args"
    found = {str(name): value for name, value in options.items()}
    for stack in ("encoder", "decoder"):
        inner = found.get(stack)
        if isinstance(inner, Mapping):
            found |= {f"{stack}_{name}": value for name, value in inner.items() if f"{stack}_{name}" not in found}
    return found, "cfg"


def _fields(options: Mapping[str, Any], activation: str, *, learned: bool) -> dict[str, Any]:
    """Returns the config fields that options decide."""
    heads = options.get("encoder_attention_heads")
    shared = bool(options.get("share_all_embeddings"))
    fields = {
        "num_heads": heads,
        "decoder_num_heads": options.get("decoder_attention_heads", heads),
        "activation": activation,
        "scale_embedding": not options.get("no_scale_embedding"),
        "share_embeddings": shared,
        "tie_head": shared or bool(options.get("share_decoder_input_output_embed")),
        "source_pad_id": PAD_ID,
        "target_pad_id": PAD_ID,
        "max_length": None if learned else options.get("max_source_positions", 1024),
        "dropout_rate": options.get("dropout"),
        "attention_dropout_rate": options.get("attention_dropout"),
        "feed_forward_dropout_rate": options.get("activation_dropout"),
        "decoder_start_id": END_ID,
        "eos_id": END_ID,
    }
    return {name: value for name, value in fields.items() if value is not None}
