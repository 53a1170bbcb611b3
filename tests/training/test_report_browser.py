"""report.html in a real browser: it draws, answers the pointer and the keyboard, and no text in it ever runs."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jax_transformer.config.files import dump_config
from jax_transformer.config.run import RunConfig
from jax_transformer.training import report
from jax_transformer.training.report import write_report

HOSTILE = [
    "</script><script>window.broken = 1</script>",
    "<img src=x onerror='window.broken = 2'>",
    "<svg onload='window.broken = 3'><style>* { display: none }</style>",
    "<!--<script>",
    "{{data}} &amp; \u2028 'quotes\"",
]
Open = Callable[..., Any]


def write_run(run: Path, steps: int = 100, evaluations: int = 5, texts: list[str] | None = None) -> Path:
    """A run of `steps` lines of metrics whose loss at step s is 8 / s, and whose validation is best at the last
    evaluation."""
    run.mkdir()
    (run / "config.yaml").write_text(dump_config(RunConfig()))
    lines, samples = [], []
    for step in range(1, steps + 1):
        speed = {
            "learning_rate": 1e-4 * step,
            "gradient_norm": 1.0 + math.sin(step) if steps > 3 else 0.0,
            "target_tokens": 100,
            "seconds": 0.1,
        }
        lines.append(
            {
                "step": step,
                "loss": 8 / step,
                "perplexity": math.exp(8 / step),
                "tokens_per_second": 1000.0,
                "time": step,
                **speed,
            }
        )
        if evaluations and step % (steps // evaluations) == 0:
            scores = {
                "valid_bleu": 40 * step / steps,
                "valid_chrf": 60 * step / steps,
                "valid_exact_match": 0.0,
                "valid_sentences": 9,
            }
            lines.append(
                {
                    "step": step,
                    "valid_loss": 9 / step,
                    "valid_perplexity": math.exp(9 / step),
                    "time": step + 0.5,
                    **scores,
                }
            )
            references = texts or ["Das ist ein Haus.", "Sie haben einen alten Hund gesehen."]
            translated = (
                [" ".join(text.split()[: step * 6 // steps]) for text in references] if texts is None else references
            )
            sentences = [
                {"source": f"{i} {ref}", "reference": ref, "translation": said}
                for i, (ref, said) in enumerate(zip(references, translated, strict=True))
            ]
            samples.append({"step": step, "samples": sentences})
    for name, content in (("metrics", lines), ("samples", samples)):
        (run / f"{name}.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in content))
    name = texts[1] if texts else "encoder/layers"
    shapes = {f"{name}/kernel": [2, 64, 32], "decoder/norm/scale": [8], "head/bias": [100], "head/kernel": [64, 100]}
    table = [
        {"path": path, "shape": shape, "dtype": "float32", "count": math.prod(shape)} for path, shape in shapes.items()
    ]
    (run / "parameters.json").write_text(json.dumps({"environment": {"device": name}, "parameters": table}))
    counts = {"source_length_counts": [0, 1, 5, 9, 3, 0, 2], "target_length_counts": [0, 2, 4, 9, 4, 1, 0]}
    split = {
        "read": 20,
        "empty": 1,
        "too_long": 2,
        "kept": 17,
        "source_tokens": 60,
        "target_tokens": 70,
        "duplicated": 4,
        **counts,
    }
    data = {
        "max_length": 5,
        "source_vocab_size": 100,
        "target_vocab_size": 120,
        "splits": {name if texts else "train": split},
    }
    (run / "data.json").write_text(json.dumps(data))
    write_report(run)
    return run


@pytest.fixture
def opened(visited: Open) -> Open:
    """opened(run, width=…, …) → the run's report in a page."""

    def open_page(run: Path, width: int = 1200, **options: Any) -> Any:
        page = visited(run / "report.html", width, **options)
        page.wait_for_selector(".canvas:empty", state="detached")
        return page

    return open_page


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "run")


def readout(page: Any, chart: str) -> str:
    return " ".join(page.inner_text(f"[data-chart={chart}] .legend").split())


def paths(page: Any, chart: str) -> list[str]:
    return page.eval_on_selector_all(
        f"[data-chart={chart}] .canvas path.curve", "all => all.map((path) => path.getAttribute('d'))"
    )


def test_every_chart_has_its_curves_and_the_best_checkpoint(opened: Open, run: Path) -> None:
    page = opened(run)
    assert page.title() == "run · training report"
    charts = page.eval_on_selector_all("[data-chart]", "all => all.map((chart) => chart.dataset.chart)")
    assert charts == ["loss", "valid_bleu", "perplexity", "gradient_norm", "learning_rate", "tokens_per_second"]
    assert [len(paths(page, chart)) for chart in charts] == [2, 3, 2, 1, 1, 1]
    assert [len(path.split("L")) for path in paths(page, "loss")] == [100, 5]
    assert not any("NaN" in path for chart in charts for path in paths(page, chart))
    assert page.locator(".best line").count() == len(charts)
    assert page.locator("[data-chart=loss] .best circle").count() == 1
    labels = page.eval_on_selector_all(
        "[data-chart] svg[role=img]", "all => all.map((svg) => svg.getAttribute('aria-label'))"
    )
    assert labels[0].startswith(
        "Loss against steps: training from 8 at step 1 to 0.08 at step 100; validation from 0.45"
    )
    assert page.locator(".histogram rect.bar").count() == 14


def test_utilization_is_in_percent(opened: Open, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 4, 0)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    used = [{**line, "mfu": 0.1 * line["step"], "goodput": 0.2 * line["step"]} for line in lines]
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in used))
    write_report(run)
    page = opened(run)
    assert readout(page, "mfu") == "MFU 40 goodput so far 80 step 4"
    assert "80" in page.locator("[data-chart=mfu] .axes").text_content()


def test_a_score_has_the_same_digits_in_its_tile_and_its_curve(opened: Open, tmp_path: Path) -> None:
    """45.9550003 is 45.96, and 45.95 if it is rounded to six digits first."""
    run = write_run(tmp_path / "run", 4, 0)
    append(run, {"step": 4, "valid_loss": 1.0, "valid_bleu": 3.0941, "valid_chrf": 45.9550003, "valid_sentences": 9})
    write_report(run)
    page = opened(run)
    assert readout(page, "valid_bleu") == "BLEU 3.09 chrF 45.96 step 4"
    tiles = page.inner_text(".figures")
    assert "3.09\n" in tiles
    assert "45.96\n" in tiles


def test_hovering_shows_the_values_of_a_step_in_every_chart(opened: Open, run: Path) -> None:
    page = opened(run)
    assert readout(page, "loss") == "training 0.08 validation 0.09 step 100"
    chart = page.locator("[data-chart=loss] svg[role=img]")
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    left, right = 58, 14  # the margins of the plot
    page.mouse.move(box["x"] + left + (box["width"] - left - right) * 0.4, box["y"] + 80)
    assert readout(page, "loss") == "training 0.2 validation 0.225 step 40"
    assert readout(page, "learning_rate") == "rate 0.004 step 40"
    assert page.locator(".pointer[visibility=visible]").count() == 6
    page.mouse.move(box["x"] + left + (box["width"] - left - right) * 0.5, box["y"] + 80)
    assert readout(page, "loss") == "training 0.16 validation 0.225 (at 40) step 50"
    page.mouse.move(box["x"] + 100, box["y"] - 200)
    assert readout(page, "loss") == "training 0.08 validation 0.09 step 100"
    assert page.locator(".pointer[visibility=visible]").count() == 0


def test_hostile_text_is_inert(opened: Open, tmp_path: Path) -> None:
    """Text is shown literally: in samples, and as the name of a parameter, a split and the device."""
    page = opened(write_run(tmp_path / "<img src=x onerror=alert(1)>", texts=HOSTILE))
    page.wait_for_timeout(100)
    assert page.evaluate("window.broken") is None
    assert page.locator("img, script:not([id]) ~ script, svg style, main script").count() == 0
    assert page.locator("script").count() == 2
    assert page.inner_text("h1").startswith("<img src=x onerror=alert(1)>")
    for number, text in enumerate(HOSTILE, 1):
        page.check(f"fieldset label:nth-of-type({number}) input")
        assert page.locator(".pair dd:last-child").text_content() == text
        assert page.locator(".history tr:last-child .text").text_content() == text
    assert HOSTILE[1] in page.inner_text(".facts")


@pytest.mark.parametrize(("steps", "evaluations"), [(0, 0), (1, 1), (1, 0), (3, 0)])
def test_few_values_or_none_or_zeros_break_nothing(opened: Open, tmp_path: Path, steps: int, evaluations: int) -> None:
    page = opened(write_run(tmp_path / "run", steps, evaluations))
    assert page.locator("[data-chart]").count() == 7
    assert page.locator("[data-chart=loss] .dot").count() >= (steps == 1)
    assert ("No values yet" in page.inner_text("[data-chart=loss]")) == (steps == 0)
    assert not any("NaN" in path for chart in ("loss", "gradient_norm") for path in paths(page, chart))


def test_parameters_and_config_are_searched_sorted_and_counted(opened: Open, run: Path) -> None:
    page = opened(run)
    page.click("#parameters summary")
    paths_of = "#parameters .sortable td:first-child"
    assert page.locator(paths_of).all_text_contents()[0] == "decoder/norm/scale"
    page.click("#parameters .sortable th:last-child button")
    assert page.locator(paths_of).all_text_contents()[0] == "head/kernel"
    page.fill("#parameters input", "head")
    assert page.locator(paths_of).all_text_contents() == ["head/kernel", "head/bias"]
    assert page.inner_text("#parameters [role=status]") == "2 of 4 arrays, 6,500 parameters"
    page.click("#parameters .subtrees button:text-is('encoder')")
    assert page.locator(paths_of).all_text_contents() == ["encoder/layers/kernel"]
    page.click("#config summary")
    fields = page.locator("#config .sortable td:first-child").all_text_contents()
    assert fields[0] == "model.source_vocab_size"  # in the order of the file
    page.check("#config input[type=checkbox]")
    assert page.inner_text("#config [role=status]") == f"0 of {len(fields)} fields"


def test_a_live_page_renews_itself_and_keeps_the_view(
    visited: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_run(tmp_path / "run")
    monkeypatch.setattr(report, "SECONDS_BETWEEN_RELOADS", 1000.0)
    write_report(run, is_live=True)  # interrupted: it may go on
    page = visited(run / "report.html", allow_reloads=True)
    page.check("fieldset label:nth-of-type(2) input")
    page.click("[data-chart=loss] figcaption button")
    page.click("#config summary")
    page.evaluate("scrollTo(0, 700)")
    monkeypatch.setattr(report, "SECONDS_BETWEEN_RELOADS", 0.02)
    write_report(run, is_live=True)
    page.eval_on_selector("#pause", "button => { button.click(); button.click(); }")  # going on reloads at once
    append(run, {"step": 120, "model_step": 120})
    write_report(run)
    page.wait_for_selector("h1 .finished")
    page.wait_for_selector(".canvas:empty", state="detached")
    for _ in range(100):
        if page.evaluate("scrollY") == 700:
            break
        page.wait_for_timeout(20)
    assert page.evaluate("scrollY") == 700
    assert page.locator("#pause").count() == 0
    assert page.is_checked("fieldset label:nth-of-type(2) input")
    assert page.get_attribute("[data-chart=loss] figcaption button", "aria-pressed") == "true"
    assert page.locator("#config details[open]").count() == 1


def append(run: Path, record: dict[str, Any]) -> None:
    with open(run / "metrics.jsonl", "a") as file:
        file.write(json.dumps(record) + "\n")


def test_a_run_under_way_shows_what_it_does(visited: Open, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    status = {"activity": "compiling program 2 of 4 (80×23→25)", "since": time.time() - 75, "time": time.time(),
              "step": 100, "last_step": 400, "seconds_left": 312.4, "tokens_per_second": 1234.5,
              "host_bytes": 3 * 2**29, "host": "elsewhere"}  # fmt: skip
    (run / "progress.json").write_text(json.dumps(status))
    write_report(run)
    page = visited(run / "report.html")
    text = page.inner_text("#now").replace("\u202f", " ")
    for part in ("compiling program 2 of 4 (80×23→25), for 1 min", "about 5 min 12 s", "1,235", "1.5 GiB"):
        assert part in text
    assert page.get_attribute("#now [role=progressbar]", "aria-valuenow") == "100"
    assert page.inner_text("h1 .state") == "running"
