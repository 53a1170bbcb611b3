r"""Reads tables of sentence pairs, a few rows at a time: TSV, CSV, JSON lines and Parquet.

| suffix | a row is | columns |
|---|---|---|
| .tsv, and any other | a line, split at its tabs; nothing is quoted | two, or named in a header |
| .csv | a row of the `csv` module: "quoted" fields may hold commas, quotes ("") and line ends | two, or named in a
header |
| .jsonl, .ndjson | an object on each line | its keys; dots join nested keys, such as translation.en |
| .parquet | a row | the schema's; dots join the fields of structs |

The first row of a TSV or CSV file is a header if the config names a column, or if it has known names for both sides
(see `choose_columns`). All but Parquet may be gzipped.
"""

from __future__ import annotations

import csv
import difflib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import PurePath
from typing import Any

from jax_transformer.config.data import CorpusConfig
from jax_transformer.data.text_files import CorpusError, iterate_lines, iterate_text, open_stored, shorten
from jax_transformer.runtime.extras import require
from jax_transformer.runtime.json_text import parse_json

Pair = tuple[str, str]
ROWS = 4096
"""Rows of a Parquet file or a dataset in memory at once."""


def read_table(path: str, corpus: CorpusConfig) -> Iterator[Pair]:
    """Yields the (source, target) pairs of one table, in the format of its suffix.

    Raises:
      CorpusError: an unknown column; a row with other columns than the first; a value that isn't text; an unreadable
        row; see also `iterate_lines`. The message names the line, or the row of a Parquet file.
    """
    return READERS.get(table_suffix(path), _read_tsv)(path, corpus)


def table_suffix(path: str) -> str:
    """Returns the suffix in lowercase without .gz: .csv for train.CSV.gz."""
    return PurePath(path.lower().removesuffix(".gz")).suffix


def choose_columns(columns: Sequence[str], corpus: CorpusConfig, where: str) -> tuple[str, str]:
    """Returns the source and target columns of a table: the configured columns, or the first match among
    translation.LANGUAGE, "source" (or "target") and LANGUAGE.

    Raises:
      CorpusError: there is no such column; the message lists the table's columns.
    """
    return _choose("source", columns, corpus, where), _choose("target", columns, corpus, where)


def arrow_pairs(
    batches: Iterable[Any],
    schema: Any,
    corpus: CorpusConfig,
    where: str,
    *,
    rows_before: int = 0,
    null_text: str | None = None,
) -> Iterator[Pair]:
    """Yields the pairs of Arrow tables or batches with this schema.

    Args:
      rows_before: number of skipped rows, for messages.
      null_text: replaces a missing sentence (null). None: raise an error.

    Raises:
      CorpusError: an unknown or non-text column; a row whose sentence is missing or isn't UTF-8.
    """
    leaves = dict(_leaves(schema, ()))
    chosen = choose_columns([".".join(path) for path in leaves], corpus, where)
    paths = [next(path for path in leaves if ".".join(path) == name) for name in chosen]
    for name, path in zip(chosen, paths, strict=True):
        if not _is_text(leaves[path]):
            raise CorpusError(
                f"{where}: expected text in the column {name!r}; received values of type {leaves[path]}. {OTHER_COLUMN}"
            )
    rows = rows_before
    for batch in batches:
        sides = [_texts(batch, path, f"{where}: row", rows + 1, null_text) for path in paths]
        yield from zip(*sides, strict=True)
        rows += len(sides[0])


OTHER_COLUMN = "Set source_column and target_column to columns of sentences."


def _choose(side: str, columns: Sequence[str], corpus: CorpusConfig, where: str) -> str:
    configured = getattr(corpus, f"{side}_column")
    if configured and configured in columns:
        return configured
    received = f"received {_list_columns(columns)}"
    if configured:
        near = difflib.get_close_matches(configured, columns, n=1)
        advice = f"Did you mean {near[0]!r}?" if near else f"Set {side}_column to one of them."
        raise CorpusError(f"{where}: expected the column {configured!r} ({side}_column); {received}. {advice}")
    known = _known_names(side, corpus)
    for name in known:
        if name in columns:
            return name
    raise CorpusError(
        f"{where}: expected a column of {side} sentences named {' or '.join(known)}; {received}. Set {side}_column."
    )


def _list_columns(columns: Sequence[str]) -> str:
    return f"the columns {', '.join(columns)}" if columns else "no columns"


def _known_names(side: str, corpus: CorpusConfig) -> list[str]:
    language = getattr(corpus, f"{side}_language")
    return [f"translation.{language}", side, language] if language else [side]


# --- TSV and CSV


def _read_tsv(path: str, corpus: CorpusConfig) -> Iterator[Pair]:
    rows = ((number, line.split("\t")) for number, line in enumerate(iterate_lines(path), start=1))
    return _pairs_of_rows(path, rows, corpus, "tab")


def _read_csv(path: str, corpus: CorpusConfig) -> Iterator[Pair]:
    return _pairs_of_rows(path, _csv_rows(path), corpus, "comma")


def _csv_rows(path: str) -> Iterator[tuple[int, list[str]]]:
    """Yields each row with the number of its first line."""
    reader = csv.reader((line for text in iterate_text(path) for line in _with_ends(text)), strict=True)
    begins = 1
    try:
        for row in reader:
            yield begins, row
            begins = reader.line_num + 1
    except csv.Error as error:
        advice = 'Put quotes around fields that hold commas, quotes or line ends, and write " in them as "".'
        if "limit" in str(error):
            advice = "Close the quotes that are opened in this row."
        raise CorpusError(
            f"{path}:{begins}: expected a row of CSV; received text that can't be read as one ({error}). {advice}"
        ) from None


def _with_ends(text: str) -> list[str]:
    lines = text.split("\n")
    last = lines.pop()
    return [f"{line}\n" for line in lines] + ([last] if last else [])


def _pairs_of_rows(
    path: str, rows: Iterator[tuple[int, list[str]]], corpus: CorpusConfig, separator: str
) -> Iterator[Pair]:
    first = next(rows, None)
    if first is None:
        return
    header = first[1]
    if _is_header(header, corpus):
        _check_separator(header, separator, f"{path}:{first[0]}")
        source, target = (header.index(name) for name in choose_columns(header, corpus, f"{path}:{first[0]}"))
        names = f"the header's {len(header)} columns"
    else:
        source, target, header, rows = 0, 1, ["", ""], chain([first], rows)
        names = f"two columns, source and target, separated by a {separator}"
    for number, row in rows:
        if len(row) != len(header):
            raise CorpusError(_describe_row(f"{path}:{number}", row, names, separator))
        yield row[source], row[target]


def _check_separator(header: list[str], separator: str, where: str) -> None:
    """Raises CorpusError for a header of one column that another separator would split."""
    if len(header) > 1:
        return
    for other, advice in OTHER_SEPARATORS.items():
        if other in header[0]:
            raise CorpusError(
                f"{where}: expected a header of columns separated by a {separator}; received one column, "
                f"{shorten(header[0])}. Is the separator {other!r}? {advice}"
            )


OTHER_SEPARATORS = {
    "\t": "Name the file .tsv.",
    ";": "Write the table with commas (.csv) or tabs (.tsv).",
    "|": "Write the table with commas (.csv) or tabs (.tsv).",
    ",": "Name the file .csv.",
}
"""Separators that a table may have by mistake, with the remedy."""


def _is_header(row: list[str], corpus: CorpusConfig) -> bool:
    if corpus.source_column or corpus.target_column:
        return True
    return all(set(row).intersection(_known_names(side, corpus)) for side in ("source", "target"))


def _describe_row(where: str, row: list[str], names: str, separator: str) -> str:
    if row in ([], [""]):
        received, advice = "an empty line", "Remove the line."
    elif len(row) == 1:
        received = f"one column (no {separator}) {shorten(row[0])}"
        advice = f"Separate source and target with a {separator}, or give two parallel files."
    else:
        received, advice = (
            f"{len(row)} columns",
            "Keep the columns of the sentences only, or name them in a header and in source_column.",
        )
    return f"{where}: expected {names}; received {received}. {advice}"


# --- JSON lines


def _read_jsonl(path: str, corpus: CorpusConfig) -> Iterator[Pair]:
    keys: list[tuple[str, ...]] = []
    for number, line in enumerate(iterate_lines(path), start=1):
        where = f"{path}:{number}"
        row = _parse_object(line, where)
        if not keys:
            nested = {".".join(keys): keys for keys in _nested_keys(row, ())}
            keys = [nested[name] for name in choose_columns(list(nested), corpus, where)]
        yield _json_text(row, keys[0], where), _json_text(row, keys[1], where)


def _parse_object(line: str, where: str) -> dict[str, Any]:
    try:
        row = parse_json(line)
    except ValueError as error:
        received = f"text that isn't JSON ({error}): {shorten(line)}" if line.strip() else "an empty line"
        raise CorpusError(f"{where}: expected a JSON object; received {received}. Write one object a line.") from None
    if not isinstance(row, dict):
        raise CorpusError(
            f"{where}: expected a JSON object; received {shorten(line)}. Write one object with named columns a line."
        )
    return row


def _nested_keys(row: dict[str, Any], above: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for key, value in row.items():
        if isinstance(value, dict):
            yield from _nested_keys(value, (*above, key))
        else:
            yield (*above, key)


def _json_text(row: dict[str, Any], keys: tuple[str, ...], where: str) -> str:
    value: Any = row
    for key in keys:
        if not isinstance(value, dict) or key not in value:
            received = _list_columns([".".join(path) for path in _nested_keys(row, ())])
            raise CorpusError(
                f"{where}: expected the column {'.'.join(keys)!r}, as on line 1; received {received}. Give each line "
                "the same columns."
            )
        value = value[key]
    if not isinstance(value, str):
        received = shorten(json.dumps(value, ensure_ascii=False))
        raise CorpusError(
            f"{where}: expected text in the column {'.'.join(keys)!r}; received {received}. {OTHER_COLUMN}"
        )
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:  # JSON allows \ud83d alone, which is half of a character
            raise CorpusError(
                f"{where}: expected text in the column {'.'.join(keys)!r}; received half of a surrogate pair: "
                f"{shorten(value)}. "
                "Write the characters as UTF-8."
            ) from None
    return value


# --- Parquet


def _read_parquet(path: str, corpus: CorpusConfig) -> Iterator[Pair]:
    require("pyarrow", path)
    import pyarrow
    from pyarrow import parquet

    if path.lower().endswith(".gz"):
        raise CorpusError(
            f"{path}: expected a Parquet file, which is compressed inside; received one in gzip. Unpack it with "
            "`gunzip`."
        )
    with open_stored(path) as stored:
        try:
            file = parquet.ParquetFile(stored)
            columns = choose_columns([".".join(keys) for keys, _ in _leaves(file.schema_arrow, ())], corpus, path)
            yield from arrow_pairs(file.iter_batches(ROWS, columns=list(columns)), file.schema_arrow, corpus, path)
        except CorpusError:
            raise
        except (pyarrow.ArrowException, OSError) as error:
            reason = str(error).splitlines()[0]
            raise CorpusError(
                f"{path}: expected a whole Parquet file; received one that can't be read ({reason}). Copy it again."
            ) from None


def _leaves(fields: Any, above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yields the path and the type of each column of an Arrow schema."""
    from pyarrow import types

    for field in fields:
        if types.is_struct(field.type):
            yield from _leaves(field.type.fields, (*above, field.name))
        else:
            yield (*above, field.name), field.type


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    if types.is_dictionary(kind):
        return _is_text(kind.value_type)
    return types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)


def _texts(batch: Any, keys: tuple[str, ...], where: str, first_row: int, null_text: str | None) -> list[str]:
    import pyarrow
    from pyarrow import compute

    column = batch.column(keys[0])
    for key in keys[1:]:
        column = compute.struct_field(column, key)
    if column.null_count and null_text is not None:
        column = compute.fill_null(column.cast(pyarrow.large_string()), null_text)
    if column.null_count:
        row = first_row + column.is_null().to_pylist().index(True)
        raise CorpusError(
            f"{where} {row}: expected text in the column {'.'.join(keys)!r}; received none (null). Remove the row."
        )
    try:
        return column.to_pylist()
    except UnicodeDecodeError as error:
        row = first_row + next(k for k, value in enumerate(column) if not _is_utf8(value))
        raise CorpusError(
            f"{where} {row}: expected UTF-8 text in the column {'.'.join(keys)!r}; received {error}. Convert it."
        ) from None


def _is_utf8(value: Any) -> bool:
    try:
        value.as_py()
    except UnicodeDecodeError:
        return False
    return True


READERS: dict[str, Callable[[str, CorpusConfig], Iterator[Pair]]] = {
    ".tsv": _read_tsv,
    ".csv": _read_csv,
    ".jsonl": _read_jsonl,
    ".ndjson": _read_jsonl,
    ".parquet": _read_parquet,
}
