"""Trials of exponential-mechanism choices: values at a rank, modes, bound searches, and top keys.

Neighbouring databases may hold any other people, so the audit adds those that make the choice most revealing. For a
value at a rank: rows in the middle of the grid, and enough at one end that the rank falls among them. Then one more row
above shifts it, and with it which side of the middle is chosen. For the mode: another value that is so far ahead that
without the person it is chosen in four of five cases. The person's contribution comes from the engine, and the choice
is made by the product's code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from dpsql.audit.losses import Trials
from dpsql.noise.add_noise import add_noise
from dpsql.noise.bound_search import choose_clip
from dpsql.noise.mode import choose_mode
from dpsql.noise.quantiles import Side, choose, choose_cuts, histogram, wanted
from dpsql.noise.samplers import Sampler
from dpsql.privacy.mechanisms.bound_search import BoundSearch
from dpsql.privacy.mechanisms.quantiles import Cut, cut_in_turn
from dpsql.privacy.mechanisms.top_keys import LEAST_GAIN, TopKeys
from dpsql.privacy.noise_laws import Noise, clip_penalty, rank_margin
from dpsql.privacy.rules.aggregates import Statistic, centres, rank_of
from dpsql.release import Measurement
from dpsql.tables import ExactTable, Integers, NoisyTable
from dpsql.types import Value

Key = tuple[Value, ...]
Bars = dict[int, int]  # rows by value on the grid, in grains


def most_moved(one: ExactTable, other: ExactTable) -> Bars:
    """What the person adds to the histogram of the cell that changes most."""
    with_unit, without = _by_cell(one), _by_cell(other)
    moved = {key: _less(bars, without.get(key, {})) for key, bars in with_unit.items()}
    return max(moved.values(), key=lambda bars: sum(map(abs, bars.values())), default={})


def quantiles(
    statistic: Statistic, noise: Noise, added: Bars, sampler: Sampler, trials: int
) -> tuple[tuple[Trials, Trials], tuple[Trials, Trials]]:
    """Values at a rank chosen with the person and without, and the log of the likelihood ratio of each."""
    return _choices(choose, _losses, _around(statistic, noise), statistic, noise, added, sampler, trials)


def modes(
    statistic: Statistic, noise: Noise, added: Bars, sampler: Sampler, trials: int
) -> tuple[tuple[Trials, Trials], tuple[Trials, Trials]]:
    """The same of most common values."""
    return _choices(choose_mode, _fewer, _rivals(statistic, noise, added), statistic, noise, added, sampler, trials)


def _choices(
    pick: Callable[[Statistic, Noise, Integers, Integers, Sampler], int],
    losses: Callable[[Statistic, Noise, Bars, Trials], Trials],
    others: Bars,
    statistic: Statistic,
    noise: Noise,
    added: Bars,
    sampler: Sampler,
    trials: int,
) -> tuple[tuple[Trials, Trials], tuple[Trials, Trials]]:
    both = {value: others.get(value, 0) + added.get(value, 0) for value in others | added}

    def draw(bars: Bars) -> Trials:
        values = np.array(sorted(bars), dtype=np.int64)
        counts = np.array([bars[value] for value in sorted(bars)], dtype=np.int64)
        return np.array([pick(statistic, noise, values, counts, sampler) for _ in range(trials)], dtype=np.float64)

    drawn, scale = (draw(both), draw(others)), float(noise.scale)
    one, other = (
        (losses(statistic, noise, others, values) - losses(statistic, noise, both, values)) / scale for values in drawn
    )
    return drawn, (one, other)


def cuts(
    statistics: Sequence[Statistic], noises: Sequence[Noise], added: Bars, sampler: Sampler, trials: int
) -> tuple[tuple[Trials, Trials], tuple[Trials, Trials]]:
    """Sums of the values that are cut in turn, with the person and without, and a score of all cuts together."""
    ranks = tuple(map(rank_of, statistics))
    first, noise_of = cut_in_turn(ranks), dict(zip(ranks, noises, strict=True))
    others = {_before_person(statistics[0], added): 2 * statistics[0].clip}
    both = {value: others.get(value, 0) + added.get(value, 0) for value in others | added}
    sides = [_side(statistics[0], bars) for bars in (both, others)]
    values, evidence = [], []
    for side in sides:
        drawn = [dict(choose_cuts(first, noise_of, side, sampler)) for _ in range(trials)]
        values.append(np.array([sum(value for value, _ in found.values()) for found in drawn], dtype=np.float64))
        evidence.append(np.array([_evidence(first, noise_of, found, sides[0], sides[1]) for found in drawn]))
    return (values[0], values[1]), (evidence[0], evidence[1])


def _before_person(statistic: Statistic, added: Bars) -> int:
    """Four fifths of the way to where the person is: cuts short of it are likely without the person.

    Between such a cut and the person all rows are left, so that the next cut tells as much; behind the others, none.
    """
    mine = max(added, key=lambda value: added[value], default=statistic.high)
    fifths = 4 if 2 * mine >= statistic.low + statistic.high else 1
    return statistic.low + (statistic.high - statistic.low) * fifths // 5


def _side(statistic: Statistic, bars: Bars) -> Side:
    values = np.array(sorted(bars), dtype=np.int64)
    counts = np.array([bars[value] for value in sorted(bars)], dtype=np.int64)
    return histogram(statistic.low, statistic.high, values, counts)


def _evidence(
    cut: Cut | None, noises: Mapping[Fraction, Noise], found: Mapping[Fraction, tuple[int, int]], one: Side, other: Side
) -> float:
    """The log-likelihood ratio of all cuts, up to a normaliser; earlier cuts are the same on both sides."""
    if cut is None:
        return 0.0
    value, parts = found[cut.rank]
    mine, rest = (wanted(cut, noises[cut.rank], side) for side in (one, other))
    total = float(Fraction(rest.loss(value, parts) - mine.loss(value, parts)) / mine.scale)
    (before, behind), (rest_before, rest_behind) = one.cut(value, parts), other.cut(value, parts)
    total += _evidence(cut.before, noises, found, before, rest_before)
    return total + _evidence(cut.behind, noises, found, behind, rest_behind)


def _by_cell(table: ExactTable) -> Mapping[Key, Bars]:
    found: dict[Key, Bars] = {}
    for (*key, value), count in zip(table.keys, table.sums[0].tolist(), strict=True):
        assert isinstance(value, int)
        found.setdefault(tuple(key), {})[value] = count
    return found


def _less(bars: Bars, fewer: Bars) -> Bars:
    found = {value: bars.get(value, 0) - fewer.get(value, 0) for value in bars | fewer}
    return {value: count for value, count in found.items() if count}


def _rivals(statistic: Statistic, noise: Noise, added: Bars) -> Bars:
    """One other value, a little more common than the person's: an event that is rare without them reveals most."""
    mine = max(added, key=lambda value: added[value], default=statistic.low)
    rival = statistic.low if mine != statistic.low else statistic.high
    # Both far ahead of values that no one has, so that these hardly ever win.
    ahead = math.ceil(float(noise.scale) * (math.log(statistic.candidates) + 3))
    return {mine: ahead} | ({} if mine == rival else {rival: ahead + math.ceil(1.5 * float(noise.scale))})


def _around(statistic: Statistic, noise: Noise) -> Bars:
    """Twice one person's contribution in the middle, and enough at an end to put the rank in the middle of those."""
    assert statistic.rank is not None
    middle = 2 * statistic.clip
    found = {(statistic.low + statistic.high) // 2: middle}
    if statistic.rank in (0, 1):
        end = statistic.low if statistic.rank == 0 else statistic.high
        inside = rank_margin(noise, statistic.candidates) - middle // 2
        found[end] = found.get(end, 0) + max(inside, 0)
    return {value: count for value, count in found.items() if count}


def _fewer(statistic: Statistic, noise: Noise, bars: Bars, drawn: Trials) -> Trials:
    """How many fewer rows each value has than the most common one, as `noise_laws.most_common` says."""
    del statistic, noise
    fewer: Trials = max(bars.values()) - np.array([bars.get(int(value), 0) for value in drawn], dtype=np.float64)
    return fewer


def _losses(statistic: Statistic, noise: Noise, bars: Bars, drawn: Trials) -> Trials:
    """How many grains each value is away from the wanted place: as `noise_laws.chosen` says it, once more."""
    assert statistic.rank is not None
    places = np.array(sorted(bars), dtype=np.float64)
    ends = np.cumsum([bars[value] for value in sorted(bars)])
    total = int(ends[-1])
    wanted = float(statistic.rank * total + _from_end(statistic.rank, noise, statistic.candidates))
    upto = np.concatenate(([0], ends))[np.searchsorted(places, drawn, side="right")]
    below = np.concatenate(([0], ends))[np.searchsorted(places, drawn, side="left")]
    found: Trials = np.maximum(np.maximum(below - wanted, wanted - upto), 0.0)
    return found


def _from_end(rank: Fraction, noise: Noise, candidates: int) -> int:
    if rank not in (0, 1):
        return 0
    return rank_margin(noise, candidates) * (1 if rank == 0 else -1)


# ------------------------------------------------------------
# Trials of bound searches: the clip of later sums, or their centre.
#
# Both are chosen from a histogram of units, to which one person adds one. As for other choices, the audit supplies the
# other people. For a clip: enough with the person's contribution that the least clip, which cuts off all of them, and
# the one that contains them are chosen about equally often. One person more then reveals most.


def searches(
    search: BoundSearch, statistic: Statistic, noise: Noise, added: Bars, sampler: Sampler, trials: int
) -> tuple[tuple[Trials, Trials], tuple[Trials, Trials]]:
    """Places chosen with the person and without, and a score of each."""
    if search.of == "centre":
        places = replace(statistic, low=0, high=centres(statistic) - 1, clip=1)
        return quantiles(places, noise, added, sampler, trials)
    place = max(added, default=0)
    others = {place: clip_penalty(noise) * place}
    both = {at: others.get(at, 0) + added.get(at, 0) for at in others | added}
    drawn = _clips(statistic, noise, both, sampler, trials), _clips(statistic, noise, others, sampler, trials)
    # The person makes all clips below equally less likely: only whether the clip contains them matters.
    held = (drawn[0] >= place).astype(np.float64), (drawn[1] >= place).astype(np.float64)
    return drawn, held


def _clips(statistic: Statistic, noise: Noise, bars: Bars, sampler: Sampler, trials: int) -> Trials:
    table = ExactTable(tuple((place,) for place in bars), (np.array(list(bars.values()), dtype=np.int64),))
    return np.array([choose_clip(statistic, noise, table, sampler) for _ in range(trials)], dtype=np.float64)


# ------------------------------------------------------------
# Trials of top keys: keys with most people are chosen before they are counted (`privacy.mechanisms`).
#
# As for the most common value, the audit brings the other people. The one person has several times as many keys as are
# chosen, and lacks as many as are chosen, which are a little more common: either kind is likely each time. What the
# person adds comes from the engine; the choices, and the noise on the counts that they show, are the product's own.

Counts = dict[tuple[Value, ...], int]  # units by key
_AHEAD = 0.5  # scales of a choice


Scored = tuple[Trials, Trials]  # with the person, and without


def most_scores(
    measurement: Measurement,
    top: TopKeys,
    one: Sequence[ExactTable],
    other: Sequence[ExactTable],
    sampler: Sampler,
    trials: int,
) -> tuple[Scored, Scored, Scored]:
    """Scores of all that is shown, and of the choices alone; and the noisy counts that are shown."""
    with_unit, without = _counts(one), _counts(other)
    added = {key: with_unit.get(key, 0) - without.get(key, 0) for key in measurement.every_cell}
    ordered = sorted(added, key=lambda key: -added[key])
    mine, rivals = ordered[: LEAST_GAIN * top.keys], ordered[-top.keys :]
    if added[mine[0]] == added[rivals[-1]]:
        nothing = np.zeros(trials), np.zeros(trials)
        return nothing, nothing, nothing
    ahead = math.ceil(_AHEAD * float(top.noise.scale))
    others = dict.fromkeys(mine, 0) | dict.fromkeys(rivals, ahead)
    both = {key: others[key] + added[key] for key in others}
    # Keys that nobody has would be chosen now and then, and tell nothing.
    asked = replace(measurement, cells=tuple(others))
    drawn = [_drawn_keys(asked, counts, sampler, trials) for counts in (both, others)]
    choices = [np.array([_of_choices(top, table, added) for table in tables]) for tables in drawn]
    counts = [np.array([_of_counts(asked, table, others, added) for table in tables]) for tables in drawn]
    shown = [np.array([table.sums[0].sum() for table in tables], dtype=np.float64) for tables in drawn]
    whole = choices[0] + counts[0], choices[1] + counts[1]
    return whole, (choices[0], choices[1]), (shown[0], shown[1])


def _counts(tables: Sequence[ExactTable]) -> Counts:
    (table,) = tables
    return dict(zip(table.keys, table.sums[0].tolist(), strict=True))


def _drawn_keys(measurement: Measurement, counts: Counts, sampler: Sampler, trials: int) -> list[NoisyTable]:
    table = ExactTable(tuple(counts), (np.array(list(counts.values()), dtype=np.int64),))
    return [add_noise(measurement, [table], sampler) for _ in range(trials)]


def _of_choices(top: TopKeys, table: NoisyTable, added: Counts) -> float:
    """The log of the likelihood ratio of the choices, but for what all have in common."""
    return sum(added[key] for key in table.keys) / float(top.noise.scale)


def _of_counts(measurement: Measurement, table: NoisyTable, others: Counts, added: Counts) -> float:
    """That of the counts, given the keys that were chosen."""
    (noise,), total = measurement.noises, 0.0
    for key, value in zip(table.keys, table.sums[0].tolist(), strict=True):
        far, near = abs(value - others[key]), abs(value - others[key] - added[key])
        if noise.law == "laplace":
            total += (far - near) / float(noise.scale)
        else:
            total += (far**2 - near**2) / (2 * float(noise.scale))
    return total
