"""The post-processor: every value arrives unchanged, failures are ours, and it can reach nothing else."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path

import duckdb
import numpy as np
import pytest

from dpsql.answering.postprocess import Postprocessor
from dpsql.effort import Cancellation
from dpsql.errors import Cancelled, EngineFailed, InternalError, OutOfRange, ResultTooLarge, TooManyRows
from dpsql.types import BIGINT, BOOLEAN, DATE, DOUBLE, TEXT, TIMESTAMP, Cell, Type, Value, decimal

COLUMNS: list[tuple[Type, str, list[Value]]] = [
    (BOOLEAN, "BOOLEAN", [True, None, False]),
    (BIGINT, "BIGINT", [2**63 - 1, None, -(2**63)]),
    (decimal(20, 4), "DECIMAL(20,4)", [Decimal("1234567890123456.7891"), None, Decimal("-0.0001")]),
    (DOUBLE, "DOUBLE", [0.1, None, -1e308]),
    (TEXT, "VARCHAR", ["Zoë O'Hara \" 🦆", None, ""]),
    (DATE, "DATE", [date(1, 1, 1), None, date(9999, 12, 31)]),
    (TIMESTAMP, "TIMESTAMP", [datetime(2024, 2, 29, 1, 2, 3, 456789), None, datetime(1, 1, 1)]),
]

ENDLESS = "SELECT count(*) FROM range(1000000000000) AS r(x) WHERE (x * x) % 7 = 3"


MOST = 100_000  # values of an answer


@pytest.fixture(scope="module")
def post() -> Iterator[Postprocessor]:
    opened = Postprocessor(memory="200MB")
    yield opened
    opened.close()


def run(post: Postprocessor, sql: str, **parameters: object) -> list[tuple[Cell, ...]]:
    return post.run(sql, parameters, timeout=30, max_cells=MOST)


def same(left: list[Cell], right: list[Value]) -> bool:
    return left == right and [type(value) for value in left] == [type(value) for value in right]


@pytest.mark.parametrize(("type_", "engine_type", "values"), COLUMNS, ids=[column[1] for column in COLUMNS])
def test_values_travel_unchanged(post: Postprocessor, type_: Type, engine_type: str, values: list[Value]) -> None:
    as_list = run(post, f"SELECT unnest(CAST($v AS {engine_type}[]))", v=values)
    assert same([row[0] for row in as_list], values)

    name = f'p "{engine_type}"'
    post.load(name, [('a "column"', type_), ("n", BIGINT)], [values, [1, 2, 3]])
    as_table = run(post, f'SELECT "a ""column""" FROM "p ""{engine_type}""" ORDER BY n')
    assert same([row[0] for row in as_table], values)


@pytest.mark.parametrize("values", [[], [None, None]], ids=["no rows", "only NULL"])
@pytest.mark.parametrize(("type_", "engine_type", "_values"), COLUMNS, ids=[column[1] for column in COLUMNS])
def test_columns_without_values_keep_their_type(
    post: Postprocessor, type_: Type, engine_type: str, _values: list[Value], values: list[Value]
) -> None:
    sql = (
        f"SELECT count(*), min(typeof(x)) FROM (SELECT unnest(CAST($v AS {engine_type}[])) AS x UNION ALL SELECT NULL)"
    )
    assert run(post, sql, v=values) == [(len(values) + 1, engine_type)]
    name = f"{engine_type} {len(values)}"
    post.load(name, [("a", type_)], [values])
    assert run(post, f'SELECT count(*) FROM "{name}"') == [(len(values),)]


def test_a_table_is_loaded_once(post: Postprocessor) -> None:
    post.load("once", [("a", BIGINT)], [[1, 2]])
    post.load("once", [("a", BIGINT)], [[3]])
    assert run(post, 'SELECT sum(a)::BIGINT FROM "once"') == [(3,)]


def test_a_table_that_does_not_load_leaves_nothing(post: Postprocessor) -> None:
    with pytest.raises(OutOfRange):
        post.load("broken", [("a", decimal(2, 0))], [[1, 1000]])
    post.load("broken", [("a", decimal(2, 0))], [[1, 10]])
    assert run(post, "SELECT count(*) FROM broken") == [(2,)]


def test_threads_load_and_run_side_by_side(post: Postprocessor) -> None:
    outcomes: list[object] = []

    def work() -> None:
        try:
            for i in range(20):
                post.load(f"side{i}", [("a", BIGINT)], [[i]])
                outcomes.append(run(post, f"SELECT a, $x::BIGINT FROM side{i}", x=i) == [(i, i)])
        except Exception as error:
            outcomes.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == [True] * 80


def test_parameters_that_a_statement_does_not_name_are_ignored(post: Postprocessor) -> None:
    assert run(post, "SELECT 1", unused=[1]) == [(1,)]
    with pytest.raises(InternalError):
        run(post, "SELECT $missing")


@pytest.mark.parametrize(
    "sql", ["SELECT 1; SELECT 2", "", "CREATE TABLE t (a INT)", "DROP TABLE p0", "EXPLAIN SELECT 1"]
)
def test_only_one_select_is_run(post: Postprocessor, sql: str) -> None:
    with pytest.raises(InternalError):
        run(post, sql)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT $x::BIGINT + 1",
        "SELECT $x::BIGINT * $x::BIGINT",
        "SELECT CAST($x AS INTEGER)",
        "SELECT CAST('abc' AS BIGINT)",
        "SELECT DATE '9999-12-31' + CAST($x // $x AS INTEGER)",
        "SELECT TIMESTAMP '2020-01-01' + INTERVAL 10000 YEAR",
    ],
)
def test_a_value_out_of_range_is_our_error(post: Postprocessor, sql: str) -> None:
    with pytest.raises(OutOfRange, match=r"^value out of range in the rest of the query$") as caught:
        run(post, sql, x=2**63 - 1)
    assert caught.value.sqlstate == "22003"
    assert caught.value.__context__ is None


def test_a_scalar_subquery_of_two_rows_is_our_error(post: Postprocessor) -> None:
    with pytest.raises(TooManyRows) as caught:
        run(post, "SELECT (SELECT x FROM range(2) AS r(x))")
    assert caught.value.sqlstate == "21000"


def test_any_other_failure_is_a_fixed_sentence(post: Postprocessor, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(EngineFailed) as caught:
        run(post, "SELECT secret_name FROM nowhere")
    assert "nowhere" not in str(caught.value)
    assert "nowhere" in caplog.text
    assert caught.value.log_id in caplog.text
    assert caught.value.__context__ is None


def test_a_run_is_stopped_by_time_or_by_hand(post: Postprocessor) -> None:
    with pytest.raises(Cancelled, match="statement timeout"):
        post.run(ENDLESS, {}, timeout=0.05, max_cells=MOST)
    switch = Cancellation()
    timer = threading.Timer(0.05, switch.cancel)
    timer.start()
    with pytest.raises(Cancelled, match="user request"):
        post.run(ENDLESS, {}, timeout=30, max_cells=MOST, cancellation=switch)
    timer.join()
    assert run(post, "SELECT 1") == [(1,)]


@pytest.mark.parametrize(
    "sql",
    [
        "COPY (SELECT 1) TO '{tmp}/out.csv'",
        "SELECT * FROM read_csv('{tmp}/in.csv')",
        "SELECT * FROM '{tmp}/in.csv'",
        "ATTACH '{tmp}/new.duckdb'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET memory_limit = '9GB'",
        "SET lock_configuration = false",
        "SET temp_directory = '{tmp}'",
        "PRAGMA enable_profiling",
        "SELECT getenv('HOME')",
        "SELECT * FROM python_variable",
    ],
)
def test_the_database_is_locked_down(post: Postprocessor, tmp_path: Path, sql: str) -> None:
    (tmp_path / "in.csv").write_text("a\n1\n")
    python_variable = {"a": np.array([1])}
    # Below run(), which would refuse most of these before the engine sees them.
    with post._connection.cursor() as cursor, pytest.raises(duckdb.Error):
        cursor.execute(sql.format(tmp=tmp_path)).fetchall()
    assert [file.name for file in tmp_path.iterdir()] == ["in.csv"]
    assert len(python_variable) == 1


def test_an_answer_that_grows_beyond_its_limit_is_refused(post: Postprocessor) -> None:
    """However many rows there would be, no more are fetched than one beyond the limit."""
    assert len(run(post, f"SELECT i, i FROM range({MOST // 2}) AS t(i)")) == MOST // 2
    with pytest.raises(ResultTooLarge, match="more than 100,000 values"):
        run(post, f"SELECT i, i FROM range({MOST // 2 + 1}) AS t(i)")
    with pytest.raises(ResultTooLarge):
        run(post, "SELECT i FROM range(1_000_000_000_000) AS t(i)")
