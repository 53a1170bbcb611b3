"""Pure functions of the model over a nested dict of arrays: initialise, apply, encode, decode, decode step by step.

`params` is a dict of dicts with string keys. Its leaves are arrays; those of `encoder/layers` and `decoder/layers` have
a leading layer axis [L, …]. The subtree `constants` (position tables, a bias that is a buffer) is carried along; no
gradient reaches it, and `split_constants` keeps it from an optimizer. Every function works inside `jax.jit`, `jax.grad`
and `jax.vmap`; called outside, it compiles itself once per config and shape.

Token ids are integer arrays. An id outside the vocabulary is an error if its value is concrete. Inside a caller's
`jit`, `grad` or `vmap` it isn't, and such an id silently reads another row of the table. Axes: see
`jax_transformer.model`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Literal, TypedDict, Unpack, overload

import jax
from flax import nnx

from jax_transformer.config.model import TransformerConfig
from jax_transformer.model.arguments import check_config, check_fit, check_key, check_rows, compiled
from jax_transformer.model.decoder_state import DecoderState
from jax_transformer.model.features import SourceInput, source_is_real
from jax_transformer.model.ids import Ids
from jax_transformer.model.initializers import KeyStream
from jax_transformer.model.masks import UNPACKED, Mask, Masks, Segments, encoder_mask, make_masks
from jax_transformer.model.positions import check_fits
from jax_transformer.model.scope import Scope
from jax_transformer.model.trace import Tap, Trace
from jax_transformer.model.transformer import Source, Transformer

Params = dict[str, Any]
"""A nested dict of arrays."""


def init_params(config: TransformerConfig, key: jax.Array, shardings: Any = None) -> Params:
    """Draws fresh float32 parameters with the config's initializer.

    Args:
      config: with both vocabulary sizes set.
      key: a PRNG key; the same key gives the same parameters, however they are sharded.
      shardings: the sharding of each parameter on a mesh, as a tree of the parameters' structure. None: JAX's default
        device holds them all.

    Returns:
      A nested dict of float32 arrays. The subtree `constants` isn't trained: `split_constants` separates it from the
      parameters for an optimizer.

    Raises:
      ValueError: a vocabulary size is not set; no config or no key.

    Example:
      >>> import jax
      >>> from jax_transformer import TransformerConfig, init_params
      >>> config = TransformerConfig(source_vocab_size=7, target_vocab_size=5, d_model=4, num_heads=2, d_ff=8)
      >>> params = init_params(config, jax.random.key(0))
      >>> params["source_embedding"]["embedding"].shape
      (7, 4)
      >>> params["encoder"]["layers"]["feed_forward"]["hidden"]["kernel"].shape  # six layers
      (6, 4, 8)
    """
    check_config("init_params", config)
    check_vocabularies(config)
    check_key("init_params", key)
    if isinstance(key, jax.core.Tracer):
        return _init(config, key)
    if shardings is not None:
        return jax.jit(_init, static_argnums=0, out_shardings=shardings, compiler_options=_init_options())(config, key)
    return _compiled_init(jax.default_backend())(config, key)


def check_vocabularies(config: TransformerConfig) -> None:
    for name in config.vocabularies:
        if getattr(config, name) == 0:
            raise ValueError(f"{name} must be set before parameters are made; received 0")


@cache
def _compiled_init(backend: str) -> Callable[[TransformerConfig, jax.Array], Params]:
    return jax.jit(_init, static_argnums=0, compiler_options=_init_options())


def _init_options() -> dict[str, Any] | None:
    # runs once, so on a CPU the time goes into compiling it: without optimisation, less than half
    options = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
    return options if jax.default_backend() == "cpu" else None


def _init(config: TransformerConfig, key: jax.Array) -> Params:
    return nnx.to_pure_dict(nnx.state(Transformer(config, KeyStream(key))))


def abstract_params(config: TransformerConfig) -> Params:
    """Returns the shapes and dtypes of `init_params(config, …)`, as a dict of `jax.ShapeDtypeStruct`s.

    Nothing is computed, so no memory is allocated.

    Raises:
      ValueError: a vocabulary size is not set.
    """
    check_vocabularies(config)
    _, params = _abstract_model(config)
    return jax.tree.map(lambda leaf: leaf, params)  # the caller may change its tree


def split_constants(params: Params) -> tuple[Params, Params]:
    """Splits parameters into trained ones and constants: position tables, a bias that is a buffer.

    Pass only the trained ones to an optimizer. The gradients of the constants are zero, but weight decay would change
    them.

    Args:
      params: from `init_params`, `load_model` or `import_checkpoint`.

    Returns:
      The trained parameters and the constants, two nested dicts that share their arrays with `params`.

    Example:
      >>> import jax
      >>> from jax_transformer import TransformerConfig, init_params, split_constants
      >>> config = TransformerConfig(source_vocab_size=7, target_vocab_size=5, d_model=4, num_heads=2, d_ff=8)
      >>> trained, constants = split_constants(init_params(config, jax.random.key(0)))
      >>> sorted(constants), "constants" in trained
      (['decoder_positions', 'encoder_positions'], False)
    """
    return {name: tree for name, tree in params.items() if name != "constants"}, params.get("constants", {})


def join_constants(trained: Params, constants: Params) -> Params:
    """Merges the parts of `split_constants`, for `apply` and `save_model`.

    Args:
      trained: the trained parameters.
      constants: the constants that belong to them.

    Returns:
      The complete parameters.

    Example:
      >>> import jax
      >>> from jax_transformer import TransformerConfig, init_params, join_constants, split_constants
      >>> config = TransformerConfig(source_vocab_size=7, target_vocab_size=5, d_model=4, num_heads=2, d_ff=8)
      >>> params = init_params(config, jax.random.key(0))
      >>> join_constants(*split_constants(params)).keys() == params.keys()
      True
    """
    return {**trained, "constants": constants} if constants else dict(trained)


class ApplyOptions(TypedDict, total=False):
    """Further arguments of `apply`, for type checkers."""

    dropout_key: jax.Array | None
    masks: Masks | None
    add: Mapping[str, jax.Array] | None
    replace: Mapping[str, jax.Array] | None
    source_segments: jax.Array | None
    target_segments: jax.Array | None


@overload
def apply(
    config: TransformerConfig,
    params: Params,
    source_ids: SourceInput,
    decoder_input_ids: Ids,
    *,
    return_trace: Literal[False] = False,
    **options: Unpack[ApplyOptions],
) -> jax.Array: ...
@overload
def apply(
    config: TransformerConfig,
    params: Params,
    source_ids: SourceInput,
    decoder_input_ids: Ids,
    *,
    return_trace: Literal[True],
    **options: Unpack[ApplyOptions],
) -> tuple[jax.Array, Trace]: ...
@compiled("return_trace")
def apply(
    config: TransformerConfig,
    params: Params,
    source_ids: SourceInput,
    decoder_input_ids: Ids,
    *,
    dropout_key: jax.Array | None = None,
    return_trace: bool = False,
    masks: Masks | None = None,
    add: Mapping[str, jax.Array] | None = None,
    replace: Mapping[str, jax.Array] | None = None,
    source_segments: jax.Array | None = None,
    target_segments: jax.Array | None = None,
) -> jax.Array | tuple[jax.Array, Trace]:
    """Computes the logits of every target position (Vaswani et al. 2017, figure 1).

    Args:
      params: as `init_params` returns them; any floating dtype, which the computation follows unless
        `config.compute_dtype` is set.
      source_ids: [B, S]; an id outside the vocabulary is an error, unless a caller's `jit`, `grad` or `vmap` hides its
        value: then it reads another row of the table. With a config that has a stem, `Features` instead.
      decoder_input_ids: [B, T], the target shifted right by one, with the same checks.
      dropout_key: a PRNG key; None computes without dropout.
      return_trace: whether to return every named activation too.
      masks: boolean masks that replace those derived from the ids: True = may attend, [B, 1, Q, K] or broadcastable,
        None = no masking.
      add: arrays to add to the activations of these names. The gradient with respect to an added zero is the gradient
        of the activation.
      replace: arrays that replace the activations of these names.
      source_segments: for packed rows (`data.pack_batch`), the number of each token's pair in its row, from 1, and 0 at
        pads: integers [B, S]. A token attends only to its own pair, and positions restart in each pair. None: a row
        holds one pair.
      target_segments: the same for decoder_input_ids, [B, T].

    Returns:
      Logits [B, T, V] in the compute dtype; with `return_trace`, a pair of logits and a dict of the activations by name
      in execution order.

    Raises:
      ValueError: parameters of another config; ids that aren't integers [B, S] and [B, T] of their vocabularies;
        features of another size or for a config without a stem; more
        tokens than rows of the position table; an intervention with an unknown name or a wrong shape; `return_trace`
        with an attention path that returns no weights; segments for one side only, or with a config that can't be
        packed (`config.packing_obstacle`).

    Example:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> from jax_transformer import TransformerConfig, apply, init_params
      >>> config = TransformerConfig(source_vocab_size=7, target_vocab_size=5, d_model=4, num_heads=2, d_ff=8)
      >>> params = init_params(config, jax.random.key(0))
      >>> source_ids = jnp.array([[3, 4, 2, 0]])
      >>> decoder_input_ids = jnp.array([[1, 3, 2]])
      >>> apply(config, params, source_ids, decoder_input_ids).shape
      (1, 3, 5)
      >>> logits, trace = apply(config, params, source_ids, decoder_input_ids, return_trace=True)
      >>> trace["decoder.layers.0.cross_attention.weights"].shape
      (1, 2, 3, 4)
    """
    if return_trace and config.compute.attention not in ("auto", "reference"):
        raise ValueError(
            f"return_trace needs attention_path='auto' or 'reference'; received {config.compute.attention!r}, which "
            "returns no weights"
        )
    check_rows("apply", source_ids, decoder_input_ids)
    tap = Tap(return_trace, add, replace)
    segments = _segments(config, source_segments, target_segments)
    model = _model(config, params)
    logits = forward(model, source_ids, decoder_input_ids, Scope(tap, dropout_key), masks, segments)
    tap.check_all_seen()
    return (logits, tap.trace) if return_trace else logits


def forward(
    model: Transformer,
    source_ids: SourceInput,
    decoder_input_ids: Ids,
    scope: Scope,
    masks: Masks | None = None,
    segments: Segments = UNPACKED,
) -> jax.Array:
    """Computes the logits [B, T, V] with a model that has its parameters; see `apply`."""
    tap = scope.tap
    masks = make_masks(model.config, source_ids, decoder_input_ids, segments) if masks is None else masks
    for name, mask in zip(("encoder_self", "decoder_self", "cross"), masks[:3], strict=True):
        if mask is not None and tap.record:
            tap.trace[f"mask.{name}"] = mask
    encoder_output = model.encode(source_ids, masks.encoder_self, scope, segments.source)
    source = Source(encoder_output, source_is_real(model.config, source_ids), segments.source)
    decoder_output = model.decode(source, decoder_input_ids, masks, scope, segments.target)
    logits: jax.Array = tap("logits", model.unembed(decoder_output))
    return logits


@compiled()
def encode(
    config: TransformerConfig,
    params: Params,
    source_ids: SourceInput,
    *,
    dropout_key: jax.Array | None = None,
    mask: Mask = None,
) -> jax.Array:
    """Computes the encoder's output (Vaswani et al. 2017, §3.1).

    Args:
      source_ids: [B, S] or `Features`, as in `apply`.
      dropout_key: a PRNG key; None computes without dropout.
      mask: boolean, True = may attend, [B, 1, S, S] or broadcastable; None derives it from the ids.

    Returns:
      encoder_output [B, S, D] in the compute dtype.

    Raises:
      ValueError: more tokens than the position table has rows.

    Example:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> from jax_transformer import TransformerConfig, encode, init_params
      >>> config = TransformerConfig(source_vocab_size=7, target_vocab_size=5, d_model=4, num_heads=2, d_ff=8)
      >>> params = init_params(config, jax.random.key(0))
      >>> encode(config, params, jnp.array([[3, 4, 2, 0]])).shape
      (1, 4, 4)
    """
    mask = encoder_mask(config, source_ids) if mask is None else mask
    return _model(config, params).encode(source_ids, mask, Scope(dropout_key=dropout_key))


@compiled()
def decode(
    config: TransformerConfig,
    params: Params,
    encoder_output: jax.Array,
    source_ids: SourceInput,
    decoder_input_ids: Ids,
    *,
    dropout_key: jax.Array | None = None,
    masks: Masks | None = None,
) -> jax.Array:
    """Computes the logits of every target position from the encoder's output (Vaswani et al. 2017, §3.1).

    Args:
      encoder_output: [B, S, D].
      source_ids: [B, S] or `Features`, from which encoder_output was computed; they give the cross-attention mask.
      decoder_input_ids: [B, T], the target shifted right by one.
      dropout_key: a PRNG key; None computes without dropout.
      masks: as in `apply`.

    Returns:
      Logits [B, T, V] in the compute dtype.

    Raises:
      ValueError: more tokens than the position table has rows.

    Example:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> from jax_transformer import TransformerConfig, decode, encode, init_params
      >>> config = TransformerConfig(source_vocab_size=7, target_vocab_size=5, d_model=4, num_heads=2, d_ff=8)
      >>> params = init_params(config, jax.random.key(0))
      >>> source_ids = jnp.array([[3, 4, 2, 0]])
      >>> encoder_output = encode(config, params, source_ids)
      >>> decode(config, params, encoder_output, source_ids, jnp.array([[1, 3, 2]])).shape
      (1, 3, 5)
    """
    check_rows("decode", source_ids, decoder_input_ids)
    masks = make_masks(config, source_ids, decoder_input_ids) if masks is None else masks
    model = _model(config, params)
    source, scope = Source(encoder_output, source_is_real(config, source_ids)), Scope(dropout_key=dropout_key)
    return model.unembed(model.decode(source, decoder_input_ids, masks, scope))


@compiled()
def hidden_states(
    config: TransformerConfig,
    params: Params,
    source_ids: SourceInput,
    decoder_input_ids: Ids,
    *,
    dropout_key: jax.Array | None = None,
    source_segments: jax.Array | None = None,
    target_segments: jax.Array | None = None,
) -> jax.Array:
    """Computes the decoder's output, which the head maps to logits.

    Args:
      source_ids: [B, S] or `Features`, as in `apply`.
      decoder_input_ids: [B, T], the target shifted right by one.
      dropout_key: a PRNG key; None computes without dropout.
      source_segments: as in `apply`.
      target_segments: as in `apply`.

    Returns:
      The decoder's output [B, T, D] in the compute dtype.

    Raises:
      ValueError: more tokens than the position table has rows; segments as in `apply`.
    """
    check_rows("hidden_states", source_ids, decoder_input_ids)
    segments = _segments(config, source_segments, target_segments)
    masks = make_masks(config, source_ids, decoder_input_ids, segments)
    model, scope = _model(config, params), Scope(dropout_key=dropout_key)
    encoder_output = model.encode(source_ids, masks.encoder_self, scope, segments.source)
    source = Source(encoder_output, source_is_real(model.config, source_ids), segments.source)
    return model.decode(source, decoder_input_ids, masks, scope, segments.target)


def _segments(config: TransformerConfig, source: jax.Array | None, target: jax.Array | None) -> Segments:
    """Returns the segments of packed rows; raises ValueError if they can't be."""
    if source is None and target is None:
        return UNPACKED
    if source is None or target is None:
        raise ValueError(
            "segments: expected both source_segments and target_segments, or neither; received "
            f"{'target' if source is None else 'source'}_segments alone"
        )
    if config.packing_obstacle:
        raise ValueError(f"segments: expected a config whose pairs can share a row; received {config.packing_obstacle}")
    return Segments(source, target)


@compiled()
def head(config: TransformerConfig, params: Params) -> tuple[jax.Array, jax.Array | None]:
    """Returns the head's kernel [D, V] and bias ([V] or None), in the parameters' dtype.

    The logits are `hidden_states(…) @ kernel + bias`, before the head's cap if it has one.
    """
    return _model(config, params).head_arrays()


@compiled("length", "num_beams")
def start_decoding(
    config: TransformerConfig,
    params: Params,
    encoder_output: jax.Array,
    source_ids: SourceInput,
    length: int,
    num_beams: int = 1,
    *,
    layers: list[Any] | None = None,
) -> DecoderState:
    """Prepares to decode token by token: caches the keys and values of the source for every layer.

    Args:
      encoder_output: [B, S, D].
      source_ids: [B, S] or `Features`, from which encoder_output was computed.
      length: the maximum number of tokens in the state.
      num_beams: K, the targets decoded in parallel for each source. They share its keys and values.
      layers: `decoder_layers(config, params)`, computed here if None.

    Returns:
      The state before the first token.

    Raises:
      ValueError: the config's masks make cached decoding differ from uncached decoding; `length` exceeds the rows of
        the position table.

    Example:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> from jax_transformer import TransformerConfig, decode_step, encode, init_params, start_decoding
      >>> config = TransformerConfig(source_vocab_size=7, target_vocab_size=5, d_model=4, num_heads=2, d_ff=8)
      >>> params = init_params(config, jax.random.key(0))
      >>> source_ids = jnp.array([[3, 4, 2, 0]])
      >>> encoder_output = encode(config, params, source_ids)
      >>> state = start_decoding(config, params, encoder_output, source_ids, length=3)
      >>> logits, state = decode_step(config, params, state, jnp.array([1]))  # the start token
      >>> int(state.position)
      1
    """
    if not config.cache_is_exact:
        raise ValueError(
            "decoding with a cache needs decoder_causal and masks that cover no queries; received "
            f"decoder_causal={config.decoder_causal}, decoder_padding={config.while_decoding().decoder_padding!r}, "
            f"cross_padding={config.while_decoding().cross_padding!r}"
        )
    check_fits(config.decoder, "the decoder's input", (source_ids.shape[0], length))
    source = Source(encoder_output, source_is_real(config, source_ids))
    return _model(config, params).start_decoding(source, layers, length=length, num_beams=num_beams)


@compiled()
def decode_step(
    config: TransformerConfig, params: Params, state: DecoderState, ids: Ids, *, layers: list[Any] | None = None
) -> tuple[jax.Array, DecoderState]:
    """Computes the logits that follow one more token of every target.

    The result equals `decode` of the whole prefix at its last position, up to rounding.

    Args:
      state: from `start_decoding` or the last step.
      ids: the tokens at `state.position`: [B, K], or [B] with a single beam.
      layers: `decoder_layers(config, params)`, computed here if None. Passing it saves time in a loop.

    Returns:
      Logits [B, K, V] in the compute dtype, [B, V] for ids [B], and the next state.

    Example:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> from jax_transformer import TransformerConfig, decode_step, encode, init_params, start_decoding
      >>> config = TransformerConfig(source_vocab_size=7, target_vocab_size=5, d_model=4, num_heads=2, d_ff=8)
      >>> params = init_params(config, jax.random.key(0))
      >>> source_ids = jnp.array([[3, 4, 2, 0]])
      >>> encoder_output = encode(config, params, source_ids)
      >>> state = start_decoding(config, params, encoder_output, source_ids, length=3, num_beams=2)
      >>> logits, state = decode_step(config, params, state, jnp.array([[1, 1]]))
      >>> logits.shape
      (1, 2, 5)
    """
    if ids.ndim == 1:
        logits, state = decode_step(config, params, state, ids[:, None], layers=layers)
        return logits[:, 0], state
    return _model(config, params).decode_step(state, ids, layers)


@compiled()
def decoder_layers(config: TransformerConfig, params: Params) -> list[Any]:
    """Returns the parameters of each decoder layer, rearranged so that `decode_step` reads them fastest.

    If all layers share their parameters, the list has one entry.
    """
    return _model(config, params).decoder_layers()


def _model(config: TransformerConfig, params: Params) -> Transformer:
    graph, abstract = _abstract_model(config)
    check_fit(params, abstract)
    return nnx.merge(graph, nnx.State(params))


@cache
def _abstract_model(config: TransformerConfig) -> tuple[nnx.GraphDef[Transformer], Params]:
    """Returns the model's structure, and the shapes and dtypes of its parameters."""
    graph, state = nnx.split(nnx.eval_shape(lambda: Transformer(config, KeyStream(jax.random.key(0)))))
    return graph, nnx.to_pure_dict(state)
