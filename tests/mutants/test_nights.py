"""The tests that wait for the night leave nothing of the package uncalled, and are there."""

from __future__ import annotations

from pathlib import Path

from nights import Timed, waiting, with_shared_setups

ROOT = Path(__file__).parents[2]


def case(name: str, seconds: float, *reach: int) -> Timed:
    return Timed(name, seconds, frozenset(reach))


def names(tests: list[Timed]) -> list[str]:
    return [test.name for test in tests]


def test_of_slow_parametrisations_the_quickest_runs_with_every_change() -> None:
    slow = [case(f"f[{number}]", 0.3 - 0.01 * number, 1) for number in range(3)]
    quick = [case(f"q[{number}]", 0.1, 1) for number in range(6)]
    assert names(waiting([*slow, *quick, case("alone", 0.3)], [])) == ["f[0]", "f[1]"]


def test_long_tests_wait() -> None:
    tests = [case("long", 30.0, 1), case("slow", 0.3, 1), case("other", 20.0, 2)]
    assert names(waiting(tests, [])) == ["long"]
    assert names(waiting(tests, ["long"])) == []


def test_what_tests_share_counts_for_each_of_them() -> None:
    """Or the first one, which paid for it, would wait, and the next would pay instead."""

    def sharing(file: str, count: int, setup: float) -> list[Timed]:
        setups = [setup, *[0.0] * (count - 1)]
        return [
            Timed(f"{file}::f{i}", 0.1 + paid, frozenset({1}), paid, frozenset("x")) for i, paid in enumerate(setups)
        ]

    tests = [*sharing("a.py", 3, 30.0), *sharing("b.py", 90, 3.0)]
    assert names(waiting(with_shared_setups(tests), [])) == ["a.py::f0", "a.py::f1", "a.py::f2"]
    assert names(waiting(tests, [])) == ["a.py::f0", "b.py::f0"]


def test_what_killed_a_change_stays() -> None:
    assert names(waiting([case(f"f[{number}]", 0.3) for number in range(4)], ["f[1]"])) == ["f[2]", "f[3]"]


def test_what_reads_the_source_stays() -> None:
    assert names(waiting([case("tests/test_imports.py::test_no_modules_import_each_other", 3.0)], [])) == []


def test_what_calls_a_function_that_no_other_test_calls_stays() -> None:
    tests = [case(f"f[{number}]", 0.3, 1) for number in range(3)]
    tests += [case("g[0]", 0.3, 1), case("g[1]", 9.0, 2, 3), case("g[2]", 0.3, 1), case("g[3]", 0.3, 2)]
    assert names(waiting(tests, [])) == ["f[1]", "f[2]", "g[2]"]
    assert names(waiting([*tests, case("g[4]", 0.3, 3)], [])) == ["f[1]", "f[2]", "g[1]", "g[2]"]


def test_the_tests_that_wait_are_there() -> None:
    listed = (ROOT / "tests/mutants/nightly.txt").read_text("utf-8").splitlines()
    assert listed == sorted(set(listed))
    for name in {name.partition("[")[0] for name in listed}:
        path, *_, function = name.split("::")
        assert f"def {function}(" in (ROOT / path).read_text("utf-8"), name
