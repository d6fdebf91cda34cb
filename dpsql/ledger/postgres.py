"""The ledger in the schema `dpsql_ledger` of a PostgreSQL database, shared by proxies on many machines.

Writers lock one row, the account of the dataset, until their transaction ends: the holder sees all earlier writes, and
no one else writes meanwhile.

A connection can break after COMMIT was sent and before it was acknowledged. Once the row is locked again, that
transaction has ended; a charge carries the id of its attempt, so that it is either found or repeated, never both. If
the row cannot be locked, the query fails with "it is unknown whether the charge was recorded".
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import psycopg
from psycopg import errors

from dpsql.errors import LedgerDamaged, OperationalError, PolicyError, TooManyFiles
from dpsql.ledger import Receipt
from dpsql.ledger import postgres_connections as connections
from dpsql.ledger.database import Database, Row, Rows
from dpsql.ledger.identity import begin_ledger, missing, not_a_ledger, require_format
from dpsql.ledger.mark import Mark
from dpsql.ledger.postgres_connections import Connection, Connections, connect
from dpsql.ledger.postgres_schema import CREATE, DISCARD, SCHEMA_NAME, upgrade_from
from dpsql.ledger.schema import DATASET, FORMAT
from dpsql.ledger.sql_ledger import SqlLedger, Terms, limits_of
from dpsql.ledger.waiting import interruptible
from dpsql.policy.address import PostgresAddress
from dpsql.policy.protection import Protection
from dpsql.privacy.accounting import Price

MAX_TRIES = 3  # retries when certainly nothing was recorded
DOUBT_SECONDS = 10.0  # how long to look for a charge that may have been recorded
PAUSE_SECONDS = 0.1
STALLED_SECONDS = 15  # until the server drops an idle writer that holds the row
HOLDING_SECONDS = 600  # the same for a move, which reads another place meanwhile
CREATION_LOCK = 0x64707371  # "dpsq"

# First words of statements that return nothing.
_SILENT = ("INSERT", "UPDATE", "DELETE", "SAVEPOINT", "RELEASE", "ROLLBACK TO")

T = TypeVar("T")


class _Nothing:
    """The result of a statement that returns nothing."""

    def __iter__(self) -> Iterator[Row]:
        return iter(())

    def fetchone(self) -> Row | None:
        return None

    def fetchall(self) -> list[Row]:
        return []


class PostgresDatabase:
    """A connection in a transaction, with the ledger's schema as its search path."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> Rows:
        return self._connection.execute(sql.replace("?", "%s").encode(), parameters or None)

    def executemany(self, sql: str, parameters: Iterable[Sequence[Any]], /) -> None:
        with self._connection.cursor() as cursor:
            cursor.executemany(sql.replace("?", "%s").encode(), parameters)

    def format(self) -> int:
        [(version,)] = self.execute("SELECT MAX(format) FROM formats").fetchall()
        return int(version)

    def damage(self) -> list[str]:
        return []  # an unreadable page raises an error in the statement that reads it


class WritingDatabase(PostgresDatabase):
    """The same for a writer, with pipelined statements.

    Each message is a round trip, so a statement that returns nothing is sent together with the next one that does, or
    with COMMIT. If it fails, the rest of the message is skipped, and the transaction can no longer be committed.
    """

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._binder = psycopg.ClientCursor(connection)
        self._waiting: list[str] = []

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> Rows:
        text = self._binder.mogrify(sql.replace("?", "%s"), parameters or None)
        if sql.startswith(_SILENT):
            self._waiting.append(text)
            return _Nothing()
        return self._send(text)

    def executemany(self, sql: str, parameters: Iterable[Sequence[Any]], /) -> None:
        if self._waiting:
            self._send("SELECT")
        super().executemany(sql, parameters)

    def commit(self) -> None:
        """Durable when this returns, also on replicas if the server is configured to wait for them."""
        warnings: list[str | None] = []

        def heed(diagnostic: errors.Diagnostic) -> None:
            if diagnostic.severity_nonlocalized == "WARNING":
                warnings.append(diagnostic.sqlstate)

        self._connection.add_notice_handler(heed)
        try:
            outcome = self._send("COMMIT").statusmessage
        finally:
            self._connection.remove_notice_handler(heed)
        if outcome != "COMMIT":
            raise _failure(_FAILED)
        if warnings:
            # Committed here, but not yet on the replica that it must reach: the next commit waits for both.
            raise _Cut(psycopg.OperationalError("COMMIT with a warning"), in_doubt=True)

    def _send(self, text: str) -> psycopg.Cursor[Any]:
        """Send the queued statements and this one; returns the result of this one."""
        texts, self._waiting = [*self._waiting, text], []
        cursor = self._connection.execute(";\n".join(texts).encode())
        while cursor.nextset():
            pass
        return cursor


class PostgresLedger(SqlLedger):
    """A Ledger on a PostgreSQL server, shared by all threads and processes that can reach it."""

    _stores_durably = True

    def __init__(self, address: PostgresAddress, replay_days: float | None) -> None:
        """Use `open`."""
        super().__init__(address, replay_days)
        self._connections = Connections(address)

    @classmethod
    def open(
        cls,
        address: PostgresAddress,
        *,
        dataset: str,
        accounting: str,
        total: Price,
        allowances: Mapping[str, Price | None],
        protection: Protection | None,
        create: bool,
        replay_days: float | None = None,
        accept_units: bool = False,
        mark: Path | None = None,
    ) -> PostgresLedger:
        """Open the ledger of a dataset and put the policy's limits in force; a change of limits is recorded.

        Units that the ledger has not counted for are refused, unless told to `accept_units`. Without a protection only
        limits are recorded: nothing can be charged.
        """
        terms = Terms(dataset, accounting, limits_of(total, allowances), protection, accept_units)
        begun = False
        if not server_has_ledger(address):
            if not create:
                raise missing(address)
            begun = create_on_server(address, lambda db: begin_ledger(db, dataset, accounting))
        ledger = cls(address, replay_days)
        ledger._mark = Mark(mark)
        ledger.begun = begun
        ledger._adopt_or_close(terms)
        return ledger

    def close(self) -> None:
        """Close the connections. A closed ledger refuses every call."""
        self._connections.close()

    def _transact(self, work: Callable[[Database], T], *, durable: bool) -> T:
        """One transaction, retried where it certainly left nothing.

        Claim: work whose result is returned from here is recorded, durably if requested.
        Because: a transaction whose COMMIT was acknowledged without a warning is on disk. One that broke before
        COMMIT was sent left nothing. One that broke after is in doubt, and nothing is returned until a later
        try has locked the same row, which shows that it has ended.
        Needs: work that is idempotent, or recognises that it was recorded before (`_write_once`).
        A wait that a cancelled statement ends (`waiting`) ends before COMMIT was sent.
        """
        tries, in_doubt_until = 0, None
        while True:
            tries += 1
            try:
                with interruptible(None) if in_doubt_until is not None else nullcontext():
                    return self._try_to_write(work, durable)
            except _Cut as cut:
                if cut.in_doubt and in_doubt_until is None:
                    in_doubt_until = time.monotonic() + DOUBT_SECONDS
                if in_doubt_until is None and tries == MAX_TRIES:
                    raise plain(cut.error) from cut.error
            except psycopg.Error as error:
                if in_doubt_until is None:
                    raise self._noticed(plain(error)) from error
            except LedgerDamaged as error:
                raise self._noticed(error) from None
            if in_doubt_until is not None:
                if time.monotonic() > in_doubt_until:
                    raise _in_doubt()
                time.sleep(PAUSE_SECONDS)

    def _try_to_write(self, work: Callable[[Database], T], durable: bool) -> T:
        with self._connections.one() as connection:
            committing = False
            try:
                _begin_writing(connection, STALLED_SECONDS, durable=durable)
                db = WritingDatabase(connection)
                result = work(db)
                committing = True
                with interruptible(None):
                    db.commit()
            except psycopg.Error as error:
                if connection.broken:
                    raise _Cut(error, in_doubt=committing) from error
                raise
            return result

    def _write_once(self, work: Callable[[Database], Receipt]) -> Receipt:
        attempt, tries = uuid.uuid4(), count()

        def once(db: Database) -> Receipt:
            if next(tries) > 0 and (found := _receipt_of(db, attempt)) is not None:
                return found
            receipt = work(db)
            if receipt.number is not None:
                db.execute("INSERT INTO attempts VALUES (?, ?)", (attempt, receipt.number))
            return receipt

        return self._write(once)

    def _read(self, work: Callable[[Database], T], tries: int = MAX_TRIES) -> T:
        try:
            return self._try_to_read(work)
        except _Cut as cut:
            # An idle connection does not notice a restart of the server.
            if tries > 1:
                return self._read(work, tries - 1)
            raise plain(cut.error) from cut.error
        except psycopg.Error as error:
            raise self._noticed(plain(error)) from error

    def _try_to_read(self, work: Callable[[Database], T]) -> T:
        with self._connections.one() as connection:
            try:
                _begin_viewing(connection)
                return work(PostgresDatabase(connection))
            except psycopg.Error as error:
                if connection.broken:
                    raise _Cut(error, in_doubt=False) from error
                raise

    def _upgrade(self, db: Database) -> None:
        _upgrade_on_server(db, self._location)


def _receipt_of(db: Database, attempt: uuid.UUID) -> Receipt | None:
    """The receipt of an earlier try, if it was recorded."""
    found = db.execute(
        "SELECT user_loss, user_delta, user_pure, number, hash FROM attempts JOIN charges ON number = charge"
        " WHERE id = ?",
        (attempt,),
    ).fetchone()
    if found is None:
        return None
    *paid, number, hash_ = found
    return Receipt(Price(*paid), number, hash_)


# --- transactions ---


class _Cut(Exception):
    """The connection broke, or COMMIT gave a warning. `in_doubt`: after COMMIT was sent."""

    def __init__(self, error: psycopg.Error, *, in_doubt: bool) -> None:
        super().__init__()
        self.error = error
        self.in_doubt = in_doubt


# PostgreSQL skips a schema in search_path that the role may not use; a qualified name tells that from a missing one.
_WORLD = f"SET LOCAL search_path = pg_catalog, {SCHEMA_NAME}, pg_temp"


def _begin_writing(connection: Connection, stalled_seconds: int, *, durable: bool = True) -> None:
    """Begin, and lock the row that all writers queue for.

    Every setting that matters is set in the transaction itself, in one message, so that defaults of a role or a pooler
    cannot weaken it. COMMIT has no timeout: with one, PostgreSQL would report success before its replicas have it.
    """
    cursor = connection.execute(
        f"BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; {_WORLD};"
        f"SET LOCAL synchronous_commit = {'on' if durable else 'off'};"
        "SET LOCAL statement_timeout = 0;"
        f"SET LOCAL lock_timeout = {int(connections.BUSY_SECONDS * 1000)};"
        f"SET LOCAL idle_in_transaction_session_timeout = {stalled_seconds * 1000};"
        f"SELECT 1 FROM {SCHEMA_NAME}.accounts WHERE subject = '{DATASET}' FOR UPDATE".encode()
    )
    while cursor.nextset():
        pass
    if cursor.fetchone() is None:
        raise LedgerDamaged("the account of the dataset is missing")


def _begin_viewing(connection: Connection) -> None:
    connection.execute(
        f"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; {_WORLD}; SELECT FROM {SCHEMA_NAME}.formats".encode()
    )


# --- the schema ---


def server_has_ledger(address: PostgresAddress) -> bool:
    with _connected(address) as connection:
        return _has_ledger(connection, address)


def create_on_server(
    address: PostgresAddress, fill: Callable[[Database], None], *, instead: Callable[[Database], bool] | None = None
) -> bool:
    """Create a ledger atomically; False if another process created it first.

    `instead` decides whether an existing ledger may be discarded.
    """
    with _connected(address) as connection:
        connection.execute(f"BEGIN; SELECT pg_advisory_xact_lock({CREATION_LOCK})".encode())
        db = WritingDatabase(connection)
        if _has_ledger(connection, address):
            connection.execute(_WORLD.encode())
            if instead is None or not instead(db):
                return False
            connection.execute(DISCARD.encode())
        elif not _has_schema(connection):
            connection.execute(f"CREATE SCHEMA {SCHEMA_NAME}".encode())
        # New tables are created in the first schema of the path.
        connection.execute(f"SET LOCAL search_path = {SCHEMA_NAME}, pg_catalog, pg_temp".encode())
        connection.execute("SET LOCAL synchronous_commit = on")
        connection.execute(CREATE.encode())
        fill(db)
        db.commit()
        return True


def _upgrade_on_server(db: Database, location: object) -> None:
    """Upgrade a ledger to the present format, in the caller's transaction. Nothing is lost."""
    require_format(db, location)
    if (found := db.format()) == FORMAT:
        return
    try:
        # CREATE OR REPLACE FUNCTION looks in the first schema of the path.
        for statement in (f"SET LOCAL search_path = {SCHEMA_NAME}, pg_catalog, pg_temp", upgrade_from(found), _WORLD):
            db.execute(statement)
    except errors.InsufficientPrivilege as error:
        raise PolicyError(
            f'the ledger "{location}" has format {found}, and its role may not change it to format {FORMAT}',
            hint="Stop all older proxies. Then open the ledger once with the role that owns its schema, as with: dpsql"
            " explain 'SELECT 1'.",
        ) from error


@contextmanager
def read_server(address: PostgresAddress) -> Iterator[PostgresDatabase]:
    """One consistent snapshot of the ledger, without a write."""
    with _connected(address) as connection:
        if not _has_ledger(connection, address):
            raise missing(address)
        _begin_viewing(connection)
        db = PostgresDatabase(connection)
        require_format(db, address)
        yield db


@contextmanager
def hold_server(address: PostgresAddress) -> Iterator[PostgresDatabase]:
    """Hold the ledger exclusively during the block; committed at its end."""
    with _connected(address) as connection:
        if not _has_ledger(connection, address):
            raise missing(address)
        _begin_writing(connection, HOLDING_SECONDS)
        db = WritingDatabase(connection)
        _upgrade_on_server(db, address)
        yield db
        db.commit()


@contextmanager
def _connected(address: PostgresAddress) -> Iterator[Connection]:
    try:
        with closing(connect(address)) as connection:
            yield connection
    except psycopg.Error as error:
        raise plain(error) from error
    except _Cut as cut:
        raise plain(cut.error) from cut


def _has_schema(connection: Connection) -> bool:
    return connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (SCHEMA_NAME,)).fetchone() is not None


def _has_ledger(connection: Connection, address: PostgresAddress) -> bool:
    """From the catalog, which every role may read. An empty schema may exist for a role that cannot create one."""
    names = {
        name
        for (name,) in connection.execute(
            "SELECT relname FROM pg_class WHERE relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = %s)",
            (SCHEMA_NAME,),
        )
    }
    if names and not {"ledger", "formats"} <= names:
        raise not_a_ledger(address)
    return bool(names)


# --- failures ---

_LOCKED = ("the ledger is in use by another process", "Try again later.")
_UNWRITABLE = ("the ledger cannot be opened for writing", "Set the address of the primary server, not of a replica.")
_RIGHTS = (
    f'the role in the address of the ledger lacks a right on schema "{SCHEMA_NAME}"',
    "The owner of the schema grants it the rights that dpsql/ledger/README.md lists.",
)
_GONE = ("the ledger was moved, deleted or replaced while in use", "Put the ledger back and start again.")
_UNREACHABLE = (
    "the server of the ledger cannot be reached",
    "Try again later. If it persists, check the address, the role and its password.",
)
_UNSTORABLE = (
    "a text of the ledger holds a NUL character, which PostgreSQL cannot store",
    "Keep this ledger in a file.",
)
_FAILED = ("the ledger failed", "The owner finds the cause in the log.")
_REASONS = {
    "55P03": _LOCKED,
    "53100": ("the disk of the ledger is full", "Free disk space."),
    "53300": ("the server of the ledger has no connection left", "Try again later, or raise max_connections."),
    "25006": _UNWRITABLE,
    "0A000": _UNWRITABLE,  # BEGIN READ WRITE on a replica
    "42501": _RIGHTS,
    "42P01": _GONE,
    "3F000": _GONE,
}
_DAMAGED = ("XX001", "XX002")


_WORDS = {
    "too many clients": _REASONS["53300"],
    "connection slots": _REASONS["53300"],
}
_LOST = "08006"  # errors of libpq itself have no code
_CONNECTION = ("08", "57P")  # lost, shut down, starting


def _failure(reason: tuple[str, str]) -> OperationalError:
    message, hint = reason
    return OperationalError(message, hint=hint)


def _in_doubt() -> OperationalError:
    return OperationalError(
        "it is unknown whether the charge was recorded",
        detail="The connection to the ledger broke during the commit. If the charge was recorded, it stands; the query"
        " was not run.",
        hint="Run the query again when the ledger's server can be reached.",
    )


def plain(error: psycopg.Error) -> OperationalError:
    """Our own message; PostgreSQL's text stays in the cause."""
    if isinstance(error, psycopg.OperationalError) and (error.sqlstate or _LOST).startswith(_CONNECTION):
        if "Too many open files" in str(error):
            return TooManyFiles()
        # Errors of connecting have no code.
        return _failure(next((reason for words, reason in _WORDS.items() if words in str(error)), _UNREACHABLE))
    if isinstance(error, psycopg.DataError) and error.sqlstate is None:
        return _failure(_UNSTORABLE)
    if error.sqlstate in _DAMAGED:
        return LedgerDamaged()
    return _failure(_REASONS.get(error.sqlstate or "", _FAILED))
