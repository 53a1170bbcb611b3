"""A run of transformers' Trainer goes on here, and from here in Trainer."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch
import transformers
from continued_trainings import as_run, train_config
from recipes_in_torch import NO_DROPOUT
from test_fine_tuning import shifted
from text_families import PAIRS
from text_families import make_case as make_text_case

from jax_transformer.comparison.gates.tolerances import FEW_STEPS_FLOAT32_LOSS_RELATIVE
from jax_transformer.data.batching import Batch
from jax_transformer.porting import export_checkpoint, import_checkpoint
from jax_transformer.porting.optimizers.port import import_training_state
from jax_transformer.training.optimizer_state import continue_training
from jax_transformer.training.state import init_state
from jax_transformer.training.step import make_train_step

pytestmark = pytest.mark.usefixtures("quick_compilation")


class Rows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """The rows of one batch."""

    def __init__(self, batch: dict[str, torch.Tensor]) -> None:
        self.batch = batch

    def __len__(self) -> int:
        return len(self.batch["labels"])

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        return {name: values[row] for name, values in self.batch.items()}


def trainer(model: Any, folder: Path, batch: dict[str, torch.Tensor], **options: Any) -> transformers.Trainer:
    arguments = transformers.TrainingArguments(
        str(folder), per_device_train_batch_size=8, learning_rate=1e-3, weight_decay=0.1, warmup_steps=2,
        logging_steps=1, save_steps=3, report_to=[], use_cpu=True, disable_tqdm=True, lr_scheduler_type="linear",
        **options,
    )  # fmt: skip
    return transformers.Trainer(model=model, args=arguments, train_dataset=Rows(batch))


def without_dropout(model: Any) -> Any:
    for module in model.modules():
        for name in ("p", "dropout", "activation_dropout", "attention_dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    return model


@pytest.mark.parametrize(("family", "optimizer"), [("bart", "adamw_torch"), ("t5", "adafactor")])
def test_a_run_of_trainer_goes_on_here_and_there(
    family: str, optimizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """3 of 9 steps in Trainer, 3 here and 3 in Trainer again are 9 in Trainer, in float32."""
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    text = make_text_case(family, tmp_path)
    pad_id, (sources, targets) = text.model.config.pad_token_id, zip(*PAIRS[:8], strict=True)
    batch = dict(text.tokenizer(list(sources), text_target=list(targets), padding=True, return_tensors="pt"))
    labels = batch["labels"].clone()
    batch["labels"] = labels.masked_fill(labels == pad_id, -100)
    whole = trainer(without_dropout(text.model.float()), tmp_path / "whole", batch, max_steps=9, optim=optimizer)
    whole.train()
    expected = [record["loss"] for record in whole.state.log_history if "loss" in record]

    checkpoint = tmp_path / "whole" / "checkpoint-3"
    model = import_training_state(import_checkpoint(checkpoint), checkpoint)
    output = model.training_state.train
    assert (model.training_state.step, output["max_steps"], output["weight_decay"]) == (3, 9, 0.1)
    config = train_config(model, {"schedule": "linear", "warmup_steps": 2, "warmup_from_zero": True, "clip_norm": 1.0})
    config = dataclasses.replace(config, label_smoothing=0.0)
    with jax.enable_x64(False):
        function = dataclasses.replace(model.config, **NO_DROPOUT, output_dropout_rate=0.0)
        state = continue_training(init_state(function, config, model.params), model.training_state, config)
        step, losses = make_train_step(function, config), []
        ids = [array.numpy() for array in (batch["input_ids"], shifted(text.model, labels.clone()), labels)]
        for _ in range(3):
            state, metrics = step(state, Batch(*ids))
            losses.append(float(metrics["loss"]))
        np.testing.assert_allclose(losses, expected[3:6], rtol=FEW_STEPS_FLOAT32_LOSS_RELATIVE)
        export_checkpoint(as_run(model, state, config), tmp_path / "back", with_optimizer=True)

    again = without_dropout(type(text.model).from_pretrained(tmp_path / "back"))
    resumed = trainer(again, tmp_path / "again", batch, max_steps=9, optim=optimizer)
    resumed.train(resume_from_checkpoint=str(tmp_path / "back"))
    history = [record for record in resumed.state.log_history if "loss" in record and record["step"] > 6]
    np.testing.assert_allclose(
        [record["loss"] for record in history], expected[6:], rtol=FEW_STEPS_FLOAT32_LOSS_RELATIVE
    )
    rates = [record["learning_rate"] for record in whole.state.log_history if "loss" in record][6:]
    np.testing.assert_allclose([record["learning_rate"] for record in history], rates, rtol=1e-6, atol=1e-12)
