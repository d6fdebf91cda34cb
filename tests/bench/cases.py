"""What is asked: made-up tables, the policy on them, and each query with the raw one that it is compared with."""

from __future__ import annotations

from dataclasses import dataclass

POLICY = """
[database]
url = "{url}"
ledger = "bench.ledger"
[privacy]
epsilon = 9000.0
delta = 1e-3
accounting = "basic"
query_epsilon = 0.01
[tables.people]
unit = "id"
[tables.people.columns]
five = {{ min = 0, max = 4 }}
thousand = {{ min = 0, max = 999 }}
many = {{ min = 0, max = 99999 }}
income = {{ min = 0, max = 500000 }}
age = {{ min = 0, max = 110 }}
[tables.anybody]
unit = "id"
[tables.anybody.columns]
five = {{ min = 0, max = 4 }}
income = {{ min = 0, max = 500000 }}
[tables.visits]
unit = "person"
max_rows_per_unit = 10
[tables.visits.columns]
kind = {{ min = 0, max = 9 }}
fee = {{ min = 0, max = 1000 }}
town = {{}}
[tables.kinds]
public = true
[users.bench]
"""


@dataclass(frozen=True)
class Case:
    """A query; where `raw` is empty, the same text is asked of the engine itself."""

    name: str
    private: str
    raw: str = ""

    @property
    def is_bounded(self) -> bool:
        """Whether what a person contributes has to be bounded, so that the raw query counts the people as well."""
        return bool(self.raw)

    @property
    def beside(self) -> str:
        return self.raw or self.private


_EIGHT = "COUNT(*), COUNT(age), SUM(income), SUM(age), AVG(income), AVG(age), VARIANCE(age), STDDEV(income)"

CASES = (
    # One row per person, held unique by the engine: nothing has to be bounded.
    Case("count, 5 groups, one row each", "SELECT five, COUNT(*) FROM people GROUP BY five"),
    Case("count, 1,000 groups, one row each", "SELECT thousand, COUNT(*) FROM people GROUP BY thousand"),
    Case("count, 100,000 groups, one row each", "SELECT many, COUNT(*) FROM people GROUP BY many"),
    Case("sum, 5 groups, one row each", "SELECT five, SUM(income) FROM people GROUP BY five"),
    Case("eight aggregates, 5 groups, one row each", f"SELECT five, {_EIGHT} FROM people GROUP BY five"),
    Case("eight aggregates, 1,000 groups, one row each", f"SELECT thousand, {_EIGHT} FROM people GROUP BY thousand"),
    Case("count under a filter, one row each", "SELECT COUNT(*) FROM people WHERE age >= 65 AND income < 50000"),
    # Nobody vouches for uniqueness, or there are many rows: compared with counting the people too.
    Case(
        "count, one row each, not held unique",
        "SELECT COUNT(*) FROM anybody",
        "SELECT COUNT(*), COUNT(DISTINCT id) FROM anybody",
    ),
    Case(
        "count, 10 groups, many rows each",
        "SELECT kind, COUNT(*) FROM visits GROUP BY kind",
        "SELECT kind, COUNT(*), COUNT(DISTINCT person) FROM visits GROUP BY kind",
    ),
    Case(
        "average, 10 groups, many rows each",
        "SELECT kind, AVG(fee) FROM visits GROUP BY kind",
        "SELECT kind, AVG(fee), COUNT(DISTINCT person) FROM visits GROUP BY kind",
    ),
    Case(
        "count, unknown keys, many rows each",
        "SELECT town, COUNT(*) FROM visits GROUP BY town",
        "SELECT town, COUNT(*), COUNT(DISTINCT person) FROM visits GROUP BY town",
    ),
    Case(
        "average over a join of people and visits",
        "SELECT p.five, AVG(v.fee) FROM visits v JOIN people p ON v.person = p.id GROUP BY p.five",
        "SELECT p.five, AVG(v.fee), COUNT(DISTINCT p.id)"
        " FROM visits v JOIN people p ON v.person = p.id GROUP BY p.five",
    ),
    Case(
        "count over a join with a public table",
        "SELECT k.label, COUNT(*) FROM visits v JOIN kinds k ON v.kind = k.kind GROUP BY k.label",
        "SELECT k.label, COUNT(*), COUNT(DISTINCT v.person)"
        " FROM visits v JOIN kinds k ON v.kind = k.kind GROUP BY k.label",
    ),
)

# A small question for the fixed cost of asking at all.
SMALL = "SELECT five, COUNT(*) FROM people GROUP BY five"


def another_small(number: int) -> str:
    """A question whose text nobody has asked before."""
    return f"SELECT five, COUNT(*) FROM people WHERE income <= {number} GROUP BY five"


def statements(series: str, rows: int) -> list[str]:
    """Tables, in words of both engines; `series` yields the numbers i below `rows`."""
    person = (
        "CAST((i * 7919) % 5 AS integer) AS five, CAST((i * 7907) % 1000 AS integer) AS thousand,"
        " CAST((i * 7901) % 100000 AS integer) AS many, CAST((i * 104729) % 500000 AS integer) AS income,"
        " CAST((i * 31) % 100 AS integer) AS age"
    )
    visit = (
        f"i % {max(1, rows // 5)} AS person, CAST((i * 31) % 10 AS integer) AS kind,"
        " CAST((i * 7) % 1000 AS integer) AS fee, 'town ' || CAST((i * 13) % 50 AS varchar(9)) AS town"
    )
    columns = "five integer, thousand integer, many integer, income integer, age integer"
    return [
        f"CREATE TABLE people (id bigint PRIMARY KEY, {columns})",
        f"INSERT INTO people SELECT i, {person} FROM {series}",
        f"CREATE TABLE anybody AS SELECT i AS id, {person} FROM {series}",
        f"CREATE TABLE visits AS SELECT {visit} FROM {series}",
        "CREATE TABLE kinds (kind integer PRIMARY KEY, label varchar(20))",
        "INSERT INTO kinds VALUES " + ", ".join(f"({kind}, 'label {kind % 4}')" for kind in range(10)),
    ]
