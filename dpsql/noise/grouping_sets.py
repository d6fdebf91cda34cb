"""Noise for grouping sets, and the cells of which all of them are made afterwards."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dpsql.lowering.steps import LARGEST_SUM
from dpsql.noise.samplers import Sampler
from dpsql.privacy.mechanisms.grouping_sets import GroupingSets, information
from dpsql.privacy.noise_laws import Noise
from dpsql.tables import Integers

Doubles = npt.NDArray[np.float64]

_LARGEST = 2.0**62


def noisy_sets(exact: Integers, lattice: GroupingSets, whole: Noise, factor: int, sampler: Sampler) -> Integers:
    """The finest cells, in whole steps, whose sums are close to what was measured of every set.

    Claim: what comes out is as private as all sets with their noises.
    Because: each set is added up in whole numbers, exactly, and gets its noise; what follows reads nothing else.
    Needs: cells in the order of the product of the keys' values.
    """
    cells = exact.astype(object).reshape(lattice.sizes)  # Python's integers: no sum overflows
    gathered = np.zeros(lattice.sizes)
    for number, (kept, weight) in enumerate(zip(lattice.sets, lattice.weights(whole.law), strict=True)):
        dropped = tuple(key for key in range(len(lattice.sizes)) if key not in kept)
        sums = np.asarray(cells.sum(axis=dropped), dtype=object).reshape(-1)
        # As the engine cuts them: that moves two sums no further apart.
        bounded = np.asarray([min(max(total, -LARGEST_SUM), LARGEST_SUM) for total in sums], dtype=np.int64)
        noise = lattice.noise(whole, number)
        draw = sampler.discrete_gaussian if noise.law == "gaussian" else sampler.discrete_laplace
        measured = (bounded + draw(noise.scale, len(bounded))).astype(np.float64)
        shape = [size if key in kept else 1 for key, size in enumerate(lattice.sizes)]
        gathered += weight * measured.reshape(shape)
    return _rounded(_agreed(gathered, lattice, whole.law).reshape(-1) / factor)


def _agreed(gathered: Doubles, lattice: GroupingSets, law: str) -> Doubles:
    """The least squares estimate: each part of what was gathered, divided by what is known of it."""
    parts: dict[tuple[int, ...], Doubles] = {(): gathered}
    for key in range(len(lattice.sizes)):
        split: dict[tuple[int, ...], Doubles] = {}
        for part, values in parts.items():
            mean = values.mean(axis=key, keepdims=True)
            split[part] = mean
            split[(*part, key)] = values - mean
        parts = split
    weights = lattice.weights(law)
    found = np.zeros(lattice.sizes)
    for part, values in parts.items():
        found += values / information(lattice.sizes, lattice.sets, weights, part)
    return found


def _rounded(values: Doubles) -> Integers:
    """Whole numbers, such that every stretch of them adds up to its sum, rounded."""
    totals = np.rint(np.cumsum(values))
    return np.clip(np.diff(totals, prepend=0.0), -_LARGEST, _LARGEST).astype(np.int64)
