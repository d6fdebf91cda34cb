"""GROUPING SETS that agree: all sets are measured, each with a share of the price, and made of the same cells.

Cells are a product of keys, so an estimate falls apart into one part for each subset T of the keys: what varies with
all of T and averages to nothing along each of them. A set S knows of a part if T is within S, and the better the more
cells it adds up. In these parts the best combination of all sets is a mean with weights, and all variances are known.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import combinations
from typing import ClassVar

from dpsql.privacy.noise_laws import Noise

PARTS = 32  # into so many parts the price is shared, or a few less, so that equal shares are possible
MOST_SETS = 8  # for which the best shares are searched; more sets have equal ones

Set = tuple[int, ...]  # the keys of a grouping set, by their places, in order


@dataclass(frozen=True, slots=True)
class GroupingSets:
    CANONICAL_NAME: ClassVar[str] = "GroupingSetsNoise"

    sizes: tuple[int, ...]  # how many values each key has
    sets: tuple[Set, ...]  # the first has all keys
    shares: tuple[Fraction, ...]  # of the price

    def noise(self, whole: Noise, number: int) -> Noise:
        """The noise of one set, where `whole` is that which the whole price would buy.

        Claim: all sets with their noises together cost what one with `whole` costs.
        Because: a unit touches one cell of each set, by as much as one of the finest. With the scale or the variance
        divided by its share, a set costs its share of the price, and the shares add up to at most one.
        Needs: a unit touches one cell of the finest set.
        """
        return Noise(whole.law, whole.scale / self.shares[number])

    def weights(self, law: str) -> tuple[float, ...]:
        """How sure each set is, beside one that has the whole price."""
        return tuple(float(share) if law == "gaussian" else float(share) ** 2 for share in self.shares)

    def margin(self, whole: Noise, kept: Set, factor: int) -> int:
        """The 95 % margin of a cell of a set, once all sets agree, in whole steps; rounding included."""
        variance = float(whole.scale) if whole.law == "gaussian" else 2 * float(whole.scale) ** 2
        deviations = 1.96 if whole.law == "gaussian" else math.log(20) / math.sqrt(2)
        spread = variance / factor**2 * _variance(self.sizes, self.sets, self.weights(whole.law), kept)
        return math.ceil(deviations * math.sqrt(spread + self._runs(kept) / 3))

    def _runs(self, kept: Set) -> int:
        """How many stretches of cells, as they are stored, a cell of a set is made of; each is rounded by itself."""
        last = max(kept, default=-1)
        return math.prod(self.sizes[key] for key in range(last) if key not in kept)


@lru_cache(maxsize=256)
def lattice(sizes: tuple[int, ...], sets: tuple[Set, ...], law: str) -> GroupingSets:
    """Shares of the price with which the product of all variances is least: a set that others know well needs little.

    None is further off than it would be if each set were measured by itself, with equal shares.
    """
    whole = PARTS // len(sets) * len(sets) or len(sets)
    parts = [whole // len(sets)] * len(sets)

    apart = len(sets) if law == "gaussian" else len(sets) ** 2

    def loss(tried: Sequence[int]) -> float:
        weights = GroupingSets(sizes, sets, tuple(Fraction(part, whole) for part in tried)).weights(law)
        variances = [_variance(sizes, sets, weights, kept) for kept in sets]
        return math.inf if max(variances) > apart else math.fsum(map(math.log, variances))

    best = loss(parts)
    improved = len(sets) <= MOST_SETS
    while improved:
        improved = False
        for giver, taker in ((i, j) for i in range(len(sets)) for j in range(len(sets)) if i != j):
            if parts[giver] == 1:
                continue
            tried = list(parts)
            tried[giver] -= 1
            tried[taker] += 1
            if (found := loss(tried)) < best - 1e-9:
                parts, best, improved = tried, found, True
    return GroupingSets(sizes, sets, tuple(Fraction(part, whole) for part in parts))


def subsets(keys: Sequence[int]) -> Iterator[Set]:
    for count in range(len(keys) + 1):
        yield from combinations(keys, count)


def information(sizes: Sequence[int], sets: Sequence[Set], weights: Sequence[float], part: Set) -> float:
    """How much all sets together know of a part."""
    return math.fsum(
        weight * math.prod(size for key, size in enumerate(sizes) if key not in kept)
        for kept, weight in zip(sets, weights, strict=True)
        if set(part) <= set(kept)
    )


def _variance(sizes: tuple[int, ...], sets: tuple[Set, ...], weights: tuple[float, ...], kept: Set) -> float:
    """Of a cell of a set, beside that of a single measurement with the whole price."""
    added = math.prod(size for key, size in enumerate(sizes) if key not in kept)
    cells = math.prod(sizes[key] for key in kept)
    return math.fsum(
        added / information(sizes, sets, weights, part) * math.prod(sizes[key] - 1 for key in part) / cells
        for part in subsets(kept)
    )
