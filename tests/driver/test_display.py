"""How noisy numbers are written: no more digits than the margin leaves, and never a wrong one."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from fractions import Fraction
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpsql.driver.display import Column, bar_shares, cell, plain
from dpsql.types import BIGINT, BOOLEAN, DATE, DOUBLE, TEXT, Type, Value, decimal

N = Column("n", BIGINT, 51)
KEY = Column("state", TEXT)


@pytest.mark.parametrize(
    ("value", "type_", "margin", "shown"),
    [
        (33412, BIGINT, 51, "33,412 ±51"),
        (33412, BIGINT, 9, "33,412 ±9"),
        (1_234_567, BIGINT, 1234, "1,234,600 ±1,300"),
        (-40, BIGINT, 1234, "0 ±1,300"),
        (5, BIGINT, 0.25, "5 ±1"),
        (5, BIGINT, 0, "5"),
        (12345.678, DOUBLE, 0.5, "12,345.68 ±0.50"),
        (12345.678, DOUBLE, 51, "12,346 ±51"),
        (Decimal("12345.675"), decimal(10, 3), 2.25, "12,345.7 ±2.3"),
        (Decimal(10**37 + 1), decimal(38, 0), 1, "10,000,000,000,000,000,000,000,000,000,000,000,001 ±1"),
        (None, BIGINT, 51, "NULL"),
        (2024, BIGINT, None, "2024"),
        (52118.3157, DOUBLE, None, "52,118.3"),
        (0.00012345678, DOUBLE, None, "0.000123457"),
        (1234567.8, DOUBLE, None, "1,234,568"),
        (1e30, DOUBLE, None, "1e+30"),
        (1e-30, DOUBLE, None, "1e-30"),
        (0.0, DOUBLE, None, "0"),
        (40.0, DOUBLE, None, "40"),
        (float("inf"), DOUBLE, 3, "inf"),
        # What is noisy, and nobody knows how much.
        (2024, BIGINT, inf, "2024 (noise)"),
        (52118.3157, DOUBLE, inf, "52,118.3 (noise)"),
        (date(2024, 2, 29), DATE, inf, "2024-02-29 (noise)"),
        (None, DOUBLE, inf, "NULL"),
        (Decimal("1E+3"), decimal(10, 0), None, "1000"),
        (True, BOOLEAN, None, "true"),
        (date(2024, 2, 29), DATE, None, "2024-02-29"),
    ],
)
def test_cells(value: Value, type_: Type, margin: float | None, shown: str) -> None:
    assert cell(value, Column("x", type_), margin) == shown


@given(st.integers(-(10**15), 10**15), st.integers(1, 10**9))
def test_rounding_stays_within_the_margin_it_shows(value: int, margin: int) -> None:
    number, shown = (int(part.replace(",", "")) for part in cell(value, Column("n", BIGINT), margin).split(" ±"))
    assert margin <= shown <= margin * Fraction(11, 10)
    assert abs(number - value) <= margin / 20  # half a unit of the second digit


def test_text_stays_text() -> None:
    assert plain("12345.678") == "12345.678"
    assert cell("12345.678", KEY, None) == "12345.678"


def test_bars_compare_the_first_noisy_number_of_rows_with_one_key() -> None:
    assert bar_shares([KEY, N], [("a", 50), ("b", 100), ("c", -3), ("d", None)]) == [0.5, 1.0, 0.0, 0.0]
    assert bar_shares([KEY, N, Column("mean", DOUBLE)], [("a", 50, 7.5), ("b", 100, 1.5)]) == [0.5, 1.0]
    assert bar_shares([N, KEY], [(50, "a"), (100, "b")]) == [0.5, 1.0]


@pytest.mark.parametrize(
    ("columns", "rows"),
    [
        ([KEY, KEY, N], [("a", "x", 1), ("a", "y", 2)]),  # two keys
        ([N], [(1,), (2,)]),  # none
        ([KEY, Column("mean", DOUBLE)], [("a", 1.0), ("b", 2.0)]),  # nothing with a margin
        ([KEY, Column("mean", DOUBLE, varies=True)], [("a", 1.0), ("b", 2.0)]),  # no count
        ([KEY, N], [("a", 1)]),  # nothing to compare
        ([KEY, N], []),
        ([KEY, N], [("a", 0), ("b", -5)]),
    ],
)
def test_no_bars_elsewhere(columns: list[Column], rows: list[tuple[Value, ...]]) -> None:
    assert bar_shares(columns, rows) is None
