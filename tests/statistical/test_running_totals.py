"""Running totals are as far off as their margins say, and less than sums of noisy cells. False alarms: below 1e-9."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from dpsql.noise.running_totals import noisy_chains
from dpsql.noise.samplers import SystemSampler
from dpsql.privacy.mechanisms.running_totals import Along, Chains, cell_margin, running_margins, tree, widened
from dpsql.privacy.noise_laws import gaussian, laplace, standard_deviation
from dpsql.privacy.stability import Sensitivity

LENGTH, CHAINS = 100, 2_000


def errors() -> tuple[np.ndarray, np.ndarray, np.ndarray, int, float]:
    """Of running totals and of cells, with the margins stated, and the deviation of plain noise at the same price."""
    plain = gaussian(Fraction(1), Fraction(1, 2000))
    noise = widened(plain, LENGTH, Sensitivity(1, Fraction(1), Fraction(1), Fraction(1)))
    cells = [(chain, i) for chain in range(CHAINS) for i in range(LENGTH)]
    exact = np.tile(np.arange(LENGTH) * 37 % 101, CHAINS)
    found = noisy_chains(exact, cells, Chains((Along(1),), LENGTH), noise, 1, SystemSampler())
    wrong = (found - exact).reshape(CHAINS, LENGTH)
    margins = np.asarray(running_margins(noise, LENGTH, 1))
    return np.cumsum(wrong, axis=1), wrong, margins, cell_margin(noise, LENGTH, 1), standard_deviation(plain)


def covered(wrong: np.ndarray, margins: np.ndarray | int, scale: float) -> np.ndarray:
    return np.asarray((np.abs(wrong) <= np.asarray(margins) * scale).mean(axis=0))


def test_95_of_100_lie_within_their_margins_and_the_gain_is_what_the_documents_say() -> None:
    totals, cells, margins, cell, plain = errors()
    slack = 0.005 + 6 * math.sqrt(0.95 * 0.05 / CHAINS)
    for shares in (covered(totals, margins, 1), covered(cells, cell, 1)[1:]):
        assert np.all(shares >= 0.95 - slack)
        assert shares[-1] <= 0.95 + slack
    assert covered(totals, margins, 1 / 1.4)[-1] < 0.95 - slack  # narrower ones would be noticed
    assert covered(cells, cell, 1 / 1.4)[-1] < 0.95 - slack
    together = plain * math.sqrt((LENGTH + 1) / 2)  # of running totals of noisy cells
    assert 2.8 < together / math.sqrt((totals**2).mean()) < 3.2


def test_laplace_noise_on_stretches_is_within_its_margins_and_closer_than_on_cells() -> None:
    plain = laplace(Fraction(1), Fraction(1, 20))
    noise = widened(plain, LENGTH, Sensitivity(1, Fraction(1), Fraction(1), Fraction(1)))
    cells = [(chain, i) for chain in range(CHAINS) for i in range(LENGTH)]
    exact = np.tile(np.arange(LENGTH) * 37 % 101, CHAINS)
    found = noisy_chains(exact, cells, Chains((Along(1),), LENGTH), noise, 1, SystemSampler())
    wrong = (found - exact).reshape(CHAINS, LENGTH)
    totals, margins = np.cumsum(wrong, axis=1), np.asarray(running_margins(noise, LENGTH, 1))
    slack = 0.005 + 6 * math.sqrt(0.95 * 0.05 / CHAINS)
    for shares in (covered(totals, margins, 1), covered(wrong, cell_margin(noise, LENGTH, 1), 1)):
        assert np.all(shares >= 0.95 - slack)
    assert covered(totals, margins, 1 / 1.5)[-1] < 0.95 - slack  # 84.4 of 100 are
    spread = tree(LENGTH).total_variances(LENGTH)
    law = standard_deviation(noise) * np.sqrt(spread)
    assert np.all(np.abs(totals.std(axis=0) / law - 1) < 8 / math.sqrt(CHAINS))
    together = standard_deviation(plain) * math.sqrt((LENGTH + 1) / 2)
    assert 1.4 < together / math.sqrt((totals**2).mean()) < 1.65
