"""Tables: the same pairs from every format, a few rows at a time, and errors that name the place."""

from __future__ import annotations

import csv
import gzip
import io
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jax_transformer.config.data import CorpusConfig
from jax_transformer.data.corpus import CorpusError, FilePairs, read_pairs

Pairs = list[tuple[str, str]]


def write(folder: Path, name: str, content: str | bytes) -> str:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


def as_csv(rows: list[Any], **options: Any) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text, **options).writerows(rows)
    return text.getvalue().encode()


def as_jsonl(rows: list[Any], ensure_ascii: bool = True) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=ensure_ascii) + "\n" for row in rows).encode()


def as_parquet(rows: list[dict[str, Any]], **options: Any) -> bytes:
    import pyarrow
    from pyarrow import parquet

    buffer = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(rows, **options), buffer)
    return buffer.getvalue()


def pairs_of(path: str, **columns: str) -> Pairs:
    return list(FilePairs((path,), CorpusConfig(**columns)))


def refusal(path: str, **columns: str) -> str:
    with pytest.raises(CorpusError) as error:
        pairs_of(path, **columns)
    assert "\n" not in str(error.value)
    return str(error.value)


# --- what is read

texts = st.text(st.characters(codec="utf-8"), max_size=8)
FORMATS: dict[str, Callable[[Pairs], bytes]] = {
    "a.csv": lambda pairs: as_csv([("id", "source", "target"), *((k, *pair) for k, pair in enumerate(pairs))]),
    "b.csv": lambda pairs: as_csv(
        [("target", "source"), *((b, a) for a, b in pairs)], quoting=csv.QUOTE_ALL, lineterminator="\n"
    ),
    "a.jsonl": lambda pairs: as_jsonl([{"source": a, "target": b} for a, b in pairs]),
    "b.ndjson": lambda pairs: as_jsonl([{"id": 1, "target": b, "source": a} for a, b in pairs], ensure_ascii=False),
    "a.parquet": lambda pairs: as_parquet([{"id": 1, "source": a, "target": b} for a, b in pairs]),
}


@settings(max_examples=60, deadline=None)  # importing pyarrow takes a while
@given(
    pairs=st.lists(st.tuples(texts, texts), min_size=1, max_size=6),
    name=st.sampled_from(list(FORMATS)),
    packed=st.booleans(),
)
def test_every_format_gives_the_pairs_that_were_written(
    tmp_path_factory: pytest.TempPathFactory, pairs: Pairs, name: str, packed: bool
) -> None:
    data = FORMATS[name](pairs)
    packed = packed and not name.endswith("parquet")
    path = write(tmp_path_factory.mktemp("tables"), name + ".gz" * packed, gzip.compress(data) if packed else data)
    source = FilePairs((path,))
    assert list(source) == pairs
    assert list(source) == pairs, "it can be read again"


@pytest.mark.parametrize("name", ["table.jsonl", "table.parquet"])
def test_nested_columns_are_named_with_dots(tmp_path: Path, name: str) -> None:
    rows = [{"id": "x", "translation": {"en": "a", "de": "b"}}, {"id": "y", "translation": {"de": "d", "en": "c"}}]
    path = write(tmp_path, name, (as_jsonl if name.endswith("jsonl") else as_parquet)(rows))
    assert pairs_of(path, source_language="en", target_language="de") == [("a", "b"), ("c", "d")]
    assert pairs_of(path, source_column="translation.de", target_column="id") == [("b", "x"), ("d", "y")]


@pytest.mark.parametrize("separator", [",", "\t"])
def test_a_first_row_of_known_or_configured_names_is_a_header(tmp_path: Path, separator: str) -> None:
    def table(*rows: str) -> str:
        return write(
            tmp_path,
            "table.csv" if separator == "," else "table.tsv",
            "".join(row.replace(",", separator) + "\n" for row in rows),
        )

    two = [("en", "de"), ("a", "b")]
    assert pairs_of(table("en,de", "a,b")) == two, "nothing says that these are names"
    assert pairs_of(table("en,de", "a,b"), source_language="en") == two, "of both sides"
    assert pairs_of(table("en,de", "a,b"), source_language="en", target_language="de") == two[1:]
    assert pairs_of(table("de,en", "a,b"), source_language="en", target_language="de") == [("b", "a")]
    assert pairs_of(table("x,target,source", "1,b,a")) == [("a", "b")]
    assert pairs_of(table("x,y,z", "1,b,a"), source_column="z", target_column="y") == [("a", "b")]
    assert pairs_of(table("x,y,target", "1,a,b"), source_column="y") == [("a", "b")]
    assert pairs_of(table("source,en,target", "1,a,b"), source_column="en") == [("a", "b")], (
        "the configured name comes first"
    )


def test_the_index_column_that_pandas_leaves_unnamed_is_not_chosen(tmp_path: Path) -> None:
    assert pairs_of(write(tmp_path, "table.csv", ",source,target\n0,a,b\n")) == [("a", "b")]


def test_tsv_fields_keep_their_quotes(tmp_path: Path) -> None:
    assert read_pairs((write(tmp_path, "table.tsv", '"a\t"b"\n'),)) == [('"a', '"b"')]


@pytest.mark.parametrize("name", ["table.csv", "table.jsonl", "table.tsv", "table.parquet"])
def test_a_large_table_is_never_in_memory(tmp_path: Path, name: str) -> None:
    count = 60_000
    pairs = [(f"{k} " + "source " * 10, f"{k} " + "target " * 10) for k in range(count)]
    if name == "table.tsv":
        data = "".join(f"{a}\t{b}\n" for a, b in pairs).encode()
    else:
        data = {
            "table.csv": FORMATS["b.csv"],
            "table.jsonl": FORMATS["a.jsonl"],
            "table.parquet": FORMATS["a.parquet"],
        }[name](pairs)
    path = write(tmp_path, name, data)
    del pairs, data
    next(iter(FilePairs((path,))))  # what importing costs
    tracemalloc.start()
    assert sum(1 for _ in FilePairs((path,))) == count
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4e6, "all of it is 15 MB of text"


# --- refusals


@pytest.mark.parametrize(
    ("name", "header", "expected", "advice"),
    [
        ("table.csv", "English;German", "a comma", "Is the separator ';'? Write the table with commas"),
        ("table.csv", "English|German", "a comma", "Is the separator '|'? Write the table with commas"),
        ("table.csv", "English\tGerman", "a comma", "Is the separator '\\t'? Name the file .tsv."),
        ("table.tsv", "English,German", "a tab", "Is the separator ','? Name the file .csv."),
    ],
)
def test_a_header_with_another_separator_is_distinguished_from_a_wrong_column(
    tmp_path: Path, name: str, header: str, expected: str, advice: str
) -> None:
    path = write(tmp_path, name, f"{header}\na{header[7]}b\n".encode())
    message = refusal(path, source_column="English", target_column="German")
    assert f"{path}:1: expected a header of columns separated by {expected}; received one column" in message
    assert advice in message
    assert "Did you mean" not in message


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("table.csv", b"english,german\na,b\n"),
        ("table.tsv", b"english\tgerman\na\tb\n"),
        ("table.jsonl", b'{"english": "a", "german": "b"}\n'),
        ("table.parquet", as_parquet([{"english": "a", "german": "b"}])),
    ],
)
def test_unknown_columns_are_refused_with_a_list_of_columns(tmp_path: Path, name: str, content: bytes) -> None:
    path = write(tmp_path, name, content)
    message = refusal(path, source_column="englisch", target_column="german")
    assert (
        "expected the column 'englisch' (source_column); received the columns english, german. Did you mean 'english'?"
        in message
    )
    message = refusal(path, source_column="english", target_column="zz")
    assert "expected the column 'zz' (target_column)" in message
    assert "Set target_column to one of them" in message
    if name.endswith(("jsonl", "parquet")):
        message = refusal(path, target_language="german", source_language="en")
        assert "expected a column of source sentences named translation.en or source or en" in message
        assert "received the columns english, german. Set source_column." in message


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('["a", "b"]', 'expected a JSON object; received \'["a", "b"]\''),
        ('"text"', "expected a JSON object; received"),
        ("", "received an empty line"),
        ("{'source': 1}", "received text that isn't JSON"),
        ("[" * 100_000, "nested too deeply"),
        ('{"source": "a"}', "expected the column 'target', as on line 1; received the columns source."),
        ("{}", "expected the column 'source', as on line 1; received no columns."),
        ('{"source": "a", "target": 5}', "expected text in the column 'target'; received '5'"),
        ('{"source": null, "target": "b"}', "expected text in the column 'source'; received 'null'"),
        (r'{"source": "\ud83d", "target": "b"}', "received half of a surrogate pair"),
    ],
)
def test_a_json_line_is_an_object_with_text(tmp_path: Path, line: str, expected: str) -> None:
    good = '{"source": "a", "target": "b"}\n'
    message = refusal(write(tmp_path, "table.jsonl", good + good + line + "\n" + good))
    assert "table.jsonl:3: " in message
    assert expected in message


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (
            'source,target\n"a\nb",c\nd\n',
            "table.csv:4: expected the header's 2 columns; received one column (no comma) 'd'",
        ),
        (
            "a,b\nc,d,e\n",
            "table.csv:2: expected two columns, source and target, separated by a comma; received 3 columns",
        ),
        (
            "a,b\n\nc,d\n",
            "table.csv:2: expected two columns, source and target, separated by a comma; received an empty line",
        ),
        (
            'a,b\n"c,d\ne,f\n',
            "table.csv:2: expected a row of CSV; received text that can't be read as one (unexpected end of data)",
        ),
        ('a,b\n"c" x,d\n', "table.csv:2: expected a row of CSV"),
        (b"a,b\nc,\xff\n", "table.csv:2: expected UTF-8 text; received byte 0xff at byte 3"),
        ("", "table.csv: expected at least one sentence pair; received none"),
        ("source,target\n", "table.csv: expected at least one sentence pair; received none"),
    ],
)
def test_damaged_csv_is_refused_with_its_line(tmp_path: Path, content: str | bytes, expected: str) -> None:
    assert expected in refusal(write(tmp_path, "table.csv", content))


def test_damaged_parquet_is_refused(tmp_path: Path) -> None:
    rows = [{"source": "a", "target": "b"} for _ in range(20_000)]
    whole = as_parquet(rows)
    for name, content in (
        ("cut", whole[:-100]),
        ("text", b"source,target\na,b\n"),
        ("empty", b""),
        ("flipped", b"PAR1" + whole[40:]),
    ):
        message = refusal(write(tmp_path, f"{name}.parquet", content))
        assert f"{name}.parquet: expected a whole Parquet file; received one that can't be read" in message
    assert "Unpack it" in refusal(write(tmp_path, "table.parquet.gz", gzip.compress(whole)))
    assert "received a path at which there is no file" in refusal(str(tmp_path / "absent.parquet"))


def test_parquet_values_are_text(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    rows: list[dict[str, Any]] = [{"source": "a", "target": "b"} for _ in range(10_000)]
    rows[9_000]["target"] = None
    assert "nulls.parquet: row 9001: expected text in the column 'target'; received none (null)" in refusal(
        write(tmp_path, "nulls.parquet", as_parquet(rows))
    )
    numbers = write(tmp_path, "numbers.parquet", as_parquet([{"source": 1, "target": "b"}]))
    assert "expected text in the column 'source'; received values of type int64" in refusal(numbers)
    latin = pyarrow.table({"source": pyarrow.array([b"a", b"na\xefve"]).view(pyarrow.string()), "target": ["b", "c"]})
    parquet.write_table(latin, tmp_path / "latin.parquet")
    assert "latin.parquet: row 2: expected UTF-8 text in the column 'source'" in refusal(
        str(tmp_path / "latin.parquet")
    )


def test_tables_are_not_parallel_files(tmp_path: Path) -> None:
    paths = tuple(write(tmp_path, f"{k}.jsonl", '{"source": "a", "target": "b"}\n') for k in range(2))
    with pytest.raises(CorpusError, match=r"0\.jsonl: expected parallel files to be text.*Name one table alone"):
        read_pairs(paths)
