"""What is known of a column without looking at data: its bounds, its keys, its grain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from fractions import Fraction

from dpsql.types import Value


@dataclass(frozen=True, slots=True)
class Interval:
    """Bounds that the policy or the query itself sets; None where neither does.

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
    tight: bool | None = None  # what the policy says of the bounds


# By the id of a column, or by an expression that a condition restricts to a few values.
Facts = Mapping[object, Fact]

NOTHING = Fact()


# The place of 1970 on the number line of timestamps.
EPOCH_SECOND = date(1970, 1, 1).toordinal() * 86400


def as_datetime(seconds: Fraction) -> datetime:
    """The timestamp at a place on the number line, cut to microseconds."""
    day, rest = divmod(seconds, 86400)
    return datetime.fromordinal(int(day)) + timedelta(microseconds=int(rest * 10**6))


def as_number(value: Value) -> Fraction | None:
    """The place of a constant on the number line; None for NULL, text and booleans."""
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
