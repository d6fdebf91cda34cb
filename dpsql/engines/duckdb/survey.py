"""What only the draft of a policy needs from a DuckDB file: keys, references, enums and, on request, extremes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import date
from functools import partial
from pathlib import Path
from types import MappingProxyType

import duckdb

from dpsql.engines.base import Surveyed, Tell
from dpsql.engines.duckdb.engine import DuckDBEngine
from dpsql.engines.duckdb.import_files import import_folder
from dpsql.engines.duckdb.kind import SCHEME
from dpsql.engines.duckdb.session import lock_down
from dpsql.engines.runtime import engine_failed
from dpsql.errors import Error, PolicyError
from dpsql.lowering.dialect import qualified, quoted
from dpsql.policy.draft import Suggestions, collect, round_outward
from dpsql.policy.model import Bound, Limits
from dpsql.policy.propose import Proposal, Reference, SchemaDetails, Source
from dpsql.policy.schemes import EXAMPLE_URL
from dpsql.types import Kind

_MOST_UNITS = 0.99  # the fraction of units whose rows count in full


def survey(database: str, folder: Path, tell: Tell) -> Surveyed:
    """A DuckDB file, by its path or address, or a folder of files, which is imported first."""
    path = _file(database, tell)
    limits = Limits()
    with closing(DuckDBEngine(path, memory=limits.memory, threads=limits.threads)) as engine:
        schema = engine.schema()
    return Surveyed(
        _shown(path),
        _url(path, folder),
        None,
        schema,
        read_details(path),
        lambda proposals: suggest_bounds(path, proposals),
    )


def _file(database: str, tell: Tell) -> Path:
    name = database.removeprefix(SCHEME)
    if not name or "://" in name:
        # The address itself is not quoted: it may hold a password.
        raise PolicyError("not the address of a database", hint=EXAMPLE_URL)
    path = Path(name)
    if path.is_dir():
        return _imported(path, tell)
    if not path.is_file():
        raise PolicyError(f'there is no database at "{path}"', hint="Name a DuckDB file, or a folder of files.")
    return path


def _imported(folder: Path, tell: Tell) -> Path:
    # The name of "." is only known once it is resolved.
    database = folder.resolve().with_name(f"{folder.resolve().name}.duckdb")
    imported = import_folder(folder, database)
    tell(f"imported into {_shown(database)}:")
    width = max(len(table.table) for table in imported)
    for table in imported:
        tell(f"  {table.table.ljust(width)}  {table.columns} columns of {table.file}")
    return database


def _url(database: Path, folder: Path) -> str:
    """The address as the policy file writes it: relative to the file's own folder if it lies there, or below."""
    path, folder = database.resolve(), folder.resolve()
    return f"{SCHEME}{(path.relative_to(folder) if path.is_relative_to(folder) else path).as_posix()}"


def _shown(path: Path) -> str:
    shown = os.path.relpath(path)
    return str(path) if shown.startswith(os.pardir + os.sep + os.pardir) else shown


def read_details(path: Path) -> SchemaDetails:
    """Primary keys, foreign keys of one column and the values of enums, from the catalog. No row is read."""
    with _reading(path) as connection:
        constraints = connection.execute(
            "SELECT schema_name, table_name, constraint_type, constraint_column_names, referenced_table,"
            " referenced_column_names FROM duckdb_constraints() WHERE database_name = current_database()"
            " ORDER BY schema_name, table_name, constraint_index"
        ).fetchall()
        enums = connection.execute(
            "SELECT schema_name, table_name, column_name, data_type FROM duckdb_columns()"
            " WHERE database_name = current_database() AND NOT internal AND data_type LIKE 'ENUM(%'"
        ).fetchall()
    primary_keys: dict[Source, tuple[str, ...]] = {}
    references = []
    for schema, table, sort, columns, target, target_columns in constraints:
        if sort == "PRIMARY KEY":
            primary_keys[schema, table] = tuple(columns)
        elif sort == "FOREIGN KEY" and len(columns) == 1:
            # DuckDB's foreign keys stay within their schema.
            references.append(Reference((schema, table), columns[0], (schema, target), target_columns[0]))
    values: dict[tuple[Source, str], tuple[str, ...]] = {}
    for schema, table, column, native in enums:
        values[(schema, table), column] = _values(native)
    return SchemaDetails(MappingProxyType(primary_keys), tuple(references), MappingProxyType(values))


def _values(native: str) -> tuple[str, ...]:
    ((_, values),) = duckdb.type(native).children
    assert isinstance(values, list)
    return tuple(values)


def suggest_bounds(path: Path, proposals: Sequence[Proposal]) -> Suggestions:
    """Bounds from the data, for the columns and units that a draft proposes.

    These come from private rows, without noise: the owner requested it and is warned about what it reveals. Exact
    extremes do not leave this function.
    """
    with _reading(path) as connection:
        return collect(proposals, partial(_extremes, connection), partial(_rows_of_most_units, connection))


def _extremes(connection: duckdb.DuckDBPyConnection, proposal: Proposal, column: str) -> tuple[Bound, Bound] | None:
    type_ = proposal.table.columns[column].type
    assert type_ is not None
    name = quoted(column)
    # NaN and infinity are not extremes; integers and decimals have neither.
    finite = (
        f" WHERE isfinite({name})" if type_.kind in (Kind.DOUBLE, Kind.DATE, Kind.TIMESTAMP, Kind.TIMESTAMPTZ) else ""
    )
    # A day is precise enough, and Python would need another package for time zones.
    value = f"CAST({name} AS DATE)" if type_.is_temporal else name
    sql = f"SELECT MIN({value}), MAX({value}) FROM {qualified(proposal.table.source)}{finite}"
    low, high = connection.execute(sql).fetchone() or (None, None)
    if low is None or high is None:
        return None
    if type_.is_temporal and not (isinstance(low, date) and isinstance(high, date)):
        return None  # a year beyond Python's range is returned as text
    return round_outward(low, high)


def _rows_of_most_units(connection: duckdb.DuckDBPyConnection, source: Source, unit: str) -> int | None:
    name = quoted(unit)
    row = connection.execute(
        f"SELECT quantile_disc(n, {_MOST_UNITS}) FROM"
        f" (SELECT COUNT(*) AS n FROM {qualified(source)} WHERE {name} IS NOT NULL GROUP BY {name})"
    ).fetchone()
    return None if row is None or row[0] is None else int(row[0])


@contextmanager
def _reading(path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """A locked connection for reading; the engine's errors become a fixed sentence."""
    failure: Error
    try:
        with duckdb.connect(str(path), read_only=True) as connection:
            lock_down(connection)
            yield connection
        return
    except duckdb.Error as error:
        failure = engine_failed(error)
    raise failure
