"""`dpsql check`: every problem at once; then what analysts can ask, from the releases of such queries, without data."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest
from click.testing import CliRunner, Result

import dpsql
from dpsql.cli import commands
from tests import toy


def check(policy: Path) -> Result:
    return CliRunner().invoke(commands, ["check", str(policy)], prog_name="dpsql")


def squeezed(text: str) -> list[str]:
    return [re.sub(" {2,}", "  ", line).rstrip() for line in text.splitlines()]


def change(policy: Path, old: str, new: str) -> None:
    text = policy.read_text()
    assert old in text
    policy.write_text(text.replace(old, new))


def test_it_tells_what_can_be_asked_of_each_column(clinic: Path) -> None:
    result = check(clinic)
    assert (result.exit_code, result.stderr) == (0, "")
    assert [line for line in squeezed(result.stdout)[1:] if not line.startswith("  --")] == [
        "",
        'people: unit "id", one row of each counts (the database enforces one row); COUNT(*) ±9',
        "  column  type  clamped to  SUM  GROUP BY  COUNT per key",
        "  age  bigint  0 to 110  ±1,007  111 declared keys  ±9",
        "  sex  text  no  keys of about 31 units or more  ±9",
        "  state  text  no  3 declared keys  ±9",
        "  income  double precision  0 to 500,000  ±4,575,416  keys of about 31 units or more  ±9",
        "  smoker  boolean  no  2 declared keys  ±9",
        "  joined  date  2019-01-01 to 2024-12-31  no  2,192 declared keys  ±9",
        "  no SUM of sex, state, smoker, joined: only numbers can be summed",
        "",
        'visits: unit "patient_id", up to 10 rows of each count (the database enforces no limit); COUNT(*) ±92',
        "  column  type  clamped to  SUM  GROUP BY  COUNT per key",
        "  fee  numeric(5,2)  0 to 100  ±9,151  keys of about 44 to 139 units or more  ±130",
        "  kind  text  no  keys of about 44 to 139 units or more  ±130",
        "  seen  timestamp  2021-01-01 to 2022-12-31  no  keys of about 44 to 139 units or more  ±130",
        "  no SUM of kind, seen: only numbers can be summed",
        '  note: rows of "visits" whose "patient_id" is NULL have no owner and do not count',
        "",
        "public, every row is visible:",
        "  states: code, region",
        "",
        "± is the 95 % margin of the noise at the default price of epsilon 1; the total of epsilon 100 pays for"
        " 2,122 such answers",
        "the total protects each single person; for a group of 2: no bound; of 5: no bound (dpsql budget --group)",
    ]


def test_margins_are_those_of_the_answers(clinic: Path) -> None:
    shown = check(clinic).stdout
    with dpsql.connect(clinic) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT COUNT(*), SUM(age), SUM(income) FROM people WHERE FALSE")
        assert cursor.margins == (None, None, None)  # what is known to be empty has no noise
        for sql in ("SELECT SUM(age) FROM people", "SELECT COUNT(*) FROM visits"):
            cursor.execute(sql)
            assert cursor.margins is not None and f"±{cursor.margins[0]:,}" in shown


def test_the_total_pays_for_as_many_answers_as_it_says(clinic: Path) -> None:
    toy.write_policy(clinic.parent, epsilon="1.0", query_epsilon="0.5", accounting="basic")
    assert "the total of epsilon 1 pays for 2 such answers" in check(clinic).stdout
    with dpsql.connect(clinic) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT COUNT(*) FROM people")
        cursor.execute("SELECT COUNT(*) FROM visits")
        with pytest.raises(dpsql.Error):
            cursor.execute("SELECT SUM(age) FROM people")


def test_it_shows_no_data(clinic: Path) -> None:
    shown = check(clinic).stdout
    with duckdb.connect(str(clinic.parent / toy.DATABASE)) as connection:
        connection.execute("DELETE FROM visits; DELETE FROM people")
    assert check(clinic).stdout == shown


def test_without_delta_only_declared_keys_can_be_asked(clinic: Path) -> None:
    toy.write_policy(clinic.parent, accounting="basic")
    change(clinic, "delta = 1e-6", "delta = 0")
    shown = squeezed(check(clinic).stdout)
    assert "  sex  text  no  no  no" in shown
    assert any(line.startswith("  state  text  no  3 declared keys  ±") for line in shown)


def test_bounds_that_cannot_be_summed_say_so(clinic: Path) -> None:
    change(clinic, "income = { min = 0, max = 500_000, step = 1 }", "income = {}")
    change(clinic, "age = { min = 0, max = 110 }", "age = { values = [1, 2, 3] }")
    shown = squeezed(check(clinic).stdout)
    assert "  income  double precision  no min and max  no  keys of about 31 units or more  ±9" in shown
    assert "  age  bigint  ±27  3 declared keys  ±9" in shown


def test_marks_that_are_left_are_listed(clinic: Path) -> None:
    change(clinic, "sex = {}", "sex   = {}  # TODO: which values?")
    number = clinic.read_text().splitlines().index("sex   = {}  # TODO: which values?") + 1
    assert check(clinic).stdout.endswith(
        f"\n\nstill to decide: 1 line marked TODO\n  {clinic}:{number}: sex = {{}} # TODO: which values?\n"
    )


def test_an_epsilon_too_small_to_count_is_a_problem_like_others(clinic: Path) -> None:
    toy.write_policy(clinic.parent, epsilon="1e-16", query_epsilon="1e-17", accounting="basic")
    change(clinic, "[users.alice]", "[users.alice]\nepsilon = 1e-18")
    change(clinic, "sex = {}", "sec = {}")
    result = check(clinic)
    assert (result.exit_code, result.stdout) == (1, "")
    text = clinic.read_text().splitlines()
    fix = "\n  write a larger number, such as 0.1\n"
    assert f'{clinic}: "epsilon" in [privacy] is too small to be counted{fix}' in result.stderr
    assert f'{clinic}: "query_epsilon" in [privacy] is too small to be counted{fix}' in result.stderr
    line = text.index("[users.alice]") + 1
    assert f'{clinic}:{line}: "epsilon" in [users.alice] is too small to be counted{fix}' in result.stderr
    assert f"{clinic}:{text.index('sec = {}') + 1}: " in result.stderr
    assert result.stderr.endswith("4 problems in the policy\n")


def test_strange_names_are_shown_on_their_line(tmp_path: Path) -> None:
    with duckdb.connect(str(tmp_path / toy.DATABASE)) as connection:
        connection.execute('CREATE SCHEMA s; CREATE TABLE s."x ""y" (id INTEGER PRIMARY KEY, "a\nb" INTEGER)')
    policy = tmp_path / "dpsql.toml"
    policy.write_text(
        f'[database]\nurl = "duckdb:///{toy.DATABASE}"\n[privacy]\nepsilon = 1\n'
        '[tables."s.x \\"y"]\nunit = "id"\n[tables."s.x \\"y".columns]\n"a\\nb" = { min = 0, max = 1 }\n'
    )
    shown = squeezed(check(policy).stdout)
    assert shown[2].startswith('s.x "y: unit "id", one row of each counts (the database enforces one row); COUNT(*) ±')
    assert any(line.startswith(r"  a\nb  bigint  0 to 1  ±") for line in shown)


def test_a_reader_who_leaves_is_no_error(clinic: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "dpsql", "check", str(clinic)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    with process.stderr as stderr:
        assert stderr.read() == b""
    process.wait()


def test_a_certificate_that_is_missing_is_found_before_a_server_needs_it(clinic: Path) -> None:
    clinic.write_text(clinic.read_text() + '\n[server]\ncertificate = "server.crt"\nkey = "server.key"\n')
    change(clinic, "age = {", "ages = {")
    result = check(clinic)
    assert result.exit_code == 1
    assert '"certificate" in [server] cannot be read: No such file or directory' in result.stderr
    assert "2 problems in the policy" in result.stderr


def test_a_large_delta_is_warned_of(clinic: Path) -> None:
    assert "delta =" not in check(clinic).stdout
    change(clinic, "delta = 1e-6", "delta = 0.2")
    result = check(clinic)
    assert result.exit_code == 0
    assert "delta = 0.2 allows one person in 5 to be exposed entirely: choose delta far below one over" in result.stdout


def test_a_key_that_nothing_keeps_unique_is_warned_of(clinic: Path) -> None:
    """It is unique in the data; whether it is cannot depend on one person where a constraint holds it."""
    with duckdb.connect(str(clinic.parent / toy.DATABASE)) as connection:
        connection.execute("CREATE TABLE loose AS SELECT id, patient_id FROM visits")
        connection.execute("CREATE TABLE notes AS SELECT id, id AS visit FROM visits")
    clinic.write_text(
        clinic.read_text()
        + '\n[tables.loose]\nunit = "patient_id"\n'
        + '\n[tables.notes]\nunit = { via = "visit", table = "visits", key = "id" }\n'
    )
    warning = '(id) of table "main.{}" is unique, but nothing enforces it: new rows may keep dpsql from starting'
    assert warning.format("visits") not in check(clinic).stdout
    change(clinic, 'table = "visits", key', 'table = "loose", key')
    result = check(clinic)
    assert result.exit_code == 0
    assert warning.format("loose") in result.stdout


# --- stored answers ---

BY_STATE = "SELECT state, COUNT(*) FROM people GROUP BY state"
STORED = (
    BY_STATE,
    "SELECT SUM(income) FROM people",
    "SELECT COUNT(*) FROM people WHERE income > (SELECT AVG(age) FROM people)",
    "SELECT SUM(fee) FROM visits",
)


def stored_answers(policy: Path) -> str:
    (line,) = [line for line in check(policy).stdout.splitlines() if " stored answers: " in line]
    return line


@pytest.fixture
def asked(clinic: Path) -> Path:
    with dpsql.connect(clinic) as connection, connection.cursor() as cursor:
        for sql in STORED:
            cursor.execute(sql)
    return clinic


@pytest.mark.parametrize(
    ("old", "new", "lost", "because"),
    [
        ("[tables.states]", "# nothing else\n[tables.states]", 0, ""),
        ("[users.alice]", '[views.v]\nsql = "SELECT age FROM people"\n[users.alice]', 0, ""),
        ("sex = {}", 'sex = { values = ["f", "m"] }', 0, ""),
        ("max = 500_000", "max = 400_000", 2, "main.people.income"),
        # Also that which compares with the average of ages.
        ("age = { min = 0, max = 110 }", "age = { min = 0, max = 120 }", 2, "main.people.age"),
        ('["CA", "NY", "TX"]', '["CA", "NY"]', 1, "main.people.state"),
        ("max_rows_per_unit = 10", "max_rows_per_unit = 9", 1, "main.visits"),
        ("[users.alice]", "[limits]\nmax_cells = 4\n[users.alice]", 0, ""),
        ("[users.alice]", "[limits]\nmax_cells = 3\n[users.alice]", 1, "max_cells"),
    ],
)
def test_it_says_how_many_stored_answers_an_edit_would_lose(
    asked: Path, old: str, new: str, lost: int, because: str
) -> None:
    """As many as are bought anew once it is in force."""
    line = stored_answers(asked)
    assert line == "5 stored answers: 5 would be found again under this policy"
    change(asked, old, new)
    found = stored_answers(asked)
    assert found.startswith(f"5 stored answers: {5 - lost} would be found again under this policy")
    assert found.endswith(f"; {lost} would be bought again, because it changes {because}") or not lost
    with dpsql.connect(asked) as connection, connection.cursor() as cursor:
        for sql in STORED:
            cursor.execute(sql)
    assert stored_answers(asked).startswith(f"{5 + lost} stored answers: 5 would be found again under this policy")


def test_answers_that_have_expired_are_not_counted(asked: Path) -> None:
    change(asked, "[users.alice]", "[limits]\nreplay_days = 0.0000001\n[users.alice]")
    assert "stored answer" not in check(asked).stdout
