"""Pooled connections to a PostgreSQL server: one read-only transaction per use; queries are cancelled on the server."""

from __future__ import annotations

import logging
import os
import select
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict

from dpsql.engines.runtime import Watch, log_engine_error
from dpsql.errors import PolicyError

Connection = psycopg.Connection[tuple[Any, ...]]

OLDEST_VERSION = 13
MOST_CONNECTIONS = 16
_CONNECT_SECONDS = 10
# A server that does not cancel a query within this time is considered unreachable.
_CANCEL_SECONDS = 5.0
_CANCEL_ATTEMPTS = 10

# Set in each transaction, so that nothing depends on the state of a session or a pooler.
SETTINGS = {
    # Names in generated SQL are qualified; operators and functions are PostgreSQL's own.
    "search_path": "pg_catalog, pg_temp",
    # A timestamp with time zone is the same instant whatever the server's zone.
    "TimeZone": "UTC",
    "DateStyle": "ISO, YMD",
    "client_encoding": "UTF8",
    "extra_float_digits": "1",
    "standard_conforming_strings": "on",
    # Row security would hide rows depending on the user; a query that it affects fails instead.
    "row_security": "off",
    # Compiling takes longer than most of these queries.
    "jit": "off",
    # Without statistics of clamped columns the server expects few rows and would sort them all instead of hashing: that
    # takes up to four times as long.
    "enable_sort": "off",
    # If dpsql dies in a transaction, the server ends it.
    "idle_in_transaction_session_timeout": "60s",
}

_log = logging.getLogger("dpsql.answering.dataset")


class Connections:
    """A pool of connections to one database. Each is used by one call at a time and then kept for the next."""

    def __init__(self, url: str, settings: dict[str, str] | None = None) -> None:
        self._parameters = _parameters(url)
        self._settings = SETTINGS | (settings or {})
        self._slots = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._closed = False
        self.default_schema = "public"  # of unqualified table names

    @contextmanager
    def transaction(
        self,
        locked: Sequence[str] = (),
        *,
        seconds: float,
        watch: Watch | None = None,
        interrupt: Interrupt | None = None,
    ) -> Iterator[Connection]:
        """A read-only transaction on one snapshot, which is taken after the named tables were locked against changes.

        The watch is checked while the call waits for a connection; `seconds` is the limit for one statement.
        """
        interrupt = interrupt or Interrupt()
        begin = _begin(self._settings, locked, seconds)
        while not self._slots.acquire(timeout=0.05):
            if watch is not None:
                watch.check()
        try:
            connection = self._begun(begin, interrupt)
            try:
                yield connection
                connection.execute("ROLLBACK")
            except BaseException:
                # Its state is unknown, so it is not used again.
                interrupt.finish()
                connection.close()
                raise
            self._keep(connection, stopped=interrupt.finish())
        finally:
            self._slots.release()

    def connect(self) -> Connection:
        return psycopg.connect(
            **self._parameters,
            autocommit=True,
            prepare_threshold=None,  # the server plans each query for its own constants
            cursor_factory=psycopg.RawCursor,
        )

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _begun(self, begin: str, interrupt: Interrupt) -> Connection:
        """A connection with its transaction open. One that the server has dropped in the meantime is replaced."""
        while True:
            kept = self._take()
            connection = kept or self.connect()
            interrupt.watch(connection)
            try:
                connection.execute(begin)
                return connection
            except psycopg.OperationalError:
                lost = kept is not None and connection.broken and not interrupt.finish()
                connection.close()
                if not lost:
                    raise
            except BaseException:
                interrupt.finish()
                connection.close()
                raise

    def _take(self) -> Connection | None:
        with self._lock:
            while self._idle:
                connection = self._idle.pop()
                # An idle server sends nothing; readable data means that it is closing the connection.
                if not select.select([connection.fileno()], [], [], 0)[0]:
                    return connection
                connection.close()
        return None

    def _keep(self, connection: Connection, *, stopped: bool) -> None:
        with self._lock:
            # A cancel request may still be in transit.
            if not self._closed and not stopped:
                self._idle.append(connection)
                return
        connection.close()


class Interrupt:
    """Cancels the query on a connection, and closes the connection if the server does not respond.

    It is called repeatedly until the call has ended; only the first time has an effect. The cancel request has its own
    thread, since it may block on the network. It cannot cancel another query: once it has begun, the connection is not
    used again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._asked = False
        self._ended = threading.Event()

    def watch(self, connection: Connection) -> None:
        with self._lock:
            self._connection = connection

    def finish(self) -> bool:
        """No cancellation after this call. Returns whether there was one."""
        with self._lock:
            self._connection = None
            self._ended.set()
            return self._asked

    def __call__(self) -> None:
        with self._lock:
            if self._connection is None or self._asked:
                return
            self._asked = True
            connection = self._connection
        threading.Thread(target=self._stop, args=(connection,), name="dpsql cancel", daemon=True).start()

    def _stop(self, connection: Connection) -> None:
        # A request that arrives between two statements is lost, so it is repeated.
        for _ in range(_CANCEL_ATTEMPTS):
            try:
                connection.cancel_safe(timeout=_CANCEL_SECONDS)
            except psycopg.Error as error:
                _log.warning("a query could not be cancelled: %s", type(error).__name__)
            if self._ended.wait(_CANCEL_SECONDS / _CANCEL_ATTEMPTS):
                return
        with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as wire:
            wire.shutdown(socket.SHUT_RDWR)


def opened(url: str, settings: dict[str, str] | None = None) -> Connections:
    """Connections to a server that can be reached and has what dpsql needs; else a PolicyError says what is wrong."""
    connections = Connections(url, settings)
    try:
        first = connections.connect()
    except psycopg.Error as error:
        log_id = log_engine_error(error)
    else:
        with first:
            _check_server(first)
            row = first.execute("SELECT current_schema()").fetchone()
            connections.default_schema = (row and row[0]) or connections.default_schema
        return connections
    raise PolicyError(
        f"the PostgreSQL database cannot be reached (log id {log_id})",
        hint="Check the address in the policy, the password and the server; the log has the server's message.",
    )


def _check_server(connection: Connection) -> None:
    version = connection.info.server_version // 10_000
    if version < OLDEST_VERSION:
        raise PolicyError(
            f"the database is PostgreSQL {version}", hint=f"dpsql works with version {OLDEST_VERSION} and later."
        )
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise PolicyError(
            f"the database has the encoding {encoding}",
            hint="Not all of its texts can be converted: copy it into a database with the encoding UTF8.",
        )


def _parameters(url: str) -> dict[str, Any]:
    """The parameters in the address. libpq reads other sources, such as PGPASSWORD or a password file, itself."""
    try:
        found: dict[str, Any] = conninfo_to_dict(url)
    except psycopg.Error:
        found = {}
    if not found:
        # Neither the address nor the parser's message is quoted: it may hold a password.
        raise PolicyError(
            "the address of the PostgreSQL database cannot be read",
            hint="Write it as postgresql://user@host:5432/database; with special characters escaped, as %40.",
        )
    return {"connect_timeout": _CONNECT_SECONDS, "application_name": "dpsql"} | found


def without_password(url: str) -> tuple[str, str]:
    """The address without its password, and the name of the database."""
    found = _parameters(url)
    parts = urlsplit(url)
    login, at, host = parts.netloc.rpartition("@")
    options = [(key, value) for key, value in parse_qsl(parts.query, keep_blank_values=True) if key != "password"]
    query = f"?{urlencode(options, safe='/')}" if options else ""
    safe = f"{parts.scheme}://{login.partition(':')[0]}{at}{host}{parts.path}{query}"
    return safe, str(found.get("dbname") or found.get("user") or "postgres")


def _begin(settings: dict[str, str], locked: Sequence[str], seconds: float) -> str:
    """The message that begins a transaction; the first query after it takes the snapshot."""
    timeout = max(1, min(int(seconds * 1000), 2**31 - 1))
    parts = ["BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"]
    parts += [f"SET LOCAL {name} = {_setting(name, value)}" for name, value in settings.items()]
    parts.append(f"SET LOCAL statement_timeout = {timeout}")
    if locked:
        parts.append(f"LOCK TABLE {', '.join(locked)} IN ACCESS SHARE MODE")
    return "; ".join(parts)


def _setting(name: str, value: str) -> str:
    # A list of names is not a string.
    return value if name == "search_path" else f"'{value}'"
