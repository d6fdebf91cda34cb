"""Rows whose owner is NULL count nowhere: EXPLAIN says so where the schema allows them, whatever the data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest

from dpsql.answering.open_dataset import open_dataset
from dpsql.answering.session import Session
from dpsql.tables import ResultTable

_POLICY = """
[database]
url = "duckdb:///shop.duckdb"
[privacy]
epsilon = 1_000
delta = 1e-6
query_epsilon = 100
max_query_epsilon = 100
[users.alice]
[tables.customers]
unit = "id"
[tables.sales]
unit = "customer"
max_rows_per_unit = 10
[tables.lines]
unit = { via = "sale", table = "sales", key = "id" }
max_rows_per_unit = 10
[tables.remarks]
unit = { via = "sale", table = "sales", key = "id" }
max_rows_per_unit = 10
"""
_SCHEMA = """
CREATE TABLE customers (id INTEGER PRIMARY KEY);
CREATE TABLE sales (id INTEGER PRIMARY KEY, customer INTEGER {owner});
CREATE TABLE lines (sale INTEGER NOT NULL, line INTEGER NOT NULL);
CREATE TABLE remarks (sale INTEGER);
INSERT INTO customers SELECT * FROM range(100);
INSERT INTO sales SELECT i, {customer} FROM range(200) AS t(i);
INSERT INTO lines SELECT i, 1 FROM range(200) AS t(i);
INSERT INTO remarks SELECT i FROM range(200) AS t(i);
"""
Explain = Callable[[str], list[str]]


def _notes(folder: Path, sql: str, *, owner: str = "", customer: str = "i % 100") -> list[str]:
    folder.mkdir(exist_ok=True)
    with duckdb.connect(str(folder / "shop.duckdb")) as connection:
        connection.execute(_SCHEMA.format(owner=owner, customer=customer))
    (folder / "dpsql.toml").write_text(_POLICY)
    dataset = open_dataset(folder / "dpsql.toml")
    try:
        found = Session(dataset, "alice").execute(f"EXPLAIN {sql}")
    finally:
        dataset.close()
    assert isinstance(found, ResultTable)
    return [str(line) for (line,) in found.rows if "have no owner" in str(line)]


@pytest.fixture
def explain(tmp_path: Path) -> Explain:
    return lambda sql: _notes(tmp_path / str(abs(hash(sql))), sql)


def test_a_column_that_cannot_be_null_needs_no_note(explain: Explain) -> None:
    assert explain("SELECT COUNT(*) FROM customers") == []


def test_an_owner_that_may_be_null(explain: Explain) -> None:
    said = 'Note: rows of "sales" whose "customer" is NULL have no owner and do not count'
    assert explain("SELECT COUNT(*) FROM sales") == [said]
    assert explain("SELECT COUNT(*) FROM customers AS c JOIN sales AS s ON s.customer = c.id") == [said]


def test_a_way_that_may_end_on_either_step(explain: Explain) -> None:
    assert explain("SELECT COUNT(*) FROM lines") == [
        'Note: rows of "lines" whose "customer" of "sales" is NULL have no owner and do not count'
    ]
    assert explain("SELECT COUNT(*) FROM remarks") == [
        'Note: rows of "remarks" whose "sale" or "customer" of "sales" is NULL have no owner and do not count'
    ]


def test_the_schema_says_it_not_the_rows(tmp_path: Path) -> None:
    sql = "SELECT COUNT(*) FROM sales"
    none, some = (
        _notes(tmp_path / name, sql, customer=customer)
        for name, customer in (("none", "i % 100"), ("some", "CASE WHEN i > 9 THEN i % 100 END"))
    )
    assert none == some != []
    assert _notes(tmp_path / "never", sql, owner="NOT NULL") == []
