"""Rows as literals: a column that is written at once reads as if each of its values had been written by itself."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from dpsql.server.relay import render
from dpsql.types import Value

_KINDS: list[st.SearchStrategy[Value]] = [
    st.integers(),
    st.floats(),
    st.text(),
    st.text(alphabet="ab,\"\\{}\x1f'\né"),
    st.booleans(),
    st.none(),
    st.dates(),
    st.just(datetime(2020, 1, 2, 3, 4, 5)),
    st.decimals(allow_nan=False, allow_infinity=False),
]


@given(st.one_of([st.lists(kind) for kind in _KINDS] + [st.lists(st.one_of(_KINDS))]))
def test_a_column_is_its_values(values: list[Value]) -> None:
    one_by_one = "{" + ",".join([render._element(value) for value in values]) + "}"
    assert render._array(values) == one_by_one


@given(st.text() | st.text(alphabet="ab '\\\x7f\x00é"))
def test_a_literal_is_the_same_with_and_without_something_to_escape(text: str) -> None:
    assert render.literal("é" + text) == "E'\\U000000E9" + render.literal(text).removeprefix("E'")
    assert render.literal(text).isascii()


def test_an_array_within_a_column_is_a_text_that_the_twin_reads() -> None:
    assert render._array([(1.5, None), None, ()]) == '{"{1.5,NULL}",NULL,"{}"}'
    assert render._array([('a "b"', "c")]) == r'{"{\"a \\\"b\\\"\",\"c\"}"}'


def test_of_each_kind_one() -> None:
    values = [None, True, 1, 1.5, Decimal("1.50"), date(2020, 1, 2), datetime(2020, 1, 2), 'a "b" \\ c']
    written = '{NULL,t,1,1.5,1.50,"2020-01-02","2020-01-02 00:00:00","a \\"b\\" \\\\ c"}'
    assert render._array(values) == written
