"""`dpsql ledger`: sound, or each contradiction, and nothing is written; and a ledger on a server."""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.parse import quote

import pytest
from click.testing import CliRunner, Result

import dpsql
from dpsql.cli import commands
from tests import toy
from tests.ledger.test_sqlite import as_format_1
from tests.ledger_places import Server, tamper


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


# --- on a server ---


@pytest.fixture
def served(clinic: Path, ledger_server: Server) -> Path:
    """A policy that keeps its ledger on a server, with a password in the address."""
    clinic.write_text(
        clinic.read_text().replace("[privacy]", f'ledger = "{ledger_server.empty_database().url}"\n[privacy]')
    )
    return clinic


def run(policy: Path, *words: str) -> Result:
    return CliRunner().invoke(commands, [*words, "--policy", str(policy)], prog_name="dpsql")


COUNT = "SELECT COUNT(*) FROM people"


def test_a_ledger_on_a_server_needs_the_owners_word(served: Path) -> None:
    for words in (["query", "--user", "alice", COUNT], ["budget"], ["log"], ["ledger", "verify"]):
        result = run(served, *words)
        assert result.exit_code == 1
        assert "is missing" in result.stderr
        assert "secret" not in result.output + result.stderr
    assert run(served, "query", "--user", "alice", "--new-ledger", COUNT).exit_code == 0
    assert not list(served.parent.glob("*.ledger"))


def test_every_command_works_with_a_ledger_on_a_server(served: Path) -> None:
    assert run(served, "user", "allowance", "alice", "50").exit_code == 0  # before there is a ledger
    first = run(served, "query", "--user", "alice", "--new-ledger", COUNT)
    assert run(served, "query", "--user", "alice", COUNT).stdout.splitlines()[:3] == first.stdout.splitlines()[:3]
    refused = run(served, "query", "--user", "alice", "SELECT id FROM people")
    assert refused.exit_code == 1
    allowed = run(served, "user", "allowance", "alice", "40")
    expected = {
        ("budget",): "user alice",
        ("log",): COUNT,
        ("log", "--limits"): "user alice",
        ("log", "--refused"): "refused",
        ("user", "list"): "alice",
        ("ledger", "verify"): ": sound, 1 charge, 1 refusal, 3 changes of limits",
    }
    shown = [first, refused, allowed]
    for words, text in expected.items():
        shown.append(result := run(served, *words))
        assert (result.exit_code, result.stderr) == (0, "")
        assert text in result.stdout
    assert "secret" not in "".join(result.output + result.stderr for result in shown)


def test_a_server_that_is_not_there(clinic: Path, tmp_path: Path) -> None:
    address = f"postgresql://dpsql:secret@{quote(str(tmp_path), safe='')}/books"
    clinic.write_text(clinic.read_text().replace("[privacy]", f'ledger = "{address}"\n[privacy]'))
    for words in (["query", "--user", "alice", COUNT], ["budget"], ["log"], ["ledger", "verify"]):
        result = run(clinic, *words)
        assert result.exit_code == 1
        assert "the server of the ledger cannot be reached (SQLSTATE 58000)" in result.stderr
        assert "secret" not in result.output + result.stderr
    edited = run(clinic, "user", "allowance", "alice", "2")
    assert "The policy was changed; the ledger records it when it is next opened." in edited.stderr


def test_a_ledger_moves_to_a_server_and_back(clinic: Path, ledger_server: Server) -> None:
    ledger, address = ask(clinic), ledger_server.empty_database()
    before = clinic.read_text()
    moved = run(clinic, "ledger", "migrate", address.url)
    assert (moved.exit_code, moved.stderr) == (0, "")
    assert moved.stdout.startswith(f"{ledger}: moved to {address} with 1 charge, and closed for good\n")
    assert "secret" not in moved.stdout
    for words in (["query", "--user", "alice", COUNT], ["budget"], ["ledger", "verify"]):
        result = run(clinic, *words)
        assert result.exit_code == 1
        assert f'was moved to "{address}"' in result.stderr
    clinic.write_text(before.replace("[privacy]", f'ledger = "{address.url}"\n[privacy]'))
    assert "sound, 1 charge," in run(clinic, "ledger", "verify").stdout
    back = clinic.parent / "again.ledger"
    assert run(clinic, "ledger", "migrate", str(back)).exit_code == 0
    clinic.write_text(before.replace("[privacy]", 'ledger = "again.ledger"\n[privacy]'))
    assert "sound, 1 charge," in run(clinic, "ledger", "verify").stdout
    assert run(clinic, "query", "--user", "alice", COUNT).exit_code == 0
    assert "sound, 1 charge," in run(clinic, "ledger", "verify").stdout  # answered again from the stored answer


@pytest.mark.parametrize("target", ["mysql://root:secret@host/db", "postgresql://dpsql:secret@[host/db", "postgres://"])
def test_a_target_that_is_no_place(clinic: Path, target: str) -> None:
    ask(clinic)
    result = run(clinic, "ledger", "migrate", target)
    assert result.exit_code == 1
    assert "neither a path nor the address" in result.stderr
    assert "secret" not in result.stderr
    assert run(clinic, "ledger", "verify").exit_code == 0


# --- whom it protects ---


def protect(policy: Path, *arguments: str, answer: str | None = None) -> Result:
    return CliRunner().invoke(
        commands, ["ledger", "protect", "--policy", str(policy), *arguments], prog_name="dpsql", input=answer
    )


def check(policy: Path) -> Result:
    return CliRunner().invoke(commands, ["check", str(policy)], prog_name="dpsql")


def by_visit(policy: Path, unit: str = "id") -> None:
    """Let the policy protect visits instead of the people who made them."""
    text = policy.read_text()
    assert text.count('unit = "patient_id"') == 1
    policy.write_text(text.replace('unit = "patient_id"', f'unit = "{unit}"'))


def asked(policy: Path) -> Result:
    return run(policy, "query", "--user", "alice", "SELECT COUNT(*) FROM visits")


def test_another_unit_is_refused_everywhere_until_the_owner_accepts_it(clinic: Path) -> None:
    assert asked(clinic).exit_code == 0
    original = clinic.read_text()
    by_visit(clinic)
    with pytest.raises(dpsql.Error, match="protects a different unit"):
        dpsql.connect(clinic, user="alice")
    for refused in (asked(clinic), check(clinic)):
        assert refused.exit_code == 1
        assert 'Table "main.visits": unit "patient_id" in the ledger, unit "id" in the policy.' in refused.stderr
        assert "dpsql ledger protect" in refused.stderr
    declined = protect(clinic, answer="n\n")
    assert declined.exit_code == 1
    assert asked(clinic).exit_code == 1
    accepted = protect(clinic, answer="y\n")
    assert (accepted.exit_code, accepted.stderr) == (0, "")
    assert 'table "main.visits": unit "patient_id" in the ledger, unit "id" in the policy' in accepted.stdout
    assert asked(clinic).exit_code == 0
    told = run(clinic, "budget").stdout
    assert "protected since 2" in told
    assert '(table "main.visits": unit "patient_id")' in told
    assert told[told.index("protected since") :].partition("\n\n")[0] in check(clinic).stdout
    listed = run(clinic, "log", "--units", "--limit", "1").stdout.splitlines()
    assert [cell.strip() for cell in re.split(" {2,}", listed[0])] == ["time (UTC)", "table", "from", "to"]
    assert listed[-1].endswith('table "main.visits"  unit "patient_id"  unit "id"')
    events = [json.loads(line) for line in run(clinic, "log", "--units", "--format", "json").stdout.splitlines()]
    assert [(each["table"], each["charges_before"], each["from"] is None) for each in events] == [
        (None, 0, True),
        ("main.people", 0, True),
        ("main.states", 0, True),
        ("main.visits", 0, True),
        ("main.visits", 1, False),
    ]
    clinic.write_text(original)
    assert asked(clinic).exit_code == 1
    assert protect(clinic, "--yes").exit_code == 0
    assert asked(clinic).exit_code == 0
    assert verify(clinic).exit_code == 0


def test_what_is_declared_the_same_way_is_no_change(clinic: Path) -> None:
    assert asked(clinic).exit_code == 0
    by_visit(clinic, "PATIENT_ID")
    assert asked(clinic).exit_code == 0
    again = protect(clinic)
    assert (again.exit_code, "nothing to accept" in again.stdout) == (0, True)
    told = run(clinic, "budget").stdout
    assert "protected since the ledger began:\n" in told
    assert '  main.visits: unit "patient_id"\n' in told
    assert "before" not in told.partition("protected since")[2]


def test_there_is_nothing_to_accept_before_the_first_query(clinic: Path) -> None:
    refused = protect(clinic)
    assert refused.exit_code == 1
    assert "no ledger" in refused.stderr


def test_allowances_can_be_changed_while_the_units_are_in_question(clinic: Path) -> None:
    """It needs no database, charges nothing and accepts nothing."""
    assert asked(clinic).exit_code == 0
    by_visit(clinic)
    assert run(clinic, "user", "allowance", "alice", "0.5").exit_code == 0
    assert asked(clinic).exit_code == 1


def test_a_ledger_from_before_says_that_it_adopts_the_units(clinic: Path) -> None:
    assert asked(clinic).exit_code == 0
    as_format_1(clinic.parent / f"{toy.DATABASE}.ledger")
    assert "protected: not recorded yet" in run(clinic, "budget").stdout
    assert check(clinic).exit_code == 0
    first, again = asked(clinic), asked(clinic)
    said = "the ledger had no record of whom it protects: from now on it counts for the units of this policy\n"
    assert (said in first.stderr, said in again.stderr) == (True, False)
    told = run(clinic, "budget").stdout
    assert "protected since 2" in told
    assert "earlier versions of dpsql did not record whom they protect" in told
