"""A training that begins in PyTorch goes on here as it would have there, and back: moments, steps and schedules are
ported, in float64."""

from __future__ import annotations

import argparse
import copy
import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
import torch
import transformers
from recipes_in_torch import NO_DROPOUT, noam, trained_leaves
from systems import Case, layers, make_case
from test_fine_tuning import shifted
from text_families import PAIRS
from text_families import make_case as make_text_case
from torch import nn
from torch.optim import lr_scheduler

from jax_transformer.cli import main
from jax_transformer.config.run import TrainConfig
from jax_transformer.data.batching import Batch
from jax_transformer.parity import compare as compare_models
from jax_transformer.parity.backends import torch_module
from jax_transformer.parity.backends.jax_model import QUICKLY, understood
from jax_transformer.parity.backends.side import Halt
from jax_transformer.parity.backends.torch_resuming import load_state
from jax_transformer.parity.gates.compare import compare
from jax_transformer.parity.gates.tolerances import (
    FEW_STEPS_FLOAT32_LOSS_RELATIVE,
    TRAJECTORY_LOSS_RELATIVE,
    TRAJECTORY_PARAMETERS_RELATIVE_RMS,
    has_zero_gradient,
)
from jax_transformer.porting import PortingError, export_checkpoint, import_checkpoint
from jax_transformer.porting.optimizers.port import import_training_state, training_state_of_run
from jax_transformer.storage.model_directory import Model, load_model, save_model
from jax_transformer.training.optimizer_state import continue_training, training_state
from jax_transformer.training.schedules import make_schedule, peak_rate
from jax_transformer.training.state import TrainState, all_params, init_state
from jax_transformer.training.step import make_train_step

pytestmark = pytest.mark.usefixtures("quick_compilation")

STEPS, WARMUP, LAST = 20, 30, 60
"""Steps on either side, of the warm-up, and of the whole schedule."""
FROZEN = "source_embedding/embedding"


def warmed_up(optimizer: torch.optim.Optimizer, d_model: int) -> lr_scheduler.LambdaLR:
    """transformers' linear schedule, whose first rate is 0."""
    return transformers.get_linear_schedule_with_warmup(optimizer, WARMUP, LAST)


def in_two_groups(module: nn.Module, decay: float) -> list[dict[str, Any]]:
    """Groups as transformers' Trainer makes them: biases and norms don't decay."""
    named = [(name, parameter, "bias" in name or "norm" in name) for name, parameter in module.named_parameters()]
    return [
        {"params": [parameter for _, parameter, exempt in named if not exempt], "weight_decay": decay},
        {"params": [parameter for _, parameter, exempt in named if exempt], "weight_decay": 0.0},
    ]


class Training(NamedTuple):
    """How a system is trained in PyTorch, and the fields of TrainConfig that no file tells."""

    system: str
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    schedule: Callable[[torch.optim.Optimizer, int], Any] | None
    told_by_user: dict[str, Any]
    frozen: str = ""
    """The torch parameter that isn't trained."""


LINEAR = {"schedule": "linear", "warmup_steps": WARMUP, "warmup_from_zero": True, "max_steps": LAST}
PAPER = {"schedule": "paper", "warmup_steps": WARMUP, "learning_rate": 1.0, "repeats_first_rate": True}
TRAININGS = {
    "AdamW, tied and fused weights, two groups, a warm-up": Training(
        "pytorch_post_gelu_all_tied",
        lambda module: torch.optim.AdamW(in_two_groups(module, 0.1), 1e-3),
        warmed_up,
        LINEAR,
    ),
    "Adam, L2, the paper's schedule": Training(
        "sayhello",
        lambda module: torch.optim.Adam(module.parameters(), 1.0, (0.9, 0.98), 1e-9, weight_decay=5e-4),
        noam(WARMUP, 0),
        PAPER,
    ),
    "SGD with momentum, a frozen embedding, cosine": Training(
        "harvard",
        lambda module: torch.optim.SGD(module.parameters(), 0.05, momentum=0.9, weight_decay=0.01),
        lambda optimizer, d_model: lr_scheduler.CosineAnnealingLR(optimizer, LAST),
        {},
        frozen="src_embed.0.lut.weight",
    ),
    "Adafactor, its relative step": Training(
        "hyunwoongko", lambda module: transformers.Adafactor(module.parameters()), None, {}
    ),
    "torch's Adafactor": Training(
        "hyunwoongko", lambda module: torch.optim.Adafactor(module.parameters(), 0.19), None, {}
    ),
    "AdamW of named parameters, cosine restarts": Training(
        "codersarts_as_meant",
        lambda module: torch.optim.AdamW(reversed(list(module.named_parameters())), 1e-3),
        lambda optimizer, d_model: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 7, 2),
        {"max_steps": LAST},
    ),
}


class Trainer:
    """Trains a copy of a system's program."""

    def __init__(self, case: Case, training: Training) -> None:
        self.case, self.module = case, copy.deepcopy(case.program)
        if training.frozen:
            self.module.get_parameter(training.frozen).requires_grad_(False)
        self.optimizer = training.optimizer(self.module)
        self.scheduler = training.schedule(self.optimizer, case.config.d_model) if training.schedule else None

    def train(self, steps: int) -> list[float]:
        """Returns the losses before each step."""
        losses, (source_ids, decoder_input_ids) = [], self.case.ids()
        labels = torch.from_numpy(self.case.problem.labels).long()
        for _ in range(steps):
            self.optimizer.zero_grad()
            logits = self.module(source_ids, decoder_input_ids)
            loss = nn.functional.cross_entropy(
                logits.flatten(0, 1), labels.flatten(), ignore_index=self.case.config.target_pad_id, label_smoothing=0.1
            )
            loss.backward()
            nn.utils.clip_grad_norm_(self.module.parameters(), 0.5)
            self.optimizer.step()
            if self.scheduler is not None:
                self.scheduler.step()
            losses.append(loss.item())
        return losses

    def checkpoint(self) -> dict[str, Any]:
        content = {"epoch": 3, "net": self.module.state_dict(), "opt": self.optimizer.state_dict()}
        return content | ({"lr": self.scheduler.state_dict()} if self.scheduler is not None else {})

    def load(self, content: dict[str, Any]) -> None:
        self.module.load_state_dict(content["net"])
        self.optimizer.load_state_dict(content["opt"])
        if self.scheduler is not None:
            self.scheduler.load_state_dict(content["lr"])


def ported(case: Case, path: Path, **options: Any) -> Model:
    hints = dict(case.hints)
    if case.system.computes_positions:
        hints["position_table"] = case.program.encoder.emb.positions
    model = import_checkpoint(path, case.system.dialect, **hints)
    return import_training_state(model, path, **options)


def train_config(model: Model, told_by_user: dict[str, Any]) -> TrainConfig:
    told = {
        name: tuple(value) if isinstance(value, list) else value for name, value in model.training_state.train.items()
    }
    return TrainConfig(**{"max_steps": LAST, "clip_norm": 0.5, **told, **told_by_user})


def trained_here(model: Model, config: TrainConfig, case: Case) -> tuple[TrainState, list[float]]:
    function = dataclasses.replace(model.config, **NO_DROPOUT)
    state = continue_training(init_state(function, config, model.params), model.training_state, config)
    step = jax.jit(make_train_step(function, config), compiler_options=understood(QUICKLY))
    losses, problem = [], case.problem
    for _ in range(STEPS):
        state, metrics = step(state, Batch(problem.source_ids, problem.decoder_input_ids, problem.labels))
        losses.append(float(metrics["loss"]))
    return state, losses


def as_run(model: Model, state: TrainState, config: TrainConfig) -> Model:
    """Returns the model of a run that ended in this state."""
    rate = float(make_schedule(config, model.config.d_model)(state.step))
    saved = dataclasses.replace(training_state(state, config), train=dataclasses.asdict(config), next_rate=rate)
    run = dataclasses.replace(model, params=jax.tree.map(np.asarray, all_params(state)))
    return training_state_of_run(run, saved, peak_rate(config, model.config.d_model), model.training_state)


@pytest.mark.parametrize("name", TRAININGS)
def test_a_training_goes_on_on_the_other_side(name: str, tmp_path: Path) -> None:
    """20 steps in PyTorch and 20 here are 40 in PyTorch; then 5 more there, from what is ported back."""
    training = TRAININGS[name]
    case = make_case(training.system, **layers(training.system, 1, 2))
    theirs = Trainer(case, training)
    theirs.train(STEPS)
    torch.save(theirs.checkpoint(), tmp_path / "half.pt")
    model = ported(case, tmp_path / "half.pt", **({"step": STEPS} if "SGD" in name else {}))
    assert model.training_state.step == STEPS
    config = train_config(model, training.told_by_user)
    if model.training_state.next_rate is not None:
        rate = make_schedule(config, model.config.d_model)(STEPS)
        np.testing.assert_allclose(rate, model.training_state.next_rate, rtol=1e-12)
    assert config.freeze == ((FROZEN,) if training.frozen else ())

    state, losses = trained_here(model, config, case)
    np.testing.assert_allclose(losses, theirs.train(STEPS), rtol=TRAJECTORY_LOSS_RELATIVE)
    torch.save(theirs.checkpoint(), tmp_path / "whole.pt")
    expected = trained_leaves(ported(case, tmp_path / "whole.pt", step=2 * STEPS).params)
    received = trained_leaves(jax.device_get(all_params(state)))
    for path, leaf in expected.items():
        if not has_zero_gradient(path.split("[")[0]):
            assert compare(received[path], leaf).within(TRAJECTORY_PARAMETERS_RELATIVE_RMS), path

    export_checkpoint(as_run(model, state, config), tmp_path / "back.pt", with_optimizer=True)
    content = torch.load(tmp_path / "back.pt", weights_only=True)
    assert content["epoch"] == 3
    again = Trainer(case, training)
    again.load(content)
    np.testing.assert_allclose(again.train(5), theirs.train(5), rtol=TRAJECTORY_LOSS_RELATIVE)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"adam_eps_uncorrected": True}, "train.adam_eps_uncorrected must be False"),
        (
            {"optimizer": "sgd", "weight_decay": 0.1, "weight_decay_kind": "decoupled"},
            "train.weight_decay_kind must be 'l2'",
        ),
        ({"optimizer": "adafactor"}, "train.factored_from must be 1"),
        (
            {"optimizer": "adafactor", "factored_from": 1, "weight_decay": 0.1},
            "weight_decay must be 0 with scale_parameter",
        ),
        (
            {"optimizer": "adafactor", "factored_from": 1, "schedule": "relative", "relative_step": 0.1},
            "train.relative_step must be 0.01",
        ),
    ],
)
def test_an_optimizer_that_pytorch_has_not_is_not_written(changes: dict[str, Any], message: str) -> None:
    case = make_case("harvard", **layers("harvard", 1, 2))
    model = import_checkpoint(case.program.state_dict(), "harvard", **case.hints)
    config = TrainConfig(**{"learning_rate": 1e-3, "schedule": "constant", "warmup_steps": 0} | changes)
    state = init_state(model.config, config, model.params)
    saved = dataclasses.replace(training_state(state, config), train=dataclasses.asdict(config), next_rate=1e-3)
    with pytest.raises(PortingError, match=re.escape(message)):
        training_state_of_run(model, saved, 1e-3)


# --- files


def equal(first: Any, second: Any) -> bool:
    """Returns whether two values of checkpoints are the same to the bit, in the same order."""
    if isinstance(first, torch.Tensor):
        return first.dtype == second.dtype and torch.equal(first, second)
    if isinstance(first, dict):
        return list(first) == list(second) and all(equal(first[key], second[key]) for key in first)
    if isinstance(first, list | tuple):
        return type(first) is type(second) and len(first) == len(second) and all(map(equal, first, second))
    return type(first) is type(second) and first == second


@pytest.mark.parametrize("name", TRAININGS)
def test_a_checkpoint_comes_back_to_the_bit(name: str, tmp_path: Path) -> None:
    training = TRAININGS[name]
    case = make_case(training.system, **layers(training.system, 1, 2))
    theirs = Trainer(case, training)
    theirs.train(3)
    content = theirs.checkpoint() | {"step": 3, "best": (1.5, None), "options": argparse.Namespace(rate=(1, 2))}
    torch.save(content, tmp_path / "run.pt")
    save_model(ported(case, tmp_path / "run.pt"), tmp_path / "model")
    export_checkpoint(load_model(tmp_path / "model"), tmp_path / "back.pt", with_optimizer=True)
    with torch.serialization.safe_globals([argparse.Namespace]):
        back = torch.load(tmp_path / "back.pt", weights_only=True)
    assert equal(back, content)


# --- transformers' Trainer


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
    told = model.training_state.train
    assert (model.training_state.step, told["max_steps"], told["weight_decay"]) == (3, 9, 0.1)
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


# --- fairseq


class FairseqAdam(torch.optim.Optimizer):
    """Adam as fairseq writes it (fairseq/optim/adam.py): steps are integers, and ε is added before the correction."""

    def __init__(self, parameters: Any, rate: float) -> None:
        super().__init__(
            parameters, {"lr": rate, "betas": (0.9, 0.98), "eps": 1e-4, "weight_decay": 0.01, "amsgrad": False}
        )

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    moments = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
                    state.update(step=0, **moments)
                state["step"] += 1
                b1, b2 = group["betas"]
                state["exp_avg"].mul_(b1).add_(parameter.grad, alpha=1 - b1)
                state["exp_avg_sq"].mul_(b2).addcmul_(parameter.grad, parameter.grad, value=1 - b2)
                size = group["lr"] * (1 - b2 ** state["step"]) ** 0.5 / (1 - b1 ** state["step"])
                parameter.mul_(1 - group["weight_decay"] * group["lr"])
                parameter.addcdiv_(state["exp_avg"], state["exp_avg_sq"].sqrt() + group["eps"], value=-size)


@pytest.mark.parametrize("is_flat", [False, True])
def test_a_run_of_fairseq_goes_on_here(is_flat: bool, tmp_path: Path) -> None:
    """Its dict, with options in it; one parameter's state after the other, or all in one as in mixed precision."""
    training = Training("hyunwoongko", lambda module: FairseqAdam(module.parameters(), 1e-3), None, {"warmup_steps": 0})
    case = make_case(training.system, **layers(training.system, 1, 2))
    theirs = Trainer(case, training)
    theirs.train(STEPS)
    optimizer = theirs.optimizer.state_dict()
    if is_flat:
        entries = optimizer["state"].values()
        flat = {name: torch.cat([entry[name].flatten() for entry in entries]) for name in ("exp_avg", "exp_avg_sq")}
        group = optimizer["param_groups"][0] | {"params": [0]}
        optimizer = {"state": {0: {"step": STEPS, **flat}}, "param_groups": [group]}
    content = {
        "cfg": {"model": argparse.Namespace(arch="transformer")},
        "model": theirs.module.state_dict(),
        "optimizer_history": [{"optimizer_name": "FairseqAdam", "num_updates": STEPS}],
        "last_optimizer_state": optimizer,
    }
    torch.save(content, tmp_path / "checkpoint_last.pt")
    model = ported(case, tmp_path / "checkpoint_last.pt")
    config = train_config(model, training.told_by_user | {"schedule": "constant"})
    assert (config.weight_decay_kind, config.adam_eps_uncorrected) == ("decoupled", True)
    state, losses = trained_here(model, config, case)
    np.testing.assert_allclose(losses, theirs.train(STEPS), rtol=TRAJECTORY_LOSS_RELATIVE)

    export_checkpoint(as_run(model, state, config), tmp_path / "back.pt", with_optimizer=True)
    with torch.serialization.safe_globals([argparse.Namespace]):
        back = torch.load(tmp_path / "back.pt", weights_only=True)
    assert list(back) == list(content)
    assert back["cfg"] == content["cfg"]
    assert back["optimizer_history"][-1]["num_updates"] == 2 * STEPS
    assert list(back["last_optimizer_state"]["state"][0]) == ["step", "exp_avg", "exp_avg_sq"]
    assert len(back["last_optimizer_state"]["state"]) == len(optimizer["state"])


# --- the stage of a parity run


def test_the_stage_resume(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each side continues the other's training; a step too many on the way back shows on that way alone."""
    case = make_case("pytorch_post_gelu_all_tied", **layers("pytorch_post_gelu_all_tied", 1, 2))
    options: dict[str, Any] = {"stages": ["resume"], "dtypes": ["float64"]}
    assert compare_models(case.model, **options).verdict == "passed"

    def a_step_later(optimizer: Any, module: nn.Module, names: Any, halt: Halt) -> None:
        load_state(optimizer, module, names, halt._replace(state=dataclasses.replace(halt.state, step=4)))

    monkeypatch.setattr(torch_module, "load_state", a_step_later)
    report = compare_models(case.model, **options)
    assert report.verdict == "diverged"
    (stage,) = report.stages
    diverged = {row.name.rpartition(", ")[2] for row in stage.rows if row.verdict == "diverged"}
    assert diverged == {"reference after candidate"}


@pytest.mark.parametrize("name", ["RMSprop", "Adafactor"])
def test_the_stage_resume_of_another_optimizer_is_not_compared(name: str) -> None:
    case = make_case("harvard", **layers("harvard", 1, 2))
    report = compare_models(
        case.model,
        optimizer=lambda module: getattr(torch.optim, name)(module.parameters()),
        train=TrainConfig(schedule="constant", warmup_steps=0),
        stages=["weights", "resume"],
        dtypes=["float64"],
    )
    assert {stage.name: stage.verdict for stage in report.stages} == {"weights": "passed", "resume": "inconclusive"}


# --- the commands


def test_the_commands_port_a_training_and_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a directory with an optimizer.pt, through a run of two more steps, to a directory and to a file."""
    monkeypatch.chdir(tmp_path)
    text = make_text_case("bart", tmp_path)
    optimizer = torch.optim.AdamW(text.model.parameters(), 1e-3, weight_decay=0.0)
    for _ in range(2):
        optimizer.zero_grad()
        text.model(input_ids=torch.tensor([[5, 6, 2]]), labels=torch.tensor([[7, 8, 2]])).loss.backward()
        optimizer.step()
    text.model.save_pretrained(text.directory)
    torch.save(optimizer.state_dict(), text.directory / "optimizer.pt")
    assert main(["port", str(text.directory), "model", "--with-optimizer"]) == 0
    assert "training: adam after 2 steps, moments of 49 parameters" in capsys.readouterr().out

    for side, number in (("en", 0), ("de", 1)):
        (tmp_path / f"text.{side}").write_text("".join(f"{pair[number]}\n" for pair in PAIRS[:10]), encoding="utf-8")
    options = (
        "--init-from model --init-optimizer --run-dir run --data.train text.en text.de --data.valid text.en text.de"
    )
    steps = "--train.max-steps 4 --train.evaluate-every 4 --train.evaluate-sentences 0 --train.schedule constant"
    quick = (
        "--data.batch-tokens 640 --data.num-shapes 1 --data.max-length 60 --data.max-unknown 1.0 --data.cache-dir cache"
    )
    arguments = [*options.split(), *steps.split(), *quick.split(), "--model.dropout-rate", "0.0"]
    assert main(["train", "finetune", *arguments]) == 0
    printed = capsys.readouterr().out
    assert "continuing at step 2 with the adam state of model" in printed
    assert "note:" not in printed

    assert main(["port", "run", "back", "--with-optimizer"]) == 0
    assert "training: adam after 4 steps" in capsys.readouterr().out
    state = torch.load(tmp_path / "back" / "optimizer.pt", weights_only=True)
    assert {int(entry["step"]) for entry in state["state"].values()} == {4}
    assert state["param_groups"][0]["lr"] == 1e-3
    optimizer.load_state_dict(state)
    assert json.loads((tmp_path / "back" / "trainer_state.json").read_text())["global_step"] == 4
    assert main(["port", "run", "file.pt", "--with-optimizer", "--step", "4"]) == 0
    assert torch.load("file.pt", weights_only=True)["optimizer"]["state"].keys() == state["state"].keys()

    for wrong, expected in {
        ("port", "run", "file.pt", "--with-optimizer", "--step", "3"): "a step with a checkpoint (4); received 3",
        ("port", "run", "file.safetensors", "--with-optimizer"): "has no place for a training state",
        ("port", "run/model", "file.pt", "--with-optimizer"): "expected a model with a training state",
        ("port", "run", "file.pt", "--with-optimizer", "--dialect", "mvp"): "received dialect mvp: leave it out",
        ("port", "run", "file.pt", "--frozen", "encoder/*"): "expected --with-optimizer beside it",
        ("train", "finetune", *arguments, "--init-from", "run", "--run-dir", "other"): "with a training state, as port",
        ("train", "finetune", *arguments, "--train.max-steps", "2", "--run-dir", "other"): "more than the 2 steps",
        (
            "train",
            "finetune",
            *arguments,
            "--train.optimizer",
            "sgd",
            "--run-dir",
            "other",
        ): "expected adam, whose state",
    }.items():
        assert main(list(wrong)) == 2, wrong
        assert expected in capsys.readouterr().err, wrong
    assert not (tmp_path / "other").exists()
