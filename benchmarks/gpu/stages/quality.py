"""Training to the end: minutes, and BLEU on Multi30k's test of 2016 with beam 5."""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from parts import Context

LANGUAGES, SPLITS = ("en", "de"), ("train", "val", "test_2016_flickr")
LARGER = [
    "--model.d-model", "256", "--model.d-ff", "1024", "--train.learning-rate", "5e-3", "--data.batch-tokens", "4096",
    "--train.max-steps", "6000",
]  # fmt: skip


def tiny(context: Context) -> None:
    """Trains the preset multi30k_tiny."""
    _train(context, "multi30k_tiny", [])


def larger(context: Context) -> None:
    """Trains the same preset at twice the width."""
    _train(context, "multi30k_tiny, width 256", LARGER)


def _train(context: Context, name: str, options: list[str]) -> None:
    folder = _data(context)
    if folder is None:
        if not context.small:
            context.row(what="quality", name=name, error="no folder of Multi30k was given: --data")
            return
        preset, options = ["demo"], ["--train.max-steps", "40", "--train.evaluate-every", "20"]
        options += ["--data.phrasebook-pairs", "5000", "--train.evaluate-sentences", "20"]
        folder = context.out / "runs"
    else:
        preset = ["multi30k_tiny"]
        options = [*options, *(["--train.max-steps", "20", "--train.evaluate-every", "20"] if context.small else [])]
    folder.mkdir(parents=True, exist_ok=True)
    run = context.out.resolve() / "runs" / f"quality {name}"
    shutil.rmtree(run, ignore_errors=True)
    command = [sys.executable, "-m", "jax_transformer.cli"]
    with context.alone():
        start = time.perf_counter()
        done = subprocess.run(
            [*command, "train", *preset, *options, "--run-dir", str(run)], cwd=folder, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        minutes = (time.perf_counter() - start) / 60
    lines = done.stdout.strip().splitlines()
    context.row(what="trained", name=name, minutes=minutes, exit_code=done.returncode, last_lines=lines[-3:],
                **({"error": (done.stderr or done.stdout).strip()[-300:]} if done.returncode else {}))  # fmt: skip
    if done.returncode or preset == ["demo"]:
        return
    start = time.perf_counter()
    source, target = (folder / f"test_2016_flickr.lc.norm.tok.{language}" for language in LANGUAGES)
    done = subprocess.run(
        [*command, "evaluate", str(run), "--source", str(source), "--target", str(target), "--beam-size", "5",
         "--tokenize", "none"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    context.row(what="quality", name=name, seconds=time.perf_counter() - start, exit_code=done.returncode,
                printed=done.stdout.strip().splitlines()[-6:],
                **({"error": done.stderr.strip()[-300:]} if done.returncode else {}))  # fmt: skip


def _data(context: Context) -> Path | None:
    """Returns a folder with Multi30k's files, unpacked from the one that was given; None if none was."""
    given = os.environ.get("GPU_DATA")
    if not given:
        return None
    folder = context.out / "multi30k"
    folder.mkdir(exist_ok=True)
    for split in SPLITS:
        for language in LANGUAGES:
            name = f"{split}.lc.norm.tok.{language}"
            packed = Path(given) / f"{name}.gz"
            text = gzip.decompress(packed.read_bytes()) if packed.exists() else (Path(given) / name).read_bytes()
            (folder / name).write_bytes(text)
    return folder.resolve()
