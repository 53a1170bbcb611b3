"""The only door to Flax: pure functions over a plain nested dict of arrays.

`params` is a dict of dicts with string keys; leaves are arrays, those of `encoder/layers` and `decoder/layers` with a
leading layer axis. The subtree `constants` (position tables, a bias that is a buffer) is carried along and not trained.
Everything here may be called inside `jax.jit`, `jax.grad` and `jax.vmap`; called outside, each function compiles itself
once per config and shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import jax
from flax import nnx

from jax_transformer.config.model import TransformerConfig
from jax_transformer.model.decoder_state import DecoderState
from jax_transformer.model.initializers import KeyStream
from jax_transformer.model.masks import Mask, Masks, make_masks
from jax_transformer.model.positions import check_fits
from jax_transformer.model.scope import Scope
from jax_transformer.model.trace import Tap, Trace
from jax_transformer.model.transformer import Transformer

Params = dict[str, Any]
"""A nested dict of arrays."""


def init_params(config: TransformerConfig, key: jax.Array) -> Params:
    """Fresh float32 parameters, drawn by the config's initializer.

    Raises:
      ValueError: the config's vocabulary sizes are not set.
    """
    for name in ("source_vocab_size", "target_vocab_size"):
        if getattr(config, name) == 0:
            raise ValueError(f"{name} must be set before parameters are made; received 0")
    if isinstance(key, jax.core.Tracer):
        return _init(config, key)
    return _compiled_init(jax.default_backend())(config, key)


@cache
def _compiled_init(backend: str) -> Callable[[TransformerConfig, jax.Array], Params]:
    # runs once, so on a CPU the time goes into compiling it: without optimisation, less than half
    options = (
        {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True} if backend == "cpu" else None
    )
    return jax.jit(_init, static_argnums=0, compiler_options=options)


def _init(config: TransformerConfig, key: jax.Array) -> Params:
    return nnx.to_pure_dict(nnx.state(Transformer(config, KeyStream(key))))


def abstract_params(config: TransformerConfig) -> Params:
    """The shapes and dtypes of `init_params(config, …)`, without computing anything."""
    return jax.tree.map(lambda leaf: leaf, _abstract_params(config))  # a tree of the caller's own


@cache
def _abstract_params(config: TransformerConfig) -> Params:
    return jax.eval_shape(lambda: init_params(config, jax.random.key(0)))


@partial(jax.jit, static_argnames=("config", "return_trace"))
def apply(
    config: TransformerConfig,
    params: Params,
    source_ids: jax.Array,
    decoder_input_ids: jax.Array,
    *,
    dropout_key: jax.Array | None = None,
    return_trace: bool = False,
    masks: Masks | None = None,
    add: Mapping[str, jax.Array] | None = None,
    replace: Mapping[str, jax.Array] | None = None,
) -> jax.Array | tuple[jax.Array, Trace]:
    """The whole model: source_ids [B, S] and decoder_input_ids [B, T], integers, to logits [B, T, V].

    Args:
      dropout_key: a PRNG key; None computes without dropout.
      return_trace: also return every activation by name, in execution order.
      masks: boolean masks (True = may attend, [B, 1, Q, K] or broadcastable, None = everything) in place of those that
        follow from the ids.
      add, replace: arrays added to, or put in place of, the activations of these names.

    Raises:
      ValueError: more tokens than the position table allows; an intervention that names no activation or has the wrong
        shape; a trace of weights asked of a fused attention path, which has none.
    """
    if return_trace and config.attention_path != "reference":
        raise ValueError(
            f"return_trace needs attention_path='reference'; received {config.attention_path!r}, which computes no "
            "weights"
        )
    tap = Tap(return_trace, add, replace)
    scope = Scope(tap, dropout_key)
    masks = make_masks(config, source_ids, decoder_input_ids) if masks is None else masks
    for name, mask in zip(("encoder_self", "decoder_self", "cross"), masks[:3], strict=True):
        if mask is not None and return_trace:
            tap.trace[f"mask.{name}"] = mask
    model = _model(config, params)
    encoder_output = model.encode(source_ids, masks.encoder_self, scope)
    decoder_output = model.decode(encoder_output, decoder_input_ids, masks, scope)
    logits = tap("logits", model.unembed(decoder_output))
    tap.check_all_seen()
    return (logits, tap.trace) if return_trace else logits


@partial(jax.jit, static_argnames="config")
def encode(
    config: TransformerConfig,
    params: Params,
    source_ids: jax.Array,
    *,
    dropout_key: jax.Array | None = None,
    mask: Mask = None,
) -> jax.Array:
    """source_ids [B, S] → encoder_output [B, S, D]; `mask` as in `apply`, by default the one that follows from the
    ids."""
    mask = make_masks(config, source_ids, source_ids).encoder_self if mask is None else mask
    return _model(config, params).encode(source_ids, mask, Scope(dropout_key=dropout_key))


@partial(jax.jit, static_argnames="config")
def decode(
    config: TransformerConfig,
    params: Params,
    encoder_output: jax.Array,
    source_ids: jax.Array,
    decoder_input_ids: jax.Array,
    *,
    dropout_key: jax.Array | None = None,
    masks: Masks | None = None,
) -> jax.Array:
    """encoder_output [B, S, D], with the source_ids [B, S] it came from, and decoder_input_ids [B, T] → logits [B, T,
    V]."""
    masks = make_masks(config, source_ids, decoder_input_ids) if masks is None else masks
    model = _model(config, params)
    return model.unembed(model.decode(encoder_output, decoder_input_ids, masks, Scope(dropout_key=dropout_key)))


@partial(jax.jit, static_argnames="config")
def hidden_states(
    config: TransformerConfig,
    params: Params,
    source_ids: jax.Array,
    decoder_input_ids: jax.Array,
    *,
    dropout_key: jax.Array | None = None,
) -> jax.Array:
    """`apply` up to the head: source_ids [B, S] and decoder_input_ids [B, T] → the decoder's output [B, T, D]."""
    masks = make_masks(config, source_ids, decoder_input_ids)
    model = _model(config, params)
    encoder_output = model.encode(source_ids, masks.encoder_self, Scope(dropout_key=dropout_key))
    return model.decode(encoder_output, decoder_input_ids, masks, Scope(dropout_key=dropout_key))


@partial(jax.jit, static_argnames="config")
def head(config: TransformerConfig, params: Params) -> tuple[jax.Array, jax.Array | None]:
    """Kernel [D, V] and bias ([V] or None) of which the logits are `hidden @ kernel + bias`."""
    return _model(config, params).head_arrays()


@partial(jax.jit, static_argnames=("config", "length", "num_beams"))
def start_decoding(
    config: TransformerConfig,
    params: Params,
    encoder_output: jax.Array,
    source_ids: jax.Array,
    length: int,
    num_beams: int = 1,
    *,
    layers: list[Any] | None = None,
) -> DecoderState:
    """The state from which at most `length` tokens are decoded one by one: every layer's cross-attention keys and
    values, and empty caches.

    Args:
      num_beams: targets that are decoded of each source side by side, sharing its keys and values.
      layers: as of `decode_step`.

    Raises:
      ValueError: the config's masks make decoding with a cache another function than decoding without; more than the
        position table allows.
    """
    if not config.cache_is_exact:
        raise ValueError(
            "decoding with a cache needs decoder_causal and masks that cover no queries; received "
            f"decoder_causal={config.decoder_causal}, decoder_padding={config.while_decoding().decoder_padding!r}, "
            f"cross_padding={config.while_decoding().cross_padding!r}"
        )
    check_fits(config, config.decoder, "the decoder's input", (len(source_ids), length))
    return _model(config, params).start_decoding(encoder_output, source_ids, layers, length=length, num_beams=num_beams)


@partial(jax.jit, static_argnames="config")
def decode_step(
    config: TransformerConfig, params: Params, state: DecoderState, ids: jax.Array, *, layers: list[Any] | None = None
) -> tuple[jax.Array, DecoderState]:
    """Feeds the tokens that stand at `state.position`; returns the logits of those after them, and the new state.

    Args:
      ids: [B, K] → logits [B, K, V]; of one beam [B] → [B, V], too.
      layers: `decoder_layers(config, params)`, to make them only once.
    """
    if ids.ndim == 1:
        logits, state = decode_step(config, params, state, ids[:, None], layers=layers)
        return logits[:, 0], state
    return _model(config, params).decode_step(state, ids, layers)


@partial(jax.jit, static_argnames="config")
def decoder_layers(config: TransformerConfig, params: Params) -> list[Any]:
    """The parameters of each of the decoder's layers by itself, as `decode_step` reads them fastest."""
    return _model(config, params).decoder_layers()


def _model(config: TransformerConfig, params: Params) -> Transformer:
    return nnx.merge(_graph(config), nnx.State(params))


@cache
def _graph(config: TransformerConfig) -> nnx.GraphDef[Transformer]:
    graph, _ = nnx.split(nnx.eval_shape(lambda: Transformer(config, KeyStream(jax.random.key(0)))))
    return graph
