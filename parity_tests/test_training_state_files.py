"""A checkpoint with a training state comes back as it was."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest
import torch
from continued_trainings import TRAININGS, Trainer, ported
from systems import layers, make_case

from jax_transformer.porting import export_checkpoint
from jax_transformer.storage.model_directory import load_model, save_model

pytestmark = pytest.mark.usefixtures("quick_compilation")


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
