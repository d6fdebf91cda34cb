"""The books of a ledger, as the owner reads them. Reading changes nothing, not even a file beside the ledger."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from dpsql.errors import OperationalError
from dpsql.ledger import Entry, Refusal
from dpsql.ledger.schema import FORMAT, MAX_GRAINS, format_of, subject_of, user_of
from dpsql.ledger.sqlite import BUSY_SECONDS, plain, require_identity, require_ledger
from dpsql.ledger.verification import contradictions
from dpsql.privacy.accounting import Price


@dataclass(frozen=True, slots=True)
class Selection:
    """Which rows of the books to read; None is all."""

    user: str | None = None
    since: datetime | None = None
    until: datetime | None = None  # not included
    limit: int | None = None  # the newest so many

    def parameters(self) -> dict[str, str | int | None]:
        return {
            "user": self.user,
            "subject": None if self.user is None else subject_of(self.user),
            "since": _stored_time(self.since),
            "until": _stored_time(self.until),
            "limit": MAX_GRAINS if self.limit is None else min(self.limit, MAX_GRAINS),
        }


EVERYTHING = Selection()
_UNREADABLE = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_IOERR)


@dataclass(frozen=True, slots=True)
class LimitChange:
    """The owner set a total or an allowance. None: the policy did not name the user before, or no longer does."""

    time: str  # UTC, ISO 8601
    user: str | None  # None is the dataset
    old: Price | None
    new: Price | None


@dataclass(frozen=True, slots=True)
class Counts:
    charges: int
    refusals: int
    limit_changes: int


_SELECTED = """
    (:since IS NULL OR at >= :since) AND (:until IS NULL OR at < :until)
"""
_CHARGES = f"""
SELECT at, user, sql, dataset_loss, dataset_delta, user_loss, user_delta, NULL AS sqlstate, NULL AS message, number
FROM charges WHERE (:user IS NULL OR user = :user) AND {_SELECTED}
"""
_REFUSALS = f"""
SELECT at, user, sql, 0, 0, 0, 0, sqlstate, message, number
FROM refusals WHERE (:user IS NULL OR user = :user) AND {_SELECTED}
"""
_LIMITS = f"""
SELECT at, subject, old_loss, old_delta, new_loss, new_delta
FROM limits WHERE (:subject IS NULL OR subject = :subject) AND {_SELECTED}
ORDER BY number DESC LIMIT :limit
"""


class Books:
    """What a ledger holds, read-only. Use `read`."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._has_refusals = format_of(db) >= FORMAT

    @classmethod
    @contextmanager
    def read(cls, path: Path, *, dataset: str, accounting: str) -> Iterator[Books]:
        """One consistent view of the books, also while others write."""
        path = path.resolve()
        try:
            db = _connect(path)
            try:
                require_ledger(db, path)
                db.execute("BEGIN")
                require_identity(db, path, dataset, accounting)
                yield cls(db)
            finally:
                db.close()
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in _UNREADABLE:
                raise OperationalError("the ledger cannot be read", hint="Check who may read its file.") from error
            raise plain(error) from error

    def spent(self) -> dict[str | None, Price]:
        """What the dataset (None) and each user ever paid, also users whom the policy no longer names."""
        return {user_of(subject): Price(*sum_) for subject, *sum_ in self._db.execute("SELECT * FROM accounts")}

    def log(self, selection: Selection = EVERYTHING, *, refused: bool = False) -> list[Entry | Refusal]:
        """Charges and refusals, or refusals only, oldest first."""
        parts = [] if refused else [_CHARGES]
        if self._has_refusals:
            parts.append(_REFUSALS)
        if not parts:
            return []
        rows = self._db.execute(
            f"{' UNION ALL '.join(parts)} ORDER BY at DESC, number DESC LIMIT :limit", selection.parameters()
        ).fetchall()
        return [_logged(*row) for row in reversed(rows)]

    def limit_changes(self, selection: Selection = EVERYTHING) -> list[LimitChange]:
        """Every change of a total or an allowance, oldest first."""
        rows = self._db.execute(_LIMITS, selection.parameters()).fetchall()
        return [
            LimitChange(at, user_of(subject), _limit(*limit[:2]), _limit(*limit[2:]))
            for at, subject, *limit in reversed(rows)
        ]

    def counts(self) -> Counts:
        tables = ("charges", "refusals", "limits") if self._has_refusals else ("charges", "limits")
        counts = {t: self._db.execute(f"SELECT COUNT(*) FROM {t}").fetchone()[0] for t in tables}
        return Counts(counts["charges"], counts.get("refusals", 0), counts["limits"])

    def names(self) -> set[str]:
        """Everyone whom the policy ever named."""
        subjects = self._db.execute("SELECT DISTINCT subject FROM limits")
        return {user for (subject,) in subjects if (user := user_of(subject)) is not None}

    def verify(self) -> list[str]:
        """Recompute everything from the append-only rows; each string is a contradiction, none means sound."""
        return contradictions(self._db)


def _connect(path: Path) -> sqlite3.Connection:
    """Open without a trace.

    Where no log lies beside the file, nobody has it open and the file is all there is: SQLite may then read it as
    immutable, which needs no lock, leaves no file, and works in a folder that cannot be written.
    """
    options = "mode=ro" if path.with_name(f"{path.name}-wal").exists() else "mode=ro&immutable=1"
    return sqlite3.connect(f"{path.as_uri()}?{options}", uri=True, timeout=BUSY_SECONDS, isolation_level=None)


def _logged(
    at: str,
    user: str,
    sql: str,
    dataset_loss: int,
    dataset_delta: int,
    user_loss: int,
    user_delta: int,
    sqlstate: str | None,
    message: str | None,
    _: int,
) -> Entry | Refusal:
    if sqlstate is not None and message is not None:
        return Refusal(at, user, sql, sqlstate, message)
    return Entry(at, user, sql, Price(dataset_loss, dataset_delta), Price(user_loss, user_delta))


def _limit(loss: int | None, delta: int | None) -> Price | None:
    return None if loss is None or delta is None else Price(loss, delta)


def _stored_time(time: datetime | None) -> str | None:
    """As the ledger writes it, so that texts compare as times do."""
    return None if time is None else time.astimezone(UTC).isoformat(timespec="microseconds")
