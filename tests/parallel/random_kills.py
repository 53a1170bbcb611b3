"""Kills runs of several processes at random moments, resumes them in another number of processes, and compares what
they end with to a run that nothing disturbed.

    python tests/parallel/random_kills.py [--count 10] [--seed 0]

Each time, one process of 2 or 4 gets SIGKILL, SIGSTOP or SIGTERM. Every other run trains in virtual shards, and must
end with the same bytes; the others must have the same losses but for rounding."""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).parents[1] / "training"))  # as pytest finds what tests share
sys.path.append(str(Path(__file__).parents[1] / "faults"))

from test_processes import END_SECONDS, training
from test_runs import FLOAT32, config_file, values

STEPS = 60
SHARDS = ("--parallel.virtual-shards", "4")
SIGNALS = (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM)


def options(folder: Path, shards: bool) -> list[str]:
    folder.mkdir()
    sizes = ["--train.max-steps", str(STEPS), "--train.evaluate-every", "7", "--train.max-epochs", "0"]
    return ["--config", config_file(folder), *sizes, *(SHARDS if shards else ())]


def run_to_the_end(folder: Path, arguments: list[str], processes: int) -> Path:
    with training(folder, *arguments, processes=processes) as running:
        outputs = [process.communicate(timeout=600)[0] for process in running]
        assert [process.returncode for process in running] == [0] * processes, outputs
    return folder / "run"


def disturbed(folder: Path, shards: bool, chance: random.Random) -> tuple[Path, str]:
    """Returns a run that was killed and resumed, and what happened to it."""
    before, after = chance.choice(((2, 4), (4, 2), (2, 1), (4, 1)))
    victim, number = chance.randrange(before), chance.choice(SIGNALS)
    arguments = options(folder, shards)
    with training(folder, *arguments, processes=before) as running:
        start = time.monotonic()
        moment = chance.randrange(STEPS)
        while len(values(folder / "run", "loss")) < moment and time.monotonic() - start < 300:
            time.sleep(0.01)
        time.sleep(chance.uniform(0, 0.5))
        step = len(values(folder / "run", "loss"))
        running[victim].send_signal(number)
        start = time.monotonic()
        for process in running:
            if process is not running[victim] or number == signal.SIGTERM:
                process.wait(timeout=END_SECONDS)
        seconds = time.monotonic() - start
        codes = [process.poll() for process in running]
    resumed = ["--resume", str(folder / "run")]
    if codes == [0] * before:
        return folder / "run", f"{number.name} to {victim} of {before} came after the end"
    run = run_to_the_end(folder, resumed, after)
    return run, (
        f"{number.name} to {victim} of {before} after step {step}: the others ended within {seconds:.0f} s with "
        f"{codes}; resumed in {after}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
    chance, failures = random.Random(arguments.seed), 0
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        expected = {
            shards: run_to_the_end(folder / str(shards), options(folder / str(shards), shards), 1)
            for shards in (True, False)
        }
        for number in range(arguments.count):
            shards = number % 2 == 0
            run, happened = disturbed(folder / f"{number}", shards, chance)
            losses, others = (np.array(values(one, "loss")) for one in (run, expected[shards]))
            weights, other = ((one / "model" / "params.safetensors").read_bytes() for one in (run, expected[shards]))
            apart = float(np.abs(losses / others - 1).max()) if losses.shape == others.shape else np.inf
            is_same = weights == other and apart == 0 if shards else apart < 3 * FLOAT32
            failures += not is_same
            verdict = "the same bytes" if shards and is_same else f"losses {apart:.1e} apart"
            print(f"{number}: {happened}: {verdict}{'' if is_same else '  DIFFERENT'}", flush=True)
    print(f"{arguments.count - failures} of {arguments.count} runs ended as if nothing had happened")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
