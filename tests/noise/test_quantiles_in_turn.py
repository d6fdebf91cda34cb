"""Quantiles cut in turn: how far one unit moves what each level loses, their order, and how close they are."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsql.noise.quantiles import GRAINS, Side, choose_cuts, choose_in_turn, histogram, wanted
from dpsql.noise.samplers import SystemSampler
from dpsql.privacy.bounds import Interval
from dpsql.privacy.mechanisms.quantiles import (
    CUTS,
    PARTS,
    Cut,
    better_together,
    cut_in_turn,
    cut_margin,
    cuts_chosen,
    errors,
    levels,
    ranks_within,
)
from dpsql.privacy.noise_laws import Noise, chosen
from dpsql.privacy.rules.aggregates import Statistic, StatisticKind
from dpsql.privacy.stability import Sensitivity
from tests.noise.test_quantiles import Recorder

LOW, HIGH = -1, 3
ONE = Fraction(1)
QUARTILES = tuple(Fraction(i, 4) for i in (1, 2, 3))
DECILES = tuple(Fraction(i, 10) for i in range(1, 10))
histograms = st.dictionaries(st.integers(LOW, HIGH), st.integers(1, 5), max_size=5)
sets_of_ranks = st.lists(st.fractions(Fraction(1, 50), Fraction(49, 50), max_denominator=50), min_size=1, max_size=9)


def side_of(histogram_: dict[int, int], low: int = LOW, high: int = HIGH) -> Side:
    values, counts = np.array(list(histogram_), np.int64), np.array(list(histogram_.values()), np.int64)
    return histogram(low, high, values, counts)


def losses(cut: Cut, noise: Noise, side: Side) -> list[Fraction]:
    """Of every candidate, in scales."""
    recorder = Recorder()
    next(iter(choose_cuts(cut, {cut.rank: noise}, side, recorder)))
    return recorder.of


def quantile(rank: Fraction) -> Statistic:
    bounds = Interval(Fraction(LOW), Fraction(HIGH))
    return Statistic(
        StatisticKind.RANKED, None, None, bounds, LOW, HIGH, ONE, 1, 1, Sensitivity(1, ONE, ONE, ONE), rank
    )


@given(ranks=sets_of_ranks)
def test_every_rank_is_cut_once_in_few_levels(ranks: list[Fraction]) -> None:
    asked = tuple(sorted(set(ranks)))

    def walk(cut: Cut | None, low: Fraction, high: Fraction, depth: int) -> list[Fraction]:
        if cut is None:
            return []
        assert depth <= levels(asked) and low < cut.rank < high
        assert cut.within == (cut.rank - low) / (high - low)
        return [*walk(cut.before, low, cut.rank, depth + 1), cut.rank, *walk(cut.behind, cut.rank, high, depth + 1)]

    assert walk(cut_in_turn(asked), Fraction(0), Fraction(1), 1) == list(asked)


@settings(deadline=None)
@given(
    bars=histograms,
    added=st.lists(st.integers(LOW, HIGH), min_size=1, max_size=3),
    at=st.tuples(st.integers(LOW, HIGH), st.integers(0, PARTS)),
    next_at=st.tuples(st.integers(LOW, HIGH), st.integers(0, PARTS)),
    ranks=st.sampled_from([QUARTILES, DECILES, tuple(Fraction(i, 20) for i in (1, 2, 9, 19))]),
)
def test_no_unit_moves_the_losses_of_a_level_further_than_its_price(
    bars: dict[int, int],
    added: list[int],
    at: tuple[int, int],
    next_at: tuple[int, int],
    ranks: tuple[Fraction, ...],
) -> None:
    """Whatever was chosen before: over all sides of a level, the ranges of what changes add up to one epsilon."""
    epsilon, first = Fraction(1, 2), cut_in_turn(ranks)
    assert first is not None
    larger = dict(bars)
    for value in added:
        larger[value] = larger.get(value, 0) + 1

    def moved(cut: Cut, without: Side, with_: Side) -> Fraction:
        noise = cuts_chosen(Fraction(3), cut.within, epsilon)
        pairs = zip(losses(cut, noise, without), losses(cut, noise, with_), strict=True)
        return 2 * max(abs(a - b) for a, b in pairs)

    sides = [(first, side_of(bars), side_of(larger))]
    for cut_at in (at, next_at):
        assert sum(moved(cut, *both) for cut, *both in sides) <= epsilon * Fraction(len(added), 3)
        below = []
        for cut, without, with_ in sides:
            if without.low <= cut_at[0] <= without.high:
                parts = zip((cut.before, cut.behind), without.cut(*cut_at), with_.cut(*cut_at), strict=True)
                below += [(then, one, other) for then, one, other in parts if then is not None]
        sides = below


@given(bars=histograms, value=st.integers(LOW, HIGH), parts=st.integers(0, PARTS))
def test_a_cut_loses_no_row(bars: dict[int, int], value: int, parts: int) -> None:
    whole = side_of(bars)
    before, behind = whole.cut(value, parts)
    assert int(before.counts.sum()) + int(behind.counts.sum()) == sum(bars.values()) * GRAINS
    assert before.values.max(initial=LOW) <= value <= behind.values.min(initial=HIGH)
    assert (before.low, before.high, behind.low, behind.high) == (LOW, value, value, HIGH)


def test_candidates_are_those_between_the_cuts_whatever_the_rows() -> None:
    first, noise = cut_in_turn(QUARTILES), Noise("exponential", ONE)
    assert first is not None
    for bars in ({}, {LOW: 3}, {0: 1, 2: 4}):
        assert len(losses(first, noise, side_of(bars))) == (HIGH - LOW + 1) * CUTS


def test_the_law_of_a_cut_is_exact() -> None:
    """Also where runs only say how little a cut loses at least: the rows of one value are many scales wide."""
    cut, noise, draws = Cut(Fraction(1, 2), Fraction(1, 2), None, None), Noise("exponential", Fraction(2)), 20_000
    side = side_of({0: 3, 1: 40, 2: 6})
    weights = [math.exp(-float(loss)) for loss in losses(cut, noise, side)]
    expected = np.array(weights).reshape(-1, CUTS).sum(1) / sum(weights)
    drawn = [
        value for _ in range(draws) for _, (value, _) in choose_cuts(cut, {cut.rank: noise}, side, SystemSampler())
    ]
    found = np.bincount(np.array(drawn) - LOW, minlength=HIGH - LOW + 1) / draws
    assert np.abs(found - expected).max() < 5 / math.sqrt(draws) / 2


@pytest.mark.parametrize("bars", [{}, {0: 1}, {0: 100, 1: 50, 3: 50}])
def test_quantiles_come_in_order(bars: dict[int, int]) -> None:
    within = ranks_within(DECILES)
    noises = [cuts_chosen(ONE, within[rank], Fraction(1, 10)) for rank in DECILES]
    values, counts = np.array(list(bars), np.int64), np.array(list(bars.values()), np.int64)
    for _ in range(20):
        found = choose_in_turn([quantile(rank) for rank in DECILES], noises, values, counts, SystemSampler())
        assert found == sorted(found) and found[0] >= LOW and found[-1] <= HIGH


def test_counts_beyond_64_bits_are_cut_exactly() -> None:
    cut, huge = Cut(Fraction(1, 3), Fraction(1, 3), None, None), 2**50
    small = losses(cut, Noise("exponential", ONE), side_of({0: 3, 2: 4}))
    assert losses(cut, Noise("exponential", Fraction(huge)), side_of({0: 3 * huge, 2: 4 * huge})) == small


def test_rows_that_share_a_value_are_cut_in_parts() -> None:
    """Most rows are zero, and the median is among them: the upper quartile is that of all rows all the same."""
    noises = [Noise("exponential", Fraction(1, 10))] * 3
    statistics = [quantile(rank) for rank in QUARTILES]
    values, counts = np.array([0, 1, 2], np.int64), np.array([6000, 3000, 1000], np.int64)
    assert choose_in_turn(statistics, noises, values, counts, SystemSampler()) == [0, 0, 1]


@pytest.mark.parametrize("ranks", [QUARTILES, DECILES])
def test_values_are_within_their_margins(ranks: tuple[Fraction, ...]) -> None:
    within, rows, draws = ranks_within(ranks), 4_000, 60
    noises = {rank: cuts_chosen(ONE, within[rank], Fraction(1, 4)) for rank in ranks}
    values = np.arange(rows)
    side = histogram(0, rows - 1, values, np.ones(rows, np.int64))
    margins = {rank: cut_margin(rank, noises, rows) for rank in ranks}
    away = dict.fromkeys(ranks, 0)
    for _ in range(draws):
        for rank, (value, _) in choose_cuts(cut_in_turn(ranks), noises, side, SystemSampler()):
            away[rank] += abs(value - rank * rows) > margins[rank] + 1
    assert max(away.values()) <= draws / 20


@pytest.mark.parametrize(("ranks", "degree"), [(QUARTILES, 2), (QUARTILES, 3), (DECILES, 2), (DECILES, 3)])
def test_quartiles_and_deciles_are_closer_together_than_apart(ranks: tuple[Fraction, ...], degree: int) -> None:
    assert better_together(ranks, 2 if degree == 2 else 3)


def test_what_is_off_before_is_off_less_behind() -> None:
    assert errors(QUARTILES)[Fraction(1, 4)] == {Fraction(1, 2): Fraction(1, 2), Fraction(1, 4): 1}
    assert errors(QUARTILES)[Fraction(3, 4)] == {Fraction(1, 2): Fraction(1, 2), Fraction(3, 4): 1}


@pytest.mark.parametrize(
    "ranks", [(Fraction(1, 2),), (Fraction(1, 2), Fraction(51, 100)), tuple(Fraction(i, 100) for i in (90, 95, 99))]
)
def test_neighbouring_quantiles_are_better_apart(ranks: tuple[Fraction, ...]) -> None:
    assert not better_together(ranks, 2)


def test_a_cut_needs_the_noise_of_a_rank() -> None:
    assert cuts_chosen(Fraction(2), Fraction(1, 3), ONE) == chosen(Fraction(2), Fraction(1, 3), ONE)
    place = wanted(Cut(Fraction(1, 3), Fraction(1, 3), None, None), Noise("exponential", ONE), side_of({0: 3}))
    assert place.loss(0, PARTS) / place.scale == 2 and place.loss(0, 0) / place.scale == 1
