"""The page of a parity report in a real browser: it shows the report, opens, sorts and filters, and runs no name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sample_report import make_report

from jax_transformer.pages.page import write_page
from jax_transformer.pages.parity import render

Visit = Callable[..., Any]
FIRST = "encoder.layers.0.self_attention_norm"
HOSTILE = "</script><script>window.broken=1</script><img src=x onerror='window.broken=2'>"


def report(is_faulty: bool = True) -> dict[str, Any]:
    return json.loads(make_report(is_faulty).to_json())


def written(folder: Path, content: dict[str, Any]) -> Path:
    path = folder / "parity.html"
    write_page(path, render(content))
    return path


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("pages"), report())


def text(page: Any, selector: str) -> str:
    """Removes characters that only allow a line break."""
    return " ".join(page.locator(selector).first.text_content().split())


def column(page: Any, number: int) -> list[str]:
    return page.locator(f"#arrays tbody td:nth-child({number})").all_text_contents()


def plain(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Makes a report of one stage with these rows."""
    stage = {
        "name": "forward",
        "verdict": "diverged",
        "reasons": [],
        "only_in_candidate": [],
        "only_in_reference": [],
        "compared": 9,
    }
    nothing: dict[str, Any] = {
        "depth": [],
        "faults": [],
        "heat_map": None,
        "effect": None,
        "environment": {},
        "sha256": {},
    }
    return report() | nothing | {"stages": [stage | {"rows": rows}]}


def make_row(number: int, **changes: Any) -> dict[str, Any]:
    size = (number * 7919 % 3001 + 1) * 1e-12
    error = {
        "relative_rms": size,
        "max_error": 2 * size,
        "worst_index": [number],
        "exact": False,
        "non_finite_candidate": 0,
        "non_finite_reference": 0,
        "compared": 9,
    }
    row = {
        "name": f"layers.{number}.output",
        "case": "",
        "verdict": "diverged",
        "gate": "relative RMS ≤ 1e-12",
        "allowed": 1e-12,
        "times_allowed": size / 1e-12,
        "reason": "",
        "error": error,
    }
    return row | changes


# --- the head


def test_the_worst_comes_first(visited: Visit, file: Path) -> None:
    page, content = visited(file), report()
    assert page.title() == "Parity · candidate.safetensors · diverged"
    assert text(page, "h1") == f"✗ Diverged at {FIRST}"
    figures = page.locator(".figures dd:not(.more)").all_text_contents()
    assert figures[0] == "1.20×10⁶"
    assert figures[3] == "9 of 36"
    causes = page.locator(".cause h2").all_text_contents()
    assert causes == ["norm: ε outside the root", "Unexplained", "tanh GELU"]
    assert text(page, ".cause .over") == "The candidate computes something else at 10 nodes"
    numbers = text(page, ".cause .numbers")
    assert "Residual≤ 3." in numbers
    assert "Runner-upnorm: ε outside the root, and ε = 1e-06 leaves 1.10×10⁻⁶" in numbers
    assert page.locator(".cause .command code").first.text_content() == content["faults"][0]["command"]


# --- stages and arrays


def test_a_stage_filters_the_table(visited: Visit, file: Path) -> None:
    page, content = visited(file), report()
    assert page.locator(".funnel .count").all_text_contents() == [
        "48 of 48 pass",
        "2 of 2 pass",
        "3 of 3 pass",
        "21 of 79 pass",
        "21 of 79 pass",
        "not compared",
    ]
    assert "forward bfloat16 the candidate has no bfloat16" in text(page, ".reasons")
    page.click(".funnel button:has-text('masks')")
    assert column(page, 4) == [row["name"] for row in content["stages"][2]["rows"]]
    assert page.locator(".funnel [aria-pressed=true]").all_text_contents()[0].startswith("✓ masks")
    assert text(page, "#arrays .count") == "3 of 211 arrays"
    assert page.evaluate("document.getElementById('arrays').getBoundingClientRect().top") < 300
    page.select_option("#arrays select", "forward")
    assert text(page, "#arrays .count") == "79 of 211 arrays"
    page.select_option("#arrays select", "All stages")
    assert page.locator(".funnel [aria-pressed=true]").count() == 0
    assert text(page, "#arrays .count") == "211 of 211 arrays"


# --- depth


def test_the_chart_reads_each_activation(visited: Visit, file: Path) -> None:
    page, depth = visited(file), report()["depth"]
    names = [entry["name"] for entry in depth]
    assert text(page, ".where") == f"{FIRST} first divergence, at fault"
    assert text(page, ".first") == "✗ first divergence"
    assert page.locator(".at-fault path").count() == 12
    assert page.locator(".legend .allowed").all_text_contents() == ["allowed10⁻¹²", "allowed in float327.15×10⁻⁷"]
    assert page.locator("path.gate[d^=M52]").count() == 2
    for series in ("propagated", "local_candidate", "local_reference", "float32_candidate", "float32_reference"):
        assert page.locator(f".points[data-series={series}]").get_attribute("d").count("M") == len(depth)
    page.focus(".depth svg[role=img]")
    page.keyboard.press("End")
    assert text(page, ".where") == "logits"
    assert text(page, "#announcement").startswith("logits: propagated 0.576, ")
    page.keyboard.press("ArrowLeft")
    assert text(page, ".where") == "decoder.output"
    page.keyboard.press("Home")
    assert text(page, ".where") == names[0]
    page.keyboard.press("Escape")
    assert text(page, ".where").startswith(FIRST)


# --- the tree


# --- the heat map


# --- the rest


def test_a_sparse_report_is_drawn(visited: Visit, tmp_path: Path) -> None:
    """No depth, no faults, numbers that JSON cannot hold, an array without an error; doubts come first."""
    error = make_row(0)["error"]
    rows = [
        make_row(
            1, verdict="passed", error=error | {"exact": True, "relative_rms": 0.0, "max_error": 0.0}, times_allowed=0.0
        ),
        make_row(2, error=None, times_allowed=None, reason="shapes [2] and [3]", gate="equal shapes"),
        make_row(
            3, error=error | {"relative_rms": None, "max_error": None, "non_finite_candidate": 4}, times_allowed=None
        ),
        make_row(4, error=error | {"relative_rms": 0.5}, allowed=0.0, times_allowed=None, gate="equal"),
    ]
    page = visited(
        written(tmp_path, plain(rows) | {"verdict": "inconclusive", "doubts": ["the candidate differs from itself"]})
    )
    assert text(page, "h1") == "? Inconclusive"
    assert "the candidate differs from itself" in text(page, ".doubts")
    assert column(page, 5) == ["0", "–", "not finite", "0.5"]
    assert column(page, 8) == ["0", "–", "∞", "∞"]
    page.click("#arrays th button:has-text('Relative RMS')")
    assert column(page, 5) == ["not finite", "0.5", "0", "–"], "what can't be compared comes last"
    page.click("#arrays th button:has-text('Relative RMS')")
    assert column(page, 5) == ["0", "0.5", "not finite", "–"]
    assert text(page, "#depth .lead") == "Errors by depth were not measured."
    empty = plain([]) | {"stages": [], "verdict": "inconclusive"}
    assert text(visited(written(tmp_path, empty)), "#arrays .lead") == "No array was compared."


def spoiled(value: Any) -> Any:
    """Returns the report with harmful markup in every text whose value isn't fixed."""
    if isinstance(value, dict):
        return {key: inner if key in ("verdict", "side") else spoiled(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [spoiled(inner) for inner in value]
    return value + HOSTILE if isinstance(value, str) else value


def test_hostile_names_are_inert(visited: Visit, tmp_path: Path) -> None:
    page = visited(written(tmp_path, spoiled(report())))
    page.click("text=Open all")
    page.focus(".heat svg[role=img]")
    page.keyboard.press("ArrowDown")
    assert text(page, ".readout bdi") == f"0, 0{HOSTILE}"
    page.focus(".depth svg[role=img]")
    page.keyboard.press("Home")
    page.wait_for_timeout(100)
    assert page.evaluate("window.broken") is None
    assert page.locator("img, main script, header script").count() == 0
    assert page.locator("script").count() == 2
    assert text(page, "h1") == f"✗ Diverged at {FIRST}{HOSTILE}"


# --- a discovery


def test_findings_are_drawn(visited: Visit, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    stacks = [{"title": "embedding", "facts": ["29 × 24"]}]
    attention = {"title": "self-attention", "facts": [HOSTILE, "causal"]}
    norm = {"title": "norm", "facts": ["RMSNorm"]}
    layer = [{"inside": [norm, {"beside": [[attention], [norm]]}], "residual": ["× 2"], "after": [norm]}]
    stack = {"name": "encoder", "start": stacks, "count": 3, "layer": layer, "notes": ["shared"], "after": []}
    conclusion = {"what": HOSTILE, "value": "gelu", "residual": 0.0, "runner_up": "", "runner_up_residual": None}
    discovery = {
        "call": ["return self.module(a)"],
        "notes": [HOSTILE],
        "checks": [{"source": 9, "target": 17, "residual": 2.5e-16}],
        "conclusions": [conclusion],
        "architecture": [stack, stack | {"name": "decoder"}],
    }
    write_page(path, render(report(), discovery))
    page = visited(path)
    assert page.locator("nav a").first.text_content() == "What it computes"
    assert page.locator(".architecture .column").count() == 2
    assert text(page, ".architecture .layer .count") == "3 layers shared"
    assert text(page, ".architecture .beside .block") == f"self-attention {HOSTILE} · causal"
    assert text(page, ".architecture .sum small") == "stream × 2"
    assert page.locator(".architecture .around + .block b").first.text_content() == "norm"
    assert "9 and 17 tokens: logits differ by 2.50×10⁻¹⁶" in text(page, "#discovery")
    assert text(page, "#discovery tbody tr") == f"1{HOSTILE}gelu0––"
    assert page.evaluate("window.broken") is None
