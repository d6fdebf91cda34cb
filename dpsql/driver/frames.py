"""Rows as data frames of pandas and Arrow, and as Parquet files.

pandas and pyarrow are optional: dpsql does not depend on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import duckdb

from dpsql.driver.display import Column, Margins
from dpsql.errors import InterfaceError, OperationalError
from dpsql.types import BIGINT, DOUBLE, Cell, Kind, Type

Rows = Sequence[Sequence[Cell]]
Item = TypeVar("Item")

# Types that can hold NULL, so that the type of a column depends on the query alone.
_PANDAS_TYPES = {
    Kind.BOOLEAN: "boolean",
    Kind.INTEGER: "Int64",
    Kind.DOUBLE: "float64",
    Kind.DATE: "datetime64[us]",
    Kind.TIMESTAMP: "datetime64[us]",
    Kind.TIMESTAMPTZ: "datetime64[us, UTC]",
}


def with_margins(columns: Sequence[Column], rows: Rows, margins: Margins) -> tuple[list[Column], list[list[Cell]]]:
    """The same rows with a column <name>_margin after each noisy one; infinite where a number is marked as noise."""
    added = [
        Column(f"{column.name}_margin", BIGINT if isinstance(column.margin, int) else DOUBLE) for column in columns
    ]
    wide = [_behind(row, its, columns) for row, its in zip(rows, margins, strict=True)]
    return _behind(columns, added, columns), wide


def _behind(items: Sequence[Item], extras: Sequence[Item], columns: Sequence[Column]) -> list[Item]:
    pairs = zip(items, extras, columns, strict=True)
    return [each for item, extra, column in pairs for each in ([item, extra] if column.is_noisy else [item])]


def to_pandas(pandas: Any, columns: Sequence[Column], rows: Rows) -> Any:
    """A DataFrame of the given pandas module."""
    series = [
        pandas.Series([row[i] for row in rows], dtype=_PANDAS_TYPES.get(column.type.kind, "object"))
        for i, column in enumerate(columns)
    ]
    frame = pandas.concat(series, axis=1)
    frame.columns = [column.name for column in columns]  # two columns may have the same name
    return frame


def to_arrow(arrow: Any, columns: Sequence[Column], rows: Rows) -> Any:
    """A Table of the given pyarrow module."""
    arrays = [
        arrow.array([row[i] for row in rows], type=_arrow_type(arrow, column.type)) for i, column in enumerate(columns)
    ]
    return arrow.Table.from_arrays(arrays, names=[column.name for column in columns])


def _arrow_type(arrow: Any, type_: Type) -> Any:
    match type_.kind:
        case Kind.BOOLEAN:
            return arrow.bool_()
        case Kind.INTEGER:
            return arrow.int64()
        case Kind.DECIMAL:
            return arrow.decimal128(type_.precision, type_.scale)
        case Kind.DOUBLE:
            return arrow.float64()
        case Kind.DATE:
            return arrow.date32()
        case Kind.TIMESTAMP:
            return arrow.timestamp("us")
        case Kind.TIMESTAMPTZ:
            return arrow.timestamp("us", tz="UTC")
        case Kind.INTERVAL:
            return arrow.duration("us")
        case Kind.ARRAY if type_.element is not None:
            return arrow.list_(_arrow_type(arrow, type_.element))
        case _:
            return arrow.string()


def installed(library: str) -> Any:
    """Import an optional module."""
    try:
        return import_module(library)
    except ImportError:
        raise InterfaceError(f"{library} is not installed", hint=f"Run: pip install {library}.") from None


# ------------------------------------------------------------
# The rows of an answer as a Parquet file, written by DuckDB.

_TYPES = {
    Kind.BOOLEAN: "BOOLEAN",
    Kind.INTEGER: "BIGINT",
    Kind.DOUBLE: "DOUBLE",
    Kind.DATE: "DATE",
    Kind.TIMESTAMP: "TIMESTAMP",
    Kind.TIMESTAMPTZ: "TIMESTAMP WITH TIME ZONE",
    Kind.INTERVAL: "INTERVAL",
}


def write(path: Path, columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> None:
    """Write the file, replacing an existing one. Column names must be unique."""
    lists = [f"unnest(CAST($c{i} AS {_type(column.type)}[]))" for i, column in enumerate(columns)]
    names = [_quoted(column.name, '"') for column in columns]
    selected = [f"{values} AS {name}" for values, name in zip(lists, names, strict=True)]
    target = _quoted(str(path), "'")
    values = {f"c{i}": [row[i] for row in rows] for i in range(len(columns))}
    try:
        with duckdb.connect() as connection:
            connection.execute(f"CREATE TABLE answer AS SELECT {', '.join(selected)}", values)
            connection.execute(f"COPY answer TO {target} (FORMAT parquet)")
    except duckdb.Error as error:
        raise OperationalError(
            f'the file "{path}" cannot be written',
            hint="Check that its folder exists, can be written to and has space. Running the same query again is free.",
        ) from error


def _type(type_: Type) -> str:
    if type_.element is not None:
        return f"{_type(type_.element)}[]"
    if type_.kind is Kind.DECIMAL:
        return f"DECIMAL({type_.precision},{type_.scale})"
    return _TYPES.get(type_.kind, "VARCHAR")


def _quoted(text: str, mark: str) -> str:
    return mark + text.replace(mark, mark * 2) + mark
