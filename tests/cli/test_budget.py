"""`dpsql budget`: what is spent and left, told in epsilon, rho and queries."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import dpsql
from dpsql.cli import commands
from dpsql.cli.amounts import amount_text
from dpsql.cli.budget import MARGIN, _bar, _percent, _price_of_count
from dpsql.policy.edit import remove_user, set_allowance
from dpsql.policy.load import load
from dpsql.privacy.accounting import Accountant, Price
from tests import toy

COUNT = "SELECT COUNT(*) FROM people"


def budget(policy: Path, *arguments: str) -> Result:
    return CliRunner().invoke(commands, ["budget", "--policy", str(policy), *arguments], prog_name="dpsql")


def document(policy: Path, *arguments: str) -> Any:
    result = budget(policy, "--format", "json", *arguments)
    assert (result.exit_code, result.stderr) == (0, "")
    return json.loads(result.stdout)


def ask(policy: Path, user: str, sql: str = COUNT) -> None:
    with dpsql.connect(policy, user=user) as connection, connection.cursor() as cursor:
        cursor.execute(sql)


@pytest.fixture
def shared(clinic: Path) -> Path:
    """Four epsilon, of which bob has a ration of one; queries cost 0.5."""
    policy = toy.write_policy(clinic.parent, epsilon="4.0", query_epsilon="0.5", users=["alice", "bob"])
    set_allowance(policy, "bob", Decimal(1))
    return policy


def test_before_the_first_query_all_is_left_and_no_ledger_is_made(shared: Path) -> None:
    found = document(shared)
    assert found["accounting"] == "zcdp"
    assert found["dataset"]["spent"] == {"epsilon": 0.0, "rho": 0.0, "delta": 0.0}
    assert found["dataset"]["left"] == found["dataset"]["limit"]
    assert found["dataset"]["left"]["epsilon"] == 4.0 and found["dataset"]["left"]["delta"] == 5e-7
    assert [user["user"] for user in found["users"]] == ["alice", "bob"]
    assert found["users"][1]["limit"]["epsilon"] == 1.0
    assert sorted(os.listdir(shared.parent)) == [toy.DATABASE, "dpsql.toml"]


def test_what_is_spent_and_left_adds_up(shared: Path) -> None:
    ask(shared, "bob")
    ask(shared, "alice", "SELECT sex, COUNT(*) FROM people GROUP BY sex")
    found = document(shared)
    alice, bob = found["users"]
    for account in (found["dataset"], bob):
        for part in ("rho", "delta"):
            assert account["spent"][part] + account["left"][part] == pytest.approx(account["limit"][part])
    assert bob["spent"]["epsilon"] == 0.5
    assert alice["spent"]["delta"] > 0
    assert found["dataset"]["spent"]["rho"] == pytest.approx(alice["spent"]["rho"] + bob["spent"]["rho"])
    # A user without an allowance can spend what the dataset has left.
    assert alice["left"] == found["dataset"]["left"]
    with dpsql.connect(shared, user="bob") as connection:
        assert bob["left"]["epsilon"] == connection.budget.left.epsilon


def test_the_text_says_the_same(shared: Path) -> None:
    ask(shared, "bob")
    lines = budget(shared).stdout.splitlines()
    assert lines[0].startswith("dataset     ..............................  2 % spent")
    assert lines[1] == "  spent  epsilon 0.5 (rho 0.006225)"
    assert lines[2].startswith("  left   epsilon 3.9") and lines[2].endswith(", delta 5e-07 for keys")
    assert "counts ±100 (95 %), or 46 queries at the default price of epsilon 0.5" in lines[3]
    assert lines[10].startswith("user bob    ########......................  27 % spent")
    assert lines[-1].startswith("epsilon does not add up")
    only = budget(shared, "--user", "bob").stdout
    assert only.startswith("user bob  ####") and "dataset" not in only and "alice" not in only


def test_under_basic_accounting_epsilon_adds_up(clinic: Path) -> None:
    policy = toy.write_policy(clinic.parent, epsilon="2.0", query_epsilon="0.5", accounting="basic")
    ask(policy, "alice")
    text = budget(policy, "--user", "alice").stdout
    assert text.splitlines()[1:3] == ["  spent  epsilon 0.5", "  left   epsilon 1.5, delta 1e-06 for keys"]
    assert "25 % spent" in text and "rho" not in text
    assert "or 3 queries" in text


@pytest.mark.parametrize("accounting", ["basic", "zcdp"])
def test_the_count_that_is_offered_has_its_margin_and_no_cheaper_one_has(clinic: Path, accounting: str) -> None:
    policy = toy.write_policy(clinic.parent, epsilon="4.0", accounting=accounting)
    accountant = Accountant(load(policy).privacy)
    price = _price_of_count(accountant)
    with dpsql.connect(policy, user="alice") as connection, connection.cursor() as cursor:
        for grains, fits in ((price * 10_001 // 10_000, True), (price * 97 // 100, False)):
            cursor.execute(f"SET dpsql.epsilon = {float(accountant.epsilon_of(grains)):.6f}")
            cursor.execute(f"{COUNT} WHERE income > {int(fits)}")  # two questions: one is not made of the other
            assert cursor.margins is not None and isinstance(cursor.margins[0], int)
            assert (cursor.margins[0] <= MARGIN) is fits
    assert document(policy, "--user", "alice")["users"][0]["counts_within_100"] > 0


def test_a_count_that_one_query_may_not_pay_for_is_not_offered(clinic: Path) -> None:
    text = clinic.read_text().replace("query_epsilon = 1.0", "max_query_epsilon = 0.001\nquery_epsilon = 0.001")
    clinic.write_text(text)
    assert document(clinic)["dataset"]["counts_within_100"] == 0
    assert document(clinic)["dataset"]["queries_at_default_price"] > 0


def test_an_allowance_below_what_is_spent_is_more_than_spent(shared: Path) -> None:
    ask(shared, "bob")
    set_allowance(shared, "bob", Decimal("0.1"))
    text = budget(shared, "--user", "bob").stdout
    assert "#" * 30 in text and "  left   nothing\n" in text
    assert "for no further query at the default price" in text
    assert document(shared, "--user", "bob")["users"][0]["spent"]["epsilon"] == 0.5


def test_the_spending_of_a_removed_user_stays(shared: Path) -> None:
    ask(shared, "bob")
    remove_user(shared, "bob")
    assert "user bob: no longer in the policy\n  spent  epsilon 0.5 (rho 0.006225)\n" in budget(shared).stdout
    assert document(shared)["users"][1]["limit"] is None
    assert document(shared)["dataset"]["spent"]["epsilon"] == 0.5


def test_reading_the_budget_writes_nothing(shared: Path) -> None:
    ask(shared, "bob")
    ledger = shared.parent / f"{toy.DATABASE}.ledger"
    before = ledger.read_bytes()
    set_allowance(shared, "alice", Decimal(2))
    assert document(shared)["users"][0]["limit"]["epsilon"] == 2.0
    assert ledger.read_bytes() == before
    assert len(os.listdir(shared.parent)) == 3


def test_the_bar_and_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = [Fraction(0), Fraction(1, 1000), Fraction(1, 2), Fraction(999, 1000), Fraction(1), Fraction(3)]
    assert [_percent(share) for share in shares] == ["0 %", "less than 1 %", "50 %", "99 %", "100 %", "300 %"]
    assert [_bar(share).count("#") for share in shares] == [0, 0, 15, 29, 30, 30]
    monkeypatch.setattr("dpsql.cli.budget._draws_blocks", lambda: True)
    assert _bar(Fraction(1, 2)) == "█" * 15 + "░" * 15
    assert {len(_bar(Fraction(part, 97))) for part in range(98)} == {30}


# --- what may be wrong ---


def test_a_user_who_is_not_known(shared: Path) -> None:
    result = budget(shared, "--user", "carol")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith('error: user "carol" is not known (SQLSTATE 28000)\n')


def test_a_policy_database_or_ledger_that_is_not_there(shared: Path, tmp_path: Path) -> None:
    assert budget(tmp_path / "no.toml").stderr.endswith("1 problem in the policy\n")
    text = shared.read_text()
    shared.write_text(text.replace("epsilon = 4.0", "epsilon = -4.0"))
    assert (budget(shared).exit_code, budget(shared).stdout) == (1, "")
    shared.write_text(text.replace("[privacy]", 'ledger = "other.ledger"\n[privacy]'))
    assert 'other.ledger" is missing' in budget(shared).stderr
    shared.write_text(text)
    (shared.parent / f"{toy.DATABASE}.ledger").write_bytes(b"")
    assert "is not a ledger" in budget(shared).stderr
    (shared.parent / f"{toy.DATABASE}.ledger").unlink()
    (shared.parent / toy.DATABASE).unlink()
    assert "there is no database" in budget(shared).stderr


def test_a_reader_who_leaves(shared: Path) -> None:
    ask(shared, "bob")
    for command in ("budget", "log --limits", "user list", "ledger verify"):
        process = subprocess.Popen(
            [sys.executable, "-m", "dpsql", *command.split(), "--policy", str(shared)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        with process.stderr as stderr:
            assert stderr.read() == ""
        assert process.wait() == 1


def test_the_price_of_nothing_is_nothing(clinic: Path) -> None:
    accountant = Accountant(load(clinic).privacy)
    assert amount_text(Price(), accountant) == "nothing"


# --- people who belong together ---


def test_a_group_is_told_what_it_is_promised(shared: Path) -> None:
    found = document(shared, "--group", "2")["group"]
    assert found["people"] == 2
    assert found["total"]["epsilon"] == pytest.approx(8.783, abs=0.001)
    assert found["total"]["delta"] == pytest.approx(4.28e-5, rel=0.01)
    assert found["spent"] == {"epsilon": 0.0, "delta": 0.0}
    ask(shared, "alice")
    ask(shared, "alice", "SELECT sex, COUNT(*) FROM people GROUP BY sex")
    after = document(shared, "--group", "2")["group"]
    assert after["total"] == found["total"]
    assert 0.5 < after["spent"]["epsilon"] < found["total"]["epsilon"] / 2
    assert 5e-7 < after["spent"]["delta"] < 1e-6
    text = budget(shared, "--group", "2").stdout
    assert "\nfor 2 people who belong together, such as a household\n  total  epsilon 8.783, delta 4.2" in text
    assert "group" not in document(shared)


def test_of_one_person_it_is_the_total(shared: Path) -> None:
    found = document(shared, "--group", "1")["group"]
    assert found["total"] == {"epsilon": 4.0, "delta": 1e-6}


def test_where_nothing_can_be_promised_that_is_said(shared: Path) -> None:
    assert document(shared, "--group", "50")["group"]["total"] is None
    assert "\n  total  no bound\n" in budget(shared, "--group", "50").stdout
    assert budget(shared, "--group", "0").exit_code == 2


def test_cheaper_answers_leave_groups_a_better_bound(shared: Path) -> None:
    before = document(shared, "--group", "5")["group"]["total"]
    shared.write_text(shared.read_text().replace("query_epsilon = 0.5", "query_epsilon = 0.5\nmax_query_epsilon = 0.5"))
    after = document(shared, "--group", "5")["group"]["total"]
    assert after["epsilon"] == before["epsilon"]
    assert after["delta"] < before["delta"] / 1_000
