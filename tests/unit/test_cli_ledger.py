"""`dpsql ledger verify`: sound, or each contradiction; and nothing is written."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner, Result

import dpsql
from dpsql.cli import commands
from tests import toy
from tests.ledger_places import tamper


def verify(policy: Path) -> Result:
    return CliRunner().invoke(commands, ["ledger", "verify", "--policy", str(policy)], prog_name="dpsql")


def ask(policy: Path) -> Path:
    with dpsql.connect(policy, user="alice") as connection, connection.cursor() as cursor:
        cursor.execute("SELECT COUNT(*) FROM people")
    return policy.parent / f"{toy.DATABASE}.ledger"


def test_a_sound_ledger(clinic: Path) -> None:
    ledger = ask(clinic)
    before = ledger.read_bytes()
    result = verify(clinic)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == f"{ledger}: sound, 1 charge, 0 refusals, 2 changes of limits\n"
    assert ledger.read_bytes() == before
    assert sorted(clinic.parent.iterdir()) == [clinic.parent / toy.DATABASE, ledger, clinic]


def test_each_contradiction_is_told(clinic: Path) -> None:
    ledger = ask(clinic)
    tamper(ledger, "UPDATE charges SET sql = 'x'", "UPDATE accounts SET loss = 0 WHERE subject = 'user:alice'")
    before = ledger.read_bytes()
    result = verify(clinic)
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        f"{ledger}: charge 1 was altered, or one before it removed",
        f"{ledger}: the sum of user:alice is not that of its charges",
    ]
    assert result.stderr.startswith("error: 2 contradictions: the ledger is not sound\nhint: ")
    assert ledger.read_bytes() == before


def test_a_damaged_file(clinic: Path) -> None:
    ledger = ask(clinic)
    content = bytearray(ledger.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    ledger.write_bytes(content)
    result = verify(clinic)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("error: the ledger is damaged (SQLSTATE 58000)\n")
    assert ledger.read_bytes() == content


def test_there_is_nothing_to_verify(clinic: Path) -> None:
    result = verify(clinic)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "there is no ledger at " in result.stderr
    clinic.write_text("nonsense")
    assert "not valid TOML" in verify(clinic).stderr
    clinic.unlink()
    assert "the policy file does not exist" in verify(clinic).stderr


def test_the_group_explains_itself() -> None:
    result = CliRunner().invoke(commands, ["ledger", "verify", "--help"], prog_name="dpsql")
    assert "Example:\n" in result.stdout
