"""Runs on a streamed corpus: resuming is bit for bit the same; every pair is trained on once per epoch; unknown numbers
are reported as unknown."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.run import DataConfig, RunConfig, TrainConfig
from jax_transformer.data import streaming
from jax_transformer.data.corpus import CorpusError
from jax_transformer.data.hub import StreamedPairs, Unreachable
from jax_transformer.data.preparation import PreparedCorpus, prepare
from jax_transformer.data.tables import Pair
from jax_transformer.training.batch_schedule import ScheduledBatch, StreamSchedule
from jax_transformer.training.interruption import Interrupted
from jax_transformer.training.loop import describe_run, train
from jax_transformer.training.run_directory import RunError
from jax_transformer.training.trainer import TrainingResult

pytestmark = pytest.mark.usefixtures("quick_compilation")

TIMINGS = {"seconds", "tokens_per_second", "compile_seconds", "programs", "time", "data_seconds", "goodput"}
TIMINGS |= {"run_seconds", "mfu"}
TRAIN, VALID, SHARD = 70, 4, 30
"""Three shards per epoch, the last of 10 pairs."""
EPOCH = 10
"""Batches per epoch: 4, 4 and 2, of 8 rows."""


@pytest.fixture(autouse=True, scope="module")
def library_in(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Makes the library cache under tmp_path and stay offline, and skips the waits between attempts."""
    import datasets
    import huggingface_hub.constants

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("library"))
        patch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
        patch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
        patch.setattr(streaming, "RETRY_SECONDS", (0.0,))
        yield


def pairs_of(count: int) -> list[Pair]:
    draws = random.Random(0)
    words = [[str(number), *(f"w{draws.randrange(9)}" for _ in range(draws.randrange(5)))] for number in range(count)]
    return [(" ".join(sentence), " ".join(sentence[::-1])) for sentence in words]


def write(folder: Path, pairs: list[Pair], name: str = "train.jsonl") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("".join(json.dumps({"en": source, "de": target}) + "\n" for source, target in pairs))


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text") / "data"
    write(folder, pairs_of(VALID + TRAIN))
    return folder


StoppedAfter = Callable[[int], contextlib.AbstractContextManager[None]]


def small_run(folder: Path, dataset: Path, data: dict[str, Any] | None = None, **options: Any) -> RunConfig:
    """Two epochs of ten steps, dropout in every place, a checkpoint every five steps."""
    return RunConfig(
        model=TransformerConfig(
            d_model=16, num_heads=2, d_ff=24, num_encoder_layers=1, num_decoder_layers=1, max_length=8, dropout_rate=0.2
        ),
        data=DataConfig(
            **{
                "dataset": str(dataset),
                "source_language": "en",
                "target_language": "de",
                "streaming": True,
                "stream_pairs": SHARD,
                "valid_pairs": VALID,
                "max_length": 8,
                "batch_tokens": 56,
                "num_shapes": 1,
                "tokenizer": "whitespace",
                "max_unknown": 1.0,
                "cache_dir": str(folder / "cache"),
            }
            | (data or {})
        ),
        train=TrainConfig(
            schedule="constant",
            learning_rate=3e-3,
            warmup_steps=5,
            log_every=1,
            evaluate_sentences=0,
            **{"max_steps": 1000, "max_epochs": 2, "evaluate_every": 5} | options,
        ),
        run_dir=str(folder / "run"),
    )


def metrics(run: Path) -> list[dict[str, Any]]:
    lines = (run / "metrics.jsonl").read_text().split("\n")[:-1]  # the last line may be half written
    return [{key: value for key, value in json.loads(line).items() if key not in TIMINGS} for line in lines]


def parameters(run: Path) -> bytes:
    return (run / "model" / "params.safetensors").read_bytes()


def schedule_of(config: RunConfig) -> tuple[StreamSchedule, PreparedCorpus]:
    corpus = prepare(config.data)
    return StreamSchedule(config, corpus), corpus


def sentences(items: list[ScheduledBatch], pad_id: int) -> list[list[tuple[int, ...]]]:
    """The sources of each batch, as ids."""
    rows = [[tuple(row[row != pad_id].tolist()) for row in item.batch.source_ids] for item in items]
    return [[row for row in batch if row] for batch in rows]


@pytest.fixture(scope="module")
def unbroken(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainingResult:
    return train(small_run(tmp_path_factory.mktemp("unbroken"), dataset))


def test_a_run_ends_with_its_epochs(unbroken: TrainingResult) -> None:
    lines = [line for line in metrics(unbroken.run) if "loss" in line]
    assert [line["step"] for line in lines] == list(range(1, 2 * EPOCH + 1))
    assert [line["epoch"] for line in lines] == [0] * EPOCH + [1] * EPOCH
    assert [line["step"] for line in metrics(unbroken.run) if "valid_loss" in line] == [5, 10, 15, 20]
    assert lines[-1]["stream"] == {"read": 140, "kept": 140, "empty": 0, "too_long": 0, "unequal": 0}
    assert [line["stream"]["read"] for line in lines[:9]] == [30] * 4 + [60] * 4 + [70], "a shard is read whole"


@pytest.mark.parametrize("steps", [2, 4])
def test_a_run_that_was_stopped_again_and_again_ends_the_same(
    unbroken: TrainingResult, dataset: Path, tmp_path: Path, stopped_after: StoppedAfter, steps: int
) -> None:
    """The stops are at the ends of shards and within them; step 10 also ends an epoch."""
    config = small_run(tmp_path, dataset)
    stops: list[int] = []
    while True:
        with stopped_after(steps if len(stops) < 4 else 10**5):  # more stops would cost more time
            try:
                result = train(RunConfig(run_dir=config.run_dir) if stops else config, resume=bool(stops))
                break
            except Interrupted as stopped:
                stops.append(stopped.step)
    assert stops == [k * steps for k in range(1, 5)]
    assert metrics(result.run) == metrics(unbroken.run)
    assert parameters(result.run) == parameters(unbroken.run)


@pytest.mark.parametrize("packing", [False, True])
def test_from_every_position_the_same_batches_follow(dataset: Path, tmp_path: Path, packing: bool) -> None:
    schedule, _ = schedule_of(small_run(tmp_path, dataset, {"packing": packing}))
    whole = list(schedule.scheduled_from(0, {}))
    assert packing or len(whole) == 2 * EPOCH
    assert [item.is_last for item in whole] == [False] * (len(whole) - 1) + [True]
    for step in range(1, len(whole) + 1):
        position = json.loads(json.dumps(whole[step - 1].position))
        rest = list(schedule.scheduled_from(step, position))
        assert len(rest) == len(whole) - step
        for item, other in zip(rest, whole[step:], strict=True):
            assert all(np.array_equal(one, two) for one, two in zip(item.batch, other.batch, strict=True))
            assert item._replace(batch=other.batch) == other


def test_every_pair_comes_once_an_epoch_shuffled_anew(dataset: Path, tmp_path: Path) -> None:
    schedule, corpus = schedule_of(small_run(tmp_path, dataset))
    batches = sentences(list(schedule.scheduled_from(0, {})), corpus.source_tokenizer.pad_id)
    expected = Counter(
        map(tuple, corpus.source_tokenizer.encode([source for source, _ in pairs_of(VALID + TRAIN)[VALID:]]))
    )
    first, second = batches[:EPOCH], batches[EPOCH:]
    for epoch in (first, second):
        assert Counter(row for batch in epoch for row in batch) == expected
    assert first != second
    assert sorted(row for batch in first[:4] for row in batch) == sorted(
        row for batch in second[:4] for row in batch
    ), "within a shard"
    other, _ = schedule_of(small_run(tmp_path, dataset, seed=1))
    assert sentences(list(other.scheduled_from(0, {})), corpus.source_tokenizer.pad_id)[:EPOCH] != first


def test_packed_shards_have_every_pair_once(dataset: Path, tmp_path: Path) -> None:
    schedule, corpus = schedule_of(small_run(tmp_path, dataset, {"packing": True}, max_epochs=1))
    items = list(schedule.scheduled_from(0, {}))
    sources = [
        tuple(ids[segments == number].tolist())
        for item in items
        for ids, segments in zip(item.batch.source_ids, item.batch.source_segments, strict=True)  # type: ignore[arg-type]
        for number in range(1, segments.max() + 1)
    ]
    expected = corpus.source_tokenizer.encode([source for source, _ in pairs_of(VALID + TRAIN)[VALID:]])
    assert Counter(sources) == Counter(map(tuple, expected))
    assert len(items) < EPOCH
    assert schedule.pairs_per_row is not None
    assert schedule.pairs_per_row > 1.2


def test_shards_are_shuffled_each_in_its_own_way(tmp_path: Path) -> None:
    """The same text twice tests the seed: without it, equal lengths would give equal plans."""
    write(tmp_path / "data", [*pairs_of(VALID), *pairs_of(SHARD), *pairs_of(SHARD)])
    schedule, corpus = schedule_of(small_run(tmp_path, tmp_path / "data", max_epochs=1))
    batches = sentences(list(schedule.scheduled_from(0, {})), corpus.source_tokenizer.pad_id)
    assert sorted(chain(*batches[:4])) == sorted(chain(*batches[4:]))
    assert batches[:4] != batches[4:]


def test_pairs_longer_than_any_of_the_first_shard_are_trained_on(tmp_path: Path) -> None:
    pairs = pairs_of(VALID + TRAIN)
    pairs[VALID + 40] = ("l o n g e s t", "l o n g e s t")  # 8 positions on both sides
    pairs[VALID + 41] = ("t o o l o n g !", "1")
    pairs[VALID + 42] = ("", "2")
    write(tmp_path / "data", pairs)
    schedule, corpus = schedule_of(small_run(tmp_path, tmp_path / "data", max_epochs=1))
    assert max(shape.source_length for shape in schedule.shapes[:-1]) < 8
    items = list(schedule.scheduled_from(0, {}))
    rows = [row for batch in sentences(items, corpus.source_tokenizer.pad_id) for row in batch]
    assert len(rows) == TRAIN - 2
    assert tuple(corpus.source_tokenizer.encode(["l o n g e s t"])[0]) in rows
    assert items[-1].figures["stream"] == {"read": 70, "kept": 68, "empty": 1, "too_long": 1, "unequal": 0}
    lines = schedule.closing_lines(items[-1].position)
    assert lines[0].startswith("train: 70 pairs read, 68 kept; ")
    assert lines[1:] == [
        "train: 1 pairs with an empty side dropped",
        "train: 1 pairs with a side over max_length=8 tokens dropped",
        "train: 6 pairs with a side of mostly unknown tokens kept",
    ]


def test_dropped_pairs_are_reported_at_the_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pairs = pairs_of(VALID + TRAIN)
    pairs[-1] = ("", "nothing")
    write(tmp_path / "data", pairs)
    train(small_run(tmp_path, tmp_path / "data", max_epochs=1, evaluate_every=1000))
    output = capsys.readouterr().out
    assert "batches: unknown per epoch" in output
    assert "train: 70 pairs read, 69 kept" in output
    assert "train: 1 pairs with an empty side dropped" in output


def test_steps_bound_a_run_over_any_number_of_epochs(dataset: Path, tmp_path: Path) -> None:
    schedule, _ = schedule_of(small_run(tmp_path, dataset, max_epochs=0, max_steps=33))
    assert schedule.last_step == 33
    items = list(schedule.scheduled_from(0, {}))
    assert [item.figures["epoch"] for item in items] == [0] * 10 + [1] * 10 + [2] * 10 + [3] * 3
    assert [step for step, item in enumerate(items, start=1) if item.is_last] == [33]
    assert list(schedule.scheduled_from(33, items[-1].position)) == []


def test_a_dry_run_names_unknown_numbers(dataset: Path, tmp_path: Path) -> None:
    lines = list(describe_run(small_run(tmp_path, dataset)))
    assert "unknown batches per epoch; unknown steps, unknown epochs" in lines
    lines = list(describe_run(small_run(tmp_path, dataset, max_epochs=0)))
    assert "unknown batches per epoch; 1,000 steps, unknown epochs" in lines


def test_a_stream_that_breaks_off_leaves_a_run_that_goes_on(
    unbroken: TrainingResult, dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seven of the eight batches of two shards are trained on: the eighth waits until it is known whether it is the
    last."""
    config = small_run(tmp_path, dataset)
    prepare(config.data)
    whole = StreamedPairs.pairs_from

    def pairs_from(self: StreamedPairs, start: int) -> Iterator[Pair]:
        for number, pair in enumerate(whole(self, start), start=start):
            if number == VALID + 65:
                raise Unreachable("dataset: expected more; received ConnectionError.")
            yield pair

    with monkeypatch.context() as patch:
        patch.setattr(StreamedPairs, "pairs_from", pairs_from)
        with pytest.raises(RunError) as error:
            train(config)
        assert str(error.value) == (
            "dataset: expected more; received ConnectionError. The run is saved at step 8; "
            f"resume with: jax-transformer train --resume {config.run_dir}"
        )
        with pytest.raises(CorpusError, match="received ConnectionError"):  # it is still away
            train(RunConfig(run_dir=config.run_dir), resume=True)
    result = train(RunConfig(run_dir=config.run_dir), resume=True)
    assert metrics(result.run) == metrics(unbroken.run)
    assert parameters(result.run) == parameters(unbroken.run)


def test_a_stream_that_is_another_now_is_refused(tmp_path: Path, stopped_after: StoppedAfter) -> None:
    write(tmp_path / "data", pairs_of(VALID + TRAIN))
    config = small_run(tmp_path, tmp_path / "data")
    with stopped_after(4), pytest.raises(Interrupted):
        train(config)
    write(tmp_path / "data", pairs_of(VALID + TRAIN)[::-1])
    with pytest.raises(RunError, match=r"expected the text, .* that this run began with"):
        train(RunConfig(run_dir=config.run_dir), resume=True)
    schedule, _ = schedule_of(config)
    with pytest.raises(CorpusError, match="expected version abc, with which the run began; received "):
        next(schedule.scheduled_from(2, {"epoch": 0, "start": 0, "batches": 2, "revision": "abc"}))


def test_a_stream_without_a_usable_pair_is_no_endless_run(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule, _ = schedule_of(small_run(tmp_path, dataset, max_epochs=0))
    monkeypatch.setattr(
        StreamedPairs, "pairs_from", lambda self, start: iter([("", "nothing")] * 40 if start < 40 else [])
    )
    with pytest.raises(
        CorpusError, match="expected usable training pairs after the first 0; received none in a whole pass"
    ):
        list(schedule.scheduled_from(0, {}))


def test_no_more_than_the_next_shard_is_read_ahead(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_run(tmp_path, dataset, {"stream_pairs": 10})
    schedule, _ = schedule_of(config)
    whole = StreamedPairs.pairs_from
    read = 0

    def pairs_from(self: StreamedPairs, start: int) -> Iterator[Pair]:
        nonlocal read
        for pair in whole(self, start):
            read += 1
            yield pair

    monkeypatch.setattr(StreamedPairs, "pairs_from", pairs_from)
    items = schedule.scheduled_from(0, {})
    for step in range(1, 5):  # two steps a shard
        item = next(items)
        time.sleep(0.1)  # time enough to read everything
        begun = item.position["start"] // 10 + 1 + (step % 2 == 0)  # the batch after it is made already
        assert begun * 10 <= read <= (begun + 1) * 10
    items.close()  # type: ignore[attr-defined]


def test_the_same_seed_gives_the_same_run(unbroken: TrainingResult, dataset: Path, tmp_path: Path) -> None:
    config = small_run(tmp_path, dataset, max_steps=3)
    again = train(config)
    assert metrics(again.run)[:3] == [line for line in metrics(unbroken.run) if "loss" in line][:3]
    other = train(
        dataclasses.replace(config, train=dataclasses.replace(config.train, seed=1), run_dir=str(tmp_path / "other"))
    )
    assert metrics(other.run)[:3] != metrics(again.run)[:3]
