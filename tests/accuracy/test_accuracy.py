"""That the comparison runs: dpsql, the textbook and the oracle on a few people. No figure is asserted."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from dpsql.answering.open_dataset import open_dataset
from dpsql.answering.session import Session
from tests.accuracy import naive, oracle, report, with_dpsql
from tests.accuracy.asked import Answers, Case
from tests.accuracy.cases import cases
from tests.accuracy.data import AccuracyData, people
from tests.accuracy.measure import DPSQL, NAIVE, ORACLE, Figure, Line, Truth

CHOSEN = ("count by region", "variance", "average by kind, many rows", "unknown towns, many rows")
SIZE = 500


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> AccuracyData:
    return people(tmp_path_factory.mktemp("few"), SIZE)


@pytest.mark.parametrize("case", [case for case in cases() if case.data == "people" and case.name in CHOSEN], ids=str)
def test_all_that_run_in_process_answer(case: Case, few: AccuracyData) -> None:
    table, columns = few.tables[case.table], few.columns(case.table)
    truth = Truth(case, table, columns)
    line = Line(
        case,
        {
            DPSQL: truth.figure(with_dpsql.answers(case, few, 1)),
            NAIVE: truth.figure(naive.answers(case, table, columns, 3)),
            ORACLE: truth.figure(oracle.answers(case, table, columns, 3, 0.02)),
        },
    )
    assert [figure.refused for figure in line.figures.values()] == ["", "", ""]
    assert all(figure.value is not None and figure.value >= 0 for figure in line.figures.values())
    assert case.name in report.row(line)


def test_every_query_is_accepted(few: AccuracyData) -> None:
    with closing(open_dataset(few.policy("basic", unknown=False), new_ledger=True)) as dataset:
        session = Session(dataset, "analyst")
        for case in cases():
            if case.data == "people":
                for query in case.queries:
                    assert session.release(with_dpsql.written(query, few.tables[case.table])).measurements


def test_errors_are_those_of_the_answers(few: AccuracyData) -> None:
    (case,) = [case for case in cases() if case.label == "people: count"]
    truth = Truth(case, few.tables["people"], few.columns("people"))
    said = Answers([[[[[], [SIZE * 1.1]]], [[[], [SIZE * 1.3]]], [[[], [None]]]]])
    assert truth.figure(said).value == pytest.approx(0.3, abs=0.5 / SIZE)


def test_figures_survive_a_file(tmp_path: Path) -> None:
    line = Line(cases()[0], {DPSQL: Figure(0.25, 3), "opendp": Figure(0.5, 3)})
    report.write_json(tmp_path / "figures.json", [line], {"epsilon": 1})
    figures, about = report.read_json(tmp_path / "figures.json")
    assert figures == {line.case.label: line.figures} and about == {"epsilon": 1}
    assert line.ratio == 2
