"""IndicTrans2 as a model of the installed transformers, which has none of its own.

The program on the Hub runs with transformers up to 4.50. This one is made of the stacks of mBART and the outer parts of
M2M-100, and differs from them in where norms, vocabularies and positions are.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import M2M100ForConditionalGeneration, M2M100Model, MBartConfig
from transformers.models.bart.modeling_bart import BartDecoderLayer, BartEncoderLayer
from transformers.models.m2m_100.modeling_m2m_100 import M2M100PreTrainedModel, M2M100SinusoidalPositionalEmbedding
from transformers.models.mbart.modeling_mbart import MBartDecoder, MBartEncoder, MBartScaledWordEmbedding


class IndicTransConfig(MBartConfig):
    """Has the keys of IndicTrans2's config.json."""

    model_type = "IndicTrans"
    attribute_map: ClassVar[dict[str, str]] = {
        "d_model": "encoder_embed_dim",
        "hidden_size": "encoder_embed_dim",
        "num_attention_heads": "encoder_attention_heads",
        "num_hidden_layers": "encoder_layers",
        "vocab_size": "decoder_vocab_size",
        "max_position_embeddings": "max_source_positions",
        "tie_word_embeddings": "share_decoder_input_output_embed",
    }

    encoder_vocab_size: int | None = None
    decoder_vocab_size: int | None = None
    encoder_embed_dim: int = 512
    decoder_embed_dim: int = 512
    max_source_positions: int = 210
    max_target_positions: int = 210
    encoder_layers: int = 6
    encoder_ffn_dim: int = 2048
    encoder_attention_heads: int = 8
    decoder_layers: int = 6
    decoder_ffn_dim: int = 2048
    decoder_attention_heads: int = 8
    activation_function: str = "relu"
    encoder_normalize_before: bool = False
    decoder_normalize_before: bool = False
    layernorm_embedding: bool = False
    share_decoder_input_output_embed: bool = False
    scale_embedding: bool = True
    decoder_start_token_id: int | None = 2
    forced_eos_token_id: int | list[int] | None = None


class Positions(M2M100SinusoidalPositionalEmbedding):
    """Numbers real tokens as M2M-100 does, and is called as mBART calls it."""

    def forward(self, input_ids: Tensor, past_key_values_length: int = 0, position_ids: Tensor | None = None) -> Tensor:
        found: Tensor = super().forward(input_ids, None, past_key_values_length)
        return found


class Columns(nn.Module):
    """Adds nothing in place of mBART's numbered columns."""

    def forward(self, vectors: Tensor) -> Tensor:
        return torch.zeros((), dtype=vectors.dtype)


class Encoder(MBartEncoder, M2M100PreTrainedModel):
    """Adds the positions of real tokens, which mBART's encoder doesn't see, before it runs."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.embed_tokens = _embedding(config, config.encoder_vocab_size)
        self.positions = Positions(config.max_source_positions, config.d_model, config.pad_token_id)
        self.embed_positions = Columns()
        if not config.encoder_normalize_before:
            self.layers = nn.ModuleList(BartEncoderLayer(config) for _ in range(config.encoder_layers))
        _leave_out_norms(self, config, pre_norm=config.encoder_normalize_before)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        if input_ids is None:
            raise ValueError("expected input_ids, by whose pads positions are numbered")
        vectors = self.embed_tokens(input_ids) + self.positions(input_ids)
        return super().forward(inputs_embeds=vectors, attention_mask=attention_mask, **kwargs)


class Decoder(MBartDecoder, M2M100PreTrainedModel):
    """Is mBART's, with its own vocabulary and M2M-100's positions."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.embed_tokens = _embedding(config, config.decoder_vocab_size)
        self.embed_positions = Positions(config.max_target_positions, config.d_model, config.pad_token_id)
        if not config.decoder_normalize_before:
            self.layers = nn.ModuleList(BartDecoderLayer(config, layer_idx=i) for i in range(config.decoder_layers))
        _leave_out_norms(self, config, pre_norm=config.decoder_normalize_before)
        self.post_init()


def _embedding(config: Any, vocab_size: int) -> nn.Module:
    scale = math.sqrt(config.d_model) if config.scale_embedding else 1.0
    return MBartScaledWordEmbedding(vocab_size, config.d_model, config.pad_token_id, embed_scale=scale)


def _leave_out_norms(stack: Any, config: Any, *, pre_norm: bool) -> None:
    """Removes the norms that mBART's stacks always have."""
    if not pre_norm:
        stack.layer_norm = nn.Identity()
    if not config.layernorm_embedding:
        stack.layernorm_embedding = nn.Identity()


class IndicTransModel(M2M100Model):
    """Holds both stacks, without a shared embedding."""

    config_class = IndicTransConfig
    _tied_weights_keys: ClassVar[dict[str, str]] = {}

    def __init__(self, config: Any) -> None:
        super(M2M100Model, self).__init__(config)
        self.encoder, self.decoder = Encoder(config), Decoder(config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        embedding: nn.Module = self.encoder.embed_tokens
        return embedding


class IndicTransForConditionalGeneration(M2M100ForConditionalGeneration):
    """Maps source and target ids to logits."""

    config_class = IndicTransConfig
    _tied_weights_keys: ClassVar[dict[str, str]] = {"lm_head.weight": "model.decoder.embed_tokens.weight"}

    def __init__(self, config: Any) -> None:
        super(M2M100ForConditionalGeneration, self).__init__(config)
        self.model = IndicTransModel(config)
        self.lm_head = nn.Linear(config.d_model, config.decoder_vocab_size, bias=False)
        self.post_init()
