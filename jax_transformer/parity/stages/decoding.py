"""The stage `decode`: the tokens that both sides generate, greedily and by beam search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from jax_transformer.parity.backends.side import CannotRun
from jax_transformer.parity.diagnosis.findings import Fault, SideName
from jax_transformer.parity.gates import tolerances
from jax_transformer.parity.gates.stages import Row, Stage, compare_stage
from jax_transformer.parity.problems import Problem
from jax_transformer.parity.run_results import Pair, RunResults
from jax_transformer.parity.stages import explanations

BEAMS = 4
NEW_TOKENS = 12


def with_sources(pair: Pair, own: Problem) -> Problem:
    """Returns the problem without sentences that are all padding, which programs decode differently."""
    return replace(own, source_ids=own.source_ids[(own.source_ids != pair.config.source_pad_id).any(axis=1)])


def compare_decoding(pair: Pair, own: Problem, most: int, results: RunResults) -> Stage:
    """Compares the tokens of a greedy and a beam search; rounding may choose where two tokens are equally likely.

    Raises:
      CannotRun: a side can't decode greedily. A side without beam search is compared by its greedy tokens alone.
    """
    rows: list[Row] = []
    for beam_size, title in ((1, "greedy"), (BEAMS, f"{BEAMS} beams")):
        try:
            tokens = {
                name: _padded(side.decode(own, beam_size, most), most, pair)
                for name, side in reversed(pair.sides.items())
            }
        except CannotRun:
            if beam_size == 1:
                raise
            continue  # a program without beam search
        (row,) = compare_stage("decode", {title: tokens["candidate"]}, {title: tokens["reference"]}).rows
        rows.append(
            row if row.verdict == "passed" else _explained_tokens(pair, own, row, beam_size, most, tokens, results)
        )
    return Stage("decode", tuple(rows))


def _explained_tokens(
    pair: Pair,
    own: Problem,
    row: Row,
    beam_size: int,
    most: int,
    tokens: Mapping[SideName, np.ndarray],
    results: RunResults,
) -> Row:
    """Returns the row, passed if only rounding explains it, and adds a fault for each other cause."""
    floor = tolerances.FLOAT64_RELATIVE_RMS * max(1.0, results.size_of_logits)
    explained = {
        name: explanations.decoded_by(pair.config, pair.generation, own, beam_size, most, tokens[name], floor)
        for name in pair.sides
    }
    if not results.faults:
        results.faults += [
            Fault(name, "decode", one.finding, one.finding.local_error, own.name)
            for name, one in explained.items()
            if one.finding
        ]
    return explanations.forgiven(row, explained.values()) or row


def _padded(ids: np.ndarray, length: int, pair: Pair) -> np.ndarray:
    return np.pad(ids, ((0, 0), (0, length - ids.shape[1])), constant_values=pair.config.target_pad_id).astype(np.int64)
