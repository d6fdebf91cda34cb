"""Representatives of all values of a column: between them, the expressions that read the column do not change.

Claim: whatever value a column has, every expression that was read gives the same for it as for one of these.
Because: an expression that only compares a column with constants changes at these constants; one that takes a part of a
date changes where a period begins, on the clocks of the zone that it is read in. One value of each stretch between such
points is listed.
Needs: expressions that were read with `usage`, and bounds where a column is read by its periods or in a time zone.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction

from dpsql.plan.scalars import Call, Const, Op, Scalar, as_moment, children
from dpsql.privacy.bounds import Interval, as_number
from dpsql.privacy.keys.domains import periods
from dpsql.privacy.keys.stretches import Conversions, converted, moments, stretches
from dpsql.types import Kind, Type, Value, exact_decimal

_COMPARED = frozenset({Op.EQ, Op.NE, Op.LT, Op.LE, Op.GT, Op.GE, Op.IN, Op.DISTINCT_FROM})
# Periods from fine to coarse; weeks do not fit into months.
_UNITS = ("second", "minute", "hour", "day", "month", "quarter", "year", "decade")
_PERIODS = {unit: unit for unit in _UNITS} | {"week": "day"}
_PARTS = {
    **dict.fromkeys(("day", "dow", "isodow", "doy", "week", "isoyear"), "day"),
    "year": "year",
    "decade": "year",
    "century": "year",
    "quarter": "quarter",
    "month": "month",
    "hour": "hour",
    "minute": "minute",
}


@dataclass(frozen=True, slots=True)
class Usage:
    """How expressions read a column."""

    whole: bool = False  # by its exact value
    periods: frozenset[tuple[str, Conversions]] = frozenset()  # by the period it is in, on the clocks of some zone
    points: frozenset[Value] = frozenset()  # by comparing it with these
    local_points: frozenset[tuple[Value, Conversions]] = frozenset()  # by comparing what clocks show with these

    def __or__(self, other: Usage) -> Usage:
        finest: dict[Conversions, str] = {}
        for unit, clocks in self.periods | other.periods:
            finest[clocks] = min(unit, finest.get(clocks, unit), key=_UNITS.index)
        return Usage(
            self.whole or other.whole,
            frozenset((unit, clocks) for clocks, unit in finest.items()),
            self.points | other.points,
            self.local_points | other.local_points,
        )


def usage(value: Scalar, of: Scalar) -> Usage:
    """How an expression reads `of`: a column, or an expression in it."""
    if value == of:
        return Usage(whole=True)
    if isinstance(value, Call):
        if value.op in _COMPARED and (constants := compared(value, of)) is not None:
            return Usage(points=frozenset(constants))
        if value.op in _COMPARED and (shown := _compared_clocks(value, of)) is not None:
            return Usage(local_points=frozenset(shown))
        if value.op is Op.IS_NULL and value.args[0] == of:
            return Usage()
        if (unit := _period(value)) is not None and (clocks := _clocks(value.args[0], of)) is not None:
            return Usage(periods=frozenset({(unit, clocks)}))
    found = Usage()
    for part in children(value):
        found |= usage(part, of)
    return found


def compared(value: Call, of: Scalar) -> list[Value] | None:
    """The constants that an expression is compared with, if that is all the condition does."""
    first, *rest = value.args if not isinstance(value.args[0], Const) else value.args[::-1]
    if not _is(first, of) or not all(isinstance(arg, Const) for arg in rest):
        return None
    return [arg.value for arg in rest if isinstance(arg, Const) and arg.value is not None]


def _compared_clocks(value: Call, of: Scalar) -> list[tuple[Value, Conversions]] | None:
    """The constants that the local time of a moment is compared with."""
    first = next((arg for arg in value.args if not isinstance(arg, Const)), None)
    clocks = None if first is None or first.type.kind is Kind.DATE else _clocks(first, of)
    constants = None if first is None else compared(value, first)
    return None if clocks is None or constants is None else [(constant, clocks) for constant in constants]


def _clocks(value: Scalar, of: Scalar) -> Conversions | None:
    """The time zone conversions that turn `of` into the expression; None if it is anything else."""
    inner, conversions = converted(value)
    if conversions and not of.type.is_temporal:
        return None
    return conversions if _is(inner, of) else None


def _is(value: Scalar, of: Scalar) -> bool:
    """Whether this is the expression itself, or a cast of it that keeps order and distinctness."""
    if value == of or as_moment(value) == of:
        return True
    value = as_moment(value)
    if not isinstance(value, Call) or value.op is not Op.CAST or value.args[0] != of:
        return False
    source, target = of.type, value.type
    if source.is_temporal:
        return target.is_moment
    whole = source.kind is Kind.INTEGER or (source.kind is Kind.DECIMAL and source.scale <= target.scale)
    return whole and target.kind is Kind.DECIMAL and source.precision - source.scale <= target.precision - target.scale


def _period(value: Call) -> str | None:
    match value.op:
        case Op.DATE_TRUNC:
            return _PERIODS.get(value.option)
        case Op.EXTRACT:
            return _PARTS.get(value.option)
        case Op.CAST if value.type.kind is Kind.DATE and value.args[0].type.is_moment:
            return "day"
        case Op.TO_CHAR:
            pieces = value.option.upper()
            finer = (("MS", None), ("US", None), ("SS", "second"), ("MI", "minute"), ("HH", "hour"))
            return next((unit for piece, unit in finer if piece in pieces), "day")
        case _:
            return None


def representatives(type_: Type, bounds: Interval, read: Usage, limit: int) -> list[Value] | None:
    """Values that represent all those between the bounds; None where there would be too many, or they are unknown."""
    if read.whole:
        return None
    if type_.kind is Kind.BOOLEAN:
        return [False, True]
    if type_.kind is Kind.TEXT:
        texts = sorted(point for point in read.points if isinstance(point, str))
        return list(dict.fromkeys(["", *(text + more for text in texts for more in ("", "\0"))]))
    if not type_.is_numeric and not type_.is_temporal:
        return None
    places = [place for point in read.points if (place := _place(point, type_)) is not None]
    for point, clocks in read.local_points:
        shown = _moments(point, type_, bounds, clocks)
        if shown is None:
            return None
        places += shown
    found = set(_around(places, type_))
    for unit, clocks in read.periods:
        begun = _beginnings(type_, bounds, unit, clocks, limit)
        if begun is None:
            return None
        found |= set(begun)
    found |= set(_ends(bounds, type_))
    within = [
        place
        for place in found or {Fraction(0)}
        if (bounds.low is None or place >= bounds.low) and (bounds.high is None or place <= bounds.high)
    ]
    values: list[Value] = [value for place in sorted(within) if (value := _value(place, type_)) is not None]
    return values if len(values) <= limit else None


def _place(point: Value, type_: Type) -> Fraction | None:
    """A constant as a number: dates in days, timestamps in seconds."""
    place = as_number(point)
    if place is None or not isinstance(point, date):
        return place
    if isinstance(point, datetime):
        return place if type_.is_moment else place / 86400
    return place * 86400 if type_.is_moment else place


def _ends(bounds: Interval, type_: Type) -> Iterator[Fraction]:
    grain = _grain(type_)
    if bounds.low is not None:
        yield bounds.low if grain is None else math.ceil(bounds.low / grain) * grain
    if bounds.high is not None:
        yield bounds.high if grain is None else math.floor(bounds.high / grain) * grain


def _grain(type_: Type) -> Fraction | None:
    match type_.kind:
        case Kind.INTEGER | Kind.DATE:
            return Fraction(1)
        case Kind.DECIMAL:
            return Fraction(1, 10**type_.scale)
        case Kind.TIMESTAMP | Kind.TIMESTAMPTZ:
            return Fraction(1, 10**6)
        case _:
            return None


def _around(places: Iterable[Fraction], type_: Type) -> Iterator[Fraction]:
    """Each number, and its nearest neighbours on both sides in the type."""
    grain = _grain(type_)
    if grain is not None:
        for place in places:
            steps = place / grain
            yield from (step * grain for step in (math.ceil(steps) - 1, math.floor(steps), math.floor(steps) + 1))
        return
    ordered = sorted(places)
    yield from ordered
    yield from ((one + other) / 2 for one, other in itertools.pairwise(ordered))
    if ordered:
        yield from (ordered[0] - 1, ordered[-1] + 1)


def _moments(point: Value, type_: Type, bounds: Interval, clocks: Conversions) -> list[Fraction] | None:
    """The moments at which the local time may be this."""
    local = as_number(point)
    if bounds.low is None or bounds.high is None or local is None:
        return None
    scale = 86400 if type_.kind is Kind.DATE else 1
    found = stretches(clocks, bounds.low * scale, bounds.high * scale)
    local *= 1 if isinstance(point, datetime) else 86400
    return None if found is None else [place / scale for place in moments(found, local)]


def _beginnings(type_: Type, bounds: Interval, unit: str, clocks: Conversions, limit: int) -> list[Fraction] | None:
    """The moments at which a period begins in local time, or the zone's offset changes."""
    if bounds.low is None or bounds.high is None:
        return None
    by_day = type_.kind is Kind.DATE
    unit = "day" if by_day and unit in _UNITS[:3] and not clocks else unit
    low, high = (bound * 86400 if by_day else bound for bound in (bounds.low, bounds.high))
    places: set[Fraction] = set()
    for stretch in stretches(clocks, low, high) or ():
        begun = periods(unit, stretch.start + stretch.ahead, stretch.end + stretch.ahead, limit)
        if begun is None or len(places) > limit:
            return None
        shown = (place - stretch.ahead for value in begun if (place := as_number(value)) is not None)
        places |= {max(place, stretch.start) for place in shown}
    if not places:
        return None
    return [Fraction(math.ceil(place / 86400)) for place in places] if by_day else list(places)


def _value(place: Fraction, type_: Type) -> Value:
    try:
        match type_.kind:
            case Kind.INTEGER:
                return int(place)
            case Kind.DECIMAL:
                return Decimal(exact_decimal(place, type_.scale))
            case Kind.DATE:
                return date.fromordinal(int(place))
            case Kind.TIMESTAMP | Kind.TIMESTAMPTZ:
                day, rest = divmod(place, 86400)
                return datetime.fromordinal(int(day)) + timedelta(microseconds=int(rest * 10**6))
            case _:
                return float(place)
    except (ValueError, OverflowError):
        return None
