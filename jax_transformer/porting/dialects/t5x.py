"""T5, mT5 and UMT5 in T5X: the paths of its parameters, with layers apart, as its example `t5` has them.

Its example `scalable_t5` stacks layers on axis 1 and gives heads an axis; porting/formats/t5x.py presents such arrays
under these names, too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from jax_transformer.config.model import TransformerConfig
from jax_transformer.mapping.rules import Rule
from jax_transformer.porting.dialects import Dialect, Reader, t5
from jax_transformer.storage.tensors import Tensors

NAME = "t5x"
EMBEDDING, HEAD = "token_embedder/embedding", "decoder/logits_dense/kernel"
SUBLAYERS = {
    "encoder": {"attention": ("self_attention", "pre_attention_layer_norm")},
    "decoder": {
        "self_attention": ("self_attention", "pre_self_attention_layer_norm"),
        "encoder_decoder_attention": ("cross_attention", "pre_cross_attention_layer_norm"),
    },
}
"""Attentions by stack: T5X's name → the name here, and T5X's name of the norm before it."""
ATTENTION = [
    *((f"{name}/kernel", f"{name}/kernel", "D (N H) -> D N H") for name in ("query", "key", "value")),
    ("out/kernel", "output/kernel", "(N H) D -> N H D"),
]
FIXED = t5.FIXED | {
    "source_pad_id": 0,
    "target_pad_id": 0,
}


def rules(config: TransformerConfig) -> list[Rule]:
    """Returns the correspondence."""
    table = [Rule(EMBEDDING, "shared_embedding/embedding")]
    if not config.tie_head:
        table.append(Rule(HEAD, "head/kernel"))
    inputs = {"wi_0": "gate", "wi_1": "hidden"} if config.feed_forward_gated else {"wi": "hidden"}
    linear = [(f"{name}/kernel", f"{path}/kernel", "") for name, path in (*inputs.items(), ("wo", "output"))]
    for stack, attentions in SUBLAYERS.items():
        layer, ours = f"{stack}/layers_{{i}}", f"{stack}/layers"
        for name, (path, norm) in attentions.items():
            table += _within(f"{layer}/{name}", f"{ours}/{path}", ATTENTION)
            table.append(Rule(f"{layer}/{norm}/scale", f"{ours}/{path}_norm/scale"))
        table += _within(f"{layer}/mlp", f"{ours}/feed_forward", linear)
        table.append(Rule(f"{layer}/pre_mlp_layer_norm/scale", f"{ours}/feed_forward_norm/scale"))
        table.append(Rule(f"{stack}/{stack}_norm/scale", f"{stack}/final_norm/scale"))
        place, path = (
            (layer, f"{ours}/self_attention") if config.relative_bias_per_layer else (stack, stack)
        )  # a table for each layer, or one for all
        table.append(Rule(f"{place}/relpos_bias/rel_embedding", f"{path}/relative_bias/embedding", "N R -> R N"))
    return table


def _within(theirs: str, ours: str, lines: list[tuple[str, str, str]]) -> list[Rule]:
    return [Rule(f"{theirs}/{name}", f"{ours}/{path}", axes) for name, path, axes in lines]


def bias_name(names: Collection[str]) -> str:
    """Returns the name of the encoder's first table of biases by distance."""
    per_layer = "encoder/layers_0/relpos_bias/rel_embedding"
    return per_layer if per_layer in names else "encoder/relpos_bias/rel_embedding"


def recognises(names: Collection[str]) -> bool:
    """Returns whether the names are T5X's."""
    return EMBEDDING in names and "encoder/layers_0/attention/query/kernel" in names


def read(tensors: Tensors) -> dict[str, Any]:
    """Reads sizes off shapes. Raises PortingError naming the arrays that are missing for it."""
    reader = Reader(tensors)
    bias = bias_name(tensors)
    heads = reader.size(bias, 0, 2)
    return reader.finished(
        "T5X",
        source_vocab_size=reader.size(EMBEDDING, 0, 2),
        target_vocab_size=reader.size(EMBEDDING, 0, 2),
        d_model=reader.size(EMBEDDING, 1, 2),
        num_heads=heads,
        head_dim=reader.size("encoder/layers_0/attention/query/kernel", 1, 2) // heads,
        d_ff=reader.size("encoder/layers_0/mlp/wo/kernel", 0, 2),
        num_encoder_layers=reader.layers("encoder/layers_{i}/"),
        num_decoder_layers=reader.layers("decoder/layers_{i}/"),
        relative_buckets=reader.size(bias, 1, 2),
        relative_bias_per_layer="layers_0" in bias,
        feed_forward_gated="encoder/layers_0/mlp/wi_0/kernel" in tensors,
        tie_head=HEAD not in tensors,
    )


def follows(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Scales the head's input where the head is the embedding; the stacks' outputs are dropped like all others."""
    return {"scale_head": fields["tie_head"], "output_dropout_rate": fields.get("dropout_rate", 0.1)}


def refuses(config: TransformerConfig) -> list[str]:
    """Refuses what T5 refuses, and a scale that doesn't follow from the tie."""
    problems = t5.refuses(config)
    if config.scale_head != config.tie_head:
        problems.append(f"scale_head must be tie_head={config.tie_head}; received {config.scale_head}")
    return problems


DIALECT = Dialect(
    name=NAME,
    title="T5, mT5 or UMT5 in T5X",
    recognises=recognises,
    fixed=FIXED,
    choices=t5.CHOICES | {"scale_head": (False, True), "relative_bias_per_layer": (False, True)},
    defaults=t5.DEFAULTS,
    read=read,
    asks={"activation": t5.ASKS["activation"]},
    rules=rules,
    determines=("relative_buckets",),
    refuses=refuses,
    follows=follows,
    generation={"decoder_start_id": 0, "eos_id": 1},
)

DIALECTS = (DIALECT,)
