"""The rows of a prepared copy: what `dpsql prepare` asks the engine to write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dpsql.lowering.dialect import Dialect
from dpsql.lowering.relations import OWNER, RelationWriter
from dpsql.policy.model import Table, TableSchema
from dpsql.policy.prepared import CopiedTable


@dataclass(frozen=True, slots=True)
class TableToCopy:
    schema: TableSchema
    copied: CopiedTable
    rows: str  # SQL of its rows, in the order in which they are to be kept
    owner_type: str  # the engine's type of owners; empty for a public table


def private_rows(table: Table, columns: Sequence[str], dialect: Dialect) -> str:
    """Every row that has an owner, with the owner and how many rows the owner has, by these two.

    Claim: owners are those that a query without the copy would find; the number is that of the owner's rows here. The
    copy of a database without a person is the copy of the whole, without that person's rows.
    Because: the way to the owner is written by what writes it for queries, and the number is counted over the rows of
    this owner alone.
    Needs: one snapshot of all tables on the way.
    """
    inner = RelationWriter(dialect, private=True, copies=False).rows_with_owners(table, columns)
    shown = "".join(f"c{i}, " for i in range(len(columns)))
    # Owners with many rows lie together, so that an engine that knows what its pages hold need not read the others.
    return f"SELECT {shown}{OWNER}, COUNT(*) OVER (PARTITION BY {OWNER}) AS n FROM ({inner}) AS t ORDER BY n, {OWNER}"


def public_rows(source: Sequence[str], columns: Sequence[str], dialect: Dialect) -> str:
    return f"SELECT {', '.join(map(dialect.quote, columns))} FROM {dialect.qualified(source)}"
