"""A role for each user of dpsql, and a group role that holds all their rights."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import psycopg
from psycopg import sql
from psycopg.rows import TupleRow

from dpsql.errors import PolicyError
from dpsql.policy.problems import quoted
from dpsql.server.twin.names import check_role

_END_SECONDS = 10


def users_role(database: str) -> str:
    """The group role of all users. Roles are global to a server, hence the database in its name."""
    name = f"users_of_{database}"
    check_role(name, frozenset())
    return name


def ensure_users_role(connection: psycopg.Connection[TupleRow], database: str) -> None:
    name = users_role(database)
    _check_ours(connection, name, database)
    if not _exists(connection, name):
        connection.execute(sql.SQL("CREATE ROLE {} NOLOGIN").format(sql.Identifier(name)))
        _mark(connection, name, database)


def set_roles(
    connection: psycopg.Connection[TupleRow],
    database: str,
    users: Iterable[str],
    password: Callable[[str], str] | None,
) -> None:
    """Create, update and drop the roles of users. Remaining roles keep their settings; sessions of dropped ones end.

    Claim: a user has only the rights of `users_role`, and can act as no other role.
    Because: the role has no attribute beyond LOGIN and is a member of that one role, to which it cannot SET ROLE.
    Needs: only dpsql grants anything to these roles.
    """
    wanted = set(users)
    group = users_role(database)
    administrator = connection.info.user
    for user in sorted(wanted):
        check_role(user, frozenset({group, administrator}))
        _check_ours(connection, user, database)
    present = _ours(connection, database) - {group}
    for user in sorted(present - wanted):
        _drop(connection, user)
    for user in sorted(wanted - present):
        with connection.transaction():
            connection.execute(
                sql.SQL("CREATE ROLE {} LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS").format(
                    sql.Identifier(user)
                )
            )
            connection.execute(
                sql.SQL("GRANT {} TO {} WITH ADMIN FALSE, INHERIT TRUE, SET FALSE").format(
                    sql.Identifier(group), sql.Identifier(user)
                )
            )
            _mark(connection, user, database)
    if password is not None:
        for user in sorted(wanted):
            _set_password(connection, user, password(user))


def _mark_text(database: str) -> str:
    return f"made by dpsql for its twin in database {quoted(database)}"


def _mark(connection: psycopg.Connection[TupleRow], role: str, database: str) -> None:
    connection.execute(
        sql.SQL("COMMENT ON ROLE {} IS {}").format(sql.Identifier(role), sql.Literal(_mark_text(database)))
    )


def _ours(connection: psycopg.Connection[TupleRow], database: str) -> set[str]:
    found = connection.execute(
        "SELECT rolname FROM pg_roles WHERE shobj_description(oid, 'pg_authid') = %s", [_mark_text(database)]
    )
    return {name for (name,) in found}


def _exists(connection: psycopg.Connection[TupleRow], role: str) -> bool:
    return connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [role]).fetchone() is not None


def _check_ours(connection: psycopg.Connection[TupleRow], role: str, database: str) -> None:
    """Refuse a role that dpsql did not create: it may have rights to data elsewhere on that server."""
    if _exists(connection, role) and role not in _ours(connection, database):
        raise PolicyError(
            f"the twin's server has a role {quoted(role)} that dpsql did not create",
            hint="Give the user another name, or use a server that has no such role.",
        )


def _drop(connection: psycopg.Connection[TupleRow], user: str) -> None:
    role = sql.Identifier(user)
    connection.execute(sql.SQL("ALTER ROLE {} NOLOGIN").format(role))  # so that no new session begins
    connection.execute(
        "SELECT pg_terminate_backend(pid, %s) FROM pg_stat_activity WHERE usename = %s", [_END_SECONDS * 1000, user]
    )
    connection.execute(sql.SQL("DROP OWNED BY {}").format(role))
    connection.execute(sql.SQL("DROP ROLE {}").format(role))


def _set_password(connection: psycopg.Connection[TupleRow], user: str, password: str) -> None:
    """Set a password, hashed here so that no server log can hold it."""
    verifier = connection.pgconn.encrypt_password(password.encode(), user.encode(), b"scram-sha-256").decode()
    connection.execute(
        sql.SQL("ALTER ROLE {} PASSWORD {}").format(sql.Identifier(user), sql.Literal(verifier)),
    )
