"""Builds the twin in a database, and rebuilds it when the policy or the schema has changed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import psycopg
from psycopg import sql
from psycopg.rows import TupleRow

from dpsql.errors import OperationalError
from dpsql.policy.model import Catalog
from dpsql.policy.problems import quoted
from dpsql.server.twin.account_views import account_statements
from dpsql.server.twin.names import KEPT_SCHEMA
from dpsql.server.twin.roles import ensure_users_role, users_role
from dpsql.server.twin.schema import schema_statements, search_path
from dpsql.server.twin.system_catalog import system_catalog_statements
from dpsql.settings import SETTINGS

# Settings of dpsql that an analyst may SET, or keep with ALTER ROLE, and their defaults for SHOW.


_MARK = "dpsql twin "

_REFUSE = """
CREATE PROCEDURE dpsql.refuse(sqlstate text, message text, detail text, hint text) LANGUAGE plpgsql AS $body$
BEGIN
    IF detail IS NOT NULL AND hint IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = sqlstate, MESSAGE = message, DETAIL = detail, HINT = hint;
    ELSIF detail IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = sqlstate, MESSAGE = message, DETAIL = detail;
    ELSIF hint IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = sqlstate, MESSAGE = message, HINT = hint;
    ELSE
        RAISE EXCEPTION USING ERRCODE = sqlstate, MESSAGE = message;
    END IF;
END
$body$
"""


def ensure_built(connection: psycopg.Connection[TupleRow], catalog: Catalog) -> bool:
    """Build the twin in the connection's database unless it is up to date; whether it was built.

    In one transaction: after a crash, either the old or the new one exists.
    """
    database = connection.info.dbname
    statements = list(_statements(catalog, database))
    content = "\n".join(statement.as_string(None) for statement in statements)
    mark = _MARK + hashlib.sha256(content.encode()).hexdigest()
    with connection.transaction():
        # Several proxies may share a twin.
        connection.execute("SELECT pg_advisory_xact_lock(hashtextextended('dpsql twin', 0))")
        ensure_users_role(connection, database)
        found = _database_comment(connection)
        if found == mark:
            return False
        if found is None or not found.startswith(_MARK):
            _check_empty(connection, database)
        connection.execute("SET LOCAL lock_timeout = '60s'")
        _drop_schemas(connection)
        for statement in statements:
            connection.execute(statement)
        connection.execute(sql.SQL("COMMENT ON DATABASE {} IS {}").format(sql.Identifier(database), sql.Literal(mark)))
    return True


def _statements(catalog: Catalog, database: str) -> Iterator[sql.Composed]:
    users = sql.Identifier(users_role(database))
    name = sql.Identifier(database)
    yield sql.SQL("REVOKE ALL ON DATABASE {} FROM PUBLIC").format(name)
    yield sql.SQL("ALTER DATABASE {} RESET ALL").format(name)
    yield sql.SQL("GRANT CONNECT, TEMPORARY ON DATABASE {} TO {}").format(name, users)
    for schema in ("public", "dpsql", "dpsql_internal"):
        yield sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema))
    yield sql.SQL("GRANT USAGE ON SCHEMA dpsql TO {}").format(users)
    yield sql.SQL("COMMENT ON SCHEMA dpsql IS 'Your account, and what may be asked.'").format()
    yield from schema_statements(catalog, users)
    yield from account_statements(users)
    yield sql.SQL(_REFUSE).format()
    for setting in SETTINGS.values():
        parameter = sql.SQL(f"dpsql.{setting.name}")
        yield sql.SQL("GRANT SET ON PARAMETER {} TO {}").format(parameter, users)
        yield sql.SQL("ALTER DATABASE {} SET {} = {}").format(name, parameter, sql.Literal(setting.default))
    path = sql.SQL(", ").join(map(sql.Identifier, ("$user", *search_path(catalog))))
    yield sql.SQL("ALTER DATABASE {} SET search_path = {}").format(name, path)
    yield from system_catalog_statements()


def _database_comment(connection: psycopg.Connection[TupleRow]) -> str | None:
    row = connection.execute(
        "SELECT shobj_description(oid, 'pg_database') FROM pg_database WHERE datname = current_database()"
    ).fetchone()
    assert row is not None
    comment: str | None = row[0]
    return comment


def _user_schemas(connection: psycopg.Connection[TupleRow]) -> list[str]:
    rows = connection.execute(
        "SELECT nspname FROM pg_namespace WHERE nspname <> 'information_schema' AND nspname !~ '^pg_' ORDER BY 1"
    )
    return [name for (name,) in rows]


def _drop_schemas(connection: psycopg.Connection[TupleRow]) -> None:
    for schema in set(_user_schemas(connection)) - {KEPT_SCHEMA}:
        connection.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(schema)))


def _check_empty(connection: psycopg.Connection[TupleRow], database: str) -> None:
    """Refuse a database that holds anything but a twin."""
    things = connection.execute(
        "SELECT count(*) FROM ("
        "SELECT oid, relnamespace AS schema FROM pg_class UNION ALL SELECT oid, pronamespace FROM pg_proc"
        " UNION ALL SELECT oid, typnamespace FROM pg_type) AS thing JOIN pg_namespace AS n ON n.oid = thing.schema"
        " WHERE n.nspname <> 'information_schema' AND n.nspname !~ '^pg_'"
    ).fetchone()
    if things != (0,) or set(_user_schemas(connection)) - {"public"}:
        raise OperationalError(
            f"database {quoted(database)} is neither empty nor a twin of dpsql",
            hint="Create an empty database for the twin: dpsql drops and creates schemas in it.",
        )
