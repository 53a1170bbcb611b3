"""BART in Hugging Face's transformers and the families of its layout: MVP, PLBART, mBART, Blenderbot and its small
sibling. All have learned positions, and a bias of the logits that isn't trained."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any

import numpy as np

from jax_transformer.config.model import TransformerConfig
from jax_transformer.porting.dialects import ConfigFile, Dialect, fairseq
from jax_transformer.storage.tensors import Tensors

FIXED = fairseq.FIXED | {
    "encoder_embedding_norm": "after_positions",
    "decoder_embedding_norm": "after_positions",
    "head_bias": "buffer",
    "position_kind": "learned",
    "position_index": "column",
    "position_offset": 2,
    "norm_placement": "post",
    "final_norm": False,
}
PRE_NORM = {"norm_placement": "pre", "final_norm": True}
NO_EMBEDDING_NORM = {"encoder_embedding_norm": "none", "decoder_embedding_norm": "none"}


def recognises(names: Collection[str], fixed: dict[str, Any]) -> bool:
    """Returns whether the names are of a model with the family's norms, and with position tables."""
    norms = {"embedding_norm": fixed["encoder_embedding_norm"] != "none", "final_norm": fixed["final_norm"]}
    return fairseq.POSITIONS["encoder"] in names and fairseq.recognises(names, **norms)


def read(tensors: Tensors, name: str, offset: int) -> dict[str, Any]:
    """Reads the sizes from the tensors, with the length of the position tables."""
    return fairseq.read(
        tensors, name, max_length=lambda reader: reader.size(fairseq.POSITIONS["encoder"], 0, 2) - offset
    )


def computed(config: TransformerConfig) -> dict[str, np.ndarray]:
    """Returns a bias of the logits that does nothing."""
    return {"constants/head_bias": np.zeros(config.target_vocab_size, np.float32)}


DEFAULT_JSON = (
    {"vocab_size": 50265}
    | fairseq.DEFAULT_JSON
    | {"pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2, "tie_word_embeddings": True}
)


def _dialect(
    name: str,
    title: str,
    prefix: str,
    differing: dict[str, Any],
    *,
    model_type: str = "",
    by_names: bool = True,
    allowed: dict[str, tuple[Any, ...]] | None = None,
    starts_with_tag: bool = False,
    **json: Any,
) -> Dialect:
    """Returns a family's dialect.

    Args:
      prefix: of its classes in transformers.
      differing: config fields in which it differs from BART.
      by_names: as of Dialect.
      allowed: keys of its config.json that only one value is for.
      starts_with_tag: as of ConfigFile.
      json: defaults of its config.json that differ from BART's.
    """
    fixed = FIXED | differing
    return Dialect(
        name=name,
        title=title,
        recognises=partial(recognises, fixed=fixed),
        by_names=by_names,
        fixed=fixed,
        choices=fairseq.CHOICES,
        defaults=fairseq.DEFAULTS,
        read=partial(read, name=name, offset=fixed["position_offset"]),
        asks=fairseq.ASKS,
        rules=fairseq.rules,
        refuses=fairseq.refuses_two_vocabularies,
        computed=computed,
        ignores=fairseq.ignores,
        base_prefix=fairseq.PREFIX,
        config_file=ConfigFile(
            model_type=model_type or name,
            architectures=(f"{prefix}ForConditionalGeneration", f"{prefix}Model"),
            defaults=DEFAULT_JSON | json,
            allowed=fairseq.allowed(fixed) | (allowed or {}),
            read=fairseq.read_config,
            aliases=fairseq.ALIASES,
            starts_with_tag=starts_with_tag,
            always_there=(fairseq.SHARED,),
            write=fairseq.write_config,
        ),
    )


DIALECTS = (
    _dialect("bart", "BART in transformers", "Bart", {}),
    _dialect(
        "mvp",
        "MVP in transformers, without prompts",
        "Mvp",
        {},
        by_names=False,
        allowed={"use_prompt": (False,)},
        vocab_size=50267,
    ),
    _dialect(
        "plbart",
        "PLBART in transformers",
        "PLBart",
        {},
        by_names=False,
        vocab_size=50005,
        d_model=768,
        encoder_layers=6,
        decoder_layers=6,
        encoder_attention_heads=12,
        decoder_attention_heads=12,
        encoder_ffn_dim=3072,
        decoder_ffn_dim=3072,
        scale_embedding=True,
        attention_dropout=0.1,
        decoder_start_token_id=None,
        starts_with_tag=True,
    ),
    _dialect(
        "mbart",
        "mBART or mBART-50 in transformers",
        "MBart",
        PRE_NORM,
        decoder_start_token_id=None,
        starts_with_tag=True,
    ),
    _dialect(
        "blenderbot",
        "Blenderbot in transformers",
        "Blenderbot",
        PRE_NORM | NO_EMBEDDING_NORM | {"position_offset": 0},
        vocab_size=8008,
        d_model=2560,
        encoder_layers=2,
        decoder_layers=24,
        encoder_attention_heads=32,
        decoder_attention_heads=32,
        encoder_ffn_dim=10240,
        decoder_ffn_dim=10240,
        max_position_embeddings=128,
        pad_token_id=0,
        decoder_start_token_id=1,
    ),
    _dialect(
        "blenderbot_small",
        "Blenderbot Small in transformers",
        "BlenderbotSmall",
        {"decoder_embedding_norm": "before_positions", "position_offset": 0},
        model_type="blenderbot-small",
        d_model=512,
        encoder_layers=8,
        decoder_layers=8,
        encoder_ffn_dim=2048,
        decoder_ffn_dim=2048,
        max_position_embeddings=512,
        pad_token_id=0,
        decoder_start_token_id=1,
    ),
)
