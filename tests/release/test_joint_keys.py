"""Keys that depend on each other: which combinations are returned, and which answers are made of them."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import duckdb
import pytest

import dpsql

POLICY = """
[database]
url = "duckdb:///data.duckdb"

[privacy]
epsilon = 9_000
delta = 1e-3
query_epsilon = 1_000
max_query_epsilon = 2_000

[users.alice]

[tables.people]
unit = "id"

[tables.people.columns]
seller = {}
seen = { min = 2021-01-01, max = 2021-12-31 }

[tables.sellers]
public = true

[tables.days]
public = true

[tables.days.columns]
year = { min = 2019, max = 2021 }
quarter = { min = 0, max = 4 }
"""
BY_SELLER = (
    "SELECT s.first, s.last, COUNT(*) FROM people p JOIN sellers s ON s.id = p.seller GROUP BY 1, 2 ORDER BY 1, 2"
)


def fill(path: Path, sellers: list[tuple[int, str, str]]) -> None:
    with duckdb.connect(str(path / "data.duckdb")) as data:
        data.execute("CREATE TABLE IF NOT EXISTS people (id int PRIMARY KEY, seller int, seen timestamp)")
        data.execute("DELETE FROM people")
        data.execute("INSERT INTO people SELECT i, i % 3, TIMESTAMP '2021-01-01' + to_hours(i) FROM range(900) AS r(i)")
        data.execute("CREATE TABLE IF NOT EXISTS sellers (id int PRIMARY KEY, first text, last text)")
        data.execute("DELETE FROM sellers")
        data.execute(
            "CREATE TABLE IF NOT EXISTS days AS SELECT i AS id, 2019 + i // 500 AS year, 1 + i % 3 AS quarter"
            " FROM range(1500) AS r(i)"
        )
        data.executemany("INSERT INTO sellers VALUES (?, ?, ?)", sellers)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    fill(tmp_path, [(0, "Ann", "Lee"), (1, "Bob", "Lee"), (2, "Ann", "Ray")])
    (tmp_path / "dpsql.toml").write_text(POLICY)
    return tmp_path


def ask(path: Path, sql: str) -> list[tuple[object, ...]]:
    with closing(dpsql.connect(path / "dpsql.toml", user="alice")) as connection:
        return [
            tuple(round(value, -1) if isinstance(value, int) else value for value in row)
            for row in connection.cursor().execute(sql).fetchall()
        ]


def test_people_who_do_not_exist_are_not_returned(path: Path) -> None:
    assert ask(path, BY_SELLER) == [("Ann", "Lee", 300), ("Ann", "Ray", 300), ("Bob", "Lee", 300)]


def test_a_larger_public_table_has_the_declared_combinations_that_it_has(path: Path) -> None:
    """It has no quarter 0, and none beyond the third, which the policy allows."""
    joined = "people p JOIN days d ON d.id = p.seller"
    sql = f"SELECT d.year, d.quarter, COUNT(*) FROM {joined} WHERE d.year < 2021 GROUP BY 1, 2"
    with closing(dpsql.connect(path / "dpsql.toml", user="alice")) as connection:
        rows = connection.cursor().execute(sql).fetchall()
    assert [row[:2] for row in rows] == [(year, quarter) for year in (2019, 2020) for quarter in (1, 2, 3)]


def test_an_answer_is_not_made_of_one_with_other_combinations(path: Path) -> None:
    """The public table changes such that each name is still there, and none of the old combinations."""
    ask(path, BY_SELLER)
    fill(path, [(0, "Ann", "Lee"), (1, "Bob", "Ray"), (2, "Bob", "Ray")])
    assert ask(path, BY_SELLER) == [("Ann", "Lee", 300), ("Bob", "Ray", 600)]


def test_a_coarser_question_is_made_of_combinations(path: Path) -> None:
    ask(path, BY_SELLER)
    with closing(dpsql.connect(path / "dpsql.toml", user="alice")) as connection:
        cursor = connection.cursor()
        sql = "SELECT s.first, COUNT(*) FROM people p JOIN sellers s ON s.id = p.seller GROUP BY 1 ORDER BY 1"
        rows = cursor.execute(sql).fetchall()
        assert [name for name, _ in rows] == ["Ann", "Bob"]
        assert cursor.cost is not None and cursor.cost.epsilon == 0


@pytest.mark.parametrize(
    ("keys", "cells"),
    [
        ("date_trunc('month', seen), TO_CHAR(seen, 'YYYY-MM')", 12),
        ("EXTRACT(quarter FROM seen), EXTRACT(month FROM seen), TO_CHAR(seen, 'Mon')", 12),
        ("EXTRACT(hour FROM seen), CASE WHEN EXTRACT(hour FROM seen) < 12 THEN 'am' ELSE 'pm' END", 24),
        ("CASE WHEN seen < '2021-07-01' THEN 1 ELSE 2 END, EXTRACT(quarter FROM seen)", 4),
        ("CASE WHEN seen < '2021-08-15' THEN 1 ELSE 2 END, EXTRACT(quarter FROM seen)", 5),
        ("date_trunc('week', seen), EXTRACT(month FROM seen)", 53 + 8),
    ],
)
def test_parts_of_one_moment_go_together(path: Path, keys: str, cells: int) -> None:
    """Eight of the weeks of 2021 lie in two months."""
    assert len(ask(path, f"SELECT {keys}, COUNT(*) FROM people GROUP BY {keys}")) == cells


ZONED_KEYS = [
    ("date_trunc('month', at), to_char(at, 'YYYY-MM')", 13),  # the last hour of the year is one of 2022 in Berlin
    ("date_trunc('month', at AT TIME ZONE 'America/New_York'), to_char(at, 'YYYY-MM')", 25),
    ("date_trunc('day', seen AT TIME ZONE 'Europe/Berlin'), to_char(seen AT TIME ZONE 'Europe/Berlin', 'Mon')", 366),
    ("at::date, EXTRACT(isodow FROM at)", 366),
    ("CASE WHEN at::date < '2021-07-01' THEN 1 ELSE 2 END, EXTRACT(quarter FROM at)", 5),
    ("CASE WHEN at < '2021-07-01' THEN 1 ELSE 2 END, EXTRACT(quarter FROM at)", 5),
    ("CASE WHEN at::timestamp < '2021-07-01' THEN 1 ELSE 2 END, EXTRACT(quarter FROM at)", 5),
    ("CASE WHEN at::timestamp < '2021-04-01' THEN 1 ELSE 2 END, EXTRACT(quarter FROM at AT TIME ZONE 'UTC')", 5),
    ("EXTRACT(hour FROM at), EXTRACT(hour FROM at AT TIME ZONE 'UTC')", 48),
    # Months begin earlier than those of UTC in summer time only.
    ("date_trunc('month', seen), EXTRACT(month FROM at AT TIME ZONE 'Europe/London')", 12 + 7),
]


@pytest.mark.parametrize(("keys", "most"), ZONED_KEYS)
def test_parts_of_one_instant_go_together_in_every_zone(path: Path, keys: str, most: int) -> None:
    """Every combination of a year's half hours is returned, those of the hours around changes of the clock included."""
    view = "SELECT id, seen, seen AT TIME ZONE 'UTC' AS at FROM people"
    with duckdb.connect(str(path / "data.duckdb")) as data:
        data.execute("DELETE FROM people")
        moment = "'2021-01-01'::timestamp + to_minutes(30 * i)"
        data.execute(f"INSERT INTO people SELECT i, i % 3, {moment} FROM range(17520) AS r(i)")
    with closing(dpsql.connect(path / "dpsql.toml", user="alice", timezone="Europe/Berlin")) as connection:
        rows = connection.cursor().execute(f"SELECT {keys}, COUNT(*) FROM ({view}) v GROUP BY 1, 2").fetchall()
    assert len(rows) <= most
    assert sum(row[-1] for row in rows if isinstance(row[-1], int)) == 17_520  # the price leaves no noise
