"""Assembles a page from data, a style and scripts: the page embeds its data as JSON, and its script draws it.

Every page is built on the files in shared/: page.html, page.css and the scripts in SHARED. It has light and dark
colours, and a content security policy under which only its own script runs and nothing else loads. A page that a server
sends may ask this server.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jax_transformer.runtime.files import atomic_write

HERE = Path(__file__).parent / "shared"
SHARED = ("elements.js", "choices.js", "theme.js", "numbers.js", "selection.js", "table.js")
"""Scripts that every page runs before its own."""


def assemble(title: str, data: Any, *, style: Path, scripts: Sequence[Path], asks_server: bool = False) -> str:
    """Returns the HTML of a page that shows `data`.

    Args:
      title: the window's title, as plain text.
      data: values that JSON can represent; NaN and infinities become null.
      style: a CSS file, included after the shared one.
      scripts: JavaScript files in the order in which they run; they are joined into one script.
      asks_server: whether the script may send requests to the server that sent the page.
    """
    script = joined(scripts)
    parts = {
        "title": html.escape(title),
        "policy": policy_of(script, asks_server=asks_server),
        "style": "\n".join(path.read_text(encoding="utf-8") for path in (HERE / "page.css", style)),
        "data": embedded_json(data),
        "script": script,
    }
    template = (HERE / "page.html").read_text(encoding="utf-8")
    # one pass never takes data for a placeholder
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


def joined(scripts: Sequence[Path]) -> str:
    """Returns the page's script: the shared scripts and then these."""
    sources = [*(HERE / name for name in SHARED), *scripts]
    return "'use strict';\n(() => {\n" + "\n".join(path.read_text(encoding="utf-8") for path in sources) + "\n})();\n"


def policy_of(script: str, *, asks_server: bool) -> str:
    """Returns the content security policy of a page with this script."""
    script_hash = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    connections = "connect-src 'self'; " if asks_server else ""
    return (
        f"default-src 'none'; {connections}style-src 'unsafe-inline'; script-src 'sha256-{script_hash}'; "
        "base-uri 'none'; form-action 'none'"
    )


def write_page(path: Path, page: str) -> None:
    """Writes the page atomically: a reader sees the old file or the new one, whole."""
    with atomic_write(path) as temporary:
        temporary.write_text(page, encoding="utf-8")


def embedded_json(value: Any) -> str:
    """Returns JSON that is safe inside a <script> element: it can neither end the element nor begin a comment.

    NaN and infinities become null.
    """
    text = json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _finite(value: Any) -> Any:
    """Returns `value` with None for every number that JSON can't represent."""
    if isinstance(value, dict):
        return {str(key): _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
