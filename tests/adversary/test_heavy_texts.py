"""Compiling costs in proportion to the text: twice the size, at most three times the steps and the SQL.

Steps are calls of Python functions, which are the same on every machine; seconds are not.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest

from dpsql.dataset import open_dataset
from dpsql.engine import Engine
from dpsql.errors import Error, InternalError
from dpsql.release import Release, Settings
from tests import toy
from tests.adversary.heavy_texts import TEXTS

SIZE = 24
MOST = 3.0
# Every noisy number keeps a column for its own error in all that is made of it, so these have as many columns as levels
# or branches, in each of them: four times, and not more.
OF_EACH_IN_EACH = {"squared counts", "squared averages", "unions of counts"}


@pytest.fixture(scope="module")
def engine(clinic_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder = tmp_path_factory.mktemp("heavy")
    (folder / toy.DATABASE).write_bytes(clinic_database.read_bytes())
    opened = open_dataset(toy.write_policy(folder))
    compiled(opened, "SELECT COUNT(*), AVG(age) FROM people GROUP BY state")  # what is imported late is imported
    yield opened
    opened.close()


def compiled(engine: Engine, text: str) -> Release | None:
    try:
        return engine.compile(text, (), Settings())
    except InternalError:
        raise
    except Error:
        return None


def cost(engine: Engine, text: str) -> tuple[int, int]:
    """The calls that compiling takes, and the characters of SQL that come of it; none where it is refused."""
    calls = 0

    def count(_: FrameType, event: str, __: object) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        release = compiled(engine, text)
    finally:
        sys.setprofile(before)
    if release is None:
        return calls, 0
    written = [branch.query.sql for measurement in release.measurements for branch in measurement.branches]
    return calls, sum(map(len, (release.sql, *written)))


@pytest.mark.parametrize("name", TEXTS)
def test_twice_the_text_costs_about_twice(name: str, engine: Engine) -> None:
    (calls, written), (twice, both) = (cost(engine, TEXTS[name](size)) for size in (SIZE, 2 * SIZE))
    most = 4.5 if name in OF_EACH_IN_EACH else MOST
    assert twice <= most * calls, f"{calls:,} calls, then {twice:,}"
    assert both <= most * written or not written, f"{written:,} characters, then {both:,}"
