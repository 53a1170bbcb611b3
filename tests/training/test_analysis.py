"""Translations of a finished run: by length, by frequency, the worst, and next to those of other runs."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jax_transformer.cli import main
from jax_transformer.config.files import dump_config
from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.run import DataConfig, RunConfig, TrainConfig
from jax_transformer.config.specs import LayerNorm
from jax_transformer.data.token_pairs import Sentences, TokenPairs
from jax_transformer.training import analysis, run_comparison
from jax_transformer.training.evaluation import Sample
from jax_transformer.training.report_data import read_run, read_translations
from jax_transformer.training.run_comparison import config_differences, names_of, read_runs
from jax_transformer.training.run_directory import RunError

SAMPLES = [
    {"source": "a b c", "reference": "x y z", "translation": "x y z"},
    {"source": "a b c d e f", "reference": "x y unheard", "translation": "x q"},
    {"source": "a b", "reference": "x x", "translation": "x"},
]


def test_scores_by_source_length_are_means_of_sentences() -> None:
    rows = analysis.by_length(SAMPLES, np.array([100.0, 20.0, 50.0]))
    assert [(row["words"], row["sentences"], row["chrf"]) for row in rows] == [("1–4", 2, 75.0), ("5–8", 1, 20.0)]
    assert rows[0]["interval"] == pytest.approx(1.96 * np.std([100.0, 50.0], ddof=1) / 2**0.5)
    assert rows[1]["interval"] is None
    assert [row["exact_match"] for row in rows] == [50.0, 0.0]


def test_words_count_by_their_frequency_in_training() -> None:
    rows = analysis.by_frequency(SAMPLES, {"x": 1000, "y": 9, "z": 2})
    assert rows == [
        {"count": "0", "words": 1, "found": 0.0},
        {"count": "2–9", "words": 3, "found": pytest.approx(200 / 3)},
        {"count": "1,000 or more", "words": 4, "found": 75.0},
    ]


def test_the_worst_sentences_come_first_and_perfect_ones_never() -> None:
    found = analysis.analysis(SAMPLES, None)
    assert [row["translation"] for row in found["worst"]] == ["x q", "x"]
    assert (found["sentences"], found["frequencies"], found["counted"]) == (3, [], None)


def test_training_words_of_the_references_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["ein Hund", "ein Haus", "zwei Hunde", "ein Hund"]
    targets = Sentences.pack([[1]] * 4, texts)
    translated = {"test": [Sample("a dog", "ein Hund, drei", "ein Hund")]}
    pairs = TokenPairs(targets, targets, max_length=9)
    record = analysis.translations_record(7, translated, pairs)
    assert record["words"] == {"pairs": 4, "of": 4, "counts": {"Hund": 2, "ein": 3}}
    assert record["splits"]["test"] == [{"source": "a dog", "reference": "ein Hund, drei", "translation": "ein Hund"}]
    monkeypatch.setattr(analysis, "MOST_COUNTED", 2)
    assert analysis.translations_record(7, translated, pairs)["words"] == {
        "pairs": 2,
        "of": 4,
        "counts": {"Hund": 2, "ein": 2},
    }
    assert analysis.translations_record(7, translated, None)["words"] is None


# --- several runs


def write_run(
    run: Path, translations: list[str] | None = None, references: tuple[str, ...] = ("x y z", "u v"), **options: Any
) -> Path:
    """A run that is finished if it has translations, of one test set."""
    run.mkdir(parents=True)
    (run / "config.yaml").write_text(dump_config(RunConfig(**options)))
    lines: list[dict[str, Any]] = [{"step": 1, "loss": 3.0, "target_tokens": 5, "seconds": 1.0}]
    (run / "data.json").write_text(
        json.dumps({"corpus": "abc", "source_vocab_size": 1000, "target_vocab_size": 9, "splits": {}})
    )
    if translations is not None:
        scores = {"bleu": 30.0, "chrf": 40.0, "exact_match": 0.0, "sentences": len(translations)}
        lines.append({"step": 2, "model_step": 2, "test": scores})
        samples = [
            {"source": f"s{n}", "reference": reference, "translation": translation}
            for n, (reference, translation) in enumerate(zip(references, translations, strict=True))
        ]
        (run / "translations.json").write_text(json.dumps({"step": 2, "splits": {"test": samples}, "words": None}))
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return run


@pytest.fixture(autouse=True)
def few_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bootstrap samples cost the most."""
    compare = run_comparison.compare_systems
    monkeypatch.setattr(run_comparison, "compare_systems", lambda *a, **options: compare(*a, **options, samples=10))


def test_runs_with_one_test_set_are_compared_sentence_by_sentence(tmp_path: Path) -> None:
    paths = [write_run(tmp_path / "a", ["x y z", "u v"]), write_run(tmp_path / "b", ["x y z", "u"])]
    data = read_runs(paths)
    assert [run["name"] for run in data["runs"]] == ["a", "b"]
    [test] = data["tests"]
    assert (test["split"], test["runs"], test["sentences"], test["differ"], test["is_one_of"]) == (
        "test",
        [0, 1],
        2,
        1,
        1,
    )
    assert test["shown"][0] == {
        "source": "s1",
        "reference": "u v",
        "translations": ["u v", "u"],
        "chrf": test["shown"][0]["chrf"],
    }
    assert test["shown"][0]["chrf"][0] == 100.0 > test["shown"][0]["chrf"][1]
    metrics = {metric["metric"]: metric["systems"] for metric in test["metrics"]}
    assert list(metrics) == ["BLEU", "chrF2", "TER", "exact match"]
    assert metrics["chrF2"][0]["interval"] is not None
    assert metrics["chrF2"][0]["p_value"] is None
    assert metrics["chrF2"][1]["p_value"] is not None
    assert data["notes"] == []


def test_test_sets_of_one_name_are_told_apart_and_older_runs_have_no_intervals(tmp_path: Path) -> None:
    paths = [
        write_run(tmp_path / "a", ["x", "u"]),
        write_run(tmp_path / "b", ["x", "u"], references=("other", "texts")),
        write_run(tmp_path / "old", ["x", "u"]),
        write_run(tmp_path / "unfinished"),
    ]
    (paths[2] / "translations.json").unlink()
    tests = read_runs(paths)["tests"]
    assert [test["runs"] for test in tests] == [[0], [1], [2]]
    assert [test.get("is_one_of") for test in tests] == [2, 2, None]
    assert tests[2]["scores"][0]["bleu"] == 30.0


def test_translations_of_another_step_or_form_are_left_out(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", ["x", "u"])
    file = run / "translations.json"
    assert list(read_translations(run, 2)["splits"]) == ["test"]
    assert read_translations(run, None) == read_translations(run, 3) == {}
    good = json.loads(file.read_text())
    odd: list[Any] = [[], {"step": 2}, good | {"splits": {"test": [{"source": 1}]}, "words": {"counts": {"a": "b"}}}]
    for content in odd:
        file.write_text(json.dumps(content))
        assert not any(read_translations(run, 2).values())
        assert read_run(run)["analyses"] == {}


def test_other_vocabularies_are_named(tmp_path: Path) -> None:
    paths = [write_run(tmp_path / name) for name in ("a", "b", "c")]
    facts = {"corpus": "other", "source_vocab_size": 1000, "target_vocab_size": 8}
    (paths[1] / "data.json").write_text(json.dumps(facts))
    assert "1,000 and 9, 1,000 and 8 tokens" in read_runs(paths[:2])["notes"][0]
    (paths[1] / "data.json").write_text(json.dumps(facts | {"target_vocab_size": 9}))
    assert "prepared from different text" in read_runs(paths[:2])["notes"][0]
    (paths[1] / "data.json").unlink()
    assert "unknown" in read_runs(paths[:2])["notes"][0]


def test_configs_differ_by_short_names_and_paths(tmp_path: Path) -> None:
    model = TransformerConfig(num_heads=4)
    other = dataclasses.replace(model, decoder=dataclasses.replace(model.decoder, norm=LayerNorm(eps=0.1)))
    runs = [
        RunConfig(model=model),
        RunConfig(model=other, train=TrainConfig(max_steps=7), data=DataConfig(vocab_size=5)),
    ]
    configs = [json.loads(json.dumps(dataclasses.asdict(run))) for run in runs]
    rows = {row["path"]: row["values"] for row in config_differences(configs)}
    eps = str(model.decoder.norm.eps) if isinstance(model.decoder.norm, LayerNorm) else ""
    assert rows == {
        "model.norm_eps": [eps, None],
        "model.decoder.norm.eps": [eps, "0.1"],
        "train.max_steps": [str(TrainConfig().max_steps), "7"],
        "data.vocab_size": [str(DataConfig().vocab_size), "5"],
    }
    del configs[1]["train"]["max_steps"]
    configs[1]["model"] = {"heads_of_tomorrow": 3}
    rows = {row["path"]: row["values"] for row in config_differences(configs)}
    assert rows["model.heads_of_tomorrow"] == [None, "3"]
    assert rows["train.max_steps"] == [str(TrainConfig().max_steps), None]


def test_runs_of_one_name_are_told_apart_by_their_folders() -> None:
    assert names_of([Path("/x/a/run"), Path("/x/b/run")]) == ["a/run", "b/run"]
    assert names_of([Path("/x/a"), Path("/x/b")]) == ["a", "b"]


def test_the_same_run_twice_and_too_many_runs_are_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a")
    with pytest.raises(RunError, match="received this one twice"):
        read_runs([run, tmp_path / "b" / ".." / "a"])
    with pytest.raises(RunError, match="expected at most 8 runs to compare; received 9"):
        read_runs([run] * 9)


def test_the_command_writes_one_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [str(write_run(tmp_path / name)) for name in ("a", "b")]
    monkeypatch.chdir(tmp_path)
    assert main(["report", *paths]) == 0
    assert capsys.readouterr().out == "comparison.html\n"
    assert "<title>a, b · comparison</title>" in (tmp_path / "comparison.html").read_text(encoding="utf-8")
    assert main(["report", *paths, "--watch"]) == 2
    assert "--watch: expected one run; received 2" in capsys.readouterr().err
    assert main(["report", paths[0], str(tmp_path / "nowhere")]) == 2
    assert "nowhere: expected a run directory; received no directory" in capsys.readouterr().err


def test_attention_wants_a_finished_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "a")
    assert main(["report", str(run), "--attention"]) == 2
    assert f"{run}: expected a finished run, to draw attention; received interrupted" in capsys.readouterr().err
    old = write_run(tmp_path / "old", ["x", "u"])
    (old / "translations.json").unlink()
    assert main(["report", str(old), "--attention"]) == 2
    assert "received one without translations.json, of an earlier version" in capsys.readouterr().err
    for others in ([str(old)], ["--watch"]):
        assert main(["report", str(run), *others, "--attention"]) == 2
        assert "error: --attention: expected " in capsys.readouterr().err
