"""`dpsql shell`: what is typed, what is piped in, and what Tab offers."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from prompt_toolkit.application import create_app_session
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

import dpsql
from dpsql.cli import commands
from dpsql.cli.prompt import DeclaredNames, is_command, is_complete, split
from dpsql.cli.shell import Shell, converse, history_file

pytestmark = pytest.mark.usefixtures("begun_ledger")

BY_STATE = "SELECT state, COUNT(*) AS n\nFROM people GROUP BY state;"


@pytest.fixture(autouse=True)
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place of its own for the history of typed lines."""
    home = tmp_path / "state"
    monkeypatch.setenv("XDG_STATE_HOME", str(home))
    return home


@pytest.fixture
def connection(clinic: Path) -> Iterator[dpsql.Connection]:
    with dpsql.connect(clinic) as opened:
        yield opened


def script(policy: Path, text: str) -> Result:
    return CliRunner().invoke(commands, ["shell", "--policy", str(policy)], input=text, prog_name="dpsql")


def type_in(connection: dpsql.Connection, keys: str) -> None:
    """Press these keys at the prompt; \\r is Enter."""
    with create_pipe_input() as keyboard, create_app_session(input=keyboard, output=DummyOutput()):
        keyboard.send_text(keys)
        converse(Shell(connection), connection)


# --- where a statement ends ---


@pytest.mark.parametrize(
    ("text", "statements", "rest"),
    [
        ("SELECT 1;", ["SELECT 1"], ""),
        ("SELECT 1; SELECT 2;", ["SELECT 1", "SELECT 2"], ""),
        ("SELECT 1;\n SELECT", ["SELECT 1"], "\n SELECT"),
        ("SELECT ';' AS \";\";", ["SELECT ';' AS \";\""], ""),
        ("SELECT 'it''s;", [], "SELECT 'it''s;"),
        ("SELECT 1 -- ;", [], "SELECT 1 -- ;"),
        ("SELECT 1 -- ;\n;", ["SELECT 1 -- ;"], ""),
        ("SELECT /* ; */ 1; -- done", ["SELECT /* ; */ 1"], ""),
        ("/* ;", [], ""),
        (";;\n", [], ""),
        ("", [], ""),
    ],
)
def test_statements_end_at_semicolons_outside_quotes_and_comments(text: str, statements: list[str], rest: str) -> None:
    assert split(text) == (statements, rest)
    assert is_complete(text) == (rest == "")


def test_commands_are_complete_without_a_semicolon() -> None:
    assert all(
        is_command(text) and is_complete(text) for text in ("\\d", "  \\explain SELECT 1", "exit", "QUIT", "help")
    )
    assert not is_command("SELECT '\\d'")


# --- scripts ---


def test_a_script_runs_statements_and_commands(clinic: Path) -> None:
    result = script(clinic, f"\\set epsilon 0.5\n{BY_STATE} SHOW dpsql.epsilon;\n\\budget\nSELECT 1 AS one")
    assert result.exit_code == 0
    assert result.stdout.startswith("state        n\n-----  -------\nCA ")
    assert "dpsql.epsilon\n-------------\n0.5\nspent: epsilon 0.5 (rho 0.006225)\nleft:  epsilon 9" in result.stdout
    assert result.stdout.endswith("one\n---\n  1\n")
    assert result.stderr.startswith("price: epsilon 0.5 (rho 0.006225); paid now: epsilon 0.5 (rho 0.006225); left: ")


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (
            "SELECT\n  sex FROM people;",
            'error: column "sex" would return rows of private table "people" (SQLSTATE 42501)\n'
            "line 2:   sex FROM people\n"
            "          ^\n"
            "hint: Aggregate it, or group by a column with declared keys.\n",
        ),
        ("\\x", 'error: there is no command "\\x" (SQLSTATE 42000)\nhint: Type \\? for help.\n'),
        ("\\d nothing", 'error: relation "nothing" does not exist (SQLSTATE 42P01)\n'),
        (
            "\\explain SELECT x FROM people;",
            'error: column "x" does not exist (SQLSTATE 42703)\n  SELECT x FROM people\n         ^\n',
        ),
        (
            "\\explain",
            "error: there is no query to explain (SQLSTATE 42000)\nhint: Write it on the same line.\n",
        ),
        (
            "\\set epsilon",
            "error: a setting needs a name and a value (SQLSTATE 22023)\nhint: For example: \\set epsilon 0.5\n",
        ),
    ],
)
def test_a_script_ends_at_the_first_error(clinic: Path, wrong: str, error: str) -> None:
    result = script(clinic, f"{wrong}\n{BY_STATE}\n")
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", error)
    with dpsql.connect(clinic) as connection:
        assert connection.budget.spent.epsilon == 0.0


@pytest.mark.parametrize("word", ["\\q", "exit", "QUIT"])
def test_a_script_can_leave(clinic: Path, word: str) -> None:
    result = script(clinic, f"{word}\n{BY_STATE}\n")
    assert (result.exit_code, result.output) == (0, "")


def test_what_is_declared_is_shown(clinic: Path) -> None:
    clinic.write_text(
        clinic.read_text().replace('"TX"] }', '"TX"], nullable_key = true }').replace("max = 100 }", "max = 99.5 }")
    )
    assert script(clinic, "\\d").stdout.splitlines() == [
        "table   kind     columns",
        "------  -------  -------",
        "people  private        6",
        "states  public         2",
        "visits  private        3",
    ]
    assert script(clinic, "\\d people").stdout.splitlines() == [
        'table "people": private, the unit is "id", at most 1 row per unit counts',
        "column  type              declared",
        "------  ----------------  -----------------------------------------------",
        "age     bigint            0 to 110",
        "sex     text              no bounds; as a key, rare values are suppressed",
        "state   text              keys CA, NY, TX, NULL",
        "income  double precision  0 to 500000 in steps of 1",
        "smoker  boolean           keys false, true",
        "joined  date              2019-01-01 to 2024-12-31",
    ]
    visits = script(clinic, '\\d "visits";').stdout.splitlines()
    assert visits[0] == 'table "visits": private, the unit is "patient_id", at most 10 rows per unit count'
    assert "fee     numeric(4,2)  0 to 99.5" in visits
    assert "seen    timestamp     2021-01-01 00:00:00 to 2022-12-31 23:59:59" in visits
    assert script(clinic, "\\d STATES").stdout.splitlines() == [
        'table "states": public, read as it is',
        "column  type  declared",
        "------  ----  --------",
        "code    text",
        "region  text",
    ]


def test_help_and_explain(clinic: Path) -> None:
    for word in ("\\?", "help"):
        assert "\\budget" in script(clinic, word).stdout
    assert script(clinic, "\\explain SELECT COUNT(*) FROM people").stdout.startswith("Price: epsilon 1 (")


# --- typing ---


def test_a_conversation(connection: dpsql.Connection, capsys: pytest.CaptureFixture[str], state_home: Path) -> None:
    type_in(connection, "SELECT state, COUNT(*) AS n\rFROM people GROUP BY state;\rSELECT sex FROM people;\r\\q\r")
    shown = capsys.readouterr()
    welcome, hint, head, *_ = shown.out.splitlines()
    assert welcome.startswith(f"dpsql {dpsql.__version__}, user alice, left: epsilon 100 (")
    assert hint == "Type \\? for help, \\q to leave."
    assert head.split() == ["state", "n"]
    price, error, *_ = shown.err.splitlines()
    assert price.startswith("price: epsilon 1 (") and error.startswith('error: column "sex" would return rows')
    history = state_home / "dpsql" / "history"
    assert "+FROM people GROUP BY state;\n" in history.read_text()
    assert stat.S_IMODE(history.stat().st_mode) == 0o600


def test_ctrl_c_clears_the_line_and_ctrl_d_leaves(
    connection: dpsql.Connection, capsys: pytest.CaptureFixture[str]
) -> None:
    type_in(connection, "SELECT sex FROM people;\x03SHOW dpsql.fresh;\r\x04")
    shown = capsys.readouterr()
    assert shown.out.endswith("dpsql.fresh\n-----------\noff\n") and shown.err == ""


def test_ctrl_c_cancels_a_query_and_the_conversation_goes_on(
    connection: dpsql.Connection, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(dpsql.Cursor, "execute", interrupted)
        type_in(connection, f"{BY_STATE}\r\\budget\r\x04")
    shown = capsys.readouterr()
    assert "detail: What was charged for it stays charged.\n" in shown.err
    assert "spent: nothing\n" in shown.out


def test_without_a_place_for_history_the_shell_still_works(
    connection: dpsql.Connection, state_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state_home.write_text("not a folder")
    assert history_file() is None
    type_in(connection, "SHOW dpsql.fresh;\r\x04")
    assert capsys.readouterr().out.endswith("off\n")


def test_history_has_a_default_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert history_file() == tmp_path / ".local" / "state" / "dpsql" / "history"
    assert os.stat(tmp_path / ".local" / "state" / "dpsql").st_mode & 0o077 == 0


# --- completion ---


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("SELECT st", ["states", "state", "starts_with", "stddev", "stddev_pop", "stddev_samp", "strpos"]),
        ("SELECT MEDI", ["MEDIAN"]),
        ("SELECT people.s", ["people.sex", "people.state", "people.smoker"]),
        ("\\", ["\\?", "\\budget", "\\d", "\\explain", "\\q", "\\set"]),
        ("\\d v", ["visits"]),
        ("\\d ", ["people", "states", "visits"]),
        ("SET dpsql.f", ["dpsql.fresh"]),
        ("SELECT COUNT(sta", ["states", "state", "starts_with"]),
        ("SELECT patient", []),  # the unit is not declared as a column
    ],
)
def test_tab_offers_what_is_declared(connection: dpsql.Connection, typed: str, offered: list[str]) -> None:
    found = DeclaredNames(connection.catalog).get_completions(Document(typed), CompleteEvent())
    assert sorted(each.text for each in found) == sorted(offered)
