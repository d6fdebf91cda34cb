"""Running totals under Laplace noise: sums of stretches are measured as well, and all that is measured agrees.

Cells are level 0; a stretch of a level is as many neighbouring ones of the level below as the tree's fan says. With all
levels equally sure, the cells that are closest to everything measured (least squares) are known in closed form: let P_l
average over the stretches of level l. Measurements are worth the sum of B_l P_l, where B_l is the length of a stretch;
since these averages are nested, that sum is inverted part by part: the part P_l - P_(l+1) by B_0 + … + B_l.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

from dpsql.privacy.mechanisms import Noise

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


def gain(length: int) -> float:
    """In the variance of running totals, beside sums of cells with the noise of the whole price."""
    return (length + 1) / 2 / _mean_variance(tree(length), length)


def cell_loss(length: int) -> float:
    """How many times as large the variance of a single cell becomes."""
    found = tree(length)
    return found.cell_variance() * len(found.lengths) ** 2
