"""Plant faults in public JAX programs, and count how many are refuted, located and repaired.

    python parity_tests/gallery/planted.py [--only NAME …] [--journal FILE] [--write docs/gallery.md]

Six faults are planted in each of these Flax models of transformers 4 (`planting.py`), one at a time, in all layers. The
map between the weights is found once, between the right program and its PyTorch original, and then given: a map that is
found behind a fault might absorb it. Each program has a process of its own, whose memory is measured. Faults of the
journal aren't run again.
"""

from __future__ import annotations

import argparse
import ast
import csv
import json
import multiprocessing
import re
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
sys.path[:0] = [str(FOLDER.parent), str(FOLDER)]

from sources import PACKAGES, VERSION  # noqa: E402

TABLE = ROOT / "docs" / "tables" / "planted.csv"
COLUMNS = (
    "program", "tuned on", "fault", "line", "verdict", "place right", "repair right", "sentence", "seconds", "GiB",
)  # fmt: skip
BEGIN, END = "<!-- planted: begin -->", "<!-- planted: end -->"
FAULTS_OF_EACH = 6
SECONDS = 1800
"""The most that one fault may take by the clock, on a busy machine."""
TUNED = (
    "GPT2LMHeadModel", "LlamaForCausalLM", "GemmaForCausalLM", "GPTJForCausalLM", "BertForMaskedLM",
    "T5ForConditionalGeneration", "BartForConditionalGeneration", "ViTForImageClassification",
)  # fmt: skip
"""Programs on which the search of repairs was tuned."""
SINCE = (
    "GPTNeoForCausalLM", "OPTForCausalLM", "BloomForCausalLM", "XGLMForCausalLM", "RobertaForMaskedLM",
    "RobertaPreLayerNormForMaskedLM", "DistilBertForMaskedLM", "MBartForConditionalGeneration", "CLIPTextModel",
    "Dinov2ForImageClassification",
)  # fmt: skip
"""Programs that were held back at first; some rules were made for what was missed in them."""
UNSEEN = (
    "PegasusForConditionalGeneration", "MT5ForConditionalGeneration", "WhisperForConditionalGeneration",
    "RoFormerForMaskedLM", "CLIPVisionModel", "BlenderbotForConditionalGeneration",
)  # fmt: skip
"""Programs that were tried once, at the end."""
PROGRAMS = (*TUNED, *SINCE, *UNSEEN)
FORK = multiprocessing.get_context("fork")
TRANSPOSED = -1
"""The number of the place at which a kernel of the map is transposed."""


# --- one program


def prepare(model: str, folder: Path) -> dict[str, Any]:
    """Proves the right program, and keeps its map and the places at which faults can be planted."""
    import planting
    from pairs import sides

    from jax_transformer.parity import prove
    from jax_transformer.parity.proofs.mapped import MappedPair
    from jax_transformer.parity.sides.options import as_side

    pair = _pair(model)
    module = planting.module_of(pair.config)
    planting.plant(module, None)
    side, original = sides(pair)
    found = MappedPair(side, as_side(original), dict(pair.inputs), 0).found
    arrays: dict[str, Any] = {name.replace("/", "|"): array for name, array in found.partners.items()}
    np.savez(folder / f"{model}.npz", **arrays)
    names = _converter(folder / f"{model}.npz", [*found.tensors])
    certificate = prove(side, original, inputs=pair.inputs, stages=("forward",), names=names)
    places = planting.ran(module)
    chosen = [place.__dict__ for place in _chosen(model, places, found.partners)]
    return {"model": model, "verdict": certificate.verdict, "tensors": [*found.tensors], "places": chosen}


def _chosen(model: str, places: list[Any], partners: Mapping[str, np.ndarray]) -> list[Any]:
    """Returns six places of different kinds, the rarest kinds first, then those that come next for this program; of one
    kind, the first that more than one module runs, if there is one."""
    from planting import FAULTS, KERNEL, RARE, Place

    square = [name for name, array in partners.items() if array.ndim == 2 and array.shape[0] == array.shape[1]]
    kernels = [name for name in square if name.endswith("kernel")]
    if kernels:
        name = kernels[len(kernels) // 2]
        places = [*places, Place(TRANSPOSED, KERNEL.kind, (), (name.rpartition("/")[0].replace("/", "."),), name)]
    found, start = [], PROGRAMS.index(model) * 3 % (len(FAULTS) - RARE)
    for fault in (*FAULTS[:RARE], *FAULTS[RARE + start :], *FAULTS[RARE : RARE + start]):
        same = [place for place in places if place.kind == fault.kind]
        found += sorted(same, key=lambda place: len(place.modules) < 2)[:1]
    return found[:FAULTS_OF_EACH]


def _pair(model: str) -> Any:
    from pairs import PAIRS

    return next(one for one in PAIRS if one.model == model)


def _converter(file: Path, tensors: list[str], transposed: str = "") -> Callable[[Mapping[str, np.ndarray]], Any]:
    """Returns a converter of weights that moves elements as a map does; elements without a partner, which the right
    program doesn't read, are taken from anywhere.

    Args:
      transposed: the leaf that arrives transposed.
    """
    from flax.traverse_util import unflatten_dict

    with np.load(file) as arrays:
        partners = {name.replace("|", "/"): arrays[name] for name in arrays}

    def convert(given: Mapping[str, np.ndarray]) -> Any:
        row = np.concatenate([np.ravel(given[name]) for name in tensors])
        leaves = {name: row[np.maximum(places, 0)] for name, places in partners.items()}
        if transposed:
            leaves[transposed] = leaves[transposed].T
        return unflatten_dict(leaves, sep="/")

    return convert


def measure(model: str, prepared: Mapping[str, Any], place: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Plants a fault, proves the pair, and judges the certificate."""
    import planting
    import torch
    from pairs import sides

    from jax_transformer.parity import prove

    torch.set_num_threads(1)
    pair, number = _pair(model), place["number"]
    module = planting.module_of(pair.config)
    planting.plant(module, number)
    side, original = sides(pair)
    names = _converter(folder / f"{model}.npz", prepared["tensors"], place["right"] if number == TRANSPOSED else "")
    before = time.process_time()
    certificate = prove(side, original, inputs=pair.inputs, stages=("forward",), names=names)
    seconds = time.process_time() - before
    planted = planting.Place(**{**place, "lines": tuple(place["lines"]), "modules": tuple(place["modules"])})
    if number != TRANSPOSED:
        planted = replace(planted, right=planting.PLANT.right)
    return {
        "program": f"Flax{model}",
        "tuned on": _tuned(model),
        "fault": planted.kind,
        "line": str(planted.lines[0]) if planted.lines else planted.right,
        **_judged(certificate, planted, Path(module.__file__)),
        "seconds": f"{seconds:.0f}",
        "GiB": f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.1f}",
    }


# --- judging


def _judged(certificate: Any, place: Any, file: Path) -> dict[str, str]:
    """Returns the columns that say whether a certificate names the planted fault."""
    from planting import BY_KIND

    repair = certificate.repair
    first = (certificate.difference or {}).get("candidate") or {}
    seen = [(first.get("line", ""), [first.get("module", "")], "")]
    if repair is not None:
        seen = [(cause.candidate, list(cause.modules), cause.text) for cause in repair.causes]
    found = [_lines(line, text, file) for line, _, text in seen]
    is_there = all(_is_at(lines, modules, place) for lines, (_, modules, _) in zip(found, seen, strict=True))
    several = "several" if any(len(lines) > 1 for lines in found) else "yes"
    right = ""
    if repair is not None:
        fault = BY_KIND[place.kind]
        is_right = is_there and all(cause.kind in fault.causes for cause in repair.causes)
        right = "yes" if is_right and fault.cure(place) in str(repair) else "no"
    text = str(repair or certificate.stages[0].reason or f"first at {seen[0][0]} in {', '.join(seen[0][1])}")
    return {
        "verdict": certificate.verdict,
        "place right": several if is_there and certificate.verdict == "refuted" else "no",
        "repair right": right or "none",
        "sentence": _short(text),
    }


def _lines(line: str, text: str, file: Path) -> set[int]:
    """Returns the lines of a file that a report names: one; two, of which one is too much; those in which a table, or
    places in it, are made; or those of a function between which something is missing."""
    name, _, number = line.rpartition("/")[2].rpartition(":")
    if name != file.name:
        return set()
    either = re.search(r" or \S+:(\d+) applies", text)
    if either:
        return {int(number), int(either[1])}
    made = re.search(r"made in lines? ([\d, ]+)", text)
    if made:
        return {int(number), *(int(each) for each in made[1].split(",") if each.strip())}
    gap = re.search(r"no line of (\S+) (above|below|from) \S+:(\d+)(?: to :(\d+))? does so", text)
    if gap is None:
        return {int(number)}
    function = _function(ast.parse(file.read_text(encoding="utf-8")).body, gap[1].split("."))
    first = function.lineno if gap[2] == "above" else int(gap[3])
    last = int(gap[4] or gap[3]) if gap[2] != "below" else function.end_lineno or 0
    return {*range(first, last + 1)}


def _function(body: list[ast.stmt], names: list[str]) -> ast.FunctionDef:
    found = next(each for each in body if getattr(each, "name", "") == names[0])
    return found if len(names) == 1 else _function(found.body, names[1:])  # type: ignore[return-value, attr-defined]


def _is_at(lines: set[int], modules: list[str], place: Any) -> bool:
    """Returns whether a place of a report is the planted one: whether its lines have the planted one, and it is inside
    the planted module."""
    is_line = bool(lines if not place.lines else lines.intersection(place.lines))
    planted = ["", *place.modules] if "" in place.modules else place.modules
    shown = [re.sub(r", step.*", "", each) for each in modules]
    return is_line and all(any(_is_inside(each, outer) for outer in planted) for each in shown)


def _is_inside(module: str, outer: str) -> bool:
    """Returns whether a module is another or a part of it; the root may have a name."""
    return not outer or f".{module}.".find(f".{outer}.") >= 0


def _short(text: str) -> str:
    words = (word.rpartition("/")[2] if "site-packages/" in word else word for word in text.split())
    return " ".join(words)


# --- all programs


def _rows_of(model: str, folder: Path, kinds: Collection[str]) -> Iterator[dict[str, Any]]:
    """Yields the rows of a program, from a process of its own, in which all packages are imported.

    Args:
      kinds: those to leave out.
    """
    receiver, sender = FORK.Pipe(duplex=False)
    process = FORK.Process(target=_worker, args=(model, folder, kinds, sender))
    process.start()
    sender.close()
    while True:
        try:
            if not receiver.poll(SECONDS):
                process.kill()
                yield {"fault": "", "verdict": "not done", "sentence": f"not done after {SECONDS} s"}
                break
            row = receiver.recv()
        except EOFError:
            break
        yield row
    process.join()


def _worker(model: str, folder: Path, kinds: Collection[str], sender: Any) -> None:
    file = folder / f"{model}.json"
    if not file.exists():
        prepared = prepare(model, folder)
        if prepared["verdict"] != "proven":
            sender.send({"fault": "", "verdict": prepared["verdict"], "sentence": "the right program isn't proven"})
            return
        file.write_text(json.dumps(prepared))
    prepared = json.loads(file.read_text())
    for place in prepared["places"]:
        if place["kind"] not in kinds:
            try:
                row = measure(model, prepared, place, folder)
            except Exception as error:  # which the row tells
                text = _short(f"{type(error).__name__}: {error}")[:300]
                row = {"fault": place["kind"], "verdict": "not run", "sentence": text}
            sender.send(row)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", help="the PyTorch classes to measure; all if left out")
    parser.add_argument("--journal", type=Path, default=Path(tempfile.gettempdir()) / "planted" / "journal.jsonl")
    parser.add_argument("--write", type=Path, help="the page whose counts are replaced; its table is a CSV file")
    options = parser.parse_args(arguments)
    folder = options.journal.parent
    folder.mkdir(parents=True, exist_ok=True)
    import transformers

    if transformers.__version__ != VERSION:
        from other_transformers import run_with

        return run_with(VERSION, __file__, arguments, PACKAGES[VERSION])
    import pairs  # noqa: F401  (once for all processes)

    import jax_transformer.parity  # noqa: F401

    rows = _rows(options.journal)
    for model in options.only or PROGRAMS:
        done = [fault for program, fault in rows if program == f"Flax{model}"]
        for row in _rows_of(model, folder, done) if len(done) < FAULTS_OF_EACH else ():
            row = {"program": f"Flax{model}", "tuned on": _tuned(model)} | row
            print(" | ".join(str(row.get(column, "")) for column in COLUMNS), flush=True)
            if row["fault"]:
                rows[row["program"], row["fault"]] = row
                with options.journal.open("a") as journal:
                    journal.write(json.dumps(row) + "\n")
    if options.write:
        write([*rows.values()], options.write)
    return 0


def _tuned(model: str) -> str:
    return "yes" if model in TUNED else "since" if model in SINCE else "no"


def _rows(journal: Path) -> dict[tuple[str, str], dict[str, Any]]:
    lines = journal.read_text().splitlines() if journal.exists() else []
    rows = [json.loads(line) for line in lines]
    return {(row["program"], row["fault"]): row for row in rows}


def write(rows: list[dict[str, Any]], page: Path) -> None:
    import jax
    import torch
    import transformers

    with TABLE.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, COLUMNS, restval="")
        table.writeheader()
        table.writerows(rows)
    lines = [
        "| programs | faults | refuted | line right | among several | repair right | another repair | no repair |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for title, tuned in (("tuned on", "yes"), ("held back at first", "since"), ("unseen", "no")):
        some = [row for row in rows if row["tuned on"] == tuned]
        counts = (
            sum(row.get(column, "") == value for row in some)
            for column, value in (
                ("verdict", "refuted"), ("place right", "yes"), ("place right", "several"), ("repair right", "yes"),
                ("repair right", "no"), ("repair right", "none"),
            )
        )  # fmt: skip
        programs = len({row["program"] for row in some})
        lines.append(f"| {programs} {title} | {len(some)} | {' | '.join(map(str, counts))} |")
    versions = f"transformers {transformers.__version__}, torch {torch.__version__}, jax {jax.__version__}"
    slowest, largest = (max(float(row.get(name) or 0) for row in rows) for name in ("seconds", "GiB"))
    lines += ["", f"At most {slowest:.0f} processor seconds and {largest:.1f} GiB each. {versions}."]
    text = page.read_text(encoding="utf-8")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    table_of_counts = "\n".join(lines)
    page.write_text(f"{before}{BEGIN}\n{table_of_counts}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
