"""Noise on the root of running totals, and the cells whose running totals have little of it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from dpsql.noise.samplers import Sampler
from dpsql.privacy.mechanisms import Noise
from dpsql.privacy.running import Chains, coefficients
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
    """The cells, in whole steps, as differences of rounded running totals, so that parts add up to totals.

    Claim: what comes out is as private as C x plus `noise`, a whole number for each cell.
    Because: C x is computed in whole numbers, exactly; what follows the noise reads nothing else.
    Needs: noise that was widened for C (`privacy.running.widened`).
    """
    places = np.asarray(chains.places(cells), dtype=np.int64)
    drawn = sampler.discrete_gaussian(noise.scale, len(places))
    found = np.empty(len(places), dtype=np.int64)
    for start in range(0, len(places), chains.length):
        chain = slice(start, start + chains.length)
        measured = _rooted(exact[places[chain]]) + drawn[chain]  # of Python's integers: nothing overflows
        totals = np.rint(_totals(measured.astype(np.float64)) / factor)
        steps = np.diff(totals, prepend=0.0)
        found[places[chain]] = np.clip(steps, -_LARGEST, _LARGEST).astype(np.int64)
    return found


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
