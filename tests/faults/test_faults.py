"""A call on a file that fails is reported in one line, or does no harm; `run_faults.py` tries all calls."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import chdir

import pytest
from faults import ACCEPTED, FAULTS, Call, Laboratory, Outcome, Server, build_shim, first_and_last
from operations import OPERATIONS, make_model

pytestmark = [
    pytest.mark.usefixtures("quick_compilation"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler is installed"),
]
KINDS = ("read", "write", "rename", "close")
"""One fault of each kind on each file is tried here."""


@pytest.fixture(scope="module")
def laboratories(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Laboratory]]:
    folder = tmp_path_factory.mktemp("faults")
    needs = folder / "needs"
    needs.mkdir()
    with chdir(needs):
        make_model(needs)
    server = Server(build_shim(folder), {})
    tried = [operation for operation in OPERATIONS if operation.name in ("port", "export", "translate", "train")]
    yield {operation.name: Laboratory(server, operation, needs, folder) for operation in tried}
    server.close()


def some_faults(calls: list[Call]) -> list[tuple[Call, str]]:
    """Returns a fault of each kind of call, another one on each file."""
    chosen = [call for call in first_and_last(calls) if call.kind in KINDS]
    return [(call, [*FAULTS[call.kind]][number % len(FAULTS[call.kind])]) for number, call in enumerate(chosen)]


@pytest.mark.parametrize("name", ["port", "export", "translate"])
def test_a_fault_is_reported_or_does_no_harm(laboratories: dict[str, Laboratory], name: str) -> None:
    laboratory = laboratories[name]
    found = {(call.kind, call.path, fault): laboratory.inject(call, FAULTS[call.kind][fault])
             for call, fault in some_faults(laboratory.calls)}  # fmt: skip
    assert len(found) > 10
    assert {case: finding for case, finding in found.items() if finding.outcome not in ACCEPTED} == {}
    assert all(finding.fell_on for finding in found.values())
    assert {finding.outcome for finding in found.values()} == {Outcome.RIGHT, Outcome.REPORTED}


def test_a_warm_process_does_what_a_process_of_its_own_does(laboratories: dict[str, Laboratory]) -> None:
    laboratory = laboratories["translate"]
    faults = some_faults(laboratory.calls)[::3]
    own, warm = (
        [each.inject(call, FAULTS[call.kind][fault]).outcome for call, fault in faults]
        for each in (laboratory, laboratory.warmed())
    )
    assert own == warm
    assert Outcome.REPORTED in own


@pytest.mark.nightly
def test_a_checkpoint_that_cannot_be_written_ends_the_run_at_once(laboratories: dict[str, Laboratory]) -> None:
    """In Orbax's threads, and while the directory is made, for which they wait."""
    laboratory = laboratories["train"]
    of_second = [call for call in laboratory.calls if call.path.startswith("run/checkpoints/4.")]
    for kind, ending in (("mkdir", "/default.orbax-checkpoint-tmp"), ("fsync", "/d")):
        call = next(call for call in of_second if call.kind == kind and call.path.endswith(ending))
        finding = laboratory.inject(call, errno.ENOSPC)
        assert finding.outcome == Outcome.REPORTED, finding
        assert "expected to write a checkpoint; received No space left on device" in finding.detail
