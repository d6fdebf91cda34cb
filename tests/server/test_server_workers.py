"""Several processes behind one port: what one limits, pays and cancels holds for all, and none of them is missed."""

from __future__ import annotations

import os
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.errors import AdminShutdown, ConfigurationLimitExceeded, QueryCanceled

from dpsql.ledger.sqlite import SqliteLedger
from dpsql.privacy.accounting import Price
from tests import toy
from tests.server.process import Connection, Serving, eventually, fetch, free_port, home, user_section, write_clinic

CROWD = 40


@pytest.fixture(scope="module")
def metrics_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def serving(metrics_port: int) -> Iterator[Serving]:
    connections = f"max_connections = {CROWD}\nmax_connections_per_user = {CROWD + 1}\n"
    server = f"{connections}metrics_port = {metrics_port}\n[limits]\nmax_queries_per_user = 3\n"
    with home() as folder, Serving(write_clinic(folder, server=server), "--workers", "2") as made:
        yield made


@pytest.fixture(scope="module")
def reused() -> Iterator[Path]:
    with home() as folder:
        yield folder


@pytest.fixture
def own(reused: Path) -> Iterator[Serving]:
    """A server that a test may end."""
    with Serving(write_clinic(reused), "--workers", "2") as made:
        yield made


def workers(serving: Serving) -> dict[int, int]:
    """The processes that serve now, by number."""
    return {event["worker"]: event["pid"] for event in serving.events("worker_started")}


def connect_to(serving: Serving, stack: ExitStack, user: str = "alice") -> dict[int, Connection]:
    """A connection with each worker. Who has fewer takes the next, if it is in time, so one connects until all have."""
    found: dict[int, Connection] = {}
    for _ in range(CROWD - 1):
        before = len(serving.events("login"))
        connection = stack.enter_context(closing(serving.connect(user)))
        eventually(lambda before=before: len(serving.events("login")) > before)  # type: ignore[misc]
        found[serving.events("login")[-1]["worker"]] = connection
        if len(found) == 2:
            return found
    raise AssertionError("one worker takes them all")


def at_once(actions: list[Callable[[], Any]]) -> list[Any]:
    """What each action gives, or the SQLSTATE with which it fails."""

    def attempt(action: Callable[[], Any]) -> Any:
        try:
            return action()
        except psycopg.Error as error:
            return error.sqlstate

    with ThreadPoolExecutor(len(actions)) as pool:
        return list(pool.map(attempt, actions))


def is_running(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def endless(connection: Connection, serving: Serving) -> None:
    before = serving.charges()
    # Another question each time, which nobody else asks: one that was cancelled before its answer is not charged again.
    sql = toy.ENDLESS.replace("FROM people)", f"FROM people WHERE income > {before})")
    connection.pgconn.send_query(sql.encode())
    eventually(lambda: serving.charges() == before + 1)


def refused(connection: Connection) -> str:
    def has_ended() -> bool:
        connection.pgconn.consume_input()
        return not connection.pgconn.is_busy()

    eventually(has_ended)
    result = connection.pgconn.get_result()
    assert result is not None
    return (result.error_field(psycopg.pq.DiagnosticField.SQLSTATE) or b"").decode()


# --- each takes its share ---


def test_connections_are_shared_out(own: Serving) -> None:
    with ExitStack() as stack:
        for _ in range(12):
            stack.enter_context(closing(own.connect()))
        eventually(lambda: len(own.events("login")) == 12)
    taken = Counter(event["worker"] for event in own.events("login"))
    assert min(taken[1], taken[2]) >= 4  # six, but for what comes too late on a busy machine


def test_one_that_does_not_move_is_not_waited_for(own: Serving) -> None:
    stopped = workers(own)[1]
    os.kill(stopped, signal.SIGSTOP)
    try:
        with ExitStack() as stack:
            for _ in range(3):
                stack.enter_context(closing(own.connect()))
            assert own.events("login")[-1]["worker"] == 2
    finally:
        os.kill(stopped, signal.SIGCONT)


# --- one dies ---


def test_a_worker_that_is_killed_is_started_again_and_others_go_on(serving: Serving, metrics_port: int) -> None:
    with ExitStack() as stack:
        connections = connect_to(serving, stack)
        before = workers(serving)
        os.kill(before[1], signal.SIGKILL)
        assert connections[2].execute("SELECT COUNT(*) FROM people WHERE age > 11").fetchone()
        with pytest.raises(psycopg.OperationalError):
            connections[1].execute("SELECT 1")
        serving.wait_for("worker_lost", worker=1, pid=before[1])
        eventually(lambda: workers(serving)[1] != before[1])
        assert connections[2].execute("SELECT COUNT(*) FROM people WHERE age > 12").fetchone()
    eventually(lambda: fetch(metrics_port, "/healthz") == (200, "ok\n"))
    page = fetch(metrics_port, "/metrics")[1]
    assert "\ndpsql_workers 2\n" in page and "\ndpsql_workers_lost_total 1\n" in page
    with ExitStack() as stack:
        connect_to(serving, stack)


def test_a_twin_that_was_killed_comes_back_for_all(serving: Serving) -> None:
    before = serving.twin_pid()
    os.kill(before, signal.SIGKILL)

    def answered() -> bool:
        try:
            return serving.answers()
        except psycopg.Error:
            return False

    eventually(answered)
    with ExitStack() as stack:
        for connection in connect_to(serving, stack).values():
            assert connection.execute("SELECT COUNT(*) FROM people").fetchone()


def test_workers_do_not_outlive_the_supervisor(own: Serving) -> None:
    pids = workers(own).values()
    assert len(pids) == 2
    own.process.kill()
    own.process.wait()
    eventually(lambda: not any(map(is_running, pids)))


# --- one speaks for all ---


def test_metrics_are_those_of_all(serving: Serving, metrics_port: int) -> None:
    def sample(name: str) -> float:
        found = re.search(rf"^{re.escape(name)} (.+)$", fetch(metrics_port, "/metrics")[1], re.MULTILINE)
        assert found
        return float(found[1])

    before = sample("dpsql_answer_seconds_count")
    with ExitStack() as stack:
        for connection in connect_to(serving, stack).values():
            connection.execute("SELECT COUNT(*) FROM people WHERE age > 21")
        eventually(lambda: sample("dpsql_answer_seconds_count") == before + 2)
        assert sample("dpsql_connections") >= 2


def test_as_many_as_the_policy_lets_in_of_all(serving: Serving) -> None:
    with ExitStack() as stack:
        for _ in range(CROWD):
            stack.enter_context(closing(serving.connect()))
        with pytest.raises(psycopg.OperationalError, match="too many clients"):
            serving.connect()
    eventually(serving.answers)


def test_statements_of_a_user_at_once_of_all(serving: Serving) -> None:
    with ExitStack() as stack:
        connect_to(serving, stack)
        crowd = [stack.enter_context(closing(serving.connect())) for _ in range(8)]
        before = serving.charges()
        for connection in crowd:
            connection.execute("SET dpsql.fresh = on")
            connection.pgconn.send_query(toy.ENDLESS.encode())
        eventually(lambda: serving.charges() == before + 3)
        time.sleep(0.5)
        assert serving.charges() == before + 3
        with serving.connect("bob") as bob:
            assert bob.execute("SELECT COUNT(*) FROM people WHERE age > 31").fetchone()
    eventually(lambda: serving.twin_sessions() == 0)


def test_wrong_passwords_are_counted_of_all(serving: Serving) -> None:
    began = time.monotonic()
    for _ in range(4):
        with pytest.raises(psycopg.OperationalError):
            serving.connect("bob", password="wrong")  # noqa: S106
    assert time.monotonic() - began > 0.25 + 0.5 + 1 + 2


# --- one cancels for another ---


def test_a_cancel_request_reaches_the_worker_it_is_meant_for(serving: Serving) -> None:
    with ExitStack() as stack:
        for connection in connect_to(serving, stack).values():
            for _ in range(3):  # each request comes to either of them
                endless(connection, serving)
                connection.cancel_safe()
                assert refused(connection) == QueryCanceled.sqlstate
                assert connection.pgconn.get_result() is None


def test_a_session_cancels_another_of_the_same_user_elsewhere(serving: Serving) -> None:
    with ExitStack() as stack:
        connections = connect_to(serving, stack)
        for one, other in ((1, 2), (2, 1)):
            endless(connections[one], serving)
            pid = connections[one].info.backend_pid
            connections[other].execute("SELECT pg_cancel_backend(%s)", [pid])
            assert refused(connections[one]) == QueryCanceled.sqlstate
            assert connections[one].pgconn.get_result() is None


# --- one pays for all ---


def test_the_same_question_at_the_same_moment_is_paid_once(serving: Serving) -> None:
    with ExitStack() as stack:
        connect_to(serving, stack)
        crowd = [stack.enter_context(closing(serving.connect())) for _ in range(8)]
        for number in range(5):
            sql = f"SELECT COUNT(*), AVG(income) FROM people WHERE income > {number}".encode()
            before = serving.charges()
            answers = at_once([lambda c=c, q=sql: c.execute(q).fetchall() for c in crowd])  # type: ignore[misc]
            assert serving.charges() == before + 1
            assert answers == [answers[0]] * 8


def test_a_budget_is_spent_exactly() -> None:
    with home() as folder:
        policy = write_clinic(
            folder,
            server="max_connections = 150\nmax_connections_per_user = 150\n[limits]\nmax_queries_per_user = 64\n",
        )
        text = policy.read_text().replace("epsilon = 1_000", "epsilon = 20").replace('"zcdp"', '"basic"')
        policy.write_text(text)
        with Serving(policy, "--workers", "2") as serving, ExitStack() as stack:
            connect_to(serving, stack)
            crowd = [stack.enter_context(closing(serving.connect())) for _ in range(64)]
            questions = [f"SELECT COUNT(*) FROM people WHERE income > {number}".encode() for number in range(64)]
            answers = at_once(
                [lambda c=c, q=q: c.execute(q).fetchall() for c, q in zip(crowd, questions, strict=True)]  # type: ignore[misc]
            )
            assert answers.count(ConfigurationLimitExceeded.sqlstate) == 64 - 20
            assert sum(isinstance(answer, list) for answer in answers) == 20
            assert serving.charges() == 20
        ledger = SqliteLedger(folder / f"{toy.DATABASE}.ledger", None)
        with closing(ledger):
            assert ledger.verify() == []
            assert ledger.spent() == ledger.spent("alice") != Price()


# --- all together ---


def test_another_policy_is_taken_by_all(own: Serving) -> None:
    with ExitStack() as stack:
        connections = connect_to(own, stack)
        own.policy.write_text(own.policy.read_text() + user_section("carol"))
        own.process.send_signal(signal.SIGHUP)
        own.wait_for("reload", outcome="done", connections_ended=0)
        connect_to(own, stack, "carol")
        good = own.policy.read_text()
        own.policy.write_text("[tables")
        own.process.send_signal(signal.SIGHUP)
        own.wait_for("reload", outcome="failed")
        for connection in connections.values():
            assert connection.execute("SELECT COUNT(*) FROM people").fetchone()
        own.policy.write_text(good.replace("age = { min = 0, max = 110 }", "age = { min = 0, max = 50 }"))
        own.process.send_signal(signal.SIGHUP)
        eventually(lambda: len(own.events("reload")) == 3)
        assert own.events("reload")[-1]["outcome"] == "done"
        for connection in connections.values():
            with pytest.raises(AdminShutdown):
                connection.execute("SELECT 1")
        for connection in connect_to(own, stack, "carol").values():
            found = connection.execute("SELECT upper FROM dpsql.policy WHERE column_name = 'age'").fetchall()
            assert found == [("50",)]


def test_all_end_in_order(own: Serving) -> None:
    pids = workers(own).values()
    with ExitStack() as stack:
        connections = connect_to(own, stack)
        assert own.stop() == 0
        for connection in connections.values():
            with pytest.raises(AdminShutdown):
                connection.execute("SELECT 1")
    assert not any(map(is_running, pids))
    assert own.events("worker_lost") == own.events("message") == []
    assert own.events()[-1]["event"] == "stopped"


# --- the supervisor dies, or a worker at the start ---


def process_of(policy: Path, word: str) -> int | None:
    """A process that serves a policy, or a worker of it."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError):
            command = (folder / "cmdline").read_text()
            parent = (folder / "stat").read_text().rsplit(")")[-1].split()[1]
            of_parent = Path(f"/proc/{parent}/cmdline").read_text()
            if word in command and str(policy) in command + of_parent:
                return int(folder.name)
    return None


def has_loaded(pid: int | None, library: str) -> bool:
    return pid is not None and library in Path(f"/proc/{pid}/maps").read_text()


def test_a_worker_that_is_killed_while_the_server_starts_is_started_again() -> None:
    with home() as folder, ThreadPoolExecutor(1) as pool:
        policy = write_clinic(folder)

        def kill() -> int:
            found: int | None = None

            def is_there() -> bool:
                nonlocal found
                found = process_of(policy, "\0dpsql.server.workers.worker\0")
                return found is not None

            eventually(is_there)
            assert found is not None
            os.kill(found, signal.SIGKILL)
            return found

        killing = pool.submit(kill)
        with Serving(policy, "--workers", "2") as serving, ExitStack() as stack:
            assert killing.result() not in workers(serving).values()
            assert len(serving.events("worker_lost")) == 1
            for connection in connect_to(serving, stack).values():
                assert connection.execute("SELECT COUNT(*) FROM people").fetchone()


def test_a_server_is_started_again_at_once_after_its_supervisor_was_killed() -> None:
    """Its workers still hold the port, and one of them works for somebody."""
    with home() as folder:
        policy, port = write_clinic(folder), str(free_port())
        first = Serving(policy, "--workers", "2", "--port", port)
        orphans = workers(first).values()
        with closing(first.connect()) as connection:
            endless(connection, first)
            for pid in orphans:
                os.kill(pid, signal.SIGSTOP)
            first.process.kill()
            first.process.wait()
            with ThreadPoolExecutor(1) as pool:
                again = pool.submit(Serving, policy, "--workers", "2", "--port", port)
                # By then it has loaded its modules, and next it wants the port.
                eventually(lambda: has_loaded(process_of(policy, "\0serve\0"), "_psycopg"))
                for pid in orphans:
                    os.kill(pid, signal.SIGCONT)
                with again.result() as serving:
                    assert serving.port == int(port)
                    assert serving.answers()
        eventually(lambda: not any(map(is_running, orphans)))
