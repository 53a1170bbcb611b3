"""The records of a run, without training one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from jax_transformer.config.run import RunConfig, TrainConfig
from jax_transformer.data.preparation import Report, SplitReport
from jax_transformer.training.evaluation import Sample
from jax_transformer.training.journal import SAMPLES_KEPT, Journal
from jax_transformer.training.report_data import read_run
from jax_transformer.training.run_directory import RunDirectory, RunError

SPLIT = SplitReport(
    read=3,
    empty=1,
    too_long=0,
    unequal=0,
    overlapping=0,
    duplicated=0,
    kept=2,
    source_tokens=9,
    target_tokens=8,
    source_unknown=0,
    target_unknown=1,
    source_length_counts=(0, 3),
    target_length_counts=(1, 2),
)
REPORT = Report(
    max_length=9,
    max_length_ratio=0.0,
    drop_duplicates=False,
    drop_overlap=False,
    source_vocab_size=5,
    target_vocab_size=6,
    datasets=(),
    splits={"train": SPLIT},
)
PARAMS = {"encoder": {"kernel": np.zeros((2, 3), np.float32)}, "constants": {"table": np.zeros(4, np.float64)}}


def journal(path: Path, **options: int | bool) -> Journal:
    config = RunConfig(train=TrainConfig(**options))  # type: ignore[arg-type]
    return Journal(RunDirectory.create(path, config), config)


def test_facts_known_before_the_first_step(tmp_path: Path) -> None:
    written = journal(tmp_path / "run")
    written.begin(0, "abc", REPORT, PARAMS)
    written.close()
    data = read_run(tmp_path / "run")
    assert data["data"]["splits"]["train"]["kept"] == 2
    assert data["parameters"] == [
        {"path": "constants/table", "shape": [4], "dtype": "float64", "count": 4},
        {"path": "encoder/kernel", "shape": [2, 3], "dtype": "float32", "count": 6},
    ]
    assert {"device", "Python", "jax", "numpy", "sacrebleu"} <= data["environment"].keys()


def test_a_closed_journal_gives_the_run_free(tmp_path: Path) -> None:
    written = journal(tmp_path / "run")
    with pytest.raises(RunError, match="another process"):
        RunDirectory.open(tmp_path / "run")
    written.close()
    RunDirectory.open(tmp_path / "run").close()


def test_samples_are_the_same_few_sentences_each_time(tmp_path: Path) -> None:
    written = journal(tmp_path / "run")
    for step in (5, 10):
        written.evaluation({"step": step}, [Sample(f"s{i}", f"r{i}", f"t{i} {step}") for i in range(100)])
    written.evaluation({"step": 15}, [Sample("s", "r", "t")])
    written.evaluation({"step": 20}, [])
    written.close()
    lines = [json.loads(line) for line in (tmp_path / "run" / "samples.jsonl").read_text().splitlines()]
    kept = [[sample["source"] for sample in line["samples"]] for line in lines]
    assert kept[0] == kept[1]
    assert len(kept[0]) == len(set(kept[0])) == SAMPLES_KEPT
    assert kept[0][-1] > "s7"  # from all over
    assert lines[1]["samples"][0]["translation"] == "t0 10"
    assert kept[2:] == [["s"]]


@pytest.mark.parametrize(("every", "written_after"), [(0, []), (1, [1, 2, 3, 4]), (2, [2, 4])])
def test_the_report_comes_after_every_so_many_evaluations_and_at_the_end(
    tmp_path: Path, every: int, written_after: list[int]
) -> None:
    run = tmp_path / "run"
    written = journal(run, report_every=every)
    found = []
    for evaluation in range(1, 5):
        (run / "report.html").unlink(missing_ok=True)
        written.evaluation({"step": evaluation, "valid_loss": 1.0}, [])
        written.evaluated()
        if (run / "report.html").exists():
            found.append(evaluation)
            assert '"state":"running"' in (run / "report.html").read_text(encoding="utf-8")
    assert found == written_after
    written.close()
    assert '"state":"interrupted"' in (run / "report.html").read_text(encoding="utf-8")


def test_a_live_report_follows_the_progress(tmp_path: Path) -> None:
    config = RunConfig()
    for live in (False, True):
        run = tmp_path / str(live)
        written = Journal(RunDirectory.create(run, config), config, live=live)
        written.progress({"activity": "compiling program 1 of 2", "since": 1.0, "step": 0, "last_step": 5, "steps": []})
        assert (run / "report.html").exists() == live
        data = read_run(run)
        assert (data["state"], data["now"]["activity"]) == ("running", "compiling program 1 of 2")
        assert data["memory"]["host_bytes"] > 2**20
        written.close(RunError("no space left"))
        data = read_run(run)
        assert (data["state"], data["message"], data["now"]) == ("interrupted", "no space left", None)
        assert ('"live":null' in (run / "report.html").read_text(encoding="utf-8")) == (not live)


def test_a_progress_file_that_cannot_be_written_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = journal(tmp_path / "run")

    def fail(*_: object) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, "write", fail)
        written.progress({"activity": "", "steps": []})
    written.close()
    assert read_run(tmp_path / "run")["state"] == "interrupted"
