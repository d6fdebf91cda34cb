"""The twin: a private PostgreSQL that holds the declared schema, and never one row of data.

Clients of the wire server get a session on it, so that everything around a query is real PostgreSQL. That an analyst
can reach it is harmless because there is nothing in it: see `schema.schema_statements` and `roles.set_roles`.
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
from dpsql.server.twin.hosts import GivenServer, LeasedCluster
from dpsql.server.twin.roles import set_roles

DATABASE = "dpsql"  # of a server of our own


@dataclass(frozen=True, slots=True)
class Address:
    """How to reach the twin as a role: by the file of a Unix socket, or by host and port; one of the two is None."""

    path: str | None
    host: str | None
    port: int
    user: str
    password: str | None = field(repr=False)
    database: str


class Twin:
    """A twin that is built and running. Its methods may be called from any thread, and may take a moment."""

    def __init__(self, server: Cluster | LeasedCluster | GivenServer, database: str) -> None:
        self._server = server
        self.database = database

    def address(self, user: str) -> Address:
        """Of the role of a dpsql user. A server of our own that has died is started again."""
        if not isinstance(self._server, GivenServer):
            self._server.ensure_running()
        return self._address(user)

    def known_address(self, user: str) -> Address | None:
        """The same without a look at the server, and so at once; None if it is known to be down."""
        if not isinstance(self._server, GivenServer) and not self._server.is_ready:
            return None
        return self._address(user)

    def _address(self, user: str) -> Address:
        if not isinstance(self._server, GivenServer):
            return Address(str(self._server.socket), None, PORT, user, None, self.database)
        host, port, password = self._server.host, self._server.port, self._server.password(user)
        if host.startswith("/"):
            return Address(f"{host}/.s.PGSQL.{port}", None, port, user, password, self.database)
        return Address(None, host, port, user, password, self.database)

    def admin(self) -> psycopg.Connection[TupleRow]:
        """A new connection as the superuser, autocommit, for dpsql itself; the caller closes it."""
        return self._server.connect() if isinstance(self._server, GivenServer) else self._server.connect(self.database)

    def set_users(self, users: Iterable[str]) -> None:
        """Create and drop roles so that they match; sessions of users who are gone end."""
        password = self._server.password if isinstance(self._server, GivenServer) else None
        with self.admin() as connection:
            set_roles(connection, self.database, users, password)

    def rebuild(self, catalog: Catalog) -> None:
        """Hold another schema from now on; sessions on the old one should have ended."""
        with self.admin() as connection:
            ensure_built(connection, catalog)

    def stop(self) -> None:
        """Stop the server if it is our own; a database that was given stays as it is."""
        if not isinstance(self._server, GivenServer):
            self._server.stop()

    @property
    def socket(self) -> Path | None:
        """Of a server of our own."""
        return None if isinstance(self._server, GivenServer) else self._server.socket


def start_twin(state: Path, catalog: Catalog, users: Iterable[str], *, address: str | None = None) -> Twin:
    """Start the twin, build it if the policy has changed since, and give every user a role.

    `address`: an empty database of the owner's, as a superuser reaches it, instead of a server of our own in `state`.
    """
    if address is not None:
        return _given_twin(GivenServer(address), catalog, users)
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


def lease_twin(socket: Path | None, address: str | None, look_after: Callable[[], Path]) -> Twin:
    """A twin that another process of ours has started and built: by its socket, or by the address of the owner's."""
    if socket is not None:
        return Twin(LeasedCluster(socket, look_after), DATABASE)
    assert address is not None
    server = GivenServer(address)
    with server.connect() as connection:
        server.read_secret(connection)
    return Twin(server, server.database)


def _given_twin(server: GivenServer, catalog: Catalog, users: Iterable[str]) -> Twin:
    twin = Twin(server, server.database)
    with twin.admin() as connection:
        ensure_built(connection, catalog)
        server.read_secret(connection)
    twin.set_users(users)
    return twin


def _ensure_database(cluster: Cluster) -> None:
    """One database, and no other that a user could connect to."""
    with cluster.connect("template1") as connection:
        present = {name for (name,) in connection.execute("SELECT datname FROM pg_database")}
        if DATABASE not in present:
            create = sql.SQL("CREATE DATABASE {} TEMPLATE template0")
            connection.execute(create.format(sql.Identifier(DATABASE)))
        if "postgres" in present:
            connection.execute("DROP DATABASE postgres")
        connection.execute("REVOKE CONNECT ON DATABASE template1 FROM PUBLIC")
