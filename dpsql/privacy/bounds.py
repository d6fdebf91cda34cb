"""Bounds of expressions, by interval arithmetic over facts about columns.

A `Fact` is what is known about a column without looking at data: its bounds, its keys, its grain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from fractions import Fraction

from dpsql.effort import spend
from dpsql.plan.constants import FINE_UNITS, NotConstant, evaluate, truncate
from dpsql.plan.scalars import (
    Aggregated,
    Array,
    Call,
    Case,
    Const,
    Correlated,
    InStage,
    IntervalEnd,
    Op,
    Ref,
    Scalar,
    StageValue,
    Subquery,
    Subscript,
    Windowed,
    both,
)
from dpsql.plan.zones import known_zone
from dpsql.types import Kind, Type, Value


@dataclass(frozen=True, slots=True)
class Interval:
    """Bounds set by the policy or by the query itself; None where neither sets one.

    Dates count as days and timestamps as seconds, both from the same origin.
    """

    low: Fraction | None = None
    high: Fraction | None = None

    @property
    def bounded(self) -> bool:
        return self.low is not None and self.high is not None

    def union(self, other: Interval) -> Interval:
        return Interval(
            None if self.low is None or other.low is None else min(self.low, other.low),
            None if self.high is None or other.high is None else max(self.high, other.high),
        )


UNBOUNDED = Interval()


@dataclass(frozen=True, slots=True)
class Fact:
    interval: Interval = UNBOUNDED
    domain: tuple[Value, ...] | None = None  # every key the column can show, None among them if NULL is one
    step: Fraction | None = None
    origin: tuple[str, str] | None = None  # table and column, for messages
    nullable: bool = True
    tight: bool | None = None  # whether the policy says that values come near the bounds


# By the id of a column, or by an expression that a condition restricts to a few values.
Facts = Mapping[object, Fact]

NOTHING = Fact()


# 1970 as a number of seconds, as timestamps are counted.
EPOCH_SECOND = date(1970, 1, 1).toordinal() * 86400


def as_datetime(seconds: Fraction) -> datetime:
    """The timestamp that is this many seconds from the origin, truncated to microseconds."""
    day, rest = divmod(seconds, 86400)
    return datetime.fromordinal(int(day)) + timedelta(microseconds=int(rest * 10**6))


def as_number(value: Value) -> Fraction | None:
    """A constant as a number; None for NULL, text and booleans."""
    match value:
        case bool() | str() | None:
            return None
        case datetime():
            seconds = value.hour * 3600 + value.minute * 60 + value.second
            return value.toordinal() * 86400 + seconds + Fraction(value.microsecond, 10**6)
        case date():
            return Fraction(value.toordinal())
        case _:
            return Fraction(value)


# ------------------------------------------------------------
# Bounds of real functions: powers, roots, angles. Computed in doubles, then widened by more than their rounding error.

_SLACK = Fraction(1, 10**9)
_SMALL_EXPONENT = 17  # up to here powers of bounds are computed as fractions
_LARGEST_EXPONENT = 709  # beyond it the result is NULL


def _widened(low: float, high: float) -> Interval:
    below, above = Fraction(low), Fraction(high)
    return Interval(below - abs(below) * _SLACK, above + abs(above) * _SLACK)


def _exponential(_: Call, parts: list[Interval]) -> Interval:
    (part,) = parts
    if part.high is None:
        return Interval(Fraction(0), None)
    most = math.exp(float(min(part.high, Fraction(_LARGEST_EXPONENT))))
    return Interval(Fraction(0), _widened(0, most).high)


def _power(_: Call, parts: list[Interval]) -> Interval:
    """The exponent times the logarithm of the base is largest and smallest in a corner; so is |x ** y|, in |x| and y.

    A negative base has a whole exponent, or the result is NULL. A base close to zero has no bound below zero.
    """
    base, exponent = parts
    if not (base.bounded and exponent.bounded):
        return UNBOUNDED
    low, high = base.low, base.high
    assert low is not None and high is not None and exponent.low is not None and exponent.high is not None
    if exponent.low == exponent.high and exponent.low in range(_SMALL_EXPONENT):
        return _whole_power(low, high, int(exponent.low))
    sizes = [abs(low), abs(high)]
    least = Fraction(0) if low <= 0 <= high else min(sizes)
    if least == 0 and exponent.low < 0:
        return UNBOUNDED
    try:
        corners = [float(x) ** float(y) for x in (least, max(sizes)) for y in (exponent.low, exponent.high)]
    except OverflowError:
        return UNBOUNDED
    if least == 0 and exponent.low == 0:
        corners.append(1.0)  # zero to the power of zero is one
    found = _widened(min(corners), max(corners))
    if low >= 0:
        return found
    assert found.high is not None
    return Interval(-found.high, found.high)


def _whole_power(low: Fraction, high: Fraction, exponent: int) -> Interval:
    """Exactly: an odd power grows with its base, an even one with its size."""
    ends = (low**exponent, high**exponent)
    if exponent % 2 == 0 and low <= 0 <= high:
        ends = (Fraction(0 if exponent else 1), max(ends))
    return Interval(min(ends), max(ends))


def _cube_root(_: Call, parts: list[Interval]) -> Interval:
    (part,) = parts
    low, high = (None if end is None else _root(end) for end in (part.low, part.high))
    return Interval(
        None if low is None else _widened(low, low).low,
        None if high is None else _widened(high, high).high,
    )


def _root(value: Fraction) -> float:
    return math.copysign(abs(float(value)) ** (1 / 3), float(value))


def _angle(low: float, high: float) -> Callable[[Call, list[Interval]], Interval]:
    return lambda *_: _widened(low, high)


FUNCTIONS: dict[Op, Callable[[Call, list[Interval]], Interval]] = {
    Op.EXP: _exponential,
    Op.POWER: _power,
    Op.CBRT: _cube_root,
    Op.SIN: lambda *_: Interval(Fraction(-1), Fraction(1)),
    Op.COS: lambda *_: Interval(Fraction(-1), Fraction(1)),
    Op.TAN: lambda *_: UNBOUNDED,
    Op.ASIN: _angle(-math.pi / 2, math.pi / 2),
    Op.ACOS: _angle(0, math.pi),
    Op.ATAN: _angle(-math.pi / 2, math.pi / 2),
    Op.ATAN2: _angle(-math.pi, math.pi),
}


# ------------------------------------------------------------
# Interval arithmetic: the bounds of an expression from the bounds of its columns.
#
# The bounds found here become the clamp of an aggregate's argument. The clamp, not this arithmetic, carries the
# guarantee: a rule that is too narrow would cut values off, never let more of them out.

# Beyond this a double could overflow on the way to its clamp.
LARGEST = Fraction(10**300)
_LARGE_BITS = LARGEST.numerator.bit_length() - 1
_OF_64_BITS = Fraction(-(2**63)), Fraction(2**63 - 1)


def interval(node: Scalar, facts: Facts) -> Interval:
    """Bounds of a numeric or temporal expression."""
    spend()
    return _within_type(node.type, _interval(node, facts))


def _within_type(type_: Type, found: Interval) -> Interval:
    """The bounds, cut to the range of the type: a value outside it is NULL, or its bounds are unknown."""
    if type_.is_temporal:
        return _in_calendar(found, 86400 if type_.is_moment else 1)
    if type_.kind is Kind.DECIMAL:
        most = Fraction(10**type_.precision - 1, 10**type_.scale)
        return _cut(found, -most, most)  # beyond its digits it is NULL
    if type_.kind is Kind.INTEGER:
        return _cut(found, *_OF_64_BITS)  # beyond 64 bits it is NULL
    if _is_too_large(found.low) or _is_too_large(found.high):
        return UNBOUNDED
    return _short(found)


def _is_too_large(bound: Fraction | None) -> bool:
    if bound is None or bound.numerator.bit_length() - bound.denominator.bit_length() < _LARGE_BITS:
        return False  # comparing fractions takes much longer
    return abs(bound) > LARGEST


def _short(found: Interval) -> Interval:
    """The same bounds with few digits, rounded outward: exact fractions of nested products would grow without end."""
    low, high = found.low, found.high
    is_long = [bound is not None and bound.denominator.bit_length() > 200 for bound in (low, high)]
    if not any(is_long):
        return found
    if low is not None and is_long[0]:
        low = Fraction(math.nextafter(float(low), -math.inf))
    if high is not None and is_long[1]:
        high = Fraction(math.nextafter(float(high), math.inf))
    return Interval(low, high)


def _interval(node: Scalar, facts: Facts) -> Interval:
    match node:
        case Const(value=value):
            number = as_number(value)
            # NULL has no value, so it widens nothing; an empty interval is written as a point.
            return _point(Fraction(0)) if value is None else UNBOUNDED if number is None else _point(number)
        case Ref(field=field):
            return facts.get(field.id, NOTHING).interval
        case Case(default=default) if (caps := _clamp_of(node)) is not None:
            found = interval(default, facts)
            lows = [low for low in (found.low, caps.low) if low is not None]
            highs = [high for high in (found.high, caps.high) if high is not None]
            return Interval(max(lows) if lows else None, min(highs) if highs else None)
        case Case(branches=branches, default=default):
            results = [then for _, then in branches] + [default]
            return _hull([interval(result, facts) for result in results if not _is_null(result)])
        case Call(op=Op.LEAST, args=args):
            return _least(args, facts)
        case Call(op=Op.GREATEST, args=args):
            return _greatest(args, facts)
        case Call(op=Op.COALESCE, args=args):
            return _hull([interval(arg, facts) for arg in args if not _is_null(arg)])
        case Call(op=op, args=args):
            return _RULES[op](node, [interval(arg, facts) for arg in args])
        case Correlated(low=low, high=high):
            return Interval(low, high)
        case Array() | Subscript() | Subquery() | StageValue() | InStage() | Aggregated() | Windowed() | IntervalEnd():
            return UNBOUNDED


def _clamp_of(node: Case) -> Interval | None:
    """The bounds of CASE WHEN x < low THEN low WHEN x > high THEN high ELSE x END, if a CASE is one."""
    low = high = None
    for when, then in node.branches:
        if not (isinstance(when, Call) and when.args[0] == node.default and when.args[1:] == (then,)):
            return None
        bound = as_number(then.value) if isinstance(then, Const) else None
        if bound is None:
            return None
        if when.op in (Op.LT, Op.LE) and low is None:
            low = bound
        elif when.op in (Op.GT, Op.GE) and high is None:
            high = bound
        else:
            return None
    return None if low is not None and high is not None and low > high else Interval(low, high)


def _in_calendar(found: Interval, per_day: int) -> Interval:
    """Dates outside the calendar are NULL, so bounds beyond it say nothing."""
    last = Fraction(date.max.toordinal()) if per_day == 1 else (date.max.toordinal() + 1) * 86400 - Fraction(1, 10**6)
    return _cut(found, Fraction(date.min.toordinal() * per_day), last)


def _cut(found: Interval, first: Fraction, last: Fraction) -> Interval:
    return Interval(
        None if found.low is None else min(max(found.low, first), last),
        None if found.high is None else max(min(found.high, last), first),
    )


def _is_null(node: Scalar) -> bool:
    return isinstance(node, Const) and node.value is None


def _point(value: Fraction) -> Interval:
    return Interval(value, value)


def _hull(parts: list[Interval]) -> Interval:
    if not parts:
        return _point(Fraction(0))
    result = parts[0]
    for part in parts[1:]:
        result = result.union(part)
    return result


def _products(left: Interval, right: Interval) -> Interval:
    if not (left.bounded and right.bounded):
        return UNBOUNDED
    corners = [a * b for a in (left.low, left.high) for b in (right.low, right.high)]  # type: ignore[operator]
    return Interval(min(corners), max(corners))


def _add(_: Call, parts: list[Interval]) -> Interval:
    left, right = parts
    return Interval(
        None if left.low is None or right.low is None else left.low + right.low,
        None if left.high is None or right.high is None else left.high + right.high,
    )


def _negate(_: Call, parts: list[Interval]) -> Interval:
    return _mirrored(parts[0])


def _subtract(node: Call, parts: list[Interval]) -> Interval:
    return _add(node, [parts[0], _negate(node, [parts[1]])])


def _smallest(type_: Type) -> Fraction | None:
    """The smallest magnitude a non-zero value of the type can have."""
    match type_.kind:
        case Kind.INTEGER:
            return Fraction(1)
        case Kind.DECIMAL:
            return Fraction(1, 10**type_.scale)
        case _:
            return None


def _divide(node: Call, parts: list[Interval]) -> Interval:
    left, right = parts
    if not left.bounded:
        return UNBOUNDED
    low, high = right.low, right.high
    divisor = node.args[1]
    while isinstance(divisor, Call) and divisor.op in (Op.CAST, Op.NULLIF):
        divisor = divisor.args[0]
    least = _smallest(divisor.type)
    if isinstance(divisor, Const) and low is not None and low != 0:
        least = abs(low)
    if low is not None and low > 0:
        least = low if least is None else max(least, low)
    if high is not None and high < 0:
        least = -high if least is None else max(least, -high)
    if least is None:
        return UNBOUNDED
    # Dividing by zero gives NULL, so every divisor is at least `least` in magnitude.
    inverses = []
    if high is None or high > 0:
        inverses += [1 / least, Fraction(0) if high is None else 1 / high]
    if low is None or low < 0:
        inverses += [-1 / least, Fraction(0) if low is None else 1 / low]
    if not inverses:
        return _point(Fraction(0))
    result = _products(left, Interval(min(inverses), max(inverses)))
    if node.type.kind is Kind.INTEGER:
        return _map(result, _toward_zero)
    return result


def _toward_zero(value: Fraction) -> Fraction:
    return Fraction(math.trunc(value))


def _modulo(node: Call, parts: list[Interval]) -> Interval:
    left, right = parts
    grain = _smallest(node.type)
    if not right.bounded or grain is None:
        return UNBOUNDED
    most = max(abs(right.low), abs(right.high)) - grain  # type: ignore[arg-type]
    most = max(most, Fraction(0))
    low = Fraction(0) if left.low is not None and left.low >= 0 else -most
    high = Fraction(0) if left.high is not None and left.high <= 0 else most
    return Interval(low, high)


def _map(part: Interval, change: Callable[[Fraction], Fraction]) -> Interval:
    """A monotone function of an interval."""
    return Interval(
        None if part.low is None else change(part.low),
        None if part.high is None else change(part.high),
    )


def _absolute(_: Call, parts: list[Interval]) -> Interval:
    (part,) = parts
    if not part.bounded:
        return Interval(Fraction(0), None)
    ends = (abs(part.low), abs(part.high))  # type: ignore[arg-type]
    inside = part.low <= 0 <= part.high  # type: ignore[operator]
    return Interval(Fraction(0) if inside else min(ends), max(ends))


def _rounded(node: Call, parts: list[Interval]) -> Interval:
    digits = node.args[1].value if len(node.args) > 1 and isinstance(node.args[1], Const) else 0
    assert isinstance(digits, int)
    grain = Fraction(10) ** -digits
    if node.op is Op.TRUNC:
        return _map(parts[0], lambda x: math.trunc(x / grain) * grain)
    if node.args[0].type.kind is Kind.DOUBLE and not node.args[0].type.numeric:
        return _map(parts[0], lambda x: round(x / grain) * grain)
    return _map(parts[0], lambda x: _half_away(x / grain) * grain)


def _half_away(value: Fraction) -> int:
    whole = math.floor(abs(value) + Fraction(1, 2))
    return whole if value >= 0 else -whole


def _real(function: Callable[[float], float]) -> Callable[[Call, list[Interval]], Interval]:
    """A monotone function of positive numbers, widened by more than its rounding error."""

    def rule(node: Call, parts: list[Interval]) -> Interval:
        (part,) = parts
        positive = part.low is not None and part.low > 0
        least = part.low if positive else Fraction(0) if node.op is Op.SQRT else _least_positive(node.args[0])
        if part.high is None or least is None:
            return Interval(Fraction(0) if node.op is Op.SQRT else None, None)
        low = max(part.low if part.low is not None else least, least)
        if part.high < low:
            return _point(Fraction(0))
        slack = Fraction(1, 10**9)
        below, above = Fraction(function(float(low))), Fraction(function(float(part.high)))
        low_end = below - abs(below) * slack
        return Interval(low_end, above + abs(above) * slack)

    return rule


def _least_positive(node: Scalar) -> Fraction | None:
    while isinstance(node, Call) and node.op is Op.CAST:
        node = node.args[0]
    return _smallest(node.type)


def _least(args: tuple[Scalar, ...], facts: Facts) -> Interval:
    """LEAST ignores NULLs: only an argument that is never NULL bounds it from above."""
    known = [_bounds_and_presence(arg, facts) for arg in args if not _is_null(arg)]
    hull = _hull([bounds for bounds, _ in known])
    caps = [bounds.high for bounds, is_present in known if is_present]
    highs = [high for high in (hull.high, *caps) if high is not None]
    return Interval(hull.low, min(highs) if highs else None)


def _greatest(args: tuple[Scalar, ...], facts: Facts) -> Interval:
    """As LEAST, from below."""
    known = [_bounds_and_presence(arg, facts) for arg in args if not _is_null(arg)]
    hull = _hull([bounds for bounds, _ in known])
    floors = [bounds.low for bounds, is_present in known if is_present]
    lows = [low for low in (hull.low, *floors) if low is not None]
    return Interval(max(lows) if lows else None, hull.high)


def _mirrored(part: Interval) -> Interval:
    return Interval(None if part.high is None else -part.high, None if part.low is None else -part.low)


def never_null(node: Scalar, facts: Facts) -> bool:
    """Whether an expression is never NULL."""
    match node:
        case Call(op=Op.CAST, args=(inner,)):
            return _cannot_fail(inner.type, node.type) and never_null(inner, facts)
        case Call(op=Op.ADD | Op.SUB | Op.MUL) if node.type.is_numeric:
            return _bounds_and_presence(node, facts)[1]
        case Case(branches=branches, default=default):
            return all(never_null(part, facts) for part in (*(then for _, then in branches), default))
        case Ref(field=field):
            return not facts.get(field.id, NOTHING).nullable
        case _:
            return isinstance(node, Const) and node.value is not None


def _bounds_and_presence(node: Scalar, facts: Facts) -> tuple[Interval, bool]:
    """The bounds of an expression and whether it is never NULL; each part of a sum is visited once."""
    spend()
    match node:
        case Call(op=Op.CAST, args=(inner,)) if inner.type.is_numeric:
            part, is_present = _bounds_and_presence(inner, facts)
            return _within_type(node.type, _cast(node, [part])), is_present and _cannot_fail(inner.type, node.type)
        case Call(op=Op.ADD | Op.SUB | Op.MUL as op, args=args) if node.type.is_numeric:
            parts = [_bounds_and_presence(arg, facts) for arg in args]
            exact = _RULES[op](node, [bounds for bounds, _ in parts])
            held = _within_type(node.type, exact)
            # Beyond its type, a result is NULL.
            fits = held.bounded and (node.type.kind is Kind.DOUBLE or held == exact)
            return held, fits and all(is_present for _, is_present in parts)
        case _:
            return interval(node, facts), never_null(node, facts)


def without_known(where: Scalar | None, facts: Facts) -> Scalar | None:
    """A condition without tests for NULL of what is never NULL, so that equal conditions look equal."""
    match where:
        case Call(op=Op.AND, args=(left, right)):
            return both(without_known(left, facts), without_known(right, facts))
        case Call(op=Op.NOT, args=(Call(op=Op.IS_NULL, args=(arg,)),)) if never_null(arg, facts):
            return None
        case _:
            return where


def _cannot_fail(source: Type, target: Type) -> bool:
    """Whether a cast has a result for every value: to double precision, or to at least as many digits."""
    if target.kind is Kind.DOUBLE:
        return source.is_numeric
    whole = target.precision - target.scale
    exact = source.kind is Kind.INTEGER or (source.kind is Kind.DECIMAL and source.scale <= target.scale)
    return exact and target.kind is Kind.DECIMAL and source.precision - source.scale <= whole


def _cast(node: Call, parts: list[Interval]) -> Interval:
    (part,) = parts
    source, target = node.args[0].type.kind, node.type.kind
    match source, target:
        case ((Kind.TIMESTAMP | Kind.TIMESTAMPTZ), (Kind.TIMESTAMP | Kind.TIMESTAMPTZ)):
            return part
        case Kind.DATE, (Kind.TIMESTAMP | Kind.TIMESTAMPTZ):
            return _map(part, lambda days: days * 86400)
        case ((Kind.TIMESTAMP | Kind.TIMESTAMPTZ), Kind.DATE):
            return _map(part, lambda seconds: Fraction(math.floor(seconds / 86400)))
        case Kind.BOOLEAN, Kind.INTEGER:
            return Interval(Fraction(0), Fraction(1))
        case ((Kind.INTEGER | Kind.DECIMAL | Kind.DOUBLE), (Kind.INTEGER | Kind.DECIMAL)):
            grain = Fraction(1, 10**node.type.scale)
            rounded = Interval(
                None if part.low is None else math.floor(part.low / grain) * grain,
                None if part.high is None else math.ceil(part.high / grain) * grain,
            )
            return _in_bits(rounded, node.type) if target is Kind.INTEGER else rounded
        case ((Kind.INTEGER | Kind.DECIMAL | Kind.DOUBLE), Kind.DOUBLE):
            return part
        case _:
            return UNBOUNDED


def _in_bits(found: Interval, type_: Type) -> Interval:
    """A value that does not fit into smallint, integer or bigint is NULL."""
    end = Fraction(2 ** (15 if type_.precision <= 5 else 31 if type_.precision <= 10 else 63))
    return _cut(found, -end, end - 1)


_EXTRACTED = {
    "quarter": (1, 4), "month": (1, 12), "day": (1, 31), "dow": (0, 6), "isodow": (1, 7), "doy": (1, 366),
    "week": (1, 53), "hour": (0, 23), "minute": (0, 59), "second": (0, 60),
}  # fmt: skip


def _extract(node: Call, parts: list[Interval]) -> Interval:
    (part,) = parts
    if node.option in _EXTRACTED:
        low, high = _EXTRACTED[node.option]
        return Interval(Fraction(low), Fraction(high))
    per_day = 86400 if node.args[0].type.is_moment else 1
    if node.option == "epoch":
        epoch = date(1970, 1, 1).toordinal()
        return _map(part, lambda at: (at / per_day - epoch) * 86400)
    if not part.bounded:
        return UNBOUNDED

    def evaluated(at: Fraction) -> Fraction:
        day = date.fromordinal(math.floor(at / per_day))
        try:
            found = evaluate(Call(Op.EXTRACT, (Const(day, node.args[0].type),), node.type, node.option))
        except NotConstant:
            raise AssertionError(node.option) from None
        number = as_number(found)
        assert number is not None
        return number

    return _map(part, evaluated)


def _date_trunc(node: Call, parts: list[Interval]) -> Interval:
    def truncated(at: Fraction) -> Fraction:
        moment = as_number(truncate(node.option, date.fromordinal(math.floor(at / 86400))))
        assert moment is not None
        return min(moment, at)

    (part,) = parts
    return Interval(None if part.low is None else truncated(part.low), part.high)


def _zoned(node: Call, parts: list[Interval]) -> Interval:
    """AT TIME ZONE, in both directions: local time between two moments, or the moments of local times.

    Claim: no moment between the bounds is moved beyond what is returned.
    Because: between two changes of the offset the order is kept, so that the extremes are at the bounds, at a change,
    or just before one.
    """
    zone, (part,) = known_zone(node.option), parts
    steps = zone.leaving if node.op is Op.TO_ZONE else zone.arriving
    if part.low is None or part.high is None:
        return UNBOUNDED
    ends = [end + steps.at(_epoch_second(end)) for end in (part.low, part.high)]
    between = steps.between(as_datetime(part.low), as_datetime(part.high))
    if between.repeats is not None:
        offsets = [between.first, *(seconds for _, seconds in between.changes)]
        return Interval(part.low + min(offsets), part.high + max(offsets))
    before = between.first
    for at, seconds in between.changes:
        change = Fraction(at + EPOCH_SECOND)
        ends += [change + seconds, change + before - Fraction(1, 10**6)]
        before = seconds
    return Interval(min(ends), max(ends))


def _zoned_trunc(node: Call, parts: list[Interval]) -> Interval:
    """From the start of the period that holds the lower bound to the upper bound."""
    (part,) = parts
    if part.low is None or part.high is None:
        return UNBOUNDED
    unit, _ = node.option.split(" ")
    return Interval(part.low - FINE_UNITS[unit], part.high)


def _epoch_second(at: Fraction) -> int:
    return math.floor(at) - EPOCH_SECOND


def _add_months(_: Call, parts: list[Interval]) -> Interval:
    moment, months = parts
    if not (moment.bounded and months.bounded):
        return UNBOUNDED
    day = Fraction(86400)
    return Interval(
        moment.low + min(months.low * 31, months.low * 28) * day,  # type: ignore[operator]
        moment.high + max(months.high * 31, months.high * 28) * day,  # type: ignore[operator]
    )


def _date_bin(_: Call, parts: list[Interval]) -> Interval:
    moment, stride, origin = parts
    assert stride.low is not None and origin.low is not None
    width, start = stride.low, origin.low
    return _map(moment, lambda at: start + (at - start) // width * width)


def _months_between(_: Call, parts: list[Interval]) -> Interval:
    """The difference of calendar months, or one less where the last month is not complete."""

    def number(at: Fraction) -> Fraction:
        day = date.fromordinal(math.floor(at / 86400))
        return Fraction(day.year * 12 + day.month)

    between = _subtract(_, [_map(part, number) for part in parts])
    return Interval(
        None if between.low is None else between.low - (between.low > 0),
        None if between.high is None else between.high + (between.high < 0),
    )


def _make_date(_: Call, parts: list[Interval]) -> Interval:
    """From the first day of the first year to the last one of the last."""
    year = parts[0]
    if not year.bounded:
        return UNBOUNDED
    first, last = (min(max(math.floor(end), 1), 9999) for end in (year.low, year.high))  # type: ignore[arg-type]
    return Interval(Fraction(date(first, 1, 1).toordinal()), Fraction(date(last, 12, 31).toordinal()))


def _width_bucket(node: Call, _: list[Interval]) -> Interval:
    count = node.args[3]
    assert isinstance(count, Const) and isinstance(count.value, int)
    return Interval(Fraction(0), Fraction(count.value + 1))


def _unknown(_: Call, __: list[Interval]) -> Interval:
    return UNBOUNDED


def _first(_: Call, parts: list[Interval]) -> Interval:
    return parts[0]


_TRUTH = (
    Op.AND, Op.OR, Op.NOT, Op.EQ, Op.NE, Op.LT, Op.LE, Op.GT, Op.GE, Op.IS_NULL, Op.IS_TRUE, Op.IS_FALSE,
    Op.DISTINCT_FROM, Op.LIKE, Op.ILIKE, Op.IN, Op.STARTS_WITH,
)  # fmt: skip
_TEXT = (
    Op.LOWER, Op.UPPER, Op.TRIM, Op.LTRIM, Op.RTRIM, Op.CONCAT, Op.LEFT, Op.RIGHT, Op.SUBSTRING, Op.REPLACE,
    Op.SPLIT_PART, Op.TO_CHAR,
)  # fmt: skip

_RULES: dict[Op, Callable[[Call, list[Interval]], Interval]] = {
    **dict.fromkeys(_TRUTH, _unknown),
    **dict.fromkeys(_TEXT, _unknown),
    Op.ADD: _add,
    Op.SUB: _subtract,
    Op.MUL: lambda _, parts: _products(*parts),
    Op.DIV: _divide,
    Op.MOD: _modulo,
    Op.NEG: _negate,
    Op.ABS: _absolute,
    Op.SIGN: lambda *_: Interval(Fraction(-1), Fraction(1)),
    Op.ROUND: _rounded,
    Op.TRUNC: _rounded,
    Op.FLOOR: lambda _, parts: _map(parts[0], lambda x: Fraction(math.floor(x))),
    Op.CEIL: lambda _, parts: _map(parts[0], lambda x: Fraction(math.ceil(x))),
    Op.SQRT: _real(math.sqrt),
    Op.LN: _real(math.log),
    Op.LOG10: _real(math.log10),
    **FUNCTIONS,
    Op.NULLIF: _first,
    Op.WIDTH_BUCKET: _width_bucket,
    Op.CAST: _cast,
    Op.LENGTH: lambda *_: Interval(Fraction(0), None),
    Op.POSITION: lambda *_: Interval(Fraction(0), None),
    Op.EXTRACT: _extract,
    Op.DATE_TRUNC: _date_trunc,
    Op.DATE_BIN: _date_bin,
    Op.TO_ZONE: _zoned,
    Op.FROM_ZONE: _zoned,
    Op.ZONED_TRUNC: _zoned_trunc,
    Op.MAKE_DATE: _make_date,
    Op.ADD_DAYS: _add,
    Op.ADD_SECONDS: _add,
    Op.ADD_MONTHS: _add_months,
    Op.DAYS_BETWEEN: _subtract,
    Op.MONTHS_BETWEEN: _months_between,
    Op.SECONDS_BETWEEN: _subtract,
}

# Operations whose results have bounds where their arguments have.
BOUNDED = frozenset({*(op for op, rule in _RULES.items() if rule is not _unknown), Op.LEAST, Op.GREATEST, Op.COALESCE})
