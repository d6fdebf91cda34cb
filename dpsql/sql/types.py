"""Typing rules: which types can be combined, and the result, as in PostgreSQL."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, time
from decimal import Decimal, InvalidOperation

from dpsql.errors import (
    BadSetting,
    DateOutOfRange,
    InternalError,
    InvalidDate,
    InvalidText,
    NotSupported,
    OutOfRange,
    TypeMismatch,
)
from dpsql.plan import moments
from dpsql.plan.constants import evaluate
from dpsql.plan.scalars import Call, Const, Op, Scalar, children
from dpsql.plan.zones import Zone
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
    TIMESTAMPTZ,
    UNKNOWN,
    Kind,
    Type,
    Value,
)
from dpsql.types import decimal as decimal_type
from dpsql.types import integer as integer_type


def constant(value: Value) -> Const:
    """A constant with the type PostgreSQL gives such a literal; the type of a string depends on its context."""
    match value:
        case bool():
            return Const(value, BOOLEAN)
        case int():
            return integer_constant(value)
        case Decimal():
            return decimal_constant(value)
        case float():
            return Const(value, DOUBLE)
        case datetime() if value.tzinfo is not None:
            return Const(value.astimezone(UTC).replace(tzinfo=None), TIMESTAMPTZ)
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
        # A quoted literal takes the type of the others, and may have more digits.
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
        return (
            left
            if left.kind is right.kind
            else TIMESTAMPTZ
            if Kind.TIMESTAMPTZ in (left.kind, right.kind)
            else TIMESTAMP
        )
    if left.kind is right.kind:
        return left
    raise TypeMismatch(f"{what} types {left.kind.value} and {right.kind.value} cannot be matched")


def _no_zone() -> Zone:
    raise InternalError("a time zone is needed where there is none")


Now = Callable[[], datetime]  # local time of the session when the statement was sent


def coerce(value: Scalar, target: Type, zone: Callable[[], Zone] = _no_zone, now: Now | None = None) -> Scalar:
    """`value` as `target`, where PostgreSQL would convert it implicitly."""
    if value.type.kind is Kind.UNKNOWN:
        if isinstance(value, Const):
            if target.kind is Kind.TIMESTAMPTZ:
                return Const(None if value.value is None else read_instant(str(value.value), zone, now), target)
            return Const(
                read_literal(value.value, target, now), target if value.value is None else _read_type(value, target)
            )
        raise TypeMismatch(f"cannot convert an expression of unknown type to {target.kind.value}")
    if value.type.kind is target.kind:
        return value
    if isinstance(value, Const) and value.type.is_numeric and target.kind is Kind.DOUBLE:
        return Const(None if value.value is None else float(str(value.value)), target)
    if isinstance(value, Const) and type(value.value) is date and target.kind is Kind.TIMESTAMP:
        return Const(datetime.combine(value.value, time()), TIMESTAMP)
    if value.type.is_temporal and target.kind is Kind.TIMESTAMPTZ:
        return from_zone(coerce(value, TIMESTAMP), zone())
    if isinstance(value, Const) and value.type.kind is Kind.INTEGER and target.kind is Kind.DECIMAL:
        return Const(None if value.value is None else Decimal(str(value.value)), decimal_type(value.type.precision, 0))
    if (value.type.is_numeric and target.is_numeric) or (
        value.type.kind is Kind.DATE and target.kind is Kind.TIMESTAMP
    ):
        return Call(Op.CAST, (value,), _cast_type(value.type, target))
    raise TypeMismatch(f"expected {target.kind.value}, found {value.type.kind.value}")


_ROUNDED = frozenset({Op.CAST, Op.ROUND, Op.TRUNC, Op.FLOOR, Op.CEIL, Op.SIGN})  # to a scale that the operation sets


def has_fixed_places(value: Scalar) -> bool:
    """Whether a decimal has the scale of its type, so that its text is PostgreSQL's.

    In PostgreSQL each value keeps its own scale: COALESCE(10, 0.5) is 10, where an engine with one type for both gives
    10.0.
    """
    if value.type.kind is not Kind.DECIMAL or (isinstance(value, Call) and value.op in _ROUNDED):
        return True
    return not value.type.mixed and all(map(has_fixed_places, children(value)))


def _cast_type(source: Type, target: Type) -> Type:
    if source.kind is Kind.INTEGER and target.kind is Kind.DECIMAL:
        return decimal_type(source.precision, 0)
    return target


def _read_type(value: Const, target: Type) -> Type:
    """A literal read as a number keeps its own digits, not those of its context."""
    if target.is_temporal:
        return target
    read = read_literal(value.value, target)
    if isinstance(read, bool) or not isinstance(read, int | Decimal):
        return target
    return constant(read).type


def read_literal(value: Value, target: Type, now: Now | None = None) -> Value:
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
                whole = _whole(text)
                if not -(2**63) <= whole < 2**63:
                    raise OutOfRange(f'value "{value}" is out of range for type bigint')
                return whole
            case Kind.DECIMAL:
                number = Decimal(_whole(text) if _BASED.fullmatch(text) else text)
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
                return _moment(value, target, now).day
            case Kind.TIMESTAMP:
                # PostgreSQL parses a time zone here, but ignores it.
                return _local(_moment(value, target, now), value)
            case Kind.TIMESTAMPTZ | Kind.INTERVAL | Kind.ARRAY:
                raise ValueError  # an instant needs a zone
    except (ValueError, KeyError, InvalidOperation):
        raise InvalidText(f'invalid input syntax for type {target.kind.value}: "{value}"') from None


def _whole(text: str) -> int:
    """An integer as PostgreSQL 16 reads it, including a base prefix and underscores between digits."""
    if len(text) > 100:
        raise OutOfRange("a number is out of range")
    return int(text, 0) if _BASED.fullmatch(text) else int(text)


def to_zone(instant: Scalar, zone: Zone) -> Scalar:
    """The local time of an instant in a zone."""
    return _moved(Call(Op.CAST if zone.is_utc else Op.TO_ZONE, (instant,), TIMESTAMP, "" if zone.is_utc else zone.name))


def from_zone(local: Scalar, zone: Zone) -> Scalar:
    """The instant of a local time in a zone."""
    return _moved(
        Call(Op.CAST if zone.is_utc else Op.FROM_ZONE, (local,), TIMESTAMPTZ, "" if zone.is_utc else zone.name)
    )


def _moved(call: Call) -> Scalar:
    if not isinstance(call.args[0], Const):
        return call
    moved = evaluate(call)
    if moved is None and call.args[0].value is not None:
        raise OutOfRange("timestamp out of range")
    return Const(moved, call.type)


def read_instant(value: str, zone: Callable[[], Zone], now: Now | None = None) -> datetime:
    """A quoted literal read as an instant: in the zone that it names, or that of the session."""
    read = _moment(value, TIMESTAMPTZ, now)
    instant = (zone() if read.zone is None else read.zone).to_utc(_local(read, value))
    if instant is None:
        raise OutOfRange(f'timestamp out of range: "{value}"')
    return instant


def _local(read: moments.Moment, value: str) -> datetime:
    try:
        return read.at
    except OverflowError:
        raise OutOfRange(f'timestamp out of range: "{value}"') from None


def _moment(value: str, target: Type, now: Now | None) -> moments.Moment:
    """A date or timestamp as PostgreSQL reads it, or its refusal."""
    kind = target.kind.value
    try:
        return moments.read_moment(value, now)
    except moments.Unreadable as error:
        match error.why:
            case moments.FIELD:
                raise DateOutOfRange(
                    f'date/time field value out of range: "{value}"',
                    hint="The month comes before the day, as in 12/31/2024.",
                ) from None
            case moments.DISTANCE:
                raise OutOfRange(f'time zone displacement out of range: "{value}"') from None
            case moments.ZONE:
                raise BadSetting(f'time zone "{error.word}" not recognized') from None
            case moments.CLOCK:
                raise NotSupported(f'there is no clock for "{error.word}" here', hint="Write a constant.") from None
            case moments.INFINITE:
                raise NotSupported(
                    f"infinite values of type {kind} are not supported", hint="Leave out this end of the range."
                ) from None
            case moments.CALENDAR:
                raise NotSupported(
                    f'a {kind} outside the years 1 to 9999 is not supported: "{value}"',
                    hint="Leave out this end of the range.",
                ) from None
            case _:
                raise InvalidDate(
                    f'invalid input syntax for type {kind}: "{value}"', hint="Write it as 2024-12-31."
                ) from None


# Python accepts more spellings than PostgreSQL.
_BASE = r"[+-]?0([xX](_?[0-9a-fA-F])+|[oO](_?[0-7])+|[bB](_?[01])+)"
_BASED = re.compile(_BASE, re.ASCII)
_DIGITS = r"\d(_?\d)*"
_SHAPES = {
    kind: re.compile(shape, re.ASCII)
    for kind, shape in {
        Kind.INTEGER: rf"{_BASE}|[+-]?{_DIGITS}",
        Kind.DECIMAL: rf"{_BASE}|[+-]?({_DIGITS}\.?({_DIGITS})?|\.{_DIGITS})([eE][+-]?\d{{1,3}})?",
        Kind.DOUBLE: r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?",
    }.items()
}

_BOOLEANS = {"true": True, "t": True, "yes": True, "on": True, "1": True} | {
    "false": False, "f": False, "no": False, "off": False, "0": False
}  # fmt: skip


def arithmetic_type(op: Op, left: Type, right: Type) -> Type | None:
    """The result of a numeric operator, or None if there is no such operator for these types."""
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
            # PostgreSQL divides numerics to some twenty digits; all engines share only double precision.
            return NUMERIC
        case Op.MOD:
            result = decimal_type(max(whole_left, whole_right) + scale, scale)
            return result if result.kind is Kind.DECIMAL else None
        case _:
            return None


# A sum of a billion values has at most nine digits more than each of them.
_ROWS = 9


def sum_type(argument: Type) -> Type:
    """The type of SUM, as in PostgreSQL."""
    match argument.kind:
        case Kind.INTEGER:
            return decimal_type(INT_DIGITS + _ROWS, 0) if argument.big else BIGINT
        case Kind.DECIMAL:
            digits = max(argument.precision, INT_DIGITS + argument.scale) + _ROWS
            return decimal_type(min(digits, MAX_DIGITS), argument.scale)
        case _:
            return NUMERIC if argument.numeric else DOUBLE
