"""A stack: embedded tokens, a sequence of equal layers, and a final norm (Vaswani et al. 2017, figure 1).

The parameters of a stack's layers are stacked: every leaf of `layers` has a leading layer axis [L, …], or [1, …] if all
layers share one set. The layers run under `lax.scan`, or one by one over slices of the same leaves.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx

from jax_transformer.config import specs
from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.positions import Learned, RelativeBias, RelativeVectors, Table
from jax_transformer.model import distances, flash
from jax_transformer.model.dropout import Site, fold
from jax_transformer.model.dtypes import compute_dtype
from jax_transformer.model.embeddings import PositionTable, TokenTypes
from jax_transformer.model.initializers import KeyStream
from jax_transformer.model.layers import DecoderLayer, Layer
from jax_transformer.model.norms import Factor, Norm
from jax_transformer.model.scope import Scope
from jax_transformer.model.sharding import constrain, gather, platform
from jax_transformer.model.trace import Tap, Trace

Made = TypeVar("Made", bound=nnx.Module)
CallLayer = Callable[[Any, jax.Array, Scope], jax.Array]
"""(layer, x [B, T, D], scope) → the layer's output [B, T, D]."""


class Stack(nnx.Module):
    """Embeds tokens, runs the layers, and applies the final norm; encoder and decoder are each one."""

    def __init__(
        self,
        config: TransformerConfig,
        stack: specs.Stack,
        make_layer: Callable[[TransformerConfig, KeyStream], Layer],
        keys: KeyStream,
    ) -> None:
        self.config, self.stack, self.is_decoder = config, stack, make_layer is DecoderLayer
        count = 1 if stack.share_layers else stack.num_layers
        self.layers = stack_layers(lambda keys: make_layer(config, keys), count, keys)
        kind = stack.positions
        if isinstance(kind, Learned):
            self.positions = PositionTable(config, (stack.table_rows, stack.d_model), keys)
        if stack.token_types:
            self.token_types = TokenTypes(config, stack, keys)
        if isinstance(kind, Table) and kind.learned_scale:
            self.position_scale = Factor(1.0)
        if isinstance(kind, RelativeBias) and not kind.per_layer:
            self.relative_bias = distances.RelativeBias(kind, stack, keys)
        if isinstance(kind, RelativeVectors) and not kind.per_layer:
            self.relative_vectors = distances.RelativeVectors(kind, stack, keys)
        if stack.embedding_norm != "none":
            self.embedding_norm = Norm(stack)
        if stack.final_norm:
            self.final_norm = Norm(stack)

    def embed(self, vectors: jax.Array, table: jax.Array | None, numbers: jax.Array, scope: Scope) -> jax.Array:
        """Returns token vectors [B, T, D] plus the rows `numbers` of the position table, after norm and dropout.

        Args:
          table: the sinusoidal table [rows, D]; None with other kinds of positions.
        """
        x = scope.tap("token_embedding", vectors)  # [B, T, D]
        if self.stack.token_types:
            x = x + gather(self.token_types.embedding[...], None, "features")[0].astype(x.dtype)
        if self.stack.embedding_norm == "before_positions":
            x = self.embedding_norm(x)
        table = self.positions.embedding[...] if hasattr(self, "positions") else table
        if table is not None:
            rows = gather(table, None, "features")[numbers].astype(x.dtype)  # [B, T, D], or 1 for B or T
            x = x + self._scaled(scope.tap("positions", self._without_pad_gradient(rows, numbers)))
        if self.stack.embedding_norm == "after_positions":
            x = self.embedding_norm(x)
        x = scope.dropout(scope.tap("embedding", x), self.stack.dropout.at("embedding"), Site.EMBEDDING)
        return constrain(x, "rows", None, None)

    def _without_pad_gradient(self, rows: jax.Array, numbers: jax.Array) -> jax.Array:
        """Returns rows of the position table, [B, T, D], of which those of pads send no gradient if the table's row of
        pads isn't trained."""
        kind = self.stack.positions
        if not isinstance(kind, Learned) or kind.trains_pad:
            return rows
        return jnp.where((numbers == kind.offset)[..., None], jax.lax.stop_gradient(rows), rows)

    def _scaled(self, positions: jax.Array) -> jax.Array:
        """Returns rows of the position table, [B, T, D] or broadcastable to it, scaled for the addition."""
        factor = self.stack.positions.factor if isinstance(self.stack.positions, Table) else 1.0
        positions = positions if factor == 1.0 else positions * factor
        return self.position_scale(positions) if hasattr(self, "position_scale") else positions

    def run(self, x: jax.Array, call: CallLayer, scope: Scope) -> jax.Array:
        """Returns x [B, T, D] after `call(layer, x, scope)` for every layer and the final norm."""
        graph, parameters = nnx.split(self.layers)
        x = x.astype(jnp.result_type(x, *{compute_dtype(self.config, leaf) for leaf in jax.tree.leaves(parameters)}))
        layers_key = fold(scope.dropout_key, Site.LAYERS)

        def run_layer(x: jax.Array, layer_parameters: Any, index: jax.Array | int, tap: Tap) -> jax.Array:
            return call(nnx.merge(graph, layer_parameters), x, Scope(tap, fold(layers_key, index), index))

        loop = self._scan if self.config.compute.layers == "scan" and not scope.tap.intervenes else self._unroll
        return self.finish(loop(x, parameters, run_layer, scope.tap), scope)

    def _scan(self, x: jax.Array, parameters: Any, run_layer: Callable[..., jax.Array], tap: Tap) -> jax.Array:
        is_shared = self.stack.share_layers
        has_axis = self.is_decoder and platform() == "gpu" and not is_shared
        shared = jax.tree.map(jnp.asarray, layer_slice(parameters, 0)) if is_shared else None

        def body(x: jax.Array, layer: tuple[Any, jax.Array]) -> tuple[jax.Array, Trace]:
            layer_parameters, index = layer
            if is_shared:
                layer_parameters = shared
            elif has_axis:
                layer_parameters = layer_slice(layer_parameters, 0)
            layer_tap = Tap(tap.record)
            return run_layer(x, layer_parameters, index, layer_tap), layer_tap.trace

        body = rematerialise(self.config, body, prevent_cse=False)  # a scan's body isn't merged with its recomputation
        if has_axis:
            # XLA's GPU compiler would initialize the gradients of both stacks in one operation if their shapes are
            # equal, and so keep the encoder's in memory during the decoder's backward pass. One more axis prevents it.
            # On TPUs the axis would do harm: the compiler compiles equal operations of both stacks only once.
            parameters = jax.tree.map(lambda leaf: leaf[:, None], parameters)
        each = None if is_shared else parameters
        x, traces = jax.lax.scan(body, x, (each, jnp.arange(self.stack.num_layers)))
        tap.layers(traces, self.stack.num_layers)
        return x

    def _unroll(self, x: jax.Array, parameters: Any, run_layer: Callable[..., jax.Array], tap: Tap) -> jax.Array:
        for i in range(self.stack.num_layers):
            run: Callable[..., jax.Array] = partial(run_layer, index=i, tap=tap.scope(f"layers.{i}"))
            if not (tap.record or tap.intervenes):  # a tapped activation can't leave a rematerialised function
                run = rematerialise(self.config, run)
            x = run(x, layer_slice(parameters, 0 if self.stack.share_layers else i))
        return x

    def finish(self, x: jax.Array, scope: Scope) -> jax.Array:
        """Returns the stack's output [B, T, D]: x after the optional final norm, and dropout."""
        x = self.final_norm(x) if self.stack.final_norm else x
        return scope.dropout(scope.tap("output", x), self.stack.dropout.output, Site.OUTPUT)


def rematerialise(
    config: TransformerConfig, run_layer: Callable[..., Any], prevent_cse: bool = True
) -> Callable[..., Any]:
    """Returns `run_layer` with a backward pass that recomputes the activations named by `remat` (Chen et al. 2016)."""
    if config.compute.remat == "none":
        return run_layer
    policies = jax.checkpoint_policies
    products = policies.save_from_both_policies(
        policies.dots_with_no_batch_dims_saveable, policies.save_only_these_names(flash.SAVED)
    )
    policy = None if config.compute.remat == "all" else products
    return jax.checkpoint(run_layer, prevent_cse=prevent_cse, policy=policy)


def stack_layers(make_layer: Callable[[KeyStream], Made], count: int, keys: KeyStream) -> Made:
    """Returns `count` layers as one module, whose parameters have a leading axis [count]."""
    graph, _ = nnx.split(nnx.eval_shape(lambda: make_layer(KeyStream(jax.random.key(0)))))
    layer_keys = jax.random.split(next(keys), count)
    return nnx.merge(graph, jax.vmap(lambda key: nnx.state(make_layer(KeyStream(key))))(layer_keys))


def layer_slice(stacked: Any, index: int) -> Any:
    """Returns layer `index` of stacked leaves [L, …]."""
    return jax.tree.map(lambda leaf: leaf[index], stacked)
