"""Casts: the supported types, and the resulting digits."""

from __future__ import annotations

from sqlglot import exp

from dpsql.errors import CannotCast, NotSupported, SqlSyntaxError
from dpsql.plan.constants import NotConstant, evaluate
from dpsql.plan.scalars import Call, Case, Const, Op, Scalar
from dpsql.plan.zones import Zone, offset_digits
from dpsql.sql.functions.core import Expressions
from dpsql.sql.functions.table import UNARY, Function
from dpsql.sql.scope import Scope, position
from dpsql.sql.types import has_fixed_places, to_zone
from dpsql.types import (
    BIGINT,
    BOOLEAN,
    DATE,
    DOUBLE,
    INTERVAL,
    NUMERIC,
    TEXT,
    TIMESTAMP,
    TIMESTAMPTZ,
    UNKNOWN,
    Kind,
    Type,
)
from dpsql.types import decimal as decimal_type
from dpsql.types import integer as integer_type

_TYPES: dict[str, Type] = {
    "INT": integer_type(10),
    "SMALLINT": integer_type(5),
    "BIGINT": BIGINT,
    "DECIMAL": decimal_type(38, 0),
    "DOUBLE": DOUBLE,
    "FLOAT": DOUBLE,
    "TEXT": TEXT,
    "VARCHAR": TEXT,
    "BOOLEAN": BOOLEAN,
    "DATE": DATE,
    "TIMESTAMP": TIMESTAMP,
    "TIMESTAMPTZ": TIMESTAMPTZ,
    "INTERVAL": INTERVAL,
}

_NUMBERS = (Kind.INTEGER, Kind.DECIMAL, Kind.DOUBLE)
_TIMES = (Kind.DATE, Kind.TIMESTAMP, Kind.TIMESTAMPTZ)

_CASTS = frozenset(
    [(a, b) for a in _NUMBERS for b in _NUMBERS]
    + [(a, b) for a in _TIMES for b in _TIMES]
    + [(Kind.TEXT, Kind.TEXT), (Kind.BOOLEAN, Kind.BOOLEAN), (Kind.BOOLEAN, Kind.INTEGER)]
    + [(Kind.TEXT, kind) for kind in (*_NUMBERS, *_TIMES)]
    + [(kind, Kind.TEXT) for kind in (Kind.INTEGER, Kind.DECIMAL, *_TIMES, Kind.BOOLEAN)]
)


def _cast(read: Expressions, node: exp.Cast, scope: Scope) -> Scalar:
    target = _cast_target(node.args["to"])
    value = read.scalar(node.this, scope)
    if value.type.kind is Kind.TEXT and target.kind in (*_NUMBERS, *_TIMES):
        value = _constant_text(value)
    if value.type.kind is Kind.UNKNOWN:
        if target.kind is Kind.INTERVAL:
            raise NotSupported(
                "an interval can only be added to or subtracted from a date or timestamp", position=position(node)
            )
        value = read.coerce(value, target)
        if value.type.kind is Kind.UNKNOWN:
            return Const(None, target)
        return Call(Op.CAST, (value,), target) if node.args["to"].expressions else value
    if (value.type.kind, target.kind) not in _CASTS:
        raise CannotCast(f"cannot cast type {value.type.kind.value} to {target.kind.value}", position=position(node))
    if value.type.kind is target.kind and target.kind is not Kind.DECIMAL and value.type.numeric == target.numeric:
        return value
    if target.kind is Kind.DECIMAL and not node.args["to"].expressions:
        # numeric without precision keeps the digits
        if value.type.kind is Kind.DECIMAL:
            return value
        target = decimal_type(value.type.precision, 0) if value.type.kind is Kind.INTEGER else NUMERIC
    if target.kind is Kind.INTEGER and value.type.kind is Kind.DECIMAL:
        digits = value.type.precision - value.type.scale + 1
        target = integer_type(min(digits, target.precision), big=target.big)
    if target.kind is Kind.TIMESTAMPTZ:
        if value.type.kind is Kind.TEXT:
            return Call(Op.CAST, (value,), target, read.zone().name)
        return read.coerce(value, target)
    if value.type.kind is Kind.TIMESTAMPTZ and target.kind is Kind.TIMESTAMP:
        return to_zone(value, read.zone())
    if value.type.kind is Kind.TIMESTAMPTZ and target.kind is Kind.DATE:
        value = read.local(value)
    return as_text(read, value, node) if target is TEXT else Call(Op.CAST, (value,), target)


def _constant_text(value: Scalar) -> Scalar:
    """Text computed from constants, treated as a literal: text that cannot be converted is refused at compile time."""
    try:
        made = evaluate(value)
    except NotConstant:
        return value
    return Const(made, UNKNOWN) if isinstance(made, str) else value


def as_text(read: Expressions, value: Scalar, node: exp.Expression) -> Scalar:
    """A value as text, in PostgreSQL's format."""
    if value.type.kind is Kind.TIMESTAMPTZ:
        return _instant_as_text(value, read.zone())
    if not has_fixed_places(value):
        raise NotSupported(
            "text of numbers with different numbers of decimals is not supported",
            hint="Cast the number to numeric(p, s) first.",
            position=position(node),
        )
    return Call(Op.CAST, (value,), TEXT)


def _instant_as_text(instant: Scalar, zone: Zone) -> Scalar:
    """An instant as text: local time and offset from UTC."""
    local = to_zone(instant, zone)
    offsets = sorted({zone.leaving.first, *(seconds for _, seconds in zone.leaving.changes)})
    written: Scalar = Const(_offset_text(offsets[-1]), TEXT)
    if len(offsets) > 1:
        ahead = Call(Op.SECONDS_BETWEEN, (local, instant), DOUBLE)
        written = Case(
            tuple(
                (Call(Op.EQ, (ahead, Const(float(seconds), DOUBLE)), BOOLEAN), Const(_offset_text(seconds), TEXT))
                for seconds in offsets[:-1]
            ),
            written,
            TEXT,
        )
    return Call(Op.CONCAT, (Call(Op.CAST, (local,), TEXT), written), TEXT)


def _offset_text(seconds: int) -> str:
    return ("-" if seconds < 0 else "+") + offset_digits(seconds)


def _cast_target(to: exp.Expression) -> Type:
    kind = to.this
    name = kind.name if isinstance(kind, exp.DType) else str(kind)
    if to.args.get("nested") or name not in _TYPES:
        raise NotSupported("casts to this type are not supported", position=position(to))
    parts = [str(part.this.this) for part in to.expressions]
    if name == "DECIMAL" and parts:
        if not all(part.isdigit() for part in parts):
            raise SqlSyntaxError("the precision of numeric must be an integer")
        precision, scale = int(parts[0]), int(parts[1]) if len(parts) > 1 else 0
        if not 0 < precision <= 38:
            raise NotSupported("numeric holds between 1 and 38 digits here")
        if scale > precision:
            raise NotSupported("a scale beyond the precision of numeric is not supported")
        return decimal_type(precision, scale)
    if parts and name in ("VARCHAR", "CHAR", "TIMESTAMP", "TIMESTAMPTZ"):
        raise NotSupported(f"{name.lower()} with a length is not supported", position=position(to))
    return _TYPES[name]


def array_type(to: exp.Expression) -> Type:
    """The type of the items of an array."""
    inner = to.expressions[0] if to.args.get("nested") and len(to.expressions) == 1 else None
    if not isinstance(inner, exp.DataType):
        raise NotSupported(
            "arrays of this type are not supported", hint="Write text[] or int[].", position=position(to)
        )
    return _cast_target(inner)


def _date(read: Expressions, node: exp.Date, scope: Scope) -> Scalar:
    """DATE(x), which PostgreSQL reads as a cast."""
    value = read.local(read.moment(node.this, scope, "DATE needs a date or timestamp"))
    return Call(Op.CAST, (value,), DATE)


FUNCTIONS = (
    Function("CAST(value AS type)", "the type", "The value as another type; also value::type.",
             exp.Cast, _cast, frozenset({"this", "to", "_type"}), (Op.CAST,)),
    Function("date(moment)", "date", "The day of a moment.", exp.Date, _date, UNARY, (Op.CAST,)),
)  # fmt: skip
