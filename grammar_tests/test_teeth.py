"""The neighbour check must notice when bounding is broken. Each way of breaking it is a mutation of the generator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pytest

from dpsql.compliance.cases import Case
from dpsql.compliance.lab import Lab, ToyDataset
from dpsql.compliance.toy import OWNERS
from dpsql.lowering import relations, row_values, steps, sums
from dpsql.lowering.clip import Clip
from dpsql.lowering.row_values import Rows
from dpsql.lowering.select import Pipeline
from dpsql.privacy.estimators import disjoint
from dpsql.privacy.rules.aggregates import Cells
from grammar_tests.checks import neighbour_faults, oracle_faults
from grammar_tests.neighbours import EVERYONE, UNOWNED, DuckDBNeighbourhood, Neighbourhood
from grammar_tests.oracle import Oracle
from tests.lowering.edited import reworded


def _case(sql: str, policy: str = "zcdp") -> Case:
    return Case(Path("teeth.txt"), 1, sql, "", policy)


@pytest.fixture
def dataset(lab: Lab) -> Iterator[ToyDataset]:
    """One whose compiled queries are not kept for other tests."""
    with closing(ToyDataset(lab.directory, "zcdp")) as made:
        yield made


def _faults(dataset: ToyDataset, dirty: Neighbourhood, sql: str) -> list[str]:
    answer, asked = dataset.answer(_case(sql))
    return list(neighbour_faults(answer.release, asked, dirty))


def _edited(edit: Callable[[str], str], original: Callable[..., str]) -> Callable[..., str]:
    return lambda *args, **options: edit(original(*args, **options))


SUMS = "SELECT SUM(minutes) FROM visits"
BY_KIND = "SELECT kind, COUNT(*), SUM(fee) FROM visits GROUP BY kind"
BY_CLINIC = "SELECT clinic, COUNT(*), SUM(fee) FROM visits GROUP BY clinic"
TIED = "rank() OVER (PARTITION BY owner ORDER BY md5($salt)) AS place"
INCOME = "SELECT SUM(income), COUNT(*) FROM people"
SPREAD = "SELECT STDDEV(minutes) FROM visits"
SPREADS = "SELECT kind, STDDEV(fee) FROM visits GROUP BY kind"


@pytest.mark.parametrize("sql", [SUMS, BY_KIND, BY_CLINIC, INCOME, SPREAD, SPREADS])
def test_sound_bounding_passes(dataset: ToyDataset, dirty: Neighbourhood, sql: str) -> None:
    assert _faults(dataset, dirty, sql) == []


def test_a_missing_clamp_is_noticed(dataset: ToyDataset, dirty: Neighbourhood, monkeypatch: pytest.MonkeyPatch) -> None:
    def unclamped(rows: object, i: int, statistic: object, name: str) -> str:
        del rows, i, statistic
        return f"(TRY_CAST({name} AS BIGINT))"

    monkeypatch.setattr(row_values, "on_grid", unclamped)
    monkeypatch.setattr(
        relations.RelationWriter, "normalised", lambda _, column, stored="": stored or f'"{column.name}"'
    )
    assert _faults(dataset, dirty, "SELECT SUM(age) FROM people")


def _left_out(monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    monkeypatch.setattr(steps, step, lambda _, pipeline, *_rest: pipeline)


def test_a_missing_clip_is_noticed(dataset: ToyDataset, dirty: Neighbourhood, monkeypatch: pytest.MonkeyPatch) -> None:
    _left_out(monkeypatch, "clipped")
    assert _faults(dataset, dirty, BY_KIND)


@pytest.mark.parametrize("sql", [SPREAD, SPREADS])
def test_sums_that_are_not_clipped_together_are_noticed(
    dataset: ToyDataset, dirty: Neighbourhood, monkeypatch: pytest.MonkeyPatch, sql: str
) -> None:
    """Each is within its own clip, but not all of them at once."""
    monkeypatch.setattr("dpsql.lowering.clip.MOST_ROOM", 1)
    _left_out(monkeypatch, "clipped_in_one_cell")
    original = steps.clipped

    def apart(rows: Rows, pipeline: Pipeline, clip: Clip, cells: Cells) -> Pipeline:
        alone = [[i] for i in range(len(clip.statistics))]
        return original(rows, pipeline, replace(clip, groups=alone), cells)

    monkeypatch.setattr(steps, "clipped", apart)
    found = _faults(dataset, dirty, sql)
    assert found
    assert all("together" in fault for fault in found)


def test_conditions_that_do_not_exclude_each_other_are_noticed(
    dataset: ToyDataset, dirty: Neighbourhood, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the engine holds units unique nothing is clipped: the proof alone stands for the claim."""
    monkeypatch.setattr(disjoint.DisjointConditions, "add", lambda *_: True)
    found = _faults(
        dataset, dirty, "SELECT COUNT(*) FILTER (WHERE age < 90), COUNT(*) FILTER (WHERE age < 100) FROM people"
    )
    assert any("together" in fault for fault in found)


def test_a_missing_cut_of_one_cell_is_noticed(
    dataset: ToyDataset, dirty: Neighbourhood, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        steps, "sum_of_owner", lambda _, i, _statistic: f"CAST(COALESCE(SUM(v{i}), 0) AS BIGINT) AS s{i}"
    )
    assert _faults(dataset, dirty, SUMS)


def test_a_missing_limit_on_keys_is_noticed(
    dataset: ToyDataset, dirty: Neighbourhood, monkeypatch: pytest.MonkeyPatch
) -> None:
    _left_out(monkeypatch, "limited")
    found = _faults(dataset, dirty, BY_CLINIC)
    assert any("keys vanished" in fault for fault in found)


def test_a_limit_that_lets_ties_pass_is_noticed(
    dataset: ToyDataset, dirty: Neighbourhood, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = steps.limited

    def tied(*args: Any) -> Pipeline:
        return reworded(original(*args), lambda text: TIED if text.startswith("row_number()") else text, "numbered")

    monkeypatch.setattr(steps, "limited", tied)
    assert _faults(dataset, dirty, BY_CLINIC)


def test_rows_without_owner_are_noticed(
    dataset: ToyDataset, dirty: Neighbourhood, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = relations.RelationWriter._scan
    edit = _edited(lambda sql: sql.split(" WHERE ")[0], original)
    monkeypatch.setattr(relations.RelationWriter, "_scan", edit)
    found = _faults(dataset, dirty, "SELECT COUNT(*) FROM visits")
    assert any(UNOWNED in fault for fault in found)


def test_a_wrong_answer_is_noticed(dataset: ToyDataset, oracle: Oracle, monkeypatch: pytest.MonkeyPatch) -> None:
    case = _case("SELECT COUNT(*) FILTER (WHERE age > 40) FROM people")
    assert list(oracle_faults(case, dataset.answer(case)[0], oracle)) == []
    changed = _case("SELECT COUNT(*) FROM people")
    assert list(oracle_faults(case, dataset.answer(changed)[0], oracle))
    for module in (row_values, sums):
        monkeypatch.setattr(module, "declared", lambda *_: "FALSE")
    empty = _case("SELECT state, COUNT(*) FROM people GROUP BY state")
    assert list(oracle_faults(empty, dataset.answer(empty)[0], oracle))


@pytest.mark.parametrize("sql", [SUMS, BY_KIND, BY_CLINIC, INCOME])
def test_neighbours_in_one_query_are_the_neighbours(
    lab: Lab, dataset: ToyDataset, dirty: Neighbourhood, tmp_path: Path, sql: str
) -> None:
    """The same as a database from which the unit's rows were deleted."""
    _, asked = dataset.answer(_case(sql))
    path = tmp_path / "without.duckdb"
    path.write_bytes((lab.directory / "dirty.duckdb").read_bytes())
    with duckdb.connect(str(path)) as connection:
        for table, owner in OWNERS.items():
            connection.execute(f'DELETE FROM "{table}" WHERE "{owner}" = 1')
    with closing(DuckDBNeighbourhood(path)) as without:
        for query in asked[0]:
            together = dirty.run_on_neighbours(query)
            assert without.run_as_it_is(query) == together["unit 1"]
            assert together["unit 1"] != together[EVERYONE]
