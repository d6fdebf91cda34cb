"""The confidence at which margins hold, and how much wider it makes them than 95 percent."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from statistics import NormalDist
from typing import Literal

USUAL = Fraction(95, 100)


@dataclass(frozen=True, slots=True)
class Confidence:
    """A margin holds with probability `level`, for each number alone or for `numbers` of them at once."""

    level: Fraction = USUAL
    numbers: int = 1

    @property
    def of_each(self) -> Fraction:
        """The confidence that each of the margins needs.

        Claim: all of them hold at once with `level`, however their noise is correlated.
        Because: each fails with probability (1 - level) / numbers at most (union bound). Of k Laplace numbers none is
        off by more than ln(k / (1 - level)) / epsilon.
        Needs: nothing. It also covers a reader who looks at only some of the numbers, chosen by their values.
        """
        return 1 - (1 - self.level) / self.numbers

    def __str__(self) -> str:
        each = f"{float(100 * self.level):.9g} %"
        return each if self.numbers == 1 else f"{each}, all {self.numbers:,} at once"


def widening(law: Literal["laplace", "gaussian"], confidence: Fraction) -> float:
    """The ratio of the margin at another confidence to the margin at 95 percent.

    Sums of Laplace variables come close to Gaussian ones, whose margin is wider at low confidence: the wider of the two
    is valid for both.
    """
    if confidence == USUAL:
        return 1.0
    usual, wanted = (NormalDist().inv_cdf(1 - float(1 - each) / 2) for each in (USUAL, confidence))
    if law == "gaussian":
        return wanted / usual
    alone, together = -math.log(float(1 - confidence)), wanted * math.sqrt(2)
    return max(alone, together) / -math.log(float(1 - USUAL))
