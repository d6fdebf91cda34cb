"""What is written at the same moment is written in one transaction, and nobody can tell."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from dpsql.effort import Cancellation
from dpsql.errors import BudgetExhausted, Cancelled, OperationalError, UnknownUser
from dpsql.ledger.database import Database
from dpsql.ledger.sql_ledger import SqlLedger
from dpsql.policy.model import LedgerLocation
from dpsql.privacy.accounting import Price
from tests.ledger_places import TOTAL, buy, key, reopen
from tests.server.process import eventually


@pytest.fixture
def ledger(location: LedgerLocation) -> Iterator[SqlLedger]:
    with closing(reopen(location, create=True)) as ledger:
        yield ledger


class Crowd:
    """Threads that all wait while somebody writes, and then are written together."""

    def __init__(self, ledger: SqlLedger) -> None:
        self._ledger = ledger
        self._pool = ThreadPoolExecutor(80)
        self._until = threading.Event()
        begun = threading.Event()

        def hold(_: Database) -> None:
            begun.set()
            self._until.wait(60)

        self._holding = self._pool.submit(ledger._write, hold)
        assert begun.wait(60)

    def later(self, work: Callable[..., Any], *arguments: Any, **more: Any) -> Future[Any]:
        before = len(self._ledger._group_commit._waiting)
        found = self._pool.submit(work, *arguments, **more)
        eventually(lambda: len(self._ledger._group_commit._waiting) == before + 1)
        return found

    def go(self) -> None:
        self._until.set()
        self._holding.result()
        self._pool.shutdown(wait=True)


@contextmanager
def counted(ledger: SqlLedger) -> Iterator[list[bool]]:
    """Whether each transaction was durable."""
    transact, seen = ledger._group_commit._transact, list[bool]()

    def counting(work: Callable[[Database], list[Any]], *, durable: bool) -> list[Any]:
        seen.append(durable)
        return transact(work, durable=durable)

    ledger._group_commit._transact = counting
    yield seen
    ledger._group_commit._transact = transact


def test_charges_of_one_moment_are_one_transaction_and_stay_apart(ledger: SqlLedger) -> None:
    with counted(ledger) as transactions:
        crowd = Crowd(ledger)
        paid = [crowd.later(ledger.charge, "bob", [buy(i, 3)], sql=f"q{i}") for i in range(40)]
        crowd.go()
        assert len(transactions) == 2  # one was held up, the other for all
    refused = [isinstance(each.exception(), BudgetExhausted) for each in paid]
    assert refused == [False] * 33 + [True] * 7  # in the order in which they came
    assert {each.result().paid for each in paid[:33]} == {Price(3)}
    assert ledger.spent() == ledger.spent("bob") == Price(99)
    assert [entry.sql for entry in ledger.history(limit=3)] == ["q32", "q31", "q30"]
    assert ledger.verify() == []


def test_a_refusal_undoes_its_own_work_only(ledger: SqlLedger) -> None:
    def half_done(db: Database) -> None:
        db.execute("INSERT INTO answers (key, created, payload) VALUES (?, ?, ?)", (key(9), "2020-01-01", b"half"))
        raise UnknownUser("after a row was written")

    crowd = Crowd(ledger)
    first = crowd.later(ledger.charge, "alice", [buy(1, 10)], sql="first")
    refused = crowd.later(ledger._write, half_done)
    unknown = crowd.later(ledger.charge, "mallory", [buy(2, 10)], sql="second")
    last = crowd.later(ledger.charge, "bob", [buy(3, 5)], sql="third")
    crowd.go()
    assert (first.result().paid, last.result().paid) == (Price(10), Price(5))
    assert isinstance(refused.exception(), UnknownUser)
    assert isinstance(unknown.exception(), UnknownUser)
    assert ledger.lookup(key(9)) is None
    assert ledger.spent() == Price(15)
    assert ledger.verify() == []


@pytest.mark.parametrize("defect", [RuntimeError, KeyboardInterrupt])
def test_a_failure_is_everybodys_and_leaves_nothing(ledger: SqlLedger, defect: type[BaseException]) -> None:
    def fail(_: Database) -> None:
        raise defect

    crowd = Crowd(ledger)
    jobs = [crowd.later(ledger.charge, "alice", [buy(1, 10)], sql="q") for _ in range(2)]
    jobs += [crowd.later(ledger._write, fail), crowd.later(ledger.charge, "bob", [buy(2, 10)], sql="q")]
    crowd.go()
    failures = [each.exception() for each in jobs]
    assert all(isinstance(failure, defect | OperationalError) for failure in failures)
    assert sum(isinstance(failure, KeyboardInterrupt) for failure in failures) <= 1  # the thread that it was meant for
    assert ledger.spent() == Price()
    assert ledger.charge("alice", [buy(1, 10)], sql="q").paid == Price(10)  # and it goes on
    assert ledger.verify() == []


def test_who_was_cancelled_while_waiting_is_not_charged(ledger: SqlLedger) -> None:
    cancellation = Cancellation()
    crowd = Crowd(ledger)
    cancelled = crowd.later(ledger.charge, "alice", [buy(1, 10)], sql="q", cancellation=cancellation)
    other = crowd.later(ledger.charge, "bob", [buy(2, 5)], sql="q")
    cancellation.cancel()
    crowd.go()
    assert isinstance(cancelled.exception(), Cancelled)
    assert other.result().paid == Price(5)
    assert ledger.spent() == Price(5)


def test_who_is_cancelled_while_others_write_does_not_wait_for_them(ledger: SqlLedger) -> None:
    cancellation = Cancellation()
    crowd = Crowd(ledger)
    cancelled = crowd.later(ledger.charge, "alice", [buy(1, 10)], sql="q", cancellation=cancellation)
    cancellation.cancel()
    assert isinstance(cancelled.exception(60), Cancelled)  # and the other still writes
    assert ledger._group_commit._writing and not ledger._group_commit._waiting
    crowd.go()
    assert ledger.spent() == Price()


def test_more_than_fit_into_one_transaction_are_all_written(ledger: SqlLedger) -> None:
    crowd = Crowd(ledger)
    paid = [crowd.later(ledger.charge, "bob", [buy(i, 1)], sql="q") for i in range(75)]
    crowd.go()
    assert [each.result().paid for each in paid] == [Price(1)] * 75
    assert ledger.spent() == Price(75)
    assert TOTAL.loss >= 75


def test_a_charge_is_on_disk_also_beside_an_answer_that_need_not_be(
    ledger: SqlLedger, location: LedgerLocation
) -> None:
    with counted(ledger) as durable:
        ledger.store(key(1), b"an answer")
        ledger.charge("alice", [buy(1, 1)], sql="q")
        crowd = Crowd(ledger)
        stored = crowd.later(ledger.store, key(2), b"another")
        paid = crowd.later(ledger.charge, "alice", [buy(2, 1)], sql="q")
        crowd.go()
    # A server that is killed forgets what is not on disk; a file does not, when the process that wrote it is.
    assert durable == [not isinstance(location, Path), True, True, True]
    assert (stored.result(), paid.result().paid) == (None, Price(1))
    assert ledger.lookup(key(2)) == b"another"


def test_the_database_is_told_which_is_which(ledger: SqlLedger, location: LedgerLocation) -> None:
    asked = "PRAGMA synchronous" if isinstance(location, Path) else "SHOW synchronous_commit"
    told = [
        ledger._group_commit.do(lambda db: db.execute(asked).fetchall()[0][0], durable=durable)
        for durable in (True, False, True)
    ]
    assert told == ([2, 1, 2] if isinstance(location, Path) else ["on", "off", "on"])


def test_a_child_does_not_wait_for_threads_of_its_parent(ledger: SqlLedger, location: LedgerLocation) -> None:
    if isinstance(location, Path):
        pytest.skip("a fork waits for the writer of a file to end")
    crowd = Crowd(ledger)
    child = os.fork()
    if child == 0:
        os._exit(7 if not ledger._group_commit._writing and not ledger._group_commit._waiting else 1)
    _, status = os.waitpid(child, 0)
    crowd.go()
    assert os.waitstatus_to_exitcode(status) == 7
