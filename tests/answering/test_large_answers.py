"""Answers of many rows go another way through the engine, and are the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb
import numpy as np
import pytest

import dpsql.answering.rest
from dpsql.answering.answer import Answer
from dpsql.answering.answer_store import decode, encode
from dpsql.answering.open_dataset import open_dataset
from dpsql.answering.postprocess import Postprocessor
from dpsql.answering.rest import RestOfQueries
from dpsql.answering.session import Session
from dpsql.errors import Error
from dpsql.lowering.noisy_tables import array_of
from dpsql.types import Cell, Value
from tests import toy

QUERIES = [
    "SELECT age, COUNT(*), SUM(income), AVG(income) FROM people GROUP BY age",
    "SELECT age, COUNT(*) FROM people GROUP BY age ORDER BY 2 DESC, 1 LIMIT 7",
    "SELECT state, smoker, COUNT(*) FROM people GROUP BY state, smoker HAVING COUNT(*) > 10",
    "SELECT sex, COUNT(*) FROM people GROUP BY sex",
    "SELECT date_trunc('month', joined), COUNT(*) FROM people GROUP BY 1",
    "SELECT state, COUNT(*) FROM people GROUP BY ROLLUP (state)",
    "SELECT s.region, SUM(c.n) FROM (SELECT state, COUNT(*) AS n FROM people GROUP BY state) c"
    " JOIN states s ON s.code = c.state GROUP BY s.region",
    "SELECT COUNT(*) FROM people WHERE income > (SELECT AVG(income) FROM people)",
    "SELECT 1 FROM people HAVING COUNT(*) > 3",
    "SELECT a.n, b.n FROM (SELECT COUNT(*) AS n FROM people) a CROSS JOIN (SELECT COUNT(*) AS n FROM visits) b",
]


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    folder = tmp_path_factory.mktemp("large")
    toy.create_database(folder / toy.DATABASE)
    dataset = open_dataset(toy.write_policy(folder, epsilon="1_000", query_epsilon="10"), new_ledger=True)
    yield Session(dataset, "alice")
    dataset.close()


@pytest.fixture(autouse=True)
def _everything_in_duckdb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RestOfQueries, "computed", lambda *_: None)


@pytest.mark.parametrize("sql", QUERIES)
def test_the_rows_are_the_same(session: Session, sql: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(many: int) -> list[tuple[Cell, ...]]:
        monkeypatch.setattr(dpsql.answering.rest, "MANY", many)
        session.dataset._rest._answers.clear()
        found = session.execute(sql)
        assert isinstance(found, Answer)
        return found.wide

    assert asked(10**9) == asked(0)


def test_tables_are_used_where_they_can_be(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[set[str]] = []
    run = Postprocessor.run

    def watched(self: Postprocessor, *args: object, **named: object) -> object:
        used.append(set(named["tables"]))  # type: ignore[call-overload]
        return run(self, *args, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(Postprocessor, "run", watched)
    monkeypatch.setattr(dpsql.answering.rest, "MANY", 0)
    for sql in QUERIES[:3]:
        session.dataset._rest._answers.clear()
        session.execute(sql)
    assert used == [{"n0"}] * 3


@pytest.mark.parametrize("subquery", ["EXISTS (SELECT age FROM {})", "35 IN (SELECT age FROM {})"])
def test_stages_read_tables_too(session: Session, subquery: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dpsql.answering.rest, "MANY", 0)
    groups = "(SELECT age, COUNT(*) AS n FROM people GROUP BY age) WHERE n > -1000"
    found = session.execute(f"SELECT COUNT(*) FROM people WHERE {subquery.format(groups)}")
    assert isinstance(found, Answer)
    assert found.table.rows[0][0] > 10  # type: ignore[operator]


def test_a_table_is_seen_by_its_own_run_alone() -> None:
    post = Postprocessor()
    one, other = ({"n0": {"x0": np.arange(rows)}} for rows in (3, 5))
    count = "SELECT COUNT(*) FROM n0"
    assert post.run(count, {}, timeout=10, max_cells=10, tables=one) == [(3,)]
    assert post.run(count, {}, timeout=10, max_cells=10, tables=other) == [(5,)]
    with pytest.raises(Error):
        post.run(count, {}, timeout=10, max_cells=10)
    post.close()


@pytest.mark.parametrize(
    "values",
    [["a", "b\0c", "", "é"], [1, -(2**63), 2**63 - 1], [0.5, -0.0, 1e300, 5e-324], [True, False]],
)
def test_what_becomes_an_array_comes_back_as_it_was(values: list[Value]) -> None:
    array = array_of(values)
    assert array is not None
    with duckdb.connect() as connection:
        connection.register("n", {"x": array})
        found = [value for (value,) in connection.execute("SELECT x FROM n").fetchall()]
    assert list(map(repr, found)) == list(map(repr, values))


@pytest.mark.parametrize("values", [[], [None], ["a", None], [1, 2.0], [2**63], [float("nan")], [True, 1], [b"x"]])
def test_what_does_not_become_an_array(values: list[Value]) -> None:
    assert array_of(values) is None


def test_answers_stored_by_earlier_versions_are_read(tmp_path: Path) -> None:
    known = decode(b'{"instance":"i","keys":[["a",{"d":"2020-01-02"}],[null,null]],"sums":[[1,2]]}')
    again = decode(encode(known))
    assert again.table.keys == known.table.keys and again.table.keys[1] == (None, None)
    assert again.table.sums[0].tolist() == [1, 2]
