"""Claims of a ledger that counts pure answers twice: in rho beside all others, and in epsilon among themselves."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from dpsql.errors import BudgetExhausted, InternalError, PolicyError
from dpsql.ledger import Closing, Purchase, Unanswered
from dpsql.ledger.migrate import move_ledger
from dpsql.ledger.reading import Books
from dpsql.ledger.schema import FORMAT
from dpsql.ledger.sql_ledger import SqlLedger
from dpsql.policy.address import PostgresAddress
from dpsql.policy.model import LedgerLocation
from dpsql.privacy.accounting import LOSS_UNIT, Price, pure_price
from tests.ledger_places import Server, buy, key, refuses, reopen, replay, rows, shell, tamper

ONE = LOSS_UNIT.denominator
TOTAL = Price(ONE // 50, 10, ONE)  # rho 0.02, or epsilon 1
USERS: dict[str, Price | None] = {"alice": None, "bob": None, "carol": Price(ONE // 50, 10, ONE // 4)}
HERE = Path(__file__).parent


def buy_pure(number: int, epsilon: int) -> Purchase:
    return Purchase(key(number), pure_price([epsilon]), replay=False)


@pytest.fixture
def ledger(location: LedgerLocation) -> Iterator[SqlLedger]:
    with closing(reopen(location, create=True, total=TOTAL, allowances=USERS)) as ledger:
        yield ledger


# --- what is admitted ---


def test_pure_answers_fit_up_to_their_own_total_whatever_their_rho(ledger: SqlLedger) -> None:
    for number in range(4):
        ledger.charge("alice", [buy_pure(number, ONE // 4)], sql="q")
    assert ledger.spent() == Price(4 * (ONE // 32), 0, ONE)
    assert ledger.spent().loss > TOTAL.loss
    with pytest.raises(BudgetExhausted):
        ledger.charge("alice", [buy_pure(5, 1)], sql="q")
    assert ledger.verify() == []


def test_a_grain_too_much_is_refused(ledger: SqlLedger) -> None:
    with pytest.raises(BudgetExhausted):
        ledger.charge("alice", [buy_pure(1, ONE + 1)], sql="q")
    ledger.charge("alice", [buy_pure(1, ONE)], sql="q")


def test_after_others_pure_answers_pay_with_their_rho(ledger: SqlLedger) -> None:
    ledger.charge("alice", [buy(1, 5)], sql="q")
    with pytest.raises(BudgetExhausted):
        ledger.charge("alice", [buy_pure(2, ONE // 4)], sql="q")
    ledger.charge("alice", [buy_pure(3, ONE // 10)], sql="q")
    assert ledger.spent() == Price(5 + ONE // 200, 0, None)


def test_with_rho_overdrawn_nothing_else_follows(ledger: SqlLedger) -> None:
    ledger.charge("alice", [buy_pure(1, ONE // 2)], sql="q")
    for other in (buy(2, 1), buy(2, 0, 1)):
        with pytest.raises(BudgetExhausted):
            ledger.charge("alice", [other], sql="q")
        with pytest.raises(BudgetExhausted):
            ledger.charge("alice", [buy_pure(3, 1), other], sql="q")
    assert ledger.charge("alice", [buy_pure(2, ONE // 2)], sql="q").paid.pure == ONE // 2


def test_a_session_may_use_both_sides_and_end_on_either(ledger: SqlLedger) -> None:
    ledger.charge("alice", [buy_pure(1, ONE // 10)], sql="q")  # rho 0.005
    ledger.charge("bob", [buy(2, ONE // 200, 1)], sql="q")
    assert ledger.spent() == Price(ONE // 100, 1, None)
    assert ledger.spent("alice").pure == ONE // 10
    ledger.charge("alice", [buy_pure(3, ONE // 10), buy(4, ONE // 200)], sql="q")
    assert ledger.spent().loss == TOTAL.loss
    with pytest.raises(BudgetExhausted):
        ledger.charge("bob", [buy_pure(5, 1)], sql="q")


def test_without_the_owners_word_only_rho_counts(location: LedgerLocation) -> None:
    with closing(reopen(location, create=True, total=Price(TOTAL.loss, 10), allowances=USERS)) as ledger:
        with pytest.raises(BudgetExhausted):
            ledger.charge("alice", [buy_pure(1, ONE // 4)], sql="q")
        ledger.charge("alice", [buy_pure(1, ONE // 5)], sql="q")
        assert ledger.remaining("alice") == Price(0, 10)
    with closing(reopen(location, total=TOTAL, allowances=USERS)) as ledger:
        assert ledger.remaining("alice").pure == ONE - ONE // 5


def test_a_user_has_the_same_choice_of_the_own_allowance(ledger: SqlLedger) -> None:
    ledger.charge("carol", [buy_pure(1, ONE // 4)], sql="q")  # more than rho 0.02
    assert ledger.remaining("carol") == Price()
    with pytest.raises(BudgetExhausted, match="carol"):
        ledger.charge("carol", [buy_pure(2, 1)], sql="q")
    assert ledger.remaining("alice").pure == ONE - ONE // 4
    ledger.charge("alice", [buy_pure(2, ONE // 4)], sql="q")


def test_a_replay_is_pure_for_the_user_only_if_the_answer_was(ledger: SqlLedger) -> None:
    ledger.charge("alice", [buy_pure(1, ONE // 100)], sql="q")
    ledger.charge("alice", [buy(2, 5)], sql="q")
    ledger.charge("bob", [Purchase(key(1), pure_price([ONE // 100]), replay=True)], sql="q")
    assert ledger.spent("bob").pure == ONE // 100
    ledger.charge("bob", [replay(2, 5)], sql="q")
    assert ledger.spent("bob").pure is None
    assert ledger.verify() == []


def test_what_is_left_where_a_user_and_the_dataset_are_on_different_sides(ledger: SqlLedger) -> None:
    ledger.charge("carol", [buy_pure(1, ONE // 5 - 1)], sql="q")
    ledger.charge("carol", [buy_pure(2, 10**8)], sql="q")
    with closing(reopen(ledger._location, total=Price(ONE, 10, ONE), allowances=USERS)) as wider:  # type: ignore[arg-type]
        wider.charge("alice", [buy(3, 1)], sql="q")  # no longer pure for the dataset, which has rho enough
        left = wider.remaining("carol")
        assert left.pure == ONE // 4 - (ONE // 5 - 1) - 10**8
        wider.charge("carol", [buy_pure(4, left.pure)], sql="q")


@pytest.mark.parametrize("price", [Price(1, 0, 0), Price(1, 1, 1), Price(0, 0, 1)])
def test_a_price_that_no_pure_answer_has_is_a_defect(ledger: SqlLedger, price: Price) -> None:
    with pytest.raises(InternalError):
        ledger.charge("alice", [Purchase(key(1), price, replay=False)], sql="q")


# --- what would end ---


def test_a_purchase_says_before_which_way_to_pay_it_ends(ledger: SqlLedger) -> None:
    assert ledger.closing("alice", [buy_pure(1, ONE // 10)]) == []
    assert ledger.closing("alice", [buy_pure(1, ONE // 4)]) == [Closing(None, "others")]
    assert ledger.closing("carol", [buy_pure(1, ONE // 4)]) == [Closing(None, "others"), Closing("carol", "others")]
    assert ledger.closing("alice", [buy(1, 5)]) == [Closing(None, "pure")]
    assert ledger.closing("alice", [buy_pure(1, 2 * ONE)]) == []  # cannot be paid
    ledger.charge("alice", [buy(1, 5)], sql="q")
    assert ledger.closing("alice", [buy(2, 5)]) == []
    assert ledger.closing("alice", [replay(1, 5)]) == []


# --- what is recorded ---


def test_charges_and_limits_are_written_and_read_with_what_is_pure(location: LedgerLocation, ledger: SqlLedger) -> None:
    ledger.charge("alice", [buy_pure(1, ONE // 4)], sql="q")
    (entry,) = ledger.history()
    assert entry.dataset_price == entry.user_price == pure_price([ONE // 4])
    with Books.read(location, dataset="people", accounting="zcdp") as books:
        assert books.log() == [entry]
        assert books.spent()[None] == pure_price([ONE // 4])
        assert books.limit_changes()[0].new == TOTAL
        assert books.verify() == []


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE charges SET dataset_pure = NULL",
        "UPDATE charges SET user_pure = 7",
        "UPDATE charges SET dataset_pure = NULL, user_pure = NULL",
        "UPDATE accounts SET pure = NULL",
        "UPDATE accounts SET pure = 7 WHERE subject = 'dataset'",
        "UPDATE limits SET old_pure = 7 WHERE number = 1",
    ],
)
def test_it_is_seen_when_it_was_altered(location: LedgerLocation, ledger: SqlLedger, statement: str) -> None:
    ledger.charge("alice", [buy_pure(1, ONE // 4)], sql="q")
    tamper(location, statement)
    assert ledger.verify() != []


def test_who_alters_the_sums_too_breaks_the_chain(location: LedgerLocation, ledger: SqlLedger) -> None:
    ledger.charge("alice", [buy_pure(1, ONE // 4)], sql="q")
    tamper(location, "UPDATE charges SET dataset_pure = 7, user_pure = 7", "UPDATE accounts SET pure = 7")
    assert ledger.verify() == ["charge 1 was altered, or one before it removed"]


@pytest.mark.parametrize(
    "change",
    [
        "pure = pure - 1",
        "loss = loss + 1",  # by a writer that knows nothing of pure answers
        "delta = delta + 1",
    ],
)
def test_the_storage_keeps_sums_pure_or_not(location: LedgerLocation, ledger: SqlLedger, change: str) -> None:
    ledger.charge("alice", [buy_pure(1, ONE // 4)], sql="q")
    assert refuses(location, f"UPDATE accounts SET {change} WHERE subject = 'dataset'")


def test_the_storage_does_not_make_a_sum_pure_again(location: LedgerLocation, ledger: SqlLedger) -> None:
    ledger.charge("alice", [buy(1, 5)], sql="q")
    assert refuses(location, "UPDATE accounts SET pure = 5, loss = loss + 1 WHERE subject = 'dataset'")


# --- ledgers from before ---


@pytest.fixture
def old(location: LedgerLocation) -> LedgerLocation:
    """A ledger that the version before has written: alice bought (10, 1), and bob looked at it and bought 5."""
    if isinstance(location, Path):
        with closing(sqlite3.connect(location)) as db:
            db.executescript((HERE / "format_3.sql").read_text())
    else:
        with closing(psycopg.connect(location.url, autocommit=True)) as server:
            server.execute((HERE / "format_3_server.sql").read_text().encode())
    return location


def test_what_was_paid_before_is_not_pure(old: LedgerLocation) -> None:
    with Books.read(old, dataset="people", accounting="zcdp") as books:
        assert books.spent() == {None: Price(15, 1), "alice": Price(10, 1), "bob": Price(15, 1)}
        assert [entry.sql for entry in books.log()][:2] == [
            "SELECT COUNT(*) FROM people",
            "SELECT AVG(age) FROM people",
        ]
        assert [change.new for change in books.limit_changes()][:2] == [Price(100, 10), Price(60, 10)]
        assert books.verify() == []
    with closing(reopen(old, total=TOTAL, allowances=USERS)) as ledger:
        assert ledger.verify() == []
        assert (ledger.spent(), ledger.spent("alice"), ledger.spent("bob")) == (
            Price(15, 1),
            Price(10, 1),
            Price(15, 1),
        )
        assert ledger.remaining("alice") == Price(TOTAL.loss - 15, 9)
        assert ledger.lookup(key(1)) == b"an answer"
        with pytest.raises(BudgetExhausted):
            ledger.charge("alice", [buy_pure(3, ONE // 4)], sql="q")
        ledger.charge("alice", [buy_pure(3, ONE // 10)], sql="q")
        ledger.charge("alice", [replay(1, 10, 1)], sql="q")
        assert ledger.spent().pure is None
        assert ledger.verify() == []
    assert refuses(old, "UPDATE accounts SET pure = 5, loss = loss + 1 WHERE subject = 'dataset'")


def test_opening_an_old_ledger_changes_no_limit(old: LedgerLocation) -> None:
    reopen(old).close()
    assert rows(old, "SELECT COUNT(*) FROM limits") == [(3,)]


def test_an_old_ledger_can_be_moved(old: LedgerLocation, tmp_path: Path) -> None:
    arrived = move_ledger(old, tmp_path / "new", dataset="people", accounting="zcdp")
    assert arrived.charges == 2
    with closing(reopen(tmp_path / "new", total=TOTAL, allowances=USERS)) as ledger:
        assert ledger.spent() == Price(15, 1)
        assert ledger.verify() == []


def test_a_writer_of_the_version_before_cannot_go_on(ledger_server: Server) -> None:
    """PostgreSQL takes rows without their last columns: what such a writer buys must not seem to be free."""
    address = ledger_server.empty_database()
    with closing(reopen(address, create=True, total=TOTAL, allowances=USERS)) as ledger:
        ledger.charge("alice", [buy_pure(1, ONE // 4)], sql="q")
    with closing(shell(address)) as before, pytest.raises(psycopg.errors.RaiseException):
        before.execute(
            "INSERT INTO accounts VALUES ('dataset', 5000000000000000, 0)"
            " ON CONFLICT (subject) DO UPDATE SET loss = excluded.loss, delta = excluded.delta"
        )


def test_who_may_not_change_the_tables_is_told_who_may(ledger_server: Server) -> None:
    address = ledger_server.empty_database()
    with closing(psycopg.connect(address.url, autocommit=True)) as server:
        server.execute((HERE / "format_3_server.sql").read_text().encode())
        server.execute("CREATE ROLE reader LOGIN")
        server.execute("GRANT USAGE ON SCHEMA dpsql_ledger TO reader")
        server.execute("GRANT ALL ON ALL TABLES IN SCHEMA dpsql_ledger TO reader")
    try:
        with pytest.raises(PolicyError, match="has format 3") as refusal:
            reopen(PostgresAddress(address.url.replace("postgres:secret@", "reader:secret@")))
        assert "role that owns" in (refusal.value.hint or "")
        assert rows(address, "SELECT MAX(format) FROM formats") == [(3,)]
        reopen(address).close()
        assert rows(address, "SELECT MAX(format) FROM formats") == [(FORMAT,)]
        # Who could charge before can charge now, and use the tables that are new.
        with closing(reopen(PostgresAddress(address.url.replace("postgres:secret@", "reader:secret@")))) as ledger:
            number = ledger.charge("bob", [buy(7, 1)], sql="q").number
            assert number is not None
            ledger.fail([Unanswered(key(7), Price(1), number, 1, "an instance")])
            assert ledger.paid_attempt(key(7), Price(1)) is not None
    finally:
        with closing(shell(address)) as server:
            server.execute("DROP OWNED BY reader")
            server.execute("DROP ROLE reader")
