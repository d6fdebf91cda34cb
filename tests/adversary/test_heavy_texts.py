"""Compiling costs in proportion to the text: twice the size, at most three times the steps and the SQL.

Steps are calls of Python functions, which are the same on every machine; seconds are not.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest

from dpsql.answering.dataset import Dataset
from dpsql.answering.open_dataset import open_dataset
from dpsql.errors import Error, InternalError
from dpsql.release import QuerySettings, Release
from tests import toy
from tests.adversary.heavy_texts import TEXTS

SIZE = 24
MOST = 3.0
# Squares, never more: each noisy number has a column for its own error in every level or branch above it; each value
# that stands for others is tried in all branches of a CASE; aggregations per person are proved from the first one on.
SQUARES = {
    "squared counts",
    "squared averages",
    "unions of counts",
    "branches as keys",
    "branches of texts as keys",
    "limits through levels",
}
MOST_OF_SQUARES = 5.5


@pytest.fixture(scope="module")
def dataset(clinic_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dataset]:
    folder = tmp_path_factory.mktemp("heavy")
    (folder / toy.DATABASE).write_bytes(clinic_database.read_bytes())
    opened = open_dataset(toy.write_policy(folder))
    compiled(opened, "SELECT COUNT(*), AVG(age) FROM people GROUP BY state")  # what is imported late is imported
    yield opened
    opened.close()


def compiled(dataset: Dataset, text: str) -> Release | None:
    try:
        return dataset.compile(text, (), QuerySettings())
    except InternalError:
        raise
    except Error:
        return None


def cost(dataset: Dataset, text: str) -> tuple[int, int]:
    """The calls that compiling takes, and the characters of SQL that come of it; none where it is refused."""
    calls = 0

    def count(_: FrameType, event: str, __: object) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        release = compiled(dataset, text)
    finally:
        sys.setprofile(before)
    if release is None:
        return calls, 0
    written = [branch.query.sql for measurement in release.measurements for branch in measurement.branches]
    return calls, sum(map(len, (release.sql, *written)))


@pytest.mark.parametrize("name", TEXTS)
def test_twice_the_text_costs_about_twice(name: str, dataset: Dataset) -> None:
    (calls, written), (twice, both) = (cost(dataset, TEXTS[name](size)) for size in (SIZE, 2 * SIZE))
    most = MOST_OF_SQUARES if name in SQUARES else MOST
    assert twice <= most * calls, f"{calls:,} calls, then {twice:,}"
    assert both <= most * written or not written, f"{written:,} characters, then {both:,}"
