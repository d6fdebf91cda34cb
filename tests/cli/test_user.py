"""`dpsql user`: the policy file is edited, acts are recorded, and no password is ever seen."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import dpsql
from dpsql.cli import commands
from dpsql.ledger.reading import Books
from dpsql.policy.load import load
from dpsql.policy.passwords import Verifier
from tests import toy

COUNT = "SELECT COUNT(*) FROM people"
RELOAD = "a running server still uses the old policy: send it SIGHUP (kill -HUP PID) to apply the change\n"


def user(policy: Path, command: str, *arguments: str, stdin: str | bytes = "") -> Result:
    return CliRunner().invoke(
        commands, ["user", command, "--policy", str(policy), "--", *arguments], input=stdin, prog_name="dpsql"
    )


def with_password(policy: Path, command: str, name: str, stdin: str | bytes) -> Result:
    arguments = ["user", command, name, "--password-stdin", "--policy", str(policy)]
    return CliRunner().invoke(commands, arguments, input=stdin, prog_name="dpsql")


def ask(policy: Path, name: str, sql: str = COUNT) -> str:
    try:
        with dpsql.connect(policy, user=name) as connection, connection.cursor() as cursor:
            cursor.execute(sql)
    except dpsql.Error as error:
        return error.sqlstate
    return "00000"


def limits(policy: Path, name: str) -> list[bool]:
    """Of each recorded change, whether the user was in the policy after it."""
    path = policy.parent / f"{toy.DATABASE}.ledger"
    with Books.read(path, dataset=toy.DATABASE, accounting="zcdp") as books:
        return [change.new is not None for change in books.limit_changes() if change.user == name]


def recognises(policy: Path, name: str, password: str) -> bool:
    stored = load(policy).users[name].password
    verifier = None if stored is None else Verifier.parse(stored)
    return verifier is not None and Verifier.derived(password, verifier.salt, verifier.iterations) == verifier


# --- users come and go ---


def test_add_and_list(clinic: Path) -> None:
    clinic.write_text(clinic.read_text() + "# the end\n")
    result = CliRunner().invoke(commands, ["user", "add", "bob", "--epsilon", "1.50", "--policy", str(clinic)])
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == 'added user "bob": allowance epsilon 1.5, no password\n' + RELOAD
    added = 'added user "Anna Lee": no allowance of their own, no password\n'
    assert user(clinic, "add", "Anna Lee").stdout == added + RELOAD
    assert clinic.read_text().endswith('[users.bob]\nepsilon = 1.50\n\n[users."Anna Lee"]\n# the end\n')
    assert user(clinic, "list").stdout.splitlines() == [
        "user      allowance    password",
        "--------  -----------  --------",
        "alice     none         none",
        "bob       epsilon 1.5  none",
        "Anna Lee  none         none",
    ]
    assert ask(clinic, "Anna Lee") == "00000"


def test_an_edit_makes_no_ledger(clinic: Path) -> None:
    user(clinic, "add", "bob")
    user(clinic, "allowance", "bob", "1")
    user(clinic, "remove", "bob")
    assert sorted(os.listdir(clinic.parent)) == [toy.DATABASE, "dpsql.toml"]


def test_the_spending_of_a_removed_user_stays_in_the_books(clinic: Path) -> None:
    user(clinic, "add", "bob")
    assert ask(clinic, "bob") == "00000"
    removed = user(clinic, "remove", "bob")
    assert removed.exit_code == 0
    spent = "epsilon 1 (rho 0.02294) that they have spent stays in the ledger\n"
    assert removed.stdout == 'removed user "bob"\n' + spent + RELOAD
    assert limits(clinic, "bob") == [True, False]
    assert ask(clinic, "bob", "SELECT AVG(age) FROM people") == "28000"
    assert list(load(clinic).users) == ["alice"]
    back = CliRunner().invoke(commands, ["user", "add", "bob", "--epsilon", "1", "--policy", str(clinic)])
    assert "they have spent epsilon 1 (rho 0.02294) before, which still counts\n" in back.stdout
    assert ask(clinic, "bob", "SELECT AVG(age) FROM people") == "53400"
    assert ask(clinic, "bob") == "00000"  # what was bought stays theirs


def test_the_last_user_can_go(clinic: Path) -> None:
    assert user(clinic, "remove", "alice").exit_code == 0
    assert user(clinic, "list").stderr.startswith("the policy has no user\n")


# --- allowances ---


def test_an_allowance_is_raised_and_lowered_and_nothing_is_forgotten(clinic: Path) -> None:
    assert user(clinic, "allowance", "alice", "1").stdout == (
        'changed the allowance of user "alice" from none to epsilon 1\n'
    )
    assert ask(clinic, "alice") == "00000"
    assert ask(clinic, "alice", "SELECT AVG(age) FROM people") == "53400"
    # Raised: more may be asked. The act is recorded at once.
    assert user(clinic, "allowance", "alice", "2").exit_code == 0
    assert len(limits(clinic, "alice")) == 2
    assert ask(clinic, "alice", "SELECT AVG(age) FROM people") == "00000"
    # Lowered below what was spent: nothing more, and what was spent stays spent.
    lowered = user(clinic, "allowance", "alice", "0.5")
    assert lowered.stdout.startswith('changed the allowance of user "alice" from epsilon 2 to epsilon 0.5\n')
    assert "they have spent epsilon 1.4" in lowered.stdout and "every further query is refused" in lowered.stdout
    assert len(limits(clinic, "alice")) == 3
    assert ask(clinic, "alice", "SELECT SUM(income) FROM people") == "53400"
    with dpsql.connect(clinic, user="alice") as connection:
        assert connection.budget.spent.epsilon > 1.4
    assert user(clinic, "allowance", "alice", "none").exit_code == 0
    assert load(clinic).users["alice"].epsilon is None
    assert ask(clinic, "alice", "SELECT SUM(income) FROM people") == "00000"


@pytest.mark.parametrize(
    ("epsilon", "status", "message"),
    [
        ("100.5", 1, "more than the dataset's total of epsilon 100"),
        ("1e-30", 1, "too small to be counted"),  # under basic accounting, which counts epsilon itself
        ("0", 2, "not a positive number"),
        ("-1", 2, "not a positive number"),
        ("nan", 2, "not a positive number"),
        ("1e999999", 2, "not a positive number"),
        ("much", 2, "not a positive number"),
    ],
)
def test_an_allowance_that_cannot_be(clinic: Path, epsilon: str, status: int, message: str) -> None:
    before = toy.write_policy(clinic.parent, accounting="basic").read_text()
    result = user(clinic, "allowance", "alice", epsilon)
    assert (result.exit_code, result.stdout) == (status, "")
    assert message in result.stderr
    added = CliRunner().invoke(commands, ["user", "add", "bob", f"--epsilon={epsilon}", "--policy", str(clinic)])
    assert (added.exit_code, added.stdout) == (status, "")
    assert clinic.read_text() == before


def test_a_ledger_that_cannot_record_is_reported(clinic: Path) -> None:
    ledger = clinic.parent / f"{toy.DATABASE}.ledger"
    ledger.write_bytes(b"not a database " * 100)
    result = user(clinic, "allowance", "alice", "1")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: the ledger is damaged (SQLSTATE 58000)\n")
    assert "detail: The policy was changed; the ledger records it when it is next opened.\n" in result.stderr


# --- passwords ---


@pytest.mark.parametrize("stdin", ["hunter2 ü", "hunter2 ü\n", "hunter2 ü\r\n", "hunter2 u\u0308\n"])
def test_a_password_is_kept_as_its_verifier(clinic: Path, stdin: str) -> None:
    added = with_password(clinic, "add", "bob", stdin)
    assert added.stdout == 'added user "bob": no allowance of their own, password set\n' + RELOAD
    changed = with_password(clinic, "password", "alice", stdin)
    assert changed.stdout == 'changed the password of user "alice"\n' + RELOAD
    for name in ("alice", "bob"):
        assert recognises(clinic, name, "hunter2 ü") and not recognises(clinic, name, "hunter2")
    assert load(clinic).users["alice"].password != load(clinic).users["bob"].password
    assert "hunter2" not in clinic.read_text()
    assert "SCRAM" not in repr(load(clinic))
    assert "  set" in user(clinic, "list").stdout and "SCRAM" not in user(clinic, "list").stdout


@pytest.mark.parametrize(
    ("stdin", "message"),
    [
        ("", "the password is empty"),
        ("\n", "the password is empty"),
        ("secret\nsecond\n", "more than one line"),
        ("secret\x07", "not every client"),
        (b"secret\xff", "not UTF-8"),
        ("secret" * 20_000, "longer than 1,000"),
    ],
)
def test_a_password_that_cannot_be(clinic: Path, stdin: str | bytes, message: str) -> None:
    before = clinic.read_text()
    for command, name in (("password", "alice"), ("add", "bob")):
        result = with_password(clinic, command, name, stdin)
        assert (result.exit_code, result.stdout) == (1, "")
        assert message in result.stderr and "secret" not in result.stderr
    assert clinic.read_text() == before


def test_without_a_terminal_a_password_must_come_from_standard_input(clinic: Path) -> None:
    result = user(clinic, "password", "alice", stdin="hunter2\n")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "use --password-stdin" in result.stderr


def at_a_terminal(policy: Path, command: str, name: str, *lines: str) -> tuple[int, str]:
    """Run it with a terminal for input and output; the status and all that the terminal showed."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "dpsql", "user", command, name, "--policy", str(policy)],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    )
    os.close(slave)
    shown, waiting = b"", list(lines)
    while True:
        try:
            shown += os.read(master, 1000)
        except OSError:  # the other side is closed
            break
        if waiting and shown.endswith(b": "):
            os.write(master, f"{waiting.pop(0)}\n".encode())
    os.close(master)
    return process.wait(), shown.decode()


def test_a_terminal_asks_twice_and_shows_nothing(clinic: Path) -> None:
    status, shown = at_a_terminal(clinic, "password", "alice", "hunter2", "hunter2")
    assert (status, "hunter2" in shown) == (0, False)
    assert shown.split("\r\n")[0].startswith("Password for alice: ")
    assert recognises(clinic, "alice", "hunter2")
    status, shown = at_a_terminal(clinic, "password", "alice", "other", "another")
    assert (status, "other" in shown) == (1, False)
    assert "the two passwords differ" in shown
    assert recognises(clinic, "alice", "hunter2")
    status, shown = at_a_terminal(clinic, "add", "bob", "")
    assert status == 0 and 'added user "bob": no allowance of their own, no password' in shown


# --- what may be wrong ---


@pytest.mark.parametrize(
    "arguments", [("remove", "carol"), ("allowance", "carol", "1"), ("allowance", "Alice", "none")]
)
def test_a_user_who_is_not_known(clinic: Path, arguments: tuple[str, ...]) -> None:
    before = clinic.read_text()
    result = user(clinic, *arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    assert " is not known (SQLSTATE 28000)\nhint: " in result.stderr
    assert 'user "carol" is not known' in with_password(clinic, "password", "carol", "x").stderr
    assert clinic.read_text() == before


def test_a_name_that_is_taken_or_none(clinic: Path) -> None:
    assert 'user "alice" already exists' in user(clinic, "add", "alice").stderr
    assert 'error: "a\\nb" is not a valid user name' in user(clinic, "add", "a\nb").stderr


@pytest.mark.parametrize("text", [None, "", "[users.alice]\n", "nonsense", "\xff"])
@pytest.mark.parametrize("arguments", [("add", "b"), ("list",), ("remove", "alice"), ("allowance", "alice", "1")])
def test_a_missing_or_broken_policy(tmp_path: Path, text: str | None, arguments: tuple[str, ...]) -> None:
    policy = tmp_path / "dpsql.toml"
    if text is not None:
        policy.write_bytes(text.encode("latin-1"))
    for result in (user(policy, *arguments), with_password(policy, "password", "alice", "x")):
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr.endswith(" in the policy\n")
    assert (policy.read_bytes().decode("latin-1") if policy.exists() else None) == text


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only to root")
def test_a_folder_that_cannot_be_written(clinic: Path) -> None:
    clinic.parent.chmod(0o500)
    try:
        result = user(clinic, "add", "bob")
    finally:
        clinic.parent.chmod(0o700)
    assert result.exit_code == 1
    assert "cannot be written: permission denied" in result.stderr


@pytest.mark.parametrize("command", ["add", "list", "remove", "password", "allowance"])
def test_each_command_explains_itself_with_an_example(command: str) -> None:
    result = CliRunner().invoke(commands, ["user", command, "--help"], prog_name="dpsql")
    assert result.exit_code == 0 and "Example:\n" in result.stdout
