"""Fixtures for tests of the server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from word_models import word_model

from jax_transformer.decoding.prepared import PreparedModel, prepare
from jax_transformer.storage.model_directory import Model


@pytest.fixture(scope="session")
def served() -> Model:
    """A random model with the source tag <2de> and the target tags <de> and <nl>."""
    return word_model(["<2de>"], ["<de>", "<nl>"])


@pytest.fixture(scope="session")
def model(served: Model) -> PreparedModel:
    return prepare(served)


@pytest.fixture
def opened(browser: Any, site: str) -> Iterator[Callable[..., Any]]:
    """opened(path) → a page that is ready. At the end: no request elsewhere, and no message of its script."""
    pages, requests, messages = [], [], []

    def visit(path: str = "", width: int = 1200, **options: Any) -> Any:
        page = browser.new_page(viewport={"width": width, "height": 900}, **options)
        pages.append(page)
        page.on("request", lambda request: requests.append(request.url))
        page.on("pageerror", lambda error: messages.append(str(error)))
        page.on("console", lambda message: messages.append(message.text))
        page.goto(site + path)
        page.wait_for_selector("html[data-ready]", state="attached")
        return page

    yield visit
    for page in pages:
        page.close()
    assert [text for text in messages if not text.startswith("Failed to load resource")] == []
    assert all(url.startswith(site) for url in requests)
