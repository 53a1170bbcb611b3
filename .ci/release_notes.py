"""Prints what CHANGELOG.md says of a version; exits with 1 if the version can't be released.

    python .ci/release_notes.py v0.1.0

The tag must be that of `jax_transformer.__version__`, and the section must have a date: `## 0.1.0 (2026-12-01)`.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def notes(tag: str, changelog: str, version: str) -> str:
    """Returns the section of a tag's version. Raises ValueError if there is none, or one of another version."""
    if tag != f"v{version}":
        raise ValueError(f"tag: expected v{version}, as jax_transformer.__version__ says; received {tag}")
    sections = re.split(r"^## ", changelog, flags=re.MULTILINE)[1:]
    for section in sections:
        heading, _, text = section.partition("\n")
        if re.fullmatch(rf"{re.escape(version)} \(\d{{4}}-\d\d-\d\d\)", heading.strip()):
            return text.strip()
    headings = ", ".join(section.partition("\n")[0] for section in sections)
    raise ValueError(f"CHANGELOG.md: expected a section {version} (YYYY-MM-DD); received {headings}")


def main(tag: str) -> int:
    source = (ROOT / "jax_transformer" / "__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "(.+)"$', source, re.MULTILINE)
    assert found is not None
    try:
        print(notes(tag, (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), found[1]))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
