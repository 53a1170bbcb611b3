"""Encoder-decoder Transformers of every kind of block, in PyTorch: one class for each, written as its paper has it.

Modules bear the names of our parameters' paths, so that `encoder/layers/self_attention/query/kernel[0]` is
`encoder.layers.0.self_attention.query.weight`. Imports torch alone, but for the recording of activations. Axes: B
batch, S source, T target, Q/K query/key length, D model, F feed-forward, N heads, H head_dim, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from torch_reference.trace import Tap, Trace

D, N, F, LAYERS, LENGTH = 12, 3, 10, 2, 9
SOURCE_VOCAB, TARGET_VOCAB, SOURCE_PAD, TARGET_PAD = 17, 13, 1, 2


class Attention(nn.Module):
    """Multi-head attention (Vaswani et al. 2017, §3.2.2)."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.output = (nn.Linear(D, D) for _ in range(4))

    def forward(self, x: Tensor, y: Tensor, mask: Tensor, tap: Tap) -> Tensor:
        query, key, value = (
            tap(name, projection(z).unflatten(-1, (N, -1)))  # [B, Q, N, H]
            for name, projection, z in (("query", self.query, x), ("key", self.key, y), ("value", self.value, y))
        )
        logits = torch.einsum("bqnh,bknh->bnqk", query, key) / math.sqrt(D // N)
        logits = tap("logits", logits.masked_fill(~mask, torch.finfo(logits.dtype).min))
        weights = tap("weights", logits.softmax(dim=-1))
        context = tap("context", torch.einsum("bnqk,bknh->bqnh", weights, value))
        return tap("output", self.output(context.flatten(2)))


class FeedForward(nn.Module):
    """Two linear maps with an activation between (§3.3)."""

    def __init__(
        self, activation: Callable[[Tensor], Tensor] = functional.relu, biases: tuple[bool, bool] = (True, True)
    ) -> None:
        super().__init__()
        self.activation = activation
        self.hidden, self.output = nn.Linear(D, F, bias=biases[0]), nn.Linear(F, D, bias=biases[1])

    def forward(self, x: Tensor, tap: Tap) -> Tensor:
        return tap("output", self.output(tap("hidden", self.activation(self.hidden(x)))))


class NormedFeedForward(FeedForward):
    """With a norm of the activated hidden layer (Shleifer et al. 2021)."""

    def __init__(self) -> None:
        super().__init__(functional.gelu)
        self.hidden_norm = nn.LayerNorm(F)

    def forward(self, x: Tensor, tap: Tap) -> Tensor:
        hidden = tap("hidden", self.activation(self.hidden(x)))
        return tap("output", self.output(tap("hidden_norm", self.hidden_norm(hidden))))


class Layer(nn.Module):
    """The sublayers of a layer; each kind of block has its own norms, scales and sums."""

    names: tuple[str, ...]
    """Sublayers in order; a decoder's layer has three."""
    stack: str

    def __init__(self, stack: str) -> None:
        super().__init__()
        self.stack = stack
        self.names = ("self_attention", *(["cross_attention"] if stack == "decoder" else []), "feed_forward")
        self.self_attention, self.feed_forward = Attention(), FeedForward()
        if stack == "decoder":
            self.cross_attention = Attention()
        self.make_parts()

    def make_parts(self) -> None:
        """Adds what the kind of block has besides the sublayers."""

    def for_each(self, suffix: str, make: Callable[[], nn.Module], names: tuple[str, ...] | None = None) -> None:
        for name in names or self.names:
            self.add_module(f"{name}_{suffix}", make())

    def forward(self, x: Tensor, inputs: Inputs, tap: Tap) -> Tensor:
        for name in self.names:
            x = self.add(name, x, inputs, tap)
            x = x if name == "feed_forward" else tap(f"{name}_residual", x)
        return tap("output", x)

    def add(self, name: str, x: Tensor, inputs: Inputs, tap: Tap) -> Tensor:
        """Returns the residual stream after a sublayer."""
        raise NotImplementedError

    def of(self, name: str, h: Tensor, inputs: Inputs, tap: Tap) -> Tensor:
        """Returns a sublayer's output for its input h."""
        tap = tap.scope(name)
        if name == "feed_forward":
            return self.feed_forward(h, tap)
        if name == "cross_attention":
            return self.cross_attention(h, inputs.memory, inputs.cross_mask, tap)
        return self.self_attention(h, h, inputs.self_mask, tap)

    def normed(self, name: str, x: Tensor, tap: Tap) -> Tensor:
        return tap(name, self.get_submodule(name)(x))


@dataclass
class Inputs:
    """What a layer reads besides the residual stream. Masks are True where a query may attend."""

    self_mask: Tensor
    memory: Tensor | None = None
    cross_mask: Tensor | None = None


class Scale(nn.Module):
    """A trained scale of each feature."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(D))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


class Factor(nn.Module):
    """A trained number."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


# --- the kinds of block


class PostNorm(Layer):
    """Norms after the residual, as in the paper."""

    def make_parts(self) -> None:
        self.for_each("norm", lambda: nn.LayerNorm(D))

    def add(self, name: str, x: Tensor, inputs: Inputs, tap: Tap) -> Tensor:
        return self.normed(f"{name}_norm", x + self.of(name, x, inputs, tap), tap)


class PreNorm(Layer):
    """Norms before the sublayers (Xiong et al. 2020)."""

    def make_parts(self) -> None:
        self.for_each("norm", lambda: nn.LayerNorm(D))

    def add(self, name: str, x: Tensor, inputs: Inputs, tap: Tap) -> Tensor:
        return x + self.of(name, self.normed(f"{name}_norm", x, tap), inputs, tap)


class Gelu(PostNorm):
    """Activates its hidden layer with GELU."""

    def make_parts(self) -> None:
        super().make_parts()
        self.feed_forward = FeedForward(functional.gelu)


class OneBias(PostNorm):
    """Has a bias before the activation alone."""

    def make_parts(self) -> None:
        super().make_parts()
        self.feed_forward = FeedForward(biases=(True, False))


class UnitOffsetNorm(nn.Module):
    """RMSNorm times 1 + weight, as Gemma has it (Zhang & Sennrich 2019)."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(D))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + 1e-5) * (1.0 + self.weight)


class Gemma(PreNorm):
    """Norms before the sublayers, with 1 more than the scales that are stored."""

    def make_parts(self) -> None:
        self.for_each("norm", UnitOffsetNorm)


class DeepNorm(PostNorm):
    """norm(α x + f(x)), with an α of each stack (Wang et al. 2022)."""

    def add(self, name: str, x: Tensor, inputs: Inputs, tap: Tap) -> Tensor:
        alpha = {"encoder": 1.7, "decoder": 1.3}[self.stack]
        return self.normed(f"{name}_norm", alpha * x + self.of(name, x, inputs, tap), tap)


class ScaledBranch(PreNorm):
    """x + c f(norm(x)), as in programs that divide every sublayer's output by the root of the depth."""

    def add(self, name: str, x: Tensor, inputs: Inputs, tap: Tap) -> Tensor:
        return x + 0.25 * self.of(name, self.normed(f"{name}_norm", x, tap), inputs, tap)


class LayerScale(PreNorm):
    """x + λ ⊙ f(norm(x)) (Touvron et al. 2021)."""

    def make_parts(self) -> None:
        super().make_parts()
        self.for_each("output_scale", Scale)

    def add(self, name: str, x: Tensor, inputs: Inputs, tap: Tap) -> Tensor:
        y = self.of(name, self.normed(f"{name}_norm", x, tap), inputs, tap)
        return x + self.get_submodule(f"{name}_output_scale")(y)


class ReZero(Layer):
    """x + a f(x), without norms (Bachlechner et al. 2020)."""

    def make_parts(self) -> None:
        self.for_each("output_scale", Factor)

    def add(self, name: str, x: Tensor, inputs: Inputs, tap: Tap) -> Tensor:
        return x + self.get_submodule(f"{name}_output_scale")(self.of(name, x, inputs, tap))


class ResScale(PreNorm):
    """λ ⊙ x + f(norm(x)) at the feed-forward (Shleifer et al. 2021)."""

    def make_parts(self) -> None:
        super().make_parts()
        self.for_each("residual_scale", Scale, ("feed_forward",))

    def add(self, name: str, x: Tensor, inputs: Inputs, tap: Tap) -> Tensor:
        y = self.of(name, self.normed(f"{name}_norm", x, tap), inputs, tap)
        return (self.feed_forward_residual_scale(x) if name == "feed_forward" else x) + y


class Sandwich(PreNorm):
    """x + norm(f(norm(x))) (Ding et al. 2021)."""

    def make_parts(self) -> None:
        super().make_parts()
        self.for_each("output_norm", lambda: nn.LayerNorm(D))

    def add(self, name: str, x: Tensor, inputs: Inputs, tap: Tap) -> Tensor:
        y = self.of(name, self.normed(f"{name}_norm", x, tap), inputs, tap)
        return x + self.normed(f"{name}_output_norm", y, tap)


class OutputNorm(Layer):
    """x + norm(f(x)): norms of the sublayers' outputs alone."""

    def make_parts(self) -> None:
        self.for_each("output_norm", lambda: nn.LayerNorm(D))

    def add(self, name: str, x: Tensor, inputs: Inputs, tap: Tap) -> Tensor:
        return x + self.normed(f"{name}_output_norm", self.of(name, x, inputs, tap), tap)


class NormFormer(PreNorm):
    """Norms after the attentions' output projections, and amid the feed-forward (Shleifer et al. 2021)."""

    def make_parts(self) -> None:
        super().make_parts()
        self.feed_forward = NormedFeedForward()
        self.for_each("output_norm", lambda: nn.LayerNorm(D), self.names[:-1])

    def add(self, name: str, x: Tensor, inputs: Inputs, tap: Tap) -> Tensor:
        y = self.of(name, self.normed(f"{name}_norm", x, tap), inputs, tap)
        return x + (y if name == "feed_forward" else self.normed(f"{name}_output_norm", y, tap))


class OneNorm(PostNorm):
    """One norm, used after every sublayer of the layer."""

    def make_parts(self) -> None:
        self.shared_norm = nn.LayerNorm(D)

    def add(self, name: str, x: Tensor, inputs: Inputs, tap: Tap) -> Tensor:
        return tap(f"{name}_norm", self.shared_norm(x + self.of(name, x, inputs, tap)))


class ParallelOneNorm(Layer):
    """x + Σ f(norm(x)), all sublayers on the same normed input (GPT-J)."""

    def make_parts(self) -> None:
        self.shared_norm = nn.LayerNorm(D)

    def forward(self, x: Tensor, inputs: Inputs, tap: Tap) -> Tensor:
        h = self.normed("shared_norm", x, tap)
        for name in self.names:
            x = x + self.of(name, h, inputs, tap)
        return tap("output", x)


class ParallelOwnNorms(PreNorm):
    """x + Σ f(norm_f(x)), each sublayer with a norm of its own (GPT-NeoX)."""

    def forward(self, x: Tensor, inputs: Inputs, tap: Tap) -> Tensor:
        outputs = [self.of(name, self.normed(f"{name}_norm", x, tap), inputs, tap) for name in self.names]
        return tap("output", x + sum(outputs))


class ParallelScaled(ParallelOwnNorms):
    """The same with the sum of the outputs divided by the root of their number."""

    def forward(self, x: Tensor, inputs: Inputs, tap: Tap) -> Tensor:
        outputs = [self.of(name, self.normed(f"{name}_norm", x, tap), inputs, tap) for name in self.names]
        return tap("output", x + sum(outputs) / math.sqrt(len(outputs)))


# --- the model around them


class Stack(nn.Module):
    """Token vectors plus trained positions, the layers, and a norm or none.

    Args:
      shares_layers: one layer runs LAYERS times (Dehghani et al. 2019; Lan et al. 2020).
      scales_positions: positions are multiplied by half a trained number (SpeechT5's alpha, Ao et al. 2022).
      trains_positions: False: they are given with each call.
    """

    def __init__(
        self,
        name: str,
        layer: type[Layer],
        final_norm: bool,
        shares_layers: bool,
        scales_positions: bool,
        trains_positions: bool = True,
    ) -> None:
        super().__init__()
        self.times = LAYERS if shares_layers else 1
        if trains_positions:
            self.positions = nn.Embedding(LENGTH, D)
        self.position_scale = Factor() if scales_positions else None
        self.layers = nn.ModuleList(layer(name) for _ in range(1 if shares_layers else LAYERS))
        self.final_norm = nn.LayerNorm(D) if final_norm else nn.Identity()

    def forward(self, vectors: Tensor, inputs: Inputs, tap: Tap, table: Tensor | None = None) -> Tensor:
        vectors = tap("token_embedding", vectors)
        table = self.positions.weight if table is None else table
        positions = tap("positions", table[None, : vectors.shape[1]])
        if self.position_scale is not None:
            positions = self.position_scale(0.5 * positions)
        x = tap("embedding", vectors + positions)
        for i, layer in enumerate([*self.layers] * self.times):
            x = layer(x, inputs, tap.scope(f"layers.{i}"))
        return tap("output", self.final_norm(x))


class Constants(nn.Module):
    """Holds the sinusoids of the encoder (Vaswani et al. 2017, §3.5)."""

    def __init__(self) -> None:
        super().__init__()
        angles = torch.arange(LENGTH)[:, None] / 10000.0 ** (torch.arange(0, D, 2) / D)
        self.register_buffer("encoder_positions", torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1))


class Transformer(nn.Module):
    """Maps source_ids [B, S] and decoder_input_ids [B, T] to logits [B, T, V].

    Args:
      has_sinusoids: the encoder's positions are sinusoids, and the decoder's are trained.
    """

    def __init__(
        self,
        encoder: type[Layer],
        decoder: type[Layer] | None = None,
        final_norms: tuple[bool, bool] = (False, False),
        *,
        shares_layers: bool = False,
        scales_positions: bool = False,
        has_sinusoids: bool = False,
        embedding_factors: tuple[float, float] = (1.0, 1.0),
        logits_factor: float = 1.0,
    ) -> None:
        super().__init__()
        self.factors, self.logits_factor = embedding_factors, logits_factor
        self.constants = Constants() if has_sinusoids else None
        self.source_embedding = nn.Embedding(SOURCE_VOCAB, D)
        self.target_embedding = nn.Embedding(TARGET_VOCAB, D)
        of_both = shares_layers, scales_positions
        self.encoder = Stack("encoder", encoder, final_norms[0], *of_both, trains_positions=not has_sinusoids)
        self.decoder = Stack("decoder", decoder or encoder, final_norms[1], *of_both)
        self.head = nn.Linear(D, TARGET_VOCAB)

    def forward(self, source_ids: Tensor, decoder_input_ids: Tensor, trace: Trace | None = None) -> Tensor:
        tap, length = Tap(trace), decoder_input_ids.shape[1]
        source_is_real = (source_ids != SOURCE_PAD)[:, None, None, :]
        target_is_real = (decoder_input_ids != TARGET_PAD)[:, None, None, :]
        encoder_self = tap("mask.encoder_self", source_is_real)
        decoder_self = tap("mask.decoder_self", target_is_real & torch.ones(length, length, dtype=torch.bool).tril())
        cross = tap("mask.cross", source_is_real)
        vectors = self.factors[0] * self.source_embedding(source_ids)
        table = None if self.constants is None else self.constants.encoder_positions
        memory = self.encoder(vectors, Inputs(encoder_self), tap.scope("encoder"), table)
        inputs = Inputs(decoder_self, memory, cross)
        vectors = self.factors[1] * self.target_embedding(decoder_input_ids)
        output = self.decoder(vectors, inputs, tap.scope("decoder"))
        return tap("logits", self.logits_factor * self.head(output))
