"""The page of attention in a real browser: it draws each map, tells each weight, and no token in it ever runs."""

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
    assert main(["plot", "attention", str(drawn.path), text, "--target", target, "-o", str(page)]) == 0
    return page


def readout(page: Any) -> str:
    return " ".join(page.inner_text(".readout").split())


def point_at(page: Any, row: int, column: int) -> None:
    """Moves the pointer into a cell, where the labels say that it is."""
    label = page.locator(f"[data-row='{row}']")
    label.scroll_into_view_if_needed()
    beside = label.bounding_box()
    ground = page.locator(".ground").bounding_box()
    columns = page.locator("[data-column]").count()
    page.mouse.move(ground["x"] + (column + 0.5) * ground["width"] / columns, beside["y"] + beside["height"] / 2)


def choose(page: Any, name: str, label: str) -> None:
    page.check(f"input[name={name}][value^='{label}']")


def told(weights: np.ndarray, row: int, column: int) -> str:
    return f"{weights[row, column]:.3f}"


def test_the_map_tells_each_weight_and_its_tokens(visited: Visit, file: Path, drawn: Any) -> None:
    page = visited(file)
    assert page.title() == "Attention · ein Haus ist alt"
    assert readout(page) == "Point at a cell, tap it, or move with the arrow keys."
    mean = drawn.weights["cross"][0].mean(axis=0)
    for row, column in ((0, 0), (3, 1), (5, 4)):
        point_at(page, row, column)
        query, key = [*drawn.target.split(), "<eos>"][row], [*drawn.text.split(), "<eos>"][column]
        assert readout(page) == f"{told(mean, row, column)} {query} attends to {key}"
        assert page.locator(".labels .at").all_text_contents() == [query, key]
    page.mouse.move(5, 5)
    assert readout(page).startswith("Point at a cell")


def test_cells_are_as_dark_as_their_weights(visited: Visit, file: Path, drawn: Any) -> None:
    page = visited(file)
    opacities = page.eval_on_selector_all(
        ".cells rect", "all => all.map((cell) => Number(cell.getAttribute('fill-opacity')))"
    )
    mean = drawn.weights["cross"][0].mean(axis=0)
    np.testing.assert_allclose(opacities, (mean / mean.max()).flatten(), atol=1e-3)


def test_selectors_switch_the_map(visited: Visit, file: Path, drawn: Any) -> None:
    page = visited(file)
    page.focus(".canvas svg")
    for key in ("ArrowDown", "ArrowDown", "ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
    choose(page, "layer", "1")
    choose(page, "head", "1")
    assert readout(page).startswith(told(drawn.weights["cross"][1, 1], 2, 1)), (
        "the cell stays, and its weight is the other map's"
    )
    choose(page, "kind", "Encoder")
    assert page.inner_text("figcaption .title") == "Encoder self-attention, layer 0, head 1"
    assert page.locator("input[name=layer]").count() == 1
    assert page.locator("input[name=head]").count() == 1 + 3
    point_at(page, 2, 3)
    assert readout(page).startswith(told(drawn.weights["encoder"][0, 1], 2, 3))
    choose(page, "head", "2")
    choose(page, "kind", "Decoder")
    assert page.inner_text("figcaption .title") == "Decoder self-attention, layer 0, head 1", "there is no head 2"
    point_at(page, 2, 1)
    assert readout(page) == f"{told(drawn.weights['decoder'][0, 1], 2, 1)} IST attends to EIN"
    point_at(page, 1, 4)
    assert readout(page).startswith("0.000"), "what comes later isn't seen"


def test_small_maps_are_selectors_too(visited: Visit, file: Path, drawn: Any) -> None:
    page = visited(file)
    assert page.locator(".overview canvas").count() == 2 * 3
    page.click("button[aria-label='layer 1, head 0']")
    assert page.inner_text("figcaption .title") == "Cross-attention, layer 1, head 0"
    assert page.locator("input[name=layer]:checked").input_value() == "1"
    assert page.locator(".overview [aria-pressed=true]").get_attribute("aria-label") == "layer 1, head 0"
    alphas = page.evaluate(
        "() => { const c = document.querySelector('[aria-label=\"layer 1, head 0\"] canvas');"
        " return Array.from(c.getContext('2d').getImageData(0, 0, c.width, c.height).data).filter((_, i) => i % 4 === "
        "3); }"
    )
    weights = drawn.weights["cross"][1, 0]
    np.testing.assert_allclose(alphas, (255 * weights / weights.max()).flatten(), atol=2)


def test_the_keyboard_reaches_everything(visited: Visit, file: Path, drawn: Any) -> None:
    page = visited(file)
    page.focus("input[name=head]:checked")
    page.keyboard.press("ArrowRight")
    assert page.inner_text("figcaption .title") == "Cross-attention, layer 0, head 0"
    page.focus(".canvas svg")
    weights = drawn.weights["cross"][0, 0]
    page.keyboard.press("ArrowDown")
    assert readout(page).startswith(told(weights, 0, 0))
    for key, (row, column) in (
        ("ArrowDown", (1, 0)),
        ("End", (1, 4)),
        ("ArrowRight", (1, 4)),
        ("PageDown", (5, 4)),
        ("ArrowLeft", (5, 3)),
    ):
        page.keyboard.press(key)
        assert readout(page).startswith(told(weights, row, column)), key
    assert page.inner_text("#announcement").startswith(told(weights, 5, 3))
    page.keyboard.press("Escape")
    assert readout(page).startswith("Point at a cell")


def test_a_finger_leaves_what_it_has_chosen(visited: Visit, file: Path, drawn: Any) -> None:
    page = visited(file, 390, has_touch=True, is_mobile=True)
    ground = page.locator(".ground").bounding_box()
    page.touchscreen.tap(ground["x"] + ground["width"] * 0.3, ground["y"] + ground["height"] * 0.25)
    assert readout(page) == f"{told(drawn.weights['cross'][0].mean(axis=0), 1, 1)} HAUS attends to Haus"


def test_the_word_alignment_is_printed(visited: Visit, file: Path, drawn: Any) -> None:
    page = visited(file)
    weights = drawn.weights["cross"][0].mean(axis=0)[:5, :4]
    assert page.inner_text(".pharaoh code") == " ".join(
        f"{source}-{target}" for target, source in enumerate(weights.argmax(axis=1))
    )
    assert page.locator(".pairs .to").all_inner_texts() == drawn.target.split()
    assert page.locator(".pairs .from").all_inner_texts() == [
        drawn.text.split()[source] for source in weights.argmax(axis=1)
    ]


def test_the_theme_colours_both_sizes_of_maps(visited: Visit, file: Path) -> None:
    def colours(page: Any) -> list[str]:
        """Of the page, of the large map's cells, and of a small map's darkest pixel."""
        large = [
            "getComputedStyle(document.body).backgroundColor",
            "getComputedStyle(document.querySelector('.cells')).fill",
        ]
        small = "Array.from(document.querySelector('.overview canvas').getContext('2d').getImageData(0, 0, 5, 6).data)"
        pixels = np.reshape(page.evaluate(small), (-1, 4))
        red, green, blue, _ = pixels[pixels[:, 3].argmax()].tolist()
        return [*map(page.evaluate, large), f"rgb({red}, {green}, {blue})"]

    light, dark = colours(visited(file)), colours(visited(file, color_scheme="dark"))
    assert all(one != other for one, other in zip(light, dark, strict=True))
    for _, large, small in (light, dark):
        assert large == small
    page = visited(file)
    page.click("#theme")
    assert colours(page) == dark


@pytest.mark.parametrize("width", [1200, 390])
def test_no_width_scrolls_sideways(visited: Visit, file: Path, drawn: Any, tmp_path: Path, width: int) -> None:
    long = " ".join([drawn.hostile] * 8)
    for path in (file, plotted(drawn, tmp_path, long, long)):
        page = visited(path, width)
        for kind in ("Encoder", "Decoder"):
            choose(page, "kind", kind)
            assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.evaluate("(c => c.scrollWidth > c.clientWidth)(document.querySelector('.canvas'))"), (
        "the map scrolls by itself"
    )


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
    assert page.locator(".pair dd").all_text_contents() == [drawn.hostile, drawn.hostile]
    width = page.locator(".labels text").evaluate_all(
        "all => Math.min(...all.map((text) => text.getBoundingClientRect().left))"
    )
    assert width >= page.locator(".canvas").bounding_box()["x"], "no label is cut"
