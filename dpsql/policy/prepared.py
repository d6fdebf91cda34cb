"""Prepared copies of private tables: what a copy contains, and whether it is the one that the policy names.

`dpsql prepare` writes them. A copy has the rows that have an owner, with two more columns: the owner, found through all
references, and the owner's number of rows in this table. That changes no answer. It only saves queries the joins to the
owner, and counting each owner's rows to find those above the declared limit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType

from dpsql.errors import PolicyError
from dpsql.policy.model import Catalog, Copy, DatabaseSchema, PreparedPolicy, Table, TableSchema
from dpsql.types import Kind

COPIED_OWNER = "dpsql_owner"
COPIED_ROWS = "dpsql_rows"
# A copy describes itself in one row of this table, in a schema whose name is or begins with this.
SCHEMA = "dpsql_prepared"
ABOUT = "about"
ABOUT_COLUMNS = ("version", "identity", "facts")
AGAIN = "Run: dpsql prepare."


@dataclass(frozen=True, slots=True)
class CopiedTable:
    """One table of a copy."""

    source: tuple[str, str]  # the table that was copied
    copy: tuple[str, str]  # schema and name of the copy
    unit: str  # the path to the owner, as `unit_facts` writes it; empty for a public table
    unique: tuple[tuple[str, ...], ...] = ()  # unique in the source, but not enforced in the copy


@dataclass(frozen=True, slots=True)
class About:
    """A copy's description of itself."""

    version: int
    identity: str
    tables: tuple[CopiedTable, ...]

    @property
    def facts(self) -> str:
        return json.dumps([asdict(table) for table in self.tables])


def read_about(version: object, identity: object, facts: object) -> About:
    """Read the one row of the table; raises PolicyError if dpsql did not write it."""
    try:
        tables = tuple(
            CopiedTable(
                (str(each["source"][0]), str(each["source"][1])),
                (str(each["copy"][0]), str(each["copy"][1])),
                str(each["unit"]),
                tuple(tuple(map(str, names)) for names in each["unique"]),
            )
            for each in json.loads(str(facts))
        )
        return About(int(str(version)), str(identity), tables)
    except (ValueError, LookupError, TypeError):
        raise not_a_copy() from None


def not_a_copy() -> PolicyError:
    return PolicyError("the prepared copy was not made by dpsql", hint=AGAIN)


def require_meant(about: About, prepared: PreparedPolicy) -> None:
    """Refuse a copy other than the one that the policy names: it may be older, or of other data."""
    if (about.version, about.identity) != (prepared.version, prepared.identity):
        raise PolicyError(f'the prepared copy "{prepared.copy}" is not the one that the policy names', hint=AGAIN)


def unit_facts(table: Table) -> str:
    """The path from a row to its owner, as text: tables with equal texts have the same owners."""
    assert table.owner_type is not None
    type_ = table.owner_type
    kind = [type_.kind.value, *([] if type_.kind is Kind.INTEGER else [type_.precision, type_.scale])]
    steps = [[step.via, step.source, step.key] for step in table.path]
    return json.dumps([table.owner, kind, steps])


def with_copies(tables: Mapping[tuple[str, str], TableSchema], default_schema: str, about: About) -> DatabaseSchema:
    """The schema that the policy describes: each copied table under its original name, as it was when it was copied."""
    copied = {each.copy for each in about.tables}
    found = {name: table for name, table in tables.items() if name not in copied and not is_our_schema(name[0])}
    for each in about.tables:
        if each.copy not in tables:
            raise not_a_copy()
        found[each.source] = _as_source(tables[each.copy], each, about.version)
    return DatabaseSchema(found, default_schema)


def is_our_schema(name: str) -> bool:
    return name == SCHEMA or name.startswith(f"{SCHEMA}_")


def _as_source(table: TableSchema, copied: CopiedTable, version: int) -> TableSchema:
    unique = table.unique | frozenset(map(frozenset, copied.unique))
    plain = replace(table, source=copied.source, unique=unique)
    if not copied.unit:
        return plain
    added = table.columns.keys() & {COPIED_OWNER, COPIED_ROWS}
    if len(added) < 2 or any(table.columns[name].nullable for name in added):
        raise not_a_copy()
    columns = {name: column for name, column in table.columns.items() if name not in added}
    return replace(plain, columns=columns, copy=Copy(copied.copy, copied.unit, version))


def taken_columns(columns: Sequence[str]) -> list[str]:
    """The columns of a table whose names collide with those that a copy adds."""
    return [name for name in columns if name.casefold() in (COPIED_OWNER, COPIED_ROWS)]


def without_copies(catalog: Catalog) -> Catalog:
    """The catalog without prepared copies; each table is still one object."""
    tables = {id(table): replace(table, copy=None) for table in catalog.tables.values()}
    named = {name: tables[id(table)] for name, table in catalog.tables.items()}
    return replace(catalog, tables=MappingProxyType(named))
