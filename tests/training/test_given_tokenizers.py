"""Runs with tokenizers given as objects: the directory keeps them, and is all that resuming and translating need."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from tiny_runs import rows, tiny_run
from tokenizers import Tokenizer as Pipeline
from tokenizers import models, pre_tokenizers, processors

from jax_transformer.data.phrasebook.pairs import sample_pairs
from jax_transformer.integrity.verify import verify
from jax_transformer.storage.model_directory import load_model
from jax_transformer.training.export import load_averaged_model
from jax_transformer.training.interruption import Interrupted
from jax_transformer.training.loop import train
from jax_transformer.training.run_directory import RunError

pytestmark = pytest.mark.usefixtures("quick_compilation")


def pipeline(*, more: int = 0) -> Pipeline:
    words = sorted({word for pair in sample_pairs("train", 60) for text in pair for word in text.split()})
    entries = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *words, *(f"more{i}" for i in range(more))]
    made = Pipeline(models.WordLevel({entry: i for i, entry in enumerate(entries)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    around = [("[CLS]", 2), ("[SEP]", 3)]
    made.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=around)
    return made


def test_a_run_keeps_its_tokenizers(
    tmp_path: Path,
    stopped_after: Callable[[int], AbstractContextManager[None]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = tiny_run(tmp_path, max_steps=4)
    given = {"source_tokenizer": pipeline(), "target_tokenizer": pipeline()}
    whole = train(config, **given)
    model = load_model(whole.run)
    assert model.source_tokenizer is not None
    assert model.source_tokenizer.encode(["Wer schläft ?"]) == [pipeline().encode("Wer schläft ?").ids]
    assert (model.generation.decoder_start_id, model.generation.eos_id) == (2, 3)
    part = tmp_path / "part"
    with stopped_after(3), pytest.raises(Interrupted):
        train(dataclasses.replace(config, run_dir=str(part)), **given)
    moved = dataclasses.replace(config, run_dir=str(tmp_path / "moved"))
    shutil.move(part, moved.run_dir)
    with pytest.raises(RunError, match=r"source_tokenizer: expected the one that the run began with, .*moved"):
        train(moved, resume=True, source_tokenizer=pipeline(more=1), target_tokenizer=pipeline(more=1))
    capsys.readouterr()
    train(moved, resume=True)
    assert "was changed" not in capsys.readouterr().out
    assert rows(Path(moved.run_dir)) == rows(whole.run)
    assert "source_tokenizer.json" in {finding.path.name for finding in verify(moved.run_dir)}
    averaged = load_averaged_model(moved.run_dir, "last", 1)
    assert averaged.target_tokenizer is not None
    assert averaged.target_tokenizer.encode(["Wer"]) == model.target_tokenizer.encode(["Wer"])  # type: ignore[union-attr]


def test_a_run_without_given_tokenizers_takes_none_later(tmp_path: Path) -> None:
    config = tiny_run(tmp_path, max_steps=1)
    train(config)
    with pytest.raises(RunError, match="source_tokenizer: expected none, since the run began with the tokenizers of"):
        train(config, resume=True, source_tokenizer=pipeline(), target_tokenizer=pipeline())
