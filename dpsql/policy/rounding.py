"""Rounds the extremes of a column outward to numbers that people would have chosen, and that tell less."""

from __future__ import annotations

import math
from datetime import date, datetime
from decimal import Decimal
from fractions import Fraction

_PARTS = 10  # a range is rounded to about a tenth of its width
_LARGEST = 10**15  # beyond it a sum of many rows would not fit into 64 bits
_SMALLEST = Fraction(1, 10**9)


def round_outward(
    low: int | Decimal | float | date | datetime, high: int | Decimal | float | date | datetime
) -> tuple[Fraction | date, Fraction | date] | None:
    """Bounds around both; whole years for dates. None if they are too large to be of use."""
    if isinstance(low, date) and isinstance(high, date):
        return date(low.year, 1, 1), date(high.year, 12, 31)
    if isinstance(low, date) or isinstance(high, date):
        raise TypeError("bounds are of one type")
    smallest, largest = Fraction(low), Fraction(high)
    if max(abs(smallest), abs(largest)) > _LARGEST:
        return None
    whole = isinstance(low, int) and isinstance(high, int)
    step = _step((largest - smallest) or max(abs(largest), Fraction(1)), whole)
    lower, upper = math.floor(smallest / step) * step, math.ceil(largest / step) * step
    return (lower, upper) if lower < upper else (lower, upper + step)


def round_up(count: int) -> int:
    """The next of 1, 2, 5, 10, 20, 50, …"""
    return int(_ladder(Fraction(count)))


def _step(width: Fraction, whole: bool) -> Fraction:
    step = _ladder(width / _PARTS)
    return max(step, Fraction(1)) if whole else step


def _ladder(least: Fraction) -> Fraction:
    """The smallest of 1, 2, 5 times a power of ten that is not below `least`."""
    power = Fraction(10) ** math.floor(math.log10(max(least, _SMALLEST)))
    return next((power * part for part in (1, 2, 5) if power * part >= least), power * 10)
