"""`dpsql log`: every charge and every refusal, and each change of a limit."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import dpsql
from dpsql.cli import commands
from dpsql.ledger.sqlite import SqliteLedger
from dpsql.policy.edit import set_allowance
from tests import toy

COUNT = "SELECT COUNT(*) FROM people"


def log(policy: Path, *arguments: str) -> Result:
    return CliRunner().invoke(commands, ["log", "--policy", str(policy), *arguments], prog_name="dpsql")


def events(policy: Path, *arguments: str) -> list[Any]:
    result = log(policy, "--format", "json", *arguments)
    assert result.exit_code == 0
    return [json.loads(line) for line in result.stdout.splitlines()]


def ask(policy: Path, user: str, *statements: str) -> str:
    """The SQLSTATE of the first that is refused."""
    with dpsql.connect(policy, user=user) as connection, connection.cursor() as cursor:
        try:
            for sql in statements:
                cursor.execute(sql)
        except dpsql.Error as error:
            return error.sqlstate
    return "00000"


@pytest.fixture(scope="module")
def asked_once(clinic_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clinic that was asked five things, of which it refused two."""
    folder = tmp_path_factory.mktemp("asked")
    shutil.copy(clinic_database, folder)
    policy = toy.write_policy(folder, epsilon="1.0", query_epsilon="0.8", users=["alice", "bob"])
    assert ask(policy, "alice", COUNT, COUNT) == "00000"  # once for money, and again for free
    assert ask(policy, "bob", COUNT, "SELECT\n  sex\tFROM people -- \x1b[2J") == "42501"
    assert ask(policy, "alice", "SELECT COUNT(*) FROM visits") == "53400"
    return policy


@pytest.fixture
def asked(asked_once: Path, tmp_path: Path) -> Path:
    folder = shutil.copytree(asked_once.parent, tmp_path / "asked")
    return folder / asked_once.name


def test_every_charge_and_refusal_is_shown(asked: Path) -> None:
    first, second, third, fourth = events(asked)
    assert (first["user"], first["outcome"], first["sqlstate"], first["sql"]) == ("alice", "paid", "00000", COUNT)
    assert first["price"] == first["dataset_price"]
    assert first["price"]["epsilon"] == 0.8 and first["price"]["rho"] > 0 and first["price"]["delta"] == 0
    assert (second["user"], second["outcome"]) == ("bob", "replayed")
    assert second["price"] == first["price"] and second["dataset_price"]["epsilon"] == 0
    assert third == {
        "time": third["time"],
        "user": "bob",
        "outcome": "refused",
        "sqlstate": "42501",
        "message": 'column "sex" would return rows of private table "people"',
        "sql": "SELECT\n  sex\tFROM people -- \x1b[2J",
    }
    assert (fourth["sqlstate"], fourth["message"]) == ("53400", "the privacy budget of the dataset is exhausted")
    assert [event["time"] for event in events(asked)] == sorted(event["time"] for event in events(asked))


def test_the_text_is_aligned_and_harmless(asked: Path) -> None:
    result = log(asked)
    assert (result.exit_code, result.stderr) == (0, "")
    head, rule, first, second, third, reason, *_ = result.stdout.splitlines()
    assert head.split() == ["time", "(UTC)", "user", "outcome", "epsilon", "query"]
    start = head.index("query")
    assert rule[start:] == "-----"
    assert first[start:] == second[start:] == COUNT
    assert first[:start].split()[2:] == ["alice", "paid", "0.8"]
    assert third[:start].split()[2:] == ["bob", "refused", "42501"]
    assert third[start:] == r"SELECT sex FROM people -- \x1b[2J"
    assert reason == " " * start + 'column "sex" would return rows of private table "people"'


def test_delta_has_a_column_where_it_was_spent(clinic: Path) -> None:
    ask(clinic, "alice", "SELECT sex, COUNT(*) FROM people GROUP BY sex")
    assert log(clinic).stdout.splitlines()[0].split() == [
        "time",
        "(UTC)",
        "user",
        "outcome",
        "epsilon",
        "delta",
        "query",
    ]


def test_a_part_is_selected(asked: Path) -> None:
    assert [event["user"] for event in events(asked, "--user", "bob")] == ["bob", "bob"]
    assert [event["sqlstate"] for event in events(asked, "--refused")] == ["42501", "53400"]
    assert [event["sqlstate"] for event in events(asked, "--limit", "1")] == ["53400"]
    today = events(asked)[0]["time"][:10]
    assert len(events(asked, "--since", today, "--until", events(asked)[-1]["time"][:10])) == 4
    second, third = (event["time"] for event in events(asked)[1:3])
    assert len(events(asked, "--since", second)) == 3
    assert len(events(asked, "--since", second, "--until", third)) == 1
    assert len(events(asked, "--until", second)) == 1
    assert events(asked, "--since", "2099-01-01") == events(asked, "--until", "2001-01-01T10:00+05:00") == []
    assert log(asked, "--since", "2099-01-01").stderr == "nothing recorded matches\n"


def test_a_day_ends_with_its_end(asked: Path) -> None:
    with closing(sqlite3.connect(asked.parent / f"{toy.DATABASE}.ledger", isolation_level=None)) as db:
        for number, time in enumerate(("2030-01-01T23:59:59.999999", "2030-01-02T00:00:00.000000"), start=3):
            db.execute("INSERT INTO refusals VALUES (?, ?, 'bob', ?, '0A000', 'no')", (number, f"{time}+00:00", time))
    assert [event["sql"] for event in events(asked, "--since", "2030-01-01", "--until", "2030-01-01")] == [
        "2030-01-01T23:59:59.999999"
    ]


def test_changes_of_limits_are_recorded_acts(asked: Path) -> None:
    raised = asked.read_text().replace("epsilon = 1.0", "epsilon = 2.0", 1)
    asked.write_text(raised)
    assert ask(asked, "alice", "SELECT COUNT(*) FROM visits") == "00000"  # what was refused before
    asked.write_text(raised.replace("epsilon = 2.0", "epsilon = 0.8", 1))
    assert ask(asked, "alice", "SELECT AVG(age) FROM people") == "53400"  # lowered below what was spent
    assert ask(asked, "alice", COUNT) == "00000"  # and nothing is forgotten
    changes = [event for event in events(asked, "--limits") if event["account"] == "dataset"]
    assert changes[0]["old"] is None
    assert [change["new"]["epsilon"] for change in changes] == [1.0, 2.0, 0.8]
    assert [change["old"]["epsilon"] for change in changes[1:]] == [1.0, 2.0]

    set_allowance(asked, "bob", Decimal("0.5"))
    ask(asked, "bob", COUNT)
    last = log(asked, "--limits", "--user", "bob", "--limit", "1").stdout.splitlines()[-1]
    assert "  user bob  epsilon 0.8 (rho " in last and "  epsilon 0.5 (rho " in last
    assert "not in the policy" in log(asked, "--limits").stdout


# --- refusals reach the ledger, and only those ---


def test_free_statements_and_explain_leave_no_refusal(clinic: Path) -> None:
    with dpsql.connect(clinic, user="alice") as connection, connection.cursor() as cursor:
        for statement in ("SET dpsql.epsilon = -1", "SHOW dpsql.nothing", "EXPLAIN SELECT sex FROM people"):
            with pytest.raises(dpsql.Error):
                cursor.execute(statement)
        with pytest.raises(dpsql.Error):
            cursor.explain("SELECT sex FROM people")
        cursor.execute("SELECT 1")
    assert events(clinic) == []


def test_a_ledger_that_fails_does_not_hide_the_refusal(clinic: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise dpsql.OperationalError("the disk of the ledger is full")

    monkeypatch.setattr(SqliteLedger, "refuse", fail)
    assert ask(clinic, "alice", "SELECT sex FROM people") == "42501"


# --- what may be wrong ---


def test_nothing_is_recorded_yet(clinic: Path) -> None:
    result = log(clinic)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "nothing is recorded yet\n")
    assert not list(clinic.parent.glob("*.ledger"))


def test_a_user_who_was_never_known(asked: Path) -> None:
    result = log(asked, "--user", "carol")
    assert (result.exit_code, result.stdout) == (1, "")
    assert 'user "carol" is not known' in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [("--since", "yesterday"), ("--until", "2030-13-01"), ("--limit", "0"), ("--refused", "--limits"), ("x",)],
)
def test_what_is_not_understood_ends_with_2(clinic: Path, arguments: tuple[str, ...]) -> None:
    result = log(clinic, *arguments)
    assert (result.exit_code, result.stdout) == (2, "")


def test_a_missing_or_broken_policy(clinic: Path) -> None:
    clinic.write_text("[privacy]")
    assert log(clinic).exit_code == 1
    clinic.unlink()
    assert "the policy file does not exist" in log(clinic).stderr
