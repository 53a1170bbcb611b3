"""Recordings with texts: tables, datasets, batches to train on, and error rates."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from whisper_models import DE, END, HALF_SECOND, NO_TIMES, START, TRANSCRIBE, TRANSLATE, small_whisper

import jax_transformer as jt
from jax_transformer.data.text_files import CorpusError
from jax_transformer.speech import AudioError, Spoken, SpokenBatches, read_audio, read_spoken
from jax_transformer.speech.error_rates import ErrorRate, character_error_rate, edits, word_error_rate

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.fixture(scope="module")
def model() -> jt.Model:
    return small_whisper()


def pairs(count: int = 5) -> list[Spoken]:
    rng = np.random.default_rng(0)
    return [Spoken(f"pair {i}", 0.1 * rng.standard_normal(1_000 * (i + 1)), "ABCDE"[: i + 1]) for i in range(count)]


# --- tables and datasets


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.tsv", "audio\ttext\none.wav\tHello there.\nsub/two.wav\tÄ\n"),
        ("a.csv", 'text,audio\n"Hello there.",one.wav\nÄ,sub/two.wav\n'),
        ("a.jsonl", '{"audio": "one.wav", "text": "Hello there.", "n": 1}\n{"text": "Ä", "audio": "sub/two.wav"}\n'),
    ],
)
def test_tables_name_recordings_next_to_them(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    found = read_spoken(str(tmp_path / name))
    assert [pair.text for pair in found] == ["Hello there.", "Ä"]
    assert [pair.audio for pair in found] == [str(tmp_path / "one.wav"), str(tmp_path / "sub" / "two.wav")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "received none"),
        ('{"file": "a.wav", "text": "b"}\n', "expected the column 'audio'"),
        ('{"audio": 3, "text": "b"}\n', "expected"),
    ],
)
def test_wrong_tables_are_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "a.jsonl").write_text(content)
    with pytest.raises(ValueError, match=message) as error:
        read_spoken(str(tmp_path / "a.jsonl"))
    assert "\n" not in str(error.value)


def test_a_missing_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"none\.jsonl"):
        read_spoken(str(tmp_path / "none.jsonl"))


def test_a_dataset_has_a_column_of_recordings(tmp_path: Path, model: jt.Model) -> None:
    datasets, soundfile = pytest.importorskip("datasets"), pytest.importorskip("soundfile")
    noise = 0.1 * np.random.default_rng(0).standard_normal(3_000)
    soundfile.write(tmp_path / "one.wav", noise, 16_000, subtype="DOUBLE")
    content = (tmp_path / "one.wav").read_bytes()
    rows = {"sound": [{"bytes": content, "path": None}, {"bytes": None, "path": str(tmp_path / "one.wav")}]}
    dataset = datasets.Dataset.from_dict(rows | {"text": ["A", "B"]})
    dataset.cast_column("sound", datasets.Audio()).save_to_disk(tmp_path / "data")
    found = read_spoken(str(tmp_path / "data"), source_column="sound")
    assert [pair.text for pair in found] == ["A", "B"]
    batch = SpokenBatches(model, found, rows=2, language="de", shuffle=False)[0]
    expected = SpokenBatches(model, [Spoken("one", noise, "A")], rows=1, language="de")[0]
    np.testing.assert_allclose(read_audio(found[0].source), noise, atol=1e-6)
    for row in batch.source_ids.vectors:
        np.testing.assert_allclose(row, expected.source_ids.vectors[0], atol=1e-5)
    with pytest.raises(ValueError, match="expected the columns audio and text; received sound, text"):
        read_spoken(str(tmp_path / "data"))
    with pytest.raises(ValueError, match="text: expected a column of the type Audio; received Value"):
        read_spoken(str(tmp_path / "data"), source_column="text")
    with pytest.raises(ValueError, match="expected a directory that datasets' save_to_disk wrote"):
        read_spoken(str(tmp_path))


# --- batches


def test_a_batch_has_inputs_and_labels(model: jt.Model) -> None:
    batch = SpokenBatches(model, pairs(2), rows=2, language="German", shuffle=False)[0]
    assert batch.source_ids.shape == (2, HALF_SECOND // 160, 4)
    assert batch.labels.tolist() == [
        [DE, TRANSCRIBE, NO_TIMES, 0, END, -100],
        [DE, TRANSCRIBE, NO_TIMES, 0, 1, END],
    ]
    assert batch.decoder_input_ids.tolist() == [
        [START, DE, TRANSCRIBE, NO_TIMES, 0, END],
        [START, DE, TRANSCRIBE, NO_TIMES, 0, 1],
    ]
    translated = SpokenBatches(model, pairs(1), rows=1, language="de", task="translate")[0]
    assert translated.labels[0, 1] == TRANSLATE


def test_a_batch_depends_on_the_seed_and_the_step_alone(model: jt.Model) -> None:
    """Every epoch has each pair once, in another order, and batches may span two epochs."""
    one, same, other = (SpokenBatches(model, pairs(), rows=2, language="de", seed=seed) for seed in (1, 1, 2))
    assert len(one) == 3
    for step in (7, 0, 3):
        for mine, theirs in zip(one[step][1:3], same[step][1:3], strict=True):
            np.testing.assert_array_equal(mine, theirs)
        np.testing.assert_array_equal(one[step].source_ids.vectors, same[step].source_ids.vectors)
    orders = [[int((row >= 0).sum()) for step in range(5) for row in batches[step].labels] for batches in (one, other)]
    assert orders[0] != orders[1]
    assert all(sorted(order[:5]) == sorted(order[5:]) == [5, 6, 7, 8, 9] for order in orders)
    assert orders[0][:5] != orders[0][5:]


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"tokenizer_files": None}, {}, "model: expected tokenizer files"),
        ({}, {"language": "xx"}, "language: expected one that the model knows"),
        ({}, {"language": None}, r"language: expected one that the model knows \(de, en\)"),
        ({}, {"rows": 0}, "rows from 1 on; received 5 and 0"),
        ({}, {"pairs": []}, "at least one pair"),
        ({}, {"pairs": [Spoken("long", np.zeros(9), "A" * 21)]}, "long: expected a text of at most 20 tokens"),
    ],
)
def test_wrong_pairs_are_refused(model: jt.Model, changes: Any, options: Any, message: str) -> None:
    given = {"pairs": pairs(), "rows": 2, "language": "de"} | options
    with pytest.raises(ValueError, match=message):
        SpokenBatches(dataclasses.replace(model, **changes), given.pop("pairs"), **given)


def test_a_recording_that_is_too_long_or_missing_is_named(model: jt.Model, tmp_path: Path) -> None:
    long = SpokenBatches(model, [Spoken("row 1", np.zeros(8_001), "A")], rows=1, language="de")
    with pytest.raises(AudioError, match=r"row 1: expected at most 0\.5 seconds"):
        long[0]
    (tmp_path / "a.jsonl").write_text(json.dumps({"audio": "none.wav", "text": "A"}))
    missing = SpokenBatches(model, read_spoken(str(tmp_path / "a.jsonl")), rows=1, language="de")
    with pytest.raises(AudioError, match=r"none\.wav: no such file"):
        missing[0]


# --- error rates


@pytest.mark.parametrize(
    ("first", "second", "count"),
    [("", "", 0), ("abc", "", 3), ("", "ab", 2), ("kitten", "sitting", 3), ("abcdef", "bcdefa", 2), ("ab", "ba", 2)],
)
def test_edits_are_the_fewest(first: str, second: str, count: int) -> None:
    assert edits(first, second) == count == edits(second, first)


def test_edits_equal_those_of_the_plain_recursion() -> None:
    rng = np.random.default_rng(0)

    def plain(first: str, second: str) -> int:
        table = [[i + j if not i or not j else 0 for j in range(len(second) + 1)] for i in range(len(first) + 1)]
        for i in range(1, len(first) + 1):
            for j in range(1, len(second) + 1):
                swapped = table[i - 1][j - 1] + (first[i - 1] != second[j - 1])
                table[i][j] = min(swapped, table[i - 1][j] + 1, table[i][j - 1] + 1)
        return table[-1][-1]

    for _ in range(60):
        first, second = ("".join(rng.choice(list("abc"), rng.integers(0, 9))) for _ in range(2))
        assert edits(first, second) == plain(first, second)


def test_rates_are_of_all_texts_together() -> None:
    references, texts = ["a b c", "d"], ["a c", "e f"]
    assert word_error_rate(references, texts) == ErrorRate(errors=3, length=4)
    assert character_error_rate([" ab "], ["b"]) == ErrorRate(errors=1, length=2)
    assert np.isnan(word_error_rate([""], ["a"]).rate)
    with pytest.raises(ValueError, match="texts: expected one for each of 2 references; received 1"):
        word_error_rate(references, ["a"])
