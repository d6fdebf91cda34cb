"""Arrays as text: what is written is read again, and what PostgreSQL would not read is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpsql.errors import InvalidText
from dpsql.sql.arrays import array_items, array_text


@given(st.lists(st.none() | st.text()))
def test_what_is_written_is_read_again(items: list[str | None]) -> None:
    assert array_items(array_text(items)) == items


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("{}", []),
        (" { } ", []),
        ("{a, b c ,null}", ["a", "b c", None]),
        ('{"NULL","a,b","c\\"d\\\\"}', ["NULL", "a,b", 'c"d\\']),
        ('{1,-2,""}', ["1", "-2", ""]),
    ],
)
def test_postgresql_spellings(text: str, items: list[str | None]) -> None:
    assert array_items(text) == items


@pytest.mark.parametrize(
    "text", ["", "{", "a,b", "{a,}", "{,a}", "{a,,b}", "{{a},{b}}", '{"a}', '{"a"b}', "[0:1]={a,b}"]
)
def test_what_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(InvalidText):
        array_items(text)


def test_booleans_and_numbers() -> None:
    assert array_text([True, 5, None]) == '{"true","5",NULL}'
