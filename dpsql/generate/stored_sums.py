"""Sums of stored columns: what is within its bounds needs no clamp, and what rows add up to can be shaped afterwards.

An engine that knows the smallest and largest value of each block tells rows within the bounds from others nearly for
free. The others, of which there should be none, are clamped one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from dpsql.generate.late_keys import StoredColumn
from dpsql.plan.scalars import Ref
from dpsql.privacy.rules.aggregates import Statistic
from dpsql.privacy.shapes import Shape
from dpsql.types import Kind

# So many digits an engine adds up in 128 bits without overflow; a decimal with more is NULL, and beyond all bounds.
SUMMED_DIGITS = 18
# A sum of decimals is made whole by so many places at most, which leaves room for 10**14 rows.
_MOST_PLACES = 6


@dataclass(frozen=True, slots=True)
class StoredSum:
    """A statistic that is `times` the sum of a stored column, and `plus` the number of its rows."""

    stored: StoredColumn
    low: Fraction
    high: Fraction
    times: int
    plus: int


def stored_sums(statistics: Sequence[Statistic], columns: Mapping[int, StoredColumn]) -> dict[int, StoredSum]:
    """The statistics, by their place, that are sums of a declared column.

    Claim: for rows in which the column is between `low` and `high`, `times` its sum in steps and `plus` for each row is
    what values on their grid add up to.
    Because: such a value is not NULL, clamping and rounding leave it as it is, and the shape is linear.
    Needs: steps that are the column's last digit.
    """
    found = {}
    for i, statistic in enumerate(statistics):
        shape = _linear(statistic)
        if shape is None or not isinstance(statistic.value, Ref) or statistic.where is not None:
            continue
        stored = columns.get(statistic.value.field.id)
        bounds = statistic.bounds
        if stored is None or stored.column.type != statistic.value.type:
            continue
        if bounds.low is None or bounds.high is None or not _is_on_grid(statistic):
            continue
        lows = [bound for bound in (stored.column.lower, bounds.low) if isinstance(bound, Fraction)]
        highs = [bound for bound in (stored.column.upper, bounds.high) if isinstance(bound, Fraction)]
        found[i] = StoredSum(stored, max(lows), min(highs), *shape)
    return found


def _is_on_grid(statistic: Statistic) -> bool:
    assert statistic.value is not None
    type_ = statistic.value.type
    if type_.kind is Kind.DECIMAL:
        if type_.scale > _MOST_PLACES or type_.precision > SUMMED_DIGITS:
            return False
    elif type_.kind is not Kind.INTEGER:
        return False
    ends = [bound for bound in (statistic.bounds.low, statistic.bounds.high) if bound is not None]
    places = 10**type_.scale
    return statistic.step == Fraction(1, places) and all((end * places).denominator == 1 for end in ends)


def _linear(statistic: Statistic) -> tuple[int, int] | None:
    """What a row adds, as so many times its value on the grid, and so much more."""
    match statistic.shape:
        case Shape.ITSELF:
            return 1, 0
        case Shape.CENTRED:
            return 2, -(statistic.low + statistic.high)
        case Shape.RESIDUAL:
            return 1, -statistic.centre
        case Shape.ABOVE:
            return 1, -statistic.low
        case Shape.BELOW:
            return -1, statistic.high
        case _:
            return None
