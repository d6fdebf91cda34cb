"""The bounds that interval arithmetic finds hold for what the engine computes from rows within declared bounds."""

from __future__ import annotations

import math
from fractions import Fraction

from hypothesis import given

from dpsql.errors import Error, InternalError
from dpsql.plan.scalars import Scalar, walk
from dpsql.privacy.bounds import Facts, as_number, interval
from dpsql.types import Kind
from tests.property.expressions import computed, selections
from tests.property.generate import NUMBERS, thorough
from tests.property.world import Case

ORDERED = (*NUMBERS, Kind.DATE, Kind.TIMESTAMP)


def check_intervals(case: Case) -> int:
    """How many values were held against bounds."""
    held = 0
    for found in computed(case):
        bounds = interval(found.scalar, found.facts)
        slack = _rounding(found.scalar, found.facts)
        for value in found.values:
            if value is None:
                continue
            if isinstance(value, float) and not math.isfinite(value):
                # Doubles overflow; the bounding step takes what comes of it for NULL. Within bounds it must not happen.
                assert not bounds.bounded, f"{found.scalar} = {value}, but {bounds}"
                continue
            number = as_number(value)
            assert number is not None
            held += bounds.low is not None or bounds.high is not None
            assert bounds.low is None or number >= bounds.low - slack, f"{found.scalar} = {value}, but {bounds}"
            assert bounds.high is None or number <= bounds.high + slack, f"{found.scalar} = {value}, but {bounds}"
    return held


def _rounding(scalar: Scalar, facts: Facts) -> Fraction:
    """How far double precision may be off: a billionth of the largest number on the way. Other types are exact."""
    if all(part.type.kind is not Kind.DOUBLE for part in walk(scalar)):
        return Fraction(0)
    ends = [end for part in walk(scalar) for bounds in [interval(part, facts)] for end in (bounds.low, bounds.high)]
    return max((abs(end) for end in ends if end is not None), default=Fraction(0)) / 10**9


def test_values_lie_within_the_bounds_found() -> None:
    held = 0

    @thorough(300)
    @given(case=selections(ORDERED))
    def holds(case: Case) -> None:
        nonlocal held
        try:
            held += check_intervals(case)
        except InternalError:
            raise
        except Error:
            return

    holds()
    assert held > 500
