"""Noise on the root of running totals, and the cells whose running totals have little of it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from dpsql.noise.samplers import Sampler
from dpsql.privacy.mechanisms.running_totals import Chains, coefficients, tree
from dpsql.privacy.noise_laws import Noise
from dpsql.tables import Integers
from dpsql.types import Value

Doubles = npt.NDArray[np.float64]

_LOW_BITS = 31
_LARGEST = 2.0**62


def noisy_chains(
    exact: Integers,
    cells: Sequence[tuple[Value, ...]],
    chains: Chains,
    noise: Noise,
    factor: int,
    sampler: Sampler,
) -> Integers:
    """The cells, in whole steps, as differences of rounded running totals, so that cells add up to totals.

    Claim: what comes out is as private as C x plus `noise`, a whole number for each cell.
    Because: C x is computed in whole numbers, exactly; what follows the noise reads nothing else.
    Needs: noise that was widened for C (`privacy.running.widened`).
    """
    places = np.asarray(chains.places(cells), dtype=np.int64)
    if noise.law == "laplace":
        return _in_stretches(exact, places, chains.length, noise, factor, sampler)
    drawn = sampler.discrete_gaussian(noise.scale, len(places))
    found = np.empty(len(places), dtype=np.int64)
    for start in range(0, len(places), chains.length):
        chain = slice(start, start + chains.length)
        measured = _rooted(exact[places[chain]]) + drawn[chain]  # Python's integers: no overflow
        found[places[chain]] = _differences(_totals(measured.astype(np.float64)), factor)
    return found


def _differences(totals: Doubles, factor: int) -> Integers:
    """Of the totals, rounded to whole steps."""
    steps = np.diff(np.rint(totals / factor), prepend=0.0)
    return np.clip(steps, -_LARGEST, _LARGEST).astype(np.int64)


def _in_stretches(
    exact: Integers, places: Integers, length: int, noise: Noise, factor: int, sampler: Sampler
) -> Integers:
    """The same with noise on the sums of stretches of each level, and the cells that are closest to all of them.

    Claim: what comes out is as private as all levels plus `noise`.
    Because: sums are exact; what follows the noise reads nothing else. Cells that fill the last stretch hold nobody.
    Needs: noise that was widened for all levels (`privacy.tree.Tree.noise`).
    """
    lengths = tree(length).lengths
    padded = -(-length // lengths[-1]) * lengths[-1]
    chains = np.zeros((len(places) // length, padded), dtype=np.object_)
    chains[:, :length] = exact[places].reshape(-1, length)
    known = np.zeros(chains.shape)
    cells = np.zeros(chains.shape)
    sure = 0
    for level, stretch in enumerate(lengths):
        sums = chains.reshape(len(chains), -1, stretch).sum(axis=2)
        noisy = sums + sampler.discrete_laplace(noise.scale, sums.size).reshape(sums.shape)
        known += np.repeat(noisy.astype(np.float64), stretch, axis=1)
        sure += stretch
        part = _averaged(known, stretch)
        if level + 1 < len(lengths):
            part = part - _averaged(known, lengths[level + 1])
        cells += part / sure
    found = np.empty(len(places), dtype=np.int64)
    for number, chain in enumerate(np.cumsum(cells, axis=1)[:, :length]):
        found[places[number * length : (number + 1) * length]] = _differences(chain, factor)
    return found


def _averaged(values: Doubles, stretch: int) -> Doubles:
    means = values.reshape(len(values), -1, stretch).mean(axis=2)
    return np.repeat(means, stretch, axis=1)


def _rooted(values: Integers) -> npt.NDArray[np.object_]:
    """C x, exactly: in two halves, each of which fits into 64 bits."""
    column = np.asarray(coefficients(len(values)), dtype=np.int64)
    low, high = values & (2**_LOW_BITS - 1), values >> _LOW_BITS
    small, large = (np.convolve(column, half)[: len(values)].astype(object) for half in (low, high))
    return np.asarray(small + large * 2**_LOW_BITS)


def _totals(measured: Doubles) -> Doubles:
    """The running totals of the cells that C makes what was measured of."""
    return np.convolve(_other_root(len(measured)), measured)[: len(measured)]


@lru_cache(maxsize=64)
def _other_root(length: int) -> Doubles:
    """The first column of A divided by C: the same coefficients again, but for what fixed point took from them."""
    column = np.asarray(coefficients(length), dtype=np.float64)
    found = np.zeros(length)
    for k in range(length):
        found[k] = (1.0 - column[1 : k + 1] @ found[k - 1 :: -1] if k else 1.0) / column[0]
    return found
