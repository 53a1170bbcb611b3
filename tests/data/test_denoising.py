"""Pairs made of plain text: the masks and texts of T5, its lengths, UL2's mixture, and their place in a run."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from jax_transformer.config.data import DataConfig
from jax_transformer.data import CorpusError, SpecialIds, Tokenizer, train_tokenizer
from jax_transformer.data.denoising import (
    UL2,
    Denoiser,
    Denoising,
    fixed_examples,
    noise_counts,
    random_spans,
    with_sentinels,
)
from jax_transformer.data.token_pairs import Sentences, TokenPairs

T5 = Denoiser(0.15, 3.0)


def segmentations(items: int, segments: int) -> list[tuple[int, ...]]:
    """Returns all ways to divide items into non-empty segments, as the published procedure makes them: it shuffles
    segments - 1 marks over the items after the first, and counts the items of each segment."""
    found = []
    for marks in itertools.combinations(range(1, items), segments - 1):
        segment_of = np.cumsum([index in marks for index in range(items)])
        found.append(tuple(np.bincount(segment_of, minlength=segments).tolist()))
    return found


def published_masks(length: int, density: float, mean: float) -> Counter[tuple[bool, ...]]:
    """Returns every mask that T5's random_spans_noise_mask can draw, with the number of draws that make it: all pairs
    of segmentations are equally likely."""
    longer = max(length, 2)
    hidden = min(max(int(np.rint(np.float32(longer) * np.float32(density))), 1), longer - 1)
    spans = max(int(np.rint(np.float32(hidden) / np.float32(mean))), 1)
    masks: Counter[tuple[bool, ...]] = Counter()
    for noise, visible in itertools.product(segmentations(hidden, spans), segmentations(longer - hidden, spans)):
        starts = np.cumsum([size for pair in zip(visible, noise, strict=True) for size in pair])[:-1]
        number = np.cumsum(np.bincount(starts, minlength=longer))
        masks[tuple((number % 2 == 1)[:length].tolist())] += 1
    return masks


@pytest.mark.parametrize(("length", "denoiser"), [(9, Denoiser(0.4, 2.0)), (12, Denoiser(0.5, 3.0)), (2, T5), (1, T5)])
def test_masks_are_drawn_as_published(length: int, denoiser: Denoiser) -> None:
    """Each mask that the published procedure can draw occurs as often as it does there, by a test of χ²."""
    expected = published_masks(length, *denoiser[:2])
    draws = 200 * len(expected)
    random = np.random.default_rng(0)
    seen = Counter(tuple(random_spans(length, denoiser, random).tolist()) for _ in range(draws))
    assert seen.keys() == expected.keys()
    shares = np.array([expected[mask] for mask in expected]) / expected.total()
    counts = np.array([seen[mask] for mask in expected])
    chi_squared = float(((counts - draws * shares) ** 2 / (draws * shares)).sum())
    freedom = len(expected) - 1
    assert chi_squared <= freedom + 5 * (2 * max(freedom, 1)) ** 0.5


@pytest.mark.parametrize("density", [0.15, 0.5])
def test_numbers_of_spans_follow_from_the_length(density: float) -> None:
    random = np.random.default_rng(1)
    for length in range(2, 200):
        mask = random_spans(length, Denoiser(density, 3.0), random)
        hidden, spans = noise_counts(length, Denoiser(density, 3.0))
        assert hidden == min(max(int(np.rint(np.float32(length) * np.float32(density))), 1), length - 1)
        starts = int((mask & ~np.concatenate([[False], mask[:-1]])).sum())
        assert (int(mask.sum()), starts) == (hidden, spans)
        assert not mask[0]
        assert mask[-1]


def published_text(tokens: list[int], mask: list[bool], vocab_size: int) -> list[int]:
    """Returns T5's noise_span_to_unique_sentinel: a run of masked tokens becomes a sentinel, descending from the end of
    the vocabulary."""
    found, sentinel, before = [], vocab_size, False
    for token, is_masked in zip(tokens, mask, strict=True):
        if not is_masked:
            found.append(token)
        elif not before:
            sentinel -= 1
            found.append(sentinel)
        before = is_masked
    return found


def test_texts_of_a_mask_are_t5s() -> None:
    random = np.random.default_rng(2)
    sentinels = np.arange(99, 79, -1)
    for length in (1, 2, 7, 20):
        tokens = random.integers(5, 50, length)
        for _ in range(50):
            mask = random.random(length) < 0.4
            for one in (mask, ~mask):
                expected = published_text(tokens.tolist(), one.tolist(), 100)
                assert with_sentinels(tokens, one, sentinels).tolist() == expected
    with pytest.raises(ValueError, match="at least 2, one for each span; received 1"):
        with_sentinels(np.arange(3), np.array([True, False, True]), sentinels[:1])


# --- examples of a corpus

WORDS = [
    "the",
    "a",
    "dog",
    "cat",
    "runs",
    "sleeps",
    "sees",
    "in",
    "on",
    "house",
    "tree",
    "big",
    "small",
    "red",
    "blue",
    "and",
]


def tokenizer_of(objective: str = "span-corruption", sentinels: int = 20) -> Tokenizer:
    tags = ("[NLU]", "[NLG]", "[S2S]") if objective == "ul2" else ()
    return train_tokenizer(
        [" ".join(WORDS)], kind="whitespace", specials=SpecialIds(0, 1, 2, 3), tags=tags, sentinels=sentinels,
        add_eos=True,
    )  # fmt: skip


def config_of(objective: str, **options: object) -> DataConfig:
    return DataConfig(objective=objective, joint_vocabulary=True, max_length=32, **options)  # type: ignore[arg-type]


def texts_of(tokenizer: Tokenizer, count: int = 200, longest: int = 30) -> tuple[TokenPairs, list[str]]:
    random = np.random.default_rng(0)
    texts = [" ".join(random.choice(WORDS, random.integers(1, longest))) for _ in range(count)]
    ids = tokenizer.adding(bos=False, eos=False).encode(texts)
    return TokenPairs(Sentences.pack(tokenizer.encode(texts), texts), Sentences.pack(ids, texts), 32), texts


def filled(source: list[int], target: list[int], sentinels: tuple[int, ...]) -> list[int]:
    """Returns the text of an example: each sentinel of the source is replaced by what follows it in the target."""
    spans: dict[int, list[int]] = {}
    for token in target:
        if token in sentinels:
            spans[token] = current = []
        else:
            current.append(token)
    return [one for token in source for one in spans.get(token, [token])]


def test_sentinels_end_the_vocabulary() -> None:
    tokenizer = tokenizer_of("ul2")
    assert tokenizer.sentinel_ids == tuple(range(tokenizer.vocab_size - 1, tokenizer.vocab_size - 21, -1))
    assert tokenizer.encode(["the <extra_id_0>"])[0][1] == tokenizer.unk_id  # no text is taken for one
    again = Tokenizer.from_json(tokenizer.to_json())
    assert again.sentinel_ids == tokenizer.sentinel_ids


@pytest.mark.parametrize("objective", ["span-corruption", "ul2", "prefix-lm"])
def test_examples_hold_their_text_and_have_the_lengths_said_before(objective: str) -> None:
    tokenizer = tokenizer_of(objective)
    pairs, _ = texts_of(tokenizer)
    denoising = Denoising(pairs, tokenizer, config_of(objective), seed=(3,))
    drawn = denoising.draw(None, np.arange(len(pairs)), seed=(3, 0, 0))
    assert drawn.source_lengths.tolist() == denoising.rooms.source_lengths.tolist()
    assert drawn.target_lengths.tolist() == denoising.rooms.target_lengths.tolist()
    modes = {tokenizer.tag_ids[one.mode] for one in UL2} if objective == "ul2" else set()
    for index in range(len(pairs)):
        source, target = drawn.source(index).tolist(), drawn.target(index).tolist()
        assert source[-1] == tokenizer.eos_id
        body = source[1:-1] if objective == "ul2" else source[:-1]
        assert not modes or source[0] in modes
        text = body + target if objective == "prefix-lm" else filled(body, target, tokenizer.sentinel_ids)
        assert text == pairs.target(index).tolist()


def test_draws_depend_on_the_seed_alone() -> None:
    tokenizer = tokenizer_of()
    pairs, _ = texts_of(tokenizer)

    def sources(seed: int, epoch: int, indices: npt.NDArray[np.int64]) -> list[list[int]]:
        denoising = Denoising(pairs, tokenizer, config_of("span-corruption", noise_density=0.4), seed=(seed,))
        drawn = denoising.draw(None, indices, seed=(seed, epoch, 0))
        return [drawn.source(index).tolist() for index in range(len(indices))]

    some = np.arange(20)
    assert sources(0, 0, some) == sources(0, 0, some)
    assert sources(0, 0, some) != sources(0, 1, some)
    assert sources(0, 0, some) != sources(1, 0, some)


@pytest.mark.parametrize("objective", ["span-corruption", "ul2", "prefix-lm"])
def test_joined_lines_make_texts_that_just_fit(objective: str) -> None:
    tokenizer = tokenizer_of(objective)
    pairs, _ = texts_of(tokenizer)
    config = config_of(objective, join_lines=True)
    denoising = Denoising(pairs, tokenizer, config, seed=(3,))
    drawn = denoising.draw(None, np.arange(len(denoising.rooms)), seed=(3, 0, 0))
    assert drawn.source_lengths.tolist() == denoising.rooms.source_lengths.tolist()
    assert 31 <= max(drawn.source_lengths.max(), drawn.target_lengths.max() + 1) <= 32
    if objective == "span-corruption":
        assert set(drawn.source_lengths[:-1].tolist()) == {32}
        texts = [
            filled(drawn.source(index).tolist()[:-1], drawn.target(index).tolist(), tokenizer.sentinel_ids)
            for index in range(len(drawn))
        ]
        assert list(itertools.chain(*texts)) == pairs.target_sentences.ids.tolist()


def test_ul2_mixes_seven_denoisers_equally() -> None:
    tokenizer = tokenizer_of("ul2")
    pairs, _ = texts_of(tokenizer, count=7000)
    denoising = Denoising(pairs, tokenizer, config_of("ul2"), seed=(0,))
    drawn = denoising.draw(None, np.arange(len(pairs)), seed=(0,))
    names = {index: name for name, index in tokenizer.tag_ids.items()}
    counts = Counter(names[int(drawn.source(index)[0])] for index in range(len(pairs)))
    for name, share in {"[NLU]": 2 / 7, "[NLG]": 4 / 7, "[S2S]": 1 / 7}.items():
        assert abs(counts[name] / len(pairs) - share) < 0.025  # four standard deviations
    for index in range(len(pairs)):
        if names[int(drawn.source(index)[0])] == "[S2S]" and len(pairs.target(index)) > 1:
            assert drawn.source(index)[-2] == tokenizer.sentinel_ids[0]  # one span, at the end


def test_prefixes_end_anywhere() -> None:
    tokenizer = tokenizer_of("prefix-lm")
    ids = [[5] * 6] * 5000
    pairs = TokenPairs(Sentences.pack(ids), Sentences.pack(ids), 32)
    denoising = Denoising(pairs, tokenizer, config_of("prefix-lm"), seed=(0,))
    counts = np.bincount(denoising.rooms.target_lengths, minlength=7)
    assert counts[[0, 6]].sum() == 0
    assert np.abs(counts[1:6] - 1000).max() < 4 * 1000**0.5


def test_evaluation_sees_the_same_examples_always() -> None:
    tokenizer = tokenizer_of()
    pairs, texts = texts_of(tokenizer, count=20)
    first, again = (fixed_examples(pairs, tokenizer, config_of("span-corruption")) for _ in range(2))
    assert np.array_equal(first.source_sentences.ids, again.source_sentences.ids)
    assert first.target_texts() == texts


def test_too_few_sentinels_are_refused() -> None:
    tokenizer = tokenizer_of(sentinels=1)
    pairs, _ = texts_of(tokenizer, count=3)
    with pytest.raises(CorpusError, match=r"at least 2 tokens <extra_id_0>.*received a vocabulary with 1"):
        Denoising(pairs, tokenizer, config_of("span-corruption"), seed=(0,))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"joint_vocabulary": False}, "joint_vocabulary must be true with objective='ul2'"),
        ({"train": ("a.en", "a.de")}, "train must be one file of text with objective='ul2'"),
        ({"noise_density": 1.0}, r"noise_density must be in \(0, 1\); received 1.0"),
        ({"mean_span_length": 0.5}, "mean_span_length must be at least 1"),
        ({"mixture_temperature": 0.5}, "mixture_temperature must be at least 1"),
        ({"source_tag": "<2de>"}, "source_tag and target_tag must be empty"),
    ],
)
def test_options_without_sense_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DataConfig(**({"objective": "ul2", "train": ("a.txt",), "valid_pairs": 2, "joint_vocabulary": True} | options))  # type: ignore[arg-type]


def test_no_text_is_refused(tmp_path: Path) -> None:
    from jax_transformer.data import prepare

    with pytest.raises(CorpusError, match="expected a file of plain text for objective='ul2'"):
        prepare(config_of("ul2", cache_dir=str(tmp_path)))
