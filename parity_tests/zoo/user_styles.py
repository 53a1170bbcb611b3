"""A user's modules in many styles: a factory for each class of the package `styles`, by its name in snake case, modules
whose trace shows something else, and modules that are held in other ways."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import user_models
from styles import calls, failing, inside  # noqa: F401 (they register themselves)
from styles.base import STYLES, made, style
from torch import Tensor, nn
from torch.nn import functional as F

from torch_reference.harvard import Attention, HarvardTransformer
from torch_reference.hyunwoongko import HyunwoongkoTransformer
from torch_reference.pytorch import PytorchTransformer
from torch_reference.trace import Tap


def __getattr__(name: str) -> Callable[[], nn.Module]:
    """Returns the factory of a style's module."""
    if name not in STYLES:
        raise AttributeError(name)
    return partial(made, STYLES[name])


# --- with a trace that shows something else


class PreNormLayer(nn.TransformerEncoderLayer):
    def forward(
        self, src: Tensor, src_mask: Any = None, src_key_padding_mask: Any = None, is_causal: Any = None
    ) -> Any:
        x = src
        x = x + self._sa_block(self.norm1(x), src_mask, src_key_padding_mask)
        return x + self._ff_block(self.norm2(x))


@style
class FlippedNorms(PytorchTransformer):
    """Norms before the sublayers in a layer's own forward, which traced_forward doesn't call."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for layer in self.transformer.encoder.layers:
            layer.__class__ = PreNormLayer


class SwappedAttention(nn.MultiheadAttention):
    """Takes the queries' projection for the keys', and the reverse."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *others: Any, **options: Any) -> Any:
        q, k, v = self.in_proj_weight.chunk(3)
        bias = torch.cat([self.in_proj_bias.chunk(3)[part] for part in (1, 0, 2)])
        query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        found = F.multi_head_attention_forward(
            query, key, value, self.embed_dim, self.num_heads, torch.cat([k, q, v]), bias, None, None, False, 0.0,
            self.out_proj.weight, self.out_proj.bias,
            training=False, need_weights=False, attn_mask=options["attn_mask"],
        )[0]  # fmt: skip
        return found.transpose(0, 1), None


@style
class SwappedQueries(PytorchTransformer):
    """Queries and keys change places in the attention's own forward."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.transformer.encoder.layers[0].self_attn.__class__ = SwappedAttention

    def forward(self, source_ids: Tensor, decoder_input_ids: Tensor, trace: Any = None) -> Tensor:
        return super().forward(source_ids, decoder_input_ids, trace)


@style
class HonestTrace(PytorchTransformer):
    """Inherits everything."""


@style
class TracedTwice(PytorchTransformer):
    """Records one name a second time, with another value."""

    def traced_forward(self, source_ids: Tensor, decoder_input_ids: Tensor, trace: Any) -> Tensor:
        logits = super().traced_forward(source_ids, decoder_input_ids, trace)
        return Tap(trace)("logits", logits + 0)


@style
class TracedInPlace(PytorchTransformer):
    """Goes on in place after the trace has recorded an activation."""

    def embed(self, embedding: nn.Embedding, ids: Tensor, tap: Tap) -> Tensor:
        x = tap("token_embedding", embedding(ids) * math.sqrt(self.d_model))
        x += tap("positions", self.positions[None, : ids.shape[1]])
        x = tap("embedding", x)
        x += 0.0
        x *= 1.0
        return x


class DoubledLayer:
    """Adds the self-attention twice."""

    def forward(self, x: Tensor, mask: Tensor, tap: Tap) -> Tensor:
        attention, feed_forward = self.sublayer
        h = attention.norm(x)
        x = x + self.self_attn(h, h, mask, tap.scope("self_attention"))
        x = x + self.self_attn(h, h, mask, tap.scope("self_attention"))
        h = feed_forward.norm(x)
        return x + self.feed_forward(h, tap.scope("feed_forward"))


def harvard_doubled() -> Any:
    module = user_models.harvard()
    for layer in module.encoder.layers:
        kind = type(layer)
        layer.__class__ = type("Doubled", (DoubledLayer, kind), {})
    return module


# --- other ways to hold it


class Held(nn.Module):
    """An adapter."""

    def __init__(self, theirs: nn.Module) -> None:
        super().__init__()
        self.theirs = theirs
        self.register_buffer("version", torch.ones(1))

    def forward(self, source_ids: Tensor, decoder_input_ids: Tensor) -> Tensor:
        logits: Tensor = self.theirs(tgt=decoder_input_ids, src=source_ids)
        return logits


def held() -> Any:
    return Held(made(STYLES["short"])).eval()


def traced() -> Any:
    ids = torch.full((2, 5), 5), torch.full((2, 4), 5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is deprecated, and still in use
        return torch.jit.trace(made(STYLES["short"]), ids)


class Hyunwoongko(HyunwoongkoTransformer):
    def forward(self, src: Tensor, trg: Tensor) -> Tensor:
        return super().forward(src, trg)


def hyunwoongko_float64() -> Any:
    """Computes its table in float64, as a program does that sets PyTorch's default dtype."""
    return made(Hyunwoongko, dtype=torch.float64)


def hyunwoongko_float64_eps() -> Any:
    module = hyunwoongko_float64()
    module.encoder.layers[0].norm1.eps = 1e-6
    return module


class InfiniteAttention(Attention):
    """Gives NaN where a query sees no key."""

    def forward(self, x: Tensor, y: Tensor, mask: Tensor, tap: Tap) -> Tensor:
        *projections, output = self.linears
        query, key, value = (
            linear(one).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for linear, one in zip(projections, (x, y, y), strict=True)
        )
        logits = query @ key.mT / math.sqrt(query.shape[-1])
        weights = logits.masked_fill(~mask, -math.inf).softmax(dim=-1)
        return output((weights @ value).transpose(1, 2).flatten(-2))


class HarvardShort(HarvardTransformer):
    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return super().forward(src, tgt)


def harvard_nan() -> Any:
    module = made(HarvardShort)
    for part in module.modules():
        if isinstance(part, Attention):
            part.__class__ = InfiniteAttention
    return module
