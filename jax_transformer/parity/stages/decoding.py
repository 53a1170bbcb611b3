"""The stage `decode`: compares the tokens that both sides generate, greedily and by beam search."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from jax_transformer.comparison.findings import Fault, SideName
from jax_transformer.comparison.gates import tolerances
from jax_transformer.comparison.gates.arrays import ParityError
from jax_transformer.comparison.gates.stages import Row, Stage, compare_stage
from jax_transformer.comparison.sides import CannotRun
from jax_transformer.config.decoding import DEFAULTS, DecodingConfig, GenerationConfig
from jax_transformer.config.model import TransformerConfig
from jax_transformer.parity.backends.side import Hypotheses, starts_and_ends
from jax_transformer.parity.diagnosis.decoding import Explanation, explain_decoding
from jax_transformer.parity.faults.decoding import DecodingProblem
from jax_transformer.parity.oracle.decoding import DecodeRule
from jax_transformer.parity.problems import Problem, swap_target_ids
from jax_transformer.parity.rules import SEARCH_FIELDS
from jax_transformer.parity.run_results import ORDER, Pair, RunResults

BEAMS = 4
NEW_TOKENS = 12
SIDES: tuple[SideName, ...] = ("candidate", "reference")


def searches(pair: Pair) -> tuple[DecodingConfig, ...]:
    """Returns the searches to compare: that of a user's decoder, or a greedy and a beam search."""
    most = min(NEW_TOKENS, pair.config.decoder.max_length)
    if pair.rules.decoding is None:
        built_in = DecodingConfig(**{**DEFAULTS, "max_new_tokens": most})
        return built_in, built_in.updated(beam_size=BEAMS)
    return (pair.rules.decoding.updated(max_new_tokens=pair.rules.decoding.max_new_tokens or most),)


def with_ends(pair: Pair, problem: Problem, results: RunResults) -> Problem:
    """Returns a problem on which some sentences end early and some don't, to test how a decoder ends sentences.

    If all or none end early, swaps the end token with a token that appears in some of the decoded sentences.
    """
    (decoding,) = searches(pair)
    _, eos_id = starts_and_ends(pair.generation)
    decoded = pair.candidate.decode(problem, decoding).ids
    last = decoded.shape[1] - 1

    def ends_early(index: int) -> np.ndarray:
        """Returns the sentences [B] that have the id after their first token and before their last."""
        return (decoded[:, 1:last] == index).any(axis=1)

    used = {pair.generation.decoder_start_id, pair.config.source.pad_id, pair.config.target.pad_id}
    usable = sorted({int(index) for index in np.unique(decoded)} - used - {eos_id})
    best = max([eos_id, *usable], key=lambda index: min(ends_early(index).sum(), (~ends_early(index)).sum()))
    if not (ends_early(best).any() and (~ends_early(best)).any()):
        results.doubts["no choice of the end token lets some sentences end early and others not"] = None
    return problem if best == eos_id else swap_target_ids(pair.config, problem, eos_id, best)


def compare_decoding(pair: Pair, own: Problem, results: RunResults) -> Stage:
    """Compares the tokens of each search; rounding may decide between equally likely tokens.

    Raises:
      CannotRun: a side can't decode greedily. A side without beam search is compared only by its greedy tokens.
    """
    rows: list[Row] = []
    if pair.rules.decoding is not None:
        own = with_ends(pair, own, results)
    for decoding in searches(pair):
        title = "greedy" if decoding.beam_size == 1 else f"{decoding.beam_size} beams"
        try:
            found = {name: side.decode(own, decoding) for name, side in reversed(pair.sides.items())}
        except CannotRun:
            if not rows:
                raise
            continue  # a program without beam search
        found = _aligned(found, pair)
        _check_start(pair, found)
        stage = compare_stage(
            "decode",
            *(_arrays(title, found[name]) for name in SIDES),
            tolerance=tolerances.HYPOTHESIS_SCORE,
        )
        rows += stage.rows if stage.verdict == "passed" else _explained(pair, own, stage, decoding, found, results)
    return Stage("decode", tuple(rows))


def _aligned(found: Mapping[SideName, Hypotheses], pair: Pair) -> dict[SideName, Hypotheses]:
    """Pads both sides' hypotheses to one length; keeps scores if both sides have them."""
    width = max(one.ids.shape[1] for one in found.values())
    has_scores = all(one.scores is not None for one in found.values())
    pad_id = pair.config.target.pad_id
    return {
        name: Hypotheses(
            np.pad(one.ids, ((0, 0), (0, width - one.ids.shape[1])), constant_values=pad_id).astype(np.int64),
            np.asarray(one.scores, np.float64) if has_scores else None,
        )
        for name, one in found.items()
    }


def _arrays(title: str, found: Hypotheses) -> dict[str, np.ndarray]:
    return {title: found.ids} if found.scores is None else {title: found.ids, f"{title}, scores": found.scores}


def _explained(
    pair: Pair,
    own: Problem,
    stage: Stage,
    decoding: DecodingConfig,
    found: Mapping[SideName, Hypotheses],
    results: RunResults,
) -> list[Row]:
    """Passes the rows that rounding explains, and adds a fault for each other cause."""
    floor = tolerances.FLOAT64_RELATIVE_RMS * max(1.0, results.size_of_logits)
    explained = {
        name: decoded_by(pair.config, pair.generation, own, decoding, found[name], floor) for name in pair.sides
    }
    if all(fault.stage in ORDER.from_own_results for fault in results.faults):
        results.faults += [
            Fault(name, "decode", one.finding, one.finding.local_error, own.name)
            for name, one in explained.items()
            if one.finding
        ]
    return [row if row.verdict == "passed" else forgiven(row, explained.values()) or row for row in stage.rows]


def _check_start(pair: Pair, found: Mapping[SideName, Hypotheses]) -> None:
    """Raises ParityError for a user's decoder that includes the start token."""
    start = pair.generation.decoder_start_id
    candidate, reference = (found[name].ids.size and (found[name].ids[:, 0] == start).all() for name in SIDES)
    if pair.rules.decoding is not None and reference and not candidate:
        raise ParityError(
            f"decode: expected the ids after the start token; every row that the decoder returns begins with it, "
            f"{start}: leave it out"
        )


def decoded_by(
    config: TransformerConfig,
    generation: GenerationConfig,
    problem: Problem,
    decoding: DecodingConfig,
    received: Hypotheses,
    floor: float,
) -> Explanation:
    """Explains the tokens that a side decodes differently from its own model.

    Args:
      floor: the difference between the two sides' logits.
    """
    start_id, eos_id = starts_and_ends(generation)
    search = {name: getattr(decoding, name) for name in SEARCH_FIELDS}
    rule = DecodeRule(**search, decoder_start_id=start_id, eos_id=eos_id, pad_id=config.target.pad_id)
    return explain_decoding(
        DecodingProblem.for_model(rule, config, problem.params, problem.source),
        received.ids,
        received.scores,
        logit_floor=floor,
    )


def forgiven(row: Row, explanations: Iterable[Explanation]) -> Row | None:
    """Returns the row as passed if tokens differ only where rounding decides; None if anything else differs."""
    found = list(explanations)
    if any(explanation.finding is not None for explanation in found):
        return None
    choices = [
        f"sentence {choice.sentence}, token {choice.place}: margin {choice.margin:.1e}"
        for one in found
        for choice in one.forgiven
    ]
    return (
        Row(row.name, "passed", row.gate, reason=f"differs where two tokens are equally likely: {'; '.join(choices)}")
        if choices
        else None
    )
