"""The Chinese tutorial that follows the Annotated Transformer (torch_reference.annotated_zh)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from jax_transformer.config.model import TransformerConfig
from jax_transformer.mapping.rules import Rule
from jax_transformer.porting.dialects import Dialect, Reader, Text
from jax_transformer.porting.dialects.tables import ASKS, LINEAR, TUTORIAL, attention, layers, norm, within
from jax_transformer.storage.tensors import Tensors

FIXED = TUTORIAL | {
    "scale_embedding": True,
    "norm_placement": "pre",
    "norm_eps_outside": False,
    "norm_unbiased": True,
    "final_norm": True,
    "masked_value": -1e9,
    "activation": "none",
    "decoding_decoder_padding": "none",
}
DEFAULTS = {"norm_eps": 1e-6, "dropout_rate": 0.1, "attention_dropout_rate": 0.1, "initializer": "xavier_uniform"}

NORM = norm("a_2", "b_2")
ATTENTION = attention("linears.0", "linears.1", "linears.2", "linears.3")
ENCODER_LAYER = {
    "self_attn": ("self_attention", ATTENTION),
    "feed_forward.w_1": ("feed_forward/hidden", LINEAR),
    "feed_forward.w_2": ("feed_forward/output", LINEAR),
    "sublayer.0.norm": ("self_attention_norm", NORM),
    "sublayer.1.norm": ("feed_forward_norm", NORM),
}
DECODER_LAYER = {
    "self_attn": ("self_attention", ATTENTION),
    "src_attn": ("cross_attention", ATTENTION),
    "feed_forward.w_1": ("feed_forward/hidden", LINEAR),
    "feed_forward.w_2": ("feed_forward/output", LINEAR),
    "sublayer.0.norm": ("self_attention_norm", NORM),
    "sublayer.1.norm": ("cross_attention_norm", NORM),
    "sublayer.2.norm": ("feed_forward_norm", NORM),
}


def rules(config: TransformerConfig) -> list[Rule]:
    """Returns the correspondence."""
    table = []
    for stack, parts in (("encoder", ENCODER_LAYER), ("decoder", DECODER_LAYER)):
        table += [*layers(f"{stack}.layers", stack, parts), *within(f"{stack}.norm", f"{stack}/final_norm", NORM)]
    for stack, side, embed in (("encoder", "source", "src_embed"), ("decoder", "target", "tgt_embed")):
        table += [
            Rule(f"{embed}.0.lut.weight", f"{side}_embedding/embedding"),
            Rule(f"{embed}.1.pe", f"constants/{stack}_positions", "1 P D -> P D"),
        ]
    return [*table, *within("generator.proj", "head", LINEAR)]


def recognises(names: Collection[str]) -> bool:
    return "src_embed.0.lut.weight" in names


def read(tensors: Tensors) -> dict[str, Any]:
    """Reads sizes off shapes. Raises PortingError naming the tensors that are missing for it."""
    reader = Reader(tensors)
    return reader.finished(
        "annotated_zh or harvard",
        source_vocab_size=reader.size("src_embed.0.lut.weight", 0, 2),
        target_vocab_size=reader.size("tgt_embed.0.lut.weight", 0, 2),
        d_model=reader.size("src_embed.0.lut.weight", 1, 2),
        d_ff=reader.size("encoder.layers.0.feed_forward.w_1.weight", 0, 2),
        decoder_d_ff=reader.size("decoder.layers.0.feed_forward.w_1.weight", 0, 2),
        max_length=reader.size("src_embed.1.pe", 1, 3),
        decoder_max_length=reader.size("tgt_embed.1.pe", 1, 3),
        num_encoder_layers=reader.layers("encoder.layers.{i}."),
        num_decoder_layers=reader.layers("decoder.layers.{i}."),
    )


DIALECT = Dialect(
    name="annotated_zh",
    title="the Chinese Annotated Transformer: no activation, norms with an unbiased variance in the root "
    "(torch_reference.annotated_zh)",
    recognises=recognises,
    fixed=FIXED,
    defaults=DEFAULTS,
    read=read,
    asks=ASKS,
    rules=rules,
    text={"source": Text("words", lowercase=True, add_bos=True, add_eos=True), "target": Text("characters")},
    generation={"max_decode_length": 60},
)

DIALECTS = (DIALECT,)
