"""Prove public JAX programs against their PyTorch originals, with no map of weights given, and write docs/gallery.md.

    python parity_tests/gallery/run.py [--only NAME …] [--transformers 4.57.6] [--write docs/gallery.md]

The programs are the Flax models of transformers 4, which version 5 removed: that version is installed beside this
environment's, in a temporary one. Each pair runs in a process of its own, in float32, on one batch. The map between the
weights is found, and compared with the port's own converter.
"""

from __future__ import annotations

import argparse
import csv
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
sys.path.insert(0, str(FOLDER.parent))
TABLE = ROOT / "docs" / "tables" / "gallery.csv"
COLUMNS = ("program", "verdict", "map", "converter", "repair or reason", "seconds", "GiB")
BEGIN, END = "<!-- counts: begin -->", "<!-- counts: end -->"
VERSION = "4.57.6"
SECONDS = 900
"""The most that one pair may take."""


def measure(name: str) -> dict[str, Any]:
    """Proves one pair, and returns its row."""
    import torch
    from pairs import PAIRS, agrees_with_converter, sides

    from jax_transformer.parity import prove
    from jax_transformer.parity.proofs.mapped import MappedPair
    from jax_transformer.parity.sides.options import as_side

    torch.set_num_threads(1)
    pair = next(one for one in PAIRS if one.model == name)
    side, module = sides(pair)
    before = time.process_time()
    certificate = prove(side, module, inputs=pair.inputs, stages=("forward",))
    seconds = time.process_time() - before
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.requires_grad:
                torch.nn.init.normal_(parameter)
    converter = ""
    if certificate.map:
        found = MappedPair(side, as_side(module), dict(pair.inputs), 0).found
        tensors = {key: tensor.detach().numpy() for key, tensor in module.state_dict().items()}
        same = agrees_with_converter(module, side, found.to_candidate({key: tensors[key] for key in found.tensors}))
        converter = "same" if same else "another"
    whole = certificate.map.get("found", ("",))[0].partition(" weights")[0]
    why = str(certificate.repair or certificate.stages[0].reason or first_difference(certificate))
    gibibytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    row = (f"Flax{name}", certificate.verdict, whole, converter, short(why), f"{seconds:.0f}", f"{gibibytes:.1f}")
    return dict(zip(COLUMNS, row, strict=True))


def first_difference(certificate: Any) -> str:
    difference = certificate.difference or {}
    place = difference.get("candidate") or {}
    return f"first at {place.get('where', place)}" if difference else ""


def short(text: str) -> str:
    """Returns a text without the folders of installed packages."""
    words = (word.rpartition("/")[2] if "site-packages/" in word else word for word in text.split())
    return " ".join(words)


def row_of(name: str) -> dict[str, Any]:
    """Returns the row of a pair that is measured in a process of its own."""
    command = [sys.executable, __file__, "--one", name]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return {"program": f"Flax{name}", "verdict": "unknown", "repair or reason": f"not done after {SECONDS} s"}
    last = (run.stdout.strip().splitlines() or [""])[-1]
    if not last.startswith("{"):
        error = (run.stderr.strip().splitlines() or ["no output"])[-1]
        return {"program": f"Flax{name}", "verdict": "not run", "repair or reason": short(error)[:200]}
    found: dict[str, Any] = json.loads(last)
    return found


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", help="the PyTorch classes to measure; all if left out")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--transformers", default=VERSION, metavar="VERSION")
    parser.add_argument("--write", type=Path, help="the page whose counts are replaced; its table is a CSV file")
    options = parser.parse_args(arguments)
    if options.one:
        print(json.dumps(measure(options.one)))
        return 0
    import transformers

    if transformers.__version__ != options.transformers:
        from other_transformers import run_with

        return run_with(options.transformers, __file__, arguments)
    from pairs import PAIRS

    names = options.only or [pair.model for pair in PAIRS]
    rows = []
    for name in names:
        rows.append(row_of(name))
        print(" | ".join(str(rows[-1].get(column, "")) for column in COLUMNS), flush=True)
    if options.write:
        write(rows, options.write)
    return 0


def write(rows: list[dict[str, Any]], page: Path) -> None:
    import jax
    import torch
    import transformers

    with TABLE.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, COLUMNS)
        table.writeheader()
        table.writerows(rows)
    verdicts = [row["verdict"] for row in rows]
    counts = ", ".join(f"{verdicts.count(one)} {one}" for one in dict.fromkeys(verdicts))
    versions = f"transformers {transformers.__version__}, torch {torch.__version__}, jax {jax.__version__}"
    text = page.read_text(encoding="utf-8")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    page.write_text(f"{before}{BEGIN}\nOf {len(rows)} programs: {counts}. {versions}.\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
