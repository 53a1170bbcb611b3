"""Loads small checkpoints with the installed version of transformers, and freezes them: run in each environment.

python frozen_families.py make FOLDER        # with the version that published checkpoints were made with
python frozen_families.py freeze FOLDER OUT  # with any version
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file

import jax_transformer as jt

FAIRSEQ = {
    "d_model": 24, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 2, "decoder_attention_heads": 3,
    "encoder_ffn_dim": 20, "decoder_ffn_dim": 28, "vocab_size": 61, "max_position_embeddings": 44,
}  # fmt: skip
FSMT = {
    **{name: value for name, value in FAIRSEQ.items() if name != "vocab_size"},
    "src_vocab_size": 61,
    "tgt_vocab_size": 58,
    "tie_word_embeddings": False,
}
T5 = {
    "d_model": 24, "d_kv": 5, "d_ff": 20, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 3, "vocab_size": 61,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 16, "decoder_start_token_id": 0,
}  # fmt: skip
UNTIED = {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
MARIAN = {"pad_token_id": 59, "decoder_start_token_id": 59, "eos_token_id": 0}
BART = {"pad_token_id": 1, "decoder_start_token_id": 2}
BLENDERBOT = {"pad_token_id": 0, "decoder_start_token_id": 1}

CHECKPOINTS: dict[str, tuple[str, dict[str, Any]]] = {
    "marian": ("MarianMT", {**FAIRSEQ, **MARIAN, "activation_function": "swish", "scale_embedding": True}),
    "marian_two_vocabularies": (
        "MarianMT",
        {**FAIRSEQ, **MARIAN, "decoder_vocab_size": 60, "share_encoder_decoder_embeddings": False},
    ),
    **{name.lower(): (name, {**FAIRSEQ, **BART}) for name in ("Bart", "Mvp", "PLBart", "MBart", "M2M100")},
    **{name.lower(): (name, {**FAIRSEQ, **BLENDERBOT}) for name in ("Blenderbot", "BlenderbotSmall")},
    "pegasus": ("Pegasus", {**FAIRSEQ, "activation_function": "relu"}),
    "fsmt": ("FSMT", FSMT),
    "fsmt_tied": ("FSMT", {**FSMT, "tgt_vocab_size": 61, "tie_word_embeddings": True}),
    "t5": ("T5", T5),
    "t5_gated": ("T5", UNTIED),
    "ul2": ("T5", {**UNTIED, "feed_forward_proj": "gated-silu"}),
    "mt5": ("MT5", {**T5, "tie_word_embeddings": False}),
    "umt5": ("UMT5", T5),
    "madlad": ("T5", UNTIED),
    "longt5": ("LongT5", {**UNTIED, "encoder_attention_type": "local", "local_radius": 4}),
}
"""Family → class of transformers without its ending, and sizes."""
KEPT = {"madlad": "decoder.embed_tokens.weight", "longt5": "shared.weight"}
"""Checkpoints that hold the shared embedding under one name → that name, as the published ones do."""
SHARED = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
ENDINGS = ("ForConditionalGeneration", "Model")


def class_of(name: str) -> Any:
    return getattr(transformers, next(name + each for each in ENDINGS if hasattr(transformers, name + each)))


def make(folder: Path) -> None:
    """Writes a checkpoint of each family, all of whose weights are random."""
    for family, (name, sizes) in CHECKPOINTS.items():
        rng = np.random.default_rng([*family.encode()])
        kind = class_of(name)
        model = kind(kind.config_class(**sizes)).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:
                    is_norm = parameter.ndim == 1
                    drawn = torch.from_numpy(rng.standard_normal(tuple(parameter.shape)))
                    parameter.copy_(0.3 * drawn + (1.0 if is_norm else 0.0))
        model.save_pretrained(folder / family)
        if family in KEPT:
            path = folder / family / "model.safetensors"
            held = {key: tensor for key, tensor in load_file(path).items() if key not in SHARED}
            held[KEPT[family]] = model.get_input_embeddings().weight.detach().clone()
            save_file(held, path, metadata={"format": "pt"})


def freeze(folder: Path, out: Path, families: Collection[str]) -> None:
    """Loads checkpoints as a user does, and freezes them; all, if no families are named."""
    rng = np.random.default_rng(0)
    inputs = {"input_ids": rng.integers(3, 57, (2, 9)), "decoder_input_ids": rng.integers(3, 57, (2, 7))}
    inputs["attention_mask"] = np.array([[1] * 9, [1] * 6 + [0] * 3])
    out.mkdir(parents=True, exist_ok=True)
    for family in families or CHECKPOINTS:
        name = CHECKPOINTS[family][0]
        try:
            model = class_of(name).from_pretrained(folder / family).float().eval()
            jt.freeze(jt.parity.Side(model, name=f"{family} {transformers.__version__}"), inputs,
                      out / f"{family}.frozen", lowers=False)  # fmt: skip
        except Exception as error:  # a version that can't load or run a checkpoint is a result
            (out / f"{family}.txt").write_text(f"{type(error).__name__}: {' '.join(str(error).split())}\n")


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if sys.argv[1] == "make":
        make(Path(sys.argv[2]))
    else:
        freeze(Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:])
