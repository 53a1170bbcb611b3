"""T5, mT5 and UMT5 in Hugging Face's transformers: biases by distance, RMSNorm, no other biases, feed-forwards gated or
not."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any

from jax_transformer.config.model import TransformerConfig
from jax_transformer.mapping.rules import Rule
from jax_transformer.porting.dialects import ConfigFile, Dialect, Json, Reader, fairseq, one_target_pad_id
from jax_transformer.porting.dialects.tables import layers
from jax_transformer.storage.tensors import PortingError, Tensors

SHARED, HEAD = "shared.weight", "lm_head.weight"
COPIES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")

FIXED: dict[str, Any] = {
    "share_embeddings": True,
    "scale_embedding": False,
    "trains_pad_embedding": True,
    "encoder_embedding_norm": "none",
    "decoder_embedding_norm": "none",
    "head_bias": "none",
    "position_kind": "relative_bias",
    "norm_kind": "rms_norm",
    "norm_placement": "pre",
    "norm_eps_outside": False,
    "norm_unbiased": False,
    "norm_bias": False,
    "final_norm": True,
    "attention_scale": 1.0,
    "attention_bias": False,
    "attention_output": True,
    "attention_output_bias": False,
    "masked_value": None,
    "feed_forward": True,
    "feed_forward_bias": False,
    "encoder_padding": "keys",
    "decoder_padding": "none",
    "cross_padding": "keys",
    "decoding_decoder_padding": None,
    "decoding_cross_padding": None,
    "decoder_causal": True,
}
CHOICES = {
    "tie_head": (False, True),
    "feed_forward_gated": (False, True),
    "activation": ("relu", "gelu", "gelu_tanh", "silu"),
}
DEFAULTS = {"norm_eps": 1e-6, "relative_max_distance": 128, "max_length": 512}
ASKS = {
    "source_pad_id": "the id that pads sentences (pad_token_id)",
    "target_pad_id": "the same of target sentences (pad_token_id)",
    "activation": "'relu', 'gelu', 'gelu_tanh' or 'silu' (feed_forward_proj; gated-gelu is gelu_tanh)",
}
SCALE = {
    "scale_head": "whether the decoder's output is scaled before the head: true of T5, false of T5 1.1 and FLAN "
    "(tie_word_embeddings)"
}

ATTENTION = [
    *(
        (f"{name}.weight", f"{path}/kernel", "(N H) D -> D N H")
        for name, path in (("q", "query"), ("k", "key"), ("v", "value"))
    ),
    ("o.weight", "output/kernel", "D (N H) -> N H D"),
]
NORM = [("weight", "scale", "")]


def rules(config: TransformerConfig) -> list[Rule]:
    """Returns the correspondence."""
    head = (f"{HEAD}?",) if config.tie_head else ()
    table = [Rule((f"{SHARED}?", *(f"{name}?" for name in COPIES), *head), "shared_embedding/embedding")]
    if not config.tie_head:
        table.append(Rule(HEAD, "head/kernel", "V D -> D V"))
    for stack, sublayers in (("encoder", ("SelfAttention",)), ("decoder", ("SelfAttention", "EncDecAttention"))):
        table += layers(f"{stack}.block", stack, _parts(config, sublayers))
        table.append(Rule(f"{stack}.final_layer_norm.weight", f"{stack}/final_norm/scale"))
        name = (
            f"{_self_attention(stack, '{i}' if config.relative_bias_per_layer else '0')}.relative_attention_bias.weight"
        )
        path = "layers/self_attention/relative_bias" if config.relative_bias_per_layer else "relative_bias"
        table.append(Rule(name, f"{stack}/{path}/embedding"))
    return table


def _self_attention(stack: str, number: str) -> str:
    return f"{stack}.block.{number}.layer.0.SelfAttention"


def _parts(config: TransformerConfig, sublayers: tuple[str, ...]) -> dict[str, tuple[str, list[tuple[str, str, str]]]]:
    """Returns the names within a layer: its numbered attentions, and the feed-forward after them."""
    paths = {"SelfAttention": "self_attention", "EncDecAttention": "cross_attention"}
    parts: dict[str, tuple[str, list[tuple[str, str, str]]]] = {}
    for number, name in enumerate(sublayers):
        parts[f"layer.{number}.{name}"] = (paths[name], ATTENTION)
        parts[f"layer.{number}.layer_norm"] = (f"{paths[name]}_norm", NORM)
    inputs = {"wi_0": "gate", "wi_1": "hidden"} if config.feed_forward_gated else {"wi": "hidden"}
    linear = [(f"{name}.weight", f"{path}/kernel", "O I -> I O") for name, path in (*inputs.items(), ("wo", "output"))]
    return parts | {
        f"layer.{len(sublayers)}.DenseReluDense": ("feed_forward", linear),
        f"layer.{len(sublayers)}.layer_norm": ("feed_forward_norm", NORM),
    }


def recognises(names: Collection[str], *, per_layer: bool) -> bool:
    """Returns whether the names are T5's, with biases by distance in the first layer or in all."""
    second_has_biases = f"{_self_attention('encoder', '1')}.relative_attention_bias.weight" in names
    several = f"{_self_attention('encoder', '1')}.q.weight" in names
    has_stacks = all(f"{_self_attention(stack, '0')}.q.weight" in names for stack in ("encoder", "decoder"))
    return has_stacks and (not several or second_has_biases == per_layer)


def read(tensors: Tensors, name: str) -> dict[str, Any]:
    """Reads sizes off shapes, and from the file whether the head is tied. Raises PortingError naming the tensors that
    are missing for it."""
    reader = Reader(tensors)
    embedding = next((name for name in (SHARED, *COPIES, HEAD) if name in tensors), SHARED)
    bias = f"{_self_attention('encoder', '0')}.relative_attention_bias.weight"
    is_gated = "encoder.block.0.layer.1.DenseReluDense.wi_0.weight" in tensors
    heads = reader.size(bias, 1, 2)
    return reader.finished(
        name,
        source_vocab_size=reader.size(embedding, 0, 2),
        target_vocab_size=reader.size(embedding, 0, 2),
        d_model=reader.size(embedding, 1, 2),
        num_heads=heads,
        head_dim=reader.size(f"{_self_attention('encoder', '0')}.q.weight", 0, 2) // heads,
        d_ff=reader.size("encoder.block.0.layer.1.DenseReluDense.wo.weight", 1, 2),
        num_encoder_layers=reader.layers("encoder.block.{i}."),
        num_decoder_layers=reader.layers("decoder.block.{i}."),
        relative_buckets=reader.size(bias, 0, 2),
        feed_forward_gated=is_gated,
        tie_head=not reader.differ(embedding, HEAD),
    )


def refuses(config: TransformerConfig) -> list[str]:
    """Stacks that differ in more than their depth; two paddings."""
    sizes = [
        (stack.heads.num_heads, stack.heads.head_dim, getattr(stack.feed_forward, "width", None))
        for stack in (config.encoder, config.decoder)
    ]
    problems = [
        f"decoder_{name} must be the encoder's {encoder}; received {decoder}"
        for name, encoder, decoder in zip(("num_heads", "head_dim", "d_ff"), *sizes, strict=True)
        if decoder != encoder
    ]
    if config.source_pad_id != config.target_pad_id:
        problems.append(f"target_pad_id must be source_pad_id={config.source_pad_id}; received {config.target_pad_id}")
    return problems + one_target_pad_id(config)


def ignores(tensors: Tensors) -> list[str]:
    """Biases that the first cross-attention had in the first checkpoints."""
    name = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    return [name] if name in tensors else []


# --- config.json

ALIASES = {
    "hidden_size": "d_model",
    "num_attention_heads": "num_heads",
    "num_hidden_layers": "num_layers",
    "head_dim": "d_kv",
}
SAME = {
    "vocab_size": "source_vocab_size",
    "d_model": "d_model",
    "d_kv": "head_dim",
    "d_ff": "d_ff",
    "num_layers": "num_encoder_layers",
    "num_heads": "num_heads",
    "relative_attention_num_buckets": "relative_buckets",
    "relative_attention_max_distance": "relative_max_distance",
    "layer_norm_epsilon": "norm_eps",
    "n_positions": "max_length",
    "dropout_rate": "dropout_rate",
    "pad_token_id": "source_pad_id",
}
"""Keys of config.json → config fields of the same values."""


def read_config(json: Json) -> dict[str, Any]:
    """Returns the config fields of a resolved config.json, in which dense_act_fn and is_gated_act prevail over
    feed_forward_proj."""
    gate, _, name = str(json["feed_forward_proj"]).rpartition("-")
    if gate not in ("", "gated"):
        raise PortingError(
            f"config.json: feed_forward_proj must be NAME or gated-NAME; received {json['feed_forward_proj']!r}"
        )
    name = "gelu_new" if json["feed_forward_proj"] == "gated-gelu" else name
    key, name = ("feed_forward_proj", name) if json["dense_act_fn"] is None else ("dense_act_fn", json["dense_act_fn"])
    is_gated = gate == "gated" if json["is_gated_act"] is None else bool(json["is_gated_act"])
    return {field: json[key] for key, field in SAME.items()} | {
        "target_vocab_size": json["vocab_size"],
        "target_pad_id": json["pad_token_id"],
        "num_decoder_layers": json["num_layers"] if json["num_decoder_layers"] is None else json["num_decoder_layers"],
        "feed_forward_gated": is_gated,
        "activation": fairseq.activation(json, key, name),
        "output_dropout_rate": json["dropout_rate"],
    }


def write_config(config: TransformerConfig) -> dict[str, Any]:
    """Returns the config.json of a config: the inverse of reading."""
    names = {"relu": "relu", "gelu": "gelu", "gelu_tanh": "gelu_new", "silu": "silu"}
    name = names[config.activation]
    gated = "gated-gelu" if name == "gelu_new" else f"gated-{name}"
    return {key: getattr(config, field) for key, field in SAME.items()} | {
        "d_kv": config.encoder.heads.head_dim,
        "num_decoder_layers": config.num_decoder_layers,
        "feed_forward_proj": gated if config.feed_forward_gated else name,
        "dense_act_fn": name,
        "is_gated_act": config.feed_forward_gated,
    }


def read_t5_config(json: Json) -> dict[str, Any]:
    """Reads T5's config, whose tie_word_embeddings only says whether the decoder's output is scaled."""
    usual = json["tie_word_embeddings"] is not False
    return read_config(json) | {"scale_head": bool(json.get("scale_decoder_outputs", usual))}


def write_t5_config(config: TransformerConfig) -> dict[str, Any]:
    """Returns the config.json of a config: the inverse of reading."""
    return write_config(config) | {"scale_decoder_outputs": config.scale_head, "tie_word_embeddings": config.scale_head}


DEFAULT_JSON = {
    "vocab_size": 250112,
    "d_model": 512,
    "d_kv": 64,
    "d_ff": 1024,
    "num_layers": 8,
    "num_decoder_layers": None,
    "num_heads": 6,
    "relative_attention_num_buckets": 32,
    "relative_attention_max_distance": 128,
    "dropout_rate": 0.1,
    "layer_norm_epsilon": 1e-6,
    "feed_forward_proj": "gated-gelu",
    "dense_act_fn": None,
    "is_gated_act": None,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "decoder_start_token_id": 0,
    "n_positions": 512,
}


def _dialect(name: str, title: str, scale_head: bool | None, *, per_layer: bool = False, **json: Any) -> Dialect:
    """Returns a family's dialect. `scale_head` says whether it scales the head's input; None: the checkpoint says."""
    prefix = {"t5": "T5", "mt5": "MT5", "umt5": "UMT5"}[name]
    fixed = FIXED | {"relative_bias_per_layer": per_layer} | ({} if scale_head is None else {"scale_head": scale_head})
    return Dialect(
        name=name,
        title=title,
        recognises=partial(recognises, per_layer=per_layer),
        fixed=fixed,
        choices=CHOICES | ({"scale_head": (False, True)} if scale_head is None else {}),
        defaults=DEFAULTS,
        read=partial(read, name=name),
        asks=ASKS | (SCALE if scale_head is None else {}),
        rules=rules,
        determines=("relative_buckets",),
        refuses=refuses,
        ignores=ignores,
        config_file=ConfigFile(
            model_type=name,
            architectures=(f"{prefix}ForConditionalGeneration", f"{prefix}Model", f"{prefix}WithLMHeadModel"),
            aliases=ALIASES,
            defaults=DEFAULT_JSON | json,
            allowed={"is_encoder_decoder": (True,), "is_decoder": (False,)},
            read=read_t5_config if scale_head is None else read_config,
            write=write_t5_config if scale_head is None else write_config,
        ),
    )


DIALECTS = (
    _dialect(
        "t5",
        "T5 or FLAN-T5 in transformers",
        None,
        vocab_size=32128,
        d_ff=2048,
        num_layers=6,
        num_heads=8,
        feed_forward_proj="relu",
        tie_word_embeddings=None,
        decoder_start_token_id=None,
    ),
    _dialect("mt5", "mT5 in transformers", False),
    _dialect("umt5", "UMT5 in transformers: biases by distance in every layer", True, per_layer=True),
)
