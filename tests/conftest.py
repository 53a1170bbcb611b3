"""What tests of the model share: one small configuration, one batch, and parameters that hide nothing.

All sizes differ, every parameter is random (biases and the scales of norms included), and padding stands right, left
and inside. Tests that need no other shapes take these, so that one process compiles a function of them once.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from jax_transformer.config.model import TransformerConfig

SOURCE_PAD, TARGET_PAD = 1, 2
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
CHROMIUM_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


class Ids(NamedTuple):
    """Token ids of a batch: source_ids [B, S] and decoder_input_ids [B, T], int32."""

    source: np.ndarray
    target: np.ndarray


@pytest.fixture
def stopped_after(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], contextlib.AbstractContextManager[None]]:
    """(steps) → a context in which runs are asked to stop after so many steps in it, as by Ctrl-C."""

    @contextlib.contextmanager
    def stopped(steps: int) -> Iterator[None]:
        from jax_transformer.training import trainer

        @contextlib.contextmanager
        def requests(processes: int, say: Callable[[str], None]) -> Iterator[Callable[[int], bool]]:
            checks = iter(range(1, 10**6))  # one a step
            yield lambda step: next(checks) >= steps

        with monkeypatch.context() as patch:
            patch.setattr(trainer, "stop_requests", requests)
            yield

    return stopped


@pytest.fixture(scope="session")
def config() -> TransformerConfig:
    """Post-norm, sinusoids, masks on keys, no dropout; one encoder layer of 3 heads and two decoder layers of 2."""
    return TransformerConfig(
        source_vocab_size=13,
        target_vocab_size=11,
        d_model=12,
        num_heads=3,
        head_dim=5,
        d_ff=7,
        num_encoder_layers=1,
        num_decoder_layers=2,
        max_length=9,
        decoder_num_heads=2,
        decoder_head_dim=4,
        decoder_d_ff=14,
        decoder_max_length=10,
        source_pad_id=SOURCE_PAD,
        target_pad_id=TARGET_PAD,
        dropout_rate=0.0,
    )


@pytest.fixture(scope="session")
def ids() -> Ids:
    """Five sentences, [5, 6] and [5, 8]. No source is all padding, and no target begins with what a later test
    inserts."""
    rng = np.random.default_rng(0)
    source = rng.choice([i for i in range(13) if i != SOURCE_PAD], (5, 6)).astype(np.int32)
    target = rng.choice([i for i in range(11) if i != TARGET_PAD], (5, 8)).astype(np.int32)
    source[1, 4:] = SOURCE_PAD
    source[2, :2] = SOURCE_PAD
    source[3, [1, 3]] = SOURCE_PAD
    source[4, 1:] = SOURCE_PAD
    target[1, :2] = TARGET_PAD
    target[2, [2, 3]] = TARGET_PAD
    target[3, 5:] = TARGET_PAD
    target[4, 1:] = TARGET_PAD
    return Ids(source, target)


@pytest.fixture(scope="session")
def random_params() -> Callable[..., dict[str, Any]]:
    """(config, dtype="float64", seed=0) → parameters of that config as NumPy arrays, all random but the position
    tables."""
    from jax_transformer.model import positions
    from jax_transformer.model.functional import abstract_params

    def make(config: TransformerConfig, dtype: str = "float64", seed: int = 0) -> dict[str, Any]:
        rng = np.random.default_rng(seed)

        def draw(path: tuple[Any, ...], leaf: jax.ShapeDtypeStruct) -> np.ndarray:
            names = [key.key for key in path]
            if names[0] == "constants" and names[1] != "head_bias":
                return positions.sinusoid_table(getattr(config, names[1].removesuffix("_positions"))).astype(dtype)
            values = 0.4 * rng.standard_normal(leaf.shape)
            return (values + 1.0 if names[-1] == "scale" else values).astype(dtype)

        return jax.tree_util.tree_map_with_path(draw, abstract_params(config))

    return make


@pytest.fixture(scope="module")
def x64() -> Iterator[None]:
    """float64 is available throughout the module that asks for this."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium (the browser that Debian packages), driven by Python's playwright."""
    playwright = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=CHROMIUM, args=CHROMIUM_FLAGS)
        yield running
        running.close()


@pytest.fixture
def visited(browser: Any) -> Iterator[Callable[..., Any]]:
    """visited(file, width=…, …) → a file in a page that is ready. At the end: no request but for files, each once
    unless it `allow_reloads`, and no message on the console."""
    pages, files, requests, messages = [], [], [], []
    reloading: set[str] = set()

    def visit(file: Path, width: int = 1200, *, allow_reloads: bool = False, **options: Any) -> Any:
        if allow_reloads:
            reloading.add(file.as_uri())
        page = browser.new_page(viewport={"width": width, "height": 900}, **{"reduced_motion": "reduce", **options})
        pages.append(page)
        files.append(file.as_uri())
        page.on("request", lambda request: requests.append(request.url))
        page.on("console", lambda message: messages.append(message.text))
        page.on("pageerror", lambda error: messages.append(str(error)))
        page.goto(file.as_uri())
        page.wait_for_selector("html[data-ready]", state="attached")
        return page

    yield visit
    for page in pages:
        page.close()
    assert messages == []
    again = [url for number, url in enumerate(requests) if url in reloading and url in requests[:number]]
    for url in again:
        requests.remove(url)
    assert requests == files
