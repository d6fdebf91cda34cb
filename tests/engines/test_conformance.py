"""One language on every engine: each accepted grammar case has the same exact tables on DuckDB and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dpsql.compliance.cases import Case
from dpsql.engines.base import Engine
from dpsql.lowering.query import EngineQuery
from dpsql.tables import ExactTable
from dpsql.types import Value
from tests.engines.pair import ACCEPTED, Pair

Rows = dict[tuple[Value, ...], tuple[int, ...]]


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in ACCEPTED])
def test_exact_tables_are_the_same(case: Case, pair: Pair) -> None:
    on_duckdb, on_postgres = pair.lab.dataset(case.policy), pair.dataset(case.policy)
    expected, asked_duckdb = on_duckdb.answer(case)
    found, asked_postgres = on_postgres.answer(case)
    assert [_rows(tables) for tables in on_postgres.engine.found] == [
        _rows(tables) for tables in on_duckdb.engine.found
    ]
    assert found.table.rows == expected.table.rows
    for ours, theirs in zip(asked_postgres, asked_duckdb, strict=True):
        assert _run(pair.dirty_postgres, ours) == _run(pair.dirty_duckdb, theirs)


def test_both_engines_say_which_rows_belong_to_nobody(pair: Pair) -> None:
    on_duckdb, on_postgres = (
        {name: table.unowned_text for name, table in dataset.dataset.catalog.tables.items()}
        for dataset in (pair.lab.dataset("zcdp"), pair.dataset("zcdp"))
    )
    assert on_postgres["visits"] == on_duckdb["visits"] is not None
    assert on_postgres["remarks"] == on_duckdb["remarks"] is not None
    assert on_postgres["people"] is on_duckdb["people"] is None


def _run(engine: Engine, queries: Sequence[EngineQuery]) -> list[Rows]:
    return _rows(engine.execute(queries, timeout=60))


def _rows(tables: Sequence[ExactTable]) -> list[Rows]:
    found: list[Rows] = []
    for table in tables:
        sums = [column.tolist() for column in table.sums]
        found.append({key: tuple(column[i] for column in sums) for i, key in enumerate(table.keys)})
    return found
