"""--quiet leaves results and errors, --verbose adds facts; neither changes a result or an exit code."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
import yaml

from jax_transformer.cli import main
from jax_transformer.commands.verbosity import ErrorsAlone, speaking, take_verbosity


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["translate", "m", "--quiet"], ("--quiet", ["translate", "m"])),
        (["--verbose", "presets"], ("--verbose", ["presets"])),
        (["presets"], ("", ["presets"])),
        (["launch", "--quiet", "--", "train", "--quiet"], ("--quiet", ["launch", "--", "train", "--quiet"])),
        (["launch", "--", "train", "--verbose"], ("", ["launch", "--", "train", "--verbose"])),
        (["--verbose", "parity", "a", "b"], ("", ["parity", "a", "b", "--verbose"])),
    ],
)
def test_the_words_are_taken_before_another_programs(arguments: list[str], expected: tuple[str, list[str]]) -> None:
    assert take_verbosity(arguments) == expected


def test_both_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["presets", "--quiet", "--verbose"]) == 2
    assert capsys.readouterr().err == "error: --quiet, --verbose: expected one of them; received both\n"


def test_errors_pass_with_all_their_lines() -> None:
    stream = io.StringIO()
    errors = ErrorsAlone(stream)
    errors.write("note: this model knows tags\n10 of 20 done\nerror: the con")
    errors.write("fig:\n  - one\n  - two\nnote: more\n  - not this\n[1] error: another process\n> ")
    assert stream.getvalue() == "error: the config:\n  - one\n  - two\n[1] error: another process\n"
    assert not errors.isatty()


def test_a_refused_option_is_shown_though_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["translate", "m", "--quiet", "--beam-size", "many"]) == 2
    assert "beam-size" in capsys.readouterr().err


def test_warnings_and_notes_are_held_back(capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.stderr
    with speaking("--quiet", "test"):
        print("note: nothing to see", file=sys.stderr)
        print("error: this", file=sys.stderr)
    assert sys.stderr is before
    assert capsys.readouterr().err == "error: this\n"


def test_verbose_tells_versions_time_and_the_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["translate", str(tmp_path / "nowhere"), "--verbose"]) == 2
    first, *rest = capsys.readouterr().err.splitlines()
    assert first.startswith("jax-transformer ")
    assert f"Python {sys.version.split()[0]}" in first
    assert "Traceback (most recent call last):" in rest
    assert rest[-2].startswith("error: ")
    assert rest[-1].startswith("took ")
    assert "MiB of memory" in rest[-1]
    assert main(["translate", str(tmp_path / "nowhere")]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_compilations_are_logged(capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    import jax
    import jax.numpy as jnp

    with speaking("--verbose", "test"):
        jax.jit(lambda x: x * 3.5)(jnp.ones(3))
    assert any("XLA compilation" in record.message for record in caplog.records)
    caplog.clear()
    jax.jit(lambda x: x * 4.5)(jnp.ones(3))
    assert not caplog.records


@pytest.mark.usefixtures("quick_compilation")
def test_quiet_training_prints_the_results_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = {
        "d_model": 8,
        "num_heads": 2,
        "d_ff": 8,
        "num_encoder_layers": 1,
        "num_decoder_layers": 1,
        "max_length": 32,
    }
    data = {"phrasebook_pairs": 40, "valid_pairs": 4, "test_pairs": 4, "max_length": 32, "batch_tokens": 640}
    train = {"max_steps": 1, "evaluate_sentences": 0}
    config = {"model": model, "data": data | {"num_shapes": 1, "cache_dir": str(tmp_path / "cache")}, "train": train}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config))
    assert main(["train", "--quiet", "--config", str(tmp_path / "run.yaml"), "--run-dir", str(tmp_path / "run")]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "test: BLEU" in out
    assert f"run:    {tmp_path / 'run'}" in out
    assert "step 1" not in out.partition("test: BLEU")[0]
    assert "compiling" not in out
