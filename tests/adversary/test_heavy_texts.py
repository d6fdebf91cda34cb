"""Compiling costs in proportion to the text: twice the size, at most three times the steps and the SQL.

Steps are calls of Python functions, which are the same on every machine; seconds are not.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from dpsql.answering.compiling.work import Ground, compile_source
from dpsql.answering.dataset import Dataset
from dpsql.answering.open_dataset import open_dataset
from dpsql.errors import Error, InternalError
from dpsql.lowering.duckdb_dialect import DUCKDB
from dpsql.policy.model import CompileLimits
from dpsql.release import QuerySettings, Release, Source
from dpsql.sql.clock import Clock
from tests import toy
from tests.adversary.heavy_texts import TEXTS
from tests.counted_calls import counted_calls

SIZE = 24
MOST = 3.0
# Squares, never more: LEAST, COALESCE and CASE may show any of their arguments, and are moved by each error of each; a
# row of a grouping set has a column for each key, a cross join the columns of all tables, and the bounds of a moment
# are found anew in each of a chain of zones.
SQUARES = {
    "least of different counts",
    "coalesced different counts",
    "branches of counts",
    "grouping sets of many keys",
    "crossed public tables",
    "zones",
}
MOST_OF_SQUARES = 4.5
NOW = Clock(datetime(2026, 1, 1, tzinfo=UTC))


@pytest.fixture(scope="module")
def dataset(clinic_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dataset]:
    folder = tmp_path_factory.mktemp("heavy")
    (folder / toy.DATABASE).write_bytes(clinic_database.read_bytes())
    opened = open_dataset(toy.write_policy(folder))
    compiled(opened, "SELECT COUNT(*), AVG(age) FROM people GROUP BY state")  # what is imported late is imported
    yield opened
    opened.close()


def compiled(dataset: Dataset, text: str) -> Release | None:
    """In this process, whatever it costs: what another one does would not be counted."""
    ground = Ground(dataset.catalog, dataset.accountant, DUCKDB)
    source = Source(text, (), QuerySettings(), "declared", NOW)
    try:
        return compile_source(ground, source, (), CompileLimits().max_compile_steps).release
    except InternalError:
        raise
    except Error:
        return None


def cost(dataset: Dataset, text: str) -> tuple[int, int]:
    """The calls that compiling takes, and the characters of SQL that come of it; none where it is refused."""
    calls, release = counted_calls(lambda: compiled(dataset, text))
    if release is None:
        return calls, 0
    written = [branch.query.sql for measurement in release.measurements for branch in measurement.branches]
    return calls, sum(map(len, (release.rest.sql, *written)))


@pytest.mark.parametrize("name", TEXTS)
def test_twice_the_text_costs_about_twice(name: str, dataset: Dataset) -> None:
    (calls, written), (twice, both) = (cost(dataset, TEXTS[name](size)) for size in (SIZE, 2 * SIZE))
    most = MOST_OF_SQUARES if name in SQUARES else MOST
    assert twice <= most * calls, f"{calls:,} calls, then {twice:,}"
    assert both <= most * written or not written, f"{written:,} characters, then {both:,}"
