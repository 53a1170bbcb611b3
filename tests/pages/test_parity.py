"""The page of a parity report is one file that loads nothing, contains the unchanged report, and turns no name into
markup."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from sample_report import make_report

from jax_transformer.config.model import TransformerConfig
from jax_transformer.discover.architecture import architecture
from jax_transformer.pages import parity

HOSTILE = "</script><script>window.broken=1</script><img src=x onerror='window.broken=2'>\"{{data}}&lt;"


DISCOVERY = {
    "call": ["return self.module(source_ids, decoder_input_ids)"],
    "notes": ["masks are built by the caller"],
    "checks": [{"source": 9, "target": 17, "residual": 2.5e-16}],
    "conclusions": [
        {
            "what": "encoder/final_norm",
            "value": "layer_norm, eps 1e-05",
            "residual": 1e-16,
            "runner_up": "rms_norm",
            "runner_up_residual": 0.25,
        }
    ],
    "architecture": architecture(
        TransformerConfig(source_vocab_size=29, target_vocab_size=31, d_model=24, num_heads=4, d_ff=40)
    ),
}


def report(is_faulty: bool = True) -> dict[str, Any]:
    return json.loads(make_report(is_faulty).to_json())


def embedded(page: str) -> Any:
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    return json.loads(data)


def hostile(value: Any) -> Any:
    """Returns the report with harmful markup in every text whose value isn't fixed."""
    fixed = {"verdict", "side", "schema"}
    if isinstance(value, dict):
        return {key: inner if key in fixed else hostile(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [hostile(inner) for inner in value]
    return value + HOSTILE if isinstance(value, str) else value


def test_the_page_holds_the_report() -> None:
    assert embedded(parity.render(report())) == report()
    assert "<title>Parity · candidate.safetensors · diverged</title>" in parity.render(report())


def test_the_page_asks_for_nothing() -> None:
    page = parity.render(report())
    assert "default-src 'none'" in page
    assert "{{" not in page
    assert set(re.findall(r"\w+://[^\s'\"]+", page)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<link|@import|url\((?!#)", page)


def test_names_never_become_markup() -> None:
    page = parity.render(hostile(report()))
    assert page.count("<") == parity.render(report()).count("<")
    assert embedded(page)["faults"][0]["node"].endswith(HOSTILE)


def test_the_page_of_a_discovery_holds_what_was_found() -> None:
    page = parity.render(report(), DISCOVERY)
    assert embedded(page) == report() | {"discovery": DISCOVERY}
    markup = parity.render(report(), hostile(DISCOVERY))
    assert markup.count("<") == page.count("<")


def test_every_source_of_the_page_is_used() -> None:
    names = {path.name for path in parity.TEMPLATE.iterdir()}
    assert names == {*parity.SCRIPTS, parity.STYLE}


def test_another_schema_is_refused() -> None:
    with pytest.raises(
        ValueError, match="expected a parity report of schema 1; received schema 2: write it anew with this version"
    ):
        parity.render(report() | {"schema": 2})
