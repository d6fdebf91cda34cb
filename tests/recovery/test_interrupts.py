"""Who asks with the driver or the command line does not wait for a ledger longer than he wants to."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from pathlib import Path

import pytest

import dpsql
from dpsql.errors import Cancelled
from dpsql.privacy.accounting import Price
from tests import toy
from tests.ledger_places import Server, held
from tests.server.process import eventually

COUNT = "SELECT COUNT(*) FROM people"
SOON = 20  # seconds; a wait that nothing ends takes longer than that


@pytest.fixture(scope="module")
def books() -> Iterator[Server]:
    with closing(Server()) as server:
        yield server


class Waiting:
    """A dataset whose ledger can be made to wait, with nothing spent."""

    def __init__(self, policy: Path, books: Server | None) -> None:
        self.policy = policy
        self._books = books

    def begin(self) -> AbstractContextManager[object]:
        if self._books is None:
            return held(self.policy.with_name(f"{toy.DATABASE}.ledger"))
        return self._books.frozen()


@pytest.fixture(params=["a locked file", "a server that is stopped"])
def waiting(request: pytest.FixtureRequest, clinic: Path) -> Waiting:
    books: Server | None = None
    if request.param != "a locked file":
        books = request.getfixturevalue("books")
        assert books is not None
        address = books.empty_database()
        clinic.write_text(clinic.read_text().replace("[privacy]", f'ledger = "{address.url}"\n[privacy]'))
    dpsql.connect(clinic, user="alice", new_ledger=True).close()
    return Waiting(clinic, books)


def test_the_driver_cancels(waiting: Waiting) -> None:
    with dpsql.connect(waiting.policy, user="alice") as connection, ThreadPoolExecutor(1) as pool:
        cursor = connection.cursor()
        with waiting.begin():
            asked = pool.submit(cursor.execute, COUNT)
            eventually(lambda: cursor._running is not None)
            cursor.cancel()
            assert isinstance(asked.exception(SOON), Cancelled)
        assert connection.budget.spent.grains == Price()
        cursor.execute(COUNT)
        assert connection.budget.spent.grains != Price()


@contextmanager
def started(policy: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "dpsql", *arguments, "--policy", str(policy)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def has_open(process: subprocess.Popen[str], name: str) -> bool:
    """Whether a process has come as far as a file, or a socket, of the ledger."""
    found = []
    for each in Path(f"/proc/{process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            found.append(str(each.readlink()))
    return any(name in each for each in found)


def test_an_interrupt_ends_a_command(waiting: Waiting) -> None:
    """While it opens the ledger, and so in the main thread, or while its query waits."""
    name = ".ledger" if waiting._books is None else "socket:"
    with waiting.begin(), started(waiting.policy, "query", COUNT, "--user", "alice") as process:
        eventually(lambda: has_open(process, name))
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=SOON)
        assert process.returncode not in (0, None)
    with dpsql.connect(waiting.policy, user="alice") as connection:
        assert connection.budget.spent.grains == Price()
