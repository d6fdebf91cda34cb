"""The ledger in one SQLite file.

SQLite's own rules shape this module:

- A process must not carry a connection across a fork, nor open a second one beside an inherited one, since SQLite's
locks are per process. All connections are therefore closed before a fork and opened again on the next use.
- A write during an automatic checkpoint can lose pages in SQLite before 3.51.3 (the "WAL-reset" defect).
  Checkpoints are therefore explicit and exclude writers.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from dpsql.errors import (
    Error,
    InterfaceError,
    LedgerDamaged,
    OperationalError,
    PolicyError,
    TooManyFiles,
    is_for_files,
)
from dpsql.files import sync_directory
from dpsql.ledger.database import Database
from dpsql.ledger.identity import begin_ledger, missing, not_a_ledger, require_format
from dpsql.ledger.mark import Mark
from dpsql.ledger.sql_ledger import SqlLedger, Terms, limits_of
from dpsql.ledger.sqlite_schema import APPLICATION, SCHEMA, format_of, upgrade
from dpsql.ledger.waiting import acquire, go_on
from dpsql.policy.protection import Protection
from dpsql.privacy.accounting import Price

BUSY_SECONDS = 30.0  # seconds to wait for another thread or process
_TRY_SECONDS = 0.05  # for which a waiting thread may hold the connection
_PAUSE = 0.005
CHECKPOINT_BYTES = 4 * 2**20  # when the write-ahead log is copied into the file

T = TypeVar("T")


class SqliteDatabase(sqlite3.Connection):
    """A connection in a transaction."""

    def format(self) -> int:
        return format_of(self)

    def damage(self) -> list[str]:
        return [f"the file is damaged: {text}" for (text,) in self.execute("PRAGMA quick_check") if text != "ok"]


class _Busy(Exception):
    """Another process holds the file. The transaction left nothing."""


class SqliteLedger(SqlLedger):
    """A Ledger in a file, shared by all threads of a process and by all processes of a machine."""

    def __init__(self, path: Path, replay_days: float | None) -> None:
        """Use `open`."""
        super().__init__(path, replay_days)
        self._path = path
        self._lock = threading.Lock()  # guards everything below
        self._file = _file_identity(path)
        self._connection: SqliteDatabase | None = None
        self._closed = False
        with _forking:
            _ledgers.add(self)

    @classmethod
    def open(
        cls,
        path: Path,
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
    ) -> SqliteLedger:
        """Open the ledger of a dataset and put the policy's limits in force; a change of limits is recorded.

        Units that the ledger has not counted for are refused, unless told to `accept_units`. Without a protection only
        limits are recorded: nothing can be charged.
        """
        terms = Terms(dataset, accounting, limits_of(total, allowances), protection, accept_units)
        path = path.resolve()
        begun = False
        if not path.exists():
            if not create:
                raise missing(path)
            begun = create_file(path, lambda db: begin_ledger(db, dataset, accounting))
        ledger = cls(path, replay_days)
        ledger._mark = Mark(mark)
        ledger.begun = begun
        ledger._adopt_or_close(terms)
        return ledger

    def close(self) -> None:
        """Close the file. A closed ledger refuses every call."""
        with self._lock:
            self._closed = True
            self._disconnect()

    def _transact(self, work: Callable[[Database], T], *, durable: bool) -> T:
        # Without FULL, a commit does not wait for the disk; the next durable one flushes it too, in order.
        beginning = f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}", "BEGIN IMMEDIATE"
        result = _patiently(lambda: self._in_transaction(beginning, work))
        self._checkpoint()
        return result

    def _read(self, work: Callable[[Database], T]) -> T:
        return _patiently(lambda: self._in_transaction(("BEGIN DEFERRED",), work))

    def _glance(self, work: Callable[[Database], T]) -> T:
        def glance() -> T:
            with self._connected() as db:
                return work(db)

        return _patiently(glance)

    def _upgrade(self, db: Database) -> None:
        assert isinstance(db, SqliteDatabase)
        upgrade(db)

    @contextmanager
    def _connected(self) -> Iterator[SqliteDatabase]:
        """The connection of this process, for one thread at a time. SQLite's errors become ours.

        Raises _Busy where another process holds the file.
        """
        if not acquire(self._lock, BUSY_SECONDS):
            raise _failure(_LOCKED)
        try:
            if self._closed:
                raise InterfaceError("the ledger is closed")
            # A charge written to an unlinked file would be acknowledged, and then lost.
            if _file_identity(self._path) != self._file:
                raise OperationalError(
                    "the ledger was moved, deleted or replaced while in use",
                    hint="Put the ledger back and start again.",
                )
            if self._connection is None:
                self._connection = connect(self._path, wait=_TRY_SECONDS)
            yield self._connection
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY:
                raise _Busy from error
            raise self._noticed(plain(error)) from error
        finally:
            self._lock.release()

    def _in_transaction(self, beginning: Sequence[str], work: Callable[[Database], T]) -> T:
        with self._connected() as db:
            try:
                for statement in beginning:
                    db.execute(statement)
                result = work(db)
                db.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    db.rollback()
                if db.in_transaction:
                    self._disconnect()
                raise
            return result

    def _checkpoint(self) -> None:
        """Copy a long write-ahead log into the file. Commits are durable before and after, so a failure is harmless."""
        with suppress(OSError, Error, _Busy):
            if os.stat(f"{self._path}-wal").st_size > CHECKPOINT_BYTES:
                with self._connected() as db:
                    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _patiently(attempt: Callable[[], T]) -> T:
    """Retry while others may hold the file, and the statement is not cancelled."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            return attempt()
        except _Busy as busy:
            if time.monotonic() > deadline:
                raise _failure(_LOCKED) from busy.__cause__
        go_on()
        time.sleep(_PAUSE)  # others may read meanwhile, or close it


# --- the file ---


def _file_identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def create_file(path: Path, fill: Callable[[Database], None]) -> bool:
    """Create a ledger atomically; False if another process created it first.

    It is built under a temporary name and then linked: an existing name is never overwritten, and an unfinished
    ledger is never visible.
    """
    fresh = path.with_name(f"{path.name}.{uuid.uuid4().hex}.new")
    try:
        with _forking:
            os.close(os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            with closing(sqlite3.connect(fresh, isolation_level=None, factory=SqliteDatabase)) as db:
                db.executescript(SCHEMA)
                fill(db)
                db.execute("COMMIT")
        # SQLite would replay a lost ledger's log into the new file; and the log is the only record of what was spent.
        if Path(f"{path}-wal").exists() and not path.exists():
            raise PolicyError(
                f'the ledger "{path}" is missing, but its write-ahead log is there',
                detail="A ledger was moved or deleted without its write-ahead log.",
                hint="Put the ledger back beside its log.",
            )
        try:
            os.link(fresh, path)
        except FileExistsError:
            return False
        sync_directory(path.parent)
        return True
    except (OSError, sqlite3.Error) as error:
        raise OperationalError(
            f'the ledger "{path}" cannot be created', hint="Check that its directory exists and can be written."
        ) from error
    finally:
        for suffix in ("", "-wal", "-shm"):
            with suppress(OSError):
                os.unlink(f"{fresh}{suffix}")


def require_ledger(db: SqliteDatabase, path: Path) -> None:
    """Refuse a file that is not a ledger, or was written by a newer version of dpsql."""
    (application,) = db.execute("PRAGMA application_id").fetchone()
    if application != APPLICATION:
        raise not_a_ledger(path)
    require_format(db, path)


def connect(path: Path, *, wait: float = BUSY_SECONDS) -> SqliteDatabase:
    """Open the file; each statement retries for `wait` seconds while another process holds it."""
    connection = sqlite3.connect(
        f"{path.as_uri()}?mode=rw",
        uri=True,
        timeout=wait,
        isolation_level=None,
        check_same_thread=False,
        factory=SqliteDatabase,
    )
    try:
        require_ledger(connection, path)
        connection.execute("PRAGMA journal_mode = WAL")  # a restored copy may have lost it
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA fullfsync = ON")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def hold_file(path: Path) -> Iterator[SqliteDatabase]:
    """Hold the ledger exclusively during the block; committed at its end."""
    path = path.resolve()
    if not path.exists():
        raise missing(path)
    try:
        with closing(connect(path)) as db:
            db.execute("BEGIN IMMEDIATE")
            upgrade(db)
            yield db
            db.execute("COMMIT")
    except sqlite3.Error as error:
        raise plain(error) from error


@contextmanager
def read_file(path: Path) -> Iterator[SqliteDatabase]:
    """One consistent snapshot of the file. Reading leaves no trace, not even a file beside it."""
    path = path.resolve()
    try:
        db = _connect_to_read(path)
        try:
            require_ledger(db, path)
            db.execute("BEGIN")
            yield db
        finally:
            db.close()
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in _UNREADABLE:
            raise OperationalError("the ledger cannot be read", hint="Check the permissions of its file.") from error
        raise plain(error) from error


def _connect_to_read(path: Path) -> SqliteDatabase:
    """Open without a trace.

    Without a log beside the file, no process has it open and the file is complete: SQLite may then read it as
    immutable, which needs no lock, creates no file, and works in a read-only folder.
    """
    options = "mode=ro" if path.with_name(f"{path.name}-wal").exists() else "mode=ro&immutable=1"
    return sqlite3.connect(
        f"{path.as_uri()}?{options}", uri=True, timeout=BUSY_SECONDS, isolation_level=None, factory=SqliteDatabase
    )


_UNREADABLE = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_IOERR)
_LOCKED = ("the ledger is in use by another process", "Try again later.")
_UNWRITABLE = ("the ledger cannot be opened for writing", "Check that its file and directory can be written.")
_FAILED = ("the ledger failed", "The owner finds the cause in the log.")
_REASONS = {
    sqlite3.SQLITE_BUSY: _LOCKED,
    sqlite3.SQLITE_LOCKED: _LOCKED,
    sqlite3.SQLITE_FULL: ("the disk of the ledger is full", "Free disk space."),
    sqlite3.SQLITE_READONLY: _UNWRITABLE,
    sqlite3.SQLITE_CANTOPEN: _UNWRITABLE,
    sqlite3.SQLITE_PERM: _UNWRITABLE,
}
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _failure(reason: tuple[str, str]) -> OperationalError:
    message, hint = reason
    return OperationalError(message, hint=hint)


def plain(error: sqlite3.Error) -> OperationalError:
    """Our own message; SQLite's text stays in the cause."""
    code = getattr(error, "sqlite_errorcode", None)  # missing on errors that Python itself raises
    if code is not None and code & 0xFF in _DAMAGED:
        return LedgerDamaged()
    if code is not None and code & 0xFF == sqlite3.SQLITE_CANTOPEN and not _can_open_files():
        return TooManyFiles()
    return _failure(_FAILED if code is None else _REASONS.get(code & 0xFF, _FAILED))


def _can_open_files() -> bool:
    """Whether the process can open another file, as SQLite does not report why an open failed."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return not is_for_files(error)
    return True


# --- forks ---

_ledgers: weakref.WeakSet[SqliteLedger] = weakref.WeakSet()
_forking = threading.Lock()  # held during a fork: nothing connects, creates or registers meanwhile
_held: list[SqliteLedger] = []


def _before_fork() -> None:
    _forking.acquire()
    for ledger in _ledgers:
        ledger._lock.acquire()
        ledger._disconnect()
        _held.append(ledger)


def _after_fork() -> None:
    while _held:
        _held.pop()._lock.release()
    _forking.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
