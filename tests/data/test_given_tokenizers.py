"""Vocabularies of others: every token keeps its id, specials are found by their names, and what is missing is told."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from jax_transformer.config.run import DataConfig
from jax_transformer.data.preparation import prepare
from jax_transformer.data.resegmentation import Resegmentation
from jax_transformer.data.tokenizers import SpecialIds, Tokenizer, load_tokenizer, train_tokenizer

SPECIALS = SpecialIds(pad=0, unk=1, bos=2, eos=3)
TORCHTEXT = SpecialIds(pad=1, unk=0, bos=2, eos=3)
ANNOTATED = SpecialIds(pad=2, unk=3, bos=0, eos=1)
TEXTS = ["the cat saw a dog", "a dog saw the cat", "dogs", "the the"] * 5
FORGED = "<s> </s> <pad> <unk> the <2de>"


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def load(path: Path, specials: SpecialIds | None = None, **options: Any) -> Tokenizer:
    options = {"kind": "whitespace"} | options
    tokenizer = load_tokenizer(path, specials=specials, **options)
    again = Tokenizer.from_json(tokenizer.to_json())
    for tag in ("", *tokenizer.tags):
        assert again.encode([*TEXTS, FORGED], tag) == tokenizer.encode([*TEXTS, FORGED], tag), (
            "a file of our own holds all of it"
        )
    assert again.to_json() == tokenizer.to_json()
    assert (again.pad_id, again.unk_id, again.tags) == (tokenizer.pad_id, tokenizer.unk_id, tokenizer.tags)
    return tokenizer


# --- lists of tokens


@pytest.mark.parametrize(
    ("names", "specials"),
    [
        (["<unk>", "<pad>", "<init>", "<eos>"], TORCHTEXT),
        (["<unk>", "<pad>", "<sos>", "<eos>"], TORCHTEXT),
        (["<unk>", "<pad>", "<bos>", "<eos>"], TORCHTEXT),
        (["<s>", "</s>", "<blank>", "<unk>"], ANNOTATED),
        (["[PAD]", "[UNK]", "[CLS]", "[SEP]"], SPECIALS),
    ],
)
@pytest.mark.parametrize("kind", ["words", "whitespace"])
def test_the_line_is_the_id(tmp_path: Path, names: list[str], specials: SpecialIds, kind: str) -> None:
    path = write(tmp_path / "vocabulary.txt", "\n".join([*names, "the", "cat", "."]) + "\n")
    for given in (specials, None):
        tokenizer = load(path, given, kind=kind, add_eos=True)
        assert tokenizer.vocab_size == 7
        assert tokenizer.encode(["the cat dog ."]) == [[4, 5, specials.unk, 6, specials.eos]]
        assert (tokenizer.pad_id, tokenizer.unk_id, tokenizer.bos_id) == (specials.pad, specials.unk, specials.bos)
        shown = tokenizer.decode([[specials.bos, 4, 5, specials.unk, specials.eos, specials.pad]])
        assert shown == ["the cat <unk>"]
        forged = tokenizer.encode([" ".join(names)])[0][:-1]
        assert not set(forged) & {specials.pad, specials.bos, specials.eos}


def test_windows_line_ends_and_a_last_line_without_end_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "vocabulary.txt"
    path.write_bytes("\ufeff<pad>\r\n<unk>\r\n<s>\r\n</s>\r\nthe\r\ncat".encode())
    assert load(path, SPECIALS).encode(["cat the"]) == [[5, 4]]


def test_lists_of_characters_have_white_space(tmp_path: Path) -> None:
    path = write(tmp_path / "vocabulary.txt", "<pad>\n<unk>\n<s>\n</s>\n \na\nb\n")
    tokenizer = load(path, SPECIALS, kind="characters")
    assert tokenizer.encode(["a b"]) == [[5, 4, 6]]
    assert tokenizer.decode([[5, 4, 6]]) == ["a b"]


def test_tags_are_lines_too(tmp_path: Path) -> None:
    path = write(tmp_path / "vocabulary.txt", "<pad>\n<unk>\n<s>\n</s>\n<2de>\nthe\n<2fr>\n")
    tokenizer = load(path, SPECIALS, tags=("<2de>",), add_bos=True)
    assert tokenizer.tags == ("<2de>",)
    assert tokenizer.encode(["the <2de> <2fr>"], "<2de>") == [[2, 4, 5, 1, 6]]
    with pytest.raises(
        ValueError, match=r"vocabulary.txt: expected as a source_tag none.*; received <2es>; add it to the file"
    ):
        load(path, SPECIALS, tags=("<2es>",))


def test_a_list_without_specials_takes_them_after_its_end(tmp_path: Path) -> None:
    path = write(tmp_path / "vocabulary.txt", "the\ncat\n")
    tokenizer = load(path, SpecialIds(pad=4, unk=2, bos=3, eos=5), add_eos=True)
    assert tokenizer.encode(["the cat sat"]) == [[0, 1, 2, 5]]
    assert tokenizer.vocab_size == 6
    expected = "set pad_id=2, unk_id=3, bos_id=4, eos_id=5 to have them after its end"
    for specials in (SPECIALS, SpecialIds(pad=5, unk=6, bos=7, eos=8)):
        with pytest.raises(
            ValueError, match=r"vocabulary.txt: expected the special tokens <.*; received none of these"
        ) as error:
            load(path, specials)
        assert expected in str(error.value)


def test_bare_names_are_specials_where_there_are_no_others(tmp_path: Path) -> None:
    path = write(tmp_path / "vocabulary.txt", "UNK\nPAD\nBOS\nEOS\nthe\n")
    tokenizer = load(path, SpecialIds(pad=1, unk=0, bos=2, eos=3))
    assert tokenizer.encode(["the BOS UNK"]) == [[4, 0, 0]]
    path = write(tmp_path / "vocabulary.txt", "<pad>\n<unk>\n<bos>\n<eos>\nPAD\n")
    assert load(path, SPECIALS).encode(["PAD PUT"]) == [[4, 1]]


@pytest.mark.parametrize("kind", ["whitespace", "spacy"])
def test_a_list_may_lack_specials_where_none_are_expected(tmp_path: Path, kind: str) -> None:
    """It then knows its own tokens only, and nothing is taken for <unk>."""
    if kind == "spacy":
        pytest.importorskip("spacy")
    path = write(tmp_path / "vocabulary.txt", "the\n<PAD>\ncat\n<EOS>\n")
    tokenizer = load_tokenizer(path, kind=kind, specials=None, language="en")  # type: ignore[arg-type]
    for same in (tokenizer, Tokenizer.from_json(tokenizer.to_json())):
        assert (same.pad_id, same.unk_id, same.bos_id, same.eos_id) == (1, -1, -1, 3)
        assert same.encode(["the cat", "cat"]) == [[0, 2], [2]]
        assert same.decode([[0, 2, 3, 1, 1]]) == ["the cat"]
        with pytest.raises(
            ValueError, match="expected tokens of the vocabulary only, for it has no <unk>; received 'sat'"
        ):
            same.encode(["the cat", "cat sat mat"])
    assert tokenizer.adding(bos=False, eos=True).encode(["cat"]) == [[2, 3]]
    with pytest.raises(ValueError, match="expected <bos>, to add to sentences; received only <pad>, <eos>"):
        tokenizer.adding(bos=True, eos=True)


def test_a_padding_token_may_be_missing_where_unknown_serves_for_it(tmp_path: Path) -> None:
    path = write(tmp_path / "vocabulary.txt", "<unk>\n<s>\n</s>\nthe\n")
    tokenizer = load(path, SpecialIds(pad=0, unk=0, bos=1, eos=2))
    assert (tokenizer.pad_id, tokenizer.unk_id) == (0, 0)
    with pytest.raises(
        ValueError,
        match=r"vocabulary.txt: expected the special tokens <pad> \(or .*pad_id=4 to have them after its end",
    ):
        load(path, SPECIALS)


def test_other_ids_than_the_configs_are_used_and_told(tmp_path: Path) -> None:
    path = write(tmp_path / "vocabulary.txt", "<s>\n</s>\n<blank>\n<unk>\nthe\n")
    message = (
        "vocabulary.txt: expected the special ids pad_id=0, unk_id=1, bos_id=2, eos_id=3; received, and used, the "
        "file's: pad_id=2, "
        "unk_id=3, bos_id=0, eos_id=1"
    )
    with pytest.warns(UserWarning, match=re.escape(message)):
        tokenizer = load_tokenizer(path, kind="whitespace", specials=SPECIALS)
    assert (tokenizer.pad_id, tokenizer.unk_id, tokenizer.bos_id, tokenizer.eos_id) == (2, 3, 0, 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "vocabulary.txt: expected a token a line; received an empty file"),
        (
            "<pad>\nthe\ncat\nthe\n",
            "vocabulary.txt:4: expected a token that isn't in a line before; received 'the' again, of line 2",
        ),
        ("<pad>\n\nthe\n", "vocabulary.txt:2: expected one token, without spaces; received ''"),
        ("<pad>\nthe cat\n", "vocabulary.txt:2: expected one token, without spaces; received 'the cat'"),
        (
            "<pad>\n<unk>\n<s>\n</s>\n<bos>\n",
            "vocabulary.txt: expected one <bos> token; received '<bos>' (line 5) and '<s>' (line 3)",
        ),
        (b"<pad>\n\xff\n", "vocabulary.txt:2: expected UTF-8 text; received byte 0xff"),
    ],
)
def test_lists_with_a_mistake_are_refused_with_the_line(tmp_path: Path, text: str | bytes, message: str) -> None:
    path = tmp_path / "vocabulary.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=re.escape(message)):
        load(path, SPECIALS)


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_a_list_says_nothing_of_merges(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / "vocabulary.txt", "<pad>\n<unk>\n<s>\n</s>\nthe\n")
    with pytest.raises(ValueError, match=f"vocabulary.txt: expected the tokenizer words, .*; received '{kind}'"):
        load(path, SPECIALS, kind=kind)


# --- tokenizer.json


def byte_level() -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.ByteLevel()
    made.decoder = decoders.ByteLevel()
    names = ["<s>", "<pad>", "</s>", "<unk>", "<2de>"]
    made.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=300, special_tokens=names, show_progress=False))
    made.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    made.enable_truncation(3)
    return made


def word_level(names: list[str], model: Any = models.WordLevel) -> tokenizers.Tokenizer:
    vocabulary = {name: index for index, name in enumerate([*names, "the", "cat", "dog"])}
    made = tokenizers.Tokenizer(model(vocabulary, unk_token=names[1]))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return made  # without a list of its special tokens


def metaspace_unigram() -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.Unigram())
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    names = ["<pad>", "<unk>", "<s>", "</s>", "<2de>"]
    trainer = trainers.UnigramTrainer(vocab_size=60, special_tokens=names, unk_token="<unk>", show_progress=False)
    made.train_from_iterator([*TEXTS, "</s><2de>"], trainer)
    return made


def test_a_language_of_nllb_is_a_tag(tmp_path: Path) -> None:
    """Which stands where its own template puts the source's, and begins the target."""
    original = metaspace_unigram()
    original.add_special_tokens(["deu_Latn", "eng_Latn"])
    ids = {name: original.token_to_id(name) for name in ("<2de>", "deu_Latn", "eng_Latn")}
    template = ["eng_Latn", "$A", "</s>"]
    original.post_processor = processors.TemplateProcessing(
        single=template, special_tokens=[(name, original.token_to_id(name)) for name in ("eng_Latn", "</s>")]
    )
    original.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load(tmp_path / "tokenizer.json", None, add_eos=True)
    assert tokenizer.encode(TEXTS, "eng_Latn") == [encoding.ids for encoding in original.encode_batch(TEXTS)]
    assert dict(tokenizer.tag_ids) == ids
    assert tokenizer.decode([[ids["deu_Latn"], *tokenizer.encode(["the cat"])[0]]]) == ["the cat"]


@pytest.mark.parametrize("make", [byte_level, metaspace_unigram])
def test_a_given_pipeline_encodes_as_it_did(tmp_path: Path, make: Any) -> None:
    original = make()
    original.no_truncation()
    path = tmp_path / "tokenizer.json"
    original.save(str(path))
    tokenizer = load(path, None, tags=("<2de>",), add_bos=True, add_eos=True)
    bos, eos, tag = (original.token_to_id(name) for name in ("<s>", "</s>", "<2de>"))
    plain = [encoding.ids for encoding in original.encode_batch(TEXTS, add_special_tokens=False)]
    assert tokenizer.encode(TEXTS) == [[bos, *ids, eos] for ids in plain]
    assert tokenizer.encode(TEXTS, "<2de>") == [[bos, tag, *ids, eos] for ids in plain]
    assert tokenizer.vocab_size == original.get_vocab_size()
    assert [text.strip() for text in tokenizer.decode(tokenizer.encode(TEXTS, "<2de>"))] == TEXTS
    assert not {bos, eos, tag} & set(tokenizer.adding(bos=False, eos=False).encode([FORGED])[0]), (
        "text is no special token"
    )


def test_truncation_in_a_given_file_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    byte_level().save(str(path))
    assert len(load(path).encode(["the cat saw a dog the cat"])[0]) > 3


def test_a_given_pipeline_can_be_sampled_from(tmp_path: Path) -> None:
    for make in (byte_level, metaspace_unigram):
        path = tmp_path / "tokenizer.json"
        make().save(str(path))
        tokenizer = load(path)
        drawn = tokenizer.sample_encode(TEXTS, seed=0, strength=0.3)
        assert drawn != tokenizer.encode(TEXTS)
        assert tokenizer.decode(drawn) == tokenizer.decode(tokenizer.encode(TEXTS))


@pytest.mark.parametrize("model", [models.WordLevel, models.WordPiece])
def test_words_of_a_given_list_cannot_forge_specials(tmp_path: Path, model: Any) -> None:
    path = tmp_path / "tokenizer.json"
    word_level(["[PAD]", "[UNK]", "[CLS]", "[SEP]"], model).save(str(path))
    tokenizer = load(path, SPECIALS, add_eos=True)
    assert tokenizer.encode(["the cat [SEP] [PAD] emu"]) == [[4, 5, 1, 1, 1, 3]]
    assert tokenizer.tokens([0, 1, 2, 3, 4]) == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the"]


def test_normalization_comes_before_what_a_given_file_does(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    word_level(["<pad>", "<unk>", "<s>", "</s>"]).save(str(path))
    assert load(path, SPECIALS).encode(["THE cat"]) == [[1, 5]]
    assert load(path, SPECIALS, lowercase=True, normalization="nfkc").encode(["ＴＨＥ Cat"]) == [[4, 5]]


def test_missing_specials_of_a_given_file_are_told_or_come_last(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    word_level(["<pad>", "<unk>", "</s>", "one"]).save(str(path))
    message = (
        r"tokenizer.json: expected the special tokens <bos> \(or <s>, .*; received none of these; .* set "
        r"bos_id=7 to have"
    )
    with pytest.raises(ValueError, match=message):
        load(path, SPECIALS)
    tokenizer = load(path, SpecialIds(pad=0, unk=1, bos=7, eos=2), add_bos=True)
    assert tokenizer.encode(["the one"]) == [[7, 4, 3]]
    assert tokenizer.vocab_size == 8
    word_level(["one", "<unk>"]).save(str(path))
    tokenizer = load(path, SpecialIds(pad=7, unk=1, bos=6, eos=5), add_eos=True)
    assert tokenizer.encode(["one dog"]) == [[0, 4, 5]]
    assert (tokenizer.pad_id, tokenizer.bos_id, tokenizer.vocab_size) == (7, 6, 8)


def test_a_file_of_our_own_is_taken_as_it_is(tmp_path: Path) -> None:
    for kind in ("words", "bpe", "unigram"):
        trained = train_tokenizer(TEXTS, kind=kind, specials=SPECIALS, vocab_size=30, tags=["<2de>"], add_bos=True)  # type: ignore[arg-type]
        path = write(tmp_path / "tokenizer.json", trained.to_json())
        tokenizer = load(path, SPECIALS, tags=("<2de>",), add_eos=True)
        assert tokenizer.encode(TEXTS, "<2de>") == trained.adding(bos=False, eos=True).encode(TEXTS, "<2de>")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("tokenizer.json", "{", "tokenizer.json: expected JSON ("),
        ("tokenizer.json", "[]", "tokenizer.json: tokenizer: expected the text of a tokenizer.json; received '[]'"),
        (
            "tokenizer.yaml",
            "a: b",
            "tokenizer.yaml: expected a tokenizer.json, a sentencepiece .model, or a .txt of tokens; received a name",
        ),
        ("words.model", "hello", "words.model: expected a sentencepiece model; received 5 bytes of something else"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        load(write(tmp_path / name, text), SPECIALS)
    with pytest.raises(ValueError, match=r"nowhere.json: expected a tokenizer.json.*; there is no such file"):
        load(tmp_path / "nowhere.json", SPECIALS)


def test_preparation_takes_given_files_and_trains_the_others(tmp_path: Path) -> None:
    pairs = "".join(f"{text}\t{text.upper()}\n" for text in TEXTS)
    options: dict[str, Any] = {
        "train": (str(write(tmp_path / "train.tsv", pairs)),),
        "valid_pairs": 1,
        "cache_dir": str(tmp_path),
    }
    source = write(tmp_path / "source.txt", "<pad>\n<unk>\n<s>\n</s>\n<2up>\nthe\ncat\n")
    target = write(tmp_path / "target.txt", "<pad>\n<unk>\n<s>\n</s>\nthe\ncat\n")
    files = {"source_tokenizer": str(source), "target_tokenizer": str(target)}
    lines: list[str] = []
    config = DataConfig(tokenizer="whitespace", source_tag="<2up>", lowercase=True, max_unknown=1.0, **files, **options)
    given = prepare(config, lines.append)
    assert lines
    assert not any("training" in line for line in lines)
    assert given.source_tokenizer.encode(["the Cat sat"], "<2up>") == [[4, 5, 6, 1, 3]]
    assert given.target_tokenizer.encode(["the Cat sat"]) == [[4, 5, 1]]
    for joint in (False, True):
        trained = prepare(
            DataConfig(
                tokenizer="unigram",
                vocab_size=40,
                joint_vocabulary=joint,
                source_tag="<2up>",
                normalization="nfkc",
                lowercase=joint,
                **options,
            )
        )
        assert trained.source_tokenizer.tags == ("<2up>",)
        assert trained.target_tokenizer.tags == (("<2up>",) if joint else ())
        assert trained.source_tokenizer.encode(["the"], "<2up>")[0][0] == 4
        assert trained.target_tokenizer.decode(trained.target_tokenizer.encode(["ＴＨＥ"])) == [
            "the" if joint else "THE"
        ]


def test_given_files_of_a_joint_vocabulary_are_alike(tmp_path: Path) -> None:
    pairs = write(tmp_path / "train.tsv", "".join(f"{text}\t{text}\n" for text in TEXTS))
    words = {"a": "the", "b": "the", "c": "cat"}
    one, same, other = (
        write(tmp_path / f"{name}.txt", f"<pad>\n<unk>\n<s>\n</s>\n{word}\n") for name, word in words.items()
    )
    options: dict[str, Any] = {"train": (str(pairs),), "valid_pairs": 1, "cache_dir": str(tmp_path), "max_unknown": 1.0}
    for target in (one, same):
        prepare(DataConfig(joint_vocabulary=True, source_tokenizer=str(one), target_tokenizer=str(target), **options))
    with pytest.raises(
        ValueError, match=r"joint_vocabulary: expected .* the same tokens under the same ids; received .*a.txt \(5 tok"
    ):
        prepare(DataConfig(joint_vocabulary=True, source_tokenizer=str(one), target_tokenizer=str(other), **options))


def test_only_given_subwords_are_sampled(tmp_path: Path) -> None:
    """Whatever `tokenizer` says, which a given tokenizer.json doesn't need."""
    pairs = write(tmp_path / "train.tsv", "".join(f"{text}\t{text}\n" for text in TEXTS))
    subwords = train_tokenizer(TEXTS, kind="bpe", vocab_size=40, specials=SPECIALS)
    file, words = (
        write(tmp_path / "subwords.json", subwords.to_json()),
        write(tmp_path / "w.txt", "<pad>\n<unk>\n<s>\n</s>\nthe\n"),
    )
    options: dict[str, Any] = {
        "train": (str(pairs),),
        "valid_pairs": 1,
        "cache_dir": str(tmp_path),
        "subword_sampling": 0.9,
    }
    config = DataConfig(source_tokenizer=str(file), target_tokenizer=str(file), **options)
    corpus = prepare(config)
    train = corpus.splits["train"]
    drawn = Resegmentation(train, corpus.source_tokenizer, corpus.target_tokenizer, config)
    assert min(drawn.growth) > 1.0
    with pytest.raises(ValueError, match="subword sampling: expected a bpe or unigram tokenizer"):
        prepare(DataConfig(source_tokenizer=str(file), target_tokenizer=str(words), max_unknown=1.0, **options))


# --- sentencepiece


def sentencepiece_file(path: Path, **options: Any) -> tuple[Path, sentencepiece.SentencePieceProcessor]:
    model = io.BytesIO()
    options = {"model_type": "unigram", "vocab_size": 50, "control_symbols": ["<2de>"]} | options
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS),
        model_writer=model,
        hard_vocab_limit=False,
        minloglevel=2,
        num_threads=1,
        **options,
    )
    path.write_bytes(model.getvalue())
    return path, sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
@pytest.mark.parametrize("bytes_too", [False, True])
def test_a_sentencepiece_model_encodes_as_it_does_itself(tmp_path: Path, kind: str, bytes_too: bool) -> None:
    options = {"vocab_size": 300, "byte_fallback": True} if bytes_too else {}
    path, processor = sentencepiece_file(tmp_path / "spm.model", model_type=kind, pad_id=3, **options)
    tokenizer = load(path, SpecialIds(pad=3, unk=0, bos=1, eos=2), tags=("<2de>",), add_eos=True)
    texts = [*TEXTS, "  ﬁve  Ω cats", FORGED, ""]
    assert tokenizer.encode(texts) == [[*ids, 2] for ids in processor.encode(texts)]
    assert tokenizer.encode(["a"], "<2de>") == [[processor.piece_to_id("<2de>"), *processor.encode("a"), 2]]
    assert tokenizer.decode(tokenizer.encode(TEXTS, "<2de>")) == TEXTS
    assert tokenizer.decode(tokenizer.encode(["the Ω cat"])) == ["the Ω cat" if bytes_too else "the <unk> cat"]
    assert tokenizer.vocab_size == len(processor)
    drawn = tokenizer.sample_encode([*TEXTS, "the Ω cat"], seed=0, strength=0.3)
    assert drawn != tokenizer.encode([*TEXTS, "the Ω cat"])
    assert tokenizer.decode(drawn) == tokenizer.decode(tokenizer.encode([*TEXTS, "the Ω cat"]))


def test_a_sentencepiece_model_without_padding_has_it_after_its_end(tmp_path: Path) -> None:
    path, processor = sentencepiece_file(tmp_path / "spm.model")
    size = len(processor)
    with pytest.raises(
        ValueError,
        match=rf"spm.model: expected the special tokens <pad> .*set pad_id={size} to have them after its end",
    ):
        load(path, SPECIALS)
    tokenizer = load(path, SpecialIds(pad=size, unk=0, bos=1, eos=2))
    assert (tokenizer.pad_id, tokenizer.vocab_size) == (size, size + 1)
    assert tokenizer.decode([[*tokenizer.encode(["the cat"])[0], 2, size, size]]) == ["the cat"]
    assert load(path, SpecialIds(pad=0, unk=0, bos=1, eos=2)).pad_id == 0
