"""The layers of the two stacks (Vaswani et al. 2017, §3.1 and §3.3): sublayers with norms, dropout and residuals."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from jax_transformer.config.model import StackConfig, TransformerConfig
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
        self.config = config
        features, hidden, use_bias = (config.d_model,), (stack.d_ff,), config.feed_forward_bias
        self.hidden: Projection | StepProjections = Projection(config, features, hidden, keys, use_bias=use_bias)
        if config.feed_forward_gated:
            self.gate: Projection | StepProjections = Projection(config, features, hidden, keys, use_bias=use_bias)
        self.output: Projection | StepProjections = Projection(
            config, hidden, features, keys, use_bias=use_bias, wide="inputs"
        )
        if config.activation == "prelu":
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
        return scope.tap("output", self.output(hidden))  # [B, T, D]

    def _activate(self, x: jax.Array) -> jax.Array:
        learned = self.config.activation == "prelu"
        slope = self.slope[...].astype(x.dtype) if learned else self.config.activation_slope
        return ACTIVATIONS[self.config.activation](x, slope)


class Layer(nnx.Module):
    """Wraps sublayers in norm, dropout and residual; both stacks build their layers on it."""

    def __init__(self, config: TransformerConfig, stack: StackConfig, attentions: list[Site], keys: KeyStream) -> None:
        self.config, self.stack = config, stack
        own_bias = config.position_kind == "relative_bias" and config.relative_bias_per_layer
        for site in [*attentions, Site.FEED_FORWARD] if config.feed_forward else attentions:
            name = site.name.lower()
            if site is Site.FEED_FORWARD:
                self.feed_forward = FeedForward(config, stack, keys)
            else:
                setattr(self, name, Attention(config, stack, keys, own_bias and site is Site.SELF_ATTENTION))
            if config.norm_kind != "none" and stack.norm_placement != "none":
                setattr(self, f"{name}_norm", Norm(config))
            if config.learned_residual_scale in ("all", name):
                setattr(self, f"{name}_residual_scale", Scale(config, 1.0))
            if config.learned_sublayer_scale != "none":
                setattr(self, f"{name}_output_scale", sublayer_scale(config))

    def residual(
        self, site: Site, x: jax.Array, sublayer: Callable[[jax.Array, Scope], jax.Array], scope: Scope
    ) -> jax.Array:
        """Returns x + sublayer(norm(x)) with the norm placed before, norm(x + sublayer(x)) with it placed after."""
        return self.after(site, x, sublayer(self.before(site, x, scope), scope(site)), scope)

    def before(self, site: Site, x: jax.Array, scope: Scope) -> jax.Array:
        """Returns the sublayer's input: the residual stream x [B, T, D], normed if the norm is placed before."""
        return self._norm(site, x, scope) if self.stack.norm_placement == "pre" else x

    def after(self, site: Site, x: jax.Array, y: jax.Array, scope: Scope) -> jax.Array:
        """Returns the residual stream x [B, T, D] plus the sublayer's output y, normed if the norm is placed after."""
        x = self._skip(site, x) + self._branch(site, y, scope)
        x = self._norm(site, x, scope) if self.stack.norm_placement == "post" else x
        x = constrain(x, "rows", None, None)
        return x if site is Site.FEED_FORWARD else scope.tap(f"{site.name.lower()}_residual", x)

    def _skip(self, site: Site, x: jax.Array) -> jax.Array:
        """Returns the residual stream as it enters the sum at a sublayer: scaled, if the config scales it."""
        x = x if self.stack.residual_factor == 1.0 else x * self.stack.residual_factor
        return self._scaled(f"{site.name.lower()}_residual_scale", x)

    def _branch(self, site: Site, y: jax.Array, scope: Scope) -> jax.Array:
        """Returns a sublayer's output as it enters the sum: after dropout, and scaled, if the config scales it."""
        y = scope(site).dropout(y, self.config.dropout_rate, Site.RESIDUAL)
        y = y if self.stack.sublayer_factor == 1.0 else y * self.stack.sublayer_factor
        return self._scaled(f"{site.name.lower()}_output_scale", y)

    def _scaled(self, name: str, x: jax.Array) -> jax.Array:
        return getattr(self, name)(x) if hasattr(self, name) else x

    def _norm(self, site: Site, x: jax.Array, scope: Scope) -> jax.Array:
        if self.config.norm_kind == "none":
            return x
        name = f"{site.name.lower()}_norm"
        return scope.tap(name, getattr(self, name)(x))


class EncoderLayer(Layer):
    """Applies self-attention, then feed-forward."""

    def __init__(self, config: TransformerConfig, keys: KeyStream) -> None:
        super().__init__(config, config.encoder, [Site.SELF_ATTENTION], keys)

    def __call__(self, x: jax.Array, terms: AttentionTerms, scope: Scope) -> jax.Array:
        """Returns the layer's output [B, S, D] for x [B, S, D]."""
        x = self.residual(Site.SELF_ATTENTION, x, lambda h, scope: self.self_attention(h, h, terms, scope), scope)
        x = self.residual(Site.FEED_FORWARD, x, self.feed_forward, scope) if self.config.feed_forward else x
        return scope.tap("output", x)


class DecoderTerms(NamedTuple):
    """Holds the terms of a decoder layer's two attentions."""

    self_attention: AttentionTerms
    cross_attention: AttentionTerms


class DecoderLayer(Layer):
    """Applies causal self-attention, attention over the encoder's output, then feed-forward."""

    def __init__(self, config: TransformerConfig, keys: KeyStream) -> None:
        super().__init__(config, config.decoder, [Site.SELF_ATTENTION, Site.CROSS_ATTENTION], keys)

    def __call__(self, x: jax.Array, encoder_output: jax.Array, terms: DecoderTerms, scope: Scope) -> jax.Array:
        """Returns the layer's output [B, T, D] for x [B, T, D] and encoder_output [B, S, D]."""

        def attend_self(h: jax.Array, scope: Scope) -> jax.Array:
            return self.self_attention(h, h, terms.self_attention, scope)

        def attend_cross(h: jax.Array, scope: Scope) -> jax.Array:
            return self.cross_attention(h, encoder_output, terms.cross_attention, scope)

        x = self.residual(Site.SELF_ATTENTION, x, attend_self, scope)
        x = self.residual(Site.CROSS_ATTENTION, x, attend_cross, scope)
        x = self.residual(Site.FEED_FORWARD, x, self.feed_forward, scope) if self.config.feed_forward else x
        return scope.tap("output", x)
