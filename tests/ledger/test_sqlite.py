"""Claims of a ledger in a file: its name, its format, its log, its locks."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from dpsql.errors import Error, OperationalError, PolicyError
from dpsql.ledger import sqlite
from dpsql.ledger.schema import FORMAT
from dpsql.ledger.sqlite import SqliteDatabase, SqliteLedger
from dpsql.ledger.verification import first_hash, hash_of
from dpsql.policy.protection import Protection
from dpsql.privacy.accounting import Price
from tests.ledger.test_ledger import in_child
from tests.ledger_places import buy, key, reopen, rows, tamper


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "people.ledger"


@pytest.fixture
def ledger(path: Path) -> Iterator[SqliteLedger]:
    with closing(reopen(path, create=True)) as ledger:
        assert isinstance(ledger, SqliteLedger)
        yield ledger


# --- older formats ---


def as_format_1(path: Path) -> None:
    """What a ledger was before there were refusals, moves, pure answers, protections and failures."""
    with closing(sqlite3.connect(path, isolation_level=None, factory=SqliteDatabase)) as db:
        db.execute("DROP TABLE retries")
        db.execute("DROP TABLE failures")
        db.execute("ALTER TABLE answers DROP COLUMN checksum")
        db.execute("DROP TRIGGER charges_under_protection")
        db.execute("DROP TABLE protections")
        db.execute("DROP TRIGGER charges_end_with_departure")
        db.execute("DROP TABLE moves")
        db.execute("DROP TABLE refusals")
        db.execute("DROP TRIGGER accounts_never_shrink")
        for table, columns in (
            ("charges", ("dataset_pure", "user_pure", "protection")),
            ("accounts", ("pure",)),
            ("limits", ("old_pure", "new_pure")),
        ):
            for column in columns:
                db.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
        db.execute(
            "CREATE TRIGGER accounts_never_shrink BEFORE UPDATE ON accounts WHEN NEW.loss < OLD.loss"
            " BEGIN SELECT RAISE(ABORT, 'nothing is refunded'); END"
        )
        _hash_anew(db)
        db.execute("PRAGMA user_version = 1")


def _hash_anew(db: SqliteDatabase) -> None:
    """The chain of charges as it was before they named a protection."""
    [(guard,)] = db.execute("SELECT sql FROM sqlite_master WHERE name = 'charges_never_update'").fetchall()
    db.execute("DROP TRIGGER charges_never_update")
    previous = first_hash(db)
    columns = 'number, at, "user", sql, dataset_loss, dataset_delta, user_loss, user_delta'
    for row in db.execute(f"SELECT {columns} FROM charges ORDER BY number").fetchall():
        keys = db.execute("SELECT key FROM paid WHERE charge = ? ORDER BY key", row[:1]).fetchall()
        previous = hash_of(previous, row, (None, None), [key for (key,) in keys])
        db.execute("UPDATE charges SET hash = ? WHERE number = ?", (previous, row[0]))
    db.execute(guard)


def test_an_older_ledger_is_brought_up_to_date_and_loses_nothing(path: Path) -> None:
    with closing(reopen(path, create=True, protection=Protection())) as ledger:
        ledger.charge("alice", [buy(1, 10, 1)], sql="q")
    present = rows(path, "SELECT type, name, sql FROM sqlite_master ORDER BY name")
    as_format_1(path)
    with closing(reopen(path)) as ledger:
        assert ledger.spent("alice") == Price(10, 1)
        ledger.refuse("alice", "SELECT name", "42501", "no")
        assert ledger.verify() == []
    assert rows(path, "PRAGMA user_version") == [(FORMAT,)]
    assert rows(path, "SELECT COUNT(*) FROM refusals") == [(1,)]
    assert rows(path, "SELECT type, name, sql FROM sqlite_master ORDER BY name") == present


def test_an_older_ledger_of_another_dataset_is_left_alone(path: Path) -> None:
    reopen(path, create=True).close()
    as_format_1(path)
    with pytest.raises(PolicyError, match="another dataset"):
        reopen(path, dataset="cars")
    assert rows(path, "PRAGMA user_version") == [(1,)]


# --- which ledger ---


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
    tamper(path, f"PRAGMA user_version = {FORMAT + 1}")
    with pytest.raises(PolicyError, match=f"format {FORMAT + 1}"):
        reopen(path)


# --- tampering ---


def test_the_file_itself_forbids_to_replace_a_row(ledger: SqliteLedger, path: Path) -> None:
    ledger.charge("bob", [buy(1, 10, 1)], sql="q")
    with closing(sqlite3.connect(path, isolation_level=None)) as db, pytest.raises(sqlite3.IntegrityError):
        db.execute(
            "INSERT OR REPLACE INTO charges SELECT number, at, user, sql, 0, 0, 0, 0, hash, 0, 0, 3 FROM charges"
        )
    ledger.refuse("bob", "q", "42501", "no")
    with closing(sqlite3.connect(path, isolation_level=None)) as db, pytest.raises(sqlite3.IntegrityError):
        db.execute("INSERT OR REPLACE INTO refusals SELECT number, at, user, '', sqlstate, message FROM refusals")


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
        assert ledger.charge("bob", [buy(1, 1)], sql="q").paid == Price(1)
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


def test_a_thread_that_waits_too_long_is_told(ledger: SqliteLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.05)
    with ledger._connected(), ThreadPoolExecutor(1) as pool, pytest.raises(Error, match="in use"):
        pool.submit(ledger.spent).result()


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


# --- others who write ---


def test_reading_goes_on_while_a_charge_waits_for_another_process(ledger: SqliteLedger, path: Path) -> None:
    with ThreadPoolExecutor(1) as pool, closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        paid = pool.submit(ledger.charge, "bob", [buy(1, 7)], sql="q")
        for _ in range(20):
            assert ledger.remaining("bob") == Price(100, 10)
            assert ledger.lookup(key(1)) is None
        assert not paid.done()
        other.execute("ROLLBACK")
        assert paid.result(60).paid == Price(7)
    assert ledger.verify() == []
