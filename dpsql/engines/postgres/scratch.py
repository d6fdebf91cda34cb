"""Synthetic databases on a separate PostgreSQL server, which is started for the audit and deleted after it.

Only public data are read from the owner's server. The audit tests the SQL that dpsql generates for PostgreSQL, so the
version of the server may differ from the owner's.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import psycopg
from psycopg import sql

from dpsql.engines.base import Filled
from dpsql.engines.postgres.engine import PostgresEngine
from dpsql.engines.postgres.local_cluster import ADMIN, PORT, Cluster
from dpsql.types import Kind, Type

_TYPES = {
    Kind.BOOLEAN: "boolean",
    Kind.INTEGER: "bigint",
    Kind.DOUBLE: "double precision",
    Kind.TEXT: "text",
    Kind.DATE: "date",
    Kind.TIMESTAMP: "timestamp",
    Kind.TIMESTAMPTZ: "timestamptz",
}


class PostgresServer:
    """A server that runs while this context is entered."""

    def __init__(self, folder: Path) -> None:
        self._cluster = Cluster(folder)

    def __enter__(self) -> Self:
        self._cluster.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.stop()
        self._cluster.remove()

    def database(self, name: str, tables: Iterable[Filled]) -> PostgresEngine:
        with self._cluster.connect("postgres") as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        with self._cluster.connect(name) as connection:
            for filled in tables:
                _write(connection, filled)
        folder = quote(str(self._cluster.socket.parent), safe="")
        url = f"postgresql://{ADMIN}@/{name}?host={folder}&port={PORT}"
        engine = PostgresEngine(url, memory="64MB", threads=1)
        engine.schema()  # reads the tables that queries may use
        return engine


def _write(connection: psycopg.Connection[Any], filled: Filled) -> None:
    table, columns = filled.table, filled.columns
    schema, name = (sql.Identifier(part) for part in table.source[-2:])
    connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(schema))
    parts = [
        sql.SQL("{} {}").format(sql.Identifier(column), sql.SQL(_native(type_))) for column, type_ in columns.items()
    ]
    if table.owner_unique and table.owner is not None:
        parts.append(sql.SQL("UNIQUE ({})").format(sql.Identifier(table.owner)))
    place = sql.SQL("{}.{}").format(schema, name)
    connection.execute(sql.SQL("CREATE TABLE {} ({})").format(place, sql.SQL(", ").join(parts)))
    with connection.cursor().copy(sql.SQL("COPY {} FROM STDIN").format(place)) as target:
        for row in filled.rows:
            target.write_row([row.get(column) for column in columns])


def _native(type_: Type) -> str:
    if type_.kind is Kind.DECIMAL:
        return f"numeric({type_.precision + 3}, {type_.scale})"  # room for values beyond the bounds
    return _TYPES[type_.kind]
