"""Disjoint conditions: no row meets both, so that a row adds to only one of the two sums."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date, datetime
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache

from dpsql.effort import spend
from dpsql.plan.scalars import Call, Const, Op, Scalar
from dpsql.privacy.bounds import as_number
from dpsql.privacy.refine import conjuncts
from dpsql.types import Kind

_MIRRORED = {Op.LT: Op.GT, Op.LE: Op.GE, Op.GT: Op.LT, Op.GE: Op.LE, Op.EQ: Op.EQ, Op.NE: Op.NE}
# NOT (x < 1) is true where x >= 1 is; of NULL neither is.
_OPPOSITE = {Op.LT: Op.GE, Op.LE: Op.GT, Op.GT: Op.LE, Op.GE: Op.LT, Op.EQ: Op.NE, Op.NE: Op.EQ, Op.IN: Op.NE}

Point = Fraction | str | bool


def disjoint(left: Scalar, right: Scalar) -> bool:
    """Whether two conditions are never true of the same row.

    Claim: if it says so, no row makes both true, whatever it holds.
    Because: both are conjunctions, and a part of one contradicts a part of the other: it is its negation, or both
    compare the same expression with constants that leave no common value. An alternative (OR) is excluded where all its
    parts are. In one row, an expression has the same value wherever it occurs. Doubles are compared with constants as
    doubles. Texts that differ only in trailing blanks count neither as different nor as the same, since engines differ
    on it.
    Needs: expressions whose value depends on the row alone (others are refused).
    """
    spend()
    sides = ((left, right), (right, left))
    for one, other in sides:
        if isinstance(one, Call) and one.op is Op.OR:
            return all(disjoint(part, other) for part in one.args)
    for one, other in sides:
        if isinstance(one, Call) and one.op is Op.AND:
            return any(disjoint(part, other) for part in conjuncts(one))
    return _negates(left, right) or _negates(right, left) or _excludes(left, right)


def _negates(one: Scalar, other: Scalar) -> bool:
    return isinstance(one, Call) and one.op in (Op.NOT, Op.IS_FALSE) and one.args[0] in (other, _asserted(other))


def _asserted(condition: Scalar) -> Scalar:
    is_true = isinstance(condition, Call) and condition.op is Op.IS_TRUE
    return condition.args[0] if is_true and isinstance(condition, Call) else condition


@dataclass(frozen=True, slots=True)
class _Values:
    """The values of an expression that meet a condition: listed ones, all but listed ones, or an interval."""

    of: Scalar
    points: frozenset[Point] | None = None
    but: frozenset[Point] = frozenset()
    low: tuple[Fraction, bool] | None = None  # and whether the end itself passes
    high: tuple[Fraction, bool] | None = None

    def has(self, point: Point) -> bool:
        """Whether a value that equals the point may pass."""
        if point in self.but or (self.points is not None and _blankless(point) not in map(_blankless, self.points)):
            return False
        if isinstance(point, str | bool):
            return True
        above = self.low is None or point > self.low[0] or (self.low[1] and point == self.low[0])
        return above and (self.high is None or point < self.high[0] or (self.high[1] and point == self.high[0]))


def _blankless(point: Point) -> Point:
    return point.rstrip(" ") if isinstance(point, str) else point


def _excludes(left: Scalar, right: Scalar) -> bool:
    one, other = _values(left), _values(right)
    if one is None or other is None or one.of != other.of:
        return False
    for these, those in ((one, other), (other, one)):
        if these.points is not None:
            return not any(those.has(point) for point in these.points)
        if these.high is not None and those.low is not None:
            ends = these.high[1] and those.low[1]
            if these.high[0] < those.low[0] or (these.high[0] == those.low[0] and not ends):
                return True
    return False


class DisjointConditions:
    """Pairwise disjoint conditions. A new one is compared with all of them at once where possible.

    Claim: after `add` returned true, the new condition and each one before it are never true of the same row.
    Because: where each of them restricts the same expression to some of its values, these are kept in order, and the
    values of the new one lie between them. Otherwise it is compared with each of them (`disjoint`).
    """

    def __init__(self, first: Scalar) -> None:
        self._all = [first]
        self._of: Scalar | None = None  # the expression whose values distinguish them
        self._regions = _regions(first)  # of the first one
        self._only = True  # no condition restricts anything but this expression
        self._points: set[Point] = set()
        self._ends: list[_End] = []  # of intervals and of single numbers, which are in order and do not overlap

    def add(self, condition: Scalar) -> bool:
        """Add the condition if it is disjoint from all of them; otherwise return false."""
        regions = _regions(condition)
        region = None if self._of is None else regions.get(self._of)
        settled = region is not None and self._only and _says_only(condition, region)
        if region is not None and self._is_free(region):
            self._occupy(region)
        elif settled or not all(disjoint(condition, each) for each in self._all):
            return False
        elif len(self._all) == 1:
            self._tell_apart(regions)
        else:
            self._of = None
        self._all.append(condition)
        if self._of is not None:
            self._only &= _says_only(condition, regions[self._of])
        return True

    def _tell_apart(self, regions: Mapping[Scalar, _Values]) -> None:
        """Find the expression by which the first two differ."""
        for subject, first in self._regions.items():
            if subject in regions:
                self._occupy(first)
                if self._is_free(regions[subject]):
                    self._of, self._only = subject, _says_only(self._all[0], first)
                    self._occupy(regions[subject])
                    return
                self._points.clear()
                self._ends.clear()

    def _is_free(self, region: _Values) -> bool:
        return not any(_blankless(point) in self._points for point in _others(region)) and not any(
            self._overlaps(low, high) for low, high in _stretches(region)
        )

    def _overlaps(self, low: _End, high: _End) -> bool:
        """Whether an interval shares a value with one of those in order."""
        at = bisect_left(self._ends, low)
        return at % 2 == 1 or (at < len(self._ends) and self._ends[at] <= high)

    def _occupy(self, region: _Values) -> None:
        self._points.update(map(_blankless, _others(region)))
        for low, high in _stretches(region):
            at = bisect_left(self._ends, low)
            self._ends[at:at] = [low, high]


# The end of an interval: a number, or no number at all; then whether it lies just below (-1), at (0), or just above it.
_End = tuple[float | Fraction, int]


def _stretches(region: _Values) -> Iterator[tuple[_End, _End]]:
    """The remaining numbers, as intervals with both ends."""
    if region.points is not None:
        yield from (((point, 0), (point, 0)) for point in region.points if isinstance(point, Fraction))
    elif region.low is not None or region.high is not None:
        low: _End = (-math.inf, 0) if region.low is None else (region.low[0], 0 if region.low[1] else 1)
        high: _End = (math.inf, 0) if region.high is None else (region.high[0], 0 if region.high[1] else -1)
        if low <= high:
            yield low, high


def _others(region: _Values) -> Iterator[Point]:
    return (point for point in region.points or () if not isinstance(point, Fraction))


@lru_cache(maxsize=512)
def _regions(condition: Scalar) -> Mapping[Scalar, _Values]:
    """For each expression that a conjunction compares with constants: its remaining values, or an interval."""
    found: dict[Scalar, _Values] = {}
    for part in conjuncts(condition):
        values = _values(part)
        if values is not None and not values.but:
            found[values.of] = _both(found[values.of], values) if values.of in found else values
    return found


def _says_only(condition: Scalar, region: _Values) -> bool:
    """Whether a condition restricts nothing but one expression to its region."""
    parts = [_values(part) for part in conjuncts(condition)]
    return all(values is not None and not values.but and values.of == region.of for values in parts)


def _both(one: _Values, other: _Values) -> _Values:
    """The values that are in both."""
    if one.points is None and other.points is None:
        lows = [each.low for each in (one, other) if each.low is not None]
        highs = [each.high for each in (one, other) if each.high is not None]
        low = max(lows, key=lambda end: (end[0], not end[1]), default=None)
        return _Values(one.of, low=low, high=min(highs, default=None))
    listed, rest = (one, other) if one.points is not None else (other, one)
    return _Values(one.of, points=frozenset(point for point in listed.points or () if rest.has(point)))


@lru_cache(maxsize=512)
def _values(condition: Scalar) -> _Values | None:
    """The values that meet a comparison with constants; None for other conditions."""
    if not isinstance(condition, Call):
        return None
    if condition.op is Op.NOT:
        inner = condition.args[0]
        opposite = _OPPOSITE.get(inner.op) if isinstance(inner, Call) else None
        return _values(replace(inner, op=opposite)) if isinstance(inner, Call) and opposite is not None else None
    subject, *constants = condition.args
    op: Op = condition.op
    if isinstance(subject, Const) and len(constants) == 1 and op in _MIRRORED:
        subject, constants, op = constants[0], [subject], _MIRRORED[op]
    points = [_point(subject, constant) for constant in constants]
    known = frozenset(point for point in points if point is not None)
    if not points or None in points:
        return None
    (first, *rest) = points
    match op:
        case Op.EQ | Op.IN:
            return _Values(subject, points=known)
        case Op.NE:
            return _Values(subject, but=known)
        case Op.LT | Op.LE if isinstance(first, Fraction) and not rest:
            return _Values(subject, high=(first, op is Op.LE))
        case Op.GT | Op.GE if isinstance(first, Fraction) and not rest:
            return _Values(subject, low=(first, op is Op.GE))
        case _:
            return None


def _point(subject: Scalar, constant: Scalar) -> Point | None:
    """A constant as the engine compares it; None where that is not known."""
    if not isinstance(constant, Const) or constant.value is None:
        return None
    kind, other = subject.type.kind, constant.type.kind
    match constant.value:
        case bool() as value:
            return value if kind is Kind.BOOLEAN else None
        case str() as value:
            return value if kind is Kind.TEXT else None
        case int() | float() | Decimal() as value if subject.type.is_numeric and constant.type.is_numeric:
            return _number(float(value), kind) if Kind.DOUBLE in (kind, other) else as_number(value)
        case datetime() as value if subject.type.is_moment and constant.type.is_moment:
            return as_number(value)
        case date() as value if kind is other is Kind.DATE:
            return as_number(value)
        case _:
            return None


def _number(value: float, kind: Kind) -> Fraction | None:
    """As doubles compare; where only the constant is one, the expression may be rounded before it is compared."""
    return Fraction(value) if kind is Kind.DOUBLE and math.isfinite(value) else None
