"""A run that starts from a ported model trains on the batches, and the loss, that transformers has for it."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from fine_tuning import train_in_jax, train_in_torch
from recipes_in_torch import NO_DROPOUT, trained_leaves
from text_families import FAMILIES, PAIRS, TextCase, make_case

from jax_transformer.cli import main
from jax_transformer.comparison.gates.compare import compare
from jax_transformer.comparison.gates.tolerances import (
    FLOAT64_RELATIVE_RMS,
    TRAJECTORY_LOSS_RELATIVE,
    TRAJECTORY_PARAMETERS_RELATIVE_RMS,
    has_zero_gradient,
)
from jax_transformer.config.data import DataConfig
from jax_transformer.config.presets import get_preset
from jax_transformer.config.run import RunConfig
from jax_transformer.data.preparation import prepare
from jax_transformer.exporting.transformers import export_transformers
from jax_transformer.parity.backends.jax_sides import cast
from jax_transformer.porting import import_checkpoint
from jax_transformer.programs.modes import wide
from jax_transformer.storage.model_directory import load_model, save_model
from jax_transformer.training.batch_schedule import batches
from jax_transformer.training.evaluation import Split, mean_loss
from jax_transformer.training.export import make_model
from jax_transformer.training.fitting import fit_config
from jax_transformer.training.step import make_evaluation_step
from jax_transformer.training.warm_start import follow_initial_model, load_initial_model, load_initial_params

pytestmark = [
    pytest.mark.usefixtures("quick_compilation"),
    pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses"),
]

OWN_WAY = ("fsmt", "blenderbot_small", "t5gemma")
"""transformers encodes FSMT's targets as sources, and ends the sentences of the other two with no token."""
ALIKE = ("bart_in_two_files", "mvp", "mbart_in_a_model", "mbart_50_in_a_model", "pegasus_in_spiece", "t5_in_spiece")
TRIED = [name for name in FAMILIES if name not in (*ALIKE, *OWN_WAY)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fine_tuning")


def run_config(case: TextCase, folder: Path, **data: Any) -> RunConfig:
    """Returns the config of a run that starts from the ported model, on ten pairs."""
    assert main(["port", str(case.directory), str(folder / "model")]) == 0
    for side, number in (("en", 0), ("de", 1)):
        text = "".join(f"{pair[number]}\n" for pair in PAIRS[:10])
        (folder / f"text.{side}").write_text(text, encoding="utf-8")
    files = (str(folder / "text.en"), str(folder / "text.de"))
    options = {"train": files, "valid": files, "batch_tokens": 2560, "max_unknown": 1.0, "num_shapes": 1}
    tags = {"source_tag": case.family.source_tag, "target_tag": case.family.target_tag}
    preset = get_preset("finetune")
    data_config = DataConfig(cache_dir=str(folder / "cache"), max_length=120, **options, **tags, **data)
    return follow_initial_model(
        dataclasses.replace(preset, data=data_config), load_initial_model(str(folder / "model"))
    )


def their_batch(case: TextCase, pairs: list[tuple[str, str]]) -> dict[str, torch.Tensor]:
    """Returns transformers' training batch: the tokenizer's ids of both sides, and the model's own shift of labels."""
    tokenizer, (sources, targets) = case.tokenizer, zip(*pairs, strict=True)
    if case.family.target_tag:
        tokenizer.src_lang, tokenizer.tgt_lang = (
            case.family.source_tag.strip("_"),
            case.family.target_tag.strip("_"),
        )
    tagged = [f"{case.family.source_tag} {text}" if ">>" in case.family.source_tag else text for text in sources]
    inputs = tokenizer(tagged, text_target=list(targets), padding=True, return_tensors="pt")
    return {**inputs, "decoder_input_ids": shifted(case.model, inputs["labels"].clone())}


def shifted(model: Any, labels: torch.Tensor) -> torch.Tensor:
    """Returns the decoder's input as the model makes it of labels."""
    if hasattr(model, "prepare_decoder_input_ids_from_labels"):
        return model.prepare_decoder_input_ids_from_labels(labels=labels)
    shift = sys.modules[type(model).__module__].shift_tokens_right
    return shift(labels, model.config.pad_token_id, model.config.decoder_start_token_id)


def make_folder(path: Path) -> Path:
    path.mkdir()
    return path


def rows(ids: Any, lengths: Any) -> list[list[int]]:
    return [row[:length] for row, length in zip(np.asarray(ids).tolist(), np.asarray(lengths).tolist(), strict=False)]


@pytest.mark.parametrize("name", TRIED)
def test_batches_and_losses_equal_transformers(name: str, folder: Path) -> None:
    (folder / name).mkdir()
    case = make_case(name, folder / name)
    config = run_config(case, folder / name)
    corpus = prepare(config.data)
    split = Split.lay_out(corpus.splits["valid"], config.data.batch_tokens)
    (batch,) = batches(split.pairs, split.plan, corpus)

    theirs = their_batch(case, PAIRS[:10])
    lengths = (theirs["labels"] != case.model.config.pad_token_id).sum(dim=1)
    assert rows(batch.source_ids, theirs["attention_mask"].sum(dim=1)) == rows(
        theirs["input_ids"], theirs["attention_mask"].sum(dim=1)
    )
    assert rows(batch.labels, lengths) == rows(theirs["labels"], lengths)
    assert rows(batch.decoder_input_ids, lengths) == rows(theirs["decoder_input_ids"], lengths)
    assert int((batch.labels != corpus.target_tokenizer.pad_id).sum()) == int(lengths.sum())

    params = load_initial_params(config.init_from, fit_config(config.model, corpus), corpus)
    generation = make_model(config, corpus, params).generation
    assert generation.decoder_start_id == batch.decoder_input_ids[0, 0]
    if case.family.target_tag and not corpus.target_tokenizer.tag_is_last:
        assert generation.forced_bos_id == batch.labels[0, 0]
    step = make_evaluation_step(fit_config(config.model, corpus))
    received = mean_loss(step, cast(params, "float64"), [batch])
    labels = theirs["labels"].masked_fill(theirs["labels"] == case.model.config.pad_token_id, -100)
    with torch.no_grad(), wide(case.model):
        inputs = {key: theirs[key] for key in ("input_ids", "attention_mask")}
        expected = case.model.double()(**inputs, labels=labels, use_cache=False).loss
    assert received == pytest.approx(float(expected), rel=FLOAT64_RELATIVE_RMS)


@pytest.mark.parametrize("name", OWN_WAY)
def test_targets_that_transformers_encodes_otherwise_start_and_end_alike(name: str, folder: Path) -> None:
    (folder / name).mkdir()
    case = make_case(name, folder / name)
    frame = prepare(run_config(case, folder / name).data).frame
    config: Any = case.model.config
    if name == "t5gemma":  # whose tokenizer begins every text with <bos>, as transformers' targets do
        start_id = config.decoder.bos_token_id
        before: tuple[int, ...] = (start_id,)
    else:
        start_id, before = config.decoder_start_token_id, ()
    assert (frame.start_id, frame.before, frame.after) == (start_id, before, (config.eos_token_id,))


def test_a_fine_tuned_model_is_exported_with_its_tokenizer(folder: Path) -> None:
    case = make_case("t5", make_folder(folder / "exported"))
    config = run_config(case, folder / "exported")
    corpus = prepare(config.data)
    params = load_initial_params(config.init_from, fit_config(config.model, corpus), corpus)
    save_model(make_model(config, corpus, params), folder / "exported" / "tuned")
    tuned, out = load_model(folder / "exported" / "tuned"), folder / "exported" / "out"
    assert export_transformers(tuned, out) == [
        "family:   t5, as it was ported", "text:     tokenizer.json, tokenizer_config.json, as they were"
    ]  # fmt: skip
    theirs = transformers.AutoTokenizer.from_pretrained(out)
    assert theirs(PAIRS[0][0]).input_ids == case.tokenizer(PAIRS[0][0]).input_ids
    lines = export_transformers(dataclasses.replace(tuned, tokenizer_files=None), folder / "exported" / "bare")
    assert lines[1] == "text:     without tokenizer files, as the model has none"


ADAMW = {"learning_rate": 2e-3, "weight_decay": 0.01}
ADAFACTOR = {"optimizer": "adafactor", "schedule": "relative", "learning_rate": 1.0, "factored_from": 1}


@pytest.mark.parametrize(
    ("name", "options"),
    [*((name, ADAMW) for name in ("marian", "bart", "nllb", "mbart", "t5")), ("bart", ADAFACTOR), ("t5", ADAFACTOR)],
    ids=lambda value: value if isinstance(value, str) else value.get("optimizer", "adamw"),
)
def test_training_goes_as_in_pytorch(name: str, options: dict[str, Any], folder: Path, tmp_path: Path) -> None:
    """Twelve steps from the preset, in float64 and without dropout: each loss, and the weights."""
    case = make_case(name, tmp_path)
    config = run_config(case, tmp_path)
    train = dataclasses.replace(config.train, max_steps=12, **options)
    corpus = prepare(dataclasses.replace(config.data, batch_tokens=160))
    split = Split.lay_out(corpus.splits["train"], 160)
    made = list(batches(split.pairs, split.plan, corpus))
    assert len(made) > 1
    steps = [made[number % len(made)] for number in range(train.max_steps)]
    model = dataclasses.replace(fit_config(config.model, corpus), **NO_DROPOUT, output_dropout_rate=0.0)
    params = load_initial_params(config.init_from, fit_config(config.model, corpus), corpus)
    received, trained = train_in_jax(model, train, params, steps)

    theirs = case.model.double().eval()
    theirs.set_attn_implementation("eager")
    if train.optimizer == "adafactor":
        optimizer = transformers.Adafactor(theirs.parameters(), relative_step=True, scale_parameter=True)
        lower_rate = None
    else:
        optimizer = torch.optim.AdamW(theirs.parameters(), train.learning_rate, weight_decay=train.weight_decay)
        lower_rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: 1.0 - done / train.max_steps).step
    expected = train_in_torch(theirs, steps, optimizer, lower_rate, train.clip_norm)
    np.testing.assert_allclose(received, expected, rtol=TRAJECTORY_LOSS_RELATIVE)
    assert expected[-1] < expected[0]

    theirs.save_pretrained(tmp_path / "trained")
    ours, reference = (trained_leaves(one) for one in (trained, import_checkpoint(tmp_path / "trained").params))
    errors = {
        path: compare(ours[path], leaf).relative_rms
        for path, leaf in reference.items()
        if not has_zero_gradient(path.split("[")[0])
    }
    assert {path: error for path, error in errors.items() if error > TRAJECTORY_PARAMETERS_RELATIVE_RMS} == {}
    assert len(errors) > 20
