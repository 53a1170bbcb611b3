"""Reads the data of the report from a run directory, as plain JSON values. Parts with missing files are empty."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import socket
import time
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from jax_transformer.config.described import changes, described
from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.run import RunConfig
from jax_transformer.config.stored import config_from_plain
from jax_transformer.config.validation import ConfigError
from jax_transformer.data.text_files import shorten
from jax_transformer.runtime.files import read_text
from jax_transformer.runtime.json_text import parse_json
from jax_transformer.runtime.limits import JSON_BYTES, YAML_BYTES
from jax_transformer.runtime.yaml_text import compose
from jax_transformer.training.analysis import analysis
from jax_transformer.training.metrics import BEST_METRICS
from jax_transformer.training.run_directory import (
    CONFIG,
    DATA,
    METRICS,
    PARAMETERS,
    PROGRESS,
    SAMPLES,
    TRANSLATIONS,
    RunError,
    is_training,
    read_lines,
)

Record = dict[str, Any]

CURVES = (
    "loss",
    "perplexity",
    "plain_perplexity",
    "learning_rate",
    "gradient_norm",
    "tokens_per_second",
    "mfu",
    "goodput",
    "valid_loss",
    "valid_perplexity",
    "valid_bleu",
    "valid_chrf",
    "valid_exact_match",
)
"""Keys of metrics.jsonl that are plotted against steps."""
NOW = ("activity", "since", "time", "step", "last_step", "seconds_left", "tokens_per_second", "host")
"""Keys of progress.json that the page shows of a run under way."""
NUMBERS = ("since", "time", "step", "last_step", "seconds_left", "tokens_per_second", "host_bytes", "device_bytes")
SILENCE_SECONDS = 300.0
"""Time after which nothing is known of a run on another machine that writes nothing; compiling may take minutes."""
MOST_POINTS = 1600
"""Maximum number of points per curve: about three per pixel."""
MEANS = 300
"""Number of means of equal stretches, drawn over the pale points of a curve with more than twice as many points."""
MOST_EVALUATIONS = 60
"""Maximum number of evaluations with samples: the first, the last, and some in between."""


def read_run(run: Path) -> dict[str, Any]:
    """Returns all data of the report of `run`.

    Raises:
      RunError: `run` is no run directory.
    """
    if not (run / CONFIG).is_file():
        received = f"one without {CONFIG}" if run.is_dir() else "a file" if run.exists() else "no directory"
        raise RunError(f"{run}: expected a run directory; received {received}")
    config, rows = read_config(run / CONFIG)
    progress = _read_progress(run / PROGRESS)  # first: metrics.jsonl may then be ahead of it, and never behind
    records, unread = _read_lines(run / METRICS)
    samples, unread_samples = _read_lines(run / SAMPLES)
    made_of = _read_json(run / PARAMETERS) or {}
    final = next((record for record in reversed(records) if "model_step" in record), None)
    translations = read_translations(run, final["step"] if final else None)
    limit = progress.get("last_step") or value_at(config, "train", "max_steps")
    state = state_of(run, final, progress)
    done = max((record["step"] for record in records), default=0)
    steps = [] if final else [row for row in progress.get("steps", []) if row["step"] > done]
    return {
        "name": run.resolve().name,
        "state": state,
        "message": progress.get("message", "") if state == "interrupted" else "",
        "step": max([done, *(row["step"] for row in steps)]),
        "last_step": final["step"] if final else limit,
        "now": {name: progress.get(name) for name in NOW} if progress and state in ("running", "silent") else None,
        "memory": {name: progress[name] for name in ("host_bytes", "device_bytes") if name in progress},
        "model": model_made_of(final),
        "changed": max((record["time"] for record in records if "time" in record), default=None),
        "unread_lines": unread + unread_samples,
        "best": best_evaluation(records, value_at(config, "train", "best_metric")),
        "scores": final_scores(final),
        "analyses": {
            name: analysis(samples, translations["words"]) for name, samples in translations.get("splits", {}).items()
        },
        "speed": speed(records),
        "divergences": divergences(records),
        "curves": {key: curve([*records, *steps], key) for key in CURVES},
        "samples": sample_history(samples),
        "data": _read_json(run / DATA),
        "stream": next((record["stream"] for record in reversed(records) if "stream" in record), None),
        "config": rows,
        "environment": made_of.get("environment", {}),
        "parameters": made_of.get("parameters", []),
    }


def state_of(run: Path, final: Record | None, progress: Record) -> str:
    """Returns "finished", "running", "interrupted", or "silent": the run was last written by another machine, which
    hasn't said that it ended, some time ago."""
    if final is not None:
        return "finished"
    if is_training(run):
        return "running"
    if not progress or "ended" in progress or progress.get("host") == socket.gethostname():
        return "interrupted"  # a process of this machine would hold the lock
    return "running" if _age(run / PROGRESS) < SILENCE_SECONDS else "silent"


# --- metrics


def best_evaluation(records: Sequence[Record], metric: str | None) -> Record | None:
    """Returns the validation record of the best checkpoint; the later of equal ones."""
    key, sign = BEST_METRICS[metric or "loss"]
    scored = [record for record in records if _is_finite(record.get(key))]
    return {**max(reversed(scored), key=lambda record: sign * record[key]), "metric": key} if scored else None


def model_made_of(final: Record | None) -> Record | None:
    """Returns the steps of the checkpoints averaged into the model, usually one, and the model's validation loss."""
    if final is None:
        return None
    return {"steps": final.get("model_checkpoints", [final["model_step"]]), "valid_loss": final.get("model_valid_loss")}


def final_scores(final: Record | None) -> dict[str, Record]:
    """Returns the scores of the finished model by split."""
    return {name: scores for name, scores in (final or {}).items() if isinstance(scores, dict) and "bleu" in scores}


def speed(records: Sequence[Record]) -> dict[str, Any]:
    """Returns the seconds spent on each activity, and target tokens per second of training."""
    windows = [record for record in records if "target_tokens" in record and "seconds" in record]
    measured = [window for window in windows if _is_finite(window.get("mfu")) and window["seconds"] > 0]
    goodput = [record["goodput"] for record in records if _is_finite(record.get("goodput"))]
    seconds, tokens = (sum(window[key] for window in windows) for key in ("seconds", "target_tokens"))
    evaluating = [
        record["time"] - previous["time"]
        for previous, record in itertools.pairwise(records)
        if "valid_loss" in record and "time" in record and "time" in previous and previous["step"] == record["step"]
    ]
    return {
        "training": seconds,
        "compiling": sum(window.get("compile_seconds", 0.0) for window in windows),
        "evaluating": sum(evaluating),
        "target_tokens": tokens,
        "tokens_per_second": tokens / seconds if seconds else None,
        "mfu": sum(one["mfu"] * one["seconds"] for one in measured) / sum(one["seconds"] for one in measured)
        if measured
        else None,
        "waiting": sum(window.get("data_seconds", 0.0) for window in windows),
        "goodput": goodput[-1] if goodput else None,
        "programs": max((window["programs"] for window in windows if "programs" in window), default=None),
    }


def divergences(records: Sequence[Record]) -> list[Record]:
    """Returns the steps that weren't finite, as `Divergence.record` writes them."""
    found = [record["nonfinite"] for record in records if isinstance(record.get("nonfinite"), dict)]
    return [
        {
            "step": one.get("step"),
            **{name: str(one.get(name, "")) for name in ("action", "loss", "gradient_norm")},
            "sentences": [
                {side: str(pair.get(side, "")) for side in ("source", "target")}
                for pair in one.get("sentences", [])
                if isinstance(pair, dict)
            ],
        }
        for one in found
        if _is_finite(one.get("step"))
    ]


def curve(records: Sequence[Record], key: str) -> dict[str, Any]:
    """Returns the finite values of `key` by step, the last of each, thinned, with their count and, for many, their
    means."""
    points = {record["step"]: record[key] for record in records if _is_finite(record.get(key))}
    steps, values = np.array([*points.items()], np.float64).reshape(-1, 2).T
    kept = thinned(values, MOST_POINTS)
    return {
        "steps": [int(step) for step in steps[kept]],
        "values": [float(f"{value:.9g}") for value in values[kept]],
        "count": len(points),
        "means": means(steps, values) if len(points) > 2 * MEANS else None,
    }


def means(steps: np.ndarray, values: np.ndarray) -> dict[str, Any]:
    """Returns the mean of each of MEANS equal stretches of the values, at the last step of each."""
    return {
        "steps": [int(stretch[-1]) for stretch in np.array_split(steps, MEANS)],
        "values": [float(f"{stretch.mean():.9g}") for stretch in np.array_split(values, MEANS)],
    }


def thinned(values: np.ndarray, most: int) -> np.ndarray:
    """Returns the indices of at most `most` values, sorted: the first, the last, and the extremes of equal stretches
    between them."""
    if len(values) <= most:
        return np.arange(len(values))
    kept = {0, len(values) - 1}
    for stretch in np.array_split(np.arange(1, len(values) - 1), (most - 2) // 2):
        kept |= {int(stretch[values[stretch].argmin()]), int(stretch[values[stretch].argmax()])}
    return np.array(sorted(kept))


# --- samples


def sample_history(lines: Sequence[Record]) -> dict[str, Any]:
    """Returns the sentences of the last evaluation, and their translations in every evaluation of the same
    sentences."""
    if not lines:
        return {"sentences": [], "evaluations": [], "count": 0}
    sentences = _sentences(lines[-1])
    same = [line for line in lines if _sentences(line) == sentences]
    shown = [same[i] for i in np.unique(np.linspace(0, len(same) - 1, MOST_EVALUATIONS).round().astype(int))]
    return {
        "sentences": [{"source": source, "reference": reference} for source, reference in sentences],
        "evaluations": [
            {"step": line["step"], "translations": [str(sample.get("translation", "")) for sample in line["samples"]]}
            for line in shown
        ],
        "count": len(same),
    }


def _sentences(line: Record) -> list[tuple[str, str]]:
    return [(str(sample.get("source", "")), str(sample.get("reference", ""))) for sample in line.get("samples", [])]


# --- config


def flat_config(config: Record) -> list[Record]:
    """Returns each field's path, its value as text, and whether it differs from the default; changed fields come first.

    An option of the model that has one value everywhere goes by its short name.
    """
    defaults = dict(leaves(json.loads(json.dumps(dataclasses.asdict(RunConfig())))))
    fields = [(path, value, path not in defaults or defaults[path] != value) for path, value in leaves(config)]
    model = _model_fields(config.get("model"))
    if model:
        fields = [*model, *(field for field in fields if not field[0].startswith("model."))]
    rows = [{"path": path, "value": as_text(value), "changed": changed} for path, value, changed in fields]
    return sorted(rows, key=lambda row: not row["changed"])


def _model_fields(values: Any) -> list[tuple[str, Any, bool]]:
    """Returns the path and value of each option of a model, and whether it differs from the default; nothing if the
    values make no config."""
    config = model_of(values)
    if config is None:
        return []
    changed = changes(config)
    return [(f"model.{name}", value, name in changed) for name, value in described(config).items()]


def model_of(values: Any) -> TransformerConfig | None:
    """Returns the model's config; None if the values make none, such as those of a later version."""
    try:
        return config_from_plain(values) if isinstance(values, dict) else None
    except ConfigError:
        return None


def leaves(value: Any, path: str = "") -> list[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        return [leaf for key, inner in value.items() for leaf in leaves(inner, f"{path}.{key}" if path else str(key))]
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        return [leaf for number, inner in enumerate(value) for leaf in leaves(inner, f"{path}[{number}]")]
    return [(path, value)]


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def value_at(config: Any, *keys: str) -> Any:
    for key in keys:
        config = config.get(key) if isinstance(config, dict) else None
    return config


# --- files


def _read_lines(file: Path) -> tuple[list[Record], int]:
    """Returns the records of a JSON-lines file, and the number of unreadable lines, such as one still being written or
    truncated by a crash."""
    lines = read_lines(file)
    records = [line.record for line in lines if line.record is not None]
    return records, len(lines) - len(records)


def read_config(file: Path) -> tuple[Record, list[Record]]:
    """Returns the fields of config.yaml without interpreting them, since another version may have written them, and
    what `flat_config` makes of them. Don't change either: they are kept.

    Raises:
      RunError: the file isn't YAML, or has no fields.
    """
    try:
        return _parsed_config(read_text(file, YAML_BYTES, RunError), str(file))
    except (UnicodeDecodeError, yaml.YAMLError, OverflowError) as error:
        raise RunError(f"{file}: expected YAML; received {' '.join(str(error).split())}") from None


@lru_cache(maxsize=8)  # a live page reads the same config every few seconds
def _parsed_config(text: str, file: str) -> tuple[Record, list[Record]]:
    node = compose(text, file, RunError)
    config = {} if node is None else yaml.SafeLoader("").construct_document(node) or {}
    if not isinstance(config, dict):
        raise RunError(f"{file}: expected fields and values; received {shorten(str(config))}")
    return config, flat_config(config)


def _read_json(file: Path) -> Any:
    try:
        return parse_json(read_text(file, JSON_BYTES))
    except (OSError, ValueError):
        return None


def _read_progress(file: Path) -> Record:
    """Returns what progress.json says, without anything of another form; {} without the file."""
    found = _read_json(file)
    if not isinstance(found, dict):
        return {}
    numbers = {name: found[name] for name in NUMBERS if _is_finite(found.get(name))}
    texts = {name: found[name] for name in ("activity", "host", "ended", "message") if isinstance(found.get(name), str)}
    steps = found.get("steps")
    rows = (
        [row for row in steps if isinstance(row, dict) and _is_finite(row.get("step"))]
        if isinstance(steps, list)
        else []
    )
    return {**numbers, **texts, "steps": rows}


def read_translations(run: Path, last_step: int | None) -> Record:
    """Returns the content of translations.json of a run that is finished at `last_step`: "splits" and "words"; {} if
    the file belongs to another step, or there is none, as in runs of earlier versions."""
    found = None if last_step is None else _read_json(run / TRANSLATIONS)
    if not isinstance(found, dict) or found.get("step") != last_step:
        return {}
    splits = found.get("splits")
    splits = {
        name: samples
        for name, samples in (splits if isinstance(splits, dict) else {}).items()
        if isinstance(samples, list) and samples and all(map(_is_sample, samples))
    }
    words = found.get("words")
    return {"splits": splits, "words": words if isinstance(words, dict) and _is_count(words) else None}


def _is_sample(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(value.get(name), str) for name in ("source", "reference", "translation")
    )


def _is_count(words: Record) -> bool:
    counts = words.get("counts")
    numbers = [words.get("pairs"), words.get("of"), *(counts.values() if isinstance(counts, dict) else [None])]
    return all(map(_is_finite, numbers))


def _age(file: Path) -> float:
    try:
        return time.time() - file.stat().st_mtime
    except OSError:
        return math.inf


def _is_finite(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
