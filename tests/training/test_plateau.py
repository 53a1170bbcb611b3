"""The learning rate falls when validation stops improving: within a run, and after resuming."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.run import DataConfig, RunConfig, TrainConfig
from jax_transformer.training import trainer
from jax_transformer.training.interruption import Interrupted
from jax_transformer.training.loop import train
from jax_transformer.training.trainer import TrainingResult

pytestmark = pytest.mark.usefixtures("quick_compilation")

LOSSES = [2.0, 3.0, 3.0, 1.0, 2.0, 2.0, 2.0, 1.0]
"""At steps 2, 4, … 12, at the last, 13, and of the model that is kept."""
SCALES = [1.0] * 6 + [0.5] * 6 + [0.25]
"""By step: with a patience of 1 the second evaluation in a row that is no better, at step 6 and at step 12, halves the
rate."""


def run(folder: Path) -> RunConfig:
    return RunConfig(
        model=TransformerConfig(
            d_model=16, num_heads=2, d_ff=16, num_encoder_layers=1, num_decoder_layers=1, max_length=32
        ),
        data=DataConfig(
            phrasebook_pairs=60,
            valid_pairs=8,
            test_pairs=8,
            max_length=32,
            batch_tokens=640,
            num_shapes=1,
            cache_dir=str(folder / "cache"),
        ),
        train=TrainConfig(
            max_steps=13,
            schedule="constant",
            learning_rate=2e-3,
            warmup_steps=0,
            plateau_patience=1,
            plateau_factor=0.5,
            log_every=1,
            evaluate_every=2,
            evaluate_sentences=0,
        ),
        run_dir=str(folder / "run"),
    )


def rates(result: TrainingResult) -> list[float]:
    lines = map(json.loads, (result.run / "metrics.jsonl").read_text().splitlines())
    return [line["learning_rate"] for line in lines if "learning_rate" in line]


def evaluations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes validation return the LOSSES in order."""
    losses = iter(LOSSES)
    monkeypatch.setattr(trainer, "mean_loss", lambda *_: next(losses))


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrainingResult]:
    with pytest.MonkeyPatch.context() as patch:
        evaluations(patch)
        yield train(run(tmp_path_factory.mktemp("unbroken")))


def test_the_rate_falls_within_a_run(unbroken: TrainingResult) -> None:
    assert rates(unbroken) == pytest.approx([2e-3 * scale for scale in SCALES], rel=1e-6)


@pytest.mark.parametrize(
    "last", [6, 9], ids=["killed after the evaluation that halves it", "stopped between evaluations"]
)
def test_a_resumed_run_goes_on_at_the_same_rate(
    last: int, unbroken: TrainingResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint of step 6 was made before its evaluation counted."""

    def interrupted(processes: int, say: Callable[[str], None]) -> AbstractContextManager[Callable[[int], bool]]:
        def stops(step: int) -> bool:
            if last == 6 and step == 7:
                raise KeyboardInterrupt
            return step == last == 9

        return nullcontext(stops)

    evaluations(monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(trainer, "stop_requests", interrupted)
        with pytest.raises(KeyboardInterrupt if last == 6 else Interrupted):
            train(run(tmp_path))
    resumed = train(RunConfig(run_dir=str(tmp_path / "run")), resume=True)
    assert rates(resumed) == rates(unbroken)
    assert (resumed.model / "params.safetensors").read_bytes() == (unbroken.model / "params.safetensors").read_bytes()
