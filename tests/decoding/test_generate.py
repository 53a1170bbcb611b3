"""Hypotheses and their scores: what must hold of them whatever the model."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from search_cases import EOS, MOST, START

from jax_transformer.config.decoding import DecodingConfig, GenerationConfig
from jax_transformer.config.model import TransformerConfig
from jax_transformer.decoding import generation as module
from jax_transformer.decoding import padding as shapes
from jax_transformer.decoding.checks import DecodingError
from jax_transformer.decoding.generation import Generated, generate
from jax_transformer.decoding.sampling_loop import draw
from jax_transformer.decoding.scoring import score
from jax_transformer.decoding.search_params import SamplingParams, SearchProgram
from jax_transformer.storage.model_directory import Model

pytestmark = pytest.mark.usefixtures("x64", "quick_compilation")

SEARCHES = {
    "greedy": DecodingConfig(max_new_tokens=MOST),
    "beams": DecodingConfig(beam_size=3, num_return=3, max_new_tokens=MOST),
    "gnmt": DecodingConfig(
        beam_size=3, num_return=3, semantics="gnmt", length_penalty=0.6, early_stopping="never", max_new_tokens=MOST
    ),
    "samples": DecodingConfig(sampling=True, num_return=3, seed=5, max_new_tokens=MOST),
}
GROUPS = DecodingConfig(
    beam_size=4, num_return=4, beam_groups=2, diversity_penalty=0.5, early_stopping="never", max_new_tokens=MOST
)
FLOYDHUB = DecodingConfig(beam_size=3, semantics="floydhub", max_new_tokens=MOST)
search = pytest.mark.parametrize("decoding", SEARCHES.values(), ids=SEARCHES)
any_search = pytest.mark.parametrize("decoding", [*SEARCHES.values(), GROUPS], ids=[*SEARCHES, "groups"])


def targets(generated: Generated) -> list[list[list[int]]]:
    """Each hypothesis's tokens, up to and with its end; those that have none were cut off."""
    rows = generated.sequences.tolist()
    return [[row[: row.index(EOS) + 1] if EOS in row else row[:MOST] for row in hypotheses] for hypotheses in rows]


@search
def test_scores_equal_forced_targets(model: Model, sources: list[list[int]], decoding: DecodingConfig) -> None:
    found = generate(model, sources, decoding)
    hypotheses = targets(found)
    lengths = np.array([[len(row) for row in rows] for rows in hypotheses])
    assert len(set(lengths.flat)) > 1, "they should end at several places"
    for rank in range(found.scores.shape[1]):
        forced = score(model, sources, [rows[rank] for rows in hypotheses]).log_probs
        penalty = ((5 + lengths[:, rank]) / 6) ** 0.6 if decoding.semantics == "gnmt" else lengths[:, rank]
        np.testing.assert_allclose(found.scores[:, rank], forced / penalty, rtol=1e-5)
    assert (np.diff(found.scores, axis=1) <= 0).all()


@any_search
def test_neither_the_batch_nor_its_padding_changes_a_result(
    model: Model, sources: list[list[int]], decoding: DecodingConfig
) -> None:
    assert model.config.padding_is_invisible
    together = generate(model, sources, decoding)
    for i in (0, 2):
        alone = generate(model, [sources[i]], decoding, sentence_numbers=[i])
        longer = shapes.pad([sources[i], []], pad_id=model.config.source_pad_id, length=9)
        padded = generate(model, longer, decoding, sentence_numbers=[i, 99])
        for other in (alone, padded):
            np.testing.assert_array_equal(other.sequences[0], together.sequences[i])
            np.testing.assert_allclose(other.scores[0], together.scores[i], rtol=1e-6)
    assert (padded.sequences[1] == model.config.target_pad_id).all()


@any_search
def test_the_room_changes_no_result(
    model: Model, sources: list[list[int]], decoding: DecodingConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Going on with more room is going on."""
    monkeypatch.setattr(shapes, "SHORTEST", 64)
    expected = generate(model, sources, decoding)
    rooms: list[int] = []

    def round_length(length: int, most: int) -> int:
        rooms.append(min(2 ** (1 + len(rooms)), most))
        return rooms[-1]

    monkeypatch.setattr(module, "round_length", round_length)
    received = generate(model, sources, decoding)
    assert rooms == [2, 4, 8, MOST]
    np.testing.assert_array_equal(received.sequences, expected.sequences)
    np.testing.assert_allclose(received.scores, expected.scores, rtol=1e-6)


@search
def test_results_are_equal_without_a_cache(
    model: Model, sources: list[list[int]], decoding: DecodingConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = generate(model, sources, decoding)
    jax.clear_caches()
    monkeypatch.setattr(TransformerConfig, "cache_is_exact", property(lambda config: False))
    received = generate(dataclasses.replace(model), sources, decoding)  # whose weights aren't made ready yet
    monkeypatch.undo()
    jax.clear_caches()
    np.testing.assert_array_equal(received.sequences, expected.sequences)
    np.testing.assert_allclose(received.scores, expected.scores, rtol=1e-6)


@pytest.mark.parametrize("decoding", [*SEARCHES.values(), FLOYDHUB], ids=[*SEARCHES, "floydhub"])
def test_targets_begin_with_their_prefixes(model: Model, sources: list[list[int]], decoding: DecodingConfig) -> None:
    """Each with its own prefix, or none, which neither counts as long nor in the score."""
    prefixes = 2 * [[5, 6], [], [6], [7, 7, 5], [], [9, 5], [6, 6], [8]]
    found = generate(model, sources, decoding, prefix_ids=prefixes)
    for rows, prefix in zip(found.sequences.tolist(), prefixes, strict=True):
        assert all(row[: len(prefix)] == prefix for row in rows)
    free = generate(model, sources, decoding)
    for i in (1, 4, 9, 12):
        np.testing.assert_array_equal(found.sequences[i][:, : free.sequences.shape[2]], free.sequences[i])
    if decoding.semantics == "huggingface" and not decoding.sampling:
        hypothesis = [token for token in found.sequences[0, 0].tolist() if token != model.config.target_pad_id]
        tokens = score(model, [sources[0]], [hypothesis]).token_log_probs[0]
        np.testing.assert_allclose(found.scores[0, 0], tokens[2:].sum() / (len(hypothesis) - 2), rtol=1e-5)


def test_constraints(model: Model, sources: list[list[int]]) -> None:
    for rows in (1, 3):
        decoding = DecodingConfig(beam_size=rows, num_return=rows, max_new_tokens=MOST)
        plain = [row for rows_ in targets(generate(model, sources, decoding)) for row in rows_]
        pairs = [pair for row in plain for pair in pairwise(row)]
        common = max(set(pairs), key=pairs.count)
        assert any(len(set(pairwise(row))) < len(row) - 1 for row in plain)
        other = dataclasses.replace(
            decoding, no_repeat_ngram=2, bad_words=(common, (8,)), min_new_tokens=4, forced_bos_id=6, forced_eos_id=EOS
        )
        for rows_ in targets(generate(model, sources, other)):
            for row in rows_:
                inside = list(pairwise(row))
                assert len(set(inside)) == len(inside)
                assert common not in inside
                assert 8 not in row
                assert row[0] == 6
                assert row[-1] == EOS
                assert 5 <= len(row) <= MOST


def test_sampled_frequencies_match_probabilities(model: Model, sources: list[list[int]]) -> None:
    """Chi-square, of the first token of 50 draws for each of 80 equal sentences: beyond its 0.999 quantile once in a
    thousand seeds."""
    from scipy import stats

    decoding = DecodingConfig(sampling=True, num_return=50, max_new_tokens=1, temperature=1.5)
    drawn = generate(model, [sources[1]] * 80, decoding).sequences[..., 0].ravel()
    size = model.config.target_vocab_size
    log_probs = np.array([score(model, [sources[1]], [[token]]).log_probs[0] for token in range(size)])
    expected = np.exp(log_probs / 1.5) / np.exp(log_probs / 1.5).sum()
    counts, expected = np.bincount(drawn, minlength=size), expected * len(drawn)
    kept = expected > 5
    assert kept.sum() > 4
    chi2 = ((counts - expected)[kept] ** 2 / expected[kept]).sum()
    assert chi2 < stats.chi2.ppf(0.999, kept.sum() - 1)


def test_draws_are_reproducible(model: Model, sources: list[list[int]]) -> None:
    decoding = DecodingConfig(sampling=True, num_return=4, max_new_tokens=MOST, seed=1)
    first = generate(model, sources, decoding).sequences
    np.testing.assert_array_equal(generate(model, sources, decoding).sequences, first)
    assert (generate(model, sources, dataclasses.replace(decoding, seed=2)).sequences != first).any()
    assert sum(len({tuple(row) for row in rows.tolist()}) > 1 for rows in first) > 12


def test_every_column_draws_new_numbers() -> None:
    """Equal logits in two columns: as many of the 200 sentences draw equal tokens as independent draws would, a
    quarter (0.25 ± four standard deviations of 0.031)."""
    decoding = DecodingConfig(sampling=True, num_return=1, max_new_tokens=2).resolved(GenerationConfig())
    program, logits = SearchProgram.from_config(decoding), jnp.zeros((200, 1, 4))
    sampling = SamplingParams(jnp.ones(()), jnp.ones(()), jnp.zeros(()), jax.random.split(jax.random.key(0), 200))
    first, second = (draw(program, sampling, jnp.asarray(column), logits) for column in (0, 1))
    assert 0.13 < np.mean(np.equal(first, second)) < 0.37


@pytest.mark.parametrize(
    ("options", "allowed"),
    [
        ({"top_k": 2}, lambda probs: np.argsort(-probs)[:2]),
        ({"top_p": 0.6}, lambda probs: np.argsort(-probs)[: int((np.cumsum(np.sort(probs)[::-1]) < 0.6).sum()) + 1]),
        ({"min_p": 0.15}, lambda probs: np.flatnonzero(probs >= 0.15 * probs.max())),
    ],
    ids=["top_k", "top_p", "min_p"],
)
def test_only_probable_tokens_are_drawn(
    model: Model, sources: list[list[int]], options: dict[str, Any], allowed: Any
) -> None:
    """And each of them is."""
    decoding = DecodingConfig(sampling=True, num_return=500, max_new_tokens=1, **options)
    drawn = generate(model, [sources[1]], decoding).sequences[0, :, 0]
    probs = np.exp(
        [score(model, [sources[1]], [[token]]).log_probs[0] for token in range(model.config.target_vocab_size)]
    )
    assert 1 < len(allowed(probs)) < len(probs)
    assert set(drawn.tolist()) == set(allowed(probs).tolist())


def floydhub(model: Model, source: list[int], size: int, most: int, alpha: float) -> tuple[list[int], float]:
    """The program's search of one sentence, written out: its best target, without the end, and that one's score."""
    from jax_transformer.model import functional

    def log_probs(prefix: list[int]) -> np.ndarray:
        source_ids = shapes.pad([source], pad_id=model.config.source_pad_id, length=6)  # one shape: one program
        inputs = shapes.pad([[START, *prefix]], pad_id=model.config.target_pad_id, length=MOST)
        logits = np.asarray(functional.apply(model.config, model.params, source_ids, inputs))[0, len(prefix)]
        return np.asarray(logits - np.log(np.exp(logits).sum()))

    beams: list[tuple[float, list[int]]] = [(0.0, [])]
    for length in range(1, most + 1):
        ways = []
        for total, prefix in beams:
            found = log_probs(prefix)
            ways += [(total + found[token], [*prefix, int(token)]) for token in np.argsort(-found)[:size]]
        beams = sorted(ways, key=lambda way: -way[0])[:size]
        if length > 1 and all(EOS in prefix for _, prefix in beams):
            scored = [(total / (prefix.index(EOS) + 1) ** alpha, prefix) for total, prefix in beams]
            best, prefix = max(scored, key=lambda way: way[0])
            return prefix[: prefix.index(EOS)], best
    total, prefix = beams[0]
    end = prefix.index(EOS) if EOS in prefix else len(prefix)
    return prefix[:end], total / min(end + 1, most) ** alpha


@pytest.mark.parametrize("size", [1, 3])
def test_beams_follow_floydhub(model: Model, sources: list[list[int]], size: int) -> None:
    decoding = DecodingConfig(beam_size=size, semantics="floydhub", length_penalty=0.7, max_new_tokens=MOST)
    found = generate(model, sources, decoding)
    for source, row, received in zip(sources, found.sequences[:, 0].tolist(), found.scores[:, 0], strict=True):
        expected, best = floydhub(model, source, size, MOST, 0.7)
        row = row[: row.index(EOS)] if EOS in row else [token for token in row if token != model.config.target_pad_id]
        assert row == expected
        np.testing.assert_allclose(received, best, rtol=1e-5)


def test_a_forced_token_counts_as_certain(model: Model, sources: list[list[int]]) -> None:
    """Greedily as by beams, whose scores are transformers'."""
    forced = {"forced_bos_id": 7, "forced_eos_id": EOS, "max_new_tokens": 4}
    one, two = (generate(model, sources, DecodingConfig(beam_size=size, **forced)) for size in (1, 2))
    same = (one.sequences[:, 0] == two.sequences[:, 0]).all(axis=1)
    assert same.sum() >= 4
    np.testing.assert_allclose(one.scores[same], two.scores[same], rtol=1e-5)


def test_no_sentences(model: Model) -> None:
    found = generate(model, [], DecodingConfig(beam_size=3, num_return=2))
    assert (found.sequences.shape, found.scores.shape) == ((0, 2, 0), (0, 2))


def test_scores_of_targets(model: Model, sources: list[list[int]]) -> None:
    """Token by token, from logits of the whole prefix; other lengths in the batch change nothing."""
    from jax_transformer.model import functional

    sources = sources[:8]
    given = [[5, 6, EOS], [7], [EOS], [9, 9, 9, 9], [], [5], [6, 5], [8, EOS]]
    found = score(model, sources, given)
    for i, (source, target) in enumerate(zip(sources, given, strict=True)):
        logits = np.asarray(
            functional.apply(model.config, model.params, np.array([source]), np.array([[START, *target]]))
        )[0]
        expected = [row[token] - np.log(np.exp(row).sum()) for row, token in zip(logits, target, strict=False)]
        np.testing.assert_allclose(found.token_log_probs[i, : len(target)], expected, rtol=1e-9)
        assert (found.token_log_probs[i, len(target) :] == 0).all()
    assert found.lengths.tolist() == [3, 1, 1, 4, 0, 1, 2, 2]
    np.testing.assert_allclose(found.perplexity, np.exp(-found.token_log_probs.sum() / 14))
    wrong = {
        "expected one for each of 8": [[5]],
        "expected integers from 0": [[99]] * 8,
        "expected at most": [[5] * 600] * 8,
    }
    for output, target_ids in wrong.items():
        with pytest.raises(DecodingError, match=output):
            score(model, sources, target_ids)


def test_a_large_penalty_parts_the_groups(model: Model, sources: list[list[int]]) -> None:
    """Of beams that don't end: a token that ends a hypothesis isn't one that a beam goes on with."""
    options = {"beam_size": 4, "num_return": 4, "max_new_tokens": MOST, "min_new_tokens": MOST - 1}
    apart = generate(model, sources, beam_groups=4, diversity_penalty=1e4, **options).sequences[:, :, : MOST - 1]  # type: ignore[arg-type]
    assert all(len({*column}) == 4 for sentence in apart.tolist() for column in zip(*sentence, strict=True))
    close = generate(model, sources, **options).sequences[:, :, : MOST - 1]  # type: ignore[arg-type]
    assert not all(len({*column}) == 4 for sentence in close.tolist() for column in zip(*sentence, strict=True))
