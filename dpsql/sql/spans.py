"""Constant intervals: PostgreSQL keeps months, days and seconds apart."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal

from sqlglot import exp

from dpsql.errors import NotSupported
from dpsql.sql.allowed import check_arguments
from dpsql.sql.names import position


@dataclass(frozen=True, slots=True)
class Span:
    """A constant interval."""

    months: int
    days: int
    seconds: Decimal


_UNIT_MONTHS = {"MONTH": 1, "MONTHS": 1, "YEAR": 12, "YEARS": 12, "QUARTER": 3}
_UNIT_SECONDS = {"SECOND": 1, "MINUTE": 60, "HOUR": 3600, "DAY": 86400, "WEEK": 7 * 86400}


def as_span(node: exp.Expression) -> Span | None:
    """A constant interval, or None for anything that is not one."""
    while isinstance(node, exp.Paren):
        node = node.this
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
        raise NotSupported(
            "this interval cannot be read", hint="Write it as interval '1 day'.", position=position(node)
        )
    months, seconds = 0, Decimal(0)
    for number, name in zip(words[::2], words[1::2], strict=True):
        name = name.upper()
        single = name if name in _UNIT_SECONDS or name in _UNIT_MONTHS else name.removesuffix("S")
        if not re.fullmatch(r"[+-]?\d{1,7}(\.\d{1,6})?", number):
            raise NotSupported("this interval cannot be read", position=position(node))
        if single in _UNIT_MONTHS and "." not in number:
            months += int(number) * _UNIT_MONTHS[single]
        elif single in _UNIT_SECONDS:
            seconds += Decimal(number) * _UNIT_SECONDS[single]
        else:
            raise NotSupported("this unit of an interval is not supported", position=position(node))
    if abs(months) > 12 * 1000 or abs(seconds) > 366 * 86400 * 1000:
        raise NotSupported("intervals longer than a thousand years are not supported", position=position(node))
    days = int(seconds / 86400)
    return Span(months, days, seconds - days * 86400)
