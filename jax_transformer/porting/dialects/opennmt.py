"""OpenNMT-py 3: pre-norm layers with the feed-forward's norm inside it, and a head that is stored apart."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from jax_transformer.config.model import TransformerConfig
from jax_transformer.mapping.rules import Rule
from jax_transformer.porting.dialects import Dialect, Reader, Text, one_size_of_heads, one_target_pad_id
from jax_transformer.porting.dialects.tables import ASKS, LINEAR, TUTORIAL, Lines, attention, layers, norm, within
from jax_transformer.storage.tensors import Tensors

HEAD = "generator.weight"
STACKS = {"encoder": "encoder.transformer", "decoder": "decoder.transformer_layers"}
QUERY = "encoder.transformer.0.self_attn.linear_query"
HIDDEN = "encoder.transformer.0.feed_forward.w_1"
GATE = "encoder.transformer.0.feed_forward.w_3.weight"
CHOSEN = ("position_layout", "position_frequency", "attention_bias", "attention_output_bias", "feed_forward_gated")
FIXED = {name: value for name, value in TUTORIAL.items() if name not in (*CHOSEN, "feed_forward_bias")} | {
    "trains_pad_embedding": False,
    "scale_embedding": True,
    "norm_placement": "pre",
    "norm_eps_outside": False,
    "norm_unbiased": False,
    "final_norm": True,
    "masked_value": -1e18,
}
for free in ("share_embeddings", "tie_head", "activation"):
    del FIXED[free]

NORM = norm("weight", "bias")


def rules(config: TransformerConfig) -> list[Rule]:
    """Returns the correspondence, tied as the config says."""
    table = _embeddings(config)
    for stack, path in STACKS.items():
        table += layers(path, stack, _parts(config, stack))
        table += within(f"{stack}.layer_norm", f"{stack}/final_norm", NORM)
        table.append(Rule(f"{_embedding(stack)}.pe.pe", f"constants/{stack}_positions", "P 1 D -> P D"))
    if config.tie_head:
        return [*table, Rule("generator.bias", "head_bias")]
    return [*table, *within("generator", "head", LINEAR)]


def _embedding(stack: str) -> str:
    return f"{stack}.embeddings.make_embedding"


def _words(stack: str) -> str:
    return f"{_embedding(stack)}.emb_luts.0.weight"


def _embeddings(config: TransformerConfig) -> list[Rule]:
    source, target = map(_words, STACKS)
    tied = (HEAD,) if config.tie_head else ()
    if config.share_embeddings:
        return [Rule((source, target, *tied), "shared_embedding/embedding")]
    return [Rule(source, "source_embedding/embedding"), Rule((target, *tied), "target_embedding/embedding")]


def _parts(config: TransformerConfig, stack: str) -> dict[str, tuple[str, Lines]]:
    """Returns what a layer's submodules are called here."""
    heads = attention(
        "linear_query", "linear_keys", "linear_values", "final_linear", bias=bool(config.encoder.self_attention.bias)
    )
    linear = LINEAR if config.feed_forward_bias else LINEAR[:1]
    inputs = {"w_1": "gate", "w_3": "hidden"} if config.feed_forward_gated else {"w_1": "hidden"}
    parts: dict[str, tuple[str, Lines]] = {
        f"feed_forward.{name}": (f"feed_forward/{path}", linear) for name, path in inputs.items()
    }
    parts |= {
        "self_attn": ("self_attention", heads),
        "feed_forward.w_2": ("feed_forward/output", linear),
        "feed_forward.layer_norm": ("feed_forward_norm", NORM),
    }
    if stack == "encoder":
        return parts | {"layer_norm": ("self_attention_norm", NORM)}
    return parts | {
        "layer_norm_1": ("self_attention_norm", NORM),
        "context_attn": ("cross_attention", heads),
        "layer_norm_2": ("cross_attention_norm", NORM),
    }


def recognises(names: Collection[str]) -> bool:
    return f"{QUERY}.weight" in names and "decoder.transformer_layers.0.context_attn.linear_keys.weight" in names


def read(tensors: Tensors) -> dict[str, Any]:
    """Reads sizes off shapes, and unties tensors that differ. Raises PortingError naming the tensors that are missing
    for it."""
    reader = Reader(tensors)
    source, target = map(_words, STACKS)
    fields = reader.finished(
        "OpenNMT-py",
        source_vocab_size=reader.size(source, 0, 2),
        target_vocab_size=reader.size(target, 0, 2),
        d_model=reader.size(source, 1, 2),
        d_ff=reader.size(f"{HIDDEN}.weight", 0, 2),
        decoder_d_ff=reader.size("decoder.transformer_layers.0.feed_forward.w_1.weight", 0, 2),
        max_length=reader.size(f"{_embedding('encoder')}.pe.pe", 0, 3),
        decoder_max_length=reader.size(f"{_embedding('decoder')}.pe.pe", 0, 3),
        num_encoder_layers=reader.layers("encoder.transformer.{i}."),
        num_decoder_layers=reader.layers("decoder.transformer_layers.{i}."),
        attention_bias=f"{QUERY}.bias" in tensors,
        attention_output_bias="encoder.transformer.0.self_attn.final_linear.bias" in tensors,
        feed_forward_bias=f"{HIDDEN}.bias" in tensors,
        feed_forward_gated=GATE in tensors,
    )
    ties = {"share_embeddings": (source, target), "tie_head": (target, HEAD)}
    return fields | {name: False for name, (first, second) in ties.items() if not reader.equal(first, second)}


def refuses(config: TransformerConfig) -> list[str]:
    """Lists the obstacles of a config to OpenNMT-py, whose attentions have all biases or none, and whose tables are
    interleaved with the paper's frequencies or halves with their inclusive ones."""
    problems = one_size_of_heads(config) + one_target_pad_id(config)
    pairs = {
        "attention_output_bias": ("attention_bias", config.attention_bias),
        "position_frequency": ("position_layout", POSITIONS.get(str(config.position_layout))),
    }
    for name, (other, value) in pairs.items():
        if getattr(config, name) != value:
            problems.append(
                f"{name} must be {value} with {other}={getattr(config, other)}; received {getattr(config, name)}"
            )
    return problems


POSITIONS = {"interleaved": "standard", "halves": "inclusive"}
"""Layout of the position tables → their frequencies (SinusoidalInterleaved, SinusoidalConcat)."""

DIALECT = Dialect(
    name="opennmt",
    title="OpenNMT-py 3",
    recognises=recognises,
    fixed=FIXED,
    choices={
        "share_embeddings": (False, True),
        "tie_head": (False, True),
        "attention_bias": (False, True),
        "attention_output_bias": (False, True),
        "feed_forward_bias": (False, True),
        "feed_forward_gated": (False, True),
        "activation": ("relu", "gelu", "silu"),
        "position_layout": tuple(POSITIONS),
        "position_frequency": tuple(POSITIONS.values()),
    },
    defaults={"norm_eps": 1e-6, "position_layout": "interleaved", "position_frequency": "standard"},
    read=read,
    asks=ASKS
    | {
        "activation": "'relu', 'gelu' or 'silu' (pos_ffn_activation_fn; gated-gelu is gelu)",
        "share_embeddings": "its two embeddings are equal: true if they are one parameter (share_embeddings)",
        "tie_head": "its generator equals the target embedding: true if they are one parameter "
        "(share_decoder_embeddings)",
    },
    rules=rules,
    refuses=refuses,
    text={"source": Text(), "target": Text()},
)

DIALECTS = (DIALECT,)
