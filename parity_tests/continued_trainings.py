"""Trainings of systems in PyTorch that go on here: how each is trained, and the ways there and back."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import torch
import transformers
from recipes_in_torch import NO_DROPOUT, noam
from systems import Case
from torch import nn
from torch.optim import lr_scheduler

from jax_transformer.config.run import TrainConfig
from jax_transformer.data.batching import Batch
from jax_transformer.parity.backends.jax_sides import QUICKLY, understood
from jax_transformer.porting import import_checkpoint
from jax_transformer.porting.optimizers.port import import_training_state, training_state_of_run
from jax_transformer.storage.model_directory import Model
from jax_transformer.training.optimizer_state import continue_training, training_state
from jax_transformer.training.schedules import make_schedule, peak_rate
from jax_transformer.training.state import TrainState, all_params, init_state
from jax_transformer.training.step import make_train_step

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
    """Describes the training of a system in PyTorch, and the fields of TrainConfig that no file contains."""

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
    settings = {
        name: tuple(value) if isinstance(value, list) else value for name, value in model.training_state.train.items()
    }
    return TrainConfig(**{"max_steps": LAST, "clip_norm": 0.5, **settings, **told_by_user})


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
