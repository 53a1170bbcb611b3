"""SayHello's series on machine translation (torch_reference.sayhello)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from jax_transformer.config.model import TransformerConfig
from jax_transformer.mapping.rules import Rule
from jax_transformer.model.positions import sinusoid_table
from jax_transformer.porting.dialects import Dialect, Reader, Text, one_size_of_heads
from jax_transformer.porting.dialects.tables import ASKS, LINEAR, TUTORIAL, attention, layers, norm, within
from jax_transformer.storage.tensors import Tensors

FIXED = TUTORIAL | {
    "scale_embedding": False,
    "trains_pad_embedding": False,
    "norm_placement": "post",
    "norm_eps_outside": True,
    "norm_unbiased": True,
    "final_norm": False,
    "masked_value": -1e12,
    "encoder_padding": "both",
    "decoder_padding": "both",
    "cross_padding": "both",
}
for name in ("attention_bias", "attention_output_bias"):
    del FIXED[name]
CHOICES = {"attention_bias": (False, True), "attention_output_bias": (False, True)}
DEFAULTS = {
    "max_length": 256,
    "norm_eps": 1e-12,
    "dropout_rate": 0.1,
    "attention_dropout_rate": 0.0,
    "initializer": "kaiming_uniform",
}

NORM = norm("gamma", "beta")


def rules(config: TransformerConfig) -> list[Rule]:
    """Returns the correspondence."""
    projections = attention("w_q", "w_k", "w_v", "w_concat", bias=config.attention_bias)
    encoder_layer = {
        "attention": ("self_attention", projections),
        "norm1": ("self_attention_norm", NORM),
        "ffn.linear1": ("feed_forward/hidden", LINEAR),
        "ffn.linear2": ("feed_forward/output", LINEAR),
        "norm2": ("feed_forward_norm", NORM),
    }
    decoder_layer = {
        "self_attention": ("self_attention", projections),
        "norm1": ("self_attention_norm", NORM),
        "enc_dec_attention": ("cross_attention", projections),
        "norm2": ("cross_attention_norm", NORM),
        "ffn.linear1": ("feed_forward/hidden", LINEAR),
        "ffn.linear2": ("feed_forward/output", LINEAR),
        "norm3": ("feed_forward_norm", NORM),
    }
    table = []
    for stack, side, parts in (("encoder", "source", encoder_layer), ("decoder", "target", decoder_layer)):
        table += [
            Rule(f"{stack}.emb.tok_emb.weight", f"{side}_embedding/embedding"),
            *layers(f"{stack}.layers", stack, parts),
        ]
    return [*table, *within("decoder.linear", "head", LINEAR)]


def recognises(names: Collection[str]) -> bool:
    return "encoder.emb.tok_emb.weight" in names


def read(tensors: Tensors) -> dict[str, Any]:
    """Reads sizes off shapes, and whether attentions have biases. Raises PortingError naming the tensors that are
    missing for it."""
    reader = Reader(tensors)
    has_bias = "encoder.layers.0.attention.w_q.bias" in tensors
    return reader.finished(
        "sayhello or hyunwoongko",
        source_vocab_size=reader.size("encoder.emb.tok_emb.weight", 0, 2),
        target_vocab_size=reader.size("decoder.emb.tok_emb.weight", 0, 2),
        d_model=reader.size("encoder.emb.tok_emb.weight", 1, 2),
        d_ff=reader.size("encoder.layers.0.ffn.linear1.weight", 0, 2),
        decoder_d_ff=reader.size("decoder.layers.0.ffn.linear1.weight", 0, 2),
        num_encoder_layers=reader.layers("encoder.layers.{i}."),
        num_decoder_layers=reader.layers("decoder.layers.{i}."),
        attention_bias=has_bias,
        attention_output_bias=has_bias,
    )


def computed(config: TransformerConfig) -> dict[str, np.ndarray]:
    """Computes the position tables in float32, whatever the parameters' dtype, as the program does in every run."""
    return {
        f"constants/{name}_positions": sinusoid_table(stack).astype(np.float32)
        for name, stack in (("encoder", config.encoder), ("decoder", config.decoder))
    }


def follows(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Sets the decoder's padding id to the source's pad id, which its self-attention masks."""
    return {"decoder_padding_id": fields["source_pad_id"]}


def refuses(config: TransformerConfig) -> list[str]:
    """Returns further problems of a config."""
    problems = one_size_of_heads(config)
    own = config.target_pad_id if config.decoder_padding_id is None else config.decoder_padding_id
    if own != config.source_pad_id:
        problems.append(
            f"decoder_padding_id must be source_pad_id={config.source_pad_id}; received {config.decoder_padding_id}"
        )
    if config.attention_output_bias != config.attention_bias:
        problems.append(
            f"attention_output_bias must be attention_bias={config.attention_bias}; received "
            f"{config.attention_output_bias}"
        )
    return problems


DIALECT = Dialect(
    name="sayhello",
    title="SayHello's series: norms with ε outside the root, padding masked on keys and queries "
    "(torch_reference.sayhello)",
    recognises=recognises,
    fixed=FIXED,
    choices=CHOICES,
    defaults=DEFAULTS,
    read=read,
    asks=ASKS,
    rules=rules,
    text={"source": Text("spacy", lowercase=True, add_bos=True, add_eos=True), "target": Text("spacy", lowercase=True)},
    refuses=refuses,
    computed=computed,
    follows=follows,
)

DIALECTS = (DIALECT,)
