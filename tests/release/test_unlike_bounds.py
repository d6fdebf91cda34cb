"""Owners with more rows than declared: what is made of several sums is not biased by how each of them is cut.

And where clips are searched for, they are those of an owner's sums, cell by cell.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from fractions import Fraction
from pathlib import Path

import duckdb
import pytest

from dpsql.answering.open_dataset import bind_all, open_backend
from dpsql.engines.base import Engine
from dpsql.lowering.duckdb_dialect import DUCKDB
from dpsql.policy.load import load
from dpsql.policy.model import Catalog
from dpsql.privacy.accounting import Accountant
from dpsql.privacy.estimators.basis import Shape
from dpsql.privacy.rules.aggregates import StatisticKind, clips
from dpsql.release import Measurement, QuerySettings, Release, compile_release
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


OF_TWENTY = "SELECT 1 AS person, 20 AS fee, i % 4 AS kind FROM range(80) AS t(i)"
OF_UP_AND_DOWN = (
    "SELECT 1 AS person, CASE WHEN i % 2 = 0 THEN 0 ELSE 40 END AS fee, i % 4 AS kind FROM range(8) AS t(i)"
)


@contextmanager
def _opened(folder: Path, rows: str, *, loose: bool) -> Iterator[tuple[Catalog, Engine, Accountant]]:
    with duckdb.connect(str(folder / "data.duckdb")) as connection:
        connection.execute(f"CREATE TABLE visits AS {rows}")
    (folder / "policy.toml").write_text(POLICY.replace("= 8\n", "= 8\ntight = false\n") if loose else POLICY)
    policy = load(folder / "policy.toml")
    with closing(open_backend(policy)) as engine:
        yield bind_all(policy, engine), engine, Accountant(policy.privacy)


def _exact(folder: Path, sql: str) -> tuple[Measurement, Sequence[int]]:
    """The sums of somebody with ten times as many rows as declared, all with a fee of 20."""
    with _opened(folder, OF_TWENTY, loose=False) as (catalog, engine, accountant):
        plan = resolve(parse(sql, catalog.limits), catalog, ())
        release = compile_release(plan, catalog, accountant, QuerySettings(), engine.dialect)
        (measurement,) = release.measurements
        (branch,) = measurement.branches
        (table,) = engine.execute([branch.query], timeout=60)
        return measurement, [int(column.sum()) for column in table.sums]


def _settled(catalog: Catalog, accountant: Accountant, sql: str, centre: int, halvings: int) -> tuple[Release, Release]:
    """A query before and after a centre, and clips so many halves below the declared ones, were chosen."""
    plan = resolve(parse(sql, catalog.limits), catalog, ())
    release = compile_release(plan, catalog, accountant, QuerySettings(), DUCKDB, "searched")
    assert release.settle is not None
    places = {}
    for index in release.searches:
        (search,) = release.measurements[index].statistics
        places[index] = centre if search.kind is StatisticKind.CENTRE else max(len(clips(search)) - 1 - 2 * halvings, 0)
    return release, release.settle(places)


@pytest.mark.parametrize("centre", [10, 50])
@pytest.mark.parametrize("halvings", [0, 1])
@pytest.mark.parametrize("keys", ["", " GROUP BY kind"])
def test_differences_from_a_centre_are_scaled_as_their_rows_are(
    tmp_path: Path, keys: str, halvings: int, centre: int
) -> None:
    with _opened(tmp_path, OF_TWENTY, loose=True) as (catalog, engine, accountant):
        _, release = _settled(catalog, accountant, f"SELECT AVG(fee) FROM visits{keys}", centre, halvings)
        main = release.measurements[-1]
        (table,) = engine.execute([main.branches[0].query], timeout=60)
    count, around = main.statistics
    rows, above = (Fraction(int(column.sum()), s.factor) for column, s in zip(table.sums, main.statistics, strict=True))
    assert around.shape is Shape.RESIDUAL and around.centre == centre
    assert float(rows) == pytest.approx(8 / 2**halvings, rel=1e-2)
    assert float(around.centre + above / rows) == pytest.approx(20, rel=1e-2)
    assert abs(above) * around.factor <= around.clip and rows * count.factor <= count.clip


@pytest.mark.parametrize(("keys", "least"), [("", 0), (" GROUP BY kind", 160)])
def test_the_clip_of_differences_is_that_of_sums_in_cells(tmp_path: Path, keys: str, least: int) -> None:
    with _opened(tmp_path, OF_UP_AND_DOWN, loose=True) as (catalog, engine, accountant):
        _, release = _settled(catalog, accountant, f"SELECT AVG(fee) FROM visits{keys}", 20, 0)
        search = next(m for m in release.measurements if m.statistics[0].shape is Shape.RESIDUAL and m.is_search)
        (table,) = engine.execute([search.branches[0].query], timeout=60)
    ((place,),) = table.keys
    found = clips(search.statistics[0])
    assert isinstance(place, int) and found[place] >= least
    assert place == 0 or found[place - 1] < least


def test_once_clips_are_chosen_the_price_is_shared_anew_and_the_same(tmp_path: Path) -> None:
    sql = "SELECT SUM(fee), AVG(fee), COUNT(fee) FROM visits"
    with _opened(tmp_path, OF_TWENTY, loose=True) as (catalog, _, accountant):
        before, near = _settled(catalog, accountant, sql, 50, 9)
    assert [m.price for m in near.measurements] == [m.price for m in before.measurements]
    (count, around), noises = near.measurements[-1].statistics, near.measurements[-1].noises
    given = [s.sensitivity.l1 / noise.scale for s, noise in zip((count, around), noises, strict=True)]
    assert sum(given) <= near.measurements[-1].price.loss_value
    # A difference of three or so beside fifty says little: most of the price is for the count, which counts twice.
    assert given[0] > 4 * given[1]


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


FAR = 10_000_000_000_000
OF_FAR = f"SELECT 1 AS person, 20 AS fee, i % 4 AS kind, {FAR} + i AS number FROM range(8) AS t(i)"


@pytest.mark.parametrize("accounting", ["basic", "zcdp"])
@pytest.mark.parametrize(
    "sql", ["SELECT AVG(number) FROM visits", "SELECT COUNT(*), SUM(number), AVG(fee) FROM visits"]
)
def test_values_far_from_zero_are_measured_as_closely_as_before(tmp_path: Path, sql: str, accounting: str) -> None:
    """Beside a number of thirteen digits, ten are nothing; they are what its bounds leave open, and are asked for."""
    with duckdb.connect(str(tmp_path / "data.duckdb")) as connection:
        connection.execute(f"CREATE TABLE visits AS {OF_FAR}")
        for column in ("fee", "number"):
            connection.execute(f"ALTER TABLE visits ALTER {column} SET NOT NULL")
    text = POLICY.replace("= 8\n", "= 8\ntight = false\n").replace("epsilon = 1\n", "epsilon = 10\n")
    text += f"number = {{ min = {FAR}, max = {FAR + 10}, step = 1 }}\n"
    if accounting == "zcdp":
        text = text.replace("delta = 0", "delta = 1e-6").replace('"basic"', '"zcdp"')
    (tmp_path / "policy.toml").write_text(text)
    policy = load(tmp_path / "policy.toml")
    with closing(open_backend(policy)) as engine:
        catalog, accountant = bind_all(policy, engine), Accountant(policy.privacy)
        before, near = _settled(catalog, accountant, sql, 5, 9)
    margins = [[output.margin or output.at_thousand for output in release.outputs] for release in (before, near)]
    for wide, narrow in zip(*margins, strict=True):
        assert wide is not None and narrow is not None and narrow <= wide
