"""`dpsql prepare`: from a policy and its database to a copy in which queries find owners and their rows counted."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dpsql.backends import Backend
from dpsql.dataset import bind_all, open_backend
from dpsql.errors import NotSupported, PolicyError
from dpsql.generate.copies import TableToCopy, private_rows, public_rows
from dpsql.generate.dialect import Dialect
from dpsql.policy.address import is_postgres_address
from dpsql.policy.edit import set_prepared
from dpsql.policy.loader import database_path, load
from dpsql.policy.model import Catalog, DatabaseSchema, Policy, PreparedPolicy, Table, TableSchema
from dpsql.policy.prepared import About, CopiedTable, taken_columns, unit_facts
from dpsql.policy.problems import quoted

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Done:
    """What was made, and what it stands in for."""

    prepared: PreparedPolicy
    before: PreparedPolicy | None
    tables: tuple[CopiedTable, ...]


def prepare(path: Path, to: str | None, tell: Tell = lambda _: None) -> Done:
    """Make a copy, and let the policy name it. Copies made before stay: a server that runs still reads its own."""
    policy = load(path)
    if is_postgres_address(policy.database):
        raise NotSupported("only DuckDB databases can be prepared")
    schema, catalog, dialect = _bound(replace(policy, prepared=None))
    version = 1 if policy.prepared is None else policy.prepared.version + 1
    target = _target(policy, to, version)
    identity = uuid.uuid4().hex
    tables = [
        _table_to_copy(table, _found(table, schema), dialect)
        for table in {table.name: table for table in catalog.tables.values()}.values()
    ]
    about = About(version, identity, tuple(table.copied for table in tables))
    _write_file(policy, target, tables, about, tell)
    prepared = PreparedPolicy(os.path.relpath(target, policy.path.parent), version, identity)
    set_prepared(path, prepared)
    return Done(prepared, policy.prepared, about.tables)


def forget(path: Path) -> PreparedPolicy | None:
    """Let the policy name no copy any more; returns the one it named."""
    before = load(path).prepared
    if before is not None:
        set_prepared(path, None)
    return before


def _bound(policy: Policy) -> tuple[DatabaseSchema, Catalog, Dialect]:
    backend: Backend = open_backend(policy)
    try:
        return backend.schema(), bind_all(policy, backend), backend.dialect
    finally:
        backend.close()


def _target(policy: Policy, to: str | None, version: int) -> Path:
    if to is not None:
        return Path(to).absolute()
    database = database_path(policy).absolute()
    return database.with_name(f"{database.stem}.prepared-{version}{database.suffix}")


def _found(table: Table, schema: DatabaseSchema) -> TableSchema:
    return schema.tables[table.source[0], table.source[1]]


def _table_to_copy(table: Table, found: TableSchema, dialect: Dialect) -> TableToCopy:
    columns = list(found.columns)
    source = (found.source[0], found.source[1])
    unique = tuple(sorted(tuple(sorted(names)) for names in found.unique))
    if not table.is_private:
        return TableToCopy(found, CopiedTable(source, source, "", unique), public_rows(source, columns), "")
    if taken := taken_columns(columns):
        raise PolicyError(
            f"table {quoted(table.name)} has a column {quoted(taken[0])}, which is the name of one that a copy adds",
            hint="Rename the column.",
        )
    assert table.owner_type is not None
    copied = CopiedTable(source, source, unit_facts(table), unique)
    return TableToCopy(found, copied, private_rows(table, columns, dialect), dialect.type(table.owner_type))


def _write_file(policy: Policy, target: Path, tables: Sequence[TableToCopy], about: About, tell: Tell) -> None:
    from dpsql.backends.duckdb_prepare import write_copy

    limits = policy.limits
    write_copy(database_path(policy), target, tables, about, memory=limits.memory, threads=limits.threads, tell=tell)
