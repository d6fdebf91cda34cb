"""Noise laws against sums over the laws themselves: noise, margins and thresholds are never too small."""

from __future__ import annotations

import math
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsql.errors import NotSupported
from dpsql.privacy.noise_laws import (
    Noise,
    beyond,
    gaussian,
    laplace,
    margin,
    standard_deviation,
    tail,
    threshold,
    truncated,
)
from dpsql.privacy.rules.aggregates import key_weight, one_in_each

LAPLACES = [Noise("laplace", Fraction(scale)) for scale in ("0.01", "0.1", "0.5", "1", "3.7", "10")]
# Both sides of the variance where the sum gives way to the normal tail.
GAUSSIANS = [
    Noise("gaussian", Fraction(variance))
    for variance in ("0.001", "0.05", "0.25", "1", "2.5", "10", "63.9", "64", "64.1", "70", "100", "1000")
]
NOISES = LAPLACES + GAUSSIANS
each_noise = pytest.mark.parametrize("noise", NOISES, ids=lambda noise: f"{noise.law}-{float(noise.scale)}")

CONFIDENCES = [Fraction(c) for c in ("0.01", "0.5", "0.683", "0.8", "0.95", "0.99", "0.999999")]
positives = st.fractions(min_value=Fraction(1, 10**6), max_value=10**6)
# Claims are tested here, never timings.
untimed = settings(max_examples=50, deadline=None)
fewer_examples = settings(max_examples=25, deadline=None)


@lru_cache
def law(noise: Noise) -> list[Fraction]:
    """P(X = k) for k = 0, 1, ..., by the definition, in 70 digits, as far as anything is left of it."""
    with localcontext(Context(prec=70)):
        scale = Decimal(noise.scale.numerator) / noise.scale.denominator
        weights: list[Decimal] = []
        while not weights or weights[-1] > Decimal("1e-58"):
            k = Decimal(len(weights))
            weights.append((-k / scale if noise.law == "laplace" else -k * k / (2 * scale)).exp())
        everything = 2 * sum(weights) - 1
        return [Fraction(weight / everything) for weight in weights]


@lru_cache
def tails(noise: Noise) -> list[Fraction]:
    """P(X >= k) for k = 0, 1, ... (a rest of about 1e-57 is missing)."""
    return list(accumulate(reversed(law(noise))))[::-1]


@lru_cache
def inside(noise: Noise) -> list[Fraction]:
    """P(|X| <= k) for k = 0, 1, ..., added from the middle outwards."""
    return [2 * half - law(noise)[0] for half in accumulate(law(noise))]


def brute_margin(noise: Noise, confidence: Fraction) -> int:
    return next(m for m, chance in enumerate(inside(noise)) if chance >= confidence)


def brute_threshold(noise: Noise, keys_per_unit: int, delta: Fraction) -> int:
    beyond = [Fraction(0)] * 2
    return next(1 + t for t, p in enumerate(tails(noise) + beyond) if t >= 1 and keys_per_unit * p <= delta)


# --- scales ---


@untimed
@given(positives, positives)
def test_scales_are_rounded_up_by_little_and_to_few_bits(sensitivity: Fraction, price: Fraction) -> None:
    for noise, exact in (
        (laplace(sensitivity, price), sensitivity / price),
        (gaussian(sensitivity, price), sensitivity / (2 * price)),
    ):
        assert exact <= noise.scale <= exact * (1 + Fraction(1, 2**31))
        odd = noise.scale.numerator
        while odd % 2 == 0:
            odd //= 2
        assert odd.bit_length() <= 32
        assert noise.scale.denominator.bit_count() == 1


@pytest.mark.parametrize("scale", [Fraction(2**32 - 1, 2**40), Fraction(1, 2**70), Fraction(3, 4), Fraction(2**50)])
def test_a_scale_of_few_bits_is_kept(scale: Fraction) -> None:
    assert laplace(scale, Fraction(1)).scale == scale
    assert gaussian(2 * scale, Fraction(1)).scale == scale


@pytest.mark.parametrize("l1", [1, 2, 7])
@pytest.mark.parametrize("epsilon", ["0.3", "1", "2.5"])
def test_laplace_noise_hides_a_move_of_its_sensitivity(l1: int, epsilon: str) -> None:
    noise = laplace(Fraction(l1), Fraction(epsilon))
    chances = law(noise)[:40]
    worst = max(chances[abs(k)] / chances[abs(k - l1)] for k in range(-10, 30))
    assert float(epsilon) * (1 - 1e-9) < math.log(worst) <= float(epsilon) + 1e-15


@pytest.mark.parametrize("alpha", [1.01, 1.5, 2.0, 8.0])
@pytest.mark.parametrize("rho", ["0.02", "0.3", "2"])
@pytest.mark.parametrize("move", [1, 2])
def test_gaussian_noise_has_the_renyi_divergence_it_is_priced_at(alpha: float, rho: str, move: int) -> None:
    noise = gaussian(Fraction(move**2), Fraction(rho))
    variance = float(noise.scale)
    reach = range(-400, 400)
    total = math.fsum(math.exp(-k * k / (2 * variance)) for k in reach)
    moment = math.fsum(
        math.exp(-(alpha * (k - move) ** 2 + (1 - alpha) * k * k) / (2 * variance)) / total for k in reach
    )
    divergence = math.log(moment) / (alpha - 1)
    assert divergence <= alpha * float(rho) * (1 + 1e-9)
    if alpha == 2:  # an integer order makes the bound exact: less noise would show
        assert divergence == pytest.approx(alpha * float(rho))


@pytest.mark.parametrize(("noise_law", "cap"), [("laplace", 2**50), ("gaussian", 2**100)])
def test_noise_that_64_bits_cannot_hold_is_refused(noise_law: Literal["laplace", "gaussian"], cap: int) -> None:
    make = laplace if noise_law == "laplace" else lambda l2, rho: gaussian(2 * l2, rho)
    assert make(Fraction(cap), Fraction(1)) == Noise(noise_law, Fraction(cap))
    with pytest.raises(NotSupported, match="more noise than 64 bits hold") as refusal:
        make(Fraction(cap) + 1, Fraction(1))
    assert refusal.value.sqlstate == "0A000"
    assert refusal.value.hint


@pytest.mark.parametrize("bad", [Fraction(0), Fraction(-1)])
def test_sensitivity_and_price_must_be_positive(bad: Fraction) -> None:
    for make in (laplace, gaussian):
        with pytest.raises(ValueError, match="must be positive"):
            make(bad, Fraction(1))
        with pytest.raises(ValueError, match="must be positive"):
            make(Fraction(1), bad)
        # Two wrongs must not make a right.
        with pytest.raises(ValueError, match="must be positive"):
            make(Fraction(-1), Fraction(-1))
    with pytest.raises(ValueError, match="must be positive"):
        Noise("laplace", bad)


# --- tails ---


@each_noise
def test_a_tail_is_never_below_the_sum_and_hardly_above(noise: Noise) -> None:
    for t, exact in enumerate(tails(noise)):
        if t < 1 or exact < Fraction(1, 10**30):
            continue
        slack = Fraction(1, 10**12)
        if noise.law == "gaussian" and noise.scale > 64:
            slack += (t * t / noise.scale + 1) / (12 * noise.scale)
        assert exact <= tail(noise, t) <= exact * (1 + slack)


@each_noise
def test_a_tail_never_rises_and_never_vanishes(noise: Noise) -> None:
    bounds = [tail(noise, t) for t in (*range(1, 60), 10**3, 10**6, 10**12, 10**18)]
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[-1] > 0


def test_a_tail_begins_at_one() -> None:
    with pytest.raises(ValueError, match="from 1 upwards"):
        tail(LAPLACES[0], 0)


# --- margins ---


@each_noise
@pytest.mark.parametrize("confidence", CONFIDENCES, ids=float)
def test_a_margin_is_the_smallest_that_holds(noise: Noise, confidence: Fraction) -> None:
    assert margin(noise, confidence) == brute_margin(noise, confidence)


@fewer_examples
@given(
    st.sampled_from(("laplace", "gaussian")),
    st.fractions(Fraction(1, 100), 100, max_denominator=100),
    st.fractions(Fraction(1, 100), Fraction(999, 1000), max_denominator=1000),
)
def test_a_margin_is_never_too_small_and_at_most_one_too_wide(
    noise_law: Literal["laplace", "gaussian"], scale: Fraction, confidence: Fraction
) -> None:
    noise = Noise(noise_law, scale)
    assert 0 <= margin(noise, confidence) - brute_margin(noise, confidence) <= (1 if scale > 64 else 0)


def test_margins_of_wide_noise_are_those_of_the_continuous_laws() -> None:
    for bits in (20, 35, 50):
        width = 2**bits
        assert margin(Noise("laplace", Fraction(width))) / width == pytest.approx(math.log(20), rel=1e-5)
        assert margin(Noise("gaussian", Fraction(width) ** 2)) / width == pytest.approx(1.959963984540054, rel=1e-5)
    assert margin(Noise("gaussian", Fraction(2**100))) / 2**50 == pytest.approx(1.959963984540054, rel=1e-12)
    assert margin(Noise("laplace", Fraction(2**50))) / 2**50 == pytest.approx(math.log(20), rel=1e-12)


@pytest.mark.parametrize("confidence", [Fraction(0), Fraction(1), Fraction(2)])
def test_a_confidence_is_a_probability(confidence: Fraction) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        margin(LAPLACES[0], confidence)


# --- thresholds ---


@each_noise
@pytest.mark.parametrize("delta", ["0.9", "0.01", "1e-6", "1e-12", "1e-18"])
@pytest.mark.parametrize("keys_per_unit", [1, 3, 1000])
def test_a_threshold_is_the_smallest_that_keeps_lonely_keys_back(noise: Noise, delta: str, keys_per_unit: int) -> None:
    found = threshold(noise, keys_per_unit, Fraction(delta), one_in_each)
    exact = brute_threshold(noise, keys_per_unit, Fraction(delta))
    assert 0 <= found - exact <= (1 if noise.law == "gaussian" and noise.scale > 64 else 0)


@pytest.mark.parametrize("variance", ["0.5", "30", "2000"])
@pytest.mark.parametrize("delta", ["0.3", "1e-6"])
@pytest.mark.parametrize("keys_per_unit", [1, 2, 7, 50])
def test_a_weighted_threshold_is_that_of_the_worst_number_of_keys(
    variance: str, delta: str, keys_per_unit: int
) -> None:
    """Weights in steps of 1/16 only, so that noise and weights are of one size and neither decides alone."""
    noise = Noise("gaussian", Fraction(variance))

    def weight(keys: int) -> int:
        return math.isqrt(256 // keys)

    found = threshold(noise, keys_per_unit, Fraction(delta), weight)
    needed = [
        weight(d) - 1 + threshold(noise, 1, Fraction(delta) / d, one_in_each) for d in range(1, keys_per_unit + 1)
    ]
    assert found == max(needed)


def test_thresholds_of_the_widest_noise_are_those_of_the_continuous_laws() -> None:
    delta = Fraction(1, 10**6)
    lonely = 4.753424308822899  # the normal deviation that is passed once in a million
    widest = threshold(Noise("gaussian", Fraction(2**100)), 1, delta, one_in_each)
    assert widest / 2**50 == pytest.approx(lonely, rel=1e-12)
    widest = threshold(Noise("laplace", Fraction(2**50)), 5, delta, one_in_each)
    assert widest / 2**50 == pytest.approx(math.log(2.5e6), rel=1e-12)


@pytest.mark.parametrize(("keys_per_unit", "delta"), [(0, "0.1"), (-1, "0.1"), (1, "0"), (1, "1"), (1, "-0.1")])
def test_a_threshold_needs_keys_and_a_delta(keys_per_unit: int, delta: str) -> None:
    for choose in (threshold, truncated):
        with pytest.raises(ValueError, match="at least one key"):
            choose(LAPLACES[0], keys_per_unit, Fraction(delta), one_in_each)


def test_a_probability_below_every_bound_is_refused_instead_of_searched_for() -> None:
    for choose in (threshold, truncated):
        with pytest.raises(ValueError, match="too small to be bounded"):
            choose(LAPLACES[0], 1, Fraction(1, 10**400), one_in_each)


# --- noise that is cut off ---


def cut_law(noise: Noise) -> dict[int, Fraction]:
    """P(X = k) of noise that is cut off, by its definition."""
    assert noise.most is not None
    with localcontext(Context(prec=70)):
        rate = Decimal(noise.scale.denominator) / noise.scale.numerator
        weights = {k: (-abs(k) * rate).exp() for k in range(-noise.most, noise.most + 1)}
        everything = sum(weights.values())
        return {k: Fraction(weight / everything) for k, weight in weights.items()}


@pytest.mark.parametrize("epsilon", ["0.1", "0.5", "1", "3"])
@pytest.mark.parametrize("delta", ["0.1", "1e-3", "1e-6"])
def test_one_key_is_cut_off_where_no_better_rule_exists(epsilon: str, delta: str) -> None:
    """The closed form of the optimal rule; at a tenth and a millionth a threshold would need 133."""
    rate, share = float(epsilon), float(delta)
    noise = truncated(laplace(Fraction(1), Fraction(epsilon)), 1, Fraction(delta), one_in_each)
    best = math.log((math.exp(rate) + 2 * share - 1) / ((math.exp(rate) + 1) * share)) / rate
    assert noise.most == max(math.ceil(best), 1)
    if (epsilon, delta) == ("0.1", "1e-6"):
        assert noise.most == 109
        assert threshold(Noise("laplace", noise.scale), 1, Fraction(delta), one_in_each) == 133


@pytest.mark.parametrize("scale", ["0.3", "2", "9.5"])
@pytest.mark.parametrize("delta", ["0.2", "1e-4"])
@pytest.mark.parametrize("keys", [1, 2, 5, 12])
@pytest.mark.parametrize("weighted", [False, True])
def test_cut_noise_is_smallest_and_enough_for_every_number_of_keys(
    scale: str, delta: str, keys: int, weighted: bool
) -> None:
    def weight(count: int) -> int:
        return 12 // count if weighted else 1

    noise = truncated(Noise("laplace", Fraction(scale)), keys, Fraction(delta), weight)
    assert noise.most is not None

    counts = range(1, keys + 1)

    def worst(cut: Noise) -> Fraction:
        chances = cut_law(cut)
        assert cut.most is not None
        alone = [sum((p for k, p in chances.items() if k > cut.most - weight(d)), Fraction(0)) for d in counts]
        return max(d * share for d, share in zip(counts, alone, strict=True))

    assert worst(noise) <= Fraction(delta)
    less = noise.most - 1
    assert less < weight(1) or worst(Noise("laplace", noise.scale, less)) > Fraction(delta)


@pytest.mark.parametrize("weight", [1, 3, 7])
def test_what_is_released_of_cut_noise_differs_by_its_price_and_delta(weight: int) -> None:
    """Of every key that two neighbours share, by the definition of (epsilon, delta)-DP; and of a lonely one."""
    delta, scale = Fraction(1, 100), Fraction(5)
    noise = truncated(Noise("laplace", scale), 1, delta, lambda _: weight)
    most, chances = noise.most, cut_law(noise)
    assert most is not None
    grows = Fraction(math.exp(weight / float(scale))) * (1 + Fraction(1, 10**12))

    def seen(total: int) -> dict[int | None, Fraction]:
        found: dict[int | None, Fraction] = {}
        for k, p in chances.items():
            shown = total + k if total and total + k > most else None  # a key that nobody has is never there
            found[shown] = found.get(shown, Fraction(0)) + p
        return found

    tight = Fraction(0)
    for total in range(weight, 3 * most):
        one, other = seen(total), seen(total - weight)
        for p, q in ((one, other), (other, one)):
            parts = [max(p[shown] - grows * q.get(shown, Fraction(0)), Fraction(0)) for shown in p]
            excess = sum(parts, Fraction(0))
            assert excess <= delta
            tight = max(tight, excess)
    assert tight > delta / 2  # a lower cut would show


def test_the_share_beyond_is_never_below_the_sum_and_hardly_above() -> None:
    for most, weight in ((1, 1), (5, 2), (40, 40), (60, 1)):
        noise = Noise("laplace", Fraction("7.3"), most)
        exact = sum(p for k, p in cut_law(noise).items() if k > most - weight)
        assert exact <= beyond(noise, most, weight) <= exact * (1 + Fraction(1, 10**30))
    with pytest.raises(ValueError, match="at or above the weight"):
        beyond(LAPLACES[0], 3, 4)


def test_cut_noise_of_the_widest_scale() -> None:
    wide = truncated(Noise("laplace", Fraction(2**50)), 1, Fraction(1, 10**6), lambda _: 2**20)
    assert wide.most is not None
    assert wide.most / 2**50 == pytest.approx(math.log1p(2**20 / 2**50 * 0.5e6), rel=1e-3)


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_the_weights_of_a_unit_have_norm_one(norm: Literal["l1", "l2"]) -> None:
    for keys in (1, 2, 3, 10, 30, 999, 12_345):
        weight = key_weight(keys, norm)
        size = keys * weight if norm == "l1" else keys * weight**2
        whole = 2**20 if norm == "l1" else 2**40
        assert whole * 0.98 < size <= whole


# --- deviations ---


@each_noise
def test_the_deviation_is_that_of_the_law(noise: Noise) -> None:
    variance = 2 * sum(k * k * chance for k, chance in enumerate(law(noise)))
    assert standard_deviation(noise) == pytest.approx(math.sqrt(variance), rel=1e-9, abs=1e-18)


def test_the_deviation_of_the_widest_and_the_narrowest_noise() -> None:
    assert standard_deviation(Noise("gaussian", Fraction(2**100))) == 2.0**50
    assert standard_deviation(Noise("laplace", Fraction(2**50))) == pytest.approx(math.sqrt(2) * 2**50)
    assert standard_deviation(Noise("laplace", Fraction(1, 10**5))) == 0
    assert standard_deviation(Noise("gaussian", Fraction(1, 10**9))) == 0
