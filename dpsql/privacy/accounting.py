"""What answers cost, in exact integers, and the total that all of them must fit in.

`basic` composes epsilon; `zcdp` composes rho (Bun and Steinke 2016). Under both, the deltas of partition selection
(unknown keys) add up separately. Under `zcdp`, pure answers are also counted in epsilon, as long as all answers are
pure (`admits`). Floats only choose *where* a bound is evaluated; every bound itself is evaluated with 60 digits and
rounded conservatively.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
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
_CONTEXT = Context(prec=60)
_SLACK = Decimal("1e-50")  # far above the rounding of a few dozen operations in 60 digits


@dataclass(frozen=True, slots=True)
class Price:
    """A price, or a limit on prices, in whole grains: sums are exact, in any order."""

    loss: int = 0  # epsilon (basic) or rho (zcdp), in LOSS_UNIT
    delta: int = 0  # spent on releasing unknown keys, in DELTA_UNIT
    # zcdp: the epsilon where all of it is pure, in LOSS_UNIT; else None. As a limit, None allows no pure accounting.
    pure: int | None = None

    def __post_init__(self) -> None:
        for grains in (self.loss, self.delta, self.pure or 0):
            if type(grains) is not int:
                raise TypeError("a price is counted in whole grains")
            if grains < 0:
                raise ValueError("a price is never negative")
        if self.loss == self.delta == 0 and self.pure is None:
            object.__setattr__(self, "pure", 0)  # a price of zero is pure

    @property
    def loss_value(self) -> Fraction:
        """Epsilon or rho: what the noise is calibrated to."""
        return self.loss * LOSS_UNIT

    @property
    def delta_value(self) -> Fraction:
        """The delta a threshold is calibrated to."""
        return self.delta * DELTA_UNIT

    @property
    def pure_value(self) -> Fraction | None:
        """The epsilon of a pure answer, or of several."""
        return None if self.pure is None else self.pure * LOSS_UNIT

    def __add__(self, other: Price) -> Price:
        pure = None if self.pure is None or other.pure is None else self.pure + other.pure
        return Price(self.loss + other.loss, self.delta + other.delta, pure)

    def __sub__(self, other: Price) -> Price:
        pure = None if self.pure is None or other.pure is None else self.pure - other.pure
        return Price(self.loss - other.loss, self.delta - other.delta, pure)

    def fits_in(self, limit: Price) -> bool:
        """Whether this sum is within a limit, under one accounting or the other (`admits`)."""
        return self.fits_beside(limit) or self.fits_purely(limit)

    def fits_beside(self, limit: Price) -> bool:
        """Whether loss and delta both fit; one cannot pay for the other."""
        return self.loss <= limit.loss and self.delta <= limit.delta

    def fits_purely(self, limit: Price) -> bool:
        """Whether all of it is pure and its epsilon fits."""
        return self.delta == 0 and self.pure is not None and limit.pure is not None and self.pure <= limit.pure

    def is_no_dearer(self, other: Price) -> bool:
        """Whether whoever can pay the other price can pay this one."""
        is_as_pure = other.pure is None or (self.pure is not None and self.pure <= other.pure)
        return self.fits_beside(other) and is_as_pure

    def share(self, numerator: int, denominator: int) -> Price:
        """A part of this price, rounded down, so that parts of a whole never cost more than the whole."""
        if not 0 <= numerator <= denominator or denominator == 0:
            raise ValueError("a share is a part of the whole")
        return Price(self.loss * numerator // denominator, self.delta * numerator // denominator)


def pure_price(sums: Iterable[int], choices: Iterable[int] = ()) -> Price:
    """The price under zcdp of pure steps, noisy sums and choices, each given by its epsilon in grains.

    Claim: a step of pure epsilon is min(epsilon^2 / 2, epsilon) in zCDP, one of the exponential mechanism
    min(epsilon^2 / 8, epsilon); and independent steps together cost the sum of their prices, under both accountings.
    Because: Bun and Steinke 2016, Proposition 3.3, and since no Renyi divergence of order a > 1 is above epsilon, which
    is at most a epsilon; for choices see `noise_laws.chosen`. Rho is rounded up to whole grains, step by step.
    Needs: noise calibrated to exactly these epsilons, with no delta.
    """
    sums, choices = tuple(sums), tuple(choices)
    loss = sum(_rho_of_pure(part, 2) for part in sums) + sum(_rho_of_pure(part, 8) for part in choices)
    return Price(loss, 0, sum(sums) + sum(choices))


def pure_within(loss: int) -> int:
    """The largest epsilon, in grains, of one pure sum that costs no more than this rho."""
    one = LOSS_UNIT.denominator
    return max(loss, min(math.isqrt(2 * loss * one), 2 * one))  # up to 2, epsilon^2 / 2 is the smaller


def left_of(*accounts: tuple[Price, Price]) -> Price:
    """What may still be charged to all of these accounts at once, each given by what was spent and its limit.

    The least loss and delta; zero where either is overdrawn, as after a total was lowered. For pure answers, the
    largest epsilon of one more sum that all accounts admit, each under either accounting; None where the rest of the
    loss pays for as much, so that pure accounting gains nothing.
    """
    rests = [
        (
            limit.loss - spent.loss if spent.fits_beside(limit) else 0,
            limit.delta - spent.delta if spent.fits_beside(limit) else 0,
            0 if limit.pure is None or spent.pure is None else max(0, limit.pure - spent.pure),
        )
        for spent, limit in accounts
    ]
    loss, delta = (min(rest[part] for rest in rests) for part in (0, 1))
    pure = min(max(rest[2], pure_within(rest[0])) for rest in rests)
    return Price(loss, delta, pure if pure > pure_within(loss) else None)


def _rho_of_pure(epsilon: int, divisor: int) -> int:
    return min(-(-epsilon * epsilon // (divisor * LOSS_UNIT.denominator)), epsilon)


def admits(spent: Price, charge: Price, limit: Price) -> bool:
    """Whether an account that has spent `spent` may pay `charge`. The ledger calls this before anything is run.

    A privacy filter (Rogers, Roth, Ullman and Vadhan 2016; for Renyi divergences Feldman and Zrnic 2021).

    Claim: all answers ever admitted to the dataset's account are together (policy.epsilon, policy.delta)-DP, though
    every query and its price may be chosen after seeing all earlier answers.
    Because: a step that pays (loss, d) draws, on each of two neighbours, from a mixture: with weight d anything
    at all, with weight 1 - d from one of two laws P, Q that are close in the loss; d and loss are fixed by the
    answers before. Let "good" mean no step took its d branch. As the deltas on every path sum to at most
    limit.delta, a union bound gives Pr[not good] <= limit.delta. On good paths both neighbours carry the same
    weights, so only the products of P and of Q differ:
    - basic: each factor P/Q <= e^loss, and the losses of every path sum to at most epsilon, so the products
      differ by at most e^epsilon.
    - zcdp: E_Q[(P/Q)^a] <= exp((a - 1) a rho) for each step and every a > 1. Taken from the last step
      backwards, E_Q[prod (P/Q)^a exp(-(a - 1) a rho)] <= 1; as every path has sum rho <= rho_max, the products
      are rho_max-zCDP, hence (epsilon, delta - key_delta)-DP by the choice of rho_max.
    Adding Pr[not good] gives delta in both cases (in basic, all of delta is limit.delta).
    - zcdp, with answers that are paid as pure: a charge is admitted where the sums of rho and delta fit (A), or
      where every answer so far is pure and the sum of their epsilons fits (B). Sums only grow, and what is not pure
      stays so: a session within A, or within B, was so at each step before. Take any set S of transcripts. Those
      of S within A are as likely here as under the rule that stops where A ends, on both neighbours, since the two
      rules admit the same up to there: by the above, P(S within A) <= e^epsilon Q(S within A) + delta. All others
      of S are within B: every factor is at most e^(its epsilon), their product at most e^epsilon, so
      P(the others) <= e^epsilon Q(the others). Both lines add up to P(S) <= e^epsilon Q(S) + delta: delta is paid
      once, epsilon not twice, and which of the two a session ends in may depend on its answers in any way.
    Sessions end: every charge is at least one grain of each sum that it is in.
    Needs: `limit` is the policy's `Accountant.total`; `spent` holds every earlier admitted charge; the price is fixed
    before the answer is drawn; a step's delta is of the mixture form above (see `noise_laws.threshold`), its loss pure
    epsilon or zCDP; what is said to be pure has no delta, is as private as its epsilon says, and costs as much rho as
    that implies (`pure_price`).
    """
    return (spent + charge).fits_in(limit)


@dataclass(frozen=True, slots=True)
class Accountant:
    """Prices under one policy, and the total they must fit in."""

    policy: PrivacyPolicy
    total: Price = field(init=False)  # (epsilon or rho_max, key_delta, epsilon where the policy sells pure answers)

    def __post_init__(self) -> None:
        policy = self.policy
        if policy.accounting == "zcdp" and not 0 <= policy.key_delta < policy.delta < 1:
            raise PolicyError(
                "zcdp accounting needs a delta that is not all kept for keys",
                hint="Set delta above key_delta, or accounting to basic.",
            )
        # Basic accounting converts nothing, so all of delta is left for keys.
        key_delta = policy.delta if policy.accounting == "basic" else policy.key_delta
        total = Price(
            self.price_of(policy.epsilon),
            math.floor(key_delta / DELTA_UNIT),
            self.pure_of(policy.epsilon) if self.sells_pure else None,
        )
        object.__setattr__(self, "total", total)

    def price_of(self, epsilon: Fraction) -> int:
        """The grains of loss that an epsilon buys: of a query, a user or the dataset.

        Claim: a step calibrated to these grains costs no more than `epsilon` alone would allow.
        Because: it is rounded down to whole grains, and the noise is calibrated to the grains, not to `epsilon`.
        Needs: the caller hands `Price.loss_value` to the mechanism, never `epsilon` itself.
        """
        if self.policy.accounting == "basic":
            return self.pure_of(epsilon)
        return _counted(rho_from_epsilon(_within_reason(epsilon), self.conversion_delta))

    def pure_of(self, epsilon: Fraction) -> int:
        """The same for a pure answer, which is counted in epsilon under either accounting."""
        return _counted(_within_reason(epsilon))

    @property
    def sells_pure(self) -> bool:
        """Whether pure answers have a total of their own. Under basic there is only one total, in epsilon."""
        return self.policy.accounting == "zcdp" and self.policy.pure

    def default_delta(self, loss: int) -> int:
        """The delta, in grains, of a query with unknown keys that does not set one."""
        if self.policy.query_delta is not None:
            return math.floor(self.policy.query_delta / DELTA_UNIT)
        return self.total.delta * loss // self.total.loss

    def allowance(self, epsilon: Fraction | None) -> Price:
        """A user's allowance: a part of the total, with the same fraction of its delta; None means all of it."""
        if epsilon is None:
            return self.total
        loss = min(self.price_of(epsilon), self.total.loss)
        part = self.total.share(loss, self.total.loss)
        pure = None if self.total.pure is None else min(self.pure_of(epsilon), self.total.pure)
        return Price(part.loss, part.delta, pure)

    def epsilon_of(self, loss: int) -> Fraction:
        """For display: the smallest epsilon, in millionths, whose price is at least `loss`."""
        if loss < 0:
            raise ValueError("a price is never negative")
        if loss == 0:
            return Fraction(0)
        if self.policy.accounting == "basic":
            return loss * LOSS_UNIT
        return _displayed_epsilon(loss, self.conversion_delta)

    @property
    def conversion_delta(self) -> Fraction:
        return self.policy.delta - self.policy.key_delta


def _within_reason(epsilon: Fraction) -> Fraction:
    if not 0 < epsilon <= MAX_EPSILON:
        raise BadSetting(f"epsilon must be positive and at most {MAX_EPSILON}")
    return epsilon


def _counted(exact: Fraction) -> int:
    grains = math.floor(exact / LOSS_UNIT)
    if grains == 0:
        raise BadSetting("epsilon is too small to be counted", hint="Choose a larger epsilon.")
    return grains


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
    """Where a falling function of x > 0 changes sign, to float precision. Never used as a bound."""
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
