"""The command line: what goes where, how errors look, and that no traceback reaches anyone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import dpsql
from dpsql.cli import commands, main
from dpsql.cli.report import describe
from dpsql.cli.rows import aligned
from dpsql.errors import Error, ProgrammingError
from tests import toy

BY_STATE = "SELECT state, COUNT(*) AS n FROM people GROUP BY state ORDER BY state"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(commands, arguments, prog_name="dpsql")


def query(policy: Path, *arguments: str) -> Result:
    return run("query", "--policy", str(policy), *arguments)


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "dpsql", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


# --- help ---


def test_every_command_explains_itself_with_an_example() -> None:
    texts = [run("--help")] + [run(name, "--help") for name in commands.commands]
    for result in texts:
        assert result.exit_code == 0
        assert "Example:\n" in result.stdout


def test_version() -> None:
    assert run("--version").stdout == f"dpsql {dpsql.__version__}\n"


def test_help_loads_no_engine() -> None:
    program = (
        "import sys, atexit\n"
        "atexit.register(lambda: print({'duckdb', 'sqlglot', 'numpy'} & set(sys.modules)))\n"
        "from dpsql.cli import main\n"
        "sys.argv = ['dpsql', '--help']\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Usage: dpsql ") and done.stdout.endswith("set()\n")


@pytest.mark.parametrize(
    "arguments",
    [("nonsense",), ("query",), ("query", "--nonsense", "SELECT 1"), ("query", "--epsilon", "x", "SELECT 1")],
)
def test_a_command_that_is_not_understood_ends_with_2(arguments: tuple[str, ...]) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stdout == "" and "Usage: dpsql" in result.stderr


# --- check ---


def test_check_counts_what_is_declared(clinic: Path) -> None:
    result = run("check", str(clinic))
    assert (result.exit_code, result.stderr) == (0, "")
    summary = f"{clinic}: ok, 2 private tables with 9 columns, 1 public table with 2 columns\n"
    assert result.stdout.startswith(summary)
    assert not list(clinic.parent.glob("*.ledger"))  # nothing was paid, nothing was opened


def test_check_reports_every_problem_at_once(clinic: Path) -> None:
    text = clinic.read_text()
    for right, wrong in [
        ("[tables.states]", "[tables.stats]"),  # no such table
        ('unit = "patient_id"', 'unit = "patient"'),  # no such unit
        ("age = {", "agee = {"),  # no such column
        ("smoker = {}", "smoker = { min = 0, max = 1 }"),  # bounds that do not fit the type
    ]:
        assert right in text
        text = text.replace(right, wrong)
    clinic.write_text(text)
    result = run("check", str(clinic))
    assert (result.exit_code, result.stdout) == (1, "")
    lines = text.splitlines()
    for part in ("[tables.stats]", "[tables.visits]", "agee = {", "smoker = {"):
        number = next(i for i, line in enumerate(lines, 1) if line.startswith(part))
        assert f"{clinic}:{number}: " in result.stderr, part
    assert result.stderr.endswith("4 problems in the policy\n")


def test_check_refuses_a_reference_to_a_key_that_is_not_unique(clinic: Path) -> None:
    text = clinic.read_text()
    clinic.write_text(
        text.replace('unit = "patient_id"', 'unit = { via = "patient_id", table = "people", key = "age" }')
    )
    result = run("check", str(clinic))
    assert result.exit_code == 1
    assert 'age is not unique in table "people": a row could have two owners' in result.stderr


def test_check_without_a_policy_or_database(clinic: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (clinic.parent / toy.DATABASE).unlink()
    result = run("check", str(clinic))
    assert result.exit_code == 1
    assert result.stderr.startswith("error: there is no database at ")
    clinic.unlink()
    monkeypatch.chdir(clinic.parent)
    result = run("check")
    assert result.exit_code == 1
    assert result.stderr.startswith("dpsql.toml: the policy file does not exist\n")


# --- query and explain ---


@pytest.mark.usefixtures("begun_ledger")
def test_query_prints_rows_on_one_side_and_the_price_on_the_other(clinic: Path) -> None:
    result = query(clinic, BY_STATE)
    assert result.exit_code == 0
    head, rule, *rows = result.stdout.splitlines()
    assert head.split() == ["state", "n"] and set(rule) <= {"-", " "}
    assert [row.split()[0] for row in rows] == ["CA", "NY", "TX"]
    assert result.stderr.startswith("price: epsilon 1 (rho 0.02294); paid now: epsilon 1 (rho 0.02294); left: epsilon ")
    assert result.stderr.count("\n") == 1

    again = query(clinic, BY_STATE)
    assert again.stdout == result.stdout
    assert "; paid now: nothing; left: " in again.stderr


def test_query_takes_a_price_and_can_buy_anew(clinic: Path) -> None:
    assert "price: epsilon 0.25 (" in query(clinic, "--epsilon", "0.25", BY_STATE).stderr
    assert "paid now: nothing" in query(clinic, "--epsilon", "0.25", BY_STATE).stderr
    assert "paid now: epsilon 0.25 (" in query(clinic, "--epsilon", "0.25", "--fresh", BY_STATE).stderr
    for price in ("0", "-1", "nan", "1e9"):
        result = query(clinic, "--epsilon", price, BY_STATE)
        assert (result.exit_code, result.stdout) == (1, ""), price
        assert "(SQLSTATE 22023)" in result.stderr


def test_query_charges_the_user_who_is_named(clinic: Path) -> None:
    toy.write_policy(clinic.parent, users=["alice", "bob"])
    assert query(clinic, "--user", "bob", BY_STATE).exit_code == 0
    with dpsql.connect(clinic, user="alice") as alice, dpsql.connect(clinic, user="bob") as bob:
        assert (alice.budget.spent.epsilon, bob.budget.spent.epsilon) == (0.0, 1.0)
    assert "hint: Name one of them: alice, bob." in query(clinic, BY_STATE).stderr
    assert 'user "carol" is not known (SQLSTATE 28000)' in query(clinic, "--user", "carol", BY_STATE).stderr


def test_query_creates_a_ledger_elsewhere_only_when_told(clinic: Path) -> None:
    clinic.write_text(clinic.read_text().replace("[privacy]", 'ledger = "other.ledger"\n[privacy]'))
    assert query(clinic, BY_STATE).exit_code == 1
    assert query(clinic, "--new-ledger", BY_STATE).exit_code == 0
    assert "paid now: nothing" in query(clinic, BY_STATE).stderr


@pytest.mark.usefixtures("begun_ledger")
def test_explain_is_free(clinic: Path) -> None:
    result = run("explain", "--policy", str(clinic), "--epsilon", "0.5", BY_STATE)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("Price: epsilon 0.5 (")
    with dpsql.connect(clinic) as connection:
        assert connection.budget.spent.epsilon == 0.0


# --- errors ---


@pytest.mark.usefixtures("begun_ledger")
def test_an_error_says_what_where_and_what_to_do(clinic: Path) -> None:
    for command in ("query", "explain"):
        result = run(command, "--policy", str(clinic), "SELECT sex FROM people")
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr.splitlines() == [
            'error: column "sex" would return rows of private table "people" (SQLSTATE 42501)',
            "  SELECT sex FROM people",
            "         ^",
            "hint: Aggregate it, or group by a column with declared keys.",
        ]


@pytest.mark.parametrize(
    ("sql", "position", "place"),
    [
        ("SELECT a", 8, ["  SELECT a", "         ^"]),
        ("SELECT", 7, ["  SELECT", "        ^"]),
        ("SELECT", 99, ["  SELECT", "        ^"]),
        ("SELECT a,\n\tb\nFROM c", 12, ["line 2:  b", "         ^"]),
        ("SELECT a\nFROM c\n", 15, ["line 2: FROM c", "             ^"]),
        (f"{'x' * 200}!{'y' * 200}", 201, [f"  {'x' * 50}!{'y' * 49}", f"{' ' * 52}^"]),
        ("\x1b[31ma b", 8, ["   [31ma b", "         ^"]),
    ],
)
def test_the_caret_stands_under_the_place(sql: str, position: int, place: list[str]) -> None:
    error = ProgrammingError("wrong", detail="A detail.", hint="A hint.", position=position)
    head, *shown, detail, hint = describe(error, sql).splitlines()
    assert (head, detail, hint) == ("error: wrong (SQLSTATE 42000)", "detail: A detail.", "hint: A hint.")
    assert shown == place


def test_an_error_without_a_place_shows_no_sql() -> None:
    assert describe(Error("wrong"), "SELECT 1") == "error: wrong (SQLSTATE XX000)"


def test_a_defect_shows_neither_traceback_nor_values(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ValueError("income 53063")

    monkeypatch.setattr("dpsql.driver.dbapi.open_dataset", fail)
    monkeypatch.setattr(sys, "argv", ["dpsql", "query", "--user", "alice", "SELECT 1"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("error: internal error: ValueError at dbapi.py:")
    assert "53063" not in shown.err and "Traceback" not in shown.err


@pytest.mark.usefixtures("begun_ledger")
def test_a_reader_who_leaves_is_no_error_to_shout_about(clinic: Path) -> None:
    process = start("query", "--policy", str(clinic), BY_STATE)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    with process.stderr as stderr:
        assert stderr.read() == ""
    assert process.wait() == 1


# --- rows ---


def test_rows_are_aligned_and_harmless() -> None:
    rows = [("a\n\x1b[2J", 5, None), ("ü", 12345, True)]
    assert aligned(["name", "n", "x\ty"], rows, numeric=[False, True, False]) == [
        r"name            n  x\ty",
        r"----------  -----  ----",
        r"a\n\x1b[2J      5  NULL",
        r"ü           12345  true",
    ]


def test_names_are_shown_without_rows() -> None:
    assert aligned(["n"], [], numeric=[True]) == ["n", "-"]
