"""The layers of the two stacks (Vaswani et al. 2017, §3.1 and §3.3): each sublayer with its norm, dropout and
residual."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
from flax import nnx

from jax_transformer.config.model import StackConfig, TransformerConfig
from jax_transformer.model.attention import Attention, Bias
from jax_transformer.model.dropout import DropoutKey, Site, dropout, fold
from jax_transformer.model.initializers import KeyStream
from jax_transformer.model.masks import Mask, Masks
from jax_transformer.model.norms import Norm
from jax_transformer.model.projections import Projection, StepProjections
from jax_transformer.model.trace import Tap

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "relu": jax.nn.relu,
    "gelu": partial(jax.nn.gelu, approximate=False),
    "gelu_tanh": partial(jax.nn.gelu, approximate=True),
    "silu": jax.nn.silu,
    "none": lambda x: x,
}


class FeedForward(nnx.Module):
    """Two linear maps with an activation between; gated: activation(gate(x)) ⊙ hidden(x) (Shazeer 2020)."""

    def __init__(self, config: TransformerConfig, stack: StackConfig, keys: KeyStream) -> None:
        self.config = config
        features, hidden, use_bias = (config.d_model,), (stack.d_ff,), config.feed_forward_bias
        self.hidden: Projection | StepProjections = Projection(config, features, hidden, use_bias, keys)
        if config.feed_forward_gated:
            self.gate: Projection | StepProjections = Projection(config, features, hidden, use_bias, keys)
        self.output: Projection | StepProjections = Projection(config, hidden, features, use_bias, keys)

    def __call__(self, x: jax.Array, tap: Tap, dropout_key: DropoutKey) -> jax.Array:
        """x [B, T, D] → [B, T, D]."""
        activation = ACTIVATIONS[self.config.activation]
        if self.config.feed_forward_gated:
            hidden = activation(self.gate(x)) * self.hidden(x)
        else:
            hidden = activation(self.hidden(x))
        rate = self.config.feed_forward_dropout_rate
        rate = self.config.dropout_rate if rate is None else rate
        hidden = dropout(tap("hidden", hidden), rate, fold(dropout_key, Site.HIDDEN))  # [B, T, F]
        return tap("output", self.output(hidden))


class Layer(nnx.Module):
    """What the sublayers of both stacks share: x + sublayer(norm(x)), or norm(x + sublayer(x)) with the norm placed
    after."""

    def __init__(self, config: TransformerConfig, stack: StackConfig, sites: list[Site], keys: KeyStream) -> None:
        self.config = config
        for site in sites:
            name = site.name.lower()
            if site is Site.FEED_FORWARD:
                self.feed_forward = FeedForward(config, stack, keys)
            else:
                has_bias = (
                    config.position_kind == "relative_bias"
                    and config.relative_bias_per_layer
                    and site is Site.SELF_ATTENTION
                )
                setattr(self, name, Attention(config, stack, keys, has_bias))
            if config.norm_kind != "none":
                setattr(self, f"{name}_norm", Norm(config))

    def before(self, site: Site, x: jax.Array, tap: Tap) -> jax.Array:
        """What the sublayer reads."""
        return self._norm(site, x, tap) if self.config.norm_placement == "pre" else x

    def after(self, site: Site, x: jax.Array, y: jax.Array, tap: Tap, dropout_key: DropoutKey) -> jax.Array:
        """The residual stream x [B, T, D] with the sublayer's output y taken in."""
        x = x + dropout(y, self.config.dropout_rate, fold(fold(dropout_key, site), Site.RESIDUAL))
        x = self._norm(site, x, tap) if self.config.norm_placement == "post" else x
        return x if site is Site.FEED_FORWARD else tap(f"{site.name.lower()}_residual", x)

    def _norm(self, site: Site, x: jax.Array, tap: Tap) -> jax.Array:
        if self.config.norm_kind == "none":
            return x
        name = f"{site.name.lower()}_norm"
        return tap(name, getattr(self, name)(x))

    def transform(self, x: jax.Array, tap: Tap, dropout_key: DropoutKey) -> jax.Array:
        """The feed-forward sublayer, where there is one; x is then the layer's output."""
        if self.config.feed_forward:
            site = Site.FEED_FORWARD
            y = self.feed_forward(self.before(site, x, tap), tap.scope("feed_forward"), fold(dropout_key, site))
            x = self.after(site, x, y, tap, dropout_key)
        return tap("output", x)


def _sites(config: TransformerConfig, *attentions: Site) -> list[Site]:
    return [*attentions, Site.FEED_FORWARD] if config.feed_forward else [*attentions]


class EncoderLayer(Layer):
    """Self-attention, then feed-forward."""

    def __init__(self, config: TransformerConfig, keys: KeyStream) -> None:
        super().__init__(config, config.encoder, _sites(config, Site.SELF_ATTENTION), keys)

    def __call__(self, x: jax.Array, mask: Mask, bias: Bias, tap: Tap, dropout_key: DropoutKey) -> jax.Array:
        """x [B, S, D] → [B, S, D]; `bias` as of the stack."""
        site = Site.SELF_ATTENTION
        h = self.before(site, x, tap)
        y = self.self_attention(h, h, mask, bias, tap.scope("self_attention"), fold(dropout_key, site))
        x = self.after(site, x, y, tap, dropout_key)
        return self.transform(x, tap, dropout_key)


class DecoderLayer(Layer):
    """Causal self-attention, attention over the encoder's output, then feed-forward."""

    def __init__(self, config: TransformerConfig, keys: KeyStream) -> None:
        super().__init__(config, config.decoder, _sites(config, Site.SELF_ATTENTION, Site.CROSS_ATTENTION), keys)

    def __call__(
        self, x: jax.Array, encoder_output: jax.Array, masks: Masks, bias: Bias, tap: Tap, dropout_key: DropoutKey
    ) -> jax.Array:
        """x [B, T, D], encoder_output [B, S, D] → [B, T, D]; `bias` as of the stack."""
        site = Site.SELF_ATTENTION
        h = self.before(site, x, tap)
        y = self.self_attention(
            h, h, masks.decoder_self, bias, tap.scope("self_attention"), fold(dropout_key, site), masks.decoder_exists
        )
        x = self.after(site, x, y, tap, dropout_key)

        site = Site.CROSS_ATTENTION
        h = self.before(site, x, tap)
        y = self.cross_attention(
            h, encoder_output, masks.cross, None, tap.scope("cross_attention"), fold(dropout_key, site)
        )
        x = self.after(site, x, y, tap, dropout_key)
        return self.transform(x, tap, dropout_key)
