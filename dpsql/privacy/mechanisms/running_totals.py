"""Running totals: the root of the totals under Gaussian noise, a tree of stretches under Laplace noise.

Running totals with little noise: noise goes on a root of the running totals, and is spread by the other root.

Let A be the matrix that makes running totals of n cells (ones on and below the diagonal), and C the lower triangular
matrix with C C = A; its columns repeat the coefficients of (1 - t)^(-1/2). Noise on x grows with the number of cells in
A x, noise on A x with that of the totals that one unit moves. With y = C x + z, the totals C y = A x + C z have noise
that grows with the logarithm of n on both ways. Everything after y is post-processing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

from dpsql.privacy.noise_laws import Noise
from dpsql.privacy.stability import Sensitivity
from dpsql.types import Value

SCALE = 2**16  # C in fixed point: whole numbers, so that C x is exact
LONGEST = 10_000  # cells in one chain
LEAST_GAIN = 1.5  # in variance

_DEVIATIONS = 1.9599639845400545 * 1.0001  # of 95 %, and more than what fixed point does to C


@dataclass(frozen=True, slots=True)
class Along:
    """A key along which is added up, as in ORDER BY."""

    key: int
    descending: bool = False
    nulls_first: bool = False


@dataclass(frozen=True, slots=True)
class Chains:
    """The cells of a measurement in chains: one for each combination of the other keys, `length` cells long."""

    along: tuple[Along, ...]
    length: int

    def places(self, cells: Sequence[tuple[Value, ...]]) -> list[int]:
        """The places of all cells, chain after chain, each in its order."""
        order = list(range(len(cells)))
        for step in reversed(self.along):  # sorting is stable: the last key first
            known = [place for place in order if cells[place][step.key] is not None]
            nulls = [place for place in order if cells[place][step.key] is None]
            known.sort(key=lambda place: cells[place][step.key], reverse=step.descending)  # type: ignore[arg-type,return-value]
            order = nulls + known if step.nulls_first else known + nulls
        along = {step.key for step in self.along}
        chains: dict[tuple[Value, ...], list[int]] = {}
        for place in order:
            rest = tuple(value for i, value in enumerate(cells[place]) if i not in along)
            chains.setdefault(rest, []).append(place)
        return [place for chain in chains.values() for place in chain]


@dataclass(frozen=True, slots=True)
class RunningTotals:
    """Sums of declared cells in chains, some of which are asked for as running totals."""

    chains: Chains
    chained: tuple[int, ...]  # of which statistics
    rooted: bool = True  # whether noise is on their root; else each cell has its own, as where 64 bits hold no other

    def is_rooted(self, statistic: int) -> bool:
        return self.rooted and statistic in self.chained

    def noise(self, statistic: int, noise: Noise, claim: Sensitivity) -> Noise:
        """What is drawn for a sum, where `noise` is that of its cells alone."""
        return widened(noise, self.chains.length, claim) if self.is_rooted(statistic) else noise

    def cell_margin(self, noise: Noise, factor: int) -> int:
        return cell_margin(noise, self.chains.length, factor)

    def margins(self, noise: Noise, factor: int) -> list[int]:
        return running_margins(noise, self.chains.length, factor)


def chains_of(along: tuple[Along, ...], cells: Sequence[tuple[Value, ...]]) -> Chains | None:
    """The chains of these cells; None where some are longer than others, for not every combination is possible."""
    keys = {step.key for step in along}
    lengths = Counter(tuple(value for i, value in enumerate(cell) if i not in keys) for cell in cells)
    different = set(lengths.values())
    return Chains(along, different.pop()) if len(different) == 1 else None


@lru_cache(maxsize=64)
def coefficients(length: int) -> tuple[int, ...]:
    """The first column of C in fixed point: binom(2k, k) / 4^k, rounded."""
    fine = 2**64
    exact = accumulate(range(1, length), lambda last, k: last * (2 * k - 1) // (2 * k), initial=SCALE * fine)
    return tuple((value + fine // 2) // fine for value in exact)


def widened(noise: Noise, length: int, claim: Sensitivity) -> Noise:
    """The noise of C x, where `noise` is that of x, of which one unit moves at most what is claimed.

    Claim: C x plus this noise costs what x plus `noise` costs.
    Because: a unit moves entries of x by d_1, d_2 …, and C x by the sum of d_j times a column of C each. The norm of
    that is at most the sum of the |d_j|, which is at most l1, times the norm of the first column, which holds all
    coefficients. `noise` is made for l2, so it is widened by l1 / l2 and by that norm, all in whole numbers. Whichever
    coefficients were taken, they decide about accuracy alone.
    Needs: one cell per unit, or a clip in L1. Laplace noise goes on the sums of stretches instead (`Tree.noise`).
    """
    if noise.law != "gaussian":
        return tree(length).noise(noise)
    longer = claim.l1**2 / claim.l2_squared
    return Noise("gaussian", noise.scale * longer * sum(part * part for part in coefficients(length)))


def worthwhile(length: int, law: str, *, singly: bool) -> bool:
    """Whether noise on the root is better for what is asked: the totals, and `singly` the cells as well.

    Of both, the gain in the one counts as much as the loss in the other. A small gain is not worth it: the noise of
    different cells is then no longer independent, and sums of some of them have no margin.
    """
    if not 2 <= length <= LONGEST:
        return False
    if law == "laplace":
        return tree_gain(length) > (cell_loss(length) if singly else LEAST_GAIN)
    column = _squares(length)[-1]
    gain = (length + 1) / 2 / (column * math.fsum(_squares(length)) / length)
    return gain > (column * _cell(length) if singly else LEAST_GAIN)


def running_margins(noise: Noise, length: int, factor: int) -> list[int]:
    """The 95 % margins of the running totals along a chain, where `noise` is that of C x, or of each level."""
    if noise.law == "laplace":
        found = tree(length).total_variances(length)
        return [_laplace_margin(noise, variance, factor, 0.5) for variance in found]
    deviation = math.sqrt(noise.scale) / SCALE
    return [_margin(deviation * math.sqrt(square), factor, 0.5) for square in _squares(length)]


def cell_margin(noise: Noise, length: int, factor: int) -> int:
    """That of a cell, the difference of two totals: the last one's, which is the widest."""
    if noise.law == "laplace":
        return _laplace_margin(noise, tree(length).cell_variance(), factor, 1)
    return _margin(math.sqrt(noise.scale) / SCALE * math.sqrt(_cell(length)), factor, 1)


def _laplace_margin(noise: Noise, variance: float, factor: int, rounding: float) -> int:
    """As if all were one Laplace law: sums of several have narrower tails."""
    return math.ceil(math.log(20) * float(noise.scale) * math.sqrt(variance) / factor + rounding)


def _margin(deviation: float, factor: int, rounding: float) -> int:
    return math.ceil(_DEVIATIONS * deviation / factor + rounding)


@lru_cache(maxsize=64)
def _squares(length: int) -> tuple[float, ...]:
    """The squared norm of each row of C."""
    terms = accumulate(range(1, length), lambda last, k: last * (2 * k - 1) / (2 * k), initial=1.0)
    return tuple(accumulate(term * term for term in terms))


@lru_cache(maxsize=64)
def _cell(length: int) -> float:
    """The squared norm of the last row of the inverse of C, the coefficients of (1 - t)^(1/2)."""
    terms = accumulate(range(1, length), lambda last, k: last * (2 * k - 3) / (2 * k), initial=1.0)
    return math.fsum(term * term for term in terms)


# ------------------------------------------------------------
# Running totals under Laplace noise: sums of stretches are measured as well, and all that is measured agrees.
#
# Cells are level 0; a stretch of a level is as many neighbouring ones of the level below as the tree's fan says. With
# all levels equally sure, the cells that are closest to everything measured (least squares) are known in closed form:
# let P_l average over the stretches of level l. Measurements are worth the sum of B_l P_l, where B_l is the length of
# a stretch; since these averages are nested, that sum is inverted part by part: the part P_l - P_(l+1) by B_0 + … +
# B_l.

MOST_LEVELS = 5
_FANS = range(2, 97)


@dataclass(frozen=True, slots=True)
class Tree:
    lengths: tuple[int, ...]  # of a stretch of each level, from 1 on, each a multiple of the one before

    def noise(self, whole: Noise) -> Noise:
        """The noise of each level, where `whole` is that which the whole price would buy for the cells alone.

        Claim: all levels with it cost what the cells with `whole` cost.
        Because: what one unit adds to the cells is added to one stretch of each level, so that it moves the sums of a
        level by no more in L1 than the cells. Each level then costs an equal share of the price.
        Needs: Laplace noise, made for a bound in L1 of what a unit moves over all cells.
        """
        if whole.law != "laplace":
            raise ValueError("stretches are measured with Laplace noise")
        return Noise("laplace", whole.scale * len(self.lengths))

    def total_variances(self, length: int) -> list[float]:
        """Of the running totals along a chain, beside that of a cell with the noise of one level."""
        return [self.total_variance(k) for k in range(1, length + 1)]

    def total_variance(self, cells: int) -> float:
        return self._variance([_squared(cells, stretch) for stretch in self.lengths])

    def cell_variance(self) -> float:
        return self._variance([1 / stretch for stretch in self.lengths])

    def _variance(self, squares: list[float]) -> float:
        """Of a sum of cells, from the squared lengths of its averages over the stretches of each level."""
        known = accumulate(self.lengths)
        return math.fsum((a - b) / sure for a, b, sure in zip(squares, [*squares[1:], 0.0], known, strict=True))


def _squared(cells: int, stretch: int) -> float:
    """Of the first so many cells, each one, averaged over stretches."""
    whole, rest = divmod(cells, stretch)
    return whole * stretch + rest * rest / stretch


@lru_cache(maxsize=64)
def tree(length: int) -> Tree:
    """That with which running totals of a chain are closest to the truth, on average."""
    fans = [(fan, levels) for levels in range(2, MOST_LEVELS + 1) for fan in _FANS if fan ** (levels - 1) < length]
    trees = [Tree(tuple(fan**level for level in range(levels))) for fan, levels in fans]
    return min([Tree((1,)), *trees], key=lambda tried: _mean_variance(tried, length))


def _mean_variance(tried: Tree, length: int) -> float:
    """Of all running totals, or of some where there are many, at the price of the whole."""
    some = range(1, length + 1, 1 if length <= 1_000 else 97)  # a prime that is no fan: all places in a stretch
    found = list(map(tried.total_variance, some))
    return math.fsum(found) / len(found) * len(tried.lengths) ** 2


def tree_gain(length: int) -> float:
    """In the variance of running totals, beside sums of cells with the noise of the whole price."""
    return (length + 1) / 2 / _mean_variance(tree(length), length)


def cell_loss(length: int) -> float:
    """How many times as large the variance of a single cell becomes."""
    found = tree(length)
    return found.cell_variance() * len(found.lengths) ** 2
