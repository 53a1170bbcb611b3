"""Reads W&B's offline files: records of its own protobuf messages, in the log format of LevelDB."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BLOCK, HEADER = 32768, 7
"""Bytes of a block, and of the header of the file and of each piece of a record."""
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


@dataclass
class OfflineRun:
    """Holds the content of one offline file."""

    id: str = ""
    project: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    exit_code: int | None = None


def offline_runs(run: Path) -> list[OfflineRun]:
    """Returns the offline runs of a run directory, the oldest first, once W&B's own process has written their ends."""
    files = sorted((run / "wandb").glob("offline-run-*/run-*.wandb"), key=lambda file: file.stat().st_ctime_ns)
    deadline = time.monotonic() + 60
    while True:
        found = [_read(file) for file in files]
        if all(each.exit_code is not None for each in found) or time.monotonic() > deadline:
            return found
        time.sleep(0.05)


def _read(file: Path) -> OfflineRun:
    from wandb.proto import wandb_internal_pb2

    def values(items: Any) -> dict[str, Any]:
        return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}

    found = OfflineRun()
    for data in _records(file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            found.id, found.project = record.run.run_id, record.run.project
            found.config |= values(record.run.config.update)
        elif kind == "history":
            found.history.append(values(record.history.item))
        elif kind == "summary":
            found.summary |= values(record.summary.update)
        elif kind == "exit":
            found.exit_code = record.exit.exit_code
    return found


def _records(content: bytes) -> Iterator[bytes]:
    """Yields the records; a last one that a killed process left in half isn't one."""
    assert content[:4] == b":W&B"
    at, pieces = HEADER, b""
    while at + HEADER <= len(content):
        if BLOCK - at % BLOCK < HEADER:
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", content[at : at + HEADER])
        at += HEADER
        pieces += content[at : at + length]
        at += length
        if kind in (FULL, LAST):
            yield pieces
            pieces = b""
        elif kind == 0:
            return
