"""The most common value, chosen from a histogram."""

from __future__ import annotations

import numpy as np

from dpsql.noise.samplers import Sampler
from dpsql.privacy.noise_laws import Noise
from dpsql.privacy.rules.aggregates import Statistic
from dpsql.tables import Integers


def choose_mode(statistic: Statistic, noise: Noise, values: Integers, counts: Integers, sampler: Sampler) -> int:
    """One value of the grid, in steps, by the exponential mechanism over the histogram of one cell.

    Claim: the law is that of `noise_laws.most_common`.
    Because: a candidate loses as many rows as it has fewer than the most common one; losses are whole numbers.
    Needs: values within the grid, without repetition; counts that are not negative.
    """
    bars = np.zeros(statistic.candidates, np.int64)
    bars[values - statistic.low] = counts
    return statistic.low + sampler.exponential(np.ones_like(bars), bars.max() - bars, noise.scale)
