"""The common part of the tables of Marian, BART and M2M-100: the names that transformers took from fairseq, and the
keys of their config.json."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from jax_transformer.config.model import TransformerConfig
from jax_transformer.mapping.rules import Rule
from jax_transformer.porting.dialects import Json, Reader, heads_as_wide_as_the_model, one_target_pad_id
from jax_transformer.porting.dialects.tables import LINEAR, attention, layers, norm, within
from jax_transformer.storage.tensors import PortingError, Tensors

PREFIX = "model."
"""The beginning of names in a model with a head. (BART's own checkpoints have none.)"""
SHARED = "model.shared.weight"
EMBEDDINGS = {"source": "model.encoder.embed_tokens.weight", "target": "model.decoder.embed_tokens.weight"}
HEAD = "lm_head.weight"
OWN_HEAD = "model.decoder.output_projection.weight"
"""In fairseq's own files, which hold it even if it is the embedding."""
NUMBERS = tuple(
    f"model.{stack}.{name}" for stack in ("encoder", "decoder") for name in ("version", "embed_positions._float_tensor")
)
"""In fairseq's own files: the version of its layers, and a table's dtype."""
POSITIONS = {stack: f"model.{stack}.embed_positions.weight" for stack in ("encoder", "decoder")}

FIXED: dict[str, Any] = {
    "trains_pad_embedding": False,
    "scale_head": False,
    "norm_kind": "layer_norm",
    "norm_eps_outside": False,
    "norm_unbiased": False,
    "norm_bias": True,
    "attention_scale": None,
    "attention_bias": True,
    "attention_output": True,
    "attention_output_bias": True,
    "masked_value": None,
    "feed_forward": True,
    "feed_forward_gated": False,
    "feed_forward_bias": True,
    "encoder_padding": "keys",
    "decoder_padding": "none",
    "cross_padding": "keys",
    "decoding_decoder_padding": None,
    "decoding_cross_padding": None,
    "decoder_causal": True,
}
CHOICES = {
    "scale_embedding": (False, True),
    "share_embeddings": (False, True),
    "tie_head": (False, True),
    "activation": ("relu", "gelu", "gelu_tanh", "silu"),
}
DEFAULTS = {"norm_eps": 1e-5}
ASKS = {
    "num_heads": "how many heads the encoder's attentions have (encoder_attention_heads)",
    "decoder_num_heads": "how many heads the decoder's attentions have (decoder_attention_heads)",
    "source_pad_id": "the id that pads sentences (pad_token_id)",
    "target_pad_id": "the same of target sentences (pad_token_id)",
    "scale_embedding": "whether embeddings are multiplied by the root of d_model (scale_embedding)",
    "activation": "'relu', 'gelu', 'gelu_tanh' or 'silu' (activation_function)",
    "share_embeddings": "whether the two sides have one embedding",
    "tie_head": "whether the head's weight is the target embedding",
}
"""The fields to ask for, when a state_dict comes without its config.json."""

NORM = norm("weight", "bias")
ATTENTION = attention("q_proj", "k_proj", "v_proj", "out_proj")
FEED_FORWARD = {
    "fc1": ("feed_forward/hidden", LINEAR),
    "fc2": ("feed_forward/output", LINEAR),
    "final_layer_norm": ("feed_forward_norm", NORM),
}
LAYER = {
    "self_attn": ("self_attention", ATTENTION),
    "self_attn_layer_norm": ("self_attention_norm", NORM),
    **FEED_FORWARD,
}
DECODER_LAYER = LAYER | {
    "encoder_attn": ("cross_attention", ATTENTION),
    "encoder_attn_layer_norm": ("cross_attention_norm", NORM),
}


def rules(config: TransformerConfig) -> list[Rule]:
    """Returns the correspondence that these families share."""
    table = _embeddings(config)
    for name, stack, parts in (("encoder", config.encoder, LAYER), ("decoder", config.decoder, DECODER_LAYER)):
        table += layers(f"model.{name}.layers", name, parts)
        if stack.position_kind == "learned":
            table.append(Rule(POSITIONS[name], f"{name}/positions/embedding"))
        if stack.embedding_norm != "none":
            table += within(f"model.{name}.layernorm_embedding", f"{name}/embedding_norm", NORM)
        if stack.final_norm:
            table += within(f"model.{name}.layer_norm", f"{name}/final_norm", NORM)
    if config.head_bias == "buffer":
        table.append(Rule("final_logits_bias?", "constants/head_bias", "1 V -> V"))
    return table


def _embeddings(config: TransformerConfig) -> list[Rule]:
    """Returns the rules of the embeddings. A file may hold any of the tied tensors; the first name is written."""
    source, target = EMBEDDINGS.values()
    head = (f"{OWN_HEAD}?", f"{HEAD}?") if config.tie_head else ()  # the last is the module that hooks see
    if config.share_embeddings:
        table = [Rule((f"{SHARED}?", f"{source}?", f"{target}?", *head), "shared_embedding/embedding")]
    else:
        table = [
            Rule((source, f"{SHARED}?"), "source_embedding/embedding"),
            Rule((f"{target}?", *head), "target_embedding/embedding"),
        ]
    return table if config.tie_head else [*table, Rule((f"{HEAD}?", f"{OWN_HEAD}?"), "head/kernel", "V D -> D V")]


def recognises(names: Collection[str], *, embedding_norm: bool, final_norm: bool) -> bool:
    """Returns whether they are of a model with these norms."""
    has_layers = all(f"model.{stack}.layers.0.self_attn.q_proj.weight" in names for stack in POSITIONS)
    norms = ("model.encoder.layernorm_embedding.weight" in names, "model.encoder.layer_norm.weight" in names)
    return has_layers and norms == (embedding_norm, final_norm)


def read(tensors: Tensors, what: str, **more: Any) -> dict[str, Any]:
    """Reads sizes off shapes, and shared embeddings off their values. Raises PortingError naming the tensors that
    are missing for it.

    Args:
      more: other fields, and functions that read them from a Reader.
    """
    reader = Reader(tensors)
    source, target = EMBEDDINGS.values()
    source_table, target_table = (
        next((name for name in names if name in tensors), SHARED)
        for names in ((source, SHARED, target, HEAD, OWN_HEAD), (target, SHARED, HEAD, OWN_HEAD, source))
    )
    fields = reader.finished(
        what,
        source_vocab_size=reader.size(source_table, 0, 2),
        target_vocab_size=reader.size(target_table, 0, 2),
        d_model=reader.size(source_table, 1, 2),
        d_ff=reader.size("model.encoder.layers.0.fc1.weight", 0, 2),
        decoder_d_ff=reader.size("model.decoder.layers.0.fc1.weight", 0, 2),
        num_encoder_layers=reader.layers("model.encoder.layers.{i}."),
        num_decoder_layers=reader.layers("model.decoder.layers.{i}."),
        **{name: read_field(reader) for name, read_field in more.items()},
    )
    if any(reader.differ(first, second) for first, second in ((source, target), (SHARED, source), (SHARED, target))):
        fields["share_embeddings"] = False
    elif SHARED in tensors:
        fields["share_embeddings"] = True
    return fields | {"tie_head": not any(reader.differ(target_table, head) for head in (HEAD, OWN_HEAD))}


def refuses(config: TransformerConfig) -> list[str]:
    """Refuses heads that are not as wide together as the model, two lengths of tables, and two paddings."""
    problems = heads_as_wide_as_the_model(config)
    if config.decoder.max_length != config.max_length:
        problems.append(
            f"decoder_max_length must be max_length={config.max_length}; received {config.decoder.max_length}"
        )
    if config.source_pad_id != config.target_pad_id:
        problems.append(f"target_pad_id must be source_pad_id={config.source_pad_id}; received {config.target_pad_id}")
    return problems + one_target_pad_id(config)


def refuses_two_vocabularies(config: TransformerConfig) -> list[str]:
    """Lists the obstacles of a config to families whose sides share a vocabulary, with one embedding or two."""
    problems = refuses(config)
    if config.source_vocab_size != config.target_vocab_size:
        problems.append(
            f"target_vocab_size must be source_vocab_size={config.source_vocab_size}; received "
            f"{config.target_vocab_size}"
        )
    return problems


def ignores(tensors: Tensors) -> list[str]:
    """Returns numbers that no program here reads, and the shared embedding if the two sides have their own: untied
    models keep it and don't read it."""
    source, target = EMBEDDINGS.values()
    shared = [SHARED] if target in tensors and Reader(tensors).differ(SHARED, source) else []
    return [name for name in NUMBERS if name in tensors] + shared


# --- config.json

ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "swish": "silu",
    "silu": "silu",
}
"""Activations of transformers → ours. (Its gelu_fast rounds a constant.)"""
SAME = {
    "d_model": "d_model",
    "encoder_layers": "num_encoder_layers",
    "decoder_layers": "num_decoder_layers",
    "encoder_attention_heads": "num_heads",
    "encoder_ffn_dim": "d_ff",
    "max_position_embeddings": "max_length",
    "scale_embedding": "scale_embedding",
    "dropout": "dropout_rate",
    "attention_dropout": "attention_dropout_rate",
    "activation_dropout": "feed_forward_dropout_rate",
}
"""Keys of config.json → config fields of the same values."""
DEFAULT_JSON: dict[str, Any] = {
    "d_model": 1024,
    "encoder_layers": 12,
    "decoder_layers": 12,
    "encoder_attention_heads": 16,
    "decoder_attention_heads": 16,
    "encoder_ffn_dim": 4096,
    "decoder_ffn_dim": 4096,
    "max_position_embeddings": 1024,
    "scale_embedding": False,
    "activation_function": "gelu",
    "dropout": 0.1,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
}
"""Defaults of a config.json that most of these families share. Each adds its vocabulary and special ids."""
ALIASES = {
    "num_attention_heads": "encoder_attention_heads",
    "hidden_size": "d_model",
    "num_hidden_layers": "encoder_layers",
}


def read_config(json: Json) -> dict[str, Any]:
    """Returns the config fields of a resolved config.json."""
    fields = {field: json[key] for key, field in SAME.items()}
    decoder = {"decoder_num_heads": json["decoder_attention_heads"], "decoder_d_ff": json["decoder_ffn_dim"]}
    encoder = {"decoder_num_heads": fields["num_heads"], "decoder_d_ff": fields["d_ff"]}
    fields |= {name: None if value == encoder[name] else value for name, value in decoder.items()}
    fields |= {"source_pad_id": json["pad_token_id"], "target_pad_id": json["pad_token_id"]}
    fields |= {"source_vocab_size": json["vocab_size"], "target_vocab_size": json["vocab_size"]}
    fields["activation"] = activation(json, "activation_function")
    is_tied = bool(json["tie_word_embeddings"])
    return fields | {"share_embeddings": is_tied, "tie_head": is_tied}


def write_config(config: TransformerConfig) -> dict[str, Any]:
    """Returns the config.json of a config: the inverse of `read_config`."""
    json = {key: getattr(config, field) for key, field in SAME.items()}
    json |= {key: config.dropout_rate for key in ("attention_dropout", "activation_dropout") if json[key] is None}
    return json | {
        "decoder_attention_heads": config.decoder.self_attention.num_heads,
        "decoder_ffn_dim": config.d_ff if config.decoder_d_ff is None else config.decoder_d_ff,
        "pad_token_id": config.source_pad_id,
        "vocab_size": config.source_vocab_size,
        "activation_function": {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}[config.activation],
        "tie_word_embeddings": config.share_embeddings or config.tie_head,
    }


def activation(json: Json, key: str, name: str | None = None) -> str:
    """Returns our name of the activation that config.json has under this key. Raises PortingError if there is none."""
    name = json[key] if name is None else name
    if not isinstance(name, str) or name not in ACTIVATIONS:
        raise PortingError(
            f"config.json: {key} must be one of {', '.join(ACTIVATIONS)}; received {json[key]!r}, which isn't built "
            "here"
        )
    return ACTIVATIONS[name]


def allowed(fixed: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    """Returns the values that an old config.json may have for choices that a family doesn't have."""
    return {
        "is_encoder_decoder": (True,),
        "is_decoder": (False,),
        "normalize_before": (fixed["norm_placement"] == "pre",),
        "add_final_layer_norm": (fixed["final_norm"],),
        "normalize_embedding": (fixed["encoder_embedding_norm"] != "none",),
        "static_position_embeddings": (fixed["position_kind"] == "sinusoidal",),
    }
