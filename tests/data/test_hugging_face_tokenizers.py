"""What the tokenizer files of transformers' models are taken for, and what is refused. (Against transformers itself:
parity_tests.)"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping
from typing import Any

import pytest
import sentencepiece
from tokenizers import Tokenizer as Pipeline
from tokenizers import models, pre_tokenizers, processors

from jax_transformer.data.tokenizers import SpecialIds, Tokenizer, train_tokenizer
from jax_transformer.data.tokenizers.hugging_face import cleans_up, read_tokenizers
from jax_transformer.data.tokenizers.piece_lists import PieceListBackend
from jax_transformer.data.tokenizers.sentencepiece_model import SentencePieceBackend, pieces_of

TEXTS = ["the cat saw a dog", "a dog saw the cat", "dogs", "the the"] * 5


def trained(**options: Any) -> bytes:
    model = io.BytesIO()
    usual = {"vocab_size": 24, "hard_vocab_limit": False, "minloglevel": 2}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(TEXTS), model_writer=model, **usual | options)
    return model.getvalue()


MODEL = trained()
PIECES = [piece.text for piece in pieces_of(MODEL)[3:]]
LIST = {piece: index for index, piece in enumerate(["</s>", "<unk>", *PIECES, ">>deu<<", "<pad>"])}


def marian(ids: Mapping[str, int] = LIST, **settings: Any) -> dict[str, bytes]:
    return {
        "source.spm": MODEL, "target.spm": MODEL, "vocab.json": json.dumps(ids).encode(),
        "tokenizer_config.json": json.dumps(settings).encode(),
    }  # fmt: skip


def pipeline(template: str = "$A </s>", names: tuple[str, ...] = ("<pad>", "</s>", "<unk>")) -> dict[str, bytes]:
    made = Pipeline(models.WordLevel({name: i for i, name in enumerate([*names, "the", "cat"])}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens([*names, "<mask>"])
    special = [(name, made.token_to_id(name)) for name in names]
    made.post_processor = processors.TemplateProcessing(single=template, special_tokens=special)
    made.enable_padding(length=8)
    return {"tokenizer.json": made.to_str().encode()}


def read(files: Mapping[str, bytes], kind: str, rows: int = 1000, **config: Any) -> tuple[Tokenizer, Tokenizer]:
    source, target = read_tokenizers(files, {"model_type": kind, "vocab_size": rows, **config})
    for tokenizer in (source, target):
        again = Tokenizer.from_json(tokenizer.to_json())
        assert again.encode([*TEXTS, ">>deu<< the"]) == tokenizer.encode([*TEXTS, ">>deu<< the"])
        assert again.to_json() == tokenizer.to_json()
    return source, target


def test_pieces_have_the_ids_of_the_list() -> None:
    source, target = read(marian(), "marian")
    expected = [LIST["▁the"], LIST["▁cat"]]
    assert source.encode(["the  cat"]) == [[*expected, LIST["</s>"]]]
    assert (
        source.encode([">>deu<< the cat"])
        == source.encode(["the cat"], ">>deu<<")
        == [[LIST[">>deu<<"], *expected, LIST["</s>"]]]
    )
    assert target.encode(["the cat"]) == [expected]
    assert target.decode([[LIST[">>deu<<"], *expected, LIST["<unk>"], LIST["<pad>"]]]) == ["the cat<unk>"]
    assert target.encode([]) == []
    assert source.tokens([LIST[">>deu<<"], expected[0]]) == [">>deu<<", "▁the"]
    with pytest.raises(ValueError, match="subword sampling: expected a bpe or unigram tokenizer"):
        source.sample_encode(["the"], seed=0, strength=0.5)


def test_ids_without_a_piece_are_unknown() -> None:
    gap = {piece: index + (piece == "<pad>") for piece, index in LIST.items()}
    source, _ = read(marian(gap), "marian")
    assert source.vocab_size == len(LIST) + 1
    assert source.tokens([len(LIST) - 1]) == [f"<unused_{len(LIST) - 1}>"]
    assert source.decode([[len(LIST) - 1]]) == ["<unk>"]
    assert source.encode([f"<unused_{len(LIST) - 1}>"])[0].count(len(LIST) - 1) == 0


def test_a_piece_outside_the_list_cannot_forge_a_special_token() -> None:
    """sentencepiece gives a run of characters that it doesn't know as one piece."""
    ids = {"</s>": 0, "<unk>": 1, "@@": 2, "<pad>": 3}
    specials = {"</s>": 0, "<unk>": 1, "@@": 2, "<pad>": 3}
    backend = PieceListBackend(MODEL, [*ids], specials, takes_codes=False)
    assert backend.encode(["@@"]) == [[1, 1]]
    assert PieceListBackend(MODEL, [*ids], {"<unk>": 1}, takes_codes=False).encode(["@@"]) == [[1, 2]]


def test_a_pipeline_is_used_as_it_is() -> None:
    source, target = read(pipeline(), "umt5")
    assert source.encode(["the cat dog </s>"]) == [[3, 4, 2, 2, 1]]
    assert target.encode(["the cat"]) == [[3, 4]]
    assert source.tags == ()
    assert source.decode([[3, 5, 4, 1]]) == ["the cat"]
    both, _ = read(pipeline("<s> $A </s>", ("<pad>", "</s>", "<unk>", "<s>")), "umt5")
    assert both.encode(["the"]) == [[3, 4, 1]]
    named, _ = read(pipeline(), "t5", tokenizer_class="PreTrainedTokenizerFast")
    assert named.encode(["the"]) == [[3, 1]]


def test_a_mask_without_a_row_is_left_out() -> None:
    assert [read(pipeline(), "umt5", rows)[0].vocab_size for rows in (6, 5, 4)] == [6, 5, 5]


def test_settings_of_older_files() -> None:
    files = marian() | {"special_tokens_map.json": b'{"eos_token": {"content": "<end>"}}'}
    with pytest.raises(ValueError, match=r"eos_token must be </s>; received <end>"):
        read(files, "marian")
    read(files | {"tokenizer_config.json": b'{"added_tokens_decoder": {}}'}, "marian")


@pytest.mark.parametrize(
    ("files", "kind", "message"),
    [
        ({"tokenizer.json": b"{}"}, "marian", "expected vocab.json; received tokenizer.json"),
        ({"tokenizer.json": b"{}"}, "m2m_100", "expected sentencepiece.bpe.model; received tokenizer.json"),
        ({"vocab.json": b"{}"}, "bart", "expected tokenizer.json, or vocab.json and merges.txt; received vocab.json"),
        ({"vocab.json": b"{}"}, "t5", "expected tokenizer.json or spiece.model; received vocab.json"),
        ({"spiece.model": b"nothing"}, "t5", "expected a sentencepiece model; received 7 bytes of something else"),
        (
            {"tokenizer.json": b"{}"},
            "t5",
            "tokenizer.json: expected the files of a T5Tokenizer; received other content (KeyError('model'))",
        ),
        ({"tokenizer.json": b"{"}, "t5", "tokenizer.json: expected JSON ("),
        ({"tokenizer.json": b"[]"}, "umt5", "tokenizer.json: expected a JSON object; received list"),
        (
            pipeline("</s> $A"),
            "umt5",
            "expected a post_processor that adds <bos>, <eos> or both; received one that adds </s>",
        ),
        (marian(tokenizer_class="CTRLTokenizer"), "marian", "tokenizer_class must be one of MarianTokenizer, "),
        (marian(sp_model_kwargs={"nbest_size": 3}), "marian", 'sp_model_kwargs must be {}; received {"nbest_size": 3}'),
        (marian(eos_token="<end>"), "marian", "tokenizer_config.json: eos_token must be </s>; received <end>"),
        (
            marian({"</s>": 0, "<pad>": 1}),
            "marian",
            "expected the special tokens <unk>, </s>, <pad>; received a list without <unk>",
        ),
        (
            marian(LIST | {"x": 0}),
            "marian",
            f"expected an id of its own for each piece; received {len(LIST)} for {len(LIST) + 1}",
        ),
        (marian() | {"added_tokens.json": b'{"new": 99}'}, "marian", "expected tokens of vocab.json; received new"),
        (
            marian(added_tokens_decoder={"0": {"content": "<pad>"}}),
            "marian",
            "expected tokens of vocab.json; received <pad>",
        ),
        (marian(separate_vocabs=True), "marian", "expected target_vocab.json; received source.spm, "),
        (
            marian(tokenizer_class="M2M100Tokenizer", language_codes="wmt20"),
            "m2m_100",
            "language_codes must be one of m2m100, wmt21; received wmt20",
        ),
        (
            pipeline() | {"tokenizer_config.json": b'{"tokenizer_class": "NllbTokenizer", "legacy_behaviour": true}'},
            "m2m_100",
            "legacy_behaviour must be false; received true",
        ),
    ],
)
def test_unsupported_settings_are_refused(files: dict[str, bytes], kind: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        read(files, kind)


def test_cleaning_up_is_detected() -> None:
    assert cleans_up(marian(clean_up_tokenization_spaces=True))
    assert not cleans_up(marian())
    assert not cleans_up(pipeline())


# --- rows without tokens


@pytest.mark.parametrize("kind", ["words", "bpe", "spacy"])
def test_a_vocabulary_can_be_filled(kind: Any) -> None:
    """Nothing changes but its size: what has no token is decoded as unknown, and no text gives it."""
    if kind == "spacy":
        pytest.importorskip("spacy")
    specials = SpecialIds(pad=0, unk=1, bos=2, eos=3)
    size = {"vocab_size": 24} if kind == "bpe" else {}
    plain = train_tokenizer(TEXTS, kind=kind, specials=specials, tags=["<2de>"], add_eos=True, language="en", **size)  # type: ignore[arg-type]
    check_filled(plain)


def test_a_sentencepiece_model_can_be_filled() -> None:
    check_filled(read(marian(), "marian")[0])
    check_filled(Tokenizer(SentencePieceBackend(MODEL, {}, "none", False), add_bos=False, add_eos=True))


def check_filled(plain: Tokenizer) -> None:
    first = plain.vocab_size
    filled = plain.filled(first + 3)
    for tokenizer in (filled, Tokenizer.from_json(filled.to_json())):
        assert tokenizer.vocab_size == first + 3
        assert tokenizer.tokens(range(first, first + 3)) == [f"<unused_{index}>" for index in range(first, first + 3)]
        forged = [f"the <unused_{first}> cat", *TEXTS]
        assert tokenizer.encode(forged) == plain.encode(forged)
        assert tokenizer.tags == plain.tags
        known = plain.encode(["the cat"])[0]
        ids = [first, *known, first + 2, known[0]]
        assert tokenizer.decode([ids]) == plain.decode([[plain.unk_id if index >= first else index for index in ids]])
        assert "<unk>" in tokenizer.decode([[first]])[0]
    assert plain.filled(first) is plain
    with pytest.raises(
        ValueError, match=f"expected at most {first - 1} tokens, the rows of the embedding; received {first}"
    ):
        plain.filled(first - 1)
