"""A server whose ledger is locked, went back in time, or is damaged, as clients and the owner see it."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from tests import toy
from tests.ledger_places import tamper
from tests.server.process import Serving, eventually, fetch, free_port, home, write_clinic


@pytest.fixture
def metrics_port() -> int:
    return free_port()


@pytest.fixture
def serving(metrics_port: int) -> Iterator[Serving]:
    with home() as folder, Serving(write_clinic(folder, server=f"metrics_port = {metrics_port}")) as serving:
        yield serving


def ledger_of(serving: Serving) -> Path:
    return serving.policy.with_name(f"{toy.DATABASE}.ledger")


def accept(serving: Serving) -> str:
    return subprocess.run(
        [sys.executable, "-m", "dpsql", "ledger", "accept", "--yes", "--policy", str(serving.policy)],
        check=True,
        capture_output=True,
        text=True,
    ).stdout


def test_a_cancel_works_while_the_ledger_is_locked(serving: Serving) -> None:
    with (
        serving.connect() as connection,
        ThreadPoolExecutor(1) as pool,
        closing(sqlite3.connect(ledger_of(serving), isolation_level=None)) as other,
    ):
        other.execute("BEGIN IMMEDIATE")
        asked = pool.submit(connection.execute, "SELECT COUNT(*) FROM people")
        with serving.connect("bob") as second:  # what reads the ledger alone does not wait
            assert second.execute("EXPLAIN SELECT COUNT(*) FROM people").fetchall()
        connection.cancel_safe()
        assert isinstance(asked.exception(20), psycopg.errors.QueryCanceled)
        assert other.in_transaction  # all the time
        other.execute("ROLLBACK")
        assert connection.execute("SELECT 1").fetchall() == [(1,)]
    assert serving.charges() == 0


def test_the_server_ends_while_the_ledger_is_locked(serving: Serving) -> None:
    with (
        serving.connect() as connection,
        ThreadPoolExecutor(1) as pool,
        closing(sqlite3.connect(ledger_of(serving), isolation_level=None)) as other,
    ):
        other.execute("BEGIN IMMEDIATE")
        asked = pool.submit(connection.execute, "SELECT COUNT(*) FROM people")
        eventually(lambda: connection.info.transaction_status == psycopg.pq.TransactionStatus.ACTIVE)
        assert serving.stop(signal.SIGTERM, signal.SIGTERM) == 0
        assert isinstance(asked.exception(20), psycopg.OperationalError)


def test_lost_charges_and_damage_are_seen_from_outside(serving: Serving, metrics_port: int) -> None:
    ledger = ledger_of(serving)
    with serving.connect() as connection:
        connection.execute("SELECT COUNT(*) FROM people")
        with closing(sqlite3.connect(ledger)) as now, closing(sqlite3.connect(":memory:")) as older:
            now.backup(older)
            connection.execute("SELECT COUNT(*) FROM visits")
            older.backup(now)
        for _ in range(2):
            with pytest.raises(psycopg.Error, match="has lost charges"):
                connection.execute("SELECT AVG(age) FROM people")
        status, words = fetch(metrics_port, "/healthz")
        assert status == 503 and "lost charges" in words
        assert accept(serving)
        assert fetch(metrics_port, "/healthz") == (200, "ok\n")
        assert connection.execute("SELECT AVG(age) FROM people").fetchone()
        tamper(ledger, "UPDATE answers SET payload = CAST('altered' AS BLOB)")
        with pytest.raises(psycopg.Error, match="is damaged"):
            connection.execute("SELECT COUNT(*) FROM people WHERE age > (SELECT AVG(age) FROM people)")
        status, words = fetch(metrics_port, "/healthz")
        assert status == 503 and "damaged" in words
