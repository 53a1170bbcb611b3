"""`verify` names every file that isn't as it was written."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from jax_transformer.cli import main
from jax_transformer.integrity import verify
from jax_transformer.storage.model_directory import load_model
from jax_transformer.storage.tensor_files import write_tensors
from jax_transformer.training.loop import train
from jax_transformer.training.run_directory import RunError
from tests.training.tiny_runs import tiny_run

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    return train(tiny_run(folder, evaluate_sentences=2)).run


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of the run, whose data cache it shares."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 4
    file.write_bytes(content)


def damaged(path: Path) -> list[str]:
    return [str(finding) for finding in verify(path) if not finding.is_whole]


def test_a_whole_run_is_whole(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(run)]) == 0
    output = capsys.readouterr().out.splitlines()
    kinds = {re.search(r" \((.*)\)$", line)[1] for line in output}  # type: ignore[index]
    assert kinds == {"run's file", "checkpoint", "model", "corpus"}
    assert all(line.startswith("✓ ") for line in output)
    assert main(["verify", "--quiet", str(run)]) == 0
    assert capsys.readouterr().out == ""


def test_every_file_of_checkpoints_and_model_is_verified(run: Path) -> None:
    files = [path for name in ("checkpoints", "model") for path in (run / name).rglob("*") if path.is_file()]
    assert len(files) > 30
    for file in files:
        whole = file.read_bytes()
        flip(file)
        (line,) = damaged(run)
        assert line.startswith("✗ ")
        assert file.name in line or file.name == "digests.json", "whose entries name others"
        file.write_bytes(whole)
    assert damaged(run) == []


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("metrics.jsonl", "[1]\n{}\n", r"line 1: no record; line 2: no record"),
        ("samples.jsonl", "}\n", "line 1: no record"),
        ("data.json", "[]", "no JSON object"),
        ("parameters.json", "{", r"no JSON \(.*\)"),
        ("config.yaml", "modle: {}", ".*unknown field 'modle'.*"),
    ],
)
def test_other_files_of_a_run_are_read(
    run: Path, name: str, content: str, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / name).write_text(content, encoding="utf-8")
    assert main(["verify", str(run)]) == 1
    assert re.search(rf"^✗ {re.escape(str(run / name))} \(run's file\): {problem}$", capsys.readouterr().out, re.M)


def test_every_file_of_a_cache_is_verified(trained: Path, tmp_path: Path) -> None:
    cache = Path(shutil.copytree(trained.parent / "cache", tmp_path / "cache"))
    (entry,) = cache.iterdir()
    for other in ("building-0", "xla-x86_64-0", "buckets"):
        (cache / other).mkdir()
    for path in (cache, entry):
        assert [finding.kind for finding in verify(path)] == ["corpus"]
    for file in sorted(entry.iterdir()):
        whole = file.read_bytes()
        file.write_bytes(whole + b"x")
        assert [file.name in line for line in damaged(cache)] == [True], file
        file.write_bytes(whole)


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
@pytest.mark.parametrize("harm", [lambda data: data[: len(data) // 2], lambda data: bytes(len(data))])
def test_a_file_of_tensors_is_read(run: Path, tmp_path: Path, suffix: str, harm: Callable[[bytes], bytes]) -> None:
    file = tmp_path / f"weights{suffix}"
    write_tensors(file, {"a": load_model(run).params["head"]["kernel"]})
    assert damaged(file) == []
    file.write_bytes(harm(file.read_bytes()))
    (line,) = damaged(file)
    assert line.startswith(f"✗ {file} (file of tensors): ")


def test_unverifiable_directories_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path, what in (("nothing", "none"), (".", "a directory of another kind")):
        with pytest.raises(RunError, match=f"expected a run, a model directory, .*; received {what}$"):
            verify(tmp_path / path)
    assert main(["verify"]) == 2
    assert "expected a path or more; received none" in capsys.readouterr().err
