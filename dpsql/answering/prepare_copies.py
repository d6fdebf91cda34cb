"""`dpsql prepare`: writes a copy of the tables in which each row has its owner and the owner's row count."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from pathlib import Path

from dpsql.answering.open_dataset import bind_all, open_backend
from dpsql.engines.base import CopyRequest, CopyWriter, Engine, Tell
from dpsql.engines.registry import engine_kind
from dpsql.errors import PolicyError
from dpsql.lowering.copies import TableToCopy, private_rows, public_rows
from dpsql.lowering.dialect import Dialect
from dpsql.policy.edit import set_prepared
from dpsql.policy.load import database_address, load
from dpsql.policy.model import Catalog, DatabaseSchema, Policy, PreparedPolicy, Table, TableSchema
from dpsql.policy.prepared import About, CopiedTable, taken_columns, unit_facts
from dpsql.policy.problems import quoted


@dataclass(frozen=True, slots=True)
class Done:
    """The new copy, and the one that it replaces."""

    prepared: PreparedPolicy
    before: PreparedPolicy | None
    tables: tuple[CopiedTable, ...]


def prepare(path: Path, to: str | None = None, writer: str | None = None, tell: Tell = lambda _: None) -> Done:
    """Write a copy, and name it in the policy. Earlier copies stay: a running server still reads its own.

    `to`: a place in the engine's terms, written with the rights of the address `writer`.
    """
    policy = load(path)
    copies = _copies(policy)
    schema, catalog, dialect = _bound(replace(policy, prepared=None))
    version = 1 if policy.prepared is None else policy.prepared.version + 1
    request = CopyRequest(database_address(policy), policy.limits, version, to, writer)
    tables = {table.name: table for table in catalog.tables.values()}.values()
    private = [table.source for table in tables if table.is_private]
    plan = copies.plan(request, private, [table.source for table in tables if not table.is_private])
    copied = [
        _copied(table, copies, schema.tables[table.source[0], table.source[1]], plan.places[table.source], dialect)
        for table in tables
        if table.source in plan.places
    ]
    about = About(version, uuid.uuid4().hex, tuple(table.copied for table in copied))
    copies.write(request, plan.name, copied, about, tell)
    prepared = PreparedPolicy(plan.name, version, about.identity)
    set_prepared(path, prepared)
    return Done(prepared, policy.prepared, about.tables)


def _copies(policy: Policy) -> CopyWriter:
    kind = engine_kind(policy.database)
    if kind.copies is None:
        raise PolicyError(
            f"no copies can be prepared of a database of {kind.title}", hint="Queries read the database itself."
        )
    return kind.copies


def writes_to_database(path: Path) -> bool:
    """Whether the copy would be in the database itself."""
    return _copies(load(path)).in_database


def forget(path: Path) -> PreparedPolicy | None:
    """Remove the copy from the policy; returns it."""
    before = load(path).prepared
    if before is not None:
        set_prepared(path, None)
    return before


def _bound(policy: Policy) -> tuple[DatabaseSchema, Catalog, Dialect]:
    engine: Engine = open_backend(policy)
    try:
        return engine.schema(), bind_all(policy, engine), engine.dialect
    finally:
        engine.close()


def _copied(
    table: Table, copies: CopyWriter, found: TableSchema, place: tuple[str, str], dialect: Dialect
) -> TableToCopy:
    found, unique = copies.like(found)
    columns = list(found.columns)
    source = (found.source[0], found.source[1])
    if not table.is_private:
        return TableToCopy(found, CopiedTable(source, place, "", unique), public_rows(source, columns, dialect), "")
    if taken := taken_columns(columns):
        raise PolicyError(
            f"table {quoted(table.name)} has a column {quoted(taken[0])}, which is the name of one that a copy adds",
            hint="Rename the column.",
        )
    assert table.owner_type is not None
    copied = CopiedTable(source, place, unit_facts(table), unique)
    return TableToCopy(found, copied, private_rows(table, columns, dialect), dialect.type(table.owner_type))
