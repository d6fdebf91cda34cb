"""The only door from exact to noisy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date, datetime
from functools import partial
from itertools import compress, repeat

import numpy as np

from dpsql.lowering.bounding import Branch
from dpsql.noise.bound_search import choose_measure
from dpsql.noise.grouping_sets import noisy_sets
from dpsql.noise.quantiles import choose, choose_in_turn
from dpsql.noise.running_totals import noisy_chains
from dpsql.noise.samplers import Sampler
from dpsql.privacy.mechanisms.top_keys import Top
from dpsql.privacy.noise_laws import Noise
from dpsql.privacy.rules.aggregates import CHOSEN, Statistic
from dpsql.release import Measurement
from dpsql.tables import ExactTable, Integers, NoisyTable, columns_of
from dpsql.types import Value


def add_noise(measurement: Measurement, exact: Sequence[ExactTable], sampler: Sampler) -> NoisyTable:
    """The noisy table of a measurement from the exact tables of its branches.

    Claim: what comes out is as private as the measurement's price says.
    Because: with declared keys every cell gets noise, those without rows too, so the shape is public; with unknown
    keys only those whose noisy count of units reaches the threshold are kept, in an order that is the keys' own.
    A value at a rank is chosen for every key that is returned, from that key's part of the histogram.
    A clip, or a centre, is chosen from a histogram of units.
    Needs: sums that one unit moves no further than each statistic's sensitivity.
    """
    if measurement.is_search:
        (statistic,), (noise,), (table,) = measurement.statistics, measurement.noises, exact
        return NoisyTable(((),), (np.asarray([choose_measure(statistic, noise, table, sampler)], dtype=np.int64),))
    if measurement.top is not None:
        keys, sums = _of_top(measurement, measurement.top, exact, sampler)
    elif measurement.cells is not None:
        keys = measurement.every_cell
        columns = _columns(measurement, exact, keys)
        sums = [_declared(measurement, i, column, sampler) for i, column in enumerate(columns)]
    else:
        keys, sums = _selected(measurement, exact, sampler)
    for branch, table in zip(measurement.branches, exact, strict=True):
        if _is_histogram(measurement, branch):
            for i, values in _chosen(measurement, branch, table, keys, sampler):
                sums[i] = values
    rounded = [
        column if measurement.in_whole_steps(i) else _unscaled(column, statistic.factor)
        for i, (column, statistic) in enumerate(zip(sums, measurement.statistics, strict=True))
    ]
    return NoisyTable(keys, tuple(rounded))


def _columns(
    measurement: Measurement, exact: Sequence[ExactTable], keys: Sequence[tuple[Value, ...]]
) -> list[Integers]:
    """Each statistic's exact sums over `keys`, zero where the engine returned none; zeros for what is chosen later."""
    places = dict(zip(keys, range(len(keys)), strict=True))
    columns: list[Integers] = [np.zeros(len(keys), dtype=np.int64) for _ in measurement.statistics]
    for branch, table in zip(measurement.branches, exact, strict=True):
        if _is_histogram(measurement, branch):
            continue
        where = np.fromiter(map(places.get, table.keys, repeat(-1)), np.int64, len(table))
        known = where >= 0
        for statistic, values in zip(branch.statistics, table.sums, strict=True):
            np.add.at(columns[statistic], where[known], values[known])
    return columns


def _is_histogram(measurement: Measurement, branch: Branch) -> bool:
    return measurement.statistics[branch.statistics[0]].kind in CHOSEN


def _chosen(
    measurement: Measurement,
    branch: Branch,
    table: ExactTable,
    keys: Sequence[tuple[Value, ...]],
    sampler: Sampler,
) -> Iterator[tuple[int, Integers]]:
    """For each statistic of a histogram, a value for every key, also for those without rows."""
    places: dict[tuple[Value, ...], list[int]] = {key: [] for key in keys}
    for row, (*key, _) in enumerate(table.keys):
        if tuple(key) in places:
            places[tuple(key)].append(row)
    values = np.asarray([key[-1] for key in table.keys], dtype=np.int64)
    cells = [np.asarray(places[key], dtype=np.int64) for key in keys]
    for group in measurement.groups:
        if group[0] not in branch.statistics:
            continue
        statistics, noises = [measurement.statistics[i] for i in group], [measurement.noises[i] for i in group]
        pick = partial(choose_in_turn, statistics, noises) if len(group) > 1 else partial(_one, statistics, noises)
        picked = [pick(values[rows], table.sums[0][rows], sampler) for rows in cells]
        for place, i in enumerate(group):
            yield i, np.asarray([found[place] for found in picked], dtype=np.int64)


def _one(
    statistics: Sequence[Statistic], noises: Sequence[Noise], values: Integers, counts: Integers, sampler: Sampler
) -> list[int]:
    return [choose(statistics[0], noises[0], values, counts, sampler)]


def _of_top(
    measurement: Measurement, top: Top, exact: Sequence[ExactTable], sampler: Sampler
) -> tuple[tuple[tuple[Value, ...], ...], list[Integers]]:
    """Keys chosen one after another, by how many units have them; then noisy sums of those, in the keys' order."""
    columns = _columns(measurement, exact, measurement.every_cell)
    counts = columns[top.by]
    left = list(range(len(counts)))
    for _ in range(top.keys):
        losses = counts[left].max() - counts[left]
        del left[sampler.exponential(np.ones_like(losses), losses, top.noise.scale)]
    kept = np.setdiff1d(np.arange(len(counts)), left)
    keys = measurement.every_cell
    noisy = [_noisy(column[kept], noise, sampler) for column, noise in zip(columns, measurement.noises, strict=True)]
    return tuple(keys[i] for i in kept), noisy


def _selected(
    measurement: Measurement, exact: Sequence[ExactTable], sampler: Sampler
) -> tuple[tuple[tuple[Value, ...], ...], list[Integers]]:
    selection, threshold = measurement.selection, measurement.threshold
    assert selection is not None and threshold is not None
    branch = next(i for i, branch in enumerate(measurement.branches) if selection in branch.statistics)
    candidates = _in_order(exact[branch].keys)
    columns = _columns(measurement, exact, candidates)
    counts = _noisy(columns[selection], measurement.noises[selection], sampler)
    kept = counts >= threshold
    keys = tuple(compress(candidates, kept.tolist()))
    sums = [
        counts[kept] if i == selection else _noisy(column[kept], noise, sampler)
        for i, (column, noise) in enumerate(zip(columns, measurement.noises, strict=True))
    ]
    return keys, sums


def _declared(measurement: Measurement, statistic: int, exact: Integers, sampler: Sampler) -> Integers:
    """A noisy sum for every declared key; in whole steps, where it is made of several noisy numbers."""
    noise = measurement.noises[statistic]
    factor = measurement.statistics[statistic].factor
    if measurement.lattice is not None:
        return noisy_sets(exact, measurement.lattice, noise, factor, sampler)
    if not measurement.is_rooted(statistic):
        return _noisy(exact, noise, sampler)
    assert measurement.chains is not None and measurement.cells is not None
    return noisy_chains(exact, measurement.cells, measurement.chains, noise, factor, sampler)


def _noisy(exact: Integers, noise: Noise, sampler: Sampler) -> Integers:
    match noise.law:
        case "laplace":
            return exact + _laplace(noise, sampler, len(exact))
        case "gaussian":
            return exact + sampler.discrete_gaussian(noise.scale, len(exact))
        case "exponential":
            return exact  # no sum: a value is chosen in its place


def _laplace(noise: Noise, sampler: Sampler, size: int) -> Integers:
    """Draws of the law, given that they are not further from zero than it says: those that are, are drawn again."""
    draws = sampler.discrete_laplace(noise.scale, size)
    while noise.most is not None and (far := np.flatnonzero(np.abs(draws) > noise.most)).size:
        draws[far] = sampler.discrete_laplace(noise.scale, far.size)
    return draws


def _unscaled(column: Integers, factor: int) -> Integers:
    """Back from fixed point to whole steps, to the nearest."""
    return column if factor == 1 else (column + factor // 2) // factor


def _in_order(keys: Sequence[tuple[Value, ...]]) -> list[tuple[Value, ...]]:
    """An order of the keys' own, so that nothing of the engine's order shows."""
    kinds = [set(map(type, column)) for column in columns_of(keys)]
    if all(len(kind) == 1 and type(None) not in kind for kind in kinds):
        return sorted(keys)  # as by `_sort_key`, and much quicker
    return sorted(keys, key=_sort_key)


def _sort_key(key: tuple[Value, ...]) -> tuple[tuple[bool, object], ...]:
    return tuple((value is None, _comparable(value)) for value in key)


def _comparable(value: Value) -> object:
    if value is None:
        return 0
    if isinstance(value, date) and not isinstance(value, datetime):
        return datetime(value.year, value.month, value.day)
    return value
