"""The layers of the two stacks (Vaswani et al. 2017, §3.1 and §3.3): sublayers with norms, dropout and residuals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from jax_transformer.config import specs
from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.plan import Sublayer, SublayerName, plan
from jax_transformer.config.specs import Stack
from jax_transformer.model.activations import ACTIVATIONS
from jax_transformer.model.attention import Attention
from jax_transformer.model.dropout import Site
from jax_transformer.model.initializers import KeyStream
from jax_transformer.model.norms import Norm, Scale, output_scale
from jax_transformer.model.projections import Projection, StepProjections, map_each
from jax_transformer.model.scope import Scope
from jax_transformer.model.sharding import constrain
from jax_transformer.model.terms import AttentionTerms


class FeedForward(nnx.Module):
    """Applies two linear maps with an activation between; gated: activation(gate(x)) ⊙ hidden(x) (Shazeer 2020).

    PReLU's slope is one for all units, and begins at 0.25 (He et al. 2015).
    """

    def __init__(self, config: TransformerConfig, stack: Stack, part: specs.FeedForward, keys: KeyStream) -> None:
        self.part, self.dropout_rate = part, stack.dropout.at("feed_forward")
        features, hidden, use_bias = (stack.d_model,), (part.width,), part.bias
        self.hidden: Projection | StepProjections = Projection(config, features, hidden, keys, use_bias=use_bias)
        if part.gated:
            self.gate: Projection | StepProjections = Projection(config, features, hidden, keys, use_bias=use_bias)
        output_bias = part.bias if part.output_bias is None else part.output_bias
        self.output: Projection | StepProjections = Projection(
            config, hidden, features, keys, use_bias=output_bias, wide="inputs"
        )
        if part.hidden_norm:
            self.hidden_norm = Norm(stack, part.width, "width")
        if part.activation == "prelu":
            self.slope = nnx.Param(jnp.full(1, 0.25, jnp.float32))

    def __call__(self, x: jax.Array, scope: Scope) -> jax.Array:
        """Returns the sublayer's output [B, T, D] for x [B, T, D]."""
        if self.part.gated:
            gate, hidden = map_each([self.gate, self.hidden], x)
            hidden = self._activate(gate) * hidden  # [B, T, F]
        else:
            hidden = self._activate(self.hidden(x))  # [B, T, F]
        hidden = scope.dropout(scope.tap("hidden", hidden), self.dropout_rate, Site.HIDDEN)
        if self.part.hidden_norm:
            hidden = scope.tap("hidden_norm", self.hidden_norm(hidden))
        return scope.tap("output", self.output(hidden))  # [B, T, D]

    def _activate(self, x: jax.Array) -> jax.Array:
        is_trained = self.part.activation == "prelu"
        slope = self.slope[...].astype(x.dtype) if is_trained else self.part.slope
        return ACTIVATIONS[self.part.activation](x, slope)


Call = Callable[[jax.Array, Scope], jax.Array]
"""Computes a sublayer: (input [B, T, D], scope) → output [B, T, D]."""
SITES = {
    "self_attention": Site.SELF_ATTENTION,
    "cross_attention": Site.CROSS_ATTENTION,
    "feed_forward": Site.FEED_FORWARD,
}


class Layer(nnx.Module):
    """Wraps sublayers in norm, dropout and residual; both stacks build their layers on it."""

    def __init__(self, config: TransformerConfig, stack: Stack, keys: KeyStream) -> None:
        self.stack = stack
        for sublayer in plan(stack):
            part: nnx.Module
            if isinstance(sublayer.part, specs.FeedForward):
                part = FeedForward(config, stack, sublayer.part, keys)
            else:
                part = Attention(config, stack, sublayer.part, keys, sublayer.name)
            setattr(self, sublayer.name, part)
            if sublayer.norm == f"{sublayer.name}_norm":
                setattr(self, sublayer.norm, Norm(stack))
            if sublayer.output_norm:
                setattr(self, sublayer.output_norm, Norm(stack))
            if sublayer.stream_scale:
                setattr(self, sublayer.stream_scale, Scale(stack, 1.0))
            if sublayer.output_scale:
                setattr(self, sublayer.output_scale, output_scale(stack))
        if any(sublayer.norm == "shared_norm" for sublayer in plan(stack)):
            self.shared_norm = Norm(stack)

    def apply(self, x: jax.Array, calls: Mapping[SublayerName, Call], scope: Scope) -> jax.Array:
        """Returns the layer's output [B, T, D] for x [B, T, D]: its sublayers one after the other, or side by side."""
        if self.stack.residual.parallel:
            return scope.tap("output", self._side_by_side(x, calls, scope))
        for sublayer in plan(self.stack):
            x = self._residual(sublayer, x, calls[sublayer.name], scope)
        return scope.tap("output", x)

    def _residual(self, sublayer: Sublayer, x: jax.Array, call: Call, scope: Scope) -> jax.Array:
        """Returns x + sublayer(norm(x)) with the norm placed before, norm(x + sublayer(x)) with it placed after."""
        name = sublayer.name
        h = self._norm(sublayer, x, scope) if sublayer.placement == "pre" else x
        y = self._branch(sublayer, call(h, scope(SITES[name])), scope)
        x = self._through(sublayer.stream_scale, self._skip(x)) + y
        x = self._norm(sublayer, x, scope) if sublayer.placement == "post" else x
        x = constrain(x, "rows", None, None)
        return x if name == "feed_forward" else scope.tap(f"{name}_residual", x)

    def _side_by_side(self, x: jax.Array, calls: Mapping[SublayerName, Call], scope: Scope) -> jax.Array:
        """Returns x plus the outputs of all sublayers, each of which reads x through its own norm or the shared one."""
        total = self._skip(x)
        shared: jax.Array | None = None
        for sublayer in plan(self.stack):
            if sublayer.norm != "shared_norm":
                h = self._norm(sublayer, x, scope)
            else:
                h = shared = scope.tap("shared_norm", self.shared_norm(x)) if shared is None else shared
            total = total + self._branch(sublayer, calls[sublayer.name](h, scope(SITES[sublayer.name])), scope)
        return constrain(total, "rows", None, None)

    def _skip(self, x: jax.Array) -> jax.Array:
        """Returns the residual stream as it enters a sum, scaled if the stack scales it."""
        factor = self.stack.residual.stream_factor
        return x if factor == 1.0 else x * factor

    def _branch(self, sublayer: Sublayer, y: jax.Array, scope: Scope) -> jax.Array:
        """Returns a sublayer's output after the optional norm, dropout and scales, ready to be added."""
        if sublayer.output_norm:
            y = scope.tap(sublayer.output_norm, self._through(sublayer.output_norm, y))
        y = scope(SITES[sublayer.name]).dropout(y, self.stack.dropout.rate, Site.RESIDUAL)
        factor = self.stack.residual.output_factor
        y = y if factor == 1.0 else y * factor
        return self._through(sublayer.output_scale, y)

    def _through(self, module: str, x: jax.Array) -> jax.Array:
        """Returns x through the module of this name, or x for no name."""
        return getattr(self, module)(x) if module else x

    def _norm(self, sublayer: Sublayer, x: jax.Array, scope: Scope) -> jax.Array:
        """Returns x through the sublayer's norm, if it has one."""
        return scope.tap(f"{sublayer.name}_norm", self._through(sublayer.norm, x)) if sublayer.norm else x


class EncoderLayer(Layer):
    """Applies self-attention and feed-forward."""

    def __init__(self, config: TransformerConfig, keys: KeyStream) -> None:
        super().__init__(config, config.encoder, keys)

    def __call__(self, x: jax.Array, terms: AttentionTerms, scope: Scope) -> jax.Array:
        """Returns the layer's output [B, S, D] for x [B, S, D]."""
        calls: dict[SublayerName, Call] = {"self_attention": lambda h, scope: self.self_attention(h, h, terms, scope)}
        if self.stack.feed_forward is not None:
            calls["feed_forward"] = self.feed_forward
        return self.apply(x, calls, scope)


class DecoderTerms(NamedTuple):
    """Holds the terms of a decoder layer's two attentions."""

    self_attention: AttentionTerms
    cross_attention: AttentionTerms


class DecoderLayer(Layer):
    """Applies causal self-attention, attention over the encoder's output, and feed-forward."""

    def __init__(self, config: TransformerConfig, keys: KeyStream) -> None:
        super().__init__(config, config.decoder, keys)

    def __call__(self, x: jax.Array, encoder_output: jax.Array, terms: DecoderTerms, scope: Scope) -> jax.Array:
        """Returns the layer's output [B, T, D] for x [B, T, D] and encoder_output [B, S, D]."""
        calls: dict[SublayerName, Call] = {
            "self_attention": lambda h, scope: self.self_attention(h, h, terms.self_attention, scope),
            "cross_attention": lambda h, scope: self.cross_attention(h, encoder_output, terms.cross_attention, scope),
        }
        if self.stack.feed_forward is not None:
            calls["feed_forward"] = self.feed_forward
        return self.apply(x, calls, scope)
