"""Sums with noise of their own in every cell, where all keys are declared."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from dpsql.privacy.noise_laws import Law, Noise, gaussian, laplace
from dpsql.privacy.rules.aggregates import Statistic
from dpsql.types import Value


@dataclass(frozen=True, slots=True)
class Sums:
    # Cells of rows whose keys are not declared, which are NULL there: measured with the others, and never shown.
    remainder: tuple[tuple[Value, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class NoisySums:
    """A group of sums that one unit moves together by no more than it may move one of them."""

    sums: tuple[Statistic, ...]

    def noises(self, loss: Fraction, law: Law) -> tuple[Noise, ...]:
        """Noise for each sum.

        Claim: all sums of the group together cost `loss`.
        Because: each gets the noise that it would need if it alone cost that, so with the scale b = l1 / epsilon or the
        variance v = l2² / (2 rho). A unit that moves them by m costs the sum of m / b, or of m² / (2 v): of the price
        as large a part as the sum of m / l1, or of m² / l2², is of 1, and that is no more than all of it.
        Needs: the claims of a group's statistics hold together (`rules.sum_shapes`).
        """
        return tuple(self._noise(each, loss, law) for each in self.sums)

    def _noise(self, statistic: Statistic, loss: Fraction, law: Law) -> Noise:
        if law == "laplace":
            return laplace(statistic.sensitivity.l1, loss)
        return gaussian(statistic.sensitivity.l2_squared, loss)
