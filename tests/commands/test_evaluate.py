"""jax-transformer evaluate: sacreBLEU's numbers for a model's translations and for existing ones."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jax_transformer.commands.parallel_text import write_lines
from jax_transformer.training.metrics import compare_systems, score_translations

pytestmark = pytest.mark.usefixtures("quick_compilation")

Run = Callable[..., tuple[int, str, str]]
Write = Callable[[str, str | bytes], str]

SOURCES = ["eins zwei drei", "vier", "fünf sechs sieben acht", ""]
METRICS = ["BLEU", "chrF2", "TER"]


def text(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def noisy(lines: list[str], share: float, seed: int) -> list[str]:
    """Replaces some words of each line by other words of it."""
    rng = np.random.default_rng(seed)
    return [
        " ".join(rng.choice(line.split()) if rng.random() < share else word for word in line.split()) for line in lines
    ]


@pytest.fixture
def files(write: Write) -> dict[str, str]:
    """Forty sentences: two references and the translations of three systems; c is the worst. The first file is
    gzipped."""
    rng = np.random.default_rng(0)
    words = ["Der", "alte", "Hund", "sieht", "das", "große", "Pferd", ",", "das", "schläft", ".", "Wer", "weiß", "?"]
    reference = [" ".join(rng.choice(words, length)) for length in rng.integers(5, 12, 40)]
    systems = {"reference": reference, "other_reference": noisy(reference, 0.1, 1)}
    systems |= {
        name: noisy(reference, share, seed)
        for seed, (name, share) in enumerate({"a": 0.1, "b": 0.12, "c": 0.5}.items(), 2)
    }
    return {name: write(f"{name}.gz", gzip.compress(text(lines).encode())) for name, lines in systems.items()}


def sacrebleu(*arguments: str) -> str:
    command = [sys.executable, "-m", "sacrebleu", *arguments, "-m", "bleu", "chrf", "ter", "-w", "4"]
    result = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | {"NO_COLOR": "1"})
    return result.stdout


def evaluated(run: Run, *arguments: str) -> dict[str, Any]:
    code, out, err = run("evaluate", *arguments, "--format", "json")
    assert code == 0, err
    return json.loads(out)


# --- numbers


def test_scores_of_one_system_equal_sacrebleu(files: dict[str, str], run: Run) -> None:
    references = [files["reference"], files["other_reference"]]
    expected = json.loads(sacrebleu(*references, "-i", files["a"], "--confidence", "--confidence-n", "100"))
    found = evaluated(
        run, "--hypotheses", files["a"], "--target", references[0], "--target", references[1], "--bootstrap", "100"
    )
    assert [each["name"] for each in expected] == METRICS
    for each in expected:
        received = found["systems"][0]["scores"][each["name"]]
        assert received["score"] == pytest.approx(each["score"], abs=6e-5)
        assert received["interval"] == pytest.approx(each["confidence_var"], abs=6e-5)
        assert received["p_value"] is None
        assert found["signatures"][each["name"]] == each["signature"]
        assert "nrefs:2|bs:100|seed:12345" in each["signature"]
    assert found["sentences"] == 40


def test_systems_are_compared_as_by_sacrebleu(files: dict[str, str], run: Run) -> None:
    names = [files[name] for name in "abc"]
    text = sacrebleu(files["reference"], "-i", *names, "--paired-bs", "--paired-bs-n", "200", "--format", "text")
    scores = [tuple(map(float, each)) for each in re.findall(r"([\d.]+) \([\d.]+ ± ([\d.]+)\)", text)]
    p_values = list(map(float, re.findall(r"\(p = ([\d.]+)\)", text)))
    assert (len(scores), len(p_values)) == (9, 6)
    others = ["--against", names[1], "--against", names[2]]
    found = evaluated(run, "--hypotheses", names[0], "--target", files["reference"], *others, "--bootstrap", "200")
    assert [system["translations"] for system in found["systems"]] == names
    systems = [system["scores"][metric] for system in found["systems"] for metric in METRICS]
    assert [(each["score"], each["interval"]) for each in systems] == [pytest.approx(pair, abs=6e-5) for pair in scores]
    assert [each["p_value"] for each in systems[3:]] == pytest.approx(p_values, abs=6e-5)
    assert min(p_values[:3]) > 0.05 > max(p_values[3:]), "b is as good as a, c isn't"
    for metric in METRICS:
        assert re.search(rf"- {metric} +{re.escape(found['signatures'][metric])}\n", text)


def test_the_same_translations_are_no_significant_difference(files: dict[str, str], run: Run) -> None:
    given = (
        "--hypotheses",
        files["a"],
        "--target",
        files["reference"],
        "--against",
        files["a"],
        "--against",
        files["c"],
    )
    systems = evaluated(run, *given, "--bootstrap", "10")["systems"]
    assert [system["scores"]["BLEU"]["p_value"] is None for system in systems] == [True, True, False]


def test_without_samples_there_are_scores_alone(files: dict[str, str], run: Run) -> None:
    given = ("--hypotheses", files["a"], "--target", files["reference"], "--against", files["b"])
    found, other = (evaluated(run, *given, "--bootstrap", count) for count in ("0", "2"))
    for system, same in zip(found["systems"], other["systems"], strict=True):
        for metric in METRICS:
            received = system["scores"][metric]
            assert received == {
                "score": pytest.approx(same["scores"][metric]["score"]),
                "interval": None,
                "p_value": None,
            }
    assert not re.search("bs:|seed:", "".join(found["signatures"].values()))


def test_exact_match_counts_any_reference() -> None:
    (*_, exact) = compare_systems(
        [["a b", " c", "d"], ["a", "c", "e"]], [["a b ", "c", "x"], ["y", "z", "d"]], samples=0
    )
    assert (exact.metric, [system.score for system in exact.systems]) == (
        "exact match",
        [100.0, pytest.approx(100 / 3)],
    )


def test_training_scores_as_evaluate_does(files: dict[str, str], run: Run) -> None:
    lines = {name: gzip.decompress(Path(files[name]).read_bytes()).decode().splitlines() for name in ("a", "reference")}
    scores = score_translations(lines["a"], lines["reference"])
    found = evaluated(run, "--hypotheses", files["a"], "--target", files["reference"], "--bootstrap", "0")["systems"][
        0
    ]["scores"]
    expected = {"BLEU": scores.bleu, "chrF2": scores.chrf, "exact_match": scores.exact_match}
    assert {name: found[name]["score"] for name in expected} == pytest.approx(expected)


# --- what is printed and written


def test_a_table_and_the_signatures_below(files: dict[str, str], run: Run) -> None:
    code, out, err = run(
        "evaluate", "--hypotheses", files["a"], "--target", files["reference"], "--against", files["c"]
    )
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split() == ["metric", "score", "95", "%", "p", "translations"]
    assert [line.split()[0] for line in lines[1:8:2]] == ["BLEU", "chrF2", "TER", "exact"]
    assert all(line.endswith(f"  {files[name]}") for line, name in zip(lines[1:9], "acacacac", strict=True))
    assert len({line.index(files["a"][:4]) for line in lines[1:9]}) == 1, "columns are aligned"
    assert re.match(r"BLEU +\d+\.\d\d  ± \d+\.\d\d +/", lines[1])
    assert re.match(r" +\d+\.\d\d  ± +\d+\.\d\d  0\.0\d\d\d  /", lines[2])
    assert lines[9:11] == ["", "40 sentences"]
    assert [line.split(": ")[0] for line in lines[11:]] == METRICS
    assert "|seed:12345|" in lines[11]
    code, out, _ = run("evaluate", "--hypotheses", files["a"], "--target", files["reference"], "--bootstrap", "0")
    assert out.splitlines()[0].split() == ["metric", "score", "translations"]


def test_a_model_is_evaluated_by_its_translations(
    model_directory: Path, run: Run, write: Write, tmp_path: Path
) -> None:
    source, output = write("source", text(SOURCES)), tmp_path / "translations"
    code, out, err = run("translate", str(model_directory), "--input", source, "--source-tag", "<2de>")
    assert code == 0, err
    target = write("target", out)
    given = (
        "evaluate",
        str(model_directory),
        "--source",
        source,
        "--target",
        target,
        "--output",
        str(output),
        "--bootstrap",
        "2",
    )
    code, out, err = run(*given, "--source-tag", "<2de>")
    assert (code, err) == (0, "")
    assert re.search(rf"exact match +100\.00 +{re.escape(str(model_directory))}\n", out)
    assert output.read_bytes() == Path(target).read_bytes()
    code, out, err = run(*given)
    assert code == 0
    assert "exact match  100.00" not in out
    assert "knows the source tags <2de>; set one with --source-tag" in err
    assert output.read_bytes() != Path(target).read_bytes(), "an old file is replaced"
    code, out, err = run(*given, "--output", f"{output}.gz", "--beam-size", "2")
    assert code == 0
    assert gzip.decompress(Path(f"{output}.gz").read_bytes()).count(b"\n") == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source", "target", "translations", "translations.gz"]


def test_sentences_beyond_the_positions_are_reported_and_count_as_empty(
    model_directory: Path, run: Run, write: Write, tmp_path: Path
) -> None:
    source, target = write("source", text([*SOURCES, "eins " * 30])), write("target", text(["EINS"] * 5))
    output = tmp_path / "translations"
    given = (str(model_directory), "--source", source, "--target", target, "--output", str(output), "--bootstrap", "2")
    code, out, err = run("evaluate", *given)
    assert code == 2
    assert f"error: {source}:5: expected at most 24 tokens, the model's longest; received 31; scored as empty\n" in err
    assert "5 sentences, 1 of them not translated\n" in out
    assert output.read_text().splitlines()[4] == ""
    assert len(output.read_text().splitlines()) == 5
    assert json.loads(run("evaluate", *given, "--format", "json")[1])["untranslated"] == [5]


def test_translations_are_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "translations"
    target.write_text("old\n")

    def refuse(path: Path, target: Path) -> None:
        assert path.parent == target.parent
        assert path.read_text() == "new\nlines\n"
        raise OSError("no space")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="no space"):
        write_lines(str(target), ["new", "lines"])
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"translations": "old\n"}


def test_a_reader_that_has_gone_is_no_error(files: dict[str, str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    given = ["evaluate", "--hypotheses", files["a"], "--target", files["reference"], "--bootstrap", "0"]
    result = subprocess.run(
        [sys.executable, "-m", "jax_transformer.cli", *given], stdout=writer, stderr=subprocess.PIPE, check=False
    )
    os.close(writer)
    assert (result.returncode, result.stderr) == (0, b"")


def test_given_translations_need_no_jax(files: dict[str, str]) -> None:
    code = f"""
import sys
from jax_transformer.cli import main
assert main(["evaluate", "--hypotheses", {files["a"]!r}, "--target", {files["reference"]!r}, "--bootstrap", "0"]) == 0
assert not {{"jax", "flax", "torch"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


# --- mistakes


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("--hypotheses a", "--target: expected a file with the reference translations; received none"),
        ("--target a", "expected a model and --source FILE, or --hypotheses FILE; received neither"),
        ("model --target a", "expected a model and --source FILE, or --hypotheses FILE; received only model"),
        (
            "model --hypotheses a --target a",
            "expected no options of translating, for these are translations already; received a model",
        ),
        ("--hypotheses a --target a --beam-size 3 --source a", "received --beam-size, --source"),
        ("--hypotheses a --target a --bootstrap -1", "--bootstrap must be at least 0; received -1"),
        ("--hypotheses a --target a --tokenize best", "--tokenize: expected one of 13a, "),
        ("model --source a --target a --rows 0", "--rows must be at least 1; received 0"),
        (
            "model --source a --target a --output nowhere/b",
            "nowhere/b: expected a directory that exists; there is no nowhere",
        ),
        ("model --source a --target a --output .", ".: expected the name of a file; it is a directory"),
        ("model --source a --target a --output a", "--output: expected a file that isn't read; received a"),
        (
            "--hypotheses a --target a --against nowhere",
            "nowhere: expected a text file; received a path at which there is no file",
        ),
        ("--hypotheses a --target two", "two: expected as many lines as a; received 2, and 1 there"),
        ("--hypotheses a --target a --against two", "two: expected as many lines as a; received 2, and 1 there"),
        ("--hypotheses a --target empty", "empty: expected at least one sentence; received none"),
        ("--hypotheses a --target latin", "latin:2: expected UTF-8 text; received byte 0xfc"),
        ("--hypotheses nul --target a", "nul:1: expected text; received a NUL character"),
        ("--hypotheses - --target -", "expected standard input (-) for one file; received it for 2"),
        ("nowhere --source a --target a", "nowhere: no such directory"),
    ],
)
def test_mistakes_give_one_line(
    given: str, message: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = {"a": b"eins\n", "two": b"eins\nzwei\n", "empty": b"", "latin": b"eins\nf\xfcnf\n", "nul": b"ei\0ns\n"}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    monkeypatch.chdir(tmp_path)
    code, out, err = run("evaluate", *given.split())
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == contents
