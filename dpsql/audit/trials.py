"""Trials of one query: its exact sums on two neighbouring databases, and thousands of draws of noise on both.

The engine runs the generated SQL on both databases; the product's noise step adds the noise. Everything after that is
post-processing. The score that distinguishes the two databases best is the likelihood ratio of the noisy sums (Neyman
and Pearson 1933), under the noise that the price promises: with less noise, or if a person changes the sums by more,
it shows more than was paid for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import assert_never

import numpy as np
import numpy.typing as npt

from dpsql.audit.choices import cuts, modes, most_moved, most_scores, quantiles, searches
from dpsql.audit.losses import Flags, Trials
from dpsql.engines.base import Engine
from dpsql.lowering.bounding import Branch
from dpsql.noise.add_noise import add_noise
from dpsql.noise.samplers import Sampler
from dpsql.privacy.mechanisms.bound_search import BoundSearch, Search
from dpsql.privacy.mechanisms.grouping_sets import GroupingSets
from dpsql.privacy.mechanisms.mode import Mode
from dpsql.privacy.mechanisms.partition_selection import PartitionSelection
from dpsql.privacy.mechanisms.quantiles import Quantiles
from dpsql.privacy.mechanisms.running_totals import RunningTotals, coefficients
from dpsql.privacy.mechanisms.sums import NoisySums, Sums
from dpsql.privacy.mechanisms.top_keys import TopKeys
from dpsql.privacy.noise_laws import Noise
from dpsql.release import Measurement
from dpsql.tables import ExactTable
from dpsql.types import Value

TIMEOUT = 60.0
# The score of a key that only the person has: more than any sum.
CERTAIN = 1e6
# Cells compared where a person changes more; any choice is sound, and a few cells hold nearly all of the evidence.
MOST_CELLS = 20
# Keys that the person alone has are all compared: each may be returned.
MOST_LONELY = 200
MOST_DRAWS = 500_000  # draws in all cells together; larger tables get fewer trials

Key = tuple[Value, ...]
Matrix = npt.NDArray[np.float64]  # one row per trial, one column per cell and statistic; NaN: no such row


@dataclass(frozen=True, slots=True)
class Scores:
    """Scores of the answers with and without the unit, and one noisy sum for pictures."""

    with_unit: Trials
    without_unit: Trials
    shown: tuple[Trials, Trials]
    choices: tuple[Trials, Trials] | None = None  # of keys, where what the counts of these tell is told apart

    @property
    def moved(self) -> bool:
        return bool(self.with_unit.any() or self.without_unit.any())

    @property
    def apart(self) -> float:
        """How far the means are from each other, in deviations."""
        both = np.concatenate((self.with_unit, self.without_unit))
        return abs(float(self.with_unit.mean() - self.without_unit.mean())) / (float(both.std()) or 1.0)


def is_slow(measurement: Measurement) -> bool:
    """Whether each trial is a noise step of its own, and not a cell of one."""
    return (
        measurement.is_combined
        or isinstance(measurement.mechanism, BoundSearch | TopKeys)
        or any(_is_chosen(measurement, branch) for branch in measurement.branches)
    )


def scores(measurement: Measurement, engines: tuple[Engine, Engine], sampler: Sampler, trials: int) -> Scores:
    salt = sampler.salt()  # the same for both: the databases differ by the unit only
    one, other = (_exact(measurement, engine, salt) for engine in engines)
    mechanism = measurement.mechanism
    match mechanism:
        case GroupingSets() | RunningTotals(rooted=True):
            (with_unit, without_unit), shown = combined_scores(measurement, one, other, sampler, trials)
            return Scores(with_unit, without_unit, shown)
        case TopKeys():
            whole, choices_alone, shown = most_scores(measurement, mechanism, one, other, sampler, trials)
            return Scores(*whole, shown, choices_alone)
        case BoundSearch():
            (statistic,), (noise,), added = measurement.statistics, measurement.noises, most_moved(one[0], other[0])
            drawn, evidence = searches(mechanism, statistic, noise, added, sampler, trials)
            return Scores(*evidence, drawn)
        case Sums() | PartitionSelection() | RunningTotals():
            return _cell_scores(measurement, one, other, sampler, trials)
        case _:
            assert_never(mechanism)


def _cell_scores(
    measurement: Measurement, one: Sequence[ExactTable], other: Sequence[ExactTable], sampler: Sampler, trials: int
) -> Scores:
    """Of sums with noise of their own in each cell, and of values that are chosen there."""
    found = _sum_scores(measurement, one, other, sampler, trials)
    # Sums and choices are drawn independently, so their log-likelihood ratios add up.
    for branch, mine, rest in zip(measurement.branches, one, other, strict=True):
        if _is_chosen(measurement, branch):
            added = most_moved(mine, rest)
            for group in measurement.groups:
                if group[0] not in branch.statistics:
                    continue
                noises = [measurement.noises[i] for i in group]
                match measurement.measured(group):
                    case Quantiles(statistics=(only,)):
                        drawn, evidence = quantiles(only, noises[0], added, sampler, trials)
                    case Quantiles(statistics=several):
                        drawn, evidence = cuts(several, noises, added, sampler, trials)
                    case Mode(statistic=only):
                        drawn, evidence = modes(only, noises[0], added, sampler, trials)
                    case NoisySums() | Search():
                        raise AssertionError("sums and searches are not chosen from the histogram of a cell")
                    case measured:
                        assert_never(measured)
                found = Scores(found.with_unit + evidence[0], found.without_unit + evidence[1], drawn)
    return found


def came_out(measurement: Measurement, engines: tuple[Engine, Engine], sampler: Sampler, trials: int) -> Flags | None:
    """The trials that returned a key that the unit alone has, which only delta allows; None if it has no such key."""
    if measurement.cells is not None:
        return None
    salt = sampler.salt()
    one, other = (_sums(measurement, _exact(measurement, engine, salt)) for engine in engines)
    cells = [key for key in one if key not in other][:MOST_LONELY]
    if not cells:
        return None
    return _any_of(_noisy(measurement, one, cells, sampler, min(trials, MOST_DRAWS // len(cells))))


def _sum_scores(
    measurement: Measurement, one: Sequence[ExactTable], other: Sequence[ExactTable], sampler: Sampler, trials: int
) -> Scores:
    """Scores of the sums only."""
    a, b = _sums(measurement, one), _sums(measurement, other)
    zeros = [0] * len(measurement.statistics)
    moved = [key for key in dict.fromkeys((*a, *b)) if a.get(key, zeros) != b.get(key, zeros)]
    cells = sorted(moved, key=lambda key: -_distance(measurement, a.get(key, zeros), b.get(key, zeros)))[:MOST_CELLS]
    if not cells:
        nothing = np.zeros(trials)
        return Scores(nothing, nothing, (nothing, nothing))
    centres = tuple(np.array([found.get(key, zeros) for key in cells], dtype=np.float64) for found in (a, b))
    noisy = [_noisy(measurement, found, cells, sampler, trials) for found in (a, b)]
    alone = np.array([key not in b for key in cells])
    found = [_score(measurement, each, centres[0], centres[1], alone) for each in noisy]
    best = _most_moved(measurement, centres[0], centres[1])
    return Scores(found[0], found[1], (noisy[0][:, 0, best], noisy[1][:, 0, best]))


def _is_chosen(measurement: Measurement, branch: Branch) -> bool:
    return isinstance(measurement.measured(branch.statistics[:1]), Quantiles | Mode)


def _exact(measurement: Measurement, engine: Engine, salt: str) -> list[ExactTable]:
    queries = [branch.query.filled({"salt": salt}) for branch in measurement.branches]
    return engine.execute(queries, timeout=TIMEOUT)


def _sums(measurement: Measurement, exact: Sequence[ExactTable]) -> dict[Key, list[int]]:
    found: dict[Key, list[int]] = {}
    for branch, table in zip(measurement.branches, exact, strict=True):
        if _is_chosen(measurement, branch):
            continue
        for row, key in enumerate(table.keys):
            sums = found.setdefault(key, [0] * len(measurement.statistics))
            for statistic, column in zip(branch.statistics, table.sums, strict=True):
                sums[statistic] = int(column[row])
    return found


def _distance(measurement: Measurement, one: Sequence[int], other: Sequence[int]) -> float:
    return max(
        abs(a - b) / float(noise.scale) ** (1 if noise.law == "laplace" else 0.5)
        for a, b, noise in zip(one, other, measurement.noises, strict=True)
    )


def _most_moved(measurement: Measurement, a: Matrix, b: Matrix) -> int:
    scales = [float(noise.scale) ** (1 if noise.law == "laplace" else 0.5) for noise in measurement.noises]
    return int(np.argmax(np.abs(a[0] - b[0]) / scales))


def _noisy(
    measurement: Measurement, exact: Mapping[Key, Sequence[int]], cells: Sequence[Key], sampler: Sampler, trials: int
) -> npt.NDArray[np.float64]:
    """Noisy sums by trial, cell and statistic, in grains; the cells of all trials are drawn as one noisy table."""
    present = [key for key in cells if key in exact]
    repeated = tuple((trial, *key) for trial in range(trials) for key in present)
    tables = [
        ExactTable(
            repeated,
            tuple(np.tile([exact[key][i] for key in present], trials).astype(np.int64) for i in branch.statistics),
        )
        for branch in measurement.branches
        if not _is_chosen(measurement, branch)
    ]
    every = None
    if measurement.cells is not None:
        every = tuple((trial, *key) for trial in range(trials) for key in cells)
    sums = tuple(branch for branch in measurement.branches if not _is_chosen(measurement, branch))
    # Of cells whose keys are not declared, none is among those looked at.
    mechanism = Sums() if isinstance(measurement.mechanism, Sums) else measurement.mechanism
    table = add_noise(replace(measurement, cells=every, branches=sums, mechanism=mechanism), tables, sampler)
    places = {key: place for place, key in enumerate(cells)}
    found = np.full((trials, len(cells), len(measurement.statistics)), np.nan)
    rows = np.fromiter((key[0] for key in table.keys), np.int64, len(table.keys))
    columns = np.fromiter((places[key[1:]] for key in table.keys), np.int64, len(table.keys))
    for number, (column, statistic) in enumerate(zip(table.sums, measurement.statistics, strict=True)):
        found[rows, columns, number] = column * statistic.factor
    return found


def _score(
    measurement: Measurement, noisy: npt.NDArray[np.float64], a: Matrix, b: Matrix, alone: npt.NDArray[np.bool_]
) -> Trials:
    """The log-likelihood ratio; a missing key counts zero, a key that only the unit has decides."""
    total = np.zeros(len(noisy))
    for number, noise in enumerate(measurement.noises):
        values, mine, other, scale = noisy[:, :, number], a[:, number], b[:, number], float(noise.scale)
        if noise.law == "exponential":
            continue  # a choice, not a sum
        if noise.law == "laplace":
            evidence = (np.abs(values - other) - np.abs(values - mine)) / scale
        else:
            evidence = ((values - other) ** 2 - (values - mine) ** 2) / (2 * scale)
        total += np.nansum(evidence, axis=1)
    if measurement.cells is None:
        total[_any_of(noisy[:, alone])] = CERTAIN
    return total


def _any_of(noisy: npt.NDArray[np.float64]) -> Flags:
    """The trials in which at least one of the cells is present."""
    return np.asarray(~np.isnan(noisy[:, :, 0]).all(axis=1), dtype=np.bool_)


# ------------------------------------------------------------
# Trials of sums estimated from several noisy numbers: consistent grouping sets, and cells of running totals.
#
# The answer shows cells x. They determine all measurements A x of each set or chain, so that the likelihood ratio of
# Gaussian noise follows from them; for Laplace noise the same score is a good one, and any score is sound. Each trial
# is the product's whole noise step.

MOST_TRIALS = 4_000  # number of these trials; each takes as long as an answer

Numbers = npt.NDArray[np.float64]


def combined_scores(
    measurement: Measurement, one: Sequence[ExactTable], other: Sequence[ExactTable], sampler: Sampler, trials: int
) -> tuple[tuple[Trials, Trials], tuple[Trials, Trials]]:
    """Scores with and without the person, and the sum of the cells, for pictures."""
    a, b = (_cells(measurement, exact) for exact in (one, other))
    drawn = [_drawn(measurement, exact, sampler, min(trials, MOST_TRIALS)) for exact in (one, other)]
    found = [np.zeros(len(each)) for each in drawn]
    for number in range(len(measurement.statistics)):
        weights = _weights(measurement, number, a[number] - b[number])
        for side, cells in zip(found, drawn, strict=True):
            side += (cells[:, number] - (a[number] + b[number]) / 2) @ weights
    shown = [cells[:, 0].sum(axis=1) for cells in drawn]
    return (found[0], found[1]), (shown[0], shown[1])


def _cells(measurement: Measurement, exact: Sequence[ExactTable]) -> list[Numbers]:
    """The exact sums over every cell, in grains."""
    places: dict[tuple[Value, ...], int] = {key: place for place, key in enumerate(measurement.every_cell)}
    found = [np.zeros(len(places)) for _ in measurement.statistics]
    for branch, table in zip(measurement.branches, exact, strict=True):
        for statistic, column in zip(branch.statistics, table.sums, strict=True):
            for key, value in zip(table.keys, column.tolist(), strict=True):
                if key in places:
                    found[statistic][places[key]] = value
    return found


def _drawn(measurement: Measurement, exact: Sequence[ExactTable], sampler: Sampler, trials: int) -> Numbers:
    """The noisy values by trial, statistic and cell, in grains."""
    factors = np.array([[statistic.factor] for statistic in measurement.statistics])
    drawn = (np.stack(add_noise(measurement, exact, sampler).sums) for _ in range(trials))
    return np.stack([cells * factors for cells in drawn]).astype(np.float64)


def _weights(measurement: Measurement, statistic: int, moved: Numbers) -> Numbers:
    """The weight of each cell in the score: the sum of A'A moved / variance over all measured A."""
    noise = measurement.noises[statistic]
    mechanism = measurement.mechanism
    if isinstance(mechanism, GroupingSets):
        cells = moved.reshape(mechanism.sizes)
        found = np.zeros_like(cells)
        for number, kept in enumerate(mechanism.sets):
            dropped = tuple(key for key in range(cells.ndim) if key not in kept)
            found += cells.sum(axis=dropped, keepdims=True) / _variance(mechanism.noise(noise, number))
        return found.reshape(-1)
    assert isinstance(mechanism, RunningTotals) and measurement.cells is not None
    if not mechanism.is_rooted(statistic):
        return moved / _variance(noise)
    places, length = np.asarray(mechanism.chains.places(measurement.cells)), mechanism.chains.length
    column = np.asarray(coefficients(length), dtype=np.float64)
    root = np.array([[column[i - j] if i >= j else 0.0 for j in range(length)] for i in range(length)])
    told = np.zeros_like(moved)
    told[places] = (moved[places].reshape(-1, length) @ root.T @ root).reshape(-1)
    return told / _variance(noise)


def _variance(noise: Noise) -> float:
    return float(noise.scale) if noise.law == "gaussian" else 2 * float(noise.scale) ** 2
