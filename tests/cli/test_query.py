"""`dpsql query` and `dpsql explain`: where the SQL comes from, and in which shape the answer leaves."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import signal
import subprocess
import sys
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path

import duckdb
import pytest
from click.testing import CliRunner, Result

import dpsql
from dpsql.cli import commands, rows
from dpsql.cli.query import typed
from dpsql.driver.display import Column
from dpsql.types import BIGINT, DATE, DOUBLE, TEXT, Value, decimal
from tests import toy

pytestmark = pytest.mark.usefixtures("begun_ledger")

BY_STATE = "SELECT state, COUNT(*) AS n FROM people GROUP BY state ORDER BY state"
OLD = "SELECT COUNT(*) AS n FROM people WHERE age > %(age)s"


def run(*arguments: str, stdin: str | bytes | None = None) -> Result:
    return CliRunner().invoke(commands, arguments, input=stdin, prog_name="dpsql")


def query(policy: Path, *arguments: str, stdin: str | bytes | None = None) -> Result:
    return run("query", "--policy", str(policy), *arguments, stdin=stdin)


def start(*arguments: str, stdout: int = subprocess.PIPE, stderr: int = subprocess.PIPE) -> subprocess.Popen[bytes]:
    environment = os.environ | {"PYTHONIOENCODING": "utf-8", "COLUMNS": "80"}
    return subprocess.Popen([sys.executable, "-m", "dpsql", *arguments], stdout=stdout, stderr=stderr, env=environment)


def spent(policy: Path) -> float:
    with dpsql.connect(policy) as connection:
        return connection.budget.spent.epsilon


# --- where the SQL comes from ---


def test_sql_is_an_argument_a_file_or_standard_input(clinic: Path, tmp_path: Path) -> None:
    file = tmp_path / "by_state.sql"
    file.write_text(f"\ufeff-- per state\n{BY_STATE};\n", "utf-8")
    wanted = query(clinic, BY_STATE).stdout
    assert wanted
    for result in (
        query(clinic, "-f", str(file)),
        query(clinic, "-", stdin=BY_STATE),
        query(clinic, stdin=BY_STATE),
        query(clinic, "-f", "-", stdin=BY_STATE),
    ):
        assert (result.exit_code, result.stdout) == (0, wanted)
    assert run("explain", "--policy", str(clinic), stdin=BY_STATE).stdout.startswith("Price: ")


@pytest.mark.parametrize(
    ("arguments", "stdin", "message"),
    [
        ((), "  \n", "no SQL: standard input is empty"),
        ((), b"\xff\xfe\x00", "standard input is not text"),
        (("SELECT 1", "-f", "x.sql"), None, "SQL was passed both as an argument and as a file"),
        (("-f", "missing.sql"), None, 'the file "missing.sql" cannot be read: No such file or directory'),
        (("-f", "."), None, 'the file "." cannot be read: Is a directory'),
        (("--param", "age", OLD), None, "'age' is not of the form name=value"),
        (("--param", "=1", OLD), None, "'=1' is not of the form name=value"),
        (("--format", "xml", BY_STATE), None, "'xml' is not one of"),
        (("--format", "parquet", BY_STATE), None, "parquet needs a file: name it with --output"),
        (("--margins", BY_STATE), None, "--margins is for csv, json and parquet: a table shows margins anyway"),
        (("-o", "missing/out.txt", BY_STATE), None, 'there is no folder "missing" to write to'),
        (("-o", ".", BY_STATE), None, '"." is a folder'),
    ],
)
def test_what_is_not_understood_is_said_and_costs_nothing(
    clinic: Path, arguments: tuple[str, ...], stdin: str | bytes | None, message: str
) -> None:
    result = query(clinic, *arguments, stdin=stdin)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert spent(clinic) == 0


# --- parameters ---


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("65", 65),
        ("-3", -3),
        ("0.10", Decimal("0.10")),
        ("1e3", Decimal("1e3")),
        ("TRUE", True),
        ("false", False),
        ("null", None),
        ("2024-02-29", date(2024, 2, 29)),
        ("2024-02-29T12:30", datetime(2024, 2, 29, 12, 30)),
        ("2024-02-29 12:30:05", datetime(2024, 2, 29, 12, 30, 5)),
        ("2024-02-30", "2024-02-30"),
        ("CA", "CA"),
        ("", ""),
        ("'65'", "65"),
        ("'", "'"),
        ("1_000", "1_000"),
        ("nan", "nan"),
        ("٣", "٣"),
    ],
)
def test_parameters_are_typed(text: str, value: Value) -> None:
    assert (typed(text), type(typed(text))) == (value, type(value))


def test_parameters_reach_the_query(clinic: Path) -> None:
    for command in ("query", "explain"):
        result = run(command, "--policy", str(clinic), "--param", "age=65", "--epsilon", "0.5", OLD)
        assert (result.exit_code, "epsilon 0.5" in result.output) == (0, True)
    plain = query(clinic, "--epsilon", "0.5", "SELECT COUNT(*) AS n FROM people WHERE age > 65")
    assert "paid now: nothing" in plain.stderr  # the same question
    sql = "SELECT COUNT(*) FROM people WHERE state = %(state)s AND joined >= %(day)s"
    assert query(clinic, "--param", "state=a=b", "--param", "day=2020-01-01", sql).exit_code == 0


def test_the_price_may_be_stated_as_a_margin(clinic: Path) -> None:
    count = "SELECT COUNT(*) AS n FROM people"
    cheap, dear = (run("explain", "--policy", str(clinic), "--margin", margin, count).output for margin in ("50", "5"))
    assert 'Margins (95 %): "n" ±50' in cheap and 'Margins (95 %): "n" ±5\n' in dear
    assert "the price is the least that keeps counts within ±50 (95 %)" in cheap
    assert "±50" in query(clinic, "--margin", "50", count).output


def test_a_placeholder_without_a_value_is_named_as_one(clinic: Path) -> None:
    result = query(clinic, OLD)
    assert result.exit_code == 1
    assert "a placeholder without a value is not supported" in result.stderr
    assert "--param NAME=VALUE" in result.stderr


def test_errors_point_into_the_sql_as_it_was_written(clinic: Path) -> None:
    result = query(clinic, "--param", "age=65", "SELECT COUNT(*), sex FROM people WHERE age > %(missing)s")
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        'error: there is no parameter "missing" (SQLSTATE 42P02)',
        "  SELECT COUNT(*), sex FROM people WHERE age > %(missing)s",
        "                                               ^",
    ]


# --- a ledger that is missing ---


def test_a_new_ledger_is_told_of_once(clinic: Path) -> None:
    said = "there was no ledger: a new one was created, in which nothing is spent\n"
    assert said not in query(clinic, BY_STATE).stderr
    (clinic.parent / f"{toy.DATABASE}.ledger").unlink()
    for command in ("explain", "query"):
        result = run(command, "--policy", str(clinic), BY_STATE)
        assert result.stderr.startswith(said) == (command == "explain")
        assert result.exit_code == 0


# --- formats ---


def test_a_table_shows_margins_and_no_bars_where_nobody_looks(clinic: Path) -> None:
    result = query(clinic, BY_STATE)
    for line in result.stdout.splitlines()[2:]:
        state, number, margin = line.split()
        assert state in ("CA", "NY", "TX") and number.isdigit() and margin == "±9"


def test_programs_get_plain_values(clinic: Path) -> None:
    with dpsql.connect(clinic) as connection:
        wanted = connection.cursor().execute(BY_STATE).fetchall()
    text = query(clinic, "--format", "csv", BY_STATE).stdout
    assert list(csv.reader(io.StringIO(text))) == [["state", "n"], *([state, str(n)] for state, n in wanted)]
    text = query(clinic, "--format", "json", BY_STATE).stdout
    assert json.loads(text) == [{"state": state, "n": n} for state, n in wanted]


def test_margins_become_columns_on_request(clinic: Path, tmp_path: Path) -> None:
    sql = "SELECT state, COUNT(*), AVG(age) AS age FROM people GROUP BY state"
    names = ["state", "count", "count_margin", "age", "age_margin"]
    text = query(clinic, "--format", "csv", "--margins", sql).stdout
    head, *body = csv.reader(io.StringIO(text))
    assert head == names and {row[2] for row in body} == {"13"}
    assert len({float(row[4]) for row in body}) > 1  # of three, two may be the same once in 40,000 times
    assert list(json.loads(query(clinic, "--format", "json", "--margins", sql).stdout)[0]) == names
    file = tmp_path / "out.parquet"
    assert query(clinic, "--format", "parquet", "--margins", "-o", str(file), sql).exit_code == 0
    relation = duckdb.read_parquet(str(file))
    assert (relation.columns, list(map(str, relation.types[2::2]))) == (names, ["BIGINT", "DOUBLE"])


def test_an_answer_can_go_to_a_file(clinic: Path, tmp_path: Path) -> None:
    for form in ("table", "csv", "json", "markdown"):
        file = tmp_path / f"out.{form}"
        file.write_text("an older answer, longer than the new one" * 100)
        shown = query(clinic, "--format", form, BY_STATE)
        written = query(clinic, "--format", form, "-o", str(file), BY_STATE)
        assert (written.exit_code, written.stdout) == (0, "")
        assert file.read_text("utf-8") == shown.stdout


def test_parquet_keeps_types_and_makes_names_unique(clinic: Path, tmp_path: Path) -> None:
    file = tmp_path / "o'ut.parquet"
    sql = "SELECT state, COUNT(*), SUM(age), COUNT(*), DATE '2024-01-02' AS day FROM people GROUP BY state"
    assert query(clinic, "--format", "parquet", "-o", str(file), sql).exit_code == 0
    relation = duckdb.read_parquet(str(file))
    assert relation.columns == ["state", "count", "sum", "count_2", "day"]
    assert list(map(str, relation.types)) == ["VARCHAR", "BIGINT", "BIGINT", "BIGINT", "DATE"]
    with dpsql.connect(clinic) as connection:
        assert relation.fetchall() == connection.cursor().execute(sql).fetchall()


AWKWARD = [
    Column("a|b", TEXT),
    Column("x", decimal(40, 2)),
    Column("x", DOUBLE),
    Column("d", DATE),
    Column("n", BIGINT, 3),
]
AWKWARD_MARGINS = [(None, None, None, None, 3)] * 2
AWKWARD_ROWS: list[tuple[Value, ...]] = [
    ('say "hi",\n<b>|', Decimal("12345678901234567890.10"), float("inf"), date(2024, 1, 2), 1234),
    (None, None, None, None, None),
]


def test_formats_carry_awkward_values() -> None:
    text = "\n".join(rows.csv_lines(AWKWARD, AWKWARD_ROWS))
    assert list(csv.reader(io.StringIO(text))) == [
        ["a|b", "x", "x", "d", "n"],
        ['say "hi",\n<b>|', "12345678901234567890.10", "inf", "2024-01-02", "1234"],
        ["", "", "", "", ""],
    ]
    first, second = json.loads("\n".join(rows.json_lines(AWKWARD, AWKWARD_ROWS)), parse_float=Decimal)
    assert first == {
        "a|b": 'say "hi",\n<b>|',
        "x": Decimal("12345678901234567890.10"),
        "x_2": None,
        "d": "2024-01-02",
        "n": 1234,
    }
    assert set(second.values()) == {None}
    assert json.loads("\n".join(rows.json_lines(AWKWARD, []))) == []
    assert rows.markdown(AWKWARD, AWKWARD_ROWS, AWKWARD_MARGINS) == [
        r"| a\|b | x | x | d | n |",
        "| --- | ---: | ---: | --- | ---: |",
        r'| say "hi",\\n\<b\>\| | 12345678901234567890.10 | inf | 2024-01-02 | 1,234 ±3 |',
        "| NULL | NULL | NULL | NULL | NULL |",
    ]


def test_names_are_made_unique() -> None:
    assert rows.unique_names(["n", "n_2", "N", "n"]) == ["n", "n_2", "N_3", "n_4"]


def test_the_signs_of_a_column_stand_below_each_other() -> None:
    columns = [Column("key", TEXT), Column("mean", DOUBLE, varies=True), Column("n", BIGINT, 3)]
    values: list[tuple[Value, ...]] = [("a", 1234.56, 1), ("b", 7.777, 1234), ("c", None, None), ("d", 5.0, 3)]
    margins = [(None, 120.5, 3), (None, 0.25, 3), (None, None, None), (None, None, 3)]
    assert rows.table(columns, values, margins) == [
        "key         mean         n",
        "---  -----------  --------",
        "a    1,230 ±130       1 ±3",
        "b     7.78 ±0.25  1,234 ±3",
        "c     NULL         NULL",
        "d        5            3 ±3",
    ]
    assert rows.table(columns, [], []) == ["key  mean  n", "---  ----  -"]


# --- at a terminal ---


def test_bars_need_room() -> None:
    columns = [Column("key", TEXT), Column("n", BIGINT, 3)]
    values: list[tuple[Value, ...]] = [("a", 8), ("日本", 4)]
    margins = [(None, 3), (None, 3)]
    assert rows.table(columns, values, margins, width=25) == [
        "key      n",
        "----  ----",
        "a     8 ±3  ████████████",
        "日本  4 ±3  ██████",
    ]
    assert rows.table(columns, values, margins, width=20) == rows.table(columns, values, margins)
    assert rows.bar(1, 3) == "███" and rows.bar(0, 3) == "" and rows.bar(0.5, 3) == "█▌"


def test_a_terminal_shows_bars(clinic: Path) -> None:
    ours, theirs = pty.openpty()
    process = start("query", "--policy", str(clinic), BY_STATE, stdout=theirs)
    os.close(theirs)
    shown = _drain(ours)
    _, errors = process.communicate()
    assert process.returncode == 0 and errors.startswith(b"price: ")
    lines = shown.decode().splitlines()[2:]
    assert len(lines) == 3 and all("█" in line for line in lines)


def test_a_long_query_shows_progress_and_can_be_interrupted(clinic: Path) -> None:
    ours, theirs = pty.openpty()
    process = start("query", "--policy", str(clinic), toy.ENDLESS, stderr=theirs)
    os.close(theirs)
    toy.wait_for_release(clinic)
    shown = os.read(ours, 1000)
    process.send_signal(signal.SIGINT)
    shown += _drain(ours)
    assert process.communicate()[0] == b"" and process.returncode == 1
    text = shown.decode()
    assert " s (Ctrl-C cancels)" in text
    after = text.rpartition("\x1b[K")[2].splitlines()
    assert after[:2] == [
        "error: the query was cancelled (SQLSTATE 57014)",
        "detail: What was charged for it stays charged.",
    ]
    assert spent(clinic) == 1.0


def test_an_interrupt_where_nobody_looks_shows_no_progress(clinic: Path) -> None:
    process = start("query", "--policy", str(clinic), toy.ENDLESS)
    toy.wait_for_release(clinic)
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate()
    assert (out, process.returncode) == (b"", 1)
    assert errors.startswith(b"error: the query was cancelled (SQLSTATE 57014)\ndetail: ")


def _drain(descriptor: int) -> bytes:
    """Everything up to the end, which on Linux is an error once the other side is closed."""
    shown = b""
    try:
        while part := os.read(descriptor, 1000):
            shown += part
    except OSError:
        pass
    os.close(descriptor)
    return shown


# --- where the answer cannot go ---


def test_what_a_stream_cannot_write_is_escaped(clinic: Path) -> None:
    arguments = [sys.executable, "-m", "dpsql", "query", "--policy", str(clinic), BY_STATE]
    environment = os.environ | {"PYTHONIOENCODING": "iso8859-5"}
    done = subprocess.run(arguments, env=environment, capture_output=True, check=True)
    assert done.stdout.count(b" \\xb19\n") == 3


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("form", ["table", "csv"])
def test_a_full_disk_is_an_error_and_the_answer_is_not_lost(clinic: Path, form: str) -> None:
    with open("/dev/full", "wb") as full:
        process = start("query", "--policy", str(clinic), "--format", form, BY_STATE, stdout=full.fileno())
        _, errors = process.communicate()
    assert process.returncode == 1
    assert errors == b"error: no space left on device (SQLSTATE 58000)\n"
    result = query(clinic, "-o", "/dev/full", BY_STATE)
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        'error: the file "/dev/full" cannot be written: No space left on device (SQLSTATE 58000)',
        "hint: The same query again is free.",
    ]
    assert "paid now: nothing" in query(clinic, BY_STATE).stderr


def test_parquet_that_cannot_be_written_is_an_error(clinic: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.parquet"
    target.symlink_to(tmp_path / "nowhere" / "out.parquet")
    result = query(clinic, "--format", "parquet", "-o", str(target), BY_STATE)
    assert result.exit_code == 1
    assert result.stderr.startswith(f'error: the file "{target}" cannot be written (SQLSTATE 58000)\nhint: ')
