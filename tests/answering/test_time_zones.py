"""The session's time zone in process: what it decides, what it leaves alone, and how instants are handed over."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import pyarrow.parquet
import pytest

import dpsql
from dpsql.driver.frames import write
from dpsql.plan.zones import Zone, known_zone, zone_of_setting, zone_of_value

POLICY = """
[database]
url = "duckdb:///clinic.duckdb"
ledger = "clinic.ledger"
[privacy]
epsilon = 1000
query_epsilon = 100
[tables.people]
unit = "id"
[tables.people.columns]
joined = { min = 2020-01-01, max = 2020-12-31 }
[users.alice]
"""
SINCE_A_DAY = "SELECT COUNT(*) FROM people WHERE joined >= '2020-03-01'"
SINCE_A_MOMENT = "SELECT COUNT(*) FROM people WHERE joined >= '2020-03-01 00:00:00+13'"
MONTHS = "SELECT date_trunc('month', joined) AS month, COUNT(*) AS n FROM people GROUP BY 1 ORDER BY 1"


@pytest.fixture
def clinic(tmp_path: Path) -> Path:
    with duckdb.connect(str(tmp_path / "clinic.duckdb")) as connection:
        connection.execute(
            "CREATE TABLE people AS SELECT i AS id, TIMESTAMPTZ '2020-01-01 00:00:00+00' + to_hours(i) AS joined"
            " FROM range(8000) AS r(i)"
        )
    policy = tmp_path / "dpsql.toml"
    policy.write_text(POLICY)
    return policy


def ask(cursor: dpsql.Cursor, sql: str, *parameters: object) -> tuple[int, bool]:
    cursor.execute(sql, parameters or None)
    assert cursor.cost is not None
    ((count,),) = cursor.fetchall()
    assert isinstance(count, int)
    return count, cursor.cost.charged.epsilon > 0


def test_the_zone_is_part_of_a_question_that_depends_on_it(clinic: Path) -> None:
    with dpsql.connect(clinic, new_ledger=True) as connection:
        cursor = connection.cursor()
        in_utc, paid = ask(cursor, SINCE_A_DAY)
        assert paid and abs(in_utc - (8000 - 60 * 24)) <= 3
        moment, paid = ask(cursor, SINCE_A_MOMENT)
        assert paid
        cursor.execute("SET TimeZone = 'Pacific/Auckland'")
        in_auckland, _ = ask(cursor, SINCE_A_DAY)
        assert abs(in_auckland - (8000 - 60 * 24 + 13)) <= 3
        # The same instant, so the same question, however it is written.
        assert in_auckland == moment
        assert ask(cursor, SINCE_A_MOMENT) == (moment, False)
        cursor.execute("RESET TimeZone")
        assert ask(cursor, SINCE_A_DAY) == (in_utc, False)


def test_parameters_with_and_without_a_zone(clinic: Path) -> None:
    sql = "SELECT COUNT(*) FROM people WHERE joined >= %s"
    with dpsql.connect(clinic, new_ledger=True, timezone="Pacific/Auckland") as connection:
        cursor = connection.cursor()
        cursor.execute("SHOW TimeZone")
        assert cursor.fetchall() == [("Pacific/Auckland",)]
        first, _ = ask(cursor, SINCE_A_DAY)
        assert ask(cursor, sql, datetime(2020, 3, 1)) == (first, False)
        assert ask(cursor, sql, datetime(2020, 2, 29, 11, tzinfo=UTC)) == (first, False)


def test_instants_know_their_offset(clinic: Path, tmp_path: Path) -> None:
    with dpsql.connect(clinic, new_ledger=True, timezone="Europe/Berlin") as connection:
        cursor = connection.cursor()
        cursor.execute(MONTHS)
        rows = cursor.fetchall()
        months = [row[0] for row in rows]
        # The first hour of the year in Berlin is still in the year before in UTC, where the column begins.
        assert months[0] == datetime(2019, 12, 31, 23, tzinfo=UTC) and isinstance(months[6], datetime)
        assert months[6].utcoffset() == timedelta(hours=2) and months[6].hour == 0
        cursor.execute(MONTHS)
        table = cursor.to_arrow()
        assert str(table.schema.field("month").type) == "timestamp[us, tz=UTC]"
        assert table.column("month").to_pylist() == months
        cursor.execute(MONTHS)
        assert str(cursor.to_pandas()["month"].dtype) == "datetime64[us, UTC]"
        assert cursor.columns is not None
        write(tmp_path / "months.parquet", cursor.columns, rows)
        assert pyarrow.parquet.read_table(tmp_path / "months.parquet").column("month").to_pylist() == months


@pytest.mark.parametrize("name", ["Mars/Olympus", "+200", ""])
def test_a_zone_that_nobody_knows(clinic: Path, name: str) -> None:
    with pytest.raises(dpsql.Error) as refused:
        dpsql.connect(clinic, new_ledger=True, timezone=name)
    assert refused.value.sqlstate == "22023"


def test_names_as_postgresql_reads_them() -> None:
    def ahead(zone: Zone | None) -> float | None:
        local = None if zone is None else zone.to_local(datetime(2020, 7, 1))
        return None if local is None else (local - datetime(2020, 7, 1)) / timedelta(hours=1)

    assert ahead(zone_of_setting("europe/berlin")) == 2
    assert ahead(zone_of_setting("CET")) == 2 and ahead(zone_of_value("CET")) == 1
    assert ahead(zone_of_setting("-5")) == -5 and ahead(zone_of_value("-5")) == 5
    assert ahead(zone_of_setting("<+03>-03")) == 3 and ahead(zone_of_setting("GMT-03:30")) == 3.5
    assert ahead(zone_of_value("MSK")) is None
    berlin = known_zone("Europe/Berlin")
    assert pickle.loads(pickle.dumps(berlin)) is berlin  # noqa: S301 - its own bytes
