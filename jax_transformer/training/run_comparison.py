"""Reads several runs for one page that compares them: curves, scores, translations and configs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jax_transformer.config.described import MISSING, described, value_of
from jax_transformer.config.model import TransformerConfig
from jax_transformer.training.analysis import MOST_ANALYZED, sentence_scores, spread
from jax_transformer.training.metrics import compare_systems
from jax_transformer.training.report_data import (
    Record,
    as_text,
    leaves,
    model_of,
    read_config,
    read_run,
    read_translations,
    value_at,
)
from jax_transformer.training.run_directory import CONFIG, RunError

MOST_RUNS = 8
"""Maximum number of runs: more colours can't be told apart."""
MOST_SENTENCES = 20
"""Maximum number of sentences whose translations are shown side by side."""
KEPT = ("state", "step", "last_step", "best", "scores", "speed", "curves", "memory", "environment")


def read_runs(paths: Sequence[Path]) -> dict[str, Any]:
    """Returns the data of the page that compares runs.

    Raises:
      RunError: a path is no run directory, or named twice; too many runs.
    """
    if len(paths) > MOST_RUNS:
        raise RunError(f"expected at most {MOST_RUNS} runs to compare; received {len(paths)}")
    twice = next((path for n, path in enumerate(paths) if path.resolve() in [one.resolve() for one in paths[:n]]), None)
    if twice is not None:
        raise RunError(f"{twice}: expected runs that differ; received this one twice")
    runs = [read_run(path) for path in paths]
    configs = [read_config(path / CONFIG)[0] for path in paths]
    translations = [
        read_translations(path, run["last_step"] if run["state"] == "finished" else None)
        for path, run in zip(paths, runs, strict=True)
    ]
    tokenize = value_at(configs[0], "train", "score_tokenizer")
    return {
        "runs": [
            {
                "name": name,
                "parameters": sum(row["count"] for row in run["parameters"]) or None,
                **{key: run[key] for key in KEPT},
            }
            for name, run in zip(names_of(paths), runs, strict=True)
        ],
        "notes": notes(runs, configs),
        "samples": common_samples([run["samples"] for run in runs]),
        "tests": tests(runs, translations, tokenize if isinstance(tokenize, str) else "13a"),
        "config": config_differences(configs),
    }


def names_of(paths: Sequence[Path]) -> list[str]:
    """Returns the last parts of the paths, as many as make them differ."""
    parts = [path.resolve().parts for path in paths]
    for count in range(1, max(map(len, parts)) + 1):
        names = [os.path.join(*part[-count:]) for part in parts]
        if len({*names}) == len(names):
            break
    return names


def notes(runs: Sequence[Record], configs: Sequence[Record]) -> list[str]:
    """Returns what a reader must know before comparing the runs' numbers."""
    found = []
    data = [run["data"] if isinstance(run["data"], dict) else {} for run in runs]
    sizes = [(one.get("source_vocab_size"), one.get("target_vocab_size")) for one in data]
    if any(one.get("corpus") is None for one in data):
        found.append("Whether the runs have the same text and vocabularies is unknown: a run has no data.json.")
    elif len({*sizes}) > 1:
        listed = ", ".join(f"{source:,} and {target:,}" for source, target in sizes)
        found.append(
            f"The vocabularies differ (source and target: {listed} tokens): losses, perplexities and tokens per second "
            "count other tokens, and aren't comparable."
        )
    elif len({one["corpus"] for one in data}) > 1:
        found.append(
            "The runs were prepared from different text, or with different options of data: losses and perplexities "
            "are comparable only if the validation sets and tokenizers are the same."
        )
    if len({value_at(config, "train", "score_tokenizer") for config in configs}) > 1:
        found.append(
            "The runs score by different tokenizers: curves of BLEU aren't comparable. The table of scores uses that "
            "of the first run."
        )
    return found


# --- translations


def tests(runs: Sequence[Record], translations: Sequence[Record], tokenize: str) -> list[Record]:
    """Returns, for each test set, the scores of the runs that translated it, and some translations side by side. Runs
    whose references differ have different test sets, also under one name."""
    found = []
    for split in dict.fromkeys(name for each in translations for name in each.get("splits", {})):
        members = [n for n, each in enumerate(translations) if each.get("splits", {}).get(split)]
        groups: dict[tuple[tuple[str, str], ...], list[int]] = {}
        for n in members:
            pairs = tuple((one["source"], one["reference"]) for one in translations[n]["splits"][split])
            groups.setdefault(pairs, []).append(n)
        for pairs, numbers in groups.items():
            systems = [translations[n]["splits"][split] for n in numbers]
            found.append(
                {
                    "split": split,
                    "is_one_of": len(groups),
                    "runs": numbers,
                    "sentences": len(pairs),
                    "metrics": scores_of(systems, tokenize),
                    **side_by_side(systems),
                }
            )
    for split in dict.fromkeys(name for run in runs for name in run["scores"]):
        rest = [
            n
            for n, run in enumerate(runs)
            if split in run["scores"] and not translations[n].get("splits", {}).get(split)
        ]
        if rest:
            found.append({"split": split, "runs": rest, "scores": [runs[n]["scores"][split] for n in rest]})
    return found


def scores_of(systems: Sequence[Sequence[Record]], tokenize: str) -> list[Record]:
    """Returns the scores of several systems by metric, with bootstrap intervals, and p-values against the first."""
    references = [[sample["reference"] for sample in systems[0]]]
    texts = [[sample["translation"] for sample in system] for system in systems]
    return [
        {
            "metric": comparison.metric,
            "signature": comparison.signature,
            "systems": [
                {"score": system.score, "interval": system.interval, "p_value": system.p_value}
                for system in comparison.systems
            ],
        }
        for comparison in compare_systems(texts, references, tokenize=tokenize)
    ]


def side_by_side(systems: Sequence[Sequence[Record]]) -> Record:
    """Returns the sentences whose translations' chrF differs most, and how many translations differ."""
    chosen = spread(len(systems[0]), MOST_ANALYZED)
    differ = [int(i) for i in chosen if len({system[i]["translation"] for system in systems}) > 1]
    scores = np.array([sentence_scores([system[i] for i in differ]) for system in systems]).reshape(len(systems), -1)
    order = np.argsort(-np.ptp(scores, axis=0), kind="stable")[:MOST_SENTENCES]
    shown = [
        {
            "source": systems[0][differ[k]]["source"],
            "reference": systems[0][differ[k]]["reference"],
            "translations": [system[differ[k]]["translation"] for system in systems],
            "chrf": [round(float(score), 1) for score in scores[:, k]],
        }
        for k in order
    ]
    return {"examined": len(chosen), "differ": len(differ), "shown": shown}


def common_samples(histories: Sequence[Record]) -> list[Record]:
    """Returns the sentences that all runs' last evaluations with translations have, with the latest translations."""
    latest = [
        {
            (sentence["source"], sentence["reference"]): translation
            for sentence, translation in zip(
                history["sentences"], history["evaluations"][-1]["translations"], strict=False
            )
        }
        if history["evaluations"]
        else {}
        for history in histories
    ]
    return [
        {"source": pair[0], "reference": pair[1], "translations": [own[pair] for own in latest], "chrf": None}
        for pair in latest[0]
        if all(pair in own for own in latest)
    ]


# --- configs


def config_differences(configs: Sequence[Record]) -> list[Record]:
    """Returns the path of each option in which configs differ, with its value in each as text; None where a config
    doesn't have it. An option of the model goes by its short name where all its places agree, otherwise by path."""
    models = [model_of(config.get("model")) for config in configs]
    known = [model for model in models if model is not None]
    rows = _model_rows(known) if len(known) == len(models) else []
    plain = [
        dict(leaves({key: value for key, value in config.items() if key != "model" or not rows})) for config in configs
    ]
    names = dict.fromkeys(name for config in plain for name in config if name not in ("run_dir",))
    rows += [(name, [config.get(name, MISSING) for config in plain]) for name in names]
    return [
        {"path": path, "values": [None if value is MISSING else as_text(value) for value in values]}
        for path, values in rows
        if any(value is MISSING or value != values[0] for value in values)
    ]


def _model_rows(models: Sequence[TransformerConfig]) -> list[tuple[str, list[Any]]]:
    """Returns the options of all models, by short names or paths, with their values."""
    names = dict.fromkeys(name for model in models for name in described(model))
    return [(f"model.{name}", [value_of(model, name, MISSING) for model in models]) for name in names]
