"""Tokens added to ported models: rows as transformers draws them, and a way back that transformers loads."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from text_families import SOURCES, TextCase, make_case

from jax_transformer.cli import main
from jax_transformer.decoding.translation import translate
from jax_transformer.model.functional import apply
from jax_transformer.porting import export_checkpoint
from jax_transformer.runtime.trees import flatten
from jax_transformer.storage.added_tokens import add_tokens, new_rows
from jax_transformer.storage.model_directory import Model, load_model

pytestmark = pytest.mark.usefixtures("quick_compilation")

TAGS = {"marian": ">>gsw<<", "marian_two": ">>gsw<<", "m2m_100": "__gsw__"}
FAMILIES = ("nllb", "mbart", "mbart_50", "m2m_100", "marian", "marian_two", "bart", "t5", "umt5")
ONLY_TAGS = ("marian", "marian_two", "m2m_100")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("added")


@cache
def ported(name: str, folder: Path) -> tuple[TextCase, Model]:
    case = make_case(name, folder)
    assert main(["port", str(case.directory), str(folder / f"{name}_model")]) == 0
    return case, load_model(folder / f"{name}_model")


@pytest.mark.parametrize("name", FAMILIES)
def test_transformers_loads_what_is_written_back(name: str, folder: Path, tmp_path: Path) -> None:
    case, model = ported(name, folder)
    tag, tokens = TAGS.get(name, "gsw_Latn"), [] if name in ONLY_TAGS else ["Quokka", "zzz zz"]
    count = case.family.more_rows + 5
    tags = [tag, *(tag.replace("gsw", f"aa{number}") for number in range(count))]
    larger = add_tokens(model, tokens, tags=tags)
    export_checkpoint(larger, tmp_path / "back")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "back")
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "back").eval()
    assert larger.source_tokenizer is not None
    assert larger.target_tokenizer is not None
    assert len(tokenizer) == larger.config.source_vocab_size == theirs.get_input_embeddings().weight.shape[0]
    for each in tags:
        assert larger.source_tokenizer.tag_ids[each] == tokenizer.convert_tokens_to_ids(each)
    for text in [*SOURCES[:5], "the Quokka saw zzz zz."]:
        assert larger.source_tokenizer.encode([text], case.family.source_tag) == [
            tokenizer(f"{case.family.source_tag} {text}" if name == "marian" else text).input_ids
        ]
        assert larger.source_tokenizer.encode([text]) == model.source_tokenizer.encode([text]) or "Quokka" in text  # type: ignore[union-attr]
    size = larger.config.source_vocab_size
    ids = [index for index in range(size) if index != larger.config.source_pad_id]
    source, target = np.asarray(ids)[None, -20:].repeat(2, 0), np.random.default_rng(0).choice(ids, (2, 7))
    with torch.no_grad():
        expected = theirs(input_ids=torch.tensor(source), decoder_input_ids=torch.tensor(target)).logits.numpy()
    received = np.asarray(apply(larger.config, larger.params, source, target))
    np.testing.assert_allclose(received, expected, rtol=2e-5, atol=2e-5 * np.abs(expected).max())


@pytest.mark.parametrize("name", FAMILIES)
def test_old_rows_stay(name: str, folder: Path) -> None:
    case, model = ported(name, folder)
    tag = TAGS.get(name, "gsw_Latn")
    tags = [tag, *(tag.replace("gsw", f"aa{number}") for number in range(case.family.more_rows + 5))]
    larger = add_tokens(model, tags=tags)
    before, after = flatten(model.params), flatten(larger.params)
    grown = [path for path in before if before[path].shape != after[path].shape]
    assert grown
    for path, leaf in before.items():
        part = tuple(slice(size) for size in leaf.shape)
        np.testing.assert_array_equal(np.asarray(after[path])[part], leaf)
    again = flatten(add_tokens(model, tags=tags).params)
    other = flatten(add_tokens(model, tags=tags, seed=1).params)
    for path in grown:
        np.testing.assert_array_equal(again[path], after[path])
        assert path.endswith("head_bias") or not np.array_equal(other[path], after[path])


def resized(table: np.ndarray, count: int) -> np.ndarray:
    """The rows that transformers draws."""
    old = torch.nn.Embedding.from_pretrained(torch.tensor(table))
    new = torch.nn.Embedding(len(table) + count, table.shape[1])
    torch.manual_seed(0)
    transformers.PreTrainedModel._init_added_embeddings_weights_with_mean(None, old, new, len(table), count)  # type: ignore[arg-type]
    return new.weight.detach().numpy()[-count:]


def test_rows_have_the_distribution_of_transformers() -> None:
    rng = np.random.default_rng(0)
    table = (rng.standard_normal((60, 5)) @ rng.standard_normal((5, 5)) * 1e-3).astype(np.float32)
    count = 20_000
    ours, theirs = new_rows(table, count, np.random.default_rng(1)), resized(table, count)
    scale = np.sqrt(1e-9)
    for found in (ours, theirs):
        noise = (found - table.mean(0)) / scale
        covariance = np.cov(table.T, ddof=0)
        spread = np.sqrt(np.outer(*[np.diag(covariance)] * 2))
        assert np.abs(noise.mean(0) / np.sqrt(np.diag(covariance))).max() < 5 / np.sqrt(count)
        assert (np.abs(np.cov(noise.T) - covariance) / spread).max() < 5 * np.sqrt(2 / count)


def test_rows_of_a_small_vocabulary_are_the_mean_as_in_transformers() -> None:
    table = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)
    np.testing.assert_allclose(new_rows(table, 2, np.random.default_rng(1)), resized(table, 2), rtol=1e-6)


def test_a_bias_of_a_head_has_the_distribution_of_transformers() -> None:
    bias = np.random.default_rng(0).standard_normal(50).astype(np.float32) * 1e-3
    old, new = torch.nn.Linear(2, 50), torch.nn.Linear(2, 20_050)
    old.bias.data = torch.tensor(bias)
    transformers.PreTrainedModel._init_added_lm_head_bias_with_mean(None, old, new, 20_000)  # type: ignore[arg-type]
    for found in (new_rows(bias, 20_000, np.random.default_rng(1)), new.bias.detach().numpy()[50:]):
        np.testing.assert_allclose(found, bias.mean(), atol=1e-9)


def test_a_language_that_was_added_is_one_to_translate_into(folder: Path, tmp_path: Path, capsys: Any) -> None:
    ported("nllb", folder)
    there = str(folder / "nllb")
    out = str(tmp_path / "model")
    assert main(["port", there, out, "--add-tags", "gsw_Latn", "xho_Latn", "zul_Latn", "--seed", "3"]) == 0
    assert "added:    gsw_Latn, xho_Latn, zul_Latn; 1 new rows" in capsys.readouterr().out
    model = load_model(out)
    assert model.target_tokenizer is not None
    tag_id = model.target_tokenizer.tag_ids["zul_Latn"]
    assert tag_id == model.config.target_vocab_size - 1
    (said,) = translate(model, [SOURCES[0]], source_tag="gsw_Latn", forced_bos_id=tag_id, max_new_tokens=4)
    assert "Latn" not in said
    (tmp_path / "in").write_text(f"{SOURCES[0]}\n")
    tags = ["--source-tag", "gsw_Latn", "--target-tag", "zul_Latn"]
    assert main(["translate", out, *tags, "--max-new-tokens", "4", "--input", str(tmp_path / "in")]) == 0
    assert capsys.readouterr().out == f"{said}\n"
    assert main(["port", out, str(tmp_path / "back"), "--add-tags", "aaa_Latn"]) == 0
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "back", src_lang="zul_Latn")
    assert tokenizer("a").input_ids[0] == tag_id
    assert tokenizer.convert_tokens_to_ids("aaa_Latn") == tag_id + 1


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        (
            "nllb",
            ["--add-tags", "deu_Latn"],
            "--add-tags: expected tokens that the vocabulary lacks",
        ),
        ("nllb", ["--add-tokens", "a", "a"], "--add-tokens: expected each token once; received 'a' twice"),
        ("nllb", ["--add-tags", "two words"], "--add-tags: expected tags of one word, such as xho_Latn"),
        (
            "nllb",
            ["--add-tokens", "</s>"],
            "--add-tokens: expected texts that aren't a special token's",
        ),
        ("nllb", ["--seed", "3"], "--seed 3: expected --add-tokens or --add-tags"),
        ("marian", ["--add-tokens", "Quokka"], "--add-tokens: expected tags alone"),
        ("marian", ["--add-tags", "gsw"], "--add-tags: expected a code such as >>gsw<<, as Marian's tags are"),
        ("byt5", ["--add-tags", "<2de>"], "--add-tags: expected a tokenizer.json, or the files of Marian or M2M-100"),
    ],
)
def test_what_cannot_be_added_is_refused(
    name: str, arguments: list[str], message: str, folder: Path, tmp_path: Path, capsys: Any
) -> None:
    case, _ = ported(name, folder)
    assert main(["port", str(case.directory), str(tmp_path / "model"), *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "model").exists()


def test_a_model_of_no_transformers_is_refused(folder: Path) -> None:
    _, model = ported("nllb", folder)
    bare = Model(model.config, model.params, None, None, model.generation)
    with pytest.raises(ValueError, match="expected a model that was ported from transformers"):
        add_tokens(bare, ["a"])
    with pytest.raises(ValueError, match="expected at least one token or tag"):
        add_tokens(model)
