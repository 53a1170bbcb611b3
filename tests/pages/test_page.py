"""Properties of every page."""

from __future__ import annotations

import json
import math

from jax_transformer.pages import page, serving
from jax_transformer.pages.page import embedded_json


def test_json_in_the_page_is_json() -> None:
    value = {"a": [1.5, math.nan, -math.inf], "b": "</x>&\u2029", "c": None}
    text = embedded_json(value)
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == {"a": [1.5, None, None], "b": "</x>&\u2029", "c": None}


def test_a_page_asks_no_server_unless_it_is_served() -> None:
    assert "connect-src" not in page.policy_of("", asks_server=False)


def test_every_source_of_the_served_pages_is_used() -> None:
    names = {path.name for path in serving.TEMPLATE.iterdir()}
    assert names == {*serving.TRANSLATE_SCRIPTS, *serving.TRANSCRIBE_SCRIPTS, *serving.API_SCRIPTS, serving.STYLE}


def test_every_source_of_the_page_is_used() -> None:
    names = {path.name for path in page.HERE.iterdir()}
    assert names == {*page.SHARED, "page.css", "page.html"}
