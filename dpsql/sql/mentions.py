"""Which tables a query reads by name: what tells a query for the engine from one for a catalogue."""

from __future__ import annotations

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from dpsql.sql.names import folded


def mentioned_tables(text: str) -> set[str] | None:
    """The last parts of all tables' names in a statement, CTEs included; None if it cannot be read."""
    try:
        tree = sqlglot.parse_one(text, read="postgres")
    except (SqlglotError, RecursionError):
        return None
    if isinstance(tree, exp.Command):
        return None
    return {folded(table.this) for table in tree.find_all(exp.Table) if isinstance(table.this, exp.Identifier)}
