"""A ledger that went back in time, or is damaged, is not charged again until the owner says so."""

from __future__ import annotations

import logging
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from dpsql.answering.open_dataset import open_dataset
from dpsql.errors import LedgerDamaged, LedgerLost, OperationalError
from dpsql.ledger.mark import FILE, Mark, Seen
from dpsql.ledger.opening import accept_ledger
from dpsql.ledger.sql_ledger import SqlLedger
from dpsql.policy.load import load
from dpsql.policy.model import LedgerLocation
from dpsql.privacy.accounting import Price
from tests import toy
from tests.ledger_places import buy, key, reopen, rows, tamper
from tests.recovery.killing import ask

COUNT = "SELECT COUNT(*) FROM people"


@pytest.fixture
def ledger(location: LedgerLocation) -> Iterator[SqlLedger]:
    with closing(reopen(location, create=True)) as ledger:
        yield ledger


def forget_newest(location: LedgerLocation, charges: int) -> None:
    """What an older copy does not hold; its sums are those of then."""
    tamper(
        location,
        f"DELETE FROM paid WHERE charge > {charges}",
        f"DELETE FROM charges WHERE number > {charges}",
        f"UPDATE accounts SET loss = {charges}",
    )


# --- gone back ---


def test_lost_charges_stay_lost_however_many_others_charge(
    location: LedgerLocation, ledger: SqlLedger, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(5):
        ledger.charge("bob", [buy(number, 1)], sql="q")
    forget_newest(location, 3)
    with caplog.at_level(logging.ERROR), pytest.raises(LedgerLost, match="has lost charges") as caught:
        ledger.charge("bob", [buy(9, 1)], sql="q")
    assert "dpsql ledger accept" in str(caught.value.hint)
    with closing(reopen(location)) as other:  # another machine, which has seen none of them
        for number in range(20, 25):
            other.charge("bob", [buy(number, 1)], sql="q")
        assert other.verify() == []
    for _ in range(3):
        with pytest.raises(LedgerLost):
            ledger.charge("bob", [buy(9, 1)], sql="q")
    with pytest.raises(LedgerLost):
        ledger.check()
    assert [record.message for record in caplog.records] == ["ledger_lost_charges"]
    assert rows(location, "SELECT COUNT(*) FROM charges") == [(8,)]
    ledger.accept()
    ledger.charge("bob", [buy(9, 1)], sql="q")


def test_the_newest_charge_outlives_the_process(tmp_path: Path) -> None:
    seen = Seen("ledger", 7, "ff")
    mark = Mark(tmp_path / "state" / FILE)
    mark.advance(seen)
    assert Mark(tmp_path / "state" / FILE).read() is None  # nobody serves here
    (tmp_path / "state").mkdir()
    mark.advance(Seen("ledger", 8, "fe"))
    mark.advance(seen)  # one that ended later
    assert Mark(tmp_path / "state" / FILE).read() == Seen("ledger", 8, "fe")
    mark.condemn("ledger", "broken")
    mark.advance(Seen("ledger", 9, "fd"))
    assert Mark(tmp_path / "state" / FILE).read() == Seen("ledger", 9, "fd", "broken")
    (tmp_path / "state" / FILE).write_text("{")
    assert Mark(tmp_path / "state" / FILE).read() is None


@pytest.fixture
def policy(clinic: Path) -> Path:
    path = toy.write_policy(clinic.parent)
    (path.parent / ".dpsql" / path.stem).mkdir(parents=True)  # as a server makes it
    return path


def files(policy: Path) -> Path:
    return policy.with_name(f"{toy.DATABASE}.ledger")


def bought(policy: Path, *questions: str) -> None:
    with closing(open_dataset(policy)) as dataset:
        for sql in questions:
            ask(dataset, sql)


def test_an_older_copy_put_back_is_noticed_at_the_next_start(policy: Path) -> None:
    bought(policy, COUNT)
    shutil.copy(files(policy), policy.with_name("older"))
    bought(policy, f"{COUNT} WHERE age > 20", f"{COUNT} WHERE age > 30")
    for suffix in ("-wal", "-shm"):
        files(policy).with_name(files(policy).name + suffix).unlink(missing_ok=True)
    shutil.copy(policy.with_name("older"), files(policy))
    for _ in range(2):
        with pytest.raises(LedgerLost, match="has lost charges"):
            open_dataset(policy)
    accepted = accept_ledger(load(policy))
    assert accepted.before is not None
    assert (accepted.before.number, accepted.now.number) == (3, 1)
    bought(policy, f"{COUNT} WHERE age > 20")


def test_a_ledger_that_was_deleted_is_not_begun_anew_without_a_word(policy: Path) -> None:
    bought(policy, COUNT)
    for path in policy.parent.glob(f"{toy.DATABASE}.ledger*"):
        path.unlink()
    with pytest.raises(LedgerLost):
        open_dataset(policy)
    for path in policy.parent.glob(f"{toy.DATABASE}.ledger*"):
        path.unlink()
    open_dataset(policy, new_ledger=True).close()
    bought(policy, COUNT)


def test_the_owners_word_reaches_a_process_that_runs(policy: Path) -> None:
    bought(policy, COUNT)
    shutil.copy(files(policy), policy.with_name("older"))
    with closing(open_dataset(policy)) as dataset:
        ask(dataset, f"{COUNT} WHERE age > 20")
        forget_newest(files(policy), 1)
        tamper(files(policy), "UPDATE accounts SET loss = (SELECT dataset_loss FROM charges)")
        with pytest.raises(LedgerLost):
            ask(dataset, f"{COUNT} WHERE age > 30")
        accept_ledger(load(policy))
        assert ask(dataset, f"{COUNT} WHERE age > 30")[0] != Price()


# --- damaged ---


def test_after_the_first_damage_nothing_is_charged(location: LedgerLocation, ledger: SqlLedger) -> None:
    ledger.store(key(1), b"an answer")
    ledger.charge("bob", [buy(1, 1)], sql="q")
    ledger.condemn("page 3 is gone")
    for _ in range(2):
        with pytest.raises(LedgerDamaged, match="the ledger is damaged: page 3 is gone"):
            ledger.charge("bob", [buy(2, 1)], sql="q")
    with pytest.raises(LedgerDamaged):
        ledger.check()


def test_an_altered_answer_is_never_shown(location: LedgerLocation, ledger: SqlLedger) -> None:
    ledger.store(key(1), b"an answer")
    assert ledger.lookup(key(1)) == b"an answer"
    tamper(location, "UPDATE answers SET payload = x'616e20616e73776573'")
    with pytest.raises(LedgerDamaged, match="a stored answer was altered"):
        ledger.lookup(key(1))
    assert ledger.verify() == [f"the stored answer {key(1).hex()[:12]} was altered"]
    with pytest.raises(LedgerDamaged):
        ledger.charge("bob", [buy(2, 1)], sql="q")


def test_answers_from_before_have_no_checksum(location: LedgerLocation, ledger: SqlLedger) -> None:
    ledger.store(key(1), b"an answer")
    tamper(location, "UPDATE answers SET checksum = NULL")
    assert ledger.lookup(key(1)) == b"an answer"


def test_a_forged_charge_is_found_at_the_start(policy: Path) -> None:
    bought(policy, COUNT)
    tamper(files(policy), "UPDATE charges SET dataset_loss = 1, user_loss = 1")
    with pytest.raises(LedgerDamaged, match="charge 1 was altered"):
        open_dataset(policy)
    with pytest.raises(OperationalError, match="is not sound"):
        accept_ledger(load(policy))


def test_altered_answers_are_dropped_when_the_ledger_is_accepted(policy: Path) -> None:
    bought(policy, COUNT)
    tamper(files(policy), "UPDATE answers SET payload = x'7b7d'")
    with closing(open_dataset(policy)) as dataset, pytest.raises(LedgerDamaged):
        ask(dataset, COUNT)
    with pytest.raises(LedgerDamaged):
        open_dataset(policy)
    assert accept_ledger(load(policy)).dropped > 0
    bought(policy, COUNT)


def test_damage_of_the_file_ends_charging_for_good(policy: Path) -> None:
    bought(policy, COUNT)
    with closing(open_dataset(policy)) as dataset:
        with closing(sqlite3.connect(files(policy))) as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        whole = files(policy).read_bytes()
        with files(policy).open("r+b") as file:
            file.seek(4096)
            file.write(b"\xff" * (len(whole) - 4096))
        with pytest.raises(OperationalError):
            ask(dataset, f"{COUNT} WHERE age > 20")
        files(policy).write_bytes(whole)  # as if nothing had been
        with pytest.raises(LedgerDamaged):
            ask(dataset, f"{COUNT} WHERE age > 30")
