"""Runs that are killed and resumed end as if nothing had happened. nightly_kills.py kills more of them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from kills import Ended, Kill, arguments, kill_and_resume, undisturbed, write_text

from jax_transformer.cli import main

pytestmark = pytest.mark.usefixtures("quick_compilation")

OPTIONS = "sgd with averages"
"""Deletes a checkpoint with each that it saves."""
KILLS = (
    ("SIGKILL", "preparing"),
    ("SIGTERM", "steps"),
    ("SIGINT", "evaluation"),
    ("SIGSTOP, SIGKILL", "checkpoint"),
    ("SIGKILL", "end"),
)


def finish_here(folder: Path) -> Ended:
    """Begins or resumes the run in this process, which has imported everything."""
    return Ended(main(arguments(folder)), "", False)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing disturbs."""
    folder = tmp_path_factory.mktemp("undisturbed")
    write_text(folder)
    return undisturbed(folder / "run", OPTIONS, finish_here)


@pytest.mark.parametrize(("signal", "phase"), KILLS)
def test_a_killed_run_ends_as_if_nothing_had_happened(signal: str, phase: str, expected: Path, tmp_path: Path) -> None:
    write_text(tmp_path)
    kill = Kill(signal, phase, OPTIONS)
    done = kill_and_resume(tmp_path / "run", kill, expected, random.Random(phase), finish_here)
    assert done.was_hit
    assert done.problems == ()
