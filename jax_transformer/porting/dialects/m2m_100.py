"""M2M-100 and NLLB-200 (dense) in Hugging Face's transformers: fixed positions of the real tokens, pre-norm, no bias of
the logits."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from jax_transformer.config.model import TransformerConfig
from jax_transformer.porting.dialects import ConfigFile, Dialect, fairseq, marian
from jax_transformer.storage.tensors import PortingError, Tensors

FIXED = fairseq.FIXED | {
    "encoder_embedding_norm": "none",
    "decoder_embedding_norm": "none",
    "head_bias": "none",
    "position_kind": "sinusoidal",
    "position_layout": "halves",
    "position_frequency": "inclusive",
    "position_index": "non_pad_count",
    "norm_placement": "pre",
    "final_norm": True,
}


def recognises(names: Collection[str]) -> bool:
    """Returns whether the names are the family's. PEGASUS and Blenderbot have tables, and a bias of the logits."""
    has_more = "final_logits_bias" in names or fairseq.POSITIONS["encoder"] in names
    return not has_more and fairseq.recognises(names, embedding_norm=False, final_norm=True)


def read(tensors: Tensors) -> dict[str, Any]:
    """Reads the sizes from the tensors."""
    return fairseq.read(tensors, "m2m_100")


def refuses(config: TransformerConfig) -> list[str]:
    return fairseq.refuses_two_vocabularies(config) + refuses_other_offset(config)


def refuses_other_offset(config: TransformerConfig) -> list[str]:
    """Checks that pads take row pad_id of the table, and the first token the next row."""
    if config.position_offset == config.source_pad_id:
        return []
    return [f"position_offset must be source_pad_id={config.source_pad_id}; received {config.position_offset}"]


def ignores(tensors: Tensors) -> list[str]:
    tables = [f"model.{stack}.embed_positions.weights" for stack in ("encoder", "decoder")]
    return [name for name in tables if name in tensors] + fairseq.ignores(tensors)


def follows(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {"position_offset": fields["source_pad_id"]}


def computed(config: TransformerConfig) -> dict[str, np.ndarray]:
    """Computes the position tables, which no file holds, as transformers does: with PyTorch, in float32.

    Angles reach a thousand, so the last bit of a frequency changes the fourth decimal of a sine. Another library's
    rounding would make another function.

    Raises:
      PortingError: PyTorch isn't installed.
    """
    try:
        import torch
    except ImportError:
        raise PortingError(
            "m2m_100: its position tables are made by PyTorch in float32, and no other library gives the same; "
            "install torch "
            "(pip install 'jax-transformer[parity]')"
        ) from None
    half = config.d_model // 2
    frequencies = torch.exp(torch.arange(half).float() * -(math.log(10000) / (half - 1)))
    rows = {"encoder": config.encoder.table_rows, "decoder": config.decoder.table_rows}
    angles = torch.arange(max(rows.values())).float()[:, None] * frequencies[None, :]
    table = torch.cat([torch.sin(angles), torch.cos(angles)], dim=1).numpy()
    table[config.position_offset] = 0.0
    return {f"constants/{stack}_positions": table[:count].copy() for stack, count in rows.items()}


DIALECT = Dialect(
    name="m2m_100",
    title="M2M-100 or NLLB-200 (dense) in transformers",
    recognises=recognises,
    fixed=FIXED,
    choices=fairseq.CHOICES,
    defaults=fairseq.DEFAULTS,
    read=read,
    asks=fairseq.ASKS | marian.LENGTH,
    rules=fairseq.rules,
    determines=("position_offset",),
    refuses=refuses,
    follows=follows,
    computed=computed,
    ignores=ignores,
    base_prefix=fairseq.PREFIX,
    config_file=ConfigFile(
        model_type="m2m_100",
        architectures=("M2M100ForConditionalGeneration", "M2M100Model"),
        defaults={"vocab_size": 128112}
        | fairseq.DEFAULT_JSON
        | {"scale_embedding": True, "activation_function": "relu", "attention_dropout": 0.1}
        | {"pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2, "tie_word_embeddings": True},
        allowed=fairseq.allowed(FIXED),
        read=fairseq.read_config,
        aliases=fairseq.ALIASES,
        always_there=(fairseq.SHARED,),
        write=fairseq.write_config,
    ),
)

DIALECTS = (DIALECT,)
