"""Decoding in NumPy and float64, without a cache: greedy (one beam) or by beam search.

It follows `generate` of transformers 5 (`huggingface`), or the same with the penalty of Wu et al. 2016, §7 (`gnmt`). A
search depends only on the logits of whole prefixes. The function that computes them is an argument, so any model can be
decoded.

**Ties.** Candidates with the same score are ordered by beam, then by id; hypotheses by when they ended.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from jax_transformer.parity.oracle.graph import Source, downstream, model_inputs, nodes, recompute

if TYPE_CHECKING:
    from jax_transformer.config.model import TransformerConfig

LogitsOf = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""(prefixes [N, T] with the start token, the sentence of each [N]) → the logits of the next tokens, [N, V]."""


@dataclass(frozen=True, kw_only=True)
class DecodeRule:
    """Defines a search. The defaults of the fields after `pad_id` are correct; their other values are known
    mistakes."""

    beam_size: int = 1
    """The number of hypotheses searched in parallel; with one, the most probable token always comes next."""
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    """When a sentence is done. True: with beam_size ended hypotheses. False: when the best running hypothesis, if it
    ended now, would be no better than these. "never": when it couldn't become better at any length."""
    semantics: Literal["huggingface", "gnmt"] = "huggingface"
    max_new_tokens: int
    """The most tokens of a target, counting the end token but not the start token."""
    decoder_start_id: int
    eos_id: int
    pad_id: int
    """The token after the end of a sentence."""

    counts_end: bool = True
    """Whether the end token counts in the length of a hypothesis."""
    counts_start: bool = False
    normalizes: bool = True
    """Whether scores are sums of log-probabilities; otherwise of logits."""
    ties: Literal["first", "last"] = "first"
    eos_ends: bool = True
    keeps_ended: bool = False
    """Whether an ended hypothesis also keeps its beam."""
    candidates: int = 2
    """The number of continuations considered, in multiples of beam_size."""
    any_rank_ends: bool = False
    """Whether a hypothesis may end that isn't among the beam_size best continuations."""
    reorders_cache: bool = True
    """Whether the cache follows a hypothesis to another beam; otherwise it stays with the beam."""
    tiles_sources: bool = False
    """Whether sources are copied for the beams as a, b, a, b; otherwise as a, a, b, b."""

    def __post_init__(self) -> None:
        for name in ("beam_size", "max_new_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1; received {getattr(self, name)}")

    def length(self, tokens: Sequence[int]) -> int:
        """Returns the length of a hypothesis."""
        has_end = tokens[-1] == self.eos_id
        return len(tokens) - (has_end and not self.counts_end) + self.counts_start

    def penalty(self, length: int) -> float:
        """Returns the divisor of a score for this length."""
        base = (5 + length) / 6 if self.semantics == "gnmt" else max(length, 1)
        return base**self.length_penalty


class Decoded(NamedTuple):
    """Holds the best hypothesis of each of B sentences."""

    sequences: np.ndarray
    """[B, T] int64: ids without the start token, up to and with the end token, and pads after it."""
    scores: np.ndarray
    """[B]: the sum of the tokens' log-probabilities over the penalty of the length."""
    margins: np.ndarray
    """[B, steps]: at each step, the smallest difference of two numbers whose order decided something; infinite if
    nothing did. With one beam, the best two logits; with several, sums of log-probabilities, or scores."""


class _Beam(NamedTuple):
    """Holds a running hypothesis."""

    tokens: tuple[int, ...]
    total: float
    fed: tuple[int, ...]
    """The prefix that the model reads: the tokens after the start if the cache is right."""


class _Ended(NamedTuple):
    tokens: tuple[int, ...]
    score: float


class _Way(NamedTuple):
    """Describes a continuation of a beam by one token."""

    total: float
    parent: int
    token: int
    ends: bool


class _Search(NamedTuple):
    """Searches one sentence."""

    running: tuple[_Beam, ...]
    """The best first."""
    ended: tuple[_Ended, ...] = ()
    """The best first."""
    is_done: bool = False
    margins: tuple[float, ...] = ()


def decode(rule: DecodeRule, logits_of: LogitsOf, count: int) -> Decoded:
    """Decodes sentences 0 to count − 1; they share only the forward passes.

    Raises:
      ValueError: logits that are NaN.
    """
    start = _Beam((), 0.0, (rule.decoder_start_id,))
    searches = [_Search((start,)) for _ in range(count)]
    while under_way := [row for row, search in enumerate(searches) if not search.is_done]:
        places = [(row, slot) for row in under_way for slot in range(len(searches[row].running))]
        prefixes = np.array([searches[row].running[slot].fed for row, slot in places])
        logits = logits_of(prefixes, np.array([_source_of(rule, row, slot, count) for row, slot in places]))
        if np.isnan(logits).any():
            raise ValueError(f"logits after {prefixes.shape[1]} tokens: expected numbers; received NaN")
        values = log_softmax(logits) if rule.normalizes else logits
        rows = np.array([row for row, _ in places])
        for row in under_way:
            searches[row] = _advanced(rule, searches[row], values[rows == row])
    best = [search.ended[0] for search in searches]
    return Decoded(
        padded([hypothesis.tokens for hypothesis in best], rule.pad_id).astype(np.int64),
        np.array([hypothesis.score for hypothesis in best]),
        padded([search.margins for search in searches], np.inf),
    )


def _source_of(rule: DecodeRule, row: int, slot: int, count: int) -> int:
    return (row * rule.beam_size + slot) % count if rule.tiles_sources else row


def _advanced(rule: DecodeRule, search: _Search, values: np.ndarray) -> _Search:
    """Advances a search by one token, from the values [K, V] of each beam's next tokens.

    The search considers twice as many candidates as beams. Candidates that end become hypotheses if they rank in the
    first half; the best of the rest stay open.
    """
    beams, size = search.running, rule.beam_size
    length = len(beams[0].tokens) + 1
    is_last = length >= rule.max_new_tokens
    ways = _ways(rule, beams, values, is_last)
    candidates = ways[: rule.candidates * size]
    going_on = [way for way in candidates if rule.keeps_ended or not way.ends][:size]
    may_end = candidates if rule.any_rank_ends else candidates[:size]
    ended = _best_ended(rule, search.ended, [_ended(rule, beams[way.parent], way) for way in may_end if way.ends])
    could_improve, distance = _could_improve(rule, going_on, ended, length)
    is_done = is_last or not could_improve or (len(ended) == size and (size == 1 or rule.early_stopping is True))
    running = [
        _Beam((*beams[way.parent].tokens, way.token), way.total, _fed(rule, beams, slot, way))
        for slot, way in enumerate(going_on)
    ]
    margin = _margin(rule, ways, ended, is_last, is_done, distance)
    return _Search(tuple(running), ended, is_done, (*search.margins, margin))


def _ways(rule: DecodeRule, beams: Sequence[_Beam], values: np.ndarray, is_last: bool) -> list[_Way]:
    """Returns the best continuations in order: the candidates, and one more for the margin."""
    size = values.shape[1]
    totals = (values + np.array([[beam.total] for beam in beams])).ravel()
    found = best(totals, rule.candidates * rule.beam_size + 1, rule.ties)
    ends = is_last | ((found % size == rule.eos_id) & rule.eos_ends)
    return [
        _Way(*way) for way in zip(totals[found], found // size, (found % size).tolist(), ends.tolist(), strict=True)
    ]


def _fed(rule: DecodeRule, beams: Sequence[_Beam], slot: int, way: _Way) -> tuple[int, ...]:
    fed_before = beams[
        way.parent if rule.reorders_cache else min(slot, len(beams) - 1)
    ].fed  # all beams start with the same prefix
    return (*fed_before, way.token)


def _ended(rule: DecodeRule, parent: _Beam, way: _Way) -> _Ended:
    tokens = (*parent.tokens, way.token)
    return _Ended(tokens, way.total / rule.penalty(rule.length(tokens)))


def _best_ended(rule: DecodeRule, before: Sequence[_Ended], now: Sequence[_Ended]) -> tuple[_Ended, ...]:
    in_order = [*before, *now] if rule.ties == "first" else [*now, *before]
    return tuple(
        sorted(in_order, key=lambda hypothesis: hypothesis.score, reverse=True)[: rule.beam_size]
    )  # of equals, in this order


def _could_improve(
    rule: DecodeRule, going_on: Sequence[_Way], ended: Sequence[_Ended], length: int
) -> tuple[bool, float]:
    """Returns whether an open hypothesis can still be among the best, and the margin of that decision."""
    if not going_on or len(ended) < rule.beam_size:
        return bool(going_on), np.inf
    penalty = rule.penalty(length + rule.counts_start)
    if rule.early_stopping == "never":
        penalty = max(penalty, rule.penalty(rule.max_new_tokens + rule.counts_start))
    reachable, worst = going_on[0].total / penalty, ended[-1].score
    return reachable > worst, abs(reachable - worst)


def _margin(
    rule: DecodeRule,
    ways: Sequence[_Way],
    ended: Sequence[_Ended],
    is_last: bool,
    is_done: bool,
    distance_of_stopping: float,
) -> float:
    """Returns the margin of this step's closest decision."""
    size, totals = rule.beam_size, [way.total for way in ways] + 2 * [-np.inf]
    if size == 1:
        return totals[0] - totals[1]
    gaps = []
    if not is_last:  # the ranks of ended candidates, and whether the search continues
        gaps += [way.total - totals[size] for way in ways[:size] if way.ends]
        gaps += [totals[size - 1] - way.total for way in ways[size:] if way.ends]
        gaps += [distance_of_stopping] if rule.early_stopping is not True else []
    if not is_done:  # which go on
        others = [way.total for way in ways if not way.ends]
        gaps += [others[size - 1] - others[size]] if len(others) > size else []
    elif len(ended) > 1:  # which is returned
        gaps.append(ended[0].score - ended[1].score)
    return min(gaps, default=np.inf)


def best(values: np.ndarray, count: int, ties: Literal["first", "last"] = "first") -> np.ndarray:
    """Returns the indices of the `count` largest of values [N], in order; among equals the first comes first, or the
    last."""
    count = min(count, len(values))
    least = np.partition(values, -count)[-count]
    found = np.flatnonzero(values >= least)
    found = found if ties == "first" else found[::-1]
    return found[np.argsort(-values[found], kind="stable")][:count]


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Returns the log-softmax over the last axis."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def padded(rows: Sequence[Sequence[Any]], filler: Any) -> np.ndarray:
    """Returns rows of several lengths as one array, filled on the right."""
    width = max(map(len, rows), default=0)
    return np.array([[*row, *(width - len(row)) * [filler]] for row in rows]).reshape(len(rows), width)


# --- a model's logits

Captured = Mapping[str, np.ndarray]


def logits_of_model(
    config: TransformerConfig,
    params: Mapping[str, Any],
    source_ids: Source,
    *,
    replace: Mapping[str, Callable[[Captured], np.ndarray]] | None = None,
) -> LogitsOf:
    """Returns a function that computes a model's logits under the masks of decoding. Nodes that don't depend on the
    target, such as the encoder's, are computed once.

    Args:
      params, source_ids: as in `forward`. A sentence of only pads is decoded like any sentence.
      replace: functions that replace activations or masks of the decoder, from the ids and the earlier ones.

    Raises:
      ValueError: as `forward`; here, or when logits are computed.
    """
    config, params = config.while_decoding(), _exact(params)
    graph, replace = nodes(config), replace or {}
    target_nodes = set(downstream(graph, "decoder_input_ids"))
    if unknown := sorted(replace.keys() - target_nodes):
        raise ValueError(f"replace: expected names of this model's decoder; received {', '.join(unknown)}")
    once = model_inputs(config, source_ids)
    if getattr(config.decoder.positions, "index", None) == "batch_row":
        # rows of `prefixes` may be in any order; positions by batch row follow the sentence
        once["decoder_input_ids"] = once["source_ids"][:, :1]
        target_nodes -= {"decoder.positions"}
    for node in graph:
        if node.name not in target_nodes:
            once[node.name] = recompute(node, config, once, params)
    needed = {name for node in graph if node.name in target_nodes for name in node.inputs.values()} & once.keys() - {
        "decoder_input_ids"
    }

    def logits_of(prefixes: np.ndarray, rows: np.ndarray) -> np.ndarray:
        arrays = {"decoder_input_ids": prefixes} | {name: once[name][rows] for name in needed}
        for node in graph:
            if node.name in target_nodes:
                if node.kind == "logits":  # of the last position only: a vocabulary is large
                    arrays[node.inputs["x"]] = arrays[node.inputs["x"]][:, -1:]
                compute = replace.get(node.name)
                arrays[node.name] = recompute(node, config, arrays, params) if compute is None else compute(arrays)
        return arrays["logits"][:, -1]

    return logits_of


def _exact(params: Any) -> Any:
    """Returns the nested dict with its floating-point leaves in float64."""
    if isinstance(params, Mapping):
        return {name: _exact(leaf) for name, leaf in params.items()}
    leaf = np.asarray(params)
    return leaf if leaf.dtype.kind in "biu" else leaf.astype(np.float64)
