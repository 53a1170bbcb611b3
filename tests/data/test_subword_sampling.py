"""Subword sampling: the distribution that the papers define, the text unchanged, and nothing but the seed in it."""

from __future__ import annotations

import base64
import io
import itertools
import json
import math
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import sentencepiece
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from jax_transformer.data.tokenizers import SpecialIds, Tokenizer, load_tokenizer, train_tokenizer
from jax_transformer.data.tokenizers.training import Kind

SPECIALS = SpecialIds(pad=0, unk=1, bos=2, eos=3)
ALPHABET = "abcdeé .,'12"
CORPUS = ["abcabc abc bcb cabc abab", "abc de de abcde decab", ALPHABET, "bcbc abcabc caabc"] * 4
SUBWORDS: tuple[Kind, ...] = ("bpe", "unigram")


def trained(kind: Kind, **options: object) -> Tokenizer:
    return train_tokenizer(CORPUS, kind=kind, specials=SPECIALS, vocab_size=40, **options)  # type: ignore[arg-type]


TOKENIZERS = {kind: trained(kind) for kind in SUBWORDS}
WORD = "abcab"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    """The same kinds in sentencepiece's own files."""
    loaded = {}
    for kind in SUBWORDS:
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(CORPUS),
            model_writer=model,
            model_type=kind,
            vocab_size=40,
            hard_vocab_limit=False,
            pad_id=0,
            unk_id=1,
            bos_id=2,
            eos_id=3,
            minloglevel=2,
            num_threads=1,
        )
        path = tmp_path_factory.mktemp("models") / f"{kind}.model"
        path.write_bytes(model.getvalue())
        loaded[kind] = load_tokenizer(path, kind=kind, specials=SPECIALS)
    return loaded


# --- the distributions, by enumeration


def bpe_dropout(pieces: tuple[str, ...], merges: list[tuple[str, str]], dropped: float) -> dict[tuple[str, ...], float]:
    """The probability of each segmentation: at each step every candidate is left out or not, and the first that is left
    merges."""
    candidates = sorted(
        (merges.index(pair), place) for place, pair in enumerate(itertools.pairwise(pieces)) if pair in merges
    )
    if not candidates:
        return {pieces: 1.0}
    found: Counter[tuple[str, ...]] = Counter()
    for kept in itertools.product((True, False), repeat=len(candidates)):
        chance = math.prod(1.0 - dropped if keep else dropped for keep in kept)
        place = next((place for (_, place), keep in zip(candidates, kept, strict=True) if keep), None)
        if place is None:
            found[pieces] += chance  # type: ignore[assignment]
            continue
        merged = (*pieces[:place], pieces[place] + pieces[place + 1], *pieces[place + 2 :])
        for result, rest in bpe_dropout(merged, merges, dropped).items():
            found[result] += chance * rest  # type: ignore[assignment]
    return dict(found)  # type: ignore[arg-type]


def segmentations(text: str, pieces: set[str]) -> Iterator[tuple[str, ...]]:
    if not text:
        yield ()
    for end in range(1, len(text) + 1):
        if text[:end] in pieces:
            yield from ((text[:end], *rest) for rest in segmentations(text[end:], pieces))


def unigram(text: str, scores: dict[str, float], exponent: float) -> dict[tuple[str, ...], float]:
    weights = {
        found: math.exp(exponent * sum(scores[piece] for piece in found)) for found in segmentations(text, set(scores))
    }
    return {found: weight / sum(weights.values()) for found, weight in weights.items()}


def chi_square_agrees(drawn: Counter[tuple[str, ...]], expected: dict[tuple[str, ...], float]) -> bool:
    """Whether the counts are what the probabilities let expect (a wrong "no" once in thousands of seeds)."""
    assert set(drawn) <= set(expected)
    total = sum(drawn.values())
    common = {found: total * chance for found, chance in expected.items() if total * chance >= 5.0}
    rest = total - sum(common.values())
    statistic = sum((drawn[found] - mean) ** 2 / mean for found, mean in common.items())
    if rest >= 5.0:
        statistic += (total - sum(drawn[found] for found in common) - rest) ** 2 / rest
    freedom = len(common)
    return statistic < freedom + 4.0 * math.sqrt(2.0 * freedom) + 4.0


def drawn_segmentations(
    tokenizer: Tokenizer, strength: float, word: str = WORD, count: int = 20_000
) -> Counter[tuple[str, ...]]:
    rows = tokenizer.sample_encode([" ".join([word] * 5)] * (count // 5), seed=7, strength=strength)
    found: Counter[tuple[str, ...]] = Counter()
    for row in rows:
        word_pieces: list[str] = []
        for piece in [*tokenizer.tokens(row), "▁"]:
            if piece.startswith("▁") and word_pieces:
                found[tuple(word_pieces)] += 1
                word_pieces = []
            word_pieces.append(piece)
    return found


def merges_of(tokenizer: Tokenizer) -> list[tuple[str, str]]:
    return [(left, right) for left, right in json.loads(tokenizer.to_json())["model"]["merges"]]


def scores_of(tokenizer: Tokenizer) -> dict[str, float]:
    return dict(json.loads(tokenizer.to_json())["model"]["vocab"][4:])


@pytest.mark.parametrize("dropped", [0.1, 0.5, 0.9])
def test_bpe_is_drawn_by_dropping_merges(dropped: float) -> None:
    tokenizer = TOKENIZERS["bpe"]
    expected = bpe_dropout(tuple("▁" + WORD), merges_of(tokenizer), dropped)
    assert len(expected) > 5
    assert sum(expected.values()) == pytest.approx(1.0)
    assert chi_square_agrees(drawn_segmentations(tokenizer, dropped), expected)
    assert not chi_square_agrees(drawn_segmentations(tokenizer, dropped * 0.9), expected), (
        "the comparison sees a difference"
    )


@pytest.mark.parametrize("exponent", [0.1, 0.5, 1.0])
def test_unigram_is_drawn_by_the_power_of_its_probability(exponent: float) -> None:
    tokenizer = TOKENIZERS["unigram"]
    expected = unigram("▁" + WORD, scores_of(tokenizer), exponent)
    assert len(expected) > 5
    assert chi_square_agrees(drawn_segmentations(tokenizer, exponent), expected)
    assert not chi_square_agrees(drawn_segmentations(tokenizer, exponent + 0.1), expected), (
        "the comparison sees a difference"
    )


def test_files_of_sentencepiece_are_drawn_from_in_the_same_way(models: dict[str, Tokenizer]) -> None:
    for kind, tokenizer in models.items():
        model = base64.b64decode(json.loads(tokenizer.to_json())["model"])
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        pieces = {processor.id_to_piece(i): processor.get_score(i) for i in range(4, len(processor))}
        if kind == "unigram":
            expected = unigram("▁" + WORD, pieces, 0.5)
        else:
            by_rank = sorted(pieces, key=lambda piece: -pieces[piece])
            ranks = [(piece[:cut], piece[cut:]) for piece in by_rank for cut in range(1, len(piece))]
            expected = bpe_dropout(tuple("▁" + WORD), ranks, 0.5)
        assert len(expected) > 5
        assert chi_square_agrees(drawn_segmentations(tokenizer, 0.5), expected), kind


@pytest.mark.parametrize("kind", SUBWORDS)
def test_occurrences_of_a_word_are_drawn_independently(kind: Kind) -> None:
    """In the first sentences as in the last, and next to each other."""
    rows = TOKENIZERS[kind].sample_encode([f"{WORD} {WORD}"] * 4000, seed=3, strength=0.4)
    best = TOKENIZERS[kind].encode([WORD])[0]
    is_best = [(row[: len(best)] == best, row[-len(best) :] == best) for row in rows]
    share = sum(map(sum, is_best)) / 8000
    assert 0.05 < share < 0.95
    assert sum(first and second for first, second in is_best) / 4000 == pytest.approx(share**2, abs=0.04)
    assert sum(map(sum, is_best[:2000])) / 4000 == pytest.approx(share, abs=0.04)


@pytest.mark.parametrize("kind", SUBWORDS)
def test_different_words_are_drawn_independently(kind: Kind) -> None:
    rows = TOKENIZERS[kind].sample_encode([f"{WORD} {WORD}b"] * 4000, seed=3, strength=0.4)
    best, other = (TOKENIZERS[kind].encode([word])[0] for word in (WORD, WORD + "b"))
    is_best = [(row[: len(best)] == best, row[-len(other) :] == other) for row in rows]
    shares = [sum(found) / 4000 for found in zip(*is_best, strict=True)]
    assert all(0.05 < share < 0.95 for share in shares)
    assert sum(first and second for first, second in is_best) / 4000 == pytest.approx(shares[0] * shares[1], abs=0.04)


# --- limits


@given(st.lists(st.text(ALPHABET + "ΩΨ", max_size=30)), st.integers(0, 5), st.sampled_from([0.05, 0.5, 0.95, 1.0]))
@settings(deadline=None)
def test_sampling_leaves_the_text_alone(sentences: list[str], seed: int, strength: float) -> None:
    for tokenizer in TOKENIZERS.values():
        drawn = tokenizer.sample_encode(sentences, seed=seed, strength=strength)
        assert tokenizer.decode(drawn) == tokenizer.decode(tokenizer.encode(sentences))
        assert tokenizer.sample_encode(sentences, seed=seed, strength=0.0) == tokenizer.encode(sentences)


@given(st.lists(st.text("abcde ΩΨ1", max_size=20)))
@settings(deadline=None)
def test_sampling_leaves_the_text_of_given_models_alone(models: dict[str, Tokenizer], sentences: list[str]) -> None:
    for tokenizer in models.values():
        assert tokenizer.decode(tokenizer.sample_encode(sentences, seed=1, strength=0.5)) == tokenizer.decode(
            tokenizer.encode(sentences)
        )


@given(st.text(ALPHABET + "Ω", max_size=30))
@settings(deadline=None)
def test_next_to_no_randomness_gives_the_best_segmentation(text: str) -> None:
    """Which shows that steps, ties and unknown characters are those of `encode`."""
    encoded = {kind: tokenizer.encode([text]) for kind, tokenizer in TOKENIZERS.items()}
    assert TOKENIZERS["bpe"].sample_encode([text], seed=0, strength=1e-12) == encoded["bpe"]
    scores = scores_of(TOKENIZERS["unigram"])
    sharp = TOKENIZERS["unigram"].sample_encode([text], seed=0, strength=1e6)
    if "Ω" not in text:  # ties are broken otherwise
        value = [
            sum(scores[piece] for piece in TOKENIZERS["unigram"].tokens(ids[0])) for ids in (sharp, encoded["unigram"])
        ]
        assert value[0] == pytest.approx(value[1])
    assert [ids.count(1) for ids in sharp] == [ids.count(1) for ids in encoded["unigram"]]


def test_dropping_every_merge_leaves_characters() -> None:
    tokenizer = TOKENIZERS["bpe"]
    assert tokenizer.tokens(tokenizer.sample_encode(["abcabc de"], seed=0, strength=1.0)[0]) == list("▁abcabc▁de")


def test_specials_and_tags_stay_where_they_are() -> None:
    for kind in SUBWORDS:
        tokenizer = trained(kind, tags=["<2de>"], add_bos=True, add_eos=True)
        for row in tokenizer.sample_encode(CORPUS, seed=0, strength=0.5, tag="<2de>"):
            assert (row[:2], row[-1]) == ([2, 4], 3)
            assert not {2, 3, 4} & set(row[2:-1])
        with pytest.raises(ValueError, match="expected one of <2de>"):
            tokenizer.sample_encode(["a"], seed=0, strength=0.5, tag="<2fr>")


# --- a function of its arguments


SCRIPT = """
from test_subword_sampling import CORPUS, TOKENIZERS
for tokenizer in TOKENIZERS.values():
    print(tokenizer.sample_encode(CORPUS * 3, seed=(5, 1), strength=0.3))
"""


def test_sampling_is_the_same_in_every_process() -> None:
    here = str(Path(__file__).parent)
    runs = [
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env=os.environ
            | {"PYTHONPATH": ":".join([here, *sys.path]), "PYTHONHASHSEED": seed, "RAYON_NUM_THREADS": threads},
            capture_output=True,
            check=True,
        ).stdout
        for seed, threads in (("1", "1"), ("2", "3"))
    ]
    assert runs[0] == runs[1]
    own = [tokenizer.sample_encode(CORPUS * 3, seed=(5, 1), strength=0.3) for tokenizer in TOKENIZERS.values()]
    assert runs[0].decode().splitlines() == [str(rows) for rows in own]


@pytest.mark.parametrize("kind", SUBWORDS)
def test_other_seeds_and_calls_before_make_the_difference_they_should(kind: Kind) -> None:
    tokenizer = trained(kind)
    first = tokenizer.sample_encode(CORPUS, seed=5, strength=0.3)
    assert tokenizer.sample_encode(CORPUS, seed=(5,), strength=0.3) == first
    assert Tokenizer.from_json(tokenizer.to_json()).sample_encode(CORPUS, seed=5, strength=0.3) == first
    others = [tokenizer.sample_encode(CORPUS, seed=seed, strength=0.3) for seed in (6, (5, 0, 1), (5, 1))]
    assert len({str(rows) for rows in [first, *others]}) == 4


# --- refusals


@pytest.mark.parametrize("strength", [-0.1, math.nan])
@pytest.mark.parametrize("kind", SUBWORDS)
def test_impossible_strengths_are_refused(kind: Kind, strength: float) -> None:
    with pytest.raises(ValueError, match=r"subword sampling: expected .*; received"):
        TOKENIZERS[kind].sample_encode(["a"], seed=0, strength=strength)


def test_a_probability_above_one_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expected a probability of dropping a merge, in \[0, 1\]; received 1.5"):
        TOKENIZERS["bpe"].sample_encode(["a"], seed=0, strength=1.5)


def test_negative_seeds_are_refused() -> None:
    with pytest.raises(ValueError, match=r"seed: expected integers, 0 or more; received -1"):
        TOKENIZERS["bpe"].sample_encode(["a"], seed=-1, strength=0.5)


def test_a_pipeline_with_added_tokens_is_refused(tmp_path: Path) -> None:
    """Their text never reaches the model, so that no segmentation of it can be drawn."""
    pipeline = tokenizers.Tokenizer.from_str(TOKENIZERS["bpe"].to_json())
    pipeline.add_tokens(["@user"])
    pipeline.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path / "tokenizer.json", kind="bpe", specials=SPECIALS)
    with pytest.raises(ValueError, match="expected a tokenizer without added tokens but special ones; received @user"):
        tokenizer.sample_encode(["abc @user"], seed=0, strength=0.5)


def test_words_have_one_segmentation() -> None:
    words = train_tokenizer(CORPUS, kind="words", specials=SPECIALS)
    assert words.sample_encode(["abc de"], seed=0, strength=0.0) == words.encode(["abc de"])
    with pytest.raises(ValueError, match="expected a bpe or unigram tokenizer; received one with the model WordLevel"):
        words.sample_encode(["abc de"], seed=0, strength=0.5)
