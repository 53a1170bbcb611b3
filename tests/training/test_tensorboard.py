"""TensorBoard's events, read back by TensorBoard's own reader; and the error if it isn't installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from jax_transformer.cli import main
from jax_transformer.training.callbacks import RunEnd, RunStart, figures
from jax_transformer.training.evaluation import Sample
from jax_transformer.training.tensorboard import TensorBoard

needs_tensorboard = pytest.mark.skipif(
    importlib.util.find_spec("tensorboard") is None, reason="the package tensorboard is not installed"
)


def read(run: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(run / "tensorboard")).Reload()


def steps_and_values(reader: Any, tag: str) -> list[tuple[int, float]]:
    return [(event.step, round(event.value, 4)) for event in reader.Scalars(tag)]


def start_of(run: Path, step: int = 0) -> RunStart:
    return RunStart(path=run, step=step, is_resumed=step > 0, config={})


def test_figures_are_grouped_by_split() -> None:
    record = {
        "step": 5, "time": 1.0, "loss": 2.0, "valid_loss": 3.0, "valid_bleu_signature": "x", "model_step": 5,
        "test": {"bleu": 4.0, "bleu_signature": "y"}, "flag": True,
    }  # fmt: skip
    assert figures(record) == {"train/loss": 2.0, "valid/loss": 3.0, "test/bleu": 4.0}


@needs_tensorboard
def test_metrics_and_samples_are_read_back(tmp_path: Path) -> None:
    events = TensorBoard()
    events.on_start(start_of(tmp_path))
    for step in (1, 2):
        events.on_step(step, {"step": step, "time": 1000.0 + step, "loss": 4.0 / step, "tokens_per_second": 100})
    evaluation = {"step": 2, "time": 1003.0, "valid_loss": 2.5, "valid_bleu_signature": "nrefs:1"}
    events.on_evaluation(2, evaluation, [Sample("a house", "ein <b>Haus</b>", "ein Hund")])
    events.on_end(RunEnd("finished", step=2, metrics={"step": 2, "time": 1004.0, "test": {"bleu": 7.5}}))
    reader = read(tmp_path)
    assert sorted(reader.Tags()["scalars"]) == ["test/bleu", "train/loss", "train/tokens_per_second", "valid/loss"]
    assert steps_and_values(reader, "train/loss") == [(1, 4.0), (2, 2.0)]
    assert steps_and_values(reader, "test/bleu") == [(2, 7.5)]
    assert reader.Scalars("valid/loss")[0].wall_time == 1003.0
    assert reader.PluginTagToContent("text") == {"samples/1": b""}
    [text] = reader.Tensors("samples/1")
    assert (text.step, text.tensor_proto.string_val[0].decode()) == (
        2,
        "    source      a house\n    reference   ein <b>Haus</b>\n    translation ein Hund",
    )


@needs_tensorboard
@pytest.mark.parametrize("last", [0, 4])
def test_a_resumed_run_hides_the_steps_it_makes_anew(tmp_path: Path, last: int) -> None:
    """After its last checkpoint; it may have none yet."""
    again = range(last + 1, last + 3)
    for resumed_at, steps, loss in ((0, range(1, 9), 5.0), (last, again, 1.0)):
        events = TensorBoard()
        events.on_start(start_of(tmp_path, resumed_at))
        for step in steps:
            events.on_step(step, {"step": step, "time": 1000.0 * loss + step, "loss": loss})
        events.on_end(RunEnd("interrupted"))
        written = sorted((tmp_path / "tensorboard").iterdir())[-1]
        written.rename(
            written.with_name(f"events.out.tfevents.{loss == 1.0:d}")
        )  # names are by the second: read in this order
    assert steps_and_values(read(tmp_path), "train/loss") == [
        *((step, 5.0) for step in range(1, last + 1)),
        *((step, 1.0) for step in again),
    ]


@needs_tensorboard
def test_a_rollback_hides_the_steps_after_it(tmp_path: Path) -> None:
    events = TensorBoard()
    events.on_start(start_of(tmp_path))
    for loss in (5.0, 1.0):
        for step in (1, 2, 3) if loss == 5.0 else (2, 3):
            events.on_step(step, {"step": step, "time": 1000.0 / loss + step, "loss": loss})
        if loss == 5.0:
            events.on_nonfinite(1, {"action": "rollback"})
    events.on_end(RunEnd("interrupted"))
    assert steps_and_values(read(tmp_path), "train/loss") == [(1, 5.0), (2, 1.0), (3, 1.0)]


def test_a_missing_package_is_refused_before_anything_is_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "tensorboard" else find(name, *rest)
    )
    run, cache = tmp_path / "run", tmp_path / "cache"
    code = main(["train", "demo", "--train.tensorboard", "--run-dir", str(run), "--data.cache-dir", str(cache)])
    assert code == 2
    assert "pip install 'jax-transformer[tensorboard]'" in capsys.readouterr().err
    assert not run.exists()
    assert not cache.exists()
