"""The page of attention in a real browser: it draws each map, reads each weight, and runs no token."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jax_transformer.cli import main

pytestmark = pytest.mark.usefixtures("quick_compilation")
Visit = Callable[..., Any]


@pytest.fixture(scope="module")
def file(drawn: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return plotted(drawn, tmp_path_factory.mktemp("pages"), drawn.text, drawn.target)


def plotted(drawn: Any, folder: Path, text: str, target: str) -> Path:
    page = folder / "attention.html"
    assert main(["plot", "attention", str(drawn.path), text, "--target", target, "--layer", "0", "-o", str(page)]) == 0
    return page


def readout(page: Any) -> str:
    return " ".join(page.inner_text(".readout").split())


def point_at(page: Any, row: int, column: int) -> None:
    """Moves the pointer into the cell at its labels, once the map is drawn anew for the size that it has now."""
    page.evaluate("() => new Promise(drawn => requestAnimationFrame(() => requestAnimationFrame(drawn)))")
    label = page.locator(f"[data-row='{row}']")
    label.evaluate("label => label.scrollIntoView({block: 'nearest'})")
    beside = label.bounding_box()
    ground = page.locator(".ground").bounding_box()
    columns = page.locator("[data-column]").count()
    page.mouse.move(ground["x"] + (column + 0.5) * ground["width"] / columns, beside["y"] + beside["height"] / 2)


def choose(page: Any, name: str, label: str) -> None:
    page.check(f"input[name={name}][value^='{label}']")


def output(weights: np.ndarray, row: int, column: int) -> str:
    return f"{weights[row, column]:.3f}"


def test_the_map_reads_each_weight_and_its_tokens(visited: Visit, file: Path, drawn: Any) -> None:
    page = visited(file)
    assert page.title() == page.inner_text("h1") == "ein Haus ist alt"
    assert readout(page) == "Point at a cell, tap it, or move with the arrow keys."
    mean = drawn.weights["cross"][0].mean(axis=0)
    for row, column in ((0, 0), (3, 1), (5, 4)):
        point_at(page, row, column)
        query, key = [*drawn.target.split(), "<eos>"][row], [*drawn.text.split(), "<eos>"][column]
        assert readout(page) == f"{output(mean, row, column)} {query} attends to {key}"
        assert page.locator(".labels .at").all_text_contents() == [query, key]
    page.mouse.move(5, 5)
    assert readout(page).startswith("Point at a cell")


def test_selectors_switch_the_map(visited: Visit, file: Path, drawn: Any) -> None:
    page = visited(file)
    page.focus(".canvas svg")
    for key in ("ArrowDown", "ArrowDown", "ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
    choose(page, "layer", "1")
    choose(page, "head", "1")
    assert readout(page).startswith(output(drawn.weights["cross"][1, 1], 2, 1)), (
        "the cell stays, and its weight is the other map's"
    )
    choose(page, "kind", "Encoder")
    assert page.inner_text("figcaption .title") == "Encoder self-attention, layer 0, head 1"
    assert page.locator("input[name=layer]").count() == 1
    assert page.locator("input[name=head]").count() == 1 + 3
    point_at(page, 2, 3)
    assert readout(page).startswith(output(drawn.weights["encoder"][0, 1], 2, 3))
    choose(page, "head", "2")
    choose(page, "kind", "Decoder")
    assert page.inner_text("figcaption .title") == "Decoder self-attention, layer 0, head 1", "there is no head 2"
    point_at(page, 2, 1)
    assert readout(page) == f"{output(drawn.weights['decoder'][0, 1], 2, 1)} IST attends to EIN"
    point_at(page, 1, 4)
    assert readout(page).startswith("0.000"), "what comes later isn't seen"


def test_hostile_tokens_are_inert(visited: Visit, drawn: Any, tmp_path: Path) -> None:
    page = visited(plotted(drawn, tmp_path, drawn.hostile, drawn.hostile))
    tokens = drawn.hostile.replace("\u202e", "\ufffd").split()
    for i, token in enumerate(tokens):
        point_at(page, i, i)
        assert page.locator(".readout bdi").all_text_contents() == [token, token]
    page.wait_for_timeout(100)
    assert page.evaluate("window.broken") is None
    assert page.locator("img, main script, main b:not(.weight)").count() == 0
    assert page.locator("script").count() == 2
    assert page.text_content("h1") == drawn.hostile
    assert page.text_content(".translation") == f"Translation: {drawn.hostile}"
    width = page.locator(".labels text").evaluate_all(
        "all => Math.min(...all.map((text) => text.getBoundingClientRect().left))"
    )
    assert width >= page.locator(".canvas").bounding_box()["x"], "no label is cut"


def test_a_sentence_is_chosen_from_a_list(visited: Visit, drawn: Any, tmp_path: Path) -> None:
    path = tmp_path / "attention.html"
    sentences = ["ein Haus", drawn.text]
    assert (
        main(["plot", "attention", str(drawn.path), *sentences, "--target", "EIN", drawn.target, "-o", str(path)]) == 0
    )
    page = visited(path)
    title = page.inner_text("figcaption .title")
    layer = int(title.split()[2].rstrip(","))
    assert f"The page opens on layer {layer}, the sharpest" in page.inner_text("#map")
    choose(page, "head", "1")
    page.check("input[name=sentence] >> nth=1")
    assert page.title() == page.inner_text("h1") == drawn.text
    assert page.evaluate("document.activeElement.value") == "1", "the focus stays in the list"
    assert page.inner_text("figcaption .title") == f"Cross-attention, layer {layer}, head 1", "the choice stays"
    point_at(page, 2, 1)
    assert readout(page).startswith(output(drawn.weights["cross"][layer, 1], 2, 1))
    assert page.locator(".pairs .to").all_text_contents() == drawn.target.split()
