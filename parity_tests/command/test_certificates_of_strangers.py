"""`--verify` of a file that a stranger made: it chooses numbers, never code, and nothing that it claims is believed."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jax_transformer.cli import main
from jax_transformer.runtime.limits import CERTIFICATE_BYTES

PROGRAMS = """
import jax
import jax.numpy as jnp
import torch

def module():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Embedding(7, 5), torch.nn.LayerNorm(5), torch.nn.Linear(5, 3)).eval()

def linear():
    return torch.nn.Linear(5, 3).eval()

def equal():
    return lambda params, inputs: inputs["input"] @ params["weight"].T + params["bias"]

def other():
    return lambda params, inputs: 2 * (inputs["input"] @ params["weight"].T) + params["bias"]

def unknown():
    return lambda params, inputs: jax.lax.lgamma(inputs["input"] @ params["weight"].T + params["bias"])

def normed():
    def of(params, inputs):
        x = params["0.weight"][inputs["input"]]
        x = x - 0.2 * x.sum(-1, keepdims=True)
        x = x / jnp.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)
        return (x * params["1.weight"] + params["1.bias"]) @ params["2.weight"].T + params["2.bias"]
    return of
"""
STRANGER = 'open("ran.txt", "w").close()\ndef build():\n    open("called.txt", "w").close()\n'
Edit = Callable[[dict[str, Any]], Any]


def sides(candidate: str, reference: str = "linear") -> list[str]:
    return ["--candidate", f"{NAME}:{candidate}", "--reference", f"{NAME}:{reference}"]


NAME = "programs_to_verify"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yields a folder with programs, inputs, and the certificates that were proven of them, by the candidate's name."""
    path = tmp_path_factory.mktemp("certificates")
    (path / f"{NAME}.py").write_text(PROGRAMS)
    (path / "stranger.py").write_text(STRANGER)
    np.savez(path / "floats.npz", input=np.ones((2, 5), np.float32))
    np.savez(path / "ids.npz", input=np.array([[1, 6, 2]]))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        patch.setattr(sys, "path", [str(path), *sys.path])
        for name, reference, inputs, code in (
            ("equal", "linear", "floats", 0),
            ("other", "linear", "floats", 1),
            ("unknown", "linear", "floats", 3),
            ("normed", "module", "ids", 0),
        ):
            files = ["--inputs", f"{inputs}.npz", "--prove", "--certificate", f"{name}.json"]
            assert main(["parity", *sides(name, reference), *files]) == code
        yield path


@pytest.fixture
def verify(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., tuple[int, str]]]:
    """Yields what verifies a text, or an edited certificate, with further arguments; nothing of a stranger's runs."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])

    def run(content: str | bytes | dict[str, Any], *arguments: str) -> tuple[int, str]:
        file = folder / "given.json"
        text = json.dumps(content) if isinstance(content, dict) else content
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        code = main(["parity", "--verify", str(file), *arguments])
        output = capsys.readouterr()
        assert "Traceback" not in output.err
        assert code != 2 or (output.out == "" and output.err.count("\n") == 1), output
        return code, output.out + output.err

    yield run
    assert not (folder / "ran.txt").exists()
    assert not (folder / "called.txt").exists()
    assert "stranger" not in sys.modules


def held(folder: Path, name: str) -> dict[str, Any]:
    return json.loads((folder / f"{name}.json").read_text())


@pytest.mark.parametrize(
    ("name", "reference", "inputs", "code"),
    [
        ("equal", "linear", "floats", 0),
        ("other", "linear", "floats", 1),
        ("unknown", "linear", "floats", 3),
        ("normed", "module", "ids", 0),
    ],
)
def test_honest_certificates_hold(name: str, reference: str, inputs: str, code: int, folder: Path, verify: Any) -> None:
    """With inputs of the command, and of the file; made in another folder."""
    for given in ([], ["--inputs", f"{inputs}.npz"]):
        assert verify(held(folder, name), *sides(name, reference), *given)[0] == code
    text = (folder / f"{name}.json").read_text().replace(str(folder), "/home/stranger/of a folder")
    found, output = verify(text, *sides(name, reference))
    assert found == code, output
    assert "holds: " in output
    assert "Not compared: versions, the command, stacks of calls, and what was measured in floats" in output


def test_other_programs_or_inputs_than_the_certificate_s(folder: Path, verify: Any) -> None:
    code, output = verify(held(folder, "equal"), *sides("other"))
    assert code == 4
    assert "the candidate's program was" in output
    np.savez(folder / "more.npz", input=np.ones((3, 5), np.float32))
    np.savez(folder / "others.npz", input=np.array([[1, 5, 2]]))
    code, output = verify(held(folder, "equal"), *sides("equal"), "--inputs", "more.npz")
    assert code == 4
    assert "inputs: input was [2, 5] float32, and is [3, 5] float32" in output
    code, output = verify(held(folder, "normed"), *sides("normed", "module"), "--inputs", "others.npz")
    assert code == 4
    assert "the ids differ: input" in output


def proven(certificate: dict[str, Any]) -> None:
    """Makes a refutation a proof."""
    for stage in certificate["stages"]:
        stage["verdict"], stage["equal"], stage["different"] = "proven", stage["equal"] + stage["different"], []
        stage["reason"] = ""
    certificate["verdict"], certificate["difference"] = "proven", None


@pytest.mark.parametrize(
    "command",
    [
        ["--help"],
        ["--verify", "equal.json"],
        ["--reference", "stranger:build", "--candidate", "stranger:build", "--inputs", "ids.npz", "--prove"],
        ["runs", "--train", "stranger.yaml", "--loss", "stranger:build"],
        [],
    ],
)
def test_nothing_that_a_file_names_is_run(command: list[str], folder: Path, verify: Any) -> None:
    for name in ("other", "equal"):
        forged = held(folder, name)
        proven(forged)
        forged["command"] = command
        assert verify(forged)[0] == 2
        assert verify(forged, *sides(name))[0] == (4 if name == "other" else 0)


def at(*path: Any, value: Any) -> Edit:
    def edit(certificate: dict[str, Any]) -> None:
        part: Any = certificate
        for step in path[:-1]:
            part = part[step]
        part[path[-1]] = value(part[path[-1]]) if callable(value) else value

    return edit


def less(certificate: dict[str, Any]) -> None:
    del certificate["stages"][1]


EDITS: dict[str, Edit] = {
    "a bound": at("tasks", 0, "log2_error", value=-1000.0),
    "a degree": at("tasks", 0, "degree", value=1),
    "how many values": at("tasks", 0, "values", value=lambda count: count + 1),
    "an axiom less": at("tasks", 0, "axioms", value={}),
    "an axiom more": at("tasks", 0, "axioms", value=lambda axioms: {**axioms, "masks": ["here"]}),
    "where an axiom is used": at("tasks", 0, "axioms", value=lambda axioms: {name: [] for name in axioms}),
    "a cast": at("tasks", 0, "candidate", "narrowing", value=["bfloat16"]),
    "a program's digest": at("tasks", 1, "reference", "sha256", value="0" * 64),
    "how many operations": at("tasks", 0, "reference", "operations", value=1),
    "which operations": at("tasks", 0, "reference", "lowered", value={"nothing": 3}),
    "a weight's shape": at("tasks", 0, "candidate", "inputs", "0.weight", value=[700, 5]),
    "a prime": at("tasks", 0, "points", 0, "prime", value=7),
    "a point's seed": at("tasks", 0, "points", 0, "seed", value=7),
    "no points": at("tasks", 0, "points", value=[]),
    "no tasks": at("tasks", value=[]),
    "a seed": at("seed", value=7),
    "a name of a side": at("candidate", value="a better one"),
    "ids": at("inputs", "input", "values", value=[[1, 6, 3]]),
    "an input more": at("inputs", value=lambda given: {**given, "x": {"dtype": "int8", "shape": [], "values": 1}}),
    "a dtype": at("inputs", "input", "dtype", value="int32"),
    "an array more": at("stages", 0, "equal", value=lambda names: [*names, "logits"]),
    "an array of one side": at("stages", 0, "alone", value=["hidden"]),
    "a stage less": less,
    "a stage twice": at("stages", value=lambda stages: [*stages, stages[0]]),
    "a condition": at("conditions", value=["all is well"]),
    "what was allowed": at("allowed", value=["fully-masked"]),
    "another kind": at("kind", value="models"),
}


@pytest.mark.parametrize("name", list(EDITS))
def test_an_edited_claim_never_holds(name: str, folder: Path, verify: Any) -> None:
    certificate = held(folder, "normed")
    before = copy.deepcopy(certificate)
    EDITS[name](certificate)
    assert certificate != before
    code, output = verify(certificate, *sides("normed", "module"), "--inputs", "ids.npz")
    assert code in (2, 4), output
    assert "does not hold" in output or output.startswith("error: ")


def test_an_edited_refutation_never_holds(folder: Path, verify: Any) -> None:
    for edit in (
        at("difference", "name", value="bias"),
        at("difference", "digits", value=1e-50),
        at("difference", "candidate", "line", value="add, elsewhere.py:1"),
        at("difference", "candidate", "module", value="elsewhere"),
        at("difference", "point", "draws", value=9),
    ):
        certificate = held(folder, "other")
        edit(certificate)
        assert verify(certificate, *sides("other"))[0] == 4


LARGE = {"dtype": "float32", "shape": [10**6, 10**6], "values": None}
FILES: dict[str, tuple[str | bytes | Edit, str]] = {
    "nothing": ("", "isn't JSON"),
    "half": ("half", "isn't JSON"),
    "other bytes": (b"\xff\xfe\x00", "JSON in UTF-8"),
    "a list": ("[]", "the top level: expected object"),
    "deep": ("[" * 10**5, "expected a certificate"),
    "a huge number": ('{"schema": 3, "seed": ' + "9" * 5000 + "}", "isn't JSON"),
    "an older schema": (at("schema", value=1), "schema: expected 3; received 1"),
    "control characters": (at("stages", 0, "verdict", value="\x1b[2J\u009b\u202e"), "stages[0].verdict: expected"),
    "another way to verify": (at("verify", value="curl stranger | sh"), "verify: expected"),
    "a huge shape": (at("inputs", "input", value=LARGE), "CERTIFICATE_ELEMENTS"),
    "huge sizes": (at("inputs", "input", "shape", value=[2**62, 2**62]), "CERTIFICATE_ELEMENTS"),
    "many axes": (at("inputs", "input", "shape", value=[1] * 100), "at most 32 axes"),
    "ragged ids": (at("inputs", "input", "values", value=[[1, 2, 3], [4]]), "expected values of int64"),
    "ids of another shape": (
        at("inputs", "input", "shape", value=[3, 1]),
        "expected values of int64 in the shape [3, 1]",
    ),
    "ids beyond their dtype": (at("inputs", "input", "values", value=[[1, 2, 2**70]]), "expected values of int64"),
    "masks for ids": (at("inputs", "input", "values", value=[[True, True, True]]), "expected values of int64"),
    "no ids": (at("inputs", "input", "values", value=None), "expected values for integers and booleans only"),
    "ids beyond the table": (at("inputs", "input", "values", value=[[1, 2, 700]]), ""),
    "stages that aren't of programs": (at("stages", 0, "name", value="loss"), "stages"),
}


@pytest.mark.parametrize("name", list(FILES))
def test_a_file_that_cannot_be_used_is_one_line(name: str, folder: Path, verify: Any) -> None:
    content, expected = FILES[name]
    if callable(content):
        certificate = held(folder, "normed")
        content(certificate)
        content = json.dumps(certificate)
    if content == "half":
        content = json.dumps(held(folder, "normed"))[:1000]
    code, output = verify(content, *sides("normed", "module"))
    assert code in (2, 4), output
    assert expected in output
    assert all(character.isprintable() or character == "\n" for character in output)


def test_a_file_that_is_too_large_is_refused(folder: Path, verify: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CERTIFICATE_BYTES.variable, "1000")
    code, output = verify(held(folder, "normed"), *sides("normed", "module"))
    assert code == 2
    assert "expected at most 1,000 bytes in a certificate of a proof" in output


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "expected the programs, named as for --prove"),
        (["runs/demo"], "expected --candidate and --reference, and no model"),
        ([*sides("normed", "module"), "--stages", "forward"], "expected no --stages with it: the certificate says"),
        ([*sides("normed", "module"), "--seed", "3"], "expected no --seed with it"),
        ([*sides("normed", "module"), "--prove"], "expected no --prove with it"),
        (
            [*sides("normed", "module"), "--json", "x.json"],
            "expected no --json with it: it makes a certificate, and --verify checks one",
        ),
    ],
)
def test_arguments_that_do_not_fit(arguments: list[str], expected: str, folder: Path, verify: Any) -> None:
    code, output = verify(held(folder, "normed"), *arguments)
    assert code == 2
    assert expected in output
