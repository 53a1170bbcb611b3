"""Learns vocabularies from text."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Literal, get_args

from jax_transformer.data.tokenizers.pipelines import Normalization, PipelineBackend, make_pipeline
from jax_transformer.data.tokenizers.special_tokens import UNK, SpecialIds, check_tags, hidden_name
from jax_transformer.data.tokenizers.tokenizer import Backend, Tokenizer
from jax_transformer.data.tokenizers.word_counts import count_words, thinned_counts
from jax_transformer.runtime.extras import require

Kind = Literal["words", "whitespace", "characters", "bpe", "unigram", "spacy"]
SUBWORDS = ("bpe", "unigram")

NO_LIMIT = 2**48
CHUNK = 10_000
REPEATS = 1000
MOST_WORDS = {"bpe": 1_000_000, "unigram": 250_000}
"""Maximum number of different words for training; sentencepiece is much slower than BPE."""
MOST_CHARACTERS = 40_000_000
"""Maximum number of characters for training unigram, repeated words included: sentencepiece's memory grows with the
characters, not with the words."""
SENTENCEPIECE_RESERVED = frozenset("\t\n\r\0\x1f▅")
"""Characters that sentencepiece's trainer uses internally; pieces of one such character are added after training."""


def train_tokenizer(
    sentences: Iterable[str],
    *,
    kind: Kind,
    specials: SpecialIds,
    vocab_size: int = 0,
    min_frequency: int = 1,
    lowercase: bool = False,
    normalization: Normalization = "none",
    language: str = "",
    tags: Sequence[str] = (),
    sentinels: int = 0,
    add_bos: bool = False,
    add_eos: bool = False,
) -> Tokenizer:
    """Learns a vocabulary from `sentences`; the same sentences give the same tokenizer, byte for byte.

    The specials keep their ids. The tags fill the next free ids, followed by the learned tokens by frequency in
    `sentences` and code point. Reads `sentences` once, and keeps only counts of words.

    Args:
      sentences: the text, one sentence each.
      kind: words, whitespace, characters, spacy, bpe or unigram.
      specials: the ids of the special tokens.
      vocab_size: maximum number of entries, specials and tags included; the rarest tokens are left out. 0: no limit,
        which bpe and unigram don't allow.
      min_frequency: minimum frequency of a token. bpe: rarer pairs of pieces aren't merged; unigram: rarer pieces are
        left out, but every character of `sentences` is kept.
      lowercase, normalization: applied to all text first, normalization before lowercasing.
      language: the code of the language, such as en, for the kind spacy.
      tags: tokens that `encode` can put before a sentence.
      sentinels: number of tokens <extra_id_0>, <extra_id_1>, … to put at the end, descending, for pretraining; not for
        spacy.
      add_bos, add_eos: whether `encode` puts <bos> before and <eos> after each sentence.

    Raises:
      ValueError: an unknown kind or language; tags with spaces; sentences without a token; a vocabulary too small for
        the specials (and the characters of bpe and unigram), or so small that a special's id lies beyond its end.
      MissingPackage: kind spacy or unigram, and spaCy or sentencepiece isn't installed.

    Example:
      >>> words = train_tokenizer(["who sleeps", "who reads"], kind="whitespace", specials=SpecialIds(0, 1, 2, 3))
      >>> words.encode(["who knows"])
      [[4, 1]]
    """
    if kind not in get_args(Kind):
        raise ValueError(f"tokenizer kind: expected one of {', '.join(get_args(Kind))}; received {kind!r}")
    if isinstance(sentences, str):
        raise ValueError("sentences: expected a list of strings, or another iterable; received one string")
    if kind == "unigram":
        require("sentencepiece", "tokenizer unigram")
    tags = check_tags(tags)
    reserved = specials.names()
    fixed = len(reserved) + len(tags) + sentinels
    if (vocab_size or kind in SUBWORDS) and vocab_size <= fixed:
        tagged = f" and {len(tags)} tags" if tags else ""
        raise ValueError(
            f"vocab_size: expected more than the {len(reserved)} special tokens{tagged}; received {vocab_size}"
        )
    backend: Backend
    if kind == "spacy":
        backend = _train_spacy(sentences, language, normalization, lowercase, reserved, tags, vocab_size, min_frequency)
    else:
        pipeline = make_pipeline(kind, normalization, lowercase)
        vocab_size = max(vocab_size - sentinels, 0)
        if kind == "bpe":
            model = _train_bpe(pipeline, sentences, reserved, tags, vocab_size, min_frequency)
        elif kind == "unigram":
            model = _train_unigram(pipeline, sentences, reserved, tags, vocab_size, min_frequency)
        else:
            model = _train_words(pipeline, sentences, reserved, tags, vocab_size, min_frequency)
        pipeline.model = model
        ends = [f"<extra_id_{number}>" for number in reversed(range(sentinels))]  # they get the next ids
        pipeline.add_special_tokens([*reserved, *map(hidden_name, [*tags, *ends])])
        backend = PipelineBackend(pipeline)
    return Tokenizer(backend, add_bos=add_bos, add_eos=add_eos)


def _train_words(
    pipeline: Any,
    sentences: Iterable[str],
    reserved: dict[str, int],
    tags: Sequence[str],
    vocab_size: int,
    min_frequency: int,
) -> Any:
    """Trains a model that looks up whole tokens."""
    from tokenizers import models, trainers

    room = vocab_size - len(reserved) - len(tags) if vocab_size else NO_LIMIT
    trainer = trainers.WordLevelTrainer(vocab_size=room, min_frequency=min_frequency, show_progress=False)
    pipeline.train_from_iterator(sentences, trainer)
    vocabulary: dict[str, int] = pipeline.get_vocab()
    ordered = sorted(
        vocabulary, key=lambda token: vocabulary[token]
    )  # the trainer's ids are by frequency, then by code point
    return models.WordLevel(_place(ordered, reserved, tags, min_frequency), unk_token=UNK)


def _train_spacy(
    sentences: Iterable[str],
    language: str,
    normalization: Normalization,
    lowercase: bool,
    reserved: dict[str, int],
    tags: Sequence[str],
    vocab_size: int,
    min_frequency: int,
) -> Backend:
    from jax_transformer.data.tokenizers.spacy_rules import SpacyBackend, SpacyRules

    rules = SpacyRules(language, normalization, lowercase)
    counts: Counter[str] = Counter()
    for sentence in sentences:
        counts.update(rules.split(sentence))
    seen = [token for token, count in counts.items() if count >= min_frequency]
    ordered = sorted(seen, key=lambda token: (-counts[token], token))
    if vocab_size:
        ordered = ordered[: vocab_size - len(reserved) - len(tags)]
    size = len(reserved) + len(tags) + len(ordered)
    # A text may contain "<eos>" as a token, so entries are distinguished only by their ids.
    specials, rest = _divide(ordered, reserved, tags, min_frequency)
    entries = [""] * size
    for token, index in chain(specials.items(), rest.items()):
        entries[index] = token
    return SpacyBackend(rules, entries, specials)


# --- subwords


def _train_bpe(
    pipeline: Any,
    sentences: Iterable[str],
    reserved: dict[str, int],
    tags: Sequence[str],
    vocab_size: int,
    min_frequency: int,
) -> Any:
    """Trains a model that merges characters into pieces, with ids ordered by the pieces' counts in the encoded
    `sentences`."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    room = vocab_size - len(reserved) - len(tags)
    words, lost = count_words(sentences, pipeline, MOST_WORDS["bpe"])
    _check_room("bpe", {*chain.from_iterable(words), *lost}, reserved, tags, vocab_size)
    learner = Tokenizer(models.BPE(unk_token=UNK))
    learner.pre_tokenizer = pre_tokenizers.Split(" ", "removed")  # no word has a space in it
    trainer = trainers.BpeTrainer(
        vocab_size=room, min_frequency=min_frequency, initial_alphabet=sorted(lost), show_progress=False
    )
    learner.train_from_iterator(_repeated(words), trainer)
    vocabulary: dict[str, int] = learner.get_vocab()
    ordered = _by_use(vocabulary, _count_pieces(learner, words))
    merges = [(left, right) for left, right in json.loads(learner.to_str())["model"]["merges"]]
    return models.BPE(_place(ordered, reserved, tags, min_frequency), merges, unk_token=UNK)


def _train_unigram(
    pipeline: Any,
    sentences: Iterable[str],
    reserved: dict[str, int],
    tags: Sequence[str],
    vocab_size: int,
    min_frequency: int,
) -> Any:
    """Trains a model of pieces with log-probabilities, with ids ordered by the pieces' counts in the encoded
    `sentences`."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words, lost = count_words(sentences, pipeline, MOST_WORDS["unigram"])
    characters = {*chain.from_iterable(words), *lost}
    _check_room("unigram", characters, reserved, tags, vocab_size)
    learned = thinned_counts(
        {word: words[word] for word in words if not SENTENCEPIECE_RESERVED & set(word)}, MOST_CHARACTERS
    )
    beyond_it = characters - set(chain.from_iterable(learned))
    scores = (
        _sentencepiece_scores(learned, vocab_size - len(reserved) - len(tags) - len(beyond_it))
        if characters - beyond_it
        else {}
    )
    scores |= dict.fromkeys(sorted(beyond_it), min(scores.values(), default=0.0))
    while True:
        learner = Tokenizer(models.Unigram([(UNK, 0.0), *scores.items()], 0, False))
        learner.pre_tokenizer = pre_tokenizers.Split(" ", "removed")  # no word has a space in it
        vocabulary: dict[str, int] = learner.get_vocab()
        counts = _count_pieces(learner, words)
        rare = [piece for piece in scores if len(piece) > 1 and counts[vocabulary[piece]] < min_frequency]
        if min_frequency == 1 or not rare:
            break
        for piece in rare:  # pieces that replace them may still be rare
            del scores[piece]
    ordered = _by_use({piece: index for piece, index in vocabulary.items() if piece in scores}, counts)
    places = _place(ordered, reserved, tags, min_frequency)
    entries = [(piece, scores.get(piece, 0.0)) for piece in sorted(places, key=lambda piece: places[piece])]
    return models.Unigram(entries, reserved[UNK], False)


def _sentencepiece_scores(words: Mapping[str, int], room: int) -> dict[str, float]:
    """Returns the pieces of a sentencepiece unigram model of at most `room` pieces, with their log-probabilities."""
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_proto=train_sentencepiece(words, room))
    pieces = [index for index in range(len(processor)) if not processor.is_unknown(index)]
    return {processor.id_to_piece(index): processor.get_score(index) for index in pieces}


def train_sentencepiece(words: Mapping[str, int], room: int) -> bytes:
    """Trains a sentencepiece unigram .model of at most `room` pieces on counted words, byte-identical for any order of
    the words."""
    import sentencepiece

    lines = (f"{word}\t{count}" for word, count in sorted(words.items()))
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=lines,
            input_format="tsv",
            model_writer=model,
            model_type="unigram",
            vocab_size=room + 1,
            hard_vocab_limit=False,
            character_coverage=1.0,
            max_sentence_length=1 << 20,
            num_threads=1,  # the rounding of sums, and so the result, depends on it
            normalization_rule_name="identity",
            add_dummy_prefix=False,
            remove_extra_whitespaces=False,
            split_by_unicode_script=False,
            split_by_number=False,  # the words are already split
            unk_id=0,
            bos_id=-1,
            eos_id=-1,
            pad_id=-1,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise ValueError(
            f"unigram: expected text that sentencepiece can learn from; received {len(words)} different words ({error})"
        ) from None
    return model.getvalue()


def _check_room(
    kind: str, characters: set[str], reserved: dict[str, int], tags: Sequence[str], vocab_size: int
) -> None:
    fixed = len(reserved) + len(tags)
    if fixed + len(characters) >= vocab_size:
        tagged = f", {len(tags)} tags" if tags else ""
        raise ValueError(
            f"vocab_size: expected more than {fixed + len(characters)} for {kind}, {len(reserved)} special "
            f"tokens{tagged} and the "
            f"{len(characters)} characters of the training text; received {vocab_size}"
        )


def _repeated(words: Counter[str]) -> Iterator[str]:
    """Yields lines of words separated by spaces, with each word as often as it was counted."""
    for word, count in words.items():
        for start in range(0, count, REPEATS):
            yield " ".join([word] * min(REPEATS, count - start))


def _count_pieces(learner: Any, words: Counter[str]) -> Counter[int]:
    """Counts each piece in the encoded words."""
    counts: Counter[int] = Counter()
    listed = list(words)
    for start in range(0, len(listed), CHUNK):
        chunk = listed[start : start + CHUNK]
        for word, encoding in zip(chunk, learner.encode_batch_fast(chunk), strict=True):
            for index in encoding.ids:
                counts[index] += words[word]
    return counts


def _by_use(vocabulary: dict[str, int], counts: Counter[int]) -> list[str]:
    return sorted(vocabulary, key=lambda token: (-counts[vocabulary[token]], token))


# --- ids


def _place(ordered: list[str], reserved: dict[str, int], tags: Sequence[str], min_frequency: int) -> dict[str, int]:
    """Assigns ids to the tags and the `ordered` tokens, around the reserved ids."""
    specials, rest = _divide(ordered, reserved, tags, min_frequency)
    return specials | rest


def _divide(
    ordered: list[str], reserved: dict[str, int], tags: Sequence[str], min_frequency: int
) -> tuple[dict[str, int], dict[str, int]]:
    """Assigns ids; returns those of specials and tags, and those of the `ordered` tokens."""
    if not ordered:
        raise ValueError(
            f"training text: expected a token seen {min_frequency} times or more; received none. Check the text."
        )
    size = len(ordered) + len(reserved) + len(tags)
    beyond = {name: index for name, index in reserved.items() if index >= size}
    if beyond:
        raise ValueError(f"special ids: expected ids below the vocabulary's size, {size}; received {beyond}")
    taken = set(reserved.values())
    free = (index for index in range(size) if index not in taken)
    specials = dict(reserved) | {hidden_name(tag): next(free) for tag in tags}
    return specials, dict(zip(ordered, free, strict=True))
