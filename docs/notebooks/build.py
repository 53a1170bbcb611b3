"""Writes the notebooks from their sources below, executes them, and saves them with their outputs.

    pip install -e '.[dev,docs]' -c constraints.txt
    python docs/notebooks/build.py [NAME ...]

Each takes a few minutes at most on two cores, and needs no network. Files go to a temporary directory.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent
TEXT = "# %% [markdown]"
CODE = "# %%"


def read_cells(source: str) -> list[nbformat.NotebookNode]:
    """Returns the cells of a source in the percent format: "# %%" begins code, "# %% [markdown]" comments of text."""
    cells = []
    for block in ("\n" + source).split("\n" + CODE)[1:]:
        head, _, body = block.partition("\n")
        if head.strip() == "[markdown]":
            lines = [line.removeprefix("#").removeprefix(" ") for line in body.strip().splitlines()]
            cells.append(nbformat.v4.new_markdown_cell("\n".join(lines)))
        else:
            cells.append(nbformat.v4.new_code_cell(body.strip()))
    for i, cell in enumerate(cells):
        cell["id"] = f"cell-{i}"
    return cells


def build(source: Path) -> None:
    """Executes one notebook in an empty directory, and writes it beside its source."""
    notebook = nbformat.v4.new_notebook(cells=read_cells(source.read_text(encoding="utf-8")))
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(notebook, timeout=900, resources={"metadata": {"path": folder}}).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # times of day
        if "outputs" in cell:
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]  # progress bars
    notebook.metadata.pop("language_info", None)
    nbformat.write(notebook, source.with_suffix(".ipynb"))


def main(names: list[str]) -> None:
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    for source in sorted(HERE.glob("*.py")):
        if source.name != "build.py" and (not names or source.stem in names):
            begin = time.perf_counter()
            build(source)
            print(f"{source.stem}: {time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
