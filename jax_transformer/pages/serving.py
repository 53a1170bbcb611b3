"""Draws the pages that a server sends: one to translate or to transcribe, and one of its interface."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jax_transformer.pages.page import assemble, joined, policy_of

TEMPLATE = Path(__file__).parent / "serving_template"
STYLE = "serving.css"
TRANSLATE_SCRIPTS = ("request.js", "attention.js", "words.js", "results.js", "translate.js")
TRANSCRIBE_SCRIPTS = ("request.js", "transcribe.js")
API_SCRIPTS = ("request.js", "api.js")
"""Scripts of each page, in the order in which they run."""


class ServedPage(NamedTuple):
    """Holds a page and the content security policy to send with it."""

    html: str
    policy: str


def render_translate(facts: Mapping[str, Any]) -> ServedPage:
    """Returns the page that translates a reader's text.

    Args:
      facts: the "model"'s name; the server's "beam_size" and whether it is "sampling"; the most hypotheses,
        "max_beam_size"; "source_tags", "target_tags", and those that hold if a request sets none, "source_tag" and
        "target_tag".
    """
    return _served(f"Translate · {facts['model']}", facts, TRANSLATE_SCRIPTS)


def render_transcribe(facts: Mapping[str, Any]) -> ServedPage:
    """Returns the page that transcribes a reader's recording.

    Args:
      facts: the "model"'s name; the codes of its "languages"; whether it "translates" and has the times of "words"; the
        limits "max_audio_bytes" and "max_audio_seconds".
    """
    return _served(f"Transcribe · {facts['model']}", facts, TRANSCRIBE_SCRIPTS)


def render_api(schema: Mapping[str, Any]) -> ServedPage:
    """Returns the page that describes a server by its OpenAPI schema, with requests that the reader can send."""
    return _served(f"API · {schema['info']['title']}", schema, API_SCRIPTS)


def _served(title: str, data: Mapping[str, Any], names: Sequence[str]) -> ServedPage:
    scripts = [TEMPLATE / name for name in names]
    html = assemble(title, data, style=TEMPLATE / STYLE, scripts=scripts, asks_server=True)
    # a policy inside a page can't forbid frames around it
    return ServedPage(html, f"{policy_of(joined(scripts), asks_server=True)}; frame-ancestors 'none'")
