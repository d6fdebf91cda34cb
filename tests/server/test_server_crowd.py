"""Crowds and misfits: many clients at once, and clients that vanish, do not read, or do not speak the protocol."""

from __future__ import annotations

import os
import random
import signal
import socket
import struct
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from types import TracebackType

import psycopg
import pytest
from psycopg.errors import AdminShutdown, CrashShutdown, QueryCanceled

from dpsql.server.twin import DATABASE
from tests import toy
from tests.server.process import PATIENCE, Connection, Serving, eventually, fetch, free_port, home, write_clinic
from tests.server.raw import RawClient, message, startup

CROWD = 200
FRESH = "-c dpsql.fresh=on"  # every statement is charged
COUNT = "SELECT COUNT(*) FROM people"
SLEEP = b"SELECT pg_sleep(3600)"
SYNC, FLUSH = message(b"S", b""), message(b"H", b"")


@pytest.fixture(scope="module")
def metrics_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def serving(metrics_port: int) -> Iterator[Serving]:
    connections = f"max_connections = {CROWD}\nmax_connections_per_user = {CROWD + 1}\n"
    server = f"{connections}metrics_port = {metrics_port}\n[limits]\nmax_queries_per_user = 16\n"
    with home() as folder, Serving(write_clinic(folder, server=server)) as made:
        yield made


@pytest.fixture(autouse=True)
def _nothing_is_left(serving: Serving, metrics_port: int) -> Iterator[None]:
    """Whatever a test did: no session is left on the twin and no statement in the engine, which a later test might
    take for its own; nothing failed unexpectedly, and others are served.
    """
    before = len(serving.events("message"))
    yield
    assert serving.answers()
    eventually(lambda: serving.twin_sessions() == 0)
    eventually(lambda: "\ndpsql_statements_under_way 0\n" in fetch(metrics_port, "/metrics")[1])
    assert serving.events("message")[before:] == []


def parse(sql: bytes) -> bytes:
    return message(b"P", b"\0" + sql + b"\0\0\0")


def bind(portal: bytes = b"") -> bytes:
    return message(b"B", portal + b"\0\0" + struct.pack("!HHH", 0, 0, 0))


def execute(portal: bytes = b"", limit: int = 0) -> bytes:
    return message(b"E", portal + b"\0" + struct.pack("!I", limit))


def query(sql: bytes | str) -> bytes:
    return message(b"Q", (sql.encode() if isinstance(sql, str) else sql) + b"\0")


class Raw(RawClient):
    """A session, ready for its first message."""

    def __init__(self, serving: Serving) -> None:
        super().__init__(socket.create_connection(("127.0.0.1", serving.port)))
        self.connection.settimeout(PATIENCE)  # a server that hangs fails the test instead of stopping it
        self.log_in(startup(user="alice", database=DATABASE, options=FRESH))
        self.until(b"Z")

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.connection.close()

    def until(self, wanted: bytes) -> bytes:
        """Read up to a message of this letter."""
        while (found := self.message())[0] != wanted:
            pass
        return found[1]

    def vanish(self) -> None:
        """Gone without a word."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()


# --- many ---


def test_as_many_as_the_policy_lets_in_at_once(serving: Serving) -> None:
    assert serving.answers()
    with ThreadPoolExecutor(50) as pool:
        crowd = list(pool.map(lambda _: serving.connect(), range(CROWD)))
        try:
            with pytest.raises(psycopg.OperationalError, match="sorry, too many clients already"):
                serving.connect()
            assert serving.twin_sessions() == CROWD
            answers = set(pool.map(lambda each: each.execute(COUNT).fetchone(), crowd))
        finally:
            list(pool.map(Connection.close, crowd))
    assert len(answers) == 1  # replayed
    serving.wait_for("connection_refused", sqlstate="53300")


def test_a_thousand_who_come_and_go(serving: Serving) -> None:
    def come_and_go(times: int) -> None:
        for _ in range(times):
            Raw(serving).connection.close()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(come_and_go, [250] * 4))


# --- slow ---


def test_who_does_not_read_stops_nobody_and_fills_no_memory(serving: Serving) -> None:
    def memory() -> int:
        """Bytes that the server holds now."""
        pages = Path(f"/proc/{serving.process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    assert serving.answers()  # the first answer takes memory for good
    before = memory()
    with Raw(serving) as client:
        client.send(query("SELECT repeat('x', 10000) FROM generate_series(1, 30000)"))  # 300 MB
        client.until(b"T")
        for _ in range(10):
            assert serving.answers()
        assert memory() - before < 50_000_000


def test_who_sends_without_reading_is_not_read_from(serving: Serving) -> None:
    sent = 0
    with Raw(serving) as client:
        client.connection.settimeout(1)
        with suppress(TimeoutError):
            while sent < 50_000_000:
                sent += client.connection.send(query("SELECT repeat('x', 100000)") * 100)
        assert sent < 50_000_000
        assert serving.answers()


# --- gone ---

COPY_IN = b"CREATE TEMP TABLE t (x text); COPY t FROM STDIN"
COPY_OUT = b"COPY (SELECT repeat('x', 10000) FROM generate_series(1, 30000)) TO STDOUT"
PEOPLE = COUNT.encode()


@pytest.mark.parametrize(
    ("sent", "awaited"),
    [
        pytest.param(b"", b"", id="after startup"),
        pytest.param(parse(PEOPLE) + FLUSH, b"1", id="after Parse"),
        pytest.param(parse(PEOPLE) + bind(b"p") + FLUSH, b"2", id="after Bind"),
        pytest.param(query("BEGIN") + parse(b"SELECT state, COUNT(*) FROM people GROUP BY 1") + bind(b"p")
                     + execute(b"p", 1) + FLUSH, b"s", id="in a portal"),
        pytest.param(query("BEGIN; SELECT 1"), b"Z", id="in a transaction"),
        pytest.param(query("BEGIN; SELECT 1/0"), b"Z", id="in a failed transaction"),
        pytest.param(parse(b"SELECT x") + bind() + execute(), b"E", id="in an error, before Sync"),
        pytest.param(query("BEGIN; DECLARE c CURSOR FOR SELECT state, COUNT(*) FROM people GROUP BY 1; FETCH 1 FROM c"),
                     b"Z", id="in a cursor"),
        pytest.param(query(COPY_IN), b"G", id="in COPY FROM"),
        pytest.param(query(COPY_IN) + message(b"d", b"x"), b"G", id="in COPY FROM, with data"),
        pytest.param(query(COPY_OUT), b"d", id="in COPY TO"),
        pytest.param(query(SLEEP), b"", id="while the twin works"),
        pytest.param(query(SLEEP + b"; " + PEOPLE), b"", id="while the twin works before the engine"),
        pytest.param(parse(SLEEP) + bind() + execute() + parse(PEOPLE) + bind() + execute() + SYNC, b"2",
                     id="while the twin works in a pipeline"),
        pytest.param(query(PEOPLE)[:9], b"", id="within a message"),
        pytest.param(b"Q\0", b"", id="within a header"),
        pytest.param(query(PEOPLE), b"", id="before an answer"),
        pytest.param(query(PEOPLE), b"T", id="within an answer"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("abrupt", [True, False], ids=["reset", "closed"])
def test_who_vanishes_leaves_nothing_behind(serving: Serving, sent: bytes, awaited: bytes, abrupt: bool) -> None:
    with Raw(serving) as client:
        client.send(sent)
        if awaited:
            client.until(awaited)
        if abrupt:
            client.vanish()
    # The fixture looks whether something is left.


def cancelled(serving: Serving) -> int:
    """How many statements the engine was stopped in."""
    return sum(event["outcome"] == "cancelled" for event in serving.events("statement"))


@pytest.mark.parametrize("protocol", ["simple", "extended"])
def test_who_vanishes_while_the_engine_works_has_paid(serving: Serving, protocol: str) -> None:
    before, ended = serving.charges(), cancelled(serving)
    # Another question each time: one whose answer is stored is not charged.
    sql = toy.ENDLESS.replace("FROM people)", f"FROM people WHERE income > {before})").encode()
    with Raw(serving) as client:
        client.send(query(sql) if protocol == "simple" else parse(sql) + bind() + execute() + SYNC)
        eventually(lambda: serving.charges() == before + 1)
    eventually(lambda: cancelled(serving) == ended + 1)
    assert serving.charges() == before + 1


# --- cancelled ---


def endless(connection: Connection, serving: Serving) -> int:
    """Start a query that the engine does not finish, and return when it works; the charges before."""
    before = serving.charges()
    # Another question each time: one that was cancelled before its answer is not charged again.
    sql = toy.ENDLESS.replace("FROM people)", f"FROM people WHERE income > {before})")
    connection.pgconn.send_query(sql.encode())
    eventually(lambda: serving.charges() == before + 1)
    return before


def refused(connection: Connection) -> str:
    """The SQLSTATE with which what runs ends."""
    result = connection.pgconn.get_result()
    assert result is not None
    state = result.error_field(psycopg.pq.DiagnosticField.SQLSTATE)
    assert state is not None
    return state.decode()


def test_a_cancel_request_stops_the_engine(serving: Serving) -> None:
    with closing(serving.connect()) as connection:
        before = endless(connection, serving)
        connection.cancel_safe()
        assert refused(connection) == QueryCanceled.sqlstate
    assert serving.charges() == before + 1


def test_a_timeout_stops_the_engine(serving: Serving) -> None:
    ended = cancelled(serving)
    with serving.connect(options=FRESH) as connection:
        connection.execute("SET statement_timeout = '2s'")
        with pytest.raises(QueryCanceled, match="statement timeout"):
            connection.execute(toy.ENDLESS.encode())
        assert connection.execute("SELECT 1").fetchone() == (1,)
    eventually(lambda: cancelled(serving) == ended + 1)


def test_another_session_cancels_what_the_engine_does(serving: Serving) -> None:
    with closing(serving.connect()) as connection, serving.connect() as other:
        endless(connection, serving)
        other.execute("SELECT pg_cancel_backend(%s)", [connection.info.backend_pid])
        assert refused(connection) == QueryCanceled.sqlstate


def test_another_session_ends_one_that_the_engine_works_for(serving: Serving) -> None:
    ended = cancelled(serving)
    with closing(serving.connect()) as connection, serving.connect() as other:
        endless(connection, serving)
        other.execute("SELECT pg_terminate_backend(%s)", [connection.info.backend_pid])
        assert refused(connection) == AdminShutdown.sqlstate
    eventually(lambda: cancelled(serving) == ended + 1)


def test_another_user_cancels_nothing(serving: Serving) -> None:
    with closing(serving.connect()) as connection, serving.connect("bob") as bob:
        endless(connection, serving)
        for function in ("pg_cancel_backend", "pg_terminate_backend"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                bob.execute(f"SELECT {function}({connection.info.backend_pid})".encode())
        connection.cancel_safe()
        assert refused(connection) == QueryCanceled.sqlstate


def test_statements_that_wait_for_their_turn_can_be_cancelled(serving: Serving) -> None:
    with ThreadPoolExecutor(17) as pool:
        crowd = list(pool.map(lambda _: serving.connect(), range(17)))
        try:
            before = serving.charges()
            for connection in crowd[:-1]:
                connection.execute("SET dpsql.fresh = on")
                connection.pgconn.send_query(toy.ENDLESS.encode())
            eventually(lambda: serving.charges() == before + 16)
            crowd[-1].pgconn.send_query(b"SELECT COUNT(*) FROM people WHERE age = 3")
            deadline = time.monotonic() + PATIENCE
            while crowd[-1].pgconn.is_busy():
                assert time.monotonic() < deadline
                crowd[-1].cancel_safe()
                time.sleep(0.05)
                crowd[-1].pgconn.consume_input()
            assert refused(crowd[-1]) == QueryCanceled.sqlstate
            assert serving.charges() == before + 16
        finally:
            list(pool.map(Connection.close, crowd))


# --- nonsense ---


def fatal(data: bytes) -> tuple[str, str]:
    """Code and text of the FATAL error with which a stream of messages ends."""
    found: dict[str, str] = {}
    while data:
        kind, length = struct.unpack_from("!cI", data)
        body, data = data[5 : length + 1], data[length + 1 :]
        if kind == b"E":
            found = {part[:1].decode(): part[1:].decode() for part in body.split(b"\0") if part}
    assert found["V"] == "FATAL"
    return found["C"], found["M"]


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"Q" + struct.pack("!I", 3), "invalid message length"),
        (b"Q" + struct.pack("!I", 0xFFFFFFFF), "a message is longer than 16,777,216 bytes"),
        (b"P" + struct.pack("!I", (1 << 24) + 1) + b"x" * 100, "a message is longer than 16,777,216 bytes"),
        (message(b"Q", b"SELECT 1"), "invalid string in message"),
        (message(b"B", b"\0"), "invalid string in message"),
        (message(b"!", b""), None),
        (message(b"p", b"password\0"), None),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", None),  # TLS, too late
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", None),
    ],
)
def test_what_is_not_the_protocol_ends_the_session(serving: Serving, sent: bytes, said: str | None) -> None:
    with Raw(serving) as client:
        client.send(sent)
        code, text = fatal(client.rest())
    assert code == "08P01"
    assert said in (None, text)


def test_random_bytes_after_the_login(serving: Serving) -> None:
    """Whole messages of random letters and random contents, and random bytes: an answer or the end, never silence."""
    chance = random.Random(20)
    for number in range(60):
        junk = b""
        for _ in range(chance.randrange(1, 20)):
            body = chance.randbytes(chance.choice((0, 1, 2, 5, 20, 300)))
            letter = bytes([chance.choice(b"QPBDECSHFXdcf" if number % 3 else range(256))])
            junk += chance.choice((message(letter, body), message(letter, b"\0" + body + b"\0"), query("SELECT 1")))
        if number % 5 == 0:
            junk += chance.randbytes(50)
        with Raw(serving) as client, suppress(ConnectionError):
            client.send(junk + message(b"X", b""))
            client.connection.shutdown(socket.SHUT_WR)
            client.rest()


# --- the twin ---


def test_a_twin_that_was_killed_comes_back_by_itself(serving: Serving) -> None:
    ended = cancelled(serving)
    with closing(serving.connect()) as idle, closing(serving.connect()) as working:
        endless(working, serving)
        pid = serving.twin_pid()
        os.kill(pid, signal.SIGKILL)
        # PostgreSQL's own processes may have the time to say that they end, or not.
        assert refused(working) in (AdminShutdown.sqlstate, CrashShutdown.sqlstate)
        with pytest.raises((AdminShutdown, CrashShutdown)):
            idle.execute("SELECT 1")
    eventually(lambda: cancelled(serving) == ended + 1)
    with serving.connect() as connection:
        assert connection.execute(COUNT).fetchone()
        # These need the server's own session as well.
        assert connection.execute("SELECT COUNT(*) FROM dpsql.budget").fetchone() == (1,)
        connection.execute(f"SELECT 1; {COUNT}".encode())
    assert serving.twin_pid() != pid
