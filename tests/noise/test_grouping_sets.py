"""Grouping sets that agree: exact without noise, each with its share of the price, parts that add up to totals."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dpsql
from dpsql.compliance.lab import ZeroNoise
from dpsql.noise.grouping_sets import noisy_sets
from dpsql.privacy.mechanisms.grouping_sets import MOST_SETS, GroupingSets, lattice, subsets
from dpsql.privacy.noise_laws import Noise
from dpsql.tables import Integers
from tests import toy

LAWS = ["gaussian", "laplace"]
SIZES = st.lists(st.integers(1, 5), min_size=1, max_size=3)


def rollup(keys: int) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(range(count)) for count in range(keys, -1, -1))


def cube(keys: int) -> tuple[tuple[int, ...], ...]:
    return tuple(sorted(subsets(range(keys)), key=lambda chosen: -len(chosen)))


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=3),
    st.sampled_from([rollup, cube]),
    st.sampled_from(LAWS),
    st.data(),
)
def test_without_noise_nothing_is_lost(sizes, shape, law, data) -> None:  # type: ignore[no-untyped-def]
    found = lattice(tuple(sizes), shape(len(sizes)), law)
    cells = math.prod(sizes)
    values = data.draw(st.lists(st.integers(-(2**40), 2**40), min_size=cells, max_size=cells))
    exact = np.asarray([value * 16 for value in values], dtype=np.int64)
    noisy = noisy_sets(exact, found, Noise(law, Fraction(1)), 16, ZeroNoise())
    assert noisy.tolist() == values


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(
    ("sizes", "sets"), [((3, 2), rollup(2)), ((50, 12), cube(2)), ((5, 4, 3), cube(3)), ((2,) * 4, cube(4))]
)
def test_shares_are_parts_of_one_price_and_no_set_is_worse_off_than_alone(
    sizes: tuple[int, ...], sets: tuple[tuple[int, ...], ...], law: str
) -> None:
    found = lattice(sizes, sets, law)
    assert sum(found.shares) == 1 and min(found.shares) > 0
    whole = Noise(law, Fraction(10**8))  # type: ignore[arg-type]
    alone = whole.scale * len(sets)
    widest = GroupingSets(sizes, (sets[0],), (Fraction(1),)).margin(Noise(whole.law, alone), sets[0], 1)
    if law == "gaussian":
        widest = math.ceil(1.96 * math.sqrt(alone)) + 1
    assert all(found.margin(whole, kept, 1) <= widest for kept in sets)
    if len(sets) > MOST_SETS:
        assert set(found.shares) == {Fraction(1, len(sets))}


class Asked(ZeroNoise):
    """Remembers what noise it was asked for."""

    def __init__(self) -> None:
        self.scales: list[tuple[Fraction, int]] = []

    def discrete_laplace(self, scale: Fraction, count: int) -> Integers:
        self.scales.append((scale, count))
        return super().discrete_laplace(scale, count)

    def discrete_gaussian(self, variance: Fraction, count: int) -> Integers:
        return self.discrete_laplace(variance, count)


@pytest.mark.parametrize("law", LAWS)
def test_all_sets_together_cost_what_was_paid(law: str) -> None:
    """A unit moves one cell of each set by one: what that tells of it adds up to what the whole noise would tell."""
    whole, sampler = Noise(law, Fraction(7)), Asked()  # type: ignore[arg-type]
    found = lattice((4, 3), cube(2), law)
    noisy_sets(np.arange(12), found, whole, 1, sampler)
    assert sum(1 / scale for scale, _ in sampler.scales) <= 1 / whole.scale
    assert [count for _, count in sampler.scales] == [12, 4, 3, 1]


@pytest.mark.parametrize("accounting", ["zcdp", "basic"])
def test_parts_add_up_to_totals(clinic: Path, accounting: str) -> None:
    policy = toy.write_policy(clinic.parent, accounting=accounting)
    with dpsql.connect(policy, user="alice") as connection, connection.cursor() as cursor:
        cursor.execute("SELECT state, smoker, COUNT(*), SUM(income) FROM people GROUP BY CUBE (state, smoker)")
        rows = {row[:2]: [int(str(value).removesuffix(".0")) for value in row[2:]] for row in cursor.fetchall()}
        assert all(margin[2] is not None for margin in cursor.row_margins)
    states, smokers = ("CA", "NY", "TX"), (False, True)
    for i in range(2):
        for state in states:
            assert sum(rows[state, smoker][i] for smoker in smokers) == rows[state, None][i]
        for smoker in smokers:
            assert sum(rows[state, smoker][i] for state in states) == rows[None, smoker][i]
        assert sum(rows[state, None][i] for state in states) == rows[None, None][i]


def test_it_is_stored_and_replayed(clinic: Path) -> None:
    sql = "SELECT state, smoker, COUNT(*) FROM people GROUP BY ROLLUP (state, smoker) ORDER BY 1, 2"
    with dpsql.connect(clinic, user="alice") as connection, connection.cursor() as cursor:
        first = cursor.execute(sql).fetchall()
        assert cursor.execute(f"{sql} LIMIT 100").fetchall() == first
        assert cursor.cost is not None and cursor.cost.charged.grains.loss == 0
