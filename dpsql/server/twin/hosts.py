"""An empty database of the owner's as the place of the twin, instead of a server of our own."""

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


class GivenServer:
    """Reached by address. Users get passwords that nobody is told: they follow from a secret kept in the twin."""

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
            # The address may hold a password, and so may what was made of it.
            raise OperationalError(
                "the database given for the twin cannot be reached",
                detail=f"SQLSTATE {error.sqlstate}" if error.sqlstate else None,
                hint="Check its address, and that a superuser can log in with it.",
            ) from None

    def password(self, user: str) -> str:
        return hmac.digest(self._secret.encode(), user.encode(), hashlib.sha256).hex()

    def read_secret(self, connection: psycopg.Connection[TupleRow]) -> None:
        """The same for all proxies that share the twin, also when it is built again."""
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
                f"the twin needs PostgreSQL {_OLDEST} or newer, the database given is older",
                hint="Without an address, dpsql runs a server of its own.",
            )
        (superuser,) = connection.execute("SELECT rolsuper FROM pg_roles WHERE rolname = current_user").fetchone() or (
            False,
        )
        if not superuser:
            raise OperationalError(
                "the twin needs a superuser, to change what PostgreSQL reports about privileges",
                hint="Give the address of a superuser. Use a server that holds no private data.",
            )
        if connection.info.parameter_status("server_encoding") != "UTF8":
            raise OperationalError(
                "the database given for the twin is not in UTF-8", hint="CREATE DATABASE ... ENCODING 'UTF8'."
            )


# ------------------------------------------------------------
# The twin's server as seen by a process that did not start it.


class LeasedCluster:
    """Used as a `Cluster`. Who runs the server is asked to look after it, and says where it listens."""

    def __init__(self, socket: Path, look_after: Callable[[], Path]) -> None:
        self.socket = socket
        self._look_after = look_after

    @property
    def is_ready(self) -> bool:
        """As far as is known: who cannot reach it has it looked after."""
        return True

    def ensure_running(self) -> None:
        self.socket = self._look_after()

    def connect(self, database: str) -> psycopg.Connection[TupleRow]:
        """As the superuser."""
        try:
            return connect(self.socket, database)
        except psycopg.OperationalError:
            self.ensure_running()
            return connect(self.socket, database)

    def stop(self) -> None:
        """Not ours to stop."""
