"""Tables of series, and the command that forecasts them."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jax_transformer as jt
from jax_transformer.cli import main
from jax_transformer.config import SeriesTokens
from jax_transformer.forecasting import SeriesError, SeriesTable, read_series

pytestmark = pytest.mark.usefixtures("quick_compilation")

NAN = float("nan")
SALES = "day,north,south\n2026-01-01,3,\n2026-01-02,4.5,7\n2026-01-03,na,8e1\n"
VALUES = [[3.0, 4.5, NAN], [NAN, 7.0, 80.0]]


def read(folder: Path, text: str | bytes, name: str = "series.csv", **options: Any) -> SeriesTable:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_series(path, **options)


@pytest.mark.parametrize(
    ("text", "name", "options", "names", "values", "times"),
    [
        (SALES, "a.csv", {}, ["north", "south"], VALUES, 3),
        (SALES.replace(",", "\t"), "a.tsv", {}, ["north", "south"], VALUES, 3),
        ("\ufeff" + SALES.replace("\n", "\r\n"), "a.csv", {}, ["north", "south"], VALUES, 3),
        (SALES.partition("\n")[2], "a.csv", {}, ["2", "3"], VALUES, 3),
        (SALES, "a.csv", {"columns": ("south",)}, ["south"], VALUES[1:], 3),
        (SALES, "a.csv", {"columns": ("south", "north")}, ["south", "north"], VALUES[::-1], 3),
        ("1,2\n3,4\n", "a.csv", {}, ["1", "2"], [[1, 3], [2, 4]], 0),
        ("x\n1\n\n3\n\n", "a.csv", {}, ["x"], [[1, NAN, 3]], 0),
        ("x,y\n1,2\n\n3,4\n", "a.csv", {}, ["x", "y"], [[1, 3], [2, 4]], 0),
        ('"a, b",c\n"1",NaN\nNULL,-2\n', "a.csv", {}, ["a, b", "c"], [[1, NAN], [NAN, -2]], 0),
        ("year,x\n1999,1\n2000,2\n", "a.csv", {}, ["year", "x"], [[1999, 2000], [1, 2]], 0),
        ("year,x\n1999,1\n2000,2\n", "a.csv", {"time": "year"}, ["x"], [[1, 2]], 2),
        ("x,when\n1,a\n2,b\n", "a.csv", {"time": "when"}, ["x"], [[1, 2]], 2),
    ],
)
def test_columns_are_series(
    tmp_path: Path, text: str, name: str, options: Any, names: list[str], values: Any, times: int
) -> None:
    table = read(tmp_path, text, name, **options)
    assert (table.names, len(table.times)) == (names, times)
    np.testing.assert_array_equal(table.values, values)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("", {}, "expected rows of values; received none"),
        ("\n\n", {}, "expected rows of values; received none"),
        ("a,b\n", {}, "expected rows of values below the header; received none"),
        ("a,b\n1,2\n3,x\n", {}, "line 3, column 'b': expected a number, or an empty cell for .*; received 'x'"),
        ("a,b\n1,2\n3,inf\n", {}, "line 3, column 'b': .*; received 'inf'"),
        ("a,b\n1,2\n3,1_0\n", {}, "line 3, column 'b': .*; received '1_0'"),
        ("a,b\n1,\n2,NaN\n", {}, "column 'b': expected at least one value; received 2 empty cells"),
        ("a,b\n1,2\n3\n", {}, "line 3: expected 2 cells, as in the first row; received 1"),
        ("a,a\n1,2\n", {}, "expected columns of different names; received several named 'a'"),
        ('a\n"1\n', {}, "line 2: expected CSV; unexpected end of data"),
        (b"a\n\xff\n", {}, "expected UTF-8; byte 2 isn't"),
        (SALES, {"columns": ("nort",)}, r"a series named 'nort'; received north, south \(nearest: north\)"),
        (SALES, {"columns": ("day",)}, "a series named 'day'; received north, south"),
        (SALES, {"time": "dya"}, "a column named 'dya' for times; received day, north, south"),
        ("a\n1\n", {"time": "a"}, "expected a column of values next to the times; received none"),
    ],
)
def test_what_is_no_table_of_series_is_refused(tmp_path: Path, text: str | bytes, options: Any, message: str) -> None:
    with pytest.raises(SeriesError, match=rf"series.csv: .*{message}"):
        read(tmp_path, text, **options)


def test_files_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_TRANSFORMER_MAX_SERIES_BYTES", "10")
    with pytest.raises(SeriesError, match="at most 10 bytes of a table of series; received 65"):
        read(tmp_path, SALES)


# --- the command


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory, and a table next to it."""
    config = jt.TransformerConfig(
        source_vocab_size=40, target_vocab_size=40, source_pad_id=0, target_pad_id=0, d_model=8, num_heads=2, d_ff=8,
        num_encoder_layers=1, num_decoder_layers=1, position_kind="relative_bias", decoder_padding="none",
    )  # fmt: skip
    tokens = SeriesTokens(num_tokens=34, context_length=12, prediction_length=4, num_samples=8)
    generation = jt.GenerationConfig(decoder_start_id=0, eos_id=1, series=tokens)
    folder = tmp_path_factory.mktemp("forecasts")
    model = jt.Model(config, jt.init_params(config, jax.random.key(3)), None, None, generation)
    jt.save_model(model, folder / "model")
    (folder / "sales.csv").write_text(SALES)
    return folder / "model"


def run(saved: Path, *arguments: str) -> int:
    return main(["forecast", str(saved), str(saved.with_name("sales.csv")), *arguments])


def test_the_command_writes_quantiles(saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = jt.forecast(jt.load_model(saved), np.array(VALUES), 3, num_samples=8, seed=4)
    levels = [0.25, 0.5]
    options = ["--prediction-length", "3", "--num-samples", "8", "--seed", "4", "--quantiles", *map(str, levels)]
    assert run(saved, *options) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(row["series"], row["step"]) for row in rows[:4]] == [
        *(("north", str(n)) for n in (1, 2, 3)),
        ("south", "1"),
    ]
    written = np.array([[float(row[name]) for name in ("0.25", "0.5", "mean")] for row in rows], np.float32)
    np.testing.assert_array_equal(written[:, :2].reshape(2, 3, 2), found.quantiles(levels))
    np.testing.assert_array_equal(written[:, 2].reshape(2, 3), found.mean)

    picture, output = tmp_path / "sales.svg", tmp_path / "sales.json"
    assert run(saved, *options, "-o", str(output), "--plot", str(picture), "--dark") == 0
    content = json.loads(output.read_text())
    assert [series["name"] for series in content["series"]] == ["north", "south"]
    np.testing.assert_array_equal(np.array(content["series"][1]["samples"], np.float32), found.samples[1])
    median = np.array(content["series"][1]["quantiles"]["0.5"], np.float32)
    np.testing.assert_array_equal(median, found.median[1])
    assert picture.read_bytes().startswith(b"<?xml")
    assert capsys.readouterr().out == ""


def test_the_command_notes_a_long_horizon(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(saved, "--prediction-length", "5", "--columns", "south") == 0
    printed = capsys.readouterr()
    assert printed.out.count("\n") == 6
    assert printed.err.startswith("note: prediction_length: the model was trained for 4 steps; it predicts 5 in blocks")
    assert printed.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prediction-length", "0"], "--prediction-length must be at least 1; received 0"),
        (["--quantiles", "1.5"], "quantiles: expected levels from 0 to 1; received 1.5"),
        (["--plot-history", "-1"], "--plot-history must be at least 0; received -1"),
        (["--plot", "a.gif"], "a.gif: expected a file name that ends in one of .png, .svg, .pdf; received '.gif'"),
        (["-o", "a.txt"], "a.txt: expected a file name that ends in one of .csv, .json; received '.txt'"),
        (["-o", "missing/a.csv"], "missing/a.csv: expected a directory that exists; there is no missing"),
        (["--columns", "east"], "expected a series named 'east'"),
        (["--temperature", "0"], "temperature must be from"),
    ],
)
def test_mistakes_are_one_line(
    saved: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert run(saved, *arguments) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("error: ")
    assert message in printed.err
    assert printed.err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_model_of_text_is_refused(saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = jt.load_model(saved)
    text = jt.Model(model.config, model.params, None, None, jt.GenerationConfig(decoder_start_id=0, eos_id=1))
    jt.save_model(text, tmp_path / "text")
    assert main(["forecast", str(tmp_path / "text"), str(saved.with_name("sales.csv"))]) == 2
    assert "expected a model of time series, such as a Chronos-T5; received one without" in capsys.readouterr().err


def test_a_picture_has_room_for_twenty_series(saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    many = tmp_path / "many.csv"
    many.write_text("\n".join([",".join(map(str, range(21)))] * 2))
    assert main(["forecast", str(saved), str(many), "--plot", str(tmp_path / "a.png")]) == 2
    assert "expected from 1 to 20 series in a picture; received 21" in capsys.readouterr().err
