"""`dpsql serve` in a process of its own over the toy data, and what one can see of it from outside."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import psycopg
from psycopg.rows import TupleRow

from dpsql.engines.postgres.local_cluster import ADMIN, PORT, Cluster
from dpsql.policy.passwords import Verifier
from dpsql.server.twin import DATABASE
from grammar_tests.reaper import reap_process
from tests import toy

USERS = ("alice", "bob")
PASSWORD = "correct horse"  # noqa: S105 - of made-up data
PATIENCE = 60.0  # seconds until what does not happen is taken for never

Connection = psycopg.Connection[TupleRow]


@cache
def verifier() -> Verifier:
    """As few iterations as are allowed: tests connect often."""
    return Verifier.derived(PASSWORD, b"salt of sixteen!", 4_096)


def user_section(name: str) -> str:
    return f'\n[users.{name}]\npassword = "{verifier()}"\n'


@contextmanager
def home() -> Iterator[Path]:
    """A folder that the twin's own user can enter too, so that nothing of it lies elsewhere."""
    folder = Path(tempfile.mkdtemp(prefix="dpsql-test-"))
    folder.chmod(0o711)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def write_clinic(folder: Path, *, server: str = "", users: Sequence[str] = USERS) -> Path:
    """The toy data with a policy whose users can log in. The purse is large, so that tests need not count."""
    if not (folder / toy.DATABASE).exists():
        toy.create_database(folder / toy.DATABASE)
    for ledger in (*folder.glob(f"{toy.DATABASE}.ledger*"), *folder.glob(".dpsql/*/ledger.json")):
        ledger.unlink()
    policy = toy.write_policy(folder, epsilon="1_000", users=())
    policy.write_text(policy.read_text() + f"\n[server]\n{server}\n" + "".join(map(user_section, users)))
    return policy


def eventually(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.01)


_HELD: list[socket.socket] = []  # until this process ends


def free_port() -> int:
    """A port that the system gives to nobody else: it stays taken, and is shared with a server that says it may be."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    _HELD.append(held)
    port: int = held.getsockname()[1]
    return port


class Serving:
    """A server that has started, and is stopped at the end of a `with` block."""

    def __init__(self, policy: Path, *arguments: str) -> None:
        self.policy = policy
        self.out, self.log = policy.with_name("serve.out"), policy.with_name("serve.log")
        for path in (self.out, self.log):  # workers of one that was killed may still write to it
            path.unlink(missing_ok=True)
        with self.out.open("wb") as out, self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "dpsql", "serve", "--port", "0", "--policy", str(policy), *arguments],
                stdout=out,
                stderr=log,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
            )
        reap_process(self.process.pid)
        try:
            eventually(lambda: self.process.poll() is not None or "\nconnect with" in self.out.read_text())
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise
        found = re.search(r"listening on 127\.0\.0\.1:(\d+)", self.out.read_text())
        assert found, self.log.read_text()
        self.port = int(found[1])
        self._cluster = Cluster(policy.parent / ".dpsql" / policy.stem)

    def __enter__(self) -> Serving:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self.process.poll() is None:
            self.stop()

    def stop(self, *signals: signal.Signals) -> int:
        """End it; its exit status."""
        first, *more = signals or (signal.SIGTERM,)
        self.process.send_signal(first)
        for number in more:
            self.wait_for("stopping")  # two at once would be one
            self.process.send_signal(number)
        return self.process.wait(PATIENCE)

    # --- asking ---

    def connect(self, user: str = USERS[0], **more: Any) -> Connection:
        given: dict[str, Any] = {
            "host": "127.0.0.1",
            "port": self.port,
            "user": user,
            "password": PASSWORD,
            "dbname": DATABASE,
        }
        return psycopg.connect(**(given | {"sslmode": "disable", "autocommit": True} | more))

    def answers(self) -> bool:
        """Whether somebody who comes now is served."""
        with self.connect("bob") as connection:
            return connection.execute("SELECT COUNT(*) FROM people").fetchone() is not None

    # --- watching ---

    def events(self, name: str | None = None) -> list[dict[str, Any]]:
        # The last line may be half written.
        found = [json.loads(line) for line in self.log.read_text().splitlines(keepends=True) if line.endswith("\n")]
        return [event for event in found if name in (None, event["event"])]

    def wait_for(self, name: str, **facts: Any) -> dict[str, Any]:
        """The last event of a name with such facts, once there is one."""

        def matching() -> list[dict[str, Any]]:
            return [event for event in self.events(name) if facts.items() <= event.items()]

        eventually(matching)
        return matching()[-1]

    def admin(self) -> Connection:
        """The twin, as dpsql itself sees it."""
        folder = str(self._cluster.socket.parent.resolve())
        return psycopg.connect(host=folder, port=PORT, user=ADMIN, dbname=DATABASE, autocommit=True)

    def twin_sessions(self) -> int:
        """How many clients have a session on the twin."""
        with self.admin() as twin:
            row = twin.execute(
                "SELECT COUNT(*) FROM pg_stat_activity WHERE usename = ANY (%s)", [list(USERS)]
            ).fetchone()
        assert row is not None
        return int(row[0])

    def twin_pid(self) -> int:
        return int((self._cluster.data / "postmaster.pid").read_text().splitlines()[0])

    def charges(self) -> int:
        from contextlib import closing
        from sqlite3 import connect

        with closing(connect(self.policy.with_name(f"{toy.DATABASE}.ledger"))) as ledger:
            (count,) = ledger.execute("SELECT COUNT(*) FROM charges").fetchone()
        return int(count)


def fetch(port: int, path: str) -> tuple[int, str]:
    """A page over HTTP, whatever its status."""
    try:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE) as page:
            return page.status, page.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()
