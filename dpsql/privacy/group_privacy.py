"""Group privacy: the guarantee for several people together, such as a family or a household.

The total is the guarantee for one unit. This module computes the guarantee for several people whose rows are alike or
tell about each other. Losses grow with the number of people in closed form. The delta of unknown keys does not: two
people with a town of their own are more likely to reveal it than one, and with enough people it is certain to appear.
So it is computed from the noise that selects keys (`noise_laws.threshold`, `noise_laws.truncated`); the factor that
holds for any mechanism, e^epsilon for each further person, would leave no bound where there is one.

With 60 digits, rounded conservatively. Floats are not used.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Context, Decimal, localcontext
from fractions import Fraction

from dpsql.privacy.accounting import Accountant, Price

MAX_PEOPLE = 1_000

_CONTEXT = Context(prec=60)
_SLACK = Decimal("1e-50")  # far above the rounding of a few dozen operations in 60 digits


@dataclass(frozen=True, slots=True)
class GroupLoss:
    """The guarantee for a group of people: (epsilon, delta)-DP, with a delta below 1."""

    people: int
    epsilon: Fraction
    delta: Fraction


def total_for_group(
    accountant: Accountant, people: int, *, spent: Price | None = None, largest: int | None = None
) -> GroupLoss | None:
    """The guarantee of the dataset's total for a group of people; None where there is no bound.

    Claim: all answers that are ever admitted are together (epsilon, delta)-DP for databases that differ by all rows of
    at most so many units, some of them added and some removed.
    Because: let D and D' be two such databases, linked by a chain of as many neighbours.
    - basic: each step's answer is, but for keys that only these people have, e^(its epsilon) away for each link of the
      chain; the epsilons of every path add up to the total, so epsilon is `people` times that.
    - zcdp: rho for one unit is people^2 rho for this many (Bun and Steinke 2016, Proposition 1.9), step by step and so
      for the sum; it is converted as the total is (`accounting.rho_from_epsilon`). Where pure answers have a sum of
      their own, a transcript within that is e^(people epsilon) away, as in `admits`: the larger one holds.
    - Keys that only these people have, in D or in D', are released with a probability that `keys_for_group` and
      `keys_of_all_for_group` bound; as in `admits`, that is added to delta. The noise of other keys is independent.
    Needs: `spent`, where an owner has lowered the total below it; `largest`, in grains, at least what any answer with
    unknown keys has cost and may still cost (None: nothing is known, so any may take the whole total).
    """
    _check(people)
    most = accountant.total if spent is None else _larger(accountant.total, spent)
    largest = most.loss if largest is None else min(largest, most.loss)
    keys = keys_of_all_for_group(accountant.policy.accounting, people, most, Price(largest, most.delta))
    epsilon = _epsilon(accountant, people, most)
    if accountant.sells_pure and most.pure_value is not None:
        epsilon = max(epsilon, people * most.pure_value)
    return _bounded(accountant, people, epsilon, keys)


def spent_for_group(accountant: Accountant, people: int, charges: Iterable[tuple[Price, int]]) -> GroupLoss | None:
    """The guarantee of the charges so far for a group, each price with the number of times it was paid; None where
    there is no bound.

    Claim: as `total_for_group`, for an analyst who would have asked these questions at these prices whatever was
    answered; like what is shown as spent. The bound that holds whatever is asked is that of the total.
    Because: the bad events of single charges are bounded one by one (`keys_for_group`), or all together as one step
    that costs their sum; the smaller of both holds.
    Needs: nothing.
    """
    _check(people)
    spent, keys = Price(), Fraction(0)
    for price, times in charges:
        spent = Price(spent.loss + times * price.loss, spent.delta + times * price.delta)
        keys += times * keys_for_group(accountant.policy.accounting, people, price)
    keys = min(keys, keys_for_group(accountant.policy.accounting, people, spent))
    if spent.loss == 0:
        return GroupLoss(people, Fraction(0), Fraction(0))
    return _bounded(accountant, people, _epsilon(accountant, people, spent), keys)


def keys_for_group(accounting: str, people: int, price: Price) -> Fraction:
    """An upper bound, at most 1, of the probability that an answer shows a key that only these people have.

    Claim: for k people, with loss and delta d of the answer:
    - basic: d (1 + e^epsilon + ... + e^((k - 1) epsilon));
    - zcdp: exp(-(sqrt(ln(1 / (k d))) - (k - 1) sqrt(rho))^2), or 1 where the difference is not positive.
    Because: let W be what the people add to a key that only they have: the sum of what each adds.
    - basic (`noise_laws.truncated`): the argument there holds with W in place of w, and noise is cut off at the same M,
      so a key costs q(W) = a^(M + 1) (a^-W - 1) / (1 + a - 2 a^(M + 1)), or less where W > M. q is convex and 0 at 0.
      Where each unit adds 1 to at most L keys, W <= k and all W add up to k L, so the sum of q(W) is at most L q(k),
      and L q(1) <= d. Where all that a unit adds is w at most, the W add up to k w, so the sum is at most q(k w), and
      q(w) <= d. q(k w) / q(w) is the sum of a^(-j w) over j < k, and a^-w <= e^epsilon since the noise is that of w,
      or of L >= 1, for at most epsilon.
    - zcdp (`noise_laws.threshold`): look at the keys that any of the people has, all of them with noise. If only
      the first of the people were there, one of these would reach the threshold with probability k d at most:
      the person's own keys with probability d, and those of each other, to which nothing is added now, less often than
      if that other were there. The other k - 1 people move the weights by a vector of length (k - 1) l2 at most, where
      the variance is l2^2 / (2 rho) or more, so the Renyi divergence of order a is at most a r with
      r = (k - 1)^2 rho (as in `noise_laws.gaussian`). By Hoelder's inequality, an event of probability y then has
      at most y^(1 - 1/a) e^((a - 1) r) with all of them. With a = sqrt(ln(1/y) / r), which is above 1 where the
      difference is positive, that is the claim.
    In both, people who are in D' and not in D count as those in D: a key that both have moves by the difference.
    Needs: the price covers all that selects keys in the answer; several answers may be taken together, since union
    bound and divergence add up, whatever each was chosen by.
    """
    _check(people)
    if price.delta == 0:
        return Fraction(0)
    if people == 1:
        return min(price.delta_value, Fraction(1))
    with localcontext(_CONTEXT):
        loss, delta = _decimal(price.loss_value), _decimal(price.delta_value)
        if accounting == "basic":
            return _rounded_up(_geometric(people, loss, 1 / delta) * delta)
        chance = people * delta
        if chance >= 1:
            return Fraction(1)
        gap = (-chance.ln()).sqrt() - (people - 1) * loss.sqrt()
        return _rounded_up((-gap * gap).exp()) if gap > 0 else Fraction(1)


def keys_of_all_for_group(accounting: str, people: int, total: Price, largest: Price) -> Fraction:
    """The same for all answers of a ledger together, each of which costs at most `largest`.

    Claim: with total loss R, total delta, the largest loss m, k people, c = k - 1 and y = k delta:
    - basic: delta (1 + e^m + ... + e^((k - 1) m));
    - zcdp: as for one answer that costs R; and, where with l = ln(R / (y m)) c sqrt(m) <= sqrt(l) - 1 / sqrt(l), also
      y (1 + c sqrt(m / l)) exp(2 c sqrt(m l) - c^2 m). The smaller of both.
    Because: every answer's loss and delta are fixed by the answers before it, so the sum over a path of the bounds
    of its steps is added to delta.
    - basic: each step's delta is multiplied by at most the factor of the largest loss.
    - zcdp: the first, since all answers are one adaptive step (see `keys_for_group`). The second: for a step of
      loss r and k times its delta y_i, Hoelder's bound y_i^(1 - 1/a) e^((a - 1) c^2 r) is concave in y_i, so it is
      below its tangent at z = y r / R, the share of y that r has of R. With the best a there, a = sqrt(l_r / r) / c
      and l_r = ln(1 / z), it is at most g(r) (z / a + (1 - 1/a) y_i), where g(r) = exp(2 c sqrt(r l_r) - c^2 r). 1 / a
      rises with r, and g too where c sqrt(r) <= sqrt(l_r) - 1 / sqrt(l_r), which is so for all r <= m if it is for m.
      The z, and the y_i, add up to y at most: together that is the claim.
    Needs: no answer with unknown keys costs more than `largest`.
    """
    _check(people)
    if total.delta == 0:
        return Fraction(0)
    if accounting == "basic":
        return keys_for_group(accounting, people, Price(largest.loss, total.delta))
    as_one = keys_for_group(accounting, people, total)
    if people == 1 or not 0 < largest.loss < total.loss:
        return as_one
    with localcontext(_CONTEXT):
        most, chance = _decimal(largest.loss_value), people * _decimal(total.delta_value)
        log = (_decimal(total.loss_value) / (chance * most)).ln()
        if log <= 1 or (people - 1) * most.sqrt() > log.sqrt() - 1 / log.sqrt():
            return as_one
        length = (people - 1) * most.sqrt()
        bound = chance * (1 + length / log.sqrt()) * (2 * length * log.sqrt() - length * length).exp()
        return min(as_one, _rounded_up(bound))


def _bounded(accountant: Accountant, people: int, epsilon: Fraction, keys: Fraction) -> GroupLoss | None:
    delta = keys + (accountant.conversion_delta if accountant.policy.accounting == "zcdp" else 0)
    return GroupLoss(people, epsilon, delta) if delta < 1 else None


def _epsilon(accountant: Accountant, people: int, price: Price) -> Fraction:
    if accountant.policy.accounting == "basic":
        return people * price.loss_value
    return accountant.epsilon_of(people * people * price.loss)


def _geometric(people: int, rate: Decimal, enough: Decimal) -> Decimal:
    """The sum 1 + e^rate + ... of `people` terms; where it exceeds `enough`, any value that does."""
    total, term, factor = Decimal(0), Decimal(1), rate.exp() * (1 + _SLACK)
    for _ in range(people):
        total += term
        if total > enough:
            break
        term *= factor
    return total


def _larger(total: Price, spent: Price) -> Price:
    pure = None if total.pure is None else max(total.pure, spent.pure or 0)
    return Price(max(total.loss, spent.loss), max(total.delta, spent.delta), pure)


def _rounded_up(bound: Decimal) -> Fraction:
    return min(Fraction(bound * (1 + 1000 * _SLACK)), Fraction(1))


def _check(people: int) -> None:
    if not 1 <= people <= MAX_PEOPLE:
        raise ValueError(f"a group has 1 to {MAX_PEOPLE} people")


def _decimal(value: Fraction) -> Decimal:
    return Decimal(value.numerator) / Decimal(value.denominator)
