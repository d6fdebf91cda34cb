"""The connection pool of a process to the ledger's server."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Self

import psycopg
from psycopg import capabilities, errors, waiting
from psycopg.abc import RV, PQGen, PQGenConn
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import TransactionStatus

from dpsql.errors import InterfaceError, OperationalError, PolicyError
from dpsql.ledger.waiting import GLANCE, Abandoned, acquire, go_on
from dpsql.policy.address import PostgresAddress

MAX_CONNECTIONS = 8  # per process; charges queue for one row anyway
BUSY_SECONDS = 30.0  # seconds to wait for another thread or process

# A dead server must be noticed within seconds, not hours.
_DEFAULTS: dict[str, Any] = {
    "application_name": "dpsql ledger",
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}

SILENT_SECONDS = BUSY_SECONDS + 15  # longer than a wait for the row, so the server or the network hangs
_CANCEL_SECONDS = 1.0  # for the cancel request to the server


class Connection(psycopg.Connection[tuple[Any, ...]]):
    """A connection whose waits end when the statement is cancelled, or when the server is silent for too long.

    A suspended process (SIGSTOP) keeps its connections.
    """

    def wait(self, gen: PQGen[RV], interval: float = GLANCE, timeout: float | None = None) -> RV:
        deadline = time.monotonic() + (SILENT_SECONDS if timeout is None else timeout)
        try:
            while True:
                try:
                    return waiting.wait(gen, self.pgconn.socket, interval=interval, timeout=interval)
                except errors._WaitTimeout as silence:
                    if time.monotonic() > deadline:
                        self.pgconn.finish()
                        raise psycopg.OperationalError("the server of the ledger does not answer") from silence
                go_on()
        except (Abandoned, KeyboardInterrupt):
            self._leave()
            raise

    def _leave(self) -> None:
        """Cancel and close: the server would otherwise wait on, for a lock or the next message, without noticing."""
        if capabilities.has_cancel_safe():  # without a timeout the cancel request might wait too
            with suppress(psycopg.Error):
                self.cancel_safe(timeout=_CANCEL_SECONDS)
        self.close()

    @classmethod
    def _connect_gen(cls, conninfo: str = "") -> PQGenConn[Self]:
        connecting = super()._connect_gen(conninfo)
        wanted = next(connecting)
        while True:
            ready = yield wanted
            if not ready:
                go_on()
            try:
                wanted = connecting.send(ready)
            except StopIteration as made:
                connection: Self = made.value
                return connection


def connect(address: PostgresAddress) -> Connection:
    """A connection outside of any transaction. Transactions set what they need when they begin."""
    connection = Connection.connect(
        make_conninfo("", **{**_DEFAULTS, **conninfo_to_dict(address.url), "client_encoding": "utf8"}),
        autocommit=True,
        prepare_threshold=None,  # prepared statements do not survive a transaction pooler
    )
    try:
        [(fsync, encoding)] = connection.execute(
            "SELECT current_setting('fsync'), current_setting('server_encoding')"
        ).fetchall()
        if fsync != "on":
            raise PolicyError(
                f'the server of the ledger "{address}" does not write charges to disk',
                hint="Set fsync = on in its configuration.",
            )
        if encoding != "UTF8":
            raise PolicyError(
                f'the database of the ledger "{address}" cannot hold every text',
                hint="Create a database with the encoding UTF8 for it.",
            )
    except BaseException:
        connection.close()
        raise
    return connection


class Connections:
    """A pool for many threads. A connection belongs to one thread until it is returned."""

    def __init__(self, address: PostgresAddress) -> None:
        self._address = address
        self._closed = False
        self._idle: list[Connection] = []
        self._begin_anew()
        _all.add(self)

    @contextmanager
    def one(self) -> Iterator[Connection]:
        """An idle connection, for the block. A transaction that is not committed in the block is rolled back."""
        free = self._free
        if not acquire(free, BUSY_SECONDS):
            raise OperationalError("the ledger is in use by another process", hint="Try again later.")
        try:
            connection = self._take()
            try:
                yield connection
            finally:
                self._give_back(connection)
        finally:
            free.release()

    def close(self) -> None:
        """Close idle connections; those in use are closed when they are returned."""
        with self._lock:
            self._closed = True
        self._close_idle()

    def _take(self) -> Connection:
        with self._lock:
            if self._closed:
                raise InterfaceError("the ledger is closed")
            if self._idle:
                return self._idle.pop()
        return connect(self._address)

    def _give_back(self, connection: Connection) -> None:
        if connection.info.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
            with suppress(psycopg.Error):
                connection.rollback()
        if connection.broken:
            self._close_idle()  # the server restarted or the network was cut: the idle ones are broken too
        with self._lock:
            if not self._closed and connection.info.transaction_status == TransactionStatus.IDLE:
                self._idle.append(connection)
                return
        with suppress(psycopg.Error):
            connection.close()

    def _close_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _begin_anew(self) -> None:
        self._lock = threading.Lock()
        self._free = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._idle = []

    def _leave_to_parent(self) -> None:
        """After a fork, in the child: the parent's connections must be neither used nor closed."""
        _inherited.extend(self._idle)
        self._begin_anew()


_all: weakref.WeakSet[Connections] = weakref.WeakSet()
_inherited: list[Connection] = []  # kept referenced, since garbage collection would close them


def _after_fork() -> None:
    for connections in list(_all):
        connections._leave_to_parent()


os.register_at_fork(after_in_child=_after_fork)
