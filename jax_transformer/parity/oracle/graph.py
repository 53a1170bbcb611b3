"""The model as a graph: every activation of a trace, with its inputs, its parameters and its formula."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from jax_transformer.parity.oracle import formulas
from jax_transformer.parity.oracle.formulas import Stack

if TYPE_CHECKING:
    from jax_transformer.config.model import TransformerConfig

Kind = Literal[
    "mask",
    "token_embedding",
    "positions",
    "embedding",
    "position_bias",
    "projection",
    "merge_heads",
    "attention_logits",
    "attention_weights",
    "context",
    "norm",
    "residual",
    "residual_norm",
    "same",
    "feed_forward_hidden",
    "logits",
]
"""The formula that a node computes, by name; masks and logits have several."""

MODEL_INPUTS = ("source_ids", "decoder_input_ids")
_IDS: dict[Stack, str] = {"encoder": "source_ids", "decoder": "decoder_input_ids"}

Formula = Callable[..., np.ndarray]
"""(config, arrays by argument) → array; pure."""
_NONE: Mapping[str, str] = MappingProxyType({})


class Node(NamedTuple):
    """Describes one activation of a trace."""

    name: str
    kind: Kind
    inputs: Mapping[str, str]
    """The formula's argument → the name of an earlier node or of one of MODEL_INPUTS."""
    parameters: Mapping[str, str]
    """The formula's argument → the path of a parameter or constant; in a layer, `encoder/layers/…/kernel[0]`."""
    formula: Formula

    def compute(
        self, config: TransformerConfig, inputs: Mapping[str, np.ndarray], parameters: Mapping[str, np.ndarray]
    ) -> np.ndarray:
        """Returns the formula's result for arrays by argument, as in `inputs` and `parameters`."""
        return self.formula(config, **inputs, **parameters)


class Place(NamedTuple):
    """Locates a name in the model."""

    stack: str | None
    """None for names of both stacks or neither: masks and logits."""
    layer: int | None
    path: tuple[str, ...]
    """The rest of the name, in parts: ("self_attention", "query")."""


def place(name: str) -> Place:
    """Parses a name: `encoder.layers.0.self_attention.query` is Place("encoder", 0, ("self_attention", "query"))."""
    match = re.fullmatch(r"(?:(encoder|decoder)\.)?(?:layers\.(\d+)\.)?(.+)", name)
    assert match is not None  # any name that isn't empty
    stack, layer, rest = match.groups()
    return Place(stack, None if layer is None else int(layer), tuple(rest.split(".")))


def downstream(graph: Iterable[Node], name: str) -> tuple[str, ...]:
    """Returns the names of the nodes that depend on this node or model input, directly or not, in order."""
    reached = {name: None}
    for node in graph:
        if not reached.keys().isdisjoint(node.inputs.values()):
            reached[node.name] = None
    return tuple(reached)[1:]


def nodes(config: TransformerConfig) -> tuple[Node, ...]:
    """Returns every activation in execution order, under the names of `functional.apply(…, return_trace=True)`.

    With the masks of decoding: `nodes(config.while_decoding())`.
    """
    model = _Scope(config, [])
    masks = _add_masks(model)
    encoder_output = _add_stack(model, "encoder", masks, None)
    decoder_output = _add_stack(model, "decoder", masks, encoder_output)
    _add_logits(model, decoder_output)
    return tuple(model.graph)


def known_nodes(config: Any) -> tuple[Node, ...]:
    """Returns `nodes` of a config that was asked for before, without building them again."""
    return _nodes_of(config) if isinstance(config, Hashable) else nodes(config)


@cache
def _nodes_of(config: Any) -> tuple[Node, ...]:
    return nodes(config)


@dataclass(frozen=True)
class _Scope:
    """Adds nodes under a prefix of names and of parameters' paths."""

    config: TransformerConfig
    graph: list[Node]
    name: str = ""
    path: str = ""
    index: str = ""
    """The suffix of a layer's parameters, `[i]`."""

    def within(self, name: str) -> _Scope:
        return replace(self, name=f"{self.name}{name}.", path=f"{self.path}{name}/")

    def layer(self, i: int) -> _Scope:
        return replace(self, name=f"{self.name}layers.{i}.", path=f"{self.path}layers/", index=f"[{i}]")

    def add(
        self,
        name: str,
        kind: Kind,
        formula: Formula,
        inputs: Mapping[str, str | None],
        parameters: Mapping[str, str] = _NONE,
    ) -> str:
        """Adds a node without the inputs that are None; returns its full name."""
        self.graph.append(
            Node(self.name + name, kind, {key: value for key, value in inputs.items() if value}, parameters, formula)
        )
        return self.name + name

    def parameters(self, module: str, *names: str) -> dict[str, str]:
        """Returns the paths of a module's parameters, by name."""
        return {name: f"{self.path}{module}/{name}{self.index}" for name in names}

    def linear(self, module: str, use_bias: bool) -> dict[str, str]:
        return self.parameters(module, "kernel", *(["bias"] if use_bias else []))

    def norm(self, module: str) -> dict[str, str]:
        return self.parameters(module, "scale", *(["bias"] if self.config.norm_bias else []))


def _add_masks(model: _Scope) -> dict[str, str]:
    """Adds the masks that the config has; returns their names."""
    config, scope, masks = model.config, model.within("mask"), {}
    source, target = {"source_ids": "source_ids"}, {"decoder_input_ids": "decoder_input_ids"}
    if config.encoder_padding != "none":
        masks["encoder_self"] = scope.add("encoder_self", "mask", formulas.encoder_self_mask, source)
    if config.decoder_padding != "none" or config.decoder_causal:
        masks["decoder_self"] = scope.add("decoder_self", "mask", formulas.decoder_self_mask, target)
    if config.cross_padding != "none":
        masks["cross"] = scope.add("cross", "mask", formulas.cross_mask, source | target)
    return masks


def _add_stack(model: _Scope, stack: Stack, masks: Mapping[str, str], encoder_output: str | None) -> str:
    """Adds the embedding, the layers and the final norm of a stack; the decoder attends to encoder_output."""
    config, scope = model.config, model.within(stack)
    shares_bias = config.position_kind == "relative_bias" and not config.relative_bias_per_layer
    bias = _add_position_bias(scope, stack) if shares_bias else None
    x = _add_embedding(scope, stack)
    for i in range(getattr(config, stack).num_layers):
        x = _add_layer(scope.layer(i), stack, x, encoder_output, masks, bias)
    if config.final_norm:
        return scope.add("output", "norm", formulas.norm, {"x": x}, scope.norm("final_norm"))
    return scope.add("output", "same", formulas.same, {"x": x})


def _add_embedding(scope: _Scope, stack: Stack) -> str:
    config, ids = scope.config, {"ids": _IDS[stack]}
    table = (
        "shared_embedding"
        if config.share_embeddings
        else {"encoder": "source_embedding", "decoder": "target_embedding"}[stack]
    )
    parameters = {"embedding": f"{table}/embedding"}
    tokens = scope.add("token_embedding", "token_embedding", formulas.token_embedding, ids, parameters)
    tables = {"sinusoidal": f"constants/{stack}_positions", "learned": f"{stack}/positions/embedding"}
    positions = None
    if config.position_kind in tables:
        parameters = {"table": tables[config.position_kind]}
        positions = scope.add("positions", "positions", partial(formulas.positions, stack=stack), ids, parameters)
    parameters = {} if getattr(config, stack).embedding_norm == "none" else scope.norm("embedding_norm")
    inputs = {"tokens": tokens, "positions": positions}
    return scope.add("embedding", "embedding", partial(formulas.embedding, stack=stack), inputs, parameters)


def _add_position_bias(scope: _Scope, stack: Stack) -> str:
    parameters = scope.parameters("relative_bias", "embedding")
    return scope.add(
        "position_bias", "position_bias", partial(formulas.position_bias, stack=stack), {"ids": _IDS[stack]}, parameters
    )


def _add_layer(
    layer: _Scope, stack: Stack, x: str, encoder_output: str | None, masks: Mapping[str, str], position_bias: str | None
) -> str:
    config = layer.config
    h = _add_before(layer, "self_attention", x)
    scope = layer.within("self_attention")
    has_own_bias = config.position_kind == "relative_bias" and config.relative_bias_per_layer
    query, key, value = _add_projections(scope, h, h)
    bias = _add_position_bias(scope, stack) if has_own_bias else position_bias
    y = _add_attention(scope, query, key, value, masks.get(f"{stack}_self"), bias)
    x = _add_after(layer, "self_attention", x, y, "self_attention_residual")

    if encoder_output is not None:
        h = _add_before(layer, "cross_attention", x)
        scope = layer.within("cross_attention")
        y = _add_attention(scope, *_add_projections(scope, h, encoder_output), masks.get("cross"), None)
        x = _add_after(layer, "cross_attention", x, y, "cross_attention_residual")

    if not config.feed_forward:
        return layer.add("output", "same", formulas.same, {"x": x})
    y = _add_feed_forward(layer.within("feed_forward"), _add_before(layer, "feed_forward", x))
    return _add_after(layer, "feed_forward", x, y, "output")


def _add_before(layer: _Scope, sublayer: str, x: str) -> str:
    """Adds the norm before a sublayer, if there is one; returns the sublayer's input."""
    if layer.config.norm_kind == "none" or layer.config.norm_placement == "post":
        return x
    return layer.add(f"{sublayer}_norm", "norm", formulas.norm, {"x": x}, layer.norm(f"{sublayer}_norm"))


def _add_after(layer: _Scope, sublayer: str, x: str, y: str, name: str) -> str:
    """Adds the residual stream x plus the sublayer's output y, and the norm after it, if any."""
    inputs = {"x": x, "y": y}
    if layer.config.norm_kind == "none" or layer.config.norm_placement == "pre":
        return layer.add(name, "residual", formulas.residual, inputs)
    normed = layer.add(
        f"{sublayer}_norm", "residual_norm", formulas.residual_norm, inputs, layer.norm(f"{sublayer}_norm")
    )
    return layer.add(name, "same", formulas.same, {"x": normed})


def _add_projections(scope: _Scope, x: str, y: str) -> tuple[str, str, str]:
    """Adds the query projected from x, and key and value projected from y."""

    def add(name: str, x: str) -> str:
        parameters = scope.linear(name, scope.config.attention_bias)
        return scope.add(name, "projection", partial(formulas.projection, axes="BTD,DNH->BTNH"), {"x": x}, parameters)

    return add("query", x), add("key", y), add("value", y)


def _add_attention(scope: _Scope, query: str, key: str, value: str, mask: str | None, position_bias: str | None) -> str:
    inputs = {"query": query, "key": key, "position_bias": position_bias, "mask": mask}
    logits = scope.add("logits", "attention_logits", formulas.attention_logits, inputs)
    weights = scope.add("weights", "attention_weights", formulas.attention_weights, {"logits": logits})
    context = scope.add("context", "context", formulas.context, {"weights": weights, "value": value})
    if not scope.config.attention_output:
        return scope.add("output", "merge_heads", formulas.merge_heads, {"x": context})
    parameters = scope.linear("output", scope.config.attention_output_bias)
    return scope.add(
        "output", "projection", partial(formulas.projection, axes="BTNH,NHD->BTD"), {"x": context}, parameters
    )


def _add_feed_forward(scope: _Scope, x: str) -> str:
    use_bias = scope.config.feed_forward_bias
    gate = scope.linear("gate", use_bias) if scope.config.feed_forward_gated else {}
    parameters = scope.linear("hidden", use_bias) | {f"gate_{name}": path for name, path in gate.items()}
    hidden = scope.add("hidden", "feed_forward_hidden", formulas.feed_forward_hidden, {"x": x}, parameters)
    return scope.add(
        "output",
        "projection",
        partial(formulas.projection, axes="BTF,FD->BTD"),
        {"x": hidden},
        scope.linear("output", use_bias),
    )


def _add_logits(model: _Scope, x: str) -> None:
    config = model.config
    biases = {"parameter": "head_bias" if config.tie_head else "head/bias", "buffer": "constants/head_bias"}
    bias = {"bias": biases[config.head_bias]} if config.head_bias in biases else {}
    if config.tie_head:
        table = "shared_embedding" if config.share_embeddings else "target_embedding"
        model.add("logits", "logits", formulas.tied_logits, {"x": x}, {"embedding": f"{table}/embedding"} | bias)
    else:
        model.add("logits", "logits", formulas.logits, {"x": x}, {"kernel": "head/kernel"} | bias)
