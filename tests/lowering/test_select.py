"""Engine queries as steps: each is named after what it does, and what is read twice is computed once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from dpsql.compliance.lab import Lab, ToyDataset
from dpsql.lowering.duckdb_dialect import DUCKDB
from dpsql.lowering.select import Pipeline, Select, UnionAll, rendered
from dpsql.release import QuerySettings


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ToyDataset]:
    folder: Path = tmp_path_factory.mktemp("toy")
    with closing(Lab(folder)) as lab:
        yield lab.dataset("zcdp")


def test_steps_of_one_name_are_numbered() -> None:
    first = Pipeline().then("row_values", Select(("1 AS v0",), "a"))
    second = first.then("row_values", Select(("2 AS v0",), "b"))
    both = second.then("together", UnionAll((Select(("*",), first.last), Select(("*",), second.last))))
    assert [step.name for step in both.steps] == ["row_values", "row_values_2", "together"]
    assert first.last == "row_values"


def test_a_select_is_written_in_the_order_of_sql() -> None:
    select = Select(
        ("k0", "SUM(v0) AS s0"), "t", ("v0 > 0", "k0 < 9"), ("k0",), ("COUNT(*) > 1", "SUM(v0) > 2"), fence=" OFFSET 0"
    )
    assert str(select) == (
        "SELECT k0, SUM(v0) AS s0 FROM t WHERE v0 > 0 AND k0 < 9"
        " GROUP BY k0 HAVING COUNT(*) > 1 OR SUM(v0) > 2 OFFSET 0"
    )
    assert str(Select(("k0",), "t", distinct=True)) == "SELECT DISTINCT k0 FROM t"


def test_only_what_is_read_again_is_computed_once() -> None:
    pipeline = Pipeline().then("a", Select(("1 AS x",), "t")).then("b", Select(("x",), "a")).computed_once()
    text = rendered(pipeline.then("outer", Select(("x",), "b JOIN b AS c USING (x)")).steps, DUCKDB)
    assert text == (
        "WITH a AS NOT MATERIALIZED (SELECT 1 AS x FROM t), b AS MATERIALIZED (SELECT x FROM a)"
        " SELECT x FROM b JOIN b AS c USING (x)"
    )


BOUNDED = [
    "SELECT COUNT(*) FROM people",
    "SELECT SUM(minutes) FROM visits",
    "SELECT STDDEV(minutes) FROM visits",
    "SELECT kind, COUNT(*), SUM(fee) FROM visits GROUP BY kind",
    "SELECT clinic, COUNT(*), SUM(fee) FROM visits GROUP BY clinic",
    "SELECT kind, STDDEV(fee) FROM visits GROUP BY kind",
    "SELECT kind, COUNT(*) FROM visits JOIN people ON people.id = visits.patient_id GROUP BY kind",
    "SELECT state, COUNT(*) FROM people GROUP BY state",
    "SELECT COUNT(DISTINCT minutes) FROM visits",
    "SELECT SUM(DISTINCT minutes) FROM visits",
    "SELECT MEDIAN(minutes) FROM visits",
    "SELECT kind, COUNT(DISTINCT patient_id) FROM visits GROUP BY kind",
]


@pytest.mark.parametrize("sql", BOUNDED)
def test_each_step_is_read_and_those_read_again_are_computed_once(toy: ToyDataset, sql: str) -> None:
    release = toy.dataset.compile(sql, (), QuerySettings())
    for measurement in release.measurements:
        for branch in measurement.branches:
            steps = branch.query.steps
            assert branch.query.sql == rendered(steps, toy.engine.dialect)
            assert steps[-1].name == "outer"
            for place, step in enumerate(steps[:-1]):
                read = sum(len(re.findall(rf"\b{step.name}\b", str(later))) for later in steps[place + 1 :])
                assert read == 1 or (read > 1 and step.once), step.name


def test_the_steps_are_those_of_the_architecture(toy: ToyDataset) -> None:
    """A person may have several unknown keys here, and goes through all of them."""
    release = toy.dataset.compile("SELECT clinic, COUNT(*), SUM(fee) FROM visits GROUP BY clinic", (), QuerySettings())
    names = [step.name for step in release.measurements[0].branches[0].query.steps]
    told = ["row_values", "per_owner", "limited", "weighed", "clipped", "outer"]
    assert [name for name in names if name in told] == told
