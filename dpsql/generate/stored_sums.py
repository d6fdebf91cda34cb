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
from dpsql.privacy.shapes import Polynomial, polynomial
from dpsql.types import Kind

# So many digits an engine adds up in 128 bits without overflow; a decimal with more is NULL, and beyond all bounds.
SUMMED_DIGITS = 18
# So many digits may be squared, which makes as many as are added up.
SQUARED_DIGITS = 9
# A sum of decimals is made whole by so many places at most, which leaves room for 10**14 rows.
_MOST_PLACES = 6


@dataclass(frozen=True, slots=True)
class StoredSum:
    """A statistic that is made of the sums of a stored column and of its squares, and of the number of its rows."""

    stored: StoredColumn
    low: Fraction
    high: Fraction
    made: Polynomial  # of the column in steps


def stored_sums(statistics: Sequence[Statistic], columns: Mapping[int, StoredColumn]) -> dict[int, StoredSum]:
    """The statistics, by their place, that are sums of a declared column.

    Claim: for rows in which the column is between `low` and `high`, what is made of their number, of its sum in steps
    and of that of its squares is what values on their grid add up to.
    Because: such a value is not NULL, clamping and rounding leave it as it is, and every shape is a polynomial.
    Needs: steps that are the column's last digit; squares that are exact.
    """
    found = {}
    for i, statistic in enumerate(statistics):
        if not isinstance(statistic.value, Ref) or statistic.where is not None:
            continue
        stored = columns.get(statistic.value.field.id)
        bounds = statistic.bounds
        if stored is None or stored.column.type != statistic.value.type:
            continue
        made = polynomial(statistic.shape, statistic.low, statistic.high, statistic.centre)
        if bounds.low is None or bounds.high is None or not _is_on_grid(statistic, squared=made.squares != 0):
            continue
        lows = [bound for bound in (stored.column.lower, bounds.low) if isinstance(bound, Fraction)]
        highs = [bound for bound in (stored.column.upper, bounds.high) if isinstance(bound, Fraction)]
        found[i] = StoredSum(stored, max(lows), min(highs), made)
    return found


def _is_on_grid(statistic: Statistic, *, squared: bool) -> bool:
    assert statistic.value is not None
    type_ = statistic.value.type
    if type_.kind is Kind.DECIMAL:
        if type_.scale * (2 if squared else 1) > _MOST_PLACES or type_.precision > SUMMED_DIGITS:
            return False
    elif type_.kind is not Kind.INTEGER:
        return False
    places = 10**type_.scale
    ends = [bound * places for bound in (statistic.bounds.low, statistic.bounds.high) if bound is not None]
    if squared and any(abs(end) >= 10**SQUARED_DIGITS for end in ends):
        return False
    return statistic.step == Fraction(1, places) and all(end.denominator == 1 for end in ends)
