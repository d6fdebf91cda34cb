"""How likely an event is, at least and at most, from how often it was seen: Clopper and Pearson's bounds (1934)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

MISS = 1e-7  # each bound is wrong with at most this probability, whatever the law of the trials


@dataclass(frozen=True, slots=True)
class Seen:
    """How often an event came, of how many trials."""

    count: int
    trials: int

    @property
    def at_least(self) -> float:
        if self.count == 0:
            return 0.0
        return _root(lambda p: binomial_tail(self.count, self.trials, p) - MISS)

    @property
    def at_most(self) -> float:
        if self.count == self.trials:
            return 1.0
        return _root(lambda p: binomial_tail(self.count + 1, self.trials, p) - (1 - MISS))

    def rough(self, side: int) -> float:
        """Below (-1) or above (1) by five deviations and a little: to choose by, not to prove with."""
        share = self.count / self.trials
        spread = 5 * math.sqrt(share * (1 - share) / self.trials) + 15 / self.trials
        return min(max(share + side * spread, 0.0), 1.0)


def binomial_tail(count: int, trials: int, p: float) -> float:
    """P(X >= count) of `trials` coins of probability p: the regularised incomplete beta function, for count >= 1.

    By its continued fraction (Lentz's method), on the side where that converges fast.
    """
    if p <= 0 or p >= 1:
        return 0.0 if p <= 0 else 1.0
    a, b = float(count), float(trials - count + 1)
    front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(p) + b * math.log1p(-p)
    if p < (a + 1) / (a + b + 2):
        return math.exp(front) * _fraction(a, b, p) / a
    return 1 - math.exp(front) * _fraction(b, a, 1 - p) / b


def _fraction(a: float, b: float, x: float) -> float:
    tiny = 1e-300
    c, d = 1.0, 1 / ((1 - (a + b) * x / (a + 1)) or tiny)
    found = d
    for m in range(1, 10_000):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / ((1 + term * d) or tiny)
            c = (1 + term / c) or tiny
            found *= c * d
        if abs(c * d - 1) < 1e-14:
            break
    return found


def _root(rising: Callable[[float], float]) -> float:
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if rising(middle) > 0 else (middle, high)
    return low
