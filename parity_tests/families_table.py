"""Measures every family of transformers against the installed one, and writes the table of docs/families.md.

    python parity_tests/families_table.py [--write docs/families.md]

Three sizes a family, float64. import: tensors of the directories that `save_pretrained` wrote, every one of them used.
export: those of the model that `from_pretrained` loads from the directory that is written of them, which are the same
in every bit; keys that are missing or unexpected would be named. Then the worst relative RMS errors: of any activation,
of the loss and any gradient, of decoding with a cache from teacher forcing. greedy: sentences whose tokens are all
those of `generate`, and in how many of them the end came up.
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
from families import FAMILIES, cached_error, forward_errors, gradient_errors, greedy_tokens, make_case, round_trip

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


def row(family: str, folder: Path) -> list[str]:
    """The cells of one family."""
    cases = [make_case(family, size, folder) for size in range(len(FAMILIES[family].sizes))]
    tensors = same = sentences = equal = ended = 0
    complaints: dict[str, object] = {}
    for case in cases:
        back, loading = round_trip(case, folder)
        expected, received = case.torch32.state_dict(), back.state_dict()
        tensors += len(expected)
        same += sum(torch.equal(expected[name], received[name]) for name in expected if name in received)
        complaints |= {name: found for name, found in loading.items() if found}
        ours, theirs, eos_id = greedy_tokens(case)
        sentences += len(theirs)
        equal += int((ours == theirs).all(axis=1).sum())
        ended += int((theirs == eos_id).any(axis=1).sum())
    worst = [max(max(measure(case).values()) for case in cases) for measure in (forward_errors, gradient_errors)]
    cached = max(cached_error(case) for case in cases)
    exported = f"{same} of {tensors} tensors" + (f", {complaints}" if complaints else "")
    imported = sum(len((case.model.origin or {})["tensors"]) for case in cases)
    return [
        f"`{family}`", f"{imported} tensors", exported, *(f"{error:.0e}" for error in (*worst, cached)),
        f"{equal} of {sentences} ({ended} ended)",
    ]  # fmt: skip


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
