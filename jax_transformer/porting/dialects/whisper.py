"""Whisper in Hugging Face's transformers, Distil-Whisper included: a convolution stem, fixed positions in the encoder
and learned ones in the decoder, pre-norm, keys without bias, a tied head."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.specs import Stem
from jax_transformer.mapping.rules import Rule
from jax_transformer.porting.dialects import (
    ConfigFile,
    Dialect,
    Json,
    Reader,
    fairseq,
    heads_as_wide_as_the_model,
    one_target_pad_id,
)
from jax_transformer.porting.dialects.tables import attention, layers, within
from jax_transformer.storage.tensors import Tensors

FIXED = fairseq.FIXED | {
    "scale_embedding": False,
    "share_embeddings": False,
    "tie_head": True,
    "encoder_embedding_norm": "none",
    "decoder_embedding_norm": "none",
    "head_bias": "none",
    "position_kind": "sinusoidal",
    "decoder_position_kind": "learned",
    "position_layout": "halves",
    "position_frequency": "inclusive",
    "position_index": "column",
    "position_offset": 0,
    "norm_placement": "pre",
    "final_norm": True,
    "attention_key_bias": False,
    "encoder_padding": "none",
    "cross_padding": "none",
}
EMBEDDING, HEAD = "model.decoder.embed_tokens.weight", "proj_out.weight"
STEM = {"first": "model.encoder.conv1", "second": "model.encoder.conv2"}
STRIDE = 2
"""Stride of the second convolution, which is part of the program."""

ATTENTION = attention("q_proj", "k_proj", "v_proj", "out_proj", key_bias=False)
LAYER = fairseq.LAYER | {"self_attn": ("self_attention", ATTENTION)}
DECODER_LAYER = LAYER | {
    "encoder_attn": ("cross_attention", ATTENTION),
    "encoder_attn_layer_norm": ("cross_attention_norm", fairseq.NORM),
}


def rules(config: TransformerConfig) -> list[Rule]:
    """Returns the correspondence."""
    table = [Rule((EMBEDDING, f"{HEAD}?"), "target_embedding/embedding")]
    for part, name in STEM.items():
        table += within(name, f"stem/{part}", [("weight", "kernel", "O I K -> K I O"), ("bias", "bias", "")])
    table.append(Rule(fairseq.POSITIONS["encoder"], "constants/encoder_positions"))
    table.append(Rule(fairseq.POSITIONS["decoder"], "decoder/positions/embedding"))
    for stack, parts in (("encoder", LAYER), ("decoder", DECODER_LAYER)):
        table += layers(f"model.{stack}.layers", stack, parts)
        table += within(f"model.{stack}.layer_norm", f"{stack}/final_norm", fairseq.NORM)
    return table


def recognises(names: Collection[str]) -> bool:
    """Returns whether the names are the family's."""
    return all(f"{name}.weight" in names for name in STEM.values()) and EMBEDDING in names


def read(tensors: Tensors) -> dict[str, Any]:
    """Reads the sizes from the tensors. Raises PortingError naming the tensors that are missing for it."""
    reader = Reader(tensors)
    first = f"{STEM['first']}.weight"
    features, kernel = reader.size(first, 1, 3), reader.size(first, 2, 3)
    return reader.finished(
        "whisper",
        target_vocab_size=reader.size(EMBEDDING, 0, 2),
        d_model=reader.size(EMBEDDING, 1, 2),
        d_ff=reader.size("model.encoder.layers.0.fc1.weight", 0, 2),
        decoder_d_ff=reader.size("model.decoder.layers.0.fc1.weight", 0, 2),
        num_encoder_layers=reader.layers("model.encoder.layers.{i}."),
        num_decoder_layers=reader.layers("model.decoder.layers.{i}."),
        max_length=reader.size(fairseq.POSITIONS["encoder"], 0, 2),
        decoder_max_length=reader.size(fairseq.POSITIONS["decoder"], 0, 2),
        stem=Stem(features=features, kernel=kernel, stride=STRIDE),
    )


def refuses(config: TransformerConfig) -> list[str]:
    """Lists the other obstacles of a config."""
    problems = heads_as_wide_as_the_model(config) + one_target_pad_id(config)
    if config.stem is None:
        return [*problems, "stem must be given; received None"]
    if (config.stem.kernel, config.stem.stride, config.stem.activation) != (3, STRIDE, "gelu"):
        problems.append(f"stem must have kernel=3, stride={STRIDE} and activation='gelu'; received {config.stem!r}")
    return problems


SAME = {
    key: field for key, field in fairseq.SAME.items() if key not in ("max_position_embeddings", "scale_embedding")
} | {"max_source_positions": "max_length", "vocab_size": "target_vocab_size", "pad_token_id": "target_pad_id"}
"""Keys of config.json → config fields of the same values."""
DECODER = {
    "decoder_attention_heads": ("decoder_num_heads", "num_heads"),
    "decoder_ffn_dim": ("decoder_d_ff", "d_ff"),
    "max_target_positions": ("decoder_max_length", "max_length"),
}
"""Keys of config.json → the decoder's field, and the one that it follows without a value of its own."""


def read_config(json: Json) -> dict[str, Any]:
    """Returns the config fields of a resolved config.json."""
    fields = {field: json[key] for key, field in SAME.items()}
    for key, (own, general) in DECODER.items():
        fields[own] = None if json[key] == fields[general] else json[key]
    fields["activation"] = fairseq.activation(json, "activation_function")
    return fields | {"stem": Stem(features=json["num_mel_bins"], stride=STRIDE)}


def write_config(config: TransformerConfig) -> dict[str, Any]:
    """Returns the config.json of a config: the inverse of `read_config`."""
    json = {key: getattr(config, field) for key, field in SAME.items()}
    json |= {key: config.dropout_rate for key in ("attention_dropout", "activation_dropout") if json[key] is None}
    for key, (own, general) in DECODER.items():
        value = getattr(config, own)
        json[key] = getattr(config, general) if value is None else value
    assert config.stem is not None  # as `refuses` checked
    activation = {ours: theirs for theirs, ours in reversed(fairseq.ACTIVATIONS.items())}[config.activation]
    return json | {"num_mel_bins": config.stem.features, "activation_function": activation}


DIALECT = Dialect(
    name="whisper",
    title="Whisper in transformers",
    recognises=recognises,
    fixed=FIXED,
    choices={"activation": fairseq.CHOICES["activation"]},
    defaults=fairseq.DEFAULTS,
    read=read,
    asks={name: fairseq.ASKS[name] for name in ("num_heads", "decoder_num_heads", "target_pad_id", "activation")},
    rules=rules,
    determines=("stem", "source_vocab_size", "source_pad_id"),
    refuses=refuses,
    base_prefix=fairseq.PREFIX,
    config_file=ConfigFile(
        model_type="whisper",
        architectures=("WhisperForConditionalGeneration", "WhisperModel"),
        aliases=fairseq.ALIASES,
        defaults={
            "vocab_size": 51865,
            "num_mel_bins": 80,
            "d_model": 384,
            "encoder_layers": 4,
            "decoder_layers": 4,
            "encoder_attention_heads": 6,
            "decoder_attention_heads": 6,
            "encoder_ffn_dim": 1536,
            "decoder_ffn_dim": 1536,
            "max_source_positions": 1500,
            "max_target_positions": 448,
            "activation_function": "gelu",
            "dropout": 0.0,
            "attention_dropout": 0.0,
            "activation_dropout": 0.0,
            "pad_token_id": 50256,
            "eos_token_id": 50256,
            "decoder_start_token_id": 50257,
            "tie_word_embeddings": True,
        },
        allowed={"is_encoder_decoder": (True,), "scale_embedding": (False,), "tie_word_embeddings": (True,)},
        read=read_config,
        write=write_config,
    ),
)

DIALECTS = (DIALECT,)
