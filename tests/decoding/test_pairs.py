"""Scores of text: what each pair has alone, whatever it is batched with."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

from jax_transformer.config.decoding import DecodingConfig, GenerationConfig
from jax_transformer.config.model import TransformerConfig
from jax_transformer.data.tokenizers import SpecialIds, train_tokenizer
from jax_transformer.decoding import pairs as module
from jax_transformer.decoding import scoring
from jax_transformer.decoding.checks import DecodingError
from jax_transformer.decoding.generation import generate
from jax_transformer.decoding.padding import pad
from jax_transformer.decoding.pairs import PairScore, Problem, score_pairs
from jax_transformer.decoding.translation import translate
from jax_transformer.model import functional
from jax_transformer.storage.model_directory import Model

pytestmark = pytest.mark.usefixtures("x64", "quick_compilation")

SPECIALS = SpecialIds(pad=0, unk=1, bos=2, eos=3)
WORDS = ["eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn"]
MOST = 24
BEAMS = DecodingConfig(beam_size=3, length_penalty=0.0)
"""Scores of hypotheses are their log-probabilities."""
SEEN = {"encoder_padding": "queries", "decoder_padding": "queries", "cross_padding": "none"}
"""Masks with which padding is seen."""


@pytest.fixture(scope="module")
def model(random_params: Any) -> Model:
    source = train_tokenizer([" ".join(WORDS)], kind="whitespace", specials=SPECIALS, add_eos=True)
    target = train_tokenizer([" ".join(WORDS).upper()], kind="whitespace", specials=SPECIALS)
    config = TransformerConfig(
        source_vocab_size=source.vocab_size,
        target_vocab_size=target.vocab_size,
        d_model=12,
        num_heads=2,
        d_ff=8,
        num_encoder_layers=1,
        num_decoder_layers=1,
        max_length=MOST,
    )
    return Model(config, random_params(config), source, target, GenerationConfig(decoder_start_id=2, eos_id=3))


def changed(model: Model, random_params: Any, generation: dict[str, Any] | None = None, **changes: Any) -> Model:
    config = dataclasses.replace(model.config, **changes)
    other = dataclasses.replace(model.generation, **generation or {})
    return dataclasses.replace(model, config=config, params=random_params(config), generation=other)


def pairs_of(lengths: Any, seed: int = 0) -> list[tuple[str, str]]:
    """Of so many words in source and target."""
    rng = np.random.default_rng(seed)
    return [(" ".join(rng.choice(WORDS, m)), " ".join(rng.choice(WORDS, n)).upper()) for m, n in lengths]


def some_pairs(count: int, longest: int = MOST - 1, seed: int = 0) -> list[tuple[str, str]]:
    return pairs_of(np.random.default_rng(seed).integers(1, longest + 1, (count, 2)), seed)


def by_hand(model: Model, source: str, target: str, length: int = 0) -> np.ndarray:
    """[T], from the logits of this pair alone, its source padded to `length`."""
    assert model.source_tokenizer is not None
    assert model.target_tokenizer is not None
    source_ids, target_ids = model.source_tokenizer.encode([source]), model.target_tokenizer.encode([target])[0]
    padded = pad(source_ids, pad_id=model.config.source_pad_id, length=length)
    logits = np.asarray(
        functional.apply(model.config.while_decoding(), model.params, padded, np.array([[2, *target_ids]]))
    )[0]
    log_probs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return log_probs[np.arange(len(log_probs)), [*target_ids, 3]]


def assert_equal(found: PairScore, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found.token_log_probs, expected, rtol=1e-9)
    np.testing.assert_allclose(found.log_prob, expected.sum(), rtol=1e-9)
    np.testing.assert_allclose(found.perplexity, np.exp(-expected.mean()), rtol=1e-9)


def test_scores_equal_the_logits_in_order(model: Model) -> None:
    pairs = pairs_of([(20, 2), (1, 18), (1, 0), (20, 18), (1, 2)])
    found = list(score_pairs(model, pairs))
    for score, pair in zip(found, pairs, strict=True):
        assert_equal(score, by_hand(model, *pair))
    assert [len(score.token_log_probs) for score in found] == [3, 19, 1, 19, 3]


def test_neither_order_nor_batch_changes_a_score(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = some_pairs(30)
    expected = [score.token_log_probs for score in score_pairs(model, pairs)]
    backwards = list(score_pairs(model, reversed(pairs), rows=3))[::-1]
    monkeypatch.setattr(module, "BATCHES", 1)
    few_at_a_time = list(score_pairs(model, iter(pairs), rows=8))
    for each in (backwards, few_at_a_time):
        for received, values in zip(each, expected, strict=True):
            np.testing.assert_allclose(received.token_log_probs, values, rtol=1e-9)


def test_long_targets_have_few_rows(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    batches: list[tuple[int, int]] = []
    score = scoring.score

    def spied(model: Model, source: Any, targets: Any) -> scoring.Scores:
        found = score(model, source, targets)
        batches.append(found.token_log_probs.shape)
        return found

    monkeypatch.setattr(module, "score", spied)
    pairs = some_pairs(64)
    expected = [score.log_prob for score in score_pairs(model, pairs)]
    assert batches == [(64, MOST)]
    batches.clear()
    monkeypatch.setattr(module, "MOST_LOGITS", 8 * 16 * model.config.target_vocab_size)
    np.testing.assert_allclose([score.log_prob for score in score_pairs(model, pairs)], expected, rtol=1e-9)
    assert set(batches) >= {(8, 16), (1, MOST)}
    assert all(rows * length <= 8 * 16 or rows == 1 for rows, length in batches)


def test_any_lengths_take_few_programs(model: Model) -> None:
    """Sides are padded to 8, 12, 16 or 24 tokens, and batches to some numbers of rows; most are full."""
    jax.clear_caches()
    list(score_pairs(model, some_pairs(400, seed=1)))
    many = scoring._log_probs._cache_size()
    assert many <= 4 * 4 + 1
    for count in range(2, 9):
        list(score_pairs(model, pairs_of([(count, 10 - count)] * count)))
    assert scoring._log_probs._cache_size() <= many + 3  # 8 rows of 8 and 12, 8 and 8, or 12 and 8 tokens


def test_a_translation_has_the_probability_of_its_search(model: Model) -> None:
    sources = [source for source, _ in some_pairs(8, longest=6)]
    translations = translate(model, sources, BEAMS)
    assert model.source_tokenizer is not None
    found = generate(model, model.source_tokenizer.encode(sources), BEAMS)
    ended = [
        i for i, row in enumerate(found.sequences[:, 0].tolist()) if model.generation.eos_id in row and 1 not in row
    ]
    assert len(ended) > 3
    scores = list(score_pairs(model, zip(sources, translations, strict=True)))
    for i in ended:
        np.testing.assert_allclose(scores[i].log_prob, found.scores[i, 0], rtol=1e-5)


def test_a_start_that_is_hidden_as_padding(model: Model) -> None:
    """It attends to itself, as in decoding, and not to all that follows."""
    hidden = dataclasses.replace(
        model, generation=dataclasses.replace(model.generation, decoder_start_id=model.config.target_pad_id)
    )
    sources = [[5, 6, 3], [7, 3]]
    found = generate(hidden, sources, dataclasses.replace(BEAMS, max_new_tokens=6))
    targets = [row[: row.index(3) + 1] if 3 in row else row[:6] for row in found.sequences[:, 0].tolist()]
    np.testing.assert_allclose(scoring.score(hidden, sources, targets).log_probs, found.scores[:, 0], rtol=1e-5)


@pytest.mark.parametrize(
    ("generation", "changes"),
    [({}, SEEN), ({"source_length": 6}, SEEN), ({}, {"position_index": "batch_row"})],
    ids=["padding is seen", "as padding of training", "rows depend on each other"],
)
def test_pairs_affected_by_their_batch_are_scored_one_by_one(
    generation: dict[str, Any], changes: dict[str, Any], model: Model, random_params: Any
) -> None:
    """And token by token, as decoding has it, where masks let a token see what follows it."""
    other = changed(model, random_params, generation, **changes)
    pairs = pairs_of([(2, 2), (7, 2), (2, 2)])
    length = generation.get("source_length", 0)
    for score, (source, target) in zip(score_pairs(other, pairs), pairs, strict=True):
        words = target.split()
        prefixes = [" ".join(words[:count]) for count in range(1, 3)]
        expected = [by_hand(other, source, prefix, length)[-2] for prefix in prefixes] + [
            by_hand(other, source, target, length)[-1]
        ]
        np.testing.assert_allclose(score.token_log_probs, expected, rtol=1e-9)


def test_unscorable_pairs_are_reported_and_the_rest_is_scored(model: Model) -> None:
    long = " ".join(["eins"] * MOST)
    pairs = [("eins", "ZWEI"), (" ", "EINS"), (long, "EINS"), ("zwei", long.upper()), ("drei", "VIER")]
    found = list(score_pairs(model, pairs))
    assert [score.problem for score in found] == [
        None,
        Problem("source", "expected a sentence; received an empty line"),
        Problem("source", f"expected at most {MOST} tokens, the model's longest; received {MOST + 1}"),
        Problem("target", f"expected at most {MOST} tokens, the model's longest; received {MOST + 1}"),
        None,
    ]
    assert_equal(found[4], by_hand(model, "drei", "VIER"))
    assert [len(score.token_log_probs) for score in found] == [2, 0, 0, 0, 2]
    assert np.isnan([score.log_prob for score in found]).tolist() == [False, True, True, True, False]


def test_scored_targets_may_be_longer_than_decoded_ones(model: Model) -> None:
    short = dataclasses.replace(model, generation=dataclasses.replace(model.generation, max_decode_length=2))
    pair = ("eins", "EINS ZWEI DREI")
    assert_equal(*score_pairs(short, [pair]), by_hand(model, *pair))


def test_unknown_tokens_are_counted(model: Model) -> None:
    assert [score.unknown for score in score_pairs(model, [("eins", "EINS"), ("eins", "ELF EINS ZWÖLF")])] == [0, 2]


def test_targets_have_one_end_and_no_start(model: Model) -> None:
    """Whatever the target's tokenizer adds."""
    assert model.target_tokenizer is not None
    adding = dataclasses.replace(model, target_tokenizer=model.target_tokenizer.adding(bos=True, eos=True))
    assert_equal(*score_pairs(adding, [("eins", "EINS")]), by_hand(model, "eins", "EINS"))


def test_a_first_token_that_is_forced_counts_as_certain(model: Model) -> None:
    forced = dataclasses.replace(model, generation=dataclasses.replace(model.generation, forced_bos_id=5))
    assert model.target_tokenizer is not None
    (word,) = model.target_tokenizer.tokens([5])
    expected = by_hand(model, "eins zwei", f"{word} DREI")[1:]
    assert_equal(*score_pairs(forced, [("eins zwei", "DREI")]), expected)


def test_models_that_cannot_score(model: Model) -> None:
    with pytest.raises(DecodingError, match="expected a model with tokenizers"):
        next(score_pairs(dataclasses.replace(model, target_tokenizer=None), [("eins", "EINS")]))
    with pytest.raises(DecodingError, match="expected decoder_start_id and eos_id"):
        next(score_pairs(dataclasses.replace(model, generation=GenerationConfig()), [("eins", "EINS")]))
    with pytest.raises(ValueError, match="source tag: expected none"):
        next(score_pairs(model, [("eins", "EINS")], source_tag="<2de>"))


def test_perplexity() -> None:
    assert scoring.perplexity(-2 * np.log(4), 2) == pytest.approx(4)
    assert scoring.perplexity(-np.inf, 2) == scoring.perplexity(-1e6, 1) == np.inf
    assert np.isnan(scoring.perplexity(0.0, 0))
