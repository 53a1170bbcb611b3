"""Properties of every page."""

from __future__ import annotations

import json
import math

from jax_transformer.pages import page
from jax_transformer.pages.page import embedded_json


def test_json_in_the_page_is_json() -> None:
    value = {"a": [1.5, math.nan, -math.inf], "b": "</x>&\u2029", "c": None}
    text = embedded_json(value)
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == {"a": [1.5, None, None], "b": "</x>&\u2029", "c": None}


def test_every_source_of_the_page_is_used() -> None:
    names = {path.name for path in page.HERE.iterdir()}
    assert names == {*page.SHARED, "page.css", "page.html"}
