"""PostgreSQL: the generated SQL runs on the server, and only its sums are returned."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any, TypeVar, cast

import numpy as np
import psycopg

from dpsql.effort import Cancellation
from dpsql.engines.postgres.catalog import Identity, current_identities, read_tables, read_warnings
from dpsql.engines.postgres.connections import Connection, Connections, Interrupt, opened
from dpsql.engines.runtime import TIMED_OUT, Watch, Watchdog, engine_failed, stopped
from dpsql.errors import Error, InternalError, PolicyError, SchemaChanged
from dpsql.lowering.dialect import qualified, quoted
from dpsql.lowering.postgres_dialect import POSTGRES
from dpsql.lowering.query import EngineQuery
from dpsql.policy.model import DatabaseSchema, PreparedPolicy, TableSchema
from dpsql.policy.prepared import (
    ABOUT,
    ABOUT_COLUMNS,
    AGAIN,
    is_our_schema,
    not_a_copy,
    read_about,
    require_meant,
    with_copies,
)
from dpsql.tables import ExactTable
from dpsql.types import Kind, Type, Value

_SUM = "int8"
_KEYS = frozenset(("bool", "int8", "numeric", "float8", "text", "date", "timestamp"))
_PARAMETER = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|\$([a-z]\w*)""")
_PUBLIC_SECONDS = 600.0

T = TypeVar("T")


class PostgresEngine:
    """A PostgreSQL database. Each call has its own connection: calls run concurrently and stop individually."""

    dialect = POSTGRES

    def __init__(self, url: str, *, memory: str, threads: int, prepared: PreparedPolicy | None = None) -> None:
        self._prepared = prepared
        settings = {
            "work_mem": f"{_kilobytes(memory) // (4 * max(1, threads))}kB",
            "max_parallel_workers_per_gather": str(max(0, threads - 1)),
        }
        self._connections: Connections = opened(url, settings)
        self._watchdog = Watchdog()
        self._lock = threading.Lock()
        self._identities: dict[tuple[str, ...], Identity] = {}
        self._changed: str | None = None  # the table that changed

    def schema(self) -> DatabaseSchema:
        """Tables, views, column types and enforced uniqueness. Later queries check that they are unchanged."""
        failure: Error
        try:
            with self._connections.transaction(seconds=_PUBLIC_SECONDS) as connection:
                tables, identities = read_tables(connection)
                schema = self._known(connection, tables)
        except psycopg.Error as error:
            failure = engine_failed(error)
        else:
            with self._lock:
                self._identities = identities
                self._changed = None
            return schema
        raise failure

    def _known(self, connection: Connection, tables: Mapping[tuple[str, str], TableSchema]) -> DatabaseSchema:
        """The schema that the policy describes: of the database, or of the database when it was prepared."""
        default = self._connections.default_schema
        if self._prepared is None:
            return DatabaseSchema({n: table for n, table in tables.items() if not is_our_schema(n[0])}, default)
        if (self._prepared.copy, ABOUT) not in tables:
            raise PolicyError(f'there is no prepared copy in the schema "{self._prepared.copy}"', hint=AGAIN)
        sql = f"SELECT {', '.join(ABOUT_COLUMNS)} FROM {qualified((self._prepared.copy, ABOUT))}"
        rows = connection.execute(sql).fetchall()
        if len(rows) != 1:
            raise not_a_copy()
        about = read_about(*rows[0])
        require_meant(about, self._prepared)
        return with_copies(tables, default, about)

    def warnings(self, sources: Sequence[tuple[str, ...]]) -> list[str]:
        """Warnings for the owner about the role and these tables."""
        failure: Error
        try:
            with self._connections.transaction(seconds=_PUBLIC_SECONDS) as connection:
                return read_warnings(connection, sources)
        except psycopg.Error as error:
            failure = engine_failed(error)
        raise failure

    def ready(
        self, sources: Sequence[tuple[str, ...]], *, timeout: float, cancellation: Cancellation | None = None
    ) -> None:
        """Raise if the server cannot be reached, a table may not be read, or one was changed.

        Claim: it depends on no row of a table.
        Because: the tables are locked, for which the server looks at its catalog and at the rights of the role; then
            the catalog is read.
        """
        if self._changed is not None:
            raise SchemaChanged(self._changed)
        self._in_snapshot(sorted(set(sources)), lambda *_: None, timeout, cancellation)

    def execute(
        self, queries: Sequence[EngineQuery], *, timeout: float, cancellation: Cancellation | None = None
    ) -> list[ExactTable]:
        """Run the queries on one snapshot of the data.

        Claim: no error shows a value of the data.
        Because: engine errors become a fixed sentence, raised outside the handler so that nothing is chained to it;
        our own errors here name types, tables and counts of columns, which query text and schema fix.
        Needs: queries that are total; otherwise a failure itself reveals something.
        """
        sources = sorted({source for query in queries for source in query.sources})

        def run_all(connection: Connection, watch: Watch) -> list[ExactTable]:
            tables = []
            for query in queries:
                watch.check()
                tables.append(_run(connection, query))
            return tables

        return self._in_snapshot(sources, run_all, timeout, cancellation)

    def read_public(self, source: tuple[str, ...], columns: Sequence[str], limit: int) -> list[list[Value]]:
        """The named columns of a public table, column by column, of at most `limit` + 1 rows."""
        failure: Error
        try:
            with self._connections.transaction([qualified(source)], seconds=_PUBLIC_SECONDS) as connection:
                tables, _ = read_tables(connection, [source])
                declared = tables[source[0], source[1]].columns
                types = [_known(declared[name].type) for name in columns]
                shown = [_public_value(quoted(name), type_) for name, type_ in zip(columns, types, strict=True)]
                sql = f"SELECT {', '.join(shown)} FROM {qualified(source)} LIMIT {limit + 1}"
                rows = connection.execute(sql).fetchall()
        except psycopg.Error as error:
            failure = engine_failed(error)
        else:
            return [
                [_public(row[i], type_, name) for row in rows]
                for i, (name, type_) in enumerate(zip(columns, types, strict=True))
            ]
        raise failure

    def is_unique(self, source: tuple[str, ...], columns: tuple[str, ...]) -> bool:
        """Always false: rows may be added while the database is open, so only the catalog counts."""
        del source, columns
        return False

    def close(self) -> None:
        """Let go of the database. Calls that still run may finish."""
        self._connections.close()

    # --- running ---

    def _in_snapshot(
        self,
        sources: Sequence[tuple[str, ...]],
        work: Callable[[Connection, Watch], T],
        timeout: float,
        cancellation: Cancellation | None,
    ) -> T:
        """Do the work in a transaction on the tables that were checked. The engine's errors become our own."""
        failure: Error
        interrupt = Interrupt()
        try:
            with self._watchdog.guard(interrupt, timeout, cancellation) as watch:
                try:
                    with self._connections.transaction(
                        [qualified(source) for source in sources], watch=watch, seconds=timeout, interrupt=interrupt
                    ) as connection:
                        self._check_unchanged(connection, sources)
                        return work(connection, watch)
                except psycopg.Error:
                    # The server reports the cancellation, or is gone.
                    watch.check()
                    raise
        except psycopg.errors.QueryCanceled:
            failure = stopped(TIMED_OUT)
        except psycopg.Error as error:
            failure = engine_failed(error, lost=_is_lost(error))
        raise failure

    def _check_unchanged(self, connection: Connection, sources: Sequence[tuple[str, ...]]) -> None:
        """Refuse if a table is no longer what the policy was checked against.

        Claim: the queries of this transaction read the tables that were checked, with the types and the uniqueness
        found then.
        Because: the tables are locked before the snapshot is taken, so the catalog that it shows is the one in force
        until the transaction ends.
        Needs: `sources` names every table that the queries read.
        """
        if not sources:
            return
        now = current_identities(connection, sources)
        for source in sources:
            expected = self._identities.get(source)
            if expected is None or source not in now or not expected.holds_in(now[source]):
                with self._lock:
                    self._changed = source[-1]
                raise SchemaChanged(source[-1])


def _is_lost(error: psycopg.Error) -> bool:
    """Whether the server could not be reached, or the connection was lost; errors of libpq have no code."""
    return isinstance(error, psycopg.OperationalError) and (error.sqlstate or "08").startswith(("08", "57P", "53300"))


def _run(connection: Connection, query: EngineQuery) -> ExactTable:
    sql, values = numbered(query.sql, query.parameters)
    # In binary format, which the server supports for single statements only.
    cursor = connection.execute(sql, values, binary=True)
    types = [_type_name(connection, column.type_code) for column in cursor.description or ()]
    if any(name != _SUM for name in types[query.keys :]):
        raise InternalError("generated SQL returned a sum that is not a 64-bit integer")
    if not _KEYS.issuperset(types[: query.keys]):
        raise InternalError("generated SQL returned a key of a type that dpsql does not know")
    rows = cursor.fetchall()
    sums = []
    for i in range(query.keys, len(types)):
        if any(row[i] is None for row in rows):
            raise InternalError("generated SQL returned a sum that is NULL")
        sums.append(np.fromiter((row[i] for row in rows), np.int64, len(rows)))
    return ExactTable(tuple(row[: query.keys] for row in rows), tuple(sums))


def _type_name(connection: Connection, oid: int) -> str:
    found = connection.adapters.types.get(oid)
    return "" if found is None else found.name


def numbered(sql: str, parameters: Mapping[str, object]) -> tuple[str, list[Any]]:
    """Replace named parameters by numbered ones, except inside quotation marks."""
    names: list[str] = []

    def number(match: re.Match[str]) -> str:
        name = match[1]
        if name is None:
            return match[0]
        if name not in parameters:
            raise InternalError("generated SQL names a parameter that has no value")
        if name not in names:
            names.append(name)
        return f"${names.index(name) + 1}"

    text = _PARAMETER.sub(number, sql)
    return text, [_parameter(parameters[name]) for name in names]


def _parameter(value: object) -> object:
    """A parameter as text: the SQL casts it to its type."""
    match value:
        case list():
            return [_parameter(item) for item in value]
        case bool():
            return "true" if value else "false"
        case Decimal():
            return format(value, "f")
        case datetime():
            return value.isoformat(sep=" ")
        case date():
            return value.isoformat()
        case float():
            return repr(value)
        case _:
            return None if value is None else str(value)


# --- public tables ---


def _known(type_: Type | None) -> Type:
    if type_ is None:
        raise InternalError("a column has a type that dpsql does not know")
    return type_


def _public_value(name: str, type_: Type) -> str:
    # Python cannot represent every PostgreSQL date, so dates are read as text.
    kind = Kind.TEXT if type_.is_temporal else type_.kind
    value = POSTGRES.moment.format(name, type=POSTGRES.type(type_)) if type_.is_temporal else name
    return f"CAST({POSTGRES.column(value, type_)} AS {POSTGRES.types[kind]})"


def _public(value: Any, type_: Type, name: str) -> Value:
    if value is None or not type_.is_temporal:
        return cast(Value, value)
    try:
        return date.fromisoformat(value) if type_.kind is Kind.DATE else datetime.fromisoformat(value)
    except ValueError:
        raise PolicyError(f'public column "{name}" holds a date outside the years 1 to 9999') from None


# --- small things ---


def _kilobytes(memory: str) -> int:
    found = re.fullmatch(r"([0-9.]+) ?([KMGT])i?B", memory)
    assert found is not None  # the policy would not have loaded
    return max(256, int(float(found[1]) * 1024 ** "KMGT".index(found[2])))
