"""Values of expressions over constants, and the formats of dates.

Values are computed in Python, exactly as the engines compute them.

They decide two things without data: whether a predicate is constant, and which keys a GROUP BY expression can have. An
expression that is not evaluated here has an unknown value; nothing is guessed.
"""

from __future__ import annotations

import math
import re
from calendar import monthrange
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation, localcontext
from fractions import Fraction
from typing import TypeVar

from dpsql.effort import spend
from dpsql.plan.scalars import Call, Case, Const, Op, Ref, Scalar
from dpsql.plan.zones import known_zone, second_of
from dpsql.types import Kind, Type, Value

T = TypeVar("T")


class NotConstant(Exception):
    """The value is not known without data, or cannot be computed in Python."""


LONGEST_TEXT = 1_000  # characters of a computed text

# Wide enough for every decimal of an engine; Python's own default would round after 28 digits.
_DIGITS = Context(prec=100)


def evaluate(node: Scalar, env: Mapping[int, Value] | None = None) -> Value:
    """The value of an expression, given those of the fields it reads."""
    with localcontext(_DIGITS):
        return _evaluate(node, env)


def evaluate_rows(node: Scalar, rows: Iterable[Mapping[int, Value]]) -> list[Value]:
    """The value of an expression for each of many rows, given those of the fields it reads."""
    with localcontext(_DIGITS):
        return [_evaluate(node, row) for row in rows]


def _evaluate(node: Scalar, env: Mapping[int, Value] | None) -> Value:
    spend()
    match node:
        case Const(value=value):
            return value
        case Ref(field=field) if env is not None and field.id in env:
            return env[field.id]
        case Case(branches=branches, default=default):
            for when, then in branches:
                if _evaluate(when, env) is True:
                    return _evaluate(then, env)
            return _evaluate(default, env)
        case Call(op=Op.CAST, args=(inner,)):
            return cast(_evaluate(inner, env), inner.type, node.type)
        case Call(args=args):
            return apply(node, [_evaluate(arg, env) for arg in args])
        case _:
            raise NotConstant


def apply(node: Call, values: list[Value]) -> Value:
    """Apply one operation to known values."""
    op = node.op
    match op:
        case Op.AND:
            return _kleene(values, stop=False)
        case Op.OR:
            return _kleene(values, stop=True)
        case Op.IS_NULL:
            return values[0] is None
        case Op.IS_TRUE:
            return values[0] is True
        case Op.IS_FALSE:
            return values[0] is False
        case Op.DISTINCT_FROM:
            return values[0] != values[1]
        case Op.COALESCE:
            return next((value for value in values if value is not None), None)
        case Op.NULLIF:
            return None if values[0] == values[1] else values[0]
        case Op.LEAST | Op.GREATEST:
            known = [value for value in values if value is not None]
            pick: Callable[..., Value] = min if op is Op.LEAST else max
            return pick(known) if known else None
        case Op.IN:
            if values[0] is None:
                return None
            if values[0] in [value for value in values[1:] if value is not None]:
                return True
            return None if None in values[1:] else False
        case _:
            pass
    if any(value is None for value in values):
        return None
    rule = _RULES.get(op)
    if rule is None:
        raise NotConstant
    try:
        value = rule(node, *values)
    except (ArithmeticError, ValueError, TypeError) as error:
        raise NotConstant from error
    if not _is_held(value):
        raise NotConstant
    return value


def _is_held(value: Value) -> bool:
    """Whether engines can hold a value, and its size is within the limits here.

    Without a limit, `a * a` or `a || a` in each of n nested subqueries would have 2^n digits.
    """
    match value:
        case int():
            return -(2**63) <= value < 2**63
        case float():
            return math.isfinite(value)
        case str():
            return len(value) <= LONGEST_TEXT
        case _:
            return True


def cast(value: Value, source: Type, target: Type) -> Value:
    try:
        converted = _converted(value, source, target)
    except InvalidOperation:
        raise NotConstant from None
    if target.kind is Kind.INTEGER and source.kind is not Kind.INTEGER and isinstance(converted, int):
        bits = 16 if target.precision <= 5 else 32 if target.precision <= 10 else 64
        exact = source.kind is Kind.DECIMAL and source.precision - source.scale < target.precision
        return converted if exact or -(2 ** (bits - 1)) <= converted < 2 ** (bits - 1) else None
    return converted


def _converted(value: Value, source: Type, target: Type) -> Value:
    """A cast. Casts between timestamps, and from them to dates, are in UTC: other zones need TO_ZONE first."""
    if value is None:
        return None
    if source.kind is target.kind and target.kind is not Kind.DECIMAL:
        return value
    match target.kind, value:
        case Kind.DOUBLE, int() | Decimal():
            return float(value)
        case Kind.DECIMAL, int() | Decimal():
            return Decimal(value).quantize(Decimal(1).scaleb(-target.scale), ROUND_HALF_UP)
        case Kind.INTEGER, bool():
            return int(value)
        case Kind.INTEGER, Decimal():
            return int(value.quantize(Decimal(1), ROUND_HALF_UP))
        case Kind.INTEGER, float() if math.isfinite(value):
            return _half_away(value) if source.numeric else round(value)
        case Kind.TEXT, int() if not isinstance(value, bool):
            return str(value)
        case Kind.TEXT, Decimal() if source.kind is Kind.DECIMAL:
            return format(value.quantize(Decimal(1).scaleb(-source.scale)) + 0, "f")  # + 0: zero has no sign
        case Kind.TEXT, datetime() if source.kind is Kind.TIMESTAMP:
            return (
                value.isoformat(sep=" ", timespec="auto").rstrip("0") if value.microsecond else value.isoformat(sep=" ")
            )
        case Kind.TEXT, date() if source.kind is Kind.DATE:
            return value.isoformat()
        case Kind.TIMESTAMP | Kind.TIMESTAMPTZ, datetime():
            return value
        case Kind.TIMESTAMP | Kind.TIMESTAMPTZ, date():
            return datetime.combine(value, time())
        case Kind.DATE, datetime():
            return value.date()
        case _:
            raise NotConstant


def _half_away(value: float) -> int:
    return int(math.copysign(math.floor(abs(value) + 0.5), value))


def _kleene(values: list[Value], *, stop: bool) -> Value:
    if stop in values:
        return stop
    return None if None in values else not stop


def _divide(node: Call, left: Value, right: Value) -> Value:
    if right == 0:
        return None
    if node.type.kind is Kind.INTEGER:
        quotient = abs(int(left)) // abs(int(right))  # type: ignore[arg-type]
        return quotient if (left < 0) == (right < 0) else -quotient  # type: ignore[operator]
    return float(Fraction(left) / Fraction(right))  # type: ignore[arg-type]


def _modulo(_: Call, left: Decimal, right: Decimal) -> Value:
    """The remainder of integers or decimals has the sign of the dividend."""
    if right == 0:
        return None
    rest = abs(left) % abs(right)
    return -rest if left < 0 else rest


def _round(node: Call, value: Value, digits: Value = 0) -> Value:
    if isinstance(value, Decimal):
        return value.quantize(Decimal(1).scaleb(-int(digits)), ROUND_HALF_UP)  # type: ignore[arg-type]
    if digits != 0:
        raise NotConstant
    return float(_half_away(value) if node.args[0].type.numeric else round(value))  # type: ignore[arg-type]


def _whole(rounding: Callable[[Value], int]) -> Callable[..., Value]:
    def rule(node: Call, value: Value) -> Value:
        whole = rounding(value)
        return float(whole) if node.type.kind is Kind.DOUBLE else Decimal(whole)

    return rule


def _ascii(text: str) -> str:
    """Beyond ASCII, Python and the engines do not agree on upper and lower case."""
    if not text.isascii():
        raise NotConstant
    return text


def _extract(node: Call, moment: date) -> Value:
    rule = _PARTS.get(node.option)
    if rule is None:
        raise NotConstant
    return Decimal(rule(moment))


_PARTS: dict[str, Callable[[date], int]] = {
    "year": lambda d: d.year,
    "quarter": lambda d: (d.month + 2) // 3,
    "month": lambda d: d.month,
    "day": lambda d: d.day,
    "dow": lambda d: d.isoweekday() % 7,
    "isodow": lambda d: d.isoweekday(),
    "doy": lambda d: d.timetuple().tm_yday,
    "week": lambda d: d.isocalendar().week,
    "isoyear": lambda d: d.isocalendar().year,
    "decade": lambda d: d.year // 10,
    "century": lambda d: (d.year + 99) // 100,
    "hour": lambda d: d.hour if isinstance(d, datetime) else 0,
    "minute": lambda d: d.minute if isinstance(d, datetime) else 0,
}


def truncate(unit: str, moment: date) -> datetime:
    """date_trunc for every unit dpsql knows."""
    at = moment if isinstance(moment, datetime) else datetime.combine(moment, time())
    day = at.replace(hour=0, minute=0, second=0, microsecond=0)
    match unit:
        case "second":
            return at.replace(microsecond=0)
        case "minute":
            return at.replace(second=0, microsecond=0)
        case "hour":
            return at.replace(minute=0, second=0, microsecond=0)
        case "day":
            return day
        case "week":
            return day - timedelta(days=day.weekday())
        case "month":
            return day.replace(day=1)
        case "quarter":
            return day.replace(month=day.month - (day.month - 1) % 3, day=1)
        case "year":
            return day.replace(month=1, day=1)
        case "decade":
            return day.replace(year=max(1, day.year - day.year % 10), month=1, day=1)
        case _:
            raise NotConstant


# The option of ZONED_TRUNC: a unit and the name of a zone.
FINE_UNITS = {"second": 1, "minute": 60, "hour": 3600}


def truncate_in_zone(option: str, moment: datetime) -> datetime | None:
    """date_trunc of an instant to an hour or less, with the offset at that instant."""
    unit, name = option.split(" ")
    ahead = timedelta(seconds=known_zone(name).leaving.at(second_of(moment)) % FINE_UNITS[unit])
    return _in_calendar(lambda: truncate(unit, moment + ahead) - ahead)


def bin_start(moment: datetime, stride: int | Decimal, origin: datetime) -> datetime | None:
    """date_bin: the last moment not after this one that is a whole number of strides (in seconds) from the origin."""
    width = timedelta(microseconds=int(stride * 10**6))
    return _in_calendar(lambda: origin + (moment - origin) // width * width)


def _months_between(_: Call, later: datetime, earlier: datetime) -> Value:
    """The whole months of age(), toward zero."""

    def into_month(at: datetime) -> timedelta:
        return at - at.replace(day=1, hour=0, minute=0, second=0, microsecond=0)

    months = (later.year - earlier.year) * 12 + later.month - earlier.month
    if later >= earlier:
        return months - (into_month(later) < into_month(earlier))
    return months + (into_month(later) > into_month(earlier))


def _make_date(_: Call, year: int, month: int, day: int) -> Value:
    try:
        return date(year, month, day)
    except (ValueError, OverflowError):
        return None


def _in_calendar(moment: Callable[[], T]) -> T | None:
    """NULL for values outside the supported years, which are Python's."""
    try:
        return moment()
    except OverflowError:
        return None


def _add_seconds(_: Call, moment: datetime, seconds: int | Decimal | float) -> Value:
    return _in_calendar(lambda: moment + timedelta(microseconds=round(Fraction(seconds) * 10**6)))


def _add_months(_: Call, moment: datetime, months: int) -> Value:
    """A day beyond the end of the month becomes its last day. Engines keep away from the ends of the calendar."""
    if (datetime.max - moment if months > 0 else moment - datetime.min) < timedelta(days=31 * abs(months)):
        return None
    year, month = divmod(moment.year * 12 + moment.month - 1 + months, 12)
    return moment.replace(year=year, month=month + 1, day=min(moment.day, monthrange(year, month + 1)[1]))


def _replace(_: Call, text: str, old: str, new: str) -> Value:
    if len(text) * len(new) > LONGEST_TEXT**2:  # could exceed the limit, depending on how much is replaced
        raise NotConstant
    return text.replace(old, new)


def _like(node: Call, text: str, pattern: str) -> Value:
    """LIKE: % matches any text, _ one character; after the escape character both are literal.

    Takes at most length of text times length of pattern steps: on a mismatch, only the last % matches one more
    character.
    """
    parts: list[str | None] = []  # characters; "" for any one, None for any text
    escaped = False
    for character in pattern:
        if character == node.option and not escaped:
            escaped = True
            continue
        parts.append(character if escaped else {"%": None, "_": ""}.get(character, character))
        escaped = False
    at, part, steps = 0, 0, 0
    last, taken = -1, 0  # the last %, and the end of its match
    while at < len(text):
        steps += 1
        if steps % 64 == 0:
            spend()
        if part < len(parts) and parts[part] is None:
            last, taken = part, at
            part += 1
        elif part < len(parts) and parts[part] in ("", text[at]):
            at, part = at + 1, part + 1
        elif last < 0:
            return False
        else:
            taken += 1
            at, part = taken, last + 1
    return all(left is None for left in parts[part:])


def _split_part(_: Call, text: str, separator: str, place: int) -> Value:
    parts = text.split(separator)
    return parts[place - 1] if place <= len(parts) else ""


_RULES: dict[Op, Callable[..., Value]] = {
    Op.NOT: lambda _, x: not x,
    Op.EQ: lambda _, x, y: x == y,
    Op.NE: lambda _, x, y: x != y,
    Op.LT: lambda _, x, y: x < y,
    Op.LE: lambda _, x, y: x <= y,
    Op.GT: lambda _, x, y: x > y,
    Op.GE: lambda _, x, y: x >= y,
    Op.ADD: lambda _, x, y: x + y,
    Op.SUB: lambda _, x, y: x - y,
    Op.MUL: lambda _, x, y: x * y,
    Op.DIV: _divide,
    Op.MOD: _modulo,
    Op.NEG: lambda _, x: -x,
    Op.ABS: lambda _, x: abs(x),
    Op.ROUND: _round,
    Op.FLOOR: _whole(math.floor),  # type: ignore[arg-type]
    Op.CEIL: _whole(math.ceil),  # type: ignore[arg-type]
    Op.LOWER: lambda _, x: _ascii(x).lower(),
    Op.UPPER: lambda _, x: _ascii(x).upper(),
    Op.TRIM: lambda _, x, characters: x.strip(characters),
    Op.LTRIM: lambda _, x, characters: x.lstrip(characters),
    Op.RTRIM: lambda _, x, characters: x.rstrip(characters),
    Op.LENGTH: lambda _, x: len(x),
    Op.CONCAT: lambda _, x, y: x + y,
    Op.LEFT: lambda _, x, n: x[:n],
    Op.RIGHT: lambda _, x, n: x[-n:] if n else "",
    Op.POSITION: lambda _, x, part: x.find(part) + 1,
    Op.LIKE: _like,
    Op.STARTS_WITH: lambda _, x, start: x.startswith(start),
    Op.REPLACE: _replace,
    Op.SPLIT_PART: _split_part,
    Op.SUBSTRING: lambda _, x, start, n: x[start - 1 : start - 1 + n],
    Op.EXTRACT: _extract,
    Op.DATE_TRUNC: lambda node, x: truncate(node.option, x),
    Op.DATE_BIN: lambda _, x, stride, origin: bin_start(x, stride, origin),
    Op.TO_ZONE: lambda node, x: known_zone(node.option).to_local(x),
    Op.FROM_ZONE: lambda node, x: known_zone(node.option).to_utc(x),
    Op.ZONED_TRUNC: lambda node, x: truncate_in_zone(node.option, x),
    Op.MAKE_DATE: _make_date,
    Op.TO_CHAR: lambda node, x: written(x, node.option),
    Op.ADD_DAYS: lambda _, x, n: _in_calendar(lambda: x + timedelta(days=n)),
    Op.ADD_MONTHS: _add_months,
    Op.ADD_SECONDS: _add_seconds,
    Op.DAYS_BETWEEN: lambda _, x, y: (x - y).days,
    Op.MONTHS_BETWEEN: _months_between,
}

# The operations evaluated here; the value of any other operation is unknown.
EVALUATED = frozenset(
    {
        *_RULES,
        *(Op.AND, Op.OR, Op.IS_NULL, Op.IS_TRUE, Op.IS_FALSE, Op.DISTINCT_FROM, Op.COALESCE, Op.NULLIF),
        *(Op.LEAST, Op.GREATEST, Op.IN, Op.CAST),
    }
)


# ------------------------------------------------------------ The formats of to_char for dates: fields that all engines
# write the same way. PostgreSQL pads Month and Day with blanks, and names depend on the language: only fields with the
# same result everywhere are supported, and digits and letters in double quotes. A format is parsed once; engines and
# Python write the same fields.

# A field in PostgreSQL's notation, with the date_trunc unit that determines it, and strftime's name for it.
_PIECES: dict[str, tuple[str, str]] = {
    "YYYY": ("year", "%Y"),
    "YY": ("year", "%y"),
    "IYYY": ("week", "%G"),
    "MM": ("month", "%m"),
    "Mon": ("month", "%b"),
    "FMMonth": ("month", "%B"),
    "IW": ("week", "%V"),
    "DDD": ("day", "%j"),
    "DD": ("day", "%d"),
    "Dy": ("day", "%a"),
    "FMDay": ("day", "%A"),
    "HH24": ("hour", "%H"),
    "MI": ("minute", "%M"),
    "SS": ("second", "%S"),
}
# Longer pieces first: DDD is not DD and a D.
_PIECE = re.compile("|".join(sorted(_PIECES, key=len, reverse=True)) + r"|[-/.,:; _0-9]+" + '|"[A-Za-z ]+"')
_FINEST = ("second", "minute", "hour", "day", "week", "month", "year")

PIECES = tuple(_PIECES)


def pieces(written: str) -> list[str] | None:
    """The fields of a format, or None if one of them is not supported."""
    found = _PIECE.findall(written)
    return found if found and "".join(found) == written else None


def finest_unit(format_: str) -> str:
    """The coarsest date_trunc unit that determines the formatted text; the day where weeks and months are mixed."""
    units = {_PIECES[piece][0] for piece in pieces(format_) or [] if piece in _PIECES}
    if "week" in units and units != {"week"}:
        units.add("day")
    return next(unit for unit in (*_FINEST, "year") if unit in units or unit == "year")


def as_strftime(format_: str) -> str:
    return "".join(_PIECES[piece][1] if piece in _PIECES else piece.strip('"') for piece in pieces(format_) or [])


def written(moment: date, format_: str) -> str:
    """The result of to_char."""
    at = moment if isinstance(moment, datetime) else datetime.combine(moment, time())
    iso = at.isocalendar()
    values = {
        "YYYY": f"{at.year:04}",
        "YY": f"{at.year % 100:02}",
        "IYYY": f"{iso.year:04}",
        "MM": f"{at.month:02}",
        "Mon": _MONTHS[at.month - 1][:3],
        "FMMonth": _MONTHS[at.month - 1],
        "IW": f"{iso.week:02}",
        "DDD": f"{at.timetuple().tm_yday:03}",
        "DD": f"{at.day:02}",
        "Dy": _DAYS[at.weekday()][:3],
        "FMDay": _DAYS[at.weekday()],
        "HH24": f"{at.hour:02}",
        "MI": f"{at.minute:02}",
        "SS": f"{at.second:02}",
    }
    return "".join(values.get(piece, piece.strip('"')) for piece in pieces(format_) or [])


# The fields that to_timestamp reads, each with its full number of digits.
_READ_DIGITS = {"YYYY": 4, "MM": 2, "DD": 2, "HH24": 2, "MI": 2, "SS": 2, "MS": 3, "US": 6}
_READ = re.compile("|".join(_READ_DIGITS) + r"|[-/.,:; _]")


def moment(text: str, format_: str) -> datetime | None:
    """The result of to_timestamp, or None if the text does not match the format exactly.

    Raises KeyError for an unsupported format: it needs a year, and each field at most once. Case does not matter for
    numbers.
    """
    format_ = format_.upper()
    found = _READ.findall(format_)
    known = [piece for piece in found if piece in _READ_DIGITS]
    if "".join(found) != format_ or "YYYY" not in known or len(set(known)) < len(known):
        raise KeyError(format_)
    shape = "".join(f"(?P<{p}>[0-9]{{{_READ_DIGITS[p]}}})" if p in _READ_DIGITS else re.escape(p) for p in found)
    read = re.fullmatch(shape, text)
    if read is None:
        return None
    value = {piece: int(read[piece]) for piece in known}
    try:
        return datetime(
            value["YYYY"], value.get("MM", 1), value.get("DD", 1), value.get("HH24", 0), value.get("MI", 0),
            value.get("SS", 0), value.get("US", 0) + 1000 * value.get("MS", 0),
        )  # fmt: skip
    except ValueError:
        return None


_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
