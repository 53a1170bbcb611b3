"""Tokenizers of transformers given as objects: ids and text are theirs, and special tokens have their roles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tokenizers
import transformers
from test_text_families import TEXTS
from text_families import FAMILIES, SOURCES, TARGETS
from tokenizers import models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from jax_transformer.config.data import CorpusConfig, DataConfig
from jax_transformer.data.given_tokenizers import take_tokenizers
from jax_transformer.data.tokenizers.objects import as_tokenizer, given_tokenizer

pytestmark = [
    pytest.mark.usefixtures("quick_compilation"),
    pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses"),
]
WITH_LANGUAGES = {"mbart": ("en_XX", "de_DE"), "nllb": ("eng_Latn", "deu_Latn"), "plbart": ("__python__", "__en_XX__")}


def made(name: str, folder: Path) -> Any:
    """The object, of a family's class."""
    family, directory = FAMILIES[name], folder / name
    directory.mkdir()
    given = family.tokenizer(directory)
    if given is None:
        family.config(**{} if name == "fsmt" else {"vocab_size": 4}, **family.ids).save_pretrained(directory)
        given = transformers.AutoTokenizer.from_pretrained(directory)
    given.clean_up_tokenization_spaces = False  # PLBart's class does it whatever a call says
    return given


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "fsmt"])
def test_ids_and_text_are_the_objects(name: str, tmp_path: Path) -> None:
    theirs = made(name, tmp_path)
    source, tag = given_tokenizer(theirs, "source")
    target = as_tokenizer(theirs, side="target")
    for text in TEXTS:
        assert source.encode([text], tag) == [theirs(text).input_ids], repr(text)
        ids = theirs(text_target=text, add_special_tokens=False).input_ids
        assert target.encode([text]) == [ids], repr(text)
        if target.unk_id not in ids:
            said = theirs.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
            assert target.decode([ids]) == [said], repr(text)
    assert (target.pad_id, target.eos_id) == (theirs.pad_token_id, theirs.eos_token_id)
    assert target.vocab_size == 1 + max(theirs.get_vocab().values())


def test_an_object_that_encodes_targets_as_sources_is_refused(tmp_path: Path) -> None:
    theirs = made("fsmt", tmp_path)
    as_tokenizer(theirs)
    with pytest.raises(ValueError, match="target_tokenizer: expected a tokenizer that can be stored"):
        as_tokenizer(theirs, side="target")


@pytest.mark.parametrize("name", WITH_LANGUAGES)
def test_the_objects_languages_are_tags_of_corpora_without_any(name: str, tmp_path: Path) -> None:
    theirs = made(name, tmp_path)
    more = (
        CorpusConfig(train=("c", "d")),
        CorpusConfig(train=("e", "f"), source_tag="fra_Latn", target_tag="fra_Latn"),
    )
    config, pair = take_tokenizers(DataConfig(train=("a", "b"), more=more), theirs, theirs)
    found = [(corpus.source_tag, corpus.target_tag) for corpus in config.corpora]
    assert found == [WITH_LANGUAGES[name], WITH_LANGUAGES[name], ("fra_Latn", "fra_Latn")]
    assert pair is not None
    text = SOURCES[0]
    assert pair.source.encode([text], config.source_tag) == [theirs(text).input_ids]


def fast(names: list[str], kind: str = "bpe", **roles: str) -> Any:
    """A tokenizer of no class of its own."""
    if kind == "bpe":
        model, trainer = models.BPE(unk_token=roles.get("unk_token")), trainers.BpeTrainer
    elif kind == "words":
        model, trainer = models.WordLevel(unk_token=roles.get("unk_token")), trainers.WordLevelTrainer
    else:
        model, trainer = models.Unigram(), trainers.UnigramTrainer
    pipeline = tokenizers.Tokenizer(model)
    pipeline.pre_tokenizer = pre_tokenizers.Metaspace()
    pipeline.decoder = tokenizers.decoders.Metaspace()
    unk = {"unk_token": roles["unk_token"]} if kind == "unigram" else {}
    options = {"special_tokens": names, "vocab_size": 900, "show_progress": False} | unk
    pipeline.train_from_iterator([*SOURCES, *TARGETS], trainer(**options))
    return PreTrainedTokenizerFast(tokenizer_object=pipeline, **roles)


UNUSUAL = {"pad_token": "<|fill|>", "unk_token": "<|odd|>", "bos_token": "<|go|>", "eos_token": "<|stop|>"}


@pytest.mark.parametrize("kind", ["bpe", "words", "unigram"])
def test_special_tokens_of_any_name_have_their_roles(kind: str) -> None:
    theirs = fast(["first", *UNUSUAL.values()], kind, **UNUSUAL)
    source, target = as_tokenizer(theirs), as_tokenizer(theirs, side="target")
    found = [target.pad_id, target.unk_id, target.bos_id, target.eos_id]
    assert found == [theirs.pad_token_id, theirs.unk_token_id, theirs.bos_token_id, theirs.eos_token_id]
    for text in [*SOURCES[:5], "漢字"]:
        assert source.encode([text]) == [theirs(text).input_ids]
    ids = theirs(SOURCES[0]).input_ids
    assert target.decode([[*found[2:3], *ids, *found[3:]]]) == [theirs.decode(ids, skip_special_tokens=True)]


def test_a_role_prevails_over_a_common_name() -> None:
    """A vocabulary may also have the common name of another program."""
    names = {f"{role}_token": f"[{role.upper()}]" for role in ("pad", "unk", "bos", "eos")}
    theirs = fast([*names.values(), "<s>"], **names)
    assert as_tokenizer(theirs, side="target").bos_id == theirs.bos_token_id != theirs.convert_tokens_to_ids("<s>")


def test_cls_and_sep_begin_and_end() -> None:
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    theirs = fast([*names.values()], "words", **names)
    target = as_tokenizer(theirs, side="target")
    assert (target.bos_id, target.eos_id) == (theirs.cls_token_id, theirs.sep_token_id)


@pytest.mark.parametrize(
    ("roles", "message"),
    [
        ({"eos_token": "</s>"}, 'expected a tokenizer with a pad_token; .*add_special_tokens\\({"pad_token": "<pad>"}'),
        ({"pad_token": "<pad>"}, "expected a tokenizer with a eos_token; received one without"),
        ({"pad_token": "</s>", "eos_token": "</s>"}, "expected a pad_token of its own, .* received '</s>', which also"),
        ({"pad_token": "[P]", "eos_token": "</s>"}, "expected one pad token; received '\\[P\\]' and '<pad>'"),
    ],
)
def test_a_missing_special_token_is_named(roles: dict[str, str], message: str) -> None:
    theirs = fast(["<pad>", "<unk>", "<s>", "</s>", "[P]"], unk_token="<unk>", **roles)
    with pytest.raises(ValueError, match=f"target_tokenizer: {message}"):
        as_tokenizer(theirs, side="target")


def test_one_that_cannot_be_stored_is_refused() -> None:
    class Shouting(PreTrainedTokenizerFast):
        """Encodes otherwise than its pipeline does."""

        def __call__(self, text: Any = None, text_target: Any = None, **options: Any) -> Any:
            return super().__call__((text or text_target or "").upper(), **options)

    usual = fast(["<pad>", "<unk>", "</s>"], unk_token="<unk>", pad_token="<pad>", eos_token="</s>")
    theirs = Shouting(tokenizer_object=usual.backend_tokenizer, unk_token="<unk>", pad_token="<pad>", eos_token="</s>")
    with pytest.raises(ValueError, match=r"source_tokenizer: .* that can be stored; received one that encodes 'a' as"):
        as_tokenizer(theirs)


def test_cleaning_up_is_said_to_be_left_out() -> None:
    theirs = fast(["<pad>", "<unk>", "</s>"], unk_token="<unk>", pad_token="<pad>", eos_token="</s>")
    theirs.clean_up_tokenization_spaces = True
    with pytest.warns(UserWarning, match="clean_up_tokenization_spaces isn't done here"):
        as_tokenizer(theirs, side="target")
