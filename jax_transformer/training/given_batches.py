"""Assigns batches of the caller's own to training steps: from an iterator, or from anything that can be iterated.

A run can be resumed if the batches can say where they are: a list or another sequence by the number of the batch; an
iterator, or what it iterates over, by a pair of methods in METHODS.
"""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.positions import Table
from jax_transformer.config.run import RunConfig
from jax_transformer.data.batching import Batch
from jax_transformer.parallel.placement import RowShare
from jax_transformer.runtime.trees import nearest
from jax_transformer.training.batch_schedule import GIVEN, Position, ScheduledBatch
from jax_transformer.training.run_directory import RunError

METHODS = (("get_state", "set_state"), ("state_dict", "load_state_dict"))
"""Methods that return a state and go back to it: of Grain's iterators; of the datasets of Hugging Face and loaders of
torchdata."""
NAMES = Batch._fields
REQUIRED = NAMES[:3]
BYTES = "base64"


class GivenSchedule:
    """Assigns a batch to each step. See `Schedule`.

    An epoch is one pass over the batches. An iterator has one pass; anything else is iterated again and again. One
    batch is read ahead, to recognize the last.
    """

    def __init__(self, batches: Iterable[Any], config: RunConfig, model: TransformerConfig, share: RowShare) -> None:
        """Reads nothing yet.

        Args:
          batches: dicts, tuples or `Batch`es.
          config: the run.
          model: its model, with the sizes of the vocabularies.
          share: the rows that the devices divide.
        """
        self._batches, self._config = batches, config.train
        self._check = _Check(model, share.multiple)
        self.last_step = None if config.train.max_epochs else config.train.max_steps
        self.shapes = None
        self._is_started = False
        self._first: dict[str, Any] = {}

    @property
    def description(self) -> str:
        """Returns the line to print before the run."""
        return f"batches: the caller's own ({type(self._batches).__name__}), instead of those of the training text"

    def scheduled_from(self, step: int, position: Position) -> Iterator[ScheduledBatch]:
        """Yields the batches; see `Schedule`.

        Raises:
          RunError: the batches can't go on from `position`; there is none; the first one is wrong. A later one that is
            wrong ends the run, which is saved before it.
        """
        upcoming = self._upcoming(step, position)
        current = next(upcoming, None) if step < self._config.max_steps else None
        while current is not None:
            step += 1
            following, failure = None, ""
            if step < self._config.max_steps:
                try:
                    following = next(upcoming, None)
                except Exception as error:  # the user's iterator may raise anything
                    failure = f"{error}." if isinstance(error, RunError) else _raised(error, step + 1)
                if following is None and not failure:
                    failure = self._end_problem(step, current.position[GIVEN]["epoch"])
            yield current._replace(is_last=following is None and not failure, failure=failure)
            current = following

    def closing_lines(self, position: Position) -> list[str]:
        """Returns no lines."""
        return []

    def _upcoming(self, step: int, position: Position) -> Iterator[ScheduledBatch]:
        """Yields the batches after `position`, none of them marked as the last."""
        began = self._is_started
        self._is_started = True
        if step and GIVEN not in position:
            raise RunError(
                "batches: expected none, since the run began with the training text of its config; received "
                f"{type(self._batches).__name__}"
            )
        at = position.get(GIVEN, {"epoch": 0, "number": 0})
        epoch, number = at["epoch"], at["number"]
        reader = self._reader(step, at) if step or began else self._first_reader()
        most = self._config.max_epochs or (1 if isinstance(self._batches, Iterator) else None)
        while most is None or epoch < most:
            begun_at = number
            for item in reader:
                step, number = step + 1, number + 1
                batch = self._check.batch(item, f"batch {number}, for step {step}")
                reached = {"epoch": epoch, "number": number, **reader.state(f"batch {number}")}
                yield ScheduledBatch(batch, {GIVEN: reached}, {"epoch": epoch}, is_last=False)
            if number == begun_at == 0:
                raise RunError(
                    f"batches: expected at least one; received none from {type(self._batches).__name__}"
                    + (" in its second pass: give one that can be read again" if epoch else "")
                )
            epoch, number = epoch + 1, 0
            if most is None or epoch < most:
                reader = _Reader.open(self._batches)

    def _first_reader(self) -> _Reader:
        reader = _Reader.open(self._batches)
        if isinstance(self._batches, Iterator) and reader.owner:
            self._first = reader.state("the first")
        elif not (reader.owner or isinstance(self._batches, Sequence)):
            print("note: batches: these can't say where they are, so the run can't be resumed", flush=True)
        return reader

    def _reader(self, step: int, at: Mapping[str, Any]) -> _Reader:
        """Returns a reader of the batches after a position, to go on or to go back."""
        if not step and isinstance(self._batches, Iterator):
            at = {**at, **self._first}
        is_sequence = isinstance(self._batches, Sequence)
        knows = is_sequence or "state" in at or not (step or isinstance(self._batches, Iterator))
        reader = _Reader.open(self._batches, at) if knows else None
        if reader is None or (step and not is_sequence and reader.owner is None):
            methods = " or ".join(f"{get} and {put}" for get, put in METHODS)
            raise RunError(
                f"batches: expected ones that can say where they are, to go on after step {step}: a sequence, or an "
                f"iterator with {methods}; received {type(self._batches).__name__}. Start a new run, or give the run's "
                "batches such methods."
            )
        return reader

    def _end_problem(self, step: int, epoch: int) -> str:
        """Returns what is wrong if the batches end after this step; "" if that is the end of the run."""
        if self._config.max_epochs and epoch + 1 >= self._config.max_epochs:
            return ""
        wanted = (
            f"{self._config.max_epochs} passes (train.max_epochs)"
            if self._config.max_epochs
            else f"batches up to step {self._config.max_steps} (train.max_steps)"
        )
        return (
            f"batches: expected {wanted}; the iterator ended after step {step}. Give an iterable that can be read "
            "again, more batches, or a lower number of steps."
        )


def check_given(batches: Any, config: RunConfig, processes: int, *, is_resumed: bool) -> None:
    """Raises RunError for anything that can't be iterated over to get batches, and for runs that can't take them."""
    if isinstance(batches, (str, bytes, Mapping, Batch)) or not isinstance(batches, Iterable):
        hint = ": put it into a list" if isinstance(batches, (Mapping, Batch)) else ""
        raise RunError(
            "batches: expected an iterator or an iterable of batches (dicts, tuples or Batch); received "
            f"{type(batches).__name__}{hint}"
        )
    if processes > 1:
        raise RunError(f"batches: expected one process; received {processes}: runs of several read text alone")
    if is_resumed:
        return  # the run's own config counts
    if not (config.data.is_given or config.data.valid):
        raise RunError(
            "batches: expected a config whose data names text to validate on; received the phrasebook of the demo. Set "
            "data.valid, and give tokenizers, or set data.train, whose text trains them."
        )
    if not (config.data.is_given or config.data.source_tokenizer or config.init_from):
        raise RunError(
            "batches: expected tokenizers with data.valid alone: data.source_tokenizer and data.target_tokenizer, "
            "source_tokenizer= and target_tokenizer=, or init_from; received none. Or set data.train, to train them."
        )
    if not config.model.source_padding_is_invisible:
        raise RunError(
            "batches: expected a model whose results don't depend on the source's padding, since the lengths of the "
            "batches aren't known; received one whose results do (see encoder and cross-attention padding)"
        )


def without_training_text(config: RunConfig) -> RunConfig:
    """Returns the config of a run on given batches. Its validation text is also its training text, which nothing trains
    on, if it names none."""
    data = config.data
    if data.is_given:
        return config
    whole = dataclasses.replace(data, train=data.valid, drop_duplicates=False, drop_overlap=False)
    return dataclasses.replace(config, data=whole)


class _Reader(NamedTuple):
    """Iterates over one pass, and knows its state."""

    iterator: Iterator[Any]
    owner: Any
    """What has the methods of a state; None if nothing does."""

    @classmethod
    def open(cls, batches: Iterable[Any], at: Mapping[str, Any] | None = None) -> _Reader:
        """Begins a pass, or goes on after the position `at`."""
        if isinstance(batches, Sequence):
            start = at["number"] if at else 0
            return cls(iter(batches[index] for index in range(start, len(batches))), None)
        state = None if at is None or "state" not in at else _decoded(at["state"])
        if state is not None and not isinstance(batches, Iterator) and (methods := _methods(batches)):
            getattr(batches, methods[1])(state)  # before the pass begins, as datasets of Hugging Face want it
            return cls(iter(batches), batches)
        iterator = iter(batches)
        owner = iterator if _methods(iterator) else batches if _methods(batches) else None
        if state is not None and (methods := _methods(owner)):
            getattr(owner, methods[1])(state)
        return cls(iterator, owner)

    def __iter__(self) -> Iterator[Any]:
        return self.iterator

    def state(self, where: str) -> dict[str, Any]:
        """Returns the entry of a position, empty without methods. Raises RunError for a state that JSON can't hold."""
        if self.owner is None:
            return {}
        name, _ = _methods(self.owner)  # type: ignore[misc]
        state = getattr(self.owner, name)()
        try:
            return {"state": json.loads(json.dumps(_encoded(state)))}
        except (TypeError, ValueError) as error:
            raise RunError(
                f"batches: {where}: expected {name}() to return bytes, or values that JSON can express, to save them "
                f"with the run; received {type(state).__name__} ({error})"
            ) from None


def _methods(source: Any) -> tuple[str, str] | None:
    """Returns the names of the methods that get and set a state; None if there are none."""
    found = (pair for pair in METHODS if all(callable(getattr(source, name, None)) for name in pair))
    return next(found, None)


def _encoded(state: Any) -> Any:
    return {BYTES: base64.b64encode(state).decode()} if isinstance(state, bytes) else state


def _decoded(state: Any) -> Any:
    return base64.b64decode(state[BYTES]) if isinstance(state, dict) and state.keys() == {BYTES} else state


def _raised(error: Exception, step: int) -> str:
    """Describes an exception of the user's iterator, with the line that raised it."""
    last = error.__traceback__
    while last and last.tb_next:
        last = last.tb_next
    where = f" at {last.tb_frame.f_code.co_filename}:{last.tb_lineno}" if last else ""
    return f"batches: the batch for step {step}: the iterator raised {type(error).__name__}: {error}{where}."


class _Check:
    """Turns what a caller gives for a batch into a `Batch` of int32 arrays."""

    def __init__(self, model: TransformerConfig, multiple: int) -> None:
        self._pads = {"source": model.source_pad_id, "target": model.target_pad_id}
        self._sizes = {"source": model.source_vocab_size, "target": model.target_vocab_size}
        stacks = {"source": model.encoder, "target": model.decoder}
        self._longest = {
            side: stack.max_length if isinstance(stack.positions, Table) else None for side, stack in stacks.items()
        }
        self._multiple = multiple

    def batch(self, item: Any, where: str) -> Batch:
        """Returns the batch. Raises RunError, with its place and what is wrong, unless the model can train on it."""
        try:
            return self._batch(item)
        except ValueError as error:
            raise RunError(f"batches: {where}: {error}") from None

    def _batch(self, item: Any) -> Batch:
        arrays = {name: _integers(name, value) for name, value in _fields(item).items()}
        source, target = arrays["source_ids"], arrays["labels"]
        rows = len(source)
        for name, array in arrays.items():
            like, of = (source, "source_ids") if name.startswith("source") else (target, "labels")
            if array.shape != like.shape:
                raise ValueError(f"{name}: expected the shape of {of}, {like.shape}; received {array.shape}")
            if not array.size:
                raise ValueError(f"{name}: expected at least one row and one token; received {array.shape}")
            side = "source" if name.startswith("source") else "target"
            if name.endswith("segments"):
                _check_range(name, array, array.size, "numbers of pairs, 0 for padding", "")
                continue
            _check_range(name, array, self._sizes[side], f"ids of the {side} vocabulary", self._hint(side))
            longest = self._longest[side]
            if longest and array.shape[1] > longest:
                raise ValueError(
                    f"{name}: expected at most {longest} tokens in a row, the model's max_length; received "
                    f"{array.shape[1]}. Cut or drop long sentences."
                )
        if len(target) != rows:
            raise ValueError(f"labels: expected {rows} rows, as many as source_ids; received {len(target)}")
        if rows % self._multiple:
            raise ValueError(
                f"expected a multiple of {self._multiple} rows, which the devices and train.accumulate divide; "
                f"received {rows}. Drop the rest, or fill it up with rows of padding."
            )
        if (target == self._pads["target"]).all():
            raise ValueError(
                f"labels: expected at least one that isn't padding; received only {self._pads['target']}, the target's "
                "pad id"
            )
        return Batch(**{name: array.astype(np.int32) for name, array in arrays.items()})

    def _hint(self, side: str) -> str:
        return f"; padding is {self._pads[side]} here"


def _fields(item: Any) -> dict[str, Any]:
    """Returns the arrays of a batch by name."""
    if isinstance(item, Mapping):
        given = dict(item)
        for name in given:
            if name not in NAMES:
                raise ValueError(
                    f"expected the keys {', '.join(REQUIRED)}, and with several pairs in a row {', '.join(NAMES[3:])}; "
                    f"received {str(name)[:80]!r}{nearest(str(name), NAMES)}"
                )
    elif isinstance(item, (tuple, list)):
        if len(item) not in (len(REQUIRED), len(NAMES)):
            raise ValueError(
                f"expected {len(REQUIRED)} arrays ({', '.join(REQUIRED)}) or {len(NAMES)}; received {len(item)}"
            )
        given = dict(zip(NAMES, item, strict=False))
    else:
        raise ValueError(f"expected a dict, a tuple or a Batch; received {type(item).__name__}")
    given = {name: value for name, value in given.items() if value is not None}
    missing = [name for name in REQUIRED if name not in given]
    if len(given.keys() & set(NAMES[3:])) == 1:
        missing += [name for name in NAMES[3:] if name not in given]
    if missing:
        raise ValueError(
            f"expected {', '.join(missing)}; received {', '.join(map(str, given)) or 'nothing'}. make_batch makes all "
            "from lists of ids."
        )
    return given


def _integers(name: str, value: Any) -> np.ndarray:
    try:
        array = np.asarray(value)
    except ValueError:  # rows of different lengths
        array = np.asarray(None)
    if array.dtype.kind not in "iu" or array.ndim != 2:
        received = "rows of different lengths" if array.dtype == object else f"{array.dtype} {list(array.shape)}"
        raise ValueError(
            f"{name}: expected integers [rows, tokens], padded to one length; received {received}. make_batch pads "
            "lists of ids."
        )
    return array


def _check_range(name: str, array: np.ndarray, size: int, what: str, hint: str) -> None:
    wrong = (array < 0) | (array >= size)
    if wrong.any():
        row, column = (int(index) for index in np.argwhere(wrong)[0])
        raise ValueError(
            f"{name}: expected {what}, from 0 to {size - 1}; received {array[row, column]} at [{row}, {column}]{hint}"
        )
