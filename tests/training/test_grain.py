"""Runs on batches of Grain, from lists and from ArrayRecord files, stop and go on bit for bit."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_runs import rows, tiny_run

from jax_transformer.config.run import DataConfig, RunConfig
from jax_transformer.data import Shape, make_batch, prepare
from jax_transformer.runtime.trees import flatten
from jax_transformer.storage.model_directory import load_model
from jax_transformer.training.interruption import Interrupted
from jax_transformer.training.loop import train

grain = pytest.importorskip("grain", reason="needs the extra grain")
array_record = pytest.importorskip("array_record.python.array_record_module", reason="needs the extra grain")

pytestmark = pytest.mark.usefixtures("quick_compilation")

Stopped = Callable[[int], contextlib.AbstractContextManager[None]]

PAIRS = [{"en": " ".join("abc"[: number % 3 + 1]), "de": " ".join("xyz"[number % 3 :])} for number in range(12)]
SHAPE = Shape(rows=2, source_length=8, target_length=8)


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    for side in ("en", "de"):
        (tmp_path / f"valid.{side}").write_text("".join(f"{pair[side]}\n" for pair in PAIRS[:3]))
    files = (str(tmp_path / "valid.en"), str(tmp_path / "valid.de"))
    run = tiny_run(tmp_path, max_steps=6, log_every=1)
    data = DataConfig(
        train=files, valid=files, tokenizer="whitespace", max_length=32, batch_tokens=640, num_shapes=1,
        cache_dir=str(tmp_path / "cache"),
    )  # fmt: skip
    return dataclasses.replace(run, data=data)


def array_records(folder: Path) -> Any:
    """Returns a source of the pairs in two ArrayRecord files, a JSON object in each record."""
    paths = []
    for number, part in enumerate((PAIRS[:7], PAIRS[7:])):
        paths.append(str(folder / f"train-{number}.array_record"))
        writer = array_record.ArrayRecordWriter(paths[-1], "group_size:1")
        for pair in part:
            writer.write(json.dumps(pair).encode())
        writer.close()
    return grain.sources.ArrayRecordDataSource(paths)


def batches(config: RunConfig, kind: str, folder: Path) -> Any:
    """Returns what `train` takes: a pipeline of Grain, made anew as another process would."""
    corpus = prepare(config.data)

    def to_batch(pairs: list[Any]) -> Any:
        pairs = [json.loads(pair) if isinstance(pair, bytes) else pair for pair in pairs]
        return make_batch(
            corpus.source_tokenizer.encode([pair["en"] for pair in pairs]),
            corpus.target_tokenizer.encode([pair["de"] for pair in pairs]),
            bos_id=corpus.frame.start_id,
            eos_id=corpus.frame.end_id,
            source_pad_id=corpus.source_tokenizer.pad_id,
            target_pad_id=corpus.target_tokenizer.pad_id,
            shape=SHAPE,
        )

    source = PAIRS if kind == "list" else array_records(folder)
    if kind == "loader":  # whose state is bytes
        sampler = grain.samplers.IndexSampler(len(source), shuffle=True, seed=3, num_epochs=None)
        operations = [grain.transforms.Batch(2, drop_remainder=True, batch_fn=to_batch)]
        return grain.DataLoader(data_source=source, sampler=sampler, operations=operations)
    pairs = grain.MapDataset.source(source).shuffle(seed=3).repeat(None)
    if kind == "filtered":  # by the iterator, so that a position isn't the number of the batch
        return pairs.to_iter_dataset().filter(lambda pair: len(pair) % 3 > 0).batch(2, batch_fn=to_batch)
    return pairs.batch(2, drop_remainder=True, batch_fn=to_batch).to_iter_dataset()


@pytest.mark.parametrize("kind", ["list", "array_records", "filtered", "loader"])
def test_a_stopped_run_goes_on_where_its_records_were(
    config: RunConfig, tmp_path: Path, stopped_after: Stopped, kind: str
) -> None:
    whole = train(dataclasses.replace(config, run_dir=str(tmp_path / "whole")), batches=batches(config, kind, tmp_path))
    with stopped_after(3), pytest.raises(Interrupted):
        train(config, batches=batches(config, kind, tmp_path))
    resumed = train(config, resume=True, batches=batches(config, kind, tmp_path))
    assert rows(resumed.run) == rows(whole.run)
    assert len({row["loss"] for row in rows(whole.run) if "loss" in row}) == 6  # no two steps have the same batch
    received, expected = (flatten(load_model(run.model).params) for run in (resumed, whole))
    for name, leaf in expected.items():
        np.testing.assert_array_equal(received[name], leaf)
