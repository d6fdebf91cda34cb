"""Lower bounds on privacy loss from independent trials on two neighbouring databases.

An event is chosen on one half of the trials and counted on the other, so that the choice does not affect confidence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Trials = npt.NDArray[np.float64]  # NaN: NULL, or no such row
Flags = npt.NDArray[np.bool_]

ORDERS = (1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 16.0, 32.0)  # of Renyi divergences


@dataclass(frozen=True, slots=True)
class Event:
    """An observable event: a value on one side of `at`, or no value."""

    above: bool
    at: float

    def of(self, trials: Trials) -> Flags:
        if math.isnan(self.at):
            missing: Flags = np.isnan(trials)
            return ~missing if self.above else missing
        # NaN is on neither side, so it goes with the complement.
        above: Flags = trials >= self.at
        return above if self.above else ~above


def events(trials: Trials) -> Iterable[Event]:
    known = trials[~np.isnan(trials)]
    places = np.unique(np.quantile(known, np.linspace(0, 1, 41))) if known.size else known
    for at in (*places.tolist(), math.nan):
        yield Event(True, at)
        yield Event(False, at)


Loss = Callable[[float, float], float]  # of one probability at least the first value, and one at most the second


def epsilon(p: float, q: float) -> float:
    """Epsilon-DP: P(event | one) <= exp(epsilon) P(event | other). Hence a lower bound on epsilon."""
    return math.log(p / q) if p > 0 else 0.0


def rho(p: float, q: float) -> float:
    """rho-zCDP bounds the Renyi divergence of each order alpha > 1 by alpha rho, and Kullback and Leibler's by rho.

    An event reveals no more than the answer. Of all probabilities within the bounds it takes the two closest, which
    minimise every divergence. High orders detect rare events: a key of one person that is returned too often.
    """
    if not q < p < 1:
        return 0.0
    first = p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))
    return max(first, *(_renyi(order, p, q) / order for order in ORDERS))


def _renyi(order: float, p: float, q: float) -> float:
    """Of two Bernoulli distributions; the larger term is factored out, so that nothing overflows."""
    terms = [
        order * math.log(one) + (1 - order) * math.log(other) for one, other in ((p, q), (1 - p, 1 - q)) if one > 0
    ]
    largest = max(terms)
    return (largest + math.log(sum(math.exp(term - largest) for term in terms))) / (order - 1)


def beside_delta(loss: Loss, delta: float) -> Loss:
    """The loss of the remainder if, with weight `delta`, anything may happen.

    Claim: a lower bound on the loss of the remainder.
    Because: both answers are mixtures in which that part has weight 1 - delta. Of an event's probability p, at least
    p - delta comes from it; of q, at most all.
    Needs: a delta of the form that `privacy.mechanisms.threshold` has.
    """

    def remaining(p: float, q: float) -> float:
        return loss(max((p - delta) / (1 - delta), 0.0), min(q / (1 - delta), 1.0))

    return loss if delta == 0 else remaining


def audited(with_unit: Trials, without_unit: Trials, loss: Loss) -> float:
    """The largest loss that the trials prove."""
    assert with_unit.shape == without_unit.shape
    half = len(with_unit) // 2

    def seen(event: Event, trials: Trials) -> Seen:
        return Seen(int(np.count_nonzero(event.of(trials))), len(trials))

    def guessed(event: Event) -> float:
        one, other = seen(event, with_unit[:half]), seen(event, without_unit[:half])
        return max(loss(one.rough(-1), other.rough(1)), loss(other.rough(-1), one.rough(1)))

    chosen = max(events(np.concatenate([with_unit[:half], without_unit[:half]])), key=guessed)
    one, other = seen(chosen, with_unit[half:]), seen(chosen, without_unit[half:])
    return max(loss(one.at_least, other.at_most), loss(other.at_least, one.at_most))


# ------------------------------------------------------------
# Confidence bounds on the probability of an event (Clopper and Pearson 1934).

# Each bound is wrong with at most this probability, whatever the law of the trials. For one kind of answer there are
# four for each of five habits, and one of delta for each of two: less than two in a million.
MISS = 5e-8


@dataclass(frozen=True, slots=True)
class Seen:
    """The number of occurrences of an event, and of trials."""

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
        """A bound five deviations below (-1) or above (1): to select events, not for proof."""
        share = self.count / self.trials
        spread = 5 * math.sqrt(share * (1 - share) / self.trials) + 15 / self.trials
        return min(max(share + side * spread, 0.0), 1.0)


def binomial_tail(count: int, trials: int, p: float) -> float:
    """P(X >= count) for X ~ Binomial(trials, p), count >= 1: the regularised incomplete beta function.

    Computed by its continued fraction (Lentz's method), on the side where that converges fast.
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
