"""Reads and writes the directory of one training run: config.yaml, metrics.jsonl, samples.jsonl, data.json,
parameters.json, checkpoints/, model/; source_tokenizer.json, target_tokenizer.json and loss.json if they were given as
objects."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import math
import re
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from jax_transformer import buckets
from jax_transformer.buckets import Mirror, address_of, local_directory, named
from jax_transformer.config.described import differences
from jax_transformer.config.files import dump_config, load_config
from jax_transformer.config.run import RunConfig
from jax_transformer.config.stored import config_from_plain
from jax_transformer.config.validation import ConfigError
from jax_transformer.data.text_files import shorten
from jax_transformer.parallel.processes import Processes
from jax_transformer.runtime.digests import DIGESTS
from jax_transformer.runtime.files import atomic_write, naming_errors, remove_abandoned
from jax_transformer.runtime.json_text import parse_json, read_json_object
from jax_transformer.runtime.trees import flatten
from jax_transformer.storage.model_files import MANIFEST, TOKENIZERS

CONFIG = "config.yaml"
METRICS = "metrics.jsonl"
CHECKPOINTS = "checkpoints"
SAMPLES = "samples.jsonl"
DATA = "data.json"
PARAMETERS = "parameters.json"
REPORT = "report.html"
PROGRESS = "progress.json"
TRANSLATIONS = "translations.json"
LOSS = "loss.json"
MODEL = "model"
CONTINUED = "continued.json"
LOCK, TOKEN = ".lock", ".processes"
UNNAMED = Path("runs")
"""The directory of runs whose place isn't named."""
APPEAR_SECONDS = 30.0
"""Time limit for a file of process 0 to appear in the other processes."""


class RunError(ValueError):
    """Raised when a run directory can't be used."""


class RunDirectory:
    """Reads and writes a run directory, locked while this object is open so that no two runs write one directory.

    Only the first process of a run writes; the other processes read.
    """

    def __init__(self, path: Path, lock: IO[str] | None, mirror: Mirror | None = None) -> None:
        self.path = path
        self._lock = lock
        self._mirror = mirror

    @classmethod
    def follow(cls, path: str | Path) -> RunDirectory:
        """Returns a read-only view of the run directory that the first process writes."""
        return cls(Path(path), None)

    @property
    def place(self) -> str | Path:
        """The run directory as users name it: its address in the bucket, of which `path` is the local copy, or
        `path`."""
        return str(self._mirror.address) if self._mirror else self.path

    @property
    def how_to_share(self) -> str:
        """What makes the directory visible on all hosts."""
        if self._mirror or self.path.is_relative_to(buckets.cache()):
            return f"let {buckets.PLACE} name a folder on a file system of all hosts, for the bucket's local copy"
        return "choose a --run-dir on a file system of all hosts"

    @property
    def writes(self) -> bool:
        """Whether this process writes the directory."""
        return self._lock is not None

    @classmethod
    def create(cls, path: str | Path, config: RunConfig, tokenizers: Mapping[str, str] | None = None) -> RunDirectory:
        """Creates a run directory with `config.yaml` in it.

        Args:
          path: the directory, here or in a bucket.
          config: the run.
          tokenizers: the texts of tokenizers given as objects, by their option; the config then names their files.

        Raises:
          RunError: `path` is already in use.
          BucketError: the bucket can't be read or written.
        """
        check_unused(path)
        mirror = mirror_of(path)
        path = mirror.directory if mirror else Path(path)
        path.mkdir(parents=True, exist_ok=True)
        run = cls(path, _lock(path), mirror)
        try:
            if mirror:
                mirror.begin()
            for option, text in (tokenizers or {}).items():
                _write(path / TOKENIZERS[option], text)
            _write(path / CONFIG, dump_config(_with_own_tokenizers(config, path)))
            run.upload("Begin the run")
        except BaseException:
            run.close()
            raise
        return run

    @classmethod
    def create_numbered(cls, name: str, config: RunConfig, tokenizers: Mapping[str, str] | None = None) -> RunDirectory:
        """Creates runs/NAME, or the first free one of runs/NAME-2, runs/NAME-3, …"""
        number = 1
        while (path := UNNAMED / (name if number == 1 else f"{name}-{number}")).exists():
            number += 1
        return cls.create(path, config, tokenizers)

    @classmethod
    def open(cls, path: str | Path) -> RunDirectory:
        """Opens an existing run, and removes the unfinished files of killed processes.

        Raises:
          RunError: no such run, or another process is training it.
        """
        mirror = mirror_of(path)
        if mirror:
            return cls._open_in_bucket(mirror)
        path = Path(path)
        if not (path / CONFIG).is_file():
            raise RunError(
                f"{path}: expected a run directory to resume; received "
                f"{'one without ' + CONFIG if path.is_dir() else 'no directory'}"
            )
        cls.follow(path).config()  # reports a mistake in it before anything is written
        run = cls(path, _lock(path))
        remove_abandoned(path.glob(".*.tmp"))
        return run

    @classmethod
    def _open_in_bucket(cls, mirror: Mirror) -> RunDirectory:
        if CONFIG not in mirror.names():
            raise RunError(f"{mirror.address}: expected a run directory to resume; received none with {CONFIG}")
        mirror.directory.mkdir(parents=True, exist_ok=True)
        run = cls(mirror.directory, _lock(mirror.directory), mirror)
        try:
            mirror.pull(CONFIG)
            run.config()
            remove_abandoned(run.path.glob(".*.tmp"))
            run.upload("Resume the run")
        except BaseException:
            run.close()
            raise
        return run

    def upload(self, why: str) -> None:
        """Uploads what has changed to the bucket, if the run is in one.

        Args:
          why: a few words for the Hub, where it is a commit.

        Raises:
          BucketError: the bucket can't be written, or another process has resumed the run.
        """
        if self._mirror and self._lock is not None:
            self._mirror.push(why)

    def config(self) -> RunConfig:
        """Reads the run's config. Raises ConfigError for a mistake in it."""
        return config_of_run(self.path)

    @property
    def checkpoints(self) -> Path:
        return self.path / CHECKPOINTS

    @property
    def model(self) -> Path:
        return self.path / MODEL

    @property
    def report(self) -> Path:
        return self.path / REPORT

    def log(self, record: dict[str, Any], name: str = METRICS) -> dict[str, Any]:
        """Appends the record with the time (seconds since 1970) to metrics.jsonl or the file `name`, and returns it."""
        record = {**record, "time": round(time.time(), 2)}
        if not self.writes:
            return record
        with naming_errors(self.path / name), open(self.path / name, "a", encoding="utf-8") as file:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
        return record

    def write(self, name: str, value: Any) -> None:
        """Writes `value` as JSON to the file `name`, atomically."""
        if self.writes:
            _write(self.path / name, json.dumps(value, ensure_ascii=False) + "\n")

    def read(self, name: str) -> dict[str, Any]:
        """Returns the JSON object in the file `name`, or an empty one without the file. Raises RunError for any other
        content."""
        file = self.path / name
        return read_json_object(file, RunError) if file.exists() else {}

    def check_tokenizers(self, texts: Mapping[str, str]) -> None:
        """Raises RunError unless these tokenizers, by their option, are those that the run began with."""
        for option, text in texts.items():
            file = self.path / TOKENIZERS[option]
            if not file.is_file():
                raise RunError(
                    f"{option}: expected none, since the run began with the tokenizers of its config, and "
                    f"{self.path} has no {file.name}; received one"
                )
            if file.read_text(encoding="utf-8") != text:
                raise RunError(
                    f"{option}: expected the one that the run began with, {file}; received another. Leave it out: a "
                    "run keeps its tokenizers."
                )

    def keep_loss(self, loss: Callable[..., Any] | None) -> None:
        """Writes the name of the caller's own loss, if any, so that the run resumes with none but this one."""
        if loss is not None:
            self.write(LOSS, {"loss": name_of(loss)})

    def check_loss(self, loss: Callable[..., Any] | None) -> None:
        """Raises RunError unless the loss, or None for the config's, has the name of the one that the run began
        with."""
        began_with, given = self.read(LOSS).get("loss"), None if loss is None else name_of(loss)
        if began_with != given:
            expected = f"the function that the run began with, {began_with}" if began_with else "none, as the run began"
            advice = f": train(config, resume=True, loss={began_with.rpartition('.')[2]})" if began_with else ""
            raise RunError(f"loss: expected {expected}{advice}; received {given or 'none'}")

    def check_corpus(self, name: str) -> None:
        """Raises RunError unless `name` is the prepared corpus in `data.json`, with which the run began."""
        began_with = self.read(DATA).get("corpus", name)
        if began_with != name:
            raise RunError(
                f"{self.path}: expected the text, the tokenizer files and the options of data that this run began "
                "with; received different ones; restore them, or start a new run"
            )

    def config_changes(self, config: RunConfig) -> list[str]:
        """Returns a line for each value of the config that has changed since the run began or was last resumed.

        Raises:
          RunError: the recorded config can't be read.
        """
        recorded = self.read(PARAMETERS).get("config", {})
        before, after = flatten(recorded), flatten(plain_config(config))
        moved = {f"data/{option}" for option, file in TOKENIZERS.items() if (self.path / file).is_file()}
        pairs = {
            name.replace("/", "."): (value, after[name])
            for name, value in before.items()
            if name in after and not name.startswith("model/") and name not in moved
        }
        unread = []
        if "model" in recorded:
            try:
                model = config_from_plain(recorded["model"])
                pairs |= {f"model.{name}": pair for name, pair in differences(model, config.model).items()}
            except ConfigError as error:
                unread = [f"model: unknown, since {self.path / PARAMETERS} holds no config of this version ({error})"]
        changed = (f"{name}: {value!r} → {now!r}" for name, (value, now) in pairs.items() if value != now)
        return [*unread, *changed]

    def records(self) -> list[dict[str, Any]]:
        """Returns the records of metrics.jsonl, without a last line truncated by a crash.

        Raises:
          RunError: another line that isn't a record.
        """
        return [record for _, record in _records(self.path / METRICS)]

    def forget_after(self, step: int) -> None:
        """Drops the metrics and samples of later steps and of the model, which a resumed run repeats. Raises RunError
        as `records` does."""
        kept = {
            file: "".join(
                f"{text}\n" for text, record in _records(file) if record["step"] <= step and "model_step" not in record
            )
            for file in (self.path / METRICS, self.path / SAMPLES)
            if self.writes and file.exists()
        }
        for file, text in kept.items():
            _write(file, text)

    def remove(self) -> None:
        """Deletes the whole directory, here and in the bucket."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._mirror:
            self._mirror.remove()

    def close(self) -> None:
        if self._lock is not None:
            with suppress(OSError):  # the file is empty: nothing is lost
                self._lock.close()


# --- in all processes of a run


def open_run(path: str | Path, processes: Processes) -> tuple[RunDirectory, RunConfig]:
    """Opens an existing run in every process; returns it with its config.

    Raises:
      RunError: see `RunDirectory.open`; a host that doesn't share the directory.
    """
    run = _in_first(lambda: RunDirectory.open(path), processes)
    return run, run.config()


def create_run(create: Callable[[], RunDirectory], processes: Processes) -> RunDirectory:
    """Creates a run directory by calling `create` in process 0, and returns it in every process.

    Raises:
      RunError: a host doesn't share the directory, which is then removed; any error of `create`.
    """
    return _in_first(create, processes, is_new=True)


def _in_first(make: Callable[[], RunDirectory], processes: Processes, *, is_new: bool = False) -> RunDirectory:
    made: list[RunDirectory] = []

    def in_first() -> str:
        made.append(make())
        return str(made[0].path)

    path = processes.agree("the run directory", in_first)
    run = made[0] if made else RunDirectory.follow(path)
    try:
        _check_shared(run, processes)
    except BaseException:
        if is_new and run.writes:
            run.remove()
        run.close()
        raise
    return run


def _check_shared(run: RunDirectory, processes: Processes) -> None:
    """Raises RunError, in every process, unless all see what process 0 writes to the directory."""
    if processes.count == 1:
        return
    file = run.path / TOKEN

    def write() -> str:
        token = uuid.uuid4().hex
        file.write_text(token, encoding="utf-8")
        return token

    token = processes.agree("whether the hosts share the run directory", write)
    seen = processes.gather("whether the hosts share the run directory", _appears(file, token))
    if run.writes:
        file.unlink()
    if not all(seen):
        blind = [str(number) for number, sees in enumerate(seen) if not sees]
        raise RunError(
            f"{run.path}: expected a run directory that all hosts share; received one in which "
            f"process{'es' if len(blind) > 1 else ''} {', '.join(blind)} can't see what process 0 writes; "
            f"{run.how_to_share}"
        )


def _appears(file: Path, token: str) -> bool:
    deadline = time.monotonic() + APPEAR_SECONDS
    while time.monotonic() < deadline:
        if file.is_file() and file.read_text(encoding="utf-8") == token:
            return True
        time.sleep(0.2)
    return False


# --- files


def name_of(function: Callable[..., Any]) -> str:
    """Returns the module and the name of a function, or of an object's class."""
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"


def config_of_run(path: Path) -> RunConfig:
    """Reads the config of a run, with the tokenizers that its directory keeps. Raises ConfigError for a mistake in
    it."""
    return _with_own_tokenizers(load_config(path / CONFIG, RunConfig()), path)


def _with_own_tokenizers(config: RunConfig, path: Path) -> RunConfig:
    """Returns the config with the tokenizers in the run directory, if it has any. (It may have been moved.)"""
    source, target = (path / name for name in TOKENIZERS.values())
    if not (config.data.tokenizers_as_stored and source.is_file() and target.is_file()):
        return config
    data = dataclasses.replace(config.data, source_tokenizer=str(source), target_tokenizer=str(target))
    return dataclasses.replace(config, data=data)


def plain_config(config: RunConfig) -> dict[str, Any]:
    """Returns the values of a config that affect a run's results, as plain JSON values."""
    values = json.loads(json.dumps(dataclasses.asdict(config)))
    return {name: value for name, value in values.items() if name not in ("run_dir", "parallel")}


IN_BUCKET = re.compile(rf"({CHECKPOINTS}/\d+|{MODEL})/")
"""Beginnings of the names of files in directories that a last file, its mark, makes complete."""
ONLY_HERE = re.compile(rf"\.(?!callbacks\.json$)|{CHECKPOINTS}/(?!\d+/)")
"""Beginnings of the names of files that aren't uploaded: hidden ones, and unfinished checkpoints."""


def mirror_of(path: str | Path) -> Mirror | None:
    """Returns the mirror of a run directory in a bucket; None for a local one."""
    address = address_of(path)
    if address is None:
        return None
    return Mirror(address, units=IN_BUCKET, marks=(DIGESTS, MANIFEST), left_out=ONLY_HERE)


def local_run(path: str | Path, *parts: str) -> Path:
    """Returns a local path of a run directory, to read it. One in a bucket is downloaded.

    Args:
      path: the run directory, here or in a bucket.
      parts: the folders in it that are needed, such as checkpoints, besides its own files.

    Raises:
      RunError: there is none in the bucket.
      BucketError: the bucket can't be read.
    """
    folders = tuple(f"{part}/" for part in parts)

    def is_needed(name: str) -> bool:
        return name.startswith(folders) or ("/" not in name and not ONLY_HERE.match(name))

    try:
        return local_directory(path, is_needed)
    except FileNotFoundError:
        raise RunError(f"{named(path)}: expected a run directory; received none") from None


def check_unused(path: str | Path) -> None:
    """Raises RunError if `path` exists, unless it is an empty directory or has only files of a process that was killed
    before it wrote the config; or if it can't be written. Leaves nothing behind."""
    mirror = mirror_of(path)
    if mirror:
        if any(name not in TOKENIZERS.values() for name in mirror.names()):
            raise _in_use(str(mirror.address), is_run=CONFIG in mirror.names())
        return
    path = Path(path)
    if path.exists() and (not path.is_dir() or any(not _is_before_config(file.name) for file in path.iterdir())):
        raise _in_use(str(path), is_run=(path / CONFIG).is_file())
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
    except OSError as error:
        raise RunError(
            f"{path}: expected a run directory that can be made and written; received {error.strerror}; choose another "
            "--run-dir"
        ) from None
    finally:
        for folder in missing:
            with suppress(OSError):
                folder.rmdir()


def _in_use(path: str, *, is_run: bool) -> RunError:
    advice = f"resume that run with --resume {path}, or choose" if is_run else "choose"
    return RunError(f"{path}: expected a new run directory; received one already in use; {advice} another --run-dir")


def _is_before_config(name: str) -> bool:
    """Matches the names of files that a new run creates before its config."""
    unfinished = tuple(f".{file}." for file in (CONFIG, *TOKENIZERS.values()))
    return name == LOCK or (name.startswith(unfinished) and name.endswith(".tmp"))


def is_training(path: str | Path) -> bool:
    """Checks whether any process is training the run."""
    try:
        with open(Path(path) / LOCK, encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _lock(path: Path) -> IO[str]:
    file = open(path / LOCK, "w", encoding="utf-8")  # noqa: SIM115 - held open on purpose
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise RunError(
            f"{path}: expected a run directory of our own; received one that another process is training now"
        ) from None
    return file


def _write(path: Path, text: str) -> None:
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@dataclass(frozen=True)
class Line:
    """Holds a line of metrics.jsonl or samples.jsonl."""

    number: int
    text: str
    record: dict[str, Any] | None
    """None: the line isn't an object with a step number."""
    is_last: bool
    """Whether this is a last line without a line end: it is being written, or was truncated by a crash."""


def read_lines(file: Path) -> list[Line]:
    """Returns the lines of a file that aren't blank; none if there is no file."""
    # splitlines would also split at separators inside a sentence, such as U+2028
    with naming_errors(file):
        texts = file.read_text(encoding="utf-8", errors="replace").split("\n") if file.exists() else []
    return [
        Line(number, text, _record(text), number == len(texts))
        for number, text in enumerate(texts, start=1)
        if text.strip()
    ]


def _record(text: str) -> dict[str, Any] | None:
    try:
        record = parse_json(text)
    except ValueError:
        return None
    step = record.get("step") if isinstance(record, dict) else None
    is_number = isinstance(step, (int, float)) and not isinstance(step, bool) and math.isfinite(step)
    return record if is_number else None


def _records(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the text and the record of each line, without a last line truncated by a crash.

    Raises:
      RunError: any other line that isn't a record.
    """
    for line in read_lines(file):
        if line.record is not None:
            yield line.text, line.record
        elif not line.is_last:
            raise RunError(
                f"{file}:{line.number}: expected an object with a step; received {shorten(line.text)}; remove the line"
            )
