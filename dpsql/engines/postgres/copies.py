"""Writes the prepared copy of a PostgreSQL database: a separate schema, in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import psycopg

from dpsql.engines.base import CopyPlan, CopyRequest, Tell
from dpsql.engines.postgres.connections import SETTINGS, Connection, Connections
from dpsql.engines.runtime import engine_failed
from dpsql.errors import Error, PolicyError
from dpsql.lowering.copies import TableToCopy
from dpsql.lowering.dialect import qualified, quoted
from dpsql.policy.model import PreparedPolicy, TableSchema
from dpsql.policy.prepared import ABOUT, ABOUT_COLUMNS, COPIED_OWNER, COPIED_ROWS, SCHEMA, About, is_our_schema
from dpsql.policy.schemes import Address

# For dpsql's own statements; copying has no time limit.
_SETTINGS = {name: SETTINGS[name] for name in ("search_path", "TimeZone", "row_security")}
_REFUSE = """CREATE FUNCTION {schema}.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE 'a prepared copy is not written to: dpsql prepare makes the next one' USING ERRCODE = '25006'; END $$"""
_GUARD = """CREATE TRIGGER refuse BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON {table}
FOR EACH STATEMENT EXECUTE FUNCTION {schema}.refuse()"""


class CopySchemas:
    """A copy is a schema in the database, for its private tables only: public tables are read in place."""

    in_database = True

    def plan(
        self, request: CopyRequest, private: Sequence[tuple[str, ...]], public: Sequence[tuple[str, ...]]
    ) -> CopyPlan:
        del public
        name = request.to or f"{SCHEMA}_{request.version}"
        if not is_our_schema(name):
            raise PolicyError(f'the name of a schema for copies must begin with "{SCHEMA}"')
        return CopyPlan(name, _places_in(name, private))

    def like(self, table: TableSchema) -> tuple[TableSchema, tuple[tuple[str, ...], ...]]:
        """With all columns and keys."""
        return table, ()

    def write(self, request: CopyRequest, name: str, tables: Sequence[TableToCopy], about: About, tell: Tell) -> None:
        url = request.address.url
        write_schema(request.writer or url, name, tables, about, role_of(url), tell)

    def warnings(self, address: Address, prepared: PreparedPolicy) -> list[str]:
        """None: a server does not report when a table was written."""
        del address, prepared
        return []


def _places_in(schema: str, sources: Sequence[tuple[str, ...]]) -> dict[tuple[str, ...], tuple[str, str]]:
    """The name of each copy: the table's own name where that is free."""
    found: dict[tuple[str, ...], tuple[str, str]] = {}
    taken = {ABOUT}
    for number, source in enumerate(sources):
        name = source[-1] if source[-1] not in taken else f"table_{number}"
        taken.add(name)
        found[source] = (schema, name)
    return found


def write_schema(
    url: str, schema: str, tables: Sequence[TableToCopy], about: About, reader: str, tell: Callable[[str], None]
) -> None:
    """Copy the tables, in one snapshot, readable for the role `reader` and not writable."""
    failure: Error
    try:
        with Connections(url).connect() as connection:
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            for name, value in _SETTINGS.items():
                connection.execute("SELECT set_config($1, $2, true)", [name, value])
            _fill(connection, schema, tables, about, tell)
            _let_read(connection, schema, reader)
            connection.execute("COMMIT")
            for table in tables:
                connection.execute(f"VACUUM ANALYZE {qualified(table.copied.copy)}")
        return
    except psycopg.errors.InsufficientPrivilege:
        failure = PolicyError(
            "the role may not create a schema in the database, or may not read all tables to copy",
            hint="Use --as with the address of a role that may; it is used only for the copy.",
        )
    except psycopg.errors.DuplicateSchema:
        failure = PolicyError(f'the schema "{schema}" already exists', hint="Name another one with --to.")
    except psycopg.Error as error:
        failure = engine_failed(error)
    raise failure


def role_of(url: str) -> str:
    """The role that an address connects as."""
    failure: Error
    try:
        with Connections(url).connect() as connection:
            row: tuple[Any, ...] | None = connection.execute("SELECT current_user").fetchone()
            assert row is not None
            return str(row[0])
    except psycopg.Error as error:
        failure = engine_failed(error)
    raise failure


def _fill(
    connection: Connection, schema: str, tables: Sequence[TableToCopy], about: About, tell: Callable[[str], None]
) -> None:
    connection.execute(f"CREATE SCHEMA {quoted(schema)}")
    connection.execute(_REFUSE.format(schema=quoted(schema)))
    for table in tables:
        tell(table.copied.source[1])
        copy = qualified(table.copied.copy)
        added = f"{COPIED_OWNER} {table.owner_type} NOT NULL, {COPIED_ROWS} bigint NOT NULL"
        # The copy has the same indexes and unique keys.
        connection.execute(f"CREATE TABLE {copy} (LIKE {qualified(table.copied.source)} INCLUDING INDEXES, {added})")
        columns = ", ".join([*map(quoted, table.schema.columns), COPIED_OWNER, COPIED_ROWS])
        connection.execute(f"INSERT INTO {copy} ({columns}) {table.rows}")
        connection.execute(f"CREATE INDEX ON {copy} ({COPIED_ROWS})")
        connection.execute(_GUARD.format(table=copy, schema=quoted(schema)))
    place = f"{quoted(schema)}.{ABOUT}"
    connection.execute(f"CREATE TABLE {place} ({', '.join(f'{column} text' for column in ABOUT_COLUMNS)})")
    row = [str(about.version), about.identity, about.facts]
    connection.execute(f"INSERT INTO {place} VALUES ($1, $2, $3)", row)
    connection.execute(_GUARD.format(table=place, schema=quoted(schema)))


def _let_read(connection: Connection, schema: str, reader: str) -> None:
    connection.execute(f"GRANT USAGE ON SCHEMA {quoted(schema)} TO {quoted(reader)}")
    connection.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {quoted(schema)} TO {quoted(reader)}")
