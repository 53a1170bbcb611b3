"""The command answers what people type first: help, names of presets, words of other programs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from jax_transformer.cli import COMMANDS, USAGE, main
from jax_transformer.commands.model_options import run_options
from jax_transformer.commands.train import SCREEN, TRAIN, parse
from jax_transformer.config.presets import MEASURED, PRESETS


def test_every_command_has_a_line_in_the_usage() -> None:
    assert re.findall(r"^  (\w+)  ", USAGE, re.M) == [*COMMANDS]


@pytest.mark.parametrize("arguments", [["help"], ["--help"], []])
def test_help_lists_the_commands(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    assert capsys.readouterr().out.strip() == USAGE


def test_help_of_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "train"]) == 0
    assert capsys.readouterr().out.strip() == SCREEN


def test_an_unknown_command_gets_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trian"]) == 2
    assert "unknown command 'trian' (nearest: train)" in capsys.readouterr().err


def test_the_screen_of_train_fits_one_and_names_options_that_there_are() -> None:
    lines = SCREEN.splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 120
    assert {*re.findall(r"--[a-z][a-z.-]*", SCREEN)} <= run_options() | {*TRAIN}


def test_all_options_are_listed_on_demand(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["train", "--help-all"])
    assert stop.value.code == 0
    assert "--train.adam-b2" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argument", "meant"),
    [
        ("--lr", "--train.learning-rate"),
        ("--lr=3e-4", "--train.learning-rate"),
        ("--learning_rate", "--train.learning-rate"),
        ("--batch-size", "--data.batch-tokens, which counts tokens"),
        ("--dtype", "--model.compute-dtype"),
        ("--max-length", "--data.max-length or --model.max-length"),
    ],
)
def test_words_of_other_programs_are_answered_with_the_option(argument: str, meant: str) -> None:
    word = argument.partition("=")[0].replace("_", "-")
    with pytest.raises(ValueError, match=re.escape(f"{word}: no such option of train; expected {meant}")):
        parse(["tiny", argument, "3"])


def test_presets_are_listed_and_printed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["presets"]) == 0
    listed = capsys.readouterr().out
    assert re.findall(r"^(\w+)  ", listed, re.M) == [*PRESETS]
    assert "[56 minutes on two cores, 39.7 BLEU]" in " ".join(listed.split())
    assert MEASURED.keys() <= PRESETS.keys()
    assert main(["presets", "tiny"]) == 0
    printed = capsys.readouterr().out
    assert yaml.safe_load(printed)["train"]["optimizer"] == "muon"
    file = tmp_path / "tiny.yaml"
    file.write_text(printed)
    assert parse(["--config", str(file)]).config == PRESETS["tiny"]()
    assert main(["presets", "tny"]) == 2
    assert "Did you mean 'tiny'?" in capsys.readouterr().err


def test_the_package_runs_as_a_module() -> None:
    result = subprocess.run([sys.executable, "-m", "jax_transformer", "--version"], capture_output=True, text=True)
    assert result.returncode == 0
    assert result.stdout.startswith("jax-transformer ")
