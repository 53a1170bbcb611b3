"""IndicTrans2 (Gala et al. 2023), whose program comes with its checkpoints on the Hub: M2M-100 with a vocabulary for
each side, and norms where each stack has them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from jax_transformer.config.model import TransformerConfig
from jax_transformer.porting.dialects import (
    ConfigFile,
    Dialect,
    Json,
    Reader,
    fairseq,
    heads_as_wide_as_the_model,
    m2m_100,
    marian,
    one_target_pad_id,
)
from jax_transformer.storage.tensors import PortingError, Tensors

FREE = ("encoder_embedding_norm", "decoder_embedding_norm", "norm_placement", "final_norm")
FIXED = {name: value for name, value in m2m_100.FIXED.items() if name not in FREE} | {"share_embeddings": False}
EMBEDDING_NORMS = ("none", "after_positions")
PLACEMENTS = ("post", "pre")
"""The places of norms without and with normalize_before, which also ends a stack in a norm."""


def recognises(names: Collection[str]) -> bool:
    """Returns whether the names are the family's. Those of M2M-100 models with two embeddings are the same."""
    return {*fairseq.EMBEDDINGS.values(), "model.encoder.layers.0.self_attn.q_proj.weight"} <= {*names}


def read(tensors: Tensors) -> dict[str, Any]:
    """Reads the sizes from the tensors, and which stacks end in a norm."""

    def ends_in_norm(stack: str) -> bool:
        return f"model.{stack}.layer_norm.weight" in tensors

    def embedding_norm(reader: Reader) -> str:
        return EMBEDDING_NORMS["model.encoder.layernorm_embedding.weight" in tensors]

    return fairseq.read(
        tensors,
        "indictrans",
        encoder_embedding_norm=embedding_norm,
        decoder_embedding_norm=embedding_norm,
        norm_placement=lambda reader: PLACEMENTS[ends_in_norm("encoder")],
        decoder_norm_placement=lambda reader: PLACEMENTS[ends_in_norm("decoder")],
        final_norm=lambda reader: ends_in_norm("encoder"),
        decoder_final_norm=lambda reader: ends_in_norm("decoder"),
    )


def refuses(config: TransformerConfig) -> list[str]:
    """Lists the other obstacles of a config: both sides must have one width of heads, one padding and one norm of
    embeddings, and a stack ends in a norm exactly if it norms before sublayers."""
    problems = heads_as_wide_as_the_model(config) + m2m_100.refuses_other_offset(config)
    if config.source_pad_id != config.target_pad_id:
        problems.append(f"target_pad_id must be source_pad_id={config.source_pad_id}; received {config.target_pad_id}")
    encoder, decoder = config.encoder, config.decoder
    if decoder.embedding_norm != encoder.embedding_norm:
        problems.append(
            f"decoder_embedding_norm must be encoder_embedding_norm={encoder.embedding_norm!r}; received "
            f"{decoder.embedding_norm!r}"
        )
    for prefix, stack in (("", encoder), ("decoder_", decoder)):
        if stack.final_norm != (stack.norm_placement == "pre"):
            problems.append(
                f"{prefix}final_norm must be {stack.norm_placement == 'pre'} with norm_placement="
                f"{stack.norm_placement!r}; received {stack.final_norm}"
            )
    return problems + one_target_pad_id(config)


# --- config.json

TIES = "share_decoder_input_output_embed"
DEFAULT_JSON: dict[str, Any] = {
    "encoder_vocab_size": None,
    "decoder_vocab_size": None,
    "encoder_embed_dim": 512,
    "decoder_embed_dim": 512,
    "max_source_positions": 210,
    "max_target_positions": 210,
    "encoder_layers": 6,
    "decoder_layers": 6,
    "encoder_attention_heads": 8,
    "decoder_attention_heads": 8,
    "encoder_ffn_dim": 2048,
    "decoder_ffn_dim": 2048,
    "encoder_normalize_before": False,
    "decoder_normalize_before": False,
    "layernorm_embedding": False,
    TIES: False,
    "scale_embedding": True,
    "activation_function": "relu",
    "dropout": 0.1,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "pad_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}
RENAMED = {
    "d_model": "encoder_embed_dim",
    "max_position_embeddings": "max_source_positions",
    "vocab_size": "encoder_vocab_size",
    "tie_word_embeddings": TIES,
}
"""Keys that the families of fairseq share → this family's."""


def read_config(json: Json) -> dict[str, Any]:
    """Returns the config fields of a config.json. Raises PortingError for stacks of two widths."""
    if json["decoder_embed_dim"] != json["encoder_embed_dim"]:
        raise PortingError(
            f"config.json: decoder_embed_dim must be encoder_embed_dim={json['encoder_embed_dim']}; received "
            f"{json['decoder_embed_dim']}"
        )
    fields = fairseq.read_config({**json, **{name: json[own] for name, own in RENAMED.items()}})
    norms = {side: bool(json[f"{side}_normalize_before"]) for side in ("encoder", "decoder")}
    lengths = {side: json[f"max_{side}_positions"] for side in ("source", "target")}
    normed = EMBEDDING_NORMS[bool(json["layernorm_embedding"])]
    differ = norms["decoder"] != norms["encoder"]
    return fields | {
        "target_vocab_size": json["decoder_vocab_size"],
        "decoder_max_length": None if lengths["target"] == lengths["source"] else lengths["target"],
        "share_embeddings": False,
        "encoder_embedding_norm": normed,
        "decoder_embedding_norm": normed,
        "norm_placement": PLACEMENTS[norms["encoder"]],
        "decoder_norm_placement": PLACEMENTS[norms["decoder"]] if differ else None,
        "final_norm": norms["encoder"],
        "decoder_final_norm": norms["decoder"] if differ else None,
    }


def write_config(config: TransformerConfig) -> dict[str, Any]:
    """Returns the config.json of a config: the inverse of `read_config`."""
    json = {RENAMED.get(key, key): value for key, value in fairseq.write_config(config).items()}
    return json | {
        "decoder_embed_dim": config.d_model,
        "decoder_vocab_size": config.target_vocab_size,
        "max_target_positions": config.decoder.max_length,
        "encoder_normalize_before": config.encoder.final_norm,
        "decoder_normalize_before": config.decoder.final_norm,
        "layernorm_embedding": config.encoder.embedding_norm != "none",
        TIES: config.tie_head,
    }


DIALECT = Dialect(
    name="indictrans",
    title="IndicTrans2 on the Hub",
    recognises=recognises,
    by_names=False,
    fixed=FIXED,
    choices={name: values for name, values in fairseq.CHOICES.items() if name != "share_embeddings"}
    | {
        "encoder_embedding_norm": EMBEDDING_NORMS,
        "decoder_embedding_norm": EMBEDDING_NORMS,
        "norm_placement": PLACEMENTS,
        "decoder_norm_placement": (None, *PLACEMENTS),
        "final_norm": (False, True),
        "decoder_final_norm": (None, False, True),
    },
    defaults=fairseq.DEFAULTS,
    read=read,
    asks={name: why for name, why in fairseq.ASKS.items() if name != "share_embeddings"} | marian.LENGTH,
    rules=fairseq.rules,
    determines=("position_offset",),
    refuses=refuses,
    follows=m2m_100.follows,
    computed=m2m_100.computed,
    base_prefix=fairseq.PREFIX,
    config_file=ConfigFile(
        model_type="IndicTrans",
        architectures=("IndicTransForConditionalGeneration", "IndicTransModel"),
        defaults=DEFAULT_JSON,
        allowed={"is_encoder_decoder": (True,), "is_decoder": (False,)},
        read=read_config,
        aliases={"num_attention_heads": "encoder_attention_heads", "hidden_size": "encoder_embed_dim"},
        always_there=(fairseq.EMBEDDINGS["target"], fairseq.HEAD),
        write=write_config,
    ),
)

DIALECTS = (DIALECT,)
