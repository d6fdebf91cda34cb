"""Conditions on stored columns: the same rows pass as with the clamped column, whatever is stored."""

from __future__ import annotations

import operator
from datetime import date, datetime
from decimal import Decimal
from fractions import Fraction

import pytest

from dpsql.lowering.fast_paths import StoredTest, stored_test
from dpsql.plan.scalars import Call, Const, Field, Op, Ref
from dpsql.policy.model import Column
from dpsql.types import BOOLEAN, DATE, DOUBLE, TIMESTAMP, Value, decimal, integer

_OPERATIONS = {
    Op.LT: operator.lt,
    Op.LE: operator.le,
    Op.GT: operator.gt,
    Op.GE: operator.ge,
    Op.EQ: operator.eq,
}
_SIGNS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "=": operator.eq}
_AGE = Column("age", integer(3), lower=Fraction(10), upper=Fraction(20))


def _compared(column: Column, op: Op, value: Value, *, mirrored: bool = False) -> StoredTest | None:
    ref, const = Ref(Field(1, "x", column.type)), Const(value, column.type)
    return stored_test(Call(op, (const, ref) if mirrored else (ref, const), BOOLEAN), {1: column})


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("op", _OPERATIONS)
@pytest.mark.parametrize("value", range(7, 24))
def test_the_same_rows_pass_as_with_the_clamped_column(op: Op, value: int, mirrored: bool) -> None:
    found = _compared(_AGE, op, value, mirrored=mirrored)
    if found is None:
        return
    for stored in range(-5, 40):
        clamped = min(max(stored, 10), 20)
        wanted = _OPERATIONS[op](value, clamped) if mirrored else _OPERATIONS[op](clamped, value)
        assert _SIGNS[found.sign](stored, found.value) == wanted


@pytest.mark.parametrize("op", _OPERATIONS)
def test_constants_between_the_bounds_are_tested_on_stored_values(op: Op) -> None:
    assert _compared(_AGE, op, 15) is not None
    assert _compared(_AGE, op, 9) is None
    assert _compared(_AGE, op, 21) is None


def test_what_the_columns_type_cannot_hold_is_left_to_the_clamped_column() -> None:
    money = Column("fee", decimal(4, 2), lower=Fraction(0), upper=Fraction(50))
    assert _compared(money, Op.LT, Decimal("24.50")) is not None
    assert _compared(money, Op.LT, Decimal("24.505")) is None
    assert _compared(_AGE, Op.LT, Decimal("15.5")) is None
    assert _compared(_AGE, Op.LT, None) is None
    assert _compared(Column("n", integer(10)), Op.LT, 5) is None
    assert _compared(Column("x", DOUBLE, lower=Fraction(0), upper=Fraction(9)), Op.LT, 5.0) is None


def test_dates_are_compared_with_dates() -> None:
    day = Column("day", DATE)
    assert _compared(day, Op.LT, date(2020, 1, 1)) is not None
    assert _compared(day, Op.LT, datetime(2020, 1, 1)) is None
    assert _compared(Column("at", TIMESTAMP), Op.LT, datetime(2020, 1, 1)) is not None
