"""An external twin: an empty database of the owner's, instead of a server of our own."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable
from pathlib import Path

import psycopg
from psycopg import sql
from psycopg.rows import TupleRow

from dpsql.engines.postgres.local_cluster import connect
from dpsql.errors import OperationalError
from dpsql.server.twin.names import KEPT_SCHEMA

_OLDEST = 16


class ExternalServer:
    """A server reached by address. Roles get passwords that no user knows, derived from a secret kept in the twin."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._secret = ""
        with self.connect() as connection:
            self.host, self.port = connection.info.host, connection.info.port
            self.database = connection.info.dbname
            self._check(connection)

    def connect(self) -> psycopg.Connection[TupleRow]:
        try:
            return psycopg.connect(self._address, autocommit=True, connect_timeout=30)
        except psycopg.Error as error:
            # The address may hold a password, and so may an exception that quotes it.
            raise OperationalError(
                "the twin's database cannot be reached",
                detail=f"SQLSTATE {error.sqlstate}" if error.sqlstate else None,
                hint="Check its address, and that a superuser can log in with it.",
            ) from None

    def password(self, user: str) -> str:
        return hmac.digest(self._secret.encode(), user.encode(), hashlib.sha256).hex()

    def read_secret(self, connection: psycopg.Connection[TupleRow]) -> None:
        """The secret is the same for all proxies that share the twin, and survives a rebuild."""
        schema, table = sql.Identifier(KEPT_SCHEMA), sql.Identifier(KEPT_SCHEMA, "secret")
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(hashtextextended('dpsql twin secret', 0))")
            connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(schema))
            connection.execute(sql.SQL("CREATE TABLE IF NOT EXISTS {} (value text NOT NULL)").format(table))
            row = connection.execute(sql.SQL("SELECT value FROM {}").format(table)).fetchone()
            if row is None:
                row = (secrets.token_hex(32),)
                connection.execute(sql.SQL("INSERT INTO {} VALUES ({})").format(table, sql.Literal(row[0])))
        self._secret = row[0]

    def _check(self, connection: psycopg.Connection[TupleRow]) -> None:
        if connection.info.server_version < _OLDEST * 10_000:
            raise OperationalError(
                f"the twin needs PostgreSQL {_OLDEST} or newer",
                hint="Without an address, dpsql runs a server of its own.",
            )
        (superuser,) = connection.execute("SELECT rolsuper FROM pg_roles WHERE rolname = current_user").fetchone() or (
            False,
        )
        if not superuser:
            raise OperationalError(
                "the twin needs a superuser, to change what PostgreSQL reports about privileges",
                hint="Connect as a superuser, on a server that holds no private data.",
            )
        if connection.info.parameter_status("server_encoding") != "UTF8":
            raise OperationalError("the twin's database is not in UTF-8", hint="CREATE DATABASE ... ENCODING 'UTF8'.")


# ------------------------------------------------------------
# The twin's server as a worker process sees it, which did not start it.


class SharedCluster:
    """Used as a `Cluster`. `restart` asks the process that owns the server to start it, and returns its socket."""

    def __init__(self, socket: Path, restart: Callable[[], Path]) -> None:
        self.socket = socket
        self._restart = restart

    @property
    def is_ready(self) -> bool:
        """As far as is known: a caller that cannot reach it asks for a restart."""
        return True

    def ensure_running(self) -> None:
        self.socket = self._restart()

    def connect(self, database: str) -> psycopg.Connection[TupleRow]:
        """Connect as the superuser."""
        try:
            return connect(self.socket, database)
        except psycopg.OperationalError:
            self.ensure_running()
            return connect(self.socket, database)

    def stop(self) -> None:
        """Does nothing: another process runs the server."""
