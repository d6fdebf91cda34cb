"""Contribution bounds and centres of later sums, chosen by the exponential mechanism from a histogram of units."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from dpsql.privacy.noise_laws import Law, Noise, chosen, clip_chosen, loss_as_epsilon
from dpsql.privacy.rules.aggregates import Statistic, rank_of

# What is searched for: how much of one unit counts, or the value that differences are taken from.
Searched = Literal["clip", "centre"]


@dataclass(frozen=True, slots=True)
class BoundSearch:
    """A measurement of one statistic without keys, whose answer is the place of what was chosen."""

    of: Searched

    @property
    def share(self) -> Fraction:
        """Of the price of a sum that is measured with what is found, the part that goes to all searches of the query.

        The searches of a query share these parts by kind alone: what they find serves later queries too, however little
        this one makes of it.
        """
        return Fraction(1, 5) if self.of == "clip" else Fraction(1, 20)


@dataclass(frozen=True, slots=True)
class Search:
    """The group of one statistic that a search measures."""

    of: Searched
    statistic: Statistic

    def noises(self, loss: Fraction, law: Law) -> tuple[Noise, ...]:
        epsilon = loss_as_epsilon(loss, law)
        if self.of == "clip":
            return (clip_chosen(epsilon),)
        return (chosen(self.statistic.sensitivity.l1, rank_of(self.statistic), epsilon),)
