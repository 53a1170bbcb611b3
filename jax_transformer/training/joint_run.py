"""How the processes of a run begin together: with the same config and versions, on one corpus, in one run directory.

Each reads a share of a streamed corpus, and receives the rest from the others.
"""

from __future__ import annotations

import dataclasses
import shutil
import time
import uuid
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import jax

from jax_transformer.config.files import load_config
from jax_transformer.config.run import RunConfig
from jax_transformer.config.validation import ConfigError
from jax_transformer.data.exchange import Exchange, FileExchange, OnlyProcess
from jax_transformer.data.preparation import PreparedCorpus
from jax_transformer.parallel.processes import PREPARE_SECONDS, Processes
from jax_transformer.runtime.environment import environment
from jax_transformer.training.environment import LIBRARIES
from jax_transformer.training.run_directory import CONFIG, RunDirectory, RunError

TOKEN = ".processes"
STREAM = ".stream"
APPEAR_SECONDS = 30.0
"""How long a file that process 0 wrote may take to appear to the others."""


def check_same_start(config: RunConfig, what: str, processes: Processes) -> None:
    """Raises ConfigError, in every process, unless all have the same options and versions of the libraries.

    Args:
      config: the options.
      what: what the processes are to do, such as "resume".
      processes: those of the run.
    """
    if processes.count > 1 and (processes.number, processes.count) != (jax.process_index(), jax.process_count()):
        raise ConfigError(
            f"processes: expected process {processes.number} of {processes.count}, as they joined; JAX's devices know "
            f"it as {jax.process_index()} of {jax.process_count()}"
        )
    versions = {name: version for name, version in environment(LIBRARIES).items() if name in ("Python", *LIBRARIES)}
    options = {"what to do": what, **_flat(dataclasses.asdict(config))}
    processes.check_equal({**versions, **options})


def prepare_once(prepare: Callable[[], PreparedCorpus], processes: Processes) -> PreparedCorpus:
    """Returns the corpus, which process 0 prepares and the others then find in the cache.

    Where their cache is another one, on a disk of their own, they prepare it themselves. No process goes on before all
    have it.

    Raises:
      RunError: a process has other text than process 0; in every process.
    """
    made: list[PreparedCorpus] = []

    def prepare_first() -> str:
        made.append(prepare())
        return made[0].directory.name

    processes.agree("the data", prepare_first, PREPARE_SECONDS)
    corpus = made[0] if made else prepare()
    facts = processes.gather("the data of all", [corpus.directory.name, _digest(corpus)], PREPARE_SECONDS)
    others = [str(number) for number, fact in enumerate(facts) if fact != facts[0]]
    if others:
        raise RunError(
            f"data: expected the text and the tokenizers that process 0 has; process {', '.join(others)} has others; "
            "give every host the same files, or one data.cache_dir that all share"
        )
    return corpus


def _digest(corpus: PreparedCorpus) -> str:
    """Returns a digest of both tokenizers, which each host trains itself where it has a cache of its own."""
    texts = [tokenizer.to_json() for tokenizer in (corpus.source_tokenizer, corpus.target_tokenizer)]
    return sha256("".join(texts).encode()).hexdigest()


def open_run(path: str | Path, processes: Processes) -> tuple[RunDirectory, RunConfig]:
    """Opens an existing run in every process; returns it with its config.

    Raises:
      RunError: see `RunDirectory.open`; a host that doesn't share the directory.
    """
    run = _in_first(lambda: RunDirectory.open(path)[0], processes)
    return run, load_config(run.path / CONFIG, RunConfig())


def create_run(create: Callable[[], RunDirectory], processes: Processes) -> RunDirectory:
    """Returns the new run directory that `create`, called in process 0, makes.

    Raises:
      RunError: a host that doesn't share the directory, which is then removed; what `create` raises.
    """
    return _in_first(create, processes, is_new=True)


def share_stream(config: RunConfig, run: RunDirectory, processes: Processes) -> Exchange:
    """Returns the exchange that gives each process the parts of a streamed corpus that the others read.

    It uses a folder of the run directory. Every start has a folder of its own, so that no process mistakes leftovers of
    a killed start for new blocks. Process 0 removes them, and prints a warning if some processes have no part to read.
    """
    folder, parts = run.path / STREAM, config.data.stream_parts

    def name_folder() -> str:
        shutil.rmtree(folder, ignore_errors=True)
        return uuid.uuid4().hex

    if not config.data.streaming:
        return OnlyProcess()
    name = processes.agree("the folder of the stream", name_folder)
    if processes.count == 1:
        return OnlyProcess()
    if processes.is_first and parts < processes.count:
        print(
            f"warning: data.stream_parts: expected at least {processes.count}, a part for each process; received "
            f"{parts}, so {processes.count - parts} read nothing and wait for the others",
            flush=True,
        )
    return FileExchange(folder / name, processes.number, processes.count)


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
            shutil.rmtree(run.path, ignore_errors=True)
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
            f"process{'es' if len(blind) > 1 else ''} {', '.join(blind)} can't see what process 0 writes; choose a "
            "--run-dir on a file system of all hosts"
        )


def _appears(file: Path, token: str) -> bool:
    deadline = time.monotonic() + APPEAR_SECONDS
    while time.monotonic() < deadline:
        if file.is_file() and file.read_text(encoding="utf-8") == token:
            return True
        time.sleep(0.2)
    return False


def _flat(tree: dict[str, Any], prefix: str = "--") -> dict[str, str]:
    """Returns the options by their names on the command line."""
    flat: dict[str, str] = {}
    for name, value in tree.items():
        path = prefix + name.replace("_", "-")
        flat |= _flat(value, f"{path}.") if isinstance(value, dict) else {path: repr(value)}
    return flat
