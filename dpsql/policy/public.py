"""What small public tables hold: their values are keys that need no declaration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import MappingProxyType

from dpsql.errors import PolicyError
from dpsql.policy.model import Table
from dpsql.types import Value

# Reads columns of a public table, column by column, of at most so many rows and one more.
ReadPublic = Callable[[tuple[str, ...], Sequence[str], int], list[list[Value]]]

SMALL = 1_000  # rows
LARGE = 100_000  # rows, of which columns with declared values or bounds are read
MOST_COMBINATIONS = 10_000


def with_contents(table: Table, read: ReadPublic) -> Table:
    """A public table of few rows with its rows, and the different values of each column, as of opening the database.

    Claim: keys and counts of rows taken from here tell nothing of private rows.
    Because: only public tables are read. A row whose value was added later is not counted, as with declared values.
    Needs: a table that the owner declared public.
    """
    if table.is_private:
        return table
    try:
        columns = read(table.source, list(table.columns), SMALL)
    except PolicyError:
        return table  # it holds what Python has no value for; a query that needs it says so
    if any(len(values) > SMALL for values in columns):
        return _with_combinations(table, read)
    contents = {
        name: tuple(dict.fromkeys(value for value in values if value == value))  # NaN is no key
        for name, values in zip(table.columns, columns, strict=True)
    }
    # NaN equals itself in an engine and not in Python, so nothing is concluded from rows that hold it.
    holds_nan = any(value != value for values in columns for value in values)
    rows = None if holds_nan or not columns else tuple(zip(*columns, strict=True))
    return replace(table, contents=MappingProxyType(contents), rows=rows)


def _with_combinations(table: Table, read: ReadPublic) -> Table:
    """A larger table with the combinations of values that its declared columns have: what keys go together there."""
    declared = [c.name for c in table.columns.values() if c.lower is not None or c.values is not None]
    if not declared:
        return table
    try:
        columns = read(table.source, declared, LARGE)
    except PolicyError:
        return table
    found = dict.fromkeys(zip(*columns, strict=True))
    if len(columns[0]) > LARGE or len(found) > MOST_COMBINATIONS or any(v != v for row in found for v in row):
        return table
    return replace(table, combinations=(tuple(declared), tuple(found)))
