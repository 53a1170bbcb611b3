"""The stage `weights`: checks that both sides' parameters are equal, and explains differences by known porting
mistakes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import ml_dtypes
import numpy as np

from jax_transformer.comparison.findings import Fault, Finding, Match
from jax_transformer.comparison.gates.stages import Row, Stage, compare_stage
from jax_transformer.comparison.sides import Arrays
from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.positions import Alibi, RelativeBias
from jax_transformer.parity.run_results import Pair, RunResults


def compare_weights(pair: Pair, results: RunResults) -> Stage:
    """Compares the parameters and constants of both sides, bit for bit."""
    candidate, reference = (_InFloat64(side.weights()) for side in pair.sides.values())
    stage = compare_stage("weights", candidate, reference, tolerance=0.0)
    stage = replace(stage, rows=tuple(_with_heads_in_order(stage.rows, pair.config, candidate, reference)))
    results.faults += _faults(stage, candidate, reference)
    return stage


HEADS = {"query": (1, 0), "key": (1, 0), "value": (1, 0), "output": (0, None)}
"""The head axis in the kernel and the bias of each part of an attention, in one layer; the output's bias has none."""


def _with_heads_in_order(
    rows: Iterable[Row],
    config: TransformerConfig,
    candidate: Mapping[str, np.ndarray],
    reference: Mapping[str, np.ndarray],
) -> Iterator[Row]:
    """Yields the rows. Passes those of an attention whose weights all have the heads in the same other order, which is
    the same function."""
    rows = tuple(rows)
    diverged = [match for row in rows if row.verdict == "diverged" and (match := WEIGHT.fullmatch(row.name))]
    orders = {
        place: _order(*place, config, candidate, reference)
        for place in dict.fromkeys((match["attention"], match["layer"]) for match in diverged)
    }
    for row in rows:
        match = WEIGHT.fullmatch(row.name)
        order = orders.get((match["attention"], match["layer"])) if match and row.verdict == "diverged" else None
        if order:
            reason = f"heads in the order {', '.join(map(str, order))} in every weight: the same function"
            yield replace(row, verdict="passed", gate="equal but for the order of heads", reason=reason)
        else:
            yield row


WEIGHT = re.compile(r"(?P<attention>.*_attention)/(query|key|value|output)/(kernel|bias)(?P<layer>\[\d+\])")


def _order(
    attention: str,
    layer: str,
    config: TransformerConfig,
    candidate: Mapping[str, np.ndarray],
    reference: Mapping[str, np.ndarray],
) -> tuple[int, ...]:
    """Returns each candidate head's index in the reference; () if the order of heads doesn't explain all weights."""
    stack = config.decoder if attention.startswith("decoder") else config.encoder
    part = getattr(stack, attention.rpartition("/")[2])
    shape = part.shape(stack.d_model)
    has_biases = attention.endswith("self_attention") and isinstance(stack.positions, RelativeBias | Alibi)
    if has_biases or part.head_scale or part.context_norm or shape.num_kv_heads != shape.num_heads:
        return ()  # other parameters are per head, too
    own, other = (side[f"{attention}/query/kernel{layer}"] for side in (candidate, reference))  # [D, N, H]
    heads = range(own.shape[1])
    found = [[m for m in heads if np.array_equal(own[:, n], other[:, m])] for n in heads]
    order = tuple(one[0] for one in found if len(one) == 1)
    if sorted(order) != [*heads]:
        return ()
    for role, axes in HEADS.items():
        for kind, axis in zip(("kernel", "bias"), axes, strict=True):
            path = f"{attention}/{role}/{kind}{layer}"
            if path in reference:
                expected = reference[path] if axis is None else reference[path].take(order, axis=axis)
                if not np.array_equal(candidate[path], expected):
                    return ()
    return order


class _InFloat64(Mapping[str, np.ndarray]):
    """Converts arrays to float64, which represents every dtype of weights exactly, on each access, and keeps none."""

    def __init__(self, arrays: Arrays) -> None:
        self._arrays = arrays

    def __getitem__(self, name: str) -> np.ndarray:
        return self._arrays[name].astype(np.float64)

    def __contains__(self, name: object) -> bool:
        return name in self._arrays

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)


def _faults(stage: Stage, candidate: Mapping[str, np.ndarray], reference: Mapping[str, np.ndarray]) -> list[Fault]:
    """Explains each parameter that differs from the reference's."""
    faults = []
    for row in stage.rows:
        if row.verdict == "diverged":
            received, error = candidate[row.name], row.error.relative_rms if row.error is not None else math.inf
            matches = tuple(
                Match(name, 0.0)
                for name, value in _known_weights(row.name, reference)
                if np.array_equal(received, value)
            )
            finding = Finding(row.name, "weights", error if matches else math.nan, matches, None)
            faults.append(Fault("candidate" if matches else "unknown", "weights", finding, error))
    return faults


def _known_weights(path: str, reference: Mapping[str, np.ndarray]) -> Iterable[tuple[str, np.ndarray]]:
    """Yields the names of known porting mistakes, with the parameter's values after each."""
    own = reference[path]
    yield "rounded to float16", own.astype(np.float16).astype(np.float64)
    yield "rounded to bfloat16", own.astype(ml_dtypes.bfloat16).astype(np.float64)
    yield "rounded to float32", own.astype(np.float32).astype(np.float64)
    matrix = own.reshape(len(own), -1) if own.ndim > 1 else own
    if own.ndim > 1:
        yield "transposed", matrix.T.reshape(own.shape)
    for other, array in reference.items():
        if other != path and array.shape == own.shape and not np.array_equal(array, own):
            yield f"the values of {other}", array
