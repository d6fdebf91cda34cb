"""Noise of its own for every sum."""

from __future__ import annotations

import numpy as np

from dpsql.noise.samplers import Sampler
from dpsql.privacy.noise_laws import Noise
from dpsql.tables import Integers


def noisy(exact: Integers, noise: Noise, sampler: Sampler) -> Integers:
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
