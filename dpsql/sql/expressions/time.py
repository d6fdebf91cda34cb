"""Dates, timestamps and intervals."""

from __future__ import annotations

from sqlglot import exp

from dpsql.errors import NotSupported, TypeMismatch, UnknownOperator
from dpsql.plan.scalars import Call, Const, Op, Scalar
from dpsql.sql.expressions.core import BINARY, Expressions, Handlers
from dpsql.sql.names import Scope, position
from dpsql.sql.spans import Span, as_span
from dpsql.sql.typing import coerce, constant
from dpsql.types import DATE, DOUBLE, INTERVAL, NUMERIC, TIMESTAMP, Kind
from dpsql.types import decimal as decimal_type
from dpsql.types import integer as integer_type

EXTRACT_DIGITS = {
    "year": (5, 0), "quarter": (1, 0), "month": (2, 0), "day": (2, 0), "dow": (1, 0), "isodow": (1, 0),
    "doy": (3, 0), "week": (2, 0), "isoyear": (5, 0), "decade": (4, 0), "century": (3, 0), "hour": (2, 0),
    "minute": (2, 0), "second": (2, 6),
}  # fmt: skip

TRUNC_UNITS = frozenset(("second", "minute", "hour", "day", "week", "month", "quarter", "year", "decade"))


def date_arithmetic(read: Expressions, op: Op, node: exp.Expression, scope: Scope) -> Scalar | None:
    left_interval, right_interval = as_span(node.this), as_span(node.expression)
    if left_interval is not None and right_interval is not None:
        raise NotSupported("intervals stand only beside dates", position=position(node))
    if left_interval is not None:
        if op is Op.SUB:
            raise TypeMismatch("a date cannot be subtracted from an interval", position=position(node))
        return _shift(read.moment(node.expression, scope), left_interval, 1)
    if right_interval is not None:
        return _shift(read.moment(node.this, scope), right_interval, 1 if op is Op.ADD else -1)
    left, right = read.scalar(node.this, scope), read.scalar(node.expression, scope)
    if op is Op.SUB and left.type.is_temporal and right.type.kind is Kind.UNKNOWN:
        right = coerce(right, left.type)
    match left.type.kind, right.type.kind:
        case (Kind.DATE, Kind.DATE) if op is Op.SUB:
            return Call(Op.DAYS_BETWEEN, (left, right), integer_type(8))
        case (Kind.DATE | Kind.TIMESTAMP, Kind.DATE | Kind.TIMESTAMP) if op is Op.SUB:
            return Call(Op.SECONDS_BETWEEN, (coerce(left, TIMESTAMP), coerce(right, TIMESTAMP)), INTERVAL)
        case Kind.DATE, Kind.INTEGER:
            days = right if op is Op.ADD else Call(Op.NEG, (right,), right.type)
            return Call(Op.ADD_DAYS, (left, days), DATE)
        case (Kind.INTEGER, Kind.DATE) if op is Op.ADD:
            return Call(Op.ADD_DAYS, (right, left), DATE)
        case _:
            return None


def _shift(moment: Scalar, by: Span, sign: int) -> Scalar:
    """date or timestamp ± interval is a timestamp."""
    result = coerce(moment, TIMESTAMP)
    if by.months:
        result = Call(Op.ADD_MONTHS, (result, constant(sign * by.months)), TIMESTAMP)
    seconds = by.days * 86400 + by.seconds
    if seconds:
        result = Call(Op.ADD_SECONDS, (result, constant(sign * seconds)), TIMESTAMP)
    return result


def _interval(_: Expressions, node: exp.Interval, __: Scope) -> Scalar:
    """A constant interval, to be compared with one: months count as thirty days, as in PostgreSQL."""
    found = as_span(node)
    assert found is not None
    return Const(float((found.months * 30 + found.days) * 86400 + found.seconds), INTERVAL)


def _extract(read: Expressions, node: exp.Extract, scope: Scope) -> Scalar:
    part = str(node.this.this).lower() if isinstance(node.this, exp.Var) else ""
    value = read.scalar(node.expression, scope)
    if value.type.kind is Kind.UNKNOWN:
        raise UnknownOperator("EXTRACT needs a date or timestamp", position=position(node))
    if value.type.kind is Kind.INTERVAL and isinstance(value, Call):
        if part == "epoch":
            return Call(Op.SECONDS_BETWEEN, value.args, NUMERIC)
        if part in ("day", "days"):
            days = Call(Op.DIV, (Call(Op.SECONDS_BETWEEN, value.args, DOUBLE), Const(86400.0, DOUBLE)), DOUBLE)
            return Call(Op.CAST, (Call(Op.TRUNC, (days,), DOUBLE),), decimal_type(10, 0))
        raise NotSupported(f"EXTRACT({part}) of an interval is not supported", position=position(node))
    if not value.type.is_temporal:
        raise UnknownOperator("EXTRACT needs a date or timestamp", position=position(node))
    if part == "epoch":
        return Call(Op.EXTRACT, (value,), NUMERIC, "epoch")
    if part not in EXTRACT_DIGITS:
        raise NotSupported(f"EXTRACT({part}) is not supported", position=position(node))
    if value.type.kind is Kind.DATE and part in ("hour", "minute", "second"):
        raise NotSupported(f'unit "{part}" not supported for type date', position=position(node))
    digits, scale = EXTRACT_DIGITS[part]
    return Call(Op.EXTRACT, (value,), decimal_type(digits + scale, scale), part)


def _date_trunc(read: Expressions, node: exp.Expression, scope: Scope) -> Scalar:
    given = node.args["unit"]
    end = node.meta.get("end")
    bare = isinstance(end, int) and not read.source[end + 1 :].lstrip().removeprefix("(").lstrip().startswith("'")
    if bare or not isinstance(given, exp.Var | exp.Literal):
        raise NotSupported("date_trunc needs a constant unit", position=position(node))
    unit = str(given.this).lower()
    if unit not in TRUNC_UNITS:
        units = ", ".join(sorted(TRUNC_UNITS))
        raise NotSupported(f"date_trunc('{unit}') is not supported", hint=f"There are {units}.")
    value = read.moment(node.this, scope, "date_trunc needs a date or timestamp")
    return Call(Op.DATE_TRUNC, (coerce(value, TIMESTAMP),), TIMESTAMP, unit)


HANDLERS: Handlers = {
    exp.Extract: (_extract, BINARY),
    exp.Interval: (_interval, {"this", "unit"}),
    exp.TimestampTrunc: (_date_trunc, {"this", "unit"}),
}
