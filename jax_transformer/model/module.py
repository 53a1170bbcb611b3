"""The model as a module of Flax NNX, for people whose training loop, optimizer and checkpoints are NNX's."""

from __future__ import annotations

from typing import Self

import jax
from flax import nnx

from jax_transformer.config.model import TransformerConfig
from jax_transformer.model import transformer
from jax_transformer.model.arguments import check_config, check_fit, check_rows
from jax_transformer.model.attention import AttentionFunction
from jax_transformer.model.features import SourceInput
from jax_transformer.model.functional import Params, check_vocabularies, forward
from jax_transformer.model.ids import Ids
from jax_transformer.model.initializers import KeyStream
from jax_transformer.model.masks import Masks
from jax_transformer.model.own import MakeFeedForward, replace_attention, replace_feed_forward
from jax_transformer.model.scope import Scope


class Transformer(transformer.Transformer):
    """Holds an encoder-decoder Transformer with its parameters, as a module of Flax NNX.

    It works with `nnx.jit`, `nnx.value_and_grad`, `nnx.split` and Orbax. What training changes is of type `nnx.Param`:
    `nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)`; position tables aren't. `params` is what `apply`, `Model`
    and `save_model` take, and `Transformer.of` the way back.

    Args:
      config: with both vocabulary sizes set.
      rngs: its stream `params` draws the weights with the config's initializer.
      attention: a function of your own, in place of softmax(query · key · scale + bias) · value in every attention:
        (query [B, Q, N, H], key [B, K, N, H], value [B, K, N, W], *, mask, bias, scale, dropout) → contexts
        [B, Q, N, W] in the values' dtype. `mask` is Boolean or None (True: may attend), `bias` is added to the scaled
        logits, or None, and `dropout(weights)` drops weights. None: the library's.
      feed_forward: a function (d_model, rngs) → a module of Flax NNX of your own, which maps [B, T, D] to [B, T, D], in
        place of every feed-forward layer. The config's norms, dropout and residuals stay. None: the library's.

    With either, the module computes logits and gradients. `params` is refused, so that nothing decodes, saves or
    compares such a model as what its config says.

    Raises:
      ValueError: a vocabulary size is not set; an `attention` with an option that only the library computes
        (relative_vectors, logits_cap), or that returns another shape or dtype.

    Example:
      >>> import jax.numpy as jnp
      >>> import jax_transformer as jt
      >>> from flax import nnx
      >>> config = jt.TransformerConfig(source_vocab_size=7, target_vocab_size=5, d_model=4, num_heads=2, d_ff=8)
      >>> model = jt.Transformer(config, rngs=nnx.Rngs(0))
      >>> source_ids, decoder_input_ids = jnp.array([[3, 4, 2, 0]]), jnp.array([[1, 3, 2]])
      >>> logits = nnx.jit(lambda model, *ids: model(*ids))(model, source_ids, decoder_input_ids)
      >>> bool(jnp.allclose(logits, jt.apply(config, model.params, source_ids, decoder_input_ids), atol=1e-6))
      True
    """

    def __init__(
        self,
        config: TransformerConfig,
        *,
        rngs: nnx.Rngs,
        attention: AttentionFunction | None = None,
        feed_forward: MakeFeedForward | None = None,
    ) -> None:
        check_config("Transformer", config)
        check_vocabularies(config)
        keys = KeyStream(rngs.params())
        super().__init__(config, keys)
        stacks = {"encoder": self.encoder, "decoder": self.decoder}
        if attention is not None:
            replace_attention(stacks, attention)
        if feed_forward is not None:
            replace_feed_forward(stacks, feed_forward, keys)
        given = {"attention": attention, "feed_forward": feed_forward}
        self.own = tuple(name for name, part in given.items() if part is not None)
        """Which parts are the caller's own."""

    @classmethod
    def of(cls, config: TransformerConfig, params: Params, *, attention: AttentionFunction | None = None) -> Self:
        """Returns a module with these parameters, which it shares.

        Args:
          params: as `init_params`, `load_model` and `import_checkpoint` make them, or `params` of another module.
          attention: a function of your own; see the class.

        Raises:
          ValueError: the parameters aren't those of the config; see also the class.

        Example:
          >>> import jax
          >>> import jax_transformer as jt
          >>> config = jt.TransformerConfig(source_vocab_size=7, target_vocab_size=5, d_model=4, num_heads=2, d_ff=8)
          >>> params = jt.init_params(config, jax.random.key(0))
          >>> jt.Transformer.of(config, params).params["head"]["kernel"] is params["head"]["kernel"]
          True
        """
        check_config("Transformer.of", config)
        check_vocabularies(config)
        graph, state = nnx.split(nnx.eval_shape(lambda: cls(config, rngs=nnx.Rngs(0), attention=attention)))
        check_fit(params, nnx.to_pure_dict(state))
        model: Self = nnx.merge(graph, nnx.State(params))
        return model

    @property
    def params(self) -> Params:
        """The parameters as a nested dict of arrays, which are the module's own.

        Raises:
          ValueError: parts of the model are the caller's own, which nothing that takes parameters would compute.
        """
        if self.own:
            raise ValueError(
                f"params: expected a model that its config describes; received one with {' and '.join(self.own)} of "
                "your own, which apply, generate and save_model don't know. nnx.state(model) has the parameters"
            )
        params: Params = nnx.to_pure_dict(nnx.state(self))
        return params

    def __call__(
        self,
        source_ids: SourceInput,
        decoder_input_ids: Ids,
        *,
        rngs: nnx.Rngs | None = None,
        masks: Masks | None = None,
    ) -> jax.Array:
        """Computes the logits of every target position, as `apply` does.

        Args:
          source_ids: [B, S] or `Features`, as in `apply`.
          decoder_input_ids: [B, T], the target shifted right by one.
          rngs: its stream `dropout` draws what dropout leaves out. None: nothing is left out.
          masks: see `apply`.

        Returns:
          Logits [B, T, V].

        Raises:
          ValueError: different numbers of rows; more tokens than rows of the position table.
        """
        check_rows("Transformer", source_ids, decoder_input_ids)
        scope = Scope(dropout_key=None if rngs is None else rngs.dropout())
        return forward(self, source_ids, decoder_input_ids, scope, masks)
