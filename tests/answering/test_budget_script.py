"""A script that asks until the money is gone: what was paid is known to the grain, and nobody forgets it."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from fractions import Fraction
from pathlib import Path

import pytest

import dpsql
from dpsql.driver.dbapi import Connection
from dpsql.ledger.sqlite import SqliteLedger
from dpsql.policy.load import load
from dpsql.privacy.accounting import Accountant, Price
from tests import toy

AFFORDABLE = 19  # the twentieth query finds too little left

# All different, so that none is a replay or made of others, and all at the policy's price.
SCRIPT = [
    "SELECT COUNT(*) FROM people",
    "SELECT state, COUNT(*) FROM people GROUP BY state",
    "SELECT SUM(age), AVG(income) FROM people WHERE smoker",
    "SELECT kind, COUNT(*) FROM visits GROUP BY kind",
    "SELECT AVG(fee) FROM visits",
    "SELECT COUNT(DISTINCT patient_id) FROM visits",
    "SELECT FLOOR(age / 10), COUNT(*) FROM people GROUP BY 1 ORDER BY 1",
    "SELECT STDDEV(age) FROM people",
    "SELECT smoker, COUNT(*), AVG(age) FROM people GROUP BY smoker",
    "SELECT state, 100.0 * n / SUM(n) OVER () FROM (SELECT state, COUNT(*) n FROM people WHERE age > 9 GROUP BY 1) t",
    "SELECT COUNT(*) FILTER (WHERE sex = 'f') FROM people WHERE age BETWEEN 20 AND 40",
    "SELECT MAX(n) FROM (SELECT state, COUNT(*) n FROM people WHERE smoker GROUP BY state) t",
    "SELECT state, smoker, COUNT(*) FROM people WHERE age < 88 GROUP BY ROLLUP (state, smoker)",
    "SELECT COUNT(*) FROM people WHERE income > (SELECT AVG(income) FROM people)",
    "SELECT COUNT(*) FROM people WHERE age < 77 UNION ALL SELECT COUNT(*) FROM visits WHERE fee > 10",
    "SELECT EXTRACT(year FROM joined), COUNT(*) FROM people GROUP BY 1",
    "SELECT sex, COUNT(*) FROM people GROUP BY sex",
    "WITH a AS (SELECT AVG(age) m FROM people WHERE sex = 'm') SELECT m * 2 FROM a",
    "SELECT CORR(age, income) FROM people",
    "SELECT COUNT(*) FROM people WHERE state IN ('CA', 'NY')",
    "SELECT SUM(fee) FROM visits WHERE kind = 'a'",
    "SELECT AVG(n) FROM (SELECT patient_id, COUNT(*) n FROM visits GROUP BY 1) t",
    "SELECT state, SUM(income) FROM people GROUP BY state HAVING COUNT(*) > 10",
    "SELECT COUNT(*) FROM visits WHERE seen < TIMESTAMP '2021-03-01'",
    "SELECT date_trunc('year', joined), AVG(age) FROM people GROUP BY 1",
    "SELECT VAR_POP(fee) FROM visits",
    "SELECT COUNT(*) FROM people WHERE age IS NULL",
    "SELECT SUM(CASE WHEN smoker THEN 1 ELSE 0 END) FROM people WHERE state = 'TX'",
    "SELECT COUNT(DISTINCT kind) FROM visits",
    "SELECT AVG(ABS(age - 50)) FROM people",
]

# Read with SQLite alone, so that it does not depend on the code that wrote it.
PAID = "SELECT COUNT(*), SUM(dataset_loss), SUM(dataset_delta), SUM(user_loss), SUM(user_delta) FROM charges"


def run_script(connection: Connection) -> list[Price | str]:
    """What each query was charged, or the SQLSTATE with which it was refused."""
    outcomes: list[Price | str] = []
    for sql in SCRIPT:
        with connection.cursor() as cursor:
            try:
                cost = cursor.execute(sql).cost
            except dpsql.Error as error:
                outcomes.append(error.sqlstate)
            else:
                assert cost is not None
                outcomes.append(cost.charged.grains)
    return outcomes


def recorded(ledger: Path) -> tuple[int, Price, Price]:
    with closing(sqlite3.connect(ledger)) as connection:
        count, dataset_loss, dataset_delta, user_loss, user_delta = connection.execute(PAID).fetchone()
    return count, Price(dataset_loss, dataset_delta), Price(user_loss, user_delta)


def total_epsilon(policy: Path) -> str:
    """A total, as an epsilon, that pays for 19 queries and a half."""
    privacy = load(policy).privacy
    accountant = Accountant(privacy)
    price = accountant.price_of(privacy.query_epsilon)
    return f"{float(accountant.epsilon_of(price * (2 * AFFORDABLE + 1) // 2)):.6f}"


@pytest.mark.parametrize("accounting", ["basic", "zcdp"])
def test_a_script_is_refused_when_the_budget_runs_out(clinic: Path, accounting: str) -> None:
    toy.write_policy(clinic.parent, query_epsilon="0.5", accounting=accounting)
    toy.write_policy(clinic.parent, query_epsilon="0.5", accounting=accounting, epsilon=total_epsilon(clinic))
    accountant = Accountant(load(clinic).privacy)
    price = accountant.price_of(Fraction(1, 2))
    assert accountant.total.loss // price == AFFORDABLE
    ledger = clinic.parent / f"{toy.DATABASE}.ledger"

    with dpsql.connect(clinic, user="alice") as connection:
        outcomes = run_script(connection)
        budget = connection.budget
    assert outcomes[AFFORDABLE:] == ["53400"] * (30 - AFFORDABLE)
    paid = [outcome for outcome in outcomes if isinstance(outcome, Price)]
    assert len(paid) == AFFORDABLE
    # Where a query has several releases, its price is shared among them, and rounded down to whole grains.
    assert all(price - 10 <= charge.loss <= price for charge in paid)
    total = sum(paid, Price())
    assert recorded(ledger) == (AFFORDABLE, total, total)
    assert budget.spent.grains == total
    assert total + budget.left.grains == accountant.total

    # A new connection remembers: nothing new is sold, and what was sold before is still there for nothing.
    with dpsql.connect(clinic, user="alice") as connection:
        assert connection.budget == budget
        assert run_script(connection) == [Price()] * AFFORDABLE + ["53400"] * (30 - AFFORDABLE)
        assert connection.budget == budget

    # So does a new process.
    refused = in_new_process(clinic, "SELECT COUNT(*) FROM people WHERE age > 77")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.startswith("error: the privacy budget of the dataset is exhausted (SQLSTATE 53400)\n")
    replayed = in_new_process(clinic, SCRIPT[0])
    assert replayed.returncode == 0
    assert "; paid now: nothing; " in replayed.stderr

    assert recorded(ledger) == (AFFORDABLE, total, total)
    assert verify(clinic, ledger) == []


def in_new_process(policy: Path, sql: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dpsql", "query", "--policy", str(policy), sql]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def verify(policy: Path, path: Path) -> list[str]:
    accountant = Accountant(load(policy).privacy)
    ledger = SqliteLedger.open(
        path,
        dataset=toy.DATABASE,
        accounting=accountant.policy.accounting,
        total=accountant.total,
        allowances={"alice": accountant.total},
        protection=None,
        create=False,
    )
    try:
        return ledger.verify()
    finally:
        ledger.close()
