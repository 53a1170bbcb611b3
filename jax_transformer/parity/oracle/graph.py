"""The model as a graph: every activation of a trace, with its inputs, its parameters and its formula."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from jax_transformer.config.positions import Alibi, Learned, RelativeBias, RelativeVectors, Rotary, Table
from jax_transformer.config.short_names import part_at
from jax_transformer.config.specs import Attention, FeedForward, Stack
from jax_transformer.parity.oracle import formulas
from jax_transformer.parity.oracle.formulas import StackName

if TYPE_CHECKING:
    from jax_transformer.config.model import TransformerConfig

Kind = Literal[
    "mask",
    "token_embedding",
    "convolution",
    "stem_output",
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
    "head_transform",
    "logits",
]
"""The formula that a node computes, by name; masks and logits have several."""

MODEL_INPUTS = ("source_ids", "decoder_input_ids")
FEATURE_INPUTS = ("source_vectors", "vector_is_real")
"""Further inputs of a model with a stem: vectors [B, S, F] and which of them are no padding [B, S]. Its source_ids say
which positions of the encoder are: the pad, or 0 or 1."""
_IDS: dict[StackName, str] = {"encoder": "source_ids", "decoder": "decoder_input_ids"}

Formula = Callable[..., np.ndarray]
"""(parts of the config and arrays by argument) → array; pure."""
_NONE: Mapping[str, str] = MappingProxyType({})


class Node(NamedTuple):
    """Describes one activation of a trace."""

    name: str
    kind: Kind
    inputs: Mapping[str, str]
    """Formula's argument → the name of an earlier node or of one of MODEL_INPUTS or FEATURE_INPUTS."""
    parameters: Mapping[str, str]
    """The formula's argument → the path of a parameter or constant; in a layer, `encoder/layers/…/kernel[0]`."""
    formula: Formula
    parts: Mapping[str, str]
    """The formula's argument → the path of a part of the config, such as encoder.norm."""

    def compute(
        self, config: TransformerConfig, inputs: Mapping[str, np.ndarray], parameters: Mapping[str, np.ndarray]
    ) -> np.ndarray:
        """Returns the formula's result for arrays by argument, as in `inputs` and `parameters`."""
        return self.formula(**self.parts_of(config), **inputs, **parameters)

    def parts_of(self, config: TransformerConfig) -> dict[str, Any]:
        """Returns the parts of a config that the formula reads, by argument."""
        return {argument: part_at(config, path) for argument, path in self.parts.items()}


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


def norm_roles(stack: Stack) -> tuple[str, ...]:
    """Returns the parameters of a stack's norms: "scale" and "bias", as far as they have them."""
    if stack.norm is None:
        return ()
    return (*(["scale"] if stack.norm.scale else []), *(["bias"] if stack.norm.bias else []))


def parameter_index(stack: Stack, layer: int) -> int:
    """Returns the index of a layer's parameters in the stacked ones."""
    return 0 if stack.share_layers else layer


def norm_module(stack: Stack, sublayer: str) -> str:
    """Returns the name of the norm before or after a sublayer, among its layer's parameters."""
    return "shared_norm" if stack.share_norms else f"{sublayer}_norm"


def sublayers_of(stack: Stack) -> tuple[str, ...]:
    """Returns the names of the sublayers of a stack's layers, in order."""
    has = {
        "self_attention": True,
        "cross_attention": stack.cross_attention is not None,
        "feed_forward": stack.feed_forward is not None,
    }
    return tuple(name for name in has if has[name])


def shown_by(graph: Iterable[Node]) -> dict[str, str]:
    """Returns the names of all masks, each with that of the first attention's logits that it hides some of."""
    found: dict[str, str] = {}
    for node in graph:
        if node.kind == "attention_logits" and "mask" in node.inputs:
            found.setdefault(node.inputs["mask"], node.name)
    return found


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
    def stack_name(self) -> StackName:
        """Returns the name of the scope's stack."""
        return "encoder" if self.name.startswith("encoder.") else "decoder"

    @property
    def stack(self) -> Stack:
        """Returns the scope's stack."""
        return self.config.encoder if self.stack_name == "encoder" else self.config.decoder

    def part(self, name: str) -> str:
        """Returns the path of one of the stack's parts; "" is the stack itself."""
        return f"{self.stack_name}.{name}".rstrip(".")

    def within(self, name: str) -> _Scope:
        return replace(self, name=f"{self.name}{name}.", path=f"{self.path}{name}/")

    def layer(self, i: int) -> _Scope:
        return replace(
            self,
            name=f"{self.name}layers.{i}.",
            path=f"{self.path}layers/",
            index=f"[{parameter_index(self.stack, i)}]",
        )

    def add(
        self,
        name: str,
        kind: Kind,
        formula: Formula,
        inputs: Mapping[str, str | None],
        parameters: Mapping[str, str] = _NONE,
        parts: Mapping[str, str] = _NONE,
    ) -> str:
        """Adds a node without the inputs that are None; returns its full name.

        Args:
          parts: the paths of the parts of the config that the formula reads, by argument.
        """
        given = {key: value for key, value in inputs.items() if value}
        self.graph.append(Node(self.name + name, kind, given, parameters, formula, parts))
        return self.name + name

    def add_norm(self, name: str, x: str, module: str) -> str:
        """Adds a node that norms x with the parameters of a module, as all norms of the stack do."""
        return self.add(name, "norm", formulas.norm, {"x": x}, self.norm(module), parts={"spec": self.part("norm")})

    def parameters(self, module: str, *names: str) -> dict[str, str]:
        """Returns the paths of a module's parameters, by name."""
        return {name: f"{self.path}{module}/{name}{self.index}" for name in names}

    def linear(self, module: str, use_bias: bool) -> dict[str, str]:
        return self.parameters(module, "kernel", *(["bias"] if use_bias else []))

    def norm(self, module: str) -> dict[str, str]:
        return self.parameters(module, *norm_roles(self.stack))

    def scales(self, sublayer: str) -> dict[str, str]:
        """Returns the paths of the trained scales of a residual sum."""
        residual, found = self.stack.residual, {}
        if residual.stream_scale in ("all", sublayer):
            found["residual_scale"] = f"{self.path}{sublayer}_residual_scale/scale{self.index}"
        if residual.output_scale != "none":
            found["output_scale"] = self._output_scale(sublayer)
        return found

    def parallel_scales(self, sublayers: Iterable[str]) -> dict[str, str]:
        """Returns the paths of the trained scales of a sum of several sublayers' outputs."""
        if self.stack.residual.output_scale == "none":
            return {}
        return {f"{sublayer}_scale": self._output_scale(sublayer) for sublayer in sublayers}

    def _output_scale(self, sublayer: str) -> str:
        leaf = "scale" if self.stack.residual.output_scale == "channel" else "factor"
        return f"{self.path}{sublayer}_output_scale/{leaf}{self.index}"


def _add_masks(model: _Scope) -> dict[str, str]:
    """Adds the masks that the config has; returns their names."""
    config, scope, masks = model.config, model.within("mask"), {}
    encoder_attention, decoder_attention, cross_attention = config.attentions
    source, target = {"source_ids": "source_ids"}, {"decoder_input_ids": "decoder_input_ids"}
    if encoder_attention.padding != "none":
        parts = {"spec": "encoder.self_attention", "source": "source"}
        masks["encoder_self"] = scope.add("encoder_self", "mask", formulas.encoder_self_mask, source, parts=parts)
    if decoder_attention.padding != "none" or decoder_attention.causal:
        parts = {"spec": "decoder.self_attention", "target": "target"}
        masks["decoder_self"] = scope.add("decoder_self", "mask", formulas.decoder_self_mask, target, parts=parts)
    if cross_attention.padding != "none":
        parts = {"spec": "decoder.cross_attention", "source": "source", "target": "target"}
        masks["cross"] = scope.add("cross", "mask", formulas.cross_mask, source | target, parts=parts)
    return masks


def _add_stack(model: _Scope, name: StackName, masks: Mapping[str, str], encoder_output: str | None) -> str:
    """Adds the embedding, the layers and the final norm of a stack; the decoder attends to encoder_output."""
    scope = model.within(name)
    stack = scope.stack
    masks = {**masks, **_add_window(model, name)}
    bias = _add_position_bias(scope) if _has_bias(stack, per_layer=False) else None
    x = _add_embedding(scope)
    for i in range(stack.num_layers):
        seen = {**masks, f"{name}_self": masks[f"{name}_window"]} if has_window(stack.self_attention, i) else masks
        x = _add_layer(scope.layer(i), x, encoder_output, seen, bias)
    if stack.final_norm:
        return scope.add_norm("output", x, "final_norm")
    return scope.add("output", "same", formulas.same, {"x": x})


def _add_window(model: _Scope, stack: StackName) -> dict[str, str]:
    """Adds the mask of a stack's layers with a window, if it has any; returns its name."""
    if getattr(model.config, stack).self_attention.window is None:
        return {}
    tokens, ids = _tokens_of(stack), _IDS[stack]
    formula = {"encoder": formulas.encoder_window_mask, "decoder": formulas.decoder_window_mask}[stack]
    parts = {"spec": f"{stack}.self_attention", tokens: tokens}
    name = f"{stack}_window"
    return {name: model.within("mask").add(name, "mask", formula, {ids: ids}, parts=parts)}


def has_window(attention: Attention, layer: int) -> bool:
    """Returns whether self-attention in a layer, counted from 0, sees no farther than the window: in all layers but
    every n-th (Gemma 2, §2)."""
    every = attention.full_every
    return attention.window is not None and (every is None or (layer + 1) % every != 0)


def _tokens_of(stack: StackName) -> str:
    """Returns the path of the part that describes the ids that a stack reads."""
    return "source" if stack == "encoder" else "target"


def _add_embedding(scope: _Scope) -> str:
    stack, name = scope.stack, scope.stack_name
    ids, tokens_part = {"ids": _IDS[name]}, _tokens_of(name)
    has_stem = name == "encoder" and scope.config.stem is not None
    tokens = _add_stem(scope) if has_stem else _add_token_embedding(scope)
    positions = None
    parameters = {} if stack.embedding_norm == "none" else scope.norm("embedding_norm")
    if isinstance(stack.positions, Table):
        learned = isinstance(stack.positions, Learned)
        rows = {"table": f"{name}/positions/embedding" if learned else f"constants/{name}_positions"}
        parts = {"spec": scope.part("positions"), "tokens": tokens_part}
        positions = scope.add("positions", "positions", formulas.positions, ids, rows, parts=parts)
        if stack.positions.learned_scale:
            parameters |= {"position_scale": f"{name}/position_scale/factor"}
    if stack.token_types:
        parameters |= {"types": f"{name}/token_types/embedding"}
    parts = {"spec": name, "norm_spec": scope.part("norm"), "table_spec": scope.part("positions")}
    inputs = {"tokens": tokens, "positions": positions}
    return scope.add("embedding", "embedding", formulas.embedding, inputs, parameters, parts=parts)


def _add_token_embedding(scope: _Scope) -> str:
    name = scope.stack_name
    table = "shared_embedding" if scope.config.share_embeddings else f"{_tokens_of(name)}_embedding"
    inputs, parameters = {"ids": _IDS[name]}, {"embedding": f"{table}/embedding"}
    formula = formulas.token_embedding
    return scope.add("token_embedding", "token_embedding", formula, inputs, parameters, parts={"spec": name})


def _add_stem(scope: _Scope) -> str:
    """Adds both convolutions of feature vectors. Where the encoder hides padding, they do."""
    hides = scope.stack.self_attention.padding in ("keys", "both")
    vectors, real = FEATURE_INPUTS
    x, inputs, parts = vectors, {"is_real": real} if hides else {}, {"spec": "stem"}
    for name, formula in (("first", formulas.first_convolution), ("second", formulas.second_convolution)):
        parameters = {role: f"stem/{name}/{role}" for role in ("kernel", "bias")}
        x = scope.add(f"stem.{name}", "convolution", formula, {"x": x, **inputs}, parameters, parts=parts)
    return scope.add(
        "token_embedding", "stem_output", formulas.stem_output, {"x": x}, parts=parts | {"stack": "encoder"}
    )


def _has_bias(stack: Stack, *, per_layer: bool) -> bool:
    """Returns whether a stack has biases by distance: of each layer, or one set of all layers."""
    if isinstance(stack.positions, RelativeBias):
        return stack.positions.per_layer == per_layer
    return isinstance(stack.positions, Alibi) and not per_layer


def _add_position_bias(scope: _Scope) -> str:
    ids, attention = {"ids": _IDS[scope.stack_name]}, scope.part("self_attention")
    if isinstance(scope.stack.positions, Alibi):
        return scope.add("position_bias", "position_bias", formulas.alibi_bias, ids, parts={"spec": attention})
    parameters = scope.parameters("relative_bias", "embedding")
    parts = {"spec": scope.part("positions"), "attention": attention}
    return scope.add("position_bias", "position_bias", formulas.position_bias, ids, parameters, parts=parts)


def _vectors(scope: _Scope) -> dict[str, str]:
    """Returns the paths of the vectors by distance that a self-attention adds, by the formulas' arguments."""
    kind = scope.stack.positions
    if not isinstance(kind, RelativeVectors):
        return {}
    names = ("keys", "values") if kind.values else ("keys",)
    if kind.per_layer:
        paths = scope.parameters("relative_vectors", *names)
    else:
        paths = {name: f"{scope.stack_name}/relative_vectors/{name}" for name in names}
    return {f"relative_{name}": path for name, path in paths.items()}


def _add_layer(
    layer: _Scope, x: str, encoder_output: str | None, masks: Mapping[str, str], position_bias: str | None
) -> str:
    """Adds a layer's sublayers, in sequence or in parallel, and its output."""
    stack, read = layer.stack, x
    outputs: dict[str, str] = {}
    for sublayer in sublayers_of(stack):
        h = _add_before(layer, sublayer, read, is_first=not outputs)
        scope = layer.within(sublayer)
        if sublayer == "feed_forward":
            y = _add_feed_forward(scope, h)
        elif sublayer == "cross_attention":
            assert encoder_output is not None
            y = _add_cross_attention(scope, h, encoder_output, masks.get("cross"))
        else:
            y = _add_self_attention(scope, h, masks.get(f"{layer.stack_name}_self"), position_bias)
        outputs[sublayer] = _add_output_norm(layer, sublayer, y)
        if not stack.residual.parallel:
            name = "output" if sublayer == "feed_forward" else f"{sublayer}_residual"
            read = _add_after(layer, sublayer, read, outputs[sublayer], name)
    if stack.residual.parallel:
        scales, part = layer.parallel_scales(outputs), layer.part("residual")
        formula = formulas.parallel_residual
        return layer.add("output", "parallel_residual", formula, {"x": x, **outputs}, scales, parts={"spec": part})
    return read if "feed_forward" in outputs else layer.add("output", "same", formulas.same, {"x": read})


def _add_self_attention(scope: _Scope, h: str, mask: str | None, position_bias: str | None) -> str:
    stack, name = scope.stack, scope.stack_name
    query, key, value = _add_projections(scope, stack.self_attention, h, h)
    if isinstance(stack.positions, Rotary):
        query, key = _add_rotation(scope, query, "query", name), _add_rotation(scope, key, "key", name)
    bias = _add_position_bias(scope) if _has_bias(stack, per_layer=True) else position_bias
    return _add_attention(scope, stack.self_attention, _Heads(query, key, value), mask, bias, _vectors(scope))


def _add_cross_attention(scope: _Scope, h: str, encoder_output: str, mask: str | None) -> str:
    attention, positions = scope.stack.cross_attention, scope.stack.positions
    assert attention is not None
    query, key, value = _add_projections(scope, attention, h, encoder_output)
    if isinstance(positions, Rotary) and positions.cross_attention:
        query, key = _add_rotation(scope, query, "query", "decoder"), _add_rotation(scope, key, "key", "encoder")
    return _add_attention(scope, attention, _Heads(query, key, value), mask, None, {})


def placement_of(stack: Stack) -> str:
    """Returns the placement of a stack's norms: pre, post, or none."""
    return "none" if stack.norm is None else stack.norm_placement


def _add_before(layer: _Scope, sublayer: str, x: str, *, is_first: bool) -> str:
    """Adds the optional norm before a sublayer; returns the sublayer's input.

    Parallel sublayers with a shared norm read the first one's input.
    """
    stack = layer.stack
    if placement_of(stack) != "pre":
        return x
    name = "shared_norm" if stack.share_norms and stack.residual.parallel else f"{sublayer}_norm"
    if name == "shared_norm" and not is_first:
        return layer.name + name
    return layer.add_norm(name, x, norm_module(stack, sublayer))


def _add_output_norm(layer: _Scope, sublayer: str, y: str) -> str:
    """Adds the optional norm of a sublayer's output y."""
    name = f"{sublayer}_output_norm"
    has_norm: bool = getattr(layer.stack, sublayer).output_norm
    return layer.add_norm(name, y, name) if has_norm else y


def _add_after(layer: _Scope, sublayer: str, x: str, y: str, name: str) -> str:
    """Adds the residual stream x plus the sublayer's output y, and the norm after it, if any."""
    inputs, scales, part = {"x": x, "y": y}, layer.scales(sublayer), layer.part("residual")
    if placement_of(layer.stack) != "post":
        return layer.add(name, "residual", formulas.residual, inputs, scales, parts={"spec": part})
    parameters = layer.norm(norm_module(layer.stack, sublayer)) | scales
    parts = {"spec": part, "norm_spec": layer.part("norm")}
    normed = layer.add(f"{sublayer}_norm", "residual_norm", formulas.residual_norm, inputs, parameters, parts=parts)
    return layer.add(name, "same", formulas.same, {"x": normed})


class _Heads(NamedTuple):
    """Names the inputs of an attention."""

    query: str
    key: str
    value: str


def _add_projections(scope: _Scope, attention: Attention, x: str, y: str) -> _Heads:
    """Adds the query projected from x, key and value projected from y, and the norms of query and key, if any."""

    def add(name: str, x: str) -> str:
        parameters = scope.linear(name, attention.has_key_bias if name == "key" else attention.bias)
        return scope.add(name, "projection", partial(formulas.projection, axes="BTD,DNH->BTNH"), {"x": x}, parameters)

    def normed(name: str, x: str) -> str:
        return scope.add_norm(f"normed_{name}", x, f"{name}_norm") if attention.query_key_norm else x

    query, key, value = add("query", x), add("key", y), add("value", y)
    return _Heads(normed("query", query), normed("key", key), value)


def _add_rotation(scope: _Scope, x: str, role: str, side: StackName) -> str:
    """Adds a query or key x after its rotation by the positions of the tokens that a stack reads."""
    parts = {"spec": scope.part("positions"), "tokens": _tokens_of(side)}
    return scope.add(f"rotated_{role}", "rotation", formulas.rotation, {"x": x, "ids": _IDS[side]}, parts=parts)


def _add_attention(
    scope: _Scope,
    attention: Attention,
    heads: _Heads,
    mask: str | None,
    position_bias: str | None,
    vectors: Mapping[str, str],
) -> str:
    key_vectors, value_vectors = (
        {name: path for name, path in vectors.items() if name == argument}
        for argument in ("relative_keys", "relative_values")
    )
    by_distance = {"vectors": scope.part("positions")} if vectors else {}
    inputs = {"query": heads.query, "key": heads.key, "position_bias": position_bias, "mask": mask}
    parts = {"spec": scope.part(place(scope.name).path[0]), **by_distance}
    logits = scope.add("logits", "attention_logits", formulas.attention_logits, inputs, key_vectors, parts=parts)
    weights = scope.add("weights", "attention_weights", formulas.attention_weights, {"logits": logits})
    inputs = {"weights": weights, "value": heads.value}
    context = scope.add("context", "context", formulas.context, inputs, value_vectors, by_distance)
    if attention.head_scale:
        parameters = scope.parameters("head_scale", "scale")
        context = scope.add("scaled_context", "head_scale", formulas.head_scale, {"x": context}, parameters)
    if attention.context_norm:
        parameters, part = scope.norm("context_norm"), scope.part("norm")
        formula = formulas.context_norm
        context = scope.add("normed_context", "context_norm", formula, {"x": context}, parameters, parts={"spec": part})
    if not attention.output:
        return scope.add("output", "merge_heads", formulas.merge_heads, {"x": context})
    parameters = scope.linear("output", attention.output_bias)
    return scope.add(
        "output", "projection", partial(formulas.projection, axes="BTNH,NHD->BTD"), {"x": context}, parameters
    )


def has_output_bias(feed_forward: FeedForward) -> bool:
    """Returns whether the projection back to d_model has a bias."""
    return feed_forward.bias if feed_forward.output_bias is None else feed_forward.output_bias


def _add_feed_forward(scope: _Scope, x: str) -> str:
    part = scope.stack.feed_forward
    assert part is not None
    gate = scope.linear("gate", part.bias) if part.gated else {}
    parameters = scope.linear("hidden", part.bias) | {f"gate_{name}": path for name, path in gate.items()}
    if part.activation == "prelu":
        parameters |= {"slope": f"{scope.path}slope{scope.index}"}
    path, formula = scope.part("feed_forward"), formulas.feed_forward_hidden
    hidden = scope.add("hidden", "feed_forward_hidden", formula, {"x": x}, parameters, parts={"spec": path})
    if part.hidden_norm:
        hidden = scope.add_norm("hidden_norm", hidden, "hidden_norm")
    return scope.add(
        "output",
        "projection",
        partial(formulas.projection, axes="BTF,FD->BTD"),
        {"x": hidden},
        scope.linear("output", has_output_bias(part)),
    )


def _add_logits(model: _Scope, x: str) -> None:
    config, head = model.config, model.config.head
    if head.transform is not None:
        parameters = model.linear("head_transform", use_bias=True)
        x = model.add(
            "head_transform", "head_transform", formulas.head_transform, {"x": x}, parameters, {"spec": "head"}
        )
        x = model.add_norm("head_norm", x, "head_norm")
    biases = {"parameter": "head_bias" if head.tied else "head/bias", "buffer": "constants/head_bias"}
    bias = {"bias": biases[head.bias]} if head.bias in biases else {}
    if head.tied:
        table = "shared_embedding" if config.share_embeddings else "target_embedding"
        parameters = {"embedding": f"{table}/embedding"} | bias
        model.add("logits", "logits", formulas.tied_logits, {"x": x}, parameters, parts={"spec": "head"})
    else:
        model.add(
            "logits", "logits", formulas.logits, {"x": x}, {"kernel": "head/kernel"} | bias, parts={"spec": "head"}
        )


# --- the graph, or a node of it, computed


Source = Any
"""Token ids [B, S]; of a model with a stem, a pair of feature vectors [B, S, F] and the number of real ones in each row
[B], or None."""


def model_inputs(
    config: TransformerConfig, source_ids: Source, decoder_input_ids: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    """Returns what the model reads, under the names of MODEL_INPUTS and FEATURE_INPUTS; None for decoder_input_ids
    leaves these out."""
    if config.stem is None:
        arrays = {"source_ids": np.asarray(source_ids)}
    else:
        vectors, lengths = source_ids
        vectors = np.asarray(vectors)
        rows, length, _ = vectors.shape
        counts = np.full(rows, length) if lengths is None else np.asarray(lengths)
        is_real = np.arange(length) < counts[:, None]
        ids = stem_ids(config, is_real[:, :: config.stem.stride])
        arrays = {"source_ids": ids, "source_vectors": vectors, "vector_is_real": is_real}
    return arrays if decoder_input_ids is None else arrays | {"decoder_input_ids": np.asarray(decoder_input_ids)}


def given_inputs(config: TransformerConfig, known: Mapping[str, np.ndarray]) -> tuple[Source, np.ndarray]:
    """Returns the arguments of `forward` from the arrays of `model_inputs`."""
    source_ids, decoder_input_ids = (known[name] for name in MODEL_INPUTS)
    if config.stem is None:
        return source_ids, decoder_input_ids
    vectors, is_real = (known[name] for name in FEATURE_INPUTS)
    return (vectors, is_real.sum(axis=1)), decoder_input_ids


def input_names(config: TransformerConfig) -> tuple[str, ...]:
    """Returns the names of what the model reads, as `model_inputs` has them."""
    return MODEL_INPUTS if config.stem is None else (*MODEL_INPUTS, *FEATURE_INPUTS)


def stem_ids(config: TransformerConfig, is_real: np.ndarray) -> np.ndarray:
    """Returns ids of the positions [B, S] after a stem, in place of tokens: the pad where they are padding."""
    pad_id = config.source.pad_id
    return np.where(is_real, int(pad_id == 0), pad_id)


def forward(
    config: TransformerConfig,
    params: Mapping[str, Any],
    source_ids: Source,
    decoder_input_ids: np.ndarray,
    *,
    replace: Mapping[str, np.ndarray] | None = None,
) -> dict[str, np.ndarray]:
    """Returns the trace of the whole model in float64, in execution order, without dropout.

    Args:
      params: the nested dict of `functional.apply`, its leaves of any dtype.
      source_ids, decoder_input_ids: [B, S] and [B, T], integers; of a model with a stem, source_ids are features.
      replace: arrays by name that replace activations or masks; later nodes are computed from them.

    Raises:
      ValueError: a parameter is missing; an id or a position has no row in its table; `replace` has an unknown
        name, or another shape.
    """
    replace, graph = replace or {}, nodes(config)
    unknown = sorted(replace.keys() - {node.name for node in graph})
    if unknown:
        raise ValueError(f"replace: expected names of this model's activations; received {', '.join(unknown)}")
    arrays = model_inputs(config, source_ids, decoder_input_ids)
    for node in graph:
        array = recompute(node, config, arrays, params)
        if node.name in replace:
            array = _in_place_of(array, _exact(replace[node.name]), node.name)
        arrays[node.name] = array
    return {node.name: arrays[node.name] for node in graph}


def recompute(
    node: Node, config: TransformerConfig, captured: Mapping[str, np.ndarray], params: Mapping[str, Any]
) -> np.ndarray:
    """Returns one node in float64, computed from captured ids, masks and activations by name, and its parameters.

    Non-finite values are results like others.

    Raises:
      ValueError: an input wasn't captured, or a parameter is missing; an id or a position has no row in its table.
    """
    missing = [name for name in node.inputs.values() if name not in captured]
    if missing:
        raise ValueError(f"{node.name} is computed from {', '.join(missing)}, which the trace doesn't have")
    inputs = {argument: _exact(captured[name]) for argument, name in node.inputs.items()}
    parameters = {argument: parameter(params, path) for argument, path in node.parameters.items()}
    with np.errstate(all="ignore"):
        return node.compute(config, inputs, parameters)


def masks_of(
    config: TransformerConfig, params: Mapping[str, Any], source_ids: Source, decoder_input_ids: np.ndarray
) -> dict[str, np.ndarray]:
    """Returns the model's masks for the inputs of `forward`, by name."""
    ids = model_inputs(config, source_ids, decoder_input_ids)
    masks = [node for node in nodes(config) if node.kind == "mask"]
    return {node.name: recompute(node, config, ids, params) for node in masks}


def parameter(params: Mapping[str, Any], path: str) -> np.ndarray:
    """Returns a parameter or constant in float64, that of a layer as `encoder/layers/self_attention/query/kernel[0]`.

    Raises:
      ValueError: there is no such parameter.
    """
    names, _, index = path.removesuffix("]").partition("[")
    leaf: Any = params
    try:
        for name in names.split("/"):
            leaf = leaf[name]
        return _exact(np.asarray(leaf)[int(index)] if index else leaf)
    except (KeyError, IndexError):
        raise ValueError(f"{path} is not among the parameters, but the config asks for it") from None


def _exact(array: Any) -> np.ndarray:
    """Returns floating-point arrays in float64, and others unchanged."""
    array = np.asarray(array)
    return array if array.dtype.kind in "biu" else array.astype(np.float64, copy=False)


def _in_place_of(array: np.ndarray, given: np.ndarray, name: str) -> np.ndarray:
    if given.shape != array.shape:
        raise ValueError(f"replace: {name}: expected shape {array.shape}, received {given.shape}")
    return given.astype(array.dtype)
