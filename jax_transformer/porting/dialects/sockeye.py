"""Sockeye 3's Transformers: attentions without biases, whose fused projections the format takes apart
(porting/formats/sockeye.py), sinusoids in halves or learned positions, norms before or after sublayers."""

from __future__ import annotations

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

SOURCE, TARGET, HEAD = "embedding_source.embedding.weight", "embedding_target.embedding.weight", "output_layer.weight"
BIAS = "output_layer.bias"
POSITIONS = "pos_embedding.weight"
FINAL = "final_process.layer_norm"
QUERY, KEY, VALUE = "query", "key", "value"
"""Names of the parts of a fused projection."""
FUSED = {"self_attention": "ff_in", "autoregr_layer": "ff_in", "enc_attention": "ff_kv"}
"""Name of an attention → its projection of several parts."""
FREE = ("share_embeddings", "tie_head", "activation", "feed_forward_gated", "position_kind")
FIXED = {name: value for name, value in TUTORIAL.items() if name not in FREE} | {
    "scale_embedding": True,
    "position_layout": "halves",
    "norm_eps_outside": False,
    "norm_unbiased": False,
    "attention_bias": False,
    "attention_output_bias": False,
    "decoder_padding": "none",
    "masked_value": -99999999.0,
}
ACTIVATIONS = ("relu", "gelu", "silu")

NORM = norm("weight", "bias")
SELF = attention("ff_in.query", "ff_in.key", "ff_in.value", "ff_out", bias=False)
CROSS = attention("ff_q", "ff_kv.key", "ff_kv.value", "ff_out", bias=False)
SUBLAYERS = {
    "encoder": {"self_attention": ("self_attention", SELF)},
    "decoder": {"autoregr_layer": ("self_attention", SELF), "enc_attention": ("cross_attention", CROSS)},
}


def rules(config: TransformerConfig) -> list[Rule]:
    """Returns the correspondence, tied as the config says: a file holds every tied tensor."""
    head = (HEAD,) if config.tie_head else ()
    if config.share_embeddings:
        table = [Rule((SOURCE, TARGET, *head), "shared_embedding/embedding")]
    else:
        table = [Rule(SOURCE, "source_embedding/embedding"), Rule((TARGET, *head), "target_embedding/embedding")]
    for name, stack in (("encoder", config.encoder), ("decoder", config.decoder)):
        place = f"{name}/positions/embedding" if stack.position_kind == "learned" else f"constants/{name}_positions"
        table.append(Rule(f"{name}.{POSITIONS}", place))
        parts = _parts(name, "pre" if stack.norm_placement == "pre" else "post", gated=config.feed_forward_gated)
        table += layers(f"{name}.layers", name, parts)
        if stack.final_norm:
            table += within(f"{name}.{FINAL}", f"{name}/final_norm", NORM)
    if config.tie_head:
        return [*table, Rule(BIAS, "head_bias")]
    return [*table, Rule(HEAD, "head/kernel", "V D -> D V"), Rule(BIAS, "head/bias")]


def _parts(stack: str, placement: str, *, gated: bool) -> dict[str, tuple[str, Lines]]:
    """Returns what a layer's submodules are called here."""
    sublayers = SUBLAYERS[stack]
    parts: dict[str, tuple[str, Lines]] = dict(sublayers)
    parts |= {
        f"{placement}_{name}.layer_norm": (f"{path}_norm", NORM)
        for name, path in [*((name, path) for name, (path, _) in sublayers.items()), ("ff", "feed_forward")]
    }
    inputs = {"ff1": "gate", "linear": "hidden"} if gated else {"ff1": "hidden"}
    parts |= {f"ff.{name}": (f"feed_forward/{path}", LINEAR) for name, path in inputs.items()}
    return parts | {"ff.ff2": ("feed_forward/output", LINEAR)}


def recognises(names: Collection[str]) -> bool:
    return "encoder.layers.0.self_attention.ff_in.query.weight" in names and SOURCE in names


def read(tensors: Tensors) -> dict[str, Any]:
    """Reads sizes off shapes, and unties tensors that differ. Raises PortingError naming the tensors that are missing
    for it."""
    reader = Reader(tensors)
    fields = reader.finished(
        "Sockeye",
        source_vocab_size=reader.size(SOURCE, 0, 2),
        target_vocab_size=reader.size(TARGET, 0, 2),
        d_model=reader.size(SOURCE, 1, 2),
        d_ff=reader.size("encoder.layers.0.ff.ff1.weight", 0, 2),
        decoder_d_ff=reader.size("decoder.layers.0.ff.ff1.weight", 0, 2),
        max_length=reader.size(f"encoder.{POSITIONS}", 0, 2),
        decoder_max_length=reader.size(f"decoder.{POSITIONS}", 0, 2),
        num_encoder_layers=reader.layers("encoder.layers.{i}."),
        num_decoder_layers=reader.layers("decoder.layers.{i}."),
        norm_placement=_placement(tensors, "encoder"),
        decoder_norm_placement=_placement(tensors, "decoder"),
        final_norm=f"encoder.{FINAL}.weight" in tensors,
        decoder_final_norm=f"decoder.{FINAL}.weight" in tensors,
        feed_forward_gated="encoder.layers.0.ff.linear.weight" in tensors,
    )
    ties = {"share_embeddings": (SOURCE, TARGET), "tie_head": (TARGET, HEAD)}
    return fields | {name: False for name, (first, second) in ties.items() if not reader.equal(first, second)}


def _placement(tensors: Tensors, stack: str) -> str:
    return "pre" if f"{stack}.layers.0.pre_ff.layer_norm.weight" in tensors else "post"


def refuses(config: TransformerConfig) -> list[str]:
    """Lists the obstacles of a config to Sockeye, whose stacks end in a norm exactly if they norm before sublayers."""
    problems = heads_as_wide_as_the_model(config) + one_target_pad_id(config)
    for prefix, stack in (("", config.encoder), ("decoder_", config.decoder)):
        if stack.final_norm != (stack.norm_placement == "pre"):
            problems.append(
                f"{prefix}final_norm must be {stack.norm_placement == 'pre'} with norm_placement="
                f"{stack.norm_placement!r}; received {stack.final_norm}"
            )
    return problems


DIALECT = Dialect(
    name="sockeye",
    title="Sockeye 3",
    recognises=recognises,
    fixed=FIXED,
    choices={
        "share_embeddings": (False, True),
        "tie_head": (False, True),
        "activation": ACTIVATIONS,
        "decoder_activation": (None, *ACTIVATIONS),
        "feed_forward_gated": (False, True),
        "position_kind": ("sinusoidal", "learned"),
        "decoder_position_kind": (None, "sinusoidal", "learned"),
        "norm_placement": ("post", "pre"),
        "decoder_norm_placement": (None, "post", "pre"),
        "final_norm": (False, True),
        "decoder_final_norm": (None, False, True),
    },
    defaults={"norm_eps": 1e-6, "dropout_rate": 0.1, "decoder_activation": None, "decoder_position_kind": None},
    read=read,
    asks=ASKS
    | {
        "decoder_num_heads": "how many heads the decoder's attentions have (attention_heads)",
        "activation": "'relu', 'gelu' or 'silu' (act_type; swish1 is silu)",
        "position_kind": "'sinusoidal' or 'learned' (positional_embedding_type; fixed is sinusoidal)",
        "share_embeddings": "its two embeddings are equal: true if they are one parameter (weight_tying_type: src_trg)",
        "tie_head": "its head equals the target embedding: true if they are one parameter (weight_tying_type: softmax)",
    },
    rules=rules,
    determines=("trains_pad_position",),
    refuses=refuses,
    text={"source": Text(add_eos=True), "target": Text()},
)

DIALECTS = (DIALECT,)
