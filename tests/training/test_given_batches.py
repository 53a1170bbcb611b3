"""Batches of the caller's own: all kinds train alike, runs resume where batches can say where they are, and what is
wrong with a batch is said in one line."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from tiny_runs import rows, tiny_run

from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.run import DataConfig, RunConfig
from jax_transformer.data import prepare
from jax_transformer.data.batching import Batch, make_batch, pack_batch
from jax_transformer.parallel.mesh import make_mesh
from jax_transformer.parallel.placement import RowShare
from jax_transformer.storage.model_directory import load_model
from jax_transformer.training.batch_schedule import ScheduledBatch
from jax_transformer.training.given_batches import GivenSchedule, check_given
from jax_transformer.training.loop import train
from jax_transformer.training.run_directory import RunError

pytestmark = pytest.mark.usefixtures("quick_compilation")
MODEL = TransformerConfig(
    source_vocab_size=9, target_vocab_size=8, d_model=8, num_heads=2, d_ff=8, num_encoder_layers=1,
    num_decoder_layers=1, max_length=12,
)  # fmt: skip


def numbered(number: int) -> Batch:
    """A batch that its first source id numbers."""
    return make_batch([[4 + number % 5, 5, 3], [6, 3]], [[4, 5 + number % 3], [6]])


class Counting:
    """An iterator that says where it is."""

    def __init__(self, names: tuple[str, str] = ("get_state", "set_state"), wrap: Any = lambda number: number) -> None:
        self.number = 0
        setattr(self, names[0], lambda: wrap(self.number))
        setattr(self, names[1], self._go)

    def _go(self, state: Any) -> None:
        self.number = state["at"] if isinstance(state, dict) else int(state)

    def __iter__(self) -> Counting:
        return self

    def __next__(self) -> Batch:
        self.number += 1
        return numbered(self.number - 1)


class Passes:
    """An iterable whose iterators say where they are, as Grain's datasets."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[Batch]:
        iterator = Counting()
        take = itertools.takewhile(lambda _: iterator.number <= self.count, iterator)
        return _WithState(take, iterator)


class _WithState:
    def __init__(self, items: Iterator[Batch], iterator: Counting) -> None:
        self._items, self.get_state, self.set_state = items, iterator.get_state, iterator.set_state  # type: ignore[attr-defined]

    def __iter__(self) -> _WithState:
        return self

    def __next__(self) -> Batch:
        return next(self._items)


def schedule(batches: Any, *, multiple: int = 1, **options: Any) -> GivenSchedule:
    config = tiny_run(Path("nowhere"), **options)
    return GivenSchedule(batches, config, MODEL, RowShare(make_mesh(), multiple))


def numbers(scheduled: list[ScheduledBatch]) -> list[int]:
    return [int(each.batch.source_ids[0, 0]) - 4 for each in scheduled]


# --- what batches may be


@pytest.mark.parametrize(
    "kind",
    [
        lambda batch: batch,
        lambda batch: batch[:3],
        lambda batch: list(batch[:3]),
        lambda batch: {name: value for name, value in batch._asdict().items() if value is not None},
        lambda batch: {name: value.tolist() for name, value in batch._asdict().items() if value is not None},
        lambda batch: Batch(*(value.astype(np.uint8) for value in batch[:3])),
        lambda batch: {name: jax.numpy.asarray(value) for name, value in batch._asdict().items() if value is not None},
    ],
)
def test_all_kinds_of_batches_are_the_same(kind: Any) -> None:
    found = list(schedule([kind(numbered(3))], max_steps=1).scheduled_from(0, {}))
    (only,) = found
    assert only.is_last
    for received, expected in zip(only.batch[:3], numbered(3)[:3], strict=True):
        np.testing.assert_array_equal(received, expected)
        assert received.dtype == np.int32


def test_packed_batches_keep_their_segments() -> None:
    packed = pack_batch([[4, 3], [5, 3]], [[4], [5]])
    (only,) = schedule([packed._asdict()], max_steps=1).scheduled_from(0, {})
    np.testing.assert_array_equal(only.batch.source_segments, packed.source_segments)


def test_an_iterable_is_read_again_and_again() -> None:
    found = list(schedule([numbered(0), numbered(1)], max_steps=5).scheduled_from(0, {}))
    assert numbers(found) == [0, 1, 0, 1, 0]
    assert [each.figures["epoch"] for each in found] == [0, 0, 1, 1, 2]
    assert [each.is_last for each in found] == [False] * 4 + [True]


def test_epochs_end_a_run() -> None:
    found = list(schedule(Passes(2), max_steps=9, max_epochs=2).scheduled_from(0, {}))
    assert numbers(found) == [0, 1, 0, 1]
    assert (found[-1].is_last, found[-1].failure) == (True, "")


def test_no_batch_is_read_beyond_the_last_step() -> None:
    batches = Counting()
    assert len(list(schedule(batches, max_steps=3).scheduled_from(0, {}))) == 3
    assert batches.number == 3


# --- going on


@pytest.mark.parametrize(
    "make",
    [
        Counting,
        lambda: Counting(("state_dict", "load_state_dict")),
        lambda: Counting(wrap=lambda number: {"at": number}),
        lambda: Counting(wrap=lambda number: str(number).encode()),
        lambda: [numbered(number) for number in range(4)],
        lambda: Passes(4),
    ],
)
def test_batches_go_on_where_they_were(make: Any) -> None:
    """After any step, though one more batch was read ahead; also in the second pass."""
    whole = list(schedule(make(), max_steps=6).scheduled_from(0, {}))
    for step in range(1, 6):
        rest = schedule(make(), max_steps=6).scheduled_from(step, whole[step - 1].position)
        assert numbers(list(rest)) == numbers(whole)[step:]


def test_a_run_may_go_back_to_its_start() -> None:
    given = schedule(Counting(), max_steps=3)
    first = numbers(list(given.scheduled_from(0, {})))
    assert numbers(list(given.scheduled_from(0, {}))) == first == [0, 1, 2]


def test_batches_that_cannot_say_where_they_are_do_not_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    given = schedule((numbered(number) for number in range(9)), max_steps=6)
    position = next(given.scheduled_from(0, {})).position
    assert "can't be resumed" in capsys.readouterr().out
    for step in (1, 0):
        with pytest.raises(RunError, match=f"to go on after step {step}: a sequence, or an iterator with get_state"):
            next(given.scheduled_from(step, position if step else {}))


def test_a_run_on_text_does_not_go_on_with_batches() -> None:
    with pytest.raises(RunError, match="batches: expected none, since the run began with the training text"):
        next(schedule([numbered(0)]).scheduled_from(2, {}))


# --- mistakes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": None}, "expected labels; received source_ids, decoder_input_ids"),
        ({"input_ids": [[1]]}, "received 'input_ids'"),
        ({"source_segments": [[1, 1, 1], [1, 1, 0]]}, "expected target_segments; received"),
        (
            {"source_ids": [[4.0, 5.0], [1.0, 2.0]]},
            r"source_ids: expected integers \[rows, tokens\], .*received float64",
        ),
        ({"source_ids": [4, 5]}, r"source_ids: expected integers .*received int64 \[2\]"),
        ({"source_ids": [[4, 5], [6]]}, "source_ids: expected integers .*received rows of different lengths"),
        ({"source_ids": [[True, False], [True, True]]}, "received bool"),
        ({"source_ids": [[4, 9, 3], [6, 3, 0]]}, r"ids of the source vocabulary, from 0 to 8; received 9 at \[0, 1\]"),
        (
            {"labels": [[4, 5, 3], [6, -100, 0]]},
            r"labels: .* from 0 to 7; received -100 at \[1, 1\]; padding is 0 here",
        ),
        ({"labels": [[4, 5], [6, 3]]}, r"decoder_input_ids: expected the shape of labels, \(2, 2\); received \(2, 3\)"),
        ({"source_ids": [[4, 3]]}, "labels: expected 1 rows, as many as source_ids; received 2"),
        ({"labels": [[0] * 3] * 2}, "labels: expected at least one that isn't padding"),
        ({"source_ids": [[4] * 13] * 2}, "source_ids: expected at most 12 tokens in a row, the model's max_length"),
        ({"source_ids": np.zeros((0, 3), int)}, "expected at least one row and one token"),
    ],
)
def test_a_wrong_batch_gives_one_line(changes: dict[str, Any], message: str) -> None:
    """At once if it is the first; later it ends the run, which is saved before it."""
    wrong = {**{name: value for name, value in numbered(0)._asdict().items() if value is not None}, **changes}
    with pytest.raises(RunError, match=f"^batches: batch 1, for step 1: .*{message}") as caught:
        next(schedule([wrong]).scheduled_from(0, {}))
    assert "\n" not in str(caught.value)
    (only,) = schedule([numbered(0), wrong]).scheduled_from(0, {})
    assert not only.is_last
    assert only.failure.startswith("batches: batch 2, for step 2: ")


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (([[1]], [[2]]), "expected 3 arrays .* or 5; received 2"),
        ("abc", "expected a dict, a tuple or a Batch; received str"),
        (None, "received NoneType"),
    ],
)
def test_other_things_are_no_batches(item: Any, message: str) -> None:
    with pytest.raises(RunError, match=message):
        next(schedule([item]).scheduled_from(0, {}))


def test_devices_divide_the_rows() -> None:
    with pytest.raises(RunError, match=r"expected a multiple of 4 rows, .* received 2"):
        next(schedule([numbered(0)], multiple=4).scheduled_from(0, {}))


def test_an_iterator_that_ends_early_fails() -> None:
    found = list(schedule(iter([numbered(0), numbered(1)]), max_steps=5).scheduled_from(0, {}))
    assert [each.is_last for each in found] == [False, False]
    assert found[-1].failure.startswith(
        "batches: expected batches up to step 5 (train.max_steps); the iterator ended after step 2."
    )


def test_an_exception_of_the_iterator_is_told_with_its_line() -> None:
    def broken() -> Iterator[Batch]:
        yield numbered(0)
        raise OSError("the disk is gone")

    (only,) = schedule(broken()).scheduled_from(0, {})
    assert only.failure.startswith("batches: the batch for step 2: the iterator raised OSError: the disk is gone at ")
    assert "test_given_batches.py:" in only.failure


def test_no_batches_at_all() -> None:
    with pytest.raises(RunError, match="expected at least one; received none from list"):
        next(schedule([]).scheduled_from(0, {}))
    with pytest.raises(RunError, match="JSON can express"):
        next(schedule(Counting(wrap=lambda number: object())).scheduled_from(0, {}))


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        (numbered(0), "received Batch: put it into a list"),
        ({"source_ids": [[1]]}, "received dict: put it into a list"),
        (7, "expected an iterator or an iterable of batches .*; received int"),
    ],
)
def test_other_things_hold_no_batches(batches: Any, message: str) -> None:
    with pytest.raises(RunError, match=message):
        check_given(batches, RunConfig(), 1, is_resumed=True)


def test_runs_that_take_no_batches() -> None:
    with pytest.raises(RunError, match="expected one process; received 2"):
        check_given([], RunConfig(), 2, is_resumed=True)
    with pytest.raises(RunError, match=r"received the phrasebook of the demo. Set data.valid, and give tokenizers"):
        check_given([], RunConfig(), 1, is_resumed=False)
    with pytest.raises(RunError, match=r"expected tokenizers with data.valid alone: .* received none"):
        check_given([], RunConfig(data=DataConfig(valid=("a.en", "a.de"))), 1, is_resumed=False)


# --- a run


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    for name, text in (("a.en", "a b c\nb c\nc a\n"), ("a.de", "x y z\ny z\nz x\n")):
        (tmp_path / name).write_text(text)
    files = (str(tmp_path / "a.en"), str(tmp_path / "a.de"))
    run = tiny_run(tmp_path, max_steps=4)
    data = DataConfig(
        train=files, valid=files, tokenizer="whitespace", max_length=32, batch_tokens=640, num_shapes=1,
        cache_dir=str(tmp_path / "cache"),
    )  # fmt: skip
    return RunConfig(model=run.model, data=data, train=run.train, run_dir=run.run_dir)


def test_a_run_on_batches_is_resumed_bit_for_bit(
    config: RunConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whole; and stopped by an iterator that ends, then resumed with a longer one. Text doesn't take its place."""
    import dataclasses

    run = Path(config.run_dir)
    whole = dataclasses.replace(config, run_dir=str(tmp_path / "whole"))
    train(whole, batches=[small(number) for number in range(4)])
    assert "batches: the caller's own (list)" in capsys.readouterr().out
    with pytest.raises(RunError, match=r"batch 4, for step 4: labels: .*\. The run is saved at step 3; if the"):
        train(config, batches=[*(small(number) for number in range(3)), {**small(3)._asdict(), "labels": [[99, 0]]}])
    with pytest.raises(ValueError, match=r"this run trains on batches that its caller gives: .*batches=…"):
        train(config, resume=True)
    train(config, resume=True, batches=[small(number) for number in range(4)])
    assert [row for row in rows(run) if "loss" in row][-1] == [
        row for row in rows(tmp_path / "whole") if "loss" in row
    ][-1]
    one, other = load_model(run).params, load_model(tmp_path / "whole").params
    jax.tree.map(np.testing.assert_array_equal, one, other)


def test_tokenizers_and_batches_need_no_training_text(config: RunConfig, tmp_path: Path) -> None:
    """Also where no text may be in two splits; and the run is resumed."""
    import dataclasses

    trained = prepare(config.data)
    vocabulary = {}
    for side in ("source", "target"):
        vocabulary[f"{side}_tokenizer"] = str(tmp_path / f"{side}.json")
        Path(vocabulary[f"{side}_tokenizer"]).write_text(getattr(trained, f"{side}_tokenizer").to_json())
    data = dataclasses.replace(config.data, train=(), drop_overlap=True, tokenizers_as_stored=True, **vocabulary)
    without = dataclasses.replace(config, data=data, run_dir=str(tmp_path / "without"))
    batches = [small(number) for number in range(4)]
    train(config, batches=batches)
    with pytest.raises(RunError, match="batch 3, for step 3"):
        train(without, batches=[*batches[:2], None])
    train(without, resume=True, batches=batches)
    assert rows(tmp_path / "without")[-1] == rows(Path(config.run_dir))[-1]
    with pytest.raises(ValueError, match="train: expected training files along with valid or test files"):
        train(dataclasses.replace(without, run_dir=str(tmp_path / "other")))


def small(number: int) -> Batch:
    return make_batch([[4 + number % 3, 3]], [[4 + number % 3]])
