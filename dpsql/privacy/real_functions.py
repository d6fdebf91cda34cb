"""Bounds of real functions: powers, roots, angles. Computed in doubles, and widened by more than these round."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

from dpsql.plan.scalars import Call, Op
from dpsql.privacy.facts import UNBOUNDED, Interval

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
        corners.append(1.0)  # of zero, too
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
