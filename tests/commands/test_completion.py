"""Shells complete commands, options and presets."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from jax_transformer.cli import COMMANDS, main
from jax_transformer.commands.completion import words_of_commands


def completed(script: str, *words: str) -> list[str]:
    """Returns what bash offers for the last word of a line."""
    line = f"COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; _jax_transformer"
    run = ["bash", "-c", f'{script}\n{line}; printf "%s\\n" "${{COMPREPLY[@]}}"']
    return subprocess.run(run, capture_output=True, text=True, check=True).stdout.split()


def test_each_command_is_known() -> None:
    assert {*words_of_commands()} == {*COMMANDS, "help"}


def test_bash_completes_commands_options_and_presets(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    assert {*completed(script, "jax-transformer", "tr")} == {"train", "transcribe", "translate"}
    assert completed(script, "jax-transformer", "translate", "--beam-s") == ["--beam-size"]
    assert completed(script, "jax-transformer", "train", "dem") == ["demo"]
    assert completed(script, "jax-transformer", "train", "--train.warmup-s") == ["--train.warmup-steps"]
    assert completed(script, "jax-transformer", "plot", "sch") == ["schedule"]
    assert completed(script, "jax-transformer", "completion", "f") == ["fish"]


def test_bash_completes_values(capsys: pytest.CaptureFixture[str]) -> None:
    """And nothing that is no value, so that it offers files where options take them."""
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    assert completed(script, "jax-transformer", "serve", "m", "--semantics", "''") == [
        "huggingface",
        "gnmt",
        "floydhub",
    ]
    assert completed(script, "jax-transformer", "train", "--model.norm-placement", "p") == ["pre", "post"]
    assert completed(script, "jax-transformer", "train", "--train.optimizer", "adaf") == ["adafactor"]
    assert completed(script, "jax-transformer", "translate", "''") == []


def test_a_script_that_cannot_be_written_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "file"))
    assert main(["completion", "bash", "--install"]) == 2
    assert "--install: expected a file that can be written, " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("shell", "place"),
    [
        ("bash", "data/bash-completion/completions/jax-transformer"),
        ("zsh", "data/zsh/site-functions/_jax-transformer"),
        ("fish", "config/fish/completions/jax-transformer.fish"),
    ],
)
def test_the_script_is_installed_where_the_shell_looks(
    shell: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    assert main(["completion", shell, "--install"]) == 0
    assert f"written: {tmp_path / place}" in capsys.readouterr().out
    assert f"# jax-transformer completion {shell}" in (tmp_path / place).read_text()
    assert "beam-size" in (tmp_path / place).read_text()


@pytest.mark.skipif(shutil.which("fish") is None, reason="no fish is installed")
def test_fish_completes_commands_options_and_values(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "fish"]) == 0
    script = capsys.readouterr().out

    def offered(line: str) -> list[str]:
        run = ["fish", "-c", f"{script}\ncomplete -C '{line}'"]
        return subprocess.run(run, capture_output=True, text=True, check=True).stdout.split()

    assert offered("jax-transformer trans") == ["translate"]
    assert offered("jax-transformer translate --beam") == ["--beam-size"]
    assert offered("jax-transformer translate m --semantics f") == ["floydhub"]


@pytest.mark.skipif(shutil.which("zsh") is None, reason="no zsh is installed")
def test_zsh_reads_its_script(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "zsh"]) == 0
    subprocess.run(["zsh", "-n"], input=capsys.readouterr().out, text=True, check=True)
