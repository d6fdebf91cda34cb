"""The ledger in one SQLite file.

Rows are only ever added; running sums are kept beside them in the same transaction, so that a charge costs the
same however long the history is, and `verify` recomputes the sums from the rows.

SQLite's own rules shape this module:

- A process may not carry a connection across a fork, nor open a second one beside an inherited one: SQLite counts
  its locks per process. All connections are therefore closed before a fork and opened again on the next use.
- A write during an automatic checkpoint can lose pages in SQLite before 3.51.3 (the "WAL-reset" defect).
  Checkpoints are therefore explicit and of a kind that keeps writers out.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import uuid
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from dpsql.errors import (
    BadSetting,
    BudgetExhausted,
    Error,
    InterfaceError,
    InternalError,
    OperationalError,
    PolicyError,
    UnknownUser,
)
from dpsql.files import sync_directory
from dpsql.ledger import Entry, Purchase
from dpsql.ledger.schema import (
    APPLICATION,
    DATASET,
    FORMAT,
    MAX_GRAINS,
    OLDEST_FORMAT,
    SCHEMA,
    format_of,
    migrate,
    subject_of,
)
from dpsql.ledger.verification import contradictions, first_hash, hash_of
from dpsql.privacy.accounting import Price

BUSY_SECONDS = 30.0  # how long to wait for another thread or process
CHECKPOINT_BYTES = 4 * 2**20  # when the write-ahead log is copied into the file
KEY_BYTES = 32
MAX_REFUSAL_TEXT = 2_000  # characters kept of a refused query
MAX_REFUSALS_A_DAY = 1_000  # kept of one user

FREE = Price()
UNLIMITED = Price(loss=MAX_GRAINS, delta=MAX_GRAINS)


class SqliteLedger:
    """A Ledger in a file, shared by all threads of a process and by all processes of a machine.

    The limits in force are those of the policy opened last, for every process: they are read from the file.
    """

    def __init__(self, path: Path, replay_days: float | None) -> None:
        """Use `open`."""
        self._path = path
        self._replay_days = replay_days
        self._lock = threading.Lock()  # guards all below
        self._file = _file_identity(path)
        self._connection: sqlite3.Connection | None = None
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
        create: bool,
        replay_days: float | None = None,
    ) -> SqliteLedger:
        """Open the ledger of a dataset and put the policy's limits in force; a change of limits is recorded."""
        limits = {DATASET: total} | {subject_of(u): UNLIMITED if a is None else a for u, a in allowances.items()}
        for limit in limits.values():
            _require_storable(limit)
        path = path.resolve()
        if not path.exists():
            if not create:
                raise missing(path)
            _create(path, dataset=dataset, accounting=accounting)
        ledger = cls(path, replay_days)
        try:
            ledger._adopt(dataset, accounting, limits)
        except BaseException:
            ledger.close()
            raise
        return ledger

    def charge(self, user: str, purchases: Sequence[Purchase], *, sql: str) -> Price:
        """Record the purchases, durably when this returns, and say what the user paid.

        Claim: the dataset's sum never exceeds its total in either component, whatever runs at the same time.
        Because: sum and limits are read, compared and written in one transaction that excludes every other writer;
            it is on disk before this returns; and no statement of this module makes a sum smaller.
        Needs: prices that cover what the purchases reveal, and a replay only of what was released before (the
            second is checked here as far as the ledger can know it: somebody has paid for the key).

        A question that costs nothing and buys nothing new leaves no row: nobody can fill the disk for free.
        """
        for purchase in purchases:
            _require_storable(purchase.price)
            if len(purchase.key) != KEY_BYTES:
                raise InternalError(f"the key of an answer has {KEY_BYTES} bytes")
        _require_storable(_sum(purchase.price for purchase in purchases))
        with self._transaction() as db:
            accounts = [(DATASET, _limit(db, DATASET)), (subject_of(user), _allowance(db, user))]
            bill = _bill(db, user, purchases)
            if bill.user == FREE and not bill.keys:
                return FREE
            for (subject, limit), price in zip(accounts, (bill.dataset, bill.user), strict=True):
                spent = _spent(db, subject)
                if price != FREE:
                    _admit(user if subject != DATASET else None, price, spent, limit)
                _set_spent(db, subject, _sum((spent, price)))
            _append(db, user, sql, bill)
        self._checkpoint()
        return bill.user

    def refuse(self, user: str, sql: str, sqlstate: str, message: str) -> None:
        """Record that a query was not answered, for the owner to read.

        Says nothing about the data: a refusal comes before any private row is read, and depends on the query, the
        policy, public tables, this ledger and values already released only (rule Static).

        Refusals are free, and nobody may fill the disk for free: long texts are cut, and of one user only so many
        are kept of a day.
        """
        with self._transaction() as db:
            _allowance(db, user)  # a user whom the policy does not name leaves no trace
            now = _timestamp()
            (kept,) = db.execute(
                "SELECT COUNT(*) FROM refusals WHERE user = ? AND at >= ?", (user, now[: len("2000-01-01")])
            ).fetchone()
            if kept < MAX_REFUSALS_A_DAY:
                texts = [_storable(_cut(text)) for text in (sql, sqlstate, message)]
                db.execute(
                    "INSERT INTO refusals VALUES ((SELECT COALESCE(MAX(number), 0) + 1 FROM refusals), ?, ?, ?, ?, ?)",
                    (now, user, *texts),
                )
        self._checkpoint()

    def spent(self, user: str | None = None) -> Price:
        """What the dataset has paid, or one user; also a user whom the policy no longer names."""
        with self._connected() as db:
            return _spent(db, DATASET if user is None else subject_of(user))

    def remaining(self, user: str) -> Price:
        """What the user can still spend: the smaller of the dataset's rest and the user's own, per component."""
        with self._transaction("DEFERRED") as db:
            dataset = _left(_spent(db, DATASET), _limit(db, DATASET))
            own = _left(_spent(db, subject_of(user)), _allowance(db, user))
        return Price(loss=min(dataset.loss, own.loss), delta=min(dataset.delta, own.delta))

    def lookup(self, key: bytes) -> bytes | None:
        """The stored answer; None if there is none or it has expired."""
        with self._connected() as db:
            row = db.execute("SELECT created, payload FROM answers WHERE key = ?", (key,)).fetchone()
            if row is None:
                return None
            created, payload = row
            if not self._has_expired(created):
                return bytes(payload)
            # Forgotten for good, so that a clock set back does not bring it back.
            db.execute("DELETE FROM answers WHERE key = ? AND created = ?", (key, created))
            return None

    def has_paid(self, user: str, key: bytes) -> bool:
        """Whether a replay of this answer is free for the user."""
        with self._connected() as db:
            return _has_paid(db, user, key)

    def store(self, key: bytes, answer: bytes) -> None:
        """Keep a released answer, in place of an older one. It holds noisy values only."""
        with self._transaction() as db:
            db.execute(
                "INSERT INTO answers (key, created, payload) VALUES (?, ?, ?) "
                "ON CONFLICT (key) DO UPDATE SET created = excluded.created, payload = excluded.payload",
                (key, _timestamp(), answer),
            )
        self._checkpoint()

    def history(self, user: str | None = None, limit: int = 100) -> list[Entry]:
        """The last charges, newest first."""
        with self._connected() as db:
            rows = db.execute(
                "SELECT at, user, sql, dataset_loss, dataset_delta, user_loss, user_delta FROM charges "
                f"{'' if user is None else 'WHERE user = :user'} ORDER BY number DESC LIMIT :limit",
                {"user": user, "limit": min(max(limit, 0), MAX_GRAINS)},
            ).fetchall()
        return [Entry(at, who, sql, Price(dl, dd), Price(ul, ud)) for at, who, sql, dl, dd, ul, ud in rows]

    def verify(self) -> list[str]:
        """Recompute everything from the append-only rows; each string is a contradiction, none means sound."""
        with self._transaction("DEFERRED") as db:
            return contradictions(db)

    def close(self) -> None:
        """Let go of the file. A closed ledger refuses everything else."""
        with self._lock:
            self._closed = True
            self._disconnect()

    def _adopt(self, dataset: str, accounting: str, limits: Mapping[str, Price]) -> None:
        with self._transaction() as db:
            require_identity(db, self._path, dataset, accounting)
            migrate(db)
            known = {subject for (subject,) in db.execute("SELECT DISTINCT subject FROM limits")}
            for subject in sorted(known | limits.keys()):
                _record_limit(db, subject, _limit_or_none(db, subject), limits.get(subject))

    def _has_expired(self, created: str) -> bool:
        """An answer from further in the future than the limit was stored under a wrong clock: expired too."""
        if self._replay_days is None:
            return False
        age = _now() - datetime.fromisoformat(created)
        return not abs(age.total_seconds()) <= self._replay_days * 86_400

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        """The connection of this process, for one thread at a time. Failures become plain sentences."""
        if not self._lock.acquire(timeout=BUSY_SECONDS):
            raise _failure(_LOCKED)
        try:
            if self._closed:
                raise InterfaceError("the ledger is closed")
            # A charge written to a file that has lost its name would be acknowledged, and then forgotten.
            if _file_identity(self._path) != self._file:
                raise OperationalError(
                    "the ledger was moved, deleted or replaced while in use",
                    hint="Put the ledger back and start again.",
                )
            if self._connection is None:
                self._connection = _connect(self._path)
            yield self._connection
        except sqlite3.Error as error:
            raise plain(error) from error
        finally:
            self._lock.release()

    @contextmanager
    def _transaction(self, mode: str = "IMMEDIATE") -> Iterator[sqlite3.Connection]:
        with self._connected() as db:
            try:
                db.execute(f"BEGIN {mode}")
                yield db
                db.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    db.rollback()
                if db.in_transaction:
                    self._disconnect()
                raise

    def _checkpoint(self) -> None:
        """Copy a long log into the file. What was committed is durable before and after, so failure can wait."""
        with suppress(OSError, Error):
            if os.stat(f"{self._path}-wal").st_size > CHECKPOINT_BYTES:
                with self._connected() as db:
                    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


# --- a charge ---


@dataclass(frozen=True, slots=True)
class _Bill:
    dataset: Price
    user: Price
    keys: tuple[bytes, ...]  # what the user has not paid for before, in order of bytes


def _bill(db: sqlite3.Connection, user: str, purchases: Sequence[Purchase]) -> _Bill:
    """Who pays what.

    Claim: the dataset pays for every answer computed from data.
    Because: only a replay is free for it, and a key that nobody ever paid for cannot be replayed.
    Needs: the caller holds the stored answer when it asks for a replay.
    """
    dataset, own, keys = [FREE], [FREE], set[bytes]()
    for purchase in purchases:
        owned = purchase.key in keys or _has_paid(db, user, purchase.key)
        if not purchase.replay:
            dataset.append(purchase.price)
            own.append(purchase.price)
        elif not owned:
            if not _was_bought(db, purchase.key):
                raise InternalError("an answer that nobody paid for cannot be replayed")
            own.append(purchase.price)
        if not owned:
            keys.add(purchase.key)
    return _Bill(_sum(dataset), _sum(own), tuple(sorted(keys)))


def _admit(user: str | None, price: Price, spent: Price, limit: Price) -> None:
    """Refuse a price that an account cannot pay; `user` None is the dataset.

    An account that is asked for nothing is not asked at all: a replay works also above a lowered total.
    """
    parts = []
    if spent.loss + price.loss > limit.loss:
        parts.append("loss")
    if spent.delta + price.delta > limit.delta:
        parts.append("delta for unknown keys")
    if parts:
        raise BudgetExhausted(
            "the privacy budget of the dataset is exhausted"
            if user is None
            else f'the allowance of user "{user}" is exhausted',
            detail=f"The query needs more {' and more '.join(parts)} than is left.",
            hint="Ask for a smaller price, repeat a question that was answered before, or ask the owner for more.",
            needed=price,
            left=_left(spent, limit),
        )


def _append(db: sqlite3.Connection, user: str, sql: str, bill: _Bill) -> None:
    last = db.execute("SELECT number, hash FROM charges ORDER BY number DESC LIMIT 1").fetchone()
    number, previous = (1, first_hash(db)) if last is None else (last[0] + 1, last[1])
    row = (number, _timestamp(), user, _storable(sql), *_grains(bill.dataset), *_grains(bill.user))
    db.execute("INSERT INTO charges VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", (*row, hash_of(previous, row, bill.keys)))
    db.executemany("INSERT INTO paid VALUES (?, ?, ?)", [(key, user, number) for key in bill.keys])


def _storable(text: str) -> str:
    """SQLite takes no lone surrogates."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _cut(text: str) -> str:
    return text if len(text) <= MAX_REFUSAL_TEXT else text[: MAX_REFUSAL_TEXT - 1] + "…"


def _has_paid(db: sqlite3.Connection, user: str, key: bytes) -> bool:
    return db.execute("SELECT 1 FROM paid WHERE key = ? AND user = ?", (key, user)).fetchone() is not None


def _was_bought(db: sqlite3.Connection, key: bytes) -> bool:
    return db.execute("SELECT 1 FROM paid WHERE key = ? LIMIT 1", (key,)).fetchone() is not None


# --- sums and limits ---


def _grains(price: Price) -> tuple[int, int]:
    return price.loss, price.delta


def _sum(prices: Iterable[Price]) -> Price:
    return sum(prices, FREE)


def _require_storable(price: Price) -> None:
    """A Price is whole and not negative by itself; here it must also fit into a column."""
    if not price.fits_in(UNLIMITED):
        raise BadSetting("a price is at most 2^63 - 1 grains")


def _left(spent: Price, limit: Price) -> Price:
    return Price(loss=max(0, limit.loss - spent.loss), delta=max(0, limit.delta - spent.delta))


def _spent(db: sqlite3.Connection, subject: str) -> Price:
    row = db.execute("SELECT loss, delta FROM accounts WHERE subject = ?", (subject,)).fetchone()
    return FREE if row is None else Price(*row)


def _set_spent(db: sqlite3.Connection, subject: str, sum_: Price) -> None:
    db.execute(
        "INSERT INTO accounts VALUES (?, ?, ?) "
        "ON CONFLICT (subject) DO UPDATE SET loss = excluded.loss, delta = excluded.delta",
        (subject, *_grains(sum_)),
    )


def _limit_or_none(db: sqlite3.Connection, subject: str) -> Price | None:
    row = db.execute(
        "SELECT new_loss, new_delta FROM limits WHERE subject = ? ORDER BY number DESC LIMIT 1", (subject,)
    ).fetchone()
    return None if row is None or row[0] is None else Price(*row)


def _limit(db: sqlite3.Connection, subject: str) -> Price:
    limit = _limit_or_none(db, subject)
    if limit is None:
        raise InternalError(f"the ledger holds no limit for {subject}")
    return limit


def _allowance(db: sqlite3.Connection, user: str) -> Price:
    allowance = _limit_or_none(db, subject_of(user))
    if allowance is None:
        raise UnknownUser(f'user "{user}" is not known', hint="The owner declares users in the policy.")
    return allowance


def _record_limit(db: sqlite3.Connection, subject: str, old: Price | None, new: Price | None) -> None:
    """Add a row if the limit changed; None is a subject the policy does not name."""
    if old != new:
        before, after = ((None, None) if p is None else _grains(p) for p in (old, new))
        db.execute(
            "INSERT INTO limits (at, subject, old_loss, old_delta, new_loss, new_delta) VALUES (?, ?, ?, ?, ?, ?)",
            (_timestamp(), subject, *before, *after),
        )


# --- the file ---


def _now() -> datetime:
    return datetime.now(UTC)


def _timestamp() -> str:
    return _now().isoformat(timespec="microseconds")


def _file_identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _create(path: Path, *, dataset: str, accounting: str) -> None:
    """Make an empty ledger appear under its name, whole, or lose the race to another process that does.

    It is built under another name and then linked: a name that exists is never overwritten, and a half-made
    ledger is never seen.
    """
    identity = uuid.uuid4().hex
    fresh = path.with_name(f"{path.name}.{identity}.new")
    try:
        with _forking:
            os.close(os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            with closing(sqlite3.connect(fresh, isolation_level=None)) as db:
                db.executescript(SCHEMA)
                db.execute("INSERT INTO ledger VALUES (?, ?, ?, ?)", (identity, dataset, accounting, _timestamp()))
                db.execute("COMMIT")
        # The log of a lost ledger would be replayed into the new one, and is the only trace of what was spent.
        if Path(f"{path}-wal").exists() and not path.exists():
            raise PolicyError(
                f'the ledger "{path}" is missing, but its write-ahead log is there',
                detail="A ledger was moved or deleted without the log that belongs to it.",
                hint="Put the ledger back beside its log.",
            )
        with suppress(FileExistsError):
            os.link(fresh, path)
        sync_directory(path.parent)
    except (OSError, sqlite3.Error) as error:
        raise OperationalError(
            f'the ledger "{path}" cannot be created', hint="Check that its directory exists and can be written."
        ) from error
    finally:
        for suffix in ("", "-wal", "-shm"):
            with suppress(OSError):
                os.unlink(f"{fresh}{suffix}")


def missing(path: Path) -> PolicyError:
    return PolicyError(
        f'the ledger "{path}" is missing',
        detail="A new ledger would forget what was spent.",
        hint="Put the ledger back. Create a new one only if this data has never been asked anything.",
    )


def require_ledger(db: sqlite3.Connection, path: Path) -> None:
    """Refuse a file that is something else, or of a version of dpsql to come."""
    (application,) = db.execute("PRAGMA application_id").fetchone()
    if application != APPLICATION:
        raise PolicyError(f'"{path}" is not a ledger', hint="Name the ledger's file in the policy.")
    if not OLDEST_FORMAT <= (version := format_of(db)) <= FORMAT:
        raise PolicyError(
            f'the ledger "{path}" has format {version}; this version of dpsql knows format {FORMAT}',
            hint="Use the version of dpsql that wrote it.",
        )


def require_identity(db: sqlite3.Connection, path: Path, dataset: str, accounting: str) -> None:
    """Refuse the ledger of another dataset, and one that counts in another way."""
    identity = db.execute("SELECT dataset, accounting FROM ledger").fetchone()
    if identity is None or identity[0] != dataset:
        raise PolicyError(
            f'the ledger "{path}" belongs to another dataset',
            hint="Give each dataset a ledger of its own; a ledger cannot be moved from one to another.",
        )
    if identity[1] != accounting:
        raise PolicyError(
            f'the ledger "{path}" was created for accounting "{identity[1]}", not "{accounting}"',
            hint=f'Set accounting = "{identity[1]}" in the policy; what was spent cannot be converted.',
        )


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{path.as_uri()}?mode=rw", uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
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


_LOCKED = ("the ledger is in use by another process", "Try again later.")
_DAMAGED = ("the ledger is damaged", "Stop serving, keep the file, and restore a copy that holds all charges.")
_UNWRITABLE = ("the ledger cannot be opened for writing", "Check that its file and directory can be written.")
_FAILED = ("the ledger failed", "The owner finds the cause in the log.")
_REASONS = {
    sqlite3.SQLITE_BUSY: _LOCKED,
    sqlite3.SQLITE_LOCKED: _LOCKED,
    sqlite3.SQLITE_FULL: ("the disk of the ledger is full", "Make room on it."),
    sqlite3.SQLITE_READONLY: _UNWRITABLE,
    sqlite3.SQLITE_CANTOPEN: _UNWRITABLE,
    sqlite3.SQLITE_PERM: _UNWRITABLE,
    sqlite3.SQLITE_CORRUPT: _DAMAGED,
    sqlite3.SQLITE_NOTADB: _DAMAGED,
}


def _failure(reason: tuple[str, str]) -> OperationalError:
    message, hint = reason
    return OperationalError(message, hint=hint)


def plain(error: sqlite3.Error) -> OperationalError:
    """A sentence of ours; SQLite's own text stays in the cause."""
    code = getattr(error, "sqlite_errorcode", None)  # absent where Python itself raises
    return _failure(_FAILED if code is None else _REASONS.get(code & 0xFF, _FAILED))


# --- forks ---

_ledgers: weakref.WeakSet[SqliteLedger] = weakref.WeakSet()
_forking = threading.Lock()  # held while the process forks: nothing connects, creates or registers meanwhile
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
