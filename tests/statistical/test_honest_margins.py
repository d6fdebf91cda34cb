"""Whether margins hold given that they are shown: of groups of every size, of keys near the threshold, at other levels
of confidence, and of all numbers of an answer at once.

A margin that is only shown where noise was kind covers less than it says, and most answers hide it: large groups are
always fine. So each size is counted by itself. A false alarm has a chance below one in ten million for each count;
where all groups of a size have a margin, those that cover 85 of 100 are noticed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import duckdb
import pytest
from scipy import stats

import dpsql

FALSE_ALARM = 1e-8
SIZES = (4, 9, 15, 22, 40)
GROUPS = 700  # of each size
LARGE = 3  # people with the most that is declared
COVERED = 0.945  # a margin is a whole number, and a quotient not quite normal

POLICY = """
[database]
url = "duckdb:///people.duckdb"

[privacy]
epsilon = 1_000.0
delta = 1e-4
accounting = "{accounting}"
query_epsilon = {price}
query_delta = 1e-6

[tables.people]
unit = "id"
[tables.people.columns]
g = {{ min = 0, max = {last} }}
name = {{}}
x = {{ min = 0, max = 10, step = 1 }}

[tables.visits]
unit = "person"
max_rows_per_unit = 6
tight = true
[tables.visits.columns]
fee = {{ min = 0, max = 100, step = 1 }}

[tables.incomes]
unit = "id"
[tables.incomes.columns]
g = {{ min = 0, max = 699 }}
income = {{ min = 0, max = 100_000, step = 1, tight = false }}

[users.alice]
"""

QUOTIENTS = [
    ("AVG(x)", "AVG(x)"),
    ("STDDEV_POP(x)", "STDDEV_POP(x)"),
    ("100.0 * COUNT(*) FILTER (WHERE x <= 8) / COUNT(*)", "100 * AVG((x <= 8)::INT)"),
    ("SUM(x) * 1.0 / COUNT(*)", "AVG(x)"),
]
ACCOUNTING = [("zcdp", 1), ("basic", 0.3)]


def make(directory: Path, sizes: tuple[int, ...], accounting: str, price: float) -> dpsql.Connection:
    """So many groups of each size; the people of two groups of one size have the same values."""
    with duckdb.connect(str(directory / "people.duckdb")) as database:
        database.execute("CREATE TABLE people (id INTEGER PRIMARY KEY, g INTEGER, name TEXT, x INTEGER)")
        database.execute("CREATE TABLE visits (person INTEGER, fee INTEGER)")
        parts = [
            f"SELECT {place * GROUPS} + k AS g, (7 * i + 3) % 11 AS x FROM range({GROUPS}) a(k), range({size}) b(i)"
            for place, size in enumerate(sizes)
        ]
        rows = f"SELECT row_number() OVER () AS id, g, 'k' || g AS name, x FROM ({' UNION ALL '.join(parts)})"
        database.execute(f"INSERT INTO people {rows}")
        database.execute("INSERT INTO visits SELECT id, 50 FROM people, range(9) WHERE g < 100")
        # Of nearly all groups everybody has 10; in a few one person has the most that is declared.
        database.execute("CREATE TABLE incomes (id INTEGER PRIMARY KEY, g INTEGER, income INTEGER)")
        large = f"CASE WHEN i < {LARGE} THEN 100_000 ELSE 10 END"
        heavy = f"SELECT i, i % {GROUPS}, {large} FROM range(100 * {GROUPS}) AS r(i)"
        database.execute(f"INSERT INTO incomes {heavy}")
    policy = directory / "dpsql.toml"
    policy.write_text(POLICY.format(accounting=accounting, price=price, last=len(sizes) * GROUPS - 1))
    return dpsql.connect(policy)


@cache
def truth(expression: str, size: int) -> float:
    with duckdb.connect() as database:
        found = database.execute(f"SELECT {expression} FROM (SELECT (7 * i + 3) % 11 AS x FROM range({size}) t(i))")
        return float(found.fetchall()[0][0])


def holds(within: int, shown: int, covered: float = COVERED) -> bool:
    return bool(within >= stats.binom.ppf(FALSE_ALARM, shown, covered))


def test_the_counts_have_power() -> None:
    """What covers 85 of 100 is noticed in 99 of 100 runs, where all groups of a size are counted."""
    assert stats.binom.cdf(stats.binom.ppf(FALSE_ALARM, GROUPS, COVERED) - 1, GROUPS, 0.85) > 0.99


@pytest.fixture(scope="module", params=ACCOUNTING)
def cursor(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dpsql.Cursor]:
    with make(tmp_path_factory.mktemp("sizes"), SIZES, *request.param) as connection:
        yield connection.cursor()


@pytest.mark.parametrize(("sql", "exact"), QUOTIENTS)
def test_quotients_are_covered_in_groups_of_every_size(cursor: dpsql.Cursor, sql: str, exact: str) -> None:
    cursor.execute(f"SELECT g, {sql} FROM people GROUP BY g")
    counted = dict.fromkeys(SIZES, (0, 0))
    for (g, value), (_, margin) in zip(cursor.fetchall(), cursor.row_margins, strict=True):
        assert isinstance(g, int)
        size = SIZES[g // GROUPS]
        if value is not None and margin is not None and math.isfinite(margin):
            within, shown = counted[size]
            counted[size] = within + (abs(float(value) - truth(exact, size)) <= margin), shown + 1  # type: ignore[arg-type]
    assert all(holds(within, shown) for within, shown in counted.values() if shown >= 100), counted
    assert counted[SIZES[-1]][1] >= 300  # large groups have margins


@pytest.mark.parametrize(
    ("accounting", "price", "sizes"), [("zcdp", 1, (*(12,) * 6, 16, 20, 24)), ("basic", 0.5, (*(20,) * 6, 26, 30))]
)
def test_keys_near_the_threshold_are_covered(
    tmp_path: Path, accounting: str, price: float, sizes: tuple[int, ...]
) -> None:
    with make(tmp_path, sizes, accounting, price) as connection:
        cursor = connection.cursor()
        cursor.execute("SELECT name, COUNT(*) FROM people GROUP BY name")
        counted = dict.fromkeys(sizes, (0, 0, 0))
        plain = min(margin for _, margin in cursor.row_margins if margin is not None)
        for (name, value), (_, margin) in zip(cursor.fetchall(), cursor.row_margins, strict=True):
            assert isinstance(name, str) and isinstance(value, int) and margin is not None
            size = sizes[int(name[1:]) // GROUPS]
            within, of_plain, shown = counted[size]
            off = abs(value - size)
            counted[size] = within + (off <= margin), of_plain + (off <= plain), shown + 1
        assert all(holds(within, shown) for within, _, shown in counted.values() if shown), counted
        # Without regard to the selection they would not be: many keys are below the threshold, and few of them shown.
        assert not all(holds(of_plain, shown) for _, of_plain, shown in counted.values()), counted


@pytest.mark.parametrize("level", ["0.8", "0.99", "0.999"])
def test_other_levels_of_confidence(cursor: dpsql.Cursor, level: str) -> None:
    cursor.execute(f"SET dpsql.confidence = {level}")
    try:
        cursor.execute("SELECT g, COUNT(*), SUM(x) - 5 * COUNT(*) FROM people GROUP BY g")
        rows, margins = cursor.fetchall(), cursor.row_margins
        for column, exact in ((1, "COUNT(*)"), (2, "SUM(x) - 5 * COUNT(*)")):
            within = 0
            for row, its in zip(rows, margins, strict=True):
                g, value, margin = row[0], row[column], its[column]
                assert isinstance(g, int) and isinstance(value, int) and margin is not None
                within += abs(value - truth(exact, SIZES[g // GROUPS])) <= margin
            assert holds(within, len(rows), float(level) - 0.002)
    finally:
        cursor.execute("RESET dpsql.confidence")


def test_all_numbers_of_an_answer_at_once(cursor: dpsql.Cursor) -> None:
    cursor.execute("SET dpsql.simultaneous = on")
    cursor.execute("SET dpsql.epsilon = 0.5")
    try:
        answers, all_within, all_of_plain = 40, 0, 0
        for asked in range(answers):
            cursor.execute(f"SELECT g, COUNT(*) FROM people WHERE x < {20 + asked} GROUP BY g")
            offs = [abs(int(value) - SIZES[int(g) // GROUPS]) for g, value in cursor.fetchall()]  # type: ignore[arg-type]
            margin = cursor.row_margins[0][1]
            assert margin is not None
            all_within += max(offs) <= margin
            all_of_plain += max(offs) <= margin / 1.5
        assert holds(all_within, answers, 0.95)
        assert not holds(all_of_plain, answers, 0.95)
    finally:
        cursor.execute("RESET dpsql.simultaneous")
        cursor.execute("RESET dpsql.epsilon")


def test_what_a_declared_limit_cuts_is_said(cursor: dpsql.Cursor) -> None:
    """Nine visits of each person, six of which count: no margin covers that, and none says it does."""
    cursor.execute("SELECT COUNT(*) FROM visits")
    ((count,),), ((margin,),) = cursor.fetchall(), cursor.row_margins
    assert isinstance(count, int) and margin is not None
    assert abs(count - 9 * 400) > margin and abs(count - 6 * 400) <= 4 * margin
    assert cursor.cautions == ("± with * is of the noise alone: at most 6 rows of one unit count",)
    assert list(cursor.noise_only or ()) == [True]


def test_what_no_limit_cuts_is_not_marked(cursor: dpsql.Cursor) -> None:
    cursor.execute("SELECT COUNT(*) FROM people")
    assert not cursor.cautions and cursor.noise_only == (False,)


def test_what_a_chosen_clip_cuts_is_marked(cursor: dpsql.Cursor) -> None:
    """Nothing that is released may tell whether one person has the most that is declared, so that no margin but one as
    wide as that covers it. The sum is marked; the count beside it is not cut, and is covered."""
    cursor.execute("SELECT g, COUNT(*) AS n, SUM(income) AS s FROM incomes GROUP BY g")
    assert cursor.noise_only == (False, False, True) and "a clip is chosen" in cursor.cautions[0]
    counts, sums = 0, list[bool]()
    for (g, n, s), (_, of_count, of_sum) in zip(cursor.fetchall(), cursor.row_margins, strict=True):
        assert isinstance(g, int) and isinstance(n, int) and isinstance(s, int)
        assert of_count is not None and of_sum is not None
        counts += abs(n - 100) <= of_count
        sums.append(abs(s - (990 + 100_000 if g < LARGE else 1_000)) <= of_sum)
    assert holds(counts, GROUPS) and holds(sum(sums[LARGE:]), GROUPS - LARGE)
    assert not any(sums[:LARGE])
