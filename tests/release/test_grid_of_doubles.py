"""Columns of doubles with natural bounds can be summed at every sensible price, whatever the bounds are."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

import dpsql
from dpsql.errors import TooMuchNoise

POLICY = """
[database]
url = "duckdb:///fees.duckdb"
[privacy]
epsilon = 4.0
delta = 1e-6
accounting = "{accounting}"
query_epsilon = 0.1
[users.alice]
[tables.visits]
unit = "patient"
max_rows_per_unit = {rows}
[tables.visits.columns]
fee = {{ min = 0, max = {most} }}
fine = {{ min = 0, max = {most}, step = 1e-8 }}
"""
AGGREGATES = "COUNT(*), SUM({0}), AVG({0}), STDDEV({0}), VARIANCE({0} + 1), SUM({0} * {0}), CORR({0}, {0} - 1)"


def opened(folder: Path, accounting: str, rows: int, most: int) -> dpsql.Connection:
    with duckdb.connect(str(folder / "fees.duckdb")) as database:
        database.execute("CREATE TABLE visits AS SELECT i AS patient, i % 7.5 AS fee, 0.5 AS fine FROM range(50) t(i)")
        database.execute("ALTER TABLE visits ALTER fee TYPE double; ALTER TABLE visits ALTER fine TYPE double")
    policy = folder / "dpsql.toml"
    policy.write_text(POLICY.format(accounting=accounting, rows=rows, most=most))
    return dpsql.connect(policy)


@pytest.mark.parametrize("accounting", ["zcdp", "basic"])
@pytest.mark.parametrize("rows", [1, 40, 50, 1_000])
@pytest.mark.parametrize("most", [1, 50, 100, 1_000, 500_000])
def test_doubles_are_summed_at_every_sensible_price(tmp_path: Path, accounting: str, rows: int, most: int) -> None:
    with opened(tmp_path, accounting, rows, most) as connection, connection.cursor() as cursor:
        for epsilon in ("0.1", "0.001", "0.00001"):
            cursor.execute(f"SET dpsql.epsilon = {epsilon}")
            assert "Price: epsilon" in cursor.explain(f"SELECT {AGGREGATES.format('fee')} FROM visits")


def test_an_answer_comes_out_on_the_coarser_grid(tmp_path: Path) -> None:
    with opened(tmp_path, "zcdp", 50, 1_000) as connection, connection.cursor() as cursor:
        cursor.execute("SET dpsql.epsilon = 0.00001")
        cursor.execute("SELECT SUM(fee), STDDEV(fee) FROM visits")
        assert cursor.fetchone() is not None


def test_a_declared_step_stays_as_declared(tmp_path: Path) -> None:
    with opened(tmp_path, "zcdp", 50, 1_000) as connection, connection.cursor() as cursor:
        assert "in steps of 1e-08" in cursor.explain("SELECT SUM(fine) FROM visits")
        cursor.execute("SET dpsql.epsilon = 0.00001")
        with pytest.raises(TooMuchNoise, match="more noise than 64 bits hold"):
            cursor.explain("SELECT SUM(fine) FROM visits")
