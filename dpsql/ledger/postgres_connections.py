"""Connections of a process to the server that keeps its ledger: a few, used again, made anew when they break."""

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

MAX_CONNECTIONS = 8  # of one process; charges queue for one row anyway
BUSY_SECONDS = 30.0  # how long to wait for another thread or process

# A server that is gone must be noticed while somebody waits, not after hours.
_DEFAULTS: dict[str, Any] = {
    "application_name": "dpsql ledger",
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}

SILENT_SECONDS = BUSY_SECONDS + 15  # longer than who waits for the row: then the server hangs, or the network does
_CANCEL_SECONDS = 1.0  # to tell the server that nobody waits any more


class Connection(psycopg.Connection[tuple[Any, ...]]):
    """One whose waits end: with the statement that waits, and when the server says nothing for long.

    A process that is stopped keeps its connections alive.
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
        """The server would go on waiting, for a lock as for what comes next, and not see that nobody is there."""
        if capabilities.has_cancel_safe():  # otherwise to cancel might wait as well
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
    """A connection outside of any transaction. What a transaction needs is said where it begins."""
    connection = Connection.connect(
        make_conninfo("", **{**_DEFAULTS, **conninfo_to_dict(address.url), "client_encoding": "utf8"}),
        autocommit=True,
        prepare_threshold=None,  # prepared statements do not survive a pooler between here and the server
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
    """For many threads. A connection is one thread's until it is given back."""

    def __init__(self, address: PostgresAddress) -> None:
        self._address = address
        self._closed = False
        self._idle: list[Connection] = []
        self._begin_anew()
        _all.add(self)

    @contextmanager
    def one(self) -> Iterator[Connection]:
        """A connection that is idle. A transaction that was begun on it and not committed is rolled back."""
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
        """Close what is idle; what is in use is closed when it is given back."""
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
            self._close_idle()  # the server restarted, or the network was cut: they are broken as well
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
        """After a fork, in the child: the parent's connections are not ours to use, and not even to close."""
        _inherited.extend(self._idle)
        self._begin_anew()


_all: weakref.WeakSet[Connections] = weakref.WeakSet()
_inherited: list[Connection] = []  # kept, since to forget one closes it


def _after_fork() -> None:
    for connections in list(_all):
        connections._leave_to_parent()


os.register_at_fork(after_in_child=_after_fork)
