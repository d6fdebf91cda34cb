"""What only the draft of a policy needs of a DuckDB file: keys, references, enums and, when told to, extremes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from functools import partial
from pathlib import Path
from types import MappingProxyType

import duckdb

from dpsql.engines.duckdb.session import lock_down
from dpsql.engines.runtime import engine_failed
from dpsql.errors import Error
from dpsql.lowering.dialect import qualified, quoted
from dpsql.policy.draft import Suggestions, collect, round_outward
from dpsql.policy.model import Bound
from dpsql.policy.propose import Proposal, Reference, SchemaDetails, Source
from dpsql.types import Kind

_MOST_UNITS = 0.99  # the rows of so many units shall count in full


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

    These come from private rows, without noise: the owner asked for it and is told what it reveals. Exact extremes
    do not leave this function.
    """
    with _reading(path) as connection:
        return collect(proposals, partial(_extremes, connection), partial(_rows_of_most_units, connection))


def _extremes(connection: duckdb.DuckDBPyConnection, proposal: Proposal, column: str) -> tuple[Bound, Bound] | None:
    type_ = proposal.table.columns[column].type
    assert type_ is not None
    name = quoted(column)
    # NaN and infinity are no extremes; whole numbers and decimals have neither.
    finite = (
        f" WHERE isfinite({name})" if type_.kind in (Kind.DOUBLE, Kind.DATE, Kind.TIMESTAMP, Kind.TIMESTAMPTZ) else ""
    )
    # A day says enough, and Python knows no moment of a zone without a further package.
    value = f"CAST({name} AS DATE)" if type_.is_temporal else name
    sql = f"SELECT MIN({value}), MAX({value}) FROM {qualified(proposal.table.source)}{finite}"
    low, high = connection.execute(sql).fetchone() or (None, None)
    if low is None or high is None:
        return None
    if type_.is_temporal and not (isinstance(low, date) and isinstance(high, date)):
        return None  # a year that Python does not know comes as text
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
