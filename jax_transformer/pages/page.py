"""Assembling a page: its data stands in it as JSON, which its script draws.

Every page has page.html around it, page.css and the scripts SHARED before its own, light and dark colours, and a policy
that lets nothing run or load but this script.
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

HERE = Path(__file__).parent
SHARED = ("elements.js", "theme.js")
"""Scripts of every page, run before its own."""


def assemble(title: str, data: Any, *, style: Path, scripts: Sequence[Path]) -> str:
    """The page that shows `data`.

    Args:
      title: of the window, as text.
      data: what JSON can say, and numbers that it can't, which become null.
      style: a file of CSS, read after the common one.
      scripts: files of JavaScript in the order in which they run, as one script.
    """
    sources = [*(HERE / name for name in SHARED), *scripts]
    script = "'use strict';\n(() => {\n" + "\n".join(path.read_text(encoding="utf-8") for path in sources) + "\n})();\n"
    parts = {
        "title": html.escape(title),
        "script_hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        "style": "\n".join(path.read_text(encoding="utf-8") for path in (HERE / "page.css", style)),
        "data": embedded_json(data),
        "script": script,
    }
    template = (HERE / "page.html").read_text(encoding="utf-8")
    return re.sub(
        r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template
    )  # in one pass: what the data holds is never a placeholder


def write_page(path: Path, page: str) -> None:
    """Writes the page atomically: a reader sees the old file or the new one, whole."""
    with atomic_write(path) as temporary:
        temporary.write_text(page, encoding="utf-8")


def embedded_json(value: Any) -> str:
    """JSON that can stand in a <script> element: no character of it can end the element or begin a comment. NaN becomes
    null."""
    text = json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _finite(value: Any) -> Any:
    """The same with None for every number that JSON can't say."""
    if isinstance(value, dict):
        return {str(key): _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
