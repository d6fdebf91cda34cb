"""A ledger knows whom it protects: other units are refused until the owner accepts them, and nothing is charged so."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from multiprocessing import get_context
from pathlib import Path

import psycopg
import pytest

from dpsql.errors import InternalError, OperationalError, PolicyError
from dpsql.ledger.migrate import move_ledger
from dpsql.ledger.protections import Since, since
from dpsql.ledger.reading import Books
from dpsql.ledger.sql_ledger import SqlLedger
from dpsql.policy.address import PostgresAddress
from dpsql.policy.model import LedgerLocation
from dpsql.policy.protection import Protection
from dpsql.privacy.accounting import Price
from tests.ledger_places import PROTECTION, Server, buy, refuses, reopen, replay, rows, shell, tamper

HERE = Path(__file__).parent
PEOPLE, TOWNS, VISITS = ("main", "people"), ("main", "towns"), ("main", "visits")
BY_HOUSEHOLD = '[{"columns": ["household"], "path": []}]'
BY_REFERENCE = '[{"columns": ["id"], "path": [{"key": ["id"], "table": ["main", "people"], "via": ["person"]}]}]'


def declared(changes: dict[tuple[str, ...], str | None]) -> Protection:
    units = {**PROTECTION.units, **changes}
    return Protection({subject: text for subject, text in units.items() if text is not None})


HOUSEHOLDS = declared({PEOPLE: BY_HOUSEHOLD})


def counts_since(location: LedgerLocation) -> Since | None:
    with Books.read(location, dataset="people", accounting="zcdp") as books:
        assert books.verify() == []
        return since(books.protections())


@pytest.fixture
def charged(location: LedgerLocation) -> LedgerLocation:
    with closing(reopen(location, create=True)) as ledger:
        assert not ledger.adopted
        ledger.charge("alice", [buy(1, 10, 1)], sql="q")
    return location


# --- what is a change ---


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({PEOPLE: BY_HOUSEHOLD}, 'unit "id" in the ledger, unit "household" in the policy'),
        ({PEOPLE: BY_REFERENCE}, 'unit "id" in the ledger, unit "person → main.people.id → id" in the policy'),
        ({PEOPLE: "[]"}, 'Table "main.people": unit "id" in the ledger, public in the policy'),
        ({TOWNS: '[{"columns": ["id"], "path": []}]'}, 'public in the ledger, unit "id" in the policy'),
        ({(): '["text"]'}, "The kind of unit: integer in the ledger, text in the policy"),
    ],
)
def test_other_units_are_refused_and_change_nothing(
    charged: LedgerLocation, changes: dict[tuple[str, ...], str | None], sentence: str
) -> None:
    before = rows(charged, "SELECT number, at, charges, subject, units FROM protections ORDER BY number")
    with pytest.raises(PolicyError, match="protects a different unit than the ledger") as refusal:
        reopen(charged, protection=declared(changes), total=Price(1_000))
    assert sentence in (refusal.value.detail or "")
    assert "dpsql ledger protect" in (refusal.value.hint or "")
    assert rows(charged, "SELECT number, at, charges, subject, units FROM protections ORDER BY number") == before
    assert rows(charged, "SELECT COUNT(*) FROM limits") == [(3,)]
    reopen(charged).close()
    assert counts_since(charged) is None


def test_a_table_that_is_new_is_recorded_and_one_that_is_gone_remembered(charged: LedgerLocation) -> None:
    reopen(charged, protection=declared({VISITS: BY_REFERENCE, PEOPLE: None})).close()
    reopen(charged).close()
    assert counts_since(charged) is None
    assert rows(charged, "SELECT charges FROM protections ORDER BY number") == [(0,), (0,), (0,), (1,)]
    for other in (declared({VISITS: BY_HOUSEHOLD}), declared({VISITS: "[]", PEOPLE: None})):
        with pytest.raises(PolicyError, match="protects a different unit"):
            reopen(charged, protection=other)


def test_the_same_policy_again_records_nothing(charged: LedgerLocation) -> None:
    reopen(charged).close()
    reopen(charged, accept_units=True).close()
    assert rows(charged, "SELECT COUNT(*) FROM protections") == [(3,)]


# --- what the owner accepts ---


def test_what_is_accepted_counts_from_then_on(charged: LedgerLocation) -> None:
    with closing(reopen(charged, protection=HOUSEHOLDS, accept_units=True)) as ledger:
        ledger.charge("alice", [buy(2, 5)], sql="q")
        assert ledger.spent() == Price(15, 1)  # nothing is given back
        assert ledger.verify() == []
    found = counts_since(charged)
    assert found is not None
    assert found.charges == 1
    assert [(each.subject, each.before) for each in found.changed] == [(PEOPLE, PROTECTION.units[PEOPLE])]
    with Books.read(charged, dataset="people", accounting="zcdp") as books:
        assert books.spent_before(found.charges) == Price(10, 1)
    with pytest.raises(PolicyError, match="protects a different unit"):
        reopen(charged)
    reopen(charged, accept_units=True).close()
    assert (again := counts_since(charged)) is not None
    assert again.charges == 2


def test_who_still_has_the_old_policy_charges_no_more(charged: LedgerLocation) -> None:
    with closing(reopen(charged)) as running, closing(reopen(charged)) as other:
        reopen(charged, protection=declared({VISITS: BY_REFERENCE})).close()
        running.charge("alice", [buy(2, 5)], sql="q")  # a further table is no matter
        reopen(charged, protection=HOUSEHOLDS, accept_units=True).close()
        for ledger in (running, other):
            for purchase in (buy(3, 5), replay(1, 10, 1)):
                with pytest.raises(OperationalError, match="changed the unit of privacy"):
                    ledger.charge("alice", [purchase], sql="q")
        assert running.spent() == Price(15, 1)


def test_a_ledger_that_was_opened_for_its_limits_cannot_be_charged(charged: LedgerLocation) -> None:
    with closing(reopen(charged, protection=None, total=Price(200, 10))) as ledger:
        assert ledger.spent() == Price(10, 1)
        with pytest.raises(InternalError):
            ledger.charge("alice", [buy(2, 5)], sql="q")
    assert rows(charged, "SELECT MAX(new_loss) FROM limits WHERE subject = 'dataset'") == [(200,)]


def open_in_turn(location: LedgerLocation) -> None:
    for number in range(5):
        with closing(reopen(location, protection=declared({("main", f"t{number}"): "[]"}))) as ledger:
            ledger.charge("bob", [buy(1, 1)], sql="q")


def test_processes_that_open_at_once_record_each_table_once(location: LedgerLocation) -> None:
    reopen(location, create=True, protection=Protection()).close()
    with ProcessPoolExecutor(4, mp_context=get_context("spawn")) as pool:
        for process in [pool.submit(open_in_turn, location) for _ in range(4)]:
            process.result()
    assert rows(location, "SELECT COUNT(*), COUNT(DISTINCT subject) FROM protections") == [(8, 8)]
    assert counts_since(location) is None


# --- what storage and verification hold ---


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE protections SET units = '[]'",
        "DELETE FROM protections",
        "INSERT INTO protections SELECT 9, at, charges, subject, '[]', hash FROM protections WHERE number = 1",
        # By a writer that knows nothing of protections, and by one that names another.
        'INSERT INTO charges SELECT 2, at, "user", sql, 0, 0, 0, 0, hash, NULL, NULL, NULL FROM charges',
        'INSERT INTO charges SELECT 2, at, "user", sql, 0, 0, 0, 0, hash, NULL, NULL, 2 FROM charges',
    ],
)
def test_the_storage_keeps_it(charged: LedgerLocation, statement: str) -> None:
    assert refuses(charged, statement)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE protections SET units = '[]' WHERE number = 2",
        "UPDATE protections SET at = '2000'",
        "UPDATE protections SET charges = 1",
        "UPDATE charges SET protection = NULL",
        "UPDATE charges SET protection = 1",
        "DELETE FROM protections WHERE number = 1",
        "DELETE FROM protections WHERE number = 3",
    ],
)
def test_it_is_seen_when_it_was_altered(charged: LedgerLocation, statement: str) -> None:
    tamper(charged, statement)
    with Books.read(charged, dataset="people", accounting="zcdp") as books:
        assert books.verify() != []


def test_a_writer_of_the_version_before_cannot_go_on(ledger_server: Server) -> None:
    """PostgreSQL takes rows without their last column."""
    address = ledger_server.empty_database()
    reopen(address, create=True).close()
    with closing(shell(address)) as before, pytest.raises(psycopg.errors.RaiseException, match="protects other units"):
        before.execute("INSERT INTO charges VALUES (1, 'now', 'alice', 'q', 1, 0, 1, 0, '\\x00', NULL, NULL)")


def test_it_moves_with_the_ledger(charged: LedgerLocation, tmp_path: Path) -> None:
    with closing(reopen(charged, protection=HOUSEHOLDS, accept_units=True)) as ledger:
        ledger.charge("alice", [buy(2, 5)], sql="q")
    move_ledger(charged, tmp_path / "new", dataset="people", accounting="zcdp")
    with pytest.raises(PolicyError, match="protects a different unit"):
        reopen(tmp_path / "new")
    with closing(reopen(tmp_path / "new", protection=HOUSEHOLDS)) as ledger:
        ledger.charge("alice", [buy(3, 5)], sql="q")
        assert ledger.verify() == []
    assert (found := counts_since(tmp_path / "new")) is not None
    assert found.charges == 1


# --- ledgers from before ---


@pytest.fixture(params=[3, 4])
def old(request: pytest.FixtureRequest, location: LedgerLocation) -> LedgerLocation:
    if isinstance(location, Path):
        with closing(sqlite3.connect(location)) as db:
            db.executescript((HERE / f"format_{request.param}.sql").read_text())
    else:
        with closing(psycopg.connect(location.url, autocommit=True)) as server:
            server.execute((HERE / f"format_{request.param}_server.sql").read_text().encode())
    return location


def opened_first(old: LedgerLocation) -> SqlLedger:
    assert counts_since(old) is None  # nothing is known of it
    return reopen(old)


def test_an_old_ledger_adopts_what_the_policy_says(old: LedgerLocation) -> None:
    with closing(opened_first(old)) as ledger:
        assert ledger.adopted
        (charges,) = rows(old, "SELECT COUNT(*) FROM charges")[0]
        ledger.charge("alice", [buy(9, 5)], sql="q")
        assert ledger.verify() == []
    found = counts_since(old)
    assert found is not None
    assert (found.charges, found.changed) == (charges, ())
    with pytest.raises(PolicyError, match="protects a different unit"):
        reopen(old, protection=HOUSEHOLDS)
    with closing(reopen(old)) as ledger:
        assert not ledger.adopted


def test_limits_alone_adopt_nothing(old: LedgerLocation) -> None:
    reopen(old, protection=None).close()
    assert rows(old, "SELECT COUNT(*) FROM protections") == [(0,)]
    with closing(reopen(old)) as ledger:
        assert ledger.adopted


def test_an_old_ledger_can_be_moved(old: LedgerLocation, tmp_path: Path) -> None:
    move_ledger(old, tmp_path / "new", dataset="people", accounting="zcdp")
    with closing(reopen(tmp_path / "new")) as ledger:
        assert ledger.adopted
        assert ledger.verify() == []


def test_proxies_of_an_upgraded_server_may_go_on(ledger_server: Server) -> None:
    """They were granted rights on the tables of then."""
    address = ledger_server.empty_database()
    with closing(psycopg.connect(address.url, autocommit=True)) as server:
        server.execute((HERE / "format_4_server.sql").read_text().encode())
        server.execute('CREATE ROLE "the proxy" LOGIN')
        server.execute('GRANT USAGE ON SCHEMA dpsql_ledger TO "the proxy"')
        server.execute('GRANT SELECT ON ALL TABLES IN SCHEMA dpsql_ledger TO "the proxy"')
        server.execute('GRANT INSERT ON ALL TABLES IN SCHEMA dpsql_ledger TO "the proxy"')
        server.execute('GRANT UPDATE ON dpsql_ledger.accounts TO "the proxy"')
    try:
        reopen(address, protection=None).close()
        with closing(reopen(PostgresAddress(address.url.replace("postgres:secret@", "the%20proxy:secret@")))) as ledger:
            ledger.charge("bob", [buy(9, 5)], sql="q")
            assert ledger.verify() == []
    finally:
        with closing(shell(address)) as server:
            server.execute('DROP OWNED BY "the proxy"')
            server.execute('DROP ROLE "the proxy"')
