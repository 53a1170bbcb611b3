"""The Flax models of transformers 4 and their PyTorch originals, small, as two sides of a proof."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
import transformers
from flax.traverse_util import flatten_dict
from transformers.modeling_flax_pytorch_utils import convert_pytorch_state_dict_to_flax

from jax_transformer.parity import Side

VOCABULARY = 61
OUTPUTS = ("logits", "last_hidden_state")
RNG = np.random.default_rng(0)


@dataclass(frozen=True)
class Pair:
    """A model of transformers that has a Flax and a PyTorch program."""

    model: str
    """The name of the PyTorch class; the Flax class has "Flax" before it."""
    config: str
    sizes: Mapping[str, Any]
    inputs: Mapping[str, np.ndarray]
    options: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the Flax class."""


def ids(rows: int, length: int) -> np.ndarray:
    return RNG.integers(3, VOCABULARY, (rows, length))


TOKENS = {"input_ids": ids(2, 7), "attention_mask": np.ones((2, 7), np.int64)}
SENTENCES = {"input_ids": ids(2, 7), "decoder_input_ids": ids(2, 5)}


def pixels(size: int) -> dict[str, np.ndarray]:
    return {"pixel_values": RNG.normal(size=(2, 3, size, size)).astype(np.float32)}


SMALL = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
DECODER = {**SMALL, "intermediate_size": 48, "max_position_embeddings": 32}
ENCODER = {**DECODER, "type_vocab_size": 2}
GROUPED = {**DECODER, "num_key_value_heads": 2}
GPT = {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32}
TWO_STACKS = {
    "vocab_size": VOCABULARY, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 40, "max_position_embeddings": 32,
    "decoder_start_token_id": 2, "pad_token_id": 1, "eos_token_id": 2, "bos_token_id": 0, "forced_eos_token_id": None,
}  # fmt: skip
T5 = {
    "vocab_size": VOCABULARY, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4,
    "decoder_start_token_id": 0,
}  # fmt: skip
VISION = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "image_size": 16,
    "patch_size": 8,
}  # fmt: skip
CONVOLUTIONS = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]}
WHISPER = {
    **TWO_STACKS, "num_mel_bins": 8, "max_source_positions": 10, "max_target_positions": 16, "decoder_ffn_dim": 48,
}  # fmt: skip
WHISPER = {
    name: value for name, value in WHISPER.items() if name not in ("max_position_embeddings", "forced_eos_token_id")
}
WAV2VEC2 = {
    "vocab_size": 31, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "conv_dim": [16, 16], "conv_kernel": [5, 3], "conv_stride": [3, 2], "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2, "do_stable_layer_norm": True,
    "feat_extract_norm": "layer", "mask_time_prob": 0.0,
}  # fmt: skip

PAIRS = (
    Pair("GPT2LMHeadModel", "GPT2Config", GPT, TOKENS),
    Pair("GPTJForCausalLM", "GPTJConfig", {**GPT, "rotary_dim": 4}, TOKENS),
    Pair(
        "GPTNeoForCausalLM",
        "GPTNeoConfig",
        {
            **{name: DECODER[name] for name in ("vocab_size", "hidden_size", "intermediate_size")},
            "num_layers": 2,
            "num_heads": 4,
            "max_position_embeddings": 32,
            "window_size": 3,
            "attention_types": [[["global", "local"], 1]],
        },
        TOKENS,
    ),
    Pair("LlamaForCausalLM", "LlamaConfig", GROUPED, TOKENS),
    Pair("MistralForCausalLM", "MistralConfig", {**GROUPED, "sliding_window": 3}, TOKENS),
    Pair("GemmaForCausalLM", "GemmaConfig", {**GROUPED, "head_dim": 8}, TOKENS),
    Pair("OPTForCausalLM", "OPTConfig", {**DECODER, "ffn_dim": 48, "word_embed_proj_dim": 32}, TOKENS),
    Pair(
        "BloomForCausalLM",
        "BloomConfig",
        {"vocab_size": VOCABULARY, "hidden_size": 32, "n_layer": 2, "n_head": 4},
        TOKENS,
    ),
    Pair(
        "XGLMForCausalLM",
        "XGLMConfig",
        {
            "vocab_size": VOCABULARY,
            "d_model": 32,
            "num_layers": 2,
            "ffn_dim": 48,
            "attention_heads": 4,
            "max_position_embeddings": 32,
        },
        TOKENS,
    ),
    Pair("BertForMaskedLM", "BertConfig", ENCODER, TOKENS),
    Pair("RobertaForMaskedLM", "RobertaConfig", ENCODER, TOKENS),
    Pair("RobertaPreLayerNormForMaskedLM", "RobertaPreLayerNormConfig", ENCODER, TOKENS),
    Pair("ElectraForMaskedLM", "ElectraConfig", {**ENCODER, "embedding_size": 32}, TOKENS),
    Pair(
        "DistilBertForMaskedLM",
        "DistilBertConfig",
        {
            "vocab_size": VOCABULARY,
            "dim": 32,
            "n_layers": 2,
            "n_heads": 4,
            "hidden_dim": 48,
            "max_position_embeddings": 32,
        },
        TOKENS,
    ),
    Pair("AlbertForMaskedLM", "AlbertConfig", {**ENCODER, "embedding_size": 16}, TOKENS),
    Pair("RoFormerForMaskedLM", "RoFormerConfig", {**ENCODER, "embedding_size": 32}, TOKENS),
    Pair("BartForConditionalGeneration", "BartConfig", TWO_STACKS, SENTENCES),
    Pair("MBartForConditionalGeneration", "MBartConfig", TWO_STACKS, SENTENCES),
    Pair("PegasusForConditionalGeneration", "PegasusConfig", TWO_STACKS, SENTENCES),
    Pair("MarianMTModel", "MarianConfig", TWO_STACKS, SENTENCES),
    Pair("BlenderbotForConditionalGeneration", "BlenderbotConfig", TWO_STACKS, SENTENCES),
    Pair("T5ForConditionalGeneration", "T5Config", T5, SENTENCES),
    Pair("MT5ForConditionalGeneration", "MT5Config", {**T5, "feed_forward_proj": "gated-gelu"}, SENTENCES),
    Pair("LongT5ForConditionalGeneration", "LongT5Config", {**T5, "local_radius": 3}, SENTENCES),
    Pair(
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        WHISPER,
        {"input_features": RNG.normal(size=(2, 8, 20)).astype(np.float32), "decoder_input_ids": ids(2, 5)},
    ),
    Pair("Wav2Vec2ForCTC", "Wav2Vec2Config", WAV2VEC2, {"input_values": RNG.normal(size=(2, 120)).astype(np.float32)}),
    Pair("CLIPTextModel", "CLIPTextConfig", {**DECODER, "projection_dim": 16, "eos_token_id": 2}, TOKENS),
    Pair("CLIPVisionModel", "CLIPVisionConfig", {**VISION, "projection_dim": 16}, pixels(16)),
    Pair("ViTForImageClassification", "ViTConfig", VISION, pixels(16), {"input_shape": (1, 16, 16, 3)}),
    Pair(
        "BeitForImageClassification",
        "BeitConfig",
        {**VISION, "use_relative_position_bias": True},
        pixels(16),
        {"input_shape": (1, 16, 16, 3)},
    ),
    Pair("Dinov2ForImageClassification", "Dinov2Config", VISION, pixels(16), {"input_shape": (1, 16, 16, 3)}),
    Pair("ResNetForImageClassification", "ResNetConfig", {**CONVOLUTIONS, "layer_type": "basic"}, pixels(32)),
    Pair("RegNetForImageClassification", "RegNetConfig", {**CONVOLUTIONS, "groups_width": 4}, pixels(32)),
)


def clip(array: Any, *bounds: Any, a_min: Any = None, a_max: Any = None, **options: Any) -> Any:
    """`jnp.clip` with the names of arguments that transformers 4 uses and newer versions of JAX lack."""
    given = (a_min, a_max) if a_min is not None or a_max is not None else bounds
    return CLIP(array, *given, **options)


CLIP = jnp.clip


def sides(pair: Pair) -> tuple[Side, torch.nn.Module]:
    """Returns the Flax program with weights of its own, and the PyTorch module with other ones."""
    jnp.clip = clip
    config = getattr(transformers, pair.config)(**pair.sizes)
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    module = getattr(transformers, pair.model)(config).eval()
    model = getattr(transformers, f"Flax{pair.model}")(config, **pair.options)

    def program(params: Any, inputs: Mapping[str, Any]) -> Any:
        return output(model(params=params, **inputs))

    return Side(program, params=model.params, name=f"Flax{pair.model}"), module


def output(result: Any) -> Any:
    return next(result[name] for name in OUTPUTS if name in result)


def agreement_with_converter(module: torch.nn.Module, side: Side, found: Mapping[str, np.ndarray]) -> str:
    """Returns "same" if leaves that a map carries over equal those of the port's own converter, else "another", or how
    many it lacks."""
    flax = getattr(transformers, side.name)
    params = convert_pytorch_state_dict_to_flax(dict(module.state_dict()), flax(module.config))
    own = flatten_dict(params, sep="/")
    missing = [name for name in found if name not in own]
    if missing:
        return f"lacks {len(missing)} of {len(found)}"
    return "same" if all(np.array_equal(array, np.asarray(own[name])) for name, array in found.items()) else "another"
