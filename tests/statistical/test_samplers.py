"""The noise has exactly the declared laws, and nobody else has the same noise."""

from __future__ import annotations

import os
import warnings
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal, localcontext
from fractions import Fraction
from math import exp, isqrt

import numpy as np
import numpy.typing as npt
import opendp.prelude as dp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dpsql.noise import samplers
from dpsql.noise.samplers import Losses, SystemSampler, exp_bounds
from dpsql.tables import Integers
from tests.statistical.laws import FALSE_ALARM, DiscreteGaussian, DiscreteLaplace, cumulative, fits, same_law

dp.enable_features("contrib")

SAMPLER = SystemSampler()
WIDER = Fraction(13, 10)

SCALES = [
    Fraction(1, 2),
    Fraction(1),
    Fraction(7, 3),
    Fraction(10),
    Fraction(4_123_456_789, 2**22),
    Fraction(10**6),
    Fraction(2**40),
    Fraction(2**50),
]


# The law of Laplace


@pytest.mark.parametrize("scale", SCALES, ids=str)
def test_laplace_has_its_law_and_no_other(scale: Fraction) -> None:
    draws = SAMPLER.discrete_laplace(scale, 100_000)
    assert fits(draws, DiscreteLaplace(scale))
    assert not fits(draws, DiscreteLaplace(scale * WIDER))
    assert not fits(draws, DiscreteLaplace(scale / WIDER))


def test_laplace_of_a_tiny_scale_is_rarely_but_rightly_off_zero() -> None:
    scale = Fraction(1, 10)
    draws = SAMPLER.discrete_laplace(scale, 1_000_000)
    assert fits(draws, DiscreteLaplace(scale))
    assert not fits(draws, DiscreteLaplace(scale * WIDER))
    assert not fits(draws, DiscreteLaplace(scale / WIDER))


def test_laplace_far_below_one_is_zero() -> None:
    assert not SAMPLER.discrete_laplace(Fraction(1, 2**10), 10_000).any()
    assert not SAMPLER.discrete_laplace(Fraction(1, 10**400), 10_000).any()


@pytest.mark.parametrize(
    "scale", [Fraction(1, 10), Fraction(7, 3), Fraction(1000), Fraction(2**31 + 1, 2**20)], ids=str
)
def test_laplace_is_put_together_from_the_right_coins(scale: Fraction) -> None:
    """The product of the coins' probabilities, read from the very digits that are tossed, is the law."""
    digits = samplers._digits(scale, 0)
    chances = [Fraction(int.from_bytes(column.tobytes(), "big"), 2**64) for column in digits.T]
    negative, *bits, carry = chances
    with localcontext(prec=60):
        ratio = (-1 / _decimal(scale)).exp()
        for x in [0, 1, -1, 2, -2, 3, 7, -8, 100, -1000, 5000]:
            size = x if x >= 0 else -1 - x
            carries, rest = divmod(size, 2 ** len(bits))
            chance = (1 - carry) * carry**carries * (negative if x < 0 else 1 - negative)
            for index, bit in enumerate(bits):
                chance *= bit if rest >> index & 1 else 1 - bit
            exact = (1 - ratio) / (1 + ratio) * ratio ** abs(x)
            assert abs(_decimal(chance) - exact) < Decimal(2) ** -58


# The law of choices


CHOICES = [
    ([1, 1, 1, 1], [0, 1, 2, 3], Fraction(1)),
    ([5, 1, 20, 3, 100], [7, 5, 9, 40, 17], Fraction(13, 3)),  # the least loss is not zero
    ([1, 1_000_000], [0, 30], Fraction(2)),  # many bad ones against a good one
    ([2, 2**20], [0, 90], Fraction(3)),  # some are worse than the smallest weight that is proposed
    ([3, 4], [10**30, 10**30 + 10**29], Fraction(10**29)),
]


def _chances(widths: list[int], losses: list[int], scale: Fraction) -> npt.NDArray[np.float64]:
    least = min(losses)
    weights = [width * exp(-float((loss - least) / scale)) for width, loss in zip(widths, losses, strict=True)]
    return np.array(weights) / sum(weights)


def _fits_choice(runs: Integers, chances: npt.NDArray[np.float64]) -> bool:
    expected = chances * runs.sum()
    seen = expected >= 5
    if seen.sum() < 2:
        return int(runs[~seen].sum()) <= 60
    found, wanted = runs[seen], expected[seen]
    return bool(stats.chisquare(found, wanted * found.sum() / wanted.sum()).pvalue > FALSE_ALARM)


@pytest.mark.parametrize(("widths", "losses", "scale"), CHOICES)
def test_a_choice_has_its_law_and_no_other(widths: list[int], losses: list[int], scale: Fraction) -> None:
    edges = np.cumsum(widths)
    size = np.array(widths, dtype=np.int64)
    loss: Losses = np.array(losses, np.int64) if max(losses) < 2**62 else np.array(losses, np.object_)
    draws = np.array([SAMPLER.exponential(size, loss, scale) for _ in range(20_000)])
    assert draws.min() >= 0 and draws.max() < edges[-1]
    runs = np.bincount(np.searchsorted(edges, draws, side="right"), minlength=len(widths))
    assert _fits_choice(runs, _chances(widths, losses, scale))
    if sorted(runs)[-2] > 60:  # a few may be of a choice that is not expected at all
        assert not _fits_choice(runs, _chances(widths, losses, scale * WIDER))
        assert not _fits_choice(runs, _chances(widths, losses, scale / WIDER))


def test_candidates_of_equal_loss_are_equally_likely() -> None:
    widths, losses = np.array([4, 12], dtype=np.int64), np.array([1, 0], dtype=np.int64)
    draws = np.array([SAMPLER.exponential(widths, losses, Fraction(10)) for _ in range(20_000)])
    for part in (draws[draws < 4], draws[draws >= 4] - 4):
        assert stats.chisquare(np.bincount(part)).pvalue > FALSE_ALARM


def test_what_a_candidate_loses_may_be_more_than_its_run_says() -> None:
    """Of ten candidates in one run, each loses what it loses; a huge run of others leaves fewer weights to propose."""
    widths, losses, scale = np.array([10, 2**29, 3]), np.array([0, 60, 2]), Fraction(5, 2)
    each = [*range(10), 2, 2, 2]
    draws = [
        SAMPLER.exponential(widths, losses, scale, lambda at: at if at < 10 else 60 if at < 10 + 2**29 else 2)
        for _ in range(20_000)
    ]
    runs = np.bincount([at if at < 10 else at - 2**29 for at in draws if at < 10 or at >= 10 + 2**29], minlength=13)
    assert _fits_choice(runs, _chances([1] * 13, each, scale))
    assert not _fits_choice(runs, _chances([1] * 13, [0] * 10 + [2] * 3, scale))
    assert 40 < len(draws) - runs.sum() < 160  # 92 are expected


def test_the_least_loss_wins_where_others_cannot() -> None:
    losses = np.array([1, 0, 1], dtype=np.int64)
    assert {SAMPLER.exponential(np.array([9, 1, 9]), losses, Fraction(1, 1000)) for _ in range(1000)} == {9}


@pytest.mark.parametrize(("widths", "scale"), [([0], Fraction(1)), ([2**31], Fraction(1)), ([1], Fraction(0))])
def test_a_choice_without_candidates_or_scale_is_refused(widths: list[int], scale: Fraction) -> None:
    with pytest.raises(ValueError, match="candidates"):
        SAMPLER.exponential(np.array(widths), np.array([0]), scale)


# The law of Gauss


@pytest.mark.parametrize("deviation", SCALES, ids=str)
def test_gaussian_has_its_law_and_no_other(deviation: Fraction) -> None:
    variance = deviation**2
    draws = SAMPLER.discrete_gaussian(variance, 100_000)
    assert fits(draws, DiscreteGaussian(variance))
    assert not fits(draws, DiscreteGaussian(variance * WIDER**2))
    assert not fits(draws, DiscreteGaussian(variance / WIDER**2))


def test_gaussian_of_a_small_variance_is_rarely_but_rightly_off_zero() -> None:
    variance = Fraction(1, 20)
    draws = SAMPLER.discrete_gaussian(variance, 1_000_000)
    assert fits(draws, DiscreteGaussian(variance))
    assert not fits(draws, DiscreteGaussian(variance * WIDER))
    assert not fits(draws, DiscreteGaussian(variance / WIDER))


def test_gaussian_far_below_one_is_zero() -> None:
    assert not SAMPLER.discrete_gaussian(Fraction(1, 2**10), 10_000).any()
    assert not SAMPLER.discrete_gaussian(Fraction(1, 10**400), 1_000).any()


@settings(deadline=None)
@given(
    variance=st.fractions(min_value=Fraction(1, 10**9), max_value=2**100).filter(bool)
    | st.integers(-300, 100).map(lambda power: Fraction(2) ** power)
    | st.integers(1, 2**100).map(Fraction),
    times=st.integers(0, 60),
    offset=st.integers(-3, 3),
)
def test_the_estimate_of_an_acceptance_is_far_inside_the_band(variance: Fraction, times: int, offset: int) -> None:
    t = isqrt(int(variance)) + 1
    size = abs(t * times // 8 + offset)
    low, high = exp_bounds((size - variance / t) ** 2 / (2 * variance), 80)
    estimate = Fraction(float(samplers._estimate(np.array([size]), variance, t)[0])) * 2**80
    assert low - 2**40 < estimate < high + 2**40


# What both share


@pytest.mark.parametrize("scale", [Fraction(7, 3), Fraction(40)], ids=str)
def test_zero_and_both_signs_have_their_chances(scale: Fraction) -> None:
    for draws, law in (
        (SAMPLER.discrete_laplace(scale, 100_000), DiscreteLaplace(scale)),
        (SAMPLER.discrete_gaussian(scale**2, 100_000), DiscreteGaussian(scale**2)),
    ):
        zeros = int((draws == 0).sum())
        positive = int((draws > 0).sum())
        assert stats.binomtest(zeros, len(draws), cumulative(law, 0) - cumulative(law, -1)).pvalue > FALSE_ALARM
        assert stats.binomtest(positive, len(draws) - zeros, 0.5).pvalue > FALSE_ALARM


def test_draws_one_after_another_are_independent() -> None:
    for draws in (SAMPLER.discrete_laplace(Fraction(3), 100_001), SAMPLER.discrete_gaussian(Fraction(9), 100_001)):
        before, after = draws[:-1] > 0, draws[1:] > 0
        table = [[int((before & after).sum()), int((before & ~after).sum())]]
        table += [[int((~before & after).sum()), int((~before & ~after).sum())]]
        assert stats.chi2_contingency(table).pvalue > FALSE_ALARM


def test_many_small_requests_have_the_law_of_a_large_one() -> None:
    laplace = np.concatenate([SAMPLER.discrete_laplace(Fraction(7, 3), 1 + n % 5) for n in range(2_000)])
    gaussian = np.concatenate([SAMPLER.discrete_gaussian(Fraction(7, 3), 1 + n % 5) for n in range(2_000)])
    assert fits(laplace, DiscreteLaplace(Fraction(7, 3)))
    assert fits(gaussian, DiscreteGaussian(Fraction(7, 3)))


@pytest.mark.parametrize("size", [0, 1, 2, 1_000, 100_003])
def test_as_many_integers_are_drawn_as_asked(size: int) -> None:
    for draws in (SAMPLER.discrete_laplace(Fraction(5), size), SAMPLER.discrete_gaussian(Fraction(5), size)):
        assert draws.shape == (size,)
        assert draws.dtype == np.int64


@pytest.mark.parametrize("scale", [Fraction(0), Fraction(-1), Fraction(2**50 * 3 + 1, 3)], ids=str)
def test_scales_out_of_range_are_refused(scale: Fraction) -> None:
    with pytest.raises(ValueError, match="scale of the Laplace law"):
        SAMPLER.discrete_laplace(scale, 1)


@pytest.mark.parametrize("variance", [Fraction(0), Fraction(-1), Fraction(2**100 * 3 + 1, 3)], ids=str)
def test_variances_out_of_range_are_refused(variance: Fraction) -> None:
    with pytest.raises(ValueError, match="variance of the Gaussian law"):
        SAMPLER.discrete_gaussian(variance, 1)


# Exactness


@settings(deadline=None)
@given(
    x=st.fractions(min_value=0, max_value=300) | st.integers(0, 200).map(lambda power: Fraction(1, 2**power)),
    precision=st.integers(1, 300),
)
def test_bounds_of_the_exponential_enclose_it_closely(x: Fraction, precision: int) -> None:
    low, high = exp_bounds(x, precision)
    with localcontext(prec=400):
        exact = (-_decimal(x)).exp() * 2**precision
    assert low <= exact <= high
    assert high - low <= 2


@settings(deadline=None)
@given(x=st.fractions(min_value=Fraction(1, 2**60), max_value=300), length=st.integers(1, 300))
def test_probabilities_are_cut_off_after_right_bits_only(x: Fraction, length: int) -> None:
    with localcontext(prec=400):
        chance = (-_decimal(x)).exp()
        assert samplers._exp_floor(x, length) == int(chance * 2**length)
        assert samplers._logistic_floor(x, length) == int(chance / (1 + chance) * 2**length)


def test_each_digit_of_a_probability_is_right_at_any_depth() -> None:
    scale = Fraction(7, 3)
    blocks = [samplers._digits(scale, block) for block in range(4)]
    with localcontext(prec=200):
        rate = 1 / _decimal(scale)
        exact = [1 / (1 + rate.exp())]
        exact += [1 / (1 + (rate * 2**bit).exp()) for bit in range(4)]
        exact += [(-rate * 2**4).exp()]
        for coin, chance in enumerate(exact):
            digits = b"".join(block[:, coin].tobytes() for block in blocks)
            assert int.from_bytes(digits, "big") == int(chance * 256 ** len(digits))


def test_the_law_is_the_same_when_every_acceptance_is_decided_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samplers, "_BAND", 2.0)
    variance = Fraction(100, 7)
    draws = SAMPLER.discrete_gaussian(variance, 15_000)
    assert fits(draws, DiscreteGaussian(variance))
    assert not fits(draws, DiscreteGaussian(variance * WIDER**2))
    assert not fits(draws, DiscreteGaussian(variance / WIDER**2))


def test_an_exact_decision_draws_more_bits_until_it_is_sure() -> None:
    """Given the eight bits around p, the chance of staying is what is left of p within them."""
    x = Fraction(1, 3)
    with localcontext(prec=50):
        scaled = (-_decimal(x)).exp() * 2**8
    known = int(scaled)
    below = sum(samplers._uniform_below_exp(x, known, 8) for _ in range(10_000))
    assert stats.binomtest(below, 10_000, float(scaled - known)).pvalue > FALSE_ALARM
    assert samplers._uniform_below_exp(x, known - 3, 8)
    assert not samplers._uniform_below_exp(x, known + 3, 8)


@pytest.mark.parametrize("tied", [1, 7, 8, 9])
def test_a_tie_of_digits_is_decided_by_those_that_follow(tied: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """After equal digits, heads has the chance that the rest of p's digits make."""
    scale, count = Fraction(10), 20_000
    digits = np.concatenate([samplers._digits(scale, block) for block in range(3)])
    scripted = iter([np.tile(row, count) for row in digits[:tied]])
    real = samplers._random_bytes
    monkeypatch.setattr(samplers, "_random_bytes", lambda size: next(scripted, real(size)))
    heads = samplers._toss(scale, count).sum(axis=0)
    for coin, following in enumerate(digits[tied : tied + 8].T):
        chance = int.from_bytes(following.tobytes(), "big") / 2**64
        assert stats.binomtest(int(heads[coin]), count, chance).pvalue > FALSE_ALARM


def test_the_law_is_the_same_when_digits_are_computed_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samplers, "_DIGITS", 1)
    samplers._digits.cache_clear()
    try:
        draws = SAMPLER.discrete_laplace(Fraction(10), 100_000)
        assert samplers._digits.cache_info().currsize > 2
    finally:
        samplers._digits.cache_clear()
    assert fits(draws, DiscreteLaplace(Fraction(10)))


# Nobody else has the same noise


def test_forked_workers_draw_different_noise() -> None:
    _noise_and_salt()  # so that whatever a sampler might keep exists before the fork
    with warnings.catch_warnings():
        # The children only draw and leave, so threads of numerical libraries do not matter to them.
        warnings.simplefilter("ignore", DeprecationWarning)
        samples = [_drawn_in_a_fork(), _drawn_in_a_fork(), _noise_and_salt()]
    parts = [part for sample in samples for part in sample.split()]
    assert len(parts) == 3 * 3
    assert len(set(parts)) == len(parts)


def test_threads_draw_different_noise_of_the_same_law() -> None:
    with ThreadPoolExecutor(8) as pool:
        samples = list(pool.map(lambda _: SAMPLER.discrete_laplace(Fraction(2**50), 5_000), range(8)))
        salts = list(pool.map(lambda _: SAMPLER.salt(), range(100)))
    together = np.concatenate(samples)
    # Among 40,000 draws spread over 2**51 values, equal ones have a chance below one in a million.
    assert len(np.unique(together)) > len(together) - 2
    assert fits(together, DiscreteLaplace(Fraction(2**50)))
    assert len(set(salts)) == 100


def test_a_salt_has_128_bits() -> None:
    salt = SAMPLER.salt()
    assert len(bytes.fromhex(salt)) == 16


# An independent implementation


def test_laplace_agrees_with_opendp() -> None:
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l1_distance(T="i64")
    measurement = dp.m.make_laplace(*space, scale=4.5)
    theirs = np.array(measurement([0] * 20_000))
    assert fits(theirs, DiscreteLaplace(Fraction(9, 2)))
    assert same_law(SAMPLER.discrete_laplace(Fraction(9, 2), 20_000), theirs)
    assert not same_law(SAMPLER.discrete_laplace(Fraction(9, 2) * WIDER, 20_000), theirs)


def test_gaussian_agrees_with_opendp() -> None:
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T="f64")
    measurement = dp.m.make_gaussian(*space, scale=4.5)
    theirs = np.array(measurement([0] * 20_000))
    assert fits(theirs, DiscreteGaussian(Fraction(81, 4)))
    assert same_law(SAMPLER.discrete_gaussian(Fraction(81, 4), 20_000), theirs)
    assert not same_law(SAMPLER.discrete_gaussian(Fraction(81, 4) * WIDER**2, 20_000), theirs)


def _decimal(value: Fraction) -> Decimal:
    return Decimal(value.numerator) / Decimal(value.denominator)


def _noise_and_salt() -> str:
    laplace = SAMPLER.discrete_laplace(Fraction(2**50), 1)
    gaussian = SAMPLER.discrete_gaussian(Fraction(2**100), 1)
    return f"{laplace[0]} {gaussian[0]} {SAMPLER.salt()}"


def _drawn_in_a_fork() -> str:
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(send, _noise_and_salt().encode())
        finally:
            os._exit(0)
    os.close(send)
    os.waitpid(child, 0)
    with os.fdopen(receive) as pipe:
        return pipe.read()
