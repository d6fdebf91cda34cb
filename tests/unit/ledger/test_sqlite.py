"""Claims of the ledger in one process: who pays, who is refused, what is remembered, how it fails."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

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
from dpsql.ledger import Ledger, Purchase, sqlite
from dpsql.ledger.schema import MAX_GRAINS
from dpsql.ledger.sqlite import SqliteLedger
from dpsql.privacy.accounting import Price

TOTAL = Price(100, 10)
ALLOWANCES: dict[str, Price | None] = {"alice": Price(60, 10), "bob": None}


def key(number: int) -> bytes:
    return number.to_bytes(32, "big")


def buy(number: int, loss: int = 0, delta: int = 0) -> Purchase:
    return Purchase(key(number), Price(loss, delta), replay=False)


def replay(number: int, loss: int = 0, delta: int = 0) -> Purchase:
    return Purchase(key(number), Price(loss, delta), replay=True)


def reopen(
    path: Path,
    *,
    dataset: str = "people",
    accounting: str = "zcdp",
    total: Price = TOTAL,
    allowances: Mapping[str, Price | None] = ALLOWANCES,
    create: bool = False,
    replay_days: float | None = None,
) -> SqliteLedger:
    return SqliteLedger.open(
        path,
        dataset=dataset,
        accounting=accounting,
        total=total,
        allowances=allowances,
        create=create,
        replay_days=replay_days,
    )


def tamper(path: Path, *statements: str) -> None:
    """What somebody with a SQLite shell could do: triggers are no obstacle to them."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        for (trigger,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            db.execute(f"DROP TRIGGER {trigger}")
        for statement in statements:
            db.execute(statement)


def rows(path: Path, query: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as db:
        return db.execute(query).fetchall()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "people.ledger"


@pytest.fixture
def ledger(path: Path) -> Iterator[SqliteLedger]:
    with closing(reopen(path, create=True)) as ledger:
        yield ledger


# --- who pays ---


def test_it_is_a_ledger(ledger: SqliteLedger) -> None:
    promised: Ledger = ledger
    assert promised.verify() == []


def test_dataset_and_user_pay_the_sum_of_new_answers(ledger: SqliteLedger) -> None:
    assert ledger.charge("alice", [buy(1, 10, 1), buy(2, 5, 2)], sql="SELECT 1") == Price(15, 3)
    assert ledger.spent() == ledger.spent("alice") == Price(15, 3)
    assert ledger.spent("bob") == Price()


def test_an_answer_bought_again_is_paid_again(ledger: SqliteLedger) -> None:
    for _ in range(2):
        assert ledger.charge("alice", [buy(1, 10)], sql="q") == Price(10)
    assert ledger.spent() == Price(20)


def test_a_replay_is_free_for_the_dataset_and_for_who_paid(ledger: SqliteLedger) -> None:
    ledger.charge("alice", [buy(1, 10, 1)], sql="q")
    assert ledger.charge("alice", [replay(1, 10, 1)], sql="q") == Price()
    assert not ledger.has_paid("bob", key(1))
    assert ledger.charge("bob", [replay(1, 10, 1)], sql="q") == Price(10, 1)
    assert ledger.has_paid("bob", key(1))
    assert ledger.charge("bob", [replay(1, 10, 1)], sql="q") == Price()
    assert (ledger.spent(), ledger.spent("alice"), ledger.spent("bob")) == (Price(10, 1),) * 3


def test_an_answer_used_twice_in_one_query_is_paid_once(ledger: SqliteLedger) -> None:
    assert ledger.charge("alice", [buy(1, 10), replay(1, 10)], sql="q") == Price(10)
    assert ledger.charge("bob", [replay(1, 10), replay(1, 10)], sql="q") == Price(10)


def test_what_nobody_paid_for_cannot_be_replayed(ledger: SqliteLedger) -> None:
    with pytest.raises(InternalError):
        ledger.charge("alice", [buy(1, 10), replay(2, 10)], sql="q")
    assert ledger.spent() == Price()
    assert not ledger.has_paid("alice", key(1))


def test_a_free_question_leaves_no_row(ledger: SqliteLedger) -> None:
    ledger.charge("alice", [buy(1, 10)], sql="q")
    ledger.charge("alice", [replay(1, 10)], sql="q")
    ledger.charge("alice", [], sql="q")
    assert len(ledger.history()) == 1


# --- who is refused ---


def test_the_last_grain_can_be_spent_and_no_more(ledger: SqliteLedger) -> None:
    ledger.charge("bob", [buy(1, 100, 10)], sql="q")
    assert ledger.remaining("bob") == ledger.remaining("alice") == Price()
    for price in (Price(1), Price(0, 1)):
        with pytest.raises(BudgetExhausted):
            ledger.charge("bob", [Purchase(key(2), price, replay=False)], sql="q")


@pytest.mark.parametrize(
    ("price", "part"),
    [(Price(101), "more loss than"), (Price(0, 11), "more delta"), (Price(101, 11), "more loss and more delta")],
)
def test_a_refusal_names_account_and_part_and_changes_nothing(ledger: SqliteLedger, price: Price, part: str) -> None:
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


def test_the_allowance_of_a_user_is_a_limit_of_its_own(ledger: SqliteLedger) -> None:
    ledger.charge("alice", [buy(1, 60)], sql="q")
    with pytest.raises(BudgetExhausted) as refusal:
        ledger.charge("alice", [buy(2, 1)], sql="q")
    assert refusal.value.message == 'the allowance of user "alice" is exhausted'
    assert ledger.charge("bob", [buy(2, 40)], sql="q") == Price(40)


def test_a_replay_is_refused_only_by_the_own_allowance(path: Path) -> None:
    with closing(reopen(path, create=True)) as ledger:
        ledger.charge("bob", [buy(1, 100)], sql="q")
        with pytest.raises(BudgetExhausted, match="alice"):
            ledger.charge("alice", [replay(1, 100)], sql="q")
    # Also where the owner lowered the total below what was spent: what is out is out.
    with closing(reopen(path, total=Price(50, 5), allowances={"alice": Price(100)})) as ledger:
        assert ledger.charge("alice", [replay(1, 100)], sql="q") == Price(100)


def test_remaining_is_the_smaller_rest_of_each_component(path: Path) -> None:
    limits = {"alice": Price(60, 10), "bob": None, "carol": Price(500, 2)}
    with closing(reopen(path, create=True, allowances=limits)) as ledger:
        ledger.charge("alice", [buy(1, 20, 7)], sql="q")
        assert ledger.remaining("alice") == Price(40, 3)
        assert ledger.remaining("bob") == Price(80, 3)
        assert ledger.remaining("carol") == Price(80, 2)


@pytest.mark.parametrize("name", ["mallory", "", "dataset", "user:alice", "Alice", "x' OR '1'='1"])
def test_an_unknown_user_gets_nothing(ledger: SqliteLedger, name: str) -> None:
    with pytest.raises(UnknownUser):
        ledger.charge(name, [buy(1, 1)], sql="q")
    with pytest.raises(UnknownUser):
        ledger.remaining(name)
    assert ledger.spent() == Price()


@pytest.mark.parametrize("grains", [-1, 1.0, True, float("nan"), "1", MAX_GRAINS + 1, 10**400])
def test_a_price_that_is_no_price_is_refused_before_any_write(ledger: SqliteLedger, grains: Any) -> None:
    for price in ((grains, 0), (0, grains)):
        with pytest.raises((ValueError, TypeError, BadSetting)):
            ledger.charge("bob", [Purchase(key(1), Price(*price), replay=False)], sql="q")
    assert ledger.history() == []


def test_prices_that_overflow_together_are_refused(path: Path) -> None:
    with closing(reopen(path, create=True, total=Price(MAX_GRAINS))) as ledger:
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


def test_a_key_of_another_length_is_refused(ledger: SqliteLedger) -> None:
    with pytest.raises(InternalError):
        ledger.charge("bob", [Purchase(b"short", Price(1), replay=False)], sql="q")


# --- what is remembered ---


def test_everything_survives_closing(path: Path) -> None:
    with closing(reopen(path, create=True)) as ledger:
        ledger.charge("alice", [buy(1, 10, 1)], sql="q")
        ledger.store(key(1), b"answer")
    with closing(reopen(path, create=True)) as ledger:
        assert ledger.spent() == ledger.spent("alice") == Price(10, 1)
        assert ledger.has_paid("alice", key(1))
        assert ledger.lookup(key(1)) == b"answer"
        assert ledger.verify() == []


def test_history_is_newest_first(ledger: SqliteLedger) -> None:
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
    assert newest.sql == "SELECT 'ü', '\x00', '\\udc80'"
    assert datetime.fromisoformat(newest.time).utcoffset() == timedelta(0)
    assert ledger.history("alice") == [oldest]
    assert ledger.history(limit=1) == [newest]
    assert ledger.history(limit=0) == ledger.history(limit=-1) == ledger.history("mallory") == []
    assert ledger.verify() == []


def test_limits_come_from_the_policy_and_each_change_is_recorded(path: Path) -> None:
    changes = "SELECT subject, old_loss, old_delta, new_loss, new_delta FROM limits WHERE number > 3"
    with closing(reopen(path, create=True)) as ledger:
        ledger.charge("alice", [buy(1, 50)], sql="q")
    with closing(reopen(path)):
        assert rows(path, changes) == []
    with closing(reopen(path, total=Price(200, 10))) as ledger:
        assert rows(path, changes) == [("dataset", 100, 10, 200, 10)]
        assert ledger.remaining("bob") == Price(150, 10)
    with closing(reopen(path, total=Price(40, 10), allowances={"bob": Price(1, 1)})) as ledger:
        assert rows(path, changes)[1:] == [
            ("dataset", 200, 10, 40, 10),
            ("user:alice", 60, 10, None, None),
            ("user:bob", MAX_GRAINS, MAX_GRAINS, 1, 1),
        ]
        assert ledger.spent() == ledger.spent("alice") == Price(50)
        assert ledger.remaining("bob") == Price(0, 1)
        with pytest.raises(BudgetExhausted, match="dataset"):
            ledger.charge("bob", [buy(2, 1)], sql="q")
        with pytest.raises(UnknownUser):
            ledger.charge("alice", [buy(2, 1)], sql="q")
        assert ledger.verify() == []


def test_the_policy_opened_last_binds_all_who_have_it_open(ledger: SqliteLedger, path: Path) -> None:
    with closing(reopen(path, total=Price(5, 5))), pytest.raises(BudgetExhausted):
        ledger.charge("bob", [buy(1, 6)], sql="q")


def test_a_user_who_returns_finds_the_old_sum(path: Path) -> None:
    with closing(reopen(path, create=True)) as ledger:
        ledger.charge("alice", [buy(1, 50)], sql="q")
    with closing(reopen(path, allowances={"bob": None})):
        pass
    with closing(reopen(path)) as ledger:
        assert ledger.remaining("alice") == Price(10, 10)


# --- refusals ---


def test_refusals_are_recorded_and_cost_nothing(ledger: SqliteLedger, path: Path) -> None:
    ledger.refuse("alice", "SELECT name", "42501", "no")
    ledger.refuse("bob", "SELECT '\udc80\x00'", "53400", "exhausted")
    assert rows(path, "SELECT number, user, sql, sqlstate, message FROM refusals") == [
        (1, "alice", "SELECT name", "42501", "no"),
        (2, "bob", "SELECT '\\udc80\x00'", "53400", "exhausted"),
    ]
    assert ledger.spent() == Price()
    assert ledger.history() == []
    assert ledger.verify() == []


def test_only_known_users_leave_refusals(ledger: SqliteLedger, path: Path) -> None:
    with pytest.raises(UnknownUser):
        ledger.refuse("mallory", "SELECT 1", "42501", "no")
    assert rows(path, "SELECT * FROM refusals") == []


def test_refusals_cannot_fill_the_disk(ledger: SqliteLedger, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "MAX_REFUSALS_A_DAY", 3)
    for day in (1, 2):
        monkeypatch.setattr(sqlite, "_now", lambda day=day: datetime(2030, 1, day, tzinfo=UTC))
        for user in ("alice", "bob"):
            for _ in range(5):
                ledger.refuse(user, "x" * 100_000, "0A000", "y" * 100_000)
    assert rows(path, "SELECT COUNT(*), MAX(LENGTH(sql)), MAX(LENGTH(message)) FROM refusals") == [(12, 2000, 2000)]
    assert ledger.verify() == []


def as_format_1(path: Path) -> None:
    """What a ledger was before there were refusals."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("DROP TABLE refusals")
        db.execute("PRAGMA user_version = 1")


def test_an_older_ledger_is_brought_up_to_date_and_loses_nothing(path: Path) -> None:
    with closing(reopen(path, create=True)) as ledger:
        ledger.charge("alice", [buy(1, 10, 1)], sql="q")
    present = rows(path, "SELECT type, name, sql FROM sqlite_master ORDER BY name")
    as_format_1(path)
    with closing(reopen(path)) as ledger:
        assert ledger.spent("alice") == Price(10, 1)
        ledger.refuse("alice", "SELECT name", "42501", "no")
        assert ledger.verify() == []
    assert rows(path, "PRAGMA user_version") == [(2,)]
    assert rows(path, "SELECT COUNT(*) FROM refusals") == [(1,)]
    assert rows(path, "SELECT type, name, sql FROM sqlite_master ORDER BY name") == present


def test_an_older_ledger_of_another_dataset_is_left_alone(path: Path) -> None:
    reopen(path, create=True).close()
    as_format_1(path)
    with pytest.raises(PolicyError, match="another dataset"):
        reopen(path, dataset="cars")
    assert rows(path, "PRAGMA user_version") == [(1,)]


# --- stored answers ---


def test_the_newest_answer_wins(ledger: SqliteLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ledger.lookup(key(1)) is None
    ledger.store(key(1), b"old")
    monkeypatch.setattr(sqlite, "_now", lambda: datetime(2001, 1, 1, tzinfo=UTC))  # whatever the clock says
    ledger.store(key(1), b"new\x00")
    ledger.store(key(2), b"")
    assert ledger.lookup(key(1)) == b"new\x00"
    assert ledger.lookup(key(2)) == b""


def test_answers_expire_by_age_and_stay_expired(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = datetime(2030, 1, 10, tzinfo=UTC)

    def travel(days: float) -> None:
        monkeypatch.setattr(sqlite, "_now", lambda: stored + timedelta(days=days))

    travel(0)
    with closing(reopen(path, create=True, replay_days=7)) as ledger:
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


def test_without_a_limit_answers_never_expire(ledger: SqliteLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger.store(key(1), b"answer")
    monkeypatch.setattr(sqlite, "_now", lambda: datetime(9999, 1, 1, tzinfo=UTC))
    assert ledger.lookup(key(1)) == b"answer"


# --- which ledger ---


def test_a_missing_ledger_is_not_silently_replaced(path: Path) -> None:
    with pytest.raises(PolicyError, match="missing") as refusal:
        reopen(path)
    assert "forget what was spent" in (refusal.value.detail or "")
    assert refusal.value.hint
    assert not path.exists()


def test_another_dataset_or_accounting_is_refused(ledger: SqliteLedger, path: Path) -> None:
    with pytest.raises(PolicyError, match="another dataset"):
        reopen(path, dataset="cars", total=Price(9, 9))
    with pytest.raises(PolicyError, match='accounting "zcdp", not "basic"'):
        reopen(path, accounting="basic", total=Price(9, 9))
    assert ledger.remaining("bob") == TOTAL


def test_create_leaves_an_existing_ledger_and_no_litter(path: Path) -> None:
    with closing(reopen(path, create=True)) as ledger:
        ledger.charge("bob", [buy(1, 1)], sql="q")
    with closing(reopen(path, create=True)) as ledger:
        assert ledger.spent() == Price(1)
    assert os.listdir(path.parent) == [path.name]
    assert path.stat().st_mode & 0o077 == 0


def test_a_new_ledger_does_not_swallow_the_log_of_a_lost_one(ledger: SqliteLedger, path: Path) -> None:
    ledger.charge("bob", [buy(1, 1)], sql="q")
    path.unlink()
    with pytest.raises(PolicyError, match="write-ahead log"):
        reopen(path, create=True)
    assert not path.exists()


def test_a_ledger_cannot_be_created_in_no_directory(tmp_path: Path) -> None:
    with pytest.raises(OperationalError, match="cannot be created"):
        reopen(tmp_path / "nowhere" / "ledger", create=True)


@pytest.mark.parametrize("content", [b"", b"not a database " * 100])
def test_another_file_is_not_taken_for_a_ledger(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises((PolicyError, OperationalError), match=r"not a ledger|damaged"):
        reopen(path, create=True)
    assert path.read_bytes() == content


def test_another_database_or_format_is_not_taken_for_a_ledger(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE ledger (x)")
    with pytest.raises(PolicyError, match="not a ledger"):
        reopen(path, create=True)
    path.unlink()
    reopen(path, create=True).close()
    tamper(path, "PRAGMA user_version = 3")
    with pytest.raises(PolicyError, match="format 3"):
        reopen(path)


# --- tampering ---


@pytest.mark.parametrize("table", ["charges", "paid", "limits", "ledger", "accounts", "refusals"])
def test_the_file_itself_forbids_to_change_the_past(ledger: SqliteLedger, path: Path, table: str) -> None:
    ledger.charge("bob", [buy(1, 10, 1)], sql="q")
    ledger.refuse("bob", "q", "42501", "no")
    before = rows(path, f"SELECT * FROM {table}")
    column = {"charges": "user_loss", "paid": "user", "limits": "new_loss", "ledger": "dataset", "accounts": "loss"}
    column["refusals"] = "sql"
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        for statement in (f"DELETE FROM {table}", f"UPDATE {table} SET {column[table]} = 0"):
            with pytest.raises(sqlite3.IntegrityError):
                db.execute(statement)
    assert before
    assert rows(path, f"SELECT * FROM {table}") == before


def test_the_file_itself_forbids_to_replace_a_charge(ledger: SqliteLedger, path: Path) -> None:
    ledger.charge("bob", [buy(1, 10, 1)], sql="q")
    with closing(sqlite3.connect(path, isolation_level=None)) as db, pytest.raises(sqlite3.IntegrityError):
        db.execute("INSERT OR REPLACE INTO charges SELECT number, at, user, sql, 0, 0, 0, 0, hash FROM charges")
    ledger.refuse("bob", "q", "42501", "no")
    with closing(sqlite3.connect(path, isolation_level=None)) as db, pytest.raises(sqlite3.IntegrityError):
        db.execute("INSERT OR REPLACE INTO refusals SELECT number, at, user, '', sqlstate, message FROM refusals")


@pytest.mark.parametrize(
    ("statement", "finding"),
    [
        ("UPDATE accounts SET loss = 0 WHERE subject = 'dataset'", "sum of dataset"),
        ("UPDATE accounts SET delta = 0 WHERE subject = 'user:bob'", "sum of user:bob"),
        ("DELETE FROM accounts WHERE subject = 'user:alice'", "sum of user:alice"),
        ("INSERT INTO accounts VALUES ('user:eve', 1, 0)", "sum of user:eve"),
        ("UPDATE charges SET sql = 'x' WHERE number = 2", "charge 2 was altered"),
        ("UPDATE charges SET at = '2001' WHERE number = 1", "charge 1 was altered"),
        ("UPDATE charges SET hash = x'00' WHERE number = 1", "charge 1 was altered"),
        ("DELETE FROM charges WHERE number = 1", "charge 1 is missing"),
        ("DELETE FROM charges WHERE number = 2", "charge 2 is missing"),
        ("DELETE FROM charges WHERE number = 3", "sum of dataset"),
        ("DELETE FROM paid WHERE charge = 2", "charge 2 was altered"),
        ("UPDATE paid SET user = 'eve' WHERE charge = 3", "charge 3"),
        ("INSERT INTO paid VALUES (x'07', 'eve', 1)", 'user "eve"'),
        ("UPDATE ledger SET created = '2001'", "charge 1 was altered"),
        ("DELETE FROM ledger", "charge 1 was altered"),
        ("UPDATE limits SET new_loss = 7 WHERE number = 1", "change 4 of the limit of dataset"),
        ("DELETE FROM limits WHERE number = 1", "change 4 of the limit of dataset"),
        ("DELETE FROM refusals WHERE number = 1", "refusal 1 is missing"),
    ],
)
def test_verify_notices(path: Path, statement: str, finding: str) -> None:
    with closing(reopen(path, create=True)) as ledger:
        ledger.charge("alice", [buy(1, 10, 1)], sql="a")
        ledger.charge("bob", [replay(1, 10, 1), buy(2, 1, 1)], sql="b")
        ledger.charge("bob", [buy(3, 2)], sql="c")
        for sql in ("d", "e"):
            ledger.refuse("bob", sql, "42501", "no")
    with closing(reopen(path, total=Price(99, 9))) as ledger:
        assert ledger.verify() == []
        tamper(path, statement)
        assert any(finding in line for line in ledger.verify())


# --- failures ---


def test_a_locked_ledger_waits_and_then_says_so(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.05)
    with closing(reopen(path, create=True)) as ledger, closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(OperationalError, match="in use by another process"):
            ledger.charge("bob", [buy(1, 1)], sql="q")
        assert ledger.spent() == Price()  # reading does not wait
        other.execute("ROLLBACK")
        ledger.charge("bob", [buy(1, 1)], sql="q")


def test_a_locked_ledger_is_waited_for(ledger: SqliteLedger, path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        timer = threading.Timer(0.1, lambda: other.execute("ROLLBACK"))
        timer.start()
        assert ledger.charge("bob", [buy(1, 1)], sql="q") == Price(1)
        timer.join()


def sabotage(ledger: SqliteLedger, pragma: str) -> None:
    with ledger._connected() as db:
        db.execute(f"PRAGMA {pragma}")


@pytest.mark.parametrize(
    ("pragma", "sentence"),
    [("max_page_count = 1", "disk of the ledger is full"), ("query_only = ON", "cannot be opened for writing")],
)
def test_a_failing_disk_admits_nothing(ledger: SqliteLedger, path: Path, pragma: str, sentence: str) -> None:
    sabotage(ledger, pragma)
    with pytest.raises(OperationalError, match=sentence) as failure:
        ledger.charge("bob", [buy(1, 1)], sql="x" * 100_000)
    assert failure.value.sqlstate == "58000"
    with closing(reopen(path)) as other:
        assert other.spent() == other.spent("bob") == Price()
        assert other.history() == []
        assert other.verify() == []
        other.charge("bob", [buy(1, 1)], sql="q")  # no lock was left behind


def test_a_damaged_file_admits_nothing(path: Path) -> None:
    with closing(reopen(path, create=True)) as ledger:
        ledger.charge("bob", [buy(1, 1)], sql="q")
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    path.write_bytes(content)
    with pytest.raises(OperationalError, match="damaged") as failure:
        reopen(path)
    assert failure.value.sqlstate == "58000"


def test_a_failure_in_the_middle_changes_nothing(ledger: SqliteLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(sqlite, "_append", interrupt)
        with pytest.raises(KeyboardInterrupt):
            ledger.charge("bob", [buy(1, 1)], sql="q")
    assert ledger.spent() == Price()
    assert ledger.verify() == []
    assert ledger.charge("bob", [buy(1, 1)], sql="q") == Price(1)


@pytest.mark.parametrize("loss", [Path.unlink, lambda p: p.rename(p.with_name("away"))])
def test_a_file_that_lost_its_name_takes_no_charges(
    ledger: SqliteLedger, path: Path, loss: Callable[[Path], object]
) -> None:
    loss(path)
    with pytest.raises(OperationalError, match="moved, deleted or replaced"):
        ledger.charge("bob", [buy(1, 1)], sql="q")
    path.with_name("people.ledger-wal").unlink()
    with closing(reopen(path, create=True)), pytest.raises(OperationalError, match="moved, deleted or replaced"):
        ledger.charge("bob", [buy(1, 1)], sql="q")


def test_a_closed_ledger_refuses(ledger: SqliteLedger) -> None:
    ledger.close()
    ledger.close()
    with pytest.raises(InterfaceError, match="closed"):
        ledger.charge("bob", [buy(1, 1)], sql="q")
    with pytest.raises(InterfaceError, match="closed"):
        ledger.spent()


def test_a_charge_is_synced_before_it_is_acknowledged(ledger: SqliteLedger) -> None:
    with ledger._connected() as db:
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert db.execute("PRAGMA synchronous").fetchone() == (2,)


def test_the_log_does_not_grow_for_ever(ledger: SqliteLedger, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "CHECKPOINT_BYTES", 50_000)
    log = path.with_name("people.ledger-wal")
    for number in range(10):
        ledger.charge("bob", [buy(number, 1)], sql="x" * 40_000)
        assert log.stat().st_size < 200_000
    for number in range(10):
        ledger.store(key(number), bytes(40_000))
        assert log.stat().st_size < 200_000
    assert ledger.spent() == Price(10)
    assert ledger.verify() == []


# --- threads and forks ---


def test_many_threads_never_exceed_the_total(ledger: SqliteLedger) -> None:
    def spend(worker: int) -> int:
        paid = 0
        with suppress(BudgetExhausted):
            for number in range(100):
                paid += ledger.charge("bob", [buy(100 * worker + number, 7)], sql="q").loss
                ledger.store(key(worker), b"answer")
                assert ledger.lookup(key(worker)) == b"answer"
        return paid

    with ThreadPoolExecutor(8) as pool:
        paid = sum(pool.map(spend, range(8)))
    assert paid == 98
    assert ledger.spent() == Price(98)
    assert ledger.verify() == []


def test_a_thread_that_waits_too_long_is_told(ledger: SqliteLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.05)
    with ledger._connected(), ThreadPoolExecutor(1) as pool, pytest.raises(Error, match="in use"):
        pool.submit(ledger.spent).result()


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
def test_a_fork_shares_the_ledger_but_no_connection(ledger: SqliteLedger) -> None:
    ledger.charge("bob", [buy(1, 1)], sql="parent")

    def child() -> None:
        assert ledger._connection is None
        ledger.charge("bob", [buy(2, 1)], sql="child")
        ledger.close()

    assert ledger._connection is not None
    assert in_child(child)
    ledger.charge("bob", [buy(3, 1)], sql="parent")
    assert [entry.sql for entry in ledger.history()] == ["parent", "child", "parent"]
    assert ledger.verify() == []


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_fork_during_a_write_inherits_no_lock(ledger: SqliteLedger) -> None:
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
