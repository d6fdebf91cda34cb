"""Keys that are made of groups of rows, not of rows: the same answers."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

import dpsql

# Values outside the bounds, none at all, and both in one table whose owners the engine holds unique.
AGES = [(-5, True), (0, None), (2, False), (3, True), (99, None)]
ROWS: list[tuple[int, int | None, bool | None, int]] = [(i, *pair, i) for i, pair in enumerate(AGES * 40)]
ROWS += [(1_000 + i, None, True, 7) for i in range(30)]

POLICY = """
[database]
url = "duckdb:///people.duckdb"
[privacy]
epsilon = 9000.0
query_epsilon = 900.0
max_query_epsilon = 900.0
accounting = "basic"
[tables.people]
unit = "id"
[tables.people.columns]
age = { min = 0, max = 3 }
flag = {}
number = { min = 0, max = 10 }
[users.alice]
"""


@pytest.fixture
def cursor(tmp_path: Path) -> dpsql.Cursor:
    with duckdb.connect(str(tmp_path / "people.duckdb")) as connection:
        connection.execute("CREATE TABLE people (id INTEGER PRIMARY KEY, age SMALLINT, flag BOOLEAN, number INTEGER)")
        connection.executemany("INSERT INTO people VALUES (?, ?, ?, ?)", ROWS)
    (tmp_path / "dpsql.toml").write_text(POLICY)
    return dpsql.connect(tmp_path / "dpsql.toml", user="alice").cursor()


def clamped(value: int | None, low: int, high: int) -> int | None:
    return None if value is None else min(max(value, low), high)


@pytest.mark.parametrize("where", ["", " WHERE number > 4", " WHERE age > 1", " WHERE flag"])
def test_sums_by_keys_of_groups(cursor: dpsql.Cursor, where: str) -> None:
    kept = [
        (clamped(age, 0, 3), flag, clamped(number, 0, 10) or 0)
        for _, age, flag, number in ROWS
        if not where
        or (where == " WHERE number > 4" and number > 4)
        or (where == " WHERE age > 1" and age is not None and age > 1)
        or (where == " WHERE flag" and flag)
    ]
    for row in cursor.execute(f"SELECT age, COUNT(*), SUM(number) FROM people{where} GROUP BY age").fetchall():
        mine = [number for age, _, number in kept if age == row[0]]
        assert row[1:] == (len(mine), sum(mine))
    for row in cursor.execute(f"SELECT flag, age, COUNT(*) FROM people{where} GROUP BY flag, age").fetchall():
        assert row[2] == sum((flag, age) == row[:2] for age, flag, _ in kept)


def test_a_key_that_is_added_up_too_is_clamped_before(cursor: dpsql.Cursor) -> None:
    for age, total in cursor.execute("SELECT age, SUM(age) FROM people GROUP BY age").fetchall():
        assert total == age * sum(clamped(row[1], 0, 3) == age for row in ROWS)  # type: ignore[operator]
