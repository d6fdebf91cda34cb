"""DuckDB: one file, opened for reading only and locked down."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from datetime import date
from pathlib import Path

import duckdb
import numpy as np

from dpsql.effort import Cancellation
from dpsql.engines.duckdb.session import Statements, is_locked, lock_down
from dpsql.engines.runtime import Watch, Watchdog, engine_failed, log_another_try, log_engine_error
from dpsql.errors import Error, InternalError, PolicyError
from dpsql.lowering.dialect import literal, qualified, quoted
from dpsql.lowering.duckdb_dialect import DUCKDB
from dpsql.lowering.query import EngineQuery
from dpsql.policy.model import ColumnSchema, DatabaseSchema, PreparedPolicy, TableSchema
from dpsql.policy.prepared import (
    ABOUT,
    ABOUT_COLUMNS,
    AGAIN,
    SCHEMA,
    not_a_copy,
    read_about,
    require_meant,
    with_copies,
)
from dpsql.tables import ExactTable, Integers
from dpsql.types import BIGINT, BOOLEAN, DATE, DOUBLE, TEXT, TIMESTAMP, TIMESTAMPTZ, Kind, Type, Value, decimal, integer

_TYPES = {
    "BOOLEAN": BOOLEAN,
    "TINYINT": integer(5),
    "UTINYINT": integer(5),
    "SMALLINT": integer(5),
    "USMALLINT": integer(5),
    "INTEGER": integer(10),
    "UINTEGER": integer(10),
    "BIGINT": BIGINT,
    "FLOAT": DOUBLE,
    "DOUBLE": DOUBLE,
    "VARCHAR": TEXT,
    "UUID": TEXT,
    "DATE": DATE,
    "TIMESTAMP": TIMESTAMP,
    "TIMESTAMP_S": TIMESTAMP,
    "TIMESTAMP_MS": TIMESTAMP,
    "TIMESTAMP_NS": TIMESTAMP,
    # Its cast to TIMESTAMP depends on the time zone, which the lock-down fixes.
    "TIMESTAMP WITH TIME ZONE": TIMESTAMPTZ,
}
_PLAIN_NAMES = re.compile(r"\[(\w+(?:, \w+)*)\]")
_DECIMAL = re.compile(r"DECIMAL\((\d+),(\d+)\)")

# Key types that NumPy carries without loss, and those that need Python's own types.
_NUMPY_KEYS = re.compile(r"BOOLEAN|U?(TINYINT|SMALLINT|INTEGER|BIGINT)|FLOAT|DOUBLE|VARCHAR|TIMESTAMP")
_PYTHON_KEYS = re.compile(r'DATE|U?HUGEINT|DECIMAL\(\d+,\d+\)|"NULL"')

_CAST = {
    Kind.BOOLEAN: "BOOLEAN",
    Kind.INTEGER: "BIGINT",
    Kind.DOUBLE: "DOUBLE",
    Kind.TEXT: "VARCHAR",
    Kind.DATE: "DATE",
    Kind.TIMESTAMP: "TIMESTAMP",
    Kind.TIMESTAMPTZ: "TIMESTAMP",
}

# Connections to one file share a database within a process: a second one must not see it half locked.
_opening = threading.Lock()


_Config = dict[str, str | bool | int | float | list[str]]


class DuckDBEngine:
    """A DuckDB file. Each call has its own cursor, so calls run concurrently and are stopped individually."""

    dialect = DUCKDB

    def __init__(self, path: Path, *, memory: str, threads: int, prepared: PreparedPolicy | None = None) -> None:
        if not path.is_file():
            if prepared is not None:
                raise PolicyError(f'there is no prepared copy at "{path}"', hint=AGAIN)
            raise PolicyError(f'there is no database at "{path}"', hint="Check the address in the policy.")
        self._path = path
        self._prepared = prepared
        self._connection, self._careful = _open(path, {"memory_limit": memory, "threads": threads})
        self._watchdog = Watchdog()
        self._statements = Statements()

    def schema(self) -> DatabaseSchema:
        """Tables, views, column types and enforced uniqueness, from the engine's catalog."""
        failure: Error
        try:
            with closing(self._careful.cursor()) as cursor:
                return self._known(cursor, _read_schema(cursor))
        except duckdb.Error as error:
            failure = engine_failed(error)
        raise failure

    def _known(self, cursor: duckdb.DuckDBPyConnection, schema: DatabaseSchema) -> DatabaseSchema:
        """The schema that the policy describes: of the database, or of the database when it was prepared."""
        is_copy = (SCHEMA, ABOUT) in schema.tables
        if self._prepared is None:
            if is_copy:
                # A ledger beside the copy would not know what was spent.
                raise PolicyError(f'"{self._path}" is a prepared copy', hint="Name the database itself in url.")
            return schema
        rows = cursor.execute(f"SELECT {', '.join(ABOUT_COLUMNS)} FROM {SCHEMA}.{ABOUT}").fetchall() if is_copy else []
        if len(rows) != 1:
            raise not_a_copy()
        about = read_about(*rows[0])
        require_meant(about, self._prepared)
        return with_copies(schema.tables, schema.default_schema, about)

    def warnings(self, sources: Sequence[tuple[str, ...]]) -> list[str]:
        """None: there are no roles, and a table with problems cannot be declared."""
        del sources
        return []

    def ready(
        self, sources: Sequence[tuple[str, ...]], *, timeout: float, cancellation: Cancellation | None = None
    ) -> None:
        """Always ready: a file that is opened read-only does not change."""

    def execute(
        self, queries: Sequence[EngineQuery], *, timeout: float, cancellation: Cancellation | None = None
    ) -> list[ExactTable]:
        """Run the queries on one snapshot of the data.

        Claim: no error shows a value of the data.
        Because: engine errors become a fixed sentence, raised outside the handler so that nothing is chained to it;
        our own errors here name types and counts of columns, which the query text fixes. Where the engine fails because
        of its statistics, which are values of the data, the queries are run once more without them.
        Needs: queries that are total; otherwise a failure itself reveals something.
        """
        deadline = time.monotonic() + timeout
        failure: Error | None = None
        try:
            return self._run(self._connection, queries, timeout, cancellation)
        except (duckdb.InterruptException, duckdb.OutOfMemoryException) as error:
            failure = engine_failed(error)
        except duckdb.Error as error:
            log_another_try(error)
        if failure is None:
            try:
                return self._run(self._careful, queries, deadline - time.monotonic(), cancellation)
            except duckdb.Error as error:
                failure = engine_failed(error)
        raise failure

    def _run(
        self,
        connection: duckdb.DuckDBPyConnection,
        queries: Sequence[EngineQuery],
        timeout: float,
        cancellation: Cancellation | None,
    ) -> list[ExactTable]:
        with (
            closing(connection.cursor()) as cursor,
            self._watchdog.guard(cursor.interrupt, timeout, cancellation) as watch,
        ):
            return _run_all(cursor, self._statements, queries, watch)

    def read_public(self, source: tuple[str, ...], columns: Sequence[str], limit: int) -> list[list[Value]]:
        """The named columns of a public table, column by column, of at most `limit` + 1 rows."""
        declared = self.schema().tables[source[0], source[1]].columns
        casts = [f"CAST({quoted(name)} AS {_cast_type(declared[name])})" for name in columns]
        sql = f"SELECT {', '.join(casts)} FROM {qualified(source)} LIMIT {limit + 1}"
        failure: Error
        try:
            with closing(self._careful.cursor()) as cursor:
                rows = cursor.execute(sql).fetchall()
        except duckdb.Error as error:
            failure = engine_failed(error)
        else:
            return [_public_column(declared[name], [row[i] for row in rows]) for i, name in enumerate(columns)]
        raise failure

    def is_unique(self, source: tuple[str, ...], columns: tuple[str, ...]) -> bool:
        """Whether no two rows share the values of these columns, NULL aside.

        Claim: the result holds as long as this connection is open.
        Because: the file is open for reading, and DuckDB prevents writes to a file that another process reads.
        Needs: nothing more. A reopened database is checked again.
        """
        names = ", ".join(map(quoted, columns))
        known = " AND ".join(f"{quoted(name)} IS NOT NULL" for name in columns)
        sql = f"SELECT 1 FROM {qualified(source)} WHERE {known} GROUP BY {names} HAVING COUNT(*) > 1 LIMIT 1"
        failure: Error
        try:
            with closing(self._careful.cursor()) as cursor:
                return cursor.execute(sql).fetchone() is None
        except duckdb.Error as error:
            failure = engine_failed(error)
        raise failure

    def close(self) -> None:
        """Let go of the database. Calls that still run may finish."""
        self._connection.close()
        self._careful.close()


# --- opening ---


def _open(path: Path, config: _Config) -> tuple[duckdb.DuckDBPyConnection, duckdb.DuckDBPyConnection]:
    """The file, opened twice: with the engine's statistics, which make many queries faster, and without.

    Both are opened and closed together: closing one gives up the lock on the file for both.
    """
    with _opening, ExitStack() as opened:
        try:
            connection = opened.enter_context(duckdb.connect(str(path), read_only=True, config=config))
            lock_down(connection, statistics=True)
            _require_own_functions(connection, path)
            # An instance has one set of optimizers, so the other connection needs a second instance, shared by name in
            # this process.
            careful = opened.enter_context(duckdb.connect(f":memory:dpsql {path.resolve()}", config=config))
            if not is_locked(careful):
                _put_in_place(careful, path, _catalog_of(connection))
            lock_down(careful)
            opened.pop_all()
            return connection, careful
        except duckdb.Error as error:
            log_id = log_engine_error(error)
    raise PolicyError(
        f'the database at "{path}" cannot be opened (log id {log_id})',
        hint="It must be a DuckDB file without a writer, opened by this process with the same limits.",
    )


def _put_in_place(connection: duckdb.DuckDBPyConnection, path: Path, name: str) -> None:
    """Attach the file in place of an instance's own, empty database, under the name it has when it is opened directly.

    Claim: names of schemas and tables mean the same in both.
    Because: the catalogs of both instances have the same name, and connections start in the file.
    Needs: an unused instance.
    """
    # In two steps, since a file may have the name of the instance's own database.
    for source, catalog in ((":memory:", f"{name}_"), (str(path), name)):
        before = _catalog_of(connection)
        options = "" if source == ":memory:" else " (READ_ONLY)"
        connection.execute(f"ATTACH {literal(source)} AS {quoted(catalog)}{options}")
        connection.execute(f"USE {quoted(catalog)}")
        connection.execute(f"DETACH {quoted(before)}")


def _catalog_of(connection: duckdb.DuckDBPyConnection) -> str:
    row = connection.execute("SELECT current_database()").fetchone()
    if row is None:
        raise InternalError("the engine has no current database")
    return str(row[0])


def _require_own_functions(connection: duckdb.DuckDBPyConnection, path: Path) -> None:
    """Refuse a file with a macro that replaces a function or an operator of the engine.

    Claim: every function that generated SQL names is the engine's.
    Because: macros of the default schema take precedence, and none has the name of one; other schemas are not searched.
    Needs: nothing of the macros: this check calls only an engine function that is qualified by its schema.
    """
    functions = "system.main.duckdb_functions()"
    made = connection.execute(f"SELECT schema_name, function_name FROM {functions} WHERE NOT internal").fetchall()
    if not made:
        return
    known = {name for (name,) in connection.execute(f"SELECT function_name FROM {functions} WHERE internal").fetchall()}
    taken = sorted({name for schema, name in made if schema == "main" and name.lower() in known})
    if taken:
        raise PolicyError(
            f'the database at "{path}" has a macro "{taken[0]}" that replaces a function of the engine',
            hint="Drop it, or move it to a schema of its own.",
        )


# --- running ---


def _run_all(
    cursor: duckdb.DuckDBPyConnection, statements: Statements, queries: Sequence[EngineQuery], watch: Watch
) -> list[ExactTable]:
    try:
        # A single statement reads one snapshot anyway.
        if len(queries) > 1:
            cursor.begin()
        tables = []
        for query in queries:
            watch.check()
            tables.append(_run(cursor, statements, query))
    except duckdb.InterruptException:
        watch.check()
        raise
    return tables


def _run(cursor: duckdb.DuckDBPyConnection, statements: Statements, query: EngineQuery) -> ExactTable:
    statement = statements.read(cursor, query.sql)
    wanted = statement.named_parameters
    if not wanted <= query.parameters.keys():
        raise InternalError("generated SQL names a parameter that has no value")
    # DuckDB refuses parameters that the statement does not name.
    cursor.execute(statement, {name: query.parameters[name] for name in wanted})
    types = [str(column[1]) for column in cursor.description or ()]
    key_types, sum_types = types[: query.keys], types[query.keys :]
    if any(name != "BIGINT" for name in sum_types):
        raise InternalError("generated SQL returned a sum that is not a 64-bit integer")
    # Without keys there is one row, for which arrays would be slower.
    if key_types and all(_NUMPY_KEYS.fullmatch(name) for name in key_types):
        return _fetch_columns(cursor, key_types)
    if all(_NUMPY_KEYS.fullmatch(name) or _PYTHON_KEYS.fullmatch(name) for name in key_types):
        return _fetch_rows(cursor, key_types)
    raise InternalError("generated SQL returned a key of a type that dpsql does not know")


def _fetch_columns(cursor: duckdb.DuckDBPyConnection, key_types: list[str]) -> ExactTable:
    columns = list(cursor.fetchnumpy().values())
    sums: list[Integers] = []
    for column in columns[len(key_types) :]:
        if isinstance(column, np.ma.MaskedArray) or column.dtype != np.int64:
            raise InternalError("generated SQL returned a sum that is NULL")
        sums.append(column)
    rows = len(columns[0])
    # A masked cell is NULL; tolist() makes it None.
    keys = tuple(zip(*(column.tolist() for column in columns[: len(key_types)]), strict=True)) or ((),) * rows
    return _without_strange_times(ExactTable(keys, tuple(sums)), key_types)


def _fetch_rows(cursor: duckdb.DuckDBPyConnection, key_types: list[str]) -> ExactTable:
    """The slower method, for keys that NumPy would round (decimals, wide integers) or refuse (infinite dates)."""
    rows = cursor.fetchall()
    width = len(cursor.description or ())
    sums = []
    for i in range(len(key_types), width):
        if any(row[i] is None for row in rows):
            raise InternalError("generated SQL returned a sum that is NULL")
        sums.append(np.fromiter((row[i] for row in rows), np.int64, len(rows)))
    keys = tuple(row[: len(key_types)] for row in rows)
    return _without_strange_times(ExactTable(keys, tuple(sums)), key_types)


def _without_strange_times(table: ExactTable, key_types: list[str]) -> ExactTable:
    """Drop groups whose key is a date or timestamp that Python cannot hold (before year 1, after 9999, infinite).

    Claim: sensitivities are unchanged, and no error reveals that such a key exists.
    Because: whether a group is dropped depends on its key alone, so every database loses the same cells.
    Needs: DuckDB returns an infinite DATE as the first or last day of Python's range; queries that group by dates clamp
    them first, or that day's group would appear twice.
    """
    places = [i for i, name in enumerate(key_types) if name in ("DATE", "TIMESTAMP")]
    if not places:
        return table
    keep = [all(key[i] is None or isinstance(key[i], date) for i in places) for key in table.keys]
    if all(keep):
        return table
    mask = np.array(keep, dtype=np.bool_)
    keys = tuple(key for key, kept in zip(table.keys, keep, strict=True) if kept)
    return ExactTable(keys, tuple(column[mask] for column in table.sums))


def _public_column(column: ColumnSchema, values: list[Value]) -> list[Value]:
    # DuckDB returns a date that Python cannot represent as text.
    if column.type in (DATE, TIMESTAMP, TIMESTAMPTZ) and any(isinstance(value, str) for value in values):
        raise PolicyError(f'public column "{column.name}" holds a date outside the years 1 to 9999')
    return values


# --- the catalog ---


def _read_schema(cursor: duckdb.DuckDBPyConnection) -> DatabaseSchema:
    columns: dict[tuple[str, str], dict[str, ColumnSchema]] = {}
    computed = _computed_columns(cursor)
    for schema, table, name, native, nullable in cursor.execute(
        "SELECT schema_name, table_name, column_name, data_type, is_nullable FROM duckdb_columns()"
        " WHERE database_name = current_database() AND NOT internal ORDER BY schema_name, table_name, column_index"
    ).fetchall():
        column = ColumnSchema(name, _type(native), native, nullable)
        if (schema, table, name) in computed:
            # Its expression is evaluated at each read, and may be neither total nor deterministic.
            column = replace(column, type=None, native=f"{native}, generated when read")
        columns.setdefault((schema, table), {})[name] = column
    views = {
        (schema, name)
        for schema, name in cursor.execute(
            "SELECT schema_name, view_name FROM duckdb_views() WHERE database_name = current_database()"
        ).fetchall()
    }
    unique: dict[tuple[str, str], set[frozenset[str]]] = {}
    for source, names in [*_unique_constraints(cursor), *_unique_indexes(cursor)]:
        if _enforced(names, columns[source]):
            unique.setdefault(source, set()).add(frozenset(names))
    tables = {
        source: TableSchema(source, fields, frozenset(unique.get(source, ())), source in views)
        for source, fields in columns.items()
    }
    row = cursor.execute("SELECT current_schema()").fetchone()
    if row is None:
        raise InternalError("the engine has no current schema")
    return DatabaseSchema(tables, row[0])


def _computed_columns(cursor: duckdb.DuckDBPyConnection) -> set[tuple[str, str, str]]:
    return set(
        cursor.execute(
            "SELECT table_schema, table_name, column_name FROM information_schema.columns"
            " WHERE table_catalog = current_database() AND is_generated <> 'NEVER'"
        ).fetchall()
    )


def _unique_constraints(cursor: duckdb.DuckDBPyConnection) -> list[tuple[tuple[str, str], list[str]]]:
    rows = cursor.execute(
        "SELECT schema_name, table_name, constraint_column_names FROM duckdb_constraints()"
        " WHERE database_name = current_database() AND constraint_type IN ('PRIMARY KEY', 'UNIQUE')"
    ).fetchall()
    return [((schema, table), names) for schema, table, names in rows]


def _unique_indexes(cursor: duckdb.DuckDBPyConnection) -> list[tuple[tuple[str, str], list[str]]]:
    """Unique indexes over columns with plain names; DuckDB quotes any other name or expression."""
    rows = cursor.execute(
        "SELECT schema_name, table_name, expressions FROM duckdb_indexes()"
        " WHERE database_name = current_database() AND is_unique"
    ).fetchall()
    return [
        ((schema, table), match[1].split(", "))
        for schema, table, expressions in rows
        if (match := _PLAIN_NAMES.fullmatch(expressions))
    ]


def _enforced(names: Sequence[str], columns: dict[str, ColumnSchema]) -> bool:
    """Whether UNIQUE holds for all rows that matter: with several columns, a NULL in one lets the others repeat."""
    known = all(name in columns for name in names)
    return known and (len(names) == 1 or not any(columns[name].nullable for name in names))


def _type(native: str) -> Type | None:
    if match := _DECIMAL.fullmatch(native):
        return decimal(int(match[1]), int(match[2]))
    if native.startswith("ENUM(") and native.endswith(")"):  # not an array of enums
        return TEXT
    return _TYPES.get(native)


def _cast_type(column: ColumnSchema) -> str:
    if column.type is None:
        raise InternalError(f'column "{column.name}" has a type that dpsql does not know')
    if column.type.kind is Kind.DECIMAL:
        return f"DECIMAL({column.type.precision},{column.type.scale})"
    return _CAST[column.type.kind]
