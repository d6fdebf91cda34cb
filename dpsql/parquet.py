"""The rows of an answer as a Parquet file, written by DuckDB."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import duckdb

from dpsql.display import Column
from dpsql.errors import OperationalError
from dpsql.types import Cell, Kind, Type

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
    """Write the file, over one that is there. The names of the columns must differ."""
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
            hint="Check that its folder exists, can be written and has room. The same query again is free.",
        ) from error


def _type(type_: Type) -> str:
    if type_.element is not None:
        return f"{_type(type_.element)}[]"
    if type_.kind is Kind.DECIMAL:
        return f"DECIMAL({type_.precision},{type_.scale})"
    return _TYPES.get(type_.kind, "VARCHAR")


def _quoted(text: str, mark: str) -> str:
    return mark + text.replace(mark, mark * 2) + mark
