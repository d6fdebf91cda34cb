"""Waiting for a ledger ends when the statement that waits is cancelled, and never with a charge that nobody wanted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

from dpsql.effort import Cancellation
from dpsql.errors import Cancelled, OperationalError
from dpsql.ledger import postgres, sqlite
from dpsql.ledger import postgres_connections as connections
from dpsql.ledger.sql_ledger import SqlLedger
from dpsql.ledger.waiting import Abandoned, interruptible
from dpsql.policy.model import LedgerLocation
from dpsql.privacy.accounting import Price
from tests.cut_wire import Fault, Wire
from tests.ledger_places import Server, buy, held, key, reopen
from tests.server.process import eventually

SOON = 20  # seconds; a wait that nothing ends takes longer than that


@pytest.fixture
def ledger(location: LedgerLocation) -> Iterator[SqlLedger]:
    with closing(reopen(location, create=True)) as ledger:
        yield ledger


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def is_writing(ledger: SqlLedger) -> bool:
    return ledger._group_commit._writing


def charged(
    pool: ThreadPoolExecutor, ledger: SqlLedger, number: int, cancellation: Cancellation | None = None
) -> Future[Any]:
    """A charge in a thread of its own, when it has come as far as waiting."""
    waiting = len(ledger._group_commit._waiting)
    was_first = not is_writing(ledger)
    future = pool.submit(ledger.charge, "bob", [buy(number, 1)], sql="q", cancellation=cancellation)
    eventually(lambda: is_writing(ledger) if was_first else len(ledger._group_commit._waiting) > waiting)
    return future


def test_who_waits_for_another_process_can_be_cancelled(
    location: LedgerLocation, ledger: SqlLedger, pool: ThreadPoolExecutor
) -> None:
    cancellation = Cancellation()
    with held(location) as is_held:
        asked = charged(pool, ledger, 1, cancellation)
        cancellation.cancel()
        assert isinstance(asked.exception(SOON), Cancelled)
        assert is_held()
    assert ledger.charge("bob", [buy(2, 5)], sql="q").paid == Price(5)
    assert ledger.spent() == Price(5)


def test_who_waited_behind_one_that_was_cancelled_is_charged(
    location: LedgerLocation, ledger: SqlLedger, pool: ThreadPoolExecutor
) -> None:
    first, second = Cancellation(), Cancellation()
    with held(location) as is_held:
        asked = [charged(pool, ledger, 1, first), charged(pool, ledger, 2, second), charged(pool, ledger, 3)]
        first.cancel()
        assert isinstance(asked[0].exception(SOON), Cancelled)
        eventually(lambda: is_writing(ledger) and not ledger._group_commit._waiting)  # the second, for both
        asked.append(charged(pool, ledger, 4))
        second.cancel()
        assert isinstance(asked[1].exception(SOON), Cancelled)
        assert is_held() and not asked[2].done()
    assert [each.result(SOON).paid for each in asked[2:]] == [Price(1), Price(1)]
    assert ledger.spent() == Price(2)
    assert ledger.verify() == []


def test_who_waits_in_the_transaction_of_another_can_be_cancelled(
    location: LedgerLocation, ledger: SqlLedger, pool: ThreadPoolExecutor
) -> None:
    first, third = Cancellation(), Cancellation()
    with held(location):
        asked = [charged(pool, ledger, 1, first), charged(pool, ledger, 2), charged(pool, ledger, 3, third)]
        first.cancel()
        assert isinstance(asked[0].exception(SOON), Cancelled)
        eventually(lambda: is_writing(ledger) and not ledger._group_commit._waiting)  # the second, for both
        third.cancel()
        assert isinstance(asked[2].exception(SOON), Cancelled)
    assert asked[1].result(SOON).paid == Price(1)
    assert ledger.spent() == Price(1)


def test_who_is_interrupted_leaves_the_next_one_to_write(
    location: LedgerLocation, ledger: SqlLedger, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by Ctrl-C, in the thread of whoever uses the driver."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    with held(location):
        first = charged(pool, ledger, 1)
        with monkeypatch.context() as patch:
            patch.setattr("dpsql.ledger.group_commit.go_on", interrupt)
            with pytest.raises(KeyboardInterrupt):
                ledger.charge("bob", [buy(2, 1)], sql="q")
        last = charged(pool, ledger, 3)
    assert first.result(SOON).paid == last.result(SOON).paid == Price(1)
    assert ledger.spent() == Price(2)


def test_what_cancelled_statements_have_paid_for_is_kept(ledger: SqlLedger) -> None:
    """Their answers, and that there is none, are recorded all the same."""
    cancellation = Cancellation()
    cancellation.cancel()
    with interruptible(cancellation):
        ledger.store(key(1), b"an answer")
        ledger.fail([])
    assert ledger.lookup(key(1)) == b"an answer"


@pytest.mark.parametrize("fault", [Fault.LATE, None])
def test_a_charge_that_is_being_recorded_is_not_given_up(ledger_server: Server, fault: Fault | None) -> None:
    """After COMMIT was sent, what stands is known to stand: where it takes long, and where the connection breaks."""
    address = ledger_server.empty_database()
    reopen(address, create=True).close()
    with closing(Wire(address)) as wire, closing(reopen(wire.address)) as ledger:
        cancellation = Cancellation()

        def cancel() -> None:
            cancellation.cancel()
            time.sleep(0.5)  # ten looks at it

        wire.fault, wire.on_commit = fault, cancel
        assert ledger.charge("bob", [buy(1, 7)], sql="q", cancellation=cancellation).paid == Price(7)
        assert cancellation.cancelled
    with closing(reopen(address)) as near:
        assert near.spent() == Price(7)
        assert near.verify() == []


def test_nothing_waits_any_more_at_the_server(ledger_server: Server, pool: ThreadPoolExecutor) -> None:
    """A server does not see that a client has left while it waits for a lock."""
    address = ledger_server.empty_database()

    def waiting() -> int:
        [(number,)] = ledger_server.execute(
            "SELECT COUNT(*) FROM pg_stat_activity WHERE application_name = 'dpsql ledger' AND wait_event_type = 'Lock'"
        )
        return int(number)

    with closing(reopen(address, create=True)) as ledger, held(address):
        cancellation = Cancellation()
        asked = charged(pool, ledger, 1, cancellation)
        eventually(lambda: waiting() == 1)
        cancellation.cancel()
        assert isinstance(asked.exception(SOON), Cancelled)
        eventually(lambda: waiting() == 0)


# --- a server that hangs ---


@pytest.fixture(scope="module")
def own_server() -> Iterator[Server]:
    with closing(Server()) as server:
        yield server


READS: list[Callable[[SqlLedger], object]] = [
    lambda ledger: ledger.remaining("bob"),
    lambda ledger: ledger.lookup(key(1)),
    lambda ledger: ledger.charge("bob", [buy(1, 1)], sql="q"),
    lambda ledger: ledger.refuse("bob", "q", "42501", "no"),
]


@pytest.mark.parametrize("connected", [True, False])
def test_a_server_that_hangs_keeps_nobody_who_was_cancelled(
    own_server: Server, pool: ThreadPoolExecutor, *, connected: bool
) -> None:
    with closing(reopen(own_server.new_database(), create=True)) as ledger:
        assert isinstance(ledger, postgres.PostgresLedger)
        if not connected:
            ledger._connections._close_idle()
        cancellation = Cancellation()

        def use(work: Callable[[SqlLedger], object]) -> object:
            with interruptible(cancellation):
                return work(ledger)

        with own_server.frozen():
            asked = [pool.submit(use, work) for work in READS]
            cancellation.cancel()
            assert [type(each.exception(SOON)) for each in asked] == [Abandoned] * len(READS)
        assert ledger.remaining("bob") == Price(100, 10)
        assert ledger.verify() == []


def test_a_locked_file_is_waited_for_as_long_as_it_may_take(
    location: LedgerLocation, ledger: SqlLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.1)
    monkeypatch.setattr(connections, "BUSY_SECONDS", 0.1)
    with held(location), pytest.raises(OperationalError, match="in use by another process"):
        ledger.charge("bob", [buy(1, 1)], sql="q")
