"""Claims of a ledger on a server: no charge is lost or doubled when the wire breaks, and nobody weakens it unseen."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from dpsql.errors import OperationalError, PolicyError
from dpsql.ledger import postgres, sql_ledger
from dpsql.ledger import postgres_connections as connections
from dpsql.ledger.database import Database
from dpsql.ledger.identity import Standing, standing
from dpsql.ledger.postgres import PostgresLedger
from dpsql.ledger.reading import Books
from dpsql.ledger.schema import FORMAT, TABLES
from dpsql.policy.address import PostgresAddress
from dpsql.privacy.accounting import Price
from tests.cut_wire import Fault, Wire
from tests.ledger.test_ledger import in_child
from tests.ledger_places import Server, buy, key, reopen, replay, rows, shell


@pytest.fixture
def address(ledger_server: Server) -> PostgresAddress:
    return ledger_server.empty_database()


def opened(address: PostgresAddress, *, create: bool = False) -> PostgresLedger:
    ledger = reopen(address, create=create)
    assert isinstance(ledger, PostgresLedger)
    return ledger


@pytest.fixture
def ledger(address: PostgresAddress) -> Iterator[PostgresLedger]:
    with closing(opened(address, create=True)) as ledger:
        yield ledger


@pytest.fixture
def wire(ledger: PostgresLedger, address: PostgresAddress) -> Iterator[Wire]:
    with closing(Wire(address)) as wire:
        yield wire


@pytest.fixture(scope="module")
def own_server() -> Iterator[Server]:
    """One that may be stopped and configured, by tests that leave it running as they found it."""
    with closing(Server()) as server:
        yield server


# --- messages ---


def test_a_charge_takes_four_messages(ledger: PostgresLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[bytes] = []
    execute: Any = psycopg.Connection.execute

    def watched(self: Any, query: bytes, *more: Any) -> Any:
        sent.append(query)
        return execute(self, query, *more)

    ledger.charge("bob", [buy(3, 1)], sql="the first one looks where the chain begins")
    monkeypatch.setattr(psycopg.Connection, "execute", watched)
    ledger.charge("bob", [buy(1, 7, 1), buy(2, 1)], sql="50 % of 'it' \\ \n é; COMMIT")
    assert len(sent) == 4 and sent[0].startswith(b"BEGIN") and sent[-1].endswith(b";\nCOMMIT")
    assert [entry.sql for entry in ledger.history(limit=1)] == ["50 % of 'it' \\ \n é; COMMIT"]
    assert ledger.verify() == []


def test_a_write_that_the_server_refuses_is_not_committed(address: PostgresAddress, ledger: PostgresLedger) -> None:
    """It is noticed late, with the next message; what stands behind it is not done."""

    def write(db: Database) -> None:
        db.execute("UPDATE accounts SET loss = ? WHERE subject = ?", (5, "user:bob"))
        db.execute("UPDATE charges SET sql = ?", ("another",))

    ledger.charge("bob", [buy(1, 7)], sql="q")
    with pytest.raises(OperationalError, match="the ledger failed"):
        ledger._write(write)
    assert ledger.spent("bob") == Price(7)
    assert ledger.verify() == []


# --- a COMMIT without an acknowledgement ---


@pytest.mark.parametrize("fault", Fault)
def test_a_broken_commit_is_recorded_exactly_once(ledger: PostgresLedger, wire: Wire, fault: Fault) -> None:
    with closing(opened(wire.address)) as far:
        wire.fault = fault
        assert far.charge("bob", [buy(1, 7, 1)], sql="q").paid == Price(7, 1)
        assert wire.faults == 1
        assert far.charge("bob", [buy(2, 3)], sql="r").paid == Price(3)
    assert ledger.spent() == ledger.spent("bob") == Price(10, 1)
    assert [entry.sql for entry in ledger.history()] == ["r", "q"]
    assert ledger.verify() == []


@pytest.mark.parametrize("fault", Fault)
def test_a_charge_in_doubt_is_refused_and_stands(
    ledger: PostgresLedger, wire: Wire, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "DOUBT_SECONDS", 0.2)
    with closing(opened(wire.address)) as far:
        wire.fault, wire.fails_for_good = fault, True
        with pytest.raises(OperationalError, match="unknown whether the charge was recorded") as refusal:
            far.charge("bob", [buy(1, 7, 1)], sql="q")
    assert refusal.value.sqlstate == "58000"
    assert "it stands" in (refusal.value.detail or "")
    deadline = time.monotonic() + 30
    while fault is not Fault.LOST and not ledger.history() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert ledger.spent() == (Price() if fault is Fault.LOST else Price(7, 1))
    assert ledger.verify() == []


@pytest.mark.parametrize("fault", Fault)
def test_other_writes_survive_a_broken_commit(ledger: PostgresLedger, wire: Wire, fault: Fault) -> None:
    with closing(opened(wire.address)) as far:
        wire.fault = fault
        far.store(key(1), b"answer")
        wire.fault = fault
        far.refuse("bob", "q", "42501", "no")
    assert wire.faults == 2
    assert ledger.lookup(key(1)) == b"answer"
    assert ledger.verify() == []


def test_a_budget_that_was_spent_meanwhile_is_not_overdrawn_by_a_second_try(ledger: PostgresLedger, wire: Wire) -> None:
    """The first try is lost; before the second, somebody else buys the rest."""
    with closing(opened(wire.address)) as far:
        wire.fault = Fault.LATE
        far.charge("bob", [buy(1, 60)], sql="q")
        with pytest.raises(OperationalError, match="exhausted"):
            ledger.charge("bob", [buy(2, 60)], sql="r")
    assert ledger.spent() == Price(60)


# --- a server that goes and comes ---


def test_a_restart_of_the_server_is_survived(own_server: Server) -> None:
    address = own_server.new_database()
    with closing(opened(address, create=True)) as ledger:
        ledger.charge("bob", [buy(1, 1)], sql="q")
        for mode in ("fast", "immediate"):
            own_server.stop(mode)
            with pytest.raises(OperationalError, match="cannot be reached") as refusal:
                ledger.charge("bob", [buy(2, 1)], sql="r")
            assert refusal.value.sqlstate == "58000"
            with pytest.raises(OperationalError, match="cannot be reached"):
                ledger.spent()
            with pytest.raises(OperationalError, match="cannot be reached"):
                reopen(address)
            own_server.start()
            assert ledger.spent() == Price(1)
        ledger.charge("bob", [buy(2, 1)], sql="r")
        own_server.stop("fast")
        own_server.start()
        ledger.charge("bob", [buy(3, 1)], sql="s")  # over a connection that was idle during the restart
        assert ledger.spent() == Price(3)
        assert ledger.verify() == []


def test_a_cut_of_all_connections_costs_nobody_a_refusal(ledger: PostgresLedger, ledger_server: Server) -> None:
    for number in range(3):
        ledger.charge("bob", [buy(number, 1)], sql="q")
        ledger_server.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'dpsql ledger'"
        )
        assert ledger.spent() == Price(number + 1)


def test_a_writer_that_stalls_is_dropped(ledger: PostgresLedger) -> None:
    """A proxy that hangs, or a machine that lost its network, with the row that all others wait for."""
    with ledger._connections.one() as stalled:
        postgres._begin_writing(stalled, stalled_seconds=1)
        assert ledger.charge("bob", [buy(1, 1)], sql="q").paid == Price(1)


def test_a_locked_ledger_waits_and_then_says_so(ledger: PostgresLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    with ledger._connections.one() as other:
        postgres._begin_writing(other, stalled_seconds=0)
        monkeypatch.setattr(connections, "BUSY_SECONDS", 0.05)
        with pytest.raises(OperationalError, match="in use by another process"):
            ledger.charge("bob", [buy(1, 1)], sql="q")
        assert ledger.spent() == Price()  # reading does not wait
        monkeypatch.undo()
        timer = threading.Timer(0.1, other.rollback)
        timer.start()
        assert ledger.charge("bob", [buy(1, 1)], sql="q").paid == Price(1)
        timer.join()


def test_threads_that_wait_too_long_are_told(ledger: PostgresLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 1)
    monkeypatch.setattr(connections, "BUSY_SECONDS", 0.05)
    with (
        closing(connections.Connections(ledger._connections._address)) as few,
        few.one(),
        pytest.raises(OperationalError, match="in use"),
        few.one(),
    ):
        pass


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_fork_shares_the_ledger_but_no_connection(ledger: PostgresLedger) -> None:
    ledger.charge("bob", [buy(1, 1)], sql="parent")

    def child() -> None:
        assert ledger._connections._idle == []
        ledger.charge("bob", [buy(2, 1)], sql="child")
        ledger.close()

    (connection,) = ledger._connections._idle
    assert in_child(child)
    ledger.charge("bob", [buy(3, 1)], sql="parent")
    assert ledger._connections._idle == [connection]
    assert [entry.sql for entry in ledger.history()] == ["parent", "child", "parent"]
    assert ledger.verify() == []


def test_a_view_from_before_the_last_charge_has_lost_nothing(
    ledger: PostgresLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread buys between the begin of a free question and its look at the books."""
    ledger.charge("bob", [buy(1, 1)], sql="q")

    def after_another_charge(db: Database, **asked: Any) -> Standing:
        monkeypatch.undo()
        ledger.charge("bob", [buy(2, 1)], sql="q")
        return standing(db, **asked)

    monkeypatch.setattr(sql_ledger, "standing", after_another_charge)
    assert ledger.charge("bob", [replay(1, 1)], sql="q").paid == Price()
    assert ledger.spent() == Price(2)


# --- durability ---


def test_a_charge_is_on_disk_before_it_is_acknowledged(ledger: PostgresLedger, address: PostgresAddress) -> None:
    """Whatever the role's own defaults are."""
    with closing(shell(address)) as server:
        server.execute("ALTER ROLE postgres SET synchronous_commit = off")
        server.execute("ALTER ROLE postgres SET default_transaction_isolation = 'serializable'")
    try:
        with closing(opened(address)) as other:
            settings = other._write(
                lambda db: db.execute(
                    "SELECT current_setting('synchronous_commit'), current_setting('transaction_isolation')"
                ).fetchone()
            )
        assert settings == ("on", "read committed")
    finally:
        with closing(shell(address)) as server:
            server.execute("ALTER ROLE postgres RESET ALL")


def test_a_server_that_does_not_sync_is_refused(own_server: Server) -> None:
    own_server.configure("fsync", "off")
    try:
        with pytest.raises(PolicyError, match="does not write charges to disk"):
            reopen(own_server.address(), create=True)
    finally:
        own_server.configure("fsync", "on")


def test_a_wait_for_replicas_that_is_cut_short_is_no_acknowledgement(own_server: Server) -> None:
    """PostgreSQL reports success then, with a warning: the charge would be forgotten when the replica takes over."""
    address = own_server.new_database()
    waiting = (
        "SELECT pid, query_start FROM pg_stat_activity"
        " WHERE wait_event = 'SyncRep' AND application_name = 'dpsql ledger'"
    )
    with closing(opened(address, create=True)) as ledger:
        own_server.configure("synchronous_standby_names", "nobody")
        paid: list[Price] = []
        charging = threading.Thread(target=lambda: paid.append(ledger.charge("bob", [buy(1, 1)], sql="q").paid))
        charging.start()
        before: list[tuple[int, object]] = []
        for _ in range(2):
            deadline = time.monotonic() + 30
            # Not the wait that was cut short before: it may last a little longer.
            while (found := own_server.execute(waiting)) in ([], before) and time.monotonic() < deadline:
                time.sleep(0.02)
            before = found
            own_server.execute(f"SELECT pg_cancel_backend({found[0][0]})")
            time.sleep(0.05)
            assert not paid
        own_server.configure("synchronous_standby_names", "")
        charging.join(30)
        assert paid == [Price(1)]
        assert len(ledger.history()) == 1


# --- which ledger ---


def test_a_ledger_that_disappears_takes_no_charges(ledger: PostgresLedger, ledger_server: Server) -> None:
    ledger.charge("bob", [buy(1, 1)], sql="q")
    address = ledger_server.empty_database()
    with pytest.raises(OperationalError, match="moved, deleted or replaced"):
        ledger.charge("bob", [buy(2, 1)], sql="q")
    with closing(opened(address, create=True)), pytest.raises(OperationalError, match="replaced by another"):
        ledger.charge("bob", [buy(2, 1)], sql="q")


def test_other_tables_are_not_taken_for_a_ledger(address: PostgresAddress) -> None:
    with closing(shell(address)) as server:
        server.execute("CREATE SCHEMA dpsql_ledger")
        server.execute("CREATE TABLE dpsql_ledger.accounts (x int)")
    for create in (True, False):
        with pytest.raises(PolicyError, match="is not a ledger"):
            reopen(address, create=create)


def test_a_format_to_come_is_refused(ledger: PostgresLedger, address: PostgresAddress) -> None:
    with closing(shell(address)) as server:
        server.execute(f"INSERT INTO formats VALUES ({FORMAT + 1})".encode())
    with pytest.raises(PolicyError, match=f"has format {FORMAT + 1}"):
        reopen(address)


def test_a_database_that_cannot_hold_every_text_is_refused(ledger_server: Server) -> None:
    ledger_server.execute("CREATE DATABASE narrow ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    with pytest.raises(PolicyError, match="cannot hold every text"):
        reopen(ledger_server.address("narrow"), create=True)


def test_the_account_that_writers_queue_for_cannot_be_missing(ledger: PostgresLedger, address: PostgresAddress) -> None:
    with closing(shell(address)) as server:
        server.execute("SET session_replication_role = replica")
        server.execute("DELETE FROM accounts")
    with pytest.raises(OperationalError, match="damaged"):
        ledger.charge("bob", [buy(1, 1)], sql="q")


def test_nobody_empties_a_table(ledger: PostgresLedger, address: PostgresAddress) -> None:
    ledger.charge("bob", [buy(1, 1)], sql="q")
    with closing(shell(address)) as server:
        for table in (*TABLES.keys() - {"answers"}, "attempts", "formats"):
            with pytest.raises(psycopg.errors.RaiseException):
                server.execute(f"TRUNCATE {table} CASCADE".encode())
    assert rows(address, "SELECT COUNT(*) FROM charges") == [(1,)]


# --- rights ---

README = Path(postgres.__file__).with_name("README.md")


def granted(statements: str) -> Iterator[str]:
    return (statement for statement in statements.split(";") if statement.strip())


@pytest.fixture
def proxy(ledger_server: Server, ledger: PostgresLedger, address: PostgresAddress) -> Iterator[PostgresAddress]:
    """A role that may do what the README says, and no more."""
    _, _, rest = README.read_text().partition("```sql\n")
    statements, _, _ = rest.partition("```")
    with closing(shell(address)) as owner:
        owner.execute("CREATE ROLE dpsql LOGIN")
        for statement in granted(statements):
            owner.execute(statement.encode())
    yield PostgresAddress(address.url.replace("postgres:secret@", "dpsql:secret@"))
    with closing(shell(address)) as owner:
        owner.execute("DROP OWNED BY dpsql")
        owner.execute("DROP ROLE dpsql")


def test_a_proxy_needs_only_the_documented_rights(proxy: PostgresAddress) -> None:
    with closing(reopen(proxy, total=Price(99, 9), replay_days=0)) as ledger:
        ledger.charge("bob", [buy(1, 1)], sql="q")
        ledger.store(key(1), b"old")
        ledger.store(key(1), b"new")
        ledger.refuse("bob", "q", "42501", "no")
        assert ledger.lookup(key(1)) is None  # expired, and deleted
        assert ledger.verify() == []
    with Books.read(proxy, dataset="people", accounting="zcdp") as books:
        assert books.counts().charges == 1
    with closing(shell(proxy)) as server:
        for statement in (
            "UPDATE charges SET user_loss = 0",
            "DELETE FROM charges",
            "DELETE FROM accounts",
            "DELETE FROM limits",
            "TRUNCATE refusals",
            "ALTER TABLE charges DISABLE TRIGGER ALL",
            "DROP SCHEMA dpsql_ledger CASCADE",
            "CREATE TABLE dpsql_ledger.mine (x int)",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                server.execute(statement.encode())


@pytest.mark.parametrize("missing", ["USAGE ON SCHEMA dpsql_ledger", "INSERT ON dpsql_ledger.charges"])
def test_a_missing_right_is_named(proxy: PostgresAddress, address: PostgresAddress, missing: str) -> None:
    with closing(reopen(proxy)) as ledger:
        with closing(shell(address)) as owner:
            owner.execute(f"REVOKE {missing} FROM dpsql".encode())
        with pytest.raises(OperationalError, match="lacks a right") as refusal:
            ledger.charge("bob", [buy(1, 1)], sql="q")
        assert refusal.value.hint
        assert "README" in refusal.value.hint


def test_a_role_may_make_the_ledger_in_a_schema_made_for_it(ledger_server: Server, address: PostgresAddress) -> None:
    own = PostgresAddress(address.url.replace("postgres:secret@", "maker:secret@"))
    with closing(shell(address)) as owner:
        owner.execute("CREATE ROLE maker LOGIN")
        try:
            with pytest.raises(OperationalError, match="lacks a right"):
                reopen(own, create=True)
            owner.execute("CREATE SCHEMA dpsql_ledger AUTHORIZATION maker")
            with closing(reopen(own, create=True)) as ledger:
                ledger.charge("bob", [buy(1, 1)], sql="q")
        finally:
            owner.execute("DROP OWNED BY maker")
            owner.execute("DROP ROLE maker")


def test_nobody_else_may_read(ledger: PostgresLedger, address: PostgresAddress) -> None:
    """It holds queries and answers, as a file does that only its owner may read."""
    with closing(shell(address)) as owner:
        owner.execute("CREATE ROLE stranger LOGIN")
        try:
            stranger = PostgresAddress(address.url.replace("postgres:secret@", "stranger:secret@"))
            with closing(shell(stranger)) as other, pytest.raises(psycopg.errors.InsufficientPrivilege):
                other.execute("SELECT * FROM dpsql_ledger.answers")
            with pytest.raises(OperationalError, match="lacks a right"):
                reopen(stranger)
        finally:
            owner.execute("DROP ROLE stranger")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("FATAL:  sorry, too many clients already", "no connection left"),
        (
            "FATAL:  remaining connection slots are reserved for roles with the SUPERUSER attribute",
            "no connection left",
        ),
        ("could not create socket: Too many open files", "too many open files"),
        ("connection refused", "cannot be reached"),
    ],
)
def test_why_a_connection_cannot_be_had_is_said(words: str, said: str) -> None:
    """libpq gives no code for these; the words are those of PostgreSQL and of the system."""
    assert said in postgres.plain(psycopg.OperationalError(words)).message


def test_a_server_process_that_hangs_is_left_for_another(
    ledger: PostgresLedger, address: PostgresAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection is alive, and it never answers: as on a machine that was frozen."""
    ledger.charge("bob", [buy(1, 7)], sql="first")
    [idle] = ledger._connections._idle
    stopped = idle.info.backend_pid
    monkeypatch.setattr(connections, "SILENT_SECONDS", 0.5)
    os.kill(stopped, signal.SIGSTOP)
    try:
        assert ledger.charge("bob", [buy(2, 5)], sql="second").paid == Price(5)
        assert ledger.remaining("bob") == Price(88, 10)
    finally:
        os.kill(stopped, signal.SIGCONT)
    assert [entry.sql for entry in ledger.history()] == ["second", "first"]
    assert ledger.verify() == []
