"""In which table people are counted, to find those with too many rows, where a query joins several."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from dpsql.compliance.lab import Lab, ToyDataset
from dpsql.lowering.select import Select
from dpsql.release import QuerySettings

JOINED = "visits JOIN people ON people.id = visits.patient_id"


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ToyDataset]:
    folder: Path = tmp_path_factory.mktemp("toy")
    with closing(Lab(folder)) as lab:
        yield lab.dataset("zcdp")


def counted(toy: ToyDataset, sql: str) -> tuple[list[str], list[str]]:
    """The tables that are read to find people with too many rows, and the columns that conditions there are on."""
    release = toy.dataset.compile(sql, (), QuerySettings())
    (branch,) = release.measurements[0].branches
    found = [step.query for step in branch.query.steps if step.name == "large_owners"]
    if not found or not isinstance(found[0], Select) or "FROM" not in found[0].source:
        return [], []
    tables = re.findall(r'FROM "main"\."(\w+)"', found[0].source)
    columns = re.findall(r'"(\w+)" (?:[<>=]|BETWEEN)', found[0].source)
    return tables, columns


@pytest.mark.parametrize(
    ("rest", "conditions"),
    [
        (f"FROM {JOINED}", []),
        (f"FROM {JOINED} WHERE fee > 100 AND age > 30", ["fee"]),
        (f"FROM {JOINED} WHERE fee > 100 OR age > 30", []),
        ("FROM visits LEFT JOIN people ON people.id = visits.patient_id AND fee > 5 WHERE fee > 100", ["fee"]),
        ("FROM people RIGHT JOIN visits ON people.id = visits.patient_id WHERE age > 30", []),
    ],
)
def test_people_are_counted_in_the_table_whose_rows_come_out_once(
    toy: ToyDataset, rest: str, conditions: list[str]
) -> None:
    assert counted(toy, f"SELECT kind, COUNT(*) {rest} GROUP BY kind") == (["visits"], conditions)


@pytest.mark.parametrize(
    "source",
    [
        "people LEFT JOIN visits ON people.id = visits.patient_id",  # people without visits come out, too
        "visits JOIN visits v ON visits.patient_id = v.patient_id",  # each row several times
    ],
)
def test_people_are_counted_where_rows_are_multiplied(toy: ToyDataset, source: str) -> None:
    assert counted(toy, f"SELECT visits.kind, COUNT(*) FROM {source} GROUP BY visits.kind") == ([], [])
