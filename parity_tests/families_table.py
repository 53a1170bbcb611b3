"""Measure every family against the installed transformers, and write the table of docs/families.md.

    python parity_tests/families_table.py [--write docs/families.md]

Each family has three sizes, in float64. import: the tensors of the directories by `save_pretrained`; every one is used.
export: the tensors that `from_pretrained` loads from the exported directories with every bit the same; missing or
unexpected keys are named. The worst relative RMS errors follow: of any activation, of the loss and any gradient, and of
cached decoding from teacher forcing. greedy: the sentences whose tokens all equal those of `generate`, and how many of
them end.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
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
    greedy_tokens,
    make_case,
    round_trip,
)

from jax_transformer.parity.gates.stages import Stage

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


def row(family: str, folder: Path) -> list[str]:
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
        ours, theirs, eos_id = greedy_tokens(case)
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


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, help="a Markdown file whose table is replaced")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    lines = [
        "| family | import | export | forward | gradients | cached decoding | greedy |",
        "|---|---|---|---|---|---|---|",
    ]
    with jax.enable_x64(True), jax.default_matmul_precision("highest"), tempfile.TemporaryDirectory() as folder:
        for family in FAMILIES:
            lines.append(f"| {' | '.join(row(family, Path(folder)))} |")
            print(lines[-1], flush=True)
    versions = (
        f"transformers {transformers.__version__}, torch {torch.__version__}, jax {jax.__version__}, NumPy "
        f"{np.__version__}"
    )
    table = "\n".join([*lines, "", f"{versions}; on {jax.devices()[0].device_kind}."])
    if options.write:
        text = options.write.read_text(encoding="utf-8")
        before, after = text.split(BEGIN)[0], text.split(END)[1]
        options.write.write_text(f"{before}{BEGIN}\n\n{table}\n\n{END}{after}", encoding="utf-8")
    else:
        print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
