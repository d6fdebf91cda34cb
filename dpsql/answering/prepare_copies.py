"""`dpsql prepare`: from a policy and its database to a copy in which queries find owners and their rows counted."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dpsql.answering.open_dataset import bind_all, open_backend
from dpsql.engines.base import Engine
from dpsql.errors import PolicyError
from dpsql.lowering.copies import TableToCopy, private_rows, public_rows
from dpsql.lowering.dialect import Dialect
from dpsql.policy.address import is_postgres_address
from dpsql.policy.edit import set_prepared
from dpsql.policy.load import database_path, load
from dpsql.policy.model import Catalog, DatabaseSchema, Policy, PreparedPolicy, Table, TableSchema
from dpsql.policy.prepared import ABOUT, SCHEMA, About, CopiedTable, is_our_schema, taken_columns, unit_facts
from dpsql.policy.problems import quoted

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Done:
    """What was made, and what it stands in for."""

    prepared: PreparedPolicy
    before: PreparedPolicy | None
    tables: tuple[CopiedTable, ...]


def prepare(path: Path, to: str | None = None, writer: str | None = None, tell: Tell = lambda _: None) -> Done:
    """Make a copy, and let the policy name it. Copies made before stay: a server that runs still reads its own.

    `to` is a file, or a schema of a PostgreSQL database, which is written with the rights of the address `writer`.
    """
    policy = load(path)
    schema, catalog, dialect = _bound(replace(policy, prepared=None))
    version = 1 if policy.prepared is None else policy.prepared.version + 1
    tables = {table.name: table for table in catalog.tables.values()}.values()
    if is_postgres_address(policy.database):
        name = to or f"{SCHEMA}_{version}"
        if not is_our_schema(name):
            raise PolicyError(f"the name of a schema for copies begins with {quoted(SCHEMA)}")
        places = _places_in(name, [table.source for table in tables if table.is_private])
        # Public tables are read where they are.
        copied = [_copied(t, _found(t, schema), places[t.source], dialect) for t in tables if t.is_private]
        about = About(version, uuid.uuid4().hex, tuple(table.copied for table in copied))
        _write_schema(policy, name, copied, about, writer, tell)
    else:
        if writer is not None:
            raise PolicyError(
                "--as is only for PostgreSQL",
                hint="Run dpsql prepare without --as, as a user who may write to the folder of the DuckDB file.",
            )
        target = _target(policy, to, version)
        name = os.path.relpath(target, policy.path.parent)
        copied = [_copied(t, _found(t, schema), (t.source[0], t.source[1]), dialect) for t in tables]
        about = About(version, uuid.uuid4().hex, tuple(table.copied for table in copied))
        _write_file(policy, target, copied, about, tell)
    prepared = PreparedPolicy(name, version, about.identity)
    set_prepared(path, prepared)
    return Done(prepared, policy.prepared, about.tables)


def _places_in(schema: str, sources: Sequence[tuple[str, ...]]) -> dict[tuple[str, ...], tuple[str, str]]:
    """A table for each, under its own name where that is free."""
    found: dict[tuple[str, ...], tuple[str, str]] = {}
    taken = {ABOUT}
    for number, source in enumerate(sources):
        name = source[-1] if source[-1] not in taken else f"table_{number}"
        taken.add(name)
        found[source] = (schema, name)
    return found


def writes_to_database(path: Path) -> bool:
    """Whether the copy would be in the database itself."""
    return is_postgres_address(load(path).database)


def forget(path: Path) -> PreparedPolicy | None:
    """Let the policy name no copy any more; returns the one it named."""
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


def _target(policy: Policy, to: str | None, version: int) -> Path:
    if to is not None:
        return Path(to).absolute()
    database = database_path(policy).absolute()
    return database.with_name(f"{database.stem}.prepared-{version}{database.suffix}")


def _found(table: Table, schema: DatabaseSchema) -> TableSchema:
    return schema.tables[table.source[0], table.source[1]]


def _copied(table: Table, found: TableSchema, place: tuple[str, str], dialect: Dialect) -> TableToCopy:
    if dialect.name == "duckdb":
        # What nobody can declare is left out; PostgreSQL makes a copy like its table, with all columns.
        found = replace(found, columns={name: c for name, c in found.columns.items() if c.type is not None})
    columns = list(found.columns)
    source = (found.source[0], found.source[1])
    unique = tuple(sorted(tuple(sorted(names)) for names in found.unique)) if dialect.name == "duckdb" else ()
    if not table.is_private:
        return TableToCopy(found, CopiedTable(source, place, "", unique), public_rows(source, columns), "")
    if taken := taken_columns(columns):
        raise PolicyError(
            f"table {quoted(table.name)} has a column {quoted(taken[0])}, which is the name of one that a copy adds",
            hint="Rename the column.",
        )
    assert table.owner_type is not None
    copied = CopiedTable(source, place, unit_facts(table), unique)
    return TableToCopy(found, copied, private_rows(table, columns, dialect), dialect.type(table.owner_type))


def _write_schema(
    policy: Policy, schema: str, tables: Sequence[TableToCopy], about: About, writer: str | None, tell: Tell
) -> None:
    from dpsql.engines.postgres.copies import role_of, write_schema

    write_schema(writer or policy.database, schema, tables, about, role_of(policy.database), tell)


def _write_file(policy: Policy, target: Path, tables: Sequence[TableToCopy], about: About, tell: Tell) -> None:
    from dpsql.engines.duckdb.copies import write_copy

    limits = policy.limits
    write_copy(database_path(policy), target, tables, about, memory=limits.memory, threads=limits.threads, tell=tell)
