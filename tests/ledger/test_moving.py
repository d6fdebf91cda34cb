"""A ledger that moves loses nothing, and at no moment can two of it be charged."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest

from dpsql.errors import Error, OperationalError, PolicyError
from dpsql.ledger import migrate as moving
from dpsql.ledger.migrate import move_ledger
from dpsql.ledger.reading import Books
from dpsql.ledger.schema import ARRIVED, ARRIVING, DEPARTED, TABLES
from dpsql.policy.model import LedgerLocation
from dpsql.privacy.accounting import Price
from tests.ledger.test_sqlite import as_format_1
from tests.ledger_places import Server, buy, key, refuses, reopen, replay, rows, shell, tamper


@pytest.fixture(params=["file to server", "server to file", "file to file"])
def places(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[LedgerLocation, LedgerLocation]:
    server: Server = request.getfixturevalue("ledger_server")
    by_kind: dict[str, Callable[[], LedgerLocation]] = {
        "file to server": lambda: tmp_path / "from",
        "server to file": server.empty_database,
        "file to file": lambda: tmp_path / "from",
    }
    source = by_kind[request.param]()
    target = server.empty_database() if request.param == "file to server" else tmp_path / "to"
    return source, target


def move(source: LedgerLocation, target: LedgerLocation) -> None:
    move_ledger(source, target, dataset="people", accounting="zcdp")


def fill(location: LedgerLocation) -> None:
    with closing(reopen(location, create=True)) as ledger:
        ledger.charge("alice", [buy(1, 10, 1)], sql="a")
        ledger.store(key(1), b"answer\x00")
        ledger.charge("bob", [replay(1, 10, 1), buy(2, 1, 1)], sql="b ü \x00 \udc80")
        ledger.refuse("bob", "c", "42501", "no")
    reopen(location, total=Price(99, 9)).close()


def content(location: LedgerLocation) -> dict[str, list[object]]:
    return {
        table: rows(location, f"SELECT {', '.join(columns)} FROM {table} ORDER BY {order}")
        for table, (columns, order) in TABLES.items()
        if table != "moves"
    }


def events(location: LedgerLocation) -> list[str]:
    return [event for (event,) in rows(location, "SELECT event FROM moves ORDER BY number")]


def is_charged(location: LedgerLocation, number: int = 9) -> bool:
    try:
        with closing(reopen(location)) as ledger:
            ledger.charge("bob", [buy(number, 1)], sql="q")
    except PolicyError:
        return False
    return True


def test_everything_moves(places: tuple[LedgerLocation, LedgerLocation]) -> None:
    source, target = places
    fill(source)
    before = content(source)
    move(source, target)
    assert content(source) == content(target) == before
    assert (events(source), events(target)) == ([DEPARTED], [ARRIVING, ARRIVED])
    with closing(reopen(target, total=Price(99, 9))) as ledger:
        assert (ledger.spent(), ledger.spent("bob")) == (Price(11, 2), Price(11, 2))
        assert ledger.lookup(key(1)) == b"answer\x00"
        assert ledger.charge("alice", [replay(1, 10, 1)], sql="q").paid == Price()
        assert ledger.charge("alice", [buy(3, 5)], sql="q").paid == Price(5)
        assert ledger.verify() == []


def test_an_old_ledger_is_closed_for_good(places: tuple[LedgerLocation, LedgerLocation]) -> None:
    source, target = places
    fill(source)
    with closing(reopen(source)) as running:
        move(source, target)
        for write in (
            lambda: running.charge("bob", [buy(9, 1)], sql="q"),
            lambda: running.refuse("bob", "q", "42501", "no"),
            lambda: running.store(key(9), b""),
        ):
            with pytest.raises(PolicyError, match="was moved to"):
                write()
    with pytest.raises(PolicyError, match="was moved to") as refusal:
        reopen(source)
    assert str(target) in refusal.value.message
    assert "secret" not in refusal.value.message
    with pytest.raises(PolicyError, match="was moved to"), Books.read(source, dataset="people", accounting="zcdp"):
        pass
    with pytest.raises(PolicyError, match="was moved to"):
        move(source, target)
    # Also for who looks at nothing, such as an older version of dpsql.
    charge = 'INSERT INTO charges SELECT 3, at, "user", sql, 0, 0, 0, 0, hash, 0, 0, 3 FROM charges WHERE number = 1'
    assert refuses(source, charge)
    assert refuses(source, "DELETE FROM moves")
    assert is_charged(target)


def test_there_and_back(places: tuple[LedgerLocation, LedgerLocation], tmp_path: Path) -> None:
    source, target = places
    fill(source)
    move(source, target)
    assert is_charged(target)
    with pytest.raises(PolicyError, match="already exists"):
        move(target, source)
    assert is_charged(target, 10)
    move(target, tmp_path / "third")
    assert events(tmp_path / "third") == [ARRIVING, ARRIVED, ARRIVING, ARRIVED]
    assert is_charged(tmp_path / "third", 11)
    assert not is_charged(source)
    assert not is_charged(target)


def test_an_empty_ledger_moves_and_an_older_one(ledger_server: Server, tmp_path: Path) -> None:
    reopen(tmp_path / "old", create=True).close()
    as_format_1(tmp_path / "old")
    tamper(tmp_path / "old", "DELETE FROM accounts")  # earlier versions made the account with the first charge
    target = ledger_server.empty_database()
    move(tmp_path / "old", target)
    assert is_charged(target)


# --- what does not move ---


def test_a_place_that_holds_anything_is_refused(ledger_server: Server, tmp_path: Path) -> None:
    source, server = tmp_path / "from", ledger_server.empty_database()
    fill(source)
    other = tmp_path / "other"
    other.write_bytes(b"not a ledger " * 100)
    live = tmp_path / "live"
    fill(live)
    with closing(shell(server)) as owner:
        owner.execute("CREATE SCHEMA dpsql_ledger CREATE TABLE mine (x int)")
    for target in (source, other, live, server, tmp_path):
        with pytest.raises(Error):
            move(source, target)
    assert other.read_bytes() == b"not a ledger " * 100
    assert rows(server, "SELECT COUNT(*) FROM mine") == [(0,)]
    assert is_charged(live)
    assert is_charged(source)
    with pytest.raises(OperationalError, match="cannot be created"):
        move(source, tmp_path / "nowhere" / "to")
    assert is_charged(source, 10)


def test_a_ledger_on_a_server_cannot_move_to_itself(ledger_server: Server) -> None:
    location = ledger_server.empty_database()
    fill(location)
    with pytest.raises(PolicyError, match="already exists"):
        move(location, location)
    assert is_charged(location)


def test_an_unsound_or_foreign_ledger_stays(places: tuple[LedgerLocation, LedgerLocation]) -> None:
    source, target = places
    fill(source)
    with pytest.raises(PolicyError, match="another dataset"):
        move_ledger(source, target, dataset="cars", accounting="zcdp")
    with pytest.raises(PolicyError, match="accounting"):
        move_ledger(source, target, dataset="people", accounting="basic")
    tamper(source, "UPDATE accounts SET loss = 1 WHERE subject = 'dataset'")
    with pytest.raises(OperationalError, match="not sound: the sum of dataset"):
        move(source, target)
    assert events(source) == []
    with pytest.raises(PolicyError, match="missing"):
        reopen(target)


def test_a_missing_ledger_does_not_move(ledger_server: Server, tmp_path: Path) -> None:
    for source in (tmp_path / "from", ledger_server.empty_database()):
        with pytest.raises(PolicyError, match="is missing"):
            move(source, tmp_path / "to")
    assert list(tmp_path.iterdir()) == []


def test_a_text_that_a_server_cannot_hold_keeps_the_ledger_where_it_is(ledger_server: Server, tmp_path: Path) -> None:
    """Earlier versions kept NUL characters."""
    source, target = tmp_path / "from", ledger_server.empty_database()
    fill(source)
    with closing(sqlite3.connect(source)) as db:
        db.execute("INSERT INTO refusals VALUES (2, '', 'bob', ?, '', '')", ("\0",))
        db.commit()
    with pytest.raises(OperationalError, match="NUL character"):
        move(source, target)
    assert is_charged(source)


# --- interrupted ---


def interrupted(source: LedgerLocation, target: LedgerLocation, event: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Move, and die where the event would be noted."""
    note = moving._note

    def die(db: object, noted: str, location: LedgerLocation) -> None:
        if noted == event:
            raise KeyboardInterrupt
        note(db, noted, location)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(moving, "_note", die)
        with pytest.raises(KeyboardInterrupt):
            move(source, target)


@pytest.mark.parametrize(
    ("event", "source_lives"), [(ARRIVING, True), (DEPARTED, True), (ARRIVED, False)], ids=lambda value: str(value)
)
def test_an_interrupted_move_leaves_at_most_one_and_is_finished_by_another(
    places: tuple[LedgerLocation, LedgerLocation], event: str, source_lives: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = places
    fill(source)
    for _ in range(2):
        interrupted(source, target, event, monkeypatch)
        assert not is_charged(target)
    # What is spent meanwhile must not be forgotten.
    assert is_charged(source) == source_lives
    spent = rows(source, "SELECT loss FROM accounts WHERE subject = 'dataset'")
    move(source, target)
    assert rows(target, "SELECT loss FROM accounts WHERE subject = 'dataset'") == spent
    assert is_charged(target, 10)
    assert not is_charged(source)


def test_an_unfinished_copy_says_so(
    places: tuple[LedgerLocation, LedgerLocation], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = places
    fill(source)
    interrupted(source, target, DEPARTED, monkeypatch)
    with pytest.raises(PolicyError, match="unfinished copy"):
        reopen(target)
    with pytest.raises(PolicyError, match="unfinished copy"):
        move(target, tmp_path / "third")
    assert is_charged(source)


def test_a_departed_ledger_arrives_only_where_its_copy_is(
    places: tuple[LedgerLocation, LedgerLocation], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = places
    fill(source)
    interrupted(source, target, ARRIVED, monkeypatch)
    with pytest.raises(PolicyError, match="missing"):
        move(source, tmp_path / "elsewhere")
    fill(tmp_path / "another")
    with pytest.raises(PolicyError, match="was moved to"):
        move(source, tmp_path / "another")
    move(source, target)
    assert is_charged(target)


def test_who_spends_meanwhile_loses_nothing(places: tuple[LedgerLocation, LedgerLocation]) -> None:
    source, target = places
    plenty = Price(10**6, 10**6)
    acknowledged: list[str] = []
    begun = threading.Event()
    all_open = threading.Barrier(3)

    def spend(worker: int) -> None:
        with closing(reopen(source, create=True, total=plenty)) as ledger, suppress(PolicyError):
            all_open.wait(60)
            for number in range(10_000):
                ledger.charge("bob", [buy(10_000 * worker + number, 1)], sql=f"{worker}:{number}")
                acknowledged.append(f"{worker}:{number}")
                if number == 5:
                    begun.set()

    spend_threads = [threading.Thread(target=spend, args=(worker,)) for worker in range(3)]
    for thread in spend_threads:
        thread.start()
    assert begun.wait(60)
    move(source, target)
    for thread in spend_threads:
        thread.join()
    with closing(reopen(target, total=plenty)) as ledger:
        assert sorted(entry.sql for entry in ledger.history(limit=10**6)) == sorted(acknowledged)
        assert ledger.spent() == Price(len(acknowledged))
        assert ledger.verify() == []
