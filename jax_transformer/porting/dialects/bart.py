"""BART in Hugging Face's transformers: learned positions from row 2 on, norms after the embeddings, post-norm."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from jax_transformer.config.model import TransformerConfig
from jax_transformer.porting.dialects import ConfigFile, Dialect, fairseq
from jax_transformer.storage.tensors import Tensors

OFFSET = 2
FIXED = fairseq.FIXED | {
    "encoder_embedding_norm": "after_positions",
    "decoder_embedding_norm": "after_positions",
    "head_bias": "buffer",
    "position_kind": "learned",
    "position_frequency": "standard",
    "position_index": "column",
    "position_offset": OFFSET,
    "norm_placement": "post",
    "final_norm": False,
}


def recognises(names: Collection[str]) -> bool:
    return fairseq.recognises(names, embedding_norm=True, final_norm=False)


def read(tensors: Tensors) -> dict[str, Any]:
    """Reads the sizes from the tensors, with the length of the position tables."""
    return fairseq.read(
        tensors, "bart", max_length=lambda reader: reader.size(fairseq.POSITIONS["encoder"], 0, 2) - OFFSET
    )


def ignores(tensors: Tensors) -> list[str]:
    return [name for name in ("model.encoder.version", "model.decoder.version") if name in tensors] + fairseq.ignores(
        tensors
    )


def computed(config: TransformerConfig) -> dict[str, np.ndarray]:
    """Returns a bias of the logits that does nothing."""
    return {"constants/head_bias": np.zeros(config.target_vocab_size, np.float32)}


DIALECT = Dialect(
    name="bart",
    title="BART in transformers",
    recognises=recognises,
    fixed=FIXED,
    choices=fairseq.CHOICES,
    defaults=fairseq.DEFAULTS,
    read=read,
    asks=fairseq.ASKS,
    rules=fairseq.rules,
    refuses=fairseq.refuses_two_vocabularies,
    computed=computed,
    ignores=ignores,
    base_prefix=fairseq.PREFIX,
    config_file=ConfigFile(
        model_type="bart",
        architectures=("BartForConditionalGeneration", "BartModel"),
        defaults={
            "vocab_size": 50265,
            "d_model": 1024,
            "encoder_layers": 12,
            "decoder_layers": 12,
            "encoder_attention_heads": 16,
            "decoder_attention_heads": 16,
            "encoder_ffn_dim": 4096,
            "decoder_ffn_dim": 4096,
            "max_position_embeddings": 1024,
            "scale_embedding": False,
            "activation_function": "gelu",
            "dropout": 0.1,
            "attention_dropout": 0.0,
            "activation_dropout": 0.0,
            "pad_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 2,
            "tie_word_embeddings": True,
        },
        allowed=fairseq.allowed(FIXED),
        read=fairseq.read_config,
        aliases=fairseq.ALIASES,
        always_there=(fairseq.SHARED,),
        write=fairseq.write_config,
    ),
)

DIALECTS = (DIALECT,)
