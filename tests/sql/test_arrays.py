"""Arrays of percentiles, through every way out."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from click.testing import CliRunner

import dpsql
from dpsql.cli import commands
from dpsql.driver.display import Column, cell, plain
from dpsql.errors import Error, NotSupported, TooComplex
from dpsql.sql.checks import MOST_LEVELS
from dpsql.sql.parse import parse
from dpsql.types import DOUBLE, TEXT, array_of

QUARTILES = (
    "SELECT state, PERCENTILE_CONT(ARRAY[0.25, NULL, 0.75]) WITHIN GROUP (ORDER BY age) AS q"
    " FROM people GROUP BY state ORDER BY state"
)


@pytest.fixture
def cursor(clinic: Path) -> Iterator[dpsql.Cursor]:
    with dpsql.connect(clinic) as connection:
        yield connection.cursor()


def test_the_driver_gives_lists(cursor: dpsql.Cursor) -> None:
    rows = cursor.execute(QUARTILES).fetchall()
    assert [state for state, _ in rows] == ["CA", "NY", "TX"]
    for _, found in rows:
        assert isinstance(found, list)
        low, nothing, high = found
        assert isinstance(low, float) and nothing is None and isinstance(high, float) and low <= high
    assert cursor.description is not None and cursor.description[1][1] == "array"
    assert [margins[1] for margins in cursor.row_margins] == [math.inf] * 3


def test_who_changes_a_list_changes_no_later_answer(cursor: dpsql.Cursor) -> None:
    """The rows of a small answer are remembered."""
    first = cursor.execute(QUARTILES).fetchall()
    wanted = json.dumps(first)
    for _, found in first:
        assert isinstance(found, list)
        found.clear()
    assert json.dumps(cursor.execute(QUARTILES).fetchall()) == wanted


def test_frames_and_notebooks(cursor: dpsql.Cursor) -> None:
    rows = cursor.execute(QUARTILES).fetchall()
    assert [list(found) for found in cursor.execute(QUARTILES).to_pandas()["q"]] == [found for _, found in rows]
    table = cursor.execute(QUARTILES).to_arrow()
    assert table.schema.field("q").type == pa.list_(pa.float64())
    assert table.column("q").to_pylist() == [found for _, found in rows]
    page = cursor.execute(QUARTILES)._repr_html_()
    assert page is not None and ",NULL," in page


def test_files(clinic: Path, tmp_path: Path) -> None:
    def query(*arguments: str) -> str:
        result = CliRunner().invoke(commands, ("query", "--policy", str(clinic), *arguments, QUARTILES))
        assert result.exit_code == 0
        return result.stdout

    with dpsql.connect(clinic) as connection:
        wanted = [found for _, found in connection.cursor().execute(QUARTILES).fetchall()]
    assert [row["q"] for row in json.loads(query("--format", "json"))] == wanted
    texts = [text for _, text in csv.reader(io.StringIO(query("--format", "csv")))][1:]
    assert texts == [plain(found) for found in wanted]
    assert all(text in query("--format", "table") for text in ("q", ",NULL,"))
    file = tmp_path / "out.parquet"
    query("--format", "parquet", "--margins", "-o", str(file))
    relation = duckdb.read_parquet(str(file))
    assert (relation.columns, str(relation.types[1])) == (["state", "q", "q_margin"], "DOUBLE[]")
    assert [found for _, found, _ in relation.fetchall()] == wanted


def test_an_array_is_written_as_postgresql_does() -> None:
    column = Column("q", array_of(DOUBLE))
    assert plain([1.5, None, Decimal("2.50"), True]) == "{1.5,NULL,2.50,true}"
    assert cell((1 / 3, 1234.0), column, None) == '{0.333333,"1,234"}'
    assert plain([datetime(2024, 1, 2)]) == '{"2024-01-02 00:00:00"}'
    assert plain(["", "null", 'a"b', "c\\d", "{", "e"]) == r'{"","null","a\"b","c\\d","{",e}'
    assert str(array_of(TEXT)) == "text[]"


def test_a_question_by_array_is_the_question_by_calls(cursor: dpsql.Cursor) -> None:
    """Stored answers are known by what was measured, however it is written."""
    cursor.execute("SELECT PERCENTILE_DISC(ARRAY[0.25, 0.75]) WITHIN GROUP (ORDER BY age) FROM people")
    ((found,),) = cursor.fetchall()
    calls = (f"PERCENTILE_DISC({share}) WITHIN GROUP (ORDER BY age)" for share in (0.25, 0.75))
    cursor.execute(f"SELECT {', '.join(calls)} FROM people")
    assert cursor.cost is not None and cursor.cost.charged.epsilon == 0
    assert [list(row) for row in cursor.fetchall()] == [found]


# --- brackets ---


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("(" * 2_000 + "x" + ")[1]" * 2_000, "subscripts are nested more than 3 deep"),
        ("x" + "[1]" * 10_000, "an array is not supported here"),
        ("x[" * 500 + "1" + "]" * 500, "an array is not supported here"),
        ("ARRAY[" * 50 + "1" + "]" * 50, "nested more than 3 deep"),
    ],
)
def test_brackets_that_sqlglot_reads_again_and_again_are_refused_before(text: str, said: str) -> None:
    """It would take minutes, or longer than anybody waits."""
    with pytest.raises(Error, match=said):
        parse(f"SELECT {text} FROM t")


def test_subscripts_are_nested_so_deep_and_no_deeper() -> None:
    def nested(levels: int) -> str:
        return "SELECT " + "(" * levels + "x" + ")[1]" * levels + " FROM t"

    parse(nested(MOST_LEVELS))
    with pytest.raises(TooComplex):
        parse(nested(MOST_LEVELS + 1))


@pytest.mark.parametrize("index", ["1", "2", "3"])
@pytest.mark.parametrize(
    "operand", ["q", "t.q", '"q"', "(q)", "(t.q)", "(PERCENTILE_DISC({}) WITHIN GROUP (ORDER BY n))"]
)
def test_every_subscript_is_counted_from_one(cursor: dpsql.Cursor, operand: str, index: str) -> None:
    """sqlglot counts them from zero, but not behind everything."""
    shares = "ARRAY[0, 0.5, 1]"
    values = "SELECT column1 AS n FROM (VALUES (10), (20), (30)) AS v"
    if "PERCENTILE" in operand:
        cursor.execute(f"SELECT {operand.format(shares)}[{index}] FROM ({values}) AS t")
    else:
        quantiles = f"SELECT PERCENTILE_DISC({shares}) WITHIN GROUP (ORDER BY n) AS q FROM ({values}) AS v"
        cursor.execute(f"SELECT {operand}[{index}] FROM ({quantiles}) AS t")
    assert cursor.fetchall() == [(10 * int(index),)]


@pytest.mark.parametrize(
    "text", ["SELECT 1 + [1]", "SELECT x[y] FROM t", "SELECT x['1'] FROM t", "SELECT x[1.0] FROM t"]
)
def test_other_brackets_are_refused(text: str) -> None:
    with pytest.raises(NotSupported, match="an array is not supported here"):
        parse(text)
