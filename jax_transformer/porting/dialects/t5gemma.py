"""T5Gemma in transformers (Zhang et al. 2025): Gemma 2's layers in both stacks, with norms before and after each
sublayer, windows in some layers, and bounded logits. Each stack has its own part of config.json."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.positions import Rotary
from jax_transformer.config.short_names import STACKS
from jax_transformer.config.specs import Stack, Tokens
from jax_transformer.mapping.rules import Rule
from jax_transformer.porting.dialects import ConfigFile, Dialect, Json, Reader, fairseq, one_target_pad_id
from jax_transformer.porting.dialects.tables import attention, layers
from jax_transformer.porting.dialects.two_sides import fields_of_both, problems_of_both
from jax_transformer.storage.tensors import PortingError, Tensors

HEAD = "lm_head.out_proj.weight"
EMBEDDINGS = {stack: f"model.{stack}.embed_tokens.weight" for stack in STACKS}

FIXED: dict[str, Any] = {
    "share_embeddings": False,
    "scale_embedding": True,
    "trains_pad_embedding": False,
    "encoder_embedding_norm": "none",
    "decoder_embedding_norm": "none",
    "scale_head": False,
    "head_bias": "none",
    "position_kind": "rotary",
    "position_layout": "halves",
    "position_index": "column",
    "position_offset": 0,
    "rotary_dim": None,
    "rotary_cross_attention": False,
    "norm_kind": "rms_norm",
    "norm_placement": "pre",
    "norm_eps_outside": False,
    "norm_unbiased": False,
    "norm_scale_offset": 1.0,
    "norm_bias": False,
    "output_norm": "all",
    "final_norm": True,
    "attention_bias": False,
    "attention_output": True,
    "attention_output_bias": False,
    "masked_value": None,
    "feed_forward": True,
    "feed_forward_gated": True,
    "feed_forward_bias": False,
    "encoder_padding": "keys",
    "decoder_padding": "keys",
    "cross_padding": "keys",
    "decoding_decoder_padding": "none",
    "decoding_cross_padding": None,
    "decoder_causal": True,
}
ACTIVATIONS = fairseq.CHOICES["activation"]

ATTENTION = attention("q_proj", "k_proj", "v_proj", "o_proj", bias=False)
NORM = [("weight", "scale", "")]
WEIGHT = [("weight", "kernel", "O I -> I O")]


def _attention(name: str, path: str) -> dict[str, tuple[str, list[tuple[str, str, str]]]]:
    """Returns the names of an attention, and of the norms before and after it."""
    return {
        name: (path, ATTENTION),
        f"pre_{name}_layernorm": (f"{path}_norm", NORM),
        f"post_{name}_layernorm": (f"{path}_output_norm", NORM),
    }


LAYER = {
    **_attention("self_attn", "self_attention"),
    "mlp.gate_proj": ("feed_forward/gate", WEIGHT),
    "mlp.up_proj": ("feed_forward/hidden", WEIGHT),
    "mlp.down_proj": ("feed_forward/output", WEIGHT),
    "pre_feedforward_layernorm": ("feed_forward_norm", NORM),
    "post_feedforward_layernorm": ("feed_forward_output_norm", NORM),
}
LAYERS = {"encoder": LAYER, "decoder": LAYER | _attention("cross_attn", "cross_attention")}


def rules(config: TransformerConfig) -> list[Rule]:
    """Returns the correspondence."""
    head = (f"{HEAD}?",) if config.tie_head else ()
    table = [
        Rule(EMBEDDINGS["encoder"], "source_embedding/embedding"),
        Rule((EMBEDDINGS["decoder"], *head), "target_embedding/embedding"),
    ]
    if not config.tie_head:
        table.append(Rule(HEAD, "head/kernel", "V D -> D V"))
    for stack, parts in LAYERS.items():
        table += layers(f"model.{stack}.layers", stack, parts)
        table.append(Rule(f"model.{stack}.norm.weight", f"{stack}/final_norm/scale"))
    return table


def recognises(names: Collection[str]) -> bool:
    """Returns whether the names are the family's."""
    return all(f"model.{stack}.layers.0.pre_self_attn_layernorm.weight" in names for stack in STACKS)


def read(tensors: Tensors) -> dict[str, Any]:
    """Reads the sizes from the tensors. Raises PortingError naming the tensors that are missing for it."""
    reader = Reader(tensors)
    encoder, decoder = EMBEDDINGS.values()
    fields = reader.finished(
        "T5Gemma",
        source_vocab_size=reader.size(encoder, 0, 2),
        target_vocab_size=reader.size(decoder, 0, 2),
        d_model=reader.size(encoder, 1, 2),
        d_ff=reader.size("model.encoder.layers.0.mlp.up_proj.weight", 0, 2),
        decoder_d_ff=reader.size("model.decoder.layers.0.mlp.up_proj.weight", 0, 2),
        num_encoder_layers=reader.layers("model.encoder.layers.{i}."),
        num_decoder_layers=reader.layers("model.decoder.layers.{i}."),
    )
    return fields | {"tie_head": not reader.differ(decoder, HEAD)}


def refuses(config: TransformerConfig) -> list[str]:
    """Lists the other obstacles of a config: scales, windows and widths that config.json has no words for."""
    problems = one_target_pad_id(config)
    own, cross = config.decoder.self_attention, config.decoder.cross_attention
    for field in ("scale", "logits_cap"):
        wanted, received = getattr(own, field), getattr(cross, field)
        if received != wanted:
            problems.append(
                f"decoder.cross_attention.{field} must be decoder.self_attention.{field}={wanted!r}; received "
                f"{received!r}"
            )
    for name in STACKS:
        stack: Stack = getattr(config, name)
        if stack.d_model % stack.heads.num_heads:
            problems.append(
                f"{name}.self_attention.num_heads must divide d_model={stack.d_model}; received {stack.heads.num_heads}"
            )
        scale = stack.self_attention.scale
        if scale is not None and _query_scalar(stack) ** -0.5 != scale:
            problems.append(
                f"{name}.self_attention.scale must be null, or the reciprocal root of an integer; received {scale!r}"
            )
        if name == "encoder" and stack.self_attention.window == 1:
            problems.append("encoder.self_attention.window must be at least 2; received 1")
    return problems


# --- config.json

DEFAULT_JSON: dict[str, Any] = {
    "encoder": {},
    "decoder": {},
    "vocab_size": 256000,
    "dropout_rate": 0.0,
    "attention_dropout": 0.0,
    "tie_word_embeddings": True,
    "pad_token_id": None,
    "eos_token_id": 1,
    "decoder_start_token_id": 2,
}
SIDE: dict[str, Any] = {
    "vocab_size": 256000,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6,
    "pad_token_id": 0,
    "rope_parameters": None,
    "rope_theta": 10_000.0,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "layer_types": None,
    "final_logit_softcapping": 30.0,
    "attn_logit_softcapping": 50.0,
    "attention_bias": False,
}
"""Defaults of a stack's part of config.json."""
SLIDING, FULL = "sliding_attention", "full_attention"
SIZES = {
    "num_attention_heads": "num_heads",
    "num_key_value_heads": "num_kv_heads",
    "head_dim": "head_dim",
    "intermediate_size": "d_ff",
    "max_position_embeddings": "max_length",
}
"""Keys of a stack's part of config.json → short names, which the decoder has with `decoder_`."""


def read_config(json: Json) -> dict[str, Any]:
    """Returns the config fields of a resolved config.json; what no short name of the decoder says, under the path of
    the option."""
    sides = {name: SIDE | dict(json[name] or {}) for name in STACKS}
    encoder, decoder = sides["encoder"], sides["decoder"]
    problems = [problem for name, side in sides.items() for problem in _side_problems(name, side)]
    problems += problems_of_both(json, encoder, decoder, "stacks of two widths")
    if problems:
        raise PortingError("config.json: a T5Gemma that no config expresses", problems)
    fields = fields_of_both(encoder, decoder) | {
        "tie_head": bool(json["tie_word_embeddings"]),
        "logits_cap": decoder["final_logit_softcapping"],
        "dropout_rate": json["dropout_rate"],
        "attention_dropout_rate": json["attention_dropout"],
        "output_dropout_rate": json["dropout_rate"],
    }
    for key, name in SIZES.items():
        fields |= {name: encoder[key], f"decoder_{name}": None if decoder[key] == encoder[key] else decoder[key]}
    activations = [fairseq.activation(side, "hidden_activation") for side in sides.values()]
    fields["activation"] = activations[0]
    fields["decoder_activation"] = None if len({*activations}) == 1 else activations[1]
    return fields | {
        f"{name}.{path}": value for name, side in sides.items() for path, value in _of_each_side(name, side).items()
    }


def _side_problems(name: str, side: Json) -> list[str]:
    """Lists what a stack's part says that no model here has."""
    problems = []
    if side["attention_bias"]:
        problems.append(f"{name}.attention_bias must be False; received {side['attention_bias']!r}")
    kind = _rotation(side).get("rope_type", _rotation(side).get("type", "default"))
    if kind != "default":
        problems.append(f"{name}.rope_parameters.rope_type must be 'default'; received {kind!r}")
    if _full_every(side) == 0:
        problems.append(
            f"{name}.layer_types must be {SLIDING} but for each n-th layer, or {FULL} in all; received "
            f"{', '.join(map(str, side['layer_types']))}"
        )
    return problems


def _rotation(side: Json) -> Mapping[str, Any]:
    """Returns the parameters of the rotation, which files of transformers 4 have in other places."""
    given = side.get("rope_parameters") or side.get("rope_scaling") or {}
    return {"rope_theta": side["rope_theta"], **given}


def _full_every(side: Json) -> int | None:
    """Returns the n of layers n, 2n, … that see beyond the window: 1 if all do, None if none does, 0 for another
    order."""
    types, count = side["layer_types"], side["num_hidden_layers"]
    if types is None:
        return 2 if count > 1 else None
    full = [i for i, kind in enumerate(types, 1) if kind == FULL]
    every = full[0] if full else None
    return every if list(types) == _layer_types(every, count) else 0


def _layer_types(every: int | None, count: int) -> list[str]:
    """Returns the kinds of layers of which each n-th sees beyond the window."""
    return [FULL if every is not None and i % every == 0 else SLIDING for i in range(1, count + 1)]


def _of_each_side(name: str, side: Json) -> dict[str, Any]:
    """Returns the options of one stack, by their paths in it."""
    every = _full_every(side)
    scalar, scale = side["query_pre_attn_scalar"], None
    if scalar != side["head_dim"]:
        scale = scalar**-0.5
    # the encoder's number counts neighbours on each side, ours the query as well
    window = None if every == 1 or side["sliding_window"] is None else side["sliding_window"] + (name == "encoder")
    options = {
        "norm.eps": side["rms_norm_eps"],
        "positions.base": float(_rotation(side)["rope_theta"]),
        "self_attention.window": window,
        "self_attention.full_every": None if window is None else every,
    }
    for attention_name in ("self_attention", *(["cross_attention"] if name == "decoder" else [])):
        options |= {
            f"{attention_name}.scale": scale,
            f"{attention_name}.logits_cap": side["attn_logit_softcapping"],
        }
    return options


def write_config(config: TransformerConfig) -> dict[str, Any]:
    """Returns the config.json of a config: the inverse of `read_config`."""
    rate, attention_rate = config.dropout_rate, config.attention_dropout_rate
    return {
        "encoder": _written(config, config.encoder, config.source),
        "decoder": _written(config, config.decoder, config.target),
        "vocab_size": config.source_vocab_size,
        "pad_token_id": config.target_pad_id,
        "tie_word_embeddings": config.tie_head,
        "dropout_rate": rate,
        "attention_dropout": rate if attention_rate is None else attention_rate,
    }


def _written(config: TransformerConfig, stack: Stack, tokens: Tokens) -> dict[str, Any]:
    """Returns a stack's part of config.json."""
    assert stack.feed_forward is not None  # as FIXED says
    assert stack.norm is not None
    assert isinstance(stack.positions, Rotary)
    own, heads = stack.self_attention, stack.heads
    is_encoder = stack.cross_attention is None
    every = 1 if own.window is None else own.full_every
    activations = {ours: theirs for theirs, ours in fairseq.ACTIVATIONS.items()}
    window = {} if own.window is None else {"sliding_window": own.window - is_encoder}
    return {
        "model_type": "t5_gemma_module",
        "is_decoder": not is_encoder,
        "vocab_size": tokens.vocab_size,
        "pad_token_id": tokens.pad_id,
        "hidden_size": stack.d_model,
        "num_hidden_layers": stack.num_layers,
        "num_attention_heads": heads.num_heads,
        "num_key_value_heads": heads.num_kv_heads,
        "head_dim": heads.head_dim,
        "intermediate_size": stack.feed_forward.width,
        "hidden_activation": activations[stack.feed_forward.activation],
        "max_position_embeddings": stack.max_length,
        "rms_norm_eps": stack.norm.eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": stack.positions.base},
        "query_pre_attn_scalar": _query_scalar(stack),
        "attn_logit_softcapping": own.logits_cap,
        "final_logit_softcapping": config.logits_cap,
        "layer_types": _layer_types(every, stack.num_layers),
        **window,
    }


def _query_scalar(stack: Stack) -> int:
    """Returns the integer whose reciprocal root is, or comes closest to, the scale of a stack's attentions."""
    scale = stack.self_attention.scale
    return stack.heads.head_dim if scale is None else max(round(scale**-2), 1) if scale else 1


DIALECT = Dialect(
    name="t5gemma",
    title="T5Gemma in transformers",
    recognises=recognises,
    fixed=FIXED,
    choices={"tie_head": (False, True), "activation": ACTIVATIONS, "decoder_activation": (None, *ACTIVATIONS)},
    may_differ=("norm_eps", "rotary_base", "attention_scale", "attention_logits_cap", "window", "full_every"),
    read=read,
    asks={
        "num_heads": "how many heads the encoder's attentions have (encoder.num_attention_heads)",
        "decoder_num_heads": "how many heads the decoder's attentions have (decoder.num_attention_heads)",
        "num_kv_heads": "how many heads of keys and values the encoder's have (encoder.num_key_value_heads)",
        "decoder_num_kv_heads": "the same of the decoder's (decoder.num_key_value_heads)",
        "head_dim": "the width of the encoder's heads (encoder.head_dim)",
        "decoder_head_dim": "the width of the decoder's heads (decoder.head_dim)",
        "source_pad_id": "the id that pads sources (encoder.pad_token_id)",
        "target_pad_id": "the id that pads targets (decoder.pad_token_id)",
        "activation": "'relu', 'gelu', 'gelu_tanh' or 'silu' (hidden_activation; gelu_pytorch_tanh is gelu_tanh)",
        "norm_eps": "rms_norm_eps",
        "attention_scale": "the root of 1 / query_pre_attn_scalar",
        "attention_logits_cap": "attn_logit_softcapping",
        "logits_cap": "final_logit_softcapping",
        "window": "the positions on each side that layers with a window see, the query's own included: sliding_window "
        "in the decoder, one more in the encoder",
        "full_every": "the n of layers n, 2n, … without a window (layer_types)",
    },
    defaults={"rotary_base": 10_000.0, "max_length": 8192},
    rules=rules,
    refuses=refuses,
    base_prefix=fairseq.PREFIX,
    config_file=ConfigFile(
        model_type="t5gemma",
        architectures=("T5GemmaForConditionalGeneration", "T5GemmaModel"),
        aliases={},
        defaults=DEFAULT_JSON,
        allowed={"is_encoder_decoder": (True,)},
        read=read_config,
        write=write_config,
        start_in="decoder",
    ),
)

DIALECTS = (DIALECT,)
