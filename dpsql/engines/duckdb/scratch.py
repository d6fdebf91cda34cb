"""Synthetic databases as DuckDB files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Self

import duckdb

from dpsql.engines.base import Filled
from dpsql.engines.duckdb.engine import DuckDBEngine
from dpsql.lowering.dialect import quoted
from dpsql.types import Kind, Type

_TYPES = {
    Kind.BOOLEAN: "BOOLEAN",
    Kind.INTEGER: "BIGINT",
    Kind.DOUBLE: "DOUBLE",
    Kind.TEXT: "VARCHAR",
    Kind.DATE: "DATE",
    Kind.TIMESTAMP: "TIMESTAMP",
    Kind.TIMESTAMPTZ: "TIMESTAMP WITH TIME ZONE",
}


class DuckDBFiles:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """The caller owns the folder."""

    def database(self, name: str, tables: Iterable[Filled]) -> DuckDBEngine:
        path = self._folder / f"{name}.duckdb"
        with duckdb.connect(str(path)) as connection:
            for filled in tables:
                _write(connection, filled)
        return DuckDBEngine(path, memory="1GB", threads=1)


def _write(connection: duckdb.DuckDBPyConnection, filled: Filled) -> None:
    table, columns, rows = filled.table, filled.columns, filled.rows
    schema, name = (quoted(part) for part in table.source[-2:])
    connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
    unique = f", UNIQUE ({quoted(table.owner)})" if table.owner_unique and table.owner is not None else ""
    listed = ", ".join(f"{quoted(column)} {_native(type_)}" for column, type_ in columns.items())
    connection.execute(f"CREATE TABLE {schema}.{name} ({listed}{unique})")
    if rows:
        # Column by column: row by row it would take a minute.
        lists = ", ".join(f"unnest(CAST(? AS {_native(type_)}[]))" for type_ in columns.values())
        values = [[row.get(column) for row in rows] for column in columns]
        connection.execute(f"INSERT INTO {schema}.{name} SELECT {lists}", values)


def _native(type_: Type) -> str:
    if type_.kind is Kind.DECIMAL:
        return f"DECIMAL({min(type_.precision + 3, 38)}, {type_.scale})"  # room for values beyond the bounds
    return _TYPES[type_.kind]
