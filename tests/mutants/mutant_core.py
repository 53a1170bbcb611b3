"""The modules whose mutants are measured: what computes a model, its training, its decoding, and a verdict."""

from __future__ import annotations

import json
import marshal
from collections.abc import Iterable
from pathlib import Path

from mutations import Mutant, marked, mutants

ROOT = Path(__file__).parents[2]
CORE = (
    "comparison/gates/*.py",
    "config/*.py",
    "data/batching.py",
    "data/loader.py",
    "data/planning.py",
    "data/token_pairs.py",
    "decoding/*.py",
    "model/*.py",
    "parity/diagnosis/*.py",
    "parity/oracle/*.py",
    "porting/**/*.py",
    "proof/**/*.py",
    "storage/*.py",
    "training/averaging.py",
    "training/batch_*.py",
    "training/checkpoints.py",
    "training/freezing.py",
    "training/loop.py",
    "training/losses.py",
    "training/opt*.py",
    "training/sch*.py",
    "training/st*.py",
    "training/trainer.py",
    "training/virtual_shards.py",
    "training/warm_start.py",
)


def core_files() -> dict[str, Path]:
    """Returns module → its file."""
    matched = {pattern: [*(ROOT / "jax_transformer").glob(pattern)] for pattern in CORE}
    assert all(matched.values()), [pattern for pattern, files in matched.items() if not files]
    return _modules(file for files in matched.values() for file in files)


def package_files() -> dict[str, Path]:
    """Returns module → its file, of the whole package."""
    return _modules((ROOT / "jax_transformer").rglob("*.py"))


def _modules(files: Iterable[Path]) -> dict[str, Path]:
    names = {".".join(file.relative_to(ROOT).with_suffix("").parts): file for file in files}
    return {name: names[name] for name in sorted(names) if not name.endswith(".__init__")}


def all_mutants() -> list[Mutant]:
    """Returns every change that the core offers."""
    return [found for name, file in core_files().items() for found in mutants(name, file.read_text("utf-8"))]


def write_marks(folder: Path) -> None:
    """Writes the marked modules of the package, and `functions.json`: the place of a function at its number."""
    places: list[str] = []
    for name, file in package_files().items():
        numbers: dict[str, int] = {f"\0{number}": number for number in range(len(places))}
        before = len(numbers)
        code = compile(marked(file.read_text("utf-8"), numbers), str(file), "exec", dont_inherit=True)
        (folder / f"{name}.code").write_bytes(marshal.dumps(code))
        places += [f"{name}:{function}" for function in list(numbers)[before:]]
    (folder / "functions.json").write_text(json.dumps(places), "utf-8")
