"""A small clinic to ask: people with one row each, their visits, and a public table of states."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import duckdb

DATABASE = "clinic.duckdb"
PEOPLE = 600
VISITS = 1_500

_SCHEMA = f"""
CREATE TABLE people (
    id INTEGER PRIMARY KEY, age INTEGER, sex VARCHAR, state VARCHAR, income DOUBLE, smoker BOOLEAN, joined DATE
);
INSERT INTO people
SELECT i, i % 100, ['f', 'm'][1 + i % 2], ['CA', 'NY', 'TX'][1 + i % 3], (i * 37) % 100000, i % 5 = 0,
       DATE '2020-01-01' + CAST(i % 1000 AS INTEGER)
FROM range({PEOPLE}) AS t(i);

CREATE TABLE visits (id INTEGER PRIMARY KEY, patient_id INTEGER, fee DECIMAL(10, 2), kind VARCHAR, seen TIMESTAMP);
INSERT INTO visits
SELECT i, i % 300, (i % 300) / 10, ['a', 'b', 'c', 'd'][1 + i % 4],
       TIMESTAMP '2021-01-01' + to_hours(CAST(i % 5000 AS INTEGER))
FROM range({VISITS}) AS t(i);

CREATE TABLE states (code VARCHAR PRIMARY KEY, region VARCHAR);
INSERT INTO states VALUES ('CA', 'west'), ('NY', 'east'), ('TX', 'south');
"""

_TABLES = """
[tables.people]
unit = "id"
[tables.people.columns]
age = { min = 0, max = 110 }
income = { min = 0, max = 500_000, step = 1 }
state = { values = ["CA", "NY", "TX"] }
sex = {}
smoker = {}
joined = { min = 2019-01-01, max = 2024-12-31 }

[tables.visits]
unit = "patient_id"
max_rows_per_unit = 10
[tables.visits.columns]
fee = { min = 0, max = 100 }
kind = {}
seen = { min = 2021-01-01, max = 2022-12-31 }

[tables.states]
public = true
"""

# Costs one release, after which the rest of the query takes longer than anyone waits.
ENDLESS = f"""
SELECT (SELECT COUNT(*) FROM people),
       (SELECT COUNT(*) FROM {" CROSS JOIN ".join(f"states s{i}" for i in range(30))})
"""


def create_database(path: Path) -> None:
    with duckdb.connect(str(path)) as connection:
        connection.execute(_SCHEMA)


def write_policy(
    directory: Path,
    *,
    epsilon: str = "100.0",
    query_epsilon: str = "1.0",
    accounting: str = "zcdp",
    pure: bool = False,
    users: Sequence[str] = ("alice",),
) -> Path:
    """A policy file for the database in the same directory."""
    policy = directory / "dpsql.toml"
    head = f"""
[database]
url = "duckdb:///{DATABASE}"

[privacy]
epsilon = {epsilon}
delta = 1e-6
accounting = "{accounting}"
query_epsilon = {query_epsilon}
{"pure = true" if pure else ""}
"""
    policy.write_text(head + _TABLES + "".join(f"\n[users.{name}]\n" for name in users))
    return policy


def wait_for_release(policy: Path) -> None:
    """Return when an answer has been stored, which is when ENDLESS comes to its endless part."""
    ledger = policy.with_name(f"{DATABASE}.ledger")
    deadline = time.monotonic() + 60
    while not (ledger.exists() and _stored_answers(ledger)):
        if time.monotonic() > deadline:
            raise TimeoutError("nothing was released")
        time.sleep(0.01)


def _stored_answers(ledger: Path) -> int:
    with closing(sqlite3.connect(ledger)) as connection:
        try:
            (count,) = connection.execute("SELECT COUNT(*) FROM answers").fetchone()
        except sqlite3.OperationalError:  # the file is there before its tables are
            return 0
    return int(count)
