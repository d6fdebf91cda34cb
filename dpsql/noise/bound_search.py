"""How later sums are measured: a clip, chosen among a few, and the centre that differences are taken from."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dpsql.noise.quantiles import choose
from dpsql.noise.samplers import Sampler
from dpsql.privacy.mechanisms.bound_search import BoundSearch
from dpsql.privacy.noise_laws import Noise, clip_penalty
from dpsql.privacy.rules.aggregates import Statistic, centres, clips
from dpsql.tables import ExactTable


def choose_measure(search: BoundSearch, statistic: Statistic, noise: Noise, table: ExactTable, sampler: Sampler) -> int:
    """The place of what is searched for."""
    choose_one = choose_clip if search.of == "clip" else choose_centre
    return choose_one(statistic, noise, table, sampler)


def choose_centre(statistic: Statistic, noise: Noise, table: ExactTable, sampler: Sampler) -> int:
    """The place of the median, by the exponential mechanism over the histogram of units (`ranks.choose`)."""
    places = replace(statistic, low=0, high=centres(statistic) - 1)
    bars = np.asarray([place for (place,) in table.keys], dtype=np.int64)
    return choose(places, noise, bars, table.sums[0], sampler)


def choose_clip(statistic: Statistic, noise: Noise, table: ExactTable, sampler: Sampler) -> int:
    """The place of one of the clips, by the exponential mechanism over the histogram of units.

    Claim: the law is that of `noise_laws.clip_chosen`.
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
