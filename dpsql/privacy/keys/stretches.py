"""Time zones in keys: stretches of a column's values in which all zones involved keep their offset.

Claim: `stretches` covers all values between the bounds, and within each stretch every conversion adds the same.
Because: what a conversion adds is a step function of the moment (`zones.Steps`), and a stretch ends where it steps.
Needs: bounds within the years whose changes are listed, and moments that no conversion moves out of the calendar.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from dpsql.plan.scalars import Call, Op, Scalar, as_moment
from dpsql.plan.zones import known_zone
from dpsql.privacy.bounds import EPOCH_SECOND, as_datetime

# AT TIME ZONE, from the innermost on: its direction, and the name of the zone.
Conversions = tuple[tuple[Op, str], ...]


@dataclass(frozen=True, slots=True)
class Stretch:
    """Values from `start` to before `end`, in seconds, and what conversions add to them."""

    start: Fraction
    end: Fraction
    ahead: int


def converted(value: Scalar) -> tuple[Scalar, Conversions]:
    """The expression inside conversions between zones, and these conversions."""
    moment = as_moment(value)
    if isinstance(moment, Call) and moment.op in (Op.TO_ZONE, Op.FROM_ZONE):
        inner, before = converted(moment.args[0])
        return inner, (*before, (moment.op, moment.option))
    return value, ()


def stretches(conversions: Conversions, low: Fraction, high: Fraction) -> list[Stretch] | None:
    """The stretches between the bounds; None where they are unknown."""
    found = [Stretch(low, high, 0)]
    for op, name in conversions:
        split: list[Stretch] = []
        for stretch in found:
            parts = _split(stretch, op, name)
            if parts is None:
                return None
            split += parts
        found = split
    return found


def _split(stretch: Stretch, op: Op, name: str) -> list[Stretch] | None:
    zone = known_zone(name)
    steps = zone.leaving if op is Op.TO_ZONE else zone.arriving
    low, high = stretch.start + stretch.ahead, stretch.end + stretch.ahead
    try:
        between = steps.between(as_datetime(low), as_datetime(high))
    except (ValueError, OverflowError):
        return None
    if between.repeats is not None or between.inside is not None:
        return None
    places = [(stretch.start, between.first)]
    places += [(Fraction(at + EPOCH_SECOND - stretch.ahead), seconds) for at, seconds in between.changes]
    ends = [*(start for start, _ in places[1:]), stretch.end]
    pairs = zip(places, ends, strict=True)
    return [Stretch(start, end, stretch.ahead + seconds) for (start, seconds), end in pairs]


def moments(found: list[Stretch], local: Fraction) -> Iterator[Fraction]:
    """The values that may have this local time."""
    return (local - stretch.ahead for stretch in found)
