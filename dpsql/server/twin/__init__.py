"""The twin: a private PostgreSQL that holds the declared schema, and never one row of data.

Clients of the wire server get a session on it, so that everything around a query is real PostgreSQL. It is safe for
analysts to reach it because it holds no data: see `schema.schema_statements` and `roles.set_roles`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
from psycopg import sql
from psycopg.rows import TupleRow

from dpsql.engines.postgres.local_cluster import PORT, Cluster
from dpsql.policy.model import Catalog
from dpsql.server.twin.build import ensure_built
from dpsql.server.twin.hosts import ExternalServer, SharedCluster
from dpsql.server.twin.roles import set_roles

DATABASE = "dpsql"  # the name of the database in a server of our own


@dataclass(frozen=True, slots=True)
class Address:
    """How to reach the twin as a role: by a Unix socket, or by host and port; one of the two is None."""

    path: str | None
    host: str | None
    port: int
    user: str
    password: str | None = field(repr=False)
    database: str


class Twin:
    """A twin that is built and running. Its methods may be called from any thread, and may block."""

    def __init__(self, server: Cluster | SharedCluster | ExternalServer, database: str) -> None:
        self._server = server
        self.database = database

    def address(self, user: str) -> Address:
        """The address for a user's role. A server of our own that has died is started again."""
        if not isinstance(self._server, ExternalServer):
            self._server.ensure_running()
        return self._address(user)

    def known_address(self, user: str) -> Address | None:
        """The same without checking the server, so without blocking; None if it is known to be down."""
        if not isinstance(self._server, ExternalServer) and not self._server.is_ready:
            return None
        return self._address(user)

    def _address(self, user: str) -> Address:
        if not isinstance(self._server, ExternalServer):
            return Address(str(self._server.socket), None, PORT, user, None, self.database)
        host, port, password = self._server.host, self._server.port, self._server.password(user)
        if host.startswith("/"):
            return Address(f"{host}/.s.PGSQL.{port}", None, port, user, password, self.database)
        return Address(None, host, port, user, password, self.database)

    def admin(self) -> psycopg.Connection[TupleRow]:
        """A new autocommit connection as the superuser, for dpsql itself; the caller closes it."""
        return (
            self._server.connect() if isinstance(self._server, ExternalServer) else self._server.connect(self.database)
        )

    def set_users(self, users: Iterable[str]) -> None:
        """Create and drop roles to match these users; sessions of removed users end."""
        password = self._server.password if isinstance(self._server, ExternalServer) else None
        with self.admin() as connection:
            set_roles(connection, self.database, users, password)

    def rebuild(self, catalog: Catalog) -> None:
        """Replace the schema; sessions on the old one should have ended."""
        with self.admin() as connection:
            ensure_built(connection, catalog)

    def stop(self) -> None:
        """Stop the server if it is our own; an external database stays as it is."""
        if not isinstance(self._server, ExternalServer):
            self._server.stop()

    @property
    def socket(self) -> Path | None:
        """The socket of a server of our own."""
        return None if isinstance(self._server, ExternalServer) else self._server.socket


def start_twin(state: Path, catalog: Catalog, users: Iterable[str], *, address: str | None = None) -> Twin:
    """Start the twin, build it if the policy has changed, and give every user a role.

    `address`: a superuser's address of an empty database of the owner's, instead of a server of our own in `state`.
    """
    if address is not None:
        return _given_twin(ExternalServer(address), catalog, users)
    cluster = Cluster(state)
    cluster.start()
    try:
        _ensure_database(cluster)
        twin = Twin(cluster, DATABASE)
        with twin.admin() as connection:
            ensure_built(connection, catalog)
        twin.set_users(users)
    except BaseException:
        cluster.stop()
        raise
    return twin


def attach_twin(socket: Path | None, address: str | None, restart: Callable[[], Path]) -> Twin:
    """A twin that another process of ours has started and built, by its socket or by the external address."""
    if socket is not None:
        return Twin(SharedCluster(socket, restart), DATABASE)
    assert address is not None
    server = ExternalServer(address)
    with server.connect() as connection:
        server.read_secret(connection)
    return Twin(server, server.database)


def _given_twin(server: ExternalServer, catalog: Catalog, users: Iterable[str]) -> Twin:
    twin = Twin(server, server.database)
    with twin.admin() as connection:
        ensure_built(connection, catalog)
        server.read_secret(connection)
    twin.set_users(users)
    return twin


def _ensure_database(cluster: Cluster) -> None:
    """Create the database, and make sure that a user can connect to no other."""
    with cluster.connect("template1") as connection:
        present = {name for (name,) in connection.execute("SELECT datname FROM pg_database")}
        if DATABASE not in present:
            create = sql.SQL("CREATE DATABASE {} TEMPLATE template0")
            connection.execute(create.format(sql.Identifier(DATABASE)))
        if "postgres" in present:
            connection.execute("DROP DATABASE postgres")
        connection.execute("REVOKE CONNECT ON DATABASE template1 FROM PUBLIC")
