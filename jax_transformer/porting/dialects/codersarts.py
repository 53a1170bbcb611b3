"""Codersarts' article (torch_reference.codersarts)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from jax_transformer.config.model import TransformerConfig
from jax_transformer.mapping.rules import Rule
from jax_transformer.porting.dialects import Dialect, Reader, Text
from jax_transformer.porting.dialects.tables import ASKS, LINEAR, TUTORIAL, attention, layers, norm, within
from jax_transformer.storage.tensors import Tensors

FIXED = TUTORIAL | {
    "scale_embedding": False,
    "norm_placement": "pre",
    "norm_eps_outside": True,
    "norm_unbiased": True,
    "final_norm": False,
    "masked_value": -1e9,
}
del FIXED["position_index"]
CHOICES = {"position_index": ("batch_row", "column")}
DEFAULTS = {
    "position_index": "batch_row",  # as computed; "column" is what the article means
    "norm_eps": 1e-6,
    "dropout_rate": 0.1,
    "attention_dropout_rate": 0.1,
    "initializer": "torch",
}

NORM = norm("alpha", "bias")
ATTENTION = attention("q_linear", "k_linear", "v_linear", "out")
ENCODER_LAYER = {
    "norm_1": ("self_attention_norm", NORM),
    "norm_2": ("feed_forward_norm", NORM),
    "attn": ("self_attention", ATTENTION),
    "ff.linear1": ("feed_forward/hidden", LINEAR),
    "ff.linear2": ("feed_forward/output", LINEAR),
}
DECODER_LAYER = {
    "norm_1": ("self_attention_norm", NORM),
    "norm_2": ("cross_attention_norm", NORM),
    "norm_3": ("feed_forward_norm", NORM),
    "attn_1": ("self_attention", ATTENTION),
    "attn_2": ("cross_attention", ATTENTION),
    "ff.linear1": ("feed_forward/hidden", LINEAR),
    "ff.linear2": ("feed_forward/output", LINEAR),
}


def rules(config: TransformerConfig) -> list[Rule]:
    """Returns the correspondence."""
    table = []
    for stack, side, parts in (("encoder", "source", ENCODER_LAYER), ("decoder", "target", DECODER_LAYER)):
        table += [
            Rule(f"{stack}.embed.weight", f"{side}_embedding/embedding"),
            Rule(f"{stack}.pe.pe", f"constants/{stack}_positions", "P 1 D -> P D"),
            *layers(f"{stack}.layers", stack, parts),
        ]
    return [*table, *within("out", "head", LINEAR)]


def recognises(names: Collection[str]) -> bool:
    return "encoder.embed.weight" in names and "encoder.layers.0.attn.q_linear.weight" in names


def read(tensors: Tensors) -> dict[str, Any]:
    """Reads sizes off shapes. Raises PortingError naming the tensors that are missing for it."""
    reader = Reader(tensors)
    return reader.finished(
        "codersarts",
        source_vocab_size=reader.size("encoder.embed.weight", 0, 2),
        target_vocab_size=reader.size("decoder.embed.weight", 0, 2),
        d_model=reader.size("encoder.embed.weight", 1, 2),
        d_ff=reader.size("encoder.layers.0.ff.linear1.weight", 0, 2),
        decoder_d_ff=reader.size("decoder.layers.0.ff.linear1.weight", 0, 2),
        max_length=reader.size("encoder.pe.pe", 0, 3),
        decoder_max_length=reader.size("decoder.pe.pe", 0, 3),
        num_encoder_layers=reader.layers("encoder.layers.{i}."),
        num_decoder_layers=reader.layers("decoder.layers.{i}."),
    )


DIALECT = Dialect(
    name="codersarts",
    title="Codersarts' article: positions by batch row, no final norms (torch_reference.codersarts)",
    recognises=recognises,
    fixed=FIXED,
    choices=CHOICES,
    defaults=DEFAULTS,
    read=read,
    asks=ASKS,
    rules=rules,
    text={"source": Text(), "target": Text()},
)

DIALECTS = (DIALECT,)
