"""The commands that are run with failing files, what they need, and what they must leave."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatch
from hashlib import sha256
from pathlib import Path
from typing import Any

from jax_transformer.cli import main
from jax_transformer.runtime.digests import DIGESTS

SIZES = {
    "model": {
        "d-model": 8,
        "num-heads": 2,
        "d-ff": 8,
        "num-encoder-layers": 1,
        "num-decoder-layers": 1,
        "max-length": 32,
    },
    "data": {"phrasebook-pairs": 60, "valid-pairs": 4, "test-pairs": 4, "max-length": 32, "batch-tokens": 640},
    "train": {"max-steps": 4, "evaluate-every": 2, "evaluate-sentences": 0, "keep-checkpoints": 2},
}
TINY = [f"--{group}.{name}={value}" for group, sizes in SIZES.items() for name, value in sizes.items()]
TINY += ["--data.num-shapes=1", "--data.cache-dir=cache", "--run-dir=run"]
STOPPED = "stopped"
TIMES = {"seconds", "tokens_per_second", "compile_seconds", "programs", "time", "data_seconds", "goodput"}
TIMES |= {"run_seconds", "mfu"}


@dataclass(frozen=True)
class Operation:
    """A command: what is there before it, and how to go on after it failed."""

    name: str
    needs: tuple[str, ...]
    """Files and folders that the operations before left, by name."""
    arguments: tuple[str, ...]
    again: Callable[[Path], tuple[str, ...]]
    """Folder → the command that a user gives after it failed."""
    stdin: str = ""
    """Name of the file that is its standard input."""
    grows: str = ""
    """Name of a run that it goes on with: its records are cut and grow before the command ends."""


def operation(name: str, needs: str, arguments: str | list[str], **options: Any) -> Operation:
    words = tuple(arguments.split() if isinstance(arguments, str) else arguments)
    return Operation(name, tuple(needs.split()), words, **{"again": lambda folder: words} | options)


def trained_again(folder: Path) -> tuple[str, ...]:
    """A run that has begun is resumed; one that hasn't is started again."""
    return ("train", "--resume", "run") if (folder / "run" / "config.yaml").exists() else ("train", *TINY)


OPERATIONS = (
    operation("prepare", "", ["train", *TINY, "--dry-run"]),
    operation("train", "cache", ["train", *TINY], again=trained_again),
    operation("resume", "cache stopped", "train --resume stopped", grows=STOPPED),
    operation("average", "cache run averaged", "average run --count 2 --output averaged"),
    operation("port", "checkpoint.safetensors ported", "port checkpoint.safetensors ported --dialect pytorch"),
    operation("port a .pt file", "checkpoint.pt ported", "port checkpoint.pt ported --dialect pytorch"),
    operation("export", "model exported.safetensors", "port model exported.safetensors --dialect pytorch"),
    operation("export a .pt file", "model exported.pt", "port model exported.pt --dialect pytorch"),
    operation("port from transformers", "hugging_face ported", "port hugging_face ported"),
    operation("export for transformers", "bart", "port bart exported"),
    operation("translate", "model sentences.txt", "translate model", stdin="sentences.txt"),
)


def make_needs(folder: Path) -> None:
    """Makes all that the operations need, in a folder, which is the working directory."""
    make_model(folder)
    assert main(["train", *TINY, f"--run-dir={STOPPED}", "--train.max-steps=2"]) == 0
    config = folder / STOPPED / "config.yaml"
    config.write_text(config.read_text(encoding="utf-8").replace("max_steps: 2", "max_steps: 4"), encoding="utf-8")
    shutil.copytree(folder / "model", folder / "averaged")
    assert main(["port", "model", "checkpoint.pt", "--dialect", "pytorch"]) == 0
    (folder / "exported.pt").write_bytes(b"older")
    make_bart(folder / "hugging_face")
    assert main(["port", "hugging_face", "bart"]) == 0


def make_model(folder: Path) -> None:
    """Makes a run, its model, and what is needed to port, export and use it; older results stand where new ones go."""
    assert main(["train", *TINY]) == 0
    shutil.copytree(folder / "run" / "model", folder / "model")
    shutil.copytree(folder / "model", folder / "ported")
    assert main(["port", "model", "checkpoint.safetensors", "--dialect", "pytorch"]) == 0
    (folder / "exported.safetensors").write_bytes(b"older")
    (folder / "sentences.txt").write_text("the cat sees a dog\n\nmy brother has two books\n", encoding="utf-8")


def make_bart(folder: Path) -> None:
    import torch
    import transformers

    torch.manual_seed(0)
    sizes = {f"{side}_{name}": size for side in ("encoder", "decoder")
             for name, size in (("layers", 1), ("attention_heads", 2), ("ffn_dim", 8))}  # fmt: skip
    config = transformers.BartConfig(vocab_size=20, d_model=8, max_position_embeddings=16, **sizes)
    transformers.BartForConditionalGeneration(config).save_pretrained(folder)


# --- what an operation left


def contents(folder: Path) -> dict[str, Any]:
    """Returns what stands in every file below a folder, but for times and for what differs between equal runs: the
    names and layout of checkpoints' files, of which it tells whether they are whole."""
    return {
        path.relative_to(folder).as_posix(): content(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "checkpoints" not in path.parts and not is_temporary(path.relative_to(folder))
    } | {
        path.parent.relative_to(folder).as_posix(): checkpoint(path.parent)
        for path in folder.rglob(f"checkpoints/*/{DIGESTS}")
    }


def content(path: Path) -> Any:
    if path.suffix == ".jsonl":
        return [without_times(line) for line in path.read_text(encoding="utf-8", errors="replace").splitlines()]
    if path.name in ("report.html", "progress.json", ".lock", "parameters.json"):
        return "made of the others"
    return sha256(path.read_bytes()).hexdigest()


def without_times(line: str) -> Any:
    try:
        return {key: value for key, value in json.loads(line).items() if key not in TIMES}
    except ValueError:
        return line  # half a line


def checkpoint(path: Path) -> str:
    from jax_transformer.training.checkpoints import damaged_files

    return "damaged" if damaged_files(path) else "whole"


UNFINISHED = "*orbax-checkpoint-tmp*"
"""Names of checkpoints that are being written. What is left of one goes when the run is resumed."""
TEMPORARY = (".*.tmp", "building-*", UNFINISHED)
"""Names that files and folders have until they are complete."""


def is_unfinished(name: str) -> bool:
    return fnmatch(name, UNFINISHED)


def is_temporary(path: Path) -> bool:
    return any(fnmatch(part, pattern) for part in path.parts for pattern in TEMPORARY)


def leftovers(folder: Path) -> list[str]:
    """Returns the temporary files and folders that are there."""
    found = (path.relative_to(folder) for path in folder.rglob("*"))
    return sorted(path.as_posix() for path in found if is_temporary(Path(path.name)))
