"""The basis of estimators: what a row adds to a sum, an integer computed from its value on the grid.

With g the value of the row, low and high the ends of the grid and N = high - low, every shape is a polynomial of g with
integer coefficients, so that sums stay exact. The shapes of PAIR, and of BERNSTEIN (Bernstein polynomials of degree 2),
add up to a constant:

    (g - low) + (high - g)                                 = N
    (high - g)² + 2 (g - low)(high - g) + (g - low)²       = N²

so what a row adds to all sums of the group together does not depend on its value, and the sums give the number of rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction


class Shape(Enum):
    ITSELF = "g"
    CENTRED = "2g - low - high"  # doubled, so that the middle of the bounds is on the grid
    RESIDUAL = "g - centre"  # an earlier measurement chose the centre, on the grid
    ABOVE = "g - low"
    BELOW = "high - g"
    TWICE_BELOW = "(high - g)²"
    BETWEEN = "2 (g - low)(high - g)"
    TWICE_ABOVE = "(g - low)²"


PAIR = (Shape.ABOVE, Shape.BELOW)
BERNSTEIN = (Shape.TWICE_BELOW, Shape.BETWEEN, Shape.TWICE_ABOVE)

# In L2 the middle one of three may have a larger weight: with p = t(1 - t) and its square weighed 7/2, the squares of
# all three together are 1 - 4p + 2p² + 14p², convex in p, and 1 at both ends of [0, 1/4]. (28 / 15)² is a little less.
BETWEEN_IN_L2 = Fraction(15, 28)


@dataclass(frozen=True, slots=True)
class Polynomial:
    """A polynomial of degree 2."""

    squares: int
    times: int
    plus: int

    def above(self, low: int) -> Polynomial:
        """The same polynomial in the difference from `low`."""
        times = 2 * low * self.squares + self.times
        return Polynomial(self.squares, times, (self.squares * low + self.times) * low + self.plus)


def polynomial(shape: Shape, low: int, high: int, centre: int) -> Polynomial:
    """What a row adds, as a polynomial of its value on the grid."""
    match shape:
        case Shape.ITSELF:
            return Polynomial(0, 1, 0)
        case Shape.CENTRED:
            return Polynomial(0, 2, -low - high)
        case Shape.RESIDUAL:
            return Polynomial(0, 1, -centre)
        case Shape.ABOVE:
            return Polynomial(0, 1, -low)
        case Shape.BELOW:
            return Polynomial(0, -1, high)
        case Shape.TWICE_BELOW:
            return Polynomial(1, -2 * high, high**2)
        case Shape.BETWEEN:
            return Polynomial(-2, 2 * (low + high), -2 * low * high)
        case Shape.TWICE_ABOVE:
            return Polynomial(1, -2 * low, low**2)


def largest(shape: Shape, low: int, high: int) -> int:
    """What one row adds at most."""
    width = max(high - low, 1)
    match shape:
        case Shape.ITSELF:
            return max(abs(low), abs(high), 1)
        case Shape.CENTRED | Shape.RESIDUAL | Shape.ABOVE | Shape.BELOW:
            return width
        case _:
            return width**2


def weighed(shape: Shape, low: int, high: int, *, squares: bool) -> int:
    """The size of a shape within its group: what one row adds, divided by these sizes, adds up to at most 1.

    Claim: over the shapes of a group, |added| / weighed adds up to at most 1; with `squares`, its squares do.
    Because: see above: the shapes add up to N or N². In L2 the size of BETWEEN is 15/28 of that of the others; so that
    both are whole and have a small common multiple, N² is rounded up to a multiple of 28 where that is next to nothing.
    Needs: low < high.
    """
    size = largest(shape, low, high)
    if not squares or shape not in BERNSTEIN:
        return size
    if size >= 2800:
        size = -(-size // 28) * 28
    return math.ceil(size * BETWEEN_IN_L2) if shape is Shape.BETWEEN else size
