"""Starts the processes of a run together: with the same config and versions, on one corpus.

Each process reads a share of a streamed corpus, and receives the rest from the other processes.
"""

from __future__ import annotations

import dataclasses
import shutil
import uuid
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import jax

from jax_transformer.config.run import RunConfig
from jax_transformer.config.validation import ConfigError
from jax_transformer.data.exchange import Exchange, FileExchange, OnlyProcess
from jax_transformer.data.preparation import PreparedCorpus
from jax_transformer.parallel.processes import PREPARE_SECONDS, Processes
from jax_transformer.runtime.environment import environment
from jax_transformer.training.environment import LIBRARIES
from jax_transformer.training.run_directory import RunDirectory, RunError

STREAM = ".stream"


def check_same_start(config: RunConfig, what: str, processes: Processes) -> None:
    """Raises ConfigError, in every process, unless all have the same options and library versions.

    Args:
      config: the options.
      what: the task of the processes, such as "resume".
      processes: the processes of the run.
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
    """Returns the corpus, which process 0 prepares and the other processes then find in the cache.

    Processes with a separate cache, such as one on a local disk, prepare it themselves. No process continues until all
    have it.

    Raises:
      RunError: in every process, if the text of any differs from that of process 0.
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
    """Returns a digest of both tokenizers, since a host with a separate cache trains its own."""
    texts = [tokenizer.to_json() for tokenizer in (corpus.source_tokenizer, corpus.target_tokenizer)]
    return sha256("".join(texts).encode()).hexdigest()


def share_stream(config: RunConfig, run: RunDirectory, processes: Processes) -> Exchange:
    """Returns the exchange that gives each process the parts of a streamed corpus that the other processes read.

    Blocks go through a folder of the run directory, a new one for each start, so that no process mistakes the leftovers
    of a killed start for new blocks. Process 0 removes leftovers, and warns if some processes have no part to read.
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


def _flat(tree: dict[str, Any], prefix: str = "--") -> dict[str, str]:
    """Returns the options by their command-line names."""
    flat: dict[str, str] = {}
    for name, value in tree.items():
        path = prefix + name.replace("_", "-")
        flat |= _flat(value, f"{path}.") if isinstance(value, dict) else {path: repr(value)}
    return flat
