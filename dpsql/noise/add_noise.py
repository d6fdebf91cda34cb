"""The only door from exact to noisy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import compress, repeat
from typing import assert_never

import numpy as np

from dpsql.lowering.bounding import Branch
from dpsql.noise.bound_search import choose_measure
from dpsql.noise.grouping_sets import noisy_sets
from dpsql.noise.mode import choose_mode
from dpsql.noise.partition_selection import in_order
from dpsql.noise.quantiles import choose, choose_in_turn
from dpsql.noise.running_totals import noisy_chains
from dpsql.noise.samplers import Sampler
from dpsql.noise.sums import noisy
from dpsql.noise.top_keys import choose_keys
from dpsql.privacy.mechanisms.bound_search import BoundSearch, Search
from dpsql.privacy.mechanisms.grouping_sets import GroupingSets
from dpsql.privacy.mechanisms.mode import Mode
from dpsql.privacy.mechanisms.partition_selection import PartitionSelection
from dpsql.privacy.mechanisms.quantiles import Quantiles
from dpsql.privacy.mechanisms.running_totals import RunningTotals
from dpsql.privacy.mechanisms.sums import NoisySums, Sums
from dpsql.privacy.mechanisms.top_keys import TopKeys
from dpsql.release import Measurement
from dpsql.tables import ExactTable, Integers, NoisyTable
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
    mechanism = measurement.mechanism
    match mechanism:
        case BoundSearch():
            (statistic,), (noise,), (table,) = measurement.statistics, measurement.noises, exact
            place = choose_measure(mechanism, statistic, noise, table, sampler)
            return NoisyTable(((),), (np.asarray([place], dtype=np.int64),))
        case TopKeys():
            keys, sums = _of_top(measurement, mechanism, exact, sampler)
        case PartitionSelection():
            keys, sums = _selected(measurement, mechanism, exact, sampler)
        case Sums() | RunningTotals() | GroupingSets():
            keys = measurement.every_cell
            columns = _columns(measurement, exact, keys)
            sums = [_declared(measurement, mechanism, i, column, sampler) for i, column in enumerate(columns)]
        case _:
            assert_never(mechanism)
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
    return isinstance(measurement.measured(branch.statistics[:1]), Quantiles | Mode)


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
        pick = _choice(measurement, group, sampler)
        picked = [pick(values[rows], table.sums[0][rows]) for rows in cells]
        for place, i in enumerate(group):
            yield i, np.asarray([found[place] for found in picked], dtype=np.int64)


def _choice(
    measurement: Measurement, group: Sequence[int], sampler: Sampler
) -> Callable[[Integers, Integers], Sequence[int]]:
    """Chooses a value for each statistic of a group, from the values of a cell and how many rows have each."""
    noises = [measurement.noises[i] for i in group]
    match measurement.measured(group):
        case Quantiles(statistics=(only,)):
            return lambda values, counts: [choose(only, noises[0], values, counts, sampler)]
        case Quantiles(statistics=statistics):
            return lambda values, counts: choose_in_turn(statistics, noises, values, counts, sampler)
        case Mode(statistic=statistic):
            return lambda values, counts: [choose_mode(statistic, noises[0], values, counts, sampler)]
        case NoisySums() | Search():
            raise AssertionError("sums and searches are not chosen from the histogram of a cell")
        case other:
            assert_never(other)


def _of_top(
    measurement: Measurement, top: TopKeys, exact: Sequence[ExactTable], sampler: Sampler
) -> tuple[tuple[tuple[Value, ...], ...], list[Integers]]:
    """Keys chosen one after another, by how many units have them; then noisy sums of those, in the keys' order."""
    keys = measurement.every_cell
    columns = _columns(measurement, exact, keys)
    kept = choose_keys(top, columns[top.by], sampler)
    sums = [noisy(column[kept], noise, sampler) for column, noise in zip(columns, measurement.noises, strict=True)]
    return tuple(keys[i] for i in kept), sums


def _selected(
    measurement: Measurement, selection: PartitionSelection, exact: Sequence[ExactTable], sampler: Sampler
) -> tuple[tuple[tuple[Value, ...], ...], list[Integers]]:
    branch = next(i for i, branch in enumerate(measurement.branches) if selection.by in branch.statistics)
    candidates = in_order(exact[branch].keys)
    columns = _columns(measurement, exact, candidates)
    counts = noisy(columns[selection.by], measurement.noises[selection.by], sampler)
    kept = counts >= selection.threshold
    keys = tuple(compress(candidates, kept.tolist()))
    sums = [
        counts[kept] if i == selection.by else noisy(column[kept], noise, sampler)
        for i, (column, noise) in enumerate(zip(columns, measurement.noises, strict=True))
    ]
    return keys, sums


def _declared(
    measurement: Measurement,
    mechanism: Sums | RunningTotals | GroupingSets,
    statistic: int,
    exact: Integers,
    sampler: Sampler,
) -> Integers:
    """A noisy sum for every declared key; in whole steps, where it is made of several noisy numbers."""
    noise = measurement.noises[statistic]
    factor = measurement.statistics[statistic].factor
    match mechanism:
        case GroupingSets():
            return noisy_sets(exact, mechanism, noise, factor, sampler)
        case RunningTotals() if mechanism.is_rooted(statistic):
            assert measurement.cells is not None
            return noisy_chains(exact, measurement.cells, mechanism.chains, noise, factor, sampler)
        case Sums() | RunningTotals():
            return noisy(exact, noise, sampler)
        case _:
            assert_never(mechanism)


def _unscaled(column: Integers, factor: int) -> Integers:
    """Back from fixed point to whole steps, to the nearest."""
    return column if factor == 1 else (column + factor // 2) // factor
