"""Metrics and samples for TensorBoard, written with the package `tensorboard` alone."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jax_transformer.training.evaluation import Sample

DIRECTORY = "tensorboard"
WALL_TIME = "time"


class MissingTensorBoard(ValueError):
    """Raised when train.tensorboard is set and the package isn't installed."""


def require_tensorboard() -> None:
    """Raises MissingTensorBoard if the package isn't installed; cheap, since it imports nothing."""
    if importlib.util.find_spec("tensorboard") is None:
        raise MissingTensorBoard(
            "train.tensorboard: expected the package tensorboard; received an environment without it; "
            "install it (pip install 'jax-transformer[tensorboard]') or leave train.tensorboard out"
        )


class EventLog:
    """Writes the events of one run to RUN/tensorboard. For a resumed run, it hides the events after `step`, which the
    run repeats.
    """

    def __init__(self, run: Path, step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        is_resumed = (run / DIRECTORY).is_dir()
        self._writer = EventFileWriter(str(run / DIRECTORY))
        if is_resumed:
            start = SessionLog(status=SessionLog.START)
            self._writer.add_event(Event(wall_time=time.time(), step=step + 1, session_log=start))

    def record(self, record: dict[str, Any]) -> None:
        """Writes the numbers of a metrics line: valid_loss as valid/loss, loss as train/loss, {"test": {"bleu": …}} as
        test/bleu."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars(record).items()]
        if values:
            self._writer.add_event(
                Event(wall_time=record[WALL_TIME], step=record["step"], summary=Summary(value=values))
            )
            self._writer.flush()

    def samples(self, step: int, samples: Sequence[Sample]) -> None:
        """Writes source, reference and translation of each sample as text."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
        from tensorboard.compat.proto.types_pb2 import DT_STRING

        metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
        shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
        values = []
        for number, sample in enumerate(samples, 1):
            text = (
                f"    source      {sample.source}\n    reference   {sample.reference}\n"
                f"    translation {sample.translation}"
            )
            tensor = TensorProto(dtype=DT_STRING, string_val=[text.encode()], tensor_shape=shape)
            values.append(Summary.Value(tag=f"samples/{number}", metadata=metadata, tensor=tensor))
        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def scalars(record: dict[str, Any]) -> dict[str, float]:
    """Returns the numbers of a record by TensorBoard tag, grouped by split."""
    found: dict[str, float] = {}
    for key, value in record.items():
        if isinstance(value, dict):
            found |= {f"{key}/{name}": number for name, number in value.items() if _is_number(number)}
        elif _is_number(value) and key not in ("step", "model_step", WALL_TIME):
            found[f"valid/{key.removeprefix('valid_')}" if key.startswith("valid_") else f"train/{key}"] = value
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
