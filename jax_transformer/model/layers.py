"""The layers of the two stacks (Vaswani et al. 2017, §3.1 and §3.3): sublayers with norms, dropout and residuals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.specs import Stack as StackConfig
from jax_transformer.model.activations import ACTIVATIONS
from jax_transformer.model.attention import Attention, AttentionTerms
from jax_transformer.model.dropout import Site
from jax_transformer.model.initializers import KeyStream
from jax_transformer.model.norms import Norm, Scale, sublayer_scale
from jax_transformer.model.projections import Projection, StepProjections, map_each
from jax_transformer.model.scope import Scope
from jax_transformer.model.sharding import constrain


class FeedForward(nnx.Module):
    """Applies two linear maps with an activation between; gated: activation(gate(x)) ⊙ hidden(x) (Shazeer 2020).

    PReLU's slope is one for all units, and begins at 0.25 (He et al. 2015).
    """

    def __init__(self, config: TransformerConfig, stack: StackConfig, keys: KeyStream) -> None:
        self.config, self.stack = config, stack
        features, hidden, use_bias = (config.d_model,), (stack.d_ff,), config.feed_forward_bias
        self.hidden: Projection | StepProjections = Projection(config, features, hidden, keys, use_bias=use_bias)
        if config.feed_forward_gated:
            self.gate: Projection | StepProjections = Projection(config, features, hidden, keys, use_bias=use_bias)
        self.output: Projection | StepProjections = Projection(
            config, hidden, features, keys, use_bias=stack.feed_forward_output_bias, wide="inputs"
        )
        if config.feed_forward_hidden_norm:
            self.hidden_norm = Norm(config, stack.d_ff, "width")
        if stack.activation == "prelu":
            self.slope = nnx.Param(jnp.full(1, 0.25, jnp.float32))

    def __call__(self, x: jax.Array, scope: Scope) -> jax.Array:
        """Returns the sublayer's output [B, T, D] for x [B, T, D]."""
        if self.config.feed_forward_gated:
            gate, hidden = map_each([self.gate, self.hidden], x)
            hidden = self._activate(gate) * hidden  # [B, T, F]
        else:
            hidden = self._activate(self.hidden(x))  # [B, T, F]
        rate = self.config.feed_forward_dropout_rate
        rate = self.config.dropout_rate if rate is None else rate
        hidden = scope.dropout(scope.tap("hidden", hidden), rate, Site.HIDDEN)
        if self.config.feed_forward_hidden_norm:
            hidden = scope.tap("hidden_norm", self.hidden_norm(hidden))
        return scope.tap("output", self.output(hidden))  # [B, T, D]

    def _activate(self, x: jax.Array) -> jax.Array:
        learned = self.stack.activation == "prelu"
        slope = self.slope[...].astype(x.dtype) if learned else self.stack.activation_slope
        return ACTIVATIONS[self.stack.activation](x, slope)


Sublayer = Callable[[jax.Array, Scope], jax.Array]
"""(input [B, T, D], scope) → output [B, T, D]."""


class Layer(nnx.Module):
    """Wraps sublayers in norm, dropout and residual; both stacks build their layers on it."""

    def __init__(self, config: TransformerConfig, stack: StackConfig, attentions: list[Site], keys: KeyStream) -> None:
        self.config, self.stack = config, stack
        has_norms = config.norm_kind != "none" and stack.norm_placement != "none"
        for site in [*attentions, Site.FEED_FORWARD] if config.feed_forward else attentions:
            name = site.name.lower()
            if site is Site.FEED_FORWARD:
                self.feed_forward = FeedForward(config, stack, keys)
            else:
                setattr(self, name, Attention(config, stack, keys, name))
            if has_norms and not config.share_norms:
                setattr(self, f"{name}_norm", Norm(config))
            if name in config.normed_outputs:
                setattr(self, f"{name}_output_norm", Norm(config))
            if config.learned_residual_scale in ("all", name):
                setattr(self, f"{name}_residual_scale", Scale(config, 1.0))
            if config.learned_sublayer_scale != "none":
                setattr(self, f"{name}_output_scale", sublayer_scale(config))
        if has_norms and config.share_norms:
            self.shared_norm = Norm(config)

    def apply(self, x: jax.Array, sublayers: Mapping[Site, Sublayer], scope: Scope) -> jax.Array:
        """Returns the layer's output [B, T, D] for x [B, T, D]: its sublayers one after the other, or side by side."""
        if self.config.parallel_residual:
            return scope.tap("output", self._side_by_side(x, sublayers, scope))
        for site, sublayer in sublayers.items():
            x = self._residual(site, x, sublayer, scope)
        return scope.tap("output", x)

    def _residual(self, site: Site, x: jax.Array, sublayer: Sublayer, scope: Scope) -> jax.Array:
        """Returns x + sublayer(norm(x)) with the norm placed before, norm(x + sublayer(x)) with it placed after."""
        name = site.name.lower()
        h = self._norm(f"{name}_norm", x, scope) if self.stack.norm_placement == "pre" else x
        x = self._skip(name, x) + self._branch(site, sublayer(h, scope(site)), scope)
        x = self._norm(f"{name}_norm", x, scope) if self.stack.norm_placement == "post" else x
        x = constrain(x, "rows", None, None)
        return x if site is Site.FEED_FORWARD else scope.tap(f"{name}_residual", x)

    def _side_by_side(self, x: jax.Array, sublayers: Mapping[Site, Sublayer], scope: Scope) -> jax.Array:
        """Returns x plus the outputs of all sublayers, each of which reads x through its own norm or the shared one."""
        total = self._skip("", x)
        shared = self._norm("shared_norm", x, scope) if self.config.share_norms else None
        for site, sublayer in sublayers.items():
            own = self._norm(f"{site.name.lower()}_norm", x, scope) if shared is None else shared
            total = total + self._branch(site, sublayer(own, scope(site)), scope)
        return constrain(total, "rows", None, None)

    def _skip(self, sublayer: str, x: jax.Array) -> jax.Array:
        """Returns the residual stream as it enters the sum at a sublayer: scaled, if the config scales it."""
        x = x if self.stack.residual_factor == 1.0 else x * self.stack.residual_factor
        return self._through(f"{sublayer}_residual_scale", x)

    def _branch(self, site: Site, y: jax.Array, scope: Scope) -> jax.Array:
        """Returns a sublayer's output as it enters the sum: after its norm, dropout and scales, if there are any."""
        name = site.name.lower()
        if hasattr(self, f"{name}_output_norm"):
            y = scope.tap(f"{name}_output_norm", self._through(f"{name}_output_norm", y))
        y = scope(site).dropout(y, self.config.dropout_rate, Site.RESIDUAL)
        y = y if self.stack.sublayer_factor == 1.0 else y * self.stack.sublayer_factor
        return self._through(f"{name}_output_scale", y)

    def _through(self, module: str, x: jax.Array) -> jax.Array:
        """Returns x through the module of this name, or x if there is none."""
        return getattr(self, module)(x) if hasattr(self, module) else x

    def _norm(self, name: str, x: jax.Array, scope: Scope) -> jax.Array:
        """Returns x through the norm of this name, or the shared one."""
        module = "shared_norm" if self.config.share_norms else name
        return scope.tap(name, getattr(self, module)(x)) if hasattr(self, module) else x


class EncoderLayer(Layer):
    """Applies self-attention and feed-forward."""

    def __init__(self, config: TransformerConfig, keys: KeyStream) -> None:
        super().__init__(config, config.encoder, [Site.SELF_ATTENTION], keys)

    def __call__(self, x: jax.Array, terms: AttentionTerms, scope: Scope) -> jax.Array:
        """Returns the layer's output [B, S, D] for x [B, S, D]."""
        sublayers: dict[Site, Sublayer] = {
            Site.SELF_ATTENTION: lambda h, scope: self.self_attention(h, h, terms, scope)
        }
        if self.config.feed_forward:
            sublayers[Site.FEED_FORWARD] = self.feed_forward
        return self.apply(x, sublayers, scope)


class DecoderTerms(NamedTuple):
    """Holds the terms of a decoder layer's two attentions."""

    self_attention: AttentionTerms
    cross_attention: AttentionTerms


class DecoderLayer(Layer):
    """Applies causal self-attention, attention over the encoder's output, and feed-forward."""

    def __init__(self, config: TransformerConfig, keys: KeyStream) -> None:
        super().__init__(config, config.decoder, [Site.SELF_ATTENTION, Site.CROSS_ATTENTION], keys)

    def __call__(self, x: jax.Array, encoder_output: jax.Array, terms: DecoderTerms, scope: Scope) -> jax.Array:
        """Returns the layer's output [B, T, D] for x [B, T, D] and encoder_output [B, S, D]."""
        sublayers: dict[Site, Sublayer] = {
            Site.SELF_ATTENTION: lambda h, scope: self.self_attention(h, h, terms.self_attention, scope),
            Site.CROSS_ATTENTION: lambda h, scope: self.cross_attention(
                h, encoder_output, terms.cross_attention, scope
            ),
        }
        if self.config.feed_forward:
            sublayers[Site.FEED_FORWARD] = self.feed_forward
        return self.apply(x, sublayers, scope)
