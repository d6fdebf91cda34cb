"""Nobody's compiling holds up the server: it is ended by whoever no longer waits, and others do not notice it.

A process that compiles is stopped by the test, as if it had lost itself in some long computation.
"""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from types import TracebackType

import psycopg
import pytest
from psycopg.errors import QueryCanceled

from tests.compile_processes import compiling, hold, is_there, let_go, nursery_of
from tests.server.process import Connection, Serving, eventually, fetch, free_port, home, write_clinic

REPLAYED = "SELECT COUNT(*) FROM people"
PATIENT = "[limits]\ncompile_timeout = 600\n"


@contextmanager
def serving_with(server: str = "", *arguments: str) -> Iterator[Serving]:
    with home() as folder:
        policy = write_clinic(folder, server=server)
        with Serving(policy, *arguments) as serving:
            yield serving


@pytest.fixture(scope="module")
def serving() -> Iterator[Serving]:
    with serving_with(PATIENT) as made:
        yield made


class Hung:
    """An EXPLAIN of one user that will not be compiled before the end of the block."""

    _number = 0

    def __init__(self, serving: Serving, connection: Connection, servers: Sequence[int] = ()) -> None:
        text = "EXPLAIN SELECT COUNT(*) FROM people WHERE income > {}"
        connection.execute(text.format(self._next()).encode())  # so that a process is ready
        self.children = [child for pid in servers or [serving.process.pid] for child in compiling(pid)]
        for child in self.children:
            hold(child)
        connection.pgconn.send_query(text.format(self._next()).encode())

    def __enter__(self) -> Hung:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for child in self.children:
            let_go(child)

    @classmethod
    def _next(cls) -> int:
        cls._number += 1
        return cls._number

    def is_over(self) -> bool:
        """Whether the one that was asked is gone."""
        return not all(map(is_there, self.children))


def sqlstate(connection: Connection) -> str | None:
    """How what runs ends."""
    result = connection.pgconn.get_result()
    assert result is not None
    state = result.error_field(psycopg.pq.DiagnosticField.SQLSTATE)
    return None if state is None else state.decode()


def test_a_cancel_ends_it(serving: Serving) -> None:
    with closing(serving.connect()) as connection, Hung(serving, connection) as hung:
        while not hung.is_over():
            connection.cancel_safe()
            time.sleep(0.01)
        assert sqlstate(connection) == QueryCanceled.sqlstate


def test_a_timeout_ends_it(serving: Serving) -> None:
    with closing(serving.connect()) as connection:
        connection.execute("SET statement_timeout = '2s'")
        with Hung(serving, connection) as hung:
            assert sqlstate(connection) == QueryCanceled.sqlstate
            eventually(hung.is_over)


def test_a_client_that_leaves_ends_it() -> None:
    metrics_port = free_port()
    with serving_with(f"metrics_port = {metrics_port}\n{PATIENT}") as serving:
        connection = serving.connect()
        with Hung(serving, connection) as hung:
            eventually(lambda: "dpsql_statements_under_way 1" in fetch(metrics_port, "/metrics")[1])
            connection.pgconn.finish()
            eventually(hung.is_over)
            serving.wait_for("statement", outcome="cancelled")


def test_others_are_served_meanwhile(serving: Serving) -> None:
    with closing(serving.connect("bob")) as bob:
        bob.execute(REPLAYED)
        with closing(serving.connect()) as alice, Hung(serving, alice) as hung:
            assert bob.execute("SELECT 1").fetchone() == (1,)
            assert bob.execute(REPLAYED).fetchone() is not None
            assert bob.execute("EXPLAIN SELECT AVG(age) FROM people WHERE income > 77").fetchall()
            serving.connect("bob").close()
            assert not hung.is_over()


@pytest.mark.parametrize("workers", [1, 2])
def test_sigterm_ends_the_server_whatever_it_compiles(workers: int) -> None:
    with serving_with(PATIENT, "--workers", str(workers)) as serving:
        connection = serving.connect()
        # All that are ready are held, in whichever process this connection is.
        servers = [event["pid"] for event in serving.events("worker_started")] or [serving.process.pid]
        connection.execute("EXPLAIN SELECT COUNT(*) FROM people WHERE age = 1")
        eventually(lambda: all(map(nursery_of, servers)))
        nurseries = [nursery_of(server) for server in servers]
        with closing(connection), Hung(serving, connection, servers):
            assert serving.stop(signal.SIGTERM, signal.SIGTERM) == 0
            assert serving.events("stopped")
            eventually(lambda: not any(is_there(nursery) for nursery in nurseries if nursery is not None))


def refused(serving: Serving, user: str) -> str:
    with pytest.raises(psycopg.OperationalError) as refusal:
        serving.connect(user)
    return str(refusal.value)


def test_one_user_does_not_take_all_connections() -> None:
    with serving_with("max_connections = 20\nmax_connections_per_user = 19") as serving:
        mine = [serving.connect("alice") for _ in range(18)]
        try:
            assert "reserved for users who have no connection yet" in refused(serving, "alice")
            with closing(serving.connect("bob")):
                assert "reserved for users" in refused(serving, "bob")
        finally:
            for connection in mine:
                connection.close()


def test_connections_of_one_user() -> None:
    with serving_with("max_connections = 20\nmax_connections_per_user = 2") as serving:
        with closing(serving.connect("alice")), closing(serving.connect("alice")):
            assert 'too many connections for role "alice"' in refused(serving, "alice")
            serving.connect("bob").close()
        eventually(lambda: _is_let_in(serving))


def _is_let_in(serving: Serving) -> bool:
    try:
        serving.connect("alice").close()
    except psycopg.OperationalError:
        return False
    return True


def test_one_address_does_not_take_all_logins() -> None:
    """Beyond those that could be let in from it, an address waits for what it has begun itself."""
    with serving_with("max_connections = 5") as serving:
        silent = [socket.create_connection(("127.0.0.1", serving.port)) for _ in range(5)]
        eventually(lambda: _is_refused_at_once(serving))
        with socket.create_connection(("127.0.0.1", serving.port), source_address=("127.0.0.2", 0)) as other:
            other.settimeout(60)
            other.sendall((8).to_bytes(4, "big") + (80877103).to_bytes(4, "big"))  # asks for TLS
            assert other.recv(1) in (b"S", b"N")
        for each in silent:
            each.close()
        eventually(lambda: _is_let_in(serving))


def _is_refused_at_once(serving: Serving) -> bool:
    with socket.create_connection(("127.0.0.1", serving.port)) as one:
        one.settimeout(0.2)
        try:
            return b"53300" in one.recv(1_000)
        except TimeoutError:
            return False


def test_settings_of_others_are_not_shown(serving: Serving) -> None:
    with closing(serving.connect("alice")) as alice, closing(serving.connect("bob")) as bob:
        alice.execute("ALTER ROLE alice SET application_name = 'of alice'")
        own = "SELECT rolconfig FROM pg_roles WHERE rolname = 'alice'"
        assert alice.execute(own).fetchone() == (["application_name=of alice"],)
        assert bob.execute(own).fetchone() == (None,)
        assert bob.execute("SELECT useconfig FROM pg_user WHERE usename = 'alice'").fetchone() == (None,)
        for connection, count in ((alice, 1), (bob, 0)):
            row = connection.execute("SELECT COUNT(*) FROM pg_db_role_setting WHERE setrole <> 0").fetchone()
            assert row == (count,)
        for hidden in ("dpsql_real_pg_db_role_setting", "pg_shadow"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                bob.execute(f"SELECT * FROM {hidden}".encode())
        alice.execute("ALTER ROLE alice RESET application_name")


def test_notifications_stay_with_the_user(serving: Serving) -> None:
    with (
        closing(serving.connect("alice")) as listening,
        closing(serving.connect("alice")) as alice,
        closing(serving.connect("bob")) as bob,
    ):
        for connection in (listening, bob):
            connection.execute("LISTEN news")
        alice.execute("NOTIFY news, 'hello'")
        heard = listening.notifies(timeout=60, stop_after=1)
        assert [note.payload for note in heard] == ["hello"]
        bob.execute("SELECT 1")  # what was notified before would come with it
        assert list(bob.notifies(timeout=0)) == []
        bob.execute("UNLISTEN *")


def test_the_state_folder_is_free_again(tmp_path: Path) -> None:
    """A server that was ended at once leaves nothing that the next would stumble over."""
    policy = write_clinic(tmp_path)
    tmp_path.chmod(0o711)
    for _ in range(2):
        with Serving(policy) as serving:
            assert serving.answers()
            assert serving.stop() == 0
