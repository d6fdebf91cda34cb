"""A charge whose answer was never given pays for one more attempt, for exactly one asker, and survives everything."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import psycopg
import pytest

from dpsql.errors import BudgetExhausted, InternalError
from dpsql.ledger import AttemptTaken, PaidAttempt, Purchase, Unanswered
from dpsql.ledger import database as clock
from dpsql.ledger.failures import LONGEST_WAIT, QUICK_RUNS
from dpsql.ledger.migrate import move_ledger
from dpsql.ledger.sql_ledger import SqlLedger
from dpsql.policy.model import LedgerLocation
from dpsql.privacy.accounting import Price
from tests.ledger_places import Server, buy, key, refuses, reopen, rows, tamper

HERE = Path(__file__).parent
PRICE = Price(10, 1)


@pytest.fixture
def ledger(location: LedgerLocation) -> Iterator[SqlLedger]:
    with closing(reopen(location, create=True)) as ledger:
        yield ledger


def bought(ledger: SqlLedger, user: str = "alice") -> int:
    number = ledger.charge(user, [buy(1, 10, 1)], sql="q").number
    assert number is not None
    return number


def failed(ledger: SqlLedger, charge: int, runs: int = 1) -> PaidAttempt:
    ledger.fail([Unanswered(key(1), PRICE, charge, runs, "instance")])
    found = ledger.paid_attempt(key(1), PRICE)
    assert found is not None
    return found


def again(attempt: PaidAttempt, price: Price = PRICE) -> Purchase:
    return Purchase(key(1), price, replay=True, retry=attempt)


def test_a_charge_alone_is_no_paid_attempt(ledger: SqlLedger) -> None:
    bought(ledger)
    assert ledger.paid_attempt(key(1), PRICE) is None


def test_what_failed_is_taken_up_once_and_costs_nothing(ledger: SqlLedger) -> None:
    charge = bought(ledger)
    attempt = failed(ledger, charge)
    assert (attempt.charge, attempt.runs, attempt.instance, attempt.wait) == (charge, 1, "instance", 0.0)
    assert ledger.charge("alice", [again(attempt)], sql="q").paid == Price()
    assert ledger.paid_attempt(key(1), PRICE) is None
    with pytest.raises(AttemptTaken):
        ledger.charge("alice", [again(attempt)], sql="q")
    assert ledger.spent() == PRICE
    assert ledger.verify() == []


def test_who_never_paid_pays_from_the_own_allowance(ledger: SqlLedger) -> None:
    attempt = failed(ledger, bought(ledger))
    assert ledger.charge("bob", [again(attempt)], sql="q").paid == PRICE
    assert ledger.spent() == PRICE
    assert ledger.spent("bob") == PRICE


def test_an_attempt_is_worth_its_own_price_only(ledger: SqlLedger) -> None:
    """A search for a clip has the same key at every price; what was paid buys the noise of that price."""
    attempt = failed(ledger, bought(ledger))
    assert ledger.paid_attempt(key(1), Price(20, 1)) is None
    with pytest.raises(AttemptTaken):
        ledger.charge("alice", [again(attempt, Price(20, 1))], sql="q")


def test_what_is_refused_uses_nothing_up(ledger: SqlLedger) -> None:
    attempt = failed(ledger, bought(ledger))
    with pytest.raises(BudgetExhausted):
        ledger.charge("alice", [again(attempt), buy(2, 1_000)], sql="q")
    assert ledger.paid_attempt(key(1), PRICE) == attempt


def test_of_many_who_take_it_at_once_one_does(location: LedgerLocation, ledger: SqlLedger) -> None:
    attempt = failed(ledger, bought(ledger))
    others = [reopen(location) for _ in range(3)]
    taken: list[Price] = []

    def take(number: int) -> None:
        with suppress(AttemptTaken):
            taken.append(others[number % 3].charge("alice", [again(attempt)], sql="q").paid)

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(take, range(12)))
    for other in others:
        other.close()
    assert taken == [Price()]


def test_it_outlives_the_process(location: LedgerLocation, ledger: SqlLedger) -> None:
    attempt = failed(ledger, bought(ledger))
    ledger.close()
    with closing(reopen(location)) as later:
        found = later.paid_attempt(key(1), PRICE)
        assert found is not None
        assert found.number == attempt.number
        later.charge("alice", [again(found)], sql="q")
    with closing(reopen(location)) as later:
        assert later.paid_attempt(key(1), PRICE) is None


def test_what_fails_again_and_again_waits_longer_and_longer(ledger: SqlLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    charge = bought(ledger)
    waits = []
    for run in range(1, QUICK_RUNS + 8):
        attempt = failed(ledger, charge, run)
        waits.append(attempt.wait)
        ledger.charge("alice", [again(attempt)], sql="q")
    assert waits[: QUICK_RUNS - 1] == [0.0] * (QUICK_RUNS - 1)
    assert all(after > before > 0 for before, after in pairwise(waits[2:8]))
    assert max(waits) <= LONGEST_WAIT
    last = failed(ledger, charge, QUICK_RUNS + 8)
    now = clock.now()
    monkeypatch.setattr(clock, "now", lambda: now + timedelta(seconds=LONGEST_WAIT))
    found = ledger.paid_attempt(key(1), PRICE)
    assert found is not None
    assert (found.number, found.wait) == (last.number, 0.0)
    # A clock that is set back does not make it wait longer than it would have at first.
    monkeypatch.setattr(clock, "now", lambda: now - timedelta(days=400))
    found = ledger.paid_attempt(key(1), PRICE)
    assert found is not None
    assert found.wait == LONGEST_WAIT


def test_a_failure_that_is_recorded_twice_counts_once(ledger: SqlLedger, location: LedgerLocation) -> None:
    charge = bought(ledger)
    attempt = failed(ledger, charge)
    ledger.charge("alice", [again(attempt)], sql="q")
    ledger.fail([Unanswered(key(1), PRICE, charge, 1, "instance")])
    assert ledger.paid_attempt(key(1), PRICE) is None
    assert rows(location, "SELECT COUNT(*) FROM failures") == [(1,)]
    with pytest.raises(InternalError):
        ledger.fail([Unanswered(key(1), PRICE, charge, 0, "instance")])


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM retries",
        "UPDATE retries SET failure = 2",
        "UPDATE failures SET runs = 5",
        "DELETE FROM failures",
    ],
)
def test_the_storage_gives_nothing_back(location: LedgerLocation, ledger: SqlLedger, statement: str) -> None:
    ledger.charge("alice", [again(failed(ledger, bought(ledger)))], sql="q")
    assert refuses(location, statement)


@pytest.mark.parametrize(
    ("forgery", "found"),
    [
        ("DELETE FROM retries", "failure 2 does not follow a retry"),
        ("UPDATE failures SET runs = 7 WHERE number = 2", "failure 2 does not follow a retry"),
        (
            f"UPDATE failures SET key = x'{'07' * 32}' WHERE number = 2",
            "failure 2 names an answer that was never paid for",
        ),
        ("DELETE FROM failures WHERE number = 1", "failure 1 is missing"),
        ("INSERT INTO retries VALUES (9, '2020')", "1 of the retries follow no failure"),
    ],
)
def test_forged_attempts_are_found(location: LedgerLocation, ledger: SqlLedger, forgery: str, found: str) -> None:
    charge = bought(ledger)
    ledger.charge("alice", [again(failed(ledger, charge))], sql="q")
    failed(ledger, charge, 2)
    assert ledger.verify() == []
    ledger.close()
    tamper(location, forgery)
    with closing(reopen(location)) as later:
        assert found in later.verify()


def test_a_ledger_of_the_format_before_keeps_paid_attempts_from_now_on(location: LedgerLocation) -> None:
    if isinstance(location, Path):
        with closing(sqlite3.connect(location)) as db:
            db.executescript((HERE / "format_4.sql").read_text())
    else:
        with closing(psycopg.connect(location.url, autocommit=True)) as server:
            server.execute((HERE / "format_4_server.sql").read_text().encode())
    with closing(reopen(location)) as ledger:
        number = ledger.charge("bob", [buy(100, 10, 1)], sql="q").number
        assert number is not None
        ledger.fail([Unanswered(key(100), PRICE, number, 1, "instance")])
        found = ledger.paid_attempt(key(100), PRICE)
        assert found is not None
        ledger.charge("bob", [Purchase(key(100), PRICE, replay=True, retry=found)], sql="q")
        assert ledger.verify() == []
    assert refuses(location, "DELETE FROM retries")


def test_paid_attempts_move_with_the_ledger(location: LedgerLocation, ledger: SqlLedger, ledger_server: Server) -> None:
    failed(ledger, bought(ledger))
    ledger.close()
    target = ledger_server.new_database()
    move_ledger(location, target, dataset="people", accounting="zcdp")
    with closing(reopen(target)) as moved:
        found = moved.paid_attempt(key(1), PRICE)
        assert found is not None
        assert moved.charge("alice", [again(found)], sql="q").paid == Price()
        assert moved.verify() == []
