"""Queries that read the clock: one moment for a statement, to the minute, and paid as the constant would be."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import duckdb
import pytest

import dpsql
from dpsql.answering.open_dataset import check
from dpsql.answering.releases import this_minute

POLICY = """
[database]
url = "duckdb:///clinic.duckdb"
[privacy]
epsilon = 100
query_epsilon = 10
[tables.people]
unit = "id"
[tables.people.columns]
joined = { min = 2020-01-01, max = 2029-12-31 }
[users.alice]
[views.recent]
sql = "SELECT * FROM people WHERE joined > now() - INTERVAL '1 hour'"
"""
PATIENTS = "SELECT COUNT(*) FROM people WHERE joined > now() - INTERVAL '1 hour'"


@pytest.fixture
def clinic(tmp_path: Path) -> Path:
    with duckdb.connect(str(tmp_path / "clinic.duckdb")) as connection:
        connection.execute(
            "CREATE TABLE people AS SELECT i AS id, TIMESTAMP '2024-03-31 23:00' + to_minutes(i) AS joined"
            " FROM range(1000) AS r(i)"
        )
    policy = tmp_path / "dpsql.toml"
    policy.write_text(POLICY)
    return policy


def paid(cursor: dpsql.Cursor, sql: str) -> bool:
    cursor.execute(sql)
    assert cursor.cost is not None
    return cursor.cost.charged.epsilon > 0


@pytest.mark.parametrize("sql", [PATIENTS, "SELECT COUNT(*) FROM recent"])
def test_the_same_minute_is_the_same_question(clinic: Path, monkeypatch: pytest.MonkeyPatch, sql: str) -> None:
    with dpsql.connect(clinic) as connection:
        cursor = connection.cursor()
        monkeypatch.setattr("dpsql.answering.releases.this_minute", lambda: datetime(2024, 4, 1, 0, 30))
        assert paid(cursor, sql)
        first = cursor.fetchall()
        assert not paid(cursor, sql)
        assert cursor.fetchall() == first
        monkeypatch.setattr("dpsql.answering.releases.this_minute", lambda: datetime(2024, 4, 1, 9, 30))
        assert paid(cursor, sql)
        ((found,),) = cursor.fetchall()
        assert isinstance(found, int) and abs(found - 429) < 20  # of 1,000 minutes, those after 8:30


@pytest.mark.parametrize("since", ["date_trunc('month', now())", "CURRENT_DATE", "CURRENT_DATE - 30", "now()::date"])
def test_what_is_made_of_the_clock_is_a_constant(clinic: Path, monkeypatch: pytest.MonkeyPatch, since: str) -> None:
    with dpsql.connect(clinic) as connection:
        cursor = connection.cursor()
        monkeypatch.setattr("dpsql.answering.releases.this_minute", lambda: datetime(2024, 4, 1, 0, 30))
        assert paid(cursor, f"SELECT COUNT(*) FROM people WHERE joined >= {since}")
        monkeypatch.setattr("dpsql.answering.releases.this_minute", lambda: datetime(2024, 4, 1, 23, 59))
        assert not paid(cursor, f"SELECT COUNT(*) FROM people WHERE joined >= {since}")
        monkeypatch.setattr("dpsql.answering.releases.this_minute", lambda: datetime(2024, 5, 1, 0, 0))
        assert paid(cursor, f"SELECT COUNT(*) FROM people WHERE joined >= {since}")


def test_a_view_may_read_it(clinic: Path) -> None:
    assert check(clinic).catalog.views


def test_it_is_utc_and_shows_minutes() -> None:
    minute = this_minute()
    assert 0 <= (datetime.now(UTC).replace(tzinfo=None) - minute).total_seconds() < 120  # a busy machine is slow
    assert (this_minute().second, this_minute().microsecond, this_minute().tzinfo) == (0, 0, None)
