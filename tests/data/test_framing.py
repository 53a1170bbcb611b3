"""What stands around targets: the start of the decoder, tags, and ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jax_transformer.config.data import CorpusConfig, DataConfig
from jax_transformer.data.encoding import TargetFrame, target_frame, target_frames
from jax_transformer.data.preparation import prepare
from jax_transformer.data.resegmentation import Resegmentation
from jax_transformer.data.tokenizers import SpecialIds, Tokenizer, train_tokenizer
from jax_transformer.data.tokenizers.tokenizer import read_backend

TEXTS = ["the cat saw a dog", "a dog saw the cat", "the dogs"]
SPECIALS = SpecialIds(pad=0, unk=1, bos=2, eos=3)
TRAINED = train_tokenizer(TEXTS, kind="bpe", vocab_size=40, specials=SPECIALS, tags=["de", "fr"])
LAST = Tokenizer(read_backend(TRAINED.to_json())[0], add_bos=False, add_eos=True, tag_last=True)
DE, FR = (TRAINED.tag_ids[tag] for tag in ("de", "fr"))


def config(*tags: str, **options: Any) -> DataConfig:
    first, *more = tags or ("",)
    parts = tuple(CorpusConfig(train=("text.tsv",), target_tag=tag) for tag in more)
    return DataConfig(train=("text.tsv",), target_tag=first, more=parts, **options)


@pytest.mark.parametrize(
    ("tokenizer", "data", "expected"),
    [
        (TRAINED, DataConfig(), TargetFrame(2, (), (3,))),
        (TRAINED, config(decoder_start_id=0), TargetFrame(0, (), (3,))),
        (TRAINED, config(decoder_start_id=3, target_bos=True), TargetFrame(3, (2,), (3,))),
        (TRAINED, config("de", decoder_start_id=3), TargetFrame(3, (DE,), (3,))),
        (TRAINED, config("de", target_bos=True), TargetFrame(2, (DE,), (3,))),
        (LAST, config("de", decoder_start_id=3), TargetFrame(DE, (), (3, DE))),
        (LAST, config(decoder_start_id=FR), TargetFrame(FR, (), (3, FR))),
        (LAST, config(decoder_start_id=3), TargetFrame(3, (), (3,))),
    ],
)
def test_a_frame_follows_from_the_tokenizer_and_the_config(
    tokenizer: Tokenizer, data: DataConfig, expected: TargetFrame
) -> None:
    frame = target_frame(data, tokenizer)
    assert frame == expected
    stored = frame.stored([[7, 8], []])
    labels = [[*ids, frame.end_id] for ids in stored]
    assert labels == [[*expected.before, 7, 8, *expected.after], [*expected.before, *expected.after]]
    assert frame.size == len(stored[1])


def test_corpora_may_have_tags_of_their_own() -> None:
    assert [frame.before for frame in target_frames(config("de", "fr", ""), TRAINED)] == [(DE,), (FR,), ()]
    with pytest.raises(ValueError, match=r"target_tag: expected one for all corpora, .* decoder; received de, fr"):
        target_frames(config("de", "fr"), LAST)


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match=r"target_tag: expected one of de, fr; received 'dee' \(nearest: de\)"):
        target_frame(config("dee"), TRAINED)
    plain = train_tokenizer(TEXTS, kind="whitespace", specials=SPECIALS)
    with pytest.raises(ValueError, match="target_tag: expected none, for the vocabulary has no tags; received 'de'"):
        target_frame(config("de"), plain)
    with pytest.raises(ValueError, match="decoder_start_id: expected an id of the target's vocabulary; received 99"):
        target_frame(config(decoder_start_id=99), plain)


def test_prepared_targets_include_the_tokens_around_them(tmp_path: Path) -> None:
    """Of each corpus its own tag; lengths and drawn segmentations count it."""
    for name, tokenizer in (("source", TRAINED), ("target", TRAINED.adding(bos=False, eos=False))):
        (tmp_path / f"{name}.json").write_text(tokenizer.to_json(), encoding="utf-8")
    (tmp_path / "text.tsv").write_text("".join(f"{text}\t{text}\n" for text in TEXTS) + "\t\n", encoding="utf-8")
    text = {"train": (str(tmp_path / "text.tsv"),)}
    data = DataConfig(
        **text,
        valid_pairs=1,
        target_tag="de",
        more=(CorpusConfig(**text, target_tag="fr"),),
        source_tokenizer=str(tmp_path / "source.json"),
        target_tokenizer=str(tmp_path / "target.json"),
        tokenizers_as_stored=True,
        max_length=12,
        subword_sampling=0.3,
        cache_dir=str(tmp_path / "cache"),
    )
    corpus = prepare(data)
    pairs = corpus.splits["train"]
    assert corpus.report.splits["train"].empty == 2
    for i in range(len(pairs)):
        (plain,) = TRAINED.adding(bos=False, eos=False).encode(pairs.target_texts([i]))
        assert pairs.corpus is not None
        assert pairs.target(i).tolist() == [(DE, FR)[pairs.corpus[i]], *plain]
    drawn = Resegmentation(pairs, corpus.source_tokenizer, corpus.target_tokenizer, corpus.frames, data).draw(
        None, np.arange(len(pairs)), seed=(1,)
    )
    firsts = [int(drawn.target(i)[0]) for i in range(len(pairs))]
    assert firsts == [int(pairs.target(i)[0]) for i in range(len(pairs))]
    assert (corpus.frame.start_id, corpus.frame.after) == (2, (3,))
