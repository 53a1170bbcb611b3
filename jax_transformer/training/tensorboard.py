"""Writes metrics and samples for TensorBoard; needs only the package `tensorboard`."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from jax_transformer.training.callbacks import Callback, RunEnd, RunStart, figures
from jax_transformer.training.evaluation import Sample

DIRECTORY = "tensorboard"


class TensorBoard(Callback):
    """Writes the events of one run to RUN/tensorboard. After a resumption or a rollback, hides the events of later
    steps."""

    def on_start(self, run: RunStart) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        has_events = (run.path / DIRECTORY).is_dir()
        self._writer = EventFileWriter(str(run.path / DIRECTORY))
        if has_events:
            self._hide_after(run.step)

    def on_step(self, step: int, metrics: Mapping[str, Any]) -> None:
        self._write_figures(step, metrics)

    def on_evaluation(self, step: int, metrics: Mapping[str, Any], samples: Sequence[Sample]) -> None:
        if samples:
            self._write_samples(step, samples)
        self._write_figures(step, metrics)

    def on_nonfinite(self, step: int, details: Mapping[str, Any]) -> None:
        if details["action"] == "rollback":
            self._hide_after(step)

    def on_end(self, end: RunEnd) -> None:
        self._write_figures(end.step, end.metrics)
        self._writer.close()

    def _hide_after(self, step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        start = SessionLog(status=SessionLog.START)
        self._writer.add_event(Event(wall_time=time.time(), step=step + 1, session_log=start))

    def _write_figures(self, step: int, metrics: Mapping[str, Any]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in figures(metrics).items()]
        if values:
            self._writer.add_event(Event(wall_time=metrics["time"], step=step, summary=Summary(value=values)))
            self._writer.flush()

    def _write_samples(self, step: int, samples: Sequence[Sample]) -> None:
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
