"""The command `parity`: seconds and memory of a tiny system and of a large model, clean and with a fault.

    python benchmarks/parity.py [--only CASE …]

The tiny system is harvard's with 2+2 layers and d_model 24, with a cold compilation cache and a warm one; the large
models have 6+6 layers, d_model 512, 8 heads, d_ff 2048 and vocabularies of 32,000: harvard's (untied), the same with
another ε in one norm of the reference, and transformers' Marian (shared embeddings), in all stages but the trajectory.
Each run is the command itself in a process of its own, with a terminal for its progress, by which its stages are told
apart. Wall time depends on what else the machine does: CPU seconds stand beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import pty
import re
import subprocess
import sys
import tempfile
import threading
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

RESULTS = Path(__file__).parent / "results" / "parity.json"
PAD, START, EOS = 2, 0, 1
WITHOUT_TRAJECTORY = "weights,inputs,masks,forward,loss,gradients,step,decode"
TINY = {
    "source_vocab_size": 41,
    "target_vocab_size": 43,
    "d_model": 24,
    "num_heads": 4,
    "d_ff": 50,
    "layers": 2,
    "max_length": 60,
}
LARGE = {
    "source_vocab_size": 32_000,
    "target_vocab_size": 32_000,
    "d_model": 512,
    "num_heads": 8,
    "d_ff": 2048,
    "layers": 6,
    "max_length": 5000,
}
FACTORY = """
from benchmark_parity import LARGE, harvard


def faulty():
    model = harvard(**LARGE)
    model.decoder.layers[1].sublayer[2].norm.eps = 1e-3
    return model
"""


class Case(NamedTuple):
    name: str
    arguments: tuple[str, ...]
    has_cache: bool
    exit_code: int


def harvard(*, layers: int, **sizes: int) -> Any:
    """Returns the model with random weights, drawn as in the original program."""
    import torch

    from torch_reference.harvard import HarvardTransformer

    torch.manual_seed(0)
    return HarvardTransformer(
        **sizes, num_encoder_layers=layers, num_decoder_layers=layers, source_pad_id=PAD, target_pad_id=PAD
    ).eval()


def make(folder: Path) -> list[Case]:
    """Writes the models to files, and returns the runs to measure."""
    import torch
    from decode import make_marian

    def harvard_command(file: str, heads: int) -> tuple[str, ...]:
        ids = {"source-pad-id": PAD, "target-pad-id": PAD, "decoder-start-id": START, "eos-id": EOS, "num-heads": heads}
        return (
            file,
            "--dialect",
            "harvard",
            *(part for name, number in ids.items() for part in (f"--{name}", str(number))),
        )

    for name, sizes in (("tiny", TINY), ("large", LARGE)):
        torch.save(harvard(**sizes).state_dict(), folder / f"{name}.pt")
    (folder / "benchmark_parity.py").write_bytes(Path(__file__).read_bytes())
    (folder / "benchmark_factory.py").write_text(FACTORY, encoding="utf-8")
    make_marian(folder / "marian")
    tiny, large, stages = (
        harvard_command("tiny.pt", TINY["num_heads"]),
        harvard_command("large.pt", LARGE["num_heads"]),
        ("--stages", WITHOUT_TRAJECTORY),
    )
    return [
        Case("tiny, cold cache", tiny, False, 0),
        Case("tiny, warm cache", tiny, True, 0),
        Case("large harvard", (*large, *stages), False, 0),
        Case("large harvard, one fault", (*large, *stages, "--reference", "benchmark_factory:faulty"), False, 1),
        Case("large Marian", ("marian", *stages), False, 0),
    ]


def measure(case: Case, folder: Path) -> dict[str, Any]:
    """Runs the command once; a run with a cache runs a second time, and that time counts."""
    environment = os.environ | {"JAX_ENABLE_COMPILATION_CACHE": str(case.has_cache).lower()}
    environment["JAX_COMPILATION_CACHE_DIR"] = str(folder / "cache")
    for _ in range(1 + case.has_cache):
        found = _run([sys.executable, "-m", "jax_transformer.cli", "parity", *case.arguments], folder, environment)
    if found["exit_code"] != case.exit_code:
        raise SystemExit(
            f"{case.name}: expected exit code {case.exit_code}; received {found['exit_code']}\n{found['output']}"
        )
    print(f"{case.name}: {found['seconds']:.1f} s, {found['peak_MiB']:.0f} MiB", file=sys.stderr)
    return {"case": case.name, **{key: value for key, value in found.items() if key != "output"}}


def _run(command: list[str], folder: Path, environment: dict[str, str]) -> dict[str, Any]:
    ours, theirs = pty.openpty()
    load, start = os.getloadavg()[0], time.perf_counter()
    process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=theirs)
    os.close(theirs)
    stages: list[list[Any]] = [["start", 0.0, 0.0]]
    is_over = threading.Event()
    watchers = [
        threading.Thread(target=_watch_memory, args=(process.pid, stages, is_over)),
        threading.Thread(target=_watch_progress, args=(ours, stages, start)),
    ]
    for watcher in watchers:
        watcher.start()
    assert process.stdout is not None
    output = process.stdout.read().decode()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    is_over.set()
    for watcher in watchers:
        watcher.join()
    os.close(ours)
    ends = [begun for _, begun, _ in stages[1:]] + [seconds]
    timed = [(name, end - begun, peak) for (name, begun, peak), end in zip(stages, ends, strict=True)]
    return {
        "seconds": seconds,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "peak_MiB": usage.ru_maxrss / 1024,
        "load_before": load,
        "exit_code": os.waitstatus_to_exitcode(status),
        "output": output,
        "stages": [{"stage": name, "seconds": took, "peak_MiB": peak} for name, took, peak in timed],
    }


def _watch_memory(pid: int, stages: list[list[Any]], is_over: threading.Event) -> None:
    """Keeps the peak memory of the stage that is running."""
    while not is_over.wait(0.02):
        try:
            found = re.search(r"VmRSS:\s*(\d+) kB", Path(f"/proc/{pid}/status").read_text())
        except OSError:
            return
        if found:
            stages[-1][2] = max(stages[-1][2], int(found[1]) / 1024)


def _watch_progress(terminal: int, stages: list[list[Any]], start: float) -> None:
    """Records when each stage begins, until the other end closes the terminal."""
    text = ""
    while True:
        try:
            text += os.read(terminal, 4096).decode(errors="replace")
        except OSError:
            return
        *lines, text = text.split(" …")
        for line in lines:
            stages.append([line.rpartition("\033[K")[2], time.perf_counter() - start, 0.0])


def report(rows: list[dict[str, Any]]) -> None:
    print("| case | seconds | CPU seconds | peak, MiB | load before |\n|---|---|---|---|---|")
    for row in rows:
        print(
            f"| {row['case']} | {row['seconds']:.1f} | {row['cpu_seconds']:.1f} | {row['peak_MiB']:.0f} | "
            f"{row['load_before']:.1f} |"
        )
    for row in rows:
        print(f"\n| {row['case']} | seconds | peak, MiB |\n|---|---|---|")
        for stage in row["stages"]:
            print(f"| {stage['stage']} | {stage['seconds']:.2f} | {stage['peak_MiB']:.0f} |")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", help="cases whose names begin so; results aren't written then")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cases = make(Path(folder))
        rows = [
            measure(case, Path(folder))
            for case in cases
            if not options.only or case.name.startswith(tuple(options.only))
        ]
    report(rows)
    if not options.only:
        packages = {name: version(name) for name in ("jax", "torch", "transformers", "numpy")}
        machine = {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count(), **packages}
        RESULTS.write_text(json.dumps({"machine": machine, "cases": rows}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
