"""How far each value of a grid is from a rank, and that the choice among them uses it."""

from __future__ import annotations

from fractions import Fraction
from operator import le

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpsql.noise.quantiles import choose
from dpsql.noise.samplers import Exact, Losses, SystemSampler
from dpsql.privacy.bounds import Interval
from dpsql.privacy.noise_laws import Noise, chosen, epsilon_of_choice, rank_margin
from dpsql.privacy.rules.aggregates import Statistic, StatisticKind
from dpsql.privacy.stability import Sensitivity
from dpsql.tables import Integers

LOW, HIGH = -3, 12
RANKS = [Fraction(0), Fraction(1, 10), Fraction(1, 2), Fraction(999, 1000), Fraction(1)]
histograms = st.dictionaries(st.integers(LOW, HIGH), st.integers(1, 5), max_size=8)


def _statistic(rank: Fraction) -> Statistic:
    one = Fraction(1)
    bounds = Interval(Fraction(LOW), Fraction(HIGH))
    return Statistic(
        StatisticKind.RANKED, None, None, bounds, LOW, HIGH, one, 1, 1, Sensitivity(1, one, one, one), rank
    )


class Recorder:
    """A sampler that only writes down what it may choose from."""

    def __init__(self) -> None:
        self.of: list[Fraction] = []

    def exponential(self, widths: Integers, losses: Losses, scale: Fraction, exact: Exact | None = None) -> int:
        bounds = [int(loss) for width, loss in zip(widths, losses, strict=True) for _ in range(width)]
        each = bounds if exact is None else list(map(exact, range(len(bounds))))
        assert all(map(le, bounds, each))
        self.of = [loss / scale for loss in each]
        return 0

    def discrete_laplace(self, scale: Fraction, size: int) -> Integers:
        raise AssertionError(f"nothing is added: {scale}, {size}")

    discrete_gaussian = discrete_laplace

    def salt(self) -> str:
        raise AssertionError("nothing is salted")


def losses(histogram: dict[int, int], rank: Fraction, noise: Noise, factor: int = 1) -> list[Fraction]:
    """The loss of each value of the grid, in scales."""
    recorder = Recorder()
    values = np.array(list(histogram), dtype=np.int64)
    counts = np.array(list(histogram.values()), dtype=np.int64) * factor
    choose(_statistic(rank), noise, values, counts, recorder)
    return recorder.of


def by_hand(histogram: dict[int, int], rank: Fraction, noise: Noise) -> list[Fraction]:
    rows = sorted(value for value, count in histogram.items() for _ in range(count))
    inside = rank_margin(noise, HIGH - LOW + 1) if rank in (0, 1) else 0
    place = rank * len(rows) + (inside if rank == 0 else -inside)
    found = []
    for value in range(LOW, HIGH + 1):
        below, upto = sum(row < value for row in rows), sum(row <= value for row in rows)
        found.append(max(Fraction(0), below - place, place - upto) / noise.scale)
    return found


@pytest.mark.parametrize("rank", RANKS)
@given(histogram=histograms)
def test_the_loss_of_a_value_is_how_many_rows_it_is_away(histogram: dict[int, int], rank: Fraction) -> None:
    noise = Noise("exponential", Fraction(1, 3))
    assert losses(histogram, rank, noise) == by_hand(histogram, rank, noise)


@pytest.mark.parametrize("rank", RANKS)
@given(histogram=histograms, value=st.integers(LOW, HIGH), rows=st.integers(1, 3))
def test_no_unit_moves_a_loss_further_than_half_the_price(
    histogram: dict[int, int], value: int, rows: int, rank: Fraction
) -> None:
    epsilon = Fraction(1, 2)
    noise = chosen(Fraction(3), rank, epsilon)
    larger = {**histogram, value: histogram.get(value, 0) + rows}
    moved = [a - b for a, b in zip(losses(histogram, rank, noise), losses(larger, rank, noise), strict=True)]
    assert max(map(abs, moved)) <= epsilon / 2 * Fraction(rows, 3)


def test_counts_beyond_64_bits_are_computed_exactly() -> None:
    unit, wide = Noise("exponential", Fraction(1)), Noise("exponential", Fraction(2**50))
    rank = Fraction(1, 10**5)
    assert losses({0: 3, 5: 4}, rank, wide, factor=2**50) == losses({0: 3, 5: 4}, rank, unit)


def test_the_value_is_within_its_margin_of_the_rank() -> None:
    noise = Noise("exponential", Fraction(4))
    values, counts = np.arange(LOW, HIGH + 1), np.full(HIGH - LOW + 1, 50)
    margin = rank_margin(noise, HIGH - LOW + 1)
    draws = 400
    for rank in RANKS:
        inside = margin * {0: 1, 1: -1}.get(int(rank), 0) if rank in (0, 1) else 0
        place = rank * int(counts.sum()) + inside
        away = 0
        for _ in range(draws):
            found = choose(_statistic(rank), noise, values, counts, SystemSampler())
            below = 50 * (found - LOW)
            away += max(below - place, place - below - 50) > margin
        assert away <= draws / 20


def test_a_grid_that_nobody_is_on_is_chosen_from_evenly() -> None:
    noise = Noise("exponential", Fraction(1))
    assert set(losses({}, Fraction(1, 2), noise)) == {Fraction(0)}


@pytest.mark.parametrize("rho", [Fraction(1, 10**15), Fraction(1, 7), Fraction(2), Fraction(10**6)])
def test_a_choice_may_have_an_eighth_of_its_squared_epsilon(rho: Fraction) -> None:
    epsilon = epsilon_of_choice(rho)
    assert epsilon**2 / 8 <= rho < (epsilon + Fraction(1, 10**9)) ** 2 / 8
