"""The article that builds a Transformer in steps (torch_reference.stepwise): the whole, and the models before it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from jax_transformer.config.model import TransformerConfig
from jax_transformer.mapping.rules import Rule
from jax_transformer.porting.dialects import Dialect, Reader, Text
from jax_transformer.porting.dialects.tables import ASKS, LINEAR, TUTORIAL, attention, layers, norm, within
from jax_transformer.storage.tensors import Tensors

NORM = norm("weight", "bias")

WHOLE = TUTORIAL | {
    "scale_embedding": False,
    "norm_placement": "post",
    "norm_eps_outside": False,
    "norm_unbiased": False,
    "final_norm": False,
    "masked_value": -1e9,
    "encoder_padding": "queries",
    "decoder_padding": "queries",
    "cross_padding": "none",
}
SUBLAYERS = WHOLE | {"num_heads": 1, "attention_scale": 1.0, "encoder_padding": "keys", "decoder_padding": "keys"}
LAYERS = SUBLAYERS | {"norm_kind": "none", "norm_bias": True, "attention_output": False, "feed_forward": False}
POSITIONS = LAYERS | {"num_encoder_layers": 1, "num_decoder_layers": 1}
MASKS = POSITIONS | {"position_kind": "none"}
CORE = MASKS | {"encoder_padding": "none", "decoder_padding": "none", "decoder_causal": False}

DEFAULTS = {"norm_eps": 1e-5, "dropout_rate": 0.0, "initializer": "torch"}


def rules(config: TransformerConfig) -> list[Rule]:
    """Returns the correspondence of programs with numbered layers."""
    projections = _projections(config)
    encoder_layer = {"attn": ("self_attention", projections)}
    decoder_layer = {"attn": ("self_attention", projections), "cross_attn": ("cross_attention", projections)}
    if config.feed_forward:
        feed_forward = {"ff1": ("feed_forward/hidden", LINEAR), "ff2": ("feed_forward/output", LINEAR)}
        encoder_layer |= feed_forward | {"norm1": ("self_attention_norm", NORM), "norm2": ("feed_forward_norm", NORM)}
        decoder_layer |= feed_forward | {
            "norm1": ("self_attention_norm", NORM),
            "norm2": ("cross_attention_norm", NORM),
            "norm3": ("feed_forward_norm", NORM),
        }
    return [
        *_around(config),
        *layers("encoders", "encoder", encoder_layer),
        *layers("decoders", "decoder", decoder_layer),
    ]


def rules_of_one_layer(config: TransformerConfig) -> list[Rule]:
    """Returns the correspondence before the step that adds layers: the three attentions are at the top level."""
    projections = _projections(config)
    places = {
        "encoder_attention": "encoder/layers/self_attention",
        "decoder_attention": "decoder/layers/self_attention",
        "cross_attention": "decoder/layers/cross_attention",
    }
    return [
        *_around(config),
        *(rule for name, path in places.items() for rule in within(name, path, projections, stacked=True)),
    ]


def _projections(config: TransformerConfig) -> list[tuple[str, str, str]]:
    return attention("W_q", "W_k", "W_v", "linear_out" if config.attention_output else None)


def _around(config: TransformerConfig) -> list[Rule]:
    """Embeddings, positions and head."""
    table = [
        Rule("encoder_embedding.weight", "source_embedding/embedding"),
        Rule("decoder_embedding.weight", "target_embedding/embedding"),
    ]
    if config.position_kind != "none":
        table.append(Rule("positional_encoding.pe", "constants/{encoder,decoder}_positions"))
    return [*table, *within("fc", "head", LINEAR)]


def read(tensors: Tensors) -> dict[str, Any]:
    """Reads sizes off shapes. Raises PortingError naming the tensors that are missing for it."""
    reader = Reader(tensors)
    fields: dict[str, Any] = {
        "source_vocab_size": reader.size("encoder_embedding.weight", 0, 2),
        "target_vocab_size": reader.size("decoder_embedding.weight", 0, 2),
        "d_model": reader.size("encoder_embedding.weight", 1, 2),
    }
    if "positional_encoding.pe" in tensors:
        fields["max_length"] = reader.size("positional_encoding.pe", 0, 2)
    if "encoders.0.attn.W_q.weight" in tensors:
        fields["num_encoder_layers"] = reader.layers("encoders.{i}.")
        fields["num_decoder_layers"] = reader.layers("decoders.{i}.")
    if "encoders.0.ff1.weight" in tensors:
        fields["d_ff"] = reader.size("encoders.0.ff1.weight", 0, 2)
        fields["decoder_d_ff"] = reader.size("decoders.0.ff1.weight", 0, 2)
    return reader.finished("stepwise", **fields)


def _dialect(name: str, title: str, fixed: dict[str, Any], has: Collection[str], lacks: Collection[str]) -> Dialect:
    """Returns the dialect of one model of the ladder, recognised by tensors that it `has` and `lacks`."""

    def recognises(names: Collection[str]) -> bool:
        return {"encoder_embedding.weight", *has} <= set(names) and not set(lacks) & set(names)

    return Dialect(
        name=name,
        title=f"{title} (torch_reference.stepwise)",
        recognises=recognises,
        fixed=fixed,
        defaults=DEFAULTS,
        read=read,
        asks={field: why for field, why in ASKS.items() if field not in fixed},
        rules=rules_of_one_layer if "num_encoder_layers" in fixed else rules,
        text={"source": Text(), "target": Text()},
        generation={"max_decode_length": 40},
    )


ONE, MANY, TABLE, OUTPUT = (
    "encoder_attention.W_q.weight",
    "encoders.0.attn.W_q.weight",
    "positional_encoding.pe",
    "encoders.0.ff1.weight",
)

DIALECTS = (
    _dialect(
        "stepwise",
        "the whole article: post-norm, padding masked on queries, cross-attention unmasked",
        WHOLE,
        (MANY, OUTPUT),
        (),
    ),
    _dialect(
        "stepwise_sublayers", "its fifth step: one unscaled head, padding masked on keys", SUBLAYERS, (MANY, OUTPUT), ()
    ),
    _dialect("stepwise_layers", "its fourth step: layers of attentions alone", LAYERS, (MANY,), (OUTPUT,)),
    _dialect(
        "stepwise_positions", "its third step: one attention in each place, with positions", POSITIONS, (ONE, TABLE), ()
    ),
    _dialect("stepwise_masks", "its second step: the same without positions", MASKS, (ONE,), (TABLE,)),
    _dialect("stepwise_core", "its core, and its first step: the same without masks", CORE, (ONE,), (TABLE,)),
)
