"""The declared tables and columns, described for analysts."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime
from fractions import Fraction

from dpsql.cli.rows import aligned, printable
from dpsql.driver.display import plain
from dpsql.errors import UnknownTable
from dpsql.policy.model import Bound, Catalog, Column, Table
from dpsql.types import Kind

_MOST_VALUES = 8


def tables_by_name(catalog: Catalog) -> Mapping[str, Table]:
    """Each declared table once, under the name that analysts use."""
    return {table.name: table for table in catalog.tables.values()}


def table_list(catalog: Catalog) -> list[str]:
    rows = [
        (name, "private" if table.is_private else "public", len(table.columns))
        for name, table in sorted(tables_by_name(catalog).items())
    ]
    return aligned(["table", "kind", "columns"], rows, numeric=[False, False, True])


def table_description(catalog: Catalog, name: str) -> list[str]:
    """A table's columns, what is declared for each, and its unit and row limit."""
    table = tables_by_name(catalog).get(name) or tables_by_name(catalog).get(name.lower())
    if table is None:
        raise UnknownTable(name)
    rows = [(column.name, str(column.type), _declared(column, table)) for column in table.columns.values()]
    head = [f'table "{printable(table.name)}": {_kind(table)}']
    return head + aligned(["column", "type", "declared"], rows, numeric=[False, False, False])


def _kind(table: Table) -> str:
    if not table.is_private:
        return "public, read as it is"
    rows = (
        "1 row per unit counts" if table.max_rows_per_unit == 1 else f"{table.max_rows_per_unit:,} rows per unit count"
    )
    return f'private, the unit is "{printable(table.unit_text)}", at most {rows}'


def _declared(column: Column, table: Table) -> str:
    if not table.is_private:
        return ""
    if column.values is not None:
        shown = ", ".join(plain(value) for value in column.values[:_MOST_VALUES])
        more = len(column.values) - _MOST_VALUES
        text = f"keys {shown}" if more <= 0 else f"keys {shown} and {more:,} more"
    elif column.lower is not None and column.upper is not None:
        text = f"{_bound(column.lower)} to {_bound(column.upper)}"
        if column.step is not None:
            text += f" in steps of {_bound(column.step)}"
    elif column.type.kind is Kind.BOOLEAN:
        text = "keys false, true"
    else:
        text = "no bounds; as a key, rare values are suppressed"
    return f"{text}, NULL" if column.nullable_key else text


def _bound(bound: Bound) -> str:
    match bound:
        case Fraction():
            return str(bound.numerator) if bound.denominator == 1 else f"{float(bound):g}"
        case datetime():
            return bound.isoformat(" ", "seconds")
        case date():
            return bound.isoformat()
