"""Owners with more rows than declared: what is made of several sums is not biased by how each of them is cut."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import duckdb
import pytest

from dpsql.dataset import bind_all, open_backend
from dpsql.policy.loader import load
from dpsql.privacy.accounting import Accountant
from dpsql.release import Measurement, Settings, compile_release
from dpsql.sql.parse import parse
from dpsql.sql.resolve import resolve

POLICY = """
[database]
url = "duckdb:///data.duckdb"

[privacy]
epsilon = 1
delta = 0
accounting = "basic"

[tables.visits]
unit = "person"
max_rows_per_unit = 8
[tables.visits.columns]
fee = { min = 0, max = 100 }
kind = { min = 0, max = 3 }
"""


def _exact(folder: Path, sql: str) -> tuple[Measurement, Sequence[int]]:
    """The sums of somebody with ten times as many rows as declared, all with a fee of 20."""
    with duckdb.connect(str(folder / "data.duckdb")) as connection:
        connection.execute("CREATE TABLE visits AS SELECT 1 AS person, 20 AS fee, i % 4 AS kind FROM range(80) AS t(i)")
    (folder / "policy.toml").write_text(POLICY)
    policy = load(folder / "policy.toml")
    with closing(open_backend(policy)) as backend:
        catalog = bind_all(policy, backend)
        plan = resolve(parse(sql, catalog.limits), catalog, ())
        release = compile_release(plan, catalog, Accountant(policy.privacy), Settings(), backend.dialect)
        (measurement,) = release.measurements
        (branch,) = measurement.branches
        (table,) = backend.execute([branch.query], timeout=60)
        return measurement, [int(column.sum()) for column in table.sums]


@pytest.mark.parametrize("keys", ["", " GROUP BY kind"])
def test_an_average_of_too_many_rows_is_that_of_few(tmp_path: Path, keys: str) -> None:
    measurement, (above, below) = _exact(tmp_path, f"SELECT AVG(fee) FROM visits{keys}")
    assert measurement.groups == ((0, 1),)
    factor = measurement.statistics[0].factor
    assert above + below == pytest.approx(8 * 100 * factor)  # of so many rows as are declared
    assert above / (above + below) == pytest.approx(0.2, rel=1e-3)


@pytest.mark.parametrize("keys", ["", " GROUP BY kind"])
def test_a_deviation_of_too_many_rows_is_that_of_few(tmp_path: Path, keys: str) -> None:
    _, sums = _exact(tmp_path, f"SELECT STDDEV_POP(fee) FROM visits{keys}")
    assert [size / sum(sums) for size in sums] == pytest.approx([0.64, 0.32, 0.04], rel=1e-2)
