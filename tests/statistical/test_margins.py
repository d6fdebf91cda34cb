"""Whether 95 of 100 noisy numbers lie within the margins shown beside them, counted over thousands of groups.

Every group holds the same people, so that each row of an answer is a trial of its own against the same truth. A false
alarm has a chance below one in a billion; margins of less than half the width are noticed, and those that are three
times as wide in most answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import duckdb
import pytest
from scipy import stats

import dpsql

GROUPS = 2_000
PEOPLE = 300  # in each group
FALSE_ALARM = 1e-11  # of one question

POLICY = """
[database]
url = "duckdb:///groups.duckdb"

[privacy]
epsilon = 1_000.0
delta = 1e-6
accounting = "{accounting}"
query_epsilon = {price}
{more}

[tables.people]
unit = "id"
[tables.people.columns]
g = {{ min = 0, max = 1_999 }}
x = {{ min = 0, max = 10, step = 1 }}
y = {{ min = 0, max = 20, step = 0.5 }}

[users.alice]
"""

# Such that noise is small beside the groups, and much larger than its grain.
PRICES = [
    {"accounting": "zcdp", "price": 3, "more": ""},
    {"accounting": "basic", "price": 2, "more": ""},
    {"accounting": "zcdp", "price": 2, "more": "pure = true"},
]
BY_GROUP = "SELECT g, COUNT(*) AS n, SUM(x) AS s FROM people GROUP BY g"

# What is shown, and the same of one group without noise.
SHOWN = [
    ("SELECT AVG(x) FROM people GROUP BY g", "AVG(x)"),
    ("SELECT VARIANCE(x) FROM people GROUP BY g", "VAR_SAMP(x)"),
    ("SELECT STDDEV_POP(x) FROM people GROUP BY g", "STDDEV_POP(x)"),
    ("SELECT COVAR_POP(x, y) FROM people GROUP BY g", "COVAR_POP(x, y)"),
    ("SELECT CORR(x, y) FROM people GROUP BY g", "CORR(x, y)"),
    ("SELECT REGR_SLOPE(y, x) FROM people GROUP BY g", "REGR_SLOPE(y, x)"),
    ("SELECT REGR_INTERCEPT(y, x) FROM people GROUP BY g", "REGR_INTERCEPT(y, x)"),
    ("SELECT 100.0 * COUNT(*) FILTER (WHERE x > 5) / COUNT(*) FROM people GROUP BY g", "100 * AVG((x > 5)::INT)"),
    ("SELECT ROUND(AVG(x)::numeric, 2) FROM people GROUP BY g", "AVG(x)"),
    (
        "SELECT CASE WHEN COUNT(*) > 50 THEN SQRT(SUM(x) + 2.5 * COUNT(*)) END FROM people GROUP BY g",
        "SQRT(SUM(x) + 2.5 * COUNT(*))",
    ),
    (f"SELECT 2 * n - 3 * LAG(n) OVER (ORDER BY g) FROM ({BY_GROUP}) t", "-COUNT(*)"),
    # Of two shares the second is off by as much as the first: one trial, not two.
    (
        f"SELECT p FROM (SELECT g, 1.0 * n / SUM(n) OVER (PARTITION BY g / 2) AS p FROM ({BY_GROUP}) t) q"
        " WHERE g % 2 = 0",
        "0.5",
    ),
    (f"SELECT s - AVG(n) OVER (PARTITION BY g / 2) FROM ({BY_GROUP}) t", "SUM(x) - COUNT(*)"),
    (f"SELECT SUM(s) * 1.0 / SUM(n) FROM ({BY_GROUP}) t GROUP BY g / 2", "AVG(x)"),
    (f"SELECT AVG(s * 1.0 / n) FROM ({BY_GROUP}) t GROUP BY g / 2", "AVG(x)"),
]


def people(count: int) -> str:
    place = f"i % {PEOPLE}"
    columns = f"i AS id, i // {PEOPLE} AS g, {place} % 11 AS x, {place} % 11 + {place} % 7 AS y"
    return f"SELECT {columns} FROM range({count}) AS t(i)"


def truth(expression: str) -> float:
    with duckdb.connect() as database:
        return float(database.execute(f"SELECT {expression} FROM ({people(PEOPLE)})").fetchall()[0][0])


@pytest.fixture(scope="module", params=PRICES)
def cursor(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dpsql.Cursor]:
    directory = tmp_path_factory.mktemp("groups")
    with duckdb.connect(str(directory / "groups.duckdb")) as database:
        database.execute("CREATE TABLE people (id INTEGER PRIMARY KEY, g INTEGER, x INTEGER, y DOUBLE)")
        database.execute(f"INSERT INTO people {people(GROUPS * PEOPLE)}")
    policy = directory / "dpsql.toml"
    policy.write_text(POLICY.format(**request.param))
    with dpsql.connect(policy) as connection, connection.cursor() as cursor:
        if request.param["more"]:
            cursor.execute("SET dpsql.pure = on")
        yield cursor


def fits(errors: Sequence[float], margins: Sequence[float], scale: float) -> bool:
    """Whether as many errors lie within the scaled margins as should.

    Of what is shown here, 94.5 to 97.8 of 100 do: a quotient is not quite normal, and a margin is a whole number.
    """
    within = sum(error <= margin * scale for error, margin in zip(errors, margins, strict=True))
    fewest, most = stats.binom.ppf(FALSE_ALARM, len(errors), 0.945), stats.binom.isf(FALSE_ALARM, len(errors), 0.978)
    return bool(fewest <= within <= most)


@pytest.mark.parametrize(("sql", "exact"), SHOWN)
def test_the_margin_is_that_of_95_of_100(cursor: dpsql.Cursor, sql: str, exact: str) -> None:
    cursor.execute(sql)
    pairs = [(row[0], margins[0]) for row, margins in zip(cursor.fetchall(), cursor.row_margins, strict=True)]
    told = [(value, margin) for value, margin in pairs if isinstance(value, int | float) and margin is not None]
    assert len(told) >= len(pairs) - 1  # the first row has none before it
    true = truth(exact)
    errors, shown = [abs(value - true) for value, _ in told], [margin for _, margin in told]
    assert fits(errors, shown, 1)
    assert not fits(errors, shown, 1 / 2.2)
