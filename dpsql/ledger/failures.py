"""Paid attempts that failed: each can be retried, once per failure, without a second charge.

An attempt that fails after its charge leaves a row in `failures`; a retry adds the row in `retries` that uses it up.
Both tables are append-only, and a failure is the primary key of its retry.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from dpsql.errors import InternalError
from dpsql.ledger import AttemptTaken, PaidAttempt, Purchase, Unanswered
from dpsql.ledger import database as clock
from dpsql.ledger.database import Database
from dpsql.ledger.schema import FAILURES_SINCE
from dpsql.privacy.accounting import Price

QUICK_RUNS = 3  # runs that may follow at once; each further one waits twice as long as the one before
FIRST_WAIT, LONGEST_WAIT = 60.0, 3_600.0  # seconds

_OPEN = (
    "SELECT number, charge, runs, instance, at, loss, delta, pure FROM failures WHERE key = ?"
    " AND NOT EXISTS (SELECT 1 FROM retries WHERE failure = number) ORDER BY number DESC"
)


def record(db: Database, attempts: Sequence[Unanswered]) -> None:
    """Record that paid attempts ended without an answer.

    Claim: one charge never gives two answers to a question.
    Because: only the holder of an attempt, by the charge or by the row before, adds a row, after it has ended without
    an answer; the storage accepts one row for each charge, question and run.
    Needs: the caller has shown and stored nothing of the attempt, and never will.
    """
    for attempt in attempts:
        if attempt.runs < 1:
            raise InternalError("an attempt that was not run cannot have failed")
        db.execute(
            "INSERT INTO failures (number, at, key, charge, runs, instance, loss, delta, pure) VALUES"
            " ((SELECT COALESCE(MAX(number), 0) + 1 FROM failures), ?, ?, ?, ?, ?, ?, ?, ?)"
            " ON CONFLICT (key, charge, runs) DO NOTHING",  # a row may exist already if the acknowledgement was lost
            (
                clock.timestamp(),
                attempt.key,
                attempt.charge,
                attempt.runs,
                attempt.instance,
                attempt.price.loss,
                attempt.price.delta,
                attempt.price.pure,
            ),
        )


def find(db: Database, key: bytes, price: Price) -> PaidAttempt | None:
    """A paid attempt at this answer, at exactly this price, that is free to take."""
    for number, charge, runs, instance, at, *grains in db.execute(_OPEN, (key,)).fetchall():
        if Price(*grains) == price:
            return PaidAttempt(number, charge, runs, instance, _wait(runs, at))
    return None


def claim(db: Database, purchase: Purchase) -> None:
    """Take a paid attempt exclusively; raises AttemptTaken if another process has.

    Claim: at most one process takes it, even if several ask at the same moment, or one of them is killed.
    Because: it is found and used up in one transaction that excludes every other writer and is durable before the
    query runs; a second row with its number cannot be stored. A process killed after this has lost the attempt.
    Needs: the transaction of `accounts.pay`.
    """
    assert purchase.retry is not None
    found = find(db, purchase.key, purchase.price)
    if found is None or found.number != purchase.retry.number:
        raise AttemptTaken
    db.execute("INSERT INTO retries (failure, at) VALUES (?, ?)", (found.number, clock.timestamp()))


def _wait(runs: int, at: str) -> float:
    """Seconds until an attempt that has failed so often may be run again.

    An analyst sees how long a query runs until it fails or is cancelled. Time is outside the guarantee, but the runs
    per charge stay limited: three at once, later about one an hour.
    """
    if runs < QUICK_RUNS:
        return 0.0
    pause = min(FIRST_WAIT * 2.0 ** min(runs - QUICK_RUNS, 30), LONGEST_WAIT)
    elapsed = (clock.now() - datetime.fromisoformat(at)).total_seconds()
    # A clock that was set back must not lengthen the pause.
    return min(max(pause - elapsed, 0.0), pause)


def contradictions(db: Database) -> Iterator[str]:
    """Failures without a charge, and runs without a retry."""
    if db.format() < FAILURES_SINCE:
        return
    runs: dict[tuple[bytes, int], tuple[int, bool]] = {}
    rows = db.execute(
        "SELECT f.number, f.key, f.charge, f.runs, c.number, r.failure, p.key FROM failures AS f"
        " LEFT JOIN charges AS c ON c.number = f.charge LEFT JOIN retries AS r ON r.failure = f.number"
        " LEFT JOIN (SELECT DISTINCT key FROM paid) AS p ON p.key = f.key ORDER BY f.number"
    )
    for expected, (number, key, charge, run, charged, retried, paid) in enumerate(rows, start=1):
        if number != expected:
            yield f"failure {expected} is missing"
            return
        before, was_retried = runs.get((bytes(key), charge), (0, True))
        if charged is None or paid is None:
            yield f"failure {number} names an answer that was never paid for"
        elif run != before + 1 or not was_retried:
            yield f"failure {number} does not follow a retry"
        runs[bytes(key), charge] = (run, retried is not None)
    [(stray,)] = db.execute(
        "SELECT COUNT(*) FROM retries WHERE NOT EXISTS (SELECT 1 FROM failures WHERE number = failure)"
    ).fetchall()
    if stray:
        yield f"{stray} of the retries follow no failure"
