"""The clip of a sum, chosen among a few: how many units are beyond each, and how large it is."""

from __future__ import annotations

import numpy as np

from dpsql.noise.samplers import Sampler
from dpsql.privacy.mechanisms import Noise, clip_penalty
from dpsql.privacy.rules.aggregates import Statistic, clips
from dpsql.tables import ExactTable


def choose_clip(statistic: Statistic, noise: Noise, table: ExactTable, sampler: Sampler) -> int:
    """The place of one of the clips, by the exponential mechanism over the histogram of units.

    Claim: the law is that of `mechanisms.clip_chosen`.
    Because: the bars behind a clip count the units beyond it; losses are whole numbers.
    Needs: bars by the place of the least clip that holds a unit's contribution.
    """
    bars = np.zeros(len(clips(statistic)), np.int64)
    for (place,), count in zip(table.keys, table.sums[0].tolist(), strict=True):
        assert isinstance(place, int)
        bars[place] += count
    beyond = bars.sum() - np.cumsum(bars)
    losses = beyond + clip_penalty(noise) * np.arange(len(bars), dtype=np.int64)
    return sampler.exponential(np.ones(len(bars), np.int64), losses, noise.scale)
