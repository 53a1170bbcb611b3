"""Prove public JAX programs against their PyTorch originals, with no map of weights given, and write docs/gallery.md.

    python parity_tests/gallery/run.py [--only NAME …] [--gradients] [--sources DIR] [--transformers 4.57.6]
                                       [--write docs/gallery.md]
    python parity_tests/gallery/run.py --only openpi_pi0 openpi_pi05 --transformers 4.53.2 --sources DIR
                                       [--write docs/gallery.md]

The Flax models are those of transformers 4, which version 5 removed: that version is installed beside this
environment's, in a temporary one, with the packages that the programs import. The programs of other repositories are
read from --sources, a folder outside this project's tree with a checkout of each; without it, they are left out.
`--sources` alone says what to check out where. π0 needs another version of transformers: it
has a command of its own.
Each pair runs in a process of its own, in float32, on one batch. The map between the weights is found, and compared
with the port's own converter, if there is one here.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import resource
import signal
import sys
import tempfile
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
sys.path.insert(0, str(FOLDER))
sys.path.insert(0, str(FOLDER.parent))

from sources import OTHER_VERSIONS, PACKAGES, SOURCES, VERSION, use  # noqa: E402

TABLE = ROOT / "docs" / "tables" / "gallery.csv"
COLUMNS = (
    "program", "source", "original", "lines", "verdict", "map", "converter", "repair or reason", "seconds", "GiB",
    "gradients", "gradient seconds", "gradient GiB",
)  # fmt: skip
BEGIN, END = "<!-- counts: begin -->", "<!-- counts: end -->"
SECONDS = 600
"""The most that one pair may take, by the clock."""
MOST_SECONDS, MOST_MEMORY = 60, 3.0
"""Processor seconds and GiB that a proof of gradients may take."""


def measure(name: str, sources: Path | None, gradients: bool) -> None:
    """Proves one pair, and prints its row as JSON: that of the forward pass, and again with the gradients."""
    import torch

    from jax_transformer.parity import prove

    torch.set_num_threads(1)
    row, candidate, reference, inputs, twin = made(name, sources)
    before = time.process_time()
    names = None if twin is None else map_of(twin)
    certificate = prove(candidate, reference, inputs=inputs, names=names, stages=("forward",))
    seconds = time.process_time() - before
    reason = certificate.stages[0].reason
    why = str(certificate.repair or "; ".join(filter(None, (reason, first_difference(certificate)))))
    whole = certificate.map.get("given" if twin else "found", ("",))[0]
    row |= {
        "verdict": certificate.verdict,
        "map": whole.partition(" weights")[0] + ("" if twin is None else ", found of a twin"),
        "repair or reason": short(why),
        "seconds": f"{seconds:.0f}",
        "GiB": f"{memory():.1f}",
    }
    if certificate.map and not row["source"].startswith("github"):
        row["converter"] = converter(candidate, reference, inputs)
    print(json.dumps(row), flush=True)
    if gradients and certificate.verdict == "proven":
        before = time.process_time()
        watch(row, before)
        certificate = prove(candidate, reference, inputs=inputs, stages=("gradients",))
        report(row, certificate.verdict, str(certificate.stages[0].reason or ""), before)


def made(name: str, sources: Path | None) -> tuple[dict[str, Any], Any, Any, Any, Any]:
    """Returns the first columns of a pair's row, its two sides, their inputs, and its twin."""
    if name in flax_models():
        from pairs import PAIRS, sides

        pair = next(one for one in PAIRS if one.model == name)
        side, module = sides(pair)
        row = {"program": f"Flax{name}", "source": f"transformers {VERSION}", "original": name, "lines": 0}
        return row, side, module, pair.inputs, None
    from schools import SCHOOLS

    school = SCHOOLS[name]
    assert sources is not None
    for each in filter(None, (school.source, school.original_source)):
        use(each, sources)
    pair = school.make()
    repository, commit, _ = SOURCES[school.source]
    row = {"program": name, "source": f"github.com/{repository} {commit[:12]}", "original": school.original}
    return {**row, "lines": pair.lines}, pair.candidate, pair.reference, pair.inputs, pair.twin


def map_of(twin: Any) -> Any:
    """Returns the map between the weights of two programs, which is proven right there."""
    from jax_transformer.parity.proofs.mapped import MappedPair
    from jax_transformer.parity.sides.options import as_side

    found = MappedPair(as_side(twin.candidate), as_side(twin.reference), dict(twin.inputs), 0).found
    if found.verdict != "proven" or found.map is None:
        raise RuntimeError(f"the twin: expected a map that is proven right; received {found}")
    return found.map


def flax_models() -> list[str]:
    from pairs import PAIRS

    return [pair.model for pair in PAIRS]


def converter(side: Any, module: Any, inputs: Any) -> str:
    """Returns how the map that is found carries random weights over, compared with the port's converter."""
    import torch
    from pairs import agreement_with_converter

    from jax_transformer.parity.proofs.mapped import MappedPair
    from jax_transformer.parity.sides.options import as_side

    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.requires_grad:
                torch.nn.init.normal_(parameter)
    found = MappedPair(side, as_side(module), dict(inputs), 0).found
    tensors = {key: tensor.detach().numpy() for key, tensor in module.state_dict().items()}
    return agreement_with_converter(module, side, found.to_candidate({key: tensors[key] for key in found.tensors}))


def memory() -> float:
    """Returns the most memory that this process has had, in GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def report(row: dict[str, Any], verdict: str, reason: str, before: float) -> None:
    row |= {"gradients": verdict, "gradient seconds": f"{time.process_time() - before:.0f}"}
    row["gradient GiB"] = f"{memory():.1f}"
    if reason:
        row["repair or reason"] = f"gradients: {short(reason)}"
    print(json.dumps(row), flush=True)


def watch(row: dict[str, Any], before: float) -> None:
    """Ends this process, after a report, as soon as the proof of gradients takes more than it may."""

    def run() -> None:
        while time.process_time() - before < MOST_SECONDS and memory() < MOST_MEMORY:
            time.sleep(0.1)
        report(dict(row), "unknown", f"not done within {MOST_SECONDS} processor seconds and {MOST_MEMORY} GiB", before)
        os._exit(0)

    threading.Thread(target=run, daemon=True).start()


def first_difference(certificate: Any) -> str:
    difference = certificate.difference or {}
    place = difference.get("candidate") or difference.get("reference") or {}
    return f"first at {place.get('line', place)}" if difference else ""


def short(text: str) -> str:
    """Returns a text without the folders of files."""
    words = (word.rpartition("/")[2] if ".py" in word and word.count("/") > 1 else word for word in text.split())
    return " ".join(words)


def row_of(name: str, sources: Path | None, gradients: bool) -> dict[str, Any]:
    """Returns the row of a pair that is measured in a process of its own, a fork of this one, which has only imported
    what all need."""
    row = {"program": name, "verdict": "not run"}
    with tempfile.TemporaryFile("w+", encoding="utf-8") as output:
        child = os.fork()
        if child == 0:
            os.dup2(output.fileno(), 1)
            code = 1
            try:
                measure(name, sources, gradients)
                code = 0
            except Exception as error:
                print(json.dumps({**row, "repair or reason": short(f"{type(error).__name__}: {error}")[:300]}))
            sys.stdout.flush()
            os._exit(code)
        is_done = waited(child)
        output.seek(0)
        rows = [line for line in output.read().splitlines() if line.startswith("{")]
    if not rows:
        return {**row, "repair or reason": "ended without a verdict" if is_done else f"not done after {SECONDS} s"}
    found: dict[str, Any] = json.loads(rows[-1])
    return found


def waited(child: int) -> bool:
    """Waits for a process, and returns whether it ended by itself; ends it after the most seconds."""
    before = time.monotonic()
    while time.monotonic() - before < SECONDS:
        if os.waitpid(child, os.WNOHANG)[0]:
            return True
        time.sleep(0.2)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", help="the programs to measure; all if left out. Other rows stay")
    parser.add_argument("--gradients", action="store_true", help="prove gradients, too, where the forward pass is")
    parser.add_argument("--sources", type=Path, metavar="DIR", help="where other repositories are checked out")
    parser.add_argument("--transformers", default=VERSION, metavar="VERSION")
    parser.add_argument("--write", type=Path, help="the page whose counts are replaced; its table is a CSV file")
    options = parser.parse_args(arguments)
    import transformers

    if transformers.__version__ != options.transformers:
        from other_transformers import run_with

        packages = PACKAGES.get(options.transformers, PACKAGES[VERSION])
        return run_with(options.transformers, __file__, arguments, packages)
    import flax.nnx  # noqa: F401
    import pairs  # noqa: F401
    import schools  # noqa: F401

    import jax_transformer.parity  # noqa: F401

    names = options.only or [*flax_models(), *others(options.sources)]
    rows = [] if options.only is None or not TABLE.exists() else list(csv.DictReader(TABLE.open(encoding="utf-8")))
    for name in names:
        row = row_of(name, options.sources, options.gradients)
        rows = replaced(rows, row)
        print(" | ".join(str(row.get(column, "")) for column in COLUMNS), flush=True)
        if options.write:
            write(rows, options.write)
    return 0


def others(sources: Path | None) -> list[str]:
    """Returns the programs of other repositories that are checked out, and says which are left out."""
    from schools import SCHOOLS

    missing = [name for name in SOURCES if sources is None or not (sources / name).is_dir()]
    for name in missing:
        repository, commit, _ = SOURCES[name]
        where = "no --sources" if sources is None else f"no {sources / name}"
        print(f"left out: {name} ({where}; check out github.com/{repository} at {commit})", file=sys.stderr)
    for name, version in OTHER_VERSIONS.items():
        print(f"left out: {name} (run it with --only {name} --transformers {version})", file=sys.stderr)
    return [
        name
        for name, school in SCHOOLS.items()
        if name not in OTHER_VERSIONS and not {school.source, school.original_source} & {*missing}
    ]


def replaced(rows: list[dict[str, Any]], row: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns rows with one more, in the place of that of the same program if there is one."""
    if row["program"] not in [one["program"] for one in rows]:
        return [*rows, row]
    return [row if one["program"] == row["program"] else one for one in rows]


def write(rows: list[dict[str, Any]], page: Path) -> None:
    import jax
    import torch
    import transformers

    with TABLE.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, COLUMNS)
        table.writeheader()
        table.writerows(rows)
    forward, backward = counted(rows, "verdict"), counted(rows, "gradients")
    decided = [row for row in rows if row["verdict"] in ("proven", "refuted")]
    unaided = sum(str(row.get("lines")) == "0" for row in decided)
    other = {*OTHER_VERSIONS} & {row["program"] for row in rows}
    version = VERSION if other else transformers.__version__
    versions = f"transformers {version}, torch {torch.__version__}, jax {jax.__version__}"
    text_of = (
        f"Of {len(rows)} programs, the forward pass: {forward}. Gradients: {backward}. "
        f"No map was written, and {unaided} of {len(decided)} decided rows needed no line. {versions}."
    )
    text_of = textwrap.fill(text_of, 120)
    text = page.read_text(encoding="utf-8")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    page.write_text(f"{before}{BEGIN}\n{text_of}\n{END}{after}", encoding="utf-8")


def counted(rows: list[dict[str, Any]], column: str) -> str:
    values = [row.get(column) for row in rows]
    return ", ".join(f"{values.count(one)} {one}" for one in dict.fromkeys(values) if one)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
