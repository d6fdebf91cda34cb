"""Runs the rest of a query: ordinary SQL over noisy values and public tables, in an isolated DuckDB."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import closing
from types import MappingProxyType

import duckdb

from dpsql.effort import Cancellation
from dpsql.engines.duckdb.session import Statements, lock_down
from dpsql.engines.runtime import Watch, Watchdog, engine_failed
from dpsql.errors import Error, InternalError, OutOfRange, ResultTooLarge, TooManyRows
from dpsql.lowering.dialect import quoted
from dpsql.lowering.noisy_tables import Array
from dpsql.types import Cell, Kind, Type, Value

_COLUMN_TYPES = {
    Kind.BOOLEAN: "BOOLEAN",
    Kind.INTEGER: "BIGINT",
    Kind.DOUBLE: "DOUBLE",
    Kind.TEXT: "VARCHAR",
    Kind.DATE: "DATE",
    Kind.TIMESTAMP: "TIMESTAMP",
    Kind.TIMESTAMPTZ: "TIMESTAMP",  # in UTC
}

_NO_TABLES: Mapping[str, Mapping[str, Array]] = MappingProxyType({})


class Postprocessor:
    """A locked in-memory DuckDB that only ever sees noisy values and public tables.

    Each run has its own cursor, so runs of several threads are concurrent, and are cancelled individually.
    """

    def __init__(self, *, memory: str = "1GB") -> None:
        self._connection = duckdb.connect(":memory:", config={"memory_limit": memory, "threads": 1})
        lock_down(self._connection)
        self._watchdog = Watchdog()
        self._statements = Statements()
        self._loading = threading.Lock()
        self._loaded: set[str] = set()

    def load(self, name: str, columns: Sequence[tuple[str, Type]], data: Sequence[Sequence[Value]]) -> None:
        """Load a public table, given column by column. An existing name is left unchanged."""
        failure: Error
        with self._loading:
            if name in self._loaded:
                return
            try:
                self._create(name, columns, data)
            except duckdb.Error as error:
                failure = _translated(error)
            else:
                self._loaded.add(name)
                return
        raise failure

    def run(
        self,
        sql: str,
        parameters: Mapping[str, object],
        *,
        timeout: float,
        max_cells: int,
        tables: Mapping[str, Mapping[str, Array]] = _NO_TABLES,
        cancellation: Cancellation | None = None,
    ) -> list[tuple[Cell, ...]]:
        """Run one SELECT. Unused parameters are ignored; an answer of more than `max_cells` values is refused.

        Claim: outcome and errors are post-processing of what was released.
        Because: this database holds public tables, parameters and `tables`, which only this run sees, are noisy, and it
        can reach nothing else.
        Needs: callers that pass nothing exact.
        """
        failure: Error
        try:
            with (
                closing(self._connection.cursor()) as cursor,
                self._watchdog.guard(cursor.interrupt, timeout, cancellation) as watch,
            ):
                for name, columns in tables.items():
                    cursor.register(name, dict(columns))
                return _select(cursor, self._statements.read(cursor, sql), parameters, max_cells, watch)
        except duckdb.Error as error:
            failure = _translated(error)
        raise failure

    def close(self) -> None:
        """Close the database. Runs under way may finish."""
        self._connection.close()

    def _create(self, name: str, columns: Sequence[tuple[str, Type]], data: Sequence[Sequence[Value]]) -> None:
        definitions = [f"{quoted(column)} {_column_type(type_)}" for column, type_ in columns]
        lists = [f"unnest(CAST($c{i} AS {_column_type(type_)}[]))" for i, (_, type_) in enumerate(columns)]
        with closing(self._connection.cursor()) as cursor:
            # Closing the cursor rolls back, so no table is visible without its rows.
            cursor.begin()
            cursor.execute(f"CREATE TABLE {quoted(name)} ({', '.join(definitions)})")
            cursor.execute(
                f"INSERT INTO {quoted(name)} SELECT {', '.join(lists)}",
                {f"c{i}": list(values) for i, values in enumerate(data)},
            )
            cursor.commit()


def _select(
    cursor: duckdb.DuckDBPyConnection,
    statement: duckdb.Statement,
    parameters: Mapping[str, object],
    max_cells: int,
    watch: Watch,
) -> list[tuple[Cell, ...]]:
    wanted = statement.named_parameters
    if not wanted <= parameters.keys():
        raise InternalError("generated SQL names a parameter that has no value")
    try:
        # DuckDB refuses parameters that the statement does not name.
        cursor.execute(statement, {name: parameters[name] for name in wanted})
        # One row beyond the limit suffices to detect it.
        columns = max(len(cursor.description or ()), 1)
        rows: list[tuple[Cell, ...]] = cursor.fetchmany(max_cells // columns + 1)
    except duckdb.InterruptException:
        watch.check()
        raise
    require_size(len(rows), columns, max_cells)
    types = [str(column[1]) for column in cursor.description or ()]
    # DuckDB returns a date beyond Python's range as text.
    for i, type_ in enumerate(types):
        if type_.removesuffix("[]") in ("DATE", "TIMESTAMP") and any(_has_text(row[i]) for row in rows):
            raise _out_of_range()
    if any(type_.endswith("[]") for type_ in types):
        return [tuple(tuple(cell) if isinstance(cell, list) else cell for cell in row) for row in rows]
    return rows


def require_size(rows: int, columns: int, max_cells: int) -> None:
    """Refuse an answer with more values than the policy allows."""
    if rows > max_cells // columns:
        raise ResultTooLarge(
            f"the answer has more than {max_cells:,} values", hint="Ask for fewer rows or columns, with WHERE or LIMIT."
        )


def _has_text(cell: Cell) -> bool:
    return any(isinstance(value, str) for value in cell) if isinstance(cell, list) else isinstance(cell, str)


def _translated(error: duckdb.Error) -> Error:
    if isinstance(error, duckdb.OutOfRangeException | duckdb.ConversionException):
        return _out_of_range()
    # Recognised by its text; if DuckDB changes the text, the general error of a failed engine remains.
    if "More than one row returned by a subquery" in str(error):
        return TooManyRows("more than one row returned by a subquery used as an expression")
    return engine_failed(error)


def _out_of_range() -> OutOfRange:
    return OutOfRange("value out of range in the rest of the query")


def _column_type(type_: Type) -> str:
    if type_.kind is Kind.DECIMAL:
        return f"DECIMAL({type_.precision},{type_.scale})"
    return _COLUMN_TYPES[type_.kind]
