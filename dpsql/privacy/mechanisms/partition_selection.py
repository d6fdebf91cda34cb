"""Unknown keys: those that enough units have are returned, whose noisy count or weight of units reaches a threshold.

How far off a count is whose key is shown because the count itself, with its noise, reached the threshold: of many keys
just below the threshold those are shown that noise has lifted, so their counts are too large more often than the law of
the noise says. What holds for them is its law given that the threshold was reached: inference after selection by the
truncated law, as in Fithian, Sun and Taylor (2014).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from dpsql.privacy.accounting import Price
from dpsql.privacy.noise_laws import Noise, selecting
from dpsql.privacy.rules.aggregates import Statistic, weight_in_keys

_PARTS = 16  # of a deviation: how finely the distance from the threshold is looked at
_FAR = 8  # deviations above the threshold, from where on the selection makes no difference
_FURTHEST = 30.0  # deviations: beyond, tails are smaller than doubles


@dataclass(frozen=True, slots=True)
class UnpricedSelection:
    by: int  # the statistic that counts or weighs the units of each key

    def priced(self, counter: Statistic, noise: Noise, keys: int, delta: int) -> tuple[PartitionSelection, Noise]:
        """The selection for so many grains of delta, of at most so many keys of a unit; and the noise of its counts."""
        weight = weight_in_keys(counter, "l2" if noise.law == "gaussian" else "l1")
        cut, least = selecting(noise, keys, Price(0, delta).delta_value, weight)
        return PartitionSelection(self.by, least), cut


@dataclass(frozen=True, slots=True)
class PartitionSelection:
    by: int  # the statistic that counts or weighs the units of each key
    threshold: int  # the least noisy value of it with which a key is returned, in its own fixed point

    def units_to_pass(self, counter: Statistic, noise: Noise, keys: int) -> tuple[int, int]:
        """Of about how many units a key is returned: of those with one key, and of those with so many."""
        weight = weight_in_keys(counter, "l2" if noise.law == "gaussian" else "l1")
        few, many = (math.ceil(self.threshold / max(weight(each), 1)) for each in (1, keys))
        return few, many


def selected_margins(
    noise: Noise, threshold: int, factor: int, counts: Iterable[int], plain: int, confidence: float
) -> list[int]:
    """The margins of noisy counts of units that reached a threshold, given that they did.

    `threshold` is in parts of `factor`, as the noise is; counts and margins are whole, and `plain` is the margin of a
    count that was not selected.

    Claim: of a key that is shown, the count is further off than this with probability 1 - confidence at most.
    Because: with X the noise and n the truth, P(n + X >= y | n + X >= T) falls with y and rises with n. The smallest n
    for which it is (1 - confidence) / 2 is so a lower limit of n, and y + plain is an upper one, each missed with
    probability (1 - confidence) / 2 at most. A key that is shown has one unit at least.
    Needs: nothing: it reads released counts, and the law of their noise.
    """
    scale = float(noise.scale) if noise.law == "laplace" else math.sqrt(noise.scale)
    most = math.inf if noise.most is None else noise.most / scale
    found = []
    for count in counts:
        above = (count * factor - threshold) / scale
        if above >= _FAR:
            found.append(plain)
            continue
        furthest = _furthest(noise.law == "laplace", most, math.floor(max(above, 0) * _PARTS), (1 - confidence) / 2)
        found.append(max(plain, math.ceil(min(furthest * scale / factor, count - 1))))
    return found


@lru_cache(maxsize=4096)
def _furthest(is_laplace: bool, most: float, parts: int, share: float) -> float:
    """How far below a count that is so far above the threshold its truth may be, in deviations."""
    above = parts / _PARTS

    def is_likely(distance: float) -> bool:
        shown = _tail(is_laplace, most, distance - above)
        return _tail(is_laplace, most, distance) >= share * shown

    low, high = 0.0, min(_FURTHEST, most)
    if is_likely(high):
        return most
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if is_likely(middle) else (low, middle)
    return high


def _tail(is_laplace: bool, most: float, t: float) -> float:
    """P(X >= t) of the law with deviation (Laplace: scale) one, cut off at `most`."""
    if not is_laplace:
        return math.erfc(t / math.sqrt(2)) / 2
    if t < 0:
        return 1 - _tail(is_laplace, most, -t)
    last = math.exp(-most)
    return max(math.exp(-t) - last, 0.0) / (2 * (1 - last))
