"""Mutants differ from their module in one function, and marked modules compute the same."""

from __future__ import annotations

import ast
import builtins
import importlib.machinery
import sys

import mutant_hook as hook
import pytest
from mutations import marked, mutants, mutated

SOURCE = '''
"""A module."""
LIMIT = 3


def first(a: int | None, b=1, *, key=True):
    """Returns something."""
    if a is None or b > LIMIT:
        raise ValueError(f"expected at most {LIMIT + 1}")
    found = []
    found.append(max(a, b))
    return sorted(found, key=lambda x: -x, reverse=not key)


class Counter:
    size: int | None = 3

    def add(self, n):
        self.n = n + 1
        for i in range(3):
            if i == 2:
                break
        return self.n
'''


def test_changes_lie_in_functions_and_not_in_messages_or_annotations() -> None:
    found = list(mutants("m", SOURCE))
    assert {mutant.function for mutant in found} == {"first", "Counter.add"}
    changes = [(mutant.line, mutant.change) for mutant in found]
    assert changes == [
        (8, "condition negated"),
        (8, "or → and"),
        (8, "Is → IsNot"),
        (8, "Gt → GtE"),
        (9, "Raise removed"),
        (11, "Expr removed"),
        (11, "first two arguments swapped"),
        (12, "argument key dropped"),
        (12, "argument reverse dropped"),
        (12, "USub left out"),
        (12, "Not left out"),
        (19, "Assign removed"),
        (19, "Add → Sub"),
        (19, "1 → 2"),
        (19, "1 → 0"),
        (20, "3 → 4"),
        (20, "3 → 2"),
        (21, "condition negated"),
        (21, "Eq → NotEq"),
        (21, "2 → 3"),
        (21, "2 → 1"),
        (22, "Break removed"),
    ]


def test_each_mutant_is_another_module_with_the_same_lines() -> None:
    texts = {ast.unparse(mutated(SOURCE, mutant.number)) for mutant in mutants("m", SOURCE)}
    assert len(texts) == len(list(mutants("m", SOURCE)))
    assert ast.unparse(ast.parse(SOURCE)) not in texts
    (broken,) = (mutant for mutant in mutants("m", SOURCE) if mutant.change == "Add → Sub")
    held: dict[str, type] = {}
    exec(compile(mutated(SOURCE, broken.number), "m.py", "exec"), held)
    assert held["Counter"]().add(5) == 4  # type: ignore[attr-defined]


def test_a_number_beyond_the_last_is_refused() -> None:
    with pytest.raises(ValueError, match="expected a change below 22"):
        mutated(SOURCE, 22)


def test_marked_functions_tell_that_they_were_called(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers: dict[str, int] = {}
    reached: set[int] = set()
    monkeypatch.setattr(builtins, "_reached_", reached, raising=False)
    held: dict[str, type] = {}
    exec(compile(marked(SOURCE, numbers), "m.py", "exec"), held)
    assert numbers == {"first": 0, "Counter.add": 1}
    assert held["Counter"]().add(5) == 6  # type: ignore[attr-defined]
    assert reached == {1}
    assert held["first"].__doc__ == "Returns something."


def test_changes_come_before_what_else_finds_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.delenv(hook.MARKS, raising=False)
    hook.install()
    sys.meta_path.insert(0, importlib.machinery.PathFinder)  # as pytest's, which rewrites assertions
    hook.install()
    assert [isinstance(finder, hook.Finder) for finder in sys.meta_path].index(True) == 0
    assert sum(isinstance(finder, hook.Finder) for finder in sys.meta_path) == 1
