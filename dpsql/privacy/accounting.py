"""What answers cost, in exact integers, and how much all of them together may cost.

`basic` counts epsilon; `zcdp` counts rho. In both, the deltas of released unknown keys add up beside it.
Floats only choose *where* a bound is evaluated; every bound itself is evaluated in 60 digits and rounded against us.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from functools import lru_cache

from dpsql.errors import BadSetting, PolicyError
from dpsql.policy.model import PrivacyPolicy

LOSS_UNIT = Fraction(1, 10**15)  # the ledger's grain for epsilon or rho
DELTA_UNIT = Fraction(1, 10**18)  # the ledger's grain for delta
MAX_EPSILON = 10**6  # far beyond any meaning; keeps the search below within floats

_DISPLAY_UNIT = Fraction(1, 10**6)
_SMALLEST_BOUND = Decimal("1e-300")
_CONTEXT = Context(prec=60)
_SLACK = Decimal("1e-50")  # far above the rounding of a few dozen operations in 60 digits


@dataclass(frozen=True, slots=True)
class Price:
    """What is paid, or may be paid: whole grains, so that sums are exact and order does not matter."""

    loss: int = 0  # epsilon (basic) or rho (zcdp), in LOSS_UNIT
    delta: int = 0  # spent on releasing unknown keys, in DELTA_UNIT

    def __post_init__(self) -> None:
        for grains in (self.loss, self.delta):
            if type(grains) is not int:
                raise TypeError("a price is counted in whole grains")
            if grains < 0:
                raise ValueError("a price is never negative")

    @property
    def loss_value(self) -> Fraction:
        """Epsilon or rho: what the noise is calibrated to."""
        return self.loss * LOSS_UNIT

    @property
    def delta_value(self) -> Fraction:
        """The delta a threshold is calibrated to."""
        return self.delta * DELTA_UNIT

    def __add__(self, other: Price) -> Price:
        return Price(self.loss + other.loss, self.delta + other.delta)

    def __sub__(self, other: Price) -> Price:
        return Price(self.loss - other.loss, self.delta - other.delta)

    def fits_in(self, other: Price) -> bool:
        """Prices are only partly ordered: both parts must fit, one cannot pay for the other."""
        return self.loss <= other.loss and self.delta <= other.delta

    def share(self, numerator: int, denominator: int) -> Price:
        """A part of this price, rounded down, so that parts of a whole never cost more than the whole."""
        if not 0 <= numerator <= denominator or denominator == 0:
            raise ValueError("a share is a part of the whole")
        return Price(self.loss * numerator // denominator, self.delta * numerator // denominator)


@dataclass(frozen=True, slots=True)
class Accountant:
    """Prices under one policy, and the total they must fit in."""

    policy: PrivacyPolicy
    total: Price = field(init=False)  # (epsilon or rho_max, key_delta)

    def __post_init__(self) -> None:
        policy = self.policy
        if policy.accounting == "zcdp" and not 0 <= policy.key_delta < policy.delta < 1:
            raise PolicyError(
                "zcdp accounting needs a delta that is not all kept for keys",
                hint="Set delta above key_delta, or accounting to basic.",
            )
        # Basic accounting converts nothing, so all of delta is left for keys.
        key_delta = policy.delta if policy.accounting == "basic" else policy.key_delta
        total = Price(self.price_of(policy.epsilon), math.floor(key_delta / DELTA_UNIT))
        object.__setattr__(self, "total", total)

    def price_of(self, epsilon: Fraction) -> int:
        """The grains of loss that an epsilon buys: of a query, a user or the dataset.

        Claim: a step calibrated to these grains costs no more than `epsilon` alone would allow.
        Because: it is rounded down to whole grains, and the noise is calibrated to the grains, not to `epsilon`.
        Needs: the caller hands `Price.loss_value` to the mechanism, never `epsilon` itself.
        """
        if not 0 < epsilon <= MAX_EPSILON:
            raise BadSetting(f"epsilon must be positive and at most {MAX_EPSILON}")
        exact = epsilon if self.policy.accounting == "basic" else rho_from_epsilon(epsilon, self._conversion_delta)
        grains = math.floor(exact / LOSS_UNIT)
        if grains == 0:
            raise BadSetting("epsilon is too small to be counted", hint="Choose a larger epsilon.")
        return grains

    def default_delta(self, loss: int) -> int:
        """The delta, in grains, of a query with unknown keys that states none."""
        if self.policy.query_delta is not None:
            return math.floor(self.policy.query_delta / DELTA_UNIT)
        return self.total.delta * loss // self.total.loss

    def allowance(self, epsilon: Fraction | None) -> Price:
        """What a user may spend: a ration of the total, with the same share of its delta; None is all of it."""
        if epsilon is None:
            return self.total
        loss = min(self.price_of(epsilon), self.total.loss)
        return self.total.share(loss, self.total.loss)

    def admits(self, spent: Price, charge: Price) -> bool:
        """May this charge follow what was spent?

        Claim: all answers ever admitted are together (policy.epsilon, policy.delta)-DP, though every query and its
        price may be chosen after seeing all earlier answers.
        Because: a step that pays (loss, d) draws, on each of two neighbours, from a mixture: with weight d anything
        at all, with weight 1 - d from one of two laws P, Q that are close in the loss; d and loss are fixed by the
        answers before. Let "good" mean no step took its d branch. As the deltas on every path sum to at most
        total.delta, a union bound gives Pr[not good] <= total.delta. On good paths both neighbours carry the same
        weights, so only the products of P and of Q differ:
        - basic: each factor P/Q <= e^loss, and the losses of every path sum to at most epsilon, so the products
          differ by at most e^epsilon.
        - zcdp: E_Q[(P/Q)^a] <= exp((a - 1) a rho) for each step and every a > 1. Taken from the last step
          backwards, E_Q[prod (P/Q)^a exp(-(a - 1) a rho)] <= 1; as every path has sum rho <= rho_max, the products
          are rho_max-zCDP, hence (epsilon, delta - key_delta)-DP by the choice of rho_max.
        Adding Pr[not good] gives delta in both cases (in basic, all of delta is total.delta).
        Needs: `spent` holds every earlier admitted charge; the price is fixed before the answer is drawn; a step's
        delta is of the mixture form above (see `mechanisms.threshold`), its loss pure epsilon or zCDP.
        """
        return (spent + charge).fits_in(self.total)

    def epsilon_of(self, loss: int) -> Fraction:
        """For display: the smallest epsilon, in millionths, whose price is at least `loss`."""
        if loss < 0:
            raise ValueError("a price is never negative")
        if loss == 0:
            return Fraction(0)
        if self.policy.accounting == "basic":
            return loss * LOSS_UNIT
        return _displayed_epsilon(loss, self._conversion_delta)

    @property
    def _conversion_delta(self) -> Fraction:
        return self.policy.delta - self.policy.key_delta


@lru_cache(maxsize=4096)
def rho_from_epsilon(epsilon: Fraction, delta: Fraction) -> Fraction:
    """The largest rho for which rho-zCDP implies (epsilon, delta)-DP, rounded down.

    Claim: rho-zCDP implies (epsilon, delta)-DP; no larger rho would follow from the same proposition (up to
    rounding).
    Because: by Canonne, Kamath and Steinke 2020, Proposition 12, it is implied if for some alpha > 1
    exp((alpha-1)(alpha rho - epsilon)) / (alpha-1) * (1 - 1/alpha)^alpha <= delta. Solved for rho, with
    x = alpha - 1 > 0, that is

        rho <= (epsilon + (ln delta + ln(1+x)) / x + ln(1 + 1/x)) / (1+x),

    so every x gives a valid rho, and a badly chosen one only a smaller rho. The right side N(x)/(1+x) rises and then
    falls: N' = -(ln delta + ln(1+x))/x^2, and N'(1+x) - N falls strictly from +inf to below 0 on (0, 1/delta - 1),
    where alone N' > 0; its root is the best x.
    Needs: nothing of the float search that finds x; the value at x is taken in 60 digits, less a slack.
    """
    if not (epsilon >= 0 and 0 < delta < 1):
        raise ValueError("epsilon must not be negative, and delta must lie between 0 and 1")
    size, log_delta = float(epsilon), math.log(delta.numerator) - math.log(delta.denominator)

    def slope(x: float) -> float:
        pull = log_delta + math.log1p(x)
        return -pull * (1 + x) / x**2 - size - pull / x - math.log1p(1 / x)

    best = _falling_root(slope, math.exp(min(-log_delta, 300.0)))
    with localcontext(_CONTEXT):
        x = Decimal(repr(best))
        ln_delta, ln_alpha, ln_ratio = _decimal(delta).ln(), (1 + x).ln(), (1 + 1 / x).ln()
        rho = (_decimal(epsilon) + (ln_delta + ln_alpha) / x + ln_ratio) / (1 + x)
        magnitude = (_decimal(epsilon) + (1 - ln_delta + ln_alpha) / x + ln_ratio) / (1 + x)
        return max(Fraction(rho - magnitude * _SLACK), Fraction(0))


def delta_from_rho(rho: Fraction, epsilon: Fraction) -> Fraction:
    """A delta for which rho-zCDP implies (epsilon, delta)-DP: the smallest by the same proposition, rounded up.

    Claim: rho-zCDP implies (epsilon, delta)-DP for the delta returned.
    Because: with x = alpha - 1, the proposition's bound is exp(g(x)), g(x) = x((1+x) rho - epsilon) + x ln x
    - (1+x) ln(1+x). Every x > 0 gives a valid delta; g is convex, and the root of g' is the best x.
    Needs: nothing of the float search that finds x.
    """
    if not (rho > 0 and epsilon >= 0):
        raise ValueError("rho must be positive, and epsilon must not be negative")
    rate, size = float(rho), float(epsilon)
    best = _falling_root(lambda x: size - rate * (1 + 2 * x) - math.log(x / (1 + x)), 1e300)
    with localcontext(_CONTEXT):
        x = Decimal(repr(best))
        terms = (x * (1 + x) * _decimal(rho), -x * _decimal(epsilon), x * x.ln(), -(1 + x) * (1 + x).ln())
        exponent = sum(terms) + (1 + sum(abs(term) for term in terms)) * _SLACK
        delta = min(max(min(exponent, Decimal(0)).exp() * (1 + _SLACK), _SMALLEST_BOUND), Decimal(1))
        return Fraction(delta)


@lru_cache(maxsize=4096)
def _displayed_epsilon(loss: int, delta: Fraction) -> Fraction:
    rho = loss * LOSS_UNIT
    rate, log_delta = float(rho), math.log(delta.numerator) - math.log(delta.denominator)
    # epsilon(x) = rho(1+x) - (ln delta + ln(1+x))/x - ln(1 + 1/x) is least where its slope changes sign.
    best = _falling_root(lambda x: -(log_delta + math.log1p(x)) / x**2 - rate, math.exp(min(-log_delta, 300.0)))
    guess = rate * (1 + best) - (log_delta + math.log1p(best)) / best - math.log1p(1 / best)
    # The guess is only a place to start: the answer is decided by the same function that sets prices.
    steps = max(math.ceil(guess / _DISPLAY_UNIT), 1)
    while rho_from_epsilon(steps * _DISPLAY_UNIT, delta) < rho:
        steps += 1
    while steps > 1 and rho_from_epsilon((steps - 1) * _DISPLAY_UNIT, delta) >= rho:
        steps -= 1
    return steps * _DISPLAY_UNIT


def _falling_root(function: Callable[[float], float], high: float) -> float:
    """Where a falling function of x > 0 changes sign, to float precision: a place, never a bound."""
    low, top = -100.0, math.log(high)
    for _ in range(80):
        middle = (low + top) / 2
        if function(math.exp(middle)) > 0:
            low = middle
        else:
            top = middle
    return math.exp(low)


def _decimal(value: Fraction) -> Decimal:
    return Decimal(value.numerator) / Decimal(value.denominator)
