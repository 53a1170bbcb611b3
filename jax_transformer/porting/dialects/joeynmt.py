"""JoeyNMT 2's Transformers: sinusoids in the checkpoint, a head without a bias, and norms before or after sublayers,
which may differ between the stacks, as may activations, factors of residuals and scales of embeddings."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

from jax_transformer.config.model import TransformerConfig
from jax_transformer.mapping.rules import Rule
from jax_transformer.porting.dialects import (
    Dialect,
    Reader,
    Text,
    heads_as_wide_as_the_model,
    one_target_pad_id,
)
from jax_transformer.porting.dialects.tables import ASKS, LINEAR, TUTORIAL, Lines, attention, layers, norm, within
from jax_transformer.storage.tensors import Tensors

SOURCE, TARGET, HEAD = "src_embed.lut.weight", "trg_embed.lut.weight", "decoder.output_layer.weight"
QUERY = "encoder.layers.0.src_src_att.q_layer.weight"
CROSS_QUERY = "decoder.layers.0.src_trg_att.q_layer.weight"
FREE = ("share_embeddings", "tie_head", "activation")
FIXED = {name: value for name, value in TUTORIAL.items() if name not in FREE} | {
    "trains_pad_embedding": False,
    "head_bias": "none",
    "norm_eps_outside": False,
    "norm_unbiased": False,
    "masked_value": None,
    "decoding_decoder_padding": "none",
}
ACTIVATIONS = ("relu", "gelu", "silu")

NORM = norm("weight", "bias")
ATTENTION = attention("q_layer", "k_layer", "v_layer", "output_layer")
FEED_FORWARD: dict[str, tuple[str, Lines]] = {
    "feed_forward.layer_norm": ("feed_forward_norm", NORM),
    "feed_forward.pwff_layer.0": ("feed_forward/hidden", LINEAR),
    "feed_forward.pwff_layer.3": ("feed_forward/output", LINEAR),
}
ENCODER_LAYER = FEED_FORWARD | {
    "layer_norm": ("self_attention_norm", NORM),
    "src_src_att": ("self_attention", ATTENTION),
}
DECODER_LAYER = FEED_FORWARD | {
    "trg_trg_att": ("self_attention", ATTENTION),
    "src_trg_att": ("cross_attention", ATTENTION),
    "x_layer_norm": ("self_attention_norm", NORM),
    "dec_layer_norm": ("cross_attention_norm", NORM),
}


def rules(config: TransformerConfig) -> list[Rule]:
    """Returns the correspondence, tied as the config says: a file holds every tied tensor."""
    head = (HEAD,) if config.tie_head else ()
    if config.share_embeddings:
        table = [Rule((SOURCE, TARGET, *head), "shared_embedding/embedding")]
    else:
        table = [Rule(SOURCE, "source_embedding/embedding"), Rule((TARGET, *head), "target_embedding/embedding")]
    for name, parts, stack in (
        ("encoder", ENCODER_LAYER, config.encoder),
        ("decoder", DECODER_LAYER, config.decoder),
    ):
        table += layers(f"{name}.layers", name, parts)
        table.append(Rule(f"{name}.pe.pe", f"constants/{name}_positions", "1 P D -> P D"))
        if stack.final_norm:
            table += within(f"{name}.layer_norm", f"{name}/final_norm", NORM)
    return table if config.tie_head else [*table, Rule(HEAD, "head/kernel", "V D -> D V")]


def recognises(names: Collection[str]) -> bool:
    return QUERY in names and CROSS_QUERY in names


def read(tensors: Tensors) -> dict[str, Any]:
    """Reads sizes off shapes, and unties tensors that differ. Raises PortingError naming the tensors that are missing
    for it."""
    reader = Reader(tensors)
    fields = reader.finished(
        "JoeyNMT",
        source_vocab_size=reader.size(SOURCE, 0, 2),
        target_vocab_size=reader.size(TARGET, 0, 2),
        d_model=reader.size(SOURCE, 1, 2),
        d_ff=reader.size("encoder.layers.0.feed_forward.pwff_layer.0.weight", 0, 2),
        decoder_d_ff=reader.size("decoder.layers.0.feed_forward.pwff_layer.0.weight", 0, 2),
        max_length=reader.size("encoder.pe.pe", 1, 3),
        decoder_max_length=reader.size("decoder.pe.pe", 1, 3),
        num_encoder_layers=reader.layers("encoder.layers.{i}."),
        num_decoder_layers=reader.layers("decoder.layers.{i}."),
        final_norm="encoder.layer_norm.weight" in tensors,
        decoder_final_norm="decoder.layer_norm.weight" in tensors,
    )
    ties = {"share_embeddings": (SOURCE, TARGET), "tie_head": (TARGET, HEAD)}
    return fields | {name: False for name, (first, second) in ties.items() if not reader.equal(first, second)}


def refuses(config: TransformerConfig) -> list[str]:
    """Lists the obstacles of a config to JoeyNMT, whose embeddings are scaled by the root of d_model or not at all, and
    whose decoder ends in a norm exactly if it norms before sublayers."""
    problems = heads_as_wide_as_the_model(config) + one_target_pad_id(config)
    for name, stack in (("embedding_factor", config.encoder), ("decoder_embedding_factor", config.decoder)):
        if stack.embedding_factor not in (1.0, math.sqrt(stack.d_model)):
            problems.append(
                f"{name} must be 1 or the root of d_model={stack.d_model}; received {stack.embedding_factor:g}"
            )
    if config.share_embeddings and config.encoder.embedding_factor != config.decoder.embedding_factor:
        problems.append("decoder_embedding_factor must be the encoder's with share_embeddings; received another one")
    encoder, decoder = config.encoder, config.decoder
    if decoder.final_norm != (decoder.norm_placement == "pre"):
        problems.append(
            f"decoder_final_norm must be {decoder.norm_placement == 'pre'} with norm_placement="
            f"{decoder.norm_placement!r}; received {decoder.final_norm}"
        )
    if encoder.final_norm and encoder.norm_placement != "pre":
        problems.append(f"final_norm must be False with norm_placement={encoder.norm_placement!r}; received True")
    if config.source_pad_id != config.target_pad_id:
        problems.append(f"target_pad_id must be source_pad_id={config.source_pad_id}; received {config.target_pad_id}")
    return problems


DIALECT = Dialect(
    name="joeynmt",
    title="JoeyNMT 2",
    recognises=recognises,
    fixed=FIXED,
    choices={
        "share_embeddings": (False, True),
        "tie_head": (False, True),
        "activation": ACTIVATIONS,
        "decoder_activation": (None, *ACTIVATIONS),
        "norm_placement": ("post", "pre"),
        "decoder_norm_placement": (None, "post", "pre"),
        "final_norm": (False, True),
        "decoder_final_norm": (None, False, True),
        "scale_embedding": (False, True),
    },
    defaults={"norm_eps": 1e-6, "dropout_rate": 0.1, "decoder_norm_placement": None, "decoder_activation": None},
    read=read,
    asks=ASKS
    | {
        "decoder_num_heads": "how many heads the decoder's attentions have (decoder: num_heads)",
        "activation": "'relu', 'gelu' or 'silu' (activation; swish is silu)",
        "norm_placement": "'pre' or 'post' (layer_norm)",
        "scale_embedding": "whether embeddings are multiplied by the root of d_model (embeddings: scale)",
        "share_embeddings": "its two embeddings are equal: true if they are one parameter (tied_embeddings)",
        "tie_head": "its head equals the target embedding: true if they are one parameter (tied_softmax)",
    },
    rules=rules,
    determines=("embedding_factor", "decoder_embedding_factor", "residual_factor", "decoder_residual_factor"),
    refuses=refuses,
    text={"source": Text(add_eos=True), "target": Text()},
)

DIALECTS = (DIALECT,)
