"""A server in operation: what it tells its owner, how it ends, and how it takes a changed policy."""

from __future__ import annotations

import json
import logging
import re
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path

import psycopg
import pytest
from psycopg.errors import AdminShutdown

import dpsql
from dpsql.server.ops.logs import JsonLines, Words
from tests import toy
from tests.ledger.test_sqlite import as_format_1
from tests.server.process import (
    PASSWORD,
    USERS,
    Serving,
    eventually,
    fetch,
    free_port,
    home,
    user_section,
    write_clinic,
)

COUNT = "SELECT COUNT(*) FROM people"


@pytest.fixture(scope="module")
def metrics_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def serving(metrics_port: int) -> Iterator[Serving]:
    with home() as folder, Serving(write_clinic(folder, server=f"metrics_port = {metrics_port}")) as made:
        yield made


@pytest.fixture(scope="module")
def reused() -> Iterator[Path]:
    with home() as folder:
        yield folder


@pytest.fixture
def own(reused: Path) -> Iterator[Serving]:
    """A server that a test may end. Only the twin's files stay from one to the next: making them takes its time."""
    with Serving(write_clinic(reused)) as made:
        yield made


# --- the log ---


def test_every_line_of_the_log_is_an_event(serving: Serving) -> None:
    with serving.connect("bob") as connection:
        connection.execute("SELECT 1")
        connection.execute("SELECT AVG(age) FROM people WHERE age > 4711")
        connection.execute("SELECT AVG(age) FROM people WHERE age > 4711")
        connection.execute("EXPLAIN SELECT AVG(age) FROM people WHERE age > 4711")
        for refused in ("SELECT id FROM people WHERE age > 4711", "DELETE FROM people"):
            with pytest.raises(psycopg.Error):
                connection.execute(refused)
    ended = serving.wait_for("connection_ended", user="bob", statements=5)
    assert ended["address"] == "127.0.0.1"
    told = [event for event in serving.events() if event.get("user") == "bob"]
    assert [event["event"] for event in told] == ["login", *["statement"] * 5, "connection_ended"]
    assert told[0]["tls"] is False
    statements = told[1:-1]
    outcomes = ["answered", "replayed", "explained", "refused", "refused"]
    assert [event["outcome"] for event in statements] == outcomes
    assert statements[0]["epsilon"] == 1.0 and statements[0]["rho"] > 0
    assert "epsilon" not in statements[1]
    assert [event.get("sqlstate") for event in statements[3:]] == ["42501", "25006"]
    assert all(event["seconds"] >= 0 for event in statements)
    assert "4711" not in serving.log.read_text()


def test_refused_logins_are_told_apart(serving: Serving) -> None:
    for user, password in (("alice", "wrong horse"), ("nobody", PASSWORD)):
        with pytest.raises(psycopg.OperationalError):
            serving.connect(user, password=password)
        assert serving.wait_for("login_refused", user=user)["sqlstate"] == "28P01"
    assert "horse" not in serving.log.read_text()


def test_the_owner_finds_refusals_in_the_ledger_as_well(serving: Serving) -> None:
    with serving.connect() as connection, pytest.raises(psycopg.Error):
        connection.execute("UPDATE people SET age = 1")
    with closing(sqlite3.connect(serving.policy.with_name(f"{toy.DATABASE}.ledger"))) as ledger:
        found = ledger.execute("SELECT sqlstate FROM refusals WHERE sql = 'UPDATE people SET age = 1'").fetchall()
    assert found == [("25006",)]


# --- watching over it ---


def test_metrics_count_what_the_log_tells(serving: Serving, metrics_port: int) -> None:
    def sample(name: str) -> float:
        lines = fetch(metrics_port, "/metrics")[1].splitlines()
        return next(float(line.rpartition(" ")[2]) for line in lines if line.rpartition(" ")[0] == name)

    answered, count = 'dpsql_statements_total{outcome="answered"}', "dpsql_answer_seconds_count"
    before = sample(answered), sample(count), sample("dpsql_epsilon_spent")
    with serving.connect() as connection:
        connection.execute("SET dpsql.fresh = on")
        connection.execute(COUNT)
        eventually(lambda: sample(answered) == before[0] + 1)
        assert sample(count) == before[1] + 1
        assert sample('dpsql_answer_seconds_bucket{le="+Inf"}') == sample(count)
        assert sample("dpsql_epsilon_spent") > before[2]
        assert sample("dpsql_connections") >= 1
    eventually(lambda: sample("dpsql_connections") == 0)


def test_metrics_are_in_the_format_of_prometheus(metrics_port: int, serving: Serving) -> None:
    status, page = fetch(metrics_port, "/metrics")
    assert status == 200 and page.endswith("\n")
    declared: dict[str, str] = {}
    for line in page.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in declared
            declared[name] = kind
        elif not line.startswith("# HELP "):
            sample, _, value = line.rpartition(" ")
            float(value)
            name = sample.partition("{")[0]
            family = (
                name if name in declared else name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count")
            )
            assert declared[family] in ("counter", "gauge", "histogram")
            assert name.endswith("_total") == (declared[family] == "counter")


def test_a_server_that_can_answer_is_well(metrics_port: int, serving: Serving) -> None:
    assert fetch(metrics_port, "/healthz") == (200, "ok\n")
    ledger = serving.policy.with_name(f"{toy.DATABASE}.ledger")
    away = ledger.rename(ledger.with_suffix(".away"))
    try:
        assert fetch(metrics_port, "/healthz") == (503, "the ledger cannot be read\n")
    finally:
        away.rename(ledger)
    assert fetch(metrics_port, "/healthz")[0] == 200


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", b"200 OK"),
        (b"GET /metrics?x=1 HTTP/1.0\r\n\r\n", b"200 OK"),
        (b"HEAD /healthz HTTP/1.1\r\nHost: x\r\n\r\n", b"200 OK"),
        (b"GET / HTTP/1.1\r\n\r\n", b"404 Not Found"),
        (b"GET /../metrics HTTP/1.1\r\n\r\n", b"404 Not Found"),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", b"405 Method Not Allowed"),
        (b"GET /metrics\r\n\r\n", b"400 Bad Request"),
        (b"\x00\xff\xfe\r\n\r\n", b"400 Bad Request"),
        (b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 20_000 + b"\r\n\r\n", b"431 Request Header Fields Too Large"),
    ],
)
def test_http_of_all_sorts(metrics_port: int, serving: Serving, request_: bytes, status: bytes) -> None:
    with socket.create_connection(("127.0.0.1", metrics_port), 30) as visitor:
        visitor.sendall(request_)
        answer = b""
        while part := visitor.recv(65_536):
            answer += part
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 " + status)
    assert (body == b"") == request_.startswith(b"HEAD")
    if body:
        assert b"Content-Length: %d\r\n" % len(body) in head


# --- the end ---


def sleeping(serving: Serving) -> int:
    """How many sessions of the twin do so."""
    with serving.admin() as twin:
        row = twin.execute("SELECT COUNT(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'").fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_ends_in_order(own: Serving, number: signal.Signals) -> None:
    with closing(own.connect()) as idle, closing(own.connect("bob")) as working:
        pid = own.twin_pid()
        working.pgconn.send_query(b"SELECT pg_sleep(2), 7")
        eventually(lambda: sleeping(own))
        own.process.send_signal(number)
        own.wait_for("stopping", signal=number.name)
        # A statement that runs is waited for; who has none is sent away.
        result = working.pgconn.get_result()
        assert result is not None and result.get_value(0, 1) == b"7"
        assert own.process.wait(60) == 0
        assert not Path(f"/proc/{pid}").exists()
        with pytest.raises(AdminShutdown):
            idle.execute("SELECT 1")
    assert [event["event"] for event in own.events()][-1] == "stopped"


def test_a_second_signal_ends_it_at_once(own: Serving) -> None:
    with closing(own.connect()) as connection:
        connection.pgconn.send_query(toy.ENDLESS.encode())
        toy.wait_for_release(own.policy)
        assert own.stop(signal.SIGINT, signal.SIGINT) == 0
        assert own.events("statement")[-1]["outcome"] == "cancelled"
    assert own.charges() == 1


def test_a_new_ledger_is_told_of_once() -> None:
    with home() as folder:
        policy = write_clinic(folder)
        with Serving(policy) as first:
            place = folder / f"{toy.DATABASE}.ledger"
            assert [event["ledger"] for event in first.events("ledger_begun")] == [str(place)]
        with Serving(policy) as again:
            assert again.events("ledger_begun") == []


@pytest.mark.parametrize("arguments", [(), ("--workers", "2")])
def test_other_units_are_served_only_on_the_owners_word(arguments: tuple[str, ...]) -> None:
    count = "SELECT COUNT(*) FROM visits WHERE fee > {}"
    with home() as folder:
        policy = write_clinic(folder)
        with Serving(policy, *arguments) as server, server.connect() as connection:
            connection.execute(count.format(1).encode())
            policy.write_text(policy.read_text().replace('unit = "patient_id"', 'unit = "id"'))
            server.process.send_signal(signal.SIGHUP)
            reason = server.wait_for("reload", outcome="failed")["reason"]
            assert "protects a different unit than the ledger" in reason
            connection.execute(count.format(2).encode())  # with the units of before
            protect = [sys.executable, "-m", "dpsql", "ledger", "protect", "--yes", "--policy", str(policy)]
            subprocess.run(protect, check=True, capture_output=True)
            with pytest.raises(psycopg.errors.SystemError, match="changed the unit of privacy"):
                connection.execute(count.format(3).encode())
            assert server.charges() == 2
            server.process.send_signal(signal.SIGHUP)
            server.wait_for("reload", outcome="done")
            with server.connect() as again:
                again.execute(count.format(3).encode())
            assert server.charges() == 3


def test_a_ledger_from_before_is_told_of_once() -> None:
    with home() as folder:
        policy = write_clinic(folder)
        place = folder / f"{toy.DATABASE}.ledger"
        with dpsql.connect(policy, user=USERS[0]) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT COUNT(*) FROM people")
        as_format_1(place)
        with Serving(policy) as first:
            assert [event["ledger"] for event in first.events("ledger_adopted_units")] == [str(place)]
        with Serving(policy) as again:
            assert again.events("ledger_adopted_units") == []


def test_ledger_users_and_settings_survive_a_restart(own: Serving) -> None:
    with own.connect() as connection:
        connection.execute("ALTER ROLE alice SET dpsql.epsilon = 0.5")
        answer = connection.execute("SELECT COUNT(*) FROM visits").fetchone()
    assert own.stop() == 0
    with Serving(own.policy) as again, again.connect() as connection:
        assert connection.execute("SHOW dpsql.epsilon").fetchone() == ("0.5",)
        connection.execute("SET dpsql.epsilon = 1")
        assert connection.execute("SELECT COUNT(*) FROM visits").fetchone() == answer
        assert again.wait_for("statement")["outcome"] == "replayed"
        connection.execute("ALTER ROLE alice RESET ALL")  # other tests use the same twin


# --- a changed policy ---


def test_more_users_and_other_limits_leave_sessions_alone(own: Serving) -> None:
    with own.connect() as connection:
        changed = own.policy.read_text().replace("query_epsilon = 1.0", "query_epsilon = 0.25")
        own.policy.write_text(
            changed + user_section("carol") + "\n[limits]\ntimeout = 30\nmemory = '1GB'\nthreads = 1\n"
        )
        own.process.send_signal(signal.SIGHUP)
        own.wait_for("reload", outcome="done", connections_ended=0, waits_for_restart="memory, threads")
        connection.execute("SELECT COUNT(*) FROM people WHERE age > 7")
        assert own.wait_for("statement")["epsilon"] == 0.25
        own.connect("carol").close()


def test_the_view_says_what_groups_are_promised(own: Serving) -> None:
    own.policy.write_text(own.policy.read_text().replace("epsilon = 1_000\n", "epsilon = 4.0\n"))
    own.process.send_signal(signal.SIGHUP)
    own.wait_for("reload", outcome="done", connections_ended=0)
    with own.connect() as connection:
        found = connection.execute(
            "SELECT total_epsilon_of_2, total_delta_of_2, total_epsilon_of_5, total_delta_of_5 FROM dpsql.budget"
        ).fetchone()
        assert found is not None
        assert [float(f"{value:.3g}") for value in found] == [8.78, 4.3e-5, 27.0, 0.135]


def test_a_notice_says_which_columns_miss_keys(serving: Serving) -> None:
    """Of kinds, which are not declared, some may not be returned; a total of all is measured by itself."""
    groups = "SELECT kind, COUNT(*) AS n FROM visits GROUP BY kind"
    with serving.connect() as connection:
        details: list[str] = []
        connection.add_notice_handler(lambda notice: details.append(notice.message_detail or ""))
        connection.execute("SET dpsql.epsilon = 1")
        connection.execute(f"SELECT COUNT(*) AS rowcount, SUM(n) FROM ({groups} LIMIT 50000) AS t")
        connection.execute(f"SELECT kind, SUM(n) OVER () AS total FROM ({groups}) AS t")
        connection.execute(f"SELECT kind, RANK() OVER (ORDER BY n DESC) AS place FROM ({groups}) AS t")
    said = '"{}" is computed from the returned keys only: keys that too few units have are missing'
    limited, total, place = details[-3:]
    assert said.format("sum") in limited  # LIMIT cuts off some of the groups
    assert "returned keys" not in total
    assert said.format("place") in place


def test_extremes_of_nobody_are_null(serving: Serving) -> None:
    with serving.connect() as connection:
        connection.execute("SET dpsql.epsilon = 1")
        nobody = "SELECT MIN(age), MAX(income), MEDIAN(age), MIN(CAST(NULL AS numeric)) FROM people WHERE state = 'XX'"
        found = [connection.execute(f"{nobody} AND age < {110 - i}").fetchone() for i in range(5)]
        # Over nobody a number appears in 1 of 40 cases at most.
        assert sum(row == (None,) * 4 for row in found) >= 3


def test_pure_answers_are_sold_when_the_policy_says_so(own: Serving) -> None:
    budget = "SELECT spent_pure, left_pure > 0 FROM dpsql.budget"
    with own.connect() as connection:
        connection.execute("SET dpsql.pure = on")
        assert connection.execute("SHOW dpsql.pure").fetchone() == ("on",)
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="pure answers are not enabled"):
            connection.execute("SELECT COUNT(*) FROM people WHERE age > 8")
        assert connection.execute(budget).fetchone() == (None, None)
        own.policy.write_text(own.policy.read_text().replace("[privacy]\n", "[privacy]\npure = true\n"))
        own.process.send_signal(signal.SIGHUP)
        own.wait_for("reload", outcome="done", connections_ended=0)
        notices: list[str] = []
        connection.add_notice_handler(lambda notice: notices.append(notice.message_primary or ""))
        connection.execute("SELECT COUNT(*) FROM people WHERE age > 8")
        assert own.wait_for("statement", outcome="answered")["pure"] == 1.0
        assert "paid epsilon 5.361 (rho 0.5), or epsilon 1 as pure, left epsilon 999" in notices[-1]
        assert "or epsilon 999 as pure;" in notices[-1]
        assert connection.execute(budget).fetchone() == (1.0, True)
        assert connection.execute("SELECT pure FROM dpsql.history WHERE outcome = 'paid'").fetchall() == [(1.0,)]


def test_a_user_who_is_gone_is_sent_away(own: Serving) -> None:
    with closing(own.connect()) as alice, closing(own.connect("bob")) as bob:
        own.policy.write_text(own.policy.read_text().replace(user_section("bob"), ""))
        own.process.send_signal(signal.SIGHUP)
        own.wait_for("reload", outcome="done", connections_ended=1)
        with pytest.raises(AdminShutdown):
            bob.execute("SELECT 1")
        assert alice.execute("SELECT 1").fetchone() == (1,)
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            own.connect("bob")


def test_other_tables_end_sessions_and_are_there_for_new_ones(own: Serving) -> None:
    with closing(own.connect()) as connection, closing(own.connect("bob")) as working:
        connection.execute("BEGIN")
        with pytest.raises(psycopg.Error):
            connection.execute("SELECT AVG(income) FROM persons")
        working.pgconn.send_query(toy.ENDLESS.encode())
        toy.wait_for_release(own.policy)
        own.policy.write_text(
            own.policy.read_text().replace("age = { min = 0, max = 110 }", "age = { min = 0, max = 50 }")
        )
        own.process.send_signal(signal.SIGHUP)
        own.wait_for("reload", outcome="done", connections_ended=2)
        with pytest.raises(AdminShutdown, match="terminating connection due to administrator command"):
            connection.execute("SELECT 1")
        assert own.wait_for("statement", user="bob")["outcome"] == "cancelled"
    with own.connect() as connection:
        (line,) = connection.execute("SELECT upper FROM dpsql.policy WHERE column_name = 'age'").fetchall()
        assert line == ("50",)
        assert connection.execute(COUNT).fetchone()


def test_a_broken_policy_changes_nothing(own: Serving) -> None:
    good = own.policy.read_text()
    with own.connect() as connection:
        for number, (broken, reason) in enumerate(
            (
                ("[tables", "not valid TOML"),
                (good.replace("[tables.people]", "[tables.persons]"), '"people" has no unit'),
            ),
            1,
        ):
            own.policy.write_text(broken)
            own.process.send_signal(signal.SIGHUP)
            eventually(lambda number=number: len(own.events("reload")) == number)  # type: ignore[misc]
            assert reason in own.events("reload")[-1]["reason"]
        assert connection.execute(COUNT).fetchone()
        assert own.answers()


def test_limits_of_a_policy_that_is_not_taken_are_not_in_force(own: Serving) -> None:
    """The ledger keeps the limits of the policy opened last; this one is opened before the twin refuses its user."""
    good = own.policy.read_text()
    limit = "SELECT round(limit_epsilon) FROM dpsql.budget"
    with own.connect() as connection:
        before = connection.execute(limit).fetchone()
        raised = good.replace("epsilon = 1_000", "epsilon = 2_000").replace(user_section("bob"), "")
        own.policy.write_text(raised + user_section("public"))
        own.process.send_signal(signal.SIGHUP)
        assert "is reserved" in own.wait_for("reload", outcome="failed")["reason"]
        assert connection.execute(limit).fetchone() == before
    with own.connect("bob") as connection:
        assert connection.execute(COUNT).fetchone()


# --- what is wrong at the start ---


def refusal(policy: Path, *more: str) -> str:
    """What `dpsql serve` says when it cannot."""
    ended = subprocess.run(
        [sys.executable, "-m", "dpsql", "serve", "--policy", str(policy), *more],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 1 and ended.stdout == ""
    return ended.stderr


def test_a_ledger_that_the_policy_names_is_created_when_asked_for(reused: Path) -> None:
    policy = write_clinic(reused)
    named = reused / "named.ledger"
    policy.write_text(policy.read_text().replace("[database]\n", f'[database]\nledger = "{named}"\n'))
    refused = refusal(policy, "--port", "0")
    assert f'the ledger "{named}" is missing' in refused
    assert "run the command once with --new-ledger" in refused
    with Serving(policy, "--new-ledger") as made, made.connect() as connection:
        assert connection.execute(COUNT).fetchone()
    with Serving(policy) as made, made.connect() as connection:
        assert connection.execute(COUNT).fetchone()


def test_a_second_server_on_the_same_folder(own: Serving) -> None:
    assert refusal(own.policy, "--port", "0") == (
        f'error: another dpsql uses the state folder "{own.policy.parent / ".dpsql" / "dpsql"}" (SQLSTATE 58000)\n'
        "hint: Stop it first, or give this one a state folder of its own.\n"
    )


def test_a_port_in_use(serving: Serving, metrics_port: int, tmp_path: Path) -> None:
    policy = write_clinic(tmp_path)
    assert refusal(policy, "--port", str(serving.port)).startswith(
        f"error: cannot listen on 127.0.0.1:{serving.port}: address already in use (SQLSTATE F0000)\n"
        "hint: Another server may use this port. Choose one with --port, or with port in [server] of the policy.\n"
    )
    write_clinic(tmp_path, server=f"metrics_port = {metrics_port}")
    assert (
        "hint: Another server may use this port. Choose another metrics_port in [server] of the policy.\n"
        in refusal(policy, "--port", "0")
    )


def test_a_host_that_is_not_here(tmp_path: Path) -> None:
    policy = write_clinic(tmp_path)
    assert "cannot listen on 192.0.2.1:0: cannot assign requested address" in refusal(
        policy, "--port", "0", "--host", "192.0.2.1"
    )


def test_a_folder_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    policy = write_clinic(tmp_path, server='state = "file/state"')
    assert refusal(policy, "--port", "0").endswith(
        f'error: the state folder "{tmp_path}/file/state" cannot be used: Not a directory (SQLSTATE 58000)\n'
    )


def test_the_log_of_a_terminal_is_words() -> None:
    record = logging.makeLogRecord({"msg": "login_refused", "facts": {"user": 'a b\n"', "tls": True, "port": 5}})
    assert Words().format(record).endswith(r'login refused user="a b\n\"" tls=true port=5')
    assert json.loads(JsonLines().format(record))["user"] == 'a b\n"'
    try:
        raise ValueError("a value of the data")
    except ValueError as error:
        failed = logging.makeLogRecord(
            {"msg": "it failed\nbadly", "exc_info": (ValueError, error, error.__traceback__)}
        )
    told = json.loads(JsonLines().format(failed))
    assert told["message"] == "it failed" and told["error"] == "ValueError" and "test_server.py" in told["at"]
    assert "data" not in Words().format(failed)


def test_years_of_dates_are_midnights_in_the_sessions_time_zone(serving: Serving) -> None:
    """As tools with time charts ask, Superset for one."""
    with serving.connect(options="-c TimeZone=Europe/Berlin") as connection:
        shown = connection.execute(
            "SELECT DATE_TRUNC('year', joined), COUNT(*) FROM people GROUP BY DATE_TRUNC('year', joined) ORDER BY 1"
        ).fetchall()
    assert len(shown) == 6
    assert shown[0][0].isoformat() == "2019-01-01T00:00:00+01:00"


def test_lists_moments_with_zones_and_the_clock_are_asked_as_drivers_pass_them(serving: Serving) -> None:
    berlin = timezone(timedelta(hours=2))
    asked = [
        ("state = ANY(%s)", (["CA", "NY"],), "state IN ('CA', 'NY')"),
        ("age = ANY(%s)", ([20, 30, None],), "age IN (20, 30)"),
        ("joined < %s", (datetime(2021, 1, 1, 2, tzinfo=berlin),), "joined < '2021-01-01'"),
        ("joined > CURRENT_DATE", (), "FALSE"),
    ]
    with serving.connect(options="-c TimeZone=Europe/Berlin -c dpsql.epsilon=1") as connection:
        for condition, parameters, same in asked:
            shown = connection.execute(f"SELECT COUNT(*) FROM people WHERE {condition}", parameters).fetchall()
            plain = connection.execute(f"SELECT COUNT(*) FROM people WHERE {same}").fetchall()
            assert abs(shown[0][0] - plain[0][0]) < 50, condition


# --- values at a rank, and prices by margin ---


def test_a_median_is_asked_as_any_aggregate(serving: Serving) -> None:
    with serving.connect() as connection:
        rows = connection.execute(
            "SELECT state, MEDIAN(age), PERCENTILE_CONT(0.9) WITHIN GROUP (ORDER BY age), MAX(joined) FROM people"
            " WHERE age > %s GROUP BY state ORDER BY state",
            [10],
        ).fetchall()
        assert [row[0] for row in rows] == ["CA", "NY", "TX"]
        assert all(10 <= row[1] <= 110 and 10 <= row[2] <= 110 and row[3].year in range(2019, 2025) for row in rows)
        assert connection.execute("SELECT MEDIAN(x) FROM (VALUES (1), (5), (2)) AS t(x)").fetchone() == (2,)


def test_the_price_may_be_stated_as_a_margin(serving: Serving) -> None:
    with serving.connect() as connection:
        connection.execute("SET dpsql.margin = 250")
        plan = connection.execute("EXPLAIN SELECT COUNT(*) AS n FROM people WHERE income < 77").fetchall()
        assert ('Margins (95 %): "n" ±250',) in plan
        assert connection.execute("SHOW dpsql.margin").fetchone() == ("250",)


def test_a_notice_says_what_margins_are_worth(serving: Serving) -> None:
    """Confidence as it is set, marks of numbers without a margin, and cautions as its detail."""
    with serving.connect() as connection:
        notices: list[tuple[str | None, str | None]] = []
        connection.add_notice_handler(lambda notice: notices.append((notice.message_primary, notice.message_detail)))
        assert connection.execute("SHOW dpsql.confidence").fetchone() == ("0.95",)
        connection.execute("SET dpsql.confidence = 0.99")
        connection.execute("SET dpsql.simultaneous = on")
        connection.execute("SELECT state, AVG(age) AS mean, MEDIAN(age) AS half FROM people GROUP BY state").fetchall()
        said, detail = notices[-1]
        assert said is not None and said.endswith('"half" unknown (noise)')
        assert re.search(r'; margins \(99 %, all 6 at once\): "mean" ±[0-9.]+\* to ±[0-9.]+\*, "half"', said)
        assert detail == '± with * is of the noise alone: "age" is clamped to [0, 110]'
        connection.execute("SET dpsql.confidence = 2")
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="less than 1"):
            connection.execute("SELECT COUNT(*) FROM people")
