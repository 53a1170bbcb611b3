"""report.html as text: the data read from the run's files, broken files, and that no text in them becomes markup."""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import html.parser
import json
import math
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jax_transformer.cli import main
from jax_transformer.config.files import dump_config
from jax_transformer.config.lora import LoraConfig
from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.run import RunConfig, TrainConfig
from jax_transformer.config.specs import LayerNorm
from jax_transformer.pages import training
from jax_transformer.pages.training import render
from jax_transformer.training import report, report_data
from jax_transformer.training.report import write_report
from jax_transformer.training.report_data import MEANS, MOST_EVALUATIONS, MOST_POINTS, curve, read_run, thinned
from jax_transformer.training.run_directory import RunDirectory, RunError, plain_config


def window(step: int, **figures: Any) -> dict[str, Any]:
    return {
        "step": step,
        "loss": 5.0 / step,
        "learning_rate": 1e-3,
        "gradient_norm": 1.0,
        "target_tokens": 100,
        "seconds": 2.0,
        "compile_seconds": 1.0,
        "programs": 2,
        "tokens_per_second": 50.0,
        "time": 1000.0 + step,
        **figures,
    }


def validation(step: int, loss: float, **figures: Any) -> dict[str, Any]:
    return {"step": step, "valid_loss": loss, "valid_perplexity": math.exp(loss), "time": 1000.5 + step, **figures}


def write_run(
    run: Path, records: list[dict[str, Any]], samples: list[dict[str, Any]] | None = None, **options: Any
) -> Path:
    run.mkdir()
    (run / "config.yaml").write_text(dump_config(RunConfig(train=TrainConfig(**options))))
    for name, lines in (("metrics", records), ("samples", samples or [])):
        (run / f"{name}.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return run


def embedded(page: str) -> Any:
    """The data of a page, as a browser's HTML parser finds it."""

    class Reader(html.parser.HTMLParser):
        found = ""
        inside = False

        def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
            self.inside = tag == "script" and dict(attributes).get("type") == "application/json"

        def handle_endtag(self, tag: str) -> None:
            self.inside = False

        def handle_data(self, data: str) -> None:
            self.found += data if self.inside else ""

    reader = Reader()
    reader.feed(page)
    return json.loads(reader.found)


def test_a_report_is_rebuilt_from_the_files_alone(tmp_path: Path) -> None:
    run = write_run(
        tmp_path / "run", [window(1), validation(1, 2.0), window(2), validation(2, 1.0), window(3), validation(3, 1.5)]
    )
    path = write_report(run)
    assert path == run / "report.html"
    data = embedded(path.read_text(encoding="utf-8"))
    assert data == json.loads(json.dumps({**read_run(run), "live": None, "attention": None}))
    assert data["best"]["step"] == 2
    assert data["curves"]["valid_loss"] == {"steps": [1, 2, 3], "values": [2.0, 1.0, 1.5], "count": 3, "means": None}
    assert data["speed"] == {
        "training": 6.0,
        "compiling": 3.0,
        "evaluating": 1.5,
        "target_tokens": 300,
        "tokens_per_second": 50.0,
        "mfu": None,
        "waiting": 0,
        "goodput": None,
        "programs": 2,
    }
    first = path.read_bytes()
    path.unlink()
    assert write_report(run).read_bytes() == first
    (run / "metrics.jsonl").write_text("")
    assert embedded(write_report(run).read_text(encoding="utf-8"))["best"] is None


def test_utilization_is_averaged_over_the_time() -> None:
    rows = [window(1, mfu=0.5, data_seconds=0.25), window(2, mfu=0.2, seconds=4.0, goodput=0.75), window(3)]
    found = report_data.speed([*rows, {"step": 3, "model_step": 3, "goodput": 0.7}])
    assert (found["mfu"], found["waiting"], found["goodput"]) == (pytest.approx(0.3), 0.25, 0.7)


def test_the_best_checkpoint_is_kept_by_training(tmp_path: Path) -> None:
    """By the metric that the config names, the later of equals."""
    records = [
        validation(step, loss, valid_bleu=bleu) for step, loss, bleu in ((1, 1.0, 30.0), (2, 1.0, 40.0), (3, 2.0, 20.0))
    ]
    assert report_data.best_evaluation(records, "loss")["step"] == 2  # type: ignore[index]
    assert report_data.best_evaluation([*records, validation(4, 3.0, valid_bleu=40.0)], "bleu")["step"] == 4  # type: ignore[index]
    assert report_data.best_evaluation([window(1), validation(2, math.nan)], "loss") is None


def test_the_state_follows_from_the_lock_and_the_last_record(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [window(1)])
    assert read_run(run)["state"] == "interrupted"
    with open(run / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert read_run(run)["state"] == "running"
    assert read_run(run)["state"] == "interrupted"
    scores = {"bleu": 50.0, "chrf": 60.0, "exact_match": 10.0, "sentences": 5}
    (run / "metrics.jsonl").write_text(json.dumps({"step": 1, "model_step": 1, "test": scores, "another": {"x": 1}}))
    data = read_run(run)
    assert (data["state"], data["scores"]) == ("finished", {"test": scores})
    assert data["model"] == {"steps": [1], "valid_loss": None}


# --- a run under way


def write_progress(run: Path, **status: Any) -> None:
    usual = {"activity": "", "since": 5.0, "time": 6.0, "step": 2, "last_step": 9, "host": socket.gethostname()}
    (run / "progress.json").write_text(json.dumps(usual | status))


@pytest.fixture
def under_way(tmp_path: Path) -> Iterator[Path]:
    """A run that another process is training: its lock is held."""
    run = write_run(tmp_path / "run", [window(1)])
    with open(run / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield run


def test_a_run_under_way_shows_its_steps_before_they_are_logged(under_way: Path) -> None:
    steps = [{"step": step, "loss": 9.0 - step, "learning_rate": None} for step in (1, 2, 3)]
    write_progress(under_way, activity="compiling program 2 of 4", step=3, steps=steps, host_bytes=2**30)
    data = read_run(under_way)
    assert (data["state"], data["step"], data["last_step"]) == ("running", 3, 9)
    assert data["now"]["activity"] == "compiling program 2 of 4"
    assert data["memory"] == {"host_bytes": 2**30}
    assert data["curves"]["loss"] == {"steps": [1, 2, 3], "values": [5.0, 7.0, 6.0], "count": 3, "means": None}
    assert data["curves"]["learning_rate"]["steps"] == [1]


@pytest.mark.parametrize("text", ["", "[1]", '{"steps": 3, "step": "x", "activity": 7}', '{"steps": [{"loss": 1}, 4]}'])
def test_a_progress_file_of_another_form_is_ignored(under_way: Path, text: str) -> None:
    (under_way / "progress.json").write_text(text)
    data = read_run(under_way)
    assert (data["state"], data["step"], data["curves"]["loss"]["count"]) == ("running", 1, 1)


def test_a_run_of_another_machine_is_silent_once_nothing_comes(tmp_path: Path) -> None:
    """Its lock isn't seen here."""
    run = write_run(tmp_path / "run", [window(1)])
    write_progress(run, host="elsewhere")
    assert read_run(run)["state"] == "running"
    os.utime(run / "progress.json", (0, 0))
    assert read_run(run)["state"] == "silent"
    write_progress(run, host="elsewhere", ended="interrupted", message="stopped and saved at step 1")
    data = read_run(run)
    assert (data["state"], data["message"], data["now"]) == ("interrupted", "stopped and saved at step 1", None)


def test_watching_rewrites_the_page_until_the_run_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, page = write_run(tmp_path / "run", []), tmp_path / "page.html"
    lines: list[str] = []
    pages: list[Any] = []

    def sleep(seconds: float) -> None:
        assert seconds >= report.SECONDS_BETWEEN_LOOKS
        pages.append(page.stat().st_mtime_ns)
        if len(pages) == 3:  # the second look found nothing new
            with open(run / "metrics.jsonl", "a") as file:
                file.write(json.dumps({"step": 4, "model_step": 4}))

    monkeypatch.setattr(report.time, "sleep", sleep)
    assert report.watch(run, page, lines.append) == page
    assert lines == [f"live page: {page}", f"{run}: interrupted at step 0", f"{run}: finished at step 4"]
    assert pages[0] == pages[1] == pages[2] != page.stat().st_mtime_ns
    assert embedded(page.read_text(encoding="utf-8"))["live"] is None
    assert not (run / "report.html").exists()


def test_a_watch_ends_by_ctrl_c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    run = write_run(tmp_path / "run", [])
    monkeypatch.setattr(report.time, "sleep", interrupt)
    assert main(["report", str(run), "--watch"]) == 0
    assert embedded((run / "report.html").read_text(encoding="utf-8"))["live"] == report.SECONDS_BETWEEN_RELOADS


def test_a_directory_that_cannot_be_written_leads_to_another_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "run", [])
    monkeypatch.setattr(os, "replace", lambda old, new: refuse(new, run / "report.html"))
    assert main(["report", str(run)]) == 2
    error = capsys.readouterr().err
    assert error == (
        f"error: {run / 'report.html'}: expected a file that can be written; received Read-only file system; "
        "name another with --output FILE\n"
    )

    nowhere = str(tmp_path / "nowhere" / "page.html")
    assert main(["report", str(run), "--output", nowhere]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {nowhere}: expected a file that can be written; received No such file")


def refuse(path: Path, refused: Path) -> None:
    assert path == refused
    raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))


# --- files


def test_broken_and_unknown_lines_are_counted_and_left_out(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [window(1, unheard_of=[1, {"a": None}]), window(2, loss=math.inf)])
    with open(run / "metrics.jsonl", "a") as file:
        file.write('[1, 2]\n{"loss": 3}\n\n{"step": 3, "loss": 2.')
    data = embedded(write_report(run).read_text(encoding="utf-8"))
    assert data["curves"]["loss"] == {"steps": [1], "values": [5.0], "count": 1, "means": None}
    assert data["unread_lines"] == 3
    assert data["step"] == 2


def test_a_run_that_has_only_a_config_has_a_report(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("model:\n  d_model: 64\n")
    data = read_run(tmp_path)
    assert {key: data[key] for key in ("step", "best", "data", "parameters", "environment", "scores")} == {
        "step": 0,
        "best": None,
        "data": None,
        "parameters": [],
        "environment": {},
        "scores": {},
    }
    assert all(curve == {"steps": [], "values": [], "count": 0, "means": None} for curve in data["curves"].values())
    (tmp_path / "data.json").write_text('{"splits": {"train"')  # being written
    assert read_run(tmp_path)["data"] is None


def test_a_directory_that_is_no_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RunError, match=r"expected a run directory; received one without config\.yaml"):
        write_report(tmp_path)
    assert main(["report", str(tmp_path / "nowhere")]) == 2
    assert "expected a run directory; received no directory" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    assert main(["report", str(tmp_path / "file")]) == 2
    assert "expected a run directory; received a file" in capsys.readouterr().err


def test_the_command_prints_the_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "run", [window(1)])
    assert main(["report", str(run)]) == 0
    assert capsys.readouterr().out.strip() == str(run / "report.html")
    assert (run / "report.html").is_file()


def test_a_report_is_whole_or_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "run", [window(1)])
    before = write_report(run).read_bytes()
    (run / "metrics.jsonl").write_text(json.dumps(window(2)))

    def fail(*_: object) -> None:
        assert (run / "report.html").read_bytes() == before  # the new one stands elsewhere, whole
        assert sum(path.stat().st_size > 1000 for path in run.glob(".*.tmp")) == 1
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fail)
        with pytest.raises(OSError, match="no space"):
            write_report(run)
    assert (run / "report.html").read_bytes() == before
    assert not list(run.glob(".*.tmp"))
    assert write_report(run).read_bytes() != before


HOSTILE = [
    "</script><script>alert(1)</script>",
    "<!--<script>",
    "<img src=x onerror=alert(1)>",
    "{{script}} {{data}}",
    "a\u2028b & \x00 \\u003c",
]


def test_text_of_the_run_never_becomes_markup(tmp_path: Path) -> None:
    samples = [{"source": text, "reference": text, "translation": text} for text in HOSTILE]
    run = write_run(tmp_path / "a<b>&c", [validation(1, 1.0)], [{"step": 1, "samples": samples}])
    page = write_report(run).read_text(encoding="utf-8")
    harmless = write_report(write_run(tmp_path / "plain", [])).read_text(encoding="utf-8")
    assert page.count("<") == harmless.count("<")
    assert page.count("<script") == 2
    assert "<title>a&lt;b&gt;&amp;c" in page
    assert [sentence["source"] for sentence in embedded(page)["samples"]["sentences"]] == HOSTILE


def test_the_page_asks_for_nothing_and_runs_its_own_script_alone(tmp_path: Path) -> None:
    page = render(read_run(write_run(tmp_path / "run", [])))
    assert "default-src 'none'" in page
    assert "{{" not in page
    assert set(re.findall(r"\w+://[^\s'\"]+", page)) == {
        "http://www.w3.org/2000/svg"
    }  # a name, not an address that is asked
    assert "url(" not in page
    assert "src=" not in page


def test_the_last_value_of_a_step_is_shown() -> None:
    """A run's last step may be logged twice: when it is trained, and when it is evaluated."""
    records = [{"step": 1, "goodput": 0.5}, {"step": 2, "goodput": 0.7}, {"step": 2, "goodput": 0.6}]
    found = curve(records, "goodput")
    assert (found["steps"], found["values"], found["count"]) == ([1, 2], [0.5, 0.6], 2)


def test_thinning_keeps_ends_and_extremes() -> None:
    rng = np.random.default_rng(0)
    values = rng.standard_normal(100_000)
    values[[0, 12_345, 54_321, -1]] = 3.0, 100.0, -100.0, 4.0
    kept = thinned(values, 500)
    assert len(kept) <= 500
    assert (np.diff(kept) > 0).all()
    assert {0, 12_345, 54_321, 99_999} <= set(kept.tolist())
    for stretch in np.array_split(values, 50):  # and what the eye sees of the whole: the envelope
        inside = (np.isin(values[kept], stretch)).sum()
        assert inside >= 8
    assert thinned(np.arange(500.0), 500).tolist() == list(range(500))
    assert thinned(np.zeros(0), 500).tolist() == []


def test_a_long_run_has_a_small_report(tmp_path: Path) -> None:
    records = [window(step, loss=1000.0 if step == 77_777 else 1.0 + step % 7) for step in range(1, 100_001)]
    run = write_run(tmp_path / "run", records)
    data = read_run(run)
    loss = data["curves"]["loss"]
    assert len(loss["values"]) <= MOST_POINTS
    assert loss["count"] == 100_000
    assert (loss["steps"][0], loss["steps"][-1]) == (1, 100_000)
    assert loss["values"][loss["steps"].index(77_777)] == 1000.0
    assert (len(loss["means"]["steps"]), loss["means"]["steps"][-1]) == (MEANS, 100_000)
    first = loss["means"]["steps"][0]
    assert loss["means"]["values"][0] == pytest.approx(
        np.mean([1.0 + step % 7 for step in range(1, first + 1)]), rel=1e-5
    )
    assert len(render(data)) < 300_000


def test_samples_show_the_sentences_of_the_last_evaluation(tmp_path: Path) -> None:
    def line(step: int, source: str) -> dict[str, Any]:
        return {"step": step, "samples": [{"source": source, "reference": "r", "translation": f"t{step}"}]}

    lines = [line(1, "other"), *(line(step, "same") for step in range(2, 203))]
    history = read_run(write_run(tmp_path / "run", [], lines))["samples"]
    assert history["sentences"] == [{"source": "same", "reference": "r"}]
    steps = [evaluation["step"] for evaluation in history["evaluations"]]
    assert history["count"] == 201
    assert len(steps) == MOST_EVALUATIONS
    assert (steps[0], steps[-1]) == (2, 202)
    assert history["evaluations"][-1]["translations"] == ["t202"]


def test_the_config_marks_fields_changed_from_the_defaults(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [], max_steps=7)
    with open(run / "config.yaml", "a") as file:
        file.write("unknown: {list: [{a: 1}, {a: 2}], none: }\n")
    fields = {field["path"]: field for field in read_run(run)["config"]}
    assert fields["train.max_steps"] == {"path": "train.max_steps", "value": "7", "changed": True}
    assert fields["train.seed"]["changed"] is False
    assert fields["data.train"] == {"path": "data.train", "value": "[]", "changed": False}
    assert fields["unknown.list[1].a"]["value"] == "2"
    assert {path for path, field in fields.items() if field["changed"]} == {
        "train.max_steps",
        "unknown.list[0].a",
        "unknown.list[1].a",
        "unknown.none",
    }


def test_a_resumed_run_forgets_the_samples_it_makes_anew(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", RunConfig())
    for step in (5, 10):
        run.log(
            {"step": step, "samples": [{"source": "a\u2028b", "reference": "", "translation": ""}]}, "samples.jsonl"
        )
        run.log({"step": step})
    run.forget_after(5)
    run.close()
    for name in ("samples.jsonl", "metrics.jsonl"):
        assert [
            json.loads(line)["step"] for line in (run.path / name).read_text(encoding="utf-8").split("\n") if line
        ] == [5]


def test_every_source_of_the_page_is_used() -> None:
    names = {path.name for path in training.TEMPLATE.iterdir()}
    assert names == {*training.SCRIPTS, *training.COMPARING, training.STYLE}


def test_the_config_shown_is_the_one_written() -> None:
    """Every field of every part, by the path that options have."""
    paths = {
        field["path"] for field in report_data.flat_config(json.loads(json.dumps(dataclasses.asdict(RunConfig()))))
    }
    assert {f"train.{field.name}" for field in dataclasses.fields(TrainConfig)} - paths == {"train.lora"}
    assert {f"train.lora.{field.name}" for field in dataclasses.fields(LoraConfig)} <= paths


def test_the_models_options_have_short_names_and_changed_ones_come_first() -> None:
    model = TransformerConfig(num_heads=4)
    decoder = dataclasses.replace(model.decoder, norm=LayerNorm(eps=0.1))
    config = json.loads(json.dumps(dataclasses.asdict(RunConfig(model=dataclasses.replace(model, decoder=decoder)))))
    rows = report_data.flat_config(config)
    paths = [row["path"] for row in rows]
    assert [row["path"] for row in rows if row["changed"]] == paths[:2] == ["model.num_heads", "model.decoder.norm.eps"]
    assert {"model.encoder.norm.eps", "model.d_model", "train.seed"} <= {*paths}
    assert not any(path.startswith("model.encoder.self_attention") for path in paths)


def test_a_model_with_one_level_of_fields_is_compared_with_the_defaults() -> None:
    """As runs of version 0.1 have written it."""
    rows = report_data.flat_config({"model": {"num_heads": 4, "norm_eps": 1e-5, "decoder_d_ff": 64}})
    assert [row["path"] for row in rows if row["changed"]] == ["model.num_heads", "model.decoder_d_ff"]


def test_a_resumed_run_names_what_changed_whatever_wrote_its_record(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", RunConfig())
    changed = RunConfig(model=TransformerConfig(dropout_rate=0.3), train=TrainConfig(max_steps=9))
    before = plain_config(RunConfig())
    for model in (before["model"], {"dropout_rate": 0.1, "norm_eps": 1e-5, "decoder_d_ff": None}):
        run.write("parameters.json", {"config": before | {"model": model}})
        lines = run.config_changes(changed)
        assert sorted(lines) == ["model.dropout_rate: 0.1 → 0.3", f"train.max_steps: {TrainConfig().max_steps} → 9"]
    run.write("parameters.json", {"config": before | {"model": {"heads_of_tomorrow": 3}}})
    first, second = run.config_changes(changed)
    assert first.startswith("model: unknown, since ")
    assert second.startswith("train.max_steps: ")
    run.close()
