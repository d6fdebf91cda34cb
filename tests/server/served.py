"""`dpsql serve` in a process of its own, over the toy data, with two users."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType

import duckdb

from dpsql.compliance.toy import POLICIES, fill_clean
from dpsql.policy.passwords import Verifier
from grammar_tests.reaper import reap_process
from tests.server.connection import Address
from tests.server.plain import DATABASE, USERS
from tests.server.process import free_port

PASSWORD = "correct horse"  # noqa: S105  (of made-up data)
_ITERATIONS = 4_096  # the fewest that are allowed: a test connects often
_PATIENCE = 60.0

# A price at which the noise of a count of people is zero but once in e^100 times, and a purse for ninety questions.
_PRIVACY = """
[privacy]
epsilon = 9_000
delta = 1e-3
accounting = "basic"
query_epsilon = 100
max_query_epsilon = 1_000
"""


class Served:
    """The server; stopped and deleted at the end."""

    def __init__(self) -> None:
        self._directory = directory = Path(tempfile.mkdtemp(prefix="served"))
        # Where the tests run as root, the twin runs as somebody else, and keeps its files here only if it may enter.
        directory.chmod(0o755)
        self.policy = directory / "dpsql.toml"
        with duckdb.connect(str(directory / "toy.duckdb")) as connection:
            fill_clean(connection)
        verifier = Verifier.derived(PASSWORD, os.urandom(16), _ITERATIONS)
        tables = (POLICIES / "tables.toml").read_text().replace("[users.alice]\n", "")
        users = "".join(f'\n[users.{name}]\npassword = "{verifier}"\n' for name in USERS)
        self.policy.write_text(_PRIVACY + tables + users)
        self._log = directory / "serve.log"
        port = free_port()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "dpsql", "serve", "--policy", str(self.policy), "--port", str(port)],
                stdout=log,
                stderr=log,
            )
        reap_process(self._process.pid)
        self.address = Address("127.0.0.1", port, USERS[0], DATABASE, PASSWORD)
        self._wait()

    def __enter__(self) -> Served:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _wait(self) -> None:
        deadline = time.monotonic() + _PATIENCE
        while self._process.poll() is None and time.monotonic() < deadline:
            try:
                self.address.connect().close()
            except ConnectionError:
                time.sleep(0.05)
            else:
                return
        self._process.kill()
        self._process.wait()
        raise RuntimeError(f"dpsql serve did not start: {self._log.read_text()}")
