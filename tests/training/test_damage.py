"""Damaged files of a run are named, and never used."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orbax.checkpoint as ocp
import pytest
from tiny_runs import rows, tiny_run

from jax_transformer.cli import main
from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.run import RunConfig, TrainConfig
from jax_transformer.training.checkpoints import (
    ONCE_UNSEALED,
    CheckpointError,
    Checkpoints,
    check,
    go_back,
    saved_steps,
)
from jax_transformer.training.export import load_averaged_model
from jax_transformer.training.interruption import Interrupted
from jax_transformer.training.journal import Journal
from jax_transformer.training.loop import train
from jax_transformer.training.report import write_report
from jax_transformer.training.run_directory import RunDirectory, RunError
from jax_transformer.training.state import init_state

pytestmark = pytest.mark.usefixtures("quick_compilation")

Stopped = Callable[[int], contextlib.AbstractContextManager[None]]

TINY = TransformerConfig(
    source_vocab_size=9, target_vocab_size=9, d_model=8, num_heads=2, d_ff=8, num_encoder_layers=1, num_decoder_layers=1
)


def flip_a_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 4
    file.write_bytes(content)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 6 steps with checkpoints at 2, 4 and 6."""
    return train(tiny_run(tmp_path_factory.mktemp("finished"))).run


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def test_every_file_of_a_checkpoint_is_under_a_digest(run: Path) -> None:
    checkpoints = run / "checkpoints"
    names = [path.relative_to(checkpoints / "6") for path in (checkpoints / "6").rglob("*") if path.is_file()]
    assert len(names) > 10
    assert {*ONCE_UNSEALED} <= {str(name) for name in names}
    check(checkpoints, 6)
    for name in names:
        whole = (checkpoints / "6" / name).read_bytes()
        flip_a_bit(checkpoints / "6" / name)
        received = "digests.json: can't be read|.*" if name.name == "digests.json" else re.escape(f"{name}: altered")
        with pytest.raises(CheckpointError, match=rf"checkpoints/6: expected .* received ({received}).*--from-step 4$"):
            check(checkpoints, 6)
        (checkpoints / "6" / name).unlink()
        with pytest.raises(CheckpointError, match=f"received {re.escape(str(name))}: missing"):
            check(checkpoints, 6)
        (checkpoints / "6" / name).write_bytes(whole)
    (checkpoints / "6" / "default" / "more").write_bytes(b"")
    with pytest.raises(CheckpointError, match="received default/more: added; "):
        check(checkpoints, 6)


def test_files_of_an_older_checkpoint_may_be_under_no_digest(run: Path) -> None:
    file = run / "checkpoints" / "6" / "digests.json"
    digests = json.loads(file.read_text())["sha256"]
    file.write_text(json.dumps({"sha256": {name: one for name, one in digests.items() if name not in ONCE_UNSEALED}}))
    check(run / "checkpoints", 6)


def test_a_checkpoint_gets_its_name_when_it_is_sealed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until then it has the name of an unfinished one, which is removed."""
    seen = []
    rename = os.rename

    def watched(source: Any, target: Any) -> None:
        if Path(target).name.isdecimal():
            seen.append(((Path(source) / "digests.json").exists(), Path(target).exists()))
        rename(source, target)

    monkeypatch.setattr(os, "rename", watched)
    path = train(tiny_run(tmp_path)).run / "checkpoints"
    assert seen == [(True, False)] * 3
    assert sorted(entry.name for entry in path.iterdir()) == ["2", "4", "6"]


def test_leftovers_of_killed_processes_in_a_run_are_removed(run: Path) -> None:
    (run / ".model.1.tmp" / "tokenizer").mkdir(parents=True)
    (run / ".report.html.1.tmp").touch()
    (run / ".report.html.2.tmp").touch()
    for name in (".model.1.tmp", ".report.html.1.tmp"):
        os.utime(run / name, (0, 0))
    RunDirectory.open(run).close()
    assert {path.name for path in run.glob(".*.tmp")} == {".report.html.2.tmp"}


def test_a_run_that_was_killed_before_its_config_was_written_begins_anew(tmp_path: Path) -> None:
    config = tiny_run(tmp_path, max_steps=1)
    run = Path(config.run_dir)
    run.mkdir()
    (run / ".lock").touch()
    (run / ".config.yaml.1.tmp").touch()
    assert train(config).run == run
    with pytest.raises(RunError, match="already in use; resume that run"):
        train(config)
    (run / "config.yaml").unlink()
    with pytest.raises(RunError, match="already in use; choose another"):
        train(config)


def test_a_process_killed_while_it_deletes_a_checkpoint_leaves_none_half_deleted(
    tmp_path: Path, stopped_after: Stopped, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(path: str | Path, *arguments: object, **options: object) -> None:
        """Deletes the files, and not yet the folders."""
        for file in [file for file in Path(path).rglob("*") if file.is_file()]:
            file.unlink()

    config = tiny_run(tmp_path / "parts", keep_checkpoints=1)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with stopped_after(5), pytest.raises(Interrupted):
            train(config)
    run = train(RunConfig(run_dir=config.run_dir), resume=True).run
    assert {path.name for path in (run / "checkpoints").iterdir()} == {"6"}
    whole = train(tiny_run(tmp_path / "whole", keep_checkpoints=1)).run
    weights = [(one / "model" / "params.safetensors").read_bytes() for one in (run, whole)]
    assert weights[0] == weights[1]


def test_a_run_goes_on_where_its_corpus_is_deleted_and_resumes_with_the_same(
    tmp_path: Path, stopped_after: Stopped, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_run(tmp_path / "parts", evaluate_sentences=2)
    with monkeypatch.context() as patch, stopped_after(5):
        patch.setattr(Journal, "evaluated", lambda journal: shutil.rmtree(config.data.cache_dir, ignore_errors=True))
        with pytest.raises(Interrupted):
            train(config)
    assert not Path(config.data.cache_dir).exists()
    resumed = train(RunConfig(run_dir=config.run_dir), resume=True).run
    assert rows(resumed) == rows(train(tiny_run(tmp_path / "whole", evaluate_sentences=2)).run)


def test_going_back_leaves_no_checkpoint_half_deleted(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "rmtree", lambda path, **options: None)
    go_back(run / "checkpoints", 2)
    assert saved_steps(run / "checkpoints") == [2]


def test_a_damaged_run_stops_and_goes_on_from_the_checkpoint_before(
    run: Path, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(run / "model")
    flip_a_bit(next((run / "checkpoints" / "6" / "default" / "ocdbt.process_0" / "d").iterdir()))
    assert main(["train", "--resume", str(run)]) == 2
    output = capsys.readouterr().err
    assert re.fullmatch(r"error: .*/checkpoints/6: expected the files as they were saved; .* --from-step 4\n", output)
    assert saved_steps(run / "checkpoints") == [2, 4, 6]
    assert not (run / "model").exists()
    assert main(["train", "--resume", str(run), "--from-step", "4"]) == 0
    assert "resumed at step 4" in capsys.readouterr().out
    params = "model/params.safetensors"
    assert (run / params).read_bytes() == (finished / params).read_bytes()
    check(run / "checkpoints", 6)


def test_a_changed_config_is_reported(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = run / "config.yaml"
    text = file.read_text(encoding="utf-8")
    for changed, output in ((text, ""), (text.replace("label_smoothing: 0.1", "label_smoothing: 0.3"), "0.1 → 0.3")):
        file.write_text(changed, encoding="utf-8")
        assert main(["train", "--resume", str(run)]) == 0
        notes = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note: ")]
        assert notes == ([f"note: {file} was changed: train.label_smoothing: {output}"] if output else [])


@pytest.mark.parametrize("metrics", ["null", "[1]", "{}", '{"score": "high"}', "[" * 100_000])
def test_metrics_of_a_checkpoint_that_arent_its_own_are_named(run: Path, metrics: str) -> None:
    (run / "checkpoints" / "4" / "metrics" / "metrics").write_text(metrics, encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"checkpoints/4: .*metrics/metrics: altered.*--from-step 2$"):
        Checkpoints(run / "checkpoints", TrainConfig())


def test_a_state_is_restored_while_it_is_being_saved(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, TrainConfig())
    state = init_state(TINY, TrainConfig())
    checkpoints.save(state, None, {})
    assert int(checkpoints.restore(0, state).step) == 0
    checkpoints.close()


def test_a_damaged_checkpoint_is_not_averaged(run: Path) -> None:
    flip_a_bit(run / "checkpoints" / "4" / "default" / "_METADATA")
    with pytest.raises(CheckpointError, match=r"checkpoints/4: .* received default/_METADATA: altered"):
        load_averaged_model(run, "last", 2)


def test_only_a_whole_checkpoint_is_gone_back_to(run: Path) -> None:
    checkpoints = run / "checkpoints"
    with pytest.raises(CheckpointError, match=r"expected a step with a checkpoint \(2, 4, 6\); received 5"):
        go_back(checkpoints, 5)
    flip_a_bit(checkpoints / "2" / "metrics" / "metrics")
    with pytest.raises(CheckpointError, match=r"metrics/metrics: altered .*; there is none before it that is whole"):
        go_back(checkpoints, 2)
    assert saved_steps(checkpoints) == [2, 4, 6]
    go_back(checkpoints, 4)
    assert saved_steps(checkpoints) == [2, 4]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--from-step", "4"], "--from-step: expected --resume RUN before it; received --from-step 4"),
        (
            ["--resume", "run", "--from-step", "last"],
            "--from-step: expected a step's number; received --from-step last",
        ),
    ],
)
def test_from_step_belongs_to_resume(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "line", ["[1]", "3", '"step"', '{"step": "x"}', '{"step": true}', '{"step": NaN}', "[" * 100_000]
)
def test_an_odd_line_of_metrics_is_named(run: Path, line: str) -> None:
    file = run / "metrics.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines()
    whole = "\n".join([lines[0], line, *lines[1:], ""])
    file.write_text(whole, encoding="utf-8")
    message = r"metrics\.jsonl:2: expected an object with a step; received .*; remove the line"
    with pytest.raises(RunError, match=message):
        train(RunConfig(run_dir=str(run)), resume=True)
    assert file.read_text(encoding="utf-8") == whole
    write_report(run)


@pytest.mark.parametrize("name", ["config.yaml", "data.json"])
@pytest.mark.parametrize("content", [bytes(50), b"[1]", b"\xff\xfe", b"[" * 100_000])
def test_other_damaged_files_are_named(
    run: Path, name: str, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / name).write_bytes(content)
    assert main(["train", "--resume", str(run)]) == 2
    assert re.search(rf"^error: {re.escape(str(run / name))}\S* expected ", capsys.readouterr().err, re.M)
    assert main(["report", str(run)]) == (2 if name == "config.yaml" else 0)
    assert name in capsys.readouterr().err or name == "data.json"


def test_metrics_that_cannot_be_read_are_named(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Orbax's errors name no file."""
    checkpoints = Checkpoints(run / "checkpoints", TrainConfig(), read_only=True)
    step = checkpoints.latest_step()
    assert step is not None

    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(ocp.CheckpointManager, "metrics", fail)
    for read in (lambda: checkpoints.position(step), lambda: checkpoints.steps_to_keep("last", 1)):
        with pytest.raises(OSError, match=r"Input/output error: '.*checkpoints/\d'"):
            read()


class _FullDisk:
    """A lock whose file can't be closed."""

    def close(self) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_lock_that_cannot_be_closed_ends_no_run() -> None:
    RunDirectory(Path(), _FullDisk()).close()  # type: ignore[arg-type]
