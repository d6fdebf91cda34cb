"""An engine as somebody else would write it: SQLite, by what dpsql offers to engines from outside and by nothing else.

It is small rather than quick, and lacks much: dates, decimals, integers of more than 64 bits. What it lacks is refused
while a query is compiled. Only STRICT tables can be declared, for in others any column holds values of any type.
"""

from __future__ import annotations

import hashlib
import json
import math
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn, TypeVar
from urllib.parse import urlencode

import numpy as np

from dpsql.effort import Cancellation
from dpsql.engines.base import Engine, Surveyed, Tell
from dpsql.engines.runtime import Watch, Watchdog, engine_failed, stopped
from dpsql.errors import Error, InternalError, NotSupported, PolicyError, SchemaChanged
from dpsql.lowering.dialect import EVERYWHERE, Dialect, Grid, in_steps
from dpsql.lowering.query import EngineQuery
from dpsql.plan.scalars import Op, Windowed
from dpsql.policy.keys import PolicyKey
from dpsql.policy.model import ColumnSchema, DatabaseSchema, Limits, PreparedPolicy, TableSchema
from dpsql.policy.schemes import Address
from dpsql.tables import ExactTable
from dpsql.types import BIGINT, DOUBLE, TEXT, Kind, Type, Value, integer

T = TypeVar("T")

_COLUMNS = {"INT": integer(10), "INTEGER": BIGINT, "REAL": DOUBLE, "TEXT": TEXT}
_TYPES = {Kind.BOOLEAN: "INTEGER", Kind.INTEGER: "INTEGER", Kind.DOUBLE: "REAL", Kind.TEXT: "TEXT"}
_MOST = 2**63 - 1
_LARGEST = "1.7976931348623157e308"
_SAME = (
    "AND OR NOT EQ NE LT LE GT GE IS_NULL IS_TRUE IS_FALSE DISTINCT_FROM ADD SUB MUL DIV MOD ABS SIGN FLOOR CEIL NULLIF"
).split()


# --- SQL ---


def _lacks(what: str) -> Callable[..., NoReturn]:
    def refuse(*_: object) -> NoReturn:
        raise NotSupported(f"{what} not supported on sqlite", hint="Leave it out of the query.")

    return refuse


def _quoted(name: str) -> str:
    # In double quotes a name that there is not would be a string.
    return "`" + name.replace("`", "``") + "`"


def _string(text: str) -> str:
    if "\x00" in text:
        raise ValueError("a zero byte cannot stand in a string")
    return "'" + text.replace("'", "''") + "'"


def _column(name: str, type_: Type) -> str:
    if type_.kind is Kind.INTEGER and type_.precision <= 10:
        return f"min(max({name}, -2147483648), 2147483647)"  # as it is clamped to bounds, which are narrower
    return name


def _cast(text: str, source: Type, target: Type) -> str:
    match source.kind, target.kind:
        case Kind.INTEGER, Kind.DOUBLE:
            return f"CAST({text} AS REAL)"
        case Kind.DOUBLE, Kind.INTEGER:
            return f"whole({text}, {10**10 if target.precision > 10 else 2**31 - 1})"
        case (Kind.INTEGER, Kind.INTEGER):
            return _fit(text, target)
        case (Kind.INTEGER, Kind.TEXT):
            return f"CAST({text} AS TEXT)"
        case (one, other) if one is other:
            return text
    raise NotSupported(
        f"a cast from {source} to {target} is not supported on sqlite", hint="Leave it out of the query."
    )


def _fit(text: str, type_: Type) -> str:
    if type_.kind is not Kind.INTEGER:
        _lacks(f"values of type {type_} are")()
    most = 2**31 - 1 if type_.precision <= 10 else _MOST - 1  # a sum of the largest number may be any larger one
    return f"(CASE WHEN {text} BETWEEN -{most} AND {most} THEN {text} END)"


def _stage_value(text: str, type_: Type) -> str:
    if type_.kind not in _TYPES:
        _lacks(f"values of type {type_} are")()
    return f"CAST({text} AS {_TYPES[type_.kind]})"


def _on_grid(name: str, _: Type, grid: Grid) -> str:
    value = f"CAST({name} AS REAL)"
    return (
        f"CASE WHEN {value} >= {float(grid.above)!r} AND {value} <= {_LARGEST} THEN {grid.high}"
        f" WHEN {value} <= {float(grid.below)!r} AND {value} >= -{_LARGEST} THEN {grid.low}"
        f" WHEN {value} > {float(grid.below)!r} AND {value} < {float(grid.above)!r}"
        f" THEN CAST(round({in_steps(value, grid.step)}) AS INTEGER) END"
    )


def _window_result(call: Windowed, text: str) -> str:
    if call.function in ("sum", "avg"):
        _lacks("a sum over a window is")()
    return text


SQLITE = Dialect(
    name="sqlite",
    types=_TYPES,
    decimal_digits=False,
    wide_type=None,
    binary="{0}",
    text="{0}",
    templates={Op[name]: EVERYWHERE[Op[name]] for name in _SAME}
    | {
        Op.NEG: "(-{0})",
        Op.SQRT: "sqrt(CASE WHEN {0} >= 0 THEN {0} END)",
        Op.LOWER: "lower({0})",
        Op.UPPER: "upper({0})",
        Op.LENGTH: "length({0})",
        Op.LTRIM: "ltrim({0}, {1})",
        Op.RTRIM: "rtrim({0}, {1})",
        Op.TRIM: "trim({0}, {1})",
    },
    whole_quotient="({0} / NULLIF({1}, 0))",
    wide_quotient="",
    like="({0} LIKE {1}{escape})",
    ilike="(lower({0}) LIKE lower({1}){escape})",
    like_escape=True,
    round_even="round_even({0})",
    moment="",
    extract="",
    extract_seconds="",
    extract_epoch="",
    date_trunc="",
    local_in_text=_lacks("a time zone is"),
    instant_in_text=_lacks("a time zone is"),
    date_bin=_lacks("date_bin is"),
    offset=_lacks("a time zone is"),
    once=lambda text, _, body: body(text),
    to_char=_lacks("to_char is"),
    in_list="({0} IN (SELECT value FROM json_each({1})))",
    array="{0}",
    flag="{0}",
    salt="{0}",
    chosen_by="md5({0})",
    not_owned_by="owner NOT IN (SELECT owner FROM ({0}) AS s)",
    count_distinct=True,
    largest_double=_LARGEST,
    column=_column,
    cast=_cast,
    fit=_fit,
    stage_value=_stage_value,
    round_away=_lacks("round to places is"),
    trunc_places=_lacks("trunc to places is"),
    width_bucket=_lacks("width_bucket is"),
    on_grid=_on_grid,
    window_arguments=lambda _, args: args,
    window_result=_window_result,
    quote=_quoted,
    string=_string,
    int64="INTEGER",
    total=lambda value, _, distinct: f"exact_sum({distinct}{value})",
    moment_constant=_lacks("a date is"),
    separator="char(31)",
    side="SELECT * FROM ({0})",
    grouping_sets=False,
    quantified=False,
    double=_lacks("arithmetic on doubles, which has no NaN, is"),
)


# --- functions that SQLite does not have ---


class _ExactSum:
    """A sum that neither overflows nor becomes a double: what 64 bits do not hold is the largest number they do."""

    def __init__(self) -> None:
        self._sum: int | None = None

    def step(self, value: int | None) -> None:
        if value is not None:
            self._sum = (self._sum or 0) + value

    def finalize(self) -> int | None:
        return None if self._sum is None else max(-_MOST, min(self._sum, _MOST))


def _whole(value: float | None, most: int) -> int | None:
    if value is None or not math.isfinite(value) or abs(value) > most:
        return None
    return round(value)


def _some(choose: Callable[[Any], Any]) -> Callable[..., Any]:
    def chosen(*values: Any) -> Any:
        return choose([value for value in values if value is not None] or [None])

    return chosen


def _prepare(connection: sqlite3.Connection) -> None:
    for name, width, function in (
        ("md5", 1, lambda text: None if text is None else hashlib.md5(text.encode()).hexdigest()),  # noqa: S324
        ("whole", 2, _whole),
        ("round_even", 1, lambda x: x if x is None or not math.isfinite(x) else float(round(x))),
        ("least", -1, _some(min)),
        ("greatest", -1, _some(max)),
    ):
        connection.create_function(name, width, function, deterministic=True)
    for name in ("exact_sum", "sum"):  # its own fails where a sum is too large
        connection.create_aggregate(name, 1, _ExactSum)  # type: ignore[arg-type]
    connection.execute("PRAGMA case_sensitive_like = ON")
    connection.execute("SELECT * FROM json_each('[]')").fetchall()  # it is made when it is first named
    connection.set_authorizer(_only_reads)


_READS = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE)


def _only_reads(action: int, first: str | None, second: str | None, *_: object) -> int:
    allowed = action in _READS or action == sqlite3.SQLITE_TRANSACTION
    allowed |= action == sqlite3.SQLITE_PRAGMA and first in ("table_list", "table_info", "index_list", "index_info")
    return sqlite3.SQLITE_OK if allowed and second != "load_extension" else sqlite3.SQLITE_DENY


# --- the engine ---


class SQLiteEngine:
    """A SQLite file. Each call has its own connection."""

    dialect = SQLITE

    def __init__(self, path: Path, keys: Mapping[str, str] = MappingProxyType({})) -> None:
        if not path.is_file():
            raise PolicyError(f'there is no database at "{path}"', hint="Check the address in the policy.")
        self._options = urlencode({"mode": "ro", **keys})
        self._path = path
        self._watchdog = Watchdog()
        self._seen: str | None = None

    def _asked(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """What is made of a connection in a transaction; what the engine says goes to the owner's log."""
        failure: Error
        try:
            address = f"{self._path.resolve().as_uri()}?{self._options}"
            with closing(
                sqlite3.connect(address, uri=True, isolation_level=None, check_same_thread=False)
            ) as connection:
                _prepare(connection)
                connection.execute("BEGIN")
                return work(connection)
        except sqlite3.Error as error:
            failure = engine_failed(error)
        raise failure

    def schema(self) -> DatabaseSchema:
        return self._asked(self._read_schema)

    def _read_schema(self, connection: sqlite3.Connection) -> DatabaseSchema:
        tables = {}
        for _, name, sort, _, _, strict in connection.execute("PRAGMA table_list").fetchall():
            if not name.startswith("sqlite_"):
                tables["main", name] = _table(connection, name, sort == "view", bool(strict))
        self._seen = _fingerprint(connection)
        return DatabaseSchema(tables, "main")

    def warnings(self, sources: Sequence[tuple[str, ...]]) -> list[str]:
        del sources
        return []

    def ready(
        self, sources: Sequence[tuple[str, ...]], *, timeout: float, cancellation: Cancellation | None = None
    ) -> None:
        del timeout, cancellation
        self._asked(lambda connection: self._require_same(connection, sources))

    def _require_same(self, connection: sqlite3.Connection, sources: Sequence[tuple[str, ...]]) -> None:
        if self._seen is not None and _fingerprint(connection) != self._seen:
            raise SchemaChanged(sources[0][-1] if sources else "main")

    def execute(
        self, queries: Sequence[EngineQuery], *, timeout: float, cancellation: Cancellation | None = None
    ) -> list[ExactTable]:
        def run(connection: sqlite3.Connection) -> list[ExactTable]:
            self._require_same(connection, [source for query in queries for source in query.sources])
            with self._watchdog.guard(connection.interrupt, timeout, cancellation) as watch:
                return [_watched(connection, query, watch) for query in queries]

        return self._asked(run)

    def read_public(self, source: tuple[str, ...], columns: Sequence[str], limit: int) -> list[list[Value]]:
        shown = ", ".join(map(_quoted, columns))
        sql = f"SELECT {shown} FROM {_quoted(source[-1])} LIMIT {limit + 1}"
        rows = self._asked(lambda connection: connection.execute(sql).fetchall())
        return [[row[i] for row in rows] for i in range(len(columns))]

    def is_unique(self, source: tuple[str, ...], columns: tuple[str, ...]) -> bool:
        """The file may change while it is open."""
        del source, columns
        return False

    def close(self) -> None:
        """Nothing is kept open."""


def _watched(connection: sqlite3.Connection, query: EngineQuery, watch: Watch) -> ExactTable:
    watch.check()
    try:
        return _run(connection, query)
    except sqlite3.OperationalError:
        if watch.reason is None:
            raise
    raise stopped(watch.reason)


def _run(connection: sqlite3.Connection, query: EngineQuery) -> ExactTable:
    parameters = {
        name: json.dumps(value) if isinstance(value, list) else value for name, value in query.parameters.items()
    }
    rows = connection.execute(query.sql, parameters).fetchall()
    sums = []
    width = len(rows[0]) if rows else len(connection.execute(query.sql, parameters).description)
    for i in range(query.keys, width):
        if any(type(row[i]) is not int for row in rows):
            raise InternalError("generated SQL returned a sum that is not a 64-bit integer")
        sums.append(np.fromiter((row[i] for row in rows), np.int64, len(rows)))
    return ExactTable(tuple(row[: query.keys] for row in rows), tuple(sums))


def _table(connection: sqlite3.Connection, name: str, is_view: bool, strict: bool) -> TableSchema:
    rows = connection.execute(f"PRAGMA table_info({_quoted(name)})").fetchall()
    columns = {
        column: ColumnSchema(column, _COLUMNS.get(native.upper()), native, not (notnull or key))
        for _, column, native, notnull, _, key in rows
    }
    unique = {frozenset(row[1] for row in rows if row[5])} - {frozenset[str]()}
    obstacle = None if strict or is_view else "is not STRICT, so that its columns hold values of any type"
    return TableSchema(("main", name), columns, frozenset(unique), is_view, obstacle)


def _fingerprint(connection: sqlite3.Connection) -> str:
    return repr(connection.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall())


class SQLiteKind:
    title = "SQLite"
    schemes = ("sqlite",)
    dialect = SQLITE
    copies = None
    keys = (PolicyKey("vfs", "a name", "unix", "The VFS of SQLite that reads the file: unix-none takes no locks."),)

    def address(self, url: str, folder: Path, keys: Mapping[str, str]) -> Address:
        name = url.removeprefix("sqlite:///")
        if name in (url, ""):
            raise ValueError("not the address of a SQLite file")
        return Address(url, folder, (folder / name).name, folder / name, keys)

    def open(self, address: Address, limits: Limits, prepared: PreparedPolicy | None) -> Engine:
        del limits, prepared
        assert address.file is not None
        return SQLiteEngine(address.file, address.keys)

    def survey(self, database: str, folder: Path, tell: Tell) -> Surveyed:
        from dpsql.policy.draft import Suggestions
        from dpsql.policy.propose import SchemaDetails

        del folder, tell
        path = Path(database.removeprefix("sqlite:///"))
        schema = SQLiteEngine(path).schema()
        return Surveyed(path.name, database, None, schema, SchemaDetails(), lambda _: Suggestions())

    def scratch(self, folder: Path) -> None:
        del folder


KIND = SQLiteKind()
