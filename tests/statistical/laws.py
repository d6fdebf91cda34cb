"""The laws that noise should have, and a test whether draws have them."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import ceil, exp, sqrt
from typing import Protocol

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from dpsql.tables import Integers

# The chance that one call of `fits` or `same_law` refuses draws of the right law.
FALSE_ALARM = 1e-9

# From this many expected draws per cell on, the chi-square approximation holds far into its tail.
_CELL = 500

# From this deviation on, the normal integral gives the tail of the discrete Gaussian to about seven digits.
_WIDE = 1000


class Law(Protocol):
    """A law on the integers that is symmetric around zero."""

    def tail(self, least: int) -> float:
        """P(X >= least), for least >= 1."""
        ...


@dataclass(frozen=True)
class DiscreteLaplace:
    """P(x) proportional to exp(-|x| / scale)."""

    scale: Fraction

    def tail(self, least: int) -> float:
        rate = 1 / float(self.scale)
        return exp(-least * rate) / (1 + exp(-rate))


@dataclass(frozen=True)
class DiscreteGaussian:
    """P(x) proportional to exp(-x² / (2 · variance))."""

    variance: Fraction

    def tail(self, least: int) -> float:
        deviation = sqrt(self.variance)
        if deviation >= _WIDE:
            return float(special.ndtr(-(least - 0.5) / deviation))
        return float(self._tails[least]) if least < len(self._tails) else 0.0

    @cached_property
    def _tails(self) -> npt.NDArray[np.float64]:
        x = np.arange(ceil(40 * sqrt(self.variance)) + 2)
        weights = np.exp(-(x**2) / float(2 * self.variance))
        total = 2 * weights.sum() - weights[0]
        tails: npt.NDArray[np.float64] = weights[::-1].cumsum()[::-1] / total
        return tails


def cumulative(law: Law, x: int) -> float:
    """P(X <= x)."""
    return law.tail(-x) if x < 0 else 1 - law.tail(x + 1)


def fits(draws: Integers, law: Law) -> bool:
    """Whether the draws may come from the law; refuses the right one with probability `FALSE_ALARM`.

    Two tests share that probability. The counts of cells of about equal probability, tails pooled, by chi-square:
    it sees many small deviations. The counts below each of a number of limits, and of sizes above them, by their
    exact binomial laws and a union bound: they see a wrong scale, a wrong sign and single rare values.
    """
    limits = _limits(law, len(draws))
    below = np.searchsorted(np.sort(draws), limits, side="right")
    chances = np.array([cumulative(law, x) for x in limits])
    positive = [x for x in limits if x >= 0]
    beyond = len(draws) - np.searchsorted(np.sort(np.abs(draws)), positive, side="right")
    counts = np.concatenate((below, beyond))
    all_chances = np.concatenate((chances, [2 * law.tail(x + 1) for x in positive]))
    rarest = _binomial(counts, len(draws), all_chances).min()
    return _even_cells(below, chances, len(draws)) and bool(rarest > FALSE_ALARM / 2 / len(counts))


def same_law(first: Integers, second: Integers) -> bool:
    """Whether two samples may come from one law; refuses two that do with probability `FALSE_ALARM`."""
    pooled = np.sort(np.concatenate((first, second)))
    # Limits taken from the pooled sample: given it, which draw came from which sampler is what is tested.
    limits = np.unique(pooled[_CELL : -2 * _CELL : 2 * _CELL])
    cells = len(limits) + 1
    table = np.array([np.bincount(np.searchsorted(limits, draws), minlength=cells) for draws in (first, second)])
    return bool(stats.chi2_contingency(table).pvalue > FALSE_ALARM)


def _limits(law: Law, size: int) -> list[int]:
    """Integers that cut the law into 64 parts of about equal probability, and its tails further by halves."""
    chances = [part / 64 for part in range(1, 32)]
    while chances[0] > 0.1 / size:
        chances.insert(0, chances[0] / 2)
    right = {_limit(law, chance) for chance in chances}
    return sorted(right | {-1 - x for x in right})


def _limit(law: Law, chance: float) -> int:
    """The smallest x >= 0 with P(X > x) <= chance."""
    low, high = -1, 2**62
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if law.tail(middle + 1) <= chance else (middle, high)
    return high


def _even_cells(below: npt.NDArray[np.int64], chances: npt.NDArray[np.float64], size: int) -> bool:
    """Chi-square over neighbouring cells, joined until each expects at least `_CELL` draws."""
    observed = np.diff([0, *below, size])
    expected = np.diff([0, *chances, 1]) * size
    starts = [0]
    for index in range(1, len(expected)):
        if expected[starts[-1] : index].sum() >= _CELL <= expected[index:].sum():
            starts.append(index)
    if len(starts) == 1:
        return True
    observed, expected = np.add.reduceat(observed, starts), np.add.reduceat(expected, starts)
    distance = ((observed - expected) ** 2 / expected).sum()
    return bool(stats.chi2.sf(distance, len(starts) - 1) > FALSE_ALARM / 2)


def _binomial(counts: npt.NDArray[np.int64], size: int, chances: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Twice the smaller exact tail probability of each count."""
    law = stats.binom(size, chances)
    return 2 * np.minimum(np.asarray(law.cdf(counts), np.float64), np.asarray(law.sf(counts - 1), np.float64))
