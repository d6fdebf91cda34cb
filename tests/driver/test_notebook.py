"""Answers in notebooks: HTML that shows margins and escapes everything, and data frames."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import dpsql
from dpsql.driver import frames
from dpsql.driver.display import Column, html_table
from dpsql.types import BIGINT, BOOLEAN, DATE, DOUBLE, TEXT, TIMESTAMP, Value, decimal

BY_STATE = "SELECT state, COUNT(*) AS n FROM people GROUP BY state ORDER BY state"
COLUMNS = [
    Column("b", BOOLEAN),
    Column("i", BIGINT, 3),
    Column("d", decimal(10, 2)),
    Column("f", DOUBLE),
    Column("t", TEXT),
    Column("day", DATE),
    Column("at", TIMESTAMP),
]
FULL: tuple[Value, ...] = (
    True,
    2**60 + 1,
    Decimal("1.50"),
    0.5,
    "x",
    date(2024, 1, 2),
    datetime(2024, 1, 2, 3, 4, 5, 6),
)
ROWS = [FULL, (None,) * len(FULL)]


class Seen(HTMLParser):
    """The tags and texts of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        del attrs
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.fixture
def cursor(clinic: Path) -> Iterator[dpsql.Cursor]:
    with dpsql.connect(clinic) as connection:
        yield connection.cursor()


# --- HTML ---


def test_a_notebook_shows_margins_bars_and_the_price(cursor: dpsql.Cursor) -> None:
    cursor.execute(BY_STATE)
    page = cursor._repr_html_()
    assert page is not None
    seen = Seen(page)
    assert seen.texts[:3] == ["state", "n", "CA"] and " ±9" in seen.texts[3]
    assert seen.tags.count("div") == 3
    assert seen.texts[-1] == "± is the 95 % margin; price: epsilon 1 (rho 0.02294); paid: epsilon 1 (rho 0.02294)"
    assert len(cursor.fetchall()) == 3  # still there


def test_a_notebook_shows_what_is_not_a_query_and_nothing_without_rows(cursor: dpsql.Cursor) -> None:
    assert cursor._repr_html_() is None
    cursor.execute("SET dpsql.epsilon = 0.5")
    assert cursor._repr_html_() is None
    cursor.execute("SHOW dpsql.epsilon")
    page = cursor._repr_html_()
    assert page is not None and Seen(page).texts == ["dpsql.epsilon", "0.5"]
    cursor.close()
    assert cursor._repr_html_() is None


def test_everything_is_escaped() -> None:
    evil = "<script>alert(1)</script> & \"'"
    seen = Seen(html_table([Column(evil, TEXT)], [(evil,)], [(None,)], evil))
    assert "script" not in seen.tags
    assert seen.texts == [evil, evil, evil]


def test_long_answers_are_cut() -> None:
    seen = Seen(html_table([Column("n", BIGINT)], [(i,) for i in range(1_100)], [(None,)] * 1_100, "price"))
    assert seen.tags.count("tr") == 101
    assert seen.texts[-1] == "1,000 more rows; price"


# --- data frames ---


def test_rows_become_a_data_frame(cursor: dpsql.Cursor) -> None:
    rows = cursor.execute(BY_STATE).fetchall()
    frame = cursor.execute(BY_STATE).to_pandas()
    assert list(frame.columns) == ["state", "n"]
    assert list(frame.itertuples(index=False, name=None)) == rows
    assert cursor.fetchall() == []  # taken, as by fetchall


def test_frames_may_have_margins_and_the_mark_is_infinite(cursor: dpsql.Cursor) -> None:
    sql = "SELECT state, COUNT(*) AS n, MEDIAN(age) AS half FROM people GROUP BY state ORDER BY state"
    cursor.execute(sql)
    assert cursor.fetchone() is not None
    frame = cursor.to_pandas(margins=True)
    assert list(frame.columns) == ["state", "n", "n_margin", "half", "half_margin"] and len(frame) == 2
    assert (frame.n_margin > 0).all() and np.isinf(frame.half_margin).all()
    assert cursor.execute(sql).to_arrow(margins=True).column_names == list(frame.columns)


def test_rows_become_an_arrow_table(cursor: dpsql.Cursor) -> None:
    cursor.execute(BY_STATE)
    first = cursor.fetchone()
    assert first is not None
    table = cursor.to_arrow()
    assert table.column_names == ["state", "n"] and table["state"].to_pylist() == ["NY", "TX"]


@pytest.mark.parametrize("rows", [ROWS, ROWS[:1], ROWS[1:], []])
def test_types_depend_on_the_query_alone(rows: list[tuple[Value, ...]]) -> None:
    frame = frames.to_pandas(pd, COLUMNS, rows)
    times = ["datetime64[us]", "datetime64[us]"]
    assert list(map(str, frame.dtypes)) == ["boolean", "Int64", "object", "float64", "object", *times]
    table = frames.to_arrow(pa, COLUMNS, rows)
    expected = [
        pa.bool_(),
        pa.int64(),
        pa.decimal128(10, 2),
        pa.float64(),
        pa.string(),
        pa.date32(),
        pa.timestamp("us"),
    ]
    assert table.schema.types == expected
    assert [tuple(row.values()) for row in table.to_pylist()] == rows


def test_values_survive() -> None:
    frame = frames.to_pandas(pd, COLUMNS, ROWS)
    day = pd.Timestamp(2024, 1, 2)
    assert tuple(frame.iloc[0]) == (*FULL[:5], day, pd.Timestamp("2024-01-02 03:04:05.000006"))
    assert frame.iloc[1].isna().all()


def test_two_columns_may_have_one_name() -> None:
    columns = [Column("count", BIGINT), Column("count", BIGINT)]
    assert list(frames.to_pandas(pd, columns, [(1, 2)]).columns) == ["count", "count"]
    assert frames.to_arrow(pa, columns, [(1, 2)]).column_names == ["count", "count"]


def test_without_a_query_there_are_no_rows(cursor: dpsql.Cursor) -> None:
    for convert in (cursor.to_pandas, cursor.to_arrow):
        with pytest.raises(dpsql.ProgrammingError, match="there are no rows to fetch"):
            convert()


@pytest.mark.parametrize("library", ["pandas", "pyarrow"])
def test_a_library_that_is_missing_is_named(
    library: str, cursor: dpsql.Cursor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    convert = cursor.to_pandas if library == "pandas" else cursor.to_arrow
    cursor.execute(BY_STATE)
    with pytest.raises(dpsql.InterfaceError, match=f"{library} is not installed") as refused:
        convert()
    assert refused.value.hint == f"Run: pip install {library}."
    assert len(cursor.fetchall()) == 3  # the answer is not lost
