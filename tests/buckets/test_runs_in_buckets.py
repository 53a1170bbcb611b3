"""Run directories in buckets: what is uploaded when, what a failure leaves, and which side counts."""

from __future__ import annotations

import contextlib
import itertools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import pytest
from bucket_files import fail_after

from jax_transformer.buckets import PLACE, BucketError, Mirror
from jax_transformer.config.run import RunConfig
from jax_transformer.runtime.digests import DIGESTS, changes, write_digests
from jax_transformer.training.run_directory import (
    CHECKPOINTS,
    CONFIG,
    METRICS,
    RunDirectory,
    RunError,
    check_unused,
    local_run,
)


@pytest.fixture
def run(memory: str) -> RunDirectory:
    """A new run in a bucket, with a checkpoint."""
    run = begin(memory)
    run.log({"step": 1})
    save(run, 1)
    run.upload("save")
    run.close()
    return run


OPENED: list[RunDirectory] = []


@pytest.fixture(autouse=True)
def close_runs() -> Iterator[None]:
    yield
    while OPENED:
        OPENED.pop().close()


def begin(place: str) -> RunDirectory:
    OPENED.append(RunDirectory.create(place, RunConfig()))
    return OPENED[-1]


def resume(place: str) -> RunDirectory:
    OPENED.append(RunDirectory.open(place))
    return OPENED[-1]


def save(run: RunDirectory, step: int, content: str = "") -> None:
    """Writes a checkpoint as training does: complete when it gets its name."""
    folder = run.checkpoints / f"{step}.orbax-checkpoint-tmp"
    (folder / "state").mkdir(parents=True)
    (folder / "state" / f"part{content}").write_text(f"{step}{content}")
    write_digests(folder)
    folder.rename(run.checkpoints / str(step))


def in_bucket(memory: str) -> dict[str, bytes]:
    """Returns the files of the run in the bucket, without the owner's."""
    system = fsspec.filesystem("memory")
    root = memory.removeprefix("memory:/")
    return {name.removeprefix(f"{root}/"): system.cat_file(name) for name in system.find(root) if ".owner" not in name}


def on_disk(run: RunDirectory) -> dict[str, bytes]:
    files = {path.relative_to(run.path).as_posix(): path for path in run.path.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in files.items() if name not in (".lock", ".owner")}


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], None]:
    """Changes to another machine, which has no copies."""
    numbers = itertools.count()
    return lambda: monkeypatch.setenv(PLACE, str(tmp_path / f"machine{next(numbers)}"))


def test_all_files_are_uploaded_but_unfinished_ones(run: RunDirectory, memory: str) -> None:
    (run.checkpoints / "2.orbax-checkpoint-tmp").mkdir()
    (run.checkpoints / "2.orbax-checkpoint-tmp" / "half").touch()
    (run.path / ".config.yaml.abc.tmp").touch()
    run.upload("again")
    assert in_bucket(memory).keys() == {
        *(CONFIG, METRICS),
        *(f"{CHECKPOINTS}/1/{name}" for name in (DIGESTS, "state/part")),
    }


def test_an_unchanged_file_is_not_uploaded_again(
    run: RunDirectory, memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = fail_after(0, monkeypatch)
    run.upload("nothing new")
    assert not refused
    run.log({"step": 2})
    with pytest.raises(BucketError):
        run.upload("more metrics")
    assert [Path(name).name for name in refused] == [METRICS]


def test_a_run_is_opened_on_another_machine(run: RunDirectory, memory: str, elsewhere: Callable[[], None]) -> None:
    elsewhere()
    opened = resume(memory)
    assert opened.path != run.path
    assert on_disk(opened) == on_disk(run) == in_bucket(memory)


@pytest.mark.parametrize("keeps_machine", [True, False])
def test_a_bucket_that_goes_away_loses_nothing(
    run: RunDirectory,
    memory: str,
    monkeypatch: pytest.MonkeyPatch,
    elsewhere: Callable[[], None],
    keeps_machine: bool,
) -> None:
    """At each write of a save that replaces a checkpoint by another one: what the bucket then has is a run with a whole
    checkpoint; and on the machine that wrote it, all that was saved."""
    for calls in itertools.count():
        run = resume(memory)
        for step in (1, 2):
            shutil.rmtree(run.checkpoints / str(step), ignore_errors=True)
        save(run, 1)
        run.upload("the state before")
        shutil.rmtree(run.checkpoints / "1")
        run.log({"step": 2})
        save(run, 2)
        with monkeypatch.context() as patched:
            refused = fail_after(calls, patched)
            one_line = rf"^{memory}: .*went away.*train --resume {memory}$"
            goes_away = pytest.raises(BucketError, match=one_line) if calls < 5 else contextlib.nullcontext()
            with goes_away:  # metrics, two files of the new checkpoint, and two of the old one
                run.upload("save step 2")
        run.close()
        if not keeps_machine:
            elsewhere()
        opened = resume(memory)
        steps = {path.name for path in opened.checkpoints.iterdir()}
        assert steps == {"2"} if keeps_machine or not refused else steps & {"1", "2"}
        assert all(changes(opened.checkpoints / step) == [] for step in steps)
        opened.upload("all")
        assert in_bucket(memory) == on_disk(opened)
        opened.close()
        if calls == 5:
            assert not refused
            return


def test_a_checkpoint_that_is_written_anew_is_never_mixed(
    run: RunDirectory, memory: str, monkeypatch: pytest.MonkeyPatch, elsewhere: Callable[[], None]
) -> None:
    """A run that went back writes another checkpoint under the same step."""
    shutil.rmtree(run.checkpoints / "1")
    save(run, 1, content="b")
    for calls in range(4):
        with monkeypatch.context() as patched:
            fail_after(calls, patched)
            with pytest.raises(BucketError):
                run.upload("save")
        elsewhere()
        found = local_run(memory, CHECKPOINTS) / CHECKPOINTS / "1"
        assert not (found / DIGESTS).exists() or changes(found) == []


def test_the_process_that_resumed_last_goes_on(run: RunDirectory, memory: str, elsewhere: Callable[[], None]) -> None:
    elsewhere()
    later = resume(memory)
    save(later, 2)
    later.upload("save")
    run.log({"step": 2})
    before = in_bucket(memory)
    with pytest.raises(BucketError, match="another that has resumed it; this one stops"):
        run.upload("save")
    assert in_bucket(memory) == before


def test_an_outdated_local_side_is_replaced(
    run: RunDirectory, memory: str, elsewhere: Callable[[], None], monkeypatch: pytest.MonkeyPatch, copies: Path
) -> None:
    elsewhere()
    later = resume(memory)
    save(later, 2)
    later.upload("save")
    monkeypatch.setenv(PLACE, str(copies))
    save(run, 3)
    assert on_disk(resume(memory)) == on_disk(later)


def test_an_edited_config_counts(run: RunDirectory, memory: str) -> None:
    text = in_bucket(memory)[CONFIG].replace(b"max_steps: 100000", b"max_steps: 7")
    fsspec.filesystem("memory").pipe_file(f"{memory.removeprefix('memory:/')}/{CONFIG}", text)
    opened = resume(memory)
    assert opened.config().train.max_steps == 7
    opened.upload("go on")
    assert in_bucket(memory)[CONFIG] == text


def test_a_name_in_use_is_refused(run: RunDirectory, memory: str) -> None:
    with pytest.raises(RunError, match=f"resume that run with --resume {memory}, or choose another --run-dir"):
        check_unused(memory)
    with pytest.raises(RunError, match="already in use; choose another --run-dir"):
        check_unused(f"{memory}/{CHECKPOINTS}")
    check_unused(f"{memory}2")


def test_a_run_that_isnt_there(memory: str) -> None:
    with pytest.raises(RunError, match="expected a run directory to resume; received none"):
        resume(memory)
    with pytest.raises(RunError, match="expected a run directory; received none"):
        local_run(memory)


def test_a_name_after_a_start_that_failed_is_free(memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        fail_after(1, patched)  # the owner's name alone
        with pytest.raises(BucketError):
            begin(memory)
    begin(memory)
    assert in_bucket(memory).keys() == {CONFIG}


def test_only_what_is_needed_is_downloaded(run: RunDirectory, memory: str, elsewhere: Callable[[], None]) -> None:
    elsewhere()
    assert {path.name for path in local_run(memory).iterdir()} == {CONFIG, METRICS}
    assert (local_run(memory, CHECKPOINTS) / CHECKPOINTS / "1").is_dir()


def test_names_of_mirrors_differ(memory: str) -> None:
    from jax_transformer.training.run_directory import mirror_of

    first, second = mirror_of(memory), mirror_of(f"{memory}/below")
    assert isinstance(first, Mirror)
    assert isinstance(second, Mirror)
    assert first.directory != second.directory
    assert mirror_of("runs/demo") is None
