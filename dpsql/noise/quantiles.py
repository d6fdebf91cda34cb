"""Quantiles chosen from a histogram by how many rows they are away from their rank: one, or several cut in turn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import cast

import numpy as np

from dpsql.noise.samplers import Exact, Losses, Sampler
from dpsql.privacy.mechanisms.quantiles import CUTS, PARTS, Cut, cut_in_turn
from dpsql.privacy.noise_laws import Noise, rank_margin
from dpsql.privacy.rules.aggregates import Statistic, rank_of
from dpsql.tables import Integers

# Losses beyond this are computed with Python's integers.
FITS = 2**62


def choose(statistic: Statistic, noise: Noise, values: Integers, counts: Integers, sampler: Sampler) -> int:
    """One value of the grid, in steps, by the exponential mechanism over the histogram of one cell.

    Claim: the law is that of `noise_laws.chosen`.
    Because: candidates between two neighbouring values of the data have the same rows below them, and none on them, so
    they form a run of equal loss; each value of the data is a run of its own. Losses are exact: the wanted place, and
    so every loss, is a whole number of parts of a row, as many as the denominator of the rank says.
    Needs: values within the grid, without repetition; counts that are not negative.
    """
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


# ------------------------------------------------------------
# Several quantiles from one histogram: cut at one of them, then at the others on either side.

# Rows are cut into so many grains: parts of rows that share a value are rounded to them.
GRAINS = 2**10
# Where a value's rows lie within so many scales of the wanted place, and their losses differ by more than so many, the
# sampler is told each of its cuts: it would refuse too many otherwise. The law is the same.
_WITHIN_REACH, _UNEVEN = 40, 8


@dataclass(frozen=True, slots=True)
class Side:
    """The rows between two cuts: how many grains of them have each value."""

    low: int
    high: int
    values: Integers
    counts: Losses

    def cut(self, value: int, parts: int) -> tuple[Side, Side]:
        """Those before and behind a cut, which leaves so many parts of the rows with that value before it."""
        at = int(np.searchsorted(self.values, value))
        first, second = (self.values[:at], self.counts[:at]), (self.values[at:], self.counts[at:])
        if at < len(self.values) and self.values[at] == value:
            before = (int(self.counts[at]) * parts + PARTS // 2) // PARTS
            first = self.values[: at + 1], _with_last(self.counts[: at + 1], before)
            second = self.values[at:], _with_last(self.counts[at:][::-1], int(self.counts[at]) - before)[::-1]
        return Side(self.low, value, *first), Side(value, self.high, *second)


@dataclass(frozen=True, slots=True)
class Target:
    """What is looked for on one side. Rows before a cut, and losses, are in parts of a grain."""

    side: Side
    ends: Losses  # grains up to each value
    grain: int  # how many parts
    wanted: int
    scale: Fraction

    def loss(self, value: int, parts: int) -> int:
        at = int(np.searchsorted(self.side.values, value))
        before = int(self.ends[at]) * self.grain
        if at < len(self.side.values) and self.side.values[at] == value:
            before += int(self.side.counts[at]) * (self.grain // PARTS) * parts
        return abs(before - self.wanted)


def choose_in_turn(
    quantiles: Sequence[Statistic], noises: Sequence[Noise], values: Integers, counts: Integers, sampler: Sampler
) -> list[int]:
    """A value for each of the quantiles of one cell, whose ranks rise."""
    first, ranks = quantiles[0], tuple(map(rank_of, quantiles))
    side = histogram(first.low, first.high, values, counts)
    found = choose_cuts(cut_in_turn(ranks), dict(zip(ranks, noises, strict=True)), side, sampler)
    chosen = {rank: value for rank, (value, _) in found}
    return [chosen[rank] for rank in ranks]


def histogram(low: int, high: int, values: Integers, counts: Integers) -> Side:
    """All rows of a cell."""
    order = np.argsort(values)
    fits = sum(map(int, counts.tolist())) * GRAINS < FITS
    return Side(low, high, values[order], (counts if fits else counts.astype(np.object_))[order] * GRAINS)


def choose_cuts(
    first: Cut | None, noises: Mapping[Fraction, Noise], side: Side, sampler: Sampler
) -> Iterator[tuple[Fraction, tuple[int, int]]]:
    """For each rank a value of the grid, in steps, and how many parts of its rows lie before the cut.

    Claim: the law of each level is that of `quantiles.cuts_chosen`.
    Because: losses are exact, in whole parts of a grain; cuts between two values of the data have the same rows before
    them, and form a run.
    Needs: values within the grid, without repetition; counts that are not negative.
    """
    if first is None:
        return
    place = wanted(first, noises[first.rank], side)
    value, parts = _choose(place, sampler)
    yield first.rank, (value, parts)
    before, behind = side.cut(value, parts)
    yield from choose_cuts(first.before, noises, before, sampler)
    yield from choose_cuts(first.behind, noises, behind, sampler)


def wanted(cut: Cut, noise: Noise, side: Side) -> Target:
    grain = cut.within.denominator * PARTS
    counts = side.counts
    total = sum(map(int, counts.tolist()))
    if total * grain >= FITS:
        counts = counts.astype(np.object_)
    ends = cast(Losses, np.concatenate(([0], np.cumsum(counts))).astype(counts.dtype))
    place = cut.within.numerator * total * PARTS
    return Target(Side(side.low, side.high, side.values, counts), ends, grain, place, noise.scale * GRAINS * grain)


def _choose(place: Target, sampler: Sampler) -> tuple[int, int]:
    widths, losses = _stretches(place)
    found = sampler.exponential(widths, losses, place.scale, _each(place))
    return place.side.low + found // CUTS, found % CUTS


def _each(place: Target) -> Exact:
    return lambda cut: place.loss(place.side.low + cut // CUTS, cut % CUTS)


def _stretches(place: Target) -> tuple[Integers, Losses]:
    """Runs of cuts, from the first on: how many, and what each of them loses at least."""
    side, ends = place.side, place.ends * place.grain
    values = side.values
    before, after = np.concatenate(([side.low - 1], values)), np.concatenate((values, [side.high + 1]))
    widths = np.full(2 * len(values) + 1, CUTS, np.int64)
    widths[::2] = (after - before - 1) * CUTS
    losses = np.empty(len(widths), ends.dtype)
    losses[::2] = np.abs(ends - place.wanted)
    losses[1::2] = np.maximum(np.maximum(ends[:-1] - place.wanted, place.wanted - ends[1:]), 0)
    uneven = side.counts * place.grain > int(_UNEVEN * place.scale)
    near = losses[1::2] < int(_WITHIN_REACH * place.scale)
    told = np.flatnonzero((uneven & near) | (losses[1::2] == 0)).tolist()
    for at in reversed(told):
        run = 2 * at + 1
        part = int(side.counts[at]) * (place.grain // PARTS)
        each = np.abs(int(ends[at]) + np.arange(CUTS, dtype=np.int64).astype(losses.dtype) * part - place.wanted)
        widths = np.concatenate((widths[:run], np.ones(CUTS, np.int64), widths[run + 1 :]))
        losses = np.concatenate((losses[:run], each, losses[run + 1 :]))
    kept = widths > 0
    return widths[kept], losses[kept]


def _with_last(counts: Losses, last: int) -> Losses:
    changed = counts.copy()
    changed[-1] = last
    return changed
