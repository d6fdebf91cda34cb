"""Grouping sets that agree are as far off as their margins say, and less than sets that were measured apart.

False alarms have a chance below one in a hundred million.
"""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest

from dpsql.noise.grouping_sets import noisy_sets
from dpsql.noise.samplers import SystemSampler
from dpsql.privacy.mechanisms.grouping_sets import lattice
from dpsql.privacy.noise_laws import Noise, gaussian, laplace

SIZES = (5, 4, 3)
CUBE = tuple(kept for count in (3, 2, 1, 0) for kept in combinations(range(3), count))
ROUNDS = 2_000


@pytest.mark.parametrize(
    ("whole", "closer"),
    [(gaussian(Fraction(1), Fraction(1, 2000)), 1.35), (laplace(Fraction(1), Fraction(1, 30)), 2.1)],
)
def test_sets_that_agree(whole: Noise, closer: float) -> None:
    found = lattice(SIZES, CUBE, whole.law)
    exact = np.arange(60) * 37 % 101
    wrong = np.stack([noisy_sets(exact, found, whole, 1, SystemSampler()) - exact for _ in range(ROUNDS)])
    variance = float(whole.scale) * len(CUBE) if whole.law == "gaussian" else 2 * (float(whole.scale) * len(CUBE)) ** 2
    gains = []
    for kept in CUBE:
        dropped = tuple(1 + key for key in range(3) if key not in kept)
        errors = wrong.reshape(ROUNDS, *SIZES).sum(axis=dropped).reshape(ROUNDS, -1)[:, 0]  # one cell, in each round
        margin = found.margin(whole, kept, 1)
        slack = 0.005 + 6 * math.sqrt(0.95 * 0.05 / ROUNDS)
        covered = float((np.abs(errors) <= margin).mean())
        assert covered >= 0.95 - slack
        assert covered <= 0.95 + slack + 0.005
        assert float((np.abs(errors) <= margin / 1.5).mean()) < 0.95 - slack
        gains.append(math.sqrt(variance / float((errors.astype(float) ** 2).mean())))
    assert math.prod(gains) ** (1 / len(gains)) > closer
