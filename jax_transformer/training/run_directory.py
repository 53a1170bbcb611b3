"""The directory that one training run owns: config.yaml, metrics.jsonl, checkpoints/, model/."""

from __future__ import annotations

import fcntl
import json
import math
import os
from pathlib import Path
from typing import IO, Any

from jax_transformer.config_files import dump_config, load_config
from jax_transformer.run_config import RunConfig

CONFIG = "config.yaml"
METRICS = "metrics.jsonl"
CHECKPOINTS = "checkpoints"


class RunError(ValueError):
    """A run directory that can't be used."""


class RunDirectory:
    """A run directory, locked as long as this object is open, so that no two processes write the same run."""

    def __init__(self, path: Path, lock: IO[str]) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def create(cls, path: str | Path, config: RunConfig) -> RunDirectory:
        """A new run with `config.yaml` in it.

        Raises:
          RunError: there is something at `path` already.
        """
        path = Path(path)
        check_unused(path)
        path.mkdir(parents=True, exist_ok=True)
        run = cls(path, _lock(path))
        _write(path / CONFIG, dump_config(config))
        return run

    @classmethod
    def create_numbered(cls, name: str, config: RunConfig) -> RunDirectory:
        """runs/NAME, or the first free of runs/NAME-2, runs/NAME-3, …"""
        number = 1
        while (path := Path("runs") / (name if number == 1 else f"{name}-{number}")).exists():
            number += 1
        return cls.create(path, config)

    @classmethod
    def open(cls, path: str | Path) -> tuple[RunDirectory, RunConfig]:
        """An existing run and its config.

        Raises:
          RunError: no such run, or another process is training it.
        """
        path = Path(path)
        if not (path / CONFIG).is_file():
            raise RunError(
                f"{path}: expected a run directory to resume; received {'one without ' + CONFIG if path.is_dir() else 'no directory'}"
            )
        return cls(path, _lock(path)), load_config(path / CONFIG, RunConfig())

    @property
    def checkpoints(self) -> Path:
        return self.path / CHECKPOINTS

    @property
    def model(self) -> Path:
        return self.path / "model"

    def log(self, record: dict[str, Any]) -> None:
        """Adds a line to metrics.jsonl."""
        with open(self.path / METRICS, "a", encoding="utf-8") as file:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")

    def records(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl; a last one that was cut off by a crash is left out."""
        file = self.path / METRICS
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        return [json.loads(line) for line in lines if math.isfinite(_step_of(line))]

    def forget_after(self, step: int) -> None:
        """Drops the metrics of later steps, which a resumed run makes anew."""
        file = self.path / METRICS
        if not file.exists():
            return
        kept = [line for line in file.read_text(encoding="utf-8").splitlines(keepends=True) if _step_of(line) <= step]
        _write(file, "".join(kept))

    def close(self) -> None:
        self._lock.close()


def check_unused(path: str | Path) -> None:
    """Raises RunError if there is something at `path` already, an empty directory aside."""
    path = Path(path)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        advice = (
            f"go on with that run by --resume {path}, or choose another --run-dir"
            if (path / CONFIG).is_file()
            else "choose another --run-dir"
        )
        raise RunError(f"{path}: expected a new run directory; received one already in use; {advice}")


def _lock(path: Path) -> IO[str]:
    file = open(path / ".lock", "w", encoding="utf-8")  # noqa: SIM115 - held open on purpose
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise RunError(f"{path}: expected a run directory of our own; received one that another process is training now") from None
    return file


def _write(path: Path, text: str) -> None:
    """The whole file or none of it."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def _step_of(line: str) -> float:
    """The step of a metrics line; of a line cut off by a crash, infinity."""
    try:
        return json.loads(line)["step"]
    except (json.JSONDecodeError, KeyError):
        return float("inf")
