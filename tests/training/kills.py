"""Runs that a signal ends at a chosen moment and that are resumed: they must end as if nothing had happened.

test_kills.py and nightly_kills.py kill them.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from forked import Forked
from tiny_runs import TIMINGS, rows

from jax_transformer.config.files import dump_config
from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.parallel import ParallelConfig
from jax_transformer.config.run import DataConfig, RunConfig, TrainConfig
from jax_transformer.integrity import verify

STEPS, EVALUATE_EVERY = 24, 6
PAIRS, VALID = 60, 6
END_SECONDS = 300
OLD_SECONDS = 120
"""The age that leftovers are given, at which the next start removes them."""

SIGNALS = {
    "SIGKILL": (signal.SIGKILL,),
    "SIGTERM": (signal.SIGTERM,),
    "SIGINT": (signal.SIGINT,),
    "SIGSTOP, SIGKILL": (signal.SIGSTOP, signal.SIGKILL),
}
CODES = {
    "SIGKILL": (-signal.SIGKILL,),
    "SIGTERM": (130, -signal.SIGTERM),
    "SIGINT": (130,),
    "SIGSTOP, SIGKILL": (-signal.SIGKILL,),
}
"""What a process that got each signal ends with: 130 if it saved the run first."""

OPTIONS: dict[str, dict[str, dict[str, Any]]] = {
    "adam": {"train": {"evaluate_sentences": 2}, "model": {"dropout_rate": 0.2}},
    "muon with accumulation": {"train": {"optimizer": "muon", "accumulate": 2, "clip_norm": 1.0, "log_every": 4}},
    "sgd with averages": {
        "train": {
            "optimizer": "sgd", "momentum": 0.9, "ema_decay": 0.9, "average_checkpoints": 2, "keep_checkpoints": 1,
        },
    },
    "packed with plateaus": {
        "data": {"packing": True, "batch_tokens": 32},
        "train": {"plateau_patience": 1, "log_every": 5, "learning_rate": 0.3, "keep_checkpoints": 1},
    },
    "streamed": {"data": {"streaming": True, "stream_pairs": 24}, "model": {"dropout_rate": 0.2}},
    "virtual shards": {"parallel": {"virtual_shards": 2}, "model": {"dropout_rate": 0.2}},
    "rolled back": {  # from step 16 to 12
        "train": {
            "schedule": "constant", "learning_rate": 8e8, "warmup_steps": 24, "log_every": 4,
            "on_nonfinite": "rollback", "rollback_factor": 1e-33,
        },
    },
    "new segmentations": {
        "data": {"tokenizer": "bpe", "vocab_size": 40, "joint_vocabulary": True, "subword_sampling": 0.2},
        "train": {"max_epochs": 6, "log_every": 5},
    },
}  # fmt: skip


def config_of(folder: Path, options: str) -> RunConfig:
    """Returns a run of 24 steps on the text next to `folder`, with an evaluation and a checkpoint every six."""
    given = OPTIONS[options]
    data: dict[str, Any] = given.get("data", {})
    source: dict[str, Any] = (
        {"dataset": str(folder.parent / "text"), "source_language": "en", "target_language": "de"}
        if data.get("streaming")
        else {"train": (str(folder.parent / "text" / "train.jsonl"),), "source_column": "en", "target_column": "de"}
    )
    return RunConfig(
        model=TransformerConfig(
            **{"d_model": 8, "num_heads": 2, "d_ff": 8, "num_encoder_layers": 1, "num_decoder_layers": 1}
            | {"max_length": 32}
            | given.get("model", {})
        ),
        data=DataConfig(
            **source
            | {"tokenizer": "whitespace", "valid_pairs": VALID, "max_length": 32, "batch_tokens": 96, "num_shapes": 1}
            | {"cache_dir": str(folder / "cache")}
            | data
        ),
        train=TrainConfig(
            **{"max_steps": STEPS, "evaluate_every": EVALUATE_EVERY, "evaluate_sentences": 0, "log_every": 1}
            | {"warmup_steps": 4}
            | given.get("train", {})
        ),
        parallel=ParallelConfig(**given.get("parallel", {})),
        run_dir=str(folder / "run"),
    )


def write_text(folder: Path) -> None:
    """Writes the text of the runs in a folder: sentences of one to eight words."""
    (folder / "text").mkdir(parents=True)
    chance = random.Random(0)
    sentences = [[f"w{chance.randrange(9)}" for _ in range(chance.randrange(1, 9))] for _ in range(PAIRS + VALID)]
    pairs = ({"en": " ".join(words), "de": " ".join(reversed(words))} for words in sentences)
    (folder / "text" / "train.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs), encoding="utf-8")


# --- moments


def records(run: Path) -> list[dict[str, Any]]:
    """Returns the whole lines of metrics.jsonl so far."""
    file = run / "metrics.jsonl"
    return [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n")[:-1]] if file.exists() else []


Moment = Callable[[Path], bool]
"""Whether a run under a folder has come to a moment."""


def preparing(chance: random.Random) -> Moment:
    return lambda folder: any((folder / "cache").glob("building-*"))


def compiling(chance: random.Random) -> Moment:
    return lambda folder: (folder / "run" / "data.json").exists()


def stepping(chance: random.Random) -> Moment:
    least = chance.randrange(1, STEPS)
    return lambda folder: any("loss" in record and record["step"] >= least for record in records(folder / "run"))


def evaluating(chance: random.Random) -> Moment:
    least = EVALUATE_EVERY * chance.randrange(1, STEPS // EVALUATE_EVERY + 1)

    def has_come(folder: Path) -> bool:
        last = (records(folder / "run") or [{}])[-1]
        return "loss" in last and last["step"] >= least and last["step"] % EVALUATE_EVERY == 0

    return has_come


def saving(chance: random.Random) -> Moment:
    least = EVALUATE_EVERY * chance.randrange(1, STEPS // EVALUATE_EVERY + 1)

    def has_come(folder: Path) -> bool:
        steps = (path.name.partition(".")[0] for path in (folder / "run" / "checkpoints").glob("*.orbax-*"))
        return any(step.isdecimal() and int(step) >= least for step in steps)

    return has_come


def ending(chance: random.Random) -> Moment:
    pattern = chance.choice((".model.*.tmp", "model"))
    return lambda folder: any((folder / "run").glob(pattern))


def resuming(chance: random.Random) -> Moment:
    """The run directory has been opened since; the process before wrote its last line."""
    started = time.time()
    file = chance.choice(("data.json", ".lock"))
    return lambda folder: (folder / "run" / file).stat().st_mtime > started


PHASES: dict[str, tuple[Callable[[random.Random], Moment], float]] = {
    "preparing": (preparing, 0.05),
    "compiling": (compiling, 1.0),
    "steps": (stepping, 0.02),
    "evaluation": (evaluating, 0.1),
    "checkpoint": (saving, 0.03),
    "end": (ending, 0.03),
    "resuming": (resuming, 1.0),
}
"""The beginning of each phase, and the most seconds after it."""


# --- processes


@dataclass(frozen=True)
class Ended:
    """Holds how a process ended."""

    code: int
    output: str
    was_killed: bool
    """Whether the moment came before it ended by itself."""


def arguments(folder: Path) -> list[str]:
    """Returns the command line that begins the run under a folder, or resumes it if it has begun."""
    run = folder / "run"
    return ["train", *(["--resume", str(run)] if (run / "config.yaml").exists() else ["--config", f"{run}.yaml"])]


@contextmanager
def started(folder: Path) -> Iterator[Forked]:
    """Yields a process that begins the run under a folder, or resumes it if it has begun."""
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(folder.parent / "library")}
    process = Forked(["-m", "jax_transformer.cli", *arguments(folder)], environment=offline)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def killed(folder: Path, name: str, moment: Moment, seconds: float) -> Ended:
    """Starts or resumes the run, and sends a signal some seconds after a moment."""
    with started(folder) as process:
        deadline = time.monotonic() + END_SECONDS
        while process.poll() is None and not moment(folder) and time.monotonic() < deadline:
            time.sleep(0.0005)
        time.sleep(seconds)
        was_killed = process.poll() is None
        for number in SIGNALS[name]:
            process.send_signal(number)
            time.sleep(0.1 if number == signal.SIGSTOP else 0)
        output, _ = process.communicate(timeout=END_SECONDS)
    return Ended(process.returncode, output, was_killed)


Finish = Callable[[Path], Ended]
"""Begins the run under a folder, or resumes it, and returns how that ended."""


def run_to_the_end(folder: Path) -> Ended:
    """Begins or resumes the run in a process of its own."""
    with started(folder) as process:
        output, _ = process.communicate(timeout=END_SECONDS)
    return Ended(process.returncode, output, False)


def undisturbed(folder: Path, options: str, finish: Finish = run_to_the_end) -> Path:
    """Returns a run that nothing disturbs."""
    folder.mkdir(parents=True)
    (folder / "run.yaml").write_text(dump_config(config_of(folder, options)), encoding="utf-8")
    ended = finish(folder)
    assert ended.code == 0, ended.output
    return folder / "run"


# --- the whole


@dataclass(frozen=True)
class Kill:
    """Holds a case of the matrix and what became of it."""

    signal: str
    phase: str
    options: str
    was_hit: bool = True
    """Whether a process was running when the signal came."""
    problems: tuple[str, ...] = ()

    def __str__(self) -> str:
        verdict = "; ".join(self.problems) or ("identical" if self.was_hit else "identical, but it had ended before")
        return f"{self.signal} while {self.phase}, {self.options}: {verdict}"


def kill_and_resume(
    folder: Path, kill: Kill, expected: Path, chance: random.Random, finish: Finish = run_to_the_end
) -> Kill:
    """Kills a run in a phase, resumes it, and compares it with one that nothing disturbed."""
    folder.mkdir(parents=True)
    (folder / "run.yaml").write_text(dump_config(config_of(folder, kill.options)), encoding="utf-8")
    if kill.phase == "resuming":
        killed(folder, "SIGKILL", saving(chance), chance.uniform(0, 0.1))
        age(folder)
    begins, most = PHASES[kill.phase]
    ended = killed(folder, kill.signal, begins(chance), chance.uniform(0, most))
    problems = []
    if ended.was_killed and ended.code not in (*CODES[kill.signal], 0):
        problems.append(f"it ended with {ended.code}: {ended.output[-2000:]}")
    if "Traceback" in ended.output:
        problems.append(f"a traceback: {ended.output[-2000:]}")
    age(folder)
    resumed = finish(folder)
    if resumed.code:
        problems.append(f"resuming ended with {resumed.code}: {resumed.output[-2000:]}")
    else:
        problems += differences(folder / "run", expected) + leftovers(folder)
    return replace(kill, was_hit=ended.was_killed, problems=tuple(problems))


def differences(run: Path, expected: Path) -> list[str]:
    """Lists the differences of a run from another with the same options."""
    found = [str(finding) for finding in verify(run) if not finding.is_whole]
    if (run / "model/params.safetensors").read_bytes() != (expected / "model/params.safetensors").read_bytes():
        found.append("other weights")
    if rows(run) != rows(expected):
        found.append(f"other metrics: {[row for row in rows(run) if row not in rows(expected)][:2]}")
    samples = [without_times(one / "samples.jsonl") for one in (run, expected)]
    return [*found, "other samples"] if samples[0] != samples[1] else found


def without_times(file: Path) -> list[dict[str, Any]]:
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return [{key: value for key, value in json.loads(line).items() if key not in TIMINGS} for line in lines]


def leftovers(folder: Path) -> list[str]:
    """Returns the leftovers of killed processes under a run and its cache."""
    run, cache = folder / "run", folder / "cache"
    left = chain(run.glob(".*.tmp"), run.glob("checkpoints/*.orbax-*"), run.glob(".stream/*"), cache.glob("building-*"))
    return [f"left behind: {path.relative_to(folder)}" for path in left]


def age(folder: Path) -> None:
    """Makes what a killed process left old enough to be removed."""
    then = time.time() - OLD_SECONDS
    for path in chain((folder / "run").glob(".*.tmp"), (folder / "cache").glob("building-*")):
        os.utime(path, (then, then))
