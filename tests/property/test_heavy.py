"""One person with far more rows than declared, in every cell, and sums as large as they may be: nothing overflows."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import pytest

from dpsql.generate.duckdb_lockdown import lock_down
from tests.property import world
from tests.property.flavours import bounded
from tests.property.world import COLUMNS, KEY, OWNER, SALT, TABLE, Case, Declared, release_of

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
