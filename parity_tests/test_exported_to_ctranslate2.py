"""Ported models of transformers' families in CTranslate2: the tokens of their own tokenizers go in, ours come out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from text_families import SOURCES, make_case

from jax_transformer.cli import main
from jax_transformer.config.decoding import NO_ID
from jax_transformer.decoding.generation import generate
from jax_transformer.storage.model_directory import load_model

ctranslate2 = pytest.importorskip("ctranslate2")
pytestmark = [
    pytest.mark.usefixtures("quick_compilation"),
    pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses"),
]
FAMILIES = ("marian", "bart", "nllb", "t5", "fsmt")
REPEATING = {"no_repeat_ngram_size": 0}
"""Ours counts the start token among the repeated ones, as transformers does, and CTranslate2 doesn't."""
TEXTS = [*SOURCES[:6], "a  word ☃ that no one knows"]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_decodes_the_same(name: str, tmp_path: Path) -> None:
    """Under the model's own settings: forbidden words, least and most length, the target's language."""
    case = make_case(name, tmp_path)
    assert main(["port", str(case.directory), str(tmp_path / "model")]) == 0
    assert main(["export", str(tmp_path / "model"), str(tmp_path / "there"), "--to", "ctranslate2"]) == 0
    model = load_model(tmp_path / "model")
    assert model.target_tokenizer is not None
    ids = [case.tokenizer(text).input_ids for text in TEXTS]
    tokens = [vocabulary(tmp_path / "there")[index] for index in range(model.config.source_vocab_size)]
    if name not in ("marian_two", "fsmt"):  # whose tokenizers name ids by the target's vocabulary
        assert tokens[: len(case.tokenizer)] == case.tokenizer.convert_ids_to_tokens(range(len(case.tokenizer)))
    decoding = json.loads((tmp_path / "there" / "decoding.json").read_text())
    assert decoding["translate_batch"]["max_decoding_length"] == model.generation.max_new_tokens == 24
    tag = case.family.target_tag
    prefix = [*decoding["target_prefix"], *([tag] if tag else [])]
    forced = {"forced_bos_id": model.target_tokenizer.tag_ids[tag]} if tag else {}  # counted, as theirs is
    translator = ctranslate2.Translator(str(tmp_path / "there"), compute_type="float32", intra_threads=1)
    for beams in (1, 4):
        early: dict[str, Any] = {"early_stopping": True} if beams > 1 else {}
        theirs = translator.translate_batch(
            [[tokens[index] for index in row] for row in ids],
            [prefix] * len(ids) if prefix else None,
            **decoding["translate_batch"] | REPEATING | {"beam_size": beams},
        )
        options = {"renormalize": True, "forced_eos_id": NO_ID, "no_repeat_ngram": 0}
        found = generate(model, ids, beam_size=beams, **options, **forced, **early)
        for row, result in enumerate(theirs):
            ours = found.sequences[row, 0].tolist()
            ours = ours[: ours.index(model.generation.eos_id)] if model.generation.eos_id in ours else ours
            assert [index for index in ours if index != model.config.target_pad_id] == [
                model.target_tokenizer.tokens(range(model.config.target_vocab_size)).index(token)
                for token in result.hypotheses[0]
            ]


def vocabulary(folder: Path) -> list[str]:
    """Returns the source's tokens."""
    names = [f"{side}_vocabulary.json" for side in ("shared", "source")]
    return json.loads(next(folder / name for name in names if (folder / name).exists()).read_text())
