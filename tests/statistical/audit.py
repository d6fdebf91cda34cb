"""Lower bounds on privacy loss from what was seen: independent trials on a database and on its neighbour.

An event is chosen on one half of the trials and counted on the other, so that choosing it costs no confidence. Its
probabilities are bounded by Clopper and Pearson (1934): each bound fails with probability at most `MISS`, whatever the
law of the trials is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.stats import beta

MISS = 1e-7  # two bounds for each loss: the chance of a false alarm is at most twice this

Trials = npt.NDArray[np.float64]  # NaN: NULL, or no such row
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Event:
    """Something an analyst may see: a value on one side of `at`, or none at all."""

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
    places = np.unique(np.quantile(trials[~np.isnan(trials)], np.linspace(0, 1, 41)))
    for at in (*places.tolist(), math.nan):
        yield Event(True, at)
        yield Event(False, at)


@dataclass(frozen=True, slots=True)
class Seen:
    """How often an event came, of how many trials."""

    count: int
    trials: int

    @property
    def at_least(self) -> float:
        return 0.0 if self.count == 0 else float(beta.ppf(MISS, self.count, self.trials - self.count + 1))

    @property
    def at_most(self) -> float:
        if self.count == self.trials:
            return 1.0
        return float(beta.ppf(1 - MISS, self.count + 1, self.trials - self.count))


Loss = Callable[[Seen, Seen], float]


def epsilon(one: Seen, other: Seen) -> float:
    """Epsilon-DP: P(event | one) <= exp(epsilon) P(event | other). Hence a lower bound on epsilon."""
    return math.log(one.at_least / other.at_most) if one.at_least > 0 else 0.0


def rho(one: Seen, other: Seen) -> float:
    """rho-zCDP bounds the Kullback-Leibler divergence of the answers, and an event shows no more than the answer.

    Of all probabilities within the bounds, the nearest two: between them the divergence is smallest.
    """
    p, q = one.at_least, other.at_most
    return p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q)) if q < p < 1 else 0.0


def audited(with_unit: Trials, without_unit: Trials, loss: Loss) -> float:
    """The largest loss that the trials prove."""
    assert with_unit.shape == without_unit.shape
    half = len(with_unit) // 2

    def seen(event: Event, trials: Trials) -> Seen:
        return Seen(int(np.count_nonzero(event.of(trials))), len(trials))

    def both(event: Event, part: slice) -> float:
        one, other = seen(event, with_unit[part]), seen(event, without_unit[part])
        return max(loss(one, other), loss(other, one))

    chosen = max(events(np.concatenate([with_unit[:half], without_unit[:half]])), key=lambda e: both(e, slice(half)))
    return both(chosen, slice(half, None))
