"""Runs that are killed and resumed, and two runs of one seed: whether they end with the same bits."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from parts import Context

STEPS, CHECKPOINT, KILLED_AT = 60, 20, 45
DETERMINISTIC = "--xla_gpu_deterministic_ops=true"


def kill(context: Context) -> None:
    """Kills a run with SIGKILL between two checkpoints, resumes it, and compares it with a run that went through."""
    for flags in ("", DETERMINISTIC):
        whole = _train(context, f"whole{bool(flags):d}", flags)
        killed = _train(context, f"killed{bool(flags):d}", flags, kill_at=KILLED_AT)
        same = whole == killed
        context.row(what="resume", flags=flags, same_bits=same, steps=STEPS, killed_at=KILLED_AT)
        if same:
            return


def seeds(context: Context) -> None:
    """Compares two runs of one seed, with XLA's defaults, and with deterministic operations if they differ."""
    for flags in ("", DETERMINISTIC):
        first, second = (_train(context, f"seed{bool(flags):d}{k}", flags) for k in range(2))
        context.row(what="two runs of one seed", flags=flags, same_bits=first == second, steps=STEPS)
        if first == second:
            return


def _train(context: Context, name: str, flags: str, kill_at: int | None = None) -> str:
    """Trains the demo for STEPS steps, and returns the digest of its weights."""
    folder = context.out / "runs" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()}
    command = [sys.executable, "-m", "jax_transformer.cli", "train"]
    options = [
        "demo", "--run-dir", str(folder), "--train.max-steps", str(STEPS), "--train.evaluate-every", str(CHECKPOINT),
        "--train.log-every", "5", "--train.evaluate-sentences", "0", "--data.phrasebook-pairs", "5000",
        "--model.dropout-rate", "0.1",
    ]  # fmt: skip
    log = folder.parent / f"{name}.log"
    with log.open("w") as output:
        if kill_at is not None:
            running = subprocess.Popen(
                [*command, *options], stdout=output, stderr=output, env=environment, start_new_session=True
            )
            while running.poll() is None and _steps_of(folder) < kill_at:
                time.sleep(0.005)
            os.killpg(running.pid, signal.SIGKILL)
            running.wait()
            context.row(what="killed", at=_steps_of(folder), exit_code=running.returncode)
            options = ["--resume", str(folder)]
        done = subprocess.run([*command, *options], stdout=output, stderr=output, env=environment, check=False)
    if done.returncode:
        raise RuntimeError(f"train ended with {done.returncode}: {log.read_text()[-300:]}")
    weights = next((folder / "model").rglob("params.safetensors"))
    return hashlib.sha256(weights.read_bytes()).hexdigest()


def _steps_of(folder: Path) -> int:
    """Returns the last step that the run's metrics tell."""
    import json

    file = folder / "metrics.jsonl"
    steps = 0
    if file.exists():
        for line in file.read_text().splitlines():
            try:
                steps = max(steps, int(json.loads(line).get("step", 0)))
            except json.JSONDecodeError:
                continue  # the line that is being written
    return steps
