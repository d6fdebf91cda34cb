"""The toy data in PostgreSQL: the same rows as in DuckDB, those included that break every promise."""

from __future__ import annotations

import re
from typing import Any

import duckdb
import psycopg
from psycopg import sql

from dpsql.compliance.toy import schema

# A schema of the name that DuckDB gives its own, so that both engines' tables have the same names.
SCHEMA = "main"


def fill(connection: psycopg.Connection[Any], data: duckdb.DuckDBPyConnection) -> None:
    """Copy the private tables; the public ones are filled by the schema itself."""
    connection.execute(f"CREATE SCHEMA {SCHEMA}")
    connection.execute(f"ALTER DATABASE {connection.info.dbname} SET search_path = {SCHEMA}")
    connection.execute(f"SET search_path = {SCHEMA}")
    connection.execute(schema())
    for (table,) in connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", [SCHEMA]).fetchall():
        name = sql.Identifier(table)
        if connection.execute(sql.SQL("SELECT FROM {} LIMIT 1").format(name)).fetchall():
            continue  # a public table
        rows = data.execute(f'SELECT COLUMNS(*)::text FROM "{table}"').fetchall()
        with connection.cursor().copy(sql.SQL("COPY {} FROM STDIN").format(name)) as target:
            for row in rows:
                target.write_row([None if cell is None else _spelled(cell) for cell in row])


def _spelled(cell: str) -> str:
    """DuckDB writes the era behind the date, PostgreSQL behind the time."""
    return re.sub(r"^(\d+-\d\d-\d\d) \(BC\)( [\d:.]+)?$", r"\1\2 BC", cell)
