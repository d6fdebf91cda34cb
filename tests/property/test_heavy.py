"""Numbers as large as they may be: one person in every cell with far more rows than declared; grids far from zero."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import duckdb
import pytest

from dpsql.engines.duckdb.session import lock_down
from tests.property import world
from tests.property.flavours import bounded
from tests.property.world import COLUMNS, KEY, OWNER, SALT, TABLE, Case, Declared, check_neighbours, release_of

CELLS = 100_000  # the most that are declared, unless the policy says otherwise
LARGE = 2**40
# Bounds without a common multiple that is small: the norm of all sums together is counted in the finest parts.
BOUNDS = [LARGE - less for less in (87, 167, 195, 203, 213, 285)]


@pytest.fixture
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(":memory:") as made:
        lock_down(made)
        columns = ", ".join(f"{name} {native}" for name, (native, _) in COLUMNS.items())
        made.execute(f"CREATE TABLE {TABLE} ({OWNER} INTEGER, {KEY} INTEGER, {columns})")
        yield made


def test_the_norm_of_many_cells_of_several_sums_fits(
    connection: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world, "MAX_CELLS", CELLS)
    columns = (bounded("n", 0, CELLS - 1), bounded("big", 0, LARGE), bounded("small", 0, len(BOUNDS)))
    declared = Declared(columns, max_rows=2, tight=True, accounting="zcdp")
    sums = ", ".join(f"SUM(LEAST(big, {most})) FILTER (WHERE small = {i})" for i, most in enumerate(BOUNDS))
    (measurement,) = release_of(Case(f"SELECT n, {sums} FROM t GROUP BY n", declared, ())).measurements
    assert measurement.groups == (tuple(range(len(BOUNDS))),)
    connection.execute(
        f"INSERT INTO {TABLE} ({OWNER}, {KEY}, n, big, small)"
        f" SELECT 1, i, i % {CELLS}, {LARGE}, i // {CELLS} % {len(BOUNDS)}"
        f" FROM range({2 * len(BOUNDS) * CELLS}) AS r(i)"
    )
    (branch,) = measurement.branches
    parameters = {"salt": SALT} if "$salt" in branch.query.sql else {}
    rows = connection.execute(branch.query.sql, parameters).fetchall()
    claims = [statistic.sensitivity.l2_squared for statistic in measurement.statistics]
    moved = sum(value**2 / claim for row in rows for value, claim in zip(row[1:], claims, strict=True))
    assert 0 < moved <= 1


@pytest.mark.parametrize(
    ("ends", "value"),
    [
        ((340_147_891_680_900_000, 340_147_891_680_936_063), "3401478916809.3604"),  # rounds to one step above
        ((303_725_044_393_205_251, 303_725_044_393_300_000), "3037250443932.053"),  # and to some below
    ],
)
@pytest.mark.parametrize("sql", ["SELECT MAX(x) FROM t", "SELECT MEDIAN(x), MIN(x) FROM t"])
def test_a_value_is_never_rounded_to_one_that_is_no_candidate(ends: tuple[int, int], value: str, sql: str) -> None:
    step = Fraction(1, 100_000)
    low, high = (end * step for end in ends)
    declared = Declared((bounded("x", low, high, step=step),), unique=True)
    check_neighbours(Case(sql, declared, ({"who": "1", "x": value}, {"who": "2", "x": "1"})))
