"""A ledger that does not answer keeps no client, no place and no process of the server."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass

import psycopg
import pytest
from psycopg.errors import QueryCanceled

from dpsql.policy.model import LedgerLocation
from tests import toy
from tests.ledger_places import Server, held, rows
from tests.server.process import Connection, Serving, eventually, fetch, free_port, home, write_clinic

COUNT = "SELECT COUNT(*) FROM people"
SOON = 20  # seconds; a wait that nothing ends takes longer than that


@pytest.fixture(scope="module")
def books() -> Iterator[Server]:
    with closing(Server()) as server:
        yield server


@dataclass
class Outage:
    """A server whose ledger can be made to wait."""

    serving: Serving
    ledger: LedgerLocation
    begin: Callable[[], AbstractContextManager[object]]
    metrics_port: int

    def charges(self) -> int:
        [(number,)] = rows(self.ledger, "SELECT COUNT(*) FROM charges")
        return int(number)

    def statements(self) -> int:
        """How many are under way."""
        found = re.search(r"^dpsql_statements_under_way (\d+)$", fetch(self.metrics_port, "/metrics")[1], re.MULTILINE)
        assert found
        return int(found[1])


@pytest.fixture(params=["a locked file", "a server that is stopped"])
def outage(request: pytest.FixtureRequest) -> Iterator[Outage]:
    port = free_port()
    # One statement of a user at a time: one that were left behind would keep the next one waiting.
    server = f"metrics_port = {port}\n[limits]\nmax_queries_per_user = 1\n"
    with home() as folder:
        policy = write_clinic(folder, server=server)
        if request.param == "a locked file":
            ledger = policy.with_name(f"{toy.DATABASE}.ledger")
            with Serving(policy) as serving:
                yield Outage(serving, ledger, lambda: held(ledger), port)
            return
        postgres: Server = request.getfixturevalue("books")
        address = postgres.empty_database()
        # A connection is waited for longer than the tests do.
        url = f"{address.url}?connect_timeout=60"
        policy.write_text(policy.read_text().replace("[privacy]", f'ledger = "{url}"\n[privacy]'))
        with Serving(policy, "--new-ledger") as serving:
            yield Outage(serving, address, postgres.frozen, port)


def is_waiting(connection: Connection) -> bool:
    return bool(connection.info.transaction_status == psycopg.pq.TransactionStatus.ACTIVE)


def test_who_no_longer_waits_gives_the_place_back(outage: Outage) -> None:
    serving = outage.serving
    with serving.connect() as connection, serving.connect() as second, ThreadPoolExecutor(1) as pool:
        connection.execute(COUNT)
        paid = outage.charges()
        with outage.begin():
            # A cancel request.
            asked = pool.submit(connection.execute, f"{COUNT} WHERE age > 1")
            eventually(lambda: outage.statements() == 1)
            connection.cancel_safe()
            assert isinstance(asked.exception(SOON), QueryCanceled)
            eventually(lambda: outage.statements() == 0)
            # A limit of time, of another connection of the same user: the place is free.
            second.execute("SET statement_timeout = '3s'")
            with pytest.raises(QueryCanceled, match="statement timeout"):
                second.execute(f"{COUNT} WHERE age > 2")
            eventually(lambda: outage.statements() == 0)
            # A client that leaves.
            third = serving.connect()
            third.pgconn.send_query(f"{COUNT} WHERE age > 3".encode())
            eventually(lambda: outage.statements() == 1)
            third.close()
            eventually(lambda: outage.statements() == 0)
            # What is refused is recorded for the owner; nobody waits for that who is cancelled.
            asked = pool.submit(connection.execute, "DELETE FROM people")
            eventually(lambda: outage.statements() == 1)
            connection.cancel_safe()
            assert isinstance(asked.exception(SOON), psycopg.Error)
            # Others notice nothing.
            with serving.connect("bob") as other:
                assert other.execute("SELECT 1").fetchone() == (1,)
        assert connection.execute(f"{COUNT} WHERE age > 4").fetchone()
        assert outage.charges() == paid + 1


def test_it_is_seen_from_outside_and_over_when_it_is_over(books: Server) -> None:
    port = free_port()
    with home() as folder:
        policy = write_clinic(folder, server=f"metrics_port = {port}")
        address = books.empty_database()
        policy.write_text(policy.read_text().replace("[privacy]", f'ledger = "{address.url}"\n[privacy]'))
        with Serving(policy, "--new-ledger") as serving, serving.connect() as connection:
            assert connection.execute("SELECT spent_epsilon FROM dpsql.budget").fetchone() == (0,)
            with books.frozen():
                status, words = fetch(port, "/healthz")
                assert (status, "the ledger cannot be read" in words) == (503, True)
                status, page = fetch(port, "/metrics")
                assert status == 200 and "dpsql_epsilon_limit" in page and "dpsql_epsilon_spent" not in page
                # Views of the own account: a refusal, in both protocols, and the session goes on.
                for prepare in (False, True):
                    with pytest.raises(psycopg.OperationalError, match="the ledger does not answer"):
                        connection.execute("SELECT spent_epsilon FROM dpsql.budget", prepare=prepare)
                with serving.connect("bob") as other:
                    assert other.execute("SELECT 1").fetchone() == (1,)
            assert fetch(port, "/healthz") == (200, "ok\n")
            assert connection.execute(COUNT).fetchone()
            row = connection.execute("SELECT spent_epsilon > 0 FROM dpsql.budget").fetchone()
            assert row == (True,)


@pytest.mark.parametrize("workers", [1, 2])
def test_the_server_ends(books: Server, workers: int) -> None:
    with home() as folder:
        policy = write_clinic(folder)
        address = books.empty_database()
        policy.write_text(policy.read_text().replace("[privacy]", f'ledger = "{address.url}"\n[privacy]'))
        with (
            Serving(policy, "--new-ledger", "--workers", str(workers)) as serving,
            books.frozen(),
            serving.connect() as connection,
            ThreadPoolExecutor(1) as pool,
        ):
            asked = pool.submit(connection.execute, COUNT)
            eventually(lambda: is_waiting(connection))
            assert serving.stop(signal.SIGTERM) == 0
            assert isinstance(asked.exception(SOON), psycopg.OperationalError)
        assert rows(address, "SELECT COUNT(*) FROM charges") == [(0,)]
