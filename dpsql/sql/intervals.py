"""Constant intervals: PostgreSQL keeps months, days and seconds apart."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal

from sqlglot import exp

from dpsql.errors import NotSupported
from dpsql.sql.allowed import check_arguments
from dpsql.sql.scope import position


@dataclass(frozen=True, slots=True)
class Span:
    """A constant interval. A day is a calendar day of the time zone; it has 24 hours only without one."""

    months: int
    days: int
    seconds: Decimal


_UNIT_MONTHS = {"MONTH": 1, "MONTHS": 1, "YEAR": 12, "YEARS": 12, "QUARTER": 3}
_UNIT_DAYS = {"DAY": 1, "WEEK": 7}
_UNIT_SECONDS = {
    "MICROSECOND": Decimal("1e-6"), "MILLISECOND": Decimal("1e-3"), "SECOND": Decimal(1), "MINUTE": Decimal(60),
    "HOUR": Decimal(3600),
}  # fmt: skip
_UNITS = {*_UNIT_MONTHS, *_UNIT_DAYS, *_UNIT_SECONDS}
UNITS_HINT = "Write a whole number and a unit from microsecond to year, such as interval '90 minutes'."


def as_span(node: exp.Expression) -> Span | None:
    """A constant interval, or None for anything that is not one.

    A sum of intervals is recognised only in parentheses: without them sqlglot reads a number or a string after a plus
    as part of the interval, whatever the precedence.
    """
    if isinstance(node, exp.Paren) and isinstance(node.this, exp.Add | exp.Sub):
        return _sum_of(node.this)
    while isinstance(node, exp.Paren):
        node = node.this
    if isinstance(node, exp.Neg):
        inside = as_span(node.this)
        return None if inside is None else _sum(_NOTHING, inside, -1)
    if (found := as_multiple(node)) is not None:
        times = _whole_number(found[1])
        return None if times is None else _sum(_NOTHING, found[0], times)
    if isinstance(node, exp.Cast) and node.to.this is exp.DType.INTERVAL:
        node = exp.Interval(this=node.this)
    if not isinstance(node, exp.Interval):
        return None
    check_arguments(node, {"this", "unit"})
    amount, unit = node.this, node.args.get("unit")
    if not isinstance(amount, exp.Literal):
        raise NotSupported("an interval must be a constant", position=position(node))
    words = f"{amount.this} {unit.this if unit is not None else ''}".split()
    if len(words) % 2 or not words:
        raise NotSupported(f"{_written(words)} is not supported", hint=UNITS_HINT, position=position(node))
    months, days, seconds = 0, 0, Decimal(0)
    for number, name in zip(words[::2], words[1::2], strict=True):
        name = name.upper()
        single = name if name in _UNITS else name.removesuffix("S")
        if not re.fullmatch(r"[+-]?\d{1,7}(\.\d{1,6})?", number):
            raise NotSupported(f"{_written(words)} is not supported", hint=UNITS_HINT, position=position(node))
        if single in _UNIT_MONTHS and "." not in number:
            months += int(number) * _UNIT_MONTHS[single]
        elif single in _UNIT_DAYS:
            amount_of_days = Decimal(number) * _UNIT_DAYS[single]
            days += int(amount_of_days)
            seconds += (amount_of_days - int(amount_of_days)) * 86400
        elif single in _UNIT_SECONDS:
            seconds += Decimal(number) * _UNIT_SECONDS[single]
        else:
            raise NotSupported(f"{_written(words)} is not supported", hint=UNITS_HINT, position=position(node))
    return _span(months, days, seconds, position(node))


def _written(words: list[str]) -> str:
    return f"interval '{' '.join(words)[:40]}'"


def _sum_of(node: exp.Expression) -> Span | None:
    """A chain of sums and differences, from left to right."""
    if not isinstance(node, exp.Add | exp.Sub):
        return as_span(node)
    left, right = _sum_of(node.this), as_span(node.expression)
    if left is None or right is None:
        return None
    return _sum(left, right, 1 if isinstance(node, exp.Add) else -1)


def as_multiple(node: exp.Expression) -> tuple[Span, exp.Expression] | None:
    """A constant interval and its factor, on either side."""
    while isinstance(node, exp.Paren):
        node = node.this
    if not isinstance(node, exp.Mul):
        return None
    for side, other in ((node.this, node.expression), (node.expression, node.this)):
        if (span := as_span(side)) is not None:
            return span, other
    return None


def _whole_number(node: exp.Expression) -> int | None:
    sign = 1
    while isinstance(node, exp.Paren | exp.Neg):
        sign = -sign if isinstance(node, exp.Neg) else sign
        node = node.this
    is_number = isinstance(node, exp.Literal) and not node.is_string and re.fullmatch(r"\d{1,7}", str(node.this))
    return sign * int(node.this) if is_number else None


def _sum(left: Span, right: Span, times: int) -> Span:
    days, seconds = left.days + times * right.days, left.seconds + times * right.seconds
    return _span(left.months + times * right.months, days, seconds, None)


def _span(months: int, days: int, seconds: Decimal, at: int | None) -> Span:
    if abs(months) > 12 * 1000 or abs(days * 86400 + seconds) > 366 * 86400 * 1000:
        raise NotSupported("intervals longer than a thousand years are not supported", position=at)
    return Span(months, days, seconds)


_NOTHING = Span(0, 0, Decimal(0))
