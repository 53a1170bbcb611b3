"""Prepares docstrings for the site: griffe knows "Examples:", and Markdown reads "[B, N] [Q]" as a link."""

from __future__ import annotations

import re
from typing import Any

import griffe


class Docstrings(griffe.Extension):
    """Renames the section "Example:" of every docstring, and escapes shapes that stand side by side."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            lines = obj.docstring.value.splitlines()
            obj.docstring.value = "\n".join(map(prepare, lines))


def prepare(line: str) -> str:
    """Returns a line of a docstring as the site needs it."""
    if line.strip() == "Example:":
        return line.replace("Example:", "Examples:")
    is_code = line.lstrip().startswith((">>>", "...", "[", "("))
    return line if is_code else re.sub(r"\]( ?)\[", r"]\1\\[", line)
