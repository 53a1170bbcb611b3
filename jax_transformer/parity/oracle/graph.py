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
    from jax_transformer.config.specs import Stack as StackConfig

Kind = Literal[
    "mask",
    "token_embedding",
    "positions",
    "embedding",
    "position_bias",
    "projection",
    "rotation",
    "merge_heads",
    "attention_logits",
    "attention_weights",
    "context",
    "head_scale",
    "context_norm",
    "norm",
    "residual",
    "residual_norm",
    "parallel_residual",
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


def norm_roles(config: TransformerConfig) -> tuple[str, ...]:
    """Returns the names of a norm's parameters: "scale" and "bias", without those that the config leaves out."""
    return (*(["scale"] if config.norm_scale else []), *(["bias"] if config.norm_bias else []))


def parameter_index(config: TransformerConfig, layer: int) -> int:
    """Returns where a layer's parameters are among the stacked ones."""
    return 0 if config.share_layers else layer


def norm_module(config: TransformerConfig, sublayer: str) -> str:
    """Returns the name of the norm before or after a sublayer, among its layer's parameters."""
    return "shared_norm" if config.share_norms else f"{sublayer}_norm"


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

    @property
    def stack(self) -> StackConfig:
        """The stack in whose scope this is."""
        stack: StackConfig = getattr(self.config, self.name.partition(".")[0])
        return stack

    def within(self, name: str) -> _Scope:
        return replace(self, name=f"{self.name}{name}.", path=f"{self.path}{name}/")

    def layer(self, i: int) -> _Scope:
        return replace(
            self,
            name=f"{self.name}layers.{i}.",
            path=f"{self.path}layers/",
            index=f"[{parameter_index(self.config, i)}]",
        )

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
        return self.parameters(module, *norm_roles(self.config))

    def scales(self, sublayer: str) -> dict[str, str]:
        """Returns the paths of the trained scales of a residual sum."""
        config, found = self.config, {}
        if config.learned_residual_scale in ("all", sublayer):
            found["residual_scale"] = f"{self.path}{sublayer}_residual_scale/scale{self.index}"
        if config.learned_sublayer_scale != "none":
            found["output_scale"] = self._output_scale(sublayer)
        return found

    def parallel_scales(self, sublayers: Iterable[str]) -> dict[str, str]:
        """Returns the paths of the trained scales of a sum of several sublayers' outputs."""
        if self.config.learned_sublayer_scale == "none":
            return {}
        return {f"{sublayer}_scale": self._output_scale(sublayer) for sublayer in sublayers}

    def _output_scale(self, sublayer: str) -> str:
        leaf = "scale" if self.config.learned_sublayer_scale == "channel" else "factor"
        return f"{self.path}{sublayer}_output_scale/{leaf}{self.index}"


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
    own = scope.stack
    shares_bias = own.position_kind == "relative_bias" and not config.relative_bias_per_layer
    bias = _add_position_bias(scope, stack) if shares_bias or own.position_kind == "alibi" else None
    x = _add_embedding(scope, stack)
    for i in range(own.num_layers):
        x = _add_layer(scope.layer(i), stack, x, encoder_output, masks, bias)
    if own.final_norm:
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
    formula = partial(formulas.token_embedding, stack=stack)
    tokens = scope.add("token_embedding", "token_embedding", formula, ids, parameters)
    own, positions = scope.stack, None
    if own.has_table:
        learned = own.position_kind == "learned"
        parameters = {"table": f"{stack}/positions/embedding" if learned else f"constants/{stack}_positions"}
        positions = scope.add("positions", "positions", partial(formulas.positions, stack=stack), ids, parameters)
    parameters = {} if own.embedding_norm == "none" else scope.norm("embedding_norm")
    if config.learned_position_scale and own.has_table:
        parameters |= {"position_scale": f"{stack}/position_scale/factor"}
    inputs = {"tokens": tokens, "positions": positions}
    return scope.add("embedding", "embedding", partial(formulas.embedding, stack=stack), inputs, parameters)


def _add_position_bias(scope: _Scope, stack: Stack) -> str:
    is_learned = scope.stack.position_kind == "relative_bias"
    formula = partial(formulas.position_bias if is_learned else formulas.alibi_bias, stack=stack)
    parameters = scope.parameters("relative_bias", "embedding") if is_learned else {}
    return scope.add("position_bias", "position_bias", formula, {"ids": _IDS[stack]}, parameters)


def _vectors(scope: _Scope, stack: Stack) -> dict[str, str]:
    """Returns the paths of the vectors by distance that a self-attention adds, by the formulas' arguments."""
    config = scope.config
    if scope.stack.position_kind != "relative_vectors":
        return {}
    names = ("keys", "values") if config.relative_value_vectors else ("keys",)
    if config.relative_bias_per_layer:
        paths = scope.parameters("relative_vectors", *names)
    else:
        paths = {name: f"{stack}/relative_vectors/{name}" for name in names}
    return {f"relative_{name}": path for name, path in paths.items()}


def _add_layer(
    layer: _Scope, stack: Stack, x: str, encoder_output: str | None, masks: Mapping[str, str], position_bias: str | None
) -> str:
    """Adds a layer's sublayers, one after the other or side by side, and its output."""
    config, read = layer.config, x
    outputs: dict[str, str] = {}
    sublayers = ["self_attention", *(["cross_attention"] if encoder_output else [])]
    for sublayer in [*sublayers, "feed_forward"] if config.feed_forward else sublayers:
        h = _add_before(layer, sublayer, read, is_first=not outputs)
        scope = layer.within(sublayer)
        if sublayer == "feed_forward":
            y = _add_feed_forward(scope, stack, h)
        elif sublayer == "cross_attention":
            assert encoder_output is not None
            y = _add_cross_attention(scope, h, encoder_output, masks.get("cross"))
        else:
            y = _add_self_attention(scope, stack, h, masks.get(f"{stack}_self"), position_bias)
        outputs[sublayer] = _add_output_norm(layer, sublayer, y)
        if not config.parallel_residual:
            name = "output" if sublayer == "feed_forward" else f"{sublayer}_residual"
            read = _add_after(layer, sublayer, read, outputs[sublayer], name)
    if config.parallel_residual:
        formula = partial(formulas.parallel_residual, stack=stack)
        return layer.add("output", "parallel_residual", formula, {"x": x, **outputs}, layer.parallel_scales(outputs))
    return read if config.feed_forward else layer.add("output", "same", formulas.same, {"x": read})


def _add_self_attention(scope: _Scope, stack: Stack, h: str, mask: str | None, position_bias: str | None) -> str:
    config = scope.config
    kind = scope.stack.position_kind
    has_own_bias = kind == "relative_bias" and config.relative_bias_per_layer
    query, key, value = _add_projections(scope, h, h)
    if kind == "rotary":
        query, key = _add_rotation(scope, query, "query", stack), _add_rotation(scope, key, "key", stack)
    bias = _add_position_bias(scope, stack) if has_own_bias else position_bias
    return _add_attention(scope, _Heads(query, key, value), mask, bias, _vectors(scope, stack))


def _add_cross_attention(scope: _Scope, h: str, encoder_output: str, mask: str | None) -> str:
    query, key, value = _add_projections(scope, h, encoder_output)
    if scope.config.rotary_cross_attention:
        query, key = _add_rotation(scope, query, "query", "decoder"), _add_rotation(scope, key, "key", "encoder")
    return _add_attention(scope, _Heads(query, key, value), mask, None, {})


def _add_before(layer: _Scope, sublayer: str, x: str, *, is_first: bool) -> str:
    """Adds the norm before a sublayer, if there is one; returns the sublayer's input.

    Sublayers side by side that share a norm read what the first of them reads.
    """
    config = layer.config
    if config.norm_kind == "none" or layer.stack.norm_placement != "pre":
        return x
    name = "shared_norm" if config.share_norms and config.parallel_residual else f"{sublayer}_norm"
    if name == "shared_norm" and not is_first:
        return layer.name + name
    return layer.add(name, "norm", formulas.norm, {"x": x}, layer.norm(norm_module(config, sublayer)))


def _add_output_norm(layer: _Scope, sublayer: str, y: str) -> str:
    """Adds the norm of a sublayer's output y, if there is one."""
    name = f"{sublayer}_output_norm"
    if sublayer not in layer.config.normed_outputs:
        return y
    return layer.add(name, "norm", formulas.norm, {"x": y}, layer.norm(name))


def _add_after(layer: _Scope, sublayer: str, x: str, y: str, name: str) -> str:
    """Adds the residual stream x plus the sublayer's output y, and the norm after it, if any."""
    inputs, scales = {"x": x, "y": y}, layer.scales(sublayer)
    stack: Stack = "encoder" if layer.name.startswith("encoder") else "decoder"
    if layer.config.norm_kind == "none" or layer.stack.norm_placement != "post":
        return layer.add(name, "residual", partial(formulas.residual, stack=stack), inputs, scales)
    formula = partial(formulas.residual_norm, stack=stack)
    parameters = layer.norm(norm_module(layer.config, sublayer)) | scales
    normed = layer.add(f"{sublayer}_norm", "residual_norm", formula, inputs, parameters)
    return layer.add(name, "same", formulas.same, {"x": normed})


class _Heads(NamedTuple):
    """Names the inputs of an attention."""

    query: str
    key: str
    value: str


def _add_projections(scope: _Scope, x: str, y: str) -> _Heads:
    """Adds the query projected from x, key and value projected from y, and the norms of query and key, if any."""

    def add(name: str, x: str) -> str:
        parameters = scope.linear(name, scope.config.attention_bias)
        return scope.add(name, "projection", partial(formulas.projection, axes="BTD,DNH->BTNH"), {"x": x}, parameters)

    def normed(name: str, x: str) -> str:
        if not scope.config.query_key_norm:
            return x
        return scope.add(f"normed_{name}", "norm", formulas.norm, {"x": x}, scope.norm(f"{name}_norm"))

    query, key, value = add("query", x), add("key", y), add("value", y)
    return _Heads(normed("query", query), normed("key", key), value)


def _add_rotation(scope: _Scope, x: str, role: str, stack: Stack) -> str:
    """Adds a query or key x after its rotation by the positions of a stack's tokens."""
    return scope.add(
        f"rotated_{role}", "rotation", partial(formulas.rotation, stack=stack), {"x": x, "ids": _IDS[stack]}
    )


def _add_attention(
    scope: _Scope, heads: _Heads, mask: str | None, position_bias: str | None, vectors: Mapping[str, str]
) -> str:
    of_keys, of_values = (
        {name: path for name, path in vectors.items() if name == argument}
        for argument in ("relative_keys", "relative_values")
    )
    inputs = {"query": heads.query, "key": heads.key, "position_bias": position_bias, "mask": mask}
    logits = scope.add("logits", "attention_logits", formulas.attention_logits, inputs, of_keys)
    weights = scope.add("weights", "attention_weights", formulas.attention_weights, {"logits": logits})
    inputs = {"weights": weights, "value": heads.value}
    context = scope.add("context", "context", formulas.context, inputs, of_values)
    if scope.config.head_scale:
        parameters = scope.parameters("head_scale", "scale")
        context = scope.add("scaled_context", "head_scale", formulas.head_scale, {"x": context}, parameters)
    if place(scope.name).path[0] in scope.config.normed_contexts:
        parameters = scope.norm("context_norm")
        context = scope.add("normed_context", "context_norm", formulas.context_norm, {"x": context}, parameters)
    if not scope.config.attention_output:
        return scope.add("output", "merge_heads", formulas.merge_heads, {"x": context})
    parameters = scope.linear("output", scope.config.attention_output_bias)
    return scope.add(
        "output", "projection", partial(formulas.projection, axes="BTNH,NHD->BTD"), {"x": context}, parameters
    )


def _add_feed_forward(scope: _Scope, stack: Stack, x: str) -> str:
    use_bias = scope.config.feed_forward_bias
    gate = scope.linear("gate", use_bias) if scope.config.feed_forward_gated else {}
    parameters = scope.linear("hidden", use_bias) | {f"gate_{name}": path for name, path in gate.items()}
    if scope.stack.activation == "prelu":
        parameters |= {"slope": f"{scope.path}slope{scope.index}"}
    formula = partial(formulas.feed_forward_hidden, stack=stack)
    hidden = scope.add("hidden", "feed_forward_hidden", formula, {"x": x}, parameters)
    if scope.config.feed_forward_hidden_norm:
        hidden = scope.add("hidden_norm", "norm", formulas.norm, {"x": hidden}, scope.norm("hidden_norm"))
    return scope.add(
        "output",
        "projection",
        partial(formulas.projection, axes="BTF,FD->BTD"),
        {"x": hidden},
        scope.linear("output", scope.stack.feed_forward_output_bias),
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
