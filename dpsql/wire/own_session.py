"""dpsql's own session on the twin: opened when it is needed, and again when it was lost."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

import psycopg
from psycopg.pq import ConnStatus, ExecStatus
from psycopg.rows import TupleRow

from dpsql.twin import Twin

_MULTIPLE = b"cannot insert multiple commands into a prepared statement"

T = TypeVar("T")
Asking = Callable[[psycopg.Connection[TupleRow]], T]


class OwnSession:
    """May be used from any thread, by one at a time."""

    def __init__(self, twin: Twin) -> None:
        self._twin = twin
        self._lock = threading.Lock()
        self._connection: psycopg.Connection[TupleRow] | None = None

    def use(self, ask: Asking[T]) -> T:
        """Ask the twin something that may be asked twice."""
        with self._lock:
            if self._connection is not None:
                try:
                    return ask(self._connection)
                except psycopg.OperationalError:
                    self._disconnect()  # the twin was restarted, perhaps
            self._connection = self._twin.admin()
            return ask(self._connection)

    def close(self) -> None:
        with self._lock:
            self._disconnect()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def answers(connection: psycopg.Connection[TupleRow]) -> bool:
    return connection.execute("SELECT 1").fetchone() == (1,)


def is_grammatical(connection: psycopg.Connection[TupleRow], text: str, *, standard_strings: bool) -> bool:
    """Whether PostgreSQL's grammar accepts a string of several statements: it says so before it looks at one."""
    connection.execute(f"SET standard_conforming_strings = {'on' if standard_strings else 'off'}")
    result = connection.pgconn.prepare(b"", text.encode())
    if connection.pgconn.status == ConnStatus.BAD:
        raise psycopg.OperationalError("the twin is gone")
    return result.status != ExecStatus.FATAL_ERROR or _MULTIPLE in result.error_message
