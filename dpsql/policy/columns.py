"""Joins the declaration of one column with its type in the database."""

from __future__ import annotations

import math
from datetime import date, datetime, time
from fractions import Fraction

from dpsql.policy.model import Bound, Column, ColumnPolicy, ColumnSchema
from dpsql.policy.problems import Report, quoted
from dpsql.policy.sections import MAX_BIGINT
from dpsql.types import MAX_DIGITS, Kind, Type, Value, decimal, integer

# What the elements of `values` must be, by the kind of the column. Whole numbers are exact in every numeric type.
_VALUE_TYPES: dict[Kind, type] = {
    Kind.BOOLEAN: bool,
    Kind.INTEGER: int,
    Kind.DECIMAL: int,
    Kind.DOUBLE: int,
    Kind.TEXT: str,
    Kind.DATE: date,
}


class _Unfit(Exception):
    """Why the bounds do not fit the column, and what to write instead."""

    def __init__(self, message: str, fix: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix


def known_type(schema: ColumnSchema) -> Type | None:
    """The type of a column that dpsql can work with, or None."""
    return None if schema.type is None or schema.type.kind is Kind.UNKNOWN else schema.type


def bind_column(declared: ColumnPolicy, schema: ColumnSchema, report: Report, line: int | None) -> Column | None:
    """The column as the compiler sees it; None if the two do not fit, which is then reported."""
    name = quoted(declared.name)
    column_type = known_type(schema)
    if column_type is None:
        report.add(line, f"column {name} has type {schema.native}, which dpsql does not know", "remove the column")
        return None
    faults = len(report.problems)
    if declared.step is not None and column_type.kind is Kind.INTEGER and declared.step.denominator != 1:
        report.add(line, f'column {name} holds integers, "step" must be an integer', "write: step = 1")
    if declared.step is not None and not column_type.is_numeric:
        report.add(line, f'column {name} is of type {schema.native}, "step" is for numbers only', 'remove "step"')
    if declared.values is not None and not _fits(declared.values, column_type):
        report.add(line, f'"values" of column {name} are not of its type, which is {schema.native}')
    lower, upper, narrow = declared.lower, declared.upper, column_type
    try:
        if lower is not None and upper is not None:
            lower, upper = _bounds_of_type(lower, upper, column_type)
            narrow = _narrow_to_bounds(column_type, lower, upper)
        elif declared.values is not None:
            narrow = _narrow_to_values(column_type, declared.values)
    except _Unfit as unfit:
        report.add(line, f"column {name} is of type {schema.native}, {unfit.message}", unfit.fix)
    if len(report.problems) > faults:
        return None
    return Column(
        name=declared.name,
        type=narrow,
        nullable=schema.nullable,
        lower=lower,
        upper=upper,
        step=declared.step,
        values=declared.values,
        nullable_key=declared.nullable_key,
        tight=declared.tight,
        max_rows_per_value=declared.max_rows_per_value,
    )


def _fits(values: tuple[Value, ...], column_type: Type) -> bool:
    wanted = _VALUE_TYPES.get(column_type.kind)
    return all(type(value) is wanted for value in values)


def _bounds_of_type(lower: Bound, upper: Bound, column_type: Type) -> tuple[Bound, Bound]:
    """Bounds that a value of the type can take, so that clamping to them changes neither type nor scale.

    A decimal column gets them rounded outward to its scale. The bounds of a timestamp may be dates: they
    then run from the beginning of the first day to the last microsecond of the last.
    """
    match column_type.kind:
        case Kind.INTEGER | Kind.DECIMAL | Kind.DOUBLE:
            if not isinstance(lower, Fraction) or not isinstance(upper, Fraction):
                raise _Unfit("its bounds must be numbers")
            return _numbers_of_type(lower, upper, column_type)
        case Kind.DATE:
            if type(lower) is not date or type(upper) is not date:
                raise _Unfit("its bounds must be dates", "write: { min = 2000-01-01, max = 2029-12-31 }")
            return lower, upper
        case Kind.TIMESTAMP | Kind.TIMESTAMPTZ:
            if isinstance(lower, Fraction) or isinstance(upper, Fraction):
                raise _Unfit("its bounds must be dates or dates with a time")
            return _moment(lower, time.min), _moment(upper, time.max)
        case _:
            raise _Unfit("it takes no bounds", 'remove "min" and "max"')


def _numbers_of_type(lower: Fraction, upper: Fraction, column_type: Type) -> tuple[Fraction, Fraction]:
    if column_type.kind is Kind.INTEGER:
        if lower.denominator != 1 or upper.denominator != 1:
            raise _Unfit("its bounds must be integers")
        if lower < -MAX_BIGINT - 1 or upper > MAX_BIGINT:
            raise _Unfit("its bounds do not fit into 64 bits")
    if column_type.kind is Kind.DECIMAL:
        grid = 10**column_type.scale
        lower, upper = Fraction(math.floor(lower * grid), grid), Fraction(math.ceil(upper * grid), grid)
        if _digits(lower, upper) + column_type.scale > MAX_DIGITS:
            raise _Unfit(f"its bounds need more than {MAX_DIGITS} digits")
    return lower, upper


def _moment(bound: Bound, of_day: time) -> Bound:
    return datetime.combine(bound, of_day) if type(bound) is date else bound


def _narrow_to_bounds(column_type: Type, lower: Bound, upper: Bound) -> Type:
    """The type of a column after it was clamped.

    Claim: every value v of the column that arithmetic sees has |v| * 10**scale < 10**precision.
    Because: v lies between the bounds, which are multiples of 10**-scale, and 10**digits exceeds both.
    Needs: the scan clamps to these very bounds before anything else sees the column.
    """
    if isinstance(lower, Fraction) and isinstance(upper, Fraction):
        if column_type.kind is Kind.INTEGER:
            return integer(max(_digits(lower, upper), 1), big=column_type.big)
        if column_type.kind is Kind.DECIMAL:
            return decimal(_digits(lower, upper) + column_type.scale, column_type.scale)
    return column_type


def _narrow_to_values(column_type: Type, values: tuple[Value, ...]) -> Type:
    """The type of a column with a list of values.

    Claim: every value v of an integer column that arithmetic sees has |v| < 10**precision.
    Because: v lies between the smallest and the largest of the list, and 10**digits exceeds both.
    Needs: the scan clamps to the smallest and the largest of the list before anything else sees the column.
    """
    whole = [Fraction(value) for value in values if isinstance(value, int)]
    if column_type.kind is Kind.INTEGER and whole:
        return integer(max(_digits(*whole), 1), big=column_type.big)
    return column_type


def _digits(*numbers: Fraction) -> int:
    """The least d with 10**d greater than every number's magnitude."""
    largest = max(math.floor(abs(number)) for number in numbers)
    return len(str(largest)) if largest else 0
