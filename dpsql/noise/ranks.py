"""Values chosen from a histogram: at a rank, by how many rows they are away from it, or the most common one."""

from __future__ import annotations

import numpy as np

from dpsql.noise.samplers import Losses, Sampler
from dpsql.privacy.mechanisms import Noise, rank_margin
from dpsql.privacy.rules.aggregates import Counted, Statistic
from dpsql.tables import Integers

# Losses beyond this are computed with Python's integers.
FITS = 2**62


def choose(statistic: Statistic, noise: Noise, values: Integers, counts: Integers, sampler: Sampler) -> int:
    """One value of the grid, in steps, by the exponential mechanism over the histogram of one cell.

    Claim: the law is that of `mechanisms.chosen`.
    Because: candidates between two neighbouring values of the data have the same rows below them, and none on them, so
    they form a run of equal loss; each value of the data is a run of its own. Losses are exact: the wanted place, and
    so every loss, is a whole number of parts of a row, as many as the denominator of the rank says.
    Needs: values within the grid, without repetition; counts that are not negative.
    """
    if statistic.kind is Counted.COMMONEST:
        return _commonest(statistic, noise, values, counts, sampler)
    assert statistic.rank is not None
    order = np.argsort(values)
    values, counts = values[order], counts[order]
    parts, margin = statistic.rank.denominator, 0
    if statistic.rank in (0, 1):
        # At the very end the choice would be lost in the empty stretch behind it; so far inside it hardly ever leaves.
        margin = rank_margin(noise, statistic.candidates) * (1 if statistic.rank == 0 else -1)
    total = sum(map(int, counts.tolist()))
    fits = (total + abs(margin)) * parts < FITS
    exact: Losses = counts if fits else counts.astype(np.object_)
    place = statistic.rank.numerator * total + margin * parts
    widths, losses = _runs(values, exact, statistic.low, statistic.high, place, parts)
    return statistic.low + sampler.exponential(widths, losses, noise.scale * parts)


def _commonest(statistic: Statistic, noise: Noise, values: Integers, counts: Integers, sampler: Sampler) -> int:
    """The law of `mechanisms.most_common`: a candidate loses as many rows as it has fewer than the most common one."""
    bars = np.zeros(statistic.candidates, np.int64)
    bars[values - statistic.low] = counts
    return statistic.low + sampler.exponential(np.ones_like(bars), bars.max() - bars, noise.scale)


def _runs(values: Integers, counts: Losses, low: int, high: int, place: int, parts: int) -> tuple[Integers, Losses]:
    """Runs of candidates, from the lowest on: how many, and their loss in parts of a row."""
    ends = np.concatenate(([0], np.cumsum(counts))).astype(counts.dtype)  # rows up to each value of the data
    before, after = np.concatenate(([low - 1], values)), np.concatenate((values, [high + 1]))
    widths = np.ones(2 * len(values) + 1, np.int64)
    widths[::2] = after - before - 1
    below = np.empty(len(widths), counts.dtype)
    below[::2], below[1::2] = ends, ends[:-1]
    upto = np.empty(len(widths), counts.dtype)
    upto[::2], upto[1::2] = ends, ends[1:]
    losses = np.maximum(np.maximum(below * parts - place, place - upto * parts), 0)
    kept = widths > 0
    return widths[kept], losses[kept]
