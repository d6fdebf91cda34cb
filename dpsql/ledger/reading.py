"""The ledger's books for the owner, read-only. Reading leaves no trace, not even a file beside the ledger."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from dpsql.ledger import Entry, Refusal
from dpsql.ledger import database as clock
from dpsql.ledger.database import Database
from dpsql.ledger.identity import require_identity, standing
from dpsql.ledger.protections import Recorded, history
from dpsql.ledger.schema import MAX_GRAINS, MOVES_SINCE, PURE_SINCE, REFUSALS_SINCE, subject_of, user_of
from dpsql.ledger.verification import contradictions
from dpsql.policy.model import LedgerLocation
from dpsql.privacy.accounting import Price


@dataclass(frozen=True, slots=True)
class Selection:
    """Which rows to read; None: all."""

    user: str | None = None
    since: datetime | None = None
    until: datetime | None = None  # exclusive
    limit: int | None = None  # number of newest rows

    def of_users(self) -> tuple[str, list[str]]:
        """A condition on rows that name a user, and its values."""
        return self._condition('"user"', self.user)

    def of_subjects(self) -> tuple[str, list[str]]:
        return self._condition("subject", None if self.user is None else subject_of(self.user))

    def holds(self, time: str) -> bool:
        """Whether a stored time is in the selection."""
        return (self.since is None or clock.stored(self.since) <= time) and (
            self.until is None or time < clock.stored(self.until)
        )

    def rows(self) -> int:
        return MAX_GRAINS if self.limit is None else min(self.limit, MAX_GRAINS)

    def _condition(self, column: str, name: str | None) -> tuple[str, list[str]]:
        wanted = {
            f"{column} = ?": name,
            "at >= ?": None if self.since is None else clock.stored(self.since),
            "at < ?": None if self.until is None else clock.stored(self.until),
        }
        given = {condition: value for condition, value in wanted.items() if value is not None}
        return f"WHERE {' AND '.join(given)}" if given else "", list(given.values())


EVERYTHING = Selection()


@dataclass(frozen=True, slots=True)
class LimitChange:
    """A change of the total or an allowance. None: the policy did not name the user before, or no longer does."""

    time: str  # UTC, ISO 8601
    user: str | None  # None is the dataset
    old: Price | None
    new: Price | None


@dataclass(frozen=True, slots=True)
class Counts:
    charges: int
    refusals: int
    limit_changes: int


_CHARGES = """
SELECT at, "user", sql, dataset_loss, dataset_delta, dataset_pure, user_loss, user_delta, user_pure, NULL AS sqlstate,
    NULL AS message, number
FROM charges
"""
_REFUSALS = """
SELECT at, "user", sql, 0, 0, 0, 0, 0, 0, sqlstate, message, number FROM refusals
"""
_LIMITS = "SELECT at, subject, old_loss, old_delta, old_pure, new_loss, new_delta, new_pure FROM limits"
_PURE = re.compile(r"\b(?:\w+_)?pure\b")


class Books:
    """A ledger's contents, read-only. Use `read`."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._has_refusals = db.format() >= REFUSALS_SINCE
        self._has_pure = db.format() >= PURE_SINCE

    @classmethod
    @contextmanager
    def read(cls, location: LedgerLocation, *, dataset: str, accounting: str) -> Iterator[Books]:
        """One consistent snapshot of the books, also while others write."""
        with _view(location) as db:
            require_identity(db, location, dataset, accounting)
            if (format_ := db.format()) >= MOVES_SINCE:
                standing(db, format_=format_).require_chargeable(location)
            yield cls(db)

    def spent(self) -> dict[str | None, Price]:
        """What the dataset (None) and each user have paid, including users whom the policy no longer names."""
        rows = self._db.execute(self._known("SELECT subject, loss, delta, pure FROM accounts"))
        return {user_of(subject): Price(*sum_) for subject, *sum_ in rows}

    def log(self, selection: Selection = EVERYTHING, *, refused: bool = False) -> list[Entry | Refusal]:
        """Charges and refusals, or refusals only, oldest first."""
        parts = [] if refused else [_CHARGES]
        if self._has_refusals:
            parts.append(_REFUSALS)
        if not parts:
            return []
        condition, values = selection.of_users()
        rows = self._db.execute(
            " UNION ALL ".join(self._known(part) + condition for part in parts)
            + " ORDER BY at DESC, number DESC LIMIT ?",
            [*(values * len(parts)), selection.rows()],
        ).fetchall()
        return [_logged(*row) for row in reversed(rows)]

    def limit_changes(self, selection: Selection = EVERYTHING) -> list[LimitChange]:
        """Every change of a total or an allowance, oldest first."""
        condition, values = selection.of_subjects()
        rows = self._db.execute(
            f"{self._known(_LIMITS)} {condition} ORDER BY number DESC LIMIT ?", [*values, selection.rows()]
        ).fetchall()
        return [
            LimitChange(at, user_of(subject), _limit(*limit[:3]), _limit(*limit[3:]))
            for at, subject, *limit in reversed(rows)
        ]

    def protections(self, selection: Selection = EVERYTHING) -> list[Recorded]:
        """The protected units and since when, oldest first."""
        found = [each for each in history(self._db) if selection.holds(each.time)]
        return found[max(0, len(found) - selection.rows()) :]

    def spent_before(self, charges: int) -> Price:
        """What the dataset paid in the first `charges` charges."""
        rows = self._db.execute(
            self._known("SELECT dataset_loss, dataset_delta, dataset_pure FROM charges WHERE number <= ?"), [charges]
        )
        return sum((Price(*price) for price in rows), Price())

    def prices(self) -> list[tuple[Price, int]]:
        """The dataset's prices of single charges, each with its count."""
        rows = self._db.execute("SELECT dataset_loss, dataset_delta, COUNT(*) FROM charges GROUP BY 1, 2")
        return [(Price(loss, delta), int(times)) for loss, delta, times in rows]

    def counts(self) -> Counts:
        tables = ("charges", "refusals", "limits") if self._has_refusals else ("charges", "limits")
        counts = {table: self._count(table) for table in tables}
        return Counts(counts["charges"], counts.get("refusals", 0), counts["limits"])

    def _known(self, query: str) -> str:
        """The query adapted to older formats, in which nothing is known to be pure."""
        return query if self._has_pure else _PURE.sub("NULL", query)

    def _count(self, table: str) -> int:
        [(count,)] = self._db.execute(f"SELECT COUNT(*) FROM {table}").fetchall()
        return int(count)

    def names(self) -> set[str]:
        """All users that a policy ever named."""
        subjects = self._db.execute("SELECT DISTINCT subject FROM limits")
        return {user for (subject,) in subjects if (user := user_of(subject)) is not None}

    def answers(self) -> Iterator[tuple[datetime, bytes]]:
        """All stored answers, and when they were stored."""
        for created, payload in self._db.execute("SELECT created, payload FROM answers"):
            yield datetime.fromisoformat(created), bytes(payload)

    def verify(self) -> list[str]:
        """Recompute everything from the append-only rows; each string is a contradiction, none means sound."""
        return contradictions(self._db)


def _view(location: LedgerLocation) -> AbstractContextManager[Database]:
    if isinstance(location, Path):
        from dpsql.ledger.sqlite import read_file

        return read_file(location)
    from dpsql.ledger.postgres import read_server

    return read_server(location)


def _logged(
    at: str,
    user: str,
    sql: str,
    dataset_loss: int,
    dataset_delta: int,
    dataset_pure: int | None,
    user_loss: int,
    user_delta: int,
    user_pure: int | None,
    sqlstate: str | None,
    message: str | None,
    _: int,
) -> Entry | Refusal:
    if sqlstate is not None and message is not None:
        return Refusal(at, user, sql, sqlstate, message)
    dataset, own = Price(dataset_loss, dataset_delta, dataset_pure), Price(user_loss, user_delta, user_pure)
    return Entry(at, user, sql, dataset, own)


def _limit(loss: int | None, delta: int | None, pure: int | None) -> Price | None:
    return None if loss is None or delta is None else Price(loss, delta, pure)
