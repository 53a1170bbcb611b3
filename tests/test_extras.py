"""Packages that only some features need: which extra installs each, and one line where it is missing."""

from __future__ import annotations

import importlib.util
import re
import sys
import tomllib
from pathlib import Path

import pytest

from jax_transformer.cli import main
from jax_transformer.data.tokenizers import SpecialIds, train_tokenizer
from jax_transformer.data.tokenizers.sentencepiece_model import read_sentencepiece
from jax_transformer.proof.certificate import Certificate
from jax_transformer.runtime.extras import EXTRAS, MissingPackage, explain, require

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
IMPORTED_AS = {"orbax-checkpoint": "orbax", "pyyaml": "yaml", "prometheus-client": "prometheus_client"}
"""Distribution → the name of its package, where they differ by more than the case."""


def packages(requirements: list[str]) -> set[str]:
    """Returns the packages that requirements such as "numpy>=2.0" install, by the names of their imports."""
    names = {re.split(r"[^\w-]", requirement)[0].replace("_", "-") for requirement in requirements}
    return {IMPORTED_AS.get(name, name) for name in names}


def test_each_extra_installs_the_packages_that_name_it() -> None:
    optional = PROJECT["optional-dependencies"]
    listed = {package: extra for package, extra in EXTRAS.items() if package in packages(optional[extra])}
    assert listed == EXTRAS
    assert "jsonschema" not in packages(PROJECT["dependencies"])


def test_the_extra_dev_holds_all_that_tests_use() -> None:
    dev = " ".join(PROJECT["optional-dependencies"]["dev"])
    named = set(re.findall(r"[\w-]+", " ".join(re.findall(r"\[([\w,-]+)\]", dev))))
    assert set(EXTRAS.values()) <= named


def block(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides an installed package from imports."""
    monkeypatch.setitem(sys.modules, package, None)


def last_line(extra: str, package: str, use: str) -> str:
    return (
        f"error: {use}: expected the package {package}, which isn't installed: pip install 'jax-transformer[{extra}]'\n"
    )


@pytest.mark.parametrize(
    ("package", "command", "use"),
    [
        ("matplotlib", "plot positions -o {folder}/positions.png", "plot positions"),
        ("pyarrow", "train tiny --data.train {folder}/a.parquet --data.valid {folder}/a.parquet", "{folder}/a.parquet"),
        ("datasets", "train tiny --data.dataset {folder}", "dataset {folder}"),
        ("datasets", "train tiny --data.dataset {folder} --data.streaming", "dataset {folder}"),
        (
            "sentencepiece",
            "train tiny --data.tokenizer unigram --data.train {folder}/a.tsv --data.valid {folder}/b.tsv",
            "tokenizer unigram",
        ),
        ("fastapi", "serve {folder}", "serve"),
        ("uvicorn", "serve {folder}", "serve"),
        ("tensorboard", "train demo --train.tensorboard", "train.tensorboard"),
        ("wandb", "train demo --train.wandb-project p", "train.wandb_project"),
    ],
)
def test_a_command_names_the_extra_of_a_missing_package(
    package: str,
    command: str,
    use: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    block(package, monkeypatch)
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    (tmp_path / "a.tsv").write_text("source\ttarget\n" + "".join(f"a {n}\tein {n}\n" for n in range(100)))
    (tmp_path / "b.tsv").write_text("source\ttarget\nno\tnein\n")
    words = command.format(folder=tmp_path).split()
    if words[0] == "train":
        words += ["--data.cache-dir", str(tmp_path / "cache"), "--run-dir", str(tmp_path / "run")]
    assert main(words) == 2
    assert capsys.readouterr().err.endswith(last_line(EXTRAS[package], package, use.format(folder=tmp_path)))


def test_a_page_of_attention_needs_no_matplotlib(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    block("matplotlib", monkeypatch)
    assert main(["plot", "attention", str(tmp_path / "none"), "A sentence.", "-o", str(tmp_path / "page.html")]) == 2
    error = capsys.readouterr().err
    assert "matplotlib" not in error
    assert str(tmp_path / "none") in error


def test_an_import_that_fails_anywhere_in_a_command_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    block("torch", monkeypatch)
    monkeypatch.setattr("jax_transformer.cli.COMMANDS", {"parity": lambda arguments: __import__("torch.nn") and 0})
    assert main(["parity"]) == 2
    assert capsys.readouterr().err == last_line("parity", "torch", "parity")


def test_a_users_module_that_imports_a_missing_package_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    block("torch", monkeypatch)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "module_of_mine.py").write_text("import torch\n")
    assert main(["parity", "model", "--reference", "module_of_mine:build"]) == 2
    assert capsys.readouterr().err == last_line("parity", "torch", "--reference module_of_mine:build")


def test_only_missing_packages_are_explained_by_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    assert explain(ImportError("libtorch.so: bad", name="torch"), "parity") == "libtorch.so: bad"
    assert explain(ModuleNotFoundError("No module named 'other'", name="other"), "parity") == "No module named 'other'"
    assert explain(ImportError("cannot import name 'a' from 'b'"), "parity") == "cannot import name 'a' from 'b'"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None)
    assert explain(ModuleNotFoundError("No module named 'torch'", name="torch.nn"), "parity").startswith("parity: exp")


def test_functions_raise_a_kind_of_import_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("sentencepiece", "jsonschema"):
        block(package, monkeypatch)
    with pytest.raises(MissingPackage, match=r"\[sentencepiece\]"):
        read_sentencepiece(b"")
    with pytest.raises(MissingPackage, match=r"tokenizer unigram: .*\[sentencepiece\]"):
        train_tokenizer(["a b"], kind="unigram", specials=SpecialIds(0, 1, 2, 3), vocab_size=20)
    with pytest.raises(MissingPackage, match=r"certificate: .*\[parity\]"):
        Certificate.from_json("{}", "some.json")
    with pytest.raises(ImportError, match=r"some_use: .*\[parity\]"):
        require("jsonschema", "some_use")
