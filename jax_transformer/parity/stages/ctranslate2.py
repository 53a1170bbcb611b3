"""The stage `ctranslate2`: a third program scores the same sentences with the candidate's exported weights.

Compares the error of log-probabilities against each side in float64: CTranslate2's may be only little larger than the
side's own in float32."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from jax_transformer.comparison.gates.stages import Row, Stage, compare_stage
from jax_transformer.comparison.sides import CannotRun
from jax_transformer.config.decoding import GenerationConfig
from jax_transformer.parity.backends.side import starts_and_ends
from jax_transformer.parity.problems import SOURCE_LENGTH, TARGET_LENGTH, Problem
from jax_transformer.parity.run_results import Pair, RunResults
from jax_transformer.parity.stages.precision import rounded
from jax_transformer.storage.model_directory import Model

ROWS = 6


def compare_with_ctranslate2(pair: Pair, own: Problem, seed: int, results: RunResults) -> Stage:
    """Compares each side's log-probabilities of target tokens with CTranslate2's.

    Raises:
      CannotRun: CTranslate2 isn't installed, or can't run this kind of model; the model has no start or end token.
    """
    problem = rounded(sentences(pair, own, seed), "float32")
    scored = _scored(pair, problem)
    rows: tuple[Row, ...] = ()
    for name, side in pair.sides.items():
        results.progress(f"ctranslate2: the {name}")
        row = f"log-probabilities, CTranslate2 against the {name}"
        measured, truth = (
            {row: _log_probs(side.forward(problem, dtype)["logits"], problem.labels)}
            for dtype in ("float32", "float64")
        )
        stage = compare_stage("ctranslate2", {row: scored}, measured, truth=truth, dtypes={row: "float32"})
        rows += stage.rows
    return replace(stage, rows=rows)


def sentences(pair: Pair, own: Problem, seed: int) -> Problem:
    """Returns sentences of different lengths, padded on the right; targets have start and end tokens as in decoding."""
    start_id, eos_id = starts_and_ends(pair.generation)
    config, rng = pair.config, np.random.default_rng([seed, 7])
    source_length = min(SOURCE_LENGTH, config.encoder.max_length)
    target_length = min(TARGET_LENGTH, config.decoder.max_length)
    special = {config.source.pad_id, config.target.pad_id, start_id, eos_id}
    source_ids = _tokens(rng, (ROWS, source_length), config.source.vocab_size, special)
    for row in range(ROWS):
        source_ids[row, max(1, source_length - row) :] = config.source.pad_id
    labels = _tokens(rng, (ROWS, target_length), config.target.vocab_size, special)
    labels[:, -1] = eos_id
    first = np.full((ROWS, 1), start_id, labels.dtype)
    return replace(
        own,
        name="whole sentences",
        source_ids=source_ids,
        decoder_input_ids=np.concatenate([first, labels[:, :-1]], axis=1),
        labels=labels,
    )


def _tokens(rng: np.random.Generator, shape: tuple[int, int], vocab_size: int, special: set[int]) -> np.ndarray:
    return rng.choice(np.array([index for index in range(vocab_size) if index not in special], np.int32), shape)


def _scored(pair: Pair, problem: Problem) -> np.ndarray:
    """Returns CTranslate2's log-probabilities [B, T] of the labels."""
    from jax_transformer.exporting.ctranslate2 import export_ctranslate2
    from jax_transformer.exporting.options import ExportError

    start_id, eos_id = starts_and_ends(pair.generation)
    generation = GenerationConfig(decoder_start_id=start_id, eos_id=eos_id)
    model = Model(pair.config, _in_memory(problem.params), None, None, generation)  # without tokenizers, tokens are ids
    with tempfile.TemporaryDirectory() as directory:
        try:
            export_ctranslate2(model, Path(directory) / "model")
        except ExportError as reason:
            raise CannotRun(str(reason)) from None
        import ctranslate2

        translator = ctranslate2.Translator(str(Path(directory) / "model"), compute_type="float32", intra_threads=1)
        sources = [
            [str(index) for index in row if index != pair.config.source.pad_id] for row in problem.source_ids.tolist()
        ]
        targets = [[str(index) for index in row[:-1]] for row in problem.labels.tolist()]  # CTranslate2 adds the end
        found = translator.score_batch(sources, targets, max_input_length=0)
    return np.array([result.log_probs for result in found], np.float32)


def _in_memory(params: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _in_memory(value) if isinstance(value, Mapping) else np.asarray(value) for name, value in params.items()
    }


def _log_probs(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Returns the log-probability [B, T] of each label, in the logits' dtype. Computes the softmax in float64, to keep
    only the rounding of the logits."""
    wide = logits.astype(np.float64)
    shifted = wide - wide.max(axis=-1, keepdims=True)
    normalised = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return np.take_along_axis(normalised, labels[..., None].astype(np.int64), axis=-1)[..., 0].astype(logits.dtype)
