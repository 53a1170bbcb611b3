"""The train command: its errors."""

from __future__ import annotations

import gzip
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from jax_transformer import cli
from jax_transformer.cli import main


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    try:
        code = main(list(arguments))
    except SystemExit as stop:  # --help
        code = int(stop.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


# --- training refuses, with one message, and leaves nothing behind


def write(path: Path, text: str | bytes) -> str:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def refused(capsys: pytest.CaptureFixture[str], tmp_path: Path, *arguments: str) -> str:
    run_dir = tmp_path / "run"
    code, out, err = run(
        capsys, "train", *arguments, "--run-dir", str(run_dir), "--data.cache-dir", str(tmp_path / "cache")
    )
    assert code == 2, out + err
    assert "Traceback" not in err
    assert not run_dir.exists()
    assert not list((tmp_path / "cache").glob("*")) if (tmp_path / "cache").exists() else True
    return " ".join(err.split())


def test_a_missing_file_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    message = refused(capsys, tmp_path, "--data.train", str(tmp_path / "nowhere.tsv"), "--data.valid-pairs", "2")
    assert "nowhere.tsv: expected a text file" in message


def test_unequal_line_counts_are_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    source, target = write(tmp_path / "a.en", "one\ntwo\nthree\n"), write(tmp_path / "a.de", "eins\nzwei\n")
    message = refused(capsys, tmp_path, "--data.train", source, target, "--data.valid-pairs", "1")
    assert "a.en:3:" in message
    assert "received 3 lines" in message
    assert "2 lines in" in message


def test_a_row_with_one_column_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = write(tmp_path / "pairs.tsv", "one\teins\ntwo zwei\n")
    assert "pairs.tsv:2: expected two columns" in refused(
        capsys, tmp_path, "--data.train", file, "--data.valid-pairs", "1"
    )


def test_invalid_utf8_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = write(tmp_path / "pairs.tsv", b"one\teins\nfive\tf\xfcnf\n")
    message = refused(capsys, tmp_path, "--data.train", file, "--data.valid-pairs", "1")
    assert "pairs.tsv:2: expected UTF-8 text; received byte 0xfc" in message


def test_an_empty_corpus_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "pairs.tsv.gz"
    file.write_bytes(gzip.compress(b""))
    assert "expected at least one sentence pair" in refused(
        capsys, tmp_path, "--data.train", str(file), "--data.valid-pairs", "1"
    )


def test_a_corpus_without_usable_pairs_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    long = " ".join(["word"] * 50)
    file = write(tmp_path / "pairs.tsv", f"{long}\t{long}\n" * 5)
    message = refused(capsys, tmp_path, "--data.train", file, "--data.valid-pairs", "1", "--data.max-length", "8")
    assert "max_length" in message


def test_too_small_a_vocabulary_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = write(tmp_path / "pairs.tsv", "one\teins\ntwo\tzwei\nthree\tdrei\n")
    message = refused(capsys, tmp_path, "--data.train", file, "--data.valid-pairs", "1", "--data.vocab-size", "4")
    assert "vocab_size" in message


def test_missing_validation_data_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = write(tmp_path / "pairs.tsv", "one\teins\ntwo\tzwei\n")
    assert "valid" in refused(capsys, tmp_path, "--data.train", file)


def test_an_unknown_preset_lists_the_known(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "train", "dmeo")
    assert code == 2
    assert "unknown preset 'dmeo'" in err
    assert "Did you mean 'demo'?" in err


def test_an_unknown_option_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "train", "--train.max-stepz", "3")
    assert code == 2
    assert "--train.max-steps" in err


def test_an_unknown_field_of_a_yaml_file_is_refused_with_its_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = write(tmp_path / "run.yaml", "model:\n  d_model: 64\n  d_modle: 64\n")
    code, _, err = run(capsys, "train", "--config", file)
    assert code == 2
    assert "run.yaml:3: unknown field 'model.d_modle'; did you mean 'd_model'?" in err


@pytest.mark.parametrize(
    ("yaml", "message"),
    [
        ("train:\n  learning_rate: fast\n", "run.yaml:2: TrainConfig: learning_rate must be a number; received 'fast'"),
        (
            "model:\n  feed_forward_layers: 3\n",
            "run.yaml:2: model.feed_forward_layers isn't supported: a feed-forward has two linear maps",
        ),
        (
            "model:\n  cross_attention_layer: same\n",
            "cross-attention reads the output of the encoder's last layer, not of the same layer",
        ),
        ("model:\n  norm_placement: middle\n", "norm_placement must be one of pre, post, none; received 'middle'"),
        ("model: [1, 2]\n", "run.yaml:1: expected fields and values under 'model.'"),
        ("model:\n  d_model: 64\n  d_model: 32\n", "run.yaml:3: field 'model.d_model' is given twice"),
        ("model: {d_model: 64\n", "expected YAML"),
    ],
)
def test_a_wrong_value_in_a_yaml_file_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, yaml: str, message: str
) -> None:
    code, _, err = run(capsys, "train", "--config", write(tmp_path / "run.yaml", yaml))
    assert code == 2
    assert message in " ".join(err.split())


def test_a_contradiction_on_the_command_line_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "train", "--model.num-heads", "7")
    assert code == 2
    assert "num_heads must be a divisor of d_model=128" in " ".join(err.split())


def test_a_run_directory_in_use_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    write(tmp_path / "run" / "config.yaml", "{}\n")
    code, _, err = run(capsys, "train", "--run-dir", str(tmp_path / "run"))
    assert code == 2
    assert "already in use" in err
    assert "--resume" in err
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["config.yaml"]


@pytest.mark.parametrize("place", ["file/run", "/proc/run/of/mine"])
def test_a_run_directory_that_cannot_be_made_is_refused_before_data_are_read(
    place: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    write(tmp_path / "file", "")
    code, out, err = run(capsys, "train", "--run-dir", str(tmp_path / place))
    assert (code, out) == (2, "")
    assert f"{tmp_path / place}: expected a run directory that can be made and written; received " in err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_resuming_a_directory_without_a_run_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, _, err = run(capsys, "train", "--resume", str(tmp_path))
    assert code == 2
    assert "expected a run directory to resume" in err


def test_resume_takes_nothing_else(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, _, err = run(capsys, "train", "demo", "--resume", str(tmp_path))
    assert code == 2
    assert "--resume takes no other option" in err


def test_an_unknown_command_lists_the_known(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "fly")
    assert code == 2
    known = (
        "train, presets, launch, average, translate, transcribe, forecast, serve, evaluate, score, port, export, push"
    )
    assert f"expected one of {known}, parity, freeze, discover, report" in err


def test_threads_of_pytorch_wait_without_spinning(monkeypatch: pytest.MonkeyPatch) -> None:
    """On busy cores, spinning took eight times as long as the work. OpenMP reads the variable when it's loaded."""
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    program = """
import contextlib, os, sys
from jax_transformer.cli import main
with contextlib.suppress(SystemExit):
    main(["average"])
assert "torch" not in sys.modules
print(os.environ["OMP_WAIT_POLICY"])
"""
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert output.stdout.endswith("PASSIVE\n"), output.stderr


# --- errors that nothing expects


@pytest.fixture
def crashing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Makes a command raise what its argument says; returns the temporary directory."""

    def crash(arguments: list[str]) -> int:
        raise {"key": KeyError("lost"), "type": TypeError("two\nlines"), "depth": RecursionError()}[arguments[0]]

    monkeypatch.setitem(cli.COMMANDS, "port", crash)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("which", "shown"), [("key", "KeyError: 'lost'"), ("type", "TypeError: two lines"), ("depth", "RecursionError")]
)
def test_an_unexpected_error_has_its_own_code_and_a_file_with_the_traceback(
    which: str, shown: str, capsys: pytest.CaptureFixture[str], crashing: Path
) -> None:
    code, out, err = run(capsys, "port", which)
    (file,) = crashing.iterdir()
    bug = "this is a bug in jax-transformer, please report it"
    assert (code, out, err) == (70, "", f"error: port: {shown}; {bug} with the traceback in {file}\n")
    assert file.read_text().startswith("Traceback (most recent call last):\n")
    assert ", in crash\n" in file.read_text()


def test_a_traceback_that_cannot_be_written_is_printed(
    capsys: pytest.CaptureFixture[str], crashing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(crashing / "nowhere"))
    code, _, err = run(capsys, "port", "key")
    assert code == 70
    assert "the traceback couldn't be written" in err
    assert ", in crash\n" in err
