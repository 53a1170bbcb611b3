"""Tokenizers of the library `tokenizers`, given as objects. (Those of transformers: parity_tests.)"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Pipeline
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from jax_transformer.config.data import CorpusConfig, DataConfig
from jax_transformer.data.given_tokenizers import take_tokenizers
from jax_transformer.data.preparation import prepare
from jax_transformer.data.tokenizers import SpecialIds, Tokenizer, train_tokenizer
from jax_transformer.data.tokenizers.objects import as_tokenizer

TEXTS = ["the cat saw a dog", "a dog saw the cat", "dogs", "the the"] * 5
NAMES = ("<pad>", "<unk>", "<s>", "</s>")


def bpe(names: tuple[str, ...] = NAMES, *, template: str = "", texts: Any = TEXTS) -> Pipeline:
    made = Pipeline(models.BPE(unk_token=names[1] if len(names) > 1 else None))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    made.train_from_iterator(texts, trainers.BpeTrainer(special_tokens=[*names], vocab_size=60, show_progress=False))
    if template:
        special = [(name, made.token_to_id(name)) for name in names if name in template]
        made.post_processor = processors.TemplateProcessing(single=template, special_tokens=special)
    return made


def of_words(*words: str) -> Tokenizer:
    return train_tokenizer([" ".join(words)], kind="whitespace", specials=SpecialIds(0, 1, 2, 3))


@pytest.mark.parametrize("template", ["", "$A </s>", "<s> $A </s>"])
def test_a_source_has_the_tokens_of_the_objects_template(template: str) -> None:
    theirs = bpe(template=template)
    theirs.enable_padding(length=30)
    theirs.enable_truncation(max_length=2)
    ours = as_tokenizer(theirs)
    again = bpe(template=template)
    for text in ("the dogs saw a cat", "zebra", ""):
        assert ours.encode([text]) == [again.encode(text).ids]
    assert len(theirs.encode("the dogs saw a cat").ids) == 30  # the object is as it was


def test_a_target_adds_nothing_and_decodes_as_the_object_does() -> None:
    theirs = bpe(template="<s> $A </s>")
    ours = as_tokenizer(theirs, side="target")
    ids = theirs.encode("the dogs saw a cat").ids
    assert ours.encode(["the dogs saw a cat"]) == [ids[1:-1]]
    assert ours.decode([ids]) == [theirs.decode(ids)] == ["the dogs saw a cat"]
    assert (ours.pad_id, ours.unk_id, ours.bos_id, ours.eos_id) == (0, 1, 2, 3)


def test_a_stored_tokenizer_is_the_same() -> None:
    ours = as_tokenizer(bpe(template="$A </s>"))
    again = Tokenizer.from_json(ours.to_json())
    assert again.encode(TEXTS) == ours.encode(TEXTS)
    assert again.to_json() == ours.to_json()


def test_our_own_are_taken_as_they_are() -> None:
    ours = of_words("who", "sleeps").adding(bos=True, eos=True)
    assert as_tokenizer(ours) is ours
    assert as_tokenizer(ours, side="target").encode(["sleeps who"]) == [ours.encode(["sleeps who"])[0][1:-1]]


@pytest.mark.parametrize(
    ("given", "side", "message"),
    [
        ("bert-base", "source", "source_tokenizer: expected a tokenizer of transformers .* received str"),
        (
            bpe(("<unk>",)),
            "source",
            r"source_tokenizer: .* by which pad is recognised; .*pad_token=…",
        ),
        (bpe(NAMES[:2]), "target", "target_tokenizer: .* by which eos is recognised"),
        (bpe(template="<s> <s> $A"), "source", "source_tokenizer: .*post_processor that adds <bos>, <eos> or both"),
    ],
)
def test_what_cannot_be_used_is_refused(given: Any, side: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        as_tokenizer(given, side=side)


# --- in a config


def config(folder: Path, **options: Any) -> DataConfig:
    for name in ("source", "target"):
        (folder / name).write_text("\n".join(TEXTS) + "\n")
    files = (str(folder / "source"), str(folder / "target"))
    return DataConfig(train=files, valid_pairs=2, test_pairs=2, cache_dir=str(folder / "cache"), **options)


def test_a_corpus_is_encoded_by_the_objects(tmp_path: Path) -> None:
    theirs = bpe(template="$A </s>")
    corpus = prepare(config(tmp_path), source_tokenizer=theirs, target_tokenizer=theirs)
    pairs = corpus.splits["valid"]
    (text,) = pairs.source_texts([0])
    assert list(pairs.source(0)) == theirs.encode(text).ids
    assert list(pairs.target(0)) == theirs.encode(text, add_special_tokens=False).ids
    again = prepare(config(tmp_path), source_tokenizer=theirs, target_tokenizer=theirs)
    assert again.directory == corpus.directory
    other = bpe(template="$A </s>", texts=TEXTS[:3])
    assert prepare(config(tmp_path), source_tokenizer=other, target_tokenizer=other).directory != corpus.directory


@pytest.mark.parametrize(
    ("options", "sides", "message"),
    [
        ({}, (of_words("a"), None), "expected both, or neither; received the source's alone"),
        ({}, (None, of_words("a")), "expected both, or neither; received the target's alone"),
        ({"lowercase": True}, (of_words("a"),) * 2, "data.lowercase: expected it unset"),
        (
            {"source_tokenizer": "a.json", "target_tokenizer": "a.json"},
            (of_words("a"),) * 2,
            "data.source_tokenizer: expected it unset with tokenizers given as objects",
        ),
        ({"joint_vocabulary": True}, (of_words("a"), of_words("b")), "joint_vocabulary: .* received others"),
        ({"subword_sampling": 0.1}, (of_words("a"),) * 2, "subword sampling: expected a bpe or unigram"),
    ],
)
def test_a_config_that_contradicts_them_is_refused(options: Any, sides: Any, message: str) -> None:
    usual = DataConfig(tokenizer="bpe", vocab_size=100) if "subword_sampling" in options else DataConfig()
    with pytest.raises(ValueError, match=message):
        take_tokenizers(dataclasses.replace(usual, **options), *sides)


def test_without_objects_a_config_stays() -> None:
    usual = DataConfig()
    assert take_tokenizers(usual, None, None) == (usual, None)


def test_corpora_keep_their_own_tags() -> None:
    given = of_words("a")
    more = (CorpusConfig(train=("c", "d"), source_tag="<2fr>"),)
    taken, _ = take_tokenizers(DataConfig(train=("a", "b"), more=more), given, given)
    assert (taken.source_tag, taken.more[0].source_tag) == ("", "<2fr>")


def test_a_start_without_a_bos_is_asked_for(tmp_path: Path) -> None:
    theirs = bpe(("<pad>", "<unk>", "</s>"))
    with pytest.raises(ValueError, match=r"data\.decoder_start_id: .* -1, without <bos>; set it, such as to 0"):
        prepare(config(tmp_path), source_tokenizer=theirs, target_tokenizer=theirs)
    corpus = prepare(config(tmp_path, decoder_start_id=0), source_tokenizer=theirs, target_tokenizer=theirs)
    assert corpus.frame.start_id == 0
