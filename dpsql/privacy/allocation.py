"""Splits a price among the parts of a query, for the least total error.

With a share s of the price, the variance of a part is a / s² under Laplace noise (price: epsilon) and a / s under
Gaussian noise (price: rho); a is the weight of its variance in the answers. The sum over all parts is least where
shares are in proportion to the cube root of a, or to its square root. Any split is private; this one has the least
error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Literal

Degree = Literal[2, 3]  # of the root: 2 for Gaussian noise, 3 for Laplace noise

_BITS = 40  # of the fixed point in which roots are taken


def shares(loss: int, weights: Sequence[Fraction], degree: Degree) -> list[int]:
    """Split a loss, in grains, by these weights; the parts add up to no more than the whole."""
    roots = [_root(math.floor(weight * 2 ** (degree * _BITS)), degree) for weight in weights]
    total = sum(roots)
    return [loss * root // total for root in roots]


def error(weights: Sequence[Fraction], degree: Degree) -> float:
    """The sum of all variances at the best split of one, to the power of 1 / degree: in this form it adds up."""
    return math.fsum(float(weight) ** (1 / degree) for weight in weights)


def _root(value: int, degree: Degree) -> int:
    """The whole part of a root."""
    if degree == 2 or value == 0:
        return math.isqrt(value)
    guess = 1 << -(-value.bit_length() // degree)
    while (better := (2 * guess + value // (guess * guess)) // 3) < guess:
        guess = better
    return guess
