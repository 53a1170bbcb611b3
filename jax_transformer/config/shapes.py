"""The shapes of a model's parameters, as its config says them.

Files are checked, weights ported and sizes counted by these, without making a model. The modules of the package `model`
make the parameters themselves; tests compare the two.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import TypeAlias

from jax_transformer.config.plan import plan
from jax_transformer.config.positions import Learned, RelativeBias, RelativeVectors, Sinusoidal, Table
from jax_transformer.config.short_names import ShortNames
from jax_transformer.config.specs import Attention, FeedForward, Stack, Stem

Shapes: TypeAlias = dict[str, tuple[int, ...]]


@cache
def param_shapes(config: ShortNames) -> Mapping[str, tuple[int, ...]]:
    """Returns the shape of every leaf of the parameters, by path.

    Raises:
      ValueError: the size of a vocabulary isn't known.

    Example:
      >>> from jax_transformer import TransformerConfig
      >>> from jax_transformer.config.shapes import param_shapes
      >>> shapes = param_shapes(TransformerConfig(source_vocab_size=9, target_vocab_size=7))
      >>> shapes["target_embedding/embedding"], shapes["encoder/layers/feed_forward/hidden/kernel"]
      ((7, 512), (6, 512, 2048))
    """
    for name in config.vocabularies:
        if getattr(config, name) == 0:
            raise ValueError(f"{name} must be set before parameters are made; received 0")
    return MappingProxyType(_shapes(config))


def count_parameters(config: ShortNames) -> int:
    """Returns the number of values in the parameters, constants included; embeddings of a vocabulary of size 0, which
    isn't known yet, have none.

    Example:
      >>> from jax_transformer import TransformerConfig
      >>> from jax_transformer.config.shapes import count_parameters
      >>> count_parameters(TransformerConfig())
      44664832
    """
    return sum(map(math.prod, _shapes(config).values()))


def count_constants(config: ShortNames) -> int:
    """Returns how many of these values are constants, which no training changes."""
    return sum(math.prod(shape) for path, shape in _shapes(config).items() if path.startswith("constants/"))


def _shapes(config: ShortNames) -> Shapes:
    encoder, decoder, head, vocabulary = config.encoder, config.decoder, config.head, config.target.vocab_size
    shapes: Shapes = {}
    if config.share_embeddings:
        shapes["shared_embedding/embedding"] = (vocabulary, decoder.d_model)
    else:
        if config.stem is None:
            shapes["source_embedding/embedding"] = (config.source.vocab_size, encoder.d_model)
        else:
            shapes |= _under("stem", _stem(config.stem, encoder.d_model))
        shapes["target_embedding/embedding"] = (vocabulary, decoder.d_model)
    if not head.tied:
        shapes |= _under("head", _projection((decoder.d_model,), (vocabulary,), head.bias == "parameter"))
    elif head.bias == "parameter":
        shapes["head_bias"] = (vocabulary,)
    if head.transform is not None:
        shapes |= _under("head_transform", _projection((decoder.d_model,), (decoder.d_model,), True))
        shapes |= _norm("head_norm", decoder, decoder.d_model)
    if head.bias == "buffer":
        shapes["constants/head_bias"] = (vocabulary,)
    for name, stack in (("encoder", encoder), ("decoder", decoder)):
        if isinstance(stack.positions, Sinusoidal):
            shapes[f"constants/{name}_positions"] = (stack.table_rows, stack.d_model)
        shapes |= _under(name, _stack(stack))
    return dict(sorted(shapes.items()))


def _stem(stem: Stem, d_model: int) -> Shapes:
    inputs = {"first": stem.features, "second": d_model}
    return {
        path: shape
        for name, width in inputs.items()
        for path, shape in _under(name, _projection((stem.kernel, width), (d_model,), True)).items()
    }


def _stack(stack: Stack) -> Shapes:
    layers = 1 if stack.share_layers else stack.num_layers
    shapes = {f"layers/{path}": (layers, *shape) for path, shape in _layer(stack).items()}
    if isinstance(stack.positions, Learned):
        shapes["positions/embedding"] = (stack.table_rows, stack.d_model)
    if isinstance(stack.positions, Table) and stack.positions.learned_scale:
        shapes["position_scale/factor"] = (1,)
    if stack.token_types:
        shapes["token_types/embedding"] = (stack.token_types, stack.d_model)
    shapes |= _distances(stack, per_layer=False)
    if stack.embedding_norm != "none":
        shapes |= _norm("embedding_norm", stack, stack.d_model)
    if stack.final_norm:
        shapes |= _norm("final_norm", stack, stack.d_model)
    return shapes


def _layer(stack: Stack) -> Shapes:
    shapes: Shapes = {}
    features = (stack.d_model,)
    for sublayer in plan(stack):
        if isinstance(sublayer.part, FeedForward):
            inner = _feed_forward(stack, sublayer.part)
        else:
            inner = _attention(stack, sublayer.part)
        if sublayer.name == "self_attention":
            inner |= _distances(stack, per_layer=True)
        shapes |= _under(sublayer.name, inner)
        for norm in filter(None, (sublayer.norm, sublayer.output_norm)):
            shapes |= _norm(norm, stack, stack.d_model)
        if sublayer.stream_scale:
            shapes[f"{sublayer.stream_scale}/scale"] = features
        if sublayer.output_scale:
            is_number = stack.residual.output_scale == "scalar"
            shapes[f"{sublayer.output_scale}/{'factor' if is_number else 'scale'}"] = (1,) if is_number else features
    return shapes


def _attention(stack: Stack, attention: Attention) -> Shapes:
    features, sizes = (stack.d_model,), attention.shape(stack.d_model)
    shapes: Shapes = {}
    for name, heads, width, has_bias in (
        ("query", sizes.num_heads, sizes.head_dim, attention.bias),
        ("key", sizes.num_kv_heads, sizes.head_dim, attention.has_key_bias),
        ("value", sizes.num_kv_heads, sizes.value_dim, attention.bias),
    ):
        shapes |= _under(name, _projection(features, (heads, width), has_bias))
    if attention.output:
        contexts = (sizes.num_heads, sizes.value_dim)
        shapes |= _under("output", _projection(contexts, features, attention.output_bias))
    if attention.query_key_norm:
        shapes |= _norm("query_norm", stack, sizes.head_dim) | _norm("key_norm", stack, sizes.head_dim)
    if attention.head_scale:
        shapes["head_scale/scale"] = (sizes.num_heads,)
    if attention.context_norm:
        shapes |= _norm("context_norm", stack, sizes.num_heads * sizes.value_dim)
    return shapes


def _feed_forward(stack: Stack, part: FeedForward) -> Shapes:
    features, hidden = (stack.d_model,), (part.width,)
    shapes = _under("hidden", _projection(features, hidden, part.bias))
    if part.gated:
        shapes |= _under("gate", _projection(features, hidden, part.bias))
    output_bias = part.bias if part.output_bias is None else part.output_bias
    shapes |= _under("output", _projection(hidden, features, output_bias))
    if part.hidden_norm:
        shapes |= _norm("hidden_norm", stack, part.width)
    if part.activation == "prelu":
        shapes["slope"] = (1,)
    return shapes


def _distances(stack: Stack, *, per_layer: bool) -> Shapes:
    """Returns the shapes of a stack's relative positions, if each layer, or the stack, has them."""
    kind, sizes = stack.positions, stack.heads
    if not isinstance(kind, RelativeBias | RelativeVectors) or kind.per_layer != per_layer:
        return {}
    if isinstance(kind, RelativeBias):
        return {"relative_bias/embedding": (kind.buckets, sizes.num_heads)}
    rows = 2 * kind.max_distance + 1
    shapes: Shapes = {"relative_vectors/keys": (rows, sizes.head_dim)}
    if kind.values:
        shapes["relative_vectors/values"] = (rows, sizes.value_dim)
    return shapes


def _norm(name: str, stack: Stack, size: int) -> Shapes:
    norm = stack.norm
    if norm is None:
        return {}
    return {f"{name}/{leaf}": (size,) for leaf, there in (("scale", norm.scale), ("bias", norm.bias)) if there}


def _projection(inputs: tuple[int, ...], outputs: tuple[int, ...], has_bias: bool) -> Shapes:
    return {"kernel": (*inputs, *outputs)} | ({"bias": outputs} if has_bias else {})


def _under(name: str, shapes: Shapes) -> Shapes:
    return {f"{name}/{path}": shape for path, shape in shapes.items()}
