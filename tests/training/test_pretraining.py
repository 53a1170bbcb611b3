"""Runs that pretrain on plain text: their batches resume bit for bit, come from streams too, and mix corpora."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jax_transformer.config.data import CorpusConfig, DataConfig
from jax_transformer.config.presets import get_preset
from jax_transformer.config.run import RunConfig, TrainConfig
from jax_transformer.data import prepare
from jax_transformer.data.batching import Batch
from jax_transformer.data.token_pairs import Sentences, TokenPairs
from jax_transformer.training.batch_schedule import make_batch_schedule, mixture_weights

WORDS = ("the a dog cat runs sleeps sees in on house tree big small red blue and").split()  # noqa: SIM905


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files of plain text."""
    folder, random = tmp_path_factory.mktemp("plain"), np.random.default_rng(0)
    for name, count in (("text.txt", 120), ("other.txt", 30)):
        lines = [" ".join(random.choice(WORDS, random.integers(2, 12))) for _ in range(count)]
        (folder / name).write_text("\n".join(lines) + "\n")
    return folder


def config_of(folder: Path, **options: Any) -> DataConfig:
    given: dict[str, Any] = {
        "objective": "span-corruption", "train": (str(folder / "text.txt"),), "valid_pairs": 5,
        "tokenizer": "whitespace", "joint_vocabulary": True, "max_length": 24, "batch_tokens": 96,
        "cache_dir": str(folder / "cache"),
    }  # fmt: skip
    return DataConfig(**given | options)


def run_of(data: DataConfig) -> RunConfig:
    return RunConfig(data=data, train=TrainConfig(max_steps=40, evaluate_sentences=0))


def same(first: Batch, second: Batch) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize(
    "options", [{"join_lines": True, "packing": True}, {"objective": "ul2"}], ids=["packed", "ul2"]
)
def test_batches_resume_bit_for_bit(options: dict[str, Any], folder: Path) -> None:
    run = run_of(config_of(folder, **options))
    corpus = prepare(run.data)
    whole = [scheduled.batch for scheduled in make_batch_schedule(run, corpus).scheduled_from(0, {})]
    again = [scheduled.batch for scheduled in make_batch_schedule(run, corpus).scheduled_from(17, {})]
    assert len(again) == len(whole) - 17
    assert all(map(same, whole[17:], again))
    epoch = make_batch_schedule(run, corpus).batches_per_epoch
    assert epoch is not None
    assert not any(same(batch, other) for batch, other in zip(whole, whole[epoch:], strict=False))


def test_a_line_of_text_is_both_sides_of_a_validation_pair(folder: Path) -> None:
    corpus = prepare(config_of(folder))
    valid = corpus.splits["valid"]
    assert len(valid) == 5
    assert valid.source_texts() == valid.target_texts()
    sentinels = corpus.source_tokenizer.sentinel_ids
    assert all(set(sentinels) & set(valid.source(index).tolist()) for index in range(5))


def test_streams_resume_bit_for_bit(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    (tmp_path / "text").mkdir()
    lines = (folder / "text.txt").read_text().splitlines()
    rows = "".join(f'{{"text": "{line}"}}\n' for line in lines)
    (tmp_path / "text" / "train.jsonl").write_text(rows)
    data = config_of(
        folder, train=(), dataset=str(tmp_path / "text"), source_column="text", target_column="text", streaming=True,
        stream_pairs=40, join_lines=True,
    )  # fmt: skip
    run = run_of(data)
    corpus = prepare(data)
    whole = list(islice(make_batch_schedule(run, corpus).scheduled_from(0, {}), 14))
    for done in (3, 9):
        rest = make_batch_schedule(run, corpus).scheduled_from(done, whole[done - 1].position)
        assert all(same(a.batch, b.batch) for a, b in zip(whole[done:], rest, strict=False))


def test_temperature_flattens_the_shares_of_corpora() -> None:
    more = (CorpusConfig(train=("b",), weight=2.0),)
    corpus = np.repeat([0, 1], [90, 5]).astype(np.uint16)
    nothing = Sentences.without_ids(np.zeros(95, np.int64))
    pairs = TokenPairs(nothing, nothing, 8, corpus)

    def shares(temperature: float) -> tuple[float, float]:
        data = DataConfig(train=("a",), valid_pairs=1, more=more, mixture_temperature=temperature)
        first, second = mixture_weights(data, pairs)
        assert abs(90 * first + 5 * second - 100) < 1e-9  # an epoch keeps its length
        return 90 * first / 100, 5 * second / 100

    assert shares(1.0) == (0.9, 0.1)
    np.testing.assert_allclose(shares(2.0), (0.75, 0.25))
    np.testing.assert_allclose(shares(1e6), (0.5, 0.5), atol=1e-5)


def test_the_preset_is_t5s() -> None:
    from jax_transformer.training.schedules import make_schedule

    config = get_preset("pretrain")
    rates = make_schedule(config.train, 128)
    for step in (1, 10_000, 40_000):
        assert float(rates(step - 1)) == pytest.approx(1.0 / max(step, 10_000) ** 0.5)  # type: ignore[arg-type]
    assert (config.train.optimizer, config.train.scale_by_parameter) == ("adafactor", True)
    assert (config.data.noise_density, config.data.mean_span_length) == (0.15, 3.0)
