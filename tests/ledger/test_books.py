"""Reading the books shows all that was recorded and leaves no trace."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from dpsql.errors import OperationalError, PolicyError
from dpsql.ledger import Entry, Refusal
from dpsql.ledger import database as clock
from dpsql.ledger.accounts import UNLIMITED
from dpsql.ledger.reading import Books, Counts, LimitChange, Selection
from dpsql.policy.model import LedgerLocation
from dpsql.policy.protection import Protection
from dpsql.privacy.accounting import Price
from tests.ledger.test_sqlite import as_format_1
from tests.ledger_places import PROTECTION, TOTAL, buy, reopen, tamper

START = datetime(2030, 1, 1, tzinfo=UTC)


def keep(location: LedgerLocation, monkeypatch: pytest.MonkeyPatch, protection: Protection = PROTECTION) -> None:
    """A ledger with one event on each of five days."""
    time = [START]
    monkeypatch.setattr(clock, "now", lambda: time[0])
    with closing(reopen(location, create=True, protection=protection)) as ledger:
        ledger.charge("alice", [buy(1, 10, 1)], sql="first")
        time[0] += timedelta(days=1)
        ledger.refuse("bob", "second", "42501", "no")
        time[0] += timedelta(days=1)
        ledger.charge("bob", [buy(2, 5)], sql="third")
        time[0] += timedelta(days=1)
        ledger.refuse("alice", "fourth", "53400", "exhausted")
        time[0] += timedelta(days=1)
    reopen(location, allowances={"bob": Price(7, 7)}, protection=protection).close()


@pytest.fixture
def kept(location: LedgerLocation, monkeypatch: pytest.MonkeyPatch) -> LedgerLocation:
    keep(location, monkeypatch)
    return location


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "people.ledger"
    keep(path, monkeypatch)
    return path


def texts(path: LedgerLocation, selection: Selection, *, refused: bool = False) -> list[str]:
    with Books.read(path, dataset="people", accounting="zcdp") as books:
        return [row.sql for row in books.log(selection, refused=refused)]


def test_the_log_is_selected_by_user_time_outcome_and_number(kept: LedgerLocation) -> None:
    day = [START + timedelta(days=number) for number in range(6)]
    assert texts(kept, Selection()) == ["first", "second", "third", "fourth"]
    assert texts(kept, Selection(limit=2)) == ["third", "fourth"]
    assert texts(kept, Selection("alice")) == ["first", "fourth"]
    assert texts(kept, Selection("alice", limit=1)) == ["fourth"]
    assert texts(kept, Selection(since=day[1], until=day[3])) == ["second", "third"]
    assert texts(kept, Selection(), refused=True) == ["second", "fourth"]
    assert texts(kept, Selection("bob", since=day[2]), refused=True) == []
    assert texts(kept, Selection("mallory' OR 1=1 --")) == []


def test_all_of_an_event_is_told(kept: LedgerLocation) -> None:
    with Books.read(kept, dataset="people", accounting="zcdp") as books:
        charge, refusal, *_ = books.log()
        assert charge == Entry(START.isoformat(timespec="microseconds"), "alice", "first", Price(10, 1), Price(10, 1))
        assert refusal == Refusal("2030-01-02T00:00:00.000000+00:00", "bob", "second", "42501", "no")
        assert books.spent() == {None: Price(15, 1), "alice": Price(10, 1), "bob": Price(5)}
        assert books.names() == {"alice", "bob"}
        assert books.counts() == Counts(charges=2, refusals=2, limit_changes=5)
        last = "2030-01-05T00:00:00.000000+00:00"
        assert books.limit_changes(Selection(limit=2)) == [
            LimitChange(last, "alice", Price(60, 10), None),
            LimitChange(last, "bob", UNLIMITED, Price(7, 7)),
        ]
        assert books.limit_changes(Selection("alice"))[0].old is None
        assert [change.new for change in books.limit_changes() if change.user is None] == [TOTAL]
        assert books.verify() == []


def test_reading_leaves_no_trace(path: Path) -> None:
    before = path.read_bytes(), path.stat().st_mtime_ns
    texts(path, Selection())
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before
    assert os.listdir(path.parent) == [path.name]


def test_what_others_write_meanwhile_is_read(kept: LedgerLocation) -> None:
    with closing(reopen(kept)) as ledger:
        ledger.charge("alice", [buy(9, 1)], sql="fifth")
        assert texts(kept, Selection(limit=1)) == ["fifth"]
        with Books.read(kept, dataset="people", accounting="zcdp") as books:
            ledger.charge("alice", [buy(10, 1)], sql="sixth")  # is not kept waiting
            assert len(books.log()) == 5
            assert books.verify() == []


def test_the_books_cannot_be_written(kept: LedgerLocation) -> None:
    with (
        pytest.raises(OperationalError, match="cannot be opened for writing"),
        Books.read(kept, dataset="people", accounting="zcdp") as books,
    ):
        books._db.execute("DELETE FROM answers")


def test_an_older_ledger_is_read_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "old.ledger"
    keep(path, monkeypatch, Protection())
    as_format_1(path)
    assert texts(path, Selection()) == ["first", "third"]
    assert texts(path, Selection(), refused=True) == []
    with Books.read(path, dataset="people", accounting="zcdp") as books:
        assert books.counts() == Counts(charges=2, refusals=0, limit_changes=5)
        assert books.verify() == []


@pytest.mark.parametrize("name", [".", "missing"])
def test_what_cannot_be_read_is_said_to_be_so(tmp_path: Path, name: str) -> None:
    with (
        pytest.raises(OperationalError, match="the ledger cannot be read"),
        Books.read(tmp_path / name, dataset="people", accounting="zcdp"),
    ):
        pass


def test_contradictions_are_found(kept: LedgerLocation) -> None:
    tamper(kept, "UPDATE accounts SET loss = 0 WHERE subject = 'dataset'", "DELETE FROM refusals WHERE number = 1")
    with Books.read(kept, dataset="people", accounting="zcdp") as books:
        assert books.verify() == ["the sum of dataset is not that of its charges", "refusal 1 is missing"]


def test_another_file_is_not_taken_for_the_books(path: Path, tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="another dataset"), Books.read(path, dataset="cars", accounting="zcdp"):
        pass
    with pytest.raises(PolicyError, match='not "basic"'), Books.read(path, dataset="people", accounting="basic"):
        pass
    other = tmp_path / "other"
    with closing(sqlite3.connect(other)) as db:
        db.execute("CREATE TABLE ledger (x)")
    with pytest.raises(PolicyError, match="not a ledger"), Books.read(other, dataset="people", accounting="zcdp"):
        pass
    other.write_bytes(b"not a database " * 100)
    with pytest.raises(OperationalError, match="damaged"), Books.read(other, dataset="people", accounting="zcdp"):
        pass
