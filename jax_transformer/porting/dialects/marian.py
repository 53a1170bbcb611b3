"""Marian's models in Hugging Face's transformers, such as OPUS-MT's: fixed positions, post-norm, one embedding or
two."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from jax_transformer.config.model import TransformerConfig
from jax_transformer.mapping.rules import Rule
from jax_transformer.model.positions import sinusoid_table
from jax_transformer.porting.dialects import ConfigFile, Dialect, Json, fairseq
from jax_transformer.storage.tensors import Tensors

FIXED = fairseq.FIXED | {
    "encoder_embedding_norm": "none",
    "decoder_embedding_norm": "none",
    "head_bias": "buffer",
    "position_kind": "sinusoidal",
    "position_layout": "halves",
    "position_frequency": "standard",
    "position_index": "column",
    "position_offset": 0,
    "norm_placement": "post",
    "final_norm": False,
}

LENGTH = {"max_length": "how many positions its tables have (max_position_embeddings)"}
"""The field to ask for where a checkpoint may lack its tables."""


def rules(config: TransformerConfig) -> list[Rule]:
    """Returns the correspondence. Old files hold the position tables, too."""
    return [
        *fairseq.rules(config),
        *(Rule(f"{name}?", f"constants/{stack}_positions") for stack, name in fairseq.POSITIONS.items()),
    ]


def recognises(names: Collection[str]) -> bool:
    """Returns whether the names are the family's. FSMT has a head of its own."""
    has_head = fairseq.OWN_HEAD in names
    return not has_head and fairseq.recognises(names, embedding_norm=False, final_norm=False)


def read(tensors: Tensors, name: str = "marian") -> dict[str, Any]:
    """Reads the sizes from the tensors, with the length of the position tables if they are there."""
    table = fairseq.POSITIONS["encoder"]
    length = {"max_length": lambda reader: reader.size(table, 0, 2)} if table in tensors else {}
    return fairseq.read(tensors, name, **length)


def computed(config: TransformerConfig) -> dict[str, np.ndarray]:
    """Computes the position tables, in float64 rounded to float32, and a bias of the logits that does nothing."""
    table = sinusoid_table(config.encoder).astype(np.float32)
    positions = {f"constants/{stack}_positions": table.copy() for stack in ("encoder", "decoder")}
    return positions | {"constants/head_bias": np.zeros(config.target_vocab_size, np.float32)}


def read_config(json: Json) -> dict[str, Any]:
    """Returns the config fields of a config.json."""
    fields = fairseq.read_config(json)
    if json["tie_word_embeddings"]:
        fields["share_embeddings"] = json["share_encoder_decoder_embeddings"]
    if not json["share_encoder_decoder_embeddings"]:
        fields["target_vocab_size"] = json["decoder_vocab_size"] or json["vocab_size"]
    return fields


def write_config(config: TransformerConfig) -> dict[str, Any]:
    """Returns the config.json of a config: the inverse of `read_config`."""
    return fairseq.write_config(config) | {
        "decoder_vocab_size": config.target_vocab_size,
        "share_encoder_decoder_embeddings": config.share_embeddings,
    }


DIALECT = Dialect(
    name="marian",
    title="Marian in transformers, such as OPUS-MT",
    recognises=recognises,
    fixed=FIXED,
    choices=fairseq.CHOICES,
    defaults=fairseq.DEFAULTS,
    read=read,
    asks=fairseq.ASKS | LENGTH,
    rules=rules,
    refuses=fairseq.refuses,
    ignores=fairseq.ignores,
    computed=computed,
    base_prefix=fairseq.PREFIX,
    config_file=ConfigFile(
        model_type="marian",
        architectures=("MarianMTModel", "MarianModel"),
        defaults={"vocab_size": 58101, "decoder_vocab_size": None}
        | fairseq.DEFAULT_JSON
        | {
            "pad_token_id": 58100,
            "eos_token_id": 0,
            "decoder_start_token_id": 58100,
            "share_encoder_decoder_embeddings": True,
            "tie_word_embeddings": True,
        },
        allowed=fairseq.allowed(FIXED),
        read=read_config,
        aliases=fairseq.ALIASES,
        write=write_config,
    ),
)

DIALECTS = (DIALECT,)
