"""Recognise norms, whether they are one operation or written out, by computing every candidate."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from jax_transformer.discover.graph import CLOSE, Graph, distance
from jax_transformer.discover.labels import Stream
from jax_transformer.programs.trace import Value

REDUCTIONS = frozenset(
    ["mean", "var", "std", "var_mean", "std_mean", "sum", "linalg_vector_norm", "norm", "pow", "square"]
)
"""Operations that a written-out norm begins with."""
FURTHEST = 24
"""Maximum number of operations of a written-out norm."""
USUAL_EPS = (0.0, 1e-5, 1e-6, 1e-12, 1e-8)


@dataclass(frozen=True)
class Candidate:
    """Describes one way to compute a norm."""

    kind: str
    eps: float
    outside: bool
    unbiased: bool

    def fields(self) -> tuple[tuple[str, object], ...]:
        return (
            ("kind", self.kind),
            ("eps", self.eps),
            ("eps_outside", self.outside),
            ("unbiased", self.unbiased),
        )

    def __str__(self) -> str:
        return f"{self.kind}, eps {self.eps:g}" + ", outside" * self.outside + ", unbiased" * self.unbiased

    def applied(self, x: np.ndarray, scale: np.ndarray | None, bias: np.ndarray | None) -> np.ndarray:
        """Returns the norm of x [.., C] over its last axis."""
        centred = x if self.kind == "rms_norm" else x - x.mean(axis=-1, keepdims=True)
        count = x.shape[-1] - self.unbiased
        variance = (centred * centred).sum(axis=-1, keepdims=True) / count
        with np.errstate(divide="ignore", invalid="ignore"):
            result = centred / (np.sqrt(variance) + self.eps if self.outside else np.sqrt(variance + self.eps))
        result = result if scale is None else result * scale
        return np.asarray(result if bias is None else result + bias)


@dataclass(frozen=True, eq=False)
class Norm:
    """Holds a norm of a stream over its channels."""

    value: Value
    """The root with its result."""
    inputs: np.ndarray
    """Elements [B, P, C]"""
    candidate: Candidate
    scale: np.ndarray | None
    """Elements of parameters [C], as they are stored"""
    bias: np.ndarray | None
    residual: float
    """RMS of the difference from the recorded result, in units of its RMS."""
    runner_up: tuple[str, float] | None = None
    """The second best candidate, and its residual."""
    offset: float = 0.0
    """Added to the stored scale."""

    @property
    def fields(self) -> tuple[tuple[str, object], ...]:
        """Returns the options that distinguish norms, named as in `config.specs`."""
        bias = (("bias", self.bias is not None),) if self.candidate.kind == "layer_norm" else ()
        return (
            *self.candidate.fields(),
            ("scale", self.scale is not None),
            ("scale_offset", self.offset),
            *bias,
        )


def norms(graph: Graph) -> dict[Value, Norm]:
    """Returns a graph's norms by their results."""
    found: dict[Value, Norm] = {}
    for value in graph.recording.values:
        norm = None
        if value.op in ("native_layer_norm", "_fused_rms_norm") and value.output == 0:
            norm = _one_operation(graph, value)
        elif value.depends_on_ids and not (value.is_moved and value.op != "cat") and graph.stream(value) is not None:
            norm = _written_out(graph, value)
        if norm is not None:
            found[norm.value] = norm
    return found


def _one_operation(graph: Graph, value: Value) -> Norm | None:
    stream = graph.stream(value)
    source = value.inputs[0]
    inputs = None if stream is None else graph.operand(value, source, stream.elements)
    if stream is None or inputs is None or list(value.args[1]) != [stream.elements.shape[2]]:
        return None
    stored_vectors = [one for one in value.args[2:] if isinstance(one, Value) or one is None]
    vectors = [None if one is None else graph.operand(value, one, stream.elements[0, 0]) for one in stored_vectors]
    scale, bias = [*vectors, None, None][:2]
    scale, bias = _without_fixed(graph, scale, 1.0), _without_fixed(graph, bias, 0.0)
    is_rms = value.op == "_fused_rms_norm"
    eps = value.args[-1] if isinstance(value.args[-1], float) else np.finfo(value.array.dtype).eps
    candidate = Candidate("rms_norm" if is_rms else "layer_norm", eps, False, False)
    expected = candidate.applied(graph.values(inputs), *(_numbers(graph, one) for one in (scale, bias)))
    computed = graph.values(stream.elements)
    error = distance(expected, computed)
    if error > CLOSE:
        return None
    others = [replace(candidate, outside=True), replace(candidate, unbiased=True)]
    x, by, plus = graph.values(inputs), _numbers(graph, scale), _numbers(graph, bias)
    apart = [(distance(one.applied(x, by, plus), computed), str(one)) for one in others]
    second, name = min(apart)
    stored, offset = _stored(graph, scale)
    return Norm(value, inputs, candidate, stored, bias, error, (name, second), offset)


# --- written out


def _written_out(graph: Graph, value: Value) -> Norm | None:
    """Returns the norm of a stream that begins here: the furthest result that a candidate equals."""
    if not any(
        user.op in REDUCTIONS or (user.op == "mul" and len(set(user.inputs)) == 1) for user in graph.users(value)
    ):
        return None
    stream = graph.stream(value)
    assert stream is not None
    if stream.elements.shape[2] < 2:
        return None
    region = list(_region(graph, value))
    eps = epsilons(region)
    vectors = list(_vectors(graph, region, stream.elements.shape[2]))
    for result in reversed(region):
        after = graph.stream(result)
        if after is None or after.elements.shape != stream.elements.shape:
            continue
        norm = best_fit(graph, stream, result, after, eps, vectors)
        if norm is not None:
            return norm
    return None


def epsilons(values: Sequence[Value]) -> list[float]:
    """Returns every number among the operands of operations that may be a norm's ε, and the usual ones."""
    numbers = {abs(number) for one in values for number in one.literals if 0 < abs(number) < 0.1}
    held = {one for part in values for one in part.inputs if not one.depends_on_ids and one.array.size == 1}
    numbers |= {number for one in held if 0 < (number := abs(float(one.array.item()))) < 0.1}
    return sorted(numbers | set(USUAL_EPS))


def _region(graph: Graph, value: Value) -> Iterator[Value]:
    """Yields the Values computed from this one alone by elementwise operations and reductions, in execution order."""
    inside: set[Value] = {value}
    numbers = [user.number for user in graph.recording.users[value]]
    heapq.heapify(numbers)
    last = -1
    while numbers and len(inside) <= 2 * FURTHEST:
        number = heapq.heappop(numbers)
        other = graph.recording.values[number]
        if number == last or other in graph.products or other in graph.linears or other in graph.lookups:
            continue
        last = number
        if all(one in inside or not one.depends_on_ids for one in other.inputs):
            inside.add(other)
            for user in graph.recording.users[other]:
                heapq.heappush(numbers, user.number)
            if not other.is_moved:
                yield other


def _vectors(graph: Graph, region: list[Value], size: int) -> Iterator[np.ndarray]:
    """Yields the elements [C] of the vectors that a region multiplies with or adds."""
    seen = set()
    for one in region:
        stream = graph.stream(one)
        for operand in one.inputs if stream is not None and one.op in ("mul", "add", "addcmul", "div") else ():
            if operand.depends_on_ids or stream is None:
                continue
            elements = graph.operand(one, operand, stream.elements[0, 0])
            if (
                elements is not None
                and len(elements) == size
                and elements.tobytes() not in seen
                and len(set(elements)) > 1
            ):
                seen.add(elements.tobytes())
                yield elements


def best_fit(
    graph: Graph, stream: Stream, result: Value, after: Stream, eps: list[float], vectors: list[np.ndarray]
) -> Norm | None:
    """Returns the norm over the last axis that maps one stream to another; None if no candidate fits.

    Args:
      result: the root that holds the stream `after`.
      eps: every ε to try.
      vectors: the elements [C] to try as scale and as bias.
    """
    x, y = graph.values(stream.elements), graph.values(after.elements)
    fits: list[tuple[float, Candidate, np.ndarray | None, np.ndarray | None]] = []
    for kind, outside, unbiased, number in product(("layer_norm", "rms_norm"), (False, True), (False, True), eps):
        candidate = Candidate(kind, number, outside, unbiased)
        plain = candidate.applied(x, None, None)
        for scale, bias in product([None, *vectors], [None, *vectors]):
            expected = plain if scale is None else plain * graph.values(scale)
            expected = expected if bias is None else expected + graph.values(bias)
            fits.append((distance(expected, y), candidate, scale, bias))
    fits.sort(key=lambda fit: fit[0])
    error, candidate, scale, bias = fits[0]
    if error > CLOSE:
        return None
    others = [(str(other), residual) for residual, other, *_ in fits[1:] if other != candidate]
    stored, offset = _stored(graph, scale)
    return Norm(result, stream.elements, candidate, stored, bias, error, others[0] if others else None, offset)


def _stored(graph: Graph, scale: np.ndarray | None) -> tuple[np.ndarray | None, float]:
    """Returns the elements of the parameter that a scale is made of, and the number that is added to it."""
    root = None if scale is None else graph.root_of(scale)
    if scale is None or root is None or root.op != "add" or len(root.inputs) != 1 or not root.literals:
        return scale, 0.0
    stored = graph.operand(root, root.inputs[0], scale)
    return (scale, 0.0) if stored is None else (stored, root.literals[0] * float(root.kwargs.get("alpha", 1)))


def _without_fixed(graph: Graph, elements: np.ndarray | None, neutral: float) -> np.ndarray | None:
    """Returns no elements for a buffer or constant that changes nothing, such as zeros passed to F.layer_norm as its
    bias."""
    if elements is None or any(root.trains for root in graph.recording.roots(elements)):
        return elements
    return None if (graph.values(elements) == neutral).all() else elements


def _numbers(graph: Graph, elements: np.ndarray | None) -> np.ndarray | None:
    return None if elements is None else graph.values(elements)
