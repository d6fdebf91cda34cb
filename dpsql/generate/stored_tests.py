"""Conditions that may be tested on a column as it is stored: what clamping does to it cannot change their outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from fractions import Fraction
from typing import Literal

from dpsql.plan.scalars import Call, Const, Op, Ref, Scalar, as_moment
from dpsql.policy.model import Bound, Column
from dpsql.types import Kind, Value

_MIRRORED = {Op.LT: Op.GT, Op.LE: Op.GE, Op.GT: Op.LT, Op.GE: Op.LE, Op.EQ: Op.EQ}
_SIGNS: dict[Op, Literal["<", "<=", ">", ">=", "="]] = {
    Op.LT: "<",
    Op.LE: "<=",
    Op.GT: ">",
    Op.GE: ">=",
    Op.EQ: "=",
}


@dataclass(frozen=True, slots=True)
class StoredTest:
    """A stored column, compared with a value of its own type."""

    column: Column
    sign: Literal["<", "<=", ">", ">=", "="]
    value: Bound


def stored_test(condition: Scalar, columns: Mapping[int, Column]) -> StoredTest | None:
    """The same condition on the stored column, of those that the fields show; None where that may differ.

    Claim: true for the same rows as the condition on the clamped column, where values that are no dates of the calendar
    are left out (as the scan does).
    Because: clamping keeps the order, and every value that it changes ends on the same side of a constant that is
    between the bounds, or at one of them and still told from it.
    Needs: a constant that the column's own type can hold, so that nothing is converted row by row.
    """
    if not isinstance(condition, Call) or condition.op not in _SIGNS:
        return None
    op, (left, right) = condition.op, map(as_moment, condition.args)
    if isinstance(left, Const):
        op, left, right = _MIRRORED[op], right, left
    if not isinstance(left, Ref) or not isinstance(right, Const) or left.field.id not in columns:
        return None
    column = columns[left.field.id]
    value = _of_type(right.value, column)
    if value is None or column.type != left.type or column.values is not None:
        return None
    low, high = column.lower, column.upper
    if low is None or high is None:
        return StoredTest(column, _SIGNS[op], value)
    # A value below the lower bound becomes that bound, which must be on the same side of the constant; so above.
    above_low = _is_before(low, value) or (value == low and op in (Op.GT, Op.LE))
    below_high = _is_before(value, high) or (value == high and op in (Op.GE, Op.LT))
    return StoredTest(column, _SIGNS[op], value) if above_low and below_high else None


def _of_type(value: Value, column: Column) -> Bound | None:
    kind = column.type.kind
    if kind in (Kind.INTEGER, Kind.DECIMAL):
        if isinstance(value, bool) or not isinstance(value, int | Decimal):
            return None
        number = Fraction(value)
        fits = (number * 10**column.type.scale).denominator == 1 and column.lower is not None
        return number if fits else None
    if kind is Kind.DATE:
        return value if type(value) is date else None
    return value if column.type.is_moment and isinstance(value, datetime) else None


def _is_before(first: Bound, second: Bound) -> bool:
    return first < second  # type: ignore[operator]  # both are of the column's type
