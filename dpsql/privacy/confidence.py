"""With which confidence margins hold, and how much wider they are than those of 95 of 100 cases."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from statistics import NormalDist
from typing import Literal

USUAL = Fraction(95, 100)


@dataclass(frozen=True, slots=True)
class Confidence:
    """What a margin says: it holds with `level`, for each number alone or for `numbers` of them at once."""

    level: Fraction = USUAL
    numbers: int = 1

    @property
    def of_each(self) -> Fraction:
        """The confidence that each of the margins needs.

        Claim: all of them hold at once with `level`, whatever their noises have to do with each other.
        Because: each fails with probability (1 - level) / numbers at most (union bound). Of k Laplace numbers none is
        off by more than ln(k / (1 - level)) / epsilon.
        Needs: nothing. Who looks at some of the numbers only, chosen by their values, is covered as well.
        """
        return 1 - (1 - self.level) / self.numbers

    def __str__(self) -> str:
        each = f"{float(100 * self.level):.9g} %"
        return each if self.numbers == 1 else f"{each}, all {self.numbers:,} at once"


def widening(law: Literal["laplace", "gaussian"], confidence: Fraction) -> float:
    """How many times as wide as the margin of 95 of 100 cases that of another confidence is.

    Sums of Laplace numbers are nearer to Gaussian ones, whose margin is the wider one at low confidence: the wider of
    both is right for all.
    """
    if confidence == USUAL:
        return 1.0
    usual, wanted = (NormalDist().inv_cdf(1 - float(1 - each) / 2) for each in (USUAL, confidence))
    if law == "gaussian":
        return wanted / usual
    alone, together = -math.log(float(1 - confidence)), wanted * math.sqrt(2)
    return max(alone, together) / -math.log(float(1 - USUAL))
