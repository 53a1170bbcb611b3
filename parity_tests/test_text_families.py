"""Tokenizers of transformers' models, taken over by `port`: its ids, its text, and its translations, from the directory
alone.

Where the two differ on purpose: a special token's name in a text is text here, and so is <unk> in what is decoded.
"""

from __future__ import annotations

import copy
import random
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from text_families import FAMILIES, PAIRS, SOURCES, TARGETS, TextCase, make_case
from tokenizers import Tokenizer as PiecesTokenizer
from tokenizers import models, pre_tokenizers, trainers
from transformers import BertTokenizer, FSMTTokenizer

from jax_transformer.cli import main
from jax_transformer.comparison.gates.tolerances import HYPOTHESIS_SCORE
from jax_transformer.data.tokenizers import Tokenizer
from jax_transformer.data.tokenizers.hugging_face import read_tokenizers
from jax_transformer.decoding.pairs import score_pairs
from jax_transformer.decoding.prepared import prepare
from jax_transformer.storage.model_directory import Model, load_model

pytestmark = [
    pytest.mark.usefixtures("quick_compilation"),
    pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses"),
]

TEXTS = [
    *SOURCES[:20],
    *TARGETS[:20],
    "",
    " ",
    "  ",
    "Hello  world",
    " the dog sees",
    "trailing  ",
    " a\tb\nc",
    "\u3000wide\u00a0space",
    "`x`",
    "😀 unknown 漢字 👩‍👩‍👧",
    "ＦＵＬＬ width ﬁ ①",
    "naïve café — “quoted”…",
    "e\u0301\u200b",
    "don't   do ' it 's , ok ?",
    "a▁b ▁ c",
    "<extra",
    "> >",
    "Hund Hunde Hundehund",
    "x" * 200,
    "\x00\x7f",
    "3.14 1,000",
    "\u202bעברית\u202c हिन्दी ไทย",
]
NAMES = "the </s> dog <pad><unk><s> <mask> <extra_id_0> __de__ deu_Latn >>deu<< __end__ de_DE"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("text_families")


@cache
def ported(name: str, folder: Path) -> tuple[TextCase, Model]:
    """What transformers reads in a directory, and what `port` made of it."""
    case = make_case(name, folder)
    assert main(["port", str(case.directory), str(folder / f"{name}_model")]) == 0
    return case, load_model(folder / f"{name}_model")


@pytest.fixture(params=FAMILIES)
def both(request: Any, folder: Path) -> tuple[TextCase, Model]:
    return ported(request.param, folder)


def tokenizers(model: Model) -> tuple[Tokenizer, Tokenizer]:
    assert model.source_tokenizer is not None
    assert model.target_tokenizer is not None
    return model.source_tokenizer, model.target_tokenizer


def theirs_of(case: TextCase, text: str) -> str:
    """As transformers wants it: Marian's codes are in the text."""
    return f"{case.family.source_tag} {text}" if case.family.source_tag.startswith(">>") else text


def targets_of(case: TextCase) -> Any:
    """The tokenizer of targets: FSMT's class encodes them as sources."""
    if case.directory.name != "fsmt":
        return case.tokenizer
    files = [case.directory / name for name in ("vocab-tgt.json", "vocab-src.json", "merges.txt")]
    return FSMTTokenizer(["de", "en"], *map(str, files))


@pytest.mark.parametrize("options", [{}, {"do_lower_case": False, "strip_accents": True}])
@pytest.mark.parametrize("file", ["tokenizer.json", "vocab.txt"])
def test_the_pieces_and_text_of_a_bert_equal_transformers(file: str, options: dict[str, Any], tmp_path: Path) -> None:
    """Of an encoder-decoder of two models, whose config.json has the vocabulary's size in each."""
    trained = PiecesTokenizer(models.WordPiece(unk_token="[UNK]"))
    trained.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trained.train_from_iterator([*SOURCES, *TARGETS], trainers.WordPieceTrainer(special_tokens=names, vocab_size=200))
    theirs = BertTokenizer(trained.get_vocab(), **options)
    theirs.save_pretrained(tmp_path)
    if file == "vocab.txt":
        entries = sorted(trained.get_vocab(), key=trained.get_vocab().__getitem__)
        (tmp_path / "tokenizer.json").unlink()
        (tmp_path / file).write_text("\n".join(entries) + "\n", encoding="utf-8")
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    sides = {side: {"vocab_size": len(theirs)} for side in ("encoder", "decoder")}
    source, target = read_tokenizers(files, {"model_type": "encoder-decoder"} | sides)
    for text in TEXTS:
        ids = theirs(text).input_ids
        assert source.encode([text]) == [ids], repr(text)
        assert target.encode([text]) == [ids[1:-1]], repr(text)
        known = [index for index in ids[1:-1] if index != theirs.unk_token_id]
        assert target.decode([known]) == [theirs.decode(known, clean_up_tokenization_spaces=False)], repr(text)
    sides["decoder"] = {"vocab_size": 7}
    with pytest.raises(ValueError, match=f"expected one vocabulary for both sides; received {len(theirs)} and 7 ids"):
        read_tokenizers(files, {"model_type": "encoder-decoder"} | sides)


def test_ids_equal_transformers(both: tuple[TextCase, Model]) -> None:
    case, model = both
    source, target = tokenizers(model)
    for text in TEXTS:
        assert source.encode([text], case.family.source_tag) == [case.tokenizer(theirs_of(case, text)).input_ids], repr(
            text
        )
    ends = {case.tokenizer.bos_token_id, case.tokenizer.eos_token_id, case.tokenizer.sep_token_id}
    around = {*ends, target.tag_ids.get(case.family.target_tag)}
    for text in TEXTS:
        ids = [index for index in targets_of(case)(text_target=text).input_ids if index not in around]
        assert target.encode([text]) == [ids], repr(text)


def test_text_is_that_of_transformers(both: tuple[TextCase, Model]) -> None:
    """Of any ids but unknown tokens, and but for what transformers doesn't take for a special token, such as a code of
    Marian's."""
    case, model = both
    _, target = tokenizers(model)
    codes = {index for tag, index in target.tag_ids.items() if tag.startswith(">>")}
    size = min(len(case.tokenizer), target.vocab_size)
    pieces = sorted({*range(size)} - codes - {target.unk_id})
    draws = random.Random(0)
    known = [[index for index in ids if index != target.unk_id] for ids in target.encode(TARGETS[:20])]
    for ids in [*known, *(draws.choices(pieces, k=12) for _ in range(50))]:
        assert target.decode([ids]) == [case.tokenizer.decode(ids, skip_special_tokens=True)]


def test_names_of_special_tokens_are_text(both: tuple[TextCase, Model]) -> None:
    case, model = both
    source, _ = tokenizers(model)
    ids = source.adding(bos=False, eos=False).encode([NAMES])[0]
    assert not {*ids} & {source.pad_id, source.bos_id, source.eos_id, *source.tag_ids.values()}
    assert {*case.tokenizer(NAMES).input_ids[1:-1]} & {*case.tokenizer.all_special_ids} - {source.unk_id}


def test_ids_without_a_token_are_shown(both: tuple[TextCase, Model]) -> None:
    case, model = both
    source, target = tokenizers(model)
    sizes = source.vocab_size, target.vocab_size
    assert sizes == (model.config.source_vocab_size, model.config.target_vocab_size)
    assert sizes[1] - len(case.tokenizer) == case.family.more_rows
    names = case.tokenizer.convert_ids_to_tokens(list(range(min(len(case.tokenizer), sizes[1]))))
    assert target.tokens(range(len(names))) == names
    ids = target.encode(["Hund"])[0]
    for beyond in range(len(case.tokenizer), target.vocab_size):
        assert target.decode([[*ids, beyond]]) == target.decode([[*ids, target.unk_id]])
        assert "<unk>" in target.decode([[beyond]])[0]
        assert beyond not in source.hidden_ids


@pytest.mark.parametrize(
    ("name", "tags"),
    [
        ("marian", (">>deu<<", ">>fra<<")),
        ("marian_two", ()),
        ("bart", ()),
        ("nllb", ("eng_Latn", "deu_Latn", "fra_Latn")),
        ("t5", ()),
        ("mt5", ()),
    ],
)
def test_languages_are_tags(name: str, tags: tuple[str, ...], folder: Path) -> None:
    for tokenizer in tokenizers(ported(name, folder)[1]):
        assert tokenizer.tags == tags


def test_languages_of_m2m_100_are_tags(folder: Path) -> None:
    case, model = ported("m2m_100", folder)
    source, _ = tokenizers(model)
    assert len(source.tags) == 100
    assert source.tag_ids == {tag: case.tokenizer.get_lang_id(tag.strip("_")) for tag in source.tags}


def test_the_text_may_contain_a_code(folder: Path) -> None:
    case, model = ported("marian", folder)
    source, _ = tokenizers(model)
    for text in (
        ">>deu<< the dog",
        ">>fra<<the dog",
        ">>xyz<< the dog",
        ">>deu<<",
        ">> the dog",
        " >>deu<< dog",
        ">>fra<< >>deu<< a",
        ">><<",
    ):
        assert source.encode([text]) == [case.tokenizer(text).input_ids], text
    assert source.encode([">>deu<< the dog"]) == source.encode(["the dog"], ">>deu<<")


OTHER_FILES = (
    "bart_in_two_files",
    "mbart_in_a_model",
    "mbart_50_in_a_model",
    "pegasus_in_spiece",
    "t5_in_spiece",
    "mvp",
)
"""Tokenizers of the same kinds as others here."""


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in OTHER_FILES])
def test_translations_equal_transformers(
    name: str, tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the command, by the directory that it ported; the sentences differ in length. It leaves out spaces at the
    end of a line."""
    case, _ = ported(name, folder)
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path))  # no folder at home
    sentences = [source for source, _ in sorted(PAIRS[:40], key=lambda pair: len(pair[0]))[::10]]
    (tmp_path / "source.txt").write_text("\n".join(sentences) + "\n")
    family = case.family
    options = ["--source-tag", family.source_tag] if family.source_tag else []
    options += ["--target-tag", family.target_tag] if family.target_tag else []
    capsys.readouterr()
    assert main(["translate", str(folder / f"{name}_model"), "--input", str(tmp_path / "source.txt"), *options]) == 0
    received = capsys.readouterr().out.splitlines()
    inputs = case.tokenizer([theirs_of(case, sentence) for sentence in sentences], padding=True, return_tensors="pt")
    _, target = tokenizers(load_model(folder / f"{name}_model"))
    is_start = name.startswith(("mbart", "plbart")) and "50" not in name
    assert target.tag_is_last == is_start
    place = "decoder_start_token_id" if is_start else "forced_bos_token_id"
    first = {place: case.tokenizer.convert_tokens_to_ids(family.target_tag)} if family.target_tag else {}
    with torch.no_grad():
        ids = case.model.generate(**inputs, **first)
    assert received == [text.rstrip() for text in case.tokenizer.batch_decode(ids, skip_special_tokens=True)]
    assert len({*received}) > 1
    assert all(len(text) > 5 for text in received)


@pytest.mark.parametrize("name", ["marian", "nllb", "mbart", "mbart_50"])
def test_scores_equal_transformers(name: str, folder: Path) -> None:
    """A tag counts as certain, since it is given rather than predicted."""
    case, model = ported(name, folder)
    family, tokenizer = case.family, case.tokenizer
    tokenizer.src_lang, tokenizer.tgt_lang = family.source_tag, family.target_tag
    theirs, found = copy.deepcopy(case.model).double(), []
    for source, target in PAIRS[:5]:
        inputs = tokenizer(theirs_of(case, source), text_target=target, return_tensors="pt")
        with torch.no_grad():
            log_probs = torch.log_softmax(theirs(**inputs).logits[0], dim=-1)
        labels = inputs["labels"][0]
        chosen = log_probs[torch.arange(len(labels)), labels]
        is_tag = labels == tokenizer.convert_tokens_to_ids(family.target_tag or "never")
        found.append(float(chosen[~is_tag].sum()))
    tags = {"source_tag": family.source_tag, "target_tag": family.target_tag}
    scores = [pair.log_prob for pair in score_pairs(model, PAIRS[:5], **tags)]
    np.testing.assert_allclose(scores, found, rtol=HYPOTHESIS_SCORE)
    if family.target_tag:
        assert scores != [
            pair.log_prob for pair in score_pairs(prepare(model), PAIRS[:5], **tags | {"target_tag": other_tag(model)})
        ]


def other_tag(model: Model) -> str:
    return tokenizers(model)[1].tags[0]


def test_the_files_come_back_as_they_were(both: tuple[TextCase, Model], tmp_path: Path, folder: Path) -> None:
    case, _ = both
    assert main(["port", str(folder / f"{case.directory.name}_model"), str(tmp_path / "back")]) == 0
    files = {path.name: path.read_bytes() for path in case.directory.iterdir() if path.name != "config.json"}
    assert {name: (tmp_path / "back" / name).read_bytes() for name in files} == files
