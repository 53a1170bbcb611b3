"""The exchange of blocks: all processes get all blocks, however far one is behind, and nothing is left at the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from exchanging import in_processes

from jax_transformer.data import exchange
from jax_transformer.data.encoding import SplitReport
from jax_transformer.data.exchange import Block, Exchange, FileExchange, join_blocks, load_block, save_block
from jax_transformer.data.text_files import CorpusError
from jax_transformer.data.token_pairs import PairsInMemory

Read = Callable[[int], Block]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "POLL_SECONDS", 0.01)


def block_of(number: int, count: int = 2) -> Block:
    """Returns a block whose number identifies it."""
    writer = PairsInMemory()
    if count:
        writer.append([[[number, k] for k in range(count)], [[k, number, 3] for k in range(count)]], [[], []], 0)
    names = ("read", "empty", "too_long", "unequal", "overlapping", "duplicated", "kept")
    tokens = ("source_tokens", "target_tokens", "source_unknown", "target_unknown")
    counts = {name: number + k for k, name in enumerate((*names, *tokens))}
    return Block(writer.pairs(9), SplitReport(**counts, source_length_counts=(1, number), target_length_counts=(2, 3)))


def content(block: Block) -> tuple[list[list[int]], list[list[int]], int, SplitReport]:
    sides = (block.pairs.source_sentences, block.pairs.target_sentences)
    source, target = ([ids.tolist() for ids in (side[k] for k in range(len(side)))] for side in sides)
    return source, target, block.pairs.max_length, block.report


def round_of(number: int) -> Read:
    return lambda part: block_of(100 * number + part)


@pytest.mark.parametrize("count", [0, 2])
def test_a_block_comes_back_from_its_file(tmp_path: Path, count: int) -> None:
    save_block(block_of(7, count), tmp_path / "block")
    loaded = load_block(tmp_path / "block")
    assert content(loaded) == content(block_of(7, count))
    assert loaded.pairs.source_sentences.ids.dtype == np.int32


def test_blocks_are_joined_in_their_order() -> None:
    blocks = [block_of(1), block_of(2, 0), block_of(3, 1)]
    source, target, most, report = content(join_blocks(blocks))
    assert source == [[1, 0], [1, 1], [3, 0]]
    assert target == [[0, 1, 3], [1, 1, 3], [0, 3, 3]]
    assert (most, report.read, report.target_unknown) == (9, 6, 36)
    assert (report.source_length_counts, report.target_length_counts) == ((3, 6), (6, 9))


@pytest.mark.parametrize(("processes", "parts"), [(2, 3), (3, 2), (4, 8)])
def test_all_get_the_blocks_of_all_in_the_order_of_the_parts(tmp_path: Path, processes: int, parts: int) -> None:
    """Parts that ended are asked for no more, and nobody reads another's."""

    def run(number: int, exchange: Exchange) -> list[list[object]]:
        def read(part: int) -> Block:
            assert part % processes == number
            return block_of(part + 10 * len(rounds))

        rounds: list[list[object]] = []
        for going in (range(parts), range(1, parts), [parts - 1]):
            rounds.append([content(block) for block in exchange.blocks(list(going), read)])
        return rounds

    expected = [
        [content(block_of(part + 10 * k)) for part in going]
        for k, going in enumerate((range(parts), range(1, parts), [parts - 1]))
    ]
    assert in_processes(processes, tmp_path / "shared", run) == [expected] * processes


def test_a_process_far_behind_still_finds_every_block(tmp_path: Path) -> None:
    first, second = (FileExchange(tmp_path, number, 2) for number in range(2))
    for number in range(6):
        first.blocks([0, 2], round_of(number))
    for number in range(6):
        blocks = second.blocks([0, 2], round_of(-1))
        assert [content(block) for block in blocks] == [content(block_of(100 * number + part)) for part in (0, 2)]
    assert len(list(tmp_path.glob("*.npz"))) == 12
    first.blocks([0, 2], round_of(6))
    assert sorted(path.name for path in tmp_path.glob("*.npz")) == ["7-0.npz", "7-2.npz"]


def test_the_last_to_close_removes_the_directory(tmp_path: Path) -> None:
    exchanges = [FileExchange(tmp_path / "stream" / "start", number, 3) for number in range(3)]
    for each in exchanges:
        assert (tmp_path / "stream" / "start").is_dir()
        each.close()
        each.close()
    assert list(tmp_path.iterdir()) == []


def test_all_processes_report_the_first_part_that_fails(tmp_path: Path) -> None:
    """Part 3 fails in the process that also reads part 1, before part 2 does in another; part 0 is read."""
    failed = threading.Event()

    def run(number: int, exchange: Exchange) -> str:
        def read(part: int) -> Block:
            if part == 3:
                failed.set()
                raise CorpusError("part 3")
            if part == 2:
                assert failed.wait(10)
                raise CorpusError("part 2\nis half")
            return block_of(part)

        exchange.blocks([0, 1], read)
        with pytest.raises(CorpusError) as error:
            exchange.blocks([0, 1, 2, 3, 4], read)
        return str(error.value)

    assert in_processes(2, tmp_path / "shared", run) == ["part 2\nis half"] * 2


def test_another_error_is_of_its_process_alone(tmp_path: Path) -> None:
    def read(part: int) -> Block:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        FileExchange(tmp_path, 0, 2).blocks([0, 1], read)
    assert list(tmp_path.iterdir()) == []


def test_closing_ends_waiting_and_so_does_the_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "WAIT_SECONDS", 10)
    waiting = FileExchange(tmp_path, 0, 2)
    with ThreadPoolExecutor(1) as threads:
        thread = threads.submit(waiting.blocks, [1], round_of(0))
        time.sleep(0.1)
        assert not thread.done()
        waiting.close()
        with pytest.raises(RuntimeError, match="the exchange was closed while a block was awaited"):
            thread.result(5)
    monkeypatch.setattr(exchange, "WAIT_SECONDS", 0.05)
    with pytest.raises(TimeoutError, match=r"stream: expected part 2 from process 1 within 0\.05 s; it didn't come"):
        FileExchange(tmp_path, 0, 2).blocks([1], round_of(0))
