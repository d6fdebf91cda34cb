"""Trials of sums that are made of several noisy numbers: grouping sets that agree, and cells of running totals.

What is shown are cells x. They tell all that was measured of it, A x for each set or chain, so that the likelihood
ratio of Gaussian noise can be had from them; for Laplace noise the same score is a good one, and any score is sound.
Each trial is the whole noise step of the product.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dpsql.audit.losses import Trials
from dpsql.noise.apply import add_noise
from dpsql.noise.samplers import Sampler
from dpsql.privacy.mechanisms import Noise
from dpsql.privacy.running import coefficients
from dpsql.release import Measurement
from dpsql.tables import ExactTable
from dpsql.types import Value

MOST_TRIALS = 4_000  # of these; each takes as long as an answer

Numbers = npt.NDArray[np.float64]


def is_combined(measurement: Measurement) -> bool:
    return measurement.lattice is not None or measurement.rooted


def combined_scores(
    measurement: Measurement, one: Sequence[ExactTable], other: Sequence[ExactTable], sampler: Sampler, trials: int
) -> tuple[tuple[Trials, Trials], tuple[Trials, Trials]]:
    """Scores with the person and without, and the sum of the cells as it is, for pictures."""
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
    """What is shown, by trial, statistic and cell, in grains."""
    factors = np.array([[statistic.factor] for statistic in measurement.statistics])
    drawn = (np.stack(add_noise(measurement, exact, sampler).sums) for _ in range(trials))
    return np.stack([cells * factors for cells in drawn]).astype(np.float64)


def _weights(measurement: Measurement, statistic: int, moved: Numbers) -> Numbers:
    """What each cell tells of a move: the sum of A'A moved / variance over all A that were measured."""
    noise = measurement.noises[statistic]
    if measurement.lattice is not None:
        cells = moved.reshape(measurement.lattice.sizes)
        found = np.zeros_like(cells)
        for number, kept in enumerate(measurement.lattice.sets):
            dropped = tuple(key for key in range(cells.ndim) if key not in kept)
            found += cells.sum(axis=dropped, keepdims=True) / _variance(measurement.lattice.noise(noise, number))
        return found.reshape(-1)
    if not measurement.is_rooted(statistic):
        return moved / _variance(noise)
    assert measurement.chains is not None and measurement.cells is not None
    places, length = np.asarray(measurement.chains.places(measurement.cells)), measurement.chains.length
    column = np.asarray(coefficients(length), dtype=np.float64)
    root = np.array([[column[i - j] if i >= j else 0.0 for j in range(length)] for i in range(length)])
    told = np.zeros_like(moved)
    told[places] = (moved[places].reshape(-1, length) @ root.T @ root).reshape(-1)
    return told / _variance(noise)


def _variance(noise: Noise) -> float:
    return float(noise.scale) if noise.law == "gaussian" else 2 * float(noise.scale) ** 2
