"""The tables of proofs: the page sums up the CSV files, and a command renews both."""

import csv
from pathlib import Path

import pytest

from parity_tests.proof import systems_table
from proof import adversary, make_table, own_table
from proof.tables import FAULT_COLUMNS, Table, summarize_faults

PAGE = Path(__file__).parents[2] / "docs" / "proof_tables.md"
TABLES = (
    systems_table.TABLE,
    own_table.PROGRAMS,
    own_table.PROGRAM_FAULTS,
    make_table.PAIRS,
    make_table.FAULTS,
    adversary.TABLE,
)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.file)
def test_page_sums_up_the_file(table: Table) -> None:
    text = (PAGE.parent / "tables" / table.file).read_text(encoding="utf-8")
    between = PAGE.read_text(encoding="utf-8").split(table.marks[0])[1].split(table.marks[1])[0].strip().splitlines()
    assert tuple(next(csv.reader(text.splitlines()))) == table.columns
    summary = table.on_page(text)
    assert between[: len(summary) - 2] == summary[:-2]
    assert between[-1] == summary[-1]


def test_faults_unlike_the_rest_stand_on_the_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("Before.\n\n<!-- a -->\n\nOld.\n\n<!-- b -->\n\nAfter.\n")
    table = Table("faults.csv", ("<!-- a -->", "<!-- b -->"), FAULT_COLUMNS, summarize_faults)
    rows = [
        ["ε is 1e-6", "the catalogue", "refuted", "1e-05", "add", "x = a | b, c", "yes"],
        ["a token is missing", "the catalogue", "unknown", "–", "or", "x = a | b", "no"],
    ]
    table.write(page, rows)
    assert (tmp_path / "tables" / "faults.csv").read_text().splitlines()[1:] == [
        'ε is 1e-6,the catalogue,refuted,1e-05,add,"x = a | b, c",yes',
        "a token is missing,the catalogue,unknown,–,or,x = a | b,no",
    ]
    text = page.read_text()
    assert text.startswith("Before.\n\n<!-- a -->\n\n1 of 2 faults are refuted, and 0 are proven equal; ")
    assert "| a token is missing | the catalogue | unknown | `x = a \\| b` | no |" in text
    assert "ε is 1e-6" not in text
    assert text.endswith("[All 2 rows](tables/faults.csv)\n\n<!-- b -->\n\nAfter.\n")
