"""Defines a user's PyTorch modules and JAX functions, each returned by a function without arguments."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from jax_transformer.model import functional
from jax_transformer.porting import import_checkpoint
from torch_reference.harvard import HarvardTransformer
from torch_reference.hyunwoongko import HyunwoongkoTransformer
from torch_reference.pytorch import PytorchTransformer

SIZES: dict[str, Any] = {
    "source_vocab_size": 23,
    "target_vocab_size": 19,
    "d_model": 12,
    "num_heads": 3,
    "d_ff": 16,
    "num_encoder_layers": 2,
    "num_decoder_layers": 1,
    "max_length": 12,
    "source_pad_id": 1,
    "target_pad_id": 2,
}
HINTS = {"num_heads": 3, "source_pad_id": 1, "target_pad_id": 2, "norm_placement": "post", "activation": "relu"}
"""Settings that a checkpoint of PytorchTransformer lacks."""


def randomised(module: nn.Module) -> Any:
    """Draws every parameter from one seed, the scales of norms around 1; returns the module in evaluation mode."""
    generator = torch.Generator().manual_seed(0)
    norms = {f"{name}.weight" for name, part in module.named_modules() if isinstance(part, nn.LayerNorm)}
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            drawn = 0.4 * torch.randn(parameter.shape, generator=generator)
            parameter.copy_(drawn + (name in norms or name.endswith((".a_2", ".gamma"))))
    return module.eval()


def harvard() -> Any:
    return randomised(HarvardTransformer(**SIZES))


def hyunwoongko() -> Any:
    return randomised(HyunwoongkoTransformer(**SIZES))


def pytorch() -> Any:
    return randomised(PytorchTransformer(**SIZES))


def other_eps() -> Any:
    module = pytorch()
    module.transformer.decoder.layers[0].norm2.eps = 1e-6
    return module


class AttendingToInnerPads(PytorchTransformer):
    """Hides only the padding at the end of sentences."""

    def make_masks(self, source_ids: Tensor, decoder_input_ids: Tensor) -> Any:
        masks = super().make_masks(source_ids, decoder_input_ids)
        follows = (source_ids != self.source_pad_id).flip(1).cumsum(1).flip(1) > 0
        source = follows[:, None, None, :]
        return masks._replace(encoder_self=source, cross=source)


def attending_to_inner_pads() -> Any:
    return randomised(AttendingToInnerPads(**SIZES))


def in_bfloat16() -> Any:
    return pytorch().to(torch.bfloat16)


def in_float16() -> Any:
    return pytorch().half()


class WithPhases(PytorchTransformer):
    """Multiplies logits by complex constants of modulus 1 and by their conjugates."""

    def __init__(self) -> None:
        super().__init__(**SIZES)
        exponents = torch.arange(SIZES["target_vocab_size"])
        self.register_buffer("phases", torch.tensor([1, 1j, -1, -1j])[exponents % 4], persistent=False)

    def forward(self, source_ids: Tensor, decoder_input_ids: Tensor) -> Tensor:
        logits = super().forward(source_ids, decoder_input_ids)
        return (logits * self.phases * self.phases.conj()).real.to(logits.dtype)


def with_phases() -> Any:
    return randomised(WithPhases())


def other_weight() -> Any:
    module = pytorch()
    with torch.no_grad():
        module.head.weight[3, 4] *= 1.001
    return module


def training() -> Any:
    return pytorch().train()


def part_in_training() -> Any:
    module = pytorch()
    module.transformer.decoder.layers[0].dropout1.train()
    return module


def wider() -> Any:
    return randomised(PytorchTransformer(**{**SIZES, "d_model": 18}))


def random_numbers() -> Any:
    """Returns a module that adds noise."""
    module = pytorch()
    module.head.register_forward_hook(lambda part, arguments, logits: logits + 1e-6 * torch.randn_like(logits))
    return module


def raising() -> Any:
    raise RuntimeError("the weights are elsewhere")


def no_module() -> Any:
    return {"weights": 1}


# --- a model with different names


class Attention(nn.Module):
    """Computes keys and values in one product, which includes queries in self-attention."""

    def __init__(self, width: int, heads: int, *, crossing: bool) -> None:
        super().__init__()
        self.heads, self.crossing = heads, crossing
        if crossing:
            self.q = nn.Linear(width, width)
            self.kv = nn.Linear(width, 2 * width)
        else:
            self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (self.q(x), *self.kv(y).chunk(2, dim=-1)) if self.crossing else self.qkv(x).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (q, k, v))
        scores = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).masked_fill(~mask, torch.finfo(q.dtype).min)
        return self.proj((scores.softmax(dim=-1) @ v).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """Normalizes after each part."""

    def __init__(self, width: int, heads: int, inner: int, *, crossing: bool) -> None:
        super().__init__()
        self.attn, self.ln1 = Attention(width, heads, crossing=False), nn.LayerNorm(width)
        if crossing:
            self.cross, self.ln2 = Attention(width, heads, crossing=True), nn.LayerNorm(width)
        self.up, self.act, self.down, self.ln3 = (
            nn.Linear(width, inner),
            nn.ReLU(),
            nn.Linear(inner, width),
            nn.LayerNorm(width),
        )

    def forward(
        self, x: Tensor, mask: Tensor, memory: Tensor | None = None, memory_mask: Tensor | None = None
    ) -> Tensor:
        x = self.ln1(x + self.attn(x, x, mask))
        if memory is not None:
            x = self.ln2(x + self.cross(x, memory, memory_mask))
        return self.ln3(x + self.down(self.act(self.up(x))))


class Foreign(nn.Module):
    """Computes PytorchTransformer's function under different names."""

    pe: Tensor

    def __init__(self) -> None:
        super().__init__()
        width, heads, inner = SIZES["d_model"], SIZES["num_heads"], SIZES["d_ff"]
        self.src, self.tgt = (
            nn.Embedding(SIZES["source_vocab_size"], width),
            nn.Embedding(SIZES["target_vocab_size"], width),
        )
        self.register_buffer("pe", pytorch().positions.clone(), persistent=False)
        self.enc = nn.ModuleList(
            [Layer(width, heads, inner, crossing=False) for _ in range(SIZES["num_encoder_layers"])]
        )
        self.dec = nn.ModuleList(
            [Layer(width, heads, inner, crossing=True) for _ in range(SIZES["num_decoder_layers"])]
        )
        self.enc_ln, self.dec_ln, self.out = (
            nn.LayerNorm(width),
            nn.LayerNorm(width),
            nn.Linear(width, SIZES["target_vocab_size"]),
        )

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        src_mask = (src != SIZES["source_pad_id"])[:, None, None]
        tgt_mask = (tgt != SIZES["target_pad_id"])[:, None, None] & torch.ones(tgt.shape[1], tgt.shape[1]).tril().bool()
        x, y = (
            table(ids) * math.sqrt(SIZES["d_model"]) + self.pe[: ids.shape[1]]
            for table, ids in ((self.src, src), (self.tgt, tgt))
        )
        for layer in self.enc:
            x = layer(x, src_mask)
        memory = self.enc_ln(x)
        for layer in self.dec:
            y = layer(y, tgt_mask, memory, src_mask)
        return self.out(self.dec_ln(y))


FOREIGN_MAP = """
activations:
  enc.{i}.attn@logits: encoder.layers.{i}.self_attention.logits
  enc.{i}.attn@weights: encoder.layers.{i}.self_attention.weights
  enc.{i}.attn.proj: encoder.layers.{i}.self_attention.output
  enc.{i}.ln1: ["encoder.layers.{i}.self_attention_norm", "encoder.layers.{i}.self_attention_residual"]
  enc.{i}.act: encoder.layers.{i}.feed_forward.hidden
  enc.{i}.down: encoder.layers.{i}.feed_forward.output
  enc.{i}.ln3: ["encoder.layers.{i}.feed_forward_norm", "encoder.layers.{i}.output"]
  enc_ln: encoder.output
  dec.{i}.attn@logits: decoder.layers.{i}.self_attention.logits
  dec.{i}.cross@logits: decoder.layers.{i}.cross_attention.logits
  dec.{i}.cross.q: decoder.layers.{i}.cross_attention.query
  dec.{i}.ln2: ["decoder.layers.{i}.cross_attention_norm", "decoder.layers.{i}.cross_attention_residual"]
  dec.{i}.act: decoder.layers.{i}.feed_forward.hidden
  dec.{i}.ln3: ["decoder.layers.{i}.feed_forward_norm", "decoder.layers.{i}.output"]
  dec_ln: decoder.output
parameters:
  src.weight: source_embedding/embedding
  tgt.weight: target_embedding/embedding
  enc.{i}.attn.qkv.weight: {name: "encoder/layers/self_attention/{query,key,value}/kernel[{i}]", axes: "(3 N H) D -> D N H"}
  enc.{i}.attn.qkv.bias: {name: "encoder/layers/self_attention/{query,key,value}/bias[{i}]", axes: "(3 N H) -> N H"}
  enc.{i}.attn.proj.weight: {name: "encoder/layers/self_attention/output/kernel[{i}]", axes: "D (N H) -> N H D"}
  enc.{i}.attn.proj.bias: encoder/layers/self_attention/output/bias[{i}]
  enc.{i}.ln1.weight: encoder/layers/self_attention_norm/scale[{i}]
  enc.{i}.ln1.bias: encoder/layers/self_attention_norm/bias[{i}]
  enc.{i}.up.weight: {name: "encoder/layers/feed_forward/hidden/kernel[{i}]", axes: "F D -> D F"}
  enc.{i}.up.bias: encoder/layers/feed_forward/hidden/bias[{i}]
  enc.{i}.down.weight: {name: "encoder/layers/feed_forward/output/kernel[{i}]", axes: "D F -> F D"}
  enc.{i}.down.bias: encoder/layers/feed_forward/output/bias[{i}]
  enc.{i}.ln3.weight: encoder/layers/feed_forward_norm/scale[{i}]
  enc.{i}.ln3.bias: encoder/layers/feed_forward_norm/bias[{i}]
  enc_ln.weight: encoder/final_norm/scale
  enc_ln.bias: encoder/final_norm/bias
  dec.{i}.attn.qkv.weight: {name: "decoder/layers/self_attention/{query,key,value}/kernel[{i}]", axes: "(3 N H) D -> D N H"}
  dec.{i}.attn.qkv.bias: {name: "decoder/layers/self_attention/{query,key,value}/bias[{i}]", axes: "(3 N H) -> N H"}
  dec.{i}.attn.proj.weight: {name: "decoder/layers/self_attention/output/kernel[{i}]", axes: "D (N H) -> N H D"}
  dec.{i}.attn.proj.bias: decoder/layers/self_attention/output/bias[{i}]
  dec.{i}.ln1.weight: decoder/layers/self_attention_norm/scale[{i}]
  dec.{i}.ln1.bias: decoder/layers/self_attention_norm/bias[{i}]
  dec.{i}.cross.q.weight: {name: "decoder/layers/cross_attention/query/kernel[{i}]", axes: "(N H) D -> D N H"}
  dec.{i}.cross.q.bias: {name: "decoder/layers/cross_attention/query/bias[{i}]", axes: "(N H) -> N H"}
  dec.{i}.cross.kv.weight: {name: "decoder/layers/cross_attention/{key,value}/kernel[{i}]", axes: "(2 N H) D -> D N H"}
  dec.{i}.cross.kv.bias: {name: "decoder/layers/cross_attention/{key,value}/bias[{i}]", axes: "(2 N H) -> N H"}
  dec.{i}.cross.proj.weight: {name: "decoder/layers/cross_attention/output/kernel[{i}]", axes: "D (N H) -> N H D"}
  dec.{i}.cross.proj.bias: decoder/layers/cross_attention/output/bias[{i}]
  dec.{i}.ln2.weight: decoder/layers/cross_attention_norm/scale[{i}]
  dec.{i}.ln2.bias: decoder/layers/cross_attention_norm/bias[{i}]
  dec.{i}.up.weight: {name: "decoder/layers/feed_forward/hidden/kernel[{i}]", axes: "F D -> D F"}
  dec.{i}.up.bias: decoder/layers/feed_forward/hidden/bias[{i}]
  dec.{i}.down.weight: {name: "decoder/layers/feed_forward/output/kernel[{i}]", axes: "D F -> F D"}
  dec.{i}.down.bias: decoder/layers/feed_forward/output/bias[{i}]
  dec.{i}.ln3.weight: decoder/layers/feed_forward_norm/scale[{i}]
  dec.{i}.ln3.bias: decoder/layers/feed_forward_norm/bias[{i}]
  dec_ln.weight: decoder/final_norm/scale
  dec_ln.bias: decoder/final_norm/bias
  out.weight: {name: "head/kernel", axes: "V D -> D V"}
  out.bias: head/bias
"""  # noqa: E501
"""Relates the names of Foreign to ours."""


def foreign() -> Any:
    """Returns Foreign with PytorchTransformer's weights."""
    module, theirs = Foreign().eval(), pytorch()
    transformer = theirs.transformer
    pairs: list[tuple[Any, Any]] = [
        (module.src, theirs.source_embedding),
        (module.tgt, theirs.target_embedding),
        (module.out, theirs.head),
        (module.enc_ln, transformer.encoder.norm),
        (module.dec_ln, transformer.decoder.norm),
    ]
    for layer, other in zip(module.enc, transformer.encoder.layers, strict=True):
        pairs += [
            (layer.attn.proj, other.self_attn.out_proj),
            (layer.ln1, other.norm1),
            (layer.up, other.linear1),
            (layer.down, other.linear2),
            (layer.ln3, other.norm2),
        ]
        _load(layer.attn.qkv, other.self_attn.in_proj_weight, other.self_attn.in_proj_bias)
    for layer, other in zip(module.dec, transformer.decoder.layers, strict=True):
        pairs += [
            (layer.attn.proj, other.self_attn.out_proj),
            (layer.ln1, other.norm1),
            (layer.cross.proj, other.multihead_attn.out_proj),
            (layer.ln2, other.norm2),
            (layer.up, other.linear1),
            (layer.down, other.linear2),
            (layer.ln3, other.norm3),
        ]
        _load(layer.attn.qkv, other.self_attn.in_proj_weight, other.self_attn.in_proj_bias)
        width = SIZES["d_model"]
        weight, bias = other.multihead_attn.in_proj_weight, other.multihead_attn.in_proj_bias
        _load(layer.cross.q, weight[:width], bias[:width])
        _load(layer.cross.kv, weight[width:], bias[width:])
    for ours, others in pairs:
        ours.load_state_dict(others.state_dict())
    return module


def _load(linear: nn.Linear, weight: Tensor, bias: Tensor) -> None:
    linear.load_state_dict({"weight": weight, "bias": bias})


def foreign_eps() -> Any:
    module = foreign()
    module.enc[1].ln3.eps = 1e-6
    return module


def foreign_gelu() -> Any:
    module = foreign()
    module.dec[0].act = nn.GELU().eval()
    return module


# --- JAX functions in place of the model


def config() -> Any:
    return dataclasses.replace(import_checkpoint(pytorch().state_dict(), "pytorch", **HINTS).config, dropout_rate=0.0)


@cache
def function() -> Callable[..., Any]:
    """Returns the JAX model as a function; the result is cached."""
    return partial(_apply, config())


def _apply(config: Any, params: Mapping[str, Any], inputs: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
    return functional.apply(config, params, inputs["source_ids"], inputs["decoder_input_ids"], return_trace=True)


def scaled_logits() -> Callable[..., Any]:
    right = function()

    def scaled(params: Any, inputs: Any) -> Any:
        logits, trace = right(params, inputs)
        return 1.01 * logits, {**trace, "logits": 1.01 * logits}

    return scaled


def narrow() -> Callable[..., Any]:
    right = function()

    def narrowed(params: Any, inputs: Any) -> Any:
        logits, trace = right(params, inputs)
        return logits.astype("float32"), trace

    return narrowed


def without_a_trace() -> Callable[..., Any]:
    right = function()
    return lambda params, inputs: (right(params, inputs)[0], {})


def logits_alone() -> Callable[..., Any]:
    return lambda params, inputs: function()(params, inputs)[0]


def failing() -> Callable[..., Any]:
    return lambda params, inputs: params["weights"]


def no_function() -> Any:
    return 3
