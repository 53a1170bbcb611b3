"""Explains why a candidate decodes different tokens or scores, by decoding the same sentences in float64 with every
known fault."""

from __future__ import annotations

from itertools import combinations
from typing import NamedTuple

import numpy as np

from jax_transformer.comparison.findings import Finding, Match
from jax_transformer.comparison.gates import tolerances
from jax_transformer.comparison.gates.arrays import ParityError
from jax_transformer.parity.faults.decoding import DecodingProblem, Outcome
from jax_transformer.parity.oracle.decoding import Decoded


class Forgiven(NamedTuple):
    """Describes a sentence whose tokens differ only where rounding may decide."""

    sentence: int
    place: int
    """The first token that differs."""
    margin: float
    """Distance between the correct program's two best choices at that token; with several beams, at the sentence's
    closest decision."""
    allowed: float


class Explanation(NamedTuple):
    """Explains how a batch was decoded."""

    finding: Finding | None
    """None if every sentence is correct or forgiven."""
    forgiven: tuple[Forgiven, ...] = ()
    """Sentences whose later tokens and scores aren't judged."""
    forgiven_as: tuple[str, ...] = ()
    """Faults that reproduce the forgiven sentences exactly, such as another choice among equals."""


def explain_decoding(
    problem: DecodingProblem, received: np.ndarray, scores: np.ndarray | None = None, *, logit_floor: float
) -> Explanation:
    """Explains differences in the candidate's decoding, if there are any.

    Args:
      received: [B, T], the candidate's best hypotheses without the start token, with pads after their ends; any T.
      scores: [B], the scores of these hypotheses, if known.
      logit_floor: the measured distance between the logits of two correct programs.

    Raises:
      ParityError: arrays of wrong shapes or dtypes; a floor that isn't finite.
    """
    received, scores = _checked(problem, received, scores, logit_floor)
    allowed = tolerances.DECODING_MARGIN_FLOORS * logit_floor
    truth = _judged(problem, problem.truth, received, scores, allowed)
    if not truth.is_wrong.any():
        return Explanation(None, truth.forgiven, _causes_of_forgiven(problem, received) if truth.forgiven else ())
    is_enough = scores is not None or truth.is_wrong.sum() >= tolerances.DECODED_OTHERWISE
    fitting: list[tuple[Outcome, _Judgement]] = []
    others: list[tuple[Outcome, _Judgement]] = []
    for outcome in problem.outcomes:
        if scores is None and outcome.variant.changes_scores_alone:
            continue
        judgement = _judged(problem, outcome.decoded, received, scores, allowed)
        (fitting if is_enough and _explains(judgement, truth) else others).append((outcome, judgement))
    finding = Finding(
        node="decode",
        kind="decode",
        local_error=truth.residual,
        matches=tuple(Match(outcome.variant.name, judgement.residual) for outcome, judgement in fitting),
        runner_up=_runner_up(others, truth),
        told_apart_by=_distinguishing_inputs([outcome for outcome, _ in fitting], scores is not None)
        if is_enough
        else MORE,
    )
    return Explanation(finding, truth.forgiven)


MORE = (
    "the scores of the hypotheses, which were not given, or more sentences that decode differently: these are too "
    "few to name a cause"
)


class _Judgement(NamedTuple):
    """Compares the received tokens with those of one program."""

    is_right: np.ndarray
    """[B]: equal tokens, and a score within its gate."""
    is_wrong: np.ndarray
    """[B]: neither right nor forgiven."""
    forgiven: tuple[Forgiven, ...]
    distance: tuple[float, float]
    """The share of all tokens at or behind the first difference of their sentence, and the largest error of a score."""

    @property
    def residual(self) -> float:
        """Returns one number: the tokens' distance or, if all are equal, the scores'."""
        return self.distance[0] or self.distance[1]


def _judged(
    problem: DecodingProblem, decoded: Decoded, received: np.ndarray, scores: np.ndarray | None, allowed: float
) -> _Judgement:
    expected, received = _aligned(decoded.sequences, received, problem.rule.pad_id)
    differs = expected != received
    same = ~differs.any(axis=1)
    first = (
        np.where(same, expected.shape[1], differs.argmax(axis=1)) if expected.shape[1] else np.zeros(len(expected), int)
    )
    margins = np.where(same, np.inf, _margins(problem, decoded, first))
    is_near = margins <= allowed
    errors = (
        np.zeros(len(received))
        if scores is None
        else np.abs(scores - decoded.scores) / np.maximum(1.0, np.abs(decoded.scores))
    )
    is_right = same & (errors <= tolerances.HYPOTHESIS_SCORE)
    forgiven = tuple(
        Forgiven(int(row), int(first[row]), float(margins[row]), allowed) for row in np.flatnonzero(is_near)
    )
    lengths = np.maximum(_lengths(expected, problem.rule.pad_id), _lengths(received, problem.rule.pad_id))
    share = 1.0 - np.minimum(first, lengths).sum() / max(lengths.sum(), 1)
    error = float(np.where(np.isnan(errors), np.inf, errors)[same].max(initial=0.0))
    return _Judgement(is_right, ~is_right & ~is_near, forgiven, (float(share), error))


def _margins(problem: DecodingProblem, decoded: Decoded, places: np.ndarray) -> np.ndarray:
    """Returns each sentence's margin at this token; with several beams its smallest, as any earlier decision may have
    chosen the token."""
    if problem.rule.beam_size > 1:
        return decoded.margins.min(axis=1, initial=np.inf)
    margins = np.concatenate([decoded.margins, np.full((len(places), 1), np.inf)], axis=1)
    return margins[np.arange(len(places)), np.minimum(places, margins.shape[1] - 1)]


def _aligned(expected: np.ndarray, received: np.ndarray, pad_id: int) -> tuple[np.ndarray, np.ndarray]:
    width = max(expected.shape[1], received.shape[1])

    def widened(ids: np.ndarray) -> np.ndarray:
        return np.pad(ids, ((0, 0), (0, width - ids.shape[1])), constant_values=pad_id)

    return widened(expected), widened(received)


def _lengths(ids: np.ndarray, pad_id: int) -> np.ndarray:
    """Returns the lengths [B], up to the last token that isn't a pad."""
    return ((ids != pad_id) * np.arange(1, ids.shape[1] + 1)).max(axis=1, initial=0)


def _explains(judgement: _Judgement, truth: _Judgement) -> bool:
    """Returns whether a variant reproduces all wrong sentences exactly, and is otherwise within rounding."""
    is_forgiven = ~truth.is_right & ~truth.is_wrong
    return bool(judgement.is_right[truth.is_wrong].all() and not (judgement.is_wrong & ~is_forgiven).any())


def _causes_of_forgiven(problem: DecodingProblem, received: np.ndarray) -> tuple[str, ...]:
    found = []
    for outcome in problem.outcomes:
        expected, actual = _aligned(outcome.decoded.sequences, received, problem.rule.pad_id)
        found += [outcome.variant.name] if np.array_equal(expected, actual) else []
    return tuple(found)


def _runner_up(unfitting: list[tuple[Outcome, _Judgement]], truth: _Judgement) -> Match | None:
    """Returns the nearest variant if it is nearer than the correct program, as one without effect isn't."""
    nearest = min(unfitting, key=lambda pair: pair[1].distance, default=None)
    if nearest is None or nearest[1].distance >= truth.distance:
        return None
    return Match(nearest[0].variant.name, nearest[1].residual)


def _distinguishing_inputs(fitting: list[Outcome], has_scores: bool) -> str:
    """Describes inputs on which the variants that fit would differ."""
    if len(fitting) < 2:
        return ""
    hints = [] if has_scores or not _scored_apart(fitting) else ["the scores of the hypotheses, which were not given"]
    places: dict[str, list[str]] = {}
    for outcome in fitting:
        places.setdefault(outcome.variant.shows_on, []).append(outcome.variant.name)
    if len(places) > 1:
        hints += [f"{shows_on} ({' and '.join(names)})" for shows_on, names in places.items()]
    return "; ".join(hints) or f"other sentences: {fitting[0].variant.shows_on}"


def _scored_apart(fitting: list[Outcome]) -> bool:
    return any(
        (np.abs(one.decoded.scores - other.decoded.scores) > tolerances.HYPOTHESIS_SCORE).any()
        for one, other in combinations(fitting, 2)
    )


def _checked(
    problem: DecodingProblem, received: np.ndarray, scores: np.ndarray | None, logit_floor: float
) -> tuple[np.ndarray, np.ndarray | None]:
    received = np.asarray(received)
    if received.ndim != 2 or len(received) != problem.count or received.dtype.kind not in "iu":
        raise ParityError(
            f"decoded tokens: expected integers of shape [{problem.count}, T], the best hypothesis of each sentence; "
            f"received {received.dtype} of shape {list(received.shape)}"
        )
    if scores is not None:
        scores = np.asarray(scores)
        if scores.shape != (problem.count,) or scores.dtype.kind != "f":
            raise ParityError(
                f"scores of decoded sentences: expected floating-point numbers of shape [{problem.count}]; received "
                f"{scores.dtype} of shape {list(scores.shape)}"
            )
    if not 0.0 <= logit_floor < np.inf:
        raise ParityError(f"logit_floor: expected a finite number, at least 0; received {logit_floor}")
    return received.astype(np.int64), scores
