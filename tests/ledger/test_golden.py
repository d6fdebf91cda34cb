"""Answers that this version stored are found by the next: a change that loses them must be a decision.

The stored ledger is made anew, on purpose, with: python -m tests.ledger.test_golden
"""

from __future__ import annotations

import json
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from click.testing import CliRunner

import dpsql
from dpsql.answering.open_dataset import open_dataset
from dpsql.cli import commands
from tests import toy

HERE = Path(__file__).parent
DUMP, ANSWERS = HERE / "golden.sql", HERE / "golden.json"
BY_SQL = HERE / "by_sql.sql"  # of a version that knew answers by the SQL that was generated for them

# One of each kind whose key is made in a way of its own.
QUESTIONS = (
    "SELECT COUNT(*) FROM people",
    "SELECT state, COUNT(*) AS n, AVG(age) FROM people GROUP BY state ORDER BY state",
    "SELECT sex, COUNT(*) FROM people GROUP BY sex ORDER BY sex",
    "SELECT kind, SUM(fee) FROM visits GROUP BY kind ORDER BY kind",
    "SELECT MIN(age), MAX(age), MEDIAN(income) FROM people",
    "SELECT COUNT(*) FROM people WHERE age > (SELECT AVG(age) FROM people)",
    "SELECT state, SUM(COUNT(*)) OVER (ORDER BY state) FROM people GROUP BY state ORDER BY state",
    "SELECT state, sex, COUNT(*) FROM people GROUP BY ROLLUP (state, sex) ORDER BY 1, 2",
)


def _text(rows: object) -> str:
    return json.dumps(rows, default=str)


def _policy(folder: Path) -> Path:
    toy.create_database(folder / toy.DATABASE)
    return toy.write_policy(folder)


def _with_ledger(folder: Path, dump: Path) -> Path:
    policy = _policy(folder)
    with closing(sqlite3.connect(folder / f"{toy.DATABASE}.ledger")) as db:
        db.executescript(dump.read_text())
    return policy


def test_a_ledger_of_answers_known_by_their_sql_keeps_its_charges(tmp_path: Path) -> None:
    """Its answers are not found any more."""
    policy = _with_ledger(tmp_path, BY_SQL)
    with closing(open_dataset(policy)) as dataset:
        assert dataset.ledger.verify() == []
        before = dataset.ledger.spent()
        assert before.loss == 135855738565154
    with dpsql.connect(policy) as connection:
        cursor = connection.cursor()
        cursor.execute(QUESTIONS[0])
        assert cursor.cost is not None
        bought = cursor.cost.charged.grains.loss
        assert bought
    with closing(open_dataset(policy)) as dataset:
        assert dataset.ledger.spent().loss == before.loss + bought
    checked = CliRunner().invoke(commands, ["check", str(policy)]).stdout
    assert "; 7 were stored by an older version, and are no longer found" in checked


def test_stored_answers_are_found_again(tmp_path: Path) -> None:
    policy = _with_ledger(tmp_path, DUMP)
    with dpsql.connect(policy) as connection:
        cursor = connection.cursor()
        found = {}
        for question in QUESTIONS:
            found[question] = _text(cursor.execute(question).fetchall())
            assert cursor.cost is not None and not cursor.cost.charged.grains.loss, question
    assert found == json.loads(ANSWERS.read_text())


def _make() -> None:
    with tempfile.TemporaryDirectory() as folder:
        with dpsql.connect(_policy(Path(folder))) as connection:
            cursor = connection.cursor()
            found = {question: _text(cursor.execute(question).fetchall()) for question in QUESTIONS}
        with closing(sqlite3.connect(Path(folder) / f"{toy.DATABASE}.ledger")) as db:
            pragmas = [
                f"PRAGMA {name} = {db.execute(f'PRAGMA {name}').fetchone()[0]};"
                for name in ("application_id", "user_version")
            ]
            DUMP.write_text("\n".join([*pragmas, *db.iterdump()]) + "\n")
    ANSWERS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    _make()
