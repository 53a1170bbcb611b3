"""Runs of several processes on a stream in parts: the batches of any number of them are the same, at any restart."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exchanging import in_processes
from test_stream_runs import library_in, pairs_of, schedule_of, sentences, small_run, write  # noqa: F401

from jax_transformer.data.exchange import Exchange, FileExchange
from jax_transformer.data.hub import StreamedPairs
from jax_transformer.data.tables import Pair
from jax_transformer.parallel.processes import Processes
from jax_transformer.training.batch_schedule import ScheduledBatch, StreamSchedule
from jax_transformer.training.joint_run import share_stream
from jax_transformer.training.run_directory import RunDirectory

VALID = 4
FILES = (VALID + 24, 20, 9, 17)
"""Pairs in each file: the parts end in different shards."""


def write_files(folder: Path) -> None:
    pairs = pairs_of(sum(FILES))
    for number, end in enumerate(np.cumsum(FILES)):
        write(folder, pairs[end - FILES[number] : end], f"train-{number}.jsonl")


@pytest.mark.parametrize("packing", [False, True])
def test_any_number_of_processes_trains_on_the_same_batches(
    tmp_path: Path, packing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They go on from any position of another number of them, too. Each part is read once a pass."""
    write_files(tmp_path / "data")
    options = {"stream_parts": 4, "stream_pairs": 32, "packing": packing}
    config = small_run(tmp_path, tmp_path / "data", options)
    schedule, corpus = schedule_of(config)
    whole = list(schedule.scheduled_from(0, {}))
    assert whole[-1].figures["stream"] == {"read": 140, "kept": 140, "empty": 0, "too_long": 0, "unequal": 0}
    if not packing:
        texts = [source for source, _ in pairs_of(sum(FILES))[VALID:]]
        expected = Counter(map(tuple, corpus.source_tokenizer.encode(texts)))
        first = [item for item in whole if item.figures["epoch"] == 0]
        assert Counter(chain(*sentences(first, corpus.source_tokenizer.pad_id))) == expected
    opened: list[str] = []
    pairs_from = StreamedPairs.pairs_from

    def opening(self: StreamedPairs, start: int) -> Iterator[Pair]:
        opened.append(self.name)
        return pairs_from(self, start)

    monkeypatch.setattr(StreamedPairs, "pairs_from", opening)
    for processes in (1, 2, 4):
        for step in (0, 3, len(whole) // 2, len(whole) - 1):
            position = json.loads(json.dumps(whole[step - 1].position)) if step else {}

            def rest_of(
                number: int, exchange: Exchange, step: int = step, position: Any = position
            ) -> list[ScheduledBatch]:
                return list(StreamSchedule(config, corpus, None, exchange).scheduled_from(step, position))

            for rest in in_processes(processes, tmp_path / "exchange", rest_of):
                assert len(rest) == len(whole) - step
                for item, other in zip(rest, whole[step:], strict=True):
                    assert all(np.array_equal(one, two) for one, two in zip(item.batch, other.batch, strict=True))
                    assert item._replace(batch=other.batch) == other
            assert len(opened) == 4 * (2 - position.get("epoch", 0))
            opened.clear()


class ThreeProcesses(Processes):
    """The first of three processes, which agrees with itself."""

    def __init__(self) -> None:
        super().__init__(0, 3)

    def agree(self, what: str, make: Callable[[], Any], seconds: float = 0.0) -> Any:
        return make()


def test_every_start_shares_its_stream_in_a_new_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """So nobody takes what a start that was killed has left for what this one publishes."""
    config = small_run(tmp_path, tmp_path / "data", {"stream_parts": 2, "stream_pairs": 30})
    run, folder = RunDirectory.create(tmp_path / "run", config), tmp_path / "run" / ".stream"
    starts = []
    for _ in range(2):
        assert isinstance(share_stream(config, run, ThreeProcesses()), FileExchange)
        (start,) = folder.iterdir()
        (start / "1-0.failed").write_text("left")
        starts.append(start)
        assert capsys.readouterr().out == (
            "warning: data.stream_parts: expected at least 3, a part for each process; received 2, so 1 read nothing "
            "and wait for the others\n"
        )
    assert starts[0] != starts[1]
    share_stream(config, run, Processes())
    assert not folder.exists(), "one process alone needs none"
    enough = small_run(tmp_path, tmp_path / "data", {"stream_parts": 3, "stream_pairs": 30})
    share_stream(enough, run, ThreeProcesses())
    assert capsys.readouterr().out == ""
    run.close()
