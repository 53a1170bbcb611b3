"""torch.nn.Transformer with embeddings, one table of positions and a head, as `torch_reference.pytorch` lays it out."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from jax_transformer.config.model import TransformerConfig
from jax_transformer.mapping.rules import Rule
from jax_transformer.porting.dialects import Dialect, Reader, one_size_of_heads, one_target_pad_id
from jax_transformer.porting.dialects.tables import LINEAR, layers, norm, within
from jax_transformer.storage.tensors import Tensors

FIXED: dict[str, Any] = {
    "scale_embedding": True,
    "trains_pad_embedding": True,
    "encoder_embedding_norm": "none",
    "decoder_embedding_norm": "none",
    "scale_head": False,
    "head_bias": "parameter",
    "position_kind": "sinusoidal",
    "position_layout": "interleaved",
    "position_frequency": "standard",
    "position_index": "column",
    "position_offset": 0,
    "norm_kind": "layer_norm",
    "norm_eps_outside": False,
    "norm_unbiased": False,
    "norm_bias": True,
    "final_norm": True,
    "attention_scale": None,
    "attention_bias": True,
    "attention_output": True,
    "attention_output_bias": True,
    "masked_value": None,
    "feed_forward": True,
    "feed_forward_gated": False,
    "feed_forward_bias": True,
    "encoder_padding": "keys",
    "decoder_padding": "keys",
    "cross_padding": "keys",
    "decoder_causal": True,
}

CHOICES = {
    "norm_placement": ("pre", "post"),
    "activation": ("relu", "gelu"),
    "decoding_decoder_padding": (None, "keys"),
    "decoding_cross_padding": (None, "keys"),
}

ASKS = {
    "num_heads": "how many heads its attentions have (nhead)",
    "norm_placement": "'pre' or 'post' (or norm_first: true or false)",
    "activation": "'relu' or 'gelu'",
    "source_pad_id": "the id that pads source sentences",
    "target_pad_id": "the id that pads target sentences",
    "share_embeddings": "its two embeddings are equal: true if they are one parameter",
    "tie_head": "its head's weight equals the target embedding: true if they are one parameter",
}

NORM = norm("weight", "bias")
ATTENTION = [
    ("in_proj_weight", "{query,key,value}/kernel", "(3 N H) D -> D N H"),
    ("in_proj_bias", "{query,key,value}/bias", "(3 N H) -> N H"),
    ("out_proj.weight", "output/kernel", "D (N H) -> N H D"),
    ("out_proj.bias", "output/bias", ""),
]
ENCODER_LAYER = {
    "self_attn": ("self_attention", ATTENTION),
    "norm1": ("self_attention_norm", NORM),
    "linear1": ("feed_forward/hidden", LINEAR),
    "linear2": ("feed_forward/output", LINEAR),
    "norm2": ("feed_forward_norm", NORM),
}
DECODER_LAYER = {
    "self_attn": ("self_attention", ATTENTION),
    "norm1": ("self_attention_norm", NORM),
    "multihead_attn": ("cross_attention", ATTENTION),
    "norm2": ("cross_attention_norm", NORM),
    "linear1": ("feed_forward/hidden", LINEAR),
    "linear2": ("feed_forward/output", LINEAR),
    "norm3": ("feed_forward_norm", NORM),
}


def rules(config: TransformerConfig) -> list[Rule]:
    """Returns the correspondence, tied as the config says."""
    table = [*_embeddings(config)]
    table.append(Rule("positions", "constants/{encoder,decoder}_positions"))
    for stack, parts in (("encoder", ENCODER_LAYER), ("decoder", DECODER_LAYER)):
        table += layers(f"transformer.{stack}.layers", stack, parts)
        table += within(f"transformer.{stack}.norm", f"{stack}/final_norm", NORM)
    if config.tie_head:
        table.append(Rule("head.bias", "head_bias"))
    else:
        table += within("head", "head", LINEAR)
    return table


def _embeddings(config: TransformerConfig) -> list[Rule]:
    source, target = "source_embedding.weight", "target_embedding.weight"
    tied = ("head.weight",) if config.tie_head else ()
    if config.share_embeddings:
        return [Rule((source, target, *tied), "shared_embedding/embedding")]
    return [Rule(source, "source_embedding/embedding"), Rule((target, *tied), "target_embedding/embedding")]


def recognises(names: Collection[str]) -> bool:
    return "transformer.encoder.layers.0.self_attn.in_proj_weight" in names


def read(tensors: Tensors) -> dict[str, Any]:
    """Reads sizes off shapes, and unties tensors that differ. Raises PortingError naming the tensors that are missing
    for it."""
    reader = Reader(tensors)
    fields = reader.finished(
        "pytorch",
        source_vocab_size=reader.size("source_embedding.weight", 0, 2),
        target_vocab_size=reader.size("target_embedding.weight", 0, 2),
        d_model=reader.size("source_embedding.weight", 1, 2),
        max_length=reader.size("positions", 0, 2),
        d_ff=reader.size("transformer.encoder.layers.0.linear1.weight", 0, 2),
        num_encoder_layers=reader.layers("transformer.encoder.layers.{i}."),
        num_decoder_layers=reader.layers("transformer.decoder.layers.{i}."),
    )
    if not reader.equal("source_embedding.weight", "target_embedding.weight"):
        fields["share_embeddings"] = False
    if not reader.equal("head.weight", "target_embedding.weight"):
        fields["tie_head"] = False
    return fields


def refuses(config: TransformerConfig) -> list[str]:
    """Lists the obstacles of a config to nn.Transformer, which has one nhead, one dim_feedforward, heads that divide
    d_model, and here one position table."""
    problems = [
        f"decoder_{name} must be the encoder's {getattr(config, name)}; received {getattr(config, f'decoder_{name}')}"
        for name in ("d_ff", "max_length")
        if getattr(config, f"decoder_{name}") is not None
    ]
    return problems + one_size_of_heads(config) + one_target_pad_id(config)


DIALECT = Dialect(
    name="pytorch",
    title="torch.nn.Transformer with scaled embeddings, standard positions and a head (torch_reference.pytorch)",
    recognises=recognises,
    fixed=FIXED,
    choices=CHOICES,
    defaults={"norm_eps": 1e-5},
    read=read,
    asks=ASKS,
    rules=rules,
    refuses=refuses,
    aliases={"norm_first": ("norm_placement", {True: "pre", False: "post"})},
)

DIALECTS = (DIALECT,)
