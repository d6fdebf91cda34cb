"""The 22 queries of TPC-H with customers as the unit: their verdicts, the true answers, and customers who leave.

The queries stand in tpch/ as the specification has them. `python -m grammar_tests --rewrite tpch` writes verdicts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import duckdb
import pytest

from dpsql.compliance.cases import Case, read
from dpsql.compliance.lab import open_database
from dpsql.errors import Error
from dpsql.lowering.query import EngineQuery
from dpsql.tables import ExactTable
from grammar_tests.compare import difference
from grammar_tests.neighbours import sum_faults
from grammar_tests.tpch_data import TPCH, make
from grammar_tests.tpch_dataset import TpchDataset

SCALE = 0.01
CASES = [case for path in sorted(TPCH.glob("q*.txt")) for case in read(path)]
# Reasons why some are refused: they are about single customers, or compare the rows of different ones.
REFUSED = {"q03": "42501", "q10": "42501", "q17": "0A000", "q18": "42501", "q20": "0A000"}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tpch")
    make(made, SCALE)
    return made


@pytest.fixture(scope="module")
def dataset(directory: Path) -> Iterator[TpchDataset]:
    with closing(TpchDataset(directory / "tpch.toml")) as made:
        yield made


@pytest.fixture(scope="module")
def without_one(directory: Path) -> Path:
    """The same database after the customer with the most orders has left, with the orders and their lines."""
    path = directory / "without.duckdb"
    path.write_bytes((directory / "tpch.duckdb").read_bytes())
    with duckdb.connect(str(path)) as connection:
        most = "SELECT o_custkey FROM orders GROUP BY 1 ORDER BY COUNT(*) DESC, 1 LIMIT 1"
        ((customer,),) = connection.execute(most).fetchall()
        orders = f"SELECT o_orderkey FROM orders WHERE o_custkey = {customer}"
        connection.execute(f"DELETE FROM lineitem WHERE l_orderkey IN ({orders})")
        connection.execute(f"DELETE FROM orders WHERE o_custkey = {customer}")
        connection.execute(f"DELETE FROM customer WHERE c_custkey = {customer}")
    return path


def test_all_are_there() -> None:
    assert [case.path.stem for case in CASES] == [f"q{number:02}" for number in range(1, 23)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.path.stem)
def test_query(case: Case, dataset: TpchDataset, directory: Path, without_one: Path) -> None:
    assert dataset.expected(case) == case.expected
    if case.path.stem in REFUSED:
        with pytest.raises(Error) as refusal:
            dataset.answer(case.sql)
        assert refusal.value.sqlstate == REFUSED[case.path.stem]
        return
    answer, asked = dataset.answer(case.sql)
    truth = _raw(directory / "tpch.duckdb", case.sql)
    ordered = "LIMIT" not in case.sql and not answer.release.measurements
    assert difference(answer.release, answer.table.rows, truth, ordered=ordered) is None
    paid = [measurement for measurement in answer.release.measurements if measurement.statistics]
    before = [_run(directory / "tpch.duckdb", queries) for queries in asked]
    after = [_run(without_one, queries) for queries in asked]
    for measurement, mine, other in zip(paid, before, after, strict=True):
        assert list(sum_faults(measurement, mine, other)) == []


def _raw(path: Path, sql: str) -> list[tuple[object, ...]]:
    with duckdb.connect(str(path), read_only=True, config={"threads": 1, "memory_limit": "1GB"}) as connection:
        return connection.execute(sql).fetchall()


def _run(path: Path, queries: Sequence[EngineQuery]) -> list[ExactTable]:
    with closing(open_database(path)) as engine:
        return engine.execute(queries, timeout=60)
