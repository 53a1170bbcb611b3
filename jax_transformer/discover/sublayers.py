"""Sort a graph's linear maps into attentions, feed-forwards and the head."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import permutations

import numpy as np

from jax_transformer.discover.attention import Attention, attentions, merged
from jax_transformer.discover.graph import CLOSE, PRODUCTS, Graph, Linear, distance
from jax_transformer.discover.labels import TARGET
from jax_transformer.discover.norms import Norm
from jax_transformer.discover.problems import Unknown
from jax_transformer.discover.relative_vectors import value_vectors
from jax_transformer.discover.sums import Sum, Sums
from jax_transformer.programs.trace import Value, replayed


@dataclass(frozen=True, eq=False)
class AttentionSublayer:
    """Holds an attention with its output projection."""

    attention: Attention
    output: Linear | None
    kernel: np.ndarray | None
    """Elements of the output projection [N, H, D]"""
    head_scale: np.ndarray | None = None
    """Elements [N] of a parameter that each head's context is multiplied with"""
    context_norm: Norm | None = None
    """A norm of the contexts of all heads together, [N W]"""
    value_vectors: np.ndarray | None = None
    """Elements [2 M + 1, W] of vectors by distance that are added to the values"""

    @property
    def kind(self) -> str:
        return self.attention.kind

    @property
    def path(self) -> str:
        """Returns the path of its leaves."""
        return _path_of_leaves(self.options)

    @property
    def options(self) -> str:
        """Returns the path of its part in a config."""
        name = "cross_attention" if self.kind == "cross" else "self_attention"
        return f"{'decoder' if self.is_target else 'encoder'}.{name}"

    @property
    def is_target(self) -> bool:
        return self.kind != "encoder_self"

    @property
    def inputs(self) -> np.ndarray:
        return self.attention.query.inputs

    @property
    def result(self) -> Value:
        return self.attention.first if self.output is None else self.output.value


@dataclass(frozen=True, eq=False)
class FeedForward:
    """Holds a feed-forward: activation(x · hidden) · output, or with a gate."""

    hidden: Linear
    hidden_channels: np.ndarray
    gate: Linear | None
    gate_channels: np.ndarray | None
    output: Linear
    activation: str
    slope: float | np.ndarray | None
    """The slope of leaky_relu, or the element of a trained one."""
    hidden_norm: Norm | None
    """A norm of the activated hidden layer."""
    residual: float
    runner_up: tuple[str, float]
    is_target: bool
    kind: str = "feed_forward"

    @property
    def path(self) -> str:
        """Returns the path of its leaves."""
        return _path_of_leaves(self.options)

    @property
    def options(self) -> str:
        """Returns the path of its part in a config."""
        return f"{'decoder' if self.is_target else 'encoder'}.feed_forward"

    @property
    def inputs(self) -> np.ndarray:
        return self.hidden.inputs

    @property
    def result(self) -> Value:
        return self.output.value


Sublayer = AttentionSublayer | FeedForward


def _path_of_leaves(options: str) -> str:
    return options.replace(".", "/layers/")


@dataclass(frozen=True, eq=False)
class Parts:
    """Holds everything of a model but its residual streams."""

    sublayers: tuple[Sublayer, ...]
    """In execution order."""
    head: Linear
    head_factor: float
    """Multiplies the head's logits."""
    head_inputs: Sum
    is_log_softmax: bool


def parts(graph: Graph, sums: Sums, norms: Mapping[Value, Norm]) -> Parts:
    """Sorts the linear maps of a graph.

    Raises:
      Unknown: something is neither attention, feed-forward nor head.
    """
    head, factor, is_log_softmax = _head(graph, sums)
    sublayers: list[Sublayer] = []
    used = {head.value}
    for sublayer in _attentions(graph, norms):
        sublayers.append(sublayer)
        attention = sublayer.attention
        projections = (attention.query, attention.key, attention.value)
        used |= {linear.value for part in projections for linear in part.linears} | {sublayer.result}
    left = {value: linear for value, linear in graph.linears.items() if value not in used}
    while left:
        output = left.pop(max(left, key=lambda value: value.number))
        feed_forward = _feed_forward(graph, output, left, norms)
        for linear in {feed_forward.hidden, feed_forward.gate or feed_forward.hidden}:
            left.pop(linear.value, None)
        sublayers.append(feed_forward)
    ordered = tuple(sorted(sublayers, key=lambda one: one.result.number))
    return Parts(ordered, head, factor, sums.of(head.inputs), is_log_softmax)


def _head(graph: Graph, sums: Sums) -> tuple[Linear, float, bool]:
    """Returns the linear map that makes the logits, their factor, and whether they become log-probabilities."""
    output = graph.recording.output
    stream = graph.stream(output)
    found = graph.behind(output, lambda root: root in graph.linears)
    if stream is not None:
        root = graph.root_of(stream.elements)  # the program may cut tokens off
        if root is not None and root in graph.linears:
            return graph.linears[root], 1.0, False
        total = sums.of(stream.elements)
        for term, factor in total.terms.items():
            if len(total.terms) == 1 and not total.tables and term in graph.linears:
                return graph.linears[term], factor, False
        before = graph.pull(stream.elements, lambda one: one in graph.linears) if len(found) == 1 else None
        if before is not None:
            logits, computed = graph.values(before), graph.values(stream.elements)
            if distance(logits - _logsumexp(logits), computed) <= CLOSE:
                return graph.linears[found[0]], 1.0, True
    if stream is None:
        raise _mixing(graph)
    raise Unknown(output, "an output that is neither logits of a linear map nor their log-softmax")


def _mixing(graph: Graph) -> Unknown:
    """Returns the error of an output that doesn't belong to one token each: names the first attention behind it that
    isn't read or linear map over several tokens, or else the first operation that mixes tokens."""
    recording = graph.recording
    behind = {recording.output}
    for value in reversed(recording.values):
        behind |= {*value.inputs} if value in behind else set()

    def is_mixed(value: Value) -> bool:
        labels = graph.labels.of(value)
        return value.depends_on_ids and bool((labels.token < 0).any() or (labels.batch < 0).any())

    mixed = [value for value in recording.values if value in behind and value.is_float and is_mixed(value)]
    first = [value for value in mixed if not any(one.is_float and is_mixed(one) for one in value.inputs)]
    for value in mixed:
        if value in graph.products:
            what = "an attention that isn't read: its numbers can't be assigned to one query and one key each"
            return Unknown(value, f"{what} (is it over blocks, windows or several streams?)")
        if value in first and value.op in (*PRODUCTS, "convolution"):
            return Unknown(value, "a linear map over several tokens")
    for value in first:
        if any(one.is_float and one.depends_on_ids for one in value.inputs):
            return Unknown(value, "an operation whose results can't each be assigned to one token")
    return Unknown(recording.output, "an output that doesn't hold one vector for each token")


def _logsumexp(logits: np.ndarray) -> np.ndarray:
    highest = logits.max(axis=-1, keepdims=True)
    return np.asarray(highest + np.log(np.exp(logits - highest).sum(axis=-1, keepdims=True)))


# --- attentions


def _attentions(graph: Graph, norms: Mapping[Value, Norm]) -> list[AttentionSublayer]:
    """Returns attentions with their output projections; heads that share one are one attention."""
    found = attentions(graph)
    owner = {int(element): one for one in found for element in one.context.ravel()}
    sublayers: dict[int, AttentionSublayer] = {}
    projected: set[int] = set()
    for linear in graph.linears.values():
        inputs = _before_norm(graph, linear, norms)
        before = graph.pull(inputs[:1, :1], lambda root: any(root is one.first for one in found))
        if before is None:
            continue
        if any(int(element) not in owner for element in before.ravel()):
            raise Unknown(
                linear.value,
                "an output projection of contexts that belong to several tokens (heads merged "
                "without transposing back)",
            )
        heads = list(dict.fromkeys(owner[int(element)] for element in before.ravel()))
        sublayers[id(heads[0])] = _projected(graph, merged(heads), linear, before[0, 0], norms)
        projected |= {id(one) for one in heads}
    return [
        sublayers[id(one)] if id(one) in sublayers else AttentionSublayer(one, None, None)
        for one in found
        if id(one) in sublayers or id(one) not in projected
    ]


def _projected(
    graph: Graph, attention: Attention, linear: Linear, before: np.ndarray, norms: Mapping[Value, Norm]
) -> AttentionSublayer:
    """Returns an attention with its output projection, and the norm, vectors or scale before it.

    Args:
      before: elements [N W] of the first token's contexts, in the order of the projection's inputs.

    Raises:
      Unknown: the contexts change in an unknown way.
    """
    row = {int(element): number for number, element in enumerate(before)}
    if len(row) != attention.context.size:
        raise Unknown(linear.value, "an output projection that omits or repeats channels of the contexts")
    rows = np.vectorize(row.__getitem__)(attention.context)
    norm = _reordered(_norm_before(graph, linear, norms), rows.ravel())
    plain = AttentionSublayer(attention, linear, linear.kernel[rows], None, norm)
    contexts = _before_norm(graph, linear, norms)[..., rows].swapaxes(1, 2)  # [B, N, Q, W]
    if np.array_equal(contexts[0, :, 0], attention.context):
        return plain
    vectors = value_vectors(graph, attention, contexts)
    if vectors is not None:
        return replace(plain, value_vectors=vectors)
    return replace(plain, head_scale=_head_scale(graph, contexts[0, :, 0]))


def _norm_before(graph: Graph, linear: Linear, norms: Mapping[Value, Norm]) -> Norm | None:
    """Returns the norm that a linear map reads."""
    whole = graph.whole(linear.inputs)
    return None if whole is None else norms.get(whole)


def _before_norm(graph: Graph, linear: Linear, norms: Mapping[Value, Norm]) -> np.ndarray:
    """Returns the elements [B, P, In] that a linear map reads, before its norm if it has one."""
    norm = _norm_before(graph, linear, norms)
    return linear.inputs if norm is None else norm.inputs


def _reordered(norm: Norm | None, rows: np.ndarray) -> Norm | None:
    """Returns a norm with the channels of its parameters in another order."""
    if norm is None:
        return None
    scale, bias = (None if one is None else one[rows] for one in (norm.scale, norm.bias))
    return replace(norm, scale=scale, bias=bias)


def _head_scale(graph: Graph, contexts: np.ndarray) -> np.ndarray:
    """Returns the elements [N] of the parameter that the contexts of the first token [N, W] are multiplied with.

    Raises:
      Unknown: the contexts change in another way.
    """
    root = graph.recording.roots(contexts)[0]
    others = [one for one in root.inputs if not one.depends_on_ids]
    if (
        root.op == "mul"
        and len(others) == 1
        and all(one.trains for one in graph.recording.roots(graph.recording.elements(others[0])))
    ):
        factors = graph.operand(root, others[0], contexts)
        if factors is not None and (factors == factors[:, :1]).all():
            return factors[:, 0]
    raise Unknown(root, "contexts that are changed before their output projection")


# --- feed-forwards


def _feed_forward(
    graph: Graph, output: Linear, others: Mapping[Value, Linear], norms: Mapping[Value, Norm]
) -> FeedForward:
    """Returns the feed-forward that ends in this linear map."""
    root = graph.root_of(output.inputs)
    norm = None if root is None else norms.get(root)
    if norm is not None:
        root = graph.root_of(norm.inputs)
    if root is None:
        raise Unknown(output.value, "a linear map that is no part of a Transformer's layer")
    sources = (
        [root] if root in others else graph.behind(root, lambda one: one in graph.linears or one in graph.products)
    )
    if not sources or not all(one in others for one in sources):
        raise Unknown(output.value, "a linear map that is no part of a Transformer's layer")
    fits = _fits(graph, output.inputs if norm is None else norm.inputs, [others[one] for one in sources], root)
    fits.sort(key=lambda fit: fit.residual)
    if not fits or fits[0].residual > CLOSE:
        nearest = (str(fits[0].activation), fits[0].residual) if fits else None
        raise Unknown(root, "an activation that isn't known", nearest)
    best = fits[0]
    apart = _apart_far(graph, output.inputs if norm is None else norm.inputs, best, root)
    if apart > CLOSE:
        what = f"an activation that is {best.activation} of small numbers alone"
        raise Unknown(root, what, (f"{best.activation} up to {FAR:g}", apart))
    runner_up = next(
        ((fit.activation, fit.residual) for fit in fits[1:] if fit.activation != best.activation), ("nothing", INFINITE)
    )
    return FeedForward(
        best.hidden[0],
        best.hidden[1],
        None if best.gate is None else best.gate[0],
        None if best.gate is None else best.gate[1],
        output,
        best.activation,
        best.slope,
        norm,
        best.residual,
        runner_up,
        bool((graph.labels.at(output.outputs[:1, :1]).token >= TARGET).all()),
    )


Half = tuple[Linear, np.ndarray]
"""A linear map and the channels of it that are the hidden layer, or the gate."""


@dataclass(frozen=True, eq=False)
class _Fit:
    """Holds the residual of one activation as explanation of the hidden layer."""

    residual: float
    activation: str
    hidden: Half
    gate: Half | None = None
    slope: float | np.ndarray | None = None


def _fits(graph: Graph, inputs: np.ndarray, sources: list[Linear], root: Value) -> list[_Fit]:
    """Tries every activation, of every half of the linear maps as hidden layer and gate."""
    computed = graph.values(inputs)
    size = computed.shape[2]
    halves: list[Half] = [
        (one, np.arange(start, start + size))
        for one in sources
        for start in range(0, one.outputs.shape[2] - size + 1, size)
    ]
    numbers = [graph.values(one.outputs)[..., channels] for one, channels in halves]
    fits = []
    if len(halves) == 1:
        fits += [_Fit(distance(one(numbers[0]), computed), name, halves[0]) for name, one in ACTIVATIONS.items()]
        fits += _leaky(graph, numbers[0], computed, halves[0], root)
    for (half, hidden), (other, gate) in permutations(zip(halves, numbers, strict=True), 2):
        fits += [_Fit(distance(one(gate) * hidden, computed), name, half, other) for name, one in ACTIVATIONS.items()]
    return fits


def _apart_far(graph: Graph, inputs: np.ndarray, fit: _Fit, root: Value) -> float:
    """Returns the error of an activation on inputs as large as FAR, where the recorded inputs don't reach."""
    if root in graph.linears:
        return 0.0
    rng = np.random.default_rng(0)
    halves = [fit.hidden, *([fit.gate] if fit.gate else [])]
    sampled = {one.value: rng.uniform(-FAR, FAR, one.value.array.shape) for one, _ in halves}
    again = replayed(root, sampled)
    if again is None:
        return 0.0
    computed = again.ravel()[graph.recording.places(inputs, root)]
    hidden, *gate = (
        sampled[one.value].ravel()[graph.recording.places(one.outputs[..., channels], one.value)]
        for one, channels in halves
    )
    if fit.activation in ACTIVATIONS:
        one = ACTIVATIONS[fit.activation]
        return distance(one(gate[0]) * hidden if gate else one(hidden), computed)
    slope = fit.slope if isinstance(fit.slope, float) else float(graph.values(np.asarray(fit.slope))[0])
    return distance(np.where(hidden < 0, slope * hidden, hidden), computed)


def _leaky(graph: Graph, hidden: np.ndarray, computed: np.ndarray, half: Half, root: Value) -> list[_Fit]:
    """Fits a ReLU with a slope, perhaps trained, for negative inputs."""
    negative = hidden < 0
    if not negative.any():
        return []
    slope = float(np.median(computed[negative] / hidden[negative]))
    residual = distance(np.where(negative, slope * hidden, hidden), computed)
    trained = [one for one in root.inputs if one.trains and one.array.size == 1]
    if trained:
        return [_Fit(residual, "prelu", half, None, graph.recording.own(trained[0]).reshape(1))]
    literal = next((one for one in root.literals if abs(one - slope) < 1e-9), slope)
    return [_Fit(residual, "leaky_relu", half, None, literal)] if 0 < literal < 1 else []


def _erf(x: np.ndarray) -> np.ndarray:
    import torch

    return np.asarray(torch.special.erf(torch.from_numpy(np.ascontiguousarray(x))).numpy())


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-x)))


def _softplus(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.where(x > 20, x, np.log1p(np.exp(np.minimum(x, 20)))))


FAR = 300.0
"""The largest numbers that an activation is tried on."""
SELU_SCALE, SELU_ALPHA = 1.0507009873554804934193349852946, 1.6732632423543772848170429916717
INFINITE = float("inf")
ACTIVATIONS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x * 0.5 * (1 + _erf(x / np.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x * _sigmoid(x),
    "none": lambda x: x,
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "selu": lambda x: SELU_SCALE * np.where(x > 0, x, SELU_ALPHA * np.expm1(np.minimum(x, 0))),
    "mish": lambda x: x * np.tanh(_softplus(x)),
    "quick_gelu": lambda x: x * _sigmoid(1.702 * x),
    "relu_squared": lambda x: np.maximum(x, 0) ** 2,
    "tanh": np.tanh,
    "sigmoid": _sigmoid,
    "softplus": _softplus,
}
"""Name in TransformerConfig → the function."""
