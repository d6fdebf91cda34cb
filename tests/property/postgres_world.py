"""The small world on a PostgreSQL server. What a cell of DuckDB's cannot be there, it is NULL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import psycopg

from dpsql.engines.postgres.connections import SETTINGS
from dpsql.engines.postgres.engine import numbered
from dpsql.lowering.postgres_dialect import POSTGRES
from dpsql.lowering.query import EngineQuery
from tests.property.world import (
    COLUMNS,
    DETAIL_COLUMNS,
    DETAILS,
    KEY,
    OWNER,
    PUBLIC,
    PUBLIC_COLUMNS,
    PUBLIC_ROWS,
    TABLE,
    Declared,
    Row,
)

_NATIVE = {"DOUBLE": "double precision", "FLOAT": "real"}


class PostgresWorld:
    dialect = POSTGRES

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True, cursor_factory=psycopg.RawCursor)
        for name, value in SETTINGS.items():
            self._connection.execute("SELECT set_config($1, $2, false)", [name, value])
        self._cells: dict[tuple[str, str], str] = {}
        self._run("CREATE SCHEMA main")
        self._create(PUBLIC, {name: native for name, (native, _) in PUBLIC_COLUMNS.items()})
        self._run(f"INSERT INTO main.{PUBLIC} VALUES {PUBLIC_ROWS}")

    def close(self) -> None:
        self._connection.close()

    def fill(self, declared: Declared, rows: Sequence[Row], details: Sequence[Row] = ()) -> None:
        columns = {name: native for name, (native, _) in COLUMNS.items()}
        self._fill(TABLE, {OWNER: declared.owner_type, KEY: "INTEGER", **columns}, rows)
        self._fill(DETAILS, {"ref": "INTEGER", **{n: native for n, (native, _) in DETAIL_COLUMNS.items()}}, details)

    def run(self, query: EngineQuery, parameters: Mapping[str, object]) -> dict[tuple[Any, ...], tuple[int, ...]]:
        rows = self._connection.execute(*numbered(query.sql, parameters)).fetchall()
        found = {row[: query.keys]: row[query.keys :] for row in rows}
        assert len(found) == len(rows), "a key came twice"
        return found

    def _fill(self, table: str, columns: Mapping[str, str], rows: Sequence[Row]) -> None:
        self._create(table, columns)
        if rows:
            cells = [[self._cell(row.get(name, "NULL"), native) for name, native in columns.items()] for row in rows]
            listed = ", ".join(f"({', '.join(row)})" for row in cells)
            self._run(f"INSERT INTO main.{table} VALUES {listed}")

    def _create(self, table: str, columns: Mapping[str, str]) -> None:
        listed = ", ".join(f"{name} {_NATIVE.get(native, native)}" for name, native in columns.items())
        self._run(f"DROP TABLE IF EXISTS main.{table}; CREATE TABLE main.{table} ({listed})")

    def _cell(self, literal: str, native: str) -> str:
        """The literal as a value of the column; NULL where there is no such value."""
        known = literal, native
        if known not in self._cells:
            text = f"CAST({literal} AS {_NATIVE.get(native, native)})"
            try:
                self._run(f"SELECT {text}")
            except psycopg.Error:
                text = "NULL"
            self._cells[known] = text
        return self._cells[known]

    def _run(self, sql: str) -> None:
        self._connection.execute(sql.encode())
