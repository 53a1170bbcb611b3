"""Mistakes in the arguments of a command: one line, with what was expected, what came and what to do."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from jax_transformer.commands.completion import KINDS_OF_COMMANDS
from jax_transformer.commands.mistakes import mistake
from jax_transformer.commands.model_options import options_of_run
from jax_transformer.commands.options import Option, options_of
from jax_transformer.commands.words import WORDS, known_word

Run = Callable[..., tuple[int, str, str]]


def options_of_command(command: str) -> list[Option]:
    run = list(options_of_run()) if command in ("train", "compile") else []
    return run + (list(options_of(KINDS_OF_COMMANDS[command])) if command in KINDS_OF_COMMANDS else [])


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("translate", "translate: expected MODEL; received none; jax-transformer translate --help explains"),
        ("score m --source x", "score: expected --target STR; received none; jax-transformer score --help explains"),
        ("launch", "launch: expected --processes INT; received none; jax-transformer launch --help explains"),
        ("translate m --bem-size 3", "--bem-size: no such option of translate (nearest: --beam-size)"),
        ("train --reusme runs/demo", "--reusme: no such option of train (nearest: --resume)"),
        ("presets --q", "--q: no such option of presets; jax-transformer presets --help lists them"),
        ("translate m --beam_size x", "--beam-size: expected a whole number; received x"),
        ("translate m --beam-size=2.5", "--beam-size: expected a whole number; received 2.5"),
        ("translate m --top-p", "--top-p: expected a number; received none"),
        ("translate m --top-p --seed 3", "--top-p: expected a number; received none"),
        ("translate m --beam-size None", "--beam-size: expected a whole number; received None"),
        ("translate m --format xml", "--format: expected one of text, jsonl; received xml"),
        ("serve m --early-stopping no", "--early-stopping: expected one of false, true, never; received no"),
        ("translate m --split-long yes", "--split-long takes no value; received yes"),
        ("translate m --split-long=yes", "--split-long takes no value; received yes"),
        ("parity --diff a.npz", "--diff: expected 2 values, CANDIDATE REFERENCE; received a.npz"),
        ("completion tcsh", "completion: expected SHELL to be one of bash, zsh, fish; received tcsh"),
        (
            "translate m A-dog",
            "translate: expected MODEL options; received A-dog as well; text comes from --input FILE or from standard "
            "input",
        ),
        ("train --train.max-steps x", "--train.max-steps: expected a whole number; received x"),
        (
            "train --model.norm-kind None",
            "--model.norm-kind: expected one of layer_norm, rms_norm, none; received None",
        ),
        ("train --model.no-norm-bias 1", "--model.no-norm-bias takes no value; received 1"),
        ("train --resume r --parallel.dta 2", "--parallel.dta: no such option of train --resume RUN (nearest: "),
        ("compile --program fit", "--program: expected one of train, evaluate, decode; received fit"),
        ("translate m --num-beams 4", "--num-beams: no such option of translate; expected --beam-size"),
        ("translate m --data 4", "--data: no such option of translate; expected --parallel.data"),
        ("evaluate m --references r", "--references: no such option of evaluate; expected --target"),
        ("port m --output d", "--output: no such option of port; expected what to write as the second argument"),
        ("serve m --device gpu", "--device: no such option of serve; expected the environment variable JAX_PLATFORMS"),
        ("export m d --epochs 4", "--epochs: no such option of export; training has --train.max-epochs"),
    ],
)
def test_a_mistake_is_one_line(line: str, said: str, run: Run) -> None:
    code, out, err = run(*line.split())
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {said}")
    assert err.count("\n") == 1


@pytest.mark.parametrize("command", [*KINDS_OF_COMMANDS, "train", "compile"])
def test_every_option_says_what_it_takes(command: str) -> None:
    options = options_of_command(command)
    for one in (one for one in options if re.match(r"INT|FLOAT|\{", one.kind) and one.name.startswith("--")):
        for arguments, received in (
            ([one.name, "wrong"], "wrong"),
            ([f"{one.name}=wrong"], "wrong"),
            ([one.name], "none"),
        ):
            if one.least == 0 and received == "none":
                continue
            said = mistake(arguments, options, command)
            assert said is not None
            assert re.fullmatch(rf"{one.name}: expected (a( whole)? number|one of .+); received {received}", said)


@pytest.mark.parametrize("command", WORDS)
def test_words_of_other_programs_name_options_that_there_are(command: str) -> None:
    names = {one.name for one in options_of_command(command)} or {"--processes"}
    names |= {"--run-dir", "--resume"} if command == "train" else set()
    names |= {"--target", "--beam-size"} if command == "compile" else set()
    assert not WORDS[command].keys() & names
    for word in WORDS[command]:
        answer = known_word(word, command, names)
        assert {*re.findall(r"--[a-z][a-z0-9.-]*", answer)} <= names
        assert answer.startswith("expected ")


def test_what_follows_two_dashes_is_no_option(run: Run) -> None:
    code, _, err = run("translate", "m", "--", "--beam-size", "3")
    assert code == 2
    assert err.startswith("error: translate: expected MODEL options; received --beam-size 3 as well; text comes from ")


def test_a_number_below_zero_is_a_value(run: Run) -> None:
    assert "received none" not in run("translate", "m", "--length-penalty", "-1", "--seed", "x")[2]


def test_an_option_that_takes_any_number_of_values_ends_at_the_next(run: Run) -> None:
    code, _, err = run("train", "--data.train", "a.en", "a.de", "--train.seed", "x")
    assert (code, err) == (2, "error: --train.seed: expected a whole number; received x\n")


def test_help_is_printed_as_before(capsys: pytest.CaptureFixture[str], run: Run) -> None:
    code, out, err = run("translate", "--help")
    assert (code, err) == (0, "")
    assert "--beam-size INT" in out
