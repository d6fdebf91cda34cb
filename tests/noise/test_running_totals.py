"""Running totals: the root is exact, nothing is lost without noise, and what one cell moves is what was widened."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsql.compliance.lab import ZeroNoise
from dpsql.noise.running_totals import noisy_chains
from dpsql.privacy.mechanisms.running_totals import (
    SCALE,
    Along,
    Chains,
    cell_margin,
    coefficients,
    running_margins,
    tree,
    widened,
    worthwhile,
)
from dpsql.privacy.noise_laws import Noise
from dpsql.privacy.stability import Sensitivity

LARGEST = 2**50
ONE = Sensitivity(1, Fraction(1), Fraction(1), Fraction(1))


def root(values: list[int]) -> list[int]:
    """C x in Python's integers."""
    column = coefficients(len(values))
    return [sum(column[i - j] * values[j] for j in range(i + 1)) for i in range(len(values))]


@given(st.lists(st.integers(-LARGEST, LARGEST), min_size=1, max_size=60), st.sampled_from([1, 2, 1024]))
def test_without_noise_nothing_is_lost(values: list[int], factor: int) -> None:
    cells = [(i,) for i in range(len(values))]
    exact = np.asarray([value * factor for value in values], dtype=np.int64)
    chains = Chains((Along(0),), len(values))
    found = noisy_chains(exact, cells, chains, Noise("gaussian", Fraction(1)), factor, ZeroNoise())
    assert np.all(np.abs(np.cumsum(found) - np.cumsum(values)) <= 1 + np.abs(np.cumsum(values)) / 2**48)


class OfOneDraw(ZeroNoise):
    """Remembers what noise it was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[Fraction, int]] = []

    def discrete_gaussian(self, variance: Fraction, count: int) -> np.ndarray:
        self.asked.append((variance, count))
        return super().discrete_gaussian(variance, count)


def test_every_cell_gets_its_own_noise() -> None:
    cells = [(chain, i) for chain in range(3) for i in range(5)]
    sampler = OfOneDraw()
    noisy_chains(np.arange(15), cells, Chains((Along(1),), 5), Noise("gaussian", Fraction(7)), 1, sampler)
    assert sampler.asked == [(Fraction(7), 15)]


@settings(max_examples=50)
@given(st.integers(1, 40), st.data())
def test_a_change_of_one_cell_moves_the_root_no_further_than_widened(length: int, data: st.DataObject) -> None:
    place, change = data.draw(st.integers(0, length - 1)), data.draw(st.integers(-1000, 1000))
    moved = root([change if i == place else 0 for i in range(length)])
    longer = widened(Noise("gaussian", Fraction(1)), length, ONE).scale
    assert sum(part * part for part in moved) <= change * change * longer
    if place == 0:  # and the first moves it just so far
        assert sum(part * part for part in moved) == change * change * longer


@settings(max_examples=50)
@given(st.lists(st.integers(-9, 9), min_size=1, max_size=30))
def test_changes_of_several_cells_move_it_no_further_than_their_sum(changes: list[int]) -> None:
    total = sum(map(abs, changes))
    claim = Sensitivity(None, Fraction(9), Fraction(total or 1), Fraction(sum(part * part for part in changes) or 1))
    longer = widened(Noise("gaussian", claim.l2_squared), len(changes), claim).scale  # as of one unit of price
    assert sum(part * part for part in root(changes)) <= longer


def test_the_root_times_itself_makes_running_totals() -> None:
    twice = root(root([1, 0, 0, 0, 0, 0, 0, 0]))
    assert all(abs(total - SCALE**2) <= 8 * SCALE for total in twice)


@pytest.mark.parametrize("length", [2, 28, 100, 365, 1_000])
def test_levels_of_stretches_share_the_price_of_laplace_noise(length: int) -> None:
    """What one unit moves at all levels together, in scales, is what it would move of the cells alone."""
    plain, claim = Noise("laplace", Fraction(7)), Sensitivity(None, Fraction(3), Fraction(3), Fraction(9))
    lengths, noise = tree(length).lengths, widened(plain, length, claim)
    moved = np.zeros(length, np.int64)
    moved[[0, length // 2, length - 1]] = [1, -1, 1]
    paid = Fraction(0)
    for stretch in lengths:
        sums = [int(moved[start : start + stretch].sum()) for start in range(0, length, stretch)]
        paid += sum(map(abs, sums)) / noise.scale
    assert paid <= claim.l1 / plain.scale
    assert lengths[0] == 1 and all(b % a == 0 for a, b in pairwise(lengths))


def test_choices_are_not_widened() -> None:
    with pytest.raises(ValueError, match="Laplace"):
        widened(Noise("exponential", Fraction(1)), 5, ONE)


@pytest.mark.parametrize("length", [28, 100, 365])
def test_without_noise_stretches_give_the_cells_back(length: int) -> None:
    cells = [(i,) for i in range(length)]
    exact = np.arange(length) * 91 % 57
    found = noisy_chains(exact * 4, cells, Chains((Along(0),), length), Noise("laplace", Fraction(1)), 4, ZeroNoise())
    assert (found == exact).all()


def test_cells_are_taken_in_the_order_that_was_asked_for() -> None:
    cells = [("a", 1), ("a", None), ("a", 2), ("b", 1), ("b", None), ("b", 2)]
    assert Chains((Along(1),), 3).places(cells) == [0, 2, 1, 3, 5, 4]
    assert Chains((Along(1, descending=True, nulls_first=True),), 3).places(cells) == [1, 2, 0, 4, 5, 3]
    assert Chains((Along(0, descending=True), Along(1)), 6).places(cells) == [3, 5, 4, 0, 2, 1]


def test_few_cells_and_short_gains_are_left_alone() -> None:
    assert not worthwhile(3, "gaussian", singly=False)
    assert not worthwhile(10, "gaussian", singly=True)
    assert worthwhile(10, "gaussian", singly=False)
    assert worthwhile(100, "gaussian", singly=True)
    assert not worthwhile(10**6, "gaussian", singly=False)
    assert not worthwhile(28, "laplace", singly=False)
    assert worthwhile(100, "laplace", singly=False)
    assert not worthwhile(100, "laplace", singly=True)


def test_margins_grow_along_the_chain_and_are_those_of_one_cell_at_its_start() -> None:
    noise = widened(Noise("gaussian", Fraction(10**4)), 100, ONE)
    margins = running_margins(noise, 100, 1)
    assert margins == sorted(margins)
    plain = [196 * (i + 1) ** 0.5 for i in range(100)]
    assert margins[-1] < plain[-1] / 3.5
    assert cell_margin(noise, 100, 1) < 1.85 * plain[0]
