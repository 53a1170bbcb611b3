"""report.html: a run as one page that needs nothing else, no network, no server, no other file.

The page is assembled from the sources in report_template/: its data stands in it as JSON, which its script draws. It can be made again from
the run directory at any time.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import os
import re
from pathlib import Path
from typing import Any

from jax_transformer.training.report_data import read_run
from jax_transformer.training.run_directory import REPORT

TEMPLATE = Path(__file__).parent / "report_template"
SCRIPTS = ("format.js", "elements.js", "axes.js", "charts.js", "histograms.js", "samples.js", "tables.js", "page.js")
"""In the order in which they run, as one script."""


def write_report(run: str | Path) -> Path:
    """Writes RUN/report.html from the other files of the run, and returns its path; a reader sees the old file or the new one, whole.

    Raises:
      RunError: it is no run directory.
    """
    run = Path(run)
    page = render(read_run(run))
    temporary = run / f".{REPORT}.{os.getpid()}.tmp"  # of this process: a run and a command may write at once
    try:
        temporary.write_text(page, encoding="utf-8")
        os.replace(temporary, run / REPORT)
    finally:
        temporary.unlink(missing_ok=True)
    return run / REPORT


def render(data: dict[str, Any]) -> str:
    """The page that shows `data`, as `read_run` gives it."""
    script = "'use strict';\n(() => {\n" + "\n".join((TEMPLATE / name).read_text(encoding="utf-8") for name in SCRIPTS) + "\n})();\n"
    parts = {
        "title": html.escape(f"{data['name']} · training report"),
        "script_hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        "style": (TEMPLATE / "report.css").read_text(encoding="utf-8"),
        "data": embedded_json(data),
        "script": script,
    }
    template = (TEMPLATE / "report.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)  # in one pass: what the data holds is never a placeholder


def embedded_json(value: Any) -> str:
    """JSON that can stand in a <script> element: no character of it can end the element or begin a comment. NaN becomes null."""
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
