"""psql, the terminal client, version 16."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.server.clients.questions import COUNT, ENDLESS, REFUSED, STATES, TABLES, UNKNOWN_COLUMN
from tests.server.connection import PATIENCE, Address
from tests.server.plain import program

CSV = "state,n\nCA,9\nNY,9\nTX,8\n"


def _environment(address: Address) -> dict[str, str]:
    return {
        **os.environ,
        "PGHOST": address.host,
        "PGPORT": str(address.port),
        "PGUSER": address.user,
        "PGDATABASE": address.database,
        "PGPASSWORD": address.password or "",
        "TERM": "dumb",
    }


def _psql(address: Address, script: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a script as from a file. Notices and errors are apart from the answers."""
    return subprocess.run(
        [program("psql"), "-X", "-q", *options],
        input=script,
        env=_environment(address),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def _output(address: Address, script: str, *options: str) -> str:
    done = _psql(address, script, "-v", "ON_ERROR_STOP=1", *options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_queries(served: Address) -> None:
    assert _output(served, f"{STATES};", "--csv") == CSV
    assert _output(served, f"{COUNT};\n{COUNT} \\g\n", "-At") == "48\n48\n"


def test_several_statements_of_one_command(served: Address) -> None:
    done = _psql(served, "", "-At", "-c", f"SELECT 1; {COUNT}; SELECT 2")
    assert done.stdout == "1\n48\n2\n"


def test_a_file_in_one_transaction(served: Address, tmp_path: Path) -> None:
    (tmp_path / "report.sql").write_text(f"{COUNT};\nSHOW transaction_isolation;\n{STATES};\n")
    assert _output(served, "", "-At", "-1", "-f", str(tmp_path / "report.sql")) == (
        "48\nread committed\nCA|9\nNY|9\nTX|8\n"
    )


def test_databases_schemas_and_roles(served: Address) -> None:
    shown = _output(served, "\\l\n\\dn\n\\du\n\\conninfo\n")
    assert served.database in shown
    assert "public" in shown
    assert served.user in shown


def test_tables_are_listed(served: Address) -> None:
    listed = _output(served, "\\dt\n", "-At")
    assert {line.split("|")[1] for line in listed.splitlines()} == TABLES
    for command in ("\\d", "\\dt+", "\\dp", "\\d *", "\\dt public.*", "\\di", "\\dv", "\\ds", "\\dE"):
        _output(served, command + "\n")


def test_a_table_is_described(served: Address) -> None:
    described = _output(served, "\\d+ people\n", "-At")
    columns = dict(line.split("|")[:2] for line in described.splitlines() if "|" in line)
    assert columns["age"] == "integer"
    assert columns["height"] == "numeric(5,2)"
    assert columns["born"] == "timestamp without time zone"
    assert "Amount|integer" in _output(served, '\\d "Gifts"\n', "-At")


@pytest.mark.parametrize(
    "command",
    "\\df \\dT \\da \\do \\dC \\dD \\dO \\dx \\dL \\dy \\dF \\ddp \\drds \\db \\dconfig \\z \\encoding".split(),
)
def test_other_lists(served: Address, command: str) -> None:
    _output(served, command + "\n")


def test_the_shape_of_a_query(served: Address) -> None:
    assert _output(served, f"{STATES} \\gdesc\n", "-At") == "state|text\nn|bigint\n"


def test_bound_parameters(served: Address) -> None:
    assert _output(served, "SELECT count(*) FROM people WHERE age > $1 \\bind 65 \\g\n", "-At") == "13\n"


def test_variables(served: Address) -> None:
    assert _output(served, f"{COUNT} \\gset\n\\echo :n people\n") == "48 people\n"


def test_portions(served: Address) -> None:
    assert _output(served, f"\\set FETCH_COUNT 2\n{STATES};\n", "-At") == "CA|9\nNY|9\nTX|8\n"


def test_copy_to_a_file(served: Address, tmp_path: Path) -> None:
    target = tmp_path / "states.csv"
    _output(served, f"\\copy ({STATES}) TO '{target}' WITH (FORMAT csv, HEADER)\n")
    assert target.read_text() == CSV


def test_copy_to_standard_output(served: Address) -> None:
    assert _output(served, f"COPY ({STATES}) TO STDOUT WITH (FORMAT csv, HEADER);\n") == CSV


def test_copy_into_a_temporary_table(served: Address) -> None:
    script = "CREATE TEMP TABLE t (x int);\n\\copy t FROM STDIN\n1\n2\n\\.\n"
    assert _output(served, f"{script}SELECT sum(x) FROM t;\n{COUNT};\n", "-At") == "3\n48\n"


def test_watch(served: Address) -> None:
    assert _output(served, f"{COUNT} \\watch i=0.05 c=3\n", "-At").count("48\n") == 3


def test_timing(served: Address) -> None:
    shown = _output(served, f"\\timing on\n{COUNT};\n", "-At")
    assert shown.startswith("48\nTime: ")


def test_crosstab(served: Address) -> None:
    shown = _output(served, "SELECT sex, state, count(*) FROM people GROUP BY 1, 2 ORDER BY 1, 2 \\crosstabview\n")
    assert shown.splitlines()[0].replace(" ", "") == "sex|CA|NY|TX"


def test_explain(served: Address) -> None:
    assert "QUERY PLAN" in _output(served, f"EXPLAIN {COUNT};\n")


def test_an_error_has_its_caret(served: Address) -> None:
    error, line, caret = _psql(served, f"\\set VERBOSITY verbose\n{UNKNOWN_COLUMN};\n").stderr.splitlines()[:3]
    assert error == 'ERROR:  42703: column "nothing" does not exist'
    assert line.startswith("LINE 1: ")
    assert caret.index("^") == line.index("nothing")


def test_a_refusal_has_its_caret_and_hint(served: Address, dpsql_only: None) -> None:
    done = _psql(served, f"\\set VERBOSITY verbose\n\\set SHOW_CONTEXT always\n{REFUSED};\n")
    error, line, caret, hint, *rest = done.stderr.splitlines()
    assert error.startswith("ERROR:  42501: ")
    assert caret.index("^") == line.index("age")
    assert hint.startswith("HINT:  ")
    assert rest == []


def test_what_was_paid(served: Address, dpsql_only: None) -> None:
    """A notice after each answer says it, unless the client wants no notices."""
    assert _psql(served, f"{COUNT};\n").stderr.startswith("NOTICE:  paid ")
    assert _psql(served, f"SET client_min_messages = warning;\n{COUNT};\n").stderr == ""


def test_a_script_goes_on_after_an_error(served: Address) -> None:
    done = _psql(
        served, f"BEGIN;\nSAVEPOINT a;\n{UNKNOWN_COLUMN};\n{COUNT};\nROLLBACK TO a;\n{COUNT};\nCOMMIT;\n", "-At"
    )
    assert "current transaction is aborted" in done.stderr
    assert done.stdout == "48\n"


def test_on_error_rollback(served: Address) -> None:
    script = f"\\set ON_ERROR_ROLLBACK on\nBEGIN;\n{UNKNOWN_COLUMN};\n{COUNT};\nCOMMIT;\n"
    assert _psql(served, script, "-At").stdout == "48\n"


def test_ctrl_c(served: Address) -> None:
    """An interrupt that comes too early ends psql itself: the first answer says that it is on its way."""
    with subprocess.Popen(
        [program("psql"), "-X", "-At", "-q"],
        env=_environment(served),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        bufsize=1,
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(f"SET client_min_messages = warning;\n{COUNT};\n{ENDLESS};\n")
        assert process.stdout.readline() == "48\n"
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and not select.select([process.stdout], [], [], 0.3)[0]:
            process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
    assert "ERROR:  canceling statement due to user request" in rest


def test_completion(served: Address) -> None:
    """The Tab key: psql asks the catalog with queries of its own."""
    process, terminal = pty.fork()
    if process == 0:
        psql = program("psql")
        os.execve(psql, [psql, "-X", "-At", "-q", "-P", "pager=off"], _environment(served))  # noqa: S606
    try:
        _type(terminal, "SELECT count(*) FROM peo\t", until="people")
        _type(terminal, " WHERE ag\t", until="age")
        _type(terminal, "> 65;\n", until="13")
        _type(terminal, "\\d vis\t", until="visits")
        _type(terminal, "\n\\q\n", until="seen")
    finally:
        os.close(terminal)
        os.waitpid(process, 0)


def _type(terminal: int, keys: str, *, until: str) -> None:
    os.write(terminal, keys.encode())
    seen = b""
    deadline = time.monotonic() + PATIENCE
    while until.encode() not in seen:
        ready, _, _ = select.select([terminal], [], [], max(deadline - time.monotonic(), 0))
        assert ready, f"{until!r} is not in {seen!r}"
        seen += os.read(terminal, 65_536).replace(b"\a", b"")
