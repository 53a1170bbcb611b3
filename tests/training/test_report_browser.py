"""report.html in a real browser: it draws, answers the pointer and the keyboard, and no text in it ever runs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jax_transformer.config.files import dump_config
from jax_transformer.config.run import RunConfig
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


def test_arrow_keys_move_along_the_steps_and_are_announced(opened: Open, run: Path) -> None:
    page = opened(run)
    page.focus("[data-chart=loss] svg[role=img]")
    page.keyboard.press("Home")
    assert readout(page, "loss").startswith("training 8 ")
    page.keyboard.press("ArrowRight")
    assert readout(page, "loss").startswith("training 4 ")
    assert "training 4" in page.inner_text("#announcement")
    page.keyboard.press("Escape")
    assert readout(page, "loss").endswith("step 100")


def test_the_scale_can_be_logarithmic(opened: Open, run: Path) -> None:
    page = opened(run)
    linear = paths(page, "loss")
    button = page.locator("[data-chart=loss] button")
    assert button.get_attribute("aria-pressed") == "false"
    button.click()
    assert button.get_attribute("aria-pressed") == "true"
    assert paths(page, "loss") != linear
    ticks = page.eval_on_selector_all(
        "[data-chart=loss] .axes text[text-anchor=end]", "all => all.map((text) => text.textContent)"
    )
    assert {"0.1", "1"} <= set(ticks)
    button.click()
    assert paths(page, "loss") == linear


def test_parameters_sort_and_filter(opened: Open, run: Path) -> None:
    page = opened(run)
    page.click("#parameters summary")

    def column(number: int) -> list[str]:
        return page.eval_on_selector_all(
            f".parameters tbody tr :nth-child({number})", "all => all.map((cell) => cell.textContent)"
        )

    assert column(1) == ["decoder/norm/scale", "encoder/layers/kernel", "head/bias", "head/kernel"]
    page.click(".parameters th button:text('Parameters')")
    assert column(4) == ["6,400", "4,096", "100", "8"]
    assert page.get_attribute(".parameters th:nth-child(4)", "aria-sort") == "descending"
    page.click(".parameters th button:text('Parameters')")
    assert column(4) == ["8", "100", "4,096", "6,400"]
    page.fill("#parameters input[type=search]", "HEAD")
    assert column(1) == ["head/bias", "head/kernel"]
    assert page.inner_text(".parameters tfoot").split() == ["2", "of", "4", "6,500"]
    page.click(".subtrees button:text('encoder')")
    assert column(1) == ["encoder/layers/kernel"]


def test_the_data_tells_what_became_of_the_pairs(opened: Open, run: Path) -> None:
    page = opened(run)
    rows = page.eval_on_selector_all(".facts tbody tr", "all => all.map((row) => row.innerText.split('\t').join(': '))")
    assert rows == [
        "Pairs read: 20", "With an empty side: 1", "Too long: 2", "Duplicates: 4", "Pairs kept: 17",
        "Source tokens: 60", "Target tokens: 70",
    ]  # fmt: skip
    caption = page.locator(".histogram figcaption").first
    assert caption.inner_text() == "train, source median 3, 99\u202f% at most 6 or more tokens".replace(
        " median", "\nmedian"
    )
    page.locator(".histogram .catch").nth(3).hover()
    assert caption.inner_text().endswith("3 tokens: 9 pairs (45.0\u202f%)")
    page.locator(".histogram .catch").nth(6).hover()
    assert caption.inner_text().endswith("6 tokens or more: 2 pairs (10.0\u202f%)")


def test_the_config_can_be_searched(opened: Open, run: Path) -> None:
    page = opened(run)
    page.click("#config summary")
    page.fill("#config input[type=search]", "train. warmup")
    assert page.inner_text(".config tbody").split() == ["train.warmup_steps", "4000"]


def test_a_sentence_is_followed_over_the_steps(opened: Open, run: Path) -> None:
    page = opened(run)
    page.check("fieldset label:nth-of-type(2) input")
    rows = page.eval_on_selector_all(
        ".history tbody tr", "all => all.map((row) => row.innerText.replace(/\\s+/g, ' '))"
    )
    assert rows[0].startswith("20 Sie")
    assert rows[-1] == "100best Sie haben einen alten Hund gesehen. 7 / 7"
    assert (
        page.locator(".history tr:first-child .missing").get_attribute("title")
        == "missing: haben einen alten Hund gesehen ."
    )
    assert page.locator(".history tr:last-child mark").count() == 0
    page.check("fieldset label:nth-of-type(1) input")
    assert "80–100" in page.inner_text(".history tbody tr:last-child")  # two equal translations in one row


def test_differences_to_the_reference_are_marked(opened: Open, tmp_path: Path) -> None:
    texts = ["Der Mann sieht den Hund.", "x"]
    run = write_run(tmp_path / "run", 2, 1, texts)
    line = {"step": 1, "samples": [{"source": "s", "reference": texts[0], "translation": "Der  alte Mann hört Hund ."}]}
    (run / "samples.jsonl").write_text(json.dumps(line))
    write_report(run)
    page = opened(run)
    assert page.eval_on_selector_all(".history mark", "all => all.map((mark) => [mark.textContent, mark.title])") == [
        ["alte", "not in the reference"],
        ["hört", "in place of: sieht den"],
    ]
    assert page.locator(".history .text").text_content() == "Der  alte Mann hört Hund ."
    assert "5 / 6" not in page.inner_text(".history")
    assert "4 / 6" in page.inner_text(".history").replace("\u202f", " ")


def test_the_theme_follows_the_system_and_the_button(opened: Open, run: Path) -> None:
    def background(page: Any) -> str:
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    light, dark = opened(run), opened(run, color_scheme="dark")
    assert background(light) != background(dark)
    expected = background(dark)
    dark.click("#theme")
    assert background(dark) == background(light)
    light.click("#theme")
    assert background(light) == expected
    light.emulate_media(media="print")
    assert background(light) != expected  # paper is light


@pytest.mark.parametrize("width", [1200, 390])
def test_no_width_scrolls_sideways(opened: Open, tmp_path: Path, width: int) -> None:
    long = "Donaudampfschifffahrtsgesellschaftskapitän" * 4
    page = opened(write_run(tmp_path / ("r" * 60), texts=[long, "x" * 80]), width)
    for summary in page.query_selector_all("summary"):
        summary.click()
    assert page.evaluate("document.documentElement.scrollWidth") == width


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_stands_out_from_its_background(opened: Open, run: Path, theme: str) -> None:
    """WCAG 2.2: 4.5 for text, 3 for what is drawn."""
    page = opened(run, color_scheme=theme)
    names = ["ink", "soft", "accent", "good", "warn", "slot-0", "slot-1", "slot-2", "mark", "page"]
    colours = page.evaluate(
        "names => names.map((name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim())",
        names,
    )

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light = dict(zip(names, map(luminance, colours), strict=True))

    def contrast(a: str, b: str) -> float:
        return (max(light[a], light[b]) + 0.05) / (min(light[a], light[b]) + 0.05)

    assert all(contrast(name, "page") >= 4.5 for name in ("ink", "soft", "accent", "good", "warn"))
    assert contrast("ink", "mark") >= 4.5
    assert all(contrast(f"slot-{slot}", "page") >= 3 for slot in range(3))


def test_hostile_text_is_inert(opened: Open, tmp_path: Path) -> None:
    """Shown to the letter: in samples, and as the name of a parameter, a split and the device."""
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
    assert page.locator("[data-chart]").count() == 6
    assert page.locator("[data-chart=loss] .dot").count() >= (steps == 1)
    assert ("No values yet" in page.inner_text("[data-chart=loss]")) == (steps == 0)
    assert not any("NaN" in path for chart in ("loss", "gradient_norm") for path in paths(page, chart))


def test_a_long_run_is_drawn_quickly_enough_to_use(opened: Open, tmp_path: Path) -> None:
    """100,000 lines of metrics: the page holds some thousand points, and all paths together stay small."""
    page = opened(write_run(tmp_path / "run", 100_000, 100))
    lengths = page.eval_on_selector_all("path.curve", "all => all.map((path) => path.getAttribute('d').length)")
    assert sum(lengths) < 200_000
    assert "100,000 values a curve, lines are means of stretches" in page.inner_text("#curves")
    assert page.locator("[data-chart=gradient_norm] .canvas path.curve").count() == 2
    assert float(readout(page, "gradient_norm").split()[1]) == pytest.approx(1.0, abs=0.2)  # the mean of 1 + sin(step)
    assert readout(page, "gradient_norm").endswith("step 100,000")


def test_a_model_of_several_checkpoints_says_so(opened: Open, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    final = {
        "step": 100,
        "model_step": 100,
        "model_checkpoints": [80, 100],
        "model_valid_loss": 0.5,
        "test": {"bleu": 1.0, "chrf": 2.0},
    }
    with open(run / "metrics.jsonl", "a") as file:
        file.write(json.dumps(final))
    write_report(run)
    page = opened(run)
    assert page.inner_text(".scores tbody tr:nth-child(2)").split("\t")[:3] == [
        "validation, mean of steps 80, 100",
        "0.5",
        "1.649",
    ]
    assert "finished" in page.inner_text("h1")


def test_a_streamed_corpus_is_counted_as_far_as_it_was_read(opened: Open, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    with open(run / "metrics.jsonl", "a") as file:
        for read in (140, 210):
            counts = {"read": read, "kept": read - 3, "empty": 1, "too_long": 2, "unequal": 0}
            file.write(json.dumps({"step": read, "stream": counts}) + "\n")
    write_report(run)
    page = opened(run)
    assert page.locator(".facts thead th").all_inner_texts()[1:] == ["train, first shard", "train, all passes so far"]
    rows = page.eval_on_selector_all(".facts tbody tr", "all => all.map((row) => row.innerText.split('\t'))")
    assert ["Pairs read", "20", "210"] in rows
    assert ["Of unequal lengths", "–", "0"] in rows
    assert ["Pairs kept", "17", "207"] in rows
