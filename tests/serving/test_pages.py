"""The server's pages in a real browser: translating, attention between words, mistakes, requests from the API page."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from served_pages import Open, on_a_thread

from jax_transformer.decoding.alignment import attention
from jax_transformer.decoding.prepared import PreparedModel
from jax_transformer.decoding.translation import translate, translate_each
from jax_transformer.serving.engine import Engine
from jax_transformer.serving.limits import Limits
from jax_transformer.serving.service import Service

pytestmark = pytest.mark.usefixtures("quick_compilation")

LIMITS = Limits(max_texts=40, max_characters=300, max_weights=500, max_beam_size=4)
HOSTILE = "<img/src=x/onerror='window.broken=1'> zwei </script><script>window.broken=2</script>"
SIDES = {
    "source": {"tokens": ["a", "b", ",", "</s>"], "words": ["a", "b,"], "token_words": [0, 1, 1, None], "unknown": [2]},
    "target": {"tokens": ["x", "y", "z", "</s>"], "words": ["xy", "z"], "token_words": [0, 0, 1, None], "unknown": []},
}
SWAPPED = {**SIDES["target"], "tokens": ["z", "x", "y", "</s>"], "words": ["z", "xy"], "token_words": [0, 1, 1, None]}
SHARP = [[1.0, 0.0, 0.0, 0.0], [0.2, 0.3, 0.4, 0.1], [0.0, 0.5, 0.5, 0.0], [0.0, 0.0, 0.0, 1.0]]
EVEN = [[0.25] * 4] * 4
ANSWER = {
    "translations": [
        {
            "text": "xy z",
            "score": -0.5,
            "tokens": SIDES["target"]["tokens"],
            "cut_off": True,
            "attention": [{**SIDES, "weights": [[EVEN], [SHARP]], "entropies": [1.386, 0.5]}],
        }
    ]
}


@pytest.fixture(scope="module")
def site(model: PreparedModel) -> Iterator[str]:
    """Returns the address of a server on a thread of this process."""
    service = Service(Engine(model, LIMITS, rows=8), max_wait_ms=0, name="a <b>model</b>")
    with on_a_thread(service) as address:
        yield address


def ask(page: Any, text: str) -> None:
    """Translates a text, and waits for what the page says."""
    page.fill("#text", text)
    page.press("#text", "Control+Enter")
    page.wait_for_selector("div[aria-busy=false]", state="attached")


def lines(page: Any, article: int = 0) -> list[list[str]]:
    """Returns the words of the source and of the translation."""
    found = page.locator("article").nth(article).locator(".line")
    return [found.nth(side).locator(".word").all_text_contents() for side in (0, 1)]


def shares(page: Any, side: int) -> list[float]:
    words = page.locator("article").first.locator(".line").nth(side).locator(".word")
    return [
        float(share)
        for share in words.evaluate_all("all => all.map(one => one.style.getPropertyValue('--share') || 0)")
    ]


def test_lines_are_translated_with_the_weights_of_the_model(opened: Open, model: PreparedModel) -> None:
    page = opened()
    texts = ["eins zwei drei", "", "vier"]
    ask(page, "\n".join(texts))
    assert re.fullmatch(r"2 lines in \d+\.\d+ s", page.inner_text(".status"))
    assert page.locator("article h3").all_text_contents() == ["Line 1", "Line 3"]
    expected = translate_each(model, texts)
    for article, number in enumerate((0, 2)):
        assert model.target_tokenizer is not None
        tokens = model.target_tokenizer.tokens(expected[number].parts[0].hypotheses[0].ids)
        assert lines(page, article) == [[*texts[number].split(), "<eos>"], tokens]
    part = expected[0].parts[0]
    weights = attention(model, part.source_ids, part.hypotheses[0].ids).cross[0]
    page.locator("article").first.locator(".line").nth(1).locator(".word").first.hover()
    np.testing.assert_allclose(shares(page, 0), weights.mean(axis=0)[0], atol=2e-4)
    page.check("input[name=head][value='1']")
    page.locator("article").first.locator(".line").nth(0).locator(".word").nth(2).hover()
    np.testing.assert_allclose(shares(page, 1), weights[1][:, 2], atol=2e-4)


def test_weights_of_tokens_are_summed_and_averaged_for_words(opened: Open) -> None:
    """The source's tokens are summed, the translation's averaged; the sharpest layer is shown first, and named."""
    page = opened()
    page.route("**/translate", lambda route: route.fulfill(json=ANSWER))
    ask(page, "a b,")
    assert lines(page) == [["a", "b,", "</s>"], ["xy", "z", "</s>"]]
    assert page.locator("input[name=layer]:checked").input_value() == "1"
    assert "the mean entropy of its weights is 0.50 (layer 0: 1.39)" in page.inner_text("#translations")
    assert "Cut off" in page.inner_text("article")
    page.locator(".line").nth(1).locator(".word").first.hover()
    np.testing.assert_allclose(shares(page, 0), [0.6, 0.35, 0.05])
    assert page.inner_text(".readout") == "xy attends to a 0.60, b, 0.35, </s> 0.05"
    page.locator(".line").nth(0).locator(".word").nth(1).hover()
    np.testing.assert_allclose(shares(page, 1), [0.35, 1.0, 0.0])
    assert page.inner_text(".readout") == "b, is attended to by z 1.00, xy 0.35"
    page.locator(".line").nth(0).locator(".word").nth(1).click()
    page.check("input[name=layer][value='0']")
    np.testing.assert_allclose(shares(page, 1), [0.5, 0.5, 0.5])
    assert page.locator(".line .unknown").all_text_contents() == ["b,"]
    assert page.inner_text(".note >> nth=0") == "Unknown to the model: b,."


def test_the_keyboard_walks_through_the_words(opened: Open) -> None:
    page = opened()
    page.route("**/translate", lambda route: route.fulfill(json=ANSWER))
    ask(page, "a b,")
    page.focus("input[name=head]:checked")
    for key, said in (
        ("Tab", "a is attended to by xy 0.60"),
        ("ArrowRight", "b, is attended to by z 1.00, xy 0.35"),
        ("Tab", "xy attends to a 0.60, b, 0.35, </s> 0.05"),
        ("End", "</s> attends to </s> 1.00"),
    ):
        page.keyboard.press(key)
        assert page.inner_text(".readout") == said
        assert page.text_content("#announcement") == said
    page.keyboard.press("Escape")
    assert page.inner_text(".readout") == ""
    assert page.locator(".line [tabindex='0']").count() == 2, "each line is one stop of the Tab key"


def test_a_tap_keeps_a_word_until_the_next(opened: Open) -> None:
    page = opened(has_touch=True)
    page.route("**/translate", lambda route: route.fulfill(json=ANSWER))
    ask(page, "a b,")
    word = page.locator(".line").nth(1).locator(".word").nth(1)
    word.tap()
    assert page.inner_text(".readout") == "z attends to b, 1.00"
    word.tap()
    assert page.inner_text(".readout") == ""


def test_several_translations_of_a_line(opened: Open) -> None:
    page, bodies = opened(), []
    (best,) = ANSWER["translations"]
    second = {**best, "text": "z xy", "score": -1.25, "attention": [{**best["attention"][0], "target": SWAPPED}]}
    empty = {**best, "text": "", "score": None, "attention": []}
    answer = {"translations": [{**best, "hypotheses": [best, second, empty]}]}
    page.route("**/translate", lambda route: (bodies.append(route.request.post_data_json), route.fulfill(json=answer)))
    page.select_option("select >> nth=0", "3")
    ask(page, "a b,")
    assert bodies == [
        {"texts": ["a b,"], "attention": True, "num_return": 3, "beam_size": 3, "source_tag": "", "target_tag": ""}
    ]
    assert page.locator(".hypotheses .text").all_text_contents() == ["xy z", "z xy", "(empty)"]
    assert page.locator(".hypotheses .number").all_text_contents() == ["−0.500", "−1.250", "–"]
    page.check(".hypotheses input >> nth=1")
    assert lines(page)[1] == ["z", "xy", "</s>"]
    page.check(".hypotheses input >> nth=2")
    assert "The translation is empty." in page.inner_text("article")


def test_markup_and_unknown_words_are_text(opened: Open) -> None:
    page = opened()
    assert page.title() == "Translate · a <b>model</b>"
    ask(page, f"{HOSTILE}\nzwei")
    assert page.locator("article .line").first.text_content() == f"{HOSTILE}<eos>"
    assert page.locator("main img, main script").count() == 0
    page.wait_for_timeout(50)
    assert page.evaluate("window.broken") is None
    unknown = [word for word in HOSTILE.split() if word != "zwei"]
    assert page.locator(".note .unknown").all_text_contents() == unknown


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "Type a text to translate."),
        (" \n \t ", "Type a text to translate: these are only spaces."),
        ("eins\n" + "zwei " * 30, "texts[1]: expected at most 24 tokens, the model's longest; received 31Line 2: zwei"),
        ("x" * 301, "texts[0]: expected at most 300 characters (--max-characters); received 301"),
        ("eins\n" * 41, "texts: expected at most 40 texts (--max-texts); received 41"),
    ],
)
def test_mistakes_are_shown_as_the_server_says_them(opened: Open, text: str, said: str) -> None:
    page = opened()
    ask(page, text)
    assert (page.text_content(".problem") or "").startswith(said)
    assert page.input_value("#text") == text
    assert page.locator("article").count() == 0
    ask(page, "eins\nzwei")
    assert page.text_content(".problem") == ""
    assert page.locator("article").count() == 2


def test_without_room_for_weights_there_are_translations(opened: Open, model: PreparedModel) -> None:
    page = opened()
    texts = ["eins zwei drei vier fünf sechs"] * 40
    ask(page, "\n".join(texts))
    note = page.inner_text("#translations .note >> nth=0")
    assert note.startswith("No attention is shown. attention: expected at most 500 attention weights in an answer")
    found = [text.removeprefix("Translation: ") for text in page.locator(".line:nth-child(2)").all_text_contents()]
    assert found == translate(model, texts)


def test_a_server_that_stops_leaves_the_text(opened: Open) -> None:
    page = opened()
    page.route("**/translate", lambda route: route.abort())
    ask(page, "eins zwei")
    assert page.inner_text(".problem").startswith("No answer: the server has stopped")
    assert page.input_value("#text") == "eins zwei"
    page.unroute("**/translate")
    full = {"error": "the queue is full"}
    page.route("**/translate", lambda route: route.fulfill(status=503, json=full, headers={"retry-after": "7"}))
    ask(page, "eins zwei")
    assert page.inner_text(".problem") == "the queue is full (try again in 7 s)"
    page.unroute("**/translate")
    page.route("**/translate", lambda route: route.fulfill(status=502, body="<html>"))
    ask(page, "eins zwei")
    assert page.inner_text(".problem") == "The server answers 502 Bad Gateway"


def test_waiting_can_be_stopped(opened: Open) -> None:
    page = opened()
    page.route("**/translate", lambda route: None)
    page.fill("#text", "eins")
    page.click("button.first")
    page.locator("button", has_text="Stop").click()
    assert page.inner_text(".status") == "Stopped."
    assert not page.locator("button", has_text="Stop").is_visible()


def test_the_page_waits_until_the_server_is_ready(browser: Any, site: str) -> None:
    page = browser.new_page()
    answers = [(503, {"error": "the server isn't ready: warming up"}), (200, {"status": "ready"})]
    page.route("**/readyz", lambda route: route.fulfill(status=answers[0][0], json=answers.pop(0)[1]))
    page.clock.install()
    page.goto(site)
    page.wait_for_selector("text=the server isn't ready: warming up …")
    page.clock.run_for(1100)
    page.wait_for_selector("text=The server is ready.")
    page.close()


@pytest.mark.parametrize("path", ["", "docs"])
def test_pages_fit_narrow_windows(opened: Open, path: str) -> None:
    page = opened(path, width=360)
    if not path:
        ask(page, "eins zwei drei vier fünf sechs\n" + "a" * 200)
    else:
        page.locator("summary").evaluate_all("all => all.forEach(one => one.parentNode.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") == 360


# --- the API


def test_the_api_page_sends_requests(opened: Open, site: str) -> None:
    page = opened("docs")
    assert page.locator("h2").all_text_contents() == [
        "POST /translate", "POST /score", "GET /healthz", "GET /readyz", "GET /metrics",
    ]  # fmt: skip
    first, last = page.locator("form").first, page.locator("form").last
    first.locator("input[type=radio]").last.check()
    assert (first.locator(".command").text_content() or "").endswith(f'"attention": true}}\' {site}translate')
    first.locator("textarea").fill('{"texts": "eins"}')
    first.locator("textarea").press("Control+Enter")
    first.locator(".output[aria-busy=false]").wait_for()
    assert first.locator(".status").inner_text().startswith("422 Unprocessable Entity, application/json, in ")
    shown = json.loads(first.locator(".output").text_content() or "")
    assert shown == {"error": "texts: expected a list of texts; received a text"}
    last.locator("button.first").click()
    last.locator(".output[aria-busy=false]").wait_for()
    assert last.locator(".status").inner_text().startswith("200 OK, text/plain")
    assert "jax_transformer_requests_total" in (last.locator(".output").text_content() or "")


def test_the_api_page_lists_every_field(opened: Open) -> None:
    from jax_transformer.serving.requests import TranslateRequest, field_names

    page = opened("docs")
    body = page.locator("#post-translate details").first
    assert body.locator("tbody th").all_text_contents() == field_names(TranslateRequest)
    assert body.locator("tbody tr").first.text_content() == (
        "textslist of textRequired. Texts to translate. A blank one gives an empty translation."
    )
    weights = page.locator("#post-translate details").nth(1).locator("tr", has_text="attention[].weights")
    assert "list of list of list of list of number" in (weights.text_content() or "")
