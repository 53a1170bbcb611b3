"""`plot attention` draws the weights that the model computes, in pages and in pictures; and its errors."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from jax_transformer.cli import main
from jax_transformer.decoding.translation import translate
from jax_transformer.pages import attention
from jax_transformer.pages.attention import Maps
from jax_transformer.plotting import attention as attention_plots
from jax_transformer.storage.model_directory import save_model

pytestmark = pytest.mark.usefixtures("quick_compilation")
KINDS = ("cross", "encoder", "decoder")


def plot(drawn: Any, output: Path, *options: str, sentence: str | None = None) -> Path:
    forced = () if "--target" in options else ("--target", drawn.target)
    sentence = drawn.text if sentence is None else sentence
    assert main(["plot", "attention", str(drawn.path), sentence, "-o", str(output), *forced, *options]) == 0
    return output


def embedded(page: Path) -> Any:
    (data,) = re.findall(
        r'<script type="application/json" id="data">(.*?)</script>', page.read_text(encoding="utf-8"), re.DOTALL
    )
    return json.loads(data)


def numbers(kind: dict[str, Any]) -> np.ndarray:
    return np.frombuffer(base64.b64decode(kind["weights"]), "<u2").reshape(kind["shape"]) / 65535


# --- the page


def test_the_page_has_the_weights_of_the_trace(drawn: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = plot(drawn, tmp_path / "a.html")
    assert capsys.readouterr().out.strip() == str(page)
    (data,) = embedded(page)["examples"]
    assert [kind["name"] for kind in data["kinds"]] == list(KINDS)
    for kind in data["kinds"]:
        expected = drawn.weights[kind["name"]]
        assert tuple(kind["shape"]) == (expected.shape[0], expected.shape[1], len(kind["queries"]), len(kind["keys"]))
        received = numbers(kind)[:, :, : expected.shape[2], : expected.shape[3]]
        np.testing.assert_allclose(received, expected, atol=0.6 / 65535)
    assert list(tmp_path.iterdir()) == [page]


def test_rows_are_named_for_the_tokens_that_they_predict(drawn: Any, tmp_path: Path) -> None:
    cross, encoder, decoder = embedded(plot(drawn, tmp_path / "a.html"))["examples"][0]["kinds"]
    source, target = [*drawn.text.split(), "<eos>"], [*drawn.target.split(), "<eos>"]
    assert (cross["queries"], cross["keys"]) == (target, source)
    assert (encoder["queries"], encoder["keys"]) == (source, source)
    assert (decoder["queries"], decoder["keys"]) == (target, ["<bos>", *target[:-1]])


def test_the_page_has_the_word_alignment(drawn: Any, tmp_path: Path) -> None:
    (data,) = embedded(plot(drawn, tmp_path / "a.html"))["examples"]
    assert (data["source"]["words"], data["target"]["words"]) == (drawn.text.split(), drawn.target.split())
    weights = drawn.weights["cross"][0].mean(axis=0)
    assert data["alignment"] == {"pairs": [[int(weights[t, :4].argmax()), t] for t in range(5)], "layer": 0}


def test_without_a_target_it_is_the_translation(drawn: Any, tmp_path: Path) -> None:
    page = tmp_path / "a.html"
    assert main(["plot", "attention", str(drawn.path), drawn.hostile, "-o", str(page)]) == 0
    (expected,) = translate(drawn.model, [drawn.hostile])
    (data,) = embedded(page)["examples"]
    assert data["target"]["text"] == expected
    assert data["kinds"][0]["queries"][-1] == "<eos>"
    assert len(data["kinds"][0]["queries"]) == len(expected.split()) + 1


def test_options_select_the_first_map(drawn: Any, tmp_path: Path) -> None:
    chosen = embedded(plot(drawn, tmp_path / "a.html", "--kind", "decoder", "--layer", "1", "--head", "0"))["shown"]
    assert chosen == {"kind": "decoder", "layer": 1, "head": 0}


@pytest.mark.parametrize("kind", KINDS)
def test_the_sharpest_layer_comes_first(drawn: Any, tmp_path: Path, kind: str) -> None:
    """Of the kind that is shown: by the entropy of each row, averaged over heads and rows."""
    data = embedded(plot(drawn, tmp_path / "a.html", "--kind", kind))
    (weights,) = (numbers(each) for each in data["examples"][0]["kinds"] if each["name"] == kind)
    wanted = -(weights * np.log(np.maximum(weights, 1e-30))).sum(axis=-1).mean(axis=(1, 2))
    np.testing.assert_allclose(data["shown"].pop("entropies"), wanted, atol=1e-3)
    assert data["shown"] == {"kind": kind, "layer": int(wanted.argmin()), "head": None}


def test_several_sentences_are_on_one_page(drawn: Any, tmp_path: Path) -> None:
    """Those of a file follow; the sharpest layer is that of all their rows."""
    (tmp_path / "more.txt").write_text("Haus\n\nalt ist\n", encoding="utf-8")
    page, sentences = tmp_path / "a.html", [drawn.text, "ein", "Haus", "alt ist"]
    options = ["--input", str(tmp_path / "more.txt"), "-o", str(page)]
    assert main(["plot", "attention", str(drawn.path), *sentences[:2], *options]) == 0
    together = embedded(page)
    assert [example["source"]["text"] for example in together["examples"]] == sentences
    assert [example["target"]["text"] for example in together["examples"]] == translate(drawn.model, sentences)
    entropies, rows = [], []
    for number, sentence in enumerate(sentences):
        assert main(["plot", "attention", str(drawn.path), sentence, "-o", str(page)]) == 0
        alone = embedded(page)
        for one, other in zip(alone["examples"][0]["kinds"], together["examples"][number]["kinds"], strict=True):
            np.testing.assert_allclose(numbers(one), numbers(other), atol=2 / 65535)
        entropies.append(alone["shown"]["entropies"])
        rows.append(len(alone["examples"][0]["kinds"][0]["queries"]))
    np.testing.assert_allclose(together["shown"]["entropies"], np.average(entropies, axis=0, weights=rows), rtol=1e-5)


def test_each_sentence_has_its_own_target(drawn: Any, tmp_path: Path) -> None:
    page = tmp_path / "a.html"
    arguments = [str(drawn.path), "ein", "Haus", "--target", "EIN", "HAUS ALT", "-o", str(page)]
    assert main(["plot", "attention", *arguments]) == 0
    assert [example["target"]["text"] for example in embedded(page)["examples"]] == ["EIN", "HAUS ALT"]


def test_tokens_never_become_markup(drawn: Any, tmp_path: Path) -> None:
    harmless = plot(drawn, tmp_path / "a.html").read_text(encoding="utf-8")
    page = plot(drawn, tmp_path / "b.html", "--target", drawn.hostile, sentence=drawn.hostile)
    assert page.read_text(encoding="utf-8").count("<") == harmless.count("<")
    (data,) = embedded(page)["examples"]
    assert (data["source"]["text"], data["target"]["text"]) == (drawn.hostile, drawn.hostile)
    assert data["kinds"][0]["keys"][-2] == "a\ufffdb", "what turns the direction of text is not let loose on labels"
    assert "👩‍👩‍👧" in data["kinds"][0]["keys"]


def test_the_page_asks_for_nothing(drawn: Any, tmp_path: Path) -> None:
    page = plot(drawn, tmp_path / "a.html").read_text(encoding="utf-8")
    assert "default-src 'none'" in page
    assert "{{" not in page
    assert set(re.findall(r"\w+://[^\s'\"]+", page)) == {"http://www.w3.org/2000/svg"}


def test_every_source_of_the_page_is_used() -> None:
    names = {path.name for path in attention.TEMPLATE.iterdir()}
    assert names == {*attention.SCRIPTS, attention.STYLE}


# --- the picture


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Returns the figures that the command draws."""
    from jax_transformer.plotting import style as plot_style

    saved: list[Figure] = []
    write: Callable[..., None] = plot_style.save
    monkeypatch.setattr(
        plot_style, "save", lambda figure, path, **options: (saved.append(figure), write(figure, path, **options))
    )
    return saved


def panels(figure: Figure) -> dict[str, np.ndarray]:
    return {
        axes.get_title(): np.asarray(axes.images[0].get_array())
        for axes in figure.axes
        if axes.images and axes.get_title()
    }


@pytest.mark.parametrize("kind", KINDS)
def test_the_picture_has_the_weights_of_the_trace(drawn: Any, figures: list[Figure], tmp_path: Path, kind: str) -> None:
    plot(drawn, tmp_path / "a.png", "--kind", kind)
    layers, heads, rows, columns = drawn.weights[kind].shape
    received = panels(figures[0])
    assert list(received) == [f"layer {layer}, head {head}" for layer in range(layers) for head in range(heads)]
    for layer in range(layers):
        for head in range(heads):
            map_ = received[f"layer {layer}, head {head}"]
            np.testing.assert_allclose(map_[:rows, :columns], drawn.weights[kind][layer, head], rtol=1e-5, atol=1e-6)
    largest = max(map_.max() for map_ in received.values())
    assert {axes.images[0].get_clim() for axes in figures[0].axes if axes.images} == {(0.0, largest)}


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_a_map_is_drawn_with_its_tokens(drawn: Any, figures: list[Figure], tmp_path: Path, suffix: str) -> None:
    plot(drawn, tmp_path / f"a{suffix}", "--layer", "1", "--head", "0", "--dark")
    assert list(panels(figures[0])) == ["layer 1, head 0"]
    axes = figures[0].axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == [*drawn.target.split(), "<eos>"]
    assert [label.get_text() for label in axes.get_xticklabels()] == [*drawn.text.split(), "<eos>"]
    plot(drawn, tmp_path / "b.png", "--head", "1")
    assert list(panels(figures[1])) == ["layer 0, head 1", "layer 1, head 1"]


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_long_sentences_of_odd_tokens_are_drawn(drawn: Any, figures: list[Figure], tmp_path: Path, suffix: str) -> None:
    """Labels that would be unreadable are skipped, and no token is parsed as mathematics."""
    text = " ".join([drawn.hostile] * 8)
    plot(drawn, tmp_path / f"a{suffix}", "--target", text, sentence=text)
    rows, columns = panels(figures[0])["layer 0, head 0"].shape
    assert rows == columns == 8 * len(drawn.hostile.split()) + 1
    labels = [label.get_text() for label in figures[0].axes[0].get_yticklabels()]
    assert 10 < len(labels) < rows
    assert max(map(len, labels)) <= attention_plots.LONGEST_LABEL


def test_characters_that_no_font_has_are_boxes() -> None:
    maps = Maps("Cross-attention", np.ones((1, 1, 1, 2)), ["a\u0378"], ["b", "ש"], "row", "column")
    axes = attention_plots.heat_maps(maps).axes[0]
    assert [label.get_text() for label in [*axes.get_yticklabels(), *axes.get_xticklabels()]] == ["a□", "b", "ש"]


# --- mistakes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["{model}", " "], "expected a sentence to translate; received an empty one"),
        (["{model}"], "expected a sentence to translate; received none: write one behind the model, or use --input"),
        (["{model}", "x", "--input", "nowhere.txt"], "nowhere.txt"),
        (["{model}", "x", "y"], "expected one sentence for a picture; received 2: an .html page takes several"),
        (
            ["{model}", "x", "y", "-o", "a.html", "--target", "z"],
            "--target: expected a translation for each of 2 sentences; received 1",
        ),
        (["{model}", "x", "y " * 130, "-o", "a.html"], "sentence 2: expected from 1 to 128 tokens"),
        (
            ["{model}", "x", "y", "-o", "a.html", "--target", "z", "z " * 128],
            "--target 2: expected at most 127 tokens, the model's longest; received 128",
        ),
        (["{model}", "x " * 130], "the sentence: expected from 1 to 128 tokens, the model's longest; received 131"),
        (
            ["{model}", "x", "--target", "x " * 128],
            "--target: expected at most 127 tokens, the model's longest; received 128",
        ),
        (
            ["{model}", "x", "-o", "a.jpg"],
            "a.jpg: expected a file name that ends in one of .png, .svg, .pdf, .html; received '.jpg'",
        ),
        (["{model}", "x", "-o", "nowhere/a.html"], "expected a directory that exists; there is no nowhere"),
        (
            ["{model}", "x", "--layer", "2"],
            "--layer must be from 0 to 1 for this model's cross attention; received 2",
        ),
        (
            ["{model}", "x", "--head", "-1"],
            "--head must be from 0 to 1 for this model's cross attention; received -1",
        ),
        (
            ["{model}", "x", "--kind", "encoder", "--layer", "1"],
            "--layer must be from 0 to 0 for this model's encoder attention",
        ),
        (
            ["{model}", "x", "--source-tag", "<2de>"],
            "source tag: expected none, for the vocabulary has no tags; received '<2de>'",
        ),
        (["nowhere", "x"], "nowhere"),
        (
            ["{bare}", "x"],
            "expected a model with tokenizers; this one has none: train it here, or port it together with its "
            "vocabularies",
        ),
    ],
)
def test_mistakes_give_one_line(
    drawn: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    message: str,
) -> None:
    import dataclasses

    monkeypatch.chdir(tmp_path)
    if "{bare}" in options:
        save_model(dataclasses.replace(drawn.model, source_tokenizer=None, target_tokenizer=None), tmp_path / "bare")
    paths = {"{model}": str(drawn.path), "{bare}": "bare"}
    assert main(["plot", "attention", *(paths.get(option, option) for option in options)]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert [path.name for path in tmp_path.iterdir()] == (["bare"] if "{bare}" in options else [])


def test_the_page_is_whole_or_the_old_one(drawn: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    (tmp_path / "a.html").write_text("old")

    def fail(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", fail)
    assert main(["plot", "attention", str(drawn.path), drawn.text, "-o", str(tmp_path / "a.html")]) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["a.html"]
    assert (tmp_path / "a.html").read_text() == "old"
