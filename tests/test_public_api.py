"""The public API: names resolve, every docstring says what a reader needs, and its examples run."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jax_transformer
from jax_transformer.runtime.trees import flatten

PACKAGES = ("jax_transformer", *(f"jax_transformer.{name}" for name in jax_transformer.SUBPACKAGES))
VERB = re.compile(r"[A-Z][a-z]+(?:s|es)\b|Raised\b|Called\b")
"""A docstring opens with a verb in the third person."""
NO_VERBS = {"This", "Its", "His", "Scores", "Masks", "Positions", "Names", "Arrays", "Rules"}


def every_export() -> Iterator[tuple[str, str]]:
    for package in PACKAGES:
        for name in importlib.import_module(package).__all__:
            yield package, name


def documented() -> Iterator[Any]:
    """Every exported class and function, once."""
    seen: dict[str, Any] = {}
    for package, name in every_export():
        value = getattr(importlib.import_module(package), name)
        if inspect.isclass(value) or inspect.isfunction(value) or hasattr(value, "__wrapped__"):
            seen.setdefault(f"{value.__module__}.{name}", pytest.param(value, id=f"{value.__module__}.{name}"))
    yield from seen.values()


@pytest.mark.parametrize("package", PACKAGES)
def test_exports_are_sorted_and_listed(package: str) -> None:
    module = importlib.import_module(package)
    assert list(module.__all__) == sorted(module.__all__)
    assert {*module.__all__} <= {*dir(module)}


@pytest.mark.parametrize(("package", "name"), [*every_export()])
def test_an_export_resolves(package: str, name: str) -> None:
    module = importlib.import_module(package)
    first, second = getattr(module, name), getattr(module, name)
    assert first is second
    assert inspect.ismodule(first) == (f"{package}.{name}" in PACKAGES)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        jax_transformer.nothing  # noqa: B018


@pytest.mark.parametrize("value", [*documented()])
def test_a_docstring_opens_with_a_verb(value: Any) -> None:
    first = (inspect.getdoc(value) or "").split(maxsplit=1)[0].rstrip(",")
    assert VERB.fullmatch(first), f"opens with {first!r}"
    assert first not in NO_VERBS


@pytest.mark.usefixtures("quick_compilation")
@pytest.mark.parametrize("value", [*documented()])
def test_a_docstring_has_an_example_that_runs(value: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    public = {name: getattr(importlib.import_module(package), name) for package, name in every_export()}
    finder = doctest.DocTestFinder(recurse=False)
    (test,) = finder.find(inspect.unwrap(value), value.__name__, globs=public) or [None]
    assert test is not None, "no docstring"
    assert test.examples, "no example"
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    printed: list[str] = []
    runner.run(test, out=printed.append)
    assert runner.failures == 0, "".join(printed)


@pytest.mark.usefixtures("quick_compilation")
def test_the_training_loop_of_the_guide_leaves_the_constants_alone() -> None:
    """Twenty steps with weight decay, as docs/python.md has them: all weights move, no position table does."""
    guide = (Path(jax_transformer.__file__).parents[1] / "docs/python.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    names: dict[str, Any] = {}
    for needed in ("import jax_transformer as jt", "init_params", "import optax", "split_constants"):
        code = next(block for block in blocks if needed in block)
        if needed == "split_constants":
            before = flatten(names["params"])
        exec(code, names)
    after = flatten(names["params"])
    same = {path for path, leaf in after.items() if np.array_equal(leaf, before[path])}
    assert same == {"constants/encoder_positions", "constants/decoder_positions"}
