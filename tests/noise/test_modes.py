"""The most common value: how likely each candidate is, and how far one unit moves that."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsql.noise.mode import choose_mode
from dpsql.noise.samplers import SystemSampler
from dpsql.privacy.bounds import Interval
from dpsql.privacy.noise_laws import Noise, most_common, rank_margin
from dpsql.privacy.rules.aggregates import Statistic, StatisticKind
from dpsql.privacy.stability import Sensitivity
from tests.noise.test_quantiles import Recorder

LOW, HIGH = -2, 4
ONE = Fraction(1)
STATISTIC = Statistic(
    StatisticKind.COMMONEST,
    None,
    None,
    Interval(Fraction(LOW), Fraction(HIGH)),
    LOW,
    HIGH,
    ONE,
    1,
    1,
    Sensitivity(1, *[ONE] * 3),
)
histograms = st.dictionaries(st.integers(LOW, HIGH), st.integers(1, 9), max_size=7)


def losses(histogram: dict[int, int], noise: Noise) -> list[Fraction]:
    recorder = Recorder()
    values, counts = np.array(list(histogram), np.int64), np.array(list(histogram.values()), np.int64)
    choose_mode(STATISTIC, noise, values, counts, recorder)
    return recorder.of


def logarithms(histogram: dict[int, int], noise: Noise) -> list[float]:
    """Of the probability of each candidate."""
    weights = [-float(loss) for loss in losses(histogram, noise)]
    whole = math.log(sum(map(math.exp, weights)))
    return [weight - whole for weight in weights]


@settings(deadline=None)
@given(histogram=histograms)
def test_a_value_loses_the_rows_that_it_has_fewer_than_the_most_common(histogram: dict[int, int]) -> None:
    most = max(histogram.values(), default=0)
    expected = [(most - histogram.get(value, 0)) * Fraction(1, 3) for value in range(LOW, HIGH + 1)]
    assert losses(histogram, Noise("exponential", Fraction(3))) == expected


@settings(deadline=None)
@given(histogram=histograms, added=st.lists(st.integers(LOW, HIGH), min_size=1, max_size=3))
def test_a_unit_is_hidden_within_epsilon(histogram: dict[int, int], added: list[int]) -> None:
    """The loss stays within epsilon, and all losses within one interval of that length: a bounded range."""
    epsilon = Fraction(1, 2)
    noise = most_common(Fraction(3), epsilon)
    larger = dict(histogram)
    for value in added:
        larger[value] = larger.get(value, 0) + 1
    moved = [a - b for a, b in zip(logarithms(larger, noise), logarithms(histogram, noise), strict=True)]
    most = float(epsilon) * len(added) / 3 + 1e-9
    assert max(map(abs, moved)) <= most
    assert max(moved) - min(moved) <= most


def test_half_the_noise_would_be_noticed() -> None:
    noise = most_common(Fraction(1), Fraction(1, 2))
    halved = Noise("exponential", noise.scale / 2)
    pairs = zip(logarithms({0: 1}, halved), logarithms({}, halved), strict=True)
    assert max(a - b for a, b in pairs) > 0.6


def test_the_value_is_about_as_common_as_the_most_common_one() -> None:
    noise = Noise("exponential", Fraction(4))
    values, counts = np.arange(LOW, HIGH + 1), np.arange(HIGH - LOW + 1) * 10
    margin, draws = rank_margin(noise, HIGH - LOW + 1), 400
    found = [choose_mode(STATISTIC, noise, values, counts, SystemSampler()) for _ in range(draws)]
    assert sum((HIGH - value) * 10 > margin for value in found) <= draws / 20
