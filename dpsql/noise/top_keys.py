"""The keys with most units, chosen one after another."""

from __future__ import annotations

import numpy as np

from dpsql.noise.samplers import Sampler
from dpsql.privacy.mechanisms.top_keys import TopKeys
from dpsql.tables import Integers


def choose_keys(top: TopKeys, counts: Integers, sampler: Sampler) -> Integers:
    """The places of the chosen keys, in the keys' order, by how many units have each (`top_keys.chosen_keys`)."""
    left = list(range(len(counts)))
    for _ in range(top.keys):
        losses = counts[left].max() - counts[left]
        del left[sampler.exponential(np.ones_like(losses), losses, top.noise.scale)]
    return np.setdiff1d(np.arange(len(counts)), left)
