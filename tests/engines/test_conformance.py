"""One language on every engine, and one way to fail: dpsql's own engines pass what it asks of those from outside."""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from types import MappingProxyType

import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from dpsql.compliance.suite import EngineCompliance
from dpsql.compliance.toys import KINDS, DuckDBPlace, ToyColumn, ToyTable
from dpsql.types import Kind, Type
from grammar_tests.servers import Server
from tests.engines.pair import Pair

_NATIVE = {
    Kind.BOOLEAN: "boolean",
    Kind.DOUBLE: "float8",
    Kind.TEXT: "text",
    Kind.DATE: "date",
    Kind.TIMESTAMP: "timestamp",
}


class PostgresPlace:
    kinds = KINDS

    def __init__(self, server: Server) -> None:
        self._server = server

    @property
    def server(self) -> PostgresPlace:
        return self

    def running(self, url: str) -> int:
        with self._server.connect() as connection:
            row = connection.execute(
                "SELECT count(*) FROM pg_stat_activity"
                " WHERE datname = %s AND state = 'active' AND backend_type = 'client backend'",
                [_database(url)],
            ).fetchone()
        assert row is not None
        return int(row[0])

    def hang_up(self, url: str) -> None:
        with self._server.connect() as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [_database(url)]
            )

    def refused(self, url: str) -> str:
        return url.replace("postgres@", "nobody:secret@")

    def change(self, url: str) -> None:
        with self._server.connect(_database(url)) as connection:
            connection.execute("ALTER TABLE main.people ADD COLUMN years int")
            connection.execute("ALTER TABLE main.people DROP COLUMN age")

    def make(self, name: str, tables: Sequence[ToyTable]) -> str:
        database = f"{name}_{uuid.uuid4().hex[:8]}"  # workers share a server
        self._server.create_database(database)
        with self._server.connect(database) as connection:
            connection.execute("CREATE SCHEMA main")
            connection.execute(f"ALTER DATABASE {database} SET search_path = main")
            for table in tables:
                place = sql.Identifier("main", table.name)
                columns = [_column(column) for column in table.columns]
                if table.key:
                    key = sql.SQL(", ").join(map(sql.Identifier, table.key))
                    columns.append(sql.SQL("PRIMARY KEY ({})").format(key))
                connection.execute(sql.SQL("CREATE TABLE {} ({})").format(place, sql.SQL(", ").join(columns)))
                with connection.cursor().copy(sql.SQL("COPY {} FROM STDIN").format(place)) as target:
                    for row in table.rows:
                        target.write_row([None if cell is None else _spelled(cell) for cell in row])
        return self._server.url(database)


def _database(url: str) -> str:
    return str(conninfo_to_dict(url)["dbname"])


def _column(column: ToyColumn) -> sql.Composed:
    null = sql.SQL("" if column.nullable else "NOT NULL")
    return sql.SQL("{} {} {}").format(sql.Identifier(column.name), sql.SQL(_native(column.type)), null)


def _native(type_: Type) -> str:
    if type_.kind is Kind.DECIMAL:
        return f"numeric({type_.precision}, {type_.scale})"
    if type_.kind is Kind.INTEGER:
        return "bigint" if type_.precision > 10 else "int" if type_.precision > 5 else "smallint"
    return _NATIVE[type_.kind]


def _spelled(cell: str) -> str:
    """DuckDB writes the era behind the date, PostgreSQL behind the time."""
    return re.sub(r"^(\d+-\d\d-\d\d) \(BC\)( [\d:.]+)?$", r"\1\2 BC", cell)


class TestPostgres(EngineCompliance):
    endless = "SELECT count(*) FROM generate_series(1, 1000000000000) AS r(x) WHERE (x * x) % 7 = 3"
    failing = "SELECT CAST(city AS bigint) FROM main.people"
    writing = ("DELETE FROM main.people", "CREATE TABLE main.t (a int)", "COPY main.people TO STDOUT")
    wrong = ("postgresql://me:secret@localhost:1/nowhere", "postgresql://me:secret@/nowhere?host=/nowhere")

    @pytest.fixture(scope="class")
    @classmethod
    def place(cls, server: Server) -> PostgresPlace:
        return PostgresPlace(server)


class TestDuckDB(EngineCompliance):
    endless = "SELECT count(*) FROM range(1000000000000) AS r(x) WHERE (x * x) % 7 = 3"
    failing = "SELECT CAST(city AS BIGINT) FROM people"
    writing = ("DELETE FROM people", "CREATE TABLE t (a INT)", "ATTACH ':memory:' AS other", "COPY people TO 'out.csv'")
    wrong = ("duckdb:///nowhere.duckdb",)
    without = MappingProxyType(
        {
            "server": "DuckDB runs within the process of dpsql, and a file has no password",
            "change": "nobody writes to a file that is open",
        }
    )
    test_exact_tables_are_those_of_duckdb = None  # type: ignore[assignment]  # they are its own

    @pytest.fixture(scope="class")
    @classmethod
    def place(cls, tmp_path_factory: pytest.TempPathFactory) -> DuckDBPlace:
        return DuckDBPlace(tmp_path_factory.mktemp("duckdb"))


def test_both_engines_say_which_rows_belong_to_nobody(pair: Pair) -> None:
    on_duckdb, on_postgres = (
        {name: table.unowned_text for name, table in dataset.dataset.catalog.tables.items()}
        for dataset in (pair.lab.dataset("zcdp"), pair.dataset("zcdp"))
    )
    assert on_postgres["visits"] == on_duckdb["visits"] is not None
    assert on_postgres["remarks"] == on_duckdb["remarks"] is not None
    assert on_postgres["people"] is on_duckdb["people"] is None
