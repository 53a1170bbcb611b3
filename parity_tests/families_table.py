"""Measure every family against the installed transformers, and write the table of docs/families.md.

    python parity_tests/families_table.py [--transformers 5.22.0] [--write docs/families.md]

Each family has three sizes, in float64. import: the tensors of the directories by `save_pretrained`; every one is used.
export: the tensors that `from_pretrained` loads from the exported directories with every bit the same; missing or
unexpected keys are named. The worst relative RMS errors follow: of any activation, of the loss and any gradient, and of
cached decoding from teacher forcing. greedy: the sentences whose tokens all equal those of `generate`, and how many of
them end.

--transformers installs another version beside this environment's, in a temporary one, and measures that. Afterwards the
script names each cell that differs from the table in docs/families.md; errors below the gate differ by rounding, and
count as equal. Exit code 1: something differs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
import torch
import transformers
from families import (
    FAMILIES,
    Case,
    cached_error,
    compare_activations,
    compare_training,
    decoded_tokens,
    make_case,
    round_trip,
)
from other_transformers import run_with

from jax_transformer.comparison.gates.stages import Stage
from jax_transformer.comparison.gates.tolerances import FLOAT64_RELATIVE_RMS

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "docs" / "families.md"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
COLUMNS = ("family", "import", "export", "forward", "gradients", "cached decoding", "greedy")
ERRORS = ("forward", "gradients", "cached decoding")


def row(family: str, folder: Path) -> list[str]:
    """Returns the cells of one family; of one that can't be measured, why."""
    try:
        return measure(family, folder)
    except Exception as error:  # whatever another version raises
        return [f"`{family}`", f"{type(error).__name__}: {' '.join(str(error).split())[:200]}", *[""] * 5]


def measure(family: str, folder: Path) -> list[str]:
    """Returns the cells of one family."""
    cases = [make_case(family, size, folder) for size in range(len(FAMILIES[family].sizes))]
    tensors = same = sentences = equal = ended = 0
    complaints: dict[str, object] = {}
    for case in cases:
        back, loading = round_trip(case, folder)
        expected, received = case.theirs.state_dict(), back.state_dict()
        tensors += len(expected)
        same += sum(torch.equal(expected[name], received[name]) for name in expected if name in received)
        complaints |= {name: found for name, found in loading.items() if found}
        ours, theirs, eos_id = decoded_tokens(case)
        sentences += len(theirs)
        equal += int((ours == theirs).all(axis=1).sum())
        ended += int((theirs == eos_id).any(axis=1).sum())
    worst = [max(largest_error(stages(case)) for case in cases) for stages in (forward_stages, compare_training)]
    cached = max(cached_error(case) for case in cases)
    exported = f"{same} of {tensors} tensors" + (f", {complaints}" if complaints else "")
    imported = sum(len((case.model.origin or {})["tensors"]) for case in cases)
    return [
        f"`{family}`", f"{imported} tensors", exported, *(f"{error:.0e}" for error in (*worst, cached)),
        f"{equal} of {sentences} ({ended} ended)",
    ]  # fmt: skip


def forward_stages(case: Case) -> list[Stage]:
    return [compare_activations(case)[0].forward]


def largest_error(stages: list[Stage]) -> float:
    return max(row.error.relative_rms for stage in stages for row in stage.rows if row.error is not None)


def changes(kept: Sequence[Sequence[str]], rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns a line for each cell that differs between two tables."""
    before = {cells[0]: cells for cells in kept}
    lines = []
    for cells in rows:
        for column, was, now in zip(COLUMNS, before.get(cells[0], ("absent",) * len(COLUMNS)), cells, strict=True):
            both_pass = column in ERRORS and passes(was) and passes(now)
            if was != now and not both_pass and column != "family":
                lines.append(f"{cells[0]}: {column}: {was} before, {now} now")
    return lines


def passes(error: str) -> bool:
    """Returns whether the cell is an error within the gate."""
    try:
        return float(error) <= FLOAT64_RELATIVE_RMS
    except ValueError:
        return False


def kept_rows() -> list[list[str]]:
    table = KEPT.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0]
    lines = [line for line in table.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transformers", metavar="VERSION", help="measure this version instead of the installed one")
    parser.add_argument("--families", nargs="*", default=list(FAMILIES))
    parser.add_argument("--write", type=Path, help="a Markdown file whose table is replaced")
    options = parser.parse_args(arguments)
    if options.transformers not in (None, transformers.__version__):
        rest = ["--families", *options.families] + (["--write", str(options.write)] if options.write else [])
        return run_with(options.transformers, __file__, rest)
    torch.set_num_threads(1)
    lines = [f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}"]
    rows = []
    with jax.enable_x64(True), jax.default_matmul_precision("highest"), tempfile.TemporaryDirectory() as folder:
        for family in options.families:
            rows.append(row(family, Path(folder)))
            lines.append(f"| {' | '.join(rows[-1])} |")
            print(lines[-1], flush=True)
    versions = (
        f"transformers {transformers.__version__}, torch {torch.__version__}, jax {jax.__version__}, NumPy "
        f"{np.__version__}"
    )
    table = "\n".join([*lines, "", f"{versions}; on {jax.devices()[0].device_kind}."])
    different = changes(kept_rows(), rows)
    print("\n".join(["", versions, *(different or ["nothing differs from docs/families.md"])]))
    if options.write:
        text = options.write.read_text(encoding="utf-8")
        before, after = text.split(BEGIN)[0], text.split(END)[1]
        options.write.write_text(f"{before}{BEGIN}\n\n{table}\n\n{END}{after}", encoding="utf-8")
    return int(bool(different))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
