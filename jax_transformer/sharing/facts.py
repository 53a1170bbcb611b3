"""Reads the facts of a model card from a model directory, its run and a parity report."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jax_transformer.buckets import address_of, local_directory
from jax_transformer.config.data import CorpusConfig
from jax_transformer.config.files import load_config
from jax_transformer.config.run import RunConfig
from jax_transformer.runtime.json_text import read_json_object
from jax_transformer.storage.hub import hub_name, is_missing_path
from jax_transformer.storage.model_directory import Model, find_model, load_model
from jax_transformer.storage.model_files import PARAMS, ModelError, read_manifest

RUN_CONFIG, RUN_DATA, RUN_PARAMETERS = "config.yaml", "data.json", "parameters.json"
PARITY_REPORT = "parity.json"
"""File next to a model directory; its summary goes into the card."""


@dataclass(frozen=True, kw_only=True)
class CardOptions:
    """Holds a user's facts for the card, which take precedence over the files."""

    license: str = ""
    languages: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    datasets: tuple[str, ...] = ()
    base_model: str = ""
    parity_report: str = ""


@dataclass(frozen=True)
class Facts:
    """Holds the facts of a card."""

    repository: str
    """owner/name."""
    directory: Path
    """The model directory."""
    model: Model
    sums: Mapping[str, str]
    """SHA-256 of the files by name."""
    license: str
    languages: tuple[str, ...]
    tags: tuple[str, ...]
    datasets: tuple[str, ...]
    """Names on the Hub."""
    base_model: str
    """Name on the Hub."""
    run: RunConfig | None = None
    """The config of the run that trained it."""
    pairs: Mapping[str, int] = field(default_factory=dict)
    """Number of sentence pairs by split."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Device and versions of the run."""
    parity: Mapping[str, Any] | None = None
    """The report as `jax-transformer parity --json` writes it."""


def _local(path: str) -> str:
    """Returns a local path of a model or run directory, of which one in a bucket is downloaded, without checkpoints."""
    if address_of(path) is None:
        return path
    try:
        return str(local_directory(path, lambda name: "/" not in name or name.startswith(("model/", "tokenizer/"))))
    except FileNotFoundError:
        return path  # which `find_model` refuses


def read_facts(path: str, repository: str, options: CardOptions) -> Facts:
    """Reads the facts of a model or run directory, whose files are verified.

    Raises:
      ModelError: no model, or one with altered files; a parity report of another model.
      ValueError: a file of the run can't be read.
    """
    path = _local(path)
    directory = find_model(path)
    model, sums = load_model(directory, mapped=True), read_manifest(directory)["sha256"]
    folder = next((folder for folder in (Path(path), directory.parent) if (folder / RUN_CONFIG).is_file()), None)
    run = None if folder is None else load_config(folder / RUN_CONFIG, RunConfig())
    report = options.parity_report or _report_beside(directory)
    facts = Facts(
        repository=repository,
        directory=directory,
        model=model,
        sums=sums,
        license=options.license,
        languages=options.languages or _languages(run),
        tags=options.tags,
        datasets=options.datasets or _datasets(run),
        base_model=options.base_model or _base_model(run),
        run=run,
        parity=_read_report(report, sums) if report else None,
    )
    return facts if folder is None else _with_records(facts, folder)


def _with_records(facts: Facts, folder: Path) -> Facts:
    """Returns the facts with the counts and the environment of the run."""
    files = [folder / name for name in (RUN_DATA, RUN_PARAMETERS)]
    data, parameters = (read_json_object(file, ModelError) if file.exists() else {} for file in files)
    pairs = {name: split["kept"] for name, split in data.get("splits", {}).items()}
    return dataclasses.replace(facts, pairs=pairs, environment=parameters.get("environment", {}))


def corpora_of(run: RunConfig | None) -> tuple[CorpusConfig, ...]:
    """Returns the corpora of a run; none for the embedded phrasebook."""
    return () if run is None or not run.data.is_given else run.data.corpora


def _languages(run: RunConfig | None) -> tuple[str, ...]:
    found = [code for corpus in corpora_of(run) for code in (corpus.source_language, corpus.target_language)]
    if run is not None and not run.data.is_given:
        found = ["en", "de"]  # the phrasebook's
    return tuple(dict.fromkeys(code for code in found if code))


def _datasets(run: RunConfig | None) -> tuple[str, ...]:
    names = [corpus.used_dataset for corpus in corpora_of(run)]
    return tuple(dict.fromkeys(name for name in names if name and not os.path.isdir(os.path.expanduser(name))))


def _base_model(run: RunConfig | None) -> str:
    """Returns the model on the Hub that the run started from; "" if it was none.

    A run's config names it with its commit; other names are local paths. What transformers' config.json has as
    _name_or_path may be a path of another machine, and isn't used.
    """
    found = None if run is None or is_missing_path(run.init_from) else hub_name(run.init_from)
    return found.repository if found else ""


def _report_beside(directory: Path) -> str:
    file = directory.parent / PARITY_REPORT
    return str(file) if file.is_file() else ""


def _read_report(path: str, sums: Mapping[str, str]) -> Mapping[str, Any]:
    """Reads a parity report. Raises ModelError unless it is one of these weights."""
    content = read_json_object(path, ModelError)
    shape = {"verdict": str, "reference": str, "stages": list, "sha256": dict, "environment": dict}
    if not all(isinstance(content.get(name), kind) for name, kind in shape.items()):
        raise ModelError(f"{path}: expected a report that jax-transformer parity --json wrote; received another object")
    if sums[PARAMS] not in content["sha256"].values():
        raise ModelError(
            f"{path}: expected the report of this model, whose {PARAMS} has the SHA-256 {sums[PARAMS][:12]}…; received "
            "one of others; compare it anew (jax-transformer parity MODEL --json FILE), or leave the report out"
        )
    return content
