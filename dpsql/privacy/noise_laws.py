"""Noise distributions on the integers: their scale for a price, their margins, and thresholds for unknown keys.

Scales and variances are exact fractions. Probabilities are upper bounds, with 50 digits and rounded up; floats only
guess where a search starts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from typing import Literal, assert_never

from dpsql.errors import TooMuchNoise

# Noise of these scales exceeds 2**57 only with negligible probability, so 64 bits hold it.
MAX_LAPLACE_SCALE = 2**50
MAX_GAUSSIAN_VARIANCE = 2**100

_SIGNIFICANT_BITS = 32
_SMALL_VARIANCE = 64  # up to here the discrete Gaussian is summed term by term
_CONTEXT = Context(prec=50)
_FINE = Context(prec=80)
_SLACK = Decimal("1e-40")  # far above the rounding of a few hundred operations in 50 digits
_SMALLEST_BOUND = Decimal("1e-300")  # no bound is smaller, so that none underflows to zero
_TWO_PI = Decimal("6.2831853071795864769252867665590057683943387987502")


# Of noise on sums: which it is decides what is shared out of a price, epsilon or rho.
Law = Literal["laplace", "gaussian"]


@dataclass(frozen=True, slots=True)
class Noise:
    law: Literal["laplace", "gaussian", "exponential"]
    # laplace: the scale b; gaussian: the variance sigma squared; both on the integers.
    # exponential: not noise on a sum, but a choice; candidates are as likely as exp(-loss / scale).
    scale: Fraction
    most: int | None = None  # laplace: the law given that it is not further from zero (`truncated`)

    def __post_init__(self) -> None:
        if self.scale <= 0:
            raise ValueError("the scale of noise must be positive")
        if self.scale > (MAX_GAUSSIAN_VARIANCE if self.law == "gaussian" else MAX_LAPLACE_SCALE):
            raise TooMuchNoise(
                "the answer would need more noise than 64 bits hold",
                hint="Use a higher epsilon, or ask the owner for narrower bounds, a larger step or fewer rows.",
            )


def laplace(l1: Fraction, epsilon: Fraction) -> Noise:
    """Discrete Laplace noise: P(X = k) proportional to exp(-|k| / b), with b = l1 / epsilon.

    The two-sided geometric mechanism of Ghosh, Roughgarden and Sundararajan 2009.

    Claim: an integer vector plus this noise, drawn independently per cell, is epsilon-DP.
    Because: moving the vector by at most l1 in L1 changes the probability of any outcome by at most
    exp(l1 / b), and b is rounded up, never down.
    Needs: one unit moves the integer vector by at most `l1` in L1.
    """
    return Noise("laplace", _rounded_up(_positive(l1) / _positive(epsilon)))


def gaussian(l2_squared: Fraction, rho: Fraction) -> Noise:
    """Discrete Gaussian noise: P(X = k) proportional to exp(-k^2 / 2v), with variance parameter v = l2^2 / (2 rho).

    Claim: an integer vector plus this noise, drawn independently per cell, is rho-zCDP.
    Because: by Canonne, Kamath and Steinke 2020, Theorem 14, the Renyi divergence of order alpha between two
    discrete Gaussians whose means differ by the integer vector d is at most alpha |d|^2 / (2v), and v is rounded up.
    Needs: one unit moves the integer vector by at most sqrt(`l2_squared`) in L2.
    """
    return Noise("gaussian", _rounded_up(_positive(l2_squared) / (2 * _positive(rho))))


def chosen(l1: Fraction, rank: Fraction, epsilon: Fraction) -> Noise:
    """The exponential mechanism for the value at a rank: P(v) proportional to exp(-loss(v) / b), b = 2 c / epsilon.

    Exponential mechanism: McSherry and Talwar 2007; for quantiles: Smith 2011.

    With n rows in a cell, `below` of them below the candidate v and `equal` on it, and the wanted place t (rank * n, or
    a constant number of rows from either end), loss(v) = max(0, below - t, t - below - equal): how many rows v is away.

    Claim: independent choices in all cells are together epsilon-DP, and epsilon^2 / 8 in zCDP.
    Because: if a unit changes m_j of the rows of cell j, then n and `below` change such that both sides of the maximum
    move by at most m_j c_1 with c_1 = max(rank, 1 - rank): a row below v adds 1 - rank to one side and takes it from
    the other, a row above adds or takes rank, a row on v takes rank from one and 1 - rank from the other; with a
    constant place from the start (rank 0) or from the end (rank 1) no more than 1. Weights then change by factors
    within exp(-m_j c_1 / b) and exp(m_j c_1 / b), and so does their sum: the choice in cell j has a bounded range of
    epsilon_j = 2 m_j c_1 / b. That is epsilon_j-DP, and epsilon_j^2 / 8 in zCDP (Cesar and Rogers 2021: the
    privacy loss lies in an interval of that length, so Hoeffding's lemma bounds its moments). The m_j add up to at most
    l1, so the epsilon_j to at most 2 l1 c_1 / b <= epsilon, and the sum of their squares is no more than the square of
    their sum.
    Needs: one unit changes at most `l1` rows of the histogram, over all cells together; the candidates are the same
    whatever the rows.
    """
    return Noise("exponential", _rounded_up(2 * _positive(l1) * max(rank, 1 - rank) / _positive(epsilon)))


def most_common(l1: Fraction, epsilon: Fraction) -> Noise:
    """The exponential mechanism for the most common value: P(v) proportional to exp(count(v) / b), b = c / epsilon.

    Claim: independent choices in all cells are together epsilon-DP, and epsilon^2 / 8 in zCDP.
    Because: counts only grow with a unit. If D has it and D' has not, and it adds c_v rows to the candidate v of cell
    j, m_j at most, then the weight of v is exp(c_v / b) times as large in D, and the sum of all weights z times, where
    1 <= z <= exp(m_j / b). The privacy loss of v is c_v / b - ln z: between -m_j / b and m_j / b, so the choice is
    (m_j / b)-DP; and over all v it lies in an interval of length m_j / b, since ln z is the same for all, so it has a
    bounded range of epsilon_j = m_j / b (half that of a loss that may rise and fall), and costs epsilon_j^2 / 8 in
    zCDP (Hoeffding's lemma, as for `chosen`). The m_j add up to at most l1, so the epsilon_j to at most l1 / b.
    Needs: a unit adds at most `l1` to the histogram, over all cells together, and takes nothing away; the candidates
    are the same whatever the rows.
    """
    return Noise("exponential", _rounded_up(_positive(l1) / _positive(epsilon)))


def clip_chosen(epsilon: Fraction) -> Noise:
    """The exponential mechanism for a clip: P(c) proportional to exp(-loss(c) / b), b = 1 / epsilon.

    The loss of a clip is the number of units beyond it, and a penalty for its size that is the same whatever the rows
    (`clip_penalty`).

    Claim: the choice is epsilon-DP, and epsilon^2 / 8 in zCDP.
    Because: one unit more adds 1 to the losses of the clips below its contribution, and nothing to the others. Weights
    then change by factors within exp(-1 / b) and 1, and their sum too, so that the logarithms of the ratios of the
    probabilities lie in an interval of length 1 / b = epsilon that holds 0: a bounded range (see `chosen`).
    Needs: each unit counted once; the clips and the penalty are the same whatever the rows.
    """
    return Noise("exponential", _rounded_up(1 / _positive(epsilon)))


def clip_penalty(noise: Noise) -> int:
    """The number of clipped units that the next smaller clip is worth: it has less noise, but clips more units.

    There are two clips per halving. A penalty of twice the scale makes each doubling beyond all units less likely by
    exp(2), more than the square of the growth of the clip.
    """
    return math.ceil(noise.scale)


def epsilon_of_choice(rho: Fraction) -> Fraction:
    """The largest epsilon, rounded down, with epsilon^2 / 8 <= rho: that of a choice at this price in zCDP."""
    grain = 2**64
    return Fraction(math.isqrt(math.floor(8 * _positive(rho) * grain * grain)), grain)


def loss_as_epsilon(loss: Fraction, law: Law) -> Fraction:
    """The epsilon of a choice that costs this: of rho, where noise on sums is Gaussian."""
    return loss if law == "laplace" else epsilon_of_choice(loss)


@lru_cache(maxsize=4096)
def rank_margin(noise: Noise, candidates: int, confidence: Fraction = Fraction(95, 100)) -> int:
    """The most rows between a chosen value and the wanted rank, with this confidence.

    Claim: P(loss > m + least) <= 1 - confidence, where `least` is the smallest loss of any candidate.
    Because: fewer than `candidates` of them lose more than m beyond the least; each is exp(-m / b) times as likely as
    the one that loses least, or less. So m = b ln(candidates / (1 - confidence)) is enough.
    Needs: nothing. The value at the rank itself is a candidate, and loses nothing.
    """
    with localcontext(_CONTEXT):
        odds = _decimal(Fraction(candidates) / (1 - confidence)).ln() * (1 + _SLACK)
        return math.ceil(noise.scale * Fraction(odds))


def margin(noise: Noise, confidence: Fraction = Fraction(95, 100)) -> int:
    """The smallest m with P(|X| <= m) >= confidence, never too small.

    Both laws are symmetric, so this is P(X >= m + 1) <= (1 - confidence) / 2. It also holds for truncated noise.
    """
    if not 0 < confidence < 1:
        raise ValueError("a confidence lies between 0 and 1")
    return _first_within(noise, (1 - confidence) / 2) - 1


def selecting(noise: Noise, keys_per_unit: int, delta: Fraction, weight: Callable[[int], int]) -> tuple[Noise, int]:
    """Partition selection: the noise of the statistic that selects keys, and the threshold of its noisy value."""
    if noise.law == "gaussian":
        return noise, threshold(noise, keys_per_unit, delta, weight)
    cut = truncated(noise, keys_per_unit, delta, weight)
    assert cut.most is not None
    return cut, cut.most + 1


def threshold(noise: Noise, keys_per_unit: int, delta: Fraction, weight: Callable[[int], int]) -> int:
    """The smallest T such that a key may be released whenever its noisy weight of units is at least T.

    Stability-based partition selection (Korolova, Kenthapadi, Mishra and Ntoulas 2009).

    Claim: releasing exactly the keys that some unit has and whose noisy weight is at least T, with their noisy
    values, is a mixture: with weight `delta` anything at all, with weight 1 - delta as private as the noise on the
    weights and values alone. So it is (epsilon, delta)-DP under Laplace, delta-approximate rho-zCDP under Gaussian.
    Because: let D hold one unit more than D'. A key that both have is treated alike in both; its release and value are
    post-processing of its noise. If the unit has d keys, at most d of them exist in D alone; each has a true weight of
    at most weight(d), so it is released with probability P(weight(d) + X >= T) at most, and by the union bound any is
    with probability at most d times that: at most delta, for every d up to `keys_per_unit`. The noise of different keys
    is independent: given that none of them is released, D answers exactly as the noise on the shared keys does, as D'
    always does.
    Needs: a unit with d keys adds at most weight(d) to each, which does not rise with d; the unit's keys were limited
    to `keys_per_unit` before; noise is independent per key, and its loss is priced for all of the unit's keys and
    values together.
    """
    _check_selection(keys_per_unit, delta)

    def above(low: int, high: int, found: int) -> int:
        """The largest T that any number of keys from `low` to `high` needs, or `found` if that is not less."""
        if weight(low) + _first_within(noise, delta / high) <= found:
            return found  # no number between needs more: weights fall and tails rise with it
        if low == high:
            return weight(low) + _first_within(noise, delta / high)
        middle = (low + high) // 2
        return above(middle + 1, high, above(low, middle, found))

    return above(1, keys_per_unit, 0)


def truncated(noise: Noise, keys_per_unit: int, delta: Fraction, weight: Callable[[int], int]) -> Noise:
    """Laplace noise truncated at the smallest M such that a key may be released whenever its noisy weight exceeds M.

    Optimal partition selection (Desfontaines, Voss, Gipson and Mandayam 2022).

    Claim: as `threshold`, with M + 1 in the place of T and fewer units needed: cutting noise off takes from each key
    what a threshold needs for the whole tail. For one key per unit no (epsilon, delta)-DP rule releases more.
    Because: let D hold one unit more than D', which has d keys and adds w <= weight(d) to each. Look at the noise of
    such a key given X <= M - w in D, and given X >= w - M in D': by symmetry both have the same probability 1 - q. A
    key that both have, of weight s in D, then has s + X in [s - M, s + M - w] in D, and s - w + X in the same range in
    D', with probabilities that differ by a factor of at most exp(w / b), as for the whole law. A key of D alone has
    w + X <= M and is not released, as in D'. So with weight 1 - q per key both answer as the noise alone does, and with
    the other q anything; over the unit's keys that is d q at most, by the union bound. With a = exp(-1/b),
    q(w) = a^(M - w + 1) (1 - a^w) / (1 + a - 2 a^(M + 1)). It is convex in w and 0 at 0, so that d q(w) <= q(d w):
    where d weight(d) <= weight(1) the worst case is one key; where weights are all the same, the most keys allowed.
    Needs: as `threshold`; and weights that are all the same, or d weight(d) <= weight(1) for all d.
    """
    _check_selection(keys_per_unit, delta)
    most = max(_cut(noise, weight(d), delta / d) for d in (1, keys_per_unit))
    return Noise("laplace", noise.scale, most)


def _check_selection(keys_per_unit: int, delta: Fraction) -> None:
    if keys_per_unit < 1 or not 0 < delta < 1:
        raise ValueError("a threshold needs at least one key and a delta between 0 and 1")


def beyond(noise: Noise, most: int, weight: int) -> Fraction:
    """An upper bound of P(X > most - weight) for Laplace noise truncated at `most` >= `weight` >= 1."""
    if not 1 <= weight <= most:
        raise ValueError("noise is cut off at or above the weight")
    with localcontext(_FINE):
        # 1 - a^w and the divisor lose up to 17 of the 80 digits, where the scale is wide.
        rate = _decimal(1 / noise.scale)
        above = (-(most - weight + 1) * rate).exp() * (1 - (-weight * rate).exp())
        bound = above / (1 + (-rate).exp() - 2 * (-(most + 1) * rate).exp())
        return Fraction(min(max(bound * (1 + _SLACK), _SMALLEST_BOUND), Decimal(1)))


@lru_cache(maxsize=4096)
def _cut(noise: Noise, weight: int, probability: Fraction) -> int:
    """The smallest `most` with P(X > most - weight) <= probability."""
    if probability < Fraction(_SMALLEST_BOUND):
        raise ValueError("the probability is too small to be bounded")
    # Without truncation, the tail is larger and as steep.
    guess = weight + _first_within(noise, probability)
    return _smallest(lambda most: most >= weight and beyond(noise, most, weight) <= probability, guess)


def tail(noise: Noise, t: int) -> Fraction:
    """An upper bound of P(X >= t), for t >= 1.

    Claim: P(X >= t) is never larger.
    Because: Laplace: it is a^t / (1 + a) with a = exp(-1/b). Gaussian of small variance: the series, its rest bounded
    by a geometric one. Otherwise with f(k) = exp(-k^2 / 2v), sigma = sqrt(v) and h = t - 1/2: for h >= sigma, f is
    convex beyond h, so f(k) <= the integral of f over [k - 1/2, k + 1/2], and the normaliser is at least
    sqrt(2 pi) sigma (Poisson summation), which gives the normal tail Q(h / sigma). For h < sigma, f is concave up to h,
    the same inequality reversed bounds the sum below t from below, and gives Q(h / sigma) + e / 2, where
    sqrt(2 pi) sigma (1 + e) is the normaliser: e < 1e-500 beyond the small variances, less than the rounding up.
    Needs: nothing; below 1e-300 the bound stays at 1e-300.
    """
    if t < 1:
        raise ValueError("tails are taken from 1 upwards")
    with localcontext(_CONTEXT):
        match noise.law:
            case "laplace":
                rate = _decimal(1 / noise.scale)
                bound = (-t * rate).exp() / (1 + (-rate).exp())
            case "gaussian" if noise.scale <= _SMALL_VARIANCE:
                bound = _weight_from(noise.scale, t) / _weight_of_all(noise.scale)
            case "gaussian":
                bound = _normal_tail((_decimal((t - Fraction(1, 2)) ** 2 / noise.scale)).sqrt())
            case "exponential":
                raise ValueError("a choice has no tail of its own")
            case _:
                assert_never(noise.law)
        return Fraction(min(max(bound * (1 + _SLACK), _SMALLEST_BOUND), Decimal(1)))


def standard_deviation(noise: Noise) -> float:
    """For display."""
    if noise.law == "laplace":
        half = float(1 / noise.scale) / 2
        return 1 / (math.sqrt(2) * math.sinh(half)) if half < 700 else 0.0
    variance = float(noise.scale)
    if noise.scale > _SMALL_VARIANCE:
        return math.sqrt(variance)
    weights = [math.exp(-k * k / (2 * variance)) for k in range(1, 200)]
    second_moment = 2 * sum(k * k * weight for k, weight in enumerate(weights, start=1))
    return math.sqrt(second_moment / (1 + 2 * sum(weights)))


# --- searching ---


@lru_cache(maxsize=4096)
def _first_within(noise: Noise, probability: Fraction) -> int:
    """The smallest t >= 1 with tail(t) <= probability."""
    if probability < Fraction(_SMALLEST_BOUND):
        raise ValueError("the probability is too small to be bounded")

    def within(t: int) -> bool:
        return t >= 1 and tail(noise, t) <= probability

    return _smallest(within, max(_guess(noise, float(probability)), 1))


def _guess(noise: Noise, probability: float) -> int:
    if noise.law == "laplace":
        rate = float(1 / noise.scale)
        return math.ceil(-math.log(probability * (1 + math.exp(-rate))) / rate)
    low, high = 0.0, 40.0  # deviations: the normal tail falls below 1e-300 before 40
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if math.erfc(middle / math.sqrt(2)) / 2 > probability else (low, middle)
    return math.ceil(high * math.sqrt(noise.scale) + 0.5)


def _smallest(holds: Callable[[int], bool], guess: int) -> int:
    """The smallest integer for which a rising predicate holds: gallop away from the guess, then halve."""
    step = 1
    if holds(guess):
        high = guess
        while holds(high - step):
            high, step = high - step, 2 * step
        low = high - step
    else:
        low = guess
        while not holds(low + step):
            low, step = low + step, 2 * step
        high = low + step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


# --- the Gaussian, in 50 digits; callers set the context ---


def _normal_tail(x: Decimal) -> Decimal:
    """An upper bound of Q(x), the standard normal's upper tail, for x >= 0.

    Both expansions err upwards only: the series is subtracted and has positive terms, and its truncated rest is
    missing; the continued fraction's convergents alternate around the limit, and an even number of them lies above.
    """
    density = (-x * x / 2).exp() / _TWO_PI.sqrt()
    if x < 3:
        term = total = x
        odd = 1
        while term > total * Decimal("1e-42"):
            odd += 2
            term = term * x * x / odd
            total += term
        return Decimal("0.5") - density * total
    fraction = x
    for k in range(80, 0, -1):
        fraction = x + k / fraction
    return density / fraction


def _weight_from(variance: Fraction, t: int) -> Decimal:
    """An upper bound of the sum of exp(-k^2 / 2v) over k >= t, for t >= 1."""
    rate = _decimal(1 / (2 * variance))
    term = total = (-rate * t * t).exp()
    ratio, squared = (-rate * (2 * t + 1)).exp(), (-2 * rate).exp()
    while term > total * Decimal("1e-42"):
        term, ratio = term * ratio, ratio * squared
        total += term
    # From here every further ratio is smaller, so a geometric series bounds the rest.
    return total + term * ratio / (1 - ratio)


@lru_cache(maxsize=256)
def _weight_of_all(variance: Fraction) -> Decimal:
    """The sum of exp(-k^2 / 2v) over all integers, without the truncated rest: it is a divisor, so it errs low."""
    rate = _decimal(1 / (2 * variance))
    total = Decimal(1)
    k = 1
    while (term := (-rate * k * k).exp()) > Decimal("1e-42"):
        total += 2 * term
        k += 1
    return total


def _rounded_up(value: Fraction) -> Fraction:
    """The next number of 32 significant bits: samplers then meet small numerators and denominators."""
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    if value < Fraction(2) ** exponent:
        exponent -= 1
    # Now 2**exponent <= value < 2**(exponent + 1).
    grain = Fraction(2) ** (exponent + 1 - _SIGNIFICANT_BITS)
    return math.ceil(value / grain) * grain


def _positive(value: Fraction) -> Fraction:
    if value <= 0:
        raise ValueError("sensitivity and price must be positive")
    return value


def _decimal(value: Fraction) -> Decimal:
    return Decimal(value.numerator) / Decimal(value.denominator)
