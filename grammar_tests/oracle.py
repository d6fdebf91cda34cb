"""PostgreSQL with the clean toy data: the dialect is its own, so its answer to the same text is the truth."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass

import psycopg
from psycopg import sql

from dpsql.compliance.toy import POLICIES, clean, schema
from dpsql.types import Kind, Type, Value
from grammar_tests.servers import Server

_VERSION = 16

_CLASSES = {
    **dict.fromkeys(("int2", "int4", "int8", "numeric", "float4", "float8"), "number"),
    **dict.fromkeys(("text", "varchar", "bpchar", "name", "unknown"), "text"),
    "timestamp": "timestamp",
    "timestamptz": "timestamptz",
    "bool": "boolean",
    "date": "date",
    "interval": "interval",
}
_KINDS = {
    **dict.fromkeys((Kind.INTEGER, Kind.DECIMAL, Kind.DOUBLE), "number"),
    **dict.fromkeys((Kind.TEXT, Kind.UNKNOWN), "text"),
    Kind.TIMESTAMP: "timestamp",
    Kind.TIMESTAMPTZ: "timestamptz",
    Kind.BOOLEAN: "boolean",
    Kind.DATE: "date",
    Kind.INTERVAL: "interval",
}


@dataclass(frozen=True, slots=True)
class Truth:
    names: tuple[str, ...]
    classes: tuple[str, ...]  # number, text, boolean, date, timestamp; with [] where it is an array
    rows: list[tuple[object, ...]]


def class_of(type_: Type) -> str:
    return _KINDS[type_.kind] if type_.element is None else f"{class_of(type_.element)}[]"


class Oracle:
    """A PostgreSQL of its own, stopped and deleted with `close`."""

    def __init__(self) -> None:
        self._server = Server(_VERSION)
        self._connection = psycopg.connect(self._server.url(), autocommit=True, cursor_factory=psycopg.RawCursor)
        self._connection.execute("SET TimeZone = 'UTC'")
        # Names qualified with DuckDB's schema or with PostgreSQL's mean the same tables.
        self._connection.execute("CREATE SCHEMA main")
        self._connection.execute("CREATE SCHEMA reports")
        self._connection.execute("SET search_path = main")
        self._connection.execute(schema())
        for table, rows in clean().items():
            copy = sql.SQL("COPY {} FROM STDIN").format(sql.Identifier(table))
            with self._connection.cursor().copy(copy) as target:
                for row in rows:
                    target.write_row(row)
        for name, view in tomllib.loads((POLICIES / "tables.toml").read_text())["views"].items():
            self._connection.execute(f"CREATE VIEW {name} AS {view['sql']}")
        for (table,) in self._connection.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = 'main'"
            " UNION ALL SELECT viewname FROM pg_views WHERE schemaname = 'main'"
        ).fetchall():
            name = sql.Identifier(table)
            self._connection.execute(sql.SQL("CREATE VIEW public.{0} AS SELECT * FROM main.{0}").format(name))

    def turn(self) -> None:
        """Lay the rows of the tables in another order from here on, and aggregate them another way."""
        for statement in ("CREATE SCHEMA turned", "SET search_path = turned", schema()):
            self._connection.execute(statement)
        for table in clean():
            name = sql.Identifier(table)
            self._connection.execute(
                sql.SQL("INSERT INTO turned.{0} SELECT * FROM main.{0} ORDER BY ctid DESC").format(name)
            )
        self._connection.execute("SET enable_hashagg = off")

    def ask(self, text: str, parameters: Sequence[Value] = (), settings: Sequence[str] = ()) -> Truth:
        """PostgreSQL's answer, after the settings that are its own; raises psycopg.Error where it refuses."""
        self._connection.execute("SET TimeZone = 'UTC'")
        for setting in settings:
            if not setting.lower().startswith("set dpsql."):
                self._connection.execute(setting)
        cursor = self._connection.execute(text, list(parameters) or None)
        columns = cursor.description or []
        types = self._connection.adapters.types
        found = [types.get(column.type_code) for column in columns]
        # An array is found as what it is an array of.
        arrays = [
            "[]" * (info is not None and info.oid != column.type_code)
            for info, column in zip(found, columns, strict=True)
        ]
        classes = tuple(
            (_CLASSES.get(info.name, info.name) if info else "?") + array
            for info, array in zip(found, arrays, strict=True)
        )
        return Truth(tuple(column.name for column in columns), classes, cursor.fetchall())

    def definition(self, text: str) -> str:
        """A query as PostgreSQL has read it, with parentheses around operators; raises psycopg.Error where it refuses.

        That of a view, in which the query is a subquery: the names of its columns need not differ.
        """
        with self._connection.transaction(force_rollback=True):
            self._connection.execute(
                f"CREATE TEMP VIEW as_read AS SELECT FROM ({text.rstrip().rstrip(';')}\n) AS query"
            )
            row = self._connection.execute("SELECT pg_get_viewdef('as_read'::regclass)").fetchone()
        assert row is not None
        return str(row[0])

    def close(self) -> None:
        self._connection.close()
        self._server.close()
