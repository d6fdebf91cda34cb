"""Trials of searches: the clip that later sums have, or the centre that they are counted from.

Both are chosen from a histogram of units, in which one person is one bar more. As for other choices, the audit brings
the other people. For a clip: so many with the person's contribution that the least clip, which cuts all of them off,
and the one that holds them are chosen about equally often. One person more then tells most.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dpsql.audit.choices import Bars, choices
from dpsql.audit.losses import Trials
from dpsql.noise.clips import choose_clip
from dpsql.noise.samplers import Sampler
from dpsql.privacy.mechanisms import Noise, clip_penalty
from dpsql.privacy.rules.aggregates import Counted, Statistic, centres
from dpsql.tables import ExactTable


def searches(
    statistic: Statistic, noise: Noise, added: Bars, sampler: Sampler, trials: int
) -> tuple[tuple[Trials, Trials], tuple[Trials, Trials]]:
    """Places chosen with the person and without, and a score of each."""
    if statistic.kind is Counted.CENTRE:
        return choices(replace(statistic, low=0, high=centres(statistic) - 1, clip=1), noise, added, sampler, trials)
    place = max(added, default=0)
    others = {place: clip_penalty(noise) * place}
    both = {at: others.get(at, 0) + added.get(at, 0) for at in others | added}
    drawn = _clips(statistic, noise, both, sampler, trials), _clips(statistic, noise, others, sampler, trials)
    # The person makes all clips below likewise less likely: whether one holds them is all that there is to see.
    held = (drawn[0] >= place).astype(np.float64), (drawn[1] >= place).astype(np.float64)
    return drawn, held


def _clips(statistic: Statistic, noise: Noise, bars: Bars, sampler: Sampler, trials: int) -> Trials:
    table = ExactTable(tuple((place,) for place in bars), (np.array(list(bars.values()), dtype=np.int64),))
    return np.array([choose_clip(statistic, noise, table, sampler) for _ in range(trials)], dtype=np.float64)
