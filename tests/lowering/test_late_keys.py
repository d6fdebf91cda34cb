"""Keys that are made of groups of rows, not of rows: the same answers."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import duckdb
import pytest

import dpsql
from dpsql.answering.open_dataset import open_dataset
from dpsql.privacy.estimators.basis import polynomial
from dpsql.release import QuerySettings

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


# Dates beyond the bounds, beyond the calendar and unknown; amounts beyond their bounds on both sides, and unknown.
DAYS = ["2019-06-01", "2020-01-31", "2020-02-01", "2021-05-05", "infinity", "-infinity", None]
AMOUNTS = ["-3.50", "0.00", "1.25", "9.99", "77.77", None]

VISITS = """
[database]
url = "duckdb:///visits.duckdb"
[privacy]
epsilon = 9000.0
query_epsilon = 900.0
max_query_epsilon = 900.0
accounting = "basic"
[tables.visits]
unit = "id"
[tables.visits.columns]
day = { min = 2020-01-01, max = 2020-12-31 }
amount = { min = 0, max = 10 }
town = { values = ["here", "there"] }
[users.alice]
"""


@pytest.fixture
def visits(tmp_path: Path) -> dpsql.Cursor:
    rows = [(day, amount, town) for day in DAYS for amount in AMOUNTS for town in ("here", "there", "nowhere", None)]
    with duckdb.connect(str(tmp_path / "visits.duckdb")) as connection:
        connection.execute("CREATE TABLE visits (id INTEGER PRIMARY KEY, day DATE, amount DECIMAL(12,2), town VARCHAR)")
        connection.executemany("INSERT INTO visits VALUES (?, ?, ?, ?)", [(i, *row) for i, row in enumerate(rows)])
    (tmp_path / "dpsql.toml").write_text(VISITS)
    return dpsql.connect(tmp_path / "dpsql.toml", user="alice").cursor()


def test_months_are_made_of_days_and_amounts_beyond_their_bounds_are_clamped(visits: dpsql.Cursor) -> None:
    query = "SELECT EXTRACT(month FROM day), COUNT(*), SUM(amount) FROM visits GROUP BY 1 ORDER BY 1"
    # 2019 and 2021 are clamped to January and December; 0 + 0 + 1.25 + 9.99 + 10 for each day and town.
    each, found = 4 * 21.24, {int(str(row[0])): row[1:] for row in visits.execute(query).fetchall()}
    days = {1: 2, 2: 1, 12: 1}
    for month, row in found.items():
        assert row[0] == days.get(month, 0) * 24
        assert float(str(row[1])) == pytest.approx(days.get(month, 0) * each, abs=1)  # the noise is of a few cents


def test_texts_are_told_from_undeclared_ones(visits: dpsql.Cursor) -> None:
    query = "SELECT town, COUNT(*), SUM(amount) FROM visits GROUP BY town ORDER BY 1"
    found = visits.execute(query).fetchall()
    assert [row[:2] for row in found] == [("here", 42), ("there", 42)]
    assert all(float(str(row[2])) == pytest.approx(7 * 21.24, abs=1) for row in found)


@pytest.mark.parametrize(
    ("condition", "days"),
    [("day < DATE '2020-02-01'", 2), ("day >= DATE '2020-02-01'", 2), ("DATE '2020-02-01' = day", 1)],
)
def test_dates_beyond_the_calendar_meet_no_condition(visits: dpsql.Cursor, condition: str, days: int) -> None:
    assert visits.execute(f"SELECT COUNT(*) FROM visits WHERE {condition}").fetchall() == [(days * 24,)]


# Whole numbers and decimals within their bounds and beyond, unknown, and with more digits than can be squared.
NUMBERS = [-(2**31), -5, 0, 3, 7, 2**31 - 1, None]
PRICES = ["-9999999999.99", "-3.50", "0.00", "1.25", "9.99", "9999999999.99", None]
MOMENTS = """
[database]
url = "duckdb:///moments.duckdb"
[privacy]
epsilon = 9000.0
accounting = "basic"
[tables.people]
unit = "id"
[tables.people.columns]
age = { min = 0, max = 3 }
number = { min = -4, max = 5 }
price = { min = -1, max = 10 }
wide = { min = 0, max = 10_000_000_000 }
[users.alice]
"""


@pytest.mark.parametrize("key", ["age, ", ""])
@pytest.mark.parametrize("column", ["number", "price", "wide"])
def test_moments_are_made_of_sums_and_squares(tmp_path: Path, column: str, key: str) -> None:
    rows = [(age, number, price) for age in (-1, 0, 3, 9, None) for number in NUMBERS for price in PRICES]
    with duckdb.connect(str(tmp_path / "moments.duckdb")) as connection:
        types = "age SMALLINT, number INTEGER, price DECIMAL(12,2), wide BIGINT"
        connection.execute(f"CREATE TABLE people (id INTEGER PRIMARY KEY, {types})")
        stored = [(i, *row, None if row[1] is None else row[1] * 2**32) for i, row in enumerate(rows)]
        connection.executemany("INSERT INTO people VALUES (?, ?, ?, ?, ?)", stored)
    (tmp_path / "dpsql.toml").write_text(MOMENTS)
    dataset = open_dataset(tmp_path / "dpsql.toml")
    grouped = " GROUP BY age" if key else ""
    release = dataset.compile(
        f"SELECT {key}VARIANCE({column}), AVG({column}) FROM people{grouped}", (), QuerySettings()
    )
    (measurement,) = release.measurements
    (branch,) = measurement.branches
    (exact,) = dataset._engine.execute([branch.query], timeout=60)
    place = {"number": 2, "price": 3, "wide": 4}[column]
    found = {cell: sums for cell, *sums in zip(exact.keys, *(column.tolist() for column in exact.sums), strict=True)}
    for cell, sums in found.items():
        mine = [row[place] for row in stored if not key or clamped(row[1], 0, 3) == cell[0]]
        for branch_place, total in zip(branch.statistics, sums, strict=True):
            s = measurement.statistics[branch_place]
            values = [min(max(round(Fraction(v) / s.step), s.low), s.high) for v in mine if v is not None]
            made = polynomial(s.shape, s.low, s.high, s.centre)
            assert total == sum(made.squares * g * g + made.times * g + made.plus for g in values) * s.factor
    assert len(found) == (3 if key else 1)  # those of both ends, and the remainder
