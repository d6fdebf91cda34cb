"""Claims of every ledger, in one process: who pays, who is refused, what is remembered, how it fails."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from dpsql.errors import (
    BadSetting,
    BudgetExhausted,
    InterfaceError,
    InternalError,
    OperationalError,
    PolicyError,
    UnknownUser,
)
from dpsql.ledger import Ledger, Purchase, accounts, sql_ledger
from dpsql.ledger import database as clock
from dpsql.ledger.schema import MAX_GRAINS
from dpsql.ledger.sql_ledger import SqlLedger
from dpsql.policy.model import LedgerLocation
from dpsql.privacy.accounting import Price
from tests.ledger_places import TOTAL, buy, key, refuses, reopen, replay, rows, tamper


@pytest.fixture
def ledger(location: LedgerLocation) -> Iterator[SqlLedger]:
    with closing(reopen(location, create=True)) as ledger:
        yield ledger


# --- who pays ---


def test_it_is_a_ledger(ledger: SqlLedger) -> None:
    promised: Ledger = ledger
    assert promised.verify() == []


def test_dataset_and_user_pay_the_sum_of_new_answers(ledger: SqlLedger) -> None:
    assert ledger.charge("alice", [buy(1, 10, 1), buy(2, 5, 2)], sql="SELECT 1").paid == Price(15, 3)
    assert ledger.spent() == ledger.spent("alice") == Price(15, 3)
    assert ledger.spent("bob") == Price()


def test_an_answer_bought_again_is_paid_again(ledger: SqlLedger) -> None:
    for _ in range(2):
        assert ledger.charge("alice", [buy(1, 10)], sql="q").paid == Price(10)
    assert ledger.spent() == Price(20)


def test_a_replay_is_free_for_the_dataset_and_for_who_paid(ledger: SqlLedger) -> None:
    ledger.charge("alice", [buy(1, 10, 1)], sql="q")
    assert ledger.charge("alice", [replay(1, 10, 1)], sql="q").paid == Price()
    assert not ledger.has_paid("bob", key(1))
    assert ledger.charge("bob", [replay(1, 10, 1)], sql="q").paid == Price(10, 1)
    assert ledger.has_paid("bob", key(1))
    assert ledger.charge("bob", [replay(1, 10, 1)], sql="q").paid == Price()
    assert (ledger.spent(), ledger.spent("alice"), ledger.spent("bob")) == (Price(10, 1),) * 3


def test_an_answer_used_twice_in_one_query_is_paid_once(ledger: SqlLedger) -> None:
    assert ledger.charge("alice", [buy(1, 10), replay(1, 10)], sql="q").paid == Price(10)
    assert ledger.charge("bob", [replay(1, 10), replay(1, 10)], sql="q").paid == Price(10)


def test_what_nobody_paid_for_cannot_be_replayed(ledger: SqlLedger) -> None:
    with pytest.raises(InternalError):
        ledger.charge("alice", [buy(1, 10), replay(2, 10)], sql="q")
    assert ledger.spent() == Price()
    assert not ledger.has_paid("alice", key(1))


def test_a_free_question_leaves_no_row(ledger: SqlLedger) -> None:
    ledger.charge("alice", [buy(1, 10)], sql="q")
    ledger.charge("alice", [replay(1, 10)], sql="q")
    ledger.charge("alice", [], sql="q")
    assert len(ledger.history()) == 1


def test_a_free_question_waits_for_nobody(location: LedgerLocation, ledger: SqlLedger) -> None:
    ledger.charge("alice", [buy(1, 10)], sql="q")
    with closing(reopen(location)) as other:
        assert ledger._write(lambda _: other.charge("alice", [replay(1, 10)], sql="q").paid) == Price()


# --- who is refused ---


def test_the_last_grain_can_be_spent_and_no_more(ledger: SqlLedger) -> None:
    ledger.charge("bob", [buy(1, 100, 10)], sql="q")
    assert ledger.remaining("bob") == ledger.remaining("alice") == Price()
    for price in (Price(1), Price(0, 1)):
        with pytest.raises(BudgetExhausted):
            ledger.charge("bob", [Purchase(key(2), price, replay=False)], sql="q")


@pytest.mark.parametrize(
    ("price", "part"),
    [(Price(101), "more loss than"), (Price(0, 11), "more delta"), (Price(101, 11), "more loss and more delta")],
)
def test_a_refusal_names_account_and_part_and_changes_nothing(ledger: SqlLedger, price: Price, part: str) -> None:
    ledger.charge("bob", [buy(1, 10, 1)], sql="q")
    with pytest.raises(BudgetExhausted) as refusal:
        ledger.charge("bob", [Purchase(key(2), price, replay=False)], sql="q")
    error = refusal.value
    assert error.sqlstate == "53400"
    assert error.message == "the privacy budget of the dataset is exhausted"
    assert part in (error.detail or "")
    assert (error.needed, error.left) == (price, Price(90, 9))
    assert ledger.spent() == ledger.spent("bob") == Price(10, 1)
    assert not ledger.has_paid("bob", key(2))
    assert len(ledger.history()) == 1


def test_the_allowance_of_a_user_is_a_limit_of_its_own(ledger: SqlLedger) -> None:
    ledger.charge("alice", [buy(1, 60)], sql="q")
    with pytest.raises(BudgetExhausted) as refusal:
        ledger.charge("alice", [buy(2, 1)], sql="q")
    assert refusal.value.message == 'the allowance of user "alice" is exhausted'
    assert ledger.charge("bob", [buy(2, 40)], sql="q").paid == Price(40)


def test_a_replay_is_refused_only_by_the_own_allowance(location: LedgerLocation) -> None:
    with closing(reopen(location, create=True)) as ledger:
        ledger.charge("bob", [buy(1, 100)], sql="q")
        with pytest.raises(BudgetExhausted, match="alice"):
            ledger.charge("alice", [replay(1, 100)], sql="q")
    # Also where the owner lowered the total below what was spent: what is out is out.
    with closing(reopen(location, total=Price(50, 5), allowances={"alice": Price(100)})) as ledger:
        assert ledger.charge("alice", [replay(1, 100)], sql="q").paid == Price(100)


def test_remaining_is_the_smaller_rest_of_each_component(location: LedgerLocation) -> None:
    limits = {"alice": Price(60, 10), "bob": None, "carol": Price(500, 2)}
    with closing(reopen(location, create=True, allowances=limits)) as ledger:
        ledger.charge("alice", [buy(1, 20, 7)], sql="q")
        assert ledger.remaining("alice") == Price(40, 3)
        assert ledger.remaining("bob") == Price(80, 3)
        assert ledger.remaining("carol") == Price(80, 2)


@pytest.mark.parametrize("name", ["mallory", "", "dataset", "user:alice", "Alice", "x' OR '1'='1"])
def test_an_unknown_user_gets_nothing(ledger: SqlLedger, name: str) -> None:
    with pytest.raises(UnknownUser):
        ledger.charge(name, [buy(1, 1)], sql="q")
    with pytest.raises(UnknownUser):
        ledger.remaining(name)
    assert ledger.spent() == Price()


@pytest.mark.parametrize("grains", [-1, 1.0, True, float("nan"), "1", MAX_GRAINS + 1, 10**400])
def test_a_price_that_is_no_price_is_refused_before_any_write(ledger: SqlLedger, grains: Any) -> None:
    for price in ((grains, 0), (0, grains)):
        with pytest.raises((ValueError, TypeError, BadSetting)):
            ledger.charge("bob", [Purchase(key(1), Price(*price), replay=False)], sql="q")
    assert ledger.history() == []


def test_prices_that_overflow_together_are_refused(location: LedgerLocation) -> None:
    with closing(reopen(location, create=True, total=Price(MAX_GRAINS))) as ledger:
        with pytest.raises(BadSetting):
            ledger.charge("bob", [buy(1, MAX_GRAINS), buy(2, 1)], sql="q")
        ledger.charge("alice", [buy(1, 1)], sql="q")
        ledger.charge("bob", [buy(2, MAX_GRAINS - 1), replay(1, 1)], sql="q")
        # A user without an own limit meets the end of the column as a limit, not as an overflow.
        ledger.charge("alice", [buy(3)], sql="q")
        with pytest.raises(BudgetExhausted, match="bob"):
            ledger.charge("bob", [replay(3, 1)], sql="q")
        assert ledger.spent() == ledger.spent("bob") == Price(MAX_GRAINS)
        assert ledger.verify() == []


def test_a_key_of_another_length_is_refused(ledger: SqlLedger) -> None:
    with pytest.raises(InternalError):
        ledger.charge("bob", [Purchase(b"short", Price(1), replay=False)], sql="q")


# --- what is remembered ---


def test_everything_survives_closing(location: LedgerLocation) -> None:
    with closing(reopen(location, create=True)) as ledger:
        ledger.charge("alice", [buy(1, 10, 1)], sql="q")
        ledger.store(key(1), b"answer")
    with closing(reopen(location, create=True)) as ledger:
        assert ledger.spent() == ledger.spent("alice") == Price(10, 1)
        assert ledger.has_paid("alice", key(1))
        assert ledger.lookup(key(1)) == b"answer"
        assert ledger.verify() == []


def test_history_is_newest_first(ledger: SqlLedger) -> None:
    odd = "SELECT 'ü', '\x00', '\udc80'"
    ledger.charge("alice", [buy(1, 10, 1)], sql="first")
    ledger.charge("bob", [replay(1, 10, 1), buy(2, 3)], sql=odd)
    newest, oldest = ledger.history()
    assert (oldest.user, oldest.sql, oldest.dataset_price, oldest.user_price) == (
        "alice",
        "first",
        Price(10, 1),
        Price(10, 1),
    )
    assert (newest.user, newest.dataset_price, newest.user_price) == ("bob", Price(3), Price(13, 1))
    assert newest.sql == "SELECT 'ü', '\\x00', '\\udc80'"
    assert datetime.fromisoformat(newest.time).utcoffset() == timedelta(0)
    assert ledger.history("alice") == [oldest]
    assert ledger.history(limit=1) == [newest]
    assert ledger.history(limit=0) == ledger.history(limit=-1) == ledger.history("mallory") == []
    assert ledger.verify() == []


def test_limits_come_from_the_policy_and_each_change_is_recorded(location: LedgerLocation) -> None:
    changes = "SELECT subject, old_loss, old_delta, new_loss, new_delta FROM limits WHERE number > 3"
    with closing(reopen(location, create=True)) as ledger:
        ledger.charge("alice", [buy(1, 50)], sql="q")
    with closing(reopen(location)):
        assert rows(location, changes) == []
    with closing(reopen(location, total=Price(200, 10))) as ledger:
        assert rows(location, changes) == [("dataset", 100, 10, 200, 10)]
        assert ledger.remaining("bob") == Price(150, 10)
    with closing(reopen(location, total=Price(40, 10), allowances={"bob": Price(1, 1)})) as ledger:
        assert rows(location, changes)[1:] == [
            ("dataset", 200, 10, 40, 10),
            ("user:alice", 60, 10, None, None),
            ("user:bob", MAX_GRAINS, MAX_GRAINS, 1, 1),
        ]
        assert ledger.spent() == ledger.spent("alice") == Price(50)
        assert ledger.remaining("bob") == Price()
        with pytest.raises(BudgetExhausted, match="dataset"):
            ledger.charge("bob", [buy(2, 1)], sql="q")
        with pytest.raises(UnknownUser):
            ledger.charge("alice", [buy(2, 1)], sql="q")
        assert ledger.verify() == []


def test_the_policy_opened_last_binds_all_who_have_it_open(ledger: SqlLedger, location: LedgerLocation) -> None:
    with closing(reopen(location, total=Price(5, 5))), pytest.raises(BudgetExhausted):
        ledger.charge("bob", [buy(1, 6)], sql="q")


def test_a_user_who_returns_finds_the_old_sum(location: LedgerLocation) -> None:
    with closing(reopen(location, create=True)) as ledger:
        ledger.charge("alice", [buy(1, 50)], sql="q")
    with closing(reopen(location, allowances={"bob": None})):
        pass
    with closing(reopen(location)) as ledger:
        assert ledger.remaining("alice") == Price(10, 10)


# --- refusals ---


def test_refusals_are_recorded_and_cost_nothing(ledger: SqlLedger, location: LedgerLocation) -> None:
    ledger.refuse("alice", "SELECT name", "42501", "no")
    ledger.refuse("bob", "SELECT '\udc80\x00'", "53400", "exhausted")
    assert rows(location, 'SELECT number, "user", sql, sqlstate, message FROM refusals') == [
        (1, "alice", "SELECT name", "42501", "no"),
        (2, "bob", "SELECT '\\udc80\\x00'", "53400", "exhausted"),
    ]
    assert ledger.spent() == Price()
    assert ledger.history() == []
    assert ledger.verify() == []


def test_only_known_users_leave_refusals(ledger: SqlLedger, location: LedgerLocation) -> None:
    with pytest.raises(UnknownUser):
        ledger.refuse("mallory", "SELECT 1", "42501", "no")
    assert rows(location, "SELECT * FROM refusals") == []


def test_refusals_cannot_fill_the_disk(
    ledger: SqlLedger, location: LedgerLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_ledger, "MAX_REFUSALS_A_DAY", 3)
    for day in (1, 2):
        monkeypatch.setattr(clock, "now", lambda day=day: datetime(2030, 1, day, tzinfo=UTC))
        for user in ("alice", "bob"):
            for _ in range(5):
                ledger.refuse(user, "x" * 100_000, "0A000", "y" * 100_000)
    assert rows(location, "SELECT COUNT(*), MAX(LENGTH(sql)), MAX(LENGTH(message)) FROM refusals") == [(12, 2000, 2000)]
    assert ledger.verify() == []


def test_a_clock_set_back_changes_no_order_and_no_sum(
    location: LedgerLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(reopen(location, create=True)) as ledger:
        for year in (2030, 2001, 2029):
            monkeypatch.setattr(clock, "now", lambda year=year: datetime(year, 1, 1, tzinfo=UTC))
            ledger.charge("bob", [buy(year, 1)], sql=str(year))
            ledger.refuse("bob", str(year), "42501", "no")
        assert [entry.sql for entry in ledger.history()] == ["2029", "2001", "2030"]
        assert ledger.spent() == Price(3)
        assert ledger.verify() == []


# --- stored answers ---


def test_the_newest_answer_wins(ledger: SqlLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ledger.lookup(key(1)) is None
    ledger.store(key(1), b"old")
    monkeypatch.setattr(clock, "now", lambda: datetime(2001, 1, 1, tzinfo=UTC))  # whatever the clock says
    ledger.store(key(1), b"new\x00")
    ledger.store(key(2), b"")
    assert ledger.lookup(key(1)) == b"new\x00"
    assert ledger.lookup(key(2)) == b""
    assert ledger.lookup_all([key(1), key(2), key(3), key(1)]) == {key(1): b"new\x00", key(2): b""}
    assert ledger.lookup_all([]) == {}


def test_answers_expire_by_age_and_stay_expired(location: LedgerLocation, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = datetime(2030, 1, 10, tzinfo=UTC)

    def travel(days: float) -> None:
        monkeypatch.setattr(clock, "now", lambda: stored + timedelta(days=days))

    travel(0)
    with closing(reopen(location, create=True, replay_days=7)) as ledger:
        for number in (1, 2, 3):
            ledger.store(key(number), b"answer")
        for days in (7.0, 0.0, -1.0):  # a clock set back a little costs nobody an answer
            travel(days)
            assert ledger.lookup(key(1)) == b"answer"
        for number, days in ((1, 7.01), (2, -7.01)):  # one stored under a clock far ahead must not live for years
            travel(days)
            assert ledger.lookup(key(number)) is None
        travel(0)
        assert ledger.lookup(key(1)) is None
        assert ledger.lookup(key(2)) is None
        assert ledger.lookup(key(3)) == b"answer"
        ledger.store(key(1), b"again")
        assert ledger.lookup(key(1)) == b"again"


def test_without_a_limit_answers_never_expire(ledger: SqlLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger.store(key(1), b"answer")
    monkeypatch.setattr(clock, "now", lambda: datetime(9999, 1, 1, tzinfo=UTC))
    assert ledger.lookup(key(1)) == b"answer"


# --- which ledger ---


def test_a_missing_ledger_is_not_silently_replaced(location: LedgerLocation) -> None:
    with pytest.raises(PolicyError, match="missing") as refusal:
        reopen(location)
    assert "forget what was spent" in (refusal.value.detail or "")
    assert refusal.value.hint
    assert not (isinstance(location, Path) and location.exists())


def test_another_dataset_or_accounting_is_refused(ledger: SqlLedger, location: LedgerLocation) -> None:
    with pytest.raises(PolicyError, match="another dataset"):
        reopen(location, dataset="cars", total=Price(9, 9))
    with pytest.raises(PolicyError, match='accounting "zcdp", not "basic"'):
        reopen(location, accounting="basic", total=Price(9, 9))
    assert ledger.remaining("bob") == TOTAL


def test_an_older_copy_in_its_place_is_noticed(ledger: SqlLedger, location: LedgerLocation) -> None:
    """By those who have charged it: a restored backup, or a replica that lagged behind and took over."""
    ledger.charge("bob", [buy(1, 1)], sql="q")
    ledger.charge("bob", [buy(2, 1)], sql="q")
    tamper(
        location,
        "DELETE FROM paid WHERE charge = 2",
        *(["DELETE FROM attempts WHERE charge = 2"] if not isinstance(location, Path) else []),
        "DELETE FROM charges WHERE number = 2",
        "UPDATE accounts SET loss = 1",
    )
    assert ledger.verify() == []
    for purchase in (buy(3, 1), replay(1, 1)):
        with pytest.raises(OperationalError, match="has lost charges"):
            ledger.charge("bob", [purchase], sql="q")
    with pytest.raises(OperationalError, match="has lost charges"):
        ledger.store(key(1), b"answer")


def test_another_ledger_in_its_place_is_noticed(ledger: SqlLedger, location: LedgerLocation) -> None:
    tamper(location, "UPDATE ledger SET id = 'other'")
    with pytest.raises(OperationalError, match="replaced by another"):
        ledger.charge("bob", [buy(1, 1)], sql="q")


# --- tampering ---


@pytest.mark.parametrize("table", ["charges", "paid", "limits", "ledger", "accounts", "refusals"])
def test_the_storage_itself_forbids_to_change_the_past(ledger: SqlLedger, location: LedgerLocation, table: str) -> None:
    ledger.charge("bob", [buy(1, 10, 1)], sql="q")
    ledger.refuse("bob", "q", "42501", "no")
    before = rows(location, f"SELECT * FROM {table}")
    column = {
        "charges": "user_loss = 0",
        "paid": "\"user\" = 'eve'",
        "limits": "new_loss = 0",
        "ledger": "dataset = 'cars'",
        "accounts": "loss = 0",
        "refusals": "sql = ''",
    }
    for statement in (f"DELETE FROM {table}", f"UPDATE {table} SET {column[table]}"):
        assert refuses(location, statement)
    assert before
    assert rows(location, f"SELECT * FROM {table}") == before


@pytest.mark.parametrize(
    ("statement", "finding"),
    [
        ("UPDATE accounts SET loss = 0 WHERE subject = 'dataset'", "sum of dataset"),
        ("UPDATE accounts SET delta = 0 WHERE subject = 'user:bob'", "sum of user:bob"),
        ("DELETE FROM accounts WHERE subject = 'user:alice'", "sum of user:alice"),
        ("INSERT INTO accounts VALUES ('user:eve', 1, 0, NULL)", "sum of user:eve"),
        ("UPDATE charges SET sql = 'x' WHERE number = 2", "charge 2 was altered"),
        ("UPDATE charges SET at = '2001' WHERE number = 1", "charge 1 was altered"),
        ("UPDATE charges SET hash = x'00' WHERE number = 1", "charge 1 was altered"),
        ("DELETE FROM charges WHERE number = 1", "charge 1 is missing"),
        ("DELETE FROM charges WHERE number = 2", "charge 2 is missing"),
        ("DELETE FROM charges WHERE number = 3", "sum of dataset"),
        ("DELETE FROM paid WHERE charge = 2", "charge 2 was altered"),
        ("UPDATE paid SET \"user\" = 'eve' WHERE charge = 3", "charge 3"),
        ("INSERT INTO paid VALUES (x'07', 'eve', 1)", 'user "eve"'),
        ("UPDATE ledger SET created = '2001'", "charge 1 was altered"),
        ("DELETE FROM ledger", "charge 1 was altered"),
        ("UPDATE limits SET new_loss = 7 WHERE number = 1", "change 4 of the limit of dataset"),
        ("DELETE FROM limits WHERE number = 1", "change 4 of the limit of dataset"),
        ("DELETE FROM refusals WHERE number = 1", "refusal 1 is missing"),
    ],
)
def test_verify_notices(location: LedgerLocation, statement: str, finding: str) -> None:
    with closing(reopen(location, create=True)) as ledger:
        ledger.charge("alice", [buy(1, 10, 1)], sql="a")
        ledger.charge("bob", [replay(1, 10, 1), buy(2, 1, 1)], sql="b")
        ledger.charge("bob", [buy(3, 2)], sql="c")
        for sql in ("d", "e"):
            ledger.refuse("bob", sql, "42501", "no")
    with closing(reopen(location, total=Price(99, 9))) as ledger:
        assert ledger.verify() == []
        tamper(location, statement)
        assert any(finding in line for line in ledger.verify())


# --- failures ---


def test_a_failure_in_the_middle_changes_nothing(ledger: SqlLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(accounts, "_append", interrupt)
        with pytest.raises(KeyboardInterrupt):
            ledger.charge("bob", [buy(1, 1)], sql="q")
    assert ledger.spent() == Price()
    assert ledger.verify() == []
    assert ledger.charge("bob", [buy(1, 1)], sql="q").paid == Price(1)


def test_a_closed_ledger_refuses(ledger: SqlLedger) -> None:
    ledger.close()
    ledger.close()
    with pytest.raises(InterfaceError, match="closed"):
        ledger.charge("bob", [buy(1, 1)], sql="q")
    with pytest.raises(InterfaceError, match="closed"):
        ledger.spent()


# --- threads and forks ---


def test_many_threads_never_exceed_the_total(ledger: SqlLedger) -> None:
    def spend(worker: int) -> int:
        paid = 0
        with suppress(BudgetExhausted):
            for number in range(100):
                paid += ledger.charge("bob", [buy(100 * worker + number, 7)], sql="q").paid.loss
                ledger.store(key(worker), b"answer")
                assert ledger.lookup(key(worker)) == b"answer"
        return paid

    with ThreadPoolExecutor(8) as pool:
        paid = sum(pool.map(spend, range(8)))
    assert paid == 98
    assert ledger.spent() == Price(98)
    assert ledger.verify() == []


def in_child(work: Callable[[], object]) -> bool:
    """Run it in a fork of this process; whether it ended without an exception."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_fork_during_a_write_inherits_no_lock(ledger: SqlLedger) -> None:
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            ledger.store(key(1), b"answer")

    with ThreadPoolExecutor(2) as pool:
        workers = [pool.submit(write) for _ in range(2)]
        try:
            for number in range(10):
                assert in_child(lambda n=number: ledger.charge("bob", [buy(10 + n, 1)], sql="child"))  # type: ignore[misc]
        finally:
            stop.set()
        for worker in workers:
            worker.result()
    assert ledger.spent() == Price(10)
    assert ledger.verify() == []
