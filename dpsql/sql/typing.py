"""Typing rules: which types meet, and what comes of it, as PostgreSQL has it."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation

from dpsql.errors import InvalidDate, InvalidText, OutOfRange, TypeMismatch
from dpsql.plan.scalars import Call, Const, Op, Scalar, children
from dpsql.sql.allowed import refuse_array
from dpsql.types import (
    BIGINT,
    BOOLEAN,
    DATE,
    DOUBLE,
    INT_DIGITS,
    MAX_DIGITS,
    NUMERIC,
    TEXT,
    TIMESTAMP,
    UNKNOWN,
    Kind,
    Type,
    Value,
)
from dpsql.types import decimal as decimal_type
from dpsql.types import integer as integer_type


def constant(value: Value) -> Const:
    """A constant with the type PostgreSQL gives such a literal; a string waits for its context."""
    match value:
        case bool():
            return Const(value, BOOLEAN)
        case int():
            return integer_constant(value)
        case Decimal():
            return decimal_constant(value)
        case float():
            return Const(value, DOUBLE)
        case datetime():
            return Const(value, TIMESTAMP)
        case date():
            return Const(value, DATE)
        case str() | None:
            return Const(value, UNKNOWN)


def integer_constant(value: int) -> Const:
    if value.bit_length() > 1_000:
        raise OutOfRange("a number is out of range")
    digits = len(str(abs(value)))
    if digits > INT_DIGITS or not -(2**63) <= value < 2**63:
        return decimal_constant(Decimal(value))
    return Const(value, integer_type(digits, big=not -(2**31) <= value < 2**31))


def decimal_constant(value: Decimal) -> Const:
    if not value.is_finite():
        return Const(float(value), DOUBLE)
    _, digits, exponent = value.as_tuple()
    scale = max(0, -int(exponent))
    whole = max(len(digits) + int(exponent), 0)
    type_ = decimal_type(whole + scale, scale)
    if type_.kind is Kind.DECIMAL:
        return Const(value, type_)
    if not math.isfinite(float(value)):
        raise OutOfRange("a number is out of range")
    return Const(float(value), NUMERIC)


def unify(parts: Sequence[Scalar], what: str) -> Type:
    """The common type of branches, list items or compared values."""
    for part in parts:
        refuse_array(part, None)
    known = [part.type for part in parts if part.type.kind is not Kind.UNKNOWN]
    if not known:
        return TEXT
    result = known[0]
    for other in known[1:]:
        result = _common(result, other, what)
    for part in parts:
        # A literal in quotes has the type of the others, and may have more digits.
        if isinstance(part, Const) and part.type.kind is Kind.UNKNOWN and result.kind in (Kind.INTEGER, Kind.DECIMAL):
            result = _common(result, _read_type(part, result), what)
    return result


def _common(left: Type, right: Type, what: str) -> Type:
    if left.kind is right.kind is Kind.INTEGER:
        return integer_type(max(left.precision, right.precision), big=left.big or right.big)
    if left.kind is right.kind is Kind.DECIMAL or {left.kind, right.kind} == {Kind.INTEGER, Kind.DECIMAL}:
        scale = max(left.scale, right.scale)
        whole = max(left.precision - left.scale, right.precision - right.scale)
        mixed = left.scale != right.scale or left.mixed or right.mixed
        return replace(decimal_type(whole + scale, scale), mixed=mixed)
    if left.is_numeric and right.is_numeric:
        return NUMERIC if left.is_exact and right.is_exact else DOUBLE
    if left.is_temporal and right.is_temporal:
        return left if left.kind is right.kind else TIMESTAMP
    if left.kind is right.kind:
        return left
    raise TypeMismatch(f"{what} types {left.kind.value} and {right.kind.value} cannot be matched")


def coerce(value: Scalar, target: Type) -> Scalar:
    """`value` as `target`, where PostgreSQL would convert it without being asked."""
    if value.type.kind is Kind.UNKNOWN:
        if isinstance(value, Const):
            return Const(
                read_literal(value.value, target), target if value.value is None else _read_type(value, target)
            )
        raise TypeMismatch(f"cannot convert an expression of unknown type to {target.kind.value}")
    if value.type.kind is target.kind:
        return value
    if isinstance(value, Const) and value.type.is_numeric and target.kind is Kind.DOUBLE:
        return Const(None if value.value is None else float(str(value.value)), target)
    if isinstance(value, Const) and type(value.value) is date and target.kind is Kind.TIMESTAMP:
        return Const(datetime.combine(value.value, time()), TIMESTAMP)
    if isinstance(value, Const) and value.type.kind is Kind.INTEGER and target.kind is Kind.DECIMAL:
        return Const(None if value.value is None else Decimal(str(value.value)), decimal_type(value.type.precision, 0))
    if (value.type.is_numeric and target.is_numeric) or (
        value.type.kind is Kind.DATE and target.kind is Kind.TIMESTAMP
    ):
        return Call(Op.CAST, (value,), _cast_type(value.type, target))
    raise TypeMismatch(f"expected {target.kind.value}, found {value.type.kind.value}")


_ROUNDED = frozenset({Op.CAST, Op.ROUND, Op.TRUNC, Op.FLOOR, Op.CEIL, Op.SIGN})  # to places that the operation says


def has_fixed_places(value: Scalar) -> bool:
    """Whether a decimal has as many places as its type says, so that its text is PostgreSQL's.

    There each value keeps its own: COALESCE(10, 0.5) is 10, where an engine that has one type for both says 10.0.
    """
    if value.type.kind is not Kind.DECIMAL or (isinstance(value, Call) and value.op in _ROUNDED):
        return True
    return not value.type.mixed and all(map(has_fixed_places, children(value)))


def _cast_type(source: Type, target: Type) -> Type:
    if source.kind is Kind.INTEGER and target.kind is Kind.DECIMAL:
        return decimal_type(source.precision, 0)
    return target


def _read_type(value: Const, target: Type) -> Type:
    """A literal read as a number takes the digits that it has, not those of its context."""
    read = read_literal(value.value, target)
    if isinstance(read, bool) or not isinstance(read, int | Decimal):
        return target
    return constant(read).type


def read_literal(value: Value, target: Type) -> Value:
    """A quoted literal read as a value of `target`."""
    if value is None or not isinstance(value, str):
        return value
    text = value.strip(" \t\n\r\f\v")
    shape = _SHAPES.get(target.kind)
    try:
        if shape is not None and shape.fullmatch(text) is None:
            raise ValueError
        match target.kind:
            case Kind.TEXT | Kind.UNKNOWN:
                return value
            case Kind.INTEGER:
                if len(text) > 20 or not -(2**63) <= int(text) < 2**63:
                    raise OutOfRange(f'value "{value}" is out of range for type bigint')
                return int(text)
            case Kind.DECIMAL:
                number = Decimal(text)
                if not number.is_finite():
                    raise ValueError
                return number
            case Kind.DOUBLE:
                real = float(text)
                if not math.isfinite(real):
                    raise ValueError
                return real
            case Kind.BOOLEAN:
                return _BOOLEANS[text.lower()]
            case Kind.DATE:
                return date.fromisoformat(text[:10]) if _is_midnight(text[10:]) else date.fromisoformat(text)
            case Kind.TIMESTAMP:
                return datetime.fromisoformat(_ZONE.sub("", text) if ":" in text else text)
            case Kind.INTERVAL | Kind.ARRAY:
                raise ValueError
    except (ValueError, KeyError, InvalidOperation):
        kind = InvalidDate if target.is_temporal else InvalidText
        raise kind(f'invalid input syntax for type {target.kind.value}: "{value}"') from None


def in_utc(literal: Const) -> Const:
    """A quoted literal read as a timestamp with a time zone: here it is heeded, and UTC where there is none."""
    plain = coerce(literal, TIMESTAMP)
    assert isinstance(plain, Const)
    if not isinstance(literal.value, str) or not isinstance(plain.value, datetime) or ":" not in literal.value:
        return plain
    zone = _ZONE.search(literal.value.strip())
    if zone is None or zone[1] == "Z":
        return plain
    sign, hours, minutes = zone[1][0], int(zone[1][1:3]), int(zone[1][3:].lstrip(":") or 0)
    ahead = timedelta(hours=hours, minutes=minutes)
    if hours > 15 or minutes > 59:
        raise OutOfRange(f'time zone displacement out of range: "{literal.value}"')
    try:
        return Const(plain.value - ahead if sign == "+" else plain.value + ahead, TIMESTAMP)
    except OverflowError:
        raise OutOfRange(f'timestamp out of range: "{literal.value}"') from None


# Python reads more spellings than PostgreSQL does.
_SHAPES = {
    kind: re.compile(shape, re.ASCII)
    for kind, shape in {
        Kind.INTEGER: r"[+-]?\d+",
        Kind.DECIMAL: r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?",
        Kind.DOUBLE: r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?",
        Kind.DATE: r"\d{4}-\d\d-\d\d([ T][0:.]+Z?)?",
        # PostgreSQL takes no notice of a time zone here.
        Kind.TIMESTAMP: r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d{1,6})?)? ?(Z|[+-]\d\d(:?\d\d)?)?)?",
    }.items()
}

_ZONE = re.compile(r" ?(Z|[+-]\d\d(:?\d\d)?)$", re.ASCII)

_BOOLEANS = {"true": True, "t": True, "yes": True, "on": True, "1": True} | {
    "false": False, "f": False, "no": False, "off": False, "0": False
}  # fmt: skip


def _is_midnight(rest: str) -> bool:
    return bool(rest) and rest.strip(" T0:.Z") == ""


def arithmetic_type(op: Op, left: Type, right: Type) -> Type | None:
    """The result of a numeric operator, or None if there is none for these types."""
    if not (left.is_numeric and right.is_numeric):
        return None
    if Kind.DOUBLE in (left.kind, right.kind):
        both_exact = left.is_exact and right.is_exact
        return None if op is Op.MOD else NUMERIC if both_exact else DOUBLE  # no engine's remainder of doubles is exact
    whole_left, whole_right = left.precision - left.scale, right.precision - right.scale
    if left.kind is right.kind is Kind.INTEGER:
        big = left.big or right.big
        match op:
            case Op.ADD | Op.SUB:
                return integer_type(max(left.precision, right.precision) + 1, big=big)
            case Op.MUL:
                return integer_type(left.precision + right.precision, big=big)
            case Op.DIV:
                return integer_type(left.precision, big=big)
            case Op.MOD:
                return integer_type(right.precision, big=big)
            case _:
                return None
    scale = max(left.scale, right.scale)
    match op:
        case Op.ADD | Op.SUB:
            return decimal_type(max(whole_left, whole_right) + scale + 1, scale)
        case Op.MUL:
            return decimal_type(left.precision + right.precision, left.scale + right.scale)
        case Op.DIV:
            # PostgreSQL divides numerics to some twenty digits; double precision is what all engines share.
            return NUMERIC
        case Op.MOD:
            result = decimal_type(max(whole_left, whole_right) + scale, scale)
            return result if result.kind is Kind.DECIMAL else None
        case _:
            return None


# A sum of a billion values has at most nine digits more than each of them.
_ROWS = 9


def sum_type(argument: Type) -> Type:
    """The type of SUM, as PostgreSQL has it."""
    match argument.kind:
        case Kind.INTEGER:
            return decimal_type(INT_DIGITS + _ROWS, 0) if argument.big else BIGINT
        case Kind.DECIMAL:
            digits = max(argument.precision, INT_DIGITS + argument.scale) + _ROWS
            return decimal_type(min(digits, MAX_DIGITS), argument.scale)
        case _:
            return NUMERIC if argument.numeric else DOUBLE
