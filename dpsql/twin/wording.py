"""The policy in plain words: the comments on tables and columns, as `\\d+` shows them."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from fractions import Fraction

from dpsql.policy.model import Bound, Column, Table
from dpsql.types import Value

_MOST_VALUES = 20


def table_words(table: Table) -> str:
    if table.owner is None:
        return "Public: answered exactly and for free."
    rows = "one row" if table.max_rows_per_unit == 1 else f"{table.max_rows_per_unit:,} rows"
    words = f"Private: only aggregates are answered. The unit is {table.unit_text}; at most {rows} of a unit count."
    if table.max_groups_per_unit is not None:
        words += f" A unit counts in at most {table.max_groups_per_unit:,} groups."
    return words


def column_words(column: Column, *, is_unit: bool) -> str:
    """Of a declared column of a private table."""
    parts = []
    if is_unit:
        parts.append(unit_words(column.name))
    if column.lower is not None and column.upper is not None:
        parts.append(f"Clamped to {bound_text(column.lower)} .. {bound_text(column.upper)}.")
    if column.step is not None:
        parts.append(f"Rounded to multiples of {bound_text(column.step)}.")
    if column.values is not None:
        shown = ", ".join(map(value_text, column.values[:_MOST_VALUES]))
        more = len(column.values) - _MOST_VALUES
        parts.append(f"One of: {shown}{f', and {more:,} more' if more > 0 else ''}.")
    if column.nullable_key:
        parts.append("NULL is a key of its own.")
    if not parts:
        parts.append("Not bounded: rare values are held back as keys.")
    return " ".join(parts)


def unit_words(name: str) -> str:
    return f"The unit: for COUNT(DISTINCT {name}) and for joining the rows of one unit; never shown."


def reference_words(table: Table, name: str) -> str:
    """Of a column that says whose a row is, and is not declared."""
    targets = [step.table for step in table.path[:1] if name in step.via]
    what = f"Names the row of {targets[0]} that it belongs to" if targets else "A key that other tables refer to"
    return f"{what}: for joining the rows of one unit; never shown."


def bound_text(bound: Bound) -> str:
    if isinstance(bound, Fraction):
        return _number_text(bound)
    return bound.isoformat(sep=" ") if isinstance(bound, datetime) else bound.isoformat()


def value_text(value: Value) -> str:
    return "NULL" if value is None else str(value)


def _number_text(number: Fraction) -> str:
    """As a decimal where it is one."""
    if number.denominator == 1:
        return str(number.numerator)
    digits = 0
    while digits < 40:
        digits += 1
        if (number * 10**digits).denominator == 1:
            return f"{Decimal(int(number * 10**digits)).scaleb(-digits):f}"
    return str(number)
