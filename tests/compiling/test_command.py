"""`jax-transformer compile` in processes of its own: for a CPU and, where the compilers are installed, TPU and GPU."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ONE_LAYER = [
    "demo", "--model.num-encoder-layers", "1", "--model.num-decoder-layers", "1", "--vocabulary", "512", "--rows", "16",
    "--model.compute-dtype", "bfloat16",
]  # fmt: skip
COMPILERS = {"tpu": ("libtpu", "tpu:v5e:2x2"), "nvidia": ("jax_cuda12_plugin", "nvidia:h100:4")}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the command as a shell would, without what the tests set for JAX."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_P", "JAX_N", "XLA_"))}
    command = [sys.executable, "-m", "jax_transformer.cli", "compile", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)


def compiled(target: str, tmp_path: Path, *arguments: str) -> dict[str, Any]:
    """Returns the JSON report of a program that fits."""
    file = tmp_path / "report.json"
    result = run(*ONE_LAYER, "--target", target, "--json", str(file), *arguments)
    assert result.returncode == 0, result.stderr[-2000:]
    assert result.stderr == ""
    report: dict[str, Any] = json.loads(file.read_text())
    return report


@pytest.fixture(params=COMPILERS)
def target(request: pytest.FixtureRequest) -> str:
    package, name = COMPILERS[request.param]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"needs XLA's compiler: pip install 'jax-transformer[compile-{request.param}]'")
    return name


def test_a_cpu(tmp_path: Path) -> None:
    report = compiled("cpu:4", tmp_path, "--parallel.fsdp", "2", "--program", "train")
    assert (report["devices"], report["mesh"]) == (4, "4 × cpu (data 2, fsdp 2, tensor 1)")
    assert report["roofline"] is None
    assert {one["group"] for one in report["collectives"]} >= {2}


def test_a_step_in_shards_on_devices_that_are_not_here(target: str, tmp_path: Path) -> None:
    report = compiled(target, tmp_path, "--parallel.fsdp", "2", "--parallel.tensor", "2")
    assert report["fits"]
    assert 1.0 <= report["flops_ratio"] < 1.05
    assert report["roofline_seconds"] >= report["roofline"]["compute"] > 0
    kinds = {one["kind"] for one in report["collectives"]}
    assert {"all-gather", "all-reduce"} <= kinds


def test_attention_in_blocks_on_devices_that_are_not_here(target: str, tmp_path: Path) -> None:
    """A model has two products of all queries and keys forwards and four backwards. The kernels compute two forwards,
    three for the queries' gradient and four for the keys' and values'; rematerialisation runs none of them twice."""
    lengths = ["--source-length", "512", "--target-length", "512", "--model.max-length", "512"]
    report = compiled(target, tmp_path, *lengths, "--parallel.fsdp", "2", "--parallel.tensor", "2")
    assert report["fits"]
    product = 2 * 16 * 512 * 512 * 128 / report["devices"]
    more = (report["program_flops"] - report["model_flops"]) / product
    assert more == pytest.approx(3 * 3, abs=1)  # of three attentions


def test_a_search_on_devices_that_are_not_here(target: str, tmp_path: Path) -> None:
    report = compiled(target, tmp_path, "--program", "decode", "--beam-size", "2", "--parallel.tensor", "4")
    assert report["fits"]
    assert report["bound"] in ("memory", "network")


def test_programs_that_do_not_fit(target: str) -> None:
    """Weights, moments and gradients of 8.6 billion parameters on each device."""
    result = run(*ONE_LAYER, "--target", target, "--model.d-model", "8192", "--model.d-ff", "262144")
    assert (result.returncode, result.stderr) == (1, "")
    assert result.stdout.splitlines()[-1].startswith("doesn't fit: ")


@pytest.mark.parametrize("target", ["tpu"], indirect=True)
def test_a_single_chip(target: str, tmp_path: Path) -> None:
    report = compiled("tpu:v5e:1x1", tmp_path, "--program", "evaluate")
    assert (report["devices"], report["collectives"]) == (1, [])


@pytest.mark.parametrize("target", ["tpu"], indirect=True)
def test_a_chip_holds_no_second_copy_of_the_weights(target: str, tmp_path: Path) -> None:
    """With few tokens, a step's temporaries are its gradients. A copy of the kernels in bfloat16 would add half of
    that, less what fits in the chip's own memory."""
    wide = ["--model.d-model", "512", "--model.d-ff", "16384", "--rows", "2"]
    lengths = ["--source-length", "8", "--target-length", "8"]
    layers = ["--model.num-encoder-layers", "4", "--model.num-decoder-layers", "4"]
    report = compiled("tpu:v5e:1x1", tmp_path, *wide, *lengths, *layers)
    weights = report["arguments"] / 3  # and Adam's two moments
    assert report["temporaries"] < 1.1 * weights


@pytest.mark.parametrize("target", ["tpu"], indirect=True)
def test_two_slices(target: str, tmp_path: Path) -> None:
    """Data parallelism runs between the slices; what is sent within one stays there."""
    report = compiled(f"{target}:2", tmp_path, "--parallel.fsdp", "2", "--parallel.tensor", "2")
    assert report["mesh"] == "8 × TPU v5 lite (data 2, fsdp 2, tensor 2)"
    assert {one["group"] for one in report["collectives"] if one["kind"] == "all-gather"} == {2}
    refused = run(*ONE_LAYER, "--target", f"{target}:2", "--parallel.fsdp", "8")
    assert refused.returncode == 2
    assert "parallel.data: expected a multiple of 2, the number of slices" in refused.stderr


@pytest.mark.parametrize("target", ["tpu"], indirect=True)
def test_a_topology_that_does_not_exist(target: str) -> None:
    result = run(*ONE_LAYER, "--target", "tpu:v5e:3x7")
    assert result.returncode == 2
    assert "its compiler doesn't know this topology" in result.stderr


@pytest.mark.parametrize("platform", COMPILERS)
def test_a_compiler_that_is_not_installed(platform: str) -> None:
    package, name = COMPILERS[platform]
    if importlib.util.find_spec(package) is not None:
        pytest.skip("it is installed")
    result = run(*ONE_LAYER, "--target", name)
    assert result.returncode == 2
    assert f"pip install 'jax-transformer[compile-{platform}]'" in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "expected --target, one such as tpu:v5e:4x4"),
        (["--target", "tpu:v9:2x2"], "expected tpu: and one of v5e, v5p, v6e"),
        (["--target", "cpu:4", "--parallel.fsdp", "3"], "whose product is a divisor of 4"),
        (["--target", "cpu:4", "--rows", "6"], "rows: expected a multiple of 4"),
        (["--target", "cpu:2", "--parallel.tensor", "2", "--model.num-heads", "1"], "num_heads"),
        (["--target", "cpu", "--json", "/nowhere/report.json"], "/nowhere"),
    ],
)
def test_mistakes(arguments: list[str], message: str) -> None:
    result = run("demo", *arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert result.stderr.startswith("error: ")
