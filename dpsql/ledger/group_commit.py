"""One transaction for all who write at the same moment: what is slow about a charge is waiting for the disk."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from dpsql.errors import Error, OperationalError
from dpsql.ledger.database import Database
from dpsql.lowering.query import Cancellation

_GLANCE = 0.05  # seconds between looks at the cancellation of work that waits
MOST = 64  # in one transaction, so that the first does not wait for too many

T = TypeVar("T")


class Transact(Protocol):
    """One transaction that excludes every other writer; if `durable`, it is on disk when this returns."""

    def __call__(self, work: Callable[[Database], list[Any]], *, durable: bool) -> list[Any]: ...


@dataclass(slots=True, eq=False)
class _Job:
    work: Callable[[Database], Any]
    durable: bool
    ended: bool = False
    outcome: Any = field(default=None, repr=False)
    failure: BaseException | None = None


class GroupCommit:
    """Whoever comes while nobody writes writes, for all who wait by then. Safe for many threads.

    Claim: each job was done alone: it saw all jobs before it and none after, and what it raised undid it and no other.
    Because: the jobs of a transaction are done one after the other, each within a savepoint, and nobody is told the
        outcome before the transaction has ended.
    Needs: jobs that refuse with `Error` only. Whatever else is raised, by a job or by the database, fails all jobs of
        the transaction; if the transaction may be done again, the jobs must bear it.
    """

    def __init__(self, transact: Transact) -> None:
        self._transact = transact
        self._change = threading.Condition()
        self._waiting: list[_Job] = []
        self._writing = False
        _all.add(self)

    def do(self, work: Callable[[Database], T], *, durable: bool = True, cancellation: Cancellation | None = None) -> T:
        """The outcome of the work, recorded when this returns; durably, unless it may be lost in a power failure.

        Work that is cancelled before its turn comes is withdrawn.
        """
        job = _Job(work, durable)
        with self._change:
            self._waiting.append(job)
        while (batch := self._turn(job, cancellation)) is not None:
            try:
                self._write(batch)
            finally:
                with self._change:
                    self._writing = False
                    self._change.notify_all()
        if job.failure is not None:
            raise job.failure
        outcome: T = job.outcome
        return outcome

    def _turn(self, job: _Job, cancellation: Cancellation | None) -> list[_Job] | None:
        """The jobs to write, for whoever's turn it is to write them; None once the own job has ended."""
        with self._change:
            while self._writing and not job.ended:
                self._change.wait(None if cancellation is None else _GLANCE)
                if cancellation is not None and cancellation.cancelled and job in self._waiting:
                    self._waiting.remove(job)
                    cancellation.check()
            if job.ended:
                return None
            self._writing = True
            batch, self._waiting = self._waiting[:MOST], self._waiting[MOST:]
            return batch

    def _write(self, batch: list[_Job]) -> None:
        try:
            outcomes = self._transact(lambda db: _all_of(db, batch), durable=any(job.durable for job in batch))
        except Exception as error:
            for job in batch:
                job.failure = error
        except BaseException:  # meant for this thread alone
            for job in batch:
                job.failure = OperationalError("the ledger was interrupted", hint="Try again.")
            raise
        else:
            for job, (outcome, refusal) in zip(batch, outcomes, strict=True):
                job.outcome, job.failure = outcome, refusal
        finally:
            for job in batch:
                job.ended = True

    def forget(self) -> None:
        """Those who waited or wrote are threads of another process."""
        self._change, self._waiting, self._writing = threading.Condition(), [], False


def _all_of(db: Database, batch: list[_Job]) -> list[tuple[Any, Error | None]]:
    if len(batch) == 1:  # its refusal undoes the transaction
        return [(batch[0].work(db), None)]
    return [_one_of_many(db, job) for job in batch]


def _one_of_many(db: Database, job: _Job) -> tuple[Any, Error | None]:
    db.execute("SAVEPOINT job")
    try:
        outcome, refusal = job.work(db), None
    except Error as error:
        db.execute("ROLLBACK TO SAVEPOINT job")
        outcome, refusal = None, error
    db.execute("RELEASE SAVEPOINT job")
    return outcome, refusal


# --- forks ---

_all: weakref.WeakSet[GroupCommit] = weakref.WeakSet()


def _after_fork() -> None:
    for each in list(_all):
        each.forget()


os.register_at_fork(after_in_child=_after_fork)
