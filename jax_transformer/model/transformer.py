"""The whole model: embeddings or a stem, the two stacks, and the head (Vaswani et al. 2017, figure 1)."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.positions import Rotary
from jax_transformer.model import initializers, positions, rotary
from jax_transformer.model.activations import ACTIVATIONS
from jax_transformer.model.attention import capped
from jax_transformer.model.decoder_state import DecoderState, empty_state
from jax_transformer.model.dropout import Site
from jax_transformer.model.dtypes import product
from jax_transformer.model.embeddings import Constants, Embedding, scaled
from jax_transformer.model.features import ConvolutionStem, Features, SourceInput, source_is_real
from jax_transformer.model.ids import Ids
from jax_transformer.model.initializers import KeyStream
from jax_transformer.model.layers import DecoderLayer, DecoderTerms, EncoderLayer
from jax_transformer.model.masks import Mask, Masks, decoder_padding_id
from jax_transformer.model.norms import Norm
from jax_transformer.model.projections import Projection, SquareMap
from jax_transformer.model.scope import Scope
from jax_transformer.model.stack import Stack, layer_slice
from jax_transformer.model.steps import StepLayer
from jax_transformer.model.terms import AttentionTerms, stack_terms


class Source(NamedTuple):
    """Holds the encoder's output, and which of its positions are no padding."""

    output: jax.Array  # [B, S, D]
    is_real: jax.Array  # [B, S] bool
    segments: jax.Array | None = None  # [B, S], of packed rows


class Transformer(nnx.Module):
    """Maps a source and decoder input ids to logits."""

    def __init__(self, config: TransformerConfig, keys: KeyStream) -> None:
        self.config = config
        self.constants = Constants(config)
        if config.share_embeddings:
            self.shared_embedding = Embedding(config, config.target, config.decoder.d_model, keys)
        else:
            if config.stem is None:
                self.source_embedding = Embedding(config, config.source, config.encoder.d_model, keys)
            else:
                self.stem = ConvolutionStem(config, config.stem, keys)
            self.target_embedding = Embedding(config, config.target, config.decoder.d_model, keys)
        self.encoder = Stack(config, config.encoder, EncoderLayer, keys)
        self.decoder = Stack(config, config.decoder, DecoderLayer, keys)
        features, vocabulary = (config.decoder.d_model,), (config.target.vocab_size,)
        if config.head.transform is not None:
            self.head_transform = SquareMap(config, config.decoder.d_model, keys)
            self.head_norm = Norm(config.decoder)
        use_bias = config.head.bias == "parameter"
        if not config.head.tied:
            self.head = Projection(config, features, vocabulary, keys, use_bias=use_bias, role="head")
        elif use_bias:
            self.head_bias = nnx.Param(initializers.bias(config, next(keys), vocabulary, *features))

    def encode(self, source: SourceInput, mask: Mask, scope: Scope, segments: jax.Array | None = None) -> jax.Array:
        """Returns the encoder's output [B, S, D] for a source of S positions and, of packed rows, its segments
        [B, S]."""
        is_real = source_is_real(self.config, source)
        positions.check_fits(self.config.encoder, "source_ids", is_real.shape)
        numbers = positions.position_numbers(self.config.encoder, is_real, segments)
        vectors = self._source_vectors(source, scope(Site.ENCODER))
        places = positions.Places(numbers, is_real.shape[1])
        terms = stack_terms(self.encoder, places, mask, vectors.dtype, scope)
        scope = scope(Site.ENCODER)
        x = self.encoder.embed(vectors, self._table("encoder_positions"), numbers, scope)  # [B, S, D]
        return self.encoder.run(x, lambda layer, x, scope: layer(x, terms, scope), scope)

    def _source_vectors(self, source: SourceInput, scope: Scope) -> jax.Array:
        """Returns the vectors [B, S, D] that the encoder reads, before positions are added."""
        factor = self.config.encoder.embedding_factor
        if isinstance(source, Features):
            return scaled(self.stem(source, scope.tap.scope("stem")), factor)
        table = self.shared_embedding if self.config.share_embeddings else self.source_embedding
        return table(source, factor)

    def decode(
        self,
        source: Source,
        decoder_input_ids: Ids,
        masks: Masks,
        scope: Scope,
        segments: jax.Array | None = None,
    ) -> jax.Array:
        """Returns the decoder's output [B, T, D], as the head reads it, for decoder_input_ids [B, T] and, of packed
        rows, their segments [B, T]."""
        positions.check_fits(self.config.decoder, "decoder_input_ids", decoder_input_ids.shape)
        is_real = jnp.asarray(decoder_input_ids != self.config.target.pad_id)
        numbers = positions.position_numbers(self.config.decoder, is_real, segments)
        vectors = self._target_embedding(decoder_input_ids, self.config.decoder.embedding_factor)
        places = positions.Places(numbers, decoder_input_ids.shape[1])
        shared_terms = stack_terms(self.decoder, places, masks.decoder_self, vectors.dtype, scope)
        whole, scope = scope, scope(Site.DECODER)
        rotation, angles = shared_terms.rotation, self._source_angles(source)
        terms = DecoderTerms(
            shared_terms._replace(exists=masks.decoder_exists),
            AttentionTerms(masks.cross, rotation=rotation and angles and rotation._replace(key=angles)),
        )
        x = self.decoder.embed(vectors, self._table("decoder_positions"), numbers, scope)  # [B, T, D]
        x = self.decoder.run(x, lambda layer, x, scope: layer(x, source.output, terms, scope), scope)
        return self._head_input(x, whole)

    def _head_input(self, x: jax.Array, scope: Scope) -> jax.Array:
        """Returns what the head maps to logits, [B, T, D]: the decoder's output x, through the head's transform if it
        has one."""
        if self.config.head.transform is None:
            return x
        activated = ACTIVATIONS[self.config.head.transform](self.head_transform(x), 0.0)
        return scope.tap("head_norm", self.head_norm(scope.tap("head_transform", activated)))

    def _source_angles(self, source: Source) -> rotary.Angles | None:
        """Returns the angles that rotate the keys of cross-attention; None without rotation."""
        config = self.config
        kind = config.decoder.positions
        if not isinstance(kind, Rotary) or not kind.cross_attention:
            return None
        numbers = positions.position_numbers(config.decoder, source.is_real, source.segments)
        return rotary.angles(kind, config.decoder.heads.head_dim, numbers, source.output.dtype)

    def unembed(self, x: jax.Array) -> jax.Array:
        """Returns the logits [B, T, V] of x [B, T, D]."""
        kernel, bias, axis = self._head()
        logits = product(x.reshape(-1, x.shape[-1]), kernel.astype(x.dtype), axis).reshape(*x.shape[:-1], -1)
        return capped(logits if bias is None else logits + bias.astype(x.dtype), self.config.head.cap)

    def head_arrays(self) -> tuple[jax.Array, jax.Array | None]:
        """Returns the head's kernel [D, V] and bias [V] or None, in the parameters' dtype.

        They include the head's scale and the factor of the logits, if the config has them, and not the cap.
        """
        kernel, bias, axis = self._head()
        return kernel.T if axis else kernel, bias

    def _head(self) -> tuple[jax.Array, jax.Array | None, int]:
        """Returns `head_arrays` with the kernel as it is stored, and its axis of features: 1 for a tied one, [V, D]."""
        tied, factor = self.config.head.tied, self.config.head.factor
        kernel = self._target_embedding.embedding[...] if tied else self.head.kernel[...]
        kernel = kernel / math.sqrt(self.config.decoder.d_model) if self.config.head.scales_input else kernel
        bias = self._head_bias()
        if factor != 1.0:
            kernel, bias = kernel * factor, None if bias is None else bias * factor
        return kernel, bias, int(tied)

    def _head_bias(self) -> jax.Array | None:
        if self.config.head.bias == "none":
            return None
        if self.config.head.bias == "buffer":
            return jax.lax.stop_gradient(self.constants.head_bias[...])
        return (self.head_bias if self.config.head.tied else self.head.bias)[...]

    def decoder_layers(self) -> list[Any]:
        """Returns the parameters of each decoder layer, rearranged for `StepLayer`; only one if all layers share
        them."""
        graph, parameters = nnx.split(self.decoder.layers)
        count = 1 if self.config.decoder.share_layers else self.config.decoder.num_layers
        slices = [layer_slice(parameters, i) for i in range(count)]
        return [nnx.to_pure_dict(nnx.state(StepLayer(nnx.merge(graph, layer)))) for layer in slices]

    def start_decoding(self, source: Source, layers: list[Any] | None, *, length: int, num_beams: int) -> DecoderState:
        """Returns the state before the first of at most `length` tokens.

        Args:
          layers: the result of `decoder_layers`, or None to compute it here.
        """
        steps, angles = self._steps(layers), self._source_angles(source)
        cross = [step.cross_attention.keys_and_values(source.output, angles) for step in steps]
        cross *= self.config.decoder.num_layers // len(steps)
        _, _, cross_attention = self.config.while_decoding().attentions
        covers_keys = cross_attention.padding == "keys"
        cross_mask = source.is_real[:, None, None, :] if covers_keys else None
        return empty_state(cross, self.config.decoder.heads, cross_mask, num_beams, length)

    def decode_step(self, state: DecoderState, ids: Ids, layers: list[Any] | None) -> tuple[jax.Array, DecoderState]:
        """Returns the logits [B, K, V] after the tokens ids [B, K] at `state.position`, and the next state.

        Args:
          layers: the result of `decoder_layers`, or None to compute it here.
        """
        is_real = ids != self.config.target.pad_id  # [B, K]: counted by positions
        _, attention, _ = self.config.while_decoding().attentions
        hides_pads = attention.padding == "keys"
        attendable = ids != decoder_padding_id(self.config) if hides_pads else jnp.ones_like(is_real)
        state = state.written(is_real, attendable)
        index, offset = self.config.decoder.numbering
        numbers = {
            "column": state.position[None, None],
            "batch_row": jnp.arange(ids.shape[0])[:, None],
            "non_pad_count": state.real_count * is_real,
        }[index] + offset
        vectors = self._target_embedding(ids, self.config.decoder.embedding_factor)
        x = self.decoder.embed(vectors, self._table("decoder_positions"), numbers, Scope())  # [B, K, D]
        places = positions.Places(numbers, state.length, state.position)
        terms = stack_terms(self.decoder, places, None, vectors.dtype, Scope())

        steps, caches = self._steps(layers), []
        for i, cache in enumerate(state.layers):
            x, cache = steps[i % len(steps)](x, cache, state, terms, i)
            caches.append(cache)
        logits = self.unembed(self._head_input(self.decoder.finish(x, Scope()), Scope()))
        return logits, state._replace(layers=tuple(caches), position=state.position + 1)

    def _steps(self, layers: list[Any] | None) -> list[StepLayer]:
        """Returns the decoder's layers as single steps: all of them, or the shared one."""
        graph = _step_graph(self.config)
        return [nnx.merge(graph, nnx.State(parameters)) for parameters in layers or self.decoder_layers()]

    @property
    def _target_embedding(self) -> Embedding:
        return self.shared_embedding if self.config.share_embeddings else self.target_embedding

    def _table(self, name: str) -> jax.Array | None:
        """Returns the sinusoidal table of this name, without gradient, or None."""
        if not hasattr(self.constants, name):
            return None
        return jax.lax.stop_gradient(getattr(self.constants, name)[...])


@functools.cache
def _step_graph(config: TransformerConfig) -> nnx.GraphDef[StepLayer]:
    """Returns the graph definition that all decoding layers share."""
    return nnx.split(nnx.eval_shape(lambda: StepLayer(DecoderLayer(config, KeyStream(jax.random.key(0))))))[0]
