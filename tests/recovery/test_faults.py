"""Whatever fails at whichever moment: no charge is lost, nothing is answered unpaid, and it goes on by itself."""

from __future__ import annotations

import resource
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any

import duckdb
import pytest

from dpsql.answering.open_dataset import open_dataset
from dpsql.engines.duckdb.engine import DuckDBEngine
from dpsql.errors import BudgetExhausted, EngineFailed, Error, OperationalError
from dpsql.ledger import database as clock
from dpsql.ledger import sqlite
from dpsql.release import QuerySettings
from tests import toy
from tests.recovery.killing import ABOVE, FREE, Watched, ask, is_sound

COUNT = "SELECT COUNT(*) FROM people"


@pytest.fixture
def policy(clinic: Path) -> Path:
    return toy.write_policy(clinic.parent)


@pytest.fixture
def watched(policy: Path) -> Iterator[Watched]:
    with closing(Watched(policy)) as found:
        yield found


# --- kill -9 ---


def helped(policy: Path, what: str) -> str:
    """What a process says that forks: it must not have threads of an engine, as this one has."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.recovery.killing", what, str(policy)],
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_killed_at_every_step(policy: Path) -> None:
    """Of some hundred lines between question and answer; every eighth of them, and all with DPSQL_ALL=1."""
    tried, *wrong = helped(policy, "killed").splitlines()
    assert not wrong
    assert int(tried) > 25


# --- the disk ---


@contextmanager
def full_disk(*paths: Path) -> Iterator[None]:
    """No file may grow beyond what the largest of these is now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = max(path.stat().st_size for path in paths if path.exists())
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def files_of_ledger(policy: Path) -> tuple[Path, ...]:
    ledger = policy.with_name(f"{toy.DATABASE}.ledger")
    return ledger, ledger.with_name(f"{ledger.name}-wal")


def grow_log(policy: Path, watched: Watched) -> None:
    """Until the log is the largest file of the ledger: a full disk then stops the very next charge."""
    ledger, log = files_of_ledger(policy)
    while not log.exists() or log.stat().st_size <= ledger.stat().st_size:
        ask(watched.dataset, COUNT, fresh=True)


def test_a_full_disk_stops_questions_until_there_is_room(policy: Path, watched: Watched) -> None:
    grow_log(policy, watched)
    asked, spent = watched.asked, watched.dataset.ledger.spent()
    with full_disk(*files_of_ledger(policy)), pytest.raises(OperationalError) as refusal:
        ask(watched.dataset, ABOVE)
    assert "ledger" in refusal.value.message or "disk" in refusal.value.message
    assert watched.asked == asked  # not paid, not asked
    assert watched.dataset.ledger.spent() == spent
    assert ask(watched.dataset, ABOVE)[0] != FREE
    assert is_sound(watched.dataset)


def test_a_disk_that_fills_up_while_the_engine_works_costs_the_charge(policy: Path, watched: Watched) -> None:
    grow_log(policy, watched)
    before = watched.dataset.ledger.spent()
    opened: list[Any] = []

    def fill() -> None:
        limit = full_disk(*files_of_ledger(policy))
        limit.__enter__()
        opened.append(limit)

    watched.before = fill
    try:
        with pytest.raises(OperationalError):
            ask(watched.dataset, COUNT, fresh=True)
    finally:
        watched.before = lambda: None
        opened[0].__exit__(None, None, None)
    paid = watched.dataset.ledger.spent() - before
    assert paid == watched.dataset.compile(COUNT, (), QuerySettings()).price
    assert ask(watched.dataset, COUNT)[1]
    assert is_sound(watched.dataset)


def test_a_disk_that_cannot_be_written_answers_nothing(policy: Path) -> None:
    with closing(Watched(policy)) as first:
        ask(first.dataset, COUNT)
    spent_before = _spent(policy)
    folder = policy.parent
    ledger, _ = files_of_ledger(policy)
    for path in folder.iterdir():
        path.chmod(0o444)
    folder.chmod(0o555)

    try:
        said = helped(policy, "unprivileged")
    finally:
        folder.chmod(0o755)
        for path in folder.iterdir():
            path.chmod(0o644)
        ledger.chmod(0o600)
    assert said.startswith("refused: "), said
    assert _spent(policy) == spent_before
    with closing(Watched(policy)) as again:
        assert ask(again.dataset, ABOVE)[0] != FREE


def _spent(policy: Path) -> int:
    with closing(sqlite3.connect(files_of_ledger(policy)[0])) as db:
        (loss,) = db.execute("SELECT loss FROM accounts WHERE subject = 'dataset'").fetchone()
    return int(loss)


# --- the ledger ---


def test_a_ledger_that_somebody_holds_is_waited_for_and_then_refused(
    policy: Path, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.2)
    with closing(Watched(policy)) as hasty:  # its connection is opened with the short patience
        ask(hasty.dataset, COUNT)
        with closing(sqlite3.connect(files_of_ledger(policy)[0], isolation_level=None)) as holder:
            holder.execute("BEGIN IMMEDIATE")
            asked = hasty.asked
            with pytest.raises(OperationalError, match="in use by another process"):
                ask(hasty.dataset, ABOVE)
            assert hasty.asked == asked
            # What was paid before needs no writer.
            assert ask(hasty.dataset, COUNT)[0] == FREE
            holder.execute("ROLLBACK")
        assert ask(hasty.dataset, ABOVE)[0] != FREE
        assert is_sound(hasty.dataset)


def test_a_clock_that_is_set_back_changes_no_account(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    first = ask(watched.dataset, COUNT)
    now = clock.now()
    monkeypatch.setattr(clock, "now", lambda: now - timedelta(days=400))
    assert ask(watched.dataset, COUNT) == (FREE, first[1])
    assert ask(watched.dataset, ABOVE)[0] != FREE
    history = watched.dataset.ledger.history(None, 10)
    assert [entry.sql for entry in history] == [ABOVE, COUNT]  # by number, not by time
    assert is_sound(watched.dataset)


# --- the engine ---


def test_an_engine_without_memory_keeps_the_charge_and_serves_the_next(tmp_path: Path) -> None:
    with duckdb.connect(str(tmp_path / toy.DATABASE)) as connection:
        connection.execute("CREATE TABLE people AS SELECT i AS id, md5(i::VARCHAR) AS name FROM range(400000) AS t(i)")
    policy = tmp_path / "dpsql.toml"
    policy.write_text(
        f'[database]\nurl = "duckdb:///{toy.DATABASE}"\n[privacy]\nepsilon = 100\ndelta = 1e-6\n[limits]\n'
        'memory = "20MB"\nthreads = 1\n[users.alice]\n'
        '[tables.people]\nunit = "id"\n[tables.people.columns]\nname = {}\n'
    )
    with closing(Watched(policy)) as found:
        large = "SELECT name, COUNT(*) FROM people GROUP BY name"
        with pytest.raises(EngineFailed) as failure:
            ask(found.dataset, large)
        assert "memory" not in failure.value.message.lower()  # nothing of the engine's own words
        assert found.dataset.ledger.spent() == found.dataset.compile(large, (), QuerySettings()).price
        assert ask(found.dataset, "SELECT COUNT(*) FROM people WHERE name > 'x'")[0] != FREE
        assert is_sound(found.dataset)


def test_a_database_that_is_gone_stops_questions_until_it_is_back(policy: Path) -> None:
    database = policy.with_name(toy.DATABASE)
    away = database.with_name("away")
    with closing(Watched(policy)) as found:
        ask(found.dataset, COUNT)
    database.rename(away)
    with pytest.raises(Error):
        open_dataset(policy)
    away.rename(database)
    with closing(Watched(policy)) as found:
        assert ask(found.dataset, COUNT)[0] == FREE
        assert isinstance(found.dataset._engine, DuckDBEngine)


# --- many at once ---


def test_sixty_four_spend_one_purse(clinic: Path) -> None:
    purse = 10
    policy = toy.write_policy(clinic.parent, epsilon=f"{purse}.0", accounting="basic")
    with closing(Watched(policy)) as found:
        together = threading.Barrier(64)

        def spend(number: int) -> bool:
            together.wait()
            try:
                ask(found.dataset, f"SELECT COUNT(*) FROM people WHERE age <> {number}")
            except BudgetExhausted:
                return False
            return True

        with ThreadPoolExecutor(64) as crowd:
            answered = sum(crowd.map(spend, range(64)))
        assert answered == purse == found.asked
        assert found.dataset.accountant.total.loss == found.dataset.ledger.spent().loss
        assert found.dataset.compile(COUNT, (), QuerySettings(epsilon=Fraction(1))).price.loss * purse == (
            found.dataset.ledger.spent().loss
        )
        assert is_sound(found.dataset)
