"""`jax-transformer parity --prove`, its certificates, and the proof at the end of a comparison."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import user_programs
import yaml
from parity_command import PYTORCH, Run, function, module

from jax_transformer.cli import main
from jax_transformer.commands.parity_options import NumberOptions, ParityOptions, ProgramOptions

pytestmark = pytest.mark.usefixtures("quick_compilation")


def test_a_module_is_proven_and_its_certificate_verified(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "proof.json"
    arguments = ["pytorch.pt", *PYTORCH, *module("pytorch"), "--prove", "--stages", "forward,loss"]
    files = ["--certificate", str(file), "--witness", str(tmp_path / "weights.npz")]
    outcome = run(*arguments, *files, stages=None, dtypes=None)
    assert outcome.code == 0, outcome.output
    assert "✓ forward:" in outcome.output
    held = json.loads(file.read_text())
    assert held["verdict"] == "proven"
    assert held["command"] == arguments
    assert "weights.npz: not written: a witness is of two functions, and the verdict is proven" in outcome.output
    assert not (tmp_path / "weights.npz").exists()
    again = run(*arguments[:-3], "--verify", str(file), stages=None, dtypes=None)
    assert again.code == 0, again.output
    assert "holds: proven" in again.output
    changed = {**held, "inputs": {**held["inputs"]}}
    changed["inputs"]["labels"] = {**held["inputs"]["labels"], "values": held["inputs"]["source_ids"]["values"]}
    file.write_text(json.dumps(changed))
    again = run(*arguments[:-3], "--verify", str(file), stages=None, dtypes=None)
    assert again.code == 4, again.output
    assert "the ids differ: labels" in again.output


def test_a_comparison_ends_with_a_proof(run: Run) -> None:
    outcome = run("pytorch.pt", *PYTORCH, *module("pytorch"), stages="weights,forward,proof")
    assert outcome.code == 0, outcome.output
    assert "✓ proof: one function for all weights: forward, loss, gradients" in outcome.output


def test_a_refutation_writes_its_witness(run: Run, tmp_path: Path) -> None:
    files = ["--witness", str(tmp_path / "weights.npz"), "--certificate", str(tmp_path / "proof.json")]
    outcome = run("pytorch.pt", *PYTORCH, *module("other_eps"), "--prove", *files, stages="forward", dtypes=None)
    assert outcome.code == 1, outcome.output
    assert "show it in float64: logits, by a relative RMS of" in outcome.output
    held = json.loads((tmp_path / "proof.json").read_text())
    with np.load(tmp_path / "weights.npz") as file:
        assert json.loads(str(file["__notes__"])) == held["difference"]["witness"]
        assert file["reference/head.weight"].shape == file["candidate/head/kernel"].T.shape == (19, 12)
        assert file["inputs/source_ids"].tolist() == held["inputs"]["source_ids"]["values"]


def test_verbose_lists_all_arrays_and_versions(run: Run) -> None:
    arguments = ["pytorch.pt", *PYTORCH, *module("pytorch"), "--prove", "--verbose"]
    outcome = run(*arguments, stages="loss", dtypes=None)
    assert outcome.code == 0, outcome.output
    assert "    ✓ loss\n" in outcome.out
    assert "version  jax " in outcome.out


def test_an_own_loss_is_read(run: Run, tmp_path: Path) -> None:
    rule = tmp_path / "config.yaml"
    rule.write_text(yaml.safe_dump({"train": user_programs.CONFIG}))
    arguments = ["pytorch.pt", *PYTORCH, *module("pytorch"), "--prove", "--train", str(rule), "--loss"]
    wrong = run(*arguments, "user_programs:loss_counting_pads", stages="loss", dtypes=None)
    assert wrong.code == 1, wrong.output
    assert "first at loss" in wrong.output
    assert "user_programs.py" in wrong.output


def test_allowed_differences_are_listed_and_never_proven(run: Run, tmp_path: Path) -> None:
    """A program that attends to padding before a token is another function; with --allow, the batch has none."""
    arguments = ["pytorch.pt", *PYTORCH, *module("attending_to_inner_pads"), "--prove"]
    refuted = run(*arguments, stages="forward", dtypes=None)
    assert refuted.code == 1, refuted.output
    file = tmp_path / "proof.json"
    allowed = ["--allow", "inner-padding", "--certificate", str(file)]
    outcome = run(*arguments, *allowed, stages="forward", dtypes=None)
    assert outcome.code == 0, outcome.output
    assert "allowed inner-padding: the ids show no such difference, and nothing is claimed of it" in outcome.output
    assert json.loads(file.read_text())["allowed"] == ["inner-padding"]


REFUSED = {
    "a proof compares no floats": [
        *(["--html", "x.html"], ["--node", "logits"], ["--dtypes", "float64"], ["--own-weights"], ["--kl", "1"]),
        *(["--layers", "a.{}=b.{}"], ["--top-k", "5:0.9"], ["--memory-limit", "1"], ["--time-limit", "1"]),
        *(["--candidate-device", "cpu:0"], ["--reference-device", "cpu"]),
        *(["--truth", "x.npz"], ["--tolerance", "1e-3"], ["--draft-map", "x.yaml"], ["--diff", "a.npz", "b.npz"]),
    ],
    "decoding isn't proven": [
        *(["--decode", "user_programs:greedy"], ["--beam-size", "3"], ["--max-new-tokens", "3"]),
        *(["--length-penalty", "2"], ["--semantics", "gnmt"], ["--early-stopping", "true"]),
    ],
}
"""Reasons → options that --prove doesn't take."""


@pytest.mark.parametrize("option", [option for options in REFUSED.values() for option in options], ids=lambda o: o[0])
def test_an_option_that_says_nothing_to_a_proof_is_refused(option: list[str], run: Run) -> None:
    outcome = run("pytorch.pt", *PYTORCH, *module("pytorch"), "--prove", *option, stages=None, dtypes=None)
    assert outcome.is_one_clear_message, outcome.output
    reason = next(reason for reason, options in REFUSED.items() if option in options)
    assert f"--prove: expected no {option[0].partition('.')[0]}" in outcome.output
    assert reason in outcome.output


def test_every_option_works_with_a_proof_or_is_refused() -> None:
    """A new option of comparisons is to be thought of here."""
    works = {"model", "dialect", "reference", "candidate", "inputs", "map", "stages", "seed", "allow", "verbose"}
    works |= {"prove", "json", "numbers", "certificate", "witness", "verify", "checkpoint", "programs", "parallel"}
    works |= {"train", "loss", "optimizer", "jax_loss", "jax_optimizer"}
    refused = {
        option[0].lstrip("-").split(".")[0].replace("-", "_") for options in REFUSED.values() for option in options
    }
    fields = {
        field.name for kind in (ParityOptions, ProgramOptions, NumberOptions) for field in dataclasses.fields(kind)
    }
    assert fields == works | refused


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--certificate", "proof.json"], "--certificate: expected --prove"),
        (["--witness", "weights.npz"], "--witness: expected --prove"),
        (["--prove"], "stages: expected some of forward, loss, gradients, steps; received weights"),
        (["--prove", "--certificate", "nowhere/proof.json"], "there is no nowhere"),
        (["--prove", "--witness", "nowhere/weights.npz"], "there is no nowhere"),
        (["--prove", "--loss", "user_programs:loss"], "loss: expected train"),
        (["--prove", "--jax-loss", "user_programs:jax_loss"], "jax_loss: expected loss"),
        (["--prove", "--train", "config.yaml"], "config.yaml"),
        (["--prove", "--loss", "user_programs:nothing"], "--loss"),
    ],
)
def test_wrong_options_are_one_clear_message(arguments: list[str], expected: str, run: Run) -> None:
    outcome = run("pytorch.pt", *PYTORCH, *module("pytorch"), *arguments, dtypes=None)
    assert outcome.is_one_clear_message, outcome.output
    assert expected in outcome.output


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--allow", "fully-masked"], "allow doesn't apply to two programs on inputs"),
        (["--loss", "user_programs:loss"], "loss doesn't apply to two programs on inputs"),
        (["--dialect", "pytorch"], "dialect doesn't apply to two programs on inputs"),
        (["--map", "names.yaml"], "names: two programs on inputs take a mapping"),
    ],
)
def test_two_programs_take_fewer_options(arguments: list[str], expected: str, run: Run) -> None:
    np.savez("inputs.npz", source_ids=np.array([[3, 4]]), decoder_input_ids=np.array([[5, 6]]))
    two = [*function("function"), *module("pytorch"), "--inputs", "inputs.npz", "--prove"]
    outcome = run(*two, *arguments, stages=None, dtypes=None)
    assert outcome.is_one_clear_message, outcome.output
    assert expected in outcome.output


def test_a_file_that_is_no_certificate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "no.json").write_text('{"schema": 3}')
    assert main(["parity", "--verify", str(tmp_path / "no.json")]) == 2
    output = capsys.readouterr().err
    assert (
        "expected a certificate that jax-transformer parity --prove wrote; the top level: expected the field" in output
    )
    assert output.count("\n") == 1
