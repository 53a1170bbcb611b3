"""IndicTrans2's tokenizer files: ids, tags of both languages before sources, and texts of the target's script."""

from __future__ import annotations

import asyncio
import json
from functools import cache
from pathlib import Path

import httpx
import pytest
import sentencepiece
from indic_texts import TEXTS
from indictrans_program import SIZES, make_directory
from text_families import train

from jax_transformer.cli import main
from jax_transformer.data.tokenizers.indic_rules import finish, prepare
from jax_transformer.decoding.prepared import prepare as prepare_model
from jax_transformer.decoding.target_tags import with_target_tag
from jax_transformer.decoding.translation import translate_each
from jax_transformer.serving.app import make_app
from jax_transformer.serving.engine import Engine
from jax_transformer.serving.limits import Limits
from jax_transformer.serving.service import Service
from jax_transformer.storage.model_directory import Model, load_model

pytest.importorskip("sacremoses")
pytestmark = pytest.mark.usefixtures("quick_compilation")

TAGS = ["eng_Latn", "hin_Deva", "tam_Taml", "urd_Arab"]
SENTENCES = ["Human beings are “born” free: 1.", "The dignity (1) of human rights", "free and equal"]
FILES = ("dict.SRC.json", "dict.TGT.json", "model.SRC", "model.TGT", "tokenizer_config.json")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("indictrans_text")


@cache
def ported(folder: Path) -> tuple[Path, Model]:
    """Returns a directory as of the Hub, and what `port` made of it. Its lists lack some pieces of their models."""
    path = make_directory(0, folder)
    indic = [prepare(text, language) for language, text in TEXTS.items() if language not in ("eng_Latn", "sat_Olck")]
    english = [prepare(text, "eng_Latn") for text in SENTENCES]
    for name, texts, tags, rows in (
        ("SRC", english, TAGS, SIZES[0]["encoder_vocab_size"]),
        ("TGT", indic, [], SIZES[0]["decoder_vocab_size"]),
    ):
        model = train(texts)
        (path / f"model.{name}").write_bytes(model)
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        pieces = [processor.id_to_piece(i) for i in range(3, len(processor)) if i % 5]
        entries = ["<s>", "<pad>", "</s>", "<unk>", *tags, *pieces][: rows - 2]
        (path / f"dict.{name}.json").write_text(json.dumps({entry: index for index, entry in enumerate(entries)}))
    settings = {
        "tokenizer_class": "IndicTransTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_indictrans.IndicTransTokenizer", None]},
        "unk_token": "<unk>",
    }
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    assert main(["port", str(path), str(folder / "model")]) == 0
    return path, load_model(folder / "model")


def ids_of(path: Path, name: str, text: str) -> list[int]:
    """Returns the ids of a text's pieces, as its own tokenizer finds them."""
    listed = json.loads((path / f"dict.{name}.json").read_text())
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path / f"model.{name}"))
    return [listed.get(piece, listed["<unk>"]) for piece in processor.encode(text, out_type=str)]


def test_both_tags_precede_a_source(folder: Path) -> None:
    path, model = ported(folder)
    variant, forced = with_target_tag(model, "tam_Taml")
    assert variant.source_tokenizer is not None
    assert model.source_tokenizer is not None
    assert forced is None
    for text in SENTENCES:
        prepared = prepare(text, "eng_Latn")
        expected = [4, 6, *ids_of(path, "SRC", prepared), 2]
        assert 3 in expected or text != SENTENCES[0]
        assert variant.source_tokenizer.encode([text], "eng_Latn") == [expected]
        assert model.source_tokenizer.encode([f"eng_Latn tam_Taml {prepared}"]) == [expected]
    assert model.source_tokenizer.tags == tuple(TAGS)


def test_targets_are_read_and_written_in_their_script(folder: Path) -> None:
    path, model = ported(folder)
    target = with_target_tag(model, "tam_Taml")[0].target_tokenizer
    assert target is not None
    assert model.target_tokenizer is not None
    text = TEXTS["tam_Taml"]
    (ids,) = target.encode([text])
    assert ids == ids_of(path, "TGT", prepare(text, "tam_Taml"))
    (plain,) = model.target_tokenizer.decode([ids])
    assert target.decode([ids]) == [finish(plain, "tam_Taml")]
    assert target.decode([ids]) != [plain]
    again = type(target).from_json(model.target_tokenizer.to_json()).in_language("tam_Taml")
    assert again.decode([ids]) == target.decode([ids])


def test_files_come_back(folder: Path, tmp_path: Path) -> None:
    path, _ = ported(folder)
    assert main(["port", str(folder / "model"), str(tmp_path / "back")]) == 0
    assert all((tmp_path / "back" / name).read_bytes() == (path / name).read_bytes() for name in FILES)


def test_the_command_and_the_server_translate_between_tags(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    _, model = ported(folder)
    (tmp_path / "source.txt").write_text("\n".join(SENTENCES) + "\n")
    options = ["--source-tag", "eng_Latn", "--target-tag", "tam_Taml", "--max-new-tokens", "8"]
    capfd.readouterr()
    assert main(["translate", str(folder / "model"), "--input", str(tmp_path / "source.txt"), *options]) == 0
    received = capfd.readouterr().out.splitlines()
    variant, _ = with_target_tag(model, "tam_Taml")
    found = translate_each(variant, SENTENCES, source_tag="eng_Latn", max_new_tokens=8)
    assert model.target_tokenizer is not None
    plain = model.target_tokenizer.decode([each.parts[0].hypotheses[0].ids for each in found])
    assert received == [finish(text, "tam_Taml").rstrip() for text in plain]
    assert any("\u0b80" <= character <= "\u0bff" for character in received[0])

    service = Service(Engine(prepare_model(model), Limits(), rows=8, batch_tokens=512), max_wait_ms=0)
    service.start()

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(make_app(service))
        async with httpx.AsyncClient(transport=transport, base_url="http://test", timeout=60) as client:
            while service.state == "warming up":
                await asyncio.sleep(0.01)
            tags = {"source_tag": "eng_Latn", "target_tag": "tam_Taml"}
            return await client.post("/translate", json={"texts": SENTENCES, "max_new_tokens": 8, **tags})

    answers = asyncio.run(ask()).json()["translations"]
    assert service.stop(30)
    assert [answer["text"].rstrip() for answer in answers] == received


def test_other_tags_are_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ported(folder)
    for tag, message in (("tam_Tamil", "(nearest: tam_Taml)"), ("deu_Latn", "expected one of eng_Latn, hin_Deva")):
        options = ["--source-tag", "eng_Latn", "--target-tag", tag]
        assert main(["translate", str(folder / "model"), "--input", "-", *options]) == 2
        assert message in capsys.readouterr().err
