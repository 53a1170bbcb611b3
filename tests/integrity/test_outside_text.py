"""Text, YAML and JSON from outside that would take all memory, or all time."""

from __future__ import annotations

import gzip
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hostile import bounded_memory, failed_line, refusal, sparse

from jax_transformer.cli import main
from jax_transformer.commands.stdin_lines import arriving_lines
from jax_transformer.config.files import load_config
from jax_transformer.config.run import RunConfig
from jax_transformer.config.validation import ConfigError
from jax_transformer.data.text_files import CorpusError, iterate_lines, iterate_raw_lines
from jax_transformer.porting import NameMap
from jax_transformer.porting.hugging_face import parsed
from jax_transformer.runtime.digests import DIGESTS, changes
from jax_transformer.runtime.files import read_bytes
from jax_transformer.runtime.limits import JSON_BYTES, LIMITS, LINE_BYTES, Limit
from jax_transformer.storage.tensors import PortingError

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("read", [iterate_lines, iterate_raw_lines])
def test_a_line_without_an_end(read, tmp_path):
    path = sparse(tmp_path / "a.txt", 2**31)
    message = refusal(lambda: list(read(str(path))), CorpusError)
    assert f"{path}:1: expected at most 67,108,864 bytes in a line" in message
    assert "set JAX_TRANSFORMER_MAX_LINE_BYTES" in message


def test_the_line_is_named_and_the_limit_can_be_raised(tmp_path, monkeypatch):
    monkeypatch.setenv(LINE_BYTES.variable, "300000")
    path = tmp_path / "a.txt"
    path.write_text("a\nb\n" + "c" * 400_000 + "\nd\n")
    assert f"{path}:3: expected at most 300,000" in refusal(lambda: list(iterate_lines(str(path))))
    monkeypatch.setenv(LINE_BYTES.variable, "500000")
    assert len(list(iterate_lines(str(path)))) == 4


def test_a_line_without_an_end_on_standard_input(tmp_path, monkeypatch):
    path = sparse(tmp_path / "a.txt", 2**31)
    with path.open("rb") as file:
        assert "standard input:1: expected at most" in refusal(lambda: list(arriving_lines(file.fileno(), 8)))
    with path.open("rb") as file:
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=file))
        with bounded_memory():
            assert main(["evaluate", "--hypotheses", "-", "--target", str(path)]) == 2


@pytest.mark.parametrize("content", [b"a" * 2**20, b"\n" * 2**20], ids=["one line", "empty lines"])
def test_gzip_that_grows_a_thousand_times(content, tmp_path):
    path = tmp_path / "bomb.txt.gz"
    with gzip.open(path, "wb") as file:
        for _ in range(64):
            file.write(content)
    message = refusal(lambda: sum(1 for _ in iterate_raw_lines(str(path))), CorpusError)
    assert "expected at most 200 times the compressed bytes" in message


def test_gzip_of_repeated_text_is_read(tmp_path):
    path = tmp_path / "a.txt.gz"
    with gzip.open(path, "wb") as file:
        file.write(b"who sleeps\n" * 300_000)  # 3 MB of 10 kB
    assert sum(1 for _ in iterate_lines(str(path))) == 300_000


LAUGHS = "".join(
    f"  {name}: &{anchor} [{', '.join([value] * 9)}]\n"
    for name, anchor, value in zip(
        ("train", "valid", "test", "dataset", "source_column", "target_column", "source_tag"),
        "abcdefg",
        ("x", *(f"*{anchor}" for anchor in "abcdef")),
        strict=True,
    )
)
YAMLS = {
    "data:\n" + LAUGHS: "expected at most 200,000 values, with aliases written out; received",
    "data:\n  train: &a [*a]\n": "an alias refers to a value that contains it",
    "data: " + "[" * 20_000 + "]" * 20_000: "nested too deeply",
    "train:\n  seed: " + "9" * 10_000: ":2: train.seed: expected a value of YAML",
    "train:\n  seed: 0x" + "f" * 10_000: ":2: train.seed: expected a value of YAML",
    "train:\n  learning_rate: " + "1:" * 1000 + "1.0\n": ":2: train.learning_rate: expected a value of YAML",
    "train:\n  seed: 2001-99-99\n": ":2: train.seed: expected a value of YAML",
}


@pytest.mark.parametrize(("text", "expected"), YAMLS.items(), ids=range(len(YAMLS)))
def test_yaml_that_multiplies(text, expected, tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    message = refusal(lambda: load_config(path, RunConfig()), ConfigError)
    assert message.startswith(str(path))
    assert expected in message


def test_maps_of_names(tmp_path):
    path = tmp_path / "names.yaml"
    path.write_text("parameters: " + "[" * 20_000 + "]" * 20_000)
    assert "nested too deeply" in refusal(lambda: NameMap.read(path), PortingError)
    assert "bytes of YAML" in refusal(lambda: NameMap.parse("#" * 2**22, "a file's map"), PortingError)
    path.write_text("parameters:\n" + LAUGHS)
    assert "with aliases written out" in refusal(lambda: NameMap.read(path), PortingError)


def test_a_config_of_gigabytes(tmp_path, capsys):
    path = sparse(tmp_path / "config.yaml", 2**31)
    line = failed_line(capsys, "train", "--config", path)
    assert "expected at most 2,097,152 bytes of YAML; received 2,147,483,648" in line
    assert "bytes of YAML" in refusal(lambda: NameMap.read(path), PortingError)


def test_json_of_gigabytes(tmp_path):
    path = sparse(tmp_path / "a.json", 2**31)
    assert "bytes of JSON" in refusal(lambda: read_bytes(path, JSON_BYTES))
    assert "received 134,217,729 or more" in refusal(lambda: read_bytes("/dev/zero", JSON_BYTES))
    sparse(tmp_path / DIGESTS, 2**31)
    with bounded_memory():
        assert changes(tmp_path) == [f"{DIGESTS}: can't be read"]


def test_json_nested_too_deeply():
    assert "nested too deeply" in refusal(lambda: parsed("[" * 100_000))


@pytest.mark.parametrize("text", ["many", "-1", "0", "1" * 10_000])
def test_a_limit_that_is_no_number(text, monkeypatch):
    monkeypatch.setenv("JAX_TRANSFORMER_MAX_CATS", text)
    assert "expected a positive integer" in refusal(lambda: Limit("CATS", 3, "cats", "").check(1, "house"))


def test_the_page_lists_every_limit():
    page = (ROOT / "docs/reliability.md").read_text(encoding="utf-8")
    missing = [limit.name for limit in LIMITS if f"| `{limit.name}` | {limit.default:,} {limit.unit} |" not in page]
    assert missing == []


def test_the_tests_that_the_security_page_names_are_there():
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", (ROOT / "SECURITY.md").read_text(encoding="utf-8"))
    assert len(named) > 10
    assert [file for file, test in named if f"def {test}" not in (ROOT / file).read_text(encoding="utf-8")] == []
