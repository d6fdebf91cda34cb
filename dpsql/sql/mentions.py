"""Which tables a query reads by name: what tells a query for the engine from one for a catalogue."""

from __future__ import annotations

import sqlglot
from sqlglot import exp

from dpsql.sql.names import folded
from dpsql.sql.rereading import is_read_soon


def mentioned_tables(text: str) -> set[str] | None:
    """The last parts of all tables' names in a statement, CTEs included; None if it cannot be read, or not soon."""
    try:
        tokens = sqlglot.tokenize(text, read="postgres")
        if not is_read_soon(tokens):
            return None
        trees = sqlglot.Dialect.get_or_raise("postgres").parser().parse(tokens, text)
    except Exception:  # whatever sqlglot stumbles over: not only errors of its own
        return None
    if len(trees) != 1 or trees[0] is None or isinstance(trees[0], exp.Command):
        return None
    return {folded(table.this) for table in trees[0].find_all(exp.Table) if isinstance(table.this, exp.Identifier)}
