"""The page of a parity report in a real browser: it tells what the report says, all of it opens, sorts and filters, and
no name runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sample_report import ACTIVATION, UNKNOWN, make_report

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
    """Without what only says where a line may break."""
    return " ".join(page.locator(selector).first.text_content().split())


def column(page: Any, number: int) -> list[str]:
    return page.locator(f"#arrays tbody td:nth-child({number})").all_text_contents()


def plain(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """A report of one stage of these rows."""
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


def test_the_command_is_copied_or_selected(visited: Visit, file: Path) -> None:
    page, (first, *_) = visited(file), report()["faults"]
    page.evaluate(
        "Object.defineProperty(navigator, 'clipboard', { value: { writeText: async (text) => { window.kept = text; } "
        "} })"
    )
    page.click(".cause .copy >> nth=0")
    page.locator("#announcement", has_text="Copied").wait_for(state="attached")
    assert page.evaluate("window.kept") == first["command"]
    page.evaluate("void (navigator.clipboard.writeText = async () => { throw new Error('no'); })")
    page.click(".cause .copy >> nth=0")
    page.locator("#announcement", has_text="Selected").wait_for(state="attached")
    assert page.evaluate("String(getSelection())") == first["command"]


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


def test_text_and_verdicts_filter_the_table(visited: Visit, file: Path) -> None:
    page = visited(file)
    page.select_option("#arrays select", "forward")
    page.fill("#arrays input", "ENCODER layers.0 norm")
    assert column(page, 4) == [f"{FIRST}first divergence", "encoder.layers.0.feed_forward_norm"]
    assert page.locator(".verdicts button").all_text_contents() == [
        "all 2",
        "✗ diverged 2",
        "? inconclusive 0",
        "✓ passed 0",
    ]
    page.fill("#arrays input", "")
    page.click(".verdicts button:has-text('passed')")
    assert set(column(page, 2)) == {"✓ passed"}
    assert text(page, "#arrays .count") == "21 of 211 arrays"
    page.fill("#arrays input", "no such array")
    assert column(page, 1) == ["Nothing fits."]


def test_every_column_sorts_both_ways(visited: Visit, file: Path) -> None:
    page, content = visited(file), report()
    page.select_option("#arrays select", "forward")
    rows = content["stages"][3]["rows"]
    by_error = sorted(rows, key=lambda row: row["error"]["relative_rms"])
    page.click("#arrays th button:has-text('Relative RMS')")
    assert column(page, 4)[0] == by_error[-1]["name"]
    assert column(page, 4)[-1] == by_error[0]["name"]
    assert page.locator("#arrays th[aria-sort=descending]").all_text_contents() == ["Relative RMS"]
    page.focus("#arrays th button:has-text('Relative RMS')")
    page.keyboard.press("Enter")
    assert column(page, 4)[0] == by_error[0]["name"]
    assert page.locator("#arrays th[aria-sort=ascending]").all_text_contents() == ["Relative RMS"]
    assert text(page, "#announcement") == "Sorted by Relative RMS, ascending"
    page.click("#arrays th button:has-text('Array')")
    assert column(page, 4)[0].startswith("decoder.embedding")
    for title in ("#", "Verdict", "Stage", "Case", "Largest", "× allowed", "Most at", "Gate"):
        page.click(f"#arrays th button:text-is('{title}')")
        assert page.locator("#arrays th:not([aria-sort=none])").all_text_contents() == [title]


def test_thousands_of_rows_sort_at_once(visited: Visit, tmp_path: Path) -> None:
    page = visited(written(tmp_path, plain([make_row(number) for number in range(3000)])))
    assert page.locator("#arrays tbody tr").count() == 200
    page.click("#arrays .more")
    last = page.locator("#arrays tbody tr").nth(2999)
    last.wait_for(state="attached")
    assert page.locator("#arrays .more").is_hidden()
    took = page.evaluate(
        "() => { const button = [...document.querySelectorAll('#arrays th button')].find((one) => one.textContent === "
        "'Relative RMS');"
        " const start = performance.now(); button.click(); document.body.offsetHeight; return performance.now() - "
        "start; }"
    )
    assert took < 1000
    last.wait_for(state="attached")
    sizes = page.evaluate(
        "[...document.querySelectorAll('#arrays tbody td:nth-child(7)')].map((cell) => "
        "Number(cell.textContent.replace(',', '')))"
    )
    assert sizes == sorted(sizes, reverse=True)


# --- depth


def test_the_chart_tells_each_activation(visited: Visit, file: Path) -> None:
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


def test_the_pointer_chooses_and_checkboxes_hide(visited: Visit, file: Path) -> None:
    page, depth = visited(file), report()["depth"]
    page.locator(".depth").scroll_into_view_if_needed()
    box = page.locator(".depth svg[role=img]").bounding_box()
    at = 40
    page.mouse.move(box["x"] + 52 + (at + 0.5) * (box["width"] - 64) / len(depth), box["y"] + 100)
    assert text(page, ".where").startswith(depth[at]["name"])
    page.uncheck(".legend li:nth-child(4) input")
    page.uncheck(".legend li:nth-child(5) input")
    assert page.locator("path.points[data-series]").count() == 3
    assert page.locator(".legend .allowed").all_text_contents() == ["allowed10⁻¹²"]


# --- the tree


def test_the_tree_opens_to_the_first_divergence_and_by_mouse_and_keyboard(visited: Visit, file: Path) -> None:
    page = visited(file)
    first = page.locator(".tree .is-first")
    assert first.is_visible()
    assert text(page, ".tree .is-first").startswith(
        "✗diverged self_attention_normfirst divergencecandidate at fault: norm: ε outside"
    )
    decoder = page.locator(".tree > details", has=page.locator("> summary code", has_text="decoder"))
    inner = decoder.locator("code", has_text="token_embedding")
    assert inner.is_hidden()
    decoder.locator("> summary").click()
    assert inner.is_visible()
    page.keyboard.press("Enter")
    assert inner.is_hidden()
    page.keyboard.press("Space")
    assert inner.is_visible()
    page.click("text=Close all")
    assert first.is_hidden()
    page.click("text=Open all")
    assert page.locator(".tree details:not([open])").count() == 0
    assert page.locator(".tree .fault").count() == 12


def test_modules_have_their_worst_verdict(visited: Visit, file: Path) -> None:
    page = visited(file)
    lines = [
        " ".join(line.split()) for line in page.locator(".tree > details > summary, .tree > .leaf").all_text_contents()
    ]
    assert lines[0].startswith("✓passed mask")
    assert lines[1].startswith("✗diverged encoder20 of 30 diverge, 4 at fault")
    assert lines[2].startswith("✗diverged decoder37 of 48 diverge, 8 at fault")
    assert lines[3].startswith("✗diverged logits0.576")
    page.click("text=Open all")
    for name in (ACTIVATION, UNKNOWN):
        last = name.split(".")[-1]
        assert page.locator(".tree .leaf", has=page.locator(".fault")).locator(f"code:text-is('{last}')").count() >= 1


# --- the heat map


def test_the_heat_map_tells_each_value(visited: Visit, file: Path) -> None:
    page, heat_map = visited(file), report()["heat_map"]
    largest = max(max(row) for row in heat_map["values"])
    opacities = page.eval_on_selector_all(
        ".cells rect", "all => all.map((cell) => Number(cell.getAttribute('fill-opacity')))"
    )
    assert opacities == pytest.approx([value / largest for row in heat_map["values"] for value in row], abs=1e-3)
    page.locator(".heat").scroll_into_view_if_needed()
    ground = page.locator(".ground").bounding_box()
    page.mouse.move(ground["x"] + 3.5 * ground["width"] / 24, ground["y"] + 2.5 * ground["height"] / 28)
    factor, exponent = f"{heat_map['values'][2][3]:.2e}".split("e-0")
    assert text(page, ".readout") == f"{factor}×10⁻{'⁰¹²³⁴⁵⁶⁷⁸⁹'[int(exponent)]} 0, 2, column 3"
    page.focus(".heat svg[role=img]")
    page.keyboard.press("PageDown")
    assert text(page, ".readout").endswith(" 3, 6, column 3")
    assert text(page, "#announcement").endswith(" 3, 6, column 3")
    page.click(".heat button")
    darker = page.eval_on_selector_all(
        ".cells rect", "all => all.map((cell) => Number(cell.getAttribute('fill-opacity')))"
    )
    assert sum(darker) > sum(opacities), "a logarithm shows small values"


# --- the rest


def test_faults_have_a_row_each(visited: Visit, file: Path) -> None:
    page, faults = visited(file), report()["faults"]
    assert page.locator("#faults tbody td:nth-child(3)").all_text_contents() == [fault["node"] for fault in faults]
    page.click("#faults th button:has-text('Local error')")
    assert page.locator("#faults tbody td:nth-child(3)").first.text_content() == UNKNOWN
    assert text(page, "#faults .count") == "12 faults with 3 causes"


def test_the_environment_is_told(visited: Visit, file: Path) -> None:
    page, content = visited(file), report()
    assert page.locator(".hashes code").all_text_contents() == list(content["sha256"].values())
    assert "tf32off" in text(page, ".environment")


def test_a_parity_says_so(visited: Visit, tmp_path: Path) -> None:
    page = visited(written(tmp_path, report(False)))
    assert text(page, "h1") == "✓ The same function"
    assert page.locator(".figures dd:not(.more)").first.text_content() == "211 of 211"
    assert page.locator(".cause, .first, .at-fault path, .tree .is-first").count() == 0
    assert "There is no heat map." in text(page, "#heat")


def test_little_is_said_of_little(visited: Visit, tmp_path: Path) -> None:
    """No depth, no faults, numbers that JSON can't say, an array without an error; doubts come first."""
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


def test_the_theme_switches(visited: Visit, file: Path) -> None:
    def colours(page: Any) -> list[str]:
        wanted = [("body", "backgroundColor"), (".points", "fill"), (".cells", "fill"), (".mark.diverged", "color")]
        of = "([selector, name]) => getComputedStyle(document.querySelector(selector))[name]"
        return [page.evaluate(of, list(pair)) for pair in wanted]

    page = visited(file)
    light = colours(page)
    page.click("#theme")
    dark = colours(page)
    assert all(one != other for one, other in zip(light, dark, strict=True))
    assert colours(visited(file, color_scheme="dark")) == dark


def contrast(page: Any, selector: str) -> float:
    """Of a text on the first ground behind it that isn't transparent (WCAG 2.1, 1.4.3)."""
    return page.evaluate(
        """(selector) => {
          const light = (colour) => {
            const [r, g, b] = colour.match(/[\\d.]+/g).map((c) => c / 255);
            const linear = (c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
            return 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
          };
          const node = document.querySelector(selector);
          let behind = node;
          const isClear = (one) => /^rgba\\(.*, 0\\)$|transparent/.test(getComputedStyle(one).backgroundColor);
          while (isClear(behind)) behind = behind.parentElement;
          const [a, b] = [getComputedStyle(node).color, getComputedStyle(behind).backgroundColor].map(light);
          return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        }""",
        selector,
    )


def test_texts_stand_out(visited: Visit, file: Path) -> None:
    page = visited(file)
    page.click("text=Open all")
    texts = (
        ".lead",
        ".mark.passed",
        ".funnel .diverged .mark",
        ".funnel .diverged .count",
        ".funnel .inconclusive .count",
        ".funnel .inconclusive .mark",
        ".tree .tag",
        ".tree .tag.fault",
        ".tree .note",
        ".is-first .times",
        ".where .note",
    )
    for _ in ("light", "dark"):
        for selector in texts:
            assert contrast(page, selector) >= 4.5, selector
        page.click("#theme")


def spoiled(value: Any) -> Any:
    """The same with what would do harm in every text, but for those whose values are fixed."""
    if isinstance(value, dict):
        return {key: inner if key in ("verdict", "side") else spoiled(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [spoiled(inner) for inner in value]
    return value + HOSTILE if isinstance(value, str) else value


@pytest.mark.parametrize("width", [1200, 700, 390])
def test_no_width_scrolls_sideways(visited: Visit, file: Path, tmp_path: Path, width: int) -> None:
    long = json.loads(
        json.dumps(report()).replace("self_attention_norm", "x" * 120).replace("candidate.safetensors", "y" * 300)
    )
    for path in (file, written(tmp_path, long)):
        page = visited(path, width)
        page.click("text=Open all")
        assert page.evaluate("document.documentElement.scrollWidth") == width


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
