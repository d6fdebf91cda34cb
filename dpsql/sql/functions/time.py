"""Dates, timestamps and intervals."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from decimal import Decimal

from sqlglot import exp

from dpsql.errors import (
    BadSetting,
    InvalidDate,
    NotSupported,
    OutOfRange,
    TypeMismatch,
    UnknownFunction,
    UnknownOperator,
)
from dpsql.plan.constants import FINE_UNITS, PIECES, evaluate, finest_unit, moment, pieces
from dpsql.plan.scalars import Call, Const, Op, Scalar
from dpsql.plan.zones import Zone, fixed_zone, zone_of_value
from dpsql.sql.functions.core import Expressions
from dpsql.sql.functions.table import BINARY, UNARY, Function
from dpsql.sql.intervals import Span, as_multiple, as_span
from dpsql.sql.scope import Scope, position
from dpsql.sql.types import coerce, constant, from_zone, to_zone
from dpsql.types import DATE, DOUBLE, INTERVAL, NUMERIC, TEXT, TIMESTAMP, TIMESTAMPTZ, Kind
from dpsql.types import decimal as decimal_type
from dpsql.types import integer as integer_type

EXTRACT_DIGITS = {
    "year": (5, 0), "quarter": (1, 0), "month": (2, 0), "day": (2, 0), "dow": (1, 0), "isodow": (1, 0),
    "doy": (3, 0), "week": (2, 0), "isoyear": (5, 0), "decade": (4, 0), "century": (3, 0), "hour": (2, 0),
    "minute": (2, 0), "second": (2, 6),
}  # fmt: skip

_ONLY_AGES = "AGE needs dates or timestamps"

TRUNC_UNITS = frozenset(("second", "minute", "hour", "day", "week", "month", "quarter", "year", "decade"))


def shifted_by_interval(read: Expressions, op: Op, node: exp.Expression, scope: Scope) -> Scalar | None:
    """date ± interval, or None where neither side is an interval; then neither side has been resolved."""
    if (moved := _moved_by_multiple(read, op, node, scope)) is not None:
        return moved
    left_interval, right_interval = as_span(node.this), as_span(node.expression)
    if left_interval is not None and right_interval is not None:
        raise NotSupported(
            "an interval can only be added to or subtracted from a date or timestamp",
            hint="Put each product and each sum of intervals in parentheses.",
            position=position(node),
        )
    if left_interval is not None:
        if op is Op.SUB:
            raise TypeMismatch("a date cannot be subtracted from an interval", position=position(node))
        return shift(read, read.moment(node.expression, scope), left_interval, 1)
    if right_interval is not None:
        return shift(read, read.moment(node.this, scope), right_interval, 1 if op is Op.ADD else -1)
    return None


def date_arithmetic(read: Expressions, op: Op, left: Scalar, right: Scalar) -> Scalar | None:
    """date ± days and the time between two moments, or None for other sides."""
    if op is Op.SUB and left.type.is_temporal and right.type.kind is Kind.UNKNOWN:
        right = read.coerce(right, left.type)
    match left.type.kind, right.type.kind:
        case (Kind.DATE, Kind.DATE) if op is Op.SUB:
            return Call(Op.DAYS_BETWEEN, (left, right), integer_type(8))
        case _ if op is Op.SUB and left.type.is_temporal and right.type.is_temporal:
            zoned = Kind.TIMESTAMPTZ in (left.type.kind, right.type.kind)
            moments = [read.coerce(part, TIMESTAMPTZ if zoned else TIMESTAMP) for part in (left, right)]
            return Call(Op.SECONDS_BETWEEN, tuple(moments), INTERVAL)
        case Kind.DATE, Kind.INTEGER:
            days = right if op is Op.ADD else Call(Op.NEG, (right,), right.type)
            return Call(Op.ADD_DAYS, (left, days), DATE)
        case (Kind.INTEGER, Kind.DATE) if op is Op.ADD:
            return Call(Op.ADD_DAYS, (right, left), DATE)
        case _:
            return None


def _moved_by_multiple(read: Expressions, op: Op, node: exp.Expression, scope: Scope) -> Scalar | None:
    """date ± interval * number, for a number that is not constant."""
    for side, other in ((node.expression, node.this), (node.this, node.expression)):
        found = as_multiple(side)
        if found is None or as_span(side) is not None or (op is Op.SUB and side is node.this):
            continue
        span, factor = found
        if span.months:
            raise NotSupported(
                "a variable number of months is not supported",
                hint="Multiply an interval of days, hours, minutes or seconds.",
                position=position(node),
            )
        moment = read.moment(other, scope)
        if moment.type.kind is Kind.TIMESTAMPTZ and span.days and not read.zone().is_utc:
            raise NotSupported(
                "a variable number of days is not supported for a timestamp with a time zone",
                hint="Multiply an interval of hours, minutes or seconds.",
                position=position(node),
            )
        moment = moment if moment.type.is_moment else coerce(moment, TIMESTAMP)
        number = coerce(read.number(factor, scope), DOUBLE)
        if (start := start_of_bin(moment, span, number)) is not None and op is Op.ADD:
            return start
        seconds = float(span.days * 86400 + span.seconds) * (1 if op is Op.ADD else -1)
        return Call(Op.ADD_SECONDS, (moment, Call(Op.MUL, (number, Const(seconds, DOUBLE)), DOUBLE)), moment.type)
    return None


def shift(read: Expressions, moment: Scalar, by: Span, sign: int) -> Scalar:
    """date or timestamp ± interval is a timestamp. Months and days of an instant count in the session's time zone."""
    result = moment if moment.type.is_moment else coerce(moment, TIMESTAMP)
    if result.type.kind is Kind.TIMESTAMPTZ and (by.months or by.days) and not (zone := read.zone()).is_utc:
        for part in (Span(by.months, 0, Decimal(0)), Span(0, by.days, Decimal(0))):
            if part.months or part.days:
                result = from_zone(shift(read, to_zone(result, zone), part, sign), zone)
        return shift(read, result, Span(0, 0, by.seconds), sign)
    if by.months:
        result = Call(Op.ADD_MONTHS, (result, constant(sign * by.months)), result.type)
    seconds = by.days * 86400 + by.seconds
    if seconds:
        result = Call(Op.ADD_SECONDS, (result, constant(sign * seconds)), result.type)
    return result


def _interval(_: Expressions, node: exp.Interval, __: Scope) -> Scalar:
    """A constant interval, for comparisons: a month counts as thirty days, as in PostgreSQL."""
    found = as_span(node)
    assert found is not None
    return Const(float((found.months * 30 + found.days) * 86400 + found.seconds), INTERVAL)


def _extract(read: Expressions, node: exp.Extract, scope: Scope) -> Scalar:
    part = str(node.this.this).lower() if isinstance(node.this, exp.Var) else ""
    if (months := _months_of_age(read, node.expression, scope)) is not None:
        return _part_of_age(part, months, node)
    value = read.scalar(node.expression, scope)
    if value.type.kind is Kind.UNKNOWN:
        raise UnknownOperator("EXTRACT needs a date or timestamp", position=position(node))
    if value.type.kind is Kind.INTERVAL and isinstance(value, Call):
        if part == "epoch":
            return Call(Op.SECONDS_BETWEEN, value.args, NUMERIC)
        if part in _SECONDS:
            return _part_of_interval(part, Call(Op.SECONDS_BETWEEN, value.args, DOUBLE))
        raise NotSupported(f"EXTRACT({part}) of an interval is not supported", position=position(node))
    if not value.type.is_temporal:
        raise UnknownOperator("EXTRACT needs a date or timestamp", position=position(node))
    if part == "epoch":
        return Call(Op.EXTRACT, (value,), NUMERIC, "epoch")
    if value.type.kind is Kind.TIMESTAMPTZ:
        value = read.local(value)
    if part not in EXTRACT_DIGITS:
        raise NotSupported(f"EXTRACT({part}) is not supported", position=position(node))
    if value.type.kind is Kind.DATE and part in ("hour", "minute", "second"):
        raise NotSupported(f'unit "{part}" not supported for type date', position=position(node))
    digits, scale = EXTRACT_DIGITS[part]
    return Call(Op.EXTRACT, (value,), decimal_type(digits + scale, scale), part)


# The parts of an interval between two moments, in seconds; hours count up to a day, minutes up to an hour.
_SECONDS = {"day": 86400.0, "hour": 3600.0, "minute": 60.0}
_AROUND = {"hour": 24, "minute": 60}


def _part_of_interval(part: str, seconds: Scalar) -> Scalar:
    """Whole days, hours or minutes, toward zero, without those of larger parts."""
    quotient = Call(Op.DIV, (seconds, Const(_SECONDS[part], DOUBLE)), DOUBLE)
    whole = Call(Op.CAST, (Call(Op.TRUNC, (quotient,), DOUBLE),), decimal_type(12, 0))
    around = _AROUND.get(part)
    return whole if around is None else Call(Op.MOD, (whole, constant(Decimal(around))), whole.type)


def _months_of_age(read: Expressions, node: exp.Expression, scope: Scope) -> Scalar | None:
    """The whole months of AGE(a, b), negative where a comes before b; None for any other expression."""
    while isinstance(node, exp.Paren):
        node = node.this
    if not isinstance(node, exp.Anonymous) or read.function_name(node) != "age":
        return None
    moments = [read.local(read.moment(part, scope, _ONLY_AGES)) for part in node.expressions]
    if len(moments) == 1:
        moments.insert(0, coerce(_today(read, node, scope), TIMESTAMP))
    return Call(Op.MONTHS_BETWEEN, tuple(moments), integer_type(6))


def _part_of_age(part: str, months: Scalar, node: exp.Expression) -> Scalar:
    if part not in ("year", "years", "month", "months"):
        raise NotSupported(
            f"EXTRACT({part}) of an age is not supported",
            hint="Use the year or the month.",
            position=position(node),
        )
    op = Op.DIV if part.startswith("year") else Op.MOD
    return Call(Op.CAST, (Call(op, (months, constant(12)), integer_type(6)),), decimal_type(5, 0))


def _age(_: Expressions, node: exp.Anonymous, __: Scope) -> Scalar:
    raise NotSupported(
        "AGE is only supported inside EXTRACT", hint="Write EXTRACT(YEAR FROM AGE(a, b)).", position=position(node)
    )


def _now(read: Expressions, node: exp.Expression, _: Scope) -> Scalar:
    """The moment of the statement."""
    if read.clock is None:
        raise NotSupported("the current time cannot be used here", hint="Write a constant.", position=position(node))
    return Const(read.clock.read(), TIMESTAMPTZ)


def _today(read: Expressions, node: exp.Expression, scope: Scope) -> Scalar:
    return Call(Op.CAST, (_local_now(read, node, scope),), DATE)


def _local_now(read: Expressions, node: exp.Expression, scope: Scope) -> Scalar:
    return to_zone(_now(read, node, scope), read.zone())


def _at_time_zone(read: Expressions, node: exp.AtTimeZone, scope: Scope) -> Scalar:
    return _in_zone(read, read.scalar(node.this, scope), _zone(read, node.args["zone"], scope), node)


def _timezone(read: Expressions, node: exp.Anonymous, scope: Scope) -> Scalar:
    """timezone(zone, x), PostgreSQL's function for AT TIME ZONE."""
    zone, value = node.expressions
    return _in_zone(read, read.scalar(value, scope), _zone(read, zone, scope), node)


def _in_zone(read: Expressions, value: Scalar, zone: Zone, node: exp.Expression) -> Scalar:
    """The local time of an instant, or the instant of a local time. A date begins in the session's time zone."""
    if value.type.kind is Kind.UNKNOWN or value.type.kind is Kind.DATE:
        value = read.coerce(value, TIMESTAMPTZ)
    match value.type.kind:
        case Kind.TIMESTAMP:
            return from_zone(value, zone)
        case Kind.TIMESTAMPTZ:
            return to_zone(value, zone)
        case _:
            raise UnknownOperator("AT TIME ZONE needs a timestamp", position=position(node))


def _zone(read: Expressions, node: exp.Expression, scope: Scope) -> Zone:
    """The zone that AT TIME ZONE names: its rules are written into the query, so it must be a constant."""
    if (span := as_span(node)) is not None:
        if span.months or span.days:
            raise BadSetting("interval time zone must not include months or days", position=position(node))
        if span.seconds != int(span.seconds) or abs(span.seconds) >= 86400 * 7:
            raise BadSetting("interval time zone is out of range", position=position(node))
        return fixed_zone(int(span.seconds))
    name = read.constant_text(node, scope, "a time zone")
    found = zone_of_value(name)
    if found is None:
        raise BadSetting(
            f'time zone "{name}" not recognized',
            hint="Write a name of the IANA database, as in 'Europe/Berlin', or an abbreviation of a fixed offset.",
            position=position(node),
        )
    return found


def _make_date(read: Expressions, node: exp.Anonymous, scope: Scope) -> Scalar:
    parts = [read.number(part, scope) for part in node.expressions]
    if any(part.type.kind is not Kind.INTEGER for part in parts):
        kinds = ", ".join(part.type.kind.value for part in parts)
        raise UnknownFunction(f"make_date({kinds})", position=position(node))
    return Call(Op.MAKE_DATE, tuple(parts), DATE)


def _date_bin(read: Expressions, node: exp.DateBin, scope: Scope) -> Scalar:
    """DATE_BIN(stride, x, origin): both of them constant."""
    stride = node.this
    if isinstance(stride, exp.Literal) and stride.is_string:
        stride = exp.Interval(this=stride)
    span = as_span(stride)
    if span is None:
        raise NotSupported("the stride of DATE_BIN must be a constant interval", position=position(node))
    if span.months:
        raise NotSupported("timestamps cannot be binned into intervals containing months or years")
    seconds = span.days * 86400 + span.seconds
    if seconds <= 0:
        raise OutOfRange("stride must be greater than zero", position=position(node))
    if isinstance(node.args["unit"], exp.Var):  # a column that sqlglot reads as a unit
        raise NotSupported("the origin of DATE_BIN must be a constant", position=position(node))
    given = [read.scalar(part, scope) for part in (node.expression, node.args["unit"])]
    if not all(part.type.is_temporal or part.type.kind is Kind.UNKNOWN for part in given):
        raise UnknownOperator("DATE_BIN needs a date or timestamp", position=position(node))
    kinds = {part.type.kind for part in given}
    # Of its two overloads, PostgreSQL prefers timestamptz, unless only the other one matches a type exactly.
    type_ = TIMESTAMP if Kind.TIMESTAMP in kinds and Kind.TIMESTAMPTZ not in kinds else TIMESTAMPTZ
    value, origin = (read.coerce(part, type_) for part in given)
    if not isinstance(origin, Const) or origin.value is None:
        raise NotSupported("the origin of DATE_BIN must be a constant", position=position(node))
    return Call(Op.DATE_BIN, (value, constant(seconds), origin), type_)


def start_of_bin(moment: Scalar, span: Span, number: Scalar) -> Scalar | None:
    """A bin as tools write it: date_trunc('hour', x) + interval '5 minutes' * floor(extract(minute FROM x) / 5).

    Equal to DATE_BIN if an hour is a whole number of bins; then its keys are known.
    """
    within = {"hour": ("minute", 60), "minute": ("second", 60), "day": ("hour", 24)}
    if not (isinstance(moment, Call) and moment.op is Op.DATE_TRUNC and moment.option in within):
        return None
    part, parts = within[moment.option]
    match _without_casts(number):
        case Call(op=Op.FLOOR, args=(inner,)):
            quotient = _without_casts(inner)
        case _:
            return None
    match quotient:
        case Call(op=Op.DIV, args=(dividend, Const(value=size))):
            extracted = _without_casts(dividend)
        case _:
            return None
    if not isinstance(size, int | float | Decimal) or isinstance(size, bool) or size <= 0 or parts % size:
        return None
    match extracted:
        case Call(op=Op.EXTRACT, args=(subject,), option=option) if option == part:
            same = (subject if subject.type.is_moment else coerce(subject, TIMESTAMP)) == moment.args[0]
        case _:
            return None
    unit = {"minute": 60, "second": 1, "hour": 3600}[part]
    width = span.days * 86400 + span.seconds
    if not same or width != unit * Decimal(str(size)):
        return None
    origin = Const(datetime(2000, 1, 1), moment.type)
    return Call(Op.DATE_BIN, (moment.args[0], constant(width), origin), moment.type)


def _without_casts(node: Scalar) -> Scalar:
    while isinstance(node, Call) and node.op is Op.CAST and node.args[0].type.is_numeric:
        node = node.args[0]
    return node


def _to_char(read: Expressions, node: exp.TimeToStr, scope: Scope) -> Scalar:
    """TO_CHAR of a date or timestamp, in a format whose fields all engines write the same way."""
    value = read.local(read.moment(node.this, scope, "TO_CHAR needs a date or timestamp"))
    format_ = read.last_literal(node)
    if format_ is None or pieces(format_) is None:
        raise NotSupported(
            "this format of TO_CHAR is not supported",
            hint=f"A constant of {', '.join(PIECES)}, separators like - / :, digits and letters in double quotes is.",
            position=position(node),
        )
    whole = Call(Op.DATE_TRUNC, (value,), value.type, finest_unit(format_))
    return Call(Op.TO_CHAR, (whole,), TEXT, format_)


def _read_moment(read: Expressions, node: exp.StrToTime, scope: Scope) -> Scalar:
    """TO_TIMESTAMP of a constant in a constant format, as tools write the ends of a range."""
    written = read.constant_text(node.this, scope, "what TO_TIMESTAMP and TO_DATE read")
    format_ = read.last_literal(node)
    try:
        found = moment(written, format_ or "")
    except KeyError:
        raise NotSupported(
            "this format of TO_TIMESTAMP is not supported",
            hint="A constant of YYYY, MM, DD, HH24, MI, SS, MS, US and separators like - / : is, each once.",
            position=position(node),
        ) from None
    if found is None:
        raise InvalidDate(
            f'"{written}" does not match the format "{format_}"',
            hint="Write every field with all its digits.",
            position=position(node),
        )
    return Const(found, TIMESTAMP)


def _read_instant(read: Expressions, node: exp.StrToTime, scope: Scope) -> Scalar:
    return read.coerce(_read_moment(read, node, scope), TIMESTAMPTZ)


def _read_date(read: Expressions, node: exp.StrToTime, scope: Scope) -> Scalar:
    return Const(evaluate(Call(Op.CAST, (_read_moment(read, node, scope),), DATE)), DATE)


def _of_epoch(read: Expressions, node: exp.UnixToTime, scope: Scope) -> Scalar:
    """TO_TIMESTAMP of a number: seconds since 1970."""
    seconds = coerce(read.number(node.this, scope), DOUBLE)
    value = Call(Op.ADD_SECONDS, (Const(datetime(1970, 1, 1), TIMESTAMPTZ), seconds), TIMESTAMPTZ)
    return Const(evaluate(value), TIMESTAMPTZ) if isinstance(seconds, Const) else value


def _date_trunc(read: Expressions, node: exp.Expression, scope: Scope) -> Scalar:
    given = node.args["unit"]
    end = node.meta.get("end")
    bare = isinstance(end, int) and not read.source[end + 1 :].lstrip().removeprefix("(").lstrip().startswith("'")
    if bare or not isinstance(given, exp.Var | exp.Literal):
        raise NotSupported("date_trunc needs a constant unit", position=position(node))
    unit = str(given.this).lower()
    if unit not in TRUNC_UNITS:
        units = ", ".join(sorted(TRUNC_UNITS))
        raise NotSupported(f"date_trunc('{unit}') is not supported", hint=f"Supported units: {units}.")
    zone = node.args.get("zone")
    if zone is not None:
        value = read.coerce(read.scalar(node.this, scope), TIMESTAMPTZ)
        return _truncated(value, unit, _zone(read, zone, scope))
    value = read.scalar(node.this, scope)
    if value.type.kind is Kind.UNKNOWN:
        value = read.coerce(value, TIMESTAMPTZ)
    match value.type.kind:
        case Kind.TIMESTAMPTZ:
            return _truncated(value, unit, read.zone())
        case Kind.DATE:
            # An instant in PostgreSQL: midnight in the session's zone, or the first moment after a change that skips
            # it.
            zone = read.zone()
            if unit in FINE_UNITS or zone.skips_days:
                return _truncated(read.coerce(value, TIMESTAMPTZ), unit, zone)
            start = Call(Op.DATE_TRUNC, (coerce(value, TIMESTAMP),), TIMESTAMP, unit)
            return replace(start, type=TIMESTAMPTZ) if zone.is_utc else from_zone(start, zone)
        case Kind.TIMESTAMP:
            return Call(Op.DATE_TRUNC, (value,), TIMESTAMP, unit)
        case _:
            raise UnknownOperator("date_trunc needs a date or timestamp", position=position(node))


def _truncated(instant: Scalar, unit: str, zone: Zone) -> Scalar:
    """The start of the unit that holds an instant, in the local time of a zone."""
    if zone.is_utc:
        return Call(Op.DATE_TRUNC, (instant,), TIMESTAMPTZ, unit)
    if unit in FINE_UNITS:
        return Call(Op.ZONED_TRUNC, (instant,), TIMESTAMPTZ, f"{unit} {zone.name}")
    return from_zone(Call(Op.DATE_TRUNC, (to_zone(instant, zone),), TIMESTAMP, unit), zone)


FUNCTIONS = (
    Function("CURRENT_DATE", "date", "The day of the statement.", exp.CurrentDate, _today, frozenset()),
    Function("now()", "timestamp with time zone", "The moment of the statement; also CURRENT_TIMESTAMP.",
             exp.CurrentTimestamp, _now, frozenset()),
    Function("LOCALTIMESTAMP", "timestamp", "The moment of the statement in the session's time zone.",
             exp.Localtimestamp, _local_now, frozenset()),
    Function("moment AT TIME ZONE zone", "timestamp, with or without time zone",
             "The local time of an instant in a zone, or the instant of a local time.",
             exp.AtTimeZone, _at_time_zone, frozenset({"this", "zone"}), (Op.TO_ZONE, Op.FROM_ZONE)),
    Function("timezone(zone, moment)", "timestamp, with or without time zone", "As AT TIME ZONE.",
             rule=_timezone, computes=(Op.TO_ZONE, Op.FROM_ZONE)),
    Function("INTERVAL 'text'", "interval", "A length of time, added to moments or compared.",
             exp.Interval, _interval, frozenset({"this", "unit"})),
    Function("extract(field FROM moment)", "numeric", "A part of a date, a moment or an interval.",
             exp.Extract, _extract, BINARY, (Op.EXTRACT,)),
    Function("date_part(field, moment)", "double precision", "As extract.",
             exp.Extract, _extract, BINARY, (Op.EXTRACT,)),
    Function("date_trunc(unit, moment [, zone])", "timestamp, with or without time zone",
             "The start of a constant unit.", exp.TimestampTrunc, _date_trunc, frozenset({"this", "unit", "zone"}),
             (Op.DATE_TRUNC, Op.ZONED_TRUNC)),
    Function("date_bin(stride, moment, origin)", "timestamp, with or without time zone",
             "The start of the bin of a moment; bins have a constant length and a constant origin.",
             exp.DateBin, _date_bin, frozenset({"this", "expression", "unit"}), (Op.DATE_BIN,)),
    Function("age(later [, earlier])", "interval", "Years, months and days between moments, for EXTRACT.",
             rule=_age, computes=(Op.MONTHS_BETWEEN,)),
    Function("make_date(year, month, day)", "date", "A date from year, month and day; NULL if it does not exist.",
             rule=_make_date, computes=(Op.MAKE_DATE,)),
    Function("to_char(moment, format)", "text", "A moment as text in a constant format.",
             exp.TimeToStr, _to_char, frozenset({"this", "format"}), (Op.TO_CHAR,)),
    Function("to_date(text, format)", "date", "A constant text as a date.",
             exp.StrToDate, _read_date, frozenset({"this", "format"})),
    Function("to_timestamp(text, format)", "timestamp with time zone", "A constant text as a moment.",
             exp.StrToTime, _read_instant, frozenset({"this", "format"})),
    Function("to_timestamp(seconds)", "timestamp with time zone", "The moment a number of seconds after 1970.",
             exp.UnixToTime, _of_epoch, UNARY, (Op.ADD_SECONDS,)),
    Function("generate_series(first, last [, step])", "as its ends",
             "In FROM: the values between two constants, one per row."),
)  # fmt: skip
