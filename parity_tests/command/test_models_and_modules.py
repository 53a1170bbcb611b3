"""`jax-transformer parity` on models: built-in references, and modules and functions of the user's."""

from __future__ import annotations

import hashlib
import json
from importlib import metadata
from pathlib import Path

import families
import pytest
import torch
import user_models
from parity_command import PYTORCH, SIZES, Run, function, module

from jax_transformer.cli import main

pytestmark = pytest.mark.usefixtures("quick_compilation")

NORM = "decoder.layers.0.cross_attention_norm"


# --- built-in references


@pytest.mark.parametrize("name", ["harvard", "hyunwoongko"])
def test_a_checkpoint_and_its_own_program(name: str, run: Run) -> None:
    outcome = run(f"{name}.pt", "--dialect", name, *SIZES)
    assert outcome.code == 0, outcome.output
    assert f"parity: {name}.pt against torch_reference.{name}:" in outcome.out


def test_every_stage_and_precision(run: Run, tmp_path: Path) -> None:
    outcome = run(
        "pytorch.pt",
        *PYTORCH,
        "--decoder-start-id",
        "0",
        "--eos-id",
        "3",
        "--json",
        str(tmp_path / "report.json"),
        stages=None,
        dtypes="float64,float32,bfloat16",
    )
    assert outcome.code == 0, outcome.output
    report = json.loads((tmp_path / "report.json").read_text())
    assert [(stage["name"], stage["verdict"]) for stage in report["stages"]] == [
        (name, "passed")
        for name in (
            "weights",
            "inputs",
            "masks",
            "forward",
            "truth",
            "forward float32",
            "forward bfloat16",
            "loss",
            "gradients",
            "step",
            "trajectory",
            "decode",
        )
    ]
    assert all(stage["compared"] for stage in report["stages"])
    assert (report["schema"], report["exit_code"], report["faults"], report["doubts"]) == (1, 0, [], [])
    assert report["environment"]["torch"] == metadata.version("torch")
    assert report["environment"]["reference's TF32"] == "False"
    assert report["environment"]["dialect"] == "pytorch"


def test_a_family_of_transformers(run: Run, tmp_path: Path) -> None:
    case = families.make_case("marian", 0, tmp_path)
    outcome = run(str(case.directory), stages="weights,masks,forward,loss")
    assert outcome.code == 0, outcome.output
    assert "against transformers, marian" in outcome.out


def test_a_model_directory(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["port", "pytorch.pt", str(tmp_path / "model"), *PYTORCH]) == 0
    capsys.readouterr()
    assert run(str(tmp_path / "model")).code == 0
    outcome = run(str(tmp_path / "model"), "--num-heads", "3")
    assert outcome.is_one_clear_message
    assert "is a model and has its config; expected no num_heads" in outcome.err


# --- modules


def test_a_module_with_the_weights_of_the_model(run: Run) -> None:
    outcome = run("pytorch.pt", *PYTORCH, *module("pytorch"))
    assert outcome.code == 0, outcome.output


def test_the_weights_of_a_module_alone(run: Run) -> None:
    outcome = run(*PYTORCH, *module("pytorch"), stages="weights,forward,loss,gradients")
    assert outcome.code == 0, outcome.output
    assert "user_models:pytorch in JAX against user_models:pytorch" in outcome.out


def test_another_epsilon_is_named(run: Run, tmp_path: Path, folder: Path) -> None:
    files = {"--json": str(tmp_path / "report.json"), "--html": str(tmp_path / "report.html")}
    outcome = run("pytorch.pt", *PYTORCH, *module("other_eps"), *(word for pair in files.items() for word in pair))
    assert outcome.code == 1, outcome.output
    assert outcome.out.startswith("diverged: pytorch.pt against user_models:other_eps")
    assert "norm: ε = 1e-06, at 1 node of the reference" in outcome.output
    report = json.loads(Path(files["--json"]).read_text())
    (fault,) = report["faults"]
    assert (fault["side"], fault["node"], fault["cause"]) == ("reference", NORM, "norm: ε = 1e-06")
    assert fault["command"].startswith("jax-transformer parity pytorch.pt --num-heads 3 ")
    assert fault["command"].endswith(f" --node {NORM}")
    assert "report" not in fault["command"], "a replay would write over the reports"
    assert list(report["sha256"]) == ["pytorch.pt", "user_models:other_eps, its state_dict"]
    assert report["sha256"]["pytorch.pt"] == hashlib.sha256((folder / "pytorch.pt").read_bytes()).hexdigest()
    page = Path(files["--html"]).read_text()
    assert page.startswith("<!doctype html>")
    assert NORM in page
    assert "https://" not in page, "no network"


def test_a_single_node_is_replayed(run: Run) -> None:
    outcome = run("pytorch.pt", *PYTORCH, *module("other_eps"), "--node", NORM, stages=None)
    assert outcome.code == 1, outcome.output
    assert "norm: ε = 1e-06" in outcome.output
    assert "encoder." not in outcome.out
    assert run("pytorch.pt", *PYTORCH, *module("other_eps"), "--node", "encoder.layers.0.output", stages=None).code == 0
    unseen = run(
        "pytorch.pt", *PYTORCH, *module("foreign"), "--map", "names.yaml", "--node", "encoder.positions", stages=None
    )
    assert (unseen.code, "encoder.positions can't be seen in the reference" in unseen.output) == (3, True)


def test_a_weight_that_differs(run: Run) -> None:
    outcome = run("pytorch.pt", *PYTORCH, *module("other_weight"))
    assert outcome.code == 4
    assert "first at head/kernel (weights" in outcome.output
    assert "at [4, 3]" in outcome.output


def test_a_module_that_draws_random_numbers(run: Run) -> None:
    outcome = run("pytorch.pt", *PYTORCH, *module("random_numbers"))
    assert outcome.code == 3
    assert (
        "the reference differs from itself when it is run again, first at logits: does it draw random numbers?"
        in outcome.output
    )


def test_gradients_that_amplify_rounding(run: Run, tmp_path: Path) -> None:
    """Keys that are nearly the same: what is left of the gradients to queries are the last digits of numbers that
    cancel."""
    state_dict = user_models.pytorch().state_dict()
    width = user_models.SIZES["d_model"]
    state_dict["transformer.decoder.layers.0.self_attn.in_proj_weight"][width : 2 * width] *= 1e-5
    torch.save(state_dict, tmp_path / "alike.pt")
    outcome = run(str(tmp_path / "alike.pt"), *PYTORCH, stages="gradients")
    assert outcome.code == 0, outcome.output
    assert "amplifies rounding: judged by how far the sides are from themselves" in outcome.output


# --- functions

SHORT = "weights,inputs,masks,forward,loss,gradients"


def test_a_function(run: Run) -> None:
    outcome = run("pytorch.pt", *PYTORCH, *function("function"), stages=SHORT)
    assert outcome.code == 0, outcome.output


def test_a_wrong_function(run: Run) -> None:
    outcome = run("pytorch.pt", *PYTORCH, *function("scaled_logits"), stages=SHORT)
    assert outcome.code == 4, outcome.output
    assert "unexplained, at 1 node of the candidate" in outcome.output
    assert "node logits (forward, own weights)" in outcome.output


@pytest.mark.parametrize(
    ("name", "stages", "message"),
    [
        (
            "function",
            "weights,step,decode",
            "the candidate is a function, without an optimizer: leave the stage out with --stages",
        ),
        ("narrow", "forward,loss", "the candidate gives float32 logits for float64 parameters"),
    ],
)
def test_functions_of_which_nothing_follows(name: str, stages: str, message: str, run: Run) -> None:
    outcome = run("pytorch.pt", *PYTORCH, *function(name), stages=stages)
    assert outcome.code == 3, outcome.output
    assert outcome.out.startswith("inconclusive: ")
    assert message in outcome.output


def test_a_function_without_a_trace_is_compared_by_its_logits(run: Run) -> None:
    outcome = run("pytorch.pt", *PYTORCH, *function("without_a_trace"), stages="forward")
    assert outcome.code == 0, outcome.output
    assert "✓ forward: 1 of " in " ".join(outcome.out.split())
