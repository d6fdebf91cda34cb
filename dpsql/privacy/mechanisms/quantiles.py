"""Several quantiles of one column, cut one after another: the middle one first, the others in what lies on either side.

A cut parts the rows of a cell into those before it and those behind it. What is asked of the rows on one side does not
look at those on the other, so all cuts of one level cost no more than one: of m quantiles log2(m) levels are paid for,
not m choices. What comes out is in order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from dpsql.privacy.allocation import Degree
from dpsql.privacy.noise_laws import Law, Noise, chosen, loss_as_epsilon, rank_margin
from dpsql.privacy.rules.aggregates import Statistic, rank_of

# The rows that share a value may be cut into so many equal parts.
PARTS = 2**8
# How many cuts stand for each value: before its rows, between any of the parts, behind them.
CUTS = PARTS + 1
LEAST_GAIN = Fraction(11, 10)  # in variance, of all quantiles together


@dataclass(frozen=True, slots=True)
class Quantiles:
    """One value at a rank, or several that are cut in turn: of the same rows, with ranks that rise."""

    statistics: tuple[Statistic, ...]

    @property
    def ranks(self) -> tuple[Fraction, ...]:
        return tuple(map(rank_of, self.statistics))

    def noises(self, loss: Fraction, law: Law) -> tuple[Noise, ...]:
        """The law of each choice; those that are cut in turn share the price by levels (`cuts_chosen`)."""
        epsilon = loss_as_epsilon(loss / levels(self.statistics), law)
        if len(self.statistics) == 1:
            (only,) = self.statistics
            return (chosen(only.sensitivity.l1, rank_of(only), epsilon),)
        within = ranks_within(self.ranks)
        return tuple(cuts_chosen(each.sensitivity.l1, within[rank_of(each)], epsilon) for each in self.statistics)

    def margin(self, place: int, noises: Sequence[Noise], confidence: Fraction) -> int:
        """How many rows the value at this place of the group may be away from its rank."""
        wanted = self.statistics[place]
        if len(self.statistics) == 1:
            rows = rank_margin(noises[place], wanted.candidates, confidence)
        else:
            by_rank = dict(zip(self.ranks, noises, strict=True))
            rows = cut_margin(rank_of(wanted), by_rank, wanted.candidates, confidence)
        return math.ceil(Fraction(rows, wanted.factor))


@dataclass(frozen=True, slots=True)
class Cut:
    """One quantile, and those that are looked for before and behind it once it is known."""

    rank: Fraction
    within: Fraction  # its rank among the rows between the cuts that were made before
    before: Cut | None
    behind: Cut | None


def cuts_chosen(l1: Fraction, within: Fraction, epsilon: Fraction) -> Noise:
    """The exponential mechanism for a cut: P(cut) proportional to exp(-loss / b), b = 2 c / epsilon.

    With p of the n rows between two earlier cuts before a candidate, its loss is |p - within n|.

    Claim: all cuts of one level, in all cells, are together epsilon-DP, and epsilon^2 / 8 in zCDP, given those before.
    Because: fix what was chosen before. Candidates are then the same whatever the rows: each value between the earlier
    cuts has `CUTS` of them, which leave k of `PARTS` equal parts of the rows with that value before them. An earlier
    cut gives k parts of such rows, rounded to grains, to the one side and the rest to the other. So m rows more
    in a cell add m_1, m_2 … to its sides, none less than nothing, and m all together: what is added to one value is
    added to its sides, also where a cut goes through it, for a rounded part never falls where the whole grows. On
    one side, m_j rows more add between 0 and m_j to p and m_j to n, so the loss moves by m_j max(within, 1 - within) at
    most, as in `mechanisms.chosen`, whose argument then holds with sides in the place of cells.
    Needs: one unit changes at most `l1` rows of the histogram, all up or all down, over all cells together.
    """
    return chosen(l1, within, epsilon)


@lru_cache(maxsize=256)
def cut_in_turn(ranks: tuple[Fraction, ...], low: Fraction = Fraction(0), high: Fraction = Fraction(1)) -> Cut | None:
    """The order of cuts for these ranks, which rise: in as few levels as can be, each as near to a half as can be."""
    if not ranks:
        return None
    most = 2 ** (levels(ranks) - 1) - 1  # on either side
    within = [(rank - low) / (high - low) for rank in ranks]
    at = min(range(max(len(ranks) - 1 - most, 0), min(most, len(ranks) - 1) + 1), key=lambda i: abs(within[i] * 2 - 1))
    rank = ranks[at]
    return Cut(rank, within[at], cut_in_turn(ranks[:at], low, rank), cut_in_turn(ranks[at + 1 :], rank, high))


def levels(quantiles: Sequence[object]) -> int:
    return len(quantiles).bit_length()


def better_together(ranks: tuple[Fraction, ...], degree: Degree) -> bool:
    """Whether cuts in turn are closer than choices apart at the same price: none further off, and all together closer.

    A scale falls with the share of the price (Laplace, degree 3) or with its root (Gaussian).
    """
    if len(ranks) < 2:
        return False
    apart = {rank: _largest(rank) ** 2 * len(ranks) ** (degree - 1) for rank in ranks}
    within = ranks_within(ranks)
    joint = {
        rank: sum((part * _largest(within[other])) ** 2 for other, part in parts.items())
        * levels(ranks) ** (degree - 1)
        for rank, parts in errors(ranks).items()
    }
    return all(joint[rank] <= apart[rank] for rank in ranks) and sum(joint.values()) * LEAST_GAIN <= sum(apart.values())


def _largest(rank: Fraction) -> Fraction:
    return max(rank, 1 - rank)


@lru_cache(maxsize=256)
def ranks_within(ranks: tuple[Fraction, ...]) -> Mapping[Fraction, Fraction]:
    """By rank, that among the rows between earlier cuts."""
    return {cut.rank: cut.within for cut in _all(cut_in_turn(ranks))}


def _all(cut: Cut | None) -> list[Cut]:
    return [] if cut is None else [cut, *_all(cut.before), *_all(cut.behind)]


@lru_cache(maxsize=256)
def errors(ranks: tuple[Fraction, ...]) -> Mapping[Fraction, Mapping[Fraction, Fraction]]:
    """By rank, how far it is moved by an error of one row in each of the choices that it depends on.

    Between cuts that are off by x and y rows, the wanted place is off by (1 - within) x + within y.
    """
    found: dict[Fraction, Mapping[Fraction, Fraction]] = {}

    def add(cut: Cut | None, low: Mapping[Fraction, Fraction], high: Mapping[Fraction, Fraction]) -> None:
        if cut is None:
            return
        moved = {
            rank: (1 - cut.within) * low.get(rank, Fraction(0)) + cut.within * high.get(rank, Fraction(0))
            for rank in {*low, *high}
        }
        found[cut.rank] = {rank: part for rank, part in moved.items() if part} | {cut.rank: Fraction(1)}
        add(cut.before, low, found[cut.rank])
        add(cut.behind, found[cut.rank], high)

    add(cut_in_turn(ranks), {}, {})
    return found


def cut_margin(
    rank: Fraction, noises: Mapping[Fraction, Noise], candidates: int, confidence: Fraction = Fraction(95, 100)
) -> int:
    """How many rows a quantile is away from its rank, at most, with this confidence; `noises` are those of all ranks.

    Claim: so many, beyond a part of the rows that share the value of an earlier cut (one of twice `PARTS`).
    Because: each choice that it depends on is off by no more than its own margin (`rank_margin`, of all cuts) but for
    its share of the other cases.
    Needs: nothing.
    """
    parts = errors(tuple(sorted(noises)))[rank]
    sure = 1 - (1 - confidence) / len(parts)
    return math.ceil(sum(part * rank_margin(noises[other], candidates * CUTS, sure) for other, part in parts.items()))
