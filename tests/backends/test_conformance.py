"""One language on every engine: each accepted grammar case has the same exact tables on DuckDB and on PostgreSQL."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing

import duckdb
import pytest

from dpsql.backends import Backend
from dpsql.backends.postgres import PostgresBackend
from dpsql.generate.query import EngineQuery
from dpsql.tables import ExactTable
from dpsql.types import Value
from grammar_tests.case import Case, all_cases
from grammar_tests.lab import Dataset, Lab, open_database
from grammar_tests.servers import Server
from grammar_tests.toy_postgres import fill

Rows = dict[tuple[Value, ...], tuple[int, ...]]

ACCEPTED = [case for case in all_cases() if not case.expected.startswith("reject") and case.fails is None]


class Pair:
    """The toy data on two engines: clean under every policy, and dirty."""

    def __init__(self, lab: Lab, server: Server) -> None:
        self.lab = lab
        self._server = server
        self._datasets: dict[str, Dataset] = {}
        # Workers share a server.
        self._names = {name: f"{name}_{uuid.uuid4().hex[:8]}" for name in ("toy", "dirty")}
        for name, database in self._names.items():
            server.create_database(database)
            with server.connect(database) as connection, duckdb.connect(":memory:") as data:
                data.execute(f"ATTACH '{lab.directory / f'{name}.duckdb'}' AS source (READ_ONLY)")
                data.execute("USE source")
                fill(connection, data)
        self.dirty_duckdb: Backend = open_database(lab.directory / "dirty.duckdb")
        self.dirty_postgres: Backend = self._open("dirty")
        self.dirty_postgres.schema()

    def dataset(self, policy: str) -> Dataset:
        if policy not in self._datasets:
            self._datasets[policy] = Dataset(self.lab.directory, policy, self._open("toy"))
        return self._datasets[policy]

    def close(self) -> None:
        for dataset in self._datasets.values():
            dataset.close()
        self.dirty_duckdb.close()
        self.dirty_postgres.close()

    def _open(self, database: str) -> Backend:
        return PostgresBackend(self._server.url(self._names[database]), memory="64MB", threads=1)


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with closing(Lab(tmp_path_factory.mktemp("lab"))) as made:
        yield made


@pytest.fixture(scope="session")
def pair(lab: Lab, server: Server) -> Iterator[Pair]:
    with closing(Pair(lab, server)) as made:
        yield made


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in ACCEPTED])
def test_exact_tables_are_the_same(case: Case, pair: Pair) -> None:
    on_duckdb, on_postgres = pair.lab.dataset(case.policy), pair.dataset(case.policy)
    expected, asked_duckdb = on_duckdb.answer(case)
    found, asked_postgres = on_postgres.answer(case)
    assert [_rows(tables) for tables in on_postgres.backend.found] == [
        _rows(tables) for tables in on_duckdb.backend.found
    ]
    assert found.table.rows == expected.table.rows
    for ours, theirs in zip(asked_postgres, asked_duckdb, strict=True):
        assert _run(pair.dirty_postgres, ours) == _run(pair.dirty_duckdb, theirs)


def _run(backend: Backend, queries: Sequence[EngineQuery]) -> list[Rows]:
    return _rows(backend.execute(queries, timeout=60))


def _rows(tables: Sequence[ExactTable]) -> list[Rows]:
    found: list[Rows] = []
    for table in tables:
        sums = [column.tolist() for column in table.sums]
        found.append({key: tuple(column[i] for column in sums) for i, key in enumerate(table.keys)})
    return found
