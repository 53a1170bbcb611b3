"""The two stacks and the whole model (Vaswani et al. 2017, figure 1).

The parameters of a stack's layers are stacked: every leaf of `layers` has a leading layer axis, and the layers run
under `lax.scan`, or one by one over slices of the same leaves.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jax_transformer.config.model import StackConfig, TransformerConfig
from jax_transformer.model import initializers, positions
from jax_transformer.model.attention import Bias
from jax_transformer.model.decoder_state import DecoderState, empty_state
from jax_transformer.model.dropout import DropoutKey, Site, dropout, fold
from jax_transformer.model.dtypes import compute_dtype
from jax_transformer.model.initializers import KeyStream
from jax_transformer.model.layers import DecoderLayer, EncoderLayer, Layer
from jax_transformer.model.masks import Mask, Masks
from jax_transformer.model.norms import Norm
from jax_transformer.model.projections import Projection
from jax_transformer.model.steps import StepLayer
from jax_transformer.model.trace import Tap, Trace


class Constant(nnx.Variable[jax.Array]):
    """A table that is carried and saved with the parameters, and never trained."""


class Embedding(nnx.Module):
    """A table [V, D], also the head's kernel where they are tied."""

    def __init__(self, config: TransformerConfig, rows: int, pad_id: int | None, keys: KeyStream) -> None:
        self.config, self.pad_id = config, pad_id
        self.embedding = nnx.Param(initializers.embedding(config, next(keys), rows, pad_id))

    def __call__(self, ids: jax.Array) -> jax.Array:
        """ids [B, T] → [B, T, D], scaled as the config says."""
        table = self.embedding[...]
        vectors = table[ids].astype(compute_dtype(self.config, table))
        if self.pad_id is not None and not self.config.trains_pad_embedding:
            is_pad = jnp.equal(ids, self.pad_id)[..., None]
            vectors = jnp.where(is_pad, jax.lax.stop_gradient(vectors), vectors)
        return vectors * math.sqrt(self.config.d_model) if self.config.scale_embedding else vectors


class Constants(nnx.Module):
    """Position tables [rows, D] and, where it is no parameter, the bias of the logits [V]."""

    def __init__(self, config: TransformerConfig) -> None:
        if config.position_kind == "sinusoidal":
            self.encoder_positions = Constant(
                jnp.asarray(positions.sinusoid_table(config, config.encoder), jnp.float32)
            )
            self.decoder_positions = Constant(
                jnp.asarray(positions.sinusoid_table(config, config.decoder), jnp.float32)
            )
        if config.head_bias == "buffer":
            self.head_bias = Constant(jnp.zeros(config.target_vocab_size, jnp.float32))


class Stack(nnx.Module):
    """What encoder and decoder share: embedding the tokens, running the layers, and the final norm."""

    def __init__(
        self,
        config: TransformerConfig,
        stack: StackConfig,
        make_layer: Callable[[TransformerConfig, KeyStream], Layer],
        keys: KeyStream,
    ) -> None:
        self.config, self.stack = config, stack
        self.layers = stack_layers(lambda keys: make_layer(config, keys), stack.num_layers, keys)
        if config.position_kind == "learned":
            self.positions = Embedding(config, positions.table_rows(config, stack), None, keys)
        if config.position_kind == "relative_bias" and not config.relative_bias_per_layer:
            self.relative_bias = positions.RelativeBias(config, stack, keys)
        if stack.embedding_norm != "none":
            self.embedding_norm = Norm(config)
        if config.final_norm:
            self.final_norm = Norm(config)

    def embed(
        self, vectors: jax.Array, table: jax.Array | None, numbers: jax.Array, tap: Tap, dropout_key: DropoutKey
    ) -> jax.Array:
        """Token vectors [B, T, D] plus the rows `numbers` of the position table, normed and dropped out."""
        x = tap("token_embedding", vectors)
        if self.stack.embedding_norm == "before_positions":
            x = self.embedding_norm(x)
        table = self.positions.embedding[...] if self.config.position_kind == "learned" else table
        if table is not None:
            x = x + tap("positions", table[numbers].astype(x.dtype))
        if self.stack.embedding_norm == "after_positions":
            x = self.embedding_norm(x)
        rate = self.config.embedding_dropout_rate
        rate = self.config.dropout_rate if rate is None else rate
        return dropout(tap("embedding", x), rate, fold(dropout_key, Site.EMBEDDING))

    def bias(self, length: int, tap: Tap, position: jax.Array | None = None) -> Bias:
        """What the self-attention logits of every layer get, as `RelativeBias` gives it; None if nothing, or what each
        layer has itself."""
        return tap("position_bias", self.relative_bias(length, position)) if hasattr(self, "relative_bias") else None

    def run(
        self,
        x: jax.Array,
        call: Callable[[Any, jax.Array, Tap, DropoutKey], jax.Array],
        tap: Tap,
        dropout_key: DropoutKey,
    ) -> jax.Array:
        """Runs `call(layer, x, tap, key)` for every layer, then the final norm."""
        graph, parameters = nnx.split(self.layers)
        x = x.astype(jnp.result_type(x, *{compute_dtype(self.config, leaf) for leaf in jax.tree.leaves(parameters)}))
        keys_from = fold(dropout_key, Site.LAYERS)

        def run_layer(x: jax.Array, layer_parameters: Any, index: jax.Array | int, layer_tap: Tap) -> jax.Array:
            return call(nnx.merge(graph, layer_parameters), x, layer_tap, fold(keys_from, index))

        if self.config.layer_loop == "scan" and not tap.intervenes:

            def body(x: jax.Array, layer: tuple[Any, jax.Array]) -> tuple[jax.Array, Trace]:
                layer_parameters, index = layer
                layer_tap = Tap(tap.record)
                return run_layer(x, layer_parameters, index, layer_tap), layer_tap.trace

            body = rematerialise(self.config, body, prevent_cse=False)  # in a loop, nothing could be merged
            x, traces = jax.lax.scan(body, x, (parameters, jnp.arange(self.stack.num_layers)))
            tap.layers(traces, self.stack.num_layers)
        else:
            for i in range(self.stack.num_layers):
                layer_parameters = layer_slice(parameters, i)
                layer_tap = tap.scope(f"layers.{i}")
                if tap.record or tap.intervenes:
                    x = run_layer(x, layer_parameters, i, layer_tap)
                else:
                    x = rematerialise(self.config, partial(run_layer, index=i, layer_tap=layer_tap))(
                        x, layer_parameters
                    )
        return self.finish(x, tap, dropout_key)

    def finish(self, x: jax.Array, tap: Tap, dropout_key: DropoutKey) -> jax.Array:
        x = self.final_norm(x) if self.config.final_norm else x
        return dropout(tap("output", x), self.config.output_dropout_rate, fold(dropout_key, Site.OUTPUT))


def rematerialise(
    config: TransformerConfig, run_layer: Callable[..., Any], prevent_cse: bool = True
) -> Callable[..., Any]:
    """`run_layer`, of which the backward pass computes again what the config says (Chen et al. 2016)."""
    if config.remat == "none":
        return run_layer
    policy = None if config.remat == "all" else jax.checkpoint_policies.dots_with_no_batch_dims_saveable
    return jax.checkpoint(run_layer, prevent_cse=prevent_cse, policy=policy)


def stack_layers(make_layer: Callable[[KeyStream], Layer], count: int, keys: KeyStream) -> Layer:
    """`count` layers as one module whose every parameter has a leading axis [count]."""
    graph, _ = nnx.split(nnx.eval_shape(lambda: make_layer(KeyStream(jax.random.key(0)))))
    layer_keys = jax.random.split(next(keys), count)
    return nnx.merge(graph, jax.vmap(lambda key: nnx.state(make_layer(KeyStream(key))))(layer_keys))


def layer_slice(stacked: Any, index: int) -> Any:
    """Layer `index` of stacked leaves."""
    return jax.tree.map(lambda leaf: leaf[index], stacked)


@functools.cache
def _step_graph(config: TransformerConfig) -> nnx.GraphDef[StepLayer]:
    """Of the layers that `Transformer.decoder_layers` gives."""
    return nnx.split(nnx.eval_shape(lambda: StepLayer(DecoderLayer(config, KeyStream(jax.random.key(0))))))[0]


class Transformer(nnx.Module):
    """Embeddings, the two stacks, and the head."""

    def __init__(self, config: TransformerConfig, keys: KeyStream) -> None:
        self.config = config
        self.constants = Constants(config)
        if config.share_embeddings:
            self.shared_embedding = Embedding(config, config.target_vocab_size, config.target_pad_id, keys)
        else:
            self.source_embedding = Embedding(config, config.source_vocab_size, config.source_pad_id, keys)
            self.target_embedding = Embedding(config, config.target_vocab_size, config.target_pad_id, keys)
        self.encoder = Stack(config, config.encoder, EncoderLayer, keys)
        self.decoder = Stack(config, config.decoder, DecoderLayer, keys)
        if not config.tie_head:
            features, vocabulary = (config.d_model,), (config.target_vocab_size,)
            self.head = Projection(config, features, vocabulary, config.head_bias == "parameter", keys, "head")
        elif config.head_bias == "parameter":
            self.head_bias = nnx.Param(
                initializers.bias(config, next(keys), (config.target_vocab_size,), config.d_model)
            )

    def encode(self, source_ids: jax.Array, mask: Mask, tap: Tap, dropout_key: DropoutKey) -> jax.Array:
        """source_ids [B, S] → [B, S, D]."""
        positions.check_fits(self.config, self.config.encoder, "source_ids", source_ids.shape)
        tap, key = tap.scope("encoder"), fold(dropout_key, Site.ENCODER)
        numbers = positions.position_numbers(self.config, source_ids, self.config.source_pad_id)
        vectors = (self.shared_embedding if self.config.share_embeddings else self.source_embedding)(source_ids)
        bias = self.encoder.bias(source_ids.shape[1], tap)
        x = self.encoder.embed(vectors, self._table("encoder"), numbers, tap, key)
        return self.encoder.run(x, lambda layer, x, tap, key: layer(x, mask, bias, tap, key), tap, key)

    def decode(
        self, encoder_output: jax.Array, decoder_input_ids: jax.Array, masks: Masks, tap: Tap, dropout_key: DropoutKey
    ) -> jax.Array:
        """encoder_output [B, S, D], decoder_input_ids [B, T] → decoder output [B, T, D]."""
        positions.check_fits(self.config, self.config.decoder, "decoder_input_ids", decoder_input_ids.shape)
        stack_tap, key = tap.scope("decoder"), fold(dropout_key, Site.DECODER)
        numbers = positions.position_numbers(self.config, decoder_input_ids, self.config.target_pad_id)
        bias = self.decoder.bias(decoder_input_ids.shape[1], stack_tap)
        x = self.decoder.embed(
            self._target_embedding(decoder_input_ids), self._table("decoder"), numbers, stack_tap, key
        )
        return self.decoder.run(
            x, lambda layer, x, tap, key: layer(x, encoder_output, masks, bias, tap, key), stack_tap, key
        )

    def unembed(self, x: jax.Array) -> jax.Array:
        """x [B, T, D] → logits [B, T, V]."""
        kernel, bias = self.head_arrays()
        logits = jnp.einsum("BTD,DV->BTV", x, kernel.astype(x.dtype))
        return logits if bias is None else logits + bias.astype(x.dtype)

    def head_arrays(self) -> tuple[jax.Array, jax.Array | None]:
        """Kernel [D, V] and bias [V] of the head, in the parameters' dtype; the kernel is scaled where the config asks
        for it."""
        kernel = self._target_embedding.embedding[...].T if self.config.tie_head else self.head.kernel[...]
        kernel = kernel / math.sqrt(self.config.d_model) if self.config.scale_head else kernel
        if self.config.head_bias == "none":
            return kernel, None
        if self.config.head_bias == "buffer":
            return kernel, self.constants.head_bias[...]
        return kernel, (self.head_bias if self.config.tie_head else self.head.bias)[...]

    def decoder_layers(self) -> list[Any]:
        """The parameters of each layer of the decoder by itself, as a StepLayer has them."""
        graph, parameters = nnx.split(self.decoder.layers)
        slices = [layer_slice(parameters, i) for i in range(self.config.num_decoder_layers)]
        return [nnx.state(StepLayer(nnx.merge(graph, layer))) for layer in slices]

    def start_decoding(
        self,
        encoder_output: jax.Array,
        source_is_real: jax.Array,
        length: int,
        num_beams: int,
        layers: list[Any] | None,
    ) -> DecoderState:
        """The state before the first of at most `length` tokens: encoder_output [B, S, D], source_is_real [B, S]."""
        steps = [nnx.merge(_step_graph(self.config), parameters) for parameters in layers or self.decoder_layers()]
        cross = [step.cross_attention.keys_and_values(encoder_output) for step in steps]
        covers_keys = self.config.while_decoding().cross_padding == "keys"
        return empty_state(cross, source_is_real[:, None, None, :] if covers_keys else None, num_beams, length)

    def decode_step(
        self, state: DecoderState, ids: jax.Array, is_real: jax.Array, attendable: jax.Array, layers: list[Any] | None
    ) -> tuple[jax.Array, DecoderState]:
        """The next tokens' ids [B, K] → logits [B, K, V].

        Args:
          is_real, attendable: [B, K], which are no pads, for positions and as keys.
          layers: as `decoder_layers` gives them.
        """
        state = state.written(is_real, attendable)
        numbers = {
            "column": state.position[None, None],
            "batch_row": jnp.arange(len(ids))[:, None],
            "non_pad_count": state.real_count * is_real,
        }[self.config.position_index] + self.config.position_offset
        x = self.decoder.embed(self._target_embedding(ids), self._table("decoder"), numbers, Tap(), None)
        bias = self.decoder.bias(state.length, Tap(), state.position)

        graph, caches = _step_graph(self.config), []
        for parameters, cache in zip(layers or self.decoder_layers(), state.layers, strict=True):
            x, cache = nnx.merge(graph, parameters)(x, cache, state, bias)
            caches.append(cache)
        logits = self.unembed(self.decoder.finish(x, Tap(), None))
        return logits, state._replace(layers=tuple(caches), position=state.position + 1)

    @property
    def _target_embedding(self) -> Embedding:
        return self.shared_embedding if self.config.share_embeddings else self.target_embedding

    def _table(self, stack: str) -> jax.Array | None:
        return getattr(self.constants, f"{stack}_positions")[...] if self.config.position_kind == "sinusoidal" else None
