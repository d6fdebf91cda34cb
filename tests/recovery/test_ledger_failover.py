"""A replica that has missed charges takes over: whoever has seen them charges nothing until the owner accepts it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import psycopg
import pytest

from tests.cut_wire import Wire
from tests.ledger_places import Server, rows
from tests.server.process import Serving, eventually, fetch, free_port, home, write_clinic
from tests.server.test_server_workers import connect_to

COUNT = "SELECT COUNT(*) FROM people WHERE age > {}"
CHARGES = "SELECT COUNT(*) FROM charges"


@pytest.fixture
def primary() -> Iterator[Server]:
    with closing(Server()) as server:
        yield server


@pytest.fixture
def replica(primary: Server) -> Iterator[Server]:
    with closing(primary.replica()) as server:
        yield server


def dpsql(*arguments: str, policy: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dpsql", *arguments, "--policy", str(policy)],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_replica_that_misses_charges_is_not_charged(primary: Server, replica: Server) -> None:
    port = free_port()
    address = primary.address()
    with home() as folder, closing(Wire(address)) as wire, ExitStack() as stack:
        policy = write_clinic(folder, server=f"metrics_port = {port}")
        policy.write_text(policy.read_text().replace("[privacy]", f'ledger = "{wire.address.url}"\n[privacy]'))
        serving = stack.enter_context(Serving(policy, "--new-ledger", "--workers", "2"))
        connections = connect_to(serving, stack)
        connections[1].execute(COUNT.format(1))
        eventually(lambda: rows(replica.address(), CHARGES) == [(1,)])
        replica.stop("fast")
        connections[1].execute(COUNT.format(2))
        connections[2].execute(COUNT.format(3))
        assert rows(address, CHARGES) == [(3,)]

        primary.stop("immediate")
        replica.start()
        replica.promote()
        wire.lead_to(replica.address())

        # Every process, however often, and also for what was stored.
        for connection in connections.values():
            for age in (4, 5):
                with pytest.raises(psycopg.Error, match="has lost charges") as caught:
                    connection.execute(COUNT.format(age))
                assert caught.value.sqlstate == "58000"
        status, words = fetch(port, "/healthz")
        assert status == 503 and "lost charges" in words
        told = serving.wait_for("ledger_lost_charges")
        assert (told["level"], told["charge"], told["charges"]) == ("error", 3, 1)
        again = dpsql("query", COUNT.format(6), "--user", "alice", policy=policy)
        assert again.returncode != 0 and "has lost charges" in again.stderr
        assert rows(replica.address(), CHARGES) == [(1,)]

        # One that is started again knows it, too.
        serving.stop()
        started = dpsql("serve", "--port", "0", policy=policy)
        assert started.returncode != 0 and "has lost charges" in started.stderr

        accepted = dpsql("ledger", "accept", "--yes", policy=policy)
        assert "accepted with 1 charge; charge 3 was the newest seen" in accepted.stdout
        serving = stack.enter_context(Serving(policy, "--workers", "2"))
        for connection in connect_to(serving, stack).values():
            connection.execute(COUNT.format(7))
        assert fetch(port, "/healthz") == (200, "ok\n")
        assert rows(replica.address(), CHARGES) == [(2,)]


def test_a_server_that_runs_goes_on_once_the_owner_has_accepted(primary: Server, replica: Server) -> None:
    with home() as folder, closing(Wire(primary.address())) as wire:
        policy = write_clinic(folder)
        policy.write_text(policy.read_text().replace("[privacy]", f'ledger = "{wire.address.url}"\n[privacy]'))
        with Serving(policy, "--new-ledger") as serving, serving.connect() as connection:
            eventually(lambda: rows(replica.address(), CHARGES) == [(0,)])
            replica.stop("fast")
            connection.execute(COUNT.format(1))
            primary.stop("immediate")
            replica.start()
            replica.promote()
            wire.lead_to(replica.address())
            with pytest.raises(psycopg.Error, match="has lost charges"):
                connection.execute(COUNT.format(2))
            assert dpsql("ledger", "accept", "--yes", policy=policy).returncode == 0
            assert connection.execute(COUNT.format(2)).fetchone()
