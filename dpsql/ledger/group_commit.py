"""Group commit (DeWitt et al. 1984): one transaction for all writers that wait, as the slow part is the disk."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from dpsql.errors import Error, OperationalError
from dpsql.ledger.database import Database
from dpsql.ledger.waiting import GLANCE, Abandoned, go_on

MOST = 64  # jobs in one transaction, to bound the wait of the first

T = TypeVar("T")


class Transact(Protocol):
    """One transaction that excludes every other writer; if `durable`, it is on disk when this returns.

    Raises Abandoned where the thread's own statement was cancelled while it waited, and then leaves nothing.
    """

    def __call__(self, work: Callable[[Database], list[Any]], *, durable: bool) -> list[Any]: ...


@dataclass(slots=True, eq=False)
class _Job:
    work: Callable[[Database], Any]
    durable: bool
    begun: bool = False  # jobs in the transaction under way
    ended: bool = False
    outcome: Any = field(default=None, repr=False)
    failure: BaseException | None = None


_Done = tuple[_Job, Any, Error | None]


class GroupCommit:
    """The first thread that finds no writer becomes the leader, and writes the jobs of all who wait by then.

    The thread that has waited longest leads next. Safe for many threads. A cancelled thread withdraws unless its own
    job has begun; so does a leader that still waits for the ledger, and the next thread then leads for the rest.

    Claim: each job was done alone: it saw all jobs before it and none after, and what it raised undid it and no other.
    Because: the jobs of a transaction run one after the other, each within a savepoint, and no outcome is returned
    before the transaction has ended.
    Needs: jobs that refuse with `Error` only. Anything else raised, by a job or by the database, fails all jobs of the
    transaction; if the transaction may be retried, the jobs must be repeatable.
    """

    def __init__(self, transact: Transact) -> None:
        self._transact = transact
        self._change = threading.Condition()
        self._waiting: list[_Job] = []
        self._writing = False
        _all.add(self)

    def do(self, work: Callable[[Database], T], *, durable: bool = True) -> T:
        """The outcome of the work, recorded when this returns; `durably` unless a power failure may lose it."""
        job = _Job(work, durable)
        try:
            with self._change:
                self._waiting.append(job)
            while (batch := self._turn(job)) is not None:
                try:
                    self._write(batch, job)
                finally:
                    with self._change:
                        self._writing = False
                        self._change.notify_all()
        except BaseException:  # cancelled or interrupted: no one waits for it any more
            self._withdraw(job)
            raise
        if job.failure is not None:
            raise job.failure
        outcome: T = job.outcome
        return outcome

    def _turn(self, job: _Job) -> list[_Job] | None:
        """Wait for a role: the jobs to write, as leader; None once this thread's own job has ended."""
        with self._change:
            while not job.ended and (self._writing or self._waiting[0] is not job):
                self._change.wait(GLANCE)
                if not job.begun:
                    go_on()
            if job.ended:
                return None
            self._writing = True
            batch, self._waiting = self._waiting[:MOST], self._waiting[MOST:]
            return batch

    def _withdraw(self, job: _Job) -> None:
        """Withdraw a job; one that has begun is left to its leader."""
        with self._change:
            if not job.begun:
                job.ended = True
            if job in self._waiting:
                self._waiting.remove(job)
                self._change.notify_all()

    def _write(self, batch: list[_Job], own: _Job) -> None:
        try:
            done = self._transact(lambda db: self._all_of(db, batch), durable=any(job.durable for job in batch))
        except Abandoned as error:
            with self._change:
                stay = [job for job in batch if job is not own and not job.ended]
                for job in stay:
                    job.begun = False
                self._waiting[:0] = stay
            own.failure, own.ended = error, True
        except Exception as error:
            self._fail(batch, error)
        except BaseException:  # meant for this thread only
            self._fail(batch, OperationalError("the ledger was interrupted", hint="Try again."))
            raise
        else:
            for job, outcome, refusal in done:
                job.outcome, job.failure, job.ended = outcome, refusal, True

    def _fail(self, batch: list[_Job], failure: Exception) -> None:
        with self._change:
            for job in batch:
                job.failure, job.ended = failure, True

    def _all_of(self, db: Database, batch: list[_Job]) -> list[_Done]:
        with self._change:
            wanted = [job for job in batch if not job.ended]
            for job in wanted:
                job.begun = True
        if len(wanted) == 1:  # its refusal undoes the transaction
            return [(wanted[0], wanted[0].work(db), None)]
        return [_one_of_many(db, job) for job in wanted]

    def forget(self) -> None:
        """After a fork: the threads that waited or wrote are the parent's."""
        self._change, self._waiting, self._writing = threading.Condition(), [], False


def _one_of_many(db: Database, job: _Job) -> _Done:
    db.execute("SAVEPOINT job")
    try:
        outcome, refusal = job.work(db), None
    except Abandoned:  # by the leader
        raise
    except Error as error:
        db.execute("ROLLBACK TO SAVEPOINT job")
        outcome, refusal = None, error
    db.execute("RELEASE SAVEPOINT job")
    return job, outcome, refusal


# --- forks ---

_all: weakref.WeakSet[GroupCommit] = weakref.WeakSet()


def _after_fork() -> None:
    for each in list(_all):
        each.forget()


os.register_at_fork(after_in_child=_after_fork)
