"""Compares versions of transformers: each loads the same small checkpoints and freezes what it computes.

    python parity_tests/versions/compare.py 4.57.6=PYTHON 5.23.0=PYTHON … --write docs/tables/frozen_versions.csv

The first version writes the checkpoints, and is the reference. A PYTHON may be followed by `:FOLDER` for PYTHONPATH.
"""

from __future__ import annotations

import argparse
import csv
import io
import os
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

import jax_transformer as jt
from jax_transformer.comparison.report.report import Report
from jax_transformer.comparison.report.summary import summary_of
from jax_transformer.runtime.files import atomic_write

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("frozen_families.py")
COLUMNS = ("checkpoint", "reference", "candidate", "verdict", "first difference", "stage", "relative RMS", "weights")
COLUMNS = (*COLUMNS, "output float32", "remarks")


MOST = 3
"""Remarks of a row."""


def run(python: str, *arguments: str) -> None:
    program, _, folder = python.partition(":")
    path = os.pathsep.join(filter(None, [str(ROOT), folder]))
    environment = {**os.environ, "PYTHONPATH": path, "TRANSFORMERS_VERBOSITY": "error", "OMP_NUM_THREADS": "1"}
    subprocess.run([program, str(SCRIPT), *arguments], check=True, env=environment)


def row(name: str, versions: tuple[str, str], folders: tuple[Path, Path]) -> dict[str, str]:
    """Returns the comparison of one checkpoint."""
    reference, candidate = (folder / f"{name}.frozen" for folder in folders)
    held = {"checkpoint": name, "reference": versions[0], "candidate": versions[1]}
    missing = [folder / f"{name}.txt" for folder in folders if not (folder / f"{name}.frozen").exists()]
    if missing:
        return {**held, "verdict": "can't run", "remarks": missing[0].read_text().strip()}
    report = jt.compare(candidate, reference)
    summary = summary_of(report)
    first = summary["first_difference"] or {"place": "", "stage": "", "relative_rms": None}
    size = first["relative_rms"]
    return {
        **held,
        "verdict": summary["verdict"],
        "first difference": first["place"],
        "stage": first["stage"],
        "relative RMS": "" if size is None else f"{size:.1e}",
        "weights": stage_of(report, "weights"),
        "output float32": stage_of(report, "forward float32"),
        "remarks": shortened(remark for remark in (*summary["unknown"], *report.remarks) if is_telling(remark)),
    }


def shortened(remarks: Iterable[str]) -> str:
    """Returns the first remarks in one cell."""
    several = [*remarks]
    more = f" and {len(several) - MOST} more" if len(several) > MOST else ""
    return "; ".join(several[:MOST]) + more


def stage_of(report: Report, name: str) -> str:
    stage = next((one for one in report.stages if one.name == name), None)
    if stage is None:
        return "not compared"
    passed = sum(each.verdict == "passed" for each in stage.rows)
    return f"{passed} of {len(stage.rows)} same"


def is_telling(remark: str) -> bool:
    return not remark.startswith(
        (
            "numbers were",
            "versions that",
            "the candidate: it computes in",
            "the reference: it computes",
            "classes whose",
            "activations of the",
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("versions", nargs="+", metavar="VERSION=PYTHON")
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    pythons = dict(each.split("=", 1) for each in options.versions)
    with tempfile.TemporaryDirectory() as folder:
        checkpoints, first = Path(folder) / "checkpoints", next(iter(pythons))
        run(pythons[first], "make", str(checkpoints))
        for version, python in pythons.items():
            run(python, "freeze", str(checkpoints), str(Path(folder) / version))
        names = sorted(each.name for each in checkpoints.iterdir())
        others = [version for version in pythons if version != first]
        rows = [
            row(name, (first, version), (Path(folder) / first, Path(folder) / version))
            for name in names
            for version in others
        ]
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    print(text.getvalue())
    if options.write is not None:
        with atomic_write(options.write) as temporary:
            temporary.write_text(text.getvalue(), encoding="utf-8")


if __name__ == "__main__":
    main()
