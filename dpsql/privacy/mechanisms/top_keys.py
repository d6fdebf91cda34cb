"""The keys with most units: chosen first, one after another, so that only those few get noise, and less of it."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from dpsql.privacy.noise_laws import Law, Noise, loss_as_epsilon, most_common, rank_margin
from dpsql.privacy.rules.aggregates import Cells

# Of the price, one part of so many pays for the choice.
SHARES = 2
# A unit may have at least so many times as many keys as are asked for: below, counts of all keys are about as good.
LEAST_GAIN = 4


@dataclass(frozen=True, slots=True)
class UnpricedTopKeys:
    """How many keys are chosen, and by which statistic: a count of units."""

    keys: int
    by: int


@dataclass(frozen=True, slots=True)
class TopKeys:
    """How many keys are chosen, the law of each choice, and the statistic whose counts decide."""

    CANONICAL_NAME: ClassVar[str] = "Top"

    keys: int
    noise: Noise
    by: int = 0

    def margin(self, candidates: int) -> int:
        """How many units fewer than any key that is left out a chosen one has at most, in 95 of 100 cases."""
        return rank_margin(self.noise, candidates, 1 - Fraction(5, 100) / self.keys)


def worthwhile(keys: int, bound: Cells, cells: int) -> bool:
    """Whether choosing is better than noise on all keys: from query and policy alone.

    With noise on all of them, a unit moves `bound.groups` counts. Of those that are chosen it moves `keys`, for the
    half of the price that is left: noise is narrower by half of groups / keys, or by the root of that.
    """
    return bound.keyed and 0 < keys < cells and LEAST_GAIN * keys <= bound.groups


def chosen_cells(keys: int) -> Cells:
    """Of counts of units: one unit moves so many of those that are chosen."""
    return Cells(True, keys, False, among=True)


def chosen_keys(keys: int, loss: Fraction, law: Law, by: int = 0) -> TopKeys:
    """The choice of so many keys, one after another, each the likelier the more units have it.

    Claim: all choices together cost `loss`, however many keys a unit has.
    Because: given the keys that were chosen before, one more is chosen among the others with P(k) proportional to
    exp(count(k) / b). A unit adds one at most to each count and takes nothing from any, so the loss of a choice lies in
    an interval of length 1 / b that holds 0, whichever and how many keys it has: as in `mechanisms.most_common`, where
    a unit may add its rows to one bar or to several. Choices add up: `keys` times epsilon' in pure DP, `keys` times
    epsilon'^2 / 8 in zCDP.
    Needs: counts of units that are not clipped over several keys; candidates that are the same whatever the rows.
    """
    each = loss / keys
    return TopKeys(keys, most_common(Fraction(1), loss_as_epsilon(each, law)), by)


def share_of_counts(loss: Fraction) -> Fraction:
    """Of the part of the price that is the count's, what is left for the counts of the keys that were chosen.

    Claim: with other sums beside the count, all together cost what they would without a choice, and the noise of the
    others is the same.
    Because: the choice is paid for by the count that decides, out of its own part. Given the choice, the others get
    noise in the chosen keys only. There a unit moves them no further than in all keys, which is what their clip bounds;
    and just as far where all its rows are in one of these, so that no less noise would do. What is chosen first and
    noised then adds up, whoever chooses by what was seen. A further count of units moves by one in each chosen key.
    Needs: a part of the price for that count alone (`Estimators.grouped`: counts of units in several cells join no
    group); counts of units that are not clipped, beside sums that are, over all keys (`lowering.bounding`).
    """
    return loss * (SHARES - 1) / SHARES


def share_of_choice(loss: Fraction) -> Fraction:
    return loss / SHARES
