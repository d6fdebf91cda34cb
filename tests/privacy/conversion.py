"""From zCDP to (epsilon, delta)-DP by the printed formula, for tests to compare with."""

from __future__ import annotations

from decimal import Context, Decimal, localcontext
from fractions import Fraction


def proposition_12(rho: Fraction, epsilon: Fraction) -> Decimal:
    """The least delta of Canonne, Kamath and Steinke 2020, Proposition 12, by golden-section search in 70 digits."""
    with localcontext(Context(prec=70)):
        r = Decimal(rho.numerator) / rho.denominator
        e = Decimal(epsilon.numerator) / epsilon.denominator

        def log_bound(y: Decimal) -> Decimal:
            alpha = 1 + y.exp()
            return (alpha - 1) * (alpha * r - e) - (alpha - 1).ln() + alpha * (1 - 1 / alpha).ln()

        golden = (Decimal(5).sqrt() - 1) / 2
        low, high = Decimal(-12), Decimal(40)
        left, right = high - golden * (high - low), low + golden * (high - low)
        at_left, at_right = log_bound(left), log_bound(right)
        for _ in range(110):
            if at_left < at_right:
                high, right, at_right = right, left, at_left
                left = high - golden * (high - low)
                at_left = log_bound(left)
            else:
                low, left, at_left = left, right, at_right
                right = low + golden * (high - low)
                at_right = log_bound(right)
        return min(at_left, at_right).exp()
